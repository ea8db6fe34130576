/* prefill.c - plans the prompts of a step: admits them and divides the step's tokens between them.
 *
 * All sequences of a step are admitted before the first one is added to it, so that the blocks of
 * one sequence's cache hit are referenced before another sequence takes blocks.
 */
#include "worker/sched/sched_internal.h"

enum { FINE = 16 };

/* True if the table edits of q's first step (or fork) fit *begins; subtracts them. They always fit
 * for the first q of a step. */
static bool
may_begin(const struct step_plan *p, const struct seq *q, uint32_t *begins)
{
    uint32_t n = p->s->slot[q->slot].chunk_planned ? 0 : kv_n_held(p->s->kv, q->slot);

    if (forks_now(q)) n += fork_edits(p->s, q);
    if (n > *begins) return false;
    *begins -= n;
    return true;
}

/* As may_begin(), for an adopted search of first beam q, with one token of each beam. */
static bool
may_resume(const struct step_plan *p, const struct seq *q, uint32_t *begins)
{
    uint32_t n = 0;

    if (!have_blocks_for_next(p->s, q)) return false;
    for (const struct seq *m = q; m; m = m->next_member) n += kv_n_held(p->s->kv, m->slot);
    if (n > *begins || q->n_members > p->tokens_left) return false;
    *begins -= n;
    return true;
}

/* Plans adopted sequences with one prompt token left, before other prompts: output has begun. */
void
plan_adopted(struct step_plan *p)
{
    uint32_t begins = p->begins;

    if (p->s->n_in[SEQ_PREFILL] == 0) return;
    for (struct seq *q = p->s->running.first; q && p->tokens_left > 0; q = q->next) {
        if (runnable(p->s, q, p->lane) != WORK_PREFILL) continue;
        if (!q->n_adopted || p->s->slot[q->slot].chunk_planned) continue;
        if (q->n_prompt - q->n_planned > 1) continue;
        if (is_resumed_beam(q)) {
            if (q->first_member == q && may_resume(p, q, &begins)) resume_search(p, q);
        } else if (!q->beam && has_block_for_next(p->s, q) && may_begin(p, q, &begins)) {
            add_segment(p, q, WORK_PREFILL, 1);
        }
    }
}

static struct seq *
next_prompt(const struct step_plan *p, struct seq *q)
{
    while (q && runnable(p->s, q, p->lane) != WORK_PREFILL) q = q->next;
    return q;
}

/* Returns the position at which q's next chunk must end at the latest. */
static uint32_t
last_end(const struct scheduler *s, const struct seq *q)
{
    return MIN(prompt_goal(q), next_snapshot(s, q, q->n_planned));
}

/* Returns how many tokens to add to q's next chunk, which has `have` tokens: up to its latest end,
 * or as many units as fit `budget`. If step_tokens limits the step, a unit is at most FINE tokens:
 * matrix products of 31 decode tokens take as long with 448 as with 480 prompt tokens. */
static uint32_t
chunk_rows(const struct scheduler *s, const struct seq *q, uint32_t have, uint32_t budget)
{
    uint32_t from = q->n_planned + have, end, unit = s->unit;

    if (s->step_tokens && !s->unit_strict) unit = MIN(unit, (uint32_t)FINE);
    budget = MIN(budget, s->slot[q->slot].chunk - have);
    if (last_end(s, q) - from <= budget) return last_end(s, q) - from;
    end = (from + budget) / unit * unit;
    return end > from ? end - from : 0;
}

/* As chunk_rows(), but at most up to the next multiple of one unit. */
static uint32_t
unit_rows(const struct scheduler *s, const struct seq *q, uint32_t have, uint32_t budget)
{
    uint32_t from = q->n_planned + have, n = MIN(s->unit - from % s->unit, last_end(s, q) - from);

    return n <= MIN(budget, s->slot[q->slot].chunk - have) ? n : 0;
}

/* Adds units to the n chunks of the step in rotation until no token is left. */
static void
share_rows(const struct step_plan *p, uint32_t n, uint32_t rows)
{
    for (bool more = true; more && rows > 0;) {
        more = false;
        for (uint32_t i = 0; i < n; i++) {
            struct chunk *c = &p->s->chunk[i];
            uint32_t some = 0;

            if (!seq_follows(c->seq) && !is_last_prompt_token(c->seq))
                some = unit_rows(p->s, c->seq, c->n_tokens, rows);
            c->n_tokens += some;
            rows -= some;
            more = more || some > 0;
        }
    }
}

/* True if new prompts must wait now, to be batched with others, while sequences decode. */
static bool
hold_back(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    nsec oldest = NSEC_NEVER;
    uint64_t rows = 0;

    if (s->l.prefill_batch_tokens == 0 || !decode_active(p)) return false;
    for (struct seq *q = next_prompt(p, s->waiting.first); q; q = next_prompt(p, q->next)) {
        rows += q->n_prompt;
        oldest = MIN(oldest, q->arrived);
    }
    if (rows == 0 || rows >= s->l.prefill_batch_tokens || p->now - oldest >= s->l.prompt_wait)
        return false;
    p->s->waited_for[p->lane] = oldest + s->l.prompt_wait;
    return true;
}

