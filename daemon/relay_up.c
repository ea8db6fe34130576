/* relay_up.c - what a worker says: see relay.h.
 *
 * ring_peek() has copied the record out and held its header to the rules; here every field of the
 * payload is, before anything of it is used. The first thing that cannot be true ends the worker.
 */
#include "base/failpoint.h"
#include "daemon/calls.h"
#include "daemon/deliver.h"
#include "daemon/pieces.h"
#include "daemon/recall.h"
#include "daemon/relay.h"
#include "ipc/records.h"
#include "wire/msg.h"

#include <errno.h>
#include <string.h>

enum { TURN_RECORDS = 1024, TURN_BYTES = 256 << 10, MAX_ENTRIES = 65536 };
/* Log-probabilities that wait for their client: from there on the worker is to pause, and what it had under way
 * still fits. */
enum { PAUSE_BYTES = 1 << 20, MAX_PENDING = 16 << 20 };

/* The unread rest of a payload; every step is 8-aligned where the format says so. */
struct rest {
    const char *p;
    size_t n;
};

static const void *
next(struct rest *b, size_t n)
{
    const void *p = b->p;

    if (n > b->n) return NULL;
    b->p += n;
    b->n -= n;
    return p;
}

static int
wrong(struct err *e, const char *what, uint32_t got, uint32_t want)
{
    return err_set(e, -EBADMSG, "%s is %u, not %u", what, got, want);
}

/* The row a worker speaks of. NULL with the sentence: it has no such request. */
static struct row *
named(struct worker *w, uint32_t index, uint32_t gen, struct err *e)
{
    struct row *r = ledger_row(w->d->ledger, index);

    if (!r || r->gen != gen || !r->held || r->worker != w->index) {
        err_set(e, -EBADMSG, "it speaks of row %u, generation %u, which it does not have", index,
                gen);
        return NULL;
    }
    if (w->sending == index) {
        err_set(e, -EBADMSG, "it speaks of row %u, which it has not got whole", index);
        return NULL;
    }
    return r;
}

/* The worker has said its last word about it. */
static void
let_go(struct worker *w, struct row *r)
{
    relay_forget_words(w, r);
    r->held = false;
    w->n_rows--;
    w->n_seqs -= row_n_seqs(r);
    w->tokens -= r->cost;
    if (w->alone == r->index) w->alone = ROW_NONE;
}

/* Memory of ours ran out for what it said: this request ends, nothing else does. What there was stays, of all lists as
 * much: they are read as ending together. */
static void
starve(struct worker *w, struct row *r)
{
    relay_cancel(w, r, LAGAN_E_OUT_OF_MEMORY);
    row_end(w->d, r, LAGAN_E_OUT_OF_MEMORY, "lagand has no memory for its tokens");
}

static int
keep_out(struct worker *w, struct row *r, const struct rec_out *o, const char *tokens,
         const char *lps, const char *tops, const char *text)
{
    struct row_piece piece = { o->output, o->n_tokens, o->text_bytes, o->score };
    size_t had[] = { r->token.n, r->text.n, r->logprob.n, r->top.n };
    size_t n = o->n_tokens, waits;

    if (bytes_add(&r->token, tokens, n * 4) < 0 || bytes_add(&r->text, text, o->text_bytes) < 0 ||
        (o->has_logprobs && (bytes_add(&r->logprob, lps, n * 4) < 0 ||
                             bytes_add(&r->top, tops, n * o->n_top * 8) < 0)) ||
        (r->out && pieces_add(r, &piece) < 0)) {
        r->token.n = had[0], r->text.n = had[1], r->logprob.n = had[2], r->top.n = had[3];
        starve(w, r);
        return 0;
    }
    waits = o->has_logprobs ? (row_n_tokens(r) - r->n_sent) * (4 + 8 * (size_t)o->n_top) : 0;
    if (waits > PAUSE_BYTES) row_pause(w->d, r, true);
    if (waits > MAX_PENDING) {
        relay_cancel(w, r, LAGAN_E_SLOW_READER);
        row_end(w->d, r, LAGAN_E_SLOW_READER,
                "%zu MiB of log-probabilities wait for the client to read", waits >> 20);
        return 0;
    }
    if (r->state == ROW_DISPATCHED) row_move(w->d->ledger, r, ROW_STREAMING);
    recall_tokens(w->d, r, o->n_tokens, o->text_bytes);
    if (blame_past(r)) {
        w->alone = ROW_NONE;
        w->d->n_suspects--;
        recall_state(w->d, r);
    }
    row_due(w->d, r);
    return 0;
}

