/* norm.cu - RMS and layer norms; see norm.h. One thread block per row. A row is divided into groups
 * of four elements; thread t has groups t, t + threads, ... and keeps them in registers from the
 * first sum to the last store:
 *
 *     d        threads   groups per thread
 *     1,024    64        4
 *     4,096    256       4
 *     5,376    352       4 (some 3)
 *     8,192    512       4       <- KEEP: longer rows are read again (LONG)
 *
 * Groups have four elements because x is fp32: 16 bytes of x and 8 of a 16-bit type, both without
 * gaps between lanes. Unaligned rows have the same groups, loaded element by element.
 */
#include "gpu/cuda/kernels/norm/norm.h"

#include "gpu/cuda/kernels/norm/norm.cuh"

namespace {

/* The kernel of layer norms, with (ADD) or without (NORM) a sum before the norm. */
template <typename IN, enum how HOW, bool WHOLE, enum keep KEPT>
__global__ void
__launch_bounds__(THREADS) layer_norm(struct norm_args a)
{
    __shared__ float part_mean[WARPS], part[WARPS];
    constexpr bool LONG = KEPT == NOTHING, LATE = KEPT != ROW_AND_WEIGHTS;
    constexpr uint32_t FOURS = LONG ? 1 : KEEP;
    float v[FOURS][4], w[FOURS][4], b[FOURS][4], b_in[FOURS][4], sum = 0;
    const uint32_t d = a.d;
    const IN *in = (const IN *)row_at(a.in, blockIdx.x);
    float *x = (float *)row_at(a.x, blockIdx.x), *post = (float *)row_at(a.post, blockIdx.x);
    void *y = row_at(a.y, blockIdx.x);

    GET_WEIGHTS(w, a.y_norm);
    GET_WEIGHTS(b, a.y_bias);
    if (HOW == ADD) GET_WEIGHTS(b_in, a.in_bias);
    next_may_start();
    after_previous();
    if (HOW == ADD) {
        float u[FOURS][4];

        if (!LONG) EACH_FOUR(i, at) get<WHOLE>(u[i], in, at, d);
        if (!LONG) EACH_FOUR(i, at) get<WHOLE>(v[i], x, at, d);
        EACH_FOUR(i, at)
        {
            if (LONG) get<WHOLE>(u[i], in, at, d);
            if (LONG) get<WHOLE>(v[i], x, at, d);
            if (LATE && a.in_bias.data)
                get_as<WHOLE>(b_in[i], a.in_bias.dtype, a.in_bias.data, at, d);
            if (a.in_bias.data) add_to(u[i], b_in[i]);
            add_to(v[i], u[i]);
            if (LONG || !a.post.data) put<WHOLE>(x, at, d, v[i]);
        }
    }
    EACH_FOUR(i, at)
    {
        if (HOW == NORM) get<WHOLE>(v[i], in, at, d);
        if (HOW == ADD && LONG) get<WHOLE>(v[i], x, at, d);
        UNROLL for (int j = 0; j < 4; j++) sum = add_rn(sum, v[i][j]);
    }
    float mean = block_sum(sum, part_mean) / (float)d;

    sum = 0;
    EACH_FOUR(i, at)
    {
        if (HOW == NORM && LONG) get<WHOLE>(v[i], in, at, d);
        if (HOW == ADD && LONG) get<WHOLE>(v[i], x, at, d);
        UNROLL for (uint32_t j = 0; j < 4; j++) {
            float off = add_rn(v[i][j], -mean);

            if (WHOLE || at + j < d) sum = fmaf(off, off, sum);
        }
    }
    float k = inverse(block_sum(sum, part), d, a.eps);

    EACH_FOUR(i, at)
    {
        if (HOW == NORM && LONG) get<WHOLE>(v[i], in, at, d);
        if (HOW == ADD && LONG) get<WHOLE>(v[i], x, at, d);
        if (LATE && a.y_norm.data) get_as<WHOLE>(w[i], a.y_norm.dtype, a.y_norm.data, at, d);
        if (LATE && a.y_bias.data) get_as<WHOLE>(b[i], a.y_bias.dtype, a.y_bias.data, at, d);
        UNROLL for (int j = 0; j < 4; j++) {
            float off = mul_rn(add_rn(v[i][j], -mean), k);

            if (a.y_norm.data) off = mul_rn(off, w[i][j]);
            v[i][j] = a.y_bias.data ? add_rn(off, b[i][j]) : off;
        }
        if (a.post.data) put<WHOLE>(post, at, d, v[i]);
        if (a.y.data) put_as<WHOLE>(a.y.dtype, y, at, d, v[i]);
    }
}

typedef void kernel(struct norm_args);

template <typename T, bool WHOLE, enum keep KEPT>
kernel *
pick_as(const struct norm_args &a, bool centred)
{
    if (centred && a.x.data) return layer_norm<T, ADD, WHOLE, KEPT>;
    if (centred) return layer_norm<T, NORM, WHOLE, KEPT>;
    if (!a.x.data) return norm<T, NORM, WHOLE, KEPT, alone>;
    return a.in_norm.data ? norm<T, ADD_NORMED, WHOLE, KEPT, alone>
                          : norm<T, ADD, WHOLE, KEPT, alone>;
}

template <typename T, enum keep KEPT>
kernel *
pick(const struct norm_args &a, bool centred, bool whole)
{
    constexpr enum keep PLAIN = KEPT == NOTHING ? NOTHING : ROW; /* unaligned rows: fewer kernels */

    return whole ? pick_as<T, true, KEPT>(a, centred) : pick_as<T, false, PLAIN>(a, centred);
}

cudaError_t
queue(const struct k_launch *l, const struct norm_args &a, bool centred)
{
    const struct tensor *all[] = { &a.x, &a.in,     &a.in_bias, &a.in_norm,
                                   &a.y, &a.y_norm, &a.y_bias,  &a.post };
    uint32_t n = a.in.dim[0], warps = (a.d + 32 * 4 * KEEP - 1) / (32 * 4 * KEEP);
    bool whole = a.d % 4 == 0, is_long = warps > WARPS;

    for (const struct tensor *t : all) {
        if (t->data && !is_float(t->dtype)) return cudaErrorInvalidValue;
        whole = whole && rows_fit(*t, 4);
    }
    if (n == 0 || a.d == 0) return cudaSuccess;
    WITH_FLOAT(T, a.in.dtype, {
        kernel *k = pick<T, ROW_AND_WEIGHTS>(a, centred, whole);

        if (is_long)
            k = pick<T, NOTHING>(a, centred, whole);
        else if (n > FEW * l->sms)
            k = pick<T, ROW>(a, centred, whole);
        return launch(k, n, 32 * (is_long ? WARPS : warps), 0, l->st, a);
    });
    return cudaSuccess;
}

} /* namespace */

cudaError_t
k_rms_norm(const struct k_launch *l, struct tensor y, struct tensor x, struct tensor w, float eps,
           float plus)
{
    struct norm_args a = {};

    a.in = x;
    a.y = y;
    a.y_norm = as_row(w);
    a.eps = eps;
    a.plus = plus;
    a.d = x.dim[1];
    return queue(l, a, false);
}

cudaError_t
k_residual(const struct k_launch *l, const struct residual *r)
{
    struct norm_args a = args_of(r);

    if (r->x.dtype != DT_F32) return cudaErrorInvalidValue;
    if (a.in_norm.data && r->norm != RESIDUAL_RMS) return cudaErrorInvalidValue;
    /* If neither y nor post is written, the kind of norm does not matter: use the RMS kernel. */
    return queue(l, a, r->norm != RESIDUAL_RMS && (r->y.data || a.post.data));
}
