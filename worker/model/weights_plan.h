/* weights_plan.h - where each tensor of a checkpoint goes: the weight table with its sizes worked out.
 *
 * A line and those stacked under it are a field: one struct tensor of the family's, made of parts, each a
 * tensor of the checkpoint. Fields that are not used in place lie in the arena in the order of the table,
 * each on 128 bytes, and the weights_checksum (weights_checksum.h) after the last.
 */
#ifndef MODEL_WEIGHTS_PLAN_H
#define MODEL_WEIGHTS_PLAN_H

#include "worker/model/sharding.h"
#include "worker/model/weights.h"

/* One tensor of the checkpoint. */
struct part {
    const struct weight_rule *rule;
    struct safetensors_tensor *stored; /* NULL: random */
    char name[ST_MAX_NAME];            /* without a prefix */
    uint32_t rows, cols;               /* as stored; W_FP4, W_E8M0: of bytes */
    struct span row, col;              /* our part of them */
    uint32_t experts;                  /* W_EXPERTS: rows are theirs, one below the other */
};

/* One struct tensor of the family: parts stacked, or another field. */
struct field {
    struct tensor *to;
    uint32_t first, n_parts; /* 0: the embedding itself */
    uint32_t rows, cols;
    enum dtype dtype;
    bool in_place;
    bool stale;             /* in the arena, and to be filled */
    uint64_t offset, bytes; /* in the arena; bytes 0: not there */
};

struct weights_plan {
    struct model *m;
    const struct weights_from *from;
    struct part *part;
    struct field *field;
    uint32_t n_parts, n_fields;
    uint64_t arena_bytes, weights_checksum_at; /* 0: everything is used in place */
    bool seal_bad;                             /* an adopted arena's is not ours */
};

/* Our first element of it in the mapped file. */
const void *part_data(const struct part *q);
/* m and from are set. m's weight_bytes, dtype and act follow. weights_plan_done() in any case. */
int weights_plan_make(struct weights_plan *p, struct err *e) MUST_USE;
void weights_plan_done(struct weights_plan *p);

#endif
