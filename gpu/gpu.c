/* gpu.c - opens a device by name; see gpu.h.
 *
 * The CPU device is linked in. CUDA is a module beside the program, so that one binary serves hosts
 * with and without a GPU. If CUDA is requested and missing, the error names what is missing; the
 * CPU is used only when requested.
 */
#include "gpu/device.h"

#include <dlfcn.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "config.h"

#define MODULE "lagan-cuda.so"

/* Returns the GPU number of this rank in "cuda", "cuda:N" or "cuda:N,M..." (one GPU per rank). */
static int
ordinal_of(const struct gpu_options *o, struct err *e)
{
    uint32_t ranks = MAX(o->n_ranks, 1u), seen[GPU_MAX_RANKS] = { 0 }, n = 0;
    const char *at = o->device + 4;

    if (strcmp(o->device, "cuda") == 0) return (int)o->rank;
    for (; n < GPU_MAX_RANKS && strncmp(o->device, "cuda", 4) == 0 && *at == (n ? ',' : ':'); n++) {
        int used = 0;

        if (sscanf(at + 1, "%3u%n", &seen[n], &used) != 1 || at[1] < '0' || at[1] > '9') break;
        at += 1 + used;
        for (uint32_t i = 0; i < n; i++)
            if (seen[i] == seen[n])
                return err_set(e, -EINVAL, "device \"%s\": GPU %u is named twice", o->device,
                               seen[n]);
    }
    if (n == 0 || *at)
        return err_set(e, -EINVAL, "device \"%s\" is not cpu, cuda or cuda:N[,N...]", o->device);
    if (n != ranks)
        return err_set(e, -EINVAL,
                       "device \"%s\" names %u GPUs, for %u rank%s; name one GPU for each rank",
                       o->device, n, ranks, ranks > 1 ? "s" : "");
    return (int)seen[o->rank];
}

/* Loads the CUDA module from the first of: the folder of the program, the folders above it (build
 * tree), ../lib/lagan (relocated installation), the installation folder. */
static void *
load_module(struct err *e)
{
    static const char *const places[] = { "", "../", "../../", "../lib/lagan/",
                                          "../../lib/lagan/" };
    char exe[PATH_MAX], path[PATH_MAX + 64], *slash;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    void *so;

    if (n > 0) {
        exe[n] = '\0';
        slash = strrchr(exe, '/');
        if (slash) slash[1] = '\0';
        for (size_t i = 0; slash && i < ARRAY_LEN(places); i++) {
            snprintf(path, sizeof path, "%s%s%s", exe, places[i], MODULE);
            if (access(path, R_OK) != 0) continue;
            so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (!so) err_set(e, -ENODEV, "cannot load the CUDA module %s: %s", path, dlerror());
            return so;
        }
    }
    so = dlopen(GPU_MODULE_DIR "/" MODULE, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        err_set(e, -ENODEV,
                "there is no " MODULE " beside this program nor in " GPU_MODULE_DIR
                ": build with --with-cuda, or use device cpu");
    return so;
}

/* Loads the CUDA module and finds a symbol in it. The module stays loaded until the process exits,
 * because unloading a CUDA driver is not reliable. */
static int
find_symbol(void **ret, const char *name, struct err *e)
{
    void *so = load_module(e);

    if (!so) return -ENODEV;
    *ret = dlsym(so, name);
    return *ret ? 0
                : err_set(e, -ENODEV,
                          MODULE " has no function %s(): it is of another version than this "
                                 "program; install both from one build",
                          name);
}

static int
open_cuda(struct gpu **ret, const struct gpu_options *o, struct err *e)
{
    int ordinal = ordinal_of(o, e), r;
    cuda_open open;

    if (ordinal < 0) return ordinal;
    r = find_symbol((void **)&open, CUDA_OPEN, e);
    if (r == 0) r = open(ret, (uint32_t)ordinal, o, check_panic_message, e);
    return r < 0 ? err_while(e, r, "open device %s", o->device) : r;
}

static int
check_options(const struct gpu_options *o, struct err *e)
{
    if (o->n_ranks <= GPU_MAX_RANKS && o->rank < MAX(o->n_ranks, 1u)) return 0;
    return err_set(e, -EINVAL,
                   "rank %u of %u is not valid: there are at most %d ranks, numbered from 0",
                   o->rank, o->n_ranks, GPU_MAX_RANKS);
}

static bool
is_cpu(const struct gpu_options *o)
{
    return !o->device || strcmp(o->device, "cpu") == 0;
}

int
gpu_begin(const struct gpu_options *o, struct err *e)
{
    cuda_begin begin;
    int ordinal, r;

    TRY(check_options(o, e));
    if (is_cpu(o)) return 0;
    ordinal = ordinal_of(o, e);
    if (ordinal < 0) return ordinal;
    r = find_symbol((void **)&begin, CUDA_BEGIN, e);
    if (r == 0) r = begin((uint32_t)ordinal, o, e);
    return r < 0 ? err_while(e, r, "start the driver of device %s", o->device) : r;
}

int
gpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e)
{
    struct gpu *g = NULL;
    int r;

    TRY(check_options(o, e));
    if (is_cpu(o))
        r = cpu_open(&g, o, e);
    else
        r = open_cuda(&g, o, e);
    if (r < 0) return r;
    g->rank = o->rank;
    g->ranks = MAX(o->n_ranks, 1u);
    g->checked = *g->device;
    gpu_add_checks(&g->checked);
    *ret = g;
    return 0;
}

void
gpu_close(struct gpu *g)
{
    if (g) g->close(g);
}

const struct gpu_ops *
gpu_ops(const struct gpu *g)
{
    return &g->checked;
}

const char *
gpu_why(const struct gpu *g)
{
    return g->why.text;
}

struct gpu_facts
gpu_facts(const struct gpu *g)
{
    return (struct gpu_facts){ g->units, g->rank, g->ranks, g->parts, g->graphs, g->describe };
}

const char *
gpu_group(const struct gpu *g)
{
    return g->group ? g->group(g) : "";
}

enum dtype
gpu_act_dtype(const struct gpu *g, enum dtype weights)
{
    return g->acts >> weights & 1 ? weights : DT_F32;
}

int
gpu_memory(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total)
{
    return g->memory(g, free, own, total);
}

int
gpu_wait(struct lane *l, uint64_t first, uint64_t last)
{
    const struct gpu_ops *op = &l->gpu->checked;
    struct timespec nap = { .tv_nsec = 20000 }; /* 20 us, short compared with a step (about 1 ms) */
    struct pollfd p = { .fd = op->lane.fd(l), .events = POLLIN };
    uint64_t done, marks;

    while ((done = op->lane.done(l)) < first || done > last) {
        TRY(op->lane.error(l));
        if (p.fd < 0)
            nanosleep(&nap, NULL);
        else if (poll(&p, 1, 1000) > 0 && read(p.fd, &marks, sizeof marks) < 0 && errno != EAGAIN &&
                 errno != EINTR)
            return -errno;
    }
    return op->lane.error(l);
}
