/* models.c - served models and their aliases: selection for a request, and the routes
 * /v1/models. */
#include "gateway/api/api_internal.h"

#include <stdio.h>
#include <strings.h>

/* One line "ALIAS NAME" of the configuration. */
struct alias {
    struct http_text alias, name;
};

/* Reads the line at *at and moves *at behind it. Returns false at the end. */
static bool
next_alias(const char **at, struct alias *ret)
{
    const char *line = *at;
    size_t n, word;

    if (!line || !*line) return false;
    n = strcspn(line, "\n");
    word = MIN(strcspn(line, " \n"), n);
    ret->alias = (struct http_text){ line, word };
    ret->name = (struct http_text){ line + MIN(word + 1, n), n - MIN(word + 1, n) };
    *at = line + n + (line[n] == '\n');
    return true;
}

static bool
equal(struct http_text a, struct http_text b)
{
    return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

int
models_check_aliases(const char *aliases, struct err *e)
{
    struct alias a, b;

    for (const char *at = aliases; next_alias(&at, &a);) {
        if (!a.alias.n || !a.name.n || a.alias.n > 256 || a.name.n > 256)
            return err_set(e, -EINVAL,
                           "models: \"%.*s\" is not ALIAS NAME with at most 256 bytes each",
                           (int)MIN(a.alias.n + a.name.n + 1, (size_t)64), a.alias.p);
        for (const char *other = aliases; next_alias(&other, &b);) {
            if (equal(a.name, b.alias))
                return err_set(e, -EINVAL, "models: alias %.*s names the alias %.*s; name a model",
                               (int)MIN(a.alias.n, (size_t)64), a.alias.p,
                               (int)MIN(b.alias.n, (size_t)64), b.alias.p);
            if (a.alias.p != b.alias.p && equal(a.alias, b.alias))
                return err_set(e, -EINVAL, "models: alias %.*s is given twice",
                               (int)MIN(a.alias.n, (size_t)64), a.alias.p);
        }
    }
    return 0;
}

static const struct api_model *
find_model(const struct api_model *m, uint32_t n, struct http_text name)
{
    for (uint32_t i = 0; i < n; i++)
        if (equal(name, (struct http_text){ m[i].name, strlen(m[i].name) })) return &m[i];
    return NULL;
}

const struct api_model *
model_find(const struct api *a, const struct api_model *m, uint32_t n, struct http_text name)
{
    const struct api_model *found = find_model(m, n, name);
    struct alias alias;

    for (const char *at = a->c.aliases; !found && next_alias(&at, &alias);)
        if (equal(alias.alias, name)) found = find_model(m, n, alias.name);
    return found;
}

int
model_missing(const struct api_model *m, uint32_t n, struct http_text name, struct fault *f)
{
    size_t len;

    (void)fault_set(f, API_E_MODEL_NOT_FOUND, "model", "the model %.*s is not served%s",
                    (int)MIN(name.n, (size_t)64), name.p, n ? "; served are: " : "");
    for (uint32_t i = 0; i < MIN(n, 10u); i++) {
        len = strlen(f->text);
        snprintf(f->text + len, sizeof f->text - len, "%s%.80s", i ? ", " : "", m[i].name);
    }
    return -EINVAL;
}

const struct api_model *
models_reach(const struct api *a, uint32_t *n, struct fault *f)
{
    bool connected, draining;
    const struct api_model *m = a->b.models(a->b.ctx, n, &connected, &draining);

    if (!connected)
        (void)fault_set(f, API_E_UNREACHABLE, NULL, "lagand is not reachable; try again");
    else if (draining || a->draining)
        (void)fault_set(f, API_E_DRAINING, NULL, "%s drains and takes no new requests",
                        draining ? "lagand" : "the gateway");
    return connected && !draining && !a->draining ? m : NULL;
}

/* Returns the value of field `model` in text; n 0: it is absent. */
static struct http_text
model_name(const struct exchange *e, char text[257])
{
    const struct value *v = &e->body->v[F_model];
    struct json j;

    if (!v->given) return (struct http_text){ "", 0 };
    json_open(&j, v->raw.p, v->raw.n);
    if (json_next(&j, NULL) < 0) return (struct http_text){ "", 0 };
    return (struct http_text){ text, (size_t)json_unescape(&j, text, 257) };
}

int
model_select(struct exchange *e, struct fault *f)
{
    char text[257];
    struct http_text name;
    uint32_t n;
    const struct api_model *all = models_reach(e->a, &n, f), *m;

    if (!all) return -EINVAL;
    name = model_name(e, text);
    if (!name.n && n != 1)
        return fault_set(f, API_E_MISSING, "model", "model is absent, and %u models are served", n);
    m = name.n ? model_find(e->a, all, n, name) : all;
    if (!m) return model_missing(all, n, name, f);
    /* While a worker is replaced, lagand queues the requests of its model. */
    if (!m->ready && !m->since)
        return fault_set(f, API_E_LOADING, "model", "the model %.80s is not loaded yet; try again",
                         m->name);
    e->model = *m;
    snprintf(e->asked, sizeof e->asked, "%.*s", name.n ? (int)name.n : 256,
             name.n ? name.p : m->name);
    return 0;
}

/* Writes an entry without its last brace. */
static void
put_model(struct out *o, struct http_text id, const struct api_model *m)
{
    out_put(o, "{\"id\":");
    out_string(o, id.p, id.n);
    out_format(o, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"lagan\",\"root\":",
               (unsigned long long)m->since);
    out_string(o, m->name, strlen(m->name));
    out_format(o, ",\"parent\":null,\"max_model_len\":%u", m->max_len);
}

int
models_run(struct exchange *e, struct fault *f)
{
    struct out o = { 0 };
    struct alias alias;
    uint32_t n, written = 0;
    const struct api_model *all = models_reach(e->a, &n, f), *m;

    if (!all) return -EINVAL;
    out_put(&o, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < n; i++) {
        if (written++) out_put(&o, ",");
        put_model(&o, (struct http_text){ all[i].name, strlen(all[i].name) }, &all[i]);
        out_put(&o, "}");
    }
    for (const char *at = e->a->c.aliases; next_alias(&at, &alias);) {
        m = find_model(all, n, alias.name);
        if (!m || find_model(all, n, alias.alias)) continue;
        if (written++) out_put(&o, ",");
        put_model(&o, alias.alias, m);
        out_put(&o, "}");
    }
    out_put(&o, "]}");
    exchange_respond(e, JSON_TYPE, &o);
    return 0;
}

/* Returns the rest of a path behind `prefix`, with %2F decoded: clients write an id with a slash in
 * either form. */
static struct http_text
id_of(struct http_text path, const char *prefix, char id[257])
{
    struct http_text t = { id, 0 };

    for (size_t i = strlen(prefix); i < path.n && t.n < 256; i++) {
        bool slash = path.n - i >= 3 && strncasecmp(path.p + i, "%2f", 3) == 0;

        id[t.n++] = slash ? '/' : path.p[i];
        if (slash) i += 2;
    }
    return t;
}

int
model_run(struct exchange *e, struct fault *f)
{
    struct out o = { 0 };
    char text[257];
    uint32_t n;
    const struct api_model *all = models_reach(e->a, &n, f), *m;
    struct http_text id = id_of(http_path(e->x), "/v1/models/", text);

    if (!all) return -EINVAL;
    m = model_find(e->a, all, n, id);
    if (!m) return model_missing(all, n, id, f);
    put_model(&o, id, m);
    out_put(&o, ",\"defaults\":{\"temperature\":");
    out_f64(&o, m->temperature);
    out_put(&o, ",\"top_p\":");
    out_f64(&o, m->top_p);
    out_format(&o, ",\"top_k\":%u,\"min_p\":", m->top_k);
    out_f64(&o, m->min_p);
    out_put(&o, ",\"repetition_penalty\":");
    out_f64(&o, m->repetition_penalty);
    out_put(&o, "}}");
    exchange_respond(e, JSON_TYPE, &o);
    return 0;
}
