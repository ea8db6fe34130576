/* outputs.c - fills the slots of a request with several sequences, and starts its beam search. */
#include "worker/io/outputs.h"

#include "include/lagan_wire.h"
#include "ipc/model_options.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/io/emit.h"
#include "worker/io/search_rows.h"
#include "worker/model/model.h"
#include "worker/sched/beam_search.h"
#include "worker/sched/scheduler.h"

enum { WITHOUT_TEXT = 16 }; /* tokens without text, among those that a stop string may have */

int
outputs_take(struct worker *w, struct worker_request *r, uint32_t n)
{
    struct worker_request **last = &r->next;

    r->first = r;
    for (uint32_t i = 1; i < n; i++) {
        struct worker_request *m = request_take(w->requests);

        if (!m) return -EAGAIN;
        m->state = r->state;
        m->ledger_index = r->ledger_index;
        m->gen = r->gen;
        m->output = (uint16_t)i;
        m->first = r;
        *last = m;
        last = &m->next;
    }
    return 0;
}

void
outputs_give(struct worker *w, struct worker_request *r)
{
    for (struct worker_request *next; r; r = next) {
        next = r->next;
        request_give(w->requests, r);
    }
}

/* Copies the detokenizer of a slot and its stop strings, which go to the buffer of the new slot. */
static void
copy_detok(struct worker_request *to, const struct worker_request *from)
{
    to->has_text = from->has_text;
    to->detok = from->detok;
    memcpy(to->stops, from->stops, REQUEST_STOPS_BYTES);
    for (uint32_t i = 0; i < to->detok.n_stop; i++)
        to->detok.stop[i] = to->stops + (from->detok.stop[i] - from->stops);
}

static token_id *
delivered_of(const struct worker *w, const struct worker_request *r)
{
    return r->ids + w->requests->max_ids - r->n_sent;
}

void
outputs_restore_text(struct worker *w, struct worker_request *r, const token_id *token, uint32_t n)
{
    for (uint32_t i = 0; r->has_text && i < n; i++) {
        bool stopped;
        int len = detok_add(&r->detok, token[i], w->text_buf, w->text_cap, &stopped);

        if (len > 0) r->n_text_sent += (uint32_t)len;
        if (stopped) r->cancelled = LAGAN_FINISH_STOP;
    }
}

void
outputs_place_delivered(struct worker *w, struct worker_request *r, const token_id *token,
                        const uint8_t *output_of, uint32_t n)
{
    for (struct worker_request *m = r; m; m = m->next) {
        token_id *to;

        if (m != r) copy_detok(m, r);
        for (uint32_t i = 0; i < n; i++) m->n_sent += (output_of ? output_of[i] : 0) == m->output;
        to = delivered_of(w, m);
        for (uint32_t i = 0; i < n; i++)
            if ((output_of ? output_of[i] : 0) == m->output) *to++ = token[i];
    }
    for (struct worker_request *m = r; m; m = m->next)
        outputs_restore_text(w, m, delivered_of(w, m), m->n_sent);
}

/* Copies the prompt and parameters of the first slot r to slot m of another output. */
static void
copy_to_output(struct worker *w, struct worker_request *m, const struct worker_request *r)
{
    uint32_t first = w->max_source;

    m->state = REQUEST_LIVE;
    m->kind = r->kind;
    m->max_tokens = r->max_tokens;
    m->n_source = r->n_source;
    m->n_decoder = r->n_decoder;
    m->n_prompt_tokens = r->n_prompt_tokens;
    m->want_logprobs = r->want_logprobs;
    m->seq = r->seq;
    m->seq.owner = m;
    m->keep = r->keep; /* a copy, because slot r may be freed earlier */
    if (r->seq.keep) m->seq.keep = &m->keep;
    m->seq.token = m->ids + first;
    if (r->seq.source) m->seq.source = memcpy(m->ids, r->ids, r->n_source * sizeof(token_id));
    m->seq.prompt_logprobs = false;
    m->sampling = r->sampling;
    m->sampling.prompt = m->seq.token;
    m->sampling.output = m->output;
    m->sampling.bias = m->bias; /* a copy, because slot r may be freed earlier */
    memcpy(m->bias, r->bias, r->sampling.n_bias * sizeof m->bias[0]);
    memcpy(m->seq.token, r->seq.token, r->n_decoder * sizeof(token_id));
}

