/* cuda_blas.h - cuBLASLt, opened at run time: the matmul of many rows.
 *
 * The library is looked for when the device is opened, by a thread beside the making of the
 * context: each takes some 40 ms of a restart. A lane has a handle of its own and its work area.
 * What a call needs besides is one algorithm, asked for once a shape and bucket of rows (the table
 * that was measured, else the library's first heuristic: nothing is tried out in a step) and kept
 * in a table of fixed size. Descriptors are on the stack: a steady step allocates nothing.
 *
 * Rows are rounded up to 16, 24, 32, 48, 64, 96, 128 and so on when an algorithm is asked for: two
 * buckets an octave. With gpu_options.invariant algorithms that split a sum are left out, and there
 * is one for all M; on Hopper one a bucket, of a family that adds alike: then a row's bits do not
 * depend on M or its place. (In 16 bits. In fp32 "generic" serves.) fp32 is fp32: never TF32, never
 * emulated.
 */
#ifndef CUDA_CUDA_BLAS_H
#define CUDA_CUDA_BLAS_H

#include "gpu/cuda/cuda.h"

/* Begin to load it and no more, so that cuda_blas_open() finds it loaded, or says what lacks. */
void cuda_blas_load(const struct gpu_options *o);
/* Begin to look for it; the driver has been started. */
int cuda_blas_begin(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
/* The rest, with the context there. -ENOENT says where the library was looked for; -EBADMSG is the
 * file of measured algorithms. */
int cuda_blas_open(struct cuda *c, const struct gpu_options *o, struct err *e) MUST_USE;
void cuda_blas_close(struct cuda *c);
/* With a device that has no library: nothing, and the candidates refuse. */
int cuda_blas_lane_open(struct cuda_lane *l, struct err *e) MUST_USE;
void cuda_blas_lane_close(struct cuda_lane *l);

/* Candidates of cuda_pick.c: x and w of one dtype (fp32, bf16, fp16), y of that or fp32. With a
 * bias a 16-bit product goes by the work area in fp32 and is rounded once; beta without a bias is
 * refused then. */
cudaError_t cuda_blas_matmul(const struct k_launch *l, struct tensor y, struct tensor x,
                             struct tensor w, struct tensor bias, float beta);
/* Of a lane whose bits must not depend on company few rows, where many are for an algorithm that
 * adds in order. */
cudaError_t cuda_blas_matmul_line(const struct k_launch *l, struct tensor y, struct tensor x,
                                  struct tensor w, struct tensor bias, float beta);
/* relu without a bias is the library's, which rounds to the same bits before or after; the others
 * come after the rounding, or with a bias before it. */
cudaError_t cuda_blas_act_matmul(const struct k_launch *l, struct tensor y, struct tensor x,
                                 struct tensor w, struct tensor bias, enum act a);
/* both = x w^T, then gate: both's rounding is in the result. */
cudaError_t cuda_blas_gate_matmul(const struct k_launch *l, struct tensor y, struct tensor both,
                                  struct tensor x, struct tensor w, enum act a);

/* gpu_ops.lane.tune. Nothing for a lane on a share of the SMs, and nothing in invariant mode: there
 * a row's bits may not change while it is served. */
int cuda_lane_tune(struct lane *l, struct tune_result *ret);

#endif
