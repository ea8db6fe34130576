/* cuda_nvml.c - reads the memory of a GPU through NVML, which needs no context; see cuda.h.
 *
 * A context takes about 0.5 GiB. A GPU that a worker uses may have less, and the worker's
 * replacement needs it. NVML is a library of the driver; containers may lack it. */
#include "gpu/cuda/cuda.h"

#include <dlfcn.h>

/* Memory that a context, with the launch queues of one process, takes from the free memory. */
static const uint64_t CONTEXT_BYTES = 512 << 20;

struct nvml_memory { /* nvmlMemory_t of nvml.h, which the CUDA Toolkit may lack */
    unsigned long long total, free, used;
};

struct nvml {
    int (*init)(void);
    int (*find)(const char *bus_id, void **ret);
    int (*memory)(void *device, struct nvml_memory *ret);
    int (*shutdown)(void);
};

static int
read_memory(const struct nvml *n, int ordinal, struct nvml_memory *ret)
{
    char bus_id[32];
    void *device = NULL;

    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, ordinal) != cudaSuccess) return -EIO;
    if (n->find(bus_id, &device) || n->memory(device, ret)) return -EIO;
    return 0;
}

int
cuda_nvml_memory(struct cuda *c, uint64_t total)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    struct nvml_memory m = { 0 };
    struct nvml n;
    int r = -ENOENT;

    if (!library) return -ENOENT;
    *(void **)&n.init = dlsym(library, "nvmlInit_v2");
    *(void **)&n.find = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&n.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    *(void **)&n.shutdown = dlsym(library, "nvmlShutdown");
    if (n.init && n.find && n.memory && n.shutdown && n.init() == 0) {
        r = read_memory(&n, c->ordinal, &m);
        n.shutdown();
    }
    dlclose(library);
    /* NVML counts memory that the driver reserves. If the difference is larger, this process uses a
     * MIG instance, which has a part of the memory of the PCI device. */
    if (r < 0 || m.total < total || m.total - total > total / 8 || m.free > m.total) return -ENOENT;
    c->seen_total = total;
    c->seen_free = MIN(m.free - MIN(m.free, CONTEXT_BYTES), total);
    return 0;
}
