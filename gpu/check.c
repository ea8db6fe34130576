/* check.c - the op table that gpu_ops() returns: checks the arguments of every op, the same for all
 * devices, then calls the device.
 *
 * It checks what the host can see: dimensions, dtypes, strides, NULLs. The caller is responsible
 * for the contents of device memory (tokens, positions, tables). An op with wrong arguments returns
 * -EINVAL and queues nothing; gpu_why() then names the op, the tensor and both shapes. Such an
 * error is a bug of the caller in lagan itself. An op on 0 rows returns 0 and queues nothing.
 */
#include "gpu/device.h"

/* Return -EINVAL from an op. REFUSE: a bug of the caller. LACKS: unsupported by the device. */
#define LACKS(...) return err_set(&l->gpu->why, -EINVAL, __VA_ARGS__)
#define REFUSE(text, ...) LACKS(text " (internal error)", ##__VA_ARGS__)

enum { MAX_TOP_TABLES = 8, MOST_STREAMS = 8, MOST_TOP = 32, MOST_TAPS = 8 };

/* Requires that t is a matrix of any size with one of the given dtypes (bits 1 << DT_x). */
static int
want(struct lane *l, const char *what, const struct tensor *t, unsigned dtypes)
{
    if (!t->data) REFUSE("%s has no data", what);
    if ((unsigned)t->dtype >= DT_COUNT || !(dtypes >> t->dtype & 1))
        LACKS("%s is %s, which %s does not support there", what, dtype_name(t->dtype),
              l->gpu->describe);
    if (t->scale) LACKS("%s has scales, which %s does not support", what, l->gpu->describe);
    if (t->dim[2] > 1 || t->dim[3] > 1)
        REFUSE("%s is [%u, %u, %u, %u], expected a matrix", what, t->dim[0], t->dim[1], t->dim[2],
               t->dim[3]);
    if (t->dim[0] > 1 && t->stride < t->dim[1])
        REFUSE("%s is [%u, %u] with a stride of %u: its rows overlap", what, t->dim[0], t->dim[1],
               t->stride);
    return 0;
}

static int
want_2d(struct lane *l, const char *what, const struct tensor *t, uint32_t rows, uint32_t cols,
        unsigned dtypes)
{
    TRY(want(l, what, t, dtypes));
    if (t->dim[0] != rows || t->dim[1] != cols)
        REFUSE("%s is [%u, %u], expected [%u, %u]", what, t->dim[0], t->dim[1], rows, cols);
    return 0;
}

/* Requires that t is NO_TENSOR or n values without gaps, with dims [1, n] or [n]. */
static int
want_vector(struct lane *l, const char *what, const struct tensor *t, uint32_t n)
{
    bool column = t->dim[1] <= 1 && t->dim[0] == n && t->stride <= 1;

    if (!t->data) return 0;
    if (!column) return want_2d(l, what, t, 1, n, l->gpu->weights);
    if (!(l->gpu->weights >> t->dtype & 1) || t->scale)
        LACKS("%s is %s, which %s does not support there", what, dtype_name(t->dtype),
              l->gpu->describe);
    return 0;
}

static int
want_rows(struct lane *l, const char *op, const struct step_tokens *r, bool segments)
{
    if (!r->pos || !r->slot) REFUSE("%s: positions or slots are NULL", op);
    if (segments && r->n_segments && !r->segment)
        REFUSE("%s: %u segments, but segment is NULL", op, r->n_segments);
    if (segments && r->n_single_token > r->n_segments)
        REFUSE("%s: n_single_token is %u, but there are %u segments", op, r->n_single_token,
               r->n_segments);
    return 0;
}

static int
want_kv(struct lane *l, const char *op, const struct kv_view *v, uint32_t heads, uint32_t dim)
{
    uint32_t tpb = v->tokens_per_block;
    uint64_t bytes;

    if (!v->base || !v->table) REFUSE("%s: base or table of the KV view is NULL", op);
    if ((unsigned)v->dtype >= DT_COUNT || !(l->gpu->kvs >> v->dtype & 1))
        LACKS("%s: KV is %s, which %s does not support", op, dtype_name(v->dtype),
              l->gpu->describe);
    if (v->dtype == DT_E4M3 && (v->k_scale != 1 || v->v_scale != 1))
        LACKS("%s: fp8 KV has scales %g and %g; only 1 is supported", op, (double)v->k_scale,
              (double)v->v_scale);
    if (tpb == 0 || (tpb & (tpb - 1)) != 0)
        REFUSE("%s: %u tokens per block is not a power of two", op, tpb);
    if (v->n_kv_heads != heads || v->head_dim != dim)
        REFUSE("%s: KV has %u heads of size %u, the op has %u of size %u", op, v->n_kv_heads,
               v->head_dim, heads, dim);
    bytes = dtype_bytes(v->dtype, (size_t)heads * tpb * dim);
    if (v->slice_bytes < bytes)
        REFUSE("%s: a slice has %u bytes, needs %llu", op, v->slice_bytes,
               (unsigned long long)bytes);
    if (v->table_stride == 0 || v->n_parts == 0 || v->n_parts > 2)
        REFUSE("%s: KV table_stride is %u, expected above 0; n_parts is %u, expected 1 or 2", op,
               v->table_stride, v->n_parts);
    return 0;
}

