/* scratch.c - allocates all memory of the executor.
 *
 * lay_out() allocates every buffer in order. It runs twice: first without memory to count bytes,
 * then with the arena and the host mappings, so each size is written in one place. Buffers that are
 * never touched (log-probabilities that no request wants) take address space only.
 */
#include "worker/exec/exec_internal.h"

#include <sys/mman.h>

/* Memory for lay_out(): on the device, pinned on the host, pageable on the host (far). */
struct region {
    char *base; /* NULL: only counts bytes */
    uint64_t taken;
};
struct plan {
    struct region dev, host, far;
};

/* The entries of a table row are a multiple of it, because rows are copied in 16-byte units. */
enum { ROW_ENTRIES = 16 / sizeof(slice_id) };
enum { PIECE_ALIGN = 256 }; /* alignment of a buffer, for copies and vector loads of every device */

/* Allocates n elements of `each` bytes; NULL while counting. */
static void *
take(struct region *r, uint64_t n, uint64_t each)
{
    char *at = r->base ? r->base + r->taken : NULL;

    r->taken += ROUND_UP(n * each, PIECE_ALIGN);
    return at;
}

/* Allocates a matrix in device memory. Rows start 16-byte aligned, for vector loads. */
static struct tensor
matrix(struct plan *p, enum dtype t, uint32_t rows, uint32_t cols)
{
    uint32_t stride = ROUND_UP(cols, 8u);
    struct tensor m = tensor_2d(take(&p->dev, (uint64_t)rows * stride, dtype_bytes(t, 1)), t, rows,
                                stride);

    return tensor_cols(m, 0, cols);
}

/* Largest size of the image of a step; source_bytes(): of an image for encoder inputs. */
static size_t
step_bytes(const struct exec *x)
{
    size_t rows = x->c.max_tokens, slots = x->n_slots;

    return rows * (3 * sizeof(int32_t) + sizeof(uint32_t) + sizeof(struct sample_row)) +
           (3 * slots + 2 * GRAPHS_SEGMENTS) * sizeof(struct segment) +
           x->c.max_edits * MAX(sizeof(struct table_edit), sizeof(struct block_copy)) +
           x->c.max_copies * sizeof(struct block_copy) + (size_t)32 * CACHE_LINE;
}

static size_t
source_bytes(const struct exec *x, size_t n_segments)
{
    return 4 * x->c.max_enc_tokens * sizeof(int32_t) + n_segments * sizeof(struct segment) +
           (size_t)8 * CACHE_LINE;
}

/* Allocates an image. All stages of a lane share the device memory of the first stage's image. */
static void
lay_out_image(struct image *im, const struct image *first, size_t bytes, struct plan *p)
{
    im->bytes = bytes;
    im->dev = im == first ? take(&p->dev, bytes, 1) : first->dev;
    im->host = take(&p->host, bytes, 1);
}

