/* load.c - the loader: from settings and inherited arenas to an engine that can take requests.
 *
 * Runs on a thread of its own, so that the engine thread beats and reports progress meanwhile. What it
 * makes is the engine's once start_done is set; on failure the sentence says which file, key or number.
 */
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "worker/arch/registry.h"
#include "worker/exec/graphs.h"
#include "worker/process/health.h"
#include "worker/handover/adopt.h"
#include "worker/tp/plan_ring.h"
#include "worker/handover/host_tier.h"
#include "worker/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    AUTO_KV_SHARE =
        4, /* a host's automatic KV memory: at most a quarter of what is available, for all ranks */
    CPU_ROWS = 512,
    GPU_ROWS = 8192, /* of a step, unless the settings say otherwise */
    /* Of sources at once: a burst goes through the encoder together, and the next does not wait until
     * the first has been projected. */
    GPU_ENC_ROWS = 16384,
    /* Beams of searches that go on together: docs/perf.md. */
    SEARCH_ROWS = 512
};
/* What a GPU's lane takes beside its scratch (a library's handle, its workspace), and the process that comes up
 * beside this one to succeed it (its context). */
static const uint64_t LANE_BYTES = 256 << 20, SUCCESSOR_BYTES = 512 << 20;
enum { STANDBY_TURN = 200 * NSEC_MS }; /* between two beats */
#define GIB(bytes) ((double)(bytes) / (1 << 30))

static void
on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct worker *w = arg;

    atomic_store_explicit(&w->load_done, done, memory_order_relaxed);
    atomic_store_explicit(&w->load_total, total, memory_order_relaxed);
}

/* While a long step is queued: by the engine thread, as every beat. */
static void
on_beat(void *arg)
{
    health_beat(arg, clock_now());
}

/* lagand has queued all of them on the hand socket before it made us, or before it says "begin" or "go" to a standby.
 * Weights that are open are taken again where they may be damaged. */
int
load_take(struct worker *w, struct err *e)
{
    struct model_source *src = &w->e.source;

    for (;;) {
        struct hand_note note;
        int fd;
        int r = hand_take(w->hand, &note, &fd, e);

        if (r <= 0) return r;
        if (!strcmp(note.name, "go")) {
            close(fd);
            w->waits = false;
            continue;
        }
        if (!strcmp(note.name, "begin")) {
            close(fd);
            w->begins = true;
            continue;
        }
        if (!strcmp(note.name, "weights") && (note.flags & HAND_COMPLETE) && src->weights_fd < 0 &&
            (!w->e.model || note.flags & HAND_VERIFY)) {
            src->weights_fd = fd;
            src->weights_bytes = note.bytes;
            memcpy(src->weights_fingerprint, note.fingerprint, sizeof note.fingerprint);
        } else if (!strcmp(note.name, "kv") && w->e.old_kv.fd < 0) {
            w->e.old_kv = (struct arena){ .fd = fd, .bytes = note.bytes };
            memcpy(w->e.old_kv_id, note.fingerprint, sizeof w->e.old_kv_id);
        } else if (host_tier_take(&w->e, &note, fd)) {
            continue;
        } else if (!strcmp(note.name, "manifest") && w->e.old_manifest.fd < 0) {
            w->e.old_manifest = (struct arena){ .fd = fd, .bytes = note.bytes };
        } else {
            close(fd);
        }
    }
}

int
arena_channel_give(struct worker *w, const char *name, const struct arena *a, const uint64_t fingerprint[2],
           struct err *e)
{
    struct hand_note note = { .bytes = a->bytes, .version = 1, .flags = HAND_COMPLETE };

    if (a->fd < 0) return 0;
    snprintf(note.name, sizeof note.name, "%s", name);
    memcpy(note.fingerprint, fingerprint, sizeof note.fingerprint);
    return hand_give(w->hand, &note, a->fd, e);
}

