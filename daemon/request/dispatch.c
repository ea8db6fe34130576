/* dispatch.c - see dispatch.h. Down: dispatch, fragments, cancels. The other way is relay_up.c.
 *
 * D is ours to fill and the worker's to empty. SUBMIT and TEXT leave CANCEL_SPARE bytes, so that a
 * cancel finds room in a ring that requests have filled.
 */
#include "daemon/request/dispatch.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/quarantine.h"
#include "daemon/request/admission.h"
#include "daemon/request/deliver.h"
#include "ipc/msg.h"
#include "route/route.h"

#include <errno.h>
#include <string.h>

enum { CANCEL_SPARE = 64 * SHM_REC_ALIGN, REQUESTS_AHEAD = 256 };

/* -EBADMSG from a ring is the worker's doing. */
static int
reserved(struct worker *w, int r)
{
    if (r == -EAGAIN) w->full = true;
    if (r == -EBADMSG) {
        worker_broken(w, DEATH_CORRUPTION, "request ring: %s", ring_why(&w->link.out));
    }
    return r;
}

/* The next piece of the request under way, as many as fit. 1: all of it is in the ring. */
static int
send_pieces(struct worker *w, struct request *r)
{
    uint32_t most = (w->link.out.max_rec - RING_HEADER) & ~(uint32_t)(SHM_REC_ALIGN - 1);

    uint32_t bytes = request_record_bytes(r);

    while (w->sent_bytes < bytes) {
        uint32_t n = MIN(bytes - w->sent_bytes, most);
        bool more = w->sent_bytes + n < bytes;
        void *to;
        int k = ring_reserve(&w->link.out, REC_SUBMIT, more ? RING_MORE : 0, n, CANCEL_SPARE, &to);

        if (k < 0) {
            link_publish(&w->link);
            return reserved(w, k);
        }
        request_record(r, w->sent_bytes, to, n);
        w->sent_bytes += n;
    }
    w->sending = REQUEST_NONE;
    link_publish(&w->link);
    return 1;
}

static void
give(struct worker *w, struct request *r)
{
    struct ledger *l = w->d->ledger;

    request_move(l, r, REQUEST_DISPATCHED);
    turns_take(&w->d->turns[r->model], r->turn);
    r->worker = w->index;
    r->held = true;
    r->submit->deadline_ns = r->deadline == NSEC_NEVER ? 0 : r->deadline;
    w->n_rows++;
    w->n_seqs += request_n_seqs(r);
    w->tokens += r->cost;
    if (quarantine_is_suspect(r)) w->alone = r->index;
    w->sending = r->index;
    w->sent_bytes = 0;
    r->home = 0;
    r->pause_told = r->paused;
    FP(relay_giving);
    ledger_save_state(w->d, r);
    send_pieces(w, r);
}

/* What found no room when it was to be said. */
static void
send_words(struct worker *w)
{
    for (uint32_t i = 0; w->n_words_due && i < ledger_capacity(w->d->ledger); i++) {
        struct request *r = ledger_request(w->d->ledger, i);
        bool cancel, pause;

        if (!r || !r->held || r->worker != w->index) continue;
        cancel = r->cancel_due, pause = r->pause_due;
        worker_notify_clear(w, r);
        if (cancel) worker_notify_cancel(w, r, r->cancel_reason);
        if (pause) worker_notify_suspend(w, r);
        if (r->cancel_due || r->pause_due) return;
    }
}

static void
fill_routes(struct daemon *d, struct route_worker *t)
{
    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w = d->worker[i];

        t[i] = (struct route_worker){
            .open = worker_open(w) && w->sending == REQUEST_NONE && w->alone == REQUEST_NONE &&
                    !w->full,
            .model = w->model,
            .rows = w->n_seqs, /* each takes a place in the worker, which has some more */
            .max_rows = d->facts[w->model].n_seats + REQUESTS_AHEAD,
            .tokens = w->tokens,
            .comes = !worker_over(w) && w->super.state != SUPER_BACKOFF,
        };
    }
}

/* Who runs it; ROUTE_WAIT: its own worker soon. */
static uint32_t
choose(const struct daemon *d, const struct route_worker *t, const struct request *r)
{
    if (!r->home || d->now >= r->stay_until) return route_pick(t, d->n_workers, r->model);
    return route_home(t, d->n_workers, r->model, r->home - 1);
}

