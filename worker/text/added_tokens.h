/* added_tokens.h - added tokens, which are cut out of raw text before any other step.
 *
 * The leftmost token is taken, the longest if several begin there. Special tokens in a client's
 * text are found like any other, as in Hugging Face tokenizers. Tokens with "normalized": false are
 * cut out of the whole text first, the others out of the rest. */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/normalizer.h"
#include "worker/text/vocab.h"

struct added_token {
    uint32_t at, len; /* in added.text */
    token_id id;
    uint8_t lstrip, rstrip; /* also takes the white space before or behind it */
    uint8_t single_word;    /* only if no word character precedes or follows */
    uint8_t normalized;
};

struct added {
    /* [n] normalized: false first, then sorted by bytes; flat like the arrays of vocab */
    struct added_token *token;
    char *text; /* search texts, concatenated */
    uint32_t n, n_text;
    struct {
        uint32_t first, end;
    } by_byte[2][256]; /* tokens of each kind whose first byte is the index */
};

/* Reads "added_tokens"; the last event opened the list. v must be complete except for these tokens;
 * they are added to v and marked special if they are. m normalises the search texts of tokens
 * without "normalized": false. */
int added_tokens_open(struct added *a, struct vocab *v, struct normal *m, struct json list,
                      struct err *e) MUST_USE;
/* Call before the first text, also if the tokens came from a file. */
void added_tokens_prepare(struct added *a);
/* as vocab_is_sound() */
bool added_tokens_is_sound(const struct added *a, const struct vocab *v);
void added_tokens_free(struct added *a);

/* The position of a search: text up to walk->at is done. */
struct added_walk {
    const char *text;
    size_t n, at; /* at: where the search continues */
    size_t from;  /* end of the last token found */
};

/* Finds the next token of one kind. Returns its id and the text before it in [*gap, *gap +
 * *gap_len), or -1 with the rest of the text as the gap. */
token_id added_tokens_next(const struct added *a, bool normalized, struct added_walk *w,
                           const char **gap, size_t *gap_len);
