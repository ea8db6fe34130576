/* messages.c - executes client messages, with one function for each message type; see serve.h. */
#include "daemon/serve.h"

#include "base/failpoint.h"
#include "daemon/config/options.h"
#include "daemon/net/frontend.h"
#include "daemon/ops/commands.h"
#include "daemon/request/admission.h"
#include "daemon/request/deliver.h"
#include "daemon/request/lifecycle.h"

/* Sends an ERROR for the rid of message m. ACK and CANCEL belong to an open request, which an ERROR
 * ends: lagand cancels that request, and the ERROR is its end. */
static void
reject(struct daemon *d, struct client *c, const struct msg *m, uint32_t code, const char *why)
{
    bool of_request = m->type == LAGAN_MSG_ACK || m->type == LAGAN_MSG_CANCEL;
    struct request *r = of_request ? ledger_find(d->ledger, c->handle, m->rid) : NULL;

    if (!r) {
        FRONTEND_REFUSE(d, c, m->rid, code, "%s", why);
        return;
    }
    d->n_refused++;
    lifecycle_cancel(d, r, (uint16_t)code, "%s", why);
}

/* ---- message types */

static void
hello(struct daemon *d, struct client *c, const struct msg *m)
{
    static const char *const features[] = {
#define X(name, sentence) #name,
        LAGAN_FEATURES(X)
#undef X
    };
    uint64_t min = LAGAN_WIRE_VERSION, max = LAGAN_WIRE_VERSION;
    struct msg_span session = { 0 };
    msgpack_packer p;

    msg_u64(&m->map, "min", &min);
    msg_u64(&m->map, "max", &max);
    if (min > LAGAN_WIRE_VERSION || max < LAGAN_WIRE_VERSION) {
        FRONTEND_REFUSE(
            d, c, m->rid, LAGAN_E_UNSUPPORTED,
            "the client offers protocol versions %llu to %llu, lagand speaks version %d",
            (unsigned long long)min, (unsigned long long)max, LAGAN_WIRE_VERSION);
        return;
    }
    if (msg_str(&m->map, "session", &session) == 0 && session.n != sizeof c->session) {
        FRONTEND_REFUSE(d, c, m->rid, LAGAN_E_INVALID_REQUEST,
                        "HELLO: session has %u bytes; it must have %zu", session.n,
                        sizeof c->session);
        return;
    }
    c->has_session = session.n > 0;
    if (c->has_session) memcpy(&c->session, session.p, sizeof c->session);
    p = frontend_begin(d, LAGAN_MSG_WELCOME, m->rid, 7);
    msg_key(&p, "proto");
    msgpack_pack_uint32(&p, LAGAN_WIRE_VERSION);
    msg_key(&p, "instance");
    msg_bin(&p, d->id, sizeof d->id);
    msg_key(&p, "session");
    msg_bin(&p, session.p ? session.p : "", session.n);
    msg_key(&p, "limits");
    msgpack_pack_map(&p, 5);
    msg_key(&p, "frame");
    msgpack_pack_uint32(&p, LAGAN_MAX_FRAME);
    msg_key(&p, "ack_window");
    msgpack_pack_uint32(&p, LAGAN_MAX_ACK_WINDOW);
    msg_key(&p, "inflight");
    msgpack_pack_uint32(&p, d->config->o.max_inflight);
    msg_key(&p, "idle_timeout_ms");
    msgpack_pack_uint64(&p, (uint64_t)(d->config->o.idle_timeout / NSEC_MS));
    msg_key(&p, "text_bytes");
    msgpack_pack_array(&p, config_n_served(d->config, NULL));
    for (uint32_t i = 0; i < d->config->n_models; i++)
        if (!d->config->model[i].removed) msgpack_pack_uint32(&p, d->facts[i].max_text_bytes);
    msg_key(&p, "models");
    msgpack_pack_array(&p, config_n_served(d->config, NULL));
    for (uint32_t i = 0; i < d->config->n_models; i++)
        if (!d->config->model[i].removed) msg_text(&p, d->config->model[i].keys.name);
    msg_key(&p, "state");
    msg_text(&p, command_state(d));
    msg_key(&p, "features");
    msgpack_pack_array(&p, ARRAY_LEN(features));
    for (size_t i = 0; i < ARRAY_LEN(features); i++) msg_text(&p, features[i]);
    frontend_send_or_drop(d, c);
}

