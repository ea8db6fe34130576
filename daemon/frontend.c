/* frontend.c - see frontend.h.
 *
 * ZMQ_FD is edge-triggered and says nothing about direction: after every send and receive ZMQ_EVENTS
 * is read again. Here that is front_pump(), called in every turn; serve.c does not sleep while it says
 * that there is more.
 */
#include "daemon/frontend.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "daemon/admission.h"
#include "daemon/commands.h"
#include "daemon/deliver.h"

#include <errno.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { TURN_FRAMES = 64, SEND_QUEUE = 4096, RECEIVE_QUEUE = 1024 };

static const struct door {
    const char *name, *group;
} doors[N_DOORS] = {
    [DOOR_API] = { "api.sock", "lagan" }, [DOOR_CTL] = { "ctl.sock", "lagan-admin" }
};

struct frontend {
    void *socket[N_DOORS];
    sd_event_source *source[N_DOORS];
};

/* The descriptor only wakes the loop; what there is to do the pump finds. */
static int
on_ready(sd_event_source *s, int fd, uint32_t revents, void *arg)
{
    (void)s;
    (void)fd;
    (void)revents;
    (void)arg;
    return 0;
}

static int
set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int
configure(void *s)
{
    int64_t most = LAGAN_MAX_FRAME;
    int r = zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof most);

    /* MANDATORY: a full or gone peer is an error of the send, not a message that vanishes. */
    r |= set(s, ZMQ_ROUTER_MANDATORY, 1);
    r |= set(s, ZMQ_LINGER, 0);
    r |= set(s, ZMQ_SNDHWM, SEND_QUEUE);
    r |= set(s, ZMQ_RCVHWM, RECEIVE_QUEUE);
    r |= set(s, ZMQ_BACKLOG, 512);
    r |= set(s, ZMQ_HANDSHAKE_IVL, 5000);
    r |= set(s, ZMQ_HEARTBEAT_IVL, 2000);
    r |= set(s, ZMQ_HEARTBEAT_TIMEOUT, 6000);
    r |= set(s, ZMQ_HEARTBEAT_TTL, 6000);
    return r;
}

/* The socket's file: ours, and its group's if there is such a group. */
static int
permit(const char *path, const char *group, struct err *e)
{
    struct group *g = getgrnam(group);

    if (chmod(path, 0660) < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (g && chown(path, (uid_t)-1, g->gr_gid) < 0 && errno != EPERM) {
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    }
    return 0;
}

static int
open_door(struct daemon *d, enum front_door door, struct err *e)
{
    struct frontend *f = d->front;
    char endpoint[340];
    const char *path = endpoint + strlen("ipc://");
    size_t size = sizeof(int);
    mode_t mask;
    int fd, r;

    TRY(runtime_vacate(&d->runtime, doors[door].name, e));
    snprintf(endpoint, sizeof endpoint, "ipc://%s/%s", d->runtime.dir, doors[door].name);
    f->socket[door] = zmq_socket(d->zmq, ZMQ_ROUTER);
    if (!f->socket[door] || configure(f->socket[door])) {
        return err_set(e, -EIO, "%s: %s", endpoint, zmq_strerror(errno));
    }
    mask = umask(0117); /* never open wider than it will be */
    r = zmq_bind(f->socket[door], endpoint) < 0 ? -errno : 0;
    umask(mask);
    if (r < 0) return err_set(e, r, "%s: cannot be bound: %s", path, zmq_strerror(-r));
    TRY(permit(path, doors[door].group, e));
    if (zmq_getsockopt(f->socket[door], ZMQ_FD, &fd, &size) < 0) {
        return err_set(e, -errno, "%s: %s", path, zmq_strerror(errno));
    }
    r = sd_event_add_io(d->event, &f->source[door], fd, EPOLLIN, on_ready, NULL);
    return r < 0 ? err_set(e, r, "%s: %s", path, strerror(-r)) : 0;
}

int
front_open(struct daemon *d, struct err *e)
{
    d->front = calloc(1, sizeof *d->front);
    if (!d->front) return err_set(e, -ENOMEM, "front end");
    for (int i = 0; i < N_DOORS; i++) TRY(open_door(d, (enum front_door)i, e));
    return 0;
}

void
front_close(struct daemon *d)
{
    struct frontend *f = d->front;

    if (!f) return;
    for (int i = 0; i < N_DOORS; i++) {
        sd_event_source_disable_unref(f->source[i]);
        if (f->socket[i]) {
            char path[340];

            zmq_close(f->socket[i]);
            /* ZeroMQ unlinks behind our back, when it gets to it; then it is there no more. */
            snprintf(path, sizeof path, "%s/%s", d->runtime.dir, doors[i].name);
            unlink(path);
        }
    }
    free(f);
    d->front = NULL;
}

/* ---- out */

int
front_send(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    void *s = d->front->socket[c->door];
    int r;

    do r = zmq_send(s, c->id, c->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    while (r < 0 && errno == EINTR);
    if (r < 0) return errno == EAGAIN ? -EAGAIN : -EHOSTUNREACH;
    /* With the id accepted the rest is: ZeroMQ queues messages whole. */
    do r = zmq_send(s, frame, n, ZMQ_DONTWAIT);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -EHOSTUNREACH : 0;
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

/* ---- the pump */

/* One message: [id][frame], more frames are read and not looked at. 1, 0 none. */
static int
receive(struct daemon *d, enum front_door door)
{
    void *s = d->front->socket[door];
    uint8_t id[MAX_ROUTING_ID + 1];
    int id_len = zmq_recv(s, id, sizeof id, ZMQ_DONTWAIT), more;
    size_t size = sizeof more;
    zmq_msg_t frame, extra;
    struct client *c = NULL;
    uint32_t gone, n_extra = 0;

    if (id_len < 0) return errno == EINTR ? 1 : 0;
    if (zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size) < 0 || !more) return 1; /* an id alone */
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, s, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&frame);
        return 1;
    }
    while (zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size) == 0 && more) {
        zmq_msg_init(&extra);
        n_extra++;
        if (zmq_msg_recv(&extra, s, ZMQ_DONTWAIT) < 0) more = 0;
        zmq_msg_close(&extra);
    }
    if ((size_t)id_len <= MAX_ROUTING_ID) {
        c = session_of(d->sessions, door, id, (size_t)id_len, d->now, &gone);
    }
    if (!c) {
        log_debug("a client is not served: there are %u", session_n(d->sessions));
    } else if (n_extra) {
        FRONT_REFUSE(d, c, 0, LAGAN_E_INVALID_REQUEST, "a message is one frame, this one has %u",
                     n_extra + 1);
    } else {
        front_frame(d, c, zmq_msg_data(&frame), zmq_msg_size(&frame));
    }
    zmq_msg_close(&frame);
    return 1;
}

bool
front_pump(struct daemon *d)
{
    bool more = false;

    for (int i = 0; i < N_DOORS; i++) {
        void *s = d->front->socket[i];
        int events = 0, taken = 0;
        size_t size = sizeof events;

        while (taken < TURN_FRAMES && receive(d, (enum front_door)i)) taken++;
        if (zmq_getsockopt(s, ZMQ_EVENTS, &events, &size) == 0) more |= events & ZMQ_POLLIN;
    }
    return more;
}