static int
read_source(struct worker *w, struct err *e)
{
    struct model_source *src = &w->e.source;
    const char *weights = w->keys.weights;
    static const enum dtype dtypes[] = { DT_COUNT, DT_F32, DT_BF16, DT_F16 };

    *src = (struct model_source){
        .dir = w->keys.path,
        .dtype = dtypes[w->keys.dtype],
        .max_len = w->keys.max_model_len,
        .rank = w->rank,
        .n_ranks = w->keys.tensor_parallel,
        .weights_fd = -1,
        .progress = on_progress,
        .arg = w,
    };
    if (!strncmp(weights, "random:", 7)) {
        char *end;

        errno = 0;
        src->seed = strtoull(weights + 7, &end, 10);
        if (errno || *end || end == weights + 7)
            return err_set(e, -EINVAL, "weights: \"%s\" is not random:SEED with a number", weights);
        src->random = true;
    } else if (weights[0] && strcmp(weights, "checkpoint")) {
        return err_set(e, -EINVAL, "weights: \"%s\" is neither checkpoint nor random:SEED",
                       weights);
    }
    return 0;
}

/* Bytes for which every seat could reach the model's length: more would never be used. */
static uint64_t
kv_most(const struct kv_config *c)
{
    return kv_table_bytes(c) * c->n_seats + (uint64_t)c->slab_bytes * (c->n_groups + 1);
}

/* On a GPU: all that is free now but what is still to come. */
static int
gpu_room(struct worker *w, uint64_t free, uint64_t total, uint64_t *ret, struct err *e)
{
    const struct model_keys *k = &w->keys;
    uint64_t graphs = gpu_graphs(w->e.gpu) ? k->graphs_memory : 0;
    uint64_t steps = exec_scratch_bytes(w->e.exec) + w->e.limits.n_lanes * LANE_BYTES;
    uint64_t next = SUCCESSOR_BYTES + exec_divided(w->e.exec).bytes + (k->standby ? steps : 0);
    uint64_t taken = graphs + next + k->kv_reserve;

    if (free < taken + 2 * (uint64_t)w->e.kv_config.slab_bytes)
        return err_set(
            e, -ENOMEM,
            "kv.memory: auto finds no room: of %.2f GiB of GPU memory %.2f are free beside %.2f of "
            "weights and %.2f for steps of %u rows; graphs.memory needs %.2f, a successor %.2f, "
            "kv.reserve %.2f",
            GIB(total), GIB(free), GIB(w->e.model->weight_bytes), GIB(steps), w->e.limits.max_rows,
            GIB(graphs), GIB(next), GIB(k->kv_reserve));
    *ret = free - taken;
    return 0;
}

static int
auto_kv(struct worker *w, uint64_t *ret, struct err *e)
{
    struct engine *n = &w->e;
    uint64_t free, own, total, room;

    if (gpu_memory(n->gpu, &free, &own, &total) < 0)
        return err_set(e, -EIO, "kv.memory: auto: %s", gpu_why(n->gpu));
    room = free / AUTO_KV_SHARE / w->keys.tensor_parallel;
    if (on_gpu(n)) TRY(gpu_room(w, free + n->old_kv.bytes, total, &room, e));
    *ret = MIN(kv_most(&n->kv_config), MAX(room, (uint64_t)n->kv_config.slab_bytes * 2));
    return 0;
}

/* The predecessor's memory for KV is lagand's until it gets ours: beside it there may be no room for another.
 * So where it has the size we want (nearly, if auto: no two contexts are alike), it is ours again. What is in
 * it is for adopt_open() to say. */
static int
make_kv(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    struct kv_config *c = &n->kv_config;
    uint64_t old = n->old_kv.bytes;
    bool suits = old == c->arena_bytes ||
                 (!w->keys.kv_memory && !w->rank && old >= c->arena_bytes / 16 * 15 &&
                  old <= c->arena_bytes / 16 * 17);

    if (n->old_kv.fd >= 0 && suits &&
        gpu_ops(n->gpu)->arena_adopt(n->gpu, n->old_kv.fd, old, &n->kv_arena, e) == 0) {
        n->old_kv.fd = -1;
        memcpy(n->kv_id, n->old_kv_id, sizeof n->kv_id);
        c->arena_bytes = old;
        return 0;
    }
    if (n->old_kv.fd >= 0) close(n->old_kv.fd);
    n->old_kv.fd = -1;
    TRY(adopt_number(n->kv_id, e));
    return gpu_ops(n->gpu)->arena_make(n->gpu, "kv", c->arena_bytes, &n->kv_arena, e);
}

