/* sizes.c - computes limits from the settings and the model's shape: see sizes.h. */
#include "worker/load/sizes.h"

#include "base/clock.h"
#include "gpu/gpu.h"
#include "ipc/channel.h"
#include "worker/exec/exec.h"
#include "worker/exec/graphs.h"
#include "worker/handover/adopt.h"
#include "worker/model/arch.h"
#include "worker/model/model.h"
#include "worker/ops/partition_ctl.h"
#include "worker/process/health.h"
#include "worker/sched/scheduler.h"

enum {
    CPU_TOKENS = 512, /* default of max_num_batched_tokens on a CPU */
    GPU_TOKENS = 8192,
    /* Encoder tokens per step: enough to encode a burst of requests together, and few enough that a
     * second burst need not wait for the cross-attention KV of the first. */
    GPU_ENC_TOKENS = 16384,
    SEARCH_BEAMS = 512 /* most beams of all searches that run together (docs/lab/serving.md) */
};

bool
sizes_on_gpu(const struct worker *w)
{
    return strcmp(gpu_ops(w->gpu)->name, "cpu") != 0;
}

/* Updates the heartbeat; called by the engine thread while it queues a long step. */
static void
on_heartbeat(void *arg)
{
    health_heartbeat(arg, clock_now());
}

int
sizes_check_settings(const struct model_options *k, struct err *e)
{
    if (k->tensor_parallel > MAX_RANKS)
        return err_set(e, -EINVAL, "tensor_parallel is %u; the limit is %d ranks",
                       k->tensor_parallel, MAX_RANKS);
    return model_options_check(k, e);
}

static uint32_t
max_batched_tokens(const struct worker *w)
{
    uint32_t asked = w->keys->max_num_batched_tokens;

    return asked ? asked : sizes_on_gpu(w) ? GPU_TOKENS : CPU_TOKENS;
}

static int
set_kv(struct worker *w, struct err *e)
{
    const struct model_options *k = w->keys;

    w->kv_config->n_slots = k->max_num_seqs;
    w->kv_config->host_bytes = k->kv_host_memory;
    w->kv_config->host_bandwidth = k->kv_host_bandwidth;
    w->kv_config->token_time = k->kv_prefill_rate ? NSEC_S / k->kv_prefill_rate : 0;
    TRY(model_groups(w->model, w->steps->kv_dtype, k->kv_tokens_per_block, w->kv_config, e));
    if (model_keep_first(w->model, k->kv_sink_tokens, w->kv_config) == 0 && k->kv_sink_tokens)
        return err_set(e, -EINVAL,
                       "kv.sink_tokens is %u, which has no effect here: no layer of %s has a "
                       "sliding window",
                       k->kv_sink_tokens, w->model->arch->name);
    TRY(model_shares(k->kv_shares, k->cross_kv_cache_fraction, w->kv_config, e));
    for (uint32_t i = 0; i < w->kv_config->n_groups; i++)
        if (w->kv_config->group[i].kind == KV_STATE)
            w->kv_config->group[i].interval = ROUND_UP(k->kv_snapshot_interval,
                                                       w->kv_config->tokens_per_block);
    return 0;
}

static void
set_limits(struct worker *w)
{
    const struct model_options *k = w->keys;
    uint32_t max_tokens = max_batched_tokens(w);

    *w->limits = (struct scheduler_limits){
        .policy = (enum policy)k->policy,
        .chunks = (enum chunks)k->chunk_policy,
        .quantum = k->fairness_quantum,
        .prefill_batch_tokens = k->prefill_batch_tokens,
        .enc_batch = { k->encoder_batch_size },
        .n_enc_batches = k->encoder_batch_size > 0,
        .prompt_wait = k->batch_wait_timeout,
        .enc_wait = k->batch_wait_timeout,
        .max_seqs = k->max_num_seqs,
        .max_tokens = max_tokens,
        .max_len = w->model->shape.max_len,
        .max_enc_tokens = w->max_source && sizes_on_gpu(w)
                              ? MAX(w->max_source, (uint32_t)GPU_ENC_TOKENS)
                              : w->max_source,
        .n_enc_layers = (uint16_t)w->model->shape.n_encoder_layers,
        .beam_tokens = SEARCH_BEAMS,
        /* A step that also decodes does at most max_tokens x all layers of encoder work. */
        .enc_work = (uint64_t)max_tokens * w->model->shape.n_encoder_layers,
    };
    if (gpu_facts(w->gpu).graphs && k->graphs_memory)
        w->limits->n_buckets = graphs_buckets(w->limits->bucket, max_tokens);
}

