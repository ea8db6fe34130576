/* test_flush.c - kv_flush() frees all cached blocks and nothing else. */
#include "tests/kv/kv_fixture.h"

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_tree_export.h"

enum { BLOCK = 256, ALL = UINT32_MAX };

static uint32_t
on_host(const struct kv_fixture *b)
{
    struct kv_count n;

    kv_count_host(b->kv, &n);
    return n.used + n.cached;
}

static uint32_t
n_cached(const struct kv_fixture *b)
{
    struct kv_count n;

    kv_count(b->kv, 0, &n);
    return n.cached;
}

/* Admits, computes and releases a prompt of n tokens from `first` on. */
static void
pass(struct kv_fixture *b, uint32_t slot, token_id first, uint32_t n)
{
    prompt_of(b, slot, first, n, NULL), add(b, slot, 0);
    release_at(b, slot, n);
}

/* Returns the cached positions of that prompt. */
static uint32_t
found(struct kv_fixture *b, token_id first, uint32_t n)
{
    prompt_of(b, FIXTURE_SLOTS - 1, first, n, NULL);
    kv_lookup(b->kv, &b->slot[FIXTURE_SLOTS - 1].text, &b->slot[FIXTURE_SLOTS - 1].hit);
    return b->slot[FIXTURE_SLOTS - 1].hit.n_tokens;
}

static void
flush_frees_unreferenced_blocks(void **state)
{
    struct kv_flushed went = { 0 };
    struct kv_fixture *b;

    (void)state;
    for (uint32_t elastic = 0; elastic < 2; elastic++) {
        b = cache_of(elastic ? 0 : 8, .copy_partial = true,
                     .arena_bytes = elastic ? 12 * BLOCK : 0);
        pass(b, 0, 0, 13);
        pass(b, 0, 100, 8);
        assert_int_equal(found(b, 0, 14), 13);
        assert_int_equal(n_cached(b), 6);
        went = (struct kv_flushed){ 0 };
        assert_int_equal(kv_flush(b->kv, ALL, &went), 6);
        kv_check(b->kv);
        assert_int_equal(went.blocks, 6);
        assert_int_equal(went.bytes, 6 * BLOCK);
        assert_int_equal(went.host_blocks + went.host_bytes, 0);
        assert_int_equal(n_cached(b), 0);
        assert_int_equal(found(b, 0, 14) + found(b, 100, 9), 0);
        assert_int_equal(kv_flush(b->kv, ALL, &went), 0);
        pass(b, 0, 0, 13); /* cached again */
        assert_int_equal(found(b, 0, 14), 13);
        cache_close(b);
    }
}

static void
flush_frees_host_blocks_of_a_present_or_absent_tier(void **state)
{
    (void)state;
    for (uint32_t away = 0; away < 2; away++) {
        struct kv_fixture *b = cache_of(4, .copy_partial = true, .host_bytes = 8 * BLOCK);
        struct kv_flushed went = { 0 };

        for (uint32_t i = 0; i < 3; i++) pass(b, 0, 100 * i, 12);
        assert_int_equal(on_host(b), 5);
        if (away) kv_host_tier_away(b->kv);
        assert_int_equal(kv_flush(b->kv, ALL, &went), 9);
        kv_check(b->kv);
        assert_int_equal(went.blocks, 4);
        assert_int_equal(went.host_blocks, 5);
        assert_int_equal(went.host_bytes, 5 * BLOCK);
        if (away) kv_host_tier_came(b->kv, true);
        assert_int_equal(on_host(b), 0);
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(found(b, 100 * i, 13), 0);
        for (uint32_t i = 0; i < 3; i++) pass(b, 0, 100 * i, 12);
        assert_int_equal(on_host(b), 5);
        cache_close(b);
    }
}

KV_TEST(flush_keeps_held_blocks_in_the_tree, cache(12))
{
    struct kv_flushed went = { 0 };

    pass(b, 0, 0, 12);
    pass(b, 0, 100, 8);
    prompt_of(b, 1, 0, 12, NULL);
    assert_int_equal(add(b, 1, 4), 11);
    kv_flush(kv, ALL, &went);
    kv_check(kv);
    assert_int_equal(found(b, 100, 9), 0);
    assert_int_equal(found(b, 0, 13), 8); /* the slot took over the third block */
    for (token_id t = 12; t < 16; t++) gen_plus(b, 1, t);
    release_at(b, 1, 16);
    assert_int_equal(found(b, 0, 17), 16);
}

KV_TEST(flush_keeps_the_hits_of_admitted_sequences, cache(12))
{
    static const token_id end[] = { 50, 51, -1 };
    struct kv_flushed went = { 0 };

    pass(b, 0, 0, 11);
    prompt_of(b, 1, 0, 10, end); /* 2 blocks, and half of the third */
    assert_int_equal(admit(b, 1, 0), 0);
    assert_int_equal(b->slot[1].hit.n_tokens, 10);
    assert_int_equal(kv_flush(kv, ALL, &went), 0);
    kv_check(kv);
    start(b, 1);
    expect(b, 1, 0, 1, 2);
}

