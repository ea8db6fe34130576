/* service.c - see service.h. */
#include "tests/torture/service.h"

#include "base/clock.h"
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MAX_ARGS = 48,
    READY_MS = 30000,
    STOP_MS = 20000,
    ORPHAN_MS = 30000,
    STEADY_MS = 300,
    LOOK_MS = 100
};

const char *
failpoint_name(enum failpoint p)
{
    static const char *const names[] = {
#define X(name, row, instant) #name,
        FAILPOINTS(X)
#undef X
    };
    return names[p];
}

/* ---- directory and failpoint board */

void
service_open(struct service *s)
{
    char path[96];
    int fd;

    *s = (struct service){ .dir = "/tmp/lagan-torture-XXXXXX" };
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->run, sizeof s->run, "%s/run", s->dir);
    snprintf(s->log, sizeof s->log, "%s/log", s->dir);
    snprintf(s->endpoint, sizeof s->endpoint, "ipc://%s/api.sock", s->run);
    snprintf(path, sizeof path, "%s/board", s->dir);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && ftruncate(fd, sizeof *s->board) == 0);
    s->board = mmap(NULL, sizeof *s->board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(s->board != MAP_FAILED);
    close(fd);
    setenv("LAGAN_FP", path, 1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGPIPE, SIG_IGN);
}

void
service_open_mocks(struct service *s, uint32_t pace_us)
{
    service_open(s);
    atomic_store(&s->board->fp.ring_log2[0], (uint32_t)MOCK_RING_D);
    atomic_store(&s->board->fp.ring_log2[1], (uint32_t)MOCK_RING_W);
    atomic_store(&s->board->pace_us, pace_us);
}

void
service_print_log(const struct service *s, int lines)
{
    char command[160];

    snprintf(command, sizeof command, "tail -n %d '%s' >&2", lines, s->log);
    if (system(command)) fprintf(stderr, "%s cannot be shown\n", s->log);
}

static int
remove_one(const char *path, const struct stat *st, int flag, struct FTW *f)
{
    (void)st;
    (void)flag;
    (void)f;
    return remove(path);
}

void
service_close(struct service *s)
{
    if (!*s->dir) return;
    if (s->pid > 0) {
        service_print_log(s, 30);
        kill(s->pid, SIGKILL);
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR) {
        }
    }
    munmap(s->board, sizeof *s->board);
    nftw(s->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    *s = (struct service){ .pid = 0 };
}

uint32_t
service_epochs(struct service *s, const char *model)
{
    char line[4096], words[96];
    FILE *f = fopen(s->log, "re");

    if (!f) return s->n_epochs;
    snprintf(words, sizeof words, ", model %s\n", model);
    fseek(f, s->log_read, SEEK_SET);
    while (fgets(line, sizeof line, f)) {
        if (!strchr(line, '\n')) continue; /* incomplete or overlong line */
        s->n_epochs += strstr(line, ": started, pid ") && strstr(line, words);
        s->log_read = ftell(f);
    }
    fclose(f);
    return s->n_epochs;
}

pid_t
service_pid(const struct service *s, const char *worker)
{
    char line[4096], words[2][64];
    FILE *f = fopen(s->log, "re");
    int pid = 0;

    snprintf(words[0], sizeof words[0], "worker %s: started, pid ", worker);
    snprintf(words[1], sizeof words[1], "worker %s: the standby takes over, pid ", worker);
    while (f && fgets(line, sizeof line, f))
        for (int i = 0; i < 2; i++) {
            const char *at = strstr(line, words[i]);

            if (at) sscanf(at + strlen(words[i]), "%d", &pid);
        }
    if (f) fclose(f);
    return pid;
}

/* ---- lagand */

void
service_folder(const struct service *s, const char *name)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    mkdir(path, 0700);
}

