/* quant_mxfp4.c - MXFP4: 4-bit codes (e2m1), and one power of two (e8m0) for 32 of them.
 *
 * Published GPT-OSS checkpoints store experts in MXFP4 and all other tensors plain. Instead of
 * "experts.X" [experts, in, out] there are "experts.X_blocks" [experts, out, in / 32, 16], two
 * codes a byte, and "experts.X_scales" [experts, out, in / 32]. The device keeps the stored bytes
 * for every dtype option.
 * Source: Mxfp4HfQuantizer of transformers 5.17.
 */
#include "worker/model/quant.h"

/* The experts that transformers quantises are those whose plain tensors are stored transposed. */
static bool
covers(const struct weight_rule *rule)
{
    return (rule->flags & W_EXPERTS) && (rule->flags & W_TRANSPOSED);
}

const struct quant quant_mxfp4 = {
    .method = "mxfp4",
    .name = "MXFP4",
    .dtype = DT_MXFP4,
    .run = MX_RUN,
    .random_scale = 120, /* 2^-7: random codes are 2.9 from 0 on average; other weights 0.02 */
    .covers = covers,
    .tensor = { { "_blocks", 2, false }, { "_scales", MX_RUN, true } },
};
