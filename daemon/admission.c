/* admission.c - see admission.h.
 *
 * Everything that can be said without the model is said before ACCEPT. What READY tells of a model is
 * held against the request as soon as it is known: at once, or when a worker is there.
 */
#include "daemon/admission.h"

#include "daemon/deliver.h"
#include "daemon/pieces.h"
#include "daemon/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* err_set() for a code of the wire. */
#define REFUSED(e, code, ...) (err_set(e, -EINVAL, __VA_ARGS__), LAGAN_E_##code)

/* ---- the record */

struct tail {
    char *at;
};

static void
put(struct tail *t, const void *p, size_t n)
{
    if (n) memcpy(t->at, p, n);
    t->at += ROUND_UP(n, (size_t)8);
}

static void
put_ids(struct tail *t, const struct msg_ids *ids)
{
    msg_ids_copy(ids, t->at);
    t->at += ROUND_UP((size_t)ids->n * 4, (size_t)8);
}

static size_t
stop_bytes(const struct msg_request *q)
{
    size_t n = 0;

    for (uint32_t i = 0; i < q->n_stop; i++) n += 4 + q->stop[i].n;
    return ROUND_UP(n, (size_t)8);
}

static size_t
ids_bytes(const struct msg_ids *ids)
{
    return ROUND_UP((size_t)ids->n * 4, (size_t)8);
}

static uint32_t
text_bytes(const struct msg_request *q)
{
    return q->messages.p ? ADMISSION_DAY + q->messages.n : q->text.n;
}

void
admission_day(char day[ADMISSION_DAY])
{
    char text[ADMISSION_DAY + 1];
    time_t now = time(NULL);
    struct tm t;

    localtime_r(&now, &t);
    check(strftime(text, sizeof text, "%Y-%m-%d\n", &t) == ADMISSION_DAY);
    memcpy(day, text, ADMISSION_DAY);
}

struct rec_submit *
admission_record(const struct msg_request *q, uint64_t seed, uint32_t *bytes)
{
    size_t n = sizeof(struct rec_submit) + ids_bytes(&q->ids) + ids_bytes(&q->decoder_ids) +
               ROUND_UP((size_t)text_bytes(q), (size_t)8) + ids_bytes(&q->eos_ids) +
               ids_bytes(&q->stop_ids) + stop_bytes(q) + q->n_logit_bias * sizeof q->logit_bias[0];
    struct rec_submit *s = calloc(1, n);
    struct tail t;

    if (!s) return NULL;
    *s = (struct rec_submit){
        .seed = seed,
        .n_prompt = q->ids.n,
        .n_decoder = q->decoder_ids.n,
        .text_bytes = text_bytes(q),
        .chat = q->messages.p != NULL,
        .absent = q->absent,
        .n_eos = q->has_eos ? (uint16_t)q->eos_ids.n : 0xffff,
        .n_stop_ids = (uint16_t)q->stop_ids.n,
        .n_stop = (uint16_t)q->n_stop,
        .n_bias = (uint16_t)q->n_logit_bias,
        .flags = (uint8_t)((q->ignore_eos ? SUBMIT_IGNORE_EOS : 0) |
                           (q->want_logprobs ? SUBMIT_LOGPROBS : 0) |
                           (q->return_logits ? SUBMIT_LOGITS : 0) |
                           /* before the first token, if at all */
                           (q->return_encoder_output && !q->generated_ids.n ? SUBMIT_ENCODER_OUTPUT
                                                                            : 0) |
                           (q->want_prompt_logprobs && !q->generated_ids.n ? SUBMIT_PROMPT_LOGPROBS
                                                                           : 0)),
    };
#define COPY_LAGAND(kind, name)
#define COPY_WORKER(kind, name) s->name = (SUBMIT_TYPE_##kind)q->name;
#define COPY_SAMPLER(kind, name) COPY_WORKER(kind, name)
#define X(kind, name, least, most, preset, record, fallback, sentence) COPY_##record(kind, name)
    LAGAN_FIELDS(X)
#undef X
    t.at = (char *)(s + 1);
    put_ids(&t, &q->ids);
    put_ids(&t, &q->decoder_ids);
    if (q->messages.p) {
        admission_day(t.at);
        memcpy(t.at + ADMISSION_DAY, q->messages.p, q->messages.n);
        t.at += ROUND_UP((size_t)text_bytes(q), (size_t)8);
    } else {
        put(&t, q->text.p, q->text.n);
    }
    put_ids(&t, &q->eos_ids);
    put_ids(&t, &q->stop_ids);
    for (uint32_t i = 0; i < q->n_stop; i++) {
        memcpy(t.at, &q->stop[i].n, 4);
        memcpy(t.at + 4, q->stop[i].p, q->stop[i].n);
        t.at += 4 + q->stop[i].n;
    }
    t.at = (char *)s + n - q->n_logit_bias * sizeof q->logit_bias[0];
    put(&t, q->logit_bias, q->n_logit_bias * sizeof q->logit_bias[0]);
    *bytes = (uint32_t)n;
    return s;
}

