/* outputs.c - stores the tokens, text, log-probabilities and tensors that workers generated. */
#include "daemon/ledger/outputs.h"

#include "daemon/ledger/request.h"

int
bytes_add(struct bytes *b, const void *from, size_t n)
{
    if (b->n + n > b->cap) {
        size_t cap = MAX(b->cap * 2, (size_t)64);
        char *p;

        cap = MAX(cap, b->n + n);
        p = realloc(b->p, cap);
        if (!p) return -ENOMEM;
        b->p = p;
        b->cap = cap;
    }
    if (from && n) memcpy(b->p + b->n, from, n);
    b->n += n;
    return 0;
}

void
bytes_drop(struct bytes *b, size_t n)
{
    check(n <= b->n);
    b->n -= n;
    if (n && b->n) memmove(b->p, b->p + n, b->n);
}

void
bytes_done(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){ 0 };
}

int
outputs_init(struct request *r)
{
    if (r->submit->n == 1) return 0;
    r->outputs.each = calloc(r->submit->n, sizeof *r->outputs.each);
    return r->outputs.each ? 0 : -ENOMEM;
}

void
outputs_begin(struct request *r, struct bytes *ids)
{
    struct request_outputs *o = &r->outputs;

    bytes_done(&o->token);
    o->token = *ids;
    *ids = (struct bytes){ 0 };
    o->n_received = o->first_logprob = request_n_tokens(r);
    o->text_start_unknown = o->tensor[LAGAN_TENSOR_LOGITS - 1].start_unknown = o->n_received > 0;
}

static void
free_prompt(struct request_outputs *o)
{
    bytes_done(&o->prompt_id);
    bytes_done(&o->prompt_logprob);
    bytes_done(&o->prompt_top);
}

void
outputs_done(struct request *r)
{
    struct request_outputs *o = &r->outputs;

    bytes_done(&o->token);
    bytes_done(&o->text);
    bytes_done(&o->logprob);
    bytes_done(&o->top);
    free_prompt(o);
    for (uint32_t i = 0; i < LAGAN_N_TENSORS; i++) bytes_done(&o->tensor[i].value);
    free(o->each);
    o->each = NULL;
    bytes_done(&o->span);
}

size_t
outputs_bytes(const struct request *r)
{
    const struct request_outputs *o = &r->outputs;

    return o->token.cap + o->text.cap + o->logprob.cap + o->top.cap +
           (o->each ? o->span.cap + r->submit->n * sizeof *o->each : 0);
}

/* ---- received tokens */

uint32_t
request_n_tokens(const struct request *r)
{
    return (uint32_t)(r->outputs.token.n / sizeof(token_id));
}

struct request_output
outputs_at(const struct request *r, uint32_t output)
{
    const struct request_outputs *o = &r->outputs;

    if (o->each) return o->each[output];
    return (struct request_output){ o->n_received, o->n_text_received, .score = o->score };
}

uint32_t
outputs_longest(const struct request *r)
{
    uint32_t most = 0;

    if (!r->outputs.each) return request_n_tokens(r);
    for (uint32_t i = 0; i < r->submit->n; i++) most = MAX(most, r->outputs.each[i].n_received);
    return most;
}

/* With n outputs, request_n_tokens() counts the tokens of all of them. With beams it counts the
 * tokens of the best beam only: each other beam may still generate as many tokens as the best. */
uint64_t
outputs_n_unused(const struct request *r)
{
    const struct rec_submit *s = r->submit;

    return ((uint64_t)s->max_tokens * s->n - request_n_tokens(r)) * MAX(s->n, s->beams) / s->n;
}

void
outputs_set_text_start(struct request *r, uint32_t n)
{
    if (r->outputs.text_start_unknown) r->outputs.n_text_received = n;
    r->outputs.text_start_unknown = false;
}

void
outputs_set_score(struct request *r, float score)
{
    r->outputs.score = score == score ? score : 0; /* a client must not get NaN */
}

/* ---- spans */

