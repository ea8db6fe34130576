/* experts_sm80.cu - expert_matmul by mma.sync; see experts.h. The tensor cores' A operand (16 rows)
 * is w, their B operand (8 columns) is x, as in matmul_skinny.cu. A thread block has ROWS = 32 rows
 * of one expert's w and up to 8 NT of its pairs. Its four warps process the blocks of K (BLOCK_K =
 * 128) alternately; their sums are added in order at the end. A lane 4 g + q has 32 elements of a
 * block of K of each of its rows, in registers:
 *
 *     16 bits    4 x 8 adjacent, from 32 i + 8 q on: four lanes read 64 bytes of a row at once
 *     MXFP4      one run, 32 q .. 32 q + 31: 16 bytes and a scale
 *
 * They form 16 words of two elements: the instruction's k is permuted equally for w and x, which
 * does not change the sum. MXFP4 codes become bf16 two at a time by moving bits: exponent and
 * fraction of a code, at the boundary of bf16's exponent and fraction, give values 2^126 times too
 * small, and the product with the run's scale corrects this exactly. Such a word holds elements i
 * and i + 4 of a group of eight, and x is arranged in the same way.
 *
 * NT only decides which pairs share registers: a pair's bits do not depend on it.
 */
#include "gpu/cuda/kernels/moe/experts.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm80.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/moe/experts.cuh"

namespace {

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr uint32_t ROWS = 32;
constexpr uint32_t BLOCK_K = 128;
constexpr int OWN = ROWS / 8; /* rows per lane */

/* A lane's 32 elements of a row in a block of K, as stored. */
template <bool FP4> struct raw;
template <> struct raw<false> {
    uint4 at[4];
};
template <> struct raw<true> {
    uint4 at[1];
    uint32_t scale;
};

/* Returns the first element of the i-th group of eight of lane q. */
template <bool FP4>
__device__ __forceinline__ uint32_t
element_of(uint32_t block, uint32_t q, uint32_t i)
{
    return block * BLOCK_K + (FP4 ? 32 * q + 8 * i : 32 * i + 8 * q);
}

template <bool FP4>
__device__ __forceinline__ void
fetch(raw<FP4> &to, const char *row, const uint8_t *scale, uint32_t block, uint32_t q, uint32_t k)
{
    if constexpr (FP4) {
        uint32_t segment = block * (BLOCK_K / MX_RUN) + q;
        bool there = segment < k / MX_RUN;

        to.at[0] = there ? __ldg((const uint4 *)row + segment) : make_uint4(0, 0, 0, 0);
        to.scale = there ? __ldg(scale + segment) : 127;
    } else {
        UNROLL for (uint32_t i = 0; i < 4; i++) {
            uint32_t at = element_of<false>(block, q, i);

            to.at[i] = at < k ? __ldg((const uint4 *)(row + 2 * (size_t)at))
                              : make_uint4(0, 0, 0, 0);
        }
    }
}

__device__ __forceinline__ uint32_t
times2(uint32_t a, uint32_t b)
{
    __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);

    return *(uint32_t *)&v;
}

/* Returns 2^(e - 127) as bf16 in both halves; e from 0 to 254. */
__device__ __forceinline__ uint32_t
power(uint32_t e)
{
    uint32_t h = e == 0 ? 0x40 : e << 7;

    return h << 16 | h;
}

/* Expands a lane's elements to words of two 16-bit floats. */
template <bool FP4>
__device__ __forceinline__ void
expand(uint32_t (&w)[16], const raw<FP4> &from)
{
    const uint32_t *word = (const uint32_t *)from.at;

    if constexpr (FP4) {
        /* biased exponent of the factor: 2^126 times the scale */
        uint32_t e = from.scale + 126;
        uint32_t scale = from.scale == 255 ? 0x7fff7fff : power(e < 254 ? e : 254);

        UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int j = 0; j < 4; j++) {
                uint32_t sign = word[i] << (12 - 4 * j) & 0x80008000u;
                uint32_t size = (j < 2 ? word[i] << (6 - 4 * j) : word[i] >> (4 * j - 6)) &
                                0x01c001c0u;

                w[4 * i + j] = times2(sign | size, scale);
            }
        if (e > 254 && from.scale < 255) /* the factor above 2^127, the largest power of bf16 */
            UNROLL for (int i = 0; i < 16; i++) w[i] = times2(w[i], power(e - 254 + 127));
    } else {
        UNROLL for (int i = 0; i < 16; i++) w[i] = word[i];
    }
}

/* Pairs the elements of x as expand() pairs those of w: adjacent or, for MXFP4, i and i + 4. */
template <bool FP4>
__device__ __forceinline__ void
pair_up(uint32_t (&x)[16])
{
    if constexpr (FP4) {
        UNROLL for (int i = 0; i < 16; i += 4) {
            uint32_t a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];

            x[i] = __byte_perm(a, c, 0x5410);
            x[i + 1] = __byte_perm(a, c, 0x7632);
            x[i + 2] = __byte_perm(b, d, 0x5410);
            x[i + 3] = __byte_perm(b, d, 0x7632);
        }
    }
}

