/* emit.c - converts step results to records for lagand: tokens, text, log-probabilities, ends.
 *
 * A step gives one STEP record with an entry for each new token, or several records if it is long.
 * Prompt log-probabilities precede a request's first token. All records go through the outbox;
 * loop.c publishes it once per iteration. "Search": beam search. */
#include "worker/io/emit.h"

#include "base/failpoint.h"
#include "include/lagan_wire.h"
#include "ipc/channel.h"
#include "ipc/model_options.h"
#include "ipc/records.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/io/outbox.h"
#include "worker/io/search_rows.h"
#include "worker/model/arch.h"
#include "worker/model/model.h"
#include "worker/sched/beam_search.h"
#include "worker/sched/scheduler.h"
#include "worker/text/chat_templates.h"
#include "worker/text/tokenizer.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <xxhash.h>

size_t
emit_token_text_bytes(const struct worker *w)
{
    if (!w->tokenizer) return 0;
    return MIN(3 * (size_t)tokenizer_longest(w->tokenizer), (size_t)w->channel->out.max_rec);
}

/* Returns a hash of what the bits of logits depend on, except device and program. */
static uint64_t
fingerprint(const struct worker *w)
{
    const uint64_t of[] = { w->model->checkpoint[0], w->model->checkpoint[1], w->model->dtype,
                            w->model->act, w->keys->numerics };

    return XXH3_64bits(of, sizeof of);
}

void
emit_ready(struct worker *w, nsec load_ns)
{
    const char *name = w->model->arch->name, *device = gpu_facts(w->gpu).describe;
    uint32_t max_prompt = w->max_source ? w->max_source : w->model->shape.max_len;
    uint64_t max_text = w->tokenizer ? tokenizer_max_text(w->tokenizer, max_prompt) : 0;
    struct rec_ready r = {
        .vocab = w->model->shape.vocab,
        .max_len = w->model->shape.max_len,
        .max_source = w->max_source,
        .n_slots = w->limits->max_seqs,
        .tokens_per_block = w->kv_config->tokens_per_block,
        .n_groups = w->kv_config->n_groups,
        .name_bytes = (uint32_t)strlen(name),
        .has_text = w->tokenizer != NULL,
        .kv_bytes = w->adopt->kv_arena.bytes,
        .weight_bytes = w->model->weight_bytes,
        .max_tokens = kv_longest(w->kv, w->max_source),
        .load_ns = load_ns,
        .adopted = w->model->adopted,
        .beams = w->model->generation.beams,
        .temperature = w->model->generation.temperature,
        .decoder_start = w->model->decoder_start,
        .max_request_seqs = MIN(w->limits->max_seqs, w->limits->max_tokens),
        .max_text_bytes = (uint32_t)MIN(max_text, (uint64_t)LAGAN_MAX_STR),
        .device_bytes = (uint16_t)MIN(strlen(device), (size_t)READY_DEVICE - 1),
        .fingerprint = fingerprint(w),
        .tokenizer_fault = w->tokenizer_fault,
    };

    _Static_assert(sizeof r.unserved == sizeof w->model->generation.unserved, "rec_ready.unserved");
    memcpy(r.unserved, w->model->generation.unserved, sizeof r.unserved);
#define X(name) r.defaults[READY_DEFAULT_##name] = w->model->generation.stated.name;
    READY_DEFAULTS(X)
#undef X
    if (w->tokenizer && w->chat->template)
        snprintf(r.chat_template, sizeof r.chat_template, "%s", w->chat->template->name);
    snprintf(r.dtype, sizeof r.dtype, "%s", dtype_name(w->model->dtype));
    outbox_begin(w->outbox, REC_READY);
    outbox_add(w->outbox, &r, sizeof r);
    outbox_add(w->outbox, name, r.name_bytes);
    outbox_add(w->outbox, device, r.device_bytes);
    outbox_end(w->outbox);
}

