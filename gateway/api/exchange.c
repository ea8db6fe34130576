/* exchange.c - an exchange from the head of its request to the end of its response. */
#include "gateway/api/api_internal.h"

#include <stdio.h>

struct exchange *
exchange_new(struct api *a, struct http_exchange *x, const struct route *r)
{
    struct exchange *e = calloc(1, sizeof *e);

    if (!e) return NULL;
    e->a = a;
    e->x = x;
    e->route = r;
    e->begun = a->now;
    e->call = API_MAX_OPEN;
    e->interval = 1;
    e->next = a->first;
    if (e->next) e->next->prev = e;
    a->first = e;
    a->n_exchanges++;
    http_set_user(x, e);
    return e;
}

static void
prompt_done(struct prompt *p)
{
    lagan_request_free(p->request);
    out_free(&p->text);
    out_free(&p->ids);
    out_free(&p->tokens);
    out_free(&p->values);
}

static void
choice_done(struct choice *c)
{
    out_free(&c->text);
    out_free(&c->tokens);
    out_free(&c->stop);
}

void
exchange_free(struct exchange *e)
{
    exchange_forget(e);
    if (e->next) e->next->prev = e->prev;
    if (e->prev)
        e->prev->next = e->next;
    else
        e->a->first = e->next;
    e->a->n_exchanges--;
    for (uint32_t i = 0; i < e->n_prompts; i++) prompt_done(&e->prompt[i]);
    for (uint32_t i = 0; i < e->n_prompts * e->n; i++) choice_done(&e->choice[i]);
    free(e->prompt);
    free(e->choice);
    if (e->body) body_free(e->body);
    free(e->body);
    out_free(&e->out);
    out_free(&e->head);
    out_free(&e->fields);
    out_free(&e->messages);
    out_free(&e->decoder_text);
    free(e);
}

void
exchange_close_body(struct exchange *e)
{
    if (!e->body) return;
    if (e->body->ignored[0]) out_format(&e->fields, "X-Lagan-Ignored: %s\r\n", e->body->ignored);
    if (e->set_max_tokens) out_format(&e->fields, "X-Lagan-Max-Tokens: %u\r\n", e->set_max_tokens);
    body_free(e->body);
    free(TAKE(e->body));
}

void
exchange_new_id(struct exchange *e, const char *prefix)
{
    uint64_t high = rng_id(&e->a->random), low = rng_id(&e->a->random);

    snprintf(e->id, sizeof e->id, "%s%016llx%016llx", prefix, (unsigned long long)high,
             (unsigned long long)low);
}

/* Sends a complete response and gives the exchange back to the server: comes last. */
static void
respond(struct exchange *e, int status, const char *type, struct out *o)
{
    CLEAN(out_free) struct out body = *o;
    CLEAN(out_free) struct out fields = e->fields;

    *o = (struct out){ 0 };
    e->fields = (struct out){ 0 };
    e->status = status;
    e->ending = true;
    e->waits = false;
    out_bytes(&fields, "", 1);
    http_respond(e->x, &(struct http_response){ .status = status,
                                                .content_type = type,
                                                .fields = fields.failed ? NULL : fields.p,
                                                .body = body.p,
                                                .n = body.n });
}

void
exchange_respond(struct exchange *e, const char *type, struct out *o)
{
    if (o->failed) {
        out_free(o);
        exchange_fail_memory(e);
        return;
    }
    exchange_close_body(e);
    respond(e, 200, type, o);
}

void
exchange_fail(struct exchange *e, const struct fault *f)
{
    const struct api_error_row *row = &api_error_rows[f->error];
    CLEAN(out_free) struct out o = { 0 };
    uint32_t seconds = row->retry_after;

    if (e->ending) return;
    exchange_forget(e);
    exchange_close_body(e);
    e->reason = row->code;
    if (http_started(e->x)) {
        events_fail(e, f);
        return;
    }
    error_body(&o, f);
    if (f->error == API_E_QUEUE_FULL)
        seconds = metrics_drain_time(e->a->metrics, e->a->now, e->a->n_exchanges);
    error_fields(&e->fields, f->error, seconds, (uint32_t)(rng_id(&e->a->random) % 400));
    respond(e, row->status, "application/json", &o);
}

void
exchange_cut(struct exchange *e, const char *reason)
{
    exchange_forget(e);
    e->reason = reason;
    e->ending = true;
    http_cut(e->x);
}

void
exchange_fail_memory(struct exchange *e)
{
    struct fault f;

    (void)fault_set(&f, API_E_OUT_OF_MEMORY, NULL, "the gateway has no memory for this response");
    exchange_fail(e, &f);
}
