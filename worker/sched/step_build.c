/* step_build.c - adds the tokens of one sequence to the step that is being planned.
 *
 * It writes the segment, its tokens and positions, and the table edits and copies of its blocks.
 * plan.c, prefill.c and encoder.c decide which sequences are in the step, with how many tokens.
 */
#include "worker/sched/sched_internal.h"

void
put_in_step(struct step_plan *p, struct seq *q)
{
    if (must_wait(p, q)) p->out.wait[q->lane] = MAX(p->out.wait[q->lane], q->lane_step);
    q->in_flight++;
    q->lane = (uint8_t)p->lane;
    q->lane_step = p->b->step;
}

static void
fork_members(struct step_plan *p, struct seq *first)
{
    struct scheduler *s = p->s;
    uint32_t done = first_recomputed(s, first);
    struct seq *next;

    if (first->lane_step > s->done[first->lane])
        kv_fence(s->kv, first->slot, first->lane, first->lane_step);
    p->begins -= fork_edits(s, first);
    first->n_same = first->n_shared;
    for (struct seq *m = first; m; m = next) {
        next = m->next_member;
        m->has_forked = true;
        if (!m->beam) m->first_member = m->next_member = NULL;
        if (m == first) continue;
        kv_fork(s->kv, p->lane, p->b->step, first->slot, m->slot, first->n_shared, done, &p->out);
        s->slot[m->slot].len = s->slot[first->slot].len;
        s->slot[m->slot].chunk = s->slot[first->slot].chunk;
        s->slot[m->slot].one_step_window = s->slot[first->slot].one_step_window;
        m->n_planned = m->n_done = first->n_shared;
        m->n_cached = first->n_cached;
        m->lane = m->fork_lane = (uint8_t)p->lane;
        m->lane_step = m->fork_step = p->b->step;
    }
}

static void
set_quiet(const struct step_plan *p, const struct seq *q, uint32_t end)
{
    struct slot *slot = &p->s->slot[q->slot];

    kv_quiet(p->s->kv, q->slot, &slot->quiet_end, &slot->quiet_first);
    slot->quiet_end = MIN(slot->quiet_end, next_snapshot(p->s, q, end) - 1);
    slot->near_end = slot->reserve_lowered ? slot->quiet_end - MIN(slot->quiet_end, 1u) : 0;
    slot->near_first = slot->quiet_first - MIN(slot->quiet_first, 1u);
}

/* Allocates blocks up to position end; frees blocks that no query from `done` on attends to. */
static void
change_blocks(struct step_plan *p, const struct seq *q, uint32_t end, uint32_t done)
{
    struct slot *slot = &p->s->slot[q->slot];
    struct kv *kv = p->s->kv;

    if (q->lane_step > p->s->done[q->lane]) kv_fence(kv, q->slot, q->lane, q->lane_step);
    if (done >= slot->quiet_first) kv_trim(kv, q->slot, done, &p->out);
    if (q->n_done >= q->n_prompt && !slot->reserve_lowered) { /* q only decodes from here on */
        struct kv_need need = kv_need(kv, slot->len, q->n_source, tokens_in_flight(q, 0));

        kv_lower(kv, q->slot, &need);
        slot->reserve_lowered = true;
    }
    if (end > slot->quiet_end) {
        uint32_t border = next_snapshot(p->s, q, q->n_planned);

        if (!kv_has_capacity(kv, q->slot, end))
            kv_trim(kv, q->slot, q->n_planned - q->n_draft_in_flight, &p->out);
        kv_grow(kv, p->lane, q->slot, end, &p->out);
        check(end <= border);
        if (end == border) kv_snapshot(kv, p->lane, q->slot, end, &p->out);
    }
    set_quiet(p, q, end);
}

/* Registers the slot for kv_prefetch() into CPU caches. go: blocks will be freed, not allocated. */
static void
prefetch_soon(struct scheduler *s, uint32_t slot, bool go)
{
    check(s->n_soon < 2 * s->n_slots);
    s->soon[s->n_soon++] = (struct kv_soon){ slot, go };
}

/* Slow path of add_segment(): q's blocks change in this step, or are prefetched for the next. */
static COLD void
near_border(struct step_plan *p, const struct seq *q, uint32_t end, uint32_t done)
{
    struct slot *slot = &p->s->slot[q->slot];

    if (end > slot->quiet_end || done >= slot->quiet_first ||
        (!slot->reserve_lowered && q->n_done >= q->n_prompt))
        change_blocks(p, q, end, done);
    if (end == slot->quiet_end) prefetch_soon(p->s, q->slot, /* go= */ false);
    if (done + 1 == slot->quiet_first) prefetch_soon(p->s, q->slot, /* go= */ true);
}

