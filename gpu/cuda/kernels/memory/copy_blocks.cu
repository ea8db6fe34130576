/* copy_blocks.cu - copies blocks of memory; see copy_blocks.h. Of every `pitch` bytes of a block
 * the first `used` bytes are copied, in pieces of PIECE bytes; only the last piece may be shorter.
 * A warp copies one piece at a time, and adjacent warps copy adjacent pieces, so that the transfers
 * in flight are contiguous. A lane starts AT_ONCE loads of 16 bytes before it stores the first:
 * COPY_SMS thread blocks have 512 KiB in flight, several times the bandwidth-delay product of the
 * bus.
 */
#include "gpu/cuda/kernels/memory/copy_blocks.h"

#include "gpu/cuda/kernels/base/launch.cuh"

namespace {

constexpr uint32_t COPY_SMS = 4;
constexpr uint32_t THREADS = 1024;
constexpr uint32_t AT_ONCE = 8;
constexpr uint32_t PIECE = 32 * 16 * AT_ONCE;

/* n_pieces: pieces per pitch; n_parts: pieces per block; n: pieces of all blocks. */
__global__ void
__launch_bounds__(THREADS) copy_blocks(const struct block_copy *copy, uint32_t n_pieces,
                                       uint32_t n_parts, uint64_t n, struct block_size size)
{
    uint32_t lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);

    join_previous();
    for (uint64_t i = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; i < n; i += warps) {
        uint64_t block = i / n_parts;
        uint32_t part = (uint32_t)(i % n_parts);
        size_t within = (size_t)(part % n_pieces) * PIECE;
        size_t at = part / n_pieces * size.pitch + within;
        const uint4 *from = (const uint4 *)((const char *)copy[block].from + at) + lane;
        uint4 *to = (uint4 *)((char *)copy[block].to + at) + lane, v[AT_ONCE];
        uint32_t words = (uint32_t)(size.used - within < PIECE ? size.used - within : PIECE) / 16;

        UNROLL for (uint32_t j = 0; j < AT_ONCE; j++)
            if (j * 32 + lane < words) v[j] = __ldcs(from + j * 32);
        UNROLL for (uint32_t j = 0; j < AT_ONCE; j++)
            if (j * 32 + lane < words) __stcs(to + j * 32, v[j]);
    }
}

} /* namespace */

cudaError_t
k_copy_blocks(const struct k_launch *l, const struct block_copy *copy, uint32_t n,
              struct block_size size, bool host)
{
    uint64_t pieces = (size.used + PIECE - 1) / PIECE, parts = size.bytes / size.pitch * pieces;
    uint64_t all = parts * n, blocks = (all + THREADS / 32 - 1) / (THREADS / 32);
    uint32_t most = host ? COPY_SMS : l->sms;

    if (parts > UINT32_MAX) return cudaErrorInvalidValue;
    if (blocks > most) blocks = most;
    return launch(copy_blocks, (uint32_t)blocks, THREADS, 0, l->st, copy, (uint32_t)pieces,
                  (uint32_t)parts, all, size);
}
