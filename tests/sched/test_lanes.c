/* test_lanes.c - prefill and decode on two lanes (E): changes of lane, waits, no stalls. */
#include "base/clock.h"
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "include/lagan_wire.h"
#include "worker/partition/partition_choose.h"

static struct sched_fixture r;

static void
split(void)
{
    run_defaults(&r);
    r.c.n_lanes = r.l.n_lanes = 2;
    r.l.lane_work[0] = WORK_ENCODER | WORK_PREFILL;
    r.l.lane_work[1] = WORK_DECODE;
    r.l.max_tokens = 40;
    r.l.chunk_unit = 10;
}

static void
slot_changes_lanes_after_its_last_chunk(void **state) /* E1, D3 */
{
    struct seq *q = seq_new(1, 50, 5, 0);
    const struct batch *b;

    (void)state;
    split();
    run_open_with(&r, &q, 1);
    assert_null(run_plan(&r, 1));
    assert_non_null(run_plan(&r, 0));
    assert_null(run_plan(&r, 1)); /* its prompt is not complete */
    b = run_plan(&r, 0);
    assert_int_equal(b->segment[0].n_tokens, 10);
    b = run_plan(&r, 1); /* launched while the last chunk runs */
    assert_non_null(b);
    assert_int_equal(b->token[0], TOKEN_FROM_LAST);
    assert_int_equal(b->n_waits, 1);
    assert_int_equal(b->wait[0].lane, 0);
    assert_int_equal(b->wait[0].step, 2);
    assert_null(run_plan(&r, 0)); /* decode is not its work */
    run_finish(&r, &q, 1);
}

static void
decode_never_waits_for_another_sequences_prompt(void **state)
{
    struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 40, 5, 0) };
    const struct batch *b;

    (void)state;
    split();
    run_open_with(&r, q, 1);
    run_step(&r, 0);
    run_step(&r, 1);
    run_add(&r, q[1]);
    assert_non_null(run_plan(&r, 0)); /* the whole prompt, in flight */
    b = run_plan(&r, 1);
    assert_int_equal(b->n_segments, 1); /* q[0] alone */
    assert_int_equal(b->n_waits, 0);
    run_commit(&r, 0);
    b = run_plan(&r, 1);
    assert_int_equal(b->n_segments, 2);
    assert_int_equal(b->n_waits, 0);
    run_finish(&r, q, 2);
}

static void
decoder_waits_for_an_encoder_on_another_lane(void **state)
{
    struct seq *q = seq_new(1, 1, 5, 30);
    const struct batch *b;

    (void)state;
    split();
    r.c.n_groups = 2;
    r.c.group[1] = run_group(KV_CROSS, 0, 128, 0);
    r.l.n_enc_layers = 4;
    r.l.enc_layers = 2;
    r.l.max_enc_tokens = 64;
    r.l.lane_work[0] = WORK_ENCODER;
    r.l.lane_work[1] = WORK_PREFILL | WORK_DECODE;
    run_open_with(&r, &q, 1);
    assert_non_null(run_plan(&r, 0));
    assert_null(run_plan(&r, 1)); /* half of the encoder's layers */
    assert_non_null(run_plan(&r, 0));
    b = run_plan(&r, 1);
    assert_int_equal(b->segment[0].flags, SEGMENT_FIRST_CHUNK | SEGMENT_SAMPLE);
    assert_int_equal(b->n_waits, 1);
    assert_int_equal(b->wait[0].lane, 0);
    assert_int_equal(b->wait[0].step, 2);
    run_finish(&r, &q, 1);
}

static void
prefill_waits_for_blocks_and_resumes_when_one_is_free(void **state) /* D-06 */
{
    struct seq *q[3] = { seq_new(1, 10, 30, 0), seq_new(2, 10, 30, 0), seq_new(3, 10, 10, 0) };

    (void)state;
    split();
    r.c.group[0].max_blocks = 8; /* exactly for the first two */
    run_open_with(&r, q, 2);
    run_step(&r, 0);
    run_add(&r, q[2]);
    for (int i = 0; i < 29; i++) {
        assert_null(run_plan(&r, 0)); /* no step before a commit */
        assert_non_null(run_step(&r, 1));
    }
    assert_non_null(run_plan(&r, 0));
    run_finish(&r, q, 3);
}

