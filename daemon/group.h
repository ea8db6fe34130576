/* group.h - a worker whose model is on several ranks (worker/tp/plan_ring.h): the processes beside rank 0.
 *
 * Rank 0 is the worker, with lagand's rings, in all tables. Another rank has a struct worker too, in other[], of which
 * its process, its hand, arenas and log, its heart and its black box are used; it has no rings of lagand's and is in no
 * table. All of a group live and die together: the end of one is the end of all, and the first one's cause is the
 * worker's. Its EV_EXIT comes when the last is reaped, so that no stray write of any lands in memory that is handed on.
 */
#ifndef DAEMON_GROUP_H
#define DAEMON_GROUP_H

#include "daemon/worker.h"
#include "ipc/heritage.h"

struct spawn;

/* As many as its model's tensor_parallel says; w may be a standby, which is a group too then. */
int group_make(struct worker *w, struct err *e) MUST_USE;
void group_free(struct worker *w);
/* The other ranks, started as rank 0 will be; what that inherits of them is added to lead. */
int group_start(struct worker *w, struct spawn *lead, struct err *e) MUST_USE;
void group_close_passed(const struct worker *w,
                        const struct heritage *h); /* of ours: rank 0 has its own */
/* One of a group has ended: the others are killed, unless it only followed rank 0. */
void group_ended(struct worker *one, int code, int status, bool words);
void group_kill(struct worker *w);
void group_bury(struct worker *w, const struct death *d); /* all are reaped */
void group_end(struct worker *w); /* lagand is leaving, or it was only half made */
/* Of a standby: all of them live, not even a zombie whose end we are still to hear of is among them. */
bool group_lives(const struct worker *s);
void group_tick(struct worker *w, nsec now, nsec late);
/* Rank 0 has ended, and another rank that was killed with it has not yet: not for ever. */
void group_late(struct worker *w, nsec now);
/* Another rank has not beaten for so long that rank 0 may be late because of it. */
bool group_stopped(const struct worker *w, nsec now);

#endif
