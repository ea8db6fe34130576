/* sample_select.cu - sample: lists of the best, and draws with cuts (top_k, top_p, min_p); see
 * sample.h.
 *
 * One CTA per row; rows that need neither return at once. Only a short list is sorted:
 *
 *     best of each group of 32 logits (first kernel) -> a bound that at least K logits reach
 *     groups whose best reaches it -> candidates (shared memory) -> sorted: the list
 *     usually the list decides the cut and the draw
 *
 * Otherwise (a flat row and a large top_p, thousands of ties, top_k above the list) the row is read
 * again, from L2: weights are added in 2,048 bins of logits. The logits of the bin that contains
 * the cut become the list or, if they are too many, three passes over the bits of their keys find
 * the cut. The draw reads the row once more.
 *
 * A value's position in the row's order is one number, place = key << 32 | ~id: a larger place is
 * better, all places are different, and a cut is the place of the last value that stays.
 */
#include "gpu/cuda/kernels/sampling/sample_math.cuh"

namespace sampling {
namespace {

constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr uint32_t BINS = 2048, LIST = 4096, SHORT = 1024;
static_assert(SHORT == 2 * THREADS && MAX_BLOCKS == 2 * THREADS, "a thread has two of each");

/* LIST: maximum length of the list. SHORT: how many of its best are weighed and returned. */
struct shared {
    union {
        u64 list[LIST];
        struct {
            uint32_t low[BINS], high[BINS]; /* low and high half of each bin's weight */
        } bin;
        u64 block[MAX_BLOCKS];
    };
    union {
        u64 weight[SHORT];
        uint16_t group[LIST];
    };
    u64 scan[WARPS];
    float part[WARPS];
    u64 found, before;
    uint32_t n_list, n_groups, id;
};

struct row {
    const float *x;
    uint32_t n, n_blocks;
    float best, rate, min_p;
    float per; /* bins per unit of logit, when counting for lists */
};

__device__ __forceinline__ u64
place_of(float x, uint32_t id)
{
    return (u64)key_of(x) << 32 | (uint32_t)~id;
}
__device__ __forceinline__ uint32_t
id_of(u64 place)
{
    return ~(uint32_t)place;
}
__device__ __forceinline__ float
x_of(u64 place)
{
    return of_key((uint32_t)(place >> 32));
}

/* Returns the bin of a logit; a better logit has no higher bin. */
__device__ __forceinline__ uint32_t
bin_of(float x, float best, float per)
{
    return min((uint32_t)fminf((best - x) * per, 4e9f), BINS - 1);
}

__device__ __forceinline__ u64
weight_of(const struct row &r, float x)
{
    return __float2ull_rz(weigh<UNIT_ROW>(x, r.best, r.rate));
}

/* Returns weight_of(), or 0 for a value that min_p removes. */
__device__ __forceinline__ u64
weight_left(const struct row &r, float x)
{
    float w = weigh<UNIT_ROW>(x, r.best, r.rate);

    return w < r.min_p * 0x1p42f ? 0 : __float2ull_rz(w);
}

/* Calls f(x, id) for the whole row. */
template <bool VEC, typename F>
__device__ __forceinline__ void
each(const struct row &r, F f)
{
    uint32_t n_vec = VEC ? r.n / 4 : 0;

#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n_vec; i += THREADS) {
        float4 v = __ldcg((const float4 *)r.x + i);

        f(clean(v.x), 4 * i), f(clean(v.y), 4 * i + 1);
        f(clean(v.z), 4 * i + 2), f(clean(v.w), 4 * i + 3);
    }
#pragma unroll 4
    for (uint32_t i = n_vec * 4 + threadIdx.x; i < r.n; i += THREADS) f(clean(__ldcg(r.x + i)), i);
}

__device__ void
clear_bins(struct shared &sh)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) sh.bin.low[i] = sh.bin.high[i] = 0;
    if (threadIdx.x == 0) sh.found = BINS;
    __syncthreads();
}