static void
submit(struct daemon *d, struct client *c, const struct msg *m)
{
    struct prompt_length length;
    struct request *r;
    struct err e;
    int code = admission_take(d, c, m, &r, &length, &e);
    msgpack_packer p;

    if (code) {
        d->n_refused++;
        (void)frontend_error_length(d, c, m->rid, (uint32_t)code, 0, &length, e.text);
        return;
    }
    FP(front_taken);
    p = frontend_begin(d, LAGAN_MSG_ACCEPT, m->rid, 4);
    msg_key(&p, "queue_position");
    msgpack_pack_uint32(&p, ledger_counts(d->ledger).queued);
    msg_key(&p, "id");
    msgpack_pack_uint64(&p, request_info(r).id);
    msg_key(&p, "seed");
    msgpack_pack_uint64(&p, request_info(r).seed);
    msg_key_u64(&p, "at", request_info(r).accepted_at);
    frontend_send_or_drop(d, c);
    FP(front_accepted);
}

static void
ack(struct daemon *d, struct client *c, const struct msg *m)
{
    struct request *r = ledger_find(d->ledger, c->handle, m->rid);
    uint64_t n, ack_window = 0;

    if (!r) return; /* the request has ended, and its DONE or ERROR is on the way */
    if (msg_u64(&m->map, "n", &n) < 0 || n > UINT32_MAX) {
        reject(d, c, m, LAGAN_E_INVALID_REQUEST,
               "ACK: n must be the number of a CHUNK that this client received");
        return;
    }
    msg_u64(&m->map, "ack_window", &ack_window);
    deliver_acked(d, r, (uint32_t)n,
                  ack_window > LAGAN_MAX_ACK_WINDOW ? LAGAN_MAX_ACK_WINDOW : (uint32_t)ack_window);
}

static void
cancel_one(struct daemon *d, struct client *c, uint64_t rid)
{
    struct request *r = ledger_find(d->ledger, c->handle, rid);

    if (r) {
        lifecycle_cancel(d, r, LAGAN_E_CANCELLED, "cancelled by its client after %u tokens",
                         request_n_tokens(r));
    } else {
        FRONTEND_REFUSE(d, c, rid, LAGAN_E_NOT_FOUND, "this client has no open request %llu",
                        (unsigned long long)rid);
    }
}

/* Reads the list `rids` of m; *ret NULL: no list. Returns false if it is too long; m is refused. */
static bool
rids_of(struct daemon *d, struct client *c, const struct msg *m, const msgpack_object **ret,
        uint32_t *n)
{
    const msgpack_object *o = msg_get(&m->map, "rids");
    bool list = o && o->type == MSGPACK_OBJECT_ARRAY;

    *ret = list ? o->via.array.ptr : NULL;
    *n = list ? o->via.array.size : 0;
    if (*n <= LAGAN_MAX_RIDS) return true;
    FRONTEND_REFUSE(d, c, m->rid, LAGAN_E_INVALID_REQUEST,
                    "rids has %u entries; at most %d are allowed", *n, LAGAN_MAX_RIDS);
    return false;
}

