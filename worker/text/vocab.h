/* vocab.h - which bytes each token stands for, and which token stands for these bytes.
 *
 * Byte-level vocabularies write a byte as one printable character (GPT-2's table: "Ġ" is a space), so
 * that a piece is always text in the file. Here pieces are the bytes themselves. A token with a
 * character outside that table (some added tokens) stands for its own UTF-8 and is never the result of
 * a merge, as in the decoder of Hugging Face tokenizers. In other vocabularies a piece is its text, and
 * "<0x0A>" is byte 10 where there is nothing better.
 */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/base.h"
#include "base/err.h"

enum {
    VOCAB_MAX_ID = 1 << 22, /* the largest published vocabularies hold 2^18 */
    VOCAB_MAX_PIECE = 4096  /* bytes */
};

/* All arrays are flat, without pointers, so that they can be kept in a file (vocab_cache.h). */
struct vocab {
    char *bytes;         /* all pieces, one after the other */
    struct piece *piece; /* [n], by id */
    uint32_t *slot;      /* [n_slots] id + 1 by hash of the bytes, open addressing; 0 is empty */
    uint32_t n_bytes, cap_bytes, n, cap, n_slots, n_used, longest;
    bool byte_level;
};

struct piece {
    uint32_t at, len; /* in bytes */
    uint8_t there, special, is_byte, byte;
};

void vocab_free(struct vocab *v);

/* Token id is written as s[n] (UTF-8); findable: by vocab_find(), which a token is not that only stands
 * among the added ones. -EBADMSG: id or bytes are taken, or the id is out of reach. */
int vocab_add(struct vocab *v, token_id id, const char *s, size_t n, bool findable,
              struct err *e) MUST_USE;

/* The token for exactly these bytes, or -1. */
token_id vocab_find(const struct vocab *v, const char *bytes, size_t n);

const struct piece *vocab_piece(const struct vocab *v, token_id id); /* NULL: no such token */

/* Turn s[n] as written in the file into what its piece would be, in place: its length, or -1 when a
 * character of a byte-level vocabulary is none of the 256 (s is then unchanged). */
int vocab_unwrite(const struct vocab *v, char *s, size_t n);

/* Can v be used, whatever its arrays hold? They came from a file. */
bool vocab_is_sound(const struct vocab *v);

#endif