void
emit_phase(struct worker *w, uint64_t done, uint64_t total)
{
    struct rec_phase p = { .phase = PHASE_LOAD, .done = done, .total = total };

    outbox_put(w->outbox, REC_PHASE, &p, sizeof p);
    w->stats->v[STAT_weight_bytes_loaded] = p.done;
    w->stats->v[STAT_weight_bytes] = p.total;
}

void
emit_reject(struct worker *w, uint32_t ledger_index, uint32_t gen, uint16_t reason,
            uint32_t n_prompt_tokens, const char *why)
{
    struct rec_reject r = { .ledger_index = ledger_index,
                            .gen = gen,
                            .reason = reason,
                            .n_prompt_tokens = n_prompt_tokens };

    r.text_bytes = (uint16_t)strlen(why);
    outbox_begin(w->outbox, REC_REJECT);
    outbox_add(w->outbox, &r, sizeof r);
    outbox_add(w->outbox, why, r.text_bytes);
    outbox_end(w->outbox);
    w->stats->v[STAT_finished]++;
}

/* Returns a finite score, 0 for NaN: a large length_penalty can make a beam's score infinite. */
static float
finite_score(float score)
{
    if (score != score) return 0;
    return MAX(MIN(score, FLT_MAX), -FLT_MAX);
}

static void
finish_output(struct worker *w, struct worker_request *r, uint16_t reason)
{
    /* For a resumed request (recomputed > 0) the prefix cache has KV of the previous worker: tokens
     * found there are reported as adopted, not as cached. */
    uint32_t found = r->seq.n_cached, again = MIN(found, r->recomputed);
    struct kv_use use = scheduler_kv_use(w->sched, &r->seq); /* a step may be in flight */
    struct rec_finish f = {
        .ledger_index = r->ledger_index,
        .gen = r->gen,
        .output = r->output,
        .reason = reason,
        .score = finite_score(r->score),
        .n_tokens = r->n_sent,
        .cached = r->recomputed ? 0 : found,
        .adopted = r->adopted + again,
        .recomputed = r->recomputed - again,
        .n_prompt_tokens = r->n_prompt_tokens,
        .kv_blocks = { use.allocated, use.allocated_new, use.reused, use.missed },
        .scheduled_ns = r->scheduled,
        .stop = reason == LAGAN_FINISH_STOP && r->has_text ? r->detok.stopped : 0,
    };

    check(!r->finished && reason);
    r->finished = true;
    outbox_put(w->outbox, REC_FINISH, &f, sizeof f);
    FP(finish_reported);
    w->stats->v[STAT_finished]++;
}

void
emit_ended(struct worker *w, struct worker_request *r)
{
    if (!r->finished) finish_output(w, r, r->seq.reason ? r->seq.reason : r->cancelled);
}

/* The best tokens of a logit row; n 0: the row is unknown. */
struct tops {
    const struct batch_top *best; /* [n] */
    uint32_t n;
};

static struct tops
tops_of(const struct batch_result *res, uint32_t row)
{
    uint32_t at = res->first_top[row];

    return (struct tops){ res->top + at, res->first_top[row + 1] - at };
}

/* Writes the n best tokens of a logit row with their log-probabilities to `to`, packed, and returns
 * the end. Fills up with token -1 if t has fewer. */
static char *
put_tops(char *to, struct tops t, uint32_t n)
{
    const struct batch_top none = { -1, NAN };

    for (uint32_t j = 0; j < n; j++, to += sizeof none)
        memcpy(to, j < t.n ? &t.best[j] : &none, sizeof none);
    return to;
}

/* Queues the log-probabilities of the prompt tokens in this segment. The logit row of position p
 * has the log-probability of token p + 1; token 0 has no log-probability. */
static void
emit_prompt(struct worker *w, const struct batch_segment *segment, const struct batch_result *res,
            struct worker_request *r)
{
    uint32_t n = segment->n_tokens - (segment->flags & SEGMENT_SAMPLE ? 1 : 0);
    bool start = segment->first_pos == 0;
    uint32_t max = (w->channel->out.max_rec - 256) / (8 + 8 * (r->sampling.prompt_logprobs + 1));

