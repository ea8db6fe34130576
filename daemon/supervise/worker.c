/* worker.c - starts, watches and reaps the process of a worker; see worker.h. First the actions of
 * struct super_ops, then the checks of worker_tick(). */
#include "daemon/supervise/worker_struct.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/ledger/histograms.h"
#include "daemon/ledger/ledger.h"
#include "daemon/persist/event_log.h"
#include "daemon/supervise/control_channel.h"
#include "daemon/supervise/oom.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/rank_group.h"
#include "daemon/supervise/spawn.h"
#include "daemon/supervise/standby.h"

#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint32_t DOORBELL_EVENTS = EPOLLIN | EPOLLRDHUP | EPOLLET;
static const nsec DOORBELL_GRACE = NSEC_S; /* time from a closed doorbell to SIGKILL */
/* A worker that has closed its fd channel is killed after stall_timeout + FD_CHANNEL_GRACE, because
 * the GPU driver of an exiting process may first have to unpin much memory. */
static const nsec FD_CHANNEL_GRACE = NSEC_S;
static const nsec LOW_MEMORY_TIME = 60 * NSEC_S; /* of service, until an OOM kill is forgotten */
static const nsec DEATH_TIME = 2 * NSEC_MS; /* usual duration of an exit without a GPU driver */

/* ---- the fd channel */

static int
on_no_end(sd_event_source *s, uint64_t usec, void *arg)
{
    (void)s;
    (void)usec;
    standby_prepare_now(arg);
    return 0;
}

/* Handles the end of the fd channel: the worker exits, or has closed it. An existing standby opens
 * the device now. Without one, a standby is started only if the exit takes longer than DEATH_TIME,
 * which means that the GPU driver has to release memory. */
