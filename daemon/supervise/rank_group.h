/* rank_group.h - the other processes of a worker with several tensor-parallel ranks
 * (worker/tp/plan_ring.h).
 *
 * Rank 0 is the worker: it has the rings and is in all tables. Each other rank has a struct worker
 * in other[], of which only the process, fd channel, arenas, log pipe, heartbeat and panic message
 * are used. The first end ends the whole group, and its cause is the cause of the worker. EV_EXIT
 * comes when the last rank is reaped, so that no stray write of a rank reaches memory that is
 * passed on.
 */
#pragma once

#include "daemon/supervise/worker_struct.h"
#include "ipc/heritage.h"

struct spawn;

/* Makes the other ranks that tensor_parallel of the model asks for. w may be a standby. */
int rank_group_new(struct worker *w, struct err *e) MUST_USE;
void rank_group_free(struct worker *w);
/* Starts the other ranks; adds to lead the descriptors that rank 0 inherits for them. */
int rank_group_start(struct worker *w, struct spawn *lead, struct err *e) MUST_USE;
/* Closes lagand's copies of these descriptors after rank 0 was spawned. */
void rank_group_close_passed(const struct worker *w, const struct heritage *h);
/* A process of a worker has ended: kills the others of its group. A rank above 0 that exits with status 0 has
 * seen the end of rank 0; then only the wait for rank 0 starts. */
void rank_group_process_exited(struct worker *one, int code, int status, bool has_panic);
void rank_group_kill(struct worker *w);
void rank_group_reap(struct worker *w, const struct death *d); /* after all have ended */
void rank_group_end(struct worker *w); /* kills and waits: lagand exits, or a start failed */
/* Returns true if no rank of a standby has ended, not even one whose exit event is still queued. */
bool rank_group_alive(const struct worker *s);
void rank_group_tick(struct worker *w, nsec now, nsec late);
/* Ends the wait for other ranks that do not exit after rank 0 and SIGKILL. */
void rank_group_check_exit(struct worker *w, nsec now);
/* Returns true if another rank is silent for so long that rank 0 may be late because of it. */
bool rank_group_silent(const struct worker *w, nsec now);
