/* pre_tokenizer.h - the "pre_tokenizer" of tokenizer.json: splits text into words.
 *
 * Supported: ByteLevel (with or without its own pattern and prefix space), Split, Metaspace,
 * WhitespaceSplit, Digits, and Sequence of them with ByteLevel last. Each step splits the pieces of
 * the step before; a pattern sees only its piece. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

enum { PRETOK_MAX_STEPS = 8 };

struct pretok_step; /* a pattern, a prefix, or both */

struct pretok {
    struct pretok_step *step; /* [n] */
    uint32_t n;
    bool byte_level; /* the last step is ByteLevel */
    bool first_only; /* a Metaspace prepends only to the first word */
};

/* Reads "pre_tokenizer"; the last event is its value. -ENOTSUP: unsupported kind, named in the
 * sentence. */
int pre_tokenizer_open(struct pretok *p, struct json *j, struct err *e) MUST_USE;
void pre_tokenizer_free(struct pretok *p);

/* Calls word() for each word of text[n] (UTF-8), in order; a negative result of word() ends the
 * loop and is returned. first: the text is the beginning of the encoded text. */
typedef int pre_tokenizer_word(void *arg, const char *word, size_t n, struct err *e);
int pre_tokenizer_run(struct pretok *p, const char *text, size_t n, bool first,
                      pre_tokenizer_word *word, void *arg, struct err *e) MUST_USE;
