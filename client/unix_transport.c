/* unix_transport.c - a connection to lagand's AF_UNIX socket, in ZMTP 3 (wire/zmtp.h); see
 * transport.h.
 *
 * libzmq would wake its thread for each message and that thread would wake ours: four fifths of
 * the cost of a stream. Here one recv() has all messages that have arrived, up to 64 KiB. The
 * greeting says ZMTP 3.0, which has no PING: a program that does not call the library for
 * seconds would not reply to PING. */
#include "base/clock.h"
#include "client/transport.h"
#include "wire/zmtp.h"

#include <poll.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { INPUT = 64 << 10 };

struct unix_transport {
    struct transport transport;
    int fd, epoll; /* fd -1: there is no connection */
    struct zmtp in;
    bool ended;       /* the connection has ended; an event says so after the last frame */
    bool await_space; /* epoll waits until the socket is writable */
    uint8_t *unsent;  /* [n_unsent] the rest of a frame that was sent in part */
    size_t at, n_unsent;
    uint32_t i, n; /* bytes [i, n) of input are not handled yet */
    uint8_t input[INPUT];
};

static struct unix_transport *
of(struct transport *l)
{
    return (struct unix_transport *)(void *)((char *)l -
                                             offsetof(struct unix_transport, transport));
}

static void
watch(struct unix_transport *u)
{
    bool blocked = u->at < u->n_unsent;
    struct epoll_event ev = { .events = EPOLLIN | (blocked ? EPOLLOUT : 0u), .data.fd = u->fd };

    if (blocked == u->await_space) return;
    u->await_space = blocked;
    if (epoll_ctl(u->epoll, EPOLL_CTL_MOD, u->fd, &ev) < 0) u->ended = true;
}

/* Sends as much as the socket takes of *v and keeps the rest. */
static void
send_vector(struct unix_transport *u, struct iovec v[2])
{
    const struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
    size_t all = v[0].iov_len + v[1].iov_len, head;
    ssize_t sent;

    do sent = sendmsg(u->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) sent = 0;
    if (sent < 0 || (size_t)sent == all) return; /* an error: the end of input is the event */
    u->unsent = malloc(all - (size_t)sent);
    if (!u->unsent) {
        u->ended = true;
        return;
    }
    head = (size_t)sent < v[0].iov_len ? v[0].iov_len - (size_t)sent : 0;
    u->at = 0;
    u->n_unsent = all - (size_t)sent;
    memcpy(u->unsent, (char *)v[0].iov_base + (v[0].iov_len - head), head);
    memcpy(u->unsent + head, (char *)v[1].iov_base + (v[1].iov_len - (u->n_unsent - head)),
           u->n_unsent - head);
    watch(u);
}

static void
flush(struct unix_transport *u)
{
    ssize_t sent;

    if (u->at == u->n_unsent || u->fd < 0) return;
    do sent = send(u->fd, u->unsent + u->at, u->n_unsent - u->at, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent > 0) u->at += (size_t)sent;
    if (sent < 0 && errno != EAGAIN && errno != ENOBUFS) u->at = u->n_unsent; /* it has ended */
    if (u->at < u->n_unsent) return;
    free(u->unsent);
    u->unsent = NULL;
    u->at = u->n_unsent = 0;
    watch(u);
}

static int
unix_send(struct transport *l, const void *frame, size_t n)
{
    struct unix_transport *u = of(l);
    uint8_t head[ZMTP_HEAD];

    flush(u);
    if (u->fd < 0 || u->ended || u->in.state != ZMTP_OPEN || u->n_unsent) return -EAGAIN;
    send_vector(u, (struct iovec[2]){ { head, zmtp_head(head, (uint32_t)n) },
                                      { (void *)(uintptr_t)frame, n } });
    return 0;
}

