/* weights_plan.h - plans which tensors of the checkpoint fill which struct tensor of the family,
 * and at which offset of the weights arena.
 *
 * A field is one struct tensor of the family. A line of the weight table and the W_STACKED lines
 * after it form one field; each line contributes a part, which is a tensor of the checkpoint or
 * this rank's rows and columns of it. A quantised line forms one field for each stored tensor
 * (quant.h). Fields that are not used in place are in the arena in table order, 128-byte aligned;
 * the checksum table (weights_checksum.c) follows the last field. */
#pragma once
#include "worker/model/quant.h"
#include "worker/model/sharding.h"
#include "worker/model/weights.h"

struct part {
    const struct weight_rule *rule;    /* the line of the weight table */
    struct safetensors_tensor *stored; /* NULL: random */
    char name[ST_MAX_NAME];            /* without prefix */
    const struct quant_tensor *quant;  /* NULL: plain */
    bool transposed;                   /* stored as [cols, rows] */
    uint32_t rows, cols;               /* of the whole tensor; quantised: cols counts bytes */
    struct span row, col;              /* the rows and columns of this rank */
    uint32_t experts;                  /* W_EXPERTS: number of experts, rows / experts each */
};

struct field {
    struct tensor *to;
    uint32_t first, n_parts; /* range of weights_plan.part; n_parts 0: *to is a copy of embed */
    uint32_t rows, cols;
    enum dtype dtype;
    bool in_place;          /* *to points into the mapped file */
    bool stale;             /* its bytes in the arena are not valid yet */
    uint64_t offset, bytes; /* in the arena; bytes 0: not in the arena */
};

struct weights_plan {
    struct model *m;
    const struct weights_from *from;
    struct part *part;
    struct field *field;
    uint32_t n_parts, n_fields;
    /* Size of the arena, 0 if every field is used in place; offset of the checksum table in it. */
    uint64_t arena_bytes, weights_checksum_at;
    bool table_bad; /* the adopted arena has an invalid checksum table */
};

/* Returns the address of the first element of this rank's rows and columns in the mapped file. */
const void *part_data(const struct part *q);
/* Plans p->m's fields; sets its weight_bytes, dtype and act. weights_plan_done() must follow. */
int weights_plan_make(struct weights_plan *p, struct err *e) MUST_USE;
void weights_plan_done(struct weights_plan *p);

/* fingerprint.c: sets m->fingerprint and m->checkpoint. */
int fingerprint_make(struct model *m, const struct weights_from *from, struct err *e) MUST_USE;

/* weights_fill.c: writes stale fields and their checksums to m->weights, through m->lane. */
int weights_fill(const struct weights_plan *p, struct err *e) MUST_USE;

/* weights_checksum.c: the checksum table at the end of a weights arena. Returns its size. */
uint64_t weights_checksum_bytes(uint32_t n_fields);
/* Writes an incomplete table into an arena that will be filled. Queues on m->lane and waits. */
int weights_checksum_begin(const struct weights_plan *p, struct err *e) MUST_USE;
/* Queues the computation of a filled field's checksum into the table. */
int weights_checksum_field(const struct weights_plan *p, uint32_t field);
/* Marks the table complete, after the last field. */
int weights_checksum_end(const struct weights_plan *p, struct err *e) MUST_USE;
/* Checks every field of an adopted arena and marks fields with a wrong checksum as stale, or all
 * fields if the table itself is invalid. Returns the number of stale fields. */
int weights_checksum_check(struct weights_plan *p, struct err *e) MUST_USE;
/* weights_checksum_keep() copies the checksums of a complete arena to m->weights_checksum.
 * weights_checksum_again() computes all checksums and returns how many differ from this copy. */
int weights_checksum_keep(const struct weights_plan *p, struct err *e) MUST_USE;
int weights_checksum_again(struct model *m, struct err *e) MUST_USE;
