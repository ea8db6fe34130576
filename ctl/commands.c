/* commands.c - the command table, and the commands without a file of their own.
 *
 * A command calls one verb of lagand. With --json the reply is printed unchanged, else as a table.
 */
#include "ctl/ctl.h"
#include "ctl/line_reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plain_opts {
    bool json, help;
};

/* Parses the options, calls the verb and prints JSON if requested. *ret: the reply, to be freed by
 * the caller; NULL if the exit code is final. n_operands: operands of the command. */
static int
ask(struct ctl *ctl, const char *words, int argc, char **argv, int n_operands, const char *operand,
    bool privileged, json_t **ret)
{
    const struct command *c = commands;
    struct plain_opts o;
    json_t *args = json_object();
    int n;

    *ret = NULL;
    while (strcmp(c->words, words)) c++;
    n = command_args(c, &o, argc, argv);
    if (n < 0) return json_decref(args), n == -2 ? 0 : CTL_USAGE;
    if (n != n_operands) {
        json_decref(args);
        return command_usage(c);
    }
    if (n_operands && !strcmp(operand, "id")) {
        long long id;
        char *end;

        errno = 0;
        id = strtoll(argv[0], &end, 10);
        if (!*argv[0] || *end || id < 0 || errno) {
            json_decref(args);
            return ctl_fail(CTL_USAGE,
                            "'%s' is not a request id; `laganctl requests list` prints them",
                            argv[0]);
        }
        json_object_set_new(args, operand, json_integer(id));
    } else if (n_operands) {
        json_object_set_new(args, operand, json_stringn(argv[0], strlen(argv[0])));
    }
    return ctl_ask(ctl, words, args, privileged, o.json, ret);
}

/* ---- workers */

/* "62% / 48%": used share of each pool. */
static const char *
kv_shares(const json_t *worker, char *buf, size_t n)
{
    json_t *pools = json_object_get(worker, "kv"), *p;
    size_t i, at = 0;

    snprintf(buf, n, "-");
    json_array_foreach(pools, i, p)
    {
        long long blocks = json_number(p, "blocks");

        at += (size_t)snprintf(buf + at, n - at, "%s%lld%%", i ? " / " : "",
                               blocks ? 100 * json_number(p, "used") / blocks : 0);
        if (at + 16 > n) break;
    }
    return buf;
}

/* "ready, standby"; "loading 37%", once the total is known. */
static void
state_cell(struct table *t, const json_t *worker)
{
    const json_t *load = json_object_get(worker, "load");
    const char *state = json_word(worker, "state");
    const char *standby = json_string_value(json_object_get(worker, "standby"));
    long long total = json_number(load, "total");

    if (!strcmp(state, "loading") && total > 0)
        table_cell(t, false, "loading %lld%%", 100 * json_number(load, "done") / total);
    else
        table_cell(t, false, "%s%s%s", state, standby && *standby ? ", " : "",
                   standby ? standby : "");
}

static long long
arena_bytes(const json_t *worker)
{
    json_t *a;
    long long sum = 0;
    size_t i;

    json_array_foreach(json_object_get(worker, "arenas"), i, a) sum += json_number(a, "bytes");
    return sum;
}

/* "-" for a worker without a process: kill(1) with 0 would signal the caller's process group. */
static void
pid_cell(struct table *t, const json_t *o)
{
    long long pid = json_number(o, "pid");

    if (pid)
        table_cell(t, true, "%lld", pid);
    else
        table_cell(t, true, "-");
}

/* Adds the other ranks of a rank group below rank 0. */
static void
add_ranks(struct table *t, const json_t *worker)
{
    json_t *r;
    size_t i;

    json_array_foreach(json_object_get(worker, "ranks"), i, r)
    {
        char bytes[32];

        table_cell(t, false, "%s", json_word(r, "name"));
        pid_cell(t, r);
        table_cell(t, false, "rank %zu", i + 1);
        for (int k = 0; k < 2; k++) table_cell(t, false, "%s", "");
        for (int k = 0; k < 3; k++) table_cell(t, true, "%s", "");
        table_cell(t, true, "%s", text_bytes(bytes, sizeof bytes, (double)json_number(r, "bytes")));
        table_cell(t, true, "%s", "");
    }
}

