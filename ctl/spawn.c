/* spawn.c - laganctl --spawn: runs a command with a private lagand, and other programs of lagan.
 *
 * lagand creates its own runtime directory and removes it at its end. SIGTERM is its parent-death
 * signal, so it ends when laganctl ends for any reason; the signal is blocked from before exec
 * until the event loop of lagand handles it, so it is never lost. The log of lagand goes to a
 * memfd: it is printed if lagand could not start, and its warnings are printed if the command
 * failed. */
#include "ctl/ctl.h"

#include "base/log.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* interval between status calls; short, because start to first token must take less than 0.5 s */
#define ASK_EVERY (2 * NSEC_MS)
#define STOP_WITHIN \
    (10 * NSEC_S)                /* lagand is killed if it has not exited this time after SIGTERM */
#define SILENT_FOR (10 * NSEC_S) /* if lagand sends no reply this long during the start, it hangs */
enum { REPLY_MS = 50, MAX_ARGS = 256, SHOW_LINES = 20 };

struct spawn {
    char dir[80]; /* so short that dir/ctl.sock fits into a socket address, 107 bytes */
    pid_t pid;
    int pidfd, log;
    int status; /* from waitpid(), once lagand has ended */
    bool gone;
};

/* ---- the runtime directory */

/* Chooses a random unused name for the runtime directory, which lagand will create. */
static int
choose_dir(struct spawn *s)
{
    const char *places[] = { getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp" };
    uint64_t random;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return ctl_fail(CTL_FAILED,
                        "cannot choose a name for lagand's runtime directory: getrandom: %s",
                        strerror(errno));
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        if (!places[i] || strlen(places[i]) > 60 || access(places[i], W_OK | X_OK)) continue;
        snprintf(s->dir, sizeof s->dir, "%s/lagan-%013llx", places[i],
                 (unsigned long long)random >> 12);
        return 0;
    }
    return ctl_fail(
        CTL_FAILED,
        "--spawn: /tmp is not writable, so that lagand cannot create its runtime directory");
}

/* Removes the files of a directory, then the directory. */
static void
remove_flat(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *f;

    if (!d) return;
    while ((f = readdir(d)))
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..")) unlinkat(dirfd(d), f->d_name, 0);
    closedir(d);
    rmdir(path);
}

/* Removes what a killed lagand leaves: sockets, lock, and in w/ the sockets of its workers. */
static void
remove_dir(const struct spawn *s)
{
    char path[sizeof s->dir + 2];

    snprintf(path, sizeof path, "%s/w", s->dir);
    remove_flat(path);
    remove_flat(s->dir);
}

/* ---- the log */

/* Prints the last log lines of lagand with severity up to `most`, without time and level. */
static void
show_log(const struct spawn *s, int most)
{
    struct stat st;
    char *text, *from, *end;
    int skip = -SHOW_LINES, level;

    if (fstat(s->log, &st) < 0 || !st.st_size) return;
    text = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, s->log, 0);
    if (text == MAP_FAILED) return;
    end = text + st.st_size;
    for (int pass = 0; pass < 2; pass++) {
        for (from = text; from < end;) {
            char *eol = memchr(from, '\n', (size_t)(end - from));
            size_t prefix;

            if (!eol) eol = end;
            level = (int)log_line_level(from, (size_t)(eol - from), &prefix);
            if (level <= most) { /* also lines that the logger of lagan has not written */
                if (!pass)
                    skip++;
                else if (skip-- <= 0)
                    fprintf(stderr, "%.*s\n", (int)(eol - from - (ptrdiff_t)prefix), from + prefix);
            }
            from = eol + 1;
        }
    }
    munmap(text, (size_t)st.st_size);
}

/* ---- the process */

