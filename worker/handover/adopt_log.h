/* adopt_log.h - the write side of the manifest (worker/manifest/manifest.h): every step leaves a state
 * that can be adopted.
 *
 * The order of publication, by which every store leaves a manifest that may be adopted as it is:
 *
 *     adopt_log_tree()     what the prefix tree has lost and gained
 *     adopt_log_launch()   before a step is launched: first the blocks that left their entries
 *                          since the step before, then those that this step is the first to write
 *     exec_start()
 *     ...                  the device writes K and V
 *     adopt_log_commit()   the step is finished: the committed position of each entry
 *     adopt_log_beams()    a beam search: the moves that the step has decided
 *     STEP record          lagand receives the tokens
 *
 * Proof. A block that a launched step writes for one sequence has left every other entry and the
 * tree before the launch: so no entry and no label names it. A position is committed only after the
 * device has written its K and V, so the manifest never claims a position that is not written. A
 * token is reported only after its predecessors are committed: so all reported tokens but the last
 * are committed, and the replacement continues behind them. The engine never commits a position of
 * a token that it does not report, because another worker may sample another token. A beam search
 * is the moves that its steps have decided: they are appended in order, those of rank r with beam
 * r, and counted in the first beam's entry; with that many positions of every beam committed, and
 * the moves that the last of them needs, the replacement continues the search.
 *
 * Engine thread only; nothing here allocates, blocks or fails.
 */
#ifndef WORKER_HANDOVER_ADOPT_LOG_H
#define WORKER_HANDOVER_ADOPT_LOG_H

#include "base/err.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

struct seq;

/* Memory for the owners of a step's entries, before the first step; the manifest is open.
 * -ENOMEM. */
int adopt_log_open(struct worker *w, struct err *e) MUST_USE;
void adopt_log_close(struct worker *w);
/* Right before b is launched. */
void adopt_log_launch(struct worker *w, const struct batch *b);
/* b is finished, and none of its tokens has been reported. */
void adopt_log_commit(struct worker *w, const struct batch *b);
/* A beam search continues, and the tokens of its last step have not been reported. first: its
 * first beam. */
void adopt_log_beams(struct worker *w, const struct seq *first);
/* Once per loop iteration: publishes the changes of the prefix tree. */
void adopt_log_tree(struct worker *w);

#endif
