/* plan.c - plans the next step of a lane: scheduler_plan(). See scheduler.h.
 *
 * Order of planning: decode, because output that has begun must not stall; adopted sequences with
 * one prompt token left, for the same reason; prompts in list order, with the remaining tokens;
 * encoder inputs, whose tokens have a limit of their own. A sequence is planned once all its
 * resources are reserved, so the execution of a step never lacks blocks, tokens or slots.
 */
#include "worker/sched/sched_internal.h"

#include "include/lagan_wire.h"

/* True if the decoding sequence q can be in this step: the block for its next token is reserved. */
static bool
may_generate_now(const struct step_plan *p, const struct seq *q)
{
    return runnable(p->s, q, p->lane) == WORK_DECODE && has_block_for_next(p->s, q) &&
           !window_is_full(p->s, q);
}

/* Returns how many tokens may be drafts: those that no sequence needs, half while prompts wait. */
static uint32_t
draft_budget(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    uint32_t rows = p->tokens_left - s->n_in[SEQ_DECODE];
    bool prompts = s->work[p->lane] & WORK_PREFILL && s->n_in[SEQ_PREFILL] + s->waiting.n > 0;

    if (s->l.n_draft == 0) return 0;
    return prompts ? rows / 2 : rows;
}

/* Plans q's next token, and drafts as far as *drafts, max_new and reserved blocks allow. For the
 * first beam of a search: plans the next token of every beam. Other beams are skipped. */
static void
add_next_tokens(struct step_plan *p, struct seq *q, uint32_t *drafts)
{
    if (!q->beam) {
        uint32_t n = MIN(*drafts, q->n_draft);

        if (n > 0) n = MIN(n, q->max_new - q->n_out - 1);
        if (n > 0) n = MIN(n, p->s->slot[q->slot].len - q->n_planned - 1);
        *drafts -= n;
        add_segment(p, q, WORK_DECODE, 1 + n);
    } else if (q->first_member == q && have_blocks_for_next(p->s, q) && may_step_beams(p, q)) {
        step_beams(p, q);
        for (struct seq *m = q; m; m = m->next_member) {
            add_segment(p, m, WORK_DECODE, 1);
            if (m != q) p->b->segment[p->b->n_segments - 1].flags |= SEGMENT_SAME_SOURCE;
        }
    }
}

/* Prefetches q's slot and the sequence after q: of 1,000, none is in the processor's caches. */
static inline void
prefetch_next(const struct step_plan *p, const struct seq *q)
{
    if (!q) return;
    __builtin_prefetch(q->next, 1);
    __builtin_prefetch((const void *)((uintptr_t)q->next + CACHE_LINE), 1); /* next may be NULL */
    __builtin_prefetch(&p->s->slot[q->slot]);
}

/* True if ready searches wait until searches in flight are committed, so that one step has all of
 * them: a step of few beams takes as long as one of all, and searches that do not wait would keep
 * alternating in separate steps. */
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
plan_decode(struct step_plan *p)
{
    uint32_t drafts = draft_budget(p);
    uint64_t oldest = UINT64_MAX;

    if (searches_wait(p)) return;
    for (struct seq *q = p->s->running.first; q; q = q->next) {
        prefetch_next(p, q->next);
        if (!may_generate_now(p, q)) continue;
        if (must_wait(p, q)) {
            oldest = MIN(oldest, q->lane_step);
        } else {
            add_next_tokens(p, q, &drafts);
        }
    }
    if (p->b->n_segments > 0 || oldest == UINT64_MAX) return;
    /* Every sequence that can decode is in flight in the other lane. Plan only the sequences of the
     * oldest step there: with those of a later step the new step would wait for that step too. */
    for (struct seq *q = p->s->running.first; q; q = q->next)
        if (may_generate_now(p, q) && q->lane_step <= oldest) add_next_tokens(p, q, &drafts);
}

/* Ends the first runnable sequence if none is in flight or has blocks: it does not fit an empty
 * cache. scheduler_add() rejects most such requests. Returns true if planning must be repeated. */
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
        if (runnable(s, q, p->lane)) head = q; /* not a suspended one */
    if (!head) return false;
    /* Cached cross KV may occupy the last blocks. Instead of ending `head`, let a waiting sequence
     * that would use this KV run its encoder again, so that the blocks can be evicted. */
    for (struct seq *q = s->waiting.first; q; q = q->next) {
        if (!q->cross_kv_cached) continue;
        q->must_encode = true;
        q->cross_kv_cached = false;
        return true;
    }
    scheduler_end(s, head, LAGAN_E_TOO_LONG);
    return true;
}

/* Returns how many of the batch's table edits are for slots whose first step this is. */
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
        b->wait[b->n_waits++] = (struct step_dependency){ .lane = (uint8_t)l,
                                                          .step = p->out.wait[l] };
    }
    b->bucket = pick_bucket(s, b);
    if (b->n_masks) b->n_masks = b->n_logits;
    kv_ends_sent(s->kv, p->lane, b->step);
    s->planned[p->lane] = b->step;
}

/* Marks the other lanes for planning: this lane's plan freed resources that they may use. */
static void
replan_other_lanes(struct scheduler *s, unsigned lane)
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
    if (s->prefill_draining) apply_partition(s);
    if (expire_deadlines(s, now)) replan_other_lanes(s, lane);
    if (s->planned[lane] - s->done[lane] >= STEPS_OUT) return 0;
    if (reclaim_slot(s, now)) replan_other_lanes(s, lane);
    s->waits_for_kept = s->n_kept > 0 && now < s->keep_until;
    kv_prefetch(s->kv, s->soon, s->n_soon);
    s->n_soon = 0;
    do {
        if (s->running.n == 0) s->static_batch_closed = false;
        s->cross_kv_changed = false;
        again = s->l.policy == POLICY_MAX_UTILIZATION && reserve_steps(s, lane, now);
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
        if (s->work[lane] & WORK_DECODE) plan_decode(&p);
        if (s->work[lane] & WORK_PREFILL) plan_adopted(&p);
        if (s->l.policy == POLICY_STATIC && !s->static_batch_closed) plan_static_batch(&p);
        if (s->work[lane] & WORK_PREFILL) plan_prefill(&p);
        if (s->work[lane] & WORK_ENCODER) plan_encoder(&p);
        again = again || s->cross_kv_changed;
        if (b->n_tokens == 0) again = again || reclaim_slot(s, now) || end_hopeless(&p);
        if (again) replan_other_lanes(s, lane);
        if (b->n_tokens > 0) {
            close_batch(&p);
            s->found_no_work[lane] = false;
            return 1;
        }
    } while (again);
    s->found_no_work[lane] = true;
    return 0;
}
