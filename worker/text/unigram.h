/* unigram.h - one word to the pieces whose scores add up to most.
 *
 * Viterbi over the pieces that begin at each character, the reference's order of additions and its ties
 * (the first found stays). A character that no piece covers costs ten more than the worst piece;
 * neighbours of that kind are one unknown token, or their bytes' tokens. The room grows for a longer word
 * than any before and for nothing else.
 */
#ifndef TEXT_UNIGRAM_H
#define TEXT_UNIGRAM_H

#include "base/base.h"
#include "base/err.h"
#include "worker/text/vocab.h"

struct unigram {
    double *score;     /* [n] by id; flat as vocab's arrays, and so is edge */
    struct edge *edge; /* [n_slots] of the trie over the pieces' bytes, open addressing */
    uint32_t n, n_slots, n_nodes;
    token_id unk;
    bool byte_fallback;
    double unk_score;
    token_id of_byte[256];
    struct best *best; /* room: [cap] the best way to each byte of the word */
    uint32_t cap;
};

struct edge {
    uint32_t from; /* node << 8 | byte */
    uint32_t to;   /* node; 0: the slot is empty, for the root is nobody's child */
    token_id id;   /* of the piece that ends there, or -1 */
};

/* Make the trie over v, which is complete but for added tokens; score[n] has been read. */
int unigram_open(struct unigram *u, const struct vocab *v, struct err *e) MUST_USE;
/* Before the first word, as bpe_prepare(). */
int unigram_prepare(struct unigram *u, const struct vocab *v, struct err *e) MUST_USE;
void unigram_free(struct unigram *u);

/* As bpe_word(). */
int unigram_word(struct unigram *u, const struct vocab *v, const char *word, size_t n,
                 token_id *ids, uint32_t cap) MUST_USE;

bool unigram_is_sound(const struct unigram *u, const struct vocab *v);

#endif
