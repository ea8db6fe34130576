/* vocab.h - the vocabulary: finds the bytes for which a token stands (its piece), and the token for
 * given bytes.
 *
 * The file of a byte-level vocabulary writes each byte of a piece as one printable character
 * (GPT-2's table: "Ġ" is a space), so that the file is valid text. struct vocab has the bytes
 * themselves. A token with a character outside the table (some added tokens) stands for its own
 * UTF-8, as in the decoder of Hugging Face tokenizers; no merge results in it. In other
 * vocabularies the piece of a token is its text in the file; "<0x0A>" is the token of byte 10. */
#pragma once
#include "base/base.h"
#include "base/err.h"

enum {
    VOCAB_MAX_ID = 1 << 22, /* the largest published vocabularies have 2^18 tokens */
    VOCAB_MAX_PIECE = 4096  /* bytes */
};

/* The arrays contain no pointers, so that they can be stored in a file (vocab_cache.c). */
struct vocab {
    char *bytes;         /* all pieces, concatenated */
    struct piece *piece; /* [n], by id */
    uint32_t *slot;      /* [n_slots] id + 1, hash table by bytes, open addressing; 0: empty */
    uint32_t n_bytes, cap_bytes, n, cap, n_slots, n_used, longest;
    bool byte_level;
};

struct piece {
    uint32_t at, len;                      /* range of vocab.bytes */
    uint8_t there, special, is_byte, byte; /* the id exists; is special; is byte token of `byte` */
};

void vocab_free(struct vocab *v);

/* Adds token id with the text s[n] (UTF-8) of the file. findable: vocab_find() finds it; false for
 * tokens that occur only among the added tokens. -EBADMSG: another token has the id or the bytes,
 * or the id is too large. */
int vocab_add(struct vocab *v, token_id id, const char *s, size_t n, bool findable,
              struct err *e) MUST_USE;

/* Returns the token with exactly these bytes, or -1. */
token_id vocab_find(const struct vocab *v, const char *bytes, size_t n);

/* Sets of_byte[] to the token of each byte, or -1. */
void vocab_bytes(const struct vocab *v, token_id of_byte[256]);

const struct piece *vocab_piece(const struct vocab *v, token_id id); /* NULL: no such token */

/* Converts s[n] from its form in the file to the bytes of its piece, in place. Returns the length,
 * or -1 if a character is not in the table of a byte-level vocabulary (s is unchanged). */
int vocab_unwrite(const struct vocab *v, char *s, size_t n);

/* Checks arrays of the vocabulary cache: returns true if every index is in range. */
bool vocab_is_sound(const struct vocab *v);
