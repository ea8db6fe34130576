/* completions.c - POST /v1/completions. */
#include "gateway/api/api_internal.h"

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

static int
set_decoder_prompt(struct exchange *e, struct prompt *p, struct fault *f)
{
    enum { MOST = 1024 };
    token_id ids[MOST];
    int n;

    if (!e->body->v[F_decoder_prompt].given) return 0;
    if (!e->model.encoder_decoder)
        return fault_set(f, API_E_INVALID_VALUE, "decoder_prompt",
                         "decoder_prompt is only for encoder-decoder models");
    n = ids_read(e, F_decoder_prompt, ids, MOST, f);
    if (n <= 0) return n;
    return set_result(lagan_set_ids(p->request, "decoder_ids", ids, (size_t)n), "decoder_prompt",
                      f);
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
        TRY(set_decoder_prompt(e, &e->prompt[i], f));
        TRY(set_prompt(e, &e->prompt[i], &prompts[i], f));
    }
    return prepare(e, f);
}
