/* prefill.c - prompts: who starts, and how the rows that decoding leaves are shared among them: see sched_internal.h.
 *
 * Everybody is admitted before anybody starts: what one has found in the cache is then held when the blocks
 * of another are taken.
 */
#include "worker/sched/sched_internal.h"

#include "worker/kv/kv_state.h"

enum { FINE = 16 };

/* Its slot was adopted, and the device knows nothing of its row yet. */
static bool
is_adopted_unbegun(const struct step_plan *p, const struct seq *q)
{
    return q->n_adopted && !p->s->slot[q->slot].chunk_planned;
}

/* What it begins with fits into the edits that are left: one always does. */
static bool
may_begin(const struct step_plan *p, const struct seq *q, uint32_t *begins)
{
    uint32_t n = p->s->slot[q->slot].chunk_planned ? 0 : kv_n_held(p->s->kv, q->slot);

    if (forks_now(q)) n += fork_edits(p->s, q);
    if (n > *begins) return false;
    *begins -= n;
    return true;
}

/* The same of a search, and a row of each beam. */
static bool
may_resume(const struct step_plan *p, const struct seq *q, uint32_t *begins)
{
    uint32_t n = 0;

    if (!all_paid(p->s, q)) return false;
    for (const struct seq *m = q; m; m = m->next_member) n += kv_n_held(p->s->kv, m->slot);
    if (n > *begins || q->n_members > p->tokens_left) return false;
    *begins -= n;
    return true;
}

/* Streams that a death has interrupted want one row, like those that generate. */
void
plan_adopted(struct step_plan *p)
{
    uint32_t begins = p->begins;

    if (p->s->n_in[SEQ_PREFILL] == 0) return;
    for (struct seq *q = p->s->running.first; q && p->tokens_left > 0; q = q->next) {
        if (runnable(p->s, q, p->lane) != WORK_PREFILL || !is_adopted_unbegun(p, q)) continue;
        if (q->n_prompt - q->n_planned > 1) continue;
        if (goes_on_searching(q)) {
            if (q->first_member == q && may_resume(p, q, &begins)) resume_search(p, q);
        } else if (!q->beam && has_paid(p->s, q) && may_begin(p, q, &begins)) {
            add_run(p, q, WORK_PREFILL, 1);
        }
    }
}

static struct seq *
next_context(const struct step_plan *p, struct seq *q)
{
    while (q && runnable(p->s, q, p->lane) != WORK_PREFILL) q = q->next;
    return q;
}

/* Where q's next chunk ends at the latest. */
static uint32_t
last_end(const struct scheduler *s, const struct seq *q)
{
    return MIN(prompt_goal(q), kv_border(s->kv, q->n_planned, q->n_prompt));
}

/* Rows of q's next chunk beyond those it has: to its end, or as many as there is room for, in units; in parts of one where
 * a step's rows are counted, because 31 answers and 448 rows take as long as with 480. */
static uint32_t
chunk_rows(const struct scheduler *s, const struct seq *q, uint32_t have, uint32_t room)
{
    uint32_t from = q->n_planned + have, end, unit = s->unit;

    if (s->step_tokens && !s->unit_strict) unit = MIN(unit, (uint32_t)FINE);
    room = MIN(room, s->slot[q->slot].chunk - have);
    if (last_end(s, q) - from <= room) return last_end(s, q) - from;
    end = (from + room) / unit * unit;
    return end > from ? end - from : 0;
}

/* The same, but one unit: to where the next begins. */
static uint32_t
unit_rows(const struct scheduler *s, const struct seq *q, uint32_t have, uint32_t room)
{
    uint32_t from = q->n_planned + have, n = MIN(s->unit - from % s->unit, last_end(s, q) - from);

    return n <= MIN(room, s->slot[q->slot].chunk - have) ? n : 0;
}

/* Rows for those that have some, a unit each in turn, as long as there are any. */
static void
share_rows(const struct step_plan *p, uint32_t n, uint32_t rows)
{
    for (bool more = true; more && rows > 0;) {
        more = false;
        for (uint32_t i = 0; i < n; i++) {
            struct chunk *c = &p->s->chunk[i];
            uint32_t some = 0;

            if (!seq_follows(c->seq) && !rides_next(c->seq))
                some = unit_rows(p->s, c->seq, c->n_tokens, rows);

            c->n_tokens += some;
            rows -= some;
            more = more || some > 0;
        }
    }
}

