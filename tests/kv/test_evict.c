/* test_evict.c - eviction order, the host tier and events: scenarios P, O and V. */
#include "base/clock.h"
#include "tests/kv/kv_fixture.h"

#include "worker/kv/kv_event.h"

static void
retention_ranges_are_validated(void **state) /* P-11 */
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
keep(struct kv_fixture *b, uint32_t slot, const struct kv_keep *k, uint32_t n)
{
    b->slot[slot].text.keep = k;
    b->slot[slot].text.n_keep = n;
}

KV_TEST(low_priority_blocks_are_evicted_first, cache(4)) /* P-01 */
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

KV_TEST(high_priority_blocks_are_evicted_after_newer_blocks, cache(8)) /* P-02 */
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

KV_TEST(low_priority_blocks_are_reused_before_free_blocks, cache(4)) /* P-05 */
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

/* An elastic pool: the last block of a chain is evicted first, so every cached block can be
 * found. */
KV_TEST(children_are_evicted_before_their_parents,
        cache_of(0, .arena_bytes = 9 * 256, .group = { group(KV_FULL, 0, 0) }))
{
    struct kv_hit hit;

    prompt_of(b, 0, 0, 25, NULL), add(b, 0, 0);
    release(b, 0);
    for (uint32_t n = 1; n <= 6; n++) { /* 2 blocks were free; the last of 7 was never stored */
        prompt_of(b, n, 100 * (token_id)n, 4, NULL), add(b, n, 0);
        prompt_of(b, 0, 0, 25, NULL);
        kv_lookup(kv, &b->slot[0].text, &hit);
        assert_int_equal(hit.n_full, n <= 2 ? 6 : 8 - n);
    }
}

static struct kv_fixture *
cache_with_host(uint32_t n_blocks, uint32_t n_host_blocks)
{
    return cache_of(n_blocks, .copy_partial = true, .host_bytes = n_host_blocks * 256);
}

static uint32_t
on_host(const struct kv_fixture *b)
{
    struct kv_count n;

    kv_count_host(b->kv, &n);
    return n.used + n.cached;
}

KV_TEST(full_host_tier_evicts_its_oldest_block_for_an_offload, cache_with_host(4, 1)) /* O-01 */
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
    release_at(b, 0, 12); /* its last block is full too */
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
    assert_int_equal(b->slot[2].hit.n_full, 2); /* 0 on the host, 1 in the arena */
    assert_int_equal(b->slot[2].hit.n_host[0], 1);
    kv_stats(kv, 0, &n);
    assert_int_equal(n.offloaded, 2);
    assert_int_equal(n.host_evicted, 1);
}

/* The tier has 2 host blocks and 1 is mapped at first; the other is mapped in time, or never. */
static void
unmapped_host_memory_is_not_used(void **state)
{
    (void)state;
    for (int map_in_time = 0; map_in_time < 2; map_in_time++) {
        static const struct kv_keep second[] = { { 4, 8, 75 } };
        struct kv_fixture *b = cache_with_host(4, 2);
        struct kv_count host;
        struct kv_need need;
        struct kv_stats n;

        kv_count_host(b->kv, &host);
        kv_host_tier_set_size(b->kv, host.block_bytes);
        prompt_of(b, 0, 0, 4, NULL), keep(b, 0, second, 1), add(b, 0, 8);
        store(b, 0, 4);
        for (token_id t = 4; t < 12; t++) gen_plus(b, 0, t);
        prompt_of(b, 1, 100, 4, NULL), add(b, 1, 0);
        release_at(b, 0, 12);
        need = kv_need(b->kv, 9, 0, 4);
        assert_int_equal(kv_raise(b->kv, 1, &need), 0);
        gen_plus(b, 1, 104);
        assert_int_equal(kv_host_tier_used(b->kv), host.block_bytes);
        if (map_in_time) kv_host_tier_set_size(b->kv, 2 * host.block_bytes);
        for (token_id t = 105; t < 109; t++) gen_plus(b, 1, t);
        kv_stats(b->kv, 0, &n);
        assert_int_equal(n.offloaded, 2);
        assert_int_equal(n.host_evicted, !map_in_time);
        assert_int_equal(kv_host_tier_used(b->kv), (1 + map_in_time) * host.block_bytes);
        kv_check(b->kv);
        cache_close(b);
    }
}

KV_TEST(host_blocks_are_onboarded_and_kept, cache_with_host(4, 8)) /* O-04 */
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
KV_TEST(host_tier_keeps_its_blocks_while_it_is_away, cache_with_host(4, 8))
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

