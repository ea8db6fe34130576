/* attend_prefill_sm90_schedule.cuh - chooses the items of a thread block and loads them into shared
 * memory.
 *
 * An item is up to ROWS rows of one segment for one head. Two warps of the first warpgroup serve
 * the consumers, by the barriers in the right column:
 *
 *     plan     takes the next item number, finds its segment, rows, head   item_full, item_empty
 *     fetch    loads Q of the item, then K and V, tile by tile             q_*, k_*, v_*
 *
 * Items of a segment come longest first. Heads that share K and V are consecutive, and as many K/V
 * heads are computed together as stay in L2. Segments are in order.
 *
 * K and V of the cache are read through the tensor maps of kv_tma_sm90.cuh. The maps of unpaged K
 * and V are {64 columns, row, columns / 64, head, 1}: one copy loads 8 rows or, with heads of 64, a
 * tile. Keys that must not be read get slice -1, outside of the tensor, and arrive as zeros.
 */
#pragma once
#include "gpu/cuda/kernels/attention/attend_prefill_sm90_tiles.h"
#include "gpu/cuda/kernels/attention/kv_tma_sm90.cuh"
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/sm90.cuh"
#include "gpu/gpu.h"

namespace {

using namespace sm90;

constexpr float LOG2E = 1.4426950408889634f;
constexpr uint32_t MAX_REACH = 512;    /* maximum bias_reach */
constexpr uint64_t L2_KEEP = 32 << 20; /* bytes of K and V computed together: about half of L2 */
/* first numbers of the named barriers, one of each kind per consumer warpgroup */
constexpr uint32_t FIRST_GROUP = 1, WG_SYNC = 5;

/* Kernel parameters except tensor maps. */
struct params {
    const struct segment *segment;
    uint32_t first_segment, n_segments;
    const slice_id *table;                           /* NULL: K and V are not paged */
    uint32_t table_stride, block_tokens, box_tokens; /* box: tokens per copy */
    uint32_t n_heads, group, window, causal;
    void *out;
    uint32_t out_stride;
    float scale, softcap; /* scale: factor of q.k, to base 2 unless capped */
    const float *sinks, *bias;
    uint32_t bias_reach;
    float bias_by;   /* factor of a bias: to q.k before scale; capped: to base 2 */
    uint32_t *count; /* [0] items taken after the first ones, [1] finished blocks */
};

/* An item, from the planning warp to the others. Key positions count from the segment's first key:
 * in the cache from position 0. */
struct item {
    int32_t n_tiles;              /* key tiles; -1: there are no more items */
    int32_t last;                 /* index of the highest key tile, computed first */
    int32_t pos;                  /* position of the first row */
    int32_t first, end;           /* keys [first, end): some row of the item sees them */
    int32_t n_keys;               /* of the segment */
    uint32_t row, n_tokens, head; /* rows row .. row + n_tokens of out */
    uint32_t slot, key_row;       /* paged: slot; else key_row: the segment's first row in K, V */
};

template <int D> struct shared_mem {
    using tile = attend_tile<D>;
    enum {
        GROUPS = tile::ROWS / 64,
        THREADS = 128 * (GROUPS + 1),
        Q_BYTES = tile::ROWS * D * 2,
        KV_BYTES = tile::KEYS * D * 2
    };
    struct alignas(1024) {
        unsigned char q[tile::Q_SLOTS][Q_BYTES]; /* [D / 64][ROWS][64], swizzled */
        unsigned char k[tile::STAGES][KV_BYTES]; /* [KEYS / 8][D / 64][8][64], swizzled */
        unsigned char v[tile::STAGES][KV_BYTES];
    } t;
    uint64_t item_full[2], item_empty[2], q_full[tile::Q_SLOTS], q_empty[tile::Q_SLOTS];
    uint64_t k_full[tile::STAGES], k_empty[tile::STAGES], v_full[tile::STAGES],
        v_empty[tile::STAGES];
    struct item item[2];
    float bias[2][2 * MAX_REACH + 2 * tile::KEYS + 127]; /* fill_bias() */
};

/* A view of 32 segments, one per lane, and their item numbers; it moves forwards only. */
struct cursor {
    uint32_t first, before, total; /* first segment in view, items before it, items in view */
    struct segment segment;
    uint32_t n, sum; /* items of the lane's segment; items in view up to and with it */
};

struct place {
    struct segment segment;
    uint32_t at, rows; /* index of an item in its segment, which has `rows` items per head */
};

template <int ROWS>
__device__ void
look_at_segments(const params &p, cursor &c)
{
    uint32_t lane = threadIdx.x % 32;

    c.segment = {};
    c.n = 0;
    if (c.first + lane < p.n_segments) {
        c.segment = p.segment[c.first + lane];
        if (!p.table || c.segment.slot != SLOT_NONE)
            c.n = (c.segment.n_tokens + ROWS - 1) / ROWS * p.n_heads;
    }
    c.sum = c.n;
    for (int step = 1; step < 32; step *= 2) {
        uint32_t below = __shfl_up_sync(~0u, c.sum, step);

        if (lane >= step) c.sum += below;
    }
    c.total = __shfl_sync(~0u, c.sum, 31);
}

/* Finds segment and index of the item with this number. Returns false after the last item. */
template <int ROWS>
__device__ bool
find_item(const params &p, cursor &c, uint32_t item, place &r)
{
    while (item - c.before >= c.total) {
        c.before += c.total;
        c.first += 32;
        c.total = 0;
        if (c.first >= p.n_segments) return false;
        look_at_segments<ROWS>(p, c);
    }

    int from = __popc(__ballot_sync(~0u, c.sum <= item - c.before));

    r.segment.slot = __shfl_sync(~0u, c.segment.slot, from);
    r.segment.first_token = __shfl_sync(~0u, c.segment.first_token, from);
    r.segment.n_tokens = __shfl_sync(~0u, c.segment.n_tokens, from);
    r.segment.first_pos = __shfl_sync(~0u, c.segment.first_pos, from);
    r.segment.kv_len = __shfl_sync(~0u, c.segment.kv_len, from);
    r.at = item - c.before - __shfl_sync(~0u, c.sum - c.n, from);
    r.rows = (r.segment.n_tokens + ROWS - 1) / ROWS;
    return true;
}

template <int D>
__device__ struct item
make_item(const params &p, const place &r)
{
    using tile = attend_tile<D>;
    uint32_t n_keys = p.table ? r.segment.kv_len : r.segment.n_tokens,
             kv_heads = p.n_heads / p.group;
    uint64_t head_bytes = (uint64_t)n_keys * D * 4;
    uint32_t together = 1, tile_at, first;
    struct item i;

    while (together < kv_heads && kv_heads % (2 * together) == 0 &&
           2 * together * head_bytes <= L2_KEEP)
        together *= 2;
    together *= p.group;
    tile_at = r.rows - 1 - r.at % (together * r.rows) / together;
    i.head = r.at / (together * r.rows) * together + r.at % together;
    first = tile_at * tile::ROWS;
    i.row = r.segment.first_token + first;
    i.slot = r.segment.slot;
    i.key_row = r.segment.first_token;
    i.n_tokens = min((uint32_t)tile::ROWS, r.segment.n_tokens - first);
    i.pos = (p.table ? r.segment.first_pos : 0) + first;
    i.n_keys = n_keys;
    i.end = p.causal ? min(i.pos + (int)i.n_tokens, i.n_keys) : i.n_keys;
    i.first = p.window ? min(max(i.pos + 1 - (int)p.window, 0), i.end) : 0;
    i.last = (i.end - 1) / tile::KEYS;
    i.n_tiles = i.end > i.first ? i.last - i.first / tile::KEYS + 1 : 0;
    return i;
}

/* Coordinates of the part-th copy of a tile of keys; slice -1: no row sees a key of the part. */
template <int D>
__device__ box
find_box(const params &p, const struct item &i, int tile, uint32_t part)
{
    int first = tile * attend_tile<D>::KEYS + part * p.box_tokens;
    uint32_t kv_head = i.head / p.group;
    box b = { 0, 0, -1 };

    if (first >= i.end || first + (int)p.box_tokens <= i.first) return b;
    if (p.table) {
        uint32_t token = first % p.block_tokens;

        b.slice = p.table[(size_t)i.slot * p.table_stride + first / p.block_tokens];
        b.row = D == 64 ? token : 0;
        b.group = D == 64 ? kv_head : (kv_head * p.block_tokens + token) / 8;
    } else {
        b.slice = 0;
        b.group = kv_head;
        b.row = i.key_row + first;
    }
    return b;
}

/* Stores a head's biases times bias_by at index (key position - query position) + reach + KEYS +
 * 63: at any position a tile of 64 rows finds all its biases consecutively (find_bias). */
template <int D>
__device__ void
fill_bias(const params &p, float *to, uint32_t head)
{
    constexpr int KEYS = attend_tile<D>::KEYS;
    const int reach = p.bias_reach;
    const float *from = p.bias + (size_t)head * (2 * reach + 1) + reach;

#pragma unroll 8
    for (int j = threadIdx.x % 32; j < 2 * reach + 2 * KEYS + 127; j += 32)
        to[j] = from[min(max(j - reach - KEYS - 63, -reach), reach)] * p.bias_by;
}

/* Address of the bias of the tile's first column in row 0. far: column position - row position. */
template <int D>
__device__ const float *
find_bias(const params &p, const float *bias, int far)
{
    constexpr int KEYS = attend_tile<D>::KEYS;
    const int reach = p.bias_reach;

    return bias + min(max(far, -reach - KEYS), reach + 64) + reach + KEYS + 63;
}

/* The planning warp: while the consumers compute an item, it prepares the next item in shared
 * memory and looks up the one after that. At item_full every lane arrives for its own stores: one
 * arrival for the warp would be correct, but racecheck does not follow it and reports false races.
 * The data of k_full, v_full and q_full are stored by TMA, so that there one lane arrives. */
template <int D>
__device__ void
plan(shared_mem<D> &s, const params &p)
{
    const uint32_t lane = threadIdx.x % 32;
    cursor c = { p.first_segment, 0 };
    uint32_t at = blockIdx.x;
    bool there = true;
    place r;

    look_at_segments<attend_tile<D>::ROWS>(p, c);
    for (uint32_t n = 0; there; n++) {
        const uint32_t slot = n % 2;
        struct item i = {};

        if (n > 0 && lane == 0) at = gridDim.x + atomicAdd(&p.count[0], 1);
        there = find_item<attend_tile<D>::ROWS>(p, c, same(at), r);
        if (there)
            i = make_item<D>(p, r);
        else
            i.n_tiles = -1;
        barrier_wait(smem(&s.item_empty[slot]), n / 2 % 2 ^ 1);
        if (there && p.bias) fill_bias<D>(p, s.bias[slot], i.head);
        if (lane == 0) s.item[slot] = i;
        barrier_arrive(smem(&s.item_full[slot]));
    }
    next_may_start();
    if (lane == 0 && atomicAdd(&p.count[1], 1) == gridDim.x - 1) p.count[0] = p.count[1] = 0;
}

/* The fetching warp: loads Q, K and V of every item; each lane copies a part of every tile. */
template <int D>
__device__ void
fetch(shared_mem<D> &s, const params &p, const CUtensorMap *q, const CUtensorMap *k,
      const CUtensorMap *v)
{
    using tile = attend_tile<D>;
    const uint32_t lane = threadIdx.x % 32;
    const bool brings = lane < tile::KEYS / p.box_tokens;
    uint32_t n_q = 0, n_k = 0, n_v = 0;

    auto load = [&](const CUtensorMap *map, unsigned char *at, uint32_t bar, box b) {
        if (lane == 0) barrier_expect(bar, shared_mem<D>::KV_BYTES);
        __syncwarp();
        if (brings)
            tma_load(smem(at) + lane * p.box_tokens * D * 2, map, bar, 0, b.row, 0, b.group,
                     b.slice);
    };
    auto load_k = [&](box b) {
        uint32_t stage = n_k % tile::STAGES;

        barrier_wait(smem(&s.k_empty[stage]), n_k++ / tile::STAGES % 2 ^ 1);
        load(k, s.t.k[stage], smem(&s.k_full[stage]), b);
    };
    auto load_v = [&](box b) {
        uint32_t stage = n_v % tile::STAGES;

        barrier_wait(smem(&s.v_empty[stage]), n_v++ / tile::STAGES % 2 ^ 1);
        load(v, s.t.v[stage], smem(&s.v_full[stage]), b);
    };

    for (uint32_t n = 0;; n++) {
        uint32_t slot = n % 2;

        barrier_wait(smem(&s.item_full[slot]), n / 2 % 2);
        const struct item i = s.item[slot];
        if (i.n_tiles < 0) break;
        if (i.n_tiles > 0) {
            int t = i.last, left = i.n_tiles;
            box old = find_box<D>(p, i, t--, lane), b = old;
            uint32_t q_slot = n_q % tile::Q_SLOTS, full = smem(&s.q_full[q_slot]);

            if (left > 1) b = find_box<D>(p, i, t--, lane);
            barrier_wait(smem(&s.q_empty[q_slot]), n_q++ / tile::Q_SLOTS % 2 ^ 1);
            if (lane == 0) barrier_expect(full, shared_mem<D>::Q_BYTES);
            __syncwarp();
            if (lane < D / 64)
                tma_load(smem(s.t.q[q_slot]) + lane * tile::ROWS * 128, q, full,
                         i.head * D + lane * 64, i.row);
            load_k(old);
            for (; left > 1; left--) {
                box ahead = b; /* the next box, looked up before waiting */

                if (left > 2) ahead = find_box<D>(p, i, t--, lane);
                load_k(b);
                load_v(old);
                old = b;
                b = ahead;
            }
            load_v(old);
        }
        barrier_arrive(smem(&s.item_empty[slot]));
    }
}

} /* namespace */
