/* chat.h - converts a conversation to the prompt text that a model expects (its chat template), and
 * selects the tokens of a model's reply that are output text.
 *
 * The chat template of a checkpoint is a Jinja program. lagan does not execute it, but has the
 * templates of some model families as C data and functions. chat_open() selects one of these by the
 * hash of the Jinja program, else by architecture and the tokens of the vocabulary, or takes the
 * one that the option chat_template names. The rendered text equals the result of Hugging Face's
 * apply_chat_template() without tools and with a generation prompt; encoded without the
 * post-processor's tokens it gives the same ids. The text of a special token inside a message
 * becomes this token, as in Hugging Face.
 *
 * A conversation is a line with its date, YYYY-MM-DD, and JSON: [{"role": "user", "content":
 * "..."}, ...]. Roles are system (or developer; only first), user and assistant. Other keys are
 * ignored, except tool_calls, which is rejected, and reasoning_content, if the template uses it.
 *
 * gpt-oss (template harmony) replies in channels: sections of the reply with a name. Only the text
 * of the channel "final" is output; the others are reasoning.
 *
 * No function uses threads or allocates; only chat_open() does I/O. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "worker/text/tokenizer.h"

enum { CHAT_AUTO, CHAT_NONE, CHAT_NAMED }; /* CHAT_NAMED + i: the template chat_name(i) */
enum { CHAT_DAY = 11 };                    /* bytes of the date and its newline */

struct chat {
    const struct chat_template *template;             /* NULL: conversations are refused */
    token_id channel, message, start, end, ret, call; /* tokens of harmony, else -1 */
    char why[240];                                    /* the reason why template is NULL */
};

/* Returns the name of template i, a value of the option chat_template. NULL: i is too large. */
const char *chat_name(uint32_t i);

/* Selects the template for the checkpoint in dir. wanted: CHAT_AUTO, CHAT_NONE or CHAT_NAMED + i.
 * *c is always usable, its template may be NULL. note: a warning for the log, or "". */
void chat_open(struct chat *c, const char *dir, uint32_t wanted, struct tokenizer *t,
               char note[240]);

/* Renders a conversation into buf[cap] and returns its length; work: n bytes of scratch memory.
 * -EMSGSIZE: cap is too small. -EINVAL, -EBADMSG: not a valid conversation for the template.
 * -ENOTSUP: c has no template. e gets a message for the client. */
int chat_render(const struct chat *c, const char *text, size_t n, char *work, char *buf, size_t cap,
                struct err *e) MUST_USE;

/* State of reading a reply token by token. A zeroed struct outputs all text. */
struct chat_reply {
    const struct chat *chat; /* NULL: all text is output */
    bool naming;             /* the tokens are the name of a channel */
    bool hidden;             /* the tokens are not output */
    uint8_t n;
    char name[8]; /* the first n bytes of the channel's name */
};

/* Starts a reply to a conversation that c has rendered. */
void chat_reply_begin(struct chat_reply *r, const struct chat *c);
/* Reads the next token of the reply. Returns true if its text is output. */
bool chat_shows(struct chat_reply *r, const struct tokenizer *t, token_id id);
