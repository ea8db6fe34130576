/* api_assert.h - what tests of the API say about requests and responses of api_fixture.h. */
#pragma once
#include "tests/gateway/api_fixture.h"
#include "tests/test.h"

extern struct api_fixture f; /* valid from open_fixture() to close_fixture() */

int open_fixture(void **state);
int close_fixture(void **state);
/* A POST to /v1/completions. */
struct http_exchange *complete(const char *body);

/* The header lines of an open request that was taken. */
const char *ignored_of(const struct http_exchange *x);
/* Fails unless the body is `want`, where $ID is the id of the response. */
void assert_body(const struct http_exchange *x, const char *want);
/* Fails unless the response is an error with these. param NULL: null. */
void assert_fault(const struct http_exchange *x, int status, const char *code, const char *param);
/* Fails unless lagand's request has the line "key=value"; value NULL: unless it has no such key. */
void assert_key(const struct sent *s, const char *key, const char *value);
