/* test_quarantine.c - faults, suspects and poisoned prompts. */
#include "daemon/ledger/quarantine.h"

#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"

#include "tests/test.h"

#include <time.h>

static struct step_trace trace;
static struct fault_trace b;
static struct quarantine q;

/* Writes a complete entry i of the trace: step, lane, requests. */
static struct step_entry *
entry(uint64_t i, uint64_t step, uint8_t lane, uint32_t n, const req_id *ids)
{
    struct step_entry *e = &trace.entry[i % TRACE_ENTRIES];

    atomic_store(&trace.n, i + 1);
    atomic_store(&e->seq, 2 * i + 2);
    e->step = step;
    e->lane = lane;
    e->n_ids = n;
    memcpy(e->id, ids, n * sizeof *ids);
    return e;
}

static int
set_up(void **state)
{
    (void)state;
    memset(&trace, 0, sizeof trace);
    memset(&q, 0, sizeof q);
    return 0;
}

static void
launched_and_unretired_steps_of_all_lanes_count(void **state)
{
    (void)state;
    entry(0, 10, 0, 2, (const req_id[]){ 1, 2 });
    entry(1, 11, 1, 1, (const req_id[]){ 3 });
    entry(2, 12, 0, 1, (const req_id[]){ 4 });
    atomic_store(&trace.retired[0], 10);
    fault_trace_read(&b, &trace);
    assert_false(b.all);
    assert_false(fault_trace_has(&b, 1) || fault_trace_has(&b, 2) || fault_trace_has(&b, 5));
    assert_true(fault_trace_has(&b, 3) && fault_trace_has(&b, 4));
    fault_trace_read(&b, NULL); /* an external death */
    assert_false(fault_trace_has(&b, 3));
}

