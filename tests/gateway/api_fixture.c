/* api_fixture.c - see api_fixture.h. */
#include "tests/gateway/api_fixture.h"

#include <math.h>
#include <stdarg.h>
#include <strings.h>

/* ---- a pretended lagan_request: lines "key=value" */

struct lagan_request {
    struct out text;
};

struct lagan_request *
lagan_request_new(void)
{
    return calloc(1, sizeof(struct lagan_request));
}

void
lagan_request_free(struct lagan_request *r)
{
    if (r) out_free(&r->text);
    free(r);
}

const char *
lagan_errmsg(const struct lagan *c)
{
    (void)c;
    return "a value that liblagan refuses";
}

/* Writes "key=" if lagand has a key of one of these kinds, else fails the test. */
static void
begin(struct lagan_request *r, const char *key, const char *kinds)
{
    static const struct {
        const char *key, *kind;
    } rows[] = {
#define X(kind, key, least, most, absent, record, fallback, sentence) { #key, #kind },
        LAGAN_FIELDS(X)
#undef X
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (strcmp(rows[i].key, key) == 0 && strstr(kinds, rows[i].kind)) {
            out_format(&r->text, "%s=", key);
            return;
        }
    fprintf(stderr, "lagand has no key %s of a kind of %s\n", key, kinds);
    abort();
}

int
lagan_set_int(struct lagan_request *r, const char *key, int64_t v)
{
    begin(r, key, "U32 U64 I32 F64 OVER");
    out_format(&r->text, "%lld\n", (long long)v);
    return 0;
}

int
lagan_set_float(struct lagan_request *r, const char *key, double v)
{
    begin(r, key, "F64 OVER");
    check(isfinite(v));
    out_f64(&r->text, v);
    out_put(&r->text, "\n");
    return 0;
}

int
lagan_set_bool(struct lagan_request *r, const char *key, int v)
{
    begin(r, key, "BOOL EARLY");
    out_format(&r->text, "%s\n", v ? "true" : "false");
    return 0;
}

int
lagan_set_str(struct lagan_request *r, const char *key, const char *s, size_t n)
{
    begin(r, key, "STR EARLY STOPS");
    out_bytes(&r->text, s, n);
    out_put(&r->text, "\n");
    return 0;
}

int
lagan_set_ids(struct lagan_request *r, const char *key, const int32_t *ids, size_t n)
{
    begin(r, key, "IDS");
    for (size_t i = 0; i < n; i++) out_format(&r->text, i ? ",%d" : "%d", ids[i]);
    out_put(&r->text, "\n");
    return 0;
}

int
lagan_set_bias(struct lagan_request *r, const char *key, const int32_t *ids, const float *bias,
               size_t n)
{
    begin(r, key, "BIAS");
    for (size_t i = 0; i < n; i++) {
        out_format(&r->text, i ? ",%d:" : "%d:", ids[i]);
        out_f32(&r->text, bias[i]);
    }
    out_put(&r->text, "\n");
    return 0;
}

int
lagan_set_strs(struct lagan_request *r, const char *key, const char *const *s, size_t n)
{
    begin(r, key, "STOPS");
    for (size_t i = 0; i < n; i++) out_format(&r->text, i ? ",%s" : "%s", s[i]);
    out_put(&r->text, "\n");
    return 0;
}

/* ---- a pretended HTTP server */

static struct http_text
text_of(const char *s)
{
    return (struct http_text){ s, s ? strlen(s) : 0 };
}

enum http_method
http_method(const struct http_exchange *x)
{
    return x->method;
}

struct http_text
http_path(const struct http_exchange *x)
{
    return text_of(x->path);
}

struct http_text
http_query(const struct http_exchange *x)
{
    return text_of(x->query);
}

struct http_text
http_body(const struct http_exchange *x)
{
    return (struct http_text){ x->body, x->body_n };
}

struct http_text
http_field(const struct http_exchange *x, const char *name, uint32_t nth)
{
    for (const char *p = x->headers; p && *p;) {
        size_t n = strcspn(p, "\n"), k = strcspn(p, ":");

        if (k == strlen(name) && strncasecmp(p, name, k) == 0 && nth-- == 0)
            return (struct http_text){ p + k + 2, n - k - 2 };
        p += n + (p[n] == '\n');
    }
    return (struct http_text){ 0 };
}

const char *
http_request_id(const struct http_exchange *x)
{
    (void)x;
    return "req-1";
}

const char *
http_peer(const struct http_exchange *x)
{
    (void)x;
    return "127.0.0.1";
}

void
http_set_user(struct http_exchange *x, void *user)
{
    x->user = user;
}

void *
http_user(const struct http_exchange *x)
{
    return x->user;
}

static void
take_head(struct http_exchange *x, const struct http_response *r)
{
    check(!(x->started || x->is_gone));
    x->started = true;
    x->status = r->status;
    if (r->content_type) snprintf(x->content_type, sizeof x->content_type, "%s", r->content_type);
    if (r->fields) out_put(&x->fields, r->fields);
    out_bytes(&x->fields, "", 1);
}

void
http_respond(struct http_exchange *x, const struct http_response *r)
{
    take_head(x, r);
    out_bytes(&x->sent, r->body, r->n);
    x->ended = true;
}

void
http_stream(struct http_exchange *x, const struct http_response *r)
{
    take_head(x, r);
}

int
http_write(struct http_exchange *x, const char *p, size_t n)
{
    check(x->started && !x->ended && !x->cut && !x->is_gone);
    if (n > x->space) return -EAGAIN;
    x->space -= n;
    out_bytes(&x->sent, p, n);
    return 0;
}

void
http_end(struct http_exchange *x)
{
    check(x->started && !x->ended && !x->cut);
    x->ended = true;
}

void
http_cut(struct http_exchange *x)
{
    check(!(x->ended || x->cut));
    x->cut = true;
}

bool
http_started(const struct http_exchange *x)
{
    return x->started;
}

struct http_counts
http_counts(const struct http *h)
{
    (void)h;
    return (struct http_counts){ .connections = 3, .idle = 1, .reading = 1, .exchanges = 1 };
}

/* ---- a pretended lagand */

static int
tenant(void *ctx, const struct http_exchange *x)
{
    (void)x;
    return ((struct api_fixture *)ctx)->tenant;
}

static struct sent *
add_sent(struct api_fixture *f, uint64_t *id)
{
    struct sent *s = &f->sent[f->n_sent];

    check(f->n_sent < MAX_SENT);
    *id = s->id = 100 + f->n_sent++;
    return s;
}

static int
submit(void *ctx, uint32_t t, const struct lagan_request *r, uint64_t *id, struct err *e)
{
    struct api_fixture *f = ctx;
    struct sent *s;

    (void)t;
    if (f->submit_code) return err_set(e, f->submit_code, "the backend does not take it");
    s = add_sent(f, id);
    s->text = calloc(1, r->text.n + 1);
    check(s->text);
    if (r->text.n) memcpy(s->text, r->text.p, r->text.n);
    return 0;
}

static int
start_call(void *ctx, uint32_t t, const char *verb, const char *args, uint64_t *id, struct err *e)
{
    struct api_fixture *f = ctx;
    struct sent *s;

    (void)t;
    if (f->submit_code) return err_set(e, f->submit_code, "the backend does not take it");
    s = add_sent(f, id);
    s->verb = strdup(verb);
    s->text = strdup(args);
    return 0;
}

static void
cancel(void *ctx, uint32_t t, uint64_t id)
{
    struct api_fixture *f = ctx;

    (void)t;
    f->sent[id - 100].cancelled = true;
}

static void
hold(void *ctx, uint32_t t, uint64_t id, bool on)
{
    struct api_fixture *f = ctx;

    (void)t;
    check(f->sent[id - 100].held != on);
    f->sent[id - 100].held = on;
}

static const struct api_model *
models(void *ctx, uint32_t *n, bool *connected, bool *draining)
{
    struct api_fixture *f = ctx;

    *n = f->n_models;
    *connected = f->connected;
    *draining = f->draining;
    return f->models;
}

static void
ended(void *ctx, const struct api_summary *s)
{
    struct api_fixture *f = ctx;

    f->last = *s;
    f->n_ended++;
    snprintf(f->last_reason, sizeof f->last_reason, "%s", s->reason);
}

/* ---- the fixture */

void
api_fixture_open(struct api_fixture *f)
{
    struct err e;
    struct api_backend b = { f, ended, tenant, submit, cancel, start_call, hold, models };

    memset(f, 0, sizeof *f);
    f->now = 1000 * NSEC_S;
    f->connected = true;
    f->n_models = 1;
    f->models[0] = (struct api_model){ .name = "m",
                                       .max_len = 1000,
                                       .vocabulary = 100,
                                       .chat = true,
                                       .ready = true,
                                       .since = WALL,
                                       .fingerprint = 0x5c1e9a77,
                                       .temperature = 1,
                                       .top_p = 1,
                                       .repetition_penalty = 1 };
    f->models[1] = f->models[0];
    strcpy(f->models[1].name, "e");
    f->models[1].chat = false;
    f->models[1].encoder_decoder = true;
    f->models[1].temperature = 0;
    f->config = (struct api_config){ .aliases = "alias m\nother m\n",
                                     .max_prompts = 128,
                                     .max_n = 64,
                                     .header_hold = 10 * NSEC_S,
                                     .sse_ping = 15 * NSEC_S,
                                     .open_metrics = true,
                                     .open_health = true,
                                     .id_seed = 7,
                                     .version = "0.2.0" };
    check(api_new(&f->api, &f->config, &b, &e) == 0);
    f->http = api_handler(f->api);
    api_iterate(f->api, f->now, WALL);
}

void
api_fixture_forget(struct api_fixture *f)
{
    for (uint32_t i = 0; i < f->n_sent; i++) {
        free(f->sent[i].verb);
        free(f->sent[i].text);
    }
    memset(f->sent, 0, f->n_sent * sizeof *f->sent);
    f->n_sent = 0;
}

void
api_fixture_close(struct api_fixture *f)
{
    while (f->api->first) ask_gone(f, f->api->first->x); /* of a test that failed */
    api_fixture_forget(f);
    api_free(f->api);
}

static struct http_exchange *
run(struct api_fixture *f, struct http_exchange *x)
{
    x->space = 1 << 30;
    f->http.head(f->http.ctx, x);
    if (x->started) return x;
    do x->n_reads++;
    while (f->http.request(f->http.ctx, x) == 1);
    return x;
}

struct http_exchange *
ask(struct api_fixture *f, enum http_method method, const char *path, const char *body)
{
    struct http_exchange *x = calloc(1, sizeof *x);

    check(x);
    x->method = method;
    x->path = path;
    x->body = body ? body : "";
    x->body_n = body ? strlen(body) : 0;
    return run(f, x);
}

struct http_exchange *
ask_bytes(struct api_fixture *f, const char *path, const char *headers, const char *body, size_t n)
{
    struct http_exchange *x = calloc(1, sizeof *x);

    check(x);
    x->method = HTTP_POST;
    x->path = path;
    x->headers = headers;
    x->body = body;
    x->body_n = n;
    return run(f, x);
}

void
ask_gone(struct api_fixture *f, struct http_exchange *x)
{
    if (x->is_gone) return;
    f->http.gone(f->http.ctx, x, x->ended, x->ended ? "complete" : "client_gone");
    x->is_gone = true;
}

void
ask_done(struct api_fixture *f, struct http_exchange *x)
{
    ask_gone(f, x);
    out_free(&x->fields);
    out_free(&x->sent);
    free(x);
}

void
move_clock(struct api_fixture *f, nsec by)
{
    f->now += by;
    api_iterate(f->api, f->now, WALL + (uint64_t)((f->now - 1000 * NSEC_S) / NSEC_S));
}

void
send_event(struct api_fixture *f, uint32_t i, struct lagan_event ev)
{
    ev.size = sizeof ev;
    ev.id = f->sent[i].id;
    if (ev.kind != LAGAN_EVENT_REPLY) ev.accepted_at = WALL;
    api_event(f->api, 0, &ev);
}

void
send_tokens(struct api_fixture *f, uint32_t i, uint32_t output, const char *text,
            const token_id *ids, uint32_t n)
{
    send_event(f, i,
               (struct lagan_event){ .kind = LAGAN_EVENT_TOKENS,
                                     .output = output,
                                     .text = text,
                                     .text_len = strlen(text),
                                     .ids = ids,
                                     .n_ids = n });
}

void
send_output(struct api_fixture *f, uint32_t i, uint32_t output, uint32_t reason, uint32_t n_tokens,
            uint32_t n_prompt)
{
    send_event(f, i,
               (struct lagan_event){ .kind = LAGAN_EVENT_OUTPUT,
                                     .output = output,
                                     .reason = reason,
                                     .n_tokens = n_tokens,
                                     .n_prompt_tokens = n_prompt,
                                     .stop_id = -1 });
}

void
send_done(struct api_fixture *f, uint32_t i)
{
    send_event(f, i, (struct lagan_event){ .kind = LAGAN_EVENT_DONE });
}

void
send_error(struct api_fixture *f, uint32_t i, uint32_t reason, const char *message)
{
    send_event(
        f, i,
        (struct lagan_event){ .kind = LAGAN_EVENT_ERROR, .reason = reason, .message = message });
}

void
send_reply(struct api_fixture *f, uint32_t i, const char *json)
{
    send_event(
        f, i,
        (struct lagan_event){ .kind = LAGAN_EVENT_REPLY, .text = json, .text_len = strlen(json) });
}
