/* weights_plan.c - makes the plan of weights_plan.h from the weight table and the checkpoint. */
#include "worker/model/weights_plan.h"

#include <stdio.h>

/* Alignments in bytes. IN_PLACE: of tensors used in the mapped file, a cache line, so that vector
 * loads at a row's start stay in one line. FIELD: of fields in the arena, for the widest load. */
enum { IN_PLACE = 64, FIELD = 128 };

static bool
is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

static uint32_t
size_in_layer(const struct layer_shape *l, enum dim d)
{
    uint32_t kv = l->n_kv_heads * l->head_dim;
    const uint32_t sizes[DIM_COUNT] = {
        [DIM_Q] = l->n_heads * l->head_dim, [DIM_KV] = kv,
        [DIM_V] = l->v_is_k ? 0 : kv,       [DIM_HEAD] = l->head_dim,
        [DIM_HEADS] = l->n_heads,           [DIM_FF] = l->n_ff,
        [DIM_EXPERTS] = l->n_experts,
    };

    return sizes[d];
}

/* Returns the whole model's shape of the layer to which line r applies; NULL: r is IN_TOP. */
static const struct layer_shape *
layer_of(const struct model *m, const struct weight_rule *r, uint32_t layer)
{
    if (r->home == IN_TOP) return NULL;
    return r->home == IN_LAYER ? &m->whole.layer[layer] : &m->whole.encoder[layer];
}

static uint32_t
size_of(const struct model *m, const struct weight_rule *r, enum dim d, uint32_t layer)
{
    const struct layer_shape *l = layer_of(m, r, layer);

    if (d == DIM_1) return 1;
    return d < DIM_Q || !l ? m->whole.dim[d] : size_in_layer(l, d);
}

/* Sets part[] to this rank's spans of a line's rows or columns, which have size d; split: ranks
 * divide them. Returns the number of spans. */
static uint32_t
spans_of(const struct model *m, const struct weight_rule *r, enum dim d, uint32_t layer, bool split,
         struct span part[DIM_PARTS])
{
    part[0] = (struct span){ 0, size_of(m, r, d, layer) };
    if (!split || m->ranks == 1) return 1;
    return sharding_parts(m, d, part[0].n, layer_of(m, r, layer), part);
}

/* True if line r applies to the layer, by its flags and sizes. */
static bool
applies(const struct model *m, const struct weight_rule *r, uint32_t layer)
{
    bool local = r->home == IN_LAYER && m->shape.layer[layer].window > 0;

    if ((r->flags & W_FIRST) && layer > 0) return false;
    if ((r->flags & W_WINDOW_LAYERS) && !local) return false;
    if ((r->flags & W_FULL_LAYERS) && local) return false;
    if ((r->flags & W_MOE_LAYERS) && m->shape.layer[layer].n_experts == 0) return false;
    if ((r->flags & W_DENSE_LAYERS) && m->shape.layer[layer].n_experts > 0) return false;
    if ((r->flags & W_STATE) && m->shape.layer[layer].mixer != MIX_STATE) return false;
    if ((r->flags & W_OWN_KV) && m->shape.layer[layer].kv_from != layer) return false;
    return size_of(m, r, r->rows, layer) > 0 && size_of(m, r, r->cols, layer) > 0;
}

/* Returns the stored tensor `name` with the first prefix of the family that exists, or NULL. */
static struct safetensors_tensor *
find(const struct model *m, const char *name)
{
    static const char *const none[] = { "", NULL };
    const char *const *prefix = m->arch->prefixes ? m->arch->prefixes : none;
    char full[2 * ST_MAX_NAME];

    for (; *prefix; prefix++) {
        struct safetensors_tensor *t;

        snprintf(full, sizeof full, "%s%s", *prefix, name);
        t = safetensors_find(m->files, full);
        if (t) return t;
    }
    return NULL;
}

/* Checks that the stored shape is as the line expects: [cols] for a vector, [rows, cols] or
 * [experts, rows, cols]; transposed: [cols, rows]. The last dimension may be stored as several. */
