/* bart.c - BART (post-norm) and mBART (pre-norm).
 *
 * Encoder and decoder with learned positions, a normed embedding, layer norms, and a bias on every
 * matmul. BART norms after each sublayer; mBART norms before each sublayer and at the end of each
 * stack. model_type decides which; flags in config.json are ignored, as in transformers. Source:
 * BartForConditionalGeneration, MBartForConditionalGeneration of transformers 5.17. */
#include "worker/arch/registry.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

#include <math.h>

struct bart_norm {
    struct tensor weight, bias; /* [hidden] */
};

/* A weight matrix [out, in] and its bias [out]. */
struct bart_linear {
    struct tensor weight, bias;
};

struct bart {
    struct tensor shared;                        /* [vocab, hidden], and the head */
    struct tensor logits_bias;                   /* [vocab] or NO_TENSOR */
    struct tensor encoder_pos, decoder_pos;      /* [positions + 2, hidden] */
    struct bart_norm encoder_emb, decoder_emb;   /* after the embedding */
    struct bart_norm encoder_norm, decoder_norm; /* mBART: after the last layer */
};

struct bart_block { /* an encoder layer; the first fields of a decoder layer */
    struct bart_norm self_norm, ff_norm;
    struct bart_linear qkv, o;   /* [3 q, hidden], [hidden, q] */
    struct bart_linear up, down; /* [ff, hidden], [hidden, ff] */
};

struct bart_layer { /* of the decoder */
    struct bart_block base;
    struct bart_norm cross_norm;
    struct bart_linear cross_q, cross_kv, cross_o; /* [q, hidden], [2 q, hidden], [hidden, q] */
};

struct bart_cfg {
    bool post;
    float embed_scale;
    enum act act;
};

#define TOP(f) IN_TOP, offsetof(struct bart, f)
#define ENC(f) IN_ENCODER, offsetof(struct bart_block, f)
#define DEC(f) IN_LAYER, offsetof(struct bart_layer, f)
#define DEC_BASE(f) DEC(base.f)
#define DIM_POSITIONS DIM_OWN_0
#define DIM_FINAL DIM_OWN_1 /* size of the norm at the end of a stack: hidden in mBART, 0 in BART */
#define E "encoder.layers.%u."
#define D "decoder.layers.%u."
#define ROWS W_SPLIT_ROWS
#define BELOW (W_SPLIT_ROWS | W_STACKED)

/* clang-format off */
/* Lines of the weight table that the encoder and the decoder share. P: prefix of the tensor names,
 * E or D. TO(f): home (arch.h) and offset of field f, ENC or DEC_BASE. */
