/* prepare.c - what a response needs from lagand before its requests are submitted. */
#include "gateway/api/api_internal.h"

/* Reads the result of tokenize or detokenize into the prompt. */
static int
read_reply(struct prompt *p, const char *json)
{
    struct json j;

    json_open(&j, json, strlen(json));
    TRY(json_next(&j, NULL));
    if (j.kind != JSON_OBJECT) return -EBADMSG;
    while (json_next(&j, NULL) == 0 && j.kind == JSON_KEY) {
        bool ids = json_is(&j, "ids"), text = json_is(&j, "text");
        const char *from;

        TRY(json_next(&j, NULL));
        from = j.p;
        if (text && j.kind == JSON_STRING) {
            char *to = out_space(&p->text, j.text_len + 1);

            if (!to) return -ENOMEM;
            p->text.n += (size_t)json_unescape(&j, to, j.text_len + 1);
        }
        TRY(json_skip(&j, NULL));
        if (!ids || j.kind != JSON_ARRAY_END) continue;
        out_bytes(&p->ids, from, (size_t)(j.p - from - 1));
        for (size_t i = 0; i < p->ids.n; i++) p->n_ids += p->ids.p[i] == ',';
        p->n_ids += p->ids.n > 0;
    }
    return j.kind == JSON_OBJECT_END ? 0 : -EBADMSG;
}

static void
take_reply(struct exchange *e, const char *json)
{
    struct fault f;
    int r = read_reply(&e->prompt[e->n_prepared], json);

    if (r == -EBADMSG)
        (void)fault_set(&f, API_E_INTERNAL, NULL, "lagand gave a result in an unknown form");
    else if (r == 0) {
        e->n_prepared++;
        r = prepare(e, &f);
    }
    if (r == -ENOMEM)
        exchange_fail_memory(e);
    else if (r < 0)
        exchange_fail(e, &f);
}

bool
prepare_needs_ids(const struct exchange *e)
{
    return e->token_ids || e->usage_in_events;
}

/* Starts the call that tells ids or text of the next prompt. Returns 1: it is under way, 0: none is
 * needed. */
static int
ask_prompt(struct exchange *e, struct fault *f)
{
    for (; e->n_prepared < e->n_prompts; e->n_prepared++) {
        struct prompt *p = &e->prompt[e->n_prepared];
        CLEAN(out_free) struct out args = { 0 };
        bool ids = prepare_needs_ids(e) && !p->ids.n, text = e->echo && !p->text.n;

        if (!ids && !text) continue;
        out_put(&args, "{\"model\":");
        out_string(&args, e->model.name, strlen(e->model.name));
        if (!ids) {
            out_put(&args, ",\"ids\":[");
            out_bytes(&args, p->ids.p, p->ids.n);
            out_put(&args, "],\"keep_special\":true}");
        } else if (e->messages.n) {
            out_put(&args, ",\"messages\":");
            out_bytes(&args, e->messages.p, e->messages.n);
            out_put(&args, "}");
        } else {
            out_put(&args, ",\"text\":");
            out_string(&args, p->text.p, p->text.n);
            out_put(&args, "}");
        }
        TRY(exchange_call(e, ids ? "tokenize" : "detokenize", &args, take_reply, f));
        return 1;
    }
    out_free(&e->messages);
    return 0;
}

int
prepare(struct exchange *e, struct fault *f)
{
    int r;

    exchange_close_body(e);
    r = ask_prompt(e, f);
    if (r) return MIN(r, 0);
    if (e->logprobs || e->prompt_logprobs) {
        if (!e->vocabulary) e->vocabulary = pieces_of(e->a->pieces, e->tenant, &e->model);
        if (!e->vocabulary)
            return fault_set(f, API_E_UNREACHABLE, NULL,
                             "the texts of the tokens cannot be read now; try again");
        e->waits = !vocabulary_complete(e->vocabulary);
        if (e->waits) return 0;
    }
    return exchange_submit(e, f);
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
            r = exchange_submit(e, &f);
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
