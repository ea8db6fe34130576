/* worker.c - starts, watches and reaps the process of a worker; see worker.h.
 *
 * The callbacks of supervisor.c come first, then the checks of worker_tick().
 */
#include "daemon/supervise/worker.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/ledger/ledger.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/control_channel.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/rank_group.h"
#include "daemon/supervise/spawn.h"
#include "daemon/supervise/standby.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

/* The doorbell is edge-triggered. Its bytes are read at every 32nd event, or after an event without
 * new records: the socket holds some hundred bytes. */
static const uint32_t DOORBELL_EVENTS = EPOLLIN | EPOLLRDHUP | EPOLLET, DRAIN_EVERY = 32;
static const nsec DOORBELL_GRACE = NSEC_S; /* from a closed doorbell to the kill */
/* From a closed fd channel to the kill, beyond stall_timeout: a driver may have to unpin much
 * memory meanwhile. */
static const nsec FD_CHANNEL_GRACE = NSEC_S;
static const nsec DEATH_TIME = 2 * NSEC_MS; /* usual time of an exit without a GPU driver */
static const nsec STORM_TIME = NSEC_S;
enum { STORM_FACTOR = 10, STORM_LEAST = 2000 };

/* ---- the fd channel */

static int
on_no_end(sd_event_source *s, uint64_t usec, void *arg)
{
    (void)s;
    (void)usec;
    standby_prepare_now(arg);
    return 0;
}

/* The worker exits, or has closed its fd channel. An existing standby opens the device now.
 * Otherwise a standby is started only if the exit takes longer than DEATH_TIME, because the driver
 * has to release memory. */
static void
fd_channel_ended(struct worker *w)
{
    w->fd_channel_closed_at = clock_now();
    if (w->n_others) return; /* a rank group is started after the previous one has ended */
    if (w->standby->alive || sd_event_add_time_relative(w->d->event, &w->on_no_end, CLOCK_MONOTONIC,
                                                        DEATH_TIME / NSEC_US, 1, on_no_end, w) < 0)
        standby_prepare_now(w);
}

static int
on_fd_channel(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    struct worker *w = arg;
    struct err e;
    int r;

    (void)revents;
    r = arenas_take(&w->arenas, fd, &e);
    if (r == 0) return 0;
    sd_event_source_set_enabled(s, SD_EVENT_OFF);
    if (r == -EPIPE && !w->lead)
        fd_channel_ended(w);
    else if (r != -EPIPE)
        worker_broken(w, DEATH_CORRUPTION, "%s", e.text);
    return 0;
}

/* ---- the doorbell: the loop iteration after the event reads the rings */

static int
on_doorbell(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    const uint32_t shut = EPOLLRDHUP | EPOLLHUP;
    struct worker *w = arg;
    bool of_use = w->n_records != w->signalled_records; /* since the previous event */
    int r;

    (void)fd;
    w->signalled_records = w->n_records;
    if (++w->n_signals % DRAIN_EVERY && of_use && !(revents & shut)) return 0;
    do r = doorbell_drain(&w->channel.doorbell);
    while (r > 0 && revents & shut); /* no further event follows */
    if (r == -EPIPE) {
        sd_event_source_set_enabled(s, SD_EVENT_OFF);
        w->doorbell_closed_at = w->d->now;
    }
    return 0;
}

/* ---- the end of the process */

void
worker_ended(struct worker *w, int code, int status, bool has_panic)
{
    /* SIGUSR2 asked for a panic message before the worker had installed its handler. */
    if (w->asked && status == SIGUSR2 && w->super.suspect == DEATH_NONE) {
        w->super.suspect = DEATH_SILENT;
    }
    super_died(&w->super, code, status, has_panic);
    worker_event(w, EV_EXIT);
}

static int
on_exit_(sd_event_source *s, const siginfo_t *si, void *arg)
{
    struct worker *w = arg;
    const struct panic_message *page = shm_panic_message(&w->channel.w);
    bool has_panic = atomic_load_explicit(&page->state, memory_order_acquire) == 2 &&
                     page->text_bytes > 0;

    (void)s;
    w->d->now = clock_now();
    w->alive = false;
    if (w->lead || w->n_others)
        rank_group_process_exited(w, si->si_code, si->si_status, has_panic);
    else
        worker_ended(w, si->si_code, si->si_status, has_panic);
    return 0;
}

