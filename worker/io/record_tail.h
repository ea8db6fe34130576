/* record_tail.h - reads the tails (arrays behind the header) of a request ring record, with checks.
 *
 * Every tail starts at a multiple of 8 bytes from the record's start. No function copies: results
 * point into the record and are valid until the record is released. */
#pragma once
#include "base/base.h"
#include "base/err.h"

struct record_tail {
    const char *base, *p;
    size_t left;
    bool broken; /* a tail was longer than the `left` bytes of the record; is never cleared */
};

static inline struct record_tail
record_tail(const void *data, size_t n)
{
    return (struct record_tail){ .base = data, .p = data, .left = n };
}

/* Returns the next n bytes, without padding: for packed tails. NULL: the record is too short. */
static inline const void *
record_tail_take_packed(struct record_tail *t, size_t n)
{
    const void *at = t->p;

    if (n > t->left) {
        t->broken = true;
        return NULL;
    }
    t->p += n;
    t->left -= n;
    return at;
}

/* Returns the next tail of n bytes and skips its padding; NULL: the record is too short. */
static inline const void *
record_tail_take(struct record_tail *t, size_t n)
{
    const void *at = t->p;
    size_t padded = ROUND_UP(n, (size_t)8);

    if (n > t->left || padded > t->left) {
        t->broken = true;
        return NULL;
    }
    t->p += padded;
    t->left -= padded;
    return at;
}

/* Skips the padding after the last record_tail_take_packed() of a tail. */
static inline void
record_tail_align(struct record_tail *t)
{
    size_t pad = MIN((size_t)(-(t->p - t->base) & 7), t->left);

    t->p += pad;
    t->left -= pad;
}

/* Sets the error for a corrupt record and returns -EBADMSG, which ends the worker. */
static inline int
record_tail_corrupt(struct err *e, const char *what)
{
    return err_set(e, -EBADMSG, "request ring: invalid record from lagand: %s", what);
}
