/* tokens.c - POST /tokenize, /detokenize and /apply-template: calls of verbs of lagand. */
#include "gateway/api/api_internal.h"

/* Finds the value of a key of an object. Returns false if there is none. */
static bool
find_value(const char *json, const char *key, struct json *ret)
{
    json_open(ret, json, strlen(json));
    if (json_next(ret, NULL) < 0 || ret->kind != JSON_OBJECT) return false;
    while (json_next(ret, NULL) == 0 && ret->kind == JSON_KEY) {
        bool found = json_is(ret, key);

        if (json_next(ret, NULL) < 0) return false;
        if (found) return true;
        if (json_skip(ret, NULL) < 0) return false;
    }
    return false;
}

static void
fail_reply(struct exchange *e)
{
    struct fault f;

    (void)fault_set(&f, API_E_INTERNAL, NULL, "lagand gave a result in an unknown form");
    exchange_fail(e, &f);
}

static void
take_ids(struct exchange *e, const char *json)
{
    struct out list = { 0 }, o = { 0 };
    struct json j;
    uint32_t n = 0;

    if (!find_value(json, "ids", &j) || j.kind != JSON_ARRAY) {
        fail_reply(e);
        return;
    }
    for (; json_next(&j, NULL) == 0 && j.kind == JSON_NUMBER; n++) {
        if (n) out_put(&list, ",");
        out_bytes(&list, j.text, j.text_len);
    }
    out_format(&o, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", n, e->model.max_len);
    out_bytes(&o, list.p, list.n);
    out_put(&o, "]}");
    o.failed |= list.failed;
    out_free(&list);
    exchange_respond(e, JSON_TYPE, &o);
}

static void
take_text(struct exchange *e, const char *json)
{
    struct out text = { 0 }, o = { 0 };
    struct json j;
    char *to;

    if (!find_value(json, "text", &j) || j.kind != JSON_STRING) {
        fail_reply(e);
        return;
    }
    to = out_space(&text, j.text_len + 1);
    if (to) text.n = (size_t)json_unescape(&j, to, j.text_len + 1);
    out_put(&o, "{\"prompt\":");
    out_string(&o, text.p, text.n);
    out_put(&o, "}");
    o.failed |= text.failed;
    out_free(&text);
    exchange_respond(e, JSON_TYPE, &o);
}

static void
begin_args(const struct exchange *e, struct out *args)
{
    out_put(args, "{\"model\":");
    out_string(args, e->model.name, strlen(e->model.name));
}

/* Calls a verb with the messages. */
static int
call_with_messages(struct exchange *e, const char *verb,
                   void (*replied)(struct exchange *e, const char *json), struct fault *f)
{
    CLEAN(out_free) struct out args = { 0 };
    int r = messages_read(e, f);

    if (r) return r;
    begin_args(e, &args);
    out_put(&args, ",\"messages\":");
    out_bytes(&args, e->messages.p, e->messages.n);
    out_put(&args, "}");
    exchange_close_body(e);
    return exchange_call(e, verb, &args, replied, f);
}

int
tokenize_run(struct exchange *e, struct fault *f)
{
    const struct value *v = e->body->v, *special = &v[F_add_special_tokens];
    CLEAN(out_free) struct out args = { 0 };
    const struct text_or_ids *text;
    uint32_t n;
    int r;

    if (!e->model.name[0]) TRY(model_select(e, f));
    if (v[F_prompt].given && v[F_messages].given)
        return fault_set(f, API_E_INVALID_VALUE, "messages", "send prompt or messages, not both");
    if (v[F_messages].given) return call_with_messages(e, "tokenize", take_ids, f);
    r = prompts_read(e, F_prompt, &text, &n, f);
    if (r) return r;
    if (v[F_prompt].raw.p[0] != '"')
        return fault_set(f, API_E_INVALID_TYPE, "prompt", "prompt must be a string");
    begin_args(e, &args);
    out_put(&args, ",\"text\":");
    out_string(&args, text->text.p, text->text.n);
    out_put(&args, special->given && !special->b ? ",\"bare\":true}" : "}");
    exchange_close_body(e);
    return exchange_call(e, "tokenize", &args, take_ids, f);
}

int
detokenize_run(struct exchange *e, struct fault *f)
{
    CLEAN(out_free) struct out args = { 0 };
    const struct text_or_ids *ids;
    struct http_text raw;
    uint32_t n;
    int r;

    if (!e->model.name[0]) TRY(model_select(e, f));
    r = prompts_read(e, F_tokens, &ids, &n, f);
    if (r) return r;
    raw = e->body->v[F_tokens].raw;
    if (n != 1 || ids->text.p || memchr(raw.p + 1, '[', raw.n - 1))
        return fault_set(f, API_E_INVALID_TYPE, "tokens", "tokens must be a list of token ids");
    begin_args(e, &args);
    out_put(&args, ",\"ids\":[");
    for (uint32_t i = 0; i < ids->n_ids; i++) out_format(&args, i ? ",%d" : "%d", ids->ids[i]);
    out_put(&args, "]}");
    exchange_close_body(e);
    return exchange_call(e, "detokenize", &args, take_text, f);
}

int
template_run(struct exchange *e, struct fault *f)
{
    if (!e->model.name[0]) TRY(model_select(e, f));
    if (!e->model.chat)
        return fault_set(f, API_E_UNSUPPORTED, "messages", "the model %.80s has no chat template",
                         e->model.name);
    return call_with_messages(e, "render", take_text, f);
}
