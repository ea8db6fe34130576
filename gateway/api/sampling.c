/* sampling.c - the fields that chat and completions share, to the keys of a request of lagand. */
#include "gateway/api/api_internal.h"

#include "include/lagan_wire.h"

#include <stdio.h>

int
set_result(int r, const char *param, struct fault *f)
{
    if (r >= 0 || r == -ENOMEM) return r;
    return fault_set(f, r == -EMSGSIZE ? API_E_TOO_LONG : API_E_INVALID_VALUE, param, "%s",
                     lagan_errmsg(NULL));
}

static bool
is_on(const struct value *v)
{
    return v->given && v->b;
}

static int64_t
integer(const struct value *v, int64_t absent)
{
    return v->given ? v->i : absent;
}

static double
number(const struct value *v, double absent)
{
    return v->given ? v->f : absent;
}

/* ---- reading and checks */

static int
read_stream_options(struct exchange *e, const struct value *v, struct fault *f)
{
    struct json j;
    char name[96];

    if (!v->given) return 0;
    if (!e->stream)
        return fault_set(f, API_E_INVALID_VALUE, "stream_options",
                         "stream_options is only allowed with stream: true");
    json_open(&j, v->raw.p, v->raw.n);
    if (json_next(&j, NULL) < 0 || j.kind != JSON_OBJECT)
        return fault_set(f, API_E_INVALID_TYPE, "stream_options",
                         "stream_options must be an object");
    while (json_next(&j, NULL) == 0 && j.kind != JSON_OBJECT_END) {
        bool usage = json_is(&j, "include_usage"), known = json_is(&j, "include_obfuscation"),
             continuous = json_is(&j, "continuous_usage_stats");

        snprintf(name, sizeof name, "stream_options.%.*s", (int)MIN(j.text_len, (size_t)48),
                 j.text);
        TRY(json_next(&j, NULL));
        if (!usage && !known && !continuous) body_ignore(e->body, name, strlen(name));
        if ((usage || continuous) && j.kind != JSON_TRUE && j.kind != JSON_FALSE &&
            j.kind != JSON_NULL)
            return fault_set(f, API_E_INVALID_TYPE, name, "%s must be true or false", name);
        if (usage) e->include_usage = j.kind == JSON_TRUE;
        if (continuous) e->usage_in_events = j.kind == JSON_TRUE;
        TRY(json_skip(&j, NULL));
    }
    return 0;
}

static int
read_outputs(struct exchange *e, uint32_t *n, struct fault *f)
{
    const struct value *v = e->body->v;
    int64_t wanted = integer(&v[F_n], 1), best = integer(&v[F_best_of], wanted);

    if (wanted > e->a->c.max_n)
        return fault_set(f, API_E_INVALID_VALUE, "n", "n is %lld; the limit is %u",
                         (long long)wanted, e->a->c.max_n);
    if (best != wanted && !is_on(&v[F_use_beam_search]))
        return fault_set(
            f, API_E_UNSUPPORTED, "best_of",
            "best_of is %lld and n is %lld; without use_beam_search they must be equal",
            (long long)best, (long long)wanted);
    if (best < wanted)
        return fault_set(f, API_E_INVALID_VALUE, "best_of", "best_of is %lld, but n is %lld",
                         (long long)best, (long long)wanted);
    *n = (uint32_t)wanted;
    return 0;
}

/* Reads the number of tokens: e->body's fields to *ret; *fit: what fits is enough. */
static int
read_max_tokens(struct exchange *e, uint64_t *ret, bool *fit, struct fault *f)
{
    const struct value *v = e->body->v, *old = &v[F_max_tokens], *new = &v[F_max_completion_tokens];
    uint64_t configured = e->a->c.default_max_tokens;

    if (old->given && new->given && old->i != new->i)
        return fault_set(f, API_E_INVALID_VALUE, "max_tokens",
                         "max_tokens is %lld and max_completion_tokens is %lld; send one of them",
                         (long long)old->i, (long long)new->i);
    *fit = false;
    if (old->given || new->given) {
        *ret = (uint64_t)(new->given ? new->i : old->i);
        return 0;
    }
    *ret = API_COMPLETION_TOKENS;
    if (e->route->fields != ON_CHAT) return 0;
    *fit = true;
    if (!configured) configured = e->model.no_evict ? API_AUTO_TOKENS : UINT64_MAX;
    *ret = MIN(configured, (uint64_t)LAGAN_MAX_TOKENS);
    if (configured != UINT64_MAX) e->set_max_tokens = (uint32_t)*ret;
    return 0;
}

