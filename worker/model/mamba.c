/* mamba.c - implements mamba.h: sizes, sharding and ops of the Mamba-2 mixer. */
#include "worker/model/mamba.h"

#include "worker/model/blocks.h"

enum { STATE_ALIGN = 128 };
/* The largest state of a layer; published models have 4 MiB. */
_Static_assert((uint64_t)CFG_MAX_HEADS *CFG_MAX_HEAD_DIM *CFG_MAX_HEAD_DIM <=
                   (1 << 30) / sizeof(float),
               "the state of a layer has at most 1 GiB");

static uint32_t
inner_cols(const struct mamba_shape *c)
{
    return c->n_heads * c->head_dim;
}

/* Returns the number of columns of x, B and C together. */
static uint32_t
channels_of(const struct mamba_shape *c)
{
    return inner_cols(c) + 2 * c->n_groups * c->state_dim;
}

/* Returns the number of rows of in_proj: gate, x, B, C, dt. */
static uint32_t
in_rows(const struct mamba_shape *c)
{
    return inner_cols(c) + channels_of(c) + c->n_heads;
}

/* Returns the bytes of the convolution's last inputs; the states of the heads follow them. */
static uint32_t
kept_bytes(const struct mamba_shape *c)
{
    return ROUND_UP((c->n_taps - 1) * channels_of(c) * (uint32_t)sizeof(float),
                    (uint32_t)STATE_ALIGN);
}

void
mamba_layer(const struct mamba_shape *c, struct layer_shape *l)
{
    l->mixer = MIX_STATE;
    l->kv = KV_STATE;
    l->kv_parts = 1;
    l->state_bytes = kept_bytes(c) + inner_cols(c) * c->state_dim * (uint32_t)sizeof(float);
}

/* Returns cols rounded up to a multiple of 4 words, as block_area() needs. */
static uint32_t
words(uint32_t cols)
{
    return ROUND_UP(cols, 4u);
}

/* Checks that time_step_limit, if set, is [0, infinity]: another limit is not implemented. */
static int
want_no_limit(const json_t *config, struct err *e)
{
    const json_t *limit = json_object_get(config, "time_step_limit");
    const char *high = json_string_value(json_object_get(json_array_get(limit, 1), "__float__"));
    double low = json_number_value(json_array_get(limit, 0));

    if (cfg_state(config, "time_step_limit") != CFG_SET) return 0;
    if (json_array_size(limit) == 2 && low <= 0 && high && strcmp(high, "Infinity") == 0) return 0;
    return err_set(e, -ENOTSUP, "time_step_limit is set; only [0, infinity] is implemented");
}

int
mamba_configure(const json_t *config, struct model_shape *s, struct mamba_shape *c, struct err *e)
{
    uint32_t expand;

    TRY(cfg_want_bool(config, "mamba_proj_bias", false, e));
    TRY(cfg_want_bool(config, "mamba_conv_bias", true, e));
    TRY(want_no_limit(config, e));
    TRY(cfg_u32(config, "mamba_n_heads", 128, 1, CFG_MAX_HEADS, &c->n_heads, e));
    TRY(cfg_u32(config, "mamba_expand", 2, 1, 64, &expand, e));
    c->head_dim = s->hidden * expand / c->n_heads;
    if (!json_is_string(json_object_get(config, "mamba_d_head"))) /* "auto" */
        TRY(cfg_u32(config, "mamba_d_head", c->head_dim, 1, CFG_MAX_HEAD_DIM, &c->head_dim, e));
    if (c->head_dim > CFG_MAX_HEAD_DIM)
        return err_set(e, -EINVAL, "mamba_d_head is %u, want at most %d", c->head_dim,
                       CFG_MAX_HEAD_DIM);
    TRY(cfg_u32(config, "mamba_n_groups", 1, 1, c->n_heads, &c->n_groups, e));
    TRY(cfg_u32(config, "mamba_d_state", 256, 1, CFG_MAX_HEAD_DIM, &c->state_dim, e));
    TRY(cfg_u32(config, "mamba_d_conv", 4, 2, MAMBA_MAX_TAPS, &c->n_taps, e));
    if (inner_cols(c) != s->hidden * expand)
        return err_set(
            e, -EINVAL,
            "mamba_n_heads %u * mamba_d_head %u is %u, but mamba_expand %u * hidden_size %u is %u",
            c->n_heads, c->head_dim, inner_cols(c), expand, s->hidden, s->hidden * expand);
    c->dt_min = 0;
    c->dt_max = INFINITY;
    return mamba_sizes(s, c, e);
}

/* Returns the words per token of the outputs of in_proj and conv, of y, and of the normed y. */
static uint32_t
own_words(const struct mamba_shape *c, uint32_t normed)
{
    return words(in_rows(c)) + words(channels_of(c)) + 2 * words(normed);
}

