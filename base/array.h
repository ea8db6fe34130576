/* array.h - arrays that grow while input is read. */
#pragma once

#include "base/base.h"

/* Ensures space for n elements of `each` bytes in the array whose pointer is at `array`, at least
 * doubling *cap when it grows. New elements are not initialised. -ENOMEM, without a change: no
 * memory, or n > most. */
static inline int MUST_USE
array_grow(void *array, uint32_t *cap, size_t n, uint32_t most, size_t each)
{
    size_t want = MIN(MAX(n, (size_t)*cap * 2), (size_t)most);
    void *p;

    if (n <= *cap) return 0;
    if (n > most) return -ENOMEM;
    memcpy(&p, array, sizeof p);
    p = realloc(p, want * each);
    if (!p) return -ENOMEM;
    memcpy(array, &p, sizeof p);
    *cap = (uint32_t)want;
    return 0;
}
