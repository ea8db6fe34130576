/* chat_templates.h - the chat templates of chat.h: the text that each prints around the messages.
 */
#pragma once

#include "base/base.h"
#include "base/err.h"

struct span {
    const char *p;
    size_t n;
};

struct out {
    char *p;
    size_t n, cap; /* n counts beyond cap too */
};

enum role { SYSTEM, USER, ASSISTANT, DEVELOPER };
enum { REASONING_CONTENT = 1, REASONING = 2 }; /* keys of a message */

struct message {
    enum role role;
    struct span content;
    uint8_t reasons; /* its reasoning is present: REASONING_CONTENT, REASONING */
};

/* State while a conversation is rendered: begin, each message, start of the reply. */
struct chat_state {
    struct out o;
    struct span system; /* .p NULL: none */
    const char *day;
    bool first, last;  /* of the messages, without the system message */
    bool open;         /* the previous message is not closed yet */
    int32_t at, query; /* index of this message and of the last user message; -1: none */
    struct err *e;
};

struct chat_template {
    const char *name;
    const char *needs[3]; /* tokens that the vocabulary must have for this template */
    uint8_t named;        /* number of these that the program calls bos_token and eos_token */
    bool alternates;      /* only user, assistant, user, ... is valid */
    /* the system message is passed to message() too; otherwise it is separate, */
    bool system_is_message;
    bool late_system; /* and a later one is rejected unless this is set */
    bool developer;   /* role developer may replace system */
    bool channels;    /* a reply has channels; one is the output */
    /* keys of reasoning that are rendered if it follows the last user message, otherwise dropped */
    uint8_t thinks;
    int (*begin)(struct chat_state *s);
    void (*message)(struct chat_state *s, const struct message *t);
    const char *reply;
};

/* In the order of the key chat_template. begin: -EINVAL with a sentence if the system message is
 * not allowed. */
enum { CHAT_TEMPLATES = 16 };
extern const struct chat_template chat_templates[CHAT_TEMPLATES];

void chat_say(struct out *o, const char *words);
