/* cuda_partition.c - divides the SMs of a device into two parts, and moves lanes to a part.
 *
 * A partition is identified by the number of SMs of its first part. The driver divides SMs in
 * groups that can be scheduled together (gpu_parts.grain). One part has whole groups, the other the
 * remaining SMs. Each part is a green context, and each lane that has used it has a stream there:
 *
 *     device     SMs  |<------ part 0 ------>|<-- part 1 -->|
 *     streams         lane a, lane b         lane a ...
 *
 * Memory, modules and events are those of the one primary context. A lane that changes its stream
 * records an event, and the new stream waits for it, so that ops stay in order. A graph always runs
 * on the part where it was recorded; a partition with graphs is therefore not replaced.
 *
 * The first lane.part() on a partition makes it, which takes milliseconds and memory. At most
 * CUDA_PARTITIONS exist; a further one replaces the least recently used one without lanes and
 * graphs.
 */
#include "gpu/cuda/cuda.h"

/* Older drivers have no green contexts: the device cannot be divided, all other functions work. */
#define NEWER "the driver lacks %s; CUDA 12.5 or later has it"

static int
failed(const struct cuda *c, CUresult r, const char *what, uint32_t at, struct err *e)
{
    if (r == CUDA_SUCCESS) return 0;
    return err_set(e, r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO,
                   "cannot divide %s into %u and %u SMs: %s: %s", c->gpu.describe, at,
                   c->gpu.units - at, what, cuda_driver_says(c, r));
}