template <typename T, bool FP4, int NT>
__global__ void
__launch_bounds__(THREADS) experts_sm80(const __grid_constant__ struct expert_matmul m,
                                        const __grid_constant__ struct pairs p)
{
    __shared__ float part[WARPS][8 * NT][ROWS + 1];
    const uint32_t out = m.y.dim[1], k = m.x.dim[1], blocks = (k + BLOCK_K - 1) / BLOCK_K;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const uint32_t first_token = blockIdx.x * ROWS;
    const char *row[OWN], *x[NT];
    const uint8_t *scale[OWN];
    float sum[2][NT][4] = {};

    join_previous();
    const struct expert_tile t = find_tile(p, blockIdx.y, 8 * NT);

    if (t.first == t.end) return;
    /* Rows of w after the last one repeat the last one, and their results are not stored. */
    UNROLL for (uint32_t i = 0; i < OWN; i++) {
        size_t r = (size_t)t.expert * out + min(first_token + g + 8 * i, out - 1);

        row[i] = (const char *)m.w.data + (FP4 ? r * k / 2 : r * m.w.stride * 2);
        scale[i] = FP4 ? (const uint8_t *)m.w.scale + r * (k / MX_RUN) : NULL;
    }
    UNROLL for (int n = 0; n < NT; n++) {
        uint32_t who = t.first + 8 * n + g;

        x[n] = who < t.end ? (const char *)row_at(m.x, m.by_row ? p.row[who] : who) : NULL;
    }

    raw<FP4> next[OWN];

    UNROLL for (int i = 0; i < OWN; i++)
        if (warp < blocks) fetch<FP4>(next[i], row[i], scale[i], warp, q, k);
    for (uint32_t b = warp; b < blocks; b += WARPS) {
        uint32_t w[OWN][16];

        UNROLL for (int i = 0; i < OWN; i++) expand<FP4>(w[i], next[i]);
        if (b + WARPS < blocks) {
            UNROLL for (int i = 0; i < OWN; i++)
                fetch<FP4>(next[i], row[i], scale[i], b + WARPS, q, k);
        }
        UNROLL for (int n = 0; n < NT; n++) {
            uint32_t v[16];

            if (NT > 1 && t.first + 8 * n >= t.end) break;
            UNROLL for (uint32_t i = 0; i < 4; i++) {
                uint32_t at = element_of<FP4>(b, q, i);
                uint4 u = make_uint4(0, 0, 0, 0);

                if (x[n] && at < k) u = *(const uint4 *)(x[n] + 2 * (size_t)at);
                v[4 * i] = u.x;
                v[4 * i + 1] = u.y;
                v[4 * i + 2] = u.z;
                v[4 * i + 3] = u.w;
            }
            pair_up<FP4>(v);
            UNROLL for (int s = 0; s < 8; s++)
                UNROLL for (int h = 0; h < 2; h++) {
                    const uint32_t a[4] = { w[2 * h][2 * s], w[2 * h + 1][2 * s],
                                            w[2 * h][2 * s + 1], w[2 * h + 1][2 * s + 1] };

                    mma<T>(sum[h][n], a, v[2 * s], v[2 * s + 1]);
                }
        }
    }

    UNROLL for (int n = 0; n < NT; n++)
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int i = 0; i < 4; i++)
                part[warp][8 * n + 2 * q + i % 2][16 * h + g + 8 * (i / 2)] = sum[h][n][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 8 * NT * ROWS; i += THREADS) {
        uint32_t who = t.first + i / ROWS, j = first_token + i % ROWS;
        float v[1] = { 0 };

        if (who >= t.end || j >= out) continue;
        UNROLL for (int w = 0; w < WARPS; w++) v[0] = add_rn(v[0], part[w][i / ROWS][i % ROWS]);
        if (m.bias.data) v[0] = add_rn(v[0], ((const float *)row_at(m.bias, t.expert))[j]);
        store<1>((T *)row_at(m.y, who) + j, v);
    }
}

template <typename T, bool FP4, int NT>
cudaError_t
queue(const struct k_launch *l, const struct expert_matmul *m, const struct pairs *p)
{
    dim3 grid((m->y.dim[1] + ROWS - 1) / ROWS, most_tiles(p, 8 * NT));

    if (grid.y > 65535) return cudaErrorInvalidValue;
    if (grid.y == 0) return cudaSuccess;
    return launch(experts_sm80<T, FP4, NT>, grid, THREADS, 0, l->st, *m, *p);
}

/* Chooses NT by the average number of pairs per expert. */
template <typename T, bool FP4>
cudaError_t
pick(const struct k_launch *l, const struct expert_matmul *m, const struct pairs *p)
{
    uint32_t each = p->n_tokens * p->n_top / p->n_experts;

    if (each < 4) return queue<T, FP4, 1>(l, m, p);
    if (each < 12) return queue<T, FP4, 2>(l, m, p);
    return queue<T, FP4, 8>(l, m, p);
}

} /* namespace */

cudaError_t
k_experts_sm80(const struct k_launch *l, const struct expert_matmul *m, const struct pairs *p)
{
    bool fp4 = m->w.dtype == DT_MXFP4;

    if (m->x.dim[1] % MX_RUN || !rows_fit(m->x, 8) || m->y.dtype != m->x.dtype ||
        (uintptr_t)m->w.data % 16 || (!fp4 && m->w.stride % 8))
        return cudaErrorInvalidValue;
    if (m->x.dtype == DT_BF16 && fp4) return pick<__nv_bfloat16, true>(l, m, p);
    if (m->x.dtype == DT_BF16 && m->w.dtype == DT_BF16) return pick<__nv_bfloat16, false>(l, m, p);
    if (m->x.dtype == DT_F16 && m->w.dtype == DT_F16) return pick<__half, false>(l, m, p);
    return cudaErrorInvalidValue;
}
