/* test_scheduler.c - a sequence in one lane: added, planned a step ahead, ended, reaped. */
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "include/lagan_wire.h"

#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sched_fixture r;

/* Opens the defaults and adds q, unless it is NULL. */
static void
begin(struct seq *q)
{
    run_defaults(&r);
    run_open_with(&r, &q, q ? 1 : 0);
}

/* Runs to the end: q is the one sequence that ends, with that reason and number of tokens. */
static void
end(struct seq *q, uint16_t reason, uint32_t n_tokens)
{
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, reason);
    assert_int_equal(q->n_tokens, n_tokens);
    run_end(&r, &q, 1);
}

static void
step_is_planned_before_the_previous_one_is_committed(void **state)
{
    struct seq *q = seq_new(1, 12, 3, 0);
    const struct batch *b;

    (void)state;
    begin(q);
    b = run_plan(&r, 0);
    assert_int_equal(b->n_tokens, 12);
    assert_int_equal(b->segment[0].flags, SEGMENT_SAMPLE | SEGMENT_FIRST_CHUNK);
    b = run_plan(&r, 0);
    assert_int_equal(b->n_tokens, 1);
    assert_int_equal(b->token[0], TOKEN_FROM_LAST);
    assert_int_equal(b->pos[0], 12);
    assert_null(run_plan(&r, 0)); /* at most two are in flight */
    run_commit(&r, 0);
    assert_int_equal(q->n_tokens, 13);
    assert_non_null(run_plan(&r, 0));
    end(q, LAGAN_FINISH_LENGTH, 15);
}

static void
known_length_costs_no_extra_token(void **state) /* A1: nothing after the last step */
{
    struct seq *q = seq_new(1, 4, 6, 0);
    uint32_t rows = 0;

    (void)state;
    begin(q);
    for (;;) {
        const struct batch *b = run_plan(&r, 0);

        if (b) rows += b->n_tokens;
        if (!b && !run_commit(&r, 0)) break;
    }
    assert_int_equal(rows, 4 + 5);
    assert_int_equal(q->state, SEQ_ENDED);
    assert_ptr_equal(scheduler_reap(r.s), q);
    run_end(&r, &q, 1);
}

static void
end_id_discards_the_token_in_flight(void **state) /* L-03 */
{
    struct seq *q = seq_new(1, 4, 50, 0);

    (void)state;
    begin(NULL);
    q->end_id[0] = fake_token(1, 9);
    q->n_end = q->n_eos = 1;
    run_add(&r, q);
    for (int i = 0; i < 6; i++) {
        assert_non_null(run_plan(&r, 0)); /* the sixth samples position 9 */
        if (i > 0) run_commit(&r, 0);
    }
    assert_non_null(run_plan(&r, 0)); /* one token too many */
    run_commit(&r, 0);
    assert_int_equal(q->state, SEQ_ENDED);
    assert_null(scheduler_reap(r.s)); /* a step that carries it is in flight */
    assert_int_not_equal(run_used(&r), 0);
    assert_null(run_plan(&r, 0));
    run_commit(&r, 0);
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_null(scheduler_reap(r.s));
    assert_int_equal(q->reason, LAGAN_FINISH_EOS);
    assert_int_equal(q->n_tokens, 10); /* the end id is the last token */
    run_end(&r, &q, 1);
}

static void
stop_id_is_distinct_from_end_of_sequence(void **state)
{
    struct seq *q = seq_new(1, 4, 50, 0);

    (void)state;
    begin(NULL);
    q->end_id[0] = 1001; /* never sampled */
    q->end_id[1] = fake_token(1, 6);
    q->n_eos = 1;
    q->n_end = 2;
    run_add(&r, q);
    end(q, LAGAN_FINISH_STOP, 7);
}

