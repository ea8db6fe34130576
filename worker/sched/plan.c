/* plan.c - the next step of a lane: see scheduler.h.
 *
 * Decode rows first, because a stream that has begun must not stutter; then streams that were adopted,
 * for the same reason; then prompts in list order for the rows that are left; then sources, whose rows are counted apart. Everything planned is claimed:
 * nothing after this can fail for want of a block, a row or a seat.
 */
#include "worker/sched/core.h"

#include "include/lagan_wire.h"

struct plan {
    struct scheduler *s;
    struct batch *b;
    unsigned lane;
    nsec now;
    struct kv_out out;
    uint32_t rows_left; /* decoder's */
    uint32_t adopted;   /* edits left for the rows of adopted seats */
};

static bool
must_wait(const struct plan *p, const struct seq *q)
{
    return q->lane != p->lane && q->lane_step > p->s->done[q->lane];
}

/* The sequence is in this step: after its last one, wherever that ran. */
static void
carry(struct plan *p, struct seq *q)
{
    if (must_wait(p, q)) p->out.wait[q->lane] = MAX(p->out.wait[q->lane], q->lane_step);
    q->in_flight++;
    q->lane = (uint8_t)p->lane;
    q->lane_step = p->b->step;
}

static void
add_run(struct plan *p, struct seq *q, unsigned work, uint32_t n_rows)
{
    struct batch *b = p->b;
    struct kv *kv = p->s->kv;
    uint32_t end = q->n_planned + n_rows;
    struct batch_run *r = &b->run[b->n_runs++];
    struct seat *seat = &p->s->seat[q->seat];

    *r = (struct batch_run){
        .seat = q->seat,
        .first_row = b->n_rows,
        .n_rows = n_rows,
        .first_pos = (int32_t)q->n_planned,
        .work = (uint8_t)work,
        .first_logit = b->n_logits,
        .cross_tokens = q->n_source,
    };
    if (!seat->begun) {
        r->flags |= RUN_FIRST_CHUNK;
        seat->begun = true;
        if (q->n_adopted) {
            kv_rows(kv, q->seat, &p->out);
            p->adopted -= kv_n_held(kv, q->seat);
        } else if (q->n_source > 0) {
            r->enc_row = q->enc_row;
            r->enc_rows = q->n_source;
            kv_cross(kv, p->lane, q->seat, q->n_source, &p->out);
        }
    }
    if (work == WORK_CONTEXT && q->prompt_logprobs) r->flags |= RUN_PROMPT_LOGPROBS;
    if (end >= q->n_prompt) r->flags |= RUN_SAMPLE;
    b->n_logits += r->flags & RUN_PROMPT_LOGPROBS ? n_rows : r->flags & RUN_SAMPLE ? 1 : 0;

    kv_trim(kv, q->seat, q->n_done > UNTOLD_ROWS ? q->n_done - UNTOLD_ROWS : 0, &p->out);
    if (q->n_done >= q->n_prompt && !seat->lowered) { /* a row a step is out, now and for ever */
        struct kv_need need = kv_need(kv, seat->len, q->n_source, ROWS_OUT + UNTOLD_ROWS);

        kv_lower(kv, q->seat, &need);
        seat->lowered = true;
    }
    if (!kv_room(kv, q->seat, end)) kv_trim(kv, q->seat, q->n_planned, &p->out);
    kv_grow(kv, p->lane, q->seat, end, &p->out);
    kv_fence(kv, q->seat, p->lane, b->step);
    carry(p, q);

    for (; q->n_planned < end; q->n_planned++, b->n_rows++) {
        b->token[b->n_rows] = q->n_planned < q->n_prompt ? q->token[q->n_planned] : TOKEN_FROM_LAST;
        b->pos[b->n_rows] = (int32_t)q->n_planned;
    }
    b->work |= (uint8_t)work;
    p->rows_left -= n_rows;
    if (!(r->flags & RUN_SAMPLE)) return;
    q->n_out++;
    p->s->closed = p->s->l.policy == POLICY_STATIC;
    if (q->n_out == q->max_new) {
        seq_move(q, SEQ_LAST);
    } else if (q->state == SEQ_CONTEXT) {
        seq_move(q, SEQ_GENERATION);
    }
}

/* It generates, and has the block for its next row. */
static bool
generates(const struct plan *p, const struct seq *q)
{
    return runnable(p->s, q, p->lane, p->now) == WORK_GENERATION &&
           q->n_planned < p->s->seat[q->seat].len;
}