/* Prompts that have not begun wait for company, beside somebody who generates. */
static bool
hold_back(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    nsec oldest = NSEC_NEVER;
    uint64_t rows = 0;

    if (s->l.prompt_batch == 0 || !decode_active(p)) return false;
    for (struct seq *q = next_context(p, s->waiting.first); q; q = next_context(p, q->next)) {
        rows += q->n_prompt;
        oldest = MIN(oldest, q->arrived);
    }
    if (rows == 0 || rows >= s->l.prompt_batch || p->now - oldest >= s->l.prompt_wait) return false;
    p->s->waited_for[p->lane] = oldest + s->l.prompt_wait;
    return true;
}

/* The first rows of a search are a row of each beam, in one step. 0: there is no room for that, or how many are
 * in s->chunk then. */
static uint32_t
fork_beams(const struct step_plan *p, struct seq *q, uint32_t n, uint32_t rows)
{
    if (q->n_members > (n ? rows : p->tokens_left)) return 0;
    for (struct seq *m = q; m; m = m->next_member) p->s->chunk[n++] = (struct chunk){ m, 1 };
    return n;
}

/* What is left of a step's rows beside streams: a unit at least. */
static uint32_t
rows_beside(const struct step_plan *p)
{
    const struct scheduler *s = p->s;
    uint32_t taken = s->l.max_tokens - p->tokens_left;

    return MAX(s->step_tokens - MIN(taken, s->step_tokens), s->unit);
}

/* Admit in list order for the rows that are left: into s->chunk, with what each takes. */
static uint32_t
gather_chunks(struct step_plan *p)
{
    struct scheduler *s = p->s;
    bool full = s->l.policy == POLICY_MAX_UTILIZATION; /* make_room() has seen to it */
    bool join = may_join(s) && !full && !hold_back(p), stopped = false;
    struct seq *running = s->n_in[SEQ_PREFILL] ? next_context(p, s->running.first) : NULL, *q;
    struct seq *waiting = join ? next_context(p, s->waiting.first) : NULL;
    uint32_t n = 0, rows = p->tokens_left, begins = p->begins, most = s->n_slots;

    if (!s->lanes_merged && s->l.lane_tokens[p->lane]) rows = MIN(rows, s->l.lane_tokens[p->lane]);
    if (!s->lanes_merged && s->l.lane_seqs[p->lane]) most = s->l.lane_seqs[p->lane];
    if (s->step_tokens && decode_active(p)) rows = MIN(rows, rows_beside(p));
    while (rows > 0 && n < most && (running || (waiting && !full))) {
        uint32_t some;

        if (running && (full || !waiting || seq_before(running, waiting))) {
            q = running;
            running = next_context(p, q->next);
            if (goes_on_searching(q)) continue; /* its turn is before all prompts */
            if (s->slot[q->slot].len == 0 && (full || !admit_kv(s, q))) {
                full = true; /* nobody overtakes who comes first and waits for KV, a slot */
                continue;
            }
            if (!has_paid(s, q) || must_come_first(s, q)) continue;
        } else {
            q = waiting;
            waiting = next_context(p, q->next);
            if (!may_take_pages(s, q) || prefix_in_flight(s, q)) continue;
            if (q->n_source > 0 && !find_cross(s, q)) continue;
            if (!has_slot(s, q)) {
                waiting = NULL; /* those who have one need not stop */
                continue;
            }
            if (!admit_kv(s, q)) {
                full = true;
                continue;
            }
        }
        if (rides_next(q) && !may_ride(s, q)) continue;
        if (s->l.chunks == CHUNK_POLICY_FCFS) {
            some = chunk_rows(s, q, 0, rows);
        } else {
            some = unit_rows(s, q, 0, rows);
        }
        /* Less room than a unit: the first prompt goes on all the same, unless units were asked for. */
        if (some == 0 && n == 0 && !(p->b->work & WORK_PREFILL) && !s->unit_strict)
            some = MIN(rows, s->slot[q->slot].chunk);
        /* Nor is it overtaken by who has not begun, for want of rows: shorter ones could come for ever. */
        if (!s->slot[q->slot].chunk_planned && (stopped || some == 0)) {
            stopped = true;
            continue;
        }
        if (some > 0 && rides_next(q)) {
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
        add_run(p, p->s->chunk[i].seq, WORK_PREFILL, p->s->chunk[i].n_tokens);
}

void
plan_static_batch(struct step_plan *p)
{
    struct scheduler *s = p->s;

    for (struct seq *q = next_context(p, s->waiting.first), *next; q; q = next) {
        next = next_context(p, q->next);
        if (!may_take_pages(s, q) || (q->n_source > 0 && !find_cross(s, q))) continue;
        if (!admit_kv(s, q)) return;
    }
}
