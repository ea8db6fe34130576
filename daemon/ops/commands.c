/* commands.c - executes the verbs of CALL; see commands.h.
 *
 * The table LAGAN_VERBS (lagan_wire.h) has a row for each verb; cmd_ID() implements the row ID.
 * `laganctl --json` prints a result as it is packed here, so programs rely on its fields. */
#include "daemon/ops/commands.h"

#include "base/log.h"
#include "base/similar.h"
#include "daemon/config/options.h"
#include "daemon/config/runtime_dir.h"
#include "daemon/net/frontend.h"
#include "daemon/ops/ask.h"
#include "daemon/ops/preflight.h"
#include "daemon/persist/event_log.h"
#include "daemon/request/admission.h"
#include "daemon/request/lifecycle.h"
#include "daemon/request/worker_calls.h"
#include "daemon/supervise/control_channel.h"
#include "daemon/supervise/worker.h"

#include <stdio.h>
#include <unistd.h>

#ifndef PACKAGE_VERSION
#include "config.h"
#endif

bool
ask_is(const struct msg_span *s, const char *text)
{
    return s->n == strlen(text) && !memcmp(s->p, text, s->n);
}

const char *
command_state(const struct daemon *d)
{
    uint32_t n = 0, n_ready = 0, n_faults = 0;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct worker_info *f = worker_info(d->worker[i]);

        if (f->retired) continue;
        n++;
        n_ready += worker_open(d->worker[i]);
        n_faults += *f->low_memory != 0;
    }
    for (uint32_t i = 0; i < d->config->n_models; i++)
        n_faults += !d->config->model[i].removed && d->facts[i].tokenizer_fault;
    if (d->draining) return "draining";
    if (n_ready == n) return n_faults ? "degraded" : "ready";
    if (n_ready) return "degraded";
    return d->was_ready ? "degraded" : "starting";
}

/* ---- queries */

/* Packs a pool's block counts, clamped to used + cached <= blocks, because a worker wrote them. */
static void
put_pool(msgpack_packer *p, const char *name, uint64_t blocks, uint64_t used, uint64_t cached)
{
    used = MIN(used, blocks);
    cached = MIN(cached, blocks - used);
    put_text(p, "pool", name);
    msg_key_u64(p, "blocks", blocks);
    msg_key_u64(p, "used", used);
    msg_key_u64(p, "cached", cached);
    msg_key_u64(p, "free", blocks - used - cached);
}

struct pool_total {
    uint64_t blocks, used, cached, pinned, bytes; /* bytes: of one block */
};

/* Adds up the KV groups of each memory pool, as far as the worker names a valid pool. Returns the
 * number of pools. */
static uint32_t
count_pools(const struct worker_info *f, struct pool_total pool[SHM_MAX_GROUPS])
{
    uint32_t n = 0;

    memset(pool, 0, SHM_MAX_GROUPS * sizeof *pool);
    for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++) {
        const uint64_t *v = f->stats.group[g];
        struct pool_total *p = &pool[MIN(v[GROUP_STAT_pool], (uint64_t)SHM_MAX_GROUPS - 1)];

        if (v[GROUP_STAT_kind] == 0) continue;
        n = MAX(n, (uint32_t)(p - pool) + 1);
        p->blocks = v[GROUP_STAT_blocks];
        p->bytes = v[GROUP_STAT_bytes];
        p->used += v[GROUP_STAT_used];
        p->cached += v[GROUP_STAT_cached];
        p->pinned += v[GROUP_STAT_pinned];
    }
    return n;
}

static void
put_device_pool(msgpack_packer *p, const struct pool_total *t, uint32_t number)
{
    char name[16];

    snprintf(name, sizeof name, "%u", number);
    put_pool(p, name, t->blocks, t->used, t->cached);
}

static void
put_rank(msgpack_packer *p, struct worker *o)
{
    const struct arenas *a = worker_arenas(o);
    uint64_t bytes = arenas_bytes(a, NULL);

    msgpack_pack_map(p, 3);
    put_text(p, "name", worker_info(o)->name);
    msg_key_u64(p, "pid", (uint64_t)worker_info(o)->pid);
    msg_key_u64(p, "bytes", bytes);
}

