/* worker_calls.c - the table of commands that were sent to a worker and have no reply yet. */
#include "daemon/request/worker_calls.h"

#include "base/log.h"
#include "daemon/net/frontend.h"
#include "ipc/records.h"

static const nsec CALL_TIME = 10 * NSEC_S;
enum { SPARE = 64 * SHM_REC_ALIGN }; /* bytes that TEXT leaves free for CANCEL in the ring */
enum { OPERATORS_CALLS = 32 };       /* entries of the table that only operators may use */

struct call {
    bool used;
    uint8_t op; /* enum text_op; 0: sent over the control channel */
    uint32_t gen, client, worker;
    uint64_t rid;
    nsec deadline;
};

struct worker_calls {
    struct call call[MAX_CALLS];
    uint32_t n;
};

struct worker_calls *
worker_calls_new(void)
{
    return calloc(1, sizeof(struct worker_calls));
}

struct worker_calls *
worker_calls_free(struct worker_calls *c)
{
    free(c);
    return NULL;
}

static void
refuse(struct daemon *d, uint32_t client, uint64_t rid, uint32_t code, const char *why)
{
    struct client *c = session_find(d->sessions, client);

    if (c && frontend_error(d, c, rid, code, 0, "%s", why) < 0) {
        log_debug("a closed connection did not get the ERROR of its command");
    }
}

static struct call *
take(struct daemon *d, struct client *c, uint64_t rid, struct worker *w, uint8_t op)
{
    uint32_t most = c->listener == LISTENER_CTL ? MAX_CALLS : MAX_CALLS - OPERATORS_CALLS;
    struct worker_calls *t = d->calls;

    for (uint32_t i = 0; i < most; i++) {
        struct call *k = &t->call[i];

        if (k->used) continue;
        *k = (struct call){
            .used = true,
            .op = op,
            .gen = k->gen + 1,
            .client = c->handle,
            .worker = worker_info(w)->index,
            .rid = rid,
            .deadline = d->now + CALL_TIME,
        };
        t->n++;
        return k;
    }
    refuse(d, c->handle, rid, LAGAN_E_QUEUE_FULL,
           "too many commands are waiting for a reply of a worker; retry later");
    return NULL;
}

static void
give(struct daemon *d, struct call *k)
{
    k->used = false;
    d->calls->n--;
}

void
worker_calls_text(struct daemon *d, struct client *c, uint64_t rid, struct worker *w, uint8_t op,
                  uint8_t flags, const struct msg_ids *ids, const struct msg_span *text)
{
    size_t n = sizeof(struct rec_text) + (size_t)ids->n * 4 + text->n;
    struct call *k = take(d, c, rid, w, op);
    struct rec_text rec;
    void *to;
    int r;

    if (!k) return;
    rec = (struct rec_text){ .call = (uint32_t)(k - d->calls->call),
                             .gen = k->gen,
                             .op = op,
                             .flags = flags,
                             .n_ids = ids->n,
                             .text_bytes = text->n };
    r = n > UINT32_MAX / 2 ? -EMSGSIZE : worker_reserve(w, REC_TEXT, 0, (uint32_t)n, SPARE, &to);
    if (r < 0) {
        refuse(d, c->handle, rid, r == -EMSGSIZE ? LAGAN_E_TOO_LONG : LAGAN_E_QUEUE_FULL,
               r == -EMSGSIZE ? "the text is too long for a record of the worker's request ring"
                              : "the worker's request ring is full; retry later");
        give(d, k);
        return;
    }
    memcpy(to, &rec, sizeof rec);
    to = (char *)to + sizeof rec;
    msg_ids_copy(ids, to);
    if (text->n) memcpy((char *)to + 4 * (size_t)ids->n, text->p, text->n);
    worker_publish(w);
}

uint64_t
worker_calls_control(struct daemon *d, struct client *c, uint64_t rid, struct worker *w)
{
    struct call *k = take(d, c, rid, w, 0);

    return k ? (uint64_t)k->gen << 32 | (uint32_t)(k - d->calls->call) : 0;
}

/* Returns the command to which a reply of w belongs. NULL: it has ended, for example by its
 * timeout. text: the reply is a TEXT_DONE record, else a message of the control channel. */
static struct call *
named(struct worker *w, uint32_t index, uint32_t gen, bool text)
{
    struct call *k = index < MAX_CALLS ? &worker_daemon(w)->calls->call[index] : NULL;

    if (!k || !k->used || k->gen != gen || k->worker != worker_info(w)->index ||
        (k->op != 0) != text)
        return NULL;
    return k;
}