#define SELF_ATTENTION(P, TO) \
    { P "self_attn.q_proj.weight",           TO(qkv.weight),            DIM_Q,         DIM_HIDDEN, ROWS }, \
    { P "self_attn.k_proj.weight",           TO(qkv.weight),            DIM_Q,         DIM_HIDDEN, BELOW }, \
    { P "self_attn.v_proj.weight",           TO(qkv.weight),            DIM_Q,         DIM_HIDDEN, BELOW }, \
    { P "self_attn.q_proj.bias",             TO(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | ROWS }, \
    { P "self_attn.k_proj.bias",             TO(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | BELOW }, \
    { P "self_attn.v_proj.bias",             TO(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | BELOW }, \
    { P "self_attn.out_proj.weight",         TO(o.weight),              DIM_HIDDEN,    DIM_Q,      W_SPLIT_COLS }, \
    { P "self_attn.out_proj.bias",           TO(o.bias),                DIM_1,         DIM_HIDDEN, W_FP32 }, \
    { P "self_attn_layer_norm.weight",       TO(self_norm.weight),      DIM_1,         DIM_HIDDEN, W_FP32 }, \
    { P "self_attn_layer_norm.bias",         TO(self_norm.bias),        DIM_1,         DIM_HIDDEN, W_FP32 }
#define FEED_FORWARD(P, TO) \
    { P "fc1.weight",                        TO(up.weight),             DIM_FF,        DIM_HIDDEN, ROWS }, \
    { P "fc1.bias",                          TO(up.bias),               DIM_FF,        DIM_1,      W_FP32 | ROWS }, \
    { P "fc2.weight",                        TO(down.weight),           DIM_HIDDEN,    DIM_FF,     W_SPLIT_COLS }, \
    { P "fc2.bias",                          TO(down.bias),             DIM_1,         DIM_HIDDEN, W_FP32 }, \
    { P "final_layer_norm.weight",           TO(ff_norm.weight),        DIM_1,         DIM_HIDDEN, W_FP32 }, \
    { P "final_layer_norm.bias",             TO(ff_norm.bias),          DIM_1,         DIM_HIDDEN, W_FP32 }

static const struct weight_rule weights[] = {
    /* in the checkpoint                     field                       rows           cols        */
    { "shared.weight",                       TOP(shared),                DIM_VOCAB,     DIM_HIDDEN, 0 },
    { "final_logits_bias",                   TOP(logits_bias),           DIM_1,         DIM_VOCAB,  W_FP32 | W_OPTIONAL },
    { "encoder.embed_positions.weight",      TOP(encoder_pos),           DIM_POSITIONS, DIM_HIDDEN, W_FP32 },
    { "decoder.embed_positions.weight",      TOP(decoder_pos),           DIM_POSITIONS, DIM_HIDDEN, W_FP32 },
    { "encoder.layernorm_embedding.weight",  TOP(encoder_emb.weight),    DIM_1,         DIM_HIDDEN, W_FP32 },
    { "encoder.layernorm_embedding.bias",    TOP(encoder_emb.bias),      DIM_1,         DIM_HIDDEN, W_FP32 },
    { "decoder.layernorm_embedding.weight",  TOP(decoder_emb.weight),    DIM_1,         DIM_HIDDEN, W_FP32 },
    { "decoder.layernorm_embedding.bias",    TOP(decoder_emb.bias),      DIM_1,         DIM_HIDDEN, W_FP32 },
    { "encoder.layer_norm.weight",           TOP(encoder_norm.weight),   DIM_1,         DIM_FINAL,  W_FP32 },
    { "encoder.layer_norm.bias",             TOP(encoder_norm.bias),     DIM_1,         DIM_FINAL,  W_FP32 },
    { "decoder.layer_norm.weight",           TOP(decoder_norm.weight),   DIM_1,         DIM_FINAL,  W_FP32 },
    { "decoder.layer_norm.bias",             TOP(decoder_norm.bias),     DIM_1,         DIM_FINAL,  W_FP32 },

    SELF_ATTENTION(E, ENC),
    FEED_FORWARD(E, ENC),
    SELF_ATTENTION(D, DEC_BASE),
    { D "encoder_attn.q_proj.weight",        DEC(cross_q.weight),        DIM_Q,         DIM_HIDDEN, ROWS },
    { D "encoder_attn.q_proj.bias",          DEC(cross_q.bias),          DIM_Q,         DIM_1,      W_FP32 | ROWS },
    { D "encoder_attn.k_proj.weight",        DEC(cross_kv.weight),       DIM_Q,         DIM_HIDDEN, ROWS },
    { D "encoder_attn.v_proj.weight",        DEC(cross_kv.weight),       DIM_Q,         DIM_HIDDEN, BELOW },
    { D "encoder_attn.k_proj.bias",          DEC(cross_kv.bias),         DIM_Q,         DIM_1,      W_FP32 | ROWS },
    { D "encoder_attn.v_proj.bias",          DEC(cross_kv.bias),         DIM_Q,         DIM_1,      W_FP32 | BELOW },
    { D "encoder_attn.out_proj.weight",      DEC(cross_o.weight),        DIM_HIDDEN,    DIM_Q,      W_SPLIT_COLS },
    { D "encoder_attn.out_proj.bias",        DEC(cross_o.bias),          DIM_1,         DIM_HIDDEN, W_FP32 },
    { D "encoder_attn_layer_norm.weight",    DEC(cross_norm.weight),     DIM_1,         DIM_HIDDEN, W_FP32 },
    { D "encoder_attn_layer_norm.bias",      DEC(cross_norm.bias),       DIM_1,         DIM_HIDDEN, W_FP32 },
    FEED_FORWARD(D, DEC_BASE),
    { 0 },
};
/* clang-format on */

static const float EPS = 1e-5f; /* eps of every norm; config.json has no key for it */
enum { FIRST_POSITION = 2 };    /* row of position 0 in encoder_pos and decoder_pos */

static int
read_act(const json_t *config, enum act *ret, struct err *e)
{
    static const struct {
        const char *name;
        enum act act;
    } known[] = { { "gelu", ACT_GELU },          { "relu", ACT_RELU },
                  { "gelu_new", ACT_GELU_TANH }, { "gelu_pytorch_tanh", ACT_GELU_TANH },
                  { "silu", ACT_SILU },          { "swish", ACT_SILU } };
    const char *name;

    TRY(cfg_str(config, "activation_function", "gelu", &name, e));
    for (unsigned i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(name, known[i].name)) {
            *ret = known[i].act;
            return 0;
        }
    return err_set(e, -ENOTSUP,
                   "activation_function is \"%.40s\"; gelu, relu, gelu_new, gelu_pytorch_tanh and "
                   "silu are implemented",
                   name);
}

/* Reads the number and the shape of the layers of one side, "encoder" or "decoder". */
static int
read_side(const json_t *config, const char *side, uint32_t hidden, uint32_t *n,
          struct layer_shape *l, struct err *e)
{
    char layers[32], heads[40], ff[32];

    snprintf(layers, sizeof layers, "%s_layers", side);
    snprintf(heads, sizeof heads, "%s_attention_heads", side);
    snprintf(ff, sizeof ff, "%s_ffn_dim", side);
    TRY(cfg_u32(config, layers, 12, 1, MAX_LAYERS, n, e));
    TRY(cfg_u32(config, heads, 16, 1, CFG_MAX_HEADS, &l->n_heads, e));
    if (strcmp(side, "encoder") == 0) { /* these two keys have a second name */
        TRY(cfg_u32(config, "num_hidden_layers", *n, 1, MAX_LAYERS, n, e));
        TRY(cfg_u32(config, "num_attention_heads", l->n_heads, 1, CFG_MAX_HEADS, &l->n_heads, e));
    }
    TRY(cfg_u32(config, ff, 4096, 1, CFG_MAX_FF, &l->n_ff, e));
    if (hidden % l->n_heads)
        return err_set(e, -EINVAL, "%s is %u, which does not divide d_model %u", heads, l->n_heads,
                       hidden);
    l->n_kv_heads = l->n_heads;
    l->head_dim = hidden / l->n_heads;
    if (l->head_dim > CFG_MAX_HEAD_DIM)
        return err_set(e, -EINVAL,
                       "%s is %u: each head would have %u dims; at most %u are supported", heads,
                       l->n_heads, l->head_dim, CFG_MAX_HEAD_DIM);
    return 0;
}

static int
configure(json_t *config, struct model_shape *s, void *out, struct err *e)
{
    struct bart_cfg *cfg = out;
    struct layer_shape enc = { .mixer = MIX_ATTENTION, .kv = KV_FULL, .kv_parts = 2 }, dec = enc;
    uint32_t positions;
    const char *type;
    bool scaled;

    TRY(cfg_str(config, "model_type", NULL, &type, e));
    cfg->post = strcmp(type, "mbart") != 0;
    TRY(cfg_want_bool(config, "is_encoder_decoder", true, e));
    TRY(cfg_want_bool(config, "is_decoder", false, e));
    TRY(cfg_want_bool(config, "tie_word_embeddings", true, e));
    TRY(read_act(config, &cfg->act, e));
    TRY(cfg_bool(config, "scale_embedding", false, &scaled, e));
    TRY(cfg_u32(config, cfg_either(config, "hidden_size", "d_model"), 1024, 1, CFG_MAX_HIDDEN,
                &s->hidden, e));
    TRY(cfg_u32(config, "vocab_size", 50265, 1, CFG_MAX_VOCAB, &s->vocab, e));
    TRY(cfg_u32(config, "max_position_embeddings", 1024, 1, CFG_MAX_POSITIONS - FIRST_POSITION,
                &positions, e));
    TRY(read_side(config, "encoder", s->hidden, &s->n_encoder_layers, &enc, e));
    TRY(read_side(config, "decoder", s->hidden, &s->n_layers, &dec, e));
    cfg->embed_scale = scaled ? sqrtf((float)s->hidden) : 1;

    s->max_len = s->max_source = positions;
    s->dim[DIM_POSITIONS] = positions + FIRST_POSITION;
    s->dim[DIM_FINAL] = cfg->post ? 0 : s->hidden;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        s->layer[i] = dec;
        s->layer[i].kv_from = (uint16_t)i;
    }
    for (uint32_t i = 0; i < s->n_encoder_layers; i++) s->encoder[i] = enc;
    s->cross = dec;
    s->cross.kv = KV_CROSS;
    return 0;
}

/* Returns the residual that ends a sublayer: x += output + bias; y = norm(x); BART: x = y. */
static struct residual
add_and_norm(const struct model *m, struct tensor x, struct tensor bias, struct tensor y,
             const struct bart_norm *norm)
{
    const struct bart_cfg *cfg = m->cfg;

    return (struct residual){ .x = x,
                              .in_bias = bias,
                              .y = y,
                              .y_norm = norm->weight,
                              .y_bias = norm->bias,
                              .eps = EPS,
                              .norm = cfg->post ? RESIDUAL_POST : RESIDUAL_LAYER };
}

/* The tensors that a range of layers of one stack (the encoder or the decoder) reads and writes. */
struct stack {
    struct tensor x, h, out; /* h: input of a sublayer; out: normed x after the last layer */
    struct step_tokens tokens;
    struct tensor positions;
    const struct bart_norm *embed_norm, *last_norm; /* last_norm: mBART only */
    uint32_t end, n_layers; /* the range ends before layer `end` of n_layers */
};

/* Sets x = norm(scale * embedding + position) and, in BART, h = x. */
static int
embed(const struct model *m, struct step *s, const struct stack *k)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    uint32_t n = k->positions.dim[0] - FIRST_POSITION;
    struct residual sum = add_and_norm(m, k->x, NO_TENSOR, cfg->post ? k->h : NO_TENSOR,
                                       k->embed_norm);

    sum.norm = RESIDUAL_POST;
    sum.in = block_scratch(s, BLOCK_OUT, k->tokens.n_tokens, m->shape.hidden);
    TRY(m->op->embed(s->lane, k->x, top->shared, k->tokens.token, cfg->embed_scale));
    TRY(m->op->embed(s->lane, sum.in, tensor_rows(k->positions, FIRST_POSITION, n), k->tokens.pos,
                     1));
    return m->op->residual(s->lane, &sum);
}

/* Sets h to the input of the first sublayer of the range, layer w. x is the output of `before`, the
 * layer before w (NULL: w is layer 0 of the stack); in BART this x is not normed yet. */
static int
begin(const struct model *m, struct step *s, const struct stack *k, const struct bart_block *before,
      const struct bart_block *w)
{
    const struct bart_cfg *cfg = m->cfg;
    struct residual norm;

    if (!before) TRY(embed(m, s, k));
    if (!before && cfg->post) return 0;
    norm = add_and_norm(m, k->x, NO_TENSOR, k->h, cfg->post ? &before->ff_norm : &w->self_norm);
    return m->op->residual(s->lane, &norm);
}

/* Ends an attention sublayer: x += o heads + bias; h = norm(x) */
static int
end_attention(const struct model *m, struct step *s, const struct stack *k, struct tensor heads,
              const struct bart_linear *o, const struct bart_norm *norm)
{
    return block_residual(m, s, heads, o->weight, add_and_norm(m, k->x, o->bias, k->h, norm));
}

/* Computes the feed-forward of layer l and ends the layer. At the end of a range that is not the
 * end of the stack, x is not normed, because begin() of the next range norms it. */
static int
feed_forward(const struct model *m, struct step *s, const struct stack *k, uint32_t l,
             const struct bart_block *w, const struct bart_block *next)
{
    const struct bart_cfg *cfg = m->cfg;
    bool last = l + 1 == k->n_layers;
    struct tensor inner = block_scratch(s, BLOCK_INNER, k->h.dim[0], w->up.weight.dim[0]);
    struct residual end = { .x = k->x, .in_bias = w->down.bias };

    if (last || l + 1 < k->end)
        end = add_and_norm(m, k->x, w->down.bias, last ? k->out : k->h,
                           cfg->post ? &w->ff_norm
                           : last    ? k->last_norm
                                     : &next->self_norm);
    TRY(m->op->act_matmul(s->lane, inner, k->h, w->up.weight, w->up.bias, cfg->act));
    return block_residual(m, s, inner, w->down.weight, end);
}

static struct block_attention
attention_of(const struct bart_linear *qkv, const struct layer_shape *shape)
{
    return (struct block_attention){ .qkv = qkv->weight,
                                     .bias = qkv->bias,
                                     .scale = 1 / sqrtf((float)shape->head_dim) };
}

static int
encode(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    const struct bart_block *w = (const struct bart_block *)m->encoder + first;
    const struct stack k = {
        .x = s->enc_x,
        .h = block_scratch(s, BLOCK_NORMED, s->enc.n_tokens, m->shape.hidden),
        .out = s->enc_out,
        .tokens = s->enc,
        .positions = top->encoder_pos,
        .embed_norm = &top->encoder_emb,
        .last_norm = &top->encoder_norm,
        .end = first + n,
        .n_layers = m->shape.n_encoder_layers,
    };

    TRY(begin(m, s, &k, first ? &w[-1] : NULL, w));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention a = attention_of(&w->qkv, &m->shape.encoder[0]);
        struct tensor heads;

        TRY(block_attend_encoder(m, s, k.h, &a, &heads));
        TRY(end_attention(m, s, &k, heads, &w->o, cfg->post ? &w->self_norm : &w->ff_norm));
        TRY(feed_forward(m, s, &k, l, w, &w[1]));
    }
    return 0;
}

