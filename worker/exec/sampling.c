/* sampling.c - selects the logit rows of a step, sets their sampling parameters, queues sampling
 * and collects the results.
 *
 * A segment has one logit row, for its last token. If the request wants prompt log-probabilities,
 * the segment has a logit row for each token: the row at position p reports token p + 1 of the
 * prompt, and only the last row samples.
 */
#include "worker/exec/exec_internal.h"
#include "worker/model/blocks.h"

/* The device's struct top is copied to struct batch_top on the host without conversion. */
_Static_assert(sizeof(struct top) == sizeof(struct batch_top) &&
                   offsetof(struct top, id) == offsetof(struct batch_top, id) &&
                   offsetof(struct top, logprob) == offsetof(struct batch_top, logprob),
               "struct top and struct batch_top are equal");

const struct sample_row sampling_padding = {
    .slot = SLOT_NONE,
    .top_p = 1,
    .repetition = 1,
    .force = 0,
    .target = -1,
    .allowed = ALLOW_ALL,
};

struct draw {
    uint32_t *which;
    struct sample_row *row;
    int32_t *suppressed;
    struct logit_bias *logit_bias;
    struct todo *t; /* its n_suppressed, n_logit_bias, n_top and beams are set */
    bool in_order;  /* true: so far, logit row i is decoder token i */
};

static void
suppress_token(struct draw *d, struct sample_row *row, token_id id)
{
    d->suppressed[d->t->n_suppressed++] = id;
    row->n_suppressed++;
}

static struct sample_row
sampled_row(struct draw *d, const struct sampling *s, uint32_t slot, uint32_t position)
{
    uint32_t made = position - s->first_new; /* number of generated tokens before this one */
    struct sample_row row = {
        .slot = slot,
        .seed = s->seed,
        .output = s->output,
        .position = position,
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .repetition = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .first_new = s->first_new,
        .no_repeat_ngram = s->no_repeat_ngram,
        .top_k = s->top_k,
        .force = -1,
        .target = -1,
        .first_suppressed = d->t->n_suppressed,
        .first_logit_bias = d->t->n_logit_bias,
        .n_logit_bias = s->n_bias,
        .allowed = ALLOW_ALL,
        .n_top = s->logprobs,
        .want_logprob = s->want_logprobs || s->logprobs,
    };

    if (s->n_candidates) {
        row.beam = d->t->beams = true;
        row.n_top = MAX(s->n_candidates, s->logprobs);
        row.want_logprob = false;
    }
    if (s->n_bias) memcpy(d->logit_bias + d->t->n_logit_bias, s->bias, s->n_bias * sizeof *s->bias);
    d->t->n_logit_bias += s->n_bias;
    if (s->forced_bos >= 0 && made == 0) row.force = s->forced_bos;
    if (s->forced_eos >= 0 && made + 1 == s->max_new)
        row.force = s->forced_eos; /* overrides forced_bos, as in transformers */
    for (uint32_t i = 0; i < s->n_eos && made < s->min_new; i++) suppress_token(d, &row, s->eos[i]);
    return row;
}

/* Returns a row that reports the log-probability of the token at `position`, samples nothing and
 * changes no slot. Beyond the prompt (tokens delivered before a restart) none is reported. */
static struct sample_row
prompt_row(const struct sampling *s, uint32_t position)
{
    struct sample_row row = sampling_padding;

    row.force = -1;
    row.target = 0;
    if (position >= s->n_prompt) return row;
    row.target = s->prompt[position];
    row.n_top = s->prompt_logprobs;
    row.want_logprob = true;
    return row;
}

static void
draw_segment(const struct exec *x, const struct batch_segment *r, struct draw *d, struct outcome *o)
{
    const struct sampling *s = &x->slot[r->slot];
    bool all = r->flags & SEGMENT_PROMPT_LOGPROBS, sample = r->flags & SEGMENT_SAMPLE;
    uint32_t n = all ? r->n_tokens : 1;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = r->n_tokens - n + i; /* index of the token in the segment */
        uint32_t position = (uint32_t)r->first_pos + k + 1;
        struct sample_row *row = &d->row[r->first_logit + i];

        *row = sample && i + 1 == n ? sampled_row(d, s, r->slot, position)
                                    : prompt_row(s, position);
        row->n_top = MIN(row->n_top, x->top_most);
        row->first_top = d->t->n_top;
        o->r.first_top[r->first_logit + i] = d->t->n_top;
        d->t->n_top += row->n_top;
        d->which[r->first_logit + i] = r->first_token + k;
        if (r->first_logit + i != r->first_token + k) d->in_order = false;
    }
}

