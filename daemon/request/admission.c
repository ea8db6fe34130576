/* admission.c - checks a SUBMIT, builds the record for a worker and adds the request to the ledger.
 *
 * Checks that do not need the model come before ACCEPT. Checks against the facts of the model,
 * which a worker reports in READY, come before ACCEPT if these are known, else before dispatch. */
#include "daemon/request/admission.h"

#include "daemon/config/options.h"
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"
#include "daemon/request/accounting.h"
#include "daemon/request/deliver.h"
#include "daemon/request/length.h"
#include "daemon/supervise/worker.h"
#include "ipc/search_limits.h"

#include <sys/random.h>
#include <time.h>

#define NO_MEMORY "lagand has no memory for another request; retry later"
/* Sets the error text and is the code LAGAN_E_##code, with which the request is refused. */
#define REFUSED(e, code, ...) (err_set(e, -EINVAL, __VA_ARGS__), LAGAN_E_##code)

/* ---- the record */

/* put() and put_ids() copy one tail of the record to `at` and return its padded end. */
static char *
put(char *at, const void *p, size_t n)
{
    if (n) memcpy(at, p, n);
    return at + REC_PAD(n);
}

static char *
put_ids(char *at, const struct msg_ids *ids)
{
    msg_ids_copy(ids, at);
    return at + REC_PAD(ids->n * 4);
}

static size_t
stop_bytes(const struct msg_request *q)
{
    size_t n = 0;

    for (uint32_t i = 0; i < q->n_stop; i++) n += 4 + q->stop[i].n;
    return REC_PAD(n);
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
admission_record(const struct msg_request *q, uint64_t seed, const char *user, uint32_t *bytes)
{
    size_t bias = q->n_logit_bias * sizeof q->logit_bias[0], user_bytes = strlen(user);
    size_t salt = user_bytes || q->cache_salt.n ? user_bytes + 1 + q->cache_salt.n : 0;
    size_t n = sizeof(struct rec_submit) + REC_PAD(q->ids.n * 4) + REC_PAD(q->decoder_ids.n * 4) +
               REC_PAD(text_bytes(q)) + REC_PAD(q->eos_ids.n * 4) + REC_PAD(q->stop_ids.n * 4) +
               stop_bytes(q) + bias + REC_PAD(salt);
    /* A client with generated_ids already has the prompt log-probabilities and encoder output. */
    bool first = !q->generated_ids.n;
    struct rec_submit *s = calloc(1, n);
    char *at;

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
        .salt_bytes = (uint16_t)salt,
        .flags = (uint8_t)((q->ignore_eos ? SUBMIT_IGNORE_EOS : 0) |
                           (q->want_logprobs ? SUBMIT_LOGPROBS : 0) |
                           (q->return_logits ? SUBMIT_LOGITS : 0) | (q->fit ? SUBMIT_FIT : 0) |
                           (q->return_encoder_output && first ? SUBMIT_ENCODER_OUTPUT : 0) |
                           (q->want_prompt_logprobs && first ? SUBMIT_PROMPT_LOGPROBS : 0)),
    };
#define COPY_LAGAND(kind, name)
#define COPY_WORKER(kind, name) s->name = (SUBMIT_TYPE_##kind)q->name;
#define COPY_SAMPLER(kind, name) COPY_WORKER(kind, name)
#define X(kind, name, least, most, preset, record, fallback, sentence) COPY_##record(kind, name)
    LAGAN_FIELDS(X)
#undef X
    at = put_ids((char *)(s + 1), &q->ids);
    at = put_ids(at, &q->decoder_ids);
    if (q->messages.p) {
        admission_day(at);
        memcpy(at + ADMISSION_DAY, q->messages.p, q->messages.n);
        at += REC_PAD(text_bytes(q));
    } else {
        at = put(at, q->text.p, q->text.n);
    }
    at = put_ids(at, &q->eos_ids);
    at = put_ids(at, &q->stop_ids);
    for (uint32_t i = 0; i < q->n_stop; i++) {
        memcpy(at, &q->stop[i].n, 4);
        memcpy(at + 4, q->stop[i].p, q->stop[i].n);
        at += 4 + q->stop[i].n;
    }
    at = put((char *)s + n - REC_PAD(salt) - bias, q->logit_bias, bias);
    if (salt) {
        memcpy(at, user, user_bytes + 1);
        put(at + user_bytes + 1, q->cache_salt.p, q->cache_salt.n);
    }
    *bytes = (uint32_t)n;
    return s;
}

