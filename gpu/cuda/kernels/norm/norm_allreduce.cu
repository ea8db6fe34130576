/* norm_allreduce.cu - residuals of what ranks have parts of: the sum (peer_exchange.h) within the
 * pass. See norm.h.
 *
 * Block i has row i on every rank. What a thread has of in travels while it waits for what the
 * others have of the same elements; then everything is as with one rank.
 */
#include "gpu/cuda/kernels/norm/norm.h"

#include "gpu/cuda/kernels/comm/peer_exchange.cuh"
#include "gpu/cuda/kernels/norm/norm.cuh"

namespace {

/* A thread's fours as they travel: lines of four words, two fours of a 16-bit type each, or one of
 * fp32. */
template <typename IN> struct alignas(16) words_of_fours {
    static constexpr uint32_t FOUR = sizeof(IN), LINES = KEEP * FOUR / 4;
    uint32_t w[KEEP * FOUR];
};
static_assert(THREADS * words_of_fours<float>::LINES <= K_EXCHANGE_LINES, "a block's rows fit");

/* The thread's line j of its block's, where it has one: if its first four is there, on every rank
 * alike. Neighbours' lines are neighbours. */
#define EACH_LINE(j, at) \
    _Pragma("unroll") for (uint32_t j = 0, at = threadIdx.x; j < words_of_fours<IN>::LINES; \
                           j++, at += blockDim.x) if (has_line<IN>(j, d))

template <typename IN>
__device__ __forceinline__ bool
has_line(uint32_t j, uint32_t d)
{
    return (threadIdx.x + j * 4 / words_of_fours<IN>::FOUR * blockDim.x) * 4 < d;
}

/* All of the thread's fours that come from that rank. They are asked for together, and leave room
 * behind. */
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

/* u = the sum of all ranks' u, in their order, rounded as a sum of its own would be stored. */
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

#pragma unroll
            for (uint32_t j = 0; j < FOUR; j++)
                f.w[j] = r == e.rank ? own.w[i * FOUR + j] : theirs.w[i * FOUR + j];
            load<4>(v, (const IN *)f.w);
#pragma unroll
            for (int j = 0; j < 4; j++) u[i][j] = r ? add_rn(u[i][j], v[j]) : v[j];
        }
    }
    EACH_FOUR(i, at)
    {
#pragma unroll
        for (int j = 0; j < 4; j++) u[i][j] = to_float(of_float<IN>(u[i][j]));
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

/* Rows that one thread of each rank's same block has. */
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
