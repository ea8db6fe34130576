/* attend_sm80.cu - attention by mma.sync; see attend_sm80.h. attend_sm80_schedule.cuh defines
 * packed row, unit, share, split. A thread block has 16 WM packed rows and goes through tiles of 64
 * keys. It has WM x WN warps: warp (m, n) has rows 16 m .., keys (64 / WN) n .. of a tile's scores,
 * and elements (D / WN) n .. of the output. Scores pass between the WN warps through shared memory.
 * The arithmetic on a row's 64 scores is the same for any WM and WN, and so are the bits:
 *
 *     per tile    m' = max(m, scores)   p = 2^(score - m'), rounded to T   o = o 2^(m - m') + p v
 *                 the sum of p is one more column of v, all ones
 *     per split   added to the total as if the split were one tile. If several blocks share a unit,
 *                 each writes its splits to memory, and the last block adds them in order, with
 *                 the same arithmetic.
 *
 * A tile that a row does not see changes none of its bits: p = 0, m' = m.
 *
 * K and V are copied, 16 bytes at a time, from the cache blocks into a ring of STAGES pairs (a tile
 * of K and a tile of V), swizzled (chunk c of key k is at c ^ k % 8) to avoid bank conflicts of
 * ldmatrix. The copies run ahead across tiles, splits, units and segments. At step t, after one
 * barrier:
 *
 *     copies      V of t + STAGES - 1, K of t + STAGES        into the pair that step t - 1 used
 *     gather()    converts the scores of t to softmax weights P and adds P V of t to the output
 *     score()     computes the scores of t + 1 from K of t + 1
 *
 * fp8 is copied, V of t + 2 and K of t + 3, into a separate ring of two pairs. At the end of the
 * next step each thread widens what it copied into the main ring.
 *
 *            segments of one row:                       segments of several rows:
 *     D      warps (WM x WN), ring, blocks per SM       warps (WM x WN), packed rows, ring
 *     64     4 (1 x 4), 4 x 16 KiB, 3                   4 (4 x 1), 64, 3 x 16 KiB
 *     128    4 (1 x 4), 3 x 32 KiB, 2                   8 (4 x 2), 64, 3 x 32 KiB
 *     256    4 (1 x 4), 3 x 64 KiB, 1                   8 (2 x 4), 32, 2 x 64 KiB   (fp8: STAGES 2)
 */
#include "gpu/cuda/kernels/attention/attend_sm80.h"

#include "gpu/cuda/kernels/attention/attend_sm80_load.cuh"
#include "gpu/cuda/kernels/attention/attend_sm80_schedule.cuh"
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm80.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

using namespace attend_sm80;

