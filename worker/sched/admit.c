/* admit.c - who may run, and whether there is room: see core.h.
 *
 * Two things are claimed, each in list order and whole or not at all. Rows of enc_state and a seat let
 * a source be encoded; KV blocks for the sequence's whole life let its decoder start. An encoder
 * claims no KV, so it is never held up by a decoder that waits for blocks. max_utilization alone claims
 * what a prompt needs, and later a block at a time.
 */
#include "worker/sched/core.h"

#include <string.h>

bool
may_join(const struct scheduler *s)
{
    return !s->static_batch_closed;
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

void
occupy_slot(struct scheduler *s, struct seq *q, uint32_t seat, enum seq_state to)
{
    s->seat[seat] = (struct seat){ .seq = q };
    q->seat = seat;
    seq_insert(&s->running, q);
    move_seq(s, q, to);
    fair_queue_take(&s->turns, q->turn);
    take_pages(s, q);
    pass_over(s, q);
}

uint32_t
take_free_slot(struct scheduler *s)
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
    occupy_slot(s, q, take_free_slot(s), to);
    for (struct seq *m = q->next_member; m; m = m->next_member)
        occupy_slot(s, m, take_free_slot(s), SEQ_CONTEXT);
}

/* What is kept gives way, and who is halted: give_up_one(). */
static bool
no_room(struct scheduler *s)
{
    s->reclaim_wanted = s->n_kept > 0 || halted_one(s, /* pages= */ false);
    return false;
}

bool
has_seat(struct scheduler *s, const struct seq *q)
{
    return seat_for(s, q) != SEAT_FULL || no_room(s);
}

/* Where they occupy_slot, or will. */
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

bool
admit_kv(struct scheduler *s, struct seq *q)
{
    uint32_t seat = seat_for(s, q), len = admission_len(s, q);
    /* Of a family what is shared, and the token behind it. */
    struct kv_text t = text_of(q, q->first_member ? q->n_shared + 1 : q->n_prompt);
    bool encoded = q->state != SEQ_WAITING;
    const struct kv_text *text = s->reuse && !q->prompt_logprobs && !q->wants_states ? &t : NULL;
    struct kv_hit hit;
    struct admission way;
    struct kv_need n;

    if (admission(s, q, q->n_prompt, &way, NULL) < 0) return false;
    n = blocks_needed(s, q, len, way.rows);
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
    s->seat[seat].one_step_window = way.rows < rows_out(q, way.chunk);
    s->seat[seat].cross_kv_cached = hit.cross;
    s->seat[seat].making[0] = hit.next[0];
    s->seat[seat].making[1] = hit.next[1];
    s->seat[seat].making_at = hit.n_tokens;
    q->n_planned = q->n_done = hit.n_tokens;
    if (q->n_pauses == 0) q->n_cached = hit.n_tokens;
    return true;
}

/* While steps of its prompt are out a window keeps their rows, if it can: whoever takes the row
 * over begins before them. */
bool
pay_blocks(struct scheduler *s, struct seq *q, uint32_t end)
{
    struct seat *seat = &s->seat[q->seat];
    uint32_t len = ROUND_UP(end, kv_config(s->kv)->tokens_per_block);
    uint32_t chunk = q->n_done < q->n_prompt ? seat->chunk : 0;
    struct kv_need most, least;

    if (end <= seat->len) return true;
    len = MIN(len, q->n_prompt + q->max_new);
    most = blocks_needed(s, q, len, rows_out(q, chunk));
    least = blocks_needed(s, q, len, rows_out(q, 0));
    if (kv_raise(s->kv, q->seat, &most) < 0) {
        if (kv_raise(s->kv, q->seat, &least) < 0) return no_room(s);
        seat->one_step_window = true;
    }
    seat->len = len;
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
    s->seat[seat].has_enc_rows = true;
    q->enc_row = first;
    return true;
}
