/* retire.c - takes sequences from their slots: ended, past their deadline, or preempted.
 *
 * leave_slot() frees the slot, its blocks, encoder rows and adapter pages together, when no step in
 * flight has the sequence. Kept slots of a previous worker are freed here too.
 */
#include "worker/sched/sched_internal.h"

#include "include/lagan_wire.h"

void
free_enc_tokens(struct scheduler *s, uint32_t slot)
{
    uint32_t i = 0;

    if (!s->slot[slot].has_enc_rows) return;
    while (s->enc[i].slot != slot) i++;
    memmove(&s->enc[i], &s->enc[i + 1], (s->n_enc - i - 1) * sizeof s->enc[0]);
    s->n_enc--;
    s->slot[slot].has_enc_rows = false;
}

void
scheduler_unkeep(struct scheduler *s, uint32_t slot)
{
    check(slot < s->n_slots);
    if (!s->slot[slot].kept_for_adoption) return;
    kv_drop(s->kv, slot);
    s->slot[slot].kept_for_adoption = false;
    s->free_slot[(s->first_free + s->n_free++) % s->n_slots] = slot;
    s->n_kept--;
}

uint32_t
n_alike(const struct seq *first)
{
    uint32_t n = first->n_tokens - 1;

    for (const struct seq *m = first->next_member; m; m = m->next_member) {
        uint32_t i = 0;

        while (i < n && m->token[i] == first->token[i]) i++;
        n = i;
    }
    return n;
}

static void
reset_to_prompt(struct seq *q)
{
    uint32_t made = q->n_tokens - q->n_prompt;

    check(made < q->max_new);
    if (q->first_member == q && q->has_forked) q->n_shared = n_alike(q);
    if (!q->first_member) q->n_members = 0;
    q->n_prompt = q->n_tokens;
    q->max_new -= made;
    q->min_new -= MIN(q->min_new, made);
    q->n_planned = q->n_done = q->n_out = q->n_draft_in_flight = 0;
    q->n_adopted = 0;
    q->has_forked = false;
    q->fork_step = 0;
    q->n_enc_layers = 0; /* the cross KV is freed: encode again unless it is cached */
    q->cross_kv_cached = false;
    if (made > 0) q->prompt_logprobs = q->wants_states = false; /* already reported */
    q->must_encode = q->wants_states;
    q->behind.slot = 0;
}

void
leave_slot(struct scheduler *s, struct seq *q)
{
    bool preempted = q->state == SEQ_PREEMPTED;

    check((preempted || q->state == SEQ_ENDED) && q->in_flight == 0 && s->slot[q->slot].seq == q);
    free_enc_tokens(s, q->slot);
    give_pages(s, q->slot);
    kv_add_use(s->kv, q->slot, &q->kv_use);
    /* the blocks of a beam are those of its line before the last decision: commit_beams() has
     * cached the ended hypotheses */
    if (s->reuse && q->n_done > 0 && q->reason != LAGAN_E_INTERNAL && !(q->beam && q->has_forked)) {
        struct kv_text t = text_of(q, q->n_tokens);

        kv_release(s->kv, q->slot, &t, MIN(q->n_done, q->n_tokens));
    } else {
        kv_drop(s->kv, q->slot);
    }
    s->slot[q->slot] = (struct slot){ 0 };
    s->free_slot[(s->first_free + s->n_free++) % s->n_slots] = q->slot;
    seq_remove(&s->running, q);
    if (!preempted) {
        seq_append(&s->ended, q);
        return;
    }
    reset_to_prompt(q);
    if (q->first_member && q->first_member != q) {
        move_seq(s, q, SEQ_NEW); /* admitted again with the first member */
        return;
    }
    move_seq(s, q, SEQ_WAITING);
    seq_insert(&s->waiting, q);
}

/* True if a step in flight has q or a member of its group. */
static bool
in_flight(struct seq *q)
{
    bool out = false;

    for (const struct seq *m = group_first(q); m; m = m->next_member) out = out || m->in_flight > 0;
    return out;
}

