/* options.h - lagand's settings: one table for the command line, the configuration file and --help.
 *
 * Later wins: defaults, the file, the command line. --model, --device and --set speak of the only
 * model; with --model the file's models are not served and the default file is not read.
 */
#ifndef DAEMON_CONFIG_OPTIONS_H
#define DAEMON_CONFIG_OPTIONS_H

#include "base/base.h"
#include "base/opt.h"
#include "daemon/config/problems.h"
#include "daemon/daemon.h"
#include "ipc/model_options.h"

enum { MAX_ROWS_OF_A_TABLE = 64 };

struct options {
    bool foreground, check, help, version, manual, remove_runtime_dir;
    char tcp[256], keys[1024];
    char runtime_dir[256], config[1024], model[1024], device[64], set[4096], worker[1024];
    uint32_t max_inflight, max_user_inflight, max_queued_reqs;
    uint64_t max_queued_tokens, max_user_tokens, memory, tensor_bytes;
    uint32_t max_connections;
    nsec ack_timeout, idle_timeout, stall_timeout, shutdown_timeout, start_timeout;
    uint32_t log_level; /* index into "err|warn|info|debug" */
};

extern const struct opt daemon_opts[];
extern const char config_default_file[]; /* may be absent */

/* Where a value came from: a line of the file, the command line, or the default. */
enum { FROM_DEFAULT = 0, FROM_COMMAND_LINE = -1 };

struct config {
    struct options o;
    int from[MAX_ROWS_OF_A_TABLE]; /* by row of daemon_opts: a line, or FROM_ */
    bool has_file;
    uint32_t n_models;
    struct config_model {
        struct model_options keys;
        int from[MAX_ROWS_OF_A_TABLE]; /* by row of model_opts */
    } model[MAX_MODELS];
};

/* 0; -EINVAL with everything that is wrong in *p. A wrong command line is usage: *usage. */
int config_read(struct config *c, int argc, char **argv, struct problems *p, bool *usage) MUST_USE;
/* "default", "lagan.yaml:12", "command line" into buf. */
const char *config_from(const struct config *c, int from, char *buf, size_t n);
uint32_t config_n_workers(const struct config *c);

#endif