static int
check_zero_tokens(struct exchange *e, struct fault *f)
{
    const struct value *v = e->body->v, *old = &v[F_max_tokens], *new = &v[F_max_completion_tokens];

    if (!(new->given ? new->i == 0 : old->given && old->i == 0)) return 0;
    e->hide_output = true;
    if (is_on(&v[F_echo]) || v[F_prompt_logprobs].given) return 0;
    return fault_set(f, API_E_INVALID_VALUE, new->given ? "max_completion_tokens" : "max_tokens",
                     "%s is 0, which is only allowed with %sprompt_logprobs",
                     new->given ? "max_completion_tokens" : "max_tokens",
                     e->route->fields == ON_CHAT ? "" : "echo or ");
}

static int
read_logprobs(struct exchange *e, struct fault *f)
{
    const struct value *v = e->body->v;
    bool chat = e->route->fields == ON_CHAT;

    if (chat && v[F_top_logprobs].given && !is_on(&v[F_chat_logprobs]))
        return fault_set(f, API_E_INVALID_VALUE, "top_logprobs",
                         "top_logprobs is only allowed with logprobs: true");
    e->logprobs = chat ? is_on(&v[F_chat_logprobs]) : v[F_logprobs].given;
    e->n_top = (uint32_t)(chat ? integer(&v[F_top_logprobs], 0) : integer(&v[F_logprobs], 0));
    e->prompt_logprobs = v[F_prompt_logprobs].given;
    e->n_prompt_top = (uint32_t)integer(&v[F_prompt_logprobs], 0);
    if (e->prompt_logprobs && e->stream)
        return fault_set(f, API_E_UNSUPPORTED, "prompt_logprobs",
                         "prompt_logprobs is not served with stream: true");
    if (e->echo && e->logprobs && !e->prompt_logprobs) e->n_prompt_top = e->n_top;
    e->token_ids = is_on(&v[F_return_token_ids]);
    e->names_as_ids = is_on(&v[F_return_tokens_as_token_ids]);
    e->keep_tokens = e->logprobs || e->token_ids;
    return 0;
}

int
sampling_read(struct exchange *e, uint32_t *n, struct fault *f)
{
    const struct value *v = e->body->v;
    struct json j;

    e->stream = is_on(&v[F_stream]);
    e->echo = is_on(&v[F_echo]);
    e->has_stop = v[F_stop].given;
    e->interval = (uint32_t)integer(&v[F_stream_interval], 1);
    if (v[F_user].given) {
        json_open(&j, v[F_user].raw.p, v[F_user].raw.n);
        if (json_next(&j, NULL) == 0)
            snprintf(e->user, sizeof e->user, "%.*s", (int)MIN(j.text_len, (size_t)128), j.text);
    }
    TRY(read_stream_options(e, &v[F_stream_options], f));
    TRY(read_outputs(e, n, f));
    TRY(check_zero_tokens(e, f));
    return read_logprobs(e, f);
}

/* ---- keys of lagand */

static int
set_int(struct prompt *p, const char *key, int64_t v, struct fault *f)
{
    return set_result(lagan_set_int(p->request, key, v), key, f);
}

static int
set_float(struct prompt *p, const char *key, double v, struct fault *f)
{
    return set_result(lagan_set_float(p->request, key, v), key, f);
}

static int
set_string(struct exchange *e, struct prompt *p, const char *key, const struct value *v,
           struct fault *f)
{
    struct http_text text;
    struct json j;

