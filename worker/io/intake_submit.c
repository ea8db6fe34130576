/* intake_submit.c - converts a complete SUBMIT record to a request in the worker's slots. Delivered
 * tokens are the generated tokens that the record of a resumed request brings along.
 *
 *     read_record()      bounds the record and copies its header
 *     apply_defaults()   fills in the model's defaults
 *     take_slots()       takes a slot for each output or beam, and copies the fields of the header
 *     read_tails()       copies end ids, stop strings, logit biases, outputs of delivered tokens
 *     facts_fit()        checks the request against the facts of this worker's READY
 *     place_delivered(), place_decoder(), place_prompt()
 *                        copy the tokens, then call the text thread or intake_admit() */
#include "include/lagan_wire.h"
#include "ipc/records.h"
#include "worker/exec/exec.h"
#include "worker/io/emit.h"
#include "worker/io/intake.h"
#include "worker/io/intake_admit.h"
#include "worker/io/outputs.h"
#include "worker/io/record_tail.h"
#include "worker/io/text_thread.h"
#include "worker/model/model.h"
#include "worker/sched/beam_search.h"
#include "worker/sched/scheduler.h"
#include "worker/text/chat.h"

/* A SUBMIT: its header, completed with the model's defaults, and pointers into the record. */
struct submit {
    struct rec_submit s;
    const token_id *prompt, *decoder;
    const token_id *delivered; /* [s.n_done] delivered tokens */
    const char *text;
    const uint8_t *output_of; /* [s.n_done] output of each delivered token; NULL: one output */
    const float *scores;      /* [s.n] score of each output so far; NULL: one output */
    struct record_tail rest;
};

static uint32_t
n_slots(const struct rec_submit *s)
{
    return MAX(s->n, s->beams);
}

static int
read_record(struct submit *q, const void *data, size_t n, struct err *e)
{
    struct record_tail t = record_tail(data, n);
    struct rec_submit *s = &q->s;
    const void *p = record_tail_take(&t, sizeof *s);

    if (!p) return record_tail_corrupt(e, "SUBMIT is shorter than its header");
    memcpy(s, p, sizeof *s);
    q->prompt = record_tail_take(&t, (size_t)s->n_prompt * sizeof *q->prompt);
    q->decoder = record_tail_take(&t, (size_t)s->n_decoder * sizeof *q->decoder);
    q->delivered = record_tail_take(&t, (size_t)s->n_done * sizeof *q->delivered);
    q->text = record_tail_take(&t, s->text_bytes);
    record_tail_take(&t, s->done_text); /* delivered text is made again from the tokens */
    if (t.broken) return record_tail_corrupt(e, "SUBMIT ends before the tokens and text it counts");
    q->rest = t;
    s->n = MAX(s->n, 1u);
    s->beams = MAX(s->beams, 1u);
    return 0;
}

/* Sets the fields of absent keys to the model's defaults; a default may lower max_tokens, but not
 * raise it. -EBADMSG: a field is out of range. */
