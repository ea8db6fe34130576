/* sharing.c - what requests share: adapter pages, cached prefixes, prefixes in flight. */
#include "worker/sched/sched_internal.h"

static uint32_t
find_holder(const struct scheduler *s, uint64_t lora)
{
    uint32_t i = 0;

    while (i < s->n_holders && (s->holder[i].n_users == 0 || s->holder[i].lora != lora)) i++;
    return i;
}

bool
has_pages(const struct scheduler *s, const struct seq *q)
{
    if (q->lora == 0 || q->pages <= s->l.pages - s->pages_used) return true;
    return find_holder(s, q->lora) < s->n_holders;
}

bool
may_take_pages(struct scheduler *s, const struct seq *q)
{
    if (q->lora == 0) return true;
    if (!has_pages(s, q)) {
        s->no_pages = true;
        return false;
    }
    for (const struct seq *w = s->overtaken_too_often ? s->waiting.first : NULL;
         w && seq_before(w, q); w = w->next)
        if (w->n_passed >= s->max_running && !w->is_suspended && !has_pages(s, w)) return false;
    return true;
}

void
pass_over(struct scheduler *s, struct seq *q)
{
    if (q->lora == 0 || seq_follows(q)) return;
    q->n_passed = 0;
    for (struct seq *w = s->waiting.first; w && seq_before(w, q); w = w->next) {
        if (w->is_suspended || has_pages(s, w)) continue;
        if (++w->n_passed >= s->max_running) s->overtaken_too_often = true;
    }
}

void
take_pages(struct scheduler *s, const struct seq *q)
{
    uint32_t i;

    if (q->lora == 0) return;
    i = find_holder(s, q->lora);
    if (i == s->n_holders) { /* reuse or append an entry; at most n_slots are in use */
        for (i = 0; i < s->n_holders && s->holder[i].n_users > 0;) i++;
        s->n_holders += i == s->n_holders;
        check(s->n_holders <= s->n_slots && q->pages <= s->l.pages - s->pages_used);
        s->holder[i] = (struct page_holder){ .lora = q->lora, .pages = q->pages };
        s->pages_used += q->pages;
    }
    s->holder[i].n_users++;
    s->slot[q->slot].pages = i + 1;
}

void
give_pages(struct scheduler *s, uint32_t slot)
{
    uint32_t i = s->slot[slot].pages;

    if (i == 0) return;
    s->slot[slot].pages = 0;
    if (--s->holder[i - 1].n_users == 0) s->pages_used -= s->holder[i - 1].pages;
}

struct kv_text
text_of(const struct seq *q, uint32_t n)
{
    return (struct kv_text){ .token = q->token,
                             .source = q->source,
                             .n = n,
                             .n_source = q->n_source,
                             .namespace = &q->cache_namespace,
                             .keep = q->keep,
                             .n_keep = q->n_keep };
}

static uint32_t
cached_length(const struct scheduler *s, const struct seq *q, bool whole)
{
    struct kv_text t = text_of(q, q->first_member ? q->n_shared + 1 : q->n_prompt);

    if (!s->reuse || q->prompt_logprobs || q->wants_states) return 0;
    return kv_lookup_length(s->kv, &t, whole);
}

uint32_t
scheduler_cached(const struct scheduler *s, const struct seq *q)
{
    return cached_length(s, q, /* whole= */ true);
}

bool
waits_for_host(const struct scheduler *s, const struct seq *q)
{
    return kv_host_tier_is_away(s->kv) && cached_length(s, q, true) > cached_length(s, q, false);
}

bool
find_cross(struct scheduler *s, struct seq *q)
{
    struct kv_text t = text_of(q, q->n_prompt);
    struct kv_hit hit;

    if (!s->reuse || q->prompt_logprobs || q->must_encode) return false;
    kv_lookup(s->kv, &t, &hit);
    if (q->cross_kv_cached != hit.cross) s->cross_kv_changed = true;
    q->cross_kv_cached = hit.cross;
    return hit.cross;
}

/* Returns the name of the block that the prompt in this slot fills next. */
static const uint64_t *
next_block_name(struct scheduler *s, struct slot *slot)
{
    struct kv_text t = text_of(slot->seq, slot->seq->n_prompt);
    struct kv_hit hit;

    if (slot->making_at != slot->seq->n_done) {
        kv_lookup(s->kv, &t, &hit);
        memcpy(slot->making, hit.next, sizeof hit.next);
        slot->making_at = slot->seq->n_done;
    }
    return slot->making;
}

static bool
computes_prompt(const struct scheduler *s, const struct seq *q)
{
    return (q->state == SEQ_PREFILL || q->state == SEQ_DECODE || q->state == SEQ_LAST) &&
           !q->is_suspended && s->slot[q->slot].len > 0 && q->n_done < q->n_prompt;
}

bool
prefix_in_flight(struct scheduler *s, struct seq *q)
{
    struct kv_text t = text_of(q, q->n_prompt);
    const struct seq *ahead = q->behind.slot ? s->slot[q->behind.slot - 1].seq : NULL;
    struct kv_hit hit;

    if (!s->reuse || s->l.policy == POLICY_STATIC || q->prompt_logprobs) return false;
    if (ahead && ahead->id == q->behind.id && computes_prompt(s, ahead) &&
        ahead->n_done == q->behind.n_done)
        return true; /* the sequence found at the last lookup has made no progress */
    q->behind.slot = 0;
    kv_lookup(s->kv, &t, &hit);
    if (hit.next[0] == 0 && hit.next[1] == 0) return false;
    for (struct seq *r = s->running.first; r; r = r->next) {
        const uint64_t *name;

        /* wait only for sequences before q in list order: a later one could wait for q */
        if (!computes_prompt(s, r) || !seq_before(r, q)) continue;
        name = next_block_name(s, &s->slot[r->slot]);
        if (name[0] != hit.next[0] || name[1] != hit.next[1]) continue;
        q->behind.id = r->id;
        q->behind.slot = r->slot + 1;
        q->behind.n_done = r->n_done;
        return true;
    }
    return false;
}
