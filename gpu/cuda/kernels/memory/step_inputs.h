/* step_inputs.h - what a step does to rows, tokens and tables without arithmetic: gpu.h.
 *
 * rows      y[i] = x[which[i]], any dtype of whole bytes; which[i] beyond x: the row is left alone
 * and
 *             the lane fails
 * tokens    r.token is changed in place see       a slot has one run in a call edit      in order:
 * of edits of one entry the last stands. Beyond a table: the lane fails
 */
#ifndef KERNELS_MEMORY_STEP_INPUTS_H
#define KERNELS_MEMORY_STEP_INPUTS_H

#include "gpu/cuda/kernels/base/kernel.h"

K_API cudaError_t k_gather_rows(const struct k_launch *l, struct tensor y, struct tensor x,
                                const uint32_t *which);
K_API cudaError_t k_resolve_tokens(const struct k_launch *l, struct step_tokens r,
                                   const int32_t *last);
K_API cudaError_t k_mark_tokens(const struct k_launch *l, uint32_t *seen, uint32_t seen_words,
                                struct step_tokens r, const struct segment *segment,
                                uint32_t n_segments);
K_API cudaError_t k_update_tables(const struct k_launch *l, struct tables t,
                                  const struct table_edit *edit, uint32_t n);

#endif
