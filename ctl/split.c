/* split.c - laganctl split: partition of a device between the prefill lane and the decode lane. */
#include "ctl/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct split_opts {
    bool json, help;
};

/* Reads the units of one lane into args. Returns 0, or an exit code after printing the error. */
static int
units(const char *word, const char *key, json_t *args)
{
    char *end;
    long long n = strtoll(word, &end, 10);

    if (!*word || *end || n < 1 || n > 4096)
        return ctl_fail(CTL_USAGE, "%s is '%s', it must be a number from 1 to 4096", key, word);
    json_object_set_new(args, key, json_integer(n));
    return 0;
}

/* Calls a verb with its operands: for set two unit counts, then a worker. *ret: the reply, or NULL
 * if the exit code is final. */
static int
ask(struct ctl *ctl, const char *verb, int argc, char **argv, int n_units, json_t **ret)
{
    const struct command *c = commands;
    json_t *args = json_object();
    struct split_opts o;
    int n, r = 0;

    *ret = NULL;
    while (strcmp(c->words, verb)) c++;
    n = command_args(c, &o, argc, argv);
    if (n < 0) return json_decref(args), n == -2 ? 0 : CTL_USAGE;
    if (n < n_units || n > n_units + 1) r = command_usage(c);
    if (r == 0 && n_units) r = units(argv[0], "prefill_units", args);
    if (r == 0 && n_units) r = units(argv[1], "decode_units", args);
    if (r) return json_decref(args), r;
    if (n > n_units)
        json_object_set_new(args, "worker", json_stringn(argv[n_units], strlen(argv[n_units])));
    return ctl_ask(ctl, verb, args, /* privileged= */ true, o.json, ret);
}

static void
print_steps(const json_t *o, const char *what, const char *steps, const char *ns)
{
    long long n = json_number(o, steps);

    if (n)
        printf("%-8s %10lld steps of %.3f ms\n", what, n,
               (double)json_number(o, ns) / 1e6 / (double)n);
}

int
cmd_split_show(struct ctl *ctl, int argc, char **argv)
{
    json_t *o;
    int r = ask(ctl, "split show", argc, argv, 0, &o);

    if (!o) return r;
    printf("%lld unit%s, ", json_number(o, "units"), json_number(o, "units") == 1 ? "" : "s");
    if (json_number(o, "granularity"))
        printf("at least %lld per lane, in multiples of %lld;", json_number(o, "min_units"),
               json_number(o, "granularity"));
    else
        printf("not divisible;");
    printf(" mode %s", json_word(o, "mode"));
    if (!strcmp(json_word(o, "mode"), "auto"))
        printf(", inter-token latency target %.1f ms", (double)json_number(o, "target_ns") / 1e6);
    if (json_number(o, "prefill_units"))
        printf("\n%lld for prefill, %lld for decode", json_number(o, "prefill_units"),
               json_number(o, "decode_units"));
    else
        printf("\none lane for prefill and decode");
    printf("; %lld changes so far\n", json_number(o, "changes"));
    print_steps(o, "prefill", "prefill_steps", "prefill_ns");
    print_steps(o, "decode", "decode_steps", "decode_ns");
    print_steps(o, "mixed", "mixed_steps", "mixed_ns");
    json_decref(o);
    return r;
}

static int
wish(struct ctl *ctl, const char *verb, int argc, char **argv, int n_units)
{
    json_t *o;
    int r = ask(ctl, verb, argc, argv, n_units, &o);

    if (o) puts("takes effect with the next step");
    json_decref(o);
    return r;
}

int
cmd_split_auto(struct ctl *ctl, int argc, char **argv)
{
    return wish(ctl, "split auto", argc, argv, 0);
}

int
cmd_split_off(struct ctl *ctl, int argc, char **argv)
{
    return wish(ctl, "split off", argc, argv, 0);
}

int
cmd_split_set(struct ctl *ctl, int argc, char **argv)
{
    return wish(ctl, "split set", argc, argv, 2);
}
