/* act.cuh - the activations, applied to one fp32 value. */
#pragma once
#include "gpu/gpu.h"

/* Returns x / (1 + exp(-u)), accurate to fp32 if EXACT, else enough for rounding to 16 bits. */
template <bool EXACT>
__device__ __forceinline__ float
sigmoid_times(float x, float u)
{
    if (EXACT) return x / (1.0f + expf(-u));
    return __fdividef(x, 1.0f + __expf(-u));
}

template <bool EXACT>
__device__ __forceinline__ float
activate(float x, enum act act)
{
    switch (act) {
    case ACT_RELU:
        return x < 0.0f ? 0.0f : x;
    case ACT_RELU2:
        return x < 0.0f ? 0.0f : x * x;
    case ACT_SILU:
        return sigmoid_times<EXACT>(x, x);
    case ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.707106781f));
    case ACT_GELU_TANH:
        return sigmoid_times<EXACT>(x, 1.59576912f * fmaf(0.044715f * x * x, x, x));
    }
    return x;
}