/* A hint: in pages of 4 KiB the tables of many seats cost a walk through the page table at each block border. */
static void
prefer_huge_pages(void *mem, size_t bytes)
{
    uintptr_t huge = 2 << 20, first = ROUND_UP((uintptr_t)mem, huge);

    if ((uintptr_t)mem + bytes > first)
        madvise((void *)first, (uintptr_t)mem + bytes - first, MADV_HUGEPAGE);
}

static int
open_kv(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    struct kv_config *c = &n->kv_config;

    c->reuse = c->copy_partial = w->keys.kv_reuse;
    TRY(adopt_secret(n, c->hash_secret, e));
    c->arena_bytes = w->keys.kv_memory;
    if (!c->arena_bytes) TRY(auto_kv(w, &c->arena_bytes, e));
    TRY(make_kv(w, e));
    n->kv_memory = calloc(1, kv_bytes(c) + CACHE_LINE);
    if (!n->kv_memory) return err_set(e, -ENOMEM, "memory for the KV manager");
    prefer_huge_pages(n->kv_memory, kv_bytes(c));
    n->kv = kv_init((void *)ROUND_UP((uintptr_t)n->kv_memory, (uintptr_t)CACHE_LINE), c, e);
    if (!n->kv) return err_while(e, -ENOMEM, "kv.memory");
    if (w->host_tier.later) kv_host_away(n->kv);
    if (n->host.base) kv_host_room(n->kv, n->host.n_mapped * n->host.piece);
    TRY(adopt_open(w, n->steps.kv_dtype, e));
    FP(load_kv);
    TRY(arena_channel_give(w, "kv", &n->kv_arena, n->kv_id, e));
    TRY(host_tier_give(w, e));
    return arena_channel_give(w, "manifest", &n->manifest_arena, n->kv_id, e);
}

/* On a host of one core the two lanes of a divided device still have a thread each. */
static int
set_lanes(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    uint32_t units = w->keys.threads && !on_gpu(n) ? w->keys.threads : gpu_units(n->gpu);

    if (!on_gpu(n)) units = MAX(units / w->keys.tensor_parallel, 1u); /* they share the host */
    if (!on_gpu(n) && w->keys.split_mode != SPLIT_OFF) units = MAX(units, 2u);
    return partition_ctl_plan(&n->partition_ctl, &w->keys, gpu_parts(n->gpu), units, &n->limits, &n->steps, e);
}

/* For a first guess at how long steps take: the whole model, its encoder by its layers. */
static struct work_costs
work_costs(const struct engine *n)
{
    const struct model_shape *s = &n->model->shape;
    double weights = (double)n->model->weight_bytes, layers = s->n_layers + s->n_encoder_layers,
           encoder = weights * s->n_encoder_layers / layers,
           flops = 4 / (double)dtype_bytes(n->model->dtype, 2); /* two a weight */
    struct work_costs c = { .weights = (uint64_t)(weights - encoder),
                            .encoder_weights = (uint64_t)encoder,
                            .row_flops = (weights - encoder) * flops,
                            .encoder_flops = encoder * flops,
                            .n_enc_layers = s->n_encoder_layers };

    for (uint32_t i = 0; i < s->n_layers; i++)
        if (s->layer[i].mixer == MIX_ATTENTION)
            c.attend[s->layer[i].group] += 4. * s->layer[i].n_heads * s->layer[i].head_dim;
    return c;
}

static int
check_ranks(const struct model_keys *k, struct err *e)
{
    const struct {
        const char *key;
        uint32_t n;
    } others[] = { { "pipeline_parallel", k->pipeline_parallel },
                   { "context_parallel", k->context_parallel },
                   { "expert_parallel", k->expert_parallel },
                   { "attention_data_parallel", k->attention_data_parallel } };

    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (others[i].n > 1)
            return err_set(e, -EINVAL, "%s: not served yet, only 1", others[i].key);
    if (k->tensor_parallel > MAX_RANKS)
        return err_set(e, -EINVAL, "tensor_parallel: %u, at most %d ranks are served",
                       k->tensor_parallel, MAX_RANKS);
    return 0;
}