static void
end_ids_are_ignored_before_min_new_tokens(void **state)
{
    for (uint32_t min_new = 0; min_new < 6; min_new++) {
        struct seq *q = seq_new(1, 4, 8, 0);

        (void)state;
        begin(NULL);
        q->min_new = min_new;
        q->end_id[0] = fake_token(1, 6); /* the third generated token */
        q->n_end = q->n_eos = 1;
        run_add(&r, q);
        end(q, min_new <= 2 ? LAGAN_FINISH_EOS : LAGAN_FINISH_LENGTH, min_new <= 2 ? 7 : 12);
    }
}

static void
end_id_as_the_last_token_is_end_of_sequence(void **state)
{
    struct seq *q = seq_new(1, 4, 3, 0);

    (void)state;
    begin(NULL);
    q->end_id[0] = fake_token(1, 6);
    q->n_end = q->n_eos = 1;
    run_add(&r, q);
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, LAGAN_FINISH_EOS);
    run_end(&r, &q, 1);
}

static void
cancel_ends_waiting_at_once_and_running_after_its_step(void **state) /* */
{
    struct seq *q = seq_new(1, 4, 50, 0);

    (void)state;
    begin(q);
    scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED);
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, LAGAN_E_CANCELLED);

    run_add(&r, q);
    run_plan(&r, 0);
    run_plan(&r, 0);
    scheduler_cancel(r.s, 1, LAGAN_FINISH_STOP);
    scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED); /* already ended: no error, no change */
    scheduler_cancel(r.s, 77, LAGAN_E_CANCELLED);
    assert_null(run_plan(&r, 0));
    run_commit(&r, 0);
    assert_null(scheduler_reap(r.s));
    run_commit(&r, 0);
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, LAGAN_FINISH_STOP);
    assert_int_equal(q->n_tokens, 4);
    run_end(&r, &q, 1);
}

static void
suspended_sequence_is_in_no_step_and_resumes_in_place(void **state)
{
    struct seq *q = seq_new(1, 25, 20, 0), *other = seq_new(2, 4, 100, 0);
    uint32_t n;

    (void)state;
    run_defaults(&r);
    r.l.max_tokens = r.l.chunk_unit = 20;
    run_open_with(&r, &q, 1);
    run_add(&r, other);
    for (int round = 0; round < 3; round++) { /* between chunks, then during decode */
        assert_true(in_batch(run_plan(&r, 0), q));
        scheduler_suspend(r.s, 1, true);
        run_commit(&r, 0); /* launched steps count */
        n = q->n_planned;
        for (int i = 0; i < 10; i++) assert_false(in_batch(run_step(&r, 0), q));
        assert_int_equal(q->n_planned, n);
        scheduler_suspend(r.s, 1, false);
    }
    scheduler_suspend(r.s, 77, true);
    assert_true(in_batch(run_step(&r, 0), q));
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->n_tokens, 45);
    run_check_tokens(other);
    seq_free(scheduler_reap(r.s));
    run_end(&r, &q, 1);
}

static void
suspended_sequence_frees_blocks_and_resumes_with_equal_tokens(void **state)
{
    struct seq *q = seq_new(1, 25, 20, 0), *other = seq_new(2, 4, 10, 0);

    (void)state;
    run_defaults(&r);
    r.l.max_seqs = 1;
    run_open_with(&r, &q, 1);
    for (int i = 0; i < 5; i++) run_step(&r, 0);
    scheduler_suspend(r.s, 1, true);
    assert_null(run_plan(&r, 0)); /* no other sequence needs its slot */
    assert_int_equal(q->state, SEQ_DECODE);
    run_add(&r, other);
    assert_true(in_batch(run_step(&r, 0), other));
    assert_int_equal(q->state, SEQ_WAITING);
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), other);
    seq_free(other);
    assert_null(run_plan(&r, 0));
    scheduler_suspend(r.s, 1, false);
    assert_true(in_batch(run_step(&r, 0), q));
    end(q, LAGAN_FINISH_LENGTH, 45);
}

