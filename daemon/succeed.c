/* succeed.c - see succeed.h. */
#include "daemon/succeed.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/recall.h"
#include "daemon/store.h"
#include "daemon/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

enum { MOST_WAIT_MS = 10000, PARK = 512 };

/* ---- what a predecessor left */

/* true: that process is gone, and no store of it lands any more. */
static bool
end_process(int pidfd, const char *name)
{
    struct pollfd p = { .fd = pidfd, .events = POLLIN };

    syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    if (poll(&p, 1, MOST_WAIT_MS) == 1) return true;
    log_err("%s: a worker of a former lagand does not end; its memory is not taken over", name);
    return false;
}

/* Workers of a former lagand die with it; here until they have. Their numbers go into `lost` otherwise. */
static void
outlast_workers(struct daemon *d, struct store *s, bool lost[MAX_WORKERS])
{
    for (uint32_t i = 0; i < MAX_WORKERS; i++) {
        char name[STORE_NAME];
        int fd;

        snprintf(name, sizeof name, "w%u.pid", i);
        fd = store_take(s, name);
        if (fd < 0) continue;
        lost[i] = !end_process(fd, name);
        store_drop(name);
        close(fd);
    }
    d->now = clock_now();
}

static void
take_arenas(struct daemon *d, struct store *s, const bool lost[MAX_WORKERS])
{
    for (uint32_t i = 0; i < s->n;) {
        struct store_fd f = s->at[i];
        struct hand_note note;
        uint32_t w;
        struct err e;

        if (!store_arena(f.name, &w, &note) || w >= d->n_workers || lost[w]) {
            i++;
        } else if (arenas_keep(&d->worker[w]->arenas, &note, f.fd, &e) < 0) {
            log_warn("worker %s: %s", d->worker[w]->name, e.text);
            i++;
        } else {
            log_info("worker %s: %s of a former lagand, %llu MiB", d->worker[w]->name, note.name,
                     (unsigned long long)(note.bytes >> 20));
            s->at[i] = s->at[--s->n];
        }
    }
}

void
succeed_take(struct daemon *d)
{
    static struct store s;
    bool lost[MAX_WORKERS] = { false };
    int ledger;
    uint32_t n;

    store_read(&s);
    outlast_workers(d, &s, lost);
    FP(heirs_outlasted);
    ledger = store_take(&s, "ledger");
    n = recall_open(d, ledger);
    if (n) log_info("%u requests of a former lagand, %u of them go on", n, ledger_n(d->ledger));
    if (d->mirror.base && d->mirror.fd != ledger) store_put("ledger", d->mirror.fd);
    FP(heirs_recalled);
    take_arenas(d, &s, lost);
    for (uint32_t i = 0; i < d->n_workers && !ledger_last_id(d->ledger); i++)
        arenas_drop_kv(&d->worker[i]->arenas);
    store_close(&s);
    FP(heirs_taken);
}

/* ---- becoming the next one */

struct heirlooms {
    uint32_t n;
    int fd[STORE_MAX];
    char names[STORE_MAX * STORE_NAME]; /* as in LISTEN_FDNAMES */
};

static void
set_aside(struct heirlooms *h, const char *name, int fd)
{
    int copy = h->n < STORE_MAX ? fcntl(fd, F_DUPFD_CLOEXEC, PARK) : -1;

    if (copy < 0) {
        log_warn("%s cannot be handed on: %s", name, strerror(errno));
        return;
    }
    h->fd[h->n] = copy;
    snprintf(h->names + strlen(h->names), sizeof h->names - strlen(h->names), "%s%s",
             h->n ? ":" : "", name);
    h->n++;
}

struct heirlooms *
succeed_prepare(struct daemon *d)
{
    struct heirlooms *h = calloc(1, sizeof *h);
    char name[STORE_NAME];

    if (!h) return NULL;
    FP(heirs_asked);
    for (uint32_t i = 0; i < d->n_workers; i++) worker_end(d->worker[i]);
    FP(heirs_ended);
    if (d->mirror.base) set_aside(h, "ledger", d->mirror.fd);
    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct arenas *a = &d->worker[i]->arenas;

        for (uint32_t k = 0; k < a->n; k++) {
            if ((a->at[k].note.flags & HAND_COMPLETE) &&
                store_arena_name(name, i, &a->at[k].note) == 0)
                set_aside(h, name, a->at[k].fd);
        }
    }
    return h;
}

/* Our own file, by its name: it may have been replaced by a newer one. */
static int
own_path(char path[PATH_MAX], struct err *e)
{
    static const char gone[] = " (deleted)";
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

    if (n < 0) return err_set(e, -errno, "/proc/self/exe: %s", strerror(errno));
    path[n] = 0;
    if ((size_t)n > strlen(gone) && !strcmp(path + n - strlen(gone), gone))
        path[(size_t)n - strlen(gone)] = 0;
    return 0;
}

int
succeed_exec(struct heirlooms *h, char **argv, struct err *e)
{
    char path[PATH_MAX], number[16];

    TRY(own_path(path, e));
    for (uint32_t i = 0; i < h->n; i++) {
        if (dup2(h->fd[i], SD_LISTEN_FDS_START + (int)i) < 0)
            return err_set(e, -errno, "a descriptor cannot be handed on: %s", strerror(errno));
    }
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv("LISTEN_PID", number, 1);
    snprintf(number, sizeof number, "%u", h->n);
    setenv("LISTEN_FDS", number, 1);
    setenv("LISTEN_FDNAMES", h->names, 1);
    FP(heirs_exec);
    execv(path, argv);
    return err_set(e, -errno, "%s: %s", path, strerror(errno));
}
