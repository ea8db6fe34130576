/* tokenizer.h - text to tokens and back, from tokenizer.json alone.
 *
 * Byte-level BPE, SentencePiece's BPE with byte fallback, and Unigram; what a file asks for beyond what
 * added_tokens.h, normalizer.h, pre_tokenizer.h, post_processor.h and decoder.h list is refused by name. Added tokens are cut out of
 * the raw text first (longest, leftmost); template tokens are added unless bare. Pure: no thread, no I/O
 * after tokenizer_open(). tokenizer_encode() works in room that t holds, so one thread encodes; the
 * functions that take t as const may run beside it in any other. The room grows for a longer text or word
 * than any before, and for nothing else.
 */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/base.h"
#include "base/err.h"
#include "worker/text/decoder.h"

struct tokenizer;

/* dir/tokenizer.json. -ENOENT: no such file. -ENOTSUP: a kind we do not do, by name. -EBADMSG: broken. */
int tokenizer_open(struct tokenizer **ret, const char *dir, struct err *e) MUST_USE;
/* The same from what was kept of it in the folder kept: 1 with *ret, or 0 when there is nothing there that can be
 * used, and tokenizer_open() has to read it. */
int tokenizer_open_kept(struct tokenizer **ret, const char *dir, const char *kept,
                        struct err *e) MUST_USE;
/* Keep one that tokenizer_open() made, in a file of kept, which is made where its parent is there. 0, or what
 * the file system said. */
int tokenizer_keep(struct tokenizer *t, const char *kept, struct err *e) MUST_USE;
struct tokenizer *tokenizer_close(struct tokenizer *t);
CLEAN_FUNC(struct tokenizer, tokenizer_close)

uint32_t tokenizer_size(const struct tokenizer *t); /* ids are below it */
/* Bytes of text that one token can complete; text on its way is at most three times as long. */
uint32_t tokenizer_longest(const struct tokenizer *t);

/* Tokens of text into ids[cap]. Number written. -EMSGSIZE: cap is too small. -EILSEQ: not
 * UTF-8. -ENOMEM, -EINVAL (a pattern gave up): no text of sane size. Each with its sentence. */
int tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool bare, token_id *ids,
                     uint32_t cap, struct err *e) MUST_USE;

/* The piece of token id: bytes where the vocabulary is byte-level (maybe half a character), else as the
 * file has it. Special tokens: special = true. NULL: no such id. Valid as long as t. */
const char *tokenizer_piece(const struct tokenizer *t, token_id id, uint32_t *n, bool *special);

/* One more token of a text on its way: whole characters go to sink. An id that is none, and a special one
 * unless they are kept, gives no text. detok.h is this with stop strings. */
void tokenizer_decode_add(const struct tokenizer *t, struct decoding *s, token_id id,
                          bool keep_special, decode_sink *sink, void *arg);
void tokenizer_decode_end(const struct tokenizer *t, struct decoding *s, decode_sink *sink,
                          void *arg);

/* All of ids as text, NUL-ended, into buf[cap]; ill-formed bytes become U+FFFD, ids that
 * are none nothing. Length, or -EMSGSIZE. */
int tokenizer_decode(const struct tokenizer *t, const token_id *ids, uint32_t n, bool keep_special,
                     char *buf, size_t cap) MUST_USE;

#endif