/* One output's tokens of a step. */
static int
take_out(struct worker *w, struct rest *b, struct err *e)
{
    const char *tokens, *lps = NULL, *tops = NULL, *text;
    uint32_t n_said, n_text;
    struct rec_out o;
    const void *p = next(b, sizeof o);
    struct row *r;
    size_t n, tails;

    if (!p) return err_set(e, -EBADMSG, "STEP ends inside an entry");
    memcpy(&o, p, sizeof o);
    n = o.n_tokens;
    if (!n) return err_set(e, -EBADMSG, "STEP has an entry without tokens");
    if (o.has_logprobs > 1 || (!o.has_logprobs && o.n_top)) {
        return err_set(e, -EBADMSG, "STEP: has_logprobs is %u with %u tops", o.has_logprobs,
                       o.n_top);
    }
    if (o.n_top > LAGAN_MAX_TOP) return wrong(e, "STEP: n_top", o.n_top, LAGAN_MAX_TOP);
    tails = n * 4 + (o.has_logprobs ? n * 4 + n * o.n_top * 8 : 0) + (size_t)o.text_bytes;
    if (ROUND_UP(tails, (size_t)8) > b->n) return err_set(e, -EBADMSG, "STEP ends inside an entry");
    tokens = next(b, n * 4);
    if (o.has_logprobs) {
        lps = next(b, n * 4);
        tops = next(b, n * o.n_top * 8);
    }
    text = next(b, o.text_bytes);
    next(b, ROUND_UP(tails, (size_t)8) - tails);

    r = named(w, o.row, o.gen, e);
    if (!r) return -EBADMSG;
    if (o.output >= r->submit->n) {
        return err_set(e, -EBADMSG, "STEP: output %u of %u", o.output, r->submit->n);
    }
    if (r->text_unknown) r->n_text_said = o.text_first;
    r->text_unknown = false;
    n_said = r->out ? r->out[o.output].n_said : r->n_said;
    n_text = r->out ? r->out[o.output].n_text_said : r->n_text_said;
    if (o.first != n_said) return wrong(e, "STEP: first", o.first, n_said);
    if (o.text_first != n_text) return wrong(e, "STEP: text_first", o.text_first, n_text);
    if (r->out && r->out[o.output].reason) {
        return err_set(e, -EBADMSG, "STEP: output %u of row %u has ended", o.output, o.row);
    }
    if (n > r->submit->max_tokens - n_said) {
        return err_set(e, -EBADMSG, "STEP: row %u gets more than its %u tokens", o.row,
                       r->submit->max_tokens);
    }
    if (o.has_logprobs != ((r->submit->flags & SUBMIT_LOGPROBS) != 0) ||
        (o.has_logprobs && o.n_top != r->submit->logprobs)) {
        return err_set(e, -EBADMSG, "STEP: row %u has other log-probabilities than it asked for",
                       o.row);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t id;

        memcpy(&id, tokens + 4 * i, 4);
        if (id >= w->vocab) {
            return err_set(e, -EBADMSG, "STEP: token %u of a vocabulary of %u", id, w->vocab);
        }
    }
    if (!msg_utf8(text, o.text_bytes)) {
        return err_set(e, -EBADMSG, "STEP: the text of row %u is not UTF-8", o.row);
    }
    r->n_said += (uint32_t)n;
    r->n_text_said += o.text_bytes;
    r->score = o.score == o.score ? o.score : 0; /* no NaN on the wire */
    if (r->state != ROW_ENDED) return keep_out(w, r, &o, tokens, lps, tops, text);
    if (r->out) pieces_missed(r, o.output, o.n_tokens, o.text_bytes);
    return 0;
}

static int
take_step(struct worker *w, struct rest *b, struct err *e)
{
    struct rec_step s;
    const void *p = next(b, sizeof s);

    if (!p) return err_set(e, -EBADMSG, "STEP is shorter than its header");
    memcpy(&s, p, sizeof s);
    if (s.n_ent > MAX_ENTRIES) return wrong(e, "STEP: n_ent", s.n_ent, MAX_ENTRIES);
    for (uint32_t i = 0; i < s.n_ent; i++) TRY(take_out(w, b, e));
    return b->n ? err_set(e, -EBADMSG, "STEP is %zu bytes longer than its entries", b->n) : 0;
}

