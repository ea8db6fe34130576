/* body.h - decodes the body of one request: Content-Length or chunks (RFC 9112, 6 and 7).
 *
 * Pure: no I/O, no memory, no clock of its own. Each byte is validated once, so the result does not
 * depend on how the bytes arrived. */
#pragma once
#include "gateway/http/head.h"

/* body_rate is validated over windows of this length. */
#define HTTP_RATE_WINDOW (10 * NSEC_S)

struct http_body {
    uint64_t n;    /* bytes of the decoded body so far */
    uint64_t left; /* bytes that are known to follow: of the body, or of the current chunk */
    bool is_complete;

    /* private */
    uint8_t state, n_digits;
};

/* Prepares *b for the body that a complete head announces. */
void body_init(struct http_body *b, const struct http_head *h);

/* Decodes in[0 .. n) to `out`, which may be `in` or lie before it. Sets *used and *n_out to the
 * bytes read and written; bytes behind the body are not read. Returns 1: the body is complete; 0:
 * more bytes are needed; -EPROTO: refused, *f says why. */
int body_decode(struct http_body *b, const char *in, size_t n, size_t *used, char *out,
                size_t *n_out, const struct http_limits *limits, struct http_fault *f) MUST_USE;

/* Bytes that arrived since a time. */
struct http_rate {
    nsec since;
    uint64_t n;
};

/* Counts n bytes that arrived now. Returns false if a window of HTTP_RATE_WINDOW has passed and
 * fewer than least bytes a second arrived in it. */
bool body_rate_count(struct http_rate *r, nsec now, size_t n, uint32_t least) MUST_USE;
