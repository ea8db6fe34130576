/* test_sharing.c - tokens shared by prompts, layers by encoder inputs, pages by adapters, steps by
 * clients.
 *
 * Ids (M-04 ...) name the scenario: blocks of 10 tokens; an iteration is a step planned and
 * committed at once.
 */
#include "tests/sched/sched_harness.h"
#include "tests/test.h"

#include "include/lagan_wire.h"

enum { MAX = 16 };

static struct sched_fixture r;
static struct seq *q[MAX];
static uint32_t n_seqs;

static void
begin(uint32_t max_seqs)
{
    run_defaults(&r);
    r.l.max_seqs = max_seqs;
    n_seqs = 0;
}

static struct seq *
request(uint32_t n_prompt, uint32_t max_new, uint32_t n_source)
{
    q[n_seqs] = seq_new(n_seqs, n_prompt, max_new, n_source);
    return q[n_seqs++];
}

static void
add_all(void)
{
    for (uint32_t i = 0; i < n_seqs; i++) run_add(&r, q[i]);
}

static void
prompts_share_a_step_fcfs_or_equally(void **state)
{
    enum { EQ = 1, FC = 2 };
    static const struct {
        const char *id;
        unsigned how;
        uint32_t len[3], unit, capacity, most, at[5][3];
    } row[] = {
        { "M-11", EQ | FC, { 25, 25 }, 20, 1000, 0, { { 25, 25 } } },
        { "M-13", EQ | FC, { 10, 25 }, 10, 1000, 20, { { 10, 20 }, { 10, 25 } } },
        { "M-14",
          EQ | FC,
          { 25, 25 },
          20,
          20,
          0,
          { { 20, 0 }, { 25, 0 }, { 25, 20 }, { 25, 25 } } },
        { "M-15", EQ, { 25, 25 }, 5, 30, 0, { { 15, 15 }, { 25, 25 } } },
        { "M-15", FC, { 25, 25 }, 5, 30, 0, { { 25, 5 }, { 25, 25 } } },
        { "M-16", EQ, { 25, 15 }, 5, 30, 0, { { 15, 15 }, { 25, 15 } } },
        { "M-16", FC, { 25, 15 }, 5, 30, 0, { { 25, 5 }, { 25, 15 } } },
        { "M-17", EQ | FC, { 25, 15 }, 5, 30, 10, { { 10, 10 }, { 20, 15 }, { 25, 15 } } },
        { "M-18", EQ, { 25, 25 }, 5, 15, 0, { { 10, 5 }, { 20, 10 }, { 25, 20 }, { 25, 25 } } },
        { "M-18", FC, { 25, 25 }, 5, 15, 0, { { 15, 0 }, { 25, 5 }, { 25, 20 }, { 25, 25 } } },
        { "M-20",
          EQ,
          { 100, 7, 50 },
          16,
          48,
          32,
          { { 16, 7, 16 }, { 48, 7, 32 }, { 80, 7, 48 }, { 100, 7, 50 } } },
        { "M-20",
          FC,
          { 100, 7, 50 },
          16,
          48,
          32,
          { { 32, 7, 0 }, { 64, 7, 16 }, { 96, 7, 32 }, { 100, 7, 50 } } },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(row) * 2; i++) {
        size_t k = i / 2;
        enum chunks chunks = i % 2 ? CHUNK_POLICY_EQUAL_PROGRESS : CHUNK_POLICY_FCFS;

        if (!(row[k].how & (chunks == CHUNK_POLICY_EQUAL_PROGRESS ? EQ : FC))) continue;
        begin(3);
        r.l.chunks = chunks;
        r.l.max_tokens = row[k].capacity;
        r.l.chunk_unit = row[k].unit;
        r.l.max_chunk = row[k].most;
        run_open(&r);
        for (int n = 0; n < 3 && row[k].len[n]; n++) request(row[k].len[n], 1, 0);
        add_all();
        for (int it = 0; it < 5 && row[k].at[it][0]; it++) {
            assert_non_null(run_step(&r, 0));
            for (uint32_t n = 0; n < n_seqs; n++) {
                if (q[n]->n_planned != row[k].at[it][n])
                    print_error("%s, iteration %d, request %d\n", row[k].id, it, n);
                assert_int_equal(q[n]->n_planned, row[k].at[it][n]);
            }
        }
        assert_null(run_step(&r, 0));
        run_cancel(&r, q, n_seqs);
    }
}

