/* peer_exchange.h - sums and gatherings of ranks by each other's memory: the quick way for what is
 * small.
 *
 * x     [n, d] fp32, bf16 or fp16, any stride; k_exchange_gather: fp32
 *
 * Every rank stores its part straight into a place of its own in every other rank's memory and
 * waits for what the others store in its. Four bytes travel with four of a count, in one store that
 * the machine does not divide, so what has come is known without a flag behind it, a fence or a
 * second trip. Twice the bytes, one trip: of 8 KiB 3.4 us where NCCL takes 6.7 (two H200s).
 *
 * A kernel of one round (residuals, gatherings of aligned rows) sends bare words, none of which is
 * 0: who has heard them leaves zeros, and the end of the kernel is what puts these before the next
 * round. As many bytes as there are.
 *
 * A block of threads is one channel: block b of every rank speaks to the blocks b, with a count of
 * its own, round[b], and two places that it uses in rounds. Two are enough: who sends round t + 2 has
 * had t + 1 from everybody, and nobody sends that before it has read all of t. Ranks run the same
 * ops of the same shapes in the same order, so the counts agree.
 *
 * Block b waits for the others' blocks b alone, and blocks begin in their order, so those of one
 * lane may be more than there is room for. Two lanes that exchange at once need SMs of their own:
 * on shared ones each rank may be full of what waits for the other lane of the other rank.
 *
 * Sums are taken in the order of ranks, in fp32, rounded once: every rank finds the same bits, and
 * a row's do not depend on its company. Source: the LL protocol of NCCL (facts);
 * gpu/cpu/cpu_collective.h has the same rounds.
 */
#ifndef KERNELS_COMM_PEER_EXCHANGE_H
#define KERNELS_COMM_PEER_EXCHANGE_H

#include "gpu/cuda/kernels/base/kernel.h"

enum { K_EXCHANGE_BLOCKS = 128, K_EXCHANGE_LINES = 2048 };

struct exchange {
    uint32_t rank, ranks;
    void *at[GPU_MAX_RANKS]; /* K_EXCHANGE_BYTES of each rank, as mapped here: zeros at first */
    uint32_t *round;         /* ours, [K_EXCHANGE_BLOCKS]: zeros at first */
};
/* [2 rounds][ranks, from whom][blocks][lines] of 16 bytes, of which 8 say the round; as many of bare
 * words; and as [lines of a part], of bare words too, what is gathered: 32 MiB of all ranks
 * together. */
#define K_EXCHANGE_AREA(ranks) ((size_t)2 * (ranks)*K_EXCHANGE_BLOCKS * K_EXCHANGE_LINES * 16)
#define K_EXCHANGE_PART(ranks) ((1u << 14) / (ranks))
#define K_EXCHANGE_BYTES(ranks) \
    (2 * K_EXCHANGE_AREA(ranks) + \
     (size_t)2 * (ranks)*K_EXCHANGE_BLOCKS * K_EXCHANGE_PART(ranks) * 16)

K_API cudaError_t k_exchange_sum(const struct k_launch *l, const struct exchange *e,
                                 struct tensor x);
/* out's columns [d * r / ranks, d * (r + 1) / ranks) are rank r's x, which may be that part of out.
 */
K_API cudaError_t k_exchange_gather(const struct k_launch *l, const struct exchange *e,
                                    struct tensor out, struct tensor x);
/* Logits whose columns are divided likewise, in place, before k_sample() of ranks draws from them:
 * rows that it wants whole, and of the others what it wants of other ranks' columns. Refused where
 * ranks' columns are not a multiple of four. */
K_API cudaError_t k_exchange_gather_drawn(const struct k_launch *l, const struct exchange *e,
                                          struct tensor logits, const struct sample_row *draw);

#endif
