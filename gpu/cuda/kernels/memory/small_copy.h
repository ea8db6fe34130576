/* small_copy.h - small copies and marks by kernels, for the inputs and results of a step.
 *
 * A copy by an engine between small kernels costs 7 to 15 us, a write by the front end
 * (cuStreamWriteValue64) 3 us; a kernel starts early like any other. One H200, a step of put 4 KiB,
 * a graph of three small kernels, get 1 KiB, mark: 7.4 us with kernels, 21 us without (medians of
 * 5, gaps between 100 steps).
 */
#pragma once

#include "gpu/cuda/kernels/base/kernel.h"

/* dst = src, without overlap; either may be pinned host memory. Both 4-byte aligned, bytes a
 * multiple of 4 and at most K_TRAVEL. ready: nothing queued writes src (the host filled it before
 * the call), so that it may be read while the previous kernel runs. */
enum { K_TRAVEL = 256 << 10 };
K_API cudaError_t k_travel(const struct k_launch *l, void *dst, const void *src, size_t bytes,
                           bool ready);

/* *done (pinned host memory) = step, ordered for the host after everything the lane's kernels
 * wrote. */
K_API cudaError_t k_mark(const struct k_launch *l, uint64_t *done, uint64_t step);
