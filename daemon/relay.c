/* relay.c - see relay.h. Down: dispatch, fragments, cancels. The other way is relay_up.c.
 *
 * D is ours to fill and the worker's to empty. SUBMIT and TEXT leave CANCEL_SPARE bytes, so that a
 * cancel finds room in a ring that requests have filled.
 */
#include "daemon/relay.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/admission.h"
#include "daemon/blame.h"
#include "daemon/deliver.h"
#include "daemon/pieces.h"
#include "daemon/recall.h"
#include "route/route.h"
#include "wire/msg.h"

#include <errno.h>
#include <string.h>

enum { CANCEL_SPARE = 64 * SHM_REC_ALIGN, ROWS_AHEAD = 256 };

/* -EBADMSG from a ring is the worker's doing. */
static int
reserved(struct worker *w, int r)
{
    if (r == -EAGAIN) w->full = true;
    if (r == -EBADMSG) {
        worker_broken(w, DEATH_CORRUPTION, "request ring: %s", ring_why(&w->channel.out));
    }
    return r;
}

/* The next piece of the request under way, as many as fit. 1: all of it is in the ring. */
static int
send_pieces(struct worker *w, struct row *r)
{
    uint32_t most = (w->channel.out.max_rec - RING_HEADER) & ~(uint32_t)(SHM_REC_ALIGN - 1);

    uint32_t bytes = row_record_bytes(r);

    while (w->sent_bytes < bytes) {
        uint32_t n = MIN(bytes - w->sent_bytes, most);
        bool more = w->sent_bytes + n < bytes;
        void *to;
        int k = ring_reserve(&w->channel.out, REC_SUBMIT, more ? RING_MORE : 0, n, CANCEL_SPARE,
                             &to);

        if (k < 0) {
            channel_publish(&w->channel);
            return reserved(w, k);
        }
        row_record(r, w->sent_bytes, to, n);
        w->sent_bytes += n;
    }
    w->sending = ROW_NONE;
    channel_publish(&w->channel);
    return 1;
}

static void
give(struct worker *w, struct row *r)
{
    struct ledger *l = w->d->ledger;

    row_move(l, r, ROW_DISPATCHED);
    fair_queue_take(&w->d->turns[r->model], r->turn);
    r->worker = w->index;
    r->held = true;
    r->submit->deadline_ns = r->deadline == NSEC_NEVER ? 0 : r->deadline;
    w->n_rows++;
    w->n_seqs += row_n_seqs(r);
    w->tokens += r->cost;
    if (blame_suspect(r)) w->alone = r->index;
    w->sending = r->index;
    w->sent_bytes = 0;
    r->home = 0;
    r->pause_told = r->paused;
    FP(relay_giving);
    recall_state(w->d, r);
    send_pieces(w, r);
}

/* What found no room when it was to be said. */
static void
send_words(struct worker *w)
{
    for (uint32_t i = 0; w->n_words_due && i < ledger_capacity(w->d->ledger); i++) {
        struct row *r = ledger_row(w->d->ledger, i);
        bool cancel, pause;

        if (!r || !r->held || r->worker != w->index) continue;
        cancel = r->cancel_due, pause = r->pause_due;
        relay_forget_words(w, r);
        if (cancel) relay_cancel(w, r, r->cancel_reason);
        if (pause) relay_pause(w, r);
        if (r->cancel_due || r->pause_due) return;
    }
}

static void
fill_routes(struct daemon *d, struct route_worker *t)
{
    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w = d->worker[i];

        t[i] = (struct route_worker){
            .open = worker_open(w) && w->sending == ROW_NONE && w->alone == ROW_NONE && !w->full,
            .model = w->model,
            .n_seqs = w->n_seqs, /* each takes a place in the worker, which has some more */
            .max_seqs = d->facts[w->model].n_slots + ROWS_AHEAD,
            .tokens = w->tokens,
            .comes = !worker_over(w) && w->super.state != SUPER_BACKOFF,
        };
    }
}

