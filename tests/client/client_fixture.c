/* client_fixture.c - see client_fixture.h. */
#include "tests/client/client_fixture.h"

#include "tests/test.h"

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
