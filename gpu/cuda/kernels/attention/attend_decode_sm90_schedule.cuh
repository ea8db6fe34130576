/* attend_decode_sm90_schedule.cuh - divides decode attention among the thread blocks of
 * attend_decode_sm90.cu and attend_decode_ring_sm90.cu.
 *
 * The work is divided into units. A unit has up to HEADS columns that see the same keys of one K/V
 * head: heads of one row that share the K/V head or, if each K/V head has only one head, the rows
 * of a segment (by_row). The keys [low, high) of a unit lie in tiles of TILE absolute positions.
 * The tiles of a unit that one block computes are a piece.
 *
 *     one segment   every unit is divided into pieces at the same tiles; a block has one piece
 *     more          a block has a share: consecutive tiles of all units in order, e.g. the end of
 *                   one unit, several whole ones, the beginning of another
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

namespace attend_one {

constexpr float LOG2E = 1.4426950408889634f;
constexpr int HEADS = 8;
constexpr uint32_t LEAST = 2; /* minimum tiles of a share, to limit the number of pieces */

/* The parameter of every kernel. */
struct job {
    struct attend a;
    struct step_tokens r;
    float before, after; /* log2 score = dot * before, or after * tanh(dot * before) */
    const char *base;    /* address of K; V is value_at bytes further */
    int64_t value_at;
    uint32_t block_bytes, shift; /* a block has 2^shift tokens */
    uint32_t group;              /* heads per K/V head */
    uint32_t parts;              /* units of one (segment, K/V head) */
    bool by_row;                 /* columns of a unit are rows of its segment, not heads */
    uint32_t slot_rows;          /* columns of a partial result: the maximum of a unit */
    uint32_t units;              /* number of units of all segments */
    uint32_t most;               /* maximum number of blocks, see share_among() */
    uint32_t pieces;             /* maximum pieces per unit, with one segment */
    float *slot;                 /* partial results, two per block */
    uint32_t *count;
    uint32_t *fault;
    bool early; /* segments, table and cache may be read before after_previous() */
};

/* A block's position in its work: segment, unit, piece and tile. */
struct place {
    int32_t slot, pos, low, high; /* of the segment's first row; it sees keys [low, high) */
    uint32_t row, n_tokens;       /* the segment's rows in the batch */
    uint32_t segment, kv_head, part;
    int32_t begin, end; /* tiles of the unit */
    int32_t from, stop; /* tiles of the piece */
    int32_t tile;
    uint32_t left, first_tile; /* tiles of the share after the piece; tiles before the unit */

    __device__ __forceinline__ bool whole() const
    {
        return stop - from == end - begin;
    }
};

/* The blocks that compute the pieces of a unit: n blocks from `first` on. */
struct pieces {
    uint32_t first, n;
};

/* Divides the tiles of all units evenly among n blocks: `each` tiles, one more for the first `rest`
 * blocks. With one segment the tiles of each unit are divided in this way. */
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

    __device__ __forceinline__ struct pieces pieces(const struct job &j,
                                                    const struct place &p) const
    {
        if (j.r.n_segments == 1) return { (p.kv_head * j.parts + p.part) * n, n };

        uint32_t first = of(p.first_tile);

        return { first, of(p.first_tile + (uint32_t)(p.end - p.begin) - 1) - first + 1 };
    }
};

/* Loads a segment past L1; attend_decode_sm90.cu has the reason. */
__device__ __forceinline__ struct segment
load_segment(const struct segment *r)
{
    return { __ldcg(&r->slot), __ldcg(&r->first_token), __ldcg(&r->n_tokens), __ldcg(&r->first_pos),
             __ldcg(&r->kv_len) };
}

/* Sets in p the keys that a segment's row sees, and their tiles. Returns the number of tiles, at
 * least one even if the row sees no key; 0 for a padding segment. */
template <int TILE>
__device__ __forceinline__ uint32_t
look(const struct job &j, const struct segment &segment, struct place &p)
{
    p.slot = (int32_t)segment.slot;
    p.pos = segment.first_pos;
    p.row = segment.first_token;
    p.n_tokens = segment.n_tokens;
    p.high = (int32_t)segment.kv_len;
    if (j.a.causal) p.high = min(p.high, p.pos + 1);
    p.low = 0;
    if (j.a.window && p.pos + 1 > (int64_t)j.a.window) p.low = p.pos + 1 - (int32_t)j.a.window;
    p.low = min(p.low, p.high);
    p.begin = p.low / TILE;
    p.end = max(p.begin + 1, (p.high + TILE - 1) / TILE);
    return segment.n_tokens == 0 || segment.slot == SLOT_NONE ? 0 : (uint32_t)(p.end - p.begin);
}

