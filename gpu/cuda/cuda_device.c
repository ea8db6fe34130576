/* cuda_device.c - opens the CUDA device: the entry points of the module lagan-cuda.so, which gpu.c
 * loads when a worker asks for a GPU.
 *
 * The module links the runtime statically and looks up the functions of the driver at run time, so
 * that programs without a GPU need neither. Error messages tell the operator what is missing.
 */
#include "gpu/cuda/cuda.h"
#include "gpu/cuda/cuda_blas.h"
#include "gpu/cuda/cuda_ranks.h"

#include <stdio.h>

static int
find_driver(struct cuda *c, struct err *e)
{
#define X(name, version) \
    if (!cuda_driver_call((void **)&c->driver.name, #name, version)) \
        return err_set(e, -ENODEV, "the CUDA driver lacks the function %s: update the driver", \
                       #name);
    DRIVER_CALLS(X)
#undef X
    return 0;
}

/* Sets environment variables that the driver reads at start. With launch queues of 4,092 instead of
 * 1,020 launches, a plain step of a deep model does not block when it is queued behind another.
 * Making queues of that length takes most of the time to make a context. So there are fewer than
 * the default of eight: one for a single lane, else three (two lanes and the loader; in a rank
 * group NCCL adds streams). A partition has its own queues. */
static void
set_up(const struct gpu_options *o)
{
    bool alone = o->n_lanes == 1 && o->n_ranks <= 1;

    setenv("CUDA_SCALE_LAUNCH_QUEUES", "4x", 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", alone ? "1" : "3", 0);
}

static int
find_device(uint32_t ordinal, uint32_t ranks, struct err *e)
{
    int driver = 0, runtime = 0, n = 0;
    cudaError_t r = cudaDriverGetVersion(&driver);

    cudaRuntimeGetVersion(&runtime);
    if (r != cudaSuccess || driver == 0)
        return err_set(e, -ENODEV,
                       "there is no CUDA driver (libcuda.so.1): install the NVIDIA driver on this "
                       "host, or use device cpu");
    if (driver / 1000 < runtime / 1000)
        return err_set(e, -ENODEV,
                       "the CUDA driver is for CUDA %d.%d, but this module needs %d.%d: update the "
                       "driver, or build with an older toolkit",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    r = cudaGetDeviceCount(&n);
    if (r == cudaErrorInsufficientDriver)
        return err_set(
            e, -ENODEV,
            "the CUDA driver is for CUDA %d.%d, this module needs %d.%d: update the driver",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (r == cudaErrorNoDevice || (r == cudaSuccess && n == 0))
        return err_set(e, -ENODEV,
                       "there is a CUDA driver but no usable GPU: see nvidia-smi, "
                       "CUDA_VISIBLE_DEVICES and the permissions of /dev/nvidia*");
    if (r != cudaSuccess)
        return err_set(e, -ENODEV, "cannot start the CUDA driver: %s", cudaGetErrorString(r));
    if (ranks > (uint32_t)n)
        return err_set(e, -ENODEV,
                       "%u ranks need one GPU each, but this host has %d usable GPUs: see "
                       "nvidia-smi and CUDA_VISIBLE_DEVICES",
                       ranks, n);
    if (ordinal >= (uint32_t)n)
        return err_set(e, -ENODEV, "there is no GPU %u: this host has %d, counted from 0", ordinal,
                       n);
    return 0;
}

/* True if this module has kernels for the GPU: sm_90a code runs on 9.0, sm_80 code on 8.x. */
static bool
has_kernels_for(int major, int minor)
{
    const char *s = CUDA_ARCHS;

    while (*s) {
        char *end;
        int arch = (int)strtol(s, &end, 10);

        if (*end == 'a' ? arch == major * 10 + minor : arch / 10 == major && arch % 10 <= minor)
            return true;
        s = end + strcspn(end, ",");
        if (*s) s++;
    }
    return false;
}

/* *memory: bytes of the GPU. */
static int
look_at(struct cuda *c, uint64_t *memory, struct err *e)
{
    struct cudaDeviceProp p = { 0 };
    cudaError_t r = cudaGetDeviceProperties(&p, c->ordinal);
    int major = p.major, minor = p.minor, sms = p.multiProcessorCount, mode = 0;

    if (r == cudaSuccess) r = cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, c->ordinal);
    if (r != cudaSuccess)
        return err_set(e, -EIO, "GPU %d does not respond: %s", c->ordinal, cudaGetErrorString(r));
    if (mode == cudaComputeModeProhibited)
        return err_set(e, -EACCES,
                       "GPU %d (%s) is in compute mode \"prohibited\": allow it with nvidia-smi -i "
                       "%d -c DEFAULT",
                       c->ordinal, p.name, c->ordinal);
    if (!has_kernels_for(major, minor))
        return err_set(e, -ENOTSUP,
                       "GPU %d (%s) has architecture %d%d, this module has kernels for %s: build "
                       "with --with-cuda-arch=%d%d%s",
                       c->ordinal, p.name, major, minor, CUDA_ARCHS, major, minor,
                       major == 9 ? "a" : "");
    c->sm = (uint32_t)(major * 10 + minor);
    c->gpu.units = (uint32_t)sms;
    *memory = p.totalGlobalMem;
    snprintf(c->gpu.describe, sizeof c->gpu.describe, "cuda:%d (%.32s, %d SMs)", c->ordinal, p.name,
             sms);
    return 0;
}

/* Makes the context. Threads that wait sleep instead of polling; only lane.close() waits. */
static int
start(struct cuda *c, struct err *e)
{
    int mode = 0;
    size_t free = 0, total = 0;
    cudaError_t r;

    r = cudaSetDevice(c->ordinal);
    if (r == cudaSuccess) r = cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync);
    if (r == cudaSuccess) r = cudaMemGetInfo(&free, &total);
    if (r == cudaSuccess) return 0;
    cudaGetLastError();
    cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, c->ordinal);
    if (mode == cudaComputeModeExclusiveProcess && r == cudaErrorDevicesUnavailable)
        return err_set(
            e, -EBUSY,
            "%s is in compute mode \"exclusive process\" and another process uses it: end "
            "that process, or run nvidia-smi -i %d -c DEFAULT",
            c->gpu.describe, c->ordinal);
    if (r == cudaErrorMemoryAllocation)
        return err_set(e, -ENOMEM,
                       "%s has no memory for a context (about 0.5 GiB): other processes use its "
                       "memory, see nvidia-smi",
                       c->gpu.describe);
    return err_set(e, -EIO, "cannot create a context on %s: %s", c->gpu.describe,
                   cudaGetErrorString(r));
}

/* *own: bytes neither free nor in our arenas, so too high if other processes use the GPU. */
static int
memory(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total)
{
    const struct cuda *c = (const struct cuda *)g;
    size_t f = 0, t = 0;

    if (c->seen_total) {
        *free = c->seen_free;
        *total = c->seen_total;
        *own = 0;
        return 0;
    }
    cuda_enter(c);
    if (cudaMemGetInfo(&f, &t) != cudaSuccess) return -EIO;
    *free = f;
    *total = t;
    *own = t - MIN(f + c->mapped, t);
    return 0;
}

static void
close_device(struct gpu *g)
{
    cuda_ranks_close((struct cuda *)g);
    cuda_blas_close((struct cuda *)g);
    cuda_partition_close((struct cuda *)g);
    free(g);
}
CLEAN_FUNC(struct gpu, close_device)

__attribute__((visibility("default"))) __typeof__(*(cuda_begin)0) lagan_cuda_begin;
__attribute__((visibility("default"))) __typeof__(*(cuda_open)0) lagan_cuda_open;

int
lagan_cuda_begin(uint32_t ordinal, const struct gpu_options *o, struct err *e)
{
    set_up(o);
    TRY(find_device(ordinal, MAX(o->n_ranks, 1u), e));
    cuda_close_on_exec();
    cuda_blas_load(o);
    return 0;
}

int
lagan_cuda_open(struct gpu **ret, uint32_t ordinal, const struct gpu_options *o,
                void (*panic_message)(const char *sentence), struct err *e)
{
    CLEAN(close_device_at) struct gpu *g = calloc(1, sizeof(struct cuda));
    struct cuda *c = (struct cuda *)g;
    uint64_t total;
    bool blas;

    if (!c) return err_set(e, -ENOMEM, "cannot open the CUDA device: out of host memory");
    pthread_mutex_init(&c->pin_lock, NULL);
    check_panic_message = panic_message;
    set_up(o);
    TRY(find_device(ordinal, MAX(o->n_ranks, 1u), e));
    c->ordinal = (int)ordinal;
    c->invariant = o->invariant;
    c->timing = o->timing;
    TRY(look_at(c, &total, e));
    TRY(cuda_pick_open(c, o->kernels, e));
    /* Without cuBLASLt a server would be ten times slower, so opening fails if it is missing,
     * unless the option `kernels` excludes it. */
    blas = cuda_pick_may(c, OP_matmul, "blas") || cuda_pick_may(c, OP_act_matmul, "blas") ||
           cuda_pick_may(c, OP_gate_matmul, "blas");
    if (blas) TRY(cuda_blas_begin(c, o, e));
    TRY(cuda_ranks_begin(c, o, e));
    if (!o->inspect || cuda_nvml_memory(c, total) < 0) TRY(start(c, e));
    cuda_close_on_exec();
    TRY(cuda_ranks_open(c, e));
    TRY(find_driver(c, e));
    cuda_partition_inspect(c);
    TRY(cuda_arena_open(c, e));
    if (blas) TRY(cuda_blas_open(c, o, e));
    g->device = &cuda_ops;
    g->close = close_device;
    g->memory = memory;
    if (c->group) g->group = cuda_ranks_describe;
    g->acts = g->weights = 1 << DT_F32 | 1 << DT_BF16 | 1 << DT_F16;
    g->kvs = g->acts | 1 << DT_E4M3;
    g->graphs = true;
    *ret = TAKE(g);
    return 0;
}
