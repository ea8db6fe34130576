/* bench_daemon_path.c - what lagand adds between a worker and a client: time and system calls.
 *
 *     bench_daemon_path [ROUNDS [PART]]
 *
 * PART is idle, load, client or calls; calls needs root, or perf_event_paranoid of at most 1. Runs
 * the real lagand and liblagan with daemon_path_worker, whose tokens are the time of their making.
 *
 *   idle     one stream, a step every 2 ms: from the clock of the worker before it publishes to the
 *            clock of the client when lagan_next() returns. In the same rounds and at the same
 *            pace: a ZeroMQ ipc hop and a doorbell (half a round trip each). The path
 *            contains at least one of both.
 *   load     500 streams over 8 connections: 500 tokens every 4.9 ms, and unpaced.
 *   client   1,000 streams over 1 connection, 1,000 tokens every 20 ms: CPU time of the client.
 *   calls    64 streams over 1 and over 8 connections, 64 tokens every 4.9 ms: system calls of
 *            lagand with its threads, and of the worker (perf's raw_syscalls:sys_enter, counted
 *            without tracing).
 *
 * Use `chrt -f 1` on a machine with other load; all processes sleep between steps.
 */
#include "base/clock.h"
#include "bench/transports.h"
#include "include/lagan.h"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 8, MAX_ROUNDS = 99, TRIPS = 300, PACE_IDLE = 2000, PACE_LOAD = 4900 };
enum { MAX_SAMPLES = 1 << 22, PACE_CLIENT = 20000 };

struct service { /* a lagand whose worker has a fixed pace */
    char dir[64], endpoint[96];
    pid_t lagand, worker;
    int calls[2]; /* counters of lagand and worker, of the worker; -1: none */
    struct lagan *c[MAX_CONNECTIONS];
    uint32_t n;
};

static float sample[MAX_SAMPLES]; /* us */
static uint32_t n_samples;

static int
by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double
at(float *v, uint32_t n, double share)
{
    qsort(v, n, sizeof *v, by_value);
    return (double)v[MIN((uint32_t)(share * n), n - 1)];
}

/* ---- system calls, counted by the kernel */

static int
counter(pid_t pid)
{
    struct perf_event_attr a = { .type = PERF_TYPE_TRACEPOINT, .size = sizeof a, .inherit = 1 };
    FILE *f = fopen("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id", "re");
    unsigned long long id = 0;

    if (!f || fscanf(f, "%llu", &id) != 1) id = 0;
    if (f) fclose(f);
    a.config = id;
    return id ? (int)syscall(SYS_perf_event_open, &a, pid, -1, -1, PERF_FLAG_FD_CLOEXEC) : -1;
}

static double
counted(int fd)
{
    uint64_t n = 0;

    return fd >= 0 && read(fd, &n, sizeof n) == sizeof n ? (double)n : 0;
}

/* ---- lagand, worker and clients */

