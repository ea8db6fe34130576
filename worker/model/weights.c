/* weights.c - see weights.h. In order: conversion, the plan, filling it, handing it to the model. */
#include "worker/model/weights.h"

#include "gpu/fp.h"
#include "worker/model/fingerprint.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* PIECE: what is moved before progress is told and the next is asked of the disk. IN_PLACE: a cache line,
 * so that no vector load of a row's start crosses two. FIELD: the same for any device's widest load. */
enum { PIECE = 16 << 20, IN_PLACE = 64, FIELD = 128 };
#define RANDOM_STD 0.02f

/* One tensor of the checkpoint. */
struct part {
    const struct weight_rule *rule;
    struct st_tensor *stored; /* NULL: random */
    char name[ST_MAX_NAME];   /* without a prefix */
    uint32_t rows, cols;
};

/* One struct tensor of the family: parts stacked, or another field. */
struct field {
    struct tensor *to;
    uint32_t first, n_parts; /* 0: the embedding itself */
    uint32_t rows, cols;
    enum dtype dtype;
    bool in_place;
    uint64_t offset; /* in the arena */
};

struct plan {
    struct model *m;
    const struct weights_from *from;
    struct part *part;
    struct field *field;
    uint32_t n_parts, n_fields;
    uint64_t arena_bytes;
};

/* Elements to floats. By memcpy: a shard's data may begin at any byte. */
static void
widen(float *to, const char *from, enum dtype t, size_t n)
{
    uint16_t half;

    if (t == DT_F32) {
        memcpy(to, from, n * sizeof *to);
    } else if (t == DT_BF16) {
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = float_of_bf16(half);
        }
    } else
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = float_of_f16(half);
        }
}

/* Floats to elements; false: a finite one is beyond fp16. */
static bool
narrow(void *to, const float *from, enum dtype t, size_t n)
{
    bool fits = true;

    if (t == DT_F32) {
        memcpy(to, from, n * sizeof *from);
    } else if (t == DT_BF16) {
        for (size_t i = 0; i < n; i++) ((uint16_t *)to)[i] = bf16_of_float(from[i]);
    } else
        for (size_t i = 0; i < n; i++) {
            ((uint16_t *)to)[i] = f16_of_float(from[i]);
            /* 65520 is half way between fp16's largest and what would come next. */
            if (!isinf(from[i]) && fabsf(from[i]) >= 65520) fits = false;
        }
    return fits;
}

int
weights_convert(void *to, enum dtype to_type, const void *from, enum dtype from_type, size_t n)
{
    size_t in = dtype_bytes(from_type, 1), out = dtype_bytes(to_type, 1);
    float some[1024]; /* stays in the first cache */
    bool fits = true;

    if (to_type == from_type) {
        memcpy(to, from, n * out);
        return 0;
    }
    for (size_t i = 0; i < n; i += ARRAY_LEN(some)) {
        size_t k = MIN(n - i, ARRAY_LEN(some));

        widen(some, (const char *)from + i * in, from_type, k);
        if (!narrow((char *)to + i * out, some, to_type, k)) fits = false;
    }
    return fits ? 0 : -ERANGE;
}

static bool
is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_BF16 || t == DT_F16;
}

static uint32_t
size_of(const struct model *m, enum dim d)
{
    return d == DIM_1 ? 1 : m->shape.dim[d];
}

/* Whether this line stands for a tensor in this layer at all. */
static bool
applies(const struct model *m, const struct weight_rule *r, uint32_t layer)
{
    bool local = r->home == IN_LAYER && m->shape.layer[layer].window > 0;

    if ((r->flags & W_FIRST) && layer > 0) return false;
    if ((r->flags & W_LOCAL) && !local) return false;
    if ((r->flags & W_GLOBAL) && local) return false;
    return size_of(m, r->rows) > 0 && size_of(m, r->cols) > 0;
}

