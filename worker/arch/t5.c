/* t5.c - T5: version 1.0 (relu, tied head), 1.1 and Flan (gated gelu, untied head).
 *
 * Pre-norm encoder and decoder without absolute positions: self-attention adds a bias that depends
 * on the distance. Encoder and decoder have one bias table each, stored in block 0. Scores are not
 * scaled. Source: T5ForConditionalGeneration of transformers 5.17. */
#include "worker/arch/registry.h"
#include "worker/arch/t5_bias.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/host_tables.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

#include <math.h>

struct t5 {
    struct tensor shared;                     /* [vocab, hidden] */
    struct tensor head;                       /* [vocab, hidden]; shared itself if tied */
    struct tensor encoder_norm, decoder_norm; /* [hidden] */
};

/* The feed-forward of a model has either plain or gate_up; the other tensor is empty. */
struct t5_layer {                    /* of the decoder */
    struct tensor bias;              /* [buckets, heads], block 0 */
    struct tensor self_norm;         /* [hidden] */
    struct tensor qkv;               /* [3 q, hidden] */
    struct tensor o;                 /* [hidden, q] */
    struct tensor cross_norm;        /* [hidden] */
    struct tensor cross_q, cross_kv; /* [q, hidden], [2 q, hidden] */
    struct tensor cross_o;           /* [hidden, q] */
    struct tensor ff_norm;           /* [hidden] */
    struct tensor plain, gate_up;    /* [ff, hidden], [2 ff, hidden] gate rows first */
    struct tensor down;              /* [hidden, ff] */
};

struct t5_encoder {
    struct tensor bias, self_norm, qkv, o, ff_norm, plain, gate_up, down;
};

struct t5_cfg {
    float eps;
    float head_scale; /* factor of the hidden states that are the input of the head */
    enum act act;
    bool gated;
    uint32_t buckets, max_distance;
    uint32_t reach[2]; /* reach (t5_bias.h) of m->table[TABLE_ENCODER], m->table[TABLE_DECODER] */
};
enum { TABLE_ENCODER, TABLE_DECODER };

#define TOP(f) IN_TOP, offsetof(struct t5, f)
#define ENC(f) IN_ENCODER, offsetof(struct t5_encoder, f)
#define DEC(f) IN_LAYER, offsetof(struct t5_layer, f)
#define DIM_PLAIN DIM_OWN_0 /* 0 if the feed-forward is gated, else ff */
#define DIM_GATED DIM_OWN_1 /* ff if the feed-forward is gated, else 0 */
#define E "encoder.block.%u.layer."
#define D "decoder.block.%u.layer."

/* clang-format off */
/* Lines of the weight table that the encoder and the decoder share. P: prefix of the tensor names,
 * E or D. TO(f): home (arch.h) and offset of field f, ENC or DEC. */
#define SELF_ATTENTION(P, TO) \
    { P "0.SelfAttention.relative_attention_bias.weight", TO(bias), DIM_BUCKETS, DIM_HEADS, W_FIRST | W_FP32 | W_SPLIT_COLS }, \
    { P "0.layer_norm.weight",             TO(self_norm),     DIM_1,       DIM_HIDDEN, W_FP32 }, \
    { P "0.SelfAttention.q.weight",        TO(qkv),           DIM_Q,       DIM_HIDDEN, W_SPLIT_ROWS }, \
    { P "0.SelfAttention.k.weight",        TO(qkv),           DIM_Q,       DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED }, \
    { P "0.SelfAttention.v.weight",        TO(qkv),           DIM_Q,       DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED }, \
    { P "0.SelfAttention.o.weight",        TO(o),             DIM_HIDDEN,  DIM_Q,      W_SPLIT_COLS }
#define FEED_FORWARD(P, TO) \
    { P "layer_norm.weight",               TO(ff_norm),       DIM_1,       DIM_HIDDEN, W_FP32 }, \
    { P "DenseReluDense.wi.weight",        TO(plain),         DIM_PLAIN,   DIM_HIDDEN, W_SPLIT_ROWS }, \
    { P "DenseReluDense.wi_0.weight",      TO(gate_up),       DIM_GATED,   DIM_HIDDEN, W_SPLIT_ROWS }, \
    { P "DenseReluDense.wi_1.weight",      TO(gate_up),       DIM_GATED,   DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED }, \
    { P "DenseReluDense.wo.weight",        TO(down),          DIM_HIDDEN,  DIM_FF,     W_SPLIT_COLS }

