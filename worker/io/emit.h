/* emit.h - writes the records for lagand: READY, progress, tokens, ends of outputs, refusals.
 *
 * Every function writes into the outbox and never blocks; the engine loop moves the outbox to the
 * ring once per iteration. The outbox is large enough for the records of one step and of a loop
 * iteration's intake. Engine thread only. */
#pragma once
#include "worker/io/request.h"
#include "worker/sched/batch.h"
#include "worker/worker.h"

/* Queues READY: the facts with which lagand validates requests. load_ns: duration of the load. */
void emit_ready(struct worker *w, nsec load_ns);
/* Queues PHASE: `done` of `total` bytes of weights are loaded; total 0: not known yet. */
void emit_phase(struct worker *w, uint64_t done, uint64_t total);
/* Queues REJECT: the request (ledger_index, gen) ends before its first token. reason: enum
 * lagan_reason; why: a sentence for the client, shorter than 64 KiB. */
void emit_reject(struct worker *w, uint32_t ledger_index, uint32_t gen, uint16_t reason,
                 uint32_t n_prompt_tokens, const char *why);
/* Queues the tokens, text, log-probabilities, tensors and ends of a committed step b with result r.
 * seq[i]: sequence of segment i, NULL if it has ended; n_before[i]: tokens before the commit. */
void emit_step(struct worker *w, const struct batch *b, const struct batch_result *r,
               struct seq *const *seq, const uint32_t *n_before);
/* Queues FINISH of one output; no effect if FINISH was queued before. */
void emit_ended(struct worker *w, struct worker_request *r);
/* Returns the most text bytes that one token can add to a record; 0 without a tokenizer. */
size_t emit_token_text_bytes(const struct worker *w);
