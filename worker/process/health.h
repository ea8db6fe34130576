/* health.h - what lagand sees of us from outside: beat, phase, statistics, step trace, last
 * words. */
#ifndef WORKER_PROCESS_HEALTH_H
#define WORKER_PROCESS_HEALTH_H

#include "base/base.h"
#include "ipc/shm.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

/* Signals that end us leave a report in W first; SIGUSR2 leaves one and goes on. check() too. */
void health_arm(const struct shm *w);
void health_phase(struct worker *w, enum worker_phase phase, nsec deadline); /* 0: none */
void health_heartbeat(struct worker *w, nsec now);                           /* once a turn */
void health_launch(struct worker *w, const struct batch *b); /* before the step is launched */
void health_retire(struct worker *w, unsigned lane, uint64_t step);

#endif
