/* length.h - lengths that a model allows: of the key fit and of the error too_long. */
#pragma once
#include "base/base.h"
#include "daemon/daemon.h"
#include "ipc/records.h"

/* Lowers s->max_tokens to what fits if the request has the key `fit`, to at least one token more
 * than the n_done that it has. Without effect if f is not known yet. A prompt as text counts as
 * empty; the worker, which knows its tokens, lowers max_tokens further. */
void length_fit(const struct model_facts *f, struct rec_submit *s, uint32_t n_done,
                uint64_t tensor_bytes);
/* Returns what the error too_long tells about a prompt of n_prompt_tokens, 0 if unknown. */
struct prompt_length length_of(const struct model_facts *f, uint32_t n_prompt_tokens);
