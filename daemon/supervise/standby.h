/* standby.h - a preloaded process beside a worker that replaces the worker's process when it ends.
 *
 * A new standby has the tokenizer, open model files, the GPU driver and rings of its own. After the
 * message `begin` it opens the device and maps the weights. Then only the arenas that the worker
 * writes are missing; they come with the message `go` when the worker is reaped.
 *
 *     event                                  reaction
 *     worker READY, standby: 1               start after 100 ms, `begin` at once
 *     worker READY, standby: 0, on a GPU     start after 10 ms, up to "driver up"
 *     worker READY, standby: 0, on the CPU   none
 *     worker closes its fd channel           start if there is none, `begin`
 *     worker drains, restarts, is replaced,  stop the standby
 *       or its arenas are dropped
 *     worker ends otherwise                  worker_spawn() uses the standby, ready or not
 *
 * A GPU driver takes 100 ms to initialise if no process uses it, 11 ms beside one that does, and
 * 100 ms more after its last user has ended. On the CPU there is nothing to initialise.
 *
 * A standby is a struct worker without requests; `of` is its worker. It has a struct super of its
 * own, which counts its deaths. The standby of a rank group is a rank group and replaces all its
 * ranks.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "daemon/supervise/worker_struct.h"

/* Its stage for people and programs: the name of the state, "driver up", or "" if there is none. */
const char *standby_stage(const struct worker *s, enum super_state state);

int standby_new(struct worker *w, struct err *e) MUST_USE;
struct worker *standby_free(struct worker *s);
/* The state of worker w has changed: starts or stops its standby. */
void standby_worker_state(struct worker *w, enum super_state to);
/* w closed its fd channel and probably ends: starts a standby if there is none, and sends `begin`.
 */
void standby_prepare_now(struct worker *w);
/* Returns true if a standby that is being started may open the device at once. */
bool standby_may_prepare(const struct worker *s);
/* Sends the weights and `begin` to one process of s. No effect before s->prepare_sent. */
int standby_share(const struct worker *s, struct arenas *a, int fd_channel_sock,
                  struct err *e) MUST_USE;
/* Ends s, because what it has mapped is obsolete or its worker is not needed. */
void standby_stop(struct worker *s);
/* Moves the process of the standby, with its rings and event sources, to w, which has no process.
 * Returns false if no standby is alive; then the standby has been stopped. */
bool standby_take(struct worker *w);
/* Sends the arenas and `go`, after the previous process was reaped. */
int standby_continue(struct worker *w, struct err *e) MUST_USE;
