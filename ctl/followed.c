/* followed.c - laganctl steps, kv events: prints numbered rows of each worker, then new ones. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <time.h>

#define ASK_EVERY (300 * NSEC_MS)

struct follow_opts {
    bool follow;
    uint32_t last;
};

/* clang-format off */
const struct opt follow_opts[] = {
    { "follow", OPT_BOOL, OPT_AT(follow_opts, follow), .sentence =
      "do not exit after the past rows: print new rows as they occur; -f is short for --follow" },
    { "last", OPT_U32, OPT_AT(follow_opts, last), "20", .min = 1, .max = 4096, .arg = "N",
      .sentence = "number of past rows of each worker that are printed first" },
    { 0 }
};
/* clang-format on */

struct followed { /* one worker */
    char name[32];
    bool begun;
    json_int_t next; /* number of the next row to ask for */
    bool in_snapshot;
    json_int_t at; /* kv events: position of the snapshot */
};

/* Asks lagand for the rows of f from f->next on. The caller frees *ret. */
static int
ask_rows(struct ctl *ctl, const struct followed *f, json_t **ret)
{
    json_t *args = json_pack("{s:s, s:I}", "worker", f->name, "from", f->next);

    if (f->in_snapshot) json_object_set_new(args, "at", json_integer(f->at));
    return ctl_ask(ctl, ctl->command->words, args, /* json= */ false, ret);
}

/* Reports rows that lagand has not kept: between two calls there were too many. */
static void
print_lost(struct ctl *ctl, const struct followed *f, long long lost)
{
    json_t *o = ctl->json && lost ? json_pack("{s:s, s:I}", "worker", f->name, "lost", lost) : NULL;

    if (o)
        print_json(o);
    else if (lost)
        printf("%s: %lld rows lost, because lagand has not kept them\n", f->name, lost);
    json_decref(o);
}

/* Prints one row of each list in the reply with print(). */
static void
print_rows(struct ctl *ctl, const struct followed *f, json_t *rows,
           void (*print)(const char *worker, const json_t *row))
{
    json_t *row;
    size_t i;

    json_array_foreach(rows, i, row)
    {
        if (ctl->json) {
            json_object_set_new(row, "worker", json_string(f->name));
            print_json(row);
        } else {
            print(f->name, row);
        }
    }
}

/* Calls one() for each worker, or for the worker that is named; with --follow again and again. */
static int
follow(struct ctl *ctl, int (*one)(struct ctl *ctl, struct followed *f))
{
    const struct follow_opts *o = ctl->opts;
    struct followed all[64] = { 0 };
    json_t *workers, *w;
    size_t i, n = 0;
    int r = ctl_ask(ctl, "workers list", NULL, /* json= */ false, &workers);

    if (r) return r;
    json_array_foreach(workers, i, w)
    {
        const char *name = json_word(w, "name");

        if (n == ARRAY_LEN(all) || (*ctl->argv && strcmp(name, *ctl->argv))) continue;
        snprintf(all[n++].name, sizeof all[0].name, "%s", name);
    }
    json_decref(workers);
    if (!n)
        return ctl_fail(CTL_NOT_FOUND,
                        "there is no worker %s; `laganctl workers list` prints the names",
                        *ctl->argv);
    do {
        for (i = 0; i < n && !r; i++) r = one(ctl, &all[i]);
        fflush(stdout);
        if (!r && o->follow) nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
    } while (!r && o->follow && !ctl_signal);
    return ctl_signal ? 128 + ctl_signal : r;
}

/* ---- steps */

static double
ms(const json_t *row, const char *key)
{
    return (double)json_number(row, key) / 1e6;
}

/* Formats an array of block counts as "12+3". */
static const char *
sum_text(const json_t *row, const char *key, char *buf, size_t n)
{
    json_t *list = json_object_get(row, key), *v;
    size_t i, at = 0;

    *buf = 0;
    json_array_foreach(list, i, v)
    {
        at += (size_t)snprintf(buf + at, n - at, "%s%lld", i ? "+" : "",
                               (long long)json_integer_value(v));
        if (at + 24 > n) break;
    }
    return buf;
}

