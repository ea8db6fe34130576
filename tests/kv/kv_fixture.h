/* kv_fixture.h - slots in a small cache with reuse, for the tests of worker/kv: prompts come, are
 * computed, go on and leave, one call each. kv_check() looks after every one.
 */
#ifndef TESTS_KV_FIXTURE_H
#define TESTS_KV_FIXTURE_H

#include "tests/test.h"

#include "worker/kv/kv_reuse.h"

enum { BED_EDITS = 4096, BED_COPIES = 64, BED_SLOTS = 8, BED_LENGTH = 256 };

struct slot {
    token_id token[BED_LENGTH];
    uint64_t extra[BED_LENGTH];
    uint32_t n, cached; /* tokens known; positions that have a slot */
    struct kv_text text;
    struct kv_hit hit;
};
struct bed {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    struct kv_namespace space;
    struct slot slot[BED_SLOTS];
    struct kv_edit edit[BED_EDITS];
    struct kv_copy copy[BED_COPIES];
    struct kv_out out; /* of the last step */
    uint64_t step;
};

/* One layer, blocks of 256 bytes; max_blocks 0: elastic. */
struct kv_group group(enum kv_kind kind, uint32_t window, uint32_t max_blocks);
/* Recurrent state with a snapshot every interval positions; interval 0: none. */
struct kv_group state_group(uint32_t n_layers, uint32_t slice_bytes, uint32_t interval);

/* A cmocka test whose body has `b`, the bed that SETUP returns, and `kv`, its KV manager. The bed is
 * closed after the body.
 *
 *     KV_TEST(low_priorities_go_first, bed(4))
 *     {
 *         ...
 *     }
 */
#define KV_TEST(name, setup) \
    static void name##_body(struct bed *b, struct kv *kv); \
    static void name(void **state) \
    { \
        struct bed *b = setup; \
\
        (void)state; \
        name##_body(b, b->kv); \
        close_bed(b); \
    } \
    static void name##_body(__attribute__((unused)) struct bed *b, \
                            __attribute__((unused)) struct kv *kv)

/* With reuse and partial copies, one lane, blocks of 4 tokens in one full group of n_blocks
 * blocks, which are evicted in the order of their release. n_blocks 0: elastic. */
struct bed *bed(uint32_t n_blocks);
/* The same with fields of struct kv_config set, and without partial copies unless .copy_partial
 * is one of them. n_groups follows from .group. */
#define bed_of(n_blocks, ...) bed_of_config(n_blocks, &(struct kv_config){ __VA_ARGS__ })
struct bed *bed_of_config(uint32_t n_blocks, const struct kv_config *c);
/* Without reuse: two lanes, an arena of n_blocks blocks of 256 bytes, the groups that are listed. */
#define pool(tokens, n_blocks, ...) \
    pool_of_config(tokens, n_blocks, &(struct kv_config){ .group = { __VA_ARGS__ } })
struct bed *pool_of_config(uint32_t tokens, uint32_t n_blocks, const struct kv_config *c);
void close_bed(struct bed *b);        /* drops all sequences, checks, frees */
struct kv_out bed_out(struct bed *b); /* empty, with the arrays of the bed */
uint32_t n_free(const struct bed *b); /* blocks of the first pool that can be had */

/* What the slot is to compute next. */
void prompt(struct bed *b, uint32_t slot, const token_id *token, uint32_t n);
/* first, first + 1 ... n of them, then the tokens of the list that ends with -1. */
void prompt_of(struct bed *b, uint32_t slot, token_id first, uint32_t n, const token_id *more);
#define TOKENS(...) ((const token_id[]){ __VA_ARGS__, -1 })

/* Claims only; as many more positions as are to follow. */
int admit(struct bed *b, uint32_t slot, uint32_t more);
void start(struct bed *b, uint32_t slot); /* and computes the prompt */
/* Both: positions that were there; so many gen_plus() may follow. */
uint32_t add(struct bed *b, uint32_t slot, uint32_t more);
void gen(struct bed *b, uint32_t slot, token_id t);      /* one more token, not computed */
void gen_plus(struct bed *b, uint32_t slot, token_id t); /* computed */
void store(struct bed *b, uint32_t slot, uint32_t n);
void release_at(struct bed *b, uint32_t slot, uint32_t n);
void release(struct bed *b, uint32_t slot); /* all but the last token, which is not computed */

/* The blocks of a slot in a group, counted from the first one; -1 ends them. */
void expect_ids(struct bed *b, uint32_t slot, uint32_t g, const token_id *id);
#define expect(b, slot, ...) expect_ids(b, slot, 0, TOKENS(__VA_ARGS__))

#endif