static void
print_workers(const json_t *workers)
{
    static const char *const heads[] = { "WORKER",  "PID",     "MODEL",   "DEVICE", "STATE",
                                         "RUNNING", "WAITING", "KV USED", "ARENAS", "RESTARTS" };
    struct table *t = table_new(heads, ARRAY_LEN(heads));
    json_t *w;
    size_t i;

    json_array_foreach(workers, i, w)
    {
        char kv[64], bytes[32];

        table_cell(t, false, "%s", json_word(w, "name"));
        pid_cell(t, w);
        table_cell(t, false, "%s", json_word(w, "model"));
        table_cell(t, false, "%s", json_word(w, "device"));
        state_cell(t, w);
        table_cell(t, true, "%lld", json_number(w, "running"));
        table_cell(t, true, "%lld", json_number(w, "waiting"));
        table_cell(t, true, "%s", kv_shares(w, kv, sizeof kv));
        table_cell(t, true, "%s", text_bytes(bytes, sizeof bytes, (double)arena_bytes(w)));
        table_cell(t, true, "%lld", json_number(w, "restarts"));
        add_ranks(t, w);
    }
    table_print(t, stdout);
    json_array_foreach(workers, i, w)
    {
        const char *why = json_string_value(json_object_get(w, "why"));
        const char *name = json_word(w, "name"), *state = json_word(w, "state");

        if (why && *why) printf("%s: %s\n", name, why);
        if (!strcmp(state, "failed"))
            printf("%s is not started again automatically; `laganctl restart %s` starts it\n", name,
                   name);
        else if (!strcmp(state, "down"))
            printf("%s stays stopped; `laganctl restart %s` starts it\n", name, name);
        else if (!strcmp(state, "backoff"))
            printf("%s will be started again; `laganctl restart %s` starts it now; `laganctl "
                   "panic` has its panic message\n",
                   name, name);
    }
}

static int
cmd_workers(struct ctl *ctl, int argc, char **argv)
{
    json_t *workers;
    int r = ask(ctl, "workers list", argc, argv, 0, NULL, false, &workers);

    if (!workers) return r;
    print_workers(workers);
    json_decref(workers);
    return 0;
}

static int
cmd_status(struct ctl *ctl, int argc, char **argv)
{
    json_t *s, *workers, *w;
    size_t i, n_ready = 0;
    char up[32];
    const char *state;
    int r;

    /* The exit code depends on the reply, also with --json, so the reply is needed in both cases.
     */
    struct plain_opts o;
    const struct command *c = commands;
    char *reply = NULL;

    while (strcmp(c->words, "status")) c++;
    r = command_args(c, &o, argc, argv);
    if (r) return r == -2 ? 0 : r > 0 ? command_usage(c) : CTL_USAGE;
    r = ctl_call(ctl, "status", NULL, false, &reply);
    if (r) return r;
    s = json_loads(reply, 0, NULL);
    if (o.json) puts(reply);
    free(reply);
    if (!s) return ctl_fail(CTL_FAILED, "the reply of lagand to status is not JSON");
    state = json_word(s, "state");
    workers = json_object_get(s, "workers");
    json_array_foreach(workers, i, w) n_ready += !strcmp(json_word(w, "state"), "ready");
    if (!o.json) {
        printf("lagand %s  pid %lld  up %s  %s  %zu of %zu workers ready\n",
               json_word(s, "version"), json_number(s, "pid"),
               text_duration(up, sizeof up, json_number_value(json_object_get(s, "uptime_s"))),
               state, n_ready, json_array_size(workers));
        printf("requests %lld of %lld\n\n", json_number(s, "requests"),
               json_number(s, "max_requests"));
        print_workers(workers);
    }
    r = !strcmp(state, "degraded")   ? CTL_DEGRADED
        : !strcmp(state, "draining") ? CTL_UNAVAILABLE
                                     : 0;
    json_decref(s);
    return r;
}

/* ---- requests */

