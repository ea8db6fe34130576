/* streams.c - see streams.h. A request's id contains its stream. */
#include "tests/torture/streams.h"

#include "base/clock.h"
#include "include/lagan_wire.h"
#include "tests/test.h"
#include "tests/torture/mock.h"
#include "wire/msg.h"

#include <zmq.h>

enum { LONG_PROMPT = 5000 };

static void
open_sockets(struct streams *s)
{
    int zero = 0;

    for (uint32_t i = 0; i < STREAM_CLIENTS; i++) {
        s->socket[i] = zmq_socket(s->zmq, ZMQ_DEALER);
        zmq_setsockopt(s->socket[i], ZMQ_LINGER, &zero, sizeof zero);
        zmq_setsockopt(s->socket[i], ZMQ_SNDHWM, &zero, sizeof zero);
        zmq_setsockopt(s->socket[i], ZMQ_RCVHWM, &zero, sizeof zero);
        assert_int_equal(zmq_connect(s->socket[i], s->endpoint), 0);
    }
}

static void
close_sockets(struct streams *s)
{
    for (uint32_t i = 0; i < STREAM_CLIENTS; i++) zmq_close(s->socket[i]);
}

void
streams_open(struct streams *s, const char *endpoint, uint32_t n, uint32_t max_tokens)
{
    *s = (struct streams){ .endpoint = endpoint, .n = n, .max_tokens = max_tokens };
    assert_true(n <= STREAMS_MAX);
    assert_int_equal(history_open(&s->history, n), 0);
    s->zmq = zmq_ctx_new();
    open_sockets(s);
}

void
streams_close(struct streams *s)
{
    if (!s->zmq) return;
    close_sockets(s);
    zmq_ctx_term(s->zmq);
    history_close(&s->history);
    s->zmq = NULL;
}

void
streams_reconnect(struct streams *s)
{
    close_sockets(s);
    open_sockets(s);
    for (uint32_t i = 0; i < s->n; i++) s->stream[i].id = 0;
    s->n_open = 0;
    history_close(&s->history);
    assert_int_equal(history_open(&s->history, s->n), 0);
}

static void *
socket_of(struct streams *s, uint64_t id)
{
    return s->socket[id % STREAMS_MAX % STREAM_CLIENTS];
}

static void
send_frame(struct streams *s, uint64_t id, const msgpack_sbuffer *b)
{
    assert_int_equal(zmq_send(socket_of(s, id), b->data, b->size, ZMQ_DONTWAIT), b->size);
}

static uint32_t
tokens_of(const struct streams *s, uint64_t id)
{
    return 1 + (uint32_t)(id / STREAMS_MAX * 7919 % s->max_tokens);
}

/* Submits a short prompt, sometimes one of several records. */
static void
submit(struct streams *s, uint32_t i, bool poison)
{
    uint64_t id = ++s->last * STREAMS_MAX + i;
    uint32_t n = test_below(16) ? 1 + test_below(8) : 1 + test_below(LONG_PROMPT);
    int32_t *ids = calloc(n, sizeof *ids);
    msgpack_sbuffer b;
    msgpack_packer p;

    assert_non_null(ids);
    for (uint32_t k = 0; k < n; k++) ids[k] = (int32_t)((id + k) % MOCK_POISON);
    if (poison) ids[0] = MOCK_POISON;
    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_SUBMIT, id, s->model ? 4 : 3);
    if (s->model) {
        msg_key(&p, "model");
        msg_text(&p, s->model);
    }
    msg_key(&p, "ids");
    msg_bin(&p, ids, n * sizeof *ids);
    msg_key(&p, "max_tokens");
    msgpack_pack_uint32(&p, poison ? s->max_tokens : tokens_of(s, id));
    msg_key(&p, "seed");
    msgpack_pack_uint64(&p, id);
    send_frame(s, id, &b);
    msgpack_sbuffer_destroy(&b);
    free(ids);
    s->stream[i] = (struct stream){ .id = id, .last_event = clock_now(), .poison = poison };
    s->n_open++;
}

static void
acknowledge(struct streams *s, const struct stream *t)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_ACK, t->id, 1);
    msg_key(&p, "n");
    msgpack_pack_uint32(&p, t->n_chunks);
    send_frame(s, t->id, &b);
    msgpack_sbuffer_destroy(&b);
}

static uint32_t
number(const msgpack_object *map, const char *key)
{
    uint64_t v = 0;

    if (msg_u64(map, key, &v) < 0 || v > UINT32_MAX) fail_msg("there is no number %s", key);
    return (uint32_t)v;
}

static void
take_chunk(struct streams *s, struct stream *t, const msgpack_object *map)
{
    struct msg_span ids = { 0 }, text = { 0 };
    int32_t token[1024];
    nsec now = clock_now();

    assert_int_equal(number(map, "n"), ++t->n_chunks);
    msg_str(map, "t", &ids);
    msg_str(map, "s", &text);
    assert_true(ids.n <= sizeof token);
    memcpy(token, ids.p, ids.n);
    history_tokens(&s->history, t->id, number(map, "i"), token, ids.n / 4);
    if (s->history.lax)
        text.n = 0;
    else
        assert_int_equal(text.n, ids.n / 4);
    for (uint32_t i = 0; i < text.n; i++) assert_int_equal(text.p[i], mock_letter(token[i]));
    s->worst = MAX(s->worst, now - t->last_event);
    t->last_event = now;
    if (t->n_chunks % 8 == 0) acknowledge(s, t);
}

