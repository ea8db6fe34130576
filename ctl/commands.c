/* commands.c - the table of all commands, and the commands that have no file of their own.
 *
 * A command calls one verb of lagand. The reply is printed as a table, or as it is (--json). */
#include "ctl/ctl.h"

#include <stdio.h>

/* Prints the reply to the verb of the command as a table. */
static int
cmd_list(struct ctl *ctl)
{
    json_t *list;
    int r = ctl_ask(ctl, ctl->command->words, NULL, ctl->json, &list);

    if (list) print_table(ctl->command->columns, list);
    json_decref(list);
    return r;
}

/* Calls one() for each worker. Returns the combined exit code (ctl_worst()). */
static int
each_worker(struct ctl *ctl, int (*one)(struct ctl *ctl, const char *worker, void *arg), void *arg)
{
    json_t *workers, *w;
    size_t i;
    int worst = ctl_ask(ctl, "workers list", NULL, /* json= */ false, &workers);

    json_array_foreach(workers, i, w) worst = ctl_worst(worst, one(ctl, json_word(w, "name"), arg));
    json_decref(workers);
    return worst;
}

/* ---- requests */

static void
cell_age(struct table *t, const json_t *o, const char *key)
{
    char buf[32];

    table_cell(t, true, "%s", text_duration(buf, sizeof buf, (double)json_number(o, key) / 1e3));
}

static const struct column request_columns[] = {
    { "ID", "id", cell_number },
    { "NAME", "request_id", cell_word },
    { "USER", "user", cell_word },
    { "CLIENT", "client", cell_word },
    { "MODEL", "model", cell_word },
    { "WORKER", "worker", cell_word },
    { "STATE", "state", cell_word },
    { "PROMPT", "prompt", cell_number },
    { "GENERATED", "generated", cell_number },
    { "AGE", "age_ms", cell_age },
    { 0 },
};

static int
cmd_cancel(struct ctl *ctl)
{
    const char *word = *ctl->argv;
    json_t *done;
    long long id;
    char *end;
    int r;

    errno = 0;
    id = strtoll(word, &end, 10);
    if (!*word || *end || id < 0 || errno)
        return ctl_fail(CTL_USAGE, "'%s' is not a request id; `laganctl requests list` prints them",
                        word);
    r = ctl_ask(ctl, "cancel", json_pack("{s:I}", "id", (json_int_t)id), ctl->json, &done);
    if (done) printf("request %s cancelled\n", word);
    json_decref(done);
    return r;
}

/* ---- kv, config */

static const struct column kv_columns[] = {
    { "WORKER", "worker", cell_word },      { "POOL", "pool", cell_word },
    { "BLOCKS", "blocks", cell_number },    { "USED", "used", cell_number },
    { "CACHED", "cached", cell_number },    { "FREE", "free", cell_number },
    { "BLOCK", "block_bytes", cell_bytes }, { "BYTES", "bytes", cell_bytes },
    { "PINNED", "pinned", cell_number },    { 0 },
};

static long long
n_hits(const json_t *p)
{
    return json_number(p, "reused_full") + json_number(p, "reused_copied") +
           json_number(p, "reused_moved");
}

static void
cell_hits(struct table *t, const json_t *p, const char *key)
{
    (void)key;
    table_cell(t, true, "%lld", n_hits(p));
}

static void
cell_hit_share(struct table *t, const json_t *p, const char *key)
{
    long long hits = n_hits(p), all = hits + json_number(p, key);

    table_cell(t, true, "%lld%%", all ? 100 * hits / all : 0);
}

static const struct column group_columns[] = {
    { "WORKER", "worker", cell_word },     { "GROUP", "group", cell_number },
    { "KIND", "kind", cell_word },         { "WINDOW", "window", cell_number },
    { "POOL", "pool", cell_number },       { "BLOCK", "bytes", cell_bytes },
    { "USED", "used", cell_number },       { "CACHED", "cached", cell_number },
    { "TAKEN", "allocated", cell_number }, { "REUSED", NULL, cell_hits },
    { "MISSED", "missed", cell_number },   { "HIT", "missed", cell_hit_share },
    { "EVICTED", "evicted", cell_number }, { 0 },
};