static void
describe(const struct death *d, char *buf, size_t n)
{
    if (d->signal) {
        snprintf(buf, n, "signal %d (%s)", d->signal, strsignal(d->signal));
    } else {
        snprintf(buf, n, "exit status %d", d->status);
    }
}

void
worker_look(struct worker *w)
{
    if (w->alive) stat_read(shm_ctl(&w->channel.w), &w->stats);
}

static void
add_up(struct worker *w)
{
    stat_read(shm_ctl(&w->channel.w), &w->stats);
    for (uint32_t i = 0; i < STAT_COUNT; i++)
        if (stat_rows[i].kind == STAT_COUNTER) w->former.v[i] += w->stats.v[i];
    for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++)
        for (uint32_t i = 0; i < GROUP_STAT_COUNT; i++)
            if (group_stat_rows[i].kind == STAT_COUNTER)
                w->former.group[g][i] += w->stats.group[g][i];
    memset(&w->stats, 0, sizeof w->stats);
}

static void
note_death(const struct worker *w, const struct death *d, const char *how, const char *panic)
{
    struct death_entry x = { .epoch = w->epoch,
                             .pid = w->pid,
                             .n_requests = w->n_requests,
                             .n_lines = MIN(w->n_lines, (uint32_t)LOG_LINES) };

    event_log_add(w->d, "death", w->name, "pid %d, %s: %s, %s", (int)w->pid, death_name(d->cause),
                  how, death_sentence(d->cause));
    snprintf(x.worker, sizeof x.worker, "%s", w->name);
    snprintf(x.cause, sizeof x.cause, "%s", death_name(d->cause));
    snprintf(x.how, sizeof x.how, "%s", how);
    snprintf(x.panic, sizeof x.panic, "%s", panic);
    for (uint32_t i = 0; i < x.n_lines; i++)
        memcpy(x.line[i], w->last_line[(w->n_lines - x.n_lines + i) % LOG_LINES], LOG_LINE);
    event_log_death(w->d, &x);
}

/* The worker is reaped, so that no stray write is possible. Reads its remaining records, then
 * requeues or ends its requests. */
static void
reap(void *arg, const struct death *d)
{
    struct worker *w = arg;
    bool wanted = d->cause == DEATH_DRAINED || d->cause == DEATH_OPERATOR;
    char how[96], panic[400];
    struct err e;

    FP(reap_began);
    w->d->events->worker_dead(w->d, w, NULL);
    if (w->fd_channel_sock >= 0 && arenas_take(&w->arenas, w->fd_channel_sock, &e) == -EBADMSG) {
        process_log(w, LOG_LEVEL_WARN, "worker %s: %s; ignoring", w->name, e.text);
    }
    process_read_output(w);
    add_up(w);
    describe(d, how, sizeof how);
    if (wanted) {
        process_log(w, LOG_LEVEL_INFO, "worker %s: pid %d ended, %s", w->name, (int)w->pid,
                    death_sentence(d->cause));
    } else {
        process_log(w, LOG_LEVEL_ERR, "worker %s: pid %d died of %s: %s, %s; requeuing %u requests",
                    w->name, (int)w->pid, death_name(d->cause), how, death_sentence(d->cause),
                    w->n_requests);
        process_read_panic(w, panic, sizeof panic);
        note_death(w, d, how, panic);
        for (uint32_t i = w->n_lines > LOG_LINES ? w->n_lines - LOG_LINES : 0; i < w->n_lines;
             i++) {
            log_debug("worker %s: earlier output: %s", w->name, w->last_line[i % LOG_LINES]);
        }
    }
    if (!*w->why) snprintf(w->why, sizeof w->why, "%s: %s", death_name(d->cause), how);
    FP(reap_drained);
    w->d->events->worker_dead(w->d, w, d);
    process_drop_pid(w);
    rank_group_reap(w, d);
    arenas_after_death(&w->arenas, d, w->d->now);
    if (arenas_given_up(&w->arenas, d)) standby_stop(w->standby);
    process_release(w);
    if (!wanted) {
        w->restarts++;
        event_log_set_restarts(w->d, w->index, w->restarts);
    }
}

/* ---- callbacks of supervisor.c */