_Static_assert(STAT_COUNT <= LAGAN_MAX_KEYS, "clients accept a map with all statistics");

static void
put_worker(msgpack_packer *p, const struct config *c, struct worker *w)
{
    const struct worker_info *f = worker_info(w);
    const struct model_options *k = &c->model[f->model].keys;
    const struct model_facts *facts = &worker_daemon(w)->facts[f->model];
    const struct arenas *a = worker_arenas(w);
    struct pool_total pool[SHM_MAX_GROUPS];
    uint32_t n_ranks = 1, n_pools = count_pools(f, pool);

    while (worker_rank(w, n_ranks)) n_ranks++;
    msgpack_pack_map(p, 20);
    put_text(p, "name", f->name);
    msg_key_u64(p, "pid", (uint64_t)f->pid);
    put_text(p, "device", f->pid ? f->device : "");
    put_text(p, "model", k->name);
    put_text(p, "dtype", facts->dtype);
    msg_key_u64(p, "max_len", facts->max_len);
    put_text(p, "text",
             !facts->known            ? ""
             : facts->has_text        ? "yes"
             : facts->tokenizer_fault ? "fault"
                                      : "no");
    put_text(p, "chat", !facts->known ? "" : *facts->chat_template ? "yes" : "no");
    put_text(p, "state", super_state_name(worker_state(w)));
    msg_key_u64(p, "running", f->stats.v[STAT_running]);
    msg_key_u64(p, "waiting", f->stats.v[STAT_waiting]);
    put_text(p, "standby", worker_standby(w));
    msg_key_u64(p, "restarts", f->restarts);
    msg_key_u64(p, "epoch", f->epoch);
    put_text(p, "why", *f->why ? f->why : *f->why_before ? f->why_before : f->low_memory);
    msg_key(p, "ranks"); /* the ranks above 0; rank 0 is the worker */
    msgpack_pack_array(p, n_ranks - 1);
    for (uint32_t i = 1; i < n_ranks; i++) put_rank(p, worker_rank(w, i));
    msg_key(p, "load");
    msgpack_pack_map(p, 2);
    msg_key_u64(p, "done", f->load_done);
    msg_key_u64(p, "total", f->load_total);
    msg_key(p, "arenas");
    msgpack_pack_array(p, a->n);
    for (uint32_t i = 0; i < a->n; i++) {
        msgpack_pack_map(p, 2);
        put_text(p, "name", a->at[i].note.name);
        msg_key_u64(p, "bytes", a->at[i].note.bytes);
    }
    msg_key(p, "stats");
    msgpack_pack_map(p, STAT_COUNT);
    for (uint32_t i = 0; i < STAT_COUNT; i++) msg_key_u64(p, stat_rows[i].name, f->stats.v[i]);
    msg_key(p, "kv");
    msgpack_pack_array(p, n_pools);
    for (uint32_t i = 0; i < n_pools; i++) {
        msgpack_pack_map(p, 5);
        put_device_pool(p, &pool[i], i);
    }
}

static uint32_t
n_shown_workers(const struct daemon *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_workers; i++) n += !worker_hidden(d->worker[i]);
    return n;
}

static void
put_workers(msgpack_packer *p, struct daemon *d)
{
    msgpack_pack_array(p, n_shown_workers(d));
    for (uint32_t i = 0; i < d->n_workers; i++) {
        if (worker_hidden(d->worker[i])) continue;
        worker_look(d->worker[i]);
        put_worker(p, d->config, d->worker[i]);
    }
}

