/* route.h - the ops route and combine of gpu.h: choose experts for rows, add their results. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* At most 1,024 experts, 32 per row. Shares (routing weights) and sigmoids are fp32 with expf. The
 * order of pairs depends on the logits only, not on atomics. Cost: one pass over a row's logits for
 * each of its experts; then the thread block of every expert reads all choices twice. */
K_API k_route_kernel k_route;
/* x and y have one float dtype, any strides. Adds a row's results in fp32, best expert first, and
 * rounds once. */
K_API k_combine_kernel k_combine;
