/* main.c - laganctl: the command line and the exit code; see ctl.h. */
#include "ctl/ctl.h"

#include "base/similar.h"

#include "config.h"

#include <stdio.h>
#include <unistd.h>

/* clang-format off */
const struct opt global_opts[] = {
    { "connect", OPT_STR, OPT_AT(ctl_opts, connect), "ipc:///run/lagan/api.sock", .arg = "ENDPOINT",
      .sentence = "socket of lagand: ipc://PATH or tcp://HOST:PORT" },
    { "keys", OPT_STR, OPT_AT(ctl_opts, keys), .arg = "FILE",
      .sentence = "for tcp://HOST:PORT: file with the secret key of this client and the public "
      "key of lagand" },
    { "spawn", OPT_STR, OPT_AT(ctl_opts, spawn), .arg = "MODEL_DIR",
      .sentence = "start a private lagand that serves the model in this directory, run the "
      "command with it, and stop it" },
    { "device", OPT_STR, OPT_AT(ctl_opts, device), .arg = "DEVICE",
      .sentence = "with --spawn and model verify: device of the model: auto, cpu, cuda or "
      "cuda:N[,N...]" },
    { "set", OPT_STR, OPT_AT(ctl_opts, set), .flags = OPT_REPEAT, .arg = "KEY=VALUE",
      .sentence = "with --spawn and model verify: set a setting of the model, for example "
      "kv.memory=64MiB (lagand --help lists them); may be repeated; the last value of a KEY is "
      "used" },
    { "help", OPT_BOOL, OPT_AT(ctl_opts, help), .sentence = "print commands and options and exit" },
    { "version", OPT_BOOL, OPT_AT(ctl_opts, version), .sentence = "print the version and exit" },
    { "manual", OPT_BOOL, OPT_AT(ctl_opts, manual), .flags = OPT_HIDDEN,
      .sentence = "print laganctl(1)" },
    { 0 }
};
/* clang-format on */

/* Returns how many arguments at the start of argv are the words of a command; 0: they differ. */
static int
words_match(const char *words, int argc, char **argv)
{
    int n = 0;

    while (*words) {
        size_t len = strcspn(words, " ");

        if (n == argc || strlen(argv[n]) != len || memcmp(argv[n], words, len)) return 0;
        words += len + (words[len] == ' ');
        n++;
    }
    return n;
}

static const struct command *
command_of(int argc, char **argv, int *n_words)
{
    const struct command *c = commands;

    while (c->words && !(*n_words = words_match(c->words, argc, argv))) c++;
    return c->words ? c : NULL;
}

/* Explains that argv is no command: lists those of a group, or suggests a similar one. */
static int
no_such_command(int argc, char **argv)
{
    struct similar near = { 0 };
    size_t len = strlen(argv[0]);
    bool group = false;
    char words[60];

    for (const struct command *c = commands; c->words; c++)
        if (!strncmp(c->words, argv[0], len) && c->words[len] == ' ') group = true;
    /* compares the first word of single commands, the first two of others */
    for (const struct command *c = commands; c->words; c++) {
        bool two = strchr(c->words, ' ') && argc > 1;

        snprintf(words, sizeof words, "%s%s%s", argv[0], two ? " " : "", two ? argv[1] : "");
        similar_compare(&near, words, strlen(words), c->words);
    }
    if (group && argc < 2) {
        fprintf(stderr, "laganctl: '%s' needs one of these words after it:", argv[0]);
        for (const struct command *c = commands; c->words; c++)
            if (!strncmp(c->words, argv[0], len) && c->words[len] == ' ')
                fprintf(stderr, " %s", c->words + len + 1);
        return fputc('\n', stderr), CTL_USAGE;
    }
    snprintf(words, sizeof words, "%s%s%s", argv[0], group ? " " : "", group ? argv[1] : "");
    if (near.name)
        return ctl_fail(CTL_USAGE, "no command '%s'; did you mean '%s'?", words, near.name);
    return ctl_fail(CTL_USAGE, "no command '%s'; `laganctl --help` lists them", words);
}

static bool
takes_operands(const struct command *c, int n)
{
    int most = 0, least = 0;

    for (const char *s = c->operands; *s; s += strcspn(s, " "), s += *s == ' ') {
        most++;
        least += *s != '[';
    }
    return n >= least && n <= most;
}

/* Parses options and operands in any order; operands are moved to the front of argv. Returns 0, or
 * CTL_USAGE after printing an error. */
