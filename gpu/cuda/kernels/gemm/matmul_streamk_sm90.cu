/* matmul_streamk_sm90.cu - y = x w^T for few rows, stream-K; see matmul_streamk_sm90.h. The tensor
 * cores' left operand, 64 rows per warpgroup, is w, the right one x. A step is a tile of w's rows
 * by 64 of K. The steps of all tiles, tile after tile, are divided evenly among the thread blocks,
 * at most one per SM. One thread starts the copies of a block's steps, across tiles:
 *
 *     ring[stage]:  w [GROUPS * 64 rows][64]  |  x [COLS rows][64]        128 bytes a row, swizzled
 *
 * If one block computes all steps of a tile, it writes the result at once. For a shared tile each
 * block stores its sums in memory, and the last block to do so adds them in the order of K. This is
 * done per warp, for its sixteen rows, so that no block waits.
 *
 * The ring is nearly all of an SM's shared memory. Its first copies of w start before the previous
 * kernel has ended.
 */
#include "gpu/cuda/kernels/gemm/matmul_streamk_sm90.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm80.cuh"
#include "gpu/cuda/kernels/base/sm90.cuh"
#include "gpu/cuda/kernels/base/tma_map.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/elementwise/act.cuh"

using namespace sm90;

namespace {

constexpr uint32_t BLOCK_K = 64, ROW = BLOCK_K * 2; /* ROW: bytes of a row in a stage */
constexpr uint32_t RING = 208 << 10;
constexpr uint32_t LEAST_STEPS = 4; /* minimum steps per block */
/* Elements of w. With at most 32 rows of x other kernels are as fast unless w has more. */
constexpr uint64_t LARGE = 4 << 20;
/* Numbers of SMs. Below FEWEST the number of copies is the limit, not the bytes, and larger tiles
 * are used. From FEW on matmul_skinny serves up to 16 rows. */
constexpr uint32_t FEWEST = 28, FEW = 96;

/* GROUPS: number of consumer warpgroups, 64 rows of w each; for a gate eight rows of w1 alternate
 * with the same eight of w2. COLS: maximum rows of x. One more warp copies. */
template <int GROUPS, int COLS, bool GATE> struct shape {
    static constexpr uint32_t W_ROWS = GROUPS * 64;
    static constexpr uint32_t OUT = GATE ? W_ROWS / 2 : W_ROWS; /* columns of y per tile */
    static constexpr uint32_t STAGE = (W_ROWS + COLS) * ROW, STAGES = RING / STAGE;
    static constexpr uint32_t WARPS = GROUPS * 4, CONSUMERS = WARPS * 32, THREADS = CONSUMERS + 32;
    static constexpr uint32_t PART = W_ROWS * COLS; /* floats of a tile's sums */
    static constexpr uint32_t SMEM = STAGES * STAGE + 1024;
};

struct args {
    void *y;
    size_t y_row;      /* elements */
    uint32_t m, n;     /* of y */
    uint32_t k, steps; /* steps per tile (64-wide blocks of K), and in total */
    float *part;       /* [blocks][2][PART] */
    uint32_t *count;   /* [tiles][WARPS] */
    enum dtype y_type;
    enum act act;
};

/* Returns the first step of a block; block_of(): the block of a step. */
__device__ __forceinline__ uint32_t
first_of(const struct args &a, uint32_t block)
{
    return a.steps * block / gridDim.x;
}

__device__ __forceinline__ uint32_t
block_of(const struct args &a, uint32_t step)
{
    return ((step + 1) * gridDim.x - 1) / a.steps;
}

/* A step of the block, as tile and block of K, and its stage in the ring. */
template <uint32_t STAGES> struct place {
    uint32_t tile, k, stage, phase;

    __device__ __forceinline__ void next(const struct args &a)
    {
        if (++k == a.k) k = 0, tile++;
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

/* Copies a box of w to shared memory. L2 evicts it first, because weights are read once. */
__device__ __forceinline__ void
load_once(uint32_t to, const CUtensorMap *map, uint32_t bar, int c0, int c1, int c3)
{
    asm volatile("{\n.reg .b64 policy;\n"
                 "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
                 "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], policy;\n}" ::"r"(to),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(0), "r"(c3)
                 : "memory");
}

template <int GROUPS, int COLS, bool GATE> struct block {
    typedef shape<GROUPS, COLS, GATE> S;
    typedef struct place<S::STAGES> place;
    uint32_t ring, full, empty; /* addresses */
    uint32_t first, n;          /* steps: first .. first + n - 1 */

    __device__ __forceinline__ place begin(const struct args &a) const
    {
        return { first / a.k, first % a.k, 0, 0 };
    }

    __device__ __forceinline__ void copy_w(const CUtensorMap *w, const place &p) const
    {
        uint32_t bar = full + p.stage * 8, row = p.tile * S::OUT;

        barrier_expect(bar, S::STAGE);
        load_once(ring + p.stage * S::STAGE, w, bar, p.k * BLOCK_K, GATE ? 0 : row,
                  GATE ? row / 8 : 0);
    }

    __device__ __forceinline__ void copy_x(const CUtensorMap *x, const place &p) const
    {
        tma_load(ring + p.stage * S::STAGE + S::W_ROWS * ROW, x, full + p.stage * 8, p.k * BLOCK_K,
                 0);
    }

    __device__ __forceinline__ void fetch(const CUtensorMap *w, const CUtensorMap *x,
                                          const struct args &a) const
    {
        uint32_t early = min(n, S::STAGES);
        place p = begin(a), q = p;

        for (uint32_t i = 0; i < early; i++, p.next(a)) copy_w(w, p);
        after_previous();
        for (uint32_t i = 0; i < early; i++, q.next(a)) copy_x(x, q);
        for (uint32_t i = early; i < n; i++, p.next(a)) {
            barrier_wait(empty + p.stage * 8, p.phase ^ 1);
            copy_w(w, p);
            copy_x(x, p);
        }
    }

    /* Computes the products of `steps` steps of one tile in c. p moves on. */
    template <typename T>
    __device__ __forceinline__ void multiply(const struct args &a, place &p, uint32_t steps,
                                             float (&c)[COLS / 2]) const
    {
        uint32_t group = same(threadIdx.x / 128), before = 0;

        pin(c);
        for (uint32_t i = 0; i < steps; i++, p.next(a)) {
            uint32_t at = ring + p.stage * S::STAGE;

            barrier_wait(full + p.stage * 8, p.phase);
            wgmma_begin();
            UNROLL for (uint32_t k = 0; k < BLOCK_K / 16; k++)
                wgmma_ss<T, COLS>(c, tile_desc(at + group * 64 * ROW + k * 32, 1024, 0),
                                  tile_desc(at + S::W_ROWS * ROW + k * 32, 1024, 0), i || k);
            wgmma_commit();
            if (i) {
                wgmma_wait<1>(); /* the previous step has been read */
                barrier_arrive_warp(before);
            }
            before = empty + p.stage * 8;
        }
        wgmma_wait<0>();
        pin(c);
        barrier_arrive_warp(before);
    }

    /* Address of the thread's part of the sums that block b stores for a tile: in its first place
     * for a tile that an earlier block began, in its second for a tile that b begins. */
    __device__ __forceinline__ float4 *part(const struct args &a, uint32_t tile, uint32_t b) const
    {
        uint32_t which = 2 * b + (first_of(a, b) < tile * a.k);

        return (float4 *)(a.part + (size_t)which * S::PART) + threadIdx.x;
    }

    /* Stores this warp's sums of a shared tile. The last block to do so adds all sums into c and
     * returns true; the others return false. */
    __device__ __forceinline__ bool gather(const struct args &a, uint32_t tile,
                                           float (&c)[COLS / 2]) const
    {
        constexpr uint32_t FOURS = COLS / 8, AHEAD = (COLS > 32 ? 1 : 2) * (GROUPS > 2 ? 1 : 2);
        uint32_t from = block_of(a, tile * a.k), to = block_of(a, tile * a.k + a.k - 1);
        uint32_t *count = a.count + tile * S::WARPS + threadIdx.x / 32, came = 0;
        float4 *mine = part(a, tile, blockIdx.x), own[FOURS], sum[FOURS];

        UNROLL for (uint32_t i = 0; i < FOURS; i++) {
            own[i] = make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
            sum[i] = make_float4(0, 0, 0, 0);
            mine[i * S::CONSUMERS] = own[i];
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            came = add_in_order(count, 1);
            if (came == to - from) *count = 0;
        }
        if (same(came) != to - from) return false;
        __syncwarp(); /* makes what lane 0 acquired visible to all lanes */
        for (uint32_t b = from; b <= to; b += AHEAD) {
            float4 v[AHEAD][FOURS];

            UNROLL for (uint32_t j = 0; j < AHEAD; j++) {
                const float4 *at = part(a, tile, min(b + j, to));

                UNROLL for (uint32_t i = 0; i < FOURS; i++)
                    v[j][i] = b + j == blockIdx.x ? own[i] : __ldcg(at + i * S::CONSUMERS);
            }
            UNROLL for (uint32_t j = 0; j < AHEAD; j++)
                if (b + j <= to)
                    UNROLL for (uint32_t i = 0; i < FOURS; i++) {
                        sum[i].x += v[j][i].x, sum[i].y += v[j][i].y;
                        sum[i].z += v[j][i].z, sum[i].w += v[j][i].w;
                    }
        }
        UNROLL for (uint32_t i = 0; i < FOURS; i++) {
            c[4 * i] = sum[i].x, c[4 * i + 1] = sum[i].y;
            c[4 * i + 2] = sum[i].z, c[4 * i + 3] = sum[i].w;
        }
        return true;
    }

    /* v[a][b] of lane 4 g + t is column 8 a + g, row 2 t + b. Returns four adjacent columns from 8
     * a + g / 4 * 4 on of row 2 t + b, where b is the lowest bit of g and a the next. */
    __device__ __forceinline__ void transpose_2x2(const float (&v)[2][2], float (&four)[4]) const
    {
        const uint32_t b = threadIdx.x / 4 % 2, h = threadIdx.x / 8 % 2;
        float two[2][2];

        UNROLL for (int i = 0; i < 2; i++) {
            float other = __shfl_xor_sync(~0u, b ? v[i][0] : v[i][1], 4);

            two[i][0] = b ? other : v[i][0];
            two[i][1] = b ? v[i][1] : other;
        }
        UNROLL for (int i = 0; i < 2; i++) {
            float other = __shfl_xor_sync(~0u, h ? two[0][i] : two[1][i], 8);

            four[i] = h ? other : two[0][i];
            four[2 + i] = h ? two[1][i] : other;
        }
    }

    /* Stores this warp's rows of a tile in y, after the gate. */
    __device__ __forceinline__ void store(const struct args &a, uint32_t tile,
                                          const float (&c)[COLS / 2]) const
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x / 4 % 8, t = threadIdx.x % 4;
        const uint32_t col = tile * S::OUT + warp * (GATE ? 8 : 16) + g / 4 * 4;

        UNROLL for (uint32_t i = 0; i < COLS / 8; i += GATE ? 2 : 1) {
            const uint32_t h = g / 2 % 2, row = (i + (GATE ? h : 0)) * 8 + 2 * t + g % 2;
            const uint32_t at = col + (GATE ? 0 : h * 8);
            float v[2][2], four[4];

            UNROLL for (uint32_t j = 0; j < 2; j++)
                UNROLL for (uint32_t b = 0; b < 2; b++)
                    v[j][b] = GATE ? activate<false>(c[4 * (i + j) + b], a.act) *
                                         c[4 * (i + j) + 2 + b]
                                   : c[4 * i + 2 * j + b];
            transpose_2x2(v, four);
            if (row < a.m && at < a.n) store_as<4>(a.y_type, a.y, row * a.y_row + at, four);
        }
    }

    template <typename T> __device__ __forceinline__ void consume(const struct args &a) const
    {
        place p = begin(a);
        float c[COLS / 2];

        UNROLL for (uint32_t i = 0; i < COLS / 2; i++) c[i] = 0;
        for (uint32_t left = n; left;) {
            uint32_t tile = p.tile, steps = min(left, a.k - p.k);

            multiply<T>(a, p, steps, c);
            left -= steps;
            if (steps == a.k || gather(a, tile, c)) store(a, tile, c);
        }
    }
};

template <typename T, int GROUPS, int COLS, bool GATE>
__global__ void
__launch_bounds__(shape<GROUPS, COLS, GATE>::THREADS, 1)
    matmul_ring(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                const __grid_constant__ struct args a)
{
    typedef shape<GROUPS, COLS, GATE> S;
    extern __shared__ char memory[];
    __shared__ uint64_t bar[2 * S::STAGES];
    struct block<GROUPS, COLS, GATE> b;

    next_may_start();
    b.ring = (smem(memory) + 1023) & ~1023;
    b.full = smem(bar);
    b.empty = b.full + S::STAGES * 8;
    b.first = first_of(a, blockIdx.x);
    b.n = first_of(a, blockIdx.x + 1) - b.first;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < S::STAGES; i++) {
            barrier_init(b.full + i * 8, 1);
            barrier_init(b.empty + i * 8, S::WARPS);
        }
        async_fence();
    }
    __syncthreads();
    if (threadIdx.x == S::CONSUMERS)
        b.fetch(&w, &x, a);
    else
        after_previous();
    if (threadIdx.x < S::CONSUMERS) b.template consume<T>(a);
}

