/* admit.c - admits waiting sequences: gives them slots, KV blocks and rows of enc_state.
 *
 * There are two admissions, each in list order, and each gives all that it needs or nothing. To
 * encode, a sequence needs a slot and rows of enc_state. To prefill, it needs KV blocks for all its
 * tokens (with policy max_utilization for its prompt; later blocks are reserved one by one).
 * Encoding needs no KV, so a sequence that waits for blocks never delays an encoder input.
 */
#include "worker/sched/sched_internal.h"

/* Returns the slot that q has, or else the slot that it would get. SLOT_FULL: none is free, or q
 * must wait for the sequences of the previous worker: its blocks may be those that they need to
 * grow. */
#define SLOT_FULL UINT32_MAX
static uint32_t
slot_for(const struct scheduler *s, const struct seq *q)
{
    if (q->state != SEQ_WAITING) return q->slot;
    if (s->waits_for_kept) return SLOT_FULL;
    if (s->n_free < seq_group_size(q) || s->running.n + seq_group_size(q) > s->max_running)
        return SLOT_FULL;
    return s->free_slot[s->first_free];
}

void
occupy_slot(struct scheduler *s, struct seq *q, uint32_t slot, enum seq_state to)
{
    s->slot[slot] = (struct slot){ .seq = q };
    q->slot = slot;
    seq_insert(&s->running, q);
    move_seq(s, q, to);
    fair_queue_take(&s->fair_queue, q->fair_tag);
    take_pages(s, q);
    pass_over(s, q);
}

uint32_t
take_free_slot(struct scheduler *s)
{
    uint32_t slot = s->free_slot[s->first_free];

    s->first_free = (s->first_free + 1) % s->n_slots;
    s->n_free--;
    return slot;
}

/* Moves q and its members from the waiting list into slots. */
static void
take_slot(struct scheduler *s, struct seq *q, enum seq_state to)
{
    seq_remove(&s->waiting, q);
    occupy_slot(s, q, take_free_slot(s), to);
    for (struct seq *m = q->next_member; m; m = m->next_member)
        occupy_slot(s, m, take_free_slot(s), SEQ_PREFILL);
}

/* Asks the next reclaim_slot() for a kept or a suspended sequence's slot. Returns false. */
static bool
ask_reclaim(struct scheduler *s)
{
    s->reclaim_wanted = s->n_kept > 0 || suspended_seq(s, /* pages= */ false);
    return false;
}

bool
has_slot(struct scheduler *s, const struct seq *q)
{
    return slot_for(s, q) != SLOT_FULL || ask_reclaim(s);
}

/* Returns the slot of member m with index i, or the slot that m will get. */
static uint32_t
member_slot(const struct scheduler *s, const struct seq *first, const struct seq *m, uint32_t i)
{
    uint32_t at = first->n_adopted ? i - 1 : i; /* an adopted first member has its kept slot */

    return first->state == SEQ_WAITING ? s->free_slot[(s->first_free + at) % s->n_slots] : m->slot;
}

bool
reserve_members(struct scheduler *s, struct seq *first, uint32_t len, const struct admission *way)
{
    struct kv_need n = kv_fork_need(s->kv, len, first->n_shared, way->rows, first->beam);
    uint32_t i = 1;

    for (struct seq *m = first->next_member; m; m = m->next_member, i++) {
        if (kv_reserve(s->kv, member_slot(s, first, m, i), &n) == 0) continue;
        i = 1;
        for (struct seq *k = first->next_member; k != m; k = k->next_member)
            kv_drop(s->kv, member_slot(s, first, k, i++));
        return false;
    }
    return true;
}

