/* api.c - the functions that the HTTP server calls, and the life of the API. */
#include "gateway/api/api_internal.h"

#include <stdio.h>
#include <strings.h>

/* Responds with an error where there is no exchange. */
static void
refuse(struct api *a, struct http_exchange *x, struct fault *f, const char *fields)
{
    CLEAN(out_free) struct out body = { 0 };
    CLEAN(out_free) struct out head = { 0 };

    error_body(&body, f);
    error_fields(&head, f->error, api_error_rows[f->error].retry_after, 200);
    out_bytes(&head, fields, strlen(fields) + 1);
    metrics_request(a->metrics, "other", api_error_rows[f->error].status,
                    api_error_rows[f->error].code, false);
    http_respond(x, &(struct http_response){ .status = api_error_rows[f->error].status,
                                             .content_type = JSON_TYPE,
                                             .fields = head.failed ? NULL : head.p,
                                             .body = body.p,
                                             .n = body.n });
}

static bool
text_is(struct http_text t, const char *s)
{
    return t.n == strlen(s) && memcmp(t.p, s, t.n) == 0;
}

/* Refuses a request for a path or method that no route has. */
static void
refuse_path(struct api *a, struct http_exchange *x, bool other_method)
{
    CLEAN(out_free) struct out allow = { 0 };
    struct http_text path = http_path(x);
    struct fault f;

    if (other_method) {
        (void)fault_set(&f, API_E_BAD_METHOD, NULL, "%.*s does not have this method; it has ",
                        (int)MIN(path.n, (size_t)64), path.p);
        route_allowed(&allow, path);
        out_bytes(&allow, "", 1);
        if (!allow.failed) {
            char line[128];

            strncat(f.text, allow.p, sizeof f.text - strlen(f.text) - 1);
            snprintf(line, sizeof line, "Allow: %s\r\n", allow.p);
            refuse(a, x, &f, line);
            return;
        }
    } else if (text_is(path, "/v1/responses") ||
               (path.n >= 11 && memcmp(path.p, "/v1/streams", 11) == 0)) {
        (void)fault_set(&f, API_E_UNSUPPORTED_URL, NULL,
                        "%.*s is not served; use /v1/chat/completions",
                        (int)MIN(path.n, (size_t)64), path.p);
    } else {
        (void)fault_set(&f, API_E_UNKNOWN_URL, NULL, "there is no path %.*s",
                        (int)MIN(path.n, (size_t)64), path.p);
    }
    refuse(a, x, &f, "");
}

static void
options(struct http_exchange *x)
{
    CLEAN(out_free) struct out allow = { 0 };

    out_put(&allow, "Allow: ");
    route_allowed(&allow, http_path(x));
    out_bytes(&allow, "\r\n", 3);
    http_respond(x,
                 &(struct http_response){ .status = 204, .fields = allow.failed ? NULL : allow.p });
}

/* Checks header fields of a request with a body. */
static int
check_fields(const struct http_exchange *x, struct fault *f)
{
    static const char *const types[] = { "application/json", "text/plain",
                                         "application/x-www-form-urlencoded" };
    static const char *const later[] = { "Idempotency-Key", "Last-Event-ID" };
    struct http_text type = http_field(x, "Content-Type", 0);
    size_t n = 0;

    if (http_field(x, "Content-Encoding", 0).p)
        return fault_set(f, API_E_MEDIA_TYPE, NULL, "a body with Content-Encoding is not served");
    for (size_t i = 0; i < ARRAY_LEN(later); i++)
        if (http_field(x, later[i], 0).p)
            return fault_set(f, API_E_UNSUPPORTED, later[i],
                             "the header %s is not served; leave it out", later[i]);
    while (n < type.n && type.p[n] != ';' && type.p[n] != ' ') n++;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (!type.p || (n == strlen(types[i]) && strncasecmp(type.p, types[i], n) == 0)) return 0;
    return fault_set(f, API_E_MEDIA_TYPE, NULL,
                     "Content-Type is %.*s, but must be application/json",
                     (int)MIN(type.n, (size_t)64), type.p);
}

