/* step_wait.h - predicts when a lane's step ends, to decide when to sleep and when to poll.
 *
 * A device without an fd does not wake the loop, so the loop must poll it. Polling continuously
 * costs a core; sleeping past the end of a step costs latency. One struct step_wait per lane
 * therefore keeps running means of step durations and of prediction errors, by kind of work and
 * number of batched tokens. step_wait_next() converts them to "sleep until" or "poll until". The
 * later a step is, the less often it is polled: a wrong prediction never uses a whole core.
 *
 *     |<--- sleep --->|<-- naps -->|<- poll ->|<- late: naps of 1/8 of the delay ->
 *   since       end - 2 off   end - margin  end + margin
 *
 * A sleep or nap lasts at most 1 ms, because predictions may be wrong; waking once per ms costs 1 %
 * of a core. off is the mean prediction error; margin is 2 x off, at most 10 % of the step. */
#pragma once
#include "base/base.h"

/* Number of estimates: for each mask of WORK_* bits, 4 sizes per power of 2 of batched tokens. */
enum { STEP_WAIT_WORK = 8, STEP_WAIT_SIZES = 80 };

struct step_wait_estimate {
    float ns;  /* running mean of the duration; 0: no step measured yet */
    float off; /* running mean of the prediction error */
    uint8_t n; /* steps measured so far, at most 2 */
};

struct step_wait {
    struct step_wait_estimate estimate[STEP_WAIT_WORK][STEP_WAIT_SIZES];
};

/* Records that a step of this work and n_tokens took `took`. observed: the loop polled while the
 * step ended; if not, and `took` is below the prediction, records a shorter duration, because the
 * step ended up to one nap earlier. The first step of its work and size does not count. */
void step_wait_learn(struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec took,
                     bool observed);

/* Returns the predicted rest of a step that started at `since`; 0: it should have ended; -1: no
 * step of this work and size has been measured. */
nsec step_wait_left(const struct step_wait *p, uint8_t work, uint32_t n_tokens, nsec since,
                    nsec now);

struct step_wait_next {
    nsec until; /* the loop sleeps or polls until this time, then calls step_wait_next() again */
    bool poll;  /* true: poll; false: sleep */
};
/* Returns whether to sleep or poll now. since: start of the oldest step in flight of the lane. */
struct step_wait_next step_wait_next(const struct step_wait *p, uint8_t work, uint32_t n_tokens,
                                     nsec since, nsec now);
