/* gemma3n.c - Gemma 3n, text only: E2B, E4B.
 *
 * There are 4 streams of hidden states (AltUp): a layer predicts all streams from all streams,
 * computes its sublayers on the active stream, and corrects every stream with the result. A
 * low-rank product (Laurel) is added beside attention. Gates of the first layers keep only values
 * far above the mean of their row. Per-layer inputs (gemma.h) are added to streams 1 to 3. The last
 * layers read the KV of earlier layers. Norm weights are w, scores are not scaled, v is normed.
 * Source: Gemma3nForCausalLM of transformers 5.17.
 */
#include "worker/arch/gemma.h"
#include "worker/arch/registry.h"
#include "worker/model/config.h"
#include "worker/model/host_tables.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* SPARSE: sparse layers by default, if the model has more. */
enum { STREAMS = 4, COEFS = STREAMS * STREAMS, SPARSE = 10 };
static const float LEAST = 1e-5f; /* lower limit of the mean square in match_rms() */

struct gemma3n {
    struct block_top base;             /* embed is also the head */
    struct tensor table, projection;   /* of per-layer inputs: gemma.h */
    struct tensor projection_norm;     /* [each] */
    struct tensor altup_in, altup_out; /* [3 hidden, hidden]: streams 1, 2, 3 */
};

struct gemma3n_layer {
    struct tensor attn_norm, attn_post;         /* [hidden] */
    struct tensor qkv;                          /* [q, own k, own v; hidden] */
    struct tensor q_norm, k_norm;               /* [head_dim] */
    struct tensor o;                            /* [hidden, q] */
    struct tensor ff_norm, ff_post;             /* [hidden] */
    struct tensor gate_up, down;                /* [2 ff, hidden], gate rows first; [hidden, ff] */
    struct tensor router_norm, router;          /* [hidden], [4, hidden] */
    struct tensor predict, correct;             /* [16, 4], [4, 4] */
    struct tensor output_scale;                 /* [hidden] */
    struct tensor left, right, laurel_post;     /* [rank, hidden], [hidden, rank], [hidden] */
    struct tensor input_gate, input_projection; /* [each, hidden], [hidden, each] */
    struct tensor input_post;                   /* [hidden] */
};

enum { TABLE_FULL, TABLE_WINDOW }; /* m->table[], cfg->rope[] */

struct gemma3n_cfg {
    float eps, embed_scale;
    uint32_t each, rank, active;
    uint32_t gates_at; /* words of BLOCK_OWN before the gates of all ranks */
    struct rope_params rope[2];
    float edge[MAX_LAYERS]; /* gates below mean + edge * deviation become 0; -inf: keep all */
};

