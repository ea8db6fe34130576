/* commands.c - the command table, and every command but generate and tune.
 *
 * A command asks lagand with one verb; with --json the answer is printed as it came, else as a table.
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

/* Read the options, ask, and print JSON if that is wanted. *ret: the answer otherwise, to be freed; NULL
 * when all is done and the exit code is final. n_operands: how many the command takes. */
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
            return ctl_fail(CTL_USAGE, "'%s' is no request id; `laganctl requests list` has them",
                            argv[0]);
        }
        json_object_set_new(args, operand, json_integer(id));
    } else if (n_operands) {
        json_object_set_new(args, operand, json_stringn(argv[0], strlen(argv[0])));
    }
    return ctl_ask(ctl, words, args, privileged, o.json, ret);
}

/* ---- workers */

/* "62% / 48%": used of each pool. */
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

/* "ready, standby"; "loading 37%", once it is known of how much. */
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

/* A worker that does not run has none: 0 would be whoever asks, for kill(1). */
static void
pid_cell(struct table *t, const json_t *o)
{
    long long pid = json_number(o, "pid");

    if (pid)
        table_cell(t, true, "%lld", pid);
    else
        table_cell(t, true, "-");
}

/* Of a group, below the worker that is its rank 0. */
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
            printf("%s is not tried again; `laganctl restart %s` does\n", name, name);
        else if (!strcmp(state, "down"))
            printf("%s stays down; `laganctl restart %s` starts it\n", name, name);
        else if (!strcmp(state, "backoff"))
            printf("%s is tried again in a while, or now with `laganctl restart %s`; `laganctl "
                   "panic` has its last words\n",
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

    /* The exit code says more than 0, also with --json: so the answer is needed in both cases. */
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
    if (!s) return ctl_fail(CTL_FAILED, "lagand's answer to status is not JSON");
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

/* ---- workers come and go */

static int
steer_one(struct ctl *ctl, const char *words, const char *says, int argc, char **argv)
{
    json_t *done;
    int r = ask(ctl, words, argc, argv, 1, "worker", /* privileged= */ true, &done);

    if (done && !strcmp(json_word(done, "state"), "down"))
        printf("%s  is down\n", argv[0]);
    else if (done && !strcmp(json_word(done, "state"), "loading"))
        printf("%s  starting\n", argv[0]);
    else if (done)
        printf("%s  %s, %lld requests to finish\n", argv[0], says, json_number(done, "requests"));
    json_decref(done);
    return r;
}

/* One worker, or each that there is. */
static int
steer(struct ctl *ctl, const char *words, const char *says, int argc, char **argv)
{
    enum { MOST = 8 };
    int at = 0, r, worst;
    json_t *workers, *w;
    size_t i;

    while (at < argc && strcmp(argv[at], "all")) at++;
    if (at == argc || argc > MOST) return steer_one(ctl, words, says, argc, argv);
    worst = ctl_ask(ctl, "workers list", NULL, /* privileged= */ false, /* json= */ false,
                    &workers);
    if (worst) return worst;
    json_array_foreach(workers, i, w)
    {
        char *one[MOST]; /* they are moved about */

        memcpy(one, argv, (size_t)argc * sizeof *one);
        one[at] = (char *)(uintptr_t)json_word(w, "name");
        r = steer_one(ctl, words, says, argc, one);
        if (r) worst = worst && worst != r ? CTL_FAILED : r;
    }
    json_decref(workers);
    return worst;
}

static int
cmd_drain(struct ctl *ctl, int argc, char **argv)
{
    return steer(ctl, "drain", "draining", argc, argv);
}

static int
cmd_restart(struct ctl *ctl, int argc, char **argv)
{
    return steer(ctl, "restart", "restarting", argc, argv);
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

    if (done) puts("lagand begins again; requests and memory stay");
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
    { "text", OPT_STR, OPT_AT(text_opts, text), .arg = "TEXT", .sentence = "what to tokenize" },
    { "messages", OPT_STR, OPT_AT(text_opts, messages), .arg = "JSON",
      .sentence = "a conversation instead: [{\"role\": ..., \"content\": ...}]" },
    { "requests", OPT_STR, OPT_AT(text_opts, requests), .arg = "FILE.jsonl",
      .sentence = "one {\"text\": ...} or {\"messages\": [...]} a line; - is standard input" },
    { "bare", OPT_BOOL, OPT_AT(text_opts, bare),
      .sentence = "without the tokens that the model's template adds" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "which of the served models, where there are several" },
    { 0 }
};
static const struct opt detokenize_opts[] = {
    { "ids", OPT_STR, OPT_AT(text_opts, ids), .arg = "1,2,3", .sentence = "token ids" },
    { "requests", OPT_STR, OPT_AT(text_opts, requests), .arg = "FILE.jsonl",
      .sentence = "one {\"ids\": [...]} a line; - is standard input" },
    { "keep_special", OPT_BOOL, OPT_AT(text_opts, keep_special),
      .sentence = "print special tokens too" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "which of the served models, where there are several" },
    { 0 }
};
/* clang-format on */

/* The answer, and behind it the line's tag if it had one. */
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
    if (talk && !json_is_string(talk)) { /* a line's list: it travels as text */
        char *text = json_dumps(talk, JSON_COMPACT | JSON_ENCODE_ANY);

        json_object_set_new(args, "messages", json_string(text));
        free(text);
    }
    if (*o->model && !json_object_get(args, "model")) /* a line may name another */
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
        return ctl_fail(CTL_USAGE, "%s what? %s or --requests FILE.jsonl", verb,
                        to_ids ? "--text TEXT, --messages JSON" : "--ids 1,2,3");
    if (n)
        return ctl_fail(CTL_USAGE, "'%s': the text is --text TEXT, ids are --ids 1,2,3", argv[0]);
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
    { "generate", "", "ask a model and print its answer as it comes",
      "  laganctl generate --text \"12 = \" --max-tokens 32\n"
      "  laganctl generate --ids 1,2,3 --temperature 0.8 --seed 7 --json\n"
      "  laganctl generate --requests prompts.jsonl --concurrency 16 --json > answers.jsonl\n",
      generate_opts, cmd_generate, .alone = false },
    { "chat", "", "talk to a model: a line in, an answer out, with all that was said before",
      "  laganctl chat\n"
      "  laganctl chat --system \"Answer in one word.\" --temperature 0.7\n"
      "  printf 'Hello\\nAnd in French?\\n' | laganctl chat --json\n\n"
      "Each line goes out with the whole conversation, in the words of the model's chat template: its\n"
      "own where it is one of those that lagan knows, else the one that the model's key chat_template\n"
      "names. Of a model that answers in channels (gpt-oss) the final one is printed. Answers have at\n"
      "most 1024 tokens, or --max-tokens. The end of the input (Ctrl-D) ends it; an answer that fails too.\n",
      chat_opts, cmd_chat, .alone = false },
    { "tokenize", "", "text to token ids, as the model would",
      "  laganctl tokenize --text \"hello\"\n"
      "  laganctl tokenize --messages '[{\"role\":\"user\",\"content\":\"hello\"}]'\n"
      "  laganctl tokenize --requests texts.jsonl > ids.jsonl\n\n"
      "--bare leaves out what the tokenizer puts around a text (<s>, </s>); a conversation has exactly\n"
      "the tokens of its template.\n",
      tokenize_opts, cmd_tokenize, .alone = false },
    { "detokenize", "", "token ids to text",
      "  laganctl detokenize --ids 104,105\n"
      "  laganctl detokenize --ids 1,104 --keep-special\n"
      "  laganctl detokenize --requests ids.jsonl\n\n"
      "Bytes that are no character become U+FFFD, ids that are none are refused.\n",
      detokenize_opts, cmd_detokenize, .alone = false },
    { "model list", "", "the models that are served, and by how many workers",
      "  laganctl model list --json\n", NULL, cmd_model_list, .alone = false },
    { "model verify", "DIR", "could this directory be served? Opens it as a worker does, and reads no weights",
      "  laganctl model verify models/llama\n"
      "  laganctl --device cuda --set dtype=bf16 model verify /srv/models/llama-8b\n\n"
      "Opened are the configuration, the heads of the files with every tensor's shape and\n"
      "type, the tokenizer; said is what it takes of the device's memory. What is wrong is said\n"
      "with its file, key, tensor or number, and the exit code is not 0. So is whether text and\n"
      "conversations are served, or why not; a model without them serves token ids.\n"
      "With --set weights=random:1 a config.json is enough.\n",
      NULL, cmd_model_verify, .alone = true },
    { "status", "", "one screen: lagand, its workers, its load; exit code 7 when degraded",
      "  laganctl status && echo all is well\n", NULL, cmd_status, .alone = false },
    { "bench", "", "random prompts, and how fast the answers came; keys as vLLM's bench",
      "  laganctl bench --input 1000 --output 200 --prompts 500 --concurrency 64\n"
      "  laganctl bench --rate 8 --json\n\n"
      "One request goes first and is not counted. Times are of this client: ttft to the first token,\n"
      "tpot from that to the last over the tokens in between, itl between two batches of tokens, e2el\n"
      "of a whole request. Answers have their length whatever the model says. A model whose ids are\n"
      "fewer than 256 wants --below.\n",
      bench_opts, cmd_bench, .alone = false },
    { "top", "", "the same again and again: what each worker does now, and its tokens a second",
      "  laganctl top\n"
      "  laganctl top --every 10 --count 6 --json >> load.jsonl\n\n"
      "Rates are of what was counted since the look before, so the first has none, nor has a worker that\n"
      "was started in between. PROMPT/S are prompt tokens that were computed, TOKENS/S those that were\n"
      "sampled; STEP MS and ROWS are of the last step. Ctrl-C ends it.\n",
      top_opts, cmd_top, .alone = false },
    { "workers list", "", "each worker: state, load, memory, restarts",
      "  laganctl workers list --json\n\n"
      "Behind a worker's own state stands that of the process that waits to take its place: standby, it\n"
      "has loaded; driver up, it keeps a GPU's driver up and takes the rest when its worker dies.\n",
      NULL, cmd_workers, .alone = false },
    { "requests list", "", "every open request", NULL, NULL, cmd_requests, .alone = false },
    { "cancel", "ID", "end a request of `requests list`",
      "  laganctl cancel 17\n", NULL, cmd_cancel, .alone = false },
    { "drain", "WORKER|all", "let a worker finish and take no more",
      "  laganctl drain w0\n"
      "  laganctl drain all\n\n"
      "It is down then until `laganctl restart` starts it, or lagand begins again.\n",
      NULL, cmd_drain, .alone = false },
    { "restart", "WORKER|all", "let a worker finish, then start it anew",
      "  laganctl restart w0\n\n"
      "all: each at once; `laganctl reload` is for one after the other.\n",
      NULL, cmd_restart, .alone = false },
    { "reload", "", "replace every worker, one after the other, by the program that lies there now",
      "  laganctl reload\n\n"
      "Requests pause and go on with the successor; nothing ends. Weights and KV stay where they are.\n",
      NULL, cmd_reload, .alone = false },
    { "daemon reexec", "", "let lagand begin again: a newer program, or a changed configuration",
      "  laganctl daemon reexec\n\n"
      "Clients of liblagan connect again by themselves and their requests go on. Weights and KV stay;\n"
      "workers that were drained are started again.\n"
      "The program that lies there is asked first, with --check: where it would not begin, this says\n"
      "why, and the lagand that runs goes on.\n",
      NULL, cmd_reexec, .alone = false },
    { "tune", "[WORKER]", "measure a GPU worker's matmuls and keep the fastest",
      "  laganctl tune\n"
      "  laganctl tune w1 --json > tuned.json\n\n"
      "Every shape of the model is timed with growing numbers of rows, unless it was before. What is\n"
      "found is used at once and kept, for this GPU, driver and library, in the file that the model's\n"
      "key cuda.tuned names; without that key the worker refuses. Any worker with the key measures what\n"
      "requests bring, while it is idle; this command asks for all shapes now.\n\n"
      "The worker measures only while it has no request, one matmul at a time: serving goes on, and on\n"
      "a busy worker this takes as long as it is busy. Ctrl-C ends the watching, not the measuring.\n"
      "WORKER may be left out where there is one.\n",
      NULL, cmd_tune, .alone = false },
    { "split show", "[WORKER]", "how a worker's device is divided between prompts and answers",
      "  laganctl split show --json\n\n"
      "WORKER may be left out where there is one, here as after split auto, off and set.\n",
      NULL, cmd_split_show, .alone = false },
    { "split auto", "[WORKER]", "let the worker choose the division by what steps take",
      "  laganctl split auto w0\n\n"
      "It takes the way in which prompts take the least time while tokens come within the model's key\n"
      "split.itl_target: one lane for both, or a part of the device for each.\n",
      NULL, cmd_split_auto, .alone = false },
    { "split off", "[WORKER]", "one lane for prompts and answers, on the whole device",
      "  laganctl split off\n", NULL, cmd_split_off, .alone = false },
    { "split set", "CONTEXT GENERATION [WORKER]", "divide the device: units for prompts, units for answers",
      "  laganctl split set 64 68\n\n"
      "Units are SMs, on the CPU threads; `laganctl split show` says how many there are and in what steps\n"
      "they are divided. It lasts until the worker is started anew: the model's keys split.mode and\n"
      "split.context_sm say how that one begins. A phase that is alone has the whole device.\n",
      NULL, cmd_split_set, .alone = false },
    { "events", "", "what has happened: workers, deaths, operators, requests that were lost",
      "  laganctl events -f --json\n\n"
      "The last 1024, also those of a lagand before this one where it could hand them on: after\n"
      "`laganctl daemon reexec`, and under systemd after a restart or a crash. The journal has all.\n",
      events_opts, cmd_events, .alone = false },
    { "panic", "", "the workers that died: why, their last words and last lines",
      "  laganctl panic\n\n"
      "The last 32, kept as long as what `laganctl events` tells.\n",
      NULL, cmd_panic, .alone = false },
    { "metrics", "", "counters and gauges as Prometheus reads them",
      "  laganctl metrics > /var/lib/prometheus/node-exporter/lagan.prom\n", NULL, cmd_metrics,
      .alone = false },
    { "kv stats", "", "blocks of each pool of the KV cache", NULL, NULL, cmd_kv_stats, .alone = false },
    { "kv pools", "", "blocks of each group of layers, and what of prompts was found in them", NULL, NULL,
      cmd_kv_pools, .alone = false },
    { "kv flush", "[WORKER]", "drop what is cached for others only, of one worker or of all",
      "  laganctl kv flush\n"
      "  laganctl kv flush w0 --json\n\n"
      "With the model's key kv.reuse a prompt that begins like one before it is not computed again.\n"
      "What is kept for that is dropped, on the device and on the host, and counted. Requests that run,\n"
      "wait with what they hold, or are to be resumed lose nothing, and answers stay what they are; the\n"
      "next prompt of each kind is computed anew and takes longer for it. For measurements from a cold\n"
      "cache, and after a change that it should not outlive. The memory is free then, not cleared.\n",
      NULL, cmd_kv_flush, .alone = false },
    { "keygen", "FILE", "make a pair of keys for tcp, the secret one in a new file",
      "  laganctl keygen /etc/lagan/keys          # lagand's: api.keys\n"
      "  laganctl keygen ~/.lagan-keys            # a client's: --keys\n\n"
      "A keys file has one key a line, behind one word; its mode is 0600. lagand's has its secret and\n"
      "the public keys of those who may connect, with a name each and limits if they shall have some:\n\n"
      "  secret KEY\n"
      "  client KEY alice\n"
      "  client KEY batch max_inflight=64 max_tokens=100000\n\n"
      "A client's has its own secret and lagand's public key:\n\n"
      "  secret KEY\n"
      "  server KEY\n\n"
      "lagand reads it at start, at `laganctl reload` and at SIGHUP.\n",
      NULL, cmd_keygen, .alone = true },
    { "config show", "", "the merged configuration and where each value came from", NULL, NULL,
      cmd_config_show, .alone = false },
    { "config check", "[FILE]", "check a configuration file; exit code 78 when it is wrong",
      "  laganctl config check /etc/lagan/lagan.yaml\n", NULL, cmd_config_check, .alone = true },
    { 0 }
};
/* clang-format on */
