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
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum {
    TURN_FRAMES = 64, /* and bytes: of one door, in one turn */
    TURN_BYTES = 4 << 20,
    TURN_EVENTS = 64,
    /* Bytes sent to a client and not known to be read: chunks stop there, of many clients sooner, and everything
     * at four times that. A message costs ZeroMQ more than its bytes. */
    UNREAD_ALL = 128 << 20,
    UNREAD_MOST = 1 << 20,
    UNREAD_LEAST = 64 << 10,
    MESSAGE = 128
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
    c->sent += n + MESSAGE;
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
send_within(struct daemon *d, struct client *c, const void *frame, size_t n, uint32_t shares)
{
    uint64_t share = UNREAD_ALL / MAX(session_n(d->sessions), 1u);

    share = MIN(MAX(share, (uint64_t)UNREAD_LEAST), (uint64_t)UNREAD_MOST);
    /* Asked at the half, so that a client that reads is never waited for. */
    if (!c->asked && c->sent - c->read >= share / 2) c->asked = front_ping(d, c) == 0;
    if (c->sent - c->read >= shares * share && !c->last_words) return -EAGAIN;
    return send_to(d, c, frame, n);
}

int
front_send(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    return send_within(d, c, frame, n, 4);
}

int
front_send_chunk(struct daemon *d, struct client *c)
{
    return send_within(d, c, d->out.data, d->out.size, 1);
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

static void
note_socket(struct daemon *d, struct client *c, int fd)
{
    connections_heard(d->front->connections, fd,
                      c->handle); /* perhaps before it opened: every time */
    if (c->fd == fd) return;
    c->fd = fd;
    c->cookie = connections_cookie(fd);
}

void
front_cut(struct daemon *d, struct client *c)
{
    if (front_ping(d, c) != -EHOSTUNREACH) connections_cut(d->front->connections, c->fd, c->cookie);
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
    note_socket(d, c, zmq_msg_get(frame, ZMQ_SRCFD));
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

/* Of more than there may be one goes: of those that have asked for nothing the one that has been silent longest,
 * so that whoever comes has as much time to say something as all the others. */
static void
begun(struct daemon *d, int fd)
{
    struct frontend *f = d->front;
    nsec since = NSEC_NEVER;
    struct client *idle;
    int silent;

    if (!connections_opened(f->connections, fd, d->now)) return;
    silent = connections_silent(f->connections, &since);
    idle = session_idle(d->sessions);
    if (!f->full_said || d->now - f->full_said > 10 * NSEC_S) {
        log_warn(
            "%u connections are as many as may be (api.max_connections, open files): those that "
            "have asked for nothing make room",
            connections_n(f->connections) - 1);
        f->full_said = d->now;
    }
    if (idle && idle->heard < since) {
        front_cut(d, idle);
        deliver_client_lost(d, idle->handle);
    } else {
        connections_cut_silent(f->connections, silent >= 0 ? silent : fd);
    }
}

/* A connection has ended. Its number may be another's already, so the client is asked: one that is not
 * there cannot be. ZeroMQ may learn it a moment later than its monitor: then the next tick finds it. */
static void
ended(struct daemon *d, enum front_door door, int fd)
{
    struct client *c;

    if (door == DOOR_CTL) {
        c = session_of_fd(d->sessions, door, fd);
    } else {
        uint32_t handle = connections_closed(d->front->connections, fd);

        c = handle == CLIENT_NONE ? NULL : session_find(d->sessions, handle);
    }
    if (c && !front_look(d, c)) c->hung_up = true;
}

/* true: there may be more. */
static bool
watch_monitor(struct daemon *d, enum front_door door)
{
    uint8_t event[6];
    char spare[256];
    uint32_t n = 0;

    while (n++ < TURN_EVENTS &&
           zmq_recv(d->front->monitor[door], event, sizeof event, ZMQ_DONTWAIT) == sizeof event) {
        uint16_t what;
        uint32_t fd;

        memcpy(&what, event, sizeof what);
        memcpy(&fd, event + 2, sizeof fd);
        zmq_recv(d->front->monitor[door], spare, sizeof spare, ZMQ_DONTWAIT);
        if (what == ZMQ_EVENT_DISCONNECTED) ended(d, door, (int)fd);
        if (what == ZMQ_EVENT_ACCEPTED && door != DOOR_CTL) begun(d, (int)fd);
    }
    return n > TURN_EVENTS;
}

bool
front_look(struct daemon *d, struct client *c)
{
    if (front_ping(d, c) != -EHOSTUNREACH) return false;
    deliver_client_lost(d, c->handle);
    return true;
}

void
front_watch(struct daemon *d, bool *more)
{
    d->front->news = false;
    for (int i = 0; i < N_DOORS; i++)
        if (d->front->monitor[i]) d->front->news |= watch_monitor(d, (enum front_door)i);
    *more |= d->front->news;
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
