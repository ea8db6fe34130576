/* config_rope.c - cfg_rope() of config.h: reads the rotary parameters of one kind of layer, from
 * rope_parameters or from the older rope_scaling. */
#include "worker/model/config.h"

/* By enum rope_type. */
static const char *const type_names[] = { "default", "linear",   "dynamic",     "llama3",
                                          "yarn",    "longrope", "proportional" };

static int
rope_type(const char *name, enum rope_type *ret, struct err *e)
{
    for (unsigned i = 0; i < ARRAY_LEN(type_names); i++)
        if (strcmp(name, type_names[i]) == 0) {
            *ret = (enum rope_type)i;
            return 0;
        }
    return err_set(e, -ENOTSUP,
                   "rope_type is %s; default, linear, dynamic, llama3, yarn, longrope and "
                   "proportional are implemented",
                   name);
}

/* Finds the object with the rotary parameters of this kind of layer; *ret NULL: there is none, so
 * all defaults apply. *in: the key of the object, for error messages. If rope_parameters and
 * rope_scaling are both set, transformers uses rope_scaling only, except that it mixes both objects
 * for families with kinds of layers; this mixture is refused. */
static int
rope_object(const json_t *config, const char *kind, const json_t **ret, const char **in,
            struct err *e)
{
    const json_t *p = cfg_value(config, "rope_parameters"),
                 *scaling = cfg_value(config, "rope_scaling");
    const json_t *full;
    bool scales = scaling && !(json_is_object(scaling) && json_object_size(scaling) == 0);

    *in = p && !scales ? "rope_parameters" : "rope_scaling";
    if (kind && p && scales)
        return err_set(e, -ENOTSUP,
                       "rope_parameters and rope_scaling are both set, which is not implemented");
    if (!p || scales) p = scaling;
    if (p && !json_is_object(p)) return err_set(e, -EINVAL, "%s is not an object", *in);
    full = cfg_value(p, "full_attention");
    if (full && !kind)
        return err_set(e, -ENOTSUP,
                       "%s for each kind of layer is not implemented for this architecture", *in);
    if (full) {
        p = cfg_value(p, kind);
        if (!json_is_object(p))
            return err_set(e, -EINVAL, "%s.%s is missing or is not an object", *in, kind);
    } else if (kind && strcmp(kind, "sliding_attention") == 0)
        p = NULL;
    *ret = p;
    return 0;
}

/* Reads original_max_position_embeddings, the model's positions before stretching, from config's
 * outer level, which has precedence, or from the rope object p. */
static int
rope_original(const json_t *config, const json_t *p, const char *kind, double *ret, struct err *e)
{
    const char *key = "original_max_position_embeddings";
    double all;

    TRY(cfg_f64(config, "max_position_embeddings", 0, 0, CFG_MAX_POSITIONS, &all, e));
    if (!kind && cfg_value(config, key)) p = config;
    return cfg_f64(p, key, all > 0 ? all : NAN, 1, CFG_MAX_POSITIONS, ret, e);
}

/* Reads the list `key` of the divisors of all frequencies. */
static int
rope_divisors(const json_t *p, const char *key, float *ret, uint32_t *n, struct err *e)
{
    const json_t *list = cfg_value(p, key);
    size_t size = json_array_size(list);

    if (size < 1 || size > CFG_MAX_HEAD_DIM / 2)
        return err_set(e, -EINVAL, "%s has %zu entries, want a list of 1 to %d numbers", key, size,
                       CFG_MAX_HEAD_DIM / 2);
    for (size_t i = 0; i < size; i++) {
        double x = json_number_value(json_array_get(list, i));

        if (!(x >= 1e-3 && x <= 1e6))
            return err_set(e, -EINVAL, "%s[%zu] is %g or no number, want 0.001 to 1e6", key, i, x);
        ret[i] = (float)x;
    }
    *n = (uint32_t)size;
    return 0;
}

static int
rope_longrope(const json_t *config, const json_t *p, const char *kind, struct rope_params *r,
              struct err *e)
{
    double positions;
    uint32_t n;

    TRY(rope_divisors(p, "short_factor", r->divisor[ROPE_SHORT], &n, e));
    TRY(rope_divisors(p, "long_factor", r->divisor[ROPE_LONG], &r->n_divisors, e));
    if (n != r->n_divisors)
        return err_set(e, -EINVAL, "short_factor has %u entries, long_factor has %u, want equal", n,
                       r->n_divisors);
    TRY(rope_original(config, p, kind, &r->original_max, e));
    if (r->original_max < 2)
        return err_set(e, -EINVAL, "original_max_position_embeddings is 1, want at least 2");
    TRY(cfg_f64(config, "max_position_embeddings", r->original_max, 1, CFG_MAX_POSITIONS,
                &positions, e));
    return cfg_f64(p, "factor", positions / r->original_max, 1e-3, 1e6, &r->factor, e);
}

