/* shape.c - the JSON of the responses of /v1/chat/completions and /v1/completions. */
#include "base/utf8.h"
#include "gateway/api/api_internal.h"

#include <stdio.h>

static bool
is_chat(const struct exchange *e)
{
    return e->route->fields == ON_CHAT;
}

/* cached is known at the end of an output. */
static void
put_usage(const struct exchange *e, struct out *o, uint32_t prompt_tokens, uint32_t tokens)
{
    out_format(o,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
               prompt_tokens, tokens, (unsigned long long)prompt_tokens + tokens, e->cached);
}

static void
put_fingerprint(const struct exchange *e, struct out *o)
{
    out_format(o, ",\"system_fingerprint\":\"lagan-%s-%08x\"", e->a->c.version,
               (uint32_t)e->model.fingerprint);
}

/* ---- tokens */

static struct http_text
token_text(const struct exchange *e, token_id id)
{
    return e->vocabulary ? vocabulary_text(e->vocabulary, id) : (struct http_text){ 0 };
}

/* Writes the text of a token as a JSON string. */
static void
put_token(const struct exchange *e, struct out *o, token_id id)
{
    struct http_text t = token_text(e, id);

    if (e->names_as_ids)
        out_format(o, "\"token_id:%d\"", id);
    else
        out_string(o, t.p, t.n);
}

/* Writes "token":...,"logprob":...,"bytes":[...] */
static void
put_entry(const struct exchange *e, struct out *o, const struct lagan_top_logprob *t)
{
    struct http_text text = token_text(e, t->id);

    out_put(o, "\"token\":");
    put_token(e, o, t->id);
    out_put(o, ",\"logprob\":");
    out_f32(o, t->logprob);
    out_put(o, ",\"bytes\":[");
    for (size_t i = 0; i < text.n; i++) {
        if (i) out_put(o, ",");
        out_u64(o, (unsigned char)text.p[i]);
    }
    out_put(o, "]");
}

size_t
shape_records(const struct exchange *e, const struct choice *c, size_t *logprobs)
{
    size_t n = c->tokens.n / sizeof(struct lagan_top_logprob) / (1 + e->n_top);

    n -= n && c->held;
    *logprobs = e->logprobs ? n - (n && c->end_token) : 0;
    return n;
}

/* The log-probabilities of chat: {"content":[...],"refusal":null}. The end token
 * has no entry. */
static void
put_chat_logprobs(const struct exchange *e, const struct choice *c, struct out *o)
{
    const struct lagan_top_logprob *t = (const void *)c->tokens.p;
    size_t stride = 1 + e->n_top, n;

    shape_records(e, c, &n);
    out_put(o, "{\"content\":[");
    for (size_t i = 0; i < n; i++, t += stride) {
        out_put(o, i ? ",{" : "{");
        put_entry(e, o, t);
        out_put(o, ",\"top_logprobs\":[");
        for (size_t k = 1; k < stride && t[k].id >= 0; k++) {
            out_put(o, k > 1 ? ",{" : "{");
            put_entry(e, o, &t[k]);
            out_put(o, "}");
        }
        out_put(o, "]}");
    }
    out_put(o, "],\"refusal\":null}");
}

static uint32_t
n_characters(struct http_text t)
{
    uint32_t n = 0;

    for (size_t i = 0; i < t.n; i++) n += ((unsigned char)t.p[i] & 0xc0) != 0x80;
    return n;
}

/* The four lists of log-probabilities of completions, while they are written. */
struct lists {
    struct out tokens, logprobs, tops, offsets;
    uint32_t n, at; /* entries; characters before the next one */
};

/* Writes the alternatives of a token and the token itself, which OpenAI's list always has. */
static void
put_tops(const struct exchange *e, struct out *o, const struct lagan_top_logprob *t, uint32_t n_top)
{
    bool any = false, self = false;

    out_put(o, "{");
    for (uint32_t k = 1; k <= n_top + 1; k++) {
        const struct lagan_top_logprob *of = k <= n_top ? &t[k] : t;

        if (of->id < 0 || (k > n_top && self)) continue;
        self |= of->id == t->id;
        if (any) out_put(o, ",");
        put_token(e, o, of->id);
        out_put(o, ":");
        out_f32(o, of->logprob);
        any = true;
    }
    out_put(o, "}");
}