static const struct weight_rule weights[] = {
    /* in the checkpoint                     field              rows         cols        */
    { "shared.weight",                       TOP(shared),       DIM_VOCAB,   DIM_HIDDEN, 0 },
    { "lm_head.weight",                      TOP(head),         DIM_VOCAB,   DIM_HIDDEN, W_TIED | W_SPLIT_ROWS },
    { "encoder.final_layer_norm.weight",     TOP(encoder_norm), DIM_1,       DIM_HIDDEN, W_FP32 },
    { "decoder.final_layer_norm.weight",     TOP(decoder_norm), DIM_1,       DIM_HIDDEN, W_FP32 },

    SELF_ATTENTION(E, ENC),
    FEED_FORWARD(E "1.", ENC),
    SELF_ATTENTION(D, DEC),
    { D "1.layer_norm.weight",               DEC(cross_norm),   DIM_1,       DIM_HIDDEN, W_FP32 },
    { D "1.EncDecAttention.q.weight",        DEC(cross_q),      DIM_Q,       DIM_HIDDEN, W_SPLIT_ROWS },
    { D "1.EncDecAttention.k.weight",        DEC(cross_kv),     DIM_Q,       DIM_HIDDEN, W_SPLIT_ROWS },
    { D "1.EncDecAttention.v.weight",        DEC(cross_kv),     DIM_Q,       DIM_HIDDEN, W_SPLIT_ROWS | W_STACKED },
    { D "1.EncDecAttention.o.weight",        DEC(cross_o),      DIM_HIDDEN,  DIM_Q,      W_SPLIT_COLS },
    FEED_FORWARD(D "2.", DEC),
    { 0 },
};
/* clang-format on */

/* The maximum length in lagan, which bounds the size of block tables. T5 has no maximum, because
 * all distances beyond t5_reach() have the same bias. */
enum { T5_POSITIONS = 4096 };

static int
read_feed_forward(const json_t *config, struct t5_cfg *cfg, struct err *e)
{
    static const struct {
        const char *name;
        bool gated;
        enum act act;
    } known[] = {
        { "relu", false, ACT_RELU },
        { "gated-gelu", true, ACT_GELU_TANH }, /* the tanh approximation, despite the name */
        { "gated-silu", true, ACT_SILU },
    };
    const char *name;

    TRY(cfg_str(config, "feed_forward_proj", "relu", &name, e));
    for (unsigned i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(name, known[i].name)) {
            cfg->gated = known[i].gated;
            cfg->act = known[i].act;
            return 0;
        }
    return err_set(
        e, -ENOTSUP,
        "feed_forward_proj is \"%s\"; only relu, gated-gelu and gated-silu are implemented", name);
}