/* A window of 5 in blocks of 2. The arena has 4 blocks, too few to keep the window of a step in
 * flight: step 6 frees the block of positions 0 and 1, which step 5 reads. */
static void
prefill_waits_for_the_step_that_reads_a_trimmed_block(void **state)
{
    struct seq *q[3] = { seq_new(1, 1, 20, 0), seq_new(2, 1, 1, 0), seq_new(3, 1, 1, 0) };
    const struct batch *b;
    uint32_t first;

    (void)state;
    split();
    r.l.chunk_unit = 0;
    r.c.tokens_per_block = 2;
    r.c.group[0] = run_group(KV_WINDOW, 5, 128, 0);
    r.c.arena_bytes = 5 * kv_block_bytes(&r.c.group[0]);
    run_open_with(&r, q, 1);
    run_step(&r, 0);
    for (uint32_t step = 1; step < 5; step++) run_step(&r, 1);
    run_add(&r, q[1]); /* uses the fourth block and frees it: step 6 takes that one */
    run_step(&r, 0);
    run_plan(&r, 1);
    kv_held(r.kv, q[0]->slot, 0, &first);
    assert_int_equal(first, 0);
    run_plan(&r, 1);
    kv_held(r.kv, q[0]->slot, 0, &first);
    run_add(&r, q[2]);
    b = run_plan(&r, 0); /* takes the block that step 6 has freed */
    assert_non_null(b);
    assert_int_equal(b->n_waits, 1);
    assert_int_equal(b->wait[0].lane, 1);
    assert_int_equal(b->wait[0].step, 5);
    run_finish(&r, q, 3);
}

static void
request_of_one_token_never_uses_the_decode_lane(void **state)
{
    struct seq *q = seq_new(1, 10, 1, 0);

    (void)state;
    split();
    run_open_with(&r, &q, 1);
    assert_non_null(run_plan(&r, 0));
    assert_null(run_plan(&r, 1));
    run_commit(&r, 0);
    assert_ptr_equal(scheduler_reap(r.s), q);
    run_end(&r, &q, 1);
}

static void
slot_cancelled_between_two_lanes_leaves_both(void **state)
{
    struct seq *q = seq_new(1, 10, 9, 0);

    (void)state;
    split();
    run_open_with(&r, &q, 1);
    run_plan(&r, 0);
    run_plan(&r, 1);
    scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED);
    run_commit(&r, 0);
    assert_null(scheduler_reap(r.s));
    scheduler_check(r.s);
    run_commit(&r, 1);
    run_end(&r, &q, 1);
}

static void
finished_lane_names_the_lane_to_commit_first(void **state)
{
    struct seq *q = seq_new(1, 10, 9, 0);
    const struct batch *b;

    (void)state;
    split();
    run_open_with(&r, &q, 1);
    run_plan(&r, 0);
    b = run_plan(&r, 1);
    assert_int_equal(scheduler_commit_lane(r.s, b), 0);
    run_commit(&r, 0);
    assert_int_equal(scheduler_commit_lane(r.s, b), 1);
    run_finish(&r, &q, 1);
}

static void
many_prompts_pass_through_both_lanes(
    void **state) /* D-08: the device checks every token and block */
{
    struct seq *q[20];

    (void)state;
    split();
    r.l.max_seqs = 5;
    r.c.n_groups = 2;
    r.c.group[0].max_blocks = 30;
    r.c.group[1] = run_group(KV_WINDOW, 13, 384, 0);
    run_open(&r);
    for (int i = 0; i < 20; i++) {
        q[i] = seq_new((req_id)i, 1 + 37 * (uint32_t)i % 90, 1 + (uint32_t)i, 0);
        run_add(&r, q[i]);
    }
    run_finish(&r, q, 20);
}