namespace {

constexpr float LOG2E = 1.4426950408889634f;
constexpr int PAD = 8; /* floats after a row of scores: 4 rows use 32 banks */

template <typename T_, bool NARROW_, int D_, int WM_, int WN_, int STAGES_, bool SINGLE_>
struct shape {
    using T = T_;
    static constexpr bool NARROW = NARROW_; /* K and V are fp8 in the cache */
    static constexpr int D = D_, WM = WM_, WN = WN_, STAGES = STAGES_;
    static constexpr bool SINGLE = SINGLE_; /* segments have one row; blocks have shares */
    static constexpr int ROWS = 16 * WM, WARPS = WM * WN, THREADS = 32 * WARPS;
    static constexpr int KEYS = TILE / WN;    /* keys of a tile that a warp scores */
    static constexpr int COLS = D / WN;       /* elements of the output of a warp */
    static constexpr int HALF = TILE * D * 2; /* bytes of K, or V, of one tile */
    static constexpr int SCORES = WN > 1 ? ROWS *(TILE + PAD) : 0; /* floats */
    static constexpr int CAME = NARROW ? TILE * D : 0; /* bytes of a tile of fp8 */
    static constexpr int BYTES = STAGES * 2 * HALF + 4 * CAME + 2 * SCORES * 4;
};

/* ---- scores ---- */

/* The two packed rows of lane 4 g + i in a warp (m, n): 16 m + g and 16 m + g + 8. */
struct lane_rows {
    uint32_t row[2], head[2]; /* row of the batch; head of q */
    struct seen sees[2];
    bool real[2];
};

template <class S>
__device__ __forceinline__ struct lane_rows
find_rows(const struct job &j, const struct walk &w)
{
    struct lane_rows r;
    uint32_t p = w.first + threadIdx.x / 32 / S::WN * 16 + threadIdx.x % 32 / 4;

    UNROLL for (int h = 0; h < 2; h++, p += 8) {
        uint32_t row = S::SINGLE ? 0 : p / j.group;

        r.real[h] = S::SINGLE ? p < j.group : row < w.segment.n_tokens;
        r.sees[h] = seen_by(j.a, w.segment, row);
        r.row[h] = w.segment.first_token + row;
        r.head[h] = r.real[h] ? w.kv_head * j.group + p - row * j.group : 0;
        if (!r.real[h]) r.sees[h].high = r.sees[h].low;
    }
    return r;
}

template <class S>
__device__ __forceinline__ void
load_q(const struct job &j, const struct lane_rows &r, uint32_t (&q)[S::D / 16][4])
{
    UNROLL for (int h = 0; h < 2; h++) {
        const uint32_t *from =
            (const uint32_t *)((const char *)j.a.q.data +
                               ((size_t)r.row[h] * j.a.q.stride + (size_t)r.head[h] * S::D) * 2) +
            threadIdx.x % 4;

        UNROLL for (int k = 0; k < S::D / 16; k++) {
            q[k][h] = r.real[h] ? from[8 * k] : 0;
            q[k][h + 2] = r.real[h] ? from[8 * k + 4] : 0;
        }
    }
}

/* Whether the tree mask hides a key from a row. */
__device__ __forceinline__ bool
masked(const struct attend &a, const struct walk &w, uint32_t row, int32_t key)
{
    uint32_t own = (uint32_t)(key - w.segment.first_pos);

    return key >= w.segment.first_pos &&
           (own / 32 >= a.mask_words ||
            !(a.mask[(size_t)row * a.mask_words + own / 32] >> own % 32 & 1));
}

/* Computes a warp's scores of a tile: q.k, then scale, softcap, bias and masks; in base 2. */
template <class S>
__device__ __forceinline__ void
score(const struct job &j, const struct walk &w, const struct lane_rows &r,
      const uint32_t (&q)[S::D / 16][4], uint32_t keys, float (&s)[S::KEYS / 8][4])
{
    uint32_t lane = threadIdx.x % 32, key = threadIdx.x / 32 % S::WN * S::KEYS;
    uint32_t row = key + lane / 16 * 8 + lane % 8, half = lane / 8 % 2;

    UNROLL for (int n = 0; n < S::KEYS / 8; n++)
        for (int i = 0; i < 4; i++) s[n][i] = 0;
    UNROLL for (int k = 0; k < S::D / 16; k++)
        UNROLL for (int n = 0; n < S::KEYS / 16; n++) {
            uint32_t b[4];

            load_matrices(b,
                          keys + (row + 16 * n) * (S::D * 2) + (((2 * k + half) ^ (row & 7)) << 4));
            mma<typename S::T>(s[2 * n], q[k], b[0], b[1]);
            mma<typename S::T>(s[2 * n + 1], q[k], b[2], b[3]);
        }

    const struct attend &a = j.a;
    int32_t pos = w.tile * TILE + (int32_t)(key + lane % 4 * 2), reach = (int32_t)a.bias_reach;

    UNROLL for (int n = 0; n < S::KEYS / 8; n++)
        for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(s[n][i], j.before);
    if (a.softcap != 0) { /* tanh x = 1 - 2 / (e^2x + 1) */
        UNROLL for (int n = 0; n < S::KEYS / 8; n++)
            for (int i = 0; i < 4; i++)
                s[n][i] = __fmul_rn(
                    j.after, 1 - __fdividef(2, exp2_fast(__fmul_rn(2 * LOG2E, s[n][i])) + 1));
    }
    if (a.bias) {
        const float *bias[2] = { a.bias + (size_t)r.head[0] * (2 * reach + 1) + reach,
                                 a.bias + (size_t)r.head[1] * (2 * reach + 1) + reach };

        UNROLL for (int n = 0; n < S::KEYS / 8; n++)
            for (int i = 0; i < 4; i++) {
                int32_t far = pos + n * 8 + i % 2 - r.sees[i / 2].pos;

                s[n][i] = __fmaf_rn(__ldg(bias[i / 2] + max(-reach, min(reach, far))), LOG2E,
                                    s[n][i]);
            }
    }
    if (w.tile * TILE < w.sure_low || w.tile * TILE + TILE > w.sure_high) {
        UNROLL for (int n = 0; n < S::KEYS / 8; n++)
            for (int i = 0; i < 4; i++) {
                int32_t at = pos + n * 8 + i % 2;

                if ((at < r.sees[i / 2].low && at >= (int32_t)a.kept) || at >= r.sees[i / 2].high)
                    s[n][i] = -INFINITY;
            }
    }
    if (a.mask) {
        UNROLL for (int n = 0; n < S::KEYS / 8; n++)
            for (int i = 0; i < 4; i++)
                if (r.real[i / 2] && masked(a, w, r.row[i / 2], pos + n * 8 + i % 2))
                    s[n][i] = -INFINITY;
    }
}

/* ---- softmax and values ---- */

/* Merges a split's largest score and sum with those of the earlier splits. Returns the factors for
 * o: o = o keep + (the split's o) take. */
__device__ __forceinline__ void
add_split(float &max, float &sum, float split_max, float split_sum, float &keep, float &take)
{
    float most = fmaxf(max, split_max), base = most == -INFINITY ? 0 : most;

    keep = exp2_fast(__fadd_rn(max, -base));
    take = exp2_fast(__fadd_rn(split_max, -base));
    max = most;
    sum = __fmaf_rn(sum, keep, __fmul_rn(split_sum, take));
}

/* Final factor of a head's o: 1 / sum. A sink counts as one more key without a value. */
__device__ __forceinline__ float
last_factor(const struct attend &a, uint32_t head, float max, float sum)
{
    float keep = 1;

    if (a.sinks) {
        float sink = __fmul_rn(a.sinks[head], LOG2E), most = fmaxf(max, sink);

        keep = exp2_fast(__fadd_rn(max, -most));
        sum = __fmaf_rn(sum, keep, exp2_fast(__fadd_rn(sink, -most)));
    }
    return sum > 0 ? __fdiv_rn(keep, sum) : 0;
}

/* Softmax state of a warp for rows g and g + 8: largest score, sum of weights, weighted values. */
template <class S> struct state {
    float max[2], sum[2], o[S::COLS / 8][4];

    __device__ __forceinline__ void clear()
    {
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0;
        UNROLL for (int n = 0; n < S::COLS / 8; n++)
            for (int i = 0; i < 4; i++) o[n][i] = 0;
    }

    __device__ __forceinline__ void add(const struct state &s)
    {
        float keep[2], take[2];

        UNROLL for (int h = 0; h < 2; h++)
            add_split(max[h], sum[h], s.max[h], s.sum[h], keep[h], take[h]);
        UNROLL for (int n = 0; n < S::COLS / 8; n++)
            UNROLL for (int i = 0; i < 4; i++)
                o[n][i] = __fmaf_rn(o[n][i], keep[i / 2], __fmul_rn(s.o[n][i], take[i / 2]));
    }
};

/* Converts the scores s of a tile to softmax weights; adds them and the tile's values to the state.
 * upper: also for rows g + 8; otherwise for rows g only. */
template <class S>
__device__ __forceinline__ void
gather(struct state<S> &st, float (&s)[TILE / 8][4], uint32_t values, bool upper)
{
    constexpr uint32_t ONES = sizeof(typename S::T) && std::is_same<typename S::T, __half>::value
                                  ? 0x3c003c00
                                  : 0x3f803f80;
    uint32_t lane = threadIdx.x % 32, chunk = threadIdx.x / 32 % S::WN * (S::COLS / 8) + lane / 16;
    uint32_t row = lane % 16;
    float sum[4] = { 0 };

    UNROLL for (int h = 0; h < 2; h++) {
        float most = st.max[h];

        if (h == 1 && !upper) continue;
        UNROLL for (int n = 0; n < TILE / 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));

        float base = most == -INFINITY ? 0 : most, keep = exp2_fast(__fadd_rn(st.max[h], -base));

        st.max[h] = most;
        sum[2 * h] = sum[2 * h + 1] = __fmul_rn(st.sum[h], keep);
        UNROLL for (int n = 0; n < S::COLS / 8; n++) {
            st.o[n][2 * h] = __fmul_rn(st.o[n][2 * h], keep);
            st.o[n][2 * h + 1] = __fmul_rn(st.o[n][2 * h + 1], keep);
        }
        UNROLL for (int n = 0; n < TILE / 8; n++) {
            s[n][2 * h] = exp2_fast(__fadd_rn(s[n][2 * h], -base));
            s[n][2 * h + 1] = exp2_fast(__fadd_rn(s[n][2 * h + 1], -base));
        }
    }
    UNROLL for (int k = 0; k < TILE / 16; k++) {
        using T = typename S::T;
        uint32_t p[4] = { pack<T>(s[2 * k][0], s[2 * k][1]), pack<T>(s[2 * k][2], s[2 * k][3]),
                          pack<T>(s[2 * k + 1][0], s[2 * k + 1][1]),
                          pack<T>(s[2 * k + 1][2], s[2 * k + 1][3]) };

        mma<T>(sum, p, ONES, ONES);
        UNROLL for (int n = 0; n < S::COLS / 16; n++) {
            uint32_t b[4];

            load_matrices<true>(b, values + (row + 16 * k) * (S::D * 2) +
                                        (((chunk + 2 * n) ^ (row & 7)) << 4));
            mma<T>(st.o[2 * n], p, b[0], b[1]);
            mma<T>(st.o[2 * n + 1], p, b[2], b[3]);
        }
    }
    st.sum[0] = sum[0];
    st.sum[1] = sum[2];
}

