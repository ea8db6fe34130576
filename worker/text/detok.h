/* detok.h - tokens to text as they come, never half a character, never text that may begin a stop.
 *
 *     token -> piece bytes -> held while a UTF-8 character is incomplete
 *                          -> held while it may be the start of a stop string -> text
 *
 * State is a small struct in the caller's memory; replaying the tokens delivered so far rebuilds it.
 */
#ifndef TEXT_DETOK_H
#define TEXT_DETOK_H

#include "base/base.h"
#include "worker/text/tokenizer.h"

enum { DETOK_MAX_STOPS = 16, DETOK_HELD = 1024 };

struct detok {
    const struct tokenizer *t;
    bool keep_special;
    uint32_t n_stop;
    const char *stop[DETOK_MAX_STOPS]; /* the caller keeps them */
    uint32_t stop_len[DETOK_MAX_STOPS];
    uint32_t n_held;
    char held[DETOK_HELD]; /* bytes not yet given out */
};

void detok_init(struct detok *d, const struct tokenizer *t, bool keep_special);
/* -EINVAL: empty or longer than 256 bytes; -ENOSPC: more than 16. */
int detok_stop(struct detok *d, const char *s, uint32_t n) MUST_USE;
/* One more token: text ready to give out is appended to buf (cap at least DETOK_HELD + the longest
 * piece). Bytes written; *stopped: a stop string is complete, what precedes it has been written. */
int detok_add(struct detok *d, token_id id, char *buf, size_t cap, bool *stopped) MUST_USE;
int detok_end(struct detok *d, char *buf,
              size_t cap) MUST_USE; /* what was held; half characters as U+FFFD */

#endif
