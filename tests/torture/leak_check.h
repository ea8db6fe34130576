/* leak_check.h - what a worker leaves of its KV: looked at, and written to, behind everybody's back.
 *
 * Mapped while it lives, or stands still; worth looking at when it is dead, or stands still.
 */
#ifndef TESTS_TORTURE_LEAK_CHECK_H
#define TESTS_TORTURE_LEAK_CHECK_H

#include "worker/manifest/manifest.h"

#include <sys/types.h>

struct remains {
    char *kv;
    uint64_t kv_bytes, manifest_bytes;
    struct manifest m;
    slice_id *room; /* for manifest_read() */
};

bool remains_open(struct remains *r, pid_t worker); /* false: it has none yet */
void remains_close(struct remains *r);
char *remains_block(const struct remains *r, uint32_t group, slice_id at, uint64_t *bytes);
/* How many of a row's entries hold something that it proves; some may be SLICE_NONE. */
uint32_t remains_proven(const struct remains *r, const struct manifest_found *f, uint32_t group);

/* The block of a group that a label of what may be found names, or SLICE_NONE; label from 1 to below m.h.n_nodes. */
slice_id remains_labelled(const struct remains *r, uint32_t label, uint32_t group);

#endif
