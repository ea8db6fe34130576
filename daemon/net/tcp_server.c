/* tcp_server.c - see tcp_server.h. */
#include "daemon/net/tcp_server.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/net/zmq_router.h"
#include "wire/curve.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

/* Messages queued in libzmq for each connection: to send; received and unread (libzmq keeps
 * RECEIVE_QUEUE + 1 frames, at most 37 MiB). */
enum { SEND_QUEUE = 4096, RECEIVE_QUEUE = 8, LINGER_MS = 200 };
enum { BACKLOG = 512 }; /* connections that the kernel has accepted and lagand has not */
/* Budget of a round: frames, their bytes, connection events, time. */
enum { ROUND_FRAMES = 64, ROUND_BYTES = 4 << 20, ROUND_EVENTS = 64 };
static const nsec ROUND_TIME = 5 * NSEC_MS, LOG_EVERY = 10 * NSEC_S;
/* A key that is not in api.keys is no such event; send_decision() logs it. */
enum {
    HANDSHAKE_FAILED = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL
};
/* Frames of an authentication request of libzmq (ZAP, ZeroMQ RFC 27), in their order. */
enum { Q_VERSION, Q_NUMBER, Q_DOMAIN, Q_ADDRESS, Q_IDENTITY, Q_MECHANISM, Q_CREDENTIALS, N_FRAMES };
enum { FRAME_MAX = 255, PUBLIC_BYTES = 32 };
static const char AUTH_DOMAIN[] = "lagan";

struct tcp_server {
    struct zmq_router in;
    void *monitor;
    sd_event_source *source, *on_monitor;
    bool look, news; /* frames may be waiting; connection events may be waiting */
    void *auth;      /* socket on which libzmq sends authentication requests */
    sd_event_source *on_auth;
    const struct curve_file *keys;
    nsec failed_logged_at; /* when a failed handshake was last logged; 0: never */
    uint32_t n_failed;     /* failed handshakes since then */
    nsec until;            /* end of the present round; counts of the present round: */
    uint32_t n_events, n_frames, n_dropped;
    size_t n_bytes;
    struct zmq_router_message m; /* message of the last TCP_SERVER_FRAME event */
    bool held;                   /* m.frame is to be closed */
};

struct auth_request {
    uint32_t n; /* frames */
    int bytes[N_FRAMES];
    char frame[N_FRAMES][FRAME_MAX + 1];
};

/* ---- open and close */

static int
configure(void *s)
{
    int64_t most = LAGAN_MAX_FRAME;
    int r = zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof most);

    /* MANDATORY: a send to a full or lost peer fails instead of dropping the message. */
    r |= zmq_socket_set(s, ZMQ_ROUTER_MANDATORY, 1);
    r |= zmq_socket_set(s, ZMQ_LINGER, 0);
    r |= zmq_socket_set(s, ZMQ_SNDHWM, SEND_QUEUE);
    r |= zmq_socket_set(s, ZMQ_RCVHWM, RECEIVE_QUEUE);
    r |= zmq_socket_set(s, ZMQ_HANDSHAKE_IVL, 5000);
    r |= zmq_socket_set(s, ZMQ_HEARTBEAT_IVL, 2000);
    r |= zmq_socket_set(s, ZMQ_HEARTBEAT_TIMEOUT, 6000);
    r |= zmq_socket_set(s, ZMQ_HEARTBEAT_TTL, 6000);
    r |= zmq_socket_set(s, ZMQ_IPV6, 1);
    return r;
}

/* Makes s accept only connections encrypted with CURVE. libzmq asks the ZAP handler which keys are
 * valid, and accepts every key if there is no handler: so bind_it() calls open_auth() before it
 * binds, and identify() (frontend.c) checks again that the key of a client is in the file. */
static int
encrypt(void *s, const struct curve_file *keys)
{
    int r = zmq_socket_set(s, ZMQ_CURVE_SERVER, 1);

    r |= zmq_setsockopt(s, ZMQ_CURVE_SECRETKEY, keys->secret, CURVE_KEY + 1);
    r |= zmq_setsockopt(s, ZMQ_ZAP_DOMAIN, AUTH_DOMAIN, strlen(AUTH_DOMAIN));
    return r;
}

