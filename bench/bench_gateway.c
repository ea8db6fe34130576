/* bench_gateway.c - what lagan-gateway adds between lagand and a client: CPU time and latency.
 *
 *     bench_gateway [ROUNDS [RATE]]
 *
 * Runs the real lagand and lagan-gateway with daemon_path_worker, whose tokens are the time of
 * their making; a stream gets RATE (50) tokens a second. Each round measures the same streams
 * twice: through liblagan on one connection, and through HTTP with one connection for each stream.
 *
 *   cpu      CPU time for each event, 1,000 streams: of this process with liblagan, and of the
 *            gateway, which also uses liblagan. lagand's for both ways.
 *   latency  from the clock of the worker before it publishes a token to the clock of the client
 *            that has read it, 1 stream and 1,000 streams.
 *   memory   resident memory of the gateway, idle and with 1,000 streams.
 *
 * A token is counted as one event, also where one message has several.
 */
#include "base/base.h"
#include "base/clock.h"
#include "include/lagan.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ROUNDS = 99, STREAMS = 1000, MAX_SAMPLES = 1 << 20, BUFFER = 4096 };
static const nsec WARM_UP = NSEC_S, MEASURE = 3 * NSEC_S;

struct service {
    char dir[64], endpoint[96];
    pid_t lagand, gateway;
    struct sockaddr_in address; /* of the gateway */
    struct lagan *client;
};

struct http_stream {
    int fd;
    size_t n; /* bytes of an incomplete line */
    char buf[BUFFER];
};

struct result {             /* of one way */
    double cpu, lagand_cpu; /* us for each event */
    double p50, p99;        /* us */
    uint32_t n_events;
};

static float sample[MAX_SAMPLES]; /* us */
static uint32_t n_samples;
static bool measuring;