__device__ __forceinline__ void
into_bin(struct shared &sh, uint32_t b, u64 weight)
{
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32);

    if (low && atomicAdd(&sh.bin.low[b], low) > ~low) high++;
    if (high) atomicAdd(&sh.bin.high[b], high);
}

/* Returns the first bin, from the best, at which the sum of bins reaches the goal (at least 1), and
 * in *before the sum of the bins before it; BINS if none does. upward: bin 0 is the best, as in
 * bin_of(); else bin BINS - 1 (key bits). share >= 0: sets *goal to this share of the total. */
__device__ uint32_t
find_bin(struct shared &sh, bool upward, u64 *goal, double share, u64 *before)
{
    constexpr uint32_t EACH = BINS / THREADS;
    u64 v[EACH], sum = 0, total, at;

    __syncthreads();
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t b = threadIdx.x * EACH + i;

        if (!upward) b = BINS - 1 - b;
        v[i] = (u64)sh.bin.high[b] << 32 | sh.bin.low[b];
        sum += v[i];
    }
    at = cta_scan<WARPS>(sum, &total, sh.scan);
    if (share >= 0) *goal = __double2ull_rz(__dmul_rn(share, __ull2double_rn(total)));
    if (*goal == 0) *goal = 1;
    if (at < *goal && at + sum >= *goal) {
        uint32_t i = 0;

        for (; at + v[i] < *goal; i++) at += v[i];
        sh.found = threadIdx.x * EACH + i, sh.before = at;
    }
    __syncthreads();
    *before = sh.before;
    return upward || sh.found == BINS ? (uint32_t)sh.found : BINS - 1 - (uint32_t)sh.found;
}

/* Threads with `yes` append a place to the list. Places that do not fit are only counted. */
__device__ __forceinline__ void
append(struct shared &sh, bool yes, u64 place)
{
    if (yes) {
        uint32_t at = atomicAdd(&sh.n_list, 1);

        if (at < LIST) sh.list[at] = place;
    }
}

/* Sorts the list, best first: a bitonic sort, lengths double each round. */
__device__ void
sort_list(struct shared &sh)
{
    uint32_t n = sh.n_list, size = 32;

    while (size < n) size *= 2;
    for (uint32_t i = n + threadIdx.x; i < size; i += THREADS) sh.list[i] = 0;
    for (uint32_t k = 2; k <= size; k *= 2)
        for (uint32_t j = k / 2; j; j /= 2) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < size / 2; i += THREADS) {
                uint32_t a = 2 * i - (i & (j - 1)), b = a + j;
                u64 x = sh.list[a], y = sh.list[b];

                if ((x < y) == !(a & k)) sh.list[a] = y, sh.list[b] = x;
            }
        }
    __syncthreads();
}

/* Returns the cut: the place of the last value that stays if values at or above limit are kept,
 * best first, until the sum of their weights (by_count: their number) reaches the goal. Returns
 * limit if the sum of all is below the goal. share as in find_bin(). Destroys the list. */
