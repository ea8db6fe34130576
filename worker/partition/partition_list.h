/* partition_list.h - the ways in which a device is divided between prompts and answers: partitions.
 *
 * Rung 0 is no division: whoever works has the whole device. On every other partition prompts have the first units and
 * answers the rest. What a device can be divided into it says itself (gpu_parts()); few partitions are kept, because each of
 * them may cost the device something (streams, graphs). Pure.
 *
 *     units  |<-------- context -------->|<-- generation -->|
 *
 * Source of the rounding: TensorRT-LLM's SM disaggregation, with the device's own numbers.
 */
#ifndef PARTITION_LIST_H
#define PARTITION_LIST_H

#include "base/base.h"
#include "base/err.h"

enum { MAX_PARTITIONS = 5 };

struct partition {
    uint32_t prefill_units, decode_units;
};
struct partition_list {
    uint32_t units, least,
        grain;  /* a part has `least` or more; one of the two is a multiple of grain */
    uint32_t n; /* 1: the device cannot be divided */
    struct partition partition[MAX_PARTITIONS];
};

/* Rung 0, and up to four others from an even division on, in which prompts have more and more: a multiple of grain,
 * where that leaves the least. */
void partition_list_make(struct partition_list *l, uint32_t units, uint32_t least, uint32_t grain);
/* The division nearest to that share for prompts: of the two parts the one that is nearer to a multiple of grain
 * becomes one, within what a part must have. The partition_list has more than one partition. */
struct partition partition_list_share(const struct partition_list *l, double share);
/* split.context_sm: units ("64"), or a share, which has a point ("0.5"); empty: half. *ret is a partition of the partition_list
 * from then on. 0: no division, because the share is 1 or more. */
int partition_list_fixed(struct partition_list *l, const char *text, unsigned *ret,
                         struct err *e) MUST_USE;
/* The partition of exactly these parts, which is one of the partition_list from then on: where it is full it takes the last one's
 * place. -EINVAL: the device has no such division, and what is nearest. */
int partition_list_set(struct partition_list *l, uint32_t context, uint32_t generation,
                       unsigned *ret, struct err *e) MUST_USE;

#endif
