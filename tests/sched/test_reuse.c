/* test_reuse.c - prompts with common prefixes: cached, in flight, and referenced while needed.
 *
 * Ids (C-25 ...) name the scenario: blocks of 10 tokens; an iteration is a step planned and
 * committed at once.
 */
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "include/lagan_wire.h"

enum { MAX = 8 };

static struct sched_fixture r;
static struct seq *q[MAX];
static uint32_t n_seqs;

static void
begin(uint32_t blocks, uint32_t max_seqs)
{
    run_defaults(&r);
    r.c.reuse = r.c.copy_partial = true;
    r.c.group[0].max_blocks = blocks;
    r.l.max_seqs = max_seqs;
    n_seqs = 0;
}

/* A request that shares its first `alike` positions with the others. */
static struct seq *
request(uint32_t alike, uint32_t n_prompt, uint32_t max_new, uint32_t n_source)
{
    q[n_seqs] = seq_new(run_ref(n_seqs, 1, alike), n_prompt, max_new, n_source);
    return q[n_seqs++];
}

static unsigned
step(void)
{
    const struct batch *b = run_plan(&r, 0);
    unsigned who = 0;

    for (uint32_t i = 0; i < n_seqs && b; i++)
        if (q[i]->state > SEQ_WAITING && in_batch(b, q[i])) who |= 1u << i;
    scheduler_check(r.s);
    if (b) run_commit(&r, 0);
    return who;
}

static void
cached_prefix_is_not_computed_again(void **state)
{
    const struct batch *b;

    (void)state;
    begin(20, 2);
    run_open(&r);
    run_add(&r, request(100, 35, 5, 0));
    while (step()) {
    }
    assert_int_equal(q[0]->n_cached, 0);
    run_add(&r, request(35, 45, 5, 0)); /* differs from 35 on; 39 are cached: 3 blocks and a part */
    b = run_step(&r, 0);
    assert_int_equal(b->segment[0].first_pos, 35);
    assert_int_equal(b->segment[0].n_tokens, 10);
    assert_int_equal(q[1]->n_cached, 35);
    run_add(&r, request(100, 35, 5, 0));
    assert_int_equal(run_step(&r, 0)->n_segments, 2);
    assert_int_equal(q[2]->n_cached, 34); /* the last token is computed for its logits */
    run_cancel(&r, q, n_seqs);
}

static void
equal_prompts_wait_until_the_first_is_computed(void **state) /* C-23 */
{
    (void)state;
    for (int policy = POLICY_NO_EVICT; policy <= POLICY_MAX_UTILIZATION; policy++) {
        begin(20, 3);
        r.l.policy = (enum policy)policy;
        run_open(&r);
        for (int i = 0; i < 3; i++) run_add(&r, request(21, 21, 2, 0));
        assert_int_equal(step(), 1);
        assert_int_equal(step(), 7);
        assert_int_equal(q[1]->n_cached, 20);
        assert_int_equal(q[2]->n_cached, 20);
        assert_int_equal(step(), 6);
        assert_int_equal(step(), 0);
        run_cancel(&r, q, n_seqs);
    }
}

static void
static_batch_does_not_wait_for_prefixes_in_flight(void **state) /* C-24 */
{
    (void)state;
    begin(20, 3);
    r.l.policy = POLICY_STATIC;
    run_open(&r);
    for (int i = 0; i < 3; i++) run_add(&r, request(21, 21, 2, 0));
    assert_int_equal(step(), 7);
    assert_int_equal(step(), 7);
    assert_int_equal(step(), 0);
    run_cancel(&r, q, n_seqs);
}

static void
prompt_waits_for_every_block_that_it_can_share(void **state) /* C-25: an iteration earlier */
{
    (void)state;
    begin(20, 2);
    r.l.max_tokens = r.l.chunk_unit = 20;
    run_open(&r);
    run_add(&r, request(50, 50, 40, 0));
    run_add(&r, request(50, 50, 40, 0));
    for (int it = 0; it < 2; it++) assert_int_equal(step(), 1);
    assert_int_equal(step(), 3); /* the last block has the token that is always computed */
    assert_int_equal(q[1]->n_cached, 40);
    assert_int_equal(q[1]->n_planned, 50);
    for (int it = 3; it < 42; it++) assert_int_equal(step(), 3);
    assert_int_equal(step(), 0);
    run_cancel(&r, q, n_seqs);
}

static void
prompt_waits_only_for_the_common_prefix(void **state)
{
    (void)state;
    begin(40, 2);
    r.l.max_tokens = 40;
    r.l.max_chunk = r.l.chunk_unit = 20;
    run_open(&r);
    run_add(&r, request(200, 100, 5, 0));
    run_add(&r, request(25, 90, 5, 0)); /* two blocks of nine are common */
    assert_int_equal(step(), 1);
    assert_int_equal(step(), 3);
    assert_true(q[1]->n_cached >= 20 && q[1]->n_cached < 30);
    run_cancel(&r, q, n_seqs);
}

