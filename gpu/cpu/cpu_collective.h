/* cpu_collective.h - the ranks of a group on the CPU: what they add up and gather goes through
 * shared memory.
 *
 * A lane is a channel, the same one on every rank because ranks open their lanes in the same order.
 * In a channel every rank has a round, which it alone writes, and two slots. One exchange:
 *
 *     my part -> my slot[round % 2]     round + 1 (release, then a wake)     wait for every rank's round + 1
 *     read all slots, in the order of ranks
 *
 * Two slots are enough: who has written round + 1 has read all of round, and nobody writes round + 2
 * before every rank has written round + 1. A rank that dies leaves the others waiting: whoever
 * started them ends them, too.
 */
#ifndef CPU_CPU_COLLECTIVE_H
#define CPU_CPU_COLLECTIVE_H

#include "gpu/cpu/cpu.h"

struct cpu_collective;

/* NULL where there is one rank. fd is the caller's. */
int cpu_collective_open(struct cpu_collective **ret, uint32_t rank, uint32_t ranks, int fd,
                        struct err *e) MUST_USE;
struct cpu_collective *cpu_collective_close(struct cpu_collective *g); /* NULL in, NULL out */
/* A channel for a lane that opens, and back when it closes. -EAGAIN: all are taken. g may be NULL.
 */
int cpu_collective_join(struct cpu_collective *g);
void cpu_collective_leave(struct cpu_collective *g, int channel);

int cpu_all_reduce(struct lane *l, struct tensor x);
int cpu_all_gather(struct lane *l, struct tensor out, struct tensor x);
/* check()s the promise of sample.parts: what was drawn is the same on every rank, but for beams. */
int cpu_all_same(struct lane *l, const struct sample *s);

#endif
