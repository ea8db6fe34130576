/* sample_math.cuh - shared by the kernels of sample: weights, noise, prefix sums, scratch memory.
 *
 * The weight of a logit is its probability up to a factor. Weights equal those of cpu_sample.c,
 * operation by operation: they come from the same polynomial with the same roundings, rounded down
 * to a whole number of units, so that sums are exact in any order. A sum of weights is a mass. Code
 * that must give the CPU's bits uses __f..._rn(), which nvcc does not contract.
 */
#pragma once
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/sampling/sample.h"
#include "gpu/philox.h"

#include <float.h>
#include <math_constants.h>

namespace sampling {

typedef unsigned long long u64;

/* A block is 1,024 consecutive logits of a row, held by a warp, 32 per lane: value it * 4 + c of a
 * lane is logit block * 1024 + it * 128 + lane * 4 + c. The 32 logits of a lane are a group. */
constexpr uint32_t BLOCK = 1024, LANE = 32, MAX_BLOCKS = 1024;
constexpr int UNIT_BLOCK = 30, UNIT_ROW = 42; /* log2 of a weight of 1, in units */

struct alignas(16) block_stat {
    float best, sum; /* sum of exp(x - best) */
    u64 mass;        /* of exp((x - best) / temperature), in units of a block */
};
struct row_stat {
    float best, log_total;
    u64 mass; /* in units of a row */
};
struct scan_scratch {
    struct block_stat *block; /* [n][n_blocks] */
    struct row_stat *row;     /* [n] */
    float *group;             /* [n][n_blocks * LANE] best of each group; rows with lists only */
    uint32_t n_blocks;
};

/* What a row needs: a random draw, cuts, a list of the best, the sum for log-probabilities. */
struct wish {
    bool draw, cuts, list, sum;
    float rate; /* log2(e) / temperature */
};

__device__ __forceinline__ struct wish
wish_of(const struct sample_row &r, uint32_t n)
{
    struct wish w;

    w.draw = r.target < 0 && r.force < 0 && r.temperature > 0;
    w.cuts = w.draw && ((r.top_k && r.top_k < n) || r.top_p < 1 || r.min_p > 0);
    w.list = w.cuts || r.n_top;
    w.sum = r.n_top || r.want_logprob || r.target >= 0;
    w.rate = w.draw ? fminf(__fdiv_rn(1.44269504f, r.temperature), FLT_MAX) : 0;
    return w;
}

/* Whether ranks sample this row in parts, see k_sample_of_ranks(). */
__device__ __forceinline__ bool
in_parts(const struct sample_row &r, uint32_t n)
{
    return !wish_of(r, n).list && !r.beam;
}

/* Whether the result is r.force whatever the logits are. */
__device__ __forceinline__ bool
is_forced(const struct sample_row &r, uint32_t n)
{
    return r.force >= 0 && r.target < 0 && !r.n_top && (uint32_t)r.force < n;
}

/* Returns x, or -inf for NaN and FLT_MAX for +inf. */
__device__ __forceinline__ float
clean(float x)
{
    return fminf(fmaxf(x, -CUDART_INF_F), FLT_MAX);
}

/* Returns an integer key: larger floats have larger keys; both zeros have the same key. */
__device__ __forceinline__ uint32_t
key_of(float x)
{
    uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));

    return u & 0x80000000 ? ~u : u | 0x80000000;
}

