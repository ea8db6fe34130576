/* lines.h - lines of a file, a pipe or standard input, without waiting for them. */
#ifndef CTL_LINES_H
#define CTL_LINES_H

#include "ctl/ctl.h"

struct lines {
    int fd;
    char *buf;
    size_t at, n, max;
    size_t number; /* of the line given last, from 1 */
    bool eof;
};

enum { LINES_MAX = 64 << 20 }; /* bytes of one line: a prompt of four million ids fits */

int lines_open(struct lines *l, const char *path, struct err *e) MUST_USE; /* "-": standard input */
void lines_close(struct lines *l);
/* 1: *ret, NUL-ended, until the next call. 0: lines_fill() first, or the end (l->eof). */
int lines_next(struct lines *l, char **ret);
int lines_fill(struct lines *l,
               struct err *e) MUST_USE; /* one read(); -EMSGSIZE: a line too long */

#endif