/* Adds a token with this text; `shown`: the part of it that the text of the choice has. */
static void
lists_add(const struct exchange *e, struct lists *l, const struct lagan_top_logprob *t,
          uint32_t n_top, struct http_text text, struct http_text shown, bool first_of_prompt)
{
    const char *comma = l->n++ ? "," : "";

    out_put(&l->tokens, comma);
    if (e->names_as_ids)
        put_token(e, &l->tokens, t->id);
    else
        out_string(&l->tokens, text.p, text.n);
    out_put(&l->logprobs, comma);
    out_put(&l->tops, comma);
    if (first_of_prompt) {
        out_put(&l->logprobs, "null");
        out_put(&l->tops, "null");
    } else {
        out_f32(&l->logprobs, t->logprob);
        put_tops(e, &l->tops, t, n_top);
    }
    out_format(&l->offsets, "%s%u", comma, l->at);
    l->at += n_characters(shown);
}

/* Adds the tokens of an echoed prompt. A token that the text does not have, as the first one of
 * most models, has no width. */
static void
lists_add_prompt(const struct exchange *e, struct lists *l, const struct prompt *p)
{
    const struct lagan_top_logprob *t = (const void *)p->tokens.p;
    size_t stride = 1 + e->n_prompt_top, n = p->tokens.n / sizeof *t / stride, at = 0;

    for (size_t i = 0; i < n; i++, t += stride) {
        struct http_text text = token_text(e, t->id), shown = text;
        size_t left = p->text.n - at;

        if (at == 0 && text.n && *text.p == ' ' && left && *p->text.p != ' ')
            shown = (struct http_text){ text.p + 1, text.n - 1 };
        if (shown.n > left || (shown.n && memcmp(shown.p, p->text.p + at, shown.n) != 0))
            shown.n = 0;
        at += shown.n;
        lists_add(e, l, t, e->n_prompt_top, text, shown, i == 0);
    }
}

/* Writes the log-probabilities of completions; with echo those of the prompt go before. */
static void
put_lists(struct exchange *e, struct choice *c, const struct prompt *p, struct out *o)
{
    const struct lagan_top_logprob *t = (const void *)c->tokens.p;
    size_t stride = 1 + e->n_top, n;
    struct lists l = { .at = c->n_characters };

    shape_records(e, c, &n);
    if (p) lists_add_prompt(e, &l, p);
    for (size_t i = 0; i < n; i++, t += stride) {
        struct http_text text = token_text(e, t->id);

        /* at the start of an output some tokenizers leave out the space of the token */
        if (l.at == 0 && text.n > 1 && *text.p == ' ' && c->text.n && *c->text.p != ' ')
            text = (struct http_text){ text.p + 1, text.n - 1 };
        lists_add(e, &l, t, e->n_top, text, text, false);
    }
    c->n_characters = l.at;
    out_put(o, "{\"tokens\":[");
    out_bytes(o, l.tokens.p, l.tokens.n);
    out_put(o, "],\"token_logprobs\":[");
    out_bytes(o, l.logprobs.p, l.logprobs.n);
    out_put(o, "],\"top_logprobs\":[");
    out_bytes(o, l.tops.p, l.tops.n);
    out_put(o, "],\"text_offset\":[");
    out_bytes(o, l.offsets.p, l.offsets.n);
    out_put(o, "]}");
    o->failed |= l.tokens.failed || l.logprobs.failed || l.tops.failed || l.offsets.failed;
    out_free(&l.tokens);
    out_free(&l.logprobs);
    out_free(&l.tops);
    out_free(&l.offsets);
}

