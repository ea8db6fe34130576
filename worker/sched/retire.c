/* retire.c - sequences leave their slots: ended, past their deadline, or preempted.
 *
 * leave_seat() gives back the slot, its blocks, encoder rows and adapter pages together, and only
 * when no step in flight carries the sequence. Slots that are kept for the requests of a previous
 * worker are given up here too.
 */
#include "worker/sched/core.h"

#include "include/lagan_wire.h"

#include <string.h>

void
free_enc_rows(struct scheduler *s, uint32_t seat)
{
    uint32_t i = 0;

    if (!s->seat[seat].has_enc_rows) return;
    while (s->enc[i].seat != seat) i++;
    memmove(&s->enc[i], &s->enc[i + 1], (s->n_enc - i - 1) * sizeof s->enc[0]);
    s->n_enc--;
    s->seat[seat].has_enc_rows = false;
}

void
scheduler_unkeep(struct scheduler *s, uint32_t seat)
{
    check(seat < s->n_seats);
    if (!s->seat[seat].kept_for_adoption) return;
    kv_drop(s->kv, seat);
    s->seat[seat].kept_for_adoption = false;
    s->free_seat[(s->first_free + s->n_free++) % s->n_seats] = seat;
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
    q->n_planned = q->n_done = q->n_out = q->n_guess = 0;
    q->n_adopted = 0;
    q->has_forked = false;
    q->fork_step = 0;
    q->n_enc_layers = 0; /* its cross KV is given up: encoded again, unless it is found */
    q->cross_kv_cached = false;
    if (made > 0) q->prompt_logprobs = q->wants_states = false; /* told */
    q->must_encode = q->wants_states;
    q->behind.seat = 0;
}

void
leave_seat(struct scheduler *s, struct seq *q)
{
    bool paused = q->state == SEQ_PAUSED;

    check((paused || q->state == SEQ_ENDED) && q->in_flight == 0 && s->seat[q->seat].seq == q);
    free_enc_rows(s, q->seat);
    give_pages(s, q->seat);
    /* What a family has forked is of use to nobody else. */
    if (s->reuse && q->n_done > 0 && q->reason != LAGAN_E_INTERNAL && !q->has_forked) {
        struct kv_text t = text_of(q, q->n_tokens);

        kv_release(s->kv, q->seat, &t, MIN(q->n_done, q->n_tokens));
    } else {
        kv_drop(s->kv, q->seat);
    }
    s->seat[q->seat] = (struct seat){ 0 };
    s->free_seat[(s->first_free + s->n_free++) % s->n_seats] = q->seat;
    seq_remove(&s->running, q);
    if (!paused) {
        seq_append(&s->ended, q);
        return;
    }
    reset_to_prompt(q);
    if (q->first_member && q->first_member != q) {
        move_seq(s, q, SEQ_NEW); /* the first brings it again */
        return;
    }
    move_seq(s, q, SEQ_WAITING);
    seq_insert(&s->waiting, q);
}

/* A step is out that carries it, or one of its family. */
static bool
in_flight(struct seq *q)
{
    bool out = false;

    for (const struct seq *m = group_first(q); m; m = m->next_member) out = out || m->in_flight > 0;
    return out;
}

/* It has blocks that somebody else could have. Half-told prompt logprobs cannot be taken back;
 * blocks of an adopted row that the device was not told of are soon, if there is one for its
 * next token. */
bool
may_preempt(const struct scheduler *s, struct seq *q)
{
    bool told;

    q = group_first(q);
    told = s->seat[q->seat].chunk_planned || (q->has_forked && !q->n_adopted);
    told = told || (q->n_adopted && !all_paid(s, q));
    if (q->state == SEQ_GENERATION) return true;
    return q->state == SEQ_CONTEXT && told && !q->prompt_logprobs;
}

void
leave_paused(struct scheduler *s, struct seq *q)
{
    if (in_flight(q)) return;
    for (struct seq *m = group_first(q); m; m = m->next_member) leave_seat(s, m);
}

void
pause_one(struct scheduler *s, struct seq *q)
{
    s->n_pauses++;
    for (struct seq *m = group_first(q); m; m = m->next_member) {
        m->n_pauses++;
        move_seq(s, m, SEQ_PAUSED);
    }
    leave_paused(s, q);
}

struct seq *
halted_one(const struct scheduler *s, bool pages)
{
    struct admission way;

    for (struct seq *q = s->any_suspended ? s->running.last : NULL; q; q = q->prev)
        if (q->is_suspended && !in_flight(q) && may_preempt(s, q) &&
            (!pages || s->seat[q->seat].pages) &&
            admission(s, group_first(q), q->n_tokens, &way, NULL) == 0) /* it can come back */
            return q;
    return NULL;
}

bool
give_up_one(struct scheduler *s, nsec now)
{
    struct seq *halted = s->reclaim_wanted ? halted_one(s, /* pages= */ false) : NULL;
    uint32_t seat = 0;

    if (!halted && s->no_pages) halted = halted_one(s, /* pages= */ true);
    s->no_pages = false;
    if (halted) pause_one(s, halted);
    if (halted || !s->reclaim_wanted || now < s->keep_until) return halted;
    s->reclaim_wanted = false;
    if (s->n_kept == 0) return false;
    while (!s->seat[seat].kept_for_adoption) seat++;
    scheduler_unkeep(s, seat);
    return true;
}

static void
end_one(struct scheduler *s, struct seq *q, uint16_t reason)
{
    bool waited = q->state == SEQ_WAITING, brought = q->state == SEQ_NEW;

    if (q->state == SEQ_ENDED) return;
    q->reason = reason;
    move_seq(s, q, SEQ_ENDED);
    fair_queue_end(&s->turns, q->client, q->n_prompt + q->max_new - q->n_tokens);
    if (waited) seq_remove(&s->waiting, q);
    if (waited || brought) {
        seq_append(&s->ended, q);
    } else if (q->in_flight == 0) {
        leave_seat(s, q);
    }
}

void
end_seq(struct scheduler *s, struct seq *q, uint16_t reason)
{
    struct seq *m = q->first_member ? q->first_member : q, *next;

    if (q->state == SEQ_ENDED) return; /* so have the others, and may be gone */
    for (; m; m = next) {
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
            bool family = q->first_member;

            end_seq(s, q, LAGAN_E_DEADLINE);
            ended = true;
            if (family) next = l->first; /* the others have gone with it */
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