int
worker_watch(struct worker *w, struct err *e)
{
    sd_event *ev = w->d->event;
    int r = sd_event_add_child(ev, &w->on_exit, w->pid, WEXITED, on_exit_, w);

    if (r >= 0 && !w->lead)
        r = sd_event_add_io(ev, &w->on_doorbell, w->channel.doorbell.fd, DOORBELL_EVENTS,
                            on_doorbell, w);
    if (r >= 0)
        r = sd_event_add_io(ev, &w->on_fd_channel, w->fd_channel_sock, EPOLLIN, on_fd_channel, w);
    if (r >= 0) r = sd_event_add_io(ev, &w->on_log, w->log, EPOLLIN, process_on_log, w);
    /* The end of a worker has priority: events of other workers could delay it without bound. */
    if (r >= 0) r = sd_event_source_set_priority(w->on_exit, SD_EVENT_PRIORITY_NORMAL - 10);
    /* A standby sends no arenas before it has replaced its worker. */
    if (r >= 0 && process_is_standby(w))
        r = sd_event_source_set_enabled(w->on_fd_channel, SD_EVENT_OFF);
    return r < 0 ? err_set(e, r, "cannot watch the process: %s", strerror(-r)) : 0;
}

static int
start(struct worker *w, struct err *e)
{
    static const char *const levels[] = { "err", "warn", "info", "debug" };
    struct worker *place = w->of ? w->of : w;
    struct config *c = w->d->config;
    struct spawn s = {
        .path = w->d->worker_path,
        .name = place->name,
        .log_level = levels[c->o.log_level],
        .keys = &c->model[w->model].keys,
        .is_standby = w->of != NULL,
        .heritage = { .epoch = ++place->last_epoch, .n = 4 },
    };
    static const char *const names[] = { "d", "w", "doorbell", "fd_channel" };
    int bell = -1, fd_channel_sock[2] = { -1, -1 }, r;

    w->epoch = s.heritage.epoch;
    w->prepare_sent = w->of && standby_may_prepare(w);
    r = channel_make(&w->channel, w->index, w->epoch, w->d->id, FP_RINGS, &bell, e);
    if (r < 0) return r;
    r = fd_channel_pair(fd_channel_sock, e);
    /* The arenas are in the socket before the worker reads it. */
    if (r == 0 && w->of) r = standby_share(w, &place->arenas, fd_channel_sock[0], e);
    if (r == 0 && !w->of) r = arenas_give(&w->arenas, fd_channel_sock[0], w->d->now, e);
    if (r >= 0) {
        const int fds[] = { w->channel.d.fd, w->channel.w.fd, bell, fd_channel_sock[1] };

        for (uint32_t i = 0; i < ARRAY_LEN(fds); i++) {
            snprintf(s.heritage.at[i].name, sizeof s.heritage.at[i].name, "%s", names[i]);
            s.heritage.at[i].fd = fds[i];
        }
        r = rank_group_start(w, &s, e);
    }
    if (r >= 0) {
        w->control = control_channel_open(w, &s.control, &s.token);
        r = spawn_worker(&s, &w->pid, &w->log, e);
        FP(spawned);
    }
    rank_group_close_passed(w, &s.heritage);
    close(bell);
    if (fd_channel_sock[1] >= 0) close(fd_channel_sock[1]);
    w->fd_channel_sock = fd_channel_sock[0];
    if (r < 0) return r;
    w->alive = true;
    process_store_pid(w);
    r = worker_watch(w, e);
    if (r < 0) {
        kill(w->pid, SIGKILL);
        waitpid(w->pid, NULL, 0);
    }
    return r;
}

/* Continues with the process of the standby. A failure of that process is from now on a failure of
 * the worker. */
static void
continue_standby(struct worker *w)
{
    struct err e;

    if (standby_continue(w, &e) < 0) {
        process_log(w, LOG_LEVEL_WARN, "worker %s: %s; killing its new process, the former standby",
                    w->name, e.text);
        worker_kill(w, SIGKILL);
    }
}

