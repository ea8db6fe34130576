/* norm_allreduce.cu - residual with the all-reduce of `in` (peer_exchange.h) in the same pass; see
 * norm.h.
 *
 * Thread block i has row i on every rank. A thread sends its groups of `in` as bare lines and
 * receives the same elements from the other ranks; the rest is as with one rank.
 */
#include "gpu/cuda/kernels/norm/norm.h"

#include "gpu/cuda/kernels/comm/peer_exchange.cuh"
#include "gpu/cuda/kernels/norm/norm.cuh"

namespace {

/* A thread's groups as bare lines: a line has two groups of a 16-bit type or one of fp32. */
template <typename IN> struct alignas(16) words_of_fours {
    static constexpr uint32_t FOUR = sizeof(IN), LINES = KEEP * FOUR / 4;
    uint32_t w[KEEP * FOUR];
};
static_assert(THREADS * words_of_fours<float>::LINES <= K_EXCHANGE_LINES, "a block's rows fit");

/* Loops over the thread's lines that exist, which are the same on every rank: j is the line's index
 * in the thread, `at` its index in the block. Adjacent threads have adjacent lines. */
#define EACH_LINE(j, at) \
    UNROLL for (uint32_t j = 0, at = threadIdx.x; j < words_of_fours<IN>::LINES; \
                           j++, at += blockDim.x) if (has_line<IN>(j, d))

template <typename IN>
__device__ __forceinline__ bool
has_line(uint32_t j, uint32_t d)
{
    return (threadIdx.x + j * 4 / words_of_fours<IN>::FOUR * blockDim.x) * 4 < d;
}

/* Waits for all of the thread's groups from a rank, with parallel loads, and clears the lines. */
template <typename IN>
__device__ __forceinline__ void
receive_row(words_of_fours<IN> &f, uint4 *from, uint32_t d)
{
    bool all;

    do {
        all = true;
        EACH_LINE(j, at) all &= receive_bare(from + at, &f.w[4 * j]);
    } while (!all);
    EACH_LINE(j, at) clear_bare(from + at);
}

/* u = the sum of all ranks' u, in rank order, rounded as all_reduce would store it. */
template <typename IN>
__device__ __forceinline__ void
add_ranks(float (&u)[KEEP][4], const struct exchange &e, uint32_t d)
{
    constexpr bool LONG = false;
    constexpr uint32_t FOUR = words_of_fours<IN>::FOUR;
    uint32_t round = next_round(round_of(e));
    words_of_fours<IN> own = {}, theirs;

    EACH_FOUR(i, at) store<4>((IN *)(own.w + i * FOUR), u[i]);
    for (uint32_t r = 0; r < e.ranks; r++) {
        uint4 *to = bare_at(e.at[r], e, round, e.rank);

        if (r != e.rank) EACH_LINE(j, at) send_bare(to + at, &own.w[4 * j]);
    }
    for (uint32_t r = 0; r < e.ranks; r++) {
        if (r != e.rank) receive_row<IN>(theirs, bare_at(e.at[e.rank], e, round, r), d);
        EACH_FOUR(i, at)
        {
            struct alignas(16) {
                uint32_t w[FOUR];
            } f;
            float v[4];

            UNROLL for (uint32_t j = 0; j < FOUR; j++)
                f.w[j] = r == e.rank ? own.w[i * FOUR + j] : theirs.w[i * FOUR + j];
            load<4>(v, (const IN *)f.w);
            UNROLL for (int j = 0; j < 4; j++) u[i][j] = r ? add_rn(u[i][j], v[j]) : v[j];
        }
    }
    EACH_FOUR(i, at)
    {
        UNROLL for (int j = 0; j < 4; j++) u[i][j] = to_float(of_float<IN>(u[i][j]));
    }
    __syncthreads();
    end_round(e, round);
}

struct of_ranks {
    template <typename IN>
    __device__ __forceinline__ static void of(float (&u)[KEEP][4], const struct norm_args &a,
                                              uint32_t d)
    {
        add_ranks<IN>(u, a.ranks, d);
    }
};

/* Launches one thread block per row. */
cudaError_t
queue_of_ranks(const struct k_launch *l, const struct norm_args &a)
{
    const struct tensor *all[] = { &a.x, &a.in, &a.in_bias, &a.in_norm, &a.y, &a.y_norm };
    uint32_t n = a.in.dim[0], warps = (a.d + 32 * 4 * KEEP - 1) / (32 * 4 * KEEP);

    if (a.d % 4 || warps > WARPS || n > K_EXCHANGE_BLOCKS) return cudaErrorInvalidValue;
    for (const struct tensor *t : all)
        if (t->data && (!is_float(t->dtype) || !rows_fit(*t, 4))) return cudaErrorInvalidValue;
    WITH_FLOAT(T, a.in.dtype, {
        return launch(a.in_norm.data ? norm<T, ADD_NORMED, true, ROW_AND_WEIGHTS, of_ranks>
                                     : norm<T, ADD, true, ROW_AND_WEIGHTS, of_ranks>,
                      n, 32 * warps, 0, l->st, a);
    });
    return cudaErrorInvalidValue;
}

} /* namespace */

cudaError_t
k_residual_of_ranks(const struct k_launch *l, const struct exchange *e, const struct residual *r)
{
    struct norm_args a = args_of(r);

    if (r->x.dtype != DT_F32 || !r->in.data || r->norm == RESIDUAL_POST)
        return cudaErrorInvalidValue;
    if (r->norm != RESIDUAL_RMS && (r->y.data || a.in_norm.data)) return cudaErrorInvalidValue;
    a.ranks = *e;
    return queue_of_ranks(l, a);
}
