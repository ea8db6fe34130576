/* matmul_skinny_sm90.cu - y = x w^T for few rows, by clusters; see matmul_skinny_sm90.h. The tensor
 * cores' left operand, 64 rows per warpgroup, is w, the right one x. A cluster of thread blocks
 * computes a tile of w's rows; each block has a part of K. At the end each block adds the sums of
 * all blocks for its share of the tile, through distributed shared memory. One thread starts the
 * copies:
 *
 *     ring[stage]:  w [GROUPS][64 rows][64]  |  x [64 rows][64]        128 bytes a row, swizzled
 *
 * The ring is nearly all of an SM's shared memory. Its first copies of w start before the previous
 * kernel has ended: while ranks wait in a collective, the next weights are loaded.
 */
#include "gpu/cuda/kernels/gemm/matmul_skinny_sm90.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm90.cuh"
#include "gpu/cuda/kernels/base/tma_map.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/elementwise/act.cuh"

using namespace sm90;

namespace {

constexpr uint32_t BLOCK_K = 64, ROWS = MATMUL_SM90_ROWS, FEW = 32;
constexpr uint32_t BOX = 64 * BLOCK_K * 2; /* bytes of 64 rows in a stage */
constexpr uint32_t RING = 208 << 10;
constexpr int MOST_BLOCKS = 8;      /* blocks of a cluster */
/* Elements of w. With at most FEW rows of x other kernels are as fast unless w has more. */
constexpr uint64_t LARGE = 4 << 20;

/* GROUPS: number of consumer warpgroups, 64 rows of w each; for a gate the first half have rows of
 * w1, the second half the same rows of w2. One more warp copies. */
template <int GROUPS, bool GATE> struct shape {
    static constexpr uint32_t W_ROWS = GROUPS * 64;
    static constexpr uint32_t OUT = GATE ? W_ROWS / 2 : W_ROWS; /* columns of y per tile */
    static constexpr uint32_t STAGE = (GROUPS + 1) * BOX, STAGES = RING / STAGE;
    /* floats per row of sums; the 4 avoid bank conflicts */
    static constexpr uint32_t PITCH = W_ROWS + 4;
    static constexpr uint32_t THREADS = GROUPS * 128 + 32;
    static constexpr uint32_t SMEM = STAGES * STAGE + 1024;
    static_assert(ROWS * PITCH * 4 <= STAGES * STAGE, "sums take the ring's place");
};

struct args {
    void *y;
    size_t y_row;     /* elements */
    uint32_t m, n, k; /* k: number of 64-wide blocks of K */
    enum dtype y_type;
    enum act act;
};

__device__ __forceinline__ uint32_t
cluster_rank()
{
    uint32_t r;

    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ uint32_t
cluster_blocks()
{
    uint32_t n;

    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}

/* Waits for all blocks of the cluster; their earlier stores are then visible to all of them. */
__device__ __forceinline__ void
cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Loads from address `at` in the shared memory of another block of the cluster. */
__device__ __forceinline__ float4
load_of(uint32_t at, uint32_t block)
{
    uint32_t there;
    float4 v;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(there)
                 : "memory");
    return v;
}

template <int GROUPS, bool GATE> struct block {
    typedef shape<GROUPS, GATE> S;
    uint32_t ring, full, empty; /* addresses */
    uint32_t tile, first, n;    /* the tile; blocks of K: first .. first + n - 1 */

    /* Starts the copies of all rows of w of the tile for the i-th block of K. */
    __device__ __forceinline__ void copy_w(const CUtensorMap *w, const struct args &a,
                                           uint32_t i) const
    {
        uint32_t s = i % S::STAGES, bar = full + s * 8;

        barrier_expect(bar, S::STAGE);
        UNROLL for (uint32_t g = 0; g < GROUPS; g++) {
            uint32_t row = tile * S::OUT + g * 64;

            if (GATE && g >= GROUPS / 2) row += a.n - S::OUT;
            tma_load(ring + s * S::STAGE + g * BOX, w, bar, (first + i) * BLOCK_K, row);
        }
    }

    __device__ __forceinline__ void copy_x(const CUtensorMap *x, uint32_t i) const
    {
        uint32_t s = i % S::STAGES;

        tma_load(ring + s * S::STAGE + GROUPS * BOX, x, full + s * 8, (first + i) * BLOCK_K, 0);
    }

    __device__ __forceinline__ void fetch(const CUtensorMap *w, const CUtensorMap *x,
                                          const struct args &a) const
    {
        uint32_t early = n < S::STAGES ? n : S::STAGES;

        for (uint32_t i = 0; i < early; i++) copy_w(w, a, i);
        after_previous();
        for (uint32_t i = 0; i < early; i++) copy_x(x, i);
        for (uint32_t i = early; i < n; i++) {
            barrier_wait(empty + i % S::STAGES * 8, (i / S::STAGES + 1) & 1);
            copy_w(w, a, i);
            copy_x(x, i);
        }
    }

    template <typename T> __device__ __forceinline__ void multiply(float (&c)[32]) const
    {
        uint32_t group = same(threadIdx.x / 128);

        for (uint32_t i = 0; i < n; i++) {
            uint32_t s = i % S::STAGES, at = ring + s * S::STAGE;

            barrier_wait(full + s * 8, i / S::STAGES & 1);
            pin(c);
            wgmma_begin();
            UNROLL for (uint32_t k = 0; k < BLOCK_K / 16; k++)
                wgmma_ss<T, 64>(c, tile_desc(at + group * BOX + k * 32, 1024, 0),
                                tile_desc(at + GROUPS * BOX + k * 32, 1024, 0), i || k);
            wgmma_commit();
            wgmma_wait<0>();
            pin(c);
            barrier_arrive_warp(empty + s * 8);
        }
    }

    /* Stores the warpgroup's sums in place of the ring, for all blocks: [row of x][row of w]. */
    __device__ __forceinline__ void lay_down(const float (&c)[32], float *sums) const
    {
        uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;

        UNROLL for (uint32_t i = 0; i < 32; i++)
            sums[(i / 4 * 8 + col + i % 2) * S::PITCH + row + i % 4 / 2 * 8] = c[i];
    }

    __device__ __forceinline__ void total(float (&v)[4], uint32_t at, uint32_t blocks) const
    {
        UNROLL for (uint32_t j = 0; j < 4; j++) v[j] = 0;
        for (uint32_t b = 0; b < blocks; b++) {
            float4 f = load_of(at, b);

            v[0] += f.x, v[1] += f.y, v[2] += f.z, v[3] += f.w;
        }
    }

    /* Adds the sums of all blocks for this block's share of the tile and stores the result in y. */
    __device__ __forceinline__ void store(const struct args &a, uint32_t rank,
                                          uint32_t blocks) const
    {
        constexpr uint32_t FOURS = S::OUT / 4;

        for (uint32_t i = rank * S::THREADS + threadIdx.x; i < a.m * FOURS;
             i += blocks * S::THREADS) {
            uint32_t row = i / FOURS, col = i % FOURS * 4, n = tile * S::OUT + col;
            uint32_t at = ring + (row * S::PITCH + col) * 4;
            float v[4], up[4];

            if (n >= a.n) continue;
            total(v, at, blocks);
            if (GATE) {
                total(up, at + S::OUT * 4, blocks);
                UNROLL for (uint32_t j = 0; j < 4; j++) v[j] = activate<false>(v[j], a.act) * up[j];
            }
            store_as<4>(a.y_type, a.y, row * a.y_row + n, v);
        }
    }
};

template <typename T, int GROUPS, bool GATE>
__global__ void
__launch_bounds__(shape<GROUPS, GATE>::THREADS, 1)
    matmul_sm90(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ struct args a)
{
    typedef shape<GROUPS, GATE> S;
    extern __shared__ char memory[];
    __shared__ uint64_t bar[2 * S::STAGES];
    struct block<GROUPS, GATE> b;
    uint32_t rank = cluster_rank(), blocks = cluster_blocks();

    next_may_start();
    b.ring = (smem(memory) + 1023) & ~1023;
    b.full = smem(bar);
    b.empty = b.full + S::STAGES * 8;
    b.tile = blockIdx.x / blocks;
    b.first = a.k * rank / blocks;
    b.n = a.k * (rank + 1) / blocks - b.first;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < S::STAGES; i++) {
            barrier_init(b.full + i * 8, 1);
            barrier_init(b.empty + i * 8, GROUPS * 4);
        }
        async_fence();
    }
    __syncthreads();
    if (threadIdx.x >= GROUPS * 128) {
        if (threadIdx.x == GROUPS * 128)
            b.fetch(&w, &x, a);
        else
            after_previous();
        __syncwarp();
    } else {
        float c[32];

        UNROLL for (uint32_t i = 0; i < 32; i++) c[i] = 0;
        after_previous();
        b.template multiply<T>(c);
        named_sync(1, GROUPS * 128); /* all consumers have read the ring */
        b.lay_down(c, (float *)(memory + (b.ring - smem(memory))));
    }
    cluster_sync();
    b.store(a, rank, blocks);
    cluster_sync(); /* other blocks have finished reading this block's sums */
}

