/* graphs.h - which pieces of a lane's steps run as captured graphs, and when graphs are captured.
 *
 * A piece is the part of a step that can be one graph. A small piece runs as the graph of its
 * bucket, a padded number of rows; otherwise it runs plain, without a graph. There are 5 kinds:
 *
 *     DECODE     decoder of a step with one token and one logit row per segment, including sampling
 *     PREFILL    decoder of a step with longer segments, to the end of the last layer; sampling is
 *                queued after the graph, because the number of logit rows varies. Up to
 *                GRAPHS_PREFILL_ROWS: a larger step takes longer on the device than its launches
 *                take on the host, and padding would only add to it
 *     BEAMS      as PREFILL, but every segment has one token. Cross attention joins the beams of a
 *                search into one segment, which reads the encoder input's keys once: at most
 *                rows / 2 segments of at most GRAPHS_BEAM_ROWS rows
 *     ENCODE     the encoder over whole inputs
 *     PROJECT    cross projections of encoder states
 *
 * A lane's struct graphs holds at most one graph for each bucket, kind and partition, because a
 * graph keeps the device units of its capture. The least recently used graph is dropped if the
 * memory limit is reached. A piece first runs plain, so that one-time initialisation is outside of
 * the graph, and is captured at its next use. A step captures at most one piece, and only if the
 * capture delays the step by at most GRAPHS_DELAY: the longest capture so far minus the time that
 * the device is still busy. No device calls, no clock.
 */
#pragma once
#include "gpu/gpu.h"

/* GRAPHS_SOURCES: most encoder inputs in a graph. GRAPHS_SEGMENTS: most segments with several
 * tokens; graphs_segments() returns the number for a bucket. GRAPHS_AGAIN: plain uses of a piece
 * before its next capture, after its graph was dropped or did not fit. */
enum {
    GRAPHS_BUCKETS = 24,        /* buckets of decoders */
    GRAPHS_SOURCE_BUCKETS = 19, /* buckets of encoders and projections */
    GRAPHS_MAX_PARTITIONS = 5,
    GRAPHS_MOST = GRAPHS_MAX_PARTITIONS * (3 * GRAPHS_BUCKETS + 2 * GRAPHS_SOURCE_BUCKETS),
    GRAPHS_ROWS = 1024,
    GRAPHS_PREFILL_ROWS = 256,
    GRAPHS_SOURCE_ROWS = 512,
    GRAPHS_SOURCES = 16,
    GRAPHS_SEGMENTS = 64,
    GRAPHS_BEAM_ROWS = 8,
    GRAPHS_AGAIN = 64
};
enum graphs_kind { GRAPHS_DECODE, GRAPHS_PREFILL, GRAPHS_BEAMS, GRAPHS_ENCODE, GRAPHS_PROJECT };
#define GRAPHS_DELAY ((nsec)5000000)

struct graphs_slot {
    uint32_t rows, partition, wait; /* wait: plain uses left before the capture */
    enum graphs_kind kind;
    struct graph *graph;        /* NULL: the piece has not been captured */
    uint64_t bytes, step, used; /* step: last step that ran it; used: value of n_uses then */
};

struct graphs {
    uint64_t capacity, bytes; /* memory limit; memory in use */
    uint64_t n_uses;
    uint64_t captured; /* last step that captured a graph */
    nsec cost;         /* longest capture so far */
    uint32_t n;
    struct graphs_slot slot[GRAPHS_MOST];
};

/* Sets the ascending buckets of decoders with at most `most` rows; most < GRAPHS_ROWS is a bucket
 * itself. Returns the number of buckets. */
uint32_t graphs_buckets(uint32_t bucket[GRAPHS_BUCKETS], uint32_t most);
/* Returns how many segments with several tokens the graph of a bucket has. */
static inline uint32_t
graphs_segments(uint32_t bucket)
{
    return MIN(bucket / 2, (uint32_t)GRAPHS_SEGMENTS);
}

/* Returns the bucket for encoder inputs of `rows` rows in total; 0: too many for a graph. */
uint32_t graphs_source_bucket(uint32_t rows);

/* Returns the entry for a bucket, kind and partition, and marks it as used by that step. NULL: all
 * GRAPHS_MOST entries are taken. */
struct graphs_slot *graphs_use(struct graphs *g, enum graphs_kind kind, uint32_t rows,
                               uint32_t partition, uint64_t step);
/* True if s should be captured now. Call it once per use. busy: time until the device is idle. */
bool graphs_may_capture(struct graphs *g, struct graphs_slot *s, nsec busy);
/* Stores a captured graph. *drop: a graph that the caller must drop before the next call, or NULL.
 * -EAGAIN: call again. -ENOSPC: the graph is too large, or all others may be running (their last
 * step is after done); the caller drops the new graph and runs plain. */
int graphs_keep(struct graphs *g, struct graphs_slot *s, struct graph *graph, uint64_t bytes,
                nsec took, uint64_t done, struct graph **drop) MUST_USE;
/* Removes one captured graph of a partition, or of any with GRAPHS_ALL, and returns it; the caller
 * drops it. NULL: none left. The graph must not be running. */
#define GRAPHS_ALL UINT32_MAX
struct graph *graphs_take(struct graphs *g, uint32_t partition);
/* Makes s run plain from now on, because the device cannot capture it. */
void graphs_never(struct graphs_slot *s);
