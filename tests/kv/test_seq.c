/* test_seq.c - reservations, allocation, trimming and release of a slot, and fences. */
#include "tests/kv/kv_fixture.h"

#include "worker/kv/kv_need.h"
#include "worker/kv/kv_seq.h"

enum { EDITS = 4096 };
static struct kv_edit edits[EDITS];

static struct kv_out
fresh_out(void)
{
    return (struct kv_out){ .edit = edits, .max_edits = EDITS };
}

/* For tests in which kv_init() fails, or that move the memory. */
static struct kv_config
config(uint32_t tokens, uint32_t n_blocks)
{
    return (struct kv_config){ .n_slots = 8,
                               .n_lanes = 2,
                               .tokens_per_block = tokens,
                               .arena_bytes = (uint64_t)n_blocks * 256 };
}

static struct kv *
open_kv(struct kv_config *c)
{
    struct err e;
    struct kv *kv = kv_init(calloc(1, kv_bytes(c)), c, &e);

    assert_non_null(kv);
    return kv;
}

static uint32_t
used(const struct kv *kv)
{
    struct kv_count n;

    kv_count(kv, 0, &n);
    return n.used;
}

/* Runs one step of a slot: positions first .. end - 1. */
static void
step(struct kv *kv, uint32_t slot, uint32_t first, uint32_t end, unsigned lane, uint64_t number)
{
    struct kv_out out = fresh_out();

    kv_trim(kv, slot, first, &out);
    kv_grow(kv, lane, slot, end, &out);
    kv_fence(kv, slot, lane, number);
    kv_check(kv);
}

KV_TEST(need_counts_prompt_and_output_tokens, pool(1, 2000, group(KV_FULL, 0, 0))) /* */
{
    struct kv_fixture *of_64 = pool(64, 2000, group(KV_FULL, 0, 0));

    assert_int_equal(kv_need(kv, 1024 + 128, 0, 1024).n_blocks[0], 1152);
    assert_int_equal(kv_need(of_64->kv, 1024 + 128, 0, 1024).n_blocks[0], 18);
    cache_close(of_64);
}

static void
window_in_decode_needs_its_blocks_and_one_more(void **state) /* */
{
    struct kv_group g = group(KV_WINDOW, 1024, 0);

    (void)state;
    assert_int_equal(kv_kind_need(&g, 64, 512, 0, 1), 8);
    assert_int_equal(kv_kind_need(&g, 64, 513, 0, 1), 9);
    g.window = 256;
    assert_int_equal(kv_kind_need(&g, 64, 512, 0, 1), 5);
    /* The reference holds 6: one more than 257 positions in blocks of 64 can touch. */
    g.window = 257;
    assert_int_equal(kv_kind_need(&g, 64, 512, 0, 1), 5);
}

static void
window_need_is_at_most_window_chunk_and_one_block(void **state)
{
    (void)state;
    for (uint32_t tokens = 1; tokens <= 17; tokens++) {
        for (uint32_t window = 1; window < 40; window += 3) {
            struct kv_group g = group(KV_WINDOW, window, 0);

            for (uint32_t chunk = 1; chunk < 30; chunk++) {
                uint32_t need = kv_kind_need(&g, tokens, 1000, 0, chunk), worst = 0;

                assert_true(need <= CEIL_DIV(window + chunk, tokens) + 1);
                /* exactly the blocks of the worst chunk */
                for (uint32_t first = 100; first < 100 + tokens; first++) {
                    uint32_t from = kv_kind_first(&g, tokens, first);

                    worst = MAX(worst, (first + chunk - 1) / tokens + 1 - from);
                }
                assert_int_equal(need, worst);
            }
        }
    }
}

KV_TEST(blocks_behind_the_window_are_freed,
        pool(4, 100, group(KV_WINDOW, 8, 0))) /* S-01: tokens 4, window 8 */
{
    struct kv_need need = kv_need(kv, 100, 0, 1);
    uint32_t first;

    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    for (uint32_t cached = 1; cached <= 40; cached++) {
        uint32_t removed = cached > 8 ? (cached - 8) / 4 : 0;

        step(kv, 0, cached - 1, cached, 0, cached);
        assert_int_equal(kv_held(kv, 0, 0, &first), (cached + 3) / 4 - removed);
        assert_int_equal(first, removed);
        if (cached == 11) assert_int_equal(removed, 0);
        if (cached == 12) assert_int_equal(removed, 1);
        if (cached == 16) assert_int_equal(removed, 2);
        kv_done(kv, 0, cached);
    }
}

