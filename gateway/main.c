/* main.c - main() of lagan-gateway: reads the configuration and serves.
 *
 * Exit codes: 0 stopped on request, or --check found no error · 1 other failure · 2 wrong command
 * line · 69 an address is in use · 77 no permission · 78 configuration. */
#include "base/log.h"
#include "gateway/api/api.h"
#include "gateway/loop.h"
#include "gateway/options.h"
#include "ipc/exit_code.h"

#include <stdio.h>
#include <sys/resource.h>

#include "config.h"

static void
help(void)
{
    puts("lagan-gateway - serve the HTTP API of OpenAI in front of lagand.\n"
         "\n"
         "  lagan-gateway --listen 127.0.0.1:8000\n"
         "  curl http://127.0.0.1:8000/v1/chat/completions -d '{\"model\": \"llama-8b\",\n"
         "    \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
         "  laganctl --spawn MODEL_DIR gateway      (lagand and gateway for one model)\n"
         "\n"
         "Options, with the default in []; the names are also keys of the configuration file:");
    opt_help(gateway_opts, OPT_TYPED, stdout);
}

/* Prints lagan-gateway(8) in mdoc, with the table of options. */
static void
manual(void)
{
    puts(".Dd 2026\n.Dt LAGAN-GATEWAY 8\n.Os lagan\n"
         ".Sh NAME\n.Nm lagan-gateway\n.Nd serve the HTTP API of OpenAI in front of lagand\n"
         ".Sh SYNOPSIS\n.Nm\n.Op Fl -config Ar FILE\n.Op Fl -check\n.Op Fl -listen Ar ADDRESS\n"
         ".Op Fl -lagand Ar ENDPOINT\n.Op Fl -set Ar KEY=VALUE\n"
         ".Sh DESCRIPTION\n.Nm\n"
         "accepts HTTP/1.1 connections, translates requests of the API of OpenAI into requests of\n"
         "lagand, and streams the results. It runs as an ordinary client of lagand. It listens on\n"
         "loopback addresses and unix sockets only, because this version has no API keys.\n"
         "TLS and HTTP/2 belong to a proxy before it.");
    puts(".Pp\nSIGHUP reads the configuration again: model aliases, limits, timeouts of HTTP and "
         "the\n"
         "log level change, running requests keep their settings, and\n.Cm listen\nand\n"
         ".Cm lagand\nneed a restart. A faulty configuration changes nothing.\n"
         ".Pp\nSIGTERM and SIGINT stop the gateway: it accepts no further connection, running\n"
         "requests have\n.Cm shutdown_timeout\nto finish, and a second signal ends it at once.");
    puts(".Sh OPTIONS\nAn option is also a key of the configuration file, with _ for -.");
    opt_manual(gateway_opts, OPT_TYPED, stdout);
    printf(".Sh CONFIGURATION FILE\n.Pa %s\nis YAML. Names with a dot nest.\n"
           ".Bd -literal -offset indent\n"
           "listen: [127.0.0.1:8000, unix:/run/lagan-gateway/http.sock]\n"
           "models:\n  gpt-4o-mini: llama-3.1-8b\nlog:\n  requests: false\n.Ed\n",
           gateway_default_file);
    api_manual(stdout);
    puts(".Sh EXIT STATUS\n0 stopped on request, or the configuration is valid; 1 failure; 2 "
         "usage;\n"
         "69 an address is in use; 77 no permission; 78 configuration.\n"
         ".Sh SEE ALSO\n.Xr lagand 8 ,\n.Xr laganctl 1 ,\n.Xr lagan-protocol 7 .");
}

static void
say(const struct problems *p)
{
    for (uint32_t i = 0; i < p->n; i++) log_err("%s", p->text[i]);
    if (p->n_more) log_err("%u more errors of the configuration are not shown", p->n_more);
}

/* Raises the limit of open files, 1024 by default, because each connection needs a descriptor. */
static void
raise_files(const struct gateway_config *c)
{
    enum { OTHER_FILES = 64 }; /* listeners, liblagan, sd-event */
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0) return;
    l.rlim_cur = l.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur < c->max_connections + OTHER_FILES)
        log_warn("the limit of open files is %llu, too low for max_connections=%u",
                 (unsigned long long)l.rlim_cur, c->max_connections);
}

static int
exit_code(int r)
{
    switch (r) {
    case -EACCES:
    case -EPERM:
        return EXIT_NO_PERMISSION;
    case -EINVAL:
    case -ENOENT: /* the directory of a unix socket */
    case -ENOTDIR:
    case -ENAMETOOLONG:
        return EXIT_CONFIG;
    case -EADDRINUSE:
    case -EADDRNOTAVAIL:
        return EXIT_UNAVAILABLE;
    default:
        return r < 0 ? EXIT_FAILURE : r;
    }
}

int
main(int argc, char **argv)
{
    static struct gateway_config config;
    static struct problems problems;
    struct err e = { .text = "" };
    bool usage;
    int r;

    log_open("lagan-gateway", LOG_LEVEL_INFO);
    r = gateway_config_read(&config, argc, argv, &problems, &usage);
    if (r < 0) {
        say(&problems);
        if (usage) log_err("lagan-gateway --help lists the options");
        if (usage) return EXIT_USAGE;
        return problems.n_denied == problems.n + problems.n_more ? EXIT_NO_PERMISSION : EXIT_CONFIG;
    }
    if (config.help) return help(), 0;
    if (config.manual) return manual(), 0;
    if (config.version) return puts("lagan-gateway " PACKAGE_VERSION), 0;
    if (config.check) {
        log_info("the configuration is valid: %u address%s", config.n_addresses,
                 config.n_addresses == 1 ? "" : "es");
        return 0;
    }
    log_level_set(log_level_choice(config.log_level));
    log_never_wait();
    raise_files(&config);
    r = gateway_run(&config, argc, argv, &e);
    if (r < 0) log_err("%s", e.text);
    return exit_code(r);
}
