/* history.c - what lagand remembers: events, panic, metrics. */
#include "ctl/ctl.h"

#include <errno.h>
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

/* Of a lagand's answer; NULL: said already, *r is the exit code. */
static json_t *
ask(struct ctl *ctl, const char *verb, json_t *args, bool privileged, int *r)
{
    char *reply = NULL;
    json_t *answer;

    *r = ctl_call(ctl, verb, args, privileged, &reply);
    if (*r) return NULL;
    answer = json_loads(reply, 0, NULL);
    free(reply);
    if (!answer) *r = ctl_fail(CTL_FAILED, "lagand's answer to %s is not JSON", verb);
    return answer;
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

/* All there is from a number on; *next is what to ask for then. */
static int
take_events(struct ctl *ctl, json_int_t *next, json_t *all)
{
    size_t n;
    int r;

    do {
        json_t *answer = ask(ctl, "events", json_pack("{s:I}", "from", *next), true, &r);
        json_t *list = json_object_get(answer, "events");

        if (!answer) return r;
        n = json_array_size(list);
        *next = json_integer_value(json_object_get(answer, "next"));
        json_array_extend(all, list);
        json_decref(answer);
    } while (n);
    return 0;
}

/* lagand has gone, which was said: until there is another, which goes on with the numbers or begins anew. */
static void
await_lagand(struct ctl *ctl)
{
    while (!ctl_signal && !ctl_answers(ctl)) nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
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
        last = UINT32_MAX / 2; /* of those that come, all */
        if (!r && o.follow) nanosleep(&(struct timespec){ 0, ASK_EVERY }, NULL);
    } while (!r && o.follow && !ctl_signal);
    return ctl_signal ? 128 + ctl_signal : r;
}

/* ---- the dead */

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
        puts("no worker has died");
    }
    json_array_foreach(list, i, x)
    {
        if (o.json) break;
        printf("%s%s  %s  pid %lld  %s: %s, with %lld requests\n", i ? "\n" : "",
               clock_text(x, at, sizeof at), word(x, "worker"),
               (long long)json_integer_value(json_object_get(x, "pid")), word(x, "cause"),
               word(x, "how"), (long long)json_integer_value(json_object_get(x, "requests")));
        if (*word(x, "words")) printf("  last words: %s\n", word(x, "words"));
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
    json_t *answer;

    if (n < 0) return n == -2 ? 0 : CTL_USAGE;
    if (n) return command_usage(command_of("metrics"));
    answer = ask(ctl, "metrics", NULL, false, &r);
    if (!answer) return r;
    if (o.json) {
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        fputs(word(answer, "text"), stdout);
    }
    json_decref(answer);
    return 0;
}
