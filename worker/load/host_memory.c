/* host_memory.c - see host_memory.h. */
#include "worker/load/host_memory.h"

#include "base/cgroup.h"
#include "base/log.h"
#include "gpu/gpu.h"
#include "ipc/model_options.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/kv/kv.h"
#include "worker/model/model.h"

#include <stdio.h>
#include <sys/stat.h>

/* Code, heap, thread stacks, tokenizer and rings of a worker. recall-gemma3 after 900 tokens: 19
 * MiB resident. */
static const uint64_t PROCESS_BYTES = 32 << 20;
/* kv.memory auto takes this part of the free memory: 1/2 if a cgroup's limit reserves memory for
 * lagan, 1/4 of a host that other programs use too. */
enum { CGROUP_SHARE = 2, HOST_SHARE = 4 };

uint64_t
host_memory_resident(int fd)
{
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Smallest KV memory: each KV group needs 2 blocks, and each slab has the blocks of one pool. */
static uint64_t
smallest_kv(const struct kv_config *c)
{
    return (uint64_t)c->slab_bytes * (c->n_groups + 1);
}

uint64_t
host_memory_longest_kv(const struct kv_config *c)
{
    return kv_table_bytes(c) * c->n_slots + smallest_kv(c);
}

/* Returns the bytes of KV memory of that size together with its KV manager. */
static uint64_t
with_manager(const struct worker *w, uint64_t arena_bytes)
{
    struct kv_config c = *w->kv_config;

    if (w->rank) return arena_bytes;
    c.arena_bytes = arena_bytes;
    return arena_bytes + kv_bytes(&c);
}

void
host_memory_need(const struct worker *w, uint64_t arena_bytes, struct host_memory_need *ret)
{
    const struct model_options *k = w->keys;
    uint64_t kv = k->kv_memory ? k->kv_memory : smallest_kv(w->kv_config);

    if (k->kv_memory && w->max_kv) kv = MIN(kv, w->max_kv);
    *ret = (struct host_memory_need){
        .weights = arena_bytes,
        .kv = with_manager(w, kv),
        .tier = k->kv_host_memory,
        .steps = exec_scratch_need(w->steps, w->model, w->kv_config),
        .process = PROCESS_BYTES,
        .mapped = w->model->weight_bytes - MIN(w->model->weight_bytes, arena_bytes),
        .processes = k->workers * k->tensor_parallel,
    };
}

uint64_t
host_memory_sum(const struct host_memory_need *n)
{
    return n->weights + n->kv + n->tier + n->steps + n->process;
}

static const char *
size_text(uint64_t bytes, char buf[24])
{
    bool gib = bytes >= 1 << 30;

    snprintf(buf, 24, "%.1f %s", (double)bytes / (gib ? 1 << 30 : 1 << 20), gib ? "GiB" : "MiB");
    return buf;
}

/* Names the option or measure that lowers the largest part. */
static const char *
remedy(const struct host_memory_need *n)
{
    uint64_t most = MAX(MAX(n->weights, n->kv), MAX(n->tier, n->steps));

    if (most == n->weights) return "use a smaller model or dtype";
    if (most == n->kv) return "lower kv.memory";
    if (most == n->tier) return "lower kv.host_memory";
    return "lower max_num_batched_tokens or max_num_seqs";
}

/* Sets e to the sum, its parts, and what is there instead. */
static int
too_much(const struct host_memory_need *n, int code, uint32_t times, const char *there,
         struct err *e)
{
    char sum[24], weights[24], kv[24], steps[24], tier[40] = "", each[32] = "", size[24];

    if (n->tier) snprintf(tier, sizeof tier, ", host tier %s", size_text(n->tier, size));
    if (times > 1) snprintf(each, sizeof each, "%u processes of ", times);
    return err_set(e, code, "%s%s (weights %s, KV %s%s, steps %s, other %u MiB) do not fit: %s; %s",
                   each, size_text(host_memory_sum(n), sum), size_text(n->weights, weights),
                   size_text(n->kv, kv), tier, size_text(n->steps, steps),
                   (unsigned)(n->process >> 20), there, remedy(n));
}

int
host_memory_check(const struct worker *w, const struct host_memory_need *need, uint64_t resident,
                  struct err *e)
{
    struct memory_free m;
    char there[CGROUP_OWNER + 60], size[24];
    uint64_t sum = host_memory_sum(need);
    struct host_memory_need all = *need;

    all.process += CGROUP_DAEMON_BYTES;
    TRY(cgroup_memory(w->cgroup, &m, e));
    if (sum * need->processes + CGROUP_DAEMON_BYTES > m.limit) {
        snprintf(there, sizeof there, "%.60s has %s", m.limiter, size_text(m.limit, size));
        return too_much(&all, -EINVAL, need->processes, there, e);
    }
    if (sum > m.free + resident) {
        snprintf(there, sizeof there, "%.60s has %s free", m.owner,
                 size_text(m.free + resident, size));
        return too_much(need, -ENOMEM, 1, there, e);
    }
    return 0;
}

int
host_memory_auto_kv(const struct worker *w, uint64_t *ret, struct err *e)
{
    const struct kv_config *c = w->kv_config;
    struct host_memory_need need;
    struct memory_free m;
    uint64_t old = w->adopt->old_kv.bytes, longest = host_memory_longest_kv(c), fits, share;

    host_memory_need(w, 0, &need);
    TRY(cgroup_memory(w->cgroup, &m, e));
    m.free += host_memory_resident(w->adopt->old_kv.fd);
    need.kv = need.process = 0;
    fits = m.free - MIN(m.free, host_memory_sum(&need));
    share = fits / (strcmp(m.owner, "the host") ? CGROUP_SHARE : HOST_SHARE) / need.processes;
    share = MIN(longest, share);
    if (w->max_kv) share = MIN(share, w->max_kv);
    if (share < smallest_kv(c)) {
        host_memory_need(w, 0, &need);
        TRY(host_memory_check(w, &need, host_memory_resident(w->adopt->old_kv.fd), e));
        share = smallest_kv(c);
    }
    /* The free memory differs from start to start: the previous arena, if it fits, keeps its KV. */
    if (w->adopt->old_kv.fd >= 0 && old >= share / 2 && old <= MIN(longest, fits)) share = old;
    *ret = share;
    return 0;
}
