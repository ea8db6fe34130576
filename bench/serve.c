/* serve.c - see serve.h. lagand is in the parent directory of this program: build tree or bundle.
 * */
#include "bench/serve.h"

#include "base/clock.h"
#include "base/failpoint.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGS = 16 + 2 * BENCH_SETS, READY_SECONDS = 120 };

static struct bench_serve *running; /* for bench_die() */

void
bench_die(const char *format, ...)
{
    va_list a;

    va_start(a, format);
    fprintf(stderr, "bench: ");
    vfprintf(stderr, format, a);
    fprintf(stderr, "\n");
    va_end(a);
    if (running && running->pid > 0) {
        char command[400];

        kill(running->pid, SIGTERM);
        waitpid(running->pid, NULL, 0);
        snprintf(command, sizeof command, "tail -n 12 '%s.log' >&2; rm -rf '%s' '%s.log' '%s.fp'",
                 running->dir, running->dir, running->dir, running->dir);
        if (system(command)) fprintf(stderr, "%s could not be removed\n", running->dir);
    }
    exit(1);
}

/* Takes the first "vocab_size" of the text, because a published config.json may have Infinity,
 * which jansson does not read. */
static void
read_vocab(struct bench_serve *s)
{
    char path[1100], text[64 << 10];
    const char *at;
    size_t n;
    FILE *f;

    snprintf(path, sizeof path, "%s/config.json", s->model);
    f = fopen(path, "re");
    if (!f) bench_die("%s: %s", path, strerror(errno));
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    at = strstr(text, "\"vocab_size\"");
    if (!at || sscanf(at, "\"vocab_size\" : %u", &s->vocab) != 1)
        bench_die("%s: vocab_size is missing", path);
}

/* The file of failpoints that lagand and the workers map. */
static void
make_board(struct bench_serve *s)
{
    char path[80];
    int fd;

    snprintf(path, sizeof path, "%s.fp", s->dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *s->board) < 0) bench_die("%s: %s", path, strerror(errno));
    s->board = mmap(NULL, sizeof *s->board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s->board == MAP_FAILED) bench_die("%s: %s", path, strerror(errno));
    close(fd);
    setenv("LAGAN_FP", path, 1);
}

static void
launch(struct bench_serve *s)
{
    char exe[1200], self[900], dir[1024], *slash, *argv[MAX_ARGS];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    int n = 0;

    if (len <= 0 || !realpath(s->model, dir)) bench_die("%s: %s", s->model, strerror(errno));
    self[len] = 0;
    for (int up = 0; up < 2 && (slash = strrchr(self, '/')); up++) *slash = 0;
    snprintf(exe, sizeof exe, "%s/lagand", s->programs ? s->programs : self);
    argv[n++] = exe;
    argv[n++] = (char *)(uintptr_t) "--foreground";
    argv[n++] = (char *)(uintptr_t) "--runtime-dir";
    argv[n++] = s->dir;
    argv[n++] = (char *)(uintptr_t) "--model";
    argv[n++] = dir;
    argv[n++] = (char *)(uintptr_t) "--device";
    argv[n++] = (char *)(uintptr_t)(s->device ? s->device : "cpu");
    for (uint32_t i = 0; i < s->n_set; i++) {
        argv[n++] = (char *)(uintptr_t) "--set";
        argv[n++] = (char *)(uintptr_t)s->set[i];
    }
    argv[n] = NULL;
    s->pid = fork();
    if (s->pid == 0) {
        char log[80];
        int fd;

        snprintf(log, sizeof log, "%s.log", s->dir);
        fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(exe, argv);
        _exit(127);
    }
}

/* The only worker in `laganctl workers list`; NULL: none yet. */
static json_t *
ask(struct bench_serve *s, int timeout_ms)
{
    char *reply = NULL;
    json_t *list, *w;

    if (lagan_call(s->client, "workers list", NULL, &reply, NULL, timeout_ms) < 0) return NULL;
    list = json_loads(reply, 0, NULL);
    free(reply);
    w = json_incref(json_array_get(list, 0));
    json_decref(list);
    return w;
}

/* Is a worker ready that is not s->worker? */
static bool
ready(struct bench_serve *s)
{
    json_t *w = ask(s, 1000);
    const char *state = w ? json_string_value(json_object_get(w, "state")) : NULL;
    pid_t pid = w ? (pid_t)json_integer_value(json_object_get(w, "pid")) : 0;
    bool up = state && !strcasecmp(state, "ready") && pid != s->worker;

    if (up) s->worker = pid;
    json_decref(w);
    return up;
}

