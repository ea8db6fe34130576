/* receive.c - validates the records of a worker's response ring and applies them to the ledger.
 *
 * ring_peek() has copied the record and checked its header. Each field of the payload is checked
 * before it is used. The first invalid field is a protocol error: lagand logs e and kills the
 * worker. In these error texts a request is named by the index of its ledger entry. */
#include "daemon/request/receive.h"

#include "daemon/config/options.h"
#include "daemon/ledger/ledger_save.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/quarantine.h"
#include "daemon/ledger/request.h"
#include "daemon/request/dispatch.h"
#include "daemon/request/kv_watch.h"
#include "daemon/request/latency.h"
#include "daemon/request/lifecycle.h"
#include "daemon/request/worker_calls.h"
#include "daemon/request/worker_notify.h"
#include "ipc/records.h"
#include "wire/msg.h"

enum { MAX_ENTRIES = 65536 }; /* most entries of a STEP record */
/* Limits of a request's undelivered log-probabilities or tensors. Above SUSPEND_BYTES the worker
 * suspends it; the data that are in flight then fit below MAX_UNDELIVERED. */
enum { SUSPEND_BYTES = 1 << 20, MAX_UNDELIVERED = 16 << 20 };
_Static_assert(LAGAN_MAX_SEARCH_LOGPROBS <= MAX_UNDELIVERED, "a beam search sends all at its end");

/* The n bytes of a record's payload that are not read yet. */
struct rest {
    const char *p;
    size_t n;
};

/* Returns the next n bytes of b and advances b; NULL: b has less than n bytes. */
static const void *
next(struct rest *b, size_t n)
{
    const void *p = b->p;

    if (n > b->n) return NULL;
    b->p += n;
    b->n -= n;
    return p;
}

/* Copies the first n bytes of the record, its header, to `to`. name: type of the record. */
static int
take_header(struct rest *b, void *to, size_t n, const char *name, struct err *e)
{
    const void *p = next(b, n);

    if (!p) return err_set(e, -EBADMSG, "%s of %zu bytes is shorter than its header", name, b->n);
    memcpy(to, p, n);
    return 0;
}

static int
wrong(struct err *e, const char *what, uint32_t got, uint32_t want)
{
    return err_set(e, -EBADMSG, "%s is %u, expected %u", what, got, want);
}

/* Finds the request that a record of w names. -EBADMSG: w does not have this request. */
static int
find_held(struct worker *w, uint32_t index, uint32_t gen, struct request **ret, struct err *e)
{
    struct request *r = ledger_request(worker_daemon(w)->ledger, index);

    if (!r || r->gen != gen || !r->dispatch.held || r->dispatch.worker != worker_info(w)->index)
        return err_set(e, -EBADMSG,
                       "a record names request %u, generation %u, which the worker does not have",
                       index, gen);
    if (worker_requests(w)->sending == index)
        return err_set(e, -EBADMSG,
                       "a record names request %u, but lagand has not sent the whole SUBMIT yet",
                       index);
    *ret = r;
    return 0;
}

/* Ends r because lagand has no memory for the data that a worker has sent for it. */
static void
end_without_memory(struct daemon *d, struct request *r)
{
    lifecycle_cancel(d, r, LAGAN_E_OUT_OF_MEMORY, "lagand has no memory for the generated tokens");
}

/* Suspends or ends r if its undelivered data, `bytes` of `what`, exceed SUSPEND_BYTES or
 * MAX_UNDELIVERED. Returns false if r has ended. */
static bool
check_unread(struct daemon *d, struct request *r, size_t bytes, const char *what)
{
    if (bytes > SUSPEND_BYTES) lifecycle_suspend(d, r, true);
    if (bytes <= MAX_UNDELIVERED) return true;
    lifecycle_cancel(d, r, LAGAN_E_SLOW_READER, "the client has not read %zu MiB of %s",
                     bytes >> 20, what);
    return false;
}

