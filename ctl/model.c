/* model.c - laganctl model: lists the served models; verifies a model directory. */
#include "ctl/ctl.h"

#include <stdio.h>

/* ---- list */

/* Returns {model, device, workers, ready, weights: bytes, dtype, max_len, text, chat} for all the
 * workers of a model. */
static json_t *
served(const char *model, const json_t *workers)
{
    const char *device = "", *dtype = "", *text = "", *chat = "";
    json_int_t n = 0, n_ready = 0, weights = 0, max_len = 0;
    const json_t *w, *a;
    size_t i, k;

    json_array_foreach(workers, i, w)
    {
        if (strcmp(json_word(w, "model"), model)) continue;
        if (*json_string_of(w, "device"))
            device = *device && strcmp(device, json_string_of(w, "device"))
                         ? "several"
                         : json_string_of(w, "device");
        n++;
        dtype = json_string_of(w, "dtype");
        text = json_string_of(w, "text");
        chat = json_string_of(w, "chat");
        max_len = json_number(w, "max_len");
        n_ready += !strcmp(json_word(w, "state"), "ready");
        json_array_foreach(json_object_get(w, "arenas"), k,
                           a) if (!strcmp(json_word(a, "name"), "weights"))
            weights = json_integer_value(json_object_get(a, "bytes"));
    }
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:s,s:I,s:s,s:s}", "model", model, "device", device,
                     "workers", n, "ready", n_ready, "weights", weights, "dtype", dtype, "max_len",
                     max_len, "text", text, "chat", chat);
}

/* Adds what text a model serves. fault: it has a tokenizer that cannot be loaded. */
static void
cell_text(struct table *t, const json_t *o, const char *key)
{
    bool fault = !strcmp(json_word(o, key), "fault");

    table_cell(t, false, "%s", fault ? "ids only (fault)" : json_word(o, key));
}

int
cmd_model_list(struct ctl *ctl)
{
    static const struct column columns[] = {
        { "MODEL", "model", cell_word },       { "DEVICE", "device", cell_word },
        { "WORKERS", "workers", cell_number }, { "READY", "ready", cell_number },
        { "WEIGHTS", "weights", cell_bytes },  { "DTYPE", "dtype", cell_word },
        { "LENGTH", "max_len", cell_number },  { "TEXT", "text", cell_text },
        { "CHAT", "chat", cell_word },         { 0 },
    };
    json_t *status, *list;
    const json_t *name;
    int r = ctl_ask(ctl, "status", NULL, /* json= */ false, &status);
    size_t i;

    if (r) return r;
    list = json_array();
    json_array_foreach(json_object_get(status, "models"), i, name) json_array_append_new(
        list, served(json_string_value(name), json_object_get(status, "workers")));
    if (ctl->json)
        print_json(list);
    else
        print_table(columns, list);
    json_decref(list);
    json_decref(status);
    return 0;
}

/* ---- models, load */

static const struct column model_columns[] = {
    { "MODEL", "name", cell_word },
    { "LENGTH", "max_model_len", cell_number },
    { "VOCABULARY", "vocabulary", cell_number },
    { "ARCHITECTURE", "architecture", cell_word },
    { "TEMPLATE", "template", cell_word },
    { "POLICY", "policy", cell_word },
    { "FINGERPRINT", "fingerprint", cell_word },
    { 0 },
};

int
cmd_models(struct ctl *ctl)
{
    json_t *list;
    int r = ctl_ask(ctl, "models", NULL, ctl->json, &list);

    if (list) print_table(model_columns, list);
    json_decref(list);
    return r;
}

static void
cell_share(struct table *t, const json_t *o, const char *key)
{
    table_cell(t, true, "%.0f%%", 100 * json_number_value(json_object_get(o, key)));
}

