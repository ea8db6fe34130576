/* admit.c - who may run, and whether there is room: see core.h.
 *
 * Two things are claimed, each in list order and whole or not at all. Rows of enc_state and a seat let
 * a source be encoded; KV blocks for the sequence's whole life let its decoder start. An encoder
 * claims no KV, so it is never held up by a decoder that waits for blocks.
 */
#include "worker/sched/core.h"

#include "include/lagan_wire.h"

#include <errno.h>
#include <string.h>

unsigned
runnable(const struct scheduler *s, const struct seq *q, unsigned lane, nsec now)
{
    unsigned work = 0;

    if (q->deadline <= now || q->halted) return 0;
    switch (q->state) {
    case SEQ_WAITING:
        work = q->n_source > 0 ? WORK_ENCODER : WORK_CONTEXT;
        break;
    case SEQ_ENCODER:
        work = WORK_ENCODER;
        break;
    case SEQ_CONTEXT: /* its last encoder slice is launched, in this lane before or waited for */
        work = WORK_CONTEXT;
        break;
    case SEQ_GENERATION:
        work = WORK_GENERATION;
        break;
    case SEQ_NEW:
    case SEQ_LAST:
    case SEQ_ENDED:
        break;
    }
    return work & s->l.lane_work[lane];
}

int
admission(const struct scheduler *s, const struct seq *q, struct kv_need *need, uint32_t *chunk,
          struct err *e)
{
    uint32_t len = q->n_prompt + q->max_new;

    /* A window keeps the chunk that is planned, and for a successor what is out: another chunk, and tokens
     * of the lane that generates. */
    *chunk = MIN(s->l.max_rows, q->n_prompt);
    *need = kv_need(s->kv, len, q->n_source, ROWS_OUT * (*chunk + 1) + UNTOLD_ROWS);
    if (kv_fits_alone(s->kv, need, len, q->n_source, NULL) == 0) return 0;
    *need = kv_need(s->kv, len, q->n_source, *chunk);
    if (kv_fits_alone(s->kv, need, len, q->n_source, NULL) == 0) return 0;
    *chunk = MIN(s->unit, *chunk); /* smaller ones need less */
    *need = kv_need(s->kv, len, q->n_source, *chunk);
    return kv_fits_alone(s->kv, need, len, q->n_source, e);
}

/* The seat that it has, or would get. SEAT_FULL: none. */
#define SEAT_FULL UINT32_MAX
static uint32_t
seat_for(const struct scheduler *s, const struct seq *q)
{
    if (q->state != SEQ_WAITING) return q->seat;
    if (s->n_free == 0 || s->running.n >= s->max_running) return SEAT_FULL;
    return s->free_seat[s->first_free];
}

static void
take_seat(struct scheduler *s, struct seq *q, uint32_t seat, enum seq_state to)
{
    s->first_free = (s->first_free + 1) % s->n_seats;
    s->n_free--;
    s->seat[seat] = (struct seat){ .seq = q };
    q->seat = seat;
    seq_remove(&s->waiting, q);
    seq_insert(&s->running, q);
    seq_move(q, to);
}

/* What is kept gives way: give_up_one(). */
static bool
no_room(struct scheduler *s)
{
    s->cramped = s->n_kept > 0;
    return false;
}

bool
admit_kv(struct scheduler *s, struct seq *q)
{
    uint32_t seat = seat_for(s, q), chunk;
    struct kv_need need;

    if (admission(s, q, &need, &chunk, NULL) < 0) return false;
    if (seat == SEAT_FULL || kv_reserve(s->kv, seat, &need) < 0) return no_room(s);
    if (q->state == SEQ_WAITING) take_seat(s, q, seat, SEQ_CONTEXT);
    s->seat[seat].reserved = true;
    s->seat[seat].chunk = chunk;
    return true;
}

/* What is left of an adopted prompt: most have one row of it, and from then on it is as if nothing had
 * happened. */
static struct kv_need
rest_need(const struct scheduler *s, const struct seq *q, uint32_t *chunk, bool for_successor)
{
    uint32_t rows = *chunk = MIN(s->l.max_rows, q->n_prompt - q->n_adopted);

    if (for_successor) rows = (rows > 1 ? ROWS_OUT * (rows + 1) : ROWS_OUT) + UNTOLD_ROWS;
    return kv_need(s->kv, q->n_prompt + q->max_new, q->n_source, rows);
}

bool
admit_adopted(struct scheduler *s, struct seq *q)
{
    uint32_t seat = q->adopted_seat, chunk;
    struct kv_need need = rest_need(s, q, &chunk, true), least = rest_need(s, q, &chunk, false);

    check(seat < s->n_seats && q->n_adopted < q->n_prompt);
    if (!s->seat[seat].kept || s->running.n >= s->max_running) return false;
    if (kv_resume(s->kv, seat, q->n_adopted, &need) < 0 &&
        kv_resume(s->kv, seat, q->n_adopted, &least) < 0)
        return false;
    s->n_kept--;
    s->seat[seat] = (struct seat){ .seq = q, .chunk = chunk, .reserved = true };
    q->seat = seat;
    q->n_planned = q->n_done = q->n_adopted;
    seq_insert(&s->running, q);
    seq_move(q, SEQ_CONTEXT);
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
    take_seat(s, q, seat, SEQ_ENCODER);
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
