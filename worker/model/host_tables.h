/* host_tables.h - tables computed on the host that ops read: rotary cos and sin, T5's position
 * biases.
 *
 * Called during loading only. Each call waits for the model's lane, except host_tables_rope(),
 * which needs no device.
 */
#pragma once

#include "worker/model/model.h"
#include "worker/model/rope_table.h"

/* Copies from, fp32 [rows, cols], to m->table[which]. */
int host_tables_make(struct model *m, uint32_t which, uint32_t rows, uint32_t cols,
                     const float *from, struct err *e) MUST_USE;
/* Starts threads that compute cos and sin of every position up to max_len. host_tables_put() waits
 * for them and sets m->table[which]. */
int host_tables_rope(struct model *m, uint32_t which, const struct rope_params *p,
                     uint32_t head_dim, struct err *e) MUST_USE;
int host_tables_put(struct model *m, struct err *e) MUST_USE;
/* Copies a dense fp32 tensor to the host. */
int host_tables_read(struct model *m, float *to, struct tensor t, struct err *e) MUST_USE;
void host_tables_drop(struct model *m);
