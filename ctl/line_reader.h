/* line_reader.h - lines of a file, a pipe or standard input, without waiting for them. */
#ifndef CTL_LINE_READER_H
#define CTL_LINE_READER_H

#include "ctl/ctl.h"

struct line_reader {
    int fd;
    char *buf;
    size_t at, n, max;
    size_t number; /* of the line given last, from 1 */
    bool eof;
};

enum { LINE_READER_MAX = 64 << 20 }; /* bytes of one line: a prompt of four million ids fits */

int line_reader_open(struct line_reader *l, const char *path,
                     struct err *e) MUST_USE; /* "-": standard input */
void line_reader_close(struct line_reader *l);
/* 1: *ret, NUL-ended, until the next call. 0: line_reader_fill() first, or the end (l->eof). */
int line_reader_next(struct line_reader *l, char **ret);
int line_reader_fill(struct line_reader *l,
                     struct err *e) MUST_USE; /* one read(); -EMSGSIZE: a line too long */

#endif