/* ---- against the model */

static int
in_vocabulary(const struct model_facts *f, const char *key, const void *ids, uint32_t n,
              struct err *e)
{
    const char *p = ids;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t id;

        memcpy(&id, p + 4 * (size_t)i, 4);
        if (id >= f->vocab) {
            return REFUSED(e, INVALID_REQUEST, "%s[%u] is %u, the vocabulary has %u tokens", key, i,
                           id, f->vocab);
        }
    }
    return 0;
}

/* As far as counts say. */
static int
fits_in_length(const struct model_facts *f, const struct rec_submit *s, struct err *e)
{
    if (!f->known) return 0;
    if (s->n_decoder && !f->max_source) {
        return REFUSED(e, INVALID_REQUEST,
                       "decoder_ids is given, but %s is decoder-only: its prompt is ids or text",
                       f->family);
    }
    if ((s->text_bytes || s->n_stop) && !f->has_text) {
        return REFUSED(e, UNSUPPORTED, "%s: the model has no tokenizer, give ids",
                       s->chat         ? "messages"
                       : s->text_bytes ? "text"
                                       : "stop");
    }
    if (f->max_source && s->n_prompt > f->max_source) {
        return REFUSED(e, TOO_LONG, "the encoder's input is %u tokens, at most %u are taken",
                       s->n_prompt, f->max_source);
    }
    if (!f->max_source && s->n_prompt >= f->max_len) {
        return REFUSED(
            e, TOO_LONG,
            "the prompt is %u tokens, the model's length is %u with at least one to come",
            s->n_prompt, f->max_len);
    }
    if (f->max_source && s->n_decoder >= f->max_len) {
        return REFUSED(e, TOO_LONG,
                       "decoder_ids is %u tokens, the model's length is %u with one to come",
                       s->n_decoder, f->max_len);
    }
    if (!f->max_source && f->max_tokens && s->n_prompt >= f->max_tokens) {
        return REFUSED(e, TOO_LONG,
                       "the prompt is %u tokens, the KV cache can never hold more than %llu",
                       s->n_prompt, (unsigned long long)f->max_tokens);
    }
    return 0;
}

/* As far as can be told before: the rest is held against it when the tensors come. */
static int
tensors_fit(const struct model_facts *f, const struct rec_submit *s, uint64_t most, struct err *e)
{
    uint64_t rows = MIN(s->max_tokens, f->max_len), bytes = 4 * rows * f->vocab;

    if ((s->flags & SUBMIT_ENCODER_OUTPUT) && !f->max_source)
        return REFUSED(e, INVALID_REQUEST, "return_encoder_output is given, but %s is decoder-only",
                       f->family);
    if ((s->flags & SUBMIT_LOGITS) && !(s->absent & ABSENT_max_tokens) && bytes > most)
        return REFUSED(e, TOO_LONG,
                       "logits of %llu tokens are %llu MiB, limits.tensor_bytes is %llu",
                       (unsigned long long)rows, (unsigned long long)bytes >> 20,
                       (unsigned long long)most >> 20);
    return 0;
}

