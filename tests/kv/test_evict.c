/* test_evict.c - what goes first, what of it goes to the host, and who is told: rows P, O and V of the
 * scenarios. */
#include "tests/kv/kv_fixture.h"

#include "worker/kv/kv_event.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void
ranges_to_keep_are_checked(void **state) /* P-11 */
{
    struct err e;

    (void)state;
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 0, 4, 90 }, { 4, 8, 10 } }, 2, &e), 0);
    assert_int_equal(
        kv_keep_check((struct kv_keep[]){ { 0, UINT32_MAX, 90 }, { 4, 8, 10 } }, 2, &e), -EINVAL);
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 4, 4, 90 } }, 1, &e), -EINVAL);
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 0, 4, 90 }, { 3, 8, 10 } }, 2, &e),
                     -EINVAL);
    assert_int_equal(kv_keep_check((struct kv_keep[]){ { 0, 4, 101 } }, 1, &e), -EINVAL);
}

static void
keep(struct bed *b, uint32_t slot, const struct kv_keep *k, uint32_t n)
{
    b->slot[slot].text.keep = k;
    b->slot[slot].text.n_keep = n;
}

KV_TEST(low_priorities_go_first, bed(4)) /* P-01 */
{
    static const struct kv_keep parts[] = { { 0, 4, 90 }, { 4, 8, 10 } };
    static const struct kv_keep low[] = { { 0, UINT32_MAX, 20 } };

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
}

KV_TEST(high_priorities_outlive_what_came_later, bed(8)) /* P-02 */
{
    static const struct kv_keep high[] = { { 0, UINT32_MAX, 90 } },
                                low[] = { { 0, UINT32_MAX, 5 } };

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
}

KV_TEST(a_priority_below_the_usual_goes_before_what_nobody_had, bed(4)) /* P-05 */
{
    static const struct kv_keep parts[] = { { 0, 4, 90 }, { 4, 8, 0 } };

    prompt_of(b, 0, 0, 8, NULL), keep(b, 0, parts, 2), add(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 100, 4, NULL), add(b, 0, 0);
    expect(b, 0, 1);
    assert_int_equal(n_free(b), 3);
    prompt_of(b, 1, 0, 4, TOKENS(200, 201, 202, 203));
    assert_int_equal(add(b, 1, 0), 4);
}

/* An elastic pool: the end of a chain is evicted first, and nothing is left that leads nowhere. */
KV_TEST(what_leads_to_others_is_evicted_after_them,
        bed_of(0, .arena_bytes = 9 * 256, .group = { group(KV_FULL, 0, 0) }))
{
    struct kv_hit hit;

    prompt_of(b, 0, 0, 25, NULL), add(b, 0, 0);
    release(b, 0);
    for (uint32_t n = 1; n <= 6;
         n++) { /* two blocks were free, and the last of seven was never stored */
        prompt_of(b, n, 100 * (token_id)n, 4, NULL), add(b, n, 0);
        prompt_of(b, 0, 0, 25, NULL);
        kv_lookup(kv, &b->slot[0].text, &hit);
        assert_int_equal(hit.n_full, n <= 2 ? 6 : 8 - n);
    }
}

static struct bed *
bed_with_host(uint32_t n_blocks, uint32_t n_host_blocks)
{
    return bed_of(n_blocks, .copy_partial = true, .host_bytes = n_host_blocks * 256);
}

static uint32_t
on_host(const struct bed *b)
{
    struct kv_count n;

    kv_count_host(b->kv, &n);
    return n.used + n.cached;
}

KV_TEST(what_is_evicted_goes_to_the_host_and_a_full_host_drops_its_oldest,
        bed_with_host(4, 1)) /* O-01 */
{
    static const struct kv_keep second[] = { { 4, 8, 75 } };
    struct kv_need need;
    struct kv_stats n;

    prompt_of(b, 0, 0, 4, NULL), keep(b, 0, second, 1), add(b, 0, 8);
    store(b, 0, 4);
    for (token_id t = 4; t < 12; t++) gen_plus(b, 0, t);
    expect(b, 0, 0, 1, 2);
    prompt_of(b, 1, 100, 4, NULL), add(b, 1, 0);
    expect(b, 1, 3);
    assert_int_equal(n_free(b), 0);
    release(b, 0);
    assert_int_equal(n_free(b), 3);
    need = kv_need(kv, 9, 0, 4);
    assert_int_equal(kv_raise(kv, 1, &need), 0);
    gen_plus(b, 1, 104);
    assert_int_equal(b->out.n_copies, 1); /* block 2 */
    assert_int_equal(b->copy[0].to_tier, TIER_HOST);
    assert_int_equal(on_host(b), 1);
    for (token_id t = 105; t < 109; t++) gen_plus(b, 1, t);
    prompt_of(b, 2, 0, 12, NULL);
    kv_lookup(kv, &b->slot[2].text, &b->slot[2].hit);
    assert_int_equal(b->slot[2].hit.n_full, 2); /* 0 on the host, 1 where it was */
    assert_int_equal(b->slot[2].hit.n_host[0], 1);
    kv_stats(kv, 0, &n);
    assert_int_equal(n.offloaded, 2);
    assert_int_equal(n.host_evicted, 1);
}