    for (uint32_t at = 0; at < n + start;) {
        uint32_t k = MIN(max, n + start - at);
        struct rec_prompt p = {
            .ledger_index = r->ledger_index,
            .gen = r->gen,
            .first = (uint32_t)segment->first_pos + at + !start,
            .n = k,
            .n_top = r->sampling.prompt_logprobs,
        };
        float no_logprob = NAN;
        char *id, *lp, *top;

        outbox_begin(w->outbox, REC_PROMPT_LOGPROBS);
        outbox_add(w->outbox, &p, sizeof p);
        id = outbox_add(
            w->outbox, NULL,
            (size_t)k * (sizeof(token_id) + sizeof(float) + p.n_top * sizeof(struct batch_top)));
        memcpy(id, r->seq.token + p.first, k * sizeof(token_id));
        lp = id + k * sizeof(token_id);
        top = lp + k * sizeof(float); /* packed: not aligned if k is odd */
        for (uint32_t i = 0; i < k; i++, at++, lp += sizeof(float)) {
            bool first = start && at == 0;
            uint32_t row = first ? 0 : segment->first_logit + at - start;

            memcpy(lp, first ? &no_logprob : &res->logprob[row], sizeof(float));
            top = put_tops(top, first ? (struct tops){ 0 } : tops_of(res, row), p.n_top);
        }
        outbox_end(w->outbox);
    }
}

/* Queues values [first, first + n) of a tensor in records that fit into the ring. values NULL: the
 * values are the encoder states of segment i of res, or NaN without res. */
static void
emit_tensor(struct worker *w, const struct worker_request *r, enum lagan_tensor kind,
            uint64_t first, uint32_t n, uint32_t cols, const float *values,
            const struct batch_result *res, uint32_t i)
{
    uint32_t max = (w->channel->out.max_rec - 256) / sizeof *values;

    for (uint32_t at = 0, k; at < n; at += k) {
        struct rec_tensor t = { .ledger_index = r->ledger_index,
                                .gen = r->gen,
                                .first = first + at,
                                .n = k = MIN(max, n - at),
                                .cols = cols,
                                .kind = kind };
        float *to;

        outbox_begin(w->outbox, REC_TENSOR);
        outbox_add(w->outbox, &t, sizeof t);
        to = outbox_add(w->outbox, values ? values + at : NULL, k * sizeof *to);
        if (!values && res) exec_states(w->exec, res, i, at, k, to);
        for (uint32_t j = 0; !values && !res && j < k; j++) to[j] = NAN;
        outbox_end(w->outbox);
    }
}

/* Queues the tensors that r asked for from segment i; called before the token of the segment. */
static void
emit_tensors(struct worker *w, const struct batch_result *res, uint32_t i,
             const struct worker_request *r, bool token)
{
    const struct model_shape *shape = &w->model->shape;
    const float *logits = token && !r->first ? exec_logits(w->exec, res, i) : NULL;
    uint32_t n = exec_n_states(w->exec, res, i);

    emit_tensor(w, r, LAGAN_TENSOR_ENCODER_OUTPUT, 0, n, shape->hidden, NULL, res, i);
    if (logits)
        emit_tensor(w, r, LAGAN_TENSOR_LOGITS, (uint64_t)r->n_sent * shape->vocab, shape->vocab,
                    shape->vocab, logits, res, i);
}

/* Writes the text that the token completes to w->text_buf and returns its bytes; if the output has
 * ended, the text includes held-back text. *stopped: the text has a stop string. */
static uint32_t
detokenize(struct worker *w, struct worker_request *r, token_id token, bool ended, bool *stopped)
{
    char *text = w->text_buf;
    int len;

    *stopped = false;
    if (!r->has_text) return 0;
    len = detok_add(&r->detok, token, text, w->text_cap, stopped);
    check(len >= 0);
    if (ended && !*stopped) {
        int held = detok_end(&r->detok, text + len, w->text_cap - (size_t)len);

        check(held >= 0);
        len += held;
    }
    return (uint32_t)len;
}

