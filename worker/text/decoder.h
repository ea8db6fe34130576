/* decoder.h - what "decoder" makes of tokens' pieces: text, as they come and never half a character.
 *
 * Served: ByteLevel; Metaspace; and Replace of a string, ByteFallback, Fuse, Strip at the beginning, alone
 * or as a Sequence in this order. Replace and Metaspace see one token, Strip the whole text.
 *
 * Deliberately different: of neighbouring byte tokens that are not UTF-8 as a whole, those that are
 * characters come out as such, and only the others as one U+FFFD each. The reference gives up all of them,
 * which nobody can who has streamed the first already.
 */
#ifndef TEXT_DECODER_H
#define TEXT_DECODER_H

#include "base/base.h"
#include "base/err.h"
#include "worker/text/utf8.h"
#include "worker/text/vocab.h"

struct json; /* named only, for its header and jansson's cannot be in one file */

enum { DECODE_STRING = 32 };

struct decoder {
    bool byte_level;
    bool bytes;      /* pieces like "<0x0A>" are bytes */
    bool drop_first; /* Metaspace: the first token's marks are nothing */
    uint32_t strip;  /* spaces at the beginning of the text that are left out, at most */
    char from[DECODE_STRING], to[DECODE_STRING]; /* Replace; "" and "": none */
};

/* Read "decoder": the event just read is its value. -ENOTSUP: a kind we do not do, by name. */
int decoder_open(struct decoder *d, struct json *j, struct err *e) MUST_USE;

/* Bytes that one token of pieces up to longest can bring to light, at most. */
uint32_t decoder_longest(const struct decoder *d, uint32_t longest);

/* One text on its way. Zeroed: nothing has come yet. */
struct decoding {
    struct utf8_part part; /* of a character */
    bool begun;            /* a token has come */
    uint32_t stripped;
};

/* Whole characters, n > 0 bytes of them. */
typedef void decode_sink(void *arg, const char *text, uint32_t n);

/* One more token; what is ready goes to sink. */
void decoder_add(const struct decoder *d, struct decoding *s, const struct vocab *v,
                 const struct piece *p, decode_sink *sink, void *arg);
/* Nothing more comes. */
void decoder_end(const struct decoder *d, struct decoding *s, decode_sink *sink, void *arg);

#endif
