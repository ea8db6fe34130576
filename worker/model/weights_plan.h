/* weights_plan.h - where each tensor of a checkpoint goes: the weight table with its sizes worked
 * out.
 *
 * A line and the W_STACKED lines after it form a field: one struct tensor of the family, made of
 * parts; a part is a tensor of the checkpoint. A quantised line forms one field for each stored
 * tensor (quant.h). Fields that are not used in place are in the arena in table order, 128-byte
 * aligned; the checksum table (weights_checksum.h) follows the last field.
 */
#pragma once

#include "worker/model/quant.h"
#include "worker/model/sharding.h"
#include "worker/model/weights.h"

/* One tensor of the checkpoint. */
struct part {
    const struct weight_rule *rule;
    struct safetensors_tensor *stored; /* NULL: random */
    char name[ST_MAX_NAME];            /* without prefix */
    const struct quant_tensor *quant;  /* NULL: plain */
    bool transposed;                   /* stored as [cols, rows] */
    uint32_t rows, cols;               /* as stored; quantised: of bytes */
    struct span row, col;              /* this rank's part */
    uint32_t experts;                  /* W_EXPERTS: rows = experts * rows of one */
};

/* One struct tensor of the family: stacked parts, or the embedding again. */
struct field {
    struct tensor *to;
    uint32_t first, n_parts; /* 0: the embedding itself */
    uint32_t rows, cols;
    enum dtype dtype;
    bool in_place;
    bool stale;             /* in the arena, not yet filled */
    uint64_t offset, bytes; /* in the arena; bytes 0: not in the arena */
};

struct weights_plan {
    struct model *m;
    const struct weights_from *from;
    struct part *part;
    struct field *field;
    uint32_t n_parts, n_fields;
    uint64_t arena_bytes, weights_checksum_at; /* 0: every field is used in place */
    bool seal_bad;                             /* the adopted arena has an invalid checksum table */
};

/* The first element of this rank's part in the mapped file. */
const void *part_data(const struct part *q);
/* p's m and from must be set. Sets m's weight_bytes, dtype and act. The caller calls
 * weights_plan_done() also on failure. */
int weights_plan_make(struct weights_plan *p, struct err *e) MUST_USE;
void weights_plan_done(struct weights_plan *p);
