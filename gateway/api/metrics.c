/* metrics.c - see metrics.h. */
#include "gateway/api/metrics.h"

#include "gateway/api/api_internal.h"

#include <stdio.h>

enum { RATE_SECONDS = 10, MAX_RETRY = 60 };
enum { MAX_ROWS = 512, MAX_RULES = 64, MAX_MODELS = 32, MAX_BOUNDS = 24 };
#define ASK_EVERY (100 * NSEC_MS)

/* Upper bounds of the buckets in seconds: vLLM's, so that dashboards fit. */
static const double duration_bounds[] = { 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680 };
static const double first_bounds[] = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                       0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                       20,    40,    80,   160,  640,  2560 };
static const double between_bounds[] = { 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                         0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80 };

struct histogram {
    uint64_t n[MAX_BOUNDS + 1]; /* not cumulative; the last: above all bounds */
    double sum;
};

struct request_row {
    const char *route, *reason;
    int status;
    bool stream;
    uint64_t n;
};

struct model_row {
    char name[257];
    struct histogram duration, first, between;
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
};

struct metrics {
    struct request_row row[MAX_ROWS];
    uint32_t n_rows;
    struct {
        const char *rule;
        uint64_t n;
    } fault[MAX_RULES];
    uint32_t n_faults;
    struct model_row model[MAX_MODELS];
    uint32_t n_models;
    uint64_t disconnects, events, joined;
    struct {
        nsec second;
        uint32_t n;
    } ended
        [RATE_SECONDS]; /* requests that ended well in this second; index: second % RATE_SECONDS */
    struct out lagand;  /* its text */
    nsec asked;         /* 0: never */
    bool asking, up;
};

struct metrics *
metrics_new(void)
{
    return calloc(1, sizeof(struct metrics));
}

void
metrics_free(struct metrics *m)
{
    if (m) out_free(&m->lagand);
    free(m);
}

/* ---- counting */

void
metrics_request(struct metrics *m, const char *route, int status, const char *reason, bool stream)
{
    struct request_row *r = m->row;

    if (strcmp(reason, "disconnected") == 0) m->disconnects++;
    for (; r < m->row + m->n_rows; r++)
        if (r->status == status && r->stream == stream && strcmp(r->route, route) == 0 &&
            strcmp(r->reason, reason) == 0)
            break;
    if (r == m->row + MAX_ROWS) return;
    if (r == m->row + m->n_rows) {
        *r = (struct request_row){ route, reason, status, stream, 0 };
        m->n_rows++;
    }
    r->n++;
}

void
metrics_http_error(struct metrics *m, const char *rule)
{
    uint32_t i = 0;

    while (i < m->n_faults && strcmp(m->fault[i].rule, rule) != 0) i++;
    if (i == MAX_RULES) return;
    if (i == m->n_faults) m->fault[m->n_faults++].rule = rule;
    m->fault[i].n++;
}

/* Returns the row of a model; the last row is shared if there are more models than rows. */
static struct model_row *
row_of(struct metrics *m, const char *model)
{
    for (uint32_t i = 0; i < m->n_models; i++)
        if (strcmp(m->model[i].name, model) == 0) return &m->model[i];
    if (m->n_models == MAX_MODELS) return &m->model[MAX_MODELS - 1];
    snprintf(m->model[m->n_models].name, sizeof m->model[0].name, "%s",
             m->n_models == MAX_MODELS - 1 ? "other" : model);
    return &m->model[m->n_models++];
}

static void
add(struct histogram *h, const double *bounds, size_t n, nsec duration, uint32_t times)
{
    double seconds = (double)duration / (double)NSEC_S;
    size_t i = 0;

    while (i < n && seconds > bounds[i]) i++;
    h->n[i] += times;
    h->sum += seconds * times;
}
#define ADD(h, bounds, duration, times) add(h, bounds, ARRAY_LEN(bounds), duration, times)

