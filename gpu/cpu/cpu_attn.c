/* cpu_attn.c - the op attend (gpu.h): attention over the paged KV cache or over rows of the step.
 *
 * For each (row, head) the keys are read in tiles of 64 absolute positions, [64 t, 64 t + 64), in
 * ascending order; only keys visible to the row are read. A row's result therefore depends on its
 * visible keys only: not on the block size, the chunks of its prompt, the other rows of the batch,
 * or where a window starts inside a tile. Tiles between the kept keys (attention sinks) and the
 * window are skipped.
 *
 *     per tile:  s_j = scale q.k_j (+ cap, + bias)   m' = max(m, s_j)   p_j = exp(s_j - m')
 *                sum = sum exp(m - m') + sum p_j      acc = acc exp(m - m') + p_j v_j, j ascending
 *     finally:   out = acc / sum; a sink logit adds to sum as one more key without a value
 *
 * A part of the job is a range of whole (row, head) pairs. Heads that share a K/V head are
 * consecutive, so that a tile's keys stay in cache for all of them.
 */
#include "gpu/cpu/cpu_dot.h"
#include "gpu/cpu/cpu_kv.h"
#include "gpu/cpu/cpu_math.h"
#include "gpu/cpu/cpu_ops.h"
#include "gpu/device.h"

enum { TILE = 64 };

struct attend_args {
    struct attend a;
    struct step_tokens r;
};

/* State of the softmax of one (row, head) between tiles: maximum score, sum and weighted sum of
 * values; acc is [head_dim] in the scratch of the thread. */
struct soft {
    float max, sum;
    float *acc;
};

/* The keys of one tile that a row sees, in ascending order. */
struct tile {
    const void *k[TILE], *v[TILE];
    uint32_t pos[TILE], n;
};

/* Returns true if the mask of draft tokens lets a row see key j. Keys before the segment of the row
 * are not in the mask and are always seen. */
static bool
unmasked(const struct attend *a, const struct segment *segment, uint32_t row, uint32_t j)
{
    uint32_t own = j - (uint32_t)segment->first_pos;

    if (!a->mask || j < (uint32_t)segment->first_pos) return true;
    return own / 32 < a->mask_words &&
           (a->mask[(size_t)row * a->mask_words + own / 32] >> own % 32 & 1);
}

static void
find_tile(struct tile *t, const struct attend *a, const struct segment *segment, uint32_t row,
          uint32_t kv_head, uint32_t first, uint32_t end, uint32_t window)
{
    t->n = 0;
    for (uint32_t j = first; j < end; j++) {
        uint32_t i = t->n;

        if ((j < window && j >= a->kept) || !unmasked(a, segment, row, j)) continue;
        t->pos[t->n++] = j;
        if (a->kv.table) {
            t->k[i] = kv_key(&a->kv, segment->slot, j, kv_head);
            check(t->k[i]); /* never NULL: the table has a block for every key that a row sees */
            t->v[i] = (const char *)t->k[i] + kv_value_offset(&a->kv);
        } else {
            uint32_t at = segment->first_token + (j - (uint32_t)segment->first_pos);

            t->k[i] = (const float *)row_of(&a->k, at) + (size_t)kv_head * a->head_dim;
            t->v[i] = (const float *)row_of(&a->v, at) + (size_t)kv_head * a->head_dim;
        }
    }
}

ALWAYS void
score_tile(enum dtype t, const float *q, const struct tile *tile, uint32_t d, float *s)
{
    uint32_t j = 0;

    for (; j + 4 <= tile->n; j += 4) dot_1x4(t, q, &tile->k[j], d, s + j);
    for (; j < tile->n; j++) s[j] = dot_1x1(t, q, tile->k[j], d);
}