/* ---- end of a unit ---- */

/* Stores the output of a unit that this block computed alone. */
template <class S>
__device__ __forceinline__ void
finish(const struct job &j, const struct walk &w, const struct state<S> &st)
{
    struct lane_rows r = find_rows<S>(j, w);
    uint32_t col = threadIdx.x / 32 % S::WN * S::COLS + threadIdx.x % 4 * 2;

    UNROLL for (int h = 0; h < 2; h++) {
        float factor = last_factor(j.a, r.head[h], st.max[h], st.sum[h]);
        uint32_t *to =
            (uint32_t *)((char *)j.a.out.data +
                         ((size_t)r.row[h] * j.a.out.stride + (size_t)r.head[h] * S::D + col) * 2);

        if (!r.real[h]) continue;
        UNROLL for (int n = 0; n < S::COLS / 8; n++)
            to[4 * n] = pack<typename S::T>(__fmul_rn(st.o[n][2 * h], factor),
                                            __fmul_rn(st.o[n][2 * h + 1], factor));
    }
}

/* Stores a partial result: [slot_rows][D] of o, then the largest scores, then the sums. */
template <class S>
__device__ __forceinline__ void
store_split(const struct job &j, uint32_t slot, const struct state<S> &st)
{
    uint32_t row = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;
    float *base = j.slot + (size_t)slot * j.slot_rows * (S::D + 2);

    UNROLL for (int h = 0; h < 2; h++, row += 8) {
        float *o = base + row * S::D + warp * S::COLS + threadIdx.x % 4 * 2;
        float *ends = base + j.slot_rows * S::D + row;

        if (row >= j.slot_rows) continue;
        if (warp == 0 && threadIdx.x % 4 == 0) {
            ends[0] = st.max[h];
            ends[j.slot_rows] = st.sum[h];
        }
        UNROLL for (int n = 0; n < S::COLS / 8; n++)
            *(float2 *)(o + 8 * n) = make_float2(st.o[n][2 * h], st.o[n][2 * h + 1]);
    }
}

