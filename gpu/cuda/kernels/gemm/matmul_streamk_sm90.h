/* matmul_streamk_sm90.h - y = x w^T for up to 64 rows on a partition of a Hopper device: reads the
 * weights once and divides them evenly among the SMs. */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

enum { MATMUL_RING_ROWS = 64 };

/* matmul() of gpu.h. Takes the dtypes, alignments and y of matmul_skinny_sm90.h, and refuses
 * everything outside of:
 *
 *    M      17 (9 with fewer than 96 SMs; 33 if w has at most 4 Mi elements) to MATMUL_RING_ROWS
 *    lane   on a partition of the device, not invariant
 *
 * A sum is divided into parts of K, each added in order; the parts are added in order, in fp32, and
 * rounded once. The division follows from N, K and the lane's SMs, so that a row's bits do not
 * depend on M or the row's position.
 *
 * Uses l->work for sums of tiles that several thread blocks share, two per block, and l->count to
 * find the last block; refuses if either is too small. Cost: reads w once, and x once per 128 or
 * 256 rows of w, from L2; docs/lab/kernels.md has times. */
K_API k_matmul_kernel k_matmul_streamk_sm90;

/* gate_matmul() of gpu.h under the same conditions, N a multiple of 8; does not write `both`,
 * rounds only y. */
K_API k_gate_matmul_kernel k_gate_matmul_streamk_sm90;
