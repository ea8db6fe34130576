/* batch.h - struct batch: one step as arrays; the scheduler writes it, the executor runs it.
 *
 * The scheduler decides everything and never touches a device; the executor reads the batch and
 * decides nothing. Tests of both sides write batches of their own. Two lists divide the tokens of a
 * step: a segment has the decoder tokens of one sequence, an encode has one encoder input.
 *
 *     list         segment A (prefill)  B (decode)   C (decode)   | encode D (encoder input)
 *     token index  0   1   2   3        4            5            | 6   7   8
 *     token        91  17  4   220      FROM_LAST    FROM_LAST    | 8   3   1
 *     pos          64  65  66  67       812          39           | 0   1   2
 *
 * Decoder tokens come first, in the order of segment[]; then encoder tokens, in the order of
 * encode[]. All arrays are host memory of fixed capacity, allocated once by batch_new().
 */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "worker/kv/kv.h"

#define TOKEN_FROM_LAST (-1) /* the device reads last_token[slot], the slot's last sampled token */
/* Token i >= 1 of a decode segment: the draft that the device proposes after last_token[slot]. */
#define TOKEN_DRAFT(i) (-1 - (int32_t)(i))
enum { MAX_BEAMS = 16, MAX_DRAFT = 8 };
enum work { WORK_ENCODER = 1, WORK_PREFILL = 2, WORK_DECODE = 4 };
enum {
    SEGMENT_SAMPLE = 1,
    SEGMENT_PROMPT_LOGPROBS = 2,
    SEGMENT_FIRST_CHUNK = 4,
    SEGMENT_BEAM = 8,
    SEGMENT_MASK = 16, /* the drafts are a tree: mask[] has the tokens that each attends to */
    /* The sequence's previous step has uncommitted drafts: first_pos and pos[] count all of them as
     * accepted. The device moves the segment back by the number of rejected drafts. */
    SEGMENT_AFTER_DRAFTS = 32,
    /* A further beam of the previous segment's search: both have the same cross-attention keys. */
    SEGMENT_SAME_SOURCE = 64
};

/* The consecutive batched tokens of one sequence slot, which is one beam, sample or single output
 * and has one row in the block table of every KV group. K and V of token i are written at position
 * first_pos + i, and its pos[] is the same; in a draft tree pos[] is first_pos + depth in the tree.
 * Before the slot's next step the device moves K and V of accepted drafts to adjacent positions. */
struct batch_segment {
    uint32_t slot, first_token, n_tokens;
    int32_t first_pos;
    uint8_t work, flags;
    uint16_t n_draft; /* the last n_draft tokens of the segment are drafts */
    /* The segment's first logit row. Number of rows: 1 + n_draft with SEGMENT_SAMPLE, n_tokens with
     * SEGMENT_PROMPT_LOGPROBS (the last row also gives the sampled token), else 0. */
    uint32_t first_logit;
    /* With SEGMENT_FIRST_CHUNK in a model with an encoder: first row of the sequence's encoder
     * states in enc_state, which this step projects into cross KV. */
    uint32_t enc_token;
    uint32_t enc_tokens;   /* rows to project; 0: the cross KV exists already */
    uint32_t cross_tokens; /* cross-attention keys (encoder input tokens); 0: decoder-only */
};

/* The computation of n_layers encoder layers, from first_layer on, for one whole encoder input. Its
 * hidden states stay on the device in rows enc_token .. of enc_state between steps. token[] and
 * pos[] are read only if first_layer is 0. */
struct batch_encode {
    uint32_t slot, first_token, n_tokens, enc_token;
    uint16_t first_layer, n_layers;
};

/* The device must not start this batch before `lane` has finished its step `step`, because a slot
 * changes lanes, or the other lane's step still reads a block that this batch reuses. */
struct step_dependency {
    uint64_t step;
    uint32_t lane, zero;
};

