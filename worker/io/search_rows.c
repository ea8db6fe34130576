/* search_rows.c - the kept logit rows of beam searches: see search_rows.h. */
#include "worker/io/search_rows.h"

#include "include/lagan_wire.h"
#include "ipc/search_limits.h"
#include "worker/model/model.h"
#include "worker/sched/beam_search.h"

#include <math.h>

enum { LEAST_BEAMS = 2 };

static uint64_t
top_bytes(const struct worker_request *r, uint64_t n_tokens)
{
    return n_tokens * r->sampling.logprobs * sizeof(struct batch_top);
}

size_t
search_rows_slot_bytes(const struct worker *w)
{
    const struct model_shape *s = &w->model->shape;
    uint64_t top = (uint64_t)s->max_len * LAGAN_MAX_TOP * sizeof(struct batch_top),
             logits = (uint64_t)s->max_len * s->vocab * sizeof(float);

    return MIN(top, (uint64_t)LAGAN_MAX_SEARCH_LOGPROBS / LEAST_BEAMS) +
           MIN(logits, (uint64_t)LAGAN_MAX_SEARCH_LOGITS / LEAST_BEAMS);
}

int
search_rows_fit(const struct worker *w, const struct worker_request *r, uint32_t max_new,
                struct err *e)
{
    uint64_t n = (uint64_t)r->beam.n_beams * max_new;

    if (!search_rows_kept(r)) return 0;
    if (!r->rows)
        return err_set(e, -EMSGSIZE,
                       "logprobs above 0 and return_logits are not served with beams: the worker "
                       "could not map memory for the logits of beam searches");
    return search_limits_check(n, r->sampling.logprobs,
                               r->sampling.want_logits ? w->model->shape.vocab : 0, e);
}

void
search_rows_keep(struct worker *w, const struct batch *b, const struct batch_result *res,
                 struct seq *const *seq)
{
    uint32_t vocab = w->model->shape.vocab;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        struct worker_request *m = seq[i] ? seq[i]->owner : NULL, *r;
        uint32_t n, at, have, t;
        const float *logits;

        if (!(b->segment[i].flags & SEGMENT_BEAM) || !m || !search_rows_kept(m->first)) continue;
        r = m->first;
        t = r->beam.n_new;
        n = r->sampling.logprobs;
        at = res->first_top[b->segment[i].first_logit];
        have = MIN(n, res->first_top[b->segment[i].first_logit + 1] - at);
        m->rows_bytes = (size_t)top_bytes(r, r->beam.max_new);
        memcpy(m->rows + top_bytes(r, t), res->top + at, have * sizeof *res->top);
        for (uint32_t k = have; k < n; k++)
            memcpy(m->rows + top_bytes(r, t) + k * sizeof *res->top, &(struct batch_top){ -1, NAN },
                   sizeof *res->top);
        logits = exec_logits(w->exec, res, i);
        if (!logits) continue;
        memcpy(m->rows + m->rows_bytes + (size_t)t * vocab * sizeof *logits, logits,
               vocab * sizeof *logits);
        m->rows_bytes += (size_t)(t + 1) * vocab * sizeof *logits;
    }
}

/* Returns the slot of beam `slot`. NULL: slot is BEAM_NO_ROW. */
static const struct worker_request *
slot_of(const struct worker_request *r, uint32_t slot)
{
    if (slot == BEAM_NO_ROW) return NULL;
    for (uint32_t i = 0; i < slot; i++) r = r->next;
    return r;
}

const struct batch_top *
search_rows_top(const struct worker_request *r, uint32_t slot, uint32_t t)
{
    const struct worker_request *m = slot_of(r, slot);

    return m ? (const void *)(m->rows + top_bytes(r, t)) : NULL;
}

const float *
search_rows_logits(const struct worker *w, const struct worker_request *r, uint32_t slot,
                   uint32_t t)
{
    const struct worker_request *m = slot_of(r, slot);

    return m ? (const float *)(const void *)(m->rows + top_bytes(r, r->beam.max_new)) +
                   (size_t)t * w->model->shape.vocab
             : NULL;
}
