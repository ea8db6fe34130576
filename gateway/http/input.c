#include "base/array.h"
#include "gateway/http/http_internal.h"

enum { IN_START = 512 };

void
input_release(struct http_exchange *x)
{
    x->http->input_bytes -= x->in_cap;
    free(x->in);
    x->in = NULL;
    x->in_n = x->in_cap = 0;
}

int
input_append(struct http_exchange *x, const char *p, size_t n)
{
    uint32_t before = x->in_cap;
    struct http *h = x->http;

    if (x->in_n + n > x->in_cap && h->input_bytes + n > h->max_input) return -ENOMEM;
    TRY(array_grow(&x->in, &x->in_cap, MAX(x->in_n + n, (size_t)IN_START), UINT32_MAX, 1));
    h->input_bytes += x->in_cap - before;
    memcpy(x->in + x->in_n, p, n);
    x->in_n += (uint32_t)n;
    return 0;
}

void
input_drop(struct http_exchange *x, uint32_t n)
{
    uint32_t rest = x->in_n - n;
    char *p;

    if (!rest) {
        input_release(x);
        return;
    }
    memmove(x->in, x->in + n, rest);
    x->in_n = rest;
    if (x->in_cap <= 2 * MAX(rest, (uint32_t)IN_START)) return;
    p = realloc(x->in, rest);
    if (!p) return;
    x->http->input_bytes -= x->in_cap - rest;
    x->in = p;
    x->in_cap = rest;
}

int
input_decode(struct http_exchange *x, struct http_fault *f)
{
    size_t used = 0, n = 0, done = x->body.n;
    int r;

    if (!x->in) return x->body.is_complete;
    r = body_decode(&x->body, x->in + x->raw_at, x->in_n - x->raw_at, &used, x->in + done, &n,
                    &x->http->limits, f);
    x->raw_at += (uint32_t)used;
    /* All input was decoded: the next bytes go behind the body. */
    if (r == 0) x->in_n = x->raw_at = (uint32_t)x->body.n;
    return r;
}
