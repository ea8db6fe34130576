/* tune.c - laganctl tune: starts the measurement in a worker, waits for its end and prints the
 * results. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct tune_opts {
    bool json, help;
};

static const nsec QUIET = 2 * NSEC_S, LOOK = 200 * NSEC_MS;

static json_t *
args_for(const char *worker, long long from)
{
    json_t *args = json_object();

    if (worker) json_object_set_new(args, "worker", json_stringn(worker, strlen(worker)));
    if (from >= 0) json_object_set_new(args, "from", json_integer(from));
    return args;
}

static double
real(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* done == total: finished */
static void
show_progress(long long done, long long total, nsec since)
{
    static bool drawn;
    static long long tenth;

    if (done == total || total == 0) {
        if (drawn && isatty(2)) fprintf(stderr, "\r\033[K");
    } else if (clock_now() - since < QUIET) {
        return;
    } else if (isatty(2)) {
        fprintf(stderr, "\rmeasuring matmuls: %lld of %lld, while there is no request \033[K", done,
                total);
        drawn = true;
    } else if (!drawn || 10 * done / total > tenth) {
        tenth = 10 * done / total;
        fprintf(stderr, "measuring matmuls: %lld of %lld\n", done, total);
        drawn = true;
    }
}

/* Collects all rows until the measurement ends. Returns 0, or an exit code after printing the
 * error. */
static int
wait_for_all(struct ctl *ctl, const char *worker, json_t *rows, json_t **last)
{
    const struct timespec interval = { .tv_nsec = LOOK };
    nsec since = clock_now();

    for (;;) {
        char *reply = NULL;
        json_t *s, *list;
        int r = ctl_call(ctl, "tune status", args_for(worker, (long long)json_array_size(rows)),
                         /* privileged= */ true, &reply);

        if (r) return r;
        s = json_loads(reply, 0, NULL);
        free(reply);
        list = json_object_get(s, "rows");
        if (!json_is_array(list)) {
            json_decref(s);
            return ctl_fail(CTL_FAILED, "the reply of lagand to tune status has no rows");
        }
        json_array_extend(rows, list);
        show_progress((long long)real(s, "done"), (long long)real(s, "total"), since);
        if (!json_is_true(json_object_get(s, "running")) && json_array_size(list) == 0) {
            *last = s;
            return 0;
        }
        r = json_array_size(list) == 0;
        json_decref(s);
        if (r) nanosleep(&interval, NULL);
        if (ctl_signal)
            return ctl_fail(128 + ctl_signal, "the worker continues to measure; `laganctl tune` "
                                              "shows its progress");
    }
}

static void
print_rows(const json_t *rows)
{
    static const char *const heads[] = { "MATMUL", "ROWS", "USED", "BEFORE us", "AFTER us" };
    struct table *t;
    size_t i, n_faster = 0;
    json_t *row;

    if (json_array_size(rows) == 0) {
        puts("no new matmuls: the tuning file has all of them");
        return;
    }
    t = table_new(heads, ARRAY_LEN(heads));
    json_array_foreach(rows, i, row)
    {
        double first = real(row, "first_us"), best = real(row, "best_us");
        bool faster = best < first || first <= 0;

        n_faster += faster;
        table_cell(t, false, "[%.0f, %.0f]", real(row, "n"), real(row, "k"));
        table_cell(t, true, "%.0f", real(row, "rows"));
        table_cell(t, false, "%s", faster ? "measured" : "default");
        if (first > 0)
            table_cell(t, true, "%.1f", first);
        else
            table_cell(t, true, "-");
        table_cell(t, true, "%.1f", best);
    }
    table_print(t, stdout);
    printf("%zu of %zu are faster than the algorithms that cuBLASLt proposes\n", n_faster,
           json_array_size(rows));
}

static int
finish(const struct tune_opts *o, const json_t *last, json_t *rows)
{
    const char *why = json_string_value(json_object_get(last, "why"));
    long long done = (long long)real(last, "done"), total = (long long)real(last, "total");

    if (o->json) {
        char *text;
        json_t *all = json_pack("{s:I,s:I,s:s,s:O}", "done", (json_int_t)done, "total",
                                (json_int_t)total, "why", why ? why : "", "rows", rows);

        text = json_dumps(all, JSON_COMPACT);
        if (text) puts(text);
        free(text);
        json_decref(all);
    } else {
        print_rows(rows);
    }
    if (why && *why)
        return ctl_fail(CTL_FAILED, "the measurement ended after %lld of %lld matmuls: %s", done,
                        total, why);
    return 0;
}

int
cmd_tune(struct ctl *ctl, int argc, char **argv)
{
    const struct command *c = commands;
    struct tune_opts o;
    const char *worker;
    char *reply = NULL;
    json_t *rows, *last = NULL;
    int n, r;

    while (strcmp(c->words, "tune")) c++;
    n = command_args(c, &o, argc, argv);
    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n > 1) return command_usage(c);
    worker = n ? argv[0] : NULL;
    r = ctl_call(ctl, "tune", args_for(worker, -1), /* privileged= */ true, &reply);
    free(reply);
    if (r) return r;
    rows = json_array();
    r = wait_for_all(ctl, worker, rows, &last);
    if (r == 0) r = finish(&o, last, rows);
    json_decref(last);
    json_decref(rows);
    return r;
}
