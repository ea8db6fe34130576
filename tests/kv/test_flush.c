/* test_flush.c - what is only kept for others goes when an operator asks, and nothing else does: kv_flush(). */
#include "tests/kv/kv_fixture.h"

#include "worker/kv/kv_event.h"
#include "worker/kv/kv_tree_export.h"

#include <stdlib.h>

enum { BLOCK = 256, ALL = UINT32_MAX };

static uint32_t
on_host(const struct bed *b)
{
    struct kv_count n;

    kv_count_host(b->kv, &n);
    return n.used + n.cached;
}

static uint32_t
n_cached(const struct bed *b)
{
    struct kv_count n;

    kv_count(b->kv, 0, &n);
    return n.cached;
}

/* It came, was computed and left: n tokens from first on. */
static void
pass(struct bed *b, uint32_t slot, token_id first, uint32_t n)
{
    prompt_of(b, slot, first, n, NULL), add(b, slot, 0);
    release_at(b, slot, n);
}

/* How many positions it would find. */
static uint32_t
found(struct bed *b, token_id first, uint32_t n)
{
    prompt_of(b, BED_SLOTS - 1, first, n, NULL);
    kv_lookup(b->kv, &b->slot[BED_SLOTS - 1].text, &b->slot[BED_SLOTS - 1].hit);
    return b->slot[BED_SLOTS - 1].hit.n_tokens;
}

static void
what_nobody_holds_is_found_no_more_and_free(void **state)
{
    struct kv_flushed went = { 0 };
    struct bed *b;

    (void)state;
    for (uint32_t elastic = 0; elastic < 2; elastic++) {
        b = bed_of(elastic ? 0 : 8, .copy_partial = true, .arena_bytes = elastic ? 12 * BLOCK : 0);
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
        pass(b, 0, 0, 13); /* and it is kept again */
        assert_int_equal(found(b, 0, 14), 13);
        close_bed(b);
    }
}

static void
what_lies_on_the_host_goes_too_be_it_there_or_away(void **state)
{
    (void)state;
    for (uint32_t away = 0; away < 2; away++) {
        struct bed *b = bed_of(4, .copy_partial = true, .host_bytes = 8 * BLOCK);
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
        close_bed(b);
    }
}

KV_TEST(what_a_slot_holds_stays_and_is_found, bed(12))
{
    struct kv_flushed went = { 0 };

    pass(b, 0, 0, 12);
    pass(b, 0, 100, 8);
    prompt_of(b, 1, 0, 12, NULL);
    assert_int_equal(add(b, 1, 4), 11);
    kv_flush(kv, ALL, &went);
    kv_check(kv);
    assert_int_equal(found(b, 100, 9), 0);
    assert_int_equal(found(b, 0, 13), 8); /* the third block is its own now */
    for (token_id t = 12; t < 16; t++) gen_plus(b, 1, t);
    release_at(b, 1, 16);
    assert_int_equal(found(b, 0, 17), 16);
}

KV_TEST(nobodys_hit_is_taken_before_his_first_step, bed(12))
{
    static const token_id end[] = { 50, 51, -1 };
    struct kv_flushed went = { 0 };

    pass(b, 0, 0, 11);
    prompt_of(b, 1, 0, 10, end); /* two blocks, and half of the third */
    assert_int_equal(admit(b, 1, 0), 0);
    assert_int_equal(b->slot[1].hit.n_tokens, 10);
    assert_int_equal(kv_flush(kv, ALL, &went), 0);
    kv_check(kv);
    start(b, 1);
    expect(b, 1, 0, 1, 2);
}

/* The host has them alone; two are on their way to a slot that has not begun. */
KV_TEST(what_is_to_be_fetched_stays_on_the_host,
        bed_of(4, .copy_partial = true, .host_bytes = 8 * BLOCK))
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
who_takes_a_cell_waits_for_who_reads_it_flushed_or_not(void **state)
{
    (void)state;
    for (uint32_t flushed = 0; flushed < 2; flushed++) {
        struct bed *b = bed_of(4, .n_lanes = 2, .host_bytes = BLOCK);
        struct kv_flushed went = { 0 };

        pass(b, 0, 0, 4), pass(b, 0, 100, 16);
        prompt_of(b, 1, 0, 5, NULL);
        assert_int_equal(admit(b, 1, 0), 0);
        assert_int_equal(b->slot[1].hit.n_host[0], 1);
        b->out = bed_out(b);
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
        close_bed(b);
    }
}

KV_TEST(a_large_cache_goes_in_parts, bed(12))
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

KV_TEST(a_snapshot_goes_with_all_its_layers,
        bed_of(0, .arena_bytes = 100 * BLOCK,
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

/* A reader of events, and a successor. */
KV_TEST(whoever_reads_of_the_cache_learns_of_it, bed_of(4, .max_events = 16))
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
    assert_int_equal(n, 3); /* the root too */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_nobody_holds_is_found_no_more_and_free),
        cmocka_unit_test(what_lies_on_the_host_goes_too_be_it_there_or_away),
        cmocka_unit_test(what_a_slot_holds_stays_and_is_found),
        cmocka_unit_test(nobodys_hit_is_taken_before_his_first_step),
        cmocka_unit_test(what_is_to_be_fetched_stays_on_the_host),
        cmocka_unit_test(who_takes_a_cell_waits_for_who_reads_it_flushed_or_not),
        cmocka_unit_test(a_large_cache_goes_in_parts),
        cmocka_unit_test(a_snapshot_goes_with_all_its_layers),
        cmocka_unit_test(whoever_reads_of_the_cache_learns_of_it),
    };

    return cmocka_run_group_tests_name("flush", tests, NULL, NULL);
}
