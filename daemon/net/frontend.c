/* frontend.c - frames to and from clients; see frontend.h.
 *
 * frontend_pump() is called in every turn; serve.c does not sleep while it says that there is more.
 *
 * A socket takes what is sent and does not say when it is read. So we count bytes, and PING with the count:
 * a client answers it in order, and what was sent before has been read.
 */
#include "daemon/net/frontend.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/net/tcp_server.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    TURN_FRAMES = 64, /* and bytes: of this host's, in one turn */
    TURN_BYTES = 1 << 20,
    /* What a new connection takes, with some ten system calls, and one that has gone: of thousands at once few
     * in a turn, for which everybody's tokens wait. */
    FRAMES_A_BEGIN = 16,
    FRAMES_AN_END = 8,
    /* Bytes sent to a client and not known to be read: chunks stop there, of many clients sooner, and everything
     * at four times that. A message costs ZeroMQ more than its bytes. */
    UNREAD_ALL = 128 << 20,
    UNREAD_MOST = 1 << 20,
    UNREAD_LEAST = 64 << 10,
    MESSAGE = 128
};
static const nsec TURN_TIME = 5 * NSEC_MS; /* of this host's: small frames may ask for much */

/* ---- out */

static uint64_t
peer_of(const struct client *c)
{
    uint64_t peer;

    memcpy(&peer, c->id, sizeof peer);
    return peer;
}

static int
send_to(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    struct frontend *f = d->frontend;
    int r = c->listener == LISTENER_TCP ? tcp_server_send(f->tcp, c->id, c->id_len, frame, n)
                                        : unix_server_send(f->local, c->fd, peer_of(c), frame, n);

    if (c->listener == LISTENER_TCP && r == -EHOSTUNREACH) {
        /* Its frames may wait still, a goodbye among them: frontend_drop_closed(). */
        c->over = f->some_over = true;
        return 0;
    }
    TRY(r);
    c->sent += n + MESSAGE;
    return 0;
}

int
frontend_ping(struct daemon *d, struct client *c)
{
    msgpack_sbuffer *b = &d->frontend->ping;
    msgpack_packer p;

    b->size = 0;
    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_PING, 0, 1);
    msg_key(&p, "t");
    msgpack_pack_uint64(&p, c->sent);
    return send_to(d, c, b->data, b->size);
}

/* 0; -EAGAIN: so many shares of what all may have unread are under way to it. */
static int
room_within(struct daemon *d, struct client *c, uint32_t shares)
{
    uint64_t share = UNREAD_ALL / MAX(session_n(d->sessions), 1u);

    share = MIN(MAX(share, (uint64_t)UNREAD_LEAST), (uint64_t)UNREAD_MOST);
    /* Asked at the half, so that a client that reads is never waited for. */
    if (!c->asked && c->sent - c->read >= share / 2) c->asked = frontend_ping(d, c) == 0;
    return c->sent - c->read >= shares * share && !c->last_words ? -EAGAIN : 0;
}

int
frontend_send(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    TRY(room_within(d, c, 4));
    return send_to(d, c, frame, n);
}

int
frontend_room(struct daemon *d, struct client *c)
{
    return room_within(d, c, 1);
}

int
frontend_send_chunk(struct daemon *d, struct client *c)
{
    return send_to(d, c, d->out.data, d->out.size);
}

void
frontend_pong(struct daemon *d, struct client *c, uint64_t t)
{
    if (t > c->sent || t < c->read) return; /* that is no number of ours */
    c->read = t;
    c->asked = false;
    if (c->read >= c->last_word) c->cut_at = 0;
    d->retry_at = d->now;
}

msgpack_packer
frontend_begin(struct daemon *d, uint32_t type, uint64_t rid, uint32_t n_keys)
{
    msgpack_packer p;

    d->out.size = 0;
    msgpack_packer_init(&p, &d->out, msgpack_sbuffer_write);
    msg_begin(&p, type, rid, n_keys);
    return p;
}

void
frontend_answer(struct daemon *d, struct client *c)
{
    if (frontend_send(d, c, d->out.data, d->out.size) < 0) {
        log_debug("an answer was not taken by its client");
    }
}

int
frontend_error(struct daemon *d, struct client *c, uint64_t rid, uint32_t code, uint32_t delivered,
               const char *fmt, ...)
{
    msgpack_packer p = frontend_begin(d, LAGAN_MSG_ERROR, rid, 5);
    char text[400];
    bool retry;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t n = strlen(text); !msg_utf8(text, n);) text[--n] = 0; /* a cut, or their bytes */
    msg_key(&p, "code");
    msgpack_pack_uint32(&p, code);
    msg_key(&p, "reason_name");
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
    return frontend_send(d, c, d->out.data, d->out.size);
}

void
frontend_reply(struct daemon *d, uint64_t rid, msgpack_packer *p)
{
    *p = frontend_begin(d, LAGAN_MSG_REPLY, rid, 1);
    msg_key(p, "result");
}

