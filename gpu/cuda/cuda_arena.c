/* cuda_arena.c - device memory that outlives the process (arenas): allocations of the driver's
 * virtual memory management, each known by a file descriptor.
 *
 *    cuMemCreate (bytes rounded up to the grain) -> handle --export--> fd, owned, can be passed on
 *    cuMemAddressReserve                         -> base               one read-write mapping
 *
 * The handle is released at once: the mapping and the fd keep the memory. Another process that gets
 * the fd imports it and maps the same bytes. The memory is freed with the last fd and mapping.
 *
 * Host memory for the host tier is allocated in the same way, near the GPU. The driver owns it, so
 * that mapping does not pin it and the exit of a worker does not unpin it. The CPU has no mapping,
 * because a second mapping would double the time at start and exit. The address range is
 * reserved at once; pieces are mapped one by one, because each takes time at start and exit. A copy
 * may span several pieces.
 */
#include "gpu/cuda/cuda.h"

#include <fcntl.h>
#include <unistd.h>

/* Properties of an allocation that only the device accesses. grain: sizes are multiples of it. */
struct kind {
    CUmemAllocationProp prop;
    size_t grain;
};

static struct kind
kind_in(CUmemLocation where, size_t grain)
{
    struct kind k = { .grain = grain };

    k.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    k.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    k.prop.location = where;
    return k;
}

static CUmemLocation
device_of(const struct cuda *c)
{
    return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->ordinal };
}

static struct kind
on_device(const struct cuda *c)
{
    return kind_in(device_of(c), c->grain);
}