/* Appends delivered tokens to the prompt of an output. */
static void
extend_prompt(struct worker_request *m, const token_id *delivered, uint32_t n)
{
    memmove(m->seq.token + m->seq.n_prompt, delivered, n * sizeof(token_id));
    m->seq.n_prompt += n;
    m->seq.max_new -= n;
    m->seq.min_new -= MIN(m->seq.min_new, n);
    m->n_decoder += n;
}

/* For struct beam.stops. Decodes the last tokens of the beam, as many as a stop string may have and
 * some without text; of a conversation all, because earlier tokens decide which are text. */
static bool
completes_stop(void *arg, const struct beam *b, uint32_t slot, token_id t)
{
    const struct worker_request *r =
        (const void *)((const char *)b - offsetof(struct worker_request, beam));
    const token_id *line = b->line[slot] + b->first;
    struct worker *w = arg;
    uint32_t longest = 0, n = b->n_new;
    struct detok d;
    bool stopped = false;

    detok_init(&d, w->tokenizer, false);
    if (r->chat) chat_reply_begin(&d.reply, w->chat);
    for (uint32_t i = 0; i < r->detok.n_stop; i++) {
        longest = MAX(longest, r->detok.stop_len[i]);
        check(detok_stop(&d, r->detok.stop[i], r->detok.stop_len[i]) == 0);
    }
    for (uint32_t i = r->chat ? 0 : n - MIN(n, longest + WITHOUT_TEXT); i < n; i++)
        check(detok_add(&d, line[i], w->text_buf, w->text_cap, &stopped) >= 0);
    if (d.stopped) return false; /* an ended beam that continues for lack of others */
    check(detok_add(&d, t, w->text_buf, w->text_cap, &stopped) >= 0);
    return d.stopped;
}

/* Initializes the beam search of r. Every beam starts with the same n_fixed delivered tokens. */
static void
init_search(struct worker *w, struct worker_request *r, uint32_t n_prompt, uint32_t max_new,
            uint32_t n_fixed)
{
    struct outputs_places at = outputs_places(w->max_source, n_prompt, max_new);
    struct beam *b = &r->beam;
    uint32_t n = 0;

    b->max_new = max_new;
    b->min_new = r->sampling.min_new;
    b->n_eos = r->seq.n_eos;
    b->n_end = r->seq.n_end;
    b->end_id = r->seq.end_id;
    b->first = n_prompt;
    b->stops = r->detok.n_stop ? completes_stop : NULL;
    b->stops_arg = w;
    for (struct worker_request *m = r; m; m = m->next, n++) {
        b->line[n] = m->seq.token;
        b->done_token[n] = m->ids + at.ended;
        b->total[n] = (float *)(void *)(m->ids + at.scores);
        b->done_total[n] = (float *)(void *)(m->ids + at.ended_scores);
        b->row_slot[n] = (uint8_t *)(m->ids + at.row_slots);
        b->done_row_slot[n] = (uint8_t *)(m->ids + at.ended_row_slots);
        m->seq.beam = b;
        m->seq.n_prompt = n_prompt;
        m->seq.max_new = max_new;
        m->finished = m->output >= r->n_outputs;
        if (n_fixed) {
            extend_prompt(m, delivered_of(w, r), n_fixed);
            b->total[n][n_fixed - 1] = r->score;
        }
    }
    b->n_beams = n;
    beam_start(b, n_fixed, n_fixed ? r->score : 0);
    for (struct worker_request *m = r; m; m = m->next)
        m->sampling.n_candidates = beam_width(n, b->n_end);
}

/* Starts the beam search of r: if adopt is true, with the beams of the manifest if these are
 * restored; else from the prompt if results are deterministic; else after the delivered tokens. The
 * manifest does not have the logit rows of earlier steps, so a search that keeps rows restarts. */