/* Empties the prefix cache of one worker and appends its result to the JSON array list. */
static int
flush(struct ctl *ctl, const char *worker, void *list)
{
    json_t *row = json_pack("{s:s}", "worker", worker), *result;
    int r = ctl_ask(ctl, "kv flush", json_copy(row), /* json= */ false, &result);

    if (r == 0) {
        json_object_update(row, result);
        json_array_append(list, row);
        json_decref(result);
    }
    json_decref(row);
    return r;
}

static int
cmd_kv_flush(struct ctl *ctl)
{
    static const struct column columns[] = {
        { "WORKER", "worker", cell_word },          { "BLOCKS", "blocks", cell_number },
        { "BYTES", "bytes", cell_bytes },           { "HOST BLOCKS", "host_blocks", cell_number },
        { "HOST BYTES", "host_bytes", cell_bytes }, { 0 },
    };
    json_t *list = json_array();
    int r = *ctl->argv ? flush(ctl, *ctl->argv, list) : each_worker(ctl, flush, list);

    if (ctl->json && (r == 0 || json_array_size(list)))
        print_json(list);
    else if (json_array_size(list))
        print_table(columns, list);
    json_decref(list);
    return r;
}

static const struct column config_columns[] = {
    { "KEY", "key", cell_word },
    { "VALUE", "value", cell_word },
    { "FROM", "from", cell_word },
    { 0 },
};

static int
cmd_config_check(struct ctl *ctl)
{
    int r = spawn_check(*ctl->argv);

    if (ctl->json) printf("{\"ok\":%s,\"exit\":%d}\n", r ? "false" : "true", r);
    return r;
}

/* ---- reload */

static void
print_list(const char *title, const json_t *list)
{
    const json_t *text;
    size_t i;

    json_array_foreach(list, i, text) printf("%s%s\n", title, json_string_value(text));
}

static int
cmd_reload(struct ctl *ctl)
{
    json_t *done;
    int r = ctl_ask(ctl, "reload", NULL, ctl->json, &done);
    long long n = json_number(done, "workers");

    if (done) {
        print_list("taken: ", json_object_get(done, "taken"));
        print_list("kept: ", json_object_get(done, "kept"));
        print_list("replaced: ", json_object_get(done, "replaced"));
    }
    if (done && !n && !json_array_size(json_object_get(done, "taken")) &&
        !json_array_size(json_object_get(done, "kept")))
        puts("no worker runs that could be replaced; `laganctl restart all` starts them");
    json_decref(done);
    return r;
}

static int
cmd_reexec(struct ctl *ctl)
{
    json_t *done;
    int r = ctl_ask(ctl, "daemon reexec", NULL, ctl->json, &done);

    if (done) puts("lagand replaces itself; requests and device memory are kept");
    json_decref(done);
    return r;
}

/* ---- text */

struct text_opts {
    bool bare, keep_special;
    char ids[131072], text[131072], messages[131072], requests[4096], model[128];
};

/* clang-format off */
static const struct opt tokenize_opts[] = {
    { "text", OPT_STR, OPT_AT(text_opts, text), .arg = "TEXT", .sentence = "text to tokenize" },
    { "messages", OPT_STR, OPT_AT(text_opts, messages), .arg = "JSON",
      .sentence = "a conversation instead of a text: [{\"role\": ..., \"content\": ...}]" },
    { "requests", OPT_STR, OPT_AT(text_opts, requests), .arg = "FILE.jsonl",
      .sentence = "file with one {\"text\": ...} or {\"messages\": [...]} per line; -: standard "
      "input" },
    { "bare", OPT_BOOL, OPT_AT(text_opts, bare),
      .sentence = "do not add the special tokens that the tokenizer adds by default" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "name of the model; may be omitted if lagand serves only one" },
    { 0 }
};
static const struct opt detokenize_opts[] = {
    { "ids", OPT_STR, OPT_AT(text_opts, ids), .arg = "1,2,3", .sentence = "token ids to convert" },
    { "requests", OPT_STR, OPT_AT(text_opts, requests), .arg = "FILE.jsonl",
      .sentence = "file with one {\"ids\": [...]} per line; -: standard input" },
    { "keep_special", OPT_BOOL, OPT_AT(text_opts, keep_special),
      .sentence = "keep special tokens such as </s> in the text" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "name of the model; may be omitted if lagand serves only one" },
    { 0 }
};
static const struct opt pieces_opts[] = {
    { "ids", OPT_STR, OPT_AT(text_opts, ids), .arg = "1,2,3",
      .sentence = "token ids, at most 4096" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "name of the model; may be omitted if lagand serves only one" },
    { 0 }
};
static const struct opt render_opts[] = {
    { "messages", OPT_STR, OPT_AT(text_opts, messages), .arg = "JSON",
      .sentence = "a conversation: [{\"role\": ..., \"content\": ...}]" },
    { "model", OPT_STR, OPT_AT(text_opts, model), .arg = "NAME",
      .sentence = "name of the model; may be omitted if lagand serves only one" },
    { 0 }
};

