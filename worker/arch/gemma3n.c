/* gemma3n.c - Gemma 3n, text only: E2B, E4B.
 *
 * There are several streams of hidden states (AltUp; published models: 4): a layer predicts all
 * streams from all streams, computes its sublayers on the active stream, and corrects every stream
 * with the result. A low-rank product (Laurel) is added beside attention. In the first layers,
 * feed-forward gates become 0 unless they are far above the mean of their row. Per-layer inputs
 * (gemma.h) are added to all streams but stream 0. The last layers read the KV of earlier layers.
 * Norm weights are w, scores are not scaled, v is normed. Source: Gemma3nForCausalLM of
 * transformers 5.17. */
#include "worker/arch/gemma.h"

#include <math.h>

/* SPARSE: number of first layers with sparse gates if activation_sparsity_pattern is absent. If the
 * model has no further layers, no layer is sparse then. */
enum { STREAMS = 4, MAX_STREAMS = 8, SPARSE = 10 }; /* MAX_STREAMS: limit of altup() */
static const float LEAST = 1e-5f; /* lower limit of the mean square in match_rms() */

struct gemma3n {
    struct gemma_top base;
    struct tensor altup_in, altup_out; /* [(streams - 1) * hidden, hidden]: of streams 1 and up */
};

struct gemma3n_layer {
    struct dense_layer dense; /* qkv has rows q, then k and v if the layer has its own KV */
    struct gemma_input input;
    struct tensor router_norm, router;      /* [hidden], [streams, hidden] */
    struct tensor predict, correct;         /* [streams^2, streams], [streams, streams] */
    struct tensor output_scale;             /* [hidden] */
    struct tensor left, right, laurel_post; /* [rank, hidden], [hidden, rank], [hidden] */
};

struct gemma3n_cfg {
    struct causal_cfg base;
    uint32_t each, rank, active;
    uint32_t gates_at;      /* words per token of BLOCK_OWN before the gates of all ranks */
    float edge[MAX_LAYERS]; /* gates below mean + edge * deviation become 0; -inf: none does */
};

#define ALL(f) IN_TOP, offsetof(struct gemma3n, f)
#define LAYER(f) IN_LAYER, offsetof(struct gemma3n_layer, f)
#define DIM_STREAMS DIM_OWN_4
#define DIM_COEFS DIM_OWN_5
#define DIM_RANK DIM_OWN_6
#define ALTUP L "altup."

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                      field                    rows          cols */
    GEMMA_TOP_RULES,
    GEMMA_INPUT_TOP_RULES,
    { "altup_projections.%u.weight",          ALL(altup_in),           DIM_HIDDEN,   DIM_HIDDEN,  W_ONE_BY_ONE },
    { "altup_unembed_projections.%u.weight",  ALL(altup_out),          DIM_HIDDEN,   DIM_HIDDEN,  W_ONE_BY_ONE },
    GEMMA_DENSE_RULES,
    { ALTUP "router_norm.weight",             LAYER(router_norm),      DIM_1,        DIM_HIDDEN,  W_FP32 },
    { ALTUP "modality_router.weight",         LAYER(router),           DIM_STREAMS,  DIM_HIDDEN,  0 },
    { ALTUP "prediction_coefs.weight",        LAYER(predict),          DIM_COEFS,    DIM_STREAMS, 0 },
    { ALTUP "correction_coefs.weight",        LAYER(correct),          DIM_STREAMS,  DIM_STREAMS, 0 },
    { ALTUP "correct_output_scale",           LAYER(output_scale),     DIM_1,        DIM_HIDDEN,  W_FP32 },
    { L "laurel.linear_left.weight",          LAYER(left),             DIM_RANK,     DIM_HIDDEN,  0 },
    { L "laurel.linear_right.weight",         LAYER(right),            DIM_HIDDEN,   DIM_RANK,    0 },
    { L "laurel.post_laurel_norm.weight",     LAYER(laurel_post),      DIM_1,        DIM_HIDDEN,  W_FP32 },
    GEMMA_INPUT_RULES(LAYER),
    { 0 },
};
/* clang-format on */

