/* host_tables.h - m->table[]: tables that the host computes and ops read on the device (rotary cos
 * and sin, T5's position biases).
 *
 * Called while a model is loaded only. Each call waits for the lane that loads the model, except
 * host_tables_rope(), which needs no device. */
#pragma once
#include "worker/model/model.h"
#include "worker/model/rope_table.h"

/* Makes m->table[which], a copy of the host table from, fp32 [rows, cols]. */
int host_tables_make(struct model *m, uint32_t which, uint32_t rows, uint32_t cols,
                     const float *from, struct err *e) MUST_USE;
/* Starts a thread that computes cos and sin of every position below max_len with the parameters p.
 * host_tables_put() waits for all such threads and copies each result to m->table[which]. -EINVAL:
 * the lists of a longrope have another length than the head has pairs. */
int host_tables_rope(struct model *m, uint32_t which, const struct rope_params *p,
                     uint32_t head_dim, struct err *e) MUST_USE;
int host_tables_put(struct model *m, struct err *e) MUST_USE;
/* Copies the dense fp32 device tensor t to host memory. */
int host_tables_read(struct model *m, float *to, struct tensor t, struct err *e) MUST_USE;
void host_tables_drop(struct model *m);
