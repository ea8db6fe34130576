/* cpu.c - opens the CPU device: memory, op table, choice of the instruction set.
 *
 * An arena is a sealed memfd, mapped shared. Pages are allocated on first use, so that a KV arena
 * of many GiB costs only its used part. The memory exists as long as any process holds the fd; the
 * seals prevent that another process truncates it.
 */
#include "gpu/cpu/cpu_ops.h"

#include "base/cgroup.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOST_GRAIN = 1 << 16 };

static int
map_arena(int fd, uint64_t bytes, struct arena *ret)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (base == MAP_FAILED) return -errno;
    *ret = (struct arena){ .base = base, .bytes = bytes, .fd = fd };
    return 0;
}

static int
no_arena(const char *name, uint64_t bytes, int r, struct err *e)
{
    return err_set(e, r, "cannot allocate arena %s of %llu bytes: %s", name,
                   (unsigned long long)bytes, strerror(-r));
}

/* Returns a new sealed memfd of that size. */
static int
make_file(const char *name, uint64_t bytes, struct err *e)
{
    char full[64];
    int fd, r = 0;

    snprintf(full, sizeof full, "lagan:%s", name);
    fd = memfd_create(full, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return err_set(e, -errno, "cannot make the memfd of arena %s: %m", name);
    if (ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        r = -errno;
    if (r == 0) return fd;
    close(fd);
    return no_arena(name, bytes, r, e);
}

static int
cpu_arena_make(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret, struct err *e)
{
    int fd = make_file(name, bytes, e), r;

    (void)g;
    if (fd < 0) return fd;
    r = map_arena(fd, bytes, ret);
    if (r == 0) return 0;
    close(fd);
    return no_arena(name, bytes, r, e);
}

static int
check_file(int fd, uint64_t bytes, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0) return err_set(e, -errno, "cannot adopt fd %d: %m", fd);
    if (st.st_size < 0 || (uint64_t)st.st_size != bytes)
        return err_set(e, -EINVAL,
                       "cannot adopt the arena of fd %d: it has %lld bytes, expected %llu", fd,
                       (long long)st.st_size, (unsigned long long)bytes);
    return 0;
}

static int
cpu_arena_adopt(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e)
{
    int r;

    (void)g;
    TRY(check_file(fd, bytes, e));
    r = map_arena(fd, bytes, ret);
    return r < 0 ? err_set(e, r, "cannot map the %llu bytes of fd %d: %s",
                           (unsigned long long)bytes, fd, strerror(-r))
                 : 0;
}

static void
cpu_arena_drop(struct gpu *g, struct arena *a)
{
    (void)g;
    if (!a->base) return;
    munmap(a->base, a->bytes);
    close(a->fd);
    *a = (struct arena){ .fd = -1 };
}

static int
cpu_host_open(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e)
{
    struct host_memory m = host_pieces(bytes, HOST_GRAIN);

    (void)g;
    m.base = mmap(NULL, m.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m.base == MAP_FAILED)
        return err_set(e, -errno, "cannot reserve addresses for %llu bytes of host memory: %m",
                       (unsigned long long)m.bytes);
    *ret = m;
    return 0;
}

static int
cpu_host_make(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e)
{
    int fd = make_file("host", m->piece, e);

    (void)g;
    if (fd < 0) return fd;
    m->fd[piece] = fd;
    return 0;
}

static int
cpu_host_map(struct gpu *g, struct host_memory *m, struct err *e)
{
    char *at = (char *)m->base + m->n_mapped * m->piece;
    int fd = m->fd[m->n_mapped];

    (void)g;
    TRY(check_file(fd, m->piece, e));
    if (mmap(at, m->piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) ==
        MAP_FAILED)
        return err_set(e, -errno, "cannot map the %llu bytes of host memory fd %d: %m",
                       (unsigned long long)m->piece, fd);
    m->n_mapped++;
    return 0;
}

static void
cpu_host_close(struct gpu *g, struct host_memory *m)
{
    (void)g;
    munmap(m->base, m->bytes);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->fd[i] >= 0) close(m->fd[i]);
    *m = (struct host_memory){ 0 };
}