static void
full_ledger_is_matched_with_full_trace_in_time(void **state)
{
    enum { EACH = TRACE_IDS - 1, ALL = TRACE_ENTRIES * EACH, ROWS = 8192 };
    struct timespec from, to;
    req_id ids[EACH];
    uint32_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < TRACE_ENTRIES; i++) {
        for (uint32_t k = 0; k < EACH; k++) ids[k] = ROWS + ALL - i * EACH - k;
        entry(i, 10 + i, 0, EACH, ids);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    fault_trace_read(&b, &trace);
    for (req_id id = 2; id <= ROWS + 1; id++) n += fault_trace_has(&b, id);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    assert_int_equal(n, 1);
    assert_true((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec < 5000000);
}

static void
step_that_is_being_written_does_not_count(void **state)
{
    (void)state;
    entry(0, 10, 0, 1, (const req_id[]){ 1 });
    atomic_store(&entry(1, 11, 0, 1, (const req_id[]){ 2 })->seq, 3);
    fault_trace_read(&b, &trace);
    assert_true(fault_trace_has(&b, 1));
    assert_false(fault_trace_has(&b, 2));
}

static void
empty_or_invalid_trace_names_all_requests(void **state)
{
    (void)state;
    fault_trace_read(&b, &trace);
    assert_true(b.all);
    entry(0, 10, 0, 1, (const req_id[]){ 1 });
    atomic_store(&trace.retired[0], 10);
    fault_trace_read(&b, &trace);
    assert_true(b.all);
    atomic_store(&trace.retired[0], 0);
    fault_trace_read(&b, &trace);
    assert_false(b.all);
#define SPOILT(what) \
    do { \
        struct step_entry *e = entry(0, 10, 0, 1, (const req_id[]){ 1 }); \
        what; \
        fault_trace_read(&b, &trace); \
        assert_true(b.all); \
    } while (0)
    SPOILT(e->lane = 8);
    SPOILT(e->n_ids = TRACE_IDS); /* may be truncated */
    SPOILT(e->n_ids = UINT32_MAX);
    SPOILT(e->seq = 7);
    SPOILT((void)e; atomic_store(&trace.n, UINT64_MAX));
    test_seed();
    for (int i = 0; i < 2000; i++) { /* random bytes: the sanitizers check */
        uint8_t *p = (uint8_t *)&trace;

        for (int k = 0; k < 64; k++) p[test_below(sizeof trace)] = (uint8_t)test_below(256);
        fault_trace_read(&b, &trace);
    }
}

static struct request *
take(struct ledger *l, uint64_t rid)
{
    struct rec_submit *s = calloc(1, sizeof *s + 16);
    struct request *r;

    s->n_prompt = 3;
    s->max_tokens = 1000;
    memcpy(s + 1, &rid, sizeof rid);
    assert_int_equal(ledger_take(l, 1, rid, s, sizeof *s + 16, &r), 0);
    return r;
}

static void
grow(struct request *r, uint32_t n)
{
    while (n--) assert_int_equal(bytes_add(&r->outputs.token, "abc", 4), 0);
}

static void
two_faults_make_a_suspect_and_three_poison(void **state)
{
    struct ledger *l = ledger_new(8, 1);
    struct request *r = take(l, 1);

    (void)state;
    assert_int_equal(quarantine_fault(&q, r, false, true),
                     QUARANTINE_RETRY); /* not the worker's own fault */
    assert_int_equal(r->suspicion.n_faults, 0);
    assert_int_equal(quarantine_fault(&q, r, true, true), QUARANTINE_RETRY);
    assert_int_equal(quarantine_fault(&q, r, true, false),
                     QUARANTINE_RETRY); /* it was not in the step */
    assert_false(quarantine_is_suspect(r));
    assert_int_equal(quarantine_fault(&q, r, true, true), QUARANTINE_RETRY);
    assert_true(quarantine_is_suspect(r));
    assert_int_equal(q.n_suspects, 1);
    assert_int_equal(quarantine_fault(&q, r, true, true), QUARANTINE_POISONED);
    assert_int_equal(q.n_suspects, 0);
    ledger_free(l);
}

static void
suspect_past_its_fault_is_cleared_once(void **state)
{
    struct ledger *l = ledger_new(8, 1);
    struct request *r = take(l, 1);

    (void)state;
    for (int time = 0; time < 2; time++) {
        while (!quarantine_is_suspect(r))
            assert_int_equal(quarantine_fault(&q, r, true, true), QUARANTINE_RETRY);
        grow(r, QUARANTINE_PAST - 1);
        assert_false(quarantine_progress(&q, r));
        grow(r, 1);
        assert_int_equal(quarantine_progress(&q, r), time == 0);
        assert_int_equal(quarantine_is_suspect(r), time == 1);
    }
    assert_int_equal(quarantine_fault(&q, r, true, true), QUARANTINE_POISONED);
    ledger_free(l);
}

static void
growing_request_continues_and_stuck_one_ends_after_20_faults(void **state)
{
    struct ledger *l = ledger_new(8, 1);
    struct request *r = take(l, 1);

    (void)state;
    for (int i = 0; i < 100; i++) {
        grow(r, 1);
        assert_int_equal(quarantine_fault(&q, r, true, false), QUARANTINE_RETRY);
    }
    for (int i = 1; i < QUARANTINE_STUCK - 1; i++)
        assert_int_equal(quarantine_fault(&q, r, true, false), QUARANTINE_RETRY);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(quarantine_fault(&q, r, false, false), QUARANTINE_RETRY);
    assert_int_equal(quarantine_fault(&q, r, true, false), QUARANTINE_LOST);
    ledger_free(l);
}

static void
poisoned_prompt_is_refused_for_600_s(void **state)
{
    static struct quarantine p;
    struct ledger *l = ledger_new(8, 1);
    struct request *bad = take(l, 1), *other = take(l, 2);

    (void)state;
    quarantine_poison(&p, 0, bad->submit, NSEC_S);
    assert_true(quarantine_is_poisoned(&p, 0, bad->submit, 600 * NSEC_S));
    assert_false(quarantine_is_poisoned(&p, 0, other->submit, 600 * NSEC_S));
    assert_false(quarantine_is_poisoned(&p, 1, bad->submit,
                                        600 * NSEC_S)); /* another model is not affected */
    assert_false(quarantine_is_poisoned(&p, 0, bad->submit, 601 * NSEC_S));
    for (int i = 0; i < QUARANTINE_PROMPTS; i++) quarantine_poison(&p, 0, other->submit, NSEC_S);
    assert_false(quarantine_is_poisoned(&p, 0, bad->submit, 2 * NSEC_S)); /* the table is bounded */
    ledger_free(l);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup(f, set_up)
    const struct CMUnitTest tests[] = {
        T(launched_and_unretired_steps_of_all_lanes_count),
        T(full_ledger_is_matched_with_full_trace_in_time),
        T(step_that_is_being_written_does_not_count),
        T(empty_or_invalid_trace_names_all_requests),
        T(two_faults_make_a_suspect_and_three_poison),
        T(suspect_past_its_fault_is_cleared_once),
        T(growing_request_continues_and_stuck_one_ends_after_20_faults),
        T(poisoned_prompt_is_refused_for_600_s),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
