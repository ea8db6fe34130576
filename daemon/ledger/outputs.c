/* outputs.c - see outputs.h. */
#include "daemon/ledger/outputs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t
outputs_n_pieces(const struct request *r)
{
    return (uint32_t)(r->piece.n / sizeof(struct output_place));
}

static struct output_place *
places(const struct request *r)
{
    return (struct output_place *)(void *)r->piece.p;
}

/* Where piece i begins, in tokens and in text. */
static uint32_t
begin(const struct request *r, uint32_t i)
{
    return i ? places(r)[i - 1].end : 0;
}

static uint32_t
begin_text(const struct request *r, uint32_t i)
{
    return i ? places(r)[i - 1].end_text : 0;
}

struct output_piece
outputs_piece(const struct request *r, uint32_t i)
{
    const struct output_place *p = places(r) + i;

    return (struct output_piece){ p->output, p->end - begin(r, i), p->end_text - begin_text(r, i),
                                  r->out[p->output].score };
}

int
outputs_init(struct request *r)
{
    if (r->submit->n == 1) return 0;
    r->out = calloc(r->submit->n, sizeof *r->out);
    return r->out ? 0 : -ENOMEM;
}

void
outputs_done(struct request *r)
{
    free(r->out);
    r->out = NULL;
    bytes_done(&r->piece);
}

size_t
outputs_bytes(const struct request *r)
{
    return r->out ? r->piece.cap + r->submit->n * sizeof *r->out : 0;
}

int
outputs_add(struct request *r, const struct output_piece *p)
{
    uint32_t n = outputs_n_pieces(r);
    struct request_output *o = &r->out[p->output];
    struct output_place new = { p->output, 0, begin(r, n) + p->n, begin_text(r, n) + p->n_text };

    check(p->output < r->submit->n);
    new.first = o->n_said;
    if (n && places(r)[n - 1].output == p->output) {
        places(r)[n - 1].end = new.end;
        places(r)[n - 1].end_text = new.end_text;
    } else {
        TRY(bytes_add(&r->piece, &new, sizeof new));
    }
    o->n_said += p->n;
    o->n_text_said += p->n_text;
    o->score = p->score == p->score ? p->score : 0;
    return 0;
}

void
outputs_count(struct request *r, uint32_t output, uint32_t n, uint32_t n_text)
{
    r->out[output].n_said += n;
    r->out[output].n_text_said += n_text;
}

/* Past a piece that the client has, if another has begun; the last one may still grow. */
static void
step_over(const struct request *r, uint32_t *at, uint32_t *n, uint32_t *n_text)
{
    struct output_piece p = outputs_piece(r, *at);

    if (*at + 1 >= outputs_n_pieces(r) || *n < p.n || *n_text < p.n_text) return;
    ++*at;
    *n = *n_text = 0;
}

struct output_piece
outputs_next(const struct request *r)
{
    uint32_t at = r->piece_at, n = r->piece_n, n_text = r->piece_text;
    struct output_piece p = { 0 };

    if (!outputs_n_pieces(r)) return p;
    step_over(r, &at, &n, &n_text);
    p = outputs_piece(r, at);
    p.n -= n;
    p.n_text -= n_text;
    return p;
}

uint32_t
outputs_next_first(const struct request *r)
{
    uint32_t at = r->piece_at, n = r->piece_n, n_text = r->piece_text;

    if (!outputs_n_pieces(r)) return 0;
    step_over(r, &at, &n, &n_text);
    return places(r)[at].first + n;
}

void
outputs_delivered(struct request *r, uint32_t n, uint32_t n_text)
{
    struct output_piece p;

    step_over(r, &r->piece_at, &r->piece_n, &r->piece_text);
    p = outputs_piece(r, r->piece_at);
    r->piece_n += n;
    r->piece_text += n_text;
    check(r->piece_n <= p.n && r->piece_text <= p.n_text);
}

/* The piece in which a client is that has so much: the first that it does not have all of, or the last. Of that piece
 * *n and *n_text. */
static uint32_t
place_of(const struct request *r, uint32_t *n, uint32_t *n_text)
{
    const struct output_place *p = places(r);
    uint32_t from = 0, to = outputs_n_pieces(r) - 1;

    while (from < to) {
        uint32_t i = from + (to - from) / 2;

        if (*n >= p[i].end && *n_text >= p[i].end_text)
            from = i + 1;
        else
            to = i;
    }
    *n -= begin(r, from);
    *n_text -= begin_text(r, from);
    return from;
}

bool
outputs_can_resume(const struct request *r, uint32_t n, uint32_t n_text)
{
    struct output_piece p;

    if (!outputs_n_pieces(r)) return !n && !n_text;
    p = outputs_piece(r, place_of(r, &n, &n_text));
    return n <= p.n && n_text <= p.n_text;
}

void
outputs_resume(struct request *r, uint32_t n, uint32_t n_text)
{
    struct output_piece p;

    r->piece_at = r->piece_n = r->piece_text = 0;
    if (!outputs_n_pieces(r)) return;
    r->piece_at = place_of(r, &n, &n_text);
    r->piece_n = n;
    r->piece_text = n_text;
    p = outputs_piece(r, r->piece_at);
    check(n <= p.n && n_text <= p.n_text);
}

void
outputs_restart(struct request *r)
{
    for (uint32_t i = 0; r->out && i < r->submit->n; i++) r->out[i].reason = 0;
}

bool
outputs_all_ended(const struct request *r)
{
    for (uint32_t i = 0; i < r->submit->n; i++)
        if (!r->out[i].reason) return false;
    return true;
}

void
outputs_order(const struct request *r, uint32_t *order)
{
    for (uint32_t i = 0; i < r->submit->n; i++) {
        uint32_t at = i;

        for (; at > 0 && r->out[i].score > r->out[order[at - 1]].score; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

static uint32_t
padded(uint32_t n)
{
    return ROUND_UP(n, 8u);
}

uint32_t
outputs_record_bytes(const struct request *r)
{
    return r->out ? padded(request_n_tokens(r)) + padded(r->submit->n * 4) : 0;
}

void
outputs_record(const struct request *r, uint32_t i, uint8_t *to, uint32_t n)
{
    uint32_t scores = padded(request_n_tokens(r)), end = i + n;

    memset(to, 0, n);
    for (uint32_t k = 0; k < outputs_n_pieces(r) && begin(r, k) < end; k++) {
        uint32_t first = MAX(begin(r, k), i), last = MIN(places(r)[k].end, end);

        if (first < last) memset(to + (first - i), (int)places(r)[k].output, last - first);
    }
    for (uint32_t k = 0; k < r->submit->n; k++)
        for (uint32_t b = 0; b < 4; b++) {
            uint32_t here = scores + 4 * k + b;

            if (here >= i && here < end) to[here - i] = ((const uint8_t *)&r->out[k].score)[b];
        }
}
