/* cpu.h - how an op runs on the CPU device: queued on a lane, in parts, on the lane's threads.
 *
 * The public function of an op packs its arguments into a small struct and calls cpu_queue(). The
 * lane's threads call run() once for each part, in any order and on any thread. The next op starts
 * when all parts are done. The division into parts must not change any result: a part is a range of
 * rows, columns or (row, head) pairs, never a range of a sum.
 */
#pragma once

#include "gpu/gpu.h"

enum cpu_isa { ISA_SCALAR, ISA_AVX2 }; /* AVX2: AVX2, FMA and F16C */
/* CPU_QUEUE: jobs of a lane; cpu_queue() blocks beyond it. Two steps of 128 layers with 32 ops
 * each: if the worker's loop blocked for a step of a large model (seconds), its heartbeat would
 * stop. */
enum { CPU_ARGS = 512, CPU_SCRATCH = 1 << 20, CPU_QUEUE = 8192 };

/* scratch: CPU_SCRATCH bytes of this thread, 64-byte aligned, content undefined. */
typedef void (*cpu_run)(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa,
                        void *scratch);

/* Starts the definition of a cpu_run that uses no ISA. */
#define CPU_JOB(name) \
    static void name(const void *args, CPU_UNUSED uint32_t part, CPU_UNUSED uint32_t parts, \
                     CPU_UNUSED enum cpu_isa isa, CPU_UNUSED void *scratch)
#define CPU_UNUSED __attribute__((unused))

/* Queues run with a copy of args (bytes <= CPU_ARGS). max_parts >= 1: parts worth a thread; the
 * lane uses parts <= min(max_parts, its threads). Blocks only while the queue is full. */
int cpu_queue(struct lane *l, cpu_run run, const void *args, size_t bytes, uint32_t max_parts);

/* Parts worth a thread: at most n units, and `grain` work for every part but one. */
static inline uint32_t
cpu_parts(uint32_t n, uint64_t work, uint32_t grain)
{
    return (uint32_t)MIN((uint64_t)n, 1 + work / grain);
}

/* The same for the rows of x; grain: elements. */
static inline uint32_t
cpu_row_parts(struct tensor x, uint32_t grain)
{
    return cpu_parts(x.dim[0], (uint64_t)x.dim[0] * x.dim[1], grain);
}

/* First of a part's share of n units; the share ends at the first of the next part. */
static inline uint32_t
cpu_first(uint32_t n, uint32_t part, uint32_t parts)
{
    return (uint32_t)((uint64_t)n * part / parts);
}

/* for (CPU_SHARE(i, n)): i takes the units of this part. */
#define CPU_SHARE(i, n) \
    uint32_t i = cpu_first(n, part, parts), i##_end = cpu_first(n, part + 1, parts); \
    i < i##_end; \
    i++
