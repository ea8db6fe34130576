/* backend.c - see backend.h. */
#include "gateway/backend.h"

#include "base/log.h"
#include "include/lagan_wire.h"

#include <jansson.h>
#include <stdio.h>

/* Events that one loop iteration handles, so that a fast stream does not delay the sockets. */
enum { MAX_EVENTS = 256, MAX_SERVED = 64 };
static const nsec REFRESH = 500 * NSEC_MS; /* from the reply of `models` to the next call */
static const nsec SILENT_FOR = NSEC_S;     /* a reply that takes longer: lagand is not reachable */
static const nsec REOPEN_AFTER = NSEC_S;   /* after lagand refused the connection */

struct backend {
    const struct gateway_config *config;
    struct lagan *lagan;
    sd_event *loop;
    sd_event_source *readable, *timer;
    struct api *api;
    uint64_t call; /* the open call of `models`; 0: none */
    nsec called, call_at, reopen_at;
    bool connected, draining;
    uint32_t n_models;
    struct api_model models[MAX_SERVED];
};

/* ---- the connection */

static int on_readable(sd_event_source *s, int fd, uint32_t events, void *arg);

static int
open_connection(struct backend *b, struct err *e)
{
    const struct gateway_config *c = b->config;
    int r = *c->lagand_keys ? lagan_open_keys(&b->lagan, c->lagand, c->lagand_keys, 0)
                            : lagan_open(&b->lagan, c->lagand, 0);

    if (r < 0) return err_set(e, r, "lagand: %s", lagan_errmsg(NULL));
    lagan_set_reconnect_timeout(b->lagan, (int)MIN(c->reconnect_timeout / NSEC_MS, INT32_MAX));
    r = sd_event_add_io(b->loop, &b->readable, lagan_fd(b->lagan), EPOLLIN, on_readable, b);
    return r < 0 ? err_set(e, r, "cannot watch the connection to lagand: %s", strerror(-r)) : 0;
}

static void
close_connection(struct backend *b)
{
    b->readable = sd_event_source_disable_unref(b->readable);
    lagan_close(b->lagan);
    b->lagan = NULL;
    b->call = 0;
}

static void
set_connected(struct backend *b, bool connected, const char *why)
{
    if (b->connected == connected) return;
    b->connected = connected;
    if (connected)
        log_info("lagand at %s is reachable and has %u model%s", b->config->lagand, b->n_models,
                 b->n_models == 1 ? "" : "s");
    else
        log_warn("lagand at %s is not reachable (%s); new requests get 503", b->config->lagand,
                 why);
}

/* ---- facts of the models */

static double
number_or(const json_t *o, const char *key, double absent)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : absent;
}

static const char *
string_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static void
take_model(struct api_model *m, const json_t *o)
{
    const json_t *d = json_object_get(o, "defaults");
    const char *template = string_of(o, "template");

    *m = (struct api_model){
        .max_len = (uint32_t)number_or(o, "max_model_len", 0),
        .vocabulary = (uint32_t)number_or(o, "vocabulary", 0),
        .encoder_decoder = json_is_true(json_object_get(o, "encoder_decoder")),
        .chat = *template != 0,
        .developer = !strcmp(template, "harmony") || !strncmp(template, "gemma4", 6),
        .ready = json_is_true(json_object_get(o, "ready")),
        .no_evict = !strcmp(string_of(o, "policy"), "no_evict"),
        .since = (uint64_t)number_or(o, "since", 0),
        .fingerprint = strtoull(string_of(o, "fingerprint"), NULL, 16),
        .temperature = number_or(d, "temperature", 1),
        .top_p = number_or(d, "top_p", 1),
        .min_p = number_or(d, "min_p", 0),
        .repetition_penalty = number_or(d, "repetition_penalty", 1),
        .top_k = (uint32_t)number_or(d, "top_k", 0),
    };
    snprintf(m->name, sizeof m->name, "%s", string_of(o, "name"));
}

