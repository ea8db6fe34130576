/* host_tables.h - numbers made on the host that ops read: cos and sin, T5's position biases.
 *
 * While a model is loaded only: each call but host_tables_rope(), which needs no device, waits for the model's lane.
 */
#ifndef MODEL_HOST_TABLES_H
#define MODEL_HOST_TABLES_H

#include "worker/model/model.h"
#include "worker/model/rope_table.h"

/* m->table[which] = from, [rows, cols] fp32, in an arena of its own. */
int host_tables_make(struct model *m, uint32_t which, uint32_t rows, uint32_t cols,
                     const float *from, struct err *e) MUST_USE;
/* m->table[which] is to be cos and sin of every position up to the model's max_len: begun here, on threads of its
 * own, and there after host_tables_put(). */
int host_tables_rope(struct model *m, uint32_t which, const struct rope_params *p,
                     uint32_t head_dim, struct err *e) MUST_USE;
int host_tables_put(struct model *m, struct err *e) MUST_USE;
/* A dense fp32 tensor's elements to the host. */
int host_tables_read(struct model *m, float *to, struct tensor t, struct err *e) MUST_USE;
void host_tables_drop(struct model *m);

#endif