KV_TEST(lost_host_blocks_are_not_found, cache_with_host(4, 8))
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
    assert_int_equal(on_host(b), 6); /* of prompt 2, and of prompt 0 again */
}

KV_TEST(low_priority_blocks_are_not_offloaded, cache_with_host(2, 4)) /* O-05 */
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

KV_TEST(block_hit_twice_is_in_the_host_tier_before_eviction, cache_with_host(8, 8))
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

/* Blocks of two sizes whose slice sizes are not multiples of each other. */
static void
host_blocks_of_different_groups_do_not_overlap(void **state)
{
    struct kv_group small = group(KV_FULL, 0, 0), large = small;
    bool taken[192] = { false };
    struct kv_fixture *b;

    (void)state;
    small.slice_bytes = 384;
    large.slice_bytes = 512;
    b = cache_of(0, .group = { small, large }, .arena_bytes = 4 * 3072,
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
    cache_close(b);
}

KV_TEST(two_hits_of_one_host_block_onboard_it_once, cache_with_host(8, 8))
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
blocks_slower_to_onboard_than_to_compute_are_not_onboarded(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        /* 256 ns per block of 4 tokens */
        struct kv_fixture *b = cache_of(4, .host_bytes = 8 * 256, .host_bandwidth = 1000000000,
                                        .token_time = slow ? 63 : 65);

        prompt_of(b, 0, 0, 9, NULL), add(b, 0, 0);
        release_at(b, 0, 8);
        prompt_of(b, 0, 500, 16, NULL), add(b, 0, 0);
        kv_drop(b->kv, 0);
        prompt_of(b, 0, 0, 9, NULL);
        assert_int_equal(add(b, 0, 0), slow ? 0 : 8);
        assert_int_equal(on_host(b), 2);
        cache_close(b);
    }
}

static uint32_t
read_events(struct kv_fixture *b, uint64_t *next, struct kv_event e[64])
{
    uint64_t missed;
    uint32_t n = kv_events(b->kv, next, e, 64, &missed);

    assert_int_equal(missed, 0);
    return n;
}

static struct kv_fixture *
cache_with_events(uint32_t n_blocks, uint32_t max)
{
    return cache_of(n_blocks, .copy_partial = true, .max_events = max);
}

KV_TEST(events_report_stores_and_removals_in_order, cache_with_events(4, 64)) /* V-02, V-03, V-04 */
{
    struct kv_event e[64];
    uint64_t next = 0, last[2];

    prompt_of(b, 0, 0, 10, NULL), add(b, 0, 0);
    store(b, 0, 9);
    assert_int_equal(read_events(b, &next, e), 2);
    assert_int_equal(e[0].op, KV_STORED);
    assert_memory_equal(e[0].parent, b->namespace.self, 16);
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
    assert_int_equal(read_events(b, &next, e), 6); /* 3 evictions, then 3 stores */
    for (int i = 0; i < 6; i++) assert_int_equal(e[i].op, i < 3 ? KV_REMOVED : KV_STORED);
}

KV_TEST(priority_change_is_an_event, cache_with_events(8, 64)) /* P-14 */
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

KV_TEST(events_have_the_reason,
        cache_of(2, .copy_partial = true, .max_events = 64,
                 .host_bytes = 4 * 256)) /* H3; see also tests/scenarios/H3-why */
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

KV_TEST(late_event_reader_gets_the_loss_and_a_snapshot, cache_with_events(8, 1)) /* V-05 */
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

KV_TEST(host_blocks_are_found_while_copying_them_is_faster, cache_with_host(4, 8))
{
    struct kv_hit hit;

    prompt_of(b, 0, 0, 16, NULL), add(b, 0, 0), release(b, 0);
    prompt_of(b, 0, 100, 16, NULL), add(b, 0, 0), release(b, 0); /* offloads them */
    prompt_of(b, 1, 0, 16, NULL);
    kv_lookup(kv, &b->slot[1].text, &hit);
    assert_int_equal(hit.n_host[0], 3);          /* nothing is known */
    kv_host_tier_rates(kv, 256000, NSEC_MS / 5); /* a block: 1 ms to copy, 0.8 ms to compute */
    kv_lookup(kv, &b->slot[1].text, &hit);
    assert_int_equal(hit.n_tokens, 0);
    kv_host_tier_rates(kv, 256000, NSEC_MS / 3); /* 1.3 ms to compute */
    kv_lookup(kv, &b->slot[1].text, &hit);
    assert_int_equal(hit.n_host[0], 3);
    kv_host_tier_rates(kv, 256000, 0);
    kv_lookup(kv, &b->slot[1].text, &hit);
    assert_int_equal(hit.n_host[0], 3);
}

