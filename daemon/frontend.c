/* frontend.c - frames to and from clients; see frontend.h.
 *
 * ZMQ_FD is edge-triggered and says nothing about direction, and a send may take the edge away. So a socket
 * is looked at when its descriptor says so and after every send; each look asks the kernel, and there are
 * many sockets and turns. front_pump() is called in every turn; serve.c does not sleep while it says that
 * there is more.
 *
 * ZeroMQ takes what is sent and does not say when it is read. So we count bytes, and PING with the count:
 * a client answers it in order, and what was sent before has been read.
 */
#include "daemon/frontend.h"

#include "base/log.h"
#include "daemon/deliver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum {
    TURN_FRAMES = 64, /* and bytes: of one door, in one turn */
    TURN_BYTES = 4 << 20,
    UNREAD_CHUNKS =
        1 << 20,     /* bytes sent to a client and not known to be read: chunks stop here, */
    UNREAD = 4 << 20 /* and everything here */
};

/* ---- out */

static int
send_to(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    void *s = d->front->socket[c->door];
    int r;

    d->front->look[c->door] = true;
    do r = zmq_send(s, c->id, c->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (r < 0 && errno == EINTR);
    if (r < 0) return errno == EAGAIN ? -EAGAIN : -EHOSTUNREACH;
    /* With the id accepted the rest is: ZeroMQ queues messages whole. */
    do r = zmq_send(s, frame, n, ZMQ_DONTWAIT);
    while (r < 0 && errno == EINTR);
    if (r < 0) return -EHOSTUNREACH;
    c->sent += n;
    return 0;
}

int
front_ping(struct daemon *d, struct client *c)
{
    msgpack_sbuffer *b = &d->front->ping;
    msgpack_packer p;

    b->size = 0;
    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_PING, 0, 1);
    msg_key(&p, "t");
    msgpack_pack_uint64(&p, c->sent);
    return send_to(d, c, b->data, b->size);
}

static int
send_within(struct daemon *d, struct client *c, const void *frame, size_t n, uint64_t most)
{
    int r = 0;

    /* Asked at the half, so that a client that reads is never waited for. */
    if (!c->asked && c->sent - c->read >= UNREAD_CHUNKS / 2) c->asked = front_ping(d, c) == 0;
    if (c->sent - c->read >= most && !c->last_words) r = -EAGAIN;
    return r == 0 ? send_to(d, c, frame, n) : r;
}

int
front_send(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    return send_within(d, c, frame, n, UNREAD);
}

int
front_send_chunk(struct daemon *d, struct client *c)
{
    return send_within(d, c, d->out.data, d->out.size, UNREAD_CHUNKS);
}

void
front_pong(struct daemon *d, struct client *c, uint64_t t)
{
    if (t > c->sent || t < c->read) return; /* that is no number of ours */
    c->read = t;
    c->asked = false;
    if (c->read >= c->last_word) c->cut_at = 0;
    d->retry_at = d->now;
}

msgpack_packer
front_begin(struct daemon *d, uint32_t type, uint64_t rid, uint32_t n_keys)
{
    msgpack_packer p;

    d->out.size = 0;
    msgpack_packer_init(&p, &d->out, msgpack_sbuffer_write);
    msg_begin(&p, type, rid, n_keys);
    return p;
}

void
front_answer(struct daemon *d, struct client *c)
{
    if (front_send(d, c, d->out.data, d->out.size) < 0) {
        log_debug("an answer was not taken by its client");
    }
}

int
front_error(struct daemon *d, struct client *c, uint64_t rid, uint32_t code, uint32_t delivered,
            const char *fmt, ...)
{
    msgpack_packer p = front_begin(d, LAGAN_MSG_ERROR, rid, 5);
    char text[400];
    bool retry;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t n = strlen(text); !msg_utf8(text, n);) text[--n] = 0; /* a cut, or their bytes */
    msg_key(&p, "code");
    msgpack_pack_uint32(&p, code);
    msg_key(&p, "word");
    msg_text(&p, msg_reason(code, &retry));
    msg_key(&p, "message");
    msg_text(&p, text);
    msg_key(&p, "retryable");
    if (retry) {
        msgpack_pack_true(&p);
    } else {
        msgpack_pack_false(&p);
    }
    msg_key(&p, "delivered");
    msgpack_pack_uint32(&p, delivered);
    return front_send(d, c, d->out.data, d->out.size);
}

void
front_reply(struct daemon *d, uint64_t rid, msgpack_packer *p)
{
    *p = front_begin(d, LAGAN_MSG_REPLY, rid, 1);
    msg_key(p, "result");
}

void
front_reply_end(struct daemon *d, struct client *c)
{
    front_answer(d, c);
}

/* ---- in */

static void
turn_away(struct daemon *d, enum front_door door, const void *id, size_t id_len, const char *why)
{
    struct client nobody = { .door = door, .id_len = (uint8_t)id_len };

    memcpy(nobody.id, id, id_len);
    FRONT_REFUSE(d, &nobody, 0, LAGAN_E_QUEUE_FULL, "%s", why);
}