/* ---- host side ---- */

/* Makes a map of w: {column, row, 1, 1} or, for a gate, {column, 8 rows, w1 and w2, rows / 8}. */
bool
map_of(CUtensorMap *map, const struct tensor &t, uint32_t rows, bool gate)
{
    const cuuint64_t row = row_bytes(t), n = gate ? t.dim[0] / 2 : t.dim[0];
    const cuuint64_t flat[4] = { t.dim[1], n, 1, 1 }, interleaved[4] = { t.dim[1], 8, 2, n / 8 };
    const cuuint64_t stride[3] = { row, n * row, 8 * row };
    const cuuint32_t flat_box[4] = { BLOCK_K, rows, 1, 1 };
    const cuuint32_t interleaved_box[4] = { BLOCK_K, 8, 2, rows / 16 };

    return make_map(map, t.dtype, t.data, 4, gate ? interleaved : flat, stride,
                    gate ? interleaved_box : flat_box);
}

template <typename T, int GROUPS, int COLS, bool GATE>
cudaError_t
queue(const struct k_launch *l, const struct tensor &x, const struct tensor &w, struct args a)
{
    typedef shape<GROUPS, COLS, GATE> S;
    static const cudaError_t raised = cudaFuncSetAttribute(
        matmul_ring<T, GROUPS, COLS, GATE>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM);
    const uint64_t tiles = (a.n + S::OUT - 1) / S::OUT, steps = tiles * a.k;
    const uint32_t blocks = (uint32_t)MAX(MIN(l->sms, steps / LEAST_STEPS), 1u);
    CUtensorMap w_map, x_map;

    if (raised != cudaSuccess) return raised;
    if (steps >= UINT32_MAX / (blocks + 1) || tiles * S::WARPS > K_COUNTERS ||
        2 * sizeof(float) * blocks * S::PART > l->work_bytes)
        return cudaErrorInvalidValue;
    if (!map_of(&w_map, w, S::W_ROWS, GATE) || !make_row_map(&x_map, x, COLS))
        return cudaErrorInvalidValue;
    a.steps = (uint32_t)steps;
    return launch(matmul_ring<T, GROUPS, COLS, GATE>, blocks, S::THREADS, S::SMEM, l->st, w_map,
                  x_map, a);
}

