/* cuda.h - the structs of the CUDA device and the functions that its files share:
 *
 *     cuda_device     opens the device            cuda_copy        copies, blocks
 *     cuda_error      errors, current device      cuda_ranks       the other ranks of the group
 *     cuda_arena      memory                      cuda_collective  all_reduce and all_gather
 *     cuda_lane       queues; gaps between steps  cuda_pick        selects a kernel for every op
 *     cuda_partition  divides the SMs             cuda_candidates  parses the option `kernels`
 *     cuda_graph      recorded graphs         cuda_nvml        memory without a context
 *
 * Where a function has a struct err (open, arenas, lanes), a CUDA error becomes its message with
 * err_set(). Elsewhere cuda_failed() stores the message for gpu_why() and marks the lane as failed.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"
#include "gpu/device.h"

#include <cudaTypedefs.h>
#include <pthread.h>

/* Bytes of the work area of a lane, for data between passes of kernels (partial sums, draws). */
#define CUDA_WORK ((size_t)64 << 20)
/* CUDA_EVENTS: newest marks that have an event; lane.after() for an older mark waits for the oldest
 * of these, longer than needed. CUDA_CANDIDATES: most kernels of an op. CUDA_STRETCHES: intervals
 * of work that the idle clock keeps. CUDA_PINS: most ranges in cuda.pin. */
enum { CUDA_EVENTS = 64, CUDA_CANDIDATES = 8, CUDA_STRETCHES = 16, CUDA_PINS = 64 };

/* Functions of the driver and the driver version that introduced them. They are looked up at run
 * time, because the module links only the runtime. */
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

/* Functions of the driver that divide a device, with their version; older drivers lack them. */
#define PARTITION_CALLS(X) \
    X(cuDeviceGet, 2000) \
    X(cuDeviceGetDevResource, 12040) \
    X(cuDevSmResourceSplitByCount, 12040) \
    X(cuDevResourceGenerateDesc, 12040) \
    X(cuGreenCtxCreate, 12040) \
    X(cuGreenCtxDestroy, 12040) \
    X(cuGreenCtxStreamCreate, 12050)

/* CUDA_PARTITION_LANES: most lanes that have streams on one partition. */
enum { CUDA_PARTITIONS = GPU_PARTITIONS, CUDA_PARTITION_LANES = 8 };

struct cuda_lane;
struct cuda_partition {
    uint32_t at;        /* SMs of the first part; 0: unused entry */
    CUgreenCtx part[2]; /* green contexts of the first SMs and of the other SMs */
    uint32_t n_on;      /* lanes that are on its parts now */
    uint32_t n_graphs;  /* graphs recorded on its parts */
    uint64_t last_use;  /* value of cuda_partitions.n_uses at the last use */
    struct cuda_partition_lane {
        const struct cuda_lane *lane; /* NULL: free */
        cudaStream_t st[2];           /* stream of the lane on each part; NULL: none yet */
    } lane[CUDA_PARTITION_LANES];
};

/* State of cuda_partition.c. The lock guards everything except the function pointers. */
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

/* OP_matmul and so on: an index for each op of the op table. */
#define CUDA_OP(p, name, params, args) OP_##name,
enum cuda_op { GPU_EVERY_OP(CUDA_OP, ) OP_COUNT };

struct cuda {
    struct gpu gpu;
    struct driver driver;
    int ordinal;
    uint32_t sm; /* compute capability * 10; 90: compute capability 9.0 */
    bool invariant, timing;
    size_t grain;    /* sizes of device arenas are multiples of it */
    uint64_t mapped; /* bytes of all mapped arenas */
    /* gpu_options.inspect without a context: memory of the device, in bytes; 0: has a context */
    uint64_t seen_free, seen_total;
    pthread_mutex_t pin_lock;
    /* Ranges of pinned host memory that kernels may access. If there are more than CUDA_PINS, the
     * copy engines access the others. */
    struct cuda_pin {
        const char *from, *to;
    } pin[CUDA_PINS];
    uint32_t n_pins;
    bool failed;                /* a lane of this device has failed */
    uint32_t allowed[OP_COUNT]; /* by op: bit i is set if candidate i may run */
    void *blas;                 /* cuda_blas.c */
    struct cuda_partitions partitions;
    void *group; /* struct cuda_ranks; NULL: one rank */
};

