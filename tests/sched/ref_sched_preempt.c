/* ref_sched_preempt.c - slots, blocks and preemption of the reference: ref_sched.h. */
#include "tests/sched/ref_sched_internal.h"

uint32_t
ref_slots(const struct ref *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++) n += t->req[i].slot;
    return n;
}

static uint32_t
size(const struct req *q)
{
    return q->first ? q->n_members : 1;
}

static bool
has_slot(const struct ref *t, const struct req *q)
{
    return ref_slots(t) + size(q) <= MIN(MIN(t->l.max_seqs, t->l.max_tokens), t->c.n_slots);
}

static bool
has_pages(const struct ref *t, const struct req *q)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct req *r = &t->req[i];
        bool counted = !r->slot || !r->lora;

        if (r->slot && r->lora == q->lora) return true;
        for (uint32_t k = 0; k < i; k++)
            counted = counted || (t->req[k].slot && t->req[k].lora == r->lora);
        if (!counted) used += r->pages;
    }
    return !q->lora || used + q->pages <= t->l.pages;
}

/* It waits for adapter pages. */
static bool
lacks_pages(const struct ref *t, const struct req *q)
{
    return q->state == WAIT && !q->suspended && !has_pages(t, q);
}

bool
ref_may_take_pages(struct ref *t, const struct req *q)
{
    if (!q->lora) return true;
    t->no_pages = t->no_pages || !has_pages(t, q);
    if (!has_pages(t, q)) return false;
    for (uint32_t i = 0; i < t->n_list && t->list[i] != q; i++)
        if (t->list[i]->passed >= MIN(MIN(t->l.max_seqs, t->l.max_tokens), t->c.n_slots) &&
            lacks_pages(t, t->list[i]))
            return false;
    return true;
}

void
ref_take_slot(struct ref *t, struct req *q, enum state as)
{
    bool new = !q->slot;

    if (new) t->fair_tag = MAX(t->fair_tag, q->fair_tag);
    for (uint32_t i = 1; i < size(q) && !q->slot; i++) {
        q[i].slot = true;
        q[i].state = CONTEXT;
    }
    q->slot = true;
    q->state = as;
    q->passed = 0;
    for (uint32_t i = 0; i < t->n_list && t->list[i] != q && q->lora && new; i++)
        t->list[i]->passed += lacks_pages(t, t->list[i]);
}

/* ---- blocks */

uint32_t
ref_entries(const struct ref *t, uint32_t n)
{
    return CEIL_DIV(n, t->c.tokens_per_block);
}

/* An earlier member holds the block too. */
static bool
counted_before(const struct ref *t, const struct req *r, uint32_t block)
{
    for (const struct req *k = r->kin; k != r; k++)
        for (uint32_t i = 0; k->len && k->kin == r->kin && k->forked && i < ref_entries(t, k->pos);
             i++)
            if (k->block[i] == block) return true;
    return false;
}

/* Blocks for len positions, those it has included, each counted once. */
static uint64_t
takes(const struct ref *t, const struct req *r, uint32_t len, bool cross)
{
    uint64_t n = ref_entries(t, cross ? r->source : len);

    if (cross) {
        for (const struct req *k = r->kin; k && k != r; k++)
            if (k->len && k->kin == r->kin) return 0;
        return n;
    }
    if (ref_follows(r)) return n - r->n_shared / t->c.tokens_per_block;
    for (uint32_t i = 0; r->kin && r->forked && i < ref_entries(t, r->pos); i++)
        n -= counted_before(t, r, r->block[i]);
    return n;
}

/* Its blocks for len positions, and its members', fit beside all others. */
static bool
fits(const struct ref *t, const struct req *q, uint32_t len)
{
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        bool cross = t->c.group[g].kind == KV_CROSS;
        uint64_t n = takes(t, q, len, cross);

        if (q->first == q && !q->forked && !cross)
            n += (q->n_members - 1) * (n - q->n_shared / t->c.tokens_per_block);
        for (uint32_t i = 0; i < t->n; i++)
            if (&t->req[i] != q && t->req[i].len) n += takes(t, &t->req[i], t->req[i].len, cross);
        if (n > t->c.group[g].max_blocks) return false;
    }
    return true;
}

/* All that it and its group ever need fits an empty cache. */
static bool
fits_alone(const struct ref *t, const struct req *q)
{
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        bool cross = t->c.group[g].kind == KV_CROSS;
        uint64_t n = ref_entries(t, cross ? q->source : q->prompt + q->max_new);

        if (q->first && !cross) n += (q->n_members - 1) * (n - q->n_shared / t->c.tokens_per_block);
        if (n > t->c.group[g].max_blocks) return false;
    }
    return true;
}

static bool
may_preempt(const struct req *q)
{
    if (q->first) q = q->first;
    return q->state == GENERATE ||
           (q->state == CONTEXT && (q->begun || q->forked) && !q->wants_logprobs);
}

