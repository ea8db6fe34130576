/* transport.h - one connection to lagand that carries whole frames; two kinds: an AF_UNIX socket
 * (unix_transport.c), for ipc endpoints, and a socket of libzmq with CURVE (zmq_transport.c), for
 * tcp.
 *
 * A transport is used for one connection and is never connected again. No function blocks,
 * except transport_wait() and transport_close(). Its descriptors are in the epoll descriptor of
 * the caller, which becomes readable when transport_receive() or a blocked transport_send() may
 * have success. Descriptors of libzmq are edge-triggered, so the caller looks at
 * transport_state() before it sleeps. */
#pragma once
#include "base/base.h"

struct transport {
    const struct transport_kind *kind;
};

struct transport_tcp {
    void *context;        /* of zmq_ctx_new(); libzmq has a thread, which encrypts */
    uint32_t number;      /* of the transport among those of this context */
    const char *endpoint; /* tcp://HOST:PORT */
    const char *server_key, *public_key, *secret_key; /* as curve.h has them, with a NUL */
};

enum transport_event {
    TRANSPORT_NOTHING,
    TRANSPORT_FRAME,
    TRANSPORT_CONNECTED,     /* tcp: the socket is connected; the handshake may fail */
    TRANSPORT_NOT_CONNECTED, /* there is no connection */
    TRANSPORT_LOST,          /* the peer has closed the connection */
    TRANSPORT_HANDSHAKE_FAILED,
    TRANSPORT_KEY_REFUSED /* lagand does not know the key */
};
enum { TRANSPORT_READABLE = 1, TRANSPORT_WRITABLE = 2 };

struct transport_kind {
    void (*close)(struct transport *l, int linger_ms);
    int (*send)(struct transport *l, const void *frame, size_t n);
    enum transport_event (*receive)(struct transport *l, const void **frame, size_t *n);
    unsigned (*state)(struct transport *l);
    int (*wait)(struct transport *l, bool writable, int timeout_ms);
};

/* Replies may exceed LAGAN_MAX_FRAME: encoder output, long lists. */
#define TRANSPORT_MAX_FRAME (64 << 20)

/* Start to connect. A failure to connect is an event, not an error. epoll must outlive the
 * transport. -ENAMETOOLONG: path is too long for a socket; -ENOMEM, -EMFILE and others. */
int unix_transport_open(struct transport **ret, const char *path, int epoll) MUST_USE;
int zmq_transport_open(struct transport **ret, const struct transport_tcp *to, int epoll) MUST_USE;

/* Closes the connection; sent frames have linger_ms to leave. NULL is allowed. */
static inline struct transport *
transport_close(struct transport *l, int linger_ms)
{
    if (l) l->kind->close(l, linger_ms);
    return NULL;
}

/* Sends a frame. -EAGAIN: it must be sent later. A frame to a lost connection is dropped. */
static inline int MUST_USE
transport_send(struct transport *l, const void *frame, size_t n)
{
    return l->kind->send(l, frame, n);
}

/* Returns the next event; of TRANSPORT_FRAME *frame has *n bytes, valid until the next call for
 * l. After an event from TRANSPORT_NOT_CONNECTED on the caller closes l. */
static inline enum transport_event
transport_receive(struct transport *l, const void **frame, size_t *n)
{
    return l->kind->receive(l, frame, n);
}

/* Returns TRANSPORT_READABLE if transport_receive() has an event, TRANSPORT_WRITABLE if
 * transport_send() has space. The transport is not writable before the handshake has ended. */
static inline unsigned
transport_state(struct transport *l)
{
    return l->kind->state(l);
}

/* Waits until there is an event or, with writable, until a frame can be sent; timeout_ms below 0:
 * without limit. Returns 0, also after a timeout, or -EINTR. */
static inline int
transport_wait(struct transport *l, bool writable, int timeout_ms)
{
    return l->kind->wait(l, writable, timeout_ms);
}
