/* worker_notify.c - see worker_notify.h. */
#include "daemon/request/worker_notify.h"

#include "base/log.h"
#include "daemon/ledger/request.h"
#include "ipc/records.h"

#include <errno.h>
#include <string.h>

int
worker_notify_reserved(struct worker *w, int result)
{
    if (result == -EAGAIN) w->full = true;
    if (result == -EBADMSG) {
        worker_broken(w, DEATH_CORRUPTION, "request ring: %s", ring_why(&w->channel.out));
    }
    return result;
}

/* A worker ignores a notice for a request that it does not have, so a notice waits for the last
 * fragment of the SUBMIT. Returns false if it must be sent later. */
static bool
send_notice(struct worker *w, const struct request *r, uint16_t type, uint32_t flags)
{
    struct rec_notice rec = { .ledger_index = r->index, .gen = r->gen, .flags = flags };
    void *to;
    int k = w->sending == r->index ? -EAGAIN
                                   : ring_reserve(&w->channel.out, type, 0, sizeof rec, 0, &to);

    if (k == -EBADMSG) worker_notify_reserved(w, k);
    if (k < 0) return false;
    memcpy(to, &rec, sizeof rec);
    channel_publish(&w->channel);
    return true;
}

void
worker_notify_cancel(struct worker *w, struct request *r, uint16_t reason)
{
    if (!w->alive || r->notify.cancel_due) return;
    r->notify.cancel_reason = reason;
    if (send_notice(w, r, REC_CANCEL, reason)) return;
    r->notify.cancel_due = true;
    w->n_notices_due++;
}

static void
send_suspended(struct worker *w, struct request *r)
{
    struct request_notify *n = &r->notify;

    if (!w->alive || n->suspend_due || n->suspended == n->suspend_sent) return;
    if (send_notice(w, r, REC_SUSPEND, n->suspended)) {
        n->suspend_sent = n->suspended;
        return;
    }
    n->suspend_due = true;
    w->n_notices_due++;
}

void
worker_notify_suspend(struct worker *w, struct request *r, bool suspended)
{
    r->notify.suspended = suspended;
    if (w) send_suspended(w, r);
}

void
worker_notify_dispatched(struct request *r)
{
    r->notify.suspend_sent = r->notify.suspended;
}

void
worker_notify_clear(struct worker *w, struct request *r)
{
    w->n_notices_due -= (uint32_t)r->notify.cancel_due + (uint32_t)r->notify.suspend_due;
    r->notify.cancel_due = r->notify.suspend_due = false;
}

void
worker_notify_flush(struct worker *w)
{
    struct request *r;

    for (uint32_t at = 0; w->n_notices_due && (r = ledger_next(w->d->ledger, &at));) {
        bool cancel = r->notify.cancel_due, suspend = r->notify.suspend_due;

        if (!r->dispatch.held || r->dispatch.worker != w->index) continue;
        worker_notify_clear(w, r);
        if (cancel) worker_notify_cancel(w, r, r->notify.cancel_reason);
        if (suspend) send_suspended(w, r);
        if (r->notify.cancel_due || r->notify.suspend_due) return;
    }
}

void
worker_notify_drain(struct worker *w)
{
    void *to;
    int k = ring_reserve(&w->channel.out, REC_DRAIN, 0, 8, 0, &to);

    if (k < 0) {
        /* The worker does not read a ring this full. */
        log_warn("worker %s: its request ring is full; DRAIN is not sent, and the drain timeout "
                 "will end it",
                 w->name);
        return;
    }
    memset(to, 0, 8);
    channel_publish(&w->channel);
}
