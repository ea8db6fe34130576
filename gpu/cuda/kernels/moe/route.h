/* route.h - rows to their experts and back: route and combine of gpu.h. */
#ifndef KERNELS_MOE_ROUTE_H
#define KERNELS_MOE_ROUTE_H

#include "gpu/cuda/kernels/base/kernel.h"

/* At most 1,024 experts, 32 of them a row. Shares and sigmoids are fp32 with expf. Places and order
 * follow from the logits alone: no atomics. Cost: a pass over the logits for each of a row's
 * experts, in registers; then every expert's block reads who chose what, twice. */
K_API cudaError_t k_route(const struct k_launch *l, const struct route *r);
/* x and y of one float dtype, any strides; sums in fp32, in the order of a row's shares, rounded
 * once. */
K_API cudaError_t k_combine(const struct k_launch *l, struct tensor y, struct tensor x,
                            const struct pairs *p);

#endif