/* Returns the dtypes of outputs for input dtype t: all activation dtypes for fp32, else only t. */
static unsigned
from(const struct lane *l, enum dtype t)
{
    return t == DT_F32 ? l->gpu->acts : 1u << t;
}

/* Returns the dtype that x must have in a product with the matrix w: gpu_act_dtype() of w. */
static unsigned
rows_for(const struct lane *l, const struct tensor *w)
{
    return 1u << (l->gpu->acts >> w->dtype & 1 ? w->dtype : DT_F32);
}

/* Stores the message of a failure for gpu_why(); returns r. */
static int
keep_why(struct gpu *g, int r, const struct err *e)
{
    if (r < 0 && e) g->why = *e;
    return r;
}

static int
checked_arena_make(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret,
                   struct err *e)
{
    int r = bytes ? g->device->mem.arena_make(g, name, bytes, ret, e)
                  : err_set(e, -EINVAL, "arena %s: its size is 0 bytes (internal error)", name);

    return keep_why(g, r, e);
}

static int
checked_arena_adopt(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e)
{
    int r = bytes ? g->device->mem.arena_adopt(g, fd, bytes, ret, e)
                  : err_set(e, -EINVAL, "fd %d: the arena has 0 bytes (internal error)", fd);

    return keep_why(g, r, e);
}

static int
checked_host_open(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e)
{
    int r = bytes ? g->device->mem.host_open(g, bytes, ret, e)
                  : err_set(e, -EINVAL, "host memory: its size is 0 bytes (internal error)");

    check(r < 0 || (ret->n && ret->n <= HOST_PIECES && ret->n * ret->piece == ret->bytes));
    return keep_why(g, r, e);
}

static int
checked_host_make(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e)
{
    check(m->base && piece < m->n && m->fd[piece] < 0);
    return keep_why(g, g->device->mem.host_make(g, m, piece, e), e);
}

static int
checked_host_map(struct gpu *g, struct host_memory *m, struct err *e)
{
    check(m->base && m->n_mapped < m->n && m->fd[m->n_mapped] >= 0);
    return keep_why(g, g->device->mem.host_map(g, m, e), e);
}

static void
checked_host_close(struct gpu *g, struct host_memory *m)
{
    if (m->base) g->device->mem.host_close(g, m);
}

static void
checked_host_unpin(struct gpu *g, void *p, size_t bytes)
{
    if (p) g->device->mem.host_unpin(g, p, bytes);
}

static int
checked_lane_open(struct gpu *g, uint32_t units, struct lane **ret, struct err *e)
{
    int r = units >= 1 && units <= 4096
                ? g->device->lane.open(g, units, ret, e)
                : err_set(e, -EINVAL, "a lane cannot have %u units; %s has %u", units, g->describe,
                          g->units);

    if (r == 0) (*ret)->units = units;
    return keep_why(g, r, e);
}

static int
checked_lane_part(struct lane *l, uint32_t first, uint32_t n)
{
    struct gpu *g = l->gpu;

    if (g->parts.grain == 0)
        return err_set(&g->why, -ENOTSUP, "the units of %s cannot be divided among lanes%s%s",
                       g->describe, g->parts.why ? ": " : "", g->parts.why ? g->parts.why : "");
    if (n < g->parts.least || n > l->units || first > l->units - n)
        REFUSE("lane_part: %u units from unit %u on; expected at least %u of the lane's %u", n,
               first, g->parts.least, l->units);
    return g->device->lane.part(l, first, n);
}

static void
checked_lane_close(struct lane *l)
{
    if (l) l->gpu->device->lane.close(l);
}

static int
checked_lane_mark(struct lane *l, uint64_t step)
{
    TRY(l->gpu->device->lane.mark(l, step));
    __atomic_store_n(&l->marked, step, __ATOMIC_RELEASE);
    return 0;
}

static int
checked_lane_after(struct lane *l, const struct lane *other, uint64_t step)
{
    if (!other || other->gpu != l->gpu)
        REFUSE("lane_after: the other lane belongs to another device");
    if (l == other || other->gpu->device->lane.done(other) >= step) return 0;
    if (__atomic_load_n(&other->marked, __ATOMIC_ACQUIRE) < step)
        REFUSE("lane_after: the other lane has not marked step %llu", (unsigned long long)step);
    return l->gpu->device->lane.after(l, other, step);
}

static int
checked_graph_launch(struct lane *l, struct graph *g)
{
    if (!g) REFUSE("graph_launch: graph is NULL");
    return l->gpu->device->graph.launch(l, g);
}