/* Reads what has arrived. Returns false if that is nothing. */
static bool
fill(struct unix_transport *u)
{
    ssize_t n;

    do n = recv(u->fd, u->input, sizeof u->input, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return false;
    u->ended |= n <= 0;
    u->i = 0;
    u->n = (uint32_t)MAX(n, (ssize_t)0);
    return n > 0;
}

static enum transport_event
unix_receive(struct transport *l, const void **frame, size_t *n)
{
    struct unix_transport *u = of(l);
    struct zmtp_item item;
    int r;

    if (u->fd < 0) return TRANSPORT_NOT_CONNECTED;
    flush(u);
    while (u->i < u->n || (!u->ended && fill(u))) {
        r = zmtp_take(&u->in, TRANSPORT_MAX_FRAME, u->input + u->i, u->n - u->i, &item);
        if (r < 0) { /* not ZMTP, too long, or no memory */
            u->ended = true;
            u->i = u->n;
            break;
        }
        u->i += (uint32_t)r;
        if (item.what != ZMTP_MESSAGE || item.n_frames != 1) continue;
        *frame = item.p;
        *n = item.n;
        return TRANSPORT_FRAME;
    }
    zmtp_done(&u->in);
    return !u->ended                  ? TRANSPORT_NOTHING
           : u->in.state == ZMTP_OPEN ? TRANSPORT_LOST
                                      : TRANSPORT_NOT_CONNECTED;
}

static unsigned
unix_state(struct transport *l)
{
    struct unix_transport *u = of(l);
    bool open = u->fd >= 0 && !u->ended && u->in.state == ZMTP_OPEN;

    if (open) flush(u);
    return (u->i < u->n || u->ended || u->fd < 0 ? TRANSPORT_READABLE : 0u) |
           (open && !u->n_unsent ? TRANSPORT_WRITABLE : 0u);
}

static int
unix_wait(struct transport *l, bool writable, int timeout_ms)
{
    struct unix_transport *u = of(l);
    bool blocked = writable && u->n_unsent;
    struct pollfd p = { .fd = u->fd, .events = (short)(POLLIN | (blocked ? POLLOUT : 0)) };

    return poll(&p, 1, timeout_ms) < 0 && errno == EINTR ? -EINTR : 0;
}

static void
unix_close(struct transport *l, int linger_ms)
{
    struct unix_transport *u = of(l);
    struct pollfd p = { .fd = u->fd, .events = POLLOUT };
    nsec until = clock_now() + linger_ms * NSEC_MS, left;

    flush(u);
    while (u->n_unsent && (left = until - clock_now()) > 0 &&
           poll(&p, 1, (int)CEIL_DIV(left, NSEC_MS)) == 1)
        flush(u);
    if (u->fd >= 0) close(u->fd); /* removes it from epoll */
    zmtp_close(&u->in);
    free(u->unsent);
    free(u);
}

static const struct transport_kind unix_kind = {
    .close = unix_close,
    .send = unix_send,
    .receive = unix_receive,
    .state = unix_state,
    .wait = unix_wait,
};

/* Connects, and sends the greeting and READY. Returns 0, also if the connection is refused. */
static int
start(struct unix_transport *u, const struct sockaddr_un *at, socklen_t n)
{
    struct epoll_event ev = { .events = EPOLLIN };
    uint8_t hello[ZMTP_HELLO];
    struct iovec v[2] = { { hello, sizeof hello }, { hello, 0 } };

    u->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (u->fd < 0) return -errno;
    if (connect(u->fd, (const struct sockaddr *)at, n) < 0) {
        close(u->fd);
        u->fd = -1;
        return 0;
    }
    ev.data.fd = u->fd;
    if (epoll_ctl(u->epoll, EPOLL_CTL_ADD, u->fd, &ev) < 0) return -errno;
    zmtp_hello(hello, /* client= */ true);
    send_vector(u, v);
    return 0;
}

int
unix_transport_open(struct transport **ret, const char *path, int epoll)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    size_t n = strlen(path);
    struct unix_transport *u;
    int r;

    if (n >= sizeof at.sun_path) return -ENAMETOOLONG;
    memcpy(at.sun_path, path, n);
    if (*path == '@') at.sun_path[0] = '\0'; /* an abstract address, as in libzmq */
    u = calloc(1, sizeof *u);
    if (!u) return -ENOMEM;
    u->transport.kind = &unix_kind;
    u->fd = -1;
    u->epoll = epoll;
    r = start(u, &at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (*path != '@')));
    if (r < 0) return unix_close(&u->transport, 0), r;
    *ret = &u->transport;
    return 0;
}