static int
take_prompt(struct worker *w, struct rest *b, struct err *e)
{
    struct rec_prompt s;
    const void *p = next(b, sizeof s), *ids, *lps, *tops;
    size_t had, had_top;
    struct row *r;
    uint32_t out;

    if (!p) return err_set(e, -EBADMSG, "PROMPT is shorter than its header");
    memcpy(&s, p, sizeof s);
    if (s.n_top > LAGAN_MAX_TOP || s.n > LAGAN_MAX_IDS) {
        return err_set(e, -EBADMSG, "PROMPT: %u positions with %u tops", s.n, s.n_top);
    }
    ids = next(b, (size_t)s.n * 4);
    lps = ids ? next(b, (size_t)s.n * 4) : NULL;
    tops = lps ? next(b, (size_t)s.n * s.n_top * 8) : NULL;
    if (!tops || b->n > 7) return err_set(e, -EBADMSG, "PROMPT's length is not what it says");
    r = named(w, s.row, s.gen, e);
    if (!r) return -EBADMSG;
    if (!(r->submit->flags & SUBMIT_PROMPT_LOGPROBS) || s.n_top != r->submit->prompt_logprobs) {
        return err_set(e, -EBADMSG, "PROMPT: row %u did not ask for that", s.row);
    }
    if (r->n_said) return err_set(e, -EBADMSG, "PROMPT: row %u has tokens already", s.row);
    if (s.first != r->n_prompt_said || s.n > LAGAN_MAX_IDS - s.first) {
        return wrong(e, "PROMPT: first", s.first, r->n_prompt_said);
    }
    /* A predecessor has said some, and they are out. */
    out = r->n_prompt_sent > s.first ? MIN(r->n_prompt_sent - s.first, s.n) : 0;
    r->n_prompt_said += s.n;
    s.n -= out;
    if (r->state == ROW_ENDED || !s.n) return 0;
    had = r->p_logprob.n, had_top = r->p_top.n;
    if (bytes_add(&r->p_id, (const char *)ids + (size_t)out * 4, (size_t)s.n * 4) < 0 ||
        bytes_add(&r->p_logprob, (const char *)lps + (size_t)out * 4, (size_t)s.n * 4) < 0 ||
        bytes_add(&r->p_top, (const char *)tops + (size_t)out * s.n_top * 8,
                  (size_t)s.n * s.n_top * 8) < 0) {
        r->p_id.n = r->p_logprob.n = had, r->p_top.n = had_top;
        starve(w, r);
    } else if (r->p_logprob.n + r->p_top.n > MAX_PENDING) {
        relay_cancel(w, r, LAGAN_E_SLOW_READER);
        row_end(w->d, r, LAGAN_E_SLOW_READER,
                "more than %d MiB of prompt log-probabilities wait for the client to read",
                MAX_PENDING >> 20);
    } else {
        if (r->p_logprob.n + r->p_top.n > PAUSE_BYTES) row_pause(w->d, r, true);
        row_due(w->d, r);
    }
    return 0;
}

/* Nobody says twice what is out; who begins anew says it again from the beginning. */
static int
keep_tensor(struct worker *w, struct row *r, struct row_tensor *t, const struct rec_tensor *s,
            const char *values)
{
    uint64_t most = w->d->config->o.tensor_bytes;
    uint32_t out = (uint32_t)MIN(t->said - s->first, (uint64_t)s->n);

    t->said += s->n - out;
    t->cols = s->cols;
    if (r->state == ROW_ENDED || s->n == out) return 0;
    if (4 * (r->tensor[0].said + r->tensor[1].said) > most) {
        relay_cancel(w, r, LAGAN_E_TOO_LONG);
        row_end(w->d, r, LAGAN_E_TOO_LONG,
                "its tensors are more than limits.tensor_bytes, which is %llu MiB",
                (unsigned long long)most >> 20);
    } else if (bytes_add(&t->value, values + (size_t)out * 4, (size_t)(s->n - out) * 4) < 0) {
        starve(w, r);
    } else {
        if (t->value.n > PAUSE_BYTES) row_pause(w->d, r, true);
        row_due(w->d, r);
    }
    return 0;
}