static void
cmd_status(struct ask *a)
{
    struct daemon *d = a->d;
    msgpack_packer *p = reply(a);

    msgpack_pack_map(p, 16);
    put_text(p, "version", PACKAGE_VERSION);
    msg_key_u64(p, "pid", (uint64_t)getpid());
    msg_key(p, "uptime_s");
    msgpack_pack_double(p, (double)(d->now - d->started) / NSEC_S);
    put_text(p, "state", command_state(d));
    put_text(p, "runtime_dir", d->runtime->dir);
    put_text(p, "config", d->config->has_file ? d->config->o.config : "");
    msg_key(p, "models");
    msgpack_pack_array(p, config_n_served(d->config, NULL));
    for (uint32_t i = 0; i < d->config->n_models; i++)
        if (!d->config->model[i].removed) msg_text(p, d->config->model[i].keys.name);
    msg_key_u64(p, "clients", session_n(d->sessions));
    msg_key_u64(p, "requests", ledger_counts(d->ledger).open);
    msg_key_u64(p, "max_requests", ledger_counts(d->ledger).capacity);
    msg_key_u64(p, "queued", ledger_counts(d->ledger).queued);
    msg_key_u64(p, "accepted", d->n_requests);
    msg_key_u64(p, "refused", d->n_refused);
    msg_key_u64(p, "finished", d->n_finished);
    msg_key_u64(p, "failed", d->n_failed);
    msg_key(p, "workers");
    put_workers(p, d);
}

static void
cmd_workers_list(struct ask *a)
{
    put_workers(reply(a), a->d);
}

static void
cmd_kv_stats(struct ask *a)
{
    struct pool_total pool[SHM_MAX_GROUPS];
    struct daemon *d = a->d;
    uint32_t n = 0;
    msgpack_packer *p;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct worker_info *f = worker_info(d->worker[i]);

        if (worker_hidden(d->worker[i])) continue;
        worker_look(d->worker[i]);
        n += count_pools(f, pool) + (f->stats.v[STAT_host_blocks] > 0);
    }
    p = reply(a);
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct worker_info *f = worker_info(d->worker[i]);
        const uint64_t *v = f->stats.v;

        if (worker_hidden(d->worker[i])) continue;
        n = count_pools(f, pool);
        for (uint32_t k = 0; k < n; k++) {
            msgpack_pack_map(p, 9);
            put_text(p, "worker", f->name);
            put_device_pool(p, &pool[k], k);
            msg_key_u64(p, "block_bytes", pool[k].bytes);
            msg_key_u64(p, "bytes", pool[k].blocks * pool[k].bytes);
            msg_key_u64(p, "pinned", pool[k].pinned);
        }
        if (!v[STAT_host_blocks]) continue;
        msgpack_pack_map(p, 9);
        put_text(p, "worker", f->name);
        put_pool(p, "host", v[STAT_host_blocks], v[STAT_host_blocks_loading], v[STAT_host_cached]);
        msg_key_u64(p, "block_bytes",
                    d->config->model[f->model].keys.kv_host_memory / v[STAT_host_blocks]);
        msg_key_u64(p, "bytes", d->config->model[f->model].keys.kv_host_memory);
        msg_key_u64(p, "pinned", 0); /* counted with the device's blocks */
    }
}

/* Replies with one map for each KV group of each worker, including those of cross attention. */
static void
cmd_kv_pools(struct ask *a)
{
    struct daemon *d = a->d;
    uint32_t n = 0;
    msgpack_packer *p;

    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct worker_info *f = worker_info(d->worker[i]);

        worker_look(d->worker[i]);
        for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++) n += f->stats.group[g][GROUP_STAT_kind] > 0;
    }
    p = reply(a);
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < d->n_workers; i++)
        for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++) {
            const struct worker_info *f = worker_info(d->worker[i]);
            const uint64_t *v = f->stats.group[g];

            if (v[GROUP_STAT_kind] == 0) continue;
            msgpack_pack_map(p, 2 + GROUP_STAT_COUNT);
            put_text(p, "worker", f->name);
            msg_key_u64(p, "group", g);
            put_text(p, "kind", group_kinds[MIN(v[GROUP_STAT_kind], ARRAY_LEN(group_kinds) - 1)]);
            for (uint32_t k = GROUP_STAT_kind + 1; k < GROUP_STAT_COUNT; k++)
                msg_key_u64(p, group_stat_rows[k].name, v[k]);
        }
}