static void
fill(struct kv_fixture *b, token_id first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        prompt_of(b, 0, first + (token_id)(16 * i), 8, NULL), add(b, 0, 0);
        release_at(b, 0, 8);
    }
}

KV_TEST(pinned_prefix_stays_until_it_is_unpinned, cache(6))
{
    static const struct kv_need longest = { { 4 } };
    uint32_t n = 0;
    struct kv_hit hit;
    struct err e;

    prompt_of(b, 1, 0, 10, NULL);
    assert_int_equal(kv_pin(kv, &b->slot[1].text, &longest, &n, &e), -ENOENT);
    fill(b, 0, 1);
    assert_int_equal(kv_pin(kv, &b->slot[1].text, &longest, &n, &e), 1);
    assert_int_equal(n, 8);
    assert_int_equal(kv_n_pinned(kv, 0), 2);
    kv_check(kv);
    fill(b, 100, 4);
    kv_lookup(kv, &b->slot[1].text, &hit);
    assert_int_equal(hit.n_tokens, 8);
    assert_int_equal(add(b, 1, 0), 8); /* a request shares the blocks */
    release(b, 1);
    prompt_of(b, 1, 148, 8, NULL);
    assert_int_equal(kv_pin(kv, &b->slot[1].text, &longest, &n, &e),
                     -EMSGSIZE); /* longest for 4 of 6 */
    prompt_of(b, 1, 0, 10, NULL);
    assert_false(kv_unpin(kv, 2));
    assert_true(kv_unpin(kv, 1));
    assert_false(kv_unpin(kv, 1));
    assert_int_equal(kv_n_pinned(kv, 0), 0);
    kv_check(kv);
    fill(b, 200, 4);
    kv_lookup(kv, &b->slot[1].text, &hit);
    assert_int_equal(hit.n_tokens, 0);
}

KV_TEST(at_most_eight_prefixes_are_pinned, cache(40))
{
    static const struct kv_need longest = { { 4 } };
    struct err e;
    uint32_t n;

    fill(b, 0, 9);
    for (uint32_t i = 0; i < 9; i++) {
        prompt_of(b, 1, (token_id)(16 * i), 8, NULL);
        gen(b, 1, 99);
        assert_int_equal(kv_pin(kv, &b->slot[1].text, &longest, &n, &e),
                         i < 8 ? (int)i + 1 : -ENOSPC);
        kv_check(kv);
    }
    for (uint32_t i = 1; i <= 8; i++) assert_true(kv_unpin(kv, i));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retention_ranges_are_validated),
        cmocka_unit_test(low_priority_blocks_are_evicted_first),
        cmocka_unit_test(high_priority_blocks_are_evicted_after_newer_blocks),
        cmocka_unit_test(low_priority_blocks_are_reused_before_free_blocks),
        cmocka_unit_test(children_are_evicted_before_their_parents),
        cmocka_unit_test(host_tier_keeps_its_blocks_while_it_is_away),
        cmocka_unit_test(lost_host_blocks_are_not_found),
        cmocka_unit_test(full_host_tier_evicts_its_oldest_block_for_an_offload),
        cmocka_unit_test(unmapped_host_memory_is_not_used),
        cmocka_unit_test(host_blocks_are_onboarded_and_kept),
        cmocka_unit_test(low_priority_blocks_are_not_offloaded),
        cmocka_unit_test(block_hit_twice_is_in_the_host_tier_before_eviction),
        cmocka_unit_test(host_blocks_of_different_groups_do_not_overlap),
        cmocka_unit_test(two_hits_of_one_host_block_onboard_it_once),
        cmocka_unit_test(blocks_slower_to_onboard_than_to_compute_are_not_onboarded),
        cmocka_unit_test(events_report_stores_and_removals_in_order),
        cmocka_unit_test(priority_change_is_an_event),
        cmocka_unit_test(events_have_the_reason),
        cmocka_unit_test(late_event_reader_gets_the_loss_and_a_snapshot),
        cmocka_unit_test(host_blocks_are_found_while_copying_them_is_faster),
        cmocka_unit_test(pinned_prefix_stays_until_it_is_unpinned),
        cmocka_unit_test(at_most_eight_prefixes_are_pinned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
