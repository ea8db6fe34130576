/* cpu_ops.h - the ops of the CPU device, without checks; documented in gpu.h. */
#pragma once

#include "gpu/cpu/cpu.h"
#include "gpu/cpu/cpu_collective.h"
#include "gpu/device.h"

/* The device struct. All lanes use the instruction set chosen by cpu_open(). */
struct cpu {
    struct gpu gpu;
    enum cpu_isa isa;
    struct cpu_collective *group; /* NULL: one rank */
};

/* In a loop that polls: gives the other hyperthread the core's units. */
static inline void
cpu_relax(void)
{
#ifdef __x86_64__
    __asm__ volatile("rep; nop");
#endif
}

/* cpu_lane.c */
int cpu_lane_open(struct gpu *g, uint32_t units, struct lane **ret, struct err *e);
void cpu_lane_close(struct lane *l);
int cpu_lane_part(struct lane *l, uint32_t first, uint32_t n);
int cpu_lane_mark(struct lane *l, uint64_t step);
uint64_t cpu_lane_done(const struct lane *l);
int cpu_lane_after(struct lane *l, const struct lane *other, uint64_t step);
int cpu_lane_fd(const struct lane *l);
int cpu_lane_error(const struct lane *l);
int cpu_lane_channel(const struct lane *l); /* in the rank group */
/* Reports invalid input that a running op found: lane.error() is -EIO from now on. */
void cpu_lane_fail(struct lane *l);

/* cpu_copy.c. The memory of the device is host memory. */
int cpu_copy(struct lane *l, void *dst, const void *src, size_t bytes);
#define cpu_put cpu_copy
#define cpu_get cpu_copy

/* The ops: cpu_matmul() and so on, in the file of their kind. */
GPU_EVERY_OP(GPU_PROTOTYPE, cpu)