int
cmd_load(struct ctl *ctl)
{
    static const struct column columns[] = {
        { "MODEL", "model", cell_word },
        { "WAITING", "waiting", cell_number },
        { "RUNNING", "running", cell_number },
        { "KV", "kv", cell_share },
        { "BLOCKS", "blocks", cell_number },
        { "TOKENS", "tokens_per_block", cell_number },
        { 0 },
    };
    json_t *models, *list, *o;
    const char *name;
    int r = ctl_ask(ctl, "load", NULL, ctl->json, &models);

    if (!models) return r;
    list = json_array();
    json_object_foreach(models, name, o)
    {
        json_object_set_new(o, "model", json_string(name));
        json_array_append(list, o);
    }
    print_table(columns, list);
    json_decref(list);
    json_decref(models);
    return r;
}

/* ---- verify */

/* Prints a line for each KV group, as "KV full 128.0 KiB a token of 32 layers". */
static void
print_group(const json_t *g)
{
    const char *kind = json_word(g, "kind");
    bool state = !strcmp(kind, "state");
    long long window = json_number(g, "window");
    char buf[32];

    printf("  KV        %s%s of %lld layer%s",
           text_bytes(buf, sizeof buf, (double)json_number(g, "bytes")),
           state                    ? " a sequence, states"
           : !strcmp(kind, "cross") ? " a token of the encoder input"
                                    : " a token",
           json_number(g, "layers"), json_number(g, "layers") == 1 ? "" : "s");
    if (window) printf(" with a window of %lld", window);
    puts("");
}

static void
print_look(const char *dir, const json_t *o)
{
    char a[32], b[32], c[32];
    const json_t *g;
    size_t i;

    printf("%s  ok, %s of weights in %s\n", dir,
           text_bytes(a, sizeof a, (double)json_number(o, "weights")), json_word(o, "dtype"));
    printf("  model     %s, %lld layers", json_word(o, "architecture"), json_number(o, "layers"));
    if (json_number(o, "encoder_layers"))
        printf(" and %lld of an encoder", json_number(o, "encoder_layers"));
    printf(", hidden %lld, vocabulary %lld, up to %lld positions\n", json_number(o, "hidden"),
           json_number(o, "vocab"), json_number(o, "max_len"));
    json_array_foreach(json_object_get(o, "kv"), i, g) print_group(g);
    printf("  sequence  the longest needs %s of KV in %s\n",
           text_bytes(a, sizeof a, (double)json_number(o, "sequence")), json_word(o, "kv_dtype"));
    printf("  memory    %s: %s, %s free; %s remain after the weights\n", json_word(o, "device"),
           text_bytes(a, sizeof a, (double)json_number(o, "total")),
           text_bytes(b, sizeof b, (double)json_number(o, "free")),
           text_bytes(c, sizeof c, (double)json_number(o, "left")));
    if (json_number(o, "mapped"))
        printf("  mapped    %s of the weights are read from the files, as file cache\n",
               text_bytes(a, sizeof a, (double)json_number(o, "mapped")));
    if (strncmp(json_word(o, "limiter"), "cgroup", 6) == 0)
        printf("  limit     %s\n", json_word(o, "limiter"));
    if (json_number(o, "skipped"))
        printf("  skipped   %lld tensors of other parts than the language model, the first is %s\n",
               json_number(o, "skipped"), json_word(o, "skipped_first"));
    if (json_number(o, "unused"))
        printf("  unused    %lld tensors, the first is %s\n", json_number(o, "unused"),
               json_word(o, "unused_first"));
    printf("  text      %s\n",
           json_is_null(json_object_get(o, "no_text")) ? "yes" : json_word(o, "no_text"));
    printf("  chat      %s\n",
           json_is_null(json_object_get(o, "no_chat")) ? "yes" : json_word(o, "no_chat"));
}

int
cmd_model_verify(struct ctl *ctl)
{
    char *line = NULL;
    json_t *look;
    int r = spawn_look(ctl, ctl->argv[0], &line);

    if (r == 0 && ctl->json) fputs(line, stdout);
    look = r == 0 && !ctl->json ? json_loads(line, 0, NULL) : NULL;
    if (look) print_look(ctl->argv[0], look);
    json_decref(look);
    free(line);
    return r;
}
