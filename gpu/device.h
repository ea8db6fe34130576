/* device.h - what gpu.c and the devices agree on, and nobody else sees.
 *
 * A device's own struct begins with struct gpu, its lane's with struct lane: so the checking table
 * finds from a lane the device, its table and the place for a failure's sentence.
 */
#ifndef GPU_DEVICE_H
#define GPU_DEVICE_H

#include "gpu/gpu.h"

struct gpu {
    const struct gpu_ops *device; /* unchecked */
    struct gpu_ops checked;       /* what gpu_ops() hands out */
    void (*close)(struct gpu *g);
    int (*memory)(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total);
    const char *(*group)(const struct gpu *g); /* NULL: nothing to say of other ranks */
    struct err why;
    unsigned acts, weights, kvs; /* dtypes it takes, a bit each: 1 << DT_x */
    uint32_t units, rank, ranks; /* ranks: gpu_open() sets it, and rank */
    struct gpu_parts parts;
    bool graphs;
    char describe[64];
};

struct lane {
    struct gpu *gpu;
    uint32_t units; /* it was opened with: check.c's */
    uint64_t
        /* the last step it was told to mark: check.c's; others read it while it is written */
        marked;
};

/* What attend() stores, for a device or a kernel that does not do it on its way. */
static inline struct rope_store
attend_store(const struct attend *a)
{
    return (struct rope_store){
        .k = a->k, .v = a->v, .n_kv_heads = a->n_kv_heads, .head_dim = a->head_dim, .kv = a->kv
    };
}

/* Those of t's columns that all_gather() takes from this rank. */
static inline struct tensor
gpu_own_columns(const struct gpu *g, struct tensor t)
{
    uint32_t first = (uint32_t)((uint64_t)t.dim[1] * g->rank / g->ranks);

    return tensor_cols(t, first, (uint32_t)((uint64_t)t.dim[1] * (g->rank + 1) / g->ranks) - first);
}

/* Pieces of host memory of so many bytes, each a multiple of the grain. */
static inline struct host_memory
host_pieces(uint64_t bytes, uint64_t grain)
{
    uint64_t piece = ROUND_UP(CEIL_DIV(bytes, HOST_PIECES), grain);
    struct host_memory m = { .piece = piece, .n = (uint32_t)CEIL_DIV(bytes, piece) };

    m.bytes = m.n * piece;
    for (uint32_t i = 0; i < HOST_PIECES; i++) m.fd[i] = -1;
    return m;
}

int cpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e) MUST_USE;

/* The symbols of the module lagan-cuda.so, looked up by these names. panic_message: the module has
 * base's code once more, and a check() that fails there is to be heard as well. */
#define CUDA_OPEN "lagan_cuda_open"
typedef int (*cuda_open)(struct gpu **ret, uint32_t ordinal, const struct gpu_options *o,
                         void (*panic_message)(const char *sentence), struct err *e);

#define CUDA_BEGIN "lagan_cuda_begin"
typedef int (*cuda_begin)(uint32_t ordinal, const struct gpu_options *o, struct err *e);

/* The checking table (check.c), the same for every device. */
extern const struct gpu_ops gpu_checked;

#endif
