/* search_limits.h - limits of what a beam search keeps until its outputs are decided.
 *
 * A worker keeps, for each beam and generated token, the `logprobs` best tokens and with
 * return_logits the logits. lagand checks the limits at SUBMIT, the worker when the default of
 * max_tokens is known; so the memory of both is bounded. */
#pragma once
#include "base/base.h"
#include "base/err.h"

/* Checks a search with n_tokens tokens in all beams together; vocab: values of a row of logits, 0:
 * without return_logits. -EMSGSIZE: too many bytes; e has the numbers. */
int search_limits_check(uint64_t n_tokens, uint32_t logprobs, uint32_t vocab,
                        struct err *e) MUST_USE;