    json_open(&j, v->raw.p, v->raw.n);
    TRY(json_next(&j, NULL));
    text = body_string(e->body, &j, false);
    if (!text.p) return -ENOMEM;
    return set_result(lagan_set_str(p->request, key, text.p, text.n), key, f);
}

/* Sets the keys of all fields that lagand gets as they are. */
static int
set_passed(struct exchange *e, struct prompt *p, struct fault *f)
{
    for (enum field i = 0; i < N_FIELDS; i++) {
        const struct field_row *row = &field_rows[i];
        const struct value *v = &e->body->v[i];

        if (row->use != FIELD_PASSED || !v->given) continue;
        switch (row->kind) {
        case FIELD_BOOL:
            TRY(set_result(lagan_set_bool(p->request, row->arg, v->b), row->name, f));
            break;
        case FIELD_INT:
            TRY(set_int(p, row->arg, v->i, f));
            break;
        case FIELD_NUM:
            TRY(set_float(p, row->arg, v->f, f));
            break;
        case FIELD_STR:
            TRY(set_string(e, p, row->arg, v, f));
            break;
        case FIELD_JSON:
            break;
        }
    }
    return 0;
}

/* Sets temperature, top_p, top_k, min_p and repetition_penalty: what is absent is the model's. */
static int
set_sampling(struct exchange *e, struct prompt *p, struct fault *f)
{
    const struct value *v = e->body->v;
    const struct api_model *m = &e->model;
    double temperature = number(&v[F_temperature], m->temperature),
           top_p = number(&v[F_top_p], m->top_p);
    int64_t top_k = integer(&v[F_top_k], m->top_k);
    bool beams = is_on(&v[F_use_beam_search]);

    if (temperature < 1e-5 || top_p <= 0 || (beams && !v[F_temperature].given)) {
        temperature = 0;
        top_p = 1;
    }
    if (temperature == 0 && e->n > 1 && !beams)
        return fault_set(
            f, API_E_INVALID_VALUE, "n",
            "n is %u, but the temperature is 0, so all outputs would be equal; use n 1 or "
            "a higher temperature",
            e->n);
    /* liblagan has no integers above INT64_MAX: a negative seed loses its sign bit */
    if (v[F_seed].given) TRY(set_int(p, "seed", v[F_seed].i & INT64_MAX, f));
    TRY(set_float(p, "temperature", temperature, f));
    TRY(set_float(p, "top_p", top_p, f));
    TRY(set_int(p, "top_k", MAX(top_k, (int64_t)0), f));
    TRY(set_float(p, "min_p", number(&v[F_min_p], m->min_p), f));
    return set_float(p, "repetition_penalty",
                     number(&v[F_repetition_penalty], m->repetition_penalty), f);
}

static int
set_beams(struct exchange *e, struct prompt *p, struct fault *f)
{
    const struct value *v = e->body->v, *early = &v[F_early_stopping];
    int64_t width = MAX(integer(&v[F_beam_width], 1), integer(&v[F_best_of], 1));
    struct json j;

    if (e->n > 1) TRY(set_int(p, "n", e->n, f));
    if (v[F_beam_width].given && !is_on(&v[F_use_beam_search]))
        return fault_set(f, API_E_INVALID_VALUE, "beam_width",
                         "beam_width is only allowed with use_beam_search: true");
    if (is_on(&v[F_use_beam_search])) TRY(set_int(p, "beams", MAX(width, (int64_t)e->n), f));
    if (!early->given) return 0;
    json_open(&j, early->raw.p, early->raw.n);
    TRY(json_next(&j, NULL));
    if (j.kind == JSON_TRUE || j.kind == JSON_FALSE)
        return set_result(lagan_set_bool(p->request, "early_stopping", j.kind == JSON_TRUE),
                          "early_stopping", f);
    if (j.kind == JSON_STRING && json_is(&j, "never"))
        return set_result(lagan_set_str(p->request, "early_stopping", "never", 5), "early_stopping",
                          f);
    return fault_set(f, API_E_INVALID_TYPE, "early_stopping",
                     "early_stopping must be true, false or \"never\"");
}

