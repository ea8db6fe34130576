/* main.c - the program lagan-worker: reads options, takes inherited fds, runs the engine loop.
 *
 * Only lagand starts it. Exit codes: 0 drained, or lagand has exited; 2 invalid options; 70
 * internal fault or corrupt ring; 71 too little free memory to start; 74 device failure; 77
 * --inspect: no permission; 78 options, model files or memory limits that a restart cannot repair.
 * The last line on standard error (a pipe to lagand) gives the reason. */
#include "base/cgroup.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/opt.h"
#include "ipc/channel.h"
#include "ipc/exit_code.h"
#include "ipc/heritage.h"
#include "ipc/model_options.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/handover/adopt_log.h"
#include "worker/handover/host_tier.h"
#include "worker/io/intake.h"
#include "worker/io/kv_publish.h"
#include "worker/io/outbox.h"
#include "worker/io/request.h"
#include "worker/io/text_thread.h"
#include "worker/load/load.h"
#include "worker/loop.h"
#include "worker/ops/cache_flush.h"
#include "worker/ops/cache_pin.h"
#include "worker/ops/control.h"
#include "worker/ops/partition_ctl.h"
#include "worker/ops/tuning.h"
#include "worker/process/health.h"
#include "worker/sched/scheduler.h"
#include "worker/text/chat.h"
#include "worker/tp/plan_ring.h"
#include "worker/worker.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct own_keys {
    char worker[32], log_level[8];
    uint32_t rank;
    uint64_t kv_max, held;
    char cgroup_root[256];
    bool as_standby, inspect, help;
};

/* The parts that struct worker points to: the type and the member's name of each. */
/* clang-format off */
#define PARTS(X) \
    X(model_options, keys) X(heritage, heritage) X(channel, channel) X(chat, chat) \
    X(kv_config, kv_config) X(exec_config, steps) X(scheduler_limits, limits) X(loader, loader) \
    X(plan_ring, plan) X(adopt, adopt) X(host_tier, host_tier) X(partition_ctl, partition_ctl) \
    X(tuning, tuning) X(cache_flush, cache_flush) X(cache_pin, cache_pin) X(requests, requests) \
    X(outbox, outbox) X(kv_publish, kv_publish) X(stats, stats) X(cgroup, cgroup)
/* clang-format on */

static struct {
#define X(type, name) struct type name;
    PARTS(X)
#undef X
} parts;

static struct worker worker = {
#define X(type, name) .name = &parts.name,
    PARTS(X)
#undef X
};

static const struct opt own_opts[] = {
    { "worker", OPT_STR, OPT_AT(own_keys, worker), "w0", NULL, 0, 0, 0, "NAME",
      "name of this worker in log lines" },
    { "log_level", OPT_STR, OPT_AT(own_keys, log_level), "info", NULL, 0, 0, 0, "LEVEL",
      "lowest severity of the messages that are logged: err, warn, info or debug" },
    { "rank", OPT_U32, OPT_AT(own_keys, rank), "0", NULL, 0, MAX_RANKS - 1, 0, "N",
      "number of this process among the tensor_parallel processes of the worker, from 0" },
    { "as_standby", OPT_BOOL, OPT_AT(own_keys, as_standby), "false", NULL, 0, 0, 0, NULL,
      "start as the second process of a worker (see --standby): prepare, then wait until the "
      "running process of the worker has exited" },
    { "kv_max", OPT_BYTES, OPT_AT(own_keys, kv_max), "0", NULL, 0, 0, 0, "SIZE",
      "most KV memory, whatever kv.memory is: lagand sets it after the kernel has killed earlier "
      "processes of the worker because memory ran out; 0: no limit" },
    { "cgroup_root", OPT_STR, OPT_AT(own_keys, cgroup_root), CGROUP_ROOT, NULL, 0, 0, 0, "DIR",
      "directory of the mounted cgroup file systems, from which memory limits are read" },
    { "inspect", OPT_BOOL, OPT_AT(own_keys, inspect), "false", NULL, 0, 0, 0, NULL,
      "print as JSON what lagan would serve from --path and exit; reads the headers of the "
      "weight files only" },
    { "held", OPT_BYTES, OPT_AT(own_keys, held), "0", NULL, 0, 0, 0, "BYTES",
      "memory of the device that --inspect counts as free, because the workers that use it now "
      "will free it or pass it on" },
    { "help", OPT_BOOL, OPT_AT(own_keys, help), "false", NULL, 0, 0, 0, NULL,
      "print this help and exit" },
    { 0 },
};

static void
print_help(void)
{
    puts("lagan-worker - inference engine of one device. lagand starts it and passes memory and "
         "rings.\n"
         "\n"
         "Do not start it by hand: see lagand --help, laganctl --spawn MODEL_DIR "
         "generate,\n"
         "or laganctl model verify, which runs lagan-worker --inspect.\n"
         "\n"
         "Options of the program, with the default in []:");
    opt_help(own_opts, OPT_TYPED, stdout);
    puts("\nOptions of the model, as in the configuration file of lagand:");
    opt_help(model_opts, OPT_TYPED, stdout);
}

