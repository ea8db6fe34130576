/* cuda_idle_clock.c - time that a lane's device was idle between two intervals of work, for
 * benchmarks.
 *
 * With gpu_options.timing every interval records an event at its start and end. A gap is the time
 * from an end to the next start, read once both events are complete. It includes the cost of the
 * two events. Without the option nothing is queued.
 */
#include "gpu/cuda/cuda.h"

#include <errno.h>

int
cuda_idle_clock_open(struct cuda_lane *l)
{
    for (size_t i = 0; i < ARRAY_LEN(l->idle_clock.at); i++)
        if (cudaEventCreate(&l->idle_clock.at[i].begin) != cudaSuccess ||
            cudaEventCreate(&l->idle_clock.at[i].end) != cudaSuccess)
            return -ENOMEM;
    l->idle_clock.on = true;
    return 0;
}

void
cuda_idle_clock_close(struct cuda_lane *l)
{
    for (size_t i = 0; i < ARRAY_LEN(l->idle_clock.at); i++) {
        if (l->idle_clock.at[i].begin) cudaEventDestroy(l->idle_clock.at[i].begin);
        if (l->idle_clock.at[i].end) cudaEventDestroy(l->idle_clock.at[i].end);
    }
}

void
cuda_work_begin(struct lane *lane)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    if (!l->idle_clock.on || l->recording) return;
    cudaEventRecord(l->idle_clock.at[l->idle_clock.n % CUDA_STRETCHES].begin, l->k.st);
}

void
cuda_work_end(struct lane *lane)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    if (!l->idle_clock.on || l->recording) return;
    cudaEventRecord(l->idle_clock.at[l->idle_clock.n++ % CUDA_STRETCHES].end, l->k.st);
}

/* The interval read next is not overwritten, because at most two steps of a lane are in flight. */
void
cuda_lane_gaps(struct lane *lane, uint64_t *n, uint64_t *ns)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    while (l->idle_clock.read + 1 < l->idle_clock.n) {
        cudaEvent_t end = l->idle_clock.at[l->idle_clock.read % CUDA_STRETCHES].end;
        cudaEvent_t begin = l->idle_clock.at[(l->idle_clock.read + 1) % CUDA_STRETCHES].begin;
        float ms;

        if (cudaEventQuery(begin) != cudaSuccess) break;
        if (cudaEventElapsedTime(&ms, end, begin) != cudaSuccess) break;
        l->idle_clock.gaps++;
        l->idle_clock.ns += (uint64_t)(ms * 1e6f);
        l->idle_clock.read++;
    }
    cudaGetLastError(); /* not ready is not an error */
    *n = l->idle_clock.gaps;
    *ns = l->idle_clock.ns;
}