static void
prefill_lane_has_its_own_limits(void **state) /* split.context_max_tokens, context_max_seqs */
{
    struct seq *q[4];
    const struct batch *b;

    (void)state;
    split();
    r.l.lane_tokens[0] = 30;
    r.l.lane_seqs[0] = 2;
    run_open(&r);
    for (int i = 0; i < 4; i++) run_add(&r, q[i] = seq_new(1 + (req_id)i, i == 3 ? 60 : 10, 5, 0));
    b = run_plan(&r, 0);
    assert_int_equal(b->n_segments, 2); /* of 3 that fit into 40 tokens, and into 30 */
    run_commit(&r, 0);
    b = run_plan(&r, 0);
    assert_int_equal(b->n_segments, 2);
    assert_int_equal(b->n_tokens, 30);
    run_finish(&r, q, 4);
}

/* On partition 0 lane 0 does all work from the moment when no prefill step is in flight; until then
 * lane 1 decodes. */
static void
divide(unsigned partition, uint32_t rows)
{
    scheduler_set_partition(r.s, partition, rows);
    r.l.lane_work[0] = (uint8_t)(WORK_ENCODER | WORK_PREFILL | (partition ? 0 : WORK_DECODE));
}

/* Opens, sets the partition and computes q's prompt. */
static void
open_decoding(struct seq *q, unsigned partition, uint32_t rows)
{
    run_open(&r);
    divide(partition, rows);
    run_add(&r, q);
    run_step(&r, 0);
}

static void
lane_gets_the_whole_device_while_others_are_idle(void **state)
{
    struct seq *q[2] = { seq_new(1, 40, 9, 0), seq_new(2, 30, 5, 0) };

    (void)state;
    split();
    run_open(&r);
    divide(2, 0);
    run_add(&r, q[0]);
    assert_int_equal(run_plan(&r, 0)->partition, 0); /* no sequence decodes */
    assert_null(run_plan(&r, 0));
    assert_int_equal(run_plan(&r, 1)->partition, 2); /* while the prompt is in flight */
    run_commit(&r, 0);
    run_commit(&r, 1);
    assert_null(run_plan(&r, 0));
    assert_int_equal(run_plan(&r, 1)->partition, 0); /* no prompt is left */
    run_add(&r, q[1]);
    assert_int_equal(run_plan(&r, 0)->partition, 2);
    assert_int_equal(run_plan(&r, 1)->partition, 2);
    run_finish(&r, q, 2);
}

static void
prompt_without_blocks_leaves_the_whole_device_to_decode(void **state)
{
    struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 10, 30, 0) };

    (void)state;
    split();
    r.c.group[0].max_blocks = 4; /* exactly for one */
    run_open(&r);
    divide(1, 0);
    run_add(&r, q[0]);
    run_add(&r, q[1]);
    run_step(&r, 0);
    assert_null(run_plan(&r, 0));
    for (int i = 0; i < 29; i++) {
        const struct batch *b = run_step(&r, 1);

        assert_int_equal(b->partition, 0);
        if (i < 28) assert_null(run_plan(&r, 0));
    }
    run_finish(&r, q, 2);
}

static void
merged_lanes_plan_prompts_with_decode_up_to_the_limit(void **state)
{
    struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 60, 5, 0) };
    const struct batch *b;

    (void)state;
    split();
    r.l.lane_tokens[0] = 10;
    open_decoding(q[0], 0, 21);
    run_add(&r, q[1]);
    b = run_step(&r, 0);
    assert_int_equal(b->work, WORK_PREFILL | WORK_DECODE);
    assert_int_equal(b->n_tokens, 21);
    divide(0, 1); /* a unit of prefill is planned in any case */
    assert_int_equal(run_step(&r, 0)->n_tokens, 11);
    assert_null(run_plan(&r, 1));
    divide(1, 0);
    b = run_plan(&r, 0);
    assert_int_equal(b->work, WORK_PREFILL);
    assert_int_equal(b->n_tokens, 10);
    assert_int_equal(run_plan(&r, 1)->work, WORK_DECODE);
    run_finish(&r, q, 2);
}

/* With decode the step is limited, and few tokens should be left over: chunks end at multiples of
 * 16 in blocks of 64. */
static void
step_limit_is_filled_with_parts_of_a_unit(void **state)
{
    static const struct {
        uint32_t asked, rows;
    } as[] = { { 0, 1 + 192 }, { 102, 1 + 96 }, { 112, 1 + 96 }, { 113, 1 + 112 } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(as); i++) {
        struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 400, 5, 0) };

        split();
        r.c.tokens_per_block = 64;
        r.l.chunk_unit = 0;
        r.l.max_tokens = 200;
        open_decoding(q[0], 0, as[i].asked);
        run_add(&r, q[1]);
        assert_int_equal(run_step(&r, 0)->n_tokens, as[i].rows);
        run_finish(&r, q, 2);
    }
}