void
metrics_tokens(struct metrics *m, const char *model, uint32_t n, nsec to_first, nsec since_last)
{
    struct model_row *r = row_of(m, model);

    if (to_first) ADD(&r->first, first_bounds, to_first, 1);
    if (since_last) ADD(&r->between, between_bounds, since_last / n, n);
}

void
metrics_event(struct metrics *m, uint32_t n_tokens)
{
    m->events++;
    m->joined += n_tokens > 1;
}

void
metrics_ended(struct metrics *m, const struct api_summary *s, const char *model, nsec now)
{
    struct model_row *r = row_of(m, model);
    nsec second = now / NSEC_S;
    size_t i = (size_t)(second % RATE_SECONDS);

    if (m->ended[i].second != second) m->ended[i].n = 0;
    m->ended[i].second = second;
    m->ended[i].n += s->status == 200;
    ADD(&r->duration, duration_bounds, s->total, 1);
    r->prompt_tokens += s->prompt_tokens;
    r->completion_tokens += s->tokens;
    r->cached_tokens += s->cached;
}

uint32_t
metrics_drain_time(const struct metrics *m, nsec now, uint32_t n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < RATE_SECONDS; i++)
        if (m->ended[i].second > now / NSEC_S - RATE_SECONDS) sum += m->ended[i].n;
    return sum ? (uint32_t)MIN(MAX(n * (uint64_t)RATE_SECONDS / sum, (uint64_t)1),
                               (uint64_t)MAX_RETRY)
               : 1;
}

/* ---- text */

static void
put_help(struct out *o, const char *name, const char *type, const char *sentence)
{
    out_format(o, "# HELP %s %s\n# TYPE %s %s\n", name, sentence, name, type);
}

/* Writes a value of a label: '"', '\' and line feed are escaped. */
static void
put_label(struct out *o, const char *name, const char *value)
{
    out_format(o, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\n')
            out_put(o, "\\n");
        else if (*value == '"' || *value == '\\')
            out_format(o, "\\%c", *value);
        else
            out_bytes(o, value, 1);
    }
    out_put(o, "\"");
}

static void
put_histogram(struct out *o, const char *name, const char *label, const char *model,
              const struct histogram *h, const double *bounds, size_t n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i <= n; i++) {
        sum += h->n[i];
        out_format(o, "%s_bucket{", name);
        put_label(o, label, model);
        out_put(o, ",le=\"");
        if (i < n)
            out_f64(o, bounds[i]);
        else
            out_put(o, "+Inf");
        out_format(o, "\"} %llu\n", (unsigned long long)sum);
    }
    out_format(o, "%s_sum{", name);
    put_label(o, label, model);
    out_put(o, "} ");
    out_f64(o, h->sum);
    out_format(o, "\n%s_count{", name);
    put_label(o, label, model);
    out_format(o, "} %llu\n", (unsigned long long)sum);
}

struct histogram_kind {
    const char *name, *sentence;
    size_t offset;
    const double *bounds;
    size_t n;
};

