/* rank_group.h - starts, watches and ends the ranks above 0 of a tensor-parallel worker
 * (worker/tp/plan_ring.h): the "other ranks".
 *
 * Rank 0 is the process of the struct worker that the rest of lagand knows; only it has rings to
 * lagand. Each other rank has a struct worker in other[] of rank 0, which uses only process, fd
 * channel, arenas, log pipe, heartbeat and panic message. When the first rank ends, lagand kills
 * the others, and the cause of that first end is the worker's cause of death. The worker gets
 * EV_EXIT when its last rank has ended, because until then a rank could still write into memory
 * that the replacement gets. */
#pragma once
#include "daemon/supervise/worker_struct.h"
#include "ipc/heritage.h"

struct spawn;

/* Allocates the tensor_parallel - 1 other ranks of w, a worker or standby, without processes. */
int rank_group_new(struct worker *w, struct err *e) MUST_USE;
void rank_group_free(struct worker *w);
/* Starts the other ranks. Adds the plan ring, reply ring and doorbell of each to the descriptors
 * that rank 0 inherits (lead->heritage). */
int rank_group_start(struct worker *w, struct spawn *lead, struct err *e) MUST_USE;
/* Closes lagand's copies of the group's descriptors in h after rank 0 was spawned with h. */
void rank_group_close_passed(const struct worker *w, const struct heritage *h);
/* Call when process `one` of a worker has ended: kills the others of its rank group. But if a rank
 * above 0 exits with status 0, it has seen rank 0 exit: then waits for the exit event of rank 0. */
void rank_group_process_exited(struct worker *one, int code, int status, bool has_panic);
void rank_group_kill(struct worker *w); /* sends SIGKILL to the other ranks, does not wait */
/* Reads the last output and arenas of the other ranks, which have ended, and releases them. */
void rank_group_reap(struct worker *w, const struct death *d);
/* Kills the other ranks and waits for their ends: at lagand's exit, or after a failed start. */
void rank_group_end(struct worker *w);
/* Returns true if no rank of standby s has ended, not even one whose exit event is still queued. */
bool rank_group_alive(const struct worker *s);
/* Checks the heartbeats of the other ranks; arguments as in worker_tick(). */
void rank_group_tick(struct worker *w, nsec now, nsec late);
/* If a rank still runs stall_timeout after the first process of the group ended and lagand sent the
 * others SIGKILL, makes the worker DYING: it becomes LOST if the rank runs for 10 s more. */
void rank_group_check_exit(struct worker *w, nsec now);
/* Returns true if a rank is silent for half of stall_timeout; rank 0 may be late because of it. */
bool rank_group_silent(const struct worker *w, nsec now);
