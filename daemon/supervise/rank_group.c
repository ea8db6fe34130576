/* rank_group.c - see rank_group.h. */
#include "daemon/supervise/rank_group.h"

#include "base/clock.h"
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/spawn.h"
#include "daemon/supervise/standby.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const nsec LEAVE_TIME = NSEC_S; /* from a rank's orderly end to rank 0's */
static const char SHARED[] =
    "group";           /* what all ranks inherit under one name; its size is theirs to set */
enum { LEAD_FDS = 4 }; /* that rank 0 inherits as any worker: the rest is the group's */

static const struct super_ops none; /* another rank has no life of its own */

int
rank_group_new(struct worker *w, struct err *e)
{
    uint32_t ranks = MIN(w->d->config->model[w->model].keys.tensor_parallel, (uint32_t)MAX_RANKS);

    for (uint32_t r = 1; r < ranks; r++) {
        char name[sizeof w->name];
        struct worker *o;

        snprintf(name, sizeof name, "%.12s.%u", w->name, r % MAX_RANKS);
        o = worker_new(w->d, w->index, w->model, name, &none);
        if (!o) return err_set(e, -ENOMEM, "no memory for rank %u of worker %u", r, w->index);
        o->lead = w;
        o->rank = r;
        o->arenas.worker = w->index + r * MAX_WORKERS; /* in the fd store */
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

static void
pass(struct heritage *h, const char *name, uint32_t rank, int fd)
{
    check(h->n < HERITAGE_MAX);
    snprintf(h->at[h->n].name, sizeof h->at[h->n].name, "%s%.0u", name, rank);
    h->at[h->n++].fd = fd;
}

/* Who has it as its standby's rank: the one whose place it will take; else itself. */
static struct worker *
place_of(struct worker *o)
{
    return o->lead->of ? o->lead->of->other[o->rank - 1] : o;
}

static int
start_rank(struct worker *o, struct spawn *s, struct heritage *lead, int group, struct err *e)
{
    int hand[2], bell[2], r;

    o->epoch = s->heritage.epoch;
    r = channel_make_plan(&o->channel, o->index, o->epoch, o->d->id, bell, e);
    if (r < 0) return r;
    pass(lead, "plan", o->rank, o->channel.d.fd);
    pass(lead, "reply", o->rank, o->channel.w.fd);
    pass(lead, "ring", o->rank, bell[0]);
    r = fd_channel_pair(hand, e);
    if (r == 0) {
        o->hand = hand[0];
        s->name = place_of(o)->name;
        s->rank = o->rank;
        s->heritage.n = 0;
        pass(&s->heritage, "d", 0, o->channel.d.fd);
        pass(&s->heritage, "w", 0, o->channel.w.fd);
        pass(&s->heritage, "doorbell", 0, bell[1]);
        pass(&s->heritage, "fd_channel", 0, hand[1]);
        pass(&s->heritage, SHARED, 0, group);
        r = o->lead->of ? standby_share(o->lead, &place_of(o)->arenas, o->hand, e)
                        : arenas_give(&o->arenas, o->hand, o->d->now, e);
        if (r >= 0) r = spawn_worker(s, &o->pid, &o->log, e);
        close(hand[1]);
    }
    close(bell[1]);
    if (r < 0) return r;
    o->alive = true;
    o->beat_at = o->spawned_at = o->d->now;
    o->beat = 0;
    o->n_lines = 0;
    o->bell_lost = 0;
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
    pass(&lead->heritage, SHARED, 0, group);
    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];

        TRY(start_rank(o, &s, &lead->heritage, group, e));
        log_info("worker %s: started, pid %d, rank %u of %u", o->name, (int)o->pid, o->rank,
                 w->n_others + 1);
    }
    return 0;
}