static int
check_shape(const struct part *p, struct err *e)
{
    const struct safetensors_tensor *t = p->stored;
    uint32_t rows = p->rows / MAX(p->experts, 1u), first = p->transposed ? p->cols : rows;
    uint32_t last = p->transposed ? rows : p->cols;
    bool vector = p->rule->rows == DIM_1 && !p->experts, good;
    char shape[128], want[64];
    uint64_t rest = 1;

    for (uint32_t i = vector ? 0 : p->experts ? 2 : 1; i < t->n_dims; i++) rest *= t->dim[i];
    if (vector) {
        good = rest == last && (t->n_dims <= 1 || t->dim[0] == 1);
        snprintf(want, sizeof want, "[%u]", last);
    } else if (p->experts) {
        good = rest == last && t->n_dims >= 3 && t->dim[0] == p->experts && t->dim[1] == first;
        snprintf(want, sizeof want, "[%u, %u, %u]", p->experts, first, last);
    } else {
        good = rest == last && t->n_dims >= (last > 1 ? 2 : 1) && t->dim[0] == first;
        snprintf(want, sizeof want, "[%u, %u]", first, last);
    }
    return good ? 0
                : err_set(e, -EINVAL, "%.60s: the shape of %.80s is %s; config.json needs %s",
                          t->file, t->name, safetensors_shape(t, shape, sizeof shape), want);
}

static bool
on_cpu(const struct model *m)
{
    return strcmp(m->op->name, "cpu") == 0;
}

/* Sets f->dtype, the dtype of a field on the device: DT_U8 if quantised, fp32 if W_FP32, else the
 * dtype option, else as stored (fp32 if the parts differ). On a GPU all matrices have the dtype of
 * the first matrix, the embedding, because activations have the same dtype (gpu.h). */
static int
field_dtype(const struct weights_plan *p, struct field *f, struct err *e)
{
    bool fp32 = false, bytes = p->part[f->first].quant;
    enum dtype t = p->from->stored;

    for (uint32_t i = 0; i < f->n_parts; i++) {
        const struct part *q = &p->part[f->first + i];

        if (q->stored && (bytes ? q->stored->dtype != DT_U8 : !is_float(q->stored->dtype)))
            return err_set(e, -ENOTSUP, "%.60s: %.80s has dtype %s, which is not implemented",
                           q->stored->file, q->stored->name, q->stored->stored);
        if (q->stored && i == 0) t = q->stored->dtype;
        if (q->stored && q->stored->dtype != t) t = DT_F32;
        fp32 |= (q->rule->flags & W_FP32) != 0;
    }
    if (bytes) {
        f->dtype = DT_U8;
        return 0;
    }
    if (p->from->src->dtype != DT_COUNT) t = p->from->src->dtype;
    if (p->n_fields == 0) p->m->dtype = t; /* the embedding is the first field */
    if (!on_cpu(p->m)) t = p->m->dtype;
    f->dtype = fp32 ? DT_F32 : t;
    return 0;
}

const void *
part_data(const struct part *q)
{
    return (const char *)q->stored->data +
           dtype_bytes(q->stored->dtype, (size_t)q->row.first * q->cols + q->col.first);
}

/* True if the device is the CPU and can use the field in the mapped file. */
static bool
fits_in_place(const struct weights_plan *p, const struct field *f)
{
    const struct part *q = &p->part[f->first];

    return f->n_parts == 1 && q->stored && q->stored->dtype == f->dtype && q->col.n == q->cols &&
           (uintptr_t)part_data(q) % IN_PLACE == 0 && !q->transposed && on_cpu(p->m);
}

/* Sets the sizes, the dtype and the place of field f, whose parts are [f->first, p->n_parts). */
static int
close_field(struct weights_plan *p, struct field *f, struct err *e)
{
    f->n_parts = p->n_parts - f->first;
    f->cols = p->part[f->first].col.n;
    for (uint32_t i = f->first; i < p->n_parts; i++) {
        check(p->part[i].col.n == f->cols); /* stacked lines have equal columns */
        f->rows += p->part[i].row.n;
    }
    TRY(field_dtype(p, f, e));
    f->in_place = fits_in_place(p, f);
    p->m->weight_bytes += dtype_bytes(f->dtype, (size_t)f->rows * f->cols);
    if (f->in_place) return 0;
    f->offset = p->arena_bytes;
    f->bytes = dtype_bytes(f->dtype, (uint64_t)f->rows * f->cols);
    p->arena_bytes += ROUND_UP(f->bytes, (uint64_t)FIELD);
    return 0;
}

