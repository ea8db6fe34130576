/* route.h - route and combine of gpu.h: rows to experts and back. */
#pragma once

#include "gpu/cuda/kernels/base/kernel.h"

/* At most 1,024 experts, 32 per row. Shares and sigmoids are fp32 with expf. Order depends on the
 * logits only: no atomics. Cost: for each of a row's experts one pass over the logits, in
 * registers; then the block of every expert reads all choices twice. */
K_API k_route_kernel k_route;
/* x and y of one float dtype, any strides; sums in fp32, in the order of a row's shares, rounded
 * once. */
K_API k_combine_kernel k_combine;
