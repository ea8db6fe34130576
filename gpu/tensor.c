/* tensor.c - sizes, slices and names of tensors; declared in gpu.h. */
#include "gpu/gpu.h"

static const struct {
    const char *name;
    uint32_t bits;
} type[DT_COUNT] = {
    [DT_F32] = { "fp32", 32 },     [DT_BF16] = { "bf16", 16 },  [DT_F16] = { "fp16", 16 },
    [DT_I32] = { "i32", 32 },      [DT_I8] = { "i8", 8 },       [DT_U8] = { "u8", 8 },
    [DT_E4M3] = { "fp8_e4m3", 8 }, [DT_MXFP4] = { "mxfp4", 4 },
};

size_t
dtype_bytes(enum dtype t, size_t n)
{
    check((unsigned)t < DT_COUNT);
    return (n * type[t].bits + 7) / 8;
}

const char *
dtype_name(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? type[t].name : "no dtype";
}

struct tensor
tensor_2d(void *data, enum dtype t, uint32_t rows, uint32_t cols)
{
    return (struct tensor){ .data = data, .dtype = t, .dim = { rows, cols, 1, 1 }, .stride = cols };
}

struct tensor
tensor_cols(struct tensor t, uint32_t first, uint32_t n)
{
    check(first <= t.dim[1] && n <= t.dim[1] - first);
    /* a later first column would need other scales: scale points to those of column 0 */
    check(!t.scale || first == 0);
    t.data = (char *)t.data + dtype_bytes(t.dtype, first);
    t.dim[1] = n;
    return t;
}

struct tensor
tensor_rows(struct tensor t, uint32_t first, uint32_t n)
{
    check(first <= t.dim[0] && n <= t.dim[0] - first);
    if (t.scale && t.scale_run) t.scale += (size_t)first * CEIL_DIV(t.dim[1], t.scale_run);
    t.data = (char *)t.data + dtype_bytes(t.dtype, (size_t)first * t.stride);
    t.dim[0] = n;
    return t;
}