KV_TEST(chunked_prefill_holds_window_and_chunk_only,
        pool(4, 100, group(KV_WINDOW, 8, 0))) /* S-08 */
{
    struct kv_need need = kv_need(kv, 50, 0, 40); /* one chunk: all, then the window */
    uint32_t first;

    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    step(kv, 0, 0, 40, 0, 1);
    assert_int_equal(kv_held(kv, 0, 0, &first), 10);
    step(kv, 0, 40, 41, 0, 2);
    assert_int_equal(first = kv_held(kv, 0, 0, &first), 3); /* with the new token's block */
    kv_drop(kv, 0);

    need = kv_need(kv, 50, 0, 8); /* chunks of 8 */
    assert_int_equal(need.n_blocks[0], 5);
    assert_int_equal(kv_reserve(kv, 1, &need), 0);
    for (uint32_t pos = 0; pos < 40; pos += 8) {
        step(kv, 1, pos, pos + 8, 0, 3 + pos / 8);
        assert_true(kv_held(kv, 1, 0, &first) <= 5);
    }
}

/* The V of a layer is at the next slice after its K (gpu.h). The scratch block is block 0. */
KV_TEST(third_block_of_four_layers_starts_at_slice_24,
        pool(4, 100, { .n_layers = 4, .n_parts = 2, .slice_bytes = 128, .max_entries = 8 }))
{
    struct kv_need need = kv_need(kv, 12, 0, 12);

    assert_int_equal(kv_scratch(kv, 0), 0);
    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    step(kv, 0, 0, 12, 0, 1);
    for (uint32_t entry = 0; entry < 3; entry++)
        assert_int_equal(kv_entry(kv, 0, 0, entry), 8 * (entry + 1));
    kv_done(kv, 0, 1);
}

KV_TEST(freed_window_block_is_cleared_by_an_edit,
        pool(4, 100, group(KV_FULL, 0, 0), group(KV_WINDOW, 4, 0)))
{
    struct kv_out out = fresh_out();
    struct kv_need need = kv_need(kv, 20, 0, 8);
    slice_id at;

    assert_int_equal(kv_reserve(kv, 5, &need), 0);
    kv_grow(kv, 0, 5, 8, &out);
    assert_int_equal(out.n_edits, 4);
    at = kv_entry(kv, 5, 1, 0);
    assert_int_not_equal(at, SLICE_NONE);
    kv_fence(kv, 5, 0, 1);
    out.n_edits = 0;
    kv_trim(kv, 5, 8, &out);
    assert_int_equal(out.n_edits, 1);
    assert_int_equal(edits[0].op, EDIT_SET);
    assert_int_equal(edits[0].group, 1);
    assert_int_equal(edits[0].slot, 5);
    assert_int_equal(edits[0].entry, 0);
    assert_int_equal(edits[0].at, SLICE_NONE);
    assert_int_equal(kv_entry(kv, 5, 1, 0), SLICE_NONE);
}

KV_TEST(cross_blocks_depend_on_the_encoder_input_only,
        pool(4, 100, group(KV_FULL, 0, 0), group(KV_CROSS, 0, 0)))
{
    struct kv_out out = fresh_out();
    struct kv_need need = kv_need(kv, 20, 9, 8);
    uint32_t first;

    assert_int_equal(need.n_blocks[0], 5);
    assert_int_equal(need.n_blocks[1], 3);
    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    kv_cross(kv, 0, 0, 9, &out);
    assert_int_equal(kv_held(kv, 0, 1, &first), 3);
    for (uint32_t pos = 0; pos < 20; pos++) {
        out.n_edits = 0;
        kv_trim(kv, 0, pos, &out);
        kv_grow(kv, 0, 0, pos + 1, &out);
    }
    assert_int_equal(kv_held(kv, 0, 1, &first), 3);
    assert_int_equal(kv_held(kv, 0, 0, &first), 5);
}

KV_TEST(refused_reservation_changes_no_group,
        pool(10, 100, group(KV_FULL, 0, 0), group(KV_CROSS, 0, 1)))
/* C-29: a single cross block */
{
    struct kv_need need = kv_need(kv, 20, 10, 10);
    struct kv_count before, after;

    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    kv_count(kv, 0, &before);
    assert_int_equal(kv_reserve(kv, 1, &need), -EAGAIN);
    kv_count(kv, 0, &after);
    assert_memory_equal(&before, &after, sizeof before);
    kv_check(kv);
    need = kv_need(kv, 20, 0, 10); /* the refused one holds no self blocks */
    for (uint32_t slot = 1; slot < 8; slot++) assert_int_equal(kv_reserve(kv, slot, &need), 0);
    kv_check(kv);
}