/* The tensor under the first prefix that has it, or NULL. */
static struct st_tensor *
find(const struct model *m, const char *name)
{
    static const char *const none[] = { "", NULL };
    const char *const *prefix = m->arch->prefixes ? m->arch->prefixes : none;
    char full[2 * ST_MAX_NAME];

    for (; *prefix; prefix++) {
        struct st_tensor *t;

        snprintf(full, sizeof full, "%s%s", *prefix, name);
        t = safetensors_find(m->files, full);
        if (t) return t;
    }
    return NULL;
}

static int
check_shape(const struct part *p, struct err *e)
{
    const struct st_tensor *t = p->stored;
    uint64_t rest = 1;
    bool vector = p->rule->rows == DIM_1, good;
    char shape[128];

    for (uint32_t i = vector ? 0 : 1; i < t->n_dims; i++) rest *= t->dim[i];
    good = rest == p->cols && (vector || (t->n_dims >= 2 && t->dim[0] == p->rows));
    if (vector && t->n_dims > 1 && t->dim[0] != 1) good = false;
    if (good) return 0;
    st_shape(t, shape, sizeof shape);
    if (vector)
        return err_set(e, -EINVAL, "%.60s: %.80s is %s, config.json says [%u]", t->file, t->name,
                       shape, p->cols);
    return err_set(e, -EINVAL, "%.60s: %.80s is %s, config.json says [%u, %u]", t->file, t->name,
                   shape, p->rows, p->cols);
}

static bool
on_cpu(const struct model *m)
{
    return strcmp(m->op->name, "cpu") == 0;
}

/* What a field is kept as: fp32 where its lines say so, else what was asked for, else as stored; parts
 * stored differently meet in fp32. A GPU's matrices all have the first one's dtype, because that is what
 * activations have (gpu.h). */
static int
field_dtype(const struct plan *p, struct field *f, struct err *e)
{
    bool fp32 = false;
    enum dtype t = p->from->stored;

    for (uint32_t i = 0; i < f->n_parts; i++) {
        const struct part *q = &p->part[f->first + i];

        if (q->stored && !is_float(q->stored->dtype))
            return err_set(e, -ENOTSUP, "%.60s: %.80s is stored as %s, which is not implemented",
                           q->stored->file, q->stored->name, q->stored->stored);
        if (q->stored && i == 0) t = q->stored->dtype;
        if (q->stored && q->stored->dtype != t) t = DT_F32;
        fp32 |= (q->rule->flags & W_FP32) != 0;
    }
    if (p->from->src->dtype != DT_COUNT) t = p->from->src->dtype;
    if (p->n_fields == 0) p->m->dtype = t; /* the embedding's */
    if (!on_cpu(p->m)) t = p->m->dtype;
    f->dtype = fp32 ? DT_F32 : t;
    return 0;
}

/* The CPU reads the mapped file as its own memory. */
static bool
lies_well(const struct plan *p, const struct field *f)
{
    const struct st_tensor *t = p->part[f->first].stored;

    return f->n_parts == 1 && t && t->dtype == f->dtype && (uintptr_t)t->data % IN_PLACE == 0 &&
           on_cpu(p->m);
}

/* Sizes and place of the field whose parts are [f->first, p->n_parts). */
static int
close_field(struct plan *p, struct field *f, struct err *e)
{
    f->n_parts = p->n_parts - f->first;
    f->cols = p->part[f->first].cols;
    for (uint32_t i = f->first; i < p->n_parts; i++) {
        check(p->part[i].cols == f->cols); /* stacked lines agree in the table */
        f->rows += p->part[i].rows;
    }
    TRY(field_dtype(p, f, e));
    f->in_place = lies_well(p, f);
    p->m->weight_bytes += dtype_bytes(f->dtype, (size_t)f->rows * f->cols);
    if (f->in_place) return 0;
    f->offset = p->arena_bytes;
    p->arena_bytes += ROUND_UP(dtype_bytes(f->dtype, (uint64_t)f->rows * f->cols), FIELD);
    return 0;
}

