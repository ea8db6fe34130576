/* cuda.c - the CUDA device's module, lagan-cuda.so: opened by gpu.c when a worker asks for a GPU.
 *
 * The module links the runtime statically and finds the driver itself, so that programs without a GPU
 * never see either. It holds kernels but not yet every op, and a device is whole or not there at all:
 * until then opening one says what is missing.
 */
#include "gpu/device.h"

#include <cuda_runtime_api.h>
#include <errno.h>

__attribute__((visibility("default"))) int lagan_cuda_open(struct gpu **ret, uint32_t ordinal,
                                                           struct err *e);

int
lagan_cuda_open(struct gpu **ret, uint32_t ordinal, struct err *e)
{
    int n = 0;
    cudaError_t r = cudaGetDeviceCount(&n);

    (void)ret;
    if (r == cudaErrorInsufficientDriver)
        return err_set(e, -ENODEV, "there is no CUDA driver, or one older than this module");
    if (r != cudaSuccess || n == 0)
        return err_set(e, -ENODEV, "there is no GPU: %s", cudaGetErrorString(r));
    if (ordinal >= (uint32_t)n)
        return err_set(e, -ENODEV, "there is no GPU %u, only %d of them", ordinal, n);
    return err_set(e, -ENOTSUP, "this module has no complete device yet; use device cpu");
}
