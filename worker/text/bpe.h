/* bpe.h - byte pair encoding: merges the characters of a word into tokens, lowest rank first, then
 * leftmost.
 *
 * A word is a piece of the pre-tokeniser; merges never cross words. In a byte-level vocabulary a
 * word starts as bytes, otherwise as characters; a character without a token becomes its byte
 * tokens or the unknown token. The work memory holds words of 4 KiB and grows for longer ones. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/vocab.h"

struct bpe {
    /* [n_slots] hash table by pair, open addressing; flat like the arrays of vocab */
    struct merge *merge;
    uint32_t n_slots, n_merges;
    bool ignore_merges; /* a word that is a token is not split */
    bool byte_fallback, fuse_unk;
    bool cuts_at_marks; /* no merge crosses the beginning of a run of U+2581 */
    token_id unk;       /* -1: unknown characters are dropped, as in the reference */
    token_id of_byte[256];
    struct part *part; /* work memory: [cap] */
    uint64_t *heap;    /* work memory: [heap_cap] rank << 32 | part; 3 entries for each part */
    uint32_t cap, heap_cap;
};

struct merge {
    uint64_t pair; /* left token << 32 | right token */
    uint32_t rank; /* position in the list; UINT32_MAX: empty entry */
    token_id made;
};

/* Reads "merges" of the model; the last event opened the list. v must be complete except for added
 * tokens. */
int bpe_open(struct bpe *b, const struct vocab *v, struct json merges, struct err *e) MUST_USE;
/* Call before the first word, also if the merges came from a file. -ENOTSUP: v lacks required
 * tokens. */
int bpe_prepare(struct bpe *b, const struct vocab *v, struct err *e) MUST_USE;
void bpe_free(struct bpe *b);

/* Encodes word[n], n > 0, into ids[cap]. Returns the number of tokens, -EMSGSIZE if cap is too
 * small, -ENOMEM. */
int bpe_word(struct bpe *b, const struct vocab *v, const char *word, size_t n, token_id *ids,
             uint32_t cap) MUST_USE;

bool bpe_is_sound(const struct bpe *b, const struct vocab *v); /* as vocab_is_sound() */