template <typename T, int GROUPS, bool GATE>
cudaError_t
queue_rows(const struct k_launch *l, const struct tensor &x, const struct tensor &w,
           const struct args &a)
{
    if (a.m <= 16) return queue<T, GROUPS, 16, GATE>(l, x, w, a);
    if (a.m <= 32) return queue<T, GROUPS, 32, GATE>(l, x, w, a);
    return queue<T, GROUPS, 64, GATE>(l, x, w, a);
}

/* Chooses the tile. Small tiles send fewer sums through memory; large ones read x less often. */
template <typename T, bool GATE>
cudaError_t
queue_as(const struct k_launch *l, const struct tensor &x, const struct tensor &w,
         const struct args &a)
{
    bool large = l->sms < FEWEST || a.n >= 2 * l->sms * shape<4, 16, GATE>::OUT;

    return large ? queue_rows<T, 4, GATE>(l, x, w, a) : queue_rows<T, 2, GATE>(l, x, w, a);
}

uint32_t
device_sms()
{
    static const uint32_t sms = [] {
        int device, n = 0;

        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
            n = 0;
        return (uint32_t)n;
    }();

    return sms;
}

/* Whether this kernel is faster than the others. They are as fast for fewer rows, for small
 * matrices and on the whole device. */
bool
worth_it(const struct k_launch *l, uint32_t rows, const struct tensor &w)
{
    if (rows <= 8 || (rows <= 32 && (uint64_t)w.dim[0] * w.dim[1] <= LARGE)) return false;
    return l->sms < (rows <= 16 ? FEW : device_sms());
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
    if (x.dim[0] > MATMUL_RING_ROWS || x.dim[1] == 0 || x.dim[1] % 8 || y.dim[1] % (GATE ? 8 : 4) ||
        !rows_fit(x, 8) || !rows_fit(w, 8) || !rows_fit(y, 4))
        return cudaErrorInvalidValue;
    if (x.dim[0] == 0) return cudaSuccess;
    if (!worth_it(l, x.dim[0], w)) return cudaErrorInvalidValue;
    a.y = y.data;
    a.y_row = y.stride;
    a.m = x.dim[0];
    a.n = y.dim[1];
    a.k = (x.dim[1] + BLOCK_K - 1) / BLOCK_K;
    a.part = (float *)l->work;
    a.count = l->count;
    a.y_type = y.dtype;
    a.act = act;
    return x.dtype == DT_BF16 ? queue_as<__nv_bfloat16, GATE>(l, x, w, a)
                              : queue_as<__half, GATE>(l, x, w, a);
}

} /* namespace */

cudaError_t
k_matmul_streamk_sm90(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                      struct tensor bias, float beta)
{
    if (bias.data || beta != 0) return cudaErrorInvalidValue;
    return multiply<false>(l, y, x, w, ACT_RELU);
}

cudaError_t
k_gate_matmul_streamk_sm90(const struct k_launch *l, struct tensor y, struct tensor both,
                           struct tensor x, struct tensor w, enum act a)
{
    (void)both;
    return multiply<true>(l, y, x, w, a);
}
