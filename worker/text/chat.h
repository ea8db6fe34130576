/* chat.h - renders a conversation with the chat template of a model; selects the output part of a
 * reply.
 *
 * The template of a checkpoint is a Jinja program. lagan has the templates of some model families
 * as C functions. chat_open() selects one by the hash of the program, else by architecture and
 * present tokens, or takes the named one. The text equals the result of Hugging Face's
 * apply_chat_template() without tools and with a generation prompt; encoded bare it gives the same
 * ids. A special token inside a message becomes that token, as there.
 *
 * A conversation is a line with its date, YYYY-MM-DD, and JSON: [{"role": "user", "content":
 * "..."}, ...]. Roles are system (or developer; only first), user and assistant. Other keys are
 * ignored, except tool_calls, which is rejected, and reasoning_content, if the template uses it.
 *
 * gpt-oss replies in channels; only the channel "final" is output text.
 *
 * Pure: no threads, no I/O after chat_open(), no allocation.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"
#include "worker/text/tokenizer.h"

enum { CHAT_AUTO, CHAT_NONE, CHAT_NAMED }; /* CHAT_NAMED + i: chat_name(i) */
enum { CHAT_DAY = 11 };                    /* bytes of date and newline */

struct chat {
    const struct chat_template *template;             /* NULL: none; why has the reason */
    token_id channel, message, start, end, ret, call; /* tokens of harmony, else -1 */
    char why[240];
};

/* Names of the templates: the values of the key chat_template. NULL: i is too large. */
const char *chat_name(uint32_t i);

/* Selects the template for the checkpoint in dir. wanted: CHAT_AUTO, CHAT_NONE or CHAT_NAMED + i.
 * *c is always usable. note: a warning for the log, or "". */
void chat_open(struct chat *c, const char *dir, uint32_t wanted, struct tokenizer *t,
               char note[240]);

/* Renders a conversation into buf[cap] and returns its length; work: n bytes of scratch memory.
 * -EMSGSIZE: cap is too small. -EINVAL: not a valid conversation for the template. -ENOTSUP: no
 * template. Each with a sentence. */
int chat_render(const struct chat *c, const char *text, size_t n, char *work, char *buf, size_t cap,
                struct err *e) MUST_USE;

/* State of a reply. Zeroed: at its beginning, all text is output. */
struct chat_reply {
    const struct chat *chat; /* NULL: all text is output */
    bool naming, hidden;
    uint8_t n;
    char name[8]; /* name of the channel, as far as received */
};

void chat_reply_begin(struct chat_reply *r, const struct chat *c);
/* Handles the next token. Returns true if its text is output. */
bool chat_shows(struct chat_reply *r, const struct tokenizer *t, token_id id);