/* ---- checks against the model */

static int
in_vocabulary(const struct model_facts *f, const char *key, const void *ids, uint32_t n,
              struct err *e)
{
    const char *p = ids;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t id;

        memcpy(&id, p + 4 * (size_t)i, 4);
        if (id >= f->vocab)
            return REFUSED(e, INVALID_REQUEST,
                           "%s[%u] is %u, but the vocabulary has only %u tokens", key, i, id,
                           f->vocab);
    }
    return 0;
}

static int
forced_in_vocabulary(const struct model_facts *f, const char *key, int32_t id, struct err *e)
{
    if (id < 0 || (uint32_t)id < f->vocab) return 0;
    return REFUSED(e, INVALID_REQUEST, "%s is %d, but the vocabulary has only %u tokens", key, id,
                   f->vocab);
}

/* Checks the lengths of the prompt, and that the model accepts decoder_ids, text or stop of s. */
static int
fits_in_length(const struct model_facts *f, const struct rec_submit *s, struct err *e)
{
    if (!f->known) return 0;
    if (s->n_decoder && !f->max_source) {
        return REFUSED(
            e, INVALID_REQUEST,
            "decoder_ids is given, but %s is a decoder-only model; give the prompt as ids or text",
            f->family);
    }
    if ((s->text_bytes || s->n_stop) && !f->has_text) {
        return REFUSED(e, UNSUPPORTED, "%s: the model has no tokenizer; give token ids",
                       s->chat         ? "messages"
                       : s->text_bytes ? "text"
                                       : "stop");
    }
    if (!s->chat && s->text_bytes > f->max_text_bytes) {
        return REFUSED(
            e, TOO_LONG,
            "text has %u bytes; the %u tokens that a prompt of this model may have stand "
            "for at most %u bytes",
            s->text_bytes, f->max_source ? f->max_source : f->max_len, f->max_text_bytes);
    }
    if (f->max_source && !s->n_decoder && f->decoder_start < 0)
        return REFUSED(e, INVALID_REQUEST,
                       "the model has no decoder_start_token_id: set decoder_ids");
    if (f->max_source && s->n_prompt > f->max_source) {
        return REFUSED(e, TOO_LONG, "the encoder input is %u tokens; the model takes at most %u",
                       s->n_prompt, f->max_source);
    }
    if ((f->max_source ? s->n_decoder : s->n_prompt) >= f->max_len) {
        return REFUSED(e, TOO_LONG,
                       "%s has %u tokens; the maximum is %u, because one generated token must fit "
                       "into the model's maximum sequence length of %u",
                       f->max_source ? "decoder_ids" : "the prompt",
                       f->max_source ? s->n_decoder : s->n_prompt, f->max_len - 1, f->max_len);
    }
    if (!f->max_source && f->max_tokens && s->n_prompt >= f->max_tokens) {
        return REFUSED(e, TOO_LONG, "the prompt is %u tokens; the KV cache holds at most %llu",
                       s->n_prompt, (unsigned long long)f->max_tokens);
    }
    return 0;
}

/* Refuses logits that would exceed `most` bytes, and beam searches that would keep too much. This
 * checks a lower bound of the size of the tensors; receive.c checks the size of the received
 * tensors, the worker what its searches keep. */
