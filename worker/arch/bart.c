/* bart.c - BART (post-norm) and mBART (pre-norm).
 *
 * Encoder and decoder with learned positions, an embedding that is normed, layer norms and a bias on every
 * product. BART norms after a sublayer was added, mBART before it is computed and once more at the end of
 * each stack; the class decides, whatever flags a config.json of theirs carries.
 * Source: BartForConditionalGeneration, MBartForConditionalGeneration of transformers 5.17.
 */
#include "worker/arch/registry.h"
#include "worker/model/blocks.h"
#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/sharding.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct norm {
    struct tensor weight, bias; /* [hidden] */
};

/* A product and what is added to it: [out, in], [out]. */
struct linear {
    struct tensor weight, bias;
};

struct bart {
    struct tensor shared;                   /* [vocab, hidden], and the head */
    struct tensor logits_bias;              /* [vocab], or nothing */
    struct tensor encoder_pos, decoder_pos; /* [positions + 2, hidden] */
    struct norm encoder_emb, decoder_emb;   /* of embeddings */
    struct norm encoder_norm, decoder_norm; /* mBART: of the last layer's sum */
};

struct bart_layer { /* of the decoder */
    struct norm self_norm, cross_norm, ff_norm;
    struct linear qkv, o;                     /* [3 q, hidden], [hidden, q] */
    struct linear cross_q, cross_kv, cross_o; /* [q, hidden], [2 q, hidden], [hidden, q] */
    struct linear up, down;                   /* [ff, hidden], [hidden, ff] */
};

struct bart_encoder {
    struct norm self_norm, ff_norm;
    struct linear qkv, o, up, down;
};

struct bart_cfg {
    bool post;
    float embed_scale;
    enum act act;
};

#define TOP(f) IN_TOP, offsetof(struct bart, f)
#define ENC(f) IN_ENCODER, offsetof(struct bart_encoder, f)
#define DEC(f) IN_LAYER, offsetof(struct bart_layer, f)
#define DIM_POSITIONS DIM_OWN_0
#define DIM_FINAL DIM_OWN_1 /* hidden; 0 where stacks have no norm of their own */
#define E "encoder.layers.%u."
#define D "decoder.layers.%u."
#define ROWS W_SPLIT_ROWS
#define BELOW (W_SPLIT_ROWS | W_STACKED)

