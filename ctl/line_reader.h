/* line_reader.h - reads lines of a file, a pipe or standard input without blocking. */
#pragma once

#include "ctl/ctl.h"

struct line_reader {
    int fd;
    char *buf;
    size_t at, n, max;
    size_t number; /* of the last line returned, from 1 */
    bool eof;
};

enum { LINE_READER_MAX = 64 << 20 }; /* bytes of one line: 4 million ids */

int line_reader_open(struct line_reader *l, const char *path,
                     struct err *e) MUST_USE; /* "-": standard input */
void line_reader_close(struct line_reader *l);
/* Returns 1: *ret is a NUL-terminated line, valid until the next call. Returns 0: call
 * line_reader_fill(), or the input has ended (l->eof). */
int line_reader_next(struct line_reader *l, char **ret);
int line_reader_fill(struct line_reader *l,
                     struct err *e) MUST_USE; /* one read(); -EMSGSIZE: line too long */
/* Waits for the next line that is not blank. Returns 1: *ret; 0: the input has ended or a signal
 * has arrived; -EMSGSIZE or the error of read(). prompt: printed before the wait, if not NULL. */
int line_reader_wait(struct line_reader *l, const char *prompt, char **ret, struct err *e) MUST_USE;
