/* small_copy.cu - small copies and step marks; see small_copy.h. A thread copies one unit (16
 * bytes, or 4 if unaligned) through a register. With `ready` set, it reads before after_previous(),
 * so that the read crosses the bus while the previous kernel runs.
 */
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/memory/small_copy.h"

namespace {

constexpr uint32_t THREADS = 256;

template <typename Unit>
__global__ void
small_copy(Unit *dst, const Unit *src, uint32_t n, bool ready)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    Unit u = {};

    next_may_start();
    if (ready && i < n) u = __ldcv(src + i);
    after_previous();
    if (!ready && i < n) u = __ldcv(src + i);
    if (i < n) dst[i] = u;
}

__global__ void
mark(uint64_t *done, uint64_t step)
{
    next_may_start();
    after_previous();
    __threadfence_system();
    *(volatile uint64_t *)done = step;
}

} /* namespace */

cudaError_t
k_small_copy(const struct k_launch *l, void *dst, const void *src, size_t bytes, bool ready)
{
    uintptr_t at = (uintptr_t)dst | (uintptr_t)src | bytes;
    uint32_t n;

    if (at % 4 || bytes > K_SMALL_COPY) return cudaErrorInvalidValue;
    if (bytes == 0) return cudaSuccess;
    if (at % 16 == 0) {
        n = (uint32_t)(bytes / 16);
        return launch(small_copy<uint4>, (n + THREADS - 1) / THREADS, THREADS, 0, l->st,
                      (uint4 *)dst, (const uint4 *)src, n, ready);
    }
    n = (uint32_t)(bytes / 4);
    return launch(small_copy<uint32_t>, (n + THREADS - 1) / THREADS, THREADS, 0, l->st,
                  (uint32_t *)dst, (const uint32_t *)src, n, ready);
}

cudaError_t
k_mark(const struct k_launch *l, uint64_t *done, uint64_t step)
{
    return launch(mark, 1, 1, 0, l->st, done, step);
}
