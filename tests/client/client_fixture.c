/* client_fixture.c - see client_fixture.h. */
#include "tests/client/client_fixture.h"

#include "tests/test.h"

#include <string.h>

struct mock mock;

int
setup(void **state)
{
    (void)state;
    mock_dir(&mock);
    mock_start(&mock, "1");
    return 0;
}

int
teardown(void **state)
{
    (void)state;
    mock_done(&mock);
    return 0;
}

struct lagan *
connect_mock(void)
{
    struct lagan *c = NULL;

    if (lagan_open(&c, mock.endpoint, 30000) < 0) fail_msg("%s", lagan_errmsg(NULL));
    return c;
}

struct lagan_event
next(struct lagan *c, enum lagan_event_kind kind)
{
    struct lagan_event ev = { sizeof ev };
    int r = lagan_next(c, &ev, 30000);

    if (r != 1) fail_msg("%d instead of an event: %s", r, lagan_errmsg(c));
    if (ev.kind != kind)
        fail_msg("event %d instead of %d: %s", ev.kind, kind, ev.message ? ev.message : "");
    return ev;
}

uint64_t
submit_text(struct lagan *c, const char *text)
{
    struct lagan_request *r = lagan_request_new();
    uint64_t id = 0;

    assert_int_equal(lagan_set_str(r, "text", text, strlen(text)), 0);
    assert_int_equal(lagan_set_int(r, "max_tokens", 100000), 0);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    return id;
}
