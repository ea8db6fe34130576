/* main.c - laganctl: the command line and the exit code; see ctl.h. */
#include "ctl/ctl.h"

#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* clang-format off */
const struct opt global_opts[] = {
    { "connect", OPT_STR, OPT_AT(ctl_opts, connect), "ipc:///run/lagan/api.sock", .arg = "ENDPOINT",
      .sentence = "socket of lagand: ipc://PATH or tcp://HOST:PORT" },
    { "keys", OPT_STR, OPT_AT(ctl_opts, keys), .arg = "FILE",
      .sentence = "for tcp://HOST:PORT: file with the client's secret key and lagand's public key" },
    { "spawn", OPT_STR, OPT_AT(ctl_opts, spawn), .arg = "MODEL_DIR",
      .sentence = "start a private lagand with this model, run the command, stop lagand" },
    { "device", OPT_STR, OPT_AT(ctl_opts, device), .arg = "DEVICE",
      .sentence = "with --spawn: device of the model: cpu, cuda or cuda:N[,N...]" },
    { "set", OPT_STR, OPT_AT(ctl_opts, set), .flags = OPT_REPEAT, .arg = "KEY=VALUE",
      .sentence = "with --spawn: value of a configuration key, for example kv.memory=64MiB; may "
      "be repeated; the last value of a key counts" },
    { "help", OPT_BOOL, OPT_AT(ctl_opts, help), .sentence = "print commands and options and exit" },
    { "version", OPT_BOOL, OPT_AT(ctl_opts, version), .sentence = "print the version and exit" },
    { "manual", OPT_BOOL, OPT_AT(ctl_opts, manual), .flags = OPT_HIDDEN,
      .sentence = "print laganctl(1)" },
    { 0 }
};
/* clang-format on */

/* Number of arguments at the front of argv that the words of a command take; 0: another command. */
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

static int
no_such_command(int argc, char **argv)
{
    const struct command *c;
    size_t len = strlen(argv[0]);
    bool group = false;

    for (c = commands; c->words; c++) {
        if (strncmp(c->words, argv[0], len) || c->words[len] != ' ') continue;
        if (!group) fprintf(stderr, "laganctl: '%s' needs one of these words after it:", argv[0]);
        fprintf(stderr, " %s", c->words + len + 1);
        group = true;
    }
    if (group) return fputc('\n', stderr), CTL_USAGE;
    (void)argc;
    return ctl_fail(CTL_USAGE, "no command '%s'; `laganctl --help` lists them", argv[0]);
}

int
command_args(const struct command *c, void *to, int argc, char **argv)
{
    /* the options of every command begin with these fields; see command_opts() */
    struct common {
        bool json, help;
    } *common = to;
    uint64_t given = 0;
    int i = 0, n = 0;
    struct err e;

    if (c->opts) opt_defaults(c->opts, to);
    common->json = common->help = false;
    while (i < argc) {
        if (!strcmp(argv[i], "--json")) {
            common->json = true, i++;
        } else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            command_help(c);
            return -2;
        } else if (c->opts && !strncmp(argv[i], "--", 2)) {
            int until = i + 1;

            while (until < argc && strcmp(argv[until], "--json") && strcmp(argv[until], "--help"))
                until++;
            if (opt_argv(c->opts, to, &given, until, argv, &i, &e) < 0) break;
        } else if (argv[i][0] == '-' && argv[i][1]) {
            err_set(&e, -EINVAL, "no option '%s'", argv[i]);
            break;
        } else {
            argv[n++] = argv[i++];
        }
    }
    if (i == argc) return n;
    ctl_fail(CTL_USAGE, "%s (see `laganctl %s --help`)", e.text, c->words);
    return -1;
}

static void
on_signal(int sig)
{
    /* the second signal exits at once; a private lagand is ended by the kernel */
    if (ctl_signal) _exit(128 + sig);
    ctl_signal = sig;
}

struct run {
    const struct command *command;
    int argc;
    char **argv;
};

static int
run_command(struct ctl *ctl, void *arg)
{
    struct run *run = arg;

    return run->command->run(ctl, run->argc, run->argv);
}

/* --help of a command needs no lagand, so it is checked before connecting or starting one. */
static bool
asks_help(int argc, char **argv)
{
    int i;

    for (i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return true;
    return false;
}

static int
run(struct ctl *ctl, const struct command *c, int argc, char **argv)
{
    struct run run = { c, argc, argv };
    int r;

    if (asks_help(argc, argv)) return command_help(c), 0;
    if (c->alone) return c->run(ctl, argc, argv);
    if (*ctl->o.spawn) return spawn_run(ctl, run_command, &run);
    snprintf(ctl->endpoint, sizeof ctl->endpoint, "%s", ctl->o.connect);
    r = ctl_connect(ctl, &ctl->api, /* privileged= */ false);
    if (r == 0) r = c->run(ctl, argc, argv);
    lagan_close(ctl->api);
    return r;
}

static bool
was_given(uint64_t given, const char *key)
{
    return given >> (opt_find(global_opts, key, strlen(key)) - global_opts) & 1;
}

static int
command_line(int argc, char **argv)
{
    static struct ctl ctl;
    const struct command *c;
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
    if (*ctl.o.spawn && was_given(given, "connect"))
        return ctl_fail(
            CTL_USAGE,
            "--spawn starts a lagand and --connect names a running one; use only one of them");
    if (!*ctl.o.spawn && (*ctl.o.device || *ctl.o.set) &&
        !words_match("model verify", argc - at, argv + at))
        return ctl_fail(CTL_USAGE, "--device and --set need --spawn; a running lagand has its own "
                                   "configuration");
    for (c = commands; c->words; c++) {
        n = words_match(c->words, argc - at, argv + at);
        if (n) return run(&ctl, c, argc - at - n, argv + at + n);
    }
    return no_such_command(argc - at, argv + at);
}

/* If the disk is full, exit code 0 would claim that the output is complete. */
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