static void
take_models(struct backend *b, const char *text)
{
    json_t *list = json_loads(text, 0, NULL), *o;
    size_t i;

    b->n_models = 0;
    json_array_foreach(list, i, o) if (b->n_models < MAX_SERVED)
        take_model(&b->models[b->n_models++], o);
    json_decref(list);
    set_connected(b, true, NULL);
}

static void
call_models(struct backend *b)
{
    if (lagan_start_call(b->lagan, "models", NULL, &b->call) < 0) b->call = 0;
    b->called = clock_now();
    b->call_at = b->called + REFRESH;
}

/* ---- events */

static void
take_event(struct backend *b, const struct lagan_event *ev)
{
    if (ev->kind == LAGAN_EVENT_DISCONNECTED) {
        set_connected(b, false, ev->message);
        b->reopen_at = clock_now() + REOPEN_AFTER;
    } else if (b->call && ev->id == b->call) {
        b->call = 0;
        b->call_at = clock_now() + REFRESH;
        if (ev->kind == LAGAN_EVENT_REPLY)
            take_models(b, ev->text);
        else
            set_connected(b, false, ev->message);
    } else {
        api_event(b->api, 0, ev);
    }
}

static int
on_readable(sd_event_source *s, int fd, uint32_t events, void *arg)
{
    struct lagan_event ev = { .size = sizeof ev };
    struct backend *b = arg;
    int n = 0, r;

    (void)s;
    (void)fd;
    (void)events;
    /* The descriptor stays readable while events are left. */
    do {
        r = lagan_next(b->lagan, &ev, 0);
        if (!lagan_connected(b->lagan)) set_connected(b, false, "the connection was lost");
        if (r > 0) take_event(b, &ev);
    } while (r > 0 && ++n < MAX_EVENTS);
    return 0;
}

static int
on_timer(sd_event_source *s, uint64_t usec, void *arg)
{
    struct backend *b = arg;
    nsec now = clock_now();
    struct err e;

    (void)usec;
    if (b->reopen_at && now >= b->reopen_at) {
        b->reopen_at = 0;
        close_connection(b);
        if (open_connection(b, &e) < 0) {
            log_warn("%s; trying again in 1 s", e.text);
            b->reopen_at = now + REOPEN_AFTER;
        }
    }
    if (b->lagan && !b->call && now >= b->call_at) call_models(b);
    if (b->call && now - b->called > SILENT_FOR) set_connected(b, false, "no reply for 1 s");
    sd_event_source_set_time_relative(s, (uint64_t)(REFRESH / 2 / NSEC_US));
    return sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
}

/* ---- what the API asks for */

static int
find_tenant(void *ctx, const struct http_exchange *x)
{
    (void)ctx;
    (void)x;
    return 0; /* without API keys all clients are one tenant */
}

static int
submit(void *ctx, uint32_t tenant, const struct lagan_request *r, uint64_t *id, struct err *e)
{
    struct backend *b = ctx;
    int code;

    (void)tenant;
    if (!b->connected || !b->lagan)
        return err_set(e, -ENOTCONN, "lagand is not reachable; try again in a second");
    code = lagan_submit(b->lagan, r, id);
    return code < 0 ? err_set(e, code, "%s", lagan_errmsg(b->lagan)) : 0;
}

static void
cancel(void *ctx, uint32_t tenant, uint64_t id)
{
    struct backend *b = ctx;

    (void)tenant;
    if (b->lagan) (void)lagan_cancel(b->lagan, id);
}

static int
start_call(void *ctx, uint32_t tenant, const char *verb, const char *args, uint64_t *id,
           struct err *e)
{
    struct backend *b = ctx;
    int code;

    (void)tenant;
    if (!b->connected || !b->lagan)
        return err_set(e, -ENOTCONN, "lagand is not reachable; try again in a second");
    code = lagan_start_call(b->lagan, verb, args, id);
    return code < 0 ? err_set(e, code, "%s", lagan_errmsg(b->lagan)) : 0;
}

