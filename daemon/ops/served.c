/* served.c - verbs about the served models: models, load. */
#include "daemon/config/options.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ops/ask.h"
#include "daemon/supervise/worker.h"
#include "ipc/model_options.h"

#include <math.h>
#include <stdio.h>

/* Returns true if a worker of the model accepts requests. */
static bool
is_open(const struct daemon *d, uint32_t model)
{
    for (uint32_t i = 0; i < d->n_workers; i++)
        if (worker_info(d->worker[i])->model == model && worker_open(d->worker[i])) return true;
    return false;
}

static void
put_defaults(msgpack_packer *p, const struct model_facts *f)
{
    static const char *const names[] = {
#define X(name) #name,
        READY_DEFAULTS(X)
#undef X
    };
    char text[32];
    uint32_t n = 0;

    _Static_assert(ARRAY_LEN(names) == ARRAY_LEN(f->defaults), "model_facts.defaults");
    for (size_t i = 0; f->known && i < ARRAY_LEN(names); i++) n += isfinite(f->defaults[i]);
    msg_key(p, "defaults");
    msgpack_pack_map(p, n);
    for (size_t i = 0; n && i < ARRAY_LEN(names); i++) {
        if (!isfinite(f->defaults[i])) continue;
        msg_key(p, names[i]);
        snprintf(text, sizeof text, "%.7g", (double)f->defaults[i]); /* 0.9 is not 0.89999998 */
        if (i == READY_DEFAULT_top_k)
            msgpack_pack_int64(p, (int64_t)f->defaults[i]);
        else
            msgpack_pack_double(p, strtod(text, NULL));
    }
}

static void
put_bool(msgpack_packer *p, const char *key, bool v)
{
    msg_key(p, key);
    v ? msgpack_pack_true(p) : msgpack_pack_false(p);
}

static void
put_model(msgpack_packer *p, const struct daemon *d, uint32_t model)
{
    const struct model_facts *f = &d->facts[model];
    const struct model_options *o = &d->config->model[model].keys;
    char text[64];

    msgpack_pack_map(p, 11);
    put_text(p, "name", o->name);
    msg_key_u64(p, "max_model_len", f->max_len);
    msg_key_u64(p, "vocabulary", f->vocab);
    put_text(p, "architecture", f->family);
    put_bool(p, "encoder_decoder", f->max_source > 0);
    put_text(p, "template", f->chat_template);
    put_defaults(p, f);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)f->fingerprint);
    put_text(p, "fingerprint", f->known ? text : "");
    msg_key_u64(p, "since", f->since);
    put_bool(p, "ready", is_open(d, model));
    for (const struct opt *x = model_opts; x->key; x++)
        if (!strcmp(x->key, "policy")) put_text(p, "policy", opt_text(x, o, text, sizeof text));
}

void
cmd_models(struct ask *a)
{
    const struct daemon *d = a->d;
    msgpack_packer *p = reply(a);

    msgpack_pack_array(p, config_n_served(d->config, NULL));
    for (uint32_t i = 0; i < d->config->n_models; i++)
        if (!d->config->model[i].removed) put_model(p, d, i);
}

struct load {
    uint64_t waiting, running, used, blocks;
};

/* Adds what worker w has. Memory pools that several KV groups share count once. */
static void
add_worker(struct load *l, struct worker *w)
{
    const struct worker_info *f = worker_info(w);
    bool counted[SHM_MAX_GROUPS] = { false };

    worker_look(w);
    l->waiting += f->stats.v[STAT_waiting];
    l->running += f->stats.v[STAT_running];
    for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++) {
        const uint64_t *v = f->stats.group[g];
        uint64_t pool = MIN(v[GROUP_STAT_pool], (uint64_t)SHM_MAX_GROUPS - 1);

        if (v[GROUP_STAT_kind] == 0) continue;
        l->used += v[GROUP_STAT_used];
        if (!counted[pool]) l->blocks += v[GROUP_STAT_blocks];
        counted[pool] = true;
    }
}

void
cmd_load(struct ask *a)
{
    struct load load[MAX_MODELS] = { { 0 } };
    const struct daemon *d = a->d;
    const struct request *r = NULL;
    msgpack_packer *p;

    for (uint32_t i = 0; i < d->n_workers; i++)
        if (!worker_hidden(d->worker[i]))
            add_worker(&load[worker_info(d->worker[i])->model], d->worker[i]);
    while ((r = ledger_next_queued(d->ledger, r))) load[request_info(r).model].waiting++;
    p = reply(a);
    msgpack_pack_map(p, config_n_served(d->config, NULL));
    for (uint32_t i = 0; i < d->config->n_models; i++) {
        const struct load *l = &load[i];

        if (d->config->model[i].removed) continue;
        msg_key(p, d->config->model[i].keys.name);
        msgpack_pack_map(p, 5);
        msg_key_u64(p, "waiting", l->waiting);
        msg_key_u64(p, "running", l->running);
        msg_key(p, "kv");
        msgpack_pack_double(p, l->blocks ? MIN((double)l->used / (double)l->blocks, 1.0) : 0);
        msg_key_u64(p, "blocks", l->blocks);
        msg_key_u64(p, "tokens_per_block", d->facts[i].tokens_per_block);
    }
}