/* Adds one stop string to list[*n]. */
static int
add_stop(struct exchange *e, const struct json *j, const char *path, const char **list, uint32_t *n,
         struct fault *f)
{
    struct http_text text;

    if (j->kind != JSON_STRING)
        return fault_set(f, API_E_INVALID_TYPE, path, "%s must be a string", path);
    if (*n == LAGAN_MAX_STOPS)
        return fault_set(f, API_E_INVALID_VALUE, "stop", "stop has more than %d strings",
                         LAGAN_MAX_STOPS);
    text = body_string(e->body, j, true);
    if (!text.p) return -ENOMEM;
    if (!text.n || text.n > LAGAN_MAX_STOP || memchr(text.p, 0, text.n))
        return fault_set(f, API_E_INVALID_VALUE, path,
                         "%s has %zu bytes; the limits are 1 and %d, without NUL", path, text.n,
                         LAGAN_MAX_STOP);
    list[(*n)++] = text.p;
    return 0;
}

static int
set_stop(struct exchange *e, struct prompt *p, struct fault *f)
{
    const struct value *v = &e->body->v[F_stop];
    const char *list[LAGAN_MAX_STOPS];
    char path[32];
    struct json j;
    uint32_t n = 0;

    if (!v->given) return 0;
    json_open(&j, v->raw.p, v->raw.n);
    TRY(json_next(&j, NULL));
    if (j.kind == JSON_ARRAY)
        for (uint32_t i = 0; json_next(&j, NULL) == 0 && j.kind != JSON_ARRAY_END; i++) {
            snprintf(path, sizeof path, "stop[%u]", i);
            TRY(add_stop(e, &j, path, list, &n, f));
        }
    else
        TRY(add_stop(e, &j, "stop", list, &n, f));
    return n ? set_result(lagan_set_strs(p->request, "stop", list, n), "stop", f) : 0;
}

/* Reads a member "ID": bias of logit_bias. */
static int
read_bias(const struct exchange *e, struct json *j, token_id *id, float *bias, struct fault *f)
{
    char path[96], *end, text[16];
    unsigned long v;
    double d;
    bool digits = j->text_len > 0 && j->text_len < 11 && !j->escaped;

    snprintf(path, sizeof path, "logit_bias.%.*s", (int)MIN(j->text_len, (size_t)64), j->text);
    for (size_t i = 0; digits && i < j->text_len; i++)
        digits = j->text[i] >= '0' && j->text[i] <= '9';
    snprintf(text, sizeof text, "%.*s", digits ? (int)j->text_len : 0, j->text);
    v = strtoul(text, &end, 10);
    if (!digits || v >= e->model.vocabulary)
        return fault_set(f, API_E_INVALID_VALUE, path,
                         "%s: the key must be a token id of the model, 0 to %u", path,
                         e->model.vocabulary - 1);
    TRY(json_next(j, NULL));
    if (j->kind != JSON_NUMBER)
        return fault_set(f, API_E_INVALID_TYPE, path, "%s must be a number", path);
    if (json_f64(j, &d) < 0 || d < -100 || d > 100)
        return fault_set(f, API_E_INVALID_VALUE, path, "%s is %.*s; the limits are -100 and 100",
                         path, (int)MIN(j->text_len, (size_t)64), j->text);
    *id = (token_id)v;
    *bias = (float)d;
    return 0;
}

