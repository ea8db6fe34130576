/* serve.c - opens lagand's parts, runs the event loop, stops; see serve.h.
 *
 * sd-event waits for events. After each event one loop iteration polls all parts:
 *
 *     read the response rings -> read client frames -> dispatch requests -> send due messages
 *
 * The loop sleeps only if no work is left and the doorbells of all workers are armed. A "tick"
 * checks heartbeats, deadlines and timeouts every 0.25 s. */
#include "daemon/serve.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/config/runtime_dir.h"
#include "daemon/ledger/histograms.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/quarantine.h"
#include "daemon/net/frontend.h"
#include "daemon/ops/memory_guard.h"
#include "daemon/ops/preflight.h"
#include "daemon/ops/reload.h"
#include "daemon/persist/event_log.h"
#include "daemon/request/deliver.h"
#include "daemon/request/dispatch.h"
#include "daemon/request/kv_watch.h"
#include "daemon/request/lifecycle.h"
#include "daemon/request/receive.h"
#include "daemon/request/worker_calls.h"
#include "daemon/supervise/oom.h"
#include "daemon/supervise/rolling_restart.h"
#include "daemon/supervise/spawn.h"
#include "daemon/supervise/worker.h"
#include "ipc/exit_code.h"

#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>
#include <zmq.h>

#ifndef PACKAGE_VERSION
#include "config.h"
#endif

static const nsec TICK = 250 * NSEC_MS;
static const nsec NSEC_DAY = 86400 * NSEC_S;
static const nsec STOP_TIME = 15 * NSEC_S; /* time for workers to exit after the last request */
static const nsec LATE = NSEC_S;           /* a tick later than this: lagand was not running */
enum { MAX_REQUESTS = 8192 };

struct clockwork { /* timer of the loop */
    struct daemon *d;
    sd_event_source *timer;
    nsec last, status_at; /* time of the last tick; of the next status for systemd */
    char status[160];     /* last status sent to systemd; it is sent again only if it changes */
};

/* ---- stop */

static uint32_t
n_workers_over(const struct daemon *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_workers; i++) n += worker_over(d->worker[i]);
    return n;
}

/* Goes on stopping, in each loop iteration: waits until the open requests have ended, at most until
 * drain_until, then stops the workers, and exits when all of them are down. */
static void
continue_stopping(struct daemon *d)
{
    bool late = d->now >= d->drain_until;

    if (!d->draining || d->leaving) {
        if (d->leaving && n_workers_over(d) == d->n_workers) sd_event_exit(d->event, d->exit_code);
        return;
    }
    if (ledger_counts(d->ledger).open && !late && n_workers_over(d) < d->n_workers) return;
    for (uint32_t i = 0; i < ledger_counts(d->ledger).capacity; i++) {
        struct request *r = ledger_request(d->ledger, i);

        if (r)
            lifecycle_cancel(d, r, LAGAN_E_DRAINING,
                             "lagand is stopping; the request ended after %u generated tokens",
                             request_n_tokens(r));
    }
    deliver_flush(d);
    d->leaving = true;
    /* No request is open now: a worker gets 1 s to exit, or no time if drain_until has passed. */
    for (uint32_t i = 0; i < d->n_workers; i++) worker_stop(d->worker[i], late ? 0 : NSEC_S);
}

static int
on_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *arg)
{
    struct daemon *d = arg;

    (void)s;
    d->now = clock_now();
    if (d->draining) {
        log_warn("second signal %u: exiting without waiting for open requests", si->ssi_signo);
        sd_event_exit(d->event, d->exit_code);
        return 0;
    }
    event_log_add(d, "operator", "", "stop, by signal %u, with %u open requests", si->ssi_signo,
                  ledger_counts(d->ledger).open);
    log_info("signal %u: stopping, %u open requests have %.0f s to finish", si->ssi_signo,
             ledger_counts(d->ledger).open, (double)d->config->o.shutdown_timeout / NSEC_S);
    sd_notifyf(
        0, "STOPPING=1\nSTATUS=stopping\nEXTEND_TIMEOUT_USEC=%llu",
        (unsigned long long)((MIN(d->config->o.shutdown_timeout, NSEC_DAY) + STOP_TIME) / NSEC_US));
    d->draining = true;
    d->drain_until = clock_after(d->now, d->config->o.shutdown_timeout);
    return 0;
}

static int
on_hangup(sd_event_source *s, const struct signalfd_siginfo *si, void *arg)
{
    struct daemon *d = arg;

    (void)s;
    (void)si;
    d->now = clock_now();
    preflight_start(d, NULL, 0, PREFLIGHT_RELOAD);
    return 0;
}

/* ---- status for systemd */