static void
prompt_never_waits_for_a_suspended_or_ended_sequence(void **state)
{
    (void)state;
    begin(40, 3);
    r.l.max_tokens = r.l.chunk_unit = 20;
    run_open(&r);
    for (int i = 0; i < 3; i++) run_add(&r, request(100, 100, 5, 0));
    assert_int_equal(step(), 1);
    scheduler_suspend(r.s, q[0]->id, true);
    assert_int_equal(step(), 2);
    assert_int_equal(q[1]->n_cached, 20);
    assert_int_equal(step(), 2); /* the third waits for the second now */
    scheduler_cancel(r.s, q[1]->id, LAGAN_E_CANCELLED);
    assert_int_equal(step(), 4);
    assert_true(q[2]->n_cached >= 60);
    run_cancel(&r, q, n_seqs);
}

/* A lower priority may be overtaken without limit. */
static void
prompt_never_waits_for_a_lower_priority_prefix(void **state)
{
    (void)state;
    begin(40, 3);
    r.l.max_tokens = r.l.chunk_unit = 20;
    run_open(&r);
    request(100, 100, 5, 0)->priority = 0;
    run_add(&r, q[0]);
    assert_int_equal(step(), 1);
    request(100, 100, 5, 0)->priority = 1;
    run_add(&r, q[1]);
    assert_int_equal(step(), 2);
    assert_int_equal(q[1]->n_cached, 20);
    for (int i = 0; i < 3; i++) assert_int_equal(step(), 2);
    run_cancel(&r, q, n_seqs);
}

static void
request_with_prompt_logprobs_uses_no_cached_prefix(void **state)
{
    (void)state;
    begin(20, 2);
    run_open(&r);
    run_add(&r, request(100, 35, 1, 0));
    while (step()) {
    }
    request(100, 35, 1, 0)->prompt_logprobs = true;
    run_add(&r, q[1]);
    assert_int_equal(run_step(&r, 0)->segment[0].n_tokens, 35);
    run_cancel(&r, q, n_seqs);
}

static void
salt_and_adapter_share_nothing(void **state)
{
    (void)state;
    begin(40, 4);
    run_open(&r);
    for (int i = 0; i < 4; i++) {
        request(100, 35, 1, 0)->salt = i & 1;
        q[i]->lora = (uint64_t)i >> 1;
        run_add(&r, q[i]);
    }
    assert_int_equal(step(), 15); /* nor do they wait for each other */
    for (int i = 0; i < 4; i++) assert_int_equal(q[i]->n_cached, 0);
    run_cancel(&r, q, n_seqs);
}

static void
preempted_sequence_reuses_its_cached_blocks(void **state) /* C-07, with reuse */
{
    uint32_t rows = 0;

    (void)state;
    begin(10, 2);
    r.l.policy = POLICY_MAX_UTILIZATION;
    run_open(&r);
    run_add(&r, request(0, 10, 60, 0));
    run_add(&r, request(0, 10, 80, 0));
    for (const struct batch *b; (b = run_step(&r, 0));)
        for (uint32_t i = 0; i < b->n_segments; i++)
            if (scheduler_seq_at(r.s, b->segment[i].slot) == q[1] &&
                (b->segment[i].flags & SEGMENT_FIRST_CHUNK))
                rows += b->segment[i].n_tokens;
    assert_int_equal(q[1]->n_preemptions, 1);
    assert_int_equal(q[1]->n_cached, 0);            /* none of its prompt was cached */
    assert_true(rows < 10 + (q[1]->n_prompt - 10)); /* its prompt, and less than all it had */
    assert_int_equal(q[1]->reason, LAGAN_FINISH_LENGTH);
    run_cancel(&r, q, n_seqs);
}

static void
open_encoder(uint32_t max_seqs)
{
    begin(40, max_seqs);
    r.c.n_groups = 2;
    r.c.group[1] = run_group(KV_CROSS, 0, 128, 0);
    r.l.n_enc_layers = 4;
    r.l.max_enc_tokens = 1000;
}

static void
resumed_sequence_waits_for_the_host_tier_alone(void **state)
{
    (void)state;
    for (int policy = POLICY_NO_EVICT; policy <= POLICY_MAX_UTILIZATION; policy++) {
        begin(8, 2);
        r.l.policy = (enum policy)policy;
        r.c.host_bytes = 1 << 20;
        run_open(&r);
        run_add(&r, request(100, 35, 5, 0));
        while (step()) {
        }
        q[n_seqs] = seq_new(1000, 75, 5, 0); /* uses all blocks: the cached ones are offloaded */
        run_add(&r, q[n_seqs++]);
        while (step()) {
        }
        kv_host_tier_away(r.kv);
        request(100, 35, 5, 0)->from_previous_worker = true;
        run_add(&r, q[2]);
        assert_int_equal(step(), 0);
        run_add(&r, request(100, 35, 5, 0)); /* a new request: it does not wait */
        assert_int_equal(step(), 8);
        assert_int_equal(q[3]->n_cached, 0);
        assert_int_equal(step(), 12); /* now the prefix is on the device too */
        assert_int_equal(q[2]->n_cached, 30);
        while (step()) {
        }
        q[n_seqs] = seq_new(2000, 75, 5, 0);
        kv_host_tier_came(r.kv, /* contents_valid= */ true);
        run_add(&r, q[n_seqs++]);
        while (step()) {
        }
        kv_host_tier_away(r.kv);
        request(100, 35, 5, 0)->from_previous_worker = true;
        run_add(&r, q[5]);
        assert_int_equal(step(), 0);
        kv_host_tier_came(r.kv, /* contents_valid= */ policy == POLICY_NO_EVICT);
        assert_int_equal(step(), 32);
        assert_int_equal(q[5]->n_cached, policy == POLICY_NO_EVICT ? 30 : 0);
        run_cancel(&r, q, n_seqs);
    }
}