static void
put_logprobs(struct exchange *e, struct choice *c, const struct prompt *echoed, struct out *o)
{
    out_put(o, ",\"logprobs\":");
    if (!e->logprobs || (!c->tokens.n && !echoed))
        out_put(o, "null");
    else if (is_chat(e))
        put_chat_logprobs(e, c, o);
    else
        put_lists(e, c, echoed, o);
}

static void
put_token_ids(const struct exchange *e, const struct choice *c, struct out *o)
{
    const struct lagan_top_logprob *t = (const void *)c->tokens.p;
    size_t stride = 1 + e->n_top, logprobs, n = shape_records(e, c, &logprobs);

    if (!e->token_ids) return;
    out_put(o, ",\"token_ids\":[");
    for (size_t i = 0; i < n; i++) out_format(o, i ? ",%d" : "%d", t[i * stride].id);
    out_put(o, "]");
}

/* vLLM's list: null for the first token, else
 * {"ID":{"logprob":...,"rank":null,"decoded_token":...}} for the token and its alternatives. */
static void
put_prompt_logprobs(const struct exchange *e, const struct prompt *p, struct out *o)
{
    const struct lagan_top_logprob *t = (const void *)p->tokens.p;
    size_t stride = 1 + e->n_prompt_top, n = p->tokens.n / sizeof *t / stride;

    if (!e->prompt_logprobs) return;
    out_put(o, ",\"prompt_logprobs\":[");
    for (size_t i = 0; i < n; i++, t += stride) {
        if (!i) {
            out_put(o, "null");
            continue;
        }
        out_put(o, ",{");
        for (size_t k = 0; k < stride && t[k].id >= 0; k++) {
            if (k && t[k].id == t[0].id) continue; /* an object has a key once */
            out_format(o, "%s\"%d\":{\"logprob\":", k ? "," : "", t[k].id);
            out_f32(o, t[k].logprob);
            out_put(o, ",\"rank\":null,\"decoded_token\":");
            put_token(e, o, t[k].id);
            out_put(o, "}");
        }
        out_put(o, "}");
    }
    out_put(o, "]");
}

static void
put_prompt_ids(const struct exchange *e, const struct prompt *p, struct out *o)
{
    if (!e->token_ids) return;
    out_put(o, ",\"prompt_token_ids\":[");
    out_bytes(o, p->ids.p, p->ids.n);
    out_put(o, "]");
}

/* ---- the end of an output */

static void
put_finish(const struct choice *c, struct out *o)
{
    out_format(o, ",\"finish_reason\":\"%s\"", c->finish);
    if (!c->stop.n) return;
    out_put(o, ",\"stop_reason\":");
    out_bytes(o, c->stop.p, c->stop.n);
}

/* ---- whole responses */

static void
put_choice(struct exchange *e, uint32_t i, struct out *o)
{
    struct choice *c = &e->choice[i];
    const struct prompt *p = &e->prompt[i / e->n];

    out_format(o, "%s{\"index\":%u,", i ? "," : "", i);
    if (is_chat(e)) {
        out_put(o, "\"message\":{\"role\":\"assistant\",\"content\":");
        out_string(o, c->text.p, c->text.n);
        out_put(o, ",\"refusal\":null}");
    } else {
        out_put(o, "\"text\":\"");
        if (e->echo) out_escaped(o, p->text.p, p->text.n);
        out_escaped(o, c->text.p, c->text.n);
        out_put(o, "\"");
    }
    put_logprobs(e, c, e->echo ? p : NULL, o);
    put_finish(c, o);
    put_token_ids(e, c, o);
    if (!is_chat(e)) {
        put_prompt_ids(e, p, o);
        put_prompt_logprobs(e, p, o);
    }
    out_put(o, "}");
    o->failed |= c->text.failed || c->tokens.failed || c->stop.failed || p->text.failed ||
                 p->ids.failed || p->tokens.failed;
}

static void
put_start(const struct exchange *e, struct out *o, const char *object)
{
    out_format(o, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", e->id, object,
               (unsigned long long)e->created);
    out_string(o, e->asked, strlen(e->asked));
}

