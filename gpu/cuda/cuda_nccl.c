/* cuda_nccl.c - see cuda_nccl.h. */
#include "gpu/cuda/cuda_nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define LIBRARY "libnccl.so.2"
/* The first that knows CUDA 12 and all of NCCL_CALLS. */
enum { OLDEST = 21800 };

static bool
find_calls(struct nccl *n)
{
#define X(type, name, args) \
    if (!(*(void **)&n->name = dlsym(n->library, "nccl" #name))) return false;
    NCCL_CALLS(X)
#undef X
    return true;
}

/* In the folder; NULL: by the loader's own path. */
static bool
open_in(struct nccl *n, const char *folder, const char *sub)
{
    char path[4096];

    if (folder)
        snprintf(path, sizeof path, "%s%s/%s", folder, sub, LIBRARY);
    else
        snprintf(path, sizeof path, "%s", LIBRARY);
    n->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!n->library) return false;
    if (find_calls(n)) return true;
    nccl_close(n);
    return false;
}

static int
find(struct nccl *n, const char *libs, struct err *e)
{
    const char *home = getenv("CUDA_PATH");

    if (libs) {
        if (open_in(n, libs, "")) return 0;
        return err_set(e, -ENOENT,
                       "several ranks need NCCL: there is no %s (or not all of it) in %s", LIBRARY,
                       libs);
    }
    if ((home && open_in(n, home, "/lib64")) || open_in(n, "/usr/local/cuda", "/lib64") ||
        open_in(n, NULL, NULL))
        return 0;
    return err_set(e, -ENOENT,
                   "several ranks need NCCL: there is no %s in %s%s/usr/local/cuda/lib64 or where "
                   "the loader looks",
                   LIBRARY, home ? home : "", home ? "/lib64, " : "");
}

int
nccl_open(struct nccl *n, const char *libs, struct err *e)
{
    *n = (struct nccl){ 0 };
    TRY(find(n, libs, e));
    if (n->GetVersion(&n->version) == NCCL_OK && n->version >= OLDEST) return 0;
    err_set(e, -ENOTSUP, "NCCL is %d, at least %d is needed (2.18)", n->version, OLDEST);
    nccl_close(n);
    return -ENOTSUP;
}

void
nccl_close(struct nccl *n)
{
    if (n->library) dlclose(n->library);
    n->library = NULL;
}

int
nccl_said(const struct nccl *n, int result, const char *what, struct err *e)
{
    const char *more;

    if (result == NCCL_OK) return 0;
    more = n->GetLastError(NULL);
    return err_set(e, -EIO, "NCCL, %s: %s%s%s", what, n->GetErrorString(result),
                   more && *more ? ": " : "", more ? more : "");
}
