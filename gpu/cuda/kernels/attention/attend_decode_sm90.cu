/* attend_decode_sm90.cu - decode attention from registers; see attend_decode_sm90.h.
 * attend_decode_sm90_schedule.cuh defines unit, piece, share and column. A thread block of WARPS
 * warps goes through tiles of 16 WARPS keys. A warp has 16 keys of a tile, from one block of the
 * cache, and loads them from memory into the registers of the two products. Keys and values are the
 * left operand. The eight columns of the right operand are the columns of a unit: heads, or rows of
 * a segment that see the same keys.
 *
 *    scores    S^T = K Q^T     K: lane 4 g + i has, of keys g and g + 8, every fourth 16 bytes from
 *                              16 i on: not the order in memory, but the same order as in Q.
 *    values    O^T = V^T P^T   V: lane 4 g + i has, of keys 2 i, 2 i + 1, 2 i + 8, 2 i + 9, the 16
 *                              bytes from 16 g on (heads of 128: also the 16 from 16 g + 128 on).
 *                              A byte permute joins two keys; movmatrix transposes S^T to P^T.
 *
 * With one segment, the row's own K and V, if they are still to be stored, are read from a->k and
 * a->v, and the warp whose keys include them stores them in the cache. Earlier keys, and all keys
 * of encoder input, do not change in this step, so that with attend.inputs_ready the first tile is
 * loaded before the previous kernel has ended. The segment and the table are then loaded past L1,
 * which may hold values of the previous step. With more than one segment, segments and table are
 * loaded after the previous kernel has ended, through L1, because loads past L1 cost T5 a third of
 * its rate at 128 sequences.
 *
 * Warps do not wait for a barrier or another warp until a piece ends. K of the next tile is loaded
 * as soon as the scores are computed, V as soon as the values are added. Then the warps' results
 * are merged in shared memory (attend_decode_sm90_combine.cuh).
 *
 *    head dim   warps, blocks per SM         registers of a lane: K + V, O, Q
 *    64         4, 4                         16 + 16, 16, 8
 *    128        4, 2; one segment: 8, 1      32 + 32, 32, 16
 */
#include "gpu/cuda/kernels/attention/attend_decode_sm90.h"

#include "gpu/cuda/kernels/attention/attend_decode_sm90_combine.cuh"
#include "gpu/cuda/kernels/base/launch.cuh"

using namespace attend_one;