static void
equal_progress_divides_the_tokens_left_by_decode(void **state) /* M-04 */
{
    static const uint32_t at[][2] = { { 5, 0 }, { 12, 0 }, { 13, 5 }, { 14, 10 }, { 15, 12 } };

    (void)state;
    begin(2);
    r.l.chunks = CHUNK_POLICY_EQUAL_PROGRESS;
    r.l.max_tokens = 7;
    r.l.chunk_unit = 5;
    run_open(&r);
    request(12, 5, 0);
    request(12, 5, 0);
    add_all();
    for (size_t it = 0; it < ARRAY_LEN(at); it++) {
        assert_non_null(run_step(&r, 0));
        assert_int_equal(q[0]->n_planned, at[it][0]);
        assert_int_equal(q[1]->n_planned, at[it][1]);
    }
    assert_non_null(run_step(&r, 0));
    assert_int_equal(q[0]->state, SEQ_ENDED); /* at iteration 5, the other at 8 */
    for (int it = 6; it <= 8; it++) assert_non_null(run_step(&r, 0));
    assert_int_equal(q[1]->state, SEQ_ENDED);
    run_cancel(&r, q, n_seqs);
}

/* The running sequences (mask) of each iteration, until none runs. */
static int
play(unsigned *who, int max)
{
    for (int it = 0; it < max; it++) {
        const struct batch *b = run_plan(&r, 0);

        who[it] = 0;
        if (!b) return it;
        for (uint32_t i = 0; i < n_seqs; i++)
            if (q[i]->state > SEQ_WAITING && in_batch(b, q[i])) who[it] |= 1u << i;
        scheduler_check(r.s);
        run_commit(&r, 0);
    }
    return max;
}

static void
open_encoder(uint32_t max_seqs)
{
    begin(max_seqs);
    r.c.n_groups = 2;
    r.c.group[1] = run_group(KV_CROSS, 0, 128, 0);
    r.l.n_enc_layers = 4;
    r.l.max_enc_tokens = 1000;
}

static void
adapters(enum policy policy, uint32_t pages)
{
    begin(4);
    r.c.group[0].max_blocks = 21;
    r.l.policy = policy;
    r.l.pages = 30;
    run_open(&r);
    for (int i = 0; i < 3; i++) {
        request(10, 50, 0)->lora = i == 1 ? 2 : 1;
        q[i]->pages = pages;
    }
    add_all();
}

/* The last prompt token is computed by each beam, in the first decode step. So a request has 11
 * iterations where the reference has 10, and all ends are one iteration later. */
static void
each_beam_takes_one_token_of_a_step(void **state) /* M-03 */
{
    static const struct {
        uint32_t first, last; /* iterations */
        uint8_t requests;     /* bit i: request i */
    } want[] = { { 0, 0, 1 },    { 1, 10, 3 },  { 11, 11, 6 },
                 { 12, 21, 12 }, { 22, 22, 8 }, { 23, 23, 0 } };

    (void)state;
    begin(16);
    r.l.max_tokens = 15;
    r.l.chunk_unit = 10;
    run_open(&r);
    for (req_id id = 0; id < 4; id++) {
        struct seq *beam = seq_group_of(id, 4, /* beams= */ true, 10, 10, 0);

        run_add(&r, beam);
        for (; beam; beam = beam->next_member) q[n_seqs++] = beam;
    }
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        for (uint32_t it = want[i].first; it <= want[i].last; it++) {
            const struct batch *b = run_step(&r, 0);
            uint8_t requests = 0;

            for (uint32_t n = 0; n < n_seqs; n++)
                if (in_batch(b, q[n])) requests |= (uint8_t)(1u << q[n]->id);
            assert_int_equal(requests, want[i].requests);
        }
    run_end(&r, q, n_seqs);
}

static void
adapter_pages_are_counted_once(void **state) /* C-04 */
{
    static unsigned who[200];

    (void)state;
    for (int policy = POLICY_NO_EVICT; policy <= POLICY_STATIC; policy++) {
        adapters((enum policy)policy, 15);
        assert_int_equal(play(who, 200), 50);
        assert_int_equal(who[0], 7);
        assert_int_equal(who[49], 7);
        run_cancel(&r, q, n_seqs);
    }
}

static void
only_requests_that_wait_for_pages_are_overtaken(void **state) /* C-05 */
{
    static unsigned who[200];

    (void)state;
    for (int i = 0; i < 2; i++) {
        adapters(i ? POLICY_STATIC : POLICY_NO_EVICT, 20);
        assert_int_equal(play(who, 200), 100);
        assert_int_equal(who[0], 5);
        assert_int_equal(who[49], 5);
        assert_int_equal(who[50], 2);
        run_cancel(&r, q, n_seqs);
    }
}

