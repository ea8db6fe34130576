/* cuda_library.h - a library of the CUDA Toolkit, opened at run time. */
#pragma once

#include "base/err.h"

/* Opens the first library `name` for which find() finds all functions: in folder libs, or, if libs
 * is NULL, in CUDA_PATH/lib64, /usr/local/cuda/lib64, the loader's path. The caller closes *ret
 * with dlclose(). -ENOENT: the message is need ("" or "x needs y: ") and the places searched. */
int cuda_library_open(void **ret, const char *name, const char *libs, const char *need,
                      bool (*find)(void *library, void *arg), void *arg, struct err *e) MUST_USE;