/* clang-format on */

/* Prints a reply, with the tag that the line of --requests had (NULL: none). */
static void
print_tagged(const char *reply, json_t *tag)
{
    json_t *o = tag ? json_loads(reply, 0, NULL) : NULL;

    if (o) {
        json_object_set(o, "tag", tag);
        print_json(o);
    } else {
        puts(reply);
    }
    json_decref(o);
}

static int
text_call(struct ctl *ctl, json_t *args)
{
    const struct text_opts *o = ctl->opts;
    const json_t *talk = json_object_get(args, "messages");
    json_t *tag = json_incref(json_object_get(args, "tag"));
    char *reply = NULL;
    int r;

    json_object_del(args, "tag");
    if (talk && !json_is_string(talk)) { /* the protocol has a conversation as JSON text */
        char *text = json_dumps(talk, JSON_COMPACT | JSON_ENCODE_ANY);

        json_object_set_new(args, "messages", json_string(text));
        free(text);
    }
    if (*o->model && !json_object_get(args, "model")) /* a line may name another model */
        json_object_set_new(args, "model", json_string(o->model));
    if (o->bare) json_object_set_new(args, "bare", json_true());
    if (o->keep_special) json_object_set_new(args, "keep_special", json_true());
    r = ctl_call(ctl, ctl->command->words, args, &reply);
    if (r == 0) print_tagged(reply, tag);
    json_decref(tag);
    free(reply);
    return r;
}

static int
text_lines(struct ctl *ctl, const char *path)
{
    struct line_reader l;
    struct err e = { 0 };
    char *line;
    int r, worst = 0;

    if (line_reader_open(&l, path, &e) < 0) return ctl_fail(CTL_USAGE, "%s", e.text);
    ctl->file = path;
    while ((r = line_reader_wait(&l, NULL, &line, &e)) > 0) {
        json_error_t je;
        json_t *args = json_loads(line, 0, &je);

        ctl->line = l.number;
        if (json_is_object(args)) {
            r = text_call(ctl, args);
        } else {
            json_decref(args);
            r = ctl_fail(CTL_FAILED, "%s: line %zu: %s", path, l.number,
                         args ? "not a JSON object" : je.text);
        }
        worst = ctl_worst(worst, r);
    }
    if (r < 0) worst = ctl_fail(CTL_FAILED, "%s: %s", path, e.text);
    line_reader_close(&l);
    return ctl_signal ? 128 + ctl_signal : worst;
}

static json_t *
list_of_ids(const char *text, struct err *e)
{
    int32_t *ids;
    json_t *list;
    size_t n;

    if (parse_ids(text, &ids, &n, e) < 0) return NULL;
    list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    return list;
}

struct pin_opts {
    char ids[131072], user[256], cache_salt[LAGAN_MAX_SALT + 1], worker[64];
};

/* clang-format off */
static const struct opt pin_opts[] = {
    { "ids", OPT_STR, OPT_AT(pin_opts, ids), .arg = "1,2,3",
      .sentence = "token ids of the prefix; `laganctl tokenize` prints those of a text" },
    { "user", OPT_STR, OPT_AT(pin_opts, user), .arg = "NAME",
      .sentence = "user whose requests have the prefix, for example uid:1000 or key:alice; not "
      "used with kv.reuse_scope all" },
    { "cache_salt", OPT_STR, OPT_AT(pin_opts, cache_salt), .arg = "TEXT",
      .sentence = "cache_salt of these requests, if they have one" },
    { "worker", OPT_STR, OPT_AT(pin_opts, worker), .arg = "NAME",
      .sentence = "name of the worker, for example w0; may be omitted if there is only one" },
    { 0 }
};
static const struct opt unpin_opts[] = {
    { "worker", OPT_STR, OPT_AT(pin_opts, worker), .arg = "NAME",
      .sentence = "name of the worker, for example w0; may be omitted if there is only one" },
    { 0 }
};
/* clang-format on */

