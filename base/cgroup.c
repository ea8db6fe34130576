/* cgroup.c - see cgroup.h. */
#include "base/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { STAT_BYTES = 8 << 10 }; /* memory.stat has about 3 KiB, /proc/self/cgroup fewer */

/* Files of the two versions. FILE_CACHE: keys of memory.stat for pages that the kernel can drop. */
static const struct {
    const char *limit, *use, *kills, *cache[2];
} files[] = {
    { "memory.limit_in_bytes",
      "memory.usage_in_bytes",
      "memory.oom_control",
      { "total_inactive_file ", "total_active_file " } },
    { "memory.max", "memory.current", "memory.events", { "inactive_file ", "active_file " } },
};

/* Reads a file of /proc or of a cgroup, whose size is unknown, up to n - 1 bytes. */
static int
read_text(const char *path, char *buf, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), r = 0;
    size_t have = 0;
    ssize_t got;

    if (fd < 0) return -errno;
    while ((got = read(fd, buf + have, n - 1 - have)) > 0) have += (size_t)got;
    if (got < 0) r = -errno;
    close(fd);
    buf[have] = 0;
    return r;
}

/* Returns the text behind the key at the start of a line; NULL: there is no such line. */
static const char *
find_line(const char *text, const char *key)
{
    size_t n = strlen(key);

    for (; text; text = strchr(text, '\n')) {
        text += *text == '\n';
        if (strncmp(text, key, n) == 0) return text + n;
    }
    return NULL;
}

static int
parse_bytes(const char *text, const char *path, uint64_t *ret, struct err *e)
{
    char *end;

    text += strspn(text, " ");
    errno = 0;
    *ret = strtoull(text, &end, 10);
    if (end > text && *text != '-' && !errno && strchr(" \n", *end)) return 0;
    return err_set(e, -EBADMSG, "%.150s: \"%.*s\" is not a number of bytes", path,
                   (int)MIN(strcspn(text, "\n"), 30u), text);
}

int
cgroup_host_memory(uint64_t *available, uint64_t *total, struct err *e)
{
    static const char path[] = "/proc/meminfo";
    char text[STAT_BYTES];
    const char *free, *all;
    int r = read_text(path, text, sizeof text);

    if (r < 0) return err_set(e, r, "%s: %s", path, strerror(-r));
    free = find_line(text, "MemAvailable:");
    all = find_line(text, "MemTotal:");
    if (!free || !all) return err_set(e, -EBADMSG, "%s lacks MemAvailable or MemTotal", path);
    TRY(parse_bytes(free, path, available, e));
    TRY(parse_bytes(all, path, total, e));
    *available <<= 10;
    *total <<= 10;
    return 0;
}

/* ---- the cgroup of the process */

/* Returns the path behind the line of the memory controller, or of version 2; NULL: none. */
static const char *
find_path(const char *membership, bool v2)
{
    const char *at = v2 ? find_line(membership, "0::") : NULL;

    for (const char *line = membership; !v2 && line; line = strchr(line, '\n')) {
        const char *list, *end;

        line += *line == '\n';
        list = strchr(line, ':');
        if (!list) break;
        list++;
        end = list + strcspn(list, ":\n");
        if (*end != ':') break;
        for (; list < end; list += strcspn(list, ",:") + 1)
            if (strncmp(list, "memory", 6) == 0 && strchr(",:", list[6])) at = end + 1;
    }
    return at;
}