/* Reads the parameters that depend on the rope type. */
static int
rope_details(const json_t *config, const json_t *p, const char *kind, struct rope_params *r,
             struct err *e)
{
    bool stretched = r->type != ROPE_DEFAULT && r->type != ROPE_PROPORTIONAL;

    if ((r->type == ROPE_YARN || r->type == ROPE_LONGROPE) && cfg_value(p, "attention_factor"))
        TRY(cfg_f64(p, "attention_factor", 1, 1e-3, 1e3, &r->attention_factor, e));
    if (r->type == ROPE_LONGROPE) return rope_longrope(config, p, kind, r, e);
    TRY(cfg_f64(p, "factor", stretched ? NAN : 1, 1e-3, 1e6, &r->factor, e));
    if (r->type == ROPE_LLAMA3) {
        TRY(cfg_f64(p, "low_freq_factor", NAN, 1e-3, 1e6, &r->low, e));
        TRY(cfg_f64(p, "high_freq_factor", NAN, 1e-3, 1e6, &r->high, e));
        if (r->low >= r->high)
            return err_set(e, -EINVAL, "low_freq_factor is %g, want less than high_freq_factor, %g",
                           r->low, r->high);
        TRY(rope_original(config, p, kind, &r->original_max, e));
    }
    if (r->type == ROPE_YARN) {
        TRY(cfg_f64(p, "beta_fast", 32, 1e-3, 1e6, &r->beta_fast, e));
        TRY(cfg_f64(p, "beta_slow", 1, 1e-3, 1e6, &r->beta_slow, e));
        if (cfg_value(p, "mscale") || cfg_value(p, "mscale_all_dim"))
            return err_set(e, -ENOTSUP, "mscale or mscale_all_dim is set; neither is implemented");
        TRY(cfg_bool(p, "truncate", true, &r->truncate, e));
        TRY(rope_original(config, p, kind, &r->original_max, e));
    }
    return 0;
}

int
cfg_rope(const json_t *config, const char *kind, double theta, struct rope_params *ret,
         struct err *e)
{
    struct rope_params r = { .attention_factor = NAN };
    const char *in, *type, *outer = "rope_theta";
    const json_t *p = NULL;
    double partial;
    int code;

    check(theta > 1);
    TRY(rope_object(config, kind, &p, &in, e));
    if (kind && strcmp(kind, "sliding_attention") == 0) outer = "rope_local_base_freq";
    /* The range of theta: 1 would cause a division by log 1; above 1e12 all angles but the first
     * are 0. */
    TRY(cfg_f64(config, outer, theta, 1.001, 1e12, &r.theta, e));
    TRY(cfg_f64(config, "partial_rotary_factor", 1, 1e-3, 1, &partial, e));
    code = cfg_str(p, cfg_value(p, "rope_type") ? "rope_type" : "type", "default", &type, e);
    if (code == 0) code = rope_type(type, &r.type, e);
    if (code == 0) code = cfg_f64(p, "rope_theta", r.theta, 1.001, 1e12, &r.theta, e);
    if (code == 0) code = cfg_f64(p, "partial_rotary_factor", partial, 1e-3, 1, &r.partial, e);
    r.own_partial = cfg_value(p, "partial_rotary_factor") != NULL;
    if (code == 0) code = rope_details(config, p, kind, &r, e);
    if (code < 0) return err_while(e, code, "%s", in);
    *ret = r;
    return 0;
}

int
cfg_rope_only(const json_t *config, const char *kind, double theta, unsigned types,
              struct rope_params *ret, struct err *e)
{
    const char *of = kind ? " of " : "";

    TRY(cfg_rope(config, kind, theta, ret, e));
    if (!kind) kind = "";
    if (!(types & 1u << ret->type))
        return err_set(e, -ENOTSUP, "rope_type \"%s\"%s%s is not implemented for this model_type",
                       type_names[ret->type], of, kind);
    if (ret->partial != 1)
        return err_set(e, -ENOTSUP, "partial_rotary_factor%s%s is %g, only 1 is implemented", of,
                       kind, ret->partial);
    return 0;
}
