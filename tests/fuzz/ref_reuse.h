/* ref_reuse.h - reference implementation of prefix caching, for fuzz_reuse.c: a list of cached
 * blocks, and the contents of the arena.
 *
 * ref_reuse.c follows these sentences, with linear searches only:
 *
 *  1. The KV of a block depends on its tokens and their extra ids, on all tokens before them, and
 *     on salt and encoder input. Two blocks are equal if all of these are equal.
 *  2. Full blocks of computed positions are cached by kv_store(); kv_release() also caches the
 *     partial block at the end, and again blocks whose equal was evicted. If an equal block is
 *     cached already, the older one stays.
 *  3. A hit has at most all tokens but the last. Full attention needs all blocks of the hit, window
 *     attention those that the next query sees, recurrent state a snapshot at the hit's end.
 *  4. After the full blocks, the longest common beginning of one more block counts, if all groups
 *     have this block in the arena; not with recurrent state. Without copies, only a block that no
 *     sequence holds and that no longer cached sequence contains.
 *  5. The KV of an encoder input is found whole or not at all.
 *  6. Held blocks are not evicted: neither those of slots nor those of pins. A block is evicted
 *     only if none is free. The cached block with the lowest priority is evicted; of these, the
 *     one that was released first. A sequence releases its last block first, in a window group its
 *     first.
 *  7. When a block is evicted, the cached blocks that continue it are evicted before all others.
 *  8. A block begins with priority 35. A request sets the priority of the blocks that it is
 *     admitted with, stores or releases, by the range that has the block's first token.
 *  9. An evicted block is copied to the host tier if its priority is at least 30, it is full or of
 *     an encoder input, and the host tier does not have it; a snapshot with all its blocks. A full
 *     host tier evicts by rules 6 and 7.
 *
 * ref_memory.c knows what each position of the arena holds: a number that stands for "the K and V
 * of this token after those tokens".
 */
#pragma once
#include "tests/fuzz/fuzz.h"

#include "worker/kv/kv_reuse.h"

enum { SLOTS = 5, ROWS = SLOTS + KV_PINS, LEN = 28, SOURCE = 12, ENTRIES = LEN };
enum { UNIT = 128, UNITS = 1 << 11, EDITS = 2048, COPIES = 256, HOST_BLOCKS = 16, STEPS = 256 };
enum { BLOCKS = 1024, TOKENS = 4, LAYERS = 3 };

struct reuse_slot { /* a sequence slot, or (from SLOTS on) a pin */
    bool live, started;
    uint32_t group_id; /* number of its sequence group; 0: not forked */
    token_id token[LEN], source[SOURCE];
    uint64_t extra[LEN];
    struct kv_text text;
    struct kv_namespace space;
    struct kv_keep keep[2];
    uint32_t len, chunk, pos, done; /* pos: planned; done: in finished steps */
    uint32_t n_stored, hit;
    bool hit_cross, cross_stored;
    uint64_t salt, path[LEN], cross_path[SOURCE]; /* contents of each position */
    struct kv_need need;
    slice_id at[MAX_GROUPS][ENTRIES];
    slice_id tail[MAX_GROUPS]; /* partial block of the hit, held until kv_start() */
    uint64_t host_held;        /* host blocks of the hit, held until kv_start(): bits */
    uint32_t snapshot[KV_SNAPSHOTS], n_snapshots; /* positions; number taken so far */
    slice_id copied[MAX_GROUPS];                  /* the tail's copy, made before kv_start() */
    uint64_t row[MAX_LANES];
    uint32_t planned_at[MAX_LANES][STEPS]; /* positions after that step; 0: not in it */
};
struct reuse_block { /* a cached block: tokens end - n .. end - 1 of its decoder or encoder input */
    uint8_t group;
    uint32_t n, end, n_source;
    token_id token[LEN], source[SOURCE];
    uint64_t salt, extra[LEN];
    slice_id at;                         /* SLICE_NONE: in the host tier only */
    slice_id layer[LAYERS];              /* all blocks of a snapshot */
    uint32_t n_host, host_block[LAYERS]; /* host blocks with it, of a snapshot one per layer */
    uint64_t released;                   /* when the last holder released it; 0: never */
    uint64_t saved,
        lost; /* operations that last copied it to the host tier, and evicted it there */
    uint8_t host_priority;
    bool orphan, host_orphan; /* rule 7 */
};
struct reuse_ref {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    uint32_t n_slabs, n_units, block_units[MAX_GROUPS], interval, max_blocks;
    bool has_state;
    uint64_t used[UNITS][MAX_LANES];
    uint64_t holds[UNITS][TOKENS]; /* of the block that begins here */
    uint32_t block_of[UNITS];      /* the block written last: first unit and group */
    uint8_t priority[UNITS];       /* of the block that begins here */
    uint32_t n_host_blocks, host_block_units;
    uint64_t host_steps[HOST_BLOCKS][MAX_LANES], host_holds[HOST_BLOCKS][TOKENS];
    struct reuse_slot slot[ROWS];
    uint32_t n_blocks; /* of block[] */
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    uint32_t n_groups_made;
    uint64_t n_released, n_operations;
    bool away;               /* the host tier */
    bool skip_rare_features; /* first byte: no state, sinks, seq groups: more of the rest */
    uint64_t clock[MAX_LANES][STEPS][MAX_LANES];
    const struct kv_copy *save, *save_end; /* copies to the host tier that are not applied yet */
    struct reuse_slot *starting;           /* the slot whose kv_start() is in the step */
    /* not cleared at the begin */
    struct reuse_block block[BLOCKS];
    struct kv_edit edit[EDITS];
    struct kv_copy copy[COPIES];
};

