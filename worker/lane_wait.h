/* lane_wait.h - shared by both engine loops (loop.c, rank_loop.c): the steps in flight of each
 * lane, collecting a finished step, and the loop's sleep.
 *
 * Engine thread only. Does not read the contents of a step.
 */
#pragma once

#include "worker/sched/batch.h"
#include "worker/step_wait.h"
#include "worker/worker.h"

#include <poll.h>

enum { STEPS_IN_FLIGHT = 2 }; /* per lane: one runs, one is queued behind it */

struct worker_lane {
    struct batch *batch[STEPS_IN_FLIGHT]; /* by step % STEPS_IN_FLIGHT; rank 0 only */
    uint64_t started, finished;           /* step numbers, from 1 */
    nsec since;                           /* launch of the oldest step in flight */
    struct step_wait wait;                /* predicts step durations; rank 0 only */
};

/* Returns the result of the oldest step in flight of a lane, or NULL if no step is in flight or the
 * step still runs. The caller advances lane->finished after it has used the result. result->status
 * < 0: the device failed. */
const struct batch_result *lane_wait_finished(struct worker *w, const struct worker_lane *lane,
                                              unsigned i);

/* Events, besides doorbell and lanes, that end a sleep. */
struct lane_wait {
    int fd[2];                /* eventfds, reset when they are readable; -1: none */
    nsec max_sleep;           /* 0: poll once */
    bool output_blocked;      /* ring the doorbell when the output ring has free space */
    bool (*ready)(void *arg); /* returns true: do not sleep; called after the doorbell is armed */
    void *arg;
};
/* Sleeps until the doorbell rings, a lane with an fd finishes a step, an fd is readable, or
 * max_sleep has passed. Returns 0, or -EPIPE if the doorbell's peer has closed. */
int lane_wait_sleep(struct worker *w, const struct lane_wait *f) MUST_USE;
