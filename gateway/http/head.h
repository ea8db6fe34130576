/* head.h - parses the head of one HTTP/1.1 request: request line and header fields.
 *
 * Pure: no I/O, no memory of its own. The caller keeps the bytes of the head in one buffer and
 * calls head_parse() whenever bytes were appended. Each byte is validated once, so the result does
 * not depend on how the bytes arrived. The first byte that violates a rule of README.md decides the
 * fault. */
#pragma once
#include "base/base.h"
#include "gateway/http/http.h"

/* A refusal: the status for the client, the name of the rule in README.md and a sentence. */
struct http_fault {
    int status;
    const char *rule;
    char sentence[160];
};

int http_fault_set(struct http_fault *f, int status, const char *rule, const char *fmt, ...)
    PRINTF_LIKE(4, 5); /* returns -EPROTO */

/* All numbers that end in _at are offsets in the caller's buffer. */
struct http_head {
    /* valid when head_parse() returned 1 */
    enum http_method method;
    bool is_1_0, keep_alive, expects_continue, is_chunked, has_length;
    uint32_t path_at, path_n, query_at, query_n; /* query_n 0: none */
    uint32_t fields_at;                          /* first header line */
    uint32_t n;                                  /* bytes of the head, with the empty line */
    uint64_t length;                             /* Content-Length */

    /* private */
    uint8_t state, n_hosts, n_transfer_encodings;
    bool is_closing;
    uint32_t at, method_at, target_at, target_n, version_at, name_at, name_n, value_at, n_fields;
};

/* Prepares *h for a head that begins at offset 0. */
void head_init(struct http_head *h);

/* Reads the bytes p[0 .. n), which begin with those of the earlier calls. Returns 1: the head is
 * complete, its path is percent-decoded in p, and h->n is its length; 0: more bytes are needed;
 * -EPROTO: refused, *f has the reason. */
int head_parse(struct http_head *h, char *p, uint32_t n, const struct http_limits *limits,
               struct http_fault *f) MUST_USE;

/* Returns the value of the nth header field (from 0) of this name, in any case of letters, without
 * white space around it; .p NULL: there is none. The head is complete. */
struct http_text head_field(const struct http_head *h, const char *p, const char *name,
                            uint32_t nth);
