/* options.c - see options.h. */
#include "daemon/config/options.h"

#include "base/cgroup.h"
#include "wire/curve.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"

const char config_default_file[] = SYSCONFDIR "/lagan/lagan.yaml";

#define AT(field) OPT_AT(options, field)

/* clang-format off */
const struct opt daemon_opts[] = {
    { "model", OPT_STR, AT(model), "", NULL, 0, 0, 0, "DIR",
      "serve only the model in this directory, as downloaded from Hugging Face; the models of "
      "the configuration file are ignored" },
    { "device", OPT_STR, AT(device), "", NULL, 0, 0, 0, "DEVICE",
      "sets device of the only model (see device below): auto, cpu, cuda or cuda:N[,N...]" },
    { "set", OPT_STR, AT(set), "", NULL, 0, 0, OPT_REPEAT, "KEY=VALUE",
      "sets any setting of the only model (see below), for example kv.memory=8GiB; may be "
      "repeated; the last value of a KEY is used" },
    { "config", OPT_STR, AT(config), "", NULL, 0, 0, 0, "FILE",
      "configuration file (YAML); default: " SYSCONFDIR "/lagan/lagan.yaml, if it exists and --model is not given" },
    { "runtime_dir", OPT_STR, AT(runtime_dir), "", NULL, 0, 0, 0, "DIR",
      "directory in which lagand creates its sockets; default: the environment variable "
      "RUNTIME_DIRECTORY if it is set, else /run/lagan" },
    { "remove_runtime_dir", OPT_BOOL, AT(remove_runtime_dir), "false", NULL, 0, 0, 0, NULL,
      "remove the runtime directory when lagand exits" },
    { "foreground", OPT_BOOL, AT(foreground), "false", NULL, 0, 0, 0, NULL,
      "no effect: lagand always runs in the foreground" },
    { "check", OPT_BOOL, AT(check), "false", NULL, 0, 0, 0, NULL,
      "check what a start needs: the configuration, every model (files, device, memory), keys and "
      "port; print every error and exit; root checks as the user of lagand.service" },
    { "api.max_inflight", OPT_U32, AT(max_inflight), "1024", NULL, 1, 65536, 0, "N",
      "maximum number of open requests of one client; lagand refuses further requests" },
    { "api.max_connections", OPT_U32, AT(max_connections), "1024", NULL, 1, MAX_CLIENTS, 0, "N",
      "maximum number of open connections; for a further connection lagand closes the connection "
      "without open requests that has been idle longest" },
    { "api.max_user_inflight", OPT_U32, AT(max_user_inflight), "4096", NULL, 1, 65536, 0, "N",
      "maximum number of open requests of one user, all clients of the user together; a user is "
      "a uid of this host, or a key over tcp" },
    { "api.max_user_tokens", OPT_U64, AT(max_user_tokens), "0", NULL, 0, 0, 0, "N",
      "maximum number of tokens of all open requests of one user: prompt tokens and tokens still "
      "to generate; 0: no limit" },
    { "api.memory", OPT_BYTES, AT(memory), "4GiB", NULL, 1 << 20, 0, 0, "BYTES",
      "maximum memory of lagand for open requests and their outputs; lagand refuses requests "
      "that exceed it" },
    { "limits.tensor_bytes", OPT_BYTES, AT(tensor_bytes), "64MiB", NULL, 0, 1LL << 36, 0, "BYTES",
      "maximum size of the tensors (encoder states, logits) that one request may ask for" },
    { "api.tcp", OPT_STR, AT(tcp), "", NULL, 0, 0, 0, "ENDPOINT",
      "additional address on which lagand accepts clients, also of other hosts, for example "
      "tcp://*:7770; needs api.keys; empty: none" },
    { "api.keys", OPT_STR, AT(keys), "", NULL, 0, 0, 0, "FILE",
      "file with the secret key of lagand and the public keys of the clients that may connect "
      "over tcp; laganctl keygen --help describes it; empty: none" },
    { "api.ack_timeout", OPT_NSEC, AT(ack_timeout), "30s", NULL, 1e6, 0, 0, "TIME",
      "if a client acknowledges no received tokens (message ACK) for this long, its requests end "
      "with the error slow_reader" },
    { "api.idle_timeout", OPT_NSEC, AT(idle_timeout), "10s", NULL, 1e6, 0, 0, "TIME",
      "lagand closes a connection with open requests if no message arrives for this long; a "
      "connection without open requests, after 6 times this time" },
    { "scheduler.max_num_queued_reqs", OPT_U32, AT(max_queued_reqs), "1024", NULL, 1, 65536, 0, "N",
      "maximum number of queued requests, that is accepted ones that no worker has yet; lagand "
      "refuses further requests" },
    { "scheduler.max_num_queued_tokens", OPT_U64, AT(max_queued_tokens), "1000000", NULL, 1, 0, 0,
      "N", "maximum number of prompt tokens of all queued requests together; lagand refuses "
      "further requests" },
    { "supervisor.stall_timeout", OPT_NSEC, AT(stall_timeout), "3s", NULL, 1e8, 0, 0, "TIME",
      "lagand kills and replaces a worker whose last heartbeat is older than this" },
    { "supervisor.start_timeout", OPT_NSEC, AT(start_timeout), "30min", NULL, 1e8, 0, 0, "TIME",
      "lagand kills a worker that is not ready to serve within this time after its start" },
    { "supervisor.shutdown_timeout", OPT_NSEC, AT(shutdown_timeout), "30s", NULL, 1e6, 0, 0, "TIME",
      "time that open requests have to finish after a signal that stops lagand; then lagand exits" },
    { "cgroup_root", OPT_STR, AT(cgroup_root), CGROUP_ROOT, NULL, 0, 0, 0, "DIR",
      "directory of the mounted cgroup file systems, from which lagand and its workers read limits "
      "of memory and the number of OOM kills" },
    { "log.level", OPT_ENUM, AT(log_level), "info", "err|warn|info|debug", 0, 0, 0, NULL,
      "lowest severity of the messages that lagand logs" },
    { "held_memory", OPT_BYTES, AT(held_memory), "0", NULL, 0, 0, OPT_HIDDEN, "BYTES",
      "for --check: bytes of the arenas of the lagand that asks for the check; 0: no lagand asks" },
    { "held_tcp", OPT_STR, AT(held_tcp), "", NULL, 0, 0, OPT_HIDDEN, "ENDPOINT",
      "for --check: api.tcp of the lagand that asks for the check" },
    { "worker", OPT_STR, AT(worker), "", NULL, 0, 0, OPT_HIDDEN, "PATH",
      "path of the program lagan-worker" },
    { "help", OPT_BOOL, AT(help), "false", NULL, 0, 0, 0, NULL, "print this help and exit" },
    { "version", OPT_BOOL, AT(version), "false", NULL, 0, 0, 0, NULL, "print the version and exit" },
    { "manual", OPT_BOOL, AT(manual), "false", NULL, 0, 0, OPT_HIDDEN, NULL, "print the manual page lagand(8)" },
    { NULL },
};
/* clang-format on */

