/* document.h - tokenizer.json to a tokenizer's parts. */
#ifndef TEXT_DOCUMENT_H
#define TEXT_DOCUMENT_H

#include "worker/text/parts.h"

/* t is zeroed; on failure it is half-built. -ENOTSUP: a kind we do not do, by name. -EBADMSG: broken. */
int document_read(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;

/* The same for a t whose arrays are there already (cache.h), from the small sections that document_read() left
 * in t->config. */
int document_reopen(struct tokenizer *t, const char *text, size_t n, struct err *e) MUST_USE;

#endif