/* acc = acc keep + sum of p v, key by key; keep is exp(m - m') of the head of this file. */
ALWAYS void
gather_tile(enum dtype t, float *acc, float keep, const float *p, const struct tile *tile,
            uint32_t d)
{
    uint32_t at = 0;

    for (; at + 32 <= d; at += 32) {
        v8 a[4];

#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) a[i] = v8_mul(v8_load(acc + at + 8 * i), v8_set(keep));
        for (uint32_t j = 0; j < tile->n; j++) {
            v8 pj = v8_set(p[j]);

#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                a[i] = v8_fma(pj, v8_load_as(t, tile->v[j], at + 8 * (uint32_t)i), a[i]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) v8_store(acc + at + 8 * i, a[i]);
    }
    for (; at < d; at += 8) {
        uint32_t width = MIN(8u, d - at);
        v8 a = v8_mul(v8_at(acc, at, width), v8_set(keep));

        for (uint32_t j = 0; j < tile->n; j++)
            a = v8_fma(v8_set(p[j]), v8_at_as(t, tile->v[j], at, width), a);
        v8_put(acc, at, width, a);
    }
}

/* Converts the products q.k of a tile to softmax inputs: scale, softcap, bias. s: [TILE]. */
ALWAYS void
shape_scores(const struct attend *a, uint32_t head, uint32_t pos, const struct tile *tile, float *s)
{
    v8 scale = v8_set(a->scale), cap = v8_set(a->softcap);
    int64_t reach = a->bias_reach;

    for (uint32_t j = 0; j < tile->n; j += 8) {
        v8 v = v8_mul(v8_load(s + j), scale);

        if (a->softcap != 0) v = v8_mul(cap, v8_tanh(v8_div(v, cap)));
        v8_store(s + j, v);
    }
    for (uint32_t j = 0; a->bias && j < tile->n; j++) {
        int64_t far = (int64_t)tile->pos[j] - pos;

        far = far > reach ? reach : far < -reach ? -reach : far;
        s[j] += a->bias[(size_t)head * (2 * a->bias_reach + 1) + (size_t)(far + reach)];
    }
}

ALWAYS void
add_tile(const struct attend *a, enum dtype t, const float *q, uint32_t head, uint32_t pos,
         const struct tile *tile, struct soft *o)
{
    float s[TILE] = { 0 }, max = o->max, keep;
    v8 sum[2] = { v8_set(0), v8_set(0) };

    score_tile(t, q, tile, a->head_dim, s);
    shape_scores(a, head, pos, tile, s);
    for (uint32_t j = 0; j < tile->n; j++) max = s[j] > max ? s[j] : max;
    keep = exp_1(o->max - max);
    for (uint32_t j = 0; j < tile->n; j += 8)
        v8_store(s + j, v8_exp(v8_sub(v8_load(s + j), v8_set(max))));
    /* p is indexed by a key's position in the tile, so that unseen keys do not change the order. */
    float p[TILE] = { 0 };

    for (uint32_t j = 0; j < tile->n; j++) p[tile->pos[j] % TILE] = s[j];
    for (uint32_t j = 0; j < TILE; j += 8) sum[j / 8 % 2] = v8_add(sum[j / 8 % 2], v8_load(p + j));
    o->sum = fma_1(o->sum, keep, v8_sum(v8_add(sum[0], sum[1])));
    o->max = max;
    gather_tile(t, o->acc, keep, s, tile, a->head_dim);
}

/* Finds the range [*first, *end) of keys that a row sees in addition to the keys below a->kept. */
static void
visible(const struct attend *a, const struct segment *segment, uint32_t pos, uint32_t *first,
        uint32_t *end)
{
    uint32_t low = 0, high = segment->kv_len;

    if (!a->kv.table) {
        low = (uint32_t)segment->first_pos;
        high = low + segment->n_tokens;
    }
    if (a->causal && !a->mask) high = pos + 1;
    if (a->window && pos + 1 > a->window) low = MAX(low, pos + 1 - a->window);
    *first = MIN(low, high);
    *end = high;
}

/* Computes heads [head, head + n) of one row; they share a K/V head. */
static void
attend_heads(const struct attend *a, const struct segment *segment, uint32_t row, uint32_t head,
             uint32_t n, float *scratch)
{
    uint32_t d = a->head_dim, pos = (uint32_t)segment->first_pos + (row - segment->first_token);
    uint32_t kv_head = head / (a->n_heads / a->n_kv_heads), first, end;
    enum dtype type = a->kv.table ? a->kv.dtype : DT_F32;
    struct soft o[64];

    check(n <= ARRAY_LEN(o));
    visible(a, segment, pos, &first, &end);
    for (uint32_t h = 0; h < n; h++)
        o[h] = (struct soft){ .max = -INFINITY, .acc = scratch + (size_t)h * d };
    memset(scratch, 0, (size_t)n * d * sizeof *scratch);
    for (uint32_t j = a->kept && a->kv.table ? 0 : first, to; j < end; j = to) {
        struct tile tile;

        to = MIN(ROUND_UP(j + 1, (uint32_t)TILE), end);
        find_tile(&tile, a, segment, row, kv_head, j, to, first);
        if (to >= a->kept) to = MAX(to, first);
        if (tile.n == 0) continue;
        for (uint32_t h = 0; h < n; h++) {
            const float *q = (const float *)row_of(&a->q, row) + (size_t)(head + h) * d;

            if (type == DT_F32)
                add_tile(a, DT_F32, q, head + h, pos, &tile, &o[h]);
            else if (type == DT_E4M3)
                add_tile(a, DT_E4M3, q, head + h, pos, &tile, &o[h]);
            else
                add_tile(a, DT_BF16, q, head + h, pos, &tile, &o[h]);
        }
    }
    for (uint32_t h = 0; h < n; h++) {
        float *out = (float *)row_of(&a->out, row) + (size_t)(head + h) * d, keep = 1;

        if (a->sinks) {
            float sink = a->sinks[head + h], max = MAX(o[h].max, sink);

            keep = exp_1(o[h].max - max);
            o[h].sum = fma_1(o[h].sum, keep, exp_1(sink - max));
        }
        /* A row without visible keys (empty encoder input) has sum 0 and gets zeros. */
        for (uint32_t i = 0; i < d; i++) out[i] = o[h].sum > 0 ? o[h].acc[i] * keep / o[h].sum : 0;
    }
}

CPU_LOOP(attend)
{
    const struct attend_args *g = args;
    const struct attend *a = &g->a;
    uint32_t group = a->n_heads / a->n_kv_heads, rows = 0, before = 0, first, end;
    uint32_t most = MIN(CPU_SCRATCH / (a->head_dim * (uint32_t)sizeof(float)), 64u);

    for (uint32_t i = 0; i < g->r.n_segments; i++) rows += g->r.segment[i].n_tokens;
    /* this part: a range of (row, head) pairs, all heads of a row together */
    first = cpu_first(rows * a->n_heads, part, parts);
    end = cpu_first(rows * a->n_heads, part + 1, parts);
    for (uint32_t i = 0; i < g->r.n_segments; i++) {
        const struct segment *segment = &g->r.segment[i];
        uint32_t last = before + segment->n_tokens * a->n_heads, stop = MIN(end, last);

        for (uint32_t at = MAX(first, before), n; at < stop; at += n) {
            uint32_t head = (at - before) % a->n_heads;

            n = MIN(group - head % group, most);
            n = MIN(n, stop - at);
            if (segment->slot == SLOT_NONE && a->kv.table) continue;
            attend_heads(a, segment, segment->first_token + (at - before) / a->n_heads, head, n,
                         scratch);
        }
        before = last;
    }
}

#ifdef CPU_OPS

int
cpu_attend(struct lane *l, const struct attend *a, struct step_tokens r)
{
    struct attend_args g = { *a, r };

    _Static_assert(sizeof g <= CPU_ARGS, "attend's arguments fit a job");
    if (a->kv.table && a->k.data) {
        struct rope_store store = attend_store(a);

        TRY(cpu_rope_store(l, &store, r));
    }
    return cpu_queue(l, run_attend, &g, sizeof g, r.n_tokens * a->n_heads);
}

#endif