static void
keep_tokens(struct worker *w, struct request *r, const struct output_tokens *t)
{
    struct daemon *d = worker_daemon(w);
    size_t undelivered;

    if (outputs_add(r, t) < 0) {
        end_without_memory(d, r);
        return;
    }
    latency_tokens(d, r, t->output, t->n);
    undelivered = t->logprob
                      ? (request_n_tokens(r) - r->delivery.n_tokens) * (4 + 8 * (size_t)t->n_top)
                      : 0;
    if (!check_unread(d, r, undelivered, "log-probabilities")) return;
    if (r->state == REQUEST_DISPATCHED) request_move(d->ledger, r, REQUEST_STREAMING);
    ledger_save_tokens(d->ledger_log, r, t->n, t->n_text);
    if (quarantine_progress(d->quarantine, r)) ledger_save_state(d->ledger_log, r);
    ledger_add_pending(d->ledger, r);
}

/* Reads the next entry of a STEP, tokens of one output, to *o and *t (pointers into the record). */
static int
parse_entry(struct rest *b, struct rec_out *o, struct output_tokens *t, struct err *e)
{
    const void *p = next(b, sizeof *o);
    size_t n, tails;

    if (!p) return err_set(e, -EBADMSG, "STEP ends inside the header of an entry");
    memcpy(o, p, sizeof *o);
    n = o->n_tokens;
    if (!n)
        return err_set(e, -EBADMSG, "STEP: the entry of request %u has 0 tokens", o->ledger_index);
    if (o->has_logprobs > 1 || (!o->has_logprobs && o->n_top))
        return err_set(
            e, -EBADMSG,
            "STEP: request %u: has_logprobs is %u and n_top is %u; has_logprobs must be 0 "
            "or 1, and n_top must be 0 if has_logprobs is 0",
            o->ledger_index, o->has_logprobs, o->n_top);
    if (o->n_top > LAGAN_MAX_TOP)
        return err_set(e, -EBADMSG, "STEP: n_top is %u, the limit is %u", o->n_top, LAGAN_MAX_TOP);
    tails = n * 4 + (o->has_logprobs ? n * 4 + n * o->n_top * 8 : 0) + (size_t)o->text_bytes;
    if (ROUND_UP(tails, (size_t)8) > b->n)
        return err_set(e, -EBADMSG, "STEP ends inside the entry of request %u: %zu of %zu bytes",
                       o->ledger_index, b->n, tails);
    *t = (struct output_tokens){
        .output = o->output,
        .n = o->n_tokens,
        .n_text = o->text_bytes,
        .n_top = o->n_top,
        .score = o->score,
        .token = next(b, n * 4),
    };
    if (o->has_logprobs) {
        t->logprob = next(b, n * 4);
        t->top = next(b, n * o->n_top * 8);
    }
    t->text = next(b, o->text_bytes);
    next(b, ROUND_UP(tails, (size_t)8) - tails);
    return 0;
}

/* Checks that the tokens t of entry o follow the received tokens of r and match its SUBMIT. */
static int
check_entry(const struct worker *w, const struct request *r, const struct rec_out *o,
            const struct output_tokens *t, struct err *e)
{
    const struct request_output had = outputs_at(r, o->output);
    uint32_t vocab = worker_info(w)->vocab;
    bool lp = r->submit->flags & SUBMIT_LOGPROBS;

    if (o->first != had.n_received) return wrong(e, "STEP: first", o->first, had.n_received);
    if (o->text_first != had.n_text_received)
        return wrong(e, "STEP: text_first", o->text_first, had.n_text_received);
    if (had.reason)
        return err_set(e, -EBADMSG, "STEP: output %u of request %u has ended already", o->output,
                       o->ledger_index);
    if (t->n > r->submit->max_tokens - had.n_received)
        return err_set(e, -EBADMSG, "STEP: request %u gets more than its max_tokens of %u",
                       o->ledger_index, r->submit->max_tokens);
    if ((o->has_logprobs != 0) != lp || (lp && o->n_top != r->submit->logprobs))
        return err_set(e, -EBADMSG,
                       "STEP: request %u: has_logprobs is %u and n_top is %u, but its SUBMIT asks "
                       "for %d and %u",
                       o->ledger_index, o->has_logprobs, o->n_top, lp, r->submit->logprobs);
    for (size_t i = 0; i < t->n; i++) {
        uint32_t id;

        memcpy(&id, (const char *)t->token + 4 * i, 4);
        if (id >= vocab)
            return err_set(e, -EBADMSG, "STEP: token id %u, but the vocabulary has %u tokens", id,
                           vocab);
    }
    if (!msg_utf8(t->text, t->n_text))
        return err_set(e, -EBADMSG, "STEP: the text of request %u is not UTF-8", o->ledger_index);
    return 0;
}