static int
tensors_fit(const struct model_facts *f, const struct rec_submit *s, uint64_t most, struct err *e)
{
    uint64_t n = (uint64_t)MIN(s->max_tokens, f->max_len) * s->n, bytes = 4 * n * f->vocab;
    bool logits = s->flags & SUBMIT_LOGITS;

    if ((s->flags & SUBMIT_ENCODER_OUTPUT) && !f->max_source)
        return REFUSED(e, INVALID_REQUEST,
                       "return_encoder_output is given, but %s is a decoder-only model", f->family);
    if (s->absent & ABSENT_max_tokens) return 0;
    if (logits && bytes > most)
        return REFUSED(e, TOO_LONG,
                       "the logits of %llu tokens need %llu bytes; limits.tensor_bytes allows %llu",
                       (unsigned long long)n, (unsigned long long)bytes, (unsigned long long)most);
    if (s->beams > 1 &&
        search_limits_check(n / s->n * s->beams, s->logprobs, logits ? f->vocab : 0, e) < 0)
        return LAGAN_E_TOO_LONG;
    return 0;
}

/* Checks the combinations of keys after the model's defaults are filled in. */
static int
defaults_fit(const struct model_facts *f, const struct rec_submit *s, struct err *e)
{
    const struct msg_combination c = {
        .n = s->n,
        .beams = s->beams,
        .temperature = (double)(s->absent & ABSENT_temperature ? f->temperature : s->temperature),
        .return_logits = s->flags & SUBMIT_LOGITS,
    };

    if (!s->absent) return 0;
    if (*f->unserved)
        return REFUSED(
            e, UNSUPPORTED,
            "generation_config.json sets %s to an unsupported value; set model_defaults to false",
            f->unserved);
    if (msg_combine(&c, e) == 0) return 0;
    err_while(e, -EINVAL, "with the defaults of generation_config.json");
    return LAGAN_E_INVALID_REQUEST;
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
    p += REC_PAD(s->n_prompt * 4);
    if (!k) k = in_vocabulary(f, "decoder_ids", p, s->n_decoder, e);
    p += REC_PAD(s->n_decoder * 4) + REC_PAD(s->text_bytes);
    if (!k) k = in_vocabulary(f, "eos_ids", p, n_eos, e);
    p += REC_PAD(n_eos * 4);
    if (!k) k = in_vocabulary(f, "stop_ids", p, s->n_stop_ids, e);
    if (!k) k = forced_in_vocabulary(f, "forced_bos", s->forced_bos, e);
    if (!k) k = forced_in_vocabulary(f, "forced_eos", s->forced_eos, e);
    if (k) return k;
    if (MAX(s->n, s->beams) > MAX(f->max_request_seqs, 1u)) {
        return REFUSED(e, INVALID_REQUEST,
                       "%s is %u; the limit is %u, the smaller of max_num_seqs and "
                       "max_num_batched_tokens",
                       s->beams > 1 ? "beams" : "n", MAX(s->n, s->beams), f->max_request_seqs);
    }
    return defaults_fit(f, s, e);
}

int
admission_fits_done(const struct model_facts *f, const void *ids, uint32_t n, uint32_t longest,
                    struct err *e)
{
    if (!f->known) return 0;
    if (longest >= f->max_len)
        return REFUSED(e, TOO_LONG, "generated_ids has %u tokens; the model accepts at most %u",
                       longest, f->max_len - 1);
    return in_vocabulary(f, "generated_ids", ids, n, e);
}

/* ---- a SUBMIT */

/* Finds the model of the request. Returns 0 and its index in *ret, or a code and the error. */
static int
find_model(const struct config *c, const struct msg_request *q, uint32_t *ret, struct err *e)
{
    uint32_t n = config_n_served(c, ret);

    if (!q->model.p && n == 1) return 0;
    if (!q->model.p) return REFUSED(e, INVALID_REQUEST, MODEL_MISSING, n);
    for (*ret = 0; *ret < c->n_models; ++*ret) {
        const char *name = c->model[*ret].keys.name;

        if (c->model[*ret].removed) continue;
        if (strlen(name) == q->model.n && !memcmp(name, q->model.p, q->model.n)) return 0;
    }
    return REFUSED(e, MODEL_NOT_FOUND,
                   "model \"%.*s\" is not served here; `laganctl model list` shows the models",
                   (int)MIN(q->model.n, 100u), q->model.p);
}

