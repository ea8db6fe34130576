/* copy_blocks.h - copies of blocks within the device and between it and pinned host memory: gpu.h.
 *
 * size    pitch and used as gpu.c sets them: never 0 copy    [n] in device memory; each side device
 * memory or mapped host memory, 16-byte aligned
 *
 * host    some of it is host memory, or nobody knows. Then it keeps to COPY_SMS SMs, so that a step
 * goes on beside
 *           it: that is enough for the bus, and a tenth of the device's own bandwidth. Within the device a step waits
 *           for it, and it takes all SMs of the lane
 */
#ifndef KERNELS_MEMORY_COPY_BLOCKS_H
#define KERNELS_MEMORY_COPY_BLOCKS_H

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_copy_blocks(const struct k_launch *l, const struct block_copy *copy, uint32_t n,
                                struct block_size size, bool host);

#endif
