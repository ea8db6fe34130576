/* commit.c - what a step sampled, applied: see scheduler.h.
 *
 * The one consequence of planning a step ahead is here: a row computed for a sequence that has ended
 * meanwhile is thrown away, and the sequence leaves its seat with the last step that carried it.
 */
#include "worker/sched/core.h"

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
            end_seq(s, q, i < q->n_eos ? LAGAN_FINISH_EOS : LAGAN_FINISH_STOP);
            return;
        }
    }
    if (before + 1 == q->max_new) end_seq(s, q, LAGAN_FINISH_LENGTH);
}

/* A step that carried the sequence in that seat is over. */
static inline struct seq *
leave_step(struct scheduler *s, uint32_t seat)
{
    struct seq *q;

    check(seat < s->n_seats);
    q = s->seat[seat].seq;
    check(q && q->in_flight > 0);
    q->in_flight--;
    return q;
}

/* Of its guesses so many were refused: what counted on them is planned again. */
static void
reject_drafts(struct scheduler *s, struct seq *q, const struct batch_run *run, uint32_t refused)
{
    check(refused <= run->n_draft && run->n_draft <= q->n_guess);
    q->n_guess -= run->n_draft;
    q->n_planned -= refused;
    q->n_out -= refused;
    if (q->state == SEQ_GENERATION && q->n_out == q->max_new && q->n_guess == 0)
        move_seq(s, q, SEQ_LAST);
}

/* What the step has filled, from first on, may be found by others. */
static void
store_filled_blocks(struct scheduler *s, const struct seq *q, const struct batch_run *run,
                    uint32_t first)
{
    uint32_t tokens = kv_config(s->kv)->tokens_per_block;
    struct kv_text t = text_of(q, q->n_tokens);

    if (s->seat[run->seat].seq != q) return; /* it has left, and its blocks with it */
    if (first / tokens == q->n_done / tokens && !(run->flags & RUN_FIRST_CHUNK)) return;
    if (q->has_forked && q->n_members == 0) return;
    kv_store(s->kv, run->seat, &t, MIN(q->n_done, q->has_forked ? q->n_shared : q->n_tokens));
}

/* Nothing carries it any more, and it has no further use for its seat. */
static void
leave_if_done(struct scheduler *s, struct seq *q, uint32_t seat)
{
    if (q->in_flight > 0 || s->seat[seat].seq != q) return;
    if (q->state == SEQ_ENDED) leave_seat(s, q);
    if (q->state == SEQ_PAUSED) leave_paused(s, q);
}

/* Those who were given what q held by a step that is not over, or by this one, stand on what failed too. */
static void
fail_forks(struct scheduler *s, const struct seq *q, const struct batch *b)
{
    for (struct seq *m = s->running.first, *next; m; m = next) {
        uint64_t done = s->done[m->fork_lane] - (m->fork_lane == b->lane);

        next = m->next;
        if (m == q || m->id != q->id || m->fork_step <= done) continue;
        m->n_done = 0;
        end_seq(s, m, LAGAN_E_INTERNAL);
    }
}

/* The step was to copy what q, which has not begun, goes on from. */
static bool
copied_for(const struct scheduler *s, const struct seq *q, const struct batch *b)
{
    uint32_t entry = q->n_done / kv_config(s->kv)->tokens_per_block;

    if (s->seat[q->seat].len == 0 || s->seat[q->seat].chunk_planned) return false;
    for (uint32_t i = 0; i < b->n_copies; i++)
        if (kv_entry(s->kv, q->seat, b->copy[i].group, entry) == b->copy[i].to) return true;
    return false;
}

static void
fail_copies(struct scheduler *s, const struct batch *b)
{
    struct seq *q = b->n_copies ? s->running.first : NULL;

    while (q) {
        bool failed = q->state == SEQ_CONTEXT && !seq_follows(q) && copied_for(s, q, b);

        if (failed) end_seq(s, q, LAGAN_E_INTERNAL);
        q = failed ? s->running.first : q->next; /* a family goes whole */
    }
}

