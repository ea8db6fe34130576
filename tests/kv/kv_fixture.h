/* kv_fixture.h - a small KV cache with sequence slots, for the tests of worker/kv: one call admits,
 * computes, extends or releases a sequence, and runs kv_check().
 */
#pragma once
#include "tests/test.h"

#include "worker/kv/kv_reuse.h"

enum { FIXTURE_EDITS = 4096, FIXTURE_COPIES = 64, FIXTURE_SLOTS = 8, FIXTURE_LENGTH = 256 };

struct fixture_slot {
    token_id token[FIXTURE_LENGTH];
    uint64_t extra[FIXTURE_LENGTH];
    uint32_t n, cached; /* tokens known; positions computed */
    struct kv_text text;
    struct kv_hit hit;
};
struct kv_fixture {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    struct kv_namespace namespace;
    struct fixture_slot slot[FIXTURE_SLOTS];
    struct kv_edit edit[FIXTURE_EDITS];
    struct kv_copy copy[FIXTURE_COPIES];
    struct kv_out out; /* of the last step */
    uint64_t step;
};

/* One layer, blocks of 256 bytes; max_blocks 0: elastic. */
struct kv_group group(enum kv_kind kind, uint32_t window, uint32_t max_blocks);
/* Recurrent state with a snapshot every interval positions; interval 0: none. */
struct kv_group state_group(uint32_t n_layers, uint32_t slice_bytes, uint32_t interval);

/* A cmocka test whose body has `b`, the fixture that SETUP returns, and `kv`, its KV manager. The
 * fixture is freed after the body.
 *
 *     KV_TEST(low_priority_blocks_are_evicted_first, cache(4))
 *     {
 *         ...
 *     }
 */
#define KV_TEST(name, setup) \
    static void name##_body(struct kv_fixture *b, struct kv *kv); \
    static void name(void **state) \
    { \
        struct kv_fixture *b = setup; \
\
        (void)state; \
        name##_body(b, b->kv); \
        cache_close(b); \
    } \
    static void name##_body(__attribute__((unused)) struct kv_fixture *b, \
                            __attribute__((unused)) struct kv *kv)

/* Returns a cache with reuse and partial copies: one lane, blocks of 4 tokens, one full group of
 * n_blocks blocks that are evicted in release order. n_blocks 0: elastic. */
struct kv_fixture *cache(uint32_t n_blocks);
/* The same with the given fields of struct kv_config, without partial copies unless .copy_partial
 * is given. n_groups follows from .group. */
#define cache_of(n_blocks, ...) cache_of_config(n_blocks, &(struct kv_config){ __VA_ARGS__ })
struct kv_fixture *cache_of_config(uint32_t n_blocks, const struct kv_config *c);
/* Returns a cache without reuse: 2 lanes, an arena of n_blocks blocks of 256 bytes, these
 * groups. */
#define pool(tokens, n_blocks, ...) \
    pool_of_config(tokens, n_blocks, &(struct kv_config){ .group = { __VA_ARGS__ } })
struct kv_fixture *pool_of_config(uint32_t tokens, uint32_t n_blocks, const struct kv_config *c);
void cache_close(struct kv_fixture *b);        /* drops all sequences, checks, frees */
struct kv_out empty_out(struct kv_fixture *b); /* with the fixture's arrays */
uint32_t n_free(const struct kv_fixture *b);   /* free and cached blocks of pool 0 */

/* Sets the prompt of the slot. */
void prompt(struct kv_fixture *b, uint32_t slot, const token_id *token, uint32_t n);
/* The n tokens first, first + 1 ..., then the list `more`, which ends with -1. */
void prompt_of(struct kv_fixture *b, uint32_t slot, token_id first, uint32_t n,
               const token_id *more);
#define TOKENS(...) ((const token_id[]){ __VA_ARGS__, -1 })

/* kv_admit() with `more` positions beyond the prompt. */
int admit(struct kv_fixture *b, uint32_t slot, uint32_t more);
void start(struct kv_fixture *b, uint32_t slot); /* kv_start() and the prompt */
/* admit() and start(); returns the cached positions. `more` calls of gen_plus() may follow. */
uint32_t add(struct kv_fixture *b, uint32_t slot, uint32_t more);
void gen(struct kv_fixture *b, uint32_t slot, token_id t);      /* one more token, not computed */
void gen_plus(struct kv_fixture *b, uint32_t slot, token_id t); /* computed */
void store(struct kv_fixture *b, uint32_t slot, uint32_t n);
void release_at(struct kv_fixture *b, uint32_t slot, uint32_t n);
void release(struct kv_fixture *b, uint32_t slot); /* without the last, uncomputed token */

/* Asserts the block numbers of a slot in a group, counted from the group's first; -1 ends them. */
void expect_ids(struct kv_fixture *b, uint32_t slot, uint32_t g, const token_id *id);
#define expect(b, slot, ...) expect_ids(b, slot, 0, TOKENS(__VA_ARGS__))
