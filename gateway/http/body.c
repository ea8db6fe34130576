#include "gateway/http/body.h"

enum { MAX_CHUNK_DIGITS = 8 };

enum body_state {
    BODY_DATA, /* bytes of a body with Content-Length */
    BODY_SIZE, /* hex digits of a chunk */
    BODY_SIZE_LF,
    BODY_CHUNK,
    BODY_CHUNK_CR,
    BODY_CHUNK_LF,
    BODY_END_CR, /* after the chunk of 0 bytes: the empty line, as trailers are refused */
    BODY_END_LF
};

void
body_init(struct http_body *b, const struct http_head *h)
{
    *b = (struct http_body){ .state = h->is_chunked ? BODY_SIZE : BODY_DATA, .left = h->length };
    b->is_complete = !h->is_chunked && !h->length;
}

static int
bad_chunk(struct http_fault *f, const char *what)
{
    return http_fault_set(f, 400, "chunk", "%s", what);
}

/* Validates one byte of a chunk line. */
static int
chunk_byte(struct http_body *b, char c, const struct http_limits *limits, struct http_fault *f)
{
    switch (b->state) {
    case BODY_SIZE: {
        const char *digits = "0123456789abcdefABCDEF", *d = c ? strchr(digits, c) : NULL;

        if (d && b->n_digits < MAX_CHUNK_DIGITS) {
            uint32_t value = (uint32_t)(d - digits);

            b->left = b->left * 16 + (value < 16 ? value : value - 6);
            b->n_digits++;
            return 0;
        }
        if (c != '\r' || !b->n_digits)
            return bad_chunk(f, "the length of a chunk is not 1 to 8 hex digits and CR LF; "
                                "extensions are refused");
        b->state = BODY_SIZE_LF;
        return 0;
    }
    case BODY_CHUNK_CR:
        if (c != '\r') return bad_chunk(f, "a chunk is longer than its length");
        b->state = BODY_CHUNK_LF;
        return 0;
    case BODY_END_CR:
        if (c != '\r') return bad_chunk(f, "trailers behind the last chunk are refused");
        b->state = BODY_END_LF;
        return 0;
    default:
        break;
    }
    if (c != '\n') return bad_chunk(f, "a line of the chunks does not end with CR LF");
    if (b->state == BODY_SIZE_LF) {
        if (b->n + b->left > limits->body_bytes)
            return http_fault_set(f, 413, "max_body", "the body has more than %llu bytes",
                                  (unsigned long long)limits->body_bytes);
        b->state = b->left ? BODY_CHUNK : BODY_END_CR;
    } else if (b->state == BODY_CHUNK_LF) {
        b->state = BODY_SIZE;
        b->n_digits = 0;
    } else
        b->is_complete = true;
    return 0;
}

int
body_decode(struct http_body *b, const char *in, size_t n, size_t *used, char *out, size_t *n_out,
            const struct http_limits *limits, struct http_fault *f)
{
    size_t at = 0, to = 0;
    int r = 0;

    while (at < n && !b->is_complete && r == 0) {
        if (b->state == BODY_DATA || b->state == BODY_CHUNK) {
            size_t take = MIN((uint64_t)(n - at), b->left);

            memmove(out + to, in + at, take);
            at += take;
            to += take;
            b->n += take;
            b->left -= take;
            if (b->left) break;
            if (b->state == BODY_DATA) b->is_complete = true;
            b->state = BODY_CHUNK_CR;
        } else
            r = chunk_byte(b, in[at++], limits, f);
    }
    *used = at;
    *n_out = to;
    return r < 0 ? r : b->is_complete;
}

bool
body_rate_count(struct http_rate *r, nsec now, size_t n, uint32_t least)
{
    bool fast = true;

    if (now - r->since >= HTTP_RATE_WINDOW) {
        fast = r->n >= (uint64_t)least * (uint64_t)(HTTP_RATE_WINDOW / NSEC_S);
        *r = (struct http_rate){ .since = now };
    }
    r->n += n;
    return fast;
}