/* Settings that the table knows and this worker does not serve are refused by name, never ignored. */
static int
check_keys(const struct model_keys *k, struct err *e)
{
    TRY(check_ranks(k, e));
    if (k->kv_host_memory && !k->kv_reuse)
        return err_set(e, -EINVAL, "kv.host_memory without kv.reuse: nothing would be kept there");
    return 0;
}

static struct gpu_options
device_options(const struct worker *w)
{
    const struct model_keys *k = &w->keys;

    return (struct gpu_options){
        .device = keys_device(k),
        .isa = k->isa,
        .libs = k->cuda_libs[0] ? k->cuda_libs : NULL,
        .tuned = k->cuda_tuned[0] ? k->cuda_tuned : NULL,
        .kernels = k->kernels[0] ? k->kernels : NULL,
        .invariant = k->numerics == NUMERICS_INVARIANT,
        .timing = k->timing,
        .n_lanes = 1u + (k->split_mode != SPLIT_OFF) + (k->split_encoder == SPLIT_ENCODER_OWN),
        .rank = w->rank,
        .n_ranks = k->tensor_parallel,
        .group_fd = heritage_fd(&w->heritage, "group"),
    };
}

static void
slice_ends(struct engine *n, enum load_slice which, nsec *since)
{
    nsec now = clock_now();

    n->slice_ns[which] = now - *since;
    *since = now;
}

static int
try_device(struct worker *w, const struct gpu_options *device, struct err *e)
{
    FP_OR(load_device, return err_set(e, -ENOMEM, "no room for a context"));
    return gpu_open(&w->e.gpu, device, e);
}

/* Beside the worker whose place we are to take there may be no room for a context: then it waits too. */
static int
open_device(struct worker *w, const struct gpu_options *device, struct err *e)
{
    struct pollfd p = { .fd = w->hand, .events = POLLIN };
    int r = try_device(w, device, e);

    if (r != -ENOMEM || !w->waits) return r;
    while (w->waits) {
        if (poll(&p, 1, -1) < 0 && errno != EINTR) check(!"poll");
        TRY(load_take(w, e));
    }
    return try_device(w, device, e);
}

/* From the predecessor's arena what is whole there: checked against its checksums, whoever asks. */
static int
load_model(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    int r = model_load(n->begun, &n->source, n->gpu, e);

    n->source.weights_fd = -1;
    if (r < 0) return r;
    n->model = n->begun;
    n->begun = NULL;
    if (n->model->n_other)
        log_info("the language model alone is served: skipped %u tensors, the first is %s",
                 n->model->n_other, n->model->other);
    if (n->model->n_unused)
        log_warn("%u tensors of the checkpoint are not used, the first is %s", n->model->n_unused,
                 n->model->unused[0]);
    if (n->model->n_rebuilt)
        log_warn("%u tensors of the adopted weights were damaged, rebuilt them",
                 n->model->n_rebuilt);
    return 0;
}