template <bool VEC>
__device__ u64
find_cut(struct shared &sh, const struct row &r, bool by_count, u64 goal, double share, u64 limit)
{
    static const uint32_t shift[3] = { 21, 10, 0 };
    float per = by_count ? r.per : fminf(48 * r.rate, 1e30f);
    u64 before, total, weight[LIST / THREADS], sum = 0, at;
    uint32_t deciding, prefix = 0, known = 0;
    bool fits;

    clear_bins(sh);
    each<VEC>(r, [&](float x, uint32_t id) {
        if (place_of(x, id) >= limit)
            into_bin(sh, bin_of(x, r.best, per), by_count ? 1 : weight_of(r, x));
    });
    deciding = find_bin(sh, true, &goal, share, &before);
    if (deciding == BINS) return limit;
    goal -= before;
    fits = !by_count || sh.bin.low[deciding] <= LIST; /* by weight the number is unknown yet */
    if (fits) {
        __syncthreads();
        if (threadIdx.x == 0) sh.n_list = 0;
        __syncthreads();
        each<VEC>(r, [&](float x, uint32_t id) {
            append(sh, bin_of(x, r.best, per) == deciding && place_of(x, id) >= limit,
                   place_of(x, id));
        });
        __syncthreads();
        fits = sh.n_list <= LIST;
    }
    if (fits) {
        sort_list(sh);
        for (uint32_t i = 0; i < LIST / THREADS; i++) {
            uint32_t e = threadIdx.x * (LIST / THREADS) + i;

            weight[i] = e >= sh.n_list ? 0 : by_count ? 1 : weight_of(r, x_of(sh.list[e]));
            sum += weight[i];
        }
        at = cta_scan<WARPS>(sum, &total, sh.scan);
        if (at < goal && at + sum >= goal) {
            uint32_t i = 0;

            for (; at + weight[i] < goal; i++) at += weight[i];
            sh.found = sh.list[threadIdx.x * (LIST / THREADS) + i];
        }
        __syncthreads();
        at = sh.found;
        __syncthreads();
        return at;
    }
    for (int level = 0; level < 3; level++) {
        uint32_t mask = level == 2 ? 1023 : BINS - 1;

        clear_bins(sh);
        each<VEC>(r, [&](float x, uint32_t id) {
            uint32_t key = key_of(x);

            if (bin_of(x, r.best, per) == deciding && (key & known) == prefix &&
                place_of(x, id) >= limit)
                into_bin(sh, key >> shift[level] & mask, by_count ? 1 : weight_of(r, x));
        });
        prefix |= find_bin(sh, false, &goal, -1, &before) << shift[level];
        known |= mask << shift[level];
        goal -= before;
        __syncthreads();
    }
    /* Equal values have equal weights: as many of the lowest ids as needed stay. */
    if (!by_count) goal = (goal - 1) / weight_of(r, of_key(prefix)) + 1;
    for (uint32_t from = 0; from < r.n; from += THREADS) {
        uint32_t id = from + threadIdx.x;
        float x = id < r.n ? clean(__ldcg(r.x + id)) : 0;
        bool one = id < r.n && key_of(x) == prefix && place_of(x, id) >= limit;

        at = cta_scan<WARPS>(one, &total, sh.scan);
        if (one && at + 1 == goal) sh.found = place_of(x, id);
        if (total >= goal) break;
        goal -= total;
    }
    __syncthreads();
    at = sh.found;
    __syncthreads();
    return at;
}

/* Makes the sorted list of at least min(want, n) best values. */
template <bool VEC>
__device__ void
find_list(struct shared &sh, const struct row &r, const float *group, uint32_t want)
{
    uint32_t n_groups = r.n_blocks * LANE, last;
    u64 goal = want, before;

    clear_bins(sh);
    for (uint32_t i = threadIdx.x; i < n_groups; i += THREADS)
        atomicAdd(&sh.bin.low[bin_of(__ldcg(group + i), r.best, r.per)], 1);
    last = find_bin(sh, true, &goal, -1, &before);
    __syncthreads();
    if (threadIdx.x == 0) sh.n_list = sh.n_groups = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_groups; i += THREADS)
        if (bin_of(__ldcg(group + i), r.best, r.per) <= last) {
            uint32_t to = atomicAdd(&sh.n_groups, 1);

            if (to < LIST) sh.group[to] = (uint16_t)i;
        }
    __syncthreads();
    /* More than LIST groups have more than LIST candidates; n_list = LIST + 1 marks overflow. */
    if (sh.n_groups > LIST) {
        if (threadIdx.x == 0) sh.n_list = LIST + 1;
    } else {
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < sh.n_groups * 8; i += THREADS) {
            uint32_t g = sh.group[i / 8], id = g / LANE * BLOCK + i % 8 * 128 + g % LANE * 4;
            float x[4];

            if (VEC && id + 4 <= r.n) {
                float4 f = __ldcg((const float4 *)(r.x + id));

                x[0] = f.x, x[1] = f.y, x[2] = f.z, x[3] = f.w;
            } else {
                for (uint32_t c = 0; c < 4; c++) x[c] = id + c < r.n ? __ldcg(r.x + id + c) : 0;
            }
            UNROLL for (uint32_t c = 0; c < 4; c++) {
                float v = clean(x[c]);

                append(sh, id + c < r.n && bin_of(v, r.best, r.per) <= last, place_of(v, id + c));
            }
        }
    }
    __syncthreads();
    if (sh.n_list > LIST) {
        u64 cut = find_cut<VEC>(sh, r, true, min(want, r.n), -1, 0);

        if (threadIdx.x == 0) sh.n_list = 0;
        __syncthreads();
        each<VEC>(
            r, [&](float x, uint32_t id) { append(sh, place_of(x, id) >= cut, place_of(x, id)); });
        __syncthreads();
    }
    sort_list(sh);
}

