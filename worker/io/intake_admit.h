/* intake_admit.h - a request whose tokens are in place goes to the scheduler, or is refused.
 *
 * lagand has validated what a record says against the facts of READY. Refusals here need what READY
 * does not have:
 *
 *     tokens of a text              the tokenizer runs in the worker: empty, too long, outside the
 *                                   vocabulary
 *     no decoder_start_token_id     generation_config.json
 *     prompt longer than max_length generation_config.json
 *     penalties over many tokens    EXEC_LOOK_BACK
 *     no token may be left          no_repeat_ngram and min_tokens against prompt and output
 *     KV blocks, or an operation    scheduler_add()
 *
 * Engine thread only.
 */
#ifndef WORKER_IO_INTAKE_ADMIT_H
#define WORKER_IO_INTAKE_ADMIT_H

#include "worker/io/request.h"
#include "worker/worker.h"

/* The n_prompt tokens of the prompt are at the start of r->ids, delivered ones behind them; a
 * decoder prefix is behind w->max_source. Owns r afterwards, whatever happens. */
void intake_admit(struct worker *w, struct worker_request *r, uint32_t n_prompt, nsec now);
/* As intake_admit(), of a prompt that the text thread has tokenized. */
void intake_admit_text(struct worker *w, struct worker_request *r, nsec now);

/* Refuses r: REJECT with the sentence, and gives all of its slots back. reason: enum
 * lagan_reason. */
PRINTF_LIKE(4, 5)
void intake_refuse(struct worker *w, struct worker_request *r, uint16_t reason, const char *fmt,
                   ...);
/* All outputs of r are to end. Of several outputs the first may have met its stop string while
 * others continue. */
bool intake_ends_whole(const struct worker_request *r);

#endif
