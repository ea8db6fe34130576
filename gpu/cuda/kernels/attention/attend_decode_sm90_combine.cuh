/* attend_decode_sm90_combine.cuh - merges the softmax states of a piece and adds the pieces of a
 * unit (attend_decode_sm90_schedule.cuh).
 *
 * If several thread blocks share a unit, each writes the result of its piece to memory. The last
 * block to finish adds these partial results in the order of the pieces.
 */
#pragma once
#include "gpu/cuda/kernels/attention/attend_decode_sm90_schedule.cuh"
#include "gpu/cuda/kernels/base/sm80.cuh"

namespace attend_one {

constexpr float SLACK = 8; /* a weight may reach 2^SLACK before the largest score is raised */

/* A result of one column: largest score, sum of weights, four of its weighted elements. */
struct result {
    float max, sum;
    float4 o;
};

/* Adds N results to r; end: the largest scores and the sums. */
template <int N>
__device__ __forceinline__ void
add_parts(struct result &r, const float2 (&end)[N], const float4 (&o)[N])
{
    float most = r.max, zero, keep;

    UNROLL for (int i = 0; i < N; i++) most = fmaxf(most, end[i].x);
    zero = most == -INFINITY ? 0 : most;
    keep = exp2_fast(r.max - zero);
    r.max = most;
    r.sum *= keep;
    r.o = make_float4(r.o.x * keep, r.o.y * keep, r.o.z * keep, r.o.w * keep);
    UNROLL for (int i = 0; i < N; i++) {
        float take = exp2_fast(end[i].x - zero);

        r.sum = fmaf(end[i].y, take, r.sum);
        r.o.x = fmaf(o[i].x, take, r.o.x);
        r.o.y = fmaf(o[i].y, take, r.o.y);
        r.o.z = fmaf(o[i].z, take, r.o.z);
        r.o.w = fmaf(o[i].w, take, r.o.w);
    }
}

/* Final factor of a head's o: 1 / sum. A sink counts as one more key without a value. */
__device__ __forceinline__ float
last_factor(const struct attend &a, uint32_t head, float max, float sum)
{
    float keep = 1;

    if (a.sinks) {
        float sink = a.sinks[head] * LOG2E, most = fmaxf(max, sink);

        keep = exp2_fast(max - most);
        sum = sum * keep + exp2_fast(sink - most);
    }
    return sum > 0 ? __fdividef(keep, sum) : 0;
}

template <typename T>
__device__ __forceinline__ void
store_out(const struct job &j, const struct place &p, uint32_t column, uint32_t at,
          const struct result &r)
{
    float by = last_factor(j.a, head_of(j, p, column), r.max, r.sum);
    char *to = (char *)j.a.out.data + (begin_of(j, p, j.a.out, column) + at) * 2;

    *(uint2 *)to = make_uint2(pack<T>(r.o.x * by, r.o.y * by), pack<T>(r.o.z * by, r.o.w * by));
}

/* Address of partial result i: o as [slot_rows][D], then largest score and sum of each column. */
template <int D>
__device__ __forceinline__ float *
slot_at(const struct job &j, uint32_t i)
{
    return j.slot + (size_t)i * slot_floats(j.slot_rows, D);
}

/* Adds the partial results of a unit and stores its output: four elements per thread at a time. */
template <typename T, int D, int THREADS>
__device__ __forceinline__ void
combine(const struct job &j, const struct place &p, const struct shares &shares, uint32_t rows)
{
    constexpr uint32_t QUADS = D / 4, AHEAD = 8;
    const struct pieces all = shares.pieces(j, p);
    const uint32_t n = all.n;
    auto part_entry = [&](uint32_t i) { return slot_at<D>(j, 2 * (all.first + i) + (i == 0)); };

    for (uint32_t i = threadIdx.x; i < rows * QUADS; i += THREADS) {
        uint32_t row = i / QUADS, at = i % QUADS * 4;
        struct result r = { -INFINITY, 0, make_float4(0, 0, 0, 0) };

        for (uint32_t from = 0; from < n; from += AHEAD) {
            float2 end[AHEAD];
            float4 o[AHEAD];

            UNROLL for (uint32_t k = 0; k < AHEAD; k++) {
                const float *s = part_entry(min(from + k, n - 1));

                end[k] = __ldcg((const float2 *)(s + j.slot_rows * D) + row);
                o[k] = __ldcg((const float4 *)(s + row * D + at));
                if (from + k >= n) end[k] = make_float2(-INFINITY, 0);
            }
            add_parts(r, end, o);
        }
        store_out<T>(j, p, row, at, r);
    }
}

/* Finishes a piece: merges the STATES states of its warps or warpgroups and stores the output, or a
 * partial result if other blocks share the unit. state(k, column, element, end, o) returns the k-th
 * state: largest score and sum, four values. The first THREADS threads of the block call this;
 * sync() is their barrier; `last` is in shared memory. */
template <typename T, int D, int THREADS, int STATES, class State, class Sync>
__device__ __forceinline__ void
finish_piece(const struct job &j, const struct place &p, const struct shares &shares, bool &last,
             State state, Sync sync)
{
    constexpr uint32_t QUADS = D / 4;
    uint32_t rows = columns(j, p), n = (uint32_t)(p.stop - p.from);
    float *slot = slot_at<D>(j, 2 * blockIdx.x + (p.from == p.begin));
    bool whole = p.whole();

    for (uint32_t i = threadIdx.x; i < rows * QUADS; i += THREADS) {
        uint32_t row = i / QUADS, at = i % QUADS * 4;
        struct result r = { -INFINITY, 0, make_float4(0, 0, 0, 0) };
        float2 end[STATES];
        float4 o[STATES];

        UNROLL for (int k = 0; k < STATES; k++) state(k, row, at, end[k], o[k]);
        add_parts(r, end, o);
        if (whole) {
            store_out<T>(j, p, row, at, r);
        } else {
            *(float4 *)(slot + row * D + at) = r.o;
            if (at == 0) *((float2 *)(slot + j.slot_rows * D) + row) = make_float2(r.max, r.sum);
        }
    }
    if (whole) return;
    sync();
    if (threadIdx.x == 0) {
        uint32_t *count = j.count + (p.segment * j.a.n_kv_heads + p.kv_head) * j.parts + p.part;

        /* The barrier and this add make all stores of this block visible to the last block. */
        last = add_in_order(count, n) + n == (uint32_t)(p.end - p.begin);
        if (last) *count = 0;
    }
    sync();
    if (last) combine<T, D, THREADS>(j, p, shares, rows);
}

} /* namespace attend_one */