static void
checked_graph_drop(struct lane *l, struct graph *g)
{
    if (g) l->gpu->device->graph.drop(l, g);
}

static int
checked_put(struct lane *l, void *dst, const void *host, size_t bytes)
{
    if (bytes == 0) return 0;
    if (!dst || !host) REFUSE("put: %zu bytes with a NULL address", bytes);
    return l->gpu->device->mem.put(l, dst, host, bytes);
}

static int
checked_get(struct lane *l, void *host, const void *src, size_t bytes)
{
    if (bytes == 0) return 0;
    if (!host || !src) REFUSE("get: %zu bytes with a NULL address", bytes);
    return l->gpu->device->mem.get(l, host, src, bytes);
}

static int
checked_copy(struct lane *l, void *dst, const void *src, size_t bytes)
{
    const char *d = dst, *s = src;

    if (bytes == 0) return 0;
    if (!dst || !src) REFUSE("copy: %zu bytes with a NULL address", bytes);
    if (d < s + bytes && s < d + bytes) REFUSE("copy: source and destination overlap");
    return l->gpu->device->mem.copy(l, dst, src, bytes);
}

static int
checked_copy_blocks(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
                    uint32_t n, struct block_size s)
{
    if (n == 0 || s.bytes == 0) return 0;
    if (!copy) REFUSE("copy_blocks: %u blocks, but copy is NULL", n);
    if (!s.pitch) s.pitch = s.used = s.bytes;
    if (s.bytes % 16 || s.pitch % 16 || s.used % 16)
        REFUSE("copy_blocks: used %zu, pitch %zu and bytes %zu are not all multiples of 16", s.used,
               s.pitch, s.bytes);
    if (s.bytes % s.pitch || s.used > s.pitch)
        REFUSE("copy_blocks: bytes %zu is not a multiple of pitch %zu, or used %zu is above pitch",
               s.bytes, s.pitch, s.used);
    if (s.used == 0) return 0;
    return l->gpu->device->mem.copy_blocks(l, copy, same, n, s);
}

static int
checked_checksum(struct lane *l, uint64_t *sum, const void *p, size_t bytes)
{
    if (!sum || (bytes && !p)) REFUSE("checksum: %zu bytes with a NULL address", bytes);
    if ((uintptr_t)p % 16) REFUSE("checksum: %p is not 16-byte aligned", p);
    return l->gpu->device->mem.checksum(l, sum, p, bytes);
}

static int
checked_fill_random(struct lane *l, struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch,
                    float std)
{
    TRY(want(l, "fill_random: t", &t, l->gpu->acts | l->gpu->weights | 1u << DT_U8));
    if (t.dim[0] == 0 || t.dim[1] == 0) return 0;
    if (pitch == 0) pitch = t.dim[1];
    if (pitch < t.dim[1])
        REFUSE("fill_random: pitch %llu is below %u columns", (unsigned long long)pitch, t.dim[1]);
    return l->gpu->device->mem.fill_random(l, t, seed, first, pitch, std);
}

static int
checked_update_tables(struct lane *l, struct tables t, const struct table_edit *edit, uint32_t n)
{
    if (n == 0) return 0;
    if (t.n > MAX_TOP_TABLES) REFUSE("update_tables: %u tables, at most 8 are supported", t.n);
    if (!edit) REFUSE("update_tables: %u edits, but edit is NULL", n);
    for (uint32_t i = 0; i < t.n; i++)
        if (!t.table[i]) REFUSE("update_tables: table %u is NULL", i);
    return l->gpu->device->step.update_tables(l, t, edit, n);
}

static int
checked_resolve_tokens(struct lane *l, struct step_tokens r, const int32_t *last)
{
    if (r.n_tokens == 0) return 0;
    if (!r.token || !r.slot || !last) REFUSE("resolve_tokens: token, slot or last is NULL");
    return l->gpu->device->step.resolve_tokens(l, r, last);
}

static int
checked_mark_tokens(struct lane *l, struct token_history h, struct step_tokens r,
                    const struct segment *segment, uint32_t n_segments)
{
    if (n_segments == 0) return 0;
    if (!h.seen || !h.seen_words || !segment || !r.token)
        REFUSE("mark_tokens: seen, segment or token is NULL");
    return l->gpu->device->step.mark_tokens(l, h, r, segment, n_segments);
}

static int
checked_embed(struct lane *l, struct tensor x, struct tensor table, const int32_t *token,
              float scale)
{
    if (x.dim[0] == 0) return 0;
    TRY(want(l, "embed: table", &table, l->gpu->weights));
    TRY(want_2d(l, "embed: x", &x, x.dim[0], table.dim[1], l->gpu->acts));
    if (!token) REFUSE("embed: token is NULL");
    return l->gpu->device->embed(l, x, table, token, scale);
}