bool
admit_kv(struct scheduler *s, struct seq *q)
{
    uint32_t slot = slot_for(s, q), len = admission_len(s, q);
    /* a hit excludes the last token: with one more, all of a group's shared prompt may be a hit */
    struct kv_text t = text_of(q, q->first_member ? q->n_shared + 1 : q->n_prompt);
    bool encoded = q->state != SEQ_WAITING;
    const struct kv_text *text = s->reuse && !q->prompt_logprobs && !q->wants_states ? &t : NULL;
    struct kv_hit hit;
    struct admission way;
    struct kv_need n;

    if (admission(s, q, q->n_prompt, &way, NULL) < 0) return false;
    n = kv_need(s->kv, len, q->n_source, way.rows);
    if (slot == SLOT_FULL) return ask_reclaim(s);
    t.needs_cross = q->n_source > 0 && !encoded;
    while (true) {
        if (kv_admit(s->kv, slot, &n, text, &hit) < 0) return ask_reclaim(s);
        if (!q->first_member || reserve_members(s, q, len, &way)) break;
        kv_drop(s->kv, slot);
        if (!text || t.needs_cross) return ask_reclaim(s);
        /* the cache hit may use the blocks that the members lack: try again without a hit */
        text = NULL;
    }
    if (!encoded) take_slot(s, q, SEQ_PREFILL);
    s->slot[slot].len = len;
    s->slot[slot].chunk = way.chunk;
    s->slot[slot].one_step_window = way.rows < tokens_in_flight(q, way.chunk);
    s->slot[slot].cross_kv_cached = hit.cross;
    memcpy(s->slot[slot].making, hit.next, sizeof hit.next);
    s->slot[slot].making_at = hit.n_tokens;
    q->n_planned = q->n_done = hit.n_tokens;
    if (q->n_preemptions == 0) {
        q->n_cached = hit.n_tokens;
        s->n_looked_up += text ? q->n_prompt : 0;
        s->n_found += hit.n_tokens;
    }
    return true;
}

/* As kv_need(). A forked beam takes no snapshots of its state. */
static struct kv_need
need_of(const struct scheduler *s, const struct seq *q, uint32_t len, uint32_t rows)
{
    const struct kv_config *c = kv_config(s->kv);
    struct kv_need n = kv_need(s->kv, len, q->n_source, rows);

    for (uint32_t g = 0; q->beam && q->has_forked && g < c->n_groups; g++)
        if (c->group[g].kind == KV_STATE) n.n_blocks[g] = c->group[g].n_layers;
    return n;
}

/* A window group gets blocks for two prefill steps in flight, because a replacement worker resumes
 * before their positions. If these blocks are not free, one prefill step of q may be in flight. */
bool
reserve_up_to(struct scheduler *s, struct seq *q, uint32_t end)
{
    struct slot *slot = &s->slot[q->slot];
    uint32_t len = ROUND_UP(end, kv_config(s->kv)->tokens_per_block);
    uint32_t chunk = q->n_done < q->n_prompt ? slot->chunk : 0;
    struct kv_need most, least;

    if (end <= slot->len) return true;
    len = MIN(len, q->n_prompt + q->max_new);
    most = need_of(s, q, len, tokens_in_flight(q, chunk));
    least = need_of(s, q, len, tokens_in_flight(q, 0));
    if (kv_raise(s->kv, q->slot, &most) < 0) {
        if (kv_raise(s->kv, q->slot, &least) < 0) return ask_reclaim(s);
        slot->one_step_window = true;
    }
    slot->len = len;
    return true;
}

bool
admit_enc(struct scheduler *s, struct seq *q)
{
    uint32_t slot = slot_for(s, q), first = 0, i;

    if (slot == SLOT_FULL) return ask_reclaim(s);
    for (i = 0; i < s->n_enc && s->enc[i].first - first < q->n_source; i++)
        first = s->enc[i].first + s->enc[i].n;
    if (i == s->n_enc && s->l.max_enc_tokens - first < q->n_source) return false;
    memmove(&s->enc[i + 1], &s->enc[i], (s->n_enc - i) * sizeof s->enc[0]);
    s->enc[i] = (struct enc_tokens){ .first = first, .n = q->n_source, .slot = slot };
    s->n_enc++;
    take_slot(s, q, SEQ_ENCODER);
    s->slot[slot].has_enc_rows = true;
    q->enc_token = first;
    return true;
}