struct reading {
    struct config *c;
    struct problems *p;
};

static uint32_t
option_index(const struct opt *table, const char *key)
{
    const struct opt *o = opt_find(table, key, strlen(key));

    check(o && o - table < MAX_TABLE_OPTIONS);
    return (uint32_t)(o - table);
}

/* Returns true if the option may be given on the command line only. */
static bool
only_on_command_line(const char *key)
{
    static const char *const keys[] = {
        "model",   "device",  "set",    "config", "foreground",         "check",
        "help",    "version", "manual", "worker", "remove_runtime_dir", "held_memory",
        "held_tcp"
    };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

bool
config_has_value(const struct opt *o)
{
    static const char *const actions[] = { "check", "help", "version" };

    for (size_t i = 0; i < ARRAY_LEN(actions); i++)
        if (strcmp(o->key, actions[i]) == 0) return false;
    return !(o->flags & OPT_HIDDEN);
}

/* Sets one option of a table and its origin; an invalid value is added to *p. */
static void
set_key(struct problems *p, const struct opt *table, void *values, int *from, const char *key,
        const char *value, const char *where, int origin)
{
    size_t n = strlen(key);
    bool known = false;
    struct err e;

    for (const struct opt *o = table; !value && o->key; o++)
        known |= !strncmp(o->key, key, n) && (!o->key[n] || o->key[n] == '.');
    if (known)
        problem(p, "%s: %s must be one value, but is a list", where, key);
    else if (opt_set(table, values, key, value ? value : "", where, &e) < 0)
        problem(p, "%s", e.text);
    else
        from[option_index(table, key)] = origin;
}

static void
take_key(void *arg, int model, const char *key, const char *value, const char *where, unsigned line)
{
    struct reading *r = arg;
    struct config *c = r->c;

    if (model >= MAX_MODELS) {
        problem(r->p, "%s: more than %d models; %d is the limit", where, MAX_MODELS, MAX_MODELS);
    } else if (model == YAML_TOP && only_on_command_line(key)) {
        problem(r->p, "%s: %s can be given on the command line only, not in the file", where, key);
    } else if (model == YAML_TOP) {
        set_key(r->p, daemon_opts, &c->o, c->from, key, value, where, (int)line);
    } else {
        struct config_model *m = &c->model[model];

        for (; c->n_models <= (uint32_t)model; c->n_models++)
            opt_defaults(model_opts, &c->model[c->n_models].keys);
        set_key(r->p, model_opts, &m->keys, m->from, key, value, where, (int)line);
    }
}

static void
set_model_key(struct config *c, const char *key, const char *value, const char *where,
              struct problems *p)
{
    struct config_model *m = &c->model[0];

    set_key(p, model_opts, &m->keys, m->from, key, value, where, FROM_COMMAND_LINE);
}

/* Applies --model, --device and --set to the only model. */
static void
command_line_model(struct config *c, struct problems *p)
{
    char *set = c->o.set, *line;

    if (*c->o.model) {
        c->n_models = 1;
        memset(&c->model[0], 0, sizeof c->model[0]);
        opt_defaults(model_opts, &c->model[0].keys);
        set_model_key(c, "path", c->o.model, "--model", p);
    }
    if (!c->n_models && p->n) return; /* the errors of the file say why there is no model */
    if (c->n_models != 1 && (*c->o.device || *set)) {
        problem(p,
                "%s needs exactly one model, but %s; set the key in `models:` of the file instead",
                *set ? "--set" : "--device", c->n_models ? "there are several" : "there is none");
        return;
    }
    if (*c->o.device) set_model_key(c, "device", c->o.device, "--device", p);
    while ((line = strsep(&set, "\n"))) {
        char *value = strchr(line, '=');

        if (!*line) continue;
        if (!value) {
            problem(p, "--set %s: there is no '='; KEY=VALUE is expected", line);
            continue;
        }
        *value++ = 0;
        set_model_key(c, line, value, "--set", p);
        value[-1] = '='; /* restores c->o.set, which `laganctl config show` prints */
        if (set) set[-1] = '\n';
    }
}

/* Returns what to do about a model that the unit hides from lagand; "" for other paths. */
static const char *
hidden_home(const char *path)
{
    bool home = !strncmp(path, "/home/", 6) || !strncmp(path, "/root/", 6);

    return home && getenv("INVOCATION_ID")
               ? "; lagand.service hides /home and /root (ProtectHome=yes); move the model, for "
                 "example to /var/lib/lagan/models"
               : "";
}

/* Checks path, name and options of each model; a model without a name is named after its
 * directory. */
static void
name_models(struct config *c, struct problems *p)
{
    for (uint32_t i = 0; i < c->n_models; i++) {
        struct model_options *k = &c->model[i].keys;
        size_t n = strlen(k->path);
        const char *base;
        struct stat st;
        struct err e;

        if (!n) {
            problem(p, "models: entry %u has no path", i + 1);
            continue;
        }
        while (n > 1 && k->path[n - 1] == '/') k->path[--n] = 0;
        base = strrchr(k->path, '/');
        if (!*k->name) snprintf(k->name, sizeof k->name, "%.63s", base ? base + 1 : k->path);
        if (stat(k->path, &st) < 0) {
            p->n_denied += errno == EACCES;
            problem(p, "model %s: %s: %s%s", k->name, k->path, strerror(errno),
                    hidden_home(k->path));
        } else if (!S_ISDIR(st.st_mode)) {
            problem(p, "model %s: %s is not a directory%s", k->name, k->path,
                    n > 5 && !strcmp(k->path + n - 5, ".gguf")
                        ? "; lagan does not read GGUF files, but directories with config.json and "
                          "*.safetensors, as downloaded from Hugging Face"
                        : "");
        }
        if (model_options_check(k, &e) < 0) problem(p, "model %s: %s", k->name, e.text);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(c->model[j].keys.name, k->name) == 0)
                problem(p, "models: two models have the name %s; set the key `name` of one of them",
                        k->name);
    }
}

