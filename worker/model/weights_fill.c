/* weights_fill.c - fills the stale fields of a plan (weights_plan.h) from files or at random.
 *
 * Reader threads (weights_read.h) fill pinned memory with pieces of the tensors while the device
 * copies earlier pieces from it. The device computes checksums and random weights. */
#include "base/array.h"
#include "worker/model/weights_plan.h"
#include "worker/model/weights_read.h"

#include <xxhash.h>

#define RANDOM_STD 0.02f

/* The copy of one piece to the device. */
struct piece_copy {
    char *to;
    size_t bytes;
    uint32_t field;
    bool last;    /* last piece of its field */
    int64_t mark; /* lane mark after queueing */
};

struct filling {
    const struct weights_plan *plan;
    struct read_piece *piece; /* [n] */
    struct piece_copy *move;  /* [n] */
    uint32_t n, piece_cap, move_cap;
    uint64_t done, total, reported;
};

static void
report_progress(struct filling *w, uint64_t bytes)
{
    const struct model_source *src = w->plan->from->src;

    w->done += bytes;
    if (!src->progress || w->done == w->reported) return;
    if (w->done - w->reported < READ_PIECE && w->done < w->total) return;
    w->reported = w->done;
    src->progress(src->arg, w->done, w->total);
}

static int
failed(const struct filling *w, int r, struct err *e)
{
    return r < 0 ? err_set(e, r, "cannot fill weights: %s", gpu_why(w->plan->m->gpu)) : 0;
}

/* Returns the largest number of elements of part q that occupies at most READ_PIECE bytes both as
 * stored and as converted; whole rows if the part is transposed or has some of the columns only. */
static size_t
piece_elements(const struct field *f, const struct part *q)
{
    size_t n = READ_PIECE / MAX(dtype_bytes(f->dtype, 1), dtype_bytes(q->stored->dtype, 1));

    return q->transposed || q->col.n < q->cols ? n / q->col.n * q->col.n : n;
}

static struct read_piece
piece_of(const struct field *f, const struct part *q, size_t at, size_t n)
{
    struct read_piece p = {
        .t = q->stored,
        .first = (q->row.first + at / q->col.n) * q->cols + q->col.first + at % q->col.n,
        .n = n,
        .dtype = f->dtype,
    };

    if (q->col.n < q->cols) {
        p.row = q->col.n;
        p.pitch = q->cols;
    }
    if (q->transposed) {
        p.rows = q->rows / q->experts;
        p.cols = q->cols;
    }
    return p;
}

/* Lists the pieces of part j of a field. *to: its address in the arena; its size is added. */
static int
list_part(struct filling *w, uint32_t field, uint32_t j, char **to)
{
    const struct field *f = &w->plan->field[field];
    const struct part *q = &w->plan->part[f->first + j];
    size_t all = (size_t)q->row.n * q->col.n, each = piece_elements(f, q);

    for (size_t at = 0; at < all; at += each, w->n++) {
        size_t n = MIN(each, all - at), bytes = dtype_bytes(f->dtype, n);

        TRY(array_grow(&w->piece, &w->piece_cap, w->n + 1, UINT32_MAX, sizeof *w->piece));
        TRY(array_grow(&w->move, &w->move_cap, w->n + 1, UINT32_MAX, sizeof *w->move));
        w->piece[w->n] = piece_of(f, q, at, n);
        w->move[w->n] = (struct piece_copy){
            .to = *to,
            .bytes = bytes,
            .field = field,
            .last = j + 1 == f->n_parts && at + n == all,
        };
        *to += bytes;
    }
    return 0;
}

/* Lists every piece of every stale field, in arena order. */
static int
list_pieces(struct filling *w, struct err *e)
{
    const struct weights_plan *p = w->plan;

    for (uint32_t i = 0; i < p->n_fields; i++) {
        char *to = (char *)p->m->weights.base + p->field[i].offset;

        for (uint32_t j = 0; p->field[i].stale && j < p->field[i].n_parts; j++)
            if (list_part(w, i, j, &to) < 0)
                return err_set(e, -ENOMEM, "no memory to list %u pieces of the weights", w->n + 1);
    }
    return 0;
}