static void
add_word(json_t *args, const char *key, const char *word)
{
    if (*word) json_object_set_new(args, key, json_string(word));
}

static int
cmd_kv_pin(struct ctl *ctl)
{
    const struct pin_opts *o = ctl->opts;
    json_t *args = json_object(), *done = NULL, *ids;
    struct err e;
    int r;

    ids = list_of_ids(o->ids, &e);
    if (!ids) {
        json_decref(args);
        return ctl_fail(CTL_USAGE, "--ids: %s", e.text);
    }
    json_object_set_new(args, "ids", ids);
    add_word(args, "user", o->user);
    add_word(args, "cache_salt", o->cache_salt);
    add_word(args, "worker", o->worker);
    r = ctl_ask(ctl, "kv pin", args, ctl->json, &done);
    if (done)
        printf("pin %lld  keeps %lld tokens in the prefix cache\n", json_number(done, "pin"),
               json_number(done, "tokens"));
    json_decref(done);
    return r;
}

static int
cmd_kv_unpin(struct ctl *ctl)
{
    const struct pin_opts *o = ctl->opts;
    const char *word = *ctl->argv;
    json_t *args = json_object(), *done = NULL;
    char *end;
    long pin = strcmp(word, "all") ? strtol(word, &end, 10) : (end = (char *)(uintptr_t) "", 0);
    int r;

    if (*end || !*word || pin < 0 || (pin == 0 && strcmp(word, "all"))) {
        json_decref(args);
        return ctl_fail(CTL_USAGE, "'%s' is neither the number of a pin nor all", word);
    }
    json_object_set_new(args, "pin", json_integer(pin));
    add_word(args, "worker", o->worker);
    r = ctl_ask(ctl, "kv unpin", args, ctl->json, &done);
    if (done) printf("%lld pins removed\n", json_number(done, "pins"));
    json_decref(done);
    return r;
}

/* tokenize, detokenize, pieces, render */
static int
cmd_text(struct ctl *ctl)
{
    const struct text_opts *o = ctl->opts;
    bool to_ids = !strcmp(ctl->command->words, "tokenize");
    struct err e;
    json_t *ids;

    if (ctl_need_utf8("text", o->text) || ctl_need_utf8("messages", o->messages) ||
        ctl_need_utf8("model", o->model))
        return CTL_USAGE;
    if (*o->requests) return text_lines(ctl, o->requests);
    if (*o->messages) return text_call(ctl, json_pack("{s:s}", "messages", o->messages));
    if (!ctl->first_given) /* a text may be empty */
        return ctl_fail(CTL_USAGE, "%s needs %s", ctl->command->words,
                        to_ids                              ? "--text TEXT, --messages JSON or "
                                                              "--requests FILE.jsonl"
                        : ctl->command->opts == render_opts ? "--messages JSON"
                        : ctl->command->opts == pieces_opts ? "--ids 1,2,3"
                                                            : "--ids 1,2,3 or --requests "
                                                              "FILE.jsonl");
    if (to_ids) return text_call(ctl, json_pack("{s:s}", "text", o->text));
    ids = list_of_ids(o->ids, &e);
    if (!ids) return ctl_fail(CTL_USAGE, "--ids: %s", e.text);
    return text_call(ctl, json_pack("{s:o}", "ids", ids));
}

