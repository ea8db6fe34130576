/* post_processor.h - the tokens that a template puts around a text: "<s> A </s>".
 *
 * Served: TemplateProcessing, RobertaProcessing, ByteLevel (which changes offsets only) and Sequence of
 * them; a single text, never a pair.
 */
#ifndef TEXT_POST_PROCESSOR_H
#define TEXT_POST_PROCESSOR_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

enum { POST_MAX = 16 };

struct post {
    token_id before[POST_MAX], after[POST_MAX];
    uint32_t n_before, n_after;
};

/* Read "post_processor": the event just read is its value. -ENOTSUP: a kind we do not do, by name. */
int post_processor_open(struct post *p, struct json *j, struct err *e) MUST_USE;

#endif
