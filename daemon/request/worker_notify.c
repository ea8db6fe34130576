/* worker_notify.c - sends CANCEL and SUSPEND records to a worker. */
#include "daemon/request/worker_notify.h"

#include "daemon/ledger/request.h"
#include "ipc/records.h"

/* Writes a notice about r to the request ring of w. False: it must be sent later: the ring is full,
 * or the SUBMIT of r, which must precede it, is incomplete. */
static bool
send_notice(struct worker *w, const struct request *r, uint16_t type, uint32_t flags)
{
    struct rec_notice rec = { .ledger_index = r->index, .gen = r->gen, .flags = flags };
    void *to;

    if (worker_requests(w)->sending == r->index) return false;
    if (worker_reserve(w, type, 0, sizeof rec, 0, &to) < 0) return false;
    memcpy(to, &rec, sizeof rec);
    worker_publish(w);
    return true;
}

void
worker_notify_cancel(struct worker *w, struct request *r, uint16_t reason)
{
    if (r->notify.cancel_due) return;
    r->notify.cancel_reason = reason;
    if (send_notice(w, r, REC_CANCEL, reason)) return;
    r->notify.cancel_due = true;
    worker_requests(w)->n_notices_due++;
}

static void
send_suspended(struct worker *w, struct request *r)
{
    struct request_notify *n = &r->notify;

    if (n->suspend_due || n->suspended == n->suspend_sent) return;
    if (send_notice(w, r, REC_SUSPEND, n->suspended)) {
        n->suspend_sent = n->suspended;
        return;
    }
    n->suspend_due = true;
    worker_requests(w)->n_notices_due++;
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
    worker_requests(w)->n_notices_due -= (uint32_t)r->notify.cancel_due +
                                         (uint32_t)r->notify.suspend_due;
    r->notify.cancel_due = r->notify.suspend_due = false;
}

void
worker_notify_flush(struct worker *w)
{
    const struct worker_requests *q = worker_requests(w);
    struct request *r;

    for (uint32_t at = 0; q->n_notices_due && (r = ledger_next(worker_daemon(w)->ledger, &at));) {
        bool cancel = r->notify.cancel_due, suspend = r->notify.suspend_due;

        if (!r->dispatch.held || r->dispatch.worker != worker_info(w)->index) continue;
        worker_notify_clear(w, r);
        if (cancel) worker_notify_cancel(w, r, r->notify.cancel_reason);
        if (suspend) send_suspended(w, r);
        if (r->notify.cancel_due || r->notify.suspend_due) return;
    }
}
