/* norm.h - rms_norm, and residual: the residual stream's add and norms in one pass; see gpu.h.
 *
 *   x, in, y    [n, d] fp32, bf16 or fp16 each (residual: x fp32), any strides; y may be x
 *   weights     [d] fp32, bf16 or fp16
 *
 * Statistics and arithmetic in fp32, rounded where a value is stored; what residual adds to x (`in`
 * + in_bias, or the norm of `in`) is not rounded first. The order of a row's sums depends on d only
 * and is the same in every function here: a row has the same bits in any batch, and residual has
 * those of add, then rms_norm. Cost: each byte read and written once for d up to 8,192; longer rows
 * are read again for each sum. Source: Zhang and Sennrich, Root Mean Square Layer Normalization,
 * 2019.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"
#include "gpu/cuda/kernels/comm/peer_exchange.h"

K_API k_rms_norm_kernel k_rms_norm;
K_API k_residual_kernel k_residual;
/* residual() whose `in` is the sum of all ranks' in, with the bits of k_exchange_sum(); in is not
 * changed. Refuses a layer norm of y, more rows than K_EXCHANGE_BLOCKS, rows of more than 8,192
 * elements, and rows that are not aligned to, or not a multiple of, four elements. */
K_API cudaError_t k_residual_of_ranks(const struct k_launch *l, const struct exchange *e,
                                      const struct residual *r);
