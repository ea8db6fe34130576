/* health.h - writes to shared memory what lagand observes of a worker: heartbeat, phase,
 * statistics, the trace of its last launched steps, panic message. */
#pragma once
#include "base/base.h"
#include "ipc/shm.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

/* Installs signal handlers. A fatal signal or a failed check() writes a panic message to *w before
 * the process ends; SIGUSR2 writes one and the process continues. */
void health_arm(const struct shm *w);
/* Sets what the worker is doing, and when it is overdue; deadline 0: it may take any time. */
void health_phase(struct worker *w, enum worker_phase phase, nsec deadline);
/* Updates the heartbeat and the statistics. Call once per loop iteration. */
void health_heartbeat(struct worker *w, nsec now);
/* Record a step in the trace: before it is launched, and when it was collected from the device. */
void health_launch(struct worker *w, const struct batch *b);
void health_retire(unsigned lane, uint64_t step);