/* Validates and stores the next entry of a STEP record: the new tokens of one output. */
static int
take_entry(struct worker *w, struct rest *b, struct err *e)
{
    struct output_tokens t;
    struct rec_out o;
    struct request *r;

    TRY(parse_entry(b, &o, &t, e));
    TRY(find_held(w, o.ledger_index, o.gen, &r, e));
    if (o.output >= r->submit->n)
        return err_set(e, -EBADMSG, "STEP: output index %u, but request %u has %u outputs",
                       o.output, o.ledger_index, r->submit->n);
    outputs_set_text_start(r, o.text_first);
    TRY(check_entry(w, r, &o, &t, e));
    if (r->state == REQUEST_ENDED)
        outputs_count(r, &t);
    else
        keep_tokens(w, r, &t);
    return 0;
}

static int
take_step(struct worker *w, struct rest *b, struct err *e)
{
    struct rec_step s;

    TRY(take_header(b, &s, sizeof s, "STEP", e));
    if (s.n_ent > MAX_ENTRIES)
        return err_set(e, -EBADMSG, "STEP: n_ent is %u, the limit is %u", s.n_ent, MAX_ENTRIES);
    for (uint32_t i = 0; i < s.n_ent; i++) TRY(take_entry(w, b, e));
    return b->n ? err_set(e, -EBADMSG, "STEP record has %zu bytes behind its last entry", b->n) : 0;
}

/* Stores the log-probabilities p of prompt positions that the client has not received. */
static void
keep_prompt(struct daemon *d, struct request *r, const struct output_prompt *p)
{
    const struct request_outputs *o = &r->outputs;

    if (outputs_add_prompt(r, p) < 0)
        end_without_memory(d, r);
    else if (check_unread(d, r, o->prompt_logprob.n + o->prompt_top.n, "prompt log-probabilities"))
        ledger_add_pending(d->ledger, r);
}

