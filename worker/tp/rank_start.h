/* rank_start.h - what a rank above 0 exchanges with rank 0 while it loads (the left column of the
 * picture in plan_ring.h).
 *
 * Loader thread only. Negative errno: the plan ring is corrupt (-EBADMSG) or closed.
 */
#pragma once

#include "base/err.h"
#include "worker/tp/plan_ring.h"
#include "worker/worker.h"

/* Sends version, settings and checkpoint; does not wait for a reply. */
int rank_start_join(struct worker *w, struct err *e) MUST_USE;
/* Sends the ids of the previous worker's KV memory and host tier that this rank has; ids of 0:
 * none. Does not wait. */
int rank_start_left(struct worker *w, const struct plan_ring_left *left, struct err *e) MUST_USE;
/* Blocks until rank 0 has sent the id and size of its KV memory. */
int rank_start_kv(struct worker *w, struct plan_ring_kv *kv, struct err *e) MUST_USE;
/* Reports that this rank can run steps. */
int rank_start_ready(struct worker *w, struct err *e) MUST_USE;
