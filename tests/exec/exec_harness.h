/* exec_harness.h - runs batches without a scheduler: each slot computes its prompt and generates.
 *
 * Plain table edits assign blocks, in reverse order of positions. Two steps of a lane may be in
 * flight, so every generated token is TOKEN_FROM_LAST in the next batch.
 */
#pragma once
#include "worker/exec/exec.h"

enum { HARNESS_SLOTS = 20, HARNESS_LEN = 512, HARNESS_HOST = 1 << 20 };

struct harness_options {
    const char *dir, *isa, *device; /* device NULL: cpu */
    enum dtype dtype;               /* of matrices; 0: fp32 */
    bool fast;                      /* numerics: fast */
    uint64_t random;                /* not 0: weights=random:SEED */
    uint32_t tokens_per_block, max_tokens, n_lanes;
    uint32_t units;      /* of each lane; 0: an equal share */
    bool parts;          /* steps alternate between 3 partitions */
    enum dtype kv;       /* 0: fp32 */
    uint32_t enc_layers; /* per step; 0: all, with the first decoder chunk */
    bool drop;           /* drop blocks behind a window */
    bool twice;          /* two steps of a lane in flight */
    bool buckets;        /* batches have a graph bucket */
    uint64_t graphs_memory;
    bool brief;
    uint32_t rank, n_ranks; /* with the rank group's memfd; 0: one rank */
    int group_fd;
    void (*opened)(struct gpu *g); /* changes the device for a test; may be NULL */
};

struct harness_slot {
    const token_id *source;
    uint32_t n_source;
    token_id token[HARNESS_LEN]; /* n_prompt prompt tokens, then n_new generated */
    uint32_t n_prompt, n_new;
    struct sampling how;
    bool all;  /* prompt log-probabilities */
    bool beam; /* beam; samples outside of graphs */
    /* same search and encoder input as the previous slot */
    bool joins;
    float *lp;                  /* [n_prompt + n_new][vocab] by position, or NULL */
    float logprob[HARNESS_LEN]; /* reported, by position of the token */

    uint64_t late; /* steps of the lane before the slot starts */
    bool active;
    uint32_t planned, enc_token, enc_done, set[MAX_GROUPS], gone[MAX_GROUPS];
};

struct harness {
    struct harness_options o;
    struct gpu *gpu;
    struct model *m;
    struct kv_config kv;
    struct arena arena;
    struct host_memory host; /* HARNESS_HOST bytes */
    uint64_t at[MAX_GROUPS]; /* offset of a group's blocks in bytes */
    struct exec *x;
    struct batch b;
    struct batch_segment out[MAX_LANES][2][HARNESS_SLOTS]; /* segments of steps in flight */
    uint32_t n_out[MAX_LANES][2];
    uint64_t started[MAX_LANES], finished[MAX_LANES];
    struct harness_slot slot[HARNESS_SLOTS];
};

/* Fails the test with the error message if something cannot be opened. */
void harness_open(struct harness *h, const struct harness_options *o);
void harness_close(struct harness *h);
/* For options.opened: replaces the op table of the device by *ops, and the checking table, which
 * holds a copy of the entries without checks. */
void harness_replace_ops(struct gpu *g, const struct gpu_ops *ops);

/* Returns h->b, emptied. */
struct batch *harness_batch(struct harness *h, unsigned lane);
/* The block of a slot's table entry. */
slice_id harness_block(const struct harness *h, uint32_t g, uint32_t slot, uint32_t entry);
/* Adds edits for a slot's positions up to end (cross: encoder tokens). */
void harness_edits(struct harness *h, struct batch *b, uint32_t slot, uint32_t end);
/* Waits for the lane's oldest step. */
const struct batch_result *harness_finish(struct harness *h, unsigned lane);

/* Runs every active slot to its end. */
void harness_run(struct harness *h);
