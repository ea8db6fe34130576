/* embed.h - the op embed: x[i] = scale * table[token[i]]; see gpu/ops.h.
 *
 *   x        [n, d] fp32, bf16 or fp16
 *   table    [vocab, d] fp32, bf16 or fp16
 *   token    [n] on the device; a negative token gives zeros, a token beyond the table row 0
 *
 * Rounded once. Cost: reads n rows, writes n rows.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_embed_kernel k_embed;