/* Reads key for one layer: an entry of a list, or one number for all; absent: `otherwise`. */
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
    if (!json_is_number(v)) return err_set(e, -EINVAL, "%s has no number for layer %u", key, layer);
    *ret = json_number_value(v);
    return 0;
}

/* Returns x such that a share of `share` of the standard normal distribution is below x. */
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
            return err_set(e, -EINVAL, "intermediate_size of layer %u is %g, want 1 to %d", i, ff,
                           CFG_MAX_FF);
        TRY(number_of(config, "activation_sparsity_pattern", i, s->n_layers,
                      i < SPARSE && s->n_layers > SPARSE ? 0.95 : 0, &sparse, e));
        if (!(sparse >= 0 && sparse < 1))
            return err_set(e, -EINVAL, "activation_sparsity_pattern of layer %u is %g, want [0, 1)",
                           i, sparse);
        TRY(cfg_slides(config, i, s->n_layers, (i + 1) % 5, &slides, e));
        l.n_ff = (uint32_t)ff;
        causal_layer(s, i, l, slides ? window : 0);
        cfg->edge[i] = sparse > 0 ? (float)normal_quantile(sparse) : -INFINITY;
    }
    return gemma_share_kv(config, MIN(15u, s->n_layers - 1), s, e);
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    static const struct causal_defaults defaults = { 35, 2048, 262400, 32768, 1e-6 };
    struct gemma3n_cfg *cfg = out;
    uint32_t streams;

    TRY(gemma_refuse_others(config, e));
    TRY(cfg_want_bool(config, "altup_correct_scale", true, e));
    TRY(cfg_u32(config, "altup_num_inputs", STREAMS, 1, 64, &streams, e));
    if (streams < 2 || streams > MAX_STREAMS)
        return err_set(e, -ENOTSUP, "altup_num_inputs is %u, only 2 to %d are implemented", streams,
                       MAX_STREAMS);
    TRY(cfg_u32(config, "altup_active_idx", 0, 0, streams - 1, &cfg->active, e));
    TRY(cfg_u32(config, "laurel_rank", 64, 1, CFG_MAX_HIDDEN, &cfg->rank, e));
    TRY(causal_sizes(config, defaults, s, &cfg->base, e));
    TRY(gemma_read_inputs(config, 1, s, &cfg->each, e));
    TRY(cfg_f32(config, "final_logit_softcapping", 30, 0, 1e6, &s->logit_cap, e));
    TRY(gemma_ropes(config, 1 << ROPE_DEFAULT, &cfg->base, e));
    TRY(read_layers(config, s, cfg, e));
    cfg->base.embed_scale = sqrtf((float)s->hidden); /* not rounded to bf16, as in gemma3.c */
    s->n_streams = streams;
    s->own_cols += 2 * ROUND_UP(s->hidden, 4u) + ROUND_UP(streams, 4u) +
                   ROUND_UP(streams * streams, 4u) + ROUND_UP(cfg->rank, 4u);
    s->dim[DIM_STREAMS] = streams;
    s->dim[DIM_COEFS] = streams * streams;
    s->dim[DIM_RANK] = cfg->rank;
    return 0;
}

/* Adds scratch for the gates of all ranks, which keep_outliers() gathers, to BLOCK_OWN. */
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

/* The scratch tensors of a layer; the streams are step.x. */
struct gemma3n_scratch {
    struct tensor h, out; /* activations [n, hidden] */
    struct tensor work;   /* fp32 [n, hidden]: next value of the active stream */
    struct tensor other;  /* fp32 [n, hidden]: a projected stream, in join_streams() */
    struct tensor modal;  /* [n, streams]: output of the router of AltUp */
    struct tensor coefs;  /* fp32 [n, streams^2]: coefficients of the streams */
    struct tensor rank;   /* [n, rank]: inner product of Laurel */
};