static void
plan_generation(struct plan *p)
{
    uint64_t oldest = UINT64_MAX;

    for (struct seq *q = p->s->running.first; q; q = q->next) {
        if (!generates(p, q)) continue;
        if (must_wait(p, q)) {
            oldest = MIN(oldest, q->lane_step);
        } else {
            add_run(p, q, WORK_GENERATION, 1);
        }
    }
    if (p->b->n_runs > 0 || oldest == UINT64_MAX) return;
    /* Handed over while their last chunk still runs: a row that waits for another lane holds up
     * nobody where there is no other row. */
    for (struct seq *q = p->s->running.first; q; q = q->next)
        if (generates(p, q) && q->lane_step <= oldest) add_run(p, q, WORK_GENERATION, 1);
}

/* Rows of q's next chunk: the rest of its prompt, or as much as there is room for, in units. */
static uint32_t
chunk_rows(const struct plan *p, const struct seq *q)
{
    uint32_t rest = q->n_prompt - q->n_planned, unit = p->s->unit, end;
    uint32_t room = MIN(p->rows_left, p->s->seat[q->seat].chunk);

    if (rest <= room) return rest;
    end = (q->n_planned + room) / unit * unit;
    if (end > q->n_planned) return end - q->n_planned;
    /* Less room than a unit: the first prompt goes on all the same, unless units were asked for. */
    return p->s->unit_strict || (p->b->work & WORK_CONTEXT) ? 0 : room;
}

/* Its seat was adopted, and the device knows nothing of its row yet. */
static bool
adopted(const struct plan *p, const struct seq *q)
{
    return q->n_adopted && !p->s->seat[q->seat].begun;
}

/* Streams that a death has interrupted want one row, like those that generate. */
static void
plan_adopted(struct plan *p)
{
    for (struct seq *q = p->s->running.first; q && p->rows_left > 0; q = q->next)
        if (runnable(p->s, q, p->lane, p->now) == WORK_CONTEXT && adopted(p, q) &&
            q->n_prompt - q->n_planned == 1 && kv_n_held(p->s->kv, q->seat) <= p->adopted)
            add_run(p, q, WORK_CONTEXT, 1);
}

static struct seq *
next_context(const struct plan *p, struct seq *q)
{
    while (q && runnable(p->s, q, p->lane, p->now) != WORK_CONTEXT) q = q->next;
    return q;
}

static void
plan_context(struct plan *p)
{
    struct scheduler *s = p->s;
    struct seq *running = next_context(p, s->running.first);
    struct seq *waiting = next_context(p, s->waiting.first), *q;
    bool full = s->l.policy == POLICY_MAX_UTILIZATION; /* make_room() has seen to it */

    if (!may_join(s)) waiting = NULL;
    while (p->rows_left > 0 && (running || (waiting && !full))) {
        uint32_t n;

        if (running && (full || !waiting || seq_before(running, waiting))) {
            q = running;
            running = next_context(p, q->next);
            if (s->seat[q->seat].len == 0 && (full || !admit_kv(s, q))) {
                full = true; /* nobody overtakes who comes first and waits for KV, a seat */
                continue;
            }
        } else {
            q = waiting;
            waiting = next_context(p, q->next);
            if (!admit_kv(s, q)) {
                full = true;
                continue;
            }
        }
        n = chunk_rows(p, q);
        if (adopted(p, q) && kv_n_held(s->kv, q->seat) > p->adopted) continue;
        if (n > 0) add_run(p, q, WORK_CONTEXT, n);
    }
}

/* static_batch: whoever fits is of the batch, with rows in this step or later. */
static void
form_batch(struct plan *p)
{
    struct scheduler *s = p->s;

    for (struct seq *q = next_context(p, s->waiting.first), *next; q; q = next) {
        next = next_context(p, q->next);
        if (!admit_kv(s, q)) return;
    }
}

static void
add_encode(struct plan *p, struct seq *q)
{
    struct batch *b = p->b;
    uint32_t all = p->s->l.n_enc_layers, a_step = p->s->l.enc_layers ? p->s->l.enc_layers : all;
    uint32_t n = MIN(a_step, all - q->n_enc_layers);

    b->encode[b->n_encode++] = (struct batch_encode){
        .seat = q->seat,
        .first_row = b->n_rows,
        .n_rows = q->n_source,
        .enc_row = q->enc_row,
        .first_layer = (uint16_t)q->n_enc_layers,
        .n_layers = (uint16_t)n,
    };
    for (uint32_t i = 0; i < q->n_source; i++, b->n_rows++) {
        b->token[b->n_rows] = q->source[i];
        b->pos[b->n_rows] = (int32_t)i;
    }
    b->work |= WORK_ENCODER;
    carry(p, q);
    q->n_enc_layers += n;
    if (q->n_enc_layers == all) seq_move(q, SEQ_CONTEXT);
}

