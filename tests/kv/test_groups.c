/* test_groups.c - hits and evictions with several groups: windows, encoder inputs, and pools that
 * share slabs. */
#include "tests/kv/kv_fixture.h"

KV_TEST(window_hit_needs_the_blocks_of_the_next_query,
        cache_of(16, .copy_partial = true, .group = { group(KV_WINDOW, 16, 16) })) /* S-03 */
{
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
}

KV_TEST(hit_holds_in_all_groups,
        cache_of(40, .copy_partial = true,
                 .group = { group(KV_FULL, 0, 40), group(KV_WINDOW, 8, 12) })) /* S-05, S-06 */
{
    token_id more[8] = { 900, 901, 902, 903, 904, 905, 906, -1 };
    struct kv_hit hit;

    prompt_of(b, 0, 0, 40, NULL), add(b, 0, 0);
    gen(b, 0, 40);
    release(b, 0);
    prompt_of(b, 0, 0, 39, more);
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_int_equal(hit.n_tokens, 39);
    assert_int_equal(hit.n_cached[0], 9);
    assert_int_equal(hit.n_cached[1], 1);          /* of 32 .. 35; the next is not full yet */
    prompt_of(b, 1, 1000, 12, NULL), add(b, 1, 0); /* evicts the window's 36 .. 39 */
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_int_equal(hit.n_tokens, 36);
    prompt_of(b, 2, 2000, 4, NULL), add(b, 2, 0); /* evicts 32 .. 35 */
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_int_equal(hit.n_tokens, 32);
    assert_int_equal(hit.n_cached[0], 8);
    assert_int_equal(hit.n_cached[1], 2);
}

static void
with_source(struct kv_fixture *b, uint32_t slot, const token_id *source, uint32_t n)
{
    struct fixture_slot *s = &b->slot[slot];

    prompt_of(b, slot, 0, 9, NULL);
    kv_namespace(b->kv, 0, 0, source, n, &b->namespace);
    s->text.source = source;
    s->text.n_source = n;
}

static struct kv_fixture *
cache_with_cross(uint32_t n_blocks)
{
    return cache_of(n_blocks, .copy_partial = true,
                    .group = { group(KV_FULL, 0, n_blocks), group(KV_CROSS, 0, n_blocks) });
}

