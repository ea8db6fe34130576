/* leak_check.h - reads and writes the KV memory that a worker leaves, unknown to worker and
 * lagand.
 *
 * Map it while the worker runs or is stopped; use it while the worker is stopped or after its
 * exit.
 */
#pragma once
#include "worker/manifest/manifest.h"

#include <sys/types.h>

struct remains {
    char *kv;
    uint64_t kv_bytes, manifest_bytes;
    struct manifest m;
    slice_id *entries; /* buffer for manifest_read() */
};

bool remains_open(struct remains *r, pid_t worker); /* false: it has no KV memory yet */
void remains_close(struct remains *r);
char *remains_block(const struct remains *r, uint32_t group, slice_id at, uint64_t *bytes);
/* Returns how many entries of a manifest entry are proven; some may be SLICE_NONE. */
uint32_t remains_proven(const struct remains *r, const struct manifest_found *f, uint32_t group);

/* Returns the block of a group that a prefix tree node names, or SLICE_NONE; label: 1 ..
 * m.h.n_nodes - 1. */
slice_id remains_labelled(const struct remains *r, uint32_t label, uint32_t group);
