/* step_inputs.cu - kernels that prepare the inputs of a step; see step_inputs.h. */
#include "gpu/cuda/kernels/memory/step_inputs.h"

#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/base/vec.cuh"

namespace {

constexpr uint32_t THREADS = 256;
constexpr uint32_t WORDS = 4; /* words of a row per thread */
constexpr uint32_t EDITS = 1024;
constexpr uint32_t PLACES = 2 * EDITS; /* entries of the hash table; half stay empty: few probes */

/* y[i] = x[which[i]] in words W. A thread block copies THREADS * WORDS words of one row. */
template <typename W>
__global__ void
__launch_bounds__(THREADS)
    gather_rows(char *y, const char *x, size_t y_stride, size_t x_stride, uint32_t n_words,
                uint32_t x_rows, const uint32_t *which, uint32_t *fault)
{
    uint32_t first = blockIdx.y * THREADS * WORDS + threadIdx.x;
    W w[WORDS];

    join_previous();
    uint32_t from = which[blockIdx.x];

    if (from >= x_rows) {
        *fault = 1;
        return;
    }
    UNROLL for (uint32_t i = 0; i < WORDS; i++)
        if (first + i * THREADS < n_words)
            w[i] = ((const W *)(x + from * x_stride))[first + i * THREADS];
    UNROLL for (uint32_t i = 0; i < WORDS; i++)
        if (first + i * THREADS < n_words)
            ((W *)(y + blockIdx.x * y_stride))[first + i * THREADS] = w[i];
}

__global__ void
__launch_bounds__(THREADS)
    resolve_tokens(int32_t *token, const uint32_t *slot, const int32_t *last, uint32_t n)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;

    /* Must precede next_may_start(): a later kernel that starts early relies on all work before
     * this kernel being complete (resolve_tokens in ops.h). */
    after_previous();
    next_may_start();
    if (i < n && token[i] == -1 && slot[i] != SLOT_NONE) token[i] = last[slot[i]];
}

/* A thread block marks the tokens of one segment. */
__global__ void
__launch_bounds__(THREADS)
    mark_tokens(const struct token_history h, const int32_t *token, const struct segment *all)
{
    join_previous();
    struct segment segment = all[blockIdx.x];
    uint32_t first = (uint32_t)segment.first_pos, *seen;

    if (segment.slot == SLOT_NONE) return;
    seen = h.seen + (size_t)segment.slot * h.seen_words;
    if (first == 0) {
        for (uint32_t i = threadIdx.x; i < h.seen_words; i += THREADS) seen[i] = 0;
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < segment.n_tokens; i += THREADS) {
        uint32_t t = (uint32_t)token[segment.first_token + i];

        if (t / 32 < h.seen_words) atomicOr(&seen[t / 32], 1u << t % 32);
        if (h.token && first + i < h.stride)
            h.token[(size_t)segment.slot * h.stride + first + i] = (int32_t)t;
    }
}

/* One thread block, at most EDITS edits at a time, in order. Threads that edit the same table entry
 * meet in a hash table in shared memory. It keeps the index of the last edit, which alone is
 * written. */
__global__ void
__launch_bounds__(EDITS) update_tables(const __grid_constant__ struct tables t,
                                       const struct table_edit *edit, uint32_t n, uint32_t *fault)
{
    __shared__ unsigned long long entry[PLACES];
    __shared__ uint32_t last[PLACES];

    join_previous();
    for (uint32_t first = 0; first < n; first += blockDim.x) {
        uint32_t i = first + threadIdx.x, at = 0;
        slice_id *to = NULL;
        struct table_edit e;

        for (uint32_t p = threadIdx.x; p < PLACES; p += blockDim.x) entry[p] = last[p] = 0;
        if (i < n) {
            e = edit[i];
            if (e.table < t.n && e.entry < t.stride[e.table])
                to = t.table[e.table] + (size_t)e.slot * t.stride[e.table] + e.entry;
            else
                *fault = 1;
        }
        __syncthreads();
        if (to) {
            unsigned long long mine = (unsigned long long)to;

            for (at = (uint32_t)(mine / sizeof *to * 2654435761u) % PLACES;;
                 at = (at + 1) % PLACES) {
                unsigned long long was = atomicCAS(&entry[at], 0ull, mine);

                if (was == 0 || was == mine) break;
            }
            atomicMax(&last[at], i);
        }
        __syncthreads();
        if (to && last[at] == i) *to = e.at;
        __syncthreads();
    }
}

template <typename W>
cudaError_t
rows_as(const struct k_launch *l, const struct tensor &y, const struct tensor &x,
        const uint32_t *which, size_t bytes)
{
    uint32_t n = (uint32_t)(bytes / sizeof(W));

    return launch(gather_rows<W>, dim3(y.dim[0], (n + THREADS * WORDS - 1) / (THREADS * WORDS)),
                  THREADS, 0, l->st, (char *)y.data, (const char *)x.data,
                  y.stride * float_bytes(y.dtype), x.stride * float_bytes(x.dtype), n, x.dim[0],
                  which, l->fault);
}

} /* namespace */

cudaError_t
k_gather_rows(const struct k_launch *l, struct tensor y, struct tensor x, const uint32_t *which)
{
    size_t bytes = x.dim[1] * float_bytes(x.dtype);
    size_t fit = (uintptr_t)y.data | (uintptr_t)x.data | bytes | y.stride * float_bytes(y.dtype) |
                 x.stride * float_bytes(x.dtype);

    if (y.dtype != x.dtype || !is_float(x.dtype) || y.dim[1] != x.dim[1] || fit % 2)
        return cudaErrorInvalidValue;
    if (y.dim[0] == 0 || bytes == 0) return cudaSuccess;
    if (fit % 16 == 0) return rows_as<uint4>(l, y, x, which, bytes);
    if (fit % 4 == 0) return rows_as<uint32_t>(l, y, x, which, bytes);
    return rows_as<uint16_t>(l, y, x, which, bytes);
}

cudaError_t
k_resolve_tokens(const struct k_launch *l, struct step_tokens r, const int32_t *last)
{
    return launch(resolve_tokens, (r.n_tokens + THREADS - 1) / THREADS, THREADS, 0, l->st, r.token,
                  r.slot, last, r.n_tokens);
}

cudaError_t
k_mark_tokens(const struct k_launch *l, struct token_history h, struct step_tokens r,
              const struct segment *segment, uint32_t n_segments)
{
    return launch(mark_tokens, n_segments, THREADS, 0, l->st, h, (const int32_t *)r.token, segment);
}

cudaError_t
k_update_tables(const struct k_launch *l, struct tables t, const struct table_edit *e, uint32_t n)
{
    return launch(update_tables, 1, n <= THREADS ? THREADS : EDITS, 0, l->st, t, e, n, l->fault);
}
