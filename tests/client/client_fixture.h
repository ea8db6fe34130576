/* client_fixture.h - fixture: a mock lagand for each test, and a client connected to it. */
#pragma once
#include "include/lagan.h"
#include "tests/client/mock.h"

extern struct mock mock; /* valid from setup() to teardown() */

int setup(void **state);
int teardown(void **state);
struct lagan *connect_mock(void);
/* Returns the next event, which must be of this kind and arrive within 30 s. */
struct lagan_event next(struct lagan *c, enum lagan_event_kind kind);
/* Submits a request whose text is a command of mock_lagand. Returns its id. */
uint64_t submit_text(struct lagan *c, const char *text);