static int
parse_args(struct ctl *ctl)
{
    const struct command *c = ctl->command;
    char **argv = ctl->argv;
    uint64_t given = 0;
    int i = 0, n = 0;
    struct err e;

    if (c->opts) opt_defaults(c->opts, ctl->opts);
    while (i < ctl->argc) {
        if (!strcmp(argv[i], "-f") && c->opts && opt_find(c->opts, "follow", 6))
            argv[i] = (char *)(uintptr_t) "--follow";
        if (!strcmp(argv[i], "--json")) {
            ctl->json = true, i++;
        } else if (c->opts && !strncmp(argv[i], "--", 2)) {
            int until = i + 1;

            while (until < ctl->argc && strcmp(argv[until], "--json")) until++;
            if (opt_argv(c->opts, ctl->opts, &given, until, argv, &i, &e) < 0) break;
        } else if (argv[i][0] == '-' && argv[i][1]) {
            err_set(&e, -EINVAL, "no option '%s'", argv[i]);
            break;
        } else {
            argv[n++] = argv[i++];
        }
    }
    if (i < ctl->argc)
        return ctl_fail(CTL_USAGE, "%s (see `laganctl %s --help`)", e.text, c->words);
    ctl->argc = n;
    argv[n] = NULL;
    ctl->first_given = given & 1;
    return takes_operands(c, n) ? 0 : command_usage(c);
}

static void
on_signal(int sig)
{
    /* A second signal ends laganctl at once and thereby a private lagand (PR_SET_PDEATHSIG). */
    if (ctl_signal) _exit(128 + sig);
    ctl_signal = sig;
}

static size_t
bytes_of(const struct opt *table)
{
    size_t n = 0;

    for (; table && table->key; table++) n = MAX(n, table->offset + table->size);
    return ROUND_UP(n + 1, sizeof(max_align_t));
}

static int
run_command(struct ctl *ctl)
{
    return ctl->command->run(ctl);
}

static bool
asks_help(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return true;
    return false;
}

/* laganctl help [COMMAND]: equal to --help, and to COMMAND --help. */
int
cmd_help(struct ctl *ctl)
{
    int n;
    const struct command *c = ctl->argc ? command_of(ctl->argc, ctl->argv, &n) : NULL;

    if (!ctl->argc) return help(), 0;
    if (c && n == ctl->argc) return command_help(c), 0;
    if (ctl->argc == 1 && group_help(ctl->argv[0])) return 0;
    return no_such_command(ctl->argc, ctl->argv);
}

/* Runs the command with its connection, after its options were parsed. */
static int
run(struct ctl *ctl)
{
    int r = 0;

    if (ctl->command->alone) return run_command(ctl);
    if (*ctl->o.spawn) return spawn_run(ctl, run_command);
    snprintf(ctl->endpoint, sizeof ctl->endpoint, "%s", ctl->o.connect);
    if (!ctl->command->connects) r = ctl_connect(ctl, &ctl->api, /* privileged= */ false);
    if (r == 0) r = run_command(ctl);
    lagan_close(ctl->api);
    return r;
}

static int
parse_and_run(struct ctl *ctl)
{
    int r = 0;

    if (ctl->command->parses_argv) return run(ctl);
    ctl->opts = calloc(1, bytes_of(ctl->command->opts));
    check(ctl->opts);
    r = parse_args(ctl);
    if (r == 0) r = run(ctl);
    free(ctl->opts);
    return r;
}

static int
command_line(int argc, char **argv)
{
    static struct ctl ctl;
    uint64_t given = 0;
    struct err e;
    int at = 1, n;

    opt_defaults(global_opts, &ctl.o);
    if (opt_argv(global_opts, &ctl.o, &given, argc, argv, &at, &e) < 0)
        return ctl_fail(CTL_USAGE, "%s%s", e.text,
                        e.code == -ENOENT ? "; options of a command follow it" : "");
    if (ctl.o.version) return puts("laganctl " PACKAGE_VERSION), 0;
    if (ctl.o.help) return help(), 0;
    if (ctl.o.manual) return manual(), 0;
    if (at == argc) return help(), CTL_USAGE;
    if (*ctl.o.spawn && given & 1) /* bit 0: --connect */
        return ctl_fail(
            CTL_USAGE,
            "--spawn starts a lagand and --connect names a running one; use only one of them");
    if (!*ctl.o.spawn && (*ctl.o.device || *ctl.o.set) &&
        !words_match("model verify", argc - at, argv + at))
        return ctl_fail(CTL_USAGE, "--device and --set need --spawn; a running lagand has its own "
                                   "configuration");
    ctl.command = command_of(argc - at, argv + at, &n);
    if (!ctl.command && argc - at == 2 && asks_help(1, argv + at + 1) && group_help(argv[at]))
        return 0;
    if (!ctl.command) return no_such_command(argc - at, argv + at);
    ctl.argc = argc - at - n;
    ctl.argv = argv + at + n;
    /* before the options are parsed: --help needs neither operands nor a lagand */
    if (asks_help(ctl.argc, ctl.argv)) return command_help(ctl.command), 0;
    return parse_and_run(&ctl);
}

/* Flushes standard output. A failure changes exit code 0, because the output is incomplete. */
static int
all_written(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    ctl_fail(0, "standard output could not be written completely; the disk may be full");
    return code ? code : CTL_FAILED;
}

int
main(int argc, char **argv)
{
    struct sigaction act = { .sa_handler = on_signal };

    generate_start();
    chat_start();
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    return all_written(command_line(argc, argv));
}