static void
deadline_also_ends_suspended_sequences(void **state)
{
    struct seq *q = seq_new(1, 5, 20, 0);

    (void)state;
    begin(NULL);
    q->deadline = r.now + 100;
    run_add(&r, q);
    run_step(&r, 0);
    scheduler_suspend(r.s, 1, true);
    assert_int_equal(scheduler_wake(r.s), q->deadline);
    r.now += 100;
    assert_null(run_plan(&r, 0));
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, LAGAN_E_DEADLINE);
    run_end(&r, &q, 1);
}

static void
cancelled_chunk_frees_everything(void **state)
{
    struct seq *q = seq_new(1, 45, 5, 0);

    (void)state;
    run_defaults(&r);
    r.l.max_tokens = r.l.chunk_unit = 10;
    run_open_with(&r, &q, 1);
    run_plan(&r, 0);
    run_plan(&r, 0);
    run_commit(&r, 0);
    scheduler_cancel(r.s, 1, LAGAN_E_CANCELLED);
    assert_true(run_used(&r) > 0);
    run_commit(&r, 0);
    assert_int_equal(run_used(&r), 0);
    assert_ptr_equal(scheduler_reap(r.s), q);
    run_end(&r, &q, 1);
}

static void
deadline_ends_waiting_and_running_sequences(void **state)
{
    struct seq *q = seq_new(1, 4, 50, 0), *w = seq_new(2, 4, 50, 0);

    (void)state;
    run_defaults(&r);
    r.l.max_seqs = 1;
    run_open(&r);
    assert_int_equal(scheduler_wake(r.s), NSEC_NEVER);
    q->deadline = 300;
    w->deadline = 200;
    run_add(&r, q);
    run_add(&r, w);
    assert_int_equal(scheduler_wake(r.s), 200);
    assert_non_null(run_step(&r, 0));
    r.now = 200;
    assert_non_null(run_plan(&r, 0));
    assert_ptr_equal(scheduler_reap(r.s), w);
    assert_int_equal(w->reason, LAGAN_E_DEADLINE);
    assert_int_equal(scheduler_wake(r.s), 300);
    r.now = 299;
    run_commit(&r, 0);
    assert_non_null(run_plan(&r, 0));
    r.now = 300;
    run_commit(&r, 0); /* its token counts, then the deadline has passed */
    assert_ptr_equal(scheduler_reap(r.s), q);
    assert_int_equal(q->reason, LAGAN_E_DEADLINE);
    assert_int_equal(q->n_tokens, 7);
    assert_int_equal(scheduler_wake(r.s), NSEC_NEVER);
    seq_free(w);
    run_end(&r, &q, 1);
}

static void
failed_step_ends_exactly_the_sequences_it_carried(void **state)
{
    struct seq *q[3] = { seq_new(1, 4, 9, 0), seq_new(2, 4, 9, 0), seq_new(3, 4, 9, 0) };

    (void)state;
    run_defaults(&r);
    r.l.max_seqs = 2;
    run_open_with(&r, q, 3);
    run_plan(&r, 0);
    r.failing = true;
    run_commit(&r, 0);
    r.failing = false;
    for (int i = 0; i < 2; i++) {
        struct seq *s = scheduler_reap(r.s);

        assert_ptr_equal(s, q[i]);
        assert_int_equal(s->reason, LAGAN_E_INTERNAL);
        assert_int_equal(s->n_tokens, 4);
        seq_free(s);
    }
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q[2]);
    assert_int_equal(q[2]->reason, LAGAN_FINISH_LENGTH);
    run_end(&r, &q[2], 1);
}