void
rank_group_close_passed(const struct worker *w, const struct heritage *h)
{
    for (uint32_t i = LEAD_FDS; w->n_others && i < h->n; i++) {
        bool kept = false; /* the links' own */

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
        if (w->other[i]->alive) kill(w->other[i]->pid, SIGKILL);
}

void
rank_group_process_exited(struct worker *one, int code, int status, bool words)
{
    struct worker *w = one->lead ? one->lead : one;
    bool anybody = w->alive;

    if (one->lead && w->alive && code == CLD_EXITED && status == 0) {
        one->bell_lost = w->d->now; /* it saw rank 0 leave, whose end we hear of next */
        return;
    }
    if (!w->end.known) {
        w->end = (struct end){ true, words, code, status, w->d->now };
        if (one->lead)
            log_err("worker %s: pid %d ended (%s %d); killing its rank group", one->name,
                    (int)one->pid, code == CLD_EXITED ? "exit status" : "signal", status);
        rank_group_kill(w);
        if (w->alive) kill(w->pid, SIGKILL);
    }
    for (uint32_t i = 0; i < w->n_others; i++) anybody |= w->other[i]->alive;
    if (!anybody) worker_ended(w, w->end.code, w->end.status, w->end.words);
}

void
rank_group_reap(struct worker *w, const struct death *d)
{
    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];
        char words[400];
        struct err e;

        if (o->hand >= 0 && arenas_take(&o->arenas, o->hand, &e) == -EBADMSG)
            log_warn("worker %s: %s; ignoring", o->name, e.text);
        process_read_output(o);
        if (o->pid) process_read_panic(o, words, sizeof words);
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
        struct err e;

        if (o->alive) {
            process_kill(o);
            process_drop_pid(o);
        }
        if (o->hand >= 0 && arenas_take(&o->arenas, o->hand, &e) == -EBADMSG)
            log_warn("worker %s: %s; ignoring", o->name, e.text);
        process_release(o);
    }
}

bool
rank_group_alive(const struct worker *s)
{
    for (uint32_t i = 0; i <= s->n_others; i++) {
        const struct worker *o = i ? s->other[i - 1] : s;
        siginfo_t si = { .si_pid = 0 };

        if (!o->alive || waitid(P_PID, (id_t)o->pid, &si, WEXITED | WNOHANG | WNOWAIT) < 0 ||
            si.si_pid)
            return false;
    }
    return true;
}

void
rank_group_tick(struct worker *w, nsec now, nsec late)
{
    nsec stall = w->d->config->o.stall_timeout;

    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];
        uint64_t beat;

        /* Rank 0, which is to end next, may have had no processor. */
        if (o->bell_lost) o->bell_lost = MIN(o->bell_lost + late, now);
        if (!o->alive && o->bell_lost && now - o->bell_lost > LEAVE_TIME)
            worker_broken(o, DEATH_EXITED, "exited while rank 0 continues to run");
        if (!o->alive) continue;
        beat = atomic_load_explicit(&shm_ctl(&o->channel.w)->hb_count, memory_order_relaxed);
        o->beat_at = MIN(o->beat_at + worker_discount(o, now, late), now);
        if (beat != o->beat) o->beat_at = now;
        o->beat = beat;
        if (now - o->beat_at >= stall)
            worker_broken(o, DEATH_SILENT, "no heartbeat for %.1f s",
                          (double)(now - o->beat_at) / NSEC_S);
    }
}

void
rank_group_check_exit(struct worker *w, nsec now)
{
    bool anybody = false;

    for (uint32_t i = 0; i < w->n_others; i++) anybody |= w->other[i]->alive;
    if (!anybody || !w->end.known || w->super.suspect != DEATH_NONE ||
        now - w->end.at < w->d->config->o.stall_timeout)
        return;
    /* The cause stays what it was; from here on its supervisor counts the time. */
    super_died(&w->super, w->end.code, w->end.status, w->end.words);
    log_err("worker %s: rank 0 has ended, another rank has not; waiting 10 s longer for it",
            w->name);
    super_broken(&w->super, w->super.death.cause, now);
}

bool
rank_group_silent(const struct worker *w, nsec now)
{
    nsec stall = w->d->config->o.stall_timeout;

    for (uint32_t i = 0; i < w->n_others; i++)
        if (w->other[i]->alive && now - w->other[i]->beat_at >= stall / 2) return true;
    return false;
}