int
worker_spawn(void *arg)
{
    struct worker *w = arg;
    struct err e = { 0 };
    int r;

    w->n_lines = 0;
    w->why[0] = 0;
    w->load_done = w->load_total = 0;
    w->sending = w->alone = REQUEST_NONE;
    w->n_requests = w->n_seqs = w->n_notices_due = 0;
    w->tokens = 0;
    w->warned = w->asked = w->full = w->protocol_error = false;
    w->n_records = w->storm_signals = w->storm_records = 0;
    w->spawned_at = w->heartbeat_at = w->storm_at = clock_now();
    w->heartbeat = 0;
    w->deadline = w->discount = 0;
    memset(&w->stats, 0, sizeof w->stats);
    if (standby_take(w)) {
        continue_standby(w);
        process_log(w, LOG_LEVEL_INFO, "worker %s: the standby takes over, pid %d, epoch %llu",
                    w->name, (int)w->pid, (unsigned long long)w->epoch);
        return 0;
    }
    r = start(w, &e);
    if (r < 0) {
        process_log(w, LOG_LEVEL_ERR, "worker %s: %s", w->name, e.text);
        snprintf(w->why, sizeof w->why, "%s", e.text);
        rank_group_end(w);
        process_release(w);
        return r;
    }
    process_log(w, LOG_LEVEL_INFO, "worker %s: started, pid %d, epoch %llu, model %s", w->name,
                (int)w->pid, (unsigned long long)w->epoch, w->d->config->model[w->model].keys.name);
    return 0;
}

static void
op_tell_drain(void *arg)
{
    struct worker *w = arg;

    w->d->events->worker_drain(w->d, w);
}

void
worker_kill(void *arg, int sig)
{
    struct worker *w = arg;

    if (sig == SIGKILL) rank_group_kill(w);
    /* The process is not reaped, so that the pid cannot belong to another one. */
    if (w->alive && kill(w->pid, sig) < 0) {
        process_log(w, LOG_LEVEL_WARN, "worker %s: cannot send signal %d: %s", w->name, sig,
                    strerror(errno));
    }
}

static void
op_moved(void *arg, enum super_state from, enum super_state to)
{
    struct worker *w = arg;
    nsec wait = w->super.timer - w->d->now;

    if (to == SUPER_READY) {
        w->arenas.verify_contents = false; /* the worker has verified them */
    } else if (to == SUPER_BACKOFF) {
        process_log(w, LOG_LEVEL_WARN, "worker %s: restarting in %.2f s", w->name,
                    (double)wait / NSEC_S);
    } else if (to == SUPER_FAILED) {
        process_log(w, LOG_LEVEL_ERR, "worker %s: failed for good: %s", w->name, w->why);
    } else if (to == SUPER_LOST) {
        process_log(
            w, LOG_LEVEL_ERR,
            "worker %s: pid %d did not exit after SIGKILL; starting no other process on its device",
            w->name, (int)w->pid);
        /* No more records come from this process. */
        w->d->events->worker_dead(w->d, w, &(struct death){ .cause = w->super.suspect });
    }
    standby_worker_state(w, to);
    w->d->events->worker_state(w->d, w, from, to);
}

static const struct super_ops ops = { worker_spawn, op_tell_drain, worker_kill, reap, op_moved };

struct worker *
worker_new(struct daemon *d, uint32_t index, uint32_t model, const char *name,
           const struct super_ops *hands)
{
    struct worker *w = calloc(1, sizeof *w);
    uint64_t seed;

    if (!w) return NULL;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) < 0) seed = (uint64_t)clock_now();
    w->d = d;
    w->index = w->arenas.worker = index;
    w->model = model;
    w->fd_channel_sock = w->log = -1;
    w->channel.d.fd = w->channel.w.fd = w->channel.doorbell.fd = -1;
    w->sending = w->alone = REQUEST_NONE;
    snprintf(w->name, sizeof w->name, "%s", name);
    super_init(&w->super, hands, w, seed);
    w->super.start_timeout = d->config->o.start_timeout;
    w->super.drain_timeout = d->config->o.shutdown_timeout;
    return w;
}

int
worker_make(struct daemon *d, uint32_t index, uint32_t model, struct err *e)
{
    char name[16];
    struct worker *w;

    snprintf(name, sizeof name, "w%u", index);
    w = worker_new(d, index, model, name, &ops);
    if (!w) return err_set(e, -ENOMEM, "no memory for worker %u", index);
    d->worker[index] = w;
    w->restarts = event_log_restarts(d, index, d->config->model[model].keys.name);
    TRY(rank_group_new(w, e));
    return standby_new(w, e);
}

struct worker *
worker_free(struct worker *w)
{
    if (!w) return NULL;
    worker_end(w);
    w->standby = standby_free(w->standby);
    rank_group_free(w);
    process_release(w);
    arenas_close(&w->arenas);
    free(w);
    return NULL;
}

