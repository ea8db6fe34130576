/* standby.c - see standby.h. */
#include "daemon/supervise/standby.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/control_channel.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/rank_group.h"

#include <stdio.h>

/* Delays from READY of the worker to the start of its standby: CALM_TIME if the standby opens the
 * device, BRIEF_TIME if it only initialises the GPU driver. */
static const nsec CALM_TIME = 100 * NSEC_MS, BRIEF_TIME = 10 * NSEC_MS;

static const struct model_options *
keys_of(const struct worker *w)
{
    return &w->d->config->model[w->info.model].keys;
}

const char *
standby_stage(const struct worker *s, enum super_state state)
{
    if (state == SUPER_STANDBY && !s->prepare_sent) return "driver up";
    return state == SUPER_DOWN ? "" : super_state_name(state);
}

static void
moved(void *arg, enum super_state from, enum super_state to)
{
    struct worker *s = arg;
    const char *was = standby_stage(s, from), *is = standby_stage(s, to);

    if (!*was) was = super_state_name(from);
    if (!*is) is = super_state_name(to);
    log_debug("%s: %s -> %s", s->info.name, was, is);
    event_log_add(s->d, "standby", s->info.name, "%s -> %s", was, is);
    if (to == SUPER_FAILED)
        process_log(s->of, LOG_LEVEL_ERR, "continues without a standby; %s failed for good: %s",
                    s->info.name, s->info.why);
}

static void
reap(void *arg, const struct death *d)
{
    struct worker *s = arg;

    process_read_output(s);
    if (d->cause == DEATH_DRAINED || d->cause == DEATH_OPERATOR) {
        log_info("standby %s: pid %d ended", s->info.name, (int)s->info.pid);
    } else {
        log_warn("standby %s: pid %d died (%s): %s; no request is affected", s->info.name,
                 (int)s->info.pid, death_name(d->cause), death_sentence(d->cause));
        s->info.restarts++;
    }
    rank_group_reap(s, d);
    process_release(s);
}

/* tell_drain is NULL, because a standby is never READY and therefore never drained. */
static const struct super_ops ops = { worker_spawn, NULL, worker_kill, reap, moved };

int
standby_new(struct worker *w, struct err *e)
{
    char name[sizeof w->info.name];

    snprintf(name, sizeof name, "w%u.standby", w->info.index);
    w->standby = worker_new(w->d, w->info.index, w->info.model, name, &ops);
    if (!w->standby)
        return err_set(e, -ENOMEM, "no host memory for the standby of worker %u", w->info.index);
    w->standby->of = w;
    return rank_group_new(w->standby, e);
}

static int
on_calm(sd_event_source *s, uint64_t usec, void *arg)
{
    struct worker *w = arg;

    (void)s;
    (void)usec;
    if (w->super.state == SUPER_READY) worker_event(w->standby, EV_START);
    return 0;
}

/* Starts the standby of w after a delay. CALM_TIME lets the worker's requests resume first, because
 * opening the device stalls the other processes that use it. BRIEF_TIME is short: initialising the
 * driver takes only as long as one or two steps of w, and if w dies before the standby has done it,
 * the restart of w takes 2 x as long. */
static void
start_later(struct worker *w)
{
    nsec wait = keys_of(w)->standby ? CALM_TIME : BRIEF_TIME;

    w->on[ON_CALM] = sd_event_source_disable_unref(w->on[ON_CALM]);
    if (sd_event_add_time_relative(w->d->event, &w->on[ON_CALM], CLOCK_MONOTONIC, wait / NSEC_US, 1,
                                   on_calm, w) < 0)
        worker_event(w->standby, EV_START);
}

void
standby_worker_state(struct worker *w, enum super_state to)
{
    if (to == SUPER_READY && (keys_of(w)->standby || model_options_on_gpu(keys_of(w))))
        start_later(w);
    else if (to == SUPER_DRAINING || to == SUPER_STOPPING || to == SUPER_LOST || worker_over(w))
        worker_event(w->standby, EV_STOP);
}

