/* frontend.c - frames to and from clients; see frontend.h. serve.c calls frontend_pump() in each
 * loop iteration and does not sleep while frames are left to read.
 *
 * A socket does not report when its peer reads. lagand counts the bytes that it sends to a client
 * and sends PING with the count; the PONG proves that the client has read all bytes before it. */
#include "daemon/net/frontend.h"

#include "base/log.h"
#include "base/utf8.h"
#include "daemon/config/options.h"
#include "daemon/net/tcp_server.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    /* Budget of frontend_pump() for AF_UNIX clients, in frames and in bytes. */
    ROUND_FRAMES = 64,
    ROUND_BYTES = 1 << 20,
    /* An accepted and a closed connection count as this many frames, because each costs about 10
     * system calls: thousands of connections at once do not delay the tokens of other clients. */
    FRAMES_A_BEGIN = 16,
    FRAMES_AN_END = 8,
    /* Limits of the bytes sent to a client and not known to be read. The "share" of a client is
     * UNREAD_ALL divided by the number of clients, clamped to [UNREAD_LEAST, UNREAD_MOST]. A
     * CHUNK is sent while the client has less than 1 share of such bytes, any other message while
     * it has less than 4. MESSAGE: bytes added for each message, for libzmq's overhead. */
    UNREAD_ALL = 128 << 20,
    UNREAD_MOST = 1 << 20,
    UNREAD_LEAST = 64 << 10,
    MESSAGE = 128
};
static const nsec ROUND_TIME = 5 * NSEC_MS; /* time budget: a small frame may cost much time */

/* ---- send */

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
        /* Frames of c may still be unread in libzmq: drop_closed() drops c after them. */
        c->disconnected = f->some_disconnected = true;
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

/* Returns -EAGAIN if c has at least `shares` shares (see UNREAD_ALL) of unread bytes, else 0. */
static int
check_unread(struct daemon *d, struct client *c, uint32_t shares)
{
    uint64_t share = UNREAD_ALL / MAX(session_n(d->sessions), 1u);

    share = MIN(MAX(share, (uint64_t)UNREAD_LEAST), (uint64_t)UNREAD_MOST);
    /* Sends PING at half of a share, so that the PONG of a client that reads comes in time. */
    if (!c->ping_pending && c->sent - c->read >= share / 2)
        c->ping_pending = frontend_ping(d, c) == 0;
    return c->sent - c->read >= shares * share && !c->ending ? -EAGAIN : 0;
}

int
frontend_send(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    TRY(check_unread(d, c, 4));
    return send_to(d, c, frame, n);
}

int
frontend_check_space(struct daemon *d, struct client *c)
{
    return check_unread(d, c, 1);
}

int
frontend_send_chunk(struct daemon *d, struct client *c)
{
    return send_to(d, c, d->out.data, d->out.size);
}