/* The last suspended request that has something another one needs and that could resume. */
static struct req *
suspended_seq(struct ref *t, bool pages)
{
    struct req *found = NULL;

    for (uint32_t i = 0; i < t->n; i++) {
        struct req *q = &t->req[i];
        bool out = q->in_flight > 0;

        for (uint32_t k = 0; q->first && k < q->n_members; k++)
            out = out || q->first[k].in_flight > 0;
        if (!q->slot || !q->suspended || out || !may_preempt(q) || (pages && !q->lora)) continue;
        if (found && ref_before(q, found)) continue;
        if (fits_alone(t, q)) found = q;
    }
    return found;
}

static bool
ask_reclaim(struct ref *t)
{
    t->cramped = suspended_seq(t, false) != NULL;
    return false;
}

bool
ref_has_slot(struct ref *t, const struct req *q)
{
    return has_slot(t, q) || ask_reclaim(t);
}

bool
ref_give_up_one(struct ref *t)
{
    struct req *q = t->cramped ? suspended_seq(t, false) : NULL;

    if (!q && t->no_pages) q = suspended_seq(t, true);
    t->no_pages = false;
    if (!q) return t->cramped = false;
    ref_preempt_all(q);
    ref_sort(t);
    return true;
}

bool
ref_admit(struct ref *t, struct req *q)
{
    uint32_t len = q->prompt + (t->l.policy == POLICY_MAX_UTILIZATION ? 0 : q->max_new);

    if (q->state == WAIT && !has_slot(t, q)) return ask_reclaim(t);
    if (!fits(t, q, len)) return ask_reclaim(t);
    ref_take_slot(t, q, CONTEXT);
    for (uint32_t i = 0; i < size(q); i++) q[i].len = len;
    return true;
}

/* ---- preemption */

static bool
pay(struct ref *t, struct req *q)
{
    uint32_t tokens = t->c.tokens_per_block, len;

    if (q->pos < q->len) return true;
    len = MIN(CEIL_DIV(q->pos + 1, tokens) * tokens, q->prompt + q->max_new);
    if (!fits(t, q, len)) return ask_reclaim(t);
    q->len = len;
    return true;
}

static bool
somebody_leaves(const struct ref *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].slot &&
            (t->req[i].state == LAST || t->req[i].state == PREEMPTED || t->req[i].state == GONE))
            return true;
    return false;
}

unsigned
ref_wants(const struct ref *t, const struct req *q, unsigned lane, nsec now)
{
    unsigned work = 0;

    if (q->suspended || q->deadline <= now || ref_follows(q)) return 0;
    if (q->state == WAIT) work = q->source ? WORK_ENCODER : WORK_PREFILL;
    if (q->state == ENCODE) work = WORK_ENCODER;
    if (q->state == CONTEXT) work = WORK_PREFILL;
    if (q->state == GENERATE && q->out < q->max_new && !(q->beam && q->in_flight))
        work = WORK_DECODE;
    return work & t->l.lane_work[lane];
}

static bool
reserve_next_step(struct ref *t, struct req *q, unsigned work, uint32_t *rows)
{
    uint32_t n = MIN(q->prompt - MIN(q->pos, q->prompt), *rows);

    if (q->suspended) return true;
    if (q->state == GENERATE) return q->out == q->max_new || pay(t, q);
    if (q->state == WAIT && work && !ref_may_take_pages(t, q)) return false;
    if (work == WORK_ENCODER) return q->state != WAIT || ref_has_slot(t, q);
    if (work != WORK_PREFILL || n == 0) return true;
    if (!q->len && !ref_admit(t, q)) return false;
    *rows -= n;
    return true;
}

bool
ref_reserve_steps(struct ref *t, unsigned lane, nsec now)
{
    uint32_t rows = t->l.max_tokens;
    const struct req *last = NULL; /* the victim: the walk ends there */
    bool preempted = false, waiting = true;

    for (uint32_t i = 0; i < t->n_list; i++) {
        struct req *q = t->list[i];
        uint32_t v;

        if (last && !ref_before(q, last)) break;
        if (q->state == GONE || (!waiting && q->state == WAIT)) continue;
        while (!reserve_next_step(t, q, ref_wants(t, q, lane, now), &rows)) {
            bool no_slot = q->state == WAIT && !has_slot(t, q);

            if (q->state == WAIT && !ref_may_take_pages(t, q)) {
                waiting = false;
                break;
            }
            if (ref_give_up_one(t)) { /* restart: the list may be longer now */
                preempted = waiting = true;
                rows = t->l.max_tokens;
                i = UINT32_MAX;
                break;
            }
            for (v = t->n_list; v-- > i;)
                if (t->list[v]->slot && may_preempt(t->list[v])) break;
            if (v == UINT32_MAX || v < i || somebody_leaves(t)) {
                if (!no_slot) return preempted;
                waiting = false;
                break;
            }
            last = t->list[v]->first ? t->list[v]->first : t->list[v];
            ref_preempt_all(t->list[v]);
            if (!t->list[v]->slot) {
                preempted = true;
                if (last == (q->first ? q->first : q)) return preempted;
                continue;
            }
            if (!no_slot) return preempted;
            waiting = false;
            break;
        }
    }
    return preempted;
}