/* One line and those stacked under it, in one layer: a field, or none. */
static int
plan_field(struct plan *p, const struct weight_rule *r, uint32_t layer, void *home, struct err *e)
{
    struct field f = { .to = (struct tensor *)(void *)((char *)home + r->field),
                       .first = p->n_parts };
    const struct weight_rule *line = r;
    uint32_t found = 0;
    const char *missing = NULL;

    do {
        struct part *q = &p->part[p->n_parts];

        check(line->home == r->home && line->field == r->field);
        if (!applies(p->m, line, layer)) continue;
        *q = (struct part){ .rule = line,
                            .rows = size_of(p->m, line->rows),
                            .cols = size_of(p->m, line->cols) };
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored \
    "-Wformat-nonliteral" /* the table's own names, with at most one %u */
        snprintf(q->name, sizeof q->name, line->name, layer);
#pragma GCC diagnostic pop
        if (p->m->files) q->stored = find(p->m, q->name);
        if (p->m->files && !q->stored && !missing) missing = q->name;
        if (q->stored) {
            found++;
            TRY(check_shape(q, e));
        }
        p->n_parts++;
    } while ((++line)->name && (line->flags & W_BELOW));

    if (p->n_parts == f.first) return 0;
    if (!p->m->files && (r->flags & (W_OPTIONAL | W_TIED))) {
        if ((r->flags & W_OPTIONAL) || p->from->tied) missing = p->part[f.first].name;
    }
    if (missing && found == 0 && (r->flags & (W_TIED | W_OPTIONAL))) {
        p->n_parts = f.first;
        if (r->flags & W_TIED) p->field[p->n_fields++] = f;
        return 0;
    }
    if (missing) return err_set(e, -ENOENT, "%.120s is not in the checkpoint", missing);
    for (uint32_t i = f.first; i < p->n_parts; i++)
        if (p->part[i].stored) p->part[i].stored->used = true;
    TRY(close_field(p, &f, e));
    p->field[p->n_fields++] = f;
    return 0;
}

static int
plan_home(struct plan *p, enum weight_home home, uint32_t n, char *base, size_t each, struct err *e)
{
    for (uint32_t layer = 0; layer < n; layer++)
        for (const struct weight_rule *r = p->m->arch->weights; r->name; r++)
            if (r->home == home && !(r->flags & W_BELOW))
                TRY(plan_field(p, r, layer, base + layer * each, e));
    return 0;
}

static int
plan_make(struct plan *p, struct err *e)
{
    const struct model_shape *s = &p->m->shape;
    const struct arch *a = p->m->arch;
    size_t lines = 0, most;

    while (a->weights[lines].name) lines++;
    check(lines > 0 && a->weights[0].home == IN_TOP);
    most = lines * (1 + (size_t)s->n_layers + s->n_encoder_layers);
    p->part = calloc(most, sizeof *p->part);
    p->field = calloc(most, sizeof *p->field);
    if (!p->part || !p->field) return err_set(e, -ENOMEM, "no memory to plan %zu tensors", most);
    TRY(plan_home(p, IN_TOP, 1, p->m->top, a->top_bytes, e));
    TRY(plan_home(p, IN_ENCODER, s->n_encoder_layers, p->m->encoder, a->encoder_bytes, e));
    return plan_home(p, IN_LAYER, s->n_layers, p->m->layer, a->layer_bytes, e);
}

/* Filling: one lane, one piece at a time. */
struct filling {
    const struct plan *plan;
    struct lane *lane;
    void *room; /* PIECE bytes: converted, on their way */
    uint64_t step, done, told;
};