/* Finds the tenant of a request. */
static int
check_key(struct api *a, const struct http_exchange *x, const struct route *r, uint32_t *tenant,
          struct fault *f)
{
    int t = a->b.tenant(a->b.ctx, x);

    *tenant = t < 0 ? 0 : (uint32_t)t;
    if (t >= 0) return 0;
    if (r->run == metrics_run ? a->c.open_metrics : r->open && a->c.open_health) return 0;
    return fault_set(f, API_E_INVALID_KEY, NULL,
                     t == -EPERM ? "the request has two different API keys"
                                 : "the API key is missing or not known");
}

static void
take_head(void *ctx, struct http_exchange *x)
{
    struct api *a = ctx;
    bool other_method;
    const struct route *r = route_find(http_method(x), http_path(x), &other_method);
    struct exchange *e;
    struct fault f;
    uint32_t tenant;

    if (!r && http_method(x) == HTTP_OPTIONS && (other_method || text_is(http_path(x), "*"))) {
        options(x);
        return;
    }
    if (!r) {
        refuse_path(a, x, other_method);
        return;
    }
    if (check_key(a, x, r, &tenant, &f) < 0 || (r->fields && check_fields(x, &f) < 0)) {
        refuse(a, x, &f, "");
        return;
    }
    if (r->fields && a->draining) {
        (void)fault_set(&f, API_E_DRAINING, NULL, "the gateway stops and takes no new requests");
        refuse(a, x, &f, "");
        return;
    }
    e = exchange_new(a, x, r);
    if (e && r->fields) e->body = calloc(1, sizeof *e->body);
    if (!e || (r->fields && !e->body)) {
        (void)fault_set(&f, API_E_OUT_OF_MEMORY, NULL, "the gateway has no memory for a request");
        refuse(a, x, &f, "");
        return;
    }
    e->tenant = tenant;
}

/* Reads the body and runs the route. Returns as request() of struct http_handler. */
static int
read_and_run(struct exchange *e, struct fault *f)
{
    /* of routers that know prefill workers and ranks of data parallelism */
    static const char *const ignored[] = { "x-data-parallel-rank", "x-prefiller-host-port" };
    struct http_text type;
    int r;

    if (e->route->fields) {
        if (!e->body->text.p) {
            body_open(e->body, http_body(e->x));
            type = http_field(e->x, "Content-Type", 0);
            if (type.p && strncasecmp(type.p, "application/x-www", 17) == 0)
                body_ignore(e->body, "content-type", 12);
            for (size_t i = 0; i < ARRAY_LEN(ignored); i++)
                if (http_field(e->x, ignored[i], 0).p)
                    body_ignore(e->body, ignored[i], strlen(ignored[i]));
        }
        r = body_read(e->body, e->route->fields, e->a->read_bytes, e->a->c.strict, f);
        if (r) return r;
    }
    return e->route->run(e, f);
}

static int
take_request(void *ctx, struct http_exchange *x)
{
    struct exchange *e = http_user(x);
    struct fault f;
    int r;

    (void)ctx;
    if (!e || e->ending) return 0; /* refused by take_head(), or by api_drain() meanwhile */
    (void)fault_set(&f, API_E_INTERNAL, NULL, "the gateway could not read the request");
    r = read_and_run(e, &f);
    if (r == -ENOMEM)
        exchange_fail_memory(e);
    else if (r < 0)
        exchange_fail(e, &f);
    return r > 0;
}

static void
take_writable(void *ctx, struct http_exchange *x)
{
    (void)ctx;
    if (http_user(x)) events_writable(http_user(x));
}

