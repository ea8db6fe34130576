/* rank_group.c - see rank_group.h. */
#include "daemon/supervise/rank_group.h"

#include "base/clock.h"
#include "daemon/config/options.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/oom.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/spawn.h"
#include "daemon/supervise/standby.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const nsec LEAVE_TIME = NSEC_S; /* for rank 0 to exit after a rank exited with status 0 */
static const char SHARED[] = "group";  /* name of the memfd that all ranks share and resize */
/* Number of descriptors that rank 0 inherits as every worker does (d, w, doorbell, fd_channel). The
 * descriptors of the group follow them in the heritage of rank 0. */
enum { LEAD_FDS = 4 };

static const struct super_ops none; /* other ranks get no events: only rank 0 has a state */

int
rank_group_new(struct worker *w, struct err *e)
{
    uint32_t ranks = MIN(w->d->config->model[w->info.model].keys.tensor_parallel,
                         (uint32_t)MAX_RANKS);

    for (uint32_t r = 1; r < ranks; r++) {
        char name[sizeof w->info.name];
        struct worker *o;

        snprintf(name, sizeof name, "%.12s.%u", w->info.name, r % MAX_RANKS);
        o = worker_new(w->d, w->info.index, w->info.model, name, &none);
        if (!o)
            return err_set(e, -ENOMEM, "no host memory for rank %u of worker %u", r, w->info.index);
        o->lead = w;
        o->rank = r;
        o->arenas.worker = w->info.index + r * MAX_WORKERS;
        w->other[w->n_others++] = o;
    }
    return 0;
}

void
rank_group_free(struct worker *w)
{
    while (w->n_others) {
        struct worker *o = w->other[--w->n_others];

        process_release(o);
        arenas_close(&o->arenas);
        free(o);
    }
}

/* Returns the struct worker whose name and arenas the process of o gets: if o is a rank of a
 * standby, the rank that it will replace, else o. */
static struct worker *
place_of(struct worker *o)
{
    return o->lead->of ? o->lead->of->other[o->rank - 1] : o;
}

static int
start_rank(struct worker *o, struct spawn *s, struct heritage *lead, int group, struct err *e)
{
    int fd_channel_sock[2], doorbell[2], r;

    o->info.epoch = s->heritage.epoch;
    r = channel_make_plan(&o->channel, o->info.index, o->info.epoch, o->d->id, doorbell, e);
    if (r < 0) return r;
    spawn_pass(lead, "plan", o->rank, o->channel.d.fd);
    spawn_pass(lead, "reply", o->rank, o->channel.w.fd);
    spawn_pass(lead, "ring", o->rank, doorbell[0]);
    r = fd_channel_pair(fd_channel_sock, e);
    if (r == 0) {
        o->fd_channel_sock = fd_channel_sock[0];
        s->name = place_of(o)->info.name;
        s->rank = o->rank;
        s->heritage.n = 0;
        spawn_pass(&s->heritage, "d", 0, o->channel.d.fd);
        spawn_pass(&s->heritage, "w", 0, o->channel.w.fd);
        spawn_pass(&s->heritage, "doorbell", 0, doorbell[1]);
        spawn_pass(&s->heritage, "fd_channel", 0, fd_channel_sock[1]);
        spawn_pass(&s->heritage, SHARED, 0, group);
        r = o->lead->of ? standby_share(o->lead, &place_of(o)->arenas, o->fd_channel_sock, e)
                        : arenas_give(&o->arenas, o->fd_channel_sock, o->d->now, e);
        if (r >= 0) r = spawn_worker(s, &o->info.pid, &o->log, e);
        close(fd_channel_sock[1]);
    }
    close(doorbell[1]);
    if (r < 0) return r;
    o->alive = true;
    o->heartbeat_at = o->spawned_at = o->d->now;
    o->heartbeat = 0;
    o->n_lines = 0;
    o->doorbell_closed_at = 0;
    process_store_pid(o);
    return worker_watch(o, e);
}

int
rank_group_start(struct worker *w, struct spawn *lead, struct err *e)
{
    struct spawn s = *lead;
    int group;

    w->end = (struct end){ 0 };
    if (!w->n_others) return 0;
    group = memfd_create("lagand:group", MFD_CLOEXEC);
    if (group < 0)
        return err_set(e, -errno, "cannot create the shared memory of the rank group: %s",
                       strerror(errno));
    spawn_pass(&lead->heritage, SHARED, 0, group);
    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];

        TRY(start_rank(o, &s, &lead->heritage, group, e));
        process_log(o, LOG_LEVEL_INFO, "started, pid %d, rank %u of %u", (int)o->info.pid, o->rank,
                    w->n_others + 1);
    }
    return 0;
}

