/* standby.h - a preloaded process beside a worker that takes the place of the worker's process when
 * the latter ends.
 *
 * At first a standby has the tokenizer, open model files, the GPU driver and rings of its own. When
 * lagand sends `begin` over its fd channel, the standby opens the device and maps the weights. When
 * the worker's process is reaped, lagand sends all arenas, now with KV and manifest, which no
 * process writes any more, followed by `go`.
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
 * A GPU driver takes 100 ms to initialise if no other process uses the driver, else 11 ms. A killed
 * process takes about 100 ms longer to end if it was the only one that used the driver. The CPU
 * device needs no initialisation.
 *
 * A standby is a struct worker without requests; its field `of` is its worker. Its own struct super
 * counts its deaths. The standby of a rank group is a rank group too and replaces all ranks. */
#pragma once
#include "daemon/supervise/worker_struct.h"

/* Returns the stage of standby s in `state`, as `workers list` prints it: the name of the state,
 * "driver up" (STANDBY before `begin`), or "" if there is no process. */
const char *standby_stage(const struct worker *s, enum super_state state);

int standby_new(struct worker *w, struct err *e) MUST_USE; /* allocates w->standby, no process */
/* Starts or stops the standby of w, whose state has become `to`. */
void standby_worker_state(struct worker *w, enum super_state to);
/* Starts a standby if w has none, and sends `begin`. Call it when w has closed its fd channel. */
void standby_prepare_now(struct worker *w);
/* Returns true if standby s, which is being started, gets `begin` at once. */
bool standby_may_prepare(const struct worker *s);
/* If the caller has set s->prepare_sent, sends the weights and `begin` to the process of s behind
 * this fd channel; else has no effect. a: the arenas of the process that it will replace. */
int standby_share(const struct worker *s, struct arenas *a, int fd_channel_sock,
                  struct err *e) MUST_USE;
/* Moves the process of the standby, with its rings and event sources, to w, which has no process.
 * Returns false if the standby's process is not alive; the standby has then been stopped. */
bool standby_take(struct worker *w);
/* Sends the arenas and `go` to all ranks of w after standby_take(). */
int standby_continue(struct worker *w, struct err *e) MUST_USE;