/* The splits of a shared unit: their number, and where the i-th is among the partial results. */
struct splits {
    uint32_t n, first;
    bool numbered; /* with job.split: one after the other; else two per share, see own_slot() */

    __device__ __forceinline__ splits(const struct job &j, const struct walk &w,
                                      const struct shares &shares)
        : numbered(j.split != 0)
    {
        if (numbered) {
            n = (uint32_t)w.tiles.n_splits();
            first = w.slot - (uint32_t)w.tiles.split(w.tile);
        } else {
            first = shares.of(w.first_tile);
            n = shares.of(w.first_tile + (uint32_t)w.tiles.n() - 1) - first + 1;
        }
    }

    __device__ __forceinline__ uint32_t part_entry(uint32_t i) const
    {
        return numbered ? first + i : 2 * (first + i) + (i == 0);
    }
};

/* Where the block stores the split that ends at w. Without job.split share i has two partial
 * results: 2 i for a unit that began in an earlier share, 2 i + 1 for a unit that begins in it. */
__device__ __forceinline__ uint32_t
own_slot(const struct job &j, const struct walk &w, const struct shares &shares)
{
    if (j.split) return w.slot;
    return 2 * blockIdx.x + (shares.begin(blockIdx.x) <= w.first_tile);
}

/* Adds the splits of a unit in order and stores its output: four elements per thread at a time. */
template <class S>
__device__ __forceinline__ void
combine(const struct job &j, const struct walk &w, const struct shares &shares)
{
    constexpr uint32_t QUADS = S::D / 4, AHEAD = S::D == 64 ? 8 : 16;
    size_t pitch = (size_t)j.slot_rows * (S::D + 2);
    const struct splits splits(j, w, shares);

    for (uint32_t i = threadIdx.x; i < j.slot_rows * QUADS; i += S::THREADS) {
        uint32_t row = i / QUADS, p = w.first + row;
        const float *o = j.slot + i * 4, *ends = j.slot + j.slot_rows * S::D + row;
        float max = -INFINITY, sum = 0, total[4] = { 0 };

        for (uint32_t first = 0; first < splits.n; first += AHEAD) {
            float2 part[AHEAD][2], end[AHEAD];

            UNROLL for (uint32_t k = 0; k < AHEAD; k++) {
                size_t at = splits.part_entry(min(first + k, splits.n - 1)) * pitch;

                part[k][0] = __ldcg((const float2 *)(o + at));
                part[k][1] = __ldcg((const float2 *)(o + at) + 1);
                end[k].x = __ldcg(ends + at);
                end[k].y = __ldcg(ends + at + j.slot_rows);
            }
            UNROLL for (uint32_t k = 0; k < AHEAD; k++) {
                float keep, take;

                if (first + k >= splits.n) break;
                add_split(max, sum, end[k].x, end[k].y, keep, take);
                total[0] = __fmaf_rn(total[0], keep, __fmul_rn(part[k][0].x, take));
                total[1] = __fmaf_rn(total[1], keep, __fmul_rn(part[k][0].y, take));
                total[2] = __fmaf_rn(total[2], keep, __fmul_rn(part[k][1].x, take));
                total[3] = __fmaf_rn(total[3], keep, __fmul_rn(part[k][1].y, take));
            }
        }
        if (p >= j.group) continue;

        uint32_t head = w.kv_head * j.group + p;
        float factor = last_factor(j.a, head, max, sum);
        uint32_t *to =
            (uint32_t *)((char *)j.a.out.data + ((size_t)w.segment.first_token * j.a.out.stride +
                                                 (size_t)head * S::D + i % QUADS * 4) *
                                                    2);

        to[0] = pack<typename S::T>(__fmul_rn(total[0], factor), __fmul_rn(total[1], factor));
        to[1] = pack<typename S::T>(__fmul_rn(total[2], factor), __fmul_rn(total[3], factor));
    }
}