static int
cmd_requests(struct ctl *ctl, int argc, char **argv)
{
    static const char *const heads[] = { "ID",    "CLIENT", "MODEL",     "WORKER",
                                         "STATE", "PROMPT", "GENERATED", "AGE" };
    struct table *t;
    json_t *list, *q;
    size_t i;
    int r = ask(ctl, "requests list", argc, argv, 0, NULL, /* privileged= */ true, &list);

    if (!list) return r;
    t = table_new(heads, ARRAY_LEN(heads));
    json_array_foreach(list, i, q)
    {
        char age[32];

        table_cell(t, true, "%lld", json_number(q, "id"));
        table_cell(t, false, "%s", json_word(q, "client"));
        table_cell(t, false, "%s", json_word(q, "model"));
        table_cell(t, false, "%s", json_word(q, "worker"));
        table_cell(t, false, "%s", json_word(q, "state"));
        table_cell(t, true, "%lld", json_number(q, "prompt"));
        table_cell(t, true, "%lld", json_number(q, "generated"));
        table_cell(t, true, "%s",
                   text_duration(age, sizeof age, (double)json_number(q, "age_ms") / 1e3));
    }
    table_print(t, stdout);
    json_decref(list);
    return 0;
}

static int
cmd_cancel(struct ctl *ctl, int argc, char **argv)
{
    json_t *done;
    int r = ask(ctl, "cancel", argc, argv, 1, "id", /* privileged= */ true, &done);

    if (done) printf("request %s cancelled\n", argv[0]);
    json_decref(done);
    return r;
}

/* ---- kv, config */

static int
cmd_kv_stats(struct ctl *ctl, int argc, char **argv)
{
    static const char *const heads[] = { "WORKER", "POOL", "BLOCKS", "USED",
                                         "CACHED", "FREE", "BYTES" };
    struct table *t;
    json_t *list, *p;
    size_t i;
    int r = ask(ctl, "kv stats", argc, argv, 0, NULL, false, &list);

    if (!list) return r;
    t = table_new(heads, ARRAY_LEN(heads));
    json_array_foreach(list, i, p)
    {
        char bytes[32];

        table_cell(t, false, "%s", json_word(p, "worker"));
        if (json_is_string(json_object_get(p, "pool")))
            table_cell(t, false, "%s", json_word(p, "pool"));
        else
            table_cell(t, false, "%lld", json_number(p, "pool"));
        table_cell(t, true, "%lld", json_number(p, "blocks"));
        table_cell(t, true, "%lld", json_number(p, "used"));
        table_cell(t, true, "%lld", json_number(p, "cached"));
        table_cell(t, true, "%lld", json_number(p, "free"));
        table_cell(t, true, "%s", text_bytes(bytes, sizeof bytes, (double)json_number(p, "bytes")));
    }
    table_print(t, stdout);
    json_decref(list);
    return 0;
}

static int
cmd_kv_pools(struct ctl *ctl, int argc, char **argv)
{
    static const char *const heads[] = { "WORKER", "GROUP", "KIND",   "WINDOW", "POOL",
                                         "BLOCK",  "USED",  "CACHED", "TAKEN",  "REUSED",
                                         "MISSED", "HIT",   "EVICTED" };
    struct table *t;
    json_t *list, *p;
    size_t i;
    int r = ask(ctl, "kv pools", argc, argv, 0, NULL, false, &list);

    if (!list) return r;
    t = table_new(heads, ARRAY_LEN(heads));
    json_array_foreach(list, i, p)
    {
        long long hits = json_number(p, "reused_full") + json_number(p, "reused_copied") +
                         json_number(p, "reused_moved"),
                  all = hits + json_number(p, "missed");
        char bytes[32];

        table_cell(t, false, "%s", json_word(p, "worker"));
        table_cell(t, true, "%lld", json_number(p, "group"));
        table_cell(t, false, "%s", json_word(p, "kind"));
        table_cell(t, true, "%lld", json_number(p, "window"));
        table_cell(t, true, "%lld", json_number(p, "pool"));
        table_cell(t, true, "%s", text_bytes(bytes, sizeof bytes, (double)json_number(p, "bytes")));
        table_cell(t, true, "%lld", json_number(p, "used"));
        table_cell(t, true, "%lld", json_number(p, "cached"));
        table_cell(t, true, "%lld", json_number(p, "allocated"));
        table_cell(t, true, "%lld", hits);
        table_cell(t, true, "%lld", json_number(p, "missed"));
        table_cell(t, true, "%lld%%", all ? 100 * hits / all : 0);
        table_cell(t, true, "%lld", json_number(p, "evicted"));
    }
    table_print(t, stdout);
    json_decref(list);
    return 0;
}

