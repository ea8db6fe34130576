/* bpe.h - byte pair encoding (BPE): splits a word into single-character tokens and merges adjacent
 * tokens until no merge is possible.
 *
 * A merge replaces two adjacent tokens by one; "merges" of tokenizer.json lists all merges, and the
 * position in the list is the rank. The merge with the lowest rank is done first, of equal ranks
 * the leftmost. A word is a piece of the pre-tokeniser. In a byte-level vocabulary a word starts as
 * the tokens of its bytes, in others as tokens of characters; a character without a token becomes
 * its byte tokens or the unknown token. Work memory suffices for words of 4 KiB and grows. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/vocab.h"

struct bpe {
    /* [n_slots] hash table of the merges by pair, open addressing. No pointers, as in vocab.h */
    struct merge *merge;
    uint32_t n_slots, n_merges;
    bool ignore_merges; /* a word that is a token is not split */
    bool byte_fallback; /* a character without a token becomes its byte tokens */
    bool fuse_unk;      /* adjacent unknown characters become one unknown token */
    bool cuts_at_marks; /* no merge joins tokens across the beginning of a run of U+2581 */
    token_id unk;       /* -1: unknown characters are dropped, as in the tokenizers library */
    token_id of_byte[256];
    struct part *part; /* work memory [cap]: the tokens of the word */
    uint64_t *heap;    /* work memory [heap_cap]: possible merges, rank << 32 | index of part */
    uint32_t cap, heap_cap;
};

struct merge {
    uint64_t pair; /* left token << 32 | right token */
    uint32_t rank; /* UINT32_MAX: empty entry of the hash table */
    token_id made; /* the token that replaces the pair */
};

/* Reads "merges", an array that the last event opened. v must have all tokens except added ones. */
int bpe_open(struct bpe *b, const struct vocab *v, struct json merges, struct err *e) MUST_USE;
/* Allocates work memory and fills of_byte. To be called before the first word, also if merge[] is
 * from the vocabulary cache. -ENOTSUP: v is byte-level and lacks the token of a byte. */
int bpe_prepare(struct bpe *b, const struct vocab *v, struct err *e) MUST_USE;
void bpe_free(struct bpe *b);
bool bpe_has_all_bytes(const struct bpe *b); /* true: no character is dropped or unknown */

/* Encodes word[n], n > 0, into ids[cap]. Returns the number of ids, -EMSGSIZE or -ENOMEM. */
int bpe_word(struct bpe *b, const struct vocab *v, const char *word, size_t n, token_id *ids,
             uint32_t cap) MUST_USE;

/* Checks arrays of the vocabulary cache: returns true if every index is in range. */
bool bpe_is_sound(const struct bpe *b, const struct vocab *v);
