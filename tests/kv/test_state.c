/* test_state.c - recurrent state: live state, snapshots, hits and adoption; and attention sinks.
 * Scenarios R. */
#include "tests/kv/kv_fixture.h"

#include "worker/manifest/manifest.h"

enum { LAYERS = 3, INTERVAL = 16 };

/* A full group and a state group; interval 0: no snapshots. */
static struct kv_fixture *
hybrid(uint32_t interval, uint32_t n_slabs)
{
    return cache_of(0, .copy_partial = true, .arena_bytes = (uint64_t)n_slabs * 256,
                    .group = { group(KV_FULL, 0, 0), state_group(LAYERS, 256, interval) });
}

static uint32_t
states_held(const struct kv_fixture *b, uint32_t slot)
{
    uint32_t first;

    return kv_held(b->kv, slot, 1, &first) / LAYERS;
}

/* Asserts the number of copies of the last step, all before its work or all after it. */
static void
expect_copies(const struct kv_fixture *b, uint32_t n, bool after)
{
    assert_int_equal(b->out.n_copies, n);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(b->out.copy[i].after, after);
}

static void
snapshot_positions_are_intervals_and_the_last_prompt_block(void **state)
{
    struct kv_fixture *b = hybrid(INTERVAL, 200);

    (void)state;
    assert_int_equal(kv_border(b->kv, 0, 37), 16);
    assert_int_equal(kv_border(b->kv, 16, 37), 32);
    assert_int_equal(kv_border(b->kv, 32, 37), 36);
    assert_int_equal(kv_border(b->kv, 36, 37), 48);
    assert_int_equal(kv_border(b->kv, 32, 36),
                     48); /* not 36: the same prompt computes its last token */
    assert_int_equal(kv_border(b->kv, 48, 64), 60);
    cache_close(b);
    b = hybrid(0, 200);
    assert_int_equal(kv_border(b->kv, 0, 37), UINT32_MAX);
    cache_close(b);
}

KV_TEST(without_snapshots_a_sequence_holds_one_state, hybrid(0, 200)) /* */
{
    prompt_of(b, 0, 0, 37, NULL);
    assert_int_equal(add(b, 0, 20), 0);
    assert_int_equal(states_held(b, 0), 1);
    expect_copies(b, 0, false); /* position 0 starts with zeros */
    for (token_id t = 37; t < 57; t++) gen_plus(b, 0, t);
    assert_int_equal(states_held(b, 0), 1);
    release(b, 0);
    prompt_of(b, 0, 0, 37, NULL);
    assert_int_equal(add(b, 0, 0), 0); /* no hit */
}

static void
slot_holds_live_state_and_last_snapshots(void **state) /* */
{
    static const struct {
        uint32_t n, held;
    } row[] = { { 37, 4 }, { 36, 3 }, { 64, 4 }, { 16, 3 }, { 4, 1 }, { 5, 2 } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct kv_fixture *b = hybrid(INTERVAL, 300);

        prompt_of(b, 0, 0, row[i].n, NULL);
        add(b, 0, 40);
        assert_int_equal(states_held(b, 0), row[i].held);
        for (uint32_t k = 0; k < 40; k++) gen_plus(b, 0, 1);
        assert_in_range(states_held(b, 0), row[i].held, 1 + KV_SNAPSHOTS);
        cache_close(b);
    }
}

KV_TEST(snapshot_is_copied_after_the_step_that_ends_there, hybrid(INTERVAL, 200))
{
    prompt_of(b, 0, 0, 17, NULL); /* 16 and 1 */
    add(b, 0, 40);
    expect_copies(b, 0, false);
    for (token_id t = 17; t < 31; t++) gen_plus(b, 0, t);
    expect_copies(b, 0, false);
    gen_plus(b, 0, 31); /* position 31: 32 positions are written */
    expect_copies(b, LAYERS, true);
    for (uint32_t i = 0; i < LAYERS; i++) {
        assert_int_equal(b->out.copy[i].from, kv_entry(kv, 0, 1, i));
        assert_int_equal(b->out.copy[i].to, kv_entry(kv, 0, 1, 2 * LAYERS + i));
        assert_int_equal(b->out.copy[i].n_tokens, 0);
        assert_int_equal(b->edit[b->out.n_edits - LAYERS + i].pos, 32);
    }
}

