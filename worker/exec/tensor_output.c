/* tensor_output.c - copies encoder states and logits to the host for requests that want them.
 *
 * The host memory is pageable and takes no memory while it is unused. Logits are copied after the
 * head and before sampling, whose penalties change them, so such a step does not sample in a graph.
 */
#include "gpu/fp.h"
#include "worker/exec/exec_internal.h"

static bool
keeps_logits(const struct exec *x, const struct batch_segment *r)
{
    return (r->flags & SEGMENT_SAMPLE) && x->slot[r->slot].want_logits;
}

bool
tensor_output_wanted(const struct exec *x, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++)
        if (keeps_logits(x, &b->segment[i])) return true;
    return false;
}

void
tensor_output_stage(const struct exec *x, const struct batch *b, struct outcome *o, struct todo *t)
{
    o->n_logits_kept = o->n_states_kept = 0;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *r = &b->segment[i];

        o->logits_at[i] = keeps_logits(x, r) ? o->n_logits_kept++ : NO_LOGIT;
        o->states_at[i] = o->n_states_kept;
        o->n_states[i] = x->slot[r->slot].want_states ? r->enc_tokens : 0;
        o->n_states_kept += o->n_states[i];
    }
    check(o->n_states_kept <= x->c.max_enc_tokens);
    t->o = o->n_logits_kept ? o : NULL;
}

int
tensor_output_get_logits(const struct exec *x, struct exec_lane *l, const struct outcome *o,
                         uint32_t first, uint32_t n, struct tensor logits)
{
    uint32_t vocab = x->m->shape.vocab;

    for (uint32_t i = 0; i < o->n_segments; i++) {
        uint32_t row = o->segment_logit[i];

        if (o->logits_at[i] == NO_LOGIT || row < first || row >= first + n) continue;
        TRY(x->op->mem.get(l->lane, o->logits + (size_t)o->logits_at[i] * vocab,
                           tensor_rows(logits, row - first, 1).data, vocab * sizeof *o->logits));
    }
    return 0;
}

int
tensor_output_get_states(const struct exec *x, struct exec_lane *l, const struct batch *b,
                         const struct outcome *o)
{
    size_t each = (size_t)x->m->shape.hidden * dtype_bytes(x->m->act, 1);

    for (uint32_t i = 0; i < b->n_segments && o->n_states_kept; i++)
        for (uint32_t k = 0; k < o->n_states[i]; k++)
            TRY(x->op->mem.get(l->lane, o->states + (o->states_at[i] + k) * each,
                               tensor_rows(x->enc_out, b->segment[i].enc_token + k, 1).data, each));
    return 0;
}

static const struct outcome *
outcome_of(const struct batch_result *r)
{
    return (const void *)((const char *)r - offsetof(struct outcome, r));
}

const float *
exec_logits(const struct exec *x, const struct batch_result *r, uint32_t i)
{
    const struct outcome *o = outcome_of(r);

    if (o->logits_at[i] == NO_LOGIT) return NULL;
    return o->logits + (size_t)o->logits_at[i] * x->m->shape.vocab;
}

uint32_t
exec_n_states(const struct exec *x, const struct batch_result *r, uint32_t i)
{
    return outcome_of(r)->n_states[i] * x->m->shape.hidden;
}

void
exec_states(const struct exec *x, const struct batch_result *r, uint32_t i, uint32_t first,
            uint32_t n, float *to)
{
    const struct outcome *o = outcome_of(r);
    size_t at = (size_t)o->states_at[i] * x->m->shape.hidden + first;
    const uint16_t *half = (const void *)o->states;

    check(first + n <= exec_n_states(x, r, i));
    if (x->m->act == DT_F32) {
        memcpy(to, (const float *)(const void *)o->states + at, n * sizeof *to);
        return;
    }
    for (uint32_t k = 0; k < n; k++)
        to[k] = x->m->act == DT_BF16 ? float_of_bf16(half[at + k]) : float_of_f16(half[at + k]);
}
