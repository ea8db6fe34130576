/* vocab.h - which bytes each token stands for, and which token stands for these bytes.
 *
 * Byte-level vocabularies write a byte as one printable character (GPT-2's table: "Ġ" is a space), so
 * that a piece is always text in the file. Here pieces are the bytes themselves. A token with a
 * character outside that table (some added tokens) stands for its own UTF-8 and is never the result of
 * a merge, as in the decoder of Hugging Face tokenizers.
 */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/base.h"
#include "base/err.h"

enum { VOCAB_MAX_ID = 1 << 22 }; /* the largest published vocabularies hold 2^18 */

struct vocab {
    char *bytes; /* all pieces, one after the other */
    size_t n_bytes, cap_bytes;
    struct piece *piece; /* [n], by id */
    uint32_t n, cap, longest;
    uint32_t *slot; /* id + 1 by hash of the bytes, open addressing; 0 is empty */
    uint32_t n_slots, n_used;
};

struct piece {
    size_t at; /* in bytes */
    uint32_t len;
    bool there, special, by_bytes; /* by_bytes: found by vocab_find() */
};

void vocab_free(struct vocab *v);

/* Token id is written as s[n] (UTF-8). -EBADMSG: id or bytes are taken, or the id is out of reach. */
int vocab_add(struct vocab *v, token_id id, const char *s, size_t n, struct err *e) MUST_USE;

/* The token for exactly these bytes, or -1. */
token_id vocab_find(const struct vocab *v, const char *bytes, size_t n);

const struct piece *vocab_piece(const struct vocab *v, token_id id); /* NULL: no such token */

/* Turn s[n] as written in the file into bytes, in place: their number, or -1 when a character is none
 * of the 256 (s is then unchanged). */
int vocab_unwrite(char *s, size_t n);

#endif
