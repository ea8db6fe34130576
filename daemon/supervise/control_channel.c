/* control_channel.c - see control_channel.h. */
#include "daemon/supervise/control_channel.h"

#include "base/log.h"
#include "daemon/config/runtime_dir.h"
#include "daemon/net/zmq_router.h"
#include "daemon/supervise/worker_struct.h"
#include "wire/msg.h"

#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { ROUND_FRAMES = 16, MAX_FRAME = 1 << 16 };

struct control_channel {
    struct worker *w;
    struct zmq_router in;
    sd_event_source *source;
    char endpoint[340], token[33];
    uint8_t id[MAX_ROUTING_ID];
    size_t id_len; /* 0: the worker has not connected yet */
    bool look;     /* messages may be waiting: set by an event or a send; see tcp_server.h */
};

static int
bind_it(struct control_channel *c)
{
    int64_t most = MAX_FRAME;
    mode_t mask;
    int r;

    c->in.socket = zmq_socket(c->w->d->zmq, ZMQ_ROUTER);
    if (!c->in.socket) return -errno;
    zmq_socket_set(c->in.socket, ZMQ_ROUTER_MANDATORY, 1);
    zmq_socket_set(c->in.socket, ZMQ_LINGER, 0);
    zmq_socket_set(c->in.socket, ZMQ_SNDHWM, 64);
    zmq_socket_set(c->in.socket, ZMQ_RCVHWM, 64);
    zmq_setsockopt(c->in.socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    mask = umask(0177);
    r = zmq_bind(c->in.socket, c->endpoint) < 0 ? -errno : 0;
    umask(mask);
    if (r < 0) return r;
    return zmq_socket_watch(c->in.socket, c->w->d->event, &c->source, &c->look);
}

struct control_channel *
control_channel_open(struct worker *w, const char **endpoint, const char **token)
{
    struct control_channel *c = calloc(1, sizeof *c);
    uint8_t secret[16];
    int r = c ? 0 : -ENOMEM;

    if (c && getrandom(secret, sizeof secret, 0) != sizeof secret) r = -EIO;
    if (r == 0) {
        c->w = w;
        for (size_t i = 0; i < sizeof secret; i++) snprintf(c->token + 2 * i, 3, "%02x", secret[i]);
        snprintf(c->endpoint, sizeof c->endpoint, "ipc://%s/w/%u.%llu", w->d->runtime->dir,
                 w->info.index, (unsigned long long)w->info.epoch);
        r = bind_it(c);
    }
    if (r < 0) {
        log_warn("worker %s: no control channel: %s; operator commands to this worker will fail",
                 w->info.name, zmq_strerror(-r));
        return control_channel_close(c);
    }
    *endpoint = c->endpoint;
    *token = c->token;
    return c;
}

void
control_channel_move(struct control_channel *c, struct worker *w)
{
    if (c) c->w = w;
}

struct control_channel *
control_channel_close(struct control_channel *c)
{
    if (!c) return NULL;
    sd_event_source_disable_unref(c->source);
    if (c->in.socket) zmq_close(c->in.socket);
    unlink(c->endpoint + strlen("ipc://"));
    free(c);
    return NULL;
}

static bool
same_token(const struct control_channel *c, const struct msg *m)
{
    struct msg_span t;
    unsigned differ = 0;

    if (msg_str(&m->map, "token", &t) < 0 || t.n != sizeof c->token - 1) return false;
    for (uint32_t i = 0; i < t.n; i++) differ |= (uint8_t)t.p[i] ^ (uint8_t)c->token[i];
    return differ == 0;
}

static void
take(struct control_channel *c, struct zmq_router_message *from)
{
    struct daemon *d = c->w->d;
    uint64_t code = LAGAN_E_INTERNAL;
    struct msg m;

    if (msg_decode(&m, zmq_msg_data(&from->frame), zmq_msg_size(&from->frame), NULL) < 0) return;
    if (m.type == LAGAN_MSG_HELLO && same_token(c, &m)) {
        memcpy(c->id, from->id, from->id_len);
        c->id_len = from->id_len;
    } else if (c->id_len == from->id_len && !memcmp(c->id, from->id, from->id_len)) {
        if (m.type == LAGAN_MSG_REPLY) d->events->control_reply(c->w, m.rid, 0, &m.map);
        if (m.type == LAGAN_MSG_ERROR) {
            msg_u64(&m.map, "code", &code);
            code = MIN(code, (uint64_t)UINT32_MAX);
            d->events->control_reply(c->w, m.rid, (uint32_t)code, &m.map);
        }
    }
    msg_done(&m);
}

bool
control_channel_pump(struct control_channel *c)
{
    uint32_t passed = 0;

    if (!c || !c->look) return false;
    c->look = false;
    for (int i = 0; i < ROUND_FRAMES; i++) {
        struct zmq_router_message m;
        int r = zmq_router_take(&c->in, &m, &passed);

        if (r == -EAGAIN) return false;
        if (r < 0) break;
        if (r == 0) continue;
        take(c, &m);
        zmq_msg_close(&m.frame);
    }
    c->look = true; /* ROUND_FRAMES are read, more may be waiting */
    return true;
}

int
control_channel_call(struct control_channel *c, uint64_t number, const char *verb,
                     const msgpack_object *args)
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
    r = zmq_router_send(&c->in, c->id, c->id_len, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
    return r < 0 ? -ENOTCONN : 0;
}
