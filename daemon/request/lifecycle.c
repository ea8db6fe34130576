/* lifecycle.c - ends requests, and frees or retains them when client and worker are done. */
#include "daemon/request/lifecycle.h"

#include "base/log.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/quarantine.h"
#include "daemon/ledger/request.h"
#include "daemon/persist/event_log.h"
#include "daemon/request/accounting.h"
#include "daemon/request/latency.h"
#include "daemon/request/worker_notify.h"
#include "wire/msg_reason.h"

#include <stdarg.h>
#include <stdio.h>

bool
lifecycle_is_error(const struct request *r)
{
    return r->result.reason >= LAGAN_E_INVALID_REQUEST;
}

void
lifecycle_settle(struct daemon *d, struct request *r)
{
    if (r->state != REQUEST_ENDED || r->attached || r->dispatch.held || r->pending || r->retained)
        return;
    accounting_release(d, r);
    ledger_give(d->ledger, r);
}

void
lifecycle_suspend(struct daemon *d, struct request *r, bool suspended)
{
    worker_notify_suspend(r->dispatch.held ? d->worker[r->dispatch.worker] : NULL, r, suspended);
}

static void
end_with(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, va_list ap)
{
    const char *id = r->terms.request_id;

    if (r->state == REQUEST_ENDED) return;
    quarantine_ended(d->quarantine, r);
    r->result.reason = reason;
    r->result.ended_at = d->now;
    vsnprintf(r->result.message, sizeof r->result.message, fmt, ap);
    request_move(d->ledger, r, REQUEST_ENDED);
    ledger_save_end(d->ledger_log, r);
    check(reason < REASONS);
    d->n_ended[reason]++;
    ++*(lifecycle_is_error(r) ? &d->n_failed : &d->n_finished);
    if (reason == LAGAN_E_WORKER_LOST || reason == LAGAN_E_SLOW_READER ||
        reason == LAGAN_E_POISONED) {
        log_info("request %llu%s%s: ended with %s: %s", (unsigned long long)r->id, *id ? " " : "",
                 id, msg_reason(reason, NULL), r->result.message);
        event_log_add(d, "request", "", "%llu%s%s ended with %s: %.180s", (unsigned long long)r->id,
                      *id ? " " : "", id, msg_reason(reason, NULL), r->result.message);
    }
    ledger_add_pending(d->ledger, r);
    lifecycle_settle(d, r);
}

void
lifecycle_end(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    end_with(d, r, reason, fmt, ap);
    va_end(ap);
}

void
lifecycle_reject(struct daemon *d, struct request *r, const struct rec_reject *j,
                 const char *message, int n)
{
    r->result.n_prompt_tokens = j->n_prompt_tokens;
    lifecycle_end(d, r, j->reason, "%.*s", n, message);
}

void
lifecycle_finish(struct daemon *d, struct request *r, const struct rec_finish *f)
{
    outputs_set_score(r, f->score);
    r->result.cached = f->cached;
    r->result.adopted = f->adopted;
    r->result.recomputed = f->recomputed;
    r->result.kv_blocks = f->kv_blocks;
    r->result.stop = (uint16_t)f->stop;
    r->result.n_prompt_tokens = f->n_prompt_tokens;
    latency_finish(d, r, f);
    lifecycle_end(d, r, f->reason == LAGAN_FINISH_CANCELLED ? LAGAN_E_CANCELLED : f->reason, "%s",
                  msg_reason_sentence(f->reason));
}

bool
lifecycle_finish_complete(struct daemon *d, struct request *r)
{
    if (r->outputs.each || request_n_tokens(r) < r->submit->max_tokens) return false;
    r->result.n_prompt_tokens = r->submit->n_prompt; /* 0 if the prompt was text */
    lifecycle_end(d, r, LAGAN_FINISH_LENGTH, "%s", msg_reason_sentence(LAGAN_FINISH_LENGTH));
    return true;
}

void
lifecycle_cancel(struct daemon *d, struct request *r, uint16_t reason, const char *fmt, ...)
{
    va_list ap;

    if (r->state == REQUEST_ENDED && (!r->attached || lifecycle_is_error(r))) return;
    va_start(ap, fmt);
    if (r->state == REQUEST_ENDED) { /* tokens are undelivered: replaces the result by this error */
        r->result.reason = reason;
        vsnprintf(r->result.message, sizeof r->result.message, fmt, ap);
        ledger_add_pending(d->ledger, r);
    } else {
        if (r->dispatch.held)
            worker_notify_cancel(d->worker[r->dispatch.worker], r,
                                 reason == LAGAN_E_DEADLINE ? reason : 0);
        end_with(d, r, reason, fmt, ap);
    }
    va_end(ap);
}
