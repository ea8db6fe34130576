/* launch.cuh - how every kernel of ours is started: with programmatic dependent launch.
 *
 * A kernel may be given SMs while the one before it still runs. So in every kernel every thread
 * calls after_previous() before it touches anything that an earlier kernel may write or still read
 * (weights, which nobody writes while serving, may be read before: that is the point), exactly once
 * on every path, even where it has nothing to do: the order of the kernels behind it rests on that.
 * next_may_start() is a hint: called once per thread when the rest of the kernel no longer needs
 * the whole SM.
 */
#ifndef KERNELS_BASE_LAUNCH_CUH
#define KERNELS_BASE_LAUNCH_CUH

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

/* kernel<<<grid, block, smem, st>>>(args...), allowed to begin early or not. smem beyond 48 KiB:
 * the caller has raised the kernel's limit. */
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

#endif