bool
bench_crash(struct bench_serve *s)
{
    struct fp_slot *p = s->board ? &s->board->slot[FP_WORKER][FP_step_queued] : NULL;

    if (!p) bench_die("crash: needs a worker with failpoints; give --programs DIR");
    atomic_store(&p->action, FP_INJECT);
    atomic_store(&p->left, 1);
    return true;
}

pid_t
bench_rank(struct bench_serve *s)
{
    json_t *w = ask(s, 1000), *rank = json_array_get(json_object_get(w, "ranks"), 0);
    pid_t pid = (pid_t)json_integer_value(json_object_get(rank, "pid"));

    json_decref(w);
    return pid;
}

nsec
bench_wait_replacement(struct bench_serve *s)
{
    nsec since = clock_now();

    while (!ready(s)) {
        if (clock_now() - since > READY_SECONDS * NSEC_S)
            bench_die("no replacement is ready after %d s", READY_SECONDS);
        usleep(1000);
    }
    return clock_now();
}

void
bench_start(struct bench_serve *s)
{
    nsec since = clock_now();
    char endpoint[96];
    bool up = false;

    running = s;
    s->name = strrchr(s->model, '/') ? strrchr(s->model, '/') + 1 : s->model;
    read_vocab(s);
    strcpy(s->dir, "/tmp/lagan-bench-XXXXXX");
    if (!mkdtemp(s->dir)) bench_die("%s: %s", s->dir, strerror(errno));
    if (s->programs) make_board(s);
    launch(s);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/api.sock", s->dir);
    while (!up) {
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid ||
            clock_now() - since > READY_SECONDS * NSEC_S)
            bench_die("lagand is not ready");
        if (!s->client && lagan_open(&s->client, endpoint, 500) < 0) {
            s->client = NULL;
            usleep(5000);
            continue;
        }
        up = ready(s);
        if (!up) usleep(5000);
    }
    s->ready = clock_now() - since;
    fprintf(stderr, "%s: ready in %.2f s\n", s->name, (double)s->ready / NSEC_S);
}

void
bench_stop(struct bench_serve *s)
{
    char command[400];
    int status = 0;

    lagan_close(s->client);
    kill(s->pid, SIGTERM);
    waitpid(s->pid, &status, 0);
    snprintf(
        command, sizeof command,
        "grep -a -e '^<[0-4]>' -e 'ready in' -e 'joined the rank' -e 'partition' -e 'host tier' "
        "'%s.log' >&2; rm -rf '%s' "
        "'%s.log' '%s.fp'",
        s->dir, s->dir, s->dir, s->dir);
    if (system(command)) fprintf(stderr, "%s could not be removed\n", s->dir);
    running = NULL;
    if (!WIFEXITED(status) || WEXITSTATUS(status)) bench_die("lagand ended with %d", status);
}

static uint64_t
number(const json_t *o, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(o, key));
}

/* utime and stime: fields 14 and 15, after the name in parentheses. */
static nsec
processor_time(pid_t pid)
{
    unsigned long user = 0, kernel = 0;
    char path[64], line[1024], *p;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (!f) return 0;
    p = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    if (!p ||
        sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
        return 0;
    return (nsec)(user + kernel) * (NSEC_S / sysconf(_SC_CLK_TCK));
}

void
bench_worker(struct bench_serve *s, struct bench_worker *ret)
{
    json_t *w = ask(s, 5000), *stats;

    if (!w) bench_die("workers list: %s", lagan_errmsg(s->client));
    stats = json_object_get(w, "stats");
    *ret = (struct bench_worker){
        .at = clock_now(),
        .cpu = processor_time(s->worker),
        .steps = number(stats, "steps"),
        .tokens = number(stats, "generation_tokens"),
        .prompt_tokens = number(stats, "prompt_tokens"),
        .gaps = number(stats, "device_gaps"),
        .idle = number(stats, "device_idle_ns"),
        .graphs = number(stats, "graphs"),
        .kind = { { number(stats, "prefill_steps"), number(stats, "prefill_ns") },
                  { number(stats, "decode_steps"), number(stats, "decode_ns") },
                  { number(stats, "mixed_steps"), number(stats, "mixed_ns") } },
    };
    json_decref(w);
}

void
bench_send_command(const struct bench_serve *s, const char *verb, const char *args)
{
    char endpoint[96], *reply = NULL;
    struct lagan *c;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/ctl.sock", s->dir);
    if (lagan_open(&c, endpoint, 5000) < 0) bench_die("%s cannot be reached", endpoint);
    if (lagan_call(c, verb, args, &reply, NULL, 20000) < 0)
        bench_die("%s %s: %s", verb, args, lagan_errmsg(c));
    free(reply);
    lagan_close(c);
}
