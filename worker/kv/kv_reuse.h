/* kv_reuse.h - prefix caching: KV blocks of earlier requests are reused for equal token prefixes.
 *
 *     tokens   0 1 2 3 | 4 5 6 7 | 8 9          a node has the tokens of one block; its parent has
 *     node     A --------- B ------- C          the tokens before them; a node has one block of
 *                          `-------- D  8 9 7   each group, or none
 *
 * A request with a known prefix shares the full blocks of the prefix and takes over or copies part
 * of one more block. A hit holds in every group at once: full groups need all blocks, windows those
 * that the next query sees. The KV of an encoder input is reused whole and saves the encoder run.
 *
 *     kv_namespace   once per request: what its KV depends on besides its tokens
 *     kv_lookup      finds the hit; for estimates and routing; changes nothing
 *     kv_admit       kv_reserve() and holds the hit
 *     kv_start       with the first step, before kv_cross() and kv_grow(): table rows, copies
 *     kv_store       after a finished step: other requests can find the full blocks
 *     kv_release     kv_drop(), and other requests can find the last, partial block too
 *
 * Admit all requests of a plan before the first kv_start(), so that no request evicts another's
 * hit. A slot whose first step is not launched may be dropped without kv_start().
 *
 * A block without references that is in the tree is cached. Cached blocks are free capacity: they
 * are evicted when no free block is left, and no reservation counts them. Eviction order: lowest
 * priority, then earliest release. A sequence releases its last block first. Blocks that no lookup
 * can reach are evicted before all others.
 */
#pragma once

#include "worker/kv/kv_seq.h"

enum { KV_PRIORITY = 35, KV_PRIORITY_MAX = 100 };

/* Two requests that differ in salt, adapter or encoder input share no blocks. */
struct kv_namespace {
    uint64_t self[2];  /* of the decoder's blocks */
    uint64_t cross[2]; /* of the encoder input's blocks; a prefix of an input is another input */
};
void kv_namespace(const struct kv *kv, uint64_t salt, uint64_t lora, const token_id *source,
                  uint32_t n_source, struct kv_namespace *ret);

/* Retention of the blocks that begin at tokens start .. end - 1: priority 0 is evicted first,
 * KV_PRIORITY_MAX last. Ranges are sorted and do not overlap; blocks outside all ranges have
 * KV_PRIORITY. */
struct kv_keep {
    uint32_t start, end; /* end UINT32_MAX: all that follow, decoded ones included */
    uint8_t priority;
};
int kv_keep_check(const struct kv_keep *keep, uint32_t n, struct err *e) MUST_USE;

/* The tokens of a sequence, for the tree. */
struct kv_text {
    const token_id *token;  /* [n] */
    const uint64_t *extra;  /* [n] distinguishes equal tokens (images); NULL: all 0. c.extra_ids */
    const token_id *source; /* [n_source] encoder input; NULL: features, never cached */
    uint32_t n, n_source;
    bool needs_cross; /* the encoder is not run: admit only if the encoder input's KV is cached */
    const struct kv_namespace *namespace;
    const struct kv_keep *keep; /* NULL: the blocks of a hit keep their priority */
    uint32_t n_keep;
};

/* Returns true if the encoder input is features (audio, images). Such inputs cannot be compared, so
 * blocks of decoders that attend to them are not reused. */
static inline bool
kv_text_of_features(const struct kv_text *t)
{
    return t->n_source > 0 && !t->source;
}

struct kv_hit {
    uint32_t n_tokens;           /* cached positions, below n: the last token is always computed */
    uint32_t n_full;             /* of them, full blocks in a group that keeps all positions */
    bool cross;                  /* the encoder input's KV is cached: no encoder run */
    uint32_t n_held[MAX_GROUPS]; /* blocks of the hit that a slot holds: need no capacity */
    uint32_t n_cached[MAX_GROUPS]; /* blocks of the hit that count as free capacity until held */
    uint32_t n_host[MAX_GROUPS];   /* blocks of the hit to onboard: need capacity like new blocks */
    /* Name of the first full block to compute; 0, 0: none. A sequence whose name equals another's
     * may wait until the other has computed the block. */
    uint64_t next[2];
};
void kv_lookup(const struct kv *kv, const struct kv_text *t, struct kv_hit *ret);
/* Returns the cached positions; with_host_tier: as if the host tier were not away. */
uint32_t kv_lookup_length(struct kv *kv, const struct kv_text *t, bool with_host_tier);
/* Writes the event names (kv_event.h) of the sequence's full blocks, cached or not, at most max.
 * Returns their number. */
uint32_t kv_names(const struct kv *kv, const struct kv_text *t, uint64_t (*ret)[2], uint32_t max);

/* Reserves n blocks for an empty slot without a hit; counts every group of every pool, in whole
 * slabs. -EAGAIN: not enough blocks now; nothing changed. */
int kv_reserve(struct kv *kv, seq_slot slot, const struct kv_need *n) MUST_USE;
/* Reserves n blocks, the hit included, and holds the hit until kv_drop(). t NULL: no hit. -EAGAIN:
 * not enough blocks now; nothing changed. */
int kv_admit(struct kv *kv, seq_slot slot, const struct kv_need *n, const struct kv_text *t,
             struct kv_hit *ret) MUST_USE;
/* Adds the edits and copies of the hit; `step` of `lane` is the slot's first step. The copies run
 * in order before the step's work. No effect without a hit. */
void kv_start(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, struct kv_out *out);

/* Adds the full blocks of the first n positions, and the whole encoder input, to the tree. The
 * steps that wrote them are finished. */
void kv_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n);
/* kv_store() including the last, partial block; then kv_drop(). */
void kv_release(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n);

/* Evicts up to max cached blocks and host blocks and adds them to *ret; the bound keeps a large
 * cache from delaying a step. Returns their number; less than max: none are left. Held blocks stay,
 * in the tree too. Call between plans, and call manifest_put_nodes() before the next kv_store(): a
 * reused node number with a stale manifest node would be invalid. */
struct kv_flushed {
    uint64_t blocks, bytes, host_blocks, host_bytes;
};
uint32_t kv_flush(struct kv *kv, uint32_t max, struct kv_flushed *ret);

struct kv_stats {                      /* of one group, since the start */
    uint64_t allocated, allocated_new; /* blocks allocated; of them, never allocated before */
    uint64_t shared, copied, moved;    /* hits: full blocks, parts copied, parts taken over */
    uint64_t missed;                   /* blocks of admitted prompts that had to be computed */
    uint64_t evicted;                  /* cached blocks */
    uint64_t offloaded, onboarded;     /* blocks copied to the host tier, and from it */
    uint64_t host_evicted;             /* host blocks evicted for lack of space */
    uint64_t held, cached;             /* blocks, now */
};
void kv_stats(const struct kv *kv, uint32_t group, struct kv_stats *ret);