/* The most that any of its outputs has said: each has the model's length for itself. */
static uint32_t
longest(const struct request *r)
{
    uint32_t most = 0;

    if (!r->out) return request_n_tokens(r);
    for (uint32_t i = 0; i < r->submit->n; i++) most = MAX(most, r->out[i].n_said);
    return most;
}

/* May it be run at all? What was accepted before anything was known of the model is looked at again. */
static bool
may_run(struct daemon *d, struct request *r)
{
    struct err e;
    int k;

    accounting_recount(d, r);
    k = admission_fits(&d->facts[r->model], r->submit, d->config->o.tensor_bytes, &e);

    if (!k)
        k = admission_fits_done(&d->facts[r->model], r->token.p, request_n_tokens(r), longest(r),
                                &e);
    if (k) {
        lifecycle_end(d, r, (uint16_t)k, "%s", e.text);
    } else if (quarantine_is_poisoned(&d->poisons, r->model, r->submit, d->now)) {
        lifecycle_end(d, r, LAGAN_E_POISONED, "a request with this prompt has killed workers");
        k = -1;
    }
    return k == 0;
}

static void
give_to(struct daemon *d, struct route_worker *t, uint32_t i, struct request *r)
{
    struct worker *w = d->worker[i];

    give(w, r);
    t[i].rows = w->n_seqs;
    t[i].tokens = w->tokens;
    t[i].open = w->sending == REQUEST_NONE && w->alone == REQUEST_NONE && worker_open(w);
}

/* Suspects first, each alone. While one waits and no worker of its model is about to start, the one
 * with the least to do takes nothing more. */