static void
cancel(struct daemon *d, struct client *c, const struct msg *m)
{
    uint32_t n;
    const msgpack_object *rid;

    if (!rids_of(d, c, m, &rid, &n)) return;
    if (!rid && !msg_get(&m->map, "rids")) {
        cancel_one(d, c, m->rid);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (rid[i].type == MSGPACK_OBJECT_POSITIVE_INTEGER) cancel_one(d, c, rid[i].via.u64);
}

static void
query(struct daemon *d, struct client *c, const struct msg *m)
{
    uint32_t n;
    const msgpack_object *rid;
    msgpack_packer p;

    if (!rids_of(d, c, m, &rid, &n)) return;
    frontend_reply(d, m->rid, &p);
    msgpack_pack_array(&p, n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id = rid[i].type == MSGPACK_OBJECT_POSITIVE_INTEGER ? rid[i].via.u64 : 0;
        struct request *r = ledger_find(d->ledger, c->handle, id);

        msgpack_pack_map(&p, 3);
        msg_key(&p, "rid");
        msgpack_pack_uint64(&p, id);
        msg_key(&p, "state");
        msg_text(&p, r ? request_state_name(request_state(r)) : "unknown");
        msg_key(&p, "n");
        msgpack_pack_uint32(&p, r ? request_n_tokens(r) : 0);
    }
    frontend_send_or_drop(d, c);
}

/* ---- RESUME */

/* Marks the other connections of c's session as superseded, so that a SUBMIT over them is refused.
 * Such a SUBMIT may still be in flight when RESUME reports its rid as unknown; the client then
 * submits the rid again over c, and the late SUBMIT would be a duplicate. */
static void
supersede_others(struct daemon *d, const struct client *c)
{
    struct client *o;

    for (uint32_t at = 0; (o = session_next(d->sessions, &at));)
        o->superseded |= o != c && o->has_session &&
                         !memcmp(&o->session, &c->session, sizeof c->session);
}

static void
resume(struct daemon *d, struct client *c, const struct msg *m)
{
    struct msg_resume q;
    uint32_t n_unknown = 0;
    struct err e = { .text = "RESUME: no session; send HELLO with a session first" };
    msgpack_packer p;

    if (!c->has_session || msg_resume(&q, m, &e) < 0) {
        FRONTEND_REFUSE(d, c, m->rid, LAGAN_E_INVALID_REQUEST, "%s", e.text);
        return;
    }
    supersede_others(d, c);
    d->n_resumes++;
    for (uint32_t i = 0; i < q.n; i++)
        deliver_resume_named(d, c, q.rid[i].via.u64, q.n_tokens[i].via.u64,
                             q.text_bytes[i].via.u64);
    for (uint32_t i = 0; i < q.n; i++)
        n_unknown += !ledger_find(d->ledger, c->handle, q.rid[i].via.u64);
    frontend_reply(d, m->rid, &p);
    msgpack_pack_map(&p, 2);
    msg_key(&p, "at");
    msgpack_pack_array(&p, q.n - n_unknown);
    for (uint32_t i = 0; i < q.n; i++) {
        const struct request *r = ledger_find(d->ledger, c->handle, q.rid[i].via.u64);

        if (!r) continue;
        msgpack_pack_array(&p, 2);
        msgpack_pack_uint64(&p, q.rid[i].via.u64);
        msgpack_pack_uint64(&p, request_info(r).accepted_at);
    }
    msg_key(&p, "unknown");
    msgpack_pack_array(&p, n_unknown);
    for (uint32_t i = 0; i < q.n; i++)
        if (!ledger_find(d->ledger, c->handle, q.rid[i].via.u64))
            msgpack_pack_uint64(&p, q.rid[i].via.u64);
    frontend_send_or_drop(d, c);
}

static void
ping(struct daemon *d, struct client *c, const struct msg *m)
{
    const msgpack_object *t = msg_get(&m->map, "t");
    msgpack_packer p = frontend_begin(d, LAGAN_MSG_PONG, m->rid, 1);

    msg_key(&p, "t");
    if (t && (t->type == MSGPACK_OBJECT_POSITIVE_INTEGER || t->type == MSGPACK_OBJECT_FLOAT64 ||
              t->type == MSGPACK_OBJECT_NEGATIVE_INTEGER))
        msgpack_pack_object(&p, *t);
    else
        msgpack_pack_nil(&p);
    frontend_send_or_drop(d, c);
}

static void
pong(struct daemon *d, struct client *c, const struct msg *m)
{
    uint64_t t;

    if (msg_u64(&m->map, "t", &t) == 0) frontend_pong(d, c, t);
}

static void
bye(struct daemon *d, struct client *c, const struct msg *m)
{
    (void)m;
    deliver_client_dropped(d, c->handle);
}

/* ---- limit of the CPU time of one user: other clients wait while lagand decodes a frame of more
 * than LARGE bytes, which takes milliseconds, or runs a command, whose reply may be long. For both
 * together one user may use SHARE percent of lagand's time, and AT_ONCE more in a burst */

enum { LARGE = 64 << 10, SHARE = 10 };
static const nsec AT_ONCE = 50 * NSEC_MS;

/* Reduces u->cpu_time by u's share of the elapsed time. Returns true if more than AT_ONCE is left,
 * in which case the message is refused. */
static bool
share_is_used_up(struct daemon *d, struct user *u)
{
    u->cpu_time = MAX(u->cpu_time - (d->now - u->cpu_time_at) / (100 / SHARE), (nsec)0);
    u->cpu_time_at = d->now;
    return u->cpu_time > AT_ONCE;
}

/* Returns lagand's CPU time; elapsed time would charge the user for other processes. */
static nsec
time_spent(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (nsec)t.tv_sec * NSEC_S + t.tv_nsec;
}

static void
call(struct daemon *d, struct client *c, const struct msg *m)
{
    struct user *u = c->user; /* read before command_call(), which may drop c */
    nsec since = time_spent();

    if (c->listener == LISTENER_CTL || !share_is_used_up(d, u))
        command_call(d, c, m);
    else
        FRONTEND_REFUSE(d, c, m->rid, LAGAN_E_QUEUE_FULL,
                        "refused: commands and large messages of this user use more than %d %% of "
                        "lagand's CPU time; send fewer",
                        SHARE);
    u->cpu_time += time_spent() - since;
}

static void (*const handlers[])(struct daemon *d, struct client *c, const struct msg *m) = {
    [LAGAN_MSG_HELLO] = hello,   [LAGAN_MSG_SUBMIT] = submit, [LAGAN_MSG_ACK] = ack,
    [LAGAN_MSG_CANCEL] = cancel, [LAGAN_MSG_RESUME] = resume, [LAGAN_MSG_QUERY] = query,
    [LAGAN_MSG_PING] = ping,     [LAGAN_MSG_PONG] = pong,     [LAGAN_MSG_BYE] = bye,
    [LAGAN_MSG_CALL] = call,
};

static void
take_frame(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    struct msg m;
    struct err e = { 0 };
    int r = msg_decode(&m, frame, n, &e);

    if (r == 0) {
        r = msg_understood(&m.map, &e);
        if (r < 0) msg_done(&m);
    }
    if (r < 0) {
        reject(d, c, &m,
               r == -EPROTO   ? LAGAN_E_UNSUPPORTED
               : r == -ENOMEM ? LAGAN_E_OUT_OF_MEMORY
                              : LAGAN_E_INVALID_REQUEST,
               e.text);
        return;
    }
    FP(front_decoded);
    if (m.type < ARRAY_LEN(handlers) && handlers[m.type])
        handlers[m.type](d, c, &m);
    else
        FRONTEND_REFUSE(d, c, m.rid, LAGAN_E_UNSUPPORTED,
                        "lagand does not accept messages of type %u", m.type);
    msg_done(&m);
}

void
messages_frame(struct daemon *d, struct client *c, const void *frame, size_t n)
{
    struct user *u = c->user;
    nsec since, cpu_time;

    if (n <= LARGE) {
        take_frame(d, c, frame, n);
        return;
    }
    if (share_is_used_up(d, u)) {
        FRONTEND_REFUSE(
            d, c, msg_head(frame, n).rid, LAGAN_E_QUEUE_FULL,
            "message of %zu bytes refused: commands and large messages of this user use "
            "more than %d %% of lagand's CPU time; send fewer",
            n, SHARE);
        return;
    }
    since = time_spent();
    cpu_time = u->cpu_time;
    take_frame(d, c, frame, n);
    u->cpu_time = cpu_time + time_spent() - since; /* call() may have added the same time */
}