static void
print_step(const char *worker, const json_t *row)
{
    char used[128], free_[128];
    long long at = json_number(row, "at_ms");
    time_t s = (time_t)(at / 1000);
    struct tm tm;

    localtime_r(&s, &tm);
    printf("%02d:%02d:%02d.%03lld  %-6s %8lld %4lld %7lld %6lld %7lld %5lld %5lld %5lld %6lld "
           "%8.3f %8.3f %8.3f  %s / %s\n",
           tm.tm_hour, tm.tm_min, tm.tm_sec, at % 1000, worker, json_number(row, "step"),
           json_number(row, "lane"), json_number(row, "prefill_tokens"),
           json_number(row, "decode_tokens"), json_number(row, "encoder_tokens"),
           json_number(row, "running"), json_number(row, "waiting"), json_number(row, "preempted"),
           json_number(row, "cached_tokens"), ms(row, "plan_ns"), ms(row, "queue_ns"),
           ms(row, "device_ns"), sum_text(row, "used", used, sizeof used),
           sum_text(row, "free", free_, sizeof free_));
}

static int
take_steps(struct ctl *ctl, struct followed *f)
{
    const struct follow_opts *o = ctl->opts;
    bool more;

    do {
        json_t *reply;
        int r = ask_rows(ctl, f, &reply);

        if (r) return r;
        if (!f->begun) { /* the first reply only tells where the last rows are */
            f->begun = more = true;
            f->next = MAX(json_number(reply, "end") - o->last, 0ll);
        } else {
            json_t *rows = json_object_get(reply, "steps");

            print_lost(ctl, f, json_number(reply, "lost"));
            print_rows(ctl, f, rows, print_step);
            f->next = json_number(reply, "next");
            more = json_array_size(rows) > 0;
        }
        json_decref(reply);
    } while (more && !ctl_signal);
    return 0;
}

int
cmd_steps(struct ctl *ctl)
{
    if (!ctl->json)
        puts("TIME          WORKER     STEP LANE PREFILL DECODE ENCODER   RUN  WAIT   PRE CACHED "
             " PLAN MS QUEUE MS  STEP MS  USED / FREE BLOCKS");
    return follow(ctl, take_steps);
}

/* ---- kv events */

static void
print_kv_event(const char *worker, const json_t *row)
{
    const char *op = json_string_value(json_object_get(row, "op"));

    char number[24] = "";

    if (op) snprintf(number, sizeof number, "%lld", json_number(row, "number"));
    printf("%-6s %10s  %-8s %-8s  %s  after %s  group %lld  %-6s  %lld tokens\n", worker, number,
           op ? op : "block", op ? json_word(row, "why") : "", json_word(row, "name"),
           json_word(row, "parent"), json_number(row, "group"), json_word(row, "tier"),
           json_number(row, "tokens"));
}

/* Begins or continues the snapshot as the reply says; prints its blocks. */
static void
take_blocks(struct ctl *ctl, struct followed *f, const json_t *reply)
{
    json_t *at = json_object_get(reply, "at"), *blocks = json_object_get(reply, "blocks");
    bool caught_up = json_array_size(json_object_get(reply, "events")) == 0;

    print_rows(ctl, f, blocks, print_kv_event);
    if (json_is_integer(at))
        f->at = json_integer_value(at);
    else if (caught_up) /* else the reply had no place for blocks */
        f->in_snapshot = false;
}

/* Prints the events of a worker from f->next on. With --follow, all blocks of the cache are printed
 * first, and again after a loss. */
static int
take_kv_events(struct ctl *ctl, struct followed *f)
{
    const struct follow_opts *o = ctl->opts;
    bool more;

    do {
        json_t *reply;
        long long lost, first, end;
        int r = ask_rows(ctl, f, &reply);

        if (r) return r;
        lost = json_number(reply, "lost");
        first = json_number(reply, "first");
        end = json_number(reply, "end");
        more = json_array_size(json_object_get(reply, "events")) > 0;
        if (!f->begun || lost) {
            print_lost(ctl, f, lost);
            f->in_snapshot = o->follow;
            f->begun = more = true;
            f->at = 0;
            f->next = lost || !o->follow ? first : end;
            if (!o->follow) f->next = MAX(f->next, end - o->last);
        } else {
            print_rows(ctl, f, json_object_get(reply, "events"), print_kv_event);
            f->next = json_number(reply, "next");
            if (f->in_snapshot) take_blocks(ctl, f, reply);
        }
        more |= f->in_snapshot;
        json_decref(reply);
    } while (more && !ctl_signal);
    return 0;
}

int
cmd_kv_events(struct ctl *ctl)
{
    return follow(ctl, take_kv_events);
}
