/* chat_templates.h - the templates of chat.h: what each prints around the turns of a conversation. */
#ifndef TEXT_CHAT_TEMPLATES_H
#define TEXT_CHAT_TEMPLATES_H

#include "base/base.h"
#include "base/err.h"

struct span {
    const char *p;
    size_t n;
};

struct out {
    char *p;
    size_t n, cap; /* n goes on counting beyond cap */
};

enum role { SYSTEM, USER, ASSISTANT, DEVELOPER };
enum { REASONING_CONTENT = 1, REASONING = 2 }; /* keys of a message */

struct turn {
    enum role role;
    struct span content;
    uint8_t reasons; /* what was thought is beside it: REASONING_CONTENT, REASONING */
};

/* One conversation on its way: how it begins, a turn, how the reply begins. */
struct chat_state {
    struct out o;
    struct span system; /* .p NULL: none */
    const char *day;
    bool first, last;  /* of this turn, the system's not counted */
    bool open;         /* the turn before it is not ended yet */
    int32_t at, query; /* in messages[]: this turn, and the last question; -1: there is none */
    struct err *e;
};

struct chat_template {
    const char *name;
    const char *needs[3]; /* tokens of the vocabulary, without which it is not this template */
    uint8_t named;        /* so many of them the program calls bos_token and eos_token */
    bool alternates;      /* user, assistant, user, ... and nothing else */
    bool system_is_turn;  /* the first too; else it is taken out, */
    bool late_system;     /* and another is refused, unless it is a turn here */
    bool developer;       /* may stand for the system */
    bool channels;        /* of the reply one is the answer */
    /* Where it thought for the last question: keys of it that are shown to it, and else left out. */
    uint8_t thinks;
    int (*begin)(struct chat_state *s);
    void (*turn)(struct chat_state *s, const struct turn *t);
    const char *reply;
};

/* In the order of the key chat_template. begin: -EINVAL with a sentence, when a system message cannot be. */
enum { CHAT_TEMPLATES = 16 };
extern const struct chat_template chat_templates[CHAT_TEMPLATES];

void chat_say(struct out *o, const char *words);

#endif