static void
runtime_dir(struct config *c, struct problems *p)
{
    const char *env = getenv("RUNTIME_DIRECTORY"), *dir = c->o.runtime_dir;
    size_t n;

    if (!*dir) dir = env && *env ? env : "/run/lagan";
    n = strcspn(dir, *c->o.runtime_dir ? "" : ":"); /* the first path of systemd's list */
    if (n >= sizeof c->o.runtime_dir) {
        problem(p, "runtime_dir: the path has %zu bytes; at most %zu are allowed", n,
                sizeof c->o.runtime_dir - 1);
        return;
    }
    if (dir != c->o.runtime_dir) memcpy(c->o.runtime_dir, dir, n);
    while (n > 1 && c->o.runtime_dir[n - 1] == '/') n--;
    c->o.runtime_dir[n] = 0;
}

/* Checks api.tcp and api.keys: a network listener needs keys. */
static void
network(struct config *c, struct problems *p)
{
    static struct curve_file keys;
    struct err e;

    if (!*c->o.tcp) return;
    if (strncmp(c->o.tcp, "tcp://", 6)) {
        problem(p, "api.tcp is %s; it must begin with tcp://", c->o.tcp);
    } else if (!*c->o.keys) {
        problem(p, "api.tcp is set but api.keys is not: lagand serves tcp clients only with keys; "
                   "laganctl keygen --help tells how to make them");
    } else if (curve_read(&keys, c->o.keys, &e) < 0) {
        bool denied = access(c->o.keys, R_OK) < 0 && errno == EACCES;
        const struct passwd *user = denied ? getpwuid(geteuid()) : NULL;

        p->n_denied += e.code == -EACCES;
        if (user)
            problem(p, "api.keys: %s; lagand runs as user %s: chown %s %s", e.text, user->pw_name,
                    user->pw_name, c->o.keys);
        else
            problem(p, "api.keys: %s", e.text);
    } else if (!*keys.secret) {
        problem(p, "api.keys: %s has no line with lagand's secret; laganctl keygen makes one",
                c->o.keys);
    }
    explicit_bzero(&keys, sizeof keys);
}