static void
plan_encoder(struct plan *p)
{
    struct scheduler *s = p->s;
    struct seq *q, *next;

    for (q = s->running.first; q; q = q->next)
        if (runnable(s, q, p->lane, p->now) == WORK_ENCODER) add_encode(p, q);
    for (q = s->waiting.first; q && may_join(s); q = next) {
        next = q->next;
        if (runnable(s, q, p->lane, p->now) != WORK_ENCODER) continue;
        if (!admit_enc(s, q)) break;
        add_encode(p, q);
    }
}

/* Nothing runs, nothing holds a block, and still the head of the queue does not fit: it never will.
 * scheduler_add() refuses those that it can know of. */
static bool
end_hopeless(struct plan *p)
{
    struct scheduler *s = p->s;
    struct seq *head = NULL;

    if (s->n_kept > 0) return false;
    for (struct seq *q = s->running.first; q; q = q->next) {
        if (q->in_flight > 0 || s->seat[q->seat].len > 0) return false;
        if (!head && runnable(s, q, p->lane, p->now)) head = q;
    }
    if (s->running.n == 0 && s->waiting.n > 0 && runnable(s, s->waiting.first, p->lane, p->now))
        head = s->waiting.first;
    if (!head) return false;
    end_seq(s, head, LAGAN_E_TOO_LONG);
    return true;
}

/* Of scheduler_batch()'s edits, those that are for what adopted seats hold. */
static uint32_t
adopted_edits(const struct scheduler *s)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t n = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) n += c->group[g].max_entries;
    return n;
}

static uint32_t
pick_bucket(const struct scheduler *s, const struct batch *b)
{
    const struct batch_run *last = &b->run[b->n_runs ? b->n_runs - 1 : 0];

    if (b->n_runs == 0) return 0;
    for (uint32_t i = 0; i < s->l.n_buckets; i++)
        if (s->l.bucket[i] >= last->first_row + last->n_rows) return s->l.bucket[i];
    return 0;
}

static void
close_batch(struct plan *p)
{
    struct batch *b = p->b;
    struct scheduler *s = p->s;

    b->n_edits = p->out.n_edits;
    for (unsigned l = 0; l < s->l.n_lanes; l++) {
        if (p->out.wait[l] == 0) continue;
        check(b->n_waits < b->max_waits);
        b->wait[b->n_waits++] = (struct batch_wait){ .lane = (uint8_t)l, .step = p->out.wait[l] };
    }
    b->bucket = pick_bucket(s, b);
    s->gave_way = false; /* its end will have everybody asked again */
    kv_ends_sent(s->kv, p->lane, b->step);
    s->planned[p->lane] = b->step;
}

int
scheduler_plan(struct scheduler *s, unsigned lane, nsec now, struct batch *b)
{
    bool paused;
    struct plan p;

    check(lane < s->l.n_lanes);
    check(b->max_rows >= s->l.max_rows + s->l.max_enc_rows && b->max_runs >= s->max_running);
    check(b->max_encode >= s->max_running);
    expire(s, now);
    if (s->planned[lane] - s->done[lane] >= ROWS_OUT) return 0;
    give_up_one(s, now);
    do {
        if (s->running.n == 0) s->closed = false;
        paused = s->l.policy == POLICY_MAX_UTILIZATION && make_room(s, lane, now);
        s->gave_way = s->gave_way || paused;
        b->step = s->planned[lane] + 1;
        b->lane = (uint8_t)lane;
        b->rung = (uint8_t)s->rung;
        b->work = 0;
        b->bucket = b->n_rows = b->n_runs = b->n_logits = 0;
        b->n_encode = b->n_edits = b->n_copies = b->n_waits = 0;
        p = (struct plan){ .s = s,
                           .b = b,
                           .lane = lane,
                           .now = now,
                           .out = { .edit = b->edit, .max_edits = b->max_edits },
                           .rows_left = s->l.max_rows,
                           .adopted = adopted_edits(s) };
        kv_ends(s->kv, lane, &p.out);
        if (s->l.lane_work[lane] & WORK_GENERATION) plan_generation(&p);
        if (s->l.lane_work[lane] & WORK_CONTEXT) plan_adopted(&p);
        if (s->l.policy == POLICY_STATIC && may_join(s)) form_batch(&p);
        if (s->l.lane_work[lane] & WORK_CONTEXT) plan_context(&p);
        if (s->l.lane_work[lane] & WORK_ENCODER) plan_encoder(&p);
        if (b->n_rows > 0) {
            close_batch(&p);
            return 1;
        }
    } while (paused || give_up_one(s, now) || end_hopeless(&p));
    return 0;
}
