/* ref_reuse.h - reference implementation of prefix caching: contents of the arena, and a list.
 *
 * A number per position stands for "the K and V of this token after those tokens". From the numbers
 * and the list of stored blocks the reference derives the length of a hit. For fuzz_reuse.c.
 */
#pragma once
#include "tests/fuzz/fuzz.h"

#include "worker/kv/kv_reuse.h"

enum { SLOTS = 5, LEN = 28, SOURCE = 12, ENTRIES = LEN, UNIT = 128, UNITS = 1 << 11, EDITS = 2048 };
enum { COPIES = 256, HOST_BLOCKS = 16, STEPS = 256, RECORDS = 1024, TOKENS = 4, LAYERS = 3 };

struct reuse_slot {
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
    uint32_t snapshot[KV_SNAPSHOTS], n_snapshots; /* positions; number taken so far */
    slice_id copied[MAX_GROUPS];                  /* the tail's copy, made before kv_start() */
    uint64_t row[MAX_LANES];
    uint32_t planned_at[MAX_LANES][STEPS]; /* positions after that step; 0: not in it */
};
struct reuse_record { /* a stored block */
    uint8_t group;
    slice_id at;            /* SLICE_NONE: in the host tier only */
    slice_id layer[LAYERS]; /* all blocks of a snapshot */
    uint32_t host_block;    /* + 1; 0: not in the host tier */
    uint64_t path;          /* contents of its last position: depends on all tokens */
    uint64_t before;        /* contents of the position before the block */
    uint32_t n;
    token_id token[TOKENS];
    uint64_t extra[TOKENS];
};
struct reuse_ref {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    uint32_t n_slabs, n_units, block_units[MAX_GROUPS], interval;
    bool has_state;
    uint64_t used[UNITS][MAX_LANES];
    uint64_t holds[UNITS][TOKENS]; /* of the block that begins here */
    uint32_t block_of[UNITS];      /* the block written last: first unit and group */
    uint32_t host_block_units;
    uint64_t host_steps[HOST_BLOCKS][MAX_LANES], host_holds[HOST_BLOCKS][TOKENS];
    struct reuse_slot slot[SLOTS];
    struct reuse_record record[RECORDS];
    uint32_t n_records;
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    uint32_t n_groups_made;
    bool away;               /* the host tier */
    bool skip_rare_features; /* first byte: no state, sinks, seq groups: more of the rest */
    uint64_t clock[MAX_LANES][STEPS][MAX_LANES];
    struct kv_edit edit[EDITS];
    struct kv_copy copy[COPIES];
};

uint64_t ref_mix(uint64_t a, uint64_t b);
/* Opens a geometry from the input; false: not a valid one. */
bool ref_begin(struct reuse_ref *t, struct in *in);
/* Returns the first unit of the block. */
uint32_t ref_unit(const struct reuse_ref *t, uint32_t group, slice_id at);
/* Derives the contents of each position from the tokens. */
void ref_name(struct reuse_slot *s);
uint64_t ref_content(const struct reuse_slot *s, bool cross, uint32_t pos);
/* Returns the contents of position pos - 1; for pos 0 a value of salt and encoder input. */
uint64_t ref_before(const struct reuse_slot *s, bool cross, uint32_t pos);

/* The step takes the block: earlier contents are gone, earlier uses must end before it. */
void ref_acquire(struct reuse_ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step);
/* ref_write() records a written block; ref_whole() returns true if no part was overwritten. */
void ref_write(struct reuse_ref *t, uint32_t group, slice_id at);
bool ref_whole(const struct reuse_ref *t, uint32_t group, slice_id at);
void ref_touch(struct reuse_ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step);

const struct reuse_record *ref_find(const struct reuse_ref *t, uint32_t group, uint64_t path,
                                    uint32_t n);
bool ref_on_device(const struct reuse_ref *t, uint32_t group, uint64_t path, uint32_t n);
void ref_forget(struct reuse_ref *t, uint32_t i);
bool ref_held(const struct reuse_ref *t, uint32_t group, slice_id at);
/* Returns the cached positions; *whole: in full blocks. */
uint32_t ref_hit(const struct reuse_ref *t, const struct reuse_slot *s, uint32_t *whole);
bool ref_cross(const struct reuse_ref *t, const struct reuse_slot *s);
/* Returns true if the slabs hold all reservations and need, counted from the tables. */
bool ref_fits(const struct reuse_ref *t, const struct kv_need *need);
bool ref_all_started(const struct reuse_ref *t);
