/* text_buffer.h - bytes that grow: the text a step makes of another. Kept from one text to the next, so that
 * it grows for a longer one than any before and for nothing else. */
#ifndef TEXT_BUFFER_H
#define TEXT_BUFFER_H

#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct room {
    char *p;
    size_t n, cap;
};

/* A text of sane size is far below; what normalisers and replacements make of one is, too. */
static const size_t ROOM_MAX = 1u << 30;

/* Room for more bytes behind the n that are there. -ENOMEM. */
static inline int MUST_USE
room_more(struct room *r, size_t more)
{
    size_t cap = r->cap * 2 + 4096;
    char *p;

    if (more <= r->cap - r->n) return 0;
    if (more > ROOM_MAX || r->n + more > ROOM_MAX) return -ENOMEM;
    cap = cap > r->n + more ? cap : r->n + more;
    p = realloc(r->p, cap);
    if (!p) return -ENOMEM;
    r->p = p;
    r->cap = cap;
    return 0;
}

static inline int MUST_USE
text_buffer_put(struct room *r, const char *s, size_t n)
{
    TRY(room_more(r, n + 1)); /* so that an empty text is somewhere, too */
    memcpy(r->p + r->n, s, n);
    r->n += n;
    return 0;
}

static inline void
room_free(struct room *r)
{
    free(r->p);
    *r = (struct room){ 0 };
}

#endif
