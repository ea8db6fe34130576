/* test_history.c - the promises of history.h, and what operators get of it from the real lagand. */
#include "daemon/history.h"
#include "tests/daemon/rig.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct rig r;

static void
events_are_numbered_and_the_oldest_go(void **state)
{
    struct daemon d = { .history = history_new() };
    const struct event *e;

    (void)state;
    assert_null(history_event(d.history, 1));
    history_add(&d, "worker", "w0", "first");
    e = history_event(d.history, 0);
    assert_int_equal(e->number, 1);
    assert_string_equal(e->text, "first");
    assert_null(history_event(d.history, 2));
    for (uint32_t i = 2; i <= HISTORY_EVENTS + 10; i++) history_add(&d, "worker", "", "%u", i);
    assert_int_equal(history_event(d.history, 1)->number, 11);
    assert_string_equal(history_event(d.history, 500)->text, "500");
    assert_int_equal(history_event(d.history, HISTORY_EVENTS + 10)->number, HISTORY_EVENTS + 10);
    assert_null(history_event(d.history, HISTORY_EVENTS + 11));
    history_add(&d, "", "", "ends \xe2\x82"); /* what is not whole is left out */
    assert_string_equal(history_event(d.history, HISTORY_EVENTS + 11)->text, "ends ");
    d.history = history_free(d.history);
}

static const msgpack_object *
result(struct dealer *c, uint64_t rid, const char *verb)
{
    call(c, rid, verb, NULL, NULL);
    return msg_get(&hear_type(c, LAGAN_MSG_REPLY, 30000)->map, "result");
}

static void
a_death_is_an_event_a_panic_and_a_number(void **state)
{
    const msgpack_object *list;
    struct dealer *api, *ctl;
    char *text;
    bool told = false;
    struct msg_span s;

    (void)state;
    rig_start(&r, "check", NULL); /* its worker fails a check at the fourth token */
    rig_ready(&r);
    api = dial(&r, "api.sock");
    ctl = dial(&r, "ctl.sock");
    SAY(api, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 10 });
    for (;;) {
        if (hear(api, 30000)->type == LAGAN_MSG_DONE) break; /* of the next one */
    }
    list = result(ctl, 1, "panic");
    assert_int_equal(list->via.array.size, 1);
    assert_string_equal(text_of(list->via.array.ptr, "worker"), "w0");
    assert_non_null(strstr(text_of(list->via.array.ptr, "words"), "sky is blue"));
    assert_non_null(strstr(text_of(list->via.array.ptr, "how"), "signal 6"));
    assert_int_equal(number(list->via.array.ptr, "requests"), 1);
    assert_true(msg_get(list->via.array.ptr, "log")->via.array.size > 0);

    list = msg_get(result(ctl, 2, "events"), "events");
    for (uint32_t i = 0; i < list->via.array.size; i++) {
        assert_int_equal(number(&list->via.array.ptr[i], "number"), i + 1);
        told |= !strcmp(text_of(&list->via.array.ptr[i], "kind"), "death");
    }
    assert_true(told);
    assert_int_equal(msg_str(result(api, 3, "metrics"), "text", &s), 0);
    text = strndup(s.p, s.n);
    assert_non_null(strstr(text, "lagan_requests_ended_total{reason=\"length\"} 1\n"));
    assert_non_null(strstr(text, "lagan_worker_restarts_total{worker=\"w0\",model=\"check\"} 1\n"));
    assert_non_null(strstr(text, "# TYPE lagan_worker_step_seconds gauge\n"));
    free(text);
    call(api, 4, "panic", NULL, NULL);
    hear_error(api, 4, LAGAN_E_UNAUTHORIZED, "ctl.sock", 30000);
    assert_int_equal(rig_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_numbered_and_the_oldest_go),
        rig_test(a_death_is_an_event_a_panic_and_a_number),
    };

    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
