/* test_slab.c - slab sizes, and how pools share slabs. */
#include "tests/kv/kv_fixture.h"

#define KIB 1024u
#define MIB (1024u * 1024u)

struct shape {
    uint32_t n_layers, n_kv_heads, head_dim, window;
};

/* bf16 groups of a model with the default block size: the largest of 64, 32 and 16 tokens whose
 * blocks have at most 16 MiB. */
static struct kv_config
model(const struct shape *shape, uint32_t n)
{
    struct kv_config c = { .n_groups = n, .n_slots = 4, .n_lanes = 1, .arena_bytes = 1u << 30 };
    bool fits;

    for (c.tokens_per_block = 64;; c.tokens_per_block /= 2) {
        fits = true;
        for (uint32_t g = 0; g < n; g++) {
            c.group[g] = (struct kv_group){
                .kind = shape[g].window ? KV_WINDOW : KV_FULL,
                .window = shape[g].window,
                .n_layers = shape[g].n_layers,
                .n_parts = 2,
                .slice_bytes = shape[g].n_kv_heads * shape[g].head_dim * c.tokens_per_block * 2,
                .max_entries = 100,
            };
            fits = fits && (uint64_t)shape[g].n_layers * 2 * c.group[g].slice_bytes <= 16 * MIB;
        }
        if (fits || c.tokens_per_block == 16) return c;
    }
}

static void
slab_sizes_of_known_models(void **state)
{
    static const struct {
        const char *name;
        struct shape shape[2];
        uint32_t n, tokens, slab_kib;
    } row[] = {
        { "Llama-8B", { { 32, 8, 128, 0 } }, 1, 64, 8 * KIB },
        { "Llama-70B", { { 80, 8, 128, 0 } }, 1, 32, 10 * KIB },
        { "Llama-2-13B", { { 40, 40, 128, 0 } }, 1, 16, 12800 },
        { "Gemma-3-27B", { { 52, 16, 128, 1024 }, { 10, 16, 128, 0 } }, 2, 32, 13 * KIB },
        { "Gemma-4-26B", { { 25, 8, 256, 1024 }, { 5, 2, 512, 0 } }, 2, 64, 12800 },
        { "gpt-oss-20b", { { 12, 8, 64, 128 }, { 12, 8, 64, 0 } }, 2, 64, 1536 },
        { "T5-large", { { 24, 16, 64, 0 }, { 24, 16, 64, 0 } }, 2, 64, 6 * KIB },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct kv_config c = model(row[i].shape, row[i].n);

        if (kv_slab_bytes(&c) != row[i].slab_kib * KIB) print_error("%s: ", row[i].name);
        assert_int_equal(c.tokens_per_block, row[i].tokens);
        assert_int_equal(kv_slab_bytes(&c), row[i].slab_kib * KIB);
    }
}

static void
slab_wastes_at_most_5_percent_and_holds_whole_slices(void **state)
{
    (void)state;
    test_seed();
    for (int round = 0; round < 300; round++) {
        struct kv_config c = { .n_groups = 1 + test_below(4) };
        uint32_t slab;

        for (uint32_t g = 0; g < c.n_groups; g++)
            c.group[g] = (struct kv_group){ .n_layers = 1 + test_below(40),
                                            .n_parts = 1 + test_below(2),
                                            .slice_bytes = 128u << test_below(8) };
        slab = kv_slab_bytes(&c);
        assert_int_not_equal(slab, 0);
        for (uint32_t g = 0; g < c.n_groups; g++) {
            uint32_t block = c.group[g].n_layers * c.group[g].n_parts * c.group[g].slice_bytes;

            assert_true(slab >= block && slab % c.group[g].slice_bytes == 0);
            assert_true(slab % block * 20 <= slab);
        }
    }
}

static void
sizes_without_a_slab_are_rejected(void **state)
{
    struct kv_config c = { .n_groups = 2 };

    (void)state;
    c.group[0] = (struct kv_group){ .n_layers = 1, .n_parts = 2, .slice_bytes = 128 * 65537u };
    c.group[1] = (struct kv_group){ .n_layers = 1, .n_parts = 2, .slice_bytes = 128 * 65539u };
    assert_int_equal(kv_slab_bytes(&c), 0); /* the lcm exceeds 4 GiB */
    c.group[1].slice_bytes = 0;
    assert_int_equal(kv_slab_bytes(&c), 0);
}

/* Two pools: blocks of 1 KiB, 8 per slab, and blocks of one slab. */
static struct kv_fixture *
two_pools(uint32_t n_slabs)
{
    struct kv_group small = group(KV_FULL, 0, 0), large = group(KV_CROSS, 0, 0);

    small.slice_bytes = large.slice_bytes = 512;
    large.n_layers = 8;
    return pool(4, n_slabs * (8 * KIB / 256), small, large);
}

