/* dispatch.c - sends queued requests to workers, and queues them again when a worker has ended.
 *
 * lagand writes SUBMIT records to a worker's request ring; a long SUBMIT is split into fragments.
 * SUBMIT and TEXT leave CANCEL_SPARE bytes free, so that a CANCEL fits into a full ring. */
#include "daemon/request/dispatch.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/quarantine.h"
#include "daemon/ledger/request.h"
#include "daemon/request/accounting.h"
#include "daemon/request/admission.h"
#include "daemon/request/deliver.h"
#include "daemon/request/kv_watch.h"
#include "daemon/request/lifecycle.h"
#include "daemon/request/worker_notify.h"
#include "ipc/ring.h"
#include "route/route.h"

/* REQUESTS_AHEAD: sequences that a worker gets beyond its slots. STAY: after a restart of lagand,
 * in which all workers start, a request is kept for its previous worker this long. */
enum { CANCEL_SPARE = 64 * SHM_REC_ALIGN, REQUESTS_AHEAD = 256 };
static const nsec STAY = 10 * NSEC_S;

/* Writes as many fragments of the SUBMIT in progress as fit into the request ring. */
static void
send_fragments(struct worker *w, const struct request *r)
{
    uint32_t most = worker_max_record(w), bytes = request_record_bytes(r);
    struct worker_requests *q = worker_requests(w);

    while (q->sent_bytes < bytes) {
        uint32_t n = MIN(bytes - q->sent_bytes, most);
        uint16_t flags = q->sent_bytes + n < bytes ? RING_MORE : 0;
        void *to;

        if (worker_reserve(w, REC_SUBMIT, flags, n, CANCEL_SPARE, &to) < 0) break;
        request_record(r, q->sent_bytes, to, n);
        q->sent_bytes += n;
    }
    if (q->sent_bytes == bytes) q->sending = REQUEST_NONE;
    worker_publish(w);
}

static void
start_sending(struct worker *w, struct request *r, uint64_t found)
{
    struct worker_requests *q = worker_requests(w);
    struct daemon *d = worker_daemon(w);

    request_move(d->ledger, r, REQUEST_DISPATCHED);
    fair_queue_take(&d->fair_queues[r->terms.model], r->fair_tag);
    r->dispatch.worker = worker_info(w)->index;
    r->dispatch.held = true;
    r->dispatch.home = 0;
    r->submit->deadline_ns = r->terms.deadline == NSEC_NEVER ? 0 : r->terms.deadline;
    q->n++;
    q->n_seqs += request_n_seqs(r);
    r->dispatch.load = r->accounting.n_tokens - MIN(found, r->accounting.n_tokens);
    q->tokens += r->dispatch.load;
    if (quarantine_is_suspect(r)) q->alone = r->index;
    q->sending = r->index;
    q->sent_bytes = 0;
    worker_notify_dispatched(r);
    FP(relay_giving);
    ledger_save_state(d->ledger_log, r);
    send_fragments(w, r);
}

void
dispatch_release(struct worker *w, struct request *r)
{
    struct worker_requests *q = worker_requests(w);

    worker_notify_clear(w, r);
    r->dispatch.held = false;
    q->n--;
    q->n_seqs -= request_n_seqs(r);
    q->tokens -= r->dispatch.load;
    if (q->alone == r->index) q->alone = REQUEST_NONE;
}

/* Returns true if w may get a request: it serves, has no partly written SUBMIT, runs no suspect. */
static bool
is_free(const struct daemon *d, struct worker *w)
{
    const struct worker_requests *q = worker_requests(w);

    return worker_open(w) && q->sending == REQUEST_NONE &&
           (q->alone == REQUEST_NONE ||
            !quarantine_is_suspect(ledger_request(d->ledger, q->alone)));
}

static void
fill_routes(struct daemon *d, struct route_worker *t)
{
    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w = d->worker[i];
        const struct worker_requests *q = worker_requests(w);

        t[i] = (struct route_worker){
            .open = is_free(d, w),
            .model = worker_info(w)->model,
            .n_seqs = q->n_seqs,
            .max_seqs = d->facts[worker_info(w)->model].n_slots + REQUESTS_AHEAD,
            .tokens = q->tokens,
            .comes = !worker_over(w) && worker_state(w) != SUPER_BACKOFF,
        };
    }
}

