/* cuda_library.h - finds and opens a library of the CUDA Toolkit at run time. */
#pragma once
#include "base/err.h"

/* Opens library `name` in the first place where find() finds all functions: in folder libs, or, if
 * libs is NULL, in CUDA_PATH/lib64, /usr/local/cuda/lib64, the path of the loader. The caller
 * closes *ret with dlclose(). -ENOENT: not found; the message begins with need ("" or "x needs y:
 * ") and lists the places searched. */
int cuda_library_open(void **ret, const char *name, const char *libs, const char *need,
                      bool (*find)(void *library, void *arg), void *arg, struct err *e) MUST_USE;
