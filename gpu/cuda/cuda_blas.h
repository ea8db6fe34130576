/* cuda_blas.h - cuBLASLt, opened at run time: matmul with many rows.
 *
 * A thread opens the library while the context is made, because each takes about 40 ms of a
 * restart. A lane has its own handle and part of its work area. The first call with a shape and
 * bucket of rows selects an algorithm (from the tuning file, else the library's first heuristic)
 * and keeps it in a table of fixed size. A step never tries algorithms out. Descriptors are on the
 * stack: a steady step allocates nothing.
 *
 * Buckets are numbers of rows rounded up to 16, 24, 32, 48, 64, 96, 128 and so on, two per octave.
 * With gpu_options.invariant, algorithms that split a sum are excluded and one algorithm serves all
 * M. On Hopper there is one algorithm per bucket, of a family whose members add in the same order.
 * A row's bits then do not depend on M or the row's position. This holds for 16-bit dtypes; in fp32
 * the candidate "generic" runs. fp32 is never replaced by TF32 or emulated.
 */
#pragma once

#include "gpu/cuda/cuda.h"

/* Starts loading the library in the background, for a later cuda_blas_open(). */
void cuda_blas_load(const struct gpu_options *o);
/* Starts the thread that opens the library. The driver must be started. */
int cuda_blas_begin(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
/* Finishes opening, once the context exists. -ENOENT: the message has the folders searched.
 * -EBADMSG: invalid tuning file. */
int cuda_blas_open(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
void cuda_blas_close(struct cuda *c);
/* Without the library: no effect, and the candidates refuse. */
int cuda_blas_lane_open(struct cuda_lane *l, struct err *e) MUST_USE;
void cuda_blas_lane_close(struct cuda_lane *l);

/* Candidates of cuda_pick.c: x and w of one dtype (fp32, bf16, fp16), y of that dtype or fp32. With
 * a bias a 16-bit product is kept in the work area in fp32 and rounded once; beta without a bias is
 * then refused. */
k_matmul_kernel cuda_blas_matmul;
/* For invariant lanes with few rows: an algorithm chosen for many rows, which adds in the same
 * order. */
k_matmul_kernel cuda_blas_matmul_line;
/* relu without a bias uses the library's epilogue, which gives the same bits. Other activations are
 * applied after rounding, with a bias before rounding. */
k_act_matmul_kernel cuda_blas_act_matmul;
/* both = x w^T, then gate: the result includes the rounding of both. */
k_gate_matmul_kernel cuda_blas_gate_matmul;