void
worker_end(struct worker *w)
{
    struct err e;

    if (w->standby && w->standby->alive) process_kill(w->standby);
    if (w->standby) rank_group_end(w->standby);
    rank_group_end(w);
    if (!w->alive) return;
    process_kill(w);
    process_drop_pid(w);
    if (w->super.state != SUPER_LOADING) w->d->events->worker_dead(w->d, w, NULL);
    if (arenas_take(&w->arenas, w->fd_channel_sock, &e) == -EBADMSG)
        process_log(w, LOG_LEVEL_WARN, "worker %s: %s; ignoring", w->name, e.text);
}

void
worker_event(struct worker *w, enum super_event ev)
{
    super_event(&w->super, ev, w->d->now);
}

void
worker_broken(struct worker *w, enum death_cause cause, const char *fmt, ...)
{
    struct worker *place = w->lead ? w->lead : w;
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (place->super.suspect == DEATH_NONE) {
        process_log(w, LOG_LEVEL_ERR, "worker %s: %s; killing pid %d", w->name, text, (int)w->pid);
        snprintf(place->why, sizeof place->why, "%.239s", text);
    }
    place->protocol_error |= cause == DEATH_CORRUPTION;
    super_broken(&place->super, cause, w->d->now);
}

/* ---- heartbeat, deadlines, doorbell storms */

/* Starvation is measured only for a worker that is late, because that reads files of /proc. */
nsec
worker_discount(struct worker *w, nsec now, nsec late)
{
    const struct shm_ctl *c = shm_ctl(&w->channel.w);
    bool owes = w->super.state == SUPER_DYING || w->doorbell_closed_at || w->fd_channel_closed_at;

    if (!w->alive || w->super.state == SUPER_LOST) return late;
    owes = owes || now - w->heartbeat_at >= w->d->config->o.stall_timeout / 4 ||
           (w->deadline &&
            atomic_load_explicit(&c->phase_deadline_ns, memory_order_relaxed) == w->deadline);
    if (owes) return MAX(late, cpu_starvation_since(&w->starved, w->pid, now));
    w->starved.at = 0;
    return late;
}

static void
check_heartbeat(struct worker *w, nsec now, nsec late)
{
    struct shm_ctl *c = shm_ctl(&w->channel.w);
    uint64_t heartbeat = atomic_load_explicit(&c->hb_count, memory_order_relaxed);
    nsec deadline = atomic_load_explicit(&c->phase_deadline_ns, memory_order_relaxed);
    nsec stall = w->d->config->o.stall_timeout, silent;

    /* Time in which lagand or the worker could not run is not silence. */
    w->heartbeat_at = MIN(w->heartbeat_at + late, now);
    if (heartbeat != w->heartbeat) {
        if (w->warned)
            process_log(w, LOG_LEVEL_WARN, "worker %s: the heartbeat has resumed", w->name);
        w->heartbeat = heartbeat;
        w->heartbeat_at = now;
        w->warned = w->asked = false;
    }
    if (deadline != w->deadline) w->discount = 0;
    w->deadline = deadline;
    w->discount += late;
    silent = now - w->heartbeat_at;
    /* If both are true, the overdue step is the cause, because the step may block the loop. */
    if (deadline && now - w->discount > deadline && !rank_group_silent(w, now)) {
        worker_broken(w, DEATH_OVERDUE, "a step is %.1f s past its deadline",
                      (double)(now - w->discount - deadline) / NSEC_S);
    } else if (silent >= stall) {
        worker_broken(w, DEATH_SILENT, "no heartbeat for %.1f s, with %u requests",
                      (double)silent / NSEC_S, w->n_requests);
    } else if (silent >= stall * 5 / 6 && !w->asked) {
        w->asked = true;
        worker_kill(w, SIGUSR2);
    } else if (silent >= stall / 2 && !w->warned) {
        w->warned = true;
        process_log(w, LOG_LEVEL_WARN,
                    "worker %s: no heartbeat for %.1f s; killing the process after %.1f s", w->name,
                    (double)silent / NSEC_S, (double)stall / NSEC_S);
    }
}

/* Prefill rate of the worker, from which dispatch estimates the cost of computing a prompt again.
 */
static void
measure(struct worker *w, nsec now)
{
    uint64_t in = w->stats.v[STAT_prompt_tokens], more = in - w->taken_in;

    if (in > w->taken_in && more < UINT32_MAX && now > w->rate_at)
        w->rate = MAX(w->rate, more * NSEC_S / (uint64_t)(now - w->rate_at));
    w->taken_in = in;
    w->rate_at = now;
}

