/* check_memory.c - entries of the checking table for arenas and host memory; see check.c. */
#include "gpu/check.h"

#include <errno.h>

int
checked_arena_make(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret,
                   struct err *e)
{
    int r = bytes ? g->device->mem.arena_make(g, name, bytes, ret, e)
                  : err_set(e, -EINVAL, "arena %s: 0 bytes", name);

    if (r < 0 && e) g->why = *e;
    return r;
}

int
checked_arena_adopt(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e)
{
    int r = bytes ? g->device->mem.arena_adopt(g, fd, bytes, ret, e)
                  : err_set(e, -EINVAL, "adopt fd %d: 0 bytes", fd);

    if (r < 0 && e) g->why = *e;
    return r;
}

void
checked_arena_drop(struct gpu *g, struct arena *a)
{
    g->device->mem.arena_drop(g, a);
}

int
checked_host_open(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e)
{
    int r = bytes ? g->device->mem.host_open(g, bytes, ret, e)
                  : err_set(e, -EINVAL, "host memory: 0 bytes");

    if (r < 0 && e) g->why = *e;
    check(r < 0 || (ret->n && ret->n <= HOST_PIECES && ret->n * ret->piece == ret->bytes));
    return r;
}

int
checked_host_make(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e)
{
    int r;

    check(m->base && piece < m->n && m->fd[piece] < 0);
    r = g->device->mem.host_make(g, m, piece, e);
    if (r < 0 && e) g->why = *e;
    return r;
}

int
checked_host_map(struct gpu *g, struct host_memory *m, struct err *e)
{
    int r;

    check(m->base && m->n_mapped < m->n && m->fd[m->n_mapped] >= 0);
    r = g->device->mem.host_map(g, m, e);
    if (r < 0 && e) g->why = *e;
    return r;
}

void
checked_host_close(struct gpu *g, struct host_memory *m)
{
    if (m->base) g->device->mem.host_close(g, m);
}

int
checked_host_pin(struct gpu *g, void *p, size_t bytes)
{
    return g->device->mem.host_pin(g, p, bytes);
}

void
checked_host_unpin(struct gpu *g, void *p, size_t bytes)
{
    if (p) g->device->mem.host_unpin(g, p, bytes);
}
