/* standby.h - a process that waits beside a worker, to take its place the moment it has died.
 *
 * It has the tokenizer, the model's files open, and rings of its own that nobody has used. Told to begin, it takes what it needs of the
 * device: a context, the weights, scratch. What it lacks then, until its worker's pidfd is readable, are the arenas that the
 * worker writes, and a word to go on.
 *
 *     worker READY for a while -> one is made, and another behind it when it has been taken and is READY so long
 *         standby: 1            100 ms: it begins
 *         standby: 0, on a GPU  10 ms: its driver is up, and nothing else of it is taken: "driver up"
 *         standby: 0, the CPU   none is made
 *     worker's hand ends and it does not -> one is made if there is none, and it begins: a driver needs time for both
 *     worker leaves, is restarted or replaced, or its memory is given up -> the standby is ended
 *     worker dies otherwise -> worker_spawn() takes the standby, ready or not, instead of a new process
 *
 * A GPU's driver takes 100 ms to come up where no process has it up and 11 beside one that has, and 100 more to reap its last
 * user: so there is always another. The CPU has nothing to bring up, and its dead are reaped within a millisecond.
 *
 * It is a struct worker without requests, its `of` the one it waits for: the same start, heart, log and
 * table (supervisor.h), and its own count of deaths. Of a group it is one (rank_group.h), and takes the places of all its ranks.
 */
#ifndef DAEMON_SUPERVISE_STANDBY_H
#define DAEMON_SUPERVISE_STANDBY_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/supervise/supervisor.h"
#include "daemon/supervise/worker.h"

/* What it is now, for people and programs: a state's word, "driver up", or "" where there is none. */
const char *standby_word(const struct worker *s, enum super_state state);

int standby_new(struct worker *w, struct err *e) MUST_USE;
struct worker *standby_free(struct worker *s);
/* Its worker has moved: is one wanted now? */
void standby_worker_state(struct worker *w, enum super_state to);
/* Its worker's hand has ended: it dies, or so it seems. One is made if there is none, and begins. */
void standby_prepare_now(struct worker *w);
/* A standby that is being made: is it to begin at once? */
bool standby_may_prepare(const struct worker *s);
/* To one process of s, if s has begun: what it may share with its worker, and the word. */
int standby_share(const struct worker *s, struct arenas *a, int hand, struct err *e) MUST_USE;
/* w's memory is given up, or w is made anew without it: what it has mapped is old. */
void standby_stop(struct worker *s);
/* The process, its rings and all that watches it are w's, if there is one that lives; false: there is none,
 * and none remains. w has no process of its own any more. */
bool standby_take(struct worker *w);
/* Its arenas and the word to go on, once its predecessor is gone. */
int standby_continue(struct worker *w, struct err *e) MUST_USE;

#endif
