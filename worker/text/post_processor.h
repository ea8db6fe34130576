/* post_processor.h - the "post_processor" of tokenizer.json: tokens around a text, as in "<s> A
 * </s>".
 *
 * Supported: TemplateProcessing, RobertaProcessing, ByteLevel (which changes offsets only) and
 * Sequence of them; single texts only, no pairs. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

enum { POST_MAX = 16 };

struct post {
    token_id before[POST_MAX], after[POST_MAX];
    uint32_t n_before, n_after;
};

/* Reads "post_processor"; the last event is its value. -ENOTSUP: unsupported kind, named in the
 * sentence. */
int post_processor_open(struct post *p, struct json *j, struct err *e) MUST_USE;
