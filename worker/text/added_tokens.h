/* added_tokens.h - finds "added_tokens" of tokenizer.json in a text: tokens such as "<|eot_id|>",
 * which are cut out of the text before its words are encoded.
 *
 * The leftmost token is taken, the longest if several begin there. Special tokens in a client's
 * text are found like any other, as in Hugging Face tokenizers. There are two kinds: tokens with
 * "normalized": false are cut out of the raw text; then the text between them is normalised, and
 * all other added tokens, whose search texts are normalised too, are cut out of it. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/normalizer.h"
#include "worker/text/vocab.h"

struct added_token {
    uint32_t at, len; /* the search text, in added.text */
    token_id id;
    uint8_t lstrip, rstrip; /* the token includes the white space before or behind it */
    uint8_t single_word;    /* found only if no word character precedes or follows */
    uint8_t normalized;     /* the kind: searched in normalised text */
};

struct added {
    /* [n], tokens with normalized 0 first, each kind sorted by bytes. No pointers, as in vocab.h */
    struct added_token *token;
    char *text; /* search texts of all tokens, concatenated */
    uint32_t n, n_text;
    struct {
        uint32_t first, end;
    } by_byte[2][256]; /* range of the tokens by [normalized][first byte] */
};

/* Reads the array "added_tokens", which the last event of the scanner `list` opened. Adds the
 * tokens to v, which must have the model's tokens, and marks special ones. m normalises texts. */
int added_tokens_open(struct added *a, struct vocab *v, struct normal *m, struct json list,
                      struct err *e) MUST_USE;
/* Fills by_byte. Called before the first search, also if token[] is from the vocabulary cache. */
void added_tokens_prepare(struct added *a);
/* Checks arrays of the vocabulary cache: returns true if every index is in range. */
bool added_tokens_is_sound(const struct added *a, const struct vocab *v);
void added_tokens_free(struct added *a);

/* State of a search in text[n]. The caller sets text and n. */
struct added_walk {
    const char *text;
    size_t n, at; /* at: where the search continues */
    size_t from;  /* end of the last token found */
};

/* Finds the next added token of one kind in the text of w. Returns its id and the text before it in
 * [*gap, *gap + *gap_len), or -1 with the rest of the text as the gap. */
token_id added_tokens_next(const struct added *a, bool normalized, struct added_walk *w,
                           const char **gap, size_t *gap_len);
