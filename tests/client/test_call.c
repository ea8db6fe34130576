/* test_call.c - tests of lagan_call() and lagan_start_call() against mock_lagand. */
#include "client/client.h"
#include "tests/client/client_fixture.h"
#include "tests/test.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void
call_converts_json_in_both_directions(void **state)
{
    static const char args[] = "{\"a\":[1,-2,3.5,true,false,null,\"\\u00e9\\\"\\n\"],\"b\":{},"
                               "\"c\":[],\"d\":18446744073709551615,\"e\":-9223372036854775808,"
                               "\"f\":{\"g\":{\"h\":[[\"x\"]]}},\"i\":0.1}";
    static const char want[] = "{\"a\":[1,-2,3.5,true,false,null,\"\xc3\xa9\\\"\\n\"],\"b\":{},"
                               "\"c\":[],\"d\":18446744073709551615,\"e\":-9223372036854775808,"
                               "\"f\":{\"g\":{\"h\":[[\"x\"]]}},\"i\":0.1}";
    struct lagan *c = connect_mock();
    char *reply = NULL;
    uint32_t code = 0;

    (void)state;
    assert_int_equal(lagan_call(c, "echo", args, &reply, &code, 5000), 0);
    assert_string_equal(reply, want);
    free(reply);
    assert_int_equal(lagan_call(c, "tokenize", "{\"text\":\"hi\"}", &reply, &code, 5000), 0);
    assert_string_equal(reply, "{\"ids\":[104,105]}");
    free(reply);
    assert_int_equal(lagan_call(c, "pieces", NULL, &reply, &code, 5000), 0);
    assert_string_equal(reply, "[[226,130],[]]");
    free(reply);
    assert_int_equal(lagan_call(c, "echo", "{\"a\":", &reply, &code, 5000), -EINVAL);
    assert_int_equal(lagan_call(c, "echo", "{\"a\":1e999}", &reply, &code, 5000), -EINVAL);
    assert_int_equal(lagan_call(c, "nonsense", NULL, &reply, &code, 5000), -EREMOTEIO);
    assert_int_equal(code, LAGAN_E_UNSUPPORTED);
    assert_string_equal(lagan_errmsg(c), "the mock has no such verb");
    assert_int_equal(lagan_call(c, "silent", NULL, &reply, &code, 30), -ETIMEDOUT);
    lagan_close(c);
}

static void
events_during_a_call_are_kept_in_order(void **state)
{
    struct lagan *c = connect_mock();
    char *reply = NULL;
    uint32_t i;

    (void)state;
    submit_text(c, "echo abcdef");
    assert_int_equal(lagan_call(c, "echo", NULL, &reply, NULL, 5000), 0);
    free(reply);
    for (i = 0; i < 6; i++) assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0], "abcdef"[i]);
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    lagan_close(c);
}

static void
started_call_ends_with_its_reply_or_error(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev;
    uint64_t id[3];

    (void)state;
    assert_int_equal(lagan_start_call(c, "echo", "{\"a\":[1,true]}", &id[0]), 0);
    assert_int_equal(lagan_start_call(c, "fly", NULL, &id[1]), 0);
    assert_int_equal(lagan_start_call(c, "echo", "not JSON", &id[2]), -EINVAL);
    submit_text(c, "echo z");
    ev = next(c, LAGAN_EVENT_REPLY);
    assert_int_equal(ev.id, id[0]);
    assert_string_equal(ev.text, "{\"a\":[1,true]}");
    assert_int_equal(ev.text_len, strlen(ev.text));
    assert_int_equal(next(c, LAGAN_EVENT_ERROR).id, id[1]);
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0], 'z');
    lagan_close(c);
}

static void
started_call_ends_with_error_when_its_connection_is_lost(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    uint64_t id[2], open = submit_text(c, "hang");

    (void)state;
    assert_int_equal(lagan_next(c, &ev, 100), 0);
    kill(mock.pid, SIGSTOP);
    assert_int_equal(lagan_start_call(c, "echo", NULL, &id[0]), 0);
    mock_kill(&mock);
    ev = next(c, LAGAN_EVENT_ERROR);
    assert_int_equal(ev.id, id[0]);
    assert_non_null(strstr(ev.message, "it is unknown whether lagand executed the command"));
    assert_int_equal(lagan_start_call(c, "echo", "{}", &id[1]), 0); /* sent after the reconnect */
    mock_start(&mock, "1");
    ev = next(c, LAGAN_EVENT_REPLY);
    assert_int_equal(ev.id, id[1]);
    mock_kill(&mock);
    lagan_set_reconnect_timeout(c, 100);
    assert_int_equal(lagan_start_call(c, "echo", NULL, &id[1]), 0);
    for (uint32_t n = 0; n < 2; n++) { /* of the call and of the request */
        ev = next(c, LAGAN_EVENT_ERROR);
        assert_true(ev.id == id[1] || ev.id == open);
    }
    next(c, LAGAN_EVENT_DISCONNECTED);
    lagan_close(c);
    mock_start(&mock, "1"); /* for the other tests */
}

static void
call_ends_when_the_connection_is_lost(void **state)
{
    struct mock own;
    struct lagan *c;
    char *reply;

    (void)state;
    mock_dir(&own);
    mock_start(&own, "1");
    assert_int_equal(lagan_open(&c, own.endpoint, 30000), 0);
    mock_kill(&own);
    assert_int_equal(lagan_call(c, "echo", NULL, &reply, NULL, 5000), -ECONNRESET);
    lagan_close(c);
    mock_done(&own);
}

static void
timed_out_call_is_not_sent_after_a_late_connect(void **state)
{
    struct mock later;
    struct lagan *c;
    char *reply;

    (void)state;
    mock_dir(&later);
    assert_int_equal(lagan_open(&c, later.endpoint, 0), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(lagan_call(c, "count", NULL, &reply, NULL, 20), -ETIMEDOUT);
    assert_int_equal(c->n_out, 0);
    mock_start(&later, "1");
    assert_int_equal(lagan_call(c, "count", NULL, &reply, NULL, 30000), 0);
    assert_string_equal(reply, "1");
    free(reply);
    lagan_close(c);
    mock_done(&later);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_converts_json_in_both_directions),
        cmocka_unit_test(events_during_a_call_are_kept_in_order),
        cmocka_unit_test(started_call_ends_with_its_reply_or_error),
        cmocka_unit_test(started_call_ends_with_error_when_its_connection_is_lost),
        cmocka_unit_test(call_ends_when_the_connection_is_lost),
        cmocka_unit_test(timed_out_call_is_not_sent_after_a_late_connect),
    };

    return cmocka_run_group_tests_name("call", tests, setup, teardown);
}
