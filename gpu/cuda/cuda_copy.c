/* cuda_copy.c - the ops put, get, copy and copy_blocks: small copies by a kernel, others by the
 * copy engines of the GPU.
 *
 * Host memory is pinned in pieces that end at multiples of CUDA_PIECE (cuda_host_pin()), and one
 * copy by an engine must not span two pieces: copies from and to the host are divided there.
 *
 * Blocks of LARGE bytes or more between device and host are copied by the engines. They are faster
 * than a kernel, which reads the bus at 51 GB/s, and use no SMs.
 */
#include "gpu/cuda/cuda.h"
#include "gpu/cuda/kernels/memory/copy_blocks.h"
#include "gpu/cuda/kernels/memory/small_copy.h"

enum { LARGE = 1 << 20, BATCH = 64 /* copies that one call of the runtime queues */ };

static bool
pinned(struct cuda *c, const char *p, size_t bytes)
{
    bool all = false;

    pthread_mutex_lock(&c->pin_lock);
    for (uint32_t i = 0; i < c->n_pins && !all; i++)
        all = p >= c->pin[i].from && p < c->pin[i].to && bytes <= (size_t)(c->pin[i].to - p);
    pthread_mutex_unlock(&c->pin_lock);
    return all;
}

/* Copies by a kernel; *r: its error. Returns false if bytes are too many or host is not pinned. */
static bool
by_kernel(struct lane *lane, void *dst, const void *src, size_t bytes, const void *host, bool ready,
          cudaError_t *r)
{
    if (bytes > K_SMALL_COPY || (host && !pinned(cuda_of(lane), host, bytes))) return false;
    *r = k_small_copy(&((struct cuda_lane *)lane)->k, dst, src, bytes, ready);
    return *r != cudaErrorInvalidValue;
}

/* Copies from host to device (put) or from device to host. */
static int
host_copy(struct lane *lane, char *dst, const char *src, size_t bytes, bool put)
{
    enum cudaMemcpyKind kind = put ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    const char *what = put ? "put" : "get", *host = put ? src : dst;
    cudaError_t r = cudaSuccess;

    TRY(cuda_not_recording(lane, what));
    cuda_enter(cuda_of(lane));
    if (by_kernel(lane, dst, src, bytes, host, put, &r)) return cuda_failed(lane, r, what);
    for (r = cudaSuccess; bytes && r == cudaSuccess;) {
        size_t n = MIN(bytes, CUDA_PIECE - (uintptr_t)host % CUDA_PIECE);

        r = cudaMemcpyAsync(dst, src, n, kind, ((struct cuda_lane *)lane)->k.st);
        dst += n, src += n, host += n, bytes -= n;
    }
    return cuda_failed(lane, r, what);
}

int
cuda_put(struct lane *l, void *dst, const void *host, size_t bytes)
{
    return host_copy(l, dst, host, bytes, true);
}

int
cuda_get(struct lane *l, void *host, const void *src, size_t bytes)
{
    return host_copy(l, host, src, bytes, false);
}

int
cuda_copy(struct lane *l, void *dst, const void *src, size_t bytes)
{
    cudaError_t r;

    cuda_enter(cuda_of(l));
    if (!by_kernel(l, dst, src, bytes, NULL, false, &r))
        r = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice,
                            ((struct cuda_lane *)l)->k.st);
    return cuda_failed(l, r, "copy");
}

/* Copies that are collected and then queued by one call. */
struct batch {
    void *to[BATCH];
    const void *from[BATCH];
    size_t bytes[BATCH], n;
};

static cudaError_t
queue_batch(struct batch *b, cudaStream_t st)
{
    struct cudaMemcpyAttributes in_order = { .srcAccessOrder = cudaMemcpySrcAccessOrderStream };
    size_t first = 0, n = b->n;

    b->n = 0;
    if (n == 0) return cudaSuccess;
    return cudaMemcpyBatchAsync(b->to, b->from, b->bytes, n, &in_order, &first, 1, st);
}

cudaError_t
cuda_blocks_by_engine(const struct k_launch *k, const struct block_copy *copy,
                      const struct block_copy *same, uint32_t n, struct block_size size)
{
    struct cuda_lane *l = cuda_lane_of(k);
    struct cuda *c = cuda_of(&l->lane);
    struct batch b = { .n = 0 };
    size_t bytes = size.bytes;

    (void)copy;
    if (!same || bytes < LARGE || size.used < size.pitch || l->recording)
        return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < n; i++)
        if (!pinned(c, same[i].to, bytes) && !pinned(c, same[i].from, bytes))
            return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < n; i++) {
        const char *host = pinned(c, same[i].to, bytes) ? same[i].to : same[i].from;

        for (size_t at = 0, piece; at < bytes; at += piece) {
            cudaError_t r = b.n == BATCH ? queue_batch(&b, k->st) : cudaSuccess;

            if (r != cudaSuccess) return r;
            piece = MIN(bytes - at, CUDA_PIECE - (uintptr_t)(host + at) % CUDA_PIECE);
            b.to[b.n] = (char *)same[i].to + at;
            b.from[b.n] = (const char *)same[i].from + at;
            b.bytes[b.n++] = piece;
        }
    }
    return queue_batch(&b, k->st);
}

cudaError_t
cuda_blocks_by_kernel(const struct k_launch *k, const struct block_copy *copy,
                      const struct block_copy *same, uint32_t n, struct block_size size)
{
    struct cuda *c = cuda_of(&cuda_lane_of(k)->lane);
    bool host = !same;

    for (uint32_t i = 0; i < n && !host; i++)
        host = pinned(c, same[i].to, size.bytes) || pinned(c, same[i].from, size.bytes);
    return k_copy_blocks(k, copy, n, size, host);
}
