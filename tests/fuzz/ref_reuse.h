/* ref_reuse.h - what the fuzzer of reuse knows: every position of the arena, and a plain list of what was stored.
 *
 * Of each block's positions it keeps a number for "the K and V of this token after those tokens"; from that and
 * the list alone it says how long a hit must be. For fuzz_reuse.c, which acts.
 */
#ifndef TESTS_FUZZ_REF_REUSE_H
#define TESTS_FUZZ_REF_REUSE_H

#include "tests/fuzz/fuzz.h"

#include "worker/kv/kv_reuse.h"
#include "worker/kv/kv_state.h"

enum { SLOTS = 5, LEN = 28, SOURCE = 12, ENTRIES = LEN, UNIT = 128, UNITS = 1 << 11, EDITS = 2048 };
enum { COPIES = 256, CELLS = 16, STEPS = 256, RECORDS = 1024, TOKENS = 4, LAYERS = 3 };

struct slot {
    bool live, started;
    uint32_t family; /* of those that were forked from one; 0: of none */
    token_id token[LEN], source[SOURCE];
    uint64_t extra[LEN];
    struct kv_text text;
    struct kv_namespace space;
    struct kv_keep keep[2];
    uint32_t len, chunk, pos, done; /* pos: planned; done: in steps that are over */
    uint32_t n_stored, hit;
    bool hit_cross, cross_stored;
    uint64_t salt, path[LEN],
        cross_path[SOURCE]; /* what each position holds, of self and cross groups */
    struct kv_need need;
    slice_id at[MAX_GROUPS][ENTRIES];
    uint32_t snapshot[KV_SNAPSHOTS], n_snapshots; /* positions; how many there ever were */
    slice_id copied[MAX_GROUPS]; /* the tail's copy, made before the slot was started */
    uint64_t row[MAX_LANES];
    uint32_t planned_at[MAX_LANES][STEPS]; /* positions once that step is over; 0: not in it */
};
struct record { /* a block that may be found */
    uint8_t group;
    slice_id at;            /* SLICE_NONE: only the host has it */
    slice_id layer[LAYERS]; /* of a snapshot: all of it */
    uint32_t host_block;          /* + 1; 0: the host has it not */
    uint64_t path;          /* content of its last position: all tokens up to there */
    uint64_t before;        /* content of the last position before it */
    uint32_t n;
    token_id token[TOKENS];
    uint64_t extra[TOKENS];
};
struct ref {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    uint32_t n_slabs, n_units, block_units[MAX_GROUPS], interval;
    bool has_state;
    uint64_t used[UNITS][MAX_LANES];
    uint64_t holds[UNITS][TOKENS]; /* of the block that begins there */
    uint32_t block_of[UNITS];      /* that was written there last, by its first unit and group */
    uint32_t cell_units;
    uint64_t cell_used[CELLS][MAX_LANES], cell_holds[CELLS][TOKENS];
    struct slot slot[SLOTS];
    struct record record[RECORDS];
    uint32_t n_records;
    uint64_t planned[MAX_LANES], done[MAX_LANES];
    uint32_t n_families;
    bool away; /* the host's memory */
    bool
        narrow; /* the first byte: no states, no sinks and no families, which would crowd out the rest */
    uint64_t clock[MAX_LANES][STEPS][MAX_LANES];
    struct kv_edit edit[EDITS];
    struct kv_copy copy[COPIES];
};

uint64_t ref_mix(uint64_t a, uint64_t b);
/* A geometry from the input; false: none that could be. */
bool ref_begin(struct ref *t, struct in *in);
uint32_t ref_unit(const struct ref *t, uint32_t group,
                  slice_id at); /* of the arena: where the block begins */
/* What each of its positions holds, from its tokens. */
void ref_name(struct slot *s);
uint64_t ref_content(const struct slot *s, bool cross, uint32_t pos);
uint64_t ref_before(const struct slot *s, bool cross,
                    uint32_t pos); /* of a root: the same for all of one salt and source */

/* The step has the memory for itself: what was in it is nobody's, and others' use of it is over. */
void ref_acquire(struct ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step);
/* The whole block is written; whether nothing else was since, in any part of it. */
void ref_write(struct ref *t, uint32_t group, slice_id at);
bool ref_whole(const struct ref *t, uint32_t group, slice_id at);
void ref_touch(struct ref *t, uint32_t group, slice_id at, unsigned lane, uint64_t step);

const struct record *ref_find(const struct ref *t, uint32_t group, uint64_t path, uint32_t n);
bool ref_on_device(const struct ref *t, uint32_t group, uint64_t path, uint32_t n);
void ref_forget(struct ref *t, uint32_t i);
bool ref_held(const struct ref *t, uint32_t group, slice_id at);
/* Positions that are there for it; *whole: in whole blocks. */
uint32_t ref_hit(const struct ref *t, const struct slot *s, uint32_t *whole);
bool ref_cross(const struct ref *t, const struct slot *s);
/* Slabs that it takes to keep what is reserved_blocks, with need more; counted from the tables alone. */
bool ref_fits(const struct ref *t, const struct kv_need *need);
bool ref_all_started(const struct ref *t);

#endif