static int
checked_rms_norm(struct lane *l, struct tensor y, struct tensor x, struct tensor w, float eps,
                 float plus)
{
    if (x.dim[0] == 0) return 0;
    TRY(want(l, "rms_norm: x", &x, l->gpu->acts));
    TRY(want_2d(l, "rms_norm: y", &y, x.dim[0], x.dim[1], from(l, x.dtype)));
    TRY(want_vector(l, "rms_norm: w", &w, x.dim[1]));
    return l->gpu->device->rms_norm(l, y, x, w, eps, plus);
}

static int
checked_residual(struct lane *l, const struct residual *r)
{
    uint32_t n = r->x.dim[0], d = r->x.dim[1];

    if (n == 0) return 0;
    TRY(want(l, "residual: x", &r->x, 1u << DT_F32));
    if (r->in.data) TRY(want_2d(l, "residual: in", &r->in, n, d, l->gpu->acts));
    if (r->y.data) TRY(want_2d(l, "residual: y", &r->y, n, d, l->gpu->acts));
    if (r->in.data == r->x.data || r->y.data == r->x.data) REFUSE("residual: in or y overlaps x");
    if ((unsigned)r->norm > RESIDUAL_POST) REFUSE("residual: unknown norm %d", (int)r->norm);
    TRY(want_vector(l, "residual: in_bias", &r->in_bias, d));
    TRY(want_vector(l, "residual: in_norm", &r->in_norm, d));
    TRY(want_vector(l, "residual: y_norm", &r->y_norm, d));
    TRY(want_vector(l, "residual: y_bias", &r->y_bias, d));
    if (r->in_norm.data && !r->in.data) REFUSE("residual: in_norm is set, but in is not");
    if (r->in_bias.data && !r->in.data) REFUSE("residual: in_bias is set, but in is not");
    if (r->in_bias.data && r->in_norm.data) REFUSE("residual: in_bias and in_norm are both set");
    if (r->parts && !r->in.data) REFUSE("residual: parts is set, but in is not");
    if (r->y_bias.data && r->norm == RESIDUAL_RMS) REFUSE("residual: y_bias with an RMS norm");
    if (!r->in.data && !r->y.data && r->norm != RESIDUAL_POST) return 0;
    return l->gpu->device->residual(l, r);
}

static bool
overlap(const struct tensor *a, const struct tensor *b)
{
    const char *p = a->data, *q = b->data;
    size_t n = dtype_bytes(a->dtype, (size_t)(a->dim[0] - 1) * a->stride + a->dim[1]);
    size_t m = dtype_bytes(b->dtype, (size_t)(b->dim[0] - 1) * b->stride + b->dim[1]);

    return p < q + m && q < p + n;
}

static int
checked_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w,
               struct tensor bias, float beta)
{
    if (x.dim[0] == 0) return 0;
    TRY(want(l, "matmul: w", &w, l->gpu->weights));
    TRY(want(l, "matmul: x", &x, rows_for(l, &w)));
    if (w.dim[1] != x.dim[1])
        REFUSE("matmul: x is [%u, %u], w is [%u, %u]: their columns differ", x.dim[0], x.dim[1],
               w.dim[0], w.dim[1]);
    if (w.dim[0] == 0 || w.dim[1] == 0)
        REFUSE("matmul: w is [%u, %u], expected no dimension of 0", w.dim[0], w.dim[1]);
    TRY(want_2d(l, "matmul: y", &y, x.dim[0], w.dim[0], 1u << x.dtype | 1u << DT_F32));
    TRY(want_vector(l, "matmul: bias", &bias, w.dim[0]));
    /* With equal strides x and y may be different columns of one buffer; these do not overlap. */
    if (y.data == x.data || (y.stride != x.stride && overlap(&y, &x)))
        REFUSE("matmul: y overlaps x");
    return l->gpu->device->matmul(l, y, x, w, bias, beta);
}

static int
checked_add(struct lane *l, struct tensor y, struct tensor x)
{
    if (y.dim[0] == 0) return 0;
    TRY(want(l, "add: y", &y, l->gpu->acts));
    TRY(want_2d(l, "add: x", &x, y.dim[0], y.dim[1], from(l, y.dtype)));
    return l->gpu->device->add(l, y, x);
}

static int
checked_act(struct lane *l, struct tensor y, struct tensor x, enum act a)
{
    if (x.dim[0] == 0) return 0;
    if ((unsigned)a > ACT_GELU_TANH) REFUSE("act: unsupported activation %d", (int)a);
    TRY(want(l, "act: x", &x, l->gpu->acts));
    TRY(want_2d(l, "act: y", &y, x.dim[0], x.dim[1], 1u << x.dtype));
    return l->gpu->device->act(l, y, x, a);
}

static int
checked_gate(struct lane *l, struct tensor y, struct tensor gate_up, enum act a)
{
    if (y.dim[0] == 0) return 0;
    if ((unsigned)a > ACT_SWIGLU_CLAMPED) REFUSE("gate: unsupported activation %d", (int)a);
    TRY(want(l, "gate: y", &y, l->gpu->acts));
    TRY(want_2d(l, "gate: gate_up", &gate_up, y.dim[0], 2 * y.dim[1], 1u << y.dtype));
    return l->gpu->device->gate(l, y, gate_up, a);
}