static void
decode_comes_first_and_prompts_get_the_rest(void **state)
{
    struct seq *q[4];
    const struct batch *b;

    (void)state;
    run_defaults(&r);
    r.l.max_tokens = 20;
    r.l.chunk_unit = 0;
    run_open(&r);
    for (int i = 0; i < 3; i++) run_add(&r, q[i] = seq_new((req_id)i, 6, 30, 0));
    run_step(&r, 0);
    run_add(&r, q[3] = seq_new(3, 100, 5, 0));
    q[3]->priority = 1; /* decode precedes even this */
    b = run_step(&r, 0);
    assert_int_equal(b->n_segments, 4);
    for (int i = 0; i < 3; i++) assert_int_equal(b->segment[i].work, WORK_DECODE);
    assert_int_equal(b->segment[3].n_tokens, 10); /* of 17 tokens left: a whole block */
    assert_int_equal(b->work, WORK_DECODE | WORK_PREFILL);
    for (int i = 0; i < 4; i++) {
        scheduler_cancel(r.s, (req_id)i, LAGAN_E_CANCELLED);
        seq_free(scheduler_reap(r.s));
    }
    run_close(&r);
}

static void
budget_below_the_unit_still_serves_the_first_prompt(void **state)
{
    struct seq *q[6];
    const struct batch *b;
    uint32_t at = 0;

    (void)state;
    run_defaults(&r);
    r.l.max_tokens = 12; /* blocks of 10 */
    r.l.chunk_unit = 0;
    run_open(&r);
    for (int i = 0; i < 4; i++) run_add(&r, q[i] = seq_new((req_id)i, 3, 40, 0));
    run_step(&r, 0);
    run_add(&r, q[4] = seq_new(4, 33, 1, 0));
    run_add(&r, q[5] = seq_new(5, 33, 1, 0));
    for (int i = 0; at < 33; i++) {
        b = run_step(&r, 0);
        assert_int_equal(b->n_segments, 5); /* four decode, one prompt; no part for the second */
        at += b->segment[4].n_tokens;
        if (i == 0) assert_int_equal(at, 8);
        if (i == 1) assert_int_equal(at, 10); /* back to whole blocks */
        if (i == 2) assert_int_equal(at, 18);
        assert_true(i < 10);
    }
    for (int i = 0; i < 6; i++) scheduler_cancel(r.s, (req_id)i, LAGAN_E_CANCELLED);
    for (int i = 0; i < 6; i++) seq_free(scheduler_reap(r.s));
    run_close(&r);
}

static void
sequences_never_exceed_the_tokens_of_a_step(void **state)
{
    struct seq *q[8];

    (void)state;
    run_defaults(&r);
    r.l.max_tokens = 5; /* 16 requests at 5 tokens per step are a golden case */
    r.l.chunk_unit = 0;
    run_open(&r);
    for (int i = 0; i < 8; i++) run_add(&r, q[i] = seq_new((req_id)i, 7, 20, 0));
    for (const struct batch *b; (b = run_step(&r, 0));) {
        assert_true(b->n_tokens <= 5);
        assert_true(scheduler_counts(r.s).running <= 5);
    }
    for (int i = 0; i < 8; i++) seq_free(scheduler_reap(r.s));
    assert_int_equal(run_used(&r), 0);
    run_close(&r);
}

static void
prompt_logprobs_need_logits_of_every_prompt_token(void **state)
{
    struct seq *q = seq_new(1, 25, 3, 0);
    const struct batch *b;

    (void)state;
    run_defaults(&r);
    r.l.max_tokens = 10;
    r.l.chunk_unit = 10;
    run_open(&r);
    q->prompt_logprobs = true;
    run_add(&r, q);
    for (int i = 0; i < 2; i++) {
        b = run_step(&r, 0);
        assert_int_equal(b->segment[0].flags,
                         SEGMENT_PROMPT_LOGPROBS | (i == 0 ? SEGMENT_FIRST_CHUNK : 0));
        assert_int_equal(b->n_logits, 10);
    }
    b = run_step(&r, 0);
    assert_int_equal(b->segment[0].flags, SEGMENT_PROMPT_LOGPROBS | SEGMENT_SAMPLE);
    assert_int_equal(b->n_logits, 5); /* the last is also the sampled one */
    b = run_step(&r, 0);
    assert_int_equal(b->segment[0].flags, SEGMENT_SAMPLE);
    assert_int_equal(b->n_logits, 1);
    run_finish(&r, &q, 1);
}

