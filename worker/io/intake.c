/* intake.c - request ring to sequences: decode, bound, admit; the only reader of that ring.
 *
 *     SUBMIT fragments -> one buffer -> a slot -> [text thread] -> admit() -> scheduler
 *
 * A slot's ids: the source in [0, max_source), the decoder's tokens from max_source on; decoder-only
 * models have no source. What lagand wrote is believed only as far as it is bounded here: a record
 * that does not add up is ring corruption and ends the worker; a request the model cannot serve gets
 * REJECT with the sentence for its client.
 */
#include "worker/io/intake.h"

#include "base/failpoint.h"
#include "include/lagan_wire.h"
#include "ipc/link.h"
#include "ipc/records.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/io/emit.h"
#include "worker/io/outbox.h"
#include "worker/io/outputs.h"
#include "worker/io/text_thread.h"
#include "worker/model/model.h"
#include "worker/sched/beam.h"
#include "worker/sched/scheduler.h"
#include "worker/text/chat.h"
#include "worker/text/tokenizer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BUDGET_RECORDS = 256, MOST_OUTPUTS = 64, FRAGMENTS_KEPT = 1 << 20 };

/* A SUBMIT of several records, as far as it has arrived. */
struct intake {
    char *fragments; /* [most_fragments] address space; resident as far as it was used */
    size_t n_fragments, most_fragments;
};

/* The bytes of one SUBMIT that have not been looked at. */
struct tail {
    const char *p;
    size_t left;
    bool broken;
};

static const void *
take(struct tail *t, size_t n)
{
    const void *at = t->p;
    size_t padded = ROUND_UP(n, (size_t)8);

    if (n > t->left || padded > t->left) {
        t->broken = true;
        return NULL;
    }
    t->p += padded;
    t->left -= padded;
    return at;
}

static int
corrupt(struct err *e, const char *what)
{
    return err_set(e, -EBADMSG, "request ring: %s", what);
}

PRINTF_LIKE(4, 5)
static void
refuse(struct worker *w, struct worker_request *r, uint16_t reason, const char *fmt, ...)
{
    char why[240];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    emit_reject(w, r->row, r->gen, reason, why);
    outputs_give(w, r);
}

/* -1 in a record is off, -2 the model's own. */
static int32_t
forced(int32_t asked, int32_t model)
{
    return asked == -2 ? model : asked;
}

/* How many slots it takes, and of a search the beams. */
static uint32_t
n_slots(const struct rec_submit *s)
{
    return MAX(s->n, s->beams);
}

static bool
ids_in_range(const token_id *ids, uint32_t n, uint32_t vocab, uint32_t *bad)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab) {
            *bad = i;
            return false;
        }
    return true;
}

/* All of it is to end. Of several outputs the first may have met its stop string, and the others go on. */
static bool
ends_whole(const struct worker_request *r)
{
    return r->cancelled && !(r->first && r->cancelled == LAGAN_FINISH_STOP);
}

/* Of a request that leaves its lengths to the model: they count what was given too, which is known now. */
static bool
fit_lengths(struct worker_request *r, uint32_t given)
{
    if (r->min_length > given) r->seq.min_new = MAX(r->seq.min_new, r->min_length - given);
    r->sampling.min_new = r->seq.min_new;
    if (!r->max_length) return true;
    if (given >= r->max_length) return false;
    r->max_tokens = MIN(r->max_tokens, r->max_length - given);
    return true;
}

/* Whether what may not come again, and ends that come too early, may be all of the vocabulary: then there is nothing to
 * draw, which a device takes for a failure. Of pairs and longer ones at most every other token begins one that bans. */
static bool
may_ban_all(const struct sampling *s, uint32_t n_tokens, uint32_t vocab)
{
    uint32_t n = s->no_repeat_ngram == 1 ? n_tokens : s->no_repeat_ngram ? n_tokens / 2 + 1 : 0;

    return n + (uint64_t)(s->min_new ? s->n_eos : 0) >= vocab;
}

