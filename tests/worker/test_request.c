/* test_request.c - request.h: a fixed number of slots, each with its own buffer. */
#include "worker/io/request.h"

#include "tests/test.h"

#include <stdio.h>
#include <unistd.h>

enum { N = 8, IDS = 1 << 20, TEXT = 1 << 20 };

/* Resident memory of this process in KiB. */
static long
resident(void)
{
    long all = 0, here = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &all, &here), 2);
    fclose(f);
    return here * (sysconf(_SC_PAGESIZE) / 1024);
}

static void
every_slot_is_taken_once_and_reused(void **state)
{
    struct requests q;
    struct worker_request *r[N];
    struct err e;

    (void)state;
    assert_int_equal(requests_open(&q, N, IDS, TEXT, &e), 0);
    for (int i = 0; i < N; i++) {
        r[i] = request_take(&q);
        assert_non_null(r[i]);
        for (int k = 0; k < i; k++) assert_ptr_not_equal(r[i], r[k]);
        r[i]->state = REQUEST_LIVE;
        r[i]->ledger_index = (uint32_t)i;
        r[i]->gen = 7;
        assert_ptr_equal(r[i]->seq.owner, r[i]);
    }
    assert_null(request_take(&q));
    assert_ptr_equal(request_find(&q, 3, 7), r[3]);
    assert_null(request_find(&q, 3, 8));
    request_give(&q, r[3]);
    assert_null(request_find(&q, 3, 7));
    assert_ptr_equal(request_take(&q), r[3]);
    assert_int_equal(r[3]->ledger_index, 0); /* no field of the previous request is left */
    requests_close(&q);
}

static void
slots_are_freed_in_any_order(void **state)
{
    uint32_t taken = 0, n = 0;
    struct worker_request *r[N];
    struct requests q;
    struct err e;

    (void)state;
    assert_int_equal(requests_open(&q, N, IDS, TEXT, &e), 0);
    for (int i = 0; i < 2000; i++) {
        if (test_below(2) && n < N) {
            r[n] = request_take(&q);
            assert_non_null(r[n]);
            r[n]->state = REQUEST_LIVE;
            assert_false(taken >> r[n]->slot & 1);
            taken |= 1u << r[n++]->slot;
        } else if (n > 0) {
            uint32_t k = test_below(n);

            taken &= ~(1u << r[k]->slot);
            request_give(&q, r[k]);
            r[k] = r[--n];
        }
        assert_int_equal(q.n_used, n);
        if (n == N) assert_null(request_take(&q));
    }
    requests_close(&q);
}

/* Clearing the slots took 13 MiB and delayed READY after a crash. */
static void
unused_slots_use_no_memory(void **state)
{
    enum { MANY = 4096 };
    struct requests q;
    struct err e;
    long before = resident();

    (void)state;
    assert_int_equal(requests_open(&q, MANY, 1 << 10, 1 << 10, &e), 0);
    assert_true(resident() - before < 1000); /* KiB; one page per slot would be 16,384 */
    assert_non_null(request_take(&q));
    requests_close(&q);
}

/* Otherwise the next request's tokens would be sent as a call's, and its client would never get a
 * reply. */
static void
slot_of_a_call_is_reused_for_a_request(void **state)
{
    struct requests q;
    struct worker_request *r;
    struct err e;

    (void)state;
    assert_int_equal(requests_open(&q, N, IDS, TEXT, &e), 0);
    r = request_take(&q);
    r->state = REQUEST_TEXT;
    r->kind = REQUEST_TOKENIZE;
    request_give(&q, r);
    assert_ptr_equal(request_take(&q), r);
    assert_int_equal(r->kind, REQUEST_GENERATE);
    requests_close(&q);
}

static void
buffers_of_slots_do_not_overlap(void **state)
{
    struct requests q;
    struct worker_request *a, *b;
    struct err e;

    (void)state;
    assert_int_equal(requests_open(&q, N, IDS, TEXT, &e), 0);
    a = request_take(&q);
    b = request_take(&q);
    memset(a->ids, 1, IDS * sizeof *a->ids);
    memset(a->text, 2, TEXT);
    memset(a->stops, 3, REQUEST_STOPS_BYTES);
    memset(b->ids, 4, IDS * sizeof *b->ids);
    assert_int_equal(a->ids[IDS - 1], 0x01010101);
    assert_int_equal(a->text[TEXT - 1], 2);
    assert_int_equal(a->stops[REQUEST_STOPS_BYTES - 1], 3);
    assert_int_equal(b->ids[0], 0x04040404);
    a->state = b->state = REQUEST_LIVE;
    requests_close(&q);
}

static void
long_request_returns_its_memory(void **state)
{
    struct requests q;
    struct worker_request *r;
    struct err e;
    long before, during;

    (void)state;
    assert_int_equal(requests_open(&q, N, IDS, TEXT, &e), 0);
    before = resident();
    r = request_take(&q);
    r->state = REQUEST_LIVE;
    memset(r->ids, 1, IDS * sizeof *r->ids);
    r->n_ids = IDS;
    during = resident();
    assert_true(during - before > 3000); /* KiB of 4 MiB */
    request_give(&q, r);
    assert_true(resident() < during - 3000);
    requests_close(&q);
}

static void
kept_rows_of_an_ended_search_take_no_memory(void **state)
{
    enum { ROWS = 4 << 20 };
    struct requests q;
    struct worker_request *r;
    struct err e;
    long before, during;

    (void)state;
    assert_int_equal(requests_open(&q, N, IDS, TEXT, &e), 0);
    requests_open_rows(&q, ROWS);
    before = resident();
    r = request_take(&q);
    r->state = REQUEST_LIVE;
    assert_non_null(r->rows);
    memset(r->rows, 1, r->rows_bytes = ROWS);
    during = resident();
    assert_true(during - before > 3000); /* KiB of 4 MiB */
    request_give(&q, r);
    assert_true(resident() < during - 3000);
    requests_close(&q);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slot_is_taken_once_and_reused),
        cmocka_unit_test(slots_are_freed_in_any_order),
        cmocka_unit_test(unused_slots_use_no_memory),
        cmocka_unit_test(slot_of_a_call_is_reused_for_a_request),
        cmocka_unit_test(buffers_of_slots_do_not_overlap),
        cmocka_unit_test(long_request_returns_its_memory),
        cmocka_unit_test(kept_rows_of_an_ended_search_take_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