void
frontend_pong(struct daemon *d, struct client *c, uint64_t t)
{
    if (t > c->sent || t < c->read) return; /* ignores a count that lagand cannot have sent */
    c->read = t;
    c->ping_pending = false;
    if (c->read >= c->ending_bytes) c->close_at = 0;
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
frontend_send_or_drop(struct daemon *d, struct client *c)
{
    if (frontend_send(d, c, d->out.data, d->out.size) < 0)
        log_debug("dropped a reply: the client has too many unread bytes or is gone");
}

int
frontend_error(struct daemon *d, struct client *c, uint64_t rid, uint32_t code, uint32_t delivered,
               const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return frontend_error_length(d, c, rid, code, delivered, &(struct prompt_length){ 0 }, text);
}

int
frontend_error_length(struct daemon *d, struct client *c, uint64_t rid, uint32_t code,
                      uint32_t delivered, const struct prompt_length *length, const char *message)
{
    bool has_length = code == LAGAN_E_TOO_LONG && length->max_len, retry;
    msgpack_packer p = frontend_begin(d, LAGAN_MSG_ERROR, rid, has_length ? 7 : 5);
    char text[400];

    snprintf(text, sizeof text, "%s", message);
    text[utf8_valid(text, strlen(text))] = 0; /* a cut character, or invalid bytes */
    msg_key(&p, "code");
    msgpack_pack_uint32(&p, code);
    msg_key(&p, "reason_name");
    msg_text(&p, msg_reason(code, &retry));
    msg_key(&p, "message");
    msg_text(&p, text);
    msg_key(&p, "retryable");
    retry ? msgpack_pack_true(&p) : msgpack_pack_false(&p);
    msg_key(&p, "delivered");
    msgpack_pack_uint32(&p, delivered);
    if (has_length) {
        msg_key_u64(&p, "n_prompt_tokens", length->n_prompt_tokens);
        msg_key_u64(&p, "max_len", length->max_len);
    }
    return frontend_send(d, c, d->out.data, d->out.size);
}

void
frontend_reply(struct daemon *d, uint64_t rid, msgpack_packer *p)
{
    *p = frontend_begin(d, LAGAN_MSG_REPLY, rid, 1);
    msg_key(p, "result");
}

/* ---- receive */

static void
refuse_connection(struct daemon *d, const struct caller *from, const char *why)
{
    struct client unknown = { .listener = from->listener,
                              .id_len = (uint8_t)from->id_len,
                              .fd = from->fd };

    memcpy(unknown.id, from->id, from->id_len);
    FRONTEND_REFUSE(d, &unknown, 0, LAGAN_E_QUEUE_FULL, "%s", why);
}

/* Sets the user of c from its key or uid. Returns false if c must be refused: its key was removed
 * from the file, or the table of users is full. */
static bool
identify(struct daemon *d, struct client *c, const struct caller *from)
{
    const struct curve_peer *key = NULL;
    char text[USER_NAME + 1];

    if (c->listener == LISTENER_TCP) {
        key = from->key ? curve_find(&d->frontend->keys, from->key) : NULL;
        if (!key) return false; /* the key was removed from the file */
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
    static struct curve_file before;
    struct client *c;
    bool same;

    if (!d->frontend->tcp) return 0;
    before = d->frontend->keys;
    TRY(listen_read_keys(d, e));
    same = !memcmp(&before, &d->frontend->keys, sizeof before);
    explicit_bzero(&before, sizeof before);
    if (same) return 0;
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));)
        if (c->user && !frontend_authorize(d, c)) d->events->client_dropped(d, c->handle);
    return 1;
}

static void
set_socket(struct daemon *d, struct client *c, int fd)
{
    /* Called for each message, because a message may come before the OPENED event. */
    connections_set_client(d->frontend->connections, fd, c->handle);
    if (c->fd == fd) return;
    c->fd = fd;
    if (c->listener == LISTENER_TCP) c->cookie = connections_cookie(fd);
}

void
frontend_disconnect(struct daemon *d, struct client *c)
{
    if (c->listener != LISTENER_TCP) {
        frontend_disconnect_fd(d, c->fd);
        return;
    }
    if (!c->disconnected) (void)frontend_ping(d, c);
    if (!c->disconnected) connections_shutdown(d->frontend->connections, c->fd, c->cookie);
}

void
frontend_disconnect_fd(struct daemon *d, int fd)
{
    struct frontend *f = d->frontend;

    if (unix_server_disconnect(f->local, fd))
        (void)connections_closed(f->connections, fd);
    else
        connections_shutdown_unidentified(f->connections, fd);
}

/* Returns the client of a frame's sender, added if new; NULL: it was refused with an ERROR. */
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
        refuse_connection(d, from, "the limit of connected clients is reached; try again later");
        return NULL;
    }
    if (!c->user && !identify(d, c, from)) {
        refuse_connection(d, from,
                          "the limit of connected users is reached, or the key of this client was "
                          "removed from api.keys");
        session_drop(d->sessions, c);
        return NULL;
    }
    set_socket(d, c, from->fd);
    return c;
}

static void
take_frame(struct daemon *d, const struct caller *from, const void *frame, size_t n, bool several)
{
    struct client *c = client_of(d, from);

    if (c && several) {
        FRONTEND_REFUSE(d, c, msg_head(frame, n).rid, LAGAN_E_INVALID_REQUEST,
                        "the message has several frames; a message must have one");
    } else if (c) {
        d->events->frame(d, c, frame, n);
    }
}

/* Adds a connection. If there are more than the limit now, closes the connection that is idle for
 * longest among those that are unidentified or whose client has no open request. This is the new
 * connection only if the clients of all others have open requests. */
