/* intake_admit.c - checks the tokens of a request and adds its sequence to the scheduler.
 *
 * The ids array of a slot has the encoder input in [0, max_source) and the decoder tokens from
 * max_source on. For a decoder-only model max_source is 0. */
#include "worker/io/intake_admit.h"

#include "base/failpoint.h"
#include "include/lagan_wire.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/io/emit.h"
#include "worker/io/outputs.h"
#include "worker/io/search_rows.h"
#include "worker/model/model.h"
#include "worker/sched/scheduler.h"

#include <stdarg.h>
#include <stdio.h>

void
intake_refuse(struct worker *w, struct worker_request *r, uint16_t reason, const char *fmt, ...)
{
    char why[240];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    emit_reject(w, r->ledger_index, r->gen, reason, r->n_prompt_tokens, why);
    outputs_give(w, r);
}

/* Returns the first id outside the vocabulary, or NULL. */
static const token_id *
find_foreign_id(const token_id *ids, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)ids[i] >= vocab) return &ids[i];
    return NULL;
}

bool
intake_ends_whole(const struct worker_request *r)
{
    return r->cancelled && !(r->first && r->cancelled == LAGAN_FINISH_STOP);
}

/* Applies the model's default min_length and max_length, which include the `given` prompt tokens.
 * Returns false if the prompt alone reaches max_length. */
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

/* Returns true if no_repeat_ngram and min_new could suppress the whole vocabulary within n_tokens:
 * then no token is left to sample, which a device reports as a failure. For n-grams of 2 and more,
 * at most every other token starts a suppressing n-gram. */
static bool
may_suppress_all(const struct sampling *s, uint32_t n_tokens, uint32_t vocab)
{
    uint32_t n = s->no_repeat_ngram == 1 ? n_tokens : s->no_repeat_ngram ? n_tokens / 2 + 1 : 0;

    return n + (uint64_t)(s->min_new ? s->n_eos : 0) >= vocab;
}

/* Checks the tokens of r against the vocabulary and max_length. Returns false if r was refused. */
static bool
tokens_fit(struct worker *w, struct worker_request *r, uint32_t n_done)
{
    uint32_t vocab = w->model->shape.vocab, first = w->max_source;
    const token_id *foreign = find_foreign_id(r->ids, r->n_source, vocab);

    if (!foreign) foreign = find_foreign_id(r->ids + first, r->n_decoder, vocab);
    if (!r->n_decoder || (first && !r->n_source))
        intake_refuse(w, r, LAGAN_E_INVALID_REQUEST, "the prompt is empty");
    else if (foreign && r->n_text)
        intake_refuse(w, r, LAGAN_E_INVALID_REQUEST,
                      "the tokenizer turned the text into token id %d, but the vocabulary of the "
                      "model has only %u tokens",
                      *foreign, vocab);
    else if (foreign)
        intake_refuse(w, r, LAGAN_E_INVALID_REQUEST, INTAKE_OTHER_FILES);
    else if (!fit_lengths(r, r->n_decoder - n_done))
        intake_refuse(w, r, LAGAN_E_TOO_LONG,
                      "the prompt has %u tokens, so max_length of generation_config.json, %u, "
                      "leaves no token to generate; set max_tokens",
                      r->n_decoder - n_done, r->max_length);
    else
        return true;
    return false;
}

/* Lowers max_tokens to what fits into an empty KV cache behind a prompt of n_prompt tokens, to 1 if
 * not even that fits: the scheduler then refuses r. Delivered tokens do not change the result. */
static void
fit_max_tokens(const struct worker *w, struct worker_request *r, uint32_t n_prompt)
{
    struct seq alone = r->seq;

    if (n_prompt >= w->model->shape.max_len) return;
    alone.n_source = r->n_source;
    alone.n_prompt = n_prompt;
    alone.max_new = MIN(r->max_tokens, w->model->shape.max_len - n_prompt);
    if (r->first) { /* as outputs_add() makes the group */
        alone.first_member = &alone;
        alone.n_members = MAX(r->n_outputs, r->beam.n_beams);
        alone.n_shared = n_prompt - 1;
        alone.beam = r->beam.n_beams > 1 ? &r->beam : NULL;
    }
    r->max_tokens = MAX(scheduler_most_new(w->sched, &alone), 1u);
}