#define TOP(f) IN_TOP, offsetof(struct gemma3n, f)
#define LAYER(f) IN_LAYER, offsetof(struct gemma3n_layer, f)
#define DIM_EACH DIM_OWN_0
#define DIM_EACH_ALL DIM_OWN_1
#define DIM_TOKENS DIM_OWN_2
#define DIM_STREAMS DIM_OWN_3
#define DIM_COEFS DIM_OWN_4
#define DIM_RANK DIM_OWN_5
#define L "layers.%u."
#define ATTN L "self_attn."
#define ALTUP L "altup."
#define OWN (W_SPLIT_ROWS | W_STACKED | W_OWN_KV)

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                      field                    rows          cols */
    { "embed_tokens.weight",                  TOP(base.embed),         DIM_VOCAB,    DIM_HIDDEN,  0 },
    { "norm.weight",                          TOP(base.norm),          DIM_1,        DIM_HIDDEN,  W_FP32 },
    { "embed_tokens_per_layer.weight",        TOP(table),              DIM_TOKENS,   DIM_EACH_ALL, W_EMBEDDING },
    { "per_layer_model_projection.weight",    TOP(projection),         DIM_EACH_ALL, DIM_HIDDEN,  0 },
    { "per_layer_projection_norm.weight",     TOP(projection_norm),    DIM_1,        DIM_EACH,    W_FP32 },
    { "altup_projections.0.weight",           TOP(altup_in),           DIM_HIDDEN,   DIM_HIDDEN,  0 },
    { "altup_projections.1.weight",           TOP(altup_in),           DIM_HIDDEN,   DIM_HIDDEN,  W_STACKED },
    { "altup_projections.2.weight",           TOP(altup_in),           DIM_HIDDEN,   DIM_HIDDEN,  W_STACKED },
    { "altup_unembed_projections.0.weight",   TOP(altup_out),          DIM_HIDDEN,   DIM_HIDDEN,  0 },
    { "altup_unembed_projections.1.weight",   TOP(altup_out),          DIM_HIDDEN,   DIM_HIDDEN,  W_STACKED },
    { "altup_unembed_projections.2.weight",   TOP(altup_out),          DIM_HIDDEN,   DIM_HIDDEN,  W_STACKED },
    { L "input_layernorm.weight",             LAYER(attn_norm),        DIM_1,        DIM_HIDDEN,  W_FP32 },
    { ATTN "q_proj.weight",                   LAYER(qkv),              DIM_Q,        DIM_HIDDEN,  W_SPLIT_ROWS },
    { ATTN "k_proj.weight",                   LAYER(qkv),              DIM_KV,       DIM_HIDDEN,  OWN },
    { ATTN "v_proj.weight",                   LAYER(qkv),              DIM_KV,       DIM_HIDDEN,  OWN },
    { ATTN "q_norm.weight",                   LAYER(q_norm),           DIM_1,        DIM_HEAD,    W_FP32 },
    { ATTN "k_norm.weight",                   LAYER(k_norm),           DIM_1,        DIM_HEAD,    W_FP32 | W_OWN_KV },
    { ATTN "o_proj.weight",                   LAYER(o),                DIM_HIDDEN,   DIM_Q,       W_SPLIT_COLS },
    { L "post_attention_layernorm.weight",    LAYER(attn_post),        DIM_1,        DIM_HIDDEN,  W_FP32 },
    { L "pre_feedforward_layernorm.weight",   LAYER(ff_norm),          DIM_1,        DIM_HIDDEN,  W_FP32 },
    { L "mlp.gate_proj.weight",               LAYER(gate_up),          DIM_FF,       DIM_HIDDEN,  W_SPLIT_ROWS },
    { L "mlp.up_proj.weight",                 LAYER(gate_up),          DIM_FF,       DIM_HIDDEN,  W_SPLIT_ROWS | W_STACKED },
    { L "mlp.down_proj.weight",               LAYER(down),             DIM_HIDDEN,   DIM_FF,      W_SPLIT_COLS },
    { L "post_feedforward_layernorm.weight",  LAYER(ff_post),          DIM_1,        DIM_HIDDEN,  W_FP32 },
    { ALTUP "router_norm.weight",             LAYER(router_norm),      DIM_1,        DIM_HIDDEN,  W_FP32 },
    { ALTUP "modality_router.weight",         LAYER(router),           DIM_STREAMS,  DIM_HIDDEN,  0 },
    { ALTUP "prediction_coefs.weight",        LAYER(predict),          DIM_COEFS,    DIM_STREAMS, 0 },
    { ALTUP "correction_coefs.weight",        LAYER(correct),          DIM_STREAMS,  DIM_STREAMS, 0 },
    { ALTUP "correct_output_scale",           LAYER(output_scale),     DIM_1,        DIM_HIDDEN,  W_FP32 },
    { L "laurel.linear_left.weight",          LAYER(left),             DIM_RANK,     DIM_HIDDEN,  0 },
    { L "laurel.linear_right.weight",         LAYER(right),            DIM_HIDDEN,   DIM_RANK,    0 },
    { L "laurel.post_laurel_norm.weight",     LAYER(laurel_post),      DIM_1,        DIM_HIDDEN,  W_FP32 },
    { L "per_layer_input_gate.weight",        LAYER(input_gate),       DIM_EACH,     DIM_HIDDEN,  0 },
    { L "per_layer_projection.weight",        LAYER(input_projection), DIM_HIDDEN,   DIM_EACH,    0 },
    { L "post_per_layer_input_norm.weight",   LAYER(input_post),       DIM_1,        DIM_HIDDEN,  W_FP32 },
    { 0 },
};
/* clang-format on */

