/* sample.h - rows of logits to tokens and log-probabilities. */
#ifndef KERNELS_SAMPLING_SAMPLE_H
#define KERNELS_SAMPLING_SAMPLE_H

#include "gpu/cuda/kernels/base/kernel.h"
#include "gpu/cuda/kernels/comm/peer_exchange.h"

/* struct sample of gpu.h, whole: the same tokens as the CPU from the same logits, bit for bit
 * (weights are the same multiples of a unit, and whole numbers add up in any order);
 * log-probabilities within 2e-5 of those in double. What a row wants is read on the device.
 *
 * logits   fp32, at most 2^20 wide, any stride; aligned rows are read 16 bytes at a time work
 * 144 bytes for each 1,024 logits of a row; with less than a call needs it goes in slices
 *
 * Two kernels. The first reads every row once, over CTAs of 8,192 logits, and is done with rows
 * that cut nothing and want no list: greedy, temperature, forced, target, with their
 * log-probability. The second, a CTA a row, returns at once from those rows. A row of NaN and bans
 * sets *fault, unless nobody asked for it (no slot, no target): padding of a graph. Padding with
 * force >= 0 reads no logits at all. Deterministic, and a row's bits do not depend on its company.
 */
K_API cudaError_t k_sample(const struct k_launch *l, const struct sample *s);

/* The same of ranks that have their columns of the logits each (sample.parts). A row that cuts
 * nothing and wants no list is drawn from in parts: ranks tell each other what their blocks of
 * 1,024 come to, and who has the block with the token which one it is. The others are gathered, and
 * drawn from by everybody. Tokens and bits are those of k_sample(). Refused where ranks' columns
 * are not a multiple of four each. */
K_API cudaError_t k_sample_of_ranks(const struct k_launch *l, const struct exchange *e,
                                    const struct sample *s);

#endif
