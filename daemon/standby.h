/* standby.h - a process that waits beside a worker, to take its place the moment it has died.
 *
 * It has a device, the weights and the tokenizer, and rings of its own that nobody has used; what it lacks
 * until its worker's pidfd is readable are the arenas that the worker writes, and a word to go on.
 *
 *     standby: 1, worker READY for 100 ms -> one is made, and another behind it when it has been taken and is READY so long
 *     standby: 0, worker's hand ends and it does not -> one is made: a driver needs time for that
 *     worker leaves, is restarted or replaced, or its memory is given up -> the standby is ended
 *     worker dies otherwise -> worker_spawn() takes the standby, ready or not, instead of a new process
 *
 * It is a struct worker without requests, its `of` the one it waits for: the same start, heart, log and
 * table (supervisor.h), and its own count of deaths. Of a group it is one (group.h), and takes the places of all its ranks.
 */
#ifndef DAEMON_STANDBY_H
#define DAEMON_STANDBY_H

#include "base/base.h"
#include "base/err.h"
#include "daemon/supervisor.h"
#include "daemon/worker.h"

int standby_make(struct worker *w, struct err *e) MUST_USE;
struct worker *standby_free(struct worker *s);
/* Its worker has moved: is one wanted now? */
void standby_follow(struct worker *w, enum super_state to);
/* Its worker's hand has ended: it dies, or so it seems. One is made if there is none. */
void standby_hurry(struct worker *w);
/* w's memory is given up, or w is made anew without it: what it has mapped is old. */
void standby_dismiss(struct worker *s);
/* The process, its rings and all that watches it are w's, if there is one that lives; false: there is none,
 * and none remains. w has no process of its own any more. */
bool standby_take(struct worker *w);
/* Its arenas and the word to go on, once its predecessor is gone. */
int standby_go(struct worker *w, struct err *e) MUST_USE;

#endif