static int
checked_act_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w,
                   struct tensor bias, enum act a)
{
    uint32_t n = x.dim[0];

    if (n == 0) return 0;
    if ((unsigned)a > ACT_GELU_TANH) REFUSE("act_matmul: unsupported activation %d", (int)a);
    TRY(want(l, "act_matmul: w", &w, l->gpu->weights));
    TRY(want(l, "act_matmul: x", &x, rows_for(l, &w)));
    if (w.dim[0] == 0 || w.dim[1] != x.dim[1] || w.dim[1] == 0)
        REFUSE("act_matmul: x is [%u, %u], w is [%u, %u]; columns must be equal", n, x.dim[1],
               w.dim[0], w.dim[1]);
    TRY(want_2d(l, "act_matmul: y", &y, n, w.dim[0], 1u << x.dtype));
    TRY(want_vector(l, "act_matmul: bias", &bias, w.dim[0]));
    if (overlap(&y, &x)) REFUSE("act_matmul: y overlaps x");
    return l->gpu->device->act_matmul(l, y, x, w, bias, a);
}

static int
checked_gate_matmul(struct lane *l, struct tensor y, struct tensor both, struct tensor x,
                    struct tensor w, enum act a)
{
    uint32_t n = x.dim[0];

    if (n == 0) return 0;
    if ((unsigned)a > ACT_GELU_TANH) REFUSE("gate_matmul: unsupported activation %d", (int)a);
    TRY(want(l, "gate_matmul: w", &w, l->gpu->weights));
    TRY(want(l, "gate_matmul: x", &x, rows_for(l, &w)));
    if (w.dim[0] == 0 || w.dim[0] % 2 || w.dim[1] != x.dim[1] || w.dim[1] == 0)
        REFUSE("gate_matmul: x is [%u, %u] and w is [%u, %u]; expected equal columns, no dimension "
               "of 0 and an even number of rows of w",
               n, x.dim[1], w.dim[0], w.dim[1]);
    TRY(want_2d(l, "gate_matmul: y", &y, n, w.dim[0] / 2, 1u << x.dtype));
    TRY(want_2d(l, "gate_matmul: both", &both, n, w.dim[0], 1u << x.dtype));
    if (overlap(&y, &x) || overlap(&both, &x) || overlap(&y, &both))
        REFUSE("gate_matmul: the tensors `y`, `both` and `x` must not overlap");
    return l->gpu->device->gate_matmul(l, y, both, x, w, a);
}

static int
checked_scale(struct lane *l, struct tensor x, float factor, float softcap)
{
    if (x.dim[0] == 0) return 0;
    TRY(want(l, "scale: x", &x, l->gpu->acts | 1u << DT_F32));
    if (!(softcap >= 0)) REFUSE("scale: softcap is %g, expected at least 0", (double)softcap);
    return l->gpu->device->scale(l, x, factor, softcap);
}

static int
checked_mul(struct lane *l, struct tensor y, struct tensor x, struct tensor w)
{
    uint32_t n = x.dim[0], d = x.dim[1];

    if (n == 0) return 0;
    TRY(want(l, "mul: x", &x, l->gpu->acts));
    TRY(want_2d(l, "mul: y", &y, n, d, from(l, x.dtype)));
    if (w.data) TRY(want_2d(l, "mul: w", &w, w.dim[0] == 1 ? 1 : n, d, l->gpu->weights));
    return l->gpu->device->mul(l, y, x, w);
}

static int
checked_gaussian_topk(struct lane *l, struct tensor x, float factor)
{
    if (x.dim[0] == 0) return 0;
    TRY(want(l, "gaussian_topk: x", &x, l->gpu->acts));
    return l->gpu->device->gaussian_topk(l, x, factor);
}

static int
checked_match_rms(struct lane *l, struct tensor y, struct tensor like, float least)
{
    if (y.dim[0] == 0) return 0;
    TRY(want(l, "match_rms: y", &y, 1u << DT_F32));
    TRY(want_2d(l, "match_rms: like", &like, y.dim[0], y.dim[1], 1u << DT_F32));
    if (!(least > 0)) REFUSE("match_rms: `least` is %g, expected above 0", (double)least);
    return l->gpu->device->match_rms(l, y, like, least);
}

static int
checked_altup(struct lane *l, const struct altup *a)
{
    uint32_t n = a->x.dim[0], s = a->n_streams;
    bool predict = a->step == ALTUP_PREDICT;

    if (n == 0) return 0;
    TRY(want(l, "altup: x", &a->x, 1u << DT_F32));
    if (s == 0 || s > MOST_STREAMS || a->x.dim[1] % s || a->active >= s)
        REFUSE("altup: n_streams is %u, active is %u and x has %u columns; expected 1 to %d "
               "streams, active below n_streams, and columns divisible by n_streams",
               s, a->active, a->x.dim[1], MOST_STREAMS);
    TRY(want_2d(l, "altup: coef", &a->coef, n, predict ? s * s : s, 1u << DT_F32));
    if (!predict) TRY(want_2d(l, "altup: in", &a->in, n, a->x.dim[1] / s, 1u << DT_F32));
    return l->gpu->device->altup(l, a);
}