static struct gemma3n_scratch
scratch_of(const struct model *m, const struct step *s)
{
    const struct gemma3n_cfg *cfg = m->cfg;
    uint32_t rows = s->rows.n_tokens, hidden = m->shape.hidden, wide = ROUND_UP(hidden, 4u);
    uint32_t at = gemma_input_words(m->shape.n_layers, cfg->each), streams = m->shape.n_streams;
    uint32_t modal_at = at + 2 * wide, coefs_at = modal_at + ROUND_UP(streams, 4u);
    uint32_t rank_at = coefs_at + ROUND_UP(streams * streams, 4u);

    return (struct gemma3n_scratch){
        .h = block_scratch(s, BLOCK_NORMED, rows, hidden),
        .out = block_scratch(s, BLOCK_OUT, rows, hidden),
        .work = block_area(s, BLOCK_OWN, at, rows, hidden, DT_F32),
        .other = block_area(s, BLOCK_OWN, at + wide, rows, hidden, DT_F32),
        .modal = block_area(s, BLOCK_OWN, modal_at, rows, streams, m->act),
        .coefs = block_area(s, BLOCK_OWN, coefs_at, rows, streams * streams, DT_F32),
        .rank = block_area(s, BLOCK_OWN, rank_at, rows, cfg->rank, m->act),
    };
}

static struct tensor
stream(const struct model *m, const struct step *s, uint32_t i)
{
    return tensor_cols(s->x, i * m->shape.hidden, m->shape.hidden);
}

/* Computes the coefficients of AltUp: coefs = matrix tanh(router(norm x) / hidden). router and norm
 * are weights of w; matrix is w->predict or w->correct. */
static int
route(const struct model *m, struct step *s, const struct gemma3n_scratch *o,
      const struct gemma3n_layer *w, struct tensor x, struct tensor coefs, struct tensor matrix)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;

    TRY(op->rms_norm(s->lane, o->h, x, w->router_norm, cfg->base.eps, 0));
    TRY(op->matmul(s->lane, o->modal, o->h, w->router, NO_TENSOR, 0));
    TRY(op->scale(s->lane, o->modal, 1 / (float)m->shape.hidden, 1)); /* tanh */
    return op->matmul(s->lane, coefs, o->modal, matrix, NO_TENSOR, 0);
}

/* Sets gates below mean + edge * deviation of their row to 0. The gates of all ranks are gathered
 * first, because mean and deviation are those of the whole row. */
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

    if (isinf(cfg->edge[l])) return block_gated(m, s, h, w->dense.gate_up, ACT_GELU_TANH, inner);
    *inner = block_scratch(s, BLOCK_INNER, h.dim[0], ff);
    TRY(op->matmul(s->lane, gate_up, h, w->dense.gate_up, NO_TENSOR, 0));
    TRY(keep_outliers(m, s, l, tensor_cols(gate_up, 0, ff)));
    return op->gate(s->lane, *inner, gate_up, ACT_GELU_TANH);
}

/* Sets o->work to the output of layer l's sublayers for the active stream. */
static int
sublayers(const struct model *m, struct step *s, uint32_t l, const struct gemma3n_scratch *o)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n_layer *w = (const struct gemma3n_layer *)m->layer + l;
    struct tensor heads, inner;
    struct tensor x = stream(m, s, cfg->active);
    struct residual laurel = { .x = o->work, .in = o->h, .eps = cfg->base.eps };
    struct residual add = { .x = o->work, .eps = cfg->base.eps };

    TRY(op->mul(s->lane, o->work, x, NO_TENSOR));
    TRY(op->rms_norm(s->lane, o->h, x, w->dense.attn_norm, cfg->base.eps, 0));
    TRY(op->residual(s->lane, &laurel));
    TRY(op->matmul(s->lane, o->rank, o->h, w->left, NO_TENSOR, 0));
    TRY(op->matmul(s->lane, o->out, o->rank, w->right, NO_TENSOR, 0));
    laurel.in = o->out;
    laurel.in_norm = w->laurel_post;
    TRY(op->residual(s->lane, &laurel));

    TRY(gemma_attend(m, s, l, &w->dense, o->h, &heads));
    add.in_norm = w->dense.attn_post;
    TRY(block_residual(m, s, heads, w->dense.o, add));
    TRY(op->scale(s->lane, o->work, (float)M_SQRT1_2, 0));

    TRY(op->rms_norm(s->lane, o->h, o->work, w->dense.ff_norm, cfg->base.eps, 0));
    TRY(feed_forward(m, s, l, o->h, &inner));
    add.in_norm = w->dense.ff_post;
    return block_residual(m, s, inner, w->dense.down, add);
}

