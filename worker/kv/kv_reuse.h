/* kv_reuse.h - what one sequence has computed, another does not compute again.
 *
 *     tokens   0 1 2 3 | 4 5 6 7 | 8 9          a block of tokens is a node of a tree: its parent is what
 *     node     A --------- B ------- C          came before, and it has a block of each group or none
 *                          `-------- D  8 9 7
 *
 * A slot that begins with a prompt somebody had before shares the full blocks, and takes over or copies
 * the part of one more. A hit holds in every group at once: full groups have all blocks, windows those
 * that the next query sees. Cross KV is taken whole, of the same source, and then no encoder runs.
 *
 *     kv_namespace     once a request: what beside its tokens its K and V depend on
 *     kv_lookup    what is there: for estimates, twins, routing; changes nothing
 *     kv_admit     kv_reserve() and the hit in one: what was counted is held from here on
 *     kv_start     with its first step, before kv_cross() and kv_grow(): its rows of the tables, copies
 *     kv_store     after a step of it is done: full blocks may be found by others
 *     kv_release   kv_drop(), and the block that is not full may be found too
 *
 * All who are admitted in one plan are admitted before the first is started: then nobody's hit is taken
 * from under him. A slot whose first step is not launched may be dropped without kv_start().
 *
 * A block that nobody holds and somebody may find is cached: it is free capacity, taken when there is no
 * other, and no reservation counts it. Victims: lowest priority, of those whoever was released first. A
 * sequence gives back its end before its beginning, and what can no longer be reached goes first of all.
 */
#ifndef KV_REUSE_H
#define KV_REUSE_H

#include "worker/kv/kv_seq.h"

enum { KV_PRIORITY = 35, KV_PRIORITY_MAX = 100 };

/* Beside the tokens. Two requests with another salt, adapter or source share nothing. */
struct kv_namespace {
    uint64_t self[2];  /* of the decoder's blocks */
    uint64_t cross[2]; /* of the source's: all of it, a prefix of a source is another source */
};
void kv_namespace(const struct kv *kv, uint64_t salt, uint64_t lora, const token_id *source,
                  uint32_t n_source, struct kv_namespace *ret);

/* Retention of the blocks that begin at tokens start .. end - 1: priority 0 is evicted first, KV_PRIORITY_MAX last.
 * Ranges are sorted and do not overlap; blocks outside all ranges have KV_PRIORITY. */
struct kv_keep {
    uint32_t start, end; /* end UINT32_MAX: all that follow, decoded ones included */
    uint8_t priority;
};
int kv_keep_check(const struct kv_keep *keep, uint32_t n, struct err *e) MUST_USE;

/* A sequence as the tree sees it. */
struct kv_text {
    const token_id *token; /* [n] */
    const uint64_t *extra; /* [n] tells equal tokens apart (an image's); NULL: all 0. c.extra_ids */
    const token_id *source; /* [n_source] NULL: features, nothing of theirs is found or kept */
    uint32_t n, n_source;
    bool
        needs_cross; /* its encoder was not run: without the source's K and V nothing is admitted */
    const struct kv_namespace *space;
    const struct kv_keep *keep; /* NULL: what is found keeps the priority it has */
    uint32_t n_keep;
};

/* Nobody can say whether another's are the same: decoders attend to them, so that their blocks are no one else's. */
static inline bool
kv_text_of_features(const struct kv_text *t)
{
    return t->n_source > 0 && !t->source;
}

struct kv_hit {
    uint32_t n_tokens;           /* positions that are there: below n, the last token is computed */
    uint32_t n_full;             /* blocks of them that are shared, in a group that keeps all */
    bool cross;                  /* the source's K and V are there: no encoder */
    uint32_t n_held[MAX_GROUPS]; /* blocks of the hit that some slot holds: no room is needed */
    uint32_t
        n_cached[MAX_GROUPS]; /* blocks of the hit that are free capacity until they are held */
    uint32_t
        n_host[MAX_GROUPS]; /* blocks of the hit that are fetched: they need room as new ones do */
    uint64_t next[2]; /* names the first full block to be computed; 0, 0: there is none. Of two with
                         the same name one may wait for the other. */
};
void kv_lookup(const struct kv *kv, const struct kv_text *t, struct kv_hit *ret);
/* The positions that it finds; whole: or would if the host tier were there. */
uint32_t kv_lookup_length(struct kv *kv, const struct kv_text *t, bool whole);
/* What its full blocks are called in events (kv_event.h), there or not: at most max. Their number. */
uint32_t kv_names(const struct kv *kv, const struct kv_text *t, uint64_t (*ret)[2], uint32_t max);

/* kv_admit() without a hit. Counts every group of every pool, whole slabs included. -EAGAIN: not now;
 * nothing changed. */
int kv_reserve(struct kv *kv, seq_slot slot, const struct kv_need *n) MUST_USE;
/* n: as for kv_need(), the hit included. t NULL: without a hit. -EAGAIN: not now; nothing changed. */
int kv_admit(struct kv *kv, seq_slot slot, const struct kv_need *n, const struct kv_text *t,
             struct kv_hit *ret) MUST_USE;
/* That step of the lane is its first. Edits of what it shares; copies, to be done before the step's
 * rows and in order. Without a hit nothing happens. */
void kv_start(struct kv *kv, unsigned lane, uint64_t step, seq_slot slot, struct kv_out *out);

/* The first n positions are written by steps that are done. Only full blocks, and the whole source. */
void kv_store(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n);
/* The same with the last block, and then kv_drop(). */
void kv_release(struct kv *kv, seq_slot slot, const struct kv_text *t, uint32_t n);

/* What is only kept for others goes, of both tiers: nobody finds it any more, and it is free. Up to max blocks and cells,
 * so that a large cache does not hold up a step; those of them are added to *ret. Their number; less than max: no
 * more is left. What a slot holds stays, and is found. Between plans; what the manifest says is unsaid
 * (manifest_put_nodes()) before anything else is stored: a label that is still there for what is gone, with one of its number
 * behind it, cannot be true. */
struct kv_flushed {
    uint64_t blocks, bytes, host_blocks, host_bytes;
};
uint32_t kv_flush(struct kv *kv, uint32_t max, struct kv_flushed *ret);

struct kv_stats {                   /* since the start, of one group */
    uint64_t taken, fresh;          /* blocks given out; those never given out before */
    uint64_t shared, copied, moved; /* hits: full blocks, parts copied, parts taken over */
    uint64_t missed;                /* blocks of admitted prompts that had to be computed */
    uint64_t evicted;               /* cached blocks taken for others */
    uint64_t offloaded, fetched;    /* blocks copied to the host, and from there */
    uint64_t host_dropped;          /* blocks that the host had no room for any more */
    uint64_t held, cached;          /* blocks, now */
};
void kv_stats(const struct kv *kv, uint32_t group, struct kv_stats *ret);

#endif