/* Sets tokens and length limits of r's sequence and sampling. n_done: delivered tokens. */
static void
set_lengths(struct worker *w, struct worker_request *r, uint32_t n_done)
{
    const struct model_shape *shape = &w->model->shape;
    uint32_t first = w->max_source;
    struct seq *s = &r->seq;

    s->source = first ? r->ids : NULL;
    s->n_source = r->n_source;
    s->token = r->ids + first;
    s->n_prompt = r->n_decoder;
    s->cap = shape->max_len;
    s->max_new = MIN(r->max_tokens - n_done, shape->max_len - r->n_decoder);
    s->min_new -= MIN(s->min_new, n_done);
    r->sampling.prompt = s->token;
    r->sampling.n_prompt = s->n_prompt;
    r->sampling.first_new = s->n_prompt - n_done;
    r->sampling.max_new = n_done + s->max_new;
    r->n_ids = first + r->n_decoder + s->max_new;
    r->state = REQUEST_LIVE;
}

/* Refuses r and returns false if no_repeat_ngram does not allow its greatest length. */
static bool
sampling_fits(struct worker *w, struct worker_request *r)
{
    uint32_t vocab = w->model->shape.vocab, longest = r->seq.n_prompt + r->seq.max_new;

    if (!may_suppress_all(&r->sampling, longest, vocab)) return true;
    intake_refuse(w, r, LAGAN_E_UNSUPPORTED,
                  "no_repeat_ngram, with min_tokens, could suppress the whole vocabulary (%u "
                  "tokens) before prompt and output reach %u tokens; lower max_tokens",
                  vocab, longest);
    return false;
}

/* Adds the sequences of r to the scheduler. Returns 0 or an error of scheduler_add(). */
static int
schedule(struct worker *w, struct worker_request *r, nsec now, struct err *e)
{
    int k;

    if (r->first) return outputs_add(w, r, now, e);
    adopt_claim(w, r);
    k = scheduler_add(w->sched, &r->seq, now, e);
    if (k < 0) return k;
    adopt_claimed(w, r);
    scheduler_suspend(w->sched, r->seq.id, r->suspended);
    return 0;
}

/* Checks r and adds it to the scheduler, or ends or refuses it. r->ids has n_source tokens of the
 * encoder input and n_decoder of the decoder, which with one slot include delivered tokens. */
static void
admit(struct worker *w, struct worker_request *r, nsec now)
{
    const struct model_shape *shape = &w->model->shape;
    uint32_t done = r->first ? 0 : r->n_sent;
    struct err e;
    int k;

    if (!tokens_fit(w, r, done)) return;
    if (r->fit) fit_max_tokens(w, r, r->n_decoder - done);
    if (done)
        r->cancelled = request_had_ended(r, r->ids[w->max_source + r->n_decoder - 1],
                                         shape->max_len);
    if (intake_ends_whole(r)) {
        adopt_release(w, r);
        emit_ended(w, r);
        request_give(w->requests, r);
        return;
    }
    if (r->n_decoder >= shape->max_len) {
        intake_refuse(w, r, LAGAN_E_TOO_LONG,
                      "the prompt has %u tokens; max_model_len, which is %u, must leave at least "
                      "one token to generate",
                      r->n_decoder, shape->max_len);
        return;
    }
    set_lengths(w, r, done);
    if (!sampling_fits(w, r)) return;
    k = search_rows_fit(w, r, r->seq.max_new, &e);
    if (k == 0) k = schedule(w, r, now, &e);
    if (k < 0) {
        intake_refuse(w, r, LAGAN_E_TOO_LONG, "%s", e.text);
        return;
    }
    w->stats->v[STAT_requests]++;
    FP(intake_taken);
}

/* Without a decoder prefix, an encoder-decoder model gets decoder_start as its first token. */
void
intake_admit(struct worker *w, struct worker_request *r, uint32_t n_prompt, nsec now)
{
    uint32_t done = r->first ? 0 : r->n_sent;

    r->n_prompt_tokens = n_prompt;
    if (!w->max_source) {
        r->n_decoder = n_prompt + done;
    } else {
        r->n_source = n_prompt;
        if (!r->n_decoder) {
            r->ids[w->max_source] = w->model->decoder_start;
            r->n_decoder = 1 + done;
        }
    }
    admit(w, r, now);
}

void
intake_admit_text(struct worker *w, struct worker_request *r, nsec now)
{
    uint32_t n_done = r->n_sent;

    if (intake_ends_whole(r)) {
        r->n_prompt_tokens = r->n_ids;
        outputs_end(w, r);
        return;
    }
    if (r->reason) {
        intake_refuse(w, r, r->reason, "%s", r->why);
        return;
    }
    /* place_prompt() has put the delivered tokens at the end of ids, because the length of the
     * prompt was not known: moves them behind the prompt. */
    if (!w->max_source && !r->first && n_done)
        memmove(r->ids + r->n_ids, r->ids + w->requests->max_ids - n_done,
                n_done * sizeof(token_id));
    intake_admit(w, r, r->n_ids, now);
}
