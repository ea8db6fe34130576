/* batch.h - one step as plain arrays: what the scheduler decided and what the executor does.
 *
 * The batch is the interface between the two halves of the worker. The scheduler writes a batch and
 * never touches a device; the executor reads it and decides nothing. Tests of both sides write
 * batches of their own.
 *
 *     segment  A (prefill chunk)   B (decode)   C (decode)   | encode: D (encoder input)
 *     index    0   1   2   3       4            5            | 6   7   8
 *     token    91  17  4   220     FROM_LAST    FROM_LAST    | 8   3   1
 *     pos      64  65  66  67      812          39           | 0   1   2
 *
 * Decoder tokens come first, in the order of segment[]; then encoder tokens, in the order of
 * encode[]. All arrays are host memory of fixed capacity, allocated once by batch_new().
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/kv/kv.h"

#define TOKEN_FROM_LAST (-1) /* last_token[slot] on the device, whichever lane wrote it */
/* Draft token i (from 1), proposed on the device after last_token[slot]: token i of its segment. */
#define TOKEN_DRAFT(i) (-1 - (int32_t)(i))
enum { MAX_BEAMS = 16, MAX_DRAFT = 8 }; /* MAX_LANES: kv.h */
enum work { WORK_ENCODER = 1, WORK_PREFILL = 2, WORK_DECODE = 4 };
enum {
    SEGMENT_SAMPLE = 1,
    SEGMENT_PROMPT_LOGPROBS = 2,
    SEGMENT_FIRST_CHUNK = 4,
    SEGMENT_BEAM = 8,
    SEGMENT_MASK = 16, /* its drafts are a tree: mask[] gives the tokens that each one attends to */
    /* The previous step has drafts and is not committed: first_pos and pos[] count all of them as
     * accepted. The device moves the segment back by the number of rejected drafts. */
    SEGMENT_AFTER_DRAFTS = 32,
    /* Another beam of the previous segment's search: the cross-attention keys are the same. */
    SEGMENT_SAME_SOURCE = 64
};

/* Consecutive batched tokens of one slot. A slot is one row of every block table: one beam or one
 * sample. K and V of token i are written at first_pos + i, also for a draft tree, whose pos[] is
 * the depth in the tree. Before the slot's next step the device compacts the accepted ones. */
struct batch_segment {
    uint32_t slot, first_token, n_tokens;
    int32_t first_pos;
    uint8_t work, flags;
    uint16_t n_draft; /* the last n_draft tokens are drafts; n_draft + 1 logit rows */
    /* First logit row, if any: 1 + n_draft rows with SEGMENT_SAMPLE, n_tokens rows with
     * SEGMENT_PROMPT_LOGPROBS (the last one is also the sampled one). */
    uint32_t first_logit;
    /* With SEGMENT_FIRST_CHUNK and an encoder: first row of its states in enc_state, to be
     * projected into cross KV. */
    uint32_t enc_token;
    uint32_t enc_tokens;   /* 0: the cross KV exists already (later chunk, or reused) */
    uint32_t cross_tokens; /* encoder input tokens: keys of cross attention; 0: decoder-only */
};

/* Some layers of one whole encoder input. Hidden states stay on the device in enc_state[enc_token
 * ..]. token[] and pos[] are read only if first_layer is 0. */
struct batch_encode {
    uint32_t slot, first_token, n_tokens, enc_token;
    uint16_t first_layer, n_layers;
};

/* The step must not start before `lane` has finished `step`: a slot changes lanes, or a block was
 * last read by the other lane. */
struct step_dependency {
    uint64_t step;
    uint32_t lane, zero;
};

struct batch {     /* batch_pack() packs the fields from step to n_masks as they are */
    uint64_t step; /* of this lane, from 1 */
    uint8_t lane, partition, work, zero;
    /* Decoder tokens that the graph computes, at least those of the batch; 0: no graph. The padding
     * has no slot. */
    uint32_t bucket;
    uint32_t n_tokens; /* decoder and encoder tokens together */
    uint32_t n_segments, n_logits, n_encode, n_edits, n_copies, n_waits;
    uint32_t n_masks;              /* n_logits, or 0 if no segment has SEGMENT_MASK */
    token_id *token;               /* [n_tokens] */
    int32_t *pos;                  /* [n_tokens] */
    struct batch_segment *segment; /* [n_segments]; the beams of a request are neighbours */
    struct batch_encode *encode;   /* [n_encode] */
    uint32_t *mask;       /* [n_masks] by logit row: bit j: attends to token j of its segment */
    struct kv_edit *edit; /* [n_edits] applied before the step, in order */
    struct kv_copy *copy; /* [n_copies] */
    struct step_dependency *wait; /* [n_waits] */
    uint32_t max_tokens, max_segments, max_encode, max_edits, max_copies, max_waits;
};

struct batch *batch_new(uint32_t max_tokens, uint32_t max_segments, uint32_t max_edits,
                        uint32_t max_copies) MUST_USE;
struct batch *batch_free(struct batch *b);
CLEAN_FUNC(struct batch, batch_free)

/* Serializes a batch: traces, the black box, tensor-parallel ranks. Returns the number of bytes;
 * -ENOSPC: more than cap. */
int batch_pack(const struct batch *b, void *buf, size_t cap) MUST_USE;
/* Upper bound of batch_pack() for a batch with the capacities of b. */
size_t batch_most_bytes(const struct batch *b);
/* Reads a packed batch. -EBADMSG: its parts are inconsistent; -EMSGSIZE: larger than b's
 * capacities. b is empty after an error of its parts. */
int batch_unpack(struct batch *b, const void *buf, size_t n, struct err *e) MUST_USE;

/* The limits of a worker. batch_unpack() checks that the parts of a batch fit each other;
 * batch_check() checks them against the limits. After both, execution cannot read or write a slot,
 * table entry, block or encoder state that does not exist. Batches of the worker's own scheduler
 * need no check. */
struct batch_limits {
    const struct kv_config *kv; /* groups of model_groups(), n_slots, bytes of both tiers */
    uint32_t n_lanes, n_partitions;
    uint32_t max_tokens, max_enc_tokens; /* decoder and encoder tokens of a step */
    uint32_t vocab, max_len, max_source, n_enc_layers;
    const uint32_t *bucket; /* [n_buckets] graph sizes */
    uint32_t n_buckets;
};

/* -EBADMSG: the message names the first part that is out of range, with its numbers. */
int batch_check(const struct batch *b, const struct batch_limits *w, struct err *e) MUST_USE;

struct batch_top {
    token_id id;
    float logprob;
};
struct batch_result { /* indexed by segment unless stated otherwise; capacities as the batch */
    uint64_t step;
    uint8_t lane;
    int status;          /* 0, or -EIO: the step failed and no result is valid */
    uint8_t *n_tokens;   /* sampled and accepted tokens, 0 .. 1 + n_draft */
    token_id *token;     /* [n_segments][1 + MAX_DRAFT] */
    float *logprob;      /* [n_logits] of the sampled token, or of the prompt's next token */
    uint32_t *first_top; /* [n_logits + 1] logit row i: top[first_top[i]] .. [first_top[i + 1]] */
    /* With SEGMENT_BEAM: the candidates, log-probabilities after penalties and logit bias. */
    struct batch_top *top;
};