/* All tokens of r are in place: n_source, n_decoder (delivered ones included). Hand it over. */
static void
admit(struct worker *w, struct worker_request *r, nsec now)
{
    const struct model_shape *shape = &w->model->shape;
    uint32_t first = w->max_source, done = r->first ? 0 : r->n_sent, bad;
    struct seq *s = &r->seq;
    struct err e;
    int k;

    if (first && !r->n_source) return refuse(w, r, LAGAN_E_INVALID_REQUEST, "the prompt is empty");
    if (!r->n_decoder) return refuse(w, r, LAGAN_E_INVALID_REQUEST, "the prompt is empty");
    if (!ids_in_range(r->ids, r->n_source, shape->vocab, &bad))
        return refuse(w, r, LAGAN_E_INVALID_REQUEST, "ids[%u] is %d, the vocabulary has %u", bad,
                      r->ids[bad], shape->vocab);
    if (!ids_in_range(r->ids + first, r->n_decoder, shape->vocab, &bad))
        return refuse(w, r, LAGAN_E_INVALID_REQUEST, "%s[%u] is %d, the vocabulary has %u",
                      first ? "decoder_ids" : "ids", bad, r->ids[first + bad], shape->vocab);
    if (r->n_source > w->max_source)
        return refuse(w, r, LAGAN_E_TOO_LONG, "the source is %u tokens, at most %u are taken",
                      r->n_source, w->max_source);
    if (!fit_lengths(r, r->n_decoder - done))
        return refuse(w, r, LAGAN_E_TOO_LONG,
                      "the prompt is %u tokens, generation_config.json's max_length %u: give "
                      "max_tokens",
                      r->n_decoder - done, r->max_length);
    if (done) r->cancelled = request_had_ended(r, r->ids[first + r->n_decoder - 1], shape->max_len);
    if (ends_whole(r)) {
        adopt_leave(w, r);
        emit_ended(w, r);
        request_give(w->requests, r);
        return;
    }
    if (r->n_decoder >= shape->max_len)
        return refuse(w, r, LAGAN_E_TOO_LONG, "the prompt is %u tokens, the model ends at %u",
                      r->n_decoder, shape->max_len);

    s->source = first ? r->ids : NULL;
    s->n_source = r->n_source;
    s->token = r->ids + first;
    s->n_prompt = r->n_decoder;
    s->cap = shape->max_len;
    s->max_new = MIN(r->max_tokens - done, shape->max_len - r->n_decoder);
    s->min_new -= MIN(s->min_new, done);
    r->sampling.prompt = s->token;
    r->sampling.n_prompt = s->n_prompt;
    r->sampling.first_new = s->n_prompt - done;
    r->sampling.max_new = done + s->max_new;
    r->n_ids = first + r->n_decoder + s->max_new;
    r->state = REQUEST_LIVE;
    if (exec_looks_back(&r->sampling) && s->n_prompt + s->max_new > EXEC_LOOK_BACK)
        return refuse(
            w, r, LAGAN_E_UNSUPPORTED,
            "no_repeat_ngram, presence_penalty and frequency_penalty go with %u tokens of prompt "
            "and answer, this may be %u",
            EXEC_LOOK_BACK, s->n_prompt + s->max_new);
    if (may_ban_all(&r->sampling, s->n_prompt + s->max_new, shape->vocab))
        return refuse(
            w, r, LAGAN_E_UNSUPPORTED,
            "no_repeat_ngram and min_tokens may leave no token of %u that can come: %u of "
            "prompt and answer are too many",
            shape->vocab, s->n_prompt + s->max_new);
    s->lockstep = exec_looks_back(&r->sampling);
    if (r->first) {
        k = outputs_add(w, r, now, &e);
    } else {
        adopt_claim(w, r);
        k = scheduler_add(w->sched, s, now, &e);
        if (k == 0) adopt_claimed(w, r);
        if (k == 0) scheduler_halt(w->sched, s->id, r->paused);
    }
    if (k < 0)
        return refuse(w, r, k == -ENOTSUP ? LAGAN_E_UNSUPPORTED : LAGAN_E_TOO_LONG, "%s", e.text);
    w->stats->v[STAT_requests]++;
    FP(intake_taken);
}