static void
merging_lanes_never_delays_decode_behind_a_prefill_step(void **state)
{
    struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 90, 5, 0) };
    const struct batch *b;

    (void)state;
    split();
    r.l.lane_tokens[0] = 30;
    open_decoding(q[0], 3, 0);
    run_step(&r, 1);
    run_add(&r, q[1]);
    assert_int_equal(run_plan(&r, 0)->partition, 3);
    for (int again = 0; again < 2; again++) {
        divide(0, 21);
        assert_null(run_plan(&r, 0)); /* 60 tokens of that prompt are left */
        b = run_step(&r, 1);
        assert_int_equal(b->work, WORK_DECODE);
        assert_int_equal(b->partition, 3);
        if (again) break;
        divide(3, 0); /* changed back: prefill continues */
        run_commit(&r, 0);
        assert_int_equal(run_plan(&r, 0)->partition, 3);
    }
    run_commit(&r, 0);
    b = run_step(&r, 0);
    assert_int_equal(b->work, WORK_PREFILL | WORK_DECODE);
    assert_int_equal(b->n_tokens, 21);
    assert_null(run_plan(&r, 1));
    run_finish(&r, q, 2);
}

/* A prompt that fits into two steps is planned completely before the next selection. */
static void
partition_of_the_next_prompt_is_chosen_before_it_arrives(void **state)
{
    const struct partition_limits limits = { 64, 8192, 50 * NSEC_MS };
    const struct step_costs costs = { .weights = 16000000000, .row_flops = 16e9 };
    struct seq *q = seq_new(1, 10, 30, 0);
    struct step_cost prompt = { .weights = 1.6e10, .matmul = 8192 * 1.6e10 };
    struct split *x = calloc(1, sizeof *x);
    struct partition_list l;

    (void)state;
    split();
    run_open_with(&r, &q, 1);
    run_step(&r, 0);
    partition_list_make(&l, 132, 8, 8);
    partition_choose_init(x, &limits, &l, &costs, &r.c, 4e12, 6e14);
    step_time_learn(&x->time, STEP_DECODE, 0, &x->load.decode, 4 * NSEC_MS, 0);
    /* A part needs 2 × the time for prefill, 10 × for decode. */
    for (unsigned partition = 1; partition < l.n; partition++) {
        step_time_learn(&x->time, STEP_DECODE, partition, &x->load.decode, 40 * NSEC_MS, 1);
        step_time_learn(&x->time, STEP_PREFILL, partition, &prompt, 400 * NSEC_MS, 1);
    }
    step_time_learn(&x->time, STEP_PREFILL, 0, &prompt, 200 * NSEC_MS, 0);
    prompt.matmul /= 8;
    step_time_learn(&x->time, STEP_BOTH, 0, &prompt, 30 * NSEC_MS, 0);
    x->flow.rows = 10000;
    x->flow.tokens = 6;
    x->flow.ends = 1;
    partition_choose_start(x, 4);
    x->news = true;
    assert_int_equal(partition_choose(x, &l, r.s).partition, 0);
    free(x);
    run_finish(&r, &q, 1);
}

/* The device checks every token and block; both lanes have steps in flight at each change. */
static void
partition_changes_under_load_lose_no_token(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct seq *q[24];
        uint32_t added = 0, gone = 0;

        split();
        r.l.max_seqs = 6;
        r.c.n_groups = 2;
        r.c.group[0].max_blocks = 40;
        r.c.group[1] = run_group(KV_WINDOW, 13, 384, 0);
        if (round % 2) r.l.policy = POLICY_MAX_UTILIZATION;
        run_open(&r);
        for (int idle = 0; gone < ARRAY_LEN(q); idle++) {
            unsigned lane = test_below(2);

            assert_true(idle < 500); /* else a request waits without limit */
            if (added < ARRAY_LEN(q) && test_below(4) == 0) {
                q[added] = seq_new(added + 1, 1 + test_below(90), 1 + test_below(30), 0);
                run_add(&r, q[added++]);
                idle = 0;
            }
            if (test_below(3) == 0)
                divide(test_below(2) * test_below(MAX_PARTITIONS), test_below(3) * 10);
            if (test_below(2) ? run_plan(&r, lane) != NULL : run_commit(&r, lane)) idle = 0;
            while (scheduler_reap(r.s)) gone++;
        }
        run_finish(&r, q, ARRAY_LEN(q));
    }
}