static int
read_buckets(const json_t *config, struct t5_cfg *cfg, struct err *e)
{
    TRY(cfg_u32(config, "relative_attention_num_buckets", 32, 4, 4096, &cfg->buckets, e));
    TRY(cfg_u32(config, "relative_attention_max_distance", 128, 1, 1 << 20, &cfg->max_distance, e));
    if (cfg->buckets % 4)
        return err_set(e, -ENOTSUP, "relative_attention_num_buckets is %u, not a multiple of 4",
                       cfg->buckets);
    if (cfg->max_distance <= cfg->buckets / 2)
        return err_set(e, -EINVAL,
                       "relative_attention_max_distance is %u; it must be more than %u, half of "
                       "relative_attention_num_buckets",
                       cfg->max_distance, cfg->buckets / 2);
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct t5_cfg *cfg = out;
    struct layer_shape l = { .mixer = MIX_ATTENTION, .kv = KV_FULL, .kv_parts = 2 };
    bool scaled;

    TRY(read_feed_forward(config, cfg, e));
    TRY(read_buckets(config, cfg, e));
    TRY(cfg_u32(config, cfg_either(config, "hidden_size", "d_model"), 512, 1, CFG_MAX_HIDDEN,
                &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 32128, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "num_layers", 6, 1, MAX_LAYERS, &s->n_encoder_layers, e));
    /* num_hidden_layers, a second name of num_layers, is read last, because it does not change the
     * default of num_decoder_layers. */
    TRY(cfg_u32(config, "num_decoder_layers", s->n_encoder_layers, 1, MAX_LAYERS, &s->n_layers, e));
    TRY(cfg_u32(config, "num_hidden_layers", s->n_encoder_layers, 1, MAX_LAYERS,
                &s->n_encoder_layers, e));
    TRY(cfg_u32(config, "d_ff", 2048, 1, CFG_MAX_FF, &l.n_ff, e));
    TRY(cfg_u32(config, cfg_either(config, "num_attention_heads", "num_heads"), 8, 1, CFG_MAX_HEADS,
                &l.n_heads, e));
    TRY(cfg_u32(config, cfg_either(config, "head_dim", "d_kv"), 64, 1, CFG_MAX_HEAD_DIM,
                &l.head_dim, e));
    TRY(cfg_f32(config, "layer_norm_epsilon", 1e-6, 0, 1, &cfg->eps, e));
    /* head_scale depends on tie_word_embeddings, not on the presence of lm_head.weight. */
    TRY(cfg_bool(config, "tie_word_embeddings", true, &s->tied, e));
    TRY(cfg_bool(config, "scale_decoder_outputs", s->tied, &scaled, e));
    cfg->head_scale = scaled ? (float)(1 / sqrt((double)s->hidden)) : 1;

    l.n_kv_heads = l.n_heads;
    s->max_len = s->max_source = T5_POSITIONS;
    s->dim[DIM_BUCKETS] = cfg->buckets;
    s->dim[DIM_PLAIN] = cfg->gated ? 0 : l.n_ff;
    s->dim[DIM_GATED] = cfg->gated ? l.n_ff : 0;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        s->layer[i] = l;
        s->layer[i].kv_from = (uint16_t)i;
    }
    for (uint32_t i = 0; i < s->n_encoder_layers; i++) s->encoder[i] = l;
    s->cross = l;
    s->cross.kv = KV_CROSS;
    return 0;
}

static int
make_bias(struct model *m, uint32_t which, struct tensor weight, struct t5_buckets b, struct err *e)
{
    struct t5_cfg *cfg = m->cfg;
    uint32_t heads = m->shape.layer[0].n_heads, reach = t5_reach(b), cols = 2 * reach + 1;
    float *w = malloc(sizeof *w * b.n * heads), *out = malloc(sizeof *out * heads * cols);
    int r = w && out ? host_tables_read(m, w, weight, e)
                     : err_set(e, -ENOMEM,
                               "no host memory for position biases of %u heads x %u distances",
                               heads, cols);

    cfg->reach[which] = reach;
    if (r >= 0) {
        t5_bias(out, w, heads, b);
        r = host_tables_make(m, which, heads, cols, out, e);
    }
    free(w);
    free(out);
    return r;
}

static int
prepare(struct model *m, struct err *e)
{
    const struct t5_cfg *cfg = m->cfg;
    struct t5_buckets b = { cfg->buckets, cfg->max_distance, .both = true };

    TRY(make_bias(m, TABLE_ENCODER, ((const struct t5_encoder *)m->encoder)->bias, b, e));
    b.both = false;
    return make_bias(m, TABLE_DECODER, ((const struct t5_layer *)m->layer)->bias, b, e);
}

/* Runs the residual op `end` with the feed-forward wo(act(wi h)) or wo(act(wi_0 h) * wi_1 h). */
static int
feed_forward(const struct model *m, struct step *s, struct tensor h, struct tensor plain,
             struct tensor gate_up, struct tensor down, struct residual end)
{
    const struct t5_cfg *cfg = m->cfg;
    struct tensor inner = block_scratch(s, BLOCK_INNER, h.dim[0], m->shape.layer[0].n_ff);

    if (cfg->gated)
        TRY(block_gated(m, s, h, gate_up, cfg->act, &inner));
    else
        TRY(m->op->act_matmul(s->lane, inner, h, plain, NO_TENSOR, cfg->act));
    return block_residual(m, s, inner, down, end);
}