/* Opens the socket on which libzmq reports accepted and closed connections. */
static int
open_monitor(struct daemon *d, struct tcp_server *t)
{
    static const char at[] = "inproc://tcp";

    t->monitor = zmq_socket(d->zmq, ZMQ_PAIR);
    /* The queue has no limit, because libzmq's thread would block if it were full. */
    if (!t->monitor || zmq_socket_set(t->monitor, ZMQ_LINGER, 0) ||
        zmq_socket_set(t->monitor, ZMQ_RCVHWM, 0) ||
        zmq_socket_monitor(t->in.socket, at,
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | HANDSHAKE_FAILED) < 0 ||
        zmq_connect(t->monitor, at) < 0)
        return -errno;
    return zmq_socket_watch(t->monitor, d->event, &t->on_monitor, &t->news);
}

/* Opens the socket of the ZAP handler (RFC 27). libzmq's thread sends it a request for each new
 * connection, and no frame of the connection is received until lagand has replied. */
static int
open_auth(struct daemon *d, struct tcp_server *t)
{
    t->auth = zmq_socket(d->zmq, ZMQ_REP);
    if (!t->auth || zmq_socket_set(t->auth, ZMQ_LINGER, 0) < 0 ||
        zmq_bind(t->auth, "inproc://zeromq.zap.01") < 0)
        return -errno;
    return zmq_socket_watch(t->auth, d->event, &t->on_auth, NULL);
}

/* Replaces [::ffff:1.2.3.4] in an endpoint by 1.2.3.4; returns the endpoint. */
static char *
plain_ipv4(char *endpoint)
{
    static const char mapped[] = "[::ffff:";
    char *from = strstr(endpoint, mapped), *end = from ? strchr(from, ']') : NULL;

    if (!end || !strchr(from, '.')) return endpoint;
    memmove(end, end + 1, strlen(end));
    memmove(from, from + strlen(mapped), strlen(from + strlen(mapped)) + 1);
    return endpoint;
}

static int
cannot(const char *where, int code, const char *why, struct err *e)
{
    const char *hint = code == -EADDRINUSE ? "; another program uses the port"
                       : code == -EAFNOSUPPORT
                           ? "; under systemd lagand.service needs the drop-in for tcp that "
                             "docs/operations.md shows"
                           : "";

    return err_set(e, code, "api.tcp: cannot bind %.100s: %s%s", where, why, hint);
}

/* Opens a listening socket at the first address of the list that the host has. */
static int
listen_at(const struct addrinfo *list)
{
    int code = -EADDRNOTAVAIL, on = 1, off = 0;

    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0) {
            code = -errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
        code = -errno;
        close(fd);
    }
    return code;
}

int
tcp_server_listen(const char *where, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *list;
    char host[256];
    const char *port;
    size_t n;
    int r;

    if (snprintf(host, sizeof host, "%s", where + strlen("tcp://")) >= (int)sizeof host ||
        !strrchr(host, ':'))
        return cannot(where, -EINVAL, "the form is tcp://HOST:PORT or tcp://*:PORT", e);
    *strrchr(host, ':') = 0;
    port = host + strlen(host) + 1;
    n = strlen(host);
    if (*host == '[' && host[n - 1] == ']') memmove(host, host + 1, n), host[n - 2] = 0;
    /* A socket at :: has clients of IPv4 and IPv6. A host without IPv6 has 0.0.0.0 only. */
    for (int any = strcmp(host, "*") == 0, v4 = 0;; v4++) {
        hints.ai_family = !any ? AF_UNSPEC : v4 ? AF_INET : AF_INET6;
        r = getaddrinfo(any ? NULL : host, strcmp(port, "*") ? port : "0", &hints, &list);
        if (r) return cannot(where, -EINVAL, gai_strerror(r), e);
        r = listen_at(list);
        freeaddrinfo(list);
        if (!any || v4 || (r != -EAFNOSUPPORT && r != -EADDRNOTAVAIL)) break;
    }
    return r < 0 ? cannot(where, r, strerror(-r), e) : r;
}