/* Replaces the plan's last part by a part for each of this rank's spans of rows in every expert. */
static void
divide_part(struct weights_plan *p, uint32_t layer)
{
    const struct part whole = p->part[--p->n_parts];
    const struct weight_rule *line = whole.rule;
    uint32_t experts = MAX(whole.experts, 1u), scale = whole.quant ? whole.quant->cols_per_byte : 1;
    struct span row[DIM_PARTS], col[DIM_PARTS];
    uint32_t n = spans_of(p->m, line, line->rows, layer, line->flags & W_SPLIT_ROWS, row);

    check(spans_of(p->m, line, line->cols, layer, line->flags & W_SPLIT_COLS, col) == 1);
    if (!(line->flags & W_SPLIT_ROWS)) { /* the rows of all experts are consecutive */
        row[0].n = whole.rows;
        experts = 1;
    }
    for (uint32_t i = 0; i < experts; i++)
        for (uint32_t k = 0; k < n; k++) {
            struct part *q = &p->part[p->n_parts++];

            *q = whole;
            q->row = row[k];
            q->row.first += i * (whole.rows / experts);
            q->col = (struct span){ col[0].first / scale, col[0].n / scale };
        }
}

/* Returns the whole tensor that a line names in a layer. expert: its number, or the number of a
 * stream, if W_ONE_BY_ONE. */
static struct part
part_of(const struct weights_plan *p, const struct weight_rule *line,
        const struct quant_tensor *quant, uint32_t layer, uint32_t expert)
{
    struct part q = { .rule = line,
                      .quant = quant,
                      .transposed = !quant && line->flags & W_TRANSPOSED,
                      .rows = size_of(p->m, line, line->rows, layer),
                      .cols = size_of(p->m, line, line->cols, layer) };

    int len;

    if ((line->flags & W_EXPERTS) && !(line->flags & W_ONE_BY_ONE)) {
        q.experts = p->m->shape.layer[layer].n_experts;
        q.rows *= q.experts;
    }
    if (quant) q.cols /= quant->cols_per_byte;
    q.row.n = q.rows;
    q.col.n = q.cols;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* line->name has at most two %u */
    len = snprintf(q.name, sizeof q.name, line->name, line->home == IN_TOP ? expert : layer,
                   expert);
#pragma GCC diagnostic pop
    if (quant) snprintf(q.name + len, sizeof q.name - (size_t)len, "%s", quant->suffix);
    if (p->m->files) q.stored = find(p->m, q.name);
    return q;
}

/* Returns how many tensors of a line with W_ONE_BY_ONE a layer has. */
static uint32_t
n_one_by_one(const struct model_shape *s, const struct weight_rule *line, uint32_t layer)
{
    return line->home == IN_TOP ? s->n_streams - 1 : s->layer[layer].n_experts;
}

/* Plans the field of line r and its W_STACKED lines in one layer, if they apply. quant: the stored
 * tensor of a quantised line, or NULL. home: the family's struct of the layer. */
