/* cuda.h - inside the CUDA device: its structs, and the functions of its files.
 *
 *     cuda_device     opens the device            cuda_copy        copies, blocks
 *     cuda_error      errors, current device      cuda_ranks       the other ranks of the group
 *     cuda_arena      memory                      cuda_collective  all_reduce and all_gather
 *     cuda_lane       queues; gaps between steps  cuda_pick        candidates of every op
 *     cuda_partition  parts of the device         cuda_candidates  the option that restricts them
 *     cuda_graph      recorded parts of a step
 *
 * A CUDA error becomes a message and a code in one place each: err_set() where a struct err is at
 * hand (open, arenas, lanes), cuda_failed() on a lane. The lane has failed from then on.
 */
#pragma once

#include "gpu/cuda/kernels/base/kernel.h"
#include "gpu/device.h"

#include <cudaTypedefs.h>
#include <pthread.h>

/* Bytes per lane for data that kernels keep between their passes (partial sums, sampling). */
#define CUDA_WORK ((size_t)64 << 20)
/* CUDA_EVENTS: marks kept for lane.after(); for an older step the oldest mark kept is waited
 * for. */
enum { CUDA_EVENTS = 64, CUDA_CANDIDATES = 8, CUDA_STRETCHES = 16, CUDA_PINS = 64 };

/* Functions of the driver, found at run time: the module links the runtime only. */
#define DRIVER_CALLS(X) \
    X(cuGetErrorString, 6000) \
    X(cuMemAddressFree, 10020) \
    X(cuMemAddressReserve, 10020) \
    X(cuMemCreate, 10020) \
    X(cuMemExportToShareableHandle, 10020) \
    X(cuMemGetAllocationGranularity, 10020) \
    X(cuMemImportFromShareableHandle, 10020) \
    X(cuMemMap, 10020) \
    X(cuMemRelease, 10020) \
    X(cuMemSetAccess, 10020) \
    X(cuMemUnmap, 10020)

struct driver {
#define X(name, version) PFN_##name##_v##version name;
    DRIVER_CALLS(X)
#undef X
};

/* Functions of drivers that can divide a device; optional. */
#define PARTITION_CALLS(X) \
    X(cuDeviceGet, 2000) \
    X(cuDeviceGetDevResource, 12040) \
    X(cuDevSmResourceSplitByCount, 12040) \
    X(cuDevResourceGenerateDesc, 12040) \
    X(cuGreenCtxCreate, 12040) \
    X(cuGreenCtxDestroy, 12040) \
    X(cuGreenCtxStreamCreate, 12050)

/* Partitions that exist at once; lanes that may be on parts of one. */
enum { CUDA_PARTITIONS = GPU_PARTITIONS, CUDA_PARTITION_LANES = 8 };

struct cuda_lane;
struct cuda_partition {
    uint32_t at;        /* SMs of its first part; 0: unused entry */
    CUgreenCtx part[2]; /* the first SMs, the others */
    uint32_t n_on;      /* lanes on its parts */
    uint32_t n_graphs;  /* graphs recorded on its parts */
    uint64_t last_use;  /* value of n_uses at the last use */
    struct cuda_partition_lane {
        const struct cuda_lane *lane; /* NULL: free */
        cudaStream_t st[2];           /* by part; NULL: none yet */
    } lane[CUDA_PARTITION_LANES];
};

/* Owned by cuda_partition.c. The lock guards everything except the function pointers. */
struct cuda_partitions {
#define X(name, version) PFN_##name##_v##version name;
    PARTITION_CALLS(X)
#undef X
    pthread_mutex_t lock;
    struct err why; /* why the device cannot be divided */
    CUdevice device;
    uint64_t n_uses;
    struct cuda_partition partition[CUDA_PARTITIONS];
};

/* OP_matmul and so on: one for each row of the op table. */
#define CUDA_OP(p, name, params, args) OP_##name,
enum cuda_op { GPU_EVERY_OP(CUDA_OP, ) OP_COUNT };