static int
want_fp32(struct lane *l, const char *what, const struct tensor *t, uint32_t n)
{
    if (!t->data) REFUSE("%s has no data", what);
    if (t->dtype != DT_F32) REFUSE("%s is %s, expected fp32", what, dtype_name(t->dtype));
    return want_vector(l, what, t, n);
}

static int
want_pairs(struct lane *l, const char *op, const struct pairs *p)
{
    if (!p->expert || !p->share || !p->place || !p->row || !p->first)
        REFUSE("%s: an array of the token-expert pairs is NULL", op);
    if (p->n_top == 0 || p->n_top > p->n_experts || p->n_top > MOST_TOP ||
        (uint64_t)p->n_tokens * p->n_top > UINT32_MAX)
        REFUSE("%s: n_tokens %u, n_top %u, n_experts %u; expected 1 <= n_top <= n_experts, n_top "
               "<= %d "
               "and fewer than 2^32 pairs",
               op, p->n_tokens, p->n_top, p->n_experts, MOST_TOP);
    return 0;
}

static int
checked_route(struct lane *l, const struct route *r)
{
    if (r->pairs.n_tokens == 0) return 0;
    TRY(want_pairs(l, "route", &r->pairs));
    TRY(want_2d(l, "route: logits", &r->logits, r->pairs.n_tokens, r->pairs.n_experts,
                1u << DT_F32));
    if (r->scale.data) TRY(want_fp32(l, "route: scale", &r->scale, r->pairs.n_experts));
    if (r->sigmoid) TRY(want_fp32(l, "route: bias", &r->bias, r->pairs.n_experts));
    if (!(r->factor > 0)) REFUSE("route: factor is %g, expected above 0", (double)r->factor);
    return l->gpu->device->route(l, r);
}

static int
want_experts(struct lane *l, const struct tensor *w, uint32_t rows, uint32_t k)
{
    struct tensor codes = *w;

    codes.scale = NULL;
    if (w->dtype != DT_MXFP4) return want_2d(l, "expert_matmul: w", w, rows, k, l->gpu->weights);
    TRY(want_2d(l, "expert_matmul: w", &codes, rows, k, 1u << DT_MXFP4));
    if (!w->scale || w->scale_run != MX_RUN || k % MX_RUN || w->stride != k)
        REFUSE("expert_matmul: mxfp4 w has %u columns, a stride of %u and %s (scale_run %u); "
               "expected a stride equal to the columns, a multiple of %d, and scale_run %d",
               k, w->stride, w->scale ? "scales" : "no scales", w->scale_run, MX_RUN, MX_RUN);
    return 0;
}

static int
checked_expert_matmul(struct lane *l, const struct expert_matmul *m, const struct pairs *p)
{
    uint32_t n = p->n_tokens * p->n_top, out = m->y.dim[1], k = m->x.dim[1];

    if (n == 0) return 0;
    TRY(want_pairs(l, "expert_matmul", p));
    TRY(want_2d(l, "expert_matmul: x", &m->x, m->by_row ? p->n_tokens : n, k, l->gpu->acts));
    TRY(want_2d(l, "expert_matmul: y", &m->y, n, out, 1u << m->x.dtype));
    if (k == 0 || out == 0)
        REFUSE("expert_matmul: x is [%u, %u] and y is [%u, %u], expected no dimension of 0", n, k,
               n, out);
    TRY(want_experts(l, &m->w, p->n_experts * out, k));
    if (m->bias.data)
        TRY(want_2d(l, "expert_matmul: bias", &m->bias, p->n_experts, out, 1u << DT_F32));
    if (overlap(&m->y, &m->x)) REFUSE("expert_matmul: y overlaps x");
    return l->gpu->device->expert_matmul(l, m, p);
}

static int
checked_combine(struct lane *l, struct tensor y, struct tensor x, const struct pairs *p)
{
    if (y.dim[0] == 0) return 0;
    TRY(want_pairs(l, "combine", p));
    TRY(want(l, "combine: y", &y, l->gpu->acts));
    if (y.dim[0] != p->n_tokens)
        REFUSE("combine: y has %u rows, the pairs have %u tokens", y.dim[0], p->n_tokens);
    TRY(want_2d(l, "combine: x", &x, p->n_tokens * p->n_top, y.dim[1], 1u << y.dtype));
    if (overlap(&y, &x)) REFUSE("combine: y overlaps x");
    return l->gpu->device->combine(l, y, x, p);
}