static void
take_end(struct streams *s, struct stream *t, const struct msg *m)
{
    if (m->type == LAGAN_MSG_DONE) {
        const msgpack_object *o = msg_get(&m->map, "outputs");

        assert_true(o && o->type == MSGPACK_OBJECT_ARRAY && o->via.array.size == 1);
        o = o->via.array.ptr;
        s->n_resumed += number(o, "resumed");
        history_done(&s->history, t->id, number(o, "reason"), number(o, "n_tokens"));
    } else if (t->poison && number(&m->map, "code") == LAGAN_E_POISONED) {
        uint64_t allowed = s->history.allowed;

        s->history.allowed |= UINT64_C(1) << LAGAN_E_POISONED;
        history_failed(&s->history, t->id, LAGAN_E_POISONED);
        s->history.allowed = allowed;
        s->n_poisoned++;
    } else if (t->accepted || !s->history.lax) { /* otherwise it was refused at once */
        history_failed(&s->history, t->id, number(&m->map, "code"));
    }
    t->id = 0;
    s->n_open--;
}

static void
send_time(void *socket, unsigned type, uint64_t t)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, type, 0, 1);
    msg_key(&p, "t");
    msgpack_pack_uint64(&p, t);
    assert_int_equal(zmq_send(socket, b.data, b.size, ZMQ_DONTWAIT), b.size);
    msgpack_sbuffer_destroy(&b);
}

static void
take_frame(struct streams *s, void *socket, const void *frame, size_t n)
{
    uint64_t read = 0;
    struct stream *t;
    struct msg m;
    struct err e;

    if (msg_decode(&m, frame, n, &e) < 0) fail_msg("lagand sent what is no message: %s", e.text);
    t = &s->stream[m.rid % STREAMS_MAX];
    if (m.type == LAGAN_MSG_PING) { /* PING: lagand asks whether sent frames are read */
        msg_u64(&m.map, "t", &read);
        send_time(socket, LAGAN_MSG_PONG, read);
    }
    if (m.type == LAGAN_MSG_PING || m.type == LAGAN_MSG_PONG || m.type == LAGAN_MSG_BYE) {
        msg_done(&m);
        return;
    }
    if (t->id != m.rid) fail_msg("message %u of request %llu", m.type, (unsigned long long)m.rid);
    if (m.type == LAGAN_MSG_ACCEPT) {
        t->accepted = true;
        history_accepted(&s->history, t->id, t->id,
                         t->poison ? s->max_tokens : tokens_of(s, t->id));
    } else if (m.type == LAGAN_MSG_CHUNK) {
        take_chunk(s, t, &m.map);
    } else if (m.type == LAGAN_MSG_DONE || m.type == LAGAN_MSG_ERROR) {
        take_end(s, t, &m);
    } else {
        fail_msg("message %u", m.type);
    }
    msg_done(&m);
    if (*s->history.why) fail_msg("%s", s->history.why);
}

static uint32_t
take_all(struct streams *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < STREAM_CLIENTS; i++)
        for (;;) {
            zmq_msg_t f;

            zmq_msg_init(&f);
            if (zmq_msg_recv(&f, s->socket[i], ZMQ_DONTWAIT) < 0) break;
            take_frame(s, s->socket[i], zmq_msg_data(&f), zmq_msg_size(&f));
            zmq_msg_close(&f);
            n++;
        }
    return n;
}

/* Clients that wait for long send PING because of api.idle_timeout. */
static void
ping(struct streams *s)
{
    nsec now = clock_now();

    if (now - s->pinged < NSEC_S) return;
    s->pinged = now;
    for (uint32_t i = 0; i < STREAM_CLIENTS; i++) send_time(s->socket[i], LAGAN_MSG_PING, 0);
}

void
streams_run(struct streams *s, int ms, bool more)
{
    zmq_pollitem_t p[STREAM_CLIENTS];

    ping(s);
    for (uint32_t i = 0; more && i < s->n; i++)
        if (!s->stream[i].id) submit(s, i, false);
    for (uint32_t i = 0; i < STREAM_CLIENTS; i++)
        p[i] = (zmq_pollitem_t){ .socket = s->socket[i], .events = ZMQ_POLLIN };
    if (!take_all(s) && ms) zmq_poll(p, STREAM_CLIENTS, ms);
    take_all(s);
}

bool
streams_settle(struct streams *s, struct service *v, int ms)
{
    nsec until = service_now(v) + ms * NSEC_MS;

    while (s->n_open && service_now(v) < until) streams_run(s, 5, false);
    if (s->n_open) return false;
    if (!history_settled(&s->history)) fail_msg("%s", s->history.why);
    return true;
}

void
streams_submit(struct streams *s, bool poison)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->stream[i].id) continue;
        submit(s, i, poison);
        return;
    }
    fail_msg("no stream is free");
}