/* The decoder's prefix was put behind max_source; without one a model that has a source starts with
 * its own start token. */
static void
admit_ids(struct worker *w, struct worker_request *r, uint32_t n_prompt, nsec now)
{
    uint32_t done = r->first ? 0 : r->n_sent;

    if (!w->max_source) {
        r->n_decoder = n_prompt + done;
    } else {
        r->n_source = n_prompt;
        if (!r->n_decoder) {
            if (w->model->decoder_start < 0)
                return refuse(w, r, LAGAN_E_INVALID_REQUEST,
                              "the model names no decoder_start_token_id: give decoder_ids");
            r->ids[w->max_source] = w->model->decoder_start;
            r->n_decoder = 1 + done;
        }
    }
    admit(w, r, now);
}

void
intake_text_done(struct worker *w, struct worker_request *r, nsec now)
{
    if (r->kind != REQUEST_GENERATE) {
        struct rec_text_done d = { .row = r->row, .gen = r->gen, .reason = r->reason };
        bool decode = r->kind == REQUEST_DETOKENIZE;

        if (!d.reason) {
            d.n_ids = decode ? 0 : r->n_ids;
            d.text_bytes = decode ? r->n_text : 0;
            if (d.n_ids * sizeof(token_id) + d.text_bytes + sizeof d >
                w->link->out.max_rec - RING_HEADER) {
                d.reason = LAGAN_E_TOO_LONG;
                d.n_ids = d.text_bytes = 0;
                snprintf(r->why, sizeof r->why, "the answer does not fit into one message");
            }
        }
        if (d.reason) d.text_bytes = (uint32_t)strlen(r->why);
        outbox_begin(w->outbox, REC_TEXT_DONE);
        outbox_add(w->outbox, &d, sizeof d);
        outbox_add(w->outbox, r->ids, d.n_ids * sizeof(token_id));
        outbox_add(w->outbox, d.reason ? r->why : r->text, d.text_bytes);
        outbox_end(w->outbox);
        request_give(w->requests, r);
        return;
    }
    if (ends_whole(r)) {
        outputs_end(w, r);
        return;
    }
    if (r->reason) return refuse(w, r, r->reason, "%s", r->why);
    if (!w->max_source && (uint64_t)r->n_ids + r->n_sent > w->requests->room_ids)
        return refuse(w, r, LAGAN_E_TOO_LONG, "the prompt is %u tokens, and %u more came before",
                      r->n_ids, r->n_sent);
    if (!w->max_source && !r->first &&
        r->n_sent) /* delivered tokens wait behind the room's prompt part */
        memmove(r->ids + r->n_ids, r->ids + w->requests->room_ids - r->n_sent,
                r->n_sent * sizeof(token_id));
    admit_ids(w, r, r->n_ids, now);
}

/* End ids, bans and stop strings of a record, into the slot. */
static int
read_ends(struct worker *w, struct worker_request *r, const struct rec_submit *s, struct tail *t,
          struct err *e)
{
    const struct model *m = w->model;
    uint32_t n_eos = s->n_eos == 0xffff ? 0 : s->n_eos;
    const token_id *eos = take(t, n_eos * sizeof *eos);
    const token_id *ids = take(t, s->n_stop_ids * sizeof *ids);
    size_t used = 0;

    if (t->broken || n_eos > LAGAN_MAX_STOPS || s->n_stop_ids > LAGAN_MAX_STOPS ||
        s->n_stop > LAGAN_MAX_STOPS)
        return corrupt(e, "SUBMIT has too many end ids or stop strings");
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

    for (uint32_t i = 0; i < s->n_stop; i++) {
        uint32_t len;

        if (t->left < sizeof len) return corrupt(e, "SUBMIT ends inside a stop string");
        memcpy(&len, t->p, sizeof len);
        if (len > LAGAN_MAX_STOP || len > t->left - sizeof len || used + len > REQUEST_STOPS_BYTES)
            return corrupt(e, "SUBMIT has a stop string that is too long");
        memcpy(r->stops + used, t->p + sizeof len, len);
        if (r->has_text && detok_stop(&r->detok, r->stops + used, len) < 0)
            return corrupt(e, "SUBMIT has a stop string that cannot be one");
        used += len;
        t->p += sizeof len + len;
        t->left -= sizeof len + len;
    }
    return 0;
}