/* From the settings and the model: how large everything is but the memory for KV. */
static int
set_sizes(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    const struct model_keys *k = &w->keys;
    static const enum dtype kv_dtypes[] = { DT_COUNT, DT_F32, DT_BF16, DT_F16, DT_E4M3 };
    uint32_t max_rows = k->max_num_batched_tokens ? k->max_num_batched_tokens
                        : on_gpu(n)               ? GPU_ROWS
                                                  : CPU_ROWS;
    struct exec_config *x = &n->steps;

    *x = (struct exec_config){ .graphs_memory = k->graphs_memory, .beat = on_beat, .beat_arg = w };
    x->kv_dtype = k->kv_dtype == DTYPE_AUTO ? n->model->act : kv_dtypes[k->kv_dtype];
    if (x->kv_dtype == DT_F16 && !on_gpu(n))
        return err_set(e, -EINVAL, "kv.dtype: the CPU device keeps fp32, bf16 or fp8");
    n->max_source = n->model->shape.n_encoder_layers
                        ? MIN(k->max_source_tokens, n->model->shape.max_source)
                        : 0;
    n->model->shape.max_source = n->max_source;
    n->kv_config.n_seats = k->max_num_seqs;
    n->kv_config.host_bytes = k->kv_host_memory;
    n->kv_config.host_bandwidth = k->kv_host_bandwidth;
    n->kv_config.token_time = k->kv_prompt_rate ? NSEC_S / k->kv_prompt_rate : 0;
    TRY(model_groups(n->model, x->kv_dtype, k->kv_tokens_per_block, &n->kv_config, e));
    model_keep_first(n->model, k->kv_sink_tokens, &n->kv_config);
    TRY(model_shares(k->kv_shares, k->cross_kv_cache_fraction, &n->kv_config, e));
    for (uint32_t i = 0; i < n->kv_config.n_groups; i++)
        if (n->kv_config.group[i].kind == KV_STATE)
            n->kv_config.group[i].interval = ROUND_UP(k->kv_snapshot_interval,
                                                      n->kv_config.tokens_per_block);
    n->limits = (struct scheduler_limits){
        .policy = (enum policy)k->policy,
        .chunks = (enum chunks)k->chunks,
        .quantum = k->quantum,
        .prompt_batch = k->prompt_batch,
        .enc_batch = { k->source_batch },
        .n_enc_batches = k->source_batch > 0,
        .prompt_wait = k->batch_wait,
        .enc_wait = k->batch_wait,
        .max_seqs = k->max_num_seqs,
        .max_rows = max_rows,
        .max_len = n->model->shape.max_len,
        .max_enc_rows = n->max_source && on_gpu(n) ? MAX(n->max_source, (uint32_t)GPU_ENC_ROWS)
                                                   : n->max_source,
        .n_enc_layers = (uint16_t)n->model->shape.n_encoder_layers,
        .search_rows = SEARCH_ROWS,
        /* Beside a stream a source is no more than a whole chunk is. */
        .enc_work = (uint64_t)max_rows * n->model->shape.n_encoder_layers,
    };
    if (gpu_graphs(n->gpu) && k->graphs_memory)
        n->limits.n_buckets = graphs_buckets(n->limits.bucket, max_rows);
    TRY(set_lanes(w, e));
    n->kv_config.n_lanes = x->n_lanes;
    if (!n->kv_config.slab_bytes) n->kv_config.slab_bytes = kv_slab_bytes(&n->kv_config);
    x->max_rows = max_rows;
    x->measure = on_gpu(n);
    /* Somebody's KV: its streams want their next token first. Ranks do the same passes or none. */
    x->brief = n->old_kv.fd >= 0 && k->tensor_parallel == 1;
    x->max_seqs = n->limits.max_seqs;
    x->max_enc_rows = n->limits.max_enc_rows;
    x->max_edits = scheduler_edits(&n->limits, &n->kv_config);
    x->max_copies = scheduler_copies(&n->limits, &n->kv_config);
    return 0;
}

static int
open_steps(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;

    FP_OR(load_steps, return err_set(e, -ENOMEM, "no room for steps"));
    return exec_open(&n->exec, &n->steps, n->gpu, n->model, &n->kv_config, e);
}

/* What the ranks of a group share: whoever comes first makes it that large, to the others it is so already. */
static int
size_group(const struct gpu_options *o, struct err *e)
{
    if (o->n_ranks == 1 || ftruncate(o->group_fd, GPU_GROUP_BYTES) == 0) return 0;
    return err_set(e, -errno, "a group's memory, fd %d: %m", o->group_fd);
}

/* What needs nothing of the device but its driver. Whoever may go on at once has it come up with the rest. */
static int
begin(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    struct gpu_options device = device_options(w);

    TRY(check_keys(&w->keys, e));
    TRY(size_group(&device, e));
    n->old_kv.fd = n->old_manifest.fd = -1;
    host_tier_begin(n);
    TRY(read_source(w, e));
    TRY(load_take(w, e));
    if (w->waits && !w->begins) TRY(gpu_begin(&device, e));
    TRY(model_begin(&n->begun, &n->source, arch_families, e));
    return w->waits ? load_take(w, e) : 0;
}

