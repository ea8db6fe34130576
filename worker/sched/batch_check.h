/* batch_check.h - a batch that another process wrote: it asks for nothing that is not there.
 *
 * batch_unpack() sees to it that its parts fit together; this, that they fit a worker: whoever runs it then reads and writes
 * no row, table, block or state but those that there are. Of one's own scheduler that is so.
 */
#ifndef SCHED_BATCH_CHECK_H
#define SCHED_BATCH_CHECK_H

#include "worker/sched/batch.h"

struct batch_limits {
    const struct kv_config
        *kv; /* groups as model_groups() left them; n_slots; bytes of both tiers */
    uint32_t n_lanes, n_partitions;
    uint32_t max_tokens, max_enc_tokens; /* of a step */
    uint32_t vocab, max_len, max_source, n_enc_layers;
    const uint32_t *bucket; /* [n_buckets] that a graph may have */
    uint32_t n_buckets;
};

/* -EBADMSG: the first thing that is not there, by name. */
int batch_check(const struct batch *b, const struct batch_limits *w, struct err *e) MUST_USE;

#endif
