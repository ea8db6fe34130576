/* scheduler.c - creates a scheduler; adds, finds, cancels, reaps and checks its sequences. */
#include "worker/sched/scheduler.h"

#include "include/lagan_wire.h"
#include "worker/sched/sched_internal.h"

int
scheduler_new(struct scheduler **ret, const struct scheduler_limits *l, struct kv *kv,
              struct err *e)
{
    CLEAN(scheduler_free_at) struct scheduler *s = NULL;
    uint32_t tokens = kv_config(kv)->tokens_per_block;

    TRY(limits_check(l, kv_config(kv), e));
    s = calloc(1, sizeof *s);
    if (!s) return err_set(e, -ENOMEM, "out of memory for the scheduler");
    s->l = *l;
    s->fair_queue.quantum = l->quantum;
    s->kv = kv;
    s->n_slots = kv_config(kv)->n_slots;
    s->max_running = max_running(l);
    s->unit = l->chunk_unit ? l->chunk_unit : tokens <= l->max_tokens ? tokens : 1;
    s->unit_strict = l->chunk_unit > 0;
    s->sees[0] = 1;
    for (uint32_t i = 1; i <= l->n_draft; i++) {
        uint32_t parent = i - 1 - l->draft_back[i - 1];

        s->drafts_branch = s->drafts_branch || l->draft_back[i - 1];
        s->depth[i] = s->depth[parent] + 1;
        s->sees[i] = s->sees[parent] | 1u << i;
    }
    s->reuse = kv_config(kv)->reuse;
    s->next_deadline = NSEC_NEVER;
    for (unsigned i = 0; i < MAX_LANES; i++) s->waited_for[i] = NSEC_NEVER;
    for (unsigned i = 0; i < l->n_lanes; i++) s->work[i] = l->lane_work[i];
    if (l->policy == POLICY_MAX_REQUESTS) TRY(limits_check_uncounted(s, e));
    s->slot = aligned_alloc(CACHE_LINE, s->n_slots * sizeof s->slot[0]);
    s->free_slot = calloc(s->n_slots, sizeof s->free_slot[0]);
    s->enc = calloc(s->n_slots, sizeof s->enc[0]);
    s->chunk = calloc(s->n_slots, sizeof s->chunk[0]);
    s->soon = calloc(2 * (size_t)s->n_slots, sizeof s->soon[0]);
    s->holder = calloc(s->n_slots, sizeof s->holder[0]);
    if (!s->slot || !s->free_slot || !s->enc || !s->chunk || !s->soon || !s->holder)
        return err_set(e, -ENOMEM, "out of memory for %u slots of the scheduler", s->n_slots);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        s->slot[i] = (struct slot){ .kept_for_adoption = kv_live(kv, i) };
        s->n_kept += s->slot[i].kept_for_adoption;
        if (!s->slot[i].kept_for_adoption) s->free_slot[s->n_free++] = i;
    }
    *ret = TAKE(s);
    return 0;
}

struct scheduler *
scheduler_free(struct scheduler *s)
{
    if (s) {
        free(s->slot);
        free(s->free_slot);
        free(s->enc);
        free(s->chunk);
        free(s->soon);
        free(s->holder);
    }
    free(s);
    return NULL;
}

struct batch *
scheduler_batch(const struct scheduler *s)
{
    const struct kv_config *c = kv_config(s->kv);

    return batch_new(s->l.max_tokens + s->l.max_enc_tokens, s->max_running,
                     scheduler_edits(&s->l, c), scheduler_copies(&s->l, c));
}

/* Returns a sequence with this id; ended: also one that has ended and is in flight. NULL: none. */
static struct seq *
find_seq(const struct scheduler *s, req_id id, bool ended)
{
    for (struct seq *q = s->running.first; q; q = q->next)
        if (q->id == id && (ended || q->state != SEQ_ENDED)) return q;
    for (struct seq *q = s->waiting.first; q; q = q->next)
        if (q->id == id) return q;
    return NULL;
}

static void
init_seq(struct scheduler *s, struct seq *q, nsec now)
{
    q->slot = UINT32_MAX;
    q->n_tokens = q->n_prompt;
    q->n_planned = q->n_done = q->n_out = q->n_draft_in_flight = q->in_flight = 0;
    q->n_preemptions = q->n_passed = 0;
    q->enc_token = q->n_enc_layers = 0;
    q->is_suspended = q->has_forked = false;
    q->lane = 0;
    q->lane_step = q->fork_step = 0;
    q->reason = LAGAN_NONE;
    q->arrived = now;
    q->arrival_number = s->arrival_number++;
    q->n_cached = 0;
    q->kv_use = (struct kv_use){ 0 };
    q->cross_kv_cached = false;
    q->must_encode = q->wants_states;
    q->behind.slot = 0;
    q->fair_tag = fair_queue_give(&s->fair_queue, q->client,
                                  (uint64_t)q->n_source + q->n_prompt + q->max_new);
    s->next_deadline = MIN(s->next_deadline, q->deadline);
}