static void
fd_channel_ended(struct worker *w)
{
    w->fd_channel_closed_at = clock_now();
    if (w->n_others) return; /* a rank group starts only after the previous group has ended */
    if (w->standby->alive ||
        sd_event_add_time_relative(w->d->event, &w->on[ON_NO_END], CLOCK_MONOTONIC,
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
        process_broken(w, DEATH_CORRUPTION, "%s", e.text);
    return 0;
}

/* ---- the end of the process */

void
worker_ended(struct worker *w, int code, int status, bool has_panic)
{
    /* SIGUSR2, sent to a silent worker for a panic message, has ended it: it had no handler. */
    if (w->asked && status == SIGUSR2 && w->super.suspect == DEATH_NONE)
        w->super.suspect = DEATH_SILENT;
    super_died(&w->super, code, status, has_panic,
               w->super.suspect == DEATH_NONE && oom_killed(w->d->oom, code, status));
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
    rank_group_process_exited(w, si->si_code, si->si_status, has_panic);
    return 0;
}

static void
describe(const struct death *d, char *buf, size_t n)
{
    if (d->signal)
        snprintf(buf, n, "signal %d (%s)", d->signal, strsignal(d->signal));
    else
        snprintf(buf, n, "exit status %d", d->status);
}

/* Copies the new step records of the process and counts their sizes. */
static void
read_steps(struct worker *w)
{
    uint64_t number = w->steps ? step_log_read(w->steps, shm_steps(&w->channel.w)) : 0;
    const struct step_copy *c;

    for (; w->steps && (c = step_log_at(w->steps, number)); number = c->number + 1)
        histogram_add(w->d, w->info.model, HISTOGRAM_step_batched_tokens,
                      (int64_t)c->r.prefill_tokens + c->r.decode_tokens);
}

void
worker_look(struct worker *w)
{
    if (!w->alive) return;
    stat_read(shm_ctl(&w->channel.w), &w->info.stats);
    read_steps(w);
}

static void
add_up(struct worker *w)
{
    stat_read(shm_ctl(&w->channel.w), &w->info.stats);
    for (uint32_t i = 0; i < STAT_COUNT; i++)
        if (stat_rows[i].kind == STAT_COUNTER) w->info.former.v[i] += w->info.stats.v[i];
    for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++)
        for (uint32_t i = 0; i < GROUP_STAT_COUNT; i++)
            if (group_stat_rows[i].kind == STAT_COUNTER)
                w->info.former.group[g][i] += w->info.stats.group[g][i];
    memset(&w->info.stats, 0, sizeof w->info.stats);
}

static void
note_death(struct worker *w, const struct death *d, const char *how)
{
    struct death_entry x = { .epoch = w->info.epoch,
                             .pid = w->info.pid,
                             .n_requests = w->requests.n,
                             .n_lines = MIN(w->n_lines, (uint32_t)LOG_LINES) };

    event_log_add(w->d, "death", w->info.name, "pid %d, %s: %s, %s", (int)w->info.pid,
                  death_name(d->cause), how, death_sentence(d->cause));
    snprintf(x.worker, sizeof x.worker, "%s", w->info.name);
    snprintf(x.cause, sizeof x.cause, "%s", death_name(d->cause));
    snprintf(x.how, sizeof x.how, "%s", how);
    process_read_panic(w, &x);
    for (uint32_t i = 0; i < x.n_lines; i++)
        memcpy(x.line[i], w->last_line[(w->n_lines - x.n_lines + i) % LOG_LINES], LOG_LINE);
    event_log_death(w->d, &x);
}

/* super_ops.reap: reads the last records of the ended process, requeues or ends its requests. */
static void
reap(void *arg, const struct death *d)
{
    struct worker *w = arg;
    bool wanted = d->cause == DEATH_DRAINED || d->cause == DEATH_OPERATOR;
    uint64_t kv_bytes;
    char how[96], requeued[48] = "";

    FP(reap_began);
    worker_receive_rest(w);
    process_take_arenas(w);
    process_read_output(w);
    add_up(w);
    read_steps(w);
    describe(d, how, sizeof how);
    if (wanted) {
        process_log(w, LOG_LEVEL_INFO, "pid %d ended, %s", (int)w->info.pid,
                    death_sentence(d->cause));
    } else {
        if (w->requests.n)
            snprintf(requeued, sizeof requeued, "; requeuing %u requests", w->requests.n);
        process_log(w, LOG_LEVEL_ERR, "pid %d died (%s): %s, %s%s", (int)w->info.pid,
                    death_name(d->cause), how, death_sentence(d->cause), requeued);
        note_death(w, d, how);
        for (uint32_t i = w->n_lines - MIN(w->n_lines, (uint32_t)LOG_LINES); i < w->n_lines; i++)
            process_log(w, LOG_LEVEL_DEBUG, "earlier output: %s", w->last_line[i % LOG_LINES]);
    }
    if (!*w->info.why)
        snprintf(w->info.why, sizeof w->info.why, "%s: %s", death_name(d->cause), how);
    FP(reap_drained);
    w->d->events->worker_dead(w, d);
    process_drop_pid(w);
    rank_group_reap(w, d);
    kv_bytes = arenas_bytes(&w->arenas, "kv");
    arenas_after_death(&w->arenas, d, w->d->now);
    if (arenas_given_up(&w->arenas, d) || (d->cause == DEATH_OOM && oom_worker_died(w, kv_bytes)))
        worker_event(w->standby, EV_STOP);
    process_release(w);
    if (!wanted) {
        w->info.restarts++;
        event_log_set_restarts(w->d, w->info.index, w->info.restarts);
    }
}

/* ---- callbacks of supervisor.c */

int
worker_watch(struct worker *w, struct err *e)
{
    sd_event *ev = w->d->event;
    int r = sd_event_add_child(ev, &w->on[ON_EXIT], w->info.pid, WEXITED, on_exit_, w);

    if (r >= 0 && !w->lead)
        r = sd_event_add_io(ev, &w->on[ON_DOORBELL], w->channel.doorbell.fd, DOORBELL_EVENTS,
                            worker_on_doorbell, w);
    if (r >= 0)
        r = sd_event_add_io(ev, &w->on[ON_FD_CHANNEL], w->fd_channel_sock, EPOLLIN, on_fd_channel,
                            w);
    if (r >= 0) r = sd_event_add_io(ev, &w->on[ON_LOG], w->log, EPOLLIN, process_on_log, w);
    /* The exit event has priority: events of other workers could otherwise delay it forever. */
    if (r >= 0) r = sd_event_source_set_priority(w->on[ON_EXIT], SD_EVENT_PRIORITY_NORMAL - 10);
    /* A standby sends no arenas before it has replaced its worker. */
    if (r >= 0 && process_is_standby(w))
        r = sd_event_source_set_enabled(w->on[ON_FD_CHANNEL], SD_EVENT_OFF);
    return r < 0 ? err_set(e, r, "cannot add the descriptors of process %d to the event loop: %s",
                           (int)w->info.pid, strerror(-r))
                 : 0;
}

static int
start(struct worker *w, struct err *e)
{
    static const char *const levels[] = { "err", "warn", "info", "debug" };
    struct worker *place = w->of ? w->of : w;
    struct config *c = w->d->config;
    struct spawn s = {
        .path = w->d->worker_path,
        .name = place->info.name,
        .log_level = levels[c->o.log_level],
        .keys = &c->model[w->info.model].keys,
        .is_standby = w->of != NULL,
        .cgroup_root = c->o.cgroup_root,
        .max_kv = place->max_kv,
        .heritage = { .epoch = ++place->last_epoch },
    };
    int doorbell = -1, fd_channel_sock[2] = { -1, -1 }, r;

    event_log_cache_key(w->d, w->info.model, s.heritage.cache_key);
    w->info.epoch = s.heritage.epoch;
    w->prepare_sent = w->of && standby_may_prepare(w);
    r = channel_make(&w->channel, w->info.index, w->info.epoch, w->d->id, FP_RINGS, &doorbell, e);
    if (r < 0) return r;
    r = fd_channel_pair(fd_channel_sock, e);
    /* Sends the arenas before the spawn, so that the worker finds them in the socket at once. */
    if (r == 0 && w->of) r = standby_share(w, &place->arenas, fd_channel_sock[0], e);
    if (r == 0 && !w->of) r = arenas_give(&w->arenas, fd_channel_sock[0], w->d->now, e);
    if (r >= 0) {
        spawn_pass(&s.heritage, "d", 0, w->channel.d.fd);
        spawn_pass(&s.heritage, "w", 0, w->channel.w.fd);
        spawn_pass(&s.heritage, "doorbell", 0, doorbell);
        spawn_pass(&s.heritage, "fd_channel", 0, fd_channel_sock[1]);
        r = rank_group_start(w, &s, e);
    }
    if (r >= 0) {
        w->info.control = control_channel_open(w, &s.control, &s.token);
        r = spawn_worker(&s, &w->info.pid, &w->log, e);
        FP(spawned);
    }
    rank_group_close_passed(w, &s.heritage);
    close(doorbell);
    if (fd_channel_sock[1] >= 0) close(fd_channel_sock[1]);
    w->fd_channel_sock = fd_channel_sock[0];
    if (r < 0) return r;
    w->alive = true;
    process_store_pid(w);
    r = worker_watch(w, e);
    if (r < 0) {
        kill(w->info.pid, SIGKILL);
        waitpid(w->info.pid, NULL, 0);
    }
    return r;
}

/* Lets the process that w took over from its standby continue; kills the process if that fails. */
static void
continue_standby(struct worker *w)
{
    struct err e;

    if (standby_continue(w, &e) < 0) {
        process_log(w, LOG_LEVEL_WARN, "%s; killing its new process, the former standby", e.text);
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
    if (*w->info.why && w->info.last_death != DEATH_DRAINED && w->info.last_death != DEATH_OPERATOR)
        memcpy(w->info.why_before, w->info.why, sizeof w->info.why);
    w->info.why[0] = 0;
    w->info.load_done = w->info.load_total = 0;
    w->info.device[0] = 0;
    w->warned = w->asked = w->protocol_error = false;
    w->n_records = w->storm_signals = w->storm_records = 0;
    w->spawned_at = w->heartbeat_at = w->storm_at = clock_now();
    w->heartbeat = 0;
    w->deadline = w->discount = 0;
    memset(&w->info.stats, 0, sizeof w->info.stats);
    if (w->steps) step_log_restart(w->steps);
    if (standby_take(w)) {
        continue_standby(w);
        process_log(w, LOG_LEVEL_INFO, "the standby takes over, pid %d, epoch %llu",
                    (int)w->info.pid, (unsigned long long)w->info.epoch);
        return 0;
    }
    r = start(w, &e);
    if (r < 0) {
        process_log(w, LOG_LEVEL_ERR, "%s", e.text);
        snprintf(w->info.why, sizeof w->info.why, "%s", e.text);
        rank_group_end(w);
        process_release(w);
        return r;
    }
    process_log(w, LOG_LEVEL_INFO, "started, pid %d, epoch %llu, model %s", (int)w->info.pid,
                (unsigned long long)w->info.epoch, w->d->config->model[w->info.model].keys.name);
    return 0;
}

void
worker_kill(void *arg, int sig)
{
    struct worker *w = arg;

    if (sig == SIGKILL) rank_group_kill(w);
    /* kill() is safe: the process is not reaped yet, so that no other process has its pid. */
    if (w->alive && kill(w->info.pid, sig) < 0)
        process_log(w, LOG_LEVEL_WARN, "cannot send signal %d to pid %d: %s", sig, (int)w->info.pid,
                    strerror(errno));
}

/* Frees what lagand keeps for a replacement, which a retired worker will not have. */
static void
drop_arenas(struct worker *w)
{
    for (uint32_t k = 0; worker_rank(w, k); k++) arenas_drop(&worker_rank(w, k)->arenas, NULL);
}

static void
op_moved(void *arg, enum super_state from, enum super_state to)
{
    struct worker *w = arg;

    w->info.last_death = w->super.death.cause;
    w->info.last_status = w->super.death.status;
    if (to == SUPER_READY) {
        w->arenas.verify_contents = false; /* the worker has verified the arenas */
    } else if (to == SUPER_BACKOFF) {
        process_log(w, LOG_LEVEL_WARN, "restarting in %.2f s",
                    (double)(w->super.timer - w->d->now) / NSEC_S);
    } else if (to == SUPER_FAILED) {
        process_log(w, LOG_LEVEL_ERR,
                    "failed for good; it is started again only by `laganctl restart %s`",
                    w->info.name);
    } else if (to == SUPER_LOST) {
        process_log(w, LOG_LEVEL_ERR,
                    "pid %d did not exit after SIGKILL; starting no other process on its device",
                    (int)w->info.pid);
        w->d->events->worker_dead(w, &(struct death){ .cause = w->super.suspect });
    }
    standby_worker_state(w, to);
    if (worker_hidden(w)) drop_arenas(w);
    w->d->events->worker_state(w, from, to);
}

static const struct super_ops ops = { worker_spawn, worker_send_drain, worker_kill, reap,
                                      op_moved };

void
worker_take_timeouts(struct worker *w)
{
    w->super.start_timeout = w->d->config->o.start_timeout;
    w->super.drain_timeout = w->d->config->o.shutdown_timeout;
    if (w->standby) worker_take_timeouts(w->standby);
}

void
worker_new_settings(struct worker *w)
{
    w->super.served = w->standby->super.served = false;
    worker_event(w->standby, EV_STOP);
}

void
worker_retire(struct worker *w, bool retired)
{
    w->info.retired = retired;
    if (!retired) worker_new_settings(w);
    worker_event(w, retired ? EV_STOP : EV_START);
    if (worker_hidden(w)) drop_arenas(w);
}

struct worker *
worker_new(struct daemon *d, uint32_t index, uint32_t model, const char *name,
           const struct super_ops *hands)
{
    struct worker *w = calloc(1, sizeof *w);
    uint64_t seed;

    if (!w) return NULL;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) < 0) seed = (uint64_t)clock_now();
    w->d = d;
    w->info.index = w->arenas.worker = index;
    w->info.model = model;
    w->fd_channel_sock = w->log = -1;
    w->channel.d.fd = w->channel.w.fd = w->channel.doorbell.fd = -1;
    w->requests.sending = w->requests.alone = REQUEST_NONE;
    snprintf(w->info.name, sizeof w->info.name, "%s", name);
    super_init(&w->super, hands, w, seed);
    worker_take_timeouts(w);
    return w;
}

