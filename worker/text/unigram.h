/* unigram.h - the Unigram model: splits a word into the tokens with the highest sum of scores.
 *
 * Viterbi over the tokens that begin at each character, with the order of additions and the ties
 * (the first path found wins) of the tokenizers library. A character that is no token has the score
 * of the worst token minus 10; adjacent characters of this kind become one unknown token, or their
 * byte tokens. The work memory grows only for a word longer than any before. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "worker/text/vocab.h"

struct unigram {
    double *score; /* [n] by id. No pointers in score and edge, as in vocab.h */
    /* [n_slots] edges of the trie over the bytes of all tokens: a hash table, open addressing */
    struct edge *edge;
    uint32_t n, n_slots, n_nodes;
    token_id unk;       /* the unknown token */
    bool byte_fallback; /* unknown characters become byte tokens if all their bytes have one */
    double unk_score;   /* of an unknown character */
    token_id of_byte[256];
    struct best *best; /* work memory [cap]: the best path to each byte of the word */
    uint32_t cap;
};

struct edge {
    uint32_t from; /* node << 8 | byte */
    uint32_t to;   /* node; 0: empty entry, because no edge leads to the root */
    token_id id;   /* the token that ends with this byte, or -1 */
};

/* Builds the trie over v, which must have all tokens except added tokens. score must be set. */
int unigram_open(struct unigram *u, const struct vocab *v, struct err *e) MUST_USE;
/* Allocates work memory and fills of_byte. To be called before the first word. */
int unigram_prepare(struct unigram *u, const struct vocab *v, struct err *e) MUST_USE;
void unigram_free(struct unigram *u);

/* Encodes word[n], n > 0, into ids[cap]. Returns the number of ids, -EMSGSIZE or -ENOMEM. */
int unigram_word(struct unigram *u, const struct vocab *v, const char *word, size_t n,
                 token_id *ids, uint32_t cap) MUST_USE;

/* Checks arrays of the vocabulary cache: returns true if every index is in range. */
bool unigram_is_sound(const struct unigram *u, const struct vocab *v);
