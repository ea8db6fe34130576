/* cuda_rendezvous.h - where the ranks of a group on GPUs find each other: notes in the memory that
 * they share.
 *
 * Before there is a communicator there is nothing else between them. A note is of one rank, about
 * one channel (a lane's, the same one on every rank), written once and read by whoever waits for
 * it. The memory is gpu_options.group_fd: zeros when a group begins, never used by two groups.
 */
#ifndef CUDA_CUDA_RENDEZVOUS_H
#define CUDA_CUDA_RENDEZVOUS_H

#include "base/base.h"
#include "base/err.h"

enum { RENDEZVOUS_CHANNELS = 8, RENDEZVOUS_BYTES = 128 };
enum rendezvous_note {
    RENDEZVOUS_ID,     /* rank 0's: NCCL's name of the communicator */
    RENDEZVOUS_MEMORY, /* how others map this rank's memory */
    RENDEZVOUS_MAPPED, /* whether it has mapped theirs */
    RENDEZVOUS_READY,  /* nothing is missing here */
    RENDEZVOUS_NOTES
};

struct rendezvous {
    uint32_t rank, ranks;
    struct rendezvous_memory *memory;
};

int rendezvous_open(struct rendezvous *m, uint32_t rank, uint32_t ranks, int fd,
                    struct err *e) MUST_USE;
void rendezvous_close(struct rendezvous *m); /* also of one that was never opened */
/* At most RENDEZVOUS_BYTES. */
void rendezvous_post(struct rendezvous *m, uint32_t channel, enum rendezvous_note note,
                     const void *bytes, size_t n);
/* Waits until then. -ETIMEDOUT: who is missed. */
int rendezvous_wait(struct rendezvous *m, uint32_t channel, enum rendezvous_note note,
                    uint32_t rank, void *bytes, size_t n, nsec until, struct err *e) MUST_USE;

#endif