#define KIND(name, sentence, field) \
    { \
        name, sentence, offsetof(struct model_row, field), field##_bounds, \
            ARRAY_LEN(field##_bounds) \
    }
static const struct histogram_kind kinds[] = {
    KIND("lagan_gateway_request_duration_seconds",
         "Time from the head of a request to the end of its response.", duration),
    KIND("lagan_gateway_time_to_first_token_seconds",
         "Time from the head of a request to its first token.", first),
    KIND("lagan_gateway_inter_token_seconds", "Time between two tokens of an output.", between),
};
static const struct histogram_kind vllm_kinds[] = {
    KIND("vllm:e2e_request_latency_seconds", "As lagan_gateway_request_duration_seconds.",
         duration),
    KIND("vllm:time_to_first_token_seconds", "As lagan_gateway_time_to_first_token_seconds.",
         first),
    KIND("vllm:inter_token_latency_seconds", "As lagan_gateway_inter_token_seconds.", between),
};

static void
put_histograms(const struct metrics *m, struct out *o, const struct histogram_kind *k, size_t n,
               const char *label)
{
    for (size_t i = 0; i < n; i++) {
        put_help(o, k[i].name, "histogram", k[i].sentence);
        for (uint32_t r = 0; r < m->n_models; r++)
            put_histogram(o, k[i].name, label, m->model[r].name,
                          (const void *)((const char *)&m->model[r] + k[i].offset), k[i].bounds,
                          k[i].n);
    }
}

static void
put_counter(const struct metrics *m, struct out *o, const char *name, const char *sentence,
            const char *label, size_t offset)
{
    put_help(o, name, "counter", sentence);
    for (uint32_t r = 0; r < m->n_models; r++) {
        uint64_t v;

        memcpy(&v, (const char *)&m->model[r] + offset, sizeof v);
        out_format(o, "%s{", name);
        put_label(o, label, m->model[r].name);
        out_format(o, "} %llu\n", (unsigned long long)v);
    }
}

static void
put_requests(const struct api *a, struct out *o)
{
    const struct metrics *m = a->metrics;

    put_help(o, "lagan_gateway_requests_total", "counter",
             "Requests that have ended; reason: finish_reason or code of the error.");
    for (uint32_t i = 0; i < m->n_rows; i++) {
        const struct request_row *r = &m->row[i];

        out_format(o,
                   "lagan_gateway_requests_total{route=\"%s\",code=\"%d\",reason=\"%s\",stream=\"%"
                   "s\"} %llu\n",
                   r->route, r->status, r->reason, r->stream ? "true" : "false",
                   (unsigned long long)r->n);
    }
    put_help(o, "lagan_gateway_http_errors_total", "counter",
             "Requests that violate a rule of HTTP or a limit.");
    for (uint32_t i = 0; i < m->n_faults; i++)
        out_format(o, "lagan_gateway_http_errors_total{rule=\"%s\"} %llu\n", m->fault[i].rule,
                   (unsigned long long)m->fault[i].n);
}

/* Writes a gauge of the exchanges of each model that `counts` selects. */
static void
put_open(const struct api *a, struct out *o, const char *name, const char *sentence, bool streams)
{
    const struct metrics *m = a->metrics;

    put_help(o, name, "gauge", sentence);
    for (uint32_t r = 0; r < m->n_models; r++) {
        uint32_t n = 0;

        for (const struct exchange *e = a->first; e; e = e->next)
            n += strcmp(e->model.name, m->model[r].name) == 0 && (!streams || e->stream);
        out_format(o, "%s{", name);
        put_label(o, "model", m->model[r].name);
        out_format(o, "} %u\n", n);
    }
}

static void
put_plain(struct out *o, const char *name, const char *type, const char *sentence, uint64_t v)
{
    put_help(o, name, type, sentence);
    out_format(o, "%s %llu\n", name, (unsigned long long)v);
}

static void
put_connections(const struct api *a, struct out *o)
{
    struct http_counts c;

    if (!a->http) return;
    c = http_counts(a->http);
    put_help(o, "lagan_gateway_connections", "gauge", "Open connections of clients.");
    out_format(o,
               "lagan_gateway_connections{state=\"idle\"} %u\n"
               "lagan_gateway_connections{state=\"reading\"} %u\n"
               "lagan_gateway_connections{state=\"exchange\"} %u\n",
               c.idle, c.reading, c.exchanges);
    put_plain(o, "lagan_gateway_connections_total", "counter", "Accepted connections.", c.accepted);
    put_plain(o, "lagan_gateway_connections_refused_total", "counter",
              "Connections that were closed because of a limit.", c.refused);
    put_plain(o, "lagan_gateway_bytes_sent_total", "counter", "Bytes sent to clients.",
              c.bytes_sent);
}

static void
put_own(const struct api *a, struct out *o)
{
    const struct metrics *m = a->metrics;

    put_requests(a, o);
    put_histograms(m, o, kinds, ARRAY_LEN(kinds), "model");
    put_counter(m, o, "lagan_gateway_prompt_tokens_total", "Tokens of prompts.", "model",
                offsetof(struct model_row, prompt_tokens));
    put_counter(m, o, "lagan_gateway_completion_tokens_total", "Generated tokens.", "model",
                offsetof(struct model_row, completion_tokens));
    put_counter(m, o, "lagan_gateway_cached_tokens_total",
                "Tokens of prompts whose KV was in the prefix cache.", "model",
                offsetof(struct model_row, cached_tokens));
    put_open(a, o, "lagan_gateway_requests_in_flight", "Requests that have no complete response.",
             false);
    put_open(a, o, "lagan_gateway_streams", "Streamed responses that are open.", true);
    put_connections(a, o);
    put_plain(o, "lagan_gateway_disconnects_total", "counter",
              "Requests whose client left before the end.", m->disconnects);
    put_plain(o, "lagan_gateway_events_total", "counter", "Events written to streams.", m->events);
    put_plain(o, "lagan_gateway_events_joined_total", "counter",
              "Events that have the text of several tokens.", m->joined);
    put_plain(o, "lagan_gateway_lagand_up", "gauge", "1: lagand is reachable.", m->up);
    put_help(o, "lagan_gateway_build_info", "gauge", "1; label version: of the gateway.");
    out_format(o, "lagan_gateway_build_info{version=\"%s\"} 1\n", a->c.version);
}

/* ---- vLLM's names for numbers of lagand's text */

/* One line NAME{LABELS} VALUE of lagand's text. */
struct sample {
    struct http_text labels, worker, model; /* worker: "0" of w0 */
    double value;
};

static struct http_text
label_of(struct http_text labels, const char *start)
{
    const char *at = memmem(labels.p, labels.n, start, strlen(start)), *end = labels.p + labels.n;

    if (!at) return (struct http_text){ "", 0 };
    at += strlen(start);
    return (struct http_text){ at, strcspn(at, "\"") < (size_t)(end - at) ? strcspn(at, "\"") : 0 };
}

/* Reads the next line with this name, from *at on, and moves *at behind it. Returns false if there
 * is none. */
static bool
next_sample(const char **at, const char *name, struct sample *s)
{
    size_t len = strlen(name);

    while (**at) {
        const char *line = *at, *end = strchr(line, '\n'), *close;

        *at = end ? end + 1 : line + strlen(line);
        if (strncmp(line, name, len) != 0 || line[len] != '{') continue;
        close = memmem(line, (size_t)(*at - line), "} ", 2);
        if (!close) continue;
        s->labels = (struct http_text){ line + len + 1, (size_t)(close - line) - len - 1 };
        s->worker = label_of(s->labels, "worker=\"w");
        s->model = label_of(s->labels, "model=\"");
        s->value = strtod(close + 2, NULL);
        return true;
    }
    return false;
}

static void
put_sample(struct out *o, const char *name, const struct sample *s, double value)
{
    out_format(o, "%s{model_name=\"%.*s\",engine=\"%.*s\"} ", name, (int)s->model.n, s->model.p,
               (int)s->worker.n, s->worker.p);
    out_f64(o, value);
    out_put(o, "\n");
}

static bool
equal(struct http_text a, struct http_text b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

/* Writes for each worker the share of the fullest group of its KV cache. */
static void
put_kv_usage(struct out *o, const char *text)
{
    const char *name = "vllm:kv_cache_usage_perc";
    struct sample worker, used, blocks;

    put_help(o, name, "gauge", "Used share of the fullest pool of KV blocks, from 0 to 1.");
    for (const char *w = text; next_sample(&w, "lagan_worker_running", &worker);) {
        double most = 0;

        for (const char *u = text; next_sample(&u, "lagan_kv_used", &used);)
            for (const char *b = text; next_sample(&b, "lagan_kv_blocks", &blocks);)
                if (equal(used.labels, blocks.labels) && equal(used.worker, worker.worker) &&
                    blocks.value > 0)
                    most = MAX(most, used.value / blocks.value);
        put_sample(o, name, &worker, most);
    }
}

static void
put_vllm(const struct api *a, struct out *o)
{
    static const struct {
        const char *ours, *name, *type, *sentence;
    } rows[] = {
        { "lagan_worker_running", "vllm:num_requests_running", "gauge", "Running sequences." },
        { "lagan_worker_waiting", "vllm:num_requests_waiting", "gauge",
          "Sequences that wait in the worker; with one model also requests that wait in lagand." },
        { "lagan_worker_prompt_tokens_total", "vllm:prompt_tokens_total", "counter",
          "Computed tokens of prompts." },
        { "lagan_worker_generation_tokens_total", "vllm:generation_tokens_total", "counter",
          "Generated tokens." },
        { "lagan_worker_preemptions_total", "vllm:num_preemptions_total", "counter",
          "Preempted sequences." },
        { "lagan_worker_prefix_cache_queries_total", "vllm:prefix_cache_queries_total", "counter",
          "Tokens that were looked up in the prefix cache." },
        { "lagan_worker_prefix_cache_hits_total", "vllm:prefix_cache_hits_total", "counter",
          "Tokens that were found in the prefix cache." },
    };
    const struct metrics *m = a->metrics;
    const char *text = m->lagand.p, *queued;
    struct sample s;
    bool connected, draining;
    uint32_t n_models;

    put_histograms(m, o, vllm_kinds, ARRAY_LEN(vllm_kinds), "model_name");
    if (!m->up) return;
    (void)a->b.models(a->b.ctx, &n_models, &connected, &draining);
    queued = n_models == 1 ? strstr(text, "\nlagan_requests_queued ") : NULL;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        double more = i == 1 && queued ? strtod(strchr(queued, ' '), NULL) : 0;

        put_help(o, rows[i].name, rows[i].type, rows[i].sentence);
        for (const char *at = text; next_sample(&at, rows[i].ours, &s); more = 0)
            put_sample(o, rows[i].name, &s, s.value + more);
    }
    put_kv_usage(o, text);
}

static void
respond(struct exchange *e)
{
    const struct metrics *m = e->a->metrics;
    struct out o = { 0 };

    put_own(e->a, &o);
    if (m->up) out_bytes(&o, m->lagand.p, m->lagand.n);
    put_vllm(e->a, &o);
    exchange_respond(e, "text/plain; version=0.0.4; charset=utf-8", &o);
}

/* ---- lagand's text */

static void
take_text(struct api *a, void *owner, const struct lagan_event *ev)
{
    struct metrics *m = owner;
    struct exchange *next;
    struct json j;

    m->asking = m->up = false;
    m->lagand.n = 0;
    if (ev->kind == LAGAN_EVENT_REPLY) {
        json_open(&j, ev->text, ev->text_len);
        while (!m->up && json_next(&j, NULL) == 0 && j.kind != JSON_END) {
            if (j.kind != JSON_KEY || !json_is(&j, "text")) continue;
            if (json_next(&j, NULL) == 0 && j.kind == JSON_STRING &&
                out_space(&m->lagand, j.text_len + 1)) {
                m->lagand.n = (size_t)json_unescape(&j, m->lagand.p,
                                                    j.text_len + 1); /* and a NUL */
                m->up = true;
            }
        }
    }
    for (struct exchange *e = a->first; e; e = next) {
        next = e->next;
        if (e->waits && !e->vocabulary) respond(e);
    }
}

int
metrics_run(struct exchange *e, struct fault *f)
{
    struct api *a = e->a;
    struct metrics *m = a->metrics;
    struct err err;
    uint32_t n;
    bool connected, draining;

    (void)f;
    (void)a->b.models(a->b.ctx, &n, &connected, &draining);
    if (!m->asking && (!m->asked || a->now - m->asked >= ASK_EVERY)) {
        m->asked = a->now;
        m->up = connected && api_call(a, 0, "metrics", "{}", take_text, m, &err) == 0;
        m->asking = m->up;
    }
    if (m->asking)
        e->waits = true; /* take_text() responds */
    else
        respond(e);
    return 0;
}