/* A number of one layer: of a list, or the same for all, or `otherwise` where there is none. */
static int
number_of(const json_t *config, const char *key, uint32_t layer, uint32_t n_layers,
          double otherwise, double *ret, struct err *e)
{
    const json_t *v = json_object_get(config, key);

    *ret = otherwise;
    if (cfg_state(config, key) != CFG_SET) return 0;
    if (json_is_array(v) && json_array_size(v) != n_layers)
        return err_set(e, -EINVAL, "%s has %zu entries for %u layers", key, json_array_size(v),
                       n_layers);
    if (json_is_array(v)) v = json_array_get(v, layer);
    if (!json_is_number(v)) return err_set(e, -EINVAL, "%s: no number for layer %u", key, layer);
    *ret = json_number_value(v);
    return 0;
}

/* Inverse of the normal distribution function. */
static double
normal_quantile(double share)
{
    double low = -10, high = 10;

    for (int i = 0; i < 100; i++) {
        double mid = (low + high) / 2;

        if (0.5 * (1 + erf(mid * M_SQRT1_2)) < share)
            low = mid;
        else
            high = mid;
    }
    return (low + high) / 2;
}

static int
read_layers(const json_t *config, struct model_shape *s, struct gemma3n_cfg *cfg, struct err *e)
{
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv_parts = 2 };
    uint32_t window;
    bool slides;

    TRY(cfg_heads(config, 8, 2, 256, &l, e));
    TRY(cfg_u32(config, "sliding_window", 512, 1, CFG_MAX_POSITIONS, &window, e));
    for (uint32_t i = 0; i < s->n_layers; i++) {
        double ff, sparse;

        TRY(number_of(config, "intermediate_size", i, s->n_layers, 16384, &ff, e));
        if (!(ff >= 1 && ff <= CFG_MAX_FF) || floor(ff) < ff)
            return err_set(e, -EINVAL, "intermediate_size of layer %u is %g", i, ff);
        TRY(number_of(config, "activation_sparsity_pattern", i, s->n_layers,
                      i < SPARSE && s->n_layers > SPARSE ? 0.95 : 0, &sparse, e));
        if (!(sparse >= 0 && sparse < 1))
            return err_set(e, -EINVAL, "activation_sparsity_pattern of layer %u is %g", i, sparse);
        TRY(cfg_slides(config, i, s->n_layers, (i + 1) % 5, &slides, e));
        l.n_ff = (uint32_t)ff;
        l.window = slides ? window : 0;
        l.kv = slides ? KV_WINDOW : KV_FULL;
        s->layer[i] = l;
        cfg->edge[i] = sparse > 0 ? (float)normal_quantile(sparse) : -INFINITY;
    }
    return gemma_share_kv(config, MIN(15u, s->n_layers - 1), s, e);
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct gemma3n_cfg *cfg = out;
    uint32_t streams;

    TRY(gemma_refuse_others(config, e));
    TRY(cfg_want_bool(config, "altup_correct_scale", true, e));
    TRY(cfg_u32(config, "altup_num_inputs", STREAMS, 1, 64, &streams, e));
    if (streams != STREAMS)
        return err_set(e, -ENOTSUP, "altup_num_inputs is %u, only %d is implemented", streams,
                       STREAMS);
    TRY(cfg_u32(config, "altup_active_idx", 0, 0, STREAMS - 1, &cfg->active, e));
    TRY(cfg_u32(config, "laurel_rank", 64, 1, CFG_MAX_HIDDEN, &cfg->rank, e));
    TRY(cfg_u32(config, "hidden_size_per_layer_input", 256, 1, 4096, &cfg->each, e));
    TRY(cfg_u32(config, "num_hidden_layers", 35, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "hidden_size", 2048, 1, CFG_MAX_HIDDEN, &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 262400, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "vocab_size_per_layer_input", 262144, 1, CFG_MAX_VOCAB, &s->dim[DIM_TOKENS],
                e));
    TRY(cfg_u32(config, "max_position_embeddings", 32768, 1, CFG_MAX_POSITIONS, &s->max_len, e));
    TRY(cfg_f32(config, "rms_norm_eps", 1e-6, 0, 1, &cfg->eps, e));
    TRY(cfg_f32(config, "final_logit_softcapping", 30, 0, 1e6, &s->logit_cap, e));
    TRY(cfg_rope_only(config, "full_attention", 1e6, 1 << ROPE_DEFAULT, &cfg->rope[TABLE_FULL], e));
    TRY(cfg_rope_only(config, "sliding_attention", 1e4, 1 << ROPE_DEFAULT, &cfg->rope[TABLE_WINDOW],
                      e));
    TRY(read_layers(config, s, cfg, e));
    cfg->embed_scale = sqrtf((float)s->hidden); /* not rounded to bf16: gemma3.c */
    s->n_streams = STREAMS;
    s->own_cols = gemma_input_words(s->n_layers, cfg->each) + 2 * ROUND_UP(s->hidden, 4u) +
                  STREAMS + COEFS + ROUND_UP(cfg->rank, 4u);
    s->dim[DIM_EACH] = cfg->each;
    s->dim[DIM_EACH_ALL] = cfg->each * s->n_layers;
    s->dim[DIM_STREAMS] = STREAMS;
    s->dim[DIM_COEFS] = COEFS;
    s->dim[DIM_RANK] = cfg->rank;
    return 0;
}