/* Ends a split: adds its state to the total, or stores it as a partial result of a shared unit. */
template <class S>
__device__ __forceinline__ void
end_split(const struct job &j, const struct walk &w, const struct shares &shares,
          struct state<S> &split, struct state<S> &total)
{
    if (!S::SINGLE || w.whole)
        total.add(split);
    else
        store_split<S>(j, own_slot(j, w, shares), split);
    split.clear();
}

/* Reports n finished tiles of a shared unit; the last block to report combines the unit. */
template <class S>
__device__ __forceinline__ void
arrive(const struct job &j, const struct walk &w, const struct shares &shares, uint32_t n)
{
    __shared__ bool last;

    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t *count = j.count + (w.segment_index * j.a.n_kv_heads + w.kv_head) * j.parts +
                          w.part;

        /* The barrier and this add make all stores of this block visible to the last block. */
        last = add_in_order(count, n) + n == (uint32_t)w.tiles.n();
        if (last) *count = 0;
    }
    __syncthreads();
    if (last) combine<S>(j, w, shares);
}

/* ---- the kernels ---- */

/* Computes the tiles from w on, w.left in number: a share, or one unit. */
template <class S>
__device__ __forceinline__ void
attend_stretch(const struct job &j, struct walk w, const struct shares &shares)
{
    extern __shared__ __align__(128) char memory[];
    uint32_t ring = smem(memory), lane = threadIdx.x % 32, n_tiles = 0;
    uint32_t came = ring + S::STAGES * 2 * S::HALF;
    float *scores = (float *)(memory + S::STAGES * 2 * S::HALF + 4 * S::CAME);
    float *mine = scores + (threadIdx.x / 32 / S::WN * 16 + lane / 4) * (TILE + PAD) + lane % 4 * 2;
    struct copies<S> ahead(j, w);
    struct lane_rows rows = find_rows<S>(j, w);
    uint32_t q[S::D / 16][4];
    float s[S::KEYS / 8][4];
    struct state<S> part, total;
    bool upper = !S::SINGLE || j.slot_rows > 8; /* whether rows 8 .. 15 are used */

    if constexpr (S::NARROW) {
        ahead.queue(j, came);
        ahead.queue(j, came + 2 * S::CAME);
        copy_wait<0>();
        ahead.widen_tiles(came, ring + 2 * S::HALF);
        ahead.widen_tiles(came + 2 * S::CAME, ring);
        ahead.queue(j, came);
    } else {
        ahead.queue(j, ring + (S::STAGES - 1) * 2 * S::HALF);
        for (int i = 0; i < S::STAGES - 1; i++) ahead.queue(j, ring + i * 2 * S::HALF);
    }
    load_q<S>(j, rows, q);
    part.clear();
    total.clear();
    if constexpr (!S::NARROW) copy_wait<S::STAGES - 1>();
    __syncthreads();

    uint32_t keys = ring + (S::STAGES - 1) * 2 * S::HALF;

    for (uint32_t t = 0;; t++) {
        float *buffer = mine + t % 2 * S::SCORES;

        score<S>(j, w, rows, q, keys, s);
        if (S::WN > 1)
            UNROLL for (int n = 0; n < S::KEYS / 8; n++) {
                float *to = buffer + threadIdx.x / 32 % S::WN * S::KEYS + 8 * n;

                *(float2 *)to = make_float2(s[n][0], s[n][1]);
                *(float2 *)(to + 8 * (TILE + PAD)) = make_float2(s[n][2], s[n][3]);
            }

        /* Loads the next unit's q during gather. */
        bool split = ends_split(j, w), unit = w.tile + 1 == w.tiles.end || w.left == 1;
        struct walk now;

        if (unit) {
            now = w;
            step<S::ROWS, S::SINGLE>(j, w);
            if (w.left > 0) {
                rows = find_rows<S>(j, w);
                load_q<S>(j, rows, q);
            }
        }

        uint32_t pair = ring + t % S::STAGES * 2 * S::HALF;

        keys = pair;
        if constexpr (!S::NARROW) copy_wait<S::STAGES - 2>();
        __syncthreads();

        uint32_t free = ring + (t + S::STAGES - 1) % S::STAGES * 2 * S::HALF;

        ahead.queue(j, S::NARROW ? came + (t + 1) % 2 * 2 * S::CAME : free);
        if constexpr (S::WN > 1) {
            float all[TILE / 8][4];

            UNROLL for (int n = 0; n < TILE / 8; n++) {
                float2 a = *(float2 *)(buffer + 8 * n);

                all[n][0] = a.x, all[n][1] = a.y;
            }
            UNROLL for (int n = 0; n < TILE / 8; n++) {
                float2 a = make_float2(0, 0);

                if (upper) a = *(float2 *)(buffer + 8 * n + 8 * (TILE + PAD));
                all[n][2] = a.x, all[n][3] = a.y;
            }
            gather<S>(part, all, pair + S::HALF, upper);
        } else {
            gather<S>(part, s, pair + S::HALF, true);
        }
        if constexpr (S::NARROW) {
            copy_wait<1>();
            ahead.widen_tiles(came + t % 2 * 2 * S::CAME, free);
        }
        n_tiles++;
        if (!unit) {
            if (split) end_split<S>(j, w, shares, part, total);
            step<S::ROWS, S::SINGLE>(j, w);
            continue;
        }
        end_split<S>(j, now, shares, part, total);
        if (!S::SINGLE || now.whole) {
            finish<S>(j, now, total);
            total.clear();
        } else {
            arrive<S>(j, now, shares, n_tiles);
        }
        if (now.left == 1) break;
        n_tiles = 0;
    }
    copy_wait<0>();
}