static void
start(struct service *b, uint32_t pace_us, uint32_t n)
{
    char exe[1024], lagand[1100], worker[1100], model[128], *slash, *status = NULL, *pid;
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    int go[2];

    *b = (struct service){ .dir = "/tmp/lagan-path-XXXXXX", .n = n };
    exe[MAX(len, (ssize_t)0)] = 0;
    for (int up = 0; up < 2 && (slash = strrchr(exe, '/')); up++) *slash = 0;
    snprintf(lagand, sizeof lagand, "%s/lagand", exe);
    snprintf(worker, sizeof worker, "%s/bench/daemon_path_worker", exe);
    if (!mkdtemp(b->dir) || pipe2(go, O_CLOEXEC) < 0) way_die("bench_daemon_path");
    snprintf(model, sizeof model, "%s/%u", b->dir, pace_us);
    if (mkdir(model, 0700) < 0) way_die(model);
    snprintf(b->endpoint, sizeof b->endpoint, "ipc://%s/run/api.sock", b->dir);
    b->lagand = fork();
    if (b->lagand == 0) {
        char run[96];

        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (read(go[0], run, 1) != 1) _exit(1);
        snprintf(run, sizeof run, "%s/run", b->dir);
        execl(lagand, lagand, "--foreground", "--runtime-dir", run, "--model", model, "--worker",
              worker, "--log.level", "err", (char *)NULL);
        way_die(lagand);
    }
    b->calls[0] = counter(b->lagand);
    if (write(go[1], "", 1) != 1) way_die("bench_daemon_path");
    close(go[0]);
    close(go[1]);
    for (uint32_t i = 0; i < n; i++)
        if (lagan_open(&b->c[i], b->endpoint, 10000) < 0) way_die("lagan_open");
    do {
        free(status);
        if (lagan_call(b->c[0], "workers list", NULL, &status, NULL, 5000) < 0)
            way_die(lagan_errmsg(b->c[0]));
    } while (!strstr(status, "\"ready\"") && !usleep(5000));
    pid = strstr(status, "\"pid\":");
    b->worker = pid ? atoi(pid + strlen("\"pid\":")) : 0;
    b->calls[1] = b->worker > 0 ? counter(b->worker) : -1;
    free(status);
}

static void
stop(struct service *b)
{
    char command[128];

    for (uint32_t i = 0; i < b->n; i++) lagan_close(b->c[i]);
    kill(b->lagand, SIGTERM);
    waitpid(b->lagand, NULL, 0);
    for (int i = 0; i < 2; i++)
        if (b->calls[i] >= 0) close(b->calls[i]);
    snprintf(command, sizeof command, "rm -rf '%s'", b->dir);
    if (system(command)) fprintf(stderr, "%s could not be removed\n", b->dir);
}

struct flow {
    uint32_t n_tokens, n_over, n_begun; /* of all streams */
    nsec first, last;
};

static void
take_event(struct flow *f, const struct lagan_event *ev)
{
    nsec now = clock_now();

    if (ev->kind == LAGAN_EVENT_ERROR || ev->kind == LAGAN_EVENT_DISCONNECTED) {
        fprintf(stderr, "bench_daemon_path: %s\n",
                ev->message ? ev->message : "disconnected from lagand");
        exit(1);
    }
    if (ev->kind == LAGAN_EVENT_DONE) f->n_over++;
    if (ev->kind != LAGAN_EVENT_TOKENS) return;
    if (!f->first) f->first = now;
    f->last = now;
    f->n_begun += ev->first == 0;
    f->n_tokens += ev->n_ids;
    for (uint32_t i = 0; i < ev->n_ids && n_samples < MAX_SAMPLES; i++)
        sample[n_samples++] = (float)((now - ev->ids[i]) & INT32_MAX) / 1e3f;
}

/* Takes the events of all connections; waits for at least one. */
static void
take(struct service *b, struct flow *f)
{
    struct lagan_event ev = { sizeof ev };
    struct pollfd p[MAX_CONNECTIONS];

    for (uint32_t i = 0; i < b->n; i++)
        p[i] = (struct pollfd){ .fd = lagan_fd(b->c[i]), .events = POLLIN };
    if (poll(p, b->n, 10000) <= 0) way_die("no event for 10 s");
    for (uint32_t i = 0; i < b->n; i++)
        while (p[i].revents && lagan_next(b->c[i], &ev, 0) > 0) take_event(f, &ev);
}

static void
submit(struct service *b, uint32_t streams, uint32_t tokens)
{
    struct lagan_request *r = lagan_request_new();
    uint64_t id;

    lagan_set_ids(r, "ids", &(int32_t){ 1 }, 1);
    lagan_set_int(r, "max_tokens", tokens);
    for (uint32_t i = 0; i < streams; i++)
        if (lagan_submit(b->c[i % b->n], r, &id) < 0) way_die(lagan_errmsg(b->c[i % b->n]));
    lagan_request_free(r);
    n_samples = 0;
}