/* Of two cells one can be reached at first; the other comes in time, or does not. */
static void
a_host_drops_what_it_has_before_it_takes_what_cannot_be_reached(void **state)
{
    (void)state;
    for (int comes = 0; comes < 2; comes++) {
        static const struct kv_keep second[] = { { 4, 8, 75 } };
        struct bed *b = bed_with_host(4, 2);
        struct kv_count host;
        struct kv_need need;
        struct kv_stats n;

        kv_count_host(b->kv, &host);
        kv_host_tier_set_size(b->kv, host.block_bytes);
        prompt_of(b, 0, 0, 4, NULL), keep(b, 0, second, 1), add(b, 0, 8);
        store(b, 0, 4);
        for (token_id t = 4; t < 12; t++) gen_plus(b, 0, t);
        prompt_of(b, 1, 100, 4, NULL), add(b, 1, 0);
        release(b, 0);
        need = kv_need(b->kv, 9, 0, 4);
        assert_int_equal(kv_raise(b->kv, 1, &need), 0);
        gen_plus(b, 1, 104);
        assert_int_equal(kv_host_tier_used(b->kv), host.block_bytes);
        if (comes) kv_host_tier_set_size(b->kv, 2 * host.block_bytes);
        for (token_id t = 105; t < 109; t++) gen_plus(b, 1, t);
        kv_stats(b->kv, 0, &n);
        assert_int_equal(n.offloaded, 2);
        assert_int_equal(n.host_evicted, !comes);
        assert_int_equal(kv_host_tier_used(b->kv), (1 + comes) * host.block_bytes);
        kv_check(b->kv);
        close_bed(b);
    }
}

KV_TEST(what_lies_on_the_host_is_fetched_and_stays_there, bed_with_host(4, 8)) /* O-04 */
{
    struct kv_stats n;

    for (uint32_t round = 0; round < 4; round++) {
        token_id first = round % 2 ? 100 : 0;

        prompt_of(b, 0, first, 16, NULL);
        assert_int_equal(add(b, 0, 0), round < 2 ? 0 : 12);
        if (round >= 2) assert_int_equal(b->slot[0].hit.n_host[0], 3);
        release_at(b, 0, 12);
        assert_int_equal(n_free(b), 4);
    }
    kv_stats(kv, 0, &n);
    assert_int_equal(n.onboarded, 6);
}

/* As what_lies_on_the_host_is_fetched..., but for two rounds its memory is not there. */
KV_TEST(a_host_that_is_away_gives_and_takes_nothing_and_loses_nothing, bed_with_host(4, 8))
{
    struct kv_stats n;

    for (uint32_t round = 0; round < 6; round++) {
        token_id first = round % 2 ? 100 : 0;

        if (round == 2) kv_host_tier_away(kv);
        if (round == 4) kv_host_tier_came(kv, true);
        prompt_of(b, 0, first, 16, NULL);
        assert_int_equal(add(b, 0, 0), round < 4 ? 0 : 12);
        if (round >= 4) assert_int_equal(b->slot[0].hit.n_host[0], 3);
        release_at(b, 0, 12);
        assert_int_equal(n_free(b), 4);
        assert_int_equal(on_host(b), round == 0 || round / 2 == 1 ? 0 : round == 1 ? 3 : 6);
    }
    kv_stats(kv, 0, &n);
    assert_int_equal(n.offloaded, 6);
    assert_int_equal(n.onboarded, 6);
}

KV_TEST(what_a_host_has_lost_is_found_no_more, bed_with_host(4, 8))
{
    for (uint32_t round = 0; round < 3; round++) {
        prompt_of(b, 0, 100 * round, 16, NULL), add(b, 0, 0);
        release_at(b, 0, 12);
    }
    assert_int_equal(on_host(b), 6);
    kv_host_tier_away(kv);
    kv_host_tier_came(kv, false);
    assert_int_equal(on_host(b), 0);
    for (uint32_t round = 0; round < 2; round++) {
        prompt_of(b, 0, 100 * round, 16, NULL);
        assert_int_equal(add(b, 0, 0), 0);
        release_at(b, 0, 12);
    }
    assert_int_equal(on_host(b), 6); /* the third's, and the first's again */
}

