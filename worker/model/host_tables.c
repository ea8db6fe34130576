/* host_tables.c - implements host_tables.h: tables that the host computes and ops read. */
#include "worker/model/host_tables.h"

#include "worker/model/weights.h"

#include <pthread.h>

int
host_tables_make(struct model *m, uint32_t which, uint32_t rows, uint32_t cols, const float *from,
                 struct err *e)
{
    size_t bytes = (size_t)rows * cols * sizeof *from;

    check(which < MAX_TABLES && !m->table[which].data);
    TRY(m->op->mem.arena_make(m->gpu, "table", bytes, &m->table_arena[which], e));
    m->table[which] = tensor_2d(m->table_arena[which].base, DT_F32, rows, cols);
    return load_lane_end(m, m->op->mem.put(m->lane, m->table[which].data, from, bytes),
                         "fill a table", e);
}

struct host_table_work {
    pthread_t thread;
    bool apart;
    struct rope_params params;
    uint32_t head_dim, rows, cols;
    float *table;
};

static void *
work(void *arg)
{
    struct host_table_work *w = arg;

    rope_table(&w->params, w->head_dim, w->rows, w->table);
    return NULL;
}

static void
wait_for(struct host_table_work *w)
{
    if (w->apart) pthread_join(w->thread, NULL);
    w->apart = false;
}

static void
drop_work(struct model *m, uint32_t which)
{
    struct host_table_work *w = m->work[which];

    if (!w) return;
    wait_for(w);
    free(w->table);
    free(w);
    m->work[which] = NULL;
}

int
host_tables_rope(struct model *m, uint32_t which, const struct rope_params *p, uint32_t head_dim,
                 struct err *e)
{
    uint32_t rows = m->shape.max_len, cols = rope_dim(p, head_dim);
    struct host_table_work *w;

    check(which < MAX_TABLES && !m->work[which]);
    if (p->type == ROPE_LONGROPE && p->n_divisors != cols / 2)
        return err_set(e, -EINVAL,
                       "short_factor and long_factor have %u entries; heads of %u dims need %u",
                       p->n_divisors, head_dim, cols / 2);
    m->work[which] = w = calloc(1, sizeof *w);
    if (w) w->table = malloc((size_t)rows * cols * sizeof *w->table);
    if (!w || !w->table)
        return err_set(e, -ENOMEM, "no host memory for a rotary table of %u x %u", rows, cols);
    w->params = *p;
    w->head_dim = head_dim;
    w->rows = rows;
    w->cols = cols;
    w->apart = pthread_create(&w->thread, NULL, work, w) == 0;
    if (!w->apart) work(w);
    return 0;
}

int
host_tables_put(struct model *m, struct err *e)
{
    for (uint32_t i = 0; i < MAX_TABLES; i++) {
        struct host_table_work *w = m->work[i];

        if (!w) continue;
        wait_for(w);
        TRY(host_tables_make(m, i, w->rows, w->cols, w->table, e));
        drop_work(m, i);
    }
    return 0;
}

int
host_tables_read(struct model *m, float *to, struct tensor t, struct err *e)
{
    size_t bytes = (size_t)t.dim[0] * t.dim[1] * sizeof *to;

    check(t.dtype == DT_F32 && (t.dim[0] == 1 || t.stride == t.dim[1]));
    return load_lane_end(m, m->op->mem.get(m->lane, to, t.data, bytes), "read a table", e);
}

void
host_tables_drop(struct model *m)
{
    for (unsigned i = 0; i < MAX_TABLES; i++) {
        drop_work(m, i);
        if (m->table_arena[i].base) m->op->mem.arena_drop(m->gpu, &m->table_arena[i]);
        m->table[i] = NO_TENSOR;
    }
}
