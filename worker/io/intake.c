/* intake.c - reads the request ring, record by record, and joins the fragments of a SUBMIT.
 *
 *     SUBMIT fragments -> one buffer -> intake_submit() -> [text thread] -> intake_admit()
 *     -> scheduler */
#include "worker/io/intake.h"

#include "base/failpoint.h"
#include "include/lagan_wire.h"
#include "ipc/channel.h"
#include "ipc/records.h"
#include "worker/io/emit.h"
#include "worker/io/intake_admit.h"
#include "worker/io/record_tail.h"
#include "worker/model/model.h"
#include "worker/sched/scheduler.h"

#include <sys/mman.h>

/* MAX_RECORDS: most records that one call of intake_drain() reads. KEPT_BYTES: longest SUBMIT after
 * which the pages of the fragment buffer stay resident. */
enum { MAX_RECORDS = 256, KEPT_BYTES = 1 << 20 };

struct intake {
    char *fragments; /* [max_fragments] bytes of a SUBMIT; pages are resident after use only */
    size_t n_fragments, max_fragments; /* bytes received so far; capacity */
};

void
intake_text_done(struct worker *w, struct worker_request *r, nsec now)
{
    if (r->kind == REQUEST_GENERATE)
        intake_admit_text(w, r, now);
    else
        text_call_done(w, r);
}

/* Applies a CANCEL or SUSPEND record. No effect if the request has already ended. */
static int
take_notice(struct worker *w, const struct ring_record *rec, struct err *e)
{
    struct rec_notice c;
    struct worker_request *r;

    if (rec->len < sizeof c) return record_tail_corrupt(e, "CANCEL or SUSPEND is too short");
    memcpy(&c, rec->data, sizeof c);
    r = request_find(w->requests, c.ledger_index, c.gen);
    if (!r) return 0;
    if (r->state != REQUEST_LIVE && r->first) r = r->first;
    if (rec->type == REC_CANCEL) {
        r->cancelled = (uint16_t)(c.flags ? c.flags : LAGAN_FINISH_CANCELLED);
        if (r->state == REQUEST_LIVE) scheduler_cancel(w->sched, r->seq.id, r->cancelled);
    } else {
        r->suspended = c.flags & 1;
        if (r->state == REQUEST_LIVE) scheduler_suspend(w->sched, r->seq.id, r->suspended);
    }
    return 0;
}

/* ---- a SUBMIT of several records */

int
intake_open(struct worker *w, struct err *e)
{
    size_t outputs = MIN((size_t)w->limits->max_seqs, (size_t)INTAKE_MAX_OUTPUTS);
    /* A delivered token in a SUBMIT has an id, an output number (1 byte) and its text. */
    size_t token_bytes = sizeof(token_id) + 1 + emit_token_text_bytes(w);
    /* The buffer holds the client's part, at most twice its frame (ids of 1 byte in it have 4 in
     * the record), and the delivered tokens of all outputs. Only used pages take memory. */
    size_t most = 2 * (size_t)LAGAN_MAX_FRAME + outputs * w->model->shape.max_len * token_bytes;
    void *p = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    if (p == MAP_FAILED)
        return err_set(e, -ENOMEM, "no memory: %zu KiB to assemble a SUBMIT", most >> 10);
    w->intake = malloc(sizeof *w->intake);
    if (!w->intake) {
        munmap(p, most);
        return err_set(e, -ENOMEM, "no host memory for the reader of the request ring");
    }
    *w->intake = (struct intake){ .fragments = p, .max_fragments = most };
    return 0;
}

void
intake_close(struct worker *w)
{
    if (w->intake) munmap(w->intake->fragments, w->intake->max_fragments);
    free(TAKE(w->intake));
}

/* Appends a fragment to the buffer; if it does not fit, only its size is counted in n_fragments. */
static void
add_fragment(struct worker *w, const struct ring_record *rec)
{
    if (w->intake->n_fragments + rec->len <= w->intake->max_fragments)
        memcpy(w->intake->fragments + w->intake->n_fragments, rec->data, rec->len);
    w->intake->n_fragments += rec->len;
}

static int
submit_whole(struct worker *w, nsec now, struct err *e)
{
    size_t n = w->intake->n_fragments, has = MIN(n, w->intake->max_fragments);
    struct rec_submit s;
    int r = 0;

    w->intake->n_fragments = 0;
    if (n == has) {
        r = intake_submit(w, w->intake->fragments, n, now, e);
    } else { /* too long: lagand validated it with the READY of a worker with other model files */
        memcpy(&s, w->intake->fragments, sizeof s);
        emit_reject(w, s.ledger_index, s.gen, LAGAN_E_TOO_LONG, 0,
                    "the request with its delivered tokens exceeds the maximum length of this "
                    "worker's model");
    }
    if (has > KEPT_BYTES) madvise(w->intake->fragments, has, MADV_DONTNEED);
    return r;
}

int
intake_drain(struct worker *w, nsec now, struct err *e)
{
    struct ring_record rec;
    int taken = 0, r = 0;

    while (taken < MAX_RECORDS && (r = ring_peek(&w->channel->in, &rec)) > 0) {
        taken++;
        if (rec.type == REC_SUBMIT && (w->intake->n_fragments || (rec.flags & RING_MORE))) {
            add_fragment(w, &rec);
            r = rec.flags & RING_MORE ? 0 : submit_whole(w, now, e);
            if (r < 0) return r;
            continue;
        }
        switch (rec.type) {
        case REC_SUBMIT:
            r = intake_submit(w, rec.data, rec.len, now, e);
            break;
        case REC_CANCEL:
        case REC_SUSPEND:
            r = take_notice(w, &rec, e);
            break;
        case REC_TEXT:
            r = text_call(w, rec.data, rec.len, e);
            break;
        case REC_DRAIN:
            w->draining = true;
            FP(drain_seen);
            break;
        default:
            break; /* records of other types, such as STATE, need no action */
        }
        if (r < 0) return r;
    }
    if (r < 0) return err_set(e, r, "request ring: %s", ring_why(&w->channel->in));
    if (taken) channel_release(w->channel);
    return taken;
}
