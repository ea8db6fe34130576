/* detok.h - converts the tokens of an output to text as they are sampled, and ends the text at the
 * first stop string.
 *
 *     token -> decoder -> held while a UTF-8 character is incomplete
 *                          -> held while it may be the start of a stop string -> text
 *
 * "Held" text is not returned yet. The state is a struct of the caller; adding all tokens of an
 * output again rebuilds it. The text does not depend on token boundaries: it is the decoded text
 * before the first stop string. The first stop string is the one that is complete first; of several
 * that are complete at the same byte, the longest. */
#pragma once
#include "base/base.h"
#include "worker/text/chat.h"
#include "worker/text/tokenizer.h"

enum { DETOK_MAX_STOPS = 16, DETOK_HELD = 1024 };

struct detok {
    const struct tokenizer *t;
    bool keep_special;
    uint32_t n_stop;
    const char *stop[DETOK_MAX_STOPS]; /* stop strings, in memory of the caller */
    uint32_t stop_len[DETOK_MAX_STOPS];
    struct chat_reply reply; /* selects the tokens that are text; set after detok_init() */
    struct decoding text;    /* an incomplete character, and the decoder's state */
    uint32_t stopped;        /* 1 + index of the stop string that is complete; 0: none */
    uint32_t n_held;
    char held[DETOK_HELD]; /* the longest suffix of the text that begins a stop string */
};

/* keep_special: special tokens have text too. */
void detok_init(struct detok *d, const struct tokenizer *t, bool keep_special);
/* Adds a stop string. -EINVAL: empty, above 256 bytes or not UTF-8; -ENOSPC: more than 16. */
int detok_stop(struct detok *d, const char *s, uint32_t n) MUST_USE;
/* Adds a token, writes the text that is not held to buf and returns its length. *stopped becomes
 * true if a stop string is complete; the text before it has then been written, and no text follows.
 * An invalid id gives no text. -EMSGSIZE, no change: cap < DETOK_HELD + 3 * tokenizer_longest(). */
int detok_add(struct detok *d, token_id id, char *buf, size_t cap, bool *stopped) MUST_USE;
/* Ends the text: writes the held text to buf, an incomplete character as U+FFFD, and returns its
 * length. -EMSGSIZE: cap is below DETOK_HELD. */
int detok_end(struct detok *d, char *buf, size_t cap) MUST_USE;