/* clang-format off */
static const struct weight_rule weights[] = {
    /* in the checkpoint                     goes to                     rows           cols        */
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

    { E "self_attn.q_proj.weight",           ENC(qkv.weight),            DIM_Q,         DIM_HIDDEN, ROWS },
    { E "self_attn.k_proj.weight",           ENC(qkv.weight),            DIM_Q,         DIM_HIDDEN, BELOW },
    { E "self_attn.v_proj.weight",           ENC(qkv.weight),            DIM_Q,         DIM_HIDDEN, BELOW },
    { E "self_attn.q_proj.bias",             ENC(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | ROWS },
    { E "self_attn.k_proj.bias",             ENC(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | BELOW },
    { E "self_attn.v_proj.bias",             ENC(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | BELOW },
    { E "self_attn.out_proj.weight",         ENC(o.weight),              DIM_HIDDEN,    DIM_Q,      W_SPLIT_COLS },
    { E "self_attn.out_proj.bias",           ENC(o.bias),                DIM_1,         DIM_HIDDEN, W_FP32 },
    { E "self_attn_layer_norm.weight",       ENC(self_norm.weight),      DIM_1,         DIM_HIDDEN, W_FP32 },
    { E "self_attn_layer_norm.bias",         ENC(self_norm.bias),        DIM_1,         DIM_HIDDEN, W_FP32 },
    { E "fc1.weight",                        ENC(up.weight),             DIM_FF,        DIM_HIDDEN, ROWS },
    { E "fc1.bias",                          ENC(up.bias),               DIM_FF,        DIM_1,      W_FP32 | ROWS },
    { E "fc2.weight",                        ENC(down.weight),           DIM_HIDDEN,    DIM_FF,     W_SPLIT_COLS },
    { E "fc2.bias",                          ENC(down.bias),             DIM_1,         DIM_HIDDEN, W_FP32 },
    { E "final_layer_norm.weight",           ENC(ff_norm.weight),        DIM_1,         DIM_HIDDEN, W_FP32 },
    { E "final_layer_norm.bias",             ENC(ff_norm.bias),          DIM_1,         DIM_HIDDEN, W_FP32 },

    { D "self_attn.q_proj.weight",           DEC(qkv.weight),            DIM_Q,         DIM_HIDDEN, ROWS },
    { D "self_attn.k_proj.weight",           DEC(qkv.weight),            DIM_Q,         DIM_HIDDEN, BELOW },
    { D "self_attn.v_proj.weight",           DEC(qkv.weight),            DIM_Q,         DIM_HIDDEN, BELOW },
    { D "self_attn.q_proj.bias",             DEC(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | ROWS },
    { D "self_attn.k_proj.bias",             DEC(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | BELOW },
    { D "self_attn.v_proj.bias",             DEC(qkv.bias),              DIM_Q,         DIM_1,      W_FP32 | BELOW },
    { D "self_attn.out_proj.weight",         DEC(o.weight),              DIM_HIDDEN,    DIM_Q,      W_SPLIT_COLS },
    { D "self_attn.out_proj.bias",           DEC(o.bias),                DIM_1,         DIM_HIDDEN, W_FP32 },
    { D "self_attn_layer_norm.weight",       DEC(self_norm.weight),      DIM_1,         DIM_HIDDEN, W_FP32 },
    { D "self_attn_layer_norm.bias",         DEC(self_norm.bias),        DIM_1,         DIM_HIDDEN, W_FP32 },
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
    { D "fc1.weight",                        DEC(up.weight),             DIM_FF,        DIM_HIDDEN, ROWS },
    { D "fc1.bias",                          DEC(up.bias),               DIM_FF,        DIM_1,      W_FP32 | ROWS },
    { D "fc2.weight",                        DEC(down.weight),           DIM_HIDDEN,    DIM_FF,     W_SPLIT_COLS },
    { D "fc2.bias",                          DEC(down.bias),             DIM_1,         DIM_HIDDEN, W_FP32 },
    { D "final_layer_norm.weight",           DEC(ff_norm.weight),        DIM_1,         DIM_HIDDEN, W_FP32 },
    { D "final_layer_norm.bias",             DEC(ff_norm.bias),          DIM_1,         DIM_HIDDEN, W_FP32 },
    { 0 },
};
/* clang-format on */

static const float EPS = 1e-5f; /* of every norm; no config.json says it */
enum { FIRST_POSITION = 2 };    /* row of position 0: rows below it are not used */

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

/* One side's layers: how many, and what each is. */
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
    if (strcmp(side, "encoder") == 0) { /* its numbers have a second name each */
        TRY(cfg_u32(config, "num_hidden_layers", *n, 1, MAX_LAYERS, n, e));
        TRY(cfg_u32(config, "num_attention_heads", l->n_heads, 1, CFG_MAX_HEADS, &l->n_heads, e));
    }
    TRY(cfg_u32(config, ff, 4096, 1, CFG_MAX_FF, &l->n_ff, e));
    if (hidden % l->n_heads)
        return err_set(e, -EINVAL, "%s is %u, which does not divide a d_model of %u", heads,
                       l->n_heads, hidden);
    l->n_kv_heads = l->n_heads;
    l->head_dim = hidden / l->n_heads;
    if (l->head_dim > CFG_MAX_HEAD_DIM)
        return err_set(e, -EINVAL, "%s is %u: heads of %u, at most %u are taken", heads, l->n_heads,
                       l->head_dim, CFG_MAX_HEAD_DIM);
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
    s->dim[DIM_HIDDEN] = s->dim[DIM_Q] = s->hidden;
    s->dim[DIM_VOCAB] = s->vocab;
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

/* x += the sublayer's output with its bias; then y = norm(x), and so does BART's x. */
static struct residual
then(const struct model *m, struct tensor x, struct tensor bias, struct tensor y,
     const struct norm *norm)
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

/* The same where a range ends inside of a stack: the next one begins with the norm. */
static struct residual
then_next(struct tensor x, struct tensor bias)
{
    return (struct residual){ .x = x, .in_bias = bias };
}

/* x = norm(scale * embedding + position); BART's y too. */
static int
embed(const struct model *m, struct step *s, struct tensor x, struct tensor y, struct step_tokens r,
      struct tensor positions, const struct norm *norm)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    uint32_t n = positions.dim[0] - FIRST_POSITION;
    struct residual sum = then(m, x, NO_TENSOR, cfg->post ? y : NO_TENSOR, norm);

    sum.norm = RESIDUAL_POST;
    sum.in = block_scratch(s, BLOCK_OUT, r.n_tokens, m->shape.hidden);
    TRY(m->op->embed(s->lane, x, top->shared, r.token, cfg->embed_scale));
    TRY(m->op->embed(s->lane, sum.in, tensor_rows(positions, FIRST_POSITION, n), r.pos, 1));
    return m->op->residual(s->lane, &sum);
}

static int
feed_forward(const struct model *m, struct step *s, struct tensor h, const struct linear *up,
             struct tensor down, struct residual end)
{
    const struct bart_cfg *cfg = m->cfg;
    struct tensor inner = block_scratch(s, BLOCK_INNER, h.dim[0], up->weight.dim[0]);

    TRY(m->op->act_matmul(s->lane, inner, h, up->weight, up->bias, cfg->act));
    return block_residual(m, s, inner, down, end);
}

/* h: what the first sublayer of a range reads. x is as layer first - 1 left it: BART's not yet normed. */
static int
begin_encoder(const struct model *m, struct step *s, const struct bart_encoder *w, uint32_t first,
              struct tensor h)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    struct residual norm = then(m, s->enc_x, NO_TENSOR, h, &w->self_norm);

    if (first == 0) TRY(embed(m, s, s->enc_x, h, s->enc, top->encoder_pos, &top->encoder_emb));
    if (first == 0 && cfg->post) return 0;
    if (cfg->post) norm = then(m, s->enc_x, NO_TENSOR, h, &w[-1].ff_norm);
    return m->op->residual(s->lane, &norm);
}

static int
encode(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct gpu_ops *op = m->op;
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    const struct layer_shape *shape = &m->shape.encoder[0];
    const struct bart_encoder *w = (const struct bart_encoder *)m->encoder + first;
    uint32_t rows = s->enc.n_tokens, q = m->shape.dim[DIM_Q];
    struct tensor h = block_scratch(s, BLOCK_NORMED, rows, m->shape.hidden);
    struct tensor qkv = block_scratch(s, BLOCK_QKV, rows, 3 * q);
    struct attend a = {
        .out = block_scratch(s, BLOCK_HEADS, rows, q),
        .q = tensor_cols(qkv, 0, q),
        .k = tensor_cols(qkv, q, q),
        .v = tensor_cols(qkv, 2 * q, q),
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .scale = 1 / sqrtf((float)shape->head_dim),
    };

    TRY(begin_encoder(m, s, w, first, h));
    for (uint32_t l = first; l < first + n; l++, w++) {
        const struct norm *after_self = cfg->post ? &w->self_norm : &w->ff_norm;
        struct residual end;

        if (l + 1 == m->shape.n_encoder_layers)
            end = then(m, s->enc_x, w->down.bias, s->enc_out,
                       cfg->post ? &w->ff_norm : &top->encoder_norm);
        else if (l + 1 == first + n)
            end = then_next(s->enc_x, w->down.bias);
        else
            end = then(m, s->enc_x, w->down.bias, h, cfg->post ? &w->ff_norm : &w[1].self_norm);
        TRY(op->matmul(s->lane, qkv, h, w->qkv.weight, w->qkv.bias, 0));
        TRY(op->attend(s->lane, &a, s->enc));
        TRY(block_residual(m, s, a.out, w->o.weight, then(m, s->enc_x, w->o.bias, h, after_self)));
        TRY(feed_forward(m, s, h, &w->up, w->down.weight, end));
    }
    return 0;
}

static int
project_cross(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct bart_layer *w = (const struct bart_layer *)m->layer + first;
    uint32_t q = m->shape.dim[DIM_Q];
    struct tensor kv = block_scratch(s, BLOCK_QKV, s->project.n_tokens, 2 * q);

    for (uint32_t l = first; l < first + n; l++, w++) {
        struct rope_store store = {
            .k = tensor_cols(kv, 0, q),
            .v = tensor_cols(kv, q, q),
            .n_kv_heads = m->shape.cross.n_kv_heads,
            .head_dim = m->shape.cross.head_dim,
            .kv = s->cross_kv[l],
        };

        TRY(m->op->matmul(s->lane, kv, s->project_x, w->cross_kv.weight, w->cross_kv.bias, 0));
        TRY(m->op->rope_store(s->lane, &store, s->project));
    }
    return 0;
}

/* h: what a sublayer reads, at the beginning, and what the next one does, at the end. */
static int
self_attention(const struct model *m, struct step *s, const struct bart_layer *w, uint32_t l,
               struct tensor h)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct layer_shape *shape = &m->shape.layer[l];
    uint32_t rows = s->rows.n_tokens, q = m->shape.dim[DIM_Q];
    struct tensor qkv = block_scratch(s, BLOCK_QKV, rows, 3 * q);
    struct attend a = {
        .out = block_scratch(s, BLOCK_HEADS, rows, q),
        .q = tensor_cols(qkv, 0, q),
        .k = tensor_cols(qkv, q, q),
        .v = tensor_cols(qkv, 2 * q, q),
        .kv = s->kv[l],
        .inputs_ready = true,
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .causal = true,
        .scale = 1 / sqrtf((float)shape->head_dim),
    };

    TRY(m->op->matmul(s->lane, qkv, h, w->qkv.weight, w->qkv.bias, 0));
    TRY(m->op->attend(s->lane, &a, s->rows));
    return block_residual(m, s, a.out, w->o.weight,
                          then(m, s->x, w->o.bias, h, cfg->post ? &w->self_norm : &w->cross_norm));
}

static int
cross_attention(const struct model *m, struct step *s, const struct bart_layer *w, uint32_t l,
                struct tensor h)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct layer_shape *shape = &m->shape.cross;
    uint32_t rows = s->rows.n_tokens, q = m->shape.dim[DIM_Q];
    struct attend a = {
        .out = block_scratch(s, BLOCK_HEADS, rows, q),
        .q = block_scratch(s, BLOCK_QKV, rows, q),
        .kv = s->cross_kv[l],
        .inputs_ready = true,
        .n_heads = shape->n_heads,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .scale = 1 / sqrtf((float)shape->head_dim),
    };

    TRY(m->op->matmul(s->lane, a.q, h, w->cross_q.weight, w->cross_q.bias, 0));
    TRY(m->op->attend(s->lane, &a, s->cross));
    return block_residual(
        m, s, a.out, w->cross_o.weight,
        then(m, s->x, w->cross_o.bias, h, cfg->post ? &w->cross_norm : &w->ff_norm));
}

static int
begin_decoder(const struct model *m, struct step *s, const struct bart_layer *w, uint32_t first,
              struct tensor h)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    struct residual norm = then(m, s->x, NO_TENSOR, h, &w->self_norm);

    if (first == 0) TRY(embed(m, s, s->x, h, s->rows, top->decoder_pos, &top->decoder_emb));
    if (first == 0 && cfg->post) return 0;
    if (cfg->post) norm = then(m, s->x, NO_TENSOR, h, &w[-1].ff_norm);
    return m->op->residual(s->lane, &norm);
}

