/* batch_check.h - checks that a batch of another process fits this worker.
 *
 * batch_unpack() checks that the parts of a batch fit each other; batch_check() checks them against
 * the worker's limits. After both, execution cannot read or write a slot, table entry, block or
 * encoder state that does not exist. Batches of the worker's own scheduler need no check.
 */
#pragma once

#include "worker/sched/batch.h"

struct batch_limits {
    const struct kv_config *kv; /* groups of model_groups(), n_slots, bytes of both tiers */
    uint32_t n_lanes, n_partitions;
    uint32_t max_tokens, max_enc_tokens; /* decoder and encoder tokens of a step */
    uint32_t vocab, max_len, max_source, n_enc_layers;
    const uint32_t *bucket; /* [n_buckets] graph sizes */
    uint32_t n_buckets;
};

/* -EBADMSG: the message names the first part that is out of range, with its numbers. */
int batch_check(const struct batch *b, const struct batch_limits *w, struct err *e) MUST_USE;
