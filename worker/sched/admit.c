/* admit.c - who may run, and whether there is room: see core.h.
 *
 * Two things are claimed, each in list order and whole or not at all. Rows of enc_state and a seat let
 * a source be encoded; KV blocks for the sequence's whole life let its decoder start. An encoder
 * claims no KV, so it is never held up by a decoder that waits for blocks. max_utilization alone claims
 * what a prompt needs, and later a block at a time.
 */
#include "worker/sched/core.h"

#include "include/lagan_wire.h"

#include <errno.h>
#include <string.h>

uint32_t
rows_out(const struct seq *q, uint32_t chunk)
{
    return STEPS_OUT * (MAX(chunk, q->n_draft) + 1) + rows_untold(q);
}

/* The one answer to "how many blocks". */
static struct kv_need
need(const struct scheduler *s, const struct seq *q, uint32_t len, uint32_t rows)
{
    return kv_need(s->kv, len, q->n_source, rows);
}

int
admission(const struct scheduler *s, const struct seq *q, uint32_t n_prompt, struct admission *ret,
          struct err *e)
{
    uint32_t most = s->l.max_chunk ? MIN(s->l.max_chunk, s->l.max_rows) : s->l.max_rows;
    uint32_t len = q->n_prompt + q->max_new, chunk = MIN(most, n_prompt);
    /* A window keeps the chunk that is planned, and for a successor what is out: another chunk, and tokens
     * of the lane that generates. Smaller ones need less. */
    uint32_t unit = MIN(s->unit, chunk), least = q->n_draft ? rows_out(q, 0) : 0;
    const struct admission way[] = { { chunk, rows_out(q, chunk) },
                                     { chunk, MAX(chunk, least) },
                                     { unit, MAX(unit, least) } };
    int r = -EMSGSIZE;

    for (size_t i = 0; i < ARRAY_LEN(way) && r < 0; i++) {
        struct kv_need n = need(s, q, len, way[i].rows);

        if (q->first_member) {
            struct kv_need each = member_need(s, q, len, way[i].rows);

            for (uint32_t g = 0; g < kv_config(s->kv)->n_groups; g++)
                n.n_blocks[g] += (q->n_members - 1) * each.n_blocks[g];
        }
        *ret = way[i];
        r = kv_fits_alone(s->kv, &n, len, q->n_source, i + 1 < ARRAY_LEN(way) ? NULL : e);
    }
    return r;
}

bool
may_join(const struct scheduler *s)
{
    return !s->closed;
}

/* Positions it must have blocks for before it starts. */
static uint32_t
first_len(const struct scheduler *s, const struct seq *q)
{
    return q->n_prompt + (s->l.policy == POLICY_MAX_UTILIZATION ? 0 : q->max_new);
}

/* The seat that it has, or would get. SEAT_FULL: none. */
#define SEAT_FULL UINT32_MAX
static uint32_t
seat_for(const struct scheduler *s, const struct seq *q)
{
    if (q->state != SEQ_WAITING) return q->seat;
    if (s->n_free < family_size(q) || s->running.n + family_size(q) > s->max_running)
        return SEAT_FULL;
    return s->free_seat[s->first_free];
}

static void
sit(struct scheduler *s, struct seq *q, uint32_t seat, enum seq_state to)
{
    s->seat[seat] = (struct seat){ .seq = q };
    q->seat = seat;
    seq_insert(&s->running, q);
    move(s, q, to);
    fair_queue_take(&s->turns, q->turn);
    take_pages(s, q);
    pass_over(s, q);
}

static uint32_t
next_seat(struct scheduler *s)
{
    uint32_t seat = s->free_seat[s->first_free];

    s->first_free = (s->first_free + 1) % s->n_seats;
    s->n_free--;
    return seat;
}

/* With those behind it, who wait for it there. */
static void
take_seat(struct scheduler *s, struct seq *q, enum seq_state to)
{
    seq_remove(&s->waiting, q);
    sit(s, q, next_seat(s), to);
    for (struct seq *m = q->next_member; m; m = m->next_member)
        sit(s, m, next_seat(s), SEQ_CONTEXT);
}

/* What is kept gives way, and who is halted: give_up_one(). */
static bool
no_room(struct scheduler *s)
{
    s->cramped = s->n_kept > 0 || halted_one(s, /* pages= */ false);
    return false;
}

bool
has_seat(struct scheduler *s, const struct seq *q)
{
    return seat_for(s, q) != SEAT_FULL || no_room(s);
}

bool
admit_kv(struct scheduler *s, struct seq *q)
{
    uint32_t seat = seat_for(s, q), len = first_len(s, q);
    /* Of a family what is shared, and the token behind it. */
    struct kv_text t = text_of(q, q->first_member ? q->n_shared + 1 : q->n_prompt);
    bool encoded = q->state != SEQ_WAITING;
    const struct kv_text *text = s->reuse && !q->prompt_logprobs && !q->wants_states ? &t : NULL;
    struct kv_hit hit;
    struct admission way;
    struct kv_need n;

    if (admission(s, q, q->n_prompt, &way, NULL) < 0) return false;
    n = need(s, q, len, way.rows);
    if (seat == SEAT_FULL) return no_room(s);
    t.needs_cross = q->n_source > 0 && !encoded;
    while (true) {
        if (kv_admit(s->kv, seat, &n, text, &hit) < 0) return no_room(s);
        if (!q->first_member || reserve_members(s, q, len, &way)) break;
        kv_drop(s->kv, seat);
        if (!text || t.needs_cross) return no_room(s);
        text = NULL; /* what was found holds blocks beside those that they need */
    }
    if (!encoded) take_seat(s, q, SEQ_CONTEXT);
    s->seat[seat].len = len;
    s->seat[seat].chunk = way.chunk;
    s->seat[seat].thin = way.rows < rows_out(q, way.chunk);
    s->seat[seat].crossed = hit.cross;
    s->seat[seat].making[0] = hit.next[0];
    s->seat[seat].making[1] = hit.next[1];
    s->seat[seat].making_at = hit.n_tokens;
    q->n_planned = q->n_done = hit.n_tokens;
    if (q->n_pauses == 0) q->n_cached = hit.n_tokens;
    return true;
}