static int
project_cross(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct bart_layer *w = m->layer;

    for (uint32_t l = first; l < first + n; l++)
        TRY(block_project_cross(m, s, l, w[l].cross_kv.weight, w[l].cross_kv.bias));
    return 0;
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    const struct bart_layer *w = (const struct bart_layer *)m->layer + first;
    const struct stack k = {
        .x = s->x,
        .h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden),
        .out = s->normed,
        .tokens = s->rows,
        .positions = top->decoder_pos,
        .embed_norm = &top->decoder_emb,
        .last_norm = &top->decoder_norm,
        .end = first + n,
        .n_layers = m->shape.n_layers,
    };

    TRY(begin(m, s, &k, first ? &w[-1].base : NULL, &w->base));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct block_attention self = attention_of(&w->base.qkv, &m->shape.layer[l]);
        struct block_attention cross = attention_of(&w->cross_q, &m->shape.cross);
        struct tensor heads;

        TRY(block_attend_decoder(m, s, l, k.h, &self, &heads));
        TRY(end_attention(m, s, &k, heads, &w->base.o,
                          cfg->post ? &w->base.self_norm : &w->cross_norm));
        TRY(block_attend_cross(m, s, l, k.h, &cross, &heads));
        TRY(end_attention(m, s, &k, heads, &w->cross_o,
                          cfg->post ? &w->cross_norm : &w->base.ff_norm));
        TRY(feed_forward(m, s, &k, l, &w->base, &w[1].base));
    }
    return 0;
}

static int
logits(const struct model *m, struct step *s, struct tensor out, struct tensor x)
{
    const struct bart *top = m->top;

    return block_head(m, s, out, x, top->shared, top->logits_bias);
}

const struct arch arch_bart = {
    .name = "bart",
    .hf_types = (const char *const[]){ "bart", "mbart", NULL },
    .cfg_bytes = sizeof(struct bart_cfg),
    .top_bytes = sizeof(struct bart),
    .layer_bytes = sizeof(struct bart_layer),
    .encoder_bytes = sizeof(struct bart_block),
    .weights = weights,
    .divide = sharding_agrees,
    .prefixes = (const char *const[]){ "", "model.", NULL },
    .configure = configure,
    .forward = forward,
    .encode = encode,
    .project_cross = project_cross,
    .logits = logits,
};
