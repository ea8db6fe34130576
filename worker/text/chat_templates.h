/* chat_templates.h - the chat templates of chat.h: the text that each prints around the messages.
 */
#pragma once

#include "base/base.h"

struct span {
    const char *p;
    size_t n;
};

struct out {
    char *p;
    size_t n, cap; /* n counts beyond cap too */
};

enum role { SYSTEM, USER, ASSISTANT, DEVELOPER }; /* names: chat.c */
enum { REASONING_CONTENT = 1, REASONING = 2 };    /* keys of a message */

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
};

/* Text around the content of a message, by role: SYSTEM, USER, ASSISTANT. */
struct chat_format {
    const char *before[3], *behind[3];
    unsigned trims; /* 1 << role: the content is trimmed */
    /* the user message that the system message and an empty line precede */
    enum { NO_MESSAGE, FIRST_MESSAGE, LAST_MESSAGE } with_system;
};

enum {
    CHAT_ALTERNATES = 1,        /* only user, assistant, user, ... is valid */
    CHAT_NO_SYSTEM = 2,         /* a system message is rejected */
    CHAT_SYSTEM_IS_MESSAGE = 4, /* the system message is a message; otherwise it is separate */
    CHAT_LATE_SYSTEM = 8,       /* a system message may follow other messages */
    CHAT_DEVELOPER = 16,        /* role developer may replace system */
    CHAT_CHANNELS = 32          /* a reply has channels; one is the output */
};

struct chat_template {
    const char *name;
    const char *needs[3]; /* tokens that the vocabulary must have for this template */
    uint8_t named;        /* number of these that the program calls bos_token and eos_token */
    /* keys of reasoning that are rendered if it follows the last user message, otherwise dropped */
    uint8_t thinks;
    unsigned flags;
    const char *begin; /* printed first */
    /* Printed next, as a system message of the format: the separate system message, or this text if
     * there is none and the text is not "". NULL: no such message. */
    const char *system;
    const struct chat_format *format;
    /* NULL, or printed after begin; NULL, or replaces the format for messages */
    void (*preamble)(struct chat_state *s);
    void (*message)(struct chat_state *s, const struct message *t);
    const char *reply;
};

/* In the order of the key chat_template. */
enum { CHAT_TEMPLATES = 16 };
extern const struct chat_template chat_templates[CHAT_TEMPLATES];

void chat_say(struct out *o, const char *words);
void chat_put(struct chat_state *s, const struct chat_format *f, const struct message *t);