static int
settle(struct filling *w, struct err *e)
{
    const struct gpu_ops *op = w->plan->m->op;
    int fd = op->lane_fd(w->lane), code = op->lane_mark(w->lane, ++w->step);
    struct timespec nap = { .tv_nsec = 50000 }; /* a PIECE takes ms */
    uint64_t marks;

    while (code == 0 && op->lane_done(w->lane) < w->step) {
        struct pollfd p = { .fd = fd, .events = POLLIN };

        if (fd < 0) {
            nanosleep(&nap, NULL);
        } else if (poll(&p, 1, 1000) > 0 && read(fd, &marks, sizeof marks) < 0 && errno != EAGAIN &&
                   errno != EINTR) {
            code = -errno;
        }
        if (code == 0) code = op->lane_error(w->lane);
    }
    if (code == 0) code = op->lane_error(w->lane);
    return code < 0 ? err_set(e, code, "fill weights: %s", gpu_why(w->plan->m->gpu)) : 0;
}

static void
tell(struct filling *w, uint64_t bytes)
{
    const struct model_source *src = w->plan->from->src;
    uint64_t total = w->plan->arena_bytes;

    w->done = MIN(w->done + bytes, total);
    if (!src->progress || w->done == w->told) return;
    if (w->done - w->told < PIECE && w->done < total) return;
    w->told = w->done;
    src->progress(src->arg, w->done, total);
}

/* Elements [0, n) of a stored tensor to `to`, piece by piece. */
static int
copy_part(struct filling *w, char *to, enum dtype dtype, const struct st_tensor *t, size_t n,
          struct err *e)
{
    size_t out = dtype_bytes(dtype, 1), in = dtype_bytes(t->dtype, 1), each = PIECE / 4;
    const struct gpu_ops *op = w->plan->m->op;
    long page = sysconf(_SC_PAGESIZE);

    for (size_t at = 0; at < n; at += each) {
        const char *from = (const char *)t->data + at * in;
        size_t some = MIN(each, n - at);
        uintptr_t first = (uintptr_t)from / (uintptr_t)page * (uintptr_t)page;
        int code = 0;

        /* The disk reads the piece ahead in one go instead of a fault at a time. */
        madvise((void *)first, (uintptr_t)from + some * in - first, MADV_WILLNEED);
        if (t->dtype != dtype) {
            code = weights_convert(w->room, dtype, from, t->dtype, some);
            from = w->room;
        }
        if (code == -ERANGE)
            return err_set(e, code,
                           "%.60s: %.80s has values beyond fp16's range; use dtype=bf16 or fp32",
                           t->file, t->name);
        code = op->put(w->lane, to + at * out, from, some * out);
        if (code < 0) return err_set(e, code, "fill weights: %s", gpu_why(w->plan->m->gpu));
        TRY(settle(w, e));
        tell(w, some * out);
    }
    return 0;
}

static int
fill_part(struct filling *w, const struct field *f, const struct part *q, char *to, struct err *e)
{
    size_t n = (size_t)q->rows * q->cols;
    uint64_t seed = w->plan->from->src->seed;
    int code;

    if (q->stored) return copy_part(w, to, f->dtype, q->stored, n, e);
    code = w->plan->m->op->fill_random(w->lane, tensor_2d(to, f->dtype, q->rows, q->cols),
                                       XXH3_64bits_withSeed(q->name, strlen(q->name), seed),
                                       RANDOM_STD);
    if (code < 0) return err_set(e, code, "%s: %s", q->name, gpu_why(w->plan->m->gpu));
    TRY(settle(w, e));
    tell(w, dtype_bytes(f->dtype, n));
    return 0;
}

static int
fill_all(struct filling *w, struct err *e)
{
    const struct plan *p = w->plan;

    for (uint32_t i = 0; i < p->n_fields; i++) {
        const struct field *f = &p->field[i];
        char *to = (char *)p->m->weights.base + f->offset;
        uint64_t bytes = dtype_bytes(f->dtype, (uint64_t)f->rows * f->cols);

        if (f->in_place || f->n_parts == 0) continue;
        for (uint32_t j = 0; j < f->n_parts; j++) {
            const struct part *q = &p->part[f->first + j];

            TRY(fill_part(w, f, q, to, e));
            to += dtype_bytes(f->dtype, (size_t)q->rows * q->cols);
        }
        tell(w, ROUND_UP(bytes, FIELD) - bytes);
    }
    return 0;
}

