/* sample.h - the op sample: from each row of logits a token and log-probabilities. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"
#include "gpu/cuda/kernels/comm/peer_exchange.h"

/* sample() of gpu.h, complete. Chooses the same tokens as the CPU from the same logits, bit for
 * bit, because weights are the same multiples of a unit and integer sums have no rounding.
 * Log-probabilities are within 2e-5 of double-precision results. All parameters of a row are read
 * on the device.
 *
 *    logits   fp32, at most 2^20 columns, any stride; aligned rows are read 16 bytes at a time
 *    work     144 bytes per 1,024 logits of a row; if it is smaller, as many rows at a time as fit
 *
 * "Cuts" are top_k, top_p and min_p; a "list" is a list of the best tokens, for cuts or n_top. Two
 * kernels, and one before them if there are beam rows. The first reads every row once, in thread
 * blocks (CTAs) of 8,192 logits. A CTA also reads the history of the slot if the row has presence
 * or frequency penalties or suppressed n-grams. The first kernel completes rows without cuts and
 * lists: greedy, temperature and forced tokens with log-probability, and the log-probability of a
 * given token (target). The second has one CTA per row, which returns at once for those rows. A
 * row of only NaN and suppressed tokens sets *fault, unless it is padding (no slot, no target).
 * Padding with force >= 0 reads no logits. Deterministic; a row's bits do not depend on other
 * rows. */
K_API k_sample_kernel k_sample;

/* sample() for ranks that each have their own columns of the logits (sample.parts). Rows without
 * cuts and lists are sampled in parts: ranks exchange the statistics of their blocks of 1,024
 * logits, then the rank that has the chosen block sends the token. Other rows are gathered and
 * sampled by every rank. Tokens and bits are those of k_sample(). Refuses unaligned rows and a
 * number of columns that is not a multiple of 4 times the number of ranks. */
K_API cudaError_t k_sample_of_ranks(const struct k_launch *l, const struct exchange *e,
                                    const struct sample *s);
