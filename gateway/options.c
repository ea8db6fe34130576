/* options.c - see options.h. */
#include "gateway/options.h"

#include "client/endpoint.h"
#include "wire/curve.h"

#include <arpa/inet.h>
#include <stdio.h>

#include "config.h"

const char gateway_default_file[] = SYSCONFDIR "/lagan/gateway.yaml";

#define AT(field) OPT_AT(gateway_config, field)

/* clang-format off */
const struct opt gateway_opts[] = {
    { "config", OPT_STR, AT(config), "", NULL, 0, 0, 0, "FILE",
      "configuration file (YAML); default: " SYSCONFDIR "/lagan/gateway.yaml, if it exists" },
    { "set", OPT_STR, AT(set), "", NULL, 0, 0, 0, "KEY=VALUE",
      "the same as --KEY=VALUE, with the KEY as in the configuration file; may be repeated" },
    { "check", OPT_BOOL, AT(check), "false", NULL, 0, 0, 0, NULL,
      "check the configuration, print every error and exit" },
    { "listen", OPT_STR, AT(listen), "", NULL, 0, 0, OPT_REPEAT, "ADDRESS",
      "address to listen on: 127.0.0.1:8000, [::1]:8000 or unix:PATH; may be repeated, in the file "
      "a list; default: 127.0.0.1:8000; port 0: a free port; sockets from systemd replace all "
      "addresses; addresses that other hosts can reach are refused in this version, because it has "
      "no API keys" },
    { "lagand", OPT_STR, AT(lagand), "ipc:///run/lagan/api.sock", NULL, 0, 0, 0, "ENDPOINT",
      "socket of lagand: ipc://PATH or tcp://HOST:PORT" },
    { "lagand_keys", OPT_STR, AT(lagand_keys), "", NULL, 0, 0, 0, "FILE",
      "for tcp://HOST:PORT: file with the secret key of this client and the public key of lagand; "
      "laganctl keygen --help describes it; empty: none" },
    { "models", OPT_STR, AT(models), "", NULL, 0, 0, OPT_REPEAT, "ALIAS=NAME",
      "further name of a served model, for example gpt-4o-mini=llama-3.1-8b; may be repeated, in "
      "the file a mapping of ALIAS: NAME" },
    { "max_connections", OPT_U32, AT(max_connections), "4096", NULL, 1, 65536, 0, "N",
      "maximum number of open connections; for a further one the connection that has been idle "
      "longest is closed, and if all have a request the further one gets 503" },
    { "max_connections_per_address", OPT_U32, AT(max_connections_per_address), "0", NULL, 0, 65536,
      0, "N", "maximum number of open connections of one address; 0: no limit, because behind a "
      "proxy all connections have one address" },
    { "max_header", OPT_BYTES, AT(max_header), "16KiB", NULL, 1024, 1 << 20, 0, "BYTES",
      "maximum size of the request line and the headers of one request" },
    { "max_headers", OPT_U32, AT(max_headers), "100", NULL, 8, 1000, 0, "N",
      "maximum number of headers of one request" },
    { "max_url", OPT_BYTES, AT(max_url), "8KiB", NULL, 256, 1 << 20, 0, "BYTES",
      "maximum size of the target of a request" },
    { "max_body", OPT_BYTES, AT(max_body), "4MiB", NULL, 1024, 64 << 20, 0, "BYTES",
      "maximum size of the body of a request" },
    { "max_prompts", OPT_U32, AT(max_prompts), "128", NULL, 1, 1024, 0, "N",
      "maximum number of prompts of one request of /v1/completions" },
    { "max_n", OPT_U32, AT(max_n), "64", NULL, 1, 64, 0, "N",
      "maximum number of choices of one prompt (field n)" },
    { "header_timeout", OPT_NSEC, AT(header_timeout), "10s", NULL, 1e7, 0, 0, "TIME",
      "time for a client to send all headers of a request" },
    { "body_timeout", OPT_NSEC, AT(body_timeout), "30s", NULL, 1e7, 0, 0, "TIME",
      "time without a byte of the body after which a request is refused" },
    { "body_rate", OPT_BYTES, AT(body_rate), "1KiB", NULL, 0, 1 << 30, 0, "BYTES",
      "least number of bytes of a body in a second, over 10 s; a slower client is refused; 0: no "
      "limit" },
    { "idle_timeout", OPT_NSEC, AT(idle_timeout), "75s", NULL, 1e7, 0, 0, "TIME",
      "time after which a connection without a request is closed" },
    { "write_timeout", OPT_NSEC, AT(write_timeout), "30s", NULL, 1e7, 0, 0, "TIME",
      "a connection that takes no byte of waiting output for this long is closed, and its request "
      "is cancelled" },
    { "header_hold", OPT_NSEC, AT(header_hold), "10s", NULL, 0, 0, 0, "TIME",
      "time that the status of a stream waits for the first token, so that an early failure has a "
      "true status" },
    { "sse_ping", OPT_NSEC, AT(sse_ping), "15s", NULL, 1e8, 0, 0, "TIME",
      "interval between comments in a stream that has no tokens to send" },
    { "default_max_tokens", OPT_STR, AT(default_max_tokens), "auto", NULL, 0, 0, 0, "N",
      "max_completion_tokens of a chat request that gives none: a number; model: what fits into the "
      "model; auto: the same, but at most 4,096 for a model with policy no_evict" },
    { "shutdown_timeout", OPT_NSEC, AT(shutdown_timeout), "30s", NULL, 0, 0, 0, "TIME",
      "time that running requests have to finish after a signal that stops the gateway" },
    { "reconnect_timeout", OPT_NSEC, AT(reconnect_timeout), "30s", NULL, 1e9, 0, 0, "TIME",
      "time that running requests wait for a lagand that is not reachable; then they fail" },
    { "start_wait", OPT_NSEC, AT(start_wait), "10s", NULL, 0, 0, 0, "TIME",
      "time that a start waits for lagand before the gateway reports that it is ready" },
    { "strict", OPT_BOOL, AT(strict), "false", NULL, 0, 0, 0, "BOOL",
      "refuse unknown fields of a request; false: ignore them and name them in the response header "
      "X-Lagan-Ignored" },
    { "log.level", OPT_ENUM, AT(log_level), "info", "err|warn|info|debug", 0, 0, 0, NULL,
      "lowest severity of the messages that are logged" },
    { "log.requests", OPT_BOOL, AT(log_requests), "true", NULL, 0, 0, 0, "BOOL",
      "log one line at the end of each request, without its prompt and its output" },
    { "tls_cert", OPT_STR, AT(tls_cert), "", NULL, 0, 0, OPT_HIDDEN, "FILE", "refused" },
    { "tls_key", OPT_STR, AT(tls_key), "", NULL, 0, 0, OPT_HIDDEN, "FILE", "refused" },
    { "announce", OPT_BOOL, AT(announce), "false", NULL, 0, 0, OPT_HIDDEN, NULL,
      "print the URL of each address on standard output once requests are served" },
    { "help", OPT_BOOL, AT(help), "false", NULL, 0, 0, 0, NULL, "print this help and exit" },
    { "version", OPT_BOOL, AT(version), "false", NULL, 0, 0, 0, NULL, "print the version and exit" },
    { "manual", OPT_BOOL, AT(manual), "false", NULL, 0, 0, OPT_HIDDEN, NULL,
      "print the manual page lagan-gateway(8)" },
    { NULL },
};
/* clang-format on */

