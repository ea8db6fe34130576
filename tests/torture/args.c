/* args.c - see args.h. */
#include "tests/torture/args.h"

#include "base/clock.h"
#include "tests/test.h"

#include <stdio.h>

static uint32_t n_seconds = UINT32_MAX;
static nsec began;
const char *torture_device = "cpu";

static void
usage(const char *program, const struct torture_arg *arg)
{
    fprintf(stderr, "%s [--device cuda] [--seed S] [--seconds N]", program);
    for (; arg->name; arg++) fprintf(stderr, " [--%s N, else %u]", arg->name, *arg->value);
    fprintf(stderr, " [TEST]\n");
    exit(2);
}

static bool
set(const struct torture_arg *arg, const char *name, const char *value)
{
    char *end;
    unsigned long n = strtoul(value, &end, 10);

    if (!strcmp(name, "device")) {
        torture_device = value;
        return true;
    }
    if (*end || end == value || n > UINT32_MAX) return false;
    if (!strcmp(name, "seed")) return setenv("LAGAN_TEST_SEED", value, 1) == 0;
    if (!strcmp(name, "seconds")) {
        n_seconds = (uint32_t)n;
        return true;
    }
    for (; arg->name; arg++) {
        if (strcmp(name, arg->name)) continue;
        *arg->value = (uint32_t)n;
        return true;
    }
    return false;
}

void
torture_args(int argc, char **argv, const struct torture_arg *arg)
{
    int i = 1;

    began = clock_now();
    while (i + 1 < argc && !strncmp(argv[i], "--", 2) && set(arg, argv[i] + 2, argv[i + 1])) i += 2;
    if (i + 1 < argc || (i < argc && argv[i][0] == '-')) usage(argv[0], arg);
    if (i < argc) cmocka_set_test_filter(argv[i]);
}

bool
torture_more(const char *what, uint32_t done, uint32_t all)
{
    static nsec last_print;
    nsec now = clock_now();

    if (now - MAX(last_print, began) > 60 * NSEC_S) {
        fprintf(stderr, "%s: %u of %u\n", what, done, all);
        last_print = now;
    }
    return done < all && now - began < n_seconds * NSEC_S;
}