static int
set_bias(struct exchange *e, struct prompt *p, struct fault *f)
{
    const struct value *v = &e->body->v[F_logit_bias];
    token_id ids[LAGAN_MAX_BIAS];
    float bias[LAGAN_MAX_BIAS];
    struct json j;
    uint32_t n = 0;

    if (!v->given) return 0;
    json_open(&j, v->raw.p, v->raw.n);
    if (json_next(&j, NULL) < 0 || j.kind != JSON_OBJECT)
        return fault_set(f, API_E_INVALID_TYPE, "logit_bias", "logit_bias must be an object");
    while (json_next(&j, NULL) == 0 && j.kind != JSON_OBJECT_END) {
        if (n == LAGAN_MAX_BIAS)
            return fault_set(f, API_E_INVALID_VALUE, "logit_bias",
                             "logit_bias has more than %d entries", LAGAN_MAX_BIAS);
        TRY(read_bias(e, &j, &ids[n], &bias[n], f));
        n++;
    }
    return n ? set_result(lagan_set_bias(p->request, "logit_bias", ids, bias, n), "logit_bias", f)
             : 0;
}

static int
set_stop_ids(struct exchange *e, struct prompt *p, struct fault *f)
{
    token_id ids[LAGAN_MAX_STOPS];
    int n;

    if (!e->body->v[F_stop_token_ids].given) return 0;
    n = ids_read(e, F_stop_token_ids, ids, LAGAN_MAX_STOPS, f);
    if (n <= 0) return n;
    return set_result(lagan_set_ids(p->request, "stop_ids", ids, (size_t)n), "stop_token_ids", f);
}

/* Reads a number of a header field. Returns 1: it is there, 0: absent. */
static int
read_header(const struct exchange *e, const char *name, double least, double most, double *ret,
            struct fault *f)
{
    struct http_text t = http_field(e->x, name, 0);
    char text[32], *end;

    if (!t.p) return 0;
    snprintf(text, sizeof text, "%.*s", (int)MIN(t.n, sizeof text - 1), t.p);
    *ret = strtod(text, &end);
    if (t.n && t.n < sizeof text && !*end && text[0] >= '0' && text[0] <= '9' && *ret >= least &&
        *ret <= most)
        return 1;
    return fault_set(f, API_E_INVALID_VALUE, name, "%s is %s; the limits are %.16g and %.16g", name,
                     text, least, most);
}

static int
set_scheduling(struct exchange *e, struct prompt *p, struct fault *f)
{
    const struct value *v = &e->body->v[F_priority];
    double priority = 0.5 - 0.05 * (double)integer(v, 0), deadline;
    int given = read_header(e, "X-Lagan-Priority", 0, 1, &priority, f), r;

    if (given < 0) return given;
    if (given || v->given) TRY(set_float(p, "priority", priority, f));
    r = read_header(e, "X-Lagan-Deadline-Ms", 1, 86400000, &deadline, f);
    if (r < 0) return r;
    if (r) TRY(set_int(p, "deadline_ms", (int64_t)deadline, f));
    TRY(set_int(p, "disconnect_timeout_ms", API_DISCONNECT_MS, f));
    return set_result(lagan_set_str(p->request, "request_id", http_request_id(e->x),
                                    strlen(http_request_id(e->x))),
                      "X-Request-Id", f);
}

int
sampling_request(struct exchange *e, struct prompt *p, struct fault *f)
{
    uint64_t max_tokens = 0;
    bool fit = false, prompt_logprobs = e->prompt_logprobs || (e->echo && e->logprobs);

    TRY(set_result(lagan_set_str(p->request, "model", e->model.name, strlen(e->model.name)),
                   "model", f));
    TRY(read_max_tokens(e, &max_tokens, &fit, f));
    TRY(set_int(p, "max_tokens", (int64_t)MAX(max_tokens, (uint64_t)1), f));
    if (fit) TRY(set_result(lagan_set_bool(p->request, "fit", 1), "max_tokens", f));
    TRY(set_passed(e, p, f));
    TRY(set_sampling(e, p, f));
    TRY(set_beams(e, p, f));
    TRY(set_stop(e, p, f));
    TRY(set_stop_ids(e, p, f));
    TRY(set_bias(e, p, f));
    if (e->logprobs) TRY(set_int(p, "logprobs", e->n_top, f));
    if (prompt_logprobs) TRY(set_int(p, "prompt_logprobs", e->n_prompt_top, f));
    return set_scheduling(e, p, f);
}
