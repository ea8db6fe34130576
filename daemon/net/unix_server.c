/* unix_server.c - see unix_server.h.
 *
 * All sockets are in one epoll, which the event loop watches as one descriptor. Events of epoll are
 * handled in order, with one recv() for each. When the caller's budget ends, the next loop
 * iteration continues with the next epoll event, so that every peer is served. */
#include "daemon/net/unix_server.h"

#include "base/log.h"
#include "wire/zmtp.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    BACKLOG = 512,
    EVENTS = 16,                 /* events of one epoll_wait(); connections accepted in a row */
    READ_BYTES = 4 << 10,        /* bytes of one recv(): some hundred of the smallest messages */
    READ_FRAME_BYTES = 64 << 10, /* bytes of one recv() inside a frame of known length */
    KEPT_CAPACITY = 16 << 10,    /* a larger output buffer is freed when all bytes are sent */
    FIRST_CAPACITY = 512,        /* first size of an output buffer */
    PONGS = 64 << 10,            /* no PONG is queued if this many bytes are unsent */
    TTL = 60                     /* TTL field of PING, in units of 0.1 s */
};
static const nsec ASK_EVERY = 2 * NSEC_S, LOG_EVERY = 10 * NSEC_S; /* PING interval; log interval */

struct peer {
    int fd;
    uint32_t listener;
    uint64_t number;
    uid_t uid;
    struct zmtp in;
    uint8_t *out; /* output buffer [capacity]; bytes [at, n) are unsent */
    size_t at, n, capacity;
    bool dirty;  /* has unsent bytes for the next flush, and is in the list `dirty` */
    bool full;   /* the socket's buffer is full; epoll waits until it is writable */
    bool doomed; /* is to be closed, and is in the list `doomed` */
    /* Time of the accept; of the last PING; of the first PING since the last input, 0: none. */
    nsec since, asked, unanswered;
    TAILQ_ENTRY(peer) all, part, due; /* links of: all; parts; dirty or doomed */
};
TAILQ_HEAD(peers, peer);

struct unix_server {
    uint32_t most_bytes;
    int epoll;
    struct unix_server_listener {
        int fd;
        uint32_t n, most;
        bool deaf; /* accept() failed (no descriptor is free); it is called again after a tick */
    } listener[UNIX_SERVER_LISTENERS];
    struct peer **at; /* [n_at], by descriptor */
    uint32_t n_at;
    uint64_t n_ever, parts_bytes;
    struct peers all, parts, dirty, doomed; /* parts: with a partly received frame, oldest first */
    nsec log_again_at;                      /* when a failed accept() may be logged again */
    bool look;                              /* call epoll_wait() again */
    struct epoll_event event[EVENTS];       /* events [i_event, n_events) are not handled yet */
    uint32_t i_event, n_events, n_accepted;
    struct peer *reading;             /* sender of the bytes in `input` */
    struct peer *frame_peer, *closed; /* peer of the last event, if FRAME; if CLOSED; else NULL */
    uint32_t i, n;
    uint8_t input[READ_FRAME_BYTES]; /* received bytes; [i, n) are not handled yet */
};

/* ---- connections */

static struct peer *
find(const struct unix_server *l, int fd)
{
    return fd >= 0 && (uint32_t)fd < l->n_at ? l->at[fd] : NULL;
}

/* Marks p to be closed: the next unix_server_take() reports CLOSED, the one after that frees p. */
static void
doom(struct unix_server *l, struct peer *p)
{
    if (p->doomed) return;
    p->doomed = true;
    if (p->dirty) TAILQ_REMOVE(&l->dirty, p, due);
    if (p->in.capacity) {
        TAILQ_REMOVE(&l->parts, p, part);
        l->parts_bytes -= p->in.capacity;
    }
    TAILQ_INSERT_TAIL(&l->doomed, p, due);
    if (l->reading == p) l->i = l->n = 0;
}

static void
reap(struct unix_server *l, struct peer *p)
{
    l->at[p->fd] = NULL;
    l->listener[p->listener].n--;
    for (uint32_t i = l->i_event; i < l->n_events; i++)
        if (l->event[i].data.fd == p->fd) l->event[i].data.fd = -1;
    TAILQ_REMOVE(&l->all, p, all);
    close(p->fd);
    zmtp_close(&p->in);
    free(p->out);
    free(p);
}

static void
await_writable(struct unix_server *l, struct peer *p, bool full)
{
    struct epoll_event e = { .events = EPOLLIN | (full ? EPOLLOUT : 0u), .data.fd = p->fd };

    if (p->full == full) return;
    p->full = full;
    if (epoll_ctl(l->epoll, EPOLL_CTL_MOD, p->fd, &e) < 0) doom(l, p);
}