static int
take_prompt(struct worker *w, struct rest *b, struct err *e)
{
    struct output_prompt keep;
    struct rec_prompt s;
    const void *ids, *lps, *tops;
    struct request *r;
    uint32_t had;

    TRY(take_header(b, &s, sizeof s, "PROMPT", e));
    if (s.n_top > LAGAN_MAX_TOP || s.n > LAGAN_MAX_IDS)
        return err_set(e, -EBADMSG, "PROMPT: n is %u and n_top is %u; the limits are %u and %u",
                       s.n, s.n_top, LAGAN_MAX_IDS, LAGAN_MAX_TOP);
    ids = next(b, (size_t)s.n * 4);
    lps = ids ? next(b, (size_t)s.n * 4) : NULL;
    tops = lps ? next(b, (size_t)s.n * s.n_top * 8) : NULL;
    if (!tops || b->n > 7)
        return err_set(e, -EBADMSG, "PROMPT: the record's length does not match its n and n_top");
    TRY(find_held(w, s.ledger_index, s.gen, &r, e));
    if (!(r->submit->flags & SUBMIT_PROMPT_LOGPROBS) || s.n_top != r->submit->prompt_logprobs)
        return err_set(e, -EBADMSG, "PROMPT: request %u did not ask for prompt_logprobs %u",
                       s.ledger_index, s.n_top);
    if (r->outputs.n_received)
        return err_set(e, -EBADMSG, "PROMPT came after the first generated token of request %u",
                       s.ledger_index);
    if (s.first != r->outputs.n_prompt_received || s.n > LAGAN_MAX_IDS - s.first)
        return wrong(e, "PROMPT: first", s.first, r->outputs.n_prompt_received);
    /* A replacement worker sends all positions again; the client has the first ones already. */
    had = r->delivery.n_prompt > s.first ? MIN(r->delivery.n_prompt - s.first, s.n) : 0;
    outputs_count_prompt(r, s.n);
    keep = (struct output_prompt){
        .n = s.n - had,
        .n_top = s.n_top,
        .id = (const char *)ids + (size_t)had * 4,
        .logprob = (const char *)lps + (size_t)had * 4,
        .top = (const char *)tops + (size_t)had * s.n_top * 8,
    };
    if (r->state != REQUEST_ENDED && keep.n) keep_prompt(worker_daemon(w), r, &keep);
    return 0;
}

/* Stores n values of a tensor that were not received before. */
static void
keep_tensor(struct daemon *d, struct request *r, uint32_t kind, const char *values, uint32_t n)
{
    const struct output_tensor *t = r->outputs.tensor;
    uint64_t most = d->config->o.tensor_bytes;

    if (4 * (t[0].n_received + t[1].n_received) > most) {
        lifecycle_cancel(d, r, LAGAN_E_TOO_LONG,
                         "the tensors of the request exceed limits.tensor_bytes, which is %llu MiB",
                         (unsigned long long)most >> 20);
    } else if (outputs_add_tensor(r, kind, values, n) < 0) {
        end_without_memory(d, r);
    } else {
        if (t[kind - 1].value.n > SUSPEND_BYTES) lifecycle_suspend(d, r, true);
        ledger_add_pending(d->ledger, r);
    }
}

static int
take_tensor(struct worker *w, struct rest *b, struct err *e)
{
    static const uint8_t asked[] = { SUBMIT_ENCODER_OUTPUT, SUBMIT_LOGITS };
    struct rec_tensor s;
    const char *values;
    const struct output_tensor *t;
    struct request *r;
    uint32_t had;

    TRY(take_header(b, &s, sizeof s, "TENSOR", e));
    if (s.kind < 1 || s.kind > LAGAN_N_TENSORS || !s.n || !s.cols)
        return err_set(e, -EBADMSG,
                       "TENSOR: n is %u, kind is %u, cols is %u; expected n and cols above 0 and a "
                       "kind from 1 to %d",
                       s.n, s.kind, s.cols, LAGAN_N_TENSORS);
    values = next(b, (size_t)s.n * 4);
    if (!values || b->n > 7)
        return err_set(e, -EBADMSG, "TENSOR: the record's length does not match its n of %u", s.n);
    TRY(find_held(w, s.ledger_index, s.gen, &r, e));
    t = &r->outputs.tensor[s.kind - 1];
    if (!(r->submit->flags & asked[s.kind - 1]))
        return err_set(e, -EBADMSG, "TENSOR: request %u did not ask for kind %u", s.ledger_index,
                       s.kind);
    if (t->n_received && s.cols != t->cols)
        return err_set(e, -EBADMSG, "TENSOR: cols of request %u changed from %u to %u",
                       s.ledger_index, t->cols, s.cols);
    if (!t->start_unknown && s.first > t->n_received)
        return err_set(
            e, -EBADMSG, "TENSOR starts at value %llu of request %u, but only %llu came before it",
            (unsigned long long)s.first, s.ledger_index, (unsigned long long)t->n_received);
    had = outputs_count_tensor(r, &s);
    if (r->state != REQUEST_ENDED && s.n > had)
        keep_tensor(worker_daemon(w), r, s.kind, values + (size_t)had * 4, s.n - had);
    return 0;
}

