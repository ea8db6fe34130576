/* cuda_candidates.h - parses gpu_options.kernels: which candidates of each op may run. Pure. */
#pragma once

#include "base/base.h"
#include "base/err.h"

/* First members of every candidate. A list ends with a NULL name. */
struct candidate {
    const char *name;
    uint32_t min_sm, max_sm; /* compute capability * 10; 0: any */
};

/* An op and its candidates, stride bytes apart. */
struct candidates {
    const char *op;
    const void *first;
    size_t stride;
};

/* Sets allowed[i] to one bit per candidate of table[i] that text allows on compute capability sm.
 * NULL or "": all. "attend=generic,matmul=blas,matmul=small": named ops have only the named
 * candidates, other ops all. -EINVAL: unknown op or candidate; the message lists the known ones.
 * -ENOTSUP: the candidate does not run on this GPU. */
int cuda_candidates_parse(const char *text, const struct candidates *table, uint32_t n, uint32_t sm,
                          uint32_t *allowed, struct err *e) MUST_USE;
