/* post_processor.h - the "post_processor" of tokenizer.json: the tokens to add before and after a
 * text, as in "<s> A </s>".
 *
 * Supported: TemplateProcessing, RobertaProcessing, ByteLevel (which adds no tokens) and Sequence
 * of these; templates of one text only, not of a pair of texts. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

enum { POST_MAX = 16 };

struct post {
    token_id before[POST_MAX], after[POST_MAX];
    uint32_t n_before, n_after;
};

/* Reads the value of "post_processor" that j's last event begins. -ENOTSUP: unsupported kind. */
int post_processor_open(struct post *p, struct json *j, struct err *e) MUST_USE;