KV_TEST(hit_ends_at_a_snapshot, hybrid(INTERVAL, 400)) /* */
{
    prompt_of(b, 0, 0, 40, NULL);
    add(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 0, 39, TOKENS(99));
    assert_int_equal(add(b, 0, 0), 36); /* the last block boundary of the prompt has a snapshot */
    prompt_of(b, 1, 0, 35, TOKENS(99, 98, 97, 96, 95));
    assert_int_equal(add(b, 1, 0), 32);
    prompt_of(b, 2, 0, 31, TOKENS(99, 98, 97, 96, 95));
    assert_int_equal(add(b, 2, 0), 16);
    prompt_of(b, 3, 0, 15, TOKENS(99, 98, 97, 96, 95));
    assert_int_equal(add(b, 3, 0), 0);
    prompt_of(b, 4, 0, 40, NULL);
    assert_int_equal(add(b, 4, 0), 36);
}

KV_TEST(live_state_is_never_shared, hybrid(INTERVAL, 400))
{
    prompt_of(b, 0, 0, 40, NULL);
    add(b, 0, 8);
    store(b, 0, 40);
    prompt_of(b, 1, 0, 40, NULL);
    assert_int_equal(add(b, 1, 8), 36);
    expect_copies(b, LAYERS, false);
    for (uint32_t i = 0; i < LAYERS; i++) {
        assert_int_not_equal(kv_entry(kv, 0, 1, i), kv_entry(kv, 1, 1, i));
        assert_int_equal(b->out.copy[i].to, kv_entry(kv, 1, 1, i));
        assert_int_equal(b->out.copy[i].from, kv_entry(kv, 1, 1, LAYERS + i));
        /* the third block of the other prompt */
        assert_int_equal(b->out.copy[i].from, kv_entry(kv, 0, 1, 3 * LAYERS + i));
    }
}

KV_TEST(snapshot_is_evicted_with_all_layers, hybrid(INTERVAL, 2 + 10 + 4 * LAYERS + 1))
{
    struct kv_stats stats;
    struct kv_hit hit;

    prompt_of(b, 0, 0, 40, NULL);
    add(b, 0, 0);
    release(b, 0);
    /* Its tenth block, which ends the prompt, is not full: 3 snapshots and 10 blocks are cached of
     * 22 that are there. One that needs 6 more than are free takes a snapshot apart. */
    prompt_of(b, 1, 1000, 24, NULL);
    assert_int_equal(add(b, 1, 0), 0);
    kv_stats(kv, 1, &stats);
    assert_true(stats.evicted > 0 && stats.evicted % LAYERS == 0);
    b->slot[0].text.n = 40;
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_true(hit.n_tokens == 0 || hit.n_tokens % 4 == 0);
    kv_drop(kv, 1);
    kv_check(kv);
}

KV_TEST(snapshot_is_evicted_with_its_prefix, hybrid(INTERVAL, 400))
{
    struct kv_hit hit;

    prompt_of(b, 0, 0, 33, NULL);
    add(b, 0, 0);
    release(b, 0);
    prompt_of(b, 0, 0, 33, NULL);
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_int_equal(hit.n_tokens, 32);
    assert_int_equal(hit.n_cached[1], LAYERS);
    assert_int_equal(hit.n_cached[0], 8);
}

KV_TEST(model_without_attention_caches_states_only,
        cache_of(0, .arena_bytes = 40 * 128,
                 .group = { state_group(LAYERS, 128, INTERVAL) })) /* X-10, with state */
{
    prompt_of(b, 0, 0, 200, NULL);
    assert_int_equal(add(b, 0, 20), 0);
    for (token_id t = 200; t < 220; t++) gen_plus(b, 0, t);
    release(b, 0);
    prompt_of(b, 0, 0, 230, NULL);
    assert_int_equal(add(b, 0, 0), 208); /* limited by its length only */
}

/* As hybrid(), with a host tier of n_host blocks. */
static struct kv_fixture *
hybrid_with_host(uint32_t n_slabs, uint32_t n_host)
{
    return cache_of(0, .copy_partial = true, .arena_bytes = (uint64_t)n_slabs * 256,
                    .host_bytes = n_host * UINT64_C(256),
                    .group = { group(KV_FULL, 0, 0), state_group(LAYERS, 256, INTERVAL) });
}

/* Computes and releases other prompts until no block of the first one is in the arena. */
static void
fill_arena(struct kv_fixture *b)
{
    for (uint32_t k = 1; k < 4; k++) {
        prompt_of(b, 1, 1000 * (token_id)k, 40, NULL);
        assert_int_equal(add(b, 1, 0), 0);
        release(b, 1);
    }
}

