/* tiny_model.c - see tiny_model.h. */
#include "tests/model/tiny_model.h"

#include "worker/model/config.h"

#include <stdio.h>

#define TOP(f) IN_TOP, offsetof(struct toy, f)
#define LAYER(f) IN_LAYER, offsetof(struct toy_layer, f)

/* clang-format off */
static const struct weight_rule weights[] = {
    { "embed.weight",       TOP(embed),   DIM_VOCAB,  DIM_HIDDEN, 0 },
    { "norm.weight",        TOP(norm),    DIM_1,      DIM_HIDDEN, W_FP32 },
    { "head.weight",        TOP(head),    DIM_VOCAB,  DIM_HIDDEN, W_TIED },
    { "extra.weight",       TOP(extra),   DIM_HIDDEN, DIM_HIDDEN, W_OPTIONAL },
    { "layers.%u.q",        LAYER(qkv),   DIM_Q,      DIM_HIDDEN, 0 },
    { "layers.%u.k",        LAYER(qkv),   DIM_KV,     DIM_HIDDEN, W_STACKED },
    { "layers.%u.v",        LAYER(qkv),   DIM_KV,     DIM_HIDDEN, W_STACKED },
    { "layers.%u.norm",     LAYER(norm),  DIM_1,      DIM_HIDDEN, W_FP32 },
    { "layers.%u.wide",     LAYER(wide),  DIM_HIDDEN, DIM_HIDDEN, W_FULL_LAYERS },
    { "layers.%u.local",    LAYER(local), DIM_HIDDEN, DIM_HIDDEN, W_WINDOW_LAYERS },
    { "layers.%u.first",    LAYER(first), DIM_1,      DIM_KV,     W_FIRST },
    { "layers.%u.gated",    LAYER(gated), DIM_OWN_0,  DIM_HIDDEN, 0 },
    { 0 },
};
/* clang-format on */

bool toy_prepared;
struct gpu *toy_gpu;

int
toy_open_gpu(void **state)
{
    struct gpu_options o = { .device = "cpu", .isa = "auto" };
    struct err e;

    (void)state;
    return gpu_open(&toy_gpu, &o, &e);
}

int
toy_close_gpu(void **state)
{
    (void)state;
    gpu_close(toy_gpu);
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *cfg, struct err *e)
{
    (void)cfg;
    TRY(cfg_u32(config, "hidden_size", CFG_REQUIRED, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "gated", 0, 0, 64, &s->dim[DIM_OWN_0], e));
    TRY(cfg_bool(config, "tie_word_embeddings", true, &s->tied, e));
    TRY(cfg_u32(config, "encoder_layers", 0, 0, 1, &s->n_encoder_layers, e));
    s->n_layers = TOY_LAYERS;
    s->vocab = TOY_VOCAB;
    s->max_len = s->max_source = 256;
    s->dim[DIM_HIDDEN] = s->hidden;
    s->dim[DIM_VOCAB] = TOY_VOCAB;
    s->dim[DIM_Q] = 2 * TOY_KV;
    s->dim[DIM_KV] = TOY_KV;
    for (uint32_t i = 0; i < TOY_LAYERS; i++)
        s->layer[i] = (struct layer_shape){ .n_heads = 2,
                                            .n_kv_heads = 1,
                                            .head_dim = TOY_KV,
                                            .kv_parts = 2,
                                            .kv_from = i,
                                            .kv = i == 1 ? KV_WINDOW : KV_FULL,
                                            .window = i == 1 ? 8 : 0 };
    return 0;
}

static int
prepare(struct model *m, struct err *e)
{
    const struct toy *t = m->top;

    toy_prepared = t->embed.data && t->norm.data;
    return toy_prepared ? 0 : err_set(e, -1, "nothing is there yet");
}

const struct arch arch_toy = {
    .name = "toy",
    .hf_types = (const char *const[]){ "toy", "toy_text", NULL },
    .cfg_bytes = 1,
    .top_bytes = sizeof(struct toy),
    .layer_bytes = sizeof(struct toy_layer),
    .weights = weights,
    .prefixes = (const char *const[]){ "", "model.", NULL },
    .configure = configure,
    .prepare = prepare,
};
const struct arch *const toy_families[] = { &arch_toy, NULL };

void
toy_config(struct ckpt *c, const char *more)
{
    char text[1024];

    snprintf(text, sizeof text, "{\"model_type\":\"toy\",\"hidden_size\":%d%s}", TOY_HIDDEN, more);
    ckpt_text(c, "config.json", text);
}

static void
add(struct ckpt *c, const char *prefix, const char *name, const char *dtype, uint32_t rows,
    uint32_t cols, const char *skip)
{
    char full[128];

    if (skip && strcmp(name, skip) == 0) return;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    ckpt_add(c, full, dtype, rows, cols);
}

void
toy_add(struct ckpt *c, const char *prefix, const char *dtype, const char *norm_dtype,
        const char *skip)
{
    char name[64];

    add(c, prefix, "embed.weight", dtype, TOY_VOCAB, TOY_HIDDEN, skip);
    add(c, prefix, "norm.weight", norm_dtype, 0, TOY_HIDDEN, skip);
    for (unsigned l = 0; l < TOY_LAYERS; l++) {
        static const struct {
            const char *name;
            uint32_t rows;
        } matrix[] = { { "q", 2 * TOY_KV }, { "k", TOY_KV }, { "v", TOY_KV } };

        for (size_t i = 0; i < ARRAY_LEN(matrix); i++) {
            snprintf(name, sizeof name, "layers.%u.%s", l, matrix[i].name);
            add(c, prefix, name, dtype, matrix[i].rows, TOY_HIDDEN, skip);
        }
        snprintf(name, sizeof name, "layers.%u.norm", l);
        add(c, prefix, name, norm_dtype, 0, TOY_HIDDEN, skip);
        snprintf(name, sizeof name, "layers.%u.%s", l, l == 1 ? "local" : "wide");
        add(c, prefix, name, dtype, TOY_HIDDEN, TOY_HIDDEN, skip);
        snprintf(name, sizeof name, "layers.%u.first", l);
        if (l == 0) add(c, prefix, name, dtype, 0, TOY_KV, skip);
    }
}
