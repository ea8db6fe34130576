/* attend_prefill_sm90_math.cuh - arithmetic of a consumer warpgroup: 64 rows and a tile of keys.
 *
 * Layout (wgmma's accumulator): a thread holds elements of rows r and r + 8 of its warp's 16 (r =
 * lane / 4), and of every 8 columns the pair that starts at lane % 4 * 2. Element j of an array is
 * row r + 8 (j / 2 % 2), column j / 4 * 8 + lane % 4 * 2 + j % 2. The four lanes of a row share its
 * maximum and sum.
 *
 * P is 0 for a key that a row does not see, but 0 times NaN is NaN: rows of V that no row of the
 * item sees are zeroed before use (clear_hidden). Every warpgroup does it, with the same values.
 */
#pragma once
#include "gpu/cuda/kernels/attention/attend_prefill_sm90_schedule.cuh"

namespace {

/* Sets scores outside of columns [first, end) to -inf. first, end: relative to the thread's first
 * column; [0] is for row r, [1] for row r + 8. */
template <int KEYS>
__device__ __forceinline__ void
hide(float (&s)[KEYS / 2], const int (&first)[2], const int (&end)[2])
{
    UNROLL for (int j = 0; j < KEYS / 2; j++) {
        const int at = j / 4 * 8 + j % 2;

        if (at < first[j / 2 % 2] || at >= end[j / 2 % 2]) s[j] = -INFINITY;
    }
}

/* zero_values() of kv_tma_sm90.cuh; also makes the zeros visible to the warpgroup's products. */
template <int D>
__device__ __forceinline__ void
clear_hidden(unsigned char *v, int first, int end, uint32_t thread)
{
    zero_values<attend_tile<D>::KEYS, D>(v, first, end, thread);
    async_fence();
    named_sync(WG_SYNC + threadIdx.x / 128 - 1, 128);
}

/* Initializes the accumulators of Q K^T of one tile with the position biases. diagonal: address of
 * the bias of the thread's first row and column; biases are stored by column - row. */
template <int KEYS>
__device__ __forceinline__ void
lay_bias(float (&s)[KEYS / 2], const float *diagonal)
{
    float old[2] = { diagonal[-8], diagonal[-7] };

    UNROLL for (int j = 0; j < KEYS / 2; j += 4) {
        s[j] = diagonal[2 * j];
        s[j + 1] = diagonal[2 * j + 1];
        s[j + 2] = old[0];
        s[j + 3] = old[1];
        old[0] = s[j];
        old[1] = s[j + 1];
    }
}

/* Converts q.k in s to scores in base 2: applies softcap and bias. diagonal: as in lay_bias(). */
template <int KEYS>
__device__ __forceinline__ void
shape_scores(float (&s)[KEYS / 2], const params &p, const float *diagonal)
{
    if (p.softcap != 0) {
        float in = 2 * LOG2E * p.scale / p.softcap, cap = p.softcap * LOG2E;

        UNROLL for (int j = 0; j < KEYS / 2; j++) /* tanh x = 1 - 2 / (1 + e^2x) */
            s[j] = cap - 2 * cap * reciprocal(1 + exp2_fast(s[j] * in));
    }
    if (p.bias) {
        const float scale = p.softcap != 0 ? 1 : p.scale;

        float old[2] = { diagonal[-8], diagonal[-7] };

        /* The bias of row r + 8 is the bias of row r eight columns to the left. */
        UNROLL for (int j = 0; j < KEYS / 2; j += 4) {
            float now[2] = { diagonal[2 * j], diagonal[2 * j + 1] };

            s[j] = fmaf(s[j], scale, now[0]);
            s[j + 1] = fmaf(s[j + 1], scale, now[1]);
            s[j + 2] = fmaf(s[j + 2], scale, old[0]);
            s[j + 3] = fmaf(s[j + 3], scale, old[1]);
            old[0] = now[0];
            old[1] = now[1];
        }
    }
}

/* Softmax state of rows r and r + 8 of the warp's 16: largest score, and the sum over the thread's
 * own columns. Scores times mult are in base 2. */
struct soft {
    float max[2], sum[2];
};

/* Replaces the scores by softmax weights and updates the state. keep: returns the factor for the
 * rows' earlier sums and values. */
template <int KEYS>
__device__ __forceinline__ void
soften(float (&s)[KEYS / 2], soft &o, float (&keep)[2], float mult)
{
    float top[2] = { o.max[0], o.max[1] }, less[2];

    UNROLL for (int j = 0; j < KEYS / 2; j++) top[j / 2 % 2] = fmaxf(top[j / 2 % 2], s[j]);
    UNROLL for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        less[r] = top[r] == -INFINITY ? 0 : top[r] * mult;
        keep[r] = exp2_fast(o.max[r] * mult - less[r]);
        o.max[r] = top[r];
        o.sum[r] *= keep[r];
    }
    UNROLL for (int j = 0; j < KEYS / 2; j++) {
        s[j] = exp2_fast(fmaf(s[j], mult, -less[j / 2 % 2]));
        o.sum[j / 2 % 2] += s[j];
    }
}

