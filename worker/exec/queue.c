/* queue.c - one step, in the order it is queued: what must be waited for, the step's arrays, table edits,
 * block copies, encoder slices, tokens sampled by the step before, cross projections of new sources, the
 * decoder, logits and sampling, results, the mark. A graph holds tokens and decoder, and logits and sampling
 * where the step only generates.
 */
#include "base/clock.h"
#include "base/log.h"
#include "worker/exec/inside.h"

#include <errno.h>

enum { SLICE_ROWS = 2048, SLICE_LAYERS = 4 };

static int
queue_encoders(struct exec *x, struct exec_lane *l, const struct batch *b, const struct todo *t)
{
    struct step *s = &l->step;
    uint32_t row = 0;

    for (uint32_t i = 0, n; i < b->n_encode; i += n) {
        const struct batch_encode *a = &b->encode[i];
        uint32_t n_rows = a->n_rows;

        for (n = 1; i + n < b->n_encode && stage_follows(b, i + n); n++)
            n_rows += b->encode[i + n].n_rows;
        s->enc = (struct rows){
            .n_rows = n_rows,
            .n_runs = n,
            .token = t->enc_token + row,
            .pos = t->enc_pos + row,
            .seat = t->enc_seat + row,
            .run = t->enc_run + i,
        };
        s->enc_x = tensor_rows(x->enc_state, a->enc_row, n_rows);
        s->enc_out = tensor_rows(x->enc_out, a->enc_row, n_rows);
        TRY(x->m->arch->encode(x->m, s, a->first_layer, a->n_layers));
        row += n_rows;
    }
    return 0;
}

/* All new sources at once: a layer's weights are read once, however many there are. */
static int
queue_projections(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    struct step *s = &l->step;

    if (!t->n_project) return 0;
    s->project =
        (struct rows){ .n_rows = t->n_project, .pos = t->project_pos, .seat = t->project_seat };
    if (t->project_first == NOT_TOGETHER) {
        s->project_x = tensor_rows(l->sources, 0, t->n_project);
        TRY(x->op->rows(l->lane, s->project_x, x->enc_out, t->project_row));
    } else
        s->project_x = tensor_rows(x->enc_out, t->project_first, t->n_project);
    return x->m->arch->project_cross(x->m, s, 0, x->m->shape.n_layers);
}

/* A step of many rows in slices: the driver's queue fills up and then takes launches only as fast as the
 * device gets rid of them. */
static int
queue_layers(struct exec *x, struct exec_lane *l)
{
    uint32_t n = x->m->shape.n_layers, slice = l->step.rows.n_rows > SLICE_ROWS ? SLICE_LAYERS : n;

    for (uint32_t first = 0; first < n; first += slice) {
        TRY(x->m->arch->forward(x->m, &l->step, first, MIN(slice, n - first)));
        if (x->c.beat) x->c.beat(x->c.beat_arg);
    }
    return 0;
}

static int
queue_forward(struct exec *x, struct exec_lane *l)
{
    const struct gpu_ops *op = x->op;

    op->range_begin(l->lane, "forward");
    TRY(op->tokens(l->lane, l->step.rows, x->last));
    TRY(queue_layers(x, l));
    op->range_end(l->lane);
    return 0;
}

static int
queue_draw(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    x->op->range_begin(l->lane, "sample");
    TRY(draw_queue(x, l, t));
    x->op->range_end(l->lane);
    return 0;
}

/* What a graph holds. */
static int
queue_graph(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    TRY(queue_forward(x, l));
    return t->graph->longer ? 0 : queue_draw(x, l, t);
}

/* How long the steps that are out will still take, as far as can be told. */
static nsec
busy(const struct exec_lane *l, nsec now)
{
    if (l->started == l->finished) return 0;
    return MAX(l->since + l->step_ns - now, (nsec)0);
}

void
drop_graphs(struct exec *x, struct exec_lane *l)
{
    struct graph *g;

    while ((g = graphs_take(&l->graphs))) x->op->graph_drop(l->lane, g);
}