static struct seq *
unlike(uint32_t i)
{
    return q[n_seqs++] = seq_new((token_id)(1500 * i), 1005, 2, 0);
}

static void
many_prompts_are_onboarded_in_one_step(void **state)
{
    struct kv_stats n;

    (void)state;
    begin(700, 6);
    r.c.group[0].max_entries = 110;
    r.l.max_len = 1100;
    r.c.host_bytes = 1 << 20;
    run_open(&r);
    for (uint32_t i = 0; i < 16; i++) { /* the last 7 evict the first to the host tier */
        n_seqs = 0;
        run_add(&r, unlike(i));
        while (step()) {
        }
    }
    n_seqs = 0;
    for (uint32_t i = 0; i < 6; i++) run_add(&r, unlike(i));
    assert_int_equal(step(), 63);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(q[i]->n_cached, 1000);
    kv_stats(r.kv, 0, &n);
    assert_int_equal(n.onboarded, 600);
    run_cancel(&r, q, n_seqs);
}

static void
cached_encoder_input_is_not_encoded(void **state) /* G3 */
{
    const struct batch *b;

    (void)state;
    for (int split = 0; split < 2; split++) {
        open_encoder(2);
        if (split) {
            r.c.n_lanes = r.l.n_lanes = 2;
            r.l.lane_work[0] = WORK_PREFILL | WORK_DECODE;
            r.l.lane_work[1] = WORK_ENCODER;
        }
        run_open(&r);
        run_add(&r, request(0, 1, 3, 15));
        while (run_step(&r, 0) || (split && run_step(&r, 1))) {
        }
        run_add(&r, request(0, 1, 3, 15));
        b = run_step(&r, 0);
        if (split) {
            assert_null(b); /* the encoder's lane finds the cross KV */
            assert_null(run_step(&r, 1));
            assert_int_equal(scheduler_wake(r.s), 0);
            b = run_step(&r, 0);
        }
        assert_non_null(b);
        assert_int_equal(b->n_encode, 0);
        assert_int_equal(b->segment[0].enc_tokens, 0);
        assert_int_equal(b->segment[0].cross_tokens, 15);
        run_add(&r, request(0, 1, 3, 16)); /* longer: a different encoder input */
        assert_int_equal((split ? run_step(&r, 1) : run_step(&r, 0))->n_encode, 1);
        run_cancel(&r, q, n_seqs);
    }
}

static void
preempted_sample_finds_no_blocks_of_another_salt(void **state)
{
    struct seq *first[3], *s;

    (void)state;
    begin(16, 8);
    r.l.policy = POLICY_MAX_UTILIZATION;
    run_open(&r);
    for (uint32_t i = 0; i < 3; i++) {
        first[i] = seq_group_of(run_ref(i, 1, 100), 2, /* beams= */ false, 25, 30, 0);
        first[i]->salt = first[i]->next_member->salt = i;
        run_add(&r, first[i]);
    }
    while (run_step(&r, 0)) scheduler_check(r.s);
    assert_true(scheduler_counts(r.s).preemptions > 2);
    for (uint32_t i = 0; i < 6; i++) {
        s = scheduler_reap(r.s);
        assert_non_null(s);
        assert_int_equal(s->reason, LAGAN_FINISH_LENGTH);
        run_check_tokens(s);
        seq_free(s);
    }
    run_cancel(&r, q, n_seqs);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_prefix_is_not_computed_again),
        cmocka_unit_test(equal_prompts_wait_until_the_first_is_computed),
        cmocka_unit_test(static_batch_does_not_wait_for_prefixes_in_flight),
        cmocka_unit_test(prompt_waits_for_every_block_that_it_can_share),
        cmocka_unit_test(prompt_waits_only_for_the_common_prefix),
        cmocka_unit_test(prompt_never_waits_for_a_suspended_or_ended_sequence),
        cmocka_unit_test(prompt_never_waits_for_a_lower_priority_prefix),
        cmocka_unit_test(request_with_prompt_logprobs_uses_no_cached_prefix),
        cmocka_unit_test(salt_and_adapter_share_nothing),
        cmocka_unit_test(preempted_sequence_reuses_its_cached_blocks),
        cmocka_unit_test(resumed_sequence_waits_for_the_host_tier_alone),
        cmocka_unit_test(many_prompts_are_onboarded_in_one_step),
        cmocka_unit_test(cached_encoder_input_is_not_encoded),
        cmocka_unit_test(preempted_sample_finds_no_blocks_of_another_salt),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
