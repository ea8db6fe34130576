/* detok.h - streams tokens as text; holds back incomplete characters and possible starts of stop
 * strings.
 *
 *     token -> decoder -> held while a UTF-8 character is incomplete
 *                          -> held while it may be the start of a stop string -> text
 *
 * The state is a small struct of the caller; replaying the delivered tokens rebuilds it. The text
 * does not depend on token boundaries: it is the decoded text before the first stop. The first stop
 * is the one that is complete first; of several complete at the same byte, the longest. */
#pragma once

#include "base/base.h"
#include "worker/text/chat.h"
#include "worker/text/tokenizer.h"

enum { DETOK_MAX_STOPS = 16, DETOK_HELD = 1024 };

struct detok {
    const struct tokenizer *t;
    bool keep_special;
    uint32_t n_stop;
    const char *stop[DETOK_MAX_STOPS]; /* the caller keeps them */
    uint32_t stop_len[DETOK_MAX_STOPS];
    struct chat_reply reply; /* set after detok_init(): only its output part is text */
    struct decoding text;    /* an incomplete character, and the decoder's state */
    bool stopped;
    uint32_t n_held;
    /* complete characters that may begin a stop: shorter than the longest stop */
    char held[DETOK_HELD];
};

void detok_init(struct detok *d, const struct tokenizer *t, bool keep_special);
/* -EINVAL: empty, longer than 256 bytes or not UTF-8; -ENOSPC: more than 16. */
int detok_stop(struct detok *d, const char *s, uint32_t n) MUST_USE;
/* Adds a token and writes the text that is ready to buf; returns its length. *stopped: a stop
 * string is complete, the text before it was written, no text follows. An invalid id gives no text.
 * -EMSGSIZE, state unchanged: cap is below DETOK_HELD + 3 * tokenizer_longest(). */
int detok_add(struct detok *d, token_id id, char *buf, size_t cap, bool *stopped) MUST_USE;
/* Writes the held text; an incomplete character becomes U+FFFD. -EMSGSIZE: cap is below DETOK_HELD.
 */
int detok_end(struct detok *d, char *buf, size_t cap) MUST_USE;
