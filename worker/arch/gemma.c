/* gemma.c - implements gemma.h: shared KV, per-layer inputs, attention of Gemma models. */
#include "worker/arch/gemma.h"

#include <math.h>

const char *const gemma_prefixes[] = { "model.", "model.language_model.", "language_model.model.",
                                       NULL };

int
gemma_ropes(const json_t *config, unsigned types, struct causal_cfg *cfg, struct err *e)
{
    cfg->n_ropes = 2;
    TRY(cfg_rope_only(config, "full_attention", 1e6, types, &cfg->rope[CAUSAL_FULL], e));
    return cfg_rope_only(config, "sliding_attention", 1e4, types, &cfg->rope[CAUSAL_WINDOW], e);
}

static bool
same_kv_size(const struct layer_shape *a, const struct layer_shape *b)
{
    return a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim;
}

int
gemma_share_kv(const json_t *config, uint32_t otherwise, struct model_shape *s, struct err *e)
{
    uint32_t n, own;

    TRY(cfg_u32(config, "num_kv_shared_layers", otherwise, 0, s->n_layers - 1, &n, e));
    own = s->n_layers - n;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        struct layer_shape *l = &s->layer[i];
        uint32_t from = own;

        l->kv_from = (uint16_t)i;
        if (i < own) continue;
        while (from > 0 && s->layer[from - 1].window != l->window) from--;
        if (from == 0 || !same_kv_size(l, &s->layer[from - 1]))
            return err_set(
                e, -EINVAL,
                "num_kv_shared_layers is %u, but no earlier layer has the KV that layer %u reads",
                n, i);
        l->kv_from = (uint16_t)(from - 1);
    }
    return 0;
}

int
gemma_refuse_others(const json_t *config, struct err *e)
{
    const char *both;

    TRY(cfg_want_str(config, "hidden_activation", "gelu_pytorch_tanh", e));
    TRY(cfg_want_bool(config, "attention_bias", false, e));
    TRY(cfg_want_bool(config, "tie_word_embeddings", true, e));
    /* "vision" changes only the attention between image tokens, and lagan has no image tokens. */
    if (cfg_state(config, "use_bidirectional_attention") == CFG_SET &&
        json_is_string(json_object_get(config, "use_bidirectional_attention"))) {
        TRY(cfg_str(config, "use_bidirectional_attention", NULL, &both, e));
        if (strcmp(both, "vision") == 0) return 0;
        return err_set(e, -ENOTSUP,
                       "use_bidirectional_attention is \"%s\", only \"vision\" is implemented",
                       both);
    }
    return cfg_want_bool(config, "use_bidirectional_attention", false, e);
}

uint32_t
gemma_input_words(uint32_t n_layers, uint32_t each)
{
    return 2 * ROUND_UP(n_layers * each, 4u) + ROUND_UP(each, 4u);
}

int
gemma_read_inputs(const json_t *config, uint32_t min, struct model_shape *s, uint32_t *each,
                  struct err *e)
{
    TRY(cfg_u32(config, "hidden_size_per_layer_input", 256, min, 4096, each, e));
    if (*each == 0) return 0;
    TRY(cfg_u32(config, "vocab_size_per_layer_input", 262144, 1, CFG_MAX_VOCAB, &s->dim[DIM_TOKENS],
                e));
    s->dim[DIM_EACH] = *each;
    s->dim[DIM_EACH_ALL] = *each * s->n_layers;
    s->dim[DIM_INPUT] = s->hidden;
    s->own_cols = gemma_input_words(s->n_layers, *each);
    return 0;
}

int
gemma_inputs(const struct model *m, struct step *s, uint32_t each, uint32_t first, uint32_t n,
             struct tensor h, struct tensor *ret)
{
    const struct gpu_ops *op = m->op;
    const struct causal_cfg *cfg = m->cfg;
    const struct gemma_top *top = m->top;
    uint32_t rows = s->rows.n_tokens, cols = n * each;
    uint32_t all = ROUND_UP(m->shape.n_layers * each, 4u);
    struct tensor sum = block_area(s, BLOCK_OWN, 0, rows, cols, m->act);
    struct tensor token = block_area(s, BLOCK_OWN, all, rows, cols, m->act);
    struct tensor projection = tensor_rows(top->projection, first * each, cols);
    struct tensor table = tensor_cols(top->table, first * each, cols);
    struct tensor split = sum; /* the view of sum with one row for each token and layer */

    split.dim[0] = rows * n;
    split.dim[1] = split.stride = each;
    TRY(op->embed(s->lane, h, top->base.embed, s->rows.token, cfg->embed_scale));
    TRY(op->matmul(s->lane, sum, h, projection, NO_TENSOR, 0));
    /* Multiplying eps by hidden equals the factor 1 / sqrt(hidden) before the norm. */
    TRY(op->rms_norm(s->lane, split, split, top->projection_norm, cfg->eps * (float)m->shape.hidden,
                     0));
    TRY(op->embed(s->lane, token, table, s->rows.token, sqrtf((float)each)));
    TRY(op->add(s->lane, sum, token));
    *ret = sum;
    return op->scale(s->lane, sum, (float)M_SQRT1_2, 0);
}

int
gemma_use_input(const struct model *m, struct step *s, struct tensor out, struct tensor h,
                const struct gemma_input *w, struct tensor input)
{
    const struct gpu_ops *op = m->op;
    uint32_t each = w->gate.dim[0], before = 2 * ROUND_UP(m->shape.n_layers * each, 4u);
    struct tensor g = block_area(s, BLOCK_OWN, before, h.dim[0], each, m->act);

    TRY(op->matmul(s->lane, g, h, w->gate, NO_TENSOR, 0));
    TRY(op->act(s->lane, g, g, ACT_GELU_TANH));
    TRY(op->mul(s->lane, g, g, input));
    return op->matmul(s->lane, out, g, w->projection, NO_TENSOR, 0);
}

int
gemma_attend(const struct model *m, struct step *s, uint32_t l, const struct dense_layer *w,
             struct tensor h, struct tensor *heads)
{
    struct block_attention a = {
        .qkv = w->qkv,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .v_norm = true,
        .norm_eps = ((const struct causal_cfg *)m->cfg)->eps,
        .cos_sin = causal_rope(m, l),
        .scale = 1,
    };

    return block_attend(m, s, l, h, &a, heads);
}
