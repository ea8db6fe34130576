/* kv_memory.c - sizes, makes or adopts the KV memory: see load.h. */
#include "worker/load/load.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "gpu/gpu.h"
#include "ipc/model_options.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/handover/host_tier.h"
#include "worker/kv/kv.h"
#include "worker/load/host_memory.h"
#include "worker/load/sizes.h"
#include "worker/model/model.h"
#include "worker/sched/scheduler.h"
#include "worker/tp/plan_ring.h"

#include <sys/mman.h>
#include <unistd.h>

/* Computes kv.memory auto on a GPU: the free memory minus the memory that is allocated later. */
static int
gpu_kv_bytes(struct worker *w, uint64_t free, uint64_t total, uint64_t *ret, struct err *e)
{
    const struct model_options *k = w->keys;
    uint64_t graphs = gpu_facts(w->gpu).graphs ? k->graphs_memory : 0;
    uint64_t steps = exec_scratch_bytes(w->exec) + w->limits->n_lanes * SIZES_LANE_BYTES;
    uint64_t next = SIZES_REPLACEMENT_BYTES + exec_partition_times(w->exec).bytes +
                    (k->standby ? steps : 0);
    uint64_t taken = graphs + next + k->kv_reserve;

    if (free < taken + 2 * (uint64_t)w->kv_config->slab_bytes)
        return err_set(
            e, -ENOMEM,
            "kv.memory auto: too little GPU memory: %.2f of %.2f GiB are free after weights (%.2f) "
            "and buffers for steps of %u tokens (%.2f); graphs.memory needs %.2f, a replacement "
            "%.2f, kv.reserve %.2f; lower one of them or max_num_batched_tokens",
            GIB(free), GIB(total), GIB(w->model->weight_bytes), w->limits->max_tokens, GIB(steps),
            GIB(graphs), GIB(next), GIB(k->kv_reserve));
    *ret = free - taken;
    return 0;
}

static int
automatic_bytes(struct worker *w, uint64_t *ret, struct err *e)
{
    uint64_t free, own, total, bytes = 0;

    if (!sizes_on_gpu(w)) return host_memory_auto_kv(w, ret, e);
    if (gpu_memory(w->gpu, &free, &own, &total) < 0)
        return err_set(e, -EIO, "kv.memory auto: the free device memory is unknown: %s",
                       gpu_why(w->gpu));
    TRY(gpu_kv_bytes(w, free + w->adopt->old_kv.bytes, total, &bytes, e));
    *ret = MIN(host_memory_longest_kv(w->kv_config),
               MAX(bytes, (uint64_t)w->kv_config->slab_bytes * 2));
    return 0;
}

/* Sets the size of the KV arena: kv.memory, or less after OOM kills of previous processes. */
static int
choose_bytes(struct worker *w, uint64_t *ret, struct err *e)
{
    uint64_t wanted = w->keys->kv_memory;

    if (!wanted) return automatic_bytes(w, ret, e);
    *ret = w->max_kv ? MIN(wanted, w->max_kv) : wanted;
    return 0;
}

/* Adopts the previous worker's KV arena if its size fits, else makes one. lagand holds the previous
 * arena until it receives ours, so the device may lack memory for both. With kv.memory auto, a size
 * that differs by at most 1/16 fits, because free memory varies with the size of the device
 * context. adopt_open() decides whether the contents are used. */
static int
make_arena(struct worker *w, struct err *e)
{
    struct kv_config *c = w->kv_config;
    uint64_t old = w->adopt->old_kv.bytes;
    bool suits = old == c->arena_bytes ||
                 (!w->keys->kv_memory && !w->rank && old >= c->arena_bytes / 16 * 15 &&
                  old <= c->arena_bytes / 16 * 17);

    if (w->adopt->old_kv.fd >= 0 && suits &&
        gpu_ops(w->gpu)->mem.arena_adopt(w->gpu, w->adopt->old_kv.fd, old, &w->adopt->kv_arena,
                                         e) == 0) {
        w->adopt->old_kv.fd = -1;
        memcpy(w->adopt->kv_id, w->adopt->old_kv_id, sizeof w->adopt->kv_id);
        c->arena_bytes = old;
        return 0;
    }
    if (w->adopt->old_kv.fd >= 0) close(w->adopt->old_kv.fd);
    w->adopt->old_kv.fd = -1;
    TRY(adopt_new_id(w->adopt->kv_id, e));
    return gpu_ops(w->gpu)->mem.arena_make(w->gpu, "kv", c->arena_bytes, &w->adopt->kv_arena, e);
}

static void
free_kv(void **mem)
{
    free(*mem);
}

