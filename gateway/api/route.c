/* route.c - the table of routes. */
#include "gateway/api/api_internal.h"

static const struct route routes[] = {
    { HTTP_POST, "/v1/chat/completions", "chat", ON_CHAT, false, chat_run, NULL, NULL },
    { HTTP_POST, "/v1/completions", "completions", ON_COMPLETIONS, false, completions_run, NULL,
      NULL },
    { HTTP_POST, "/v1/embeddings", "embeddings", ON_EMBEDDINGS, false, embeddings_run,
      embeddings_respond, embeddings_tensor },
    { HTTP_GET, "/v1/models", "models", 0, false, models_run, NULL, NULL },
    { HTTP_GET, "/v1/models/*", "model", 0, false, model_run, NULL, NULL },
    { HTTP_POST, "/tokenize", "tokenize", ON_TOKENIZE, false, tokenize_run, NULL, NULL },
    { HTTP_POST, "/v1/tokenize", "tokenize", ON_TOKENIZE, false, tokenize_run, NULL, NULL },
    { HTTP_POST, "/detokenize", "detokenize", ON_DETOKENIZE, false, detokenize_run, NULL, NULL },
    { HTTP_POST, "/v1/detokenize", "detokenize", ON_DETOKENIZE, false, detokenize_run, NULL, NULL },
    { HTTP_POST, "/apply-template", "apply-template", ON_TEMPLATE, false, template_run, NULL,
      NULL },
    { HTTP_POST, "/v1/apply-template", "apply-template", ON_TEMPLATE, false, template_run, NULL,
      NULL },
    { HTTP_GET, "/health", "health", 0, true, health_run, NULL, NULL },
    { HTTP_GET, "/health/ready", "health", 0, true, health_run, NULL, NULL },
    { HTTP_GET, "/ping", "health", 0, true, health_run, NULL, NULL },
    { HTTP_GET, "/health/live", "live", 0, true, live_run, NULL, NULL },
    { HTTP_POST, "/health/generate", "generate", 0, false, generate_run, health_respond, NULL },
    { HTTP_GET, "/metrics", "metrics", 0, true, metrics_run, NULL, NULL },
    { HTTP_GET, "/version", "version", 0, true, version_run, NULL, NULL },
};

static bool
matches(const struct route *r, struct http_text path)
{
    size_t n = strlen(r->path);

    if (r->path[n - 1] == '*') return path.n >= n && memcmp(path.p, r->path, n - 1) == 0;
    return path.n == n && memcmp(path.p, r->path, n) == 0;
}

const struct route *
route_find(enum http_method method, struct http_text path, bool *other_method)
{
    if (method == HTTP_HEAD) method = HTTP_GET;
    *other_method = false;
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        if (!matches(&routes[i], path)) continue;
        if (routes[i].method == method) return &routes[i];
        *other_method = true;
    }
    return NULL;
}

void
route_allowed(struct out *o, struct http_text path)
{
    if (path.n == 1 && path.p[0] == '*') out_put(o, "GET, HEAD, POST, ");
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        if (matches(&routes[i], path))
            out_put(o, routes[i].method == HTTP_GET ? "GET, HEAD, " : "POST, ");
    out_put(o, "OPTIONS");
}
