/* array.h - array_grow(): makes space for more elements in a dynamic array. */
#pragma once
#include "base/base.h"

/* Grows an array, if necessary, to a capacity of at least n elements of `each` bytes. array:
 * address of the pointer to the array; *cap: its capacity in elements, which at least doubles. New
 * elements are not initialised. -ENOMEM: no memory, or n > most; the array is unchanged. */
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