template <class S, int BLOCKS>
__global__ void
__launch_bounds__(S::THREADS, BLOCKS) attend_shares(const __grid_constant__ struct job j)
{
    struct shares shares;

    join_previous();

    struct walk w = find_share<S::ROWS>(j, shares);

    if (w.left > 0) attend_stretch<S>(j, w, shares);
}

template <class S>
__global__ void
__launch_bounds__(S::THREADS) attend_units(const __grid_constant__ struct job j)
{
    join_previous();

    struct walk w = find_unit<S::ROWS>(j);

    if (w.left > 0) attend_stretch<S>(j, w, {});
}

/* Sets the kernel's shared memory limit and launches it. */
template <class S>
cudaError_t
start(void (*kernel)(struct job), uint32_t grid, const struct k_launch *l, const struct job &j)
{
    cudaError_t r = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         S::BYTES);

    return r ? r : launch(kernel, grid, S::THREADS, S::BYTES, l->st, j);
}

/* Returns the number of thread blocks for `units` units: at most `most`, and slightly fewer (at
 * least 7/8) if all blocks then get the same number of whole units. With segments of equal length
 * no unit is then divided and nothing is added through memory. */
uint32_t
even_grid(uint32_t most, uint32_t units)
{
    uint32_t even = CEIL_DIV(units, CEIL_DIV(units, most));

    return even * 8 >= most * 7 ? even : most;
}

