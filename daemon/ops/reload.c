/* reload.c - see reload.h. */
#include "daemon/ops/reload.h"

#include "base/log.h"
#include "daemon/config/options.h"
#include "daemon/net/frontend.h"
#include "daemon/request/kv_watch.h"
#include "daemon/supervise/rolling_restart.h"
#include "daemon/supervise/worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

enum { VALUE_MAX = 4200 }; /* longest text of a value: options.set */

static void PRINTF_LIKE(2, 3) took(struct reload_report *p, const char *fmt, ...)
{
    va_list ap;

    if (p->n_taken == RELOAD_MAX) return;
    va_start(ap, fmt);
    vsnprintf(p->taken[p->n_taken++], sizeof p->taken[0], fmt, ap);
    va_end(ap);
}

static void PRINTF_LIKE(2, 3) kept(struct reload_report *p, const char *fmt, ...)
{
    va_list ap;

    if (p->n_kept == RELOAD_MAX) return;
    va_start(ap, fmt);
    vsnprintf(p->kept[p->n_kept++], sizeof p->kept[0], fmt, ap);
    va_end(ap);
}

static bool
is_one_of(const char *key, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, keys[i])) return true;
    return false;
}

/* Returns true if row o has different values in the structs a and b. */
static bool
differs(const struct opt *o, const void *a, const void *b)
{
    static char x[VALUE_MAX], y[VALUE_MAX];

    return strcmp(opt_text(o, a, x, sizeof x), opt_text(o, b, y, sizeof y)) != 0;
}

/* Copies the value of row o, of a table with the given structs. */
static void
copy_value(const struct opt *table, const struct opt *o, void *to, const void *from)
{
    static char text[VALUE_MAX];
    struct err e;

    opt_text(o, from, text, sizeof text);
    check(opt_set(table, to, o->key, text, "reload", &e) == 0);
}

/* ---- options of lagand */

static void
take_options(struct daemon *d, const struct config *next, struct reload_report *p)
{
    /* They size tables or belong to open sockets. */
    static const char *const fixed[] = { "runtime_dir", "api.tcp", "api.max_connections" };
    struct config *c = d->config;

    for (const struct opt *o = daemon_opts; o->key; o++) {
        if ((o->flags & OPT_HIDDEN) || !differs(o, &c->o, &next->o)) continue;
        if (is_one_of(o->key, fixed, ARRAY_LEN(fixed))) {
            kept(p, "%s keeps its value until `laganctl daemon reexec`", o->key);
            continue;
        }
        copy_value(daemon_opts, o, &c->o, &next->o);
        took(p, "%s", o->key);
        if (!strcmp(o->key, "log.level"))
            kept(p, "log.level of running workers stays until `laganctl loglevel` or a restart");
    }
    memcpy(c->from, next->from, sizeof c->from);
    c->has_file = next->has_file;
    log_level_set(log_level_choice(c->o.log_level));
}

/* Reads api.keys, which may be another file now. Returns 1 if the keys have changed. */
static int
take_keys(struct daemon *d, const struct config *next, struct err *e)
{
    static char before[sizeof((struct options *)0)->keys];
    int r;

    memcpy(before, d->config->o.keys, sizeof before);
    memcpy(d->config->o.keys, next->o.keys, sizeof before);
    r = frontend_reload_keys(d, e);
    memcpy(d->config->o.keys, before, sizeof before); /* take_options() takes and reports it */
    return r;
}

/* ---- models */

static const struct config_model *
model_named(const struct config *c, const char *name)
{
    for (uint32_t i = 0; i < c->n_models; i++)
        if (!strcmp(c->model[i].keys.name, name)) return &c->model[i];
    return NULL;
}

/* Starts or stops workers of model m so that `wanted` of them run. */
static void
set_workers(struct daemon *d, uint32_t m, uint32_t wanted, struct reload_report *p)
{
    const char *name = d->config->model[m].keys.name;
    uint32_t n = 0;
    struct err e;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        bool retired = worker_info(d->worker[i])->retired;

        if (worker_info(d->worker[i])->model != m || (n++ < wanted) != retired) continue;
        worker_retire(d->worker[i], !retired);
        p->replaced |= UINT64_C(1) << i;
    }
    for (; n < wanted; n++) {
        if (d->n_workers == MAX_WORKERS) {
            kept(p, "model %s: lagand can have no more than %d workers before a re-exec", name,
                 MAX_WORKERS);
            return;
        }
        if (!kv_watch_add(d->kv_watch, d->n_workers, &d->config->model[m].keys) ||
            worker_make(d, d->n_workers, m, &e) < 0) {
            d->worker[d->n_workers] = worker_free(d->worker[d->n_workers]);
            kept(p, "model %s: no memory for another worker", name);
            return;
        }
        p->replaced |= UINT64_C(1) << d->n_workers;
        worker_event(d->worker[d->n_workers++], EV_START);
    }
}

