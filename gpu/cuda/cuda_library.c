/* cuda_library.c - finds and opens a library of the CUDA Toolkit; see cuda_library.h. */
#include "gpu/cuda/cuda_library.h"

#include <dlfcn.h>
#include <stdio.h>

struct wanted { /* arguments of cuda_library_open() */
    const char *name;
    bool (*find)(void *library, void *arg);
    void *arg;
};

/* Opens the library in folder/sub, or with folder NULL in the path of the loader. Returns NULL if
 * the library or one of its functions is missing. */
static void *
open_in(const struct wanted *w, const char *folder, const char *sub)
{
    char path[4096];
    void *library;

    if (folder)
        snprintf(path, sizeof path, "%s%s/%s", folder, sub, w->name);
    else
        snprintf(path, sizeof path, "%s", w->name);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library || w->find(library, w->arg)) return library;
    dlclose(library);
    return NULL;
}

int
cuda_library_open(void **ret, const char *name, const char *libs, const char *need,
                  bool (*find)(void *library, void *arg), void *arg, struct err *e)
{
    const struct wanted w = { .name = name, .find = find, .arg = arg };
    const char *home = getenv("CUDA_PATH");

    if (libs) {
        *ret = open_in(&w, libs, "");
        if (*ret) return 0;
        return err_set(e, -ENOENT, "%sfound no %s with the needed functions in %s", need, name,
                       libs);
    }
    *ret = home ? open_in(&w, home, "/lib64") : NULL;
    if (!*ret) *ret = open_in(&w, "/usr/local/cuda", "/lib64");
    if (!*ret) *ret = open_in(&w, NULL, NULL);
    if (*ret) return 0;
    return err_set(e, -ENOENT, "%scannot find %s in %s%s/usr/local/cuda/lib64 or the loader's path",
                   need, name, home ? home : "", home ? "/lib64, " : "");
}
