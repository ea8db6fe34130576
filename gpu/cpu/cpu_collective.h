/* cpu_collective.h - all-reduce and all-gather between the ranks of the CPU device, through shared
 * memory.
 *
 * A lane has a channel: a part of the shared memory, the same on every rank because ranks open
 * their lanes in the same order. In a channel every rank has a round number, which only that rank
 * writes, and two slots for data. One exchange:
 *
 *     write own data to own slot[round % 2]
 *     store round + 1 (release), wake the other ranks
 *     wait until the round number of every rank is round + 1 (acquire)
 *     read all slots in rank order
 *
 * Two slots are enough: a rank that has stored round + 1 has read all data of round, and a rank
 * writes data of round + 2 only after every rank has stored round + 1. If a rank exits, the others
 * wait until the process that started them ends them.
 */
#pragma once
#include "gpu/cpu/cpu.h"

struct cpu_collective;

/* Maps the memory of the group from fd, which the caller keeps. With one rank *ret is NULL. */
int cpu_collective_open(struct cpu_collective **ret, uint32_t rank, uint32_t ranks, int fd,
                        struct err *e) MUST_USE;
struct cpu_collective *cpu_collective_close(struct cpu_collective *g); /* NULL in, NULL out */
/* Takes a free channel for a lane and returns its number; cpu_collective_leave() frees the channel.
 * -EAGAIN: all are taken. g NULL (one rank): join() returns 0, leave() has no effect. */
int cpu_collective_join(struct cpu_collective *g);
void cpu_collective_leave(struct cpu_collective *g, int channel);

int cpu_all_reduce(struct lane *l, struct tensor x);
int cpu_all_gather(struct lane *l, struct tensor out, struct tensor x);
/* Queues a check() that all ranks sampled the same tokens (sample.parts); beam rows sample none. */
int cpu_all_same(struct lane *l, const struct sample *s);