/* ---- ref_memory.c */

uint64_t ref_mix(uint64_t a, uint64_t b);
/* Opens a geometry from the input; false: not a valid one. */
bool ref_begin(struct reuse_ref *t, struct in *in);
/* Returns the first unit of the block. */
uint32_t ref_unit(const struct reuse_ref *t, uint32_t group, slice_id at);
/* Derives the contents of each position from the tokens. */
void ref_name(struct reuse_slot *s);
uint64_t ref_content(const struct reuse_slot *s, bool cross, uint32_t pos);
/* ref_write() records a written block; ref_whole() returns true if no part was overwritten. */
void ref_write(struct reuse_ref *t, uint32_t group, slice_id at);
bool ref_whole(const struct reuse_ref *t, uint32_t group, slice_id at);
void ref_touch(struct reuse_ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step);
/* Returns the host block at this place; the step uses it after earlier uses. */
uint32_t ref_host_block(const struct reuse_ref *t, uint32_t group, slice_id at);
void ref_touch_host(struct reuse_ref *t, uint32_t host_block, unsigned lane, uint64_t step);
/* The step takes the block: no row holds it, and earlier uses must end before the step. */
void ref_overwrite(struct reuse_ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step);
/* Returns true if a row holds the block. */
bool ref_held(const struct reuse_ref *t, uint32_t group, slice_id at);
/* Returns the number of a group's blocks that are held, each counted once, or cached. */
uint32_t ref_n_blocks(const struct reuse_ref *t, uint32_t group);
/* Returns true if the slabs hold all reservations and need, counted from the tables. */
bool ref_fits(const struct reuse_ref *t, const struct kv_need *need);
bool ref_all_started(const struct reuse_ref *t);

/* ---- ref_reuse.c */

/* ref_hit() returns the cached positions; *whole: in full blocks. ref_cross() returns true if the
 * encoder input is cached. */
uint32_t ref_hit(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t *whole);
bool ref_cross(const struct reuse_ref *t, const struct reuse_slot *s);
/* Returns the number of blocks of a cached block: one per layer of a snapshot. */
uint32_t ref_n_parts(const struct reuse_ref *t, uint32_t group);
/* Returns the cached block at this place, in the arena or in the host tier; NULL: there is none. */
struct reuse_block *ref_at(struct reuse_ref *t, uint32_t group, slice_id at);
struct reuse_block *ref_at_host(struct reuse_ref *t, uint32_t host_block);
/* The step takes the block for a row. Cached blocks in its place are evicted; with `moved` the row
 * takes over the cached block itself. */
void ref_acquire(struct reuse_ref *t, uint32_t group, slice_id at, bool moved, unsigned lane,
                 uint64_t step);
/* Returns true if a row that is not started holds the block's host block. */
bool ref_host_held(const struct reuse_ref *t, const struct reuse_block *b);
/* Applies the copies to the host tier up to the one of block b, if there is one; b NULL: all. */
void ref_save(struct reuse_ref *t, const struct reuse_block *b, unsigned lane, uint64_t step);
/* A row has stopped to hold the block. ref_drop() ends the row: it releases all blocks in order. */
void ref_released(struct reuse_ref *t, uint32_t group, slice_id at);
void ref_drop(struct reuse_ref *t, struct reuse_slot *s);
/* Removes block i from the arena or from the host tier, and from the list if it was its last place.
 * Returns true if the list has lost element i: another block is there now. */
bool ref_forget(struct reuse_ref *t, uint32_t i, bool host);
/* The row is admitted: it holds its hit and sets priorities. ref_claim_tail() checks
 * s->tail[group]; owner: the slot will take the tail over, or is the one that copies it. */
void ref_claim(struct reuse_ref *t, struct reuse_slot *s);
void ref_claim_tail(struct reuse_ref *t, const struct reuse_slot *s, uint32_t group, bool owner);
/* kv_store() and kv_release() of the slot at n positions; the latter without the end of the row. */
void ref_store(struct reuse_ref *t, struct reuse_slot *s, uint32_t n, bool release);