static int
cmd_config_show(struct ctl *ctl, int argc, char **argv)
{
    static const char *const heads[] = { "KEY", "VALUE", "FROM" };
    struct table *t;
    json_t *list, *row;
    size_t i;
    int r = ask(ctl, "config show", argc, argv, 0, NULL, false, &list);

    if (!list) return r;
    t = table_new(heads, ARRAY_LEN(heads));
    json_array_foreach(list, i, row)
    {
        json_t *v = json_object_get(row, "value");
        char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY);

        table_cell(t, false, "%s", json_word(row, "key"));
        table_cell(t, false, "%s", text ? text : json_word(row, "value"));
        table_cell(t, false, "%s", json_word(row, "from"));
        free(text);
    }
    table_print(t, stdout);
    json_decref(list);
    return 0;
}

static int
cmd_config_check(struct ctl *ctl, int argc, char **argv)
{
    const struct command *c = commands;
    struct plain_opts o;
    int n;

    (void)ctl;
    while (strcmp(c->words, "config check")) c++;
    n = command_args(c, &o, argc, argv);
    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n > 1) return command_usage(c);
    n = spawn_check(n ? argv[0] : NULL);
    if (o.json) printf("{\"ok\":%s,\"exit\":%d}\n", n ? "false" : "true", n);
    return n;
}

/* ---- drain, restart, reload */

static int
order_one(struct ctl *ctl, const char *words, const char *says, int argc, char **argv)
{
    json_t *done;
    int r = ask(ctl, words, argc, argv, 1, "worker", /* privileged= */ true, &done);

    if (done && !strcmp(json_word(done, "state"), "down"))
        printf("%s  is stopped\n", argv[0]);
    else if (done && !strcmp(json_word(done, "state"), "loading"))
        printf("%s  starting\n", argv[0]);
    else if (done)
        printf("%s  %s, %lld requests to finish\n", argv[0], says, json_number(done, "requests"));
    json_decref(done);
    return r;
}

/* One worker, or all workers. */
static int
order(struct ctl *ctl, const char *words, const char *says, int argc, char **argv)
{
    enum { MOST = 8 };
    int at = 0, r, worst;
    json_t *workers, *w;
    size_t i;

    while (at < argc && strcmp(argv[at], "all")) at++;
    if (at == argc || argc > MOST) return order_one(ctl, words, says, argc, argv);
    worst = ctl_ask(ctl, "workers list", NULL, /* privileged= */ false, /* json= */ false,
                    &workers);
    if (worst) return worst;
    json_array_foreach(workers, i, w)
    {
        char *one[MOST]; /* the command parser reorders operands */

        memcpy(one, argv, (size_t)argc * sizeof *one);
        one[at] = (char *)(uintptr_t)json_word(w, "name");
        r = order_one(ctl, words, says, argc, one);
        if (r) worst = worst && worst != r ? CTL_FAILED : r;
    }
    json_decref(workers);
    return worst;
}

static int
cmd_drain(struct ctl *ctl, int argc, char **argv)
{
    return order(ctl, "drain", "draining", argc, argv);
}

static int
cmd_restart(struct ctl *ctl, int argc, char **argv)
{
    return order(ctl, "restart", "restarting", argc, argv);
}

static int
cmd_reload(struct ctl *ctl, int argc, char **argv)
{
    json_t *done;
    int r = ask(ctl, "reload", argc, argv, 0, NULL, /* privileged= */ true, &done);
    long long n = json_number(done, "workers");

    if (done && n)
        printf("replacing %lld worker%s\n", n, n == 1 ? "" : "s, one after the other");
    else if (done)
        puts("no worker runs that could be replaced; `laganctl restart all` starts them");
    json_decref(done);
    return r;
}

static int
cmd_reexec(struct ctl *ctl, int argc, char **argv)
{
    json_t *done;
    int r = ask(ctl, "daemon reexec", argc, argv, 0, NULL, /* privileged= */ true, &done);

    if (done) puts("lagand replaces itself; requests and device memory are kept");
    json_decref(done);
    return r;
}

/* ---- text */

struct text_opts {
    bool json, help, bare, keep_special;
    char ids[131072], text[131072], messages[131072], requests[4096], model[128];
};

