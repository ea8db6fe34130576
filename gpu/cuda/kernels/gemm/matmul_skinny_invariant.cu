/* matmul_skinny_invariant.cu - y = x w^T for few rows; see matmul_skinny_invariant.h. As in
 * matmul_skinny.cu the tensor cores' A operand (16 rows) is w, their B operand (8 columns) is x. A
 * sum may not be divided, so a warp has 16 rows of w over the whole of K, and a thread block has as
 * many warps as give every SM at most one block. Each warp has its own ring in shared memory:
 *
 *     ring[warp][stage]:  w [16 rows][256]  |  x [COLS * 8 rows][256]        512 bytes a row
 *
 * The number of a 16-byte chunk is XORed with the low three bits of its row, against bank conflicts
 * of ldmatrix. The mma instructions of a warp depend on each other. Each takes about 18 ns for 512
 * bytes of w (16 rows by 16 of K): a warp reads up to 28 GB/s, and two warps per SM saturate
 * memory. The first copies of w precede the previous kernel's end.
 */
#include "gpu/cuda/kernels/gemm/matmul_skinny_invariant.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm80.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr int TILE = 16, BLOCK_K = 256, ROW = BLOCK_K * 2;
constexpr int CHUNKS = ROW / 16, AT_ONCE = 32 / CHUNKS; /* rows that a warp copies at once */
constexpr int RING = 48 << 10;                          /* of a warp */

struct args {
    void *y;
    const void *x, *w;
    size_t y_row;        /* elements */
    size_t x_row, w_row; /* bytes between rows */
    uint32_t m, n, k, rounds;
    enum dtype y_type;
};

/* COLS: 8-row groups of x. */
template <typename T, int COLS>
__global__ void
__launch_bounds__(MATMUL_LINE_WARPS * 32, 1) matmul_skinny_invariant(const struct args a)
{
    constexpr int X_ROWS = COLS * 8, STAGE = (TILE + X_ROWS) * ROW, STAGES = RING / STAGE;
    extern __shared__ __align__(128) char memory[];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t first = (blockIdx.x * (blockDim.x / 32) + warp) * TILE;
    const uint32_t ring = smem(memory) + warp * RING;
    const uint32_t c_row = lane / CHUNKS, c_k = lane % CHUNKS; /* what this lane copies */
    float acc[COLS][4];

    auto place = [](uint32_t row, uint32_t chunk) {
        return row * ROW + ((chunk ^ (row & 7)) << 4);
    };
    auto copy_w = [&](uint32_t round) {
        uint32_t k = round * BLOCK_K + c_k * 8, to = ring + round % STAGES * STAGE;

        UNROLL for (int i = 0; i < TILE; i += AT_ONCE) {
            uint32_t row = first + i + c_row;
            bool there = k < a.k && row < a.n;

            copy_async_or_zero(to + place(i + c_row, c_k),
                               (const char *)a.w + (there ? row * a.w_row + k * 2 : 0), there);
        }
    };
    auto copy_x = [&](uint32_t round) {
        uint32_t k = round * BLOCK_K + c_k * 8, to = ring + round % STAGES * STAGE + TILE * ROW;

        UNROLL for (int i = 0; i < X_ROWS; i += AT_ONCE) {
            uint32_t row = i + c_row;
            bool there = k < a.k && row < a.m;

            copy_async_or_zero(to + place(row, c_k),
                               (const char *)a.x + (there ? row * a.x_row + k * 2 : 0), there);
        }
    };

    next_may_start();
    UNROLL for (int s = 0; s < STAGES; s++)
        if (s < a.rounds) copy_w(s);
    after_previous();
    UNROLL for (int s = 0; s < STAGES; s++) {
        if (s < a.rounds) copy_x(s);
        copy_commit();
    }
    UNROLL for (int j = 0; j < COLS; j++)
        UNROLL for (int c = 0; c < 4; c++) acc[j][c] = 0;

    for (uint32_t round = 0; round < a.rounds; round++) {
        uint32_t w_at = ring + round % STAGES * STAGE, x_at = w_at + TILE * ROW;

        copy_wait<STAGES - 1>();
        __syncwarp();
        UNROLL for (int k = 0; k < BLOCK_K / 16; k += 2) {
            uint32_t left[2][4], right[COLS][4];

            /* Matrices are 8 rows by 8 of K: w rows 0 and 8, K 0 and 8; x K 0, 8, 16 and 24. */
            UNROLL for (int h = 0; h < 2; h++)
                load_matrices(left[h], w_at + place(lane % 16, 2 * (k + h) + lane / 16));
            UNROLL for (int j = 0; j < COLS; j++)
                load_matrices(right[j], x_at + place(j * 8 + lane % 8, 2 * k + lane / 8));
            UNROLL for (int h = 0; h < 2; h++)
                UNROLL for (int j = 0; j < COLS; j++)
                    mma<T>(acc[j], left[h], right[j][2 * h], right[j][2 * h + 1]);
        }
        __syncwarp(); /* every lane has read the stage */
        if (round + STAGES < a.rounds) {
            copy_w(round + STAGES);
            copy_x(round + STAGES);
        }
        copy_commit();
    }
    UNROLL for (int j = 0; j < COLS; j++)
        UNROLL for (int c = 0; c < 4; c++) {
            uint32_t row = j * 8 + lane % 4 * 2 + c % 2, n = first + lane / 4 + c / 2 * 8;
            float v[1] = { acc[j][c] };

            if (row < a.m && n < a.n) store_as<1>(a.y_type, a.y, row * a.y_row + n, v);
        }
}