static void
max_utilization_stops_at_a_request_waiting_for_pages(void **state) /* C-06 */
{
    static unsigned who[200];

    (void)state;
    adapters(POLICY_MAX_UTILIZATION, 20);
    assert_int_equal(play(who, 200), 150);
    assert_int_equal(who[0], 1);
    assert_int_equal(who[50], 2);
    assert_int_equal(who[100], 4);
    run_cancel(&r, q, n_seqs);
}

static void
request_waiting_for_pages_never_stops_a_running_sequence(void **state)
{
    (void)state;
    open_encoder(3);
    r.l.policy = POLICY_MAX_UTILIZATION;
    r.l.pages = 4;
    run_open(&r);
    request(10, 5, 10)->lora = 1;
    q[0]->pages = 2;
    run_add(&r, q[0]);
    assert_int_equal(run_step(&r, 0)->n_encode, 1); /* it has slot and pages, and no KV yet */
    request(10, 5, 10)->lora = 2;
    q[1]->pages = 3;
    q[1]->priority = 1;
    run_add(&r, q[1]);
    while (run_step(&r, 0)) {
    }
    assert_int_equal(q[0]->reason, LAGAN_FINISH_LENGTH);
    assert_int_equal(q[0]->n_preemptions, 0); /* nor is one preempted: that need not free a page */
    assert_int_equal(q[1]->reason, LAGAN_FINISH_LENGTH);
    run_cancel(&r, q, n_seqs);
}

static struct seq *
adapted(uint64_t lora, uint32_t max_new)
{
    struct seq *s = request(10, max_new, 0);

    s->lora = lora;
    s->pages = lora ? 20 : 0;
    return s;
}

static void
request_waiting_for_pages_is_overtaken_at_most_max_running_times(void **state)
{
    (void)state;
    begin(4);
    r.l.pages = 30;
    run_open(&r);
    run_add(&r, adapted(1, 6));
    run_step(&r, 0);
    run_add(&r, adapted(2, 4));   /* needs 20 pages, 10 are free */
    for (int i = 2; i < 7; i++) { /* consecutive, so that the first adapter stays in use */
        run_add(&r, adapted(1, 6));
        run_step(&r, 0);
        run_step(&r, 0);
        assert_int_equal(q[1]->state, SEQ_WAITING);
        assert_int_equal(q[i]->state == SEQ_WAITING, i >= 6);
    }
    run_add(&r, adapted(0, 4)); /* it needs no pages and delays no other */
    run_step(&r, 0);
    assert_int_not_equal(q[7]->state, SEQ_WAITING);
    for (int i = 0; i < 4; i++) run_step(&r, 0);
    assert_int_not_equal(q[1]->state, SEQ_WAITING);
    while (run_step(&r, 0)) scheduler_check(r.s);
    for (uint32_t i = 0; i < n_seqs; i++) assert_int_equal(q[i]->state, SEQ_ENDED);
    run_cancel(&r, q, n_seqs);
}

static void
suspended_sequence_frees_its_adapter_pages(void **state)
{
    (void)state;
    begin(3);
    r.l.pages = 30;
    run_open(&r);
    run_add(&r, adapted(1, 40));
    for (int i = 0; i < 5; i++) run_step(&r, 0);
    scheduler_suspend(r.s, 0, true);
    run_add(&r, adapted(2, 4));
    while (q[1]->state != SEQ_ENDED) assert_non_null(run_step(&r, 0));
    assert_int_equal(q[0]->state, SEQ_WAITING);
    scheduler_suspend(r.s, 0, false);
    while (run_step(&r, 0)) scheduler_check(r.s);
    assert_int_equal(q[0]->state, SEQ_ENDED);
    run_cancel(&r, q, n_seqs);
}

static void
adapter_larger_than_the_device_is_refused(void **state)
{
    struct err e;

    (void)state;
    begin(1);
    r.l.pages = 10;
    run_open(&r);
    request(10, 5, 0)->lora = 1;
    q[0]->pages = 11;
    assert_int_equal(scheduler_add(r.s, q[0], 0, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "11 memory pages"));
    run_cancel(&r, q, n_seqs);
}