/* Takes the settings of a model that was served before. Returns true if they have changed. */
static bool
take_settings(struct config_model *to, const struct config_model *from, struct reload_report *p)
{
    /* They size tables of lagand. */
    static const char *const fixed[] = { "tensor_parallel", "kv.events", "kv.reuse" };
    bool changed = false;

    for (const struct opt *o = model_opts; o->key; o++) {
        if (!differs(o, &to->keys, &from->keys)) continue;
        if (is_one_of(o->key, fixed, ARRAY_LEN(fixed))) {
            kept(p, "model %s: %s keeps its value until `laganctl daemon reexec`", to->keys.name,
                 o->key);
            continue;
        }
        copy_value(model_opts, o, &to->keys, &from->keys);
        took(p, "model %s: %s", to->keys.name, o->key);
        changed |= strcmp(o->key, "workers") != 0;
    }
    memcpy(to->from, from->from, sizeof to->from);
    return changed;
}

/* Marks the workers of model m as to be replaced. */
static uint64_t
replace_workers(struct daemon *d, uint32_t m)
{
    uint64_t set = 0;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        if (worker_info(d->worker[i])->model != m || worker_info(d->worker[i])->retired) continue;
        worker_new_settings(d->worker[i]);
        set |= UINT64_C(1) << i;
    }
    return set;
}

static void
add_model(struct daemon *d, const struct config_model *from, struct reload_report *p)
{
    struct config *c = d->config;

    if (c->n_models == MAX_MODELS) {
        kept(p, "model %s: lagand has had %d models; `laganctl daemon reexec` adds it",
             from->keys.name, MAX_MODELS);
        return;
    }
    c->model[c->n_models] = *from;
    d->fair_queues[c->n_models].quantum = from->keys.fairness_quantum;
    took(p, "model %s: added", from->keys.name);
    set_workers(d, c->n_models++, from->keys.workers, p);
}

/* Makes the models those of `next`. Returns the set of workers to be replaced. */
static uint64_t
take_models(struct daemon *d, const struct config *next, struct reload_report *p)
{
    struct config *c = d->config;
    uint32_t n_before = c->n_models;
    uint64_t set = 0;

    for (uint32_t i = 0; i < n_before; i++) {
        const struct config_model *from = model_named(next, c->model[i].keys.name);
        bool returns = from && c->model[i].removed, changed;

        if (!from && c->model[i].removed) continue;
        c->model[i].removed = !from;
        if (!from || returns)
            took(p, "model %s: %s", c->model[i].keys.name, from ? "added" : "removed");
        changed = from && take_settings(&c->model[i], from, p);
        d->fair_queues[i].quantum = c->model[i].keys.fairness_quantum;
        if (changed && !returns) set |= replace_workers(d, i);
        set_workers(d, i, from ? from->keys.workers : 0, p);
    }
    for (uint32_t i = 0; i < next->n_models; i++)
        if (!model_named(c, next->model[i].keys.name)) add_model(d, &next->model[i], p);
    return set;
}

/* ---- all of it */

void
reload_note_program(struct daemon *d)
{
    struct stat st = { 0 };

    if (stat(d->worker_path, &st) < 0) return;
    d->worker_inode = st.st_ino;
    d->worker_changed_at = (nsec)st.st_mtim.tv_sec * NSEC_S + st.st_mtim.tv_nsec;
}

static void
log_report(const struct reload_report *p)
{
    for (uint32_t i = 0; i < p->n_taken; i++) log_info("reload: took %s", p->taken[i]);
    for (uint32_t i = 0; i < p->n_kept; i++) log_warn("reload: %s", p->kept[i]);
}

int
reload_apply(struct daemon *d, const char *by, struct reload_report *ret, struct err *e)
{
    static struct config next;
    static struct problems problems;
    uint64_t inode = d->worker_inode, set;
    nsec changed_at = d->worker_changed_at;
    bool usage;
    int argc = 0, r;

    *ret = (struct reload_report){ 0 };
    if (d->draining) return err_set(e, -ESHUTDOWN, "lagand is stopping and starts no worker");
    if (d->rolling)
        return err_set(e, -EBUSY, "a reload is in progress; `laganctl events` prints its steps");
    while (d->argv[argc]) argc++;
    if (config_read(&next, argc, d->argv, &problems, &usage) < 0)
        return err_set(e, -EINVAL, "%s", problems.text[0]);
    r = take_keys(d, &next, e);
    if (r < 0) return err_while(e, -EINVAL, "api.keys");
    if (r) took(ret, "the keys in api.keys");
    take_options(d, &next, ret);
    set = take_models(d, &next, ret);
    for (uint32_t i = 0; i < d->n_workers; i++) worker_take_timeouts(d->worker[i]);
    log_report(ret);
    reload_note_program(d);
    if ((!ret->n_taken && !ret->n_kept) || inode != d->worker_inode ||
        changed_at != d->worker_changed_at)
        set = UINT64_MAX;
    r = rolling_restart_start(d, set, by);
    if (r < 0) return err_set(e, r, "lagand cannot replace workers: %s", strerror(-r));
    for (uint32_t i = 0; i < d->n_workers; i++)
        if ((set >> i & 1) && !worker_over(d->worker[i])) ret->replaced |= UINT64_C(1) << i;
    ret->n_replaced = (uint32_t)__builtin_popcountll(ret->replaced);
    return 0;
}