static void
idle_lanes_are_woken_by_each_request(void **state) /* D-05 */
{
    (void)state;
    split();
    run_open(&r);
    for (req_id id = 1; id <= 10000; id++) {
        struct seq *q = seq_new(id, 1 + id % 7, 1 + id % 3, 0);

        assert_null(run_plan(&r, id % 2));
        assert_null(run_plan(&r, 1 - id % 2));
        assert_true(scheduler_wake(r.s) == NSEC_NEVER);
        run_add(&r, q);
        run_drain(&r);
        assert_ptr_equal(scheduler_reap(r.s), q);
        run_check_tokens(q);
        seq_free(q);
    }
    run_close(&r);
}

/* The reference implementation waits here for outputs to free blocks while none is generated: half
 * of each prompt fills the pool. */
static void
prompts_that_fill_the_pool_never_wait_for_idle_decode(void **state) /* E4.5 */
{
    static const enum policy policies[] = { POLICY_NO_EVICT, POLICY_MAX_UTILIZATION,
                                            POLICY_STATIC };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(policies); i++) {
        struct seq *q[3] = { seq_new(1, 60, 10, 0), seq_new(2, 60, 10, 0), seq_new(3, 60, 10, 0) };

        split();
        r.l.policy = policies[i];
        r.c.group[0].max_blocks = 8; /* for the largest alone, with its output */
        r.l.chunks = CHUNK_POLICY_EQUAL_PROGRESS;
        run_open_with(&r, q, 3);
        run_finish(&r, q, 3);
    }
}

/* The last arrival is preempted, not a decoding sequence: else decode stalls for prompts that no
 * step continues. */
static void
decode_takes_the_blocks_of_an_unfinished_prompt(void **state) /* E4.5 */
{
    struct seq *q[2] = { seq_new(1, 10, 60, 0), seq_new(2, 60, 5, 0) };

    (void)state;
    split();
    r.l.policy = POLICY_MAX_UTILIZATION;
    r.c.group[0].max_blocks = 8;
    run_open_with(&r, q, 1);
    run_step(&r, 0);
    run_step(&r, 1);
    run_add(&r, q[1]);
    assert_int_equal(run_step(&r, 0)->n_tokens, 40);
    for (int i = 0; i < 58; i++) assert_non_null(run_step(&r, 1));
    assert_int_equal(q[0]->n_preemptions, 0);
    assert_int_equal(q[1]->n_preemptions, 1);
    run_finish(&r, q, 2);
}

static void
request_that_never_fits_is_refused_and_both_lanes_continue(void **state) /* D-07, E5 */
{
    struct seq *big = seq_new(1, 80, 40, 0), *q = seq_new(2, 10, 5, 0);
    struct err e;

    (void)state;
    split();
    r.c.group[0].max_blocks = 8;
    run_open(&r);
    assert_int_equal(scheduler_add(r.s, big, 0, &e), -EMSGSIZE);
    run_add(&r, q);
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q);
    seq_free(big);
    run_end(&r, &q, 1);
}

static void
cancelled_output_frees_its_blocks_for_a_prompt_at_once(
    void **state) /* E5: wakes on blocks freed, cancel */
{
    struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 10, 30, 0) };

    (void)state;
    split();
    r.c.group[0].max_blocks = 4;
    run_open_with(&r, q, 2);
    run_step(&r, 0);
    assert_null(run_plan(&r, 0));
    scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED); /* it decodes, and is not in flight */
    assert_non_null(run_plan(&r, 0));
    run_drain(&r);
    for (int i = 0; i < 2; i++) assert_non_null(scheduler_reap(r.s));
    for (int i = 0; i < 2; i++) seq_free(q[i]);
    assert_int_equal(run_used(&r), 0);
    run_close(&r);
}