/* Replies with the open requests: to an operator those of all clients, to a client its own. */
static void
cmd_requests_list(struct ask *a)
{
    struct daemon *d = a->d;
    uint32_t n = 0;
    msgpack_packer *p = NULL;

    for (int pass = 0; pass < 2; pass++) {
        if (pass) {
            p = reply(a);
            msgpack_pack_array(p, n);
        }
        for (uint32_t i = 0; i < ledger_counts(d->ledger).capacity; i++) {
            struct request *r = ledger_request(d->ledger, i);
            char client[16] = ""; /* stays "" if the client is not connected */
            struct request_info f;

            if (!r) continue;
            f = request_info(r);
            if (f.retained || (a->c->listener != LISTENER_CTL && f.client != a->c->handle))
                continue;
            n += !pass;
            if (!pass) continue;
            if (f.attached) snprintf(client, sizeof client, "c%u", f.client);
            msgpack_pack_map(p, 10);
            msg_key_u64(p, "id", f.id);
            put_text(p, "request_id", f.request_id);
            put_text(p, "client", client);
            put_text(p, "user", session_user_at(d->sessions, f.user)->name);
            put_text(p, "model", d->config->model[f.model].keys.name);
            put_text(p, "worker", f.held ? worker_info(d->worker[f.worker])->name : "");
            put_text(p, "state",
                     f.suspended && f.held ? "suspended" : request_state_name(request_state(r)));
            msg_key_u64(p, "prompt", f.n_prompt_tokens);
            msg_key_u64(p, "generated", request_n_tokens(r));
            msg_key_u64(p, "age_ms", (uint64_t)((d->now - f.accepted) / NSEC_MS));
        }
    }
}

static void
put_table(msgpack_packer *p, const struct config *c, const struct opt *table, const void *values,
          const int *from, const char *prefix)
{
    for (const struct opt *o = table; o->key; o++) {
        char key[96], value[4200], where[1200];

        if (!config_has_value(o)) continue;
        snprintf(key, sizeof key, "%s%s", prefix, o->key);
        msgpack_pack_map(p, 3);
        put_text(p, "key", key);
        put_text(p, "value", opt_text(o, values, value, sizeof value));
        put_text(p, "from", config_from(c, from[o - table], where, sizeof where));
    }
}

static uint32_t
n_shown(const struct opt *table)
{
    uint32_t n = 0;

    for (const struct opt *o = table; o->key; o++) n += config_has_value(o);
    return n;
}

static void
cmd_config_show(struct ask *a)
{
    struct config *c = a->d->config;
    msgpack_packer *p = reply(a);

    msgpack_pack_array(p, n_shown(daemon_opts) + config_n_served(c, NULL) * n_shown(model_opts));
    put_table(p, c, daemon_opts, &c->o, c->from, "");
    for (uint32_t i = 0; i < c->n_models; i++) {
        char prefix[32];

        if (c->model[i].removed) continue;
        snprintf(prefix, sizeof prefix, "models[%u].", i);
        put_table(p, c, model_opts, &c->model[i].keys, c->model[i].from, prefix);
    }
}

static void
cmd_version(struct ask *a)
{
    msgpack_packer *p = reply(a);

    msgpack_pack_map(p, 2);
    put_text(p, "version", PACKAGE_VERSION);
    msg_key_u64(p, "protocol", LAGAN_WIRE_VERSION);
}

/* ---- commands */

static void
reply_empty(struct ask *a)
{
    msgpack_pack_map(reply(a), 0);
}

