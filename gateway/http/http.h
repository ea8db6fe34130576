/* http.h - a strict HTTP/1.1 server (RFC 9110, 9112) for one thread.
 *
 * The server accepts connections, parses heads and bodies, and writes responses. A request is given
 * to the functions of struct http_handler; the handler responds at once or later through its struct
 * http_exchange. Requests of one connection are handled one at a time, in order. Whatever
 * gateway/http/README.md does not allow is refused with 400 and the connection is closed.
 *
 * Threads: all functions run in the thread of the event loop. Memory: http_open() allocates the
 * tables; a connection has a read buffer only while a request is read, and an output buffer of at
 * most HTTP_OUTPUT bytes only while its socket takes nothing. */
#pragma once
#include "base/base.h"
#include "base/clock.h"
#include "base/err.h"

#include <systemd/sd-event.h>

struct http;          /* the server */
struct http_exchange; /* one request and its response */

enum { HTTP_OUTPUT = 64 << 10, HTTP_MAX_LISTEN = 16 };

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_POST, HTTP_DELETE, HTTP_OPTIONS, HTTP_OTHER };

struct http_text {
    const char *p; /* not NUL-terminated; NULL: absent */
    size_t n;
};

struct http_limits {
    uint32_t connections, connections_per_address; /* per_address 0: no limit */
    uint32_t header_bytes, headers, target_bytes;
    uint64_t body_bytes;
    nsec header_timeout, body_timeout, idle_timeout, write_timeout;
    uint32_t body_rate; /* least bytes a second of a body, over any 10 s */
};

/* One response. fields: further header lines, each ended by CRLF; NULL: none. The handler keeps CR
 * and LF of a client out of them. The server adds Server, Date, X-Request-Id, Content-Length or
 * Transfer-Encoding, and Connection. */
struct http_response {
    int status;
    const char *content_type; /* NULL: no body */
    const char *fields;
    const char *body; /* http_stream() ignores body and n */
    size_t n;
};

/* Called by the server. A function may call every http_...() function with x, but gone() those of
 * the request only. */
struct http_handler {
    void *ctx;
    /* The head of a request was read and is valid; the body is not there yet. The handler may
     * respond now (wrong key, unknown path); the body is then not read. Otherwise the server sends
     * 100 Continue where asked and reads the body. */
    void (*head)(void *ctx, struct http_exchange *x);
    /* The whole request was read. Returns 0: the response is given, or follows later; 1: call again
     * in the next loop iteration, because a part of a long body was processed. */
    int (*request)(void *ctx, struct http_exchange *x);
    /* The output buffer has free space again after http_write() returned -EAGAIN. */
    void (*writable)(void *ctx, struct http_exchange *x);
    /* The exchange ends: the response is complete, the client has left, or a timeout passed.
     * complete is true only in the first case. why: "complete", "client_gone", "slow_reader",
     * "cut", "closed", "memory" or a rule of README.md. Called once for each exchange for which
     * head() was called, never below a call of http_...() except http_close(); x is invalid
     * afterwards. */
    void (*gone)(void *ctx, struct http_exchange *x, bool complete, const char *why);
    /* Writes the body of an error of HTTP itself into buf (at most n bytes) and returns its length.
     * rule: name of the rule of README.md, for metrics; sentence: for the client. */
    size_t (*fault)(void *ctx, int status, const char *rule, const char *sentence, char *buf,
                    size_t n);
};

/* Opens the listeners: "HOST:PORT", "[V6]:PORT", "unix:PATH", one in each element; or fds[n_fds]
 * (sockets from systemd), which then replace them. Port 0: any; http_address() has the port.
 * limits and handler are copied. -EINVAL, -EADDRINUSE and other errors of bind(), -ENOMEM. */
int http_open(struct http **ret, sd_event *loop, const char *const *listen, uint32_t n_listen,
              const int *fds, uint32_t n_fds, const struct http_limits *limits,
              const struct http_handler *handler, struct err *e) MUST_USE;
/* Closes all connections at once; handler->gone() is called for open exchanges. NULL is allowed. */
void http_close(struct http *h);
/* Takes no more connections, except those that wait at a port which other servers share, and closes
 * idle ones; open exchanges continue. */
void http_stop_listening(struct http *h);
void http_set_limits(struct http *h, const struct http_limits *limits);
const char *http_address(const struct http *h, uint32_t listener); /* "127.0.0.1:8000" */

struct http_counts {
    uint32_t connections, idle, reading, exchanges; /* now */
    uint64_t accepted, refused, bytes_sent;
};
struct http_counts http_counts(const struct http *h);

/* ---- the request of an exchange; texts are valid until the exchange ends, the body only during
 * request() */
enum http_method http_method(const struct http_exchange *x);
/* The path, percent-decoded except %2F, without a trailing '/'. It may hold any byte but NUL, and
 * need not be UTF-8. "*" for OPTIONS of the server. */
struct http_text http_path(const struct http_exchange *x);
struct http_text http_query(const struct http_exchange *x); /* as sent, without '?' */
struct http_text http_body(const struct http_exchange *x);
/* Returns the value of the nth header (from 0) of this name, in any case; p NULL: there is none. */
struct http_text http_field(const struct http_exchange *x, const char *name, uint32_t nth);
const char *http_request_id(const struct http_exchange *x); /* of X-Request-Id, or a new one */
const char *http_peer(const struct http_exchange *x);       /* address, or "unix" */
/* The handler's own pointer; NULL at first. */
void http_set_user(struct http_exchange *x, void *user);
void *http_user(const struct http_exchange *x);

/* ---- the response */

/* Sends a complete response. */
void http_respond(struct http_exchange *x, const struct http_response *r);
/* Sends status and headers of a response whose body follows in pieces (chunked; for HTTP/1.0 until
 * the connection closes). */
void http_stream(struct http_exchange *x, const struct http_response *r);
/* Queues n bytes of a streamed body. All bytes of one loop iteration leave in one chunk and one
 * send(). -EAGAIN: the output buffer has no space for them and nothing was queued; writable()
 * follows. */
int http_write(struct http_exchange *x, const char *p, size_t n) MUST_USE;
void http_end(struct http_exchange *x); /* the streamed body is complete */
void http_cut(struct http_exchange *x); /* closes the connection, without an end of the body */
bool http_started(const struct http_exchange *x); /* a status was sent */