static void
become_lagand(const struct service *s, const char *const *args, bool mock)
{
    const char *program = s->worker ? s->worker : mock ? "mock_worker" : "lagan-worker";
    char lagand[1024], worker[1024], ours[64], workers[32];
    const char *argv[MAX_ARGS] = {
        lagand,     "--foreground", "--remove-runtime-dir",        "--runtime-dir", s->run,
        "--worker", worker,         mock ? "--model" : "--config", s->model
    };
    static const char *const of_mocks[] = { "--device", "cpu", "--set" };
    int n = 9, log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char *plain[MAX_ARGS];

    test_program(lagand, sizeof lagand, "tests/torture/lagand");
    snprintf(ours, sizeof ours, "tests/torture/%s", program);
    if (*program == '/')
        snprintf(worker, sizeof worker, "%s", program);
    else
        test_program(worker, sizeof worker, ours);
    snprintf(workers, sizeof workers, "workers=%u", s->n_workers);
    for (size_t i = 0; mock && i < ARRAY_LEN(of_mocks); i++) argv[n++] = of_mocks[i];
    if (mock) argv[n++] = workers;
    while (args && *args && n < MAX_ARGS - 1) argv[n++] = *args++;
    argv[n] = NULL;
    memcpy(plain, argv, sizeof plain);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    dup2(log, 1);
    dup2(log, 2);
    execv(lagand, plain);
    _exit(126);
}

static void
write_config(const struct service *s, const char *config)
{
    const char *top = getenv("srcdir");
    char real[PATH_MAX];
    FILE *f = fopen(s->model, "we");

    assert_true(f && realpath(top ? top : ".", real));
    for (; *config; config++)
        if (*config == '@')
            fputs(real, f);
        else
            fputc(*config, f);
    fclose(f);
}

void
service_start(struct service *s, uint32_t n, const char *config, const char *const *args)
{
    s->n_workers = n;
    snprintf(s->model, sizeof s->model, "%s/%s", s->dir, config ? "lagan.yaml" : "mock");
    if (config)
        write_config(s, config);
    else
        mkdir(s->model, 0700);
    for (uint32_t i = 0; i < MOCK_WORKERS; i++) atomic_store(&s->board->pid[i], config ? -1 : 0);
    s->pid = s->systemd ? systemd_fork(s->systemd) : fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) become_lagand(s, args, !config);
    if (s->worker || service_all_ready(s, READY_MS)) return;
    service_print_log(s, 40);
    fail_msg("not all of %u workers are ready", n);
}

static int
wait_for(struct service *s, int ms)
{
    nsec until = service_now(s) + ms * NSEC_MS;
    int status;

    while (waitpid(s->pid, &status, WNOHANG) != s->pid) {
        if (service_now(s) >= until) return -1;
        poll(NULL, 0, 1);
    }
    s->pid = 0;
    return status;
}

void
service_stop(struct service *s)
{
    int status;

    kill(s->pid, SIGTERM);
    status = wait_for(s, STOP_MS);
    if (status) service_print_log(s, 40);
    assert_int_equal(status, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* lagand has reaped its children */
    assert_int_not_equal(access(s->run, F_OK), 0);
}

int
service_reap(struct service *s)
{
    int status = wait_for(s, ORPHAN_MS);
    nsec until = service_now(s) + ORPHAN_MS * NSEC_MS;
    pid_t left;

    if (status < 0) {
        service_print_log(s, 40);
        fail_msg("lagand lives");
    }
    /* Its workers are now our children and must exit by themselves. */
    while ((left = waitpid(-1, NULL, WNOHANG)) >= 0) {
        if (service_now(s) >= until) fail_msg("a worker has outlived lagand");
        if (left == 0) poll(NULL, 0, 1);
    }
    return status;
}

/* ---- resources */

/* Returns the state letter of a process and its parent; 0: no such process. */
static char
state_of(pid_t pid, pid_t *parent)
{
    char path[64], line[512], *end, state = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (!f) return 0;
    if (fgets(line, sizeof line, f) && (end = strrchr(line, ')'))) {
        int p = 0;

        if (sscanf(end + 1, " %c %d", &state, &p) < 2) state = 0;
        *parent = p;
    }
    fclose(f);
    return state;
}

static uint32_t
children(const struct service *s, pid_t *pid, uint32_t max)
{
    char path[80];
    uint32_t n = 0;
    int one;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)s->pid, (int)s->pid);
    f = fopen(path, "re");
    while (f && n < max && fscanf(f, "%d", &one) == 1) pid[n++] = one;
    if (f) fclose(f);
    return n;
}

