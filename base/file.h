/* file.h - opens and reads files of a directory. */
#pragma once

#include "base/base.h"
#include "base/err.h"

enum { FILE_PATH = 4096 };

/* Opens dir/name for reading and writes its path, for later sentences. Returns the descriptor.
 * -ENOENT; -EINVAL: not a regular file; -ENAMETOOLONG; ... */
int file_open(char path[FILE_PATH], const char *dir, const char *name, struct err *e) MUST_USE;
/* Reads dir/name, at most `most` bytes, and adds a NUL; the caller frees *ret. *n is smaller than
 * the file was if it shrank meanwhile. As file_open(); -EFBIG: the file is longer. */
int file_read(char **ret, size_t *n, const char *dir, const char *name, size_t most,
              struct err *e) MUST_USE;

/* For CLEAN(). */
void file_close_at(const int *fd); /* negative: not open */
void file_free_at(char **text);
