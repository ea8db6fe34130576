/* seq_group.c - sequences of one request that begin alike: beams, samples: see seq.h, sched_internal.h.
 *
 *     admitted    slots and blocks for all of them, or for none
 *     prompt      the first member computes what they share: up to n_shared
 *     fork        when the first goes on from there: the others hold what it holds
 *     after it    samples are each for itself. Beams ride together, one step at a time, and before each step their
 *                 rows of the tables are turned as the search has decided
 *     preempted      all of them, back to the beginning; beams with what they have by then as prompts, of which they
 *                 share what is alike. Each computes the rest of its own but for the last row: that rides
 */
#include "worker/sched/sched_internal.h"

#include "worker/kv/kv_fork.h"

bool
goes_on_searching(const struct seq *q)
{
    return q->beam && q->has_forked && q->n_adopted > 0;
}

/* Who goes on from whom is settled once more, on what their predecessor may have begun to do of
 * it; what they hold then is told when they start. */
void
resume_search(struct step_plan *p, struct seq *first)
{
    uint32_t slot[MAX_BEAMS], n = 0, n_edits;

    for (const struct seq *m = first; m; m = m->next_member) {
        kv_trim(p->s->kv, m->slot, m->n_planned, &p->out);
        slot[n++] = m->slot;
    }
    n_edits = p->out.n_edits;
    kv_reorder(p->s->kv, p->lane, p->b->step, slot, first->beam->parent, n, first->n_planned,
               &p->out);
    p->out.n_edits = n_edits;
    first->n_same = first->beam->first + first->beam->n_settled;
    for (struct seq *m = first; m; m = m->next_member) add_run(p, m, WORK_PREFILL, 1);
}

uint32_t
prompt_goal(const struct seq *q)
{
    bool shared = q->first_member == q && !q->has_forked && q->n_planned < q->n_shared;

    if (shared) return q->n_shared;
    return q->beam && !rides_next(q) ? q->n_prompt - 1 : q->n_prompt;
}

bool
may_ride(const struct scheduler *s, const struct seq *q)
{
    bool all = q->first_member == q;

    for (const struct seq *m = q; m; m = m->next_member)
        all = all && (!m->has_forked || (rides_next(m) && !must_come_first(s, m)));
    return all;
}

/* Entries in which beams may differ, in all their rows. */
static uint32_t
turn_edits(const struct scheduler *s, const struct seq *q)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t alike = MIN(q->n_same, q->n_planned), n = 0;

    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].kind != KV_CROSS)
            n += q->n_planned / c->tokens_per_block - alike / c->tokens_per_block + 1;
    return n * q->beam->n_beams;
}

bool
may_step_beams(struct step_plan *p, const struct seq *q)
{
    uint32_t n = turn_edits(p->s, q);

    if (n > p->begins) return false;
    p->begins -= n;
    return true;
}

void
step_beams(struct step_plan *p, struct seq *q)
{
    const struct beam *b = q->beam;
    uint32_t slot[MAX_BEAMS], n = 0, before;
    bool moved = false;

    for (const struct seq *m = q; m; m = m->next_member) {
        kv_trim(p->s->kv, m->slot, m->n_planned, &p->out);
        moved = moved || b->parent[n] != n;
        slot[n++] = m->slot;
    }
    before = p->out.n_edits;
    if (moved) kv_reorder(p->s->kv, p->lane, p->b->step, slot, b->parent, n, q->n_planned, &p->out);
    check(p->out.n_edits - before <= turn_edits(p->s, q)); /* as may_step_beams() said */
    /* What each has computed again after a preempt is its own, also where it is alike. */
    if (q->n_preemptions == 0) q->n_same = b->first + b->n_settled;
}

void
commit_beams(struct scheduler *s, struct seq *first, const struct batch_segment *segment,
             const struct batch_result *r)
{
    struct beam_list list[MAX_BEAMS];
    struct beam *b = first->beam;
    uint32_t n = 0;

    for (struct seq *m = first; m; m = m->next_member, n++, segment++) {
        uint32_t at = r->first_top[segment->first_logit];

        check(segment->slot == m->slot && n < b->n_beams);
        list[n] = (struct beam_list){ r->top + at, r->first_top[segment->first_logit + 1] - at };
    }
    check(n == b->n_beams);
    beam_step(b, list);
    for (struct seq *m = first; m; m = m->next_member) m->n_tokens++;
    if (b->over) end_seq(s, first, beam_result(b, 0).reason);
}
