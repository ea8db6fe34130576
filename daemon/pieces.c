/* pieces.c - see pieces.h. */
#include "daemon/pieces.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t
pieces_n(const struct row *r)
{
    return (uint32_t)(r->piece.n / sizeof(struct row_place));
}

static struct row_place *
places(const struct row *r)
{
    return (struct row_place *)(void *)r->piece.p;
}

/* Where piece i begins, in tokens and in text. */
static uint32_t
begin(const struct row *r, uint32_t i)
{
    return i ? places(r)[i - 1].end : 0;
}

static uint32_t
begin_text(const struct row *r, uint32_t i)
{
    return i ? places(r)[i - 1].end_text : 0;
}

struct row_piece
pieces_at(const struct row *r, uint32_t i)
{
    const struct row_place *p = places(r) + i;

    return (struct row_piece){ p->output, p->end - begin(r, i), p->end_text - begin_text(r, i),
                               r->out[p->output].score };
}

int
pieces_begin(struct row *r)
{
    if (r->submit->n == 1) return 0;
    r->out = calloc(r->submit->n, sizeof *r->out);
    return r->out ? 0 : -ENOMEM;
}

void
pieces_done(struct row *r)
{
    free(r->out);
    r->out = NULL;
    bytes_done(&r->piece);
}

size_t
pieces_bytes(const struct row *r)
{
    return r->out ? r->piece.cap + r->submit->n * sizeof *r->out : 0;
}

int
pieces_add(struct row *r, const struct row_piece *p)
{
    uint32_t n = pieces_n(r);
    struct row_output *o = &r->out[p->output];
    struct row_place new = { p->output, 0, begin(r, n) + p->n, begin_text(r, n) + p->n_text };

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
pieces_missed(struct row *r, uint32_t output, uint32_t n, uint32_t n_text)
{
    r->out[output].n_said += n;
    r->out[output].n_text_said += n_text;
}

/* Past a piece that the client has, if another has begun; the last one may still grow. */
static void
step_over(const struct row *r, uint32_t *at, uint32_t *n, uint32_t *n_text)
{
    struct row_piece p = pieces_at(r, *at);

    if (*at + 1 >= pieces_n(r) || *n < p.n || *n_text < p.n_text) return;
    ++*at;
    *n = *n_text = 0;
}

struct row_piece
pieces_next(const struct row *r)
{
    uint32_t at = r->piece_at, n = r->piece_n, n_text = r->piece_text;
    struct row_piece p = { 0 };

    if (!pieces_n(r)) return p;
    step_over(r, &at, &n, &n_text);
    p = pieces_at(r, at);
    p.n -= n;
    p.n_text -= n_text;
    return p;
}

uint32_t
pieces_next_first(const struct row *r)
{
    uint32_t at = r->piece_at, n = r->piece_n, n_text = r->piece_text;

    if (!pieces_n(r)) return 0;
    step_over(r, &at, &n, &n_text);
    return places(r)[at].first + n;
}

void
pieces_sent(struct row *r, uint32_t n, uint32_t n_text)
{
    struct row_piece p;

    step_over(r, &r->piece_at, &r->piece_n, &r->piece_text);
    p = pieces_at(r, r->piece_at);
    r->piece_n += n;
    r->piece_text += n_text;
    check(r->piece_n <= p.n && r->piece_text <= p.n_text);
}

/* The piece in which a client is that has so much: the first that it does not have all of, or the last. Of that piece
 * *n and *n_text. */
static uint32_t
place_of(const struct row *r, uint32_t *n, uint32_t *n_text)
{
    const struct row_place *p = places(r);
    uint32_t from = 0, to = pieces_n(r) - 1;

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
pieces_may_resume(const struct row *r, uint32_t n, uint32_t n_text)
{
    struct row_piece p;

    if (!pieces_n(r)) return !n && !n_text;
    p = pieces_at(r, place_of(r, &n, &n_text));
    return n <= p.n && n_text <= p.n_text;
}

void
pieces_resume(struct row *r, uint32_t n, uint32_t n_text)
{
    struct row_piece p;

    r->piece_at = r->piece_n = r->piece_text = 0;
    if (!pieces_n(r)) return;
    r->piece_at = place_of(r, &n, &n_text);
    r->piece_n = n;
    r->piece_text = n_text;
    p = pieces_at(r, r->piece_at);
    check(n <= p.n && n_text <= p.n_text);
}

void
pieces_again(struct row *r)
{
    for (uint32_t i = 0; r->out && i < r->submit->n; i++) r->out[i].reason = 0;
}

bool
pieces_over(const struct row *r)
{
    for (uint32_t i = 0; i < r->submit->n; i++)
        if (!r->out[i].reason) return false;
    return true;
}

void
pieces_order(const struct row *r, uint32_t *order)
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
pieces_record_bytes(const struct row *r)
{
    return r->out ? padded(row_n_tokens(r)) + padded(r->submit->n * 4) : 0;
}

void
pieces_record(const struct row *r, uint32_t i, uint8_t *to, uint32_t n)
{
    uint32_t scores = padded(row_n_tokens(r)), end = i + n;

    memset(to, 0, n);
    for (uint32_t k = 0; k < pieces_n(r) && begin(r, k) < end; k++) {
        uint32_t first = MAX(begin(r, k), i), last = MIN(places(r)[k].end, end);

        if (first < last) memset(to + (first - i), (int)places(r)[k].output, last - first);
    }
    for (uint32_t k = 0; k < r->submit->n; k++)
        for (uint32_t b = 0; b < 4; b++) {
            uint32_t here = scores + 4 * k + b;

            if (here >= i && here < end) to[here - i] = ((const uint8_t *)&r->out[k].score)[b];
        }
}
