/* seq_group.c - sequence groups (beams or samples of one request) through their life: see seq.h.
 *
 *     admission   all members get slots and blocks, or none does
 *     prompt      the first member computes the shared positions, up to n_shared
 *     fork        at the first member's next position the other members reference its blocks
 *     decode      samples are independent. A step of a search has all beams; at most one is in
 *                 flight. Before each step the beams' table rows are reordered as decided last
 *     preemption  beams, and samples before the fork, are preempted together; a sample after the
 *                 fork is preempted alone. Beams keep their tokens as prompts and share
 *                 the common prefix; each computes the rest of its prompt, except the last token,
 *                 which all beams compute in one step
 */
#include "worker/sched/sched_internal.h"

bool
is_resumed_beam(const struct seq *q)
{
    return q->beam && q->has_forked && q->n_adopted > 0;
}

/* Repeats the search's last reorder of table rows: the previous worker may have done only part of
 * it. Discards the reorder's edits, because begin_slot() sends all table entries of each slot. */
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
    first->n_same = first->beam->first + first->beam->n_common;
    for (struct seq *m = first; m; m = m->next_member) add_segment(p, m, WORK_PREFILL, 1);
}

uint32_t
prompt_goal(const struct seq *q)
{
    bool shared = q->first_member == q && !q->has_forked && q->n_planned < q->n_shared;

    if (shared) return q->n_shared;
    return q->beam && !is_last_prompt_token(q) ? q->n_prompt - 1 : q->n_prompt;
}

bool
beams_ready(const struct scheduler *s, const struct seq *q)
{
    bool all = q->first_member == q;

    for (const struct seq *m = q; m; m = m->next_member)
        all = all && (!m->has_forked || (is_last_prompt_token(m) && !window_is_full(s, m)));
    return all;
}

/* Returns the maximum edits of a reorder: the table entries in which beams may differ, per beam. */
static uint32_t
reorder_edits(const struct scheduler *s, const struct seq *q)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t alike = MIN(q->n_same, q->n_planned), n = 0;

    for (uint32_t g = 0; g < c->n_groups; g++) {
        if (c->group[g].kind == KV_STATE)
            n += c->group[g].n_layers;
        else if (c->group[g].kind != KV_CROSS)
            n += q->n_planned / c->tokens_per_block - alike / c->tokens_per_block + 1;
    }
    return n * q->beam->n_beams;
}

bool
may_step_beams(struct step_plan *p, const struct seq *q)
{
    uint32_t n = reorder_edits(p->s, q);

    if (n > p->begins) return false;
    p->begins -= n;
    return true;
}

/* True if the window groups of all beams begin at the same entries. They do not after a fork for
 * which a beam had too few blocks, so that kv_fork() trimmed the first beam further. */
static bool
windows_are_alike(const struct scheduler *s, const struct seq *q)
{
    for (uint32_t g = 0; g < kv_config(s->kv)->n_groups; g++) {
        uint32_t first, other;

        kv_held(s->kv, q->slot, g, &first);
        for (const struct seq *m = q->next_member; m; m = m->next_member) {
            kv_held(s->kv, m->slot, g, &other);
            if (kv_config(s->kv)->group[g].kind == KV_WINDOW && other != first) return false;
        }
    }
    return true;
}

void
step_beams(struct step_plan *p, struct seq *q)
{
    const struct beam *b = q->beam;
    uint32_t slot[MAX_BEAMS], n = 0, before;
    bool moved = false;

    for (const struct seq *m = q; m; m = m->next_member) {
        kv_trim(p->s->kv, m->slot, beam_window(p->s, m), &p->out);
        moved = moved || b->parent[n] != n;
        slot[n++] = m->slot;
    }
    for (const struct seq *m = moved && !windows_are_alike(p->s, q) ? q : NULL; m;
         m = m->next_member)
        kv_trim(p->s->kv, m->slot, m->n_planned, &p->out);
    before = p->out.n_edits;
    if (moved) kv_reorder(p->s->kv, p->lane, p->b->step, slot, b->parent, n, q->n_planned, &p->out);
    check(p->out.n_edits - before <= reorder_edits(p->s, q)); /* budgeted by may_step_beams() */
    /* after preemption each beam has blocks of its own from n_shared on, even for equal tokens */
    if (q->n_preemptions == 0) q->n_same = b->first + b->n_common;
}

/* Puts the full blocks of each hypothesis that ends into the prefix cache: a later prompt may
 * continue it. The lines and blocks of the beams are still those of the committed step. */
static void
store_ended(struct scheduler *s, struct seq *first)
{
    const struct beam_decision *last = &first->beam->last;

    for (uint32_t i = 0; i < last->n_ended; i++) {
        struct seq *m = first;
        struct kv_text t;

        for (uint32_t k = 0; k < last->ended[i].slot; k++) m = m->next_member;
        t = text_of(m, m->n_tokens);
        kv_store(s->kv, m->slot, &t, MIN(m->n_done, m->n_tokens));
    }
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
    beam_decide(b, list);
    if (s->reuse) store_ended(s, first);
    beam_advance(b);
    for (struct seq *m = first; m; m = m->next_member) m->n_tokens++;
    if (b->over) scheduler_end(s, first, beam_result(b, 0).reason);
}