__device__ __forceinline__ uint32_t
columns(const struct job &j, const struct place &p)
{
    return j.by_row ? p.n_tokens : min(j.group - p.part * HEADS, (uint32_t)HEADS);
}

/* Returns the head of a column. begin_of(): the index of its first element in q or out. */
__device__ __forceinline__ uint32_t
head_of(const struct job &j, const struct place &p, uint32_t column)
{
    return p.kv_head * j.group + (j.by_row ? 0 : p.part * HEADS + column);
}

__device__ __forceinline__ size_t
begin_of(const struct job &j, const struct place &p, const struct tensor &t, uint32_t column)
{
    return (size_t)(p.row + (j.by_row ? column : 0)) * t.stride +
           (size_t)head_of(j, p, column) * j.a.head_dim;
}

/* Sets in p the unit with this number in its segment. */
__device__ __forceinline__ void
take_unit(const struct job &j, struct place &p, uint32_t unit)
{
    p.kv_head = unit;
    p.part = 0;
    if (j.parts > 1) {
        p.kv_head = unit / j.parts;
        p.part = unit - p.kv_head * j.parts;
    }
}

/* Starts the piece of the current unit from tile `from` on, as far as the unit and the share go. */
__device__ __forceinline__ void
take_piece(struct place &p, int32_t from)
{
    uint32_t n = min(p.left, (uint32_t)(p.end - from));

    p.from = p.tile = from;
    p.stop = from + (int32_t)n;
    p.left -= n;
}

/* Moves to the next tile of the share. The caller knows that it exists: p.tile is not the last of
 * the piece, or p.left is not 0. */
template <int TILE>
__device__ __forceinline__ void
step(const struct job &j, struct place &p)
{
    if (++p.tile < p.stop) return;
    p.first_tile += (uint32_t)(p.end - p.begin);
    if (++p.part == j.parts) {
        p.part = 0;
        if (++p.kv_head == j.a.n_kv_heads) {
            p.kv_head = 0;
            while (look<TILE>(j, j.r.segment[++p.segment], p) == 0) {
            }
        }
    }
    take_piece(p, p.begin);
}

/* Finds the block's piece of the only segment. Returns false if the block has none. */
template <int TILE>
__device__ __forceinline__ bool
find_piece(const struct job &j, struct shares &s, struct place &p)
{
    uint32_t n = look<TILE>(j, load_segment(&j.r.segment[0]), p), unit, piece;

    s.n = min(j.pieces, n);
    if (blockIdx.x >= s.n * j.units) return false;
    s.each = n / s.n;
    s.rest = n - s.each * s.n;
    unit = blockIdx.x / s.n;
    piece = blockIdx.x - unit * s.n;
    p.segment = 0;
    p.first_tile = 0;
    p.left = s.each + (piece < s.rest);
    take_unit(j, p, unit);
    take_piece(p, p.begin + (int32_t)s.begin(piece));
    p.left = 0;
    return true;
}

/* Returns the number of shares of n_tiles: a multiple of the number of units, which divides units
 * of equal length equally, unless that leaves more than 1/8 of the blocks idle. */
__device__ __forceinline__ uint32_t
n_shares(const struct job &j, uint32_t n_tiles)
{
    uint32_t cap = min(j.most, n_tiles / LEAST), even;

    if (j.units >= j.most) return j.most;
    if (cap <= j.units) return j.units;
    even = cap / j.units * j.units;
    return even * 8 >= cap * 7 ? even : cap;
}

/* Finds the start of the block's share. Returns false if the share is empty. All threads call it;
 * in every warp lane i examines the `each` segments from i * each on. */