static void
send_status(struct clockwork *k)
{
    struct daemon *d = k->d;
    const struct worker_info *loading = NULL;
    uint32_t n = 0, n_ready = 0;
    char text[sizeof k->status];

    if (d->now < k->status_at || d->draining) return;
    k->status_at = d->now + NSEC_S;
    for (uint32_t i = 0; i < d->n_workers; i++) {
        if (worker_info(d->worker[i])->retired) continue;
        n++;
        n_ready += worker_open(d->worker[i]);
        if (worker_state(d->worker[i]) == SUPER_LOADING) loading = worker_info(d->worker[i]);
    }
    if (loading && !d->announced) {
        sd_notifyf(0, "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=%s loading weights, %llu of %llu MiB",
                   loading->name, (unsigned long long)(loading->load_done >> 20),
                   (unsigned long long)(loading->load_total >> 20));
        return;
    }
    snprintf(text, sizeof text, "STATUS=%s%u of %u workers ready, %u requests, %u of them queued",
             d->rolling ? "reloading, " : "", n_ready, n, ledger_counts(d->ledger).open,
             ledger_counts(d->ledger).queued);
    if (strcmp(text, k->status)) sd_notify(0, text);
    memcpy(k->status, text, sizeof text);
}

/* Every worker has FAILED. If none was ever READY, logs the cause and makes lagand exit. */
static void
all_failed(struct daemon *d)
{
    const struct worker_info *last = worker_info(d->worker[d->n_workers - 1]);

    if (d->was_ready || d->draining) return;
    d->exit_code = last->last_death != DEATH_CONFIG          ? EXIT_UNAVAILABLE
                   : last->last_status == EXIT_NO_PERMISSION ? EXIT_NO_PERMISSION
                                                             : EXIT_CONFIG;
    log_err("no worker could be started; exiting with %d", d->exit_code);
    sd_notifyf(0, "STATUS=no worker could be started: %s\nEXIT_STATUS=%d", last->why, d->exit_code);
    d->draining = true;
    d->drain_until = d->now;
}

/* Ends the queued requests of a model if all workers of the model are down, failed or lost. */
static void
end_orphans(struct daemon *d, uint32_t model, uint16_t code, const char *why)
{
    for (uint32_t i = 0; i < d->n_workers; i++)
        if (worker_info(d->worker[i])->model == model && !worker_over(d->worker[i])) return;
    for (uint32_t i = 0; i < ledger_counts(d->ledger).capacity; i++) {
        struct request *r = ledger_request(d->ledger, i);

        if (r && request_state(r) == REQUEST_QUEUED && request_info(r).model == model)
            lifecycle_end(d, r, code, "no worker runs this model: %.150s", why);
    }
}

static void
on_worker_state(struct worker *w, enum super_state from, enum super_state to)
{
    struct daemon *d = worker_daemon(w);
    const struct worker_info *f = worker_info(w);
    uint32_t failed = 0;

    log_debug("worker %s: %s -> %s", f->name, super_state_name(from), super_state_name(to));
    event_log_add(d, "worker", f->name, "%s -> %s", super_state_name(from), super_state_name(to));
    if (to == SUPER_READY) {
        d->was_ready = true;
        if (!d->announced) sd_notify(0, "READY=1");
        d->announced = true;
    }
    if (!worker_over(w)) return;
    for (uint32_t i = 0; i < d->n_workers; i++)
        failed += worker_state(d->worker[i]) == SUPER_FAILED || worker_hidden(d->worker[i]);
    end_orphans(d, f->model,
                f->last_death == DEATH_LOST  ? LAGAN_E_DEVICE_LOST
                : f->last_death == DEATH_OOM ? LAGAN_E_OUT_OF_MEMORY
                                             : LAGAN_E_WORKER_LOST,
                *f->why ? f->why : super_state_name(to));
    if (failed == d->n_workers) all_failed(d);
}

static void
on_worker_dead(struct worker *w, const struct death *death)
{
    dispatch_worker_lost(w, death);
    worker_calls_lost(w);
    kv_watch_lost(w);
    /* Other workers get the requests now, because w is started again next, which takes time. */
    dispatch(worker_daemon(w));
}

static const struct daemon_events events = {
    .frame = messages_frame,
    .client_disconnected = deliver_client_disconnected,
    .client_dropped = deliver_client_dropped,
    .worker_state = on_worker_state,
    .worker_record = receive_record,
    .worker_dead = on_worker_dead,
    .control_reply = worker_calls_control_done,
};

/* ---- timers */

/* Returns when the next tick is due. Events of a busy loop do not postpone it. */
static nsec
next_wake(const struct clockwork *k)
{
    const struct daemon *d = k->d;
    nsec at = k->last + TICK;

    for (uint32_t i = 0; i < d->n_workers; i++) at = MIN(at, worker_timer(d->worker[i]));
    if (d->retry_at) at = MIN(at, d->retry_at);
    at = MIN(at, d->look_at);
    return MAX(at, k->last + NSEC_MS);
}

