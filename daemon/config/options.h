/* options.h - reads lagand's settings from the command line and the configuration file; one table
 * of options serves both, and --help.
 *
 * A value on the command line overrides one in the file, which overrides the default. --device and
 * --set need exactly one configured model. --model makes the only one: lagand then ignores the
 * models of the file and reads no default file. */
#pragma once
#include "base/base.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/yaml.h"
#include "daemon/daemon.h"
#include "ipc/model_options.h"

enum { MAX_TABLE_OPTIONS = 64 };

struct options { /* values of daemon_opts */
    bool foreground, check, help, version, manual, remove_runtime_dir;
    char tcp[256], keys[1024];
    char held_tcp[256];
    uint64_t held_memory;
    char runtime_dir[256], config[1024], model[1024], device[64], set[4096], worker[1024];
    char cgroup_root[256];
    uint32_t max_inflight, max_user_inflight, max_queued_reqs;
    uint64_t max_queued_tokens, max_user_tokens, memory, tensor_bytes;
    uint32_t max_connections;
    nsec ack_timeout, idle_timeout, stall_timeout, shutdown_timeout, start_timeout;
    uint32_t log_level; /* index into "err|warn|info|debug" */
};

extern const struct opt daemon_opts[];
extern const char config_default_file[]; /* path of a file that may be absent */

/* Origin of a value: the number of a line of the configuration file, or one of these. */
enum { FROM_DEFAULT = 0, FROM_COMMAND_LINE = -1 };

struct config {
    struct options o;
    int from[MAX_TABLE_OPTIONS]; /* origin of each value, by index in daemon_opts */
    bool has_file;               /* a configuration file was read; o.config is its path */
    uint32_t n_models;
    struct config_model {
        struct model_options keys;
        int from[MAX_TABLE_OPTIONS]; /* origin of each value, by index in model_opts */
        bool removed; /* by a reload (ops/reload.h): not served, the entry stays for its requests */
    } model[MAX_MODELS];
};

/* Reads command line and file. -EINVAL: *p has all errors; *usage is true for an invalid option. */
int config_read(struct config *c, int argc, char **argv, struct problems *p, bool *usage) MUST_USE;
/* Returns true if an option has a value that `config show` prints: it is not hidden, and no action
 * such as --version. */
bool config_has_value(const struct opt *o);
/* Formats an origin into buf and returns buf: "default", "lagan.yaml:12", "command line". */
const char *config_from(const struct config *c, int from, char *buf, size_t n);
/* Returns the number of served models, without removed ones; *only (NULL: nowhere) gets the index
 * of one of them. */
uint32_t config_n_served(const struct config *c, uint32_t *only);
uint32_t config_n_workers(const struct config *c);
