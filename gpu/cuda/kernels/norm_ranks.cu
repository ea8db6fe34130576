/* norm_ranks.cu - residuals of what ranks have parts of: the sum (exchange.h) within the pass. See norm.h.
 *
 * Block i has row i on every rank. What a thread has of in travels while it waits for what the others have of the same
 * elements; then everything is as with one rank.
 */
#include "gpu/cuda/kernels/norm.h"

#include "gpu/cuda/kernels/exchange.cuh"
#include "gpu/cuda/kernels/norm.cuh"

namespace {

/* A thread's four as it travels: two words of a 16-bit type, or four. Loaded and stored as one. */
template <typename IN> struct alignas(4 * sizeof(IN)) words_of_four {
    uint32_t w[sizeof(IN)];
};

/* Where thread t has line j of its four i: neighbours' lines are neighbours. */
template <typename IN>
__device__ __forceinline__ uint32_t
line_of(uint32_t i, uint32_t j)
{
    return (i * (uint32_t)sizeof(IN) / 2 + j) * blockDim.x + threadIdx.x;
}

/* Until all of the thread's fours have come from that rank. They are asked for together. */
template <typename IN>
__device__ __forceinline__ void
hear_row(words_of_four<IN> (&f)[KEEP], const uint4 *from, uint32_t turn, uint32_t d)
{
    constexpr bool LONG = false;
    bool all;

    do {
        all = true;
        EACH_FOUR(i, at)
        {
#pragma unroll
            for (uint32_t j = 0; j < sizeof(IN) / 2; j++)
                all &= hear_line(from + line_of<IN>(i, j), &f[i].w[2 * j], &f[i].w[2 * j + 1],
                                 turn);
        }
    } while (!all);
}

/* u = the sum of all ranks' u, in their order, rounded as a sum of its own would be stored. */
template <typename IN>
__device__ __forceinline__ void
add_ranks(float (&u)[KEEP][4], const struct exchange &e, uint32_t d)
{
    constexpr bool LONG = false;
    uint32_t turn = next_turn(turn_of(e));
    words_of_four<IN> own[KEEP], theirs[KEEP];

    EACH_FOUR(i, at)
    {
        store<4>((IN *)own[i].w, u[i]);
        for (uint32_t r = 0; r < e.ranks; r++) {
            if (r == e.rank) continue;
#pragma unroll
            for (uint32_t j = 0; j < sizeof(IN) / 2; j++)
                send_line(lines_at(e.at[r], e, turn, e.rank) + line_of<IN>(i, j), own[i].w[2 * j],
                          own[i].w[2 * j + 1], turn);
        }
    }
    for (uint32_t r = 0; r < e.ranks; r++) {
        if (r != e.rank) hear_row<IN>(theirs, lines_at(e.at[e.rank], e, turn, r), turn, d);
        EACH_FOUR(i, at)
        {
            words_of_four<IN> f;
            float v[4];

#pragma unroll
            for (uint32_t j = 0; j < sizeof(IN); j++)
                f.w[j] = r == e.rank ? own[i].w[j] : theirs[i].w[j];
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
    end_turn(e, turn);
}

struct of_ranks {
    template <typename IN>
    __device__ __forceinline__ static void of(float (&u)[KEEP][4], const struct norm_args &a,
                                              uint32_t d)
    {
        add_ranks<IN>(u, a.ranks, d);
    }
};

/* Rows that one thread of each rank's same block has, and that fit in its lines. */
cudaError_t
queue_of_ranks(const struct k_lane *l, const struct norm_args &a)
{
    const struct tensor *all[] = { &a.x, &a.in, &a.in_bias, &a.in_norm, &a.y, &a.y_norm };
    uint32_t n = a.in.dim[0], warps = (a.d + 32 * 4 * KEEP - 1) / (32 * 4 * KEEP);

    if (a.d % 4 || warps > WARPS || n > K_EXCHANGE_BLOCKS) return cudaErrorInvalidValue;
    if (32 * warps * KEEP * float_bytes(a.in.dtype) / 2 > K_EXCHANGE_LINES)
        return cudaErrorInvalidValue;
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
k_residual_of_ranks(const struct k_lane *l, const struct exchange *e, const struct residual *r)
{
    struct norm_args a = args_of(r);

    if (r->x.dtype != DT_F32 || !r->in.data || r->norm == RESIDUAL_POST)
        return cudaErrorInvalidValue;
    if (r->norm != RESIDUAL_RMS && (r->y.data || a.in_norm.data)) return cudaErrorInvalidValue;
    a.ranks = *e;
    return queue_of_ranks(l, a);
}
