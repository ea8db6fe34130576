/* line_reader.c - see ctl.h. */
#include "ctl/ctl.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int
line_reader_open(struct line_reader *l, const char *path, struct err *e)
{
    memset(l, 0, sizeof *l);
    l->fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : 0;
    return l->fd < 0 ? err_set(e, -errno, "%s: %s", path, strerror(errno)) : 0;
}

void
line_reader_close(struct line_reader *l)
{
    if (l->fd > 0) close(l->fd);
    free(l->buf);
    l->buf = NULL;
    l->fd = -1;
}

int
line_reader_next(struct line_reader *l, char **ret)
{
    char *from = l->buf + l->at, *end = l->n > l->at ? memchr(from, '\n', l->n - l->at) : NULL;

    if (!end) {
        if (!l->eof || l->at == l->n) return 0;
        /* the last line may lack its newline; line_reader_fill() left space for the NUL */
        end = l->buf + l->n;
    }
    *end = '\0';
    l->at = MIN((size_t)(end - l->buf) + 1, l->n);
    l->number++;
    *ret = from;
    return 1;
}

int
line_reader_fill(struct line_reader *l, struct err *e)
{
    ssize_t n;

    if (l->at) {
        memmove(l->buf, l->buf + l->at, l->n - l->at);
        l->n -= l->at;
        l->at = 0;
    }
    if (l->n > LINE_READER_MAX)
        return err_set(e, -EMSGSIZE, "line %zu is longer than 64 MiB", l->number + 1);
    if (l->max - l->n < 65536) {
        l->max = 2 * l->max + 65536;
        l->buf = realloc(l->buf, l->max + 1);
        check(l->buf);
    }
    n = read(l->fd, l->buf + l->n, l->max - l->n);
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        return err_set(e, -errno, "cannot read: %s", strerror(errno));
    if (n == 0) l->eof = true;
    if (n > 0) l->n += (size_t)n;
    return 0;
}

int
line_reader_wait(struct line_reader *l, const char *prompt, char **ret, struct err *e)
{
    while (!ctl_signal) {
        if (line_reader_next(l, ret)) {
            if ((*ret)[strspn(*ret, " \t\r")]) return 1;
            continue;
        }
        if (l->eof) break;
        if (prompt) fputs(prompt, stdout), fflush(stdout);
        TRY(line_reader_fill(l, e));
    }
    return 0;
}
