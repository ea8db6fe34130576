/* host_tier.h - the host tier's memory: made before READY, in pieces that are mapped as they are used.
 *
 * To map 32 GiB takes a GPU's driver a third of a second, which nobody's stream shall wait for, and what is mapped
 * costs a death 2 ms a GiB (docs/perf.md), for which its successor does. So of a new tier the first piece is mapped, and
 * the next one whenever half of the last is in use. A predecessor's, where there is one of the right size, is handed up
 * at once and mapped as far as it was used, behind the resumed work: on the loader's thread, once the first step is
 * over. Until then the KV manager does without it (kv_host_away()), what lies in it stays, and a paused stream of the
 * predecessor's that has something there waits for it.
 * A group's ranks, which copy what rank 0 plans, have all of it before they are ready.
 */
#ifndef WORKER_HANDOVER_HOST_TIER_H
#define WORKER_HANDOVER_HOST_TIER_H

#include "base/base.h"
#include "base/err.h"
#include "ipc/hand.h"
#include "worker/worker.h"

void host_tier_begin(struct engine *n); /* nothing was found yet */
/* Loader: a piece of a predecessor's, whose fd is ours then. false: it is something else, and stays the caller's. */
bool host_tier_take(struct engine *n, const struct hand_note *note, int fd);
/* Loader, before kv_init(): there is none, it is made, or it comes later. */
int host_tier_open(struct worker *w, struct err *e) MUST_USE;
/* Loader, once it says whose it is: hand it up, there or not yet. */
int host_tier_give(struct worker *w, struct err *e) MUST_USE;
/* What a predecessor of that KV memory had in it will be there. */
bool host_tier_keeps(const struct engine *n);
/* Engine, before a turn's steps are planned: begin to map some of it, or use that. */
void host_tier_turn(struct worker *w, nsec now);
/* Engine: how long to sleep, `most` at most. Somebody may wait for the tier. */
nsec host_tier_sleep(const struct worker *w, nsec now, nsec most);
void host_tier_close(struct worker *w); /* wait for who maps it */

#endif