/* Returns 1: the socket has unread bytes; 0: end of input; -1 with errno: no bytes, or an error. */
static ssize_t
peek(const struct peer *p)
{
    char c;

    return recv(p->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
}

static void
send_some(struct unix_server *l, struct peer *p)
{
    ssize_t sent;

    do sent = send(p->fd, p->out + p->at, p->n - p->at, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN) {
        if ((l->reading != p || l->i == l->n) && peek(p) <= 0) {
            doom(l, p);
            return;
        }
        /* Drops the output. p is closed later, after the messages that it has sent are handled. */
        p->at = p->n;
    }
    if (sent > 0) p->at += (size_t)sent;
    if (p->at == p->n) {
        p->at = p->n = 0;
        if (p->capacity > KEPT_CAPACITY) {
            free(p->out);
            p->out = NULL;
            p->capacity = 0;
        }
    }
    await_writable(l, p, p->n > 0);
}

/* Makes space for n more bytes in the output buffer. */
static int
reserve(struct peer *p, size_t n)
{
    size_t capacity = MAX(p->capacity, (size_t)FIRST_CAPACITY);
    uint8_t *out;

    if (p->at && p->n + n > p->capacity) {
        memmove(p->out, p->out + p->at, p->n - p->at);
        p->n -= p->at;
        p->at = 0;
    }
    if (p->n + n <= p->capacity) return 0;
    while (capacity < p->n + n) capacity *= 2;
    out = realloc(p->out, capacity);
    if (!out) return -EAGAIN;
    p->out = out;
    p->capacity = capacity;
    return 0;
}

static int
put(struct unix_server *l, struct peer *p, const void *head, size_t n_head, const void *body,
    size_t n)
{
    TRY(reserve(p, n_head + n));
    memcpy(p->out + p->n, head, n_head);
    if (n) memcpy(p->out + p->n + n_head, body, n);
    p->n += n_head + n;
    if (!p->dirty && !p->full) {
        p->dirty = true;
        TAILQ_INSERT_TAIL(&l->dirty, p, due);
    }
    return 0;
}

/* ---- receive */

static int
tell(const struct peer *p, struct unix_server_event *news, enum unix_server_what what)
{
    *news = (struct unix_server_event){
        .what = what, .listener = p->listener, .fd = p->fd, .peer = p->number, .uid = p->uid
    };
    return 1;
}

static int
refuse(int fd)
{
    close(fd);
    return 0;
}

/* Accepts a connection. Returns 1 with an OPENED event; 0: none was waiting, or it was refused. */
static int
accept_one(struct unix_server *l, uint32_t listener, nsec now, struct unix_server_event *news)
{
    struct epoll_event e = { .events = EPOLLIN };
    struct ucred cred;
    socklen_t size = sizeof cred;
    uint8_t hello[ZMTP_HELLO];
    struct peer *p;
    int fd = accept4(l->listener[listener].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return 0;
        if (now >= l->log_again_at) {
            log_warn("cannot accept a connection: %s; retrying in 0.25 s", strerror(errno));
            l->log_again_at = now + LOG_EVERY;
        }
        l->listener[listener].deaf = epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->listener[listener].fd,
                                               NULL) == 0;
        return 0;
    }
    if ((uint32_t)fd >= l->n_at || l->listener[listener].n >= l->listener[listener].most ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
        return refuse(fd);
    e.data.fd = fd;
    p = calloc(1, sizeof *p);
    if (!p || epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &e) < 0) {
        free(p);
        return refuse(fd);
    }
    p->fd = fd;
    p->listener = listener;
    p->number = ++l->n_ever;
    p->uid = cred.uid;
    p->since = p->asked = now;
    l->at[fd] = p;
    l->listener[listener].n++;
    TAILQ_INSERT_TAIL(&l->all, p, all);
    zmtp_hello(hello, /* client= */ false);
    if (put(l, p, hello, sizeof hello, NULL, 0) < 0) doom(l, p);
    return tell(p, news, UNIX_SERVER_OPENED);
}

static void
receive(struct unix_server *l, struct peer *p)
{
    uint32_t size = MIN(MAX(zmtp_missing(&p->in), (uint32_t)READ_BYTES),
                        (uint32_t)READ_FRAME_BYTES);
    ssize_t n = recv(p->fd, l->input, size, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        doom(l, p);
        return;
    }
    p->unanswered = 0;
    l->reading = p;
    l->i = 0;
    l->n = (uint32_t)n;
}

/* Updates parts_bytes: the size of the partly received frame of p was `before` at the last call.
 * Above UNIX_SERVER_PARTS, closes the connections with the oldest such frames. */