static int
checked_gather_rows(struct lane *l, struct tensor y, struct tensor x, const uint32_t *which)
{
    if (y.dim[0] == 0) return 0;
    TRY(want(l, "gather_rows: x", &x, l->gpu->acts | l->gpu->weights));
    TRY(want_2d(l, "gather_rows: y", &y, y.dim[0], x.dim[1], 1u << x.dtype));
    if (!which) REFUSE("gather_rows: which is NULL");
    return l->gpu->device->gather_rows(l, y, x, which);
}

static int
checked_rope_store(struct lane *l, const struct rope_store *s, struct step_tokens r)
{
    uint32_t d = s->head_dim;

    if (r.n_tokens == 0) return 0;
    TRY(want_rows(l, "rope_store", &r, false));
    if (d == 0) REFUSE("rope_store: head_dim is 0");
    if (s->q.data)
        TRY(want_2d(l, "rope_store: q", &s->q, r.n_tokens, s->n_heads * d, l->gpu->acts));
    if (s->k.data) {
        TRY(want_2d(l, "rope_store: k", &s->k, r.n_tokens, s->n_kv_heads * d, l->gpu->acts));
        if (s->v.data || (s->kv.base && s->kv.n_parts != 1))
            TRY(want_2d(l, "rope_store: v", &s->v, r.n_tokens, s->n_kv_heads * d, l->gpu->acts));
    }
    TRY(want_vector(l, "rope_store: q_norm", &s->q_norm, d));
    TRY(want_vector(l, "rope_store: k_norm", &s->k_norm, d));
    if (s->cos_sin.data) {
        TRY(want(l, "rope_store: cos_sin", &s->cos_sin, 1u << DT_F32));
        if (s->cos_sin.dim[1] > d || s->cos_sin.dim[1] % 2)
            REFUSE("rope_store: cos_sin rotates %u elements, heads have %u", s->cos_sin.dim[1], d);
    }
    if (s->k.data && s->kv.base) TRY(want_kv(l, "rope_store", &s->kv, s->n_kv_heads, d));
    return l->gpu->device->rope_store(l, s, r);
}

static int
checked_attend(struct lane *l, const struct attend *a, struct step_tokens r)
{
    uint32_t d = a->head_dim, n = a->q.dim[0];

    if (r.n_segments == 0) return 0;
    TRY(want_rows(l, "attend", &r, true));
    if (d == 0 || a->n_kv_heads == 0 || a->n_heads % a->n_kv_heads)
        REFUSE("attend: %u heads (size %u) cannot share %u KV heads", a->n_heads, d, a->n_kv_heads);
    if (n < r.n_tokens) REFUSE("attend: q has %u rows, the step has %u", n, r.n_tokens);
    TRY(want_2d(l, "attend: q", &a->q, n, a->n_heads * d, l->gpu->acts));
    TRY(want_2d(l, "attend: out", &a->out, n, a->n_heads * d, 1u << a->q.dtype));
    if (a->kv.table) TRY(want_kv(l, "attend", &a->kv, a->n_kv_heads, d));
    if (!a->kv.table || a->k.data) {
        TRY(want_2d(l, "attend: k", &a->k, n, a->n_kv_heads * d, l->gpu->acts));
        TRY(want_2d(l, "attend: v", &a->v, n, a->n_kv_heads * d, l->gpu->acts));
    }
    if (!(a->softcap >= 0))
        REFUSE("attend: softcap is %g, expected at least 0", (double)a->softcap);
    if (a->mask && a->mask_words == 0) REFUSE("attend: mask is set, but mask_words is 0");
    return l->gpu->device->attend(l, a, r);
}

/* Requires a view of a recurrent state that has `bytes` bytes of fp32 at offset `at`. */
static int
want_state(struct lane *l, const char *op, const struct kv_view *v, uint64_t at, uint64_t bytes)
{
    if (!v->base || !v->table) REFUSE("%s: base or table of the view of the state is NULL", op);
    if (at % sizeof(float) || at + bytes > v->slice_bytes)
        REFUSE("%s: %llu bytes at offset %llu do not fit a state of %u bytes", op,
               (unsigned long long)bytes, (unsigned long long)at, v->slice_bytes);
    return 0;
}

static int
checked_conv(struct lane *l, const struct conv *c, struct step_tokens r)
{
    uint32_t n = c->x.dim[0], channels = c->x.dim[1];

    if (r.n_segments == 0) return 0;
    TRY(want_rows(l, "conv", &r, true));
    if (n < r.n_tokens) REFUSE("conv: x has %u rows, the step has %u", n, r.n_tokens);
    if (c->n_taps == 0 || c->n_taps > MOST_TAPS) REFUSE("conv: n_taps %u is not 1 to 8", c->n_taps);
    TRY(want(l, "conv: x", &c->x, l->gpu->acts));
    TRY(want_2d(l, "conv: y", &c->y, n, channels, 1u << c->x.dtype));
    TRY(want_2d(l, "conv: w", &c->w, channels, c->n_taps, 1u << DT_F32));
    if (c->w.stride != c->n_taps) REFUSE("conv: w has gaps between its rows");
    if (c->bias.data) TRY(want_fp32(l, "conv: bias", &c->bias, channels));
    TRY(want_state(l, "conv", &c->state, 0, 4ull * (c->n_taps - 1) * channels));
    return l->gpu->device->conv(l, c, r);
}

