/* text_buffer.h - a growing, reused byte buffer for the text that one tokenizer step makes. */
#pragma once
#include "base/array.h"

struct text_buffer {
    char *p;
    size_t n;
    uint32_t cap;
};

enum { TEXT_BUFFER_MAX = 1 << 30 }; /* bytes; texts and their normalised forms are far smaller */

/* Ensures capacity for `more` bytes behind the n bytes of the text. -ENOMEM. */
static inline int MUST_USE
text_buffer_grow(struct text_buffer *r, size_t more)
{
    return more > TEXT_BUFFER_MAX ? -ENOMEM
                                  : array_grow(&r->p, &r->cap, r->n + more, TEXT_BUFFER_MAX, 1);
}

static inline int MUST_USE
text_buffer_put(struct text_buffer *r, const char *s, size_t n)
{
    TRY(text_buffer_grow(r, n + 1)); /* + 1, so that an empty text has an address too */
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
