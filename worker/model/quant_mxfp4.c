/* quant_mxfp4.c - the quantisation method MXFP4: weights are 4-bit codes (e2m1), and 32 consecutive
 * codes of a row have a common scale, a power of two (e8m0).
 *
 * Published GPT-OSS checkpoints store experts in MXFP4 and all other tensors plain. Instead of
 * "experts.X" [experts, in, out] they have "experts.X_blocks" [experts, out, in / 32, 16], two
 * codes per byte, and "experts.X_scales" [experts, out, in / 32]. The device has the stored bytes,
 * whatever the option dtype is. Source: Mxfp4HfQuantizer of transformers 5.17. */
#include "worker/model/quant.h"

/* True for expert matrices that plain files store transposed; transformers quantises only these. */
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
    .random_scale = 120, /* 2^-7 * 2.9 (mean size of a random code) = 0.02, as other weights */
    .covers = covers,
    .tensor = { { "_blocks", 2, false }, { "_scales", MX_RUN, true } },
};
