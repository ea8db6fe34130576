/* attend_generic.cu - attention of every variant; see attend_generic.h. One thread block per (row,
 * head). It reads the row's keys in tiles of 64 absolute positions, ascending, and does three
 * things with each tile:
 *
 *     score    warp w has keys w, w + 4, ...; its lanes share head_dim; a shuffle tree per key
 *     soften   every warp computes the tile's maximum and sum itself, in the same order
 *     gather   thread t owns elements t, t + 128, ... of the head and adds key by key
 *
 * In a tile cut by the row's window or end the keys keep their index, so that the order of every
 * sum follows from positions alone. Tiles between kept keys (attend.kept) and window are skipped.
 */
#include "gpu/cuda/kernels/attention/attend_generic.h"

#include "gpu/cuda/kernels/base/kv_address.cuh"
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr uint32_t THREADS = 128;
constexpr uint32_t WARPS = THREADS / 32;
constexpr uint32_t TILE = 64; /* two keys per lane in soften */
constexpr uint32_t MAX_DIM = 512;
constexpr uint32_t AT_ONCE = 8;               /* keys that a warp scores together */
constexpr uint32_t OWNED = MAX_DIM / THREADS; /* maximum elements of the head per thread */

/* Returns the index of the segment that contains a row, or -1. */
__device__ int
find_segment(const struct step_tokens &r, uint32_t row)
{
    __shared__ int found;

    if (threadIdx.x == 0) found = -1;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.n_segments; i += THREADS)
        if (row - r.segment[i].first_token < r.segment[i].n_tokens) found = (int)i;
    __syncthreads();
    return found;
}

/* One (row, head) and the keys it may see: positions [low, high), and positions below `kept`. */
struct seeing {
    struct segment segment;
    uint32_t row, head, kv_head;
    int32_t pos, low, high, kept;
};

__device__ struct seeing
look(const struct attend &a, const struct segment &segment, uint32_t row, uint32_t head)
{
    struct seeing s = { segment, row, head, head / (a.n_heads / a.n_kv_heads) };

    s.pos = segment.first_pos + (int32_t)(row - segment.first_token);
    s.low = a.kv.table ? 0 : segment.first_pos;
    s.high = a.kv.table ? (int32_t)segment.kv_len : segment.first_pos + (int32_t)segment.n_tokens;
    if (a.causal && !a.mask) s.high = min(s.high, s.pos + 1);
    if (a.window) s.low = max((int64_t)s.low, (int64_t)s.pos + 1 - a.window);
    s.kept = a.window && a.kv.table ? min((int32_t)a.kept, s.high) : 0;
    return s;
}

/* Whether the tree mask hides key j from the row. */
__device__ bool
masked(const struct attend &a, const struct seeing &s, int32_t j)
{
    uint32_t own = (uint32_t)(j - s.segment.first_pos);

    return a.mask && j >= s.segment.first_pos &&
           (own / 32 >= a.mask_words ||
            !(a.mask[(size_t)s.row * a.mask_words + own / 32] >> own % 32 & 1));
}

/* Address of key j, and of its value in *value; NULL if the row does not see the key. */
template <typename T>
__device__ const T *
find_key(const struct attend &a, const struct seeing &s, int32_t j, const T **value)
{
    if ((j < s.low && j >= s.kept) || j >= s.high || masked(a, s, j)) return *value = NULL;
    if (a.kv.table) {
        const T *k = kv_key<const T>(a.kv, kv_slice(a.kv, s.segment.slot, (uint32_t)j), (uint32_t)j,
                                     s.kv_head);

        *value = (const T *)((const char *)k + kv_value_offset(a.kv));
        return k;
    }
    size_t at = s.segment.first_token + (uint32_t)(j - s.segment.first_pos);

    *value = (const T *)a.v.data + at * a.v.stride + (size_t)s.kv_head * a.head_dim;
    return (const T *)a.k.data + at * a.k.stride + (size_t)s.kv_head * a.head_dim;
}

/* Returns the softmax input of key j: q.k scaled, capped and biased. */
__device__ float
shape_score(const struct attend &a, const struct seeing &s, int32_t j, float dot)
{
    float x = dot * a.scale;

    if (a.softcap != 0) x = a.softcap * tanhf(x / a.softcap);
    if (a.bias) {
        int32_t reach = (int32_t)a.bias_reach, far = max(-reach, min(reach, j - s.pos));

        x += a.bias[(size_t)s.head * (2 * a.bias_reach + 1) + (uint32_t)(far + reach)];
    }
    return x;
}

