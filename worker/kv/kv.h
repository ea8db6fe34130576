/* kv.h - the KV manager: which sequence holds which block of the KV arena, and which block tables
 * must change on the device.
 *
 * Plain C over offsets and counts: no device, no clock, no allocation after kv_init(). The KV bytes
 * are in the arena; this part only assigns blocks. The engine thread makes every call. Changes of
 * block tables leave as struct kv_edit, in order; the device, the manifest and the tensor-parallel
 * ranks learn of table changes only from these edits. kv_seq.h has the calls of the scheduler.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"

enum { MAX_GROUPS = 8, MAX_LANES = 3 };
enum kv_kind { KV_FULL, KV_WINDOW, KV_CROSS, KV_STATE, KV_KINDS };

/* A KV group: layers with equal kind, window, KV heads, head size and dtype. The block table of a
 * group has one row per sequence slot.
 *   slice = one layer's K (or V, or state) of one block: [n_kv_heads][tokens][head_dim], then block
 *           scales if the dtype has them, rounded up to 128 B
 *   block = n_layers x n_parts slices, layer-major, K before V, contiguous; tables, edits and
 *           manifest name it by the index of its first slice, from the arena's base (slice_id)
 *   entry = position / tokens_per_block
 * KV_STATE: a block is one layer's state. Entries: [n_layers] live state, then KV_SNAPSHOTS times
 * [n_layers] snapshot (kv_state.h). */
enum { KV_SNAPSHOTS = 3 };
struct kv_group {
    enum kv_kind kind;
    uint32_t window, n_layers, n_parts; /* n_parts: 2 = K and V; 1 = state, or K = V stored once */
    uint32_t slice_bytes, max_entries;
    uint32_t max_blocks; /* hard limit, 0 = none; set by scenario files and tests */
    uint32_t sinks;      /* KV_WINDOW: leading positions that stay visible (attention sinks) */
    uint32_t interval;   /* KV_STATE: positions between two snapshots; 0 = no snapshots */
    float share;         /* soft target, fraction of the arena; 0 = none: kv_pool.h */
    uint8_t pool;        /* out: groups of equal block size share a pool */
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
    uint32_t tokens_per_block; /* of all groups, because they share one prefix tree */
    struct kv_group group[MAX_GROUPS];
    uint64_t arena_bytes, host_bytes;
    uint32_t slab_bytes; /* 0: kv_slab_bytes() */
    bool fifo;           /* scenarios: reuse the blocks of a group strictly in release order */
    bool reuse;          /* keep the blocks of ended sequences for reuse: kv_reuse.h */
    bool copy_partial;   /* reuse the leading tokens of a block that other sequences hold: copy */
    bool extra_ids;      /* tokens carry extra ids (kv_text.extra) */
    uint32_t max_events; /* capacity of the event ring: kv_event.h */
    /* Onboard a block only if the copy takes less time than computing its tokens. 0: always. */
    uint64_t host_bandwidth; /* bytes per second */
    nsec token_time;         /* to compute one token */
    uint64_t hash_secret[4];
};

/* Returns the KV bytes of one sequence that fills every entry of its block tables. */
static inline uint64_t
kv_table_bytes(const struct kv_config *c)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->n_groups; i++)
        bytes += kv_block_bytes(&c->group[i]) * c->group[i].max_entries;
    return bytes;
}

/* Returns the smallest multiple of lcm(slice_bytes) that holds the largest block and wastes at most
 * 5 % in every pool. 0: no such size below 4 GiB. */
uint32_t kv_slab_bytes(const struct kv_config *c);

/* One change of a block table. Apply edits in order. Changes of the prefix tree are exported to the
 * manifest separately (kv_tree_export.h). */
enum edit_op { EDIT_SET, EDIT_COPY, EDIT_CLEAR };
struct kv_edit {
    uint8_t op, group;
    uint16_t zero;
    seq_slot slot;
    uint32_t entry; /* SET: index. COPY: source slot (beam reorder, fork) */
    slice_id at;    /* SET: the block; SLICE_NONE = the entry is dropped */
    uint64_t pos;   /* SET of a snapshot entry: the position of the snapshot */
};