uint32_t
outputs_n_spans(const struct request *r)
{
    return (uint32_t)(r->outputs.span.n / sizeof(struct stored_span));
}

static struct stored_span *
spans(const struct request *r)
{
    return (struct stored_span *)(void *)r->outputs.span.p;
}

/* Returns the span before span i; its totals end where span i starts. i 0: zeros. */
static struct stored_span
previous(const struct request *r, uint32_t i)
{
    return i ? spans(r)[i - 1] : (struct stored_span){ 0 };
}

struct output_span
outputs_span(const struct request *r, uint32_t i)
{
    const struct stored_span *p = spans(r) + i, was = previous(r, i);

    return (struct output_span){ p->output, p->end - was.end, p->end_text - was.end_text,
                                 r->outputs.each[p->output].score };
}

token_id
outputs_last_token(const struct request *r, uint32_t output)
{
    uint32_t i = outputs_n_spans(r), n = (uint32_t)(r->outputs.token.n / sizeof(token_id));
    token_id id;

    while (r->outputs.each && i && (spans(r)[i - 1].output != output || !outputs_span(r, i - 1).n))
        i--;
    if (r->outputs.each) n = i ? spans(r)[i - 1].end : 0;
    check(n > 0);
    memcpy(&id, r->outputs.token.p + (n - 1) * sizeof id, sizeof id);
    return id;
}

int
outputs_add_span(struct request *r, const struct output_span *p)
{
    uint32_t n = outputs_n_spans(r);
    struct request_output *o = &r->outputs.each[p->output];
    struct stored_span was = previous(r, n);
    struct stored_span new = { p->output, o->n_received, was.end + p->n, was.end_text + p->n_text };

    check(p->output < r->submit->n);
    if (n && spans(r)[n - 1].output == p->output) {
        spans(r)[n - 1].end = new.end;
        spans(r)[n - 1].end_text = new.end_text;
    } else {
        TRY(bytes_add(&r->outputs.span, &new, sizeof new));
    }
    o->n_received += p->n;
    o->n_text_received += p->n_text;
    o->score = p->score == p->score ? p->score : 0;
    return 0;
}

/* ---- streams */

void
outputs_count(struct request *r, const struct output_tokens *t)
{
    r->outputs.n_received += t->n;
    r->outputs.n_text_received += t->n_text;
    outputs_set_score(r, t->score);
    if (!r->outputs.each) return;
    r->outputs.each[t->output].n_received += t->n;
    r->outputs.each[t->output].n_text_received += t->n_text;
}

int
outputs_add(struct request *r, const struct output_tokens *t)
{
    struct request_outputs *o = &r->outputs;
    struct output_span span = { t->output, t->n, t->n_text, t->score };
    size_t had[] = { o->token.n, o->text.n, o->logprob.n, o->top.n };
    size_t n = t->n;

    if (bytes_add(&o->token, t->token, n * 4) < 0 || bytes_add(&o->text, t->text, t->n_text) < 0 ||
        (t->logprob && (bytes_add(&o->logprob, t->logprob, n * 4) < 0 ||
                        bytes_add(&o->top, t->top, n * t->n_top * 8) < 0)) ||
        (o->each && outputs_add_span(r, &span) < 0)) {
        /* No memory: shortens all lists to their old length, so that all end at the same token. */
        o->token.n = had[0], o->text.n = had[1], o->logprob.n = had[2], o->top.n = had[3];
        outputs_count(r, t);
        return -ENOMEM;
    }
    o->n_received += t->n;
    o->n_text_received += t->n_text;
    outputs_set_score(r, t->score);
    return 0;
}

void
outputs_count_prompt(struct request *r, uint32_t n)
{
    r->outputs.n_prompt_received += n;
}