KV_TEST(evicted_snapshot_is_found_in_the_host_tier, hybrid_with_host(26, 64))
{
    struct kv_stats n;
    struct kv_hit hit;

    prompt_of(b, 0, 0, 34, NULL);
    add(b, 0, 0);
    release(b, 0);
    fill_arena(b);
    prompt_of(b, 0, 0, 34, NULL);
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_int_equal(hit.n_tokens, 32);
    assert_int_equal(hit.n_host[0], 8);
    assert_int_equal(hit.n_host[1], LAYERS);
    assert_int_equal(admit(b, 0, 0), 0);
    b->out = empty_out(b);
    b->out.step = ++b->step;
    kv_start(kv, 0, b->step, 0, &b->out);
    kv_fence(kv, 0, 0, b->step);
    kv_check(kv);
    /* the live state is a copy of the snapshot in the arena, which the step copies before */
    for (uint32_t i = 0; i < LAYERS; i++) {
        const struct kv_copy *last = &b->out.copy[b->out.n_copies - LAYERS + i];
        uint32_t k = 0;

        assert_int_equal(last->to, kv_entry(kv, 0, 1, i));
        assert_int_equal(last->from, kv_entry(kv, 0, 1, LAYERS + i));
        while (b->out.copy[k].from_tier != TIER_HOST || b->out.copy[k].group != 1 ||
               b->out.copy[k].to != last->from)
            assert_true(++k < b->out.n_copies);
    }
    kv_stats(kv, 1, &n);
    assert_int_equal(n.onboarded, LAYERS);
}

KV_TEST(snapshot_is_offloaded_whole_or_not_at_all, hybrid_with_host(26, LAYERS - 1))
{
    struct kv_stats n;

    prompt_of(b, 0, 0, 34, NULL);
    add(b, 0, 0);
    release(b, 0);
    fill_arena(b);
    kv_stats(kv, 1, &n);
    assert_int_equal(n.offloaded, 0);
    kv_stats(kv, 0, &n);
    assert_true(n.offloaded > 0);
}

KV_TEST(full_host_tier_evicts_a_snapshot_with_all_layers, hybrid_with_host(26, 2 * LAYERS + 1))
{
    struct kv_count n;
    struct kv_stats s;

    for (uint32_t round = 0; round < 3; round++) {
        prompt_of(b, 0, 0, 34, NULL);
        add(b, 0, 0);
        release(b, 0);
        fill_arena(b);
        kv_count_host(kv, &n);
        assert_int_equal(n.used, 0);
    }
    kv_stats(kv, 1, &s);
    assert_true(s.host_evicted > 0 && s.host_evicted % LAYERS == 0);
}

static void
adopted_slot_resumes_at_the_last_finished_snapshot(void **state)
{
    static const uint64_t fingerprint[2], id[2];
    struct kv_fixture *b = hybrid(INTERVAL, 400);
    struct manifest_owner owner = { .slot = 0, .id = 7, .n_tokens = 37 };
    struct manifest_found found[FIXTURE_SLOTS];
    struct manifest m;
    void *base = calloc(1, manifest_bytes(&b->c));
    slice_id *tables, was[LAYERS];
    struct kv_need need;
    uint32_t resume;
    struct manifest_adopted adopted;
    struct kv *old = b->kv;
    struct err e;

    (void)state;
    manifest_make(&m, base, &b->c, fingerprint, id);
    tables = malloc(m.h.row_bytes);
    prompt_of(b, 0, 0, 37, NULL);
    manifest_hash(b->slot[0].token, 37, owner.tokens_hash);
    manifest_hash(NULL, 0, owner.source_hash);
    assert_int_equal(admit(b, 0, 20), 0);
    start(b, 0);
    /* Writes the edits of all steps; 34 positions are committed. */
    b->out.n_edits = 0;
    kv_rows(b->kv, 0, &b->out);
    manifest_launch(&m, b->edit, b->out.n_edits, &owner, 1);
    manifest_commit(&m, 0, 34);
    for (uint32_t i = 0; i < LAYERS; i++) was[i] = kv_entry(old, 0, 1, 2 * LAYERS + i);

    memset(b->mem, 0, kv_bytes(&b->c));
    b->kv = kv_init(b->mem, &b->c, &e);
    adopted = manifest_adopt(&m, b->kv, true, found, tables);
    assert_int_equal(adopted.rows, 1);
    assert_int_equal(adopted.no_rows, 0);
    kv_check(b->kv);
    assert_int_equal(
        manifest_claim(found, FIXTURE_SLOTS, 7, 0, b->slot[0].token, 37, NULL, 0, &resume), 0);
    assert_int_equal(resume, 32);
    need = kv_need(b->kv, 57, 0, 37);
    assert_int_equal(kv_resume(b->kv, 0, 33, &need), -ENODATA);
    assert_int_equal(kv_resume(b->kv, 0, 32, &need), 0);
    b->out.n_edits = b->out.n_copies = 0;
    kv_start(b->kv, 0, ++b->step, 0, &b->out);
    kv_fence(b->kv, 0, 0, b->step);
    kv_check(b->kv);
    expect_copies(b, LAYERS, false);
    for (uint32_t i = 0; i < LAYERS; i++) {
        assert_int_equal(b->out.copy[i].from, was[i]);
        assert_int_equal(b->out.copy[i].to, kv_entry(b->kv, 0, 1, i));
    }
    manifest_launch(&m, b->edit, b->out.n_edits, NULL, 0);
    manifest_commit(&m, 0, 15); /* no snapshot: the replacement computes all */
    memset(b->mem, 0, kv_bytes(&b->c));
    b->kv = kv_init(b->mem, &b->c, &e);
    adopted = manifest_adopt(&m, b->kv, true, found, tables);
    assert_int_equal(adopted.rows, 0);
    assert_int_equal(adopted.no_rows, 0);
    cache_close(b);
    free(tables);
    free(base);
}

