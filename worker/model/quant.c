/* quant.c - selects the quantisation method of a checkpoint (quant.h). */
#include "worker/model/quant.h"

#include "worker/model/config.h"

static int
find_method(const json_t *config, const struct quant **ret, struct err *e)
{
    const char *method;

    *ret = NULL;
    if (cfg_state(config, "quantization_config") != CFG_SET) return 0;
    TRY(cfg_str(json_object_get(config, "quantization_config"), "quant_method", "", &method, e));
    if (strcmp(method, quant_mxfp4.method))
        return err_set(e, -ENOTSUP,
                       "quantization_config.quant_method is \"%.40s\"; only \"%s\" is implemented",
                       method, quant_mxfp4.method);
    *ret = &quant_mxfp4;
    return 0;
}

static bool
covers_family(const struct quant *q, const struct arch *a)
{
    const struct weight_rule *r = a->weights;

    while (r->name && !q->covers(r)) r++;
    return r->name;
}

/* Checks the columns of quantised weights, which are hidden_size or intermediate_size (experts). */
static int
check_sizes(const struct quant *q, const struct model_shape *s, struct err *e)
{
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (s->hidden % q->run || s->layer[i].expert_ff % q->run)
            return err_set(e, -EINVAL,
                           "hidden_size is %u and intermediate_size is %u; with %s weights both "
                           "must be multiples of %u",
                           s->hidden, s->layer[i].expert_ff, q->name, q->run);
    return 0;
}

int
quant_configure(struct model *m, json_t *config, struct err *e)
{
    const struct quant *q;

    TRY(find_method(config, &q, e));
    if (q && !covers_family(q, m->arch))
        return err_set(
            e, -ENOTSUP,
            "quantization_config.quant_method is \"%s\", which is not implemented for %s",
            q->method, m->arch->name);
    m->quant = q;
    m->shape.expert_run = q ? q->run : 1;
    TRY(m->arch->configure(config, &m->shape, m->cfg, e));
    m->shape.dim[DIM_HIDDEN] = m->shape.hidden;
    m->shape.dim[DIM_VOCAB] = m->shape.vocab;
    return q ? check_sizes(q, &m->shape, e) : 0;
}