KV_TEST(max_blocks_limits_one_group_only, pool(10, 1000, group(KV_FULL, 0, 10)))
{
    struct kv_need need;
    struct kv_count n;

    kv_count(kv, 0, &n);
    assert_int_equal(n.blocks, 10); /* scratch is not counted */
    need = kv_need(kv, 50, 0, 50);
    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    assert_int_equal(kv_reserve(kv, 1, &need), 0);
    assert_int_equal(kv_reserve(kv, 2, &need), -EAGAIN);
    assert_int_equal(kv_longest(kv, 0), 100);
}

KV_TEST(lowered_reservation_is_available_to_others, pool(4, 1000, group(KV_WINDOW, 4, 12)))
{
    struct kv_need prompt, after;

    prompt = kv_need(kv, 100, 0, 40);
    after = kv_need(kv, 100, 0, 1);
    assert_int_equal(prompt.n_blocks[0], 12);
    assert_int_equal(after.n_blocks[0], 2);
    assert_int_equal(kv_reserve(kv, 0, &prompt), 0);
    step(kv, 0, 0, 40, 0, 1);
    kv_lower(kv, 0, &after); /* still holds 10 */
    assert_int_equal(kv_reserve(kv, 1, &after), 0);
    assert_int_equal(kv_reserve(kv, 2, &after), -EAGAIN);
    step(kv, 0, 40, 41, 0, 2);
    kv_lower(kv, 0, &after); /* holds 2 */
    assert_int_equal(kv_reserve(kv, 2, &after), 0);
    kv_check(kv);
}

KV_TEST(another_lane_waits_for_a_freed_block, pool(4, 3, group(KV_FULL, 0, 0))) /* scratch and 2 */
{
    struct kv_out out = fresh_out();
    struct kv_need need = kv_need(kv, 8, 0, 8);

    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    step(kv, 0, 0, 8, 1, 7);
    kv_drop(kv, 0);
    assert_int_equal(used(kv), 0);

    assert_int_equal(kv_reserve(kv, 1, &need), 0);
    kv_grow(kv, 0, 1, 4, &out); /* step 7 of lane 1 may still run */
    assert_int_equal(out.wait[0], 0);
    assert_int_equal(out.wait[1], 7);
    kv_done(kv, 1, 7);
    out = fresh_out();
    kv_grow(kv, 0, 1, 8, &out); /* the other block; step 7 is done */
    assert_int_equal(out.wait[1], 0);
    kv_check(kv);
}

KV_TEST(same_lane_reuses_a_freed_block_without_waiting, pool(4, 3, group(KV_FULL, 0, 0)))
{
    struct kv_out out = fresh_out();
    struct kv_need need = kv_need(kv, 8, 0, 8);

    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    step(kv, 0, 0, 8, 1, 7);
    kv_drop(kv, 0);
    assert_int_equal(kv_reserve(kv, 1, &need), 0);
    kv_grow(kv, 1, 1, 8, &out);
    assert_int_equal(out.wait[0] | out.wait[1], 0);
}

/* Slabs of 2 blocks of group 0: scratch uses half of one and all of one; one is free. */
static struct kv_fixture *
three_slabs(void)
{
    struct kv_group large = group(KV_CROSS, 0, 0);

    large.n_layers = 2;
    return pool(4, 3 * 2, group(KV_FULL, 0, 0), large);
}

KV_TEST(slab_keeps_its_fences_across_pools, three_slabs())
{
    struct kv_out out = fresh_out();
    struct kv_need need = { { 2, 0 } };

    assert_int_equal(b->c.slab_bytes, 512);
    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    step(kv, 0, 0, 8, 1, 9); /* the second block draws the last slab */
    kv_drop(kv, 0);
    need = (struct kv_need){ { 0, 1 } };
    assert_int_equal(kv_reserve(kv, 1, &need), 0);
    kv_cross(kv, 0, 1, 4, &out);
    assert_int_equal(out.wait[1], 9);
    kv_check(kv);
}

KV_TEST(slot_that_changes_lanes_waits_for_its_last_step, pool(4, 100, group(KV_FULL, 0, 0)))
{
    struct kv_out out = fresh_out();
    struct kv_need need = kv_need(kv, 8, 0, 8);

    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    step(kv, 0, 0, 7, 0, 3);
    kv_grow(kv, 1, 0, 8, &out);
    assert_int_equal(out.wait[0], 3);
}

