/* exec_harness.h - batches without a scheduler: slots walk through their prompts and generate.
 *
 * Block tables are filled by plain edits, one block after another, in an order that is not the
 * positions'. Two steps of a lane are kept out at once, so every generated token is TOKEN_FROM_LAST
 * to the row that continues it.
 */
#ifndef TESTS_EXEC_HARNESS_H
#define TESTS_EXEC_HARNESS_H

#include "worker/exec/exec.h"

enum { HAND_SLOTS = 20, HAND_LEN = 512, HAND_HOST = 1 << 20 };

struct hand_options {
    const char *dir, *isa, *device; /* device NULL: cpu */
    enum dtype dtype;               /* a GPU's matrices are made that; 0: fp32 */
    bool fast;                      /* numerics are not invariant */
    uint64_t random;                /* not 0: weights=random:SEED */
    uint32_t tokens_per_block, max_tokens, n_lanes;
    uint32_t units;      /* each lane is opened with; 0: its share */
    bool parts;          /* a lane's steps: on the whole device, a part, another one, in turn */
    enum dtype kv;       /* 0: fp32 */
    uint32_t enc_layers; /* a step; 0: all at once, in the step of the decoder's first chunk */
    bool drop;           /* blocks behind a window leave the table */
    bool twice;          /* two steps of a lane out at once */
    bool buckets;        /* batches say how many rows a graph of theirs would have */
    uint64_t graphs_memory;
    bool brief;
    uint32_t rank, n_ranks; /* of a group with that memfd; 0: alone */
    int group_fd;
    void (*opened)(struct gpu *g); /* a test's own changes to the device; may be NULL */
};

struct hand_slot {
    const token_id *source;
    uint32_t n_source;
    token_id token[HAND_LEN]; /* n_prompt given, n_new generated */
    uint32_t n_prompt, n_new;
    struct sampling how;
    bool all;  /* log-probabilities of every prompt row */
    bool beam; /* of a search: it goes to no graph that draws */
    /* that of the slot before, whose source is its own too; it begins and ends with that */
    bool joins;
    float *lp;               /* [n_prompt + n_new][vocab] by position of the row, or NULL */
    float logprob[HAND_LEN]; /* by position of the token: as reported */

    uint64_t late; /* steps of its lane before it begins */
    bool active;
    uint32_t planned, enc_token, enc_done, set[MAX_GROUPS], gone[MAX_GROUPS];
};

struct hand {
    struct hand_options o;
    struct gpu *gpu;
    struct model *m;
    struct kv_config kv;
    struct arena arena;
    struct host_memory host; /* HAND_HOST bytes */
    uint64_t at[MAX_GROUPS]; /* where a group's blocks begin, in bytes */
    struct exec *x;
    struct batch b;
    struct batch_segment out[MAX_LANES][2][HAND_SLOTS]; /* runs of the steps that are out */
    uint32_t n_out[MAX_LANES][2];
    uint64_t started[MAX_LANES], finished[MAX_LANES];
    struct hand_slot slot[HAND_SLOTS];
};

/* Fails the test with the sentence when something cannot be opened. */
void hand_open(struct hand *h, const struct hand_options *o);
void hand_close(struct hand *h);

/* Empty b, ready to be filled. */
struct batch *hand_batch(struct hand *h, unsigned lane);
/* The block of a group that a slot's entry is given. */
slice_id hand_block(const struct hand *h, uint32_t g, uint32_t slot, uint32_t entry);
/* Table entries for positions up to end (cross: source tokens) of one slot. */
void hand_edits(struct hand *h, struct batch *b, uint32_t slot, uint32_t end);
/* Wait for the oldest step of the lane. */
const struct batch_result *hand_finish(struct hand *h, unsigned lane);

/* Run every active slot to its end. */
void hand_run(struct hand *h);

#endif
