/* sm80.cuh - the instructions of sm_80 that tensor-core kernels use, one function each.
 *
 * Fragments of m16n8k16 in all kernels: lane 4 g + q holds columns 2q, 2q + 1, 2q + 8 and 2q + 9 of
 * rows g and g + 8 of the 16 x 16 left operand, and elements (g, 2q), (g, 2q + 1), (g + 8, 2q) and
 * (g + 8, 2q + 1) of the 16 x 8 result.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <type_traits>

__device__ __forceinline__ uint32_t
smem(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes from global to shared memory, not through registers. */
__device__ __forceinline__ void
copy_async(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* If copy, does copy_async(); else stores 16 zero bytes and does not read `from`. */
__device__ __forceinline__ void
copy_async_or_zero(uint32_t to, const void *from, bool copy)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(copy ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void
copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until this thread's copies are done, except those of its last n calls of copy_commit(). */
template <int n>
__device__ __forceinline__ void
copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

/* Loads four 8 x 8 matrices of 16-bit elements (ldmatrix); lane i passes the address of row i % 8
 * of matrix i / 8. TURNED: each matrix is transposed. */
template <bool TURNED = false>
__device__ __forceinline__ void
load_matrices(uint32_t (&r)[4], uint32_t at)
{
#define LOAD_MATRICES(HOW) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" HOW ".shared.b16 {%0,%1,%2,%3}, [%4];" \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) \
                 : "r"(at) \
                 : "memory")
    if constexpr (TURNED)
        LOAD_MATRICES(".trans");
    else
        LOAD_MATRICES("");
}

/* Transposes an 8 x 8 matrix of 16-bit elements; lane i has two adjacent ones of row i / 4. */
__device__ __forceinline__ uint32_t
transpose_matrix(uint32_t x)
{
    uint32_t y;

    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Computes c += a b with fp32 sums; T is the type of the 16-bit elements of a and b. */
template <typename T>
__device__ __forceinline__ void
mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#define MMA(TYPE) \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, " \
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        MMA("bf16");
    else
        MMA("f16");
}

/* Returns two floats, rounded to T, in one register; `low` is in the low 16 bits. */
template <typename T>
__device__ __forceinline__ uint32_t
pack(float low, float high)
{
    uint32_t r;

    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

/* Adds n to a counter in device memory and returns its old value. Acquire and release: earlier
 * writes of this thread, and of threads it synchronized with at a barrier, are visible to threads
 * that add to the counter later. */
__device__ __forceinline__ uint32_t
add_in_order(uint32_t *count, uint32_t n)
{
    uint32_t was;

    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(was)
                 : "l"(count), "r"(n)
                 : "memory");
    return was;
}

/* Returns 2^x within 2 ulp; 2^-inf is 0, 2^0 is 1. */
__device__ __forceinline__ float
exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
