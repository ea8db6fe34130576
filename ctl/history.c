/* history.c - laganctl events, panic and metrics. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <time.h>

#define ASK_EVERY (300 * NSEC_MS)

struct events_opts {
    bool follow;
    uint32_t last;
};

/* clang-format off */
const struct opt events_opts[] = {
    { "follow", OPT_BOOL, OPT_AT(events_opts, follow), .sentence =
      "do not exit after the past events: print new events as they occur; -f is short for "
      "--follow" },
    { "last", OPT_U32, OPT_AT(events_opts, last), "50", .min = 1, .max = 1024, .arg = "N",
      .sentence = "number of past events that are printed first" },
    { 0 }
};
/* clang-format on */

static const char *
clock_text(const json_t *o, char *buf, size_t n)
{
    long long ms = json_integer_value(json_object_get(o, "at_ms"));
    time_t s = (time_t)(ms / 1000);
    struct tm tm;
    size_t used = strftime(buf, n, "%F %T", localtime_r(&s, &tm));

    snprintf(buf + used, n - used, ".%03d", (int)(ms % 1000));
    return buf;
}

static void
print_event(const json_t *e, int width, bool json)
{
    char at[40];

    if (json)
        print_json(e);
    else
        printf("%s  %-8s  %-*s  %s\n", clock_text(e, at, sizeof at), json_word(e, "kind"), width,
               json_word(e, "worker"), json_word(e, "text"));
}

/* Appends the events from number *next on to all, and advances *next behind them. */
static int
take_events(struct ctl *ctl, json_int_t *next, json_t *all)
{
    size_t n;
    int r;

    do {
        json_t *result, *list;

        r = ctl_ask(ctl, "events", json_pack("{s:I}", "from", *next), /* json= */ false, &result);
        if (r) return r;
        list = json_object_get(result, "events");
        n = json_array_size(list);
        *next = json_integer_value(json_object_get(result, "next"));
        json_array_extend(all, list);
        json_decref(result);
    } while (n);
    return 0;
}

/* Waits until lagand runs again. Afterwards its event numbers continue or start again at 1. */
static void
await_lagand(struct ctl *ctl)
{
    while (!ctl_signal && !ctl_listens(ctl)) nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
}

int
cmd_events(struct ctl *ctl)
{
    const struct events_opts *o = ctl->opts;
    json_int_t next = 1;
    uint32_t last = o->last;
    int r = 0, width = 3;

    do {
        json_t *all = json_array(), *e;
        size_t i;

        r = take_events(ctl, &next, all);
        json_array_foreach(all, i, e) width = MAX(width, (int)strlen(json_word(e, "worker")));
        json_array_foreach(all, i, e)
        {
            if (i + last >= json_array_size(all)) print_event(e, width, ctl->json);
        }
        json_decref(all);
        fflush(stdout);
        if (r == CTL_UNREACHABLE && o->follow && next > 1) {
            await_lagand(ctl);
            r = 0;
        }
        last = UINT32_MAX / 2; /* all events of the first replies */
        if (!r && o->follow) nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
    } while (!r && o->follow && !ctl_signal);
    return ctl_signal ? 128 + ctl_signal : r;
}

/* ---- failed workers */

static void
print_panic(const json_t *x)
{
    json_t *line;
    char at[40];
    size_t i;

    printf("%s  %s  pid %lld  %s: %s, with %lld requests\n", clock_text(x, at, sizeof at),
           json_word(x, "worker"), json_number(x, "pid"), json_word(x, "cause"),
           json_word(x, "how"), json_number(x, "requests"));
    if (*json_string_of(x, "words")) printf("  panic message: %s\n", json_word(x, "words"));
    if (*json_string_of(x, "frames")) printf("  frames: %s\n", json_word(x, "frames"));
    json_array_foreach(json_object_get(x, "log"), i, line)
    {
        printf("  | %s\n", json_string_value(line));
    }
}

int
cmd_panic(struct ctl *ctl)
{
    json_t *list, *x;
    size_t i;
    int r = ctl_ask(ctl, "panic", NULL, ctl->json, &list);

    if (list && !json_array_size(list)) puts("no worker has failed");
    json_array_foreach(list, i, x)
    {
        if (i) puts("");
        print_panic(x);
    }
    json_decref(list);
    return r;
}

/* ---- metrics */

int
cmd_metrics(struct ctl *ctl)
{
    json_t *result;
    int r = ctl_ask(ctl, "metrics", NULL, ctl->json, &result);

    if (result) fputs(json_word(result, "text"), stdout);
    json_decref(result);
    return r;
}
