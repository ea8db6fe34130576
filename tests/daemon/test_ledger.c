/* test_ledger.c - the promises of ledger.h. */
#include "daemon/ledger.h"

#include "tests/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CAPACITY = 32 };

static struct rec_submit *
submit(uint32_t prompt)
{
    struct rec_submit *s = calloc(1, sizeof *s);

    assert_non_null(s);
    s->n_prompt = prompt;
    s->max_tokens = 5;
    return s;
}

static struct row *
take(struct ledger *l, uint32_t client, uint64_t rid)
{
    struct row *r;

    assert_int_equal(ledger_take(l, client, rid, submit(10), sizeof(struct rec_submit), &r), 0);
    return r;
}

static void
end(struct ledger *l, struct row *r)
{
    row_move(l, r, ROW_ENDED);
    ledger_told(l, r);
    r->held = false;
    ledger_give(l, r);
}

static void
a_row_names_itself_in_its_record_and_ids_are_never_used_again(void **state)
{
    struct ledger *l = ledger_new(CAPACITY, 1);
    struct row *r = take(l, 1, 7);
    uint32_t index = r->index, gen = r->gen;
    req_id id = r->id;

    (void)state;
    assert_int_equal(r->submit->row, index);
    assert_int_equal(r->submit->gen, gen);
    assert_int_equal(r->submit->id, id);
    end(l, r);
    assert_null(ledger_row(l, index));
    r = take(l, 1, 7);
    assert_int_equal(r->index, index);
    assert_int_not_equal(r->gen, gen);
    assert_true(r->id > id);
    ledger_free(l);
}

static void
one_client_has_an_id_once_while_it_is_open_others_may_have_it_too(void **state)
{
    struct ledger *l = ledger_new(CAPACITY, 1);
    struct rec_submit *s = submit(1);
    struct row *r = take(l, 1, 7), *other;

    (void)state;
    assert_int_equal(ledger_take(l, 1, 7, s, sizeof *s, &other), -EEXIST);
    free(s);
    other = take(l, 2, 7);
    assert_ptr_equal(ledger_find(l, 1, 7), r);
    assert_ptr_equal(ledger_find(l, 2, 7), other);
    row_move(l, r, ROW_ENDED);
    assert_ptr_equal(ledger_find(l, 1, 7), r);
    ledger_told(l, r); /* a worker may still hold it; its number is free */
    assert_null(ledger_find(l, 1, 7));
    take(l, 1, 7);
    ledger_check(l);
    ledger_give(l, r);
    ledger_check(l);
    ledger_free(l);
}

static void
a_full_ledger_says_so(void **state)
{
    struct ledger *l = ledger_new(CAPACITY, 1);
    struct rec_submit *s = submit(1);
    struct row *r;

    (void)state;
    for (uint32_t i = 0; i < CAPACITY; i++) take(l, 1, i);
    assert_int_equal(ledger_take(l, 1, CAPACITY, s, sizeof *s, &r), -ENOSPC);
    free(s);
    end(l, ledger_find(l, 1, 3));
    take(l, 1, CAPACITY);
    ledger_check(l);
    ledger_free(l);
}

static void
the_queue_keeps_the_order_and_counts_prompts(void **state)
{
    struct ledger *l = ledger_new(CAPACITY, 1);
    struct row *r = NULL;

    (void)state;
    for (uint32_t i = 0; i < 5; i++) take(l, 1, i);
    assert_int_equal(ledger_n_queued(l), 5);
    assert_int_equal(ledger_queued_tokens(l), 50);
    row_move(l, ledger_find(l, 1, 2), ROW_DISPATCHED);
    row_move(l, ledger_find(l, 1, 0), ROW_ENDED);
    for (uint64_t want = 1; (r = ledger_next_queued(l, r)); want += want == 1 ? 2 : 1) {
        assert_int_equal(r->rid, want);
    }
    assert_int_equal(ledger_n_queued(l), 3);
    assert_int_equal(ledger_queued_tokens(l), 30);
    ledger_free(l);
}

static void
bytes_grow_at_the_end_and_shrink_at_the_front(void **state)
{
    struct bytes b = { 0 };

    (void)state;
    for (int i = 0; i < 1000; i++) assert_int_equal(bytes_add(&b, &(char){ (char)i }, 1), 0);
    bytes_drop(&b, 998);
    assert_int_equal(b.n, 2);
    assert_int_equal((uint8_t)b.p[0], 998 % 256);
    bytes_drop(&b, 2);
    assert_int_equal(b.n, 0);
    bytes_done(&b);
}

/* Random lives of rows against the invariants. */
static void
any_order_of_lives_keeps_the_books(void **state)
{
    struct ledger *l = ledger_new(CAPACITY, 3);

    (void)state;
    test_seed();
    for (int i = 0; i < 20000; i++) {
        uint64_t rid = test_below(64);
        uint32_t client = test_below(3);
        struct row *r = ledger_find(l, client, rid);

        if (!r) {
            struct rec_submit *s = submit(test_below(100));

            if (ledger_take(l, client, rid, s, sizeof *s, &r) < 0) free(s);
        } else if (r->state == ROW_ENDED) {
            ledger_told(l, r);
            r->held = false;
            ledger_give(l, r);
        } else {
            row_move(l, r,
                     r->state == ROW_STREAMING || test_below(3) == 0 ? ROW_ENDED : r->state + 1);
        }
        if (i % 100 == 0) ledger_check(l);
    }
    ledger_check(l);
    ledger_free(l);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_names_itself_in_its_record_and_ids_are_never_used_again),
        cmocka_unit_test(one_client_has_an_id_once_while_it_is_open_others_may_have_it_too),
        cmocka_unit_test(a_full_ledger_says_so),
        cmocka_unit_test(the_queue_keeps_the_order_and_counts_prompts),
        cmocka_unit_test(bytes_grow_at_the_end_and_shrink_at_the_front),
        cmocka_unit_test(any_order_of_lives_keeps_the_books),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
