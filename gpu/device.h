/* device.h - struct gpu and struct lane, for gpu.c, check.c and the two devices (gpu/cpu,
 * gpu/cuda).
 *
 * The struct of a device begins with struct gpu, the struct of its lane with struct lane. The
 * "checking table" is the op table whose functions check arguments and then call the device. From a
 * lane these functions find the device, the device's own table and the place for error messages.
 */
#pragma once
#include "gpu/gpu.h"

struct gpu {
    const struct gpu_ops *device; /* the op table of the device, without checks */
    struct gpu_ops checked;       /* the table that gpu_ops() returns */
    void (*close)(struct gpu *g);
    int (*memory)(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total);
    const char *(*group)(const struct gpu *g); /* implements gpu_group(); NULL: no rank group */
    struct err why;
    /* supported dtypes of activations, weights and KV: bit 1 << DT_x each */
    unsigned acts, weights, kvs;
    uint32_t units, rank, ranks; /* gpu_open() sets rank and ranks */
    struct gpu_parts parts;
    bool graphs;
    char describe[64];
};

struct lane {
    struct gpu *gpu;
    uint32_t units; /* units that lane.open() got; set by check.c */
    /* The last step queued by lane.mark(); set by check.c, read by other threads too. */
    uint64_t marked;
};

/* Returns arguments of rope_store() that store the K and V of attend(), for devices and kernels
 * that store them with a separate op. */
static inline struct rope_store
attend_store(const struct attend *a)
{
    return (struct rope_store){
        .k = a->k, .v = a->v, .n_kv_heads = a->n_kv_heads, .head_dim = a->head_dim, .kv = a->kv
    };
}

/* Returns the columns of t that belong to this rank in all_gather(). */
static inline struct tensor
gpu_own_columns(const struct gpu *g, struct tensor t)
{
    uint32_t first = (uint32_t)((uint64_t)t.dim[1] * g->rank / g->ranks);

    return tensor_cols(t, first, (uint32_t)((uint64_t)t.dim[1] * (g->rank + 1) / g->ranks) - first);
}

/* Returns the sizes for at least `bytes` of memory; the size of a piece is a multiple of grain. */
static inline struct host_memory
host_pieces(uint64_t bytes, uint64_t grain)
{
    uint64_t piece = ROUND_UP(CEIL_DIV(bytes, HOST_PIECES), grain);
    struct host_memory m = { .piece = piece, .n = (uint32_t)CEIL_DIV(bytes, piece) };

    m.bytes = m.n * piece;
    for (uint32_t i = 0; i < HOST_PIECES; i++) m.fd[i] = -1;
    return m;
}

/* Maps the first `bytes` of the shared memory of a rank group (gpu_options.group_fd) read-write;
 * the caller unmaps it. The memory is zero when a group starts. -EINVAL: the fd does not have
 * GPU_GROUP_BYTES. In rank_memory.c. */
int rank_memory_map(void **ret, size_t bytes, uint32_t ranks, int fd, struct err *e) MUST_USE;

int cpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e) MUST_USE;

/* Symbols of the module lagan-cuda.so. The module contains its own copy of base; panic_message is
 * the function of the program to which check() in that copy reports its message. */
#define CUDA_OPEN "lagan_cuda_open"
typedef int (*cuda_open)(struct gpu **ret, uint32_t ordinal, const struct gpu_options *o,
                         void (*panic_message)(const char *sentence), struct err *e);

#define CUDA_BEGIN "lagan_cuda_begin"
typedef int (*cuda_begin)(uint32_t ordinal, const struct gpu_options *o, struct err *e);

/* check.c: replaces the entries of a device's table whose arguments can be checked by functions
 * that check them and then call the device. */
void gpu_add_checks(struct gpu_ops *ops);