static void
connection_opened(struct daemon *d, int fd)
{
    struct frontend *f = d->frontend;
    nsec since = NSEC_NEVER;
    struct client *idle;
    int silent;

    if (!connections_opened(f->connections, fd, d->now)) return;
    silent = connections_oldest_unidentified(f->connections, &since);
    idle = session_idle(d->sessions);
    if (!f->full_logged_at || d->now - f->full_logged_at > 10 * NSEC_S) {
        log_warn("%u connections are open, which is the limit (api.max_connections or open files); "
                 "each new one closes the longest-idle connection without an open request",
                 connections_n(f->connections) - 1);
        f->full_logged_at = d->now;
    }
    if (idle && idle->received_at < since)
        d->events->client_disconnected(d, idle->handle);
    else
        frontend_disconnect_fd(d, silent >= 0 ? silent : fd);
}

static void
unix_connection_closed(struct daemon *d, const struct unix_server_event *n)
{
    struct client *c = session_at(d->sessions, (enum listener_id)n->listener, &n->peer,
                                  sizeof n->peer);

    (void)connections_closed(d->frontend->connections, n->fd);
    if (c) d->events->client_disconnected(d, c->handle);
}

static void
take_unix_event(struct daemon *d, const struct unix_server_event *n)
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
    if (n->what == UNIX_SERVER_CLOSED) unix_connection_closed(d, n);
}

bool
frontend_probe(struct daemon *d, struct client *c)
{
    bool known_before = c->disconnected;

    c->disconnected = false;
    /* Sets c->disconnected again, unless the client has reconnected with the same routing id. */
    (void)frontend_ping(d, c);
    if (!c->disconnected || !known_before) return false;
    d->events->client_disconnected(d, c->handle);
    return true;
}

/* Drops the tcp clients whose connection has ended. Called when libzmq has no unread frames. */
static void
drop_closed(struct daemon *d)
{
    struct client *c;

    if (!d->frontend->some_disconnected) return;
    d->frontend->some_disconnected = false;
    for (uint32_t at = 0; (c = session_next(d->sessions, &at));)
        if (c->socket_closed || c->disconnected) (void)frontend_probe(d, c);
}

static void
connection_closed(struct daemon *d, int fd)
{
    uint32_t handle = connections_closed(d->frontend->connections, fd);
    struct client *c = handle == CLIENT_NONE ? NULL : session_find(d->sessions, handle);

    if (c) c->socket_closed = d->frontend->some_disconnected = true;
}

/* ---- tcp */

static void
take_tcp_event(struct daemon *d, const struct tcp_server_event *ev)
{
    const struct caller from = {
        .listener = LISTENER_TCP, .id = ev->id, .id_len = ev->id_len, .fd = ev->fd, .key = ev->key
    };

    if (ev->what == TCP_SERVER_OPENED) connection_opened(d, ev->fd);
    if (ev->what == TCP_SERVER_CLOSED) connection_closed(d, ev->fd);
    if (ev->what == TCP_SERVER_FRAME) take_frame(d, &from, ev->p, ev->n, ev->several);
    if (ev->what == TCP_SERVER_CLOSED && d->frontend->some_disconnected)
        tcp_server_look(d->frontend->tcp);
}

/* Reads frames of tcp clients within the budget of tcp_server.c. Returns how many were read. */
static uint32_t
pump_tcp(struct daemon *d, bool *more)
{
    struct tcp_server *t = d->frontend->tcp;
    struct tcp_server_event ev;
    uint32_t frames = 0;
    int r;

    if (!t) return 0;
    if (d->frontend->some_disconnected) tcp_server_look(t);
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
    tcp_server_look(d->frontend->tcp);
}

uint32_t
frontend_pump(struct daemon *d, bool *more)
{
    struct unix_server_event news;
    nsec until = clock_now() + ROUND_TIME;
    uint32_t n = 0, frames = 0;
    size_t bytes = 0;
    int r;

    while ((r = unix_server_take(d->frontend->local, d->now, &news)) > 0) {
        take_unix_event(d, &news);
        frames += news.what == UNIX_SERVER_FRAME;
        bytes += news.n;
        n += news.what == UNIX_SERVER_OPENED   ? FRAMES_A_BEGIN
             : news.what == UNIX_SERVER_CLOSED ? FRAMES_AN_END
                                               : 1;
        if (n >= ROUND_FRAMES || bytes >= ROUND_BYTES || clock_now() >= until) break;
    }
    *more |= r > 0; /* the loop ended because its budget is spent */
    return frames + pump_tcp(d, more);
}