static void
count_part(struct unix_server *l, struct peer *p, uint32_t before)
{
    if (!before && p->in.capacity) TAILQ_INSERT_TAIL(&l->parts, p, part);
    if (before && !p->in.capacity) TAILQ_REMOVE(&l->parts, p, part);
    l->parts_bytes += p->in.capacity;
    l->parts_bytes -= before;
    while (l->parts_bytes > UNIX_SERVER_PARTS) {
        log_debug(
            "partly received frames exceed %u MiB; closing the connection with the oldest one",
            UNIX_SERVER_PARTS >> 20);
        doom(l, TAILQ_FIRST(&l->parts));
    }
}

static void
send_pong(struct unix_server *l, struct peer *p, const struct zmtp_item *ping)
{
    uint8_t pong[ZMTP_PONG];

    if (p->n - p->at < PONGS) (void)put(l, p, pong, zmtp_pong(pong, ping->p, ping->n), NULL, 0);
}

/* Decodes the next item from `input`. Returns 1 with a FRAME or PARTIAL event; 0: p was doomed. */
static int
take_item(struct unix_server *l, struct unix_server_event *news)
{
    struct peer *p = l->reading;
    uint32_t before = p->in.capacity;
    struct zmtp_item item;
    int r = zmtp_take(&p->in, l->most_bytes, l->input + l->i, l->n - l->i, &item);

    count_part(l, p, before);
    if (r < 0) {
        log_debug("closing a connection: %s",
                  r == -EPROTO ? "the peer does not use ZMTP 3 with mechanism NULL" : strerror(-r));
        doom(l, p);
    }
    if (p->doomed) return 0;
    l->i += (uint32_t)r;
    if (item.what == ZMTP_MESSAGE) l->frame_peer = p;
    if (item.what == ZMTP_PINGED) send_pong(l, p, &item);
    tell(p, news, item.what == ZMTP_MESSAGE ? UNIX_SERVER_FRAME : UNIX_SERVER_PARTIAL);
    news->p = item.p;
    news->n = item.what == ZMTP_MESSAGE ? item.n : (uint32_t)r;
    news->n_frames = item.n_frames;
    return 1;
}

/* Gets more events from epoll if needed. Returns true if l->event[l->i_event] is valid. */
static bool
next_event(struct unix_server *l)
{
    int n;

    if (l->i_event < l->n_events) return true;
    if (!l->look) return false;
    n = epoll_wait(l->epoll, l->event, EVENTS, 0);
    l->i_event = l->n_accepted = 0;
    l->n_events = (uint32_t)MAX(n, 0);
    l->look = n == EVENTS; /* more events wait in the kernel */
    return n > 0;
}

static int
serve_event(struct unix_server *l, nsec now, struct unix_server_event *news)
{
    const struct epoll_event *e = &l->event[l->i_event];
    struct peer *p = find(l, e->data.fd);
    uint32_t listener = 0;

    while (!p && listener < UNIX_SERVER_LISTENERS && l->listener[listener].fd != e->data.fd)
        listener++;
    if (!p && listener < UNIX_SERVER_LISTENERS && e->data.fd >= 0) {
        if (l->n_accepted++ < EVENTS && accept_one(l, listener, now, news)) return 1;
        l->n_accepted = 0;
    }
    l->i_event++;
    if (!p || p->doomed) return 0;
    if (e->events & EPOLLOUT) send_some(l, p);
    if (!p->doomed && e->events & ~(uint32_t)EPOLLOUT) receive(l, p);
    return 0;
}

/* Frees the frame of the last event of p, which the caller has read. */
static void
release_frame(struct unix_server *l, struct peer *p)
{
    uint32_t before = p->in.capacity;

    if (p->doomed) return; /* doom() has already subtracted its size */
    zmtp_done(&p->in);
    count_part(l, p, before);
}

int
unix_server_take(struct unix_server *l, nsec now, struct unix_server_event *news)
{
    struct peer *p;

    if (l->closed) reap(l, l->closed);
    if (l->frame_peer) release_frame(l, l->frame_peer);
    l->closed = l->frame_peer = NULL;
    for (;;) {
        p = TAILQ_FIRST(&l->doomed);
        if (p) {
            TAILQ_REMOVE(&l->doomed, p, due);
            l->closed = p;
            return tell(p, news, UNIX_SERVER_CLOSED);
        }
        if (l->i < l->n) {
            if (take_item(l, news)) return 1;
        } else if (!next_event(l)) {
            return 0;
        } else if (serve_event(l, now, news)) {
            return 1;
        }
    }
}

/* ---- send */

int
unix_server_send(struct unix_server *l, int fd, uint64_t peer, const void *frame, size_t n)
{
    struct peer *p = find(l, fd);
    uint8_t head[ZMTP_HEAD];

    if (!p || p->number != peer || p->doomed) return -EHOSTUNREACH;
    if (p->n - p->at + n > UNIX_SERVER_UNSENT) return -EAGAIN;
    return put(l, p, head, zmtp_head(head, (uint32_t)n), frame, n);
}

