/* launch.c - queues one step, in this order: waits, the arrays of the step, table edits, block
 * copies, encoder slices, tokens sampled by the previous step, cross projections of new encoder
 * inputs, the decoder, logits and sampling, results, the mark. Encoder, projections and decoder are
 * pieces that may run as graphs.
 */
#include "base/failpoint.h"
#include "worker/exec/exec_internal.h"

enum { SLICE_ROWS = 2048, SLICE_LAYERS = 4 };

/* Queues the layers of the decoder. A large step is queued SLICE_LAYERS layers at a time with
 * heartbeats between them, because a launch blocks while the queue of the driver is full. */
static int
queue_forward(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    const struct gpu_ops *op = x->op;
    uint32_t n = x->m->shape.n_layers;
    uint32_t slice = l->step.rows.n_tokens > SLICE_ROWS ? SLICE_LAYERS : n;

    (void)t;
    op->profile.range_begin(l->lane, "forward");
    TRY(op->step.resolve_tokens(l->lane, l->step.rows, x->last));
    for (uint32_t first = 0; first < n; first += slice) {
        TRY(x->m->arch->forward(x->m, &l->step, first, MIN(slice, n - first)));
        if (x->c.heartbeat) x->c.heartbeat(x->c.heartbeat_arg);
    }
    op->profile.range_end(l->lane);
    return 0;
}

static int
queue_draw(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    x->op->profile.range_begin(l->lane, "sample");
    TRY(sampling_queue(x, l, t));
    x->op->profile.range_end(l->lane);
    return 0;
}

/* The decoder piece with kind GRAPHS_DECODE, which includes sampling. */
static int
queue_forward_and_draw(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    TRY(queue_forward(x, l, t));
    return queue_draw(x, l, t);
}

static int
queue_decoder(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    if (t->decode && t->decode->kind == GRAPHS_DECODE)
        return queue_piece(x, l, t, t->decode, queue_forward_and_draw);
    TRY(queue_piece(x, l, t, t->decode, queue_forward));
    return queue_draw(x, l, t);
}

static int
queue_rows(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    const struct gpu_ops *op = x->op;
    struct step *s = &l->step;

    s->x = tensor_rows(l->x, 0, s->rows.n_tokens);
    s->normed = tensor_rows(l->normed, 0, s->rows.n_tokens);
    s->few = t->few;
    s->n_logit_rows = t->n_sample_rows;
    s->logit_x = l->logit_x;
    if (t->n_marked) {
        TRY(op->step.resolve_tokens(l->lane, s->rows, x->last));
        TRY(op->step.mark_tokens(l->lane, x->history, s->rows, t->marked, t->n_marked));
    }
    TRY(queue_projections(x, l, t));
    return queue_decoder(x, l, t);
}

static int
put(struct exec *x, struct exec_lane *l, void *dev, const void *host, size_t bytes)
{
    return bytes ? x->op->mem.put(l->lane, dev, host, bytes) : 0;
}

/* Uploads what exec_mark_tokens() has stored for the slots of the step. */
static int
queue_initial_tokens(struct exec *x, struct exec_lane *l, const struct batch *b)
{
    const struct token_history *to = &x->history, *from = &x->initial;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        uint32_t slot = b->segment[i].slot, n = x->n_initial[slot];
        size_t bits = (size_t)slot * to->seen_words, at = (size_t)slot * to->stride;

        if (!n) continue;
        x->n_initial[slot] = 0;
        TRY(put(x, l, to->seen + bits, from->seen + bits, to->seen_words * sizeof *to->seen));
        TRY(put(x, l, to->token + at, from->token + at, n * sizeof *to->token));
    }
    return 0;
}

static bool
share_units(const struct exec_part *a, const struct exec_part *b)
{
    return !a->n || !b->n || (a->first < b->first + b->n && b->first < a->first + a->n);
}

/* With several ranks: queues the step after the steps in flight of other lanes that share device
 * units with it. Kernels of one rank wait for those of others, so without this order the shared
 * units of rank A could be full of kernels of lane 0 and those of rank B full of kernels of lane 1:
 * a deadlock. All ranks start steps in the same order, so steps wait only for earlier ones. */
static int
queue_behind(struct exec *x, struct exec_lane *l, uint64_t step)
{
    if (gpu_facts(x->gpu).ranks == 1) return 0;
    l->out[l->started % STAGES].part = l->part;
    l->out[l->started % STAGES].step = step;
    for (const struct exec_lane *o = x->lane; o < x->lane + x->c.n_lanes; o++)
        for (uint64_t i = o->finished; o != l && i < o->started; i++)
            if (share_units(&o->out[i % STAGES].part, &l->part))
                TRY(x->op->lane.after(l->lane, o->lane, o->out[i % STAGES].step));
    return 0;
}

int
queue_step(struct exec *x, struct exec_lane *l, const struct stage *st, const struct batch *b,
           const struct todo *t, struct outcome *o)
{
    const struct gpu_ops *op = x->op;

    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane != b->lane)
            TRY(op->lane.after(l->lane, x->lane[b->wait[i].lane].lane, b->wait[i].step));
    TRY(queue_behind(x, l, b->step));
    TRY(put(x, l, st->step.dev, st->step.host, st->step.used));
    TRY(put(x, l, st->encode.dev, st->encode.host, st->encode.used));
    TRY(put(x, l, st->project.dev, st->project.host, st->project.used));
    TRY(queue_initial_tokens(x, l, b));
    TRY(put(x, l, l->suppressed, t->suppressed, t->n_suppressed * sizeof *t->suppressed));
    TRY(put(x, l, l->logit_bias, t->logit_bias, t->n_logit_bias * sizeof *t->logit_bias));
    op->profile.work_begin(l->lane);
    TRY(queue_edits(x, l, b, t));
    TRY(queue_copies(x, l, b, t, /* after= */ false));
    if (b->n_encode) {
        op->profile.range_begin(l->lane, "encode");
        TRY(queue_encoders(x, l, b, t));
        op->profile.range_end(l->lane);
    }
    if (l->step.rows.n_tokens) TRY(queue_rows(x, l, t));
    TRY(queue_copies(x, l, b, t, /* after= */ true));
    /* A barrier: when this step is done on one rank, all ranks have computed it. */
    TRY(op->collective.all_reduce(l->lane, tensor_cols(tensor_rows(l->x, 0, 1), 0, 1)));
    op->profile.work_end(l->lane);
    FP_OR(step_queued, TRY(op->mem.put(l->lane, FP_NOWHERE, st->step.host, 8)));
    TRY(sampling_get(x, l, t, o));
    TRY(tensor_output_get_states(x, l, b, o));
    return op->lane.mark(l->lane, b->step);
}