/* Runs the periodic checks. The loop calls it between two events, not as the handler of a timer
 * event, because exit events of workers have a higher priority and could delay such an event. Reads
 * all frames of clients before deliver_tick() checks their idle timeouts. */
static void
tick(struct clockwork *k)
{
    struct daemon *d = k->d;
    bool more = false;
    nsec late;

    d->now = clock_now();
    late = d->now - k->last > TICK + LATE ? d->now - k->last - TICK : 0;
    if (late)
        log_warn("lagand did not run for %.1f s (host suspended or overloaded); extending all "
                 "timeouts by %.1f s",
                 (double)late / NSEC_S, (double)late / NSEC_S);
    k->last = d->now;
    for (uint32_t i = 0; i < d->n_workers; i++) worker_tick(d->worker[i], d->now, late);
    frontend_look(d);
    frontend_pump(d, &more);
    deliver_tick(d, d->now, late);
    unix_server_tick(d->frontend->local, d->now);
    d->look_at = memory_guard_look(d);
    worker_calls_tick(d, d->now);
    send_status(k);
}

static int
on_time(sd_event_source *s, uint64_t usec, void *arg)
{
    (void)s;
    (void)usec;
    (void)arg;
    return 0; /* the timer only wakes the loop, which calls tick() */
}

static void
set_timer(struct clockwork *k)
{
    sd_event_source_set_time(k->timer, (uint64_t)(next_wake(k) / NSEC_US));
    sd_event_source_set_enabled(k->timer, SD_EVENT_ONESHOT);
}

/* ---- loop */

static bool
run_iteration(struct daemon *d)
{
    bool more = false;

    for (uint32_t i = 0; i < d->n_workers; i++) more |= worker_receive(d->worker[i]);
    frontend_pump(d, &more);
    dispatch(d);
    more |= deliver_flush(d);
    /* Reads again, because a send over tcp may make libzmq receive frames without an edge on its
     * descriptor. The next loop iteration dispatches the requests in them. */
    if (frontend_pump(d, &more)) more = true;
    if (d->draining) continue_stopping(d);
    rolling_restart_step(d);
    unix_server_flush(d->frontend->local);
    return more;
}

/* Arms the doorbells of all workers. Returns false if a worker has written records meanwhile. */
static bool
sleep_all(struct daemon *d)
{
    bool may = true;

    for (uint32_t i = 0; i < d->n_workers; i++) may &= worker_sleep(d->worker[i]);
    return may;
}

static int
loop(struct daemon *d)
{
    struct clockwork k = { .d = d, .last = d->now };
    bool more = true;
    int r, code;

    r = sd_event_add_time(d->event, &k.timer, CLOCK_MONOTONIC, 0, NSEC_MS / NSEC_US, on_time, &k);
    if (r < 0) return r;
    while (sd_event_get_state(d->event) != SD_EVENT_FINISHED) {
        if (d->now >= next_wake(&k)) {
            tick(&k);
            more = true; /* the tick may have made work */
        }
        if (!more) more = !sleep_all(d);
        set_timer(&k);
        r = sd_event_run(d->event, more ? 0 : UINT64_MAX);
        if (r < 0) break;
        for (uint32_t i = 0; i < d->n_workers; i++) worker_wake(d->worker[i]);
        d->now = clock_now();
        more = run_iteration(d);
        if (d->reexec_requested && sd_event_get_exit_code(d->event, &code) == -ENODATA) {
            log_info("re-exec: passing %u requests and the workers' memory to the new lagand",
                     ledger_counts(d->ledger).open);
            rolling_restart_notify();
            sd_event_exit(d->event, 0);
        }
        FP(loop_done);
    }
    sd_event_source_unref(k.timer);
    return r < 0 ? r : 0;
}

/* ---- open and close */

static int
open_event(struct daemon *d, struct err *e)
{
    sigset_t mask;
    int r;

    /* Blocks the signals, because sd-event reads them from a signalfd. A SIGTERM that comes before
     * the event loop reads the signalfd stays pending and is not lost. */
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGHUP);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    r = sd_event_new(&d->event);
    if (r >= 0) r = sd_event_add_signal(d->event, NULL, SIGTERM, on_signal, d);
    if (r >= 0) r = sd_event_add_signal(d->event, NULL, SIGINT, on_signal, d);
    if (r >= 0) r = sd_event_add_signal(d->event, NULL, SIGHUP, on_hangup, d);
    /* sd-event notifies systemd's watchdog at half of its period, while the loop runs. */
    if (r >= 0) r = sd_event_set_watchdog(d->event, true);
    return r < 0 ? err_set(e, r, "cannot create the event loop: %s", strerror(-r)) : 0;
}

