/* control.c - see control.h. */
#include "worker/control.h"

#include "base/log.h"
#include "ipc/msg.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

struct control {
    pthread_t thread;
    struct worker *w;
    void *context, *socket; /* the thread's once it runs; context is terminated by stop */
    int wake;
};

static void
send_buffer(struct control *c, const msgpack_sbuffer *b)
{
    while (zmq_send(c->socket, b->data, b->size, ZMQ_DONTWAIT) < 0 && errno == EINTR) {
    }
}

static void
hello(struct control *c, const char *token)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_HELLO, 0, 2);
    msg_key(&p, "token");
    msg_text(&p, token);
    msg_key(&p, "pid");
    msgpack_pack_uint32(&p, (uint32_t)getpid());
    send_buffer(c, &b);
    msgpack_sbuffer_destroy(&b);
}

static void
pack_stats(struct control *c, msgpack_packer *p)
{
    struct stats s = { { 0 } };

    stat_read(shm_ctl(&c->w->link.w), &s);
    msgpack_pack_map(p, STAT_COUNT);
    for (uint32_t i = 0; i < STAT_COUNT; i++) {
        msg_key(p, stat_rows[i].name);
        msgpack_pack_uint64(p, s.v[i]);
    }
}

static bool
is(const struct msg_span *s, const char *word)
{
    return s->n == strlen(word) && !memcmp(s->p, word, s->n);
}

static void
answer(struct control *c, const struct msg *m)
{
    struct msg_span verb = { 0 }, level = { 0 };
    const msgpack_object *args = msg_get(&m->map, "args");
    static const char *const names[] = { "err", "warn", "info", "debug" };
    static const enum log_level levels[] = { LOG_LEVEL_ERR, LOG_LEVEL_WARN, LOG_LEVEL_INFO,
                                             LOG_LEVEL_DEBUG };
    bool known = true;
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_str(&m->map, "verb", &verb);
    if (is(&verb, "stats")) {
        msg_begin(&p, LAGAN_MSG_REPLY, m->rid, 1);
        msg_key(&p, "result");
        pack_stats(c, &p);
        send_buffer(c, &b);
        msgpack_sbuffer_destroy(&b);
        return;
    }
    if (is(&verb, "drain")) {
        uint64_t one = 1;

        atomic_store_explicit(&c->w->drain_asked, true, memory_order_relaxed);
        while (write(c->wake, &one, sizeof one) < 0 && errno == EINTR) {
        }
    } else if (is(&verb, "loglevel")) {
        known = false;
        if (args) msg_str(args, "level", &level);
        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            if (is(&level, names[i])) {
                log_level_set(levels[i]);
                known = true;
            }
    } else {
        known = false;
    }
    msg_begin(&p, known ? LAGAN_MSG_REPLY : LAGAN_MSG_ERROR, m->rid, 1);
    msg_key(&p, known ? "result" : "code");
    if (known)
        msgpack_pack_map(&p, 0);
    else
        msgpack_pack_uint32(&p, LAGAN_E_NOT_FOUND);
    send_buffer(c, &b);
    msgpack_sbuffer_destroy(&b);
}

static void *
control_run(void *arg)
{
    struct control *c = arg;
    const char *token = getenv("LAGAN_TOKEN");

    hello(c, token ? token : "");
    for (;;) {
        zmq_msg_t frame;
        struct msg m;
        int r;

        zmq_msg_init(&frame);
        r = zmq_msg_recv(&frame, c->socket, 0);
        if (r >= 0 && msg_decode(&m, zmq_msg_data(&frame), zmq_msg_size(&frame), NULL) == 0) {
            if (m.type == LAGAN_MSG_CALL) answer(c, &m);
            msg_done(&m);
        }
        zmq_msg_close(&frame);
        if (r < 0 && errno != EINTR) break; /* ETERM: stop */
    }
    zmq_close(c->socket);
    return NULL;
}

struct control *
control_start(struct worker *w)
{
    const char *endpoint = getenv("LAGAN_CONTROL");
    struct control *c;
    int linger = 0;

    if (!endpoint) return NULL;
    c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->w = w;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->context = zmq_ctx_new();
    c->socket = c->context ? zmq_socket(c->context, ZMQ_DEALER) : NULL;
    if (c->socket) zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger);
    if (c->wake >= 0 && c->socket && zmq_connect(c->socket, endpoint) == 0 &&
        pthread_create(&c->thread, NULL, control_run, c) == 0)
        return c;
    log_warn("the control channel %s cannot be opened (%s), serving without it", endpoint,
             zmq_strerror(errno));
    if (c->socket) zmq_close(c->socket);
    if (c->context) zmq_ctx_term(c->context);
    if (c->wake >= 0) close(c->wake);
    free(c);
    return NULL;
}

struct control *
control_stop(struct control *c)
{
    if (!c) return NULL;
    zmq_ctx_shutdown(c->context);
    pthread_join(c->thread, NULL);
    zmq_ctx_term(c->context);
    close(c->wake);
    free(c);
    return NULL;
}

int
control_fd(const struct control *c)
{
    return c ? c->wake : -1;
}