_Noreturn static void
die(const char *what)
{
    fprintf(stderr, "bench_gateway: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int
by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double
at(float *v, uint32_t n, double share)
{
    if (!n) return 0;
    qsort(v, n, sizeof *v, by_value);
    return (double)v[MIN((uint32_t)(share * n), n - 1)];
}

static void
take_token(int64_t made)
{
    if (measuring && n_samples < MAX_SAMPLES)
        sample[n_samples++] = (float)((clock_now() - made) & INT32_MAX) / 1e3f;
}

/* ---- processes */

/* Returns the CPU time of a process with its threads. */
static nsec
cpu_time(pid_t pid)
{
    struct timespec t;
    clockid_t id;

    if (clock_getcpuclockid(pid, &id) || clock_gettime(id, &t) < 0) die("clock_getcpuclockid");
    return (nsec)t.tv_sec * NSEC_S + t.tv_nsec;
}

static double
resident_mib(pid_t pid)
{
    char path[64];
    unsigned long size, pages = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    f = fopen(path, "re");
    if (!f || fscanf(f, "%lu %lu", &size, &pages) != 2) die(path);
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static pid_t
launch(const char *const *argv, int out)
{
    pid_t pid = fork();

    if (pid < 0) die("fork");
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (out >= 0) dup2(out, 1);
    execv(argv[0], (char **)(uintptr_t)argv);
    die(argv[0]);
}

static void
start(struct service *b, uint32_t rate)
{
    char exe[1024], lagand[1100], gateway[1100], worker[1100], model[128], run[128], url[128];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    int out[2], port = 0;
    char *slash;
    FILE *f;

    *b = (struct service){ .dir = "/tmp/lagan-gateway-XXXXXX" };
    exe[MAX(len, (ssize_t)0)] = 0;
    for (int up = 0; up < 2 && (slash = strrchr(exe, '/')); up++) *slash = 0;
    snprintf(lagand, sizeof lagand, "%s/lagand", exe);
    snprintf(gateway, sizeof gateway, "%s/lagan-gateway", exe);
    snprintf(worker, sizeof worker, "%s/bench/daemon_path_worker", exe);
    if (!mkdtemp(b->dir) || pipe2(out, O_CLOEXEC) < 0) die("mkdtemp");
    snprintf(model, sizeof model, "%s/%u", b->dir, 1000000 / rate);
    snprintf(run, sizeof run, "%s/run", b->dir);
    snprintf(b->endpoint, sizeof b->endpoint, "ipc://%s/run/api.sock", b->dir);
    if (mkdir(model, 0700) < 0) die(model);
    b->lagand = launch((const char *const[]){ lagand, "--runtime-dir", run, "--model", model,
                                              "--worker", worker, "--log.level", "err", NULL },
                       -1);
    b->gateway = launch((const char *const[]){ gateway, "--config", "/dev/null", "--announce",
                                               "--lagand", b->endpoint, "--listen", "127.0.0.1:0",
                                               "--log.level", "err", NULL },
                        out[1]);
    close(out[1]);
    f = fdopen(out[0], "r");
    if (!f || !fgets(url, sizeof url, f) || sscanf(url, "http://127.0.0.1:%d", &port) != 1)
        die("the gateway does not start");
    fclose(f);
    b->address = (struct sockaddr_in){ .sin_family = AF_INET,
                                       .sin_port = htons((uint16_t)port),
                                       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    if (lagan_open(&b->client, b->endpoint, 10000) < 0) die(lagan_errmsg(NULL));
    for (char *status = NULL;; free(status)) {
        if (lagan_call(b->client, "workers list", NULL, &status, NULL, 5000) < 0)
            die(lagan_errmsg(b->client));
        if (strstr(status, "\"ready\"")) return free(status);
        usleep(5000);
    }
}

static void
stop(struct service *b)
{
    char command[128];

    lagan_close(b->client);
    kill(b->gateway, SIGTERM);
    waitpid(b->gateway, NULL, 0);
    kill(b->lagand, SIGTERM);
    waitpid(b->lagand, NULL, 0);
    snprintf(command, sizeof command, "rm -rf '%s'", b->dir);
    if (system(command)) fprintf(stderr, "%s could not be removed\n", b->dir);
}

/* ---- the two ways; each calls wait() until the streams run, measures, and ends them */

struct meter {
    const struct service *b;
    pid_t pid; /* whose CPU time is counted; 0: of this process */
    nsec begin, since, cpu, lagand_cpu;
};

/* Begins and ends the measurement. Returns false at its end. */
static bool
measure(struct meter *m, struct result *ret)
{
    nsec now = clock_now();

    if (!m->begin) m->begin = now;
    if (!measuring && now - m->begin > WARM_UP) {
        measuring = true;
        n_samples = 0;
        m->since = now;
        m->cpu = cpu_time(m->pid);
        m->lagand_cpu = cpu_time(m->b->lagand);
    }
    if (!measuring || now - m->since < MEASURE) return true;
    measuring = false;
    if (!n_samples) die(m->pid == m->b->gateway ? "no events by HTTP" : "no events by liblagan");
    *ret = (struct result){
        .cpu = (double)(cpu_time(m->pid) - m->cpu) / 1e3 / n_samples,
        .lagand_cpu = (double)(cpu_time(m->b->lagand) - m->lagand_cpu) / 1e3 / n_samples,
        .n_events = n_samples,
        .p50 = at(sample, n_samples, 0.5),
        .p99 = at(sample, n_samples, 0.99),
    };
    return false;
}

static struct result
through_liblagan(struct service *b, uint32_t n)
{
    struct lagan_event ev = { sizeof ev };
    struct lagan_request *r = lagan_request_new();
    struct meter m = { .b = b, .pid = getpid() };
    uint64_t id[STREAMS];
    struct result ret;
    uint32_t open = n;

    lagan_set_ids(r, "ids", &(int32_t){ 1 }, 1);
    lagan_set_int(r, "max_tokens", 2000);
    for (uint32_t i = 0; i < n; i++)
        if (lagan_submit(b->client, r, &id[i]) < 0) die(lagan_errmsg(b->client));
    lagan_request_free(r);
    while (measure(&m, &ret)) {
        struct pollfd p = { lagan_fd(b->client), POLLIN, 0 };

        int got = 1;

        poll(&p, 1, 100);
        for (int k = 0; k < 1000 && (got = lagan_next(b->client, &ev, 0)) > 0; k++) {
            if (ev.kind == LAGAN_EVENT_ERROR) {
                fprintf(stderr, "bench_gateway: %s\n", ev.message);
                exit(1);
            }
            for (uint32_t i = 0; ev.kind == LAGAN_EVENT_TOKENS && i < ev.n_ids; i++)
                take_token(ev.ids[i]);
        }
        if (got < 0) die(lagan_errmsg(b->client));
    }
    for (uint32_t i = 0; i < n; i++) lagan_cancel(b->client, id[i]);
    while (open && lagan_next(b->client, &ev, 5000) > 0)
        open -= ev.kind == LAGAN_EVENT_ERROR || ev.kind == LAGAN_EVENT_DONE;
    return ret;
}

static void
open_stream(struct http_stream *s, const struct service *b)
{
    static const char body[] = "{\"prompt\":[1],\"max_tokens\":2000,\"stream\":true,"
                               "\"return_token_ids\":true}";
    char head[256];
    int n =
        snprintf(head, sizeof head,
                 "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n%s",
                 sizeof body - 1, body);

    s->n = 0;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(s->fd, (const struct sockaddr *)&b->address, sizeof b->address) < 0 ||
        write(s->fd, head, (size_t)n) != n || fcntl(s->fd, F_SETFL, O_NONBLOCK) < 0)
        die("cannot open a stream");
}

/* Reads what has arrived and takes the numbers after each "token_ids":[ of whole lines. */
static void
read_stream(struct http_stream *s)
{
    ssize_t got = read(s->fd, s->buf + s->n, sizeof s->buf - 1 - s->n);
    char *line = s->buf, *end;

    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) die("a stream has ended");
    s->n += (size_t)got;
    s->buf[s->n] = 0;
    if (!strncmp(s->buf, "HTTP/1.1 ", 9) && strncmp(s->buf + 9, "200", 3)) {
        fprintf(stderr, "%s\n", s->buf);
        die("a stream was refused");
    }
    while ((end = strchr(line, '\n'))) {
        char *ids = memmem(line, (size_t)(end - line), "\"token_ids\":[", 13);

        for (ids = ids ? ids + 13 : NULL; ids && *ids != ']'; ids += *ids == ',')
            take_token(strtol(ids, &ids, 10));
        line = end + 1;
    }
    s->n -= (size_t)(line - s->buf);
    memmove(s->buf, line, s->n);
    if (s->n == sizeof s->buf - 1) s->n = 0; /* no line is that long */
}

static struct result
through_http(struct service *b, uint32_t n, double *mib)
{
    static struct http_stream stream[STREAMS];
    struct meter m = { .b = b, .pid = b->gateway };
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct result ret;

    for (uint32_t i = 0; i < n; i++) {
        struct epoll_event ev = { .events = EPOLLIN, .data.u32 = i };

        open_stream(&stream[i], b);
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, stream[i].fd, &ev) < 0) die("epoll_ctl");
    }
    while (measure(&m, &ret)) {
        struct epoll_event ev[256];
        int ready = epoll_wait(epoll, ev, ARRAY_LEN(ev), 100);

        for (int i = 0; i < ready; i++) read_stream(&stream[ev[i].data.u32]);
    }
    *mib = resident_mib(b->gateway);
    for (uint32_t i = 0; i < n; i++) close(stream[i].fd);
    close(epoll);
    usleep(300000); /* until the gateway has cancelled them */
    return ret;
}