static void
step_uses_the_smallest_graph_that_holds_its_tokens(void **state)
{
    struct seq *q = seq_new(1, 9, 5, 0);
    const struct batch *b;

    (void)state;
    run_defaults(&r);
    r.l.n_buckets = 3;
    r.l.bucket[0] = 1;
    r.l.bucket[1] = 4;
    r.l.bucket[2] = 8;
    run_open(&r);
    scheduler_set_partition(r.s, 3, 0);
    run_add(&r, q);
    b = run_step(&r, 0);
    assert_int_equal(b->bucket, 0); /* nine tokens: no graph is large enough */
    assert_int_equal(b->partition, 3);
    b = run_step(&r, 0);
    assert_int_equal(b->bucket, 1);
    run_finish(&r, &q, 1);
}

static void
request_that_never_fits_is_refused_with_the_numbers(void **state) /* D-07 */
{
    struct err e;
    struct seq *q;

    (void)state;
    run_defaults(&r);
    r.c.group[0].max_blocks = 10;
    r.l.max_len = 150;
    run_open(&r);
    q = seq_new(1, 140, 11, 0);
    assert_int_equal(scheduler_add(r.s, q, 0, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "140"));
    assert_non_null(strstr(e.text, "150"));
    seq_free(q);
    q = seq_new(1, 90, 11, 0);
    assert_int_equal(scheduler_add(r.s, q, 0, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "101 tokens"));
    assert_non_null(strstr(e.text, "at most 100 tokens"));
    assert_int_equal(q->state, SEQ_NEW);
    seq_free(q);
    q = seq_new(1, 90, 10, 0); /* fits exactly */
    run_add(&r, q);
    run_finish(&r, &q, 1);

    run_defaults(&r);
    r.c.arena_bytes = 256 * 11; /* scratch block and ten others */
    run_open(&r);
    q = seq_new(1, 90, 11, 0);
    assert_int_equal(scheduler_add(r.s, q, 0, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "2816 bytes"));
    assert_non_null(strstr(e.text, "at most 100 tokens"));
    run_end(&r, &q, 1);
}

static void
invalid_request_is_refused_with_the_reason(void **state)
{
    struct seq *q = seq_new(1, 4, 4, 0), *ref = seq_new(1, 4, 4, 0), *empty = seq_new(2, 0, 4, 0),
               *source = seq_new(3, 4, 4, 5);
    struct err e;

    (void)state;
    begin(q);
    assert_int_equal(scheduler_add(r.s, ref, 0, &e), -EEXIST);
    assert_int_equal(scheduler_add(r.s, empty, 0, &e), -EINVAL);
    assert_int_equal(scheduler_add(r.s, source, 0, &e), -EINVAL);
    assert_non_null(strstr(e.text, "no encoder"));
    assert_int_equal(scheduler_counts(r.s).waiting, 1);
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q);
    seq_free(ref);
    seq_free(empty);
    seq_free(source);
    run_end(&r, &q, 1);
}

static void
request_that_cannot_start_alone_ends_too_long(void **state) /* E5 */
{
    struct seq *q[2] = { seq_new(1, 50, 10, 0), seq_new(2, 10, 10, 0) };
    struct kv_need held = { { 6 } };

    (void)state;
    run_defaults(&r);
    r.c.group[0].max_blocks = 10;
    run_open_with(&r, q, 2);
    assert_int_equal(kv_reserve(r.kv, 63, &held), 0); /* reserved outside the scheduler */
    assert_non_null(run_plan(&r, 0));                 /* the second fits */
    assert_ptr_equal(scheduler_reap(r.s), q[0]);
    assert_int_equal(q[0]->reason, LAGAN_E_TOO_LONG);
    run_drain(&r);
    assert_ptr_equal(scheduler_reap(r.s), q[1]);
    kv_drop(r.kv, 63);
    seq_free(q[0]);
    run_end(&r, &q[1], 1);
}

