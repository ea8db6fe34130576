/* kv.h - the KV manager: assigns the blocks of the KV arena to sequences and lists how the block
 * tables on the device must change.
 *
 * The manager only assigns blocks: it reads no KV bytes and no clock, calls no device and allocates
 * no memory after kv_init(). The engine thread makes every call. Each change of a block table is a
 * struct kv_edit. The device, the manifest and the tensor-parallel ranks apply the edits in order
 * and learn of table changes in no other way. kv_seq.h has the calls of the scheduler.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { MAX_GROUPS = 8, MAX_LANES = 3 };
enum kv_kind { KV_FULL, KV_WINDOW, KV_CROSS, KV_STATE, KV_KINDS };

/* A KV group: layers with equal kind, window, KV heads, head size and dtype. The block table of a
 * group has one row per sequence slot.
 *   slice = K (or V, or recurrent state) of one layer in one block: [n_kv_heads][tokens][head_dim],
 *           then the block scales if the dtype has them, rounded up to 128 B
 *   block = n_layers x n_parts contiguous slices, layer by layer, K before V. The device tables,
 *           edits and manifest identify a block by its slice_id: the index of its first slice in
 *           the arena, counted in slices of the group
 *   entry = element of a block-table row; entry p / tokens_per_block has the block of position p
 * KV_STATE: a block is the state of one layer. A row has n_layers entries for the live state, then
 * n_layers entries for each of KV_SNAPSHOTS snapshots (kv_seq.h). */
