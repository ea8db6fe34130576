/* checksum.cu - sums mixed words; see checksum.h. A load is 16 bytes (two words). Thread i of the
 * grid has the loads i, i + threads of the grid, ..., AT_ONCE at a time. Each thread block adds its
 * result to *sum, which is 0 before.
 */
#include "gpu/cuda/kernels/memory/checksum.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr uint32_t THREADS = 512;
constexpr uint32_t AT_ONCE = 4;
constexpr uint32_t BLOCKS_AN_SM = 4;
constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;

__device__ __forceinline__ uint64_t
mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Returns the sum of the two mixed words of a load; key: golden * (index of the first word + 1). */
__device__ __forceinline__ uint64_t
mix_two(uint4 v, uint64_t key)
{
    return mix64((v.x | (uint64_t)v.y << 32) + key) +
           mix64((v.z | (uint64_t)v.w << 32) + key + GOLDEN);
}

__global__ void
__launch_bounds__(THREADS)
    checksum(unsigned long long *sum, const uint4 *p, uint64_t n_loads, uint32_t n_rest)
{
    __shared__ uint64_t part[THREADS / 32];
    uint64_t step = (uint64_t)gridDim.x * THREADS,
             at = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    uint64_t mine = 0, key = GOLDEN * (2 * at + 1), key_step = GOLDEN * (2 * step);

    join_previous();
    for (; at + (AT_ONCE - 1) * step < n_loads; at += AT_ONCE * step) {
        uint4 v[AT_ONCE];

        UNROLL for (uint32_t i = 0; i < AT_ONCE; i++) v[i] = __ldcs(p + at + i * step);
        UNROLL for (uint32_t i = 0; i < AT_ONCE; i++, key += key_step) mine += mix_two(v[i], key);
    }
    for (; at < n_loads; at += step, key += key_step) mine += mix_two(__ldcs(p + at), key);
    if (n_rest && blockIdx.x == 0 && threadIdx.x == 0) { /* the last 1 to 15 bytes */
        const uint8_t *byte = (const uint8_t *)(p + n_loads);

        for (uint32_t w = 0; w * 8 < n_rest; w++) {
            uint64_t word = 0;

            for (uint32_t i = 0; i < 8 && w * 8 + i < n_rest; i++)
                word |= (uint64_t)byte[w * 8 + i] << 8 * i;
            mine += mix64(word + GOLDEN * (2 * n_loads + w + 1));
        }
    }
    mine = group_sum(mine, 32);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x) return;
    mine = 0;
    for (uint32_t i = 0; i < THREADS / 32; i++) mine += part[i];
    atomicAdd(sum, (unsigned long long)mine);
}

} /* namespace */

cudaError_t
k_checksum(const struct k_launch *l, uint64_t *sum, const void *p, size_t bytes)
{
    uint64_t n = bytes / 16, blocks = (n + THREADS * AT_ONCE - 1) / (THREADS * AT_ONCE);
    uint64_t most = (uint64_t)l->sms * BLOCKS_AN_SM;
    cudaError_t r = cudaMemsetAsync(sum, 0, sizeof *sum, l->st);

    if (r != cudaSuccess || bytes == 0) return r;
    if (blocks > most) blocks = most;
    return launch(checksum, blocks ? (uint32_t)blocks : 1, THREADS, 0, l->st,
                  (unsigned long long *)sum, (const uint4 *)p, n, (uint32_t)(bytes % 16));
}