static struct flow
run(struct service *b, uint32_t streams, uint32_t tokens)
{
    struct flow f = { 0 };

    submit(b, streams, tokens);
    while (f.n_over < streams) take(b, &f);
    return f;
}

/* Half a round trip, at the pace of the path; us. */
static double
hop(const struct way *w)
{
    static float v[TRIPS];
    void *t = w->make(64);
    pid_t pid = fork();

    if (pid < 0) way_die("fork");
    w->join(t, pid == 0);
    for (uint64_t i = 0; i < TRIPS; i++) {
        nsec t0;

        if (pid) usleep(PACE_IDLE);
        t0 = clock_now();
        if (pid) w->send(t, i, 1);
        w->take(t, i);
        if (!pid) w->send(t, i, 1);
        v[i] = (float)(clock_now() - t0) / 2e3f;
    }
    if (!pid) {
        w->leave(t);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    w->leave(t);
    return at(v + TRIPS / 10, TRIPS - TRIPS / 10, 0.5);
}

/* ---- the cases */

static void
print(const char *name, const char *unit, float *v, uint32_t n)
{
    double value = at(v, n, 0.5);

    printf("{\"bench\":\"daemon_path\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"n\":%u,"
           "\"min\":%.4g,\"median\":%.4g,\"max\":%.4g",
           name, value, unit, n, (double)v[0], value, (double)v[n - 1]);
}

static void
gate(const char *name, const char *unit, float *v, uint32_t n, double limit, bool at_least)
{
    double value = at(v, n, 0.5);

    print(name, unit, v, n);
    printf(",\"%s\":%.4g,\"pass\":%s}\n", at_least ? "at_least" : "at_most", limit,
           (at_least ? value >= limit : value <= limit) ? "true" : "false");
}

static void
idle(uint32_t rounds)
{
    float p50[MAX_ROUNDS], p99[MAX_ROUNDS], zmq[MAX_ROUNDS], doorbell[MAX_ROUNDS], x[MAX_ROUNDS];
    struct service b;

    start(&b, PACE_IDLE, 1);
    for (uint32_t i = 0; i < rounds; i++) {
        run(&b, 1, TRIPS);
        p50[i] = (float)at(sample, n_samples, 0.5);
        p99[i] = (float)at(sample, n_samples, 0.99);
        zmq[i] = (float)hop(&way_zmq);
        doorbell[i] = (float)hop(&way_doorbell);
        x[i] = p50[i] / (zmq[i] + doorbell[i]);
    }
    stop(&b);
    print("idle_p50", "us", p50, rounds);
    printf("}\n");
    print("zmq_ipc_hop", "us", zmq, rounds);
    printf("}\n");
    print("doorbell", "us", doorbell, rounds);
    printf("}\n");
    gate("idle_p50 / (zmq_ipc_hop + doorbell)", "x", x, rounds, 1.5, false);
    gate("idle_p99", "us", p99, rounds, 500, false);
}

static void
load(uint32_t rounds, uint32_t pace, const char *name)
{
    enum { STREAMS = 500, TOKENS = 600 };
    float rate[MAX_ROUNDS], p50[MAX_ROUNDS], p99[MAX_ROUNDS];
    char what[64];
    struct service b;

    start(&b, pace, MAX_CONNECTIONS);
    for (uint32_t i = 0; i < rounds; i++) {
        struct flow f = run(&b, STREAMS, TOKENS);

        rate[i] = (float)((double)f.n_tokens * NSEC_S / (double)(f.last - f.first));
        p50[i] = (float)at(sample, n_samples, 0.5);
        p99[i] = (float)at(sample, n_samples, 0.99);
    }
    stop(&b);
    snprintf(what, sizeof what, "%s_500_streams", name);
    gate(what, "tokens/s", rate, rounds, 100000, true);
    snprintf(what, sizeof what, "%s_500_streams_p50", name);
    print(what, "us", p50, rounds);
    printf("}\n");
    snprintf(what, sizeof what, "%s_500_streams_p99", name);
    print(what, "us", p99, rounds);
    printf("}\n");
}

/* CPU time of this process, of all its threads. */
static double
cpu_seconds(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static void
client(uint32_t rounds)
{
    enum { STREAMS = 1000, TOKENS = 300 };
    float cpu[MAX_ROUNDS], rate[MAX_ROUNDS], p50[MAX_ROUNDS], p99[MAX_ROUNDS];
    struct service b;

    start(&b, PACE_CLIENT, 1);
    for (uint32_t i = 0; i < rounds; i++) {
        struct flow f = { 0 };
        uint32_t n;
        double was;

        submit(&b, STREAMS, TOKENS);
        while (f.n_begun < STREAMS) take(&b, &f);
        n = f.n_tokens;
        was = cpu_seconds();
        while (f.n_over == 0) take(&b, &f);
        cpu[i] = (float)((cpu_seconds() - was) * 1e6 / (f.n_tokens - n));
        while (f.n_over < STREAMS) take(&b, &f);
        rate[i] = (float)((double)f.n_tokens * NSEC_S / (double)(f.last - f.first));
        p50[i] = (float)at(sample, n_samples, 0.5);
        p99[i] = (float)at(sample, n_samples, 0.99);
    }
    stop(&b);
    gate("client_1000_streams", "us/token", cpu, rounds, 4, false);
    print("client_1000_streams_rate", "tokens/s", rate, rounds);
    printf("}\n");
    print("client_1000_streams_p50", "us", p50, rounds);
    printf("}\n");
    print("client_1000_streams_p99", "us", p99, rounds);
    printf("}\n");
}

static void
calls(uint32_t rounds, uint32_t connections)
{
    enum { STREAMS = 64, TOKENS = 300 };
    char name[64];
    float all[MAX_ROUNDS], lagand[MAX_ROUNDS], worker[MAX_ROUNDS];
    struct service b;

    start(&b, PACE_LOAD, connections);
    if (b.calls[0] < 0 || b.calls[1] < 0) {
        printf("system calls are not measured: perf_event_open: %s\n", strerror(errno));
        rounds = 0;
    }
    for (uint32_t i = 0; i < rounds; i++) {
        struct flow f = { 0 };
        double before[2], n;

        submit(&b, STREAMS, TOKENS);
        while (f.n_begun < STREAMS) take(&b, &f);
        for (int k = 0; k < 2; k++) before[k] = counted(b.calls[k]);
        n = f.n_tokens;
        while (f.n_over == 0) take(&b, &f);
        n = f.n_tokens - n;
        all[i] = (float)((counted(b.calls[0]) - before[0]) / n);
        worker[i] = (float)((counted(b.calls[1]) - before[1]) / n);
        lagand[i] = all[i] - worker[i];
        while (f.n_over < STREAMS) take(&b, &f);
    }
    stop(&b);
    if (!rounds) return;
    snprintf(name, sizeof name, "calls_lagand_%u_connections", connections);
    print(name, "calls/token", lagand, rounds);
    printf("}\n");
    snprintf(name, sizeof name, "calls_worker_%u_connections", connections);
    print(name, "calls/token", worker, rounds);
    printf("}\n");
    snprintf(name, sizeof name, "calls_%u_connections", connections);
    gate(name, "calls/token", all, rounds, 0.2, false);
}

int
main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 9;
    const char *part = argc > 2 ? argv[2] : NULL;
    bool all = !part;

    if (argc > 3 || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_daemon_path [ROUNDS, at most %d [idle|load|client|calls]]\n",
                MAX_ROUNDS);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (all || !strcmp(part, "idle")) idle(rounds);
    if (all || !strcmp(part, "load")) {
        load(rounds, PACE_LOAD, "paced");
        load(rounds, 0, "unpaced");
    }
    if (all || !strcmp(part, "client")) client(rounds);
    if (all || !strcmp(part, "calls")) {
        calls(rounds, 1);
        calls(rounds, MAX_CONNECTIONS);
    }
    return 0;
}