static void
client_with_many_requests_does_not_starve_others(void **state)
{
    int at[MAX], n = 0;

    (void)state;
    begin(1);
    r.l.quantum = 20;
    run_open(&r);
    for (int i = 0; i < 10; i++) request(10, 10, 0)->client = 1;
    for (int i = 0; i < 3; i++) request(10, 10, 0)->client = 2;
    add_all();
    while (run_step(&r, 0))
        for (struct seq *s; (s = scheduler_reap(r.s));) at[s->id] = n++;
    assert_int_equal(n, 13);
    for (int i = 0; i < 3; i++) assert_int_equal(at[10 + i], 2 * i + 1); /* alternating */
    for (int i = 1; i < 10; i++) assert_true(at[i] > at[i - 1]);
    run_cancel(&r, q, n_seqs);
}

static void
fairness_counts_tokens_not_requests(void **state)
{
    int at[MAX], n = 0;

    (void)state;
    begin(1);
    r.l.quantum = 20;
    run_open(&r);
    for (int i = 0; i < 3; i++) request(50, 10, 0)->client = 1; /* three rounds each */
    for (int i = 0; i < 6; i++) request(10, 10, 0)->client = 2;
    add_all();
    while (run_step(&r, 0))
        for (struct seq *s; (s = scheduler_reap(r.s));) at[s->id] = n++;
    assert_int_equal(at[0], 2); /* in the round of the other client's third, and it arrived first */
    assert_int_equal(at[5], 3);
    assert_int_equal(at[1], 6);
    run_cancel(&r, q, n_seqs);
}

static void
unused_fairness_tokens_are_returned(void **state)
{
    struct seq *one, *other;

    (void)state;
    begin(1);
    r.l.quantum = 10;
    run_open(&r);
    request(10, 990, 0)->client = 1;
    q[0]->n_end = q[0]->n_eos = 1;
    q[0]->end_id[0] = fake_token(0, 10); /* ends at its first token */
    request(10, 10, 0)->client = 1;
    add_all();
    assert_non_null(run_step(&r, 0));
    assert_int_equal(q[0]->state, SEQ_ENDED);
    one = request(10, 10, 0);
    one->client = 1;
    run_add(&r, one);
    assert_true(one->fair_tag >= q[1]->fair_tag); /* requests of one client stay in order */
    other = request(10, 10, 0);
    other->client = 2;
    run_add(&r, other);
    assert_true(other->fair_tag <= one->fair_tag);
    run_cancel(&r, q, n_seqs);
}

static void
priority_precedes_the_fairness_tag(void **state)
{
    (void)state;
    begin(1);
    r.l.quantum = 10;
    run_open(&r);
    request(10, 10, 0)->client = 1;
    request(10, 10, 0)->client = 1;
    q[1]->priority = 1;
    request(10, 10, 0)->client = 2;
    add_all();
    assert_true(in_batch(run_step(&r, 0), q[1]));
    run_cancel(&r, q, n_seqs);
}

static void
long_encoder_input_is_split_while_a_stream_decodes(void **state)
{
    const struct batch *b;
    uint32_t layer = 0;

    (void)state;
    open_encoder(4);
    r.l.enc_work = 100;
    run_open(&r);
    request(1, 30, 10);
    add_all();
    assert_int_equal(run_step(&r, 0)->encode[0].n_layers, 4); /* no sequence decodes */
    assert_non_null(run_step(&r, 0));
    run_add(&r, request(1, 5, 200)); /* one layer exceeds the limit, and at least one is planned */
    run_add(&r, request(1, 5, 20));
    for (int i = 0; i < 4; i++) {
        b = run_step(&r, 0);
        assert_int_equal(b->work, WORK_DECODE | WORK_ENCODER);
        assert_true(in_batch(b, q[0]));
        assert_int_equal(b->n_encode, 1);
        assert_int_equal(b->encode[0].first_layer, layer++);
        assert_int_equal(b->encode[0].n_layers, 1);
    }
    b = run_step(&r, 0);
    assert_true(in_batch(b, q[1])); /* its prompt */
    assert_int_equal(b->encode[0].n_tokens, 20);
    assert_int_equal(b->encode[0].n_layers, 4);
    run_cancel(&r, q, n_seqs);
}