/* Asks for huge pages: with 4 KiB pages, large tables cost a page walk at each block border. */
static void
prefer_huge_pages(void *mem, size_t bytes)
{
    uintptr_t huge = 2 << 20, first = ROUND_UP((uintptr_t)mem, huge);

    if ((uintptr_t)mem + bytes > first)
        madvise((void *)first, (uintptr_t)mem + bytes - first, MADV_HUGEPAGE);
}

static void
set_reuse(const struct model_options *k, struct kv_config *c)
{
    c->reuse = c->copy_partial = k->kv_reuse;
    c->whole_blocks = !k->kv_partial_reuse;
    if (c->reuse) c->max_events = k->kv_events;
}

int
kv_memory_check(const struct worker *w, struct err *e)
{
    struct kv_config c = *w->kv_config;
    CLEAN(free_kv) void *mem = NULL;

    set_reuse(w->keys, &c);
    c.arena_bytes = w->keys->kv_memory;
    if (!c.arena_bytes) return 0;
    mem = calloc(1, kv_bytes(&c));
    if (!mem)
        return err_set(e, -ENOMEM, "out of memory: %zu bytes for the KV manager", kv_bytes(&c));
    return kv_init(mem, &c, e) ? 0 : err_while(e, -EINVAL, "KV cache");
}

int
kv_memory_open(struct worker *w, struct err *e)
{
    struct kv_config *c = w->kv_config;

    set_reuse(w->keys, c);
    TRY(adopt_secret(w, c->hash_secret, e));
    TRY(choose_bytes(w, &c->arena_bytes, e));
    if (w->max_kv)
        log_warn("the KV memory is %.1f MiB, because the kernel killed processes of this worker "
                 "when memory ran out",
                 (double)c->arena_bytes / (1 << 20));
    TRY(make_arena(w, e));
    w->kv_memory = calloc(1, kv_bytes(c) + CACHE_LINE);
    if (!w->kv_memory)
        return err_set(e, -ENOMEM, "out of host memory: %zu bytes for the KV manager", kv_bytes(c));
    prefer_huge_pages(w->kv_memory, kv_bytes(c));
    w->kv = kv_init((void *)ROUND_UP((uintptr_t)w->kv_memory, (uintptr_t)CACHE_LINE), c, e);
    if (!w->kv) return err_while(e, w->keys->kv_memory ? -EINVAL : -ENOMEM, "KV cache");
    if (w->host_tier->map_later) kv_host_tier_away(w->kv);
    if (w->host_tier->host.base)
        kv_host_tier_set_size(w->kv, w->host_tier->host.n_mapped * w->host_tier->host.piece);
    TRY(adopt_open(w, w->steps->kv_dtype, host_tier_keeps(w), e));
    FP(load_kv);
    TRY(adopt_give_arena(w, "kv", &w->adopt->kv_arena, w->adopt->kv_id, e));
    TRY(host_tier_give(w, e));
    return adopt_give_arena(w, "manifest", &w->adopt->manifest_arena, w->adopt->kv_id, e);
}

/* Maps the whole host tier before it sends the tier's id to rank 0, which then relies on it. */
int
kv_memory_open_rank(struct worker *w, struct err *e)
{
    struct plan_ring_left left;
    struct plan_ring_kv kv;
    bool same;

    TRY(host_tier_open(w, e));
    memcpy(left.kv_id, w->adopt->old_kv_id, sizeof left.kv_id);
    memcpy(left.host_id, w->host_tier->old_id, sizeof left.host_id);
    TRY(plan_ring_send_left(w, &left, e));
    TRY(plan_ring_await_kv(w, &kv, e));
    same = w->adopt->old_kv.fd >= 0 && !memcmp(kv.id, w->adopt->old_kv_id, sizeof kv.id);
    w->kv_config->arena_bytes = kv.bytes;
    TRY(make_arena(w, e));
    if (same && memcmp(w->adopt->kv_id, kv.id, sizeof kv.id))
        return err_set(e, -EIO,
                       "rank %u cannot map the KV arena of the previous worker, which rank 0 "
                       "adopted; all ranks restart",
                       w->rank);
    memcpy(w->adopt->kv_id, kv.id, sizeof w->adopt->kv_id);
    TRY(adopt_give_arena(w, "kv", &w->adopt->kv_arena, w->adopt->kv_id, e));
    TRY(host_tier_give(w, e));
    exec_blocks(w->exec, w->kv_config, &w->adopt->kv_arena);
    exec_host(w->exec, &w->host_tier->host);
    return plan_ring_send_ready(w, e);
}
