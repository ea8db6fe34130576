/* kernel.h - arguments and obligations of the host function of every kernel.
 *
 * A k_ function queues its kernels on the lane's stream and returns the launch error. It takes the
 * structs of gpu.h, which has their shapes and meanings. It refuses what it does not support with
 * cudaErrorInvalidValue before it queues anything, so that cuda_pick.c can try the next candidate.
 * It does not allocate, synchronize or read device memory on the host, so that it can be captured.
 */
#pragma once

#include "gpu/gpu.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define K_API extern "C"
#else
#define K_API
#endif

/* Before a loop: the compiler unrolls it completely. */
#define UNROLL _Pragma("unroll")

enum { K_COUNTERS = 16384 };

/* Launch context, one per lane. An op has work and count to itself until its last kernel is
 * done. */
struct k_launch {
    cudaStream_t st;
    void *work; /* device memory, 256-byte aligned, content undefined */
    size_t work_bytes;
    uint32_t *count; /* [K_COUNTERS] on the device: 0 at the start and end of an op */
    uint32_t *fault; /* a kernel stores 1 on invalid input; lane.error() is then -EIO */
    uint32_t sms;    /* SMs of the lane's part */
    bool invariant;  /* batch-invariant: bits of a row must not depend on other rows */
};

/* k_NAME_kernel: a function that queues op NAME, with the op's parameters (ops.h). Headers declare
 * the candidates of an op by this type. */
#define K_TYPE(p, name, params, args) \
    typedef cudaError_t k_##name##_kernel(const struct k_launch *l, GPU_UNPAREN params);
GPU_EVERY_OP(K_TYPE, )
