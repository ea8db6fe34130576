/* pre_tokenizer.h - the "pre_tokenizer" of tokenizer.json: splits text into words. Each word is
 * then encoded separately.
 *
 * Supported: ByteLevel (with or without its own pattern and prefix space), Split, Metaspace,
 * WhitespaceSplit, Digits, and Sequence of these with ByteLevel last. Each step splits the pieces
 * that the step before has made; its pattern is applied to one piece at a time. */
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
    bool first_only; /* a Metaspace prepends its prefix to the first word of the text only */
};

/* Reads the value of "pre_tokenizer" that j's last event begins. -ENOTSUP: unsupported kind. */
int pre_tokenizer_open(struct pretok *p, struct json *j, struct err *e) MUST_USE;
void pre_tokenizer_free(struct pretok *p);
bool pre_tokenizer_drops(const struct pretok *p); /* false: all of a text is in its words */

/* Calls word() for each word of text[n] (UTF-8), in order; a negative result of word() ends the
 * loop and is returned. first: text is the beginning of the text that the client sent. */
typedef int pre_tokenizer_word(void *arg, const char *word, size_t n, struct err *e);
int pre_tokenizer_run(struct pretok *p, const char *text, size_t n, bool first,
                      pre_tokenizer_word *word, void *arg, struct err *e) MUST_USE;
