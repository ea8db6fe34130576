/* prepare.c - what a response needs from lagand before its requests are submitted. */
#include "gateway/api/api_internal.h"

/* Reads the result of tokenize or detokenize: adds the ids as JSON, or the text. */
static int
read_reply(const char *json, struct out *ids, struct out *text)
{
    struct json j;

    json_open(&j, json, strlen(json));
    TRY(json_next(&j, NULL));
    if (j.kind != JSON_OBJECT) return -EBADMSG;
    while (json_next(&j, NULL) == 0 && j.kind == JSON_KEY) {
        bool is_ids = json_is(&j, "ids"), is_text = json_is(&j, "text");
        const char *from;

        TRY(json_next(&j, NULL));
        from = j.p;
        if (is_text && j.kind == JSON_STRING) {
            char *to = out_space(text, j.text_len + 1);

            if (!to) return -ENOMEM;
            text->n += (size_t)json_unescape(&j, to, j.text_len + 1);
        }
        TRY(json_skip(&j, NULL));
        if (is_ids && j.kind == JSON_ARRAY_END) out_bytes(ids, from, (size_t)(j.p - from - 1));
    }
    return j.kind == JSON_OBJECT_END ? 0 : -EBADMSG;
}

/* Continues after a reply; r: 0, or the error of reading it. */
static void
go_on(struct exchange *e, int r, struct fault *f)
{
    if (r == -EBADMSG)
        r = fault_set(f, API_E_INTERNAL, NULL, "lagand gave a result in an unknown form");
    if (r == 0) r = prepare(e, f);
    if (r == -ENOMEM)
        exchange_fail_memory(e);
    else if (r < 0)
        exchange_fail(e, f);
}

static void
take_prompt(struct exchange *e, const char *json)
{
    struct prompt *p = &e->prompt[e->n_prepared++];
    struct fault f;
    int r = read_reply(json, &p->ids, &p->text);

    for (size_t i = 0; i < p->ids.n; i++) p->n_ids += p->ids.p[i] == ',';
    p->n_ids += p->ids.n > 0;
    go_on(e, r, &f);
}

int
prepare_decoder(struct exchange *e, const token_id *ids, size_t n, struct fault *f)
{
    for (uint32_t i = 0; i < e->n_prompts; i++)
        TRY(set_result(lagan_set_ids(e->prompt[i].request, "decoder_ids", ids, n), "decoder_prompt",
                       f));
    return 0;
}

static void
take_decoder(struct exchange *e, const char *json)
{
    CLEAN(out_free) struct out list = { 0 };
    CLEAN(out_free) struct out ids = { 0 };
    struct fault f;
    int r = read_reply(json, &list, &e->decoder_text);

    out_bytes(&list, "", 1);
    for (char *at = list.p, *end; r == 0 && !list.failed && *at; at = end + (*end == ',')) {
        token_id id = (token_id)strtol(at, &end, 10);

        if (end == at) r = -EBADMSG;
        out_bytes(&ids, &id, sizeof id);
    }
    if (list.failed || ids.failed) r = -ENOMEM;
    if (r == 0) r = prepare_decoder(e, (const void *)ids.p, ids.n / sizeof(token_id), &f);
    out_free(&e->decoder_text);
    go_on(e, r, &f);
}

bool
prepare_needs_ids(const struct exchange *e)
{
    return e->token_ids || e->usage_in_events;
}

/* Starts a call with the text, the messages or the ids (as JSON) that are not NULL. Returns 1. */
static int
call(struct exchange *e, const struct out *text, const struct out *messages, const struct out *ids,
     void (*replied)(struct exchange *e, const char *json), struct fault *f)
{
    CLEAN(out_free) struct out args = { 0 };
    const struct out *raw = messages ? messages : ids;

    out_put(&args, "{\"model\":");
    out_string(&args, e->model.name, strlen(e->model.name));
    out_put(&args, text ? ",\"text\":" : messages ? ",\"messages\":" : ",\"ids\":[");
    if (text)
        out_string(&args, text->p, text->n);
    else
        out_bytes(&args, raw->p, raw->n);
    if (ids) out_put(&args, "],\"keep_special\":true");
    if (text == &e->decoder_text) out_put(&args, ",\"bare\":true");
    out_put(&args, "}");
    TRY(exchange_call(e, ids ? "detokenize" : "tokenize", &args, replied, f));
    return 1;
}

/* Starts the next call that the request needs. Returns 1: it is under way, 0: none is needed. */
static int
ask_next(struct exchange *e, struct fault *f)
{
    if (e->decoder_text.n) return call(e, &e->decoder_text, NULL, NULL, take_decoder, f);
    for (; e->n_prepared < e->n_prompts; e->n_prepared++) {
        struct prompt *p = &e->prompt[e->n_prepared];

        if (prepare_needs_ids(e) && !p->ids.n)
            return e->messages.n ? call(e, NULL, &e->messages, NULL, take_prompt, f)
                                 : call(e, &p->text, NULL, NULL, take_prompt, f);
        if (e->echo && !p->text.n) return call(e, NULL, NULL, &p->ids, take_prompt, f);
    }
    out_free(&e->messages);
    return 0;
}

/* Submits the requests; the vocabulary is complete if it is needed. */
static int
submit(struct exchange *e, struct fault *f)
{
    token_id id;

    if (e->target_lang[0]) {
        id = vocabulary_find(e->vocabulary, e->target_lang);
        if (id < 0)
            return fault_set(f, API_E_INVALID_VALUE, "target_lang",
                             "target_lang is %s, but the model has no such token", e->target_lang);
        for (uint32_t i = 0; i < e->n_prompts; i++)
            TRY(set_result(lagan_set_int(e->prompt[i].request, "forced_bos", id), "target_lang",
                           f));
    }
    return exchange_submit(e, f);
}

int
prepare(struct exchange *e, struct fault *f)
{
    int r;

    exchange_close_body(e);
    r = ask_next(e, f);
    if (r) return MIN(r, 0);
    if (e->logprobs || e->prompt_logprobs || e->target_lang[0]) {
        if (!e->vocabulary) e->vocabulary = pieces_of(e->a->pieces, e->tenant, &e->model);
        if (!e->vocabulary)
            return fault_set(f, API_E_UNREACHABLE, NULL,
                             "the texts of the tokens cannot be read now; try again");
        e->waits = !vocabulary_complete(e->vocabulary);
        if (e->waits) return 0;
    }
    return submit(e, f);
}

void
prepare_go_on(struct api *a, const struct vocabulary *v)
{
    struct exchange *next;

    for (struct exchange *e = a->first; e; e = next) {
        struct fault f;
        int r;

        next = e->next;
        if (e->vocabulary != v || !e->waits) continue;
        e->waits = false;
        if (vocabulary_fault(v)) {
            e->vocabulary = NULL;
            r = fault_set(&f, API_E_UNREACHABLE, NULL, "%s", vocabulary_fault(v));
        } else {
            r = submit(e, &f);
        }
        if (r == -ENOMEM)
            exchange_fail_memory(e);
        else if (r < 0)
            exchange_fail(e, &f);
    }
}

bool
prepare_uses(const struct api *a, const struct vocabulary *v)
{
    for (const struct exchange *e = a->first; e; e = e->next)
        if (e->vocabulary == v) return true;
    return false;
}
