/* mamba2.h - recurrent layers: the ops conv and scan of Mamba-2; see gpu.h.
 *
 *   conv   at most 8 taps; rows of a segment are adjacent. Two kernels, because the kept inputs
 *          must be read before they change
 *   scan   any head_dim; state_dim up to 512
 *
 * Both take any float dtype of activations; w, biases and state are fp32. Every sum has one order
 * for any chunk or batch: bits depend on the row and its history only. Not optimized: the scan
 * computes row after row, about 0.5 us each, in one thread block per segment and 16 to 128 rows
 * of a head.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_conv_kernel k_conv;
K_API k_scan_kernel k_scan;
