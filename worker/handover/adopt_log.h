/* adopt_log.h - the write side of the manifest (worker/manifest/manifest.h): each step leaves a
 * state that can be adopted.
 *
 * Order of publication. After each store the manifest can be adopted as it is:
 *
 *     adopt_log_tree()     changes of the prefix tree
 *     adopt_log_launch()   before a step is launched: first blocks that left their entries since
 *                          the previous step, then blocks that this step is the first to write
 *     exec_start()
 *     ...                  the device writes K and V
 *     adopt_log_commit()   the step is finished: the committed position of each entry
 *     adopt_log_beams()    a beam search: the moves that the step has decided
 *     STEP record          lagand receives the tokens
 *
 * Proof. A block that a launched step writes for one sequence has left every other entry and the
 * tree before the launch, so no other entry and no node names it. A position is committed only
 * after the device has written its K and V, so the manifest never claims an unwritten position. A
 * token is reported only after the positions before it are committed. So all reported tokens except
 * the last are committed, and the replacement continues after them. The engine never commits the
 * position of a token that it does not report, because another worker may sample another token.
 *
 * Beam search. The manifest holds the moves that the steps have decided: appended in order, the
 * moves of rank r with beam r, and counted in the first beam's entry. The replacement continues the
 * search when that many positions of every beam are committed and the moves that the last position
 * needs are present.
 *
 * Engine thread only. No function allocates, blocks or fails, except adopt_log_open().
 */
#pragma once

#include "base/err.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

struct seq;

/* Allocates memory for the owners of a step's entries; the manifest is open. -ENOMEM. */
int adopt_log_open(struct worker *w, struct err *e) MUST_USE;
void adopt_log_close(struct worker *w);
/* Directly before b is launched. */
void adopt_log_launch(struct worker *w, const struct batch *b);
/* b is finished and none of its tokens has been reported. */
void adopt_log_commit(struct worker *w, const struct batch *b);
/* A beam search (first: its first beam) continues; its last tokens have not been reported. */
void adopt_log_beams(struct worker *w, const struct seq *first);
/* Once per loop iteration: publishes the changes of the prefix tree. */
void adopt_log_tree(struct worker *w);
