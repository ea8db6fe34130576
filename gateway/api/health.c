/* health.c - the routes /health, /ping and /version. */
#include "gateway/api/api_internal.h"

/* Returns the value of a parameter of the query; p NULL: absent. It is not percent-decoded: names
 * of models have no characters that need it, or do not match. */
static struct http_text
parameter(struct http_text query, const char *name)
{
    size_t len = strlen(name);

    for (const char *p = query.p, *end = query.p ? query.p + query.n : NULL; p < end;) {
        const char *next = memchr(p, '&', (size_t)(end - p));
        size_t n = (size_t)((next ? next : end) - p);

        if (n > len && memcmp(p, name, len) == 0 && p[len] == '=')
            return (struct http_text){ p + len + 1, n - len - 1 };
        p += n + 1;
    }
    return (struct http_text){ 0 };
}

/* Fills e->model with the model of the parameter `model`, or the first one that is ready. */
static int
select_model(struct exchange *e, struct fault *f)
{
    uint32_t n;
    const struct api_model *all = models_reach(e->a, &n, f), *m = NULL;
    struct http_text name = parameter(http_query(e->x), "model");

    if (!all) return -EINVAL;
    if (name.p && !(m = model_find(e->a, all, n, name))) return model_missing(all, n, name, f);
    for (uint32_t i = 0; i < n && !m; i++)
        if (all[i].ready) m = &all[i];
    if (!m || !m->ready)
        return fault_set(f, API_E_LOADING, NULL, "%s loaded yet; try again",
                         m ? "the model is not" : "no model is");
    e->model = *m;
    return 0;
}

void
health_respond(struct exchange *e)
{
    struct out o = { 0 };

    out_put(&o, "{\"status\":\"ok\"}");
    exchange_respond(e, JSON_TYPE, &o);
}

int
health_run(struct exchange *e, struct fault *f)
{
    TRY(select_model(e, f));
    health_respond(e);
    return 0;
}

int
live_run(struct exchange *e, struct fault *f)
{
    (void)f;
    health_respond(e);
    return 0;
}

/* Generates one token: a request that is never in the prefix cache, because its salt is new. */
int
generate_run(struct exchange *e, struct fault *f)
{
    struct lagan_request *r;

    for (const struct exchange *other = e->a->first; other; other = other->next)
        if (other != e && other->route == e->route && other->n_prompts && !other->ending)
            return fault_set(f, API_E_QUEUE_FULL, NULL, "another /health/generate runs; try again");
    TRY(select_model(e, f));
    exchange_new_id(e, "");
    e->hide_output = true;
    TRY(exchange_prompts(e, 1, 1));
    r = e->prompt->request;
    TRY(set_result(lagan_set_str(r, "model", e->model.name, strlen(e->model.name)), NULL, f));
    TRY(set_result(lagan_set_ids(r, "ids", (const token_id[]){ 0 }, 1), NULL, f));
    TRY(set_result(lagan_set_int(r, "max_tokens", 1), NULL, f));
    TRY(set_result(lagan_set_int(r, "deadline_ms", 10000), NULL, f));
    TRY(set_result(lagan_set_str(r, "cache_salt", e->id, strlen(e->id)), NULL, f));
    return exchange_submit(e, f);
}

int
version_run(struct exchange *e, struct fault *f)
{
    struct out o = { 0 };

    (void)f;
    out_format(&o, "{\"version\":\"%s\"}", e->a->c.version);
    exchange_respond(e, JSON_TYPE, &o);
    return 0;
}
