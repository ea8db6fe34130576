/* tune.c - laganctl tune: starts the measurement in a worker and prints its results. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const nsec QUIET = 2 * NSEC_S, LOOK = 200 * NSEC_MS;

static json_t *
args_for(const char *worker, long long from)
{
    json_t *args = json_object();

    if (worker) json_object_set_new(args, "worker", json_stringn(worker, strlen(worker)));
    if (from >= 0) json_object_set_new(args, "from", json_integer(from));
    return args;
}

/* Prints the progress of the measurement; done == total: it has ended. */
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

/* Appends the results (rows) of all measured matmuls until the measurement ends. Returns 0, or an
 * exit code after printing the error. */
static int
wait_for_all(struct ctl *ctl, const char *worker, json_t *rows, json_t **last)
{
    const struct timespec interval = { .tv_nsec = LOOK };
    nsec since = clock_now();

    for (;;) {
        json_t *s, *list;
        size_t n;
        int r = ctl_ask(ctl, "tune status", args_for(worker, (long long)json_array_size(rows)),
                        /* json= */ false, &s);

        if (r) return r;
        list = json_object_get(s, "rows");
        n = json_array_size(list);
        if (!json_is_array(list)) {
            json_decref(s);
            return ctl_fail(CTL_FAILED, "lagand's reply to `tune status` lacks the array `rows`");
        }
        json_array_extend(rows, list);
        show_progress(json_number(s, "done"), json_number(s, "total"), since);
        if (n == 0 && !json_is_true(json_object_get(s, "running"))) {
            *last = s;
            return 0;
        }
        json_decref(s);
        if (n == 0) nanosleep(&interval, NULL);
        if (ctl_signal)
            return ctl_fail(128 + ctl_signal, "the worker continues to measure matmuls; `laganctl "
                                              "tune` shows its progress");
    }
}

static bool
is_faster(const json_t *row)
{
    double first = json_real_number(row, "first_us");

    return json_real_number(row, "best_us") < first || first <= 0;
}

static void
cell_matmul(struct table *t, const json_t *row, const char *key)
{
    table_cell(t, false, "[%lld, %lld]", json_number(row, "n"), json_number(row, key));
}

static void
cell_used(struct table *t, const json_t *row, const char *key)
{
    (void)key;
    table_cell(t, false, "%s", is_faster(row) ? "measured" : "default");
}

static void
cell_us(struct table *t, const json_t *row, const char *key)
{
    double us = json_real_number(row, key);

    if (us > 0)
        table_cell(t, true, "%.1f", us);
    else
        table_cell(t, true, "-");
}

static void
print_rows(const json_t *rows)
{
    static const struct column columns[] = {
        { "MATMUL", "k", cell_matmul },     { "ROWS", "rows", cell_number },
        { "USED", NULL, cell_used },        { "BEFORE us", "first_us", cell_us },
        { "AFTER us", "best_us", cell_us }, { 0 },
    };
    size_t i, n_faster = 0;
    json_t *row;

    if (json_array_size(rows) == 0) {
        puts("no new matmuls: the tuning file has all of them");
        return;
    }
    json_array_foreach(rows, i, row) n_faster += is_faster(row);
    print_table(columns, rows);
    printf("%zu of %zu are faster than the algorithms that cuBLASLt proposes\n", n_faster,
           json_array_size(rows));
}

static int
finish(bool json, const json_t *last, json_t *rows)
{
    const char *why = json_string_value(json_object_get(last, "why"));
    long long done = json_number(last, "done"), total = json_number(last, "total");

    if (json) {
        json_t *all = json_pack("{s:I,s:I,s:s,s:O}", "done", (json_int_t)done, "total",
                                (json_int_t)total, "why", why ? why : "", "rows", rows);

        print_json(all);
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
cmd_tune(struct ctl *ctl)
{
    const char *worker = ctl->argv[0];
    json_t *started, *rows, *last = NULL;
    int r = ctl_ask(ctl, "tune", args_for(worker, -1), /* json= */ false, &started);

    if (r) return r;
    json_decref(started);
    rows = json_array();
    r = wait_for_all(ctl, worker, rows, &last);
    if (r == 0) r = finish(ctl->json, last, rows);
    json_decref(last);
    json_decref(rows);
    return r;
}
