/* kv.h - every block of the KV arena: which sequence holds it, and what must change on the device.
 *
 * Pure: offsets and counts, no device, no clock, no allocation after kv_init(). The bytes lie in the
 * KV arena; kv hands out names. What changed goes out as struct kv_edit, in order, and that is the
 * only way the device's tables, the manifest and tensor-parallel ranks learn anything.
 */
#ifndef KV_KV_H
#define KV_KV_H

#include "base/base.h"
#include "base/err.h"

enum { MAX_GROUPS = 8, MAX_LANES = 3 };
enum kv_kind { KV_FULL, KV_WINDOW, KV_CROSS, KV_STATE, KV_KINDS };

/* A group: layers equal in (kind, window, kv heads, head dim, dtype). It has one table row a slot.
 *   slice = one layer's K (or V, or state) of one block: [n_kv_heads][tokens][head_dim], then block
 *           scales if the dtype has them, rounded up to 128 B
 *   block = n_layers x n_parts slices, layer-major, K before V, contiguous; its name in tables, edits
 *           and manifest is the index of its first slice, counted from the arena's base (slice_id)
 *   entry = position / tokens_per_block
 * KV_STATE: a block is one layer's state; entries [n_layers] live, then KV_SNAPSHOTS times [n_layers]: kv_state.h */
enum { KV_SNAPSHOTS = 3 };
struct kv_group {
    enum kv_kind kind;
    uint32_t window, n_layers, n_parts; /* n_parts: 2 = K and V, 1 = state, or K = V kept once */
    uint32_t slice_bytes, max_entries;
    uint32_t max_blocks; /* hard cap, 0 = elastic; scenario files and tests set it */
    uint32_t sinks;      /* KV_WINDOW: the first so many positions stay, beside the window */
    uint32_t interval;   /* KV_STATE: positions from one snapshot to the next; 0: there are none */
    float share;         /* soft target of the arena, 0 = none: kv_pool.h */
    uint8_t pool;        /* out: groups of equal block bytes share a pool */
};

static inline const char *
kv_kind_name(enum kv_kind kind)
{
    static const char *const names[KV_KINDS] = { "full", "window", "cross", "state" };

    return names[kind];
}

static inline uint64_t
kv_block_bytes(const struct kv_group *g)
{
    if (g->kind == KV_STATE) return g->slice_bytes;
    return (uint64_t)g->n_layers * g->n_parts * g->slice_bytes;
}

struct kv_config {
    uint32_t n_groups, n_slots, n_lanes;
    uint32_t tokens_per_block; /* one for all groups: they share one reuse tree */
    struct kv_group group[MAX_GROUPS];
    uint64_t arena_bytes, host_bytes;
    uint32_t slab_bytes; /* 0: kv_slab_bytes() */
    bool fifo;           /* scenarios: blocks of a group strictly in the order of their release */
    bool reuse;          /* blocks are kept for others when their slot is dropped: kv_reuse.h */
    bool copy_partial;   /* a part of a block that others hold is copied */
    bool extra_ids;      /* texts have them */
    uint32_t max_events; /* kept for readers: kv_event.h */
    /* A block is fetched from the host if that takes less time than to compute its tokens. 0: always. */
    uint64_t host_bandwidth; /* bytes a second */
    nsec token_time;
    uint64_t hash_secret[4];
};

/* Bytes of one sequence as long as the tables are. */
static inline uint64_t
kv_table_bytes(const struct kv_config *c)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->n_groups; i++)
        bytes += kv_block_bytes(&c->group[i]) * c->group[i].max_entries;
    return bytes;
}

/* The smallest multiple of lcm(slice_bytes) that holds the largest block and wastes <= 5 % in every pool. */
uint32_t kv_slab_bytes(const struct kv_config *c);

/* What changed of tables. The only way they, the manifest's rows and TP followers learn anything. In order.
 * What may be found goes to the manifest alone: kv_tree_export.h. */