namespace {

constexpr int KEYS = 16; /* keys of a warp in a tile */

template <typename T_, int D_, int WARPS_> struct shape {
    using T = T_;
    static constexpr int D = D_, WARPS = WARPS_, THREADS = 32 * WARPS, TILE = KEYS * WARPS;
    /* Buffers that pieces use alternately to merge states; a block of eight warps has one piece. */
    static constexpr int BUFFERS = 8 / WARPS;
    static constexpr int CHUNKS = D / 32; /* 16-byte chunks of a key per lane */
    static constexpr int HALVES = D / 64; /* 16-byte chunks of a value per lane */
};

/* ---- loads ---- */

__device__ __forceinline__ uint4
load_once(const char *from)
{
    uint4 v;

    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* A warp's 16 keys of a tile, numbered from 0. If [low, high) is empty, no key is read. */
struct span {
    int32_t slice, low, high; /* slice of the keys; the row sees keys [low, high) */
    int32_t own;     /* the key still to be stored; outside of [low, high): not this warp's */
    uint32_t offset; /* distance of key 0 from the start of the slice, in keys of one head */

    __device__ __forceinline__ bool some() const
    {
        return low < high;
    }

    __device__ __forceinline__ bool has_own() const
    {
        return low <= own && own < high;
    }

    /* Returns i, or the nearest key that the query attends to (a "seen" key). */
    __device__ __forceinline__ int32_t seen(int32_t i) const
    {
        return min(max(i, low), high - 1);
    }

    /* Whether any seen key is in the cache. If not, none is loaded: the memory is unwritten. */
    __device__ __forceinline__ bool some_stored() const
    {
        return high - low > (int32_t)has_own();
    }

    /* As seen(i). For the key of the query's own position, which is not in the cache yet, returns
     * the key beside it, so that the load reads valid memory. */
    __device__ __forceinline__ int32_t stored(int32_t i) const
    {
        int32_t key = seen(i);

        return key != own ? key : key > low ? key - 1 : key + 1;
    }
};

template <class S, bool ONE>
__device__ __forceinline__ struct span
find_span(const struct job &j, const struct place &p)
{
    struct span s;
    int32_t pos = p.tile * S::TILE + (int32_t)(threadIdx.x / 32) * KEYS;

    s.own = ONE && j.a.k.data ? p.pos - pos : -1;
    s.low = max(p.low - pos, 0);
    s.high = p.tile < p.stop ? min(p.high - pos, KEYS) : 0;
    s.slice = 0;
    if (s.some()) {
        const slice_id *entry = j.a.kv.table + (size_t)p.slot * j.a.kv.table_stride +
                                ((uint32_t)pos >> j.shift);

        s.slice = (int32_t)(ONE && j.early ? __ldcg(entry) : *entry);
    }
    s.offset = (p.kv_head << j.shift) + ((uint32_t)pos & ((1u << j.shift) - 1));
    return s;
}

/* Address of a head of the row's own key or value. t: a->k or a->v, not yet in the cache. */
template <class S>
__device__ __forceinline__ const char *
own_head(const struct tensor &t, const struct place &p)
{
    return (const char *)t.data + ((size_t)p.row * t.stride + p.kv_head * S::D) * 2;
}

/* K and V of a span as operands: a lane has every fourth 16 bytes of keys g and g + 8, and the 16
 * bytes at 16 g of each value. In place of an unseen key it has a copy of a seen key. */
template <class S> struct tile_keys {
    uint4 k[2][S::CHUNKS], v[4][S::HALVES];

    /* Address of this lane's first chunk of key 0 of a span. value_0(): the same for value 0. */
    static __device__ __forceinline__ const char *key_0(const struct job &j, const struct span &s)
    {
        return j.base + (int64_t)s.slice * j.block_bytes +
               (s.offset * S::D * 2 + threadIdx.x % 4 * 16);
    }

    static __device__ __forceinline__ const char *value_0(const struct job &j, const struct span &s)
    {
        return j.base + j.value_at + (int64_t)s.slice * j.block_bytes +
               (s.offset * S::D * 2 + threadIdx.x % 32 / 4 * 16);
    }

    /* Index in the span of the lane's h-th key. value(): of the lane's n-th value. */
    static __device__ __forceinline__ int32_t key(int h)
    {
        return threadIdx.x % 32 / 4 + 8 * h;
    }

    static __device__ __forceinline__ int32_t value(int n)
    {
        return threadIdx.x % 4 * 2 + n % 2 + n / 2 * 8;
    }

    template <bool ONE>
    __device__ __forceinline__ void load_k(const struct job &j, const struct span &s)
    {
        if (ONE ? !s.some_stored() : !s.some()) return;
        const char *from = key_0(j, s);

        UNROLL for (int h = 0; h < 2; h++) {
            int32_t at = ONE ? s.stored(key(h)) : s.seen(key(h));

            UNROLL for (int c = 0; c < S::CHUNKS; c++)
                k[h][c] = load_once(from + at * (S::D * 2) + c * 64);
        }
    }

    template <bool ONE>
    __device__ __forceinline__ void load_v(const struct job &j, const struct span &s)
    {
        if (ONE ? !s.some_stored() : !s.some()) return;
        const char *from = value_0(j, s);

        UNROLL for (int n = 0; n < 4; n++) {
            int32_t at = ONE ? s.stored(value(n)) : s.seen(value(n));

            UNROLL for (int h = 0; h < S::HALVES; h++)
                v[n][h] = load_once(from + at * (S::D * 2) + h * 128);
        }
    }

    /* Loads this lane's chunks of the row's own key, which is not in the cache. */
    __device__ __forceinline__ void load_own_k(const struct job &j, const struct place &p,
                                               const struct span &s)
    {
        if (!s.has_own()) return;
        const char *from = own_head<S>(j.a.k, p) + threadIdx.x % 4 * 16;

        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int c = 0; c < S::CHUNKS; c++)
                if (s.seen(key(h)) == s.own) k[h][c] = load_once(from + c * 64);
    }

    __device__ __forceinline__ void load_own_v(const struct job &j, const struct place &p,
                                               const struct span &s)
    {
        if (!s.has_own()) return;
        const char *from = own_head<S>(j.a.v, p) + threadIdx.x % 32 / 4 * 16;

        UNROLL for (int n = 0; n < 4; n++)
            UNROLL for (int h = 0; h < S::HALVES; h++)
                if (s.seen(value(n)) == s.own) v[n][h] = load_once(from + h * 128);
    }

    /* Stores the row's own key and value in the cache; only the lanes that hold them write. */
    __device__ __forceinline__ void store_own(const struct job &j, const struct place &p,
                                              const struct span &s)
    {
        if (!s.has_own() || p.part) return;
        if (s.slice == (int32_t)SLICE_NONE) {
            *j.fault = 1;
            return;
        }
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int c = 0; c < S::CHUNKS; c++)
                if (key(h) == s.own)
                    *(uint4 *)(key_0(j, s) + s.own * (S::D * 2) + c * 64) = k[h][c];
        UNROLL for (int n = 0; n < 4; n++)
            UNROLL for (int h = 0; h < S::HALVES; h++)
                if (value(n) == s.own)
                    *(uint4 *)(value_0(j, s) + s.own * (S::D * 2) + h * 128) = v[n][h];
    }
};

