/* cpu_ops.h - struct cpu and the functions of the CPU device in its op table, which do not check
 * their arguments; documented in gpu.h. */
#pragma once
#include "base/clock.h"
#include "gpu/cpu/cpu.h"
#include "gpu/cpu/cpu_collective.h"
#include "gpu/device.h"

/* The CPU device. All lanes use the instruction set that cpu_open() has chosen. */
struct cpu {
    struct gpu gpu;
    enum cpu_isa isa;
    struct cpu_collective *group; /* NULL: one rank */
};

/* State of a waiting thread: it polls for CPU_SPIN ns, then sleeps on a futex. CPU_SPIN is longer
 * than the gap between two ops of one step, so that threads do not sleep within a step, and so
 * short that an idle lane uses little power. */
enum { CPU_SPIN = 20000 };
struct cpu_spin {
    unsigned n;
    nsec until;
};
/* Call after each poll. Returns true if the thread should sleep now. */
static inline bool
cpu_spin_over(struct cpu_spin *s)
{
#ifdef __x86_64__
    __asm__ volatile("rep; nop"); /* leaves the core to its other hyperthread for a moment */
#endif
    if (++s->n % 64) return false;
    if (!s->until) s->until = clock_now() + CPU_SPIN;
    return clock_now() >= s->until;
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
int cpu_lane_channel(const struct lane *l); /* number of the channel, see cpu_collective.h */
/* Called by a running op that found invalid input: lane.error() returns -EIO from now on. */
void cpu_lane_fail(struct lane *l);

/* cpu_copy.c. Device memory is host memory, so put and get are copies. */
int cpu_copy(struct lane *l, void *dst, const void *src, size_t bytes);
#define cpu_put cpu_copy
#define cpu_get cpu_copy

/* Prototypes of the ops: cpu_matmul() and so on, each in the file of its kind. */
GPU_EVERY_OP(GPU_PROTOTYPE, cpu)