/* Adds scratch for the gates of all ranks. */
static int
divide(struct model *m, struct err *e)
{
    struct gemma3n_cfg *cfg = m->cfg;
    uint32_t ff = 0;

    (void)e;
    for (uint32_t i = 0; i < m->shape.n_layers; i++) ff = MAX(ff, m->whole.layer[i].n_ff);
    cfg->gates_at = ROUND_UP(m->shape.own_cols, 4u);
    m->shape.own_cols = cfg->gates_at + ff;
    return 0;
}

static int
prepare(struct model *m, struct err *e)
{
    const struct gemma3n_cfg *cfg = m->cfg;

    for (uint32_t i = TABLE_FULL; i <= TABLE_WINDOW; i++)
        TRY(host_tables_rope(m, i, &cfg->rope[i], m->shape.layer[0].head_dim, e));
    return 0;
}

/* Tensors of a range of layers besides the streams. */
struct gemma3n_scratch {
    struct tensor h, out; /* activations [n, hidden] */
    struct tensor work;   /* fp32 [n, hidden]: next value of the active stream */
    struct tensor other;  /* fp32 [n, hidden] */
    struct tensor modal;  /* [n, 4] */
    struct tensor coefs;  /* fp32 [n, 16] */
    struct tensor rank;   /* [n, rank] */
};

static struct gemma3n_scratch
scratch_of(const struct model *m, const struct step *s)
{
    const struct gemma3n_cfg *cfg = m->cfg;
    uint32_t rows = s->rows.n_tokens, hidden = m->shape.hidden, wide = ROUND_UP(hidden, 4u);
    uint32_t at = gemma_input_words(m->shape.n_layers, cfg->each);

    return (struct gemma3n_scratch){
        .h = block_scratch(s, BLOCK_NORMED, rows, hidden),
        .out = block_scratch(s, BLOCK_OUT, rows, hidden),
        .work = block_area(s, BLOCK_OWN, at, rows, hidden, DT_F32),
        .other = block_area(s, BLOCK_OWN, at + wide, rows, hidden, DT_F32),
        .modal = block_area(s, BLOCK_OWN, at + 2 * wide, rows, STREAMS, m->act),
        .coefs = block_area(s, BLOCK_OWN, at + 2 * wide + STREAMS, rows, COEFS, DT_F32),
        .rank = block_area(s, BLOCK_OWN, at + 2 * wide + STREAMS + COEFS, rows, cfg->rank, m->act),
    };
}

static struct tensor
stream(const struct model *m, const struct step *s, uint32_t i)
{
    return tensor_cols(s->x, i * m->shape.hidden, m->shape.hidden);
}

/* coefs = w tanh(router(norm x) / hidden) */
static int
route(const struct model *m, struct step *s, const struct gemma3n_scratch *o,
      const struct gemma3n_layer *w, struct tensor x, struct tensor coefs, struct tensor matrix)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;

    TRY(op->rms_norm(s->lane, o->h, x, w->router_norm, cfg->eps, 0));
    TRY(op->matmul(s->lane, o->modal, o->h, w->router, NO_TENSOR, 0));
    TRY(op->scale(s->lane, o->modal, 1 / (float)m->shape.hidden, 1)); /* tanh */
    return op->matmul(s->lane, coefs, o->modal, matrix, NO_TENSOR, 0);
}

