/* cuda_candidates.h - parses gpu_options.kernels: which candidates (kernels) of each op may run. No
 * device, no state. */
#pragma once
#include "base/base.h"
#include "base/err.h"

/* First member of the struct of every candidate. A list of candidates ends with a NULL name. */
struct candidate {
    const char *name;
    uint32_t min_sm, max_sm; /* compute capability * 10; 0: any */
};

/* An op and the list of its candidates, whose structs are stride bytes apart. */
struct candidates {
    const char *op;
    const void *first;
    size_t stride;
};

/* Sets bit j of allowed[i] for each candidate j of table[i] that text allows and that runs on
 * compute capability sm. NULL or "" allows all. "attend=generic,matmul=blas,matmul=small" allows
 * only the named candidates of the named ops, and all of other ops. -EINVAL: unknown op or
 * candidate; the message lists the known ones. -ENOTSUP: the candidate does not run on this GPU. */
int cuda_candidates_parse(const char *text, const struct candidates *table, uint32_t n, uint32_t sm,
                          uint32_t *allowed, struct err *e) MUST_USE;