template <class S>
__device__ __forceinline__ void
load_q(const struct job &j, const struct place &p, uint4 (&q)[S::CHUNKS])
{
    uint32_t column = threadIdx.x % 32 / 4;
    const char *from = (const char *)j.a.q.data + begin_of(j, p, j.a.q, column) * 2;
    bool there = column < columns(j, p);

    UNROLL for (int c = 0; c < S::CHUNKS; c++)
        q[c] = there ? *(const uint4 *)(from + (threadIdx.x % 4 + 4 * c) * 16)
                     : make_uint4(0, 0, 0, 0);
}

/* ---- scores, softmax, values ---- */

/* Computes x: the scores of columns 2 i and 2 i + 1 for keys g (x[0], x[1]) and g + 8. */
template <class S>
__device__ __forceinline__ void
score(const struct job &j, const struct place &p, const struct span &at,
      const uint4 (&q)[S::CHUNKS], const struct tile_keys<S> &t, float (&x)[4])
{
    using T = typename S::T;
    const struct attend &a = j.a;
    int32_t g = threadIdx.x % 32 / 4;
    float even[4] = { 0 }, odd[4] = { 0 }, bias[4];

    if (a.bias) {
        int32_t reach = (int32_t)a.bias_reach;
        int32_t far = p.tile * S::TILE + (int32_t)(threadIdx.x / 32) * KEYS + g - p.pos;

        UNROLL for (int i = 0; i < 4; i++) {
            uint32_t row = min(p.part * HEADS + threadIdx.x % 4 * 2 + i % 2, j.group - 1);

            bias[i] = a.bias[(size_t)(p.kv_head * j.group + row) * (2 * reach + 1) + reach +
                             max(-reach, min(reach, far + i / 2 * 8))];
        }
    }
    UNROLL for (int c = 0; c < S::CHUNKS; c++) {
        const uint4 &a = t.k[0][c], &b = t.k[1][c];
        uint32_t low[4] = { a.x, b.x, a.y, b.y }, high[4] = { a.z, b.z, a.w, b.w };

        mma<T>(even, low, q[c].x, q[c].y);
        mma<T>(odd, high, q[c].z, q[c].w);
    }
    UNROLL for (int i = 0; i < 4; i++) x[i] = (even[i] + odd[i]) * j.before;
    if (a.softcap != 0) { /* tanh x = 1 - 2 / (e^2x + 1) */
        UNROLL for (int i = 0; i < 4; i++)
            x[i] = j.after * (1 - __fdividef(2, exp2_fast(2 * LOG2E * x[i]) + 1));
    }
    if (a.bias) {
        UNROLL for (int i = 0; i < 4; i++) x[i] = fmaf(bias[i], LOG2E, x[i]);
    }
    UNROLL for (int i = 0; i < 4; i++)
        if (g + i / 2 * 8 < at.low || g + i / 2 * 8 >= at.high) x[i] = -INFINITY;
}