static int
take_finish(struct worker *w, struct rest *b, struct err *e)
{
    struct rec_finish f;
    const void *p = next(b, sizeof f);
    struct request_output had;
    struct request *r;

    if (!p || b->n)
        return err_set(e, -EBADMSG, "FINISH record has %zu bytes, expected %zu",
                       b->n + (p ? sizeof f : 0), sizeof f);
    memcpy(&f, p, sizeof f);
    TRY(find_held(w, f.ledger_index, f.gen, &r, e));
    if (f.output >= r->submit->n)
        return err_set(e, -EBADMSG, "FINISH: output index %u, but request %u has %u outputs",
                       f.output, f.ledger_index, r->submit->n);
    if (!msg_reason(f.reason, NULL))
        return err_set(e, -EBADMSG, "FINISH: reason %u is unknown", f.reason);
    if (f.stop > (f.reason == LAGAN_FINISH_STOP ? r->submit->n_stop : 0u))
        return err_set(e, -EBADMSG, "FINISH: stop is %u, but request %u has %u stop strings",
                       f.stop, f.ledger_index, r->submit->n_stop);
    had = outputs_at(r, f.output);
    if (f.n_tokens != had.n_received)
        return wrong(e, "FINISH: n_tokens", f.n_tokens, had.n_received);
    if (had.reason)
        return err_set(e, -EBADMSG, "FINISH: output %u of request %u has ended already", f.output,
                       f.ledger_index);
    if (r->outputs.each && !outputs_finish(r, &f)) return 0;
    f.reason = outputs_reason(r, f.reason);
    dispatch_release(w, r);
    if (r->state == REQUEST_ENDED)
        lifecycle_settle(worker_daemon(w), r);
    else
        lifecycle_finish(worker_daemon(w), r, &f);
    return 0;
}

static int
take_reject(struct worker *w, struct rest *b, struct err *e)
{
    struct rec_reject j;
    struct request *r;
    int n;

    TRY(take_header(b, &j, sizeof j, "REJECT", e));
    if (ROUND_UP((size_t)j.text_bytes, (size_t)8) < b->n || j.text_bytes > b->n)
        return err_set(e, -EBADMSG, "REJECT: text_bytes is %u, but %zu bytes follow the header",
                       j.text_bytes, b->n);
    TRY(find_held(w, j.ledger_index, j.gen, &r, e));
    /* STREAMING: this worker has sent tokens of r. When a worker ends, r becomes QUEUED again. */
    if (r->state == REQUEST_STREAMING)
        return err_set(e, -EBADMSG, "REJECT came after the first generated token of request %u",
                       j.ledger_index);
    if (j.reason < LAGAN_E_INVALID_REQUEST || !msg_reason(j.reason, NULL))
        return err_set(e, -EBADMSG, "REJECT: error code %u is unknown", j.reason);
    dispatch_release(w, r);
    if (r->state == REQUEST_ENDED) {
        lifecycle_settle(worker_daemon(w), r);
        return 0;
    }
    n = msg_utf8(b->p, j.text_bytes) ? j.text_bytes : 0;
    lifecycle_reject(worker_daemon(w), r, &j, b->p, n);
    return 0;
}

/* Returns true if the field of n bytes is a NUL-terminated UTF-8 string. */
static bool
is_text(const char *field, size_t n)
{
    return memchr(field, 0, n) && msg_utf8(field, strlen(field));
}