/* Returns the residual op at the end of a sublayer: x += sublayer output; y = norm(x). */
static struct residual
add_and_norm(const struct model *m, struct tensor x, struct tensor y, struct tensor norm)
{
    const struct t5_cfg *cfg = m->cfg;

    return (struct residual){ .x = x, .y = y, .y_norm = norm, .eps = cfg->eps };
}

static int
encode(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct t5_cfg *cfg = m->cfg;
    const struct t5 *top = m->top;
    const struct t5_encoder *w = (const struct t5_encoder *)m->encoder + first;
    struct tensor h = block_scratch(s, BLOCK_NORMED, s->enc.n_tokens, m->shape.hidden);

    if (first == 0) TRY(op->embed(s->lane, s->enc_x, top->shared, s->enc.token, 1));
    TRY(op->rms_norm(s->lane, h, s->enc_x, w->self_norm, cfg->eps, 0));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention a = {
            .qkv = w->qkv,
            .distance_bias = m->table[TABLE_ENCODER],
            .reach = cfg->reach[TABLE_ENCODER],
            .scale = 1,
        };
        struct residual end = add_and_norm(m, s->enc_x, NO_TENSOR, NO_TENSOR);
        struct tensor heads;

        if (l + 1 < first + n)
            end = add_and_norm(m, s->enc_x, h, w[1].self_norm);
        else if (l + 1 == m->shape.n_encoder_layers)
            end = add_and_norm(m, s->enc_x, s->enc_out, top->encoder_norm);
        TRY(block_attend_encoder(m, s, h, &a, &heads));
        TRY(block_residual(m, s, heads, w->o, add_and_norm(m, s->enc_x, h, w->ff_norm)));
        TRY(feed_forward(m, s, h, w->plain, w->gate_up, w->down, end));
    }
    return 0;
}

static int
project_cross(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct t5_layer *w = m->layer;

    for (uint32_t l = first; l < first + n; l++)
        TRY(block_project_cross(m, s, l, w[l].cross_kv, NO_TENSOR));
    return 0;
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct t5_cfg *cfg = m->cfg;
    const struct t5 *top = m->top;
    const struct t5_layer *w = (const struct t5_layer *)m->layer + first;
    struct tensor h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden);

    if (first == 0) TRY(m->op->embed(s->lane, s->x, top->shared, s->rows.token, 1));
    TRY(m->op->rms_norm(s->lane, h, s->x, w->self_norm, cfg->eps, 0));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention self = {
            .qkv = w->qkv,
            .distance_bias = m->table[TABLE_DECODER],
            .reach = cfg->reach[TABLE_DECODER],
            .scale = 1,
        };
        struct block_attention cross = { .qkv = w->cross_q, .scale = 1 };
        struct residual end = block_layer_end(
            m, s, h, l, first + n, l + 1 < m->shape.n_layers ? w[1].self_norm : top->decoder_norm);
        struct tensor heads;

        end.eps = cfg->eps;
        TRY(block_attend_decoder(m, s, l, h, &self, &heads));
        TRY(block_residual(m, s, heads, w->o, add_and_norm(m, s->x, h, w->cross_norm)));
        TRY(block_attend_cross(m, s, l, h, &cross, &heads));
        TRY(block_residual(m, s, heads, w->cross_o, add_and_norm(m, s->x, h, w->ff_norm)));
        TRY(feed_forward(m, s, h, w->plain, w->gate_up, w->down, end));
    }
    return 0;
}

static int
logits(const struct model *m, struct step *s, struct tensor out, struct tensor x)
{
    const struct t5_cfg *cfg = m->cfg;
    const struct t5 *top = m->top;

    if (cfg->head_scale != 1) TRY(m->op->scale(s->lane, x, cfg->head_scale, 0));
    return block_head(m, s, out, x, top->head, NO_TENSOR);
}

const struct arch arch_t5 = {
    .name = "t5",
    .hf_types = (const char *const[]){ "t5", NULL },
    .cfg_bytes = sizeof(struct t5_cfg),
    .top_bytes = sizeof(struct t5),
    .layer_bytes = sizeof(struct t5_layer),
    .encoder_bytes = sizeof(struct t5_encoder),
    .weights = weights,
    .divide = sharding_agrees,
    .configure = configure,
    .prepare = prepare,
    .forward = forward,
    .encode = encode,
    .project_cross = project_cross,
    .logits = logits,
};