/* Prompts with prompt_logprobs are not preempted, because part of the list may have been sent.
 * Adopted sequences that have not started are preempted only if they lack blocks: others start
 * soon. */
bool
may_preempt(const struct scheduler *s, struct seq *q)
{
    bool started;

    q = group_first(q);
    started = s->slot[q->slot].chunk_planned || (q->has_forked && !q->n_adopted);
    started = started || (q->n_adopted && !have_blocks_for_next(s, q));
    if (q->state == SEQ_DECODE) return true;
    return q->state == SEQ_PREFILL && started && !q->prompt_logprobs;
}

void
leave_preempted(struct scheduler *s, struct seq *q)
{
    if (in_flight(q)) return;
    for (struct seq *m = group_first(q); m; m = m->next_member) leave_slot(s, m);
}

void
preempt_one(struct scheduler *s, struct seq *q)
{
    s->n_preemptions++;
    for (struct seq *m = group_first(q); m; m = m->next_member) {
        m->n_preemptions++;
        move_seq(s, m, SEQ_PREEMPTED);
    }
    leave_preempted(s, q);
}

struct seq *
suspended_seq(const struct scheduler *s, bool pages)
{
    struct admission way;

    for (struct seq *q = s->any_suspended ? s->running.last : NULL; q; q = q->prev)
        if (q->is_suspended && !in_flight(q) && may_preempt(s, q) &&
            (!pages || s->slot[q->slot].pages) &&
            /* its longer prompt fits when it resumes */
            admission(s, group_first(q), q->n_tokens, &way, NULL) == 0)
            return q;
    return NULL;
}

bool
reclaim_slot(struct scheduler *s, nsec now)
{
    struct seq *suspended = s->reclaim_wanted ? suspended_seq(s, /* pages= */ false) : NULL;
    uint32_t slot = 0;

    if (!suspended && s->no_pages) suspended = suspended_seq(s, /* pages= */ true);
    s->no_pages = false;
    if (suspended) preempt_one(s, suspended);
    if (suspended || !s->reclaim_wanted || now < s->keep_until) return suspended;
    s->reclaim_wanted = false;
    if (s->n_kept == 0) return false;
    while (!s->slot[slot].kept_for_adoption) slot++;
    scheduler_unkeep(s, slot);
    return true;
}

static void
end_one(struct scheduler *s, struct seq *q, uint16_t reason)
{
    bool waited = q->state == SEQ_WAITING, brought = q->state == SEQ_NEW;

    if (q->state == SEQ_ENDED) return;
    q->reason = reason;
    move_seq(s, q, SEQ_ENDED);
    fair_queue_end(&s->fair_queue, q->client, q->n_prompt + q->max_new - q->n_tokens);
    if (waited) seq_remove(&s->waiting, q);
    if (waited || brought) {
        seq_append(&s->ended, q);
    } else if (q->in_flight == 0) {
        leave_slot(s, q);
    }
}

void
scheduler_end(struct scheduler *s, struct seq *q, uint16_t reason)
{
    if (q->state == SEQ_ENDED) return; /* its members have ended too, and may have been reaped */
    for (struct seq *m = group_first(q), *next; m; m = next) {
        next = m->next_member;
        end_one(s, m, reason);
    }
}

static bool
expire_list(struct scheduler *s, const struct seq_list *l, nsec now)
{
    bool ended = false;

    for (struct seq *q = l->first, *next; q; q = next) {
        next = q->next;
        if (q->state == SEQ_ENDED) continue;
        if (q->deadline <= now) {
            bool seq_group = q->first_member;

            scheduler_end(s, q, LAGAN_E_DEADLINE);
            ended = true;
            if (seq_group) next = l->first; /* its members have left the list too */
        } else {
            s->next_deadline = MIN(s->next_deadline, q->deadline);
        }
    }
    return ended;
}

bool
expire_deadlines(struct scheduler *s, nsec now)
{
    bool ended;

    if (now < s->next_deadline) return false;
    s->next_deadline = NSEC_NEVER;
    ended = expire_list(s, &s->running, now);
    return expire_list(s, &s->waiting, now) || ended;
}
