/* failing_malloc.h - allocations that fail on demand, in files that are compiled with this header
 * in front of them (-include). */
#pragma once
#include <stdlib.h>

extern long failing_at; /* number of the allocation that fails, from 0; -1: none does */
extern long failing_n;  /* allocations so far */

void *failing_malloc(size_t n);
void *failing_calloc(size_t n, size_t each);
void *failing_realloc(void *p, size_t n);

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
