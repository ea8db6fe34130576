/* file.c - see file.h. */
#include "base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

void
file_close_at(const int *fd)
{
    if (*fd >= 0) close(*fd);
}

void
file_free_at(char **text)
{
    free(*text);
}

int
file_open(char path[FILE_PATH], const char *dir, const char *name, struct err *e)
{
    struct stat st;
    int fd;

    if (snprintf(path, FILE_PATH, "%s/%s", dir, name) >= FILE_PATH)
        return err_set(e, -ENAMETOOLONG, "%.64s.../%.80s: the path is longer than 4095 bytes", dir,
                       name);
    /* O_NONBLOCK, because open() of a pipe would otherwise wait for a writer. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_set(e, -errno, "%.180s: %s", path, strerror(errno));
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
    close(fd);
    return err_set(e, -EINVAL, "%.180s is not a regular file", path);
}

/* Begin of the file that git stores in place of a large one. */
static const char LFS[] = "version https://git-lfs.github.com/spec/";

int
file_read(char **ret, size_t *n, const char *dir, const char *name, size_t most, struct err *e)
{
    char path[FILE_PATH];
    CLEAN(file_close_at) int fd = file_open(path, dir, name, e);
    CLEAN(file_free_at) char *text = NULL;
    struct stat st = { 0 };
    size_t have = 0;

    if (fd < 0) return fd;
    if (fstat(fd, &st) < 0 || (size_t)st.st_size > most)
        return err_set(e, -EFBIG, "%.150s has %lld bytes; the maximum is %zu", path,
                       (long long)st.st_size, most);
    text = malloc((size_t)st.st_size + 1);
    if (!text) return err_set(e, -ENOMEM, "out of memory while reading %.180s", path);
    while (have < (size_t)st.st_size) {
        ssize_t got = read(fd, text + have, (size_t)st.st_size - have);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, -errno, "%.180s: %s", path, strerror(errno));
        if (got == 0) break;
        have += (size_t)got;
    }
    text[have] = 0;
    if (!strncmp(text, LFS, sizeof LFS - 1))
        return err_set(e, -EBADMSG,
                       "%.150s is a git-lfs pointer, not the file; run git lfs pull in its "
                       "directory",
                       path);
    *n = have;
    *ret = TAKE(text);
    return 0;
}
