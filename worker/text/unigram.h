/* unigram.h - Unigram: splits a word into the pieces with the highest sum of scores.
 *
 * Viterbi over the pieces that begin at each character, with the reference's order of additions and
 * ties (the first found wins). A character without a piece costs 10 more than the worst piece;
 * adjacent ones become one unknown token, or their byte tokens. The work memory grows only for a
 * word longer than any before. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/text/vocab.h"

struct unigram {
    double *score; /* [n] by id; flat like the arrays of vocab, and so is edge */
    /* [n_slots] of the trie over the bytes of the pieces, open addressing */
    struct edge *edge;
    uint32_t n, n_slots, n_nodes;
    token_id unk;
    bool byte_fallback;
    double unk_score;
    token_id of_byte[256];
    struct best *best; /* work memory: [cap] best path to each byte of the word */
    uint32_t cap;
};

struct edge {
    uint32_t from; /* node << 8 | byte */
    uint32_t to;   /* node; 0: empty entry, because the root is never a child */
    token_id id;   /* of the piece that ends here, or -1 */
};

/* Builds the trie over v, which must be complete except for added tokens; score[n] must be read. */
int unigram_open(struct unigram *u, const struct vocab *v, struct err *e) MUST_USE;
/* Call before the first word; as bpe_prepare(). */
int unigram_prepare(struct unigram *u, const struct vocab *v, struct err *e) MUST_USE;
void unigram_free(struct unigram *u);

/* As bpe_word(). */
int unigram_word(struct unigram *u, const struct vocab *v, const char *word, size_t n,
                 token_id *ids, uint32_t cap) MUST_USE;

bool unigram_is_sound(const struct unigram *u, const struct vocab *v);
