/* attend_sm80_schedule.cuh - divides attention among the thread blocks of attend_sm80.cu.
 *
 * A segment's rows and the heads that share a K/V head are packed: packed row p is head p % group
 * of row p / group. A unit is up to ROWS packed rows of one (segment, K/V head). Its rows see keys
 * [low, high) and, if a window keeps the first keys (attend.kept), also the kept keys [0, kept).
 * The keys lie in tiles of 64 absolute positions; tiles between the two ranges are skipped. For
 * segments of one row a thread block has a share: consecutive tiles of all units in order, e.g. the
 * end of one unit, several whole ones, the beginning of another. For other segments a block has one
 * whole unit.
 *
 * Partial results of a unit are kept per split. With job.split (invariant mode), a split is that
 * many tiles, starts at an absolute position and is computed by one block, so that the order of
 * sums is the same for any grid and batch. Otherwise a split is the part of a unit that one block
 * computes.
 */
#pragma once
#include "gpu/gpu.h"

namespace attend_sm80 {

constexpr int32_t TILE = 64;
constexpr int32_t SPLIT = 4; /* tiles of a split in invariant mode; a change changes bits */

/* The parameter of every kernel. */
struct job {
    struct attend a; /* a.kept: 0 without a window */
    struct step_tokens r;
    float before, after; /* log2 score = dot * before, or after * tanh(dot * before) */
    /* Key of head h in token t of block b: base + b block_bytes + ((h << shift) + t) key_bytes; its
     * value is value_at bytes further. Unpaged: a block is a row that contains all heads. */
    const char *base;
    int64_t value_at;
    uint32_t block_bytes, key_bytes, shift;
    uint32_t group;     /* heads per K/V head */
    uint32_t parts;     /* units of one (segment, K/V head) if the segment has one row */
    uint32_t slot_rows; /* packed rows of a partial result */
    uint32_t n_slots;   /* partial results that fit in l->work; 0: no unit may be divided */
    int32_t split;      /* SPLIT in invariant mode, or 0 */
    float *slot;
    uint32_t *count;
};

/* A row sees keys [low, high), and keys below min(a.kept, high); a mask may hide some of them. */
struct seen {
    int32_t pos, low, high;
};

__device__ __forceinline__ struct seen
seen_by(const struct attend &a, const struct segment &segment, uint32_t row)
{
    struct seen s;

    s.pos = segment.first_pos + (int32_t)row;
    s.low = a.kv.table ? 0 : segment.first_pos;
    s.high = a.kv.table ? (int32_t)segment.kv_len : segment.first_pos + (int32_t)segment.n_tokens;
    if (a.causal && !a.mask) s.high = min(s.high, s.pos + 1);
    if (a.window && s.pos + 1 > (int64_t)a.window)
        s.low = max(s.low, s.pos + 1 - (int32_t)a.window);
    s.low = min(s.low, s.high);
    return s;
}

__device__ __forceinline__ bool
is_padding(const struct attend &a, const struct segment &segment)
{
    return segment.n_tokens == 0 || (a.kv.table && segment.slot == SLOT_NONE);
}

/* The tiles [0, first) and [first + gap, end) of a unit, at least one tile. `first` is 0 without
 * kept keys. at() converts an index among them to a tile. */
struct tiles {
    int32_t first, gap, end;

    __device__ __forceinline__ int32_t n() const
    {
        return end - gap;
    }

    __device__ __forceinline__ int32_t at(int32_t i) const
    {
        return i < first ? i : i + gap;
    }

    __device__ __forceinline__ int32_t next(int32_t tile) const
    {
        return tile + 1 == first ? first + gap : tile + 1;
    }

    /* Returns the split that contains the tile. A split may have tiles on both sides of the gap. */
    __device__ __forceinline__ int32_t split(int32_t tile) const
    {
        int32_t s = tile / SPLIT, behind = (first + gap) / SPLIT;

        return tile < first ? s : s - behind + min((first + SPLIT - 1) / SPLIT, behind);
    }

    __device__ __forceinline__ int32_t n_splits() const
    {
        return split(end - 1) + 1;
    }

