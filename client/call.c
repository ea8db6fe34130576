/* call.c - lagan_call(), lagan_start_call(): verbs with JSON arguments and results; see lagan.h.
 *
 * Arguments and result are MessagePack on the wire. MessagePack has the number of members in front
 * of a container, so a copy of the JSON scanner first counts them. */
#include "client/client.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- JSON to MessagePack */

/* Counts the elements of the array, or the pairs of the object, that j has just entered. */
static int
count_members(struct json j, uint32_t *ret, struct err *e)
{
    enum json_kind end = j.kind == JSON_OBJECT ? JSON_OBJECT_END : JSON_ARRAY_END;

    *ret = 0;
    for (;;) {
        TRY(json_next(&j, e));
        if (j.kind == end) return 0;
        TRY(json_skip(&j, e));
        ++*ret;
    }
}

static int
pack_string(msgpack_packer *p, const struct json *j)
{
    /* unescaping never makes a string longer */
    char *s = malloc(j->text_len + 1);
    int n;

    if (!s) return -ENOMEM;
    n = json_unescape(j, s, j->text_len + 1);
    if (n >= 0) msg_bytes(p, s, (size_t)n);
    free(s);
    return MIN(n, 0);
}

static int
pack_number(msgpack_packer *p, const struct json *j, struct err *e)
{
    char buf[32], *end;
    uint64_t u;
    double d;

    if (json_u64(j, &u) == 0) return msgpack_pack_uint64(p, u);
    if (j->text_len < sizeof buf && !memchr(j->text, '.', j->text_len) &&
        !memchr(j->text, 'e', j->text_len) && !memchr(j->text, 'E', j->text_len)) {
        long long i;

        memcpy(buf, j->text, j->text_len);
        buf[j->text_len] = '\0';
        errno = 0;
        i = strtoll(buf, &end, 10);
        if (!errno && !*end) return msgpack_pack_int64(p, i);
    }
    if (json_f64(j, &d) < 0)
        return err_set(e, -EINVAL, "the number %.*s exceeds the range of a double",
                       (int)MIN(j->text_len, 40u), j->text);
    return msgpack_pack_double(p, d);
}

static int
pack_json(msgpack_packer *p, const char *text, size_t n, struct err *e)
{
    struct json j;
    uint32_t members;

    json_open(&j, text, n);
    for (;;) {
        TRY(json_next(&j, e));
        switch (j.kind) {
        case JSON_END:
            return 0;
        case JSON_OBJECT_END:
        case JSON_ARRAY_END:
            break;
        case JSON_OBJECT:
            TRY(count_members(j, &members, e));
            msgpack_pack_map(p, members);
            break;
        case JSON_ARRAY:
            TRY(count_members(j, &members, e));
            msgpack_pack_array(p, members);
            break;
        case JSON_KEY:
        case JSON_STRING:
            if (pack_string(p, &j) < 0)
                return err_set(e, -ENOMEM, "out of memory for a JSON string");
            break;
        case JSON_NUMBER:
            TRY(pack_number(p, &j, e));
            break;
        case JSON_TRUE:
            msgpack_pack_true(p);
            break;
        case JSON_FALSE:
            msgpack_pack_false(p);
            break;
        case JSON_NULL:
            msgpack_pack_nil(p);
            break;
        }
    }
}

/* ---- MessagePack to JSON */

static void
write_string(FILE *out, const char *s, uint32_t n)
{
    putc('"', out);
    for (uint32_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];

        if (ch == '"' || ch == '\\')
            fprintf(out, "\\%c", ch);
        else if (ch == '\n')
            fputs("\\n", out);
        else if (ch < 0x20)
            fprintf(out, "\\u%04x", ch);
        else
            putc(ch, out);
    }
    putc('"', out);
}

/* Writes the shortest decimal that parses to the same double. */
static void
write_float(FILE *out, double d)
{
    char buf[32];
    int digits;

    for (digits = 6; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, d);
        if (strtod(buf, NULL) == d) break;
    }
    fputs(buf, out);
}

static void
write_value(FILE *out, const msgpack_object *o)
{
    switch (o->type) {
    case MSGPACK_OBJECT_BOOLEAN:
        fputs(o->via.boolean ? "true" : "false", out);
        return;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        fprintf(out, "%" PRIu64, o->via.u64);
        return;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        fprintf(out, "%" PRId64, o->via.i64);
        return;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        write_float(out, o->via.f64);
        return;
    case MSGPACK_OBJECT_STR:
        write_string(out, o->via.str.ptr, o->via.str.size);
        return;
    case MSGPACK_OBJECT_BIN: /* bytes, as a list of numbers */
        putc('[', out);
        for (uint32_t i = 0; i < o->via.bin.size; i++)
            fprintf(out, "%s%u", i ? "," : "", (uint8_t)o->via.bin.ptr[i]);
        putc(']', out);
        return;
    case MSGPACK_OBJECT_ARRAY:
        putc('[', out);
        for (uint32_t i = 0; i < o->via.array.size; i++) {
            if (i) putc(',', out);
            write_value(out, &o->via.array.ptr[i]);
        }
        putc(']', out);
        return;
    case MSGPACK_OBJECT_MAP:
        putc('{', out);
        for (uint32_t i = 0; i < o->via.map.size; i++) {
            const msgpack_object_kv *kv = &o->via.map.ptr[i];

            if (i) putc(',', out);
            write_string(out, kv->key.via.str.ptr, kv->key.via.str.size);
            putc(':', out);
            write_value(out, &kv->val);
        }
        putc('}', out);
        return;
    default:
        fputs("null", out);
    }
}