static void
cmd_cancel(struct ask *a)
{
    uint64_t id = 0;
    struct request *r;

    if (!a->args || msg_u64(a->args, "id", &id) < 0) {
        REFUSE(a, LAGAN_E_INVALID_REQUEST, "cancel: id is missing; give the number of a request");
        return;
    }
    r = ledger_find_id(a->d->ledger, id);
    if (!r || request_state(r) == REQUEST_ENDED) {
        REFUSE(a, LAGAN_E_NOT_FOUND, "there is no open request %llu", (unsigned long long)id);
    } else if (request_info(r).client != a->c->handle && a->c->listener != LISTENER_CTL) {
        REFUSE(a, LAGAN_E_UNAUTHORIZED,
               "request %llu belongs to another client; only operators, at ctl.sock, may cancel it",
               (unsigned long long)id);
    } else {
        lifecycle_cancel(a->d, r, LAGAN_E_CANCELLED, "cancelled by an operator");
        reply_empty(a);
    }
}

struct worker *
worker_named(struct ask *a)
{
    const char *whose = NULL; /* if args.worker is a rank (w0.1) or standby: name of its worker */
    struct msg_span name = { 0 };

    if (!a->args || msg_str(a->args, "worker", &name) < 0) {
        REFUSE(a, LAGAN_E_INVALID_REQUEST,
               "the key worker is missing: give a name that `laganctl workers list` prints");
        return NULL;
    }
    for (uint32_t i = 0; i < a->d->n_workers; i++) {
        const char *of = worker_info(a->d->worker[i])->name;
        size_t n = strlen(of);

        if (worker_hidden(a->d->worker[i])) continue;
        if (ask_is(&name, of)) return a->d->worker[i];
        if (name.n > n && name.p[n] == '.' && !memcmp(name.p, of, n)) whose = of;
    }
    if (whose)
        REFUSE(a, LAGAN_E_NOT_FOUND, "%.*s is a rank or a standby; give the name of its worker, %s",
               (int)MIN(name.n, 60u), name.p, whose);
    else
        REFUSE(a, LAGAN_E_NOT_FOUND,
               "there is no worker %.*s; `laganctl workers list` prints the names",
               (int)MIN(name.n, 60u), name.p);
    return NULL;
}

/* Runs the verbs drain and restart. */
static void
control_worker(struct ask *a)
{
    enum super_event ev = strcmp(a->verb, "drain") ? EV_RESTART : EV_STOP;
    struct worker *w = worker_named(a);
    msgpack_packer *p;
    uint32_t n;

    if (!w) return;
    if (ev == EV_RESTART && a->d->draining) {
        REFUSE(a, LAGAN_E_DRAINING, "lagand is stopping and starts no worker");
        return;
    }
    n = worker_requests(w)->n;
    event_log_add(a->d, "operator", worker_info(w)->name, "%s", a->verb);
    worker_event(w, ev);
    p = reply(a);
    msgpack_pack_map(p, 3);
    put_text(p, "worker", worker_info(w)->name);
    msg_key_u64(p, "requests", n);
    put_text(p, "state", super_state_name(worker_state(w)));
}

static void
cmd_reload(struct ask *a)
{
    preflight_start(a->d, a->c, a->rid, PREFLIGHT_RELOAD);
}

static void
cmd_daemon_reexec(struct ask *a)
{
    preflight_start(a->d, a->c, a->rid, PREFLIGHT_REEXEC);
}

/* Sends the CALL on to worker w over its control channel; the reply of w goes to the client. */
static void
ask_worker(struct ask *a, struct worker *w)
{
    uint64_t number = worker_calls_control(a->d, a->c, a->rid, w);

    if (number && control_channel_call(worker_info(w)->control, number, a->verb, a->args) < 0)
        worker_calls_control_done(w, number, LAGAN_E_WORKER_LOST, NULL);
}

static void
cmd_loglevel(struct ask *a)
{
    struct msg_span level = { 0 };
    uint32_t i = 0;

    if (a->args) msg_str(a->args, "level", &level);
    while (i < N_LOG_LEVELS && !ask_is(&level, log_level_name(log_level_choice(i)))) i++;
    if (i == N_LOG_LEVELS) {
        REFUSE(a, LAGAN_E_INVALID_REQUEST, "loglevel: level must be err, warn, info or debug");
        return;
    }
    if (msg_get(a->args, "worker")) {
        struct worker *w = worker_named(a);

        if (!w) return;
        ask_worker(a, w);
        return;
    }
    log_level_set(log_level_choice(i));
    reply_empty(a);
}

