/* batch.h - one step of work, as plain arrays: what the scheduler decided, what the executor does.
 *
 * This is the seam of the worker. The scheduler writes a batch and never touches a device; the
 * executor reads it and never decides anything. Both sides are tested with batches made by hand.
 *
 *     run      A (prefill chunk)   B (decode)   C (decode)   | encode: D (whole source)
 *     row      0   1   2   3       4            5            | 6   7   8
 *     token    91  17  4   220     FROM_LAST    FROM_LAST    | 8   3   1
 *     pos      64  65  66  67      812          39           | 0   1   2
 *
 * Decoder rows come first, in the order of run[]; then encoder rows, in the order of encode[].
 * All host memory with fixed capacity, allocated once by batch_new().
 */
#ifndef SCHED_BATCH_H
#define SCHED_BATCH_H

#include "base/base.h"
#include "base/err.h"
#include "worker/kv/kv.h"

#define TOKEN_FROM_LAST (-1) /* last_token[slot] on the device, whichever lane wrote it */
/* What was guessed on the device behind last_token[slot]: draft i, from 1, is row i of its run. */
#define TOKEN_DRAFT(i) (-1 - (int32_t)(i))
enum { MAX_BEAMS = 16, MAX_DRAFT = 8 }; /* MAX_LANES: kv.h */
enum work { WORK_ENCODER = 1, WORK_PREFILL = 2, WORK_DECODE = 4 };
enum {
    SEGMENT_SAMPLE = 1,
    SEGMENT_PROMPT_LOGPROBS = 2,
    SEGMENT_FIRST_CHUNK = 4,
    SEGMENT_BEAM = 8,
    SEGMENT_MASK = 16, /* its drafts are a tree: mask[] says what a row sees of its run */
    /* The step before it has drafts and is not told yet: first_pos and pos[] count all of them as taken, and
     * the device moves the run back by as many as it refused. */
    SEGMENT_AFTER_DRAFTS = 32,
    SEGMENT_SAME_SOURCE =
        64 /* a beam of the search that the run before is of: its source's keys are the same */
};

/* Rows of one slot, in position order. A slot is one row of every table: one beam or sample. Row i's K and V lie
 * at position first_pos + i, also those of a tree, whose pos[] says how deep it stands; before the slot's next
 * step the device moves those of the rows that were taken together. */
struct batch_segment {
    uint32_t slot, first_token, n_tokens;
    int32_t first_pos;
    uint8_t work, flags;
    uint16_t n_draft;     /* the last n_draft rows are drafts: n_draft + 1 rows of logits */
    uint32_t first_logit; /* its first row of logits, if any: SEGMENT_SAMPLE 1 + n_draft,
                             SEGMENT_PROMPT_LOGPROBS n_tokens (the last one is also the sampled one) */
    uint32_t
        enc_token; /* SEGMENT_FIRST_CHUNK, encoder-decoder: its states, to project into cross KV */
    uint32_t enc_tokens;   /* 0: cross KV is there already (running, or reused) */
    uint32_t cross_tokens; /* tokens of its source: keys of its cross attention; 0: decoder-only */
};

/* Encoder work comes in layer slices: rows are a source's, whole; hidden states stay on the device
 * in enc_state[enc_token ..]. token[] and pos[] are read when first_layer == 0. */
struct batch_encode {
    uint32_t slot, first_token, n_tokens, enc_token;
    uint16_t first_layer, n_layers;
};

/* Not before that lane has finished that step: hand-over of a slot, or a block another lane last read. */
struct batch_wait {
    uint8_t lane;
    uint64_t step;
};

struct batch {
    uint64_t step; /* of this lane, from 1 */
    uint8_t lane, partition, work;
    uint32_t
        bucket; /* decoder rows the graph runs (the batch's or more), 0 = no graph; those beyond the
                   batch's: no slot */
    uint32_t n_tokens; /* decoder and encoder rows together */
    uint32_t n_segments, n_logits, n_encode, n_edits, n_copies, n_waits;
    uint32_t n_masks;              /* n_logits, or 0 when no run has SEGMENT_MASK */
    token_id *token;               /* [n_tokens] */
    int32_t *pos;                  /* [n_tokens] */
    struct batch_segment *segment; /* [n_segments]; the beams of a request are neighbours */
    struct batch_encode *encode;   /* [n_encode] */
    uint32_t *mask;                /* [n_masks] by row of logits: bit j: it sees row j of its run */
    struct kv_edit *edit;    /* [n_edits] applied first, in order; EDIT_COPY: the group's row */
    struct kv_copy *copy;    /* [n_copies] */
    struct batch_wait *wait; /* [n_waits] */
    uint32_t max_tokens, max_segments, max_encode, max_edits, max_copies,
        max_waits; /* capacities */
};

struct batch *batch_new(uint32_t max_tokens, uint32_t max_segments, uint32_t max_edits,
                        uint32_t max_copies) MUST_USE;
struct batch *batch_free(struct batch *b);
CLEAN_FUNC(struct batch, batch_free)

/* Flat bytes for a ring record: traces, the black box, tensor-parallel followers. */
int batch_pack(const struct batch *b, void *buf, size_t cap) MUST_USE;
/* What one of that capacity takes at most. */
size_t batch_most_bytes(const struct batch *b);
int batch_unpack(struct batch *b, const void *buf, size_t n, struct err *e) MUST_USE;

struct batch_top {
    token_id id;
    float logprob;
};
struct batch_result { /* capacity as the batch; by run unless said otherwise */
    uint64_t step;
    uint8_t lane;
    int status;        /* 0, or -EIO: nothing of this step counts */
    uint8_t *n_tokens; /* 0 .. 1 + n_draft */
    token_id *token;   /* [n_segments][1 + MAX_DRAFT] */
    float *logprob;    /* [n_logits] of the token sampled, or of the prompt's next token */
    uint32_t
        *first_top; /* [n_logits + 1] row i's tops are top[first_top[i]] .. [first_top[i + 1]] */
    struct batch_top
        *top; /* SEGMENT_BEAM: its candidates, log-probabilities after all that changes them */
};

#endif