static void
groups_of_equal_block_size_share_a_pool(void **state)
{
    static const struct shape t5[] = { { 24, 16, 64, 0 }, { 24, 16, 64, 0 } };
    struct kv_config c = model(t5, 2);
    struct kv_fixture *b;
    struct kv *kv;
    struct err e;

    (void)state;
    c.group[1].kind = KV_CROSS;
    kv = kv_init(calloc(1, kv_bytes(&c)), &c, &e);
    assert_non_null(kv);
    assert_int_equal(kv_n_pools(kv), 1);
    assert_int_equal(c.group[1].pool, 0);
    free(kv);
    b = two_pools(8);
    assert_int_equal(kv_n_pools(b->kv), 2);
    assert_int_equal(b->c.group[1].pool, 1);
    assert_int_equal(b->c.slab_bytes, 8 * KIB);
    cache_close(b);
}

KV_TEST(empty_slab_returns_to_the_arena, two_pools(10))
{
    struct kv_out out = empty_out(b);
    struct kv_need need = { { 20, 0 } };
    struct kv_count n;

    kv_count(kv, 1, &n);
    assert_int_equal(n.blocks, 8); /* 10 slabs; the scratch blocks use 1 partly and 1 fully */
    assert_int_equal(kv_reserve(kv, 3, &need), 0);
    kv_grow(kv, 0, 3, 80, &out);
    kv_check(kv);
    kv_count(kv, 1, &n);
    assert_int_equal(n.blocks, 6); /* 21 small blocks fill 3 slabs: 2 fewer to draw */
    kv_drop(kv, 3);
    kv_check(kv);
    kv_count(kv, 1, &n);
    assert_int_equal(n.blocks, 8);
}

KV_TEST(reservation_counts_whole_slabs_of_every_pool, two_pools(5))
{
    struct kv_need small = { { 8, 0 } }, both = { { 8, 2 } }, large = { { 0, 2 } };

    /* 5 slabs: scratch uses 1 partly (7 blocks left) and 1 fully; 3 are free. */
    assert_int_equal(kv_reserve(kv, 0, &both), 0); /* 9 small: 2 slabs; 3 large: 3 slabs */
    assert_int_equal(kv_reserve(kv, 1, &large), -EAGAIN);
    assert_int_equal(kv_reserve(kv, 1, &small), -EAGAIN); /* 17 small need 3 slabs */
    small.n_blocks[0] = 7;
    assert_int_equal(kv_reserve(kv, 1, &small), 0); /* 16 fit in 2 */
    kv_check(kv);
}

KV_TEST(slab_used_by_another_pool_is_not_reserved, two_pools(6))
{
    struct kv_out out = empty_out(b);
    struct kv_need small = { { 8, 0 } }, large = { { 0, 4 } };

    /* Blocks of slots 0, 1 and 2 interleave over 4 slabs; then only those of slot 2 remain. */
    for (uint32_t slot = 0; slot < 3; slot++) assert_int_equal(kv_reserve(kv, slot, &small), 0);
    for (uint32_t pos = 4; pos <= 32; pos += 4)
        for (uint32_t slot = 0; slot < 3; slot++) kv_grow(kv, 0, slot, pos, &out);
    kv_check(kv);
    kv_drop(kv, 0);
    kv_drop(kv, 1);
    /* 9 small blocks would fit in 2 slabs but use 4: one is free, for one large block. */
    assert_int_equal(kv_reserve(kv, 3, &large), -EAGAIN);
    large.n_blocks[1] = 2;
    assert_int_equal(kv_reserve(kv, 3, &large), -EAGAIN);
    large.n_blocks[1] = 1;
    assert_int_equal(kv_reserve(kv, 3, &large), 0);
    kv_cross(kv, 0, 3, 4, &out);
    kv_check(kv);
}

KV_TEST(nearly_full_slab_is_filled_first, two_pools(6))
{
    static const uint32_t blocks[] = { 7, 7, 1, 1 };
    struct kv_out out = empty_out(b);
    struct kv_need need = { { 0 } };
    struct kv_count n;

    /* Slot 0 fills the scratch block's slab, slots 1 and 2 the next, slot 3 starts a third. */
    for (uint32_t slot = 0; slot < 4; slot++) {
        need.n_blocks[0] = blocks[slot];
        assert_int_equal(kv_reserve(kv, slot, &need), 0);
        kv_grow(kv, 0, slot, 4 * blocks[slot], &out);
    }
    kv_drop(kv, 2); /* frees blocks in the second */
    need.n_blocks[0] = 1;
    assert_int_equal(kv_reserve(kv, 4, &need), 0);
    kv_grow(kv, 0, 4, 4, &out);
    kv_drop(kv, 3); /* the third is empty if slot 4 uses the second */
    kv_check(kv);
    kv_count(kv, 1, &n);
    assert_int_equal(n.blocks, 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slab_sizes_of_known_models),
        cmocka_unit_test(slab_wastes_at_most_5_percent_and_holds_whole_slices),
        cmocka_unit_test(sizes_without_a_slab_are_rejected),
        cmocka_unit_test(groups_of_equal_block_size_share_a_pool),
        cmocka_unit_test(empty_slab_returns_to_the_arena),
        cmocka_unit_test(reservation_counts_whole_slabs_of_every_pool),
        cmocka_unit_test(slab_used_by_another_pool_is_not_reserved),
        cmocka_unit_test(nearly_full_slab_is_filled_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