static void
lay_out_lane(struct exec *x, struct exec_lane *l, struct plan *p)
{
    uint32_t hidden = x->m->shape.hidden, rows = x->c.max_tokens, cols[MAX_SCRATCH];
    uint64_t tops = (uint64_t)rows * x->top_most;
    enum dtype act = x->m->act;

    l->x = matrix(p, DT_F32, rows, hidden * MAX(x->m->shape.n_streams, 1u));
    l->normed = matrix(p, act, rows, hidden);
    l->logit_x = x->m->arch->ends_with_logit_rows ? matrix(p, DT_F32, x->n_slots, hidden)
                                                  : NO_TENSOR;
    model_scratch(x->m, cols);
    for (unsigned i = 0; i < ARRAY_LEN(cols); i++)
        l->scratch[i] = cols[i] ? matrix(p, act, x->scratch_rows, cols[i]) : NO_TENSOR;
    l->picked = matrix(p, act, x->piece, hidden);
    l->sources = matrix(p, act, x->c.max_enc_tokens, hidden);
    l->source_x = matrix(p, DT_F32, MIN(x->c.max_enc_tokens, (uint32_t)GRAPHS_SOURCE_ROWS), hidden);
    l->source_out = matrix(p, act, MIN(x->c.max_enc_tokens, (uint32_t)GRAPHS_SOURCE_ROWS), hidden);
    l->logits = matrix(p, DT_F32, x->piece, x->m->shape.vocab);
    l->drawn = take(&p->dev, 2 * (uint64_t)rows, sizeof *l->drawn);
    l->suppressed = take(&p->dev, (uint64_t)x->n_slots * MAX_SUPPRESSED, sizeof *l->suppressed);
    l->logit_bias = take(&p->dev, (uint64_t)x->n_slots * EXEC_MAX_BIAS, sizeof *l->logit_bias);
    l->top = take(&p->dev, tops, sizeof *l->top);
    for (unsigned i = 0; i < STAGES; i++) {
        struct stage *st = &l->stage[i], *first = &l->stage[0];

        lay_out_image(&st->step, &first->step, step_bytes(x), p);
        lay_out_image(&st->encode, &first->encode,
                      source_bytes(x, x->n_slots + (size_t)GRAPHS_SOURCES), p);
        lay_out_image(&st->project, &first->project, source_bytes(x, 0), p);
        st->suppressed = take(&p->host, (uint64_t)x->n_slots * MAX_SUPPRESSED,
                              sizeof *st->suppressed);
        st->logit_bias = take(&p->host, (uint64_t)x->n_slots * EXEC_MAX_BIAS,
                              sizeof *st->logit_bias);
    }
    for (unsigned i = 0; i < OUTCOMES; i++) {
        struct outcome *o = &l->outcome[i];

        o->drawn = take(&p->host, 2 * (uint64_t)rows, sizeof *o->drawn);
        o->segment_logit = take(&p->host, x->n_slots, sizeof *o->segment_logit);
        o->r.n_tokens = take(&p->host, x->n_slots, sizeof *o->r.n_tokens);
        o->r.token = take(&p->host, (uint64_t)x->n_slots * (1 + MAX_DRAFT), sizeof *o->r.token);
        o->r.first_top = take(&p->host, (uint64_t)rows + 1, sizeof *o->r.first_top);
        o->near = take(&p->host, MIN(tops, (uint64_t)NEAR_TOPS), sizeof *o->near);
        o->far = take(&p->far, tops > NEAR_TOPS ? tops : 0, sizeof *o->far);
        o->logits_at = take(&p->host, x->n_slots, sizeof *o->logits_at);
        o->states_at = take(&p->host, x->n_slots, sizeof *o->states_at);
        o->n_states = take(&p->host, x->n_slots, sizeof *o->n_states);
        o->logits = take(&p->far, (uint64_t)x->n_slots * x->m->shape.vocab, sizeof *o->logits);
        o->states = take(&p->far, (uint64_t)x->c.max_enc_tokens * hidden, dtype_bytes(act, 1));
    }
}

static void
lay_out_history(const struct exec *x, struct token_history *h, struct region *r)
{
    h->stride = x->m->shape.max_len;
    h->seen_words = CEIL_DIV(x->m->shape.vocab, 32);
    h->seen = take(r, (uint64_t)x->n_slots * h->seen_words, sizeof *h->seen);
    h->token = take(r, (uint64_t)x->n_slots * h->stride, sizeof *h->token);
}