void
frontend_reply_end(struct daemon *d, struct client *c)
{
    frontend_answer(d, c);
}

/* ---- in */

static void
turn_away(struct daemon *d, const struct caller *from, const char *why)
{
    struct client nobody = { .listener = from->listener,
                             .id_len = (uint8_t)from->id_len,
                             .fd = from->fd };

    memcpy(nobody.id, from->id, from->id_len);
    FRONTEND_REFUSE(d, &nobody, 0, LAGAN_E_QUEUE_FULL, "%s", why);
}

/* Whom a connection belongs to: the name of its key, or its user on this host. */
static bool
identify(struct daemon *d, struct client *c, const struct caller *from)
{
    const struct curve_peer *key = NULL;
    char text[USER_NAME + 1];

    if (c->listener == LISTENER_TCP) {
        key = from->key ? curve_find(&d->frontend->keys, from->key) : NULL;
        if (!key) return false; /* it has been taken out of the file since */
        memcpy(c->key, key->key, sizeof c->key);
        snprintf(text, sizeof text, "key:%s", key->name);
    } else {
        snprintf(text, sizeof text, "uid:%u", (unsigned)from->uid);
    }
    c->user = session_user(d->sessions, text);
    return c->user && frontend_authorize(d, c);
}

bool
frontend_authorize(struct daemon *d, struct client *c)
{
    const struct options *o = &d->config->o;
    const struct curve_peer *key = curve_find(&d->frontend->keys, c->key);

    if (c->listener == LISTENER_TCP && (!key || strcmp(key->name, strchr(c->user->name, ':') + 1)))
        return false;
    c->user->max_open = key && key->max_inflight ? key->max_inflight : o->max_user_inflight;
    c->user->max_tokens = key && key->max_tokens ? key->max_tokens : o->max_user_tokens;
    return true;
}

int
frontend_reload_keys(struct daemon *d, struct err *e)
{
    struct client *c;

    if (!*d->config->o.tcp) return 0;
    TRY(listen_read_keys(d, e));
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));)
        if (c->user && !frontend_authorize(d, c)) d->events->client_dropped(d, c->handle);
    return 0;
}

static void
note_socket(struct daemon *d, struct client *c, int fd)
{
    connections_heard(d->frontend->connections, fd,
                      c->handle); /* perhaps before it opened: every time */
    if (c->fd == fd) return;
    c->fd = fd;
    if (c->listener == LISTENER_TCP) c->cookie = connections_cookie(fd);
}

void
frontend_cut(struct daemon *d, struct client *c)
{
    struct frontend *f = d->frontend;

    if (c->listener != LISTENER_TCP) {
        frontend_cut_silent(d, c->fd);
        return;
    }
    if (!c->over) (void)frontend_ping(d, c);
    if (!c->over) connections_cut(f->connections, c->fd, c->cookie);
}

void
frontend_cut_silent(struct daemon *d, int fd)
{
    struct frontend *f = d->frontend;

    if (unix_server_cut(f->local, fd)) {
        (void)connections_closed(f->connections, fd);
    } else {
        connections_cut_silent(f->connections, fd);
    }
}

static struct client *
client_of(struct daemon *d, const struct caller *from)
{
    struct client *c = session_at(d->sessions, from->listener, from->id, from->id_len);
    struct client *idle = c ? NULL : session_idle(d->sessions);
    uint32_t gone;

    if (idle && session_n(d->sessions) == MAX_CLIENTS)
        d->events->client_disconnected(d, idle->handle);
    c = session_of(d->sessions, from->listener, from->id, from->id_len, d->now, &gone);
    if (!c) {
        turn_away(d, from, "too many clients are connected");
        return NULL;
    }
    if (!c->user && !identify(d, c, from)) {
        turn_away(d, from, "too many users are connected, or the key was removed from api.keys");
        session_drop(d->sessions, c);
        return NULL; /* its connection has said nothing that counts */
    }
    note_socket(d, c, from->fd);
    return c;
}

static void
take_frame(struct daemon *d, const struct caller *from, const void *frame, size_t n, bool several)
{
    struct client *c = client_of(d, from);

    if (c && several) {
        FRONTEND_REFUSE(d, c, 0, LAGAN_E_INVALID_REQUEST,
                        "a message must have one frame, this one has more");
    } else if (c) {
        d->events->frame(d, c, frame, n);
    }
}

/* Of more than there may be one goes: of those that have asked for nothing the one that has been silent longest,
 * so that whoever comes has as much time to say something as all the others. */
