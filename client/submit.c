/* submit.c - struct lagan_request, a set of keys and values; SUBMIT and CANCEL; see lagan.h. */
#include "client/client.h"

#include "wire/msg_field.h"

#include <math.h>
#include <stdio.h>

struct entry { /* one key and its packed value */
    char key[LAGAN_MAX_KEY + 1];
    msgpack_sbuffer value;
};

struct lagan_request {
    struct entry entry[LAGAN_MAX_KEYS];
    uint32_t n;
    uint32_t ack_window;
    int64_t deadline_ms;
    bool no_resume, several_outputs;
};

struct lagan_request *
lagan_request_new(void)
{
    struct lagan_request *r = calloc(1, sizeof *r);

    if (r) r->ack_window = LAGAN_DEFAULT_ACK_WINDOW;
    return r;
}

void
lagan_request_free(struct lagan_request *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->n; i++) msgpack_sbuffer_destroy(&r->entry[i].value);
    free(r);
}

/* The kinds of LAGAN_KINDS whose values a setter packs. */
#define TAKES(kind) (1u << MSG_KIND_##kind)
enum {
    TAKES_INT = TAKES(U32) | TAKES(I32) | TAKES(U64) | TAKES(F64) | TAKES(OVER) | TAKES(ANY),
    TAKES_FLOAT = TAKES(F64) | TAKES(OVER) | TAKES(ANY),
    TAKES_BOOL = TAKES(BOOL) | TAKES(EARLY) | TAKES(ANY),
    TAKES_STR = TAKES(STR) | TAKES(STOPS) | TAKES(EARLY) | TAKES(ANY),
    TAKES_IDS = TAKES(IDS) | TAKES(ANY),
    TAKES_BIAS = TAKES(BIAS) | TAKES(ANY),
    TAKES_STRS = TAKES(STOPS) | TAKES(ANY)
};

/* Prepares *p to pack the value of key. takes: the kinds that the calling setter packs. -ENOENT: no
 * request has this key. -EINVAL: its values have another kind. */
static int
begin_value(struct lagan_request *r, const char *key, uint32_t takes, msgpack_packer *p)
{
    struct err e;
    int kind = msg_field_kind(key, strlen(key), &e);
    uint32_t i;

    if (kind < 0) return client_fail_unconnected(kind, "%s", e.text);
    if (!(takes >> kind & 1))
        return client_fail_unconnected(-EINVAL, "the value of %s is of another kind; it must be %s",
                                       key, msg_kind_name((enum msg_kind)kind));
    for (i = 0; i < r->n && strcmp(r->entry[i].key, key); i++) continue;
    if (i == r->n) {
        check(i < LAGAN_MAX_KEYS); /* there are fewer keys */
        snprintf(r->entry[i].key, sizeof r->entry[i].key, "%s", key);
        msgpack_sbuffer_init(&r->entry[i].value);
        r->n++;
    }
    msgpack_sbuffer_clear(&r->entry[i].value);
    msgpack_packer_init(p, &r->entry[i].value, msgpack_sbuffer_write);
    return 0;
}

/* Returns the result of a setter, whose last packing function returned r. */
static int
packed(int r, const char *key)
{
    return r < 0 ? client_fail_unconnected(-ENOMEM, "out of memory for the value of %s", key) : 0;
}

int
lagan_set_int(struct lagan_request *r, const char *key, int64_t v)
{
    msgpack_packer p;

    TRY(begin_value(r, key, TAKES_INT, &p));
    if (!strcmp(key, "ack_window") && v >= 1 && v <= LAGAN_MAX_ACK_WINDOW)
        r->ack_window = (uint32_t)v;
    if (!strcmp(key, "deadline_ms")) r->deadline_ms = v;
    if (!strcmp(key, "n")) r->several_outputs = v > 1;
    return packed(msgpack_pack_int64(&p, v), key);
}

int
lagan_set_float(struct lagan_request *r, const char *key, double v)
{
    msgpack_packer p;

    if (!isfinite(v))
        return client_fail_unconnected(-EINVAL, "%.64s is %g; it must be a finite number", key, v);
    TRY(begin_value(r, key, TAKES_FLOAT, &p));
    return packed(msgpack_pack_double(&p, v), key);
}

