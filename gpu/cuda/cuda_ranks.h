/* cuda_ranks.h - the rank group on GPUs: one process and one GPU per rank, on one host.
 *
 * A lane with collectives has a channel, the same one on every rank because the lanes of all ranks
 * reach their first collective in the same order. A channel has an NCCL communicator and memory of
 * every rank that all other ranks have mapped. Small collectives use that memory
 * (kernels/comm/peer_exchange.h), large ones NCCL. Both can be recorded in graphs. If the ranks
 * cannot map each other's memory, NCCL serves all; invariant numerics with more than two ranks are
 * then refused.
 *
 * A thread makes channel 0 from gpu_open() on, while the weights load; the first collective waits
 * for the rest. Other channels are made on first use, because two lanes are rare. The error after
 * GROUP_TIME names a rank that did not connect. If a rank exits later, the kernels of the others
 * wait until the process that started them ends them.
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
    bool lost; /* the making thread hangs in NCCL: nothing may be freed */
    pthread_t maker;
    int made;
    struct err why;
    nsec since;
    struct ncclComm *comm;
    void *memory; /* own memory that other ranks write; the round numbers follow */
    bool mapped;  /* every rank has mapped the memory of all ranks */
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
    struct err nccl_why; /* NCCL's message of the last failed call */
    nsec took, waited;
    char describe[96];
    struct channel channel[RENDEZVOUS_CHANNELS];
};

/* Starts looking for the library. With one rank this function and those below have no effect. */
int cuda_ranks_begin(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
/* Requires the context; starts making channel 0. */
int cuda_ranks_open(struct cuda *c, struct err *e) MUST_USE;
void cuda_ranks_close(struct cuda *c);
/* Gives the lane a channel before its first collective. On failure keeps the message and fails the
 * lane. */
int cuda_ranks_join(struct cuda_lane *l);
void cuda_ranks_leave(struct cuda_lane *l);
/* NCCL's asynchronous error of the lane's channel: 0, or -EIO with the message kept. */
int cuda_ranks_error(struct cuda_lane *l);
/* Replaces the message after an op of a channel failed with r by NCCL's, if NCCL failed. */
int cuda_ranks_why(struct cuda_lane *l, int r);
const char *cuda_ranks_describe(const struct gpu *g);

/* Candidates of cuda_pick.c, in cuda_collective.c. small: sizes for which peer memory is faster.
 * nccl: refuses more than two ranks with invariant numerics. peer: any size. */
/* with r->parts */
cudaError_t cuda_residual_small(const struct k_launch *l, const struct residual *r);
k_all_reduce_kernel cuda_reduce_small;
k_all_reduce_kernel cuda_reduce_nccl;
k_all_reduce_kernel cuda_reduce_peer;
cudaError_t cuda_sample_parts(const struct k_launch *l, const struct sample *s);
k_all_gather_kernel cuda_gather_small;
k_all_gather_kernel cuda_gather_nccl;
k_all_gather_kernel cuda_gather_peer;
