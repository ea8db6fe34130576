/* lane_wait.h - counts the steps in flight of each lane, collects finished steps, and puts an
 * engine loop (loop.c, rank_loop.c) to sleep until an event.
 *
 * Engine thread only. Does not read the contents of a step. */
#pragma once
#include "worker/sched/batch.h"
#include "worker/step_wait.h"
#include "worker/worker.h"

#include <poll.h>

enum { STEPS_IN_FLIGHT = 2 }; /* most steps of a lane: one runs, one is queued behind it */

struct worker_lane {
    struct batch *batch[STEPS_IN_FLIGHT]; /* index: step number % STEPS_IN_FLIGHT; rank 0 only */
    uint64_t started, finished;           /* number of the last step started, finished; from 1 */
    nsec since;                           /* start of the oldest step in flight */
    struct step_launch {                  /* index as batch[]; rank 0 only */
        nsec plan, queue;   /* time to plan the step, to queue its work on the device */
        uint32_t preempted; /* sequences that the plan preempted */
    } launch[STEPS_IN_FLIGHT];
    struct step_wait wait; /* predicts step durations; rank 0 only */
};

/* Returns the result of the oldest step in flight of lane number i; NULL: no step is in flight, or
 * the oldest still runs. The caller increments lane->finished after it has used the result.
 * result->status < 0: the device failed. */
const struct batch_result *lane_wait_finished(struct worker *w, const struct worker_lane *lane,
                                              unsigned i);

/* The events that end a sleep, in addition to the doorbell and the lanes. */
struct lane_wait {
    int fd[2];           /* eventfds that end the sleep; they are reset then; -1: none */
    nsec max_sleep;      /* longest sleep; 0: checks the events without sleeping */
    bool output_blocked; /* output ring is full: the peer rings the doorbell when it has space */
    /* Called after announcing the sleep to the peer, so no event is lost; true: do not sleep. */
    bool (*ready)(void *arg);
    void *arg;
};
/* Sleeps until the doorbell rings, a lane with an fd finishes a step, an fd is readable, or
 * max_sleep has passed. Returns 0, or -EPIPE if the doorbell's peer has closed. */
int lane_wait_sleep(struct worker *w, const struct lane_wait *f) MUST_USE;
