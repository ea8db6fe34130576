/* api_assert.c - see api_assert.h. */
#include "tests/gateway/api_assert.h"

struct api_fixture f;

int
open_fixture(void **state)
{
    (void)state;
    api_fixture_open(&f);
    return 0;
}

int
close_fixture(void **state)
{
    (void)state;
    api_fixture_close(&f);
    return 0;
}

struct http_exchange *
complete(const char *body)
{
    return ask(&f, HTTP_POST, "/v1/completions", body);
}

const char *
ignored_of(const struct http_exchange *x)
{
    struct exchange *e = x->user;

    assert_false(x->started);
    out_bytes(&e->fields, "", 1);
    e->fields.n--;
    return e->fields.p;
}

void
assert_body(const struct http_exchange *x, const char *want)
{
    CLEAN(out_free) struct out have = { 0 };
    CLEAN(out_free) struct out full = { 0 };
    const char *id, *at;

    out_bytes(&have, x->sent.p, x->sent.n);
    out_bytes(&have, "", 1);
    id = strstr(have.p, "{\"id\":\"");
    id = id ? id + 7 : "";
    while ((at = strstr(want, "$ID"))) {
        out_bytes(&full, want, (size_t)(at - want));
        out_bytes(&full, id, strcspn(id, "\""));
        want = at + 3;
    }
    out_bytes(&full, want, strlen(want) + 1);
    assert_string_equal(have.p, full.p);
}

void
assert_fault(const struct http_exchange *x, int status, const char *code, const char *param)
{
    CLEAN(out_free) struct out have = { 0 };
    char text[256];

    out_bytes(&have, x->sent.p, x->sent.n);
    out_bytes(&have, "", 1);
    snprintf(text, sizeof text, "\",\"param\":%s%s%s,\"code\":\"%s\"}}", param ? "\"" : "",
             param ? param : "null", param ? "\"" : "", code);
    if (x->status != status || !strstr(have.p, text))
        fail_msg("status %d, body %s; expected %d and %s", x->status, have.p, status, text);
    assert_int_equal(memcmp(have.p, "{\"error\":{\"message\":\"", 21), 0);
    assert_true(x->ended);
}

void
assert_key(const struct sent *s, const char *key, const char *value)
{
    char line[256];
    const char *at;

    snprintf(line, sizeof line, value ? "%s=%s\n" : "%s=", key, value);
    at = strstr(s->text, line);
    while (at && at != s->text && at[-1] != '\n') at = strstr(at + 1, line);
    if (value ? !at : !!at) fail_msg("the request is\n%s\nexpected %s", s->text, line);
}