/* What the record leaves to the model. */
static void
take_defaults(const struct generation *g, struct rec_submit *s)
{
    if ((s->absent & ABSENT_max_tokens) && g->max_new)
        s->max_tokens = MIN(s->max_tokens, g->max_new);
    if (s->absent & ABSENT_min_tokens) s->min_tokens = g->min_new;
    if (s->absent & ABSENT_temperature) s->temperature = g->temperature;
    if (s->absent & ABSENT_top_k) s->top_k = g->top_k;
    if (s->absent & ABSENT_top_p) s->top_p = g->top_p;
    if (s->absent & ABSENT_min_p) s->min_p = g->min_p;
    if (s->absent & ABSENT_repetition_penalty) s->repetition = g->repetition;
    if (s->absent & ABSENT_beams) s->beams = g->beams;
    if (s->absent & ABSENT_length_penalty) s->length_penalty = g->length_penalty;
    if (s->absent & ABSENT_early_stopping) s->early_stopping = g->early_stopping;
    if (s->absent & ABSENT_no_repeat_ngram) s->no_repeat_ngram = g->no_repeat_ngram;
}

/* What lagand holds against a request when all of it is given. NULL: nothing. */
static const char *
disagrees(const struct rec_submit *s)
{
    if (s->beams > 1 && s->n > s->beams) return "n is more than num_beams";
    if (s->beams > 1 && s->temperature > 0) return "num_beams and a temperature";
    if (s->beams > 1 && (s->flags & (SUBMIT_LOGPROBS | SUBMIT_PROMPT_LOGPROBS)))
        return "num_beams and log-probabilities";
    if (s->beams > 1 && (s->flags & SUBMIT_LOGITS)) return "num_beams and return_logits";
    if (s->beams > 1 && s->n_stop) return "num_beams and stop";
    if (s->n > 1 && s->beams == 1 && s->temperature <= 0) return "n without num_beams or do_sample";
    return NULL;
}

static void
read_numbers(struct worker *w, struct worker_request *r, const struct rec_submit *s)
{
    const struct model *m = w->model;

    r->row = s->row;
    r->gen = s->gen;
    r->max_tokens = s->max_tokens;
    if (s->absent & ABSENT_max_tokens) r->max_length = m->generation.max_length;
    if (s->absent & ABSENT_min_tokens) r->min_length = m->generation.min_length;
    r->want_logprobs = s->flags & SUBMIT_LOGPROBS;
    r->seq.id = s->id;
    r->seq.priority = s->priority;
    r->seq.client = s->client;
    r->seq.deadline = s->deadline_ns ? s->deadline_ns : NSEC_NEVER;
    r->seq.min_new = s->min_tokens;
    r->seq.prompt_logprobs = s->flags & SUBMIT_PROMPT_LOGPROBS;
    r->seq.wants_states = s->flags & SUBMIT_ENCODER_OUTPUT;
    r->paused = s->flags & SUBMIT_PAUSED;
    r->n_outputs = s->n;
    r->beam = (struct beam){
        .n_beams = s->beams,
        .length_penalty = s->length_penalty,
        .early = s->early_stopping,
    };
    r->sampling = (struct sampling){
        .seed = s->seed,
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .repetition = s->repetition,
        .presence = s->presence,
        .frequency = s->frequency,
        .no_repeat_ngram = s->no_repeat_ngram,
        .top_k = s->top_k,
        .n_logprobs = s->logprobs,
        .n_prompt_logprobs = s->prompt_logprobs,
        .want_logprobs = true, /* a request's score is the sum of them */
        .want_states = s->flags & SUBMIT_ENCODER_OUTPUT,
        .want_logits = s->flags & SUBMIT_LOGITS,
        .min_new = s->min_tokens,
        .forced_bos = forced(s->forced_bos, m->forced_bos),
        .forced_eos = forced(s->forced_eos, m->forced_eos),
    };
}