/* Draws a token into sh.id if the list surely contains all values that stay; else returns false.
 * Finds the entry at which the sum of weights in the order of ids exceeds the noise, without
 * sorting. */
__device__ bool
draw_list(struct shared &sh, const struct row &r, const struct sample_row &want, u64 total_mass)
{
    uint32_t n = min(sh.n_list, SHORT), stay = n;
    bool top_k = want.top_k && want.top_k < r.n, closed = sh.n_list == r.n && n == r.n;
    u64 w[2], at, total, left;

    if (top_k && want.top_k <= n) stay = want.top_k, closed = true;
    if (top_k && !closed) return false;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t e = threadIdx.x * 2 + i;

        w[i] = e < stay ? weight_of(r, x_of(sh.list[e])) : 0;
    }
    at = cta_scan<WARPS>(w[0] + w[1], &total, sh.scan);
    if (want.top_p < 1) {
        double share = fmaxf(want.top_p, 0);
        u64 goal = __double2ull_rz(__dmul_rn(share, __ull2double_rn(top_k ? total : total_mass)));

        if (goal == 0) goal = 1;
        if (threadIdx.x == 0) sh.n_list = stay;
        __syncthreads();
        if (at < goal && at + w[0] + w[1] >= goal)
            sh.n_list = threadIdx.x * 2 + (at + w[0] >= goal ? 1 : 2);
        __syncthreads();
        stay = sh.n_list;
        closed |= total >= goal;
    }
    if (!closed && weigh<UNIT_ROW>(x_of(sh.list[n - 1]), r.best, r.rate) < r.min_p * 0x1p42f)
        closed = true;
    if (!closed) return false;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t e = threadIdx.x * 2 + i;

        w[i] = e < stay ? weight_left(r, x_of(sh.list[e])) : 0;
        sh.weight[e] = w[i];
    }
    cta_scan<WARPS>(w[0] + w[1], &total, sh.scan);
    left = noise(want, total);
    for (uint32_t e = threadIdx.x; e < stay; e += THREADS) {
        u64 before = 0;
        uint32_t id = id_of(sh.list[e]);

        for (uint32_t i = 0; i < stay; i++) before += id_of(sh.list[i]) < id ? sh.weight[i] : 0;
        if (before <= left && left - before < sh.weight[e]) sh.id = id;
    }
    __syncthreads();
    return true;
}

/* Draws a token into sh.id from the values of the whole row at or above cut, block by block. */
template <bool VEC>
__device__ void
draw_row(struct shared &sh, const struct row &r, const struct sample_row &want, u64 cut)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 w[2], at, total, left;

    __syncthreads(); /* the list has been read */
    auto weight = [&](float x, uint32_t id) {
        return place_of(x, id) >= cut ? weight_left(r, x) : 0;
    };

    for (uint32_t b = warp; b < r.n_blocks; b += WARPS) {
        float v[LANE];
        u64 sum = 0;

        load_block<VEC>(v, r.x, b, r.n, lane);
        UNROLL for (uint32_t i = 0; i < LANE; i++)
            sum += weight(clean(v[i]), b * BLOCK + i / 4 * 128 + lane * 4 + i % 4);
        sum = group_sum(sum, 32);
        if (lane == 0) sh.block[b] = sum;
    }
    __syncthreads();
    for (uint32_t i = 0; i < 2; i++)
        w[i] = threadIdx.x * 2 + i < r.n_blocks ? sh.block[threadIdx.x * 2 + i] : 0;
    at = cta_scan<WARPS>(w[0] + w[1], &total, sh.scan);
    left = noise(want, total);
    if (left >= at && left - at < w[0] + w[1]) {
        left -= at;
        sh.found = threadIdx.x * 2 + (left >= w[0]);
        sh.before = left >= w[0] ? left - w[0] : left;
    }
    __syncthreads();
    if (warp == 0) {
        uint32_t id = walk<VEC>(r.x, (uint32_t)sh.found, r.n, 1, sh.before, weight);

        if (lane == 0) sh.id = id;
    }
    __syncthreads();
}