/* Returns the cached positions that the replacement finds of a 34-token prompt; *n_host: how many
 * of its host blocks hold a snapshot. */
static uint32_t
replace_worker(struct kv_fixture *b, struct manifest *m, bool host, uint32_t *n_host,
               struct manifest_adopted *adopted)
{
    struct manifest_found found[FIXTURE_SLOTS];
    slice_id *tables = malloc(m->h.row_bytes);
    struct kv_hit hit;
    struct err e;

    memset(b->mem, 0, kv_bytes(&b->c));
    b->kv = kv_init(b->mem, &b->c, &e);
    *adopted = manifest_adopt(m, b->kv, host, found, tables);
    kv_check(b->kv);
    free(tables);
    prompt_of(b, 0, 0, 34, NULL);
    kv_lookup(b->kv, &b->slot[0].text, &hit);
    *n_host = hit.n_host[1];
    return hit.n_tokens;
}

/* Returns the first word of the manifest's nodes that has a host block of a snapshot. */
static _Atomic uint32_t *
snapshot_word(const struct manifest *m)
{
    for (uint32_t i = 1; i < m->h.n_nodes; i++) {
        struct manifest_node *n = (void *)(m->base + m->h.node_at + (size_t)i * m->h.node_bytes);
        _Atomic uint32_t *place = (void *)(n + 1);

        /* block and host block of group 0; block and host blocks of group 1 */
        if (n->live && place[3]) return &place[3];
    }
    fail_msg("no snapshot is in the host tier");
    return NULL;
}

static void
replacement_finds_snapshots_in_the_host_tier(void **state)
{
    static const uint64_t fingerprint[2], id[2];
    struct kv_fixture *b = hybrid_with_host(26, 64);
    void *base = calloc(1, manifest_bytes(&b->c)), *copy;
    struct manifest_adopted adopted;
    struct manifest m;
    _Atomic uint32_t *word;
    uint32_t n_host;

    (void)state;
    manifest_make(&m, base, &b->c, fingerprint, id);
    prompt_of(b, 0, 0, 34, NULL);
    add(b, 0, 0);
    release(b, 0);
    fill_arena(b);
    manifest_put_nodes(&m, b->kv);
    copy = malloc(m.h.bytes);
    memcpy(copy, base, m.h.bytes);
    for (int death = 0; death < 2; death++) {
        assert_int_equal(replace_worker(b, &m, true, &n_host, &adopted), 32);
        assert_int_equal(n_host, LAYERS);
        assert_int_equal(adopted.no_nodes, 0);
    }
    assert_int_equal(add(b, 0, 0), 32);
    kv_drop(b->kv, 0);
    memcpy(base, copy, m.h.bytes);
    word = snapshot_word(&m);
    word[1] = word[0]; /* one host block for two layers */
    replace_worker(b, &m, true, &n_host, &adopted);
    assert_int_equal(adopted.no_nodes, 1);
    memcpy(base, copy, m.h.bytes);
    word[LAYERS - 1] = 0; /* a layer is missing */
    replace_worker(b, &m, true, &n_host, &adopted);
    assert_int_equal(adopted.no_nodes, 1);
    memcpy(base, copy, m.h.bytes); /* the host memory is lost */
    assert_true(replace_worker(b, &m, false, &n_host, &adopted) < 32);
    assert_int_equal(n_host + adopted.no_nodes, 0);
    cache_close(b);
    free(copy);
    free(base);
}

