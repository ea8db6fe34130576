/* tokenizer.h - text to tokens and back, from tokenizer.json alone.
 *
 * Byte-level BPE (GPT-2, Llama 3, o200k patterns through PCRE2) for now; any other kind is refused by
 * name. Added tokens are cut out of the raw text first (longest, leftmost); template tokens are added
 * unless bare. Pure: no thread, no I/O after tokenizer_open(); one struct may be used by several
 * threads as long as each has its own struct tokenizer_room.
 */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/base.h"
#include "base/err.h"

struct tokenizer;

/* dir/tokenizer.json. -ENOENT: no such file. -ENOTSUP: a kind we do not do, by name. -EBADMSG: broken. */
int tokenizer_open(struct tokenizer **ret, const char *dir, struct err *e) MUST_USE;
struct tokenizer *tokenizer_close(struct tokenizer *t);
CLEAN_FUNC(struct tokenizer, tokenizer_close)

uint32_t tokenizer_size(const struct tokenizer *t); /* ids are below it */

/* Tokens of text into ids[cap]. Number written, -EMSGSIZE: cap is too small, -EILSEQ: not UTF-8. */
int tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool bare, token_id *ids,
                     uint32_t cap, struct err *e) MUST_USE;

/* The bytes token id stands for (may be half a character). Special tokens: special = true. NULL: no
 * such id. Valid as long as t. */
const char *tokenizer_piece(const struct tokenizer *t, token_id id, uint32_t *n, bool *special);

/* All of ids as text, NUL-ended, into buf[cap]; ill-formed bytes become U+FFFD. Length, or -EMSGSIZE. */
int tokenizer_decode(const struct tokenizer *t, const token_id *ids, uint32_t n, bool keep_special,
                     char *buf, size_t cap) MUST_USE;

#endif
