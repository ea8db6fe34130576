/* matmul_skinny.cu - y = x w^T for few rows; see matmul_skinny.h. The tensor cores' A operand (16
 * rows) is w, their B operand (8 columns) is x: up to 8 COLS rows of x cost no time, because
 * reading w takes longer. A thread block, at most one per SM, owns tiles of TILES * 16 rows of w,
 * over the whole of K. Its warps process the 64-wide blocks of K alternately, each through its own
 * ring in shared memory:
 *
 *     ring[warp][stage]:  w [TILES * 16 rows][64]  |  x [COLS * 8 rows][64]        128 bytes a row
 *
 * A lane copies 16 bytes at a time, so that eight lanes read 128 bytes of one row. It loads 16
 * bytes for a fragment: lane 4 g + t has elements 8 t .. 8 t + 7 of rows g and g + 8 where the
 * instruction expects 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. K is permuted equally for w and x, which
 * does not change the sum. In odd rows the first and the last four 16-byte chunks are swapped to
 * avoid bank conflicts.
 *
 * The ring keeps nearly 200 KiB per SM in flight, also across tiles. The first copies of w start
 * before the previous kernel has ended. A smaller ring would let the next kernel start earlier, but
 * is slower: with half of the ring two blocks of one kernel share an SM, and a chain of matmuls
 * takes 20 % longer (measured); T5 is also slower with a ring no larger than a block's share of w.
 *
 * Order of a sum: a warp adds its blocks of K in order, then the warps are added in order. TILES,
 * COLS and the number of thread blocks do not matter: bits depend neither on M nor on the lane's
 * SMs.
 */
#include "gpu/cuda/kernels/gemm/matmul_skinny.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm80.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/elementwise/act.cuh"

