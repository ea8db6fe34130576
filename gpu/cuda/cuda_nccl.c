/* cuda_nccl.c - opens NCCL and translates its errors; see cuda_nccl.h. */
#include "gpu/cuda/cuda_nccl.h"

#include "gpu/cuda/cuda_library.h"

#include <dlfcn.h>

#define LIBRARY "libnccl.so.2"
/* The first NCCL version that supports CUDA 12 and has all functions of NCCL_CALLS (2.18.0). */
enum { OLDEST = 21800 };

static bool
find_calls(void *library, void *arg)
{
    struct nccl *n = arg;

#define X(type, name, args) \
    if (!(*(void **)&n->name = dlsym(library, "nccl" #name))) return false;
    NCCL_CALLS(X)
#undef X
    return true;
}

int
nccl_open(struct nccl *n, const char *libs, struct err *e)
{
    *n = (struct nccl){ 0 };
    TRY(cuda_library_open(&n->library, LIBRARY, libs, "tensor parallelism needs NCCL: ", find_calls,
                          n, e));
    if (n->GetVersion(&n->version) == NCCL_OK && n->version >= OLDEST) return 0;
    err_set(e, -ENOTSUP,
            "NCCL has version code %d; tensor parallelism needs at least %d (NCCL 2.18)",
            n->version, OLDEST);
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
nccl_err(const struct nccl *n, int result, const char *what, struct err *e)
{
    const char *more;

    if (result == NCCL_OK) return 0;
    more = n->GetLastError(NULL);
    return err_set(e, -EIO, "NCCL failed (%s): %s%s%s", what, n->GetErrorString(result),
                   more && *more ? ": " : "", more ? more : "");
}
