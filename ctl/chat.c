/* chat.c - laganctl chat: sends each input line as a message and prints the reply.
 *
 * A message is sent with the whole conversation, so lagand keeps no state. With kv.reuse the worker
 * reuses the KV of the earlier messages. */
#include "ctl/request_options.h"
#include "ctl/running_request.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

static const char MAX_TOKENS[] = "1024"; /* default of --max-tokens */

struct chat_own {
    bool json, help;
    char system[65536];
};

static const struct opt own_opts[] = {
    { "system", OPT_STR, OPT_AT(chat_own, system), .arg = "TEXT",
      .sentence = "system message at the start of the conversation" },
    { 0 },
};
struct opt chat_opts[REQUEST_OPTS_MAX];

/* Returns true for keys that set a prompt; their options are not available in a chat. */
static bool
is_prompt(const char *key)
{
    static const char *const prompts[] = { "ids", "text", "messages", "decoder_ids",
                                           "generated_ids" };

    for (size_t i = 0; i < ARRAY_LEN(prompts); i++)
        if (!strcmp(prompts[i], key)) return true;
    return false;
}

void
chat_start(void)
{
    struct opt *to = chat_opts;

    request_opts(chat_opts, own_opts);
    for (const struct opt *o = chat_opts; o->key; o++) {
        if (is_prompt(o->key)) continue;
        *to = *o;
        if (!strcmp(o->key, "max_tokens")) to->def = MAX_TOKENS;
        to++;
    }
    *to = (struct opt){ 0 };
}

struct talk {
    struct lagan *c;
    struct chat_own o;
    struct request_args args;
    json_t *messages;
    size_t n;  /* number of completed outputs */
    bool asks; /* standard input is a terminal: print a prompt before each line */
};

static void
say(struct talk *t, const char *role, const char *text, size_t n)
{
    json_array_append_new(t->messages, json_pack("{s:s,s:s%}", "role", role, "content", text, n));
}

static int
failed(struct talk *t, struct running_request *j, const struct lagan_event *ev)
{
    if (t->o.json)
        running_request_print_final(j, ev, stdout);
    else
        ctl_fail(0, "%s%s: %s", j->n_tokens ? "\n" : "", ev->reason_name, ev->message);
    return ctl_exit_of(ev->reason);
}

/* Handles one event. Returns 1: more events follow; 0: the end; below 0: minus the exit code. */
static int
take(struct talk *t, struct running_request *j, const struct lagan_event *ev)
{
    if (ev->kind == LAGAN_EVENT_DISCONNECTED)
        return -ctl_fail(CTL_UNREACHABLE,
                         "the connection to lagand is lost, and reconnecting failed");
    if (ev->id != j->id) return 1;
    switch (ev->kind) {
    case LAGAN_EVENT_TOKENS:
        if (running_request_take(j, ev) < 0)
            return -ctl_fail(
                CTL_FAILED,
                "internal error of lagand: it omitted or repeated tokens at position %u",
                ev->first);
        if (t->o.json) return 1;
        fwrite(ev->text, 1, ev->text_len, stdout);
        fflush(stdout);
        return 1;
    case LAGAN_EVENT_OUTPUT:
        if (t->o.json) running_request_print_final(j, ev, stdout);
        return 1;
    case LAGAN_EVENT_ERROR:
        return -failed(t, j, ev);
    case LAGAN_EVENT_DONE:
        if (!t->o.json) puts("");
        return 0;
    default:
        return 1;
    }
}

/* Handles events until the request has ended. Ctrl-C cancels it and waits up to 2 s for the end. */
static int
await_output(struct talk *t, struct running_request *j)
{
    nsec give_up = NSEC_NEVER;

    for (;;) {
        struct lagan_event ev = { sizeof ev };
        int r = lagan_next(t->c, &ev, give_up == NSEC_NEVER ? -1 : 100);

        if (ctl_signal && give_up == NSEC_NEVER) {
            lagan_cancel(t->c, j->id);
            give_up = clock_after(clock_now(), 2 * NSEC_S);
        }
        if (clock_now() > give_up) return 128 + ctl_signal;
        if (r < 0 && r != -EINTR) return ctl_fail(CTL_FAILED, "%s", lagan_errmsg(t->c));
        if (r <= 0) continue;
        r = take(t, j, &ev);
        if (r <= 0) return ctl_signal ? 128 + ctl_signal : -r;
    }
}

