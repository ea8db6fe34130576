/* failing_malloc.c - see failing_malloc.h. */
#include "tests/gateway/failing_malloc.h"

#include <stdbool.h>

#undef malloc
#undef calloc
#undef realloc

long failing_at = -1, failing_n;

static bool
fails(void)
{
    return failing_n++ == failing_at;
}

void *
failing_malloc(size_t n)
{
    return fails() ? NULL : malloc(n);
}

void *
failing_calloc(size_t n, size_t each)
{
    return fails() ? NULL : calloc(n, each);
}

void *
failing_realloc(void *p, size_t n)
{
    return fails() ? NULL : realloc(p, n);
}