static int
bind_it(struct daemon *d, struct tcp_server *t, struct err *e)
{
    const char *where = d->config->o.tcp;
    char at[300] = "";
    size_t size = sizeof at;
    int fd, r;

    t->in.socket = zmq_socket(d->zmq, ZMQ_ROUTER);
    if (!t->in.socket || configure(t->in.socket))
        return err_set(e, -EIO, "cannot create the socket of api.tcp: %s", zmq_strerror(errno));
    r = open_monitor(d, t);
    if (r < 0)
        return err_set(e, r, "cannot monitor the connections of clients: %s", zmq_strerror(-r));
    r = open_auth(d, t);
    if (r < 0)
        return err_set(e, r, "cannot open the socket that checks client keys: %s",
                       zmq_strerror(-r));
    if (encrypt(t->in.socket, t->keys))
        return err_set(e, -EIO, "api.tcp %s: libzmq cannot use CURVE encryption: %s", where,
                       zmq_strerror(errno));
    fd = tcp_server_listen(where, e);
    if (fd < 0) return fd;
    if (zmq_socket_set(t->in.socket, ZMQ_USE_FD, fd) < 0 || zmq_bind(t->in.socket, where) < 0) {
        r = cannot(where, -errno, zmq_strerror(errno), e);
        close(fd);
        return r;
    }
    r = zmq_socket_watch(t->in.socket, d->event, &t->source, &t->look);
    if (r < 0) return err_set(e, r, "cannot watch the socket of api.tcp: %s", strerror(-r));
    zmq_getsockopt(t->in.socket, ZMQ_LAST_ENDPOINT, at, &size);
    log_info("listening at %s for clients with one of %u keys", plain_ipv4(at), t->keys->n_peers);
    return 0;
}

static void
release_frame(struct tcp_server *t)
{
    if (t->held) zmq_msg_close(&t->m.frame);
    t->held = false;
}

struct tcp_server *
tcp_server_open(struct daemon *d, const struct curve_file *keys, struct err *e)
{
    struct tcp_server *t = calloc(1, sizeof *t);

    if (!t) {
        err_set(e, -ENOMEM, "no host memory for clients over tcp");
        return NULL;
    }
    t->keys = keys;
    return bind_it(d, t, e) < 0 ? tcp_server_close(t, false) : t;
}

struct tcp_server *
tcp_server_close(struct tcp_server *t, bool linger)
{
    if (!t) return NULL;
    release_frame(t);
    sd_event_source_disable_unref(t->source);
    sd_event_source_disable_unref(t->on_monitor);
    if (t->in.socket) zmq_socket_monitor(t->in.socket, NULL, 0);
    if (t->monitor) zmq_close(t->monitor);
    if (t->in.socket && linger) zmq_socket_set(t->in.socket, ZMQ_LINGER, LINGER_MS);
    if (t->in.socket) zmq_close(t->in.socket);
    sd_event_source_disable_unref(t->on_auth);
    if (t->auth) zmq_close(t->auth);
    free(t);
    return NULL;
}

/* ---- send */

int
tcp_server_send(struct tcp_server *t, const void *id, size_t id_len, const void *frame, size_t n)
{
    t->look = true;
    return zmq_router_send(&t->in, id, id_len, frame, n);
}

/* ---- authentication */

/* Receives an authentication request with all its frames: a REP socket can reply only after all
 * frames are read. Returns false if no request is waiting. */
static bool
receive_request(struct tcp_server *t, struct auth_request *q)
{
    int more = 1;
    size_t size = sizeof more;

    memset(q, 0, sizeof *q);
    while (more) {
        char spare[FRAME_MAX + 1], *to = q->n < N_FRAMES ? q->frame[q->n] : spare;
        int n = zmq_recv(t->auth, to, FRAME_MAX, ZMQ_DONTWAIT);

        if (n < 0) return false;
        if (q->n < N_FRAMES) q->bytes[q->n] = MIN(n, FRAME_MAX);
        q->n++;
        if (zmq_getsockopt(t->auth, ZMQ_RCVMORE, &more, &size) < 0) return false;
    }
    return true;
}

/* Returns the entry of api.keys for the key of an authentication request; NULL: refuse it. */
static const struct curve_peer *
find_key(const struct tcp_server *t, const struct auth_request *q)
{
    char key[CURVE_KEY + 1];

    if (q->n != N_FRAMES || strcmp(q->frame[Q_VERSION], "1.0") ||
        strcmp(q->frame[Q_DOMAIN], AUTH_DOMAIN) || strcmp(q->frame[Q_MECHANISM], "CURVE") ||
        q->bytes[Q_CREDENTIALS] != PUBLIC_BYTES)
        return NULL;
    if (!zmq_z85_encode(key, (const uint8_t *)q->frame[Q_CREDENTIALS], PUBLIC_BYTES)) return NULL;
    return curve_find(t->keys, key);
}

