/* test_reuse.c - prefix hits: scenarios K and B, and cases beyond them. */
#include "tests/kv/kv_fixture.h"

KV_TEST(one_request_extends_another_block_by_block, cache(8)) /* K-01 */
{
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
}

static void
with_extra(struct kv_fixture *b, uint32_t slot, const uint64_t *extra, uint32_t n_extra,
           const token_id *more)
{
    prompt_of(b, slot, 100, 6, TOKENS(0, 1, 2));
    for (; more && *more >= 0; more++) b->slot[slot].token[b->slot[slot].n++] = *more;
    b->slot[slot].text.n = b->slot[slot].n;
    memcpy(b->slot[slot].extra, extra, n_extra * sizeof *extra);
}

KV_TEST(extra_ids_distinguish_equal_tokens, cache(16)) /* K-02 */
{
    static const uint64_t one[] = { 1, 1, 2, 2, 3, 3 }, two[] = { 4, 4, 5, 5, 6, 6 },
                          three[] = { 1, 1, 2, 2, 4, 4 };

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
}

KV_TEST(different_salts_share_no_blocks, cache(16)) /* K-04 */
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

    for (uint32_t i = 0; i < ARRAY_LEN(row); i++) {
        kv_namespace(kv, row[i].salt, 0, NULL, 0, &b->namespace);
        prompt_of(b, i, 100, 6, TOKENS(0, 1, 2));
        assert_int_equal(add(b, i, 0), row[i].pos);
        expect_ids(b, i, 0, row[i].id);
        gen(b, i, 3), gen(b, i, 4);
        if (!row[i].keep) release(b, i);
    }
}

KV_TEST(different_adapters_or_encoder_inputs_share_no_prefix, cache(4))
{
    static const token_id source[] = { 1, 2, 3 }, longer[] = { 1, 2, 3, 4 };
    struct kv_namespace s[5];

    kv_namespace(kv, 0, 0, NULL, 0, &s[0]);
    kv_namespace(kv, 0, 1, NULL, 0, &s[1]);
    kv_namespace(kv, 1, 0, NULL, 0, &s[2]);
    kv_namespace(kv, 0, 0, source, 3, &s[3]);
    kv_namespace(kv, 0, 0, longer, 4, &s[4]);
    for (uint32_t i = 0; i < ARRAY_LEN(s); i++)
        for (uint32_t k = 0; k < ARRAY_LEN(s); k++) {
            assert_int_equal(memcmp(s[i].self, s[k].self, 16) == 0, i == k);
            assert_int_equal(memcmp(s[i].cross, s[k].cross, 16) == 0, i == k);
            assert_true(memcmp(s[i].self, s[k].cross, 16));
        }
}

static void
only_computed_blocks_are_found(void **state) /* K-06 */
{
    (void)state;
    for (int by_release = 0; by_release < 2; by_release++) {
        struct kv_fixture *b = cache(8);

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
        cache_close(b);
    }
}

KV_TEST(blocks_are_evicted_in_release_order, cache(4)) /* K-07 */
{
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
}

KV_TEST(longest_partial_match_is_used,
        cache_of(10, .tokens_per_block = 8, .copy_partial = true)) /* K-08 */
{
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
}

KV_TEST(equal_prompts_share_only_after_the_first_is_computed, cache(12)) /* K-10 */
{
    for (uint32_t i = 0; i < 3; i++) {
        prompt_of(b, i, 0, 9, NULL);
        assert_int_equal(admit(b, i, 0), 0);
        assert_int_equal(b->slot[i].hit.n_tokens, 0);
        assert_memory_equal(b->slot[i].hit.next, b->slot[0].hit.next, 16);
    }
    for (uint32_t i = 0; i < 3; i++) start(b, i);
    assert_int_equal(n_free(b), 3);
    for (uint32_t i = 0; i < 3; i++) release(b, i);
    assert_int_equal(n_free(b), 12);
    prompt_of(b, 3, 0, 9, NULL);
    assert_int_equal(add(b, 3, 0), 8);
}