template <int TILE>
__device__ __forceinline__ bool
find_share(const struct job &j, struct shares &s, struct place &p)
{
    uint32_t lane = threadIdx.x % 32, each = (j.r.n_segments + 31) / 32,
             units = j.parts * j.a.n_kv_heads;
    uint32_t share = blockIdx.x, own = 0, n, upto, before, n_tiles;

    for (uint32_t i = lane * each; i < min((lane + 1) * each, j.r.n_segments); i++)
        own += look<TILE>(j, j.r.segment[i], p);
    own *= units;
    upto = own;
    for (uint32_t d = 1; d < 32; d *= 2) {
        n = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += n;
    }
    n_tiles = __shfl_sync(~0u, upto, 31);
    s.n = n_shares(j, n_tiles);
    s.each = n_tiles / s.n;
    s.rest = n_tiles - s.each * s.n;
    p.left = s.each + (share < s.rest);
    if (share >= s.n || p.left == 0) return false;

    uint32_t x = s.begin(share), i = lane * each;
    bool mine = x - (upto - own) < own;
    int from = __ffs((int)__ballot_sync(~0u, mine)) - 1;

    before = upto - own;
    n = own / units;
    if (mine && each > 1)
        for (;; i++) {
            n = look<TILE>(j, j.r.segment[i], p);
            if (x - before < n * units) break;
            before += n * units;
        }
    x -= __shfl_sync(~0u, before, from);
    n = __shfl_sync(~0u, n, from);
    p.segment = __shfl_sync(~0u, i, from);
    p.slot = __shfl_sync(~0u, p.slot, from);
    p.pos = __shfl_sync(~0u, p.pos, from);
    p.row = __shfl_sync(~0u, p.row, from);
    p.n_tokens = __shfl_sync(~0u, p.n_tokens, from);
    p.low = __shfl_sync(~0u, p.low, from);
    p.high = __shfl_sync(~0u, p.high, from);
    p.begin = p.low / TILE;
    p.end = p.begin + (int32_t)n;

    uint32_t unit = x / n, skip = x - unit * n;

    take_unit(j, p, unit);
    p.first_tile = s.begin(share) - skip;
    take_piece(p, p.begin + (int32_t)skip);
    return true;
}

/* Floats of a partial result (attend_decode_sm90_combine.cuh). */
__host__ __device__ __forceinline__ uint32_t
slot_floats(uint32_t rows, uint32_t d)
{
    return ROUND_UP(rows * (d + 2), 4u);
}

/* ---- host side ---- */

/* Whether the rows of t, a tensor of 16-bit elements, are 16-byte aligned. */
inline bool
aligned(const struct tensor &t)
{
    return (uintptr_t)t.data % 16 == 0 && t.stride % 8 == 0;
}

/* Makes the job for segments with one row, or with a few rows that see the same keys. Returns false
 * if neither kernel supports the arguments or l->count is too small. */
inline bool
make_job(struct job &j, const struct k_launch *l, const struct attend *a, struct step_tokens r)
{
    enum dtype t = a->q.dtype;
    bool by_row = r.n_single_token < r.n_segments;

    if (l->invariant || a->mask || (a->window && a->kept) || !a->kv.table) return false;
    if (by_row && (!r.longest || r.longest > HEADS || r.n_segments == 1 || a->k.data ||
                   a->n_heads != a->n_kv_heads || a->causal || a->window || a->bias))
        return false;
    if ((t != DT_BF16 && t != DT_F16) || a->out.dtype != t || a->kv.dtype != t) return false;
    if (!aligned(a->q) || !aligned(a->out) || (uintptr_t)a->kv.base % 16 || a->kv.slice_bytes % 16)
        return false;
    j.a = *a;
    j.r = r;
    j.base = (const char *)a->kv.base;
    j.value_at = a->kv.n_parts == 1 ? 0 : a->kv.slice_bytes;
    j.block_bytes = a->kv.slice_bytes;
    while (2u << j.shift <= a->kv.tokens_per_block) j.shift++;
    j.group = a->n_heads / a->n_kv_heads;
    j.before = a->softcap != 0 ? a->scale / a->softcap : a->scale * LOG2E;
    j.after = a->softcap * LOG2E;
    j.parts = CEIL_DIV(j.group, (uint32_t)HEADS);
    j.by_row = by_row;
    j.slot_rows = by_row ? HEADS : MIN(j.group, (uint32_t)HEADS);
    if ((uint64_t)r.n_segments * a->n_kv_heads * j.parts > K_COUNTERS) return false;
    j.units = r.n_segments * a->n_kv_heads * j.parts;
    j.slot = (float *)l->work;
    j.count = l->count;
    j.fault = l->fault;
    j.early = a->inputs_ready;
    return true;
}

/* Sets j.most, the number of blocks, to fit (blocks that the SMs hold at once) or, with more units,
 * to the smallest number with which no block gets more units, if that is at least 7/8 of fit.
 * Returns false if l->work cannot hold two partial results per block. */
inline bool
share_among(struct job &j, uint32_t fit, const struct k_launch *l)
{
    uint32_t alike = CEIL_DIV(j.units,
                              CEIL_DIV(j.units, fit)); /* blocks with equally many units */

    j.most = j.units > fit && alike * 8 >= fit * 7 ? alike : fit;
    return l->work_bytes / (2 * sizeof(float) * slot_floats(j.slot_rows, j.a.head_dim)) >= j.most;
}

} /* namespace attend_one */
