/* plan.c - the next step of a lane: see scheduler.h.
 *
 * Decode rows first, because a stream that has begun must not stutter; then streams that were adopted,
 * for the same reason; then prompts in list order for the rows that are left; then sources, whose rows are
 * counted apart. Everything planned is claimed: nothing after this can fail for want of a block, a row or a slot.
 */
#include "worker/sched/sched_internal.h"

#include "include/lagan_wire.h"

/* It generates, and has the block for its next row. */
static bool
may_generate_now(const struct step_plan *p, const struct seq *q)
{
    return runnable(p->s, q, p->lane) == WORK_DECODE && has_paid(p->s, q) &&
           !must_come_first(p->s, q);
}

/* Rows for drafts: those that nobody needs for a token, and no more than half of them beside a
 * prompt. */
static uint32_t
guess_rows(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    uint32_t rows = p->tokens_left - s->n_in[SEQ_DECODE];
    bool prompts = s->work[p->lane] & WORK_PREFILL && s->n_in[SEQ_PREFILL] + s->waiting.n > 0;

    if (s->l.n_draft == 0) return 0;
    return prompts ? rows / 2 : rows;
}

/* Its next row, with drafts: no more than it could use, and where blocks are paid for already;
 * of a search the rows of all together. */
static void
add_next_tokens(struct step_plan *p, struct seq *q, uint32_t *drafts)
{
    if (!q->beam) {
        uint32_t n = MIN(*drafts, q->n_draft);

        if (n > 0) n = MIN(n, q->max_new - q->n_out - 1);
        if (n > 0) n = MIN(n, p->s->slot[q->slot].len - q->n_planned - 1);
        *drafts -= n;
        add_run(p, q, WORK_DECODE, 1 + n);
    } else if (q->first_member == q && all_paid(p->s, q) && may_step_beams(p, q)) {
        step_beams(p, q);
        for (struct seq *m = q; m; m = m->next_member) {
            add_run(p, m, WORK_DECODE, 1);
            if (m != q) p->b->segment[p->b->n_segments - 1].flags |= SEGMENT_SAME_SOURCE;
        }
    }
}

/* What the walk will look at next but one, of which nothing is in the processor's caches: of a
 * thousand. */
static inline void
fetch_next(const struct step_plan *p, const struct seq *q)
{
    if (!q) return;
    __builtin_prefetch(q->next, 1);
    __builtin_prefetch((const void *)((uintptr_t)q->next + CACHE_LINE), 1); /* there may be none */
    __builtin_prefetch(&p->s->slot[q->slot]);
}

/* Searches wait for those that are in the step that is out, so that the next one has all of
 * them: else they would stay apart, and each step takes as long as if it had the others too. */
static bool
searches_wait(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    uint32_t rows = 0;
    bool out = false;

    if (s->l.beam_tokens == 0 || s->planned[p->lane] == s->done[p->lane]) return false;
    for (const struct seq *q = s->running.first; q; q = q->next) {
        if (q->state != SEQ_DECODE || q->is_suspended) continue;
        if (!q->beam || ++rows > s->l.beam_tokens) return false;
        out = out || (q->in_flight > 0 && q->lane == p->lane);
    }
    return out;
}

static void
plan_generation(struct step_plan *p)
{
    uint32_t drafts = guess_rows(p);
    uint64_t oldest = UINT64_MAX;

    if (searches_wait(p)) return;
    for (struct seq *q = p->s->running.first; q; q = q->next) {
        fetch_next(p, q->next);
        if (!may_generate_now(p, q)) continue;
        if (must_wait(p, q)) {
            oldest = MIN(oldest, q->lane_step);
        } else {
            add_next_tokens(p, q, &drafts);
        }
    }
    if (p->b->n_segments > 0 || oldest == UINT64_MAX) return;
    /* Handed over while their last chunk still runs: a row that waits for another lane holds up
     * nobody where there is no other row. */
    for (struct seq *q = p->s->running.first; q; q = q->next)
        if (may_generate_now(p, q) && q->lane_step <= oldest) add_next_tokens(p, q, &drafts);
}

/* Nothing runs, nothing holds a block, and still the head of the queue does not fit: it never will.
 * scheduler_add() refuses those that it can know of. */
static bool
end_hopeless(struct step_plan *p)
{
    struct scheduler *s = p->s;
    struct seq *head = NULL;

    if (s->n_kept > 0) return false;
    for (struct seq *q = s->running.first; q; q = q->next) {
        if (q->in_flight > 0 || s->slot[q->slot].len > 0) return false;
        if (!head && runnable(s, q, p->lane)) head = q;
    }
    for (struct seq *q = s->running.n ? NULL : s->waiting.first; q && !head; q = q->next)
        if (runnable(s, q, p->lane)) head = q; /* who is suspended stands aside */
    if (!head) return false;
    /* A source that was found may lie where nothing has room beside it: computed again, it fits. */
    for (struct seq *q = s->waiting.first; q; q = q->next) {
        if (!q->cross_kv_cached) continue;
        q->must_encode = true;
        q->cross_kv_cached = false;
        return true;
    }
    end_seq(s, head, LAGAN_E_TOO_LONG);
    return true;
}

