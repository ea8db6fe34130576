/* top.c - laganctl top: state and token rates of each worker, repeatedly. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct top_opts {
    bool json, help;
    uint32_t every, count;
};

/* clang-format off */
const struct opt top_opts[] = {
    { "every", OPT_U32, OPT_AT(top_opts, every), "1", .min = 1, .max = 3600, .arg = "SECONDS",
      .sentence = "interval between two outputs" },
    { "count", OPT_U32, OPT_AT(top_opts, count), "0", .arg = "N",
      .sentence = "number of outputs; 0: until Ctrl-C" },
    { 0 }
};
/* clang-format on */

/* Counters of a worker and the names of their rates. */
static const char *const rates[][2] = { { "prompt_tokens", "prompt_tokens_s" },
                                        { "generation_tokens", "tokens_s" },
                                        { "steps", "steps_s" },
                                        { "finished", "finished_s" } };

static json_t *
named(const json_t *workers, const char *name)
{
    json_t *w;
    size_t i;

    json_array_foreach(workers, i, w) if (!strcmp(json_word(w, "name"), name)) return w;
    return NULL;
}

/* before: the same worker `seconds` earlier; NULL or another epoch: rates are unknown. */
static json_t *
row_of(const json_t *w, const json_t *before, double seconds)
{
    const json_t *stats = json_object_get(w, "stats"), *then = json_object_get(before, "stats");
    const json_t *pool = json_array_get(json_object_get(w, "kv"), 0);
    bool same = before && json_number(w, "epoch") == json_number(before, "epoch");
    json_t *row = json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I}", "name", json_word(w, "name"), "state",
                            json_word(w, "state"), "running", (json_int_t)json_number(w, "running"),
                            "waiting", (json_int_t)json_number(w, "waiting"), "blocks",
                            (json_int_t)json_number(pool, "blocks"), "used",
                            (json_int_t)json_number(pool, "used"), "cached",
                            (json_int_t)json_number(pool, "cached"));

    for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
        double n = (double)(json_number(stats, rates[i][0]) - json_number(then, rates[i][0]));

        json_object_set_new(row, rates[i][1], same ? json_real(n / seconds) : json_null());
    }
    json_object_set_new(row, "step_tokens", json_integer(json_number(stats, "step_tokens")));
    json_object_set_new(row, "step_ms", json_real((double)json_number(stats, "step_ns") / 1e6));
    return row;
}

static void
rate_cell(struct table *t, const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);

    if (json_is_null(v))
        table_cell(t, true, "-");
    else
        table_cell(t, true, "%.0f", json_number_value(v));
}

static void
print(const json_t *status, const json_t *rows)
{
    static const char *const heads[] = { "WORKER",   "STATE",    "RUNNING", "WAITING",
                                         "PROMPT/S", "TOKENS/S", "STEPS/S", "STEP MS",
                                         "TOK/STEP", "KV USED",  "CACHED" };
    struct table *t = table_new(heads, ARRAY_LEN(heads));
    json_t *row;
    size_t i;

    printf("lagand %s  %s  requests %lld of %lld, %lld queued\n\n", json_word(status, "version"),
           json_word(status, "state"), json_number(status, "requests"),
           json_number(status, "max_requests"), json_number(status, "queued"));
    json_array_foreach(rows, i, row)
    {
        long long blocks = json_number(row, "blocks");

        table_cell(t, false, "%s", json_word(row, "name"));
        table_cell(t, false, "%s", json_word(row, "state"));
        table_cell(t, true, "%lld", json_number(row, "running"));
        table_cell(t, true, "%lld", json_number(row, "waiting"));
        for (size_t k = 0; k < 3; k++) rate_cell(t, row, rates[k][1]);
        table_cell(t, true, "%.1f", json_number_value(json_object_get(row, "step_ms")));
        table_cell(t, true, "%lld", json_number(row, "step_tokens"));
        table_cell(t, true, "%lld%%", blocks ? 100 * json_number(row, "used") / blocks : 0);
        table_cell(t, true, "%lld%%", blocks ? 100 * json_number(row, "cached") / blocks : 0);
    }
    table_print(t, stdout);
}

/* Prints one sample. *before: the previous sample, replaced by this one. Returns 0, or an exit code
 * after printing the error. */
static int
look(struct ctl *ctl, const struct top_opts *o, json_t **before, nsec *since)
{
    json_t *status, *workers, *w, *rows = json_array();
    nsec now;
    size_t i;
    int r = ctl_ask(ctl, "status", NULL, /* privileged= */ false, /* json= */ false, &status);

    if (r) return json_decref(rows), r;
    now = clock_now();
    workers = json_object_get(status, "workers");
    json_array_foreach(workers, i, w)
    {
        json_array_append_new(
            rows, row_of(w, named(*before, json_word(w, "name")), (double)(now - *since) / NSEC_S));
    }
    if (o->json) {
        json_dumpf(rows, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        fputs(isatty(1) ? "\033[H\033[J" : *before ? "\n" : "", stdout);
        print(status, rows);
    }
    fflush(stdout);
    json_decref(*before);
    *before = json_incref(workers);
    *since = now;
    json_decref(rows);
    json_decref(status);
    return 0;
}

int
cmd_top(struct ctl *ctl, int argc, char **argv)
{
    const struct command *c = commands;
    json_t *before = NULL;
    struct top_opts o;
    nsec since = 0;
    int n, r = 0;

    while (strcmp(c->words, "top")) c++;
    n = command_args(c, &o, argc, argv);
    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n) return command_usage(c);
    for (uint32_t i = 0; r == 0 && !ctl_signal && (o.count == 0 || i < o.count); i++) {
        const struct timespec interval = { .tv_sec = o.every };

        if (i == 0 || nanosleep(&interval, NULL) == 0) r = look(ctl, &o, &before, &since);
        /* lagand may run again at the next sample */
        if (i > 0 && r == CTL_UNREACHABLE) r = 0;
    }
    json_decref(before);
    return ctl_signal ? 0 : r;
}
