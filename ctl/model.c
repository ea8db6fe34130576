/* model.c - laganctl model: which are served, and whether a directory could be. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- list */

/* {model, device, workers, ready, weights: bytes} of those that serve a name. */
static json_t *
served(const char *model, const json_t *workers)
{
    const char *device = "-";
    json_int_t n = 0, n_ready = 0, weights = 0;
    const json_t *w, *a;
    size_t i, k;

    json_array_foreach(workers, i, w)
    {
        if (strcmp(json_word(w, "model"), model)) continue;
        device = n++ && strcmp(device, json_word(w, "device")) ? "several" : json_word(w, "device");
        n_ready += !strcmp(json_word(w, "state"), "ready");
        json_array_foreach(json_object_get(w, "arenas"), k,
                           a) if (!strcmp(json_word(a, "name"), "weights"))
            weights = json_integer_value(json_object_get(a, "bytes"));
    }
    return json_pack("{s:s,s:s,s:I,s:I,s:I}", "model", model, "device", device, "workers", n,
                     "ready", n_ready, "weights", weights);
}

static void
print_list(const json_t *list)
{
    static const char *const heads[] = { "MODEL", "DEVICE", "WORKERS", "READY", "WEIGHTS" };
    struct table *t = table_new(heads, ARRAY_LEN(heads));
    const json_t *m;
    char buf[32];
    size_t i;

    json_array_foreach(list, i, m)
    {
        table_cell(t, false, "%s", json_word(m, "model"));
        table_cell(t, false, "%s", json_word(m, "device"));
        table_cell(t, true, "%lld", (long long)json_integer_value(json_object_get(m, "workers")));
        table_cell(t, true, "%lld", (long long)json_integer_value(json_object_get(m, "ready")));
        table_cell(
            t, true, "%s",
            text_bytes(buf, sizeof buf, (double)json_integer_value(json_object_get(m, "weights"))));
    }
    table_print(t, stdout);
}

struct plain {
    bool json, help;
};

static const struct command *
command_of(const char *words)
{
    const struct command *c = commands;

    while (strcmp(c->words, words)) c++;
    return c;
}

int
cmd_model_list(struct ctl *ctl, int argc, char **argv)
{
    struct plain o;
    json_t *status, *list;
    const json_t *name;
    char *reply = NULL, *text;
    int n = command_args(command_of("model list"), &o, argc, argv), r;
    size_t i;

    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n) return ctl_fail(CTL_USAGE, "usage: laganctl model list");
    r = ctl_call(ctl, "status", json_object(), false, &reply);
    if (r) return r;
    status = json_loads(reply, 0, NULL);
    list = json_array();
    json_array_foreach(json_object_get(status, "models"), i, name) json_array_append_new(
        list, served(json_string_value(name), json_object_get(status, "workers")));
    if (o.json) {
        text = json_dumps(list, JSON_COMPACT);
        puts(text);
        free(text);
    } else {
        print_list(list);
    }
    json_decref(list);
    json_decref(status);
    free(reply);
    return 0;
}

/* ---- verify */

/* Does it do that? Else why, in reply, which the caller frees. */
static bool
does(struct ctl *ctl, const char *verb, const char *args, char **reply)
{
    *reply = NULL;
    if (lagan_call(ctl->api, verb, args, reply, NULL, 60000) >= 0) return true;
    free(*reply);
    *reply = strdup(lagan_why(ctl->api));
    return false;
}

/* One token, as somebody would ask for it. */
static int
make_token(struct ctl *ctl)
{
    struct lagan_request *r = lagan_request_new();
    struct lagan_event ev = { .size = sizeof ev };
    uint64_t id;
    int k = lagan_set_ids(r, "ids", &(int32_t){ 0 }, 1);

    if (k == 0) k = lagan_set_int(r, "max_tokens", 1);
    if (k == 0) k = lagan_submit(ctl->api, r, &id);
    lagan_request_free(r);
    if (k < 0) return ctl_fail(CTL_FAILED, "%s", lagan_why(ctl->api));
    while ((k = lagan_next(ctl->api, &ev, 600000)) == 1 && ev.kind != LAGAN_EVENT_DONE)
        if (ev.kind == LAGAN_EVENT_ERROR) return ctl_fail(ctl_exit_of(ev.reason), "%s", ev.message);
    return k == 1 ? 0 : ctl_fail(CTL_FAILED, "it makes no token: %s", lagan_why(ctl->api));
}

struct verify {
    struct plain o;
    const char *dir;
};

static int
look(struct ctl *ctl, void *arg)
{
    struct verify *v = arg;
    char *text, *chat, buf[32];
    bool has_text = does(ctl, "tokenize", "{\"text\":\"a\"}", &text);
    bool has_chat =
        does(ctl, "tokenize",
             "{\"messages\":\"[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"a\\\"}]\"}", &chat);
    char *reply = NULL;
    json_t *status, *m;
    int r = make_token(ctl);

    if (r == 0) r = ctl_call(ctl, "status", json_object(), false, &reply);
    status = r == 0 ? json_loads(reply, 0, NULL) : NULL;
    m = status ? served(json_string_value(json_array_get(json_object_get(status, "models"), 0)),
                        json_object_get(status, "workers"))
               : NULL;
    if (m && v->o.json) {
        json_t *line = json_pack("{s:s,s:o,s:s?,s:s?}", "model", json_word(m, "model"), "weights",
                                 json_incref(json_object_get(m, "weights")), "no_text",
                                 has_text ? NULL : text, "no_chat", has_chat ? NULL : chat);

        free(reply);
        reply = json_dumps(line, JSON_COMPACT);
        puts(reply);
        json_decref(line);
    } else if (m) {
        printf(
            "%s  ok, %s of weights\n", v->dir,
            text_bytes(buf, sizeof buf, (double)json_integer_value(json_object_get(m, "weights"))));
        printf("  text  %s\n", has_text ? "yes" : text);
        printf("  chat  %s\n", has_chat ? "yes" : chat);
    }
    json_decref(m);
    json_decref(status);
    free(reply);
    free(text);
    free(chat);
    return r;
}

int
cmd_model_verify(struct ctl *ctl, int argc, char **argv)
{
    struct verify v;
    int n = command_args(command_of("model verify"), &v.o, argc, argv);

    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n != 1) return ctl_fail(CTL_USAGE, "usage: laganctl model verify DIR");
    v.dir = argv[0];
    snprintf(ctl->o.spawn, sizeof ctl->o.spawn, "%s", argv[0]);
    return spawn_run(ctl, look, &v);
}
