/* completions.c - POST /v1/completions. */
#include "gateway/api/api_internal.h"

#include <stdio.h>

/* Sets the prompt of one request, and its text for `echo`. */
static int
set_prompt(struct exchange *e, struct prompt *p, const struct text_or_ids *t, struct fault *f)
{
    if (t->text.p) {
        if (e->echo || prepare_needs_ids(e)) out_bytes(&p->text, t->text.p, t->text.n);
        return set_result(lagan_set_str(p->request, "text", t->text.p, t->text.n), "prompt", f);
    }
    for (uint32_t i = 0; i < t->n_ids && (prepare_needs_ids(e) || e->echo); i++)
        out_format(&p->ids, i ? ",%d" : "%d", t->ids[i]);
    p->n_ids = t->n_ids;
    return set_result(lagan_set_ids(p->request, "ids", t->ids, t->n_ids), "prompt", f);
}

/* Copies the string of a field to o. */
static int
copy_string(struct exchange *e, enum field field, struct out *o)
{
    struct http_text text;
    struct json j;

    json_open(&j, e->body->v[field].raw.p, e->body->v[field].raw.n);
    TRY(json_next(&j, NULL));
    text = body_string(e->body, &j, false);
    if (!text.p) return -ENOMEM;
    out_bytes(o, text.p, text.n);
    return 0;
}

/* Sets what only encoder-decoder models have. */
static int
set_decoder(struct exchange *e, struct fault *f)
{
    enum { MOST = 1024 };
    const struct value *start = &e->body->v[F_decoder_prompt], *lang = &e->body->v[F_target_lang];
    CLEAN(out_free) struct out name = { 0 };
    token_id ids[MOST];
    int n = 0;

    if (!start->given && !lang->given) return 0;
    if (!e->model.encoder_decoder)
        return fault_set(f, API_E_INVALID_VALUE, start->given ? "decoder_prompt" : "target_lang",
                         "%s is only for encoder-decoder models",
                         start->given ? "decoder_prompt" : "target_lang");
    if (lang->given) {
        TRY(copy_string(e, F_target_lang, &name));
        snprintf(e->target_lang, sizeof e->target_lang, "%.*s", (int)name.n, name.p);
    }
    if (!start->given) return 0;
    if (start->raw.p[0] == '"') return copy_string(e, F_decoder_prompt, &e->decoder_text);
    n = ids_read(e, F_decoder_prompt, ids, MOST, f);
    return n > 0 ? prepare_decoder(e, ids, (size_t)n, f) : n;
}

int
completions_run(struct exchange *e, struct fault *f)
{
    const struct text_or_ids *prompts;
    uint32_t n_prompts, n;
    int r;

    if (!e->model.name[0]) TRY(model_select(e, f));
    r = prompts_read(e, F_prompt, &prompts, &n_prompts, f);
    if (r) return r;
    TRY(sampling_read(e, &n, f));
    if (e->echo && e->model.encoder_decoder)
        return fault_set(f, API_E_UNSUPPORTED, "echo",
                         "echo is not served for encoder-decoder models");
    exchange_new_id(e, "cmpl-");
    TRY(exchange_prompts(e, n_prompts, n));
    for (uint32_t i = 0; i < n_prompts; i++) {
        TRY(sampling_request(e, &e->prompt[i], f));
        TRY(set_prompt(e, &e->prompt[i], &prompts[i], f));
    }
    TRY(set_decoder(e, f));
    return prepare(e, f);
}
