/* kv_reuse.h - prefix caching: KV blocks of earlier requests are reused for equal token prefixes.
 *
 *     tokens   0 1 2 3 | 4 5 6 7 | 8 9          a node has the tokens of one block; its parent has
 *     node     A --------- B ------- C          the tokens before them; in each group a node has
 *                          `-------- D  8 9 7   one block or none
 *
 * A hit is the cached prefix of a request: the blocks of the nodes whose tokens it begins with. The
 * request shares the full blocks of the hit; of one more block it reuses the leading tokens that
 * match, by taking the block over or copying it. A hit is valid for every group: a full group has
 * all blocks of the prefix, a window group those that the next query sees. The KV of an encoder
 * input is reused whole, and then the encoder is not run.
 *
 *     kv_namespace   once per request: names what its KV depends on besides its tokens
 *     kv_lookup      finds the hit for estimates and routing; changes nothing
 *     kv_admit       reserves blocks and holds the hit
 *     kv_start       adds the hit's edits and copies to the step; before kv_cross() and kv_grow()
 *     kv_store       after a finished step: lets other requests find the sequence's full blocks
 *     kv_release     lets other requests find the last, partial block too; then does kv_drop()
 *
 * Admit all requests of a plan before the first kv_start(), so that no request evicts another's
 * hit. A slot whose first step is not launched may be dropped without kv_start().
 *
 * A block of the tree that no slot holds is cached. Cached blocks are free capacity: they are
 * evicted when no free block is left, and no reservation counts them. The block with the lowest
 * priority is evicted first; of these, the block that was released first. A sequence releases its
 * last block first. Blocks that no lookup can reach are evicted before all others.
 */
#pragma once
#include "worker/kv/kv_seq.h"

enum { KV_PRIORITY = 35, KV_PRIORITY_MAX = 100 };
/* The names of a request's two tree roots; they depend on salt, adapter and encoder input. */
struct kv_namespace {
    uint64_t self[2];  /* root of the decoder's blocks */
    uint64_t cross[2]; /* root of the encoder input's blocks; each input has a root of its own */
};
/* Returns the salt that stands for n bytes, 0 if n is 0. The hash has the secret of the cache, so a
 * client cannot find bytes with the salt of another client. */
uint64_t kv_salt(const struct kv *kv, const void *bytes, size_t n);
void kv_namespace(const struct kv *kv, uint64_t salt, uint64_t lora, const token_id *source,
                  uint32_t n_source, struct kv_namespace *ret);
/* The retention priority of the blocks that begin at tokens start .. end - 1; all blocks of the
 * encoder input have the priority of token 0. Blocks of priority 0
 * are evicted first, of KV_PRIORITY_MAX last. Ranges are sorted and do not overlap; new blocks
 * outside of all ranges have KV_PRIORITY. */
struct kv_keep {
    uint32_t start,
        end; /* end UINT32_MAX: the range includes all later tokens, also decoded ones */
    uint8_t priority;
};
/* Checks n ranges of a request. -EINVAL: empty, overlapping or unsorted, or priority too high. */
int kv_keep_check(const struct kv_keep *keep, uint32_t n, struct err *e) MUST_USE;
/* The tokens of a sequence, and what else decides which blocks it shares. */
struct kv_text {
    const token_id *token; /* [n] */
    const uint64_t *extra; /* [n] ids that distinguish equal tokens (images); NULL: all are 0 */
    const token_id
        *source; /* [n_source] encoder input; NULL: features (audio), whose KV is not cached */
    uint32_t n, n_source;
    bool needs_cross; /* the encoder has not run: kv_admit() fails unless its KV is cached */
    const struct kv_namespace *namespace;
    const struct kv_keep *keep; /* [n_keep]; NULL: the blocks of the hit keep their priority */
    uint32_t n_keep;
};

/* Returns true if the encoder input is features (audio, images) instead of tokens. Features are not
 * compared, so the KV of a decoder that attends to them is not reused. */
static inline bool
kv_text_of_features(const struct kv_text *t)
{
    return t->n_source > 0 && !t->source;
}

