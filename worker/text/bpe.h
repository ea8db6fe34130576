/* bpe.h - one word's characters to tokens by merging neighbours, lowest rank first, leftmost first.
 *
 * A word is what the pre-tokeniser cut; merges never cross words. In a byte-level vocabulary it begins as
 * bytes; in others as characters, and one that has no token as its bytes' tokens or the unknown one. The
 * room that merging works in is made for words of 4 KiB and grows for a longer one, which text without
 * breaks can be.
 */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/vocab.h"

struct bpe {
    struct merge *merge; /* [n_slots] by pair, open addressing; flat as vocab's arrays */
    uint32_t n_slots, n_merges;
    bool ignore_merges; /* a word that is itself a token is taken whole */
    bool byte_fallback, fuse_unk;
    bool cuts_at_marks; /* no merge reaches across the beginning of a run of U+2581 */
    token_id unk;       /* -1: an unknown character is left out, as the reference does it */
    token_id of_byte[256];
    struct part *part; /* room: [cap] */
    uint64_t *heap;    /* room: [3 * cap] rank << 32 | part */
    uint32_t cap;
};

struct merge {
    uint64_t pair; /* left token << 32 | right token */
    uint32_t rank; /* its place in the list; UINT32_MAX: the slot is empty */
    token_id made;
};

/* Read "merges" of the model: the event just read opens the list. v is complete but for added tokens. */
int bpe_open(struct bpe *b, const struct vocab *v, struct json merges, struct err *e) MUST_USE;
/* Before the first word, merges read or taken from a file. -ENOTSUP: the vocabulary lacks what it takes. */
int bpe_prepare(struct bpe *b, const struct vocab *v, struct err *e) MUST_USE;
void bpe_free(struct bpe *b);

/* Tokens of word[n], n > 0, into ids[cap]. Their number, -EMSGSIZE when cap is too small, -ENOMEM. */
int bpe_word(struct bpe *b, const struct vocab *v, const char *word, size_t n, token_id *ids,
             uint32_t cap) MUST_USE;

bool bpe_is_sound(const struct bpe *b, const struct vocab *v); /* as vocab_is_sound() */

#endif