int
scheduler_add(struct scheduler *s, struct seq *q, nsec now, struct err *e)
{
    if (find_seq(s, q->id, /* ended= */ true))
        return err_set(e, -EEXIST, "request id %llu is in use", (unsigned long long)q->id);
    q->n_draft = q->first_member || q->plan_after_commit ? 0 : MIN(q->n_draft, s->l.n_draft);
    if (q->n_draft && limits_check_seq(s, q, NULL) == -EMSGSIZE)
        q->n_draft = 0; /* drafts would need too many window blocks */
    TRY(limits_check_seq(s, q, e));
    init_seq(s, q, now);
    if (s->reuse)
        kv_namespace(s->kv, q->salt, q->lora, q->source, q->n_source, &q->cache_namespace);
    for (struct seq *m = q->next_member; m; m = m->next_member) {
        init_seq(s, m, now);
        m->fair_tag = q->fair_tag; /* members stay adjacent in the list */
        m->cache_namespace = q->cache_namespace;
        m->n_draft = 0;
    }
    if (q->first_member) {
        TRY(adopt_seq_group(s, &q));
    } else {
        move_seq(s, q, SEQ_WAITING);
        if (q->n_adopted && admit_adopted(s, q)) return 0;
        if (q->n_adopted) scheduler_unkeep(s, q->adopted_slot);
        q->n_adopted = 0;
    }
    if (q) seq_insert(&s->waiting, q);
    return 0;
}

void
scheduler_keep_prompt(struct scheduler *s, uint32_t slot, uint32_t n_prompt, uint32_t n_source)
{
    struct kv_need n;

    check(slot < s->n_slots);
    if (!s->slot[slot].kept_for_adoption || n_prompt > s->l.max_len) return;
    n = kv_need(s->kv, n_prompt, n_source, MIN(s->unit, n_prompt));
    (void)(kv_raise(s->kv, slot, &n) < 0);
}

void
scheduler_unkeep_all(struct scheduler *s)
{
    for (uint32_t i = 0; i < s->n_slots && s->n_kept > 0; i++) scheduler_unkeep(s, i);
    s->reclaim_wanted = false;
}

void
scheduler_keep(struct scheduler *s, nsec until)
{
    s->keep_until = until;
}

void
scheduler_cancel(struct scheduler *s, req_id id, uint16_t reason)
{
    struct seq *q;

    while ((q = find_seq(s, id, /* ended= */ false))) scheduler_end(s, q, reason);
}

void
scheduler_suspend(struct scheduler *s, req_id id, bool suspended)
{
    for (struct seq *q = s->running.first; q; q = q->next)
        if (q->id == id) q->is_suspended = suspended;
    for (struct seq *q = s->waiting.first; q; q = q->next)
        for (struct seq *m = q; m && q->id == id; m = m->next_member) m->is_suspended = suspended;
    s->any_suspended |= suspended;
}

nsec
scheduler_wake(const struct scheduler *s)
{
    nsec wake = s->next_deadline;
    bool out = false; /* a step is in flight: its commit will wake the caller */

    for (unsigned l = 0; l < s->l.n_lanes; l++) {
        wake = MIN(wake, s->waited_for[l]);
        out = out || s->planned[l] != s->done[l];
    }
    if (out) return wake;
    if (s->reclaim_wanted) wake = MIN(wake, s->keep_until);
    return s->replan_lanes ? 0 : wake;
}

struct seq *
scheduler_reap(struct scheduler *s)
{
    struct seq *q = s->ended.first;

    if (!q) return NULL;
    seq_remove(&s->ended, q);
    move_seq(s, q, SEQ_NEW);
    return q;
}

struct seq *
scheduler_seq_at(const struct scheduler *s, uint32_t slot)
{
    check(slot < s->n_slots);
    return s->slot[slot].seq;
}

struct kv_use
scheduler_kv_use(const struct scheduler *s, const struct seq *q)
{
    struct kv_use sum = q->kv_use;

    if (q->slot < s->n_slots && s->slot[q->slot].seq == q) kv_add_use(s->kv, q->slot, &sum);
    return sum;
}

