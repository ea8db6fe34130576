/* top.c - laganctl top: prints state and token rates of each worker at regular intervals. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

struct top_opts {
    uint32_t every, count;
};

/* clang-format off */
const struct opt top_opts[] = {
    { "every", OPT_U32, OPT_AT(top_opts, every), "1", .min = 1, .max = 3600, .arg = "SECONDS",
      .sentence = "time between two outputs, in seconds" },
    { "count", OPT_U32, OPT_AT(top_opts, count), "0", .arg = "N",
      .sentence = "number of outputs, after which the command ends; 0: no limit, until Ctrl-C" },
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

/* Returns the memory pool with the largest used share. NULL: there is none. */
static const json_t *
fullest(const json_t *pools)
{
    const json_t *most = NULL, *p;
    size_t i;

    json_array_foreach(pools, i,
                       p) if (!most || json_number(p, "used") * json_number(most, "blocks") >
                                           json_number(most, "used") * json_number(p, "blocks"))
        most = p;
    return most;
}

/* Adds the rates of a worker to its object. before: the object of the worker `seconds` earlier; if
 * it is NULL or has another epoch, the rates are unknown. */
static json_t *
row_of(const json_t *w, const json_t *before, double seconds)
{
    const json_t *stats = json_object_get(w, "stats"), *then = json_object_get(before, "stats");
    const json_t *pool = fullest(json_object_get(w, "kv"));
    bool same = before && json_number(w, "epoch") == json_number(before, "epoch");
    json_t *row = json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I}", "name", json_word(w, "name"), "state",
                            json_word(w, "state"), "running", (json_int_t)json_number(w, "running"),
                            "waiting", (json_int_t)json_number(w, "waiting"), "blocks",
                            (json_int_t)json_number(pool, "blocks"), "used",
                            (json_int_t)json_number(pool, "used"), "cached",
                            (json_int_t)json_number(pool, "cached"));

    for (size_t i = 0; i < ARRAY_LEN(rates); i++) {
        double n = (double)(json_number(stats, rates[i][0]) - json_number(then, rates[i][0]));

        json_object_set_new(row, rates[i][1], same ? json_measured(n / seconds) : json_null());
    }
    json_object_set_new(row, "step_tokens", json_integer(json_number(stats, "step_tokens")));
    json_object_set_new(row, "step_ms", json_measured((double)json_number(stats, "step_ns") / 1e6));
    return row;
}

static void
cell_rate(struct table *t, const json_t *row, const char *key)
{
    if (json_is_null(json_object_get(row, key)))
        table_cell(t, true, "-");
    else
        table_cell(t, true, "%.0f", json_real_number(row, key));
}

static void
cell_ms(struct table *t, const json_t *row, const char *key)
{
    table_cell(t, true, "%.1f", json_real_number(row, key));
}

/* Adds a cell with the used share of the KV blocks. */
static void
cell_share(struct table *t, const json_t *row, const char *key)
{
    long long blocks = json_number(row, "blocks");

    table_cell(t, true, "%lld%%", blocks ? 100 * json_number(row, key) / blocks : 0);
}

static void
print(const json_t *status, const json_t *rows)
{
    static const struct column columns[] = {
        { "WORKER", "name", cell_word },
        { "STATE", "state", cell_word },
        { "RUNNING", "running", cell_number },
        { "WAITING", "waiting", cell_number },
        { "PROMPT/S", "prompt_tokens_s", cell_rate },
        { "TOKENS/S", "tokens_s", cell_rate },
        { "STEPS/S", "steps_s", cell_rate },
        { "STEP MS", "step_ms", cell_ms },
        { "TOK/STEP", "step_tokens", cell_number },
        { "KV USED", "used", cell_share },
        { "CACHED", "cached", cell_share },
        { 0 },
    };

    printf("lagand %s  %s  requests %lld of %lld, %lld queued\n\n", json_word(status, "version"),
           json_word(status, "state"), json_number(status, "requests"),
           json_number(status, "max_requests"), json_number(status, "queued"));
    print_table(columns, rows);
}

/* Prints one sample. *before: the workers of the previous sample, replaced by those of this one.
 * Returns 0, or an exit code after printing the error. */
static int
look(struct ctl *ctl, json_t **before, nsec *since)
{
    json_t *status, *workers, *w, *rows;
    nsec now;
    size_t i;
    int r = ctl_ask(ctl, "status", NULL, /* json= */ false, &status);

    if (r) return r;
    rows = json_array();
    now = clock_now();
    workers = json_object_get(status, "workers");
    json_array_foreach(workers, i, w)
    {
        json_array_append_new(
            rows, row_of(w, named(*before, json_word(w, "name")), (double)(now - *since) / NSEC_S));
    }
    if (ctl->json) {
        print_json(rows);
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
cmd_top(struct ctl *ctl)
{
    const struct top_opts *o = ctl->opts;
    const struct timespec interval = { .tv_sec = o->every };
    json_t *before = NULL;
    nsec since = 0;
    int r = 0;

    for (uint32_t i = 0; r == 0 && !ctl_signal && (o->count == 0 || i < o->count); i++) {
        if (i == 0 || nanosleep(&interval, NULL) == 0) r = look(ctl, &before, &since);
        /* a failure to reach lagand is not final: it may run again at the next sample */
        if (i > 0 && r == CTL_UNREACHABLE) r = 0;
    }
    json_decref(before);
    return ctl_signal ? 0 : r;
}
