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

/* cpu_copy.c */
int cpu_put(struct lane *l, void *dst, const void *host, size_t bytes);
int cpu_get(struct lane *l, void *host, const void *src, size_t bytes);
int cpu_copy(struct lane *l, void *dst, const void *src, size_t bytes);

/* The ops: cpu_matmul() and so on, in the file of their kind. */
GPU_EVERY_OP(GPU_PROTOTYPE, cpu)
