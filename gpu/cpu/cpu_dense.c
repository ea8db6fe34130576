/* cpu_dense.c - the ops embed and matmul (gpu.h).
 *
 * For fewer than FEW_ROWS rows of x, matmul reads each weight row once, because memory bandwidth
 * limits it. For more rows it converts a panel (PANEL weight rows) to fp32 in the scratch of the
 * thread and multiplies all rows of x with it, two rows of x with three weight rows at a time
 * (cpu_dot.h). A part of the job is a range of weight rows.
 */
#include "gpu/cpu/cpu_dot.h"
#include "gpu/cpu/cpu_ops.h"

enum {
    FEW_ROWS = 4, /* for fewer rows of x, converting a panel costs more than it saves */
    PANEL = 24,   /* weight rows of a panel; with K = 4,096 in fp32 they take 384 KiB of L2 */
    WORK_PART = 64 << 10, /* multiply-adds that are worth another thread */
};

struct embed_args {
    struct tensor x, table;
    const int32_t *token;
    float scale;
};

CPU_LOOP(embed)
{
    const struct embed_args *a = args;
    uint32_t n = a->x.dim[1];
    v8 scale = v8_set(a->scale);

    for (CPU_SHARE(i, a->x.dim[0])) {
        float *x = row_of(&a->x, i);
        int32_t token = a->token[i];

        if (token < 0) { /* a padding row without a token */
            memset(x, 0, n * sizeof *x);
            continue;
        }
        const void *row = row_of(&a->table, token < (int32_t)a->table.dim[0] ? (uint32_t)token : 0);
        V8_ROW(n, at, width,
               v8_put(x, at, width, v8_mul(v8_at_as(a->table.dtype, row, at, width), scale)));
    }
}

struct matmul_args {
    struct tensor y, x, w, bias;
    float beta;
};

/* Stores sum + bias + beta y in y, for few and for many rows, so that both round alike. */
ALWAYS void
finish(const struct matmul_args *a, uint32_t row, uint32_t col, float sum)
{
    float *y = (float *)row_of(&a->y, row) + col;

    if (a->bias.data) {
        const float *wide = a->bias.data;
        const uint16_t *half = a->bias.data;

        sum += a->bias.dtype == DT_F32    ? wide[col]
               : a->bias.dtype == DT_BF16 ? float_of_bf16(half[col])
                                          : float_of_f16(half[col]);
    }
    *y = a->beta == 0 ? sum : fma_1(a->beta, *y, sum);
}

ALWAYS void
few_rows(const struct matmul_args *a, enum dtype t, uint32_t first, uint32_t end)
{
    uint32_t k = a->x.dim[1], n = a->x.dim[0], col = first;

    for (; col + 4 <= end; col += 4) {
        const void *w[4] = { row_of(&a->w, col), row_of(&a->w, col + 1), row_of(&a->w, col + 2),
                             row_of(&a->w, col + 3) };

        for (uint32_t i = 0; i < n; i++) {
            float sum[4];

            dot_1x4(t, row_of(&a->x, i), w, k, sum);
            for (uint32_t j = 0; j < 4; j++) finish(a, i, col + j, sum[j]);
        }
    }
    for (; col < end; col++)
        for (uint32_t i = 0; i < n; i++)
            finish(a, i, col, dot_1x1(t, row_of(&a->x, i), row_of(&a->w, col), k));
}

/* Multiplies all rows of x with weight rows [first, first + n), given in fp32 as w. */
static void
panel(const struct matmul_args *a, const float *const *w, uint32_t first, uint32_t n)
{
    uint32_t k = a->x.dim[1], rows = a->x.dim[0], i = 0, j;

    for (; i + 2 <= rows; i += 2) {
        const float *x[2] = { row_of(&a->x, i), row_of(&a->x, i + 1) };

        for (j = 0; j + 3 <= n; j += 3) {
            const void *three[3] = { w[j], w[j + 1], w[j + 2] };
            float sum[6];

            dot_2x3(x, three, k, sum);
            for (uint32_t s = 0; s < 6; s++) finish(a, i + s / 3, first + j + s % 3, sum[s]);
        }
        for (; j < n; j++) {
            finish(a, i, first + j, dot_1x1(DT_F32, x[0], w[j], k));
            finish(a, i + 1, first + j, dot_1x1(DT_F32, x[1], w[j], k));
        }
    }
    for (j = 0; i < rows && j < n; j++)
        finish(a, i, first + j, dot_1x1(DT_F32, row_of(&a->x, i), w[j], k));
}

static void
many_rows(const struct matmul_args *a, uint32_t first, uint32_t end, float *scratch)
{
    uint32_t k = a->x.dim[1], pitch = ROUND_UP(k, 16u);
    uint32_t fits = (uint32_t)(CPU_SCRATCH / sizeof *scratch) / MAX(pitch, 1u);
    uint32_t size = MIN(MAX(fits, 1u), (uint32_t)PANEL);
    const float *w[PANEL];

    for (uint32_t col = first; col < end; col += size) {
        uint32_t n = MIN(size, end - col);

        for (uint32_t j = 0; j < n; j++) {
            const void *row = row_of(&a->w, col + j);
            float *to = scratch + (size_t)j * pitch;

            w[j] = a->w.dtype == DT_F32 ? row : to;
            if (a->w.dtype == DT_F32) continue;
            V8_ROW(k, at, width, v8_put(to, at, width, v8_at_as(a->w.dtype, row, at, width)));
        }
        panel(a, w, col, n);
    }
}

CPU_LOOP(matmul)
{
    const struct matmul_args *a = args;
    bool too_long = a->w.dtype != DT_F32 && a->x.dim[1] > CPU_SCRATCH / sizeof(float);
    uint32_t first = cpu_first(a->w.dim[0], part, parts);
    uint32_t end = cpu_first(a->w.dim[0], part + 1, parts);

    if (a->x.dim[0] >= FEW_ROWS && !too_long)
        many_rows(a, first, end, scratch);
    else if (a->w.dtype == DT_F32)
        few_rows(a, DT_F32, first, end);
    else if (a->w.dtype == DT_BF16)
        few_rows(a, DT_BF16, first, end);
    else
        few_rows(a, DT_F16, first, end);
}

#ifdef CPU_OPS

int
cpu_embed(struct lane *l, struct tensor x, struct tensor table, const int32_t *token, float scale)
{
    struct embed_args a = { x, table, token, scale };

    return cpu_queue(l, run_embed, &a, sizeof a, cpu_row_parts(x, WORK_PART));
}

int
cpu_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w, struct tensor bias,
           float beta)
{
    struct matmul_args a = { y, x, w, bias, beta };
    uint64_t work = (uint64_t)x.dim[0] * w.dim[0] * w.dim[1];

    return cpu_queue(l, run_matmul, &a, sizeof a, cpu_parts(w.dim[0], work, WORK_PART));
}

#endif
