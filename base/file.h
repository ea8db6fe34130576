/* file.h - opens and reads files of a directory. */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { FILE_PATH = 4096 };

/* Opens dir/name for reading. Returns the descriptor, and in path "dir/name" for error sentences.
 * -EINVAL: not a regular file; -ENOENT, -ENAMETOOLONG and the other errors of open(). */
int file_open(char path[FILE_PATH], const char *dir, const char *name, struct err *e) MUST_USE;
/* Reads the file dir/name into *ret with a NUL behind it; the caller frees *ret. *n: bytes read,
 * fewer than the file had when it was opened if it shrank meanwhile. -EFBIG: the file has more than
 * `most` bytes; other errors as file_open(). */
int file_read(char **ret, size_t *n, const char *dir, const char *name, size_t most,
              struct err *e) MUST_USE;

/* Release a local variable with CLEAN(). */
void file_close_at(const int *fd); /* negative: not open */
void file_free_at(char **text);