/* True if the last layer computes only logit rows. Not in a graph: its row count is fixed. */
static bool
ends_with_logit_rows(const struct exec *x, const struct batch *b, const struct todo *t)
{
    return x->m->arch->ends_with_logit_rows && !t->decode &&
           t->n_sample_rows <= MIN(b->n_tokens / 2, x->n_slots);
}

void
sampling_stage(struct exec *x, struct stage *st, const struct batch *b, struct outcome *o,
               struct todo *t)
{
    struct draw d = {
        .suppressed = st->suppressed, .logit_bias = st->logit_bias, .t = t, .in_order = true
    };
    uint32_t next = 0;

    check(b->n_logits <= x->c.max_tokens);
    t->n_logits = b->n_logits;
    t->n_sample_rows = t->decode && t->decode->kind == GRAPHS_DECODE ? t->n_single_token
                                                                     : b->n_logits;
    d.which = TAKE_ARRAY(&st->step, uint32_t, t->n_sample_rows, &t->which);
    d.row = TAKE_ARRAY(&st->step, struct sample_row, t->n_sample_rows, &t->row);
    o->n_segments = b->n_segments;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *r = &b->segment[i];

        o->segment_logit[i] = NO_LOGIT;
        if (!(r->flags & (SEGMENT_SAMPLE | SEGMENT_PROMPT_LOGPROBS))) continue;
        check(r->first_logit == next);
        draw_segment(x, r, &d, o);
        next += r->flags & SEGMENT_PROMPT_LOGPROBS ? r->n_tokens : 1;
        if (r->flags & SEGMENT_SAMPLE) o->segment_logit[i] = next - 1;
    }
    check(next == b->n_logits);
    o->r.first_top[next] = t->n_top;
    o->r.logprob = (float *)o->drawn + t->n_sample_rows;
    for (; next < t->n_sample_rows; next++) d.row[next] = sampling_padding;
    if (ends_with_logit_rows(x, b, t)) t->few = t->which;
    if (d.in_order || t->few) t->which = NULL;
    t->suppressed = d.suppressed;
    t->logit_bias = d.logit_bias;
}

int
sampling_queue(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    const struct gpu_ops *op = x->op;

    for (uint32_t i = 0; i < t->n_sample_rows; i += x->piece) {
        uint32_t n = MIN(t->n_sample_rows - i, x->piece);
        struct tensor picked = t->which ? tensor_rows(l->picked, 0, n)
                                        : tensor_rows(l->step.normed, i, n);
        struct sample s = {
            .logits = tensor_rows(l->logits, 0, n),
            .row = t->row + i,
            .parts = !t->o,
            .suppressed = l->suppressed,
            .logit_bias = l->logit_bias,
            .beams = t->beams,
            .n = n,
            .history = x->history,
            .last = x->last,
            .token = l->drawn + i,
            .logprob = (float *)l->drawn + t->n_sample_rows + i,
            .top = l->top,
        };

        if (t->which) TRY(op->gather_rows(l->lane, picked, l->step.normed, t->which + i));
        TRY(x->m->arch->logits(x->m, &l->step, s.logits, picked));
        if (t->o) {
            TRY(op->collective.all_gather(l->lane, s.logits, block_own_logits(x->m, s.logits)));
            TRY(tensor_output_get_logits(x, l, t->o, i, n, s.logits));
        }
        TRY(op->sample(l->lane, &s));
    }
    return 0;
}

int
sampling_get(struct exec *x, struct exec_lane *l, const struct todo *t, struct outcome *o)
{
    o->r.top = t->n_top > NEAR_TOPS ? o->far : o->near;
    if (!t->n_logits) return 0;
    TRY(x->op->mem.get(l->lane, o->drawn, l->drawn,
                       (t->n_sample_rows + t->n_logits) * sizeof *o->drawn));
    return t->n_top ? x->op->mem.get(l->lane, o->r.top, l->top, t->n_top * sizeof *o->r.top) : 0;
}

void
sampling_finish(struct outcome *o)
{
    for (uint32_t i = 0; i < o->n_segments; i++) {
        o->r.n_tokens[i] = o->segment_logit[i] != NO_LOGIT;
        if (o->r.n_tokens[i]) o->r.token[i * (1 + MAX_DRAFT)] = o->drawn[o->segment_logit[i]];
    }
}
