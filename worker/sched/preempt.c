/* preempt.c - max_utilization: blocks step by step, and who gives way: see sched_internal.h.
 *
 * One walk over who runs and who waits, in list order. Whoever finds no blocks, or no slot, takes them from the
 * last in the list that has begun, itself included; a list that somebody was taken from ends there. Nobody is
 * taken from under a step: who is in flight waits for it, and whoever needed the blocks waits too. A family that is one
 * gives everything up together, when no step carries any of it.
 */
#include "worker/sched/sched_internal.h"

/* For q, which found no room: NULL: nobody can, or not yet; else who was preempted. */
static struct seq *
pause_after(struct scheduler *s, const struct seq *q)
{
    struct seq *v = s->running.last;

    /* With a step that is out somebody gives everything back, without being asked. */
    if (s->n_in[SEQ_LAST] + s->n_in[SEQ_PREEMPTED] + s->n_in[SEQ_ENDED] > s->ended.n) return NULL;
    while (v && !seq_before(v, q) && !may_preempt(s, v)) v = v->prev;
    if (!v || seq_before(v, q)) return NULL;
    preempt_one(s, v);
    return group_first(v);
}

/* Room for what it would do in the next step; rows: of prompts that are still to be found room
 * for. A row that is another lane's to plan comes before the prompts behind it all the same. */
static bool
find_room(struct scheduler *s, struct seq *q, unsigned work, uint32_t *rows)
{
    uint32_t n = MIN(q->n_prompt - MIN(q->n_planned, q->n_prompt), *rows);

    if (q->is_suspended) return true;
    if (q->state == SEQ_DECODE) return q->n_out == q->max_new || pay_blocks(s, q, q->n_planned + 1);
    if (q->n_adopted && q->state == SEQ_PREFILL && !has_paid(s, q) &&
        !pay_blocks(s, q, q->n_prompt))
        return false;
    if (q->state == SEQ_WAITING && work && !may_take_pages(s, q)) return false;
    if (work == WORK_ENCODER) return has_slot(s, q);
    if (work != WORK_PREFILL || n == 0) return true;
    if (q->state == SEQ_WAITING) {
        if (prefix_in_flight(s, q) || (q->n_source > 0 && !find_cross(s, q))) return true;
        if (!admit_kv(s, q)) return false;
    } else if (s->slot[q->slot].len == 0 && !admit_kv(s, q)) {
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
    uint32_t rows = s->l.max_tokens;

    while (running || waiting) {
        bool here = !waiting || (running && seq_before(running, waiting));
        struct seq *q = here ? running : waiting, *next = q->next;

        if (end && !seq_before(q, end)) break;
        if (find_room(s, q, runnable(s, q, lane), &rows)) {
            *(here ? &running : &waiting) = next;
            continue;
        }
        if (q->state == SEQ_WAITING && !may_take_pages(s, q)) {
            waiting = NULL; /* a preempt may free none of them: until somebody has ended */
            continue;
        }
        if (give_up_one(s, now)) { /* it may be the one that is next, and waits now */
            running = s->running.first;
            waiting = s->waiting.first;
            rows = s->l.max_tokens;
            given_up = true;
            continue;
        }
        end = s->n_kept ? NULL : pause_after(s, q);
        if (end && end->state == SEQ_WAITING) {
            given_up = true;
            if (end == group_first(q)) break;
            if (running && end == group_first(running)) running = NULL;
        } else if (!has_slot(s, q)) {
            waiting = NULL; /* those who have one need not stop */
        } else {
            break;
        }
    }
    return given_up;
}
