/* added.h - the tokens that are cut out of raw text before anything else happens to it.
 *
 * Leftmost first, the longest where several begin; special tokens in a client's text are found like
 * any other, as in Hugging Face tokenizers. Those that a normaliser does not touch ("normalized":
 * false) are cut first over the whole text, the others in what is left between them.
 */
#ifndef TEXT_ADDED_H
#define TEXT_ADDED_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/vocab.h"

struct added_token {
    char *text;
    size_t len;
    token_id id;
    bool lstrip, rstrip; /* also takes the white space before it, behind it */
    bool normalized;
};

struct added {
    struct added_token *token; /* normalized: false first, then by bytes */
    uint32_t n;
    struct {
        uint32_t first, end;
    } by_byte[2][256]; /* tokens of each kind that begin with a byte */
};

/* Read "added_tokens": the event just read opens the list. v is complete but for them; they are
 * entered into it and marked special where they are. */
int added_open(struct added *a, struct vocab *v, struct json list, struct err *e) MUST_USE;
void added_free(struct added *a);

/* Where the next one is: walk->at up to `from` has been dealt with. */
struct added_walk {
    const char *text;
    size_t n, at; /* at: where to look on */
    size_t from;  /* what is cut off already */
};

/* The next token of one kind: its id with the text before it in [*gap, *gap + *gap_len), or -1 with
 * all that is left as the gap. */
token_id added_next(const struct added *a, bool normalized, struct added_walk *w, const char **gap,
                    size_t *gap_len);

#endif