/* Words in one pinned page that kernels write and the host reads. */
struct cuda_words {
    uint64_t done;
    uint32_t fault __attribute__((aligned(CACHE_LINE)));
};

struct cuda_lane {
    struct lane lane;
    struct k_launch k;  /* launch context of kernels; k.st: the stream that the lane uses now */
    cudaStream_t whole; /* stream of the undivided device */
    struct cuda_partition *partition; /* NULL: the lane is on the undivided device */
    cudaEvent_t moved;                /* orders work of the previous stream before work of k.st */
    void *blas;                       /* cuda_blas.c: handle and workspace */
    void *channel;                    /* struct channel; made at the first collective */
    struct cuda_words *words;
    uint64_t *done_at; /* device address of words->done */
    struct {
        cudaEvent_t event;
        uint64_t step;
    } mark[CUDA_EVENTS]; /* the last CUDA_EVENTS of n_marks marks */
    uint64_t n_marks;
    struct {
        bool on;
        struct {
            cudaEvent_t begin, end;
        } at[CUDA_STRETCHES];
        uint64_t n, read; /* number of intervals queued and of gaps read */
        uint64_t gaps, ns;
    } idle_clock;
    nsec next_look; /* time when lane.error() may ask the driver again */
    bool recording;
    int error;
};

static inline struct cuda *
cuda_of(const struct lane *l)
{
    return (struct cuda *)l->gpu;
}

/* Returns the lane that contains a k_launch. */
static inline struct cuda_lane *
cuda_lane_of(const struct k_launch *k)
{
    return (struct cuda_lane *)((char *)(uintptr_t)k - offsetof(struct cuda_lane, k));
}

/* cuda_error.c */
/* Makes c the current device of the calling thread. Every function that calls the runtime calls
 * cuda_enter() first, because another thread than the one that opened the device may use a lane. */
void cuda_enter(const struct cuda *c);
/* Returns 0 for cudaSuccess, else -EIO: then stores the message for gpu_why() and, unless the lane
 * is recording a graph, marks the lane as failed. what: the call, for the message. */
int cuda_failed(struct lane *l, cudaError_t r, const char *what);
/* Returns 0, or -EINVAL if the lane is recording a graph. what: the call, for the message. */
int cuda_not_recording(struct lane *l, const char *what);
/* Looks up a function of the driver as of driver version `version`; false: the driver lacks it. */
bool cuda_driver_call(void **ret, const char *name, unsigned version);
/* Returns the text of the driver for r, never NULL. */
const char *cuda_driver_says(const struct cuda *c, CUresult r);
/* Sets FD_CLOEXEC on the descriptors that the driver has opened, because a child process must not
 * hold the device (ARCHITECTURE 2). Call it after every call that may open one. */
void cuda_close_on_exec(void);

/* The functions of the op table that are not ops; documented in gpu.h. */
GPU_CALLS(GPU_CALL_PROTOTYPE, cuda)

/* cuda_arena.c */
int cuda_arena_open(struct cuda *c, struct err *e);

/* cuda_nvml.c: sets seen_total to total, the memory that the runtime reports, and seen_free to what
 * a process with a context would find free. -ENOENT: NVML is missing or lacks the device. */
int cuda_nvml_memory(struct cuda *c, uint64_t total) MUST_USE;

/* cuda_partition.c */
void cuda_partition_inspect(struct cuda *c); /* sets gpu.parts */
/* Adds `more` (1 or -1) to the number of graphs recorded on partition r; r may be NULL. */
void cuda_partition_count_graph(struct cuda *c, struct cuda_partition *r, int more);
/* destroys the streams that the lane has on partitions */
void cuda_partition_leave(struct cuda_lane *l);
void cuda_partition_close(struct cuda *c);

/* cuda_copy.c */
/* cuda_host_pin() pins memory in pieces that end at multiples of CUDA_PIECE */
enum { CUDA_PIECE = 64 << 20 };
k_copy_blocks_kernel cuda_blocks_by_kernel;
k_copy_blocks_kernel cuda_blocks_by_engine;

/* cuda_pick.c */
extern const struct gpu_ops cuda_ops;
int cuda_pick_open(struct cuda *c, const char *kernels, struct err *e);
/* Returns true if the candidate `name` runs on this device and is allowed by
 * gpu_options.kernels. */
bool cuda_pick_may(const struct cuda *c, enum cuda_op op, const char *name);