KV_TEST(dropped_slot_sends_one_clear_with_the_next_launched_step,
        pool(4, 100, group(KV_FULL, 0, 0)))
{
    struct kv_out out = fresh_out();
    struct kv_need need = kv_need(kv, 8, 0, 8);

    kv_drop(kv, 6); /* never reserved: no effect */
    kv_ends(kv, 0, &out);
    assert_int_equal(out.n_edits, 0);
    assert_int_equal(kv_reserve(kv, 6, &need), 0);
    step(kv, 6, 0, 8, 0, 1);
    kv_drop(kv, 6);
    assert_int_equal(kv_reserve(kv, 6, &need), 0); /* reserved and dropped without a step */
    kv_drop(kv, 6);
    kv_ends(kv, 0, &out);
    assert_int_equal(out.n_edits, 1);
    assert_int_equal(edits[0].op, EDIT_CLEAR);
    assert_int_equal(edits[0].slot, 6);
    out = fresh_out();
    kv_ends(kv, 0, &out); /* not launched: sent again */
    assert_int_equal(out.n_edits, 1);
    kv_ends_sent(kv, 0, 2);
    out = fresh_out();
    kv_ends(kv, 0, &out);
    assert_int_equal(out.n_edits, 0);
    assert_int_equal(kv_reserve(kv, 6, &need), 0);
    kv_grow(kv, 1, 6, 4, &out); /* must wait for the EDIT_CLEAR of the other lane */
    assert_int_equal(out.wait[0], 2);
    kv_check(kv);
}

static void
kv_longest_equals_the_largest_single_reservation(void **state)
{
    (void)state;
    test_seed();
    for (int round = 0; round < 200; round++) {
        struct kv_config c = config(1 + test_below(8), 0);
        struct kv_need need;
        uint64_t longest;
        uint32_t n_source = test_below(30);
        struct kv *kv;
        struct err e;

        c.n_groups = 1 + test_below(3);
        for (uint32_t g = 0; g < c.n_groups; g++) {
            c.group[g] = group((enum kv_kind)test_below(3), 1 + test_below(20), 0);
            c.group[g].n_layers = 1 + test_below(5);
        }
        c.arena_bytes = (20 + test_below(100)) * (uint64_t)kv_slab_bytes(&c);
        kv = open_kv(&c);
        longest = kv_longest(kv, n_source);
        if (longest > 0 && longest < UINT32_MAX) {
            need = kv_need(kv, (uint32_t)longest, n_source, c.tokens_per_block);
            assert_int_equal(kv_fits_alone(kv, &need, (uint32_t)longest, n_source, &e), 0);
            assert_int_equal(kv_reserve(kv, 0, &need), 0);
            kv_check(kv);
            kv_drop(kv, 0);
            need = kv_need(kv, (uint32_t)longest + 1, n_source, c.tokens_per_block);
            assert_int_equal(kv_fits_alone(kv, &need, (uint32_t)longest + 1, n_source, &e),
                             -EMSGSIZE);
        }
        free(kv);
    }
}

KV_TEST(scratch_blocks_are_never_allocated, pool(4, 40, group(KV_FULL, 0, 0), group(KV_CROSS, 0, 0),
                                                 group(KV_WINDOW, 6, 0))) /* X-08, C13 */
{
    struct kv_need need;
    struct kv_count n;
    uint32_t first;

    kv_count(kv, 0, &n);
    assert_int_equal(n.blocks, 37);
    assert_int_equal(n.used, 0);
    assert_int_not_equal(kv_scratch(kv, 0), kv_scratch(kv, 1));
    assert_int_not_equal(kv_scratch(kv, 1), kv_scratch(kv, 2));
    need = kv_need(kv, 64, 40, 64);
    need.n_blocks[2] = 11;
    assert_int_equal(kv_reserve(kv, 0, &need), 0); /* 16 + 10 + 11: all blocks */
    for (uint32_t g = 0; g < 3; g++) {
        struct kv_out out = fresh_out();

        kv_cross(kv, 0, 0, 40, &out);
        kv_grow(kv, 0, 0, 44, &out);
        for (uint32_t i = 0; i < kv_held(kv, 0, g, &first); i++)
            for (uint32_t s = 0; s < 3; s++)
                assert_int_not_equal(kv_entry(kv, 0, g, i), kv_scratch(kv, s));
    }
}

static void
too_small_arena_error_has_both_sizes(void **state)
{
    struct kv_config c = config(4, 1);
    struct err e = { 0 };
    void *mem;

    (void)state;
    c.n_groups = 1;
    c.group[0] = group(KV_FULL, 0, 0);
    mem = calloc(1, kv_bytes(&c));
    assert_null(kv_init(mem, &c, &e));
    assert_int_equal(e.code, -EINVAL);
    assert_non_null(strstr(e.text, "256 bytes"));
    assert_non_null(strstr(e.text, "512"));
    free(mem);
}