static void
begin_step(struct worker *w, const struct batch *b, struct rec_step **head)
{
    struct rec_step s = { .step = b->step, .lane = b->lane };

    outbox_begin(w->outbox, REC_STEP);
    *head = outbox_add(w->outbox, &s, sizeof s);
}

struct new_token {
    token_id token;
    bool last;            /* the output ends with the token */
    float logprob, score; /* of the token; of the output after it */
    struct tops tops;
};

/* Adds one token of output r, with text and log-probabilities, to the open STEP record. */
static void
emit_token(struct worker *w, struct rec_step **head, const struct batch *b,
           struct worker_request *r, const struct new_token *t)
{
    bool stopped, logprobs = r->want_logprobs;
    uint32_t len = detokenize(w, r, t->token, t->last, &stopped);
    struct rec_out o = {
        .ledger_index = r->ledger_index,
        .gen = r->gen,
        .output = r->output,
        .n_tokens = 1,
        .has_logprobs = logprobs,
        .first = r->n_sent,
        .text_bytes = len,
        .text_first = r->n_text_sent,
        .n_top = logprobs ? r->sampling.logprobs : 0,
        .score = finite_score(t->score),
    };
    size_t need = sizeof o + 16 + 8 * (size_t)o.n_top + len + 16;
    char *to;

    if (outbox_size(w->outbox) + need > w->channel->out.max_rec - RING_HEADER) {
        outbox_end(w->outbox);
        begin_step(w, b, head);
    }
    outbox_add(w->outbox, &o, sizeof o);
    /* The tails are packed and padded together: token, logprob, top log-probabilities, text. */
    to = outbox_add(w->outbox, NULL,
                    sizeof t->token + (logprobs ? 4 + 8 * (size_t)o.n_top : 0) + len);
    memcpy(to, &t->token, sizeof t->token);
    to += sizeof t->token;
    if (logprobs) {
        memcpy(to, &t->logprob, 4);
        to = put_tops(to + 4, t->tops, o.n_top);
    }
    if (len) memcpy(to, w->text_buf, len);
    (*head)->n_ent++;
    r->n_sent++;
    r->n_text_sent += len;
    r->score = t->score;
    w->stats->v[STAT_generation_tokens]++;
    if (stopped && !t->last) scheduler_end(w->sched, &r->seq, LAGAN_FINISH_STOP);
    if (stopped) r->cancelled = LAGAN_FINISH_STOP;
}

/* Returns true if the step has new tokens to report for the request of s. Only the first beam of a
 * search reports tokens: those that all beams share, or all if the search is over. */
static bool
has_news(const struct seq *s, uint32_t n_before)
{
    const struct worker_request *r = s ? s->owner : NULL;

    if (!r || s->n_tokens == n_before) return false;
    if (!s->beam) return !r->finished;
    return s->first_member == s && !r->finished && (s->beam->over || s->beam->n_common > r->n_sent);
}

/* Returns the log-probability of token i, as compute_transition_scores() of transformers: after
 * penalties, not normalised again. NaN: beam_done.total does not have it. */
static float
beam_logprob(const struct beam_done *d, uint32_t i)
{
    if (d->row_slot[i] == BEAM_NO_ROW || !(d->total[i] > -1e8f)) return NAN;
    return d->total[i] - (i ? d->total[i - 1] : 0);
}

/* Returns the tokens that output i of a search has for certain: while the search runs, output 0 has
 * those that all hypotheses share; when it is over, each output has its hypothesis. */
static struct beam_done
decided(const struct beam *s, uint32_t i)
{
    uint32_t best = s->order[0];

    if (s->over) return beam_result(s, i);
    return (struct beam_done){ .n = i == 0 ? s->n_common : 0,
                               .token = s->line[best] + s->first,
                               .total = s->total[best],
                               .row_slot = s->row_slot[best] };
}

/* Queues the logits of the tokens of a search that emit_search() will report. The rows of a request
 * are in the order of its tokens: those of output 0 first. */