int
admission_fits(const struct model_facts *f, const struct rec_submit *s, uint64_t tensor_bytes,
               struct err *e)
{
    const char *p = (const char *)(s + 1);
    uint32_t n_eos = s->n_eos == 0xffff ? 0 : s->n_eos;
    int k = fits_in_length(f, s, e);

    if (k || !f->known) return k;
    k = tensors_fit(f, s, tensor_bytes, e);
    if (k) return k;
    k = in_vocabulary(f, "ids", p, s->n_prompt, e);
    p += ROUND_UP((size_t)s->n_prompt * 4, (size_t)8);
    if (k == 0) k = in_vocabulary(f, "decoder_ids", p, s->n_decoder, e);
    p += ROUND_UP((size_t)s->n_decoder * 4, (size_t)8) + ROUND_UP((size_t)s->text_bytes, (size_t)8);
    if (k == 0) k = in_vocabulary(f, "eos_ids", p, n_eos, e);
    p += ROUND_UP((size_t)n_eos * 4, (size_t)8);
    if (k == 0) k = in_vocabulary(f, "stop_ids", p, s->n_stop_ids, e);
    if (k) return k;
    if (MAX(s->n, s->beams) > MAX(f->n_slots, 1u)) {
        return REFUSED(e, INVALID_REQUEST,
                       "%s is %u: each is a sequence of its own, and max_num_seqs is %u",
                       s->beams > 1 ? "beams" : "n", MAX(s->n, s->beams), f->n_slots);
    }
    if (s->forced_bos >= 0 && (uint32_t)s->forced_bos >= f->vocab) {
        return REFUSED(e, INVALID_REQUEST, "forced_bos is %d, the vocabulary has %u tokens",
                       s->forced_bos, f->vocab);
    }
    if (s->forced_eos >= 0 && (uint32_t)s->forced_eos >= f->vocab) {
        return REFUSED(e, INVALID_REQUEST, "forced_eos is %d, the vocabulary has %u tokens",
                       s->forced_eos, f->vocab);
    }
    return 0;
}

int
admission_fits_done(const struct model_facts *f, const void *ids, uint32_t n, uint32_t longest,
                    struct err *e)
{
    if (!f->known) return 0;
    if (longest >= f->max_len)
        return REFUSED(e, TOO_LONG, "generated_ids has %u tokens, the model's length is %u",
                       longest, f->max_len);
    return in_vocabulary(f, "generated_ids", ids, n, e);
}

/* ---- a SUBMIT */

/* Which of our models; MAX_MODELS and the sentence: none. */
static uint32_t
model_of(const struct config *c, const struct msg_request *q, int *code, struct err *e)
{
    *code = 0;
    if (!q->model.p && c->n_models == 1) return 0;
    if (!q->model.p) {
        *code = REFUSED(e, INVALID_REQUEST, MODEL_MISSING, c->n_models);
        return MAX_MODELS;
    }
    for (uint32_t i = 0; i < c->n_models; i++) {
        const char *name = c->model[i].keys.name;

        if (strlen(name) == q->model.n && !memcmp(name, q->model.p, q->model.n)) return i;
    }
    *code = REFUSED(e, MODEL_NOT_FOUND, "model \"%.*s\" is not served here",
                    (int)MIN(q->model.n, 100u), q->model.p);
    return MAX_MODELS;
}

/* Limits that do not depend on what is asked. */
static int
room(struct daemon *d, struct client *c, struct err *e)
{
    const struct options *o = &d->config->o;

    if (d->draining)
        return REFUSED(e, DRAINING, "the service is stopping and takes no new requests");
    if (c->n_open >= o->max_inflight) {
        return REFUSED(e, QUEUE_FULL, "this client has %u open requests, api.max_inflight is %u",
                       c->n_open, o->max_inflight);
    }
    if (ledger_n_queued(d->ledger) >= o->max_queued_reqs) {
        return REFUSED(e, QUEUE_FULL, "%u requests wait, scheduler.max_num_queued_reqs is %u",
                       ledger_n_queued(d->ledger), o->max_queued_reqs);
    }
    return 0;
}