/* Waits for the copies of pieces [*done, end), reports them, releases buffers; *done = end. */
static int
retire(struct filling *w, struct reading *r, uint32_t *done, uint32_t end, struct err *e)
{
    if (*done >= end) return 0;
    TRY(load_lane_wait(w->plan->m, w->move[end - 1].mark, "fill weights", e));
    for (; *done < end; (*done)++) report_progress(w, w->move[*done].bytes);
    weights_read_release(r, end);
    return 0;
}

static int
copy_pieces(struct filling *w, struct reading *r, struct err *e)
{
    struct model *m = w->plan->m;
    uint32_t done = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        struct piece_copy *s = &w->move[i];
        const void *host;

        if (i >= READ_BEHIND) TRY(retire(w, r, &done, i + 1 - READ_BEHIND, e));
        TRY(weights_read_next(r, &host, e));
        TRY(failed(w, m->op->mem.put(m->lane, s->to, host, s->bytes), e));
        if (s->last) TRY(failed(w, weights_checksum_field(w->plan, s->field), e));
        s->mark = load_lane_mark(m);
    }
    return retire(w, r, &done, w->n, e);
}

static int
fill_stored(struct filling *w, struct err *e)
{
    struct model *m = w->plan->m;
    struct reading *r = NULL;
    int code;

    TRY(list_pieces(w, e));
    if (w->n == 0) return 0;
    TRY(weights_read_start(&r, m, w->plan->from->src->dir, w->piece, w->n, e));
    code = copy_pieces(w, r, e);
    if (code < 0) load_lane_drain(m); /* no copy may read the buffers when they are freed */
    weights_read_stop(r);
    return code;
}

static int
fill_scales(struct model *m, char *to, size_t bytes)
{
    static uint8_t scale[1 << 16];

    memset(scale, m->quant->random_scale, sizeof scale);
    for (size_t at = 0; at < bytes; at += sizeof scale)
        TRY(m->op->mem.put(m->lane, to + at, scale, MIN(sizeof scale, bytes - at)));
    return 0;
}

/* Fills stale fields with random weights. Seeds are made of the tensor's name and src->seed; a rank
 * generates its elements of the whole tensor, so weights do not depend on the number of ranks. */
static int
fill_random(struct filling *w, struct err *e)
{
    const struct weights_plan *p = w->plan;
    struct model *m = p->m;

    for (uint32_t i = 0; i < p->n_fields; i++) {
        const struct field *f = &p->field[i];
        char *to = (char *)m->weights.base + f->offset;

        if (!f->stale) continue;
        for (uint32_t j = 0; j < f->n_parts; j++) {
            const struct part *q = &p->part[f->first + j];
            uint64_t seed = XXH3_64bits_withSeed(q->name, strlen(q->name), p->from->src->seed);
            size_t bytes = dtype_bytes(f->dtype, (size_t)q->row.n * q->col.n);
            int r = q->quant && q->quant->is_scale
                        ? fill_scales(m, to, bytes)
                        : m->op->mem.fill_random(
                              m->lane, tensor_2d(to, f->dtype, q->row.n, q->col.n), seed,
                              (uint64_t)q->row.first * q->cols + q->col.first, q->cols, RANDOM_STD);

            TRY(failed(w, r, e));
            to += bytes;
        }
        TRY(load_lane_end(m, weights_checksum_field(p, i), "fill weights", e));
        report_progress(w, f->bytes);
    }
    return 0;
}

static void
filling_done(struct filling *w)
{
    free(w->piece);
    free(w->move);
}

int
weights_fill(const struct weights_plan *p, struct err *e)
{
    CLEAN(filling_done) struct filling w = { .plan = p };

    for (uint32_t i = 0; i < p->n_fields; i++)
        if (p->field[i].stale) w.total += p->field[i].bytes;
    return p->m->files ? fill_stored(&w, e) : fill_random(&w, e);
}