/* Embeds tokens into stream 0; sets the other streams to projections of it, scaled to its RMS. */
static int
begin_streams(const struct model *m, struct step *s, const struct gemma3n_scratch *o)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n *top = m->top;
    uint32_t hidden = m->shape.hidden, streams = m->shape.n_streams;

    TRY(op->embed(s->lane, o->h, top->base.base.embed, s->rows.token, cfg->base.embed_scale));
    TRY(op->embed(s->lane, stream(m, s, 0), top->base.base.embed, s->rows.token,
                  cfg->base.embed_scale));
    TRY(op->matmul(s->lane, tensor_cols(s->x, hidden, (streams - 1) * hidden), o->h, top->altup_in,
                   NO_TENSOR, 0));
    for (uint32_t i = 1; i < streams; i++)
        TRY(op->match_rms(s->lane, stream(m, s, i), stream(m, s, 0), LEAST));
    return 0;
}

/* Projects all streams but stream 0 back, scaled to the RMS of stream 0; normed = norm of the mean
 * of all. */
static int
join_streams(const struct model *m, struct step *s, const struct gemma3n_scratch *o)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n *top = m->top;
    uint32_t hidden = m->shape.hidden, streams = m->shape.n_streams;

    TRY(op->mul(s->lane, o->work, stream(m, s, 0), NO_TENSOR));
    for (uint32_t i = 1; i < streams; i++) {
        TRY(op->mul(s->lane, o->h, stream(m, s, i), NO_TENSOR));
        TRY(op->matmul(s->lane, o->other, o->h,
                       tensor_rows(top->altup_out, (i - 1) * hidden, hidden), NO_TENSOR, 0));
        TRY(op->match_rms(s->lane, o->other, stream(m, s, 0), LEAST));
        TRY(op->add(s->lane, o->work, o->other));
    }
    TRY(op->scale(s->lane, o->work, 1.0f / (float)streams, 0));
    return op->rms_norm(s->lane, s->normed, o->work, top->base.base.norm, cfg->base.eps, 0);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct gemma3n_cfg *cfg = m->cfg;
    const struct gemma3n_layer *w = (const struct gemma3n_layer *)m->layer + first;
    const struct gemma3n_scratch o = scratch_of(m, s);
    struct tensor inputs, active = stream(m, s, cfg->active);
    uint32_t streams = m->shape.n_streams;
    struct altup predict = { ALTUP_PREDICT, s->x, o.coefs, NO_TENSOR, streams, cfg->active };
    struct altup correct = { ALTUP_CORRECT, s->x,    tensor_cols(o.coefs, 0, streams),
                             o.work,        streams, cfg->active };

    if (first == 0) TRY(begin_streams(m, s, &o));
    TRY(gemma_inputs(m, s, cfg->each, first, n, o.h, &inputs));
    for (uint32_t l = first; l < first + n; l++, w++) {
        TRY(route(m, s, &o, w, active, predict.coef, w->predict));
        TRY(op->altup(s->lane, &predict));
        TRY(sublayers(m, s, l, &o));
        TRY(route(m, s, &o, w, o.work, correct.coef, w->correct));
        TRY(op->altup(s->lane, &correct));

        TRY(op->mul(s->lane, o.h, active, w->output_scale));
        TRY(gemma_use_input(m, s, o.out, o.h, &w->input,
                            tensor_cols(inputs, (l - first) * cfg->each, cfg->each)));
        for (uint32_t i = 1; i < streams; i++) { /* not stream 0, even if another is active */
            struct residual add = {
                .x = stream(m, s, i), .in = o.out, .in_norm = w->input.post, .eps = cfg->base.eps
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
    .exceeds_fp16 = true,
    .weights = weights,
    .divide = divide,
    .prefixes = gemma_prefixes,
    .configure = configure,
    .tables = causal_tables,
    .forward = forward,
    .logits = block_logits,
};
