/* added_tokens.h - the tokens that are cut out of raw text before anything else happens to it.
 *
 * Leftmost first, the longest where several begin; special tokens in a client's text are found like
 * any other, as in Hugging Face tokenizers. Those that a normaliser does not touch ("normalized":
 * false) are cut first over the whole text, the others in what is left between them.
 */
#ifndef TEXT_ADDED_TOKENS_H
#define TEXT_ADDED_TOKENS_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/normalizer.h"
#include "worker/text/vocab.h"

struct added_token {
    uint32_t at, len; /* in text */
    token_id id;
    uint8_t lstrip, rstrip; /* also takes the white space before it, behind it */
    uint8_t single_word;    /* not where a word goes on before it or behind it */
    uint8_t normalized;
};

struct added {
    struct added_token
        *token; /* [n] normalized: false first, then by bytes; flat as vocab's arrays */
    char *text; /* what is looked for, one token after the other */
    uint32_t n, n_text;
    struct {
        uint32_t first, end;
    } by_byte[2][256]; /* tokens of each kind that begin with a byte */
};

/* Read "added_tokens": the event just read opens the list. v is complete but for them; they are
 * entered into it and marked special where they are. What is looked for of the others than
 * "normalized": false is what m makes of them. */
int added_tokens_open(struct added *a, struct vocab *v, struct normal *m, struct json list,
                      struct err *e) MUST_USE;
/* Before the first text, tokens read or taken from a file. */
void added_tokens_prepare(struct added *a);
bool added_tokens_is_sound(const struct added *a, const struct vocab *v); /* as vocab_is_sound() */
void added_tokens_free(struct added *a);

/* Where the next one is: walk->at up to `from` has been dealt with. */
struct added_walk {
    const char *text;
    size_t n, at; /* at: where to look on */
    size_t from;  /* what is cut off already */
};

/* The next token of one kind: its id with the text before it in [*gap, *gap + *gap_len), or -1 with
 * all that is left as the gap. */
token_id added_tokens_next(const struct added *a, bool normalized, struct added_walk *w,
                           const char **gap, size_t *gap_len);

#endif