/* Rounds the softmax weights to T, two per register, as wgmma_rs() expects P. */
template <class T, int KEYS>
__device__ __forceinline__ void
round_scores(uint32_t (&to)[KEYS / 4], const float (&s)[KEYS / 2])
{
    UNROLL for (int j = 0; j < KEYS / 4; j++) to[j] = pack<T>(s[2 * j], s[2 * j + 1]);
}

/* A row's four lanes hold 4 bytes of each of 4 vectors of 16 bytes; then each has one vector. */
__device__ __forceinline__ void
transpose_4x4(uint32_t (&x)[4])
{
    UNROLL for (int step = 1; step < 4; step *= 2) {
        bool odd = threadIdx.x & step;

        UNROLL for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            uint32_t got = __shfl_xor_sync(~0u, odd ? x[i] : x[i + step], step);

            if (odd)
                x[i] = got;
            else
                x[i + step] = got;
        }
    }
}

/* Destination of an item's rows in out. */
struct output {
    uint32_t row, n_tokens, head;
};

/* Writes O divided by its sums, rounded, to out. */
template <class T, int D>
__device__ __forceinline__ void
store(const float (&o)[D / 2], soft f, const params &p, output i, uint32_t row, float mult)
{
    uint32_t lane = threadIdx.x % 32;

    UNROLL for (int r = 0; r < 2; r++) {
        float by, max = f.max[r] * mult;

        f.sum[r] += __shfl_xor_sync(~0u, f.sum[r], 1);
        f.sum[r] += __shfl_xor_sync(~0u, f.sum[r], 2);
        by = f.sum[r] > 0 ? reciprocal(f.sum[r]) : 0;
        if (p.sinks && f.sum[r] > 0) {
            float sink = p.sinks[i.head] * LOG2E, top = fmaxf(max, sink);
            float keep = exp2_fast(max - top);

            by = keep * reciprocal(f.sum[r] * keep + exp2_fast(sink - top));
        }
        T *to = (T *)p.out + (size_t)(i.row + row + 8 * r) * p.out_stride + i.head * D;
        UNROLL for (int j = 0; j < D / 32; j++) {
            uint32_t x[4];

            UNROLL for (int b = 0; b < 4; b++)
                x[b] = pack<T>(o[16 * j + 4 * b + 2 * r] * by, o[16 * j + 4 * b + 2 * r + 1] * by);
            transpose_4x4(x);
            if (row + 8 * r < i.n_tokens)
                *(uint4 *)(to + 32 * j + lane % 4 * 8) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* Queues s = q k^T of 64 rows and a tile of keys, added to s if ADD. */
template <class T, int D, bool ADD>
__device__ __forceinline__ void
queue_scores(float (&s)[attend_tile<D>::KEYS / 2], uint64_t q, uint64_t k)
{
    using tile = attend_tile<D>;

    pin(s);
    wgmma_begin();
    UNROLL for (int j = 0; j < D / 16; j++)
        wgmma_ss<T, tile::KEYS>(s, q + (j / 4 * tile::ROWS * 128 + j % 4 * 32) / 16,
                                k + (j / 4 * 1024 + j % 4 * 32) / 16, ADD || j > 0);
    wgmma_commit();
}

/* queue_scores() with q in registers. */
template <class T, int D, bool ADD>
__device__ __forceinline__ void
queue_scores(float (&s)[attend_tile<D>::KEYS / 2], uint32_t (&q)[D / 4], uint64_t k)
{
    using tile = attend_tile<D>;

    pin(s);
    pin(q);
    wgmma_begin();
    UNROLL for (int j = 0; j < D / 16; j++)
        wgmma_rs<T, tile::KEYS, false>(s, q + 4 * j, k + (j / 4 * 1024 + j % 4 * 32) / 16,
                                       ADD || j > 0);
    wgmma_commit();
}

/* Queues o += p v. */
template <class T, int D>
__device__ __forceinline__ void
queue_values(float (&o)[D / 2], uint32_t (&x)[attend_tile<D>::KEYS / 4], uint64_t v)
{
    pin(o);
    pin(x);
    wgmma_begin();
    UNROLL for (int j = 0; j < attend_tile<D>::KEYS / 16; j++)
        wgmma_rs<T, D, true>(o, x + 4 * j, v + j * 2 * D * 16 / 16, true);
    wgmma_commit();
}

/* Stores zeros as the output of an item whose rows see no key. */
template <int D>
__device__ void
store_zeros(const params &p, const struct item &i, uint32_t first, uint32_t thread)
{
    for (uint32_t j = thread; j < 64 * D / 8; j += 128) {
        uint32_t row = first + j / (D / 8);
        uint16_t *to = (uint16_t *)p.out + (size_t)(i.row + row) * p.out_stride + i.head * D;

        if (row < i.n_tokens) ((uint4 *)to)[j % (D / 8)] = make_uint4(0, 0, 0, 0);
    }
}

} /* namespace */
