/* capture.c - pieces of a step on the device: as a graph, recorded now, or plain. What is due when is
 * graphs.c's. */
#include "base/clock.h"
#include "base/log.h"
#include "worker/exec/exec_internal.h"

#include <errno.h>

/* How long the steps that are out will still take, as far as can be told. */
static nsec
busy(const struct exec_lane *l, nsec now)
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

/* Record a piece into its slot, if that is due; it stays empty where it is not, or cannot be. */
static void
capture(struct exec *x, struct exec_lane *l, const struct todo *t, struct graphs_slot *slot,
        piece_fn *piece)
{
    const struct gpu_ops *op = x->op;
    struct graph *graph = NULL, *drop;
    uint64_t bytes = 0;
    nsec began = clock_now();
    int r, end;

    if (!graphs_may_capture(&l->graphs, slot, busy(l, began))) return;
    r = op->graph.begin(l->lane);
    if (r == 0) {
        r = piece(x, l, t);
        end = op->graph.end(l->lane, &graph, &bytes);
        if (r == 0) r = end;
    }
    if (r < 0) {
        log_debug("steps of %u rows cannot be captured, running them plain: %s", slot->rows,
                  gpu_why(x->gpu));
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