static int
complete(struct talk *t)
{
    struct lagan_request *r = lagan_request_new();
    CLEAN(running_request_free_at) struct running_request *j = running_request_new(t->n++);
    char *text = json_dumps(t->messages, JSON_COMPACT);
    struct err e = { 0 };
    int k;

    check(r && text);
    k = request_from_args(r, &t->args, &e);
    if (k == 0) k = lagan_set_str(r, "messages", text, strlen(text));
    if (k == 0) k = lagan_submit(t->c, r, &j->id);
    if (k < 0 && !e.code) err_set(&e, k, "%s", lagan_errmsg(t->c));
    lagan_request_free(r);
    free(text);
    if (k < 0) return ctl_fail(CTL_USAGE, "%s", e.text);
    k = await_output(t, j);
    if (k == 0 && j->n_outputs)
        say(t, "assistant", j->output[0].text ? j->output[0].text : "", j->output[0].n_text);
    return k;
}

/* Checks at the start that the model has a chat template, and that it accepts --system. */
static int
can_chat(struct ctl *ctl, const struct talk *t)
{
    json_t *talk = json_deep_copy(t->messages), *args;
    char *text, *reply = NULL;
    int r;

    json_array_append_new(talk, json_pack("{s:s,s:s}", "role", "user", "content", "a"));
    text = json_dumps(talk, JSON_COMPACT);
    args = json_pack("{s:s}", "messages", text);
    if (t->args.given[FIELD_model])
        json_object_set_new(args, "model", json_string(t->args.given[FIELD_model]));
    r = ctl_call(ctl, "tokenize", args, &reply);
    json_decref(talk);
    free(text);
    free(reply);
    return r;
}

static int
converse(struct talk *t)
{
    struct line_reader l;
    struct err e = { 0 };
    char *line;
    int r = 0, k = 0;

    if (line_reader_open(&l, "-", &e) < 0) return ctl_fail(CTL_USAGE, "%s", e.text);
    while (r == 0 && (k = line_reader_wait(&l, t->asks ? "> " : NULL, &line, &e)) > 0) {
        say(t, "user", line, strlen(line));
        r = complete(t);
    }
    if (k < 0) r = ctl_fail(CTL_FAILED, "standard input: %s", e.text);
    line_reader_close(&l);
    if (r == 0 && !ctl_signal && t->n == 0 && !t->asks)
        r = ctl_fail(CTL_USAGE, "standard input has no message; write one message on each line");
    return ctl_signal ? 128 + ctl_signal : r;
}

int
cmd_chat(struct ctl *ctl)
{
    static const char from_input[] = "messages are read from standard input, one per line";
    static struct talk t;
    struct err e = { 0 };
    int r;

    t.c = ctl->api;
    if (request_read(&t.args, chat_opts, own_opts, &t.o, &t.o.json, from_input, ctl->argc,
                     ctl->argv, &e) < 0)
        return ctl_fail(CTL_USAGE, "%s (see `laganctl chat --help`)", e.text);
    if (t.args.given[FIELD_ids] || t.args.given[FIELD_text] || t.args.given[FIELD_messages])
        return ctl_fail(CTL_USAGE, "%s; --system TEXT sets the system message", from_input);
    if (!t.args.given[FIELD_max_tokens]) t.args.given[FIELD_max_tokens] = MAX_TOKENS;
    t.asks = isatty(0) && isatty(1) && !t.o.json;
    t.messages = json_array();
    check(t.messages);
    if (*t.o.system) say(&t, "system", t.o.system, strlen(t.o.system));
    r = can_chat(ctl, &t);
    if (r == 0) r = converse(&t);
    json_decref(t.messages);
    return r;
}