void
unix_server_flush(struct unix_server *l)
{
    struct peer *p;

    while ((p = TAILQ_FIRST(&l->dirty))) {
        TAILQ_REMOVE(&l->dirty, p, due);
        p->dirty = false;
        send_some(l, p);
    }
}

bool
unix_server_disconnect(struct unix_server *l, int fd)
{
    struct peer *p = find(l, fd);

    if (p) doom(l, p);
    return p != NULL;
}

/* ---- timeouts */

static void
ask(struct unix_server *l, struct peer *p, nsec now)
{
    uint8_t ping[ZMTP_PING];

    p->asked = now;
    if (!p->unanswered) p->unanswered = now;
    if (!p->full) (void)put(l, p, ping, zmtp_ping(ping, TTL), NULL, 0);
}

void
unix_server_tick(struct unix_server *l, nsec now)
{
    struct peer *p;

    for (uint32_t i = 0; i < UNIX_SERVER_LISTENERS; i++) {
        struct epoll_event e = { .events = EPOLLIN, .data.fd = l->listener[i].fd };

        if (l->listener[i].deaf)
            l->listener[i].deaf = epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->listener[i].fd, &e) < 0;
    }
    TAILQ_FOREACH(p, &l->all, all)
    {
        bool open = p->in.state == ZMTP_OPEN;
        nsec waited = open ? now - p->unanswered : now - p->since;

        if (p->doomed) continue;
        if ((!open || p->unanswered) && waited >= UNIX_SERVER_IDLE_TIMEOUT && peek(p) < 0 &&
            errno == EAGAIN) {
            log_debug("closing a connection: %s",
                      open ? "the peer is silent after PING" : "the ZMTP handshake takes too long");
            doom(l, p);
        } else if (open && p->in.pings && now - p->asked >= ASK_EVERY) {
            ask(l, p, now);
        }
    }
}

/* ---- open and close */

struct unix_server *
unix_server_open(uint32_t most)
{
    struct unix_server *l = calloc(1, sizeof *l);
    struct rlimit files = { .rlim_cur = 1 << 16 };
    int failed;

    if (!l) return NULL;
    getrlimit(RLIMIT_NOFILE, &files);
    l->most_bytes = most;
    l->n_at = (uint32_t)MIN(files.rlim_cur, (rlim_t)1 << 20);
    l->at = calloc(l->n_at, sizeof *l->at);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t i = 0; i < UNIX_SERVER_LISTENERS; i++) l->listener[i].fd = -1;
    TAILQ_INIT(&l->all);
    TAILQ_INIT(&l->parts);
    TAILQ_INIT(&l->dirty);
    TAILQ_INIT(&l->doomed);
    if (l->at && l->epoll >= 0) return l;
    failed = errno;
    unix_server_close(l);
    errno = failed;
    return NULL;
}

struct unix_server *
unix_server_close(struct unix_server *l)
{
    struct peer *p;

    if (!l) return NULL;
    unix_server_flush(l);
    l->closed = NULL;
    while ((p = TAILQ_FIRST(&l->all))) reap(l, p);
    for (uint32_t i = 0; i < UNIX_SERVER_LISTENERS; i++)
        if (l->listener[i].fd >= 0) close(l->listener[i].fd);
    if (l->epoll >= 0) close(l->epoll);
    free(l->at);
    free(l);
    return NULL;
}

int
unix_server_adopt(struct unix_server *l, uint32_t listener, int fd, uint32_t most, struct err *e)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.fd = fd };

    check(listener < UNIX_SERVER_LISTENERS && l->listener[listener].fd < 0);
    l->listener[listener].most = most;
    l->listener[listener].fd = fd;
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev) < 0)
        return err_set(e, -errno, "cannot watch a listening socket: %s", strerror(errno));
    return 0;
}

int
unix_server_listen(struct unix_server *l, uint32_t listener, const char *path, uint32_t most,
                   struct err *e)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    mode_t mask;
    int fd, r;

    check(strlen(path) < sizeof a.sun_path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return err_set(e, -errno, "%s: cannot create a socket: %s", path, strerror(errno));
    mask = umask(0117); /* the socket file has mode 0660 from the start */
    r = bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ? -errno : 0;
    umask(mask);
    if (r == 0 && listen(fd, BACKLOG) < 0) r = -errno;
    if (r == 0) return unix_server_adopt(l, listener, fd, most, e);
    close(fd);
    return err_set(e, r, "%s: cannot bind a socket: %s", path, strerror(-r));
}

int
unix_server_listener(const struct unix_server *l, uint32_t listener)
{
    return l->listener[listener].fd;
}

int
unix_server_fd(const struct unix_server *l)
{
    return l->epoll;
}

void
unix_server_look(struct unix_server *l)
{
    l->look = true;
}