static void
note_start(struct daemon *d)
{
    long long former = event_log_previous_pid(d->event_log), pid = getpid();
    char after[40] = "";

    if (former && former != pid) snprintf(after, sizeof after, ", after pid %lld", former);
    event_log_add(d, "lagand", "", "%s, version " PACKAGE_VERSION ", pid %lld%s",
                  former == pid ? "re-executed" : "started", pid, after);
}

static int
open_daemon(struct daemon *d, struct err *e)
{
    static struct fdstore given; /* descriptors from systemd or the previous lagand */
    uint64_t seed[2];

    if (getrandom(d->id, sizeof d->id, 0) < 0 || getrandom(seed, sizeof seed, 0) < 0)
        return err_set(e, -errno, "cannot get random bytes (getrandom): %s", strerror(errno));
    d->now = d->started = clock_now();
    msgpack_sbuffer_init(&d->out);
    TRY(open_event(d, e));
    if (*d->config->o.worker)
        memcpy(d->worker_path, d->config->o.worker, sizeof d->worker_path);
    else
        TRY(spawn_find(d->worker_path, sizeof d->worker_path, e));
    reload_note_program(d);
    d->ledger = ledger_new(MAX_REQUESTS, seed[0]);
    d->ledger_log = ledger_log_new(d->ledger, d->config);
    d->quarantine = quarantine_new();
    d->kv_watch = kv_watch_new(d->config);
    d->sessions = sessions_new(seed[1]);
    d->calls = worker_calls_new();
    d->histograms = calloc(1, sizeof *d->histograms);
    d->memory_guard = calloc(1, sizeof *d->memory_guard);
    d->oom = oom_watch_new(d->config->o.cgroup_root);
    fdstore_read(&given);
    d->event_log = event_log_new(fdstore_take(&given, "history"));
    d->zmq = zmq_ctx_new();
    if (!d->ledger || !d->ledger_log || !d->quarantine || !d->kv_watch || !d->sessions ||
        !d->calls || !d->histograms || !d->memory_guard || !d->oom || !d->event_log || !d->zmq)
        return err_set(e, -ENOMEM, "no host memory for lagand's tables of requests and clients");
    if (!event_log_previous_pid(d->event_log)) fdstore_put("history", event_log_fd(d->event_log));
    note_start(d);
    TRY(listen_open(d, &given, e));
    for (uint32_t m = 0; m < d->config->n_models; m++) {
        d->fair_queues[m].quantum = d->config->model[m].keys.fairness_quantum;
        for (uint32_t i = 0; i < d->config->model[m].keys.workers; i++) {
            TRY(worker_make(d, d->n_workers, m, e));
            d->n_workers++;
        }
    }
    d->look_at = memory_guard_look(d); /* the first call measures the memory of an idle lagand */
    reexec_take(d, &given);
    return 0;
}

static void
close_daemon(struct daemon *d)
{
    preflight_end(d);
    for (uint32_t i = 0; i < d->n_workers; i++) d->worker[i] = worker_free(d->worker[i]);
    listen_close(d);
    if (d->zmq) zmq_ctx_term(d->zmq); /* waits for unsent messages at most ZMQ_LINGER */
    d->sessions = sessions_free(d->sessions);
    d->ledger_log = ledger_log_free(d->ledger_log);
    d->ledger = ledger_free(d->ledger);
    d->quarantine = quarantine_free(d->quarantine);
    d->calls = worker_calls_free(d->calls);
    d->kv_watch = kv_watch_free(d->kv_watch);
    free(d->memory_guard);
    free(d->oom);
    free(d->histograms);
    d->event_log = event_log_free(d->event_log);
    d->event = sd_event_unref(d->event);
    msgpack_sbuffer_destroy(&d->out);
}

int
serve(struct config *c, char **argv, struct err *e)
{
    static struct runtime_dir runtime;
    static struct daemon d = { .events = &events, .runtime = &runtime };
    struct handover_state *handover_state = NULL;
    int r;

    d.config = c;
    d.argv = argv;
    r = runtime_dir_open(&runtime, c->o.runtime_dir, e);
    if (r < 0) return r;
    runtime.made_dir |= c->o.remove_runtime_dir;
    r = open_daemon(&d, e);
    if (r == 0) {
        log_info("serving at ipc://%s/api.sock, %u workers", runtime.dir, d.n_workers);
        for (uint32_t i = 0; i < d.n_workers; i++) worker_event(d.worker[i], EV_START);
        r = loop(&d);
        if (r < 0) err_set(e, r, "the event loop failed: %s", strerror(-r));
    }
    if (r == 0 && d.reexec_requested) {
        handover_state = reexec_prepare(&d);
        if (!handover_state) r = err_set(e, -ENOMEM, "no host memory for the handover state");
    }
    close_daemon(&d);
    runtime_dir_close(&runtime);
    if (handover_state) return reexec_exec(handover_state, argv, e);
    return r < 0 ? r : d.exit_code;
}