/* Of scheduler_batch()'s edits, those that are for what slots hold when they begin. */
static uint32_t
begin_edits(const struct scheduler *s)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t n = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) n += c->group[g].max_entries;
    return n * seq_group_edits(&s->l);
}

static uint32_t
pick_bucket(const struct scheduler *s, const struct batch *b)
{
    const struct batch_segment *last = &b->segment[b->n_segments ? b->n_segments - 1 : 0];

    if (b->n_segments == 0) return 0;
    for (uint32_t i = 0; i < s->l.n_buckets; i++)
        if (s->l.bucket[i] >= last->first_token + last->n_tokens) return s->l.bucket[i];
    return 0;
}

static void
close_batch(struct step_plan *p)
{
    struct batch *b = p->b;
    struct scheduler *s = p->s;

    b->n_edits = p->out.n_edits;
    b->n_copies = p->out.n_copies;
    for (unsigned l = 0; l < s->l.n_lanes; l++) {
        if (p->out.wait[l] == 0) continue;
        check(b->n_waits < b->max_waits);
        b->wait[b->n_waits++] = (struct batch_wait){ .lane = (uint8_t)l, .step = p->out.wait[l] };
    }
    b->bucket = pick_bucket(s, b);
    if (b->n_masks) b->n_masks = b->n_logits;
    kv_ends_sent(s->kv, p->lane, b->step);
    s->planned[p->lane] = b->step;
}

/* What this lane's plan has given up may be of use to those that were planned before it. */
static void
ask_others(struct scheduler *s, unsigned lane)
{
    s->replan_lanes |= ((1u << s->l.n_lanes) - 1) & ~(1u << lane);
}

int
scheduler_plan(struct scheduler *s, unsigned lane, nsec now, struct batch *b)
{
    bool again;
    struct step_plan p;

    check(lane < s->l.n_lanes);
    check(b->max_tokens >= s->l.max_tokens + s->l.max_enc_tokens &&
          b->max_segments >= s->max_running);
    check(b->max_encode >= s->max_running);
    s->replan_lanes &= ~(1u << lane);
    if (s->prefill_draining) apply_division(s);
    if (expire_deadlines(s, now)) ask_others(s, lane);
    if (s->planned[lane] - s->done[lane] >= STEPS_OUT) return 0;
    if (give_up_one(s, now)) ask_others(s, lane);
    kv_prefetch(s->kv, s->soon, s->n_soon);
    s->n_soon = 0;
    do {
        if (s->running.n == 0) s->static_batch_closed = false;
        s->cross_kv_changed = false;
        again = s->l.policy == POLICY_MAX_UTILIZATION && make_room(s, lane, now);
        b->step = s->planned[lane] + 1;
        b->lane = (uint8_t)lane;
        b->partition = (uint8_t)(s->l.n_lanes > 1 && lane_is_alone(s, lane) ? 0 : s->partition);
        b->work = 0;
        b->bucket = b->n_tokens = b->n_segments = b->n_logits = 0;
        b->n_encode = b->n_edits = b->n_copies = b->n_waits = b->n_masks = 0;
        p = (struct step_plan){ .s = s,
                                .b = b,
                                .lane = lane,
                                .now = now,
                                .out = { .edit = b->edit,
                                         .max_edits = b->max_edits,
                                         .copy = b->copy,
                                         .max_copies = b->max_copies,
                                         .step = b->step },
                                .tokens_left = s->l.max_tokens,
                                .begins = begin_edits(s) };
        s->waited_for[lane] = NSEC_NEVER;
        kv_ends(s->kv, lane, &p.out);
        if (s->work[lane] & WORK_DECODE) plan_generation(&p);
        if (s->work[lane] & WORK_PREFILL) plan_adopted(&p);
        if (s->l.policy == POLICY_STATIC && may_join(s)) plan_static_batch(&p);
        if (s->work[lane] & WORK_PREFILL) plan_prefill(&p);
        if (s->work[lane] & WORK_ENCODER) plan_encoder(&p);
        again = again || s->cross_kv_changed;
        if (b->n_tokens == 0) again = again || give_up_one(s, now) || end_hopeless(&p);
        if (again) ask_others(s, lane);
        if (b->n_tokens > 0) {
            close_batch(&p);
            s->found_no_work[lane] = false;
            return 1;
        }
    } while (again);
    s->found_no_work[lane] = true;
    return 0;
}