static void
send_decision(struct tcp_server *t, const struct auth_request *q, const struct curve_peer *p)
{
    const char *code = p ? "200" : "400", *text = p ? "OK" : "no such key";
    const char *key = p ? p->key : "";

    zmq_send(t->auth, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(t->auth, q->frame[Q_NUMBER], (size_t)q->bytes[Q_NUMBER], ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(t->auth, code, 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(t->auth, text, strlen(text), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(t->auth, key, strlen(key), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(t->auth, "", 0, ZMQ_DONTWAIT);
    if (!p)
        log_warn("a client at %.60s is refused: its key is not in api.keys", q->frame[Q_ADDRESS]);
}

/* ---- receive */

void
tcp_server_look(struct tcp_server *t)
{
    if (t) t->look = t->news = true;
}

void
tcp_server_begin(struct tcp_server *t)
{
    struct auth_request q;

    t->until = clock_now() + ROUND_TIME;
    t->n_events = t->n_frames = t->n_dropped = 0;
    t->n_bytes = 0;
    while (receive_request(t, &q)) send_decision(t, &q, find_key(t, &q));
}

/* Logs failed handshakes, the first at once and then their number every LOG_EVERY. libzmq does not
 * say from which address they came. */
static void
log_failed_handshake(struct tcp_server *t)
{
    nsec now = clock_now();

    t->n_failed++;
    if (t->failed_logged_at && now - t->failed_logged_at < LOG_EVERY) return;
    log_warn("%u tcp connections failed the CURVE handshake: `server` of the client's key file is "
             "not the key of this lagand, or the peer is no client",
             t->n_failed);
    t->failed_logged_at = now;
    t->n_failed = 0;
}

/* Returns true with the next connection event; false: none, or the round has read ROUND_EVENTS. */
static bool
take_monitor(struct tcp_server *t, struct tcp_server_event *ev)
{
    uint8_t event[6];
    char spare[256];

    while (t->news && t->n_events++ < ROUND_EVENTS) {
        uint16_t what;
        uint32_t fd;

        if (zmq_recv(t->monitor, event, sizeof event, ZMQ_DONTWAIT) != sizeof event) {
            t->news = false;
            break;
        }
        memcpy(&what, event, sizeof what);
        memcpy(&fd, event + 2, sizeof fd);
        zmq_recv(t->monitor, spare, sizeof spare, ZMQ_DONTWAIT);
        if (what & HANDSHAKE_FAILED) log_failed_handshake(t);
        if (what != ZMQ_EVENT_DISCONNECTED && what != ZMQ_EVENT_ACCEPTED) continue;
        *ev = (struct tcp_server_event){
            .what = what == ZMQ_EVENT_ACCEPTED ? TCP_SERVER_OPENED : TCP_SERVER_CLOSED,
            .fd = (int)fd,
        };
        return true;
    }
    return false;
}

static bool
budget_is_spent(const struct tcp_server *t)
{
    return t->n_frames >= ROUND_FRAMES || t->n_bytes >= ROUND_BYTES ||
           (t->n_frames && clock_now() >= t->until);
}

int
tcp_server_take(struct tcp_server *t, struct tcp_server_event *ev)
{
    int r = 0;

    release_frame(t);
    if (take_monitor(t, ev)) return 1;
    while (t->look && r == 0) {
        if (budget_is_spent(t)) return -EBUSY;
        r = zmq_router_take(&t->in, &t->m, &t->n_dropped);
        if (r == -EAGAIN) t->look = false;
        if (r >= 0) t->n_frames++;
    }
    if (!t->look) return 0;
    if (r < 0) return r; /* -EBUSY */
    t->held = true;
    t->n_bytes += zmq_msg_size(&t->m.frame);
    *ev = (struct tcp_server_event){
        .what = TCP_SERVER_FRAME,
        .fd = zmq_msg_get(&t->m.frame, ZMQ_SRCFD),
        .id = t->m.id,
        .id_len = t->m.id_len,
        .key = zmq_msg_gets(&t->m.frame, "User-Id"),
        .p = zmq_msg_data(&t->m.frame),
        .n = zmq_msg_size(&t->m.frame),
        .several = t->m.several,
    };
    return 1;
}

bool
tcp_server_more(const struct tcp_server *t)
{
    return t->look || t->news;
}
