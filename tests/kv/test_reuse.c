/* test_reuse.c - what one sequence computed, another finds: rows K, B, P and S of the scenarios, and what
 * they do not say. */
#include "tests/test.h"

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_reuse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { EDITS = 4096, SEATS = 8, LENGTH = 256 };

struct seat {
    token_id token[LENGTH];
    uint64_t extra[LENGTH];
    uint32_t n, cached; /* tokens known; positions that have a slot */
    struct kv_text text;
    struct kv_hit hit;
};
struct bed {
    struct kv_config c;
    void *mem;
    struct kv *kv;
    struct kv_space space;
    struct seat seat[SEATS];
    struct kv_edit edit[EDITS];
    struct kv_copy copy[64];
    struct kv_out out;
    uint64_t step;
};

static struct kv_group
group(enum kv_kind kind, uint32_t window, uint32_t max_blocks)
{
    return (struct kv_group){ .kind = kind,
                              .window = window,
                              .n_layers = 1,
                              .n_parts = 2,
                              .slice_bytes = 128,
                              .max_entries = 64,
                              .max_blocks = max_blocks };
}

static void
open_bed(struct bed *b, uint32_t n_blocks)
{
    struct err e;

    b->c.n_seats = SEATS;
    b->c.n_lanes = 1;
    b->c.reuse = true;
    b->c.fifo = n_blocks > 0; /* 0: elastic */
    if (!b->c.tokens_per_block) b->c.tokens_per_block = 4;
    if (!b->c.n_groups) {
        b->c.n_groups = 1;
        b->c.group[0] = group(KV_FULL, 0, n_blocks);
    }
    if (!b->c.arena_bytes) b->c.arena_bytes = (uint64_t)b->c.n_groups * (n_blocks + 1) * 256;
    b->c.extra_ids = true;
    b->mem = calloc(1, kv_bytes(&b->c));
    b->kv = kv_init(b->mem, &b->c, &e);
    assert_non_null(b->kv);
    kv_space(b->kv, 0, 0, NULL, 0, &b->space);
}

static struct bed *
bed(uint32_t n_blocks)
{
    struct bed *b = calloc(1, sizeof *b);

    b->c.copy_partial = true;
    open_bed(b, n_blocks);
    return b;
}

static void
close_bed(struct bed *b)
{
    for (uint32_t i = 0; i < SEATS; i++) kv_drop(b->kv, i);
    kv_check(b->kv);
    free(b->mem);
    free(b);
}

static uint32_t
n_free(const struct bed *b)
{
    struct kv_count n;

    kv_count(b->kv, 0, &n);
    return n.free + n.cached;
}

static void
prompt(struct bed *b, uint32_t seat, const token_id *token, uint32_t n)
{
    struct seat *s = &b->seat[seat];

    memcpy(s->token, token, n * sizeof *token);
    s->n = n;
    s->cached = 0;
    s->text = (struct kv_text){ .token = s->token, .extra = s->extra, .n = n, .space = &b->space };
}

/* first, first + 1 ... n of them, then the tokens of the list that ends with -1. */
static void
prompt_of(struct bed *b, uint32_t seat, token_id first, uint32_t n, const token_id *more)
{
    token_id token[LENGTH];

    for (uint32_t i = 0; i < n; i++) token[i] = first + (token_id)i;
    for (; more && *more >= 0; more++) token[n++] = *more;
    memset(b->seat[seat].extra, 0, sizeof b->seat[seat].extra);
    prompt(b, seat, token, n);
}
#define TOKENS(...) ((const token_id[]){ __VA_ARGS__, -1 })

/* Claims only; as many more positions as are to follow. */
static int
admit(struct bed *b, uint32_t seat, uint32_t more)
{
    struct seat *s = &b->seat[seat];
    struct kv_need need = kv_need(b->kv, s->n + more, s->text.n_source, s->n);
    int r = kv_admit(b->kv, seat, &need, &s->text, &s->hit);

    kv_check(b->kv);
    return r;
}

static void
start(struct bed *b, uint32_t seat)
{
    struct seat *s = &b->seat[seat];

    b->out = (struct kv_out){
        .edit = b->edit, .max_edits = EDITS, .copy = b->copy, .max_copies = 64, .step = b->step + 1
    };
    b->step++;
    kv_start(b->kv, 0, b->step, seat, &b->out);
    kv_check(b->kv);
    kv_cross(b->kv, 0, seat, s->text.n_source, &b->out);
    kv_trim(b->kv, seat, s->hit.n_tokens, &b->out);
    kv_grow(b->kv, 0, seat, s->n, &b->out);
    kv_fence(b->kv, seat, 0, b->step);
    kv_done(b->kv, 0, b->step);
    s->cached = s->n;
    kv_check(b->kv);
}

/* Positions that were there; so many gen+ may follow. */
static uint32_t
add(struct bed *b, uint32_t seat, uint32_t more)
{
    assert_int_equal(admit(b, seat, more), 0);
    start(b, seat);
    return b->seat[seat].hit.n_tokens;
}

static void
gen(struct bed *b, uint32_t seat, token_id t)
{
    b->seat[seat].token[b->seat[seat].n++] = t;
    b->seat[seat].text.n = b->seat[seat].n;
}

static void
gen_plus(struct bed *b, uint32_t seat, token_id t)
{
    struct seat *s = &b->seat[seat];

    gen(b, seat, t);
    b->out.step = ++b->step;
    b->out.n_edits = b->out.n_copies = 0;
    kv_trim(b->kv, seat, s->cached, &b->out);
    kv_grow(b->kv, 0, seat, ++s->cached, &b->out);
    kv_fence(b->kv, seat, 0, b->step);
    kv_done(b->kv, 0, b->step);
    kv_check(b->kv);
}

static void
store(struct bed *b, uint32_t seat, uint32_t n)
{
    kv_store(b->kv, seat, &b->seat[seat].text, n);
    kv_check(b->kv);
}

static void
release_at(struct bed *b, uint32_t seat, uint32_t n)
{
    kv_release(b->kv, seat, &b->seat[seat].text, n);
    kv_check(b->kv);
}

static void
release(struct bed *b, uint32_t seat)
{
    release_at(b, seat, b->seat[seat].n - 1);
}