/* Checks the limits that do not depend on the request: draining, api.max_inflight, queue length. */
static int
check_open(struct daemon *d, struct client *c, struct err *e)
{
    const struct options *o = &d->config->o;

    if (d->draining)
        return REFUSED(e, DRAINING, "the service is stopping and takes no new requests");
    if (c->n_open >= o->max_inflight) {
        return REFUSED(e, QUEUE_FULL, "this client has %u open requests; api.max_inflight is %u",
                       c->n_open, o->max_inflight);
    }
    if (ledger_counts(d->ledger).queued >= o->max_queued_reqs) {
        return REFUSED(e, QUEUE_FULL, "%u requests are queued; scheduler.max_num_queued_reqs is %u",
                       ledger_counts(d->ledger).queued, o->max_queued_reqs);
    }
    return 0;
}

/* Returns true if a worker of the model accepts requests now or after its restart, or (in tests) if
 * the model has no workers. Otherwise an operator drained all workers, or these failed too often to
 * be restarted, and a request would stay queued without end. */
static bool
will_be_served(const struct daemon *d, uint32_t model)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        if (worker_info(d->worker[i])->model != model) continue;
        n++;
        if (worker_returns(d->worker[i])) return true;
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

static uint64_t
any_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed) seed = (uint64_t)clock_now();
    return seed >> 1; /* fits into an int64_t, for clients that have no unsigned type */
}

/* Returns true if r has ended with a retryable error: a repeated SUBMIT then runs again. */
static bool
is_retryable(const struct request *r)
{
    bool retry = false;

    return r->state == REQUEST_ENDED && msg_reason(r->result.reason, &retry) && retry;
}

/* Finds an earlier request with the idempotency key of q. Returns 0 and *ret: the earlier request,
 * delivered to c from now on, or NULL: the SUBMIT is new. Otherwise a code and the error. */
static int
known(struct daemon *d, struct client *c, uint64_t rid, const struct msg_request *q,
      struct request **ret, struct err *e)
{
    struct request *r;

    *ret = NULL;
    if (!c->has_session && !q->idempotency_key.n) return 0;
    if (!c->has_session)
        return REFUSED(e, INVALID_REQUEST,
                       "idempotency_key needs a session; send HELLO first to open one");
    r = q->idempotency_key.n
            ? ledger_find_key(d->ledger, &c->session, q->idempotency_key.p, q->idempotency_key.n)
            : NULL;
    if (r && is_retryable(r)) {
        deliver_forget(d, r);
        r = NULL;
    }
    if (r) {
        if (q->generated_ids.n || deliver_resume(d, r, c, rid, 0, 0, q->ack_window) < 0)
            return REFUSED(
                e, INVALID_REQUEST,
                "an earlier request has this idempotency_key, but its result is no longer "
                "complete or generated_ids is given; use a new key");
        *ret = r;
        return 0;
    }
    r = ledger_find_rid(d->ledger, &c->session, rid);
    if (!r || r->retained) return 0;
    return REFUSED(
        e, INVALID_REQUEST,
        "request id %llu is open on another connection of this session; take it over with RESUME",
        (unsigned long long)rid);
}

/* Checks the limits of the user's tokens and requests, api.memory, and the queue's tokens for a new
 * request s that needs `bytes`. A limit of tokens or memory accepts s if s is alone in it. */
static int
afford(const struct daemon *d, const struct client *c, const struct rec_submit *s, uint64_t bytes,
       struct err *e)
{
    const struct options *o = &d->config->o;
    const struct user *u = c->user;
    uint64_t prompt = ledger_prompt_tokens(s), tokens = ledger_total_tokens(s);