static int
by_id(const void *a, const void *b)
{
    token_id x = ((const struct nudge *)a)->id, y = ((const struct nudge *)b)->id;

    return (x > y) - (x < y);
}

/* Logits that the request changes itself; the last entry of an id counts. */
static int
read_bias(struct worker *w, struct worker_request *r, const struct rec_submit *s, struct tail *t,
          struct err *e)
{
    const struct nudge *bias = take(t, s->n_bias * sizeof *bias);
    uint32_t n = 0;

    if (t->broken || s->n_bias > EXEC_MAX_BIAS) return corrupt(e, "SUBMIT has too many biases");
    for (uint32_t i = 0; i < s->n_bias; i++) {
        if ((uint32_t)bias[i].id < w->model->shape.vocab) r->bias[n++] = bias[i];
    }
    qsort(r->bias, n, sizeof r->bias[0], by_id);
    for (uint32_t i = 0; i < n; i++) {
        if (i && r->bias[i].id == r->bias[i - 1].id)
            return corrupt(e, "SUBMIT biases a token twice");
    }
    r->sampling.n_bias = n;
    r->sampling.bias = r->bias;
    return 0;
}

/* The most that was told of one output. */
static uint32_t
most_told(const struct rec_submit *s, const uint8_t *whose)
{
    uint32_t n[MOST_OUTPUTS] = { 0 }, most = 0;

    if (!whose) return s->n_done;
    for (uint32_t i = 0; i < s->n_done; i++) most = MAX(most, ++n[whose[i]]);
    return most;
}

