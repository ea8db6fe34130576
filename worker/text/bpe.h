/* bpe.h - one word's bytes to tokens by merging neighbours, lowest rank first, leftmost first.
 *
 * A word is what the pre-tokeniser cut; merges never cross words. The room that merging works in is
 * made for words of 4 KiB and grows for a longer one, which text without breaks can be.
 */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "base/map.h"
#include "worker/text/vocab.h"

struct bpe {
    struct map *rank; /* left token << 32 | right token, to the merge's place in the list */
    token_id *merged; /* [n_merges] what the merge makes */
    uint32_t n_merges;
    bool ignore_merges; /* a word that is itself a token is taken whole */
    token_id of_byte[256];
    struct part *part; /* room: [cap] */
    uint64_t *heap;    /* room: [3 * cap] rank << 32 | part */
    uint32_t cap;
};

/* Read "merges" of the model: the event just read opens the list. v is complete. */
int bpe_open(struct bpe *b, const struct vocab *v, struct json merges, struct err *e) MUST_USE;
void bpe_free(struct bpe *b);

/* Tokens of word[n], n > 0, into ids[cap]. Their number, -EMSGSIZE when cap is too small, -ENOMEM. */
int bpe_word(struct bpe *b, const struct vocab *v, const char *word, size_t n, token_id *ids,
             uint32_t cap) MUST_USE;

#endif
