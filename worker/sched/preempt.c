/* preempt.c - policy max_utilization: reserves blocks per step, and preempts if none is free.
 *
 * One walk visits running and waiting sequences in list order and reserves what each needs next. If
 * a sequence lacks blocks or a slot, the last running sequence in list order (the victim) is
 * preempted; the sequence itself may be the victim. The walk ends at the victim. A victim in flight
 * leaves its slot after its step, and the sequence that lacks blocks waits. The members of a group
 * that have not separated are preempted together, when none of them is in flight.
 */
#include "worker/sched/sched_internal.h"

/* Preempts the last running sequence in list order that is not before q, and returns its first
 * member. NULL: there is none, or a sequence that is ending will free blocks. */
static struct seq *
preempt_after(struct scheduler *s, const struct seq *q)
{
    struct seq *v = s->running.last;

    /* a sequence that is ending frees its blocks when its step is committed: wait for that */
    if (s->n_in[SEQ_LAST] + s->n_in[SEQ_PREEMPTED] + s->n_in[SEQ_ENDED] > s->ended.n) return NULL;
    while (v && !seq_before(v, q) && !may_preempt(s, v)) v = v->prev;
    if (!v || seq_before(v, q)) return NULL;
    preempt_one(s, v);
    return group_first(v);
}

/* Reserves what q needs in the lane's next step; false: too little is free. work: q's runnable()
 * work. *rows: prompt tokens of the step that are not assigned yet. A decoding sequence of any lane
 * reserves here, so that no prompt after it in list order takes its next block. */
static bool
reserve_next_step(struct scheduler *s, struct seq *q, unsigned work, uint32_t *rows)
{
    uint32_t n = MIN(q->n_prompt - MIN(q->n_planned, q->n_prompt), *rows);

    if (q->is_suspended) return true;
    if (q->state == SEQ_DECODE)
        return q->n_out == q->max_new || reserve_up_to(s, q, q->n_planned + 1);
    if (q->n_adopted && q->state == SEQ_PREFILL && !has_block_for_next(s, q) &&
        !reserve_up_to(s, q, q->n_prompt))
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
reserve_steps(struct scheduler *s, unsigned lane, nsec now)
{
    struct seq *running = s->running.first, *waiting = s->waiting.first;
    const struct seq *end = NULL;
    bool given_up = false;
    uint32_t rows = s->l.max_tokens;

    while (running || waiting) {
        bool here = !waiting || (running && seq_before(running, waiting));
        struct seq *q = here ? running : waiting, *next = q->next;

        if (end && !seq_before(q, end)) break;
        if (reserve_next_step(s, q, runnable(s, q, lane), &rows)) {
            *(here ? &running : &waiting) = next;
            continue;
        }
        if (q->state == SEQ_WAITING && !may_take_pages(s, q)) {
            waiting = NULL; /* preemption may free no adapter pages: wait until a sequence ends */
            continue;
        }
        if (reclaim_slot(s, now)) { /* `running` may have lost its slot: restart the walk */
            running = s->running.first;
            waiting = s->waiting.first;
            rows = s->l.max_tokens;
            given_up = true;
            continue;
        }
        end = s->n_kept ? NULL : preempt_after(s, q);
        if (end && end->state == SEQ_WAITING) {
            given_up = true;
            if (end == group_first(q)) break;
            if (running && end == group_first(running)) running = NULL;
        } else if (!has_slot(s, q)) {
            waiting = NULL; /* sequences with a slot continue */
        } else {
            break;
        }
    }
    return given_up;
}
