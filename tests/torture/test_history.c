/* test_history.c - each planted violation must be detected by the history checker. */
#include "include/lagan_wire.h"
#include "tests/test.h"
#include "tests/torture/history.h"
#include "tests/torture/mock.h"

#include <stdio.h>

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

/* Reports the correct tokens [first, first + n). */
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
    /* The first sentence stays, and every later event fails. */
    assert_false(history_accepted(&h, 1000, 1, 1));
    assert_non_null(strstr(h.why, words));
}

static void
correct_history_is_accepted(void **state)
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
table_entries_of_ended_requests_are_reused(void **state)
{
    (void)state;
    accept();
    for (uint64_t id = 100; id < 400; id++) {
        int32_t t = mock_token(id, 0);

        assert_true(history_accepted(&h, id, id, 1));
        assert_true(history_tokens(&h, id, 0, &t, 1));
        assert_true(history_done(&h, id, LAGAN_FINISH_LENGTH, 1));
    }
    assert_true(tokens(0, N)); /* still remembered */
    assert_true(history_done(&h, ID, LAGAN_FINISH_LENGTH, N));
    assert_true(history_settled(&h));
}

static void
lost_token_is_detected(void **state)
{
    (void)state;
    accept();
    tokens(0, 2);
    assert_false(tokens(3, 1));
    says("position 3 comes after 2 tokens");
}

static void
repeated_token_is_detected(void **state)
{
    (void)state;
    accept();
    tokens(0, 2);
    assert_false(tokens(1, 1));
    says("position 1 comes after 2 tokens");
}

static void
reordered_tokens_are_detected(void **state)
{
    int32_t t[] = { mock_token(SEED, 1), mock_token(SEED, 0) };

    (void)state;
    accept();
    assert_false(history_tokens(&h, ID, 0, t, 2));
    says("at 0, not");
}

static void
token_of_another_request_is_detected(void **state)
{
    int32_t t = mock_token(SEED + 1, 0);

    (void)state;
    accept();
    assert_false(history_tokens(&h, ID, 0, &t, 1));
    says("at 0, not");
}

static void
too_many_tokens_are_detected(void **state)
{
    (void)state;
    accept();
    assert_false(tokens(0, N + 1));
    says("more than its 6 tokens");
}

static void
early_end_is_detected(void **state)
{
    (void)state;
    accept();
    tokens(0, N - 1);
    assert_false(history_done(&h, ID, LAGAN_FINISH_LENGTH, N - 1));
    says("5 of 6 came");
}

static void
wrong_token_count_is_detected(void **state)
{
    (void)state;
    accept();
    tokens(0, N);
    assert_false(history_done(&h, ID, LAGAN_FINISH_LENGTH, N - 1));
    says("DONE says 5 tokens, 6 of 6 came");
}

static void
second_end_is_detected(void **state)
{
    (void)state;
    accept();
    tokens(0, N);
    assert_true(history_done(&h, ID, LAGAN_FINISH_LENGTH, N));
    assert_false(history_failed(&h, ID, LAGAN_E_WORKER_LOST));
    says("ERROR after its end");
}

static void
token_after_the_end_is_detected(void **state)
{
    (void)state;
    accept();
    tokens(0, N);
    assert_true(history_done(&h, ID, LAGAN_FINISH_LENGTH, N));
    assert_false(history_tokens(&h, ID, N, NULL, 0));
    says("tokens after its end");
}

static void
forbidden_error_is_detected(void **state)
{
    (void)state;
    h.allowed = UINT64_C(1) << LAGAN_E_POISONED;
    accept();
    tokens(0, 1);
    assert_false(history_failed(&h, ID, LAGAN_E_WORKER_LOST));
    says("failed with code 41 after 1 tokens");
}

static void
missing_end_is_detected(void **state)
{
    (void)state;
    accept();
    tokens(0, 4);
    assert_false(history_settled(&h));
    says("no end, 4 of 6 tokens");
}

static void
event_of_an_unknown_request_is_detected(void **state)
{
    (void)state;
    assert_false(tokens(0, 1));
    says("never accepted");
}

static void
second_accept_is_detected(void **state)
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
        T(correct_history_is_accepted),     T(table_entries_of_ended_requests_are_reused),
        T(lost_token_is_detected),          T(repeated_token_is_detected),
        T(reordered_tokens_are_detected),   T(token_of_another_request_is_detected),
        T(too_many_tokens_are_detected),    T(early_end_is_detected),
        T(wrong_token_count_is_detected),   T(second_end_is_detected),
        T(token_after_the_end_is_detected), T(forbidden_error_is_detected),
        T(missing_end_is_detected),         T(event_of_an_unknown_request_is_detected),
        T(second_accept_is_detected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