static void
expect_ids(struct bed *b, uint32_t seat, uint32_t g, const token_id *id)
{
    uint32_t first, n = kv_held(b->kv, seat, g, &first);

    for (uint32_t i = first; i < first + n; i++, id++)
        assert_int_equal(kv_entry(b->kv, seat, g, i) / 2 - b->c.n_groups, (uint32_t)*id);
    assert_int_equal(*id, -1);
}
#define expect(b, seat, ...) expect_ids(b, seat, 0, TOKENS(__VA_ARGS__))

static void
one_long_chain(void **state) /* K-01 */
{
    struct bed *b = bed(8);

    (void)state;
    prompt_of(b, 0, 0, 9, NULL);
    assert_int_equal(add(b, 0, 0), 0);
    expect(b, 0, 0, 1, 2);
    gen(b, 0, 9), gen(b, 0, 10);
    release(b, 0);
    assert_int_equal(n_free(b), 8);
    prompt_of(b, 0, 0, 9, NULL);
    assert_int_equal(add(b, 0, 0), 8);
    expect(b, 0, 0, 1, 3);
    gen(b, 0, 9), gen(b, 0, 10);
    release(b, 0);
    prompt_of(b, 0, 0, 10, NULL);
    assert_int_equal(add(b, 0, 0), 9);
    expect(b, 0, 0, 1, 2);
    prompt_of(b, 1, 0, 11, NULL);
    assert_int_equal(add(b, 1, 0), 8);
    expect(b, 1, 0, 1, 4);
    assert_int_equal(n_free(b), 4);
    gen(b, 1, 10);
    release(b, 0), release(b, 1);
    prompt_of(b, 0, 0, 5, NULL);
    assert_int_equal(add(b, 0, 0), 4);
    expect(b, 0, 0, 5);
    gen(b, 0, 5);
    prompt_of(b, 1, 0, 10, TOKENS(11));
    assert_int_equal(add(b, 1, 0), 10);
    expect(b, 1, 0, 1, 4);
    assert_int_equal(n_free(b), 4);
    gen(b, 1, 11);
    release(b, 0), release(b, 1);
    prompt_of(b, 0, 0, 10, TOKENS(12));
    assert_int_equal(add(b, 0, 0), 10);
    expect(b, 0, 0, 1, 4);
    release_at(b, 0, 8);
    prompt_of(b, 0, 0, 10, TOKENS(12));
    assert_int_equal(add(b, 0, 0), 9);
    expect(b, 0, 0, 1, 2);
    release(b, 0);
    prompt(b, 0, (token_id[31]){ 0 }, 31);
    assert_int_equal(add(b, 0, 0), 1);
    assert_int_equal(n_free(b), 0);
    gen(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 0, 1, NULL);
    assert_int_equal(add(b, 0, 0), 0);
    close_bed(b);
}

static void
with_extra(struct bed *b, uint32_t seat, const uint64_t *extra, uint32_t n_extra,
           const token_id *more)
{
    prompt_of(b, seat, 100, 6, TOKENS(0, 1, 2));
    for (; more && *more >= 0; more++) b->seat[seat].token[b->seat[seat].n++] = *more;
    b->seat[seat].text.n = b->seat[seat].n;
    memcpy(b->seat[seat].extra, extra, n_extra * sizeof *extra);
}

static void
extra_ids_tell_equal_tokens_apart(void **state) /* K-02 */
{
    static const uint64_t one[] = { 1, 1, 2, 2, 3, 3 }, two[] = { 4, 4, 5, 5, 6, 6 },
                          three[] = { 1, 1, 2, 2, 4, 4 };
    struct bed *b = bed(16);

    (void)state;
    with_extra(b, 0, one, 6, NULL);
    assert_int_equal(add(b, 0, 0), 0);
    expect(b, 0, 0, 1, 2);
    gen(b, 0, 3), gen(b, 0, 4);
    release(b, 0);
    with_extra(b, 0, one, 6, NULL);
    assert_int_equal(add(b, 0, 0), 8);
    expect(b, 0, 0, 1, 3);
    gen(b, 0, 3), gen(b, 0, 4);
    release(b, 0);
    with_extra(b, 0, one, 6, NULL);
    assert_int_equal(add(b, 0, 0), 8);
    expect(b, 0, 0, 1, 4);
    gen(b, 0, 3);
    with_extra(b, 1, one, 6, TOKENS(3, 4));
    assert_int_equal(add(b, 1, 0), 10);
    expect(b, 1, 0, 1, 2);
    assert_int_equal(n_free(b), 12);
    gen(b, 1, 5);
    release(b, 0), release(b, 1);
    with_extra(b, 0, two, 6, NULL);
    assert_int_equal(add(b, 0, 0), 0);
    expect(b, 0, 5, 6, 7);
    gen(b, 0, 3);
    with_extra(b, 1, three, 6, NULL);
    assert_int_equal(add(b, 1, 0), 4);
    expect(b, 1, 0, 8, 9);
    assert_int_equal(n_free(b), 10);
    close_bed(b);
}

static void
another_salt_shares_nothing(void **state) /* K-04 */
{
    static const struct {
        uint64_t salt;
        bool keep;
        uint32_t pos;
        token_id id[4];
    } row[] = { { 0, false, 0, { 0, 1, 2, -1 } },
                { 12345, false, 0, { 3, 4, 5, -1 } },
                { 12345, false, 8, { 3, 4, 6, -1 } },
                { 67890, true, 0, { 7, 8, 9, -1 } },
                { 0, false, 8, { 0, 1, 10, -1 } } };
    struct bed *b = bed(16);

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(row); i++) {
        kv_space(b->kv, row[i].salt, 0, NULL, 0, &b->space);
        prompt_of(b, i, 100, 6, TOKENS(0, 1, 2));
        assert_int_equal(add(b, i, 0), row[i].pos);
        expect_ids(b, i, 0, row[i].id);
        gen(b, i, 3), gen(b, i, 4);
        if (!row[i].keep) release(b, i);
    }
    close_bed(b);
}

