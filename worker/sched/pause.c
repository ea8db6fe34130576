/* pause.c - max_utilization: blocks step by step, and who gives way: see core.h.
 *
 * One walk over who runs and who waits, in list order. Whoever finds no blocks, or no seat, takes them from the
 * last in the list that has begun, itself included; a list that somebody was taken from ends there. Nobody is
 * taken from under a step: who is in flight waits for it, and whoever needed the blocks waits too. A family that is one
 * gives everything up together, when no step carries any of it.
 */
#include "worker/sched/core.h"

/* Who is paused with q, the first of them: q itself, or its family while that is one. */
static struct seq *
first_of(struct seq *q)
{
    return q->first_member ? q->first_member : q;
}

/* A step is out that carries it, or one of its family. */
static bool
in_flight(struct seq *q)
{
    bool out = false;

    for (const struct seq *m = first_of(q); m; m = m->next_member) out = out || m->in_flight > 0;
    return out;
}

/* It has blocks that somebody else could have. Half-told prompt logprobs cannot be taken back; blocks of an
 * adopted row that the device was not told of are soon, if there is one for its next token. */
static bool
may_pause(const struct scheduler *s, struct seq *q)
{
    bool told;

    q = first_of(q);
    told = s->seat[q->seat].begun || (q->forked && !q->n_adopted);
    told = told || (q->n_adopted && !all_paid(s, q));
    if (q->state == SEQ_GENERATION) return true;
    return q->state == SEQ_CONTEXT && told && !q->prompt_logprobs;
}

void
unwind(struct seq *q)
{
    uint32_t made = q->n_tokens - q->n_prompt;

    check(made < q->max_new);
    if (q->first_member == q && q->forked) q->n_shared = n_alike(q);
    if (!q->first_member) q->n_members = 0;
    q->n_prompt = q->n_tokens;
    q->max_new -= made;
    q->min_new -= MIN(q->min_new, made);
    q->n_planned = q->n_done = q->n_out = q->n_guess = 0;
    q->n_adopted = 0;
    q->forked = false;
    q->fork_step = 0;
    q->n_enc_layers = 0; /* its cross KV is given up: encoded again, unless it is found */
    q->cross_there = false;
    if (made > 0) q->prompt_logprobs = q->wants_states = false; /* told */
    q->encodes = q->wants_states;
    q->behind.seat = 0;
}

void
pause_one(struct scheduler *s, struct seq *q)
{
    s->n_pauses++;
    for (struct seq *m = first_of(q); m; m = m->next_member) {
        m->n_pauses++;
        move(s, m, SEQ_PAUSED);
    }
    leave_paused(s, q);
}

void
leave_paused(struct scheduler *s, struct seq *q)
{
    if (in_flight(q)) return;
    for (struct seq *m = first_of(q); m; m = m->next_member) leave_seat(s, m);
}

struct seq *
halted_one(const struct scheduler *s, bool pages)
{
    struct admission way;

    for (struct seq *q = s->halts ? s->running.last : NULL; q; q = q->prev)
        if (q->halted && !in_flight(q) && may_pause(s, q) && (!pages || s->seat[q->seat].pages) &&
            admission(s, first_of(q), q->n_tokens, &way, NULL) == 0) /* it can come back */
            return q;
    return NULL;
}

/* For q, which found no room: NULL: nobody can, or not yet; else who was paused. */
static struct seq *
pause_after(struct scheduler *s, const struct seq *q)
{
    struct seq *v = s->running.last;

    /* With a step that is out somebody gives everything back, without being asked. */
    if (s->n_in[SEQ_LAST] + s->n_in[SEQ_PAUSED] + s->n_in[SEQ_ENDED] > s->ended.n) return NULL;
    while (v && !seq_before(v, q) && !may_pause(s, v)) v = v->prev;
    if (!v || seq_before(v, q)) return NULL;
    pause_one(s, v);
    return first_of(v);
}

/* Room for what it would do in the next step; rows: of prompts that are still to be found room for. A row that is
 * another lane's to plan comes before the prompts behind it all the same. */
static bool
find_room(struct scheduler *s, struct seq *q, unsigned work, uint32_t *rows)
{
    uint32_t n = MIN(q->n_prompt - MIN(q->n_planned, q->n_prompt), *rows);

    if (q->halted) return true;
    if (q->state == SEQ_GENERATION) return q->n_out == q->max_new || pay(s, q, q->n_planned + 1);
    if (q->n_adopted && q->state == SEQ_CONTEXT && !has_paid(s, q) && !pay(s, q, q->n_prompt))
        return false;
    if (q->state == SEQ_WAITING && work && !may_take_pages(s, q)) return false;
    if (work == WORK_ENCODER) return has_seat(s, q);
    if (work != WORK_CONTEXT || n == 0) return true;
    if (q->state == SEQ_WAITING) {
        if (twin_ahead(s, q) || (q->n_source > 0 && !find_cross(s, q))) return true;
        if (!admit_kv(s, q)) return false;
    } else if (s->seat[q->seat].len == 0 && !admit_kv(s, q)) {
        return false;
    }
    *rows -= n;
    return true;
}

bool
make_room(struct scheduler *s, unsigned lane, nsec now)
{
    struct seq *running = s->running.first, *waiting = s->waiting.first;
    const struct seq *end = NULL;
    bool given_up = false;
    uint32_t rows = s->l.max_rows;

    while (running || waiting) {
        bool here = !waiting || (running && seq_before(running, waiting));
        struct seq *q = here ? running : waiting, *next = q->next;

        if (end && !seq_before(q, end)) break;
        if (find_room(s, q, runnable(s, q, lane), &rows)) {
            *(here ? &running : &waiting) = next;
            continue;
        }
        if (q->state == SEQ_WAITING && !may_take_pages(s, q)) {
            waiting = NULL; /* a pause may free none of them: until somebody has ended */
            continue;
        }
        if (give_up_one(s, now)) { /* it may be the one that is next, and waits now */
            running = s->running.first;
            waiting = s->waiting.first;
            rows = s->l.max_rows;
            given_up = true;
            continue;
        }
        end = s->n_kept ? NULL : pause_after(s, q);
        if (end && end->state == SEQ_WAITING) {
            given_up = true;
            if (end == first_of(q)) break;
            if (running && end == first_of(running)) running = NULL;
        } else if (!has_seat(s, q)) {
            waiting = NULL; /* those who have one need not stop */
        } else {
            break;
        }
    }
    return given_up;
}