/* All that takes long and needs nothing that a living worker writes. */
static int
prepare(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    nsec since = clock_now();
    const struct model_keys *k = &w->keys;
    struct gpu_options device = device_options(w);
    int r;

    TRY(open_device(w, &device, e));
    /* Is the worker gone meanwhile? Then weights that are looked through now need not be once more. Of ranks some may
     * not know it yet. */
    if (w->waits && k->tensor_parallel == 1) TRY(load_take(w, e));
    slice_ends(n, LOAD_DEVICE, &since);
    TRY(load_model(w, e));
    slice_ends(n, LOAD_WEIGHTS, &since);
    TRY(set_sizes(w, e));
    TRY(w->rank ? rank_start_join(w, e) : plan_ring_join(w, e));
    r = open_steps(w, e);
    slice_ends(n, LOAD_STEPS, &since);
    if (r == 0 && *gpu_group(n->gpu))
        log_info("rank %u of %u has met the others: %s", w->rank, k->tensor_parallel,
                 gpu_group(n->gpu));
    /* There may be room when the worker is gone; but ranks do this together or not at all. */
    return r == -ENOMEM && w->waits && k->tensor_parallel == 1 ? 0 : r;
}

/* What is mapped of a worker that may have damaged it is looked through. Where it has, another model is opened, of
 * the same files; ranks, whose steps are of one time, begin anew. */
static int
check_model(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    nsec since = clock_now();
    int damaged = model_check(n->model, e);

    if (damaged < 0) return damaged;
    if (damaged && w->keys.tensor_parallel > 1)
        return err_set(e, -EIO, "%d tensors of the adopted weights are damaged", damaged);
    if (damaged == 0) {
        close(n->source.weights_fd);
        n->source.weights_fd = -1;
    } else {
        n->exec = exec_close(n->exec);
        n->model = model_close(n->model);
        TRY(model_begin(&n->begun, &n->source, arch_families, e));
        TRY(load_model(w, e));
        TRY(set_sizes(w, e));
    }
    slice_ends(n, LOAD_WEIGHTS, &since);
    return 0;
}

/* Of a rank that is not the first: as large as rank 0's, and of the same time. Rank 0 takes it that a host tier which was
 * said to be left is there: so it is mapped by then. */
static int
open_kv_of_rank(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    struct plan_ring_kv kv;
    bool same;

    TRY(host_tier_open(w, e));
    TRY(rank_start_left(w, e));
    TRY(rank_start_kv(w, &kv, e));
    same = n->old_kv.fd >= 0 && !memcmp(kv.id, n->old_kv_id, sizeof kv.id);
    n->kv_config.arena_bytes = kv.bytes;
    TRY(make_kv(w, e));
    if (same && memcmp(n->kv_id, kv.id, sizeof kv.id))
        return err_set(e, -EIO, "the KV memory that rank 0 goes on with cannot be mapped here");
    memcpy(n->kv_id, kv.id, sizeof n->kv_id);
    TRY(arena_channel_give(w, "kv", &n->kv_arena, n->kv_id, e));
    TRY(host_tier_give(w, e));
    exec_blocks(n->exec, &n->kv_config, &n->kv_arena);
    exec_host(n->exec, &n->host);
    return rank_start_ready(w, e);
}

static int
complete(struct worker *w, struct err *e)
{
    struct engine *n = &w->e;
    struct work_costs costs;
    nsec since;

    if (n->source.weights_fd >= 0) TRY(check_model(w, e));
    FP(load_weights);
    TRY(arena_channel_give(w, "weights", &n->model->weights, n->model->fingerprint, e));
    since = clock_now();
    if (!n->exec) {
        TRY(open_steps(w, e));
        slice_ends(n, LOAD_STEPS, &since);
    }
    if (w->rank) return open_kv_of_rank(w, e);
    TRY(host_tier_open(w, e));
    TRY(plan_ring_left(w, e));
    TRY(open_kv(w, e));
    exec_blocks(n->exec, &n->kv_config, &n->kv_arena);
    exec_host(n->exec, &n->host);
    TRY(scheduler_new(&n->sched, &n->limits, n->kv, e));
    costs = work_costs(n);
    partition_ctl_open(&n->partition_ctl, n->exec, n->sched, &n->kv_config, &costs, &n->limits,
               w->keys.split_target);
    for (uint32_t l = 0; l < n->limits.n_lanes; l++)
        for (uint32_t i = 0; i < STEPS_OUT; i++) {
            w->lane[l].batch[i] = scheduler_batch(n->sched);
            if (!w->lane[l].batch[i]) return err_set(e, -ENOMEM, "memory for a batch");
        }
    TRY(plan_ring_ready(w, e));
    slice_ends(n, LOAD_KV, &since);
    return 0;
}