/* Softmax state of a warp in a piece. Lane 4 g + i has, for columns 2 i and 2 i + 1: the largest
 * score, the sum of the weights of its own keys, and the weighted values: o[4 h + n] is for
 * elements 64 h + 8 g + 2 n and the next. */
template <class S> struct state {
    float max[2], sum[2], o[4 * S::HALVES][4];

    __device__ __forceinline__ void clear()
    {
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0;
        UNROLL for (int n = 0; n < 4 * S::HALVES; n++)
            for (int i = 0; i < 4; i++) o[n][i] = 0;
    }
};

/* Converts the scores x of a tile to softmax weights; adds them and the tile's values to st. */
template <class S>
__device__ __forceinline__ void
gather(struct state<S> &st, float (&x)[4], const struct tile_keys<S> &t)
{
    using T = typename S::T;
    float top[2] = { fmaxf(x[0], x[2]), fmaxf(x[1], x[3]) };

    if (__any_sync(~0u, top[0] - st.max[0] > SLACK || top[1] - st.max[1] > SLACK)) {
        UNROLL for (int h = 0; h < 2; h++) {
            float keep;

            for (int d = 4; d < 32; d *= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], d));
            top[h] = fmaxf(top[h], st.max[h]);
            keep = exp2_fast(st.max[h] - top[h]);
            st.max[h] = top[h];
            st.sum[h] *= keep;
            UNROLL for (int n = 0; n < 4 * S::HALVES; n++) {
                st.o[n][h] *= keep;
                st.o[n][h + 2] *= keep;
            }
        }
    }
    UNROLL for (int i = 0; i < 4; i++) {
        x[i] = exp2_fast(x[i] - st.max[i % 2]);
        st.sum[i % 2] += x[i];
    }

    uint32_t b0 = transpose_matrix(pack<T>(x[0], x[1])), b1 = transpose_matrix(pack<T>(x[2], x[3]));

    UNROLL for (int h = 0; h < S::HALVES; h++)
        UNROLL for (int n = 0; n < 4; n++) {
            auto word = [&](int key) {
                const uint4 &v = t.v[key][h];

                return n == 0 ? v.x : n == 1 ? v.y : n == 2 ? v.z : v.w;
            };
            uint32_t a[4] = { __byte_perm(word(0), word(1), 0x5410),
                              __byte_perm(word(0), word(1), 0x7632),
                              __byte_perm(word(2), word(3), 0x5410),
                              __byte_perm(word(2), word(3), 0x7632) };

            mma<T>(st.o[4 * h + n], a, b0, b1);
        }
}

/* ---- end of a piece ---- */

template <class S> struct piece_states {
    float warp_o[S::BUFFERS][S::WARPS][HEADS][S::D + 4];
    float2 warp_end[S::BUFFERS][S::WARPS][HEADS]; /* largest score, sum */
    bool last;
};

/* Merges the warps' states of a piece and finishes the piece. */
template <class S>
__device__ __forceinline__ void
end_piece(const struct job &j, const struct place &p, const struct shares &shares,
          struct piece_states<S> &m, uint32_t buffer, struct state<S> &st)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, rows = columns(j, p);

    UNROLL for (uint32_t h = 0; h < 2; h++) {
        uint32_t row = lane % 4 * 2 + h;

        for (int d = 4; d < 32; d *= 2) st.sum[h] += __shfl_xor_sync(~0u, st.sum[h], d);
        if (row >= rows) continue;
        if (g == 0) m.warp_end[buffer][warp][row] = make_float2(st.max[h], st.sum[h]);
        UNROLL for (int i = 0; i < 4 * S::HALVES; i += 2)
            *(float4 *)&m.warp_o[buffer][warp][row][i / 4 * 64 + g * 8 + i % 4 * 2] =
                make_float4(st.o[i][h], st.o[i][h + 2], st.o[i + 1][h], st.o[i + 1][h + 2]);
    }
    st.clear();
    __syncthreads();
    finish_piece<typename S::T, S::D, S::THREADS, S::WARPS>(
        j, p, shares, m.last,
        [&](int k, uint32_t row, uint32_t at, float2 &end, float4 &o) {
            end = m.warp_end[buffer][k][row];
            o = *(const float4 *)&m.warp_o[buffer][k][row][at];
        },
        [] { __syncthreads(); });
}