/* Asks the driver for the grain of this kind of memory. */
static int
find_grain(const struct cuda *c, struct kind *k, const char *where, struct err *e)
{
    CUresult r = c->driver.cuMemGetAllocationGranularity(&k->grain, &k->prop,
                                                         CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

    if (r == CUDA_SUCCESS && k->grain) return 0;
    return err_set(e, -ENOTSUP, "%s: %s memory cannot be shared by file descriptor: %s",
                   c->gpu.describe, where, cuda_driver_says(c, r));
}

static int
on_host(const struct cuda *c, struct kind *ret, struct err *e)
{
    CUmemLocation where = { .type = CU_MEM_LOCATION_TYPE_HOST_NUMA };

    if (cudaDeviceGetAttribute(&where.id, cudaDevAttrHostNumaId, c->ordinal) != cudaSuccess ||
        where.id < 0)
        where.id = 0;
    *ret = kind_in(where, 0);
    return find_grain(c, ret, "host", e);
}

int
cuda_arena_open(struct cuda *c, struct err *e)
{
    struct kind k = on_device(c);

    TRY(find_grain(c, &k, "device", e));
    c->grain = k.grain;
    return 0;
}

static CUresult
map_at(const struct cuda *c, CUmemGenericAllocationHandle handle, CUdeviceptr base, uint64_t size)
{
    const struct driver *d = &c->driver;
    CUmemAccessDesc access = { .location = device_of(c),
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUresult r = d->cuMemMap(base, size, 0, handle, 0);

    if (r != CUDA_SUCCESS) return r;
    r = d->cuMemSetAccess(base, size, &access, 1);
    if (r != CUDA_SUCCESS) d->cuMemUnmap(base, size);
    return r;
}

static CUresult
map(const struct cuda *c, CUmemGenericAllocationHandle handle, uint64_t size, CUdeviceptr *ret)
{
    const struct driver *d = &c->driver;
    CUdeviceptr base = 0;
    CUresult r = d->cuMemAddressReserve(&base, size, 0, 0, 0);

    if (r != CUDA_SUCCESS) return r;
    r = map_at(c, handle, base, size);
    if (r != CUDA_SUCCESS)
        d->cuMemAddressFree(base, size);
    else
        *ret = base;
    return r;
}

static void
unmap(const struct cuda *c, CUdeviceptr base, uint64_t size)
{
    c->driver.cuMemUnmap(base, size);
    c->driver.cuMemAddressFree(base, size);
}

static int
no_memory(const struct cuda *c, const char *name, uint64_t bytes, CUresult r, struct err *e)
{
    size_t free = 0, total = 0;

    if (r != CUDA_ERROR_OUT_OF_MEMORY)
        return err_set(e, -EIO, "cannot allocate arena %s of %llu bytes: %s", name,
                       (unsigned long long)bytes, cuda_driver_says(c, r));
    cudaMemGetInfo(&free, &total);
    return err_set(e, -ENOMEM,
                   "arena %s: %s cannot allocate %.2f GiB (%llu bytes): %.2f of %.2f GiB are free",
                   name, c->gpu.describe, (double)bytes / 0x1p30, (unsigned long long)bytes,
                   (double)free / 0x1p30, (double)total / 0x1p30);
}

/* Allocates memory, exports its fd and sets FD_CLOEXEC on it. */
static CUresult
create(const struct cuda *c, const struct kind *k, uint64_t size,
       CUmemGenericAllocationHandle *handle, int *fd)
{
    const struct driver *d = &c->driver;
    CUresult r = d->cuMemCreate(handle, size, &k->prop, 0);

    if (r != CUDA_SUCCESS) return r;
    r = d->cuMemExportToShareableHandle(fd, *handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r != CUDA_SUCCESS)
        d->cuMemRelease(*handle);
    else
        fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return r;
}

static CUresult
make(const struct cuda *c, const struct kind *k, uint64_t bytes, struct arena *ret)
{
    uint64_t size = ROUND_UP(bytes, k->grain);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base = 0;
    CUresult r;
    int fd;

    if (size < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    r = create(c, k, size, &handle, &fd);
    if (r != CUDA_SUCCESS) return r;
    r = map(c, handle, size, &base);
    if (r != CUDA_SUCCESS) close(fd);
    c->driver.cuMemRelease(handle);
    if (r == CUDA_SUCCESS)
        *ret = (struct arena){ .base = (void *)(uintptr_t)base, .bytes = bytes, .fd = fd };
    return r;
}

/* Returns true if an allocation has more than size bytes. The driver cannot report the size, but
 * maps only whole allocations: if the size is right, mapping one grain more fails. */
static bool
is_larger(const struct cuda *c, const struct kind *k, CUmemGenericAllocationHandle handle,
          uint64_t size)
{
    CUdeviceptr base;

    if (map(c, handle, size + k->grain, &base) != CUDA_SUCCESS) return false;
    unmap(c, base, size + k->grain);
    return true;
}

/* Maps the memory of fd at *base, or if *base is 0 at any address, which it stores there. */
static int
adopt_at(struct cuda *c, const struct kind *k, int fd, uint64_t bytes, CUdeviceptr *base,
         struct err *e)
{
    uint64_t size = ROUND_UP(bytes, k->grain);
    CUmemGenericAllocationHandle handle;
    CUresult r = c->driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (r != CUDA_SUCCESS)
        return err_set(e, -EINVAL, "cannot adopt fd %d: it is not memory of %s: %s", fd,
                       c->gpu.describe, cuda_driver_says(c, r));
    if (is_larger(c, k, handle, size))
        r = CUDA_ERROR_INVALID_VALUE;
    else
        r = *base ? map_at(c, handle, *base, size) : map(c, handle, size, base);
    c->driver.cuMemRelease(handle);
    /* The allocation is smaller, or it is larger and the driver maps only whole allocations. */
    if (r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_NOT_SUPPORTED)
        return err_set(e, -EINVAL, "cannot adopt fd %d: its size is not the expected %llu bytes",
                       fd, (unsigned long long)bytes);
    if (r != CUDA_SUCCESS)
        return err_set(e, -EIO, "cannot map the %llu bytes of fd %d: %s", (unsigned long long)bytes,
                       fd, cuda_driver_says(c, r));
    return 0;
}

int
cuda_arena_make(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret, struct err *e)
{
    struct cuda *c = (struct cuda *)g;
    struct kind k = on_device(c);
    CUresult r;

    cuda_enter(c);
    r = make(c, &k, bytes, ret);
    if (r != CUDA_SUCCESS) return no_memory(c, name, bytes, r, e);
    c->mapped += ROUND_UP(bytes, c->grain);
    return 0;
}

int
cuda_arena_adopt(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e)
{
    struct cuda *c = (struct cuda *)g;
    struct kind k = on_device(c);
    CUdeviceptr base = 0;

    cuda_enter(c);
    TRY(adopt_at(c, &k, fd, bytes, &base, e));
    *ret = (struct arena){ .base = (void *)(uintptr_t)base, .bytes = bytes, .fd = fd };
    c->mapped += ROUND_UP(bytes, c->grain);
    return 0;
}

void
cuda_arena_drop(struct gpu *g, struct arena *a)
{
    struct cuda *c = (struct cuda *)g;

    if (!a->base) return;
    cuda_enter(c);
    c->mapped -= ROUND_UP(a->bytes, c->grain);
    unmap(c, (CUdeviceptr)(uintptr_t)a->base, ROUND_UP(a->bytes, c->grain));
    close(a->fd);
    *a = (struct arena){ .fd = -1 };
}

/* Records a pinned range for kernels and copies; extends a range that ends at `from`. */
static void
note_pin(struct cuda *c, const char *from, const char *to)
{
    uint32_t i = 0;

    pthread_mutex_lock(&c->pin_lock);
    while (i < c->n_pins && c->pin[i].to != from) i++;
    if (i < c->n_pins) {
        c->pin[i].to = to;
    } else if (c->n_pins < CUDA_PINS) {
        c->pin[c->n_pins++] = (struct cuda_pin){ from, to };
    }
    pthread_mutex_unlock(&c->pin_lock);
}

static void
forget_pins(struct cuda *c, const char *from, const char *to)
{
    pthread_mutex_lock(&c->pin_lock);
    for (uint32_t i = c->n_pins; i-- > 0;)
        if (c->pin[i].from < to && from < c->pin[i].to) c->pin[i] = c->pin[--c->n_pins];
    pthread_mutex_unlock(&c->pin_lock);
}

int
cuda_host_open(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e)
{
    struct cuda *c = (struct cuda *)g;
    struct host_memory m;
    CUdeviceptr base = 0;
    struct kind k;
    CUresult r;

    cuda_enter(c);
    TRY(on_host(c, &k, e));
    m = host_pieces(bytes, k.grain);
    r = c->driver.cuMemAddressReserve(&base, m.bytes, 0, 0, 0);
    if (r != CUDA_SUCCESS)
        return err_set(e, -ENOMEM, "cannot reserve addresses for %.2f GiB of host memory: %s",
                       (double)bytes / 0x1p30, cuda_driver_says(c, r));
    m.base = (void *)(uintptr_t)base;
    *ret = m;
    return 0;
}

int
cuda_host_make(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e)
{
    struct cuda *c = (struct cuda *)g;
    CUmemGenericAllocationHandle handle;
    struct kind k;
    CUresult r;

    cuda_enter(c);
    TRY(on_host(c, &k, e));
    r = create(c, &k, m->piece, &handle, &m->fd[piece]);
    if (r != CUDA_SUCCESS) {
        m->fd[piece] = -1;
        return err_set(e, r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO,
                       "cannot allocate %.2f GiB of host memory for %s: %s",
                       (double)m->piece / 0x1p30, g->describe, cuda_driver_says(c, r));
    }
    c->driver.cuMemRelease(handle);
    return 0;
}

int
cuda_host_map(struct gpu *g, struct host_memory *m, struct err *e)
{
    struct cuda *c = (struct cuda *)g;
    char *at = (char *)m->base + m->n_mapped * m->piece;
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)at;
    struct kind k;

    cuda_enter(c);
    TRY(on_host(c, &k, e));
    TRY(adopt_at(c, &k, m->fd[m->n_mapped], m->piece, &base, e));
    note_pin(c, at, at + m->piece);
    m->n_mapped++;
    return 0;
}

void
cuda_host_close(struct gpu *g, struct host_memory *m)
{
    struct cuda *c = (struct cuda *)g;
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)m->base;

    cuda_enter(c);
    forget_pins(c, m->base, (char *)m->base + m->bytes);
    for (uint32_t i = 0; i < m->n_mapped; i++) c->driver.cuMemUnmap(base + i * m->piece, m->piece);
    c->driver.cuMemAddressFree(base, m->bytes);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->fd[i] >= 0) close(m->fd[i]);
    *m = (struct host_memory){ 0 };
}