static int
apply_defaults(const struct generation *g, struct rec_submit *s, struct err *e)
{
    uint32_t most = s->max_tokens;

#define DEFAULT_FIXED(name)
#define DEFAULT_MODEL(name) \
    if (s->absent & ABSENT_##name) s->name = g->name;
#define X(kind, name, least, most_, preset, record, fallback, sentence) DEFAULT_##fallback(name)
    LAGAN_FIELDS(X)
#undef X
    if (!s->max_tokens || s->max_tokens > most) s->max_tokens = most;
    if (s->cache_priority > KV_PRIORITY_MAX)
        return record_tail_corrupt(e, "SUBMIT has a cache_priority above 100");
    if (s->n > INTAKE_MAX_OUTPUTS || s->beams > MAX_BEAMS || s->early_stopping > BEAM_EARLY_NEVER)
        return record_tail_corrupt(e, "SUBMIT has an invalid number of beams or outputs");
    /* Valid: several outputs with all tokens delivered, so that only FINISH is missing. */
    if (!s->max_tokens || (s->n == 1 && s->n_done >= s->max_tokens && !s->absent))
        return record_tail_corrupt(e, "SUBMIT asks for no token that is not delivered yet");
    return 0;
}

/* ---- into the slot */

/* Returns the forced token of a request: asked, or the model's default if asked is -2. -1: none. */
static int32_t
forced(int32_t asked, int32_t model)
{
    return asked == -2 ? model : asked;
}

static void
read_numbers(struct worker *w, struct worker_request *r, const struct rec_submit *s)
{
    const struct model *m = w->model;

    r->ledger_index = s->ledger_index;
    r->gen = s->gen;
    r->max_tokens = s->max_tokens;
    if (s->absent & ABSENT_max_tokens) r->max_length = m->generation.max_length;
    if (s->absent & ABSENT_min_tokens) r->min_length = m->generation.min_length;
    r->want_logprobs = s->flags & SUBMIT_LOGPROBS;
    r->fit = s->flags & SUBMIT_FIT;
    r->seq.id = s->id;
    r->seq.priority = s->priority;
    r->seq.client = s->client;
    r->seq.deadline = s->deadline_ns ? s->deadline_ns : NSEC_NEVER;
    r->seq.min_new = s->min_tokens;
    r->seq.prompt_logprobs = s->flags & SUBMIT_PROMPT_LOGPROBS;
    r->seq.wants_states = s->flags & SUBMIT_ENCODER_OUTPUT;
    r->keep = (struct kv_keep){ 0, UINT32_MAX, (uint8_t)s->cache_priority };
    r->seq.n_keep = s->cache_priority != KV_PRIORITY;
    r->seq.keep = r->seq.n_keep ? &r->keep : NULL;
    r->suspended = s->flags & SUBMIT_SUSPENDED;
    r->n_outputs = s->n;
    r->beam = (struct beam){
        .n_beams = s->beams,
        .length_penalty = s->length_penalty,
        .early = s->early_stopping,
    };
    r->sampling = (struct sampling){
        .seed = s->seed,
        .want_logprobs = true, /* the score of a request is the sum of them */
        .want_states = s->flags & SUBMIT_ENCODER_OUTPUT,
        .want_logits = s->flags & SUBMIT_LOGITS,
        .min_new = s->min_tokens,
        .forced_bos = forced(s->forced_bos, m->forced_bos),
        .forced_eos = forced(s->forced_eos, m->forced_eos),
    };
#define COPY_LAGAND(name)
#define COPY_WORKER(name)
#define COPY_SAMPLER(name) r->sampling.name = s->name;
#define X(kind, name, least, most, preset, record, fallback, sentence) COPY_##record(name)
    LAGAN_FIELDS(X)
#undef X
}

/* Takes slots for a new request, fills in the header's fields. NULL: refused, too few slots. */
static struct worker_request *
take_slots(struct worker *w, const struct rec_submit *s)
{
    struct worker_request *r = request_take(w->requests);

    if (r) {
        r->state = REQUEST_TEXT; /* not free; the engine thread owns it until text_thread_give() */
        read_numbers(w, r, s);
    }
    if (r && n_slots(s) > 1 && outputs_take(w, r, n_slots(s)) < 0) {
        outputs_give(w, r);
        r = NULL;
    }
    if (!r) {
        emit_reject(w, s->ledger_index, s->gen, LAGAN_E_QUEUE_FULL, 0,
                    "all request slots of the worker are in use");
        return NULL;
    }
    r->has_text = w->tokenizer != NULL;
    if (r->has_text) detok_init(&r->detok, w->tokenizer, false);
    r->chat = s->chat;
    if (r->has_text && r->chat) chat_reply_begin(&r->detok.reply, w->chat);
    return r;
}

static int
read_ends(struct worker *w, struct worker_request *r, const struct rec_submit *s,
          struct record_tail *t, struct err *e)
{
    const struct model *m = w->model;
    uint32_t n_eos = s->n_eos == 0xffff ? 0 : s->n_eos;
    const token_id *eos = record_tail_take(t, n_eos * sizeof *eos);
    const token_id *ids = record_tail_take(t, s->n_stop_ids * sizeof *ids);

    if (t->broken || n_eos > LAGAN_MAX_STOPS || s->n_stop_ids > LAGAN_MAX_STOPS ||
        s->n_stop > LAGAN_MAX_STOPS)
        return record_tail_corrupt(e, "SUBMIT has too many end ids or stop strings");
    if (s->n_eos == 0xffff) {
        eos = m->eos;
        n_eos = m->n_eos;
    }
    r->sampling.n_eos = n_eos;
    if (n_eos) memcpy(r->sampling.eos, eos, n_eos * sizeof *eos);
    if (!(s->flags & SUBMIT_IGNORE_EOS)) r->seq.n_eos = n_eos;
    if (r->seq.n_eos) memcpy(r->seq.end_id, eos, r->seq.n_eos * sizeof *eos);
    if (s->n_stop_ids) memcpy(r->seq.end_id + r->seq.n_eos, ids, s->n_stop_ids * sizeof *ids);
    r->seq.n_end = r->seq.n_eos + s->n_stop_ids;
    return 0;
}

static int
read_stop_strings(struct worker_request *r, uint32_t n, struct record_tail *t, struct err *e)
{
    size_t used = 0;

    for (uint32_t i = 0; i < n; i++) {
        const void *bytes = record_tail_take_packed(t, sizeof(uint32_t));
        uint32_t len;

        if (!bytes) return record_tail_corrupt(e, "SUBMIT ends inside a stop string");
        memcpy(&len, bytes, sizeof len);
        bytes = record_tail_take_packed(t, len);
        if (!bytes || len > LAGAN_MAX_STOP || used + len > REQUEST_STOPS_BYTES)
            return record_tail_corrupt(e, "SUBMIT has a stop string that is too long");
        memcpy(r->stops + used, bytes, len);
        if (r->has_text && detok_stop(&r->detok, r->stops + used, len) < 0)
            return record_tail_corrupt(e, "SUBMIT has an invalid stop string");
        used += len;
    }
    record_tail_align(t); /* stop strings are padded together */
    return 0;
}

/* Reads the logit biases, which lagand has sorted; ids outside the vocabulary are ignored. */
static int
read_bias(struct worker *w, struct worker_request *r, const struct rec_submit *s,
          struct record_tail *t, struct err *e)
{
    const struct logit_bias *bias = record_tail_take(t, s->n_bias * sizeof *bias);
    uint32_t n = 0;

    if (t->broken || s->n_bias > EXEC_MAX_BIAS)
        return record_tail_corrupt(e, "SUBMIT has more than 256 logit biases, or ends inside them");
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if (i && bias[i].id <= bias[i - 1].id)
            return record_tail_corrupt(e, "SUBMIT has logit biases not sorted by token id");
        if ((uint32_t)bias[i].id < w->model->shape.vocab) r->bias[n++] = bias[i];
    }
    r->sampling.n_bias = n;
    r->sampling.bias = r->bias;
    return 0;
}

