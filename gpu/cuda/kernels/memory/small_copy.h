/* small_copy.h - small copies and step marks by kernels, for the inputs and results of a step.
 *
 * Between small kernels a copy by a copy engine costs 7 to 15 us, a write by the front end
 * (cuStreamWriteValue64) 3 us; a kernel costs less, because it starts early (launch.cuh). One H200,
 * a step of put 4 KiB, a graph of three small kernels, get 1 KiB, mark: 7.4 us with kernels, 21 us
 * without (medians of 5, gaps between 100 steps).
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

/* Copies src to dst, which do not overlap; either may be pinned host memory. Both 4-byte aligned,
 * bytes a multiple of 4 and at most K_SMALL_COPY. ready: no queued work writes src (the host filled
 * it before the call), so that it may be read while the previous kernel runs. */
enum { K_SMALL_COPY = 256 << 10 };
K_API cudaError_t k_small_copy(const struct k_launch *l, void *dst, const void *src, size_t bytes,
                               bool ready);

/* Stores step in *done (pinned host memory). A host thread that reads it sees everything that the
 * lane's earlier kernels wrote. */
K_API cudaError_t k_mark(const struct k_launch *l, uint64_t *done, uint64_t step);