bool
standby_may_prepare(const struct worker *s)
{
    return keys_of(s)->standby || !s->of->alive || s->of->fd_channel_closed_at;
}

int
standby_share(const struct worker *s, struct arenas *a, int fd_channel_sock, struct err *e)
{
    const struct fd_channel_note begin = { .name = "begin" };

    if (!s->prepare_sent) return 0;
    TRY(arenas_send(a, "weights", fd_channel_sock, e));
    return fd_channel_give(fd_channel_sock, &begin, s->channel.d.fd, e);
}

/* Acts only if w was READY and is to be replaced. A worker that was asked to exit needs no standby,
 * and what ended a worker that had not loaded may end the standby too. */
void
standby_prepare_now(struct worker *w)
{
    bool dies = w->super.state == SUPER_READY ||
                (w->super.state == SUPER_DYING && w->super.restart_wanted);
    struct worker *s = w->standby;
    struct err e;

    if (!dies) return;
    worker_event(s, EV_START);
    if (!s->alive || s->prepare_sent) return;
    s->prepare_sent = true;
    if (standby_share(s, &w->arenas, s->fd_channel_sock, &e) < 0)
        log_warn("cannot send the weight arenas and the message `begin` to standby %s: %s",
                 s->info.name, e.text);
}

/* Moves the process of s to w, both of the same rank. s has no process afterwards. */
static void
take_process(struct worker *w, struct worker *s)
{
    w->info.epoch = s->info.epoch;
    w->info.pid = s->info.pid;
    w->alive = true;
    w->channel = s->channel;
    w->fd_channel_sock = s->fd_channel_sock;
    w->log = s->log;
    w->info.control = TAKE(s->info.control);
    w->doorbell_closed_at = s->doorbell_closed_at;
    w->fd_channel_closed_at = s->fd_channel_closed_at;
    memcpy(w->line, s->line, s->n_line);
    w->n_line = s->n_line;
    for (int i = ON_EXIT; i <= ON_LOG; i++) {
        w->on[i] = TAKE(s->on[i]);
        if (w->on[i]) sd_event_source_set_userdata(w->on[i], w);
    }
    control_channel_move(w->info.control, w);
    process_store_pid(w);

    s->channel = (struct channel){ .d.fd = -1, .w.fd = -1, .doorbell.fd = -1 };
    s->fd_channel_sock = s->log = -1;
    process_release(s);
}

static void
take(struct worker *w, struct worker *s)
{
    take_process(w, s);
    for (uint32_t i = 0; i < w->n_others; i++) {
        struct worker *o = w->other[i];

        take_process(o, s->other[i]);
        o->spawned_at = o->heartbeat_at = w->spawned_at;
        o->heartbeat = 0;
        o->n_lines = 0;
    }
    w->end = (struct end){ 0 };
    worker_event(s, EV_TAKEN);
}

bool
standby_take(struct worker *w)
{
    struct worker *s = w->standby;

    if (!s) return false;
    if ((s->super.state == SUPER_STANDBY || s->super.state == SUPER_LOADING) &&
        rank_group_alive(s)) {
        take(w, s);
        return true;
    }
    worker_event(s, EV_STOP);
    return false;
}

int
standby_continue(struct worker *w, struct err *e)
{
    const struct fd_channel_note go = { .name = "go" };

    for (uint32_t i = 0; i <= w->n_others; i++) {
        struct worker *o = i ? w->other[i - 1] : w;

        sd_event_source_set_enabled(o->on[ON_FD_CHANNEL], SD_EVENT_ON);
        TRY(arenas_give(&o->arenas, o->fd_channel_sock, o->d->now, e));
        TRY(fd_channel_give(o->fd_channel_sock, &go, o->channel.d.fd, e));
    }
    return 0;
}