void
cgroup_find_in(struct cgroup *c, const char *root, const char *membership)
{
    char path[CGROUP_PATH];
    const char *from;
    int n;

    *c = (struct cgroup){ 0 };
    snprintf(path, sizeof path, "%s/cgroup.controllers", root);
    c->v2 = access(path, F_OK) == 0;
    from = find_path(membership, c->v2);
    if (!from) return;
    n = snprintf(c->dir, sizeof c->dir, "%s%s", root, c->v2 ? "" : "/memory");
    if (n < 0 || (size_t)n >= sizeof c->dir || access(c->dir, X_OK)) {
        c->dir[0] = 0;
        return;
    }
    c->n_root = (size_t)n;
    n = snprintf(path, sizeof path, "%.*s", (int)strcspn(from, "\n"), from);
    /* A path with ".." leads out of the part of the hierarchy that a container sees. */
    if (n < 0 || (size_t)n >= sizeof path || strstr(path, "/..")) return;
    for (const char *p = path; p; p = strchr(p + 1, '/')) {
        snprintf(c->dir + c->n_root, sizeof c->dir - c->n_root, "%s", strcmp(p, "/") ? p : "");
        if (access(c->dir, X_OK) == 0) return;
    }
    c->dir[c->n_root] = 0;
}

void
cgroup_find(struct cgroup *c, const char *root)
{
    char text[STAT_BYTES];

    if (read_text("/proc/self/cgroup", text, sizeof text) < 0) text[0] = 0;
    cgroup_find_in(c, root, text);
}

/* ---- memory */

/* Reads the number of a file of dir. Returns 1, or 0 if there is no limit or no such file. */
static int
read_bytes(const char *dir, const char *name, uint64_t *ret, struct err *e)
{
    char path[CGROUP_PATH + 32], text[64];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (read_text(path, text, sizeof text) < 0 || strcmp(text, "max\n") == 0) return 0;
    TRY(parse_bytes(text, path, ret, e));
    return 1;
}

/* Returns the bytes of file cache in the cgroup dir, which the kernel drops before it kills. */
static uint64_t
file_cache(const char *dir, bool v2)
{
    char path[CGROUP_PATH + 32], text[STAT_BYTES];
    uint64_t sum = 0;

    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (read_text(path, text, sizeof text) < 0) return 0;
    for (size_t i = 0; i < ARRAY_LEN(files[v2].cache); i++) {
        const char *line = find_line(text, files[v2].cache[i]);

        sum += line ? strtoull(line, NULL, 10) : 0;
    }
    return sum;
}

/* Lowers *m to the limit of one cgroup. name: its path below the mount point. */
static int
apply_limit(const char *dir, const char *name, bool v2, struct memory_free *m, struct err *e)
{
    uint64_t limit, use = 0, free;
    int r = read_bytes(dir, files[v2].limit, &limit, e);

    if (r <= 0) return r;
    TRY(read_bytes(dir, files[v2].use, &use, e));
    use -= MIN(use, file_cache(dir, v2));
    free = limit - MIN(limit, use);
    if (free < m->free) {
        m->free = free;
        snprintf(m->owner, sizeof m->owner, "cgroup %.100s", *name ? name : "/");
    }
    if (limit < m->limit) {
        m->limit = limit;
        snprintf(m->limiter, sizeof m->limiter, "cgroup %.100s", *name ? name : "/");
    }
    return 0;
}

int
cgroup_memory(const struct cgroup *c, struct memory_free *ret, struct err *e)
{
    struct memory_free m = { .owner = "the host", .limiter = "the host" };
    char dir[CGROUP_PATH];

    TRY(cgroup_host_memory(&m.free, &m.limit, e));
    memcpy(dir, c->dir, sizeof dir);
    while (*dir) {
        char *last = strrchr(dir + c->n_root, '/');

        TRY(apply_limit(dir, dir + c->n_root, c->v2, &m, e));
        if (!last) break;
        *last = 0;
    }
    *ret = m;
    return 0;
}

uint64_t
cgroup_oom_kills(const struct cgroup *c)
{
    char path[CGROUP_PATH + 32], text[STAT_BYTES];
    const char *line;

    snprintf(path, sizeof path, "%s/%s", c->dir, files[c->v2].kills);
    if (!*c->dir || read_text(path, text, sizeof text) < 0) return 0;
    line = find_line(text, "oom_kill ");
    return line ? strtoull(line, NULL, 10) : 0;
}