KV_TEST(without_copy_partial_only_leaves_are_taken_over, cache_of(8)) /* K-11 */
{
    prompt_of(b, 0, 0, 9, NULL);
    add(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 0, 2, TOKENS(50, 51));
    assert_int_equal(add(b, 0, 0), 0);
    prompt_of(b, 1, 0, 7, TOKENS(9, 9));
    assert_int_equal(add(b, 1, 0), 7);
}

struct tail_case {
    uint32_t n;
    token_id more[3];
    uint32_t pos;
    int second; /* its second block: 1 the seed's, 0 another */
};

static void
batch(uint32_t n_seed, const struct tail_case *m, uint32_t n, uint32_t entry)
{
    struct kv_fixture *b = cache(16);
    slice_id old, at[4];

    prompt_of(b, 0, 0, n_seed, NULL);
    add(b, 0, 0);
    old = kv_entry(b->kv, 0, 0, entry);
    gen(b, 0, 77);
    release(b, 0);
    for (uint32_t i = 0; i < n; i++) {
        prompt_of(b, i, 0, m[i].n, m[i].more);
        assert_int_equal(admit(b, i, 0), 0);
        assert_int_equal(b->slot[i].hit.n_tokens, m[i].pos);
    }
    for (uint32_t i = 0; i < n; i++) {
        start(b, i);
        at[i] = kv_entry(b->kv, i, 0, entry);
        if (m[i].pos > entry * 4) assert_int_equal(at[i] == old, m[i].second);
        for (uint32_t k = 0; k < i; k++)
            assert_true(at[i] != at[k] || (m[i].second && m[k].second));
        /* only a tail that is not taken over is copied */
        assert_int_equal(b->out.n_copies, m[i].pos % 4 && !m[i].second);
        if (b->out.n_copies) assert_int_equal(b->out.copy[0].n_tokens, m[i].pos % 4);
        if (b->out.n_copies) assert_int_equal(b->out.copy[0].from, old);
    }
    cache_close(b);
}

static void
last_slot_takes_over_a_tail_and_others_copy(void **state) /* B-01 .. B-06, B-08, B-09 */
{
    (void)state;
    batch(7, (struct tail_case[]){ { 5, { 10, -1 }, 5, 0 }, { 5, { 20, -1 }, 5, 1 } }, 2, 1);
    batch(9, (struct tail_case[]){ { 7, { 99, -1 }, 7, 0 }, { 9, { -1 }, 8, 1 } }, 2, 1);
    batch(9, (struct tail_case[]){ { 9, { -1 }, 8, 1 }, { 7, { 99, -1 }, 7, 0 } }, 2, 1);
    batch(9,
          (struct tail_case[]){
              { 7, { 98, -1 }, 7, 0 }, { 9, { -1 }, 8, 1 }, { 7, { 99, -1 }, 7, 0 } },
          3, 1);
    batch(9, (struct tail_case[]){ { 3, { 50, -1 }, 3, 0 }, { 2, { 60, 70, -1 }, 2, 0 } }, 2, 0);
    batch(9, (struct tail_case[]){ { 9, { -1 }, 8, 1 }, { 3, { 50, -1 }, 3, 0 } }, 2, 0);
    batch(7,
          (struct tail_case[]){
              { 5, { 97, -1 }, 5, 0 }, { 5, { 98, -1 }, 5, 0 }, { 5, { 99, -1 }, 5, 1 } },
          3, 1);
    batch(9, (struct tail_case[]){ { 9, { -1 }, 8, 1 }, { 0, { 500, 501, -1 }, 0, 0 } }, 2, 1);
}