KV_TEST(encoder_input_is_reused_whole_or_not_at_all, cache_with_cross(16)) /* K-12 */
{
    static const token_id source[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    static const token_id other[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 99, 98, 97, 96 };

    with_source(b, 0, source, 16), add(b, 0, 0);
    assert_false(b->slot[0].hit.cross);
    store(b, 0, 9); /* found while slot 0 runs, by prefixes too */
    with_source(b, 1, source, 16);
    assert_int_equal(add(b, 1, 0), 8);
    assert_true(b->slot[1].hit.cross);
    assert_int_equal(b->slot[1].hit.n_held[1], 4);
    assert_int_equal(kv_entry(kv, 0, 1, 3), kv_entry(kv, 1, 1, 3));
    with_source(b, 2, other, 16); /* another encoder input: no decoder blocks */
    assert_int_equal(add(b, 2, 0), 0);
    assert_false(b->slot[2].hit.cross);
    with_source(b, 3, source, 15);
    assert_int_equal(admit(b, 3, 0), 0);
    assert_false(b->slot[3].hit.cross);
}

/* A search stores its encoder input while its beams share no decoder position. */
KV_TEST(store_at_0_positions_adds_the_encoder_input, cache_with_cross(16))
{
    static const token_id source[9] = { 3, 1, 4, 1, 5, 9, 2, 6, 5 };

    with_source(b, 0, source, 9), add(b, 0, 0);
    store(b, 0, 0);
    with_source(b, 1, source, 9);
    assert_int_equal(add(b, 1, 0), 0);
    assert_true(b->slot[1].hit.cross);
    assert_int_equal(kv_entry(kv, 0, 1, 2), kv_entry(kv, 1, 1, 2));
}

KV_TEST(encoder_input_with_an_evicted_block_is_not_reused, cache_with_cross(5))
{
    static const token_id source[14] = { 5, 6, 7, 8 }, fill[16] = { 9 };

    with_source(b, 0, source, 14), add(b, 0, 0);
    release(b, 0);
    with_source(b, 0, source, 14);
    assert_int_equal(admit(b, 0, 0), 0);
    assert_true(b->slot[0].hit.cross);
    kv_drop(kv, 0);
    with_source(b, 1, fill, 8), add(b, 1, 0);
    with_source(b, 0, source, 14);
    kv_lookup(kv, &b->slot[0].text, &b->slot[0].hit);
    assert_false(b->slot[0].hit.cross);
}

KV_TEST(features_are_never_reused, cache_with_cross(16)) /* B-12 */
{
    for (uint32_t i = 0; i < 2; i++) {
        with_source(b, i, NULL, 16);
        assert_int_equal(add(b, i, 0), 0); /* nor decoder blocks that depend on them */
        assert_false(b->slot[i].hit.cross);
        store(b, i, 9);
    }
}

static struct kv_fixture *
two_pools(uint32_t n_slabs, float share_a, float share_b)
{
    struct kv_group self = group(KV_FULL, 0, 0), cross = group(KV_CROSS, 0, 0);
    struct kv_fixture *b;

    cross.n_layers = 3; /* 1 block per slab; the other pool has 3 */
    self.share = share_a;
    cross.share = share_b;
    b = cache_of(0, .group = { self, cross }, .arena_bytes = (uint64_t)n_slabs * 768);
    assert_int_equal(b->c.slab_bytes, 768);
    return b;
}

/* One block in each of 4 slabs occupies 4 slabs; the other pool has reserved 3. */
KV_TEST(hit_is_dropped_if_another_pool_reserved_its_slabs, two_pools(7, 0, 0))
{
    struct kv_need need = { { 0, 3 } };

    for (uint32_t i = 0; i < 3; i++) {
        prompt_of(b, i, 100 * (token_id)i, 4, NULL);
        add(b, i, 13);
    }
    for (token_id k = 4; k < 17; k++)
        for (uint32_t i = 0; i < 3; i++) gen_plus(b, i, 100 * (token_id)i + k);
    for (uint32_t i = 0; i < 3; i++) release(b, i);
    prompt_of(b, 3, 0, 17, NULL);
    kv_lookup(kv, &b->slot[3].text, &b->slot[3].hit);
    assert_int_equal(b->slot[3].hit.n_tokens, 16);
    assert_int_equal(kv_reserve(kv, 4, &need), 0);
    assert_int_equal(add(b, 3, 0), 0);
    b->out.n_edits = 0;
    kv_cross(kv, 0, 4, 12, &b->out); /* reserved blocks can be allocated */
    kv_check(kv);
}

/* Computes and releases encoder inputs of 4 tokens, one slab each. */
static void
many_sources(struct kv_fixture *b, uint32_t first, uint32_t n)
{
    static token_id source[64][4];

    for (uint32_t i = 0; i < n; i++) {
        source[i][0] = (token_id)(first + i);
        with_source(b, 0, source[i], 4);
        b->slot[0].token[0] = (token_id)(first + i);
        assert_int_equal(admit(b, 0, 0), 0);
        start(b, 0);
        release_at(b, 0, 3); /* no full decoder block */
    }
}

static uint32_t
n_cached(const struct kv_fixture *b, uint32_t pool)
{
    struct kv_count n;

    kv_count(b->kv, pool, &n);
    return n.cached;
}

static void
fill_with_prompts(struct kv_fixture *b, uint32_t first, uint32_t n)
{
    struct kv_namespace none;

    kv_namespace(b->kv, 0, 0, NULL, 0, &none);
    for (uint32_t i = 0; i < n; i++) {
        prompt_of(b, 1, (token_id)(first + 10 * i), 4, NULL);
        b->slot[1].text.namespace = &none;
        add(b, 1, 0);
        release_at(b, 1, 4);
    }
}

KV_TEST(pools_without_shares_evict_the_oldest_slab, two_pools(18, 0, 0))
{
    fill_with_prompts(b, 1000, 60);
    assert_true(n_cached(b, 0) > 45);
    many_sources(b, 0, 40);
    assert_true(n_cached(b, 1) > 10);
    fill_with_prompts(b, 5000, 60);
    assert_true(n_cached(b, 0) > 40);
}

KV_TEST(pool_above_its_share_yields_to_pools_below_theirs, two_pools(18, 0.5f, 0.5f))
{
    uint32_t sources;

    fill_with_prompts(b, 1000, 60);
    assert_true(n_cached(b, 0) > 45); /* all, because the other pool needs none */
    many_sources(b, 0, 40);
    sources = n_cached(b, 1);
    assert_in_range(sources, 7, 10); /* slabs: its share is 9, +- 12.5 % */
    fill_with_prompts(b, 5000, 60);
    assert_in_range(n_cached(b, 1), 6, sources);
    many_sources(b, 100, 40);
    assert_in_range(n_cached(b, 1), 7, 10);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_hit_needs_the_blocks_of_the_next_query),
        cmocka_unit_test(hit_holds_in_all_groups),
        cmocka_unit_test(encoder_input_is_reused_whole_or_not_at_all),
        cmocka_unit_test(store_at_0_positions_adds_the_encoder_input),
        cmocka_unit_test(encoder_input_with_an_evicted_block_is_not_reused),
        cmocka_unit_test(features_are_never_reused),
        cmocka_unit_test(hit_is_dropped_if_another_pool_reserved_its_slabs),
        cmocka_unit_test(pools_without_shares_evict_the_oldest_slab),
        cmocka_unit_test(pool_above_its_share_yields_to_pools_below_theirs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