enum edit_op { EDIT_SET, EDIT_COPY, EDIT_CLEAR };
struct kv_edit {
    uint8_t op, group;
    uint16_t zero;
    seq_slot slot;
    uint32_t entry; /* SET: index.  ROW: source slot (beam reorder, fork) */
    slice_id at;    /* SET: the block; SLICE_NONE = evicted */
    uint64_t pos;   /* SET of a snapshot's entry: the positions it is of */
};

/* What is to be copied. In order: of two copies the later one sees what the earlier one wrote. */
enum tier { TIER_DEVICE, TIER_HOST };
struct kv_copy {
    uint8_t group, from_tier, to_tier,
        after;         /* after = 1: once the step is done (snapshot, offload) */
    uint16_t n_tokens; /* so many of it count, the rest may be anything; 0: the whole block */
    slice_id from, to;
};

struct
    kv_entry_found { /* one slot of a predecessor's manifest: copied out, bounded, not yet believed */
    req_id id;
    seq_slot slot;
    uint32_t committed, cross_tokens;  /* committed: positions whose K/V are written */
    const slice_id *entry[MAX_GROUPS]; /* leading SLICE_NONE: behind a window */
    uint32_t n_entries[MAX_GROUPS];
    uint32_t snapshot[KV_SNAPSHOTS]; /* positions that each is of; 0: none */
};

struct kv_count {                        /* of one pool */
    uint32_t blocks, used, cached, free; /* blocks: what the pool holds and could still draw */
    uint64_t block_bytes;
};

struct kv;
size_t kv_bytes(const struct kv_config *c);
/* caller's memory (kv_bytes(), zeroed), offsets only: the memory may move. It is quickest at the start of a
 * cache line. Fills c's out fields and slab_bytes. NULL: the arena cannot hold one block of each group beside its
 * scratch block, or c is not a configuration; the sentence says which. No groups at all is one: nothing is ever drawn. */
struct kv *kv_init(void *mem, struct kv_config *c, struct err *e);
const struct kv_config *kv_config(const struct kv *kv); /* as kv_init() left it */
uint32_t kv_n_pools(const struct kv *kv);
void kv_count(const struct kv *kv, uint32_t pool, struct kv_count *ret);
void kv_count_host(const struct kv *kv,
                   struct kv_count *ret); /* used: being fetched. Away: no blocks */
/* The group's block for padding rows of a graph: held from the start, in no count. */
slice_id kv_scratch(const struct kv *kv, uint32_t group);
void kv_check(const struct kv *kv); /* every block is in exactly one place; stops the program */

/* Take over what a predecessor left in the arena: after kv_init(), before anything else. The slot then
 * holds those blocks and has reserved no more; kv_seq.h goes on with it or drops it.
 * -EBADMSG: not provable (out of range, owned twice, wrong pool, a hole, too short); -ENODATA: there is nothing to
 * go on from, kv_entry_resume() is 0. Nothing is changed then. */
int kv_adopt(struct kv *kv, const struct kv_entry_found *r) MUST_USE;
/* The position to go on from: all that is committed, or where there is state the last snapshot. */
uint32_t kv_entry_resume(const struct kv *kv, const struct kv_entry_found *r);
void kv_adopt_end(struct kv *kv); /* everything not adopted is free */

/* The host tier's memory may come later than the first sequence. Away: nothing is found there and nothing goes
 * there, but what it holds stays in the tree. kv_init(): it is there. */
void kv_host_tier_away(struct kv *kv); /* before the first kv_admit() */
/* So many bytes of it can be reached, no fewer than kv_host_tier_used(); kv_init(): all. What a cell is asked of beyond them
 * finds none, or takes one of those that hold something. */
void kv_host_tier_set_size(struct kv *kv, uint64_t bytes);
uint64_t kv_host_tier_used(const struct kv *kv); /* bytes that hold something, or did */
bool kv_host_tier_is_away(const struct kv *kv);
/* It has come, and is used from here on. whole: with all that it held; false: with nothing of it. */
void kv_host_tier_came(struct kv *kv, bool whole);
void kv_host_tier_clear(struct kv *kv); /* what it held is lost. While it is away. */

/* The scheduler's side (reserve, grow, trim, drop, fences) is in kv_seq.h. */

#endif
