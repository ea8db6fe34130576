/* detok.h - tokens to text as they come, never half a character, never text that may begin a stop.
 *
 *     token -> decoder -> held while a UTF-8 character is incomplete
 *                          -> held while it may be the start of a stop string -> text
 *
 * State is a small struct in the caller's memory; replaying the tokens delivered so far rebuilds it.
 * Where tokens begin and end never matters: the text that comes out, end included, is the decoded text
 * up to the first stop. First is the stop that is complete first; of several complete at one byte, the
 * longest.
 */
#ifndef TEXT_DETOK_H
#define TEXT_DETOK_H

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
    struct chat_reply reply; /* set behind detok_init(): only what it shows is text */
    struct decoding text;    /* half a character, and what the decoder does once only */
    bool stopped;
    uint32_t n_held;
    char held[DETOK_HELD]; /* whole characters that may begin a stop: less than the longest stop */
};

void detok_init(struct detok *d, const struct tokenizer *t, bool keep_special);
/* -EINVAL: empty, longer than 256 bytes or not UTF-8; -ENOSPC: more than 16. */
int detok_stop(struct detok *d, const char *s, uint32_t n) MUST_USE;
/* One more token: text ready to give out is written to buf. Its length; *stopped: a stop string is
 * complete, what precedes it has been written, and nothing follows from now on. -EMSGSIZE, nothing
 * changed: cap is below DETOK_HELD + 3 * tokenizer_longest(). An id that is none gives no text. */
int detok_add(struct detok *d, token_id id, char *buf, size_t cap, bool *stopped) MUST_USE;
/* What was held; half a character as U+FFFD. -EMSGSIZE: cap is below DETOK_HELD. */
int detok_end(struct detok *d, char *buf, size_t cap) MUST_USE;

#endif