static void
lay_out(struct exec *x, const struct kv_config *kv, struct plan *p)
{
    x->tables.n = kv->n_groups;
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        x->tables.stride[g] = ROUND_UP(kv->group[g].max_entries, (uint32_t)ROW_ENTRIES);
        x->tables.table[g] = take(&p->dev, (uint64_t)x->n_slots * x->tables.stride[g],
                                  sizeof(slice_id));
    }
    x->last = take(&p->dev, x->n_slots, sizeof *x->last);
    lay_out_history(x, &x->history, &p->dev);
    x->enc_state = matrix(p, DT_F32, x->c.max_enc_tokens, x->m->shape.hidden);
    x->enc_out = matrix(p, x->m->act, x->c.max_enc_tokens, x->m->shape.hidden);
    x->slot = take(&p->host, x->n_slots, sizeof *x->slot);
    x->place = take(&p->far, x->c.max_copies, sizeof *x->place);
    x->n_initial = take(&p->host, x->n_slots, sizeof *x->n_initial);
    lay_out_history(x, &x->initial, &p->far);
    for (uint32_t i = 0; i < x->c.n_lanes; i++) lay_out_lane(x, &x->lane[i], p);
}

/* Sets every entry of every table to SLICE_NONE. Closing the lane waits for the copies. */
static int
clear_tables(struct exec *x, struct err *e)
{
    static const slice_id none[4096] = { [0 ... 4095] = SLICE_NONE };
    struct lane *lane;
    int r = 0;

    TRY(x->op->lane.open(x->gpu, 1, &lane, e));
    for (uint32_t g = 0; g < x->tables.n && r >= 0; g++) {
        uint64_t n = (uint64_t)x->n_slots * x->tables.stride[g];

        for (uint64_t i = 0; i < n && r >= 0; i += ARRAY_LEN(none))
            r = x->op->mem.put(lane, x->tables.table[g] + i, none,
                               MIN(n - i, ARRAY_LEN(none)) * sizeof none[0]);
    }
    x->op->lane.close(lane);
    return r < 0 ? err_set(e, r, "cannot clear the block tables: %s", gpu_why(x->gpu)) : 0;
}

/* Maps private pageable memory; untouched pages take no memory. NULL: failed. */
static char *
map(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

uint64_t
scratch_size(struct exec *x, const struct kv_config *kv)
{
    struct plan p = { 0 };

    lay_out(x, kv, &p);
    x->host_bytes = p.host.taken;
    x->far_bytes = p.far.taken;
    return p.dev.taken;
}

int
scratch_open(struct exec *x, const struct kv_config *kv, struct err *e)
{
    uint64_t dev_bytes = scratch_size(x, kv);
    struct plan p;
    int r = x->op->mem.arena_make(x->gpu, "scratch", dev_bytes, &x->arena, e);

    if (r < 0)
        return err_while(
            e, r,
            "cannot allocate %llu MiB of device memory for %u lanes of %u tokens and encoder "
            "inputs of %u tokens; lower max_num_batched_tokens",
            (unsigned long long)(dev_bytes >> 20), x->c.n_lanes, x->c.max_tokens,
            x->c.max_enc_tokens);
    x->host = map(x->host_bytes);
    x->far = map(x->far_bytes);
    if (!x->host || (x->far_bytes && !x->far))
        return err_set(e, -ENOMEM,
                       "cannot map %llu MiB of host memory for the inputs and results of %u "
                       "sequences; lower max_num_seqs",
                       (unsigned long long)((x->host_bytes + x->far_bytes) >> 20), x->n_slots);
    r = x->op->mem.host_pin(x->gpu, x->host, x->host_bytes);
    if (r < 0)
        return err_set(e, r, "cannot pin the host memory of the executor: %s", gpu_why(x->gpu));
    p = (struct plan){ { x->arena.base, 0 }, { x->host, 0 }, { x->far, 0 } };
    lay_out(x, kv, &p);
    return clear_tables(x, e);
}

void
scratch_close(struct exec *x)
{
    if (x->host) x->op->mem.host_unpin(x->gpu, x->host, x->host_bytes);
    if (x->host) munmap(x->host, x->host_bytes);
    if (x->far) munmap(x->far, x->far_bytes);
    if (x->arena.base) x->op->mem.arena_drop(x->gpu, &x->arena);
}
