/* reexec.c - passes requests and arenas from one lagand process to the next; see serve.h. */
#include "daemon/serve.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/net/frontend.h"
#include "daemon/ops/preflight.h"
#include "daemon/persist/event_log.h"
#include "daemon/request/dispatch.h"
#include "daemon/supervise/oom.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/worker.h"
#include "ipc/channel.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

enum { MOST_WAIT_MS = 10000 }; /* limit of the wait for the end of one old worker process */
/* set_aside() duplicates descriptors to numbers from PARK on. reexec_exec() then duplicates them to
 * the numbers below PARK where the new lagand expects them, so it overwrites none of them. */
enum { PARK = SD_LISTEN_FDS_START + FDSTORE_MAX };

/* ---- state of the previous lagand */

/* Kills a process of the previous lagand. Returns true when it has ended: from then on it cannot
 * write into its arenas. Returns false if it has not ended after MOST_WAIT_MS. */
static bool
end_process(int pidfd, const char *name)
{
    struct pollfd p = { .fd = pidfd, .events = POLLIN };

    syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    if (poll(&p, 1, MOST_WAIT_MS) == 1) return true;
    log_err("%s: the worker process of the previous lagand did not exit within %d s after SIGKILL; "
            "not adopting its memory",
            name, MOST_WAIT_MS / 1000);
    return false;
}

/* Kills all worker processes of the previous lagand, whose pidfds are in s, and waits for their
 * ends. Sets lost[i] if a process of worker i does not exit. */
static void
outlast_workers(struct daemon *d, struct fdstore *s, bool lost[MAX_WORKERS])
{
    for (uint32_t i = 0; i < MAX_WORKERS * MAX_RANKS; i++) {
        char name[FDSTORE_NAME];
        int fd;

        process_pid_name(i % MAX_WORKERS, i / MAX_WORKERS, name, sizeof name);
        fd = fdstore_take(s, name);
        if (fd < 0) continue;
        lost[i % MAX_WORKERS] |= !end_process(fd, name);
        fdstore_drop(name);
        close(fd);
    }
    d->now = clock_now();
}

/* Returns the struct arenas whose number in the fd store (arenas.h) is `number`. NULL: the
 * configuration has no such worker or rank, or its old process did not exit. */
static struct arenas *
arenas_of(struct daemon *d, uint32_t number, const bool lost[MAX_WORKERS])
{
    uint32_t index = number % MAX_WORKERS, rank = number / MAX_WORKERS;
    struct worker *w = index < d->n_workers && !lost[index] ? d->worker[index] : NULL;

    w = w ? worker_rank(w, rank) : NULL;
    return w ? worker_arenas(w) : NULL;
}

static void
take_arenas(struct daemon *d, struct fdstore *s, const bool lost[MAX_WORKERS])
{
    for (uint32_t i = 0; i < s->n;) {
        struct store_fd f = s->at[i];
        struct fd_channel_note note;
        struct arenas *a;
        uint32_t w;
        struct err e;

        if (!fdstore_arena(f.name, &w, &note) || !(a = arenas_of(d, w, lost))) {
            i++;
        } else if (arenas_keep(a, &note, f.fd, &e) < 0) {
            log_warn("worker %s: cannot keep an arena of the previous lagand: %s",
                     worker_info(d->worker[w % MAX_WORKERS])->name, e.text);
            i++;
        } else {
            log_info("worker %s: kept arena %s of the previous lagand, %llu MiB",
                     worker_info(d->worker[w % MAX_WORKERS])->name, note.name,
                     (unsigned long long)(note.bytes >> 20));
            s->at[i] = s->at[--s->n];
        }
    }
}

static void
take_kv_limits(struct daemon *d, struct fdstore *s)
{
    for (uint32_t i = 0; i < d->n_workers; i++) {
        char name[FDSTORE_NAME];
        int fd;

        oom_limit_name(i, name, sizeof name);
        fd = fdstore_take(s, name);
        if (fd >= 0) oom_limit_restore(d->worker[i], fd);
    }
}