static void
another_adapter_or_source_shares_no_prefix(void **state)
{
    static const token_id source[] = { 1, 2, 3 }, longer[] = { 1, 2, 3, 4 };
    struct kv_space s[5];
    struct bed *b = bed(4);

    (void)state;
    kv_space(b->kv, 0, 0, NULL, 0, &s[0]);
    kv_space(b->kv, 0, 1, NULL, 0, &s[1]);
    kv_space(b->kv, 1, 0, NULL, 0, &s[2]);
    kv_space(b->kv, 0, 0, source, 3, &s[3]);
    kv_space(b->kv, 0, 0, longer, 4, &s[4]);
    for (uint32_t i = 0; i < ARRAY_LEN(s); i++)
        for (uint32_t k = 0; k < ARRAY_LEN(s); k++) {
            assert_int_equal(memcmp(s[i].self, s[k].self, 16) == 0, i == k);
            assert_int_equal(memcmp(s[i].cross, s[k].cross, 16) == 0, i == k);
            assert_true(memcmp(s[i].self, s[k].cross, 16));
        }
    close_bed(b);
}

static void
only_what_is_computed_is_found(void **state) /* K-06 */
{
    (void)state;
    for (int by_release = 0; by_release < 2; by_release++) {
        struct bed *b = bed(8);

        prompt_of(b, 0, 0, 12, NULL);
        assert_int_equal(add(b, 0, 0), 0);
        if (by_release) {
            release_at(b, 0, 4);
        } else {
            store(b, 0, 4);
            kv_drop(b->kv, 0);
        }
        prompt_of(b, 0, 0, 12, NULL);
        assert_int_equal(add(b, 0, 0), 4);
        close_bed(b);
    }
}

static void
released_blocks_are_taken_in_the_order_of_their_release(void **state) /* K-07 */
{
    struct bed *b = bed(4);

    (void)state;
    prompt_of(b, 0, 0, 4, NULL);
    add(b, 0, 1);
    store(b, 0, 4);
    gen_plus(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 0, 0, TOKENS(1, 1, 2, 3));
    assert_int_equal(add(b, 0, 0), 0);
    expect(b, 0, 2);
    prompt_of(b, 1, 0, 0, TOKENS(2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    assert_int_equal(add(b, 1, 0), 0);
    release(b, 0), release(b, 1);
    prompt_of(b, 0, 0, 0, TOKENS(2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    assert_int_equal(add(b, 0, 1), 11);
    assert_int_equal(n_free(b), 1);
    gen_plus(b, 0, 0);
    assert_int_equal(n_free(b), 0);
    prompt_of(b, 1, 7, 2, NULL);
    assert_int_equal(admit(b, 1, 0), -EAGAIN);
    close_bed(b);
}

static void
the_longest_part_is_taken(void **state) /* K-08 */
{
    struct bed *b = calloc(1, sizeof *b);

    (void)state;
    b->c.tokens_per_block = 8;
    b->c.copy_partial = true;
    open_bed(b, 10);
    prompt_of(b, 0, 0, 20, NULL);
    add(b, 0, 3);
    expect(b, 0, 0, 1, 2);
    gen_plus(b, 0, 20), gen_plus(b, 0, 21), gen_plus(b, 0, 22);
    release(b, 0);
    prompt_of(b, 0, 0, 20, TOKENS(50, 51, 52));
    assert_int_equal(add(b, 0, 0), 20);
    expect(b, 0, 0, 1, 2);
    assert_int_equal(n_free(b), 7);
    prompt_of(b, 1, 0, 26, NULL);
    assert_int_equal(add(b, 1, 0), 16);
    expect(b, 1, 0, 1, 3, 4);
    assert_int_equal(n_free(b), 5);
    release(b, 0), release(b, 1);
    prompt_of(b, 0, 0, 17, NULL);
    assert_int_equal(add(b, 0, 0), 16);
    expect(b, 0, 0, 1, 5);
    prompt_of(b, 1, 0, 24, NULL);
    assert_int_equal(add(b, 1, 0), 23);
    expect(b, 1, 0, 1, 6);
    assert_int_equal(n_free(b), 6);
    close_bed(b);
}

static void
twins_of_one_batch_share_nothing_and_the_next_finds_it(void **state) /* K-10 */
{
    struct bed *b = bed(12);

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        prompt_of(b, i, 0, 9, NULL);
        assert_int_equal(admit(b, i, 0), 0);
        assert_int_equal(b->seat[i].hit.n_tokens, 0);
        assert_memory_equal(b->seat[i].hit.next, b->seat[0].hit.next, 16);
    }
    for (uint32_t i = 0; i < 3; i++) start(b, i);
    assert_int_equal(n_free(b), 3);
    for (uint32_t i = 0; i < 3; i++) release(b, i);
    assert_int_equal(n_free(b), 12);
    prompt_of(b, 3, 0, 9, NULL);
    assert_int_equal(add(b, 3, 0), 8);
    close_bed(b);
}

static void
without_copies_a_leaf_is_taken_over_and_nothing_else(void **state) /* K-11 */
{
    struct bed *b = calloc(1, sizeof *b);

    (void)state;
    open_bed(b, 8);
    prompt_of(b, 0, 0, 9, NULL);
    add(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 0, 2, TOKENS(50, 51));
    assert_int_equal(add(b, 0, 0), 0);
    prompt_of(b, 1, 0, 7, TOKENS(9, 9));
    assert_int_equal(add(b, 1, 0), 7);
    close_bed(b);
}

struct member {
    uint32_t n;
    token_id more[3];
    uint32_t pos;
    int second; /* what its second block is: 1 the seed's, 0 another */
};

static void
batch(uint32_t n_seed, const struct member *m, uint32_t n, uint32_t entry)
{
    struct bed *b = bed(16);
    slice_id old, at[4];

    prompt_of(b, 0, 0, n_seed, NULL);
    add(b, 0, 0);
    old = kv_entry(b->kv, 0, 0, entry);
    gen(b, 0, 77);
    release(b, 0);
    for (uint32_t i = 0; i < n; i++) {
        prompt_of(b, i, 0, m[i].n, m[i].more);
        assert_int_equal(admit(b, i, 0), 0);
        assert_int_equal(b->seat[i].hit.n_tokens, m[i].pos);
    }
    for (uint32_t i = 0; i < n; i++) {
        start(b, i);
        at[i] = kv_entry(b->kv, i, 0, entry);
        if (m[i].pos > entry * 4) assert_int_equal(at[i] == old, m[i].second);
        for (uint32_t k = 0; k < i; k++)
            assert_true(at[i] != at[k] || (m[i].second && m[k].second));
        /* a part of a block that is not its own is copied, and only that */
        assert_int_equal(b->out.n_copies, m[i].pos % 4 && !m[i].second);
        if (b->out.n_copies) assert_int_equal(b->out.copy[0].n_tokens, m[i].pos % 4);
        if (b->out.n_copies) assert_int_equal(b->out.copy[0].from, old);
    }
    close_bed(b);
}

static void
who_goes_on_in_a_block_that_several_want(void **state) /* B-01 .. B-06, B-08, B-09 */
{
    (void)state;
    batch(7, (struct member[]){ { 5, { 10, -1 }, 5, 0 }, { 5, { 20, -1 }, 5, 1 } }, 2, 1);
    batch(9, (struct member[]){ { 7, { 99, -1 }, 7, 0 }, { 9, { -1 }, 8, 1 } }, 2, 1);
    batch(9, (struct member[]){ { 9, { -1 }, 8, 1 }, { 7, { 99, -1 }, 7, 0 } }, 2, 1);
    batch(
        9,
        (struct member[]){ { 7, { 98, -1 }, 7, 0 }, { 9, { -1 }, 8, 1 }, { 7, { 99, -1 }, 7, 0 } },
        3, 1);
    batch(9, (struct member[]){ { 3, { 50, -1 }, 3, 0 }, { 2, { 60, 70, -1 }, 2, 0 } }, 2, 0);
    batch(9, (struct member[]){ { 9, { -1 }, 8, 1 }, { 3, { 50, -1 }, 3, 0 } }, 2, 0);
    batch(7,
          (struct member[]){
              { 5, { 97, -1 }, 5, 0 }, { 5, { 98, -1 }, 5, 0 }, { 5, { 99, -1 }, 5, 1 } },
          3, 1);
    batch(9, (struct member[]){ { 9, { -1 }, 8, 1 }, { 0, { 500, 501, -1 }, 0, 0 } }, 2, 1);
}

static void
what_is_copied_from_is_had_back_for_the_blocks_that_follow(void **state) /* B-07 */
{
    struct bed *b = bed(8);
    token_id more[31];

    (void)state;
    prompt_of(b, 0, 0, 9, NULL);
    add(b, 0, 0);
    gen(b, 0, 9);
    release(b, 0);
    for (int i = 0; i < 30; i++) more[i] = 100 + i;
    more[30] = -1;
    prompt_of(b, 0, 0, 2, more);
    assert_int_equal(add(b, 0, 0), 2);
    assert_int_equal(n_free(b), 0);
    close_bed(b);
}

static void
ranges_to_keep_are_checked(void **state) /* P-11 */
{
    struct err e;

    (void)state;
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 0, 4, 90, 0 }, { 4, 8, 10, 0 } }, 2, &e),
                     0);
    assert_int_equal(
        kv_keep_check((struct kv_keep[]){ { 0, UINT32_MAX, 90, 0 }, { 4, 8, 10, 0 } }, 2, &e),
        -EINVAL);
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 4, 4, 90, 0 } }, 1, &e), -EINVAL);
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 0, 4, 90, 0 }, { 3, 8, 10, 0 } }, 2, &e),
                     -EINVAL);
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 0, 4, 101, 0 } }, 1, &e), -EINVAL);
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 0, 4, 1, -1 } }, 1, &e), -EINVAL);
}

