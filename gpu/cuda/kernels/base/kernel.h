/* kernel.h - what the host function of every kernel is given, and what it promises.
 *
 * A k_ function queues its kernels on the lane's stream and returns what the launch said. It takes
 * the waist's structs as they are (gpu.h has shapes and meanings) and refuses what it does not do
 * with cudaErrorInvalidValue before it queues anything, so that cuda_pick.c can ask the next
 * candidate. It allocates nothing, synchronises nothing and reads no device memory on the host: so
 * it may be captured.
 */
#ifndef KERNELS_BASE_KERNEL_H
#define KERNELS_BASE_KERNEL_H

#include "gpu/gpu.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define K_API extern "C"
#else
#define K_API
#endif

enum { K_COUNTERS = 16384 };

/* What belongs to one lane. An op has work and count to itself until its last kernel is done. */
struct k_launch {
    cudaStream_t st;
    void *work; /* device memory, 256-byte aligned, content undefined */
    size_t work_bytes;
    uint32_t *count; /* [K_COUNTERS] on the device: 0 when an op begins and when it ends */
    uint32_t
        *fault;   /* a kernel that finds its input impossible stores 1: lane.error() is -EIO then */
    uint32_t sms; /* of the lane's share */
    bool invariant; /* the bits of a row must not depend on its company */
};

#endif