struct worker *
worker_meant(struct ask *a)
{
    bool alone = a->d->n_workers == 1 && !(a->args && msg_get(a->args, "worker"));

    return alone ? a->d->worker[0] : worker_named(a);
}

/* Returns the READY worker that args name, or the only worker. NULL: an ERROR was sent. */
static struct worker *
open_worker(struct ask *a)
{
    struct worker *w = worker_meant(a);

    if (!w || worker_open(w)) return w;
    if (worker_over(w))
        REFUSE(a, LAGAN_E_WORKER_LOST, "worker %s is %s; `laganctl restart %s` starts it",
               worker_info(w)->name, super_state_name(worker_state(w)), worker_info(w)->name);
    else
        REFUSE(a, LAGAN_E_WORKER_LOST, "worker %s is %s; try again when it is ready",
               worker_info(w)->name, super_state_name(worker_state(w)));
    return NULL;
}

/* Runs a verb that lagand passes on to a READY worker. */
static void
ask_open(struct ask *a)
{
    struct worker *w = open_worker(a);

    if (!w) return;
    if (!strcmp(a->verb, "kv flush"))
        event_log_add(a->d, "operator", worker_info(w)->name, "kv flush");
    ask_worker(a, w);
}

/* ---- events and deaths */

enum { EVENTS_A_CALL = 256 };

/* Replies with up to EVENTS_A_CALL events from number args.from on, and with `next`, the number to
 * continue from: the caller then sees all events, unless 1000 are added between two calls. */
static void
cmd_events(struct ask *a)
{
    const struct event_log *h = a->d->event_log;
    const struct event *e;
    uint64_t from = 1, n = 0, at;
    msgpack_packer *p;

    if (a->args) msg_u64(a->args, "from", &from);
    if (from > event_log_next(h))
        from = 1; /* `from` was given by a previous lagand, whose events are lost */
    for (at = from; n < EVENTS_A_CALL && (e = event_log_event(h, at)); n++) at = e->number + 1;
    p = reply(a);
    msgpack_pack_map(p, 2);
    msg_key_u64(p, "next", at);
    msg_key(p, "events");
    msgpack_pack_array(p, n);
    for (at = from; n && (e = event_log_event(h, at)); n--) {
        at = e->number + 1;
        msgpack_pack_map(p, 5);
        msg_key_u64(p, "number", e->number);
        msg_key_u64(p, "at_ms", (uint64_t)e->at_ms);
        put_text(p, "kind", e->kind);
        put_text(p, "worker", e->subject);
        put_text(p, "text", e->text);
    }
}

static void
cmd_panic(struct ask *a)
{
    const struct event_log *h = a->d->event_log;
    uint32_t n = 0;
    msgpack_packer *p;

    while (event_log_dead(h, n)) n++;
    p = reply(a);
    msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct death_entry *x = event_log_dead(h, i);

        msgpack_pack_map(p, 10);
        msg_key_u64(p, "at_ms", (uint64_t)x->at_ms);
        put_text(p, "worker", x->worker);
        msg_key_u64(p, "pid", (uint64_t)x->pid);
        msg_key_u64(p, "epoch", x->epoch);
        put_text(p, "cause", x->cause);
        put_text(p, "how", x->how);
        msg_key_u64(p, "requests", x->n_requests);
        put_text(p, "words", x->panic);
        put_text(p, "frames", x->frames);
        msg_key(p, "log");
        msgpack_pack_array(p, x->n_lines);
        for (uint32_t k = 0; k < x->n_lines; k++) msg_any_text(p, x->line[k]);
    }
}

static void
cmd_metrics(struct ask *a)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    msgpack_packer *p;

    if (!out) {
        REFUSE(a, LAGAN_E_OUT_OF_MEMORY, "lagand has no memory for its metrics");
        return;
    }
    metrics_print(a->d, out);
    fclose(out);
    p = reply(a);
    msgpack_pack_map(p, 1);
    msg_key(p, "text");
    msg_bytes(p, text, n);
    free(text);
}

