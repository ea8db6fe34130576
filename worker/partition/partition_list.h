/* partition_list.h - the partitions: divisions of the device units between prefill and decode.
 *
 * Partition 0 is no division: each lane may use the whole device. On the others prefill has the
 * first units and decode the rest. The device reports its possible divisions (gpu_parts()); the
 * list is short because each partition may cost device resources (streams, graphs). Pure.
 *
 *     units  |<-------- prefill -------->|<---- decode ---->|
 *
 * Source of the rounding: TensorRT-LLM's SM disaggregation, with the device's own numbers.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"

enum { MAX_PARTITIONS = 5 };

struct partition {
    uint32_t prefill_units, decode_units;
};
struct partition_list {
    uint32_t units, least,
        grain;  /* a part has >= least units; one of both is a multiple of grain */
    uint32_t n; /* 1: the device cannot be divided */
    struct partition partition[MAX_PARTITIONS];
};

/* Makes partition 0 and up to 4 others, from an equal division to more and more prefill units: a
 * multiple of grain, if that leaves `least` units for decode. */
void partition_list_make(struct partition_list *l, uint32_t units, uint32_t least, uint32_t grain);
/* The division nearest to that share of prefill. The part nearer to a multiple of grain is rounded
 * to one, within the limits of a part. l->n must be above 1. */
struct partition partition_list_share(const struct partition_list *l, double share);
/* Parses split.context_sm: units ("64"), or a share, which has a decimal point ("0.5"); empty: 0.5.
 * Adds the partition to the list; *ret is its index, or 0 for a share of 1 or more. */
int partition_list_fixed(struct partition_list *l, const char *text, unsigned *ret,
                         struct err *e) MUST_USE;
/* Adds exactly this partition to the list, in place of the last one if the list is full; *ret is
 * its index. -EINVAL: the device has no such division; the message names the nearest. */
int partition_list_set(struct partition_list *l, uint32_t prefill, uint32_t decode, unsigned *ret,
                       struct err *e) MUST_USE;