/* Returns the number of running workers. */
static uint32_t
workers(const struct service *s, pid_t pid[MOCK_WORKERS])
{
    pid_t all[2 * MOCK_WORKERS], parent;
    uint32_t n = 0, n_all = children(s, all, ARRAY_LEN(all));

    for (uint32_t i = 0; i < n_all && n < MOCK_WORKERS; i++) {
        char c = state_of(all[i], &parent);

        if (c && c != 'Z' && parent == s->pid) pid[n++] = all[i];
    }
    return n;
}

/* -1 on the board: real workers, which do not write there. */
static bool
reported_ready(const struct service *s, const pid_t *pid, uint32_t n)
{
    for (uint32_t w = 0; w < s->n_workers; w++) {
        int32_t reported = atomic_load(&s->board->pid[w]);
        bool found = reported == -1;

        for (uint32_t i = 0; i < n; i++) found |= pid[i] == reported;
        if (!found) return false;
    }
    return true;
}

/* Time since the last call in which the process waited for CPU time. */
static nsec
starved_of(struct service *s, struct starvation *to, pid_t pid, nsec now)
{
    *to = (struct starvation){ .pid = pid };
    for (uint32_t i = 0; i < ARRAY_LEN(s->at); i++)
        if (s->at[i].pid == pid) to->starved = s->at[i].starved;
    return cpu_starvation_since(&to->starved, pid, now);
}

nsec
service_now(struct service *s)
{
    nsec now = clock_now(), waited = 0, elapsed = now - s->last_call;
    struct starvation at[ARRAY_LEN(s->at)] = { 0 };
    pid_t pid[ARRAY_LEN(s->at)];
    uint32_t n = 0;

    if (elapsed < LOOK_MS * NSEC_MS) return now - s->starved_ns;
    pid[n++] = getpid();
    if (s->pid) pid[n++] = s->pid;
    if (s->pid) n += children(s, pid + n, (uint32_t)ARRAY_LEN(pid) - n);
    for (uint32_t i = 0; i < n; i++) waited += starved_of(s, &at[i], pid[i], now);
    s->starved_ns += MIN(waited, elapsed * 9 / 10);
    s->last_call = now;
    memcpy(s->at, at, sizeof at);
    return now - s->starved_ns;
}

bool
service_all_ready(struct service *s, int ms)
{
    nsec until = service_now(s) + ms * NSEC_MS;

    for (;;) {
        pid_t pid[MOCK_WORKERS];
        uint32_t n = workers(s, pid);

        if (n == s->n_workers + s->n_standbys && reported_ready(s, pid, n)) return true;
        if (service_now(s) >= until) return false;
        poll(NULL, 0, 2);
    }
}

static uint32_t
entries(const char *dir, const char *word)
{
    DIR *d = opendir(dir);
    uint32_t n = 0;

    for (struct dirent *f; d && (f = readdir(d));)
        n += f->d_name[0] != '.' && strstr(f->d_name, word);
    if (d) closedir(d);
    return n;
}

static uint32_t
lines_with(const char *path, const char *word)
{
    char line[1024];
    uint32_t n = 0;
    FILE *f = fopen(path, "re");

    while (f && fgets(line, sizeof line, f)) n += strstr(line, word) != NULL;
    if (f) fclose(f);
    return n;
}

uint32_t
service_logged(const struct service *s, const char *words)
{
    return lines_with(s->log, words);
}