__device__ __forceinline__ float
of_key(uint32_t key)
{
    return __uint_as_float(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

/* Returns 2^y * 2^SHIFT for y <= 0, from FLOOR on with the bits of weigh() in cpu_sample.c, below
 * FLOOR the value of FLOOR. NaN counts as below, so that a block of only -inf has weight 0. */
template <int SHIFT, int FLOOR>
__device__ __forceinline__ float
power(float y)
{
    const float round = 12582912.0f + SHIFT; /* the nearest integer, plus SHIFT, in the low bits */
    float shifted, f, p;

    y = fmaxf(y, (float)FLOOR);
    shifted = __fadd_rn(y, round);
    f = __fsub_rn(y, __fsub_rn(shifted, round));
    p = __fmaf_rn(0x1.5bba18p-10f, f, 0x1.3cea88p-7f);
    p = __fmaf_rn(p, f, 0x1.c6b752p-5f);
    p = __fmaf_rn(p, f, 0x1.ebf9bcp-3f);
    p = __fmaf_rn(p, f, 0x1.62e42ap-1f);
    p = __fmaf_rn(p, f, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

/* Returns a logit's weight relative to the best of its block, in units, not yet rounded down.
 * Weights below 2^-44 are less than one unit of either kind, so that their bits do not matter. */
template <int UNIT>
__device__ __forceinline__ float
weigh(float x, float best, float rate)
{
    return power<UNIT, -44>(__fmul_rn(__fsub_rn(x, best), rate));
}

/* Returns the factor from a block's units to the row's. */
__device__ __forceinline__ double
factor_of(float block_best, float best, float rate)
{
    return (double)power<0, -115>(__fmul_rn(__fsub_rn(block_best, best), rate)) * 0x1p12;
}

__device__ __forceinline__ u64
scaled(u64 mass, double factor)
{
    return __double2ull_rz(__dmul_rn(__ull2double_rn(mass), factor));
}

/* Returns a random integer below total: Philox 4x32-10 of (seed; output, position). */
__device__ __forceinline__ u64
noise(const struct sample_row &r, u64 total)
{
    uint32_t counter[4] = { r.output, r.position }, w[4];

    philox(r.seed, counter, w);
    return __umul64hi((u64)w[0] << 32 | w[1], total);
}

/* Loads a lane's 32 logits of a block; -inf beyond n. Past L1: other CTAs may have written them. */
template <bool VEC>
__device__ __forceinline__ void
load_block(float (&v)[LANE], const float *x, uint32_t block, uint32_t n, uint32_t lane)
{
    UNROLL for (uint32_t it = 0; it < 8; it++) {
        uint32_t at = block * BLOCK + it * 128 + lane * 4;

        if (VEC && at + 4 <= n) {
            float4 f = __ldcg((const float4 *)(x + at));

            v[it * 4] = f.x, v[it * 4 + 1] = f.y, v[it * 4 + 2] = f.z, v[it * 4 + 3] = f.w;
        } else {
            UNROLL for (uint32_t c = 0; c < 4; c++)
                v[it * 4 + c] = at + c < n ? __ldcg(x + at + c) : -CUDART_INF_F;
        }
    }
}

__device__ __forceinline__ float
warp_max(float v)
{
    return of_key(__reduce_max_sync(~0u, key_of(v)));
}

__device__ __forceinline__ u64
warp_scan(u64 v, uint32_t lane) /* inclusive */
{
    for (uint32_t step = 1; step < 32; step *= 2) {
        u64 from = __shfl_up_sync(~0u, v, step);

        if (lane >= step) v += from;
    }
    return v;
}

/* Returns the sum over the threads before this one, and in *total the sum over all. warp_sums:
 * WARPS entries in shared memory. Every thread of the CTA calls it. */
template <int WARPS>
__device__ __forceinline__ u64
cta_scan(u64 v, u64 *total, u64 *warp_sums)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 with = warp_scan(v, lane), before = 0, all = 0;

    __syncthreads();
    if (lane == 31) warp_sums[warp] = with;
    __syncthreads();
    for (uint32_t i = 0; i < WARPS; i++) {
        if (i == warp) before = all;
        all += warp_sums[i];
    }
    *total = all;
    return before + with - v;
}

/* A warp scans one block in the order of token ids. Returns the first id at which the scaled sum of
 * weights exceeds `left`. weight(v, id): the weight of logit v in units. */
template <bool VEC, typename F>
__device__ __forceinline__ uint32_t
walk(const float *x, uint32_t block, uint32_t n, double factor, u64 left, F weight)
{
    uint32_t lane = threadIdx.x % 32, it = 0, at, hit = 0, who;
    float v[LANE];
    u64 sum[8], before = 0, with;

    load_block<VEC>(v, x, block, n, lane);
    auto weight_at = [&](uint32_t i, uint32_t c) {
        uint32_t id = block * BLOCK + i * 128 + lane * 4 + c;

        return (u64)weight(clean(v[i * 4 + c]), id); /* beyond n: -inf */
    };
    UNROLL for (uint32_t i = 0; i < 8; i++) {
        sum[i] = 0;
        for (uint32_t c = 0; c < 4; c++) sum[i] += weight_at(i, c);
        sum[i] = group_sum(sum[i], 32);
    }
    UNROLL for (uint32_t i = 0; i < 7; i++) /* the eighth of the block that contains it */
        if (it == i && scaled(before + sum[i], factor) <= left) before += sum[i], it++;
    at = block * BLOCK + it * 128 + lane * 4;
    with = 0;
    u64 w[4];
    UNROLL for (uint32_t c = 0; c < 4; c++) {
        float mine = 0;

        UNROLL for (uint32_t i = 0; i < 8; i++) mine = it == i ? v[i * 4 + c] : mine;
        w[c] = weight(clean(mine), at + c);
        with += w[c];
    }
    with = before + warp_scan(with, lane) - with;
    UNROLL for (; hit < 4; hit++) {
        with += w[hit];
        if (scaled(with, factor) > left) break;
    }
    who = __ballot_sync(~0u, hit < 4);
    return __shfl_sync(~0u, at + hit, who ? __ffs(who) - 1 : 0);
}

/* Launches the second kernel (sample_select.cu). */
cudaError_t second(const struct k_launch *l, const struct sample &s, const struct scan_scratch &r,
                   bool vec);

} /* namespace sampling */