static void
check_storm(struct worker *w, nsec now)
{
    uint64_t signals, records = w->n_records - w->storm_records;

    if (now - w->storm_at < STORM_TIME) return;
    /* A socket that was filled within one loop iteration gives no event until it is drained. */
    (void)doorbell_drain(&w->channel.doorbell);
    signals = w->channel.doorbell.n_received - w->storm_signals;
    w->storm_at = now;
    w->storm_signals += signals;
    w->storm_records += records;
    if (signals > STORM_LEAST && signals > STORM_FACTOR * records) {
        worker_broken(w, DEATH_STORM, "signalled the doorbell %llu times in 1 s for %llu records",
                      (unsigned long long)signals, (unsigned long long)records);
    }
}

/* Returns true if the process has ended and on_exit_() has not run yet. Under a debugger the pidfd
 * becomes readable before the process can be reaped, and sd-event reports it once: then the event
 * source is armed again. */
static bool
has_ended(struct worker *w)
{
    siginfo_t si = { .si_pid = 0 };

    if (!w->alive || waitid(P_PID, (id_t)w->pid, &si, WEXITED | WNOHANG | WNOWAIT) < 0)
        return false;
    if (!si.si_pid) return false;
    if (sd_event_source_get_pending(w->on_exit) > 0) return true; /* its event is queued */
    sd_event_source_set_enabled(w->on_exit, SD_EVENT_OFF);
    sd_event_source_set_enabled(w->on_exit, SD_EVENT_ONESHOT);
    return true;
}

/* A standby reports its stage only in its shared memory, because nothing reads its rings yet. */
static void
check_phase(struct worker *w)
{
    uint32_t phase = atomic_load_explicit(&shm_ctl(&w->channel.w)->phase, memory_order_relaxed);

    if (w->of && w->super.state == SUPER_LOADING &&
        (phase == PHASE_STANDBY || phase == PHASE_BEGUN))
        worker_event(w, EV_STANDBY_READY);
}

void
worker_tick(struct worker *w, nsec now, nsec late)
{
    bool ended = has_ended(w);

    if (w->standby) worker_tick(w->standby, now, late);
    for (uint32_t i = 0; i < w->n_others; i++) ended |= has_ended(w->other[i]);
    if (ended) return; /* a process that has ended has no heartbeat */
    if (!w->alive) rank_group_check_exit(w, now);
    late = worker_discount(w, now, late);
    super_discount(&w->super, late);
    if (w->doorbell_closed_at) w->doorbell_closed_at = MIN(w->doorbell_closed_at + late, now);
    if (w->fd_channel_closed_at) w->fd_channel_closed_at = MIN(w->fd_channel_closed_at + late, now);
    if (now >= w->super.timer) worker_event(w, EV_TIMER);
    if (!w->alive || w->super.state == SUPER_DYING || w->super.state == SUPER_LOST) return;
    stat_read(shm_ctl(&w->channel.w), &w->stats);
    measure(w, now);
    rank_group_tick(w, now, late);
    if (w->alive) check_heartbeat(w, now, late);
    if (w->alive) check_storm(w, now);
    check_phase(w);
    if (w->doorbell_closed_at && now - w->doorbell_closed_at > DOORBELL_GRACE) {
        worker_broken(w, DEATH_CORRUPTION, "closed its doorbell but did not exit within %.1f s",
                      (double)DOORBELL_GRACE / NSEC_S);
    }
    if (w->fd_channel_closed_at &&
        now - w->fd_channel_closed_at > w->d->config->o.stall_timeout + FD_CHANNEL_GRACE) {
        worker_broken(w, DEATH_CORRUPTION, "closed its fd channel but did not exit within %.1f s",
                      (double)(w->d->config->o.stall_timeout + FD_CHANNEL_GRACE) / NSEC_S);
    }
}

nsec
worker_timer(const struct worker *w)
{
    return w->standby ? MIN(w->super.timer, w->standby->super.timer) : w->super.timer;
}

bool
worker_open(const struct worker *w)
{
    return w->super.state == SUPER_READY && w->alive && w->super.suspect == DEATH_NONE;
}

bool
worker_over(const struct worker *w)
{
    return w->super.state == SUPER_DOWN || w->super.state == SUPER_FAILED ||
           w->super.state == SUPER_LOST;
}