enum { KV_SNAPSHOTS = 3 };
struct kv_group {
    enum kv_kind kind;
    uint32_t window, n_layers;
    uint32_t n_parts; /* slices per layer. 2: K and V; 1: state, or K that is also used as V */
    uint32_t slice_bytes, max_entries; /* max_entries: entries of a block-table row */
    uint32_t max_blocks; /* limit of the group's blocks, 0: none; set by scenario files and tests */
    uint32_t sinks;      /* KV_WINDOW: leading positions that every query sees (attention sinks) */
    uint32_t interval;   /* KV_STATE: positions between two snapshots; 0: no snapshots are taken */
    float share;         /* target fraction of the arena (kv_evict.h); 0: the group has no target */
    uint8_t pool;        /* set by kv_init(): index of the pool; equal block sizes share a pool */
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
    uint32_t tokens_per_block; /* equal in all groups, because they share one prefix tree */
    struct kv_group group[MAX_GROUPS];
    uint64_t arena_bytes, host_bytes;
    uint32_t slab_bytes; /* 0: kv_init() uses kv_slab_bytes() */
    bool fifo;           /* tests only: caches all released blocks, reuses them in release order */
    bool reuse;          /* keep the blocks of ended sequences in the prefix cache: kv_reuse.h */
    bool copy_partial;   /* a hit may copy the leading tokens of a block that a sequence holds */
    bool whole_blocks;   /* hits have full blocks only; partial blocks are not stored */
    bool extra_ids;      /* tokens may have extra ids that distinguish them: kv_text.extra */
    uint32_t max_events; /* capacity of the event ring: kv_event.h */
    /* See kv_host_tier_rates(). */
    uint64_t host_bandwidth; /* bytes per second copied from host memory */
    nsec token_time;         /* time to compute one prompt token */
    uint64_t hash_secret[4]; /* key of the hashes that name cached blocks: kv_event.h */
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

/* Returns the slab size: the smallest common multiple of all slice sizes that holds the largest
 * block and wastes at most 5 % of the slab in every pool. 0: no size below 4 GiB does. */
uint32_t kv_slab_bytes(const struct kv_config *c);

/* One change of the block tables. EDIT_SET sets one entry of the slot's row, EDIT_COPY copies a
 * whole row from another slot, EDIT_CLEAR empties the slot's row in every group. */
enum edit_op { EDIT_SET, EDIT_COPY, EDIT_CLEAR };
struct kv_edit {
    uint8_t op, group;
    uint16_t zero;
    seq_slot slot;
    uint32_t entry; /* EDIT_SET: index of the entry. EDIT_COPY: the slot whose row is copied */
    slice_id at;    /* EDIT_SET: the block; SLICE_NONE: the slot no longer holds the entry */
    uint64_t pos;   /* EDIT_SET of a snapshot entry: the position of the snapshot */
};

/* One copy of a block's contents. Run copies in order: a copy may read a block copied before. */
enum tier { TIER_DEVICE, TIER_HOST };
struct kv_copy {
    uint8_t group, from_tier, to_tier;
    uint8_t after;     /* 1: copy after the work of the step (snapshots); 0: before it */
    uint16_t n_tokens; /* number of leading tokens of the block to copy; 0: the whole block */
    uint16_t zero;
    slice_id from, to;
};

/* The manifest entry of one sequence slot, copied from the previous worker's manifest. Counts are
 * within their limits; block numbers are not yet validated. */
struct kv_entry_found {
    req_id id;
    seq_slot slot;
    uint32_t committed, cross_tokens;  /* committed: positions whose K and V are written */
    const slice_id *entry[MAX_GROUPS]; /* [n_entries]; SLICE_NONE: the entry left the window */
    uint32_t n_entries[MAX_GROUPS];
    uint32_t snapshot[KV_SNAPSHOTS]; /* position of each snapshot; 0: there is none */
};

struct kv_count { /* block counts of one pool, or of the host tier */
    /* blocks: used + cached + free. free: unused, also in slabs that the pool could draw */
    uint32_t blocks, used, cached, free;
    uint64_t block_bytes;
};

struct kv;
/* Returns the size of struct kv for c, in bytes. */
size_t kv_bytes(const struct kv_config *c);
/* Initializes mem, zeroed memory of kv_bytes() bytes, and returns it as a struct kv. The memory has
 * offsets only, so it may be moved; cache-line alignment is fastest. Sets slab_bytes and
 * group[].pool of *c, which may have 0 groups. NULL: c is invalid, or the arena cannot hold 2
 * blocks of each group (1 of them is the scratch block); e names the field and the value. */
struct kv *kv_init(void *mem, struct kv_config *c, struct err *e);
const struct kv_config *kv_config(const struct kv *kv); /* *c of kv_init(), completed */
uint32_t kv_n_pools(const struct kv *kv);
void kv_count(const struct kv *kv, uint32_t pool, struct kv_count *ret);
/* Counts host blocks; those being onboarded are used. All counts are 0 while the tier is away. */
void kv_count_host(const struct kv *kv, struct kv_count *ret);
/* Returns the group's scratch block, which kv_init() allocates for the padding of graphs. */
slice_id kv_scratch(const struct kv *kv, uint32_t group);
/* Recomputes all counts, checks every block and list, aborts at an error. Slow: for tests. */
void kv_check(const struct kv *kv);
/* Adopts the blocks that the previous worker left in the arena for one sequence slot. Call it for
 * each manifest entry after kv_init() and before any other call. The slot then holds the blocks of
 * the entry and has reserved only these; continue with kv_resume() or kv_drop() (kv_seq.h).
 * -EBADMSG: the entry is invalid: a block is out of range, owned twice, of another pool or missing.
 * -ENODATA: kv_entry_resume() is 0, so the sequence cannot resume. On failure kv is unchanged. */
int kv_adopt(struct kv *kv, const struct kv_entry_found *r) MUST_USE;
/* Returns the position at which the sequence can resume: the committed position, or the last
 * snapshot's position if a group has recurrent state. 0: the sequence cannot resume. */
uint32_t kv_entry_resume(const struct kv *kv, const struct kv_entry_found *r);
void kv_adopt_end(struct kv *kv); /* ends adoption: frees every block that was not adopted */

/* Marks the host tier as away: its memory is mapped later, possibly after the first sequence has
 * started. While the tier is away, lookups ignore its blocks and no block is offloaded, but its
 * blocks stay in the tree. Call this before the first kv_admit(). */
void kv_host_tier_away(struct kv *kv);
/* Sets the mapped size of the tier, at least kv_host_tier_used(); after kv_init() the whole tier
 * counts as mapped. When the mapped memory is full, an offload evicts a cached host block; if all
 * host blocks are being onboarded, the offload is skipped. */
void kv_host_tier_set_size(struct kv *kv, uint64_t bytes);
/* Returns how many bytes from the start of the tier have ever held a block. */
uint64_t kv_host_tier_used(const struct kv *kv);
/* Sets the speed of copies from host memory, bytes per second, and the time to compute one prompt
 * token. From now on a host block is found only if copying it takes less time than computing its
 * tokens, a snapshot only if less than computing an interval; if a value is 0, always. */
void kv_host_tier_rates(struct kv *kv, uint64_t bandwidth, nsec token_time);
bool kv_host_tier_is_away(const struct kv *kv);
/* Marks the tier as present: its memory is mapped. contents_valid false: evicts its blocks. */
void kv_host_tier_came(struct kv *kv, bool contents_valid);
void kv_host_tier_clear(struct kv *kv); /* evicts every host block; only while the tier is away */
