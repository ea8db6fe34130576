/* cuda_rendezvous.h - where the ranks of a group on GPUs find each other: notes in the memory that they share.
 *
 * Before there is a communicator there is nothing else between them. A note is of one rank, about one channel (a
 * lane's, the same one on every rank), written once and read by whoever waits for it. The memory is gpu_options.group_fd:
 * zeros when a group begins, never used by two groups.
 */
#ifndef CUDA_CUDA_RENDEZVOUS_H
#define CUDA_CUDA_RENDEZVOUS_H

#include "base/base.h"
#include "base/err.h"

enum { MEET_CHANNELS = 8, MEET_BYTES = 128 };
enum meet_note {
    MEET_ID,     /* rank 0's: NCCL's name of the communicator */
    MEET_MEMORY, /* how others map this rank's memory */
    MEET_MAPPED, /* whether it has mapped theirs */
    MEET_READY,  /* nothing is missing here */
    MEET_NOTES
};

struct meet {
    uint32_t rank, ranks;
    struct meet_memory *memory;
};

int meet_open(struct meet *m, uint32_t rank, uint32_t ranks, int fd, struct err *e) MUST_USE;
void meet_close(struct meet *m); /* also of one that was never opened */
/* At most MEET_BYTES. */
void meet_say(struct meet *m, uint32_t channel, enum meet_note note, const void *bytes, size_t n);
/* Waits until then. -ETIMEDOUT: who is missed. */
int meet_hear(struct meet *m, uint32_t channel, enum meet_note note, uint32_t rank, void *bytes,
              size_t n, nsec until, struct err *e) MUST_USE;

#endif
