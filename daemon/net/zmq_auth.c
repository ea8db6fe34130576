/* zmq_auth.c - see zmq_auth.h. */
#include "daemon/net/zmq_auth.h"

#include "base/log.h"
#include "daemon/net/zmq_router.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* Frames of a ZAP request; a reply has one frame less. */
enum { Q_VERSION, Q_NUMBER, Q_DOMAIN, Q_ADDRESS, Q_IDENTITY, Q_MECHANISM, Q_CREDENTIALS, N_FRAMES };
enum { FRAME_MAX = 255, PUBLIC_BYTES = 32 };

struct zmq_auth {
    void *socket;
    sd_event_source *source;
    const struct curve_file *keys;
};

struct auth_request {
    uint32_t n; /* frames */
    int bytes[N_FRAMES];
    char frame[N_FRAMES][FRAME_MAX + 1];
};

struct zmq_auth *
zmq_auth_open(void *zmq, sd_event *event, const struct curve_file *keys, struct err *e)
{
    struct zmq_auth *z = calloc(1, sizeof *z);
    int r = z ? 0 : -ENOMEM;

    if (r == 0) {
        z->keys = keys;
        z->socket = zmq_socket(zmq, ZMQ_REP);
        if (!z->socket || zmq_socket_set(z->socket, ZMQ_LINGER, 0) < 0 ||
            zmq_bind(z->socket, "inproc://zeromq.zap.01") < 0)
            r = -errno;
    }
    if (r == 0) r = zmq_socket_watch(z->socket, event, &z->source, NULL);
    if (r == 0) return z;
    err_set(e, r, "cannot open the socket that checks client keys: %s", zmq_strerror(-r));
    return zmq_auth_close(z);
}

struct zmq_auth *
zmq_auth_close(struct zmq_auth *z)
{
    if (!z) return NULL;
    sd_event_source_disable_unref(z->source);
    if (z->socket) zmq_close(z->socket);
    free(z);
    return NULL;
}

/* Reads all frames of a request, because a REP socket must reply before it receives the next one.
 */
static bool
receive(struct zmq_auth *z, struct auth_request *q)
{
    int more = 1;
    size_t size = sizeof more;

    memset(q, 0, sizeof *q);
    while (more) {
        char spare[FRAME_MAX + 1], *to = q->n < N_FRAMES ? q->frame[q->n] : spare;
        int n = zmq_recv(z->socket, to, FRAME_MAX, ZMQ_DONTWAIT);

        if (n < 0) return false;
        if (q->n < N_FRAMES) q->bytes[q->n] = MIN(n, FRAME_MAX);
        q->n++;
        if (zmq_getsockopt(z->socket, ZMQ_RCVMORE, &more, &size) < 0) return false;
    }
    return true;
}

static const struct curve_peer *
find_key(const struct zmq_auth *z, const struct auth_request *q)
{
    char key[CURVE_KEY + 1];

    if (q->n != N_FRAMES || strcmp(q->frame[Q_VERSION], "1.0") ||
        strcmp(q->frame[Q_DOMAIN], ZMQ_AUTH_DOMAIN) || strcmp(q->frame[Q_MECHANISM], "CURVE") ||
        q->bytes[Q_CREDENTIALS] != PUBLIC_BYTES)
        return NULL;
    if (!zmq_z85_encode(key, (const uint8_t *)q->frame[Q_CREDENTIALS], PUBLIC_BYTES)) return NULL;
    return curve_find(z->keys, key);
}

static void
send_decision(struct zmq_auth *z, const struct auth_request *q, const struct curve_peer *p)
{
    const char *code = p ? "200" : "400", *text = p ? "OK" : "no such key";
    const char *key = p ? p->key : "";

    zmq_send(z->socket, "1.0", 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(z->socket, q->frame[Q_NUMBER], (size_t)q->bytes[Q_NUMBER], ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(z->socket, code, 3, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(z->socket, text, strlen(text), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(z->socket, key, strlen(key), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(z->socket, "", 0, ZMQ_DONTWAIT);
    if (!p)
        log_warn("a client at %.60s is refused: its key is not in api.keys", q->frame[Q_ADDRESS]);
}

void
zmq_auth_pump(struct zmq_auth *z)
{
    struct auth_request q;

    while (z && receive(z, &q)) send_decision(z, &q, find_key(z, &q));
}
