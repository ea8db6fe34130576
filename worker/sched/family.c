/* family.c - sequences of one request that begin alike: beams, samples: see seq.h, core.h.
 *
 *     admitted    seats and blocks for all of them, or for none
 *     prompt      the first member computes what they share: up to n_shared
 *     fork        when the first goes on from there: the others hold what it holds
 *     after it    samples are each for itself. Beams ride together, one step at a time, and before each step their
 *                 rows of the tables are turned as the search has decided
 *     paused      all of them, back to the beginning; beams with what they have by then as prompts, of which they
 *                 share what is alike. Each computes the rest of its own but for the last row: that rides
 */
#include "worker/sched/core.h"

#include "include/lagan_wire.h"
#include "worker/kv/kv_beam.h"

#include <errno.h>

uint32_t
family_size(const struct seq *q)
{
    return q->first_member ? q->n_members : 1;
}

struct kv_need
member_need(const struct scheduler *s, const struct seq *first, uint32_t len, uint32_t rows)
{
    return kv_fork_need(s->kv, len, first->n_shared, rows);
}

/* Where they sit, or will. */
static uint32_t
member_seat(const struct scheduler *s, const struct seq *first, const struct seq *m, uint32_t i)
{
    uint32_t at = first->n_adopted ? i - 1 : i; /* the first has a seat of its own then */

    return first->state == SEQ_WAITING ? s->free_seat[(s->first_free + at) % s->n_seats] : m->seat;
}

bool
reserve_members(struct scheduler *s, struct seq *first, uint32_t len, const struct admission *way)
{
    struct kv_need n = member_need(s, first, len, way->rows);
    uint32_t i = 1;

    for (struct seq *m = first->next_member; m; m = m->next_member, i++) {
        if (kv_reserve(s->kv, member_seat(s, first, m, i), &n) == 0) continue;
        i = 1;
        for (struct seq *k = first->next_member; k != m; k = k->next_member)
            kv_drop(s->kv, member_seat(s, first, k, i++));
        return false;
    }
    return true;
}

/* Entries that the others will be told of when they fork. */
uint32_t
fork_edits(const struct scheduler *s, const struct seq *q)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t n = 0;

    if (q->first_member != q || q->forked) return 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        n += CEIL_DIV(c->group[g].kind == KV_CROSS ? q->n_source : q->n_shared,
                      c->tokens_per_block);
    return n * (q->n_members - 1);
}

uint32_t
family_edits(const struct scheduler_limits *l)
{
    return MIN(max_running(l), (uint32_t)MAX_BEAMS);
}

static void
leave_behind(struct scheduler *s, struct seq *q)
{
    if (q->n_adopted) scheduler_unkeep(s, q->adopted_seat);
    q->n_adopted = 0;
}

/* A sample that had forked is a family's no more. */
static bool
goes_on_alone(struct scheduler *s, struct seq *q)
{
    q->first_member = NULL;
    q->forked = true;
    if (admit_adopted(s, q)) return true;
    q->forked = false;
    return false;
}

/* Samples that had forked go on alone; those who are left, with the first of them first. */
static struct seq *
part(struct scheduler *s, struct seq *first)
{
    struct seq *left = NULL, **last = &left, *next;
    uint32_t n_shared = first->n_shared, n = 0;

    for (struct seq *m = first; m; m = next) {
        bool had_forked = !m->beam && m->n_adopted > n_shared;

        next = m->next_member;
        m->next_member = NULL;
        m->n_members = 0;
        if (had_forked && goes_on_alone(s, m)) continue;
        if (had_forked || m != first) leave_behind(s, m);
        *last = m;
        last = &m->next_member;
        n++;
    }
    for (struct seq *m = left; m; m = m->next_member) m->first_member = n > 1 ? left : NULL;
    if (!left) return NULL;
    left->n_members = n > 1 ? n : 0;
    left->n_shared = n_shared;
    return left;
}

bool
goes_on_searching(const struct seq *q)
{
    return q->beam && q->forked && q->n_adopted > 0;
}

int
adopt_family(struct scheduler *s, struct seq **ret)
{
    struct seq *first = *ret;

    if (first->beam && first->next_member->n_adopted) {
        if (admit_search(s, first)) {
            first->n_shared = n_alike(first);
            *ret = NULL;
            return 0;
        }
        for (struct seq *m = first; m; m = m->next_member) leave_behind(s, m);
        return -EAGAIN;
    }
    *ret = first = part(s, first);
    if (!first) return 0;
    move(s, first, SEQ_WAITING);
    if (!first->n_adopted) return 0;
    if (first->first_member) first->n_adopted = MIN(first->n_adopted, first->n_shared);
    if (admit_adopted(s, first)) {
        *ret = NULL;
    } else {
        leave_behind(s, first);
    }
    return 0;
}