/* The folder where vocabularies are kept, or NULL. */
static const char *
kept_vocabularies(const struct worker *w, char *buf, size_t n)
{
    const char *cache = getenv("CACHE_DIRECTORY");

    if (w->keys.text_cache[0]) return w->keys.text_cache;
    if (!cache || !*cache || (size_t)snprintf(buf, n, "%s/vocab", cache) >= n) return NULL;
    return buf;
}

/* Without a tokenizer a model serves ids; text then gets this reason as its answer. */
static void
open_chat(struct worker *w)
{
    char note[240];

    chat_open(&w->e.chat, w->keys.path, w->keys.chat_template, w->e.tokenizer, note);
    if (*note) log_info("%s", note);
}

static void *
open_text(void *arg)
{
    struct worker *w = arg;
    char buf[1100];
    const char *kept = kept_vocabularies(w, buf, sizeof buf);
    struct err e = { 0 };
    int r = kept ? tokenizer_open_kept(&w->e.tokenizer, w->keys.path, kept, &e) : 0;

    if (r == 0) r = tokenizer_open(&w->e.tokenizer, w->keys.path, &e);
    if (r >= 0) open_chat(w);
    if (r > 0) return NULL;
    if (r == 0) {
        if (kept && tokenizer_keep(w->e.tokenizer, kept, &e) < 0)
            log_info("%s: the vocabulary is not kept and will be read again", e.text);
        return NULL;
    }
    snprintf(w->e.why_no_text, sizeof w->e.why_no_text, "ids alone are served: %.170s", e.text);
    log_info("%s", w->e.why_no_text);
    return NULL;
}

int
load_inspect(struct worker *w, uint64_t *weights, uint64_t *beside, struct err *e)
{
    struct engine *n = &w->e;
    const struct model_keys *k = &w->keys;
    struct gpu_options device = device_options(w);

    device.n_ranks = 0; /* whoever looks meets nobody */
    n->old_kv.fd = n->old_manifest.fd = -1;
    host_tier_begin(n);
    TRY(check_keys(k, e));
    TRY(read_source(w, e));
    TRY(model_begin(&n->model, &n->source, arch_families, e));
    TRY(gpu_open(&n->gpu, &device, e));
    TRY(model_look(n->model, &n->source, n->gpu, weights, e));
    TRY(set_sizes(w, e));
    open_text(w);
    *beside = 0;
    if (on_gpu(n))
        *beside = (gpu_graphs(n->gpu) ? k->graphs_memory : 0) + SUCCESSOR_BYTES + k->kv_reserve +
                  n->limits.n_lanes * LANE_BYTES;
    return 0;
}

const char *
load_no_tuning(const struct worker *w)
{
    if (w->keys.tensor_parallel > 1)
        return "a model on several ranks is not tuned: what each of them computes for itself, such "
               "as which experts a token goes to, must have the same bits in all";
    if (!on_gpu(&w->e)) return "the CPU device has nothing to tune";
    if (!w->keys.cuda_tuned[0])
        return "there is no file to keep the results in: name one with this model's key "
               "cuda.tuned, "
               "then `laganctl daemon reexec`";
    if (w->keys.numerics == NUMERICS_INVARIANT)
        return "numerics is invariant here: bits may not change while it serves";
    if (w->e.limits.n_lanes > 1)
        return "each lane has a share of the GPU: tune in a worker whose split.mode is off";
    return NULL;
}

/* As far as it may by now. */
static int
load_more(struct worker *w)
{
    int r = 0;

    if (!w->e.gpu && (w->begins || !w->waits)) r = prepare(w, &w->start_err);
    if (r == 0 && !w->waits) r = complete(w, &w->start_err);
    return r;
}

/* The first time: with the tokenizer beside it. */
static int
load_first(struct worker *w)
{
    int r;

    w->opens_text = !w->rank && pthread_create(&w->text_opener, NULL, open_text, w) == 0;
    r = begin(w, &w->start_err);
    if (r == 0) r = load_more(w);
    if (r == 0 && !w->rank && !w->opens_text) open_text(w);
    return r;
}

