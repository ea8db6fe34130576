/* step_inputs.h - ops on rows, tokens and block tables that copy or change them; see gpu/ops.h.
 *
 *   gather_rows      fp32, bf16, fp16; if which[i] is beyond x, row i is skipped and the lane fails
 *   resolve_tokens   changes r.token in place
 *   mark_tokens      a slot has at most one segment per call
 *   update_tables    the last edit of an entry is stored; an edit beyond a table fails the lane
 */
#pragma once
#include "gpu/cuda/kernels/base/kernel.h"

K_API k_gather_rows_kernel k_gather_rows;
K_API k_resolve_tokens_kernel k_resolve_tokens;
K_API k_mark_tokens_kernel k_mark_tokens;
K_API k_update_tables_kernel k_update_tables;