static int
attention(const struct model *m, struct step *s, uint32_t l, struct tensor h, struct tensor *heads)
{
    const struct gemma3n_layer *w = (const struct gemma3n_layer *)m->layer + l;
    struct block_attention a = {
        .qkv = w->qkv,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .v_norm = true,
        .norm_eps = ((const struct gemma3n_cfg *)m->cfg)->eps,
        .cos_sin = m->table[m->shape.layer[l].window ? TABLE_WINDOW : TABLE_FULL],
        .scale = 1,
    };

    return block_attend(m, s, l, h, &a, heads);
}

/* Mean and deviation are those of the whole row, so the gates of all ranks are gathered first. */
static int
keep_outliers(const struct model *m, struct step *s, uint32_t l, struct tensor gate)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    uint32_t ff = m->whole.layer[l].n_ff;
    struct tensor all = gate;

    if (m->ranks > 1) all = block_area(s, BLOCK_OWN, cfg->gates_at, gate.dim[0], ff, m->act);
    TRY(op->collective.all_gather(s->lane, all, gate));
    TRY(op->gaussian_topk(s->lane, all, cfg->edge[l]));
    if (m->ranks == 1) return 0;
    return op->mul(s->lane, gate, tensor_cols(all, sharding_share(m, ff).first, gate.dim[1]),
                   NO_TENSOR);
}

static int
feed_forward(const struct model *m, struct step *s, uint32_t l, struct tensor h,
             struct tensor *inner)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n_layer *w = (const struct gemma3n_layer *)m->layer + l;
    uint32_t ff = m->shape.layer[l].n_ff;
    struct tensor gate_up = block_scratch(s, BLOCK_GATE_UP, h.dim[0], 2 * ff);

    if (isinf(cfg->edge[l])) return block_gated(m, s, h, w->gate_up, ACT_GELU_TANH, inner);
    *inner = block_scratch(s, BLOCK_INNER, h.dim[0], ff);
    TRY(op->matmul(s->lane, gate_up, h, w->gate_up, NO_TENSOR, 0));
    TRY(keep_outliers(m, s, l, tensor_cols(gate_up, 0, ff)));
    return op->gate(s->lane, *inner, gate_up, ACT_GELU_TANH);
}

/* work = output of layer l's sublayers for the active stream. */
static int
sublayers(const struct model *m, struct step *s, uint32_t l, const struct gemma3n_scratch *o)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n_layer *w = (const struct gemma3n_layer *)m->layer + l;
    struct tensor heads, inner;
    struct tensor x = stream(m, s, cfg->active);
    struct residual laurel = { .x = o->work, .in = o->h, .eps = cfg->eps };
    struct residual add = { .x = o->work, .eps = cfg->eps };

    TRY(op->mul(s->lane, o->work, x, NO_TENSOR));
    TRY(op->rms_norm(s->lane, o->h, x, w->attn_norm, cfg->eps, 0));
    TRY(op->residual(s->lane, &laurel));
    TRY(op->matmul(s->lane, o->rank, o->h, w->left, NO_TENSOR, 0));
    TRY(op->matmul(s->lane, o->out, o->rank, w->right, NO_TENSOR, 0));
    laurel.in = o->out;
    laurel.in_norm = w->laurel_post;
    TRY(op->residual(s->lane, &laurel));

    TRY(attention(m, s, l, o->h, &heads));
    add.in_norm = w->attn_post;
    TRY(block_residual(m, s, heads, w->o, add));
    TRY(op->scale(s->lane, o->work, (float)M_SQRT1_2, 0));

    TRY(op->rms_norm(s->lane, o->h, o->work, w->ff_norm, cfg->eps, 0));
    TRY(feed_forward(m, s, l, o->h, &inner));
    add.in_norm = w->ff_post;
    return block_residual(m, s, inner, w->down, add);
}