int
worker_make(struct daemon *d, uint32_t index, uint32_t model, struct err *e)
{
    char name[16];
    struct worker *w;

    snprintf(name, sizeof name, "w%u", index);
    w = worker_new(d, index, model, name, &ops);
    if (!w) return err_set(e, -ENOMEM, "no host memory for worker %u", index);
    d->worker[index] = w;
    w->steps = calloc(1, sizeof *w->steps);
    if (!w->steps) return err_set(e, -ENOMEM, "no host memory for the steps of worker %u", index);
    w->info.restarts = event_log_restarts(d, index, d->config->model[model].keys.name);
    TRY(rank_group_new(w, e));
    return standby_new(w, e);
}

struct worker *
worker_free(struct worker *w)
{
    if (!w) return NULL;
    worker_end(w);
    w->standby = worker_free(w->standby);
    rank_group_free(w);
    process_release(w);
    arenas_close(&w->arenas);
    free(w->steps);
    free(w);
    return NULL;
}

void
worker_end(struct worker *w)
{
    if (w->standby && w->standby->alive) process_kill(w->standby);
    if (w->standby) rank_group_end(w->standby);
    rank_group_end(w);
    if (!w->alive) return;
    process_kill(w);
    process_drop_pid(w);
    if (w->super.state != SUPER_LOADING) worker_receive_rest(w);
    process_take_arenas(w);
}

