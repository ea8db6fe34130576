/* altup.h - ops of Gemma 3n and 4: mul, gaussian_topk, match_rms, altup; see gpu.h.
 *
 *   tensors    fp32, bf16 or fp16 where gpu.h does not require fp32; any strides
 *
 * Arithmetic in fp32, rounded once. Sums over a row have one fixed order, so that a row's bits do
 * not depend on other rows. Cost: mul and altup read and write each byte once; gaussian_topk reads
 * a row three times; match_rms reads y twice.
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_mul_kernel k_mul;
K_API k_gaussian_topk_kernel k_gaussian_topk;
K_API k_match_rms_kernel k_match_rms;
K_API k_altup_kernel k_altup;
