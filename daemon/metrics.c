/* metrics.c - see metrics.h. A worker's rows are those of ipc/stat.h, with their sentences. */
#include "daemon/metrics.h"

#include "daemon/session.h"
#include "daemon/worker.h"
#include "ipc/stat.h"
#include "wire/msg.h"

#include <string.h>

static void
head(FILE *out, const char *name, const char *kind, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void
one(FILE *out, const char *name, const char *kind, const char *help, uint64_t v)
{
    head(out, name, kind, help);
    fprintf(out, "%s %llu\n", name, (unsigned long long)v);
}

/* A label's value: quotes, backslashes and line ends escaped. */
static void
label(FILE *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') putc('\\', out);
        if (*s == '\n') {
            fputs("\\n", out);
        } else {
            putc(*s, out);
        }
    }
}

static void
of_worker(FILE *out, const char *name, const struct worker *w)
{
    fprintf(out, "%s{worker=\"%s\",model=\"", name, w->name);
    label(out, w->d->config->model[w->model].keys.name);
    fputs("\"} ", out);
}

/* lagan_worker_NAME, with its unit, in seconds where we count nanoseconds. */
static void
print_stat(struct daemon *d, const struct stat_row *row, uint32_t id, FILE *out)
{
    bool ns = !strcmp(row->unit, "ns"), counter = row->kind == STAT_COUNTER;
    size_t n = strlen(row->name) - (ns && strstr(row->name, "_ns") ? 3 : 0);
    char name[96];

    snprintf(name, sizeof name, "lagan_worker_%.*s%s%s", (int)n, row->name, ns ? "_seconds" : "",
             counter ? "_total" : "");
    head(out, name, counter ? "counter" : "gauge", row->sentence);
    for (uint32_t i = 0; i < d->n_workers; i++) {
        uint64_t v = d->worker[i]->stats.v[id] + d->worker[i]->former.v[id];

        of_worker(out, name, d->worker[i]);
        if (ns) {
            fprintf(out, "%.9f\n", (double)v / NSEC_S);
        } else {
            fprintf(out, "%llu\n", (unsigned long long)v);
        }
    }
}

/* lagan_kv_NAME of each group of KV blocks; what never changes of it are labels. */
static void
print_group_stat(const struct daemon *d, const struct stat_row *row, uint32_t id, FILE *out)
{
    bool counter = row->kind == STAT_COUNTER;
    char name[96];

    snprintf(name, sizeof name, "lagan_kv_%s%s", row->name, counter ? "_total" : "");
    head(out, name, counter ? "counter" : "gauge", row->sentence);
    for (uint32_t i = 0; i < d->n_workers; i++)
        for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++) {
            const struct worker *w = d->worker[i];
            const uint64_t *v = w->stats.group[g];

            if (v[GROUP_STAT_kind] == 0) continue;
            fprintf(out, "%s{worker=\"%s\",model=\"", name, w->name);
            label(out, w->d->config->model[w->model].keys.name);
            fprintf(out, "\",group=\"%u\",kind=\"%s\",window=\"%llu\",pool=\"%llu\"} %llu\n", g,
                    group_kinds[MIN(v[GROUP_STAT_kind], ARRAY_LEN(group_kinds) - 1)],
                    (unsigned long long)v[GROUP_STAT_window],
                    (unsigned long long)v[GROUP_STAT_pool],
                    (unsigned long long)(v[id] + w->former.group[g][id]));
        }
}

static void
print_workers(struct daemon *d, FILE *out)
{
    head(out, "lagan_worker_ready", "gauge", "1 while the worker accepts requests");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        of_worker(out, "lagan_worker_ready", d->worker[i]);
        fprintf(out, "%d\n", worker_open(d->worker[i]));
    }
    head(out, "lagan_worker_standby", "gauge",
         "1 while a standby process of the worker has loaded the model");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct worker *s = d->worker[i]->standby;

        of_worker(out, "lagan_worker_standby", d->worker[i]);
        fprintf(out, "%d\n", s->super.state == SUPER_STANDBY && s->begun);
    }
    head(out, "lagan_worker_restarts_total", "counter", "restarts of the worker after a failure");
    for (uint32_t i = 0; i < d->n_workers; i++) {
        struct worker *w = d->worker[i];

        worker_look(w);
        of_worker(out, "lagan_worker_restarts_total", w);
        fprintf(out, "%u\n", w->restarts);
    }
    for (uint32_t i = 0; i < STAT_COUNT; i++) print_stat(d, &stat_rows[i], i, out);
    for (uint32_t i = GROUP_STAT_bytes; i < GROUP_STAT_COUNT; i++)
        print_group_stat(d, &group_stat_rows[i], i, out);
}

static uint64_t
n_paused(const struct daemon *d)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < ledger_capacity(d->ledger); i++) {
        const struct row *r = ledger_row(d->ledger, i);

        n += r && r->held && r->paused;
    }
    return n;
}

void
metrics_print(struct daemon *d, FILE *out)
{
    head(out, "lagan_uptime_seconds", "gauge", "time since lagand was started");
    fprintf(out, "lagan_uptime_seconds %.3f\n", (double)(d->now - d->started) / NSEC_S);
    one(out, "lagan_clients", "gauge", "open client connections that have sent a message",
        session_n(d->sessions));
    one(out, "lagan_requests", "gauge", "open requests", ledger_n(d->ledger));
    one(out, "lagan_requests_queued", "gauge", "open requests that wait in lagand for a worker",
        ledger_n_queued(d->ledger));
    one(out, "lagan_requests_suspended", "gauge",
        "running requests that are suspended because the client does not read", n_paused(d));
    one(out, "lagan_requests_bytes", "gauge",
        "memory reserved for open requests; limited by api.memory", d->held_bytes);
    one(out, "lagan_requests_accepted_total", "counter", "requests accepted", d->n_requests);
    one(out, "lagan_requests_refused_total", "counter",
        "messages and requests that lagand rejected on arrival", d->n_refused);
    head(out, "lagan_requests_ended_total", "counter", "accepted requests that ended, by reason");
    for (uint32_t i = 1; i < REASONS; i++) {
        const char *word = msg_reason(i, NULL);

        /* cancelled is a finish and an error; a request ends with the error. */
        if (!word || (i < LAGAN_E_INVALID_REQUEST && i >= LAGAN_FINISH_CANCELLED)) continue;
        fprintf(out, "lagan_requests_ended_total{reason=\"%s\"} %llu\n", word,
                (unsigned long long)d->n_ended[i]);
    }
    print_workers(d, out);
}
