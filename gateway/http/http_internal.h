/* http_internal.h - a connection of the HTTP server, and the functions its files share.
 *
 * A file uses the files above it in this list:
 *
 *   queue.c    lists of connections: changed ones, and one for each thing that they wait for
 *   input.c    the input buffer
 *   write.c    responses, chunks, the output buffer
 *   conn.c     states of a connection: reads, parses, calls the handler
 *   listen.c   opens listeners, accepts connections, enforces their limits
 *   server.c   the event loop, timeouts, counts
 *
 * A connection has one exchange at a time, so struct http_exchange is both. Functions that the
 * handler calls only change the output buffer and put the connection on the list http.changed;
 * conn_update() does the rest at the end of the loop iteration. A connection is closed in
 * conn_update() and by the event loop only, never below a call of the handler. */
#pragma once
#include "base/map.h"
#include "base/rng.h"
#include "gateway/http/body.h"
#include "gateway/http/head.h"

#include <sys/queue.h>

enum {
    HTTP_SCRATCH = 64 << 10,     /* most bytes that one recv() reads */
    HTTP_PIPELINE = 16 << 10,    /* most bytes that are held behind the request that runs */
    HTTP_LINGER_BYTES = 64 << 10 /* read and dropped of a connection that is being closed */
};
#define HTTP_LINGER (2 * NSEC_S)
/* Slots beside max_connections: for connections that are refused or being closed. */
#define HTTP_SPARE 64
/* Input buffers of all connections together; a body beyond it gets 503. */
#define HTTP_INPUT_BYTES ((uint64_t)512 << 20)

enum conn_state {
    CONN_FREE,
    CONN_IDLE,    /* between two requests: no byte of the next one is there */
    CONN_HEAD,    /* before the end of a head; a new connection begins here */
    CONN_BODY,    /* the exchange is open, its body is read */
    CONN_REQUEST, /* the body is there; request() is called until it returns 0 */
    CONN_WAIT,    /* the response is awaited or being sent */
    CONN_LINGER   /* the response was sent; the rest of the input is read and dropped */
};

/* What a connection is waiting for. A class has one timeout, so its list is ordered by time. */
enum wait_class { WAIT_HEAD, WAIT_IDLE, WAIT_BODY, WAIT_WRITE, WAIT_LINGER, WAIT_HANDLER, N_WAIT };

enum response_state { RESPONSE_NONE, RESPONSE_STREAM, RESPONSE_DONE };

struct http_exchange {
    struct http *http;
    TAILQ_ENTRY(http_exchange) in_class, in_changed;
    nsec since; /* the connection entered its class, or made progress in it */
    uint64_t address_key;
    int fd;
    uint32_t generation; /* of the slot; an event of an earlier connection is ignored */
    uint32_t epoll_mask, linger_left;
    uint8_t state, wait, response;
    bool is_open;     /* head() was called, gone() was not */
    bool is_changed;  /* on the list http.changed */
    bool is_broken;   /* cut by the handler, or no memory */
    bool closes;      /* the connection is closed after this response */
    bool lingers;     /* ... and the peer may still be sending */
    bool drops_body;  /* a response to HEAD */
    bool is_chunked;  /* of the response */
    bool has_chunk;   /* a chunk is open at chunk_at */
    bool wants_space; /* http_write() returned -EAGAIN */
    bool sent_some;   /* since the last conn_update() */
    const char *why;  /* is_broken: the reason for gone() */

    struct http_head head;
    struct http_body body;
    struct http_rate rate;
    char *head_text; /* [head.n] of the open exchange */
    /* Input: before the end of a head its bytes; then body.n bytes of the decoded body, and from
     * raw_at bytes that are not decoded. */
    char *in;
    uint32_t in_n, in_cap, raw_at;
    char *out; /* bytes out_at .. out_n are to be sent */
    uint32_t out_at, out_n, out_cap, chunk_at;
    void *user;
    char id[129], peer[48];
};

TAILQ_HEAD(exchange_list, http_exchange);

struct listener {
    int fd;         /* -1: closed */
    bool is_shared; /* SO_REUSEPORT: other instances take the next connections */
    char *path;     /* of a unix socket that we created; NULL: none */
    char address[128];
};

struct http {
    sd_event *loop;
    sd_event_source *on_epoll, *on_changed, *on_timer;
    int epoll;
    struct http_limits limits;
    struct http_handler handler;
    struct listener listener[HTTP_MAX_LISTEN];
    uint32_t n_listeners;
    bool listens, accept_is_delayed, in_dispatch;

    struct http_exchange *slot; /* [n_slots] */
    uint32_t n_slots, n_used, n_class[N_WAIT];
    struct exchange_list class[N_WAIT], changed, unused;
    struct map *addresses; /* key of an address -> its connections; NULL: not counted */
    uint64_t input_bytes;  /* sum of in_cap */
    uint64_t max_input;    /* HTTP_INPUT_BYTES */

    nsec now; /* of this loop iteration */
    uint64_t id_state;
    time_t date_at;
    char date[32];
    struct http_counts counts;
    char scratch[HTTP_SCRATCH];
};

/* ---- queue.c */
/* Puts the connection on the list http.changed: conn_update() is called for it. */
void queue_changed(struct http_exchange *x);
/* Moves the connection to a class; its timeout begins now. */
void queue_wait(struct http_exchange *x, enum wait_class wait);

/* ---- input.c */
/* Appends bytes that were read. -ENOMEM: no memory, or all connections together have too many. */
int input_append(struct http_exchange *x, const char *p, size_t n) MUST_USE;
/* Drops the first n bytes and returns memory that is not needed. */
void input_drop(struct http_exchange *x, uint32_t n);
void input_release(struct http_exchange *x);
/* Decodes what was read of the body. As body_decode(). */
int input_decode(struct http_exchange *x, struct http_fault *f) MUST_USE;

/* ---- write.c */
uint32_t write_pending(const struct http_exchange *x); /* bytes that are not sent yet */
/* Queues raw bytes. Without memory the connection is marked broken. */
void write_raw(struct http_exchange *x, const void *p, size_t n);
/* Sends what the socket takes. False: the peer is gone. */
bool write_flush(struct http_exchange *x) MUST_USE;

/* ---- conn.c */
/* Makes a slot the connection of fd, which the connection owns. NULL: no slot, or epoll failed. */
struct http_exchange *conn_open(struct http *h, int fd, const char *peer, uint64_t address_key);
/* Closes a connection; gone() gets why if an exchange is open. */
void conn_close(struct http_exchange *x, const char *why);
/* Does what the state of the connection asks for: parses, calls the handler, sends, ends the
 * exchange. The connection may be closed afterwards. */
void conn_update(struct http_exchange *x);
void conn_event(struct http_exchange *x, uint32_t events);
/* Sends an error of HTTP itself and closes; conn_update() must follow. */
void conn_fault(struct http_exchange *x, const struct http_fault *f);
void conn_expire(struct http_exchange *x); /* the timeout of its class has passed */

/* ---- listen.c */
int listener_open(struct listener *l, const char *where, struct err *e) MUST_USE;
int listener_adopt(struct listener *l, int fd, struct err *e) MUST_USE;
void listener_close(struct listener *l);
/* Accepts waiting connections of a listener. Returns true if more may be waiting. */
bool listener_accept(struct http *h, struct listener *l);
