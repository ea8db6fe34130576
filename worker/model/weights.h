/* weights.h - loads the tensors of a family's weight table.
 *
 *     weight table + shape -> plan: fields, each of one or more stacked tensors of the checkpoint
 *     plan -> fingerprint  -> adopt and check the previous worker's arena, or make and fill one
 *
 * The CPU uses a field in place from the mapped file if it has one tensor of the wanted dtype with
 * aligned bytes. All other fields are in one arena, in plan order, 128-byte aligned. The
 * fingerprint covers everything that determines this layout: the table, the shape, the dtypes and
 * the files.
 */
#pragma once

#include "worker/model/model.h"
#include "worker/model/safetensors.h"

/* Arguments of weights_load() besides m's arch, shape, cfg, top, layer, encoder and files (NULL:
 * random). */
struct weights_from {
    const struct model_source *src;
    const void *config; /* config.json's bytes, for the fingerprint */
    size_t config_bytes;
    enum dtype stored; /* random weights: the dtype that stands for "as stored" */
    int *fd;           /* src->weights_fd; -1 after the arena was adopted */
};

/* Sets every tensor of top, layer and encoder, and m's weights, fingerprint, weight_bytes, adopted
 * and unused. */
int weights_load(struct model *m, const struct weights_from *from, struct err *e) MUST_USE;

/* The same without reading or allocating tensors: sets m's weight_bytes, dtype, act and unused, and
 * *arena_bytes. */
int weights_inspect(struct model *m, const struct weights_from *from, uint64_t *arena_bytes,
                    struct err *e) MUST_USE;

/* Converts n elements between fp32, bf16 and fp16. -ERANGE: a finite value is out of range for
 * fp16. */
int weights_convert(void *to, enum dtype to_type, const void *from, enum dtype from_type,
                    size_t n) MUST_USE;
