/* chat_templates.h - the chat templates that lagan has: the text that each prints around the
 * messages of a conversation. chat.c selects a template and calls its functions. */
#pragma once
#include "base/base.h"

struct span {
    const char *p;
    size_t n;
};

/* The rendered text. n is its length also if that exceeds cap; bytes beyond cap are not written. */
struct out {
    char *p;
    size_t n, cap;
};

enum role { SYSTEM, USER, ASSISTANT, DEVELOPER }; /* in the order of the names in chat.c */
enum { REASONING_CONTENT = 1, REASONING = 2 };    /* keys of a message that have its reasoning */

struct message {
    enum role role;
    struct span content;
    uint8_t reasons; /* set of the reasoning keys that the message has */
};

/* State while a conversation is rendered. */
struct chat_state {
    struct out o;
    struct span system; /* the separate system message; .p NULL: none */
    const char *day;    /* YYYY-MM-DD */
    bool first, last;  /* this message is the first, the last, except the separate system message */
    bool open;         /* Gemma 4: the previous message was a reply that this one may continue */
    int32_t at, query; /* index of this message, and of the last user message (-1: none) */
};

/* The text before and behind the content of a message, by role: SYSTEM, USER, ASSISTANT. */
struct chat_format {
    const char *before[3], *behind[3];
    unsigned trims; /* 1 << role: white space around the content is removed */
    /* The user message whose content chat_put() begins with the system message and "\n\n". */
    enum { NO_MESSAGE, FIRST_MESSAGE, LAST_MESSAGE } with_system;
};

enum {
    CHAT_ALTERNATES = 1, /* the roles must be user, assistant, user, ... */
    CHAT_NO_SYSTEM = 2,  /* a system message is rejected */
    /* A system message is rendered as any other message. Without this flag a first system message
     * is separate: the template prints it elsewhere (chat_state.system). */
    CHAT_SYSTEM_IS_MESSAGE = 4,
    CHAT_LATE_SYSTEM = 8, /* a system message may follow other messages */
    CHAT_DEVELOPER = 16,  /* the first message may have role developer instead of system */
    CHAT_CHANNELS = 32    /* a reply has channels, and one channel is the output (chat.h) */
};

struct chat_template {
    const char *name;     /* value of the option chat_template */
    const char *needs[3]; /* tokens that the vocabulary must have for this template */
    uint8_t named; /* the first `named` of needs[] are the Jinja program's bos_token, eos_token */
    /* Reasoning keys that the Jinja program renders in messages after the last user message. lagan
     * refuses a message that has such a key there. */
    uint8_t thinks;
    unsigned flags;
    const char *begin; /* printed first */
    /* Printed next in the format of a system message: the separate system message or, without one,
     * this text if it is not "". NULL: format, preamble() or message() prints the separate system
     * message. */
    const char *system;
    const struct chat_format *format;
    const char *reply;                      /* printed last: the start of the model's reply */
    void (*preamble)(struct chat_state *s); /* NULL, or prints text after begin and system */
    /* NULL, or prints one message instead of chat_put() with format */
    void (*message)(struct chat_state *s, const struct message *t);
};

/* In the order of the values of the option chat_template. */
enum { CHAT_TEMPLATES = 16 };
extern const struct chat_template chat_templates[CHAT_TEMPLATES];

/* Prints a string; prints a message in format f. */
void chat_say(struct out *o, const char *words);
void chat_put(struct chat_state *s, const struct chat_format *f, const struct message *t);