static void
invalid_configurations_are_rejected_by_name(void **state)
{
    static const struct {
        const char *text;
        int code;
        int what;
    } row[] = { { "per_block is 0", -EINVAL, 0 },    { "the state of", -EINVAL, 1 },
                { "host_memory", -EINVAL, 2 },       { "window is 0", -EINVAL, 3 },
                { "0 bytes", -EINVAL, 4 },           { "0 lanes", -EINVAL, 5 },
                { "is not a multiple", -EINVAL, 6 }, { "4 lanes", -EINVAL, 7 } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct kv_config c = config(4, 100);
        struct err e = { 0 };
        void *mem;

        c.n_groups = 1;
        c.group[0] = group(KV_WINDOW, 5, 0);
        if (row[i].what == 0) c.tokens_per_block = 0;
        if (row[i].what == 1) c.group[0].kind = KV_STATE;
        if (row[i].what == 2) c.host_bytes = 1;
        if (row[i].what == 3) c.group[0].window = 0;
        if (row[i].what == 4) c.group[0].slice_bytes = 0;
        if (row[i].what == 5) c.n_lanes = 0;
        if (row[i].what == 6) c.slab_bytes = 300;
        if (row[i].what == 7) c.n_lanes = 4;
        mem = calloc(1, kv_bytes(&c));
        assert_null(kv_init(mem, &c, &e));
        assert_int_equal(e.code, row[i].code);
        assert_non_null(strstr(e.text, row[i].text));
        free(mem);
    }
}

KV_TEST(zero_groups_are_valid, pool(4, 10)) /* */
{
    struct kv_need need;

    assert_int_equal(kv_n_pools(kv), 0);
    need = kv_need(kv, 1000, 0, 10);
    for (uint32_t slot = 0; slot < 8; slot++) assert_int_equal(kv_reserve(kv, slot, &need), 0);
    step(kv, 0, 0, 1000, 0, 1);
    kv_drop(kv, 0);
    kv_check(kv);
}

static void
memory_may_be_moved(void **state)
{
    struct kv_config c = config(4, 100);
    struct kv_need need;
    struct kv *kv, *moved;
    uint32_t first;
    size_t bytes;

    (void)state;
    c.n_groups = 1;
    c.group[0] = group(KV_WINDOW, 9, 0);
    bytes = kv_bytes(&c);
    kv = open_kv(&c);
    need = kv_need(kv, 100, 0, 8);
    assert_int_equal(kv_reserve(kv, 2, &need), 0);
    step(kv, 2, 0, 8, 0, 1);
    moved = malloc(bytes);
    memcpy(moved, kv, bytes);
    memset(kv, 0xa5, bytes);
    free(kv);
    for (uint32_t pos = 8; pos < 60; pos += 4) step(moved, 2, pos, pos + 4, 0, pos);
    assert_true(kv_held(moved, 2, 0, &first) <= need.n_blocks[0]);
    kv_drop(moved, 2);
    kv_check(moved);
    assert_int_equal(used(moved), 0);
    free(moved);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(need_counts_prompt_and_output_tokens),
        cmocka_unit_test(window_in_decode_needs_its_blocks_and_one_more),
        cmocka_unit_test(window_need_is_at_most_window_chunk_and_one_block),
        cmocka_unit_test(blocks_behind_the_window_are_freed),
        cmocka_unit_test(chunked_prefill_holds_window_and_chunk_only),
        cmocka_unit_test(third_block_of_four_layers_starts_at_slice_24),
        cmocka_unit_test(freed_window_block_is_cleared_by_an_edit),
        cmocka_unit_test(cross_blocks_depend_on_the_encoder_input_only),
        cmocka_unit_test(refused_reservation_changes_no_group),
        cmocka_unit_test(max_blocks_limits_one_group_only),
        cmocka_unit_test(lowered_reservation_is_available_to_others),
        cmocka_unit_test(another_lane_waits_for_a_freed_block),
        cmocka_unit_test(same_lane_reuses_a_freed_block_without_waiting),
        cmocka_unit_test(slab_keeps_its_fences_across_pools),
        cmocka_unit_test(slot_that_changes_lanes_waits_for_its_last_step),
        cmocka_unit_test(dropped_slot_sends_one_clear_with_the_next_launched_step),
        cmocka_unit_test(kv_longest_equals_the_largest_single_reservation),
        cmocka_unit_test(scratch_blocks_are_never_allocated),
        cmocka_unit_test(too_small_arena_error_has_both_sizes),
        cmocka_unit_test(invalid_configurations_are_rejected_by_name),
        cmocka_unit_test(zero_groups_are_valid),
        cmocka_unit_test(memory_may_be_moved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
