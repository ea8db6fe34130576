/* checksum.h - the checksum op of gpu/ops.h: a sum over 8-byte words, each mixed with its index.
 *
 *   sum    8-byte aligned, in device memory; written when the op is done
 *   p      16-byte aligned, any number of bytes
 *
 * The sum is modulo 2^64, so that its order does not matter and the result is always the same.
 * Cost: one read. Source: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_checksum_kernel k_checksum;
