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

/* Queues run with a copy of args (bytes <= CPU_ARGS). max_parts >= 1: parts worth a thread; the
 * lane uses parts <= min(max_parts, its threads). Blocks only while the queue is full. */
int cpu_queue(struct lane *l, cpu_run run, const void *args, size_t bytes, uint32_t max_parts);

/* Share of a part in n units: [*first, *end). */
static inline void
cpu_share(uint32_t n, uint32_t part, uint32_t parts, uint32_t *first, uint32_t *end)
{
    *first = (uint32_t)((uint64_t)n * part / parts);
    *end = (uint32_t)((uint64_t)n * (part + 1) / parts);
}