static void
keep(struct bed *b, uint32_t seat, const struct kv_keep *k, uint32_t n)
{
    b->seat[seat].text.keep = k;
    b->seat[seat].text.n_keep = n;
}

static void
low_priorities_go_first(void **state) /* P-01 */
{
    static const struct kv_keep parts[] = { { 0, 4, 90, 0 }, { 4, 8, 10, 0 } };
    static const struct kv_keep low[] = { { 0, UINT32_MAX, 20, 0 } };
    struct bed *b = bed(4);

    (void)state;
    prompt_of(b, 0, 0, 8, NULL), keep(b, 0, parts, 2), add(b, 0, 0);
    prompt_of(b, 1, 8, 8, NULL), add(b, 1, 0);
    release(b, 0), release(b, 1);
    prompt_of(b, 2, 16, 8, NULL), keep(b, 2, low, 1), add(b, 2, 0);
    release(b, 2);
    prompt_of(b, 3, 8, 8, NULL);
    assert_int_equal(add(b, 3, 0), 4);
    release(b, 3);
    prompt_of(b, 4, 0, 8, NULL);
    assert_int_equal(add(b, 4, 0), 4);
    prompt_of(b, 5, 16, 8, NULL);
    assert_int_equal(add(b, 5, 0), 0);
    close_bed(b);
}

static void
high_priorities_outlive_what_came_later(void **state) /* P-02 */
{
    static const struct kv_keep high[] = { { 0, UINT32_MAX, 90, 0 } },
                                low[] = { { 0, UINT32_MAX, 5, 0 } };
    struct bed *b = bed(8);

    (void)state;
    prompt_of(b, 0, 0, 12, NULL), keep(b, 0, high, 1), add(b, 0, 1);
    assert_int_equal(n_free(b), 5);
    gen_plus(b, 0, 500);
    assert_int_equal(n_free(b), 4);
    prompt_of(b, 1, 12, 12, NULL), keep(b, 1, low, 1), add(b, 1, 1);
    gen_plus(b, 1, 600);
    assert_int_equal(n_free(b), 0);
    release(b, 0), release(b, 1);
    prompt_of(b, 2, 24, 12, NULL), add(b, 2, 0);
    expect(b, 2, 7, 6, 5);
    release(b, 2);
    prompt_of(b, 0, 0, 12, NULL);
    assert_int_equal(add(b, 0, 0), 11);
    close_bed(b);
}

static void
a_duration_that_is_over_counts_no_more(void **state) /* P-03 */
{
    static const struct kv_keep brief[] = { { 0, UINT32_MAX, 80, 10 } },
                                usual[] = { { 0, UINT32_MAX, 50, 0 } };
    struct bed *b = bed(8);

    (void)state;
    prompt_of(b, 0, 0, 12, NULL), keep(b, 0, brief, 1), add(b, 0, 0);
    prompt_of(b, 1, 100, 12, NULL), keep(b, 1, usual, 1), add(b, 1, 0);
    release(b, 0), release(b, 1);
    kv_now(b->kv, 50);
    kv_check(b->kv);
    prompt_of(b, 2, 200, 12, NULL), add(b, 2, 0);
    expect(b, 2, 6, 7, 2);
    prompt_of(b, 3, 100, 12, NULL);
    assert_int_equal(add(b, 3, 0), 11);
    close_bed(b);
}

