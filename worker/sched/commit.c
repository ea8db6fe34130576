/* commit.c - applies the results of a step. See scheduler.h.
 *
 * A token computed for a sequence that has ended meanwhile is discarded here, and only here. The
 * sequence leaves its slot with the last step that carries it.
 */
#include "worker/sched/sched_internal.h"

#include "include/lagan_wire.h"

static void
append_token(struct scheduler *s, struct seq *q, token_id t)
{
    uint32_t before = q->n_tokens - q->n_prompt;

    check(t >= 0 && q->n_tokens < q->cap && before < q->n_out);
    q->token[q->n_tokens++] = t;
    if (before >= q->min_new) {
        for (uint32_t i = 0; i < q->n_end; i++) {
            if (q->end_id[i] != t) continue;
            scheduler_end(s, q, i < q->n_eos ? LAGAN_FINISH_EOS : LAGAN_FINISH_STOP);
            return;
        }
    }
    if (before + 1 == q->max_new) scheduler_end(s, q, LAGAN_FINISH_LENGTH);
}

/* Returns the sequence in the slot, and counts one step less in flight for it. */
static inline struct seq *
leave_step(struct scheduler *s, uint32_t slot)
{
    struct seq *q;

    check(slot < s->n_slots);
    q = s->slot[slot].seq;
    check(q && q->in_flight > 0);
    q->in_flight--;
    return q;
}

/* Applies the verification of the segment's drafts: the last `refused` of them were rejected, so
 * their positions are planned again. */
static void
reject_drafts(struct scheduler *s, struct seq *q, const struct batch_segment *segment,
              uint32_t refused)
{
    check(refused <= segment->n_draft && segment->n_draft <= q->n_draft_in_flight);
    q->n_draft_in_flight -= segment->n_draft;
    q->n_planned -= refused;
    q->n_out -= refused;
    if (q->state == SEQ_DECODE && q->n_out == q->max_new && q->n_draft_in_flight == 0)
        move_seq(s, q, SEQ_LAST);
}

/* Puts the blocks that the step has filled, from position `first` on, into the prefix cache. */
static void
store_filled_blocks(struct scheduler *s, const struct seq *q, const struct batch_segment *segment,
                    uint32_t first)
{
    uint32_t tokens = kv_config(s->kv)->tokens_per_block;
    struct kv_text t = text_of(q, q->n_tokens);
    bool beam = q->beam && q->has_forked; /* of its own positions, only ended hypotheses are kept */

    if (s->slot[segment->slot].seq != q) return; /* q has left its slot and blocks */
    if (first / tokens == q->n_done / tokens && !(segment->flags & SEGMENT_FIRST_CHUNK)) return;
    if (q->n_done == 0 || (beam && q->first_member != q)) return;
    kv_store(s->kv, segment->slot, &t, MIN(q->n_done, beam ? q->n_shared : q->n_tokens));
}

/* Frees the slot of an ended or preempted sequence that is no longer in flight. */
static void
leave_if_done(struct scheduler *s, struct seq *q, uint32_t slot)
{
    if (q->in_flight > 0 || s->slot[slot].seq != q) return;
    if (q->state == SEQ_ENDED) leave_slot(s, q);
    if (q->state == SEQ_PREEMPTED) leave_preempted(s, q);
}

/* Ends the members that forked from q in this step or in a later one: the forked KV is invalid. */
static void
fail_forks(struct scheduler *s, const struct seq *q, const struct batch *b)
{
    for (struct seq *m = s->running.first, *next; m; m = next) {
        uint64_t done = s->done[m->fork_lane] - (m->fork_lane == b->lane);

        next = m->next;
        if (m == q || m->id != q->id || m->fork_step <= done) continue;
        m->n_done = 0;
        scheduler_end(s, m, LAGAN_E_INTERNAL);
    }
}

/* True if the failed step was to copy a block of q's cache hit before q's first step, which is not
 * planned yet: q must end too, because that block is invalid. Blocks of a fork are those of
 * fail_forks(): a later fork may have a block that an earlier one, of this step, has freed. */
static bool
copied_for(const struct scheduler *s, const struct seq *q, const struct batch *b)
{
    uint32_t entry = q->n_done / kv_config(s->kv)->tokens_per_block;

    if (q->fork_step || s->slot[q->slot].len == 0 || s->slot[q->slot].chunk_planned) return false;
    for (uint32_t i = 0; i < b->n_copies; i++)
        if (kv_entry(s->kv, q->slot, b->copy[i].group, entry) == b->copy[i].to) return true;
    return false;
}

static void
fail_copies(struct scheduler *s, const struct batch *b)
{
    struct seq *q = b->n_copies ? s->running.first : NULL;

    while (q) {
        bool failed = q->state == SEQ_PREFILL && !seq_follows(q) && copied_for(s, q, b);

        if (failed) scheduler_end(s, q, LAGAN_E_INTERNAL);
        q = failed ? s->running.first : q->next; /* q's group has left the list too */
    }
}

