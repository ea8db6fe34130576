/* cpu.h - how an op runs on the CPU device: as a job in the queue of a lane, divided into parts
 * that the threads of the lane execute in parallel.
 *
 * The public function of an op packs its arguments into a small struct and calls cpu_queue(). The
 * threads call run() once for each part, in any order and on any thread; the next job starts when
 * all parts are done. The division into parts must not change any result: a part is a range of
 * rows, columns or (row, head) pairs, never a range of the terms of one sum.
 */
#pragma once
#include "gpu/gpu.h"

enum cpu_isa { ISA_SCALAR, ISA_AVX2 }; /* AVX2: AVX2, FMA and F16C */
/* CPU_ARGS: bytes of the arguments of a job. CPU_SCRATCH: bytes of scratch memory per thread.
 * CPU_QUEUE: jobs in the queue of a lane, enough for the 2 steps in flight with 128 layers of 32
 * ops each. A full queue blocks cpu_queue(). If cpu_queue() blocked for a step of a large model
 * (seconds), the heartbeat would stop. */
enum { CPU_ARGS = 512, CPU_SCRATCH = 1 << 20, CPU_QUEUE = 8192 };

/* Computes part `part` of `parts` of an op. scratch: CPU_SCRATCH bytes of the calling thread,
 * 64-byte aligned, content undefined. */
typedef void (*cpu_run)(const void *args, uint32_t part, uint32_t parts, enum cpu_isa isa,
                        void *scratch);

/* Starts the definition of a cpu_run function whose code is the same for every instruction set. */
#define CPU_JOB(name) \
    static void name(const void *args, CPU_UNUSED uint32_t part, CPU_UNUSED uint32_t parts, \
                     CPU_UNUSED enum cpu_isa isa, CPU_UNUSED void *scratch)
#define CPU_UNUSED __attribute__((unused))

/* Queues a job: run with a copy of args (bytes <= CPU_ARGS). The job has min(max_parts, threads of
 * the lane) parts; for max_parts >= 1 see cpu_parts(). Blocks only while the queue is full. Returns
 * 0. */
int cpu_queue(struct lane *l, cpu_run run, const void *args, size_t bytes, uint32_t max_parts);

/* Returns max_parts for cpu_queue(): one part for every `grain` of `work`, at most n. */
static inline uint32_t
cpu_parts(uint32_t n, uint64_t work, uint32_t grain)
{
    return (uint32_t)MIN((uint64_t)n, 1 + work / grain);
}

/* Returns cpu_parts() for an op that is divided by the rows of x; grain: elements of x. */
static inline uint32_t
cpu_row_parts(struct tensor x, uint32_t grain)
{
    return cpu_parts(x.dim[0], (uint64_t)x.dim[0] * x.dim[1], grain);
}

/* Returns the address of row i of a tensor. */
static inline void *
row_of(const struct tensor *t, uint32_t i)
{
    return (char *)t->data + dtype_bytes(t->dtype, (size_t)i * t->stride);
}

/* Returns the index of the first item of part `part` if n items (rows, columns) are divided into
 * `parts` parts. The part ends where the next part begins. */
static inline uint32_t
cpu_first(uint32_t n, uint32_t part, uint32_t parts)
{
    return (uint32_t)((uint64_t)n * part / parts);
}

/* `for (CPU_SHARE(i, n))` loops with i over those of n items that are of this part. */
#define CPU_SHARE(i, n) \
    uint32_t i = cpu_first(n, part, parts), i##_end = cpu_first(n, part + 1, parts); \
    i < i##_end; \
    i++