/* Streams 1 to 3 start as projections of stream 0, scaled to its RMS. */
static int
begin_streams(const struct model *m, struct step *s, const struct gemma3n_scratch *o)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n *top = m->top;
    uint32_t hidden = m->shape.hidden;

    TRY(op->embed(s->lane, o->h, top->base.embed, s->rows.token, cfg->embed_scale));
    TRY(op->embed(s->lane, stream(m, s, 0), top->base.embed, s->rows.token, cfg->embed_scale));
    TRY(op->matmul(s->lane, tensor_cols(s->x, hidden, (STREAMS - 1) * hidden), o->h, top->altup_in,
                   NO_TENSOR, 0));
    for (uint32_t i = 1; i < STREAMS; i++)
        TRY(op->match_rms(s->lane, stream(m, s, i), stream(m, s, 0), LEAST));
    return 0;
}

/* normed = norm of the mean of stream 0 and the other streams, projected back and scaled to its
 * RMS. */
static int
join_streams(const struct model *m, struct step *s, const struct gemma3n_scratch *o)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n *top = m->top;
    uint32_t hidden = m->shape.hidden;

    TRY(op->mul(s->lane, o->work, stream(m, s, 0), NO_TENSOR));
    for (uint32_t i = 1; i < STREAMS; i++) {
        TRY(op->mul(s->lane, o->h, stream(m, s, i), NO_TENSOR));
        TRY(op->matmul(s->lane, o->other, o->h,
                       tensor_rows(top->altup_out, (i - 1) * hidden, hidden), NO_TENSOR, 0));
        TRY(op->match_rms(s->lane, o->other, stream(m, s, 0), LEAST));
        TRY(op->add(s->lane, o->work, o->other));
    }
    TRY(op->scale(s->lane, o->work, 1.0f / STREAMS, 0));
    return op->rms_norm(s->lane, s->normed, o->work, top->base.norm, cfg->eps, 0);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n *top = m->top;
    const struct gemma3n_layer *w = (const struct gemma3n_layer *)m->layer + first;
    const struct gemma_inputs g = { top->base.embed, top->table,
                                    top->projection, top->projection_norm,
                                    cfg->each,       cfg->embed_scale,
                                    cfg->eps };
    const struct gemma3n_scratch o = scratch_of(m, s);
    struct tensor inputs, active = stream(m, s, cfg->active);
    struct altup predict = { ALTUP_PREDICT, s->x, o.coefs, NO_TENSOR, STREAMS, cfg->active };
    struct altup correct = { ALTUP_CORRECT, s->x,    tensor_cols(o.coefs, 0, STREAMS),
                             o.work,        STREAMS, cfg->active };

    if (first == 0) TRY(begin_streams(m, s, &o));
    TRY(gemma_inputs(m, s, &g, first, n, o.h, &inputs));
    for (uint32_t l = first; l < first + n; l++, w++) {
        TRY(route(m, s, &o, w, active, predict.coef, w->predict));
        TRY(op->altup(s->lane, &predict));
        TRY(sublayers(m, s, l, &o));
        TRY(route(m, s, &o, w, o.work, correct.coef, w->correct));
        TRY(op->altup(s->lane, &correct));

        TRY(op->mul(s->lane, o.h, active, w->output_scale));
        TRY(gemma_use_input(m, s, o.out, o.h, w->input_gate, w->input_projection,
                            tensor_cols(inputs, (l - first) * cfg->each, cfg->each)));
        for (uint32_t i = 1; i < STREAMS; i++) { /* never stream 0, whichever is active */
            struct residual add = {
                .x = stream(m, s, i), .in = o.out, .in_norm = w->input_post, .eps = cfg->eps
            };

            TRY(op->residual(s->lane, &add));
        }
    }
    return first + n < m->shape.n_layers ? 0 : join_streams(m, s, &o);
}

const struct arch arch_gemma3n = {
    .name = "gemma3n",
    .hf_types = (const char *const[]){ "gemma3n_text", "gemma3n", NULL },
    .cfg_bytes = sizeof(struct gemma3n_cfg),
    .top_bytes = sizeof(struct gemma3n),
    .layer_bytes = sizeof(struct gemma3n_layer),
    .weights = weights,
    .divide = divide,
    .prefixes = (const char *const[]){ "model.", "model.language_model.", "language_model.model.",
                                       NULL },
    .configure = configure,
    .prepare = prepare,
    .forward = forward,
    .logits = block_logits,
};