void
reexec_take(struct daemon *d, struct fdstore *left)
{
    bool lost[MAX_WORKERS] = { false };
    int ledger, fd;
    uint32_t n;

    outlast_workers(d, left, lost);
    FP(reexec_outlasted);
    ledger = fdstore_take(left, "ledger");
    n = ledger_log_open(d->ledger_log, ledger) ? dispatch_restore(d) : 0;
    ledger_log_start(d->ledger_log);
    if (n)
        log_info("restored %u requests of the previous lagand; %u are still open", n,
                 ledger_counts(d->ledger).open);
    fd = ledger_log_fd(d->ledger_log);
    if (fd >= 0 && fd != ledger) fdstore_put("ledger", fd);
    FP(reexec_ledger_read);
    take_arenas(d, left, lost);
    take_kv_limits(d, left);
    for (uint32_t i = 0; i < d->n_workers && !ledger_last_id(d->ledger); i++) {
        struct worker *w;

        for (uint32_t k = 0; (w = worker_rank(d->worker[i], k)); k++)
            arenas_drop_kv(worker_arenas(w));
    }
    fdstore_close(left);
    FP(reexec_adopted);
}

/* ---- re-exec */

struct handover_state { /* descriptors for the new program */
    uint32_t n;
    int fd[FDSTORE_MAX];
    char names[FDSTORE_MAX * FDSTORE_NAME]; /* their names, joined by ':' (LISTEN_FDNAMES) */
};

static void
set_aside(struct handover_state *h, const char *name, int fd)
{
    int copy = h->n < FDSTORE_MAX ? fcntl(fd, F_DUPFD_CLOEXEC, PARK) : -1;

    if (copy < 0) {
        log_warn("descriptor %s cannot be passed to the new lagand: %s", name,
                 h->n == FDSTORE_MAX || errno == EINVAL ? "too many open files" : strerror(errno));
        return;
    }
    h->fd[h->n] = copy;
    snprintf(h->names + strlen(h->names), sizeof h->names - strlen(h->names), "%s%s",
             h->n ? ":" : "", name);
    h->n++;
}

static void
set_aside_arenas(struct handover_state *h, const struct arenas *a)
{
    char name[FDSTORE_NAME];

    for (uint32_t k = 0; k < a->n; k++)
        if ((a->at[k].note.flags & FD_CHANNEL_COMPLETE) &&
            fdstore_arena_name(name, a->worker, &a->at[k].note) == 0)
            set_aside(h, name, a->at[k].fd);
}

struct handover_state *
reexec_prepare(struct daemon *d)
{
    struct handover_state *h = calloc(1, sizeof *h);

    if (!h) return NULL;
    FP(reexec_asked);
    for (uint32_t i = 0; i < d->n_workers; i++) worker_end(d->worker[i]);
    FP(reexec_workers_ended);
    if (ledger_log_fd(d->ledger_log) >= 0) set_aside(h, "ledger", ledger_log_fd(d->ledger_log));
    set_aside(h, "history", event_log_fd(d->event_log));
    if (d->frontend->given)
        set_aside(h, FRONTEND_SOCKET, unix_server_listener(d->frontend->local, LISTENER_API));
    for (uint32_t i = 0; i < d->n_workers; i++) {
        char name[FDSTORE_NAME];
        struct worker *w;
        int fd = oom_limit_save(d->worker[i], name, sizeof name);

        if (fd >= 0) {
            set_aside(h, name, fd);
            close(fd);
        }
        for (uint32_t k = 0; (w = worker_rank(d->worker[i], k)); k++)
            set_aside_arenas(h, worker_arenas(w));
    }
    return h;
}

int
reexec_exec(struct handover_state *h, char **argv, struct err *e)
{
    char path[PATH_MAX], number[16];

    TRY(preflight_program(path, e));
    for (uint32_t i = 0; i < h->n; i++) {
        if (dup2(h->fd[i], SD_LISTEN_FDS_START + (int)i) < 0)
            return err_set(e, -errno, "cannot pass a file descriptor to the new lagand: %s",
                           strerror(errno));
    }
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv("LISTEN_PID", number, 1);
    snprintf(number, sizeof number, "%u", h->n);
    setenv("LISTEN_FDS", number, 1);
    setenv("LISTEN_FDNAMES", h->names, 1);
    FP(reexec_exec);
    execv(path, argv);
    return err_set(e, -errno, "re-exec: cannot execute %s: %s", path, strerror(errno));
}