static void
a_priority_below_the_usual_goes_before_what_nobody_had(void **state) /* P-05 */
{
    static const struct kv_keep parts[] = { { 0, 4, 90, 0 }, { 4, 8, 0, 0 } };
    struct bed *b = bed(4);

    (void)state;
    prompt_of(b, 0, 0, 8, NULL), keep(b, 0, parts, 2), add(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 100, 4, NULL), add(b, 0, 0);
    expect(b, 0, 1);
    assert_int_equal(n_free(b), 3);
    prompt_of(b, 1, 0, 4, TOKENS(200, 201, 202, 203));
    assert_int_equal(add(b, 1, 0), 4);
    close_bed(b);
}

static void
holding_a_block_leaves_what_follows_it_found(void **state) /* P-06 */
{
    struct bed *b = bed(6);

    (void)state;
    prompt_of(b, 0, 0, 24, NULL), add(b, 0, 0);
    gen(b, 0, 24);
    release(b, 0);
    prompt_of(b, 0, 0, 5, NULL);
    assert_int_equal(admit(b, 0, 0), 0);
    assert_int_equal(n_free(b), 5);
    prompt_of(b, 1, 0, 13, NULL);
    assert_int_equal(admit(b, 1, 0), 0);
    assert_int_equal(n_free(b), 3);
    kv_drop(b->kv, 1);
    kv_drop(b->kv, 0);
    prompt_of(b, 0, 0, 24, NULL);
    assert_int_equal(add(b, 0, 0), 23);
    close_bed(b);
}

static void
a_window_finds_what_its_next_query_sees(void **state) /* S-03 */
{
    struct bed *b = calloc(1, sizeof *b);

    (void)state;
    b->c.n_groups = 1;
    b->c.copy_partial = true;
    b->c.group[0] = group(KV_WINDOW, 16, 16);
    open_bed(b, 16);
    prompt_of(b, 0, 0, 16, NULL), add(b, 0, 4);
    expect(b, 0, 0, 1, 2, 3);
    store(b, 0, 16);
    for (token_id i = 0; i < 4; i++) gen_plus(b, 0, 16 + i);
    release(b, 0);
    prompt_of(b, 0, 0, 7, NULL);
    assert_int_equal(add(b, 0, 2), 6);
    expect(b, 0, 0, 5);
    gen_plus(b, 0, 100), gen_plus(b, 0, 101);
    expect(b, 0, 0, 5, 6);
    release(b, 0);
    close_bed(b);
}

static void
a_hit_holds_in_all_groups_at_once(void **state) /* S-05, S-06 */
{
    struct bed *b = calloc(1, sizeof *b);
    token_id more[8] = { 900, 901, 902, 903, 904, 905, 906, -1 };
    struct kv_hit hit;

    (void)state;
    b->c.n_groups = 2;
    b->c.copy_partial = true;
    b->c.group[0] = group(KV_FULL, 0, 40);
    b->c.group[1] = group(KV_WINDOW, 8, 12);
    open_bed(b, 40);
    prompt_of(b, 0, 0, 40, NULL), add(b, 0, 0);
    gen(b, 0, 40);
    release(b, 0);
    prompt_of(b, 0, 0, 39, more);
    kv_lookup(b->kv, &b->seat[0].text, &hit);
    assert_int_equal(hit.n_tokens, 39);
    assert_int_equal(hit.n_cached[0], 9);
    assert_int_equal(hit.n_cached[1], 1); /* of 32 .. 35; its part of the next is not a block yet */
    prompt_of(b, 1, 1000, 12, NULL), add(b, 1, 0); /* the window's 36 .. 39 is taken */
    kv_lookup(b->kv, &b->seat[0].text, &hit);
    assert_int_equal(hit.n_tokens, 36);
    prompt_of(b, 2, 2000, 4, NULL), add(b, 2, 0); /* and 32 .. 35 */
    kv_lookup(b->kv, &b->seat[0].text, &hit);
    assert_int_equal(hit.n_tokens, 32);
    assert_int_equal(hit.n_cached[0], 8);
    assert_int_equal(hit.n_cached[1], 2);
    close_bed(b);
}

static void
with_source(struct bed *b, uint32_t seat, const token_id *source, uint32_t n)
{
    struct seat *s = &b->seat[seat];

    prompt_of(b, seat, 0, 9, NULL);
    kv_space(b->kv, 0, 0, source, n, &b->space);
    s->text.source = source;
    s->text.n_source = n;
}

static struct bed *
bed_with_cross(uint32_t n_blocks)
{
    struct bed *b = calloc(1, sizeof *b);

    b->c.n_groups = 2;
    b->c.copy_partial = true;
    b->c.group[0] = group(KV_FULL, 0, n_blocks);
    b->c.group[1] = group(KV_CROSS, 0, n_blocks);
    open_bed(b, n_blocks);
    return b;
}