template <typename T>
__global__ void
__launch_bounds__(THREADS, 8) attend_generic(const struct attend a, const struct step_tokens r)
{
    __shared__ float q[MAX_DIM], score[TILE], weight[TILE];
    __shared__ const T *key[TILE], *value[TILE];
    __shared__ uint32_t seen[2];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim;
    float max = -INFINITY, sum = 0, acc[OWNED] = { 0 };

    join_previous();

    int i = find_segment(r, blockIdx.x);

    if (i < 0 || (a.kv.table && r.segment[i].slot == SLOT_NONE)) return;
    const struct seeing s = look(a, r.segment[i], blockIdx.x, blockIdx.y);

    for (uint32_t e = threadIdx.x; e < d; e += THREADS) {
        float one[1];

        load_as(one, a.q.dtype, row_at(a.q, s.row), (size_t)s.head * d + e);
        q[e] = one[0];
    }

    const int32_t window = s.low / (int32_t)TILE * (int32_t)TILE;

    for (int32_t first = s.kept ? 0 : window, next; first < s.high; first = next) {
        next = first + (int32_t)TILE;
        if (next >= s.kept && next < window) next = window;
        /* After this barrier q is loaded and the previous tile's weights are no longer needed. */
        __syncthreads();
        if (threadIdx.x < TILE) {
            const T *k = find_key(a, s, first + (int32_t)threadIdx.x, &value[threadIdx.x]);
            uint32_t warps = __ballot_sync(~0u, k != NULL);

            key[threadIdx.x] = k;
            score[threadIdx.x] = -INFINITY;
            if (lane == 0) seen[warp] = warps;
        }
        __syncthreads();
        if (!(seen[0] | seen[1])) continue;

        /* An unseen key gets the address of a seen one and weight 0: loads have no branch. */
        int some = seen[0] ? __ffs((int)seen[0]) - 1 : __ffs((int)seen[1]) + 31;

        if (threadIdx.x < TILE && !key[threadIdx.x]) value[threadIdx.x] = value[some];
        for (uint32_t n = warp; n < TILE; n += AT_ONCE * WARPS) {
            const T *k[AT_ONCE];
            float dot[AT_ONCE] = { 0 };

            UNROLL for (uint32_t i = 0; i < AT_ONCE; i++) {
                k[i] = key[n + i * WARPS];
                if (!k[i]) k[i] = key[some];
            }
            for (uint32_t e = lane; e < d; e += 32)
                UNROLL for (uint32_t i = 0; i < AT_ONCE; i++)
                    dot[i] = fmaf(q[e], to_float(k[i][e]), dot[i]);
            UNROLL for (uint32_t i = 0; i < AT_ONCE; i++) {
                dot[i] = group_sum(dot[i], 32);
                if (lane == i && key[n + i * WARPS])
                    score[n + i * WARPS] = shape_score(a, s, first + (int32_t)(n + i * WARPS),
                                                       dot[i]);
            }
        }
        __syncthreads();

        float one = score[lane], two = score[lane + 32], most = fmaxf(one, two);

        for (int step = 16; step > 0; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
        most = fmaxf(most, max);

        float keep = expf(max - most), add;

        one = expf(one - most);
        two = expf(two - most);
        add = group_sum(one + two, 32);
        if (warp == 0) {
            weight[lane] = one;
            weight[lane + 32] = two;
        }
        sum = fmaf(sum, keep, add);
        max = most;
        __syncthreads();

        UNROLL for (uint32_t o = 0; o < OWNED; o++) {
            uint32_t e = threadIdx.x + o * THREADS;

            if (e >= d) break;
            acc[o] *= keep;
#pragma unroll 16
            for (uint32_t n = 0; n < TILE; n++)
                acc[o] = fmaf(weight[n], to_float(value[n][e]), acc[o]);
        }
    }

    /* A sink is one more key without a value. */
    float keep = 1;

    if (a.sinks) {
        float most = fmaxf(max, a.sinks[s.head]);

        keep = expf(max - most);
        sum = fmaf(sum, keep, expf(a.sinks[s.head] - most));
    }
    UNROLL for (uint32_t o = 0; o < OWNED; o++) {
        uint32_t e = threadIdx.x + o * THREADS;

        float result[1] = { sum > 0 ? acc[o] * keep / sum : 0 };

        if (e < d) store_as(a.out.dtype, row_at(a.out, s.row), (size_t)s.head * d + e, result);
    }
}

} /* namespace */

cudaError_t
k_attend_generic(const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    enum dtype t = a->kv.table ? a->kv.dtype : a->k.dtype;
    dim3 grid(r.n_tokens, a->n_heads);

    if (a->head_dim == 0 || a->head_dim > MAX_DIM || a->n_heads > 65535)
        return cudaErrorInvalidValue;
    if (!is_float(a->q.dtype) || !is_float(a->out.dtype)) return cudaErrorInvalidValue;
    if (a->kv.table ? a->k.data != NULL : a->v.dtype != t) return cudaErrorInvalidValue;
    if (r.n_tokens == 0 || r.n_segments == 0) return cudaSuccess;
    if (t == DT_E4M3)
        return launch(attend_generic<__nv_fp8_e4m3>, grid, THREADS, 0, l->st, *a, r);
    WITH_FLOAT(T, t, return launch(attend_generic<T>, grid, THREADS, 0, l->st, *a, r));
    return cudaErrorInvalidValue;
}
