/* tokenizer_json.h - tokenizer.json to a tokenizer's parts. */
#ifndef TEXT_TOKENIZER_JSON_H
#define TEXT_TOKENIZER_JSON_H

#include "worker/text/tokenizer_parts.h"

/* t is zeroed; on failure it is half-built. -ENOTSUP: a kind we do not do, by name. -EBADMSG: broken. */
int tokenizer_json_read(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;

/* The same for a t whose arrays are there already (vocab_cache.h), from the small sections that tokenizer_json_read() left
 * in t->config. */
int tokenizer_json_reopen(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;

#endif