static int
read_salt(struct worker *w, struct worker_request *r, const struct rec_submit *s,
          struct record_tail *t, struct err *e)
{
    const void *salt = record_tail_take(t, s->salt_bytes);

    if (t->broken) return record_tail_corrupt(e, "SUBMIT ends inside its cache salt");
    r->seq.salt = kv_salt(w->kv, salt, s->salt_bytes);
    return 0;
}

/* Reads the output of each delivered token and the score of each output. */
static int
read_outputs(struct submit *q, struct err *e)
{
    const struct rec_submit *s = &q->s;

    q->output_of = record_tail_take(&q->rest, s->n_done);
    q->scores = record_tail_take(&q->rest, s->n * sizeof *q->scores);
    if (q->rest.broken)
        return record_tail_corrupt(e, "SUBMIT lacks the output numbers of its delivered tokens");
    for (uint32_t i = 0; i < s->n_done; i++)
        if (q->output_of[i] >= s->n)
            return record_tail_corrupt(
                e, "SUBMIT has delivered tokens of an output that it does not request");
    return 0;
}

static int
read_tails(struct worker *w, struct worker_request *r, struct submit *q, struct err *e)
{
    TRY(read_ends(w, r, &q->s, &q->rest, e));
    TRY(read_stop_strings(r, q->s.n_stop, &q->rest, e));
    TRY(read_bias(w, r, &q->s, &q->rest, e));
    TRY(read_salt(w, r, &q->s, &q->rest, e));
    q->output_of = NULL;
    q->scores = NULL;
    return q->s.n > 1 ? read_outputs(q, e) : 0;
}

/* Returns the largest number of delivered tokens of one output. */
static uint32_t
most_delivered(const struct submit *q)
{
    uint32_t n[INTAKE_MAX_OUTPUTS] = { 0 }, most = 0;

    if (!q->output_of) return q->s.n_done;
    for (uint32_t i = 0; i < q->s.n_done; i++) most = MAX(most, ++n[q->output_of[i]]);
    return most;
}

/* Returns true if the keys of s can be combined: the rules of msg_combine() in wire/msg.h. */
static bool
keys_combine(const struct rec_submit *s)
{
    if (s->beams == 1) return s->n == 1 || (s->temperature > 0 && !(s->flags & SUBMIT_LOGITS));
    return s->n <= s->beams && s->temperature <= 0;
}