    /* Returns the first index from i on whose tile starts a split, or n(); i > 0. */
    __device__ __forceinline__ int32_t round_up(int32_t i) const
    {
        int32_t edge = (at(i - 1) / SPLIT + 1) * SPLIT;

        return min(edge < first ? edge : max(first, edge - gap), n());
    }
};

/* Returns the tiles of a unit whose rows see keys [low, high) and the kept keys below high. If the
 * kept keys reach low, the two ranges are one, and low becomes 0. A unit whose rows see no key
 * still has one tile, because its rows must get zeros. */
__device__ __forceinline__ struct tiles
tiles_of(const struct attend &a, int32_t &low, int32_t high)
{
    int32_t kept = min((int32_t)a.kept, high);
    struct tiles t;

    if (kept && kept >= low) kept = low = 0;
    t.first = (kept + TILE - 1) / TILE;
    t.gap = max(low / TILE - t.first, 0);
    t.end = (high + TILE - 1) / TILE;
    if (t.end <= t.first + t.gap) {
        if (t.first) t.gap = 0;
        t.end = max(t.first + t.gap, t.gap + 1);
    }
    return t;
}

/* Divides the tiles of all units among n blocks: `each` tiles, one more for the first `rest`. */
struct shares {
    uint32_t n, each, rest;

    __device__ __forceinline__ uint32_t begin(uint32_t share) const
    {
        return share * each + min(share, rest);
    }

    /* Returns the share that contains tile x. */
    __device__ __forceinline__ uint32_t of(uint32_t x) const
    {
        uint32_t longer = rest * (each + 1);

        return x < longer ? x / (each + 1) : rest + (x - longer) / each;
    }
};

/* A block's position in its work: segment, unit and tile. */
struct walk {
    struct segment segment;
    uint32_t segment_index, kv_head, part;
    uint32_t first;              /* the unit's first packed row */
    int32_t low, high;           /* keys that some row of the unit sees, without kept() */
    int32_t sure_low, sure_high; /* keys that all rows of the unit see */
    struct tiles tiles;          /* the tiles of the unit */
    int32_t tile;                /* the current tile */
    uint32_t left;               /* tiles left in the share or unit, including the current one */
    uint32_t first_tile;         /* index of the unit's first tile among all tiles */
    uint32_t slot;               /* with job.split: index of the current split among all splits */
    bool whole;                  /* no other block shares the unit */

