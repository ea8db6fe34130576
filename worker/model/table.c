/* table.c - see table.h. */
#include "worker/model/table.h"

#include "worker/model/load_lane.h"

#include <errno.h>
#include <stdlib.h>

int
table_make(struct model *m, uint32_t which, uint32_t rows, uint32_t cols, const float *from,
           struct err *e)
{
    size_t bytes = (size_t)rows * cols * sizeof *from;

    check(which < MAX_TABLES && !m->table[which].data);
    TRY(m->op->arena_make(m->gpu, "table", bytes, &m->table_arena[which], e));
    m->table[which] = tensor_2d(m->table_arena[which].base, DT_F32, rows, cols);
    return load_lane_end(m, m->op->put(m->lane, m->table[which].data, from, bytes), "fill a table",
                         e);
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
table_read(struct model *m, float *to, struct tensor t, struct err *e)
{
    size_t bytes = (size_t)t.dim[0] * t.dim[1] * sizeof *to;

    check(t.dtype == DT_F32 && (t.dim[0] == 1 || t.stride == t.dim[1]));
    return load_lane_end(m, m->op->get(m->lane, to, t.data, bytes), "read a table", e);
}

void
table_drop_all(struct model *m)
{
    for (unsigned i = 0; i < MAX_TABLES; i++) {
        if (m->table_arena[i].base) m->op->arena_drop(m->gpu, &m->table_arena[i]);
        m->table[i] = NO_TENSOR;
    }
}