struct batch {     /* batch_pack() copies the fields step .. n_masks as they are */
    uint64_t step; /* number of the step in its lane, from 1 */
    uint8_t lane, partition, work, zero;
    /* Number of decoder tokens that the captured graph computes; those beyond the batch's are
     * padding and have no slot. 0: the step runs without a graph. */
    uint32_t bucket;
    uint32_t n_tokens; /* decoder and encoder tokens together */
    uint32_t n_segments, n_logits, n_encode, n_edits, n_copies, n_waits;
    uint32_t n_masks; /* length of mask[]: n_logits, or 0 if no segment has SEGMENT_MASK */
    token_id *token;  /* [n_tokens] */
    int32_t *pos;     /* [n_tokens] */
    struct batch_segment *segment; /* beams of a search are adjacent */
    struct batch_encode *encode;   /* [n_encode] */
    uint32_t *mask;       /* [n_masks] by logit row; bit j: it attends to token j of its segment */
    struct kv_edit *edit; /* [n_edits] applied before the step, in order */
    struct kv_copy *copy; /* [n_copies] */
    struct step_dependency *wait; /* [n_waits] */
    uint32_t max_tokens, max_segments, max_encode, max_edits, max_copies, max_waits;
};

/* The phase of a step with these bits of enum work: "prefill", "decode", "encode", or "mixed". */
static inline const char *
batch_phase(uint8_t work)
{
    return work == WORK_PREFILL   ? "prefill"
           : work == WORK_DECODE  ? "decode"
           : work == WORK_ENCODER ? "encode"
                                  : "mixed";
}

struct batch *batch_new(uint32_t max_tokens, uint32_t max_segments, uint32_t max_edits,
                        uint32_t max_copies) MUST_USE;
struct batch *batch_free(struct batch *b);
CLEAN_FUNC(struct batch, batch_free)

/* Writes *b in packed form, for the other ranks of a tensor-parallel model and for digests. Returns
 * the number of bytes. -ENOSPC: the packed form is larger than cap. */
int batch_pack(const struct batch *b, void *buf, size_t cap) MUST_USE;
/* Returns the largest size that batch_pack() can return for a batch with the capacities of b. */
size_t batch_most_bytes(const struct batch *b);
/* Reads a packed batch into *b. -EBADMSG: its counts, segments or edits contradict each other; b is
 * unchanged or has no tokens. -EMSGSIZE: it is larger than b's capacities; b is unchanged. */
int batch_unpack(struct batch *b, const void *buf, size_t n, struct err *e) MUST_USE;

/* The limits of a worker that runs batches of another process. batch_unpack() checks that a batch
 * is consistent in itself, batch_check() that it is within these limits. After both checks,
 * execution cannot read or write a slot, table entry, block or encoder state that does not exist.
 * Batches of the worker's own scheduler need no check. */
struct batch_limits {
    const struct kv_config *kv; /* KV groups of the model, n_slots, bytes of device and host tier */
    uint32_t n_lanes, n_partitions;
    uint32_t max_tokens, max_enc_tokens; /* decoder and encoder tokens of a step */
    uint32_t vocab, max_len, max_source, n_enc_layers;
    const uint32_t *bucket; /* [n_buckets] graph sizes */
    uint32_t n_buckets;
};

/* Checks *b against the limits. -EBADMSG: e names the first value out of range and its limit. */
int batch_check(const struct batch *b, const struct batch_limits *w, struct err *e) MUST_USE;

struct batch_top {
    token_id id;
    float logprob;
};
/* What the executor returns for a batch. Arrays are indexed by segment unless a length is given,
 * and have the capacities of the batch. */
struct batch_result {
    uint64_t step;
    uint8_t lane;
    int status;          /* 0; -EIO: the step failed and the arrays are not valid */
    uint8_t *n_tokens;   /* number of sampled and accepted tokens, 0 .. 1 + n_draft */
    token_id *token;     /* [n_segments][1 + MAX_DRAFT] */
    float *logprob;      /* [n_logits] of the sampled token, or of the prompt's next token */
    uint32_t *first_top; /* [n_logits + 1] row i has top[first_top[i] .. first_top[i + 1] - 1] */
    /* The most likely tokens of each logit row. With SEGMENT_BEAM they are the possible
     * continuations of the beam, and log-probabilities include penalties and logit bias. */
    struct batch_top *top;
};
