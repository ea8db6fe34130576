/* link.h - one connection to lagand that carries whole frames; two kinds: an AF_UNIX socket
 * (unix_link.c), for ipc endpoints, and a socket of libzmq with CURVE (zmq_link.c), for tcp.
 *
 * A link is used for one connection and is never connected again. No function blocks, except
 * link_wait() and link_close(). Its descriptors are in the epoll descriptor of the caller, which
 * becomes readable when link_receive() or a blocked link_send() may have success. Descriptors of
 * libzmq are edge-triggered, so the caller looks at link_state() before it sleeps. */
#pragma once
#include "base/base.h"

struct link {
    const struct link_kind *kind;
};

struct link_tcp {
    void *context;        /* of zmq_ctx_new(); libzmq has a thread, which encrypts */
    uint32_t number;      /* of the link among those of this context */
    const char *endpoint; /* tcp://HOST:PORT */
    const char *server_key, *public_key, *secret_key; /* as curve.h has them, with a NUL */
};

enum link_event {
    LINK_NOTHING,
    LINK_FRAME,
    LINK_CONNECTED,     /* tcp: the socket is connected; the handshake may fail */
    LINK_NOT_CONNECTED, /* there is no connection */
    LINK_LOST,          /* the peer has closed the connection */
    LINK_HANDSHAKE_FAILED,
    LINK_KEY_REFUSED /* lagand does not know the key */
};
enum { LINK_READABLE = 1, LINK_WRITABLE = 2 };

struct link_kind {
    void (*close)(struct link *l, int linger_ms);
    int (*send)(struct link *l, const void *frame, size_t n);
    enum link_event (*receive)(struct link *l, const void **frame, size_t *n);
    unsigned (*state)(struct link *l);
    int (*wait)(struct link *l, bool writable, int timeout_ms);
};

/* Replies may exceed LAGAN_MAX_FRAME: encoder output, long lists. */
#define LINK_MAX_FRAME (64 << 20)

/* Start to connect. A failure to connect is an event, not an error. epoll must outlive the link.
 * -ENAMETOOLONG: path is too long for a socket; -ENOMEM, -EMFILE and others. */
int unix_link_open(struct link **ret, const char *path, int epoll) MUST_USE;
int zmq_link_open(struct link **ret, const struct link_tcp *to, int epoll) MUST_USE;

/* Closes the connection; sent frames have linger_ms to leave. NULL is allowed. */
static inline struct link *
link_close(struct link *l, int linger_ms)
{
    if (l) l->kind->close(l, linger_ms);
    return NULL;
}

/* Sends a frame. -EAGAIN: it must be sent later. A frame to a lost connection is dropped. */
static inline int MUST_USE
link_send(struct link *l, const void *frame, size_t n)
{
    return l->kind->send(l, frame, n);
}

/* Returns the next event; of LINK_FRAME *frame has *n bytes, valid until the next call for l. After
 * an event from LINK_NOT_CONNECTED on the caller closes l. */
static inline enum link_event
link_receive(struct link *l, const void **frame, size_t *n)
{
    return l->kind->receive(l, frame, n);
}

/* Returns LINK_READABLE if link_receive() has an event, LINK_WRITABLE if link_send() has space. The
 * link is not writable before the handshake has ended. */
static inline unsigned
link_state(struct link *l)
{
    return l->kind->state(l);
}

/* Waits until there is an event or, with writable, until a frame can be sent; timeout_ms below 0:
 * without limit. Returns 0, also after a timeout, or -EINTR. */
static inline int
link_wait(struct link *l, bool writable, int timeout_ms)
{
    return l->kind->wait(l, writable, timeout_ms);
}