/* Will some worker of the model take requests, now or once it is up again? Not when an operator drained
 * the last one, or all have failed for good: a request would wait for ever. */
static bool
will_be_served(const struct daemon *d, uint32_t model)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct super *s = &d->worker[i]->super;
        bool leaves = s->state == SUPER_DRAINING || s->state == SUPER_STOPPING;

        if (d->worker[i]->model != model) continue;
        n++;
        if (s->state != SUPER_DOWN && s->state != SUPER_FAILED && s->state != SUPER_LOST &&
            !(leaves && !s->again))
            return true;
    }
    return n == 0;
}

static int
copy_ids(struct bytes *to, const struct msg_ids *ids)
{
    TRY(bytes_add(to, NULL, (size_t)ids->n * 4));
    if (ids->n) msg_ids_copy(ids, to->p);
    return 0;
}

/* The answer begins with tokens that the client has. */
static void
begin_with(struct row *r, const struct bytes *done)
{
    bytes_done(&r->token);
    r->token = *done;
    r->n_said = r->n_sent = r->lp_first = r->mark_token = row_n_tokens(r);
    r->text_unknown = r->tensor[LAGAN_TENSOR_LOGITS - 1].unknown = r->n_said > 0;
}

static uint64_t
any_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) seed = (uint64_t)clock_now();
    return seed >> 1; /* also an int64_t for languages that have no other */
}

/* It has ended with an error that may be no other's: to answer with it again would be the end of trying. */
static bool
is_to_be_tried_again(const struct row *r)
{
    bool retry = false;

    return r->state == ROW_ENDED && msg_reason(r->reason, &retry) && retry;
}

/* Is this about a request that there is already? A code, or 0: then *ret is the first one with its key,
 * which this connection now reads, or NULL: it is new. */
static int
known(struct daemon *d, struct client *c, uint64_t rid, const struct msg_request *q,
      struct row **ret, struct err *e)
{
    struct row *r;

    *ret = NULL;
    if (!c->has_session) {
        return q->idempotency_key.n ? REFUSED(e, INVALID_REQUEST,
                                              "idempotency_key needs a session, which HELLO gives")
                                    : 0;
    }
    r = q->idempotency_key.n
            ? ledger_find_key(d->ledger, &c->session, q->idempotency_key.p, q->idempotency_key.n)
            : NULL;
    if (r && is_to_be_tried_again(r)) {
        deliver_forget(d, r);
        r = NULL;
    }
    if (r) {
        if (q->generated_ids.n || deliver_resume(d, r, c, rid, 0, 0, q->ack_window) < 0)
            return REFUSED(e, INVALID_REQUEST,
                           "the answer to the first request with this key is not kept whole");
        *ret = r;
        return 0;
    }
    r = ledger_find_rid(d->ledger, &c->session, rid);
    if (!r || r->kept) return 0;
    return REFUSED(
        e, INVALID_REQUEST,
        "two requests with one id: %llu is open on another connection; RESUME takes it over",
        (unsigned long long)rid);
}

/* What a request may come to take here: itself, its answer with its text, and what waits to be read. */
static uint64_t
most_bytes(const struct daemon *d, uint32_t model, const struct rec_submit *s,
           uint64_t submit_bytes)
{
    enum { TOKEN = 4, TEXT = 12, WAITING = 16 << 20 };
    const struct model_facts *f = &d->facts[model];
    uint64_t n = f->known ? MIN(s->max_tokens, f->max_len) : s->max_tokens;
    uint64_t each = s->flags & SUBMIT_LOGPROBS ? 4 + 8 * (uint64_t)s->logprobs : 0;
    uint64_t prompt = s->flags & SUBMIT_PROMPT_LOGPROBS ? 8 + 8 * (uint64_t)s->prompt_logprobs : 0;

    n *= s->n;
    if (s->flags & (SUBMIT_ENCODER_OUTPUT | SUBMIT_LOGITS))
        submit_bytes += d->config->o.tensor_bytes;
    return sizeof(struct row) + submit_bytes + n * (TOKEN + TEXT) +
           (s->n > 1 ? n * sizeof(struct row_place) + s->n * sizeof(struct row_output) : 0) +
           MIN(n * each, (uint64_t)WAITING) +
           MIN(ledger_prompt_cost(s) * prompt, (uint64_t)WAITING);
}

