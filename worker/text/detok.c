/* detok.c - implements detok.h: searches stop strings in the decoded text.
 *
 * Each byte of text is appended to `held`. If a stop string ends with this byte, it ends the text.
 * Otherwise bytes at the start of `held` that cannot begin a stop string any more are output. So
 * `held` is the longest suffix of the text that begins a stop string, across token boundaries. */
#include "worker/text/detok.h"

enum { STOP_MAX = 256 };

_Static_assert((int)DETOK_HELD > (int)STOP_MAX + 6, "held takes the longest stop and a character");

void
detok_init(struct detok *d, const struct tokenizer *t, bool keep_special)
{
    *d = (struct detok){ .t = t, .keep_special = keep_special };
}

int
detok_stop(struct detok *d, const char *s, uint32_t n)
{
    if (n == 0 || n > STOP_MAX || utf8_valid(s, n) < n) return -EINVAL;
    if (d->n_stop == DETOK_MAX_STOPS) return -ENOSPC;
    d->stop[d->n_stop] = s;
    d->stop_len[d->n_stop++] = n;
    return 0;
}

/* Returns 1 + index of the longest stop string at the end of held, or 0 if there is none. */
static uint32_t
find_stop(const struct detok *d)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < d->n_stop; i++) {
        uint32_t n = d->stop_len[i];

        if (n <= d->n_held && memcmp(d->held + d->n_held - n, d->stop[i], n) == 0 &&
            (!found || n > d->stop_len[found - 1]))
            found = i + 1;
    }
    return found;
}

/* Returns true if the bytes of held from `from` on are the beginning of a stop string. */
static bool
may_stop(const struct detok *d, uint32_t from)
{
    uint32_t n = d->n_held - from;

    for (uint32_t i = 0; i < d->n_stop; i++)
        if (n < d->stop_len[i] && memcmp(d->held + from, d->stop[i], n) == 0) return true;
    return false;
}

/* The output buffer of one detok_add() or detok_end(). */
struct ready {
    struct detok *d;
    char *buf;
    uint32_t len;
};

/* Appends text to held and moves bytes that cannot begin a stop string to the buffer. */
static void
pass(void *arg, const char *text, uint32_t n)
{
    struct ready *r = arg;
    struct detok *d = r->d;

    for (uint32_t i = 0; i < n && !d->stopped; i++) {
        uint32_t out = 0;

        d->held[d->n_held++] = text[i];
        d->stopped = find_stop(d);
        if (d->stopped)
            out = d->n_held - d->stop_len[d->stopped - 1];
        else
            while (out < d->n_held && !may_stop(d, out)) out++;
        memcpy(r->buf + r->len, d->held, out);
        r->len += out;
        d->n_held = d->stopped ? 0 : d->n_held - out;
        memmove(d->held, d->held + out, d->n_held);
    }
}

int
detok_add(struct detok *d, token_id id, char *buf, size_t cap, bool *stopped)
{
    struct ready r = { d, buf, 0 };

    if (cap < DETOK_HELD + 3 * (size_t)tokenizer_longest(d->t)) return -EMSGSIZE;
    if (!d->stopped && chat_shows(&d->reply, d->t, id))
        tokenizer_decode_add(d->t, &d->text, id, d->keep_special, pass, &r);
    *stopped = d->stopped;
    return (int)r.len;
}

int
detok_end(struct detok *d, char *buf, size_t cap)
{
    struct ready r = { d, buf, 0 };

    if (cap < DETOK_HELD) return -EMSGSIZE;
    if (d->stopped) return 0;
    tokenizer_decode_end(d->t, &d->text, pass, &r);
    memcpy(buf + r.len, d->held, d->n_held);
    r.len += d->n_held;
    d->n_held = 0;
    return (int)r.len;
}