/* Launches the kernels with the shapes of D in the table at the top. */
template <typename T, bool NARROW, int D>
cudaError_t
queue(const struct k_launch *l, struct job j)
{
    using one = shape<T, NARROW, D, 1, 4, NARROW ? 2 : D == 64 ? 4 : 3, true>;
    using many = shape<T, NARROW, D, D == 256 ? 2 : 4, D / 64, NARROW || D == 256 ? 2 : 3, false>;
    constexpr int BLOCKS = D == 64 ? 3 : 256 / D;
    struct step_tokens all = j.r;
    cudaError_t r = cudaSuccess;

    j.parts = CEIL_DIV(j.group, 16u);
    j.r.n_segments = MIN(all.n_single_token, all.n_segments);
    if (j.r.n_segments) {
        j.slot = (float *)l->work;
        j.count = l->count;
        j.slot_rows = MIN(j.group, 16u);
        j.n_slots = (uint32_t)MIN(l->work_bytes / (j.slot_rows * (D + 2) * 4), (size_t)UINT32_MAX);
        if ((uint64_t)j.r.n_segments * j.a.n_kv_heads * j.parts > K_COUNTERS) j.n_slots = 0;
        r = start<one>(attend_shares<one, BLOCKS>,
                       even_grid(BLOCKS * l->sms, j.r.n_segments * j.a.n_kv_heads * j.parts), l, j);
    }
    j.r.segment += j.r.n_segments;
    j.r.n_segments = all.n_segments - j.r.n_segments;
    if (r == cudaSuccess && j.r.n_segments) {
        uint32_t rows = all.n_tokens - (all.n_segments - j.r.n_segments);
        uint32_t units = (uint32_t)((uint64_t)rows * j.group / many::ROWS) + j.r.n_segments;

        r = start<many>(attend_units<many>, units * j.a.n_kv_heads, l, j);
    }
    return r;
}