int
outputs_add_prompt(struct request *r, const struct output_prompt *p)
{
    struct request_outputs *o = &r->outputs;
    size_t had = o->prompt_logprob.n, had_top = o->prompt_top.n, n = p->n;

    if (bytes_add(&o->prompt_id, p->id, n * 4) < 0 ||
        bytes_add(&o->prompt_logprob, p->logprob, n * 4) < 0 ||
        bytes_add(&o->prompt_top, p->top, n * p->n_top * 8) < 0) {
        o->prompt_id.n = o->prompt_logprob.n = had, o->prompt_top.n = had_top;
        return -ENOMEM;
    }
    return 0;
}

uint32_t
outputs_count_tensor(struct request *r, const struct rec_tensor *s)
{
    struct output_tensor *t = &r->outputs.tensor[s->kind - 1];
    uint32_t had;

    if (t->start_unknown) t->n_received = t->n_delivered = s->first;
    t->start_unknown = false;
    had = (uint32_t)MIN(t->n_received - s->first, (uint64_t)s->n);
    t->n_received += s->n - had;
    t->cols = s->cols;
    return had;
}

int
outputs_add_tensor(struct request *r, uint32_t kind, const void *values, uint32_t n)
{
    return bytes_add(&r->outputs.tensor[kind - 1].value, values, (size_t)n * 4);
}

void
outputs_drop_logprobs(struct request *r, uint32_t before)
{
    struct request_outputs *o = &r->outputs;
    uint32_t n = before > o->first_logprob ? before - o->first_logprob : 0;

    if (!(r->submit->flags & SUBMIT_LOGPROBS) || !n) return;
    bytes_drop(&o->logprob, (size_t)n * 4);
    bytes_drop(&o->top, (size_t)n * r->submit->logprobs * 8);
    o->first_logprob = before;
}

void
outputs_drop_prompt(struct request *r, uint32_t n)
{
    bytes_drop(&r->outputs.prompt_id, (size_t)n * 4);
    bytes_drop(&r->outputs.prompt_logprob, (size_t)n * 4);
    bytes_drop(&r->outputs.prompt_top, (size_t)n * r->submit->prompt_logprobs * 8);
}

void
outputs_drop_tensor(struct request *r, uint32_t kind, uint32_t n)
{
    r->outputs.tensor[kind - 1].n_delivered += n;
    bytes_drop(&r->outputs.tensor[kind - 1].value, (size_t)n * 4);
}

/* ---- end of an output */

bool
outputs_finish(struct request *r, const struct rec_finish *f)
{
    struct request_output *o = &r->outputs.each[f->output];

    o->score = f->score == f->score ? f->score : 0;
    o->reason = f->reason;
    o->stop = (uint16_t)f->stop;
    o->cached = f->cached;
    o->adopted = f->adopted;
    o->recomputed = f->recomputed;
    o->kv_blocks = f->kv_blocks;
    for (uint32_t i = 0; i < r->submit->n; i++)
        if (!r->outputs.each[i].reason) return false;
    return true;
}

uint16_t
outputs_reason(const struct request *r, uint16_t last)
{
    const struct request_output *o = r->outputs.each;

    for (uint32_t i = 0; o && i < r->submit->n; i++)
        if (o[i].reason >= LAGAN_FINISH_CANCELLED) return o[i].reason;
    return o ? o[0].reason : last;
}

void
outputs_restart(struct request *r)
{
    struct request_outputs *o = &r->outputs;

    for (uint32_t i = 0; o->each && i < r->submit->n; i++) o->each[i].reason = 0;
    if (o->n_received) return;
    free_prompt(o);
    o->n_prompt_received = 0;
}

/* ---- delivery of spans */

/* Advances *at, *n and *n_text (a span, and the delivered part of it) to the start of the next span
 * if span *at is delivered completely. Stays in the last span, because it may still grow. */
static void
step_over(const struct request *r, uint32_t *at, uint32_t *n, uint32_t *n_text)
{
    struct output_span p = outputs_span(r, *at);

    if (*at + 1 >= outputs_n_spans(r) || *n < p.n || *n_text < p.n_text) return;
    ++*at;
    *n = *n_text = 0;
}

