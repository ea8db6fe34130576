/* ladder.h - the ways in which a device is divided between prompts and answers: rungs.
 *
 * Rung 0 is no division: whoever works has the whole device. On every other rung prompts have the first units and
 * answers the rest. What a device can be divided into it says itself (gpu_parts()); few rungs are kept, because each of
 * them may cost the device something (streams, graphs). Pure.
 *
 *     units  |<-------- context -------->|<-- generation -->|
 *
 * Source of the rounding: TensorRT-LLM's SM disaggregation, with the device's own numbers.
 */
#ifndef SCHED_LADDER_H
#define SCHED_LADDER_H

#include "base/base.h"
#include "base/err.h"

enum { MAX_RUNGS = 5 };

struct rung {
    uint32_t context, generation; /* units */
};
struct ladder {
    uint32_t units, least,
        grain;  /* a part has `least` or more; one of the two is a multiple of grain */
    uint32_t n; /* 1: the device cannot be divided */
    struct rung rung[MAX_RUNGS];
};

/* Rung 0, and up to four others from an even division on, in which prompts have more and more: a multiple of grain,
 * where that leaves the least. */
void ladder_make(struct ladder *l, uint32_t units, uint32_t least, uint32_t grain);
/* The division nearest to that share for prompts: of the two parts the one that is nearer to a multiple of grain
 * becomes one, within what a part must have. The ladder has more than one rung. */
struct rung ladder_share(const struct ladder *l, double share);
/* split.context_sm: units ("64"), or a share, which has a point ("0.5"); empty: half. *ret is a rung of the ladder
 * from then on. 0: no division, because the share is 1 or more. */
int ladder_fixed(struct ladder *l, const char *text, unsigned *ret, struct err *e) MUST_USE;
/* The rung of exactly these parts, which is one of the ladder from then on: where it is full it takes the last one's
 * place. -EINVAL: the device has no such division, and what is nearest. */
int ladder_set(struct ladder *l, uint32_t context, uint32_t generation, unsigned *ret,
               struct err *e) MUST_USE;

#endif