/* Who goes on from whom is settled once more, on what their predecessor may have begun to do of it; what they hold
 * then is told when they start. */
void
resume_search(struct plan *p, struct seq *first)
{
    uint32_t seat[MAX_BEAMS], n = 0, n_edits;

    for (const struct seq *m = first; m; m = m->next_member) {
        kv_trim(p->s->kv, m->seat, m->n_planned, &p->out);
        seat[n++] = m->seat;
    }
    n_edits = p->out.n_edits;
    kv_reorder(p->s->kv, p->lane, p->b->step, seat, first->beam->parent, n, first->n_planned,
               &p->out);
    p->out.n_edits = n_edits;
    first->n_same = first->beam->first + first->beam->n_settled;
    for (struct seq *m = first; m; m = m->next_member) add_run(p, m, WORK_CONTEXT, 1);
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

uint32_t
prompt_goal(const struct seq *q)
{
    bool shared = q->first_member == q && !q->forked && q->n_planned < q->n_shared;

    if (shared) return q->n_shared;
    return q->beam && !rides_next(q) ? q->n_prompt - 1 : q->n_prompt;
}

bool
may_ride(const struct scheduler *s, const struct seq *q)
{
    bool all = q->first_member == q;

    for (const struct seq *m = q; m; m = m->next_member)
        all = all && (!m->forked || (rides_next(m) && !must_come_first(s, m)));
    return all;
}

void
fork_members(struct plan *p, struct seq *first)
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
        m->forked = true;
        if (!m->beam) m->first_member = m->next_member = NULL;
        if (m == first) continue;
        kv_fork(s->kv, p->lane, p->b->step, first->seat, m->seat, first->n_shared, done, &p->out);
        s->seat[m->seat].len = s->seat[first->seat].len;
        s->seat[m->seat].chunk = s->seat[first->seat].chunk;
        s->seat[m->seat].thin = s->seat[first->seat].thin;
        m->n_planned = m->n_done = first->n_shared;
        m->n_cached = first->n_cached;
        m->lane = m->fork_lane = (uint8_t)p->lane;
        m->lane_step = m->fork_step = p->b->step;
    }
}

/* Entries in which beams may differ, in all their rows. */
static uint32_t
turn_edits(const struct scheduler *s, const struct seq *q)
{
    const struct kv_config *c = kv_config(s->kv);
    uint32_t alike = MIN(q->n_same, q->n_planned), n = 0;

    for (uint32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].kind != KV_CROSS)
            n += q->n_planned / c->tokens_per_block - alike / c->tokens_per_block + 1;
    return n * q->beam->n_beams;
}

bool
may_turn(struct plan *p, const struct seq *q)
{
    uint32_t n = turn_edits(p->s, q);

    if (n > p->begins) return false;
    p->begins -= n;
    return true;
}

void
turn_beams(struct plan *p, struct seq *q)
{
    const struct beam *b = q->beam;
    uint32_t seat[MAX_BEAMS], n = 0, before;
    bool moved = false;

    for (const struct seq *m = q; m; m = m->next_member) {
        kv_trim(p->s->kv, m->seat, m->n_planned, &p->out);
        moved = moved || b->parent[n] != n;
        seat[n++] = m->seat;
    }
    before = p->out.n_edits;
    if (moved) kv_reorder(p->s->kv, p->lane, p->b->step, seat, b->parent, n, q->n_planned, &p->out);
    check(p->out.n_edits - before <= turn_edits(p->s, q)); /* as may_turn() said */
    /* What each has computed again after a pause is its own, also where it is alike. */
    if (q->n_pauses == 0) q->n_same = b->first + b->n_settled;
}

void
commit_beams(struct scheduler *s, struct seq *first, const struct batch_run *run,
             const struct batch_result *r)
{
    struct beam_list list[MAX_BEAMS];
    struct beam *b = first->beam;
    uint32_t n = 0;

    for (struct seq *m = first; m; m = m->next_member, n++, run++) {
        uint32_t at = r->first_top[run->first_logit];

        check(run->seat == m->seat && n < b->n_beams);
        list[n] = (struct beam_list){ r->top + at, r->first_top[run->first_logit + 1] - at };
    }
    check(n == b->n_beams);
    beam_step(b, list);
    for (struct seq *m = first; m; m = m->next_member) m->n_tokens++;
    if (b->over) end_seq(s, first, beam_result(b, 0).reason);
}