static void
impossible_limits_are_refused_by_name(void **state)
{
    static const char *const words[] = { "max_num_seqs", "64 slots",          "100 tokens",
                                         "another lane", "no lane",           "max_source_tokens",
                                         "allow 1 to 1", "must be ascending", "65 graph sizes" };
    struct scheduler *s;
    struct err e;

    (void)state;
    begin(NULL);
    for (int i = 0; i < (int)ARRAY_LEN(words); i++) {
        struct scheduler_limits l = r.l;

        if (i == 0) l.max_seqs = 0;
        if (i == 1) l.max_seqs = 65;
        if (i == 2) l.chunk_unit = 100, l.max_tokens = 50; /* M-12: no step would be possible */
        if (i == 3) r.c.n_lanes = 2;
        if (i == 4) l.lane_work[0] = WORK_PREFILL;
        if (i == 5) l.n_enc_layers = 3;
        if (i == 6) l.n_lanes = 2;
        if (i == 7) l.n_buckets = 2, l.bucket[0] = l.bucket[1] = 4;
        if (i == 8) l.n_buckets = 65;
        if (i == 3) { /* needs a KV manager for two lanes */
            run_close(&r);
            run_defaults(&r);
            r.c.n_lanes = 2;
            run_open(&r);
            l.n_lanes = 2;
            l.lane_work[1] = WORK_DECODE;
        }
        assert_int_equal(scheduler_new(&s, &l, r.kv, &e), -EINVAL);
        if (!strstr(e.text, words[i])) print_error("%s: %s\n", words[i], e.text);
        assert_non_null(strstr(e.text, words[i]));
        if (i == 3) {
            run_close(&r);
            begin(NULL);
        }
    }
    run_close(&r);
}

static void
window_too_large_for_a_whole_chunk_gets_smaller_chunks(void **state)
{
    struct seq *q = seq_new(1, 200, 20, 0);
    const struct batch *b;

    (void)state;
    run_defaults(&r);
    r.c.group[0] = run_group(KV_WINDOW, 20, 128, 6); /* window 20, one-block chunks: 4 blocks */
    r.l.chunk_unit = 0;
    run_open_with(&r, &q, 1);
    b = run_plan(&r, 0);
    assert_int_equal(b->n_tokens, 10);
    end(q, LAGAN_FINISH_LENGTH, 220);
}

static void
equal_calls_give_equal_batches(void **state)
{
    static uint8_t bytes[2][200][4096];
    static int n[2][200];

    (void)state;
    for (int round = 0; round < 2; round++) {
        run_defaults(&r);
        r.c.n_groups = 2;
        r.c.group[1] = run_group(KV_WINDOW, 15, 256, 0);
        r.l.max_tokens = 40;
        r.l.max_seqs = 5;
        run_open(&r);
        for (req_id i = 0; i < 12; i++)
            run_add(&r, seq_new(i, 5 + 13 * (uint32_t)i % 70, 8 + (uint32_t)i, 0));
        for (int i = 0; i < 200; i++) {
            const struct batch *b = i % 3 == 2 ? NULL : run_plan(&r, 0);

            n[round][i] = b ? batch_pack(b, bytes[round][i], sizeof bytes[round][i]) : 0;
            assert_true(n[round][i] >= 0);
            if (i % 3 == 2) {
                run_commit(&r, 0);
                run_commit(&r, 0);
            }
        }
        for (req_id i = 0; i < 12; i++) scheduler_cancel(r.s, i, LAGAN_E_CANCELLED);
        while (run_commit(&r, 0)) {
        }
        for (struct seq *q; (q = scheduler_reap(r.s));) seq_free(q);
        run_close(&r);
    }
    assert_memory_equal(n[0], n[1], sizeof n[0]);
    for (int i = 0; i < 200; i++) assert_memory_equal(bytes[0][i], bytes[1][i], (size_t)n[0][i]);
}