void
rank_group_close_passed(const struct worker *w, const struct heritage *h)
{
    for (uint32_t i = LEAD_FDS; w->n_others && i < h->n; i++) {
        bool kept = false; /* true: struct channel uses the descriptor, which stays open */

        for (uint32_t k = 0; k < w->n_others; k++)
            kept |= h->at[i].fd == w->other[k]->channel.d.fd ||
                    h->at[i].fd == w->other[k]->channel.w.fd;
        if (!kept) close(h->at[i].fd);
    }
}

void
rank_group_kill(struct worker *w)
{
    for (uint32_t i = 0; i < w->n_others; i++)
        if (w->other[i]->alive) kill(w->other[i]->info.pid, SIGKILL);
}

static bool
any_alive(const struct worker *w)
{
    for (uint32_t i = 0; i < w->n_others; i++)
        if (w->other[i]->alive) return true;
    return w->alive;
}

void
rank_group_process_exited(struct worker *one, int code, int status, bool has_panic)
{
    struct worker *w = one->lead ? one->lead : one;

    if (one->lead && w->alive && code == CLD_EXITED && status == 0) {
        /* This rank exited because it saw rank 0 exit. The exit event of rank 0 follows, and its
         * cause is used. rank_group_tick() checks that rank 0 really ends within LEAVE_TIME. */
        one->doorbell_closed_at = w->d->now;
        return;
    }
    if (!w->end.known) {
        w->end = (struct end){ true, has_panic, code, status, w->d->now };
        if (one->lead)
            process_log(one, LOG_LEVEL_ERR, "pid %d ended (%s %d); killing its rank group",
                        (int)one->info.pid, code == CLD_EXITED ? "exit status" : "signal", status);
        rank_group_kill(w);
        if (w->alive) kill(w->info.pid, SIGKILL);
    }
    if (!any_alive(w)) worker_ended(w, w->end.code, w->end.status, w->end.has_panic);
}

void
rank_group_reap(struct worker *w, const struct death *d)
{
    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];
        struct death_entry x = { 0 };

        process_take_arenas(o);
        process_read_output(o);
        if (o->info.pid) process_read_panic(o, &x);
        process_drop_pid(o);
        arenas_after_death(&o->arenas, d, o->d->now);
        process_release(o);
    }
}

void
rank_group_end(struct worker *w)
{
    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];

        if (o->alive) {
            process_kill(o);
            process_drop_pid(o);
        }
        process_take_arenas(o);
        process_release(o);
    }
}

bool
rank_group_alive(const struct worker *s)
{
    for (uint32_t i = 0; i <= s->n_others; i++) {
        const struct worker *o = i ? s->other[i - 1] : s;

        if (!o->alive || process_exited(o)) return false;
    }
    return true;
}

void
rank_group_tick(struct worker *w, nsec now, nsec late)
{
    nsec stall = w->d->config->o.stall_timeout;

    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];
        uint64_t heartbeat;

        /* lagand waits for the exit of rank 0; time in which rank 0 was starved does not count. */
        if (o->doorbell_closed_at) o->doorbell_closed_at = MIN(o->doorbell_closed_at + late, now);
        if (!o->alive && o->doorbell_closed_at && now - o->doorbell_closed_at > LEAVE_TIME)
            process_broken(o, DEATH_EXITED, "exited while rank 0 continues to run");
        if (!o->alive) continue;
        heartbeat = atomic_load_explicit(&shm_ctl(&o->channel.w)->hb_count, memory_order_relaxed);
        o->heartbeat_at = MIN(o->heartbeat_at + worker_discount(o, now, late), now);
        if (heartbeat != o->heartbeat) o->heartbeat_at = now;
        o->heartbeat = heartbeat;
        if (now - o->heartbeat_at >= stall)
            process_broken(o, DEATH_SILENT, "no heartbeat for %.1f s",
                           (double)(now - o->heartbeat_at) / NSEC_S);
    }
}

void
rank_group_check_exit(struct worker *w, nsec now)
{
    if (!any_alive(w) || !w->end.known || w->super.suspect != DEATH_NONE ||
        now - w->end.at < w->d->config->o.stall_timeout)
        return;
    /* The cause of the first end stays the cause of death; super_broken() starts the 10 s timer. */
    super_died(&w->super, w->end.code, w->end.status, w->end.has_panic,
               oom_killed(w->d->oom, w->end.code, w->end.status));
    process_log(w, LOG_LEVEL_ERR,
                "a rank of its rank group did not exit after SIGKILL; waiting 10 s longer, then "
                "the worker counts as lost");
    super_broken(&w->super, w->super.death.cause, now);
}

bool
rank_group_silent(const struct worker *w, nsec now)
{
    nsec stall = w->d->config->o.stall_timeout;

    for (uint32_t i = 0; i < w->n_others; i++)
        if (w->other[i]->alive && now - w->other[i]->heartbeat_at >= stall / 2) return true;
    return false;
}