/* Commits a failed step: all its sequences end, because its results are invalid. */
static void
fail_step(struct scheduler *s, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const struct batch_segment *segment = &b->segment[i];
        struct seq *q = leave_step(s, segment->slot);

        if (segment->n_draft) reject_drafts(s, q, segment, 0);
        if (segment->flags & SEGMENT_FIRST_CHUNK) free_enc_tokens(s, segment->slot);
        q->n_done = 0;
        scheduler_end(s, q, LAGAN_E_INTERNAL);
        fail_forks(s, q, b);
        leave_if_done(s, q, segment->slot);
    }
    for (uint32_t i = 0; i < b->n_encode; i++) {
        struct seq *q = leave_step(s, b->encode[i].slot);

        scheduler_end(s, q, LAGAN_E_INTERNAL);
        fail_forks(s, q, b); /* members that forked later have used this encoder input */
        leave_if_done(s, q, b->encode[i].slot);
    }
    fail_copies(s, b);
}

/* If q (segment i) is the last beam of its search: commits the step for all its beams together. */
static void
commit_beam(struct scheduler *s, const struct seq *q, const struct batch *b, uint32_t i,
            const struct batch_result *r)
{
    if (q->state == SEQ_ENDED || q->next_member) return;
    check(i + 1 >= q->beam->n_beams);
    commit_beams(s, q->first_member, &b->segment[i + 1 - q->beam->n_beams], r);
}

static void
commit_segment(struct scheduler *s, const struct batch *b, uint32_t i, const struct batch_result *r)
{
    const struct batch_segment *segment = &b->segment[i];
    const token_id *token = &r->token[(size_t)i * (1 + MAX_DRAFT)];
    struct seq *q = leave_step(s, segment->slot);
    /* After a step with drafts the segment's first position is known only now: the committed
     * positions, at least the prompt. */
    uint32_t first = segment->flags & SEGMENT_AFTER_DRAFTS ? MAX(q->n_done, q->n_prompt)
                                                           : (uint32_t)segment->first_pos;
    uint32_t n = 0, refused = 0;

    if ((segment->flags & (SEGMENT_SAMPLE | SEGMENT_BEAM)) == SEGMENT_SAMPLE) {
        n = r->n_tokens[i];
        check(n >= 1 && n <= 1u + segment->n_draft);
        refused = 1u + segment->n_draft - n;
    }
    if (first <= q->n_done) /* otherwise a previous step of q failed */
        q->n_done = first + segment->n_tokens - refused;
    if (segment->n_draft) reject_drafts(s, q, segment, refused);
    /* the encoder states are in the cross KV now, or were not needed */
    if (segment->flags & SEGMENT_FIRST_CHUNK) free_enc_tokens(s, segment->slot);
    if (segment->flags & SEGMENT_BEAM) commit_beam(s, q, b, i, r);
    for (uint32_t k = 0; k < n && q->state != SEQ_ENDED; k++) append_token(s, q, token[k]);
    if (s->reuse) store_filled_blocks(s, q, segment, first);
    leave_if_done(s, q, segment->slot);
}

/* Prefetches later sequences of the step: of about 1,000, none is in the processor's caches. */
static inline void
prefetch_ahead(const struct scheduler *s, const struct batch *b, uint32_t i)
{
    if (i + 8 < b->n_segments) __builtin_prefetch(&s->slot[b->segment[i + 8].slot]);
    if (i + 4 < b->n_segments) {
        const struct seq *q = s->slot[b->segment[i + 4].slot].seq;

        __builtin_prefetch(q, 1);
        __builtin_prefetch((const char *)q + CACHE_LINE);
    }
}

unsigned
scheduler_commit_lane(const struct scheduler *s, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_waits; i++)
        if (b->wait[i].step > s->done[b->wait[i].lane]) return b->wait[i].lane;
    return b->lane;
}

void
scheduler_commit(struct scheduler *s, const struct batch *b, const struct batch_result *r, nsec now)
{
    check(b->lane < s->l.n_lanes && b->lane == r->lane && b->step == r->step);
    check(b->step == s->done[b->lane] + 1 && b->step <= s->planned[b->lane]);
    check(scheduler_commit_lane(s, b) == b->lane);
    s->done[b->lane] = b->step;
    kv_done(s->kv, b->lane, b->step);

    if (r->status < 0) {
        fail_step(s, b);
    } else {
        for (uint32_t i = 0; i < b->n_segments; i++) {
            prefetch_ahead(s, b, i);
            commit_segment(s, b, i, r);
        }
        for (uint32_t i = 0; i < b->n_encode; i++)
            leave_if_done(s, leave_step(s, b->encode[i].slot), b->encode[i].slot);
    }
    expire_deadlines(s, now);
    costly_check((scheduler_check(s), true));
}