void
worker_calls_control_done(struct worker *w, uint64_t number, uint32_t code,
                          const msgpack_object *map)
{
    struct daemon *d = worker_daemon(w);
    struct call *k = named(w, (uint32_t)number, (uint32_t)(number >> 32), /* text= */ false);
    struct client *c = k ? session_find(d->sessions, k->client) : NULL;
    const msgpack_object *result = map ? msg_get(map, "result") : NULL;
    struct msg_span text = { 0 };
    msgpack_packer p;
    char why[200];

    if (!k) return;
    if (c && code) {
        bool has = map && msg_str(map, "message", &text) == 0 && text.n < sizeof why &&
                   msg_utf8(text.p, text.n);

        snprintf(why, sizeof why, "%.*s", has ? (int)text.n : 0, has ? text.p : "");
        refuse(d, k->client, k->rid, msg_reason(code, NULL) ? code : LAGAN_E_INTERNAL,
               has   ? why
               : map ? "the worker rejected the command without a message"
                     : "the worker is not ready; retry later");
    } else if (c) {
        frontend_reply(d, k->rid, &p);
        if (result)
            msgpack_pack_object(&p, *result);
        else
            msgpack_pack_map(&p, 0);
        frontend_send_or_drop(d, c);
    }
    give(d, k);
}

static uint32_t
number_at(const char *ids, uint32_t i)
{
    uint32_t v;

    memcpy(&v, ids + 4 * (size_t)i, 4);
    return v;
}

/* Returns the sum of n lengths, which stand in place of token ids. */
static uint64_t
sum_of_lengths(const char *ids, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += number_at(ids, i);
    return sum;
}

static void
put_text_result(msgpack_packer *p, uint8_t op, const struct rec_text_done *t, const char *ids,
                const char *text)
{
    if (op == TEXT_ID_BYTES) {
        msgpack_pack_array(p, t->n_ids);
        for (uint32_t i = 0, n; i < t->n_ids; i++, text += n)
            msg_bin(p, text, n = number_at(ids, i));
        return;
    }
    msgpack_pack_map(p, 1);
    if (op == TEXT_TOKENIZE) {
        msg_key(p, "ids");
        msgpack_pack_array(p, t->n_ids);
        for (uint32_t i = 0; i < t->n_ids; i++) msgpack_pack_int32(p, (int32_t)number_at(ids, i));
    } else {
        msg_key(p, "text");
        msg_bytes(p, text, t->text_bytes);
    }
}

int
worker_calls_text_done(struct worker *w, const void *data, size_t n, struct err *e)
{
    struct daemon *d = worker_daemon(w);
    const char *ids = (const char *)data + sizeof(struct rec_text_done), *text;
    struct rec_text_done t;
    struct call *k;
    struct client *c;
    msgpack_packer p;
    char why[200];

    if (n < sizeof t) return err_set(e, -EBADMSG, "TEXT_DONE of %zu bytes is too short", n);
    memcpy(&t, data, sizeof t);
    n -= sizeof t;
    if ((uint64_t)t.n_ids * 4 + t.text_bytes > n || n - (uint64_t)t.n_ids * 4 - t.text_bytes > 7)
        return err_set(
            e, -EBADMSG,
            "TEXT_DONE: n_ids is %u and text_bytes is %u, but %zu bytes follow the header", t.n_ids,
            t.text_bytes, n);
    text = ids + (size_t)t.n_ids * 4;
    if (t.reason && !msg_reason(t.reason, NULL))
        return err_set(e, -EBADMSG, "TEXT_DONE: reason %u is unknown", t.reason);
    k = named(w, t.call, t.gen, /* text= */ true);
    if (!k) return 0;
    if (k->op == TEXT_ID_BYTES && !t.reason) {
        if (sum_of_lengths(ids, t.n_ids) != t.text_bytes)
            return err_set(e, -EBADMSG,
                           "TEXT_DONE: the lengths of the tokens do not add up to text_bytes, %u",
                           t.text_bytes);
    } else if (!msg_utf8(text, t.text_bytes)) {
        return err_set(e, -EBADMSG, "TEXT_DONE: the text is not UTF-8");
    }
    c = session_find(d->sessions, k->client);
    if (c && t.reason) {
        snprintf(why, sizeof why, "%.*s", (int)MIN(t.text_bytes, (uint32_t)sizeof why - 1), text);
        refuse(d, k->client, k->rid, t.reason, why);
    } else if (c) {
        frontend_reply(d, k->rid, &p);
        put_text_result(&p, k->op, &t, ids, text);
        frontend_send_or_drop(d, c);
    }
    give(d, k);
    return 0;
}

void
worker_calls_lost(struct worker *w)
{
    struct daemon *d = worker_daemon(w);
    struct worker_calls *t = d->calls;

    for (uint32_t i = 0; t->n && i < MAX_CALLS; i++) {
        struct call *k = &t->call[i];

        if (!k->used || k->worker != worker_info(w)->index) continue;
        refuse(d, k->client, k->rid, LAGAN_E_WORKER_LOST,
               "the worker died while it ran this command");
        give(d, k);
    }
}

void
worker_calls_tick(struct daemon *d, nsec now)
{
    struct worker_calls *t = d->calls;

    for (uint32_t i = 0; t->n && i < MAX_CALLS; i++) {
        struct call *k = &t->call[i];

        if (!k->used || now < k->deadline) continue;
        refuse(d, k->client, k->rid, LAGAN_E_DEADLINE,
               "the worker did not reply to the command within 10 s");
        give(d, k);
    }
}
