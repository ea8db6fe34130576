/* decoder.h - the "decoder" of tokenizer.json: converts tokens to text, one token at a time, and
 * returns complete UTF-8 characters only.
 *
 * Supported: ByteLevel; Metaspace; and Replace of a string, ByteFallback, Fuse, Strip at the start,
 * alone or as a Sequence in this order. Replace and Metaspace work on the text of one token, Strip
 * on the whole text.
 *
 * Differs from the tokenizers library deliberately: if adjacent byte tokens are not valid UTF-8 as
 * a whole, valid characters among them are returned, and each other byte becomes U+FFFD. The
 * library replaces all of them, which a stream cannot do after it has returned some. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "base/utf8.h"
#include "worker/text/vocab.h"

/* Declared here, because base/json.h and jansson.h cannot be included together. */
struct json;

enum { DECODE_STRING = 32 };

struct decoder {
    bool byte_level; /* the text of a token is its bytes; no other field is used */
    bool bytes;      /* ByteFallback: a token "<0x0A>" is byte 10 */
    bool drop_first; /* Metaspace: in the first token, `from` is replaced by "" */
    uint32_t strip;  /* Strip: maximum number of leading spaces to remove */
    char from[DECODE_STRING], to[DECODE_STRING]; /* Replace, Metaspace; both "": none */
};

/* Reads the value of "decoder" that j's last event begins. -ENOTSUP: unsupported, named in e. */
int decoder_open(struct decoder *d, struct json *j, struct err *e) MUST_USE;

/* Returns the most bytes, at least 6, of one token's text after Replace; decoder_add() passes at
 * most three times as many to sink. longest: bytes of the longest token before Replace. */
uint32_t decoder_longest(const struct decoder *d, uint32_t longest);

/* State of decoding one text. Zeroed: at its beginning. */
struct decoding {
    struct utf8_part part; /* the first bytes of an incomplete character */
    bool begun;            /* a token was added */
    uint32_t stripped;     /* number of leading spaces removed so far */
};

/* Receives decoded text, n > 0 bytes: complete characters, except from decoder_piece(). */
typedef void decode_sink(void *arg, const char *text, uint32_t n);

/* Decodes the next token, p; calls sink with the text that is complete. */
void decoder_add(const struct decoder *d, struct decoding *s, const struct vocab *v,
                 const struct piece *p, decode_sink *sink, void *arg);
/* Calls sink with the bytes that p gives inside a text, which may be a part of a character. */
void decoder_piece(const struct decoder *d, const struct vocab *v, const struct piece *p,
                   decode_sink *sink, void *arg);
/* Ends the text: an incomplete character goes to sink as U+FFFD. */
void decoder_end(const struct decoder *d, struct decoding *s, decode_sink *sink, void *arg);
