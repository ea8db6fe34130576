/* cuda_lane.c - a lane of the CUDA device: its stream (or one per partition), work area, marks,
 * failures, idle clock.
 *
 * A mark is a kernel that writes the step number to pinned host memory after all work queued before
 * it; lane.done() only loads that number. Every mark also records an event, and lane.after() waits
 * for it. Because an event is recorded before another lane can wait for it, no order of
 * lane.after() calls can deadlock. Only lane.close() blocks.
 *
 * The idle clock measures, for benchmarks, the time that the device was idle between two intervals
 * of work. With gpu_options.timing every interval records an event at its start and at its end. A
 * gap is the time from an end to the next start; it is read when both events are complete and
 * includes the time of the two events. Without the option nothing is queued.
 */
#include "gpu/cuda/cuda.h"
#include "gpu/cuda/cuda_blas.h"
#include "gpu/cuda/cuda_ranks.h"

#include "base/clock.h"
#include "gpu/cuda/kernels/memory/small_copy.h"

/* Time between two queries of the driver by lane.error(); only queries find illegal accesses. */
#define LOOK NSEC_MS

static int
open_idle_clock(struct cuda_lane *l)
{
    for (size_t i = 0; i < ARRAY_LEN(l->idle_clock.at); i++)
        if (cudaEventCreate(&l->idle_clock.at[i].begin) != cudaSuccess ||
            cudaEventCreate(&l->idle_clock.at[i].end) != cudaSuccess)
            return -ENOMEM;
    l->idle_clock.on = true;
    return 0;
}

static void
close_idle_clock(struct cuda_lane *l)
{
    for (size_t i = 0; i < ARRAY_LEN(l->idle_clock.at); i++) {
        if (l->idle_clock.at[i].begin) cudaEventDestroy(l->idle_clock.at[i].begin);
        if (l->idle_clock.at[i].end) cudaEventDestroy(l->idle_clock.at[i].end);
    }
}

static void
end(struct cuda_lane *l)
{
    cuda_enter(cuda_of(&l->lane));
    if (l->k.st) {
        cudaGraph_t half = NULL;

        if (l->recording && cudaStreamEndCapture(l->k.st, &half) == cudaSuccess && half)
            cudaGraphDestroy(half);
        cudaStreamSynchronize(l->k.st);
    }
    for (size_t i = 0; i < ARRAY_LEN(l->mark); i++)
        if (l->mark[i].event) cudaEventDestroy(l->mark[i].event);
    cuda_ranks_leave(l);
    cuda_blas_lane_close(l);
    close_idle_clock(l);
    cuda_partition_leave(l);
    if (l->moved) cudaEventDestroy(l->moved);
    if (l->whole) cudaStreamDestroy(l->whole);
    cudaFree(l->k.work);
    cudaFree(l->k.count);
    cudaFreeHost(l->words);
    cudaGetLastError(); /* clears the error of a failed device, which the next lane would report */
    free(l);
}
CLEAN_FUNC(struct cuda_lane, end)

static int
cuda_err(cudaError_t r, const char *what, struct err *e)
{
    size_t free = 0, total = 0;

    if (r == cudaSuccess) return 0;
    if (r != cudaErrorMemoryAllocation)
        return err_set(e, -EIO, "cannot make a lane (%s): %s", what, cudaGetErrorString(r));
    cudaGetLastError();
    cudaMemGetInfo(&free, &total);
    return err_set(
        e, -ENOMEM,
        "cannot make a lane (%s): no GPU memory (a lane needs %zu MiB; %zu of %zu MiB free)", what,
        CUDA_WORK >> 20, free >> 20, total >> 20);
}