void
worker_stop(struct worker *w, nsec drain_timeout)
{
    w->super.drain_timeout = drain_timeout;
    worker_event(w, EV_STOP);
}

void
worker_ready(struct worker *w, uint32_t vocab, const char *device, size_t n)
{
    w->info.vocab = vocab;
    snprintf(w->info.device, sizeof w->info.device, "%.*s", (int)n, device);
    w->info.why_before[0] = 0;
    w->info.start_took = w->d->now - w->spawned_at;
    worker_event(w, EV_READY);
}

void
worker_loading(struct worker *w, uint64_t done, uint64_t total)
{
    w->info.load_done = MIN(done, total);
    w->info.load_total = total;
}

void
worker_event(struct worker *w, enum super_event ev)
{
    if (ev == EV_STOP || ev == EV_RESTART || ev == EV_REPLACE) oom_worker_recovered(w);
    super_event(&w->super, ev, w->d->now);
}

/* ---- heartbeat, deadlines, doorbell storms */

/* Measures starvation only if the process is late, because the measurement reads files of /proc. */
nsec
worker_discount(struct worker *w, nsec now, nsec late)
{
    const struct shm_ctl *c = shm_ctl(&w->channel.w);
    bool owes = w->super.state == SUPER_DYING || w->doorbell_closed_at || w->fd_channel_closed_at;

    if (!w->alive || w->super.state == SUPER_LOST) return late;
    owes = owes || now - w->heartbeat_at >= w->d->config->o.stall_timeout / 4 ||
           (w->deadline &&
            atomic_load_explicit(&c->phase_deadline_ns, memory_order_relaxed) == w->deadline);
    if (owes) return MAX(late, cpu_starvation_since(&w->starved, w->info.pid, now));
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

    /* Time in which lagand or the worker could not run (late) does not count as silence. */
    w->heartbeat_at = MIN(w->heartbeat_at + late, now);
    if (heartbeat != w->heartbeat) {
        if (w->warned) process_log(w, LOG_LEVEL_WARN, "the heartbeat has resumed");
        w->heartbeat = heartbeat;
        w->heartbeat_at = now;
        w->warned = w->asked = false;
    }
    if (deadline != w->deadline) w->discount = 0;
    w->deadline = deadline;
    w->discount += late;
    silent = now - w->heartbeat_at;
    /* Checks the deadline before silence: an overdue step may be why the heartbeat has stopped. */
    if (deadline && now - w->discount > deadline && !rank_group_silent(w, now)) {
        process_broken(w, DEATH_OVERDUE, "a step is %.1f s past its deadline",
                       (double)(now - w->discount - deadline) / NSEC_S);
    } else if (silent >= stall) {
        process_broken(w, DEATH_SILENT, "no heartbeat for %.1f s, with %u requests",
                       (double)silent / NSEC_S, w->requests.n);
    } else if (silent >= stall * 5 / 6 && !w->asked) {
        w->asked = true;
        worker_kill(w, SIGUSR2);
    } else if (silent >= stall / 2 && !w->warned) {
        w->warned = true;
        process_log(w, LOG_LEVEL_WARN, "no heartbeat for %.1f s; killing the process after %.1f s",
                    (double)silent / NSEC_S, (double)stall / NSEC_S);
    }
}

