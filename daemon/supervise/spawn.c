/* spawn.c - see spawn.h.
 *
 * The child of vfork() shares lagand's memory until it execs. It may only make system calls and
 * change its own descriptors, signals and limits; prepare() does everything else before vfork(). */
#include "daemon/supervise/spawn.h"

#include "base/cgroup.h"
#include "base/failpoint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"

enum { MAX_ARGS = 64, MAX_ENV = 64, ARG_BYTES = 16 << 10 };
enum { PARK = 64 }; /* place_fds() copies inherited descriptors to numbers from here on first */

extern char **environ;

struct child { /* arguments and environment of the new process */
    char *argv[MAX_ARGS + 1], *envp[MAX_ENV + 1];
    char text[ARG_BYTES]; /* their strings; [0, used) */
    size_t used;
    int n_args, n_env;
    bool too_long;
};

/* Adds a formatted string to list (c->argv or c->envp), or sets c->too_long if it does not fit. */
static void PRINTF_LIKE(5, 6)
    add(struct child *c, char **list, int *n, int max, const char *fmt, ...)
{
    size_t space = sizeof c->text - c->used;
    va_list ap;
    int len;

    va_start(ap, fmt);
    len = vsnprintf(c->text + c->used, space, fmt, ap);
    va_end(ap);
    c->too_long |= *n == max || len < 0 || (size_t)len >= space;
    if (c->too_long) return;
    list[(*n)++] = c->text + c->used;
    c->used += (size_t)len + 1;
}
#define ADD_ARG(c, ...) add(c, (c)->argv, &(c)->n_args, MAX_ARGS, __VA_ARGS__)
#define ADD_ENV(c, ...) add(c, (c)->envp, &(c)->n_env, MAX_ENV, __VA_ARGS__)

