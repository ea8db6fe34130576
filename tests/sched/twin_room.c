/* twin_room.c - who has a seat in the twin, what it may take, and who gives way: twin.h. */
#include "tests/sched/twin_core.h"

uint32_t
twin_seats(const struct twin *t)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++) n += t->req[i].seat;
    return n;
}

static uint32_t
size(const struct req *q)
{
    return q->first ? q->n_members : 1;
}

static bool
has_seat(const struct twin *t, const struct req *q)
{
    return twin_seats(t) + size(q) <= MIN(MIN(t->l.max_seqs, t->l.max_rows), t->c.n_seats);
}

static bool
has_pages(const struct twin *t, const struct req *q)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct req *r = &t->req[i];
        bool counted = !r->seat || !r->lora;

        if (r->seat && r->lora == q->lora) return true;
        for (uint32_t k = 0; k < i; k++)
            counted = counted || (t->req[k].seat && t->req[k].lora == r->lora);
        if (!counted) used += r->pages;
    }
    return !q->lora || used + q->pages <= t->l.pages;
}

/* It waits for that. */
static bool
lacks_pages(const struct twin *t, const struct req *q)
{
    return q->state == WAIT && !q->halted && !has_pages(t, q);
}

bool
twin_may_take_pages(struct twin *t, const struct req *q)
{
    if (!q->lora) return true;
    t->no_pages = t->no_pages || !has_pages(t, q);
    if (!has_pages(t, q)) return false;
    for (uint32_t i = 0; i < t->n_list && t->list[i] != q; i++)
        if (t->list[i]->passed >= MIN(MIN(t->l.max_seqs, t->l.max_rows), t->c.n_seats) &&
            lacks_pages(t, t->list[i]))
            return false;
    return true;
}

void
twin_sit(struct twin *t, struct req *q, enum state as)
{
    bool new = !q->seat;

    if (new) t->turn = MAX(t->turn, q->turn);
    for (uint32_t i = 1; i < size(q) && !q->seat; i++) {
        q[i].seat = true;
        q[i].state = CONTEXT;
    }
    q->seat = true;
    q->state = as;
    q->passed = 0;
    for (uint32_t i = 0; i < t->n_list && t->list[i] != q && q->lora && new; i++)
        t->list[i]->passed += lacks_pages(t, t->list[i]);
}

/* ---- blocks */

uint32_t
twin_entries(const struct twin *t, uint32_t n)
{
    return CEIL_DIV(n, t->c.tokens_per_block);
}

/* Whether one of its kin before it holds the block too. */
static bool
told_before(const struct twin *t, const struct req *r, uint32_t block)
{
    for (const struct req *k = r->kin; k != r; k++)
        for (uint32_t i = 0; k->len && k->kin == r->kin && k->forked && i < twin_entries(t, k->pos);
             i++)
            if (k->block[i] == block) return true;
    return false;
}

/* What it may still take on the way to len positions, and what it holds, each block once. */
static uint64_t
takes(const struct twin *t, const struct req *r, uint32_t len, bool cross)
{
    uint64_t n = twin_entries(t, cross ? r->source : len);

    if (cross) {
        for (const struct req *k = r->kin; k && k != r; k++)
            if (k->len && k->kin == r->kin) return 0;
        return n;
    }
    if (twin_follows(r)) return n - r->n_shared / t->c.tokens_per_block;
    for (uint32_t i = 0; r->kin && r->forked && i < twin_entries(t, r->pos); i++)
        n -= told_before(t, r, r->block[i]);
    return n;
}

/* Its blocks, for len positions instead of those it has, and its kin's, who wait for it. */
static bool
fits(const struct twin *t, const struct req *q, uint32_t len)
{
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        bool cross = t->c.group[g].kind == KV_CROSS;
        uint64_t n = takes(t, q, len, cross);

        if (q->first == q && !q->forked && !cross)
            n += (q->n_members - 1) * (n - q->n_shared / t->c.tokens_per_block);
        for (uint32_t i = 0; i < t->n; i++)
            if (&t->req[i] != q && t->req[i].len) n += takes(t, &t->req[i], t->req[i].len, cross);
        if (n > t->c.group[g].max_blocks) return false;
    }
    return true;
}

/* All that it will ever need, and its kin, with nobody else there. */
static bool
fits_alone(const struct twin *t, const struct req *q)
{
    for (uint32_t g = 0; g < t->c.n_groups; g++) {
        bool cross = t->c.group[g].kind == KV_CROSS;
        uint64_t n = twin_entries(t, cross ? q->source : q->prompt + q->max_new);

        if (q->first && !cross) n += (q->n_members - 1) * (n - q->n_shared / t->c.tokens_per_block);
        if (n > t->c.group[g].max_blocks) return false;
    }
    return true;
}

static bool
may_pause(const struct req *q)
{
    if (q->first) q = q->first;
    return q->state == GENERATE || (q->state == CONTEXT && (q->begun || q->forked) && !q->told);
}

