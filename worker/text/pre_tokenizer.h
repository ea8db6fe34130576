/* pre_tokenizer.h - text to words, by the steps of "pre_tokenizer".
 *
 * Served: ByteLevel (with or without its own pattern and prefix space), Split, Metaspace,
 * WhitespaceSplit, Digits, and Sequence of them in which nothing follows ByteLevel. Each step cuts what
 * the step before it left; a pattern never sees beyond its piece.
 */
#ifndef TEXT_PRE_TOKENIZER_H
#define TEXT_PRE_TOKENIZER_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"

enum { PRETOK_MAX_STEPS = 8 };

struct pretok_step; /* a pattern, or a prefix, or both */

struct pretok {
    struct pretok_step *step; /* [n] */
    uint32_t n;
    bool byte_level; /* the last step is ByteLevel */
    bool first_only; /* a Metaspace prepends to the very first word alone */
};

/* Read "pre_tokenizer": the event just read is its value. -ENOTSUP: a kind we do not do, by name. */
int pre_tokenizer_open(struct pretok *p, struct json *j, struct err *e) MUST_USE;
void pre_tokenizer_free(struct pretok *p);

/* Give each word of text[n] (UTF-8) to word(), in order; its negative return ends the walk. first: the
 * text is the beginning of all that is being encoded. */
typedef int pre_tokenizer_word(void *arg, const char *word, size_t n, struct err *e);
int pre_tokenizer_run(struct pretok *p, const char *text, size_t n, bool first,
                      pre_tokenizer_word *word, void *arg, struct err *e) MUST_USE;

#endif
