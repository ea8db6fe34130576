/* flush.c - laganctl kv flush: empties the prefix cache of one worker, or of all, one after the
 * other. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct flush_opts {
    bool json, help;
};

/* Flushes one worker and appends the result to list. Returns 0, or an exit code after printing the
 * error. */
static int
flush(struct ctl *ctl, const char *worker, json_t *list)
{
    json_t *row = json_pack("{s:s}", "worker", worker), *went;
    int r = ctl_ask(ctl, "kv flush", json_copy(row), /* privileged= */ true, /* json= */ false,
                    &went);

    if (r == 0) {
        json_object_update(row, went);
        json_array_append(list, row);
        json_decref(went);
    }
    json_decref(row);
    return r;
}

static int
flush_all(struct ctl *ctl, json_t *list)
{
    json_t *workers, *w;
    size_t i;
    int worst, r;

    worst = ctl_ask(ctl, "workers list", NULL, /* privileged= */ false, /* json= */ false,
                    &workers);
    if (worst) return worst;
    json_array_foreach(workers, i, w)
    {
        r = flush(ctl, json_word(w, "name"), list);
        if (r) worst = worst && worst != r ? CTL_FAILED : r;
    }
    json_decref(workers);
    return worst;
}

static void
print(const json_t *list)
{
    static const char *const heads[] = { "WORKER", "BLOCKS", "BYTES", "HOST BLOCKS", "HOST BYTES" };
    struct table *t = table_new(heads, ARRAY_LEN(heads));
    json_t *o;
    size_t i;

    json_array_foreach(list, i, o)
    {
        char bytes[32];

        table_cell(t, false, "%s", json_word(o, "worker"));
        table_cell(t, true, "%lld", json_number(o, "blocks"));
        table_cell(t, true, "%s", text_bytes(bytes, sizeof bytes, (double)json_number(o, "bytes")));
        table_cell(t, true, "%lld", json_number(o, "host_blocks"));
        table_cell(t, true, "%s",
                   text_bytes(bytes, sizeof bytes, (double)json_number(o, "host_bytes")));
    }
    table_print(t, stdout);
}

int
cmd_kv_flush(struct ctl *ctl, int argc, char **argv)
{
    const struct command *c = commands;
    struct flush_opts o;
    json_t *list;
    char *text;
    int n, r;

    while (strcmp(c->words, "kv flush")) c++;
    n = command_args(c, &o, argc, argv);
    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n > 1) return command_usage(c);
    list = json_array();
    r = n ? flush(ctl, argv[0], list) : flush_all(ctl, list);
    if (o.json && (r == 0 || json_array_size(list))) {
        text = json_dumps(list, JSON_COMPACT);
        puts(text);
        free(text);
    } else if (json_array_size(list)) {
        print(list);
    }
    json_decref(list);
    return r;
}