static void
plan_and_commit_allocate_no_memory(void **state)
{
    struct mallinfo2 before, after;
    struct seq *q[8];

    (void)state;
    run_defaults(&r);
    r.c.n_groups = 2;
    r.c.group[1] = run_group(KV_WINDOW, 15, 256, 0);
    r.l.max_tokens = 40;
    r.l.max_seqs = 5;
    run_open(&r);
    for (int i = 0; i < 8; i++) q[i] = seq_new((req_id)i, 30, 40, 0);
    before = mallinfo2();
    for (int i = 0; i < 8; i++) run_add(&r, q[i]);
    run_drain(&r);
    for (int i = 0; i < 8; i++) assert_non_null(scheduler_reap(r.s));
    after = mallinfo2();
    assert_int_equal(before.uordblks, after.uordblks);
    assert_int_equal(before.hblkhd, after.hblkhd);
    for (int i = 0; i < 8; i++) seq_free(q[i]);
    run_close(&r);
}

static void
forbidden_state_change_aborts(void **state)
{
    (void)state;
    for (int from = SEQ_NEW; from <= SEQ_ENDED; from++) {
        pid_t child = fork();
        int status;

        assert_true(child >= 0);
        if (child == 0) {
            struct seq q = { .state = (enum seq_state)from };

            close(STDERR_FILENO);
            seq_move(&q, (enum seq_state)from); /* no state follows itself */
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_is_planned_before_the_previous_one_is_committed),
        cmocka_unit_test(known_length_costs_no_extra_token),
        cmocka_unit_test(end_id_discards_the_token_in_flight),
        cmocka_unit_test(stop_id_is_distinct_from_end_of_sequence),
        cmocka_unit_test(end_ids_are_ignored_before_min_new_tokens),
        cmocka_unit_test(end_id_as_the_last_token_is_end_of_sequence),
        cmocka_unit_test(cancel_ends_waiting_at_once_and_running_after_its_step),
        cmocka_unit_test(suspended_sequence_is_in_no_step_and_resumes_in_place),
        cmocka_unit_test(suspended_sequence_frees_blocks_and_resumes_with_equal_tokens),
        cmocka_unit_test(deadline_also_ends_suspended_sequences),
        cmocka_unit_test(cancelled_chunk_frees_everything),
        cmocka_unit_test(deadline_ends_waiting_and_running_sequences),
        cmocka_unit_test(failed_step_ends_exactly_the_sequences_it_carried),
        cmocka_unit_test(decode_comes_first_and_prompts_get_the_rest),
        cmocka_unit_test(budget_below_the_unit_still_serves_the_first_prompt),
        cmocka_unit_test(sequences_never_exceed_the_tokens_of_a_step),
        cmocka_unit_test(prompt_logprobs_need_logits_of_every_prompt_token),
        cmocka_unit_test(step_uses_the_smallest_graph_that_holds_its_tokens),
        cmocka_unit_test(request_that_never_fits_is_refused_with_the_numbers),
        cmocka_unit_test(invalid_request_is_refused_with_the_reason),
        cmocka_unit_test(request_that_cannot_start_alone_ends_too_long),
        cmocka_unit_test(impossible_limits_are_refused_by_name),
        cmocka_unit_test(window_too_large_for_a_whole_chunk_gets_smaller_chunks),
        cmocka_unit_test(equal_calls_give_equal_batches),
        cmocka_unit_test(plan_and_commit_allocate_no_memory),
        cmocka_unit_test(forbidden_state_change_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