static int
plan_field(struct weights_plan *p, const struct weight_rule *r, const struct quant_tensor *quant,
           uint32_t layer, void *home, struct err *e)
{
    struct field f = { .to = (struct tensor *)(void *)((char *)home + r->field),
                       .first = p->n_parts };
    const struct weight_rule *line = r;
    uint32_t found = 0, expert = 0;
    const char *missing = NULL;
    bool tied;

    do {
        struct part *q = &p->part[p->n_parts];

        check(line->home == r->home && line->field == r->field);
        *q = part_of(p, line, quant, layer, expert);
        if (!applies(p->m, line, layer)) {
            if (q->stored && (line->flags & W_OWN_KV))
                q->stored->used = true; /* known, but not needed */
            expert = 0;
            continue;
        }
        if (p->m->files && !q->stored && !missing) missing = q->name;
        if (q->stored) {
            found++;
            TRY(check_shape(q, e));
        }
        p->n_parts++;
        if (p->m->ranks > 1) divide_part(p, layer);
        expert = line->flags & W_ONE_BY_ONE ? expert + 1 : 0;
        if (expert == n_one_by_one(&p->m->shape, line, layer)) expert = 0;
    } while (expert || ((++line)->name && (line->flags & W_STACKED)));

    if (p->n_parts == f.first) return 0;
    tied = (r->flags & W_TIED) && p->m->shape.tied;
    if (!p->m->files && (tied || (r->flags & W_OPTIONAL))) missing = p->part[f.first].name;
    if (missing && found == 0 && (tied || (r->flags & W_OPTIONAL))) {
        p->n_parts = f.first;
        if (tied) p->field[p->n_fields++] = f;
        return 0;
    }
    if (missing && (r->flags & W_TIED))
        return err_set(e, -ENOENT,
                       "tensor %.120s is not in the checkpoint; it is needed unless "
                       "tie_word_embeddings is true",
                       missing);
    if (missing) return err_set(e, -ENOENT, "tensor %.120s is not in the checkpoint", missing);
    for (uint32_t i = f.first; i < p->n_parts; i++)
        if (p->part[i].stored) p->part[i].stored->used = true;
    TRY(close_field(p, &f, e));
    p->field[p->n_fields++] = f;
    return 0;
}

static int
plan_home(struct weights_plan *p, enum weight_home home, uint32_t n, char *base, size_t each,
          struct err *e)
{
    const struct quant *quant = p->m->quant;

    for (uint32_t layer = 0; layer < n; layer++)
        for (const struct weight_rule *r = p->m->arch->weights; r->name; r++) {
            if (r->home != home || (r->flags & W_STACKED)) continue;
            if (!quant || !quant->covers(r)) {
                TRY(plan_field(p, r, NULL, layer, base + layer * each, e));
                continue;
            }
            for (uint32_t i = 0; i < QUANT_TENSORS; i++)
                TRY(plan_field(p, r, &quant->tensor[i], layer, base + layer * each, e));
        }
    return 0;
}

int
weights_plan_make(struct weights_plan *p, struct err *e)
{
    const struct model_shape *s = &p->m->shape;
    const struct arch *a = p->m->arch;
    size_t lines = 0, most;

    while (a->weights[lines].name) lines++;
    check(lines > 0 && a->weights[0].home == IN_TOP);
    most = lines * (1 + (size_t)s->n_layers + s->n_encoder_layers);
    for (uint32_t i = 0; i < s->n_layers; i++) /* one part for each expert */
        for (size_t k = 0; k < lines; k++)
            if (a->weights[k].flags & W_EXPERTS) most += s->layer[i].n_experts;
    most += lines * s->n_streams;
    if (p->m->quant) most *= QUANT_TENSORS;
    if (p->m->ranks > 1) most *= DIM_PARTS;
    p->part = calloc(most, sizeof *p->part);
    p->field = calloc(most, sizeof *p->field);
    if (!p->part || !p->field) return err_set(e, -ENOMEM, "no memory to list %zu tensors", most);
    TRY(plan_home(p, IN_TOP, 1, p->m->top, a->top_bytes, e));
    TRY(plan_home(p, IN_ENCODER, s->n_encoder_layers, p->m->encoder, a->encoder_bytes, e));
    TRY(plan_home(p, IN_LAYER, s->n_layers, p->m->layer, a->layer_bytes, e));
    p->m->act = gpu_act_dtype(p->m->gpu, p->m->dtype);
    if (a->exceeds_fp16 && (p->m->act == DT_F16 || p->from->src->dtype == DT_F16))
        return err_set(
            e, -ENOTSUP,
            "fp16: activations of %s exceed the largest number of fp16, 65504; set dtype "
            "to bf16 or fp32",
            a->name);
    if (p->arena_bytes == 0) return 0;
    p->weights_checksum_at = p->arena_bytes;
    p->arena_bytes += ROUND_UP(weights_checksum_bytes(p->n_fields), (uint64_t)FIELD);
    return 0;
}

void
weights_plan_done(struct weights_plan *p)
{
    free(p->part);
    free(p->field);
}
