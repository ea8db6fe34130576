/* device.h - what gpu.c, check.c and the devices share.
 *
 * The struct of a device begins with struct gpu, the struct of its lane with struct lane. From a
 * lane the checking table thus finds the device, the device's table and the place for error
 * messages.
 */
#pragma once

#include "gpu/gpu.h"

struct gpu {
    const struct gpu_ops *device; /* without shape checks */
    struct gpu_ops checked;       /* the table that gpu_ops() returns */
    void (*close)(struct gpu *g);
    int (*memory)(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total);
    const char *(*group)(const struct gpu *g); /* NULL: no rank group */
    struct err why;
    unsigned acts, weights, kvs; /* supported dtypes, bit 1 << DT_x each */
    uint32_t units, rank, ranks; /* gpu_open() sets rank and ranks */
    struct gpu_parts parts;
    bool graphs;
    char describe[64];
};

struct lane {
    struct gpu *gpu;
    uint32_t units; /* units at lane.open(); set by check.c */
    /* Last step marked; set by check.c; other threads read it concurrently. */
    uint64_t marked;
};

/* The K and V that attend() stores, for devices and kernels that store them separately. */
static inline struct rope_store
attend_store(const struct attend *a)
{
    return (struct rope_store){
        .k = a->k, .v = a->v, .n_kv_heads = a->n_kv_heads, .head_dim = a->head_dim, .kv = a->kv
    };
}

/* The columns of t that all_gather() reads from this rank. */
static inline struct tensor
gpu_own_columns(const struct gpu *g, struct tensor t)
{
    uint32_t first = (uint32_t)((uint64_t)t.dim[1] * g->rank / g->ranks);

    return tensor_cols(t, first, (uint32_t)((uint64_t)t.dim[1] * (g->rank + 1) / g->ranks) - first);
}

/* At least this many bytes of host memory in at most HOST_PIECES pieces, multiples of grain. */
static inline struct host_memory
host_pieces(uint64_t bytes, uint64_t grain)
{
    uint64_t piece = ROUND_UP(CEIL_DIV(bytes, HOST_PIECES), grain);
    struct host_memory m = { .piece = piece, .n = (uint32_t)CEIL_DIV(bytes, piece) };

    m.bytes = m.n * piece;
    for (uint32_t i = 0; i < HOST_PIECES; i++) m.fd[i] = -1;
    return m;
}

/* rank_memory.c: maps the first bytes of gpu_options.group_fd; the caller unmaps them. The memory
 * is zero when a group starts. -EINVAL: fd does not have GPU_GROUP_BYTES. */
int rank_memory_map(void **ret, size_t bytes, uint32_t ranks, int fd, struct err *e) MUST_USE;

int cpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e) MUST_USE;

/* Symbols of the module lagan-cuda.so. panic_message: the module has its own copy of base, whose
 * check() reports its message through this function. */
#define CUDA_OPEN "lagan_cuda_open"
typedef int (*cuda_open)(struct gpu **ret, uint32_t ordinal, const struct gpu_options *o,
                         void (*panic_message)(const char *sentence), struct err *e);

#define CUDA_BEGIN "lagan_cuda_begin"
typedef int (*cuda_begin)(uint32_t ordinal, const struct gpu_options *o, struct err *e);

/* check.c: replaces the entries of a device's table whose arguments can be checked by functions
 * that check them and then call the device. */
void gpu_add_checks(struct gpu_ops *ops);