static void
many_cancels_leave_no_sequence_in_either_lane(void **state)
{
    enum { N = 400 };
    static struct seq *q[N];
    uint32_t added = 0, gone = 0;

    (void)state;
    split();
    r.c.group[0].max_blocks = 20;
    run_open(&r);
    for (int idle = 0; gone < N; idle++) {
        unsigned lane = test_below(2);

        assert_true(idle < 500);
        if (added < N && test_below(2)) {
            q[added] = seq_new(added + 1, 1 + test_below(60), 1 + test_below(30), 0);
            run_add(&r, q[added++]);
            idle = 0;
        }
        if (added && test_below(3)) {
            scheduler_cancel(r.s, 1 + test_below(added), LAGAN_E_CANCELLED);
            scheduler_cancel(r.s, added, LAGAN_E_CANCELLED);
        }
        if (test_below(2) ? run_plan(&r, lane) != NULL : run_commit(&r, lane)) idle = 0;
        while (scheduler_reap(r.s)) gone++;
    }
    run_drain(&r);
    assert_int_equal(run_used(&r), 0);
    for (int i = 0; i < N; i++) seq_free(q[i]);
    run_close(&r);
}

static void
failed_step_ends_its_requests_and_the_other_lane_continues(void **state) /* E4.10 */
{
    struct seq *q[2] = { seq_new(1, 10, 30, 0), seq_new(2, 40, 5, 0) };

    (void)state;
    split();
    run_open_with(&r, q, 1);
    run_step(&r, 0);
    run_step(&r, 1);
    run_add(&r, q[1]);
    run_plan(&r, 0);
    run_plan(&r, 1);
    r.failing = true;
    run_commit(&r, 0);
    r.failing = false;
    assert_ptr_equal(scheduler_reap(r.s), q[1]);
    assert_int_equal(q[1]->reason, LAGAN_E_INTERNAL);
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q[0]);
    run_check_tokens(q[0]);
    for (int i = 0; i < 2; i++) seq_free(q[i]);
    assert_int_equal(run_used(&r), 0);
    run_close(&r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slot_changes_lanes_after_its_last_chunk),
        cmocka_unit_test(decode_never_waits_for_another_sequences_prompt),
        cmocka_unit_test(decoder_waits_for_an_encoder_on_another_lane),
        cmocka_unit_test(prefill_waits_for_blocks_and_resumes_when_one_is_free),
        cmocka_unit_test(prefill_waits_for_the_step_that_reads_a_trimmed_block),
        cmocka_unit_test(request_of_one_token_never_uses_the_decode_lane),
        cmocka_unit_test(slot_cancelled_between_two_lanes_leaves_both),
        cmocka_unit_test(finished_lane_names_the_lane_to_commit_first),
        cmocka_unit_test(many_prompts_pass_through_both_lanes),
        cmocka_unit_test(prefill_lane_has_its_own_limits),
        cmocka_unit_test(lane_gets_the_whole_device_while_others_are_idle),
        cmocka_unit_test(prompt_without_blocks_leaves_the_whole_device_to_decode),
        cmocka_unit_test(merged_lanes_plan_prompts_with_decode_up_to_the_limit),
        cmocka_unit_test(step_limit_is_filled_with_parts_of_a_unit),
        cmocka_unit_test(merging_lanes_never_delays_decode_behind_a_prefill_step),
        cmocka_unit_test(partition_of_the_next_prompt_is_chosen_before_it_arrives),
        cmocka_unit_test(partition_changes_under_load_lose_no_token),
        cmocka_unit_test(idle_lanes_are_woken_by_each_request),
        cmocka_unit_test(prompts_that_fill_the_pool_never_wait_for_idle_decode),
        cmocka_unit_test(decode_takes_the_blocks_of_an_unfinished_prompt),
        cmocka_unit_test(request_that_never_fits_is_refused_and_both_lanes_continue),
        cmocka_unit_test(cancelled_output_frees_its_blocks_for_a_prompt_at_once),
        cmocka_unit_test(many_cancels_leave_no_sequence_in_either_lane),
        cmocka_unit_test(failed_step_ends_its_requests_and_the_other_lane_continues),
    };

    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