KV_TEST(beams_have_private_states, hybrid(INTERVAL, 400))
{
    static const uint32_t slot[] = { 0, 1, 2 };
    static const uint8_t parent[] = { 1, 1, 0 };
    struct kv_need need;
    slice_id before[3];

    prompt_of(b, 0, 0, 10, NULL);
    need = kv_need(kv, 30, 0, 10);
    assert_int_equal(kv_reserve(kv, 0, &need), 0);
    start(b, 0);
    need = kv_fork_need(kv, 30, 10, 1, /* beam= */ true);
    for (uint32_t i = 1; i < 3; i++) assert_int_equal(kv_reserve(kv, i, &need), 0);
    b->out.n_edits = b->out.n_copies = 0;
    for (uint32_t i = 1; i < 3; i++) kv_fork(kv, 0, b->step + 1, 0, i, 10, 10, &b->out);
    kv_check(kv);
    assert_int_equal(b->out.n_copies, 2 * (1 + LAYERS)); /* the written block and the states */
    for (uint32_t i = 0; i < 3; i++) before[i] = kv_entry(kv, i, 1, 0);
    b->out.n_edits = b->out.n_copies = 0;
    kv_reorder(kv, 0, b->step + 2, slot, parent, 3, 10, &b->out);
    kv_check(kv);
    assert_int_equal(kv_entry(kv, 0, 1, 0),
                     before[2]); /* a copy, in the block of slot 2, which no slot continues */
    assert_int_equal(kv_entry(kv, 1, 1, 0), before[1]); /* continues itself */
    assert_int_equal(kv_entry(kv, 2, 1, 0), before[0]);
    assert_int_equal(b->out.n_copies, 1 + LAYERS);
    kv_done(kv, 0, b->step += 2);
}

static struct kv_fixture *
sinking(uint32_t sinks, uint32_t max_blocks)
{
    struct kv_group window = group(KV_WINDOW, 8, max_blocks);

    window.sinks = sinks;
    return cache_of(0, .copy_partial = true, .group = { window }, .arena_bytes = 100 * 256);
}

KV_TEST(sinks_stay_when_the_window_moves, sinking(5, 0)) /* 2 blocks */
{
    uint32_t first;

    prompt_of(b, 0, 0, 12, NULL);
    add(b, 0, 60);
    for (token_id t = 12; t < 60; t++) gen_plus(b, 0, t);
    for (uint32_t i = 0; i < 15; i++)
        assert_int_equal(kv_entry(kv, 0, 0, i) != SLICE_NONE, i < 2 || i >= 13);
    assert_int_equal(kv_held(kv, 0, 0, &first), 4);
    release_at(b, 0, 60);
    prompt_of(b, 0, 0, 61, NULL);
    assert_int_equal(add(b, 0, 0), 60); /* sinks and window are cached */
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(kv_entry(kv, 0, 0, i) != SLICE_NONE, i < 2 || i >= 13);
}

KV_TEST(window_hit_needs_its_sinks, sinking(4, 8))
{
    struct kv_hit hit;

    prompt_of(b, 0, 0, 20, NULL);
    add(b, 0, 0);
    release(b, 0);
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_int_equal(hit.n_tokens, 19);
    prompt_of(b, 1, 1000, 16, NULL); /* evicts the block that was released first */
    add(b, 1, 0);
    kv_lookup(kv, &b->slot[0].text, &hit);
    assert_int_equal(hit.n_tokens, 0);
}

int
main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshot_positions_are_intervals_and_the_last_prompt_block),
        cmocka_unit_test(without_snapshots_a_sequence_holds_one_state),
        cmocka_unit_test(slot_holds_live_state_and_last_snapshots),
        cmocka_unit_test(snapshot_is_copied_after_the_step_that_ends_there),
        cmocka_unit_test(hit_ends_at_a_snapshot),
        cmocka_unit_test(live_state_is_never_shared),
        cmocka_unit_test(snapshot_is_evicted_with_all_layers),
        cmocka_unit_test(snapshot_is_evicted_with_its_prefix),
        cmocka_unit_test(model_without_attention_caches_states_only),
        cmocka_unit_test(evicted_snapshot_is_found_in_the_host_tier),
        cmocka_unit_test(snapshot_is_offloaded_whole_or_not_at_all),
        cmocka_unit_test(full_host_tier_evicts_a_snapshot_with_all_layers),
        cmocka_unit_test(adopted_slot_resumes_at_the_last_finished_snapshot),
        cmocka_unit_test(replacement_finds_snapshots_in_the_host_tier),
        cmocka_unit_test(beams_have_private_states),
        cmocka_unit_test(sinks_stay_when_the_window_moves),
        cmocka_unit_test(window_hit_needs_its_sinks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