static int
checked_scan(struct lane *l, const struct scan *s, struct step_tokens r)
{
    uint32_t n = s->x.dim[0], inner = s->n_heads * s->head_dim;
    unsigned as_x = 1u << s->x.dtype;

    if (r.n_segments == 0) return 0;
    TRY(want_rows(l, "scan", &r, true));
    if (n < r.n_tokens) REFUSE("scan: x has %u rows, the step has %u", n, r.n_tokens);
    if (inner == 0 || s->state_dim == 0 || s->n_groups == 0 || s->n_heads % s->n_groups)
        REFUSE("scan: %u heads (size %u), %u groups and state_dim %u; expected all above 0 and the "
               "heads divisible by the groups",
               s->n_heads, s->head_dim, s->n_groups, s->state_dim);
    TRY(want(l, "scan: x", &s->x, l->gpu->acts));
    TRY(want_2d(l, "scan: x", &s->x, n, inner + 2 * s->n_groups * s->state_dim, as_x));
    TRY(want_2d(l, "scan: y", &s->y, n, inner, as_x));
    TRY(want_2d(l, "scan: gate", &s->gate, n, inner, as_x));
    TRY(want_2d(l, "scan: dt", &s->dt, n, s->n_heads, as_x));
    TRY(want_fp32(l, "scan: dt_bias", &s->dt_bias, s->n_heads));
    TRY(want_fp32(l, "scan: a_log", &s->a_log, s->n_heads));
    TRY(want_fp32(l, "scan: d", &s->d, s->n_heads));
    if (!(s->dt_min <= s->dt_max))
        REFUSE("scan: dt_min %g is above dt_max %g", (double)s->dt_min, (double)s->dt_max);
    TRY(want_state(l, "scan", &s->state, s->state_at, 4ull * inner * s->state_dim));
    return l->gpu->device->scan(l, s, r);
}

static int
checked_sample(struct lane *l, const struct sample *s)
{
    if (s->n == 0) return 0;
    TRY(want(l, "sample: logits", &s->logits, 1u << DT_F32));
    if (s->logits.dim[0] < s->n || s->logits.dim[1] == 0)
        REFUSE("sample: logits are [%u, %u], too small for %u rows", s->logits.dim[0],
               s->logits.dim[1], s->n);
    if (!s->row || !s->token) REFUSE("sample: row or token is NULL");
    if (s->allowed && s->allowed_words == 0) REFUSE("sample: allowed_words is 0");
    return l->gpu->device->sample(l, s);
}

static int
checked_all_reduce(struct lane *l, struct tensor x)
{
    if (l->gpu->ranks == 1 || x.dim[0] == 0 || x.dim[1] == 0) return 0;
    TRY(want(l, "all_reduce: x", &x, l->gpu->acts | 1u << DT_F32));
    return l->gpu->device->collective.all_reduce(l, x);
}

static int
checked_all_gather(struct lane *l, struct tensor out, struct tensor x)
{
    if (l->gpu->ranks == 1 || out.dim[0] == 0 || out.dim[1] == 0) return 0;
    TRY(want(l, "all_gather: out", &out, 1u << DT_F32));
    TRY(want_2d(l, "all_gather: x", &x, out.dim[0], gpu_own_columns(l->gpu, out).dim[1],
                1u << DT_F32));
    return l->gpu->device->collective.all_gather(l, out, x);
}

/* Replaces the entry of op `name` by checked_name(). p: the struct of gpu_ops that has it. */
#define CHECKED(p, name, params, args) ops->p name = checked_##name;

void
gpu_add_checks(struct gpu_ops *ops)
{
    ops->mem.arena_make = checked_arena_make;
    ops->mem.arena_adopt = checked_arena_adopt;
    ops->mem.host_open = checked_host_open;
    ops->mem.host_make = checked_host_make;
    ops->mem.host_map = checked_host_map;
    ops->mem.host_close = checked_host_close;
    ops->mem.host_unpin = checked_host_unpin;
    ops->mem.put = checked_put;
    ops->mem.get = checked_get;
    ops->mem.copy = checked_copy;
    ops->lane.open = checked_lane_open;
    ops->lane.close = checked_lane_close;
    ops->lane.part = checked_lane_part;
    ops->lane.mark = checked_lane_mark;
    ops->lane.after = checked_lane_after;
    ops->graph.launch = checked_graph_launch;
    ops->graph.drop = checked_graph_drop;
    GPU_MEMORY_OPS(CHECKED, mem.)
    GPU_STEP_OPS(CHECKED, step.)
    GPU_COLLECTIVES(CHECKED, collective.)
    GPU_OPS(CHECKED, )
}