static void
emit_search_logits(struct worker *w, const struct worker_request *r)
{
    uint32_t vocab = w->model->shape.vocab;
    uint64_t n_rows = 0;

    for (const struct worker_request *m = r; m && m->output < r->n_outputs; m = m->next) {
        struct beam_done d = decided(&r->beam, m->output);

        for (uint32_t t = m->n_sent; t < d.n; t++)
            emit_tensor(w, r, LAGAN_TENSOR_LOGITS, (n_rows + t) * vocab, vocab, vocab,
                        search_rows_logits(w, r, d.row_slot[t], t), NULL, 0);
        n_rows += MAX(d.n, m->n_sent);
    }
}

/* Adds the tokens of a search that were not reported yet. */
static void
emit_search(struct worker *w, struct rec_step **head, const struct batch *b,
            struct worker_request *r)
{
    const struct beam *s = &r->beam;

    for (struct worker_request *m = r; m && m->output < r->n_outputs; m = m->next) {
        struct beam_done d = decided(s, m->output);

        for (uint32_t t; (t = m->n_sent) < d.n;) {
            struct new_token new = { .token = d.token[t],
                                     .last = s->over && t + 1 == d.n,
                                     .logprob = beam_logprob(&d, t),
                                     .score = s->over ? d.score : d.total[t] };

            if (r->sampling.logprobs) new.tops.best = search_rows_top(r, d.row_slot[t], t);
            if (new.tops.best) new.tops.n = r->sampling.logprobs;
            emit_token(w, head, b, m, &new);
        }
        if (s->over) m->score = d.score;
    }
}

static void
finish_search(struct worker *w, struct worker_request *r)
{
    for (struct worker_request *m = r; m && m->output < r->n_outputs; m = m->next)
        finish_output(w, m, beam_result(&r->beam, m->output).reason);
}

void
emit_step(struct worker *w, const struct batch *b, const struct batch_result *res,
          struct seq *const *seq, const uint32_t *n_before)
{
    struct rec_step *head;
    bool any = false;

    for (uint32_t i = 0; i < b->n_segments; i++) {
        struct worker_request *r = seq[i] ? seq[i]->owner : NULL;

        if (r && !r->finished && (b->segment[i].flags & SEGMENT_PROMPT_LOGPROBS) &&
            res->status == 0)
            emit_prompt(w, &b->segment[i], res, r);
        if (r && !r->finished && res->status == 0)
            emit_tensors(w, res, i, r, seq[i]->n_tokens > n_before[i]);
        if (has_news(seq[i], n_before[i])) {
            any = true;
            if (seq[i]->beam && r->sampling.want_logits) emit_search_logits(w, r);
        }
        if (b->segment[i].work == WORK_PREFILL)
            w->stats->v[STAT_prompt_tokens] += b->segment[i].n_tokens;
    }
    if (!any) return;
    begin_step(w, b, &head);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *segment = &b->segment[i];
        struct worker_request *r;
        uint32_t row;

        if (!has_news(seq[i], n_before[i])) continue;
        r = seq[i]->owner;
        if (seq[i]->beam) {
            emit_search(w, &head, b, r);
            continue;
        }
        row = segment->first_logit +
              (segment->flags & SEGMENT_PROMPT_LOGPROBS ? segment->n_tokens - 1 : 0);
        emit_token(w, &head, b, r,
                   &(struct new_token){ .token = res->token[(size_t)i * (1 + MAX_DRAFT)],
                                        .last = seq[i]->state == SEQ_ENDED,
                                        .logprob = res->logprob[row],
                                        .score = r->score + res->logprob[row],
                                        .tops = tops_of(res, row) });
    }
    outbox_end(w->outbox);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        struct worker_request *r = seq[i] ? seq[i]->owner : NULL;

        if (!r || r->finished || seq[i]->n_tokens == n_before[i]) continue;
        if (seq[i]->beam) {
            if (seq[i]->first_member == seq[i] && seq[i]->beam->over) finish_search(w, r);
        } else if (r->cancelled == LAGAN_FINISH_STOP) {
            finish_output(w, r, LAGAN_FINISH_STOP);
        } else if (seq[i]->state == SEQ_ENDED) {
            finish_output(w, r, seq[i]->reason);
        }
    }
}
