/* bed.h - seats in a small cache with reuse, for the tests of worker/kv: prompts come, are computed, go on
 * and leave, one call each. kv_check() looks after every one.
 */
#ifndef TESTS_KV_BED_H
#define TESTS_KV_BED_H

#include "tests/test.h"

#include "worker/kv/kv_reuse.h"

enum { BED_EDITS = 4096, BED_COPIES = 64, BED_SEATS = 8, BED_LENGTH = 256 };

struct seat {
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
    struct kv_space space;
    struct seat seat[BED_SEATS];
    struct kv_edit edit[BED_EDITS];
    struct kv_copy copy[BED_COPIES];
    struct kv_out out; /* of the last step */
    uint64_t step;
};

/* One layer, blocks of 256 bytes; max_blocks 0: elastic. */
struct kv_group group(enum kv_kind kind, uint32_t window, uint32_t max_blocks);

/* Blocks of 4 tokens that are copied in part, one full group; n_blocks 0: elastic. */
struct bed *bed(uint32_t n_blocks);
/* The same with what c says already, for a bed that is calloc()ed. */
void open_bed(struct bed *b, uint32_t n_blocks);
void close_bed(struct bed *b);
uint32_t n_free(const struct bed *b); /* blocks of the first pool that can be had */

/* What the seat is to compute next. */
void prompt(struct bed *b, uint32_t seat, const token_id *token, uint32_t n);
/* first, first + 1 ... n of them, then the tokens of the list that ends with -1. */
void prompt_of(struct bed *b, uint32_t seat, token_id first, uint32_t n, const token_id *more);
#define TOKENS(...) ((const token_id[]){ __VA_ARGS__, -1 })

/* Claims only; as many more positions as are to follow. */
int admit(struct bed *b, uint32_t seat, uint32_t more);
void start(struct bed *b, uint32_t seat); /* and computes the prompt */
/* Both: positions that were there; so many gen_plus() may follow. */
uint32_t add(struct bed *b, uint32_t seat, uint32_t more);
void gen(struct bed *b, uint32_t seat, token_id t);      /* one more token, not computed */
void gen_plus(struct bed *b, uint32_t seat, token_id t); /* computed */
void store(struct bed *b, uint32_t seat, uint32_t n);
void release_at(struct bed *b, uint32_t seat, uint32_t n);
void release(struct bed *b, uint32_t seat); /* all but the last token, which is not computed */

/* The blocks of a seat in a group, counted from the first one; -1 ends them. */
void expect_ids(struct bed *b, uint32_t seat, uint32_t g, const token_id *id);
#define expect(b, seat, ...) expect_ids(b, seat, 0, TOKENS(__VA_ARGS__))

#endif