static void
a_source_is_found_whole_or_not_at_all(void **state) /* K-12 */
{
    static const token_id source[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    static const token_id other[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 99, 98, 97, 96 };
    struct bed *b = bed_with_cross(16);

    (void)state;
    with_source(b, 0, source, 16), add(b, 0, 0);
    assert_false(b->seat[0].hit.cross);
    store(b, 0, 9); /* while it runs: it is shared, and by its prefixes too */
    with_source(b, 1, source, 16);
    assert_int_equal(add(b, 1, 0), 8);
    assert_true(b->seat[1].hit.cross);
    assert_int_equal(b->seat[1].hit.n_held[1], 4);
    assert_int_equal(kv_entry(b->kv, 0, 1, 3), kv_entry(b->kv, 1, 1, 3));
    with_source(b, 2, other, 16); /* another source: nothing of the decoder's either */
    assert_int_equal(add(b, 2, 0), 0);
    assert_false(b->seat[2].hit.cross);
    with_source(b, 3, source, 15);
    assert_int_equal(admit(b, 3, 0), 0);
    assert_false(b->seat[3].hit.cross);
    close_bed(b);
}

static void
a_source_that_lost_a_block_is_not_found(void **state)
{
    static const token_id source[14] = { 5, 6, 7, 8 }, fill[16] = { 9 };
    struct bed *b = bed_with_cross(5);

    (void)state;
    with_source(b, 0, source, 14), add(b, 0, 0);
    release(b, 0);
    with_source(b, 0, source, 14);
    assert_int_equal(admit(b, 0, 0), 0);
    assert_true(b->seat[0].hit.cross);
    kv_drop(b->kv, 0);
    with_source(b, 1, fill, 8), add(b, 1, 0);
    with_source(b, 0, source, 14);
    kv_lookup(b->kv, &b->seat[0].text, &b->seat[0].hit);
    assert_false(b->seat[0].hit.cross);
    close_bed(b);
}

static void
features_without_tokens_are_found_by_nobody(void **state) /* B-12 */
{
    struct bed *b = bed_with_cross(16);

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        with_source(b, i, NULL, 16);
        assert_int_equal(add(b, i, 0), 0); /* nor its decoder's blocks, which depend on them */
        assert_false(b->seat[i].hit.cross);
        store(b, i, 9);
    }
    close_bed(b);
}

/* An elastic pool: the end of a chain is evicted first, and nothing is left that leads nowhere. */
static void
what_leads_to_others_is_evicted_after_them(void **state)
{
    struct bed *b = calloc(1, sizeof *b);
    struct kv_hit hit;

    (void)state;
    b->c.n_groups = 1;
    b->c.group[0] = group(KV_FULL, 0, 0);
    b->c.arena_bytes = 9 * 256;
    open_bed(b, 0);
    prompt_of(b, 0, 0, 25, NULL), add(b, 0, 0);
    release(b, 0);
    for (uint32_t n = 1; n <= 6;
         n++) { /* two blocks were free, and the last of seven was never stored */
        prompt_of(b, n, 100 * (token_id)n, 4, NULL), add(b, n, 0);
        prompt_of(b, 0, 0, 25, NULL);
        kv_lookup(b->kv, &b->seat[0].text, &hit);
        assert_int_equal(hit.n_full, n <= 2 ? 6 : 8 - n);
    }
    close_bed(b);
}

static struct bed *
two_pools(uint32_t n_slabs, float share_a, float share_b)
{
    struct bed *b = calloc(1, sizeof *b);

    b->c.n_groups = 2;
    b->c.group[0] = group(KV_FULL, 0, 0);
    b->c.group[1] = group(KV_CROSS, 0, 0);
    b->c.group[1].n_layers = 3; /* a block is a slab, three of the others are */
    b->c.group[0].share = share_a;
    b->c.group[1].share = share_b;
    b->c.arena_bytes = (uint64_t)n_slabs * 768;
    open_bed(b, 0);
    assert_int_equal(b->c.slab_bytes, 768);
    return b;
}

/* One block in each of four slabs is as much as four slabs, while the others may still want three. */
static void
a_hit_is_left_where_its_slabs_are_promised_to_another_pool(void **state)
{
    struct kv_need need = { { 0, 3 } };
    struct bed *b = two_pools(7, 0, 0);

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        prompt_of(b, i, 100 * (token_id)i, 4, NULL);
        add(b, i, 13);
    }
    for (token_id k = 4; k < 17; k++)
        for (uint32_t i = 0; i < 3; i++) gen_plus(b, i, 100 * (token_id)i + k);
    for (uint32_t i = 0; i < 3; i++) release(b, i);
    prompt_of(b, 3, 0, 17, NULL);
    kv_lookup(b->kv, &b->seat[3].text, &b->seat[3].hit);
    assert_int_equal(b->seat[3].hit.n_tokens, 16);
    assert_int_equal(kv_reserve(b->kv, 4, &need), 0);
    assert_int_equal(add(b, 3, 0), 0);
    b->out.n_edits = 0;
    kv_cross(b->kv, 0, 4, 12, &b->out); /* what was promised can be had */
    kv_check(b->kv);
    close_bed(b);
}

/* Sources of 4 tokens, one slab each, computed and let go. */
static void
many_sources(struct bed *b, uint32_t first, uint32_t n)
{
    static token_id source[64][4];

    for (uint32_t i = 0; i < n; i++) {
        source[i][0] = (token_id)(first + i);
        with_source(b, 0, source[i], 4);
        b->seat[0].token[0] = (token_id)(first + i);
        assert_int_equal(admit(b, 0, 0), 0);
        start(b, 0);
        release_at(b, 0, 3); /* nothing of the decoder's is full */
    }
}

static uint32_t
n_cached(const struct bed *b, uint32_t pool)
{
    struct kv_count n;

    kv_count(b->kv, pool, &n);
    return n.cached;
}

static void
fill_with_prompts(struct bed *b, uint32_t first, uint32_t n)
{
    struct kv_space none;

    kv_space(b->kv, 0, 0, NULL, 0, &none);
    for (uint32_t i = 0; i < n; i++) {
        prompt_of(b, 1, (token_id)(first + 10 * i), 4, NULL);
        b->seat[1].text.space = &none;
        add(b, 1, 0);
        release_at(b, 1, 4);
    }
}

static void
without_shares_a_pool_takes_whatever_is_oldest(void **state)
{
    struct bed *b = two_pools(18, 0, 0);

    (void)state;
    fill_with_prompts(b, 1000, 60);
    assert_true(n_cached(b, 0) > 45);
    many_sources(b, 0, 40);
    assert_true(n_cached(b, 1) > 10);
    fill_with_prompts(b, 5000, 60);
    assert_true(n_cached(b, 0) > 40);
    close_bed(b);
}

static void
a_pool_is_held_to_its_share_by_those_who_are_below_theirs(void **state)
{
    struct bed *b = two_pools(18, 0.5f, 0.5f);
    uint32_t sources;

    (void)state;
    fill_with_prompts(b, 1000, 60);
    assert_true(n_cached(b, 0) > 45); /* all of it, while nobody else wants any */
    many_sources(b, 0, 40);
    sources = n_cached(b, 1);
    assert_in_range(sources, 7, 10); /* slabs: 9 are its share, an eighth more or less */
    fill_with_prompts(b, 5000, 60);
    assert_in_range(n_cached(b, 1), 6, sources);
    many_sources(b, 100, 40);
    assert_in_range(n_cached(b, 1), 7, 10);
    close_bed(b);
}