int
lagan_set_bool(struct lagan_request *r, const char *key, int v)
{
    msgpack_packer p;

    TRY(begin_value(r, key, TAKES_BOOL, &p));
    if (!strcmp(key, "resume")) r->no_resume = !v;
    return packed(v ? msgpack_pack_true(&p) : msgpack_pack_false(&p), key);
}

/* -EILSEQ: the n bytes of s are not UTF-8. -EMSGSIZE: n exceeds LAGAN_MAX_STR. */
static int
check_text(const char *key, const char *s, size_t n)
{
    if (n > LAGAN_MAX_STR)
        return client_fail_unconnected(-EMSGSIZE, "%.64s has %zu bytes; the limit is %u", key, n,
                                       LAGAN_MAX_STR);
    if (!msg_utf8(s, n)) return client_fail_unconnected(-EILSEQ, "%.64s is not UTF-8", key);
    return 0;
}

int
lagan_set_str(struct lagan_request *r, const char *key, const char *s, size_t n)
{
    msgpack_packer p;

    TRY(check_text(key, s, n));
    TRY(begin_value(r, key, TAKES_STR, &p));
    return packed(msgpack_pack_str_with_body(&p, s, n), key);
}

static int
check_count(const char *key, size_t n, size_t most)
{
    if (n <= most) return 0;
    return client_fail_unconnected(-E2BIG, "%.64s has %zu entries; the limit is %zu", key, n, most);
}

int
lagan_set_ids(struct lagan_request *r, const char *key, const int32_t *ids, size_t n)
{
    msgpack_packer p;

    TRY(check_count(key, n, LAGAN_MAX_IDS));
    TRY(begin_value(r, key, TAKES_IDS, &p));
    return packed(client_pack_ids(&p, ids, n), key);
}

int
lagan_set_bias(struct lagan_request *r, const char *key, const int32_t *ids, const float *bias,
               size_t n)
{
    msgpack_packer p;
    int k;

    TRY(check_count(key, n, LAGAN_MAX_BIAS));
    for (size_t i = 0; i < n; i++)
        if (!isfinite(bias[i]))
            return client_fail_unconnected(-EINVAL, "%.64s[%zu] is not a finite number", key, i);
    TRY(begin_value(r, key, TAKES_BIAS, &p));
    k = msgpack_pack_array(&p, n);
    for (size_t i = 0; i < n && k >= 0; i++)
        if (msgpack_pack_array(&p, 2) < 0 || msgpack_pack_int32(&p, ids[i]) < 0 ||
            msgpack_pack_float(&p, bias[i]) < 0)
            k = -1;
    return packed(k, key);
}

int
lagan_set_strs(struct lagan_request *r, const char *key, const char *const *s, size_t n)
{
    msgpack_packer p;
    int k;

    TRY(check_count(key, n, LAGAN_MAX_STOPS));
    for (size_t i = 0; i < n; i++) TRY(check_text(key, s[i], strlen(s[i])));
    TRY(begin_value(r, key, TAKES_STRS, &p));
    k = msgpack_pack_array(&p, n);
    for (size_t i = 0; i < n && k >= 0; i++) k = msgpack_pack_str_with_body(&p, s[i], strlen(s[i]));
    return packed(k, key);
}

static struct open_request *
add_request(struct lagan *c)
{
    if (c->n_requests == c->max_requests) {
        uint32_t max = c->max_requests ? 2 * c->max_requests : 16;
        struct open_request *rows = realloc(c->requests, max * sizeof *rows);

        if (!rows) return NULL;
        c->requests = rows;
        c->max_requests = max;
    }
    if (!c->n_requests && !c->n_calls && !c->welcome) c->disconnected_since = clock_now();
    c->requests[c->n_requests] = (struct open_request){ .rid = ++c->next_rid,
                                                        .deadline = NSEC_NEVER };
    return &c->requests[c->n_requests++];
}

