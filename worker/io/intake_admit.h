/* intake_admit.h - adds a request whose tokens are in its slot to the scheduler, or refuses it.
 *
 * lagand has validated the record against the facts of READY. The refusals here need the tokens of
 * the prompt, which the tokenizer of the worker makes, or the free memory of the worker:
 *
 *     reason of the refusal                         limit or check
 *     a text has no, too many or unknown tokens     length and vocabulary of the model
 *     the prompt alone reaches max_length           max_length of generation_config.json
 *     all tokens of the vocabulary are suppressed   no_repeat_ngram, min_tokens: sampling_fits()
 *     the KV cache is too small or cannot fork      scheduler_add()
 *
 * Engine thread only. */
#pragma once
#include "worker/io/request.h"
#include "worker/worker.h"

/* Adds r to the scheduler or refuses it; owns r. The n_prompt tokens of the prompt are at the start
 * of r->ids, followed by delivered tokens; a decoder prefix starts at w->max_source. */
void intake_admit(struct worker *w, struct worker_request *r, uint32_t n_prompt, nsec now);
/* intake_admit() for a prompt that the text thread has tokenized; refuses r if that failed. */
void intake_admit_text(struct worker *w, struct worker_request *r, nsec now);

/* Error text for a request that was validated with READY of a worker with other model files. */
#define INTAKE_OTHER_FILES \
    "the request does not fit this worker, whose model files or options differ from those of " \
    "another worker of the model; restart all workers of the model"

/* Queues REJECT with the formatted sentence and frees all slots of r. reason: enum lagan_reason. */
PRINTF_LIKE(4, 5)
void intake_refuse(struct worker *w, struct worker_request *r, uint16_t reason, const char *fmt,
                   ...);
/* Returns true if r->cancelled ends all outputs. A stop string ends only one of several outputs. */
bool intake_ends_whole(const struct worker_request *r);