/* Of a standby what it may, and the rest when it is called again. */
static void *
load(void *arg)
{
    struct worker *w = arg;
    nsec since = clock_now();
    int r;

    memset(w->e.slice_ns, 0, sizeof w->e.slice_ns); /* was spent before anybody waited for it */
    r = !w->e.begun && !w->e.model ? load_first(w) : load_more(w);
    if (w->opens_text && (r < 0 || !w->waits)) {
        pthread_join(w->text_opener, NULL);
        w->opens_text = false;
    }
    w->e.load_ns = clock_now() - since;
    if (!w->waits) FP(load_done);
    atomic_store_explicit(&w->start_done, r < 0 ? -1 : 1, memory_order_release);
    return NULL;
}

static void
say_what_is_there(const struct worker *w)
{
    const struct engine *n = &w->e;

    if (!n->gpu)
        log_info("the driver of %s is up after %.2f s, nothing else is begun",
                 keys_device(&w->keys), (double)n->load_ns / NSEC_S);
    else
        log_info("standing by after %.2f s (device %.2f, weights %.2f, steps %.2f) on %s",
                 (double)n->load_ns / NSEC_S, (double)n->slice_ns[LOAD_DEVICE] / NSEC_S,
                 (double)n->slice_ns[LOAD_WEIGHTS] / NSEC_S,
                 (double)n->slice_ns[LOAD_STEPS] / NSEC_S, gpu_describe(n->gpu));
}

/* A standby, or a rank of one: until it may go on. The device waits for a word to begin, all that a worker leaves until that
 * is gone and lagand has sent it. -EPIPE: who would say so is gone. */
static int
stand_by(struct worker *w, struct err *e)
{
    static const struct timespec turn = { .tv_nsec = STANDBY_TURN };
    struct pollfd p[] = { { .fd = w->hand, .events = POLLIN },
                          { .fd = w->link.bell.fd, .events = POLLIN } };
    bool begun = w->begins;
    int r;

    say_what_is_there(w);
    health_phase(w, begun ? PHASE_STANDBY : PHASE_BEGUN, 0);
    while ((r = load_take(w, e)) == 0 && w->waits && w->begins == begun) {
        health_beat(w, clock_now());
        if (ppoll(p, ARRAY_LEN(p), &turn, NULL) < 0 && errno != EINTR) check(!"poll");
        if (bell_drain(&w->link.bell) == -EPIPE)
            return err_set(e, -EPIPE, "%s is gone", w->rank ? "rank 0" : "lagand");
    }
    return r;
}

static int
run_loader(struct worker *w, int (*turn)(struct worker *w, struct err *e), struct err *e)
{
    int done;

    health_phase(w, PHASE_LOAD, 0);
    atomic_store_explicit(&w->start_done, 0, memory_order_relaxed);
    w->load_said = UINT64_MAX;
    if (pthread_create(&w->loader, NULL, load, w))
        return err_set(e, -EAGAIN, "a loader thread cannot be started");
    while (!(done = atomic_load_explicit(&w->start_done, memory_order_acquire))) {
        health_beat(w, clock_now());
        TRY(turn(w, e));
    }
    pthread_join(w->loader, NULL);
    if (done < 0) *e = w->start_err;
    return done < 0 ? e->code : 0;
}

int
load_run(struct worker *w, int (*turn)(struct worker *w, struct err *e), struct err *e)
{
    TRY(run_loader(w, turn, e));
    while (w->waits) {
        TRY(stand_by(w, e));
        TRY(run_loader(w, turn, e));
    }
    return 0;
}

void
load_free(struct engine *n)
{
    if (n->exec) exec_close(n->exec);
    scheduler_free(n->sched);
    if (n->kv_arena.base) gpu_ops(n->gpu)->arena_drop(n->gpu, &n->kv_arena);
    if (n->host.base) gpu_ops(n->gpu)->host_close(n->gpu, &n->host);
    adopt_close(n);
    free(n->kv_memory);
    tokenizer_close(n->tokenizer);
    model_close(n->begun);
    model_close(n->model);
    if (n->gpu) gpu_close(n->gpu);
}