/* Is there room for it beside what is open? One alone always fits. */
static int
afford(const struct daemon *d, const struct client *c, const struct rec_submit *s, uint64_t bytes,
       struct err *e)
{
    const struct options *o = &d->config->o;
    const struct user *u = c->user;
    uint64_t prompt = ledger_prompt_cost(s), tokens = ledger_cost(s);

    if (u->n_open >= u->max_open) {
        return REFUSED(e, QUEUE_FULL, "%s has %u open requests, which is its limit", u->name,
                       u->n_open);
    }
    if (u->max_tokens && u->n_open && u->tokens + tokens > u->max_tokens) {
        return REFUSED(e, QUEUE_FULL, "%s has requests for %llu tokens, its limit is %llu", u->name,
                       (unsigned long long)u->tokens, (unsigned long long)u->max_tokens);
    }
    if (d->held_bytes && d->held_bytes + bytes > o->memory) {
        return REFUSED(e, QUEUE_FULL, "open requests may take %llu MiB, api.memory is %llu",
                       (unsigned long long)d->held_bytes >> 20,
                       (unsigned long long)o->memory >> 20);
    }
    if (ledger_n_queued(d->ledger) &&
        ledger_queued_tokens(d->ledger) + prompt > o->max_queued_tokens) {
        return REFUSED(e, QUEUE_FULL,
                       "%llu prompt tokens wait, scheduler.max_num_queued_tokens is %llu",
                       (unsigned long long)ledger_queued_tokens(d->ledger),
                       (unsigned long long)o->max_queued_tokens);
    }
    return 0;
}

void
admission_charge(struct daemon *d, const struct client *c, struct row *r)
{
    uint64_t turn;

    if (r->charged || r->state == ROW_ENDED) return;
    r->user = session_user_number(d->sessions, c->user);
    r->charged = true;
    c->user->n_open++;
    c->user->tokens += r->cost;
    r->submit->client = session_turns(d->sessions, c);
    turn = fair_queue_give(&d->turns[r->model], r->submit->client, r->cost);
    if (r->state == ROW_QUEUED)
        ledger_turn(d->ledger, r, turn);
    else
        r->turn = turn;
}

void
admission_count(struct daemon *d, struct row *r)
{
    const struct model_facts *f = &d->facts[r->model];
    uint64_t had = r->cost;

    if (!f->known || !(r->submit->absent & ABSENT_beams) || r->submit->beams == f->beams) return;
    r->submit->beams = f->beams;
    r->cost = ledger_cost(r->submit);
    if (!r->charged) return;
    session_user_at(d->sessions, r->user)->tokens += r->cost - had;
    fair_queue_change(&d->turns[r->model], r->submit->client, had, r->cost);
}

void
admission_hold(struct daemon *d, struct row *r)
{
    r->bytes = most_bytes(d, r->model, r->submit, r->submit_bytes);
    d->held_bytes += r->bytes;
}

void
admission_over(struct daemon *d, struct row *r)
{
    struct user *u = session_user_at(d->sessions, r->user);

    d->held_bytes -= r->bytes;
    r->bytes = 0;
    if (!r->charged) return;
    r->charged = false;
    u->n_open--;
    u->tokens -= r->cost;
    fair_queue_end(&d->turns[r->model], r->submit->client, ledger_unused(r));
}

static void
fill_in(struct daemon *d, struct client *c, const struct msg_request *q, struct row *r)
{
    r->accepted = d->now;
    r->ack_window = q->ack_window;
    r->no_resume = !q->resume;
    r->patience = q->disconnect_timeout_ms * NSEC_MS;
    if (q->deadline_ms) {
        nsec wait = q->deadline_ms > (uint64_t)(NSEC_NEVER / NSEC_MS)
                        ? NSEC_NEVER
                        : (nsec)q->deadline_ms * NSEC_MS;

        r->deadline = clock_after(d->now, wait);
    }
    d->n_requests++;
    c->n_open++;
}

