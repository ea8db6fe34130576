/* http_fixture.h - an HTTP server with a small handler, and clients in the same thread.
 *
 * Paths: /hello sends "hello"; /echo the body; /big 1 MiB; /early 401 before the body is read;
 * /twice "twice" after request() returned 1 two times; /wait nothing; /stream opens a stream. The
 * exchange of the last /wait or /stream is fixture.open; also of /hold, before its body is read. */
#pragma once
#include "gateway/http/http.h"

enum { BIG = 1 << 20 };

struct http_fixture {
    sd_event *loop;
    struct http *http;
    struct http_handler handler;
    struct http_exchange *open;
    struct http_exchange *other; /* gone() of another exchange sends its response; NULL: none */
    uint32_t n_heads, n_requests, n_gone, n_complete, n_writable, n_repeats;
    char why[64], rule[64]; /* of the last gone() and fault() */
    char path[256];         /* of the last request */
    size_t body_n;
};

/* The default limits, but 64 connections and timeouts of 60 s. */
struct http_limits fixture_limits(void);
void fixture_open(struct http_fixture *f, const char *listen, const struct http_limits *limits);
void fixture_close(struct http_fixture *f);
void fixture_iterate(struct http_fixture *f); /* one loop iteration, at most 5 ms */

struct http_client {
    struct http_fixture *f;
    int fd;
    char *in; /* what was received, NUL-terminated */
    size_t n, cap;
    bool is_closed, was_reset;
};

void client_open(struct http_client *c, struct http_fixture *f);
void client_close(struct http_client *c);
void client_reset(struct http_client *c); /* closes with RST */
/* Sends all bytes, while the server reads them. */
void client_send(struct http_client *c, const void *p, size_t n);
void client_text(struct http_client *c, const char *text);
/* Reads until `text` was received n times; fails after 10 s, or if the server closes before. */
void client_until(struct http_client *c, const char *text, uint32_t n);
void client_until_closed(struct http_client *c);
void client_read(struct http_client *c); /* what is there now */
uint32_t client_count(const struct http_client *c, const char *text);
/* iterates until *n >= least; fails after 10 s. */
void until_at_least(struct http_fixture *f, const uint32_t *n, uint32_t least);
