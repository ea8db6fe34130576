/* launch.c - queues one step, in this order: waits, the step's arrays, table edits, block copies,
 * encoder slices, tokens sampled by the previous step, cross projections of new encoder inputs, the
 * decoder, logits and sampling, results, the mark. Encoder, projections and decoder are pieces that
 * may run as graphs; a piece is captured if graphs.c allows it.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "worker/exec/exec_internal.h"

#include <errno.h>

/* Estimated time until the steps in flight are done. */
static nsec
busy_time(const struct exec_lane *l, nsec now)
{
    if (l->started == l->finished) return 0;
    return MAX(l->since + l->step_ns - now, (nsec)0);
}

void
drop_graphs(struct exec *x, struct exec_lane *l, uint32_t partition)
{
    struct graph *g;

    while ((g = graphs_take(&l->graphs, partition))) x->op->graph.drop(l->lane, g);
}

/* Captures a piece into its slot if a capture is due and possible. */
static void
capture(struct exec *x, struct exec_lane *l, const struct todo *t, struct graphs_slot *slot,
        piece_fn *piece)
{
    const struct gpu_ops *op = x->op;
    struct graph *graph = NULL, *drop;
    uint64_t bytes = 0;
    nsec began = clock_now();
    int r, end;

    if (!graphs_may_capture(&l->graphs, slot, busy_time(l, began))) return;
    r = op->graph.begin(l->lane);
    if (r == 0) {
        r = piece(x, l, t);
        end = op->graph.end(l->lane, &graph, &bytes);
        if (r == 0) r = end;
    }
    if (r < 0) {
        log_debug("a piece of %u rows cannot be captured and will run without a graph: %s",
                  slot->rows, gpu_why(x->gpu));
        graphs_never(slot);
    }
    while (r == 0 && !slot->graph) {
        r = graphs_keep(&l->graphs, slot, graph, bytes, clock_now() - began, op->lane.done(l->lane),
                        &drop);
        if (drop) op->graph.drop(l->lane, drop);
        if (r == -EAGAIN) r = 0;
    }
    if (r < 0 && graph) op->graph.drop(l->lane, graph);
}

int
queue_piece(struct exec *x, struct exec_lane *l, const struct todo *t, struct graphs_slot *slot,
            piece_fn *piece)
{
    if (slot && !slot->graph) capture(x, l, t, slot, piece);
    return slot && slot->graph ? x->op->graph.launch(l->lane, slot->graph) : piece(x, l, t);
}

enum { SLICE_ROWS = 2048, SLICE_LAYERS = 4 };

/* A large step is queued in slices with heartbeats between them: when the driver's queue is full, a
 * launch blocks until the device has finished an earlier one. */
static int
queue_layers(struct exec *x, struct exec_lane *l)
{
    uint32_t n = x->m->shape.n_layers,
             slice = l->step.rows.n_tokens > SLICE_ROWS ? SLICE_LAYERS : n;

    for (uint32_t first = 0; first < n; first += slice) {
        TRY(x->m->arch->forward(x->m, &l->step, first, MIN(slice, n - first)));
        if (x->c.heartbeat) x->c.heartbeat(x->c.heartbeat_arg);
    }
    return 0;
}

static int
queue_forward(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    const struct gpu_ops *op = x->op;

    (void)t;
    op->profile.range_begin(l->lane, "forward");
    TRY(op->step.resolve_tokens(l->lane, l->step.rows, x->last));
    TRY(queue_layers(x, l));
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

/* Decoder piece of a GRAPHS_DECODE graph. */
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
        TRY(op->step.mark_tokens(l->lane, x->seen, x->seen_words, s->rows, t->marked, t->n_marked));
    }
    TRY(queue_projections(x, l, t));
    return queue_decoder(x, l, t);
}

/* Uploads the seen tokens of adopted sequences. */
static int
queue_seen_tokens(struct exec *x, struct exec_lane *l, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++) {
        uint32_t slot = b->segment[i].slot;
        size_t at = (size_t)slot * x->seen_words;

        if (!x->upload_seen[slot]) continue;
        x->upload_seen[slot] = false;
        TRY(x->op->mem.put(l->lane, x->seen + at, x->initial_seen + at,
                           x->seen_words * sizeof *x->seen));
    }
    return 0;
}

static int
put_image(struct exec *x, struct exec_lane *l, const struct image *im)
{
    return im->used ? x->op->mem.put(l->lane, im->dev, im->host, im->used) : 0;
}

static bool
share_units(const struct exec_part *a, const struct exec_part *b)
{
    return !a->n || !b->n || (a->first < b->first + b->n && b->first < a->first + a->n);
}

/* With several ranks: queues the step after the steps in flight of other lanes that share device
 * units. Kernels of different ranks wait for each other, so without this order the shared units of
 * rank A could be full of kernels of lane 0 and those of rank B full of kernels of lane 1: a
 * deadlock. All ranks start steps in the same order, so each step waits for earlier steps only. */
static int
queue_behind(struct exec *x, struct exec_lane *l, uint64_t step)
{
    if (gpu_ranks(x->gpu) == 1) return 0;
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
    TRY(put_image(x, l, &st->step));
    TRY(put_image(x, l, &st->encode));
    TRY(put_image(x, l, &st->project));
    TRY(queue_seen_tokens(x, l, b));
    if (t->n_suppressed)
        TRY(op->mem.put(l->lane, l->suppressed, t->suppressed,
                        t->n_suppressed * sizeof *t->suppressed));
    if (t->n_logit_bias)
        TRY(op->mem.put(l->lane, l->logit_bias, t->logit_bias,
                        t->n_logit_bias * sizeof *t->logit_bias));
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
    /* A barrier: a step that is done on one rank has been written by every rank. */
    TRY(op->collective.all_reduce(l->lane, tensor_cols(tensor_rows(l->x, 0, 1), 0, 1)));
    op->profile.work_end(l->lane);
    FP_OR(step_queued, TRY(op->mem.put(l->lane, FP_NOWHERE, st->step.host, 8)));
    TRY(sampling_get(x, l, t, o));
    TRY(tensor_output_get_states(x, l, b, o));
    return op->lane.mark(l->lane, b->step);
}
