/* launch.cuh - starts kernels with programmatic dependent launch: a kernel may get SMs while the
 * previous kernel of the stream still runs.
 *
 * Therefore every thread of every kernel calls after_previous() exactly once on every path, before
 * it touches anything that an earlier kernel may write or still read. Threads without work call it
 * too, because the order of later kernels relies on it. Weights may be read before, because they do
 * not change while serving. next_may_start() allows the next kernel to start: a thread calls it
 * once, when the rest of its kernel no longer needs the whole SM.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

#include <cuda_runtime.h>
#include <utility>

__device__ __forceinline__ void
after_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void
next_may_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Most kernels call this first: they read nothing early and let the next kernel start at once. */
__device__ __forceinline__ void
join_previous()
{
    after_previous();
    next_may_start();
}

/* Launches kernel<<<grid, block, smem, st>>>(args...); early: the kernel may start before the
 * previous one has ended. For smem above 48 KiB the caller must have raised the kernel's limit. */
template <typename... Params, typename... Args>
static inline cudaError_t
launch_when(bool early, void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem,
            cudaStream_t st, Args &&...args)
{
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t c = {};

    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = early;
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = smem;
    c.stream = st;
    c.attrs = &attr;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, std::forward<Args>(args)...);
}

template <typename... Params, typename... Args>
static inline cudaError_t
launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t st,
       Args &&...args)
{
    return launch_when(true, kernel, grid, block, smem, st, std::forward<Args>(args)...);
}

/* Threads per block of an element-wise kernel. A thread computes N adjacent columns of rows
 * blockIdx.y, blockIdx.y + gridDim.y, ... */
constexpr uint32_t ROW_THREADS = 256;

/* Launches an element-wise kernel on [rows, cols]: `wide`, with N = n columns per thread, if `fits`
 * (the rows are aligned for n columns), else `narrow`, with N = 1. */
template <typename... Params, typename... Args>
static inline cudaError_t
launch_rows(const struct k_launch *l, bool fits, uint32_t n, void (*wide)(Params...),
            void (*narrow)(Params...), uint32_t rows, uint32_t cols, Args &&...args)
{
    uint32_t each = ROW_THREADS * (fits ? n : 1);

    if (rows == 0 || cols == 0) return cudaSuccess;
    return launch(fits ? wide : narrow, dim3((cols + each - 1) / each, MIN(rows, 65535u)),
                  ROW_THREADS, 0, l->st, std::forward<Args>(args)...);
}