static int
forward(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    const struct bart_cfg *cfg = m->cfg;
    const struct bart *top = m->top;
    const struct bart_layer *w = (const struct bart_layer *)m->layer + first;
    struct tensor h = block_scratch(s, BLOCK_NORMED, s->rows.n_tokens, m->shape.hidden);

    TRY(begin_decoder(m, s, w, first, h));
    for (uint32_t l = first; l < first + n; l++, w++) {
        struct residual end;

        if (l + 1 == m->shape.n_layers)
            end = then(m, s->x, w->down.bias, s->normed,
                       cfg->post ? &w->ff_norm : &top->decoder_norm);
        else if (l + 1 == first + n)
            end = then_next(s->x, w->down.bias);
        else
            end = then(m, s->x, w->down.bias, h, cfg->post ? &w->ff_norm : &w[1].self_norm);
        TRY(self_attention(m, s, w, l, h));
        TRY(cross_attention(m, s, w, l, h));
        TRY(feed_forward(m, s, h, &w->up, w->down.weight, end));
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
    .encoder_bytes = sizeof(struct bart_encoder),
    .weights = weights,
    .divide = sharding_agrees,
    .prefixes = (const char *const[]){ "", "model.", NULL },
    .configure = configure,
    .forward = forward,
    .encode = encode,
    .project_cross = project_cross,
    .logits = logits,
};
