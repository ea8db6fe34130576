/* test_history.c - a history checker that sees nothing proves nothing: planted wrongs, one each. */
#include "include/lagan_wire.h"
#include "tests/test.h"
#include "tests/torture/history.h"
#include "tests/torture/mock.h"

#include <stdio.h>
#include <string.h>

enum { ID = 7, N = 6 };
static const uint64_t SEED = 40;
static struct history h;

static int
begin(void **state)
{
    (void)state;
    return history_open(&h, 16);
}

static int
finish(void **state)
{
    (void)state;
    history_close(&h);
    return 0;
}

/* Tokens [first, first + n) of the request, as they should be. */
static bool
tokens(uint32_t first, uint32_t n)
{
    int32_t t[N + 1];

    for (uint32_t i = 0; i < n; i++) t[i] = mock_token(SEED, first + i);
    return history_tokens(&h, ID, first, t, n);
}

static void
accept(void)
{
    assert_true(history_accepted(&h, ID, SEED, N));
}

static void
says(const char *words)
{
    if (!strstr(h.why, words)) fail_msg("\"%s\", not \"%s\"", h.why, words);
    /* The first sentence stays, and nothing is right any more. */
    assert_false(history_accepted(&h, 1000, 1, 1));
    assert_non_null(strstr(h.why, words));
}

static void
a_right_history_is_right(void **state)
{
    (void)state;
    accept();
    assert_true(history_accepted(&h, 8, 1, 3));
    assert_true(tokens(0, 2));
    assert_true(history_tokens(&h, 8, 0, NULL, 0));
    assert_true(tokens(2, 4));
    assert_true(history_done(&h, ID, LAGAN_FINISH_LENGTH, N));
    h.allowed = UINT64_C(1) << LAGAN_E_QUEUE_FULL;
    assert_true(history_failed(&h, 8, LAGAN_E_QUEUE_FULL));
    assert_true(history_settled(&h));
    assert_true(h.n_accepted == 2 && h.n_done == 1 && h.n_failed == 1 && h.n_tokens == N);
}

static void
more_requests_than_places_are_followed_as_long_as_they_end(void **state)
{
    (void)state;
    accept();
    for (uint64_t id = 100; id < 400; id++) {
        int32_t t = mock_token(id, 0);

        assert_true(history_accepted(&h, id, id, 1));
        assert_true(history_tokens(&h, id, 0, &t, 1));
        assert_true(history_done(&h, id, LAGAN_FINISH_LENGTH, 1));
    }
    assert_true(tokens(0, N)); /* still known */
    assert_true(history_done(&h, ID, LAGAN_FINISH_LENGTH, N));
    assert_true(history_settled(&h));
}

static void
a_lost_token_is_seen(void **state)
{
    (void)state;
    accept();
    tokens(0, 2);
    assert_false(tokens(3, 1));
    says("position 3 comes after 2 tokens");
}

static void
a_repeated_token_is_seen(void **state)
{
    (void)state;
    accept();
    tokens(0, 2);
    assert_false(tokens(1, 1));
    says("position 1 comes after 2 tokens");
}

static void
two_tokens_in_the_wrong_order_are_seen(void **state)
{
    int32_t t[] = { mock_token(SEED, 1), mock_token(SEED, 0) };

    (void)state;
    accept();
    assert_false(history_tokens(&h, ID, 0, t, 2));
    says("at 0, not");
}

static void
another_requests_token_is_seen(void **state)
{
    int32_t t = mock_token(SEED + 1, 0);

    (void)state;
    accept();
    assert_false(history_tokens(&h, ID, 0, &t, 1));
    says("at 0, not");
}

static void
more_tokens_than_asked_for_are_seen(void **state)
{
    (void)state;
    accept();
    assert_false(tokens(0, N + 1));
    says("more than its 6 tokens");
}

static void
an_end_too_early_is_seen(void **state)
{
    (void)state;
    accept();
    tokens(0, N - 1);
    assert_false(history_done(&h, ID, LAGAN_FINISH_LENGTH, N - 1));
    says("5 of 6 came");
}

static void
a_count_that_is_not_what_came_is_seen(void **state)
{
    (void)state;
    accept();
    tokens(0, N);
    assert_false(history_done(&h, ID, LAGAN_FINISH_LENGTH, N - 1));
    says("DONE says 5 tokens, 6 of 6 came");
}

static void
a_second_end_is_seen(void **state)
{
    (void)state;
    accept();
    tokens(0, N);
    assert_true(history_done(&h, ID, LAGAN_FINISH_LENGTH, N));
    assert_false(history_failed(&h, ID, LAGAN_E_WORKER_LOST));
    says("ERROR after its end");
}

static void
a_token_after_the_end_is_seen(void **state)
{
    (void)state;
    accept();
    tokens(0, N);
    assert_true(history_done(&h, ID, LAGAN_FINISH_LENGTH, N));
    assert_false(history_tokens(&h, ID, N, NULL, 0));
    says("tokens after its end");
}

static void
an_error_that_is_not_allowed_is_seen(void **state)
{
    (void)state;
    h.allowed = UINT64_C(1) << LAGAN_E_POISONED;
    accept();
    tokens(0, 1);
    assert_false(history_failed(&h, ID, LAGAN_E_WORKER_LOST));
    says("failed with code 41 after 1 tokens");
}

static void
silence_is_seen(void **state)
{
    (void)state;
    accept();
    tokens(0, 4);
    assert_false(history_settled(&h));
    says("no end, 4 of 6 tokens");
}

static void
an_event_of_nobody_is_seen(void **state)
{
    (void)state;
    assert_false(tokens(0, 1));
    says("never accepted");
}

static void
a_second_accept_is_seen(void **state)
{
    (void)state;
    accept();
    assert_false(history_accepted(&h, ID, SEED, N));
    says("accepted twice");
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(a_right_history_is_right),
        T(more_requests_than_places_are_followed_as_long_as_they_end),
        T(a_lost_token_is_seen),
        T(a_repeated_token_is_seen),
        T(two_tokens_in_the_wrong_order_are_seen),
        T(another_requests_token_is_seen),
        T(more_tokens_than_asked_for_are_seen),
        T(an_end_too_early_is_seen),
        T(a_count_that_is_not_what_came_is_seen),
        T(a_second_end_is_seen),
        T(a_token_after_the_end_is_seen),
        T(an_error_that_is_not_allowed_is_seen),
        T(silence_is_seen),
        T(an_event_of_nobody_is_seen),
        T(a_second_accept_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
