/* admit_adopted.c - resumes sequences whose KV a previous worker left in the blocks of a kept slot.
 *
 * A sequence resumes in its kept slot; if that fails, the slot is freed and the sequence waits like
 * a new one. A beam search resumes with all beams or not at all; forked samples resume one by one.
 */
#include "worker/sched/sched_internal.h"

/* Returns the number of positions whose blocks an adopted sequence needs in order to resume. With
 * max_utilization a sequence with one prompt token left needs no further block here: it reserves
 * step by step, like a decoding one, in reserve_steps(), which can free a block by preemption. */
static uint32_t
adopted_len(const struct scheduler *s, const struct seq *q)
{
    bool steps = s->l.policy == POLICY_MAX_UTILIZATION && q->n_prompt == q->n_adopted + 1;

    return steps ? q->n_adopted : admission_len(s, q);
}

/* Tries reservations from the largest to the smallest. Only the smallest may fit the window blocks
 * of a sequence that the previous worker admitted with chunks of one unit (s->unit tokens). */
bool
admit_adopted(struct scheduler *s, struct seq *q)
{
    uint32_t slot = q->adopted_slot, rows = MIN(s->l.max_tokens, q->n_prompt - q->n_adopted);
    uint32_t len = q->first_member ? admission_len(s, q) : adopted_len(s, q);
    uint32_t unit = MIN(s->unit, rows), i = 0;
    uint32_t least = q->n_draft ? tokens_in_flight(q, 0) : 0;
    const struct admission way[] = { { rows, tokens_in_flight(q, rows > 1 ? rows : 0) },
                                     { rows, MAX(rows, least) },
                                     { unit, MAX(unit, least) } };

    check(slot < s->n_slots && q->n_adopted < q->n_prompt);
    if (!s->slot[slot].kept_for_adoption || s->running.n + seq_group_size(q) > s->max_running)
        return false;
    if (s->n_free + 1 < seq_group_size(q) || !has_pages(s, q)) return false;
    for (;; i++) {
        struct kv_need n;

        if (i == ARRAY_LEN(way)) return false; /* the caller frees the slot */
        n = kv_need(s->kv, len, q->n_source, way[i].rows);
        kv_lower(s->kv, slot, &n);
        if (kv_resume(s->kv, slot, q->n_adopted, &n) < 0) continue;
        if (!q->first_member || reserve_members(s, q, len, &way[i])) break;
    }
    s->n_kept--;
    occupy_slot(s, q, slot, SEQ_PREFILL);
    for (struct seq *m = q->next_member; m; m = m->next_member)
        occupy_slot(s, m, take_free_slot(s), SEQ_PREFILL);
    s->slot[slot].chunk = way[i].chunk;
    s->slot[slot].one_step_window = i > 0;
    s->slot[slot].len = len;
    q->n_planned = q->n_done = q->n_adopted;
    return true;
}

static bool
admit_search(struct scheduler *s, struct seq *first)
{
    uint32_t len = adopted_len(s, first), n = 0;
    struct kv_need each = kv_need(s->kv, len, first->n_source, tokens_in_flight(first, 0));

    if (s->running.n + first->n_members > s->max_running) return false;
    for (struct seq *m = first; m; m = m->next_member) {
        if (!s->slot[m->adopted_slot].kept_for_adoption) return false;
        if (kv_resume(s->kv, m->adopted_slot, m->n_adopted, &each) < 0) return false;
    }
    for (struct seq *m = first; m; m = m->next_member, n++) {
        s->n_kept--;
        occupy_slot(s, m, m->adopted_slot, SEQ_PREFILL);
        s->slot[m->slot].chunk = 1;
        s->slot[m->slot].len = len;
        m->n_planned = m->n_done = m->n_adopted;
        m->has_forked = true;
    }
    return true;
}

static void
give_up_kept_slot(struct scheduler *s, struct seq *q)
{
    if (q->n_adopted) scheduler_unkeep(s, q->adopted_slot);
    q->n_adopted = 0;
}

/* Resumes a forked sample in its kept slot and separates it from its group. */
static bool
adopt_sample(struct scheduler *s, struct seq *q)
{
    q->first_member = NULL;
    q->has_forked = true;
    if (admit_adopted(s, q)) return true;
    q->has_forked = false;
    return false;
}

/* Resumes forked samples one by one. Returns the members that must wait as a new group, or NULL. */
static struct seq *
split_off_samples(struct scheduler *s, struct seq *first)
{
    struct seq *left = NULL, **last = &left, *next;
    uint32_t n_shared = first->n_shared, n = 0;

    for (struct seq *m = first; m; m = next) {
        bool had_forked = !m->beam && m->n_adopted > n_shared;

        next = m->next_member;
        m->next_member = NULL;
        m->n_members = 0;
        if (had_forked && adopt_sample(s, m)) continue;
        if (had_forked || m != first) give_up_kept_slot(s, m);
        *last = m;
        last = &m->next_member;
        n++;
    }
    for (struct seq *m = left; m; m = m->next_member) m->first_member = n > 1 ? left : NULL;
    if (!left) return NULL;
    left->n_members = n > 1 ? n : 0;
    left->n_shared = n_shared;
    return left;
}

int
adopt_seq_group(struct scheduler *s, struct seq **ret)
{
    struct seq *first = *ret;

    if (first->beam && first->next_member->n_adopted) {
        if (admit_search(s, first)) {
            first->n_shared = n_alike(first);
            *ret = NULL;
            return 0;
        }
        for (struct seq *m = first; m; m = m->next_member) give_up_kept_slot(s, m);
        return -EAGAIN;
    }
    *ret = first = split_off_samples(s, first);
    if (!first) return 0;
    move_seq(s, first, SEQ_WAITING);
    if (!first->n_adopted) return 0;
    if (first->first_member) first->n_adopted = MIN(first->n_adopted, first->n_shared);
    if (admit_adopted(s, first)) {
        *ret = NULL;
    } else {
        give_up_kept_slot(s, first);
    }
    return 0;
}