int
config_read(struct config *c, int argc, char **argv, struct problems *p, bool *usage)
{
    struct reading reading = { c, p };
    struct err e;
    char file[1024];
    uint64_t given = 0;
    int at = 1, r;

    memset(c, 0, sizeof *c);
    memset(p, 0, sizeof *p);
    opt_defaults(daemon_opts, &c->o);
    *usage = true;
    if (opt_argv(daemon_opts, &c->o, &given, argc, argv, &at, &e) < 0) {
        problem(p, "%s", e.text);
        return -EINVAL;
    }
    if (at < argc) {
        problem(p, "\"%s\" is not an option of lagand; options begin with --", argv[at]);
        return -EINVAL;
    }
    *usage = false;
    if (c->o.help || c->o.version || c->o.manual) return 0;

    /* The command line overrides the file. */
    snprintf(file, sizeof file, "%s", *c->o.config ? c->o.config : config_default_file);
    if (*c->o.config || !*c->o.model) {
        bool asked = *c->o.config;

        opt_defaults(daemon_opts, &c->o);
        r = yaml_read(file, "models", take_key, &reading, p);
        c->has_file = r == 0;
        if (r == -ENOENT && asked) problem(p, "--config %s: %s", file, strerror(ENOENT));
        at = 1;
        given = 0;
        check(opt_argv(daemon_opts, &c->o, &given, argc, argv, &at, &e) == 0);
        if (c->has_file) snprintf(c->o.config, sizeof c->o.config, "%s", file);
    }
    for (uint32_t i = 0; i < MAX_TABLE_OPTIONS; i++)
        if (given >> i & 1) c->from[i] = FROM_COMMAND_LINE;
    command_line_model(c, p);
    name_models(c, p);
    runtime_dir(c, p);
    network(c, p);
    if (!c->n_models && !p->n)
        problem(p,
                "there is no model to serve: give --model DIR, or list models in `models:` of %s",
                file);
    if (config_n_workers(c) > MAX_WORKERS) {
        problem(p, "%u workers are configured, at most %d can run", config_n_workers(c),
                MAX_WORKERS);
    }
    return p->n ? -EINVAL : 0;
}

const char *
config_from(const struct config *c, int from, char *buf, size_t n)
{
    if (from == FROM_DEFAULT)
        snprintf(buf, n, "default");
    else if (from == FROM_COMMAND_LINE)
        snprintf(buf, n, "command line");
    else
        snprintf(buf, n, "%s:%d", c->o.config, from);
    return buf;
}

uint32_t
config_n_served(const struct config *c, uint32_t *only)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_models; i++) {
        if (c->model[i].removed) continue;
        if (only) *only = i;
        n++;
    }
    return n;
}

uint32_t
config_n_workers(const struct config *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_models; i++) n += c->model[i].keys.workers;
    return n;
}