int
admission_take(struct daemon *d, struct client *c, const struct msg *m, struct row **ret,
               struct err *e)
{
    struct bytes done = { 0 };
    struct msg_request q;
    struct rec_submit *s, counts;
    uint32_t model, bytes;
    uint64_t most;
    int code;

    /* Before the limits: this is an answer about an open request, not about room. */
    if (ledger_find(d->ledger, c->handle, m->rid)) {
        return REFUSED(e, INVALID_REQUEST, "two requests with one id: %llu is still open",
                       (unsigned long long)m->rid);
    }
    if (c->left)
        return REFUSED(e, CANCELLED, "another connection of this session has taken it over");
    if (msg_request(&q, m, e) < 0) return LAGAN_E_INVALID_REQUEST;
    if (q.encoder_features)
        return REFUSED(e, UNSUPPORTED,
                       "encoder_features is for models that take features; those served here take "
                       "ids or text");
    code = known(d, c, m->rid, &q, ret, e);
    if (code || *ret) return code;
    model = model_of(d->config, &q, &code, e);
    if (!code) code = room(d, c, e);
    if (!code && !will_be_served(d, model)) {
        code = REFUSED(e, DRAINING,
                       "every worker of the model is drained or has failed; "
                       "`laganctl workers list` says why, `laganctl restart` starts one");
    }
    counts = (struct rec_submit){ .n_prompt = q.ids.n,
                                  .n_decoder = q.decoder_ids.n,
                                  .text_bytes = text_bytes(&q),
                                  .n_stop = (uint16_t)q.n_stop };
    if (!code) code = fits_in_length(&d->facts[model], &counts, e); /* before it is copied */
    if (code) return code;

    if ((q.absent & ABSENT_max_tokens) && d->facts[model].known)
        q.max_tokens = MIN(q.max_tokens, d->facts[model].max_len);
    if ((q.absent & ABSENT_beams) && d->facts[model].known) q.beams = d->facts[model].beams;
    s = admission_record(&q, q.has_seed ? q.seed : any_seed(), &bytes);
    if (!s || copy_ids(&done, &q.generated_ids) < 0) {
        free(s);
        return REFUSED(e, OUT_OF_MEMORY, "lagand has no memory for another request");
    }
    code = admission_fits(&d->facts[model], s, d->config->o.tensor_bytes, e);
    if (!code)
        code = admission_fits_done(&d->facts[model], done.p, q.generated_ids.n, q.generated_ids.n,
                                   e);
    most = most_bytes(d, model, s, bytes);
    if (!code) code = afford(d, c, s, most, e);
    if (!code && ledger_take(d->ledger, c->handle, m->rid, s, bytes, ret) < 0) {
        code = REFUSED(e, QUEUE_FULL, "all %u places for requests are taken",
                       ledger_capacity(d->ledger));
    }
    if (code) {
        bytes_done(&done);
        free(s);
        return code;
    }
    (*ret)->model = model;
    if (pieces_begin(*ret) < 0)
        code = REFUSED(e, OUT_OF_MEMORY, "lagand has no memory for another request");
    else if (c->has_session && ledger_name(d->ledger, *ret, &c->session, q.idempotency_key.p,
                                           q.idempotency_key.n) < 0)
        code = REFUSED(e, QUEUE_FULL,
                       "its key or its id falls together with another's; try again with others");
    if (code) { /* nobody has heard of it */
        bytes_done(&done);
        row_move(d->ledger, *ret, ROW_ENDED);
        ledger_detach(d->ledger, *ret);
        ledger_give(d->ledger, *ret);
        return code;
    }
    begin_with(*ret, &done);
    admission_hold(d, *ret);
    admission_charge(d, c, *ret);
    fill_in(d, c, &q, *ret);
    return 0;
}
