/* step_build.c - adds the rows of one sequence to the step that is being planned.
 *
 * Writes the run, its tokens and positions, and the table edits and copies of its blocks. plan.c,
 * context.c and encoder.c decide which sequences ride, and with how many rows.
 */
#include "worker/sched/core.h"

#include "worker/kv/kv_beam.h"
#include "worker/kv/kv_state.h"

void
put_in_step(struct step_plan *p, struct seq *q)
{
    if (must_wait(p, q)) p->out.wait[q->lane] = MAX(p->out.wait[q->lane], q->lane_step);
    q->in_flight++;
    q->lane = (uint8_t)p->lane;
    q->lane_step = p->b->step;
}

static void
fork_members(struct step_plan *p, struct seq *first)
{
    struct scheduler *s = p->s;
    uint32_t done = seen_from(first);
    struct seq *next;

    if (first->lane_step > s->done[first->lane])
        kv_fence(s->kv, first->seat, first->lane, first->lane_step);
    p->begins -= fork_edits(s, first);
    first->n_same = first->n_shared;
    for (struct seq *m = first; m; m = next) {
        next = m->next_member;
        m->has_forked = true;
        if (!m->beam) m->first_member = m->next_member = NULL;
        if (m == first) continue;
        kv_fork(s->kv, p->lane, p->b->step, first->seat, m->seat, first->n_shared, done, &p->out);
        s->seat[m->seat].len = s->seat[first->seat].len;
        s->seat[m->seat].chunk = s->seat[first->seat].chunk;
        s->seat[m->seat].one_step_window = s->seat[first->seat].one_step_window;
        m->n_planned = m->n_done = first->n_shared;
        m->n_cached = first->n_cached;
        m->lane = m->fork_lane = (uint8_t)p->lane;
        m->lane_step = m->fork_step = p->b->step;
    }
}

static void
set_quiet(const struct step_plan *p, const struct seq *q, uint32_t end)
{
    struct seat *seat = &p->s->seat[q->seat];

    kv_quiet(p->s->kv, q->seat, &seat->quiet_end, &seat->quiet_first);
    seat->quiet_end = MIN(seat->quiet_end, kv_border(p->s->kv, end, q->n_prompt) - 1);
    seat->near_end = seat->reserve_lowered ? seat->quiet_end - MIN(seat->quiet_end, 1u) : 0;
    seat->near_first = seat->quiet_first - MIN(seat->quiet_first, 1u);
}

/* Blocks for positions up to end, less those that no query from done on sees. */
static void
change_blocks(struct step_plan *p, const struct seq *q, uint32_t end, uint32_t done)
{
    struct seat *seat = &p->s->seat[q->seat];
    struct kv *kv = p->s->kv;

    if (q->lane_step > p->s->done[q->lane]) kv_fence(kv, q->seat, q->lane, q->lane_step);
    if (done >= seat->quiet_first) kv_trim(kv, q->seat, done, &p->out);
    if (q->n_done >= q->n_prompt &&
        !seat->reserve_lowered) { /* a row a step is out, now and for ever */
        struct kv_need need = kv_need(kv, seat->len, q->n_source, rows_out(q, 0));

        kv_lower(kv, q->seat, &need);
        seat->reserve_lowered = true;
    }
    if (end > seat->quiet_end) {
        uint32_t border = kv_border(kv, q->n_planned, q->n_prompt);

        if (!kv_room(kv, q->seat, end)) kv_trim(kv, q->seat, q->n_planned - q->n_guess, &p->out);
        kv_grow(kv, p->lane, q->seat, end, &p->out);
        check(end <= border);
        if (end == border) kv_snapshot(kv, p->lane, q->seat, end, &p->out);
    }
    set_quiet(p, q, end);
}

/* scheduler_plan() asks for it before the next step's walk. */
static void
note_soon(struct scheduler *s, uint32_t seat, bool go)
{
    check(s->n_soon < 2 * s->n_seats);
    s->soon[s->n_soon++] = (struct kv_soon){ seat, go };
}

/* What its row of the next step needs, or this one. */
static COLD void
near_border(struct step_plan *p, const struct seq *q, uint32_t end, uint32_t done)
{
    struct seat *seat = &p->s->seat[q->seat];

    if (end > seat->quiet_end || done >= seat->quiet_first ||
        (!seat->reserve_lowered && q->n_done >= q->n_prompt))
        change_blocks(p, q, end, done);
    if (end == seat->quiet_end) note_soon(p->s, q->seat, /* go= */ false);
    if (done + 1 == seat->quiet_first) note_soon(p->s, q->seat, /* go= */ true);
}

/* Its rows of logits see of its run what it says there; those of others nothing but what is
 * before them. */