/* clang-format off */
const struct command commands[] = {
    { "generate", "", "send prompts to a model and print the output while it is generated",
      "  laganctl generate --text \"12 = \" --max-tokens 32\n"
      "  laganctl generate --ids 1,2,3 --temperature 0.8 --seed 7 --json\n"
      "  laganctl generate --requests prompts.jsonl --concurrency 16 --json > outputs.jsonl\n",
      generate_opts, .run = cmd_generate, .parses_argv = true },
    { "chat", "", "chat with a model: an input line is a message, sent with the earlier ones",
      "  laganctl chat\n"
      "  laganctl chat --system \"Reply with one word.\" --temperature 0.7\n"
      "  printf 'Hello\\nAnd in French?\\n' | laganctl chat --json\n\n"
      "Each message is sent with the whole conversation, formatted with the chat template of\n"
      "the model (model option chat_template, see lagand --help). For models with several\n"
      "channels (gpt-oss) only the final channel is printed. An output has at most 1024 tokens\n"
      "unless --max-tokens is given. The chat ends with the input (Ctrl-D) or a failed request.\n",
      chat_opts, .run = cmd_chat, .parses_argv = true },
    { "gateway", "", "serve the HTTP API of OpenAI for the model of --spawn, until a signal",
      "  laganctl --spawn models/gemma gateway\n"
      "  laganctl --spawn models/gemma gateway --listen 127.0.0.1:8000\n\n"
      "Starts lagan-gateway beside the private lagand and prints the URL of each address when\n"
      "requests are served. Ctrl-C stops both. A running lagand is served by lagan-gateway(8)\n"
      "itself.\n",
      spawn_gateway_opts, .run = cmd_gateway, .connects = true },
    { "tokenize", "", "convert text to token ids with the tokenizer of a model",
      "  laganctl tokenize --text \"hello\"\n"
      "  laganctl tokenize --messages '[{\"role\":\"user\",\"content\":\"hello\"}]'\n"
      "  laganctl tokenize --requests texts.jsonl > ids.jsonl\n\n"
      "The tokenizer adds its special tokens (<s>, </s>) unless --bare is given. For a\n"
      "conversation the chat template alone decides which special tokens are added.\n",
      tokenize_opts, .run = cmd_text },
    { "detokenize", "", "convert token ids to text with the tokenizer of a model",
      "  laganctl detokenize --ids 104,105\n"
      "  laganctl detokenize --ids 1,104 --keep-special\n"
      "  laganctl detokenize --requests ids.jsonl\n\n"
      "Bytes that are not valid UTF-8 become U+FFFD. Ids outside the vocabulary are rejected.\n",
      detokenize_opts, .run = cmd_text },
    { "pieces", "", "print the bytes of each token inside a text",
      "  laganctl pieces --ids 104,105\n\n"
      "The output is a list with a list of bytes, numbers from 0 to 255, for each token.\n",
      pieces_opts, .run = cmd_text },
    { "render", "", "print a conversation in the format of a model's chat template",
      "  laganctl render --messages '[{\"role\":\"user\",\"content\":\"hello\"}]'\n",
      render_opts, .run = cmd_text },
    { "models", "", "show what clients need to know of the served models",
      "  laganctl models --json\n", .run = cmd_models },
    { "load", "", "show queued requests, running sequences and used KV blocks of each model",
      "  laganctl load --json\n", .run = cmd_load },
    { "model list", "", "list the served models and the number of their workers",
      "  laganctl model list --json\n",
      .run = cmd_model_list },
    { "model verify", "DIR",
      "check that lagan can serve the model in a directory, without reading its weights",
      "  laganctl model verify models/llama\n"
      "  laganctl --device cuda --set dtype=bf16 model verify /srv/models/llama-8b\n\n"
      "The command reads the configuration, the headers of the weight files with the shape and\n"
      "type of every tensor, and the tokenizer, and prints how much device memory the model\n"
      "needs. An error names the file, the key or tensor and the value; the exit code is then\n"
      "not 0. The command also prints whether the model accepts text and conversations, or why\n"
      "not; every model accepts token ids. With --set weights=random:1 a config.json is\n"
      "sufficient.\n",
      .run = cmd_model_verify, .alone = true },
    { "status", "",
      "show lagand, its workers and their load on one screen; exit code 0 if every worker is ready",
      "  laganctl status --wait && echo all is well\n"
      "  laganctl status --wait=60 --json\n\n"
      "The exit code is 0 only if every worker is ready: 7 if a worker has failed or is stopped,\n"
      "69 while lagand starts or stops, 3 without a lagand, 6 if the time of --wait is over.\n",
      status_wait_opts, .run = cmd_status, .connects = true },
    { "bench", "",
      "measure throughput and latency with random prompts; --json has the keys of vLLM's benchmark",
      "  laganctl bench --input 1000 --output 200 --prompts 500 --concurrency 64\n"
      "  laganctl bench --rate 8 --json\n\n"
      "The first request is a warm-up and is not counted. Times are measured in this client:\n"
      "ttft, time to the first token; tpot, time from the first to the last token divided by\n"
      "the tokens after the first; itl, time between two batches of tokens; e2el, time of a\n"
      "whole request; p90 and p99 are percentiles. A terminal shows the progress. Every output\n"
      "has the requested length. A model with fewer than 256 token ids needs --below.\n",
      bench_opts, .run = cmd_bench },
    { "top", "", "show the state and the token rates of each worker, repeatedly",
      "  laganctl top\n"
      "  laganctl top --every 10 --count 6 --json >> load.jsonl\n\n"
      "Rates are averages since the previous output; the first output has no rates, nor has a\n"
      "worker that was started in between. PROMPT/S are prompt tokens computed per second,\n"
      "TOKENS/S tokens generated per second; STEP MS and TOK/STEP are of the last step. Ctrl-C\n"
      "ends the command.\n",
      top_opts, .run = cmd_top },
    { "workers list", "", "list the workers with state, load, memory and restarts",
      "  laganctl workers list --json\n\n"
      "The state of a worker is followed by the state of its standby process: standby, the\n"
      "process has loaded the model; driver up, it keeps a GPU driver initialised and loads the\n"
      "model when the worker fails.\n",
      .run = cmd_workers },
    { "requests list", "", "list the open requests",
      .run = cmd_list, .columns = request_columns },
    { "cancel", "ID", "cancel the open request with this id (see `laganctl requests list`)",
      "  laganctl cancel 17\n",
      .run = cmd_cancel },
    { "drain", "WORKER|all", "let a worker finish its requests and give it no new ones",
      "  laganctl drain w0\n"
      "  laganctl drain all --wait=300\n\n"
      "The worker then exits and stays down until `laganctl restart` or a restart of lagand.\n",
      order_wait_opts, .run = cmd_order },
    { "restart", "WORKER|all", "let a worker finish its requests, then replace its process",
      "  laganctl restart w0\n"
      "  laganctl restart all --wait\n\n"
      "With all, the workers restart at the same time; `laganctl reload` replaces one after the\n"
      "other.\n",
      order_wait_opts, .run = cmd_order },
    { "reload", "", "take a changed configuration, or replace the workers by the installed program",
      "  laganctl reload\n\n"
      "Options, client keys, and models that were added or removed are valid at once; workers with\n"
      "changed settings are replaced, one after the other. All workers are replaced if another\n"
      "lagan-worker is installed, or if nothing has changed. The reply lists what was taken, which\n"
      "workers are replaced, and what needs `laganctl daemon reexec`. Open requests continue on the\n"
      "replacement. Everything is tested first, as by lagand --check; if that finds an error, the\n"
      "command prints it, exits with 78, and nothing changes. systemctl reload runs this command.\n",
      .run = cmd_reload },
    { "daemon reexec", "",
      "let lagand replace itself by the installed program, or reread its configuration",
      "  laganctl daemon reexec\n\n"
      "Clients of liblagan reconnect automatically and their requests continue. Weights and KV\n"
      "cache stay in device memory. Drained workers are started again. The installed program is\n"
      "tested first with --check, models included; if the test fails, the command prints the\n"
      "first errors, exits with 78, and the running lagand continues.\n",
      .run = cmd_reexec },
    { "tune", "[WORKER]", "measure the matmuls of a GPU worker and store the fastest algorithms",
      "  laganctl tune\n"
      "  laganctl tune w1 --json > tuned.json\n\n"
      "The worker measures every matrix product of the model with increasing numbers of tokens,\n"
      "except for shapes that were measured before. Results are used immediately and are\n"
      "stored, for this GPU, driver and library, in the tuning file that the model option\n"
      "cuda.tuning_file names; without this option the command is refused. A worker with this\n"
      "option also measures new shapes by itself while it is idle.\n\n"
      "The worker measures one matmul at a time and only while it has no requests, so that a\n"
      "busy worker needs longer. Ctrl-C ends the command; the measurement continues. WORKER is\n"
      "required if there are several.\n",
      .run = cmd_tune },
    { "split show", "[WORKER]", "show how a worker divides its device between prefill and decode",
      "  laganctl split show --json\n\n"
      "WORKER is the name of a worker, for example w0; it may be omitted if there is only one.\n",
      .run = cmd_split_show },
    { "split auto", "[WORKER]",
      "let a worker divide its device between prefill and decode as measured step times suggest",
      "  laganctl split auto w0\n\n"
      "The worker selects the division with the fastest prefill that keeps the inter-token\n"
      "latency below the model option split.itl_target. It may also leave the device undivided.\n",
      .run = cmd_split_select },
    { "split off", "[WORKER]", "do not divide the device: a step has both prefill and decode",
      "  laganctl split off\n",
      .run = cmd_split_select },
    { "split set", "PREFILL DECODE [WORKER]",
      "divide the device: number of SMs (device cpu: threads) for prefill, and for decode",
      "  laganctl split set 64 68\n\n"
      "`laganctl split show` prints the number of SMs or threads (units) of the device, and the\n"
      "granularity: a part is a multiple of it. The division lasts until the worker restarts; the\n"
      "model options split.mode and split.context_sm set the initial one. Prefill uses the whole\n"
      "device while decode has no work, and the reverse. WORKER: a name such as w0; it may be\n"
      "omitted if there is only one worker.\n",
      .run = cmd_split_select },
    { "events", "", "print events: worker states, failures, operator commands, lost requests",
      "  laganctl events -f --json\n\n"
      "lagand keeps the last 1024 events, also across `laganctl daemon reexec` and, under\n"
      "systemd, across a restart or a crash of lagand. The journal has all events.\n",
      events_opts, .run = cmd_events },
    { "panic", "", "print why workers failed: cause, panic message and last log lines",
      "  laganctl panic\n\n"
      "lagand keeps the last 32 failures, as long as the events of `laganctl events`. Frames are\n"
      "the calls at the time of the failure; `addr2line -fe lagan-worker 0x1234` names the\n"
      "function of lagan-worker+0x1234.\n",
      .run = cmd_panic },
    { "steps", "[WORKER]", "print the last steps (batches) of the workers, one line each",
      "  laganctl steps\n"
      "  laganctl steps -f --json w0 > steps.jsonl\n\n"
      "PREFILL, DECODE, ENCODER: batched tokens by kind of work. RUN, WAIT: sequences of the\n"
      "worker after the step. PRE: sequences preempted for its blocks. CACHED: prompt tokens\n"
      "that its new sequences found in the prefix cache. PLAN, QUEUE, STEP: time to plan the\n"
      "step, to queue its work on the device, and to compute it. USED / FREE: KV blocks of each\n"
      "pool. lagand keeps the last 4096 steps of a worker, also those of a process that has\n"
      "ended.\n",
      follow_opts, .run = cmd_steps },
    { "metrics", "", "print all metrics in the Prometheus text format",
      "  cd /var/lib/prometheus/node-exporter\n"
      "  laganctl metrics > lagan.prom.new && mv lagan.prom.new lagan.prom\n\n"
      "The two steps replace the file at once, so that a collector never reads a part of it or\n"
      "the empty file of a failed command.\n",
      .run = cmd_metrics },
    { "kv stats", "", "show the used, cached and free KV blocks of each memory pool",
      "  laganctl kv stats\n\n"
      "A pool holds the KV blocks of one size; models with several kinds of layers may have\n"
      "several pools. Used: a running sequence has the block; cached: the prefix cache has it.\n"
      "Pools share the memory of the KV cache: memory that no pool uses is free in each of them.\n"
      "BYTES is BLOCKS times BLOCK, the size of a block. The pool host is the host tier.\n",
      .run = cmd_list, .columns = kv_columns },
    { "kv pools", "", "show KV blocks and prefix cache hits by kind of layers",
      "  laganctl kv pools\n\n"
      "A row is a KV group: the layers of equal kind (full, window, cross, state), window and\n"
      "KV size. Block counts from TAKEN to EVICTED are totals since the start of the worker.\n",
      .run = cmd_list, .columns = group_columns },
    { "kv events", "[WORKER]", "print the last changes of the prefix caches (KV events)",
      "  laganctl kv events --last 100\n"
      "  laganctl kv events -f --json w0 > blocks.jsonl\n\n"
      "A line is a KV block that the prefix cache of a worker has stored, removed or updated\n"
      "(moved between device and host memory, or its priority), in one KV group. Equal names\n"
      "mean equal tokens, equal tokens before them, and the same user and model.\n\n"
      "With --follow the blocks that the cache has come first, without number, then the changes.\n"
      "If the reader falls behind or a worker restarts, a line with the number of lost events\n"
      "comes, and the blocks again: a program then drops what it knew. lagand keeps as many\n"
      "events of a worker as the model option kv.events says; the model option kv.reuse must be\n"
      "true.\n",
      follow_opts, .run = cmd_kv_events },
    { "kv flush", "[WORKER]", "empty the prefix cache of one worker or of all workers",
      "  laganctl kv flush\n"
      "  laganctl kv flush w0 --json\n\n"
      "With the model option kv.reuse, KV blocks are kept for later requests with the same\n"
      "first tokens. This command removes such blocks from the device and from host memory\n"
      "and prints their number. Blocks of open requests stay, and results do not change; the\n"
      "next requests compute their prompts again and take longer. Use it to measure with an\n"
      "empty cache, or after a change that the cache should not outlive. The memory is freed,\n"
      "not overwritten.\n",
      .run = cmd_kv_flush },
    { "kv pin", "", "keep a cached prefix: its KV blocks are not evicted",
      "  laganctl kv pin --ids $(laganctl tokenize --text ...) --user uid:1000\n"
      "  laganctl kv pin --ids 1,5,9,12 --user key:alice --worker w0 --json\n\n"
      "The prefix must be in the prefix cache: send a request with it first. The full blocks of\n"
      "the prefix that are cached stay until `laganctl kv unpin` or the end of the worker. A\n"
      "worker keeps 8 pins at most, and refuses a pin beside which the longest request would not\n"
      "fit. `laganctl kv stats` shows the pinned blocks. For an encoder-decoder model the ids are\n"
      "the encoder input.\n",
      pin_opts, .run = cmd_kv_pin },
    { "kv unpin", "PIN|all", "end pins of the prefix cache",
      "  laganctl kv unpin 1\n"
      "  laganctl kv unpin all --worker w0\n\n"
      "The blocks stay in the cache, and may be evicted from now on.\n",
      unpin_opts, .run = cmd_kv_unpin },
    { "keygen", "FILE",
      "generate a key pair for tcp connections and write the secret key to a new file",
      "  laganctl keygen /etc/lagan/keys          # keys of lagand; option api.keys names the file\n"
      "  laganctl keygen ~/.lagan-keys            # keys of a client; option --keys names the file\n\n"
      "A key file has one key per line after a keyword; its mode is 0600. The file of lagand\n"
      "has its secret key and the public keys of its clients, each with a name and optional\n"
      "limits:\n\n"
      "  secret KEY\n"
      "  client KEY alice\n"
      "  client KEY batch max_inflight=64 max_tokens=100000\n\n"
      "The file of a client has its own secret key and the public key of lagand:\n\n"
      "  secret KEY\n"
      "  server KEY\n\n"
      "The file of lagand.service must belong to the user of the service: chown lagan FILE.\n"
      "lagand reads its file at start, at `laganctl reload` and on SIGHUP.\n",
      .run = cmd_keygen, .alone = true },
    { "config show", "", "print the configuration in use, and where each value was set",
      .run = cmd_list, .columns = config_columns },
    { "help", "[COMMAND] [WORD]", "print the commands, or describe one; the same as --help",
      "  laganctl help kv\n"
      "  laganctl help kv flush\n",
      .run = cmd_help, .alone = true },
    { "config check", "[FILE]", "check a configuration file; exit code 78 if it has errors",
      "  laganctl config check /etc/lagan/lagan.yaml\n",
      .run = cmd_config_check, .alone = true },
    { 0 }
};
/* clang-format on */