struct reading {
    struct gateway_config *c;
    struct problems *p;
};

static bool
only_on_command_line(const char *key)
{
    static const char *const keys[] = { "config", "set",     "check", "announce",
                                        "help",   "version", "manual" };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

/* Sets one key of the file; a key below `models` is an alias. */
static void
take_key(void *arg, int entry, const char *key, const char *value, const char *where, unsigned line)
{
    struct reading *r = arg;
    bool alias = !strncmp(key, "models.", 7);
    char text[1024];
    struct err e;

    (void)entry;
    (void)line;
    if (only_on_command_line(key)) {
        problem(r->p, "%s: %s can be given on the command line only, not in the file", where, key);
        return;
    }
    if (alias && (size_t)snprintf(text, sizeof text, "%s=%s", key + 7, value) >= sizeof text)
        problem(r->p, "%s: %s: the value has %zu bytes; the limit is 800", where, key,
                strlen(value));
    else if (opt_set(gateway_opts, r->c, alias ? "models" : key, alias ? text : value, where, &e) <
             0)
        problem(r->p, "%s", e.text);
}

/* ---- checks */

bool
gateway_is_local(const char *address)
{
    size_t n = strcspn(address, address[0] == '[' ? "]" : ":");
    char host[64];
    struct in_addr v4;
    struct in6_addr v6;

    if (!strncmp(address, "unix:", 5)) return true;
    if (address[0] == '[') address++, n--;
    if (n >= sizeof host) return false;
    memcpy(host, address, n);
    host[n] = 0;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
    return !strcmp(host, "localhost");
}

static void
check_listen(struct gateway_config *c, struct problems *p)
{
    char *rest = c->listen_text, *line;

    snprintf(c->listen_text, sizeof c->listen_text, "%s",
             *c->listen ? c->listen : "127.0.0.1:8000");
    c->n_addresses = 0;
    while ((line = strsep(&rest, "\n"))) {
        const char *colon = strrchr(line, ':');
        bool path = !strncmp(line, "unix:", 5);

        if (path ? line[5] != '/'
                 : !colon || !colon[1] || strspn(colon + 1, "0123456789") > 5 ||
                       colon[1 + strspn(colon + 1, "0123456789")] || atoi(colon + 1) > 65535)
            problem(p, "listen: \"%.100s\" is no address; it must be HOST:PORT or unix:/PATH",
                    line);
        else if (!gateway_is_local(line))
            problem(p,
                    "listen: other hosts can reach %.100s, which needs API keys, and this version "
                    "has none; listen on 127.0.0.1, [::1] or unix:PATH behind a proxy that checks "
                    "its clients",
                    line);
        if (c->n_addresses < HTTP_MAX_LISTEN)
            c->address[c->n_addresses++] = line;
        else
            problem(p, "listen: %.100s: more than %d addresses, which is the limit", line,
                    HTTP_MAX_LISTEN);
    }
}

static void
check_lagand(const struct gateway_config *c, struct problems *p)
{
    static struct curve_file keys;
    bool tcp = !strncmp(c->lagand, "tcp://", 6);
    struct err e;

    if (client_check_endpoint(c->lagand, &e) < 0) {
        problem(p, "lagand: %s", e.text);
    } else if (tcp != (*c->lagand_keys != 0)) {
        problem(p,
                tcp ? "lagand is %s, but lagand_keys is not set; laganctl keygen makes the keys"
                    : "lagand_keys is set, but lagand is %s; only tcp:// uses keys",
                c->lagand);
    } else if (tcp && curve_read(&keys, c->lagand_keys, &e) < 0) {
        p->n_denied += e.code == -EACCES;
        problem(p, "lagand_keys: %s", e.text);
    }
    explicit_bzero(&keys, sizeof keys);
}

/* Writes models as lines "ALIAS NAME" into aliases. */
static void
check_aliases(struct gateway_config *c, struct problems *p)
{
    char *alias[GATEWAY_MAX_ALIASES], *name[GATEWAY_MAX_ALIASES], *rest = c->aliases, *line;
    uint32_t n = 0;

    memcpy(c->aliases, c->models, sizeof c->aliases);
    while ((line = strsep(&rest, "\n"))) {
        char *equals = strchr(line, '=');

        if (!*line) continue;
        if (!equals || equals == line || !equals[1] || strpbrk(line, " \t\r") ||
            strchr(equals + 1, '=')) {
            problem(p, "models: \"%.100s\" must be ALIAS=NAME, without spaces", line);
            continue;
        }
        if (n == GATEWAY_MAX_ALIASES) {
            problem(p, "models: more than %d aliases, which is the limit", GATEWAY_MAX_ALIASES);
            break;
        }
        *equals = 0;
        alias[n] = line;
        name[n++] = equals + 1;
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++) {
            if (j < i && !strcmp(alias[i], alias[j]))
                problem(p, "models: the alias %.100s is given twice", alias[i]);
            if (!strcmp(name[i], alias[j]))
                problem(p,
                        "models: the alias %.100s names the alias %.100s; an alias names a model",
                        alias[i], alias[j]);
        }
    /* joins the pairs again; a pair has as many bytes as before */
    for (uint32_t i = 0; i < n; i++) alias[i][strlen(alias[i])] = ' ';
    for (char *s = c->aliases, *end = s + strlen(c->models); s < end; s++)
        if (!*s) *s = '\n';
}

static void
check_max_tokens(struct gateway_config *c, struct problems *p)
{
    const char *s = c->default_max_tokens;

    c->max_tokens = !strcmp(s, "auto") ? 0 : UINT64_MAX;
    if (!strcmp(s, "auto") || !strcmp(s, "model")) return;
    if (!*s || s[strspn(s, "0123456789")] || strlen(s) > 9 || !atoi(s))
        problem(p, "default_max_tokens: \"%s\" is not auto, model or a number from 1 to 999999999",
                s);
    c->max_tokens = (uint64_t)atoi(s);
}

static void
free_args(char ***args)
{
    free(*args);
}

/* Returns the arguments with "--KEY=VALUE" for each "--set KEY=VALUE", in one allocation; NULL: no
 * memory. */
static char **
expand_set(int *argc, char **argv)
{
    size_t bytes = 0;
    char **all, *text;
    int n = 0;

    for (int i = 0; i < *argc; i++) bytes += strlen(argv[i]) + 3;
    all = malloc(((size_t)*argc + 1) * sizeof *all + bytes);
    if (!all) return NULL;
    text = (char *)(all + *argc + 1);
    for (int i = 0; i < *argc; i++) {
        bool joined = !strncmp(argv[i], "--set=", 6);
        const char *pair = joined ? argv[i] + 6 : strcmp(argv[i], "--set") ? NULL : argv[i + 1];

        all[n++] = pair && strchr(pair, '=') ? text : argv[i];
        if (all[n - 1] == argv[i]) continue;
        text += sprintf(text, "--%s", pair) + 1;
        i += !joined;
    }
    all[n] = NULL;
    *argc = n;
    return all;
}

int
gateway_config_read(struct gateway_config *c, int argc, char **argv, struct problems *p,
                    bool *usage)
{
    struct reading reading = { c, p };
    char **args CLEAN(free_args) = expand_set(&argc, argv);
    char file[sizeof c->config];
    uint64_t given = 0;
    bool asked;
    int at = 1, r;
    struct err e;

    memset(c, 0, sizeof *c);
    memset(p, 0, sizeof *p);
    opt_defaults(gateway_opts, c);
    *usage = true;
    if (!args) {
        problem(p, "no memory for the command line");
        return -ENOMEM;
    }
    if (opt_argv(gateway_opts, c, &given, argc, args, &at, &e) < 0) {
        problem(p, "%s", e.text);
        return -EINVAL;
    }
    if (at < argc) {
        problem(p, "\"%s\" is not an option of lagan-gateway; options begin with --", args[at]);
        return -EINVAL;
    }
    *usage = false;
    if (c->help || c->version || c->manual) return 0;

    asked = *c->config;
    snprintf(file, sizeof file, "%s", asked ? c->config : gateway_default_file);
    opt_defaults(gateway_opts, c);
    r = yaml_read(file, NULL, take_key, &reading, p);
    if (r == -ENOENT && asked) problem(p, "--config %s: %s", file, strerror(ENOENT));
    /* A value of the command line replaces the list of the file. */
    for (const struct opt *o = gateway_opts; o->key; o++)
        if (o->flags & OPT_REPEAT && given >> (o - gateway_opts) & 1) *((char *)c + o->offset) = 0;
    at = 1;
    given = 0;
    check(opt_argv(gateway_opts, c, &given, argc, args, &at, &e) == 0);
    if (*c->tls_cert || *c->tls_key)
        problem(p,
                "tls_cert, tls_key: lagan-gateway does not serve TLS; put HAProxy or nginx before "
                "it, as docs/gateway.md shows");
    check_listen(c, p);
    check_lagand(c, p);
    check_aliases(c, p);
    check_max_tokens(c, p);
    return p->n ? -EINVAL : 0;
}

struct http_limits
gateway_limits(const struct gateway_config *c)
{
    return (struct http_limits){
        .connections = c->max_connections,
        .connections_per_address = c->max_connections_per_address,
        .header_bytes = (uint32_t)c->max_header,
        .headers = c->max_headers,
        .target_bytes = (uint32_t)c->max_url,
        .body_bytes = c->max_body,
        .header_timeout = c->header_timeout,
        .body_timeout = c->body_timeout,
        .idle_timeout = c->idle_timeout,
        .write_timeout = c->write_timeout,
        .body_rate = (uint32_t)c->body_rate,
    };
}