bool
service_quiet(const struct service *s, struct census *c)
{
    char path[128];
    pid_t pid[2 * MOCK_WORKERS], parent;
    uint32_t n;
    FILE *f;

    *c = (struct census){ .shm = entries("/dev/shm", "lagan") };
    snprintf(path, sizeof path, "/proc/%d/fd", (int)s->pid);
    c->fds = entries(path, "");
    snprintf(path, sizeof path, "/proc/%d/maps", (int)s->pid);
    c->maps = lines_with(path, "memfd:");
    snprintf(path, sizeof path, "%s/w", s->run);
    c->names = entries(s->run, "") + entries(path, "");
    n = children(s, pid, ARRAY_LEN(pid));
    for (uint32_t i = 0; i < n; i++) {
        char state = state_of(pid[i], &parent);

        c->workers += state && state != 'Z';
        c->zombies += state == 'Z';
    }
    snprintf(path, sizeof path, "/proc/%d/status", (int)s->pid);
    f = fopen(path, "re");
    for (char line[256]; f && fgets(line, sizeof line, f);)
        sscanf(line, "RssAnon: %u", &c->rss_kib);
    if (f) fclose(f);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    c->rss_kib = 1; /* the sanitizer keeps freed memory */
#endif
    return c->workers == s->n_workers + s->n_standbys && c->rss_kib;
}

static bool
alike(const struct census *a, const struct census *b)
{
    return a->fds == b->fds && a->maps == b->maps && a->names == b->names && a->shm == b->shm &&
           a->workers == b->workers && a->zombies == b->zombies;
}

void
service_recount(struct service *s, struct census *first, uint32_t rss_kib)
{
    nsec until = service_now(s) + READY_MS * NSEC_MS, since = clock_now();
    bool begins = !first->workers;
    struct census c, last = { 0 };

    for (;; last = c) {
        bool quiet = service_quiet(s, &c);

        if (service_now(s) >= until || (quiet && !begins && alike(&c, first))) break;
        if (!alike(&c, &last)) since = clock_now();
        if (quiet && begins && clock_now() - since >= STEADY_MS * NSEC_MS) break;
        poll(NULL, 0, STEADY_MS / 10);
    }
    if (begins) *first = c;
    assert_int_equal(c.fds, first->fds);
    assert_int_equal(c.maps, first->maps);
    assert_int_equal(c.names, first->names);
    assert_int_equal(c.shm, first->shm);
    assert_int_equal(c.workers, s->n_workers + s->n_standbys);
    assert_int_equal(c.zombies, 0);
    if (c.rss_kib > first->rss_kib + rss_kib)
        fail_msg("lagand has grown from %u to %u KiB", first->rss_kib, c.rss_kib);
}

/* ---- kills */

bool
service_kill_one(struct service *s, uint32_t least)
{
    pid_t pid[2 * MOCK_WORKERS], parent, one;
    uint32_t n = children(s, pid, ARRAY_LEN(pid));
    char state;

    if (n < MAX(least, 1u)) return false;
    one = pid[test_below(n)];
    state = state_of(one, &parent);
    if (!state || state == 'Z' || parent != s->pid) return false;
    for (uint32_t w = 0; w < s->n_workers; w++)
        if (atomic_load(&s->board->pid[w]) == one) atomic_store(&s->board->killed[w], clock_now());
    return kill(one, SIGKILL) == 0;
}

void
service_arm(struct service *s, enum fp_side side, enum failpoint p, enum fp_action a, uint32_t nth)
{
    struct fp_slot *f = &s->board->fp.slot[side][p];

    atomic_store(&f->action, (uint32_t)a);
    atomic_store(&f->left, nth);
}

bool
service_disarm(struct service *s, enum fp_side side, enum failpoint p)
{
    struct fp_slot *f = &s->board->fp.slot[side][p];

    return atomic_exchange(&f->left, 0) == 0;
}

void
service_print_fired(const struct service *s, enum fp_side side, const enum failpoint *p, uint32_t n)
{
    uint32_t least = UINT32_MAX, all = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t fired = atomic_load(&s->board->fp.slot[side][p[i]].fired);

        all += fired;
        least = MIN(least, fired);
        print_message("%s %u\n", failpoint_name(p[i]), fired);
    }
    print_message("%u points fired %u times, each at least %u\n", n, all, least);
}