/* Returns true if at least two workers of the model have capacity: there is a choice. */
static bool
may_choose(const struct daemon *d, const struct route_worker *t, uint32_t model)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_workers; i++)
        n += t[i].open && t[i].model == model && t[i].n_seqs < t[i].max_seqs;
    return n > 1;
}

/* Selects a worker by load and by the tokens of r that the workers have in their prefix caches;
 * leaves the latter in t[].found. */
static uint32_t
pick(struct daemon *d, struct route_worker *t, const struct request *r)
{
    uint32_t worker[MAX_WORKERS], n = 0;
    uint64_t found[MAX_WORKERS];

    for (uint32_t i = 0; i < d->n_workers; i++) t[i].found = 0;
    if (may_choose(d, t, r->terms.model)) n = kv_watch_find(d, r, worker, found, MAX_WORKERS);
    for (uint32_t i = 0; i < n; i++) t[worker[i]].found = found[i];
    return route_pick(t, d->n_workers, r->terms.model);
}

/* Returns the index of the worker for r. ROUTE_WAIT: r stays queued, because its previous worker
 * has its KV and is starting; ROUTE_NONE: no worker of the model accepts a request. */
static uint32_t
choose(struct daemon *d, struct route_worker *t, const struct request *r)
{
    if (!r->dispatch.home || d->now >= r->dispatch.home_until) return pick(d, t, r);
    return route_home(t, d->n_workers, r->terms.model, r->dispatch.home - 1);
}

/* Checks r against its model's facts, which may have been unknown at ACCEPT. False: r has ended. */
static bool
check_model(struct daemon *d, struct request *r)
{
    const struct model_facts *f = &d->facts[r->terms.model];
    struct err e;
    int k;

    accounting_recount(d, r);
    k = admission_fits(f, r->submit, d->config->o.tensor_bytes, &e);
    if (!k)
        k = admission_fits_done(f, r->outputs.token.p, request_n_tokens(r), outputs_longest(r), &e);
    if (k) {
        lifecycle_end(d, r, (uint16_t)k, "%s", e.text);
    } else if (quarantine_is_poisoned(d->quarantine, r->terms.model, r->submit, d->now)) {
        lifecycle_end(d, r, LAGAN_E_POISONED,
                      "three workers died running this prompt; it is refused for 10 minutes");
        k = -1;
    }
    return k == 0;
}

static void
send_to(struct daemon *d, struct route_worker *t, uint32_t i, struct request *r)
{
    struct worker *w = d->worker[i];
    const struct worker_requests *q = worker_requests(w);

    kv_watch_sent(w, r, t[i].found);
    start_sending(w, r, t[i].found);
    t[i].n_seqs = q->n_seqs;
    t[i].tokens = q->tokens;
    t[i].open = is_free(d, w);
}

/* Sends each queued suspect to a worker without requests. If there is none and no worker of the
 * model is about to start, the least loaded worker gets no request until it is idle. */
static void
dispatch_suspects(struct daemon *d, struct route_worker *t)
{
    struct request *next;

    for (struct request *r = ledger_next_queued(d->ledger, NULL); r; r = next) {
        uint32_t empty = ROUTE_NONE, i = route_pick(t, d->n_workers, r->terms.model);
        bool starts = false;

        next = ledger_next_queued(d->ledger, r);
        if (!quarantine_is_suspect(r)) continue;
        for (uint32_t k = 0; k < d->n_workers; k++) {
            bool of_model = t[k].model == r->terms.model;

            if (of_model && t[k].open && !t[k].n_seqs) empty = k;
            starts |= of_model && !worker_open(d->worker[k]) && !worker_over(d->worker[k]);
        }
        if (empty != ROUTE_NONE) {
            if (check_model(d, r)) send_to(d, t, empty, r);
        } else if (i != ROUTE_NONE && !starts) {
            t[i].open = false;
        }
    }
}

void
dispatch(struct daemon *d)
{
    struct route_worker table[MAX_WORKERS];
    struct request *r, *next;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct worker_requests *q = worker_requests(d->worker[i]);

        if (q->n_notices_due) worker_notify_flush(d->worker[i]);
        if (q->sending != REQUEST_NONE)
            send_fragments(d->worker[i], ledger_request(d->ledger, q->sending));
    }
    ledger_save_new(d->ledger_log);
    if (!ledger_counts(d->ledger).queued) return;
    fill_routes(d, table);
    if (d->quarantine->n_suspects) dispatch_suspects(d, table);
    for (r = ledger_next_queued(d->ledger, NULL); r; r = next) {
        uint32_t i = choose(d, table, r);

        next = ledger_next_queued(d->ledger, r);
        if (quarantine_is_suspect(r) || i == ROUTE_WAIT) continue;
        if (i == ROUTE_NONE) {
            if (d->n_workers == 1 || d->config->n_models == 1) return;
            continue; /* the next request may have a model whose worker is open to requests */
        }
        if (check_model(d, r)) send_to(d, table, i, r);
    }
}