static void
hold(void *ctx, uint32_t tenant, uint64_t id, bool hold)
{
    struct backend *b = ctx;

    (void)tenant;
    if (b->lagan) (void)lagan_ack_hold(b->lagan, id, hold);
}

static const struct api_model *
models(void *ctx, uint32_t *n, bool *connected, bool *draining)
{
    struct backend *b = ctx;

    *n = b->n_models;
    *connected = b->connected;
    *draining = b->draining;
    return b->models;
}

/* One line per request; under systemd its facts are fields of the journal, too. */
static void
ended(void *ctx, const struct api_summary *s)
{
    enum { FACTS = 13, BYTES = 320 };
    static const char *const names[FACTS] = { "REQUEST_ID", "TENANT",  "MODEL",         "ROUTE",
                                              "STATUS",     "REASON",  "PROMPT_TOKENS", "TOKENS",
                                              "CACHED",     "TTFT_MS", "TOTAL_MS",      "STREAM",
                                              "RESUMED" };
    const struct backend *b = ctx;
    const char *fields[FACTS + 1];
    char text[FACTS][BYTES], values[FACTS][24];
    const char *value[FACTS] = { s->request_id, "-", s->model, s->route };

    if (!b->config->log_requests) return;
    value[5] = s->reason;
    snprintf(values[4], sizeof values[4], "%d", s->status);
    snprintf(values[6], sizeof values[6], "%u", s->prompt_tokens);
    snprintf(values[7], sizeof values[7], "%u", s->tokens);
    snprintf(values[8], sizeof values[8], "%u", s->cached);
    snprintf(values[9], sizeof values[9], "%.1f", (double)s->first_token / NSEC_MS);
    snprintf(values[10], sizeof values[10], "%.1f", (double)s->total / NSEC_MS);
    snprintf(values[11], sizeof values[11], "%d", s->stream);
    snprintf(values[12], sizeof values[12], "%u", s->resumed);
    for (int i = 0; i < FACTS; i++) {
        if (!value[i]) value[i] = i == 2 || i == 3 || i == 5 ? "" : values[i];
        snprintf(text[i], sizeof text[i], "%s=%s", names[i], value[i]);
        fields[i] = text[i];
    }
    fields[FACTS] = NULL;
    log_fields(
        LOG_LEVEL_INFO, fields,
        "%s %s %s: model %s, %s prompt tokens, %s tokens, %s cached, first after %s ms, total "
        "%s ms%s, resumed %s, request %s%s%s",
        value[3], value[4], value[5], value[2], value[6], value[7], value[8], value[9], value[10],
        s->stream ? ", streamed" : "", value[12], value[0], s->user && *s->user ? ", user " : "",
        s->user ? s->user : "");
}

struct api_backend
backend_functions(struct backend *b)
{
    return (struct api_backend){
        .ctx = b,
        .ended = ended,
        .tenant = find_tenant,
        .submit = submit,
        .cancel = cancel,
        .call = start_call,
        .hold = hold,
        .models = models,
    };
}

/* ---- open and close */

int
backend_open(struct backend **ret, sd_event *loop, const struct gateway_config *c, struct err *e)
{
    struct backend *b = calloc(1, sizeof *b);
    int r;

    if (!b) return err_set(e, -ENOMEM, "no memory for the connection to lagand");
    b->loop = loop;
    b->config = c;
    r = open_connection(b, e);
    if (r == 0 && sd_event_add_time(loop, &b->timer, CLOCK_MONOTONIC, 0, 0, on_timer, b) < 0)
        r = err_set(e, -ENOMEM, "cannot make a timer");
    if (r < 0) {
        backend_close(b);
        return r;
    }
    *ret = b;
    return 0;
}

struct backend *
backend_close(struct backend *b)
{
    if (!b) return NULL;
    sd_event_source_disable_unref(b->timer);
    close_connection(b);
    free(b);
    return NULL;
}

void
backend_set_api(struct backend *b, struct api *a)
{
    b->api = a;
}

bool
backend_connected(const struct backend *b)
{
    return b->connected;
}

void
backend_set_draining(struct backend *b)
{
    b->draining = true;
}
