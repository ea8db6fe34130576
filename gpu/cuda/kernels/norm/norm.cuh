/* norm.cuh - kernel of RMS norms and residuals, for norm.cu and norm_allreduce.cu (ranks). */
#pragma once
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"
#include "gpu/cuda/kernels/comm/peer_exchange.h"

namespace {

constexpr uint32_t KEEP = 4; /* maximum groups of four elements that a thread keeps */
constexpr uint32_t THREADS = 512;
constexpr uint32_t WARPS = THREADS / 32;

enum how { NORM, ADD, ADD_NORMED }; /* before the norm of y: nothing; x += in; x += norm(in) */

/* What a thread keeps in registers. With few rows it also keeps the weights, loaded before the row.
 * With more rows than the SMs hold at once these registers would reduce occupancy. */
enum keep { NOTHING, ROW, ROW_AND_WEIGHTS };
constexpr uint32_t FEW = 4; /* few rows: at most this many per SM */

/* x: receives x + in; NULL: in is the norm's input. post: receives y before rounding, or NULL. */
struct norm_args {
    struct tensor x, in, in_bias, in_norm, y, y_norm, y_bias, post;
    float eps, plus;
    uint32_t d;
    struct exchange ranks; /* used by norm_allreduce.cu */
};

/* Loads four elements from element `at` of a row of d elements; zeros beyond its end. WHOLE: the
 * row is aligned and d % 4 is 0. */
template <bool WHOLE, typename T>
__device__ __forceinline__ void
get(float (&v)[4], const T *p, uint32_t at, uint32_t d)
{
    if constexpr (WHOLE) {
        load<4>(v, p + at);
    } else {
        UNROLL for (uint32_t j = 0; j < 4; j++) v[j] = at + j < d ? to_float(p[at + j]) : 0.0f;
    }
}

template <bool WHOLE, typename T>
__device__ __forceinline__ void
put(T *p, uint32_t at, uint32_t d, const float (&v)[4])
{
    if constexpr (WHOLE) {
        store<4>(p + at, v);
    } else {
        UNROLL for (uint32_t j = 0; j < 4; j++)
            if (at + j < d) p[at + j] = of_float<T>(v[j]);
    }
}

template <bool WHOLE>
__device__ __forceinline__ void
get_as(float (&v)[4], enum dtype t, const void *p, uint32_t at, uint32_t d)
{
    by_type(t, [&](auto type) { get<WHOLE>(v, (const decltype(type) *)p, at, d); });
}

template <bool WHOLE>
__device__ __forceinline__ void
put_as(enum dtype t, void *p, uint32_t at, uint32_t d, const float (&v)[4])
{
    by_type(t, [&](auto type) { put<WHOLE>((decltype(type) *)p, at, d, v); });
}

__device__ __forceinline__ float
inverse(float squares, uint32_t d, float eps)
{
    return 1.0f / __fsqrt_rn(add_rn(squares / (float)d, eps));
}

__device__ __forceinline__ void
add_squares(float *sum, const float (&v)[4])
{
    UNROLL for (int j = 0; j < 4; j++) *sum = fmaf(v[j], v[j], *sum);
}

__device__ __forceinline__ void
add_to(float (&v)[4], const float (&u)[4])
{
    UNROLL for (int j = 0; j < 4; j++) v[j] = add_rn(v[j], u[j]);
}

/* v = v * k, and times w + plus if there are weights. */
__device__ __forceinline__ void
normed(float (&v)[4], float k, bool weights, const float (&w)[4], float plus)
{
    UNROLL for (int j = 0; j < 4; j++) {
        v[j] = mul_rn(v[j], k);
        if (weights) v[j] = mul_rn(v[j], add_rn(w[j], plus));
    }
}

/* Loops over a thread's groups of four in a row of d: `at` is the first element, i the index in
 * registers (LONG: always 0, each group is loaded again). */
#define EACH_FOUR(i, at) \
    UNROLL for (uint32_t i = 0, at = threadIdx.x * 4; LONG ? at < d : i < KEEP; \
                           i += LONG ? 0 : 1, at += blockDim.x * 4) if (at < d)

/* Loads a thread's weights of vector t, if there is one and they are kept. Used before
 * after_previous(): weights do not change while serving. */
#define GET_WEIGHTS(w, t) \
    if (!LATE && (t).data) EACH_FOUR(i, at) get_as<WHOLE>(w[i], (t).dtype, (t).data, at, d)

/* Argument for the parameter Whole of norm() without ranks: `in` itself is added to x. */
struct alone {
    template <typename IN>
    __device__ __forceinline__ static void of(float (&)[KEEP][4], const struct norm_args &,
                                              uint32_t)
    {
    }
};

/* The kernel of RMS norms. Whole::of() replaces a thread's groups of `in` by what is added to x:
 * struct alone, or of_ranks in norm_allreduce.cu. */
template <typename IN, enum how HOW, bool WHOLE, enum keep KEPT, typename Whole>
__global__ void
__launch_bounds__(THREADS) norm(struct norm_args a)
{
    __shared__ float part_in[WARPS], part[WARPS];
    constexpr bool LONG = KEPT == NOTHING, LATE = KEPT != ROW_AND_WEIGHTS;
    constexpr uint32_t FOURS = LONG ? 1 : KEEP;
    float v[FOURS][4], w[FOURS][4], w_in[FOURS][4], sum = 0;
    const uint32_t d = a.d;
    const IN *in = (const IN *)row_at(a.in, blockIdx.x);
    float *x = (float *)row_at(a.x, blockIdx.x);
    void *y = row_at(a.y, blockIdx.x);

    GET_WEIGHTS(w, a.y_norm);
    if (HOW == ADD_NORMED) GET_WEIGHTS(w_in, a.in_norm);
    if (HOW == ADD) GET_WEIGHTS(w_in, a.in_bias);
    next_may_start();
    after_previous();

    if (HOW == NORM) {
        if (!LONG) EACH_FOUR(i, at) get<WHOLE>(v[i], in, at, d);
    } else {
        float u[FOURS][4], k = 1;

        if (!LONG) EACH_FOUR(i, at) get<WHOLE>(u[i], in, at, d);
        if (!LONG) EACH_FOUR(i, at) get<WHOLE>(v[i], x, at, d);
        if constexpr (!LONG && HOW != NORM) Whole::template of<IN>(u, a, d);
        if (HOW == ADD_NORMED) {
            EACH_FOUR(i, at)
            {
                if (LONG) get<WHOLE>(u[i], in, at, d);
                add_squares(&sum, u[i]);
            }
            k = inverse(block_sum(sum, part_in), d, a.eps);
        }
        EACH_FOUR(i, at)
        {
            if (LONG) get<WHOLE>(u[i], in, at, d);
            if (LONG) get<WHOLE>(v[i], x, at, d);
            if (LATE && HOW == ADD_NORMED)
                get_as<WHOLE>(w_in[i], a.in_norm.dtype, a.in_norm.data, at, d);
            if (HOW == ADD_NORMED) normed(u[i], k, true, w_in[i], a.plus);
            if (HOW == ADD && a.in_bias.data) {
                if (LATE) get_as<WHOLE>(w_in[i], a.in_bias.dtype, a.in_bias.data, at, d);
                add_to(u[i], w_in[i]);
            }
            add_to(v[i], u[i]);
            put<WHOLE>(x, at, d, v[i]);
        }
    }
    if (!a.y.data) return;

    sum = 0;
    EACH_FOUR(i, at)
    {
        if (LONG && HOW == NORM) get<WHOLE>(v[i], in, at, d);
        if (LONG && HOW != NORM) get<WHOLE>(v[i], x, at, d);
        add_squares(&sum, v[i]);
    }
    float k = inverse(block_sum(sum, part), d, a.eps);

    EACH_FOUR(i, at)
    {
        if (LONG && HOW == NORM) get<WHOLE>(v[i], in, at, d);
        if (LONG && HOW != NORM) get<WHOLE>(v[i], x, at, d);
        if (LATE && a.y_norm.data) get_as<WHOLE>(w[i], a.y_norm.dtype, a.y_norm.data, at, d);
        normed(v[i], k, a.y_norm.data, w[i], a.plus);
        put_as<WHOLE>(a.y.dtype, y, at, d, v[i]);
    }
}

/* Returns a vector of weights, which may be [d] or [1, d], as one row. */
struct tensor
as_row(struct tensor w)
{
    w.dim[0] = 1;
    return w;
}

struct norm_args
args_of(const struct residual *r)
{
    struct norm_args a = {};

    a.in = r->in.data ? r->in : r->x; /* without in, x is only read, except for a post norm */
    if (r->in.data) a.x = r->x;
    if (r->norm == RESIDUAL_POST) a.post = r->x;
    a.in_bias = as_row(r->in_bias);
    a.in_norm = as_row(r->in_norm);
    a.y = r->y;
    a.y_norm = as_row(r->y_norm);
    a.y_bias = as_row(r->y_bias);
    a.eps = r->eps;
    a.plus = r->plus;
    a.d = r->x.dim[1];
    return a;
}

} /* namespace */