static int
take_ready(struct worker *w, struct rest *b, struct err *e)
{
    struct model_facts *f = &worker_daemon(w)->facts[worker_info(w)->model];
    enum super_state state = worker_state(w);
    struct rec_ready y;

    TRY(take_header(b, &y, sizeof y, "READY", e));
    if (state != SUPER_LOADING && state != SUPER_STOPPING && state != SUPER_DYING) {
        return err_set(e, -EBADMSG, "READY was sent twice");
    }
    if (!y.vocab || y.vocab > INT32_MAX || !y.max_len || !y.n_slots || y.n_slots > 65536 ||
        y.tokens_per_block > 65536 || y.beams > LAGAN_MAX_BEAMS ||
        y.name_bytes >= sizeof f->family || y.device_bytes >= READY_DEVICE ||
        REC_PAD(y.name_bytes) + REC_PAD(y.device_bytes) != b->n || !(y.temperature >= 0) ||
        !is_text(y.unserved, sizeof y.unserved) || !is_text(y.dtype, sizeof y.dtype) ||
        !is_text(y.chat_template, sizeof y.chat_template)) {
        return err_set(
            e, -EBADMSG,
            "READY: a field is invalid: vocab %u, max_len %u (both above 0), n_slots %u and "
            "tokens_per_block %u (at most 65536), beams %u (at most %d), temperature %g (0 up), "
            "name_bytes %u (at most %zu), device_bytes %u (at most %d), unserved, dtype or "
            "chat_template (UTF-8)",
            y.vocab, y.max_len, y.n_slots, y.tokens_per_block, y.beams, LAGAN_MAX_BEAMS,
            (double)y.temperature, y.name_bytes, sizeof f->family - 1, y.device_bytes,
            READY_DEVICE - 1);
    }
    *f = (struct model_facts){
        .known = true,
        .vocab = y.vocab,
        .max_len = y.max_len,
        .max_source = y.max_source,
        .n_slots = y.n_slots,
        .tokens_per_block = y.tokens_per_block,
        .has_text = y.has_text != 0,
        .tokenizer_fault = y.tokenizer_fault != 0,
        .beams = MAX(y.beams, 1u),
        .max_request_seqs = y.max_request_seqs ? y.max_request_seqs : y.n_slots,
        .max_text_bytes = !y.has_text        ? 0
                          : y.max_text_bytes ? MIN(y.max_text_bytes, LAGAN_MAX_STR)
                                             : LAGAN_MAX_STR,
        .temperature = y.temperature,
        .decoder_start = y.decoder_start,
        .max_tokens = y.max_tokens,
        .weight_bytes = y.weight_bytes,
        .kv_bytes = y.kv_bytes,
        .since = f->since ? f->since : (uint64_t)time(NULL),
        .fingerprint = y.fingerprint,
    };
    memcpy(f->defaults, y.defaults, sizeof f->defaults);
    memcpy(f->chat_template, y.chat_template, sizeof f->chat_template);
    memcpy(f->unserved, y.unserved, sizeof f->unserved);
    memcpy(f->dtype, y.dtype, sizeof f->dtype);
    if (msg_utf8(b->p, y.name_bytes)) memcpy(f->family, b->p, y.name_bytes);
    worker_ready(w, y.vocab, b->p + REC_PAD(y.name_bytes), y.device_bytes);
    return 0;
}

int
receive_record(struct worker *w, const struct ring_record *rec, struct err *e)
{
    struct rest b = { rec->data, rec->len };
    struct rec_phase phase;

    if (rec->flags)
        return err_set(e, -EBADMSG, "a response record has flags 0x%x instead of 0", rec->flags);
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
    case REC_KV_EVENTS:
        return kv_watch_record(w, rec->data, rec->len, e);
    case REC_TEXT_DONE:
        return worker_calls_text_done(w, rec->data, rec->len, e);
    case REC_PHASE:
        if (rec->len != sizeof phase) return wrong(e, "PHASE: length", rec->len, sizeof phase);
        memcpy(&phase, rec->data, sizeof phase);
        worker_loading(w, phase.done, phase.total);
        return 0;
    default: /* records of other types have no reader in lagand */
        return 0;
    }
}
