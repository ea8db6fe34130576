/* pieces.c - see pieces.h. */
#include "daemon/pieces.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t
n_pieces(const struct row *r)
{
    return (uint32_t)(r->piece.n / sizeof(struct row_piece));
}

static struct row_piece *
pieces(const struct row *r)
{
    return (struct row_piece *)(void *)r->piece.p;
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
    uint32_t n = n_pieces(r);
    struct row_piece *last = n ? pieces(r) + n - 1 : NULL;
    bool same = last && last->output == p->output;

    check(p->output < r->submit->n);
    if (!same) TRY(bytes_add(&r->piece, p, sizeof *p));
    if (same) last->n += p->n;
    if (same) last->n_text += p->n_text;
    if (same) last->score = p->score;
    r->out[p->output].n_said += p->n;
    r->out[p->output].n_text_said += p->n_text;
    r->out[p->output].score = p->score == p->score ? p->score : 0;
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
    const struct row_piece *p = pieces(r) + *at;

    if (*at + 1 >= n_pieces(r) || *n < p->n || *n_text < p->n_text) return;
    ++*at;
    *n = *n_text = 0;
}

struct row_piece
pieces_next(const struct row *r)
{
    uint32_t at = r->piece_at, n = r->piece_n, n_text = r->piece_text;
    struct row_piece p = { 0 };

    if (!n_pieces(r)) return p;
    step_over(r, &at, &n, &n_text);
    p = pieces(r)[at];
    p.n -= n;
    p.n_text -= n_text;
    return p;
}

void
pieces_sent(struct row *r, uint32_t n, uint32_t n_text)
{
    const struct row_piece *p;

    step_over(r, &r->piece_at, &r->piece_n, &r->piece_text);
    p = pieces(r) + r->piece_at;
    r->out[p->output].n_sent += n;
    r->piece_n += n;
    r->piece_text += n_text;
    check(r->piece_n <= p->n && r->piece_text <= p->n_text);
}

/* The piece in which a client is that has so much, and of that piece *n and *n_text; out, if it is not NULL, is told what
 * each output has said up to there. There may be a hundred thousand: one look at each. */
static uint32_t
place_of(const struct row *r, uint32_t *n, uint32_t *n_text, struct row_output *out)
{
    const struct row_piece *p = pieces(r);
    uint32_t i = 0, last = n_pieces(r) - 1;

    for (; i < last && *n >= p[i].n && *n_text >= p[i].n_text; i++) {
        *n -= p[i].n;
        *n_text -= p[i].n_text;
        if (out) out[p[i].output].n_sent += p[i].n;
    }
    if (out) out[p[i].output].n_sent += *n;
    return i;
}

bool
pieces_may_resume(const struct row *r, uint32_t n, uint32_t n_text)
{
    const struct row_piece *p;

    if (!n_pieces(r)) return !n && !n_text;
    p = pieces(r) + place_of(r, &n, &n_text, NULL);
    return n <= p->n && n_text <= p->n_text;
}

void
pieces_resume(struct row *r, uint32_t n, uint32_t n_text)
{
    r->piece_at = r->piece_n = r->piece_text = 0;
    for (uint32_t i = 0; i < r->submit->n; i++) r->out[i].n_sent = 0;
    if (!n_pieces(r)) return;
    r->piece_at = place_of(r, &n, &n_text, r->out);
    r->piece_n = n;
    r->piece_text = n_text;
    check(n <= pieces(r)[r->piece_at].n && n_text <= pieces(r)[r->piece_at].n_text);
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
    uint32_t scores = padded(row_n_tokens(r)), end = i + n, at = 0;

    memset(to, 0, n);
    for (uint32_t k = 0; k < n_pieces(r); k++) {
        uint32_t first = MAX(at, i), last = MIN(at + pieces(r)[k].n, end);

        if (first < last) memset(to + (first - i), (int)pieces(r)[k].output, last - first);
        at += pieces(r)[k].n;
    }
    for (uint32_t k = 0; k < r->submit->n; k++)
        for (uint32_t b = 0; b < 4; b++) {
            uint32_t here = scores + 4 * k + b;

            if (here >= i && here < end) to[here - i] = ((const uint8_t *)&r->out[k].score)[b];
        }
}
