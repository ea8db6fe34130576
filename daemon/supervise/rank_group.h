/* rank_group.h - a worker whose model is on several ranks (worker/tp/plan_ring.h): the processes beside
 * rank 0.
 *
 * Rank 0 is the worker, with lagand's rings, in all tables. Another rank has a struct worker too, in other[], of which
 * its process, its hand, arenas and log, its heart and its black box are used; it has no rings of lagand's and is in no
 * table. All of a group live and die together: the end of one is the end of all, and the first one's cause is the
 * worker's. Its EV_EXIT comes when the last is reaped, so that no stray write of any lands in memory that is handed on.
 */
#ifndef DAEMON_SUPERVISE_RANK_GROUP_H
#define DAEMON_SUPERVISE_RANK_GROUP_H

#include "daemon/supervise/worker.h"
#include "ipc/heritage.h"

struct spawn;

/* As many as its model's tensor_parallel says; w may be a standby, which is a group too then. */
int rank_group_new(struct worker *w, struct err *e) MUST_USE;
void rank_group_free(struct worker *w);
/* The other ranks, started as rank 0 will be; what that inherits of them is added to lead. */
int rank_group_start(struct worker *w, struct spawn *lead, struct err *e) MUST_USE;
void rank_group_close_passed(const struct worker *w,
                             const struct heritage *h); /* of ours: rank 0 has its own */
/* One of a group has ended: the others are killed, unless it only followed rank 0. */
void rank_group_process_exited(struct worker *one, int code, int status, bool words);
void rank_group_kill(struct worker *w);
void rank_group_reap(struct worker *w, const struct death *d); /* all are reaped */
void rank_group_end(struct worker *w); /* lagand is leaving, or it was only half made */
/* Of a standby: all of them live, not even a zombie whose end we are still to hear of is among them. */
bool rank_group_alive(const struct worker *s);
void rank_group_tick(struct worker *w, nsec now, nsec late);
/* Rank 0 has ended, and another rank that was killed with it has not yet: not for ever. */
void rank_group_check_exit(struct worker *w, nsec now);
/* Another rank has not beaten for so long that rank 0 may be late because of it. */
bool rank_group_silent(const struct worker *w, nsec now);

#endif