/* clang-format off */
static const struct opt tokenize_opts[] = {
    { "text", OPT_STR, OPT_AT(text_opts, text), .arg = "TEXT", .sentence = "text to tokenize" },
    { "messages", OPT_STR, OPT_AT(text_opts, messages), .arg = "JSON",
      .sentence = "conversation instead of a text: [{\"role\": ..., \"content\": ...}]" },
    { "requests", OPT_STR, OPT_AT(text_opts, requests), .arg = "FILE.jsonl",
      .sentence = "file with one {\"text\": ...} or {\"messages\": [...]} per line; -: standard "
      "input" },
    { "bare", OPT_BOOL, OPT_AT(text_opts, bare),
      .sentence = "do not add special tokens" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "name of the model; required if lagand serves several" },
    { 0 }
};
static const struct opt detokenize_opts[] = {
    { "ids", OPT_STR, OPT_AT(text_opts, ids), .arg = "1,2,3", .sentence = "token ids to convert" },
    { "requests", OPT_STR, OPT_AT(text_opts, requests), .arg = "FILE.jsonl",
      .sentence = "file with one {\"ids\": [...]} per line; -: standard input" },
    { "keep_special", OPT_BOOL, OPT_AT(text_opts, keep_special),
      .sentence = "keep special tokens in the text" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "name of the model; required if lagand serves several" },
    { 0 }
};
/* clang-format on */

/* Prints the reply, followed by the tag of the line if present. */
static void
print_tagged(const char *reply, json_t *tag)
{
    json_t *o = tag ? json_loads(reply, 0, NULL) : NULL;
    char *text;

    if (!o) {
        puts(reply);
        return;
    }
    json_object_set(o, "tag", tag);
    text = json_dumps(o, JSON_COMPACT);
    puts(text);
    free(text);
    json_decref(o);
}

static int
text_call(struct ctl *ctl, const char *verb, const struct text_opts *o, json_t *args)
{
    const json_t *talk = json_object_get(args, "messages");
    json_t *tag = json_incref(json_object_get(args, "tag"));
    char *reply = NULL;
    int r;

    json_object_del(args, "tag");
    if (talk && !json_is_string(talk)) { /* the wire has the list as text */
        char *text = json_dumps(talk, JSON_COMPACT | JSON_ENCODE_ANY);

        json_object_set_new(args, "messages", json_string(text));
        free(text);
    }
    if (*o->model && !json_object_get(args, "model")) /* a line may name another model */
        json_object_set_new(args, "model", json_string(o->model));
    if (o->bare) json_object_set_new(args, "bare", json_true());
    if (o->keep_special) json_object_set_new(args, "keep_special", json_true());
    r = ctl_call(ctl, verb, args, false, &reply);
    if (r == 0) print_tagged(reply, tag);
    json_decref(tag);
    free(reply);
    return r;
}

static int
text_lines(struct ctl *ctl, const char *verb, const struct text_opts *o)
{
    struct line_reader l;
    struct err e = { 0 };
    char *line;
    int r, worst = 0;

    if (line_reader_open(&l, o->requests, &e) < 0) return ctl_fail(CTL_USAGE, "%s", e.text);
    ctl->file = o->requests;
    while (!ctl_signal) {
        json_error_t je;
        json_t *args;

        if (!line_reader_next(&l, &line)) {
            if (l.eof) break;
            if (line_reader_fill(&l, &e) < 0) {
                worst = ctl_fail(CTL_FAILED, "%s: %s", o->requests, e.text);
                break;
            }
            continue;
        }
        if (!line[strspn(line, " \t\r")]) continue;
        args = json_loads(line, 0, &je);
        ctl->line = l.number;
        if (json_is_object(args)) {
            r = text_call(ctl, verb, o, args);
        } else {
            json_decref(args);
            r = ctl_fail(CTL_FAILED, "%s: line %zu: %s", o->requests, l.number,
                         args ? "not a JSON object" : je.text);
        }
        if (r) worst = worst && worst != r ? CTL_FAILED : r;
    }
    line_reader_close(&l);
    return ctl_signal ? 128 + ctl_signal : worst;
}

