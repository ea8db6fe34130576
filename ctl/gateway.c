/* gateway.c - laganctl --spawn MODEL_DIR gateway: runs lagan-gateway beside a private lagand. */
#include "ctl/ctl.h"

struct spawn_gateway_opts {
    char listen[1024]; /* one address per line */
};

/* clang-format off */
const struct opt spawn_gateway_opts[] = {
    { "listen", OPT_STR, OPT_AT(spawn_gateway_opts, listen), .flags = OPT_REPEAT, .arg = "ADDRESS",
      .sentence = "address to listen on: 127.0.0.1:8000, [::1]:8000 or unix:PATH; may be repeated; "
      "port 0: a free port; default: 127.0.0.1:0" },
    { 0 }
};
/* clang-format on */

int
cmd_gateway(struct ctl *ctl)
{
    enum { MAX_LISTEN = 16 };
    struct spawn_gateway_opts *o = ctl->opts;
    char *rest = *o->listen ? o->listen : (char[]){ "127.0.0.1:0" }, *line;
    /* The gateway is private: it reads no file, and lagand does not wait for its streams. */
    const char *argv[2 * MAX_LISTEN + 10] = {
        NULL,          "--config",   "/dev/null",          "--lagand",
        ctl->endpoint, "--announce", "--shutdown-timeout", "1s"
    };
    int n = 8;

    if (!ctl->spawned)
        return ctl_fail(
            CTL_USAGE,
            "gateway needs --spawn MODEL_DIR; before a running lagand start lagan-gateway "
            "itself (lagan-gateway --help)");
    while ((line = strsep(&rest, "\n"))) {
        if (n + 3 > (int)ARRAY_LEN(argv))
            return ctl_fail(CTL_USAGE, "--listen may be given at most %d times", MAX_LISTEN);
        argv[n++] = "--listen";
        argv[n++] = line;
    }
    return spawn_beside(ctl, "lagan-gateway", argv);
}