static int
submit(struct worker *w, const char *data, size_t n, nsec now, struct err *e)
{
    struct rec_submit s;
    struct tail t = { .p = data, .left = n };
    const void *p = take(&t, sizeof s);
    const token_id *prompt, *decoder, *done;
    const char *text, *done_text, *odd;
    const uint8_t *whose = NULL;
    const float *scores = NULL;
    size_t pad;
    uint32_t first = w->max_source, room = w->requests->room_ids, told;
    struct worker_request *r;

    if (!p) return corrupt(e, "SUBMIT is shorter than its header");
    memcpy(&s, p, sizeof s);
    prompt = take(&t, (size_t)s.n_prompt * sizeof *prompt);
    decoder = take(&t, (size_t)s.n_decoder * sizeof *decoder);
    done = take(&t, (size_t)s.n_done * sizeof *done);
    text = take(&t, s.text_bytes);
    done_text = take(&t, s.done_text);
    if (t.broken) return corrupt(e, "SUBMIT is shorter than its counts say");
    (void)done_text; /* text delivered so far is rebuilt from the tokens */
    s.n = MAX(s.n, 1u);
    s.beams = MAX(s.beams, 1u);
    if (s.absent) take_defaults(&w->model->generation, &s);
    odd = s.absent ? disagrees(&s) : NULL;
    if (odd || (s.absent && *w->model->generation.unserved)) {
        char why[240];

        snprintf(why, sizeof why, "model_defaults: %s of generation_config.json %s",
                 odd ? odd : w->model->generation.unserved,
                 odd ? "do not go together" : "is not served");
        emit_reject(w, s.row, s.gen, odd ? LAGAN_E_INVALID_REQUEST : LAGAN_E_UNSUPPORTED, why);
        return 0;
    }
    if (s.n > MOST_OUTPUTS || s.beams > MAX_BEAMS || (s.beams > 1 && s.n > s.beams) ||
        s.early_stopping > BEAM_EARLY_NEVER)
        return corrupt(e, "SUBMIT asks for an impossible number of beams or outputs");
    /* Of several outputs all may have been told, and only that they had ended was not. */
    if (!s.max_tokens || (s.n == 1 && s.n_done >= s.max_tokens && !s.absent))
        return corrupt(e, "SUBMIT asks for no token");

    r = request_take(w->requests);
    if (r) {
        r->state = REQUEST_TEXT; /* ours still, and not free */
        read_numbers(w, r, &s);
    }
    if (r && n_slots(&s) > 1 && outputs_take(w, r, n_slots(&s)) < 0) {
        outputs_give(w, r);
        r = NULL;
    }
    if (!r) {
        emit_reject(w, s.row, s.gen, LAGAN_E_QUEUE_FULL,
                    "the worker's request slots are all taken");
        return 0;
    }
    r->has_text = w->tokenizer != NULL;
    if (r->has_text) detok_init(&r->detok, w->tokenizer, false);
    r->chat = s.chat;
    if (r->has_text && r->chat) chat_reply_begin(&r->detok.reply, w->chat);
    TRY(read_ends(w, r, &s, &t, e));
    pad = MIN((size_t)(-(t.p - data) & 7), t.left); /* stop strings are padded together */
    t.p += pad;
    t.left -= pad;
    TRY(read_bias(w, r, &s, &t, e));
    if (s.n > 1) {
        whose = take(&t, s.n_done);
        scores = take(&t, s.n * sizeof *scores);
        if (t.broken) return corrupt(e, "SUBMIT does not say whose its tokens are");
        for (uint32_t i = 0; i < s.n_done; i++)
            if (whose[i] >= s.n)
                return corrupt(e, "SUBMIT has tokens of an output that it does not ask for");
    }
    told = most_told(&s, whose);

    if (n_slots(&s) > MIN(w->limits->max_seqs, w->limits->max_rows)) {
        refuse(w, r, LAGAN_E_INVALID_REQUEST,
               "%s is %u: each is a sequence with a row, and there are %u (max_num_seqs, "
               "max_num_batched_tokens)",
               s.beams > 1 ? "beams" : "n", n_slots(&s),
               MIN(w->limits->max_seqs, w->limits->max_rows));
        return 0;
    }
    if ((s.text_bytes || s.n_stop) && !w->tokenizer) {
        refuse(w, r, LAGAN_E_UNSUPPORTED, "%s: %s", s.text_bytes ? "text" : "stop", w->why_no_text);
        return 0;
    }
    if ((s.n_decoder || (s.flags & SUBMIT_ENCODER_OUTPUT)) && !first) {
        refuse(w, r, LAGAN_E_INVALID_REQUEST, "%s: the model has no encoder",
               s.n_decoder ? "decoder_ids" : "return_encoder_output");
        return 0;
    }
    if (s.text_bytes > w->requests->room_text ||
        MAX(s.n_decoder, (uint32_t)(first > 0)) + (uint64_t)told > room - first ||
        (uint64_t)s.n_prompt + told > (first ? (uint64_t)first + told : room)) {
        refuse(w, r, LAGAN_E_TOO_LONG, "the prompt is %u tokens, at most %u are taken",
               first && s.n_prompt <= first ? s.n_decoder : s.n_prompt, first ? first : room);
        return 0;
    }
    r->score = s.done_score;
    if (r->first) {
        for (struct worker_request *m = r; m && scores && m->output < s.n; m = m->next)
            memcpy(&m->score, &scores[m->output], sizeof m->score);
        outputs_told(w, r, done, whose, s.n_done);
        s.n_done = 0;
    } else {
        r->n_sent = s.n_done;
    }
    for (uint32_t i = 0; r->has_text && i < s.n_done; i++) {
        bool stopped;
        int len = detok_add(&r->detok, done[i], w->text_buf, w->text_cap, &stopped);

        if (len > 0) r->n_text_sent += (uint32_t)len;
        if (stopped) r->cancelled = LAGAN_FINISH_STOP;
    }
    if (first && s.n_decoder) {
        memcpy(r->ids + first, decoder, s.n_decoder * sizeof *decoder);
        r->n_decoder = s.n_decoder;
    }
    if (first && s.n_done) {
        if (!r->n_decoder) {
            r->ids[first] = w->model->decoder_start;
            r->n_decoder = 1;
        }
        memcpy(r->ids + first + r->n_decoder, done, s.n_done * sizeof *done);
        r->n_decoder += s.n_done;
    }
    if (s.text_bytes) {
        memcpy(r->text, text, s.text_bytes);
        r->n_text = s.text_bytes;
        if (!first && s.n_done) memcpy(r->ids + room - s.n_done, done, s.n_done * sizeof *done);
        text_thread_give(w->text, r);
        return 0;
    }
    memcpy(r->ids, prompt, s.n_prompt * sizeof *prompt);
    if (!first) memcpy(r->ids + s.n_prompt, done, s.n_done * sizeof *done);
    admit_ids(w, r, s.n_prompt, now);
    return 0;
}

