/* main.c - lagan-sim: the scheduler and the KV manager that serve, in virtual time. */
#include "sim/scenario_run.h"
#include "sim/sim_config.h"
#include "sim/soak.h"
#include "sim/trace_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static void
script_help(void)
{
    puts("Usage: lagan-sim script FILE...\n"
         "Act out scenarios and compare what happens with what they say.\n\n"
         "A line is a command; '#' begins a comment. A line that begins with '|' is what the "
         "command\n"
         "above it must print:\n\n"
         "  cache block 10\n"
         "  group full max 10\n"
         "  limits seqs 2 len 90\n"
         "  request r0..r1 prompt 10 new 80\n"
         "  run\n"
         "  | 0..79 r0\n"
         "  | 80..159 r1\n"
         "  | 160 idle\n\n"
         "Settings, before everything else:");
    setting_help(stdout);
    puts("\nCommands:");
    play_help(stdout);
    puts("\nExit codes: 0 all as they say, 1 something differs, 2 a file is no scenario.");
}

static int
script_main(int argc, char **argv)
{
    int status = 0;

    if (argc == 0 || strcmp(argv[0], "--help") == 0) {
        script_help();
        return argc == 0 ? EXIT_USAGE : 0;
    }
    for (int i = 0; i < argc; i++) {
        CLEAN(script_free_at) struct script *s = NULL;
        struct err e;
        int r = script_read(&s, argv[i], &e);

        if (r >= 0) r = play_script(s, stdout, &e);
        if (r < 0) fprintf(stderr, "lagan-sim: %s\n", e.text);
        status = MAX(status, r < 0 ? EXIT_USAGE : r);
    }
    return status;
}

static const struct {
    const char *name, *sentence;
    int (*run)(int argc, char **argv);
} commands[] = {
    { "script", "act out scenarios and compare with what they say", script_main },
    { "run", "a trace over a fleet of pretended workers", run_main },
    { "soak", "worlds drawn from a seed, lived through twice and checked", soak_main },
};

static int
print_help(FILE *out)
{
    fputs("Usage: lagan-sim COMMAND [ARGUMENT]...\n"
          "What the scheduler and the KV manager decide, in virtual time, without a model.\n\n"
          "Commands:\n",
          out);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].sentence);
    fputs("\n`lagan-sim COMMAND --help` says more about one command.\n", out);
    return out == stderr ? EXIT_USAGE : 0;
}

int
main(int argc, char **argv)
{
    if (argc < 2) return print_help(stderr);
    if (strcmp(argv[1], "--help") == 0) return print_help(stdout);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
    fprintf(stderr, "lagan-sim: %s is no command\n", argv[1]);
    return print_help(stderr);
}
