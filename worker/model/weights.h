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

/* load_lane.c: m->lane, the lane that loads a model, open while model_open() runs. */
int load_lane_open(struct model *m, struct err *e) MUST_USE;
void load_lane_close(struct model *m); /* waits; no effect if the lane is not open */
/* Marks the queued work. Returns the number for load_lane_wait(), or a negative errno. */
int64_t load_lane_mark(struct model *m);
/* Waits until the mark is done. what: the action in error messages, "fill weights". */
int load_lane_wait(const struct model *m, int64_t mark, const char *what, struct err *e) MUST_USE;
/* Marks and waits; if r < 0 (queueing failed), returns that error. */
int load_lane_end(struct model *m, int r, const char *what, struct err *e) MUST_USE;
/* Waits for the queued work and ignores its result. */
void load_lane_drain(struct model *m);