/* Writes the attention masks of the segment's logit rows. A chain of drafts needs none, because
 * each token attends to all earlier ones. */
static void
add_masks(struct step_plan *p, struct batch_segment *r)
{
    bool tree = false;

    for (uint32_t i = 1; i <= r->n_draft; i++) tree = tree || p->s->depth[i] != i;
    for (uint32_t i = r->first_logit; i < p->b->n_logits; i++)
        p->b->mask[i] = tree ? p->s->sees[i - r->first_logit] : 0;
    if (tree) r->flags |= SEGMENT_MASK;
    p->b->n_masks |= tree;
}

/* Starts q in its slot: sends all its table entries and the rows of its encoder states. */
static COLD void
begin_slot(struct step_plan *p, struct seq *q, struct batch_segment *r)
{
    struct slot *slot = &p->s->slot[q->slot];
    /* fork_members() has sent the entries of a forked member. */
    bool member = q->has_forked && q->first_member != q && !q->n_adopted;

    r->flags |= SEGMENT_FIRST_CHUNK;
    slot->chunk_planned = true;
    if (!member) {
        p->begins -= kv_n_held(p->s->kv, q->slot);
        kv_start(p->s->kv, p->lane, p->b->step, q->slot, &p->out);
    }
    if (q->n_source > 0 && !q->n_adopted && !member && !slot->cross_kv_cached) {
        r->enc_token = q->enc_token;
        r->enc_tokens = q->n_source;
        kv_cross(p->s->kv, p->lane, q->slot, q->n_source, &p->out);
    }
}

/* Writes the segment's tokens and positions; TOKEN_DRAFT(i) if only the device knows token i. */
static void
put_rows(const struct step_plan *p, const struct seq *q, const struct batch_segment *r)
{
    uint32_t first = q->n_planned, known = q->plan_after_commit ? q->n_tokens : q->n_prompt, i = 0;
    token_id *token = &p->b->token[r->first_token];
    int32_t *pos = &p->b->pos[r->first_token];

    for (; i < r->n_tokens && first + i < known; i++) {
        token[i] = q->token[first + i];
        pos[i] = (int32_t)(first + i);
    }
    for (; i < r->n_tokens; i++) {
        token[i] = TOKEN_DRAFT(i);
        pos[i] = (int32_t)(first + (r->n_draft ? p->s->depth[i] : i));
    }
}

void
add_segment(struct step_plan *p, struct seq *q, unsigned work, uint32_t n_tokens)
{
    struct batch *b = p->b;
    uint32_t end = q->n_planned + n_tokens, n_logits = 0;
    struct batch_segment *r = &b->segment[b->n_segments++];
    const struct slot *slot = &p->s->slot[q->slot];
    uint32_t done = first_recomputed(p->s, q);

    *r = (struct batch_segment){
        .slot = q->slot,
        .first_token = b->n_tokens,
        .n_tokens = n_tokens,
        .first_pos = (int32_t)q->n_planned,
        .work = (uint8_t)work,
        .flags = q->n_draft_in_flight ? SEGMENT_AFTER_DRAFTS : 0,
        .n_draft = (uint16_t)(work == WORK_DECODE ? n_tokens - 1 : 0),
        .first_logit = b->n_logits,
        .cross_tokens = q->n_source,
    };
    if (!slot->chunk_planned) begin_slot(p, q, r);
    if (q->first_member && forks_now(q)) fork_members(p, q);
    if (end >= q->n_prompt) {
        r->flags |= q->beam ? SEGMENT_SAMPLE | SEGMENT_BEAM : SEGMENT_SAMPLE;
        n_logits = 1u + r->n_draft;
    }
    if (work == WORK_PREFILL && q->prompt_logprobs) {
        r->flags |= SEGMENT_PROMPT_LOGPROBS;
        n_logits = n_tokens;
    }
    b->n_logits += n_logits;
    if (p->s->drafts_branch) add_masks(p, r);
    if (end > slot->near_end || done >= slot->near_first) near_border(p, q, end, done);
    put_in_step(p, q);
    put_rows(p, q, r);
    q->n_planned = end;
    b->n_tokens += n_tokens;
    b->work |= (uint8_t)work;
    p->tokens_left -= n_tokens;
    if (!(r->flags & SEGMENT_SAMPLE)) return;
    q->n_out += 1u + r->n_draft;
    q->n_draft_in_flight += r->n_draft;
    p->s->static_batch_closed = p->s->l.policy == POLICY_STATIC;
    if (q->n_out == q->max_new && q->n_draft_in_flight == 0) {
        move_seq(p->s, q, SEQ_LAST);
    } else if (q->state == SEQ_PREFILL) {
        move_seq(p->s, q, SEQ_DECODE);
    }
}
