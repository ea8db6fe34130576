/* control.c - see control.h. */
#include "daemon/control.h"

#include "base/log.h"
#include "daemon/calls.h"
#include "daemon/session.h"
#include "ipc/msg.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { TURN_FRAMES = 16, TURN_SKIPPED = 4096, MAX_FRAME = 1 << 16 };

struct control {
    struct worker *w;
    void *socket;
    sd_event_source *source;
    char endpoint[340], token[33];
    uint8_t id[MAX_ROUTING_ID];
    int id_len; /* 0: the worker has not come yet */
    bool look;  /* something may have come: see frontend.c */
    bool skips; /* of a message of several frames, whose first was looked at, some are to come */
};

static int
on_ready(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    (void)s;
    (void)fd;
    (void)revents;
    *(bool *)arg = true;
    return 0; /* the turn that follows pumps */
}

static int
bind_it(struct control *c)
{
    int mandatory = 1, linger = 0, hwm = 64, fd, r;
    int64_t most = MAX_FRAME;
    size_t size = sizeof fd;
    mode_t mask;

    c->socket = zmq_socket(c->w->d->zmq, ZMQ_ROUTER);
    if (!c->socket) return -errno;
    zmq_setsockopt(c->socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory);
    zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(c->socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(c->socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    mask = umask(0177);
    r = zmq_bind(c->socket, c->endpoint) < 0 ? -errno : 0;
    umask(mask);
    if (r < 0) return r;
    c->look = true; /* there is no edge before it has been found empty */
    if (zmq_getsockopt(c->socket, ZMQ_FD, &fd, &size) < 0) return -errno;
    return sd_event_add_io(c->w->d->event, &c->source, fd, EPOLLIN, on_ready, &c->look);
}

struct control *
control_open(struct worker *w, const char **endpoint, const char **token)
{
    struct control *c = calloc(1, sizeof *c);
    uint8_t secret[16];
    int r = c ? 0 : -ENOMEM;

    if (c && getrandom(secret, sizeof secret, 0) != sizeof secret) r = -EIO;
    if (r == 0) {
        c->w = w;
        for (size_t i = 0; i < sizeof secret; i++) {
            snprintf(c->token + 2 * i, 3, "%02x", secret[i]);
        }
        snprintf(c->endpoint, sizeof c->endpoint, "ipc://%s/w/%u.%llu", w->d->runtime.dir, w->index,
                 (unsigned long long)w->epoch);
        r = bind_it(c);
    }
    if (r < 0) {
        log_warn("worker %s: no control channel: %s, going on without", w->name, zmq_strerror(-r));
        return control_close(c);
    }
    *endpoint = c->endpoint;
    *token = c->token;
    return c;
}

void
control_move(struct control *c, struct worker *w)
{
    if (c) c->w = w;
}

struct control *
control_close(struct control *c)
{
    if (!c) return NULL;
    sd_event_source_disable_unref(c->source);
    if (c->socket) zmq_close(c->socket);
    unlink(c->endpoint + strlen("ipc://"));
    free(c);
    return NULL;
}

static bool
same_token(const struct control *c, const struct msg *m)
{
    struct msg_span t;
    unsigned differ = 0;

    if (msg_str(&m->map, "token", &t) < 0 || t.n != sizeof c->token - 1) return false;
    for (uint32_t i = 0; i < t.n; i++) differ |= (uint8_t)t.p[i] ^ (uint8_t)c->token[i];
    return differ == 0;
}

static void
take(struct control *c, const uint8_t *id, int id_len, const void *frame, size_t n)
{
    uint64_t code = LAGAN_E_INTERNAL;
    struct msg m;

    if (msg_decode(&m, frame, n, NULL) < 0) return;
    if (m.type == LAGAN_MSG_HELLO && same_token(c, &m)) {
        memcpy(c->id, id, (size_t)id_len);
        c->id_len = id_len;
    } else if (c->id_len == id_len && !memcmp(c->id, id, (size_t)id_len)) {
        if (m.type == LAGAN_MSG_REPLY) calls_control_done(c->w, m.rid, 0, &m.map);
        if (m.type == LAGAN_MSG_ERROR) {
            msg_u64(&m.map, "code", &code);
            calls_control_done(c->w, m.rid, (uint32_t)MIN(code, (uint64_t)UINT32_MAX), &m.map);
        }
    }
    msg_done(&m);
}

static bool
has_more(const struct control *c)
{
    int more = 0;
    size_t size = sizeof more;

    return zmq_getsockopt(c->socket, ZMQ_RCVMORE, &more, &size) == 0 && more;
}

/* Past a message's other frames, of which there may be millions. false: some are left. */
static bool
skip(struct control *c, uint32_t *n)
{
    while (c->skips && *n < TURN_SKIPPED) {
        zmq_msg_t frame;

        zmq_msg_init(&frame);
        c->skips = zmq_msg_recv(&frame, c->socket, ZMQ_DONTWAIT) >= 0 && has_more(c);
        zmq_msg_close(&frame);
        ++*n;
    }
    return !c->skips;
}

bool
control_pump(struct control *c)
{
    uint32_t skipped = 0;

    if (!c || !c->look) return false;
    c->look = false;
    for (int i = 0; i < TURN_FRAMES && skip(c, &skipped); i++) {
        uint8_t id[MAX_ROUTING_ID + 1];
        int id_len = zmq_recv(c->socket, id, sizeof id, ZMQ_DONTWAIT);
        zmq_msg_t frame;

        if (id_len < 0) return false;
        if (!has_more(c)) continue;
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, c->socket, ZMQ_DONTWAIT) >= 0) {
            c->skips = has_more(c);
            if (id_len <= MAX_ROUTING_ID)
                take(c, id, id_len, zmq_msg_data(&frame), zmq_msg_size(&frame));
        }
        zmq_msg_close(&frame);
    }
    c->look = true; /* the budget is spent */
    return true;
}

int
control_call(struct control *c, uint64_t number, const char *verb, const msgpack_object *args)
{
    msgpack_sbuffer b;
    msgpack_packer p;
    int r;

    if (!c || !c->id_len) return -ENOTCONN;
    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_CALL, number, 2);
    msg_key(&p, "verb");
    msg_text(&p, verb);
    msg_key(&p, "args");
    if (args)
        msgpack_pack_object(&p, *args);
    else
        msgpack_pack_map(&p, 0);
    c->look = true;
    r = zmq_send(c->socket, c->id, (size_t)c->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (r >= 0) r = zmq_send(c->socket, b.data, b.size, ZMQ_DONTWAIT);
    msgpack_sbuffer_destroy(&b);
    return r < 0 ? -ENOTCONN : 0;
}