/* Returns true if a worker gets lagand's environment variable v ("NAME=value"). */
static bool
passes(const char *v)
{
    static const char *const begins[] = {
        "PATH=",        "HOME=",         "LANG=",        "LC_",          "TZ=",
        "TMPDIR=",      "LD_LIBRARY_",   "CUDA_",        "NVIDIA_",      "NCCL_",
        "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS", "CACHE_DIRECTORY=",
        FP_ENVIRONMENT
    };

    for (size_t i = 0; i < ARRAY_LEN(begins); i++)
        if (strncmp(v, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

static int
prepare(struct child *c, const struct spawn *s, struct err *e)
{
    struct model_options plain;
    char names[512];

    ADD_ARG(c, "%s", s->path);
    ADD_ARG(c, "--worker=%s", s->name);
    ADD_ARG(c, "--log_level=%s", s->log_level);
    if (s->is_standby) ADD_ARG(c, "--as_standby");
    if (strcmp(s->cgroup_root, CGROUP_ROOT)) ADD_ARG(c, "--cgroup_root=%s", s->cgroup_root);
    if (s->max_kv) ADD_ARG(c, "--kv_max=%llu", (unsigned long long)s->max_kv);
    if (s->inspect) ADD_ARG(c, "--inspect");
    if (s->held) ADD_ARG(c, "--held=%llu", (unsigned long long)s->held);
    if (s->rank) ADD_ARG(c, "--rank=%u", s->rank);
    opt_defaults(model_opts, &plain);
    for (const struct opt *o = model_opts; o->key; o++) {
        char now[1100], def[1100];

        opt_text(o, s->keys, now, sizeof now);
        if (strcmp(now, opt_text(o, &plain, def, sizeof def))) ADD_ARG(c, "--%s=%s", o->key, now);
    }
    for (char **v = environ; *v; v++)
        if (passes(*v)) ADD_ENV(c, "%s", *v);
    if (!s->inspect) {
        c->too_long |= heritage_env(&s->heritage, names, sizeof names) < 0;
        ADD_ENV(c, "%s", names);
    }
    ADD_ENV(c, "LAGAN_EPOCH=%llu", (unsigned long long)s->heritage.epoch);
    ADD_ENV(c, "LAGAN_CACHE_KEY=%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64,
            s->heritage.cache_key[0], s->heritage.cache_key[1], s->heritage.cache_key[2],
            s->heritage.cache_key[3]);
    if (s->control) ADD_ENV(c, "LAGAN_CONTROL=%s", s->control);
    if (s->control) ADD_ENV(c, "LAGAN_TOKEN=%s", s->token);
    if (!c->too_long) return 0;
    return err_set(e, -E2BIG,
                   "the worker's command line and environment exceed %d options, %d variables or "
                   "%d bytes in all; set fewer options or unset environment variables",
                   MAX_ARGS, MAX_ENV, ARG_BYTES);
}

/* In the child: moves the inherited descriptors to 3, 4, ... and the output to 1 and 2. First moves
 * all to numbers from PARK on, because old and new numbers may overlap. Returns 0 or an errno. */
static int
place_fds(const struct heritage *h, int null, int out)
{
    int parked[HERITAGE_MAX];

    for (uint32_t i = 0; i < h->n; i++) {
        parked[i] = fcntl(h->at[i].fd, F_DUPFD_CLOEXEC, PARK);
        if (parked[i] < 0)
            return errno == EINVAL ? EMFILE : errno; /* the limit of open files is below PARK */
    }
    if (dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(out, STDERR_FILENO) < 0)
        return errno;
    for (uint32_t i = 0; i < h->n; i++)
        if (dup2(parked[i], HERITAGE_FIRST + (int)i) < 0) return errno;
    /* lagand's own descriptors are close-on-exec, but those that libraries opened may not be. */
    syscall(SYS_close_range, HERITAGE_FIRST + h->n, ~0U, 0);
    return 0;
}

static void
become_worker(const struct spawn *s, struct child *c, pid_t parent, int null, int out,
              volatile int *failed)
{
    sigset_t none;

    sigemptyset(&none);
    FP(spawn_child);
    setpgid(0, 0); /* own process group: ^C in a terminal reaches lagand only */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* lagand ended before PR_SET_PDEATHSIG */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGUSR2, SIG_IGN); /* lagand may send it before the worker has installed a handler */
    sigprocmask(SIG_SETMASK, &none, NULL);
    *failed = place_fds(&s->heritage, null, out);
    FP(spawn_exec);
    if (!*failed) {
        execve(s->path, c->argv, c->envp);
        *failed = errno;
    }
    _exit(127);
}

int
spawn_worker(const struct spawn *s, pid_t *pid, int *log, struct err *e)
{
    static struct child c; /* 18 KiB; static is safe: lagand has one thread */
    volatile int failed = 0;
    pid_t parent = getpid(), child;
    int null, pipe[2], r;

    c.used = 0;
    c.n_args = c.n_env = 0;
    c.too_long = false;
    TRY(prepare(&c, s, e));
    c.argv[c.n_args] = c.envp[c.n_env] = NULL;
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) return err_set(e, -errno, "cannot open /dev/null: %s", strerror(errno));
    if (pipe2(pipe, O_CLOEXEC) < 0) {
        r = err_set(e, -errno, "cannot create the log pipe: %s", strerror(errno));
        close(null);
        return r;
    }
    child = vfork();
    if (child == 0) become_worker(s, &c, parent, null, pipe[1], &failed);
    r = child < 0 ? -errno : 0;
    close(null);
    close(pipe[1]);
    /* The worker's end stays blocking, so that no log line is lost; lagand's end does not block. */
    if (r == 0 && fcntl(pipe[0], F_SETFL, O_NONBLOCK) < 0) r = -errno;
    if (r < 0) {
        close(pipe[0]);
        return err_set(e, r, "cannot create a process: %s", strerror(-r));
    }
    if (failed) {
        /* The child has failed before or in execve(). No event source watches it yet: reap it. */
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
        close(pipe[0]);
        return err_set(e, -failed, "cannot execute %s: %s", s->path, strerror(failed));
    }
    *pid = child;
    *log = pipe[0];
    return 0;
}

int
spawn_inspect(struct spawn *s, struct inspection *ret, struct err *e)
{
    static struct child c;
    static char line[sizeof ret->report];
    char *words;
    int pipe[2], status = 0;
    pid_t child;
    FILE *in;

    s->name = "check";
    s->log_level = "err";
    s->inspect = true;
    ret->error[0] = ret->report[0] = 0;
    c = (struct child){ .used = 0 };
    TRY(prepare(&c, s, e));
    if (pipe2(pipe, O_CLOEXEC) < 0 || !(in = fdopen(pipe[0], "r")))
        return err_set(e, -errno, "cannot create a pipe: %s", strerror(errno));
    child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        dup2(null, STDIN_FILENO);
        dup2(pipe[1], STDOUT_FILENO);
        dup2(pipe[1], STDERR_FILENO);
        execve(s->path, c.argv, c.envp);
        dprintf(STDERR_FILENO, "lagan-worker: cannot execute %s: %s\n", s->path, strerror(errno));
        _exit(127);
    }
    close(pipe[1]);
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        words = strstr(line, "lagan-worker: ");
        if (*line == '{')
            memcpy(ret->report, line, sizeof ret->report);
        else if (!*ret->error)
            snprintf(ret->error, sizeof ret->error, "%.399s",
                     words ? words + strlen("lagan-worker: ") : line);
    }
    fclose(in);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (child < 0) return err_set(e, -EAGAIN, "cannot create a process for %s", s->path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

void
spawn_pass(struct heritage *h, const char *name, uint32_t rank, int fd)
{
    check(h->n < HERITAGE_MAX);
    snprintf(h->at[h->n].name, sizeof h->at[h->n].name, "%s%.0u", name, rank);
    h->at[h->n++].fd = fd;
}

int
spawn_find(char *buf, size_t n, struct err *e)
{
    static const char *const places[] = { "/lagan-worker", "/../libexec/lagan/lagan-worker" };
    char own[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);

    own[MAX(len, (ssize_t)0)] = 0;
    if (len > 0) *strrchr(own, '/') = 0;
    for (size_t i = 0; i <= ARRAY_LEN(places); i++) {
        int k = i < ARRAY_LEN(places) ? snprintf(buf, n, "%s%s", own, places[i])
                                      : snprintf(buf, n, PKGLIBEXECDIR "/lagan-worker");

        if (k <= 0 || (size_t)k >= n || access(buf, F_OK) < 0) continue;
        if (access(buf, X_OK) == 0) return 0;
        return err_set(e, -EACCES, "%s may not be executed: %s; run chmod 755 on it", buf,
                       strerror(errno));
    }
    return err_set(e, -ENOENT,
                   "the program lagan-worker is neither in %.100s nor in " PKGLIBEXECDIR, own);
}
