/* step_wait.h - when will a lane's step be done: how long to sleep, when to look.
 *
 * A device without an fd does not wake us: somebody has to look. Looking all the time costs a core,
 * sleeping past the end costs latency. So one struct step_wait a lane keeps, by kind of work and
 * number of rows, how long steps took of late and by how much that was wrong; step_wait_next()
 * turns it into "sleep until" or "look from now on until". The longer a step is overdue the more
 * seldom it is looked at: a wrong prediction, or none, never burns the core. Pure: no clock, no
 * device.
 *
 *     |<--- sleep --->|<-- naps -->|<- look ->|<- late: naps of an eighth of what it is late ->
 *   since       end - 2 off   end - margin  end + margin
 *
 * No sleep or nap is longer than a millisecond, a hundredth of a core: predictions may be wrong.
 *
 * off is how far predictions are off of late; the margin is as much, but a tenth of the step at
 * most.
 */
#ifndef WORKER_STEP_WAIT_H
#define WORKER_STEP_WAIT_H

#include "base/base.h"

/* Kinds of work: any mask of WORK_*. Sizes: four an octave of rows. */
enum { STEP_WAIT_WORK = 8, STEP_WAIT_SIZES = 80 };

struct step_wait_estimate {
    float ns;  /* running mean of the duration; 0: no step yet */
    float off; /* running mean of how far the duration was from what was predicted */
    uint8_t n; /* steps so far, up to 2 */
};

struct step_wait {
    struct step_wait_estimate estimate[STEP_WAIT_WORK][STEP_WAIT_SIZES];
};

/* A step of such work and rows took so long. seen: we looked while it ended; else, where it is
 * less than was predicted, it was done when we came, up to a nap ago, and is taken for shorter
 * than it seemed. The first of its kind makes what is made once and says nothing of the next. */
void step_wait_learn(struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec took,
                     bool observed);

/* How much longer a step will take that began at since; 0: it should be done; -1: nobody knows. */
nsec step_wait_left(const struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec since,
                    nsec now);

struct step_wait_next {
    nsec until; /* sleep, or look, until then; a look that found nothing asks again */
    bool poll;
};
/* The oldest step of the lane began at since. */
struct step_wait_next step_wait_next(const struct step_wait *p, uint8_t work, uint32_t n_tokens,
                                     nsec since, nsec now);

#endif