/* n encoder inputs wait and n_gen sequences decode, of 32 slots. Returns how many inputs start. */
static uint32_t
start(const uint32_t *sizes, uint32_t n_sizes, int n, int n_gen, nsec waited)
{
    const struct batch *b;
    struct seq *gen[32], *w[32];
    uint32_t started;
    struct sched_fixture *run = &r;

    open_encoder(32);
    memcpy(r.l.enc_batch, sizes, n_sizes * sizeof *sizes);
    r.l.n_enc_batches = n_sizes;
    r.l.enc_wait = 100;
    run_open(run);
    for (int i = 0; i < n_gen; i++) run_add(run, gen[i] = seq_new((req_id)i, 1, 20, 5));
    for (int i = 0; i < 2; i++) run_step(run, 0);
    for (int i = 0; i < n; i++) run_add(run, w[i] = seq_new(100 + (req_id)i, 1, 20, 5));
    r.now += waited;
    b = run_step(run, 0);
    started = b ? b->n_encode : 0;
    if (started == 0 && waited < 100) assert_int_equal(scheduler_wake(r.s), 100);
    for (int i = 0; i < n_gen; i++) scheduler_cancel(r.s, (req_id)i, LAGAN_E_CANCELLED);
    for (int i = 0; i < n; i++) scheduler_cancel(r.s, 100 + (req_id)i, LAGAN_E_CANCELLED);
    while (scheduler_reap(r.s)) {
    }
    for (int i = 0; i < n_gen; i++) seq_free(gen[i]);
    for (int i = 0; i < n; i++) seq_free(w[i]);
    run_close(run);
    return started;
}

static void
encoder_inputs_wait_to_be_batched(void **state)
{
    static const uint32_t eight[] = { 8 }, odd[] = { 1, 3, 6 }, even[] = { 1, 2, 4 };

    (void)state;
    assert_int_equal(start(eight, 1, 7, 24, 0), 0);   /* M-33 */
    assert_int_equal(start(eight, 1, 12, 20, 0), 8);  /* M-34 */
    assert_int_equal(start(odd, 3, 5, 24, 100), 3);   /* M-35 */
    assert_int_equal(start(eight, 1, 8, 25, 100), 0); /* M-36: seven slots are free */
    assert_int_equal(start(eight, 1, 8, 24, 100), 8);
    assert_int_equal(start(even, 3, 12, 20, 100), 4); /* M-37 */
    assert_int_equal(start(eight, 1, 7, 0, 0), 7);    /* M-38: no sequence decodes */
}

static void
prompts_wait_to_be_batched_while_a_stream_decodes(void **state) /* B5 */
{
    (void)state;
    begin(8);
    r.l.prefill_batch_tokens = 50;
    r.l.prompt_wait = 1000;
    run_open(&r);
    run_add(&r, request(20, 40, 0)); /* no sequence decodes: no wait */
    assert_true(in_batch(run_step(&r, 0), q[0]));
    run_add(&r, request(20, 5, 0));
    assert_int_equal(run_step(&r, 0)->n_segments, 1);
    assert_int_equal(scheduler_wake(r.s), 1000);
    run_add(&r, request(30, 5, 0)); /* now they have 50 tokens */
    assert_int_equal(run_step(&r, 0)->n_segments, 3);
    run_add(&r, request(20, 5, 0));
    assert_int_equal(run_step(&r, 0)->n_segments, 3);
    r.now += 1000; /* or the wait is over */
    assert_int_equal(run_step(&r, 0)->n_segments, 4);
    run_add(&r, request(20, 5, 0));
    scheduler_suspend(r.s, 0, true);
    for (int i = 0; i < 10; i++) run_step(&r, 0);
    assert_int_equal(q[4]->state, SEQ_ENDED); /* a suspended stream does not count */
    run_cancel(&r, q, n_seqs);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_share_a_step_fcfs_or_equally),
        cmocka_unit_test(equal_progress_divides_the_tokens_left_by_decode),
        cmocka_unit_test(each_beam_takes_one_token_of_a_step),
        cmocka_unit_test(adapter_pages_are_counted_once),
        cmocka_unit_test(only_requests_that_wait_for_pages_are_overtaken),
        cmocka_unit_test(max_utilization_stops_at_a_request_waiting_for_pages),
        cmocka_unit_test(request_waiting_for_pages_never_stops_a_running_sequence),
        cmocka_unit_test(request_waiting_for_pages_is_overtaken_at_most_max_running_times),
        cmocka_unit_test(suspended_sequence_frees_its_adapter_pages),
        cmocka_unit_test(adapter_larger_than_the_device_is_refused),
        cmocka_unit_test(client_with_many_requests_does_not_starve_others),
        cmocka_unit_test(fairness_counts_tokens_not_requests),
        cmocka_unit_test(unused_fairness_tokens_are_returned),
        cmocka_unit_test(priority_precedes_the_fairness_tag),
        cmocka_unit_test(long_encoder_input_is_split_while_a_stream_decodes),
        cmocka_unit_test(encoder_inputs_wait_to_be_batched),
        cmocka_unit_test(prompts_wait_to_be_batched_while_a_stream_decodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