static uint32_t
read_events(struct bed *b, uint64_t *next, struct kv_event e[64])
{
    uint64_t missed;
    uint32_t n = kv_events(b->kv, next, e, 64, &missed);

    assert_int_equal(missed, 0);
    return n;
}

static struct bed *
bed_with_events(uint32_t n_blocks, uint32_t max)
{
    struct bed *b = calloc(1, sizeof *b);

    b->c.copy_partial = true;
    b->c.max_events = max;
    open_bed(b, n_blocks);
    return b;
}

static void
events_say_what_is_stored_and_removed_in_order(void **state) /* V-02, V-03, V-04 */
{
    struct bed *b = bed_with_events(4, 64);
    struct kv_event e[64];
    uint64_t next = 0, last[2];

    (void)state;
    prompt_of(b, 0, 0, 10, NULL), add(b, 0, 0);
    store(b, 0, 9);
    assert_int_equal(read_events(b, &next, e), 2);
    assert_int_equal(e[0].op, KV_STORED);
    assert_memory_equal(e[0].parent, b->space.self, 16);
    assert_memory_equal(e[1].parent, e[0].name, 16);
    memcpy(last, e[1].name, 16);
    gen(b, 0, 10);
    release(b, 0);
    assert_int_equal(read_events(b, &next, e), 1);
    assert_memory_equal(e[0].parent, last, 16);
    assert_int_equal(e[0].n_tokens, 2);
    prompt_of(b, 0, 0, 9, NULL), add(b, 0, 0);
    store(b, 0, 8);
    assert_int_equal(read_events(b, &next, e), 0);
    kv_drop(b->kv, 0);
    prompt_of(b, 0, 100, 15, NULL), add(b, 0, 0);
    store(b, 0, 14);
    assert_int_equal(read_events(b, &next, e), 6); /* three are evicted, then three are stored */
    for (int i = 0; i < 6; i++) assert_int_equal(e[i].op, i < 3 ? KV_REMOVED : KV_STORED);
    close_bed(b);
}

static void
a_change_of_priority_is_an_event(void **state) /* P-14 */
{
    static const struct kv_keep fifty[] = { { 0, UINT32_MAX, 50, 0 } },
                                ten[] = { { 0, UINT32_MAX, 10, 0 } };
    struct bed *b = bed_with_events(8, 64);
    struct kv_event e[64];
    uint64_t next = 0;

    (void)state;
    prompt_of(b, 0, 0, 8, NULL), keep(b, 0, fifty, 1), add(b, 0, 0);
    release_at(b, 0, 8);
    assert_int_equal(read_events(b, &next, e), 2);
    assert_int_equal(e[0].priority, 50);
    prompt_of(b, 0, 0, 9, NULL), add(b, 0, 0);
    assert_int_equal(read_events(b, &next, e), 0);
    prompt_of(b, 1, 0, 9, NULL), keep(b, 1, ten, 1), add(b, 1, 0);
    assert_int_equal(read_events(b, &next, e), 2);
    assert_int_equal(e[0].op, KV_UPDATED);
    assert_int_equal(e[1].was, 50);
    assert_int_equal(e[1].priority, 10);
    close_bed(b);
}

static void
who_reads_too_late_learns_how_much_is_gone_and_sees_all_in_a_snapshot(void **state) /* V-05 */
{
    struct bed *b = bed_with_events(8, 1);
    struct kv_event e[64];
    uint64_t next = 0, missed;
    uint32_t at = 0;

    (void)state;
    prompt_of(b, 0, 0, 13, NULL), add(b, 0, 0);
    store(b, 0, 12);
    assert_int_equal(kv_events(b->kv, &next, e, 64, &missed), 1);
    assert_int_equal(missed, 2);
    assert_int_equal(next, kv_event_end(b->kv));
    assert_int_equal(kv_event_snapshot(b->kv, &at, e, 2), 2);
    assert_int_equal(kv_event_snapshot(b->kv, &at, e + 2, 2), 1);
    assert_int_equal(kv_event_snapshot(b->kv, &at, e + 3, 2), 0);
    assert_memory_equal(e[2].parent, e[1].name, 16);
    close_bed(b);
}

static struct bed *
bed_with_host(uint32_t n_blocks, uint32_t n_cells)
{
    struct bed *b = calloc(1, sizeof *b);

    b->c.copy_partial = true;
    b->c.host_bytes = n_cells * 256;
    open_bed(b, n_blocks);
    return b;
}

static uint32_t
on_host(const struct bed *b)
{
    struct kv_count n;

    kv_count_host(b->kv, &n);
    return n.used + n.cached;
}

static void
what_is_evicted_goes_to_the_host_and_a_full_host_drops_its_oldest(void **state) /* O-01 */
{
    static const struct kv_keep second[] = { { 4, 8, 75, 0 } };
    struct bed *b = bed_with_host(4, 1);
    struct kv_need need;
    struct kv_stats n;

    (void)state;
    prompt_of(b, 0, 0, 4, NULL), keep(b, 0, second, 1), add(b, 0, 8);
    store(b, 0, 4);
    for (token_id t = 4; t < 12; t++) gen_plus(b, 0, t);
    expect(b, 0, 0, 1, 2);
    prompt_of(b, 1, 100, 4, NULL), add(b, 1, 0);
    expect(b, 1, 3);
    assert_int_equal(n_free(b), 0);
    release(b, 0);
    assert_int_equal(n_free(b), 3);
    need = kv_need(b->kv, 9, 0, 4);
    assert_int_equal(kv_raise(b->kv, 1, &need), 0);
    gen_plus(b, 1, 104);
    assert_int_equal(b->out.n_copies, 1); /* block 2 */
    assert_int_equal(b->copy[0].to_tier, TIER_HOST);
    assert_int_equal(on_host(b), 1);
    for (token_id t = 105; t < 109; t++) gen_plus(b, 1, t);
    prompt_of(b, 2, 0, 12, NULL);
    kv_lookup(b->kv, &b->seat[2].text, &b->seat[2].hit);
    assert_int_equal(b->seat[2].hit.n_full, 2); /* 0 on the host, 1 where it was */
    assert_int_equal(b->seat[2].hit.n_host[0], 1);
    kv_stats(b->kv, 0, &n);
    assert_int_equal(n.offloaded, 2);
    assert_int_equal(n.host_dropped, 1);
    close_bed(b);
}

