/* cuda_rendezvous.h - messages between the ranks of a group before they have an NCCL communicator.
 *
 * A message has one sender, a channel (cuda_ranks.h) and a kind; all ranks can read it. It is
 * written once, into the memory of gpu_options.group_fd, which is zero when a group starts and is
 * never used by two groups.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { RENDEZVOUS_CHANNELS = 8, RENDEZVOUS_BYTES = 128 };
enum rendezvous_note {
    RENDEZVOUS_ID,     /* NCCL's communicator id, from rank 0 */
    RENDEZVOUS_MEMORY, /* handle with which others map the memory of this rank */
    RENDEZVOUS_MAPPED, /* whether this rank has mapped the memory of the others */
    RENDEZVOUS_READY,  /* this rank has made its channel */
    RENDEZVOUS_NOTES
};

struct rendezvous {
    uint32_t rank, ranks;
    struct rendezvous_memory *memory;
};

int rendezvous_open(struct rendezvous *m, uint32_t rank, uint32_t ranks, int fd,
                    struct err *e) MUST_USE;
void rendezvous_close(struct rendezvous *m); /* may be called without rendezvous_open() */
/* Sends a message of n bytes, at most RENDEZVOUS_BYTES, to all ranks. */
void rendezvous_post(struct rendezvous *m, uint32_t channel, enum rendezvous_note note,
                     const void *bytes, size_t n);
/* Waits for the message of a rank. -ETIMEDOUT: not sent by `until`; e names the rank. */
int rendezvous_wait(struct rendezvous *m, uint32_t channel, enum rendezvous_note note,
                    uint32_t rank, void *bytes, size_t n, nsec until, struct err *e) MUST_USE;