/* Updates info.prefill_rate, from which dispatch estimates the time to compute a prompt again. */
static void
measure_rate(struct worker *w, nsec now)
{
    uint64_t in = w->info.stats.v[STAT_prompt_tokens], more = in - w->prompt_tokens;

    if (in > w->prompt_tokens && more < UINT32_MAX && now > w->rate_at)
        w->info.prefill_rate = MAX(w->info.prefill_rate,
                                   more * NSEC_S / (uint64_t)(now - w->rate_at));
    w->prompt_tokens = in;
    w->rate_at = now;
}

/* Returns true if the process has ended and on_exit_() has not run yet. If no exit event is queued,
 * arms its source again: under a debugger sd-event may see the end before it can be reaped. */
static bool
has_ended(struct worker *w)
{
    if (!w->alive || !process_exited(w)) return false;
    if (sd_event_source_get_pending(w->on[ON_EXIT]) > 0) return true; /* its event is queued */
    sd_event_source_set_enabled(w->on[ON_EXIT], SD_EVENT_OFF);
    sd_event_source_set_enabled(w->on[ON_EXIT], SD_EVENT_ONESHOT);
    return true;
}

/* Reads the stage of a standby from its shared memory, because lagand does not read its rings. */
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
    worker_look(w);
    measure_rate(w, now);
    rank_group_tick(w, now, late);
    if (w->alive) check_heartbeat(w, now, late);
    if (w->alive) worker_check_storm(w, now);
    check_phase(w);
    if (w->super.state == SUPER_READY && now - w->super.ready_at >= LOW_MEMORY_TIME && !w->max_kv)
        oom_worker_recovered(w);
    if (w->doorbell_closed_at && now - w->doorbell_closed_at > DOORBELL_GRACE) {
        process_broken(w, DEATH_CORRUPTION, "closed its doorbell but did not exit within %.1f s",
                       (double)DOORBELL_GRACE / NSEC_S);
    }
    if (w->fd_channel_closed_at &&
        now - w->fd_channel_closed_at > w->d->config->o.stall_timeout + FD_CHANNEL_GRACE) {
        process_broken(w, DEATH_CORRUPTION, "closed its fd channel but did not exit within %.1f s",
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

bool
worker_hidden(const struct worker *w)
{
    return w->info.retired && worker_over(w);
}

bool
worker_returns(const struct worker *w)
{
    bool leaves = w->super.state == SUPER_DRAINING || w->super.state == SUPER_STOPPING;

    return !worker_over(w) && !(leaves && !w->super.restart_wanted);
}

enum super_state
worker_state(const struct worker *w)
{
    return w->super.state;
}

const char *
worker_standby(const struct worker *w)
{
    return standby_stage(w->standby, w->standby->super.state);
}

const struct worker_info *
worker_info(const struct worker *w)
{
    return &w->info;
}

struct daemon *
worker_daemon(const struct worker *w)
{
    return w->d;
}

struct worker_requests *
worker_requests(struct worker *w)
{
    return &w->requests;
}

struct worker *
worker_rank(struct worker *w, uint32_t rank)
{
    if (rank > w->n_others) return NULL;
    return rank ? w->other[rank - 1] : w;
}

struct arenas *
worker_arenas(struct worker *w)
{
    return &w->arenas;
}

const struct step_log *
worker_steps(const struct worker *w)
{
    return w->steps;
}

const struct step_trace *
worker_trace(struct worker *w)
{
    return w->channel.w.base ? shm_trace(&w->channel.w) : NULL;
}