/* While steps of its prompt are out a window keeps their rows, if it can: whoever takes the row over begins before them. */
bool
pay(struct scheduler *s, struct seq *q, uint32_t end)
{
    struct seat *seat = &s->seat[q->seat];
    uint32_t len = ROUND_UP(end, kv_config(s->kv)->tokens_per_block);
    uint32_t chunk = q->n_done < q->n_prompt ? seat->chunk : 0;
    struct kv_need most, least;

    if (end <= seat->len) return true;
    len = MIN(len, q->n_prompt + q->max_new);
    most = need(s, q, len, rows_out(q, chunk));
    least = need(s, q, len, rows_out(q, 0));
    if (kv_raise(s->kv, q->seat, &most) < 0) {
        if (kv_raise(s->kv, q->seat, &least) < 0) return no_room(s);
        seat->thin = true;
    }
    seat->len = len;
    return true;
}

/* Positions that a row which was taken over has blocks for before it goes on: who wants one row pays for it like whoever
 * generates, for what the block behind the last needs may be what somebody else has to give. */
static uint32_t
adopted_len(const struct scheduler *s, const struct seq *q)
{
    bool steps = s->l.policy == POLICY_MAX_UTILIZATION && q->n_prompt == q->n_adopted + 1;

    return steps ? q->n_adopted : first_len(s, q);
}

/* In ways that keep less and less of a window: of a sequence that began in chunks of a unit its successor has no more
 * room. Most have one row left, and from then on it is as if nothing had happened. */
bool
admit_adopted(struct scheduler *s, struct seq *q)
{
    uint32_t seat = q->adopted_seat, rows = MIN(s->l.max_rows, q->n_prompt - q->n_adopted);
    uint32_t len = q->first_member ? first_len(s, q) : adopted_len(s, q);
    uint32_t unit = MIN(s->unit, rows), i = 0;
    uint32_t least = q->n_draft ? rows_out(q, 0) : 0;
    const struct admission way[] = { { rows, rows_out(q, rows > 1 ? rows : 0) },
                                     { rows, MAX(rows, least) },
                                     { unit, MAX(unit, least) } };

    check(seat < s->n_seats && q->n_adopted < q->n_prompt);
    if (!s->seat[seat].kept || s->running.n + family_size(q) > s->max_running) return false;
    if (s->n_free + 1 < family_size(q) || !has_pages(s, q)) return false;
    for (;; i++) {
        struct kv_need n;

        if (i == ARRAY_LEN(way)) return false; /* the seat is given up */
        n = need(s, q, len, way[i].rows);
        kv_lower(s->kv, seat, &n);
        if (kv_resume(s->kv, seat, q->n_adopted, &n) < 0) continue;
        if (!q->first_member || reserve_members(s, q, len, &way[i])) break;
    }
    s->n_kept--;
    sit(s, q, seat, SEQ_CONTEXT);
    for (struct seq *m = q->next_member; m; m = m->next_member)
        sit(s, m, next_seat(s), SEQ_CONTEXT);
    s->seat[seat].chunk = way[i].chunk;
    s->seat[seat].thin = i > 0;
    s->seat[seat].len = len;
    q->n_planned = q->n_done = q->n_adopted;
    return true;
}

bool
admit_search(struct scheduler *s, struct seq *first)
{
    uint32_t len = adopted_len(s, first), n = 0;
    struct kv_need each = need(s, first, len, rows_out(first, 0));

    if (s->running.n + first->n_members > s->max_running) return false;
    for (struct seq *m = first; m; m = m->next_member) {
        if (!s->seat[m->adopted_seat].kept) return false;
        if (kv_resume(s->kv, m->adopted_seat, m->n_adopted, &each) < 0) return false;
    }
    for (struct seq *m = first; m; m = m->next_member, n++) {
        s->n_kept--;
        sit(s, m, m->adopted_seat, SEQ_CONTEXT);
        s->seat[m->seat].chunk = 1;
        s->seat[m->seat].len = len;
        m->n_planned = m->n_done = m->n_adopted;
        m->forked = true;
    }
    return true;
}

bool
admit_enc(struct scheduler *s, struct seq *q)
{
    uint32_t seat = seat_for(s, q), first = 0, i;

    if (seat == SEAT_FULL) return no_room(s);
    for (i = 0; i < s->n_enc && s->enc[i].first - first < q->n_source; i++)
        first = s->enc[i].first + s->enc[i].n;
    if (i == s->n_enc && s->l.max_enc_rows - first < q->n_source) return false;
    memmove(&s->enc[i + 1], &s->enc[i], (s->n_enc - i) * sizeof s->enc[0]);
    s->enc[i] = (struct enc_rows){ .first = first, .n = q->n_source, .seat = seat };
    s->n_enc++;
    take_seat(s, q, SEQ_ENCODER);
    s->seat[seat].encoded = true;
    q->enc_row = first;
    return true;
}

void
free_enc_rows(struct scheduler *s, uint32_t seat)
{
    uint32_t i = 0;

    if (!s->seat[seat].encoded) return;
    while (s->enc[i].seat != seat) i++;
    memmove(&s->enc[i], &s->enc[i + 1], (s->n_enc - i - 1) * sizeof s->enc[0]);
    s->n_enc--;
    s->seat[seat].encoded = false;
}