static void
add_masks(struct step_plan *p, struct batch_run *r)
{
    bool tree = false;

    for (uint32_t i = 1; i <= r->n_draft; i++) tree = tree || p->s->depth[i] != i;
    for (uint32_t i = r->first_logit; i < p->b->n_logits; i++)
        p->b->mask[i] = tree ? p->s->sees[i - r->first_logit] : 0;
    if (tree) r->flags |= RUN_MASK;
    p->b->n_masks |= tree;
}

/* The first rows of it: the device is told what its seat holds, and where its source's states
 * are. */
static COLD void
begin_seat(struct step_plan *p, struct seq *q, struct batch_run *r)
{
    struct seat *seat = &p->s->seat[q->seat];
    /* What it begins with, it has forked. */
    bool member = q->has_forked && q->first_member != q && !q->n_adopted;

    r->flags |= RUN_FIRST_CHUNK;
    seat->chunk_planned = true;
    if (!member) {
        p->begins -= kv_n_held(p->s->kv, q->seat);
        kv_start(p->s->kv, p->lane, p->b->step, q->seat, &p->out);
    }
    if (q->n_source > 0 && !q->n_adopted && !member && !seat->cross_kv_cached) {
        r->enc_row = q->enc_row;
        r->enc_rows = q->n_source;
        kv_cross(p->s->kv, p->lane, q->seat, q->n_source, &p->out);
    }
}

/* A token is known, or is on the device. */
static void
put_rows(const struct step_plan *p, const struct seq *q, const struct batch_run *r)
{
    uint32_t first = q->n_planned, known = q->plan_after_commit ? q->n_tokens : q->n_prompt, i = 0;
    token_id *token = &p->b->token[r->first_row];
    int32_t *pos = &p->b->pos[r->first_row];

    for (; i < r->n_rows && first + i < known; i++) {
        token[i] = q->token[first + i];
        pos[i] = (int32_t)(first + i);
    }
    for (; i < r->n_rows; i++) {
        token[i] = TOKEN_GUESS(i);
        pos[i] = (int32_t)(first + (r->n_draft ? p->s->depth[i] : i));
    }
}

void
add_run(struct step_plan *p, struct seq *q, unsigned work, uint32_t n_rows)
{
    struct batch *b = p->b;
    uint32_t end = q->n_planned + n_rows, n_logits = 0;
    struct batch_run *r = &b->run[b->n_runs++];
    const struct seat *seat = &p->s->seat[q->seat];
    uint32_t done = seen_from(q);

    *r = (struct batch_run){
        .seat = q->seat,
        .first_row = b->n_rows,
        .n_rows = n_rows,
        .first_pos = (int32_t)q->n_planned,
        .work = (uint8_t)work,
        .flags = q->n_guess ? RUN_BEHIND_GUESSES : 0,
        .n_draft = (uint16_t)(work == WORK_GENERATION ? n_rows - 1 : 0),
        .first_logit = b->n_logits,
        .cross_tokens = q->n_source,
    };
    if (!seat->chunk_planned) begin_seat(p, q, r);
    if (q->first_member && forks_now(q)) fork_members(p, q);
    if (end >= q->n_prompt) {
        r->flags |= q->beam ? RUN_SAMPLE | RUN_BEAM : RUN_SAMPLE;
        n_logits = 1u + r->n_draft;
    }
    if (work == WORK_CONTEXT && q->prompt_logprobs) {
        r->flags |= RUN_PROMPT_LOGPROBS;
        n_logits = n_rows;
    }
    b->n_logits += n_logits;
    if (p->s->drafts_branch) add_masks(p, r);
    if (end > seat->near_end || done >= seat->near_first) near_border(p, q, end, done);
    put_in_step(p, q);
    put_rows(p, q, r);
    q->n_planned = end;
    b->n_rows += n_rows;
    b->work |= (uint8_t)work;
    p->rows_left -= n_rows;
    if (!(r->flags & RUN_SAMPLE)) return;
    q->n_out += 1u + r->n_draft;
    q->n_guess += r->n_draft;
    p->s->static_batch_closed = p->s->l.policy == POLICY_STATIC;
    if (q->n_out == q->max_new && q->n_guess == 0) {
        move_seq(p->s, q, SEQ_LAST);
    } else if (q->state == SEQ_CONTEXT) {
        move_seq(p->s, q, SEQ_GENERATION);
    }
}

bool
decode_active(const struct step_plan *p)
{
    if (p->b->work & WORK_GENERATION) return true;
    for (const struct seq *q = p->s->running.first; q; q = q->next)
        if (q->state == SEQ_GENERATION && !q->is_suspended) return true;
    return false;
}