static bool
find_calls(struct cuda *c)
{
#define X(name, version) \
    if (!cuda_driver_call((void **)&c->partitions.name, #name, version)) { \
        err_set(&c->partitions.why, -ENOTSUP, "%s cannot be divided into partitions: " NEWER, \
                c->gpu.describe, #name); \
        return false; \
    }
    PARTITION_CALLS(X)
#undef X
    return true;
}

void
cuda_partition_inspect(struct cuda *c)
{
    struct cuda_partitions *ps = &c->partitions;
    struct gpu_parts *parts = &c->gpu.parts;
    CUdevResource all;
    unsigned groups = 0;
    CUresult r;

    pthread_mutex_init(&ps->lock, NULL);
    parts->why = ps->why.text;
    if (!find_calls(c)) return;
    r = ps->cuDeviceGet(&ps->device, c->ordinal);
    if (r == CUDA_SUCCESS)
        r = ps->cuDeviceGetDevResource(ps->device, &all, CU_DEV_RESOURCE_TYPE_SM);
    if (r != CUDA_SUCCESS) {
        err_set(&ps->why, -ENOTSUP, "%s cannot be divided into partitions: %s", c->gpu.describe,
                cuda_driver_says(c, r));
        return;
    }
    if (all.sm.smCount != c->gpu.units) {
        err_set(&ps->why, -ENOTSUP,
                "%s cannot be divided into partitions: the driver offers only %u of %u SMs; check "
                "whether MPS limits them",
                c->gpu.describe, all.sm.smCount, c->gpu.units);
        return;
    }
    *parts = (struct gpu_parts){ .least = MAX(all.sm.minSmPartitionSize, 1u),
                                 .grain = MAX(all.sm.smCoscheduledAlignment, 1u) };
    /* SMs outside whole groups cannot run clusters: a part needs at least one whole group. */
    if (ps->cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, parts->grain) ==
            CUDA_SUCCESS &&
        groups * parts->grain < c->gpu.units)
        parts->least = MAX(parts->least,
                           ROUND_UP(c->gpu.units - groups * parts->grain + 1, parts->grain));
}

/* Asks the driver for the SMs of both parts. */
static int
share_out(struct cuda *c, uint32_t at, CUdevResource part[2], struct err *e)
{
    uint32_t units = c->gpu.units, grain = c->gpu.parts.grain;
    unsigned whole = at % grain ? 1 : 0, n = 1, want = whole ? units - at : at;
    const struct cuda_partitions *ps = &c->partitions;
    CUdevResource all;

    if (want % grain)
        return err_set(e, -EINVAL,
                       "cannot divide %s into %u and %u SMs: at least one must be a multiple of %u",
                       c->gpu.describe, at, units - at, grain);
    TRY(failed(c, ps->cuDeviceGetDevResource(ps->device, &all, CU_DEV_RESOURCE_TYPE_SM), "its SMs",
               at, e));
    TRY(failed(c, ps->cuDevSmResourceSplitByCount(&part[whole], &n, &all, &part[!whole], 0, want),
               "dividing its SMs", at, e));
    if (part[whole].sm.smCount == want && part[!whole].sm.smCount == units - want) return 0;
    return err_set(e, -EINVAL, "cannot divide %s into %u and %u SMs: its driver offers %u and %u",
                   c->gpu.describe, at, units - at, part[0].sm.smCount, part[1].sm.smCount);
}

static void
drop_stream(cudaStream_t *st)
{
    if (!*st) return;
    cudaStreamSynchronize(*st);
    cudaStreamDestroy(*st);
    *st = NULL;
}

static void
clear(struct cuda *c, struct cuda_partition *r)
{
    for (size_t i = 0; i < ARRAY_LEN(r->lane); i++)
        for (int k = 0; k < 2; k++) drop_stream(&r->lane[i].st[k]);
    for (int k = 0; k < 2; k++)
        if (r->part[k]) c->partitions.cuGreenCtxDestroy(r->part[k]);
    memset(r, 0, sizeof *r);
}

static int
make(struct cuda *c, struct cuda_partition *r, uint32_t at, struct err *e)
{
    const struct cuda_partitions *ps = &c->partitions;
    CUdevResource part[2];
    int ret = share_out(c, at, part, e);

    for (int k = 0; k < 2 && ret == 0; k++) {
        CUdevResourceDesc d;

        ret = failed(c, ps->cuDevResourceGenerateDesc(&d, &part[k], 1), "a part", at, e);
        if (ret == 0)
            ret = failed(
                c, ps->cuGreenCtxCreate(&r->part[k], d, ps->device, CU_GREEN_CTX_DEFAULT_STREAM),
                "a green context", at, e);
    }
    cuda_close_on_exec();
    if (ret < 0)
        clear(c, r);
    else
        r->at = at;
    return ret;
}

/* The least recently used partition without lanes and graphs, or an unused entry; NULL: none. */
static struct cuda_partition *
find_replaceable(struct cuda *c)
{
    struct cuda_partition *best = NULL;

    for (size_t i = 0; i < ARRAY_LEN(c->partitions.partition); i++) {
        struct cuda_partition *r = &c->partitions.partition[i];

        if (r->n_on || r->n_graphs) continue;
        if (!best || r->last_use < best->last_use) best = r;
    }
    return best;
}

static int
find(struct cuda *c, uint32_t at, struct cuda_partition **ret, struct err *e)
{
    struct cuda_partition *r;

    for (size_t i = 0; i < ARRAY_LEN(c->partitions.partition); i++)
        if (c->partitions.partition[i].at == at) {
            *ret = &c->partitions.partition[i];
            return 0;
        }
    r = find_replaceable(c);
    if (!r)
        return err_set(e, -EBUSY,
                       "cannot divide %s into %u and %u SMs: %d others, the maximum, are in use",
                       c->gpu.describe, at, c->gpu.units - at, CUDA_PARTITIONS);
    clear(c, r);
    *ret = r;
    return make(c, r, at, e);
}

/* Finds or makes the stream of the lane on a part. */
static int
stream(struct cuda *c, struct cuda_partition *r, const struct cuda_lane *l, int part,
       cudaStream_t *ret, struct err *e)
{
    size_t i = 0;
    CUstream st;

    while (i < ARRAY_LEN(r->lane) && r->lane[i].lane != l) i++;
    if (i == ARRAY_LEN(r->lane))
        for (i = 0; i < ARRAY_LEN(r->lane) && r->lane[i].lane;) i++;
    if (i == ARRAY_LEN(r->lane))
        return err_set(e, -EBUSY, "%s has more than %d lanes on one partition (internal error)",
                       c->gpu.describe, CUDA_PARTITION_LANES);
    if (!r->lane[i].st[part]) {
        TRY(failed(
            c, c->partitions.cuGreenCtxStreamCreate(&st, r->part[part], CU_STREAM_NON_BLOCKING, 0),
            "a stream", r->at, e));
        r->lane[i].lane = l;
        r->lane[i].st[part] = st;
    }
    *ret = r->lane[i].st[part];
    return 0;
}

/* Moves the lane to stream st, which waits for the earlier work of the lane. */
static int
move(struct cuda_lane *l, struct cuda_partition *r, cudaStream_t st, uint32_t sms)
{
    cudaError_t e;

    if (st == l->k.st) return 0;
    e = cudaEventRecord(l->moved, l->k.st);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(st, l->moved, 0);
    if (e != cudaSuccess) return cuda_failed(&l->lane, e, "lane_part");
    if (l->partition) l->partition->n_on--;
    if (r) r->n_on++;
    l->partition = r;
    l->k.st = st;
    l->k.sms = sms;
    return 0;
}

static int
to_part(struct cuda *c, struct cuda_lane *l, uint32_t first, uint32_t n)
{
    struct err *e = &c->gpu.why;
    uint32_t units = c->gpu.units;
    struct cuda_partition *r = NULL;
    cudaStream_t st = NULL;

    if (n == l->lane.units) return move(l, NULL, l->whole, MIN(n, units));
    if (l->lane.units != units || (first && first + n != units))
        return err_set(e, -EINVAL,
                       "lane_part: SMs %u .. %u are neither the first nor the last of %s", first,
                       first + n, c->gpu.describe);
    TRY(find(c, first ? first : n, &r, e));
    TRY(stream(c, r, l, first != 0, &st, e));
    r->last_use = ++c->partitions.n_uses;
    return move(l, r, st, n);
}

int
cuda_lane_part(struct lane *lane, uint32_t first, uint32_t n)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    struct cuda *c = cuda_of(lane);
    int r;

    TRY(cuda_not_recording(lane, "lane_part"));
    cuda_enter(c);
    pthread_mutex_lock(&c->partitions.lock);
    r = to_part(c, l, first, n);
    pthread_mutex_unlock(&c->partitions.lock);
    return r;
}

void
cuda_partition_count_graph(struct cuda *c, struct cuda_partition *r, int more)
{
    if (!r) return;
    pthread_mutex_lock(&c->partitions.lock);
    r->n_graphs += (uint32_t)more;
    pthread_mutex_unlock(&c->partitions.lock);
}

void
cuda_partition_leave(struct cuda_lane *l)
{
    struct cuda *c = cuda_of(&l->lane);

    pthread_mutex_lock(&c->partitions.lock);
    if (l->partition) l->partition->n_on--;
    for (size_t i = 0; i < ARRAY_LEN(c->partitions.partition); i++)
        for (size_t k = 0; k < CUDA_PARTITION_LANES; k++) {
            struct cuda_partition_lane *of = &c->partitions.partition[i].lane[k];

            if (of->lane != l) continue;
            for (int p = 0; p < 2; p++) drop_stream(&of->st[p]);
            of->lane = NULL;
        }
    pthread_mutex_unlock(&c->partitions.lock);
}

void
cuda_partition_close(struct cuda *c)
{
    for (size_t i = 0; i < ARRAY_LEN(c->partitions.partition); i++)
        clear(c, &c->partitions.partition[i]);
}