    /* Returns the end of the kept keys that are seen outside of [low, high); 0: none. */
    __device__ __forceinline__ int32_t kept(const struct job &j) const
    {
        return tiles.first ? min((int32_t)j.a.kept, high) : 0;
    }
};

/* Whether the current tile is the last of its split, of its unit or of the share. */
__device__ __forceinline__ bool
ends_split(const struct job &j, const struct walk &w)
{
    return w.tile + 1 == w.tiles.end || w.left == 1 ||
           (j.split && w.tiles.next(w.tile) / SPLIT != w.tile / SPLIT);
}

/* Moves to the unit w.part of (w.segment, w.kv_head), to its tile number skip. SINGLE: one row. */
template <int ROWS, bool SINGLE>
__device__ __forceinline__ void
open_unit(const struct job &j, struct walk &w, int32_t skip)
{
    w.first = w.part * ROWS;

    uint32_t last = min(w.first + ROWS, w.segment.n_tokens * j.group) - 1;
    struct seen top = seen_by(j.a, w.segment, SINGLE ? 0 : w.first / j.group);
    struct seen bottom = SINGLE ? top : seen_by(j.a, w.segment, last / j.group);

    w.low = top.low;
    w.high = bottom.high;
    w.sure_low = bottom.low;
    w.sure_high = top.high;
    w.tiles = tiles_of(j.a, w.low, w.high);
    w.tile = w.tiles.at(skip);
    w.whole = skip == 0 && w.left >= (uint32_t)w.tiles.n();
}

/* Moves w.segment to the first non-padding segment from w.segment_index on. */
__device__ __forceinline__ void
open_segment(const struct job &j, struct walk &w)
{
    while (is_padding(j.a, w.segment = j.r.segment[w.segment_index])) w.segment_index++;
}

/* Moves to the next tile of the share or, unless SINGLE, of the block's only unit. */
template <int ROWS, bool SINGLE>
__device__ __forceinline__ void
step(const struct job &j, struct walk &w)
{
    w.slot += ends_split(j, w);
    if (--w.left == 0) return;
    w.tile = w.tiles.next(w.tile);
    if (w.tile < w.tiles.end || !SINGLE) return;
    w.first_tile += (uint32_t)w.tiles.n();
    if (++w.part == j.parts) {
        w.part = 0;
        if (++w.kv_head == j.a.n_kv_heads) {
            w.kv_head = 0;
            w.segment_index++;
            open_segment(j, w);
        }
    }
    open_unit<ROWS, SINGLE>(j, w, 0);
}

/* ---- finding a block's position among the segments; each warp does it separately ---- */

/* Number of tiles and of splits of some segments; in find_unit(): n is a number of units. */
struct amount {
    uint32_t n, splits;
};

/* The amounts of a lane's segments (own), of all segments before these, and of all segments. Lane i
 * has the n_each segments from i * n_each on. */
struct survey {
    uint32_t n_segments, n_each;
    struct amount own, before, all;
};

template <class Of>
__device__ __forceinline__ struct survey
survey_segments(const struct step_tokens &r, Of of)
{
    uint32_t lane = threadIdx.x % 32;
    struct survey s = { r.n_segments, (r.n_segments + 31) / 32 };

    for (uint32_t i = lane * s.n_each; i < min((lane + 1) * s.n_each, s.n_segments); i++) {
        struct amount a = of(r.segment[i]);

        s.own = { s.own.n + a.n, s.own.splits + a.splits };
    }
    s.before = s.own;
    for (uint32_t d = 1; d < 32; d *= 2) {
        uint32_t n = __shfl_up_sync(~0u, s.before.n, d);
        uint32_t splits = __shfl_up_sync(~0u, s.before.splits, d);

        if (lane >= d) s.before = { s.before.n + n, s.before.splits + splits };
    }
    s.all.n = __shfl_sync(~0u, s.before.n, 31);
    s.all.splits = __shfl_sync(~0u, s.before.splits, 31);
    s.before = { s.before.n - s.own.n, s.before.splits - s.own.splits };
    return s;
}

/* Returns the segment that contains the x-th tile or unit of all, x < all.n. before: returns the
 * sum of the segments before it. */
template <class Of>
__device__ __forceinline__ uint32_t
seek(const struct step_tokens &r, const struct survey &s, Of of, uint32_t x, struct amount &before)
{
    uint32_t lane = threadIdx.x % 32, i = lane * s.n_each;
    bool mine = x - s.before.n < s.own.n;
    int from = __ffs((int)__ballot_sync(~0u, mine)) - 1;

    before = s.before;
    while (mine) {
        struct amount a = of(r.segment[i]);

        if (x - before.n < a.n) break;
        before = { before.n + a.n, before.splits + a.splits };
        i++;
    }
    before = { __shfl_sync(~0u, before.n, from), __shfl_sync(~0u, before.splits, from) };
    return __shfl_sync(~0u, i, from);
}

/* ---- equal shares of the tiles of all segments; each segment has one row ---- */

__device__ __forceinline__ struct tiles
unit_tiles(const struct job &j, const struct segment &segment)
{
    struct seen s = seen_by(j.a, segment, 0);

    return tiles_of(j.a, s.low, s.high);
}

__device__ __forceinline__ struct amount
a_unit_of(const struct job &j, const struct segment &segment)
{
    if (is_padding(j.a, segment)) return { 0, 0 };
    struct tiles t = unit_tiles(j, segment);

    return { (uint32_t)t.n(), (uint32_t)t.n_splits() };
}

/* The start of a share: a tile of a unit of a segment. */
struct edge {
    uint32_t segment, unit, skip; /* unit == number of units: the next segment's unit 0 */
    uint32_t tile, slot;          /* number of all tiles and splits before this start */
};

/* Returns the first possible start of a share from tile x on: x itself, or the next start of a
 * split with job.split, or of a unit if units may not be divided (not cut). */
__device__ __forceinline__ struct edge
edge_at(const struct job &j, uint32_t segment, struct amount before, uint32_t x, bool cut)
{
    struct tiles tiles = unit_tiles(j, j.r.segment[segment]);
    uint32_t n = (uint32_t)tiles.n(), splits = (uint32_t)tiles.n_splits();
    struct edge e = { segment, (x - before.n) / n };

    e.skip = x - before.n - e.unit * n;
    if (e.skip && j.split) e.skip = (uint32_t)tiles.round_up((int32_t)e.skip);
    if (e.skip && !cut) e.skip = n;
    e.tile = before.n + e.unit * n + e.skip;
    e.slot = before.splits + e.unit * splits;
    if (e.skip == n) {
        e.unit++;
        e.slot += splits;
        e.skip = 0;
    } else {
        e.slot += (uint32_t)tiles.split(tiles.at((int32_t)e.skip));
    }
    return e;
}

/* Returns the start of share blockIdx.x; left 0: the share is empty. All threads call it. */
template <int ROWS>
__device__ __forceinline__ struct walk
find_share(const struct job &j, struct shares &shares)
{
    uint32_t units = j.parts * j.a.n_kv_heads;
    auto of = [&](const struct segment &segment) {
        struct amount a = a_unit_of(j, segment);

        return amount{ a.n * units, a.splits * units };
    };
    struct survey s = survey_segments(j.r, of);
    bool cut = (j.split ? s.all.splits : 2 * gridDim.x) <= j.n_slots;
    struct amount before;
    struct walk w;

    w.left = 0;
    shares.n = min(gridDim.x, s.all.n);
    if (blockIdx.x >= shares.n) return w;
    shares.each = s.all.n / shares.n;
    shares.rest = s.all.n - shares.each * shares.n;

    uint32_t x = shares.begin(blockIdx.x), end = shares.begin(blockIdx.x + 1);
    uint32_t segment = seek(j.r, s, of, x, before);
    struct edge e = edge_at(j, segment, before, x, cut);

    if (end < s.all.n && (j.split || !cut)) {
        segment = seek(j.r, s, of, end, before);
        end = edge_at(j, segment, before, end, cut).tile;
    }
    w.left = end - e.tile;
    if (w.left == 0) return w;
    w.first_tile = e.tile - e.skip;
    w.slot = e.slot;
    w.segment_index = e.segment + (e.unit == units);
    w.kv_head = e.unit == units ? 0 : e.unit / j.parts;
    w.part = e.unit == units ? 0 : e.unit - w.kv_head * j.parts;
    open_segment(j, w);
    open_unit<ROWS, true>(j, w, (int32_t)e.skip);
    return w;
}

/* ---- one unit per block, segments of any length ---- */

/* Returns unit blockIdx.x. Consecutive blocks have the K/V heads of the same packed rows, and go
 * from the last packed rows to the first, because the last rows of a prompt have the most keys.
 * left 0: there is no such unit. All threads call it. */
template <int ROWS>
__device__ __forceinline__ struct walk
find_unit(const struct job &j)
{
    auto of = [&](const struct segment &segment) {
        return amount{ is_padding(j.a, segment) ? 0
                                                : (segment.n_tokens * j.group + ROWS - 1) / ROWS,
                       0 };
    };
    struct survey s = survey_segments(j.r, of);
    uint32_t x = blockIdx.x / j.a.n_kv_heads;
    struct amount before;
    struct walk w;

    w.left = 0;
    if (x >= s.all.n) return w;
    x = s.all.n - 1 - x;
    w.segment_index = seek(j.r, s, of, x, before);
    w.segment = j.r.segment[w.segment_index];
    w.kv_head = blockIdx.x % j.a.n_kv_heads;
    w.part = x - before.n;
    w.slot = w.first_tile = 0;
    w.left = UINT32_MAX;
    open_unit<ROWS, false>(j, w, 0);
    w.left = (uint32_t)w.tiles.n();
    return w;
}

} /* namespace attend_sm80 */