/* Adds the last prompt token of every beam of q's search to the n chunks in s->chunk. Returns the
 * new number of chunks; 0: too few tokens are left. */
static uint32_t
fork_beams(const struct step_plan *p, struct seq *q, uint32_t n, uint32_t rows)
{
    if (q->n_members > (n ? rows : p->tokens_left)) return 0;
    for (struct seq *m = q; m; m = m->next_member) p->s->chunk[n++] = (struct chunk){ m, 1 };
    return n;
}

/* Returns the prompt tokens, at least one unit, that s->step_tokens leaves beside decode. */
static uint32_t
rows_beside(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    uint32_t taken = s->l.max_tokens - p->tokens_left;

    return MAX(s->step_tokens - MIN(taken, s->step_tokens), s->unit);
}

/* Divides the remaining tokens between running prompts and waiting ones, which it admits, in list
 * order. Fills s->chunk; returns its length. */
static uint32_t
gather_chunks(struct step_plan *p)
{
    struct scheduler *s = p->s;
    bool full = s->l.policy == POLICY_MAX_UTILIZATION; /* reserve_steps() has admitted already */
    bool join = !s->static_batch_closed && !full && !hold_back(p), stopped = false;
    struct seq *running = s->n_in[SEQ_PREFILL] ? next_prompt(p, s->running.first) : NULL, *q;
    struct seq *waiting = join ? next_prompt(p, s->waiting.first) : NULL;
    uint32_t n = 0, rows = p->tokens_left, begins = p->begins, most = s->n_slots;

    if (!s->lanes_merged && s->l.lane_tokens[p->lane]) rows = MIN(rows, s->l.lane_tokens[p->lane]);
    if (!s->lanes_merged && s->l.lane_seqs[p->lane]) most = s->l.lane_seqs[p->lane];
    if (s->step_tokens && decode_active(p)) rows = MIN(rows, rows_beside(p));
    while (rows > 0 && n < most && (running || (waiting && !full))) {
        uint32_t some;

        if (running && (full || !waiting || seq_before(running, waiting))) {
            q = running;
            running = next_prompt(p, q->next);
            if (is_resumed_beam(q)) continue; /* plan_adopted() plans this beam */
            if (s->slot[q->slot].len == 0 && (full || !admit_kv(s, q))) {
                full = true; /* a sequence that waits for blocks is not overtaken */
                continue;
            }
            if (!has_block_for_next(s, q) || window_is_full(s, q)) continue;
        } else {
            q = waiting;
            waiting = next_prompt(p, q->next);
            if (!may_take_pages(s, q) || prefix_in_flight(s, q)) continue;
            if (q->n_source > 0 && !find_cross(s, q)) continue;
            if (!has_slot(s, q)) {
                waiting = NULL; /* sequences with a slot continue */
                continue;
            }
            if (!admit_kv(s, q)) {
                full = true;
                continue;
            }
        }
        if (is_last_prompt_token(q) && !beams_ready(s, q)) continue;
        some = s->l.chunks == CHUNK_POLICY_FCFS ? chunk_rows(s, q, 0, rows)
                                                : unit_rows(s, q, 0, rows);
        /* the first prompt gets even less than one unit, unless chunk_unit is configured */
        if (some == 0 && n == 0 && !(p->b->work & WORK_PREFILL) && !s->unit_strict)
            some = MIN(rows, s->slot[q->slot].chunk);
        /* If too few tokens are left for a chunk of this prompt, no prompt after it in the list is
         * started: otherwise shorter prompts could overtake it without limit. */
        if (!s->slot[q->slot].chunk_planned && (stopped || some == 0)) {
            stopped = true;
            continue;
        }
        if (some > 0 && is_last_prompt_token(q)) {
            uint32_t all = may_begin(p, q, &begins) ? fork_beams(p, q, n, rows) : 0;

            if (!all) continue;
            rows -= MIN(rows, all - n);
            n = all;
            continue;
        }
        if (some == 0 || !may_begin(p, q, &begins)) continue;
        s->chunk[n++] = (struct chunk){ q, some };
        rows -= some;
    }
    if (s->l.chunks == CHUNK_POLICY_EQUAL_PROGRESS) share_rows(p, n, rows);
    return n;
}

void
plan_prefill(struct step_plan *p)
{
    uint32_t n = gather_chunks(p);

    for (uint32_t i = 0; i < n; i++)
        add_segment(p, p->s->chunk[i].seq, WORK_PREFILL, p->s->chunk[i].n_tokens);
}

void
plan_static_batch(struct step_plan *p)
{
    struct scheduler *s = p->s;

    for (struct seq *q = next_prompt(p, s->waiting.first), *next; q; q = next) {
        next = next_prompt(p, q->next);
        if (!may_take_pages(s, q) || (q->n_source > 0 && !find_cross(s, q))) continue;
        if (!admit_kv(s, q)) return;
    }
}
