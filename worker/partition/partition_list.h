/* partition_list.h - the partitions: divisions of the device units between prefill and decode.
 *
 * Partition 0 divides nothing: each lane may use all units. On the others prefill has the first
 * units and decode the rest; each of these two ranges is called a part. The device reports which
 * divisions are possible (struct gpu_parts). The list is short because each partition may cost
 * device resources (streams, graphs). Pure.
 *
 *     units  |<------ prefill part ------>|<-- decode part -->|
 *
 * partition_list_share() rounds as TensorRT-LLM's SM disaggregation, with this device's limits.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum { MAX_PARTITIONS = 5 };

struct partition {
    uint32_t prefill_units, decode_units;
};
struct partition_list {
    uint32_t units, least, grain; /* a part has >= least units; one part has a multiple of grain */
    uint32_t n;                   /* 1: only partition 0 is possible */
    struct partition partition[MAX_PARTITIONS];
};

/* Fills the list with partition 0 and up to 4 others, from equal parts to a prefill part of 7/8 of
 * the units. The prefill part is a multiple of grain where that leaves `least` units for decode. */
void partition_list_make(struct partition_list *l, uint32_t units, uint32_t least, uint32_t grain);
/* Returns the possible division whose prefill part is nearest to this share of the units. The
 * prefill or the decode part, whichever is nearer to a multiple of grain, is rounded to that
 * multiple, within the limits. l->n must be above 1. */
struct partition partition_list_share(const struct partition_list *l, double share);
/* Parses split.context_sm, the size of the prefill part, and adds its partition: units ("64"), or a
 * share with a decimal point ("0.5"); empty: 0.5. *ret is its index; 0 for a share of 1 or more. */
int partition_list_fixed(struct partition_list *l, const char *text, unsigned *ret,
                         struct err *e) MUST_USE;
/* Adds exactly this partition to the list, in place of the last one if the list is full. *ret is
 * its index. -EINVAL: the device cannot be divided so; e names the nearest division. */
int partition_list_set(struct partition_list *l, uint32_t prefill, uint32_t decode, unsigned *ret,
                       struct err *e) MUST_USE;