/* Who runs it; ROUTE_WAIT: its own worker soon. */
static uint32_t
choose(const struct daemon *d, const struct route_worker *t, const struct row *r)
{
    if (!r->home || d->now >= r->stay_until) return route_pick(t, d->n_workers, r->model);
    return route_home(t, d->n_workers, r->model, r->home - 1);
}

/* The most that any of its outputs has said: each has the model's length for itself. */
static uint32_t
longest(const struct row *r)
{
    uint32_t most = 0;

    if (!r->out) return row_n_tokens(r);
    for (uint32_t i = 0; i < r->submit->n; i++) most = MAX(most, r->out[i].n_said);
    return most;
}

/* May it be run at all? What was accepted before anything was known of the model is looked at again. */
static bool
may_run(struct daemon *d, struct row *r)
{
    struct err e;
    int k;

    admission_count(d, r);
    k = admission_fits(&d->facts[r->model], r->submit, d->config->o.tensor_bytes, &e);

    if (!k)
        k = admission_fits_done(&d->facts[r->model], r->token.p, row_n_tokens(r), longest(r), &e);
    if (k) {
        row_end(d, r, (uint16_t)k, "%s", e.text);
    } else if (poisons_has(&d->poisons, r->model, r->submit, d->now)) {
        row_end(d, r, LAGAN_E_POISONED, "a request with this prompt has killed workers");
        k = -1;
    }
    return k == 0;
}

static void
give_to(struct daemon *d, struct route_worker *t, uint32_t i, struct row *r)
{
    struct worker *w = d->worker[i];

    give(w, r);
    t[i].n_seqs = w->n_seqs;
    t[i].tokens = w->tokens;
    t[i].open = w->sending == ROW_NONE && w->alone == ROW_NONE && worker_open(w);
}

/* Suspects first, each alone. While one waits and no worker of its model is about to start, the one
 * with the least to do takes nothing more. */
static void
dispatch_suspects(struct daemon *d, struct route_worker *t)
{
    struct row *next;

    for (struct row *r = ledger_next_queued(d->ledger, NULL); r; r = next) {
        uint32_t empty = ROUTE_NONE, i = route_pick(t, d->n_workers, r->model);
        bool starts = false;

        next = ledger_next_queued(d->ledger, r);
        if (!blame_suspect(r)) continue;
        for (uint32_t k = 0; k < d->n_workers; k++) {
            bool of_model = t[k].model == r->model;

            if (of_model && t[k].open && !t[k].n_seqs) empty = k;
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
relay_dispatch(struct daemon *d)
{
    struct route_worker table[MAX_WORKERS];
    struct row *r, *next;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w = d->worker[i];

        w->full = false;
        if (!w->alive || w->super.suspect != DEATH_NONE) continue;
        if (w->n_words_due) send_words(w);
        if (w->sending != ROW_NONE) send_pieces(w, ledger_row(d->ledger, w->sending));
    }
    recall_new(d);
    if (!ledger_n_queued(d->ledger)) return;
    fill_routes(d, table);
    if (d->n_suspects) dispatch_suspects(d, table);
    for (r = ledger_next_queued(d->ledger, NULL); r; r = next) {
        uint32_t i = choose(d, table, r);

        next = ledger_next_queued(d->ledger, r);
        if (blame_suspect(r) || i == ROUTE_WAIT) continue;
        if (i == ROUTE_NONE) {
            if (d->n_workers == 1 || d->config->n_models == 1) return;
            continue; /* another model's worker may have room */
        }
        if (may_run(d, r)) give_to(d, table, i, r);
    }
}

/* A worker forgets a word about a request it does not have yet: so after the last piece. false: later. */
static bool
say(struct worker *w, const struct row *r, uint16_t type, uint32_t flags)
{
    struct rec_row rec = { .row = r->index, .gen = r->gen, .flags = flags };
    void *to;
    int k = w->sending == r->index ? -EAGAIN
                                   : ring_reserve(&w->channel.out, type, 0, sizeof rec, 0, &to);

    if (k == -EBADMSG) reserved(w, k);
    if (k < 0) return false;
    memcpy(to, &rec, sizeof rec);
    channel_publish(&w->channel);
    return true;
}

void
relay_cancel(struct worker *w, struct row *r, uint16_t reason)
{
    if (!w->alive || r->cancel_due) return;
    r->cancel_reason = reason;
    if (say(w, r, REC_CANCEL, reason)) return;
    r->cancel_due = true;
    w->n_words_due++;
}

void
relay_pause(struct worker *w, struct row *r)
{
    if (!w->alive || r->pause_due || r->paused == r->pause_told) return;
    if (say(w, r, REC_SUSPEND, r->paused)) {
        r->pause_told = r->paused;
        return;
    }
    r->pause_due = true;
    w->n_words_due++;
}

void
relay_forget_words(struct worker *w, struct row *r)
{
    w->n_words_due -= (uint32_t)r->cancel_due + (uint32_t)r->pause_due;
    r->cancel_due = r->pause_due = false;
}

void
relay_drain_request(struct worker *w)
{
    void *to;
    int k = ring_reserve(&w->channel.out, REC_DRAIN, 0, 8, 0, &to);

    if (k < 0) {
        /* A ring this full is not being read; the drain's deadline ends it. */
        log_warn("worker %s: its request ring is full, it cannot be told to drain", w->name);
        return;
    }
    memset(to, 0, 8);
    channel_publish(&w->channel);
}

/* Back into the queue, to go on from what has been said: with a sibling at once, or, if that is sooner,
 * with the next one of its own worker, which has its KV. */
static void
send_back(struct worker *w, struct row *r, const struct death *death)
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
        row_pause(d, r, false);
        row_due(d, r);
    }
    pieces_again(r);
    r->resumed++;
    row_move(d->ledger, r, ROW_QUEUED);
}

