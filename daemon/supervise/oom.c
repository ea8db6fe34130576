/* oom.c - see oom.h. */
#include "daemon/supervise/oom.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/persist/fdstore.h"
#include "daemon/supervise/process.h"
#include "daemon/supervise/worker_struct.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct kv_limit { /* content of the descriptor: an ABI between versions of lagand */
    uint64_t max_kv;
    char model[64]; /* name of the model that the worker served */
};
_Static_assert(sizeof(struct kv_limit) == 72, "kv_limit");
_Static_assert(sizeof(((struct model_options *)0)->name) == sizeof((struct kv_limit *)0)->model,
               "kv_limit.model");

struct oom_watch *
oom_watch_new(const char *root)
{
    struct oom_watch *o = calloc(1, sizeof *o);

    if (!o) return NULL;
    cgroup_find(&o->cgroup, root);
    o->n_kills = cgroup_oom_kills(&o->cgroup);
    return o;
}

bool
oom_killed(struct oom_watch *o, int code, int status)
{
    if (code == CLD_EXITED || status != SIGKILL) return false;
    if (cgroup_oom_kills(&o->cgroup) <= o->n_kills) return false;
    o->n_kills++;
    return true;
}

static double
mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* Formats what the process had or wanted: of a loading process its progress, else its KV memory. */
static void
describe_use(const struct worker *w, uint64_t kv_bytes, char *buf, size_t n)
{
    const struct model_options *k = &w->d->config->model[w->info.model].keys;
    char kv[32] = "auto";

    if (k->kv_memory) snprintf(kv, sizeof kv, "%.1f MiB", mib(k->kv_memory));
    if (w->super.death.early && w->info.load_total)
        snprintf(buf, n, "loading %.1f of %.1f MiB of weights, kv.memory %s",
                 mib(w->info.load_done), mib(w->info.load_total), kv);
    else
        snprintf(buf, n, "KV memory %.1f MiB", mib(kv_bytes));
}

void
oom_limit_name(uint32_t index, char *name, size_t n)
{
    snprintf(name, n, "w%u.kv_limit", index);
}

int
oom_limit_save(const struct worker *w, char *name, size_t n)
{
    struct kv_limit k = { .max_kv = w->max_kv };
    int fd = w->max_kv ? memfd_create("lagan-kv-limit", MFD_CLOEXEC) : -1;

    oom_limit_name(w->info.index, name, n);
    memcpy(k.model, w->d->config->model[w->info.model].keys.name, sizeof k.model);
    if (fd < 0 || pwrite(fd, &k, sizeof k, 0) == sizeof k) return fd;
    close(fd);
    return -1;
}

/* Puts the limit of w into systemd's fd store, for a lagand after a crash of this one. */
static void
store_limit(const struct worker *w)
{
    char name[FDSTORE_NAME];
    int fd = oom_limit_save(w, name, sizeof name);

    if (fd < 0) return;
    fdstore_put(name, fd);
    close(fd);
}

bool
oom_worker_died(struct worker *w, uint64_t kv_bytes)
{
    struct memory_free m = { .limiter = "the host" };
    char use[100], lowered[48] = "", limit[48] = "";
    bool ours;
    struct err e;

    if (cgroup_memory(&w->d->oom->cgroup, &m, &e) == 0)
        snprintf(limit, sizeof limit, " has %.1f MiB", mib(m.limit));
    ours = strncmp(m.limiter, "cgroup", 6) == 0 && kv_bytes && !arenas_bytes(&w->arenas, "kv");
    if (ours) w->max_kv = (w->max_kv ? MIN(kv_bytes, w->max_kv) : kv_bytes) / 2;
    if (w->max_kv)
        snprintf(lowered, sizeof lowered, ", now at most %.1f MiB of KV", mib(w->max_kv));
    describe_use(w, kv_bytes, use, sizeof use);
    snprintf(w->info.low_memory, sizeof w->info.low_memory,
             "out of memory: %.72s%s; the kernel killed pid %d (%s)%s; raise the limit or lower "
             "kv.memory, then `laganctl restart %s`",
             m.limiter, limit, (int)w->info.pid, use, lowered, w->info.name);
    snprintf(w->info.why, sizeof w->info.why, "%s", w->info.low_memory);
    process_log(w, LOG_LEVEL_ERR, "%s", w->info.low_memory);
    if (ours) store_limit(w);
    return ours;
}

void
oom_worker_recovered(struct worker *w)
{
    char name[FDSTORE_NAME];

    if (w->max_kv) {
        oom_limit_name(w->info.index, name, sizeof name);
        fdstore_drop(name);
    }
    w->max_kv = 0;
    w->info.low_memory[0] = 0;
}

void
oom_limit_restore(struct worker *w, int fd)
{
    const char *model = w->d->config->model[w->info.model].keys.name;
    char name[FDSTORE_NAME];
    struct kv_limit k;
    bool valid = pread(fd, &k, sizeof k, 0) == sizeof k && k.max_kv &&
                 !strncmp(k.model, model, sizeof k.model);

    close(fd);
    if (!valid) {
        oom_limit_name(w->info.index, name, sizeof name);
        fdstore_drop(name);
        return;
    }
    w->max_kv = k.max_kv;
    snprintf(w->info.low_memory, sizeof w->info.low_memory,
             "out of memory: the kernel killed processes of %s before lagand restarted; now at "
             "most %.1f MiB of KV; raise the limit or lower kv.memory, then `laganctl restart %s`",
             w->info.name, mib(w->max_kv), w->info.name);
    process_log(w, LOG_LEVEL_WARN, "%s", w->info.low_memory);
}