/* Whom a connection belongs to: the name of its key, or its user on this host. */
static bool
identify(struct daemon *d, struct client *c, zmq_msg_t *frame)
{
    const char *name = zmq_msg_gets(frame, "User-Id"), *peer = zmq_msg_gets(frame, "Peer-Address");
    const struct options *o = &d->config->o;
    const struct curve_peer *key = NULL;
    char text[USER_NAME + 1];
    unsigned uid;

    if (c->door == DOOR_TCP) {
        snprintf(text, sizeof text, "key:%s", name ? name : "");
        for (uint32_t i = 0; name && i < d->front->keys.n_peers; i++)
            if (!strcmp(d->front->keys.peer[i].name, name)) key = &d->front->keys.peer[i];
        if (!key) return false; /* it has been taken out of the file since */
    } else if (peer && sscanf(peer, "%*[^:]:%u:", &uid) == 1) {
        snprintf(text, sizeof text, "uid:%u", uid);
    } else {
        snprintf(text, sizeof text, "local");
    }
    c->user = session_user(d->sessions, text);
    if (!c->user) return false;
    c->user->max_open = key && key->max_inflight ? key->max_inflight : o->max_user_inflight;
    c->user->max_tokens = key && key->max_tokens ? key->max_tokens : o->max_user_tokens;
    return true;
}

static uint64_t
cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t n = sizeof cookie;

    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 ? cookie : 0;
}

static void
note_socket(struct client *c, int fd)
{
    if (c->fd == fd) return;
    c->fd = fd;
    c->cookie = cookie_of(fd);
}

/* ZeroMQ closes a connection that its own thread finds shut; it has no other way for us to end one. The number
 * may be another's by now: what we hold is ours, and then looked at. */
void
front_cut(struct daemon *d, struct client *c)
{
    int fd;

    if (!c->cookie || front_ping(d, c) == -EHOSTUNREACH) return;
    fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return;
    if (cookie_of(fd) == c->cookie) shutdown(fd, SHUT_RDWR);
    close(fd);
}

static struct client *
client_of(struct daemon *d, enum front_door door, const void *id, size_t id_len, zmq_msg_t *frame)
{
    uint32_t gone;
    struct client *c = session_of(d->sessions, door, id, id_len, d->now, &gone);

    if (!c) {
        turn_away(d, door, id, id_len, "there are too many clients");
        return NULL;
    }
    if (!c->user && !identify(d, c, frame)) {
        turn_away(d, door, id, id_len,
                  "there are too many users, or the key is not known any more");
        session_drop(d->sessions, c);
        return NULL;
    }
    note_socket(c, zmq_msg_get(frame, ZMQ_SRCFD));
    return c;
}

/* One message: [id][frame], more frames are read and not looked at. How many bytes, -EAGAIN none. */
static int
receive(struct daemon *d, enum front_door door)
{
    void *s = d->front->socket[door];
    uint8_t id[MAX_ROUTING_ID + 1];
    int id_len = zmq_recv(s, id, sizeof id, ZMQ_DONTWAIT), more, bytes;
    size_t size = sizeof more;
    zmq_msg_t frame, extra;
    struct client *c = NULL;
    uint32_t n_extra = 0;

    if (id_len < 0) return errno == EINTR ? 0 : -EAGAIN;
    if (zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size) < 0 || !more) return 0; /* an id alone */
    zmq_msg_init(&frame);
    bytes = zmq_msg_recv(&frame, s, ZMQ_DONTWAIT);
    if (bytes < 0) {
        zmq_msg_close(&frame);
        return 0;
    }
    while (zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size) == 0 && more) {
        zmq_msg_init(&extra);
        n_extra++;
        if (zmq_msg_recv(&extra, s, ZMQ_DONTWAIT) < 0) more = 0;
        zmq_msg_close(&extra);
    }
    if (id_len <= MAX_ROUTING_ID) c = client_of(d, door, id, (size_t)id_len, &frame);
    if (c && n_extra) {
        FRONT_REFUSE(d, c, 0, LAGAN_E_INVALID_REQUEST, "a message is one frame, this one has %u",
                     n_extra + 1);
    } else if (c) {
        front_frame(d, c, zmq_msg_data(&frame), (size_t)bytes);
    }
    zmq_msg_close(&frame);
    return bytes;
}

/* A connection has ended. Its number may be another's already, so the client is asked: one that is not
 * there cannot be. ZeroMQ may learn it a moment later than its monitor: then the next tick finds it. */
static void
watch_monitor(struct daemon *d, enum front_door door)
{
    uint8_t event[6];
    char spare[256];

    while (zmq_recv(d->front->monitor[door], event, sizeof event, ZMQ_DONTWAIT) == sizeof event) {
        struct client *c;
        uint32_t fd;

        memcpy(&fd, event + 2, sizeof fd);
        zmq_recv(d->front->monitor[door], spare, sizeof spare, ZMQ_DONTWAIT);
        c = session_of_fd(d->sessions, door, (int)fd);
        if (!c) continue;
        if (!front_look(d, c)) c->hung_up = true;
    }
}

bool
front_look(struct daemon *d, struct client *c)
{
    if (front_ping(d, c) != -EHOSTUNREACH) return false;
    deliver_client_lost(d, c->handle);
    return true;
}

void
front_watch(struct daemon *d)
{
    d->front->hung_up = false;
    for (int i = 0; i < N_DOORS; i++)
        if (d->front->monitor[i]) watch_monitor(d, (enum front_door)i);
}

uint32_t
front_pump(struct daemon *d, bool *more)
{
    struct frontend *f = d->front;
    uint32_t taken = 0;

    zap_pump(f->zap);
    for (int i = 0; i < N_DOORS; i++) {
        int bytes = 0, r = 0;
        uint32_t n = 0;

        if (!f->look[i]) continue;
        while (n < TURN_FRAMES && bytes < TURN_BYTES && (r = receive(d, (enum front_door)i)) >= 0) {
            n++;
            bytes += r;
        }
        taken += n;
        f->look[i] = r >= 0; /* the budget is spent */
        *more |= f->look[i];
    }
    return taken;
}
