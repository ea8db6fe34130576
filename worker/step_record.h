/* step_record.h - writes one record of each committed step into shared memory (ipc/shm.h), from
 * which lagand makes `laganctl steps`. Engine thread only; never blocks and never allocates. */
#pragma once
#include "worker/lane_wait.h"

struct seq;

/* Writes the record of step b, which was committed at `now` and took `took` on the device. seq[i]:
 * sequence of segment i, NULL if it has ended. */
void step_record_put(struct worker *w, const struct batch *b, struct seq *const *seq,
                     const struct step_launch *launch, nsec took, nsec now);