static int
take_tensor(struct worker *w, struct rest *b, struct err *e)
{
    static const uint8_t asked[] = { SUBMIT_ENCODER_OUTPUT, SUBMIT_LOGITS };
    struct rec_tensor s;
    const void *p = next(b, sizeof s), *values;
    struct row_tensor *t;
    struct row *r;

    if (!p) return err_set(e, -EBADMSG, "TENSOR is shorter than its header");
    memcpy(&s, p, sizeof s);
    if (s.kind < 1 || s.kind > LAGAN_N_TENSORS || !s.n || !s.cols)
        return err_set(e, -EBADMSG, "TENSOR: %u values of kind %u", s.n, s.kind);
    values = next(b, (size_t)s.n * 4);
    if (!values || b->n > 7) return err_set(e, -EBADMSG, "TENSOR's length is not what it says");
    r = named(w, s.row, s.gen, e);
    if (!r) return -EBADMSG;
    t = &r->tensor[s.kind - 1];
    if (!(r->submit->flags & asked[s.kind - 1]) || (t->said && s.cols != t->cols))
        return err_set(e, -EBADMSG, "TENSOR: row %u did not ask for that", s.row);
    if (t->unknown) t->said = t->sent = s.first;
    t->unknown = false;
    if (s.first > t->said)
        return err_set(e, -EBADMSG, "TENSOR: first is %llu, %llu were said",
                       (unsigned long long)s.first, (unsigned long long)t->said);
    return keep_tensor(w, r, t, &s, values);
}

/* One output of several has ended. 1: it was the last. */
static int
take_end(struct row *r, const struct rec_finish *f, struct err *e)
{
    struct row_output *o = &r->out[f->output];

    if (o->reason) return wrong(e, "FINISH: of an output that has ended", f->output, f->output);
    *o = (struct row_output){
        .n_said = o->n_said,
        .n_text_said = o->n_text_said,
        .score = f->score == f->score ? f->score : 0,
        .reason = f->reason,
        .cached = f->cached,
        .adopted = f->adopted,
        .recomputed = f->recomputed,
    };
    return pieces_over(r);
}

/* What the request ends with: an error of any output is the request's. */
static uint16_t
reason_of(const struct row *r, uint16_t last)
{
    for (uint32_t i = 0; r->out && i < r->submit->n; i++)
        if (r->out[i].reason >= LAGAN_FINISH_CANCELLED) return r->out[i].reason;
    return r->out ? r->out[0].reason : last;
}

static int
take_finish(struct worker *w, struct rest *b, struct err *e)
{
    struct rec_finish f;
    const void *p = next(b, sizeof f);
    struct row *r;
    uint32_t n_said;
    int k;

    if (!p || b->n) return err_set(e, -EBADMSG, "FINISH has not its size");
    memcpy(&f, p, sizeof f);
    r = named(w, f.row, f.gen, e);
    if (!r) return -EBADMSG;
    if (f.output >= r->submit->n) {
        return err_set(e, -EBADMSG, "FINISH: output %u of %u", f.output, r->submit->n);
    }
    if (!msg_reason(f.reason, NULL)) {
        return err_set(e, -EBADMSG, "FINISH: there is no reason %u", f.reason);
    }
    n_said = r->out ? r->out[f.output].n_said : r->n_said;
    if (f.n_tokens != n_said) return wrong(e, "FINISH: n_tokens", f.n_tokens, n_said);
    if (r->out) {
        k = take_end(r, &f, e);
        if (k <= 0) return k;
        f.reason = reason_of(r, f.reason);
    }
    let_go(w, r);
    if (r->state == ROW_ENDED) {
        row_settle(w->d, r);
        return 0;
    }
    r->score = f.score == f.score ? f.score : 0;
    r->cached = f.cached;
    r->adopted = f.adopted;
    r->recomputed = f.recomputed;
    row_end(w->d, r, f.reason == LAGAN_FINISH_CANCELLED ? LAGAN_E_CANCELLED : f.reason, "%s",
            msg_reason_sentence(f.reason));
    return 0;
}

static int
take_reject(struct worker *w, struct rest *b, struct err *e)
{
    struct rec_reject j;
    const void *p = next(b, sizeof j);
    struct row *r;
    int n;

    if (!p) return err_set(e, -EBADMSG, "REJECT is shorter than its header");
    memcpy(&j, p, sizeof j);
    if (ROUND_UP((size_t)j.text_bytes, (size_t)8) < b->n || j.text_bytes > b->n) {
        return err_set(e, -EBADMSG, "REJECT's length is not what it says");
    }
    r = named(w, j.row, j.gen, e);
    if (!r) return -EBADMSG;
    /* Those of a predecessor do not count. */
    if (r->state == ROW_STREAMING)
        return err_set(e, -EBADMSG, "REJECT: row %u has tokens already", j.row);
    if (j.reason < LAGAN_E_INVALID_REQUEST || !msg_reason(j.reason, NULL)) {
        return err_set(e, -EBADMSG, "REJECT: there is no error %u", j.reason);
    }
    let_go(w, r);
    if (r->state == ROW_ENDED) {
        row_settle(w->d, r);
        return 0;
    }
    n = msg_utf8(b->p, j.text_bytes) ? j.text_bytes : 0;
    row_end(w->d, r, j.reason, "%.*s", n, b->p);
    return 0;
}