KV_TEST(low_priorities_are_dropped_and_the_usual_go_to_the_host, bed_with_host(2, 4)) /* O-05 */
{
    static const struct kv_keep five[] = { { 0, UINT32_MAX, 5 } };

    prompt_of(b, 0, 0, 4, NULL), keep(b, 0, five, 1), add(b, 0, 0);
    release_at(b, 0, 4);
    prompt_of(b, 0, 100, 8, NULL), add(b, 0, 0);
    release_at(b, 0, 8);
    assert_int_equal(on_host(b), 0);
    prompt_of(b, 0, 200, 8, NULL), add(b, 0, 0);
    assert_int_equal(on_host(b), 2);
}

KV_TEST(what_is_hit_twice_is_on_the_host_before_it_must_go, bed_with_host(8, 8))
{
    for (int hits = -1; hits < 3; hits++) {
        prompt_of(b, 0, 0, 10, NULL);
        assert_int_equal(add(b, 0, 0), hits < 0 ? 0 : 8);
        assert_int_equal(b->out.n_copies, hits == 1 ? 2 : 0);
        assert_int_equal(on_host(b), hits < 1 ? 0 : 2);
        release_at(b, 0, 8);
    }
    prompt_of(b, 0, 500, 32, NULL), add(b, 0, 0);
    assert_int_equal(b->out.n_copies, 0);
    kv_drop(kv, 0);
    prompt_of(b, 0, 0, 10, NULL);
    assert_int_equal(add(b, 0, 0), 8);
    assert_int_equal(b->slot[0].hit.n_host[0], 2);
}

/* Blocks of two sizes, whose slices are no multiples of each other. */
static void
cells_of_all_groups_lie_side_by_side(void **state)
{
    struct kv_group small = group(KV_FULL, 0, 0), large = small;
    bool taken[192] = { false };
    struct bed *b;

    (void)state;
    small.slice_bytes = 384;
    large.slice_bytes = 512;
    b = bed_of(0, .group = { small, large }, .arena_bytes = 4 * 3072,
               .host_bytes = sizeof taken * 128);
    assert_int_equal(b->c.slab_bytes, 3072);
    for (token_id t = 0; t < 500; t += 100) {
        prompt_of(b, 0, t, 9, NULL), add(b, 0, 0);
        for (uint32_t i = 0; i < b->out.n_copies; i++) {
            const struct kv_group *g = &b->c.group[b->copy[i].group];

            for (uint32_t k = 0; k < 2 * g->slice_bytes / 128; k++) {
                uint64_t at = (uint64_t)b->copy[i].to * g->slice_bytes / 128 + k;

                assert_true(at < sizeof taken && !taken[at]);
                taken[at] = true;
            }
        }
        release_at(b, 0, 8);
    }
    assert_true(on_host(b) >= 2);
    close_bed(b);
}

KV_TEST(two_who_hit_the_same_on_the_host_share_what_the_first_fetches, bed_with_host(8, 8))
{
    prompt_of(b, 0, 0, 9, NULL), add(b, 0, 0);
    release_at(b, 0, 8);
    prompt_of(b, 0, 500, 32, NULL), add(b, 0, 0);
    kv_drop(kv, 0);
    for (uint32_t i = 1; i < 3; i++) {
        prompt_of(b, i, 0, 9, NULL);
        assert_int_equal(admit(b, i, 0), 0);
        assert_int_equal(b->slot[i].hit.n_host[0], 2);
    }
    start(b, 1);
    assert_int_equal(b->out.n_copies, 2);
    start(b, 2);
    assert_int_equal(b->out.n_copies, 0);
    assert_int_equal(kv_entry(kv, 1, 0, 1), kv_entry(kv, 2, 0, 1));
}

static void
what_is_slower_to_fetch_than_to_compute_stays_on_the_host(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        /* 256 ns a block of 4 tokens */
        struct bed *b = bed_of(4, .host_bytes = 8 * 256, .host_bandwidth = 1000000000,
                               .token_time = slow ? 63 : 65);

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
    return bed_of(n_blocks, .copy_partial = true, .max_events = max);
}

