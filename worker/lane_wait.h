/* lane_wait.h - what both engine loops (loop.c, rank_loop.c) share: the lanes' steps in flight,
 * their end, the sleep.
 *
 * Engine thread only. Nothing here decides what a step does.
 */
#ifndef WORKER_LANE_WAIT_H
#define WORKER_LANE_WAIT_H

#include "worker/sched/batch.h"
#include "worker/step_wait.h"
#include "worker/worker.h"

#include <poll.h>

enum { STEPS_IN_FLIGHT = 2 }; /* of a lane: one runs, one is queued behind it */

struct worker_lane {
    struct batch *batch[STEPS_IN_FLIGHT]; /* by step % STEPS_IN_FLIGHT; rank 0 only */
    uint64_t started, finished;           /* step numbers, from 1 */
    nsec since;                           /* launch of the oldest step in flight */
    struct step_wait wait;                /* how long steps took; rank 0 only */
};

/* Result of the oldest step in flight of a lane, or NULL: none is in flight, or the step still
 * runs. The caller advances lane->finished once it has used the result. result->status < 0: the
 * device failed. */
const struct batch_result *lane_wait_finished(struct worker *w, const struct worker_lane *lane,
                                              unsigned i);

/* What else ends a sleep. */
struct lane_wait {
    int fd[2];                /* -1: none; eventfds, which are reset when they are readable */
    nsec max_sleep;           /* ns; 0: only look */
    bool output_blocked;      /* the doorbell is wanted when the output ring has free space */
    bool (*ready)(void *arg); /* true: do not sleep; asked after the doorbell is armed */
    void *arg;
};
/* Sleeps until the doorbell rings, a lane with an fd finishes a step, an fd is readable, or
 * `max_sleep` has passed. Returns 0, or -EPIPE if the peer of the doorbell is gone. */
int lane_wait_sleep(struct worker *w, const struct lane_wait *f) MUST_USE;

#endif