/* Stores the generated_ids that the caller gave: they count as delivered tokens. */
static int
take_done(struct open_request *req, const struct entry *e)
{
    msgpack_unpacked u;
    struct msg_ids ids = { 0 };
    bool list;

    msgpack_unpacked_init(&u);
    list = msgpack_unpack_next(&u, e->value.data, e->value.size, NULL) == MSGPACK_UNPACK_SUCCESS &&
           u.data.type == MSGPACK_OBJECT_BIN;
    if (list) ids = (struct msg_ids){ &u.data, u.data.via.bin.size / 4 };
    req->ids = ids.n ? malloc(ids.n * sizeof *req->ids) : NULL;
    if (req->ids) req->n_ids = req->max_ids = ids.n;
    for (uint32_t i = 0; i < req->n_ids; i++) req->ids[i] = msg_id(&ids, i);
    msgpack_unpacked_destroy(&u);
    return list && req->n_ids == ids.n ? 0 : -EINVAL;
}

/* Stores the keys of a request, to submit them again after a restart of lagand. prompt_logprobs is
 * moved to the end, so that a later SUBMIT can omit it. deadline_ms is stored as a time. */
static int
keep_body(struct open_request *req, const struct lagan_request *r)
{
    const struct entry *prompt = NULL;
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    for (uint32_t i = 0; i < r->n; i++) {
        const struct entry *e = &r->entry[i];

        req->gave_seed |= !strcmp(e->key, "seed");
        if (!strcmp(e->key, "deadline_ms") && r->deadline_ms > 0) continue;
        if (!strcmp(e->key, "generated_ids") && take_done(req, e) == 0) continue;
        if (!strcmp(e->key, "prompt_logprobs")) {
            prompt = e;
            continue;
        }
        msg_key(&p, e->key);
        msgpack_sbuffer_write(&b, e->value.data, e->value.size);
        req->n_plain_keys++;
    }
    req->n_plain = b.size;
    if (prompt) {
        msg_key(&p, prompt->key);
        msgpack_sbuffer_write(&b, prompt->value.data, prompt->value.size);
        req->n_prompt_keys = 1;
    }
    req->n_body = b.size;
    req->body = msgpack_sbuffer_release(&b);
    req->ack_window = r->ack_window;
    req->no_resume = r->no_resume;
    req->several_outputs = r->several_outputs;
    if (r->deadline_ms > 0)
        req->deadline = clock_after(clock_now(),
                                    MIN(r->deadline_ms, NSEC_NEVER / NSEC_MS) * NSEC_MS);
    return req->body || !req->n_body ? 0 : -ENOMEM;
}

int
lagan_submit(struct lagan *c, const struct lagan_request *r, uint64_t *id)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    struct open_request *req = add_request(c);
    int k = 0;

    if (!req) return client_fail(c, -ENOMEM, "out of memory for a request");
    if (keep_body(req, r) < 0)
        k = client_fail(c, -ENOMEM, "out of memory for a request");
    else
        client_pack_submit(req, &b);
    if (b.size > LAGAN_MAX_FRAME)
        k = client_fail(c, -EMSGSIZE, "the request has %zu bytes, the maximum is %u", b.size,
                        LAGAN_MAX_FRAME);
    else if (k == 0 && !client_disconnected(c))
        k = client_send(c, &b);
    if (k < 0)
        client_close_request(c, c->next_rid);
    else
        *id = c->next_rid;
    client_rearm(c);
    return k;
}

int
lagan_ack_hold(struct lagan *c, uint64_t id, int hold)
{
    struct open_request *req = client_find(c, id);

    if (!req) return client_fail(c, -ENOENT, "request %llu is not open", (unsigned long long)id);
    req->ack_held = hold;
    if (!hold) c->ack_at = clock_now();
    client_rearm(c);
    return 0;
}

int
lagan_cancel(struct lagan *c, uint64_t id)
{
    struct open_request *req = client_find(c, id);
    int k = 0;

    if (!req) return client_fail(c, -ENOENT, "request %llu is not open", (unsigned long long)id);
    req->cancelled = true;
    if (client_disconnected(c)) return 0; /* the cancel is sent after RESUME */
    if (req->retry_at)                    /* lagand does not know the request */
        client_cancelled(c, req);
    else
        k = client_send_cancel(c, id);
    client_rearm(c);
    return k;
}