/* Whether the rows of t, a tensor of 16-bit elements, are aligned to `bytes`. */
bool
aligned(const struct tensor &t, uint32_t bytes)
{
    return (uintptr_t)t.data % bytes == 0 && t.stride * 2 % bytes == 0;
}

} /* namespace */

cudaError_t
k_attend_sm80(const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    struct job j = {};
    enum dtype t = a->q.dtype;
    bool narrow = a->kv.table && a->kv.dtype == DT_E4M3;

    if (a->out.dtype != t || !aligned(a->q, 4) || !aligned(a->out, 4)) return cudaErrorInvalidValue;
    if (a->kv.table) {
        if (a->k.data || (a->kv.dtype != t && !narrow) || (uintptr_t)a->kv.base % 16 ||
            a->kv.slice_bytes % 16 || a->kv.tokens_per_block < 2)
            return cudaErrorInvalidValue;
        j.base = (const char *)a->kv.base;
        j.value_at = a->kv.n_parts == 1 ? 0 : a->kv.slice_bytes;
        j.block_bytes = a->kv.slice_bytes;
        j.key_bytes = a->head_dim * (narrow ? 1 : 2);
        while (2u << j.shift <= a->kv.tokens_per_block) j.shift++;
    } else {
        if (a->k.dtype != t || a->v.dtype != t || a->k.stride != a->v.stride ||
            !aligned(a->k, 16) || !aligned(a->v, 16))
            return cudaErrorInvalidValue;
        j.base = (const char *)a->k.data;
        j.value_at = (const char *)a->v.data - (const char *)a->k.data;
        j.block_bytes = j.key_bytes = a->k.stride * 2;
        j.shift = 31;
    }
    if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256) return cudaErrorInvalidValue;
    if (t != DT_BF16 && t != DT_F16) return cudaErrorInvalidValue;
    if (r.n_segments == 0 || r.n_tokens == 0) return cudaSuccess;
    j.a = *a;
    if (!a->window || !a->kv.table) j.a.kept = 0;
    j.r = r;
    j.split = l->invariant ? SPLIT : 0;
    j.group = a->n_heads / a->n_kv_heads;
    j.before = a->softcap != 0 ? a->scale / a->softcap : a->scale * LOG2E;
    j.after = a->softcap * LOG2E;
    return with_head_dim(t, a->head_dim, [&](auto type, auto dim) {
        using T = decltype(type);
        constexpr int D = decltype(dim)::value;

        return narrow ? queue<T, true, D>(l, j) : queue<T, false, D>(l, j);
    });
}