struct cuda {
    struct gpu gpu;
    struct driver driver;
    int ordinal;
    uint32_t sm; /* 90: compute capability 9.0 */
    bool invariant, timing;
    size_t grain;    /* sizes of device arenas are multiples of it */
    uint64_t mapped; /* bytes of arenas */
    pthread_mutex_t pin_lock;
    /* Pinned host memory that kernels may read; beyond CUDA_PINS ranges the copy engines are
     * used. */
    struct cuda_pin {
        const char *from, *to;
    } pin[CUDA_PINS];
    uint32_t n_pins;
    bool failed;                /* one of its lanes has failed */
    uint32_t allowed[OP_COUNT]; /* one bit per candidate */
    void *blas;                 /* cuda_blas.c */
    struct cuda_partitions partitions;
    void *group; /* cuda_ranks.c; one rank: NULL */
};

/* Words that kernels write for the host, in one pinned page. */
struct cuda_words {
    uint64_t done;
    uint32_t fault __attribute__((aligned(CACHE_LINE)));
};

struct cuda_lane {
    struct lane lane;
    struct k_launch k;                /* k.st: stream of the current part */
    cudaStream_t whole;               /* stream of the undivided device */
    struct cuda_partition *partition; /* NULL: on the undivided device */
    cudaEvent_t moved;                /* orders work of the previous stream before k.st */
    void *blas;                       /* cuda_blas.c: handle and workspace */
    void *channel;                    /* cuda_ranks.c; made at the first collective */
    struct cuda_words *words;
    uint64_t *done_at; /* device address of words->done */
    struct {
        cudaEvent_t event;
        uint64_t step;
    } mark[CUDA_EVENTS]; /* ring of the last n_marks */
    uint64_t n_marks;
    struct {
        bool on;
        struct {
            cudaEvent_t begin, end;
        } at[CUDA_STRETCHES];
        uint64_t n, read; /* intervals queued, gaps read */
        uint64_t gaps, ns;
    } idle_clock;
    nsec next_look; /* when lane.error() next asks the driver */
    bool recording;
    int error;
};

static inline struct cuda *
cuda_of(const struct lane *l)
{
    return (struct cuda *)l->gpu;
}

/* The lane of a k_launch, for candidates that need more than the k_launch. */
static inline struct cuda_lane *
cuda_lane_of(const struct k_launch *k)
{
    return (struct cuda_lane *)((char *)(uintptr_t)k - offsetof(struct cuda_lane, k));
}

/* cuda_error.c */
/* Makes c the current device of the calling thread. Every function that calls the runtime calls
 * this first, because lanes may be used by another thread than the one that opened the device. */
void cuda_enter(const struct cuda *c);
/* 0 for cudaSuccess, else -EIO: keeps the message for gpu_why() and, unless the lane records a
 * graph, marks the lane as failed. what: the call, for the message. */
int cuda_failed(struct lane *l, cudaError_t r, const char *what);
/* 0, or -EINVAL while the lane records a graph. what: the call, for the message. */
int cuda_not_recording(struct lane *l, const char *what);
/* Looks up a function of the driver, of that version of its interface. */
bool cuda_driver_call(void **ret, const char *name, unsigned version);
/* The driver's text for r. Never NULL. */
const char *cuda_driver_says(const struct cuda *c, CUresult r);
/* Sets FD_CLOEXEC on this process's descriptors of the driver, because a child process must not
 * hold the device (ARCHITECTURE 2). Call after everything that may open one. */
void cuda_close_on_exec(void);

/* Implementations of the entries of struct gpu_ops: gpu.h. */
GPU_CALLS(GPU_CALL_PROTOTYPE, cuda)

/* cuda_arena.c */
int cuda_arena_open(struct cuda *c, struct err *e);

/* cuda_partition.c */
void cuda_partition_inspect(struct cuda *c); /* gpu.parts */
/* Adds `more` (1 or -1) to the graphs recorded on partition r; r may be NULL. */
void cuda_partition_count_graph(struct cuda *c, struct cuda_partition *r, int more);
void cuda_partition_leave(struct cuda_lane *l); /* destroys its idle streams */
void cuda_partition_close(struct cuda *c);

/* cuda_copy.c */
enum { CUDA_PIECE = 64 << 20 }; /* host memory is pinned in pieces that end at multiples of it */
k_copy_blocks_kernel cuda_blocks_by_kernel;
k_copy_blocks_kernel cuda_blocks_by_engine;

/* cuda_pick.c */
extern const struct gpu_ops cuda_ops;
int cuda_pick_open(struct cuda *c, const char *kernels, struct err *e);
/* Whether that candidate may run on this device. */
bool cuda_pick_may(const struct cuda *c, enum cuda_op op, const char *name);
