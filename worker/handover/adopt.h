/* adopt.h - what this worker leaves to its successor, and what it found of its predecessor's.
 *
 * The manifest (worker/kv/manifest.h) in an arena of its own beside the KV arena. Both carry the KV arena's
 * number, drawn when its content began: so a manifest is never read with another's blocks. lagand hands a
 * manifest on only where nobody wild can have written to them; KV memory without one is memory alone.
 */
#ifndef WORKER_HANDOVER_ADOPT_H
#define WORKER_HANDOVER_ADOPT_H

#include "base/base.h"
#include "base/err.h"
#include "worker/worker.h"

/* A number for KV memory whose content is nobody's. */
int adopt_number(uint64_t id[2], struct err *e) MUST_USE;
/* Loader, before kv_init(): what keys of the reuse tree are made with; the predecessor's, if it left any. */
int adopt_secret(const struct engine *n, uint64_t ret[4], struct err *e) MUST_USE;
/* Loader, between kv_init() and the scheduler: take over what is provable, or begin anew. */
int adopt_open(struct worker *w, enum dtype kv_dtype, struct err *e) MUST_USE;
void adopt_close(struct engine *n);

void adopt_begin(struct worker *w, nsec now); /* READY: requests will come */
/* A request that has come, all of its tokens in place, to be given to the scheduler: what is left of it. */
void adopt_claim(struct worker *w, struct worker_request *r);
void adopt_claimed(struct worker *w, struct worker_request *r); /* the scheduler has taken it */
/* Of a search that is about to begin: true: it is where its predecessor was, and all of its beams have what was
 * written of them. told: [n_sent] */
bool adopt_claim_search(struct worker *w, struct worker_request *r, const token_id *told);
void adopt_leave(struct worker *w, struct worker_request *r); /* it has ended, and goes on no more */
/* All of it that goes on has been claimed: whatever else is left is nobody's. r: its first slot */
void adopt_forget(struct worker *w, struct worker_request *r);
void adopt_expire(struct worker *w, nsec now); /* once a turn: nobody comes for the rest */

void adopt_launch(struct worker *w, const struct batch *b); /* right before its launch */
void adopt_commit(struct worker *w, const struct batch *b); /* done, and nobody was told */
/* A search goes on, and nobody was told. first: its first beam */
void adopt_turned(struct worker *w, const struct seq *first);
void adopt_rest(struct worker *w); /* what was computed may be found by others: once a turn */

#endif
