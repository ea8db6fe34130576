/* main.c - main() of lagand: reads the configuration and serves.
 *
 * Exit codes: 0 stopped on request, or --check found no error · 1 other failure · 2 wrong command
 * line · 69 no worker could be started, or another process uses the runtime directory or port · 77
 * no permission · 78 configuration or model files. */
#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/ops/check.h"
#include "daemon/serve.h"
#include "include/lagan_wire.h"
#include "ipc/exit_code.h"

#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>

#include "config.h"

static void
help(void)
{
    puts("lagand - serve language models: start and supervise workers, serve clients.\n"
         "\n"
         "  lagand --runtime-dir /tmp/l --model models/recall-gemma3 --device cpu\n"
         "  laganctl --connect ipc:///tmp/l/api.sock generate --text \"k3=blue;q7=stone;k3?\"\n"
         "\n"
         "Options, with the default in []; a name with a dot is also a key of the "
         "configuration file:");
    opt_help(daemon_opts, OPT_TYPED, stdout);
    puts("\nSettings of a model, for --set and for each entry of models in the file. A setting\n"
         "that has no effect on the device or the model, or without another setting, is refused:");
    opt_help(model_opts, OPT_KEYS, stdout);
}

/* Prints lagand(8) in mdoc, with the tables of options. */
static void
manual(void)
{
    puts(".Dd 2026\n.Dt LAGAND 8\n.Os lagan\n"
         ".Sh NAME\n.Nm lagand\n.Nd serve language models\n"
         ".Sh SYNOPSIS\n.Nm\n.Op Fl -foreground\n.Op Fl -runtime-dir Ar DIR\n"
         ".Op Fl -model Ar DIR\n.Op Fl -device Ar DEVICE\n.Op Fl -set Ar KEY=VALUE\n"
         ".Op Fl -config Ar FILE\n.Op Fl -check\n"
         ".Sh DESCRIPTION\n.Nm\n"
         "starts a worker for each device of each model, replaces workers that crash or hang, and\n"
         "dispatches requests of clients to them. It validates all data from workers and clients.\n"
         "Clients connect with ZeroMQ to\n.Pa api.sock ,\noperators also at\n.Pa ctl.sock ,\n"
         "both in the runtime directory.\n"
         ".Sh OPTIONS\nAn option with a dot is also a key of the configuration file, with _ for "
         "-.");
    opt_manual(daemon_opts, OPT_TYPED, stdout);
    printf(".Sh CONFIGURATION FILE\n.Pa %s\nis YAML. Names with a dot nest; every entry of\n.Cm "
           "models\n"
           "has the settings below.\n",
           config_default_file);
    puts(".Bd -literal -offset indent\n"
         "api:\n  max_inflight: 64\n"
         "models:\n  - path: /var/lib/lagan/models/llama-8b\n    workers: 2\n"
         "    kv:\n      reuse: true\n"
         "  - path: /var/lib/lagan/models/t5-large\n    device: cpu\n.Ed\n"
         ".Fl -check\nprints all errors of the file and of the models, keys and ports that it "
         "names,\n.Ql laganctl config show\nthe origin of "
         "each value, and\n.Ql laganctl reload\napplies a changed file while requests "
         "continue.");
    puts(".Sh SETTINGS OF A MODEL\nFor\n.Fl -set\nand for the entries of\n.Cm models:\nin the "
         "file.\nA setting that has no effect on the device or the model, or without another "
         "setting, is refused by name.");
    opt_manual(model_opts, OPT_KEYS, stdout);
    printf(".Sh FILES\n.Bl -tag -width Ds\n.It Pa %s\nThe configuration.\n", config_default_file);
    puts(
        ".It Pa /run/lagan\nThe runtime directory under systemd.\n.El\n"
        ".Sh EXIT STATUS\n0 stopped on request, or the configuration is valid; 1 failure; 2 usage; "
        "69 no\n"
        "worker could be started, or the runtime directory or port is in use; 77 no permission; 78 "
        "configuration or model files.\n"
        ".Sh SEE ALSO\n.Xr laganctl 1 ,\n.Xr lagan-protocol 7 .\n"
        ".Ql lagan-sim\nsimulates the scheduler of a worker in virtual time.");
}

static void
say(const struct problems *p)
{
    for (uint32_t i = 0; i < p->n; i++) log_err("%s", p->text[i]);
    if (p->n_more) log_err("%u more errors of the configuration are not shown", p->n_more);
}

/* Raises the limit of open files, 1024 by default, because each connection needs a descriptor. */
static void
raise_files(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0) return;
    l.rlim_cur = l.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0)
        log_warn("cannot raise the limit of open files to %llu: %s", (unsigned long long)l.rlim_max,
                 strerror(errno));
}

static int
exit_code(int r)
{
    switch (r) {
    case -EACCES:
    case -EPERM:
    case -EROFS:
        return EXIT_NO_PERMISSION;
    case -ENAMETOOLONG:
        return EXIT_CONFIG;
    case -EBUSY: /* another lagand runs on the directory */
    case -EADDRINUSE:
        return EXIT_UNAVAILABLE;
    default:
        return r < 0 ? EXIT_FAILURE : r;
    }
}

static int
config_exit_code(const struct problems *p)
{
    return p->n_denied && p->n_denied == p->n + p->n_more ? EXIT_NO_PERMISSION : EXIT_CONFIG;
}

/* Runs --check. c, p: what config_read() has read and found wrong. */
static int
check_only(struct config *c, int argc, char **argv, struct problems *p)
{
    struct problems unit = { 0 };
    bool usage;

    if (check_become_service(c, &unit)) (void)!config_read(c, argc, argv, p, &usage);
    check_start(c, p);
    say(&unit);
    say(p);
    if (unit.n) return EXIT_CONFIG;
    if (p->n) return config_exit_code(p);
    log_info("the configuration is valid: %u model%s, %u worker%s", c->n_models,
             c->n_models == 1 ? "" : "s", config_n_workers(c), config_n_workers(c) == 1 ? "" : "s");
    return 0;
}

int
main(int argc, char **argv)
{
    static struct config config;
    static struct problems problems;
    struct err e = { 0 };
    bool usage;
    int r;

    log_open("lagand", LOG_LEVEL_INFO);
    r = config_read(&config, argc, argv, &problems, &usage);
    if (r < 0 && (usage || !config.o.check)) {
        say(&problems);
        if (usage) log_err("lagand --help lists the options");
        return usage ? EXIT_USAGE : config_exit_code(&problems);
    }
    if (config.o.help) {
        help();
        return 0;
    }
    if (config.o.manual) {
        manual();
        return 0;
    }
    if (config.o.version) {
        puts(PACKAGE_STRING);
        return 0;
    }
    if (config.o.check) return check_only(&config, argc, argv, &problems);
    log_level_set(log_level_choice(config.o.log_level));
    check_memory(&config, &problems);
    if (problems.n) {
        say(&problems);
        return EXIT_CONFIG;
    }
    log_never_wait();
    raise_files();
    /* malloc() keeps the memory of freed frames for reuse; memory_guard.c returns it if unused. */
    mallopt(M_MMAP_THRESHOLD, 2 * LAGAN_MAX_FRAME);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_ARENA_MAX, 1);
    r = serve(&config, argv, &e);
    if (r < 0) log_err("%s", e.text);
    return exit_code(r);
}