void
shape_whole(struct exchange *e, struct out *o)
{
    put_start(e, o, is_chat(e) ? "chat.completion" : "text_completion");
    out_put(o, ",\"choices\":[");
    for (uint32_t i = 0; i < e->n_prompts * e->n; i++) put_choice(e, i, o);
    out_put(o, "],\"usage\":");
    put_usage(e, o, e->prompt_tokens, e->n_tokens);
    put_fingerprint(e, o);
    if (is_chat(e)) {
        put_prompt_ids(e, e->prompt, o);
        put_prompt_logprobs(e, e->prompt, o);
    }
    out_put(o, "}");
}

/* ---- streams */

static const char index_key[] = "{\"index\":";

void
shape_head(struct exchange *e)
{
    out_put(&e->head, "data: ");
    put_start(e, &e->head, is_chat(e) ? "chat.completion.chunk" : "text_completion");
    put_fingerprint(e, &e->head);
    out_put(&e->head, ",\"choices\":[");
    out_put(&e->head, index_key);
}

static void
begin_event(const struct exchange *e, uint32_t index, struct out *o)
{
    out_bytes(o, e->head.p, e->head.n);
    out_u64(o, index);
    out_put(o, ",");
}

/* Ends an event behind its choices. */
static void
end_event(const struct exchange *e, struct out *o)
{
    uint32_t n = 0;

    if (e->usage_in_events) {
        for (uint32_t i = 0; i < e->n_prompts; i++) n += e->prompt[i].n_ids;
        out_put(o, ",\"usage\":");
        put_usage(e, o, n, e->n_received);
    } else if (e->include_usage) {
        out_put(o, ",\"usage\":null");
    }
    out_put(o, "}\n\n");
}

void
shape_first(struct exchange *e, struct choice *c, uint32_t index, struct out *o)
{
    const struct prompt *p = &e->prompt[index / e->n];
    bool first = index == 0;

    o->failed |= p->text.failed || p->ids.failed || p->tokens.failed;

    if (is_chat(e)) {
        begin_event(e, index, o);
        out_put(o, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                   "\"finish_reason\":null}]");
        if (first) put_prompt_ids(e, p, o);
        end_event(e, o);
    } else if (e->echo || e->token_ids) {
        struct choice none = { 0 };

        begin_event(e, index, o);
        out_put(o, "\"text\":");
        out_string(o, p->text.p, e->echo ? p->text.n : 0);
        put_logprobs(e, &none, e->echo ? p : NULL, o);
        c->n_characters = none.n_characters;
        out_put(o, ",\"finish_reason\":null");
        put_prompt_ids(e, p, o);
        out_put(o, "}]");
        end_event(e, o);
    }
}

void
shape_delta(struct exchange *e, struct choice *c, uint32_t index, struct out *o)
{
    begin_event(e, index, o);
    out_put(o, is_chat(e) ? "\"delta\":{\"content\":" : "\"text\":");
    out_string(o, c->text.p, c->text.n);
    if (is_chat(e)) out_put(o, "}");
    put_logprobs(e, c, NULL, o);
    out_put(o, ",\"finish_reason\":null");
    put_token_ids(e, c, o);
    out_put(o, "}]");
    end_event(e, o);
}

void
shape_end(struct exchange *e, struct choice *c, uint32_t index, struct out *o)
{
    begin_event(e, index, o);
    out_put(o, is_chat(e) ? "\"delta\":{}" : "\"text\":\"\"");
    out_put(o, ",\"logprobs\":null");
    put_finish(c, o);
    out_put(o, "}]");
    end_event(e, o);
}

void
shape_usage(struct exchange *e, struct out *o)
{
    out_bytes(o, e->head.p, e->head.n - (sizeof index_key - 1));
    out_put(o, "],\"usage\":");
    put_usage(e, o, e->prompt_tokens, e->n_tokens);
    out_put(o, "}\n\n");
}
