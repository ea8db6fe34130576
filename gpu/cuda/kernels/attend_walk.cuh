/* attend_walk.cuh - which keys a block of attend_mma goes through, tile by tile.
 *
 * A run's rows and the heads that share a K/V head are packed: packed row p is head p % group of row
 * p / group. A unit is up to ROWS packed rows of one (run, K/V head); it sees keys [low, high), which
 * lie in tiles of 64 absolute positions; SPLIT tiles, also by absolute position, are a split. A block is
 * given a stretch of consecutive tiles: a whole unit, or several units and the split ends of others.
 */
#ifndef CUDA_KERNELS_ATTEND_WALK_CUH
#define CUDA_KERNELS_ATTEND_WALK_CUH

#include "gpu/gpu.h"

namespace attend_mma {

constexpr int32_t TILE = 64;
constexpr int32_t SPLIT = 4; /* tiles: 256 tokens. Fixed: it shows in the bits */

/* The parameter of every kernel. */
struct job {
    struct attend a;
    struct rows r;
    float before, after; /* score, in powers of two: dot * before, or after * tanh(dot * before) */
    uint32_t group;      /* heads that share a K/V head */
    uint32_t slot_rows;  /* of a partial result */
    uint32_t n_slots;    /* partial results there is room for; 0: no unit may be cut */
    float *slot;
    uint32_t *count;
};

/* The keys a row sees, [low, high), but for those a mask hides. */
struct seen {
    int32_t pos, low, high;
};

__device__ __forceinline__ struct seen
seen_by(const struct attend &a, const struct run &run, uint32_t row)
{
    struct seen s;

    s.pos = run.first_pos + (int32_t)row;
    s.low = a.kv.table ? 0 : run.first_pos;
    s.high = a.kv.table ? (int32_t)run.kv_len : run.first_pos + (int32_t)run.n_rows;
    if (a.causal && !a.mask) s.high = min(s.high, s.pos + 1);
    if (a.window && s.pos + 1 > (int64_t)a.window)
        s.low = max(s.low, s.pos + 1 - (int32_t)a.window);
    s.low = min(s.low, s.high);
    return s;
}

__device__ __forceinline__ bool
is_padding(const struct attend &a, const struct run &run)
{
    return run.n_rows == 0 || (a.kv.table && run.seat == SEAT_NONE);
}

struct walk {
    struct run run;
    uint32_t run_index, unit, n_units; /* units of a run: K/V head by K/V head */
    uint32_t kv_head, first;           /* the unit's first packed row */
    int32_t low, high;                 /* what any of its rows sees */
    int32_t sure_low, sure_high;       /* what all of them see */
    int32_t tile, begin, end;          /* now, and the unit's */
    uint32_t left;                     /* tiles to go, this one included */
    uint32_t slot;                     /* of the split we are in: all splits are numbered */
    bool whole;                        /* the unit is ours alone */
};

__device__ __forceinline__ bool
ends_split(const struct walk &w)
{
    return w.tile + 1 == w.end || (w.tile + 1) % SPLIT == 0;
}

template <int ROWS>
__device__ __forceinline__ uint32_t
units_a_head(const struct job &j, const struct run &run)
{
    return (run.n_rows * j.group + ROWS - 1) / ROWS;
}

/* Stand at tile `skip` of the unit w.unit of w.run. */
template <int ROWS>
__device__ __forceinline__ void
open_unit(const struct job &j, struct walk &w, int32_t skip)
{
    uint32_t m = units_a_head<ROWS>(j, w.run);

    w.kv_head = w.unit / m;
    w.first = w.unit % m * ROWS;

    uint32_t last = min(w.first + ROWS, w.run.n_rows * j.group) - 1;
    struct seen top = seen_by(j.a, w.run, w.first / j.group);
    struct seen bottom = seen_by(j.a, w.run, last / j.group);

    w.low = top.low;
    w.high = bottom.high;
    w.sure_low = bottom.low;
    w.sure_high = top.high;
    w.begin = w.low / TILE;
    w.end = max(w.begin + 1, (w.high + TILE - 1) / TILE); /* a row that sees nothing gets zeros */
    w.tile = w.begin + skip;
    w.whole = skip == 0 && w.left >= (uint32_t)(w.end - w.begin);
}

template <int ROWS>
__device__ __forceinline__ void
open_run(const struct job &j, struct walk &w)
{
    while (is_padding(j.a, w.run = j.r.run[w.run_index])) w.run_index++;
    w.n_units = units_a_head<ROWS>(j, w.run) * j.a.n_kv_heads;
}

template <int ROWS>
__device__ __forceinline__ void
step(const struct job &j, struct walk &w)
{
    if (--w.left == 0) return;
    w.slot += ends_split(w);
    if (++w.tile < w.end) return;
    if (++w.unit == w.n_units) {
        w.unit = 0;
        w.run_index++;
        open_run<ROWS>(j, w);
    }
    open_unit<ROWS>(j, w, 0);
}

/* ---- even shares of the tiles of all runs; each run has one row ---- */

/* Tiles and splits, of one run or of many. */
struct amount {
    uint32_t tiles, splits;
};

__device__ __forceinline__ struct amount
a_unit_of(const struct job &j, const struct run &run)
{
    struct seen s = seen_by(j.a, run, 0);
    int32_t begin = s.low / TILE, end = max(begin + 1, (s.high + TILE - 1) / TILE);

    if (is_padding(j.a, run)) return { 0, 0 };
    return { (uint32_t)(end - begin), (uint32_t)((end - 1) / SPLIT - begin / SPLIT + 1) };
}

/* A place among all tiles, at the beginning of a split. */
struct place {
    uint32_t run, unit, skip; /* unit may be one too far: the next run's first */
    uint32_t tile, slot;      /* before it, of all */
};

/* The first place a block may begin at, from tile x of a run on; before: of the runs before. */
__device__ __forceinline__ struct place
place_from(const struct job &j, uint32_t run, struct amount unit, struct amount before, uint32_t x,
           bool cut)
{
    struct seen s = seen_by(j.a, j.r.run[run], 0);
    int32_t begin = s.low / TILE, at = begin + (int32_t)(x % unit.tiles);
    struct place p = { run, x / unit.tiles };

    if (at > begin) at = cut ? (at + SPLIT - 1) / SPLIT * SPLIT : begin + (int32_t)unit.tiles;
    p.skip = min((uint32_t)(at - begin), unit.tiles);
    p.tile = before.tiles + p.unit * unit.tiles + p.skip;
    p.slot = before.splits + p.unit * unit.splits;
    if (p.skip == unit.tiles) {
        p.unit++;
        p.slot += unit.splits;
        p.skip = 0;
    } else {
        p.slot += (uint32_t)(at / SPLIT - begin / SPLIT);
    }
    return p;
}

/* Share blockIdx.x of gridDim.x; left 0: nothing. All threads call it. */
template <int ROWS, int THREADS>
__device__ struct walk
find_share(const struct job &j)
{
    constexpr uint32_t WARPS = THREADS / 32;
    __shared__ struct amount part[2][WARPS];
    __shared__ struct place edge[2];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, buffer = 0;
    uint32_t units = (j.group + ROWS - 1) / ROWS * j.a.n_kv_heads;
    struct amount all = { 0, 0 }, mine = { 0, 0 };
    struct walk w;

    for (uint32_t i = threadIdx.x; i < j.r.n_runs; i += THREADS) {
        mine = a_unit_of(j, j.r.run[i]);
        all.tiles += mine.tiles * units;
        all.splits += mine.splits * units;
    }
    for (int s = 16; s > 0; s /= 2) {
        all.tiles += __shfl_xor_sync(~0u, all.tiles, s);
        all.splits += __shfl_xor_sync(~0u, all.splits, s);
    }
    if (lane == 0) part[buffer][warp] = all;
    __syncthreads();
    all = { 0, 0 };
    for (uint32_t i = 0; i < WARPS; i++) {
        all.tiles += part[buffer][i].tiles;
        all.splits += part[buffer][i].splits;
    }

    bool cut = all.splits <= j.n_slots;
    uint32_t want[2] = { (uint32_t)((uint64_t)all.tiles * blockIdx.x / gridDim.x),
                         (uint32_t)((uint64_t)all.tiles * (blockIdx.x + 1) / gridDim.x) };
    struct amount before = { 0, 0 };

    w.left = 0;
    if (want[0] == want[1]) return w;
    if (threadIdx.x == 0) edge[1].tile = all.tiles; /* where nothing is found: the last share */
    for (uint32_t c = 0; c < j.r.n_runs; c += THREADS) {
        uint32_t i = c + threadIdx.x;

        if (j.r.n_runs > THREADS) mine = i < j.r.n_runs ? a_unit_of(j, j.r.run[i]) : amount{ 0, 0 };

        struct amount sum = { mine.tiles * units, mine.splits * units }, own = sum;

        for (uint32_t s = 1; s < 32; s *= 2) {
            uint32_t tiles = __shfl_up_sync(~0u, sum.tiles, s);
            uint32_t splits = __shfl_up_sync(~0u, sum.splits, s);

            if (lane >= s) sum = { sum.tiles + tiles, sum.splits + splits };
        }
        buffer ^= 1;
        if (lane == 31) part[buffer][warp] = sum;
        __syncthreads();
        sum = { before.tiles + sum.tiles - own.tiles, before.splits + sum.splits - own.splits };
        for (uint32_t k = 0; k < WARPS; k++) {
            if (k < warp) {
                sum.tiles += part[buffer][k].tiles;
                sum.splits += part[buffer][k].splits;
            }
            before.tiles += part[buffer][k].tiles;
            before.splits += part[buffer][k].splits;
        }
        for (int e = 0; e < 2; e++)
            if (want[e] - sum.tiles < own.tiles)
                edge[e] = place_from(j, i, mine, sum, want[e] - sum.tiles, cut);
    }
    __syncthreads();

    struct place p = edge[0];

    w.left = edge[1].tile - p.tile;
    if (w.left == 0) return w;
    w.run_index = p.run;
    w.unit = p.unit;
    w.slot = p.slot;
    if (p.unit == units) {
        w.run_index++;
        w.unit = 0;
    }
    open_run<ROWS>(j, w);
    open_unit<ROWS>(j, w, (int32_t)p.skip);
    return w;
}

/* ---- one unit a block, of runs of any length ---- */

/* Unit blockIdx.x: K/V heads fastest, then packed rows, the last ones first, because those of a prompt
 * have the most keys. left 0: there are fewer. All threads call it. */
template <int ROWS, int THREADS>
__device__ struct walk
find_unit(const struct job &j)
{
    constexpr uint32_t WARPS = THREADS / 32;
    __shared__ uint32_t part[2][WARPS], total[WARPS];
    __shared__ uint32_t found[2];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, buffer = 0, all = 0, before = 0;
    struct walk w;

    for (uint32_t i = threadIdx.x; i < j.r.n_runs; i += THREADS)
        if (!is_padding(j.a, j.r.run[i])) all += units_a_head<ROWS>(j, j.r.run[i]);
    for (int s = 16; s > 0; s /= 2) all += __shfl_xor_sync(~0u, all, s);
    if (lane == 0) total[warp] = all;
    __syncthreads();
    all = 0;
    for (uint32_t i = 0; i < WARPS; i++) all += total[i];

    uint32_t want = blockIdx.x / j.a.n_kv_heads;

    w.left = 0;
    if (want >= all) return w;
    want = all - 1 - want;
    for (uint32_t c = 0; c < j.r.n_runs; c += THREADS) {
        uint32_t i = c + threadIdx.x, own = 0;

        if (i < j.r.n_runs && !is_padding(j.a, j.r.run[i])) own = units_a_head<ROWS>(j, j.r.run[i]);

        uint32_t sum = own;

        for (uint32_t s = 1; s < 32; s *= 2) {
            uint32_t n = __shfl_up_sync(~0u, sum, s);

            if (lane >= s) sum += n;
        }
        buffer ^= 1;
        if (lane == 31) part[buffer][warp] = sum;
        __syncthreads();
        sum += before - own;
        for (uint32_t k = 0; k < WARPS; k++) {
            if (k < warp) sum += part[buffer][k];
            before += part[buffer][k];
        }
        if (want - sum < own) {
            found[0] = i;
            found[1] = want - sum;
        }
    }
    __syncthreads();
    w.run_index = found[0];
    w.run = j.r.run[w.run_index];
    w.n_units = units_a_head<ROWS>(j, w.run) * j.a.n_kv_heads;
    w.unit = blockIdx.x % j.a.n_kv_heads * units_a_head<ROWS>(j, w.run) + found[1];
    w.slot = 0;
    w.left = UINT32_MAX;
    open_unit<ROWS>(j, w, 0);
    w.left = (uint32_t)(w.end - w.begin);
    return w;
}

} /* namespace attend_mma */

#endif
