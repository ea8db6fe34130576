/* ask.h - one CALL and its REPLY, for the files that implement verbs: commands.c, followed.c,
 * served.c, text_verbs.c. */
#pragma once
#include "base/log.h"
#include "daemon/net/frontend.h"
#include "daemon/ops/commands.h"

struct ask { /* one CALL */
    struct daemon *d;
    struct client *c;
    uint64_t rid;
    const char *verb;
    const msgpack_object *args; /* a map; NULL: none given */
    msgpack_packer p;
    bool replied; /* cmd_ID() has packed a REPLY, which command_call() sends */
};

/* Starts the REPLY to the CALL `a`; the command then packs one value into the returned packer. */
static inline msgpack_packer *
reply(struct ask *a)
{
    frontend_reply(a->d, a->rid, &a->p);
    a->replied = true;
    return &a->p;
}

#define REFUSE(a, code, ...) \
    do { \
        if (frontend_error((a)->d, (a)->c, (a)->rid, code, 0, __VA_ARGS__) < 0) \
            log_debug("cannot send an ERROR to a client, which does not read or is gone"); \
    } while (0)

static inline void
put_text(msgpack_packer *p, const char *key, const char *v)
{
    msg_key(p, key);
    msg_any_text(p, v);
}

/* In commands.c. Return the worker whose name is args.worker; worker_meant(): or the only worker.
 * NULL: there is none, and an ERROR was sent. */
struct worker *worker_named(struct ask *a);
struct worker *worker_meant(struct ask *a);

/* In commands.c. Returns true if the bytes of s are the string text. */
bool ask_is(const struct msg_span *s, const char *text);

/* In served.c: verbs about models. */
void cmd_models(struct ask *a);
void cmd_load(struct ask *a);

/* In text_verbs.c: verbs that need a tokenizer. */
void cmd_tokenize(struct ask *a);
void cmd_detokenize(struct ask *a);
void cmd_token_bytes(struct ask *a);
void cmd_render(struct ask *a);

/* In followed.c: verbs that a client calls again and again to follow what happens. */
void cmd_steps(struct ask *a);
void cmd_kv_events(struct ask *a);
