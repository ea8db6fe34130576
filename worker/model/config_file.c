/* config_file.c - config.h: reads a config file. */
#include "worker/model/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void
free_at(char **p)
{
    free(*p);
}

static void
close_at(const int *fd)
{
    if (*fd >= 0) close(*fd);
}

int
config_bytes(char **ret, size_t *n, const char *dir, const char *name, struct err *e)
{
    char path[4096];
    CLEAN(close_at) int fd = -1;
    CLEAN(free_at) char *text = NULL;
    struct stat st;
    size_t have = 0;

    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return err_set(e, -ENAMETOOLONG, "%s: the path is too long", name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_set(e, -errno, "%.180s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return err_set(e, -EINVAL, "%.180s is not a file", path);
    if (st.st_size > CFG_MAX_BYTES)
        return err_set(e, -EFBIG, "%.150s is %lld bytes, at most %d are read", path,
                       (long long)st.st_size, CFG_MAX_BYTES);
    text = malloc((size_t)st.st_size + 1);
    if (!text) return err_set(e, -ENOMEM, "%.180s: no memory for its text", path);
    while (have < (size_t)st.st_size) {
        ssize_t got = read(fd, text + have, (size_t)st.st_size - have);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, -errno, "%.180s: %s", path, strerror(errno));
        if (got == 0) break; /* the file became shorter; the parser reports it */
        have += (size_t)got;
    }
    text[have] = 0;
    *n = have;
    *ret = TAKE(text);
    return 0;
}

int
config_read(json_t **ret, const char *dir, const char *name, struct err *e)
{
    CLEAN(free_at) char *text = NULL;
    size_t n;

    TRY(config_bytes(&text, &n, dir, name, e));
    return config_parse(ret, text, n, name, e);
}
