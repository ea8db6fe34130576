/* peer_exchange.h - all-reduce and all-gather of small data by peer memory: one-shot, low latency.
 *
 *   x     [n, d] fp32, bf16 or fp16, any stride; k_exchange_gather: fp32
 *
 * Every rank stores its data directly into its own area in every other rank's memory and polls its
 * own memory for what the others store there. A line is 16 bytes: two words of data, each next to
 * the round number. The hardware stores 8 bytes undivided, so that an arrival needs no flag, fence
 * or second trip. This doubles the bytes: 8 KiB take 3.4 us, with NCCL 6.7 us (two H200s).
 *
 * Kernels that use each line in one round only (residuals, sums and gathers of aligned rows) send
 * bare lines: four words of data that are never 0. The receiver clears a bare line after reading
 * it, and the end of the kernel orders this before the next round. Bare lines do not increase the
 * bytes.
 *
 * A thread block is one channel: block b of a rank exchanges with blocks b of the others (in
 * sample_scan the channel number is the row of logits, not the block). A channel has its own round
 * number round[b] and two buffers, used alternately. Two are enough: a rank that sends round t + 2
 * has received t + 1 from all ranks, and a rank sends t + 1 only after reading all of t. The round
 * numbers agree because all ranks run the same ops with the same shapes in the same order.
 *
 * Block b waits only for the other ranks' blocks b, and blocks start in order, so a launch may have
 * more blocks than fit on the SMs. Two lanes that exchange at the same time need disjoint SMs:
 * otherwise each rank may be filled with blocks that wait for the other lane of the other rank.
 *
 * Sums are in rank order, in fp32, rounded once: the same bits on every rank, independent of other
 * rows. Source: the LL protocol of NCCL; gpu/cpu/cpu_collective.h uses the same rounds.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

enum { K_EXCHANGE_BLOCKS = 128, K_EXCHANGE_LINES = 2048 };

struct exchange {
    uint32_t rank, ranks;
    void *at[GPU_MAX_RANKS]; /* K_EXCHANGE_BYTES of each rank, mapped here; initially zeros */
    uint32_t *round;         /* own, [K_EXCHANGE_BLOCKS]; initially zeros */
};
/* Layout of a rank's exchange memory: [2 buffers][sending rank][channel][K_EXCHANGE_LINES] lines
 * with round numbers; the same again of bare lines; then, for gathers, [2][sending rank][channel]
 * [K_EXCHANGE_PART] bare lines, about 64 MiB for any number of ranks. */
#define K_EXCHANGE_AREA(ranks) ((size_t)2 * (ranks)*K_EXCHANGE_BLOCKS * K_EXCHANGE_LINES * 16)
#define K_EXCHANGE_PART(ranks) ((1u << 14) / (ranks))
#define K_EXCHANGE_BYTES(ranks) \
    (2 * K_EXCHANGE_AREA(ranks) + \
     (size_t)2 * (ranks)*K_EXCHANGE_BLOCKS * K_EXCHANGE_PART(ranks) * 16)

/* x = the sum of all ranks' x. */
K_API cudaError_t k_exchange_sum(const struct k_launch *l, const struct exchange *e,
                                 struct tensor x);
/* Gathers out: its columns [d * r / ranks, d * (r + 1) / ranks) are rank r's x, which may be stored
 * there already. */
K_API cudaError_t k_exchange_gather(const struct k_launch *l, const struct exchange *e,
                                    struct tensor out, struct tensor x);
/* Gathers in place the logits that k_sample_of_ranks() reads; ranks have the same columns as above.
 * Beam rows and rows with cuts or lists (sample.h) are gathered whole. Of other rows only the
 * blocks of 1,024 columns that several ranks share are gathered, of forced rows none. Refuses
 * unaligned rows and a number of columns that is not a multiple of 4 times the number of ranks. */
K_API cudaError_t k_exchange_gather_drawn(const struct k_launch *l, const struct exchange *e,
                                          struct tensor logits, const struct sample_row *draw);
