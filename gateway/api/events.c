/* events.c - lagand's events to the events of a stream, or to the parts of a whole response.
 *
 * What arrives is added to its choice. A stream takes it from there as soon as its output is not
 * blocked: while the client does not read, the tokens of later events are joined in the choice, and
 * lagand is kept from sending more (backend.hold()). */
#include "gateway/api/api_internal.h"

#include "include/lagan_wire.h"

static void
hold(struct exchange *e, bool on)
{
    for (uint32_t i = 0; i < e->n_prompts; i++)
        if (e->prompt[i].open != API_MAX_OPEN)
            e->a->b.hold(e->a->b.ctx, e->tenant, e->prompt[i].id, on);
}

static void
start_stream(struct exchange *e)
{
    if (http_started(e->x)) return;
    out_put(&e->fields, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    out_bytes(&e->fields, "", 1);
    e->status = 200;
    http_stream(e->x, &(struct http_response){ .status = 200,
                                               .content_type = "text/event-stream; charset=utf-8",
                                               .fields = e->fields.failed ? NULL : e->fields.p });
    out_free(&e->fields);
}

/* Gives what was written to the server. Returns 1: all of it left; 0: the client does not read now;
 * -ENOMEM: the connection was closed and e is gone. */
static int
drain(struct exchange *e)
{
    if (e->out.failed || e->head.failed) {
        exchange_cut(e, "out_of_memory");
        return -ENOMEM;
    }
    while (e->sent < e->out.n) {
        size_t n = MIN(e->out.n - e->sent, (size_t)API_PIECE);

        if (http_write(e->x, e->out.p + e->sent, n) < 0) {
            if (!e->blocked) hold(e, true);
            e->blocked = true;
            return 0;
        }
        e->sent += n;
        e->written = e->a->now;
    }
    if (e->out.cap > API_PIECE) out_free(&e->out);
    e->out.n = e->sent = 0;
    if (e->blocked) hold(e, false);
    e->blocked = false;
    return 1;
}

/* Gives what was written to the server. Comes last: the response may end here. */
static void
send(struct exchange *e)
{
    if (drain(e) > 0 && e->ending) http_end(e->x);
}

/* Writes what choice i has for the client. all: also fewer tokens than stream_interval. */
static void
write_choice(struct exchange *e, uint32_t i, bool all)
{
    struct choice *c = &e->choice[i];
    size_t logprobs, records = shape_records(e, c, &logprobs);
    bool any = c->text.n || (c->ended && (logprobs || (e->token_ids && records)));

    e->out.failed |= c->text.failed || c->tokens.failed || c->stop.failed;
    if (!any && !c->ended) return;
    if (c->started && !c->ended && !all && c->n_new < e->interval) return;
    start_stream(e);
    if (!e->head.n) shape_head(e);
    if (!c->started) shape_first(e, c, i, &e->out);
    c->started = true;
    if (any) {
        shape_delta(e, c, i, &e->out);
        metrics_event(e->a->metrics, c->n_new);
    }
    c->text.n = c->n_new = 0;
    if (c->tokens.n) {
        size_t leave = records * (1 + e->n_top) * sizeof(struct lagan_top_logprob);

        memmove(c->tokens.p, c->tokens.p + leave, c->tokens.n - leave);
        c->tokens.n -= leave;
    }
    if (c->ended && !c->end_sent) shape_end(e, c, i, &e->out);
    c->end_sent = c->ended;
}

/* Writes the end of a stream if all of its prompts have ended. */
static void
write_end(struct exchange *e)
{
    if (e->n_done < e->n_prompts || e->ending) return;
    if (e->include_usage) shape_usage(e, &e->out);
    out_put(&e->out, "data: [DONE]\n\n");
    e->ending = true;
}

void
events_fail(struct exchange *e, const struct fault *f)
{
    if (e->ending) return;
    for (uint32_t i = 0; i < e->n_prompts * e->n; i++) write_choice(e, i, true);
    out_put(&e->out, "data: ");
    error_body(&e->out, f);
    out_put(&e->out, "\n\n");
    e->ending = true;
    send(e);
}

void
events_writable(struct exchange *e)
{
    if (!e->stream || (!e->ending && drain(e) <= 0)) return;
    if (!e->ending) {
        for (uint32_t i = 0; i < e->n_prompts * e->n; i++) write_choice(e, i, true);
        write_end(e);
    }
    send(e);
}

static void
respond_whole(struct exchange *e)
{
    struct out o = { 0 };

    if (e->route->respond) {
        e->route->respond(e);
        return;
    }
    shape_whole(e, &o);
    out_format(&e->fields, "Openai-Processing-Ms: %lld\r\n",
               (long long)((e->a->now - e->begun) / NSEC_MS));
    exchange_respond(e, JSON_TYPE, &o);
}

/* Adds the tokens of an event to o: for each its id and log-probability, then its alternatives. */
static void
keep_tokens(struct out *o, const struct lagan_event *ev, uint32_t n_top)
{
    for (uint32_t i = 0; i < ev->n_ids; i++) {
        struct lagan_top_logprob t = { .id = ev->ids ? ev->ids[i] : -1,
                                       .logprob = ev->logprob ? ev->logprob[i] : 0 };

        out_bytes(o, &t, sizeof t);
        for (uint32_t k = 0; k < n_top; k++) {
            t = k < ev->n_top ? ev->top[i * ev->n_top + k] : (struct lagan_top_logprob){ .id = -1 };
            out_bytes(o, &t, sizeof t);
        }
    }
}

static void
take_tokens(struct exchange *e, struct choice *c, const struct lagan_event *ev)
{
    nsec now = e->a->now;

    if (ev->n_ids) {
        metrics_tokens(e->a->metrics, e->model.name, ev->n_ids,
                       e->first_token ? 0 : MAX(now - e->begun, (nsec)1),
                       c->last ? MAX(now - c->last, (nsec)1) : 0);
        c->last = now;
        if (!e->first_token) e->first_token = now;
    }
    if (e->hide_output) return;
    e->n_received += ev->n_ids;
    out_bytes(&c->text, ev->text, ev->text_len);
    if (e->keep_tokens) keep_tokens(&c->tokens, ev, e->n_top);
    c->held = e->keep_tokens && (ev->n_ids ? ev->n_ids > 1 || e->has_stop : c->held);
    c->n_new += ev->n_ids;
}

static void
take_output(struct exchange *e, struct prompt *p, struct choice *c, const struct lagan_event *ev)
{
    bool stopped = ev->reason == LAGAN_FINISH_EOS || ev->reason == LAGAN_FINISH_STOP;

    c->ended = true;
    c->held = false;
    c->end_token = ev->reason == LAGAN_FINISH_EOS;
    c->finish = stopped && !e->hide_output ? "stop" : "length";
    e->reason = c->finish;
    if (ev->reason == LAGAN_FINISH_STOP && !e->hide_output) {
        if (ev->stop)
            out_string(&c->stop, ev->stop, ev->stop_len);
        else if (ev->stop_id >= 0)
            out_format(&c->stop, "%d", ev->stop_id);
    }
    if (!e->hide_output) e->n_tokens += ev->n_tokens;
    e->resumed = MAX(e->resumed, ev->resumed);
    e->prompt_tokens += MAX(ev->n_prompt_tokens, p->n_prompt_tokens) - p->n_prompt_tokens;
    p->n_prompt_tokens = MAX(ev->n_prompt_tokens, p->n_prompt_tokens);
    e->cached += MAX(ev->cached, p->cached) - p->cached;
    p->cached = MAX(ev->cached, p->cached);
}

/* Ends the exchange if an operator has cancelled the output. */
static bool
is_cancelled(struct exchange *e, const struct lagan_event *ev)
{
    struct fault f;

    if (ev->reason != LAGAN_FINISH_CANCELLED && ev->reason != LAGAN_FINISH_ERROR) return false;
    (void)fault_set(&f, ev->reason == LAGAN_FINISH_ERROR ? API_E_INTERNAL : API_E_CANCELLED, NULL,
                    ev->reason == LAGAN_FINISH_ERROR ? "an output of the request failed"
                                                     : "an operator cancelled the request");
    exchange_fail(e, &f);
    return true;
}

void
events_take(struct exchange *e, struct prompt *p, const struct lagan_event *ev)
{
    uint32_t i = (uint32_t)(p - e->prompt) * e->n + ev->output;
    struct choice *c = ev->output < e->n ? &e->choice[i] : NULL;

    if (!e->created) e->created = ev->accepted_at ? ev->accepted_at : e->a->wall;
    switch (ev->kind) {
    case LAGAN_EVENT_TOKENS:
        if (c) take_tokens(e, c, ev);
        break;
    case LAGAN_EVENT_PROMPT:
        keep_tokens(&p->tokens, ev, e->n_prompt_top);
        return;
    case LAGAN_EVENT_TENSOR:
        if (e->route->tensor) e->route->tensor(e, p, ev);
        return;
    case LAGAN_EVENT_OUTPUT:
        if (is_cancelled(e, ev)) return;
        if (c) take_output(e, p, c, ev);
        break;
    case LAGAN_EVENT_DONE:
        if (!p->done) e->n_done++;
        p->done = true;
        break;
    default:
        return;
    }
    if (!e->stream) {
        if (e->n_done == e->n_prompts) respond_whole(e);
        return;
    }
    if (e->blocked) return;
    if (ev->kind == LAGAN_EVENT_DONE)
        write_end(e);
    else if (c)
        write_choice(e, i, false);
    if (e->out.n || e->out.failed || e->head.failed) send(e);
}

nsec
events_iterate(struct exchange *e)
{
    nsec now = e->a->now, ping = clock_after(now, e->a->c.sse_ping), due;

    if (!e->stream || e->ending || !e->n_prompts || e->body) return NSEC_NEVER;
    due = http_started(e->x) ? clock_after(e->written, e->a->c.sse_ping)
                             : clock_after(e->begun, e->a->c.header_hold);
    if (e->blocked) return ping;
    if (now < due) return due;
    start_stream(e);
    out_put(&e->out, ": ping\n");
    send(e);
    return ping;
}