struct output_span
outputs_next(const struct request *r)
{
    uint32_t at = r->outputs.span_at, n = r->outputs.span_n, n_text = r->outputs.span_text;
    struct output_span p = { 0 };

    if (!outputs_n_spans(r)) return p;
    step_over(r, &at, &n, &n_text);
    p = outputs_span(r, at);
    p.n -= n;
    p.n_text -= n_text;
    return p;
}

uint32_t
outputs_next_first(const struct request *r)
{
    uint32_t at = r->outputs.span_at, n = r->outputs.span_n, n_text = r->outputs.span_text;

    if (!outputs_n_spans(r)) return 0;
    step_over(r, &at, &n, &n_text);
    return spans(r)[at].first + n;
}

void
outputs_delivered(struct request *r, uint32_t n, uint32_t n_text)
{
    struct output_span p;

    step_over(r, &r->outputs.span_at, &r->outputs.span_n, &r->outputs.span_text);
    p = outputs_span(r, r->outputs.span_at);
    r->outputs.span_n += n;
    r->outputs.span_text += n_text;
    check(r->outputs.span_n <= p.n && r->outputs.span_text <= p.n_text);
}

/* Returns the index of the first span that a client with *n tokens and *n_text bytes of the request
 * has not received completely, or of the last span. Sets *n and *n_text to the tokens and bytes of
 * this span that the client has. There is at least one span. */
static uint32_t
place_of(const struct request *r, uint32_t *n, uint32_t *n_text)
{
    const struct stored_span *p = spans(r);
    uint32_t from = 0, to = outputs_n_spans(r) - 1;

    while (from < to) {
        uint32_t i = from + (to - from) / 2;

        if (*n >= p[i].end && *n_text >= p[i].end_text)
            from = i + 1;
        else
            to = i;
    }
    *n -= previous(r, from).end;
    *n_text -= previous(r, from).end_text;
    return from;
}

bool
outputs_can_resume(const struct request *r, uint32_t n, uint32_t n_text)
{
    struct output_span p;

    if (!outputs_n_spans(r)) return !n && !n_text;
    p = outputs_span(r, place_of(r, &n, &n_text));
    return n <= p.n && n_text <= p.n_text;
}

void
outputs_resume(struct request *r, uint32_t n, uint32_t n_text)
{
    struct output_span p;

    r->outputs.span_at = r->outputs.span_n = r->outputs.span_text = 0;
    if (!outputs_n_spans(r)) return;
    r->outputs.span_at = place_of(r, &n, &n_text);
    r->outputs.span_n = n;
    r->outputs.span_text = n_text;
    p = outputs_span(r, r->outputs.span_at);
    check(n <= p.n && n_text <= p.n_text);
}

void
outputs_order(const struct request *r, uint32_t *order)
{
    for (uint32_t i = 0; i < r->submit->n; i++) {
        uint32_t at = i;

        for (; at > 0 && r->outputs.each[i].score > r->outputs.each[order[at - 1]].score; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

uint32_t
outputs_record_bytes(const struct request *r)
{
    return r->outputs.each ? (uint32_t)(REC_PAD(request_n_tokens(r)) + REC_PAD(r->submit->n * 4))
                           : 0;
}

void
outputs_record(const struct request *r, uint32_t i, uint8_t *to, uint32_t n)
{
    uint32_t scores = (uint32_t)REC_PAD(request_n_tokens(r)), end = i + n;

    memset(to, 0, n);
    for (uint32_t k = 0; k < outputs_n_spans(r) && previous(r, k).end < end; k++) {
        uint32_t first = MAX(previous(r, k).end, i), last = MIN(spans(r)[k].end, end);

        if (first < last) memset(to + (first - i), (int)spans(r)[k].output, last - first);
    }
    for (uint32_t b = MAX(scores, i); b < MIN(scores + 4 * r->submit->n, end); b++) {
        const float *score = &r->outputs.each[(b - scores) / 4].score;

        to[b - i] = ((const uint8_t *)score)[(b - scores) % 4];
    }
}
