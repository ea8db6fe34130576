/* division.c - which lane does what, on which rung, and what there is to do: see scheduler.h. */
#include "worker/sched/core.h"

/* Somebody's stream goes on, in this step or in another. */
static bool
any_generating(const struct scheduler *s)
{
    if (s->n_in[SEQ_GENERATION] == 0) return false;
    for (const struct seq *q = s->running.first; q; q = q->next)
        if (q->state == SEQ_GENERATION && !q->is_suspended) return true;
    return false;
}

static bool
prompts_out(const struct scheduler *s)
{
    for (unsigned l = 0; l < s->l.n_lanes; l++)
        if (s->l.lane_work[l] & WORK_CONTEXT && s->planned[l] != s->done[l]) return true;
    return false;
}

/* A lane of prompts takes over who generates when nothing of it is out: a step of thousands of rows is no gap between
 * two tokens. Until then it plans nothing, and answers go on where they are. */
void
apply_division(struct scheduler *s)
{
    bool together = s->next_rung == 0, change = together != s->lanes_merged,
         drained = s->prefill_draining;

    s->prefill_draining = change && together && any_generating(s) && prompts_out(s);
    for (unsigned l = 0; l < s->l.n_lanes && (change || !together); l++) {
        unsigned own = s->l.lane_work[l];
        bool prompts = own & WORK_CONTEXT;

        if (s->prefill_draining)
            s->work[l] = (uint8_t)(prompts ? 0 : own);
        else if (together)
            s->work[l] = (uint8_t)(prompts ? own | WORK_GENERATION : own & ~WORK_GENERATION);
        else
            s->work[l] = (uint8_t)own;
    }
    if (s->prefill_draining) return;
    s->rung = s->next_rung;
    s->lanes_merged = together;
    if (change || drained)
        s->replan_lanes |= (1u << s->l.n_lanes) - 1; /* who had nothing to do may have */
}

void
scheduler_divide(struct scheduler *s, unsigned rung, uint32_t rows)
{
    s->step_rows = rows;
    s->next_rung = rung;
    apply_division(s);
}

/* Lanes are planned in turn: who found nothing then has nothing now, but for tokens to generate, which come to be in the
 * plan of another lane. */
bool
lane_is_alone(const struct scheduler *s, unsigned lane)
{
    for (unsigned l = 0; l < s->l.n_lanes; l++) {
        if (l == lane) continue;
        if (s->planned[l] != s->done[l]) return false;
        if (s->work[l] & WORK_GENERATION && any_generating(s)) return false;
        if (s->work[l] & (WORK_CONTEXT | WORK_ENCODER) && !s->found_no_work[l] &&
            s->n_in[SEQ_ENCODER] + s->n_in[SEQ_CONTEXT] + s->waiting.n > 0)
            return false;
    }
    return true;
}

/* So many of all that are there may generate at once: as seats go, and as KV does if the others want as much. */
static uint32_t
may_generate(const struct scheduler *s)
{
    uint64_t seated = s->n_in[SEQ_CONTEXT] + s->n_in[SEQ_GENERATION];
    uint64_t n = MIN(seated + s->waiting.n, (uint64_t)s->l.max_seqs);

    for (uint32_t p = 0; p < kv_n_pools(s->kv); p++) {
        struct kv_count c;

        kv_count(s->kv, p, &c);
        if (c.used) n = MIN(n, MAX(seated * c.blocks / c.used, seated));
    }
    return (uint32_t)n;
}

struct scheduler_load
scheduler_load(const struct scheduler *s, uint32_t most)
{
    struct scheduler_load x = { .n_generating = s->n_in[SEQ_GENERATION],
                                .n_there = may_generate(s) };
    const struct seq *q = s->n_in[SEQ_CONTEXT] ? s->running.first : NULL;
    uint32_t seats = x.n_there - MIN(s->n_in[SEQ_CONTEXT] + x.n_generating, x.n_there);

    for (; q && x.prompt_rows < most; q = q->next)
        if (q->state == SEQ_CONTEXT && !q->is_suspended && !seq_follows(q))
            x.prompt_rows += MIN(q->n_prompt - q->n_planned, most - x.prompt_rows);
    for (q = s->waiting.first; q && seats && x.prompt_rows < most; q = q->next)
        if (!q->is_suspended) {
            x.prompt_rows += MIN(q->n_source + q->n_prompt, most - x.prompt_rows);
            seats--;
        }
    return x;
}
