/* cuda_idle_clock.c - how long a lane's device was idle between two stretches of work: for
 * benchmarks.
 *
 * With gpu_options.timing every stretch leaves an event where it begins and one where it ends; a
 * gap is the time from an end to the next begin, read once both are over. What it costs (two events
 * a step) is in the gap. Without the option nothing is queued.
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

/* The stretch that is read next is not overwritten: at most two steps of a lane are out. */
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
    cudaGetLastError(); /* not ready is none */
    *n = l->idle_clock.gaps;
    *ns = l->idle_clock.ns;
}