/* Plans the lanes. A CPU device with 2 lanes has 2 threads or more, even if the host has 1 core. */
static int
set_lanes(struct worker *w, struct err *e)
{
    uint32_t units = w->keys->threads && !sizes_on_gpu(w) ? w->keys->threads
                                                          : gpu_facts(w->gpu).units;

    if (!sizes_on_gpu(w))
        units = MAX(units / w->keys->tensor_parallel, 1u); /* ranks share the host */
    if (!sizes_on_gpu(w) && w->keys->split_mode != SPLIT_OFF) units = MAX(units, 2u);
    return partition_ctl_plan(w->partition_ctl, w->keys, gpu_facts(w->gpu).parts, units, w->limits,
                              w->steps, e);
}

static void
set_steps(struct worker *w)
{
    struct exec_config *x = w->steps;

    x->max_tokens = w->limits->max_tokens;
    x->measure = sizes_on_gpu(w);
    /* Warms up only decoding if there is KV to adopt, because the clients of the adopted sequences
     * wait for their next token. Ranks must run equal passes, so a rank group warms up in full. */
    x->brief = w->adopt->old_kv.fd >= 0 && w->keys->tensor_parallel == 1;
    x->max_seqs = w->limits->max_seqs;
    x->max_enc_tokens = w->limits->max_enc_tokens;
    x->max_edits = scheduler_edits(w->limits, w->kv_config);
    x->max_copies = scheduler_copies(w->limits, w->kv_config);
}

/* Refuses the settings of an encoder, which this model lacks. */
static int
check_no_encoder(const struct worker *w, struct err *e)
{
    const char *arch = w->model->arch->name;

    if (w->keys->split_encoder == SPLIT_ENCODER_OWN)
        return err_set(e, -EINVAL,
                       "split.encoder is own, which has no effect here: %s has no encoder", arch);
    if (w->keys->encoder_batch_size)
        return err_set(e, -EINVAL,
                       "encoder_batch_size is %u, which has no effect here: %s has no encoder",
                       w->keys->encoder_batch_size, arch);
    return 0;
}

int
sizes_set(struct worker *w, struct err *e)
{
    static const enum dtype kv_dtypes[] = { DT_COUNT, DT_F32, DT_BF16, DT_F16, DT_E4M3 };
    const struct model_options *k = w->keys;
    struct exec_config *x = w->steps;

    *x = (struct exec_config){ .graphs_memory = k->graphs_memory,
                               .heartbeat = on_heartbeat,
                               .heartbeat_arg = w };
    x->kv_dtype = k->kv_dtype == DTYPE_AUTO ? w->model->act : kv_dtypes[k->kv_dtype];
    if (x->kv_dtype == DT_F16 && !sizes_on_gpu(w))
        return err_set(e, -EINVAL, "kv.dtype is fp16; the CPU device supports fp32, bf16 and fp8");
    w->max_source = w->model->shape.n_encoder_layers
                        ? MIN(k->max_source_tokens, w->model->shape.max_source)
                        : 0;
    w->model->shape.max_source = w->max_source;
    if (!w->max_source) TRY(check_no_encoder(w, e));
    TRY(set_kv(w, e));
    set_limits(w);
    TRY(set_lanes(w, e));
    w->kv_config->n_lanes = x->n_lanes;
    if (!w->kv_config->slab_bytes) w->kv_config->slab_bytes = kv_slab_bytes(w->kv_config);
    set_steps(w);
    return 0;
}

/* Divides the weights between decoder and encoder by their numbers of layers. */
struct step_costs
sizes_work_costs(const struct worker *w)
{
    const struct model_shape *s = &w->model->shape;
    double weights = (double)w->model->weight_bytes, layers = s->n_layers + s->n_encoder_layers,
           encoder = weights * s->n_encoder_layers / layers,
           flops = 4 / (double)dtype_bytes(w->model->dtype, 2); /* 2 operations per weight */
    struct step_costs c = { .weights = (uint64_t)(weights - encoder),
                            .encoder_weights = (uint64_t)encoder,
                            .row_flops = (weights - encoder) * flops,
                            .encoder_flops = encoder * flops,
                            .n_enc_layers = s->n_encoder_layers };

    for (uint32_t i = 0; i < s->n_layers; i++)
        if (s->layer[i].mixer == MIX_ATTENTION)
            c.attend[s->layer[i].group] += 4. * s->layer[i].n_heads * s->layer[i].head_dim;
    return c;
}