/* Returns true if the request fits the facts that this worker has sent in READY. lagand has
 * validated it with the last READY of any worker of the model, which may have other model files: a
 * request that does not fit is refused, not treated as corruption. */
static bool
facts_fit(const struct worker *w, const struct submit *q)
{
    const struct rec_submit *s = &q->s;
    uint32_t first = w->max_source, all = w->requests->max_ids, done = most_delivered(q);
    uint64_t prefix = MAX(s->n_decoder, (uint32_t)(first > 0));

    if (n_slots(s) > MIN(w->limits->max_seqs, w->limits->max_tokens) || !keys_combine(s))
        return false;
    if (s->absent && *w->model->generation.unserved) return false;
    if ((s->text_bytes || s->n_stop) && !w->tokenizer) return false;
    if (!first && (s->n_decoder || (s->flags & SUBMIT_ENCODER_OUTPUT))) return false;
    if (first && !s->n_decoder && w->model->decoder_start < 0) return false;
    if (s->text_bytes > w->requests->max_text_bytes) return false;
    if (prefix + done > all - first) return false;
    if (first) return s->n_prompt <= first;
    return (uint64_t)(s->text_bytes ? w->model->shape.max_len : s->n_prompt) + done <= all;
}

/* ---- tokens */

/* Restores the score and text of delivered tokens. With several outputs also copies the delivered
 * tokens of each output to its slot and sets n_done to 0: none is left to place. */
static void
place_delivered(struct worker *w, struct worker_request *r, struct submit *q)
{
    r->score = q->s.done_score;
    if (!r->first) {
        r->n_sent = q->s.n_done;
        outputs_restore_text(w, r, q->delivered, q->s.n_done);
        return;
    }
    for (struct worker_request *m = r; m && q->scores && m->output < q->s.n; m = m->next)
        memcpy(&m->score, &q->scores[m->output], sizeof m->score);
    outputs_place_delivered(w, r, q->delivered, q->output_of, q->s.n_done);
    q->s.n_done = 0;
}

/* Encoder-decoder models: copies the decoder prefix and delivered tokens to ids[max_source]. */
static void
place_decoder(struct worker *w, struct worker_request *r, const struct submit *q)
{
    token_id *to = r->ids + w->max_source;

    if (q->s.n_decoder) {
        memcpy(to, q->decoder, q->s.n_decoder * sizeof *to);
        r->n_decoder = q->s.n_decoder;
    }
    if (!q->s.n_done) return;
    if (!r->n_decoder) {
        to[0] = w->model->decoder_start;
        r->n_decoder = 1;
    }
    memcpy(to + r->n_decoder, q->delivered, q->s.n_done * sizeof *to);
    r->n_decoder += q->s.n_done;
}

/* Copies the prompt and passes r to the text thread (text) or intake_admit() (ids). Delivered
 * tokens of a decoder-only model go behind the prompt, or, with text, to the end of ids. */
static void
place_prompt(struct worker *w, struct worker_request *r, const struct submit *q, nsec now)
{
    size_t done = q->s.n_done * sizeof *q->delivered;

    if (q->s.text_bytes) {
        memcpy(r->text, q->text, q->s.text_bytes);
        r->n_text = q->s.text_bytes;
        if (!w->max_source && done)
            memcpy(r->ids + w->requests->max_ids - q->s.n_done, q->delivered, done);
        text_thread_give(w->text, r);
        return;
    }
    memcpy(r->ids, q->prompt, q->s.n_prompt * sizeof *q->prompt);
    if (!w->max_source) memcpy(r->ids + q->s.n_prompt, q->delivered, done);
    intake_admit(w, r, q->s.n_prompt, now);
}

int
intake_submit(struct worker *w, const void *data, size_t n, nsec now, struct err *e)
{
    struct worker_request *r;
    struct submit q;

    TRY(read_record(&q, data, n, e));
    TRY(apply_defaults(&w->model->generation, &q.s, e));
    r = take_slots(w, &q.s);
    if (!r) return 0;
    TRY(read_tails(w, r, &q, e));
    if (!facts_fit(w, &q)) {
        intake_refuse(w, r, LAGAN_E_INVALID_REQUEST, INTAKE_OTHER_FILES);
        return 0;
    }
    place_delivered(w, r, &q);
    if (w->max_source) place_decoder(w, r, &q);
    place_prompt(w, r, &q, now);
    return 0;
}