static int
text_command(struct ctl *ctl, const char *verb, int argc, char **argv)
{
    static struct text_opts o;
    const struct command *c = commands;
    bool to_ids = !strcmp(verb, "tokenize"), what = false;
    int n;

    while (strcmp(c->words, verb)) c++;
    for (int i = 0; i < argc; i++) /* a text may be empty */
        what |= !strncmp(argv[i], "--text", 6) || !strncmp(argv[i], "--ids", 5);
    n = command_args(c, &o, argc, argv);
    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (!n && !what && !*o.messages && !*o.requests)
        return ctl_fail(CTL_USAGE, "%s needs %s or --requests FILE.jsonl", verb,
                        to_ids ? "--text TEXT, --messages JSON" : "--ids 1,2,3");
    if (n)
        return ctl_fail(CTL_USAGE, "unexpected argument '%s'; use --text TEXT or --ids 1,2,3",
                        argv[0]);
    if (*o.requests) return text_lines(ctl, verb, &o);
    if (to_ids && *o.messages)
        return text_call(ctl, verb, &o, json_pack("{s:s}", "messages", o.messages));
    if (to_ids) return text_call(ctl, verb, &o, json_pack("{s:s}", "text", o.text));

    struct err e;
    int32_t *ids;
    size_t n_ids, i;
    json_t *list = json_array();

    if (parse_ids(o.ids, &ids, &n_ids, &e) < 0) {
        json_decref(list);
        return ctl_fail(CTL_USAGE, "--ids: %s", e.text);
    }
    for (i = 0; i < n_ids; i++) json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    return text_call(ctl, verb, &o, json_pack("{s:o}", "ids", list));
}

static int
cmd_tokenize(struct ctl *ctl, int argc, char **argv)
{
    return text_command(ctl, "tokenize", argc, argv);
}

static int
cmd_detokenize(struct ctl *ctl, int argc, char **argv)
{
    return text_command(ctl, "detokenize", argc, argv);
}

