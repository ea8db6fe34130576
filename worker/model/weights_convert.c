/* weights_convert.c - weights_convert(): converts elements between fp32, bf16 and fp16. */
#include "gpu/fp.h"
#include "worker/model/weights.h"

#include <math.h>

/* Converts n elements of type t to floats. Uses memcpy, because tensors may be unaligned. */
static void
widen(float *to, const char *from, enum dtype t, size_t n)
{
    uint16_t half;

    if (t == DT_F32) {
        memcpy(to, from, n * sizeof *to);
    } else if (t == DT_BF16) {
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = float_of_bf16(half);
        }
    } else
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = float_of_f16(half);
        }
}

/* Converts n floats to type t. Returns false if a finite value is out of range for fp16. */
static bool
narrow(void *to, const float *from, enum dtype t, size_t n)
{
    bool fits = true;

    if (t == DT_F32) {
        memcpy(to, from, n * sizeof *from);
    } else if (t == DT_BF16) {
        for (size_t i = 0; i < n; i++) ((uint16_t *)to)[i] = bf16_of_float(from[i]);
    } else
        for (size_t i = 0; i < n; i++) {
            ((uint16_t *)to)[i] = f16_of_float(from[i]);
            /* 65520 and above round to infinity in fp16. */
            if (!isinf(from[i]) && fabsf(from[i]) >= 65520) fits = false;
        }
    return fits;
}

int
weights_convert(void *to, enum dtype to_type, const void *from, enum dtype from_type, size_t n)
{
    size_t in = dtype_bytes(from_type, 1), out = dtype_bytes(to_type, 1);
    float some[1024]; /* fits the L1 cache */
    bool fits = true;

    if (to_type == from_type) {
        memcpy(to, from, n * out);
        return 0;
    }
    for (size_t i = 0; i < n; i += ARRAY_LEN(some)) {
        size_t k = MIN(n - i, ARRAY_LEN(some));

        widen(some, (const char *)from + i * in, from_type, k);
        if (!narrow((char *)to + i * out, some, to_type, k)) fits = false;
    }
    return fits ? 0 : -ERANGE;
}
