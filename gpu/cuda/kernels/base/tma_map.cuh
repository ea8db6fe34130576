/* tma_map.cuh - host functions that make the tensor maps (CUtensorMap) of TMA copies. */
#pragma once
#include "gpu/gpu.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace {

/* cuTensorMapEncodeTiled, looked up in the driver (libcuda is not linked); NULL: not found. */
PFN_cuTensorMapEncodeTiled_v12000
encoder()
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;

        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                             &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            f = NULL;
        return (PFN_cuTensorMapEncodeTiled_v12000)f;
    }();

    return encode;
}

/* Makes a map of n dimensions with the 128-byte swizzle. dim and box start with the innermost
 * dimension, which is contiguous; stride: bytes per step of the other n - 1 dimensions. */
bool
make_map(CUtensorMap *map, enum dtype t, void *data, uint32_t n, const cuuint64_t *dim,
         const cuuint64_t *stride, const cuuint32_t *box)
{
    static const cuuint32_t one[5] = { 1, 1, 1, 1, 1 };

    return encoder()(map,
                     t == DT_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                     n, data, dim, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Bytes from one row of a 16-bit matrix to the next; for a single row any valid stride. */
inline cuuint64_t
row_bytes(const struct tensor &t)
{
    return (cuuint64_t)(t.dim[0] > 1 ? t.stride : (t.dim[1] + 7) & ~7u) * 2;
}

/* Makes a map of the 16-bit matrix t; one copy loads 64 columns of `rows` rows. */
inline bool
make_row_map(CUtensorMap *map, const struct tensor &t, uint32_t rows)
{
    const cuuint64_t dim[2] = { t.dim[1], t.dim[0] }, stride[1] = { row_bytes(t) };
    const cuuint32_t box[2] = { 64, rows };

    return make_map(map, t.dtype, t.data, 2, dim, stride, box);
}

} /* namespace */
