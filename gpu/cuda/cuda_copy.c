/* cuda_copy.c - put, get and copy: the copy engines' work.
 *
 * Host memory is pinned in pieces that end at multiples of CUDA_PIECE (cuda_host_pin()), and one copy may
 * not cross from one pin into the next: so host copies are cut there.
 */
#include "gpu/cuda/cuda.h"

#include <errno.h>

static int
travel(struct lane *lane, char *dst, const char *src, size_t bytes, enum cudaMemcpyKind kind)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const char *host = kind == cudaMemcpyHostToDevice ? src : dst, *what = "put";
    cudaError_t r = cudaSuccess;

    if (kind == cudaMemcpyDeviceToHost) what = "get";
    if (l->recording)
        return err_set(&lane->gpu->why, -EINVAL, "%s: not while a graph is being recorded", what);
    cuda_enter(cuda_of(lane));
    while (bytes && r == cudaSuccess) {
        size_t n = MIN(bytes, CUDA_PIECE - (uintptr_t)host % CUDA_PIECE);

        r = cudaMemcpyAsync(dst, src, n, kind, l->k.st);
        dst += n, src += n, host += n, bytes -= n;
    }
    return cuda_failed(lane, r, what);
}

int
cuda_put(struct lane *l, void *dst, const void *host, size_t bytes)
{
    return travel(l, dst, host, bytes, cudaMemcpyHostToDevice);
}

int
cuda_get(struct lane *l, void *host, const void *src, size_t bytes)
{
    return travel(l, host, src, bytes, cudaMemcpyDeviceToHost);
}

int
cuda_copy(struct lane *l, void *dst, const void *src, size_t bytes)
{
    cuda_enter(cuda_of(l));
    return cuda_failed(
        l,
        cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, ((struct cuda_lane *)l)->k.st),
        "copy");
}