int
cuda_lane_open(struct gpu *g, uint32_t units, struct lane **ret, struct err *e)
{
    CLEAN(end_at) struct cuda_lane *l = calloc(1, sizeof *l);
    void *words;

    if (!l) return err_set(e, -ENOMEM, "cannot make a lane: out of host memory");
    l->lane.gpu = g;
    cuda_enter((struct cuda *)g);
    /* Fewer units than the device has only limit the size of kernels. A lane has SMs of its own
     * only after lane.part(). */
    l->k.sms = MIN(units, g->units);
    l->k.invariant = ((struct cuda *)g)->invariant;
    l->k.work_bytes = CUDA_WORK;
    TRY(cuda_err(cudaStreamCreateWithFlags(&l->whole, cudaStreamNonBlocking), "stream", e));
    l->k.st = l->whole;
    TRY(cuda_err(cudaEventCreateWithFlags(&l->moved, cudaEventDisableTiming), "marks", e));
    TRY(cuda_err(cudaMalloc(&l->k.work, CUDA_WORK), "work area", e));
    TRY(cuda_err(cudaMalloc((void **)&l->k.count, K_COUNTERS * sizeof *l->k.count), "counters", e));
    TRY(cuda_err(cudaMemsetAsync(l->k.count, 0, K_COUNTERS * sizeof *l->k.count, l->k.st),
                 "counters", e));
    TRY(cuda_err(cudaHostAlloc((void **)&l->words, sizeof *l->words,
                               cudaHostAllocMapped | cudaHostAllocPortable),
                 "words for the host", e));
    memset(l->words, 0, sizeof *l->words);
    TRY(cuda_err(cudaHostGetDevicePointer(&words, l->words, 0), "words for the host", e));
    l->done_at = (uint64_t *)((char *)words + offsetof(struct cuda_words, done));
    l->k.fault = (uint32_t *)((char *)words + offsetof(struct cuda_words, fault));
    for (size_t i = 0; i < ARRAY_LEN(l->mark); i++)
        TRY(cuda_err(cudaEventCreateWithFlags(&l->mark[i].event, cudaEventDisableTiming), "marks",
                     e));
    if (((struct cuda *)g)->timing && open_idle_clock(l) < 0)
        return err_set(e, -ENOMEM,
                       "cannot make the events that measure the idle time of a lane: %s",
                       cudaGetErrorString(cudaGetLastError()));
    TRY(cuda_err(cudaStreamSynchronize(l->k.st), "counters", e));
    TRY(cuda_blas_lane_open(l, e));
    cuda_close_on_exec();
    *ret = &TAKE(l)->lane;
    return 0;
}

void
cuda_lane_close(struct lane *l)
{
    end((struct cuda_lane *)l);
}

int
cuda_lane_mark(struct lane *lane, uint64_t step)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    TRY(cuda_not_recording(lane, "lane_mark"));
    cuda_enter(cuda_of(lane));
    TRY(cuda_failed(lane, cudaEventRecord(l->mark[l->n_marks % CUDA_EVENTS].event, l->k.st),
                    "lane_mark"));
    l->mark[l->n_marks++ % CUDA_EVENTS].step = step;
    return cuda_failed(lane, k_mark(&l->k, l->done_at, step), "lane_mark");
}

uint64_t
cuda_lane_done(const struct lane *l)
{
    return __atomic_load_n(&((const struct cuda_lane *)l)->words->done, __ATOMIC_ACQUIRE);
}

int
cuda_lane_after(struct lane *lane, const struct lane *other, uint64_t step)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const struct cuda_lane *o = (const struct cuda_lane *)other;
    uint64_t first = o->n_marks > CUDA_EVENTS ? o->n_marks - CUDA_EVENTS : 0, i = o->n_marks;

    TRY(cuda_not_recording(lane, "lane_after"));
    /* Finds the earliest mark of the current step numbering for `step` or a later step. check.c
     * guarantees that the last mark is for one of these. */
    while (i > first && o->mark[(i - 1) % CUDA_EVENTS].step >= step) i--;
    cuda_enter(cuda_of(lane));
    return cuda_failed(lane, cudaStreamWaitEvent(l->k.st, o->mark[i % CUDA_EVENTS].event, 0),
                       "lane_after");
}

int
cuda_lane_fd(const struct lane *l)
{
    (void)l;
    return -1;
}

int
cuda_lane_error(const struct lane *lane)
{
    struct cuda_lane *l = (struct cuda_lane *)(uintptr_t)lane;
    struct gpu *g = lane->gpu;
    cudaError_t r;
    nsec now;

    if (l->error) return l->error;
    if (__atomic_load_n(&l->words->fault, __ATOMIC_ACQUIRE)) {
        l->error = -EIO;
        return err_set(&g->why, -EIO,
                       "a kernel found invalid input: a row of logits that is entirely NaN or "
                       "suppressed, or a wrong block table");
    }
    if (l->recording || l->n_marks == 0 ||
        cuda_lane_done(lane) == l->mark[(l->n_marks - 1) % CUDA_EVENTS].step)
        return 0;
    now = clock_now();
    if (now < l->next_look) return 0;
    l->next_look = now + LOOK;
    cuda_enter(cuda_of(lane));
    r = cudaStreamQuery(l->k.st);
    if (r != cudaErrorNotReady) return cuda_failed(&l->lane, r, "a step");
    return l->error = cuda_ranks_error(l);
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

/* With two steps in flight at most, the ring never overwrites an interval that is still unread. */
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
    cudaGetLastError(); /* clears cudaErrorNotReady of the query, which is no error */
    *n = l->idle_clock.gaps;
    *ns = l->idle_clock.ns;
}
