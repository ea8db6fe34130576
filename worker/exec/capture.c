/* capture.c - queues a piece of a step (exec_internal.h), as a graph or plain. A piece without a
 * graph is captured first if graphs_may_capture() allows a capture in this step. */
#include "base/clock.h"
#include "base/log.h"
#include "worker/exec/exec_internal.h"

/* Returns the estimated time until the steps in flight are done. */
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

/* Captures a piece and stores the graph in its slot, if a capture is due and possible. */
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
        log_debug(
            "a part of a step with %u rows cannot be captured and will run without a graph: %s",
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