int
mamba_sizes(struct model_shape *s, const struct mamba_shape *c, struct err *e)
{
    uint32_t inner = inner_cols(c), bc = c->n_groups * c->state_dim;

    if (c->n_heads % c->n_groups || inner % c->n_groups)
        return err_set(e, -EINVAL, "%u Mamba heads are not a multiple of %u groups", c->n_heads,
                       c->n_groups);
    s->dim[DIM_MAMBA_IN] = in_rows(c);
    s->dim[DIM_MAMBA_CHANNELS] = channels_of(c);
    s->dim[DIM_MAMBA_TAPS] = c->n_taps;
    s->dim[DIM_MAMBA_INNER] = inner;
    s->dim[DIM_MAMBA_HEADS] = c->n_heads;
    s->parts[DIM_MAMBA_IN] =
        (struct dim_parts){ 5,
                            { inner, inner, bc, bc, c->n_heads },
                            { c->n_heads, c->n_heads, c->n_groups, c->n_groups, c->n_heads } };
    s->parts[DIM_MAMBA_CHANNELS] =
        (struct dim_parts){ 3, { inner, bc, bc }, { c->n_heads, c->n_groups, c->n_groups } };
    s->own_cols = own_words(c, inner);
    return 0;
}

int
mamba_divide(struct model *m, struct mamba_shape *c, struct err *e)
{
    uint32_t ranks = m->ranks, inner = inner_cols(c);

    if (c->n_heads % ranks)
        return err_set(e, -ENOTSUP, "there are %u Mamba heads, which %u ranks cannot share equally",
                       c->n_heads, ranks);
    if (c->n_groups % ranks && (ranks % c->n_groups || c->norm_groups))
        return err_set(e, -ENOTSUP,
                       "%u groups of Mamba heads on %u ranks: %s must be a multiple of the other",
                       c->n_groups, ranks, c->norm_groups ? "the first" : "one");
    if (!c->norm_groups) c->normed = sharding_share(m, inner);
    c->n_heads /= ranks;
    c->n_groups = MAX(c->n_groups / ranks, 1u);
    m->shape.own_cols = own_words(c, c->norm_groups ? inner_cols(c) : inner);
    for (uint32_t i = 0; i < m->shape.n_layers; i++)
        if (m->shape.layer[i].mixer == MIX_STATE) mamba_layer(c, &m->shape.layer[i]);
    return 0;
}

int
mamba_mix(const struct model *m, struct step *s, uint32_t layer, const struct mamba_shape *c,
          const struct mamba_weights *w, struct tensor h, struct tensor *y)
{
    const struct gpu_ops *op = m->op;
    uint32_t rows = h.dim[0], inner = inner_cols(c), channels = channels_of(c);
    uint32_t at = words(in_rows(c));
    struct tensor in = block_area(s, BLOCK_OWN, 0, rows, in_rows(c), m->act);
    struct tensor xbc = block_area(s, BLOCK_OWN, at, rows, channels, m->act);
    uint32_t whole = c->normed.n ? w->norm.dim[1] : inner;
    struct tensor all = block_area(s, BLOCK_OWN, at += words(channels), rows, whole, m->act);
    struct tensor normed = block_area(s, BLOCK_OWN, at + words(whole), rows, whole, m->act);
    struct tensor mixed = tensor_cols(all, c->normed.first, inner);
    struct conv conv = {
        .y = xbc,
        .x = tensor_cols(in, inner, channels),
        .w = w->conv,
        .bias = w->conv_bias,
        .n_taps = c->n_taps,
        .state = s->kv[layer],
    };
    struct scan scan = {
        .y = mixed,
        .x = xbc,
        .gate = tensor_cols(in, 0, inner),
        .dt = tensor_cols(in, inner + channels, c->n_heads),
        .dt_bias = w->dt_bias,
        .a_log = w->a_log,
        .d = w->d,
        .dt_min = c->dt_min,
        .dt_max = c->dt_max,
        .n_heads = c->n_heads,
        .head_dim = c->head_dim,
        .n_groups = c->n_groups,
        .state_dim = c->state_dim,
        .state_at = kept_bytes(c),
        .state = s->kv[layer],
    };
    uint32_t part = inner / c->n_groups;

    TRY(op->matmul(s->lane, in, h, w->in, NO_TENSOR, 0));
    TRY(op->conv(s->lane, &conv, s->rows));
    TRY(op->scan(s->lane, &scan, s->rows));
    *y = tensor_cols(normed, c->normed.first, inner);
    if (!c->norm_groups) {
        TRY(op->collective.all_gather(s->lane, all, mixed));
        return op->rms_norm(s->lane, normed, all, w->norm, c->eps, 0);
    }
    TRY(op->rms_norm(s->lane, tensor_2d(normed.data, m->act, rows * c->n_groups, part),
                     tensor_2d(mixed.data, m->act, rows * c->n_groups, part), NO_TENSOR, c->eps,
                     0));
    return op->mul(s->lane, normed, normed, w->norm);
}
