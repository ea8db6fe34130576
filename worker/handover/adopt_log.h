/* adopt_log.h - writes the manifest (worker/manifest/manifest.h) in every step, so that a
 * replacement can adopt the KV at any time.
 *
 * Changes are published in this order; after each store the manifest can be adopted as it is:
 *
 *     adopt_log_tree()     the changes of the prefix tree
 *     adopt_log_launch()   before a step is launched: first removes the blocks that left their
 *                          entries since the previous step, then adds those that this step writes
 *     exec_start()
 *     ...                  the device writes K and V
 *     adopt_log_commit()   when the step is finished: the committed position of each entry
 *     adopt_log_beams()    the moves of a beam search that the step has decided
 *     STEP record          lagand receives the tokens
 *
 * Proof. A block that a launched step writes for one sequence has left every other entry and the
 * tree before the launch, so no other entry and no node names it. A position is committed only
 * after the device has written its K and V, so the manifest never claims an unwritten position. A
 * token is reported only after the positions before it are committed. So all reported tokens except
 * the last are committed, and the replacement continues after them. The engine never commits the
 * position of a token that it does not report: the replacement may sample another token for this
 * position, and the adopted KV would not match it.
 *
 * Beam search. A move is a step's decision for one rank of a search: the beam to continue, and the
 * token. The manifest holds the moves of all steps in order, the moves of rank r in the entry of
 * beam r, and their number in the entry of the first beam. The replacement continues the search if
 * that many positions of every beam are committed and it has the moves for the last position.
 *
 * Engine thread only. No function allocates, blocks or fails, except adopt_log_open().
 */
#pragma once
#include "base/err.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

struct seq;

/* Allocates memory for the owners of a step's entries. The manifest must be open. -ENOMEM. */
int adopt_log_open(struct worker *w, struct err *e) MUST_USE;
void adopt_log_close(struct worker *w);
/* Publishes the table edits of b. Call directly before b is launched. */
void adopt_log_launch(struct worker *w, const struct batch *b);
/* Publishes the committed positions of b, which is finished, before its tokens are reported. */
void adopt_log_commit(struct worker *w, const struct batch *b);
/* Publishes the last moves of the search of beam `first`, before their tokens are reported. */
void adopt_log_beams(struct worker *w, const struct seq *first);
/* Publishes the changes of the prefix tree. Call once per loop iteration. */
void adopt_log_tree(struct worker *w);
/* Clears the entries of ended sequences without waiting for the next step, which a worker that
 * drains does not have. Call it when lagand has the end of every such sequence. */
void adopt_log_ends(struct worker *w);
