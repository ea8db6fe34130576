/* cuda_ranks.h - the ranks of a group on GPUs: a process and a GPU each, on one host.
 *
 * A lane that sums or gathers has a channel, the same one on every rank because ranks' lanes come
 * to their first sum in the same order. A channel is a communicator of NCCL's, and memory of every
 * rank that all others have mapped: what is small goes straight through that
 * (kernels/comm/peer_exchange.h), the rest through NCCL. Both may be recorded. Where ranks cannot
 * map each other's memory all goes through NCCL; with invariant numerics more than two are refused
 * then.
 *
 * Channel 0 is made by a thread from the opening of the device on, beside the weights; who needs it
 * first waits for the rest. The others are made when they are needed: two lanes are rare. A rank
 * that does not come is named after GROUP_TIME. One that dies later leaves the others' kernels
 * waiting: whoever started them ends them, too.
 */
#ifndef CUDA_CUDA_RANKS_H
#define CUDA_CUDA_RANKS_H

#include "gpu/cuda/cuda.h"
#include "gpu/cuda/cuda_nccl.h"
#include "gpu/cuda/cuda_rendezvous.h"
#include "gpu/cuda/kernels/comm/peer_exchange.h"

struct channel {
    struct cuda_ranks *group;
    uint32_t number;
    bool taken, begun, done;
    bool lost; /* its maker never came back, so nothing of it may be freed */
    pthread_t maker;
    int made;
    struct err why;
    nsec since;
    struct ncclComm *comm;
    void *memory; /* ours: what others write, and behind it the turns */
    bool mapped;  /* by all ranks of all */
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
    struct err nccl_why; /* NCCL's words about the call that failed last */
    nsec took, waited;
    char describe[96];
    struct channel channel[RENDEZVOUS_CHANNELS];
};

/* Begin to look for the library. With one rank nothing, here and below. */
int cuda_ranks_begin(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
/* With the context there: the library has been found, and ranks begin to meet. */
int cuda_ranks_open(struct cuda *c, struct err *e) MUST_USE;
void cuda_ranks_close(struct cuda *c);
/* Before a lane's first sum: it has a channel, or the sentence is kept and the lane is finished. */
int cuda_ranks_join(struct cuda_lane *l);
void cuda_ranks_leave(struct cuda_lane *l);
/* What NCCL says of the channel meanwhile: 0 or -EIO, the sentence kept. */
int cuda_ranks_error(struct cuda_lane *l);
/* After an op of a channel failed with r: NCCL's own words, if it was NCCL. */
int cuda_ranks_why(struct cuda_lane *l, int r);
const char *cuda_ranks_describe(const struct gpu *g);

/* cuda_collective.c: candidates of cuda_pick.c. small: as long as the way by memory is the quicker
 * one. nccl: not where bits must not depend on company and there are more than two to add. peer:
 * any size. */
cudaError_t cuda_residual_small(const struct k_launch *l, const struct residual *r); /* of parts */
cudaError_t cuda_reduce_small(const struct k_launch *l, struct tensor x);
cudaError_t cuda_reduce_nccl(const struct k_launch *l, struct tensor x);
cudaError_t cuda_reduce_peer(const struct k_launch *l, struct tensor x);
cudaError_t cuda_sample_parts(const struct k_launch *l, const struct sample *s);
cudaError_t cuda_gather_small(const struct k_launch *l, struct tensor out, struct tensor x);
cudaError_t cuda_gather_nccl(const struct k_launch *l, struct tensor out, struct tensor x);
cudaError_t cuda_gather_peer(const struct k_launch *l, struct tensor out, struct tensor x);

#endif