/* An id that is neither the tokenizer's nor the model's: says which. */
static bool
has_stranger(const struct worker *w, struct worker_request *r)
{
    uint32_t vocab = MAX(tokenizer_size(w->tokenizer), w->model->shape.vocab), i = 0;

    while (i < r->n_ids && (uint32_t)r->ids[i] < vocab) i++;
    if (i == r->n_ids) return false;
    r->reason = LAGAN_E_INVALID_REQUEST;
    snprintf(r->why, sizeof r->why, "ids[%u] is %d, the vocabulary has %u", i, r->ids[i], vocab);
    return true;
}

static int
text_call(struct worker *w, const char *data, size_t n, struct err *e)
{
    struct rec_text c;
    struct tail t = { .p = data, .left = n };
    const void *p = take(&t, sizeof c);
    const token_id *ids;
    const char *text;
    struct worker_request *r;

    if (!p) return corrupt(e, "TEXT is shorter than its header");
    memcpy(&c, p, sizeof c);
    if ((uint64_t)c.n_ids * sizeof *ids + c.text_bytes > t.left || c.op < 1 || c.op > 2)
        return corrupt(e, "TEXT is not what its counts say");
    ids = (const token_id *)(const void *)t.p;
    text = t.p + (size_t)c.n_ids * sizeof *ids;
    r = request_take(w->requests);
    if (!r) {
        struct rec_text_done d = { .row = c.row, .gen = c.gen, .reason = LAGAN_E_QUEUE_FULL };

        outbox_put(w->outbox, REC_TEXT_DONE, &d, sizeof d);
        return 0;
    }
    r->state = REQUEST_TEXT;
    r->kind = c.op == 1 ? REQUEST_TOKENIZE : REQUEST_DETOKENIZE;
    r->row = c.row;
    r->gen = c.gen;
    r->bare = c.flags & 1;
    r->chat = c.flags & 2;
    if (!w->tokenizer) {
        r->reason = LAGAN_E_UNSUPPORTED;
        snprintf(r->why, sizeof r->why, "%s", w->why_no_text);
        intake_text_done(w, r, 0);
        return 0;
    }
    if (c.n_ids > w->requests->room_ids || c.text_bytes > w->requests->room_text) {
        r->reason = LAGAN_E_TOO_LONG;
        snprintf(r->why, sizeof r->why, "at most %u ids or %u bytes of text are taken",
                 w->requests->room_ids, w->requests->room_text);
        intake_text_done(w, r, 0);
        return 0;
    }
    if (c.n_ids) memcpy(r->ids, ids, c.n_ids * sizeof *ids);
    if (c.text_bytes) memcpy(r->text, text, c.text_bytes);
    r->n_ids = c.n_ids;
    r->n_text = c.text_bytes;
    if (r->kind == REQUEST_DETOKENIZE && has_stranger(w, r))
        intake_text_done(w, r, 0);
    else
        text_thread_give(w->text, r);
    return 0;
}

/* 1: the request that a record names; 0: its end crossed the record. */
static int
named(struct worker *w, const char *data, size_t n, const char *if_short, struct rec_row *c,
      struct worker_request **ret, struct err *e)
{
    *ret = NULL;
    if (n < sizeof *c) return corrupt(e, if_short);
    memcpy(c, data, sizeof *c);
    *ret = request_find(w->requests, c->row, c->gen);
    return *ret != NULL;
}

static int
cancel(struct worker *w, const char *data, size_t n, struct err *e)
{
    struct rec_row c;
    struct worker_request *r;
    int known = named(w, data, n, "CANCEL is shorter than its header", &c, &r, e);

    if (known <= 0) return known;
    if (r->state != REQUEST_LIVE && r->first) r = r->first;
    r->cancelled = (uint16_t)(c.flags ? c.flags : LAGAN_FINISH_CANCELLED);
    if (r->state == REQUEST_LIVE) scheduler_cancel(w->sched, r->seq.id, r->cancelled);
    return 0;
}