/* Only the host tier has the blocks; 2 of them will be onboarded for a slot that is not started. */
KV_TEST(flush_keeps_host_blocks_that_will_be_onboarded,
        cache_of(4, .copy_partial = true, .host_bytes = 8 * BLOCK))
{
    struct kv_flushed went = { 0 };

    pass(b, 0, 0, 12), pass(b, 0, 100, 16);
    assert_int_equal(on_host(b), 3);
    prompt_of(b, 1, 0, 9, NULL);
    assert_int_equal(admit(b, 1, 0), 0);
    assert_int_equal(b->slot[1].hit.n_host[0], 2);
    kv_flush(kv, ALL, &went);
    kv_check(kv);
    assert_int_equal(went.blocks, 4);
    assert_int_equal(went.host_blocks, 1);
    start(b, 1);
    assert_int_equal(b->out.n_copies, 2);
}

/* Lane 1 fetches, and lane 0 writes the only host_block before that is done. */
static void
reused_host_block_waits_for_its_last_reader(void **state)
{
    (void)state;
    for (uint32_t flushed = 0; flushed < 2; flushed++) {
        struct kv_fixture *b = cache_of(4, .n_lanes = 2, .host_bytes = BLOCK);
        struct kv_flushed went = { 0 };

        pass(b, 0, 0, 4), pass(b, 0, 100, 16);
        prompt_of(b, 1, 0, 5, NULL);
        assert_int_equal(admit(b, 1, 0), 0);
        assert_int_equal(b->slot[1].hit.n_host[0], 1);
        b->out = empty_out(b);
        b->out.step = 1;
        kv_start(b->kv, 1, 1, 1, &b->out);
        kv_grow(b->kv, 1, 1, 5, &b->out);
        kv_fence(b->kv, 1, 1, 1);
        if (flushed) kv_flush(b->kv, ALL, &went);
        kv_check(b->kv);
        assert_int_equal(on_host(b), !flushed);
        if (flushed) pass(b, 0, 200, 8);
        pass(b, 0, 300, 8);
        assert_int_equal(on_host(b), 1);
        assert_int_equal(b->out.wait[1], 1);
        cache_close(b);
    }
}

KV_TEST(large_cache_is_flushed_in_parts, cache(12))
{
    struct kv_flushed went = { 0 };

    pass(b, 0, 0, 24);
    pass(b, 0, 100, 20);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(kv_flush(kv, 4, &went), i < 2 ? 4 : 3);
        kv_check(kv);
        assert_int_equal(went.blocks, i < 2 ? 4 * (i + 1) : 11);
    }
    assert_int_equal(kv_flush(kv, 4, &went), 0);
}

KV_TEST(flush_frees_all_layers_of_a_snapshot,
        cache_of(0, .arena_bytes = 100 * BLOCK,
                 .group = { group(KV_FULL, 0, 0), state_group(3, BLOCK, 8) }))
{
    struct kv_flushed went = { 0 };

    prompt_of(b, 0, 0, 9, NULL), add(b, 0, 0);
    release(b, 0);
    assert_int_equal(found(b, 0, 9), 8);
    assert_int_equal(kv_flush(kv, ALL, &went), 2 + 3);
    kv_check(kv);
    assert_int_equal(went.bytes, 5 * BLOCK);
    assert_int_equal(found(b, 0, 9), 0);
}

/* Events and exports report the flush. */
KV_TEST(flush_is_reported_as_events_and_exports, cache_of(4, .max_events = 16))
{
    struct kv_flushed went = { 0 };
    uint64_t next = 0, missed;
    struct kv_event e[16];
    struct kv_tree_export l;
    uint32_t n = 0;

    pass(b, 0, 0, 8);
    assert_int_equal(kv_events(kv, &next, e, 16, &missed), 2);
    while (kv_tree_n_exports(kv)) kv_tree_export_take(kv, &l);
    kv_flush(kv, ALL, &went);
    assert_int_equal(kv_events(kv, &next, e, 16, &missed), 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(e[i].op, KV_REMOVED);
        assert_int_equal(e[i].why, KV_FLUSHED);
    }
    for (; kv_tree_n_exports(kv); n++) {
        kv_tree_export_take(kv, &l);
        assert_false(l.live);
    }
    assert_int_equal(n, 3); /* with the root */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flush_frees_unreferenced_blocks),
        cmocka_unit_test(flush_frees_host_blocks_of_a_present_or_absent_tier),
        cmocka_unit_test(flush_keeps_held_blocks_in_the_tree),
        cmocka_unit_test(flush_keeps_the_hits_of_admitted_sequences),
        cmocka_unit_test(flush_keeps_host_blocks_that_will_be_onboarded),
        cmocka_unit_test(reused_host_block_waits_for_its_last_reader),
        cmocka_unit_test(large_cache_is_flushed_in_parts),
        cmocka_unit_test(flush_frees_all_layers_of_a_snapshot),
        cmocka_unit_test(flush_is_reported_as_events_and_exports),
    };

    return cmocka_run_group_tests_name("flush", tests, NULL, NULL);
}
