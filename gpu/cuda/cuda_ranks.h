/* cuda_ranks.h - collectives of a rank group on GPUs: one process and one GPU per rank, on one
 * host.
 *
 * A lane with collectives has a channel: an NCCL communicator, and memory of every rank that all
 * other ranks have mapped (peer memory). The channel is the same on every rank, because the lanes
 * of all ranks reach their first collective in the same order. Small collectives use peer memory
 * (kernels/comm/peer_exchange.h), large ones NCCL. Both can be recorded in graphs. If the ranks
 * cannot map each other's memory, NCCL does all collectives; invariant numerics with more than two
 * ranks are then refused.
 *
 * A thread makes channel 0 from gpu_open() on, while the weights load; the first collective waits
 * for that thread. Other channels are made on first use, because two lanes are rare. If a rank does
 * not connect within GROUP_TIME, the error names it. If a rank exits later, the kernels of the
 * others wait until the process that started them ends them.
 */
#pragma once
#include "gpu/cuda/cuda.h"
#include "gpu/cuda/cuda_nccl.h"
#include "gpu/cuda/cuda_rendezvous.h"
#include "gpu/cuda/kernels/comm/peer_exchange.h"

struct channel {
    struct cuda_ranks *group;
    uint32_t number;
    bool taken, begun, done;
    bool lost; /* the thread that makes the channel hangs in NCCL, so nothing may be freed */
    pthread_t maker;
    int made;
    struct err why;
    nsec since;
    struct ncclComm *comm;
    void *memory; /* memory that other ranks write, followed by exchange.round */
    bool mapped;  /* true: every rank has mapped the memory of all ranks */
    struct exchange exchange;
};

struct cuda_ranks {
    struct cuda *cuda;
    struct nccl nccl;
    struct rendezvous rendezvous;
    char *libs;
    pthread_t opener;
    bool opening;
    int opened;
    struct err why;
    struct err nccl_why; /* message of NCCL for the last call that failed */
    nsec took, waited;
    char describe[96];
    struct channel channel[RENDEZVOUS_CHANNELS];
};

/* Starts a thread that opens NCCL. With one rank the functions of this file have no effect. */
int cuda_ranks_begin(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
/* Waits for the thread that opens NCCL, starts making channel 0. Requires the CUDA context. */
int cuda_ranks_open(struct cuda *c, struct err *e) MUST_USE;
void cuda_ranks_close(struct cuda *c);
/* Assigns a channel to the lane before its first collective. On failure stores the message for
 * gpu_why() and marks the lane as failed. */
int cuda_ranks_join(struct cuda_lane *l);
void cuda_ranks_leave(struct cuda_lane *l);
/* Returns 0, or -EIO if NCCL reports an asynchronous error of the lane's channel, see gpu_why(). */
int cuda_ranks_error(struct cuda_lane *l);
/* Returns r, the result of a collective. If NCCL has failed, gpu_why() gets its message. */
int cuda_ranks_why(struct cuda_lane *l, int r);
const char *cuda_ranks_describe(const struct gpu *g);

/* Candidates of cuda_pick.c, in cuda_collective.c. small: sizes for which peer memory is faster;
 * nccl: any size, but not more than two ranks with invariant numerics; peer: any size. */
/* all-reduce of r->in and residual in one kernel, for r->parts */
cudaError_t cuda_residual_small(const struct k_launch *l, const struct residual *r);
k_all_reduce_kernel cuda_reduce_small;
k_all_reduce_kernel cuda_reduce_nccl;
k_all_reduce_kernel cuda_reduce_peer;
cudaError_t cuda_sample_parts(const struct k_launch *l, const struct sample *s);
k_all_gather_kernel cuda_gather_small;
k_all_gather_kernel cuda_gather_nccl;
k_all_gather_kernel cuda_gather_peer;