KV_TEST(borrowed_tail_is_returned_for_the_next_blocks, cache(8)) /* B-07 */
{
    token_id more[31];

    prompt_of(b, 0, 0, 9, NULL);
    add(b, 0, 0);
    gen(b, 0, 9);
    release(b, 0);
    for (int i = 0; i < 30; i++) more[i] = 100 + i;
    more[30] = -1;
    prompt_of(b, 0, 0, 2, more);
    assert_int_equal(add(b, 0, 0), 2);
    assert_int_equal(n_free(b), 0);
}

KV_TEST(holding_a_block_keeps_its_children_in_the_tree, cache(6)) /* P-06 */
{
    prompt_of(b, 0, 0, 24, NULL), add(b, 0, 0);
    gen(b, 0, 24);
    release(b, 0);
    prompt_of(b, 0, 0, 5, NULL);
    assert_int_equal(admit(b, 0, 0), 0);
    assert_int_equal(n_free(b), 5);
    prompt_of(b, 1, 0, 13, NULL);
    assert_int_equal(admit(b, 1, 0), 0);
    assert_int_equal(n_free(b), 3);
    kv_drop(kv, 1);
    kv_drop(kv, 0);
    prompt_of(b, 0, 0, 24, NULL);
    assert_int_equal(add(b, 0, 0), 23);
}

/* Slots 0 and 1 fork and diverge; then slot 0 continues the tokens of slot 1, as a beam does. */
KV_TEST(reordered_slot_is_stored_after_its_new_tokens, cache(32))
{
    static const uint32_t slots[] = { 0, 1 };
    struct kv_need need;
    struct kv_hit hit;

    prompt_of(b, 0, 0, 4, NULL), add(b, 0, 12);
    need = kv_fork_need(kv, 16, 4, 1, /* beam= */ true);
    assert_int_equal(kv_reserve(kv, 1, &need), 0);
    b->out = empty_out(b);
    kv_fork(kv, 0, ++b->step, 0, 1, 4, 4, &b->out);
    prompt_of(b, 1, 0, 4, NULL);
    b->slot[1].cached = 4;
    for (token_id t = 10; t < 14; t++) gen_plus(b, 0, t);
    for (token_id t = 20; t < 24; t++) gen_plus(b, 1, t);
    store(b, 0, 8), store(b, 1, 8);
    kv_reorder(kv, 0, ++b->step, slots, (const uint8_t[]){ 1, 1 }, 2, 8, &b->out);
    memcpy(b->slot[0].token, b->slot[1].token, 8 * sizeof(token_id));
    for (token_id t = 30; t < 34; t++) gen_plus(b, 0, t);
    store(b, 0, 12);
    prompt_of(b, 2, 0, 4, TOKENS(10, 11, 12, 13, 30, 31, 32, 33, 99));
    kv_lookup(kv, &b->slot[2].text, &hit);
    assert_int_equal(hit.n_tokens, 8);
    prompt_of(b, 2, 0, 4, TOKENS(20, 21, 22, 23, 30, 31, 32, 33, 99));
    kv_lookup(kv, &b->slot[2].text, &hit);
    assert_int_equal(hit.n_tokens, 12);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_extends_another_block_by_block),
        cmocka_unit_test(extra_ids_distinguish_equal_tokens),
        cmocka_unit_test(different_salts_share_no_blocks),
        cmocka_unit_test(different_adapters_or_encoder_inputs_share_no_prefix),
        cmocka_unit_test(only_computed_blocks_are_found),
        cmocka_unit_test(blocks_are_evicted_in_release_order),
        cmocka_unit_test(longest_partial_match_is_used),
        cmocka_unit_test(equal_prompts_share_only_after_the_first_is_computed),
        cmocka_unit_test(without_copy_partial_only_leaves_are_taken_over),
        cmocka_unit_test(last_slot_takes_over_a_tail_and_others_copy),
        cmocka_unit_test(borrowed_tail_is_returned_for_the_next_blocks),
        cmocka_unit_test(holding_a_block_keeps_its_children_in_the_tree),
        cmocka_unit_test(reordered_slot_is_stored_after_its_new_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