template <bool VEC>
__global__ void
__launch_bounds__(THREADS, 2) sample_top(const struct sample s, const struct scan_scratch scratch)
{
    __shared__ struct shared sh;
    uint32_t at = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, k, want_list;
    struct row r;
    float lowest = CUDART_INF_F;

    after_previous();
    const struct sample_row want = s.row[at];
    const struct wish w = wish_of(want, s.logits.dim[1]);
    if (!w.list) return;
    const struct row_stat stat = scratch.row[at];
    if (threadIdx.x == 0) sh.id = 0;
    r.x = (const float *)s.logits.data + (size_t)at * s.logits.stride;
    r.n = s.logits.dim[1], r.n_blocks = scratch.n_blocks;
    r.best = stat.best, r.rate = w.rate, r.min_p = want.min_p;
    /* Chooses the bin width: half of the bins cover the range of the blocks' best logits. */
    for (uint32_t b = threadIdx.x; b < r.n_blocks; b += THREADS) {
        float best = __ldcg(&scratch.block[(size_t)at * r.n_blocks + b].best);

        if (best > -CUDART_INF_F) lowest = fminf(lowest, best);
    }
    lowest = -warp_max(-lowest);
    if (lane == 0) sh.part[warp] = lowest;
    __syncthreads();
    for (uint32_t i = 0; i < WARPS; i++) lowest = fminf(lowest, sh.part[i]);
    r.per = r.best > lowest ? fminf(BINS / 2 / (r.best - lowest), 1e30f) : 64;

    k = min(want.n_top, SHORT);
    want_list = max(k, !w.cuts ? 1 : want.top_k && want.top_k <= SHORT ? want.top_k : 256);
    find_list<VEC>(sh, r, scratch.group + (size_t)at * r.n_blocks * LANE, want_list);
    for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
        struct top e = { -1, -CUDART_INF_F };

        if (i < sh.n_list) e = { (int32_t)id_of(sh.list[i]), x_of(sh.list[i]) };
        if (i < sh.n_list && !want.beam) e.logprob = e.logprob - r.best - stat.log_total;
        s.top[want.first_top + i] = e;
    }
    if (!w.cuts || r.best == -CUDART_INF_F) return;
    __syncthreads();
    if (!draw_list(sh, r, want, stat.mass)) {
        bool top_k = want.top_k && want.top_k < r.n;
        u64 cut = 0;

        if (top_k) cut = find_cut<VEC>(sh, r, true, want.top_k, -1, 0);
        if (want.top_p < 1) {
            double share = fmaxf(want.top_p, 0);
            u64 goal = __double2ull_rz(__dmul_rn(share, __ull2double_rn(stat.mass)));

            cut = find_cut<VEC>(sh, r, false, goal, top_k ? share : -1, cut);
        }
        draw_row<VEC>(sh, r, want, cut);
    }
    if (threadIdx.x) return;
    if (want.slot != SLOT_NONE && s.last) s.last[want.slot] = (int32_t)sh.id;
    if (s.token) s.token[at] = (int32_t)sh.id;
    if (s.logprob) s.logprob[at] = clean(__ldcg(r.x + sh.id)) - r.best - stat.log_total;
}

} /* namespace */

cudaError_t
second(const struct k_launch *l, const struct sample &s, const struct scan_scratch &r, bool vec)
{
    return launch(vec ? sample_top<true> : sample_top<false>, s.n, THREADS, 0, l->st, s, r);
}

} /* namespace sampling */