static int
pause_or_go_on(struct worker *w, const char *data, size_t n, struct err *e)
{
    struct rec_row c;
    struct worker_request *r;
    int known = named(w, data, n, "PAUSE is shorter than its header", &c, &r, e);

    if (known <= 0) return known;
    if (r->state != REQUEST_LIVE && r->first) r = r->first;
    r->paused = c.flags & 1;
    if (r->state == REQUEST_LIVE) scheduler_halt(w->sched, r->seq.id, r->paused);
    return 0;
}

/* ---- a SUBMIT of several records */

int
intake_open(struct worker *w, struct err *e)
{
    size_t outputs = MIN((size_t)w->limits->max_seqs, (size_t)MOST_OUTPUTS);
    size_t told = sizeof(token_id) + 1 + emit_token_text_bytes(w); /* and whose it is */
    /* What a client's frame holds, and an answer as long as it can be; touched as far as it is used. */
    size_t most = 2 * (size_t)LAGAN_MAX_FRAME + outputs * w->model->shape.max_len * told;
    void *p = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    if (p == MAP_FAILED)
        return err_set(e, -ENOMEM, "address space for a request of %zu KiB", most >> 10);
    w->intake = calloc(1, sizeof *w->intake);
    if (!w->intake) {
        munmap(p, most);
        return err_set(e, -ENOMEM, "memory for the intake");
    }
    w->intake->fragments = p;
    w->intake->most_fragments = most;
    return 0;
}

void
intake_close(struct worker *w)
{
    if (w->intake) munmap(w->intake->fragments, w->intake->most_fragments);
    free(TAKE(w->intake));
}

/* One piece more. What finds no room is counted. */
static void
add_fragment(struct worker *w, const struct ring_record *rec)
{
    if (w->intake->n_fragments + rec->len <= w->intake->most_fragments)
        memcpy(w->intake->fragments + w->intake->n_fragments, rec->data, rec->len);
    w->intake->n_fragments += rec->len;
}

static int
submit_whole(struct worker *w, nsec now, struct err *e)
{
    size_t n = w->intake->n_fragments, has = MIN(n, w->intake->most_fragments);
    struct rec_submit s;
    int r = 0;

    w->intake->n_fragments = 0;
    if (n == has) {
        r = submit(w, w->intake->fragments, n, now, e);
    } else { /* of another model than ours */
        memcpy(&s, w->intake->fragments, sizeof s);
        emit_reject(w, s.row, s.gen, LAGAN_E_TOO_LONG,
                    "the request and what was said of it are longer than this model's can be");
    }
    if (has > FRAGMENTS_KEPT) madvise(w->intake->fragments, has, MADV_DONTNEED);
    return r;
}

int
intake_drain(struct worker *w, nsec now, struct err *e)
{
    struct ring_record rec;
    int taken = 0, r = 0;

    while (taken < BUDGET_RECORDS && (r = ring_peek(&w->link->in, &rec)) > 0) {
        taken++;
        if (rec.type == REC_SUBMIT && (w->intake->n_fragments || (rec.flags & RING_MORE))) {
            add_fragment(w, &rec);
            r = rec.flags & RING_MORE ? 0 : submit_whole(w, now, e);
            if (r < 0) return r;
            continue;
        }
        switch (rec.type) {
        case REC_SUBMIT:
            r = submit(w, rec.data, rec.len, now, e);
            break;
        case REC_CANCEL:
            r = cancel(w, rec.data, rec.len, e);
            break;
        case REC_PAUSE:
            r = pause_or_go_on(w, rec.data, rec.len, e);
            break;
        case REC_TEXT:
            r = text_call(w, rec.data, rec.len, e);
            break;
        case REC_DRAIN:
            w->draining = true;
            FP(drain_seen);
            break;
        default:
            break; /* STATE asks nothing of this worker */
        }
        if (r < 0) return r;
    }
    if (r < 0) return err_set(e, r, "request ring: %s", ring_why(&w->link->in));
    if (taken) link_release(w->link);
    return taken;
}
