/* graphs.h - which pieces of a lane's steps run as captured graphs, and what capturing may cost.
 *
 * A piece of few rows runs a graph of so many rows, its bucket: rows beyond the step's are padding. There are
 * five kinds:
 *
 *     GENERATE   the decoder of a step that only generates, a row and a row of logits for every run: from its
 *                first token to its last draw
 *     PROMPTS    the decoder of one with longer runs, to the end of its last layer: there the rows of logits are
 *                not as many as the runs, and the draw is queued behind it
 *     BEAMS      as PROMPTS, but every run has one row, and beams of a search read their source's keys once: in
 *                cross attention they are one run, of which there are half as many as rows at most, each of BEAM_ROWS
 *                at most
 *     ENCODE     the encoder over whole sources
 *     PROJECT    the cross projections of sources
 *
 * One struct graphs a lane holds at most one graph a bucket, kind and partition (a graph stays on the part of the device it
 * was captured on), within its bytes; the least recently used
 * goes. A piece runs plain first (what is made once, is made then), and is captured at its next use, one
 * a step, provided that no step is delayed by more than GRAPHS_DELAY: capturing takes as long as the longest
 * capture so far, less what the device is busy with anyway. Pure: no device, no clock.
 */
#ifndef EXEC_GRAPHS_H
#define EXEC_GRAPHS_H

#include "gpu/gpu.h"

/* RUNS: longer ones, or sources, of a graph; a piece of more of them runs plain. */
enum {
    GRAPHS_BUCKETS = 16,        /* of decoders */
    GRAPHS_SOURCE_BUCKETS = 19, /* of encoders and projections */
    GRAPHS_MAX_PARTITIONS = 5,
    GRAPHS_MOST = GRAPHS_MAX_PARTITIONS * (3 * GRAPHS_BUCKETS + 2 * GRAPHS_SOURCE_BUCKETS),
    GRAPHS_ROWS = 256,
    GRAPHS_SOURCE_ROWS = 512,
    GRAPHS_SEGMENTS = 16,
    GRAPHS_BEAM_ROWS = 8,
    GRAPHS_AGAIN = 64
};
enum graphs_kind { GRAPHS_DECODE, GRAPHS_PREFILL, GRAPHS_BEAMS, GRAPHS_ENCODE, GRAPHS_PROJECT };
#define GRAPHS_DELAY ((nsec)5000000)

struct graphs_slot {
    uint32_t rows, partition, wait; /* wait: plain uses before it is captured */
    enum graphs_kind kind;
    struct graph *graph;        /* NULL: not captured */
    uint64_t bytes, step, turn; /* step: the last that runs it; turn: of the last use */
};

struct graphs {
    uint64_t room, bytes; /* what graphs may take and do take */
    uint64_t turn;
    uint64_t captured; /* the last step that captured one */
    nsec cost;         /* of the longest capture so far */
    uint32_t n;
    struct graphs_slot slot[GRAPHS_MOST];
};

/* Buckets of steps of up to most rows, growing; the last is most itself, where that is below 256. Their
 * number. */
uint32_t graphs_buckets(uint32_t bucket[GRAPHS_BUCKETS], uint32_t most);

/* Of sources of so many rows together; 0: none, they are too many. */
uint32_t graphs_source_bucket(uint32_t rows);

/* The slot of a bucket, kind and partition; NULL: another one than the first GRAPHS_MOST that were asked for. Counts as
 * a use by that step. */
struct graphs_slot *graphs_use(struct graphs *g, enum graphs_kind kind, uint32_t rows,
                               uint32_t partition, uint64_t step);
/* Whether to capture it now; asked once a use. busy: how long the device still has other work. */
bool graphs_may_capture(struct graphs *g, struct graphs_slot *s, nsec busy);
/* It was captured: keep it. *drop is a graph to let go of before the next call, or NULL; more calls are
 * needed while the result is -EAGAIN. -ENOSPC: it does not fit beside those that may still be running
 * (steps after done), or at all: let go of it and run plain. */
int graphs_keep(struct graphs *g, struct graphs_slot *s, struct graph *graph, uint64_t bytes,
                nsec took, uint64_t done, struct graph **drop) MUST_USE;
/* A captured graph of that partition, or GRAPHS_ALL, kept no longer, for the caller to drop; its bucket is captured anew. NULL:
 * there is none. None may be running. */
#define GRAPHS_ALL UINT32_MAX
struct graph *graphs_take(struct graphs *g, uint32_t partition);
/* The device cannot capture after all: s runs plain for good. */
void graphs_never(struct graphs_slot *s);

#endif
