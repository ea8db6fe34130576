/* bench_step_gap.cu - device time between two steps: writing the arrays of a step, reading its
 * results and marking it, by kernels (gpu/cuda/kernels/memory/small_copy.cu), by copy engines and
 * by the front end; and the number of launches that the driver queues before one blocks.
 *
 * A long kernel runs while STEPS steps are queued, so that the time of the host does not count. The
 * figure is the device time per step, beside a step without these operations.
 */
#include "gpu/cuda/kernels/base/launch.cuh"
#include "gpu/cuda/kernels/memory/small_copy.cu"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>

namespace {

constexpr int STEPS = 100, TIMES = 7, KERNELS = 3;

#define MUST(call) \
    do { \
        cudaError_t must_r = (call); \
        if (must_r != cudaSuccess) { \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(must_r)); \
            exit(1); \
        } \
    } while (0)

__global__ void
spin(long long cycles)
{
    long long since = clock64();

    after_previous();
    while (clock64() - since < cycles) continue;
}

__global__ void
touch(float *p)
{
    next_may_start();
    after_previous();
    p[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

struct place {
    k_launch l;
    char *device, *host;
    cudaGraphExec_t graph;
    CUresult (*write)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
};

void
kernels(place &p)
{
    for (int i = 0; i < KERNELS; i++) MUST(launch(touch, 8, 128, 0, p.l.st, (float *)p.device));
}

void
graph(place &p)
{
    MUST(cudaGraphLaunch(p.graph, p.l.st));
}

template <size_t BYTES>
void
put_kernel(place &p)
{
    MUST(k_small_copy(&p.l, p.device + (1 << 20), p.host, BYTES, true));
}

void
put_engine(place &p)
{
    MUST(cudaMemcpyAsync(p.device + (1 << 20), p.host, 4096, cudaMemcpyHostToDevice, p.l.st));
}

void
get_kernel(place &p)
{
    MUST(k_small_copy(&p.l, p.host + (1 << 20), p.device, 1024, false));
}

void
get_engine(place &p)
{
    MUST(cudaMemcpyAsync(p.host + (1 << 20), p.device, 1024, cudaMemcpyDeviceToHost, p.l.st));
}

void
mark_kernel(place &p)
{
    MUST(k_mark(&p.l, (uint64_t *)(p.host + (2 << 20)), 1));
}

void
mark_write(place &p)
{
    if (p.write(p.l.st, (CUdeviceptr)(p.host + (2 << 20)), 1, CU_STREAM_WRITE_VALUE_DEFAULT) !=
        CUDA_SUCCESS)
        MUST(cudaErrorUnknown);
}

struct way {
    const char *name;
    void (*part[4])(place &);
};
const way ways[] = {
    { "3 kernels", { kernels } },
    { "a graph of 3 kernels", { graph } },
    { "graph + put 4 KiB by a kernel", { put_kernel<4096>, graph } },
    { "graph + put 4 KiB by an engine", { put_engine, graph } },
    { "graph + get 1 KiB by a kernel", { graph, get_kernel } },
    { "graph + get 1 KiB by an engine", { graph, get_engine } },
    { "graph + mark by a kernel", { graph, mark_kernel } },
    { "graph + mark by the front end", { graph, mark_write } },
    { "step: put 4 KiB, graph, get, mark by kernels",
      { put_kernel<4096>, graph, get_kernel, mark_kernel } },
    { "step: put 64 KiB, graph, get, mark by kernels",
      { put_kernel<65536>, graph, get_kernel, mark_kernel } },
    { "step: put 256 KiB, graph, get, mark by kernels",
      { put_kernel<262144>, graph, get_kernel, mark_kernel } },
    { "step: put 4 KiB, graph, get by engines, mark by the front end",
      { put_engine, graph, get_engine, mark_write } },
};

void
print_result(const char *name, const char *unit, float *v, int n)
{
    std::sort(v, v + n);
    printf("{\"bench\":\"step_gap\",\"case\":\"%s\",\"value\":%.3g,\"unit\":\"%s\",\"n\":%d,"
           "\"min\":%.3g,"
           "\"median\":%.3g,\"max\":%.3g}\n",
           name, v[n / 2], unit, n, v[0], v[n / 2], v[n - 1]);
}

void
measure(place &p, const way &w, cudaEvent_t begin, cudaEvent_t end)
{
    float us[TIMES], ms;

    for (int n = -1; n < TIMES; n++) { /* once to warm up */
        MUST(launch(spin, 1, 1, 0, p.l.st, 5000000ll));
        MUST(cudaEventRecord(begin, p.l.st));
        for (int i = 0; i < STEPS; i++)
            for (auto part : w.part)
                if (part) part(p);
        MUST(cudaEventRecord(end, p.l.st));
        MUST(cudaStreamSynchronize(p.l.st));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        if (n >= 0) us[n] = ms * 1000 / STEPS;
    }
    print_result(w.name, "us", us, TIMES);
}

/* Finds the first launch that takes longer than the others: it waited for the start of a kernel. */
void
measure_queue(place &p)
{
    using clock = std::chrono::steady_clock;
    float first[3] = {};

    for (float &f : first) {
        MUST(launch(spin, 1, 1, 0, p.l.st, 200000000ll));
        for (int i = 1; i < 10000 && !f; i++) {
            auto since = clock::now();

            MUST(launch(touch, 1, 32, 0, p.l.st, (float *)p.device));
            if (clock::now() - since > std::chrono::milliseconds(5)) f = (float)i;
        }
        MUST(cudaStreamSynchronize(p.l.st));
    }
    print_result("launches queued behind a long kernel before one blocks", "launches", first, 3);
}

} /* namespace */

int
main()
{
    cudaDriverEntryPointQueryResult how;
    cudaEvent_t begin, end;
    cudaGraph_t g;
    place p = {};

    /* as in cuda_device.c; 1x: default of the driver */
    setenv("CUDA_SCALE_LAUNCH_QUEUES", "4x", 0);
    MUST(cudaStreamCreateWithFlags(&p.l.st, cudaStreamNonBlocking));
    MUST(cudaHostAlloc((void **)&p.host, 4 << 20, cudaHostAllocMapped));
    MUST(cudaMalloc((void **)&p.device, 4 << 20));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", (void **)&p.write, 11070,
                                          cudaEnableDefault, &how));
    MUST(cudaStreamBeginCapture(p.l.st, cudaStreamCaptureModeThreadLocal));
    kernels(p);
    MUST(cudaStreamEndCapture(p.l.st, &g));
    MUST(cudaGraphInstantiate(&p.graph, g, 0));
    for (const way &w : ways) measure(p, w, begin, end);
    measure_queue(p);
    return 0;
}
