/* main.c - lagan-sim: the production scheduler and KV manager in virtual time. */
#include "sim/scenario.h"
#include "sim/sim_config.h"
#include "sim/soak.h"
#include "sim/trace_run.h"

#include "config.h"

#include <stdio.h>

enum { EXIT_USAGE = 2 };

static void
script_help(void)
{
    puts("Usage: lagan-sim script FILE...\n"
         "Run scenarios and compare their output with the expected lines.\n\n"
         "A line is a command; '#' starts a comment. A line that begins with '|' is an expected\n"
         "output line of the command above it:\n\n"
         "  cache block 10\n"
         "  group full max 10\n"
         "  limits seqs 2 len 90\n"
         "  request r0..r1 prompt 10 new 80\n"
         "  run\n"
         "  | 0..79 r0\n"
         "  | 80..159 r1\n"
         "  | 160 idle\n\n"
         "Settings, before all other commands:");
    setting_help(stdout);
    puts("\nCommands:");
    script_print_commands(stdout);
    puts("\nExit codes: 0 output as expected, 1 output differs, 2 invalid scenario file.");
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

        if (r >= 0) r = script_run(s, stdout, &e);
        if (r < 0) fprintf(stderr, "lagan-sim: %s\n", e.text);
        status = MAX(status, r < 0 ? EXIT_USAGE : r);
    }
    return status;
}

static const struct {
    const char *name, *sentence;
    int (*run)(int argc, char **argv);
} commands[] = {
    { "script", "run scenarios and compare their output", script_main },
    { "run", "run a trace on a fleet of simulated workers", run_main },
    { "soak", "run random simulated systems twice and check invariants", soak_main },
};

static int
print_help(FILE *out)
{
    fputs("Usage: lagan-sim COMMAND [ARGUMENT]...\n"
          "Simulate the decisions of scheduler and KV manager in virtual time, without a model.\n\n"
          "Commands:\n",
          out);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].sentence);
    fputs("\n`lagan-sim COMMAND --help` describes a command.\n", out);
    return out == stderr ? EXIT_USAGE : 0;
}

int
main(int argc, char **argv)
{
    if (argc < 2) return print_help(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return print_help(stdout);
    if (strcmp(argv[1], "--version") == 0) return puts("lagan-sim " PACKAGE_VERSION), 0;
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
    fprintf(stderr, "lagan-sim: unknown command %s\n", argv[1]);
    return print_help(stderr);
}