/* Parses options of program and model, in any order; checks that no key is in both tables. */
static int
read_argv(struct model_options *keys, struct own_keys *own, int argc, char **argv, struct err *e)
{
    uint64_t given[2] = { 0 };

    for (const struct opt *o = own_opts; o->key; o++)
        check(!opt_find(model_opts, o->key, strlen(o->key)));
    opt_defaults(own_opts, own);
    opt_defaults(model_opts, keys);
    for (int i = 1; i < argc; i++) {
        const char *key = argv[i] + 2, *eq = strchr(argv[i], '=');
        size_t n = eq ? (size_t)(eq - key) : strlen(argv[i]) - 2;
        char name[64];

        if (strncmp(argv[i], "--", 2) || n >= sizeof name)
            return err_set(e, -EINVAL, "\"%s\" is not an option: options have the form --key=value",
                           argv[i]);
        memcpy(name, key, n);
        name[n] = 0;
        if (opt_find(own_opts, name, n))
            TRY(opt_give(own_opts, own, &given[0], name, eq ? eq + 1 : "true", e));
        else
            TRY(opt_give(model_opts, keys, &given[1], name, eq ? eq + 1 : "true", e));
    }
    return 0;
}

static enum log_level
parse_log_level(const char *word)
{
    if (!strcmp(word, "err")) return LOG_LEVEL_ERR;
    if (!strcmp(word, "warn")) return LOG_LEVEL_WARN;
    return strcmp(word, "debug") ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG;
}

static int
attach_channels(struct worker *w, struct err *e)
{
    int d, rw, doorbell;

    TRY(heritage_take(w->heritage, e));
    d = heritage_fd(w->heritage, "d");
    rw = heritage_fd(w->heritage, "w");
    doorbell = heritage_fd(w->heritage, "doorbell");
    w->fd_channel = heritage_fd(w->heritage, "fd_channel");
    if (d < 0 || rw < 0 || doorbell < 0 || w->fd_channel < 0)
        return err_set(e, -EBADMSG,
                       "LAGAN_FDNAMES lacks one of the descriptors d and w (shared memory of "
                       "lagand and of the worker), doorbell and fd_channel (internal error)");
    if (w->rank) return channel_attach_rank(w->channel, d, rw, doorbell, w->heritage->epoch, e);
    TRY(channel_attach(w->channel, d, rw, doorbell, w->heritage->epoch, e));
    return plan_ring_open(w, e);
}

/* Returns the exit code for error r. loaded: the model was loaded before the error. */
static int
exit_code(int r, bool loaded)
{
    if (r == -EPIPE) return 0;
    if (r == -EIO) return EXIT_DEVICE;
    if (loaded) return EXIT_INTERNAL;
    if (r == -EACCES || r == -EPERM) return EXIT_NO_PERMISSION;
    return r == -ENOMEM ? EXIT_NO_MEMORY : EXIT_CONFIG;
}

/* Frees all memory of a drained worker, so that sanitizers can report leaks. */
static void
close_all(struct worker *w)
{
    control_stop(w->control);
    tuning_close(w->tuning);
    text_thread_stop(w->text);
    host_tier_close(w);
    load_free(w);
    requests_close(w->requests);
    outbox_close(w->outbox);
    intake_close(w);
    free(w->text_buf);
    adopt_log_close(w);
    plan_ring_close(w->plan);
    channel_close(w->channel);
}

static int
run_inspect(struct worker *w, const struct own_keys *own)
{
    struct err e = { 0 };
    int r;

    log_open("lagan-worker", parse_log_level(own->log_level));
    log_to_parent();
    r = inspect_run(w, own->held, &e);
    if (r < 0) log_err("%s", e.text);
    return r == -ENOMEM ? EXIT_CONFIG : r < 0 ? exit_code(r, /* loaded= */ false) : 0;
}

int
main(int argc, char **argv)
{
    struct worker *w = &worker;
    struct own_keys own;
    struct err e = { 0 };
    int r;

    FP(worker_main);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    log_open("worker", LOG_LEVEL_INFO);
    log_to_parent();
    r = read_argv(&parts.keys, &own, argc, argv, &e);
    if (r < 0) {
        log_err("%s", e.text);
        return EXIT_USAGE;
    }
    if (own.help) {
        print_help();
        return 0;
    }
    snprintf(w->name, sizeof w->name, "worker %.20s", own.worker);
    log_open(w->name, parse_log_level(own.log_level));
    log_to_parent();
    cgroup_find(&parts.cgroup, own.cgroup_root);
    w->max_kv = own.kv_max;
    if (own.inspect) return run_inspect(w, &own);
    w->loader->standby = own.as_standby;
    w->rank = own.rank;
    r = attach_channels(w, &e);
    if (r == -ENOENT) {
        log_err("lagan-worker must be started by lagand; see lagan-worker --help");
        return EXIT_USAGE;
    }
    if (r < 0) {
        log_err("%s", e.text);
        return EXIT_INTERNAL;
    }
    health_arm(&w->channel->w);
    FP(worker_attached);
    r = w->rank ? rank_loop_run(w, &e) : loop_run(w, &e);
    health_phase(w, PHASE_EXIT, 0);
    if (r < 0 && r != -EPIPE) log_err("%s", e.text);
    if (r < 0) {
        /* Tells lagand to start the replacement now, because the driver delays the process exit. */
        shutdown(w->fd_channel, SHUT_RDWR);
        _exit(exit_code(r, w->loaded)); /* not exit(): other threads still run */
    }
    FP(drain_done);
    close_all(w);
    return 0;
}
