/* leak_check.c - see leak_check.h. */
#include "tests/torture/leak_check.h"

#include "tests/test.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FD = 256 };

/* Maps the file with this name that a process has open; NULL: none. */
static char *
map_file(pid_t pid, const char *name, uint64_t *bytes)
{
    char path[64], found[PATH_MAX];

    for (int i = 0; i < MAX_FD; i++) {
        struct stat st;
        ssize_t n;
        char *at;
        int fd;

        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, i);
        n = readlink(path, found, sizeof found - 1);
        if (n < 0) continue;
        found[n] = 0;
        if (strcmp(found, name)) continue;
        fd = open(path, O_RDWR | O_CLOEXEC);
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        *bytes = (uint64_t)st.st_size;
        at = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(at != MAP_FAILED);
        close(fd);
        return at;
    }
    return NULL;
}

bool
remains_open(struct remains *r, pid_t worker)
{
    r->kv = map_file(worker, "/memfd:lagan:kv (deleted)", &r->kv_bytes);
    r->m.base = map_file(worker, "/memfd:lagan:manifest (deleted)", &r->manifest_bytes);
    if (!r->kv || !r->m.base) {
        remains_close(r);
        return false;
    }
    memcpy(&r->m.h, r->m.base, sizeof r->m.h);
    r->entries = malloc(r->m.h.row_bytes);
    assert_true(r->entries && r->m.h.arena_bytes == r->kv_bytes);
    return true;
}

void
remains_close(struct remains *r)
{
    if (r->kv) munmap(r->kv, r->kv_bytes);
    if (r->m.base) munmap(r->m.base, r->manifest_bytes);
    free(r->entries);
    *r = (struct remains){ .kv = NULL };
}

char *
remains_block(const struct remains *r, uint32_t group, slice_id at, uint64_t *bytes)
{
    const struct manifest_group *g = &r->m.h.group[group];

    *bytes = (uint64_t)g->slice_bytes * g->n_layers * g->n_parts;
    assert_true((uint64_t)at * g->slice_bytes + *bytes <= r->kv_bytes);
    return r->kv + (uint64_t)at * g->slice_bytes;
}

uint32_t
remains_proven(const struct remains *r, const struct manifest_found *f, uint32_t group)
{
    bool cross = r->m.h.group[group].kind == KV_CROSS;
    uint32_t tokens = cross ? f->row.cross_tokens : f->row.committed;

    return MIN(f->row.n_entries[group], CEIL_DIV(tokens, r->m.h.tokens_per_block));
}

slice_id
remains_labelled(const struct remains *r, uint32_t label, uint32_t group)
{
    const char *at = r->m.base + r->m.h.node_at + (uint64_t)label * r->m.h.node_bytes;
    const struct manifest_node *n = (const void *)at;
    const uint32_t *block =
        (const void *)(at + sizeof *n); /* followed by block + 1 of every group */

    if (n->seq & 1 || !n->live || !block[2 * group]) return SLICE_NONE;
    return block[2 * group] - 1;
}
