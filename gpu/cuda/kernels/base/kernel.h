/* kernel.h - what every host function that launches a kernel (k_NAME) receives and must guarantee.
 *
 * A k_ function queues its kernels on the lane's stream and returns the launch error. It takes the
 * structs of gpu.h, which has their shapes and meanings. It refuses unsupported arguments with
 * cudaErrorInvalidValue before it queues anything, so that cuda_pick.c can try the next candidate.
 * It does not allocate, synchronize or read device memory on the host: graphs can capture it.
 */
#pragma once
#include "gpu/gpu.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define K_API extern "C"
#else
#define K_API
#endif

/* Written before a loop: the compiler unrolls the loop completely. */
#define UNROLL _Pragma("unroll")

enum { K_COUNTERS = 16384 };

/* Launch context, one per lane. Only one op at a time uses work and count, until it has ended. */
struct k_launch {
    cudaStream_t st;
    void *work; /* device memory, 256-byte aligned, content undefined */
    size_t work_bytes;
    uint32_t *count; /* [K_COUNTERS] on the device: 0 at the start and end of an op */
    uint32_t *fault; /* a kernel stores 1 on invalid input; lane.error() is then -EIO */
    uint32_t sms;    /* number of SMs of the lane's partition */
    bool invariant;  /* batch-invariant: the bits of a row must not depend on other rows */
};

/* k_NAME_kernel: the type of a function that queues op NAME, with the parameters of ops.h. Headers
 * declare the candidates of an op with this type. */
#define K_TYPE(p, name, params, args) \
    typedef cudaError_t k_##name##_kernel(const struct k_launch *l, GPU_UNPAREN params);
GPU_EVERY_OP(K_TYPE, )