_Noreturn static void
become(const struct spawn *s, const char **argv, pid_t parent, int out)
{
    int null = open("/dev/null", O_RDWR);
    sigset_t mask;

    setpgid(0, 0); /* so that Ctrl-C reaches only laganctl, which first cancels its requests */
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(CTL_FAILED); /* the parent ended before prctl() */
    dup2(null, 0);
    dup2(out, 1);
    dup2(s->log, 2);
    execv(argv[0], (char **)(uintptr_t)argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(CTL_FAILED);
}

/* Starts a program of lagan; sets argv[0] to its path. Its standard error is s->log, or a new memfd
 * if that is -1. out: its standard output; -1: the same as its standard error. */
static int
fork_program(struct spawn *s, const char *name, const char **argv, int out)
{
    char program[1024];
    pid_t parent = getpid();

    if (sibling_path(program, sizeof program, name) < 0)
        return ctl_fail(CTL_FAILED,
                        "cannot start %s: the program is not in the directory of laganctl", name);
    argv[0] = program;
    if (s->log < 0) s->log = memfd_create("lagan-log", MFD_CLOEXEC);
    if (s->log < 0)
        return ctl_fail(CTL_FAILED, "cannot create a memfd for the log of lagand: %s",
                        strerror(errno));
    s->pid = fork();
    if (s->pid == 0) become(s, argv, parent, out < 0 ? s->log : out);
    if (s->pid < 0) return ctl_fail(CTL_FAILED, "fork: %s", strerror(errno));
    s->pidfd = (int)syscall(SYS_pidfd_open, s->pid, 0);
    return 0;
}

static int
start(struct spawn *s, const struct ctl *ctl)
{
    static char set[sizeof ctl->o.set];
    const char *argv[MAX_ARGS] = { NULL,   "--foreground", "--runtime-dir",
                                   s->dir, "--model",      ctl->o.spawn };
    int n = 6;
    char *line, *rest;

    if (*ctl->o.device) {
        argv[n++] = "--device";
        argv[n++] = ctl->o.device;
    }
    strcpy(set, ctl->o.set);
    for (line = strtok_r(set, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (n + 3 > MAX_ARGS)
            return ctl_fail(CTL_USAGE, "--set may be given at most %d times", (MAX_ARGS - 10) / 2);
        argv[n++] = "--set";
        argv[n++] = line;
    }
    return choose_dir(s) || fork_program(s, "lagand", argv, -1) ? CTL_FAILED : 0;
}

/* Waits up to `wait` for the process to end. Returns true if it has ended. */
static bool
ended(struct spawn *s, nsec wait)
{
    struct pollfd p = { s->pidfd, POLLIN, 0 };

    if (s->gone) return true;
    poll(&p, s->pidfd >= 0, (int)CEIL_DIV(wait, NSEC_MS));
    s->gone = waitpid(s->pid, &s->status, WNOHANG) == s->pid;
    return s->gone;
}

/* Stops the process; kills it if it has not exited after STOP_WITHIN. */
static void
end(struct spawn *s, const char *name)
{
    nsec until = clock_after(clock_now(), STOP_WITHIN);

    if (!s->gone) kill(s->pid, SIGTERM);
    while (!ended(s, 10 * NSEC_MS)) {
        if (clock_now() < until) continue;
        kill(s->pid, SIGKILL); /* its workers exit when their doorbell hangs up */
        waitpid(s->pid, &s->status, 0);
        s->gone = true;
        ctl_fail(0, "the %s of --spawn did not stop within 10 s and was killed", name);
        break;
    }
    if (s->pidfd >= 0) close(s->pidfd);
}

static void
stop(struct spawn *s)
{
    end(s, "lagand");
    remove_dir(s);
    close(s->log);
}

/* ---- waiting until it is ready */

static bool
socket_there(const struct spawn *s)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

    snprintf(at.sun_path, sizeof at.sun_path, "%s/api.sock", s->dir);
    r = connect(fd, (struct sockaddr *)&at, sizeof at);
    close(fd);
    return r == 0;
}

static int
could_not_start(const struct spawn *s, const char *why)
{
    int code = CTL_FAILED;

    show_log(s, 4);
    if (s->gone && WIFEXITED(s->status) && WEXITSTATUS(s->status) == CTL_CONFIG) code = CTL_CONFIG;
    if (s->gone && WIFSIGNALED(s->status))
        return ctl_fail(code, "lagand was killed by signal %d while it started",
                        WTERMSIG(s->status));
    if (s->gone && !why)
        return ctl_fail(code, "lagand could not start (exit code %d)", WEXITSTATUS(s->status));
    return ctl_fail(code, "%s", why);
}

/* Examines the reply to status. Returns 1: lagand is ready; 0: not yet; -1: failed, see why. */
static int
look(const json_t *status, const char *model, nsec since, char *why, size_t n)
{
    json_t *workers = json_object_get(status, "workers"), *w, *load;
    const char *state = json_string_value(json_object_get(status, "state"));
    size_t i, n_ready = 0;

    json_array_foreach(workers, i, w)
    {
        const char *is = json_string_value(json_object_get(w, "state"));
        const char *because = json_string_value(json_object_get(w, "why"));

        if (!is) continue;
        n_ready += !strcmp(is, "ready");
        if (!strcmp(is, "failed") || !strcmp(is, "lost")) {
            snprintf(why, n, "worker %s: %s", json_string_value(json_object_get(w, "name")),
                     because && *because ? because : "it could not start");
            return -1;
        }
        load = json_object_get(w, "load");
        if (load && strcmp(is, "ready"))
            progress(model, json_number_value(json_object_get(load, "done")),
                     json_number_value(json_object_get(load, "total")), since);
    }
    if (n_ready && n_ready == json_array_size(workers)) return 1;
    return state && !strcmp(state, "ready");
}

/* Polls status until lagand is ready, and checks between polls that the process still runs. */
static int
wait_ready(struct spawn *s, struct ctl *ctl)
{
    const char *slash = strrchr(ctl->o.spawn, '/');
    const char *model = slash && slash[1] ? slash + 1 : ctl->o.spawn;
    nsec since = clock_now(), replied = since, interval = ASK_EVERY;
    char why[512];
    int r = 0;

    while (!socket_there(s)) {
        if (ended(s, ASK_EVERY)) return could_not_start(s, NULL);
        if (ctl_signal) return 128 + ctl_signal;
    }
    snprintf(ctl->endpoint, sizeof ctl->endpoint, "ipc://%s/api.sock", s->dir);
    if (lagan_open(&ctl->api, ctl->endpoint, 0) < 0) return could_not_start(s, lagan_errmsg(NULL));
    while (r == 0) {
        json_t *status;
        char *text = NULL;
        int k = lagan_call(ctl->api, "status", NULL, &text, NULL, REPLY_MS);

        if (ctl_signal) return free(text), 128 + ctl_signal;
        if (k == -ETIMEDOUT && clock_now() - replied < SILENT_FOR && !ended(s, 0)) continue;
        if (k < 0) {
            if (ended(s, NSEC_S)) return could_not_start(s, NULL);
            return could_not_start(s, lagan_errmsg(ctl->api));
        }
        replied = clock_now();
        status = json_loads(text, 0, NULL);
        r = look(status, model, since, why, sizeof why);
        json_decref(status);
        free(text);
        if (r == 0 && ended(s, interval)) return could_not_start(s, NULL);
        /* The interval grows, because large models load for seconds and tiny models do not. */
        if (replied - since > NSEC_S) interval = 50 * NSEC_MS;
    }
    progress(model, 0, 0, since);
    return r < 0 ? could_not_start(s, ended(s, NSEC_S) ? NULL : why) : 0;
}

int
spawn_run(struct ctl *ctl, int (*run)(struct ctl *ctl))
{
    struct spawn s = { .pidfd = -1, .log = -1 };
    int r = start(&s, ctl);

    if (r) return r;
    r = wait_ready(&s, ctl);
    if (r == 0) {
        ctl->spawned = &s;
        r = run(ctl);
        ctl->spawned = NULL;
        if (r && r < 128) show_log(&s, 4);
    }
    lagan_close(ctl->api);
    ctl->api = NULL;
    stop(&s);
    return r;
}

int
spawn_beside(const struct ctl *ctl, const char *name, const char **argv)
{
    struct spawn s = { .pidfd = -1, .log = STDERR_FILENO };
    int r = fork_program(&s, name, argv, STDOUT_FILENO);

    if (r) return r;
    while (!ctl_signal && !ended(&s, 200 * NSEC_MS) && !ended(ctl->spawned, 0)) continue;
    if (ctl_signal)
        r = 128 + ctl_signal;
    else if (ctl->spawned->gone)
        r = ctl_fail(CTL_FAILED, "the lagand of --spawn has ended");
    else
        r = WIFEXITED(s.status) ? WEXITSTATUS(s.status) : CTL_FAILED;
    end(&s, name);
    return r;
}

/* ---- running a program to its end */

/* Returns the content of a file, which the caller frees. */
static char *
contents(int fd)
{
    struct stat st;
    char *text = fstat(fd, &st) < 0 ? NULL : calloc(1, (size_t)st.st_size + 1);

    if (text && pread(fd, text, (size_t)st.st_size, 0) != st.st_size) *text = 0;
    return text;
}

/* Replaces the argument with the same key, or appends: the last value of a key is used. */
static int
put_arg(const char **argv, int first, int n, const char *arg)
{
    size_t key = strcspn(arg, "=");
    int i = first;

    while (i < n && (strcspn(argv[i], "=") != key || memcmp(argv[i], arg, key))) i++;
    argv[i] = arg;
    return MAX(n, i + 1);
}

/* Makes the arguments --key=value of lagan-worker from --device and --set. */
static int
worker_args(const char **argv, int n, const struct ctl *ctl, char *buf, size_t cap, const char *dir)
{
    char set[sizeof ctl->o.set], *line, *rest;
    int first = n;
    size_t at = 0;

    argv[n++] = buf;
    at += (size_t)snprintf(buf, cap, "--path=%s", dir) + 1;
    if (*ctl->o.device) {
        argv[n++] = buf + at;
        at += (size_t)snprintf(buf + at, cap - at, "--device=%s", ctl->o.device) + 1;
    }
    strcpy(set, ctl->o.set);
    for (line = strtok_r(set, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (n + 2 > MAX_ARGS)
            return ctl_fail(CTL_USAGE, "--set may be given at most %d times", MAX_ARGS - 10);
        snprintf(buf + at, cap - at, "--%s", line);
        n = put_arg(argv, first, n, buf + at);
        at += strlen(line) + 3;
    }
    argv[n] = NULL;
    return 0;
}

/* Runs a program of lagan until it exits and prints its log lines with severity up to `most`.
 * Returns its exit code, and in *ret its output. */
static int
ask_program(const char *name, const char **argv, int most, char **ret)
{
    struct spawn s = { .pidfd = -1, .log = -1 };
    int out = memfd_create("lagan-out", MFD_CLOEXEC), r;

    if (out < 0) return ctl_fail(CTL_FAILED, "memfd_create: %s", strerror(errno));
    r = fork_program(&s, name, argv, out);
    if (r) return r;
    while (waitpid(s.pid, &s.status, 0) < 0 && errno == EINTR)
        if (ctl_signal) kill(s.pid, SIGKILL);
    show_log(&s, most);
    *ret = contents(out);
    close(s.log);
    close(s.pidfd);
    close(out);
    if (ctl_signal) return 128 + ctl_signal;
    if (WIFSIGNALED(s.status))
        return ctl_fail(CTL_FAILED, "%s was killed by signal %d", name, WTERMSIG(s.status));
    return WEXITSTATUS(s.status) == 74 ? CTL_UNAVAILABLE : WEXITSTATUS(s.status);
}

int
spawn_look(const struct ctl *ctl, const char *dir, char **ret)
{
    static char buf[2 * sizeof ctl->o.set + 4096];
    const char *argv[MAX_ARGS] = { NULL, "--inspect" };
    int code;

    if (strlen(dir) > 2000)
        return ctl_fail(CTL_USAGE,
                        "%.64s...: the path of the model directory has more than 2000 bytes", dir);
    code = worker_args(argv, 2, ctl, buf, sizeof buf, dir);
    /* The report has what lagan-worker logs as a warning. */
    return code ? code : ask_program("lagan-worker", argv, LOG_LEVEL_ERR, ret);
}

int
spawn_check(const char *file)
{
    const char *argv[] = { NULL, "--check", file ? "--config" : NULL, file, NULL };
    char *output = NULL;
    int code = ask_program("lagand", argv, 6, &output);

    free(output);
    return code;
}