static void
outlive(struct worker *w, struct row *r, const struct death *death, const struct blame *blame)
{
    struct daemon *d = w->d;
    uint32_t n = row_n_tokens(r);
    bool suspect = blame_suspect(r);
    enum blame_verdict v = blame_row(r, death->fault, blame_has(blame, r->id));

    d->n_suspects += (uint32_t)blame_suspect(r) - (uint32_t)suspect;
    if (r->no_resume) {
        row_end(d, r, LAGAN_E_WORKER_LOST, "worker %s died (%s) after %u tokens of this request",
                w->name, death_word(death->cause), n);
    } else if (v == BLAME_POISONED) {
        log_warn("request %llu: three workers died of it", (unsigned long long)r->id);
        poisons_note(&d->poisons, r->model, r->submit, d->now);
        row_end(d, r, LAGAN_E_POISONED, "three workers died (%s) working on this request",
                death_word(death->cause));
    } else if (v == BLAME_LOST) {
        row_end(d, r, LAGAN_E_WORKER_LOST, "%u workers died (%s) without another token of it",
                r->n_vain, death_word(death->cause));
    } else if (!r->out && n >= r->submit->max_tokens) {
        row_end(d, r, LAGAN_FINISH_LENGTH, "%s", msg_reason_sentence(LAGAN_FINISH_LENGTH));
    } else {
        send_back(w, r, death);
        recall_state(d, r);
    }
}

void
relay_lost(struct worker *w, const struct death *death)
{
    static struct blame blame; /* 55 KiB; one thread */
    struct daemon *d = w->d;

    blame_read(&blame, death->fault && w->channel.w.base ? shm_trace(&w->channel.w) : NULL);
    w->alone = ROW_NONE;
    for (uint32_t i = 0; w->n_rows && i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (!r || !r->held || r->worker != w->index) continue;
        relay_forget_words(w, r);
        r->held = false;
        w->n_rows--;
        w->n_seqs -= row_n_seqs(r);
        w->tokens -= r->cost;
        if (r->state != ROW_ENDED) {
            outlive(w, r, death, &blame);
        } else {
            row_settle(d, r);
        }
    }
    check(w->n_rows == 0 && w->n_seqs == 0 && w->tokens == 0 && w->n_words_due == 0);
    w->sending = ROW_NONE;
}
