/* tier.h - the host tier's memory: made before READY, but a predecessor's is mapped behind the resumed work.
 *
 * To map 32 GiB takes a GPU's driver a third of a second (docs/perf.md), which nobody's stream shall wait for. So
 * where there is a predecessor's of the right size, it is handed up at once and mapped on the loader's thread once
 * the first step is over. Until then the KV manager does without it (kv_host_away()), what lies in it stays, and a
 * paused stream of the predecessor's that has something there waits for it.
 * A group's ranks, which copy what rank 0 plans, have it before they are ready.
 */
#ifndef WORKER_TIER_H
#define WORKER_TIER_H

#include "base/base.h"
#include "base/err.h"
#include "worker/worker.h"

/* Loader, before kv_init(): there is none, it is made, or it comes later. */
int tier_open(struct worker *w, struct err *e) MUST_USE;
/* Loader, once it says whose it is: hand it up, there or not yet. */
int tier_give(struct worker *w, struct err *e) MUST_USE;
/* What a predecessor of that KV memory had in it will be there. */
bool tier_keeps(const struct engine *n);
/* Engine, before a turn's steps are planned: begin to map it, or use it. */
void tier_turn(struct worker *w, nsec now);
/* Engine: how long to sleep, `most` at most. Somebody may wait for the tier. */
nsec tier_sleep(const struct worker *w, nsec now, nsec most);
void tier_close(struct worker *w); /* wait for who maps it */

#endif
