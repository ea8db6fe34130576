/* weights.h - from a family's weight table to tensors on the device.
 *
 *     weight table + shape -> plan: fields, each of one or more stacked tensors of the checkpoint
 *     plan -> fingerprint -> a predecessor's arena is taken over and looked through, or one is made and filled
 *
 * A field of one tensor whose dtype is as wanted and whose bytes lie well in the mapped file is used
 * there (CPU). All others lie in one arena, in the order of the plan, each on 128 bytes: the layout follows
 * from the table, the shape, the dtypes and the files, all of which the fingerprint covers.
 */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "worker/model/model.h"
#include "worker/model/safetensors.h"

/* What weights_load() needs besides m's arch, shape, cfg, top, layer, encoder and files (NULL: random). */
struct weights_from {
    const struct model_source *src;
    const void *config; /* config.json's bytes, for the fingerprint */
    size_t config_bytes;
    enum dtype stored; /* random: what "as stored" means */
    int *fd;           /* src->weights_fd; -1 once the arena has it */
};

/* Fill every tensor of top, layer and encoder; m's weights, fingerprint, weight_bytes, adopted, unused. */
int weights_load(struct model *m, const struct weights_from *from, struct err *e) MUST_USE;

/* What weights_load() would fill, without a tensor read or memory for one: m's weight_bytes, dtype, act and unused, and
 * the arena's size. */
int weights_inspect(struct model *m, const struct weights_from *from, uint64_t *arena_bytes,
                    struct err *e) MUST_USE;

/* n elements from one of fp32, bf16, fp16 to another, or the same. -ERANGE: a finite value is beyond
 * what fp16 holds. */
int weights_convert(void *to, enum dtype to_type, const void *from, enum dtype from_type,
                    size_t n) MUST_USE;

#endif
