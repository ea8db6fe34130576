/* lane_work.c - the work and partition of each lane, and the scheduler's load. See scheduler.h. */
#include "worker/sched/sched_internal.h"

bool
any_decoding(const struct scheduler *s)
{
    if (s->n_in[SEQ_DECODE] == 0) return false;
    for (const struct seq *q = s->running.first; q; q = q->next)
        if (q->state == SEQ_DECODE && !q->is_suspended) return true;
    return false;
}

static bool
prompts_out(const struct scheduler *s)
{
    for (unsigned l = 0; l < s->l.n_lanes; l++)
        if (s->l.lane_work[l] & WORK_PREFILL && s->planned[l] != s->done[l]) return true;
    return false;
}

/* Applies next_partition. With partition 0 the lanes merge: decode moves to the prefill lane, but
 * only when no prefill step is in flight there, because such a step of thousands of tokens would
 * delay the next token. Until then that lane plans no prefill, and decode stays in its own lane. */
void
apply_partition(struct scheduler *s)
{
    bool together = s->next_partition == 0, change = together != s->lanes_merged,
         drained = s->prefill_draining;

    s->prefill_draining = change && together && any_decoding(s) && prompts_out(s);
    for (unsigned l = 0; l < s->l.n_lanes && (change || !together); l++) {
        unsigned own = s->l.lane_work[l];
        bool prompts = own & WORK_PREFILL;

        if (s->prefill_draining)
            own = prompts ? 0 : own;
        else if (together)
            own = prompts ? own | WORK_DECODE : own & ~WORK_DECODE;
        s->work[l] = (uint8_t)own;
    }
    if (s->prefill_draining) return;
    s->partition = s->next_partition;
    s->lanes_merged = together;
    if (change || drained)
        s->replan_lanes |= (1u << s->l.n_lanes) - 1; /* an idle lane may have work now */
}

void
scheduler_set_partition(struct scheduler *s, unsigned partition, uint32_t rows)
{
    s->step_tokens = rows;
    s->next_partition = partition;
    apply_partition(s);
}

/* A lane whose last plan was empty counts as without prefill and encoder work: lanes are planned in
 * rotation, so that plan is recent. Decode work is looked up: another lane's plan can create it. */
bool
lane_is_alone(const struct scheduler *s, unsigned lane)
{
    for (unsigned l = 0; l < s->l.n_lanes; l++) {
        if (l == lane) continue;
        if (s->planned[l] != s->done[l]) return false;
        if (s->work[l] & WORK_DECODE && any_decoding(s)) return false;
        if (s->work[l] & (WORK_PREFILL | WORK_ENCODER) && !s->found_no_work[l] &&
            s->n_in[SEQ_ENCODER] + s->n_in[SEQ_PREFILL] + s->waiting.n > 0)
            return false;
    }
    return true;
}

/* Returns how many sequences could decode at the same time, limited by slots and KV blocks. A
 * further sequence is assumed to need as many blocks as the present ones on average. */
static uint32_t
may_generate(const struct scheduler *s)
{
    uint64_t occupied = s->n_in[SEQ_PREFILL] + s->n_in[SEQ_DECODE];
    uint64_t n = MIN(occupied + s->waiting.n, (uint64_t)s->l.max_seqs);

    for (uint32_t p = 0; p < kv_n_pools(s->kv); p++) {
        struct kv_count c;

        kv_count(s->kv, p, &c);
        if (c.used) n = MIN(n, MAX(occupied * c.blocks / c.used, occupied));
    }
    return (uint32_t)n;
}

struct scheduler_load
scheduler_load(const struct scheduler *s, uint32_t most)
{
    struct scheduler_load x = { .n_generating = s->n_in[SEQ_DECODE], .n_there = may_generate(s) };
    const struct seq *q = s->n_in[SEQ_PREFILL] ? s->running.first : NULL;
    uint32_t slots = x.n_there - MIN(s->n_in[SEQ_PREFILL] + x.n_generating, x.n_there);

    for (; q && x.prompt_tokens < most; q = q->next)
        if (q->state == SEQ_PREFILL && !q->is_suspended && !seq_follows(q))
            x.prompt_tokens += MIN(q->n_prompt - q->n_planned, most - x.prompt_tokens);
    for (q = s->waiting.first; q && slots && x.prompt_tokens < most; q = q->next)
        if (!q->is_suspended) {
            x.prompt_tokens += MIN(q->n_source + q->n_prompt, most - x.prompt_tokens);
            slots--;
        }
    return x;
}