/* One block copy. Run copies in order: a copy reads what earlier copies wrote. */
enum tier { TIER_DEVICE, TIER_HOST };
struct kv_copy {
    uint8_t group, from_tier, to_tier;
    uint8_t after;     /* 1: copy after the step's work (snapshots); 0: before */
    uint16_t n_tokens; /* leading tokens that must be copied; 0: the whole block */
    uint16_t zero;
    slice_id from, to;
};

/* Manifest entry of one sequence slot: copied from the arena, bounded, not yet validated. */
struct kv_entry_found {
    req_id id;
    seq_slot slot;
    uint32_t committed, cross_tokens;  /* committed: positions whose K and V are written */
    const slice_id *entry[MAX_GROUPS]; /* leading SLICE_NONE: entries that left the window */
    uint32_t n_entries[MAX_GROUPS];
    uint32_t snapshot[KV_SNAPSHOTS]; /* position of each snapshot; 0: none */
};

struct kv_count {                        /* blocks of one pool, or of the host tier */
    uint32_t blocks, used, cached, free; /* blocks: what the pool holds and can still draw */
    uint64_t block_bytes;
};

struct kv;
/* Returns the size of struct kv for c, in bytes. */
size_t kv_bytes(const struct kv_config *c);
/* Initializes zeroed memory of kv_bytes() and returns it. The memory has offsets only, so it may be
 * moved; cache-line alignment is fastest. Sets slab_bytes and the out fields of *c. c may have 0
 * groups. NULL: c is invalid, or the arena cannot hold 2 blocks of each group (1 of them scratch);
 * e names the field and the value. */
struct kv *kv_init(void *mem, struct kv_config *c, struct err *e);
const struct kv_config *kv_config(const struct kv *kv); /* as kv_init() left it */
uint32_t kv_n_pools(const struct kv *kv);
void kv_count(const struct kv *kv, uint32_t pool, struct kv_count *ret);
/* Counts host blocks; used: being onboarded. No blocks while the host tier is away. */
void kv_count_host(const struct kv *kv, struct kv_count *ret);
/* Returns the group's scratch block, for the padding positions of a graph. It is allocated by
 * kv_init() and never counted. */
slice_id kv_scratch(const struct kv *kv, uint32_t group);
/* Verifies that every block is in exactly one place; aborts on failure. Slow: for tests. */
void kv_check(const struct kv *kv);

/* Adoption: reuse of the blocks that the previous worker left in the arena. Call kv_adopt() for
 * each manifest entry after kv_init() and before any other call. The slot then holds the blocks of
 * the entry and has reserved only these; continue with kv_resume() or kv_drop() (kv_seq.h).
 * -EBADMSG: the entry is invalid (out of range, block owned twice, wrong pool, hole, too short).
 * -ENODATA: the sequence cannot resume, kv_entry_resume() is 0. On failure nothing has changed. */
int kv_adopt(struct kv *kv, const struct kv_entry_found *r) MUST_USE;
/* Returns the position to resume at: the committed position, or the last snapshot if a group has
 * recurrent state. 0: none. */
uint32_t kv_entry_resume(const struct kv *kv, const struct kv_entry_found *r);
void kv_adopt_end(struct kv *kv); /* frees every block that was not adopted */

/* The host tier's memory may be mapped after the first sequence has started. While the tier is
 * away, lookups ignore its blocks and nothing is offloaded, but the tree keeps them. kv_init()
 * leaves the tier present. Call kv_host_tier_away() before the first kv_admit(). */
void kv_host_tier_away(struct kv *kv);
/* Sets the size of the mapped part, at least kv_host_tier_used(); kv_init() sets all. When the
 * mapped part is full, an offload evicts a cached host block, or is skipped if there is none. */
void kv_host_tier_set_size(struct kv *kv, uint64_t bytes);
/* Returns the bytes from the start of the tier that have held a block. */
uint64_t kv_host_tier_used(const struct kv *kv);
bool kv_host_tier_is_away(const struct kv *kv);
/* The tier is present from now on. contents_valid: its blocks are kept; false: they are evicted. */
void kv_host_tier_came(struct kv *kv, bool contents_valid);
void kv_host_tier_clear(struct kv *kv); /* evicts every host block; only while the tier is away */
