/* history.c - laganctl events, panic and metrics. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASK_EVERY (300 * NSEC_MS)

struct events_opts {
    bool json, help, follow;
    uint32_t last;
};

/* clang-format off */
const struct opt events_opts[] = {
    { "follow", OPT_BOOL, OPT_AT(events_opts, follow), .sentence =
      "continue with new events as they occur; also -f" },
    { "last", OPT_U32, OPT_AT(events_opts, last), "50", .min = 1, .max = 1024, .arg = "N",
      .sentence = "number of past events to print first" },
    { 0 }
};
/* clang-format on */

static const struct command *
command_of(const char *words)
{
    const struct command *c = commands;

    while (strcmp(c->words, words)) c++;
    return c;
}

/* Calls a verb and parses the reply. NULL: the error was printed, *r is the exit code. */
static json_t *
ask(struct ctl *ctl, const char *verb, json_t *args, bool privileged, int *r)
{
    char *reply = NULL;
    json_t *result;

    *r = ctl_call(ctl, verb, args, privileged, &reply);
    if (*r) return NULL;
    result = json_loads(reply, 0, NULL);
    free(reply);
    if (!result) *r = ctl_fail(CTL_FAILED, "the reply of lagand to %s is not JSON", verb);
    return result;
}

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

static const char *
word(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static void
print_event(const json_t *e, int width, bool json)
{
    char at[40];

    if (json) {
        json_dumpf(e, stdout, JSON_COMPACT);
        putchar('\n');
        return;
    }
    printf("%s  %-8s  %-*s  %s\n", clock_text(e, at, sizeof at), word(e, "kind"), width,
           word(e, "worker"), word(e, "text"));
}

/* Appends all events from *next on to all; *next becomes the number of the following event. */
static int
take_events(struct ctl *ctl, json_int_t *next, json_t *all)
{
    size_t n;
    int r;

    do {
        json_t *result = ask(ctl, "events", json_pack("{s:I}", "from", *next), true, &r);
        json_t *list = json_object_get(result, "events");

        if (!result) return r;
        n = json_array_size(list);
        *next = json_integer_value(json_object_get(result, "next"));
        json_array_extend(all, list);
        json_decref(result);
    } while (n);
    return 0;
}

/* Waits until a lagand runs again. It continues the event numbers or starts again at 1. */
static void
await_lagand(struct ctl *ctl)
{
    while (!ctl_signal && !ctl_listens(ctl)) nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
}

int
cmd_events(struct ctl *ctl, int argc, char **argv)
{
    struct events_opts o;
    json_int_t next = 1;
    uint32_t last;
    int n, r = 0, width = 3;

    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "-f")) argv[i] = (char *)(uintptr_t) "--follow";
    n = command_args(command_of("events"), &o, argc, argv);
    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n) return command_usage(command_of("events"));
    last = o.last;
    do {
        json_t *all = json_array(), *e;
        size_t i;

        r = take_events(ctl, &next, all);
        json_array_foreach(all, i, e) width = MAX(width, (int)strlen(word(e, "worker")));
        json_array_foreach(all, i, e)
        {
            if (i + last >= json_array_size(all)) print_event(e, width, o.json);
        }
        json_decref(all);
        fflush(stdout);
        if (r == CTL_UNREACHABLE && o.follow && next > 1) {
            await_lagand(ctl);
            r = 0;
        }
        last = UINT32_MAX / 2; /* all events of the first replies */
        if (!r && o.follow) nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
    } while (!r && o.follow && !ctl_signal);
    return ctl_signal ? 128 + ctl_signal : r;
}

/* ---- failed workers */

int
cmd_panic(struct ctl *ctl, int argc, char **argv)
{
    struct {
        bool json, help;
    } o;
    json_t *list, *x, *line;
    size_t i, k;
    char at[40];
    int n = command_args(command_of("panic"), &o, argc, argv), r;

    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n) return command_usage(command_of("panic"));
    list = ask(ctl, "panic", NULL, true, &r);
    if (!list) return r;
    if (o.json) {
        json_dumpf(list, stdout, JSON_COMPACT);
        putchar('\n');
    } else if (!json_array_size(list)) {
        puts("no worker has failed");
    }
    json_array_foreach(list, i, x)
    {
        if (o.json) break;
        printf("%s%s  %s  pid %lld  %s: %s, with %lld requests\n", i ? "\n" : "",
               clock_text(x, at, sizeof at), word(x, "worker"),
               (long long)json_integer_value(json_object_get(x, "pid")), word(x, "cause"),
               word(x, "how"), (long long)json_integer_value(json_object_get(x, "requests")));
        if (*word(x, "words")) printf("  panic message: %s\n", word(x, "words"));
        json_array_foreach(json_object_get(x, "log"), k, line)
        {
            printf("  | %s\n", json_string_value(line));
        }
    }
    json_decref(list);
    return 0;
}

/* ---- metrics */

int
cmd_metrics(struct ctl *ctl, int argc, char **argv)
{
    struct {
        bool json, help;
    } o;
    int n = command_args(command_of("metrics"), &o, argc, argv), r;
    json_t *result;

    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n) return command_usage(command_of("metrics"));
    result = ask(ctl, "metrics", NULL, false, &r);
    if (!result) return r;
    if (o.json) {
        json_dumpf(result, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        fputs(word(result, "text"), stdout);
    }
    json_decref(result);
    return 0;
}
