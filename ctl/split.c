/* split.c - laganctl split: shows and sets how a device is divided between prefill and decode. */
#include "ctl/ctl.h"

#include <stdio.h>

/* Adds a number of units (SMs or threads) to args. Returns 0, or an exit code with a message. */
static int
units(const char *word, const char *key, json_t *args)
{
    char *end;
    long long n = strtoll(word, &end, 10);

    if (!*word || *end || n < 1 || n > 4096)
        return ctl_fail(CTL_USAGE,
                        "%s is '%s'; it must be a number of SMs or threads from 1 to 4096", key,
                        word);
    json_object_set_new(args, key, json_integer(n));
    return 0;
}

/* Calls the verb of the command. worker: NULL if not given. Sets *ret to the reply; to NULL if the
 * call failed or --json has printed the reply. */
static int
ask(struct ctl *ctl, const char *worker, json_t *args, json_t **ret)
{
    if (worker) json_object_set_new(args, "worker", json_stringn(worker, strlen(worker)));
    return ctl_ask(ctl, ctl->command->words, args, ctl->json, ret);
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
cmd_split_show(struct ctl *ctl)
{
    json_t *o;
    int r = ask(ctl, ctl->argv[0], json_object(), &o);

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

int
cmd_split_select(struct ctl *ctl)
{
    json_t *o, *args = json_object();
    char **worker = ctl->argv;
    int r = 0;

    if (!strcmp(ctl->command->words, "split set")) {
        r = units(*worker++, "prefill_units", args);
        if (r == 0) r = units(*worker++, "decode_units", args);
        if (r) return json_decref(args), r;
    }
    r = ask(ctl, *worker, args, &o);
    if (o) puts("takes effect with the next step");
    json_decref(o);
    return r;
}