static void
dispatch_suspects(struct daemon *d, struct route_worker *t)
{
    struct request *next;

    for (struct request *r = ledger_next_queued(d->ledger, NULL); r; r = next) {
        uint32_t empty = ROUTE_NONE, i = route_pick(t, d->n_workers, r->model);
        bool starts = false;

        next = ledger_next_queued(d->ledger, r);
        if (!quarantine_is_suspect(r)) continue;
        for (uint32_t k = 0; k < d->n_workers; k++) {
            bool of_model = t[k].model == r->model;

            if (of_model && t[k].open && !t[k].rows) empty = k;
            starts |= of_model && !worker_open(d->worker[k]) && !worker_over(d->worker[k]);
        }
        if (empty != ROUTE_NONE) {
            if (may_run(d, r)) give_to(d, t, empty, r);
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
        struct worker *w = d->worker[i];

        w->full = false;
        if (!w->alive || w->super.suspect != DEATH_NONE) continue;
        if (w->n_words_due) send_words(w);
        if (w->sending != REQUEST_NONE) send_pieces(w, ledger_request(d->ledger, w->sending));
    }
    ledger_save_new(d);
    if (!ledger_n_queued(d->ledger)) return;
    fill_routes(d, table);
    if (d->n_suspects) dispatch_suspects(d, table);
    for (r = ledger_next_queued(d->ledger, NULL); r; r = next) {
        uint32_t i = choose(d, table, r);

        next = ledger_next_queued(d->ledger, r);
        if (quarantine_is_suspect(r) || i == ROUTE_WAIT) continue;
        if (i == ROUTE_NONE) {
            if (d->n_workers == 1 || d->config->n_models == 1) return;
            continue; /* another model's worker may have room */
        }
        if (may_run(d, r)) give_to(d, table, i, r);
    }
}

/* A worker forgets a word about a request it does not have yet: so after the last piece. false: later. */
static bool
say(struct worker *w, const struct request *r, uint16_t type, uint32_t flags)
{
    struct rec_row rec = { .row = r->index, .gen = r->gen, .flags = flags };
    void *to;
    int k = w->sending == r->index ? -EAGAIN
                                   : ring_reserve(&w->link.out, type, 0, sizeof rec, 0, &to);

    if (k == -EBADMSG) reserved(w, k);
    if (k < 0) return false;
    memcpy(to, &rec, sizeof rec);
    link_publish(&w->link);
    return true;
}

void
worker_notify_cancel(struct worker *w, struct request *r, uint16_t reason)
{
    if (!w->alive || r->cancel_due) return;
    r->cancel_reason = reason;
    if (say(w, r, REC_CANCEL, reason)) return;
    r->cancel_due = true;
    w->n_words_due++;
}

void
worker_notify_suspend(struct worker *w, struct request *r)
{
    if (!w->alive || r->pause_due || r->paused == r->pause_told) return;
    if (say(w, r, REC_PAUSE, r->paused)) {
        r->pause_told = r->paused;
        return;
    }
    r->pause_due = true;
    w->n_words_due++;
}

void
worker_notify_clear(struct worker *w, struct request *r)
{
    w->n_words_due -= (uint32_t)r->cancel_due + (uint32_t)r->pause_due;
    r->cancel_due = r->pause_due = false;
}

void
worker_notify_drain(struct worker *w)
{
    void *to;
    int k = ring_reserve(&w->link.out, REC_DRAIN, 0, 8, 0, &to);

    if (k < 0) {
        /* A ring this full is not being read; the drain's deadline ends it. */
        log_warn("worker %s: its request ring is full, it cannot be told to drain", w->name);
        return;
    }
    memset(to, 0, 8);
    link_publish(&w->link);
}

/* Back into the queue, to go on from what has been said: with a sibling at once, or, if that is sooner,
 * with the next one of its own worker, which has its KV. */
static void
send_back(struct worker *w, struct request *r, const struct death *death)
{
    struct daemon *d = w->d;

    if (death->adopt_kv && r->n_said &&
        route_stays(w->start_took, r->prompt_cost + r->n_said, w->rate)) {
        r->home = w->index + 1;
        r->stay_until = d->now + 2 * w->start_took;
    }
    if (!r->n_said) {
        /* The next one begins with the prompt again; what the client has of it is not said twice. */
        bytes_done(&r->p_id);
        bytes_done(&r->p_logprob);
        bytes_done(&r->p_top);
        r->n_prompt_said = 0;
        /* Nor does anybody wait for its client to read that. */
        r->stalled = 0;
        lifecycle_suspend(d, r, false);
        request_due(d, r);
    }
    outputs_restart(r);
    r->resumed++;
    request_move(d->ledger, r, REQUEST_QUEUED);
}

static void
outlive(struct worker *w, struct request *r, const struct death *death,
        const struct fault_trace *blame)
{
    struct daemon *d = w->d;
    uint32_t n = request_n_tokens(r);
    bool suspect = quarantine_is_suspect(r);
    enum quarantine_verdict v = quarantine_fault(r, death->fault, fault_trace_has(blame, r->id));

    d->n_suspects += (uint32_t)quarantine_is_suspect(r) - (uint32_t)suspect;
    if (r->no_resume) {
        lifecycle_end(d, r, LAGAN_E_WORKER_LOST,
                      "worker %s died (%s) after %u tokens of this request", w->name,
                      death_word(death->cause), n);
    } else if (v == QUARANTINE_POISONED) {
        log_warn("request %llu: three workers died of it", (unsigned long long)r->id);
        quarantine_poison(&d->poisons, r->model, r->submit, d->now);
        lifecycle_end(d, r, LAGAN_E_POISONED, "three workers died (%s) working on this request",
                      death_word(death->cause));
    } else if (v == QUARANTINE_LOST) {
        lifecycle_end(d, r, LAGAN_E_WORKER_LOST, "%u workers died (%s) without another token of it",
                      r->n_vain, death_word(death->cause));
    } else if (!r->out && n >= r->submit->max_tokens) {
        lifecycle_end(d, r, LAGAN_FINISH_LENGTH, "%s", msg_reason_sentence(LAGAN_FINISH_LENGTH));
    } else {
        send_back(w, r, death);
        ledger_save_state(d, r);
    }
}

void
dispatch_worker_lost(struct worker *w, const struct death *death)
{
    static struct fault_trace blame; /* 55 KiB; one thread */
    struct daemon *d = w->d;

    fault_trace_read(&blame, death->fault && w->link.w.base ? shm_trace(&w->link.w) : NULL);
    w->alone = REQUEST_NONE;
    for (uint32_t i = 0; w->n_rows && i < ledger_capacity(d->ledger); i++) {
        struct request *r = ledger_request(d->ledger, i);

        if (!r || !r->held || r->worker != w->index) continue;
        worker_notify_clear(w, r);
        r->held = false;
        w->n_rows--;
        w->n_seqs -= request_n_seqs(r);
        w->tokens -= r->cost;
        if (r->state != REQUEST_ENDED) {
            outlive(w, r, death, &blame);
        } else {
            lifecycle_settle(d, r);
        }
    }
    check(w->n_rows == 0 && w->n_seqs == 0 && w->tokens == 0 && w->n_words_due == 0);
    w->sending = REQUEST_NONE;
}
