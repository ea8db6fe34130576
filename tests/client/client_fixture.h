/* client_fixture.h - a mock lagand for each test of a program, and a client of it. */
#ifndef TESTS_CLIENT_FIXTURE_H
#define TESTS_CLIENT_FIXTURE_H

#include "include/lagan.h"
#include "tests/client/mock.h"

extern struct mock mock; /* from setup() to teardown() */

int setup(void **state);
int teardown(void **state);
struct lagan *connect_mock(void);
/* The next event, which must be of that kind and come within half a minute. */
struct lagan_event next(struct lagan *c, enum lagan_event_kind kind);

#endif