static void
connection_opened(struct daemon *d, int fd)
{
    struct frontend *f = d->frontend;
    nsec since = NSEC_NEVER;
    struct client *idle;
    int silent;

    if (!connections_opened(f->connections, fd, d->now)) return;
    silent = connections_silent(f->connections, &since);
    idle = session_idle(d->sessions);
    if (!f->full_said || d->now - f->full_said > 10 * NSEC_S) {
        log_warn("%u connections are open, which is the limit (api.max_connections, open files); "
                 "closing "
                 "the longest-idle connection without a request for each new one",
                 connections_n(f->connections) - 1);
        f->full_said = d->now;
    }
    if (idle && idle->heard < since) {
        d->events->client_disconnected(d, idle->handle);
    } else {
        frontend_cut_silent(d, silent >= 0 ? silent : fd);
    }
}

static void
ended(struct daemon *d, const struct unix_server_event *n)
{
    struct client *c = session_at(d->sessions, (enum listener_id)n->listener, &n->peer,
                                  sizeof n->peer);

    (void)connections_closed(d->frontend->connections, n->fd);
    if (c) d->events->client_disconnected(d, c->handle);
}

static void
take_news(struct daemon *d, const struct unix_server_event *n)
{
    struct caller from = {
        .listener = (enum listener_id)n->listener,
        .id = &n->peer,
        .id_len = sizeof n->peer,
        .fd = n->fd,
        .uid = n->uid,
    };

    if (n->what == UNIX_SERVER_OPENED && n->listener != LISTENER_CTL) connection_opened(d, n->fd);
    if (n->what == UNIX_SERVER_FRAME) take_frame(d, &from, n->p, n->n, n->n_frames > 1);
    if (n->what == UNIX_SERVER_CLOSED) ended(d, n);
}

bool
frontend_probe(struct daemon *d, struct client *c)
{
    bool heard = c->over;

    c->over = false;
    (void)frontend_ping(d, c); /* its id may be another connection's by now */
    if (!c->over || !heard) return false;
    d->events->client_disconnected(d, c->handle);
    return true;
}

static void
drop_closed(struct daemon *d)
{
    struct client *c;

    if (!d->frontend->some_over) return;
    d->frontend->some_over = false;
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));)
        if (c->hung_up || c->over) (void)frontend_probe(d, c);
}

static void
connection_closed(struct daemon *d, int fd)
{
    uint32_t handle = connections_closed(d->frontend->connections, fd);
    struct client *c = handle == CLIENT_NONE ? NULL : session_find(d->sessions, handle);

    if (c) c->hung_up = d->frontend->some_over = true;
}

/* ---- what has come over tcp */

static void
take_tcp_event(struct daemon *d, const struct tcp_server_event *ev)
{
    const struct caller from = {
        .listener = LISTENER_TCP, .id = ev->id, .id_len = ev->id_len, .fd = ev->fd, .key = ev->key
    };

    if (ev->what == TCP_SERVER_OPENED) connection_opened(d, ev->fd);
    if (ev->what == TCP_SERVER_CLOSED) connection_closed(d, ev->fd);
    if (ev->what == TCP_SERVER_FRAME) take_frame(d, &from, ev->p, ev->n, ev->several);
    if (ev->what == TCP_SERVER_CLOSED && d->frontend->some_over) tcp_server_look(d->frontend->tcp);
}

/* How many frames. */
static uint32_t
pump_tcp(struct daemon *d, bool *more)
{
    struct tcp_server *t = d->frontend->tcp;
    struct tcp_server_event ev;
    uint32_t frames = 0;
    int r;

    if (!t) return 0;
    if (d->frontend->some_over) tcp_server_look(t);
    tcp_server_begin(t);
    while ((r = tcp_server_take(t, &ev)) > 0) {
        take_tcp_event(d, &ev);
        frames += ev.what == TCP_SERVER_FRAME;
    }
    if (r == 0) drop_closed(d);
    *more |= tcp_server_more(t);
    return frames;
}

void
frontend_look(struct daemon *d)
{
    unix_server_look(d->frontend->local);
    tcp_server_look_all(d->frontend->tcp);
}

uint32_t
frontend_pump(struct daemon *d, bool *more)
{
    struct unix_server_event news;
    nsec until = clock_now() + TURN_TIME;
    uint32_t n = 0, frames = 0;
    size_t bytes = 0;
    int r;

    while ((r = unix_server_take(d->frontend->local, d->now, &news)) > 0) {
        take_news(d, &news);
        frames += news.what == UNIX_SERVER_FRAME;
        bytes += news.n;
        n += news.what == UNIX_SERVER_OPENED   ? FRAMES_A_BEGIN
             : news.what == UNIX_SERVER_CLOSED ? FRAMES_AN_END
                                               : 1;
        if (n >= TURN_FRAMES || bytes >= TURN_BYTES || clock_now() >= until) break;
    }
    *more |= r > 0; /* the budget is spent */
    return frames + pump_tcp(d, more);
}

void
frontend_flush(struct daemon *d)
{
    unix_server_flush(d->frontend->local);
}

void
frontend_tick(struct daemon *d)
{
    unix_server_tick(d->frontend->local, d->now);
}