    if (u->n_open >= u->max_open)
        return REFUSED(e, QUEUE_FULL, "user %s has %u open requests, which is its limit", u->name,
                       u->n_open);
    if (u->max_tokens && u->n_open && u->tokens + tokens > u->max_tokens) {
        return REFUSED(
            e, QUEUE_FULL,
            "user %s: the open requests have %llu tokens and this one needs %llu more; the "
            "user's limit is %llu",
            u->name, (unsigned long long)u->tokens, (unsigned long long)tokens,
            (unsigned long long)u->max_tokens);
    }
    if (d->held_bytes && d->held_bytes + bytes > o->memory) {
        return REFUSED(
            e, QUEUE_FULL,
            "open requests reserve %llu bytes of lagand's memory and this one needs %llu more; "
            "api.memory is %llu",
            (unsigned long long)d->held_bytes, (unsigned long long)bytes,
            (unsigned long long)o->memory);
    }
    if (ledger_counts(d->ledger).queued &&
        ledger_counts(d->ledger).queued_tokens + prompt > o->max_queued_tokens) {
        return REFUSED(e, QUEUE_FULL,
                       "%llu prompt tokens are queued and this prompt has %llu more; "
                       "scheduler.max_num_queued_tokens is %llu",
                       (unsigned long long)ledger_counts(d->ledger).queued_tokens,
                       (unsigned long long)prompt, (unsigned long long)o->max_queued_tokens);
    }
    return 0;
}

static struct request_terms
terms_of(const struct daemon *d, uint32_t model, const struct msg_request *q)
{
    struct request_terms t;
    nsec wait = q->deadline_ms > (uint64_t)(NSEC_NEVER / NSEC_MS) ? NSEC_NEVER
                                                                  : (nsec)q->deadline_ms * NSEC_MS;

    t = (struct request_terms){
        .model = model,
        .no_resume = !q->resume,
        .accepted = d->now,
        .deadline = q->deadline_ms ? clock_after(d->now, wait) : NSEC_NEVER,
        .disconnect_timeout = q->disconnect_timeout_ms * NSEC_MS,
        .accepted_at = (uint64_t)time(NULL),
    };
    if (q->request_id.n) memcpy(t.request_id, q->request_id.p, q->request_id.n);
    return t;
}

/* A SUBMIT that is being checked and is not in the ledger yet. */
struct candidate {
    struct msg_request q;
    uint32_t model, bytes;
    struct rec_submit *submit; /* `bytes` long, with its tails; enter() gives it to the ledger */
    struct bytes ids;          /* generated_ids */
};

static void
candidate_done(struct candidate *k)
{
    free(k->submit);
    bytes_done(&k->ids);
}

/* Decodes m into q and makes the checks that need neither the model nor memory. */
static int
check_message(struct daemon *d, struct client *c, const struct msg *m, struct msg_request *q,
              struct err *e)
{
    if (ledger_find(d->ledger, c->handle, m->rid))
        return REFUSED(e, INVALID_REQUEST, "request id %llu is in use by an open request",
                       (unsigned long long)m->rid);
    if (c->superseded)
        return REFUSED(
            e, CANCELLED,
            "another connection of this session has taken over; submit the request there");
    if (msg_request(q, m, e) < 0) return LAGAN_E_INVALID_REQUEST;
    if (q->encoder_features)
        return REFUSED(e, UNSUPPORTED,
                       "encoder_features is not served: no model family here takes features; give "
                       "ids, text or messages");
    return 0;
}

/* Checks the model and the limits that do not need a copy of the prompt. */
static int
check_limits(struct daemon *d, struct client *c, struct candidate *k, struct err *e)
{
    struct rec_submit counts = { .n_prompt = k->q.ids.n,
                                 .n_decoder = k->q.decoder_ids.n,
                                 .text_bytes = text_bytes(&k->q),
                                 .n_stop = (uint16_t)k->q.n_stop };
    int code = find_model(d->config, &k->q, &k->model, e);

    if (!code) code = check_open(d, c, e);
    if (!code && !will_be_served(d, k->model)) {
        code = REFUSED(
            e, DRAINING,
            "no worker of the model can run requests: each is drained or has failed too often "
            "to be restarted; `laganctl workers list` shows why, `laganctl restart` starts a "
            "worker");
    }
    return code ? code : fits_in_length(&d->facts[k->model], &counts, e);
}