static void
print(const char *name, const char *unit, float *v, uint32_t n)
{
    double value = at(v, n, 0.5);

    printf("{\"bench\":\"gateway\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"n\":%u,"
           "\"min\":%.4g,\"median\":%.4g,\"max\":%.4g}\n",
           name, value, unit, n, (double)v[0], value, (double)v[n - 1]);
}

int
main(int argc, char **argv)
{
    enum {
        LIB_CPU,
        CPU,
        CPU_RATIO,
        LAGAND_LIB,
        LAGAND_HTTP,
        LIB_P50,
        P50,
        LIB_P99,
        P99,
        ADDED_1,
        ADDED_1000,
        IDLE_MIB,
        MIB,
        RATE,
        N_CASES
    };
    static const char *const names[N_CASES][2] = {
        { "liblagan_cpu_1000_streams", "us/event" }, { "gateway_cpu_1000_streams", "us/event" },
        { "gateway_cpu / liblagan_cpu", "x" },       { "lagand_cpu_for_liblagan", "us/event" },
        { "lagand_cpu_for_gateway", "us/event" },    { "liblagan_p50_1000_streams", "us" },
        { "gateway_p50_1000_streams", "us" },        { "liblagan_p99_1000_streams", "us" },
        { "gateway_p99_1000_streams", "us" },        { "added_p50_1_stream", "us" },
        { "added_p50_1000_streams", "us" },          { "gateway_idle", "MiB" },
        { "gateway_1000_streams", "MiB" },           { "gateway_events_1000_streams", "events/s" },
    };
    static float v[N_CASES][MAX_ROUNDS];
    uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 3;
    uint32_t rate = argc > 2 ? (uint32_t)atoi(argv[2]) : 50;
    struct rlimit files;
    struct service b;
    double idle;

    if (argc > 3 || rounds < 1 || rounds > MAX_ROUNDS || rate < 1 || rate > 1000) {
        fprintf(stderr, "usage: bench_gateway [ROUNDS, at most %d [RATE, 1 to 1000]]\n",
                MAX_ROUNDS);
        return 2;
    }
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    start(&b, rate);
    idle = resident_mib(b.gateway);
    for (uint32_t i = 0; i < rounds; i++) {
        double mib;
        struct result lib1 = through_liblagan(&b, 1), http1 = through_http(&b, 1, &mib);
        struct result lib = through_liblagan(&b, STREAMS), http = through_http(&b, STREAMS, &mib);
        const double of[N_CASES] = {
            lib.cpu,
            http.cpu,
            http.cpu / lib.cpu,
            lib.lagand_cpu,
            http.lagand_cpu,
            lib.p50,
            http.p50,
            lib.p99,
            http.p99,
            http1.p50 - lib1.p50,
            http.p50 - lib.p50,
            idle,
            mib,
            http.n_events * 1e9 / (double)MEASURE,
        };

        for (int k = 0; k < N_CASES; k++) v[k][i] = (float)of[k];
    }
    stop(&b);
    for (int k = 0; k < N_CASES; k++) print(names[k][0], names[k][1], v[k], rounds);
    return 0;
}