/* Pins in pieces of about 5 ms, because other threads may need the kernel lock of pinning. */
int
cuda_host_pin(struct gpu *g, void *p, size_t bytes)
{
    struct cuda *c = (struct cuda *)g;
    char *at = p, *end = at + bytes;
    int same = 0;

    cuda_enter(c);
    while (at < end) {
        size_t n = MIN((size_t)(end - at), CUDA_PIECE - (uintptr_t)at % CUDA_PIECE);
        cudaError_t r = cudaHostRegister(at, n, cudaHostRegisterPortable | cudaHostRegisterMapped);

        if (r != cudaSuccess) {
            cudaGetLastError();
            return err_set(&g->why, r == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
                           "cannot pin %zu bytes of host memory at %p: %s; check the limit of "
                           "locked memory (ulimit -l)",
                           n, (void *)at, cudaGetErrorString(r));
        }
        at += n;
    }
    cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, c->ordinal);
    if (same) note_pin(c, p, end);
    return 0;
}

/* Unpins the pieces of cuda_host_pin(); ignores memory that was not pinned. */
void
cuda_host_unpin(struct gpu *g, void *p, size_t bytes)
{
    struct cuda *c = (struct cuda *)g;
    char *at = p, *end = at + bytes;

    cuda_enter(c);
    forget_pins(c, at, end);
    while (at < end) {
        if (cudaHostUnregister(at) != cudaSuccess) cudaGetLastError();
        at += MIN((size_t)(end - at), CUDA_PIECE - (uintptr_t)at % CUDA_PIECE);
    }
}