/* Tells the log and the counters that an exchange has ended. */
static void
summarize(struct api *a, const struct exchange *e, bool complete, const char *why)
{
    struct api_summary s = { .request_id = http_request_id(e->x),
                             .peer = http_peer(e->x),
                             .user = e->user,
                             .model = e->asked,
                             .route = e->route->name,
                             .tenant = e->tenant,
                             .status = e->status,
                             .reason = e->reason ? e->reason : "",
                             .prompt_tokens = e->prompt_tokens,
                             .tokens = complete ? e->n_tokens : MAX(e->n_tokens, e->n_received),
                             .cached = e->cached,
                             .resumed = e->resumed,
                             .first_token = e->first_token ? e->first_token - e->begun : 0,
                             .total = a->now - e->begun,
                             .stream = e->stream };

    if (!complete && !e->ending && !e->reason)
        s.reason = strcmp(why, "client_gone") ? why : "disconnected";
    metrics_request(a->metrics, s.route, s.status, s.reason, s.stream);
    if (e->model.name[0]) metrics_ended(a->metrics, &s, e->model.name, a->now);
    if (e->route->fields) a->b.ended(a->b.ctx, &s);
}

static void
take_gone(void *ctx, struct http_exchange *x, bool complete, const char *why)
{
    struct exchange *e = http_user(x);

    if (!e) return;
    summarize(ctx, e, complete, why);
    exchange_free(e);
    http_set_user(x, NULL);
}

static size_t
write_fault(void *ctx, int status, const char *rule, const char *sentence, char *buf, size_t n)
{
    struct api *a = ctx;
    CLEAN(out_free) struct out o = { 0 };
    struct fault f;

    metrics_http_error(a->metrics, rule);
    (void)fault_set(&f, error_of_status(status), NULL, "%s", sentence);
    error_body(&o, &f);
    if (o.failed || o.n > n) return 0;
    memcpy(buf, o.p, o.n);
    return o.n;
}

struct http_handler
api_handler(struct api *a)
{
    return (struct http_handler){ .ctx = a,
                                  .head = take_head,
                                  .request = take_request,
                                  .writable = take_writable,
                                  .gone = take_gone,
                                  .fault = write_fault };
}

int
api_configure(struct api *a, const struct api_config *c, struct err *e)
{
    uint64_t seed = a->c.id_seed;
    const char *version = a->c.version;

    TRY(models_check_aliases(c->aliases, e));
    a->c = *c;
    a->c.id_seed = seed;
    a->c.version = version;
    return 0;
}

int
api_new(struct api **ret, const struct api_config *c, const struct api_backend *b, struct err *e)
{
    CLEAN(api_free_at) struct api *a = calloc(1, sizeof *a);

    if (!a) return err_set(e, -ENOMEM, "no memory for the API");
    a->b = *b;
    a->c.id_seed = a->random = c->id_seed;
    a->c.version = c->version;
    a->read_bytes = API_READ_BYTES;
    a->due = NSEC_NEVER;
    TRY(api_configure(a, c, e));
    a->map = map_new(API_MAX_OPEN);
    a->open = calloc(API_MAX_OPEN, sizeof *a->open);
    a->pieces = pieces_new(a);
    a->metrics = metrics_new();
    if (!a->map || !a->open || !a->pieces || !a->metrics)
        return err_set(e, -ENOMEM, "no memory for the tables of the API");
    for (uint32_t i = 0; i < API_MAX_OPEN; i++) a->open[i].next_free = i + 1;
    *ret = TAKE(a);
    return 0;
}

struct api *
api_free(struct api *a)
{
    if (!a) return NULL;
    check(!a->first); /* http_close() ended all exchanges */
    map_free(a->map);
    free(a->open);
    pieces_free(a->pieces);
    metrics_free(a->metrics);
    free(a);
    return NULL;
}

void
api_set_http(struct api *a, const struct http *h)
{
    a->http = h;
}

nsec
api_iterate(struct api *a, nsec now, uint64_t wall)
{
    struct exchange *next;

    a->now = now;
    a->wall = wall;
    if (now < a->due) return a->due;
    a->due = NSEC_NEVER;
    for (struct exchange *e = a->first; e; e = next) {
        nsec due;

        next = e->next;
        due = events_iterate(e);
        a->due = MIN(a->due, due);
    }
    return a->due;
}

void
api_drain(struct api *a)
{
    struct exchange *next;
    struct fault f;

    a->draining = true;
    (void)fault_set(&f, API_E_DRAINING, NULL, "the gateway stops; send the request again");
    for (struct exchange *e = a->first; e; e = next) {
        next = e->next;
        if (!e->ending) exchange_fail(e, &f);
    }
}