static char *
json_text(const msgpack_object *o)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    if (!out) return NULL;
    write_value(out, o); /* recursive; depth is at most LAGAN_MAX_DEPTH */
    if (fclose(out)) {
        free(text);
        return NULL;
    }
    return text;
}

char *
client_reply_text(const struct msg *m)
{
    const msgpack_object *result = msg_get(&m->map, "result");

    return json_text(result ? result : &m->map);
}

/* ---- the call */

static int
send_call(struct lagan *c, const char *verb, const char *args)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p = client_begin(&b, LAGAN_MSG_CALL, ++c->next_rid, 2);
    struct err e;

    msg_key(&p, "verb"), msg_text(&p, verb);
    msg_key(&p, "args");
    if (args && pack_json(&p, args, strlen(args), &e) < 0)
        return client_fail(c, -EINVAL, "arguments of %s: %s", verb, e.text);
    if (!args) msgpack_pack_map(&p, 0);
    if (b.size > LAGAN_MAX_FRAME)
        return client_fail(c, -EMSGSIZE,
                           "arguments of %s: the message has %zu bytes, the maximum is %u", verb,
                           b.size, LAGAN_MAX_FRAME);
    return client_send_call(c, &b, c->next_rid);
}

static int
take_reply(struct lagan *c, const struct frame *f, const char *verb, char **reply, uint32_t *code)
{
    uint64_t number = LAGAN_E_INTERNAL;
    struct msg_span s;

    if (f->m.type == LAGAN_MSG_REPLY) {
        *reply = client_reply_text(&f->m);
        return *reply ? 0 : client_fail(c, -ENOMEM, "out of memory for the result of %s", verb);
    }
    msg_u64(&f->m.map, "code", &number);
    if (code) *code = (uint32_t)MIN(number, (uint64_t)UINT32_MAX);
    if (msg_str(&f->m.map, "message", &s) < 0) {
        const char *sentence = msg_reason_sentence((uint32_t)number);

        s.p = sentence ? sentence : "unknown error";
        s.n = (uint32_t)strlen(s.p);
    }
    return client_fail(c, -EREMOTEIO, "%.*s", (int)MIN(s.n, 300u), s.p);
}

static int
wait_reply(struct lagan *c, const char *verb, int timeout_ms)
{
    nsec until = client_until(timeout_ms);
    uint32_t n_breaks = c->n_breaks;

    while (!c->call_frame) {
        struct frame *f;
        int r = client_step(c, &f, until);

        if (r < 0) return r;
        if (r == 0)
            return client_fail(c, -ETIMEDOUT, "lagand at %s did not reply to %s within %d ms",
                               c->endpoint, verb, timeout_ms);
        if (f) client_queue_received(c, f); /* an event for lagan_next() */
        if (c->reporting_loss || c->n_breaks != n_breaks)
            return client_fail(c, -ECONNRESET, "%s", c->lost_why);
    }
    return 0;
}

int
lagan_call(struct lagan *c, const char *verb, const char *args, char **reply, uint32_t *code,
           int timeout_ms)
{
    int r;

    /* Without open requests lagan_next() has no ERROR to report, so the loss counts as reported. */
    if (c->reporting_loss && !c->n_requests && !c->n_calls) c->reporting_loss = false;
    if (c->reporting_loss) return client_fail(c, -ECONNRESET, "%s", c->lost_why);
    r = send_call(c, verb, args);
    if (r < 0) return r;
    c->call_rid = c->next_rid;
    r = wait_reply(c, verb, timeout_ms);
    if (r < 0) client_unsend_call(c, c->call_rid); /* the call must not be sent later */
    if (r == 0) r = take_reply(c, c->call_frame, verb, reply, code);
    if (c->call_frame) frame_free(c->call_frame);
    c->call_frame = NULL;
    c->call_rid = 0;
    client_rearm(c);
    return r;
}

/* ---- calls whose result is an event */

int
lagan_start_call(struct lagan *c, const char *verb, const char *args, uint64_t *id)
{
    int r;

    if (c->n_calls == c->max_calls) {
        uint32_t max = c->max_calls ? 2 * c->max_calls : 16;
        uint64_t *calls = realloc(c->calls, max * sizeof *calls);

        if (!calls) return client_fail(c, -ENOMEM, "out of memory for a call of %s", verb);
        c->calls = calls;
        c->max_calls = max;
    }
    if (!c->n_requests && !c->n_calls && !c->welcome) c->disconnected_since = clock_now();
    r = send_call(c, verb, args);
    if (r == 0) c->calls[c->n_calls++] = *id = c->next_rid;
    client_rearm(c);
    return r;
}
