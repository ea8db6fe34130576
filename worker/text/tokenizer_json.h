/* tokenizer_json.h - reads tokenizer.json into the parts of a tokenizer. */
#pragma once

#include "worker/text/tokenizer_parts.h"

/* t must be zeroed; on failure it is partly built. -ENOTSUP: unsupported kind, named in the
 * sentence. -EBADMSG: malformed. */
int tokenizer_json_read(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;

/* The same for a t whose arrays are loaded already (vocab_cache.h), from the small sections that
 * tokenizer_json_read() stored in t->config. */
int tokenizer_json_reopen(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;
