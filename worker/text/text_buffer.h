/* text_buffer.h - a growing byte buffer for the text of one processing step; it is reused and never
 * shrinks. */
#pragma once

#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct text_buffer {
    char *p;
    size_t n, cap;
};

/* Limit in bytes; texts and their normalised forms are far smaller. */
static const size_t TEXT_BUFFER_MAX = 1u << 30;

/* Ensures capacity for `more` bytes behind the n present ones. -ENOMEM. */
static inline int MUST_USE
text_buffer_grow(struct text_buffer *r, size_t more)
{
    size_t cap = r->cap * 2 + 4096;
    char *p;

    if (more <= r->cap - r->n) return 0;
    if (more > TEXT_BUFFER_MAX || r->n + more > TEXT_BUFFER_MAX) return -ENOMEM;
    cap = cap > r->n + more ? cap : r->n + more;
    p = realloc(r->p, cap);
    if (!p) return -ENOMEM;
    r->p = p;
    r->cap = cap;
    return 0;
}

static inline int MUST_USE
text_buffer_put(struct text_buffer *r, const char *s, size_t n)
{
    TRY(text_buffer_grow(r, n + 1)); /* so that an empty text has an address too */
    memcpy(r->p + r->n, s, n);
    r->n += n;
    return 0;
}

static inline void
text_buffer_free(struct text_buffer *r)
{
    free(r->p);
    *r = (struct text_buffer){ 0 };
}