/* Nothing that the step leaves is of use, also if a sequence had ended. */
static void
fail_step(struct scheduler *s, const struct batch *b)
{
    for (uint32_t i = 0; i < b->n_runs; i++) {
        const struct batch_run *run = &b->run[i];
        struct seq *q = leave_step(s, run->seat);

        if (run->n_draft) reject_drafts(s, q, run, 0);
        if (run->flags & RUN_FIRST_CHUNK) free_enc_rows(s, run->seat);
        q->n_done = 0;
        end_seq(s, q, LAGAN_E_INTERNAL);
        fail_forks(s, q, b);
        leave_if_done(s, q, run->seat);
    }
    for (uint32_t i = 0; i < b->n_encode; i++) {
        struct seq *q = leave_step(s, b->encode[i].seat);

        end_seq(s, q, LAGAN_E_INTERNAL);
        fail_forks(s, q, b); /* by the step behind it, of the source that is not there */
        leave_if_done(s, q, b->encode[i].seat);
    }
    fail_copies(s, b);
}

/* One of a search: with the last of them, what they become is known. */
static void
commit_beam(struct scheduler *s, const struct seq *q, const struct batch *b, uint32_t i,
            const struct batch_result *r)
{
    if (q->state == SEQ_ENDED || q->next_member) return;
    check(i + 1 >= q->beam->n_beams);
    commit_beams(s, q->first_member, &b->run[i + 1 - q->beam->n_beams], r);
}

static void
commit_run(struct scheduler *s, const struct batch *b, uint32_t i, const struct batch_result *r)
{
    const struct batch_run *run = &b->run[i];
    const token_id *token = &r->token[(size_t)i * (1 + MAX_DRAFT)];
    struct seq *q = leave_step(s, run->seat);
    /* Behind guesses it begins where they end: after the prompt, if that did not fail. */
    uint32_t first = run->flags & RUN_BEHIND_GUESSES ? MAX(q->n_done, q->n_prompt)
                                                     : (uint32_t)run->first_pos;
    uint32_t n = 0, refused = 0;

    if ((run->flags & (RUN_SAMPLE | RUN_BEAM)) == RUN_SAMPLE) {
        n = r->n_tokens[i];
        check(n >= 1 && n <= 1u + run->n_draft);
        refused = 1u + run->n_draft - n;
    }
    if (first <= q->n_done) q->n_done = first + run->n_rows - refused; /* else on one that failed */
    if (run->n_draft) reject_drafts(s, q, run, refused);
    /* projected, or there before: nobody reads them again */
    if (run->flags & RUN_FIRST_CHUNK) free_enc_rows(s, run->seat);
    if (run->flags & RUN_BEAM) commit_beam(s, q, b, i, r);
    for (uint32_t k = 0; k < n && q->state != SEQ_ENDED; k++) append_token(s, q, token[k]);
    if (s->reuse) store_filled_blocks(s, q, run, first);
    leave_if_done(s, q, run->seat);
}

/* Of a thousand sequences nothing is in the processor's caches when its turn comes, unless it is asked for. */
static inline void
fetch_ahead(const struct scheduler *s, const struct batch *b, uint32_t i)
{
    if (i + 8 < b->n_runs) __builtin_prefetch(&s->seat[b->run[i + 8].seat]);
    if (i + 4 < b->n_runs) {
        const struct seq *q = s->seat[b->run[i + 4].seat].seq;

        __builtin_prefetch(q, 1);
        __builtin_prefetch((const char *)q + CACHE_LINE);
    }
}

unsigned
scheduler_turn(const struct scheduler *s, const struct batch *b)
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
    check(scheduler_turn(s, b) == b->lane);
    s->done[b->lane] = b->step;
    kv_done(s->kv, b->lane, b->step);

    if (r->status < 0) {
        fail_step(s, b);
    } else {
        for (uint32_t i = 0; i < b->n_runs; i++) {
            fetch_ahead(s, b, i);
            commit_run(s, b, i, r);
        }
        for (uint32_t i = 0; i < b->n_encode; i++)
            leave_if_done(s, leave_step(s, b->encode[i].seat), b->encode[i].seat);
    }
    expire_deadlines(s, now);
    costly_check((scheduler_check(s), true));
}
