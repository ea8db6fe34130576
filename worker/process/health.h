/* health.h - what lagand observes of a worker: heartbeat, phase, statistics, step trace, panic
 * message.
 */
#pragma once

#include "base/base.h"
#include "ipc/shm.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

/* Installs handlers. A fatal signal or a failed check() writes a panic message to W before the
 * process ends; SIGUSR2 writes one and the process continues. */
void health_arm(const struct shm *w);
void health_phase(struct worker *w, enum worker_phase phase, nsec deadline); /* deadline 0: none */
/* once per loop iteration */
void health_heartbeat(struct worker *w, nsec now);
void health_launch(struct worker *w, const struct batch *b); /* before the step is launched */
void health_retire(unsigned lane, uint64_t step);
