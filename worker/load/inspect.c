/* inspect.c - lagan-worker --inspect: prints the model and its memory needs as JSON (load.h).
 *
 * Sizes are in bytes. The key kv has one object per KV group, whose bytes are per token, or per
 * sequence for a group of recurrent state. The key left has the bytes that remain for KV after
 * weights and reserved memory (GPU: for KV and the scratch of steps). The key need has the least
 * memory of the device that one process needs, on a GPU without the scratch of steps.
 */
#include "worker/load/load.h"

#include "base/cgroup.h"
#include "gpu/gpu.h"
#include "worker/exec/exec.h"
#include "worker/kv/kv.h"
#include "worker/load/host_memory.h"
#include "worker/load/sizes.h"
#include "worker/model/arch.h"
#include "worker/model/model.h"
#include "worker/text/chat.h"

#include <jansson.h>
#include <stdio.h>

static json_t *
describe_group(const struct kv_group *g, uint32_t tokens_per_block)
{
    uint64_t bytes = (uint64_t)g->n_layers * g->n_parts * g->slice_bytes;

    if (g->kind != KV_STATE) bytes /= tokens_per_block;
    return json_pack("{s:s,s:I,s:I,s:I}", "kind", kv_kind_name(g->kind), "layers",
                     (json_int_t)g->n_layers, "window", (json_int_t)g->window, "bytes",
                     (json_int_t)bytes);
}

/* free, left: bytes of free device memory now, and after weights and reserved memory. */
static json_t *
describe(const struct worker *w, uint64_t free, uint64_t total, uint64_t left)
{
    const struct model *m = w->model;
    const struct model_shape *s = &m->shape;
    const char *no_chat = w->chat->template ? NULL : w->chat->why;
    json_t *kv = json_array();

    for (uint32_t i = 0; i < w->kv_config->n_groups; i++)
        json_array_append_new(
            kv, describe_group(&w->kv_config->group[i], w->kv_config->tokens_per_block));
    return json_pack(
        "{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:I,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:s*,s:I,s:s*,"
        "s:s?,s:s?}",
        "architecture", m->arch->name, "device", gpu_facts(w->gpu).describe, "layers",
        (json_int_t)s->n_layers, "encoder_layers", (json_int_t)s->n_encoder_layers, "hidden",
        (json_int_t)s->hidden, "vocab", (json_int_t)s->vocab, "max_len", (json_int_t)s->max_len,
        "max_source", (json_int_t)w->max_source, "dtype", dtype_name(m->dtype), "kv_dtype",
        dtype_name(w->steps->kv_dtype), "tokens_per_block",
        (json_int_t)w->kv_config->tokens_per_block, "kv", kv, "sequence",
        (json_int_t)kv_table_bytes(w->kv_config), "weights", (json_int_t)m->weight_bytes, "free",
        (json_int_t)free, "total", (json_int_t)total, "left", (json_int_t)left, "unused",
        (json_int_t)m->n_unused, "unused_first", m->n_unused ? m->unused[0] : NULL, "skipped",
        (json_int_t)m->n_other, "skipped_first", m->n_other ? m->other : NULL, "no_text",
        w->tokenizer ? NULL : w->why_no_text, "no_chat", w->tokenizer ? no_chat : w->why_no_text);
}

/* Prints and frees *o, and frees the objects of w. */
static void
print(struct worker *w, json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT);

    puts(text);
    free(text);
    json_decref(o);
    load_free(w);
}

/* inspect_run() on the CPU. */
static int
inspect_host(struct worker *w, uint64_t weights, uint64_t held, struct err *e)
{
    struct host_memory_need need;
    struct memory_free m;
    uint64_t taken;
    json_t *o;

    host_memory_need(w, weights, &need);
    TRY(cgroup_memory(w->cgroup, &m, e));
    TRY(host_memory_check(w, &need, held, e));
    m.free = MIN(m.free + held, m.limit);
    taken = need.weights + need.tier + need.steps + need.process;
    o = describe(w, m.free, m.limit, m.free - MIN(m.free, taken));
    json_object_update_new(o, json_pack("{s:s,s:I,s:I,s:I}", "limiter", m.limiter, "mapped",
                                        (json_int_t)need.mapped, "steps", (json_int_t)need.steps,
                                        "need", (json_int_t)host_memory_sum(&need)));
    print(w, o);
    return 0;
}

int
inspect_run(struct worker *w, uint64_t held, struct err *e)
{
    uint64_t weights = 0, beside = 0, free_bytes, own, total, taken;
    json_t *o;

    TRY(load_inspect(w, &weights, &beside, e));
    TRY(kv_memory_check(w, e));
    if (!sizes_on_gpu(w)) return inspect_host(w, weights, held, e);
    if (gpu_memory(w->gpu, &free_bytes, &own, &total) < 0)
        return err_set(e, -EIO, "%s", gpu_why(w->gpu));
    /* A worker that runs now also has what is kept free beside weights and KV. */
    if (held) free_bytes += MIN(held + beside, total - free_bytes);
    taken = weights + beside;
    if (free_bytes < taken + 2 * (uint64_t)w->kv_config->slab_bytes && !beside)
        return err_set(
            e, -ENOMEM,
            "%s: too little memory: %.2f of %.2f GiB are free; the weights need %.2f GiB",
            gpu_facts(w->gpu).describe, GIB(free_bytes), GIB(total), GIB(weights));
    if (free_bytes < taken + 2 * (uint64_t)w->kv_config->slab_bytes)
        return err_set(e, -ENOMEM,
                       "%s: too little memory: %.2f of %.2f GiB are free; the weights need %.2f "
                       "GiB; graphs, lanes, a replacement worker and kv.reserve need %.2f GiB more",
                       gpu_facts(w->gpu).describe, GIB(free_bytes), GIB(total), GIB(weights),
                       GIB(beside));
    o = describe(w, free_bytes, total, free_bytes - taken);
    taken += MAX(w->keys->kv_memory, 2 * (uint64_t)w->kv_config->slab_bytes);
    json_object_set_new(o, "need", json_integer((json_int_t)taken));
    print(w, o);
    return 0;
}
