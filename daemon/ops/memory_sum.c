/* memory_sum.c - see memory_sum.h. */
#include "daemon/ops/memory_sum.h"

#include "base/cgroup.h"
#include "base/json.h"
#include "ipc/channel.h"

#include <inttypes.h>
#include <stdio.h>

/* Reads the numbers need, free and total at the top of the report; 0: it has no such number. */
static void
read_report(const char *report, uint64_t *need, uint64_t *free, uint64_t *total)
{
    struct json j;
    struct err e;

    *need = *free = *total = 0;
    json_open(&j, report, strlen(report));
    if (json_next(&j, &e) < 0 || j.kind != JSON_OBJECT) return;
    while (json_next(&j, &e) == 0 && j.kind == JSON_KEY) {
        uint64_t *to = json_is(&j, "need")    ? need
                       : json_is(&j, "free")  ? free
                       : json_is(&j, "total") ? total
                                              : NULL;

        if (!to && json_skip(&j, &e) < 0) return;
        if (to && (json_next(&j, &e) < 0 || j.kind != JSON_NUMBER || json_u64(&j, to) < 0)) return;
    }
}

/* Sets gpu[] to the numbers of the GPUs of a worker, one for each rank, and returns their number;
 * 0: a worker on the CPU. */
static uint32_t
gpus_of(const struct model_options *k, uint32_t gpu[MAX_RANKS])
{
    const char *device = model_options_device(k), *at = strchr(device, ':');
    uint32_t n = MIN(k->tensor_parallel, (uint32_t)MAX_RANKS);

    if (!model_options_on_gpu(k)) return 0;
    for (uint32_t i = 0; i < n; i++) {
        gpu[i] = at ? (uint32_t)strtoul(at + 1, NULL, 10) : i;
        if (at && strchr(at + 1, ',')) at = strchr(at + 1, ',');
    }
    return n;
}

static void
add(struct memory_device *d, uint32_t model, uint64_t bytes, uint32_t processes)
{
    d->bytes[model] = bytes;
    d->processes[model] = processes;
}

void
memory_sum_add(struct memory_sum *s, const struct config *c, uint32_t model, const char *report)
{
    const struct model_options *k = &c->model[model].keys;
    uint32_t gpu[MAX_RANKS], n = gpus_of(k, gpu);
    uint64_t need, free, total;

    read_report(report, &need, &free, &total);
    if (!need) return;
    if (n)
        add(&s->host, model, k->kv_host_memory, k->workers * n);
    else
        add(&s->host, model, need, k->workers * k->tensor_parallel);
    for (uint32_t i = 0; i < n; i++) {
        if (gpu[i] >= MEMORY_SUM_GPUS) continue;
        add(&s->gpu[gpu[i]], model, need, k->workers);
        if (i == 0) s->gpu[gpu[i]].free = free, s->gpu[gpu[i]].total = total;
    }
}

static const char *
size_text(uint64_t bytes, char buf[24])
{
    bool gib = bytes >= 1 << 30;

    snprintf(buf, 24, "%.1f %s", (double)bytes / (gib ? 1 << 30 : 1 << 20), gib ? "GiB" : "MiB");
    return buf;
}

/* Formats the share of each model: "a 1.0 GiB, b 2 processes of 300.0 MiB". */
static void
format_shares(const struct memory_device *d, const struct config *c, char *buf, size_t n)
{
    size_t used = 0;
    char size[24];

    *buf = 0;
    for (uint32_t i = 0; i < c->n_models && used < n; i++) {
        if (!d->processes[i] || !d->bytes[i]) continue;
        used += (size_t)snprintf(buf + used, n - used, "%s%.63s ", used ? ", " : "",
                                 c->model[i].keys.name);
        if (used < n && d->processes[i] > 1)
            used += (size_t)snprintf(buf + used, n - used, "%u processes of ", d->processes[i]);
        if (used < n)
            used += (size_t)snprintf(buf + used, n - used, "%s", size_text(d->bytes[i], size));
    }
    if (used >= n) memcpy(buf + n - 4, "...", 4);
}

/* Adds an error if the processes on d need more than m->limit bytes, or than m->free bytes. own:
 * bytes of lagand; 0: d is a GPU. */
static void
check_device(const struct memory_device *d, const struct config *c, const struct memory_free *m,
             uint64_t own, struct problems *p)
{
    char shares[260], sum_text[24], size[24];
    uint32_t n_models = 0, n = 0;
    uint64_t sum = own;
    bool fits_limit;

    for (uint32_t i = 0; i < c->n_models; i++) {
        if (!d->bytes[i]) continue;
        sum += d->bytes[i] * d->processes[i];
        n += d->processes[i];
        n_models++;
    }
    fits_limit = sum <= m->limit;
    /* lagan-worker --inspect checks one process, on the CPU all processes of a model. */
    if (n < 2 || (own && n_models < 2) || (fits_limit && sum <= m->free)) return;
    format_shares(d, c, shares, sizeof shares);
    problem(
        p,
        "models that share %.60s need %s together, but it has %s%s: %s; lower kv.memory, or serve "
        "fewer models or workers",
        fits_limit ? m->owner : m->limiter, size_text(sum, sum_text),
        size_text(fits_limit ? m->free : m->limit, size), fits_limit ? " free" : "", shares);
}

void
memory_sum_check(const struct memory_sum *s, const struct config *c, bool free, struct problems *p)
{
    struct memory_free m;
    struct cgroup cgroup;
    struct err e;

    cgroup_find(&cgroup, c->o.cgroup_root);
    if (cgroup_memory(&cgroup, &m, &e) < 0) {
        problem(p, "%s", e.text);
    } else {
        if (!free) m.free = UINT64_MAX;
        check_device(&s->host, c, &m, CGROUP_DAEMON_BYTES, p);
    }
    for (uint32_t i = 0; i < MEMORY_SUM_GPUS; i++) {
        if (!s->gpu[i].total) continue;
        m = (struct memory_free){ .free = free ? s->gpu[i].free : UINT64_MAX,
                                  .limit = s->gpu[i].total };
        snprintf(m.owner, sizeof m.owner, "GPU %u", i);
        memcpy(m.limiter, m.owner, sizeof m.limiter);
        check_device(&s->gpu[i], c, &m, 0, p);
    }
}