struct scheduler_counts
scheduler_counts(const struct scheduler *s)
{
    return (struct scheduler_counts){ s->running.n, s->waiting.n, s->n_preemptions, s->n_looked_up,
                                      s->n_found };
}

struct kv_need
scheduler_longest(const struct scheduler *s, uint32_t n_source)
{
    uint32_t len = (uint32_t)MIN(s->l.max_len, kv_longest(s->kv, n_source));
    struct kv_need n = kv_need(s->kv, len, n_source, kv_config(s->kv)->tokens_per_block);

    for (uint32_t g = 0; s->l.policy == POLICY_MAX_REQUESTS && g < MAX_GROUPS; g++)
        n.n_blocks[g] *= s->max_running;
    return n;
}

static void
check_list(const struct seq_list *l, bool ordered)
{
    const struct seq *prev = NULL;
    uint32_t n = 0;

    for (const struct seq *q = l->first; q; prev = q, q = q->next) {
        check(q->prev == prev && ++n <= l->n);
        check(!ordered || !prev || seq_before(prev, q));
    }
    check(l->last == prev && n == l->n);
}

static void
check_pages(const struct scheduler *s)
{
    uint32_t pages = 0, users = 0, holding = 0;

    for (uint32_t i = 0; i < s->n_holders; i++) {
        pages += s->holder[i].n_users ? s->holder[i].pages : 0;
        users += s->holder[i].n_users;
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct slot *slot = &s->slot[i];

        holding += slot->pages > 0;
        check((slot->pages > 0) == (slot->seq && slot->seq->lora));
        check(!slot->pages || s->holder[slot->pages - 1].lora == slot->seq->lora);
    }
    check(pages == s->pages_used && pages <= s->l.pages && users == holding);
}

void
scheduler_check(const struct scheduler *s)
{
    uint32_t occupied = 0, kept = 0, end = 0, n = 0;

    check_list(&s->waiting, true);
    check_list(&s->running, true);
    check_list(&s->ended, false);
    for (const struct seq *q = s->waiting.first; q; q = q->next)
        check(q->state == SEQ_WAITING && q->in_flight == 0 && q->n_planned == 0);
    for (const struct seq *q = s->ended.first; q; q = q->next)
        check(q->state == SEQ_ENDED && q->in_flight == 0 && q->reason != LAGAN_NONE);
    for (const struct seq *q = s->running.first; q; q = q->next) {
        check(q->slot < s->n_slots && s->slot[q->slot].seq == q);
        check(q->state >= SEQ_ENCODER && (q->state != SEQ_ENDED || q->in_flight > 0));
        check(q->state != SEQ_LAST || (q->in_flight > 0 && q->n_out == q->max_new));
        check(q->n_draft_in_flight <= q->n_out && (q->n_draft_in_flight == 0 || q->in_flight > 0));
        check(q->in_flight <= 2u * s->l.n_lanes && q->n_out <= q->max_new);
        check(q->n_planned <= s->slot[q->slot].len);
        check(q->state != SEQ_PREEMPTED || q->first_member || q->in_flight > 0);
        check(q->n_planned == (q->n_out ? q->n_prompt + q->n_out - 1 : q->n_planned));
        check(q->n_tokens <= q->n_prompt + q->n_out && q->n_done <= q->n_planned);
        check(q->state != SEQ_ENCODER || s->slot[q->slot].has_enc_rows);
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        occupied += s->slot[i].seq != NULL;
        kept += s->slot[i].kept_for_adoption;
        check(!s->slot[i].kept_for_adoption || (!s->slot[i].seq && kv_live(s->kv, i)));
    }
    for (unsigned i = SEQ_WAITING; i <= SEQ_ENDED; i++) n += s->n_in[i];
    check(s->running.n + s->waiting.n + s->ended.n == n);
    check(occupied == s->running.n && occupied + s->n_free + kept == s->n_slots &&
          kept == s->n_kept);
    check(occupied <= s->max_running);
    for (uint32_t i = 0; i < s->n_enc; i++) {
        check(s->enc[i].n > 0 && s->enc[i].first >= end && s->slot[s->enc[i].slot].has_enc_rows);
        end = s->enc[i].first + s->enc[i].n;
    }
    check(end <= s->l.max_enc_tokens);
    check_pages(s);
    for (unsigned l = 0; l < s->l.n_lanes; l++)
        check(s->done[l] <= s->planned[l] && s->planned[l] - s->done[l] <= 2);
    kv_check(s->kv);
}