template <typename T, int COLS>
cudaError_t
queue(const struct k_launch *l, const struct args &a)
{
    static cudaError_t raised = cudaFuncSetAttribute(matmul_skinny_invariant<T, COLS>,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     RING * MATMUL_LINE_WARPS);
    uint32_t tiles = (a.n + TILE - 1) / TILE, warps = (tiles + l->sms - 1) / l->sms;

    if (raised != cudaSuccess) return raised;
    return launch(matmul_skinny_invariant<T, COLS>, (tiles + warps - 1) / warps, warps * 32,
                  RING * warps, l->st, a);
}

template <typename T>
cudaError_t
queue_as(const struct k_launch *l, const struct args &a)
{
    return a.m <= 8 ? queue<T, 1>(l, a) : queue<T, 2>(l, a);
}

} /* namespace */

cudaError_t
k_matmul_skinny_invariant(const struct k_launch *l, struct tensor y, struct tensor x,
                          struct tensor w)
{
    struct args a = {};

    if (x.dtype != w.dtype || (x.dtype != DT_BF16 && x.dtype != DT_F16))
        return cudaErrorInvalidValue;
    if (y.dtype != DT_F32 && y.dtype != x.dtype) return cudaErrorInvalidValue;
    if (x.dim[0] > MATMUL_LINE_ROWS || x.dim[1] % 16 || !rows_fit(x, 8) || !rows_fit(w, 8) ||
        w.dim[0] > TILE * MATMUL_LINE_WARPS * l->sms)
        return cudaErrorInvalidValue;
    if (x.dim[0] == 0) return cudaSuccess;
    a.y = y.data;
    a.x = x.data;
    a.w = w.data;
    a.y_row = y.stride;
    a.x_row = (size_t)x.stride * 2;
    a.w_row = (size_t)w.stride * 2;
    a.m = x.dim[0];
    a.n = w.dim[0];
    a.k = x.dim[1];
    a.rounds = (a.k + BLOCK_K - 1) / BLOCK_K;
    a.y_type = y.dtype;
    return x.dtype == DT_BF16 ? queue_as<__nv_bfloat16>(l, a) : queue_as<__half>(l, a);
}