/* A hit as the scheduler sees it. The arrays count blocks of the hit in each group. */
struct kv_hit {
    uint32_t n_tokens; /* cached positions; at most kv_text.n - 1: the last token is computed */
    uint32_t n_full;   /* the number of full blocks among these positions */
    bool cross;        /* the KV of the encoder input is cached, so the encoder need not run */
    uint32_t n_held[MAX_GROUPS];   /* blocks that a slot holds: they need no capacity */
    uint32_t n_cached[MAX_GROUPS]; /* cached blocks: they count as free capacity until held */
    uint32_t n_host[MAX_GROUPS];   /* host blocks to onboard: they need capacity like new blocks */
    /* Name of the first full block that the sequence must compute; 0, 0: there is none. The
     * sequence may wait for a running sequence that computes a block of this name. */
    uint64_t next[2];
};
/* Finds the hit of *t without holding it. */
void kv_lookup(const struct kv *kv, const struct kv_text *t, struct kv_hit *ret);
/* Returns the number of cached positions. with_host_tier: also of a host tier that is away. */
uint32_t kv_lookup_length(struct kv *kv, const struct kv_text *t, bool with_host_tier);
/* Writes at most max names (kv_event.h) of full blocks, cached or not; returns how many. */
uint32_t kv_names(const struct kv *kv, const struct kv_text *t, uint64_t (*ret)[2], uint32_t max);
/* Reserves the blocks *n for an empty slot without a hit; whole slabs are counted (kv_internal.h).
 * -EAGAIN: not enough blocks are free or cached now; kv is unchanged. */
int kv_reserve(struct kv *kv, seq_slot slot, const struct kv_need *n) MUST_USE;
/* Reserves the blocks *n, which include the hit, and holds the hit until kv_drop(). t NULL: no hit.
 * Reduces the hit if it does not fit. -EAGAIN: not enough blocks are free or cached now, or
 * t->needs_cross is not met; kv is unchanged. */
int kv_admit(struct kv *kv, seq_slot slot, const struct kv_need *n, const struct kv_text *t,
             struct kv_hit *ret) MUST_USE;
/* Appends the edits and copies of the slot's hit to out; `step` of `lane` is the slot's first step.
 * The copies run in order before the work of the step. Has no effect without a hit. */
void kv_start(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, struct kv_out *out);
/* Adds the encoder input, and the full blocks of the first n computed positions (n may be 0), to
 * the tree. Call it after the slot's first step, which computes the encoder input's KV, is done. */
void kv_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n);
/* Does kv_store(), adds the last, partial block to the tree too, and then does kv_drop(). */
void kv_release(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n);
struct kv_flushed { /* what kv_flush() evicted from the arena and from the host tier */
    uint64_t blocks, bytes, host_blocks, host_bytes;
};
/* Evicts up to max cached blocks and host blocks and adds them to the counts *ret. max is limited,
 * because a large cache would delay a step. Returns how many were evicted; less than max: none are
 * left. Held blocks stay, and stay in the tree. Call kv_flush() between plans. Before the next
 * kv_store(), call manifest_put_nodes() to remove the freed nodes, whose numbers may be reused. */
uint32_t kv_flush(struct kv *kv, uint32_t max, struct kv_flushed *ret);

/* ---- kv_pin.c: pinned prefixes, whose blocks are not evicted. A pin holds the blocks of a hit as
 * a slot does that has not started; it has no row in the device tables and no manifest entry. */

enum { KV_PINS = 8 };
/* Pins the full blocks of *t that are cached, and its encoder input. longest: the blocks of the
 * longest request, which must fit beside all pins. Returns the number of the pin, 1 .. KV_PINS, and
 * the pinned positions in *n_tokens (an encoder input counts as its tokens). -ENOENT: no full block
 * of the prefix is cached. -ENOSPC: all pins are used. -EMSGSIZE: the longest request would not fit
 * any more. -EAGAIN: running sequences need the blocks now. */
int kv_pin(struct kv *kv, const struct kv_text *t, const struct kv_need *longest,
           uint32_t *n_tokens, struct err *e) MUST_USE;
/* Removes the pin; its blocks are cached again. Returns false if there is no such pin. */
bool kv_unpin(struct kv *kv, uint32_t pin);
/* Returns the number of a group's blocks that pins hold; a block of two pins counts twice. */
uint32_t kv_n_pinned(const struct kv *kv, uint32_t group);

struct kv_stats { /* block counts of one group; all but the last two since the start */
    uint64_t allocated, allocated_new; /* allocations; those of a block never allocated before */
    uint64_t shared, copied, moved;    /* hits: full blocks; partial blocks copied, taken over */
    uint64_t missed;                   /* blocks of admitted prompts that had to be computed */
    uint64_t evicted;                  /* cached blocks evicted from the arena */
    uint64_t offloaded, onboarded;     /* blocks copied to the host tier, and from it */
    uint64_t host_evicted;             /* host blocks evicted because the host tier was full */
    uint64_t trimmed;                  /* blocks freed because they left the window */
    uint64_t held, cached;             /* blocks held and cached now */
};
void kv_stats(const struct kv *kv, uint32_t group, struct kv_stats *ret);

/* Blocks of all groups: allocated for a slot; of these, never allocated before; prompt blocks of
 * its hit; prompt blocks that its hit lacks (not of KV_STATE). */
struct kv_use {
    uint32_t allocated, allocated_new, reused, missed;
};
/* Adds the counts of the slot since it was reserved to *sum. */
void kv_add_use(const struct kv *kv, seq_slot slot, struct kv_use *sum);
