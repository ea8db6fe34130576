/* table.c - see table.h. */
#include "worker/model/table.h"

#include <errno.h>
#include <stdlib.h>

static int
moved(const struct model *m, struct lane *lane, int r, const char *what, struct err *e)
{
    m->op->lane_close(lane); /* waits */
    return r < 0 ? err_set(e, r, "%s: %s", what, gpu_why(m->gpu)) : 0;
}

int
table_make(struct model *m, uint32_t which, uint32_t rows, uint32_t cols, const float *from,
           struct err *e)
{
    size_t bytes = (size_t)rows * cols * sizeof *from;
    struct lane *lane;

    check(which < MAX_TABLES && !m->table[which].data);
    TRY(m->op->arena_make(m->gpu, "table", bytes, &m->table_arena[which], e));
    m->table[which] = tensor_2d(m->table_arena[which].base, DT_F32, rows, cols);
    TRY(m->op->lane_open(m->gpu, 1, &lane, e));
    return moved(m, lane, m->op->put(lane, m->table[which].data, from, bytes), "fill a table", e);
}

int
table_rope(struct model *m, uint32_t which, const struct rope_params *p, uint32_t head_dim,
           struct err *e)
{
    uint32_t rows = m->shape.max_len, cols = rope_dim(p, head_dim);
    float *t = malloc((size_t)rows * cols * sizeof *t);
    int r;

    if (!t) return err_set(e, -ENOMEM, "rotary table of %u positions x %u", rows, cols);
    rope_table(p, head_dim, rows, t);
    r = table_make(m, which, rows, cols, t, e);
    free(t);
    return r;
}

int
table_read(const struct model *m, float *to, struct tensor t, struct err *e)
{
    size_t bytes = (size_t)t.dim[0] * t.dim[1] * sizeof *to;
    struct lane *lane;

    check(t.dtype == DT_F32 && (t.dim[0] == 1 || t.stride == t.dim[1]));
    TRY(m->op->lane_open(m->gpu, 1, &lane, e));
    return moved(m, lane, m->op->get(lane, to, t.data, bytes), "read a table", e);
}

void
table_drop_all(struct model *m)
{
    for (unsigned i = 0; i < MAX_TABLES; i++) {
        if (m->table_arena[i].base) m->op->arena_drop(m->gpu, &m->table_arena[i]);
        m->table[i] = NO_TENSOR;
    }
}
