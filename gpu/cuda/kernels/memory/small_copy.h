/* small_copy.h - small copies and marks by kernels: what a step pays for its first and last word.
 *
 * A copy engine costs a stream of small kernels 7 to 15 us, a write by the front end
 * (cuStreamWriteValue64) 3 us; a kernel is started early like any other. One H200, a step of put 4
 * KiB, a graph of three small kernels, get 1 KiB, mark: 7.4 us so, 21 us otherwise (medians of 5,
 * gaps between 100 of them).
 */
#ifndef KERNELS_MEMORY_SMALL_COPY_H
#define KERNELS_MEMORY_SMALL_COPY_H

#include "gpu/cuda/kernels/base/kernel.h"

/* dst = src, which do not overlap; either may be pinned host memory. Takes 4-byte aligned pieces of
 * a multiple of 4 bytes, at most K_TRAVEL of them. ready: src is nobody's to write any more (memory
 * that the host filled before it called): it is read while the kernel before still runs. */
enum { K_TRAVEL = 256 << 10 };
K_API cudaError_t k_travel(const struct k_launch *l, void *dst, const void *src, size_t bytes,
                           bool ready);

/* *done (pinned host memory) = step, after all that the lane's kernels wrote, to the host as well.
 */
K_API cudaError_t k_mark(const struct k_launch *l, uint64_t *done, uint64_t step);

#endif
