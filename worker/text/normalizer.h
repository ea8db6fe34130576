/* normalizer.h - what "normalizer" makes of text before it is cut into words.
 *
 * Served: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Precompiled, and Sequence
 * of them. Any length of text costs a time in proportion, runs of combining marks included.
 */
#ifndef TEXT_NORMALIZER_H
#define TEXT_NORMALIZER_H

#include "base/base.h"
#include "base/err.h"
#include "base/json.h"
#include "worker/text/text_buffer.h"

enum { NORMAL_MAX_STEPS = 8 };

struct normal_step;

struct normal {
    struct normal_step *step; /* [n] */
    uint32_t n;
    bool moves_first;    /* what is first in the text may go away */
    struct room room[2]; /* a step writes to the one that it does not read */
    struct room wide;    /* characters of the Unicode forms */
};

/* Read "normalizer": the event just read is its value. -ENOTSUP: a kind we do not do, by name. */
int normalizer_open(struct normal *m, struct json *j, struct err *e) MUST_USE;
void normalizer_free(struct normal *m);

/* *text (UTF-8) of *n bytes becomes what the steps make of it, in m's room until the next call. */
int normalizer_run(struct normal *m, const char **text, size_t *n, struct err *e) MUST_USE;

#endif
