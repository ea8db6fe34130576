/* tokenizer.h - converts text to tokens and back, as the tokenizer.json of a checkpoint specifies.
 *
 * Supported models: byte-level BPE, SentencePiece BPE with byte fallback, and Unigram. For other
 * sections, added_tokens.h, normalizer.h, pre_tokenizer.h, post_processor.h and decoder.h list what
 * is supported; anything else is rejected, and the message names it. Encoding cuts added tokens out
 * of the text, normalises the rest, splits it into words, converts each word to tokens, and adds
 * the tokens of the post-processor.
 *
 * Only tokenizer_open() and the vocabulary cache (tokenizer_open_kept(), _keep()) do I/O.
 * tokenizer_encode() uses work memory of t, so one thread at a time encodes; functions with a const
 * t may run in other threads at the same time. Work memory grows only for a text or word longer
 * than any before. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "worker/text/decoder.h"

struct tokenizer;

/* Reads dir/tokenizer.json. -ENOENT: no such file; -ENOTSUP: a part is unsupported; -EBADMSG. */
int tokenizer_open(struct tokenizer **ret, const char *dir, struct err *e) MUST_USE;
/* Opens the tokenizer of dir/tokenizer.json from the vocabulary cache in the folder `kept`. Returns
 * 1 with *ret, or 0 if there is no usable cache file and tokenizer_open() is needed. */
int tokenizer_open_kept(struct tokenizer **ret, const char *dir, const char *kept,
                        struct err *e) MUST_USE;
/* Writes t, which tokenizer_open() has opened, to the vocabulary cache in the folder `kept`, which
 * is created if its parent exists. Returns 0 or -errno. */
int tokenizer_keep(struct tokenizer *t, const char *kept, struct err *e) MUST_USE;
struct tokenizer *tokenizer_close(struct tokenizer *t);
CLEAN_FUNC(struct tokenizer, tokenizer_close)

uint32_t tokenizer_size(const struct tokenizer *t); /* all token ids are below this number */
/* Returns the maximum bytes of text that one token can complete. One call of tokenizer_decode_add()
 * passes at most three times as many bytes to sink. */
uint32_t tokenizer_longest(const struct tokenizer *t);

/* Returns the most bytes of text that n tokens can stand for. UINT64_MAX: there is no limit,
 * because the tokenizer removes text (white space, marks) or makes one token of a long run. */
uint64_t tokenizer_max_text(const struct tokenizer *t, uint32_t n);

/* Encodes text[n] into ids[cap] and returns the number of ids. bare: without the tokens of the
 * post-processor. -EMSGSIZE: cap is too small. -EILSEQ: not UTF-8. -EINVAL: a PCRE2 limit. */
int tokenizer_encode(struct tokenizer *t, const char *text, size_t n, bool bare, token_id *ids,
                     uint32_t cap, struct err *e) MUST_USE;

/* Returns the *n bytes for which token id stands, NULL if there is no such token. If the vocabulary
 * is byte-level, they may be a part of a character; otherwise they are the token's text in
 * tokenizer.json. *special: id is a special token. The bytes are valid as long as t is. */
const char *tokenizer_piece(const struct tokenizer *t, token_id id, uint32_t *n, bool *special);

/* Decodes the next token of a text; complete characters go to sink. Invalid ids, and special tokens
 * unless keep_special, give no text. detok.h adds stop strings. */
void tokenizer_decode_add(const struct tokenizer *t, struct decoding *s, token_id id,
                          bool keep_special, decode_sink *sink, void *arg);
void tokenizer_decode_end(const struct tokenizer *t, struct decoding *s, decode_sink *sink,
                          void *arg);

/* Writes the bytes that token id gives inside a text to buf[cap] and returns their number, 0 for an
 * id without a token. They may be a part of a character. A special token gives its name.
 * -EMSGSIZE: cap is too small. */
int tokenizer_piece_bytes(const struct tokenizer *t, token_id id, char *buf, size_t cap) MUST_USE;

/* Decodes all ids into buf[cap], NUL-terminated. Malformed bytes become U+FFFD; invalid ids give no
 * text. Returns the length, or -EMSGSIZE. */
int tokenizer_decode(const struct tokenizer *t, const token_id *ids, uint32_t n, bool keep_special,
                     char *buf, size_t cap) MUST_USE;
