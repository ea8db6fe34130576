/* cuda_blas.h - matmuls by cuBLASLt ("the library"), which is opened at run time.
 *
 * A thread opens the library while the context is made, because each takes about 40 ms of a
 * restart. A lane has its own handle and part of its work area. The first call with a shape and
 * bucket of rows selects an algorithm (from the tuning file, else the first that the library
 * proposes) and keeps it in a table of fixed size. A step never tries algorithms out. Descriptors
 * are on the stack: a steady step allocates nothing.
 *
 * M is the number of rows of x. A bucket is M rounded up to 16, 24, 32, 48, 64, 96, 128 and so on,
 * two per octave. With gpu_options.invariant, algorithms that split a sum are excluded and one
 * algorithm serves all M; on Hopper one algorithm per bucket, of a family whose members add in the
 * same order. The bits of a row then do not depend on M or on the position of the row. This holds
 * for 16-bit dtypes; fp32 uses the candidate "generic" then. fp32 is never replaced by TF32 or
 * emulated.
 */
#pragma once
#include "gpu/cuda/cuda.h"

/* Starts a background thread that loads the library, so that a later cuda_blas_open() is faster. */
void cuda_blas_load(const struct gpu_options *o);
/* Starts the thread that opens the library. The caller has started the driver. */
int cuda_blas_begin(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
/* Waits for the thread of cuda_blas_begin(), then reads the tuning file. Requires the CUDA context.
 * -ENOENT: no library; the message has the folders searched. -EBADMSG: invalid tuning file. */
int cuda_blas_open(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
void cuda_blas_close(struct cuda *c);
/* Makes the handle of a lane. Without the library: no effect, and the candidates below refuse. */
int cuda_blas_lane_open(struct cuda_lane *l, struct err *e) MUST_USE;
void cuda_blas_lane_close(struct cuda_lane *l);

/* Candidates of cuda_pick.c: x and w of one dtype (fp32, bf16, fp16), y of that dtype or fp32. A
 * 16-bit product with a bias is kept in fp32 in the work area and rounded once; a 16-bit result
 * with beta and no bias is refused. */
k_matmul_kernel cuda_blas_matmul;
/* Invariant, few rows: our kernel adds in the order of the library's algorithm for many rows. */
k_matmul_kernel cuda_blas_matmul_line;
/* With a bias the activation is applied before rounding. Without a bias the library computes relu,
 * with the bits of a separate op; others are applied to the rounded product. */
k_act_matmul_kernel cuda_blas_act_matmul;
/* Stores x w^T, rounded, in `both` and then applies the gate: the result is rounded twice. */
k_gate_matmul_kernel cuda_blas_gate_matmul;
