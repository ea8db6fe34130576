/* step_inputs.h - ops on rows, tokens and block tables without arithmetic; see gpu/ops.h.
 *
 *   gather_rows      any dtype of whole bytes; which[i] beyond x: row skipped, the lane fails
 *   resolve_tokens   changes r.token in place
 *   mark_tokens      a slot has at most one segment per call
 *   update_tables    in order: the last edit of an entry counts; beyond a table: the lane fails
 */
#pragma once

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