/* ---- table */

/* Verbs that share a function. */
#define cmd_drain control_worker
#define cmd_restart control_worker
#define cmd_kv_flush ask_open
#define cmd_kv_pin ask_open
#define cmd_kv_unpin ask_open
#define cmd_tune ask_open
#define cmd_tune_status ask_open
#define cmd_split_show ask_open
#define cmd_split_auto ask_open
#define cmd_split_off ask_open
#define cmd_split_set ask_open

static const struct command {
    const char *verb;
    bool operators;   /* the verb may be called at ctl.sock only */
    const char *args; /* as in LAGAN_VERBS */
    void (*run)(struct ask *a);
} commands[] = {
#define X(id, name, operators, args, result) { name, operators, args, cmd_##id },
    LAGAN_VERBS(X)
#undef X
};

/* Copies the next key of a row's args at *at to key and advances *at. Returns false at the end. */
static bool
next_arg(const char **at, char key[LAGAN_MAX_KEY + 1])
{
    while (**at) {
        const char *p = *at + strspn(*at, ",; ");
        size_t n;

        if (!strncmp(p, "or ", 3)) p += 3;
        n = strspn(p, "abcdefghijklmnopqrstuvwxyz_");
        *at = p + strcspn(p, ",;");
        if (!n || n > LAGAN_MAX_KEY || !strchr(":,;", p[n])) continue; /* a part of a sentence */
        snprintf(key, LAGAN_MAX_KEY + 1, "%.*s", (int)n, p);
        return true;
    }
    return false;
}

/* Returns true if each key of the args of the CALL is one of its verb; otherwise refuses. */
static bool
args_are_known(const struct ask *a, const struct command *verb)
{
    for (uint32_t i = 0; a->args && i < a->args->via.map.size; i++) {
        const msgpack_object_str *k = &a->args->via.map.ptr[i].key.via.str;
        char key[LAGAN_MAX_KEY + 1], near[LAGAN_MAX_KEY + 1] = "";
        struct similar best = { 0 };
        const char *at = verb->args;
        bool known = false;

        while (!known && next_arg(&at, key))
            known = strlen(key) == k->size && !memcmp(key, k->ptr, k->size);
        if (known) continue;
        for (at = verb->args; next_arg(&at, key);) {
            uint32_t edits = best.edits;

            similar_compare(&best, k->ptr, k->size, key);
            if (best.edits != edits) memcpy(near, key, sizeof near);
        }
        REFUSE(a, LAGAN_E_INVALID_REQUEST, "%s: unknown argument \"%.*s\"%s%s%s", verb->verb,
               (int)k->size, k->ptr, *near ? "; did you mean " : "", near, *near ? "?" : "");
        return false;
    }
    return true;
}

void
command_call(struct daemon *d, struct client *c, const struct msg *m)
{
    struct ask a = { .d = d, .c = c, .rid = m->rid, .args = msg_get(&m->map, "args") };
    struct msg_span verb = { 0 };

    if (a.args && a.args->type != MSGPACK_OBJECT_MAP) a.args = NULL;
    if (msg_str(&m->map, "verb", &verb) < 0) {
        REFUSE(&a, LAGAN_E_INVALID_REQUEST, "CALL: verb is missing");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (!ask_is(&verb, commands[i].verb)) continue;
        if (commands[i].operators && c->listener != LISTENER_CTL) {
            REFUSE(&a, LAGAN_E_UNAUTHORIZED, "%s is for operators: connect to %s/ctl.sock",
                   commands[i].verb, d->runtime->dir);
        } else if (args_are_known(&a, &commands[i])) {
            a.verb = commands[i].verb;
            commands[i].run(&a);
            if (a.replied) frontend_send_or_drop(d, c);
        }
        return;
    }
    REFUSE(&a, LAGAN_E_NOT_FOUND, "CALL: there is no verb \"%.*s\"", (int)MIN(verb.n, 60u), verb.p);
}