/* clang-format off */
const struct command commands[] = {
    { "generate", "", "send prompts to a model and print the output while it is generated",
      "  laganctl generate --text \"12 = \" --max-tokens 32\n"
      "  laganctl generate --ids 1,2,3 --temperature 0.8 --seed 7 --json\n"
      "  laganctl generate --requests prompts.jsonl --concurrency 16 --json > outputs.jsonl\n",
      generate_opts, cmd_generate, .alone = false },
    { "chat", "", "chat with a model: each input line is a message, with the conversation so far",
      "  laganctl chat\n"
      "  laganctl chat --system \"Reply with one word.\" --temperature 0.7\n"
      "  printf 'Hello\\nAnd in French?\\n' | laganctl chat --json\n\n"
      "Each message is sent with the whole conversation, formatted with the chat template of "
      "the model:\n"
      "the checkpoint's own template if lagan knows it, else the template that the model option\n"
      "chat_template names. For models with several channels (gpt-oss) only the final channel is\n"
      "printed. An output has at most 1024 tokens unless --max-tokens is given. The chat ends "
      "at the end\n"
      "of the input (Ctrl-D) or when a request fails.\n",
      chat_opts, cmd_chat, .alone = false },
    { "tokenize", "", "convert text to token ids with the tokenizer of a model",
      "  laganctl tokenize --text \"hello\"\n"
      "  laganctl tokenize --messages '[{\"role\":\"user\",\"content\":\"hello\"}]'\n"
      "  laganctl tokenize --requests texts.jsonl > ids.jsonl\n\n"
      "The tokenizer adds its special tokens (<s>, </s>) unless --bare is given. A conversation "
      "has\n"
      "exactly the tokens of the chat template.\n",
      tokenize_opts, cmd_tokenize, .alone = false },
    { "detokenize", "", "convert token ids to text with the tokenizer of a model",
      "  laganctl detokenize --ids 104,105\n"
      "  laganctl detokenize --ids 1,104 --keep-special\n"
      "  laganctl detokenize --requests ids.jsonl\n\n"
      "Bytes that are not valid UTF-8 become U+FFFD. Ids outside the vocabulary are rejected.\n",
      detokenize_opts, cmd_detokenize, .alone = false },
    { "model list", "", "list the served models and the number of their workers",
      "  laganctl model list --json\n",
      NULL, cmd_model_list, .alone = false },
    { "model verify", "DIR",
      "check that lagan can serve the model in a directory, without reading its weights",
      "  laganctl model verify models/llama\n"
      "  laganctl --device cuda --set dtype=bf16 model verify /srv/models/llama-8b\n\n"
      "The command reads the configuration, the headers of the weight files with the shape and "
      "type of\n"
      "every tensor, and the tokenizer, and prints how much device memory the model needs. An "
      "error\n"
      "names the file, the key or tensor and the value; the exit code is then not 0. The "
      "command also\n"
      "prints whether the model accepts text and conversations, or why not; every model accepts "
      "token\n"
      "ids. With --set weights=random:1 a config.json is sufficient.\n",
      NULL, cmd_model_verify, .alone = true },
    { "status", "",
      "show lagand, its workers and their load on one screen; exit code 7 if degraded",
      "  laganctl status && echo all is well\n",
      NULL, cmd_status, .alone = false },
    { "bench", "",
      "measure throughput and latency with random prompts; JSON keys as in vLLM's bench",
      "  laganctl bench --input 1000 --output 200 --prompts 500 --concurrency 64\n"
      "  laganctl bench --rate 8 --json\n\n"
      "The first request is a warm-up and is not counted. Times are measured in this client: "
      "ttft, time\n"
      "to the first token; tpot, time from the first to the last token divided by the tokens "
      "after the\n"
      "first; itl, time between two batches of tokens; e2el, time of a whole request. Every "
      "output has\n"
      "the requested length. A model with fewer than 256 token ids needs --below.\n",
      bench_opts, cmd_bench, .alone = false },
    { "top", "", "show the state and the token rates of each worker, repeatedly",
      "  laganctl top\n"
      "  laganctl top --every 10 --count 6 --json >> load.jsonl\n\n"
      "Rates are averages since the previous output; the first output has no rates, nor has a "
      "worker\n"
      "that was started in between. PROMPT/S are prompt tokens computed per second, TOKENS/S "
      "tokens\n"
      "generated per second; STEP MS and TOK/STEP are of the last step. Ctrl-C ends the command.\n",
      top_opts, cmd_top, .alone = false },
    { "workers list", "", "list the workers with state, load, memory and restarts",
      "  laganctl workers list --json\n\n"
      "The state of a worker is followed by the state of its standby process: standby, the "
      "process has\n"
      "loaded the model; driver up, it keeps a GPU driver initialised and loads the model when "
      "the\n"
      "worker fails.\n",
      NULL, cmd_workers, .alone = false },
    { "requests list", "", "list the open requests", NULL,
      NULL, cmd_requests, .alone = false },
    { "cancel", "ID", "cancel a request of `requests list`",
      "  laganctl cancel 17\n",
      NULL, cmd_cancel, .alone = false },
    { "drain", "WORKER|all", "let a worker finish its requests and give it no new ones",
      "  laganctl drain w0\n"
      "  laganctl drain all\n\n"
      "The worker then exits and stays down until `laganctl restart` or a restart of lagand.\n",
      NULL, cmd_drain, .alone = false },
    { "restart", "WORKER|all", "let a worker finish its requests, then replace its process",
      "  laganctl restart w0\n\n"
      "With all, the workers restart at the same time; `laganctl reload` replaces one after the "
      "other.\n",
      NULL, cmd_restart, .alone = false },
    { "reload", "", "replace all workers by the installed program, one after the other",
      "  laganctl reload\n\n"
      "Open requests continue on the replacement. Weights and KV cache stay in device memory.\n",
      NULL, cmd_reload, .alone = false },
    { "daemon reexec", "",
      "let lagand replace itself by the installed program, or reread its configuration",
      "  laganctl daemon reexec\n\n"
      "Clients of liblagan reconnect automatically and their requests continue. Weights and KV "
      "cache\n"
      "stay in device memory. Drained workers are started again. The installed program is "
      "tested first\n"
      "with --check; if the test fails, the command prints the reason and the running lagand "
      "continues.\n",
      NULL, cmd_reexec, .alone = false },
    { "tune", "[WORKER]", "measure the matmuls of a GPU worker and keep the fastest algorithms",
      "  laganctl tune\n"
      "  laganctl tune w1 --json > tuned.json\n\n"
      "The worker measures every matmul shape of the model with increasing numbers of rows, "
      "except for\n"
      "shapes that were measured before. Results are used immediately and are stored, for this "
      "GPU,\n"
      "driver and library, in the tuning file that the model option cuda.tuning_file names; without "
      "this\n"
      "option the command is refused. A worker with this option also measures new shapes by "
      "itself while\n"
      "it is idle.\n\n"
      "The worker measures one matmul at a time and only while it has no requests, so that a "
      "busy worker\n"
      "needs longer. Ctrl-C ends the command; the measurement continues. WORKER is required if "
      "there are\n"
      "several.\n",
      NULL, cmd_tune, .alone = false },
    { "split show", "[WORKER]", "show how a worker divides its device between prefill and decode",
      "  laganctl split show --json\n\n"
      "WORKER is required if there are several; also for split auto, off and set.\n",
      NULL, cmd_split_show, .alone = false },
    { "split auto", "[WORKER]",
      "let a worker select the division of its device from measured step times",
      "  laganctl split auto w0\n\n"
      "The worker selects the division with the fastest prefill that keeps the inter-token "
      "latency below\n"
      "the model option split.itl_target: one lane for both, or a part of the device for each.\n",
      NULL, cmd_split_auto, .alone = false },
    { "split off", "[WORKER]", "use one lane for prefill and decode, on the whole device",
      "  laganctl split off\n",
      NULL, cmd_split_off, .alone = false },
    { "split set", "PREFILL DECODE [WORKER]",
      "divide the device: units of the prefill lane, units of the decode lane",
      "  laganctl split set 64 68\n\n"
      "Units are SMs on a GPU and threads on the CPU; `laganctl split show` prints their number "
      "and the\n"
      "granularity. The division lasts until the worker restarts; the model options split.mode "
      "and\n"
      "split.context_sm set the initial one. A lane uses the whole device while the other has "
      "no work.\n",
      NULL, cmd_split_set, .alone = false },
    { "events", "", "print events: worker states, failures, operator commands, lost requests",
      "  laganctl events -f --json\n\n"
      "lagand keeps the last 1024 events, also across `laganctl daemon reexec` and, under "
      "systemd,\n"
      "across a restart or a crash of lagand. The journal has all events.\n",
      events_opts, cmd_events, .alone = false },
    { "panic", "", "print failed workers with cause, panic message and last log lines",
      "  laganctl panic\n\n"
      "lagand keeps the last 32 failures, as long as the events of `laganctl events`.\n",
      NULL, cmd_panic, .alone = false },
    { "metrics", "", "print all metrics in the Prometheus text format",
      "  laganctl metrics > /var/lib/prometheus/node-exporter/lagan.prom\n",
      NULL, cmd_metrics, .alone = false },
    { "kv stats", "", "show the blocks of each KV cache pool", NULL,
      NULL, cmd_kv_stats, .alone = false },
    { "kv pools", "", "show the blocks and the prefix cache hits of each KV group", NULL,
      NULL, cmd_kv_pools, .alone = false },
    { "kv flush", "[WORKER]", "empty the prefix cache of one worker or of all workers",
      "  laganctl kv flush\n"
      "  laganctl kv flush w0 --json\n\n"
      "With the model option kv.reuse, KV blocks are kept for later requests with the same "
      "first tokens.\n"
      "This command removes such blocks from the device and from the host tier and prints their "
      "number.\n"
      "Blocks of open requests stay, and results do not change; the next requests compute their "
      "prompts\n"
      "again and take longer. Use it to measure with an empty cache, or after a change that the "
      "cache\n"
      "should not outlive. The memory is freed, not overwritten.\n",
      NULL, cmd_kv_flush, .alone = false },
    { "keygen", "FILE",
      "generate a key pair for tcp connections and write the secret key to a new file",
      "  laganctl keygen /etc/lagan/keys          # for lagand: api.keys\n"
      "  laganctl keygen ~/.lagan-keys            # for a client: --keys\n\n"
      "A key file has one key per line after a keyword; its mode is 0600. The file of lagand "
      "has its\n"
      "secret key and the public keys of its clients, each with a name and optional limits:\n\n"
      "  secret KEY\n"
      "  client KEY alice\n"
      "  client KEY batch max_inflight=64 max_tokens=100000\n\n"
      "The file of a client has its own secret key and the public key of lagand:\n\n"
      "  secret KEY\n"
      "  server KEY\n\n"
      "lagand reads its file at start, at `laganctl reload` and on SIGHUP.\n",
      NULL, cmd_keygen, .alone = true },
    { "config show", "", "print the merged configuration and the origin of each value", NULL,
      NULL, cmd_config_show, .alone = false },
    { "config check", "[FILE]", "check a configuration file; exit code 78 if it has errors",
      "  laganctl config check /etc/lagan/lagan.yaml\n",
      NULL, cmd_config_check, .alone = true },
    { 0 }
};
/* clang-format on */
