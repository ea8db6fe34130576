/* decoder.h - the "decoder" of tokenizer.json: streams tokens as text, never part of a character.
 *
 * Supported: ByteLevel; Metaspace; and Replace of a string, ByteFallback, Fuse, Strip at the start,
 * alone or as a Sequence in this order. Replace and Metaspace see one token, Strip the whole text.
 *
 * Differs from the reference deliberately: if adjacent byte tokens are not valid UTF-8 as a whole,
 * valid characters among them are returned, and each other byte becomes U+FFFD. The reference
 * replaces all of them, which a stream cannot do after it has returned the first ones. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "base/utf8.h"
#include "worker/text/vocab.h"

/* only declared, because base/json.h and jansson.h cannot be included together */
struct json;

enum { DECODE_STRING = 32 };

struct decoder {
    bool byte_level;
    bool bytes;      /* pieces such as "<0x0A>" are bytes */
    bool drop_first; /* Metaspace: marks of the first token are removed */
    uint32_t strip;  /* maximum number of leading spaces to remove */
    char from[DECODE_STRING], to[DECODE_STRING]; /* Replace; both "": none */
};

/* Reads "decoder"; the last event is its value. -ENOTSUP: unsupported kind, named in the sentence.
 */
int decoder_open(struct decoder *d, struct json *j, struct err *e) MUST_USE;

/* Maximum bytes of text that one token can complete, if pieces have at most `longest` bytes. */
uint32_t decoder_longest(const struct decoder *d, uint32_t longest);

/* State of one text. Zeroed: at its beginning. */
struct decoding {
    struct utf8_part part; /* of an incomplete character */
    bool begun;            /* a token was added */
    uint32_t stripped;
};

/* Receives complete characters, n > 0 bytes. */
typedef void decode_sink(void *arg, const char *text, uint32_t n);

/* Adds a token; complete text goes to sink. */
void decoder_add(const struct decoder *d, struct decoding *s, const struct vocab *v,
                 const struct piece *p, decode_sink *sink, void *arg);
/* Ends the text. */
void decoder_end(const struct decoder *d, struct decoding *s, decode_sink *sink, void *arg);
