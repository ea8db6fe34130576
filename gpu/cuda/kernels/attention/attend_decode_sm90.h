/* attend_decode_sm90.h - attention of runs of one row, generation's, on Hopper; and of a few that
 * see the same. On fewer than 96 SMs attend_ring is asked before it.
 */
#ifndef KERNELS_ATTENTION_ATTEND_DECODE_SM90_H
#define KERNELS_ATTENTION_ATTEND_DECODE_SM90_H

#include "gpu/cuda/kernels/base/kernel.h"

/* gpu.h's attend for runs that all have one row (r.n_single_token == r.n_segments), or all no more
 * than eight (r.longest) that see all keys, without a bias, where no head shares a K/V head: beams,
 * and their source. Paged, without a mask or keys kept beside a window; head dim 64 or 128; q, out
 * and the cache of one dtype, bf16 or fp16; rows at multiples of 16 bytes; blocks of 16 tokens or
 * more; keys and values to store (a->k, a->v) with one run only. Refuses the rest, heads of 128
 * with more (run, K/V head) than SMs, where attend_sm80 is faster, and everything on a lane whose
 * bits must not depend on company: sums begin where shares of keys do. The same input gives the
 * same bits.
 *
 * Scores, softmax and sums are fp32, weights are rounded to the dtype before they meet V (their sum
 * is not), out is rounded once. What of a block is not seen may be anything, NaN too.
 *
 * Takes l->work for what several blocks find of one (run, K/V head), two partial results a block,
 * and l->count for who is last; with too little of either it refuses. Cost: reads K and V once a
 * (run, K/V head, 8 heads that share it); docs/perf.md has times. */
K_API cudaError_t k_attend_decode_sm90(const struct k_launch *l, const struct attend *a,
                                       struct step_tokens r);

#endif