/* Does nothing, because the CPU device copies without DMA and so can copy any host memory. */
static int
cpu_host_pin(struct gpu *g, void *p, size_t bytes)
{
    (void)g, (void)p, (void)bytes;
    return 0;
}

static void
cpu_host_unpin(struct gpu *g, void *p, size_t bytes)
{
    (void)g, (void)p, (void)bytes;
}

/* Returns 0, nothing measured: the CPU device has one matmul algorithm. */
static int
cpu_lane_tune(struct lane *l, struct tune_result *ret)
{
    (void)l, (void)ret;
    return 0;
}

/* The functions for graphs fail, because the CPU device captures no graphs. */
static int
cpu_graph_begin(struct lane *l)
{
    (void)l;
    return -ENOTSUP;
}

static int
cpu_graph_end(struct lane *l, struct graph **ret, uint64_t *bytes)
{
    (void)l, (void)ret, (void)bytes;
    return -ENOTSUP;
}

static int
cpu_graph_launch(struct lane *l, struct graph *g)
{
    (void)l, (void)g;
    return -ENOTSUP;
}

static void
cpu_graph_drop(struct lane *l, struct graph *g)
{
    (void)l, (void)g;
}

static void
cpu_range_begin(struct lane *l, const char *name)
{
    (void)l, (void)name;
}

/* Does nothing: device time is measured on a GPU only. */
static void
cpu_no_profile(struct lane *l)
{
    (void)l;
}
#define cpu_range_end cpu_no_profile
#define cpu_work_begin cpu_no_profile
#define cpu_work_end cpu_no_profile

static void
cpu_lane_gaps(struct lane *l, uint64_t *n, uint64_t *ns)
{
    (void)l;
    *n = *ns = 0;
}

static const struct gpu_ops ops = { .name = "cpu", GPU_TABLE(cpu) };

static bool
has_avx2(void)
{
#ifdef __x86_64__
    unsigned a, b, c, d;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C;
#else
    return false;
#endif
}

static uint32_t
cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0) return (uint32_t)CPU_COUNT(&set);
    return (uint32_t)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
}

static int
cpu_memory(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total)
{
    struct err e;

    (void)g;
    *own = 0;
    return cgroup_host_memory(free, total, &e);
}

static void
cpu_close(struct gpu *g)
{
    cpu_collective_close(((struct cpu *)g)->group);
    free(g);
}

int
cpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e)
{
    const char *isa = o->isa ? o->isa : "auto";
    bool avx2 = strcmp(isa, "avx2") == 0, scalar = strcmp(isa, "scalar") == 0;
    struct cpu *c;
    int r;

    if (!avx2 && !scalar && strcmp(isa, "auto") != 0)
        return err_set(e, -EINVAL, "option isa is \"%s\"; expected auto, scalar or avx2", isa);
    if (avx2 && !has_avx2())
        return err_set(e, -ENOTSUP,
                       "option isa is avx2, but this processor lacks AVX2, FMA or F16C; use auto");
    c = calloc(1, sizeof *c);
    if (!c) return err_set(e, -ENOMEM, "cannot allocate the CPU device: no memory");
    c->gpu.close = cpu_close;
    r = cpu_collective_open(&c->group, o->rank, MAX(o->n_ranks, 1u), o->group_fd, e);
    if (r < 0) cpu_close(&c->gpu);
    if (r < 0) return r;
    c->isa = scalar || !has_avx2() ? ISA_SCALAR : ISA_AVX2;
    c->gpu.device = &ops;
    c->gpu.memory = cpu_memory;
    c->gpu.acts = 1 << DT_F32;
    c->gpu.weights = 1 << DT_F32 | 1 << DT_BF16 | 1 << DT_F16;
    c->gpu.kvs = 1 << DT_F32 | 1 << DT_BF16 | 1 << DT_E4M3;
    c->gpu.units = cores();
    c->gpu.parts = (struct gpu_parts){ .least = 1, .grain = 1 };
    snprintf(c->gpu.describe, sizeof c->gpu.describe, "cpu (%u core%s, %s)", c->gpu.units,
             c->gpu.units == 1 ? "" : "s", c->isa == ISA_AVX2 ? "avx2" : "scalar");
    *ret = &c->gpu;
    return 0;
}