static void
start_search(struct worker *w, struct worker_request *r, uint32_t n_prompt, uint32_t max_new,
             bool adopt)
{
    bool exact = w->keys->numerics == NUMERICS_INVARIANT || !strcmp(gpu_ops(w->gpu)->name, "cpu");
    uint16_t over = 0;

    /* All tokens of the best output may have been delivered, and only FINISH is missing. */
    if (r->n_sent && !exact)
        over = request_had_ended(r, delivered_of(w, r)[r->n_sent - 1], UINT32_MAX);
    if (!over && !exact && r->n_sent >= max_new) over = LAGAN_FINISH_LENGTH;
    init_search(w, r, n_prompt, max_new, 0);
    if (adopt && !over && !search_rows_kept(r) && adopt_claim_search(w, r, delivered_of(w, r)))
        return;
    init_search(w, r, n_prompt, max_new, exact || over ? 0 : r->n_sent);
    if (r->n_outputs == 1)
        for (struct worker_request *m = r; m; m = m->next) m->cancelled = over;
    if (adopt && !over) adopt_claim(w, r);
}

/* Makes a sequence group of the sequences that have not ended, in the order of outputs. Returns its
 * first member; NULL: all have ended. n_shared: tokens that all members share. */
static struct seq *
chain_running(struct worker_request *r, uint32_t n_shared)
{
    struct seq *first = NULL, **last = &first;
    uint32_t n = 0;

    for (struct worker_request *m = r; m; m = m->next) {
        if (m->cancelled) continue;
        *last = &m->seq;
        last = &m->seq.next_member;
        m->seq.first_member = first;
        m->seq.next_member = NULL;
        n++;
    }
    if (first && n == 1) {
        first->first_member = NULL;
    } else if (first) {
        first->n_members = n;
        first->n_shared = n_shared;
    }
    return first;
}

int
outputs_add(struct worker *w, struct worker_request *r, nsec now, struct err *e)
{
    uint32_t n_prompt = r->n_decoder, max_new = r->seq.max_new,
             n_ids = outputs_places(w->max_source, n_prompt, max_new).end;
    bool search = r->beam.n_beams > 1;
    struct seq *first;

    for (struct worker_request *m = r->next; m; m = m->next) copy_to_output(w, m, r);
    for (struct worker_request *m = r; m; m = m->next) {
        m->n_ids = n_ids;
        m->seq.plan_after_commit = search;
        if (search || m->n_sent == 0) continue;
        extend_prompt(m, delivered_of(w, m), m->n_sent);
        m->cancelled = request_had_ended(m, m->seq.token[m->n_decoder - 1],
                                         w->model->shape.max_len);
    }
    if (search) start_search(w, r, n_prompt, max_new, /* adopt= */ true);
    for (struct worker_request *m = r; m && !search; m = m->next)
        (m->cancelled ? adopt_release : adopt_claim)(w, m);
    first = chain_running(r, (search ? r->seq.n_prompt : n_prompt) - 1);
    if (first) {
        int k = scheduler_add(w->sched, first, now, e);

        if (k == -EAGAIN) { /* no slots or KV blocks for the adopted beams: adopts none */
            start_search(w, r, n_prompt, max_new, /* adopt= */ false);
            first = chain_running(r, r->seq.n_prompt - 1);
            k = scheduler_add(w->sched, first, now, e);
        }
        TRY(k);
        for (struct worker_request *m = r; m; m = m->next)
            if (!m->cancelled) adopt_claimed(w, m);
        scheduler_suspend(w->sched, first->id, r->suspended);
    }
    adopt_release_rest(w, r);
    for (struct worker_request *m = r, *next; m; m = next) {
        next = m->next;
        if (!m->cancelled) continue;
        emit_ended(w, m);
        request_give(w->requests, m);
    }
    return 0;
}

void
outputs_end(struct worker *w, struct worker_request *r)
{
    for (struct worker_request *m = r; m && m->output < r->n_outputs; m = m->next) {
        if (!m->cancelled) m->cancelled = r->cancelled;
        emit_ended(w, m);
    }
    outputs_give(w, r);
}
