/* cuda_library.h - a library of the CUDA Toolkit, opened at run time. */
#ifndef CUDA_CUDA_LIBRARY_H
#define CUDA_CUDA_LIBRARY_H

#include "base/err.h"

#include <stdbool.h>

/* Opens name: of the folder libs, or where that is NULL of CUDA_PATH/lib64, /usr/local/cuda/lib64
 * or the loader's own path, the first whose calls find() finds all of. ret is the caller's to
 * dlclose(). -ENOENT, after need ("" or "x needs y: "): where it was looked for. */
int cuda_library_open(void **ret, const char *name, const char *libs, const char *need,
                      bool (*find)(void *library, void *arg), void *arg, struct err *e) MUST_USE;

#endif
