/* chat.h - a conversation to the text that a model was trained on, and what of its reply is the answer.
 *
 * A checkpoint has its template as a program (Jinja). We have what the programs of some families print, as functions:
 * chat_open() finds the right one by the program's hash, then by the architecture and the tokens that are there, or
 * takes the one that is named. The text is what Hugging Face's apply_chat_template() renders without tools and with
 * a generation prompt; encoded bare it has its ids. A special token that stands in a message is that token, as there.
 *
 * A conversation comes as a line with the day it was asked, YYYY-MM-DD, and JSON: [{"role": "user", "content":
 * "..."}, ...]. Roles are system (developer), first if at all, user and assistant. Other keys say nothing but
 * tool_calls, which is refused, and where a template shows what was thought reasoning_content.
 *
 * gpt-oss replies in channels: of such a reply only what the channel "final" says is the answer's text.
 *
 * Pure: no thread; no I/O after chat_open(), no memory.
 */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/base.h"
#include "base/err.h"
#include "worker/text/tokenizer.h"

enum { CHAT_AUTO, CHAT_NONE, CHAT_NAMED }; /* NAMED + i: the i-th of chat_name() */
enum { CHAT_DAY = 11 };                    /* bytes of the day and its end of line */

struct chat {
    const struct chat_template *template;             /* NULL: none, why says it */
    token_id channel, message, start, end, ret, call; /* harmony's, else -1 */
    char why[240];
};

/* Names of the templates, which are the values of the key chat_template. NULL: there is no such. */
const char *chat_name(uint32_t i);

/* For the checkpoint in dir. wanted: CHAT_AUTO ... Always leaves *c usable; a sentence for the log
 * in note, empty where all is as it should be. */
void chat_open(struct chat *c, const char *dir, uint32_t wanted, struct tokenizer *t,
               char note[240]);

/* A conversation as text into buf[cap]; room: n bytes of the caller's. Its length. -EMSGSIZE: cap is too small.
 * -EINVAL: no conversation, or none that the template takes; -ENOTSUP: no template. Each with its sentence. */
int chat_render(const struct chat *c, const char *text, size_t n, char *room, char *buf, size_t cap,
                struct err *e) MUST_USE;

/* Where in a reply we are. Zeroed: at its beginning, and all of it is shown. */
struct chat_reply {
    const struct chat *chat; /* NULL: all is shown */
    bool naming, hidden;
    uint8_t n;
    char name[8]; /* of the channel, as far as it is read */
};

void chat_reply_begin(struct chat_reply *r, const struct chat *c);
/* The next token: is its text part of the answer? */
bool chat_shows(struct chat_reply *r, const struct tokenizer *t, token_id id);

#endif