static int
take_ready(struct worker *w, struct rest *b, struct err *e)
{
    struct model_facts *f = &w->d->facts[w->model];
    struct rec_ready y;
    const void *p = next(b, sizeof y);

    if (!p) return err_set(e, -EBADMSG, "READY is shorter than its header");
    memcpy(&y, p, sizeof y);
    if (w->super.state != SUPER_LOADING && w->super.state != SUPER_STOPPING &&
        w->super.state != SUPER_DYING) {
        return err_set(e, -EBADMSG, "READY comes twice");
    }
    if (!y.vocab || y.vocab > INT32_MAX || !y.max_len || !y.n_slots || y.n_slots > 65536 ||
        y.beams > LAGAN_MAX_BEAMS || y.name_bytes > b->n || y.name_bytes >= sizeof f->family ||
        b->n - y.name_bytes > 7) {
        return err_set(e, -EBADMSG,
                       "READY: vocabulary %u, length %u, %u slots, %u beams, name of %u bytes",
                       y.vocab, y.max_len, y.n_slots, y.beams, y.name_bytes);
    }
    *f = (struct model_facts){
        .known = true,
        .vocab = y.vocab,
        .max_len = y.max_len,
        .max_source = y.max_source,
        .n_slots = y.n_slots,
        .has_text = y.has_text != 0,
        .beams = MAX(y.beams, 1u),
        .max_tokens = y.max_tokens,
        .weight_bytes = y.weight_bytes,
        .kv_bytes = y.kv_bytes,
    };
    if (msg_utf8(b->p, y.name_bytes)) memcpy(f->family, b->p, y.name_bytes);
    w->vocab = y.vocab;
    w->ready_at = w->d->now;
    w->start_took = w->ready_at - w->spawned_at;
    worker_event(w, EV_READY);
    return 0;
}

int
relay_record(struct worker *w, const struct ring_record *rec, struct err *e)
{
    struct rest b = { rec->data, rec->len };
    struct rec_phase phase;

    if (rec->flags) return err_set(e, -EBADMSG, "a response in fragments");
    switch (rec->type) {
    case REC_READY:
        return take_ready(w, &b, e);
    case REC_STEP:
        return take_step(w, &b, e);
    case REC_FINISH:
        return take_finish(w, &b, e);
    case REC_REJECT:
        return take_reject(w, &b, e);
    case REC_PROMPT_LOGPROBS:
        return take_prompt(w, &b, e);
    case REC_TENSOR:
        return take_tensor(w, &b, e);
    case REC_TEXT_DONE:
        return calls_text_done(w, rec->data, rec->len, e);
    case REC_PHASE:
        if (rec->len != sizeof phase) return wrong(e, "PHASE: length", rec->len, sizeof phase);
        memcpy(&phase, rec->data, sizeof phase);
        w->load_done = MIN(phase.done, phase.total);
        w->load_total = phase.total;
        return 0;
    default: /* KV_EVENTS have no reader yet */
        return 0;
    }
}

/* -EBADMSG: nothing after it is read. */
static int
drain(struct worker *w, uint32_t records, size_t n_bytes, struct err *e)
{
    struct ring_record rec;
    size_t bytes = 0;
    uint32_t n = 0;
    int r = 0;

    while (n < records && bytes < n_bytes && (r = ring_peek(&w->channel.in, &rec)) > 0) {
        n++;
        w->n_records++;
        bytes += rec.len;
        r = relay_record(w, &rec, e);
        FP(relay_taken);
        if (r < 0) break;
    }
    if (r == -EBADMSG && *ring_why(&w->channel.in)) {
        err_set(e, r, "response ring: %s", ring_why(&w->channel.in));
    }
    if (n) channel_release(&w->channel);
    return r;
}

bool
relay_drain(struct worker *w)
{
    struct err e;

    if (!w->alive || w->lied) return false;
    if (drain(w, TURN_RECORDS, TURN_BYTES, &e) < 0) {
        worker_broken(w, DEATH_CORRUPTION, "%s", e.text);
        return false;
    }
    return !ring_empty(&w->channel.in);
}

void
relay_drain_dead(struct worker *w)
{
    struct err e;

    /* Complete records count, and what it said before it broke a rule. */
    if (!w->lied) w->lied = drain(w, UINT32_MAX, SIZE_MAX, &e) < 0;
}
