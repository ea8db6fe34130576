/* emit.h - records of the response ring: READY, progress, tokens, ends, refusals.
 *
 * Every function writes into the outbox and never blocks; the engine loop moves the outbox to the
 * ring once per iteration. The outbox is large enough for the records of one step and of a loop
 * iteration's intake. Engine thread only.
 */
#pragma once

#include "worker/io/request.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

/* READY: the facts that lagand validates requests with. load_ns: duration of the load. */
void emit_ready(struct worker *w, nsec load_ns);
/* Load progress in bytes of weights; total 0: not known yet. */
void emit_phase(struct worker *w, uint64_t done, uint64_t total);
/* REJECT: the request (ledger_index, gen) ends before its first token. reason: enum lagan_reason;
 * why: a sentence for the client, shorter than 64 KiB. */
void emit_reject(struct worker *w, uint32_t ledger_index, uint32_t gen, uint16_t reason,
                 const char *why);
/* Tokens, text, log-probabilities, tensors and ends of a committed step. [b->n_segments]: seq[i] of
 * segment i, or NULL if it has ended; n_before[i]: its tokens before the commit. */
void emit_step(struct worker *w, const struct batch *b, const struct batch_result *r,
               struct seq *const *seq, const uint32_t *n_before);
/* FINISH of one output; does nothing if FINISH was queued before. */
void emit_ended(struct worker *w, struct worker_request *r);
/* Returns the most text bytes that one token can add to a record; 0 without a tokenizer. */
size_t emit_token_text_bytes(const struct worker *w);