KV_TEST(events_say_what_is_stored_and_removed_in_order,
        bed_with_events(4, 64)) /* V-02, V-03, V-04 */
{
    struct kv_event e[64];
    uint64_t next = 0, last[2];

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
    kv_drop(kv, 0);
    prompt_of(b, 0, 100, 15, NULL), add(b, 0, 0);
    store(b, 0, 14);
    assert_int_equal(read_events(b, &next, e), 6); /* three are evicted, then three are stored */
    for (int i = 0; i < 6; i++) assert_int_equal(e[i].op, i < 3 ? KV_REMOVED : KV_STORED);
}

KV_TEST(a_change_of_priority_is_an_event, bed_with_events(8, 64)) /* P-14 */
{
    static const struct kv_keep fifty[] = { { 0, UINT32_MAX, 50 } },
                                ten[] = { { 0, UINT32_MAX, 10 } };
    struct kv_event e[64];
    uint64_t next = 0;

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
}

KV_TEST(an_event_says_why,
        bed_of(2, .copy_partial = true, .max_events = 64,
               .host_bytes = 4 * 256)) /* H3; the rest is tests/scenarios/H3-why */
{
    static const struct kv_keep fifty[] = { { 0, UINT32_MAX, 50 } };
    struct kv_event e[64];
    uint64_t next = 0;

    prompt_of(b, 0, 0, 8, NULL), keep(b, 0, fifty, 1), add(b, 0, 0);
    release_at(b, 0, 4);
    assert_int_equal(read_events(b, &next, e), 1);
    assert_int_equal(e[0].why, KV_ASKED);
    prompt_of(b, 0, 100, 8, NULL), add(b, 0, 0);
    kv_drop(kv, 0);
    assert_int_equal(read_events(b, &next, e), 1);
    assert_int_equal(e[0].tier, TIER_HOST);
    assert_int_equal(e[0].why, KV_PRESSURE);
    kv_host_tier_away(kv);
    kv_host_tier_came(kv, false);
    assert_int_equal(read_events(b, &next, e), 1);
    assert_int_equal(e[0].op, KV_REMOVED);
    assert_int_equal(e[0].why, KV_LOST);
}

KV_TEST(who_reads_too_late_learns_how_much_is_gone_and_sees_all_in_a_snapshot,
        bed_with_events(8, 1)) /* V-05 */
{
    struct kv_event e[64];
    uint64_t next = 0, missed;
    uint32_t at = 0;

    prompt_of(b, 0, 0, 13, NULL), add(b, 0, 0);
    store(b, 0, 12);
    assert_int_equal(kv_events(kv, &next, e, 64, &missed), 1);
    assert_int_equal(missed, 2);
    assert_int_equal(next, kv_event_end(kv));
    assert_int_equal(kv_event_snapshot(kv, &at, e, 2), 2);
    assert_int_equal(kv_event_snapshot(kv, &at, e + 2, 2), 1);
    assert_int_equal(kv_event_snapshot(kv, &at, e + 3, 2), 0);
    assert_memory_equal(e[2].parent, e[1].name, 16);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_to_keep_are_checked),
        cmocka_unit_test(low_priorities_go_first),
        cmocka_unit_test(high_priorities_outlive_what_came_later),
        cmocka_unit_test(a_priority_below_the_usual_goes_before_what_nobody_had),
        cmocka_unit_test(what_leads_to_others_is_evicted_after_them),
        cmocka_unit_test(a_host_that_is_away_gives_and_takes_nothing_and_loses_nothing),
        cmocka_unit_test(what_a_host_has_lost_is_found_no_more),
        cmocka_unit_test(what_is_evicted_goes_to_the_host_and_a_full_host_drops_its_oldest),
        cmocka_unit_test(a_host_drops_what_it_has_before_it_takes_what_cannot_be_reached),
        cmocka_unit_test(what_lies_on_the_host_is_fetched_and_stays_there),
        cmocka_unit_test(low_priorities_are_dropped_and_the_usual_go_to_the_host),
        cmocka_unit_test(what_is_hit_twice_is_on_the_host_before_it_must_go),
        cmocka_unit_test(cells_of_all_groups_lie_side_by_side),
        cmocka_unit_test(two_who_hit_the_same_on_the_host_share_what_the_first_fetches),
        cmocka_unit_test(what_is_slower_to_fetch_than_to_compute_stays_on_the_host),
        cmocka_unit_test(events_say_what_is_stored_and_removed_in_order),
        cmocka_unit_test(a_change_of_priority_is_an_event),
        cmocka_unit_test(an_event_says_why),
        cmocka_unit_test(who_reads_too_late_learns_how_much_is_gone_and_sees_all_in_a_snapshot),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