/* The last in the list who stands still, keeps what others want, and could come back with what it has. */
static struct req *
halted_one(struct twin *t, bool pages)
{
    struct req *found = NULL;

    for (uint32_t i = 0; i < t->n; i++) {
        struct req *q = &t->req[i];
        bool out = q->in_flight > 0;

        for (uint32_t k = 0; q->first && k < q->n_members; k++)
            out = out || q->first[k].in_flight > 0;
        if (!q->seat || !q->halted || out || !may_pause(q) || (pages && !q->lora)) continue;
        if (found && twin_before(q, found)) continue;
        if (fits_alone(t, q)) found = q;
    }
    return found;
}

static bool
no_room(struct twin *t)
{
    t->cramped = halted_one(t, false) != NULL;
    return false;
}

bool
twin_may_sit(struct twin *t, const struct req *q)
{
    return has_seat(t, q) || no_room(t);
}

bool
twin_give_up_one(struct twin *t)
{
    struct req *q = t->cramped ? halted_one(t, false) : NULL;

    if (!q && t->no_pages) q = halted_one(t, true);
    t->no_pages = false;
    if (!q) return t->cramped = false;
    twin_pause_all(q);
    twin_sort(t);
    return true;
}

bool
twin_admit(struct twin *t, struct req *q)
{
    uint32_t len = q->prompt + (t->l.policy == POLICY_MAX_UTILIZATION ? 0 : q->max_new);

    if (q->state == WAIT && !has_seat(t, q)) return no_room(t);
    if (!fits(t, q, len)) return no_room(t);
    twin_sit(t, q, CONTEXT);
    for (uint32_t i = 0; i < size(q); i++) q[i].len = len;
    return true;
}

/* ---- who gives way */

static bool
pay(struct twin *t, struct req *q)
{
    uint32_t tokens = t->c.tokens_per_block, len;

    if (q->pos < q->len) return true;
    len = MIN(CEIL_DIV(q->pos + 1, tokens) * tokens, q->prompt + q->max_new);
    if (!fits(t, q, len)) return no_room(t);
    q->len = len;
    return true;
}

static bool
somebody_leaves(const struct twin *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->req[i].seat &&
            (t->req[i].state == LAST || t->req[i].state == PAUSED || t->req[i].state == GONE))
            return true;
    return false;
}

unsigned
twin_wants(const struct twin *t, const struct req *q, unsigned lane, nsec now)
{
    unsigned work = 0;

    if (q->halted || q->deadline <= now || twin_follows(q)) return 0;
    if (q->state == WAIT) work = q->source ? WORK_ENCODER : WORK_CONTEXT;
    if (q->state == ENCODE) work = WORK_ENCODER;
    if (q->state == CONTEXT) work = WORK_CONTEXT;
    if (q->state == GENERATE && q->out < q->max_new && !(q->beam && q->in_flight))
        work = WORK_GENERATION;
    return work & t->l.lane_work[lane];
}

static bool
room(struct twin *t, struct req *q, unsigned work, uint32_t *rows)
{
    uint32_t n = MIN(q->prompt - MIN(q->pos, q->prompt), *rows);

    if (q->halted) return true;
    if (q->state == GENERATE) return q->out == q->max_new || pay(t, q);
    if (q->state == WAIT && work && !twin_may_take_pages(t, q)) return false;
    if (work == WORK_ENCODER) return q->state != WAIT || twin_may_sit(t, q);
    if (work != WORK_CONTEXT || n == 0) return true;
    if (!q->len && !twin_admit(t, q)) return false;
    *rows -= n;
    return true;
}

bool
twin_make_room(struct twin *t, unsigned lane, nsec now)
{
    uint32_t rows = t->l.max_rows;
    const struct req *last = NULL; /* who was paused: the list ends there */
    bool paused = false, waiting = true;

    for (uint32_t i = 0; i < t->n_list; i++) {
        struct req *q = t->list[i];
        uint32_t v;

        if (last && !twin_before(q, last)) break;
        if (q->state == GONE || (!waiting && q->state == WAIT)) continue;
        while (!room(t, q, twin_wants(t, q, lane, now), &rows)) {
            bool no_seat = q->state == WAIT && !has_seat(t, q);

            if (q->state == WAIT && !twin_may_take_pages(t, q)) {
                waiting = false;
                break;
            }
            if (twin_give_up_one(t)) { /* from the beginning, of a list that may be longer now */
                paused = waiting = true;
                rows = t->l.max_rows;
                i = UINT32_MAX;
                break;
            }
            for (v = t->n_list; v-- > i;)
                if (t->list[v]->seat && may_pause(t->list[v])) break;
            if (v == UINT32_MAX || v < i || somebody_leaves(t)) {
                if (!no_seat) return paused;
                waiting = false;
                break;
            }
            last = t->list[v]->first ? t->list[v]->first : t->list[v];
            twin_pause_all(t->list[v]);
            if (!t->list[v]->seat) {
                paused = true;
                if (last == (q->first ? q->first : q)) return paused;
                continue;
            }
            if (!no_seat) return paused;
            waiting = false;
            break;
        }
    }
    return paused;
}