static void
what_lies_on_the_host_is_fetched_and_stays_there(void **state) /* O-04 */
{
    struct bed *b = bed_with_host(4, 8);
    struct kv_stats n;

    (void)state;
    for (uint32_t round = 0; round < 4; round++) {
        token_id first = round % 2 ? 100 : 0;

        prompt_of(b, 0, first, 16, NULL);
        assert_int_equal(add(b, 0, 0), round < 2 ? 0 : 12);
        if (round >= 2) assert_int_equal(b->seat[0].hit.n_host[0], 3);
        release_at(b, 0, 12);
        assert_int_equal(n_free(b), 4);
    }
    kv_stats(b->kv, 0, &n);
    assert_int_equal(n.fetched, 6);
    close_bed(b);
}

static void
low_priorities_are_dropped_and_the_usual_go_to_the_host(void **state) /* O-05 */
{
    static const struct kv_keep five[] = { { 0, UINT32_MAX, 5, 0 } };
    struct bed *b = bed_with_host(2, 4);

    (void)state;
    prompt_of(b, 0, 0, 4, NULL), keep(b, 0, five, 1), add(b, 0, 0);
    release_at(b, 0, 4);
    prompt_of(b, 0, 100, 8, NULL), add(b, 0, 0);
    release_at(b, 0, 8);
    assert_int_equal(on_host(b), 0);
    prompt_of(b, 0, 200, 8, NULL), add(b, 0, 0);
    assert_int_equal(on_host(b), 2);
    close_bed(b);
}

static void
two_who_hit_the_same_on_the_host_share_what_the_first_fetches(void **state)
{
    struct bed *b = bed_with_host(8, 8);

    (void)state;
    prompt_of(b, 0, 0, 9, NULL), add(b, 0, 0);
    release_at(b, 0, 8);
    prompt_of(b, 0, 500, 32, NULL), add(b, 0, 0);
    kv_drop(b->kv, 0);
    for (uint32_t i = 1; i < 3; i++) {
        prompt_of(b, i, 0, 9, NULL);
        assert_int_equal(admit(b, i, 0), 0);
        assert_int_equal(b->seat[i].hit.n_host[0], 2);
    }
    start(b, 1);
    assert_int_equal(b->out.n_copies, 2);
    start(b, 2);
    assert_int_equal(b->out.n_copies, 0);
    assert_int_equal(kv_entry(b->kv, 1, 0, 1), kv_entry(b->kv, 2, 0, 1));
    close_bed(b);
}

static void
what_is_slower_to_fetch_than_to_compute_stays_on_the_host(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        struct bed *b = calloc(1, sizeof *b);

        b->c.host_bytes = 8 * 256;
        b->c.host_bandwidth = UINT64_C(1000000000); /* 256 ns a block of 4 tokens */
        b->c.token_time = slow ? 63 : 65;
        open_bed(b, 4);
        prompt_of(b, 0, 0, 9, NULL), add(b, 0, 0);
        release_at(b, 0, 8);
        prompt_of(b, 0, 500, 16, NULL), add(b, 0, 0);
        kv_drop(b->kv, 0);
        prompt_of(b, 0, 0, 9, NULL);
        assert_int_equal(add(b, 0, 0), slow ? 0 : 8);
        assert_int_equal(on_host(b), 2);
        close_bed(b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_long_chain),
        cmocka_unit_test(extra_ids_tell_equal_tokens_apart),
        cmocka_unit_test(another_salt_shares_nothing),
        cmocka_unit_test(another_adapter_or_source_shares_no_prefix),
        cmocka_unit_test(only_what_is_computed_is_found),
        cmocka_unit_test(released_blocks_are_taken_in_the_order_of_their_release),
        cmocka_unit_test(the_longest_part_is_taken),
        cmocka_unit_test(twins_of_one_batch_share_nothing_and_the_next_finds_it),
        cmocka_unit_test(without_copies_a_leaf_is_taken_over_and_nothing_else),
        cmocka_unit_test(who_goes_on_in_a_block_that_several_want),
        cmocka_unit_test(what_is_copied_from_is_had_back_for_the_blocks_that_follow),
        cmocka_unit_test(ranges_to_keep_are_checked),
        cmocka_unit_test(low_priorities_go_first),
        cmocka_unit_test(high_priorities_outlive_what_came_later),
        cmocka_unit_test(a_duration_that_is_over_counts_no_more),
        cmocka_unit_test(a_priority_below_the_usual_goes_before_what_nobody_had),
        cmocka_unit_test(holding_a_block_leaves_what_follows_it_found),
        cmocka_unit_test(a_window_finds_what_its_next_query_sees),
        cmocka_unit_test(a_hit_holds_in_all_groups_at_once),
        cmocka_unit_test(a_source_is_found_whole_or_not_at_all),
        cmocka_unit_test(a_source_that_lost_a_block_is_not_found),
        cmocka_unit_test(features_without_tokens_are_found_by_nobody),
        cmocka_unit_test(what_leads_to_others_is_evicted_after_them),
        cmocka_unit_test(a_hit_is_left_where_its_slabs_are_promised_to_another_pool),
        cmocka_unit_test(what_is_evicted_goes_to_the_host_and_a_full_host_drops_its_oldest),
        cmocka_unit_test(what_lies_on_the_host_is_fetched_and_stays_there),
        cmocka_unit_test(low_priorities_are_dropped_and_the_usual_go_to_the_host),
        cmocka_unit_test(two_who_hit_the_same_on_the_host_share_what_the_first_fetches),
        cmocka_unit_test(what_is_slower_to_fetch_than_to_compute_stays_on_the_host),
        cmocka_unit_test(without_shares_a_pool_takes_whatever_is_oldest),
        cmocka_unit_test(a_pool_is_held_to_its_share_by_those_who_are_below_theirs),
        cmocka_unit_test(events_say_what_is_stored_and_removed_in_order),
        cmocka_unit_test(a_change_of_priority_is_an_event),
        cmocka_unit_test(who_reads_too_late_learns_how_much_is_gone_and_sees_all_in_a_snapshot),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