/* ---- host side ---- */

template <typename T, int GROUPS, bool GATE>
cudaLaunchConfig_t
config_of(cudaLaunchAttribute *attrs, uint32_t blocks, uint32_t tiles)
{
    typedef shape<GROUPS, GATE> S;
    cudaLaunchConfig_t c = {};

    attrs[0].id = cudaLaunchAttributeClusterDimension;
    attrs[0].val.clusterDim.x = blocks;
    attrs[0].val.clusterDim.y = attrs[0].val.clusterDim.z = 1;
    attrs[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[1].val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = blocks * tiles;
    c.blockDim = S::THREADS;
    c.dynamicSmemBytes = S::SMEM;
    c.attrs = attrs;
    c.numAttrs = 2;
    return c;
}

/* clusters[i]: how many clusters of i blocks the device holds at once; 0: it cannot run them. */
struct occupancy {
    int sms, clusters[MOST_BLOCKS + 1];
};

template <typename T, int GROUPS, bool GATE>
const struct occupancy &
occupancy_of()
{
    static const struct occupancy r = [] {
        struct occupancy ret = {};
        int device;

        if (cudaFuncSetAttribute(matmul_sm90<T, GROUPS, GATE>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shape<GROUPS, GATE>::SMEM) != cudaSuccess ||
            cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&ret.sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
            return ret;
        for (uint32_t i = 1; i <= MOST_BLOCKS; i++) {
            cudaLaunchAttribute attrs[2];
            cudaLaunchConfig_t c = config_of<T, GROUPS, GATE>(attrs, i, 1);

            c.numAttrs = 1;
            if (cudaOccupancyMaxActiveClusters(&ret.clusters[i], matmul_sm90<T, GROUPS, GATE>,
                                               &c) != cudaSuccess)
                ret.clusters[i] = 0;
        }
        return ret;
    }();

    return r;
}

/* Returns the largest number of blocks per tile with which all tiles run at once. 0: the kernel
 * refuses, because there is no such number or less than a quarter of the SMs would have work. A
 * partition is refused, because it may lack SMs for a cluster that fits on the whole device. */
template <typename T, int GROUPS, bool GATE>
uint32_t
most_blocks(const struct k_launch *l, const struct args &a)
{
    typedef shape<GROUPS, GATE> S;
    const struct occupancy &held = occupancy_of<T, GROUPS, GATE>();
    uint32_t tiles = (a.n + S::OUT - 1) / S::OUT, most = 0;

    if (l->sms < (uint32_t)held.sms) return 0;
    for (uint32_t i = 1; i <= MOST_BLOCKS && i <= a.k; i++)
        if (tiles <= (uint32_t)held.clusters[i] && tiles * i <= l->sms) most = i;
    return 4 * tiles * most >= l->sms ? most : 0;
}

template <typename T, int GROUPS, bool GATE>
cudaError_t
queue(const struct k_launch *l, uint32_t blocks, const CUtensorMap &w, const CUtensorMap &x,
      const struct args &a)
{
    typedef shape<GROUPS, GATE> S;
    cudaLaunchAttribute attrs[2];
    cudaLaunchConfig_t c = config_of<T, GROUPS, GATE>(attrs, blocks, (a.n + S::OUT - 1) / S::OUT);

    c.stream = l->st;
    return cudaLaunchKernelEx(&c, matmul_sm90<T, GROUPS, GATE>, w, x, a);
}

/* Launches with two warpgroups per block if all tiles then run at once, else with four: fewer rows
 * of w per block are faster (measured). */
template <typename T, bool GATE>
cudaError_t
queue_as(const struct k_launch *l, const struct tensor &x, const struct tensor &w,
         const struct args &a)
{
    uint32_t few = most_blocks<T, 2, GATE>(l, a), many = few ? 0 : most_blocks<T, 4, GATE>(l, a);
    CUtensorMap w_map, x_map;

    if ((!few && !many) || !make_row_map(&w_map, w, 64) || !make_row_map(&x_map, x, 64))
        return cudaErrorInvalidValue;
    return few ? queue<T, 2, GATE>(l, few, w_map, x_map, a)
               : queue<T, 4, GATE>(l, many, w_map, x_map, a);
}

template <bool GATE>
cudaError_t
multiply(const struct k_launch *l, const struct tensor &y, const struct tensor &x,
         const struct tensor &w, enum act act)
{
    struct args a = {};

    if (l->invariant || !encoder() || x.dtype != w.dtype ||
        (x.dtype != DT_BF16 && x.dtype != DT_F16) || (y.dtype != DT_F32 && y.dtype != x.dtype))
        return cudaErrorInvalidValue;
    if (x.dim[0] <= FEW && (uint64_t)w.dim[0] * w.dim[1] <= LARGE) return cudaErrorInvalidValue;
    if (x.dim[0] > ROWS || x.dim[1] == 0 || x.dim[1] % 8 || y.dim[1] % 4 || !rows_fit(x, 8) ||
        !rows_fit(w, 8) || !rows_fit(y, 4))
        return cudaErrorInvalidValue;
    if (x.dim[0] == 0) return cudaSuccess;
    a.y = y.data;
    a.y_row = y.stride;
    a.m = x.dim[0];
    a.n = y.dim[1];
    a.k = (x.dim[1] + BLOCK_K - 1) / BLOCK_K;
    a.y_type = y.dtype;
    a.act = act;
    return x.dtype == DT_BF16 ? queue_as<__nv_bfloat16, GATE>(l, x, w, a)
                              : queue_as<__half, GATE>(l, x, w, a);
}

} /* namespace */

cudaError_t
k_matmul_skinny_sm90(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                     struct tensor bias, float beta)
{
    if (bias.data || beta != 0) return cudaErrorInvalidValue;
    return multiply<false>(l, y, x, w, ACT_RELU);
}

cudaError_t
k_gate_matmul_skinny_sm90(const struct k_launch *l, struct tensor y, struct tensor both,
                          struct tensor x, struct tensor w, enum act a)
{
    (void)both;
    return multiply<true>(l, y, x, w, a);
}
