/* graphs.h - which steps of a lane run as captured graphs, and what capturing may cost.
 *
 * A step of few rows runs a graph of so many rows, its bucket: rows beyond the step's are padding. There are
 * two kinds. A step whose decoder only generates, a row and a row of logits for every run, is a graph from
 * its first token to its last draw. In one with longer runs, of prompts, the rows of logits are not as many
 * as the runs: there the graph ends with the last layer, and the draw is queued behind it.
 *
 * One struct graphs a lane holds at most one graph a bucket and kind, within its bytes; the least recently
 * used goes. It runs plain first (what is made once, is made then), and is captured at its next use,
 * provided that no step is delayed by more than GRAPHS_DELAY: capturing takes as long as the longest
 * capture so far, less what the device is busy with anyway. Pure: no device, no clock.
 */
#ifndef EXEC_GRAPHS_H
#define EXEC_GRAPHS_H

#include "gpu/gpu.h"

/* LONGER: runs of more than one row in a graph; a step of more of them runs plain. */
enum {
    GRAPHS_BUCKETS = 16,
    GRAPHS_MOST = 2 * GRAPHS_BUCKETS,
    GRAPHS_ROWS = 256,
    GRAPHS_LONGER = 16,
    GRAPHS_AGAIN = 64
};
#define GRAPHS_DELAY ((nsec)5000000)

struct graphs_slot {
    uint32_t rows, wait;        /* wait: plain uses before it is captured */
    bool longer;                /* the kind with longer runs */
    struct graph *graph;        /* NULL: not captured */
    uint64_t bytes, step, turn; /* step: the last that runs it; turn: of the last use */
};

struct graphs {
    uint64_t room, bytes; /* what graphs may take and do take */
    uint64_t turn;
    nsec cost; /* of the longest capture so far */
    uint32_t n;
    struct graphs_slot slot[GRAPHS_MOST];
};

/* Buckets of steps of up to most rows, growing; the last is most itself, where that is below 256. Their
 * number. */
uint32_t graphs_buckets(uint32_t bucket[GRAPHS_BUCKETS], uint32_t most);

/* The slot of a bucket and kind; NULL: another one than the first GRAPHS_MOST that were asked for. Counts as
 * a use by that step. */
struct graphs_slot *graphs_use(struct graphs *g, uint32_t rows, bool longer, uint64_t step);
/* Whether to capture it now; asked once a use. busy: how long the device still has other work. */
bool graphs_may_capture(struct graphs *g, struct graphs_slot *s, nsec busy);
/* It was captured: keep it. *drop is a graph to let go of before the next call, or NULL; more calls are
 * needed while the result is -EAGAIN. -ENOSPC: it does not fit beside those that may still be running
 * (steps after done), or at all: let go of it and run plain. */
int graphs_keep(struct graphs *g, struct graphs_slot *s, struct graph *graph, uint64_t bytes,
                nsec took, uint64_t done, struct graph **drop) MUST_USE;
/* One of the captured graphs, kept no longer, for the caller to drop; its bucket is captured anew. NULL: there
 * is none. None may be running. */
struct graph *graphs_take(struct graphs *g);
/* The device cannot capture after all: s runs plain for good. */
void graphs_never(struct graphs_slot *s);

#endif
