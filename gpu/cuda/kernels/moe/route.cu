/* route.cu - chooses experts and adds their results; see route.h. Kernel choose: a warp has a row,
 * lane i the experts i, i + 32, ... An expert has a 64-bit key, ordered by its score, NaN lowest,
 * then by lower expert. The largest key is taken n_top times; lane j keeps the j-th. Kernel place:
 * a thread block has an expert. It counts the (row, expert) pairs of lower experts, which gives the
 * start of its own, and then assigns places to its own pairs in the order of rows.
 */
#include "gpu/cuda/kernels/moe/route.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr uint32_t THREADS = ROW_THREADS;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t MAX_EACH = 32; /* experts per lane */

__device__ __forceinline__ uint64_t
key_of(float x, uint32_t expert)
{
    uint32_t u = __float_as_uint(add_rn(x, 0.0f)); /* -0 becomes 0 */

    u = x != x ? 0 : u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (UINT32_MAX - expert);
}

__device__ __forceinline__ float
sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Returns the number by which experts are ranked. */
__device__ __forceinline__ float
score(const struct route &r, float logit, uint32_t expert)
{
    return r.sigmoid ? add_rn(sigmoid(logit), ((const float *)r.bias.data)[expert]) : logit;
}

__device__ __forceinline__ uint64_t
warp_max(uint64_t v)
{
    UNROLL for (int step = 16; step > 0; step /= 2) {
        uint64_t other = __shfl_xor_sync(~0u, v, step);

        v = other > v ? other : v;
    }
    return v;
}

__global__ void
__launch_bounds__(THREADS) choose(const __grid_constant__ struct route r)
{
    const struct pairs &p = r.pairs;
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t expert = p.n_experts, taken = 0;
    float logit = 0, best = 0, share = 0, sum = 0;

    join_previous();
    if (row >= p.n_tokens) return;
    const float *logits = (const float *)row_at(r.logits, row);
    bool padding = r.slot && r.slot[row] == SLOT_NONE;

    for (uint32_t j = 0; j < p.n_top && !padding; j++) {
        uint64_t most = 0;

        for (uint32_t i = 0; i < MAX_EACH && lane + 32 * i < p.n_experts; i++) {
            uint32_t e = lane + 32 * i;
            uint64_t key = key_of(score(r, logits[e], e), e);

            if (!(taken >> i & 1) && key > most) most = key;
        }
        most = warp_max(most);
        uint32_t e = UINT32_MAX - (uint32_t)most;

        if (e % 32 == lane) taken |= 1u << e / 32;
        if (lane == j) expert = e;
        if (j == 0) best = logits[e];
    }
    if (expert < p.n_experts) logit = logits[expert];
    if (!padding) share = r.sigmoid ? sigmoid(logit) : expf(mul_rn(add_rn(logit, -best), r.factor));
    for (uint32_t j = 0; j < p.n_top; j++) sum = add_rn(sum, __shfl_sync(~0u, share, j));
    if (lane >= p.n_top) return;
    if (padding) sum = 1;
    share = r.sigmoid ? mul_rn(share / add_rn(sum, 1e-20f), r.factor) : share / sum;
    if (r.scale.data && !padding && !r.sigmoid)
        share = mul_rn(share, ((const float *)r.scale.data)[expert]);
    p.expert[(size_t)row * p.n_top + lane] = expert;
    p.share[(size_t)row * p.n_top + lane] = share;
}

/* Returns how many earlier threads of the block have `mine` set; *all: how many in total. */
__device__ __forceinline__ uint32_t
rank_of(bool mine, uint32_t *count, uint32_t *all)
{
    uint32_t votes = __ballot_sync(~0u, mine), warp = threadIdx.x / 32;
    uint32_t rank = __popc(votes & ((1u << threadIdx.x % 32) - 1)), sum = 0;

    __syncthreads();
    if (threadIdx.x % 32 == 0) count[warp] = __popc(votes);
    __syncthreads();
    for (uint32_t i = 0; i < WARPS; i++) {
        if (i < warp) rank += count[i];
        sum += count[i];
    }
    *all = sum;
    return rank;
}

__global__ void
__launch_bounds__(THREADS) place(const __grid_constant__ struct pairs p)
{
    __shared__ uint32_t count[WARPS], before;
    const uint32_t e = blockIdx.x, n = p.n_tokens * p.n_top;
    uint32_t less = 0, at, all;

    join_previous();
    if (threadIdx.x == 0) before = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) less += p.expert[i] < e;
    if (less) atomicAdd(&before, less); /* a sum of integers is the same in any order */
    __syncthreads();
    at = before;
    if (threadIdx.x == 0) p.first[e] = at;
    for (uint32_t from = 0; from < n; from += THREADS, at += all) {
        uint32_t i = from + threadIdx.x, whose = i < n ? p.expert[i] : UINT32_MAX;
        uint32_t rank = rank_of(whose == e, count, &all);

        if (whose == e) {
            p.row[at + rank] = i / p.n_top;
            p.place[i] = at + rank;
        }
        if (whose == p.n_experts && e == 0) p.place[i] = 0;
    }
    if (threadIdx.x == 0 && e + 1 == p.n_experts) p.first[p.n_experts] = at;
}

template <typename T, int N>
__global__ void
__launch_bounds__(THREADS)
    combine(struct tensor y, struct tensor x, const __grid_constant__ struct pairs p)
{
    uint32_t at = (blockIdx.x * THREADS + threadIdx.x) * N;

    join_previous();
    if (at >= y.dim[1]) return;
    for (uint32_t i = blockIdx.y; i < y.dim[0]; i += gridDim.y) {
        size_t first = (size_t)i * p.n_top;
        float sum[N] = {};

        for (uint32_t j = 0; j < p.n_top && p.expert[first] < p.n_experts; j++) {
            float v[N], share = p.share[first + j];

            load<N>(v, (const T *)row_at(x, p.place[first + j]) + at);
            UNROLL for (int e = 0; e < N; e++) sum[e] = fmaf(share, v[e], sum[e]);
        }
        store<N>((T *)row_at(y, i) + at, sum);
    }
}

} /* namespace */

cudaError_t
k_route(const struct k_launch *l, const struct route *r)
{
    const struct pairs *p = &r->pairs;
    cudaError_t e;

    if (p->n_experts > 32 * MAX_EACH || p->n_top > 32) return cudaErrorInvalidValue;
    e = launch(choose, (p->n_tokens + WARPS - 1) / WARPS, THREADS, 0, l->st, *r);
    return e == cudaSuccess ? launch(place, p->n_experts, THREADS, 0, l->st, *p) : e;
}

cudaError_t
k_combine(const struct k_launch *l, struct tensor y, struct tensor x, const struct pairs *p)
{
    if (y.dtype != x.dtype) return cudaErrorInvalidValue;
    WITH_FLOAT(T, y.dtype, {
        constexpr uint32_t N = 16 / sizeof(T);

        return launch_rows(l, columns_fit(y.dim[1], N, y, x), N, combine<T, N>, combine<T, 1>,
                           y.dim[0], y.dim[1], y, x, *p);
    });
    return cudaSuccess;
}