/* Queues r again after its worker has ended. r continues after its received tokens: at its worker's
 * replacement, which adopts its KV, if route_stays() expects that to be faster, else anywhere. */
static void
requeue(struct worker *w, struct request *r, const struct death *death)
{
    const struct worker_info *f = worker_info(w);
    struct daemon *d = worker_daemon(w);
    uint32_t n_received = r->outputs.n_received;

    if (death->adopt_kv && n_received &&
        route_stays(f->start_took, r->n_prompt_tokens + n_received, f->prefill_rate)) {
        r->dispatch.home = f->index + 1;
        r->dispatch.home_until = d->now + 2 * f->start_took;
    }
    outputs_restart(r);
    if (!n_received) deliver_restart(d, r);
    r->dispatch.resumed++;
    request_move(d->ledger, r, REQUEST_QUEUED);
    ledger_save_state(d->ledger_log, r);
}

/* Decides what happens to r when its worker w has ended: r ends, or requeue() queues it again. */
static void
survive(struct worker *w, struct request *r, const struct death *death, bool named)
{
    struct daemon *d = worker_daemon(w);
    enum quarantine_verdict v = quarantine_fault(d->quarantine, r, death->fault, named);
    const char *cause = death_name(death->cause);
    uint32_t n = request_n_tokens(r);

    if (r->terms.no_resume) {
        lifecycle_end(d, r, LAGAN_E_WORKER_LOST,
                      "worker %s died (%s) after %u tokens of this request, and resume is false",
                      worker_info(w)->name, cause, n);
    } else if (v == QUARANTINE_POISONED) {
        log_warn("request %llu is poisoned: three workers died while running it; requests with the "
                 "same prompt are refused for 10 minutes",
                 (unsigned long long)r->id);
        quarantine_poison(d->quarantine, r->terms.model, r->submit, d->now);
        lifecycle_end(d, r, LAGAN_E_POISONED, "three workers died (%s) running this request",
                      cause);
    } else if (v == QUARANTINE_LOST) {
        lifecycle_end(d, r, death->cause == DEATH_OOM ? LAGAN_E_OUT_OF_MEMORY : LAGAN_E_WORKER_LOST,
                      "%u workers died (%s) before they generated another token of this request",
                      r->suspicion.n_stuck, cause);
    } else if (!lifecycle_finish_complete(d, r)) {
        requeue(w, r, death);
    }
}

void
dispatch_worker_lost(struct worker *w, const struct death *death)
{
    static struct fault_trace trace; /* 55 KiB; lagand has one thread */
    struct worker_requests *q = worker_requests(w);
    struct daemon *d = worker_daemon(w);
    struct request *r;

    fault_trace_read(&trace, death->fault ? worker_trace(w) : NULL);
    q->alone = REQUEST_NONE;
    for (uint32_t at = 0; q->n && (r = ledger_next(d->ledger, &at));) {
        if (!r->dispatch.held || r->dispatch.worker != worker_info(w)->index) continue;
        dispatch_release(w, r);
        if (r->state != REQUEST_ENDED) {
            survive(w, r, death, fault_trace_has(&trace, r->id));
        } else {
            lifecycle_settle(d, r);
        }
    }
    check(q->n == 0 && q->n_seqs == 0 && q->tokens == 0 && q->n_notices_due == 0);
    q->sending = REQUEST_NONE;
}

uint32_t
dispatch_restore(struct daemon *d)
{
    struct request *r;
    uint32_t n = 0;

    for (uint32_t at = 0; (r = ledger_next(d->ledger, &at)); n++) {
        if (r->retained) continue;
        r->dispatch.home_until = d->now + STAY;
        r->dispatch.resumed += r->outputs.n_received > 0;
        deliver_restore(d, r);
        quarantine_restored(d->quarantine, r);
        accounting_reserve(d, r);
        if (r->terms.no_resume && r->dispatch.home)
            lifecycle_end(d, r, LAGAN_E_WORKER_LOST, "lagand was restarted, and resume is false");
        else
            lifecycle_finish_complete(d, r);
    }
    return n;
}
