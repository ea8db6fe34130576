/* tune.c - measures the matmuls of the model on the device, in scratch memory, while no step is in
 * flight.
 *
 * A pair is a matmul shape of the model and a number of rows; there is one for each bucket of rows
 * for which the device stores an algorithm. The list of pairs is short and is computed at each
 * call.
 */
#include "worker/exec/exec_internal.h"

/* MOST: largest number of rows; a shape runs hundreds of times, which the supervisor must not take
 * for a hang. LEAST: 16-bit matmuls of up to LEAST rows use our own kernel and are not measured. */
enum { LEAST = 16, MOST = 2048, MOST_FP32 = 256 };

static uint32_t
bucket_after(uint32_t b)
{
    return b & (b - 1) ? b / 3 * 4 : b + b / 2;
}

/* Finds pair i; false: there are only *n pairs. */
static bool
find(const struct exec *x, uint32_t i, struct matmul *ret, uint32_t *rows, uint32_t *n)
{
    struct matmul list[MAX_MATMULS];
    uint32_t n_shapes = model_matmuls(x->m, list);
    bool fp32 = x->m->act == DT_F32;

    *n = 0;
    for (uint32_t j = 0; j < n_shapes; j++) {
        uint32_t most = MIN(list[j].head ? x->piece : x->scratch_rows,
                            (uint32_t)(fp32 ? MOST_FP32 : MOST));
        uint32_t b = fp32 ? LEAST : bucket_after(LEAST), last;

        if (!fp32 && most <= LEAST) continue;
        do {
            last = b;
            *ret = list[j];
            *rows = MIN(b, most);
            if ((*n)++ == i) return true;
            b = bucket_after(b);
        } while (last < most);
    }
    return false;
}

uint32_t
exec_n_matmuls(const struct exec *x)
{
    struct matmul m;
    uint32_t rows, n;

    find(x, UINT32_MAX, &m, &rows, &n);
    return n;
}

/* Returns the narrowest scratch tensor with at least cols columns, except `but`; NULL: none. */
static const struct tensor *
scratch_for(const struct exec_lane *l, uint32_t cols, const struct tensor *but)
{
    const struct tensor *best = NULL;

    for (unsigned i = 0; i < ARRAY_LEN(l->scratch); i++) {
        const struct tensor *t = &l->scratch[i];

        if (t == but || !t->data || t->dim[1] < cols) continue;
        if (!best || t->dim[1] < best->dim[1]) best = t;
    }
    return best;
}

bool
matmul_scratch(const struct exec_lane *l, const struct matmul *m, uint32_t rows,
               struct tensor *from, struct tensor *to)
{
    const struct tensor *in = m->head ? &l->picked : scratch_for(l, m->w.dim[1], NULL), *out;

    out = m->head ? &l->logits : in ? scratch_for(l, m->w.dim[0], in) : NULL;
    if (!out) return false;
    *from = tensor_cols(tensor_rows(*in, 0, rows), 0, m->w.dim[1]);
    *to = tensor_cols(tensor_rows(*out, 0, rows), 0, m->w.dim[0]);
    return true;
}

int
exec_matmul(struct exec *x, uint32_t i, struct err *e)
{
    struct exec_lane *l = &x->lane[0];
    struct matmul m;
    struct tensor to, from;
    uint32_t rows, n;
    int r;

    check(l->started == l->finished);
    if (!find(x, i, &m, &rows, &n))
        return err_set(e, -EINVAL,
                       "there is no matmul %u: the model has %u matmuls (internal error)", i, n);
    if (!matmul_scratch(l, &m, rows, &from, &to))
        return err_set(e, -ENOTSUP,
                       "cannot measure matmul [%u, %u]: no scratch buffer has rows that long",
                       m.w.dim[0], m.w.dim[1]);
    r = x->op->mem.fill_random(l->lane, from, /* seed= */ i, 0, 0, 1);
    if (r == 0) r = x->op->matmul(l->lane, to, from, m.w, NO_TENSOR, 0);
    return r < 0 ? err_set(e, r, "%s", gpu_why(x->gpu)) : 0;
}

int
exec_tune(struct exec *x, struct tune_result *ret)
{
    int r = 0;

    for (unsigned i = 0; i < x->c.n_lanes && r == 0; i++) {
        r = x->op->lane.tune(x->lane[i].lane, ret);
        /* captured graphs contain the old algorithm */
        if (r > 0 && ret->best < ret->first) drop_graphs(x, &x->lane[i], GRAPHS_ALL);
    }
    return r;
}

const char *
exec_why(const struct exec *x)
{
    return gpu_why(x->gpu);
}