static int
fill(const struct plan *p, struct err *e)
{
    struct model *m = p->m;
    struct filling w = { .plan = p };
    int code;

    TRY(m->op->arena_make(m->gpu, "weights", p->arena_bytes, &m->weights, e));
    w.room = malloc(PIECE);
    if (!w.room) return err_set(e, -ENOMEM, "no memory to convert weights in");
    code = m->op->lane_open(m->gpu, gpu_units(m->gpu), &w.lane, e);
    if (code == 0) {
        code = fill_all(&w, e);
        m->op->lane_close(w.lane);
    }
    free(w.room);
    return code;
}

/* Take over a predecessor's arena when it is certain to hold what we would write. */
static bool
adopt(const struct plan *p)
{
    const struct model_source *src = p->from->src;
    struct model *m = p->m;

    if (*p->from->fd < 0 || src->weights_bytes != p->arena_bytes ||
        memcmp(src->weights_fingerprint, m->fingerprint, sizeof m->fingerprint) != 0)
        return false;
    if (m->op->arena_adopt(m->gpu, *p->from->fd, p->arena_bytes, &m->weights, NULL) < 0)
        return false;
    *p->from->fd = -1;
    return true;
}

static void
hand_out(const struct plan *p)
{
    for (uint32_t i = 0; i < p->n_fields; i++) {
        const struct field *f = &p->field[i];
        void *data = f->in_place ? (void *)(uintptr_t)p->part[f->first].stored->data
                                 : (char *)p->m->weights.base + f->offset;

        /* The embedding is the first field: it is there when those tied to it come. */
        *f->to = f->n_parts ? tensor_2d(data, f->dtype, f->rows, f->cols) : *p->field[0].to;
    }
}

/* Known to be of no use to a text model's forward(). */
static bool
expected_unused(const char *name)
{
    static const char *const pattern[] = {
        "*rotary_emb.inv_freq",
        "*.masked_bias",
        "vision_tower.*",
        "model.vision_tower.*",
        "audio_tower.*",
        "model.audio_tower.*",
        "embed_vision.*",
        "model.embed_vision.*",
        "embed_audio.*",
        "model.embed_audio.*",
        "multi_modal_projector.*",
        "model.multi_modal_projector.*",
        "mtp.*",
        "*encoder.embed_tokens.weight", /* copies of the shared embedding */
        "*decoder.embed_tokens.weight",
        "lm_head.weight", /* a copy, where the family ties its head */
        "language_model.lm_head.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        "*encoder.version",
        "*decoder.version",
    };

    for (size_t i = 0; i < ARRAY_LEN(pattern); i++)
        if (fnmatch(pattern[i], name, 0) == 0) return true;
    return false;
}

static int
list_unused(struct model *m, struct err *e)
{
    uint32_t n = m->files ? safetensors_n(m->files) : 0;

    m->unused = calloc(n + 1, sizeof *m->unused);
    if (!m->unused) return err_set(e, -ENOMEM, "no memory to list tensors");
    for (uint32_t i = 0; i < n; i++) {
        const struct st_tensor *t = safetensors_at(m->files, i);

        if (!t->used && !expected_unused(t->name)) m->unused[m->n_unused++] = t->name;
    }
    return 0;
}

static int
plan_run(struct plan *p, struct err *e)
{
    TRY(plan_make(p, e));
    p->m->act = gpu_act_dtype(p->m->gpu, p->m->dtype);
    TRY(list_unused(p->m, e));
    TRY(fingerprint_make(p->m, p->from, e));
    if (p->arena_bytes) {
        p->m->adopted = adopt(p);
        if (!p->m->adopted) TRY(fill(p, e));
    }
    hand_out(p);
    return 0;
}

int
weights_load(struct model *m, const struct weights_from *from, struct err *e)
{
    struct plan p = { .m = m, .from = from };
    int code = plan_run(&p, e);

    free(p.part);
    free(p.field);
    return code;
}
