/* cuda_candidates.h - which candidates of which ops may run: the option gpu_options.kernels. Pure.
 */
#ifndef CUDA_CUDA_CANDIDATES_H
#define CUDA_CUDA_CANDIDATES_H

#include "base/base.h"
#include "base/err.h"

/* What every candidate begins with; a list of them ends with a name of NULL. */
struct candidate {
    const char *name;
    uint32_t min_sm, max_sm; /* 90: compute capability 9.0. 0: any */
};

/* An op and its candidates, which lie stride bytes from each other. */
struct candidates {
    const char *op;
    const void *first;
    size_t stride;
};

/* allowed[i]: a bit for each candidate of table[i] that text allows on a card of that sm. NULL or
 * "": all. "attend=generic,matmul=blas,matmul=small": of the ops named only the candidates named,
 * of others all. An op or a candidate that is not there is -EINVAL and a sentence with those that
 * are; one that is not for this card -ENOTSUP. */
int cuda_candidates_parse(const char *text, const struct candidates *table, uint32_t n, uint32_t sm,
                          uint32_t *allowed, struct err *e) MUST_USE;

#endif