/* The kernel. ONE: there is one segment. */
template <class S, int BLOCKS, bool ONE>
__global__ void
__launch_bounds__(S::THREADS, BLOCKS) attend_one_row(const __grid_constant__ struct job j)
{
    __shared__ struct piece_states<S> m;
    const bool early = ONE && j.early;
    struct shares shares;
    struct place p, next;

    if (!early) join_previous();
    if (!(ONE ? find_piece<S::TILE>(j, shares, p) : find_share<S::TILE>(j, shares, p))) {
        if (early) join_previous();
        return;
    }

    struct span at = find_span<S, ONE>(j, p), after;
    struct tile_keys<S> t;
    struct state<S> st;
    uint4 q[S::CHUNKS];
    uint32_t buffer = 0;

    if (!early) load_q<S>(j, p, q);
    t.template load_k<ONE>(j, at);
    t.template load_v<ONE>(j, at);
    if (early) {
        join_previous();
        load_q<S>(j, p, q);
    }
    if (ONE) {
        t.load_own_k(j, p, at);
        t.load_own_v(j, p, at);
    }
    st.clear();
    for (;;) {
        bool ends = p.tile + 1 == p.stop, more = !ends || p.left > 0;
        float x[4];

        if (more) {
            next = p;
            step<S::TILE>(j, next);
            after = find_span<S, ONE>(j, next);
        }
        if (at.some()) score<S>(j, p, at, q, t, x);
        if (ONE) t.store_own(j, p, at);
        if (more) {
            t.template load_k<ONE>(j, after);
            if (ONE) t.load_own_k(j, next, after);
            if (ends) load_q<S>(j, next, q);
        }
        if (at.some()) gather<S>(st, x, t);
        if (more) {
            t.template load_v<ONE>(j, after);
            if (ONE) t.load_own_v(j, next, after);
        }
        if (ends) end_piece<S>(j, p, shares, m, buffer++ % S::BUFFERS, st);
        if (!more) break;
        p = next;
        at = after;
    }
}

/* ---- host side ---- */

template <class S, int BLOCKS, bool ONE>
cudaError_t
start(const struct k_launch *l, struct job j)
{
    if (!share_among(j, BLOCKS * l->sms, l)) return cudaErrorInvalidValue;
    j.pieces = j.most / j.units;
    if (ONE && j.pieces == 0) return cudaErrorInvalidValue;
    return launch(attend_one_row<S, BLOCKS, ONE>, j.most, S::THREADS, 0, l->st, j);
}

/* Chooses the shape. Heads of 128: with one segment eight warps per block hide latency better than
 * four; with more units than SMs attend_sm80 has more loads in flight, and this kernel refuses. */
template <typename T>
cudaError_t
start_as(const struct k_launch *l, const struct job &j)
{
    bool one = j.r.n_segments == 1;

    if (j.a.head_dim == 64)
        return one ? start<shape<T, 64, 4>, 4, true>(l, j) : start<shape<T, 64, 4>, 4, false>(l, j);
    if (j.units > l->sms) return cudaErrorInvalidValue;
    return one ? start<shape<T, 128, 8>, 1, true>(l, j) : start<shape<T, 128, 4>, 2, false>(l, j);
}

} /* namespace */

cudaError_t
k_attend_decode_sm90(const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    struct job j = {};
    enum dtype t = a->q.dtype;

    if (a->head_dim != 64 && a->head_dim != 128) return cudaErrorInvalidValue;
    if (a->kv.table && a->kv.tokens_per_block < KEYS) return cudaErrorInvalidValue;
    if (a->k.data && (r.n_segments != 1 || a->k.dtype != t || a->v.dtype != t || !aligned(a->k) ||
                      !aligned(a->v) || a->kv.n_parts == 1))
        return cudaErrorInvalidValue;
    if (!make_job(j, l, a, r)) return cudaErrorInvalidValue;
    if (r.n_segments == 0 || r.n_tokens == 0) return cudaSuccess;
    return t == DT_BF16 ? start_as<__nv_bfloat16>(l, j) : start_as<__half>(l, j);
}
