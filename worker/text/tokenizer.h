/* tokenizer.h - text to tokens and back, as tokenizer.json specifies.
 *
 * Byte-level BPE, SentencePiece BPE with byte fallback, and Unigram. Everything that the headers
 * added_tokens.h, normalizer.h, pre_tokenizer.h, post_processor.h and decoder.h do not list is
 * rejected by name. Added tokens are cut out of the raw text first (leftmost, longest); template
 * tokens are added unless bare. Pure: no threads, no I/O after tokenizer_open(). tokenizer_encode()
 * uses work memory of t, so only one thread encodes; functions with a const t may run in other
 * threads at the same time. The work memory grows only for a text or word longer than any before.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/text/decoder.h"

struct tokenizer;

/* Reads dir/tokenizer.json. -ENOENT: no such file. -ENOTSUP: unsupported kind, named in the
 * sentence. -EBADMSG: malformed. */
int tokenizer_open(struct tokenizer **ret, const char *dir, struct err *e) MUST_USE;
/* Opens from the vocabulary cache in the folder `kept`. Returns 1 with *ret, or 0 if there is no
 * usable cache file and tokenizer_open() is needed. */
int tokenizer_open_kept(struct tokenizer **ret, const char *dir, const char *kept,
                        struct err *e) MUST_USE;
/* Writes a tokenizer of tokenizer_open() to the vocabulary cache; creates the folder `kept` if its
 * parent exists. Returns 0 or -errno. */
int tokenizer_keep(struct tokenizer *t, const char *kept, struct err *e) MUST_USE;
struct tokenizer *tokenizer_close(struct tokenizer *t);
CLEAN_FUNC(struct tokenizer, tokenizer_close)

uint32_t tokenizer_size(const struct tokenizer *t); /* ids are below this number */
/* Maximum bytes of text that one token can complete; a streamed text buffers at most three times as
 * much. */
uint32_t tokenizer_longest(const struct tokenizer *t);

/* Encodes text into ids[cap]. Returns the number of ids. -EMSGSIZE: cap is too small. -EILSEQ: not
 * UTF-8. -ENOMEM; -EINVAL: a pattern exceeded a limit. Each with a sentence. */
int tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool bare, token_id *ids,
                     uint32_t cap, struct err *e) MUST_USE;

/* The piece of token id: bytes if the vocabulary is byte-level (possibly part of a character), else
 * as in the file. *special: it is a special token. NULL: no such id. Valid as long as t. */
const char *tokenizer_piece(const struct tokenizer *t, token_id id, uint32_t *n, bool *special);

/* Adds a token to a text; complete characters go to sink. Invalid ids, and special tokens unless
 * keep_special, give no text. detok.h adds stop strings. */
void tokenizer_decode_add(const struct tokenizer *t, struct decoding *s, token_id id,
                          bool keep_special, decode_sink *sink, void *arg);
void tokenizer_decode_end(const struct tokenizer *t, struct decoding *s, decode_sink *sink,
                          void *arg);

/* Decodes all ids into buf[cap], NUL-terminated. Malformed bytes become U+FFFD; invalid ids give no
 * text. Returns the length, or -EMSGSIZE. */
int tokenizer_decode(const struct tokenizer *t, const token_id *ids, uint32_t n, bool keep_special,
                     char *buf, size_t cap) MUST_USE;
