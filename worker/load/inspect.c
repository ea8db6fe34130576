/* inspect.c - lagan-worker --inspect; see load.h.
 *
 * Sizes are in bytes. kv has one entry per KV group: bytes per token, for a state group bytes per
 * sequence. left: bytes for KV and the scratch of steps, after weights and reserved memory.
 */
#include "worker/load/load.h"

#include "gpu/gpu.h"
#include "worker/exec/exec.h"
#include "worker/kv/kv.h"
#include "worker/load/sizes.h"
#include "worker/model/arch.h"
#include "worker/model/model.h"
#include "worker/text/chat.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *
describe_group(const struct kv_group *g, uint32_t tokens_per_block)
{
    uint64_t bytes = (uint64_t)g->n_layers * g->n_parts * g->slice_bytes;

    if (g->kind != KV_STATE) bytes /= tokens_per_block;
    return json_pack("{s:s,s:I,s:I,s:I}", "kind", kv_kind_name(g->kind), "layers",
                     (json_int_t)g->n_layers, "window", (json_int_t)g->window, "bytes",
                     (json_int_t)bytes);
}

static json_t *
describe(const struct worker *w)
{
    const struct model_shape *s = &w->model->shape;
    json_t *kv = json_array();

    for (uint32_t i = 0; i < w->kv_config->n_groups; i++)
        json_array_append_new(
            kv, describe_group(&w->kv_config->group[i], w->kv_config->tokens_per_block));
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:I,s:o,s:I}", "architecture",
                     w->model->arch->name, "device", gpu_describe(w->gpu), "layers",
                     (json_int_t)s->n_layers, "encoder_layers", (json_int_t)s->n_encoder_layers,
                     "hidden", (json_int_t)s->hidden, "vocab", (json_int_t)s->vocab, "max_len",
                     (json_int_t)s->max_len, "max_source", (json_int_t)w->max_source, "dtype",
                     dtype_name(w->model->dtype), "kv_dtype", dtype_name(w->steps->kv_dtype),
                     "tokens_per_block", (json_int_t)w->kv_config->tokens_per_block, "kv", kv,
                     "sequence", (json_int_t)kv_table_bytes(w->kv_config));
}

/* Adds the number of unused and skipped tensors, and the first of each. */
static void
add_unused(json_t *o, const struct model *m)
{
    json_object_set_new(o, "unused", json_integer(m->n_unused));
    if (m->n_unused) json_object_set_new(o, "unused_first", json_string(m->unused[0]));
    json_object_set_new(o, "skipped", json_integer(m->n_other));
    if (m->n_other) json_object_set_new(o, "skipped_first", json_string(m->other));
}

static void
add_reason(json_t *o, const char *key, const char *why)
{
    json_object_set_new(o, key, *why ? json_string(why) : json_null());
}

int
inspect_run(struct worker *w, struct err *e)
{
    uint64_t weights = 0, beside = 0, free_bytes, own, total, taken;
    json_t *o;
    char *text;

    TRY(load_inspect(w, &weights, &beside, e));
    if (gpu_memory(w->gpu, &free_bytes, &own, &total) < 0)
        return err_set(e, -EIO, "%s", gpu_why(w->gpu));
    taken = weights + beside;
    if (free_bytes < taken + 2 * (uint64_t)w->kv_config->slab_bytes && !beside)
        return err_set(e, -ENOMEM,
                       "%s: too little memory: of %.2f GiB, %.2f are free; weights need %.2f",
                       gpu_describe(w->gpu), GIB(total), GIB(free_bytes), GIB(weights));
    if (free_bytes < taken + 2 * (uint64_t)w->kv_config->slab_bytes)
        return err_set(e, -ENOMEM,
                       "%s: too little memory: of %.2f GiB, %.2f are free; weights need %.2f; "
                       "graphs, lanes, a replacement and kv.reserve need %.2f",
                       gpu_describe(w->gpu), GIB(total), GIB(free_bytes), GIB(weights),
                       GIB(beside));
    o = describe(w);
    json_object_set_new(o, "weights", json_integer((json_int_t)w->model->weight_bytes));
    json_object_set_new(o, "free", json_integer((json_int_t)free_bytes));
    json_object_set_new(o, "total", json_integer((json_int_t)total));
    json_object_set_new(o, "left", json_integer((json_int_t)(free_bytes - taken)));
    add_unused(o, w->model);
    add_reason(o, "no_text", w->tokenizer ? "" : w->why_no_text);
    add_reason(o, "no_chat",
               !w->tokenizer       ? w->why_no_text
               : w->chat->template ? ""
                                   : w->chat->why);
    text = json_dumps(o, JSON_COMPACT);
    puts(text);
    free(text);
    json_decref(o);
    load_free(w);
    return 0;
}