namespace {

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int RING = 200 << 10;
constexpr int BLOCK_K = 64;
constexpr int ROW = BLOCK_K * 2;   /* bytes of a row in a stage */
constexpr uint32_t SHORT_K = 2048; /* the ring holds two tiles of w of at most this K */
constexpr uint32_t MANY_N = 4096;  /* maximum N with more than 16 rows of x */
constexpr uint32_t FEW = 96;       /* fewer SMs than this do not saturate memory */

/* The output y, and what is done to a product before it is stored in y. */
struct product_end {
    void *y;
    const void *bias;
    size_t y_row; /* elements */
    enum dtype y_type, bias_type;
    float beta;
    bool acts;
    enum act act;
};

struct args {
    struct product_end end;
    const void *x, *w;
    size_t x_row, w_row; /* bytes between rows */
    uint32_t m, n, k;    /* n: columns of y; for a gate w has twice as many rows */
    uint32_t passes;     /* tiles of w per thread block */
    uint32_t rounds;     /* 64-wide blocks of K per warp and tile */
};

__device__ __forceinline__ void
store_product(const struct product_end &e, uint32_t row, uint32_t n, float product)
{
    float v[1] = { product }, old[1];

    if (e.bias) {
        load_as<1>(old, e.bias_type, e.bias, n);
        v[0] += old[0];
    }
    if (e.beta != 0) {
        load_as<1>(old, e.y_type, e.y, row * e.y_row + n);
        v[0] = fmaf(e.beta, old[0], v[0]);
    }
    if (e.acts) v[0] = activate<false>(v[0], e.act);
    store_as<1>(e.y_type, e.y, row * e.y_row + n, v);
}

__device__ __forceinline__ uint4
fragment(uint32_t at)
{
    uint4 v;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* TILES: 16-row tiles of w that a block computes at a time (a pass); for a gate the first half are
 * rows of w1, the second half the same rows of w2. COLS: 8-row groups of x. */
template <typename T, int TILES, int COLS, bool GATE> struct shape {
    static constexpr int W_ROWS = TILES * 16, X_ROWS = COLS * 8;
    static constexpr int OUT = GATE ? W_ROWS / 2 : W_ROWS; /* columns of y per pass */
    static constexpr int STAGE = (W_ROWS + X_ROWS) * ROW;  /* bytes per warp */
    static constexpr int STAGES = RING / (STAGE * WARPS) < 2 ? 2 : RING / (STAGE * WARPS);
    /* floats per row of sums; an odd number avoids bank conflicts */
    static constexpr int PITCH = X_ROWS + 1;
    static constexpr int SUMS = WARPS * W_ROWS * PITCH * 4;
    static constexpr int SMEM = STAGES * STAGE * WARPS + SUMS;
};

template <typename T, int TILES, int COLS, bool GATE>
__global__ void
__launch_bounds__(THREADS, 1) matmul_skinny(const struct args a)
{
    typedef shape<T, TILES, COLS, GATE> S;
    extern __shared__ __align__(128) char memory[];
    float *sums = (float *)(memory + S::STAGES * S::STAGE * WARPS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t ring = smem(memory) + warp * S::STAGES * S::STAGE;
    const uint32_t steps = a.passes * a.rounds;
    /* This lane copies chunk (lane % 8) of every fourth row from lane / 8 on. */
    const uint32_t c_row = lane / 8, c_k = lane % 8 * 8;
    const uint32_t c_to = c_row * ROW + ((lane % 8) ^ (c_row & 1) * 4) * 16;
    /* This lane reads chunks t and 4 + t of rows g + 8 i. */
    const uint32_t f_at = g * ROW + (t ^ (g & 1) * 4) * 16;
    float acc[TILES][COLS][4];

    /* Positions of the next copies: pass and block of K of w, block of K of x. A step is one block
     * of K of this warp. */
    uint32_t w_pass = 0, w_round = 0, x_round = 0;
    auto copy_w = [&](uint32_t step) {
        uint32_t first = (w_pass * gridDim.x + blockIdx.x) * S::OUT;
        uint32_t k = (w_round * WARPS + warp) * BLOCK_K + c_k;
        uint32_t to = ring + step % S::STAGES * S::STAGE + c_to;

        UNROLL for (int i = 0; i < S::W_ROWS / 4; i++) {
            int r = i * 4; /* + c_row */
            uint32_t row = first + c_row + (GATE && r >= S::OUT ? r - S::OUT : r);
            bool there = k < a.k && row < a.n;

            if (GATE && r >= S::OUT) row += a.n;
            copy_async_or_zero(to + r * ROW,
                               (const char *)a.w + (there ? row * a.w_row + k * 2 : 0), there);
        }
        if (++w_round == a.rounds) {
            w_round = 0;
            w_pass++;
        }
    };
    auto copy_x = [&](uint32_t step) {
        uint32_t k = (x_round * WARPS + warp) * BLOCK_K + c_k;
        uint32_t to = ring + step % S::STAGES * S::STAGE + S::W_ROWS * ROW + c_to;

        UNROLL for (int i = 0; i < S::X_ROWS / 4; i++) {
            uint32_t row = c_row + i * 4;
            bool there = k < a.k && row < a.m;

            copy_async_or_zero(to + i * 4 * ROW,
                               (const char *)a.x + (there ? row * a.x_row + k * 2 : 0), there);
        }
        if (++x_round == a.rounds) x_round = 0;
    };

    auto total = [&](uint32_t col, uint32_t row) {
        const float *at = sums + col * S::PITCH + row;
        float v = 0;

        UNROLL for (int i = 0; i < WARPS; i++) v += at[i * S::W_ROWS * S::PITCH];
        return v;
    };

    next_may_start();
    UNROLL for (int s = 0; s < S::STAGES; s++)
        if (s < steps) copy_w(s);
    after_previous();
    UNROLL for (int s = 0; s < S::STAGES; s++) {
        if (s < steps) copy_x(s);
        copy_commit();
    }

    for (uint32_t step = 0, pass = 0; pass < a.passes; pass++) {
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int j = 0; j < COLS; j++)
                UNROLL for (int c = 0; c < 4; c++) acc[i][j][c] = 0;

        for (uint32_t round = 0; round < a.rounds; round++, step++) {
            uint32_t w_at = ring + step % S::STAGES * S::STAGE + f_at;
            uint32_t x_at = w_at + S::W_ROWS * ROW;

            copy_wait<S::STAGES - 1>();
            __syncwarp();
            UNROLL for (int half = 0; half < 2; half++) {
                uint4 b[COLS];

                /* XOR 64 gives chunk 4 + t: in shared memory it is 64 bytes from chunk t. */
                UNROLL for (int j = 0; j < COLS; j++)
                    b[j] = fragment((x_at + j * 8 * ROW) ^ half * 64);
                UNROLL for (int i = 0; i < TILES; i++) {
                    uint4 lo = fragment((w_at + i * 16 * ROW) ^ half * 64);
                    uint4 hi = fragment((w_at + (i * 16 + 8) * ROW) ^ half * 64);
                    uint32_t first[4] = { lo.x, hi.x, lo.y, hi.y };
                    uint32_t last[4] = { lo.z, hi.z, lo.w, hi.w };

                    UNROLL for (int j = 0; j < COLS; j++) {
                        mma<T>(acc[i][j], first, b[j].x, b[j].y);
                        mma<T>(acc[i][j], last, b[j].z, b[j].w);
                    }
                }
            }
            __syncwarp(); /* every lane has read the stage */
            if (step + S::STAGES < steps) {
                copy_w(step + S::STAGES);
                copy_x(step + S::STAGES);
            }
            copy_commit();
        }

        __syncthreads(); /* the sums of the previous pass have been read */
        UNROLL for (int i = 0; i < TILES; i++)
            UNROLL for (int j = 0; j < COLS; j++)
                UNROLL for (int c = 0; c < 4; c++)
                    sums[(warp * S::W_ROWS + i * 16 + g + c / 2 * 8) * S::PITCH + j * 8 + 2 * t +
                         c % 2] = acc[i][j][c];
        __syncthreads();
        for (uint32_t o = threadIdx.x; o < S::OUT * a.m; o += THREADS) {
            uint32_t col = o % S::OUT, row = o / S::OUT;
            uint32_t n = (pass * gridDim.x + blockIdx.x) * S::OUT + col;
            float v;

            if (n >= a.n) continue;
            v = total(col, row);
            if (GATE) v = activate<false>(v, a.end.act) * total(S::OUT + col, row);
            store_product(a.end, row, n, v);
        }
    }
}

template <typename T, int TILES, int COLS, bool GATE>
cudaError_t
queue(const struct k_launch *l, struct args a)
{
    typedef shape<T, TILES, COLS, GATE> S;
    static cudaError_t raised = cudaFuncSetAttribute(
        matmul_skinny<T, TILES, COLS, GATE>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM);
    uint32_t tiles = (a.n + S::OUT - 1) / S::OUT, grid = tiles < l->sms ? tiles : l->sms;

    if (raised != cudaSuccess) return raised;
    a.passes = (tiles + grid - 1) / grid;
    a.rounds = (a.k + WARPS * BLOCK_K - 1) / (WARPS * BLOCK_K);
    return launch(matmul_skinny<T, TILES, COLS, GATE>, grid, THREADS, S::SMEM, l->st, a);
}

/* Chooses TILES and COLS. One 16-row tile at a time balances the SMs best. Two at a time halve the
 * reads of x, which pays above 8 rows of x if every SM has several tiles. If K is short, they save
 * the second of two passes. On fewer than FEW SMs they use more of the memory bandwidth. */
template <typename T, bool GATE>
cudaError_t
queue_as(const struct k_launch *l, const struct args &a)
{
    constexpr int LEAST = GATE ? 2 : 1;
    bool pairs = (a.k <= SHORT_K && a.n > 16 * l->sms && a.n <= 32 * l->sms) ||
                 (l->sms < FEW && a.n > 32 * l->sms);

    if (a.m <= 8) return pairs ? queue<T, 2, 1, GATE>(l, a) : queue<T, LEAST, 1, GATE>(l, a);
    if (a.m <= 16)
        return pairs || a.n >= 6 * 16 * l->sms ? queue<T, 2, 2, GATE>(l, a)
                                               : queue<T, LEAST, 2, GATE>(l, a);
    return a.n > 16 * l->sms ? queue<T, 2, 4, GATE>(l, a) : queue<T, LEAST, 4, GATE>(l, a);
}

template <bool GATE>
cudaError_t
queue_typed(const struct k_launch *l, const struct args &a, enum dtype t)
{
    return t == DT_BF16 ? queue_as<__nv_bfloat16, GATE>(l, a) : queue_as<__half, GATE>(l, a);
}

/* Returns the maximum M. Above 16 rows cuBLASLt is as fast if N is large, or if K is long and
 * 32-row tiles of w would leave half of the SMs without a tile. */
uint32_t
most_rows(const struct k_launch *l, uint32_t n, uint32_t k)
{
    return n <= MANY_N && (k <= SHORT_K || n > 16 * l->sms) ? MATMUL_SMALL_ROWS : 16;
}

bool
takes(const struct k_launch *l, const struct tensor &y, const struct tensor &x,
      const struct tensor &w)
{
    if (x.dtype != w.dtype || (x.dtype != DT_BF16 && x.dtype != DT_F16)) return false;
    return !l->invariant && x.dim[0] <= most_rows(l, y.dim[1], x.dim[1]) && x.dim[1] % 8 == 0 &&
           rows_fit(x, 8) && rows_fit(w, 8) && (y.dtype == DT_F32 || y.dtype == x.dtype);
}

struct args
args_of(const struct tensor &y, const struct tensor &x, const struct tensor &w)
{
    struct args a = {};

    a.end.y = y.data;
    a.x = x.data;
    a.w = w.data;
    a.x_row = (size_t)x.stride * 2;
    a.w_row = (size_t)w.stride * 2;
    a.end.y_row = y.stride;
    a.m = x.dim[0];
    a.n = y.dim[1];
    a.k = x.dim[1];
    a.end.y_type = y.dtype;
    return a;
}

/* Launches y = x w^T + bias + beta y; act: applied to the result, or NULL. */
cudaError_t
multiply(const struct k_launch *l, const struct tensor &y, const struct tensor &x,
         const struct tensor &w, const struct tensor &bias, float beta, const enum act *act)
{
    struct args a = args_of(y, x, w);

    if (!takes(l, y, x, w) || (bias.data && !is_float(bias.dtype))) return cudaErrorInvalidValue;
    if (a.m == 0) return cudaSuccess;
    a.end.bias = bias.data;
    a.end.bias_type = bias.dtype;
    a.end.beta = beta;
    a.end.acts = act;
    if (act) a.end.act = *act;
    return queue_typed<false>(l, a, x.dtype);
}

} /* namespace */

cudaError_t
k_matmul_skinny(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                struct tensor bias, float beta)
{
    return multiply(l, y, x, w, bias, beta, NULL);
}

cudaError_t
k_act_matmul_skinny(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w,
                    struct tensor bias, enum act act)
{
    return multiply(l, y, x, w, bias, 0, &act);
}

cudaError_t
k_gate_matmul_skinny(const struct k_launch *l, struct tensor y, struct tensor both, struct tensor x,
                     struct tensor w, enum act act)
{
    struct args a = args_of(y, x, w);

    (void)both;
    if (!takes(l, y, x, w)) return cudaErrorInvalidValue;
    if (a.m == 0) return cudaSuccess;
    a.end.act = act;
    return queue_typed<true>(l, a, x.dtype);
}
