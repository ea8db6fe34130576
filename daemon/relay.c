/* relay.c - see relay.h. Down: dispatch, fragments, cancels. The other way is relay_up.c.
 *
 * D is ours to fill and the worker's to empty. SUBMIT and TEXT leave CANCEL_SPARE bytes, so that a
 * cancel finds room in a ring that requests have filled.
 */
#include "daemon/relay.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/admission.h"
#include "daemon/deliver.h"
#include "route/route.h"

#include <errno.h>
#include <string.h>

enum { CANCEL_SPARE = 64 * SHM_REC_ALIGN, ROWS_AHEAD = 256 };

static void
ring_the_bell(struct worker *w)
{
    ring_publish(&w->link.out);
    bell_ring(&w->link.bell);
}

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
send_pieces(struct worker *w, struct row *r)
{
    uint32_t most = (w->link.out.max_rec - RING_HEADER) & ~(uint32_t)(SHM_REC_ALIGN - 1);

    while (w->sent_bytes < r->submit_bytes) {
        uint32_t n = MIN(r->submit_bytes - w->sent_bytes, most);
        bool more = w->sent_bytes + n < r->submit_bytes;
        void *to;
        int k = ring_reserve(&w->link.out, REC_SUBMIT, more ? RING_MORE : 0, n, CANCEL_SPARE, &to);

        if (k < 0) {
            ring_the_bell(w);
            return reserved(w, k);
        }
        memcpy(to, (const char *)r->submit + w->sent_bytes, n);
        w->sent_bytes += n;
    }
    w->sending = ROW_NONE;
    ring_the_bell(w);
    return 1;
}

static void
give(struct worker *w, struct row *r)
{
    struct ledger *l = w->d->ledger;

    row_move(l, r, ROW_DISPATCHED);
    r->worker = w->index;
    r->held = true;
    r->submit->deadline_ns = r->deadline == NSEC_NEVER ? 0 : r->deadline;
    w->n_rows++;
    w->tokens += r->cost;
    w->sending = r->index;
    w->sent_bytes = 0;
    FP(relay_giving);
    send_pieces(w, r);
}

static void
send_cancels(struct worker *w)
{
    for (uint32_t i = 0; w->n_cancels_due && i < ledger_capacity(w->d->ledger); i++) {
        struct row *r = ledger_row(w->d->ledger, i);

        if (!r || !r->cancel_due || r->worker != w->index) continue;
        r->cancel_due = false;
        w->n_cancels_due--;
        relay_cancel(w, r, r->cancel_reason);
        if (r->cancel_due) return;
    }
}

static void
fill_routes(struct daemon *d, struct route_worker *t)
{
    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w = d->worker[i];

        t[i] = (struct route_worker){
            .open = worker_open(w) && w->sending == ROW_NONE && !w->full,
            .model = w->model,
            .rows = w->n_rows,
            .max_rows = d->facts[w->model].n_seats + ROWS_AHEAD,
            .tokens = w->tokens,
        };
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
        if (w->n_cancels_due) send_cancels(w);
        if (w->sending != ROW_NONE) send_pieces(w, ledger_row(d->ledger, w->sending));
    }
    if (!ledger_n_queued(d->ledger)) return;
    fill_routes(d, table);
    for (r = ledger_next_queued(d->ledger, NULL); r; r = next) {
        uint32_t i = route_pick(table, d->n_workers, r->model);
        struct worker *w;
        struct err e;
        int k;

        next = ledger_next_queued(d->ledger, r);
        if (i == ROUTE_NONE) {
            if (d->n_workers == 1 || d->config->n_models == 1) return;
            continue; /* another model's worker may have room */
        }
        /* Accepted before anything was known of the model: looked at again now. */
        k = admission_fits(&d->facts[r->model], r->submit, &e);
        if (k != 0) {
            row_end(d, r, (uint16_t)k, "%s", e.text);
            continue;
        }
        w = d->worker[i];
        give(w, r);
        table[i].rows = w->n_rows;
        table[i].tokens = w->tokens;
        table[i].open = w->sending == ROW_NONE && worker_open(w);
    }
}

void
relay_cancel(struct worker *w, struct row *r, uint16_t reason)
{
    struct rec_row rec = { .row = r->index, .gen = r->gen, .flags = reason };
    void *to;
    int k;

    if (!w->alive || r->cancel_due) return;
    r->cancel_reason = reason;
    /* A worker forgets a cancel for a request it does not have yet: after the last piece. */
    k = w->sending == r->index ? -EAGAIN
                               : ring_reserve(&w->link.out, REC_CANCEL, 0, sizeof rec, 0, &to);
    if (k < 0) {
        r->cancel_due = true;
        w->n_cancels_due++;
        if (k == -EBADMSG) reserved(w, k);
        return;
    }
    memcpy(to, &rec, sizeof rec);
    ring_the_bell(w);
}

void
relay_drain_request(struct worker *w)
{
    void *to;
    int k = ring_reserve(&w->link.out, REC_DRAIN, 0, 8, 0, &to);

    if (k < 0) {
        /* A ring this full is not being read; the drain's deadline ends it. */
        log_warn("worker %s: its request ring is full, it cannot be told to drain", w->name);
        return;
    }
    memset(to, 0, 8);
    ring_the_bell(w);
}

void
relay_lost(struct worker *w, const char *cause)
{
    struct daemon *d = w->d;

    for (uint32_t i = 0; w->n_rows && i < ledger_capacity(d->ledger); i++) {
        struct row *r = ledger_row(d->ledger, i);

        if (!r || !r->held || r->worker != w->index) continue;
        r->held = r->cancel_due = false;
        w->n_rows--;
        w->tokens -= r->cost;
        if (r->state != ROW_ENDED) {
            row_end(d, r, LAGAN_E_WORKER_LOST,
                    "worker %s died (%s) after %u tokens of this request", w->name, cause,
                    row_n_tokens(r));
        } else {
            row_settle(d, r);
        }
    }
    check(w->n_rows == 0 && w->tokens == 0);
    w->n_cancels_due = 0;
    w->sending = ROW_NONE;
}
