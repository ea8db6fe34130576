/* cuda_collective.c - all-reduce and all-gather between the GPUs of a rank group: by peer memory
 * (memory that all ranks have mapped) or by NCCL; see cuda_ranks.h. */
#include "gpu/cuda/cuda_ranks.h"

#include "gpu/cuda/kernels/norm/norm.h"
#include "gpu/cuda/kernels/sampling/sample.h"

/* Bytes up to which peer memory is used. All-reduce: the bytes that a rank sends to all other ranks
 * together; with many ranks the ring of NCCL sends fewer. All-gather: the bytes of the widest x of
 * a rank, which peer memory sends without packing. */
enum { SMALL_SUM = 8 << 20, SMALL_GATHER = 64 << 20 };

static cudaError_t
nccl_result(struct channel *ch, int result, const char *what)
{
    return nccl_err(&ch->group->nccl, result, what, &ch->group->nccl_why) < 0 ? cudaErrorUnknown
                                                                              : cudaSuccess;
}

static cudaError_t
copy_rows(const struct k_launch *l, void *to, size_t to_stride, const void *from,
          size_t from_stride, uint32_t rows, size_t bytes)
{
    return cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, rows,
                             cudaMemcpyDeviceToDevice, l->st);
}

cudaError_t
cuda_reduce_peer(const struct k_launch *l, struct tensor x)
{
    const struct channel *ch = cuda_lane_of(l)->channel;

    return ch->mapped ? k_exchange_sum(l, &ch->exchange, x) : cudaErrorInvalidValue;
}

cudaError_t
cuda_residual_small(const struct k_launch *l, const struct residual *r)
{
    const struct channel *ch = cuda_lane_of(l)->channel;

    return ch->mapped ? k_residual_of_ranks(l, &ch->exchange, r) : cudaErrorInvalidValue;
}

cudaError_t
cuda_reduce_small(const struct k_launch *l, struct tensor x)
{
    const struct channel *ch = cuda_lane_of(l)->channel;
    size_t others = ch->group->rendezvous.ranks - 1;
    size_t bytes = dtype_bytes(x.dtype, (size_t)x.dim[0] * x.dim[1]);

    return bytes * others <= SMALL_SUM ? cuda_reduce_peer(l, x) : cudaErrorInvalidValue;
}

static cudaError_t
sum_by_nccl(const struct k_launch *l, struct channel *ch, void *x, size_t n, enum dtype t)
{
    int type = t == DT_F32 ? NCCL_F32 : t == DT_BF16 ? NCCL_BF16 : NCCL_F16;

    return nccl_result(ch, ch->group->nccl.AllReduce(x, x, n, type, NCCL_SUM, ch->comm, l->st),
                       "all_reduce");
}

/* NCCL requires contiguous memory: rows with gaps go through the work area, as many as fit. */
cudaError_t
cuda_reduce_nccl(const struct k_launch *l, struct tensor x)
{
    struct channel *ch = cuda_lane_of(l)->channel;
    size_t row = dtype_bytes(x.dtype, x.dim[1]), stride = dtype_bytes(x.dtype, x.stride);
    uint32_t most = (uint32_t)MIN(l->work_bytes / row, (size_t)x.dim[0]);

    if (l->invariant && ch->exchange.ranks > 2) return cudaErrorInvalidValue;
    if (x.dim[0] == 1 || x.stride == x.dim[1])
        return sum_by_nccl(l, ch, x.data, (size_t)x.dim[0] * x.dim[1], x.dtype);
    if (!most) return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < x.dim[0]; i += most) {
        uint32_t rows = MIN(most, x.dim[0] - i);
        char *at = (char *)x.data + i * stride;
        cudaError_t r = copy_rows(l, l->work, row, at, stride, rows, row);

        if (r == cudaSuccess) r = sum_by_nccl(l, ch, l->work, (size_t)rows * x.dim[1], x.dtype);
        if (r == cudaSuccess) r = copy_rows(l, at, stride, l->work, row, rows, row);
        if (r != cudaSuccess) return r;
    }
    return cudaSuccess;
}

cudaError_t
cuda_gather_peer(const struct k_launch *l, struct tensor out, struct tensor x)
{
    const struct channel *ch = cuda_lane_of(l)->channel;

    return ch->mapped ? k_exchange_gather(l, &ch->exchange, out, x) : cudaErrorInvalidValue;
}

/* Compares the widest x (widths may differ by a column), so that all ranks decide alike. */
cudaError_t
cuda_gather_small(const struct k_launch *l, struct tensor out, struct tensor x)
{
    const struct channel *ch = cuda_lane_of(l)->channel;
    size_t widest = CEIL_DIV(out.dim[1], ch->exchange.ranks);

    return widest * out.dim[0] * sizeof(float) <= SMALL_GATHER ? cuda_gather_peer(l, out, x)
                                                               : cudaErrorInvalidValue;
}

cudaError_t
cuda_sample_parts(const struct k_launch *l, const struct sample *s)
{
    const struct channel *ch = cuda_lane_of(l)->channel;

    return ch->mapped ? k_sample_of_ranks(l, &ch->exchange, s) : cudaErrorInvalidValue;
}

/* All-gather by NCCL of rows that fit the work area, which has a widest part for each rank. */
static cudaError_t
gather_rows(const struct k_launch *l, struct channel *ch, struct tensor out, struct tensor x)
{
    uint32_t ranks = ch->exchange.ranks, rank = ch->exchange.rank, d = out.dim[1];
    size_t widest = CEIL_DIV(d, ranks), part = widest * x.dim[0];
    float *work = l->work;
    cudaError_t r = copy_rows(l, work + part * rank, widest * sizeof *work, x.data,
                              x.stride * sizeof *work, x.dim[0], x.dim[1] * sizeof *work);

    if (r == cudaSuccess)
        r = nccl_result(
            ch,
            ch->group->nccl.AllGather(work + part * rank, work, part, NCCL_F32, ch->comm, l->st),
            "all_gather");
    for (uint32_t i = 0; r == cudaSuccess && i < ranks; i++) {
        uint32_t first = (uint32_t)((uint64_t)d * i / ranks),
                 end = (uint32_t)((uint64_t)d * (i + 1) / ranks);

        r = copy_rows(l, (float *)out.data + first, out.stride * sizeof *work, work + part * i,
                      widest * sizeof *work, out.dim[0], (end - first) * sizeof *work);
    }
    return r;
}

cudaError_t
cuda_gather_nccl(const struct k_launch *l, struct tensor out, struct tensor x)
{
    struct channel *ch = cuda_lane_of(l)->channel;
    uint32_t ranks = ch->exchange.ranks;
    size_t row = CEIL_DIV(out.dim[1], ranks) * (size_t)ranks * sizeof(float);
    uint32_t most = (uint32_t)MIN(l->work_bytes / row, (size_t)out.dim[0]);

    if (!most) return cudaErrorInvalidValue;
    for (uint32_t i = 0; i < out.dim[0]; i += most) {
        uint32_t n = MIN(most, out.dim[0] - i);
        cudaError_t r = gather_rows(l, ch, tensor_rows(out, i, n), tensor_rows(x, i, n));

        if (r != cudaSuccess) return r;
    }
    return cudaSuccess;
}
