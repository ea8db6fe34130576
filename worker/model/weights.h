/* weights.h - loads the weights of a model: fills every struct tensor that a line of the family's
 * weight table names ("field").
 *
 *     weight table + shape -> plan: fields, each of one or more stacked tensors of the checkpoint
 *     plan -> fingerprint  -> adopt and check the previous worker's arena, or make and fill one
 *
 * The CPU uses a field in place from the mapped file if it has one tensor of the wanted dtype with
 * aligned bytes. All other fields are in one arena, in plan order, 128-byte aligned. The
 * fingerprint covers all that determines the arena: table, shape, dtypes and files. */
#pragma once
#include "worker/model/model.h"
#include "worker/model/safetensors.h"

/* Arguments of weights_load() besides m's arch, shape, cfg, top, layer, encoder and files. */
struct weights_from {
    const struct model_source *src;
    const void *config; /* config.json's bytes, for the fingerprint */
    size_t config_bytes;
    enum dtype stored; /* random weights: dtype of config.json; used if src->dtype is DT_COUNT */
    int *fd;           /* src->weights_fd; becomes -1 if the arena is adopted */
};

/* Sets all fields; m's weights, fingerprint, weight_bytes, adopted and unused. */
int weights_load(struct model *m, const struct weights_from *from, struct err *e) MUST_USE;

/* Plans the weights without reading or allocating them: sets m's weight_bytes, dtype, act and
 * unused, and *arena_bytes to the size of the weights arena. */
int weights_inspect(struct model *m, const struct weights_from *from, uint64_t *arena_bytes,
                    struct err *e) MUST_USE;

/* Converts n elements between fp32, bf16, fp16. -ERANGE: a finite value exceeds fp16. */
int weights_convert(void *to, enum dtype to_type, const void *from, enum dtype from_type,
                    size_t n) MUST_USE;

/* load_lane.c: m->lane, the lane that loads a model. It is open while model_load() runs. */
int load_lane_open(struct model *m, struct err *e) MUST_USE;
void load_lane_close(struct model *m); /* waits for queued work; no effect if m->lane is NULL */
/* Queues a mark, a numbered point in the lane's queue. Returns its number, or a negative errno. */
int64_t load_lane_mark(struct model *m);
/* Waits for all work before the mark. what: the action in error messages, "fill weights". */
int load_lane_wait(const struct model *m, int64_t mark, const char *what, struct err *e) MUST_USE;
/* Waits for all queued work. r: result of queueing this work; if negative, fails with r at once. */
int load_lane_end(struct model *m, int r, const char *what, struct err *e) MUST_USE;
/* Waits for all queued work and ignores its result. */
void load_lane_drain(struct model *m);