/* Record the decoder's part into t's slot, if that is due; it stays empty where it is not, or cannot be. */
static void
capture(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    const struct gpu_ops *op = x->op;
    struct graph *graph = NULL, *drop;
    uint64_t bytes = 0;
    nsec began = clock_now();
    int r, end;

    if (!graphs_may_capture(&l->graphs, t->graph, busy(l, began))) return;
    r = op->graph_begin(l->lane);
    if (r == 0) {
        r = queue_graph(x, l, t);
        end = op->graph_end(l->lane, &graph, &bytes);
        if (r == 0) r = end;
    }
    if (r < 0) {
        log_debug("steps of %u rows cannot be captured, running them plain: %s", t->graph->rows,
                  gpu_why(x->gpu));
        graphs_never(t->graph);
    }
    while (r == 0 && !t->graph->graph) {
        r = graphs_keep(&l->graphs, t->graph, graph, bytes, clock_now() - began,
                        op->lane_done(l->lane), &drop);
        if (drop) op->graph_drop(l->lane, drop);
        if (r == -EAGAIN) r = 0;
    }
    if (r < 0 && graph) op->graph_drop(l->lane, graph);
}

/* The decoder's part, as a graph where there is one. */
static int
run_decoder(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    bool longer = true;

    if (t->graph && !t->graph->graph) capture(x, l, t);
    if (t->graph && t->graph->graph) {
        TRY(x->op->graph_run(l->lane, t->graph->graph));
        longer = t->graph->longer;
    } else
        TRY(queue_forward(x, l));
    return longer ? queue_draw(x, l, t) : 0;
}

static int
queue_rows(struct exec *x, struct exec_lane *l, const struct todo *t)
{
    const struct gpu_ops *op = x->op;
    struct step *s = &l->step;

    s->x = tensor_rows(l->x, 0, s->rows.n_rows);
    s->normed = tensor_rows(l->normed, 0, s->rows.n_rows);
    if (t->n_see) {
        TRY(op->tokens(l->lane, s->rows, x->last));
        TRY(op->see(l->lane, x->seen, x->seen_words, s->rows, t->see, t->n_see));
    }
    TRY(queue_projections(x, l, t));
    return run_decoder(x, l, t);
}

/* History of seats that were taken over. */
static int
queue_recalls(struct exec *x, struct exec_lane *l, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_runs; i++) {
        uint32_t seat = b->run[i].seat;
        size_t at = (size_t)seat * x->seen_words;

        if (!x->recall[seat]) continue;
        x->recall[seat] = false;
        TRY(x->op->put(l->lane, x->seen + at, x->recalled + at, x->seen_words * sizeof *x->seen));
    }
    return 0;
}

int
queue_step(struct exec *x, struct exec_lane *l, const struct stage *st, const struct batch *b,
           const struct todo *t, struct outcome *o)
{
    const struct gpu_ops *op = x->op;

    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].lane != b->lane)
            TRY(op->lane_after(l->lane, x->lane[b->wait[i].lane].lane, b->wait[i].step));
    if (st->used) TRY(op->put(l->lane, st->dev, st->host, st->used));
    TRY(queue_recalls(x, l, b));
    if (t->n_ban) TRY(op->put(l->lane, l->ban, st->ban, t->n_ban * sizeof *st->ban));
    op->work_begin(l->lane);
    TRY(queue_edits(x, l, b, t));
    TRY(queue_copies(x, l, b, t, /* after= */ false));
    if (b->n_encode) {
        op->range_begin(l->lane, "encode");
        TRY(queue_encoders(x, l, b, t));
        op->range_end(l->lane);
    }
    if (l->step.rows.n_rows) TRY(queue_rows(x, l, t));
    TRY(queue_copies(x, l, b, t, /* after= */ true));
    op->work_end(l->lane);
    TRY(draw_get(x, l, t, o));
    return op->lane_mark(l->lane, b->step);
}
