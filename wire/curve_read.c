/* curve_read.c - reads a key file; see curve.h. */
#include "wire/curve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int
may_read(int fd, const char *path, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return err_set(e, -EINVAL, "%s is not a file", path);
    if (st.st_mode & 077)
        return err_set(e, -EACCES, "%s contains a secret and has mode %04o; run chmod 600", path,
                       st.st_mode & 07777);
    if (st.st_uid && st.st_uid != geteuid())
        return err_set(e, -EACCES,
                       "%s is owned by user %u; the owner must be root or the user of this program",
                       path, st.st_uid);
    if (st.st_size > CURVE_MAX_FILE)
        return err_set(e, -E2BIG, "%s has %lld bytes, the maximum is %d", path,
                       (long long)st.st_size, CURVE_MAX_FILE);
    return 0;
}

int
curve_read(struct curve_file *f, const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r;
    struct err line = { 0 };
    char *text;
    ssize_t n;

    if (fd < 0) return err_set(e, -errno, "%s: %s", path, strerror(errno));
    r = may_read(fd, path, e);
    text = r == 0 ? malloc(CURVE_MAX_FILE) : NULL;
    if (r == 0 && !text) r = err_set(e, -ENOMEM, "%s: out of memory", path);
    if (r == 0) {
        n = read(fd, text, CURVE_MAX_FILE);
        r = n < 0 ? err_set(e, -errno, "%s: %s", path, strerror(errno))
                  : curve_parse(f, text, (size_t)n, &line);
        if (n >= 0 && r < 0) err_set(e, r, "%s: %s", path, line.text);
        explicit_bzero(text, CURVE_MAX_FILE);
    }
    free(text);
    close(fd);
    return r;
}