/* Builds the SUBMIT record and checks it against the model's facts and the remaining limits. */
static int
make_record(struct daemon *d, struct client *c, struct candidate *k, struct err *e)
{
    const struct model_facts *f = &d->facts[k->model];
    bool one_user = d->config->model[k->model].keys.kv_reuse_scope == REUSE_SCOPE_USER;
    struct msg_request *q = &k->q;
    int code;

    if ((q->absent & ABSENT_max_tokens) && f->known) q->max_tokens = MIN(q->max_tokens, f->max_len);
    if ((q->absent & ABSENT_beams) && f->known) q->beams = f->beams;
    k->submit = admission_record(q, q->has_seed ? q->seed : any_seed(),
                                 one_user ? c->user->name : "", &k->bytes);
    if (!k->submit || copy_ids(&k->ids, &q->generated_ids) < 0)
        return REFUSED(e, OUT_OF_MEMORY, NO_MEMORY);
    length_fit(f, k->submit, q->generated_ids.n, d->config->o.tensor_bytes);
    code = admission_fits(f, k->submit, d->config->o.tensor_bytes, e);
    if (!code) code = admission_fits_done(f, k->ids.p, q->generated_ids.n, q->generated_ids.n, e);
    if (code) return code;
    return afford(d, c, k->submit, accounting_max_bytes(d, k->model, k->submit, k->bytes), e);
}

/* Adds the checked request k to the ledger. Returns 0 and *ret, or a code and the error. */
static int
enter(struct daemon *d, struct client *c, uint64_t rid, struct candidate *k, struct request **ret,
      struct err *e)
{
    const struct request_terms terms = terms_of(d, k->model, &k->q);
    int code = 0;

    if (ledger_take(d->ledger, c->handle, rid, k->submit, k->bytes, ret) < 0)
        return REFUSED(e, QUEUE_FULL, "lagand has %u open requests and takes no more; retry later",
                       ledger_counts(d->ledger).capacity);
    k->submit = NULL;
    ledger_set_terms(*ret, &terms);
    if (outputs_init(*ret) < 0)
        code = REFUSED(e, OUT_OF_MEMORY, NO_MEMORY);
    else if (c->has_session && ledger_name(d->ledger, *ret, &c->session, k->q.idempotency_key.p,
                                           k->q.idempotency_key.n) < 0)
        code = REFUSED(e, QUEUE_FULL,
                       "the idempotency key or the request id has the same hash as one of another "
                       "request; retry with a new key and a new id");
    if (code) { /* the caller sends the ERROR, and no worker has the request: it is freed at once */
        request_move(d->ledger, *ret, REQUEST_ENDED);
        ledger_detach(d->ledger, *ret);
        ledger_give(d->ledger, *ret);
        return code;
    }
    outputs_begin(*ret, &k->ids);
    deliver_init(*ret, k->q.ack_window);
    accounting_reserve(d, *ret);
    accounting_charge(d, c, *ret);
    d->n_requests++;
    c->n_open++;
    return 0;
}

int
admission_take(struct daemon *d, struct client *c, const struct msg *m, struct request **ret,
               struct prompt_length *length, struct err *e)
{
    struct candidate k = { 0 };
    int code = check_message(d, c, m, &k.q, e);

    *length = (struct prompt_length){ 0 };
    if (!code) code = known(d, c, m->rid, &k.q, ret, e);
    if (code || *ret) return code;
    code = check_limits(d, c, &k, e);
    *length = length_of(&d->facts[k.model], k.q.ids.n);
    if (!code) code = make_record(d, c, &k, e);
    if (!code) code = enter(d, c, m->rid, &k, ret, e);
    candidate_done(&k);
    return code;
}
