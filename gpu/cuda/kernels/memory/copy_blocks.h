/* copy_blocks.h - copies blocks within the device and between it and pinned host memory; see
 * gpu/ops.h.
 *
 *   size    bytes, pitch and used are not 0: check.c has replaced pitch 0 by pitch = used = bytes
 *   copy    [n] in device memory; each side is device memory or mapped host memory, 16-byte aligned
 *   host    true: host memory may be involved. The copy uses at most COPY_SMS SMs, which saturate
 *           the bus (10 % of the device's bandwidth), so that a step continues meanwhile.
 *           false: uses all SMs of the lane, because a step waits for the copy.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_copy_blocks(const struct k_launch *l, const struct block_copy *copy, uint32_t n,
                                struct block_size size, bool host);
