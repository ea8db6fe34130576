/* mamba2.h - recurrent layers: the convolution and the scan of Mamba-2 (gpu.h).
 *
 * conv   at most 8 taps; rows of a run side by side, as they always are. Two kernels: what is read
 * of the kept
 *          inputs is read before they change
 * scan   head_dim and state_dim up to 128 each
 *
 * Both take any float dtype of activations, w, biases and the state in fp32. Every sum has one
 * order whatever the chunk or the batch: bits are a row's and its history's own. Correct first: the
 * scan goes row by row, 0.5 us or so each, a block a head and run.
 */
#ifndef KERNELS_SSM_MAMBA2_H
#define KERNELS_SSM_MAMBA2_H

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_conv(const struct k_launch *l, const struct conv *c, struct step_tokens r);
K_API cudaError_t k_scan(const struct k_launch *l, const struct scan *s, struct step_tokens r);

#endif
