/* metrics.c - prints the metrics of lagand and of its workers (ipc/stat.h); see commands.h. */
#include "daemon/ops/commands.h"

#include "daemon/config/options.h"
#include "daemon/ledger/histograms.h"
#include "daemon/request/kv_watch.h"
#include "daemon/supervise/worker.h"
#include "ipc/stat.h"
#include "wire/msg_reason.h"

#ifndef PACKAGE_VERSION
#include "config.h"
#endif

static void
head(FILE *out, const char *name, const char *kind, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

/* Prints a label value with quotes, backslashes and newlines escaped. */
static void
label(FILE *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') putc('\\', out);
        if (*s == '\n')
            fputs("\\n", out);
        else
            putc(*s, out);
    }
}

/* Prints the begin of a sample: metric name, labels worker and model, without the last quote. */
static void
print_worker_labels(const struct daemon *d, FILE *out, const char *name,
                    const struct worker_info *f)
{
    fprintf(out, "%s{worker=\"%s\",model=\"", name, f->name);
    label(out, d->config->model[f->model].keys.name);
}

/* Prints the metric lagan_worker_NAME of all workers; nanoseconds are printed as seconds. */
static void
print_stat(struct daemon *d, const struct stat_row *stat, uint32_t id, FILE *out)
{
    bool ns = !strcmp(stat->unit, "ns"), counter = stat->kind == STAT_COUNTER;
    size_t n = strlen(stat->name) - (ns && strstr(stat->name, "_ns") ? 3 : 0);
    char name[96];

    snprintf(name, sizeof name, "lagan_worker_%.*s%s%s", (int)n, stat->name, ns ? "_seconds" : "",
             counter ? "_total" : "");
    head(out, name, counter ? "counter" : "gauge", stat->sentence);
    for (uint32_t i = 0; i < d->n_workers; i++) {
        const struct worker_info *f = worker_info(d->worker[i]);
        uint64_t v = f->stats.v[id] + f->former.v[id];

        if (worker_hidden(d->worker[i])) continue;
        print_worker_labels(d, out, name, f);
        fputs("\"} ", out);
        if (ns)
            fprintf(out, "%.9f\n", (double)v / NSEC_S);
        else
            fprintf(out, "%llu\n", (unsigned long long)v);
    }
}

/* Prints the metric lagan_kv_NAME of all KV groups; kind, window and pool of a group are labels. */
static void
print_group_stat(const struct daemon *d, const struct stat_row *stat, uint32_t id, FILE *out)
{
    bool counter = stat->kind == STAT_COUNTER;
    char name[96];

    snprintf(name, sizeof name, "lagan_kv_%s%s", stat->name, counter ? "_total" : "");
    head(out, name, counter ? "counter" : "gauge", stat->sentence);
    for (uint32_t i = 0; i < d->n_workers; i++)
        for (uint32_t g = 0; g < SHM_MAX_GROUPS; g++) {
            const struct worker_info *f = worker_info(d->worker[i]);
            const uint64_t *v = f->stats.group[g];

            if (v[GROUP_STAT_kind] == 0) continue;
            print_worker_labels(d, out, name, f);
            fprintf(out, "\",group=\"%u\",kind=\"%s\",window=\"%llu\",pool=\"%llu\"} %llu\n", g,
                    group_kinds[MIN(v[GROUP_STAT_kind], ARRAY_LEN(group_kinds) - 1)],
                    (unsigned long long)v[GROUP_STAT_window],
                    (unsigned long long)v[GROUP_STAT_pool],
                    (unsigned long long)(v[id] + f->former.group[g][id]));
        }
}

/* Prints a histogram of all models: cumulative buckets, then sum and count. */
static void
print_histogram(const struct daemon *d, enum histogram_id id, FILE *out)
{
    const struct histogram_info *info = &histogram_infos[id];
    double unit = info->unit == HISTOGRAM_TIME ? 1e-4 : 1;
    char name[64];

    snprintf(name, sizeof name, "lagan_%s", info->name);
    head(out, name, "histogram", info->sentence);
    for (uint32_t m = 0; m < d->config->n_models; m++) {
        const struct histogram *h = &d->histograms->of[m][id];
        uint64_t below = 0;

        for (uint32_t i = 0; i <= HISTOGRAM_BUCKETS; i++) {
            below += h->bucket[i];
            fprintf(out, "%s_bucket{model=\"", name);
            label(out, d->config->model[m].keys.name);
            if (i < HISTOGRAM_BUCKETS)
                fprintf(out, "\",le=\"%.10g\"} ", unit * (double)histogram_limit(i));
            else
                fputs("\",le=\"+Inf\"} ", out);
            fprintf(out, "%llu\n", (unsigned long long)below);
        }
        fprintf(out, "%s_sum{model=\"", name);
        label(out, d->config->model[m].keys.name);
        fprintf(out, "\"} %.10g\n",
                info->unit == HISTOGRAM_TIME ? (double)h->sum / NSEC_S : (double)h->sum);
        fprintf(out, "%s_count{model=\"", name);
        label(out, d->config->model[m].keys.name);
        fprintf(out, "\"} %llu\n", (unsigned long long)h->n);
    }
}

static uint64_t
n_suspended(const struct daemon *d)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < ledger_counts(d->ledger).capacity; i++) {
        const struct request *r = ledger_request(d->ledger, i);
        const struct request_info f = r ? request_info(r) : (struct request_info){ 0 };

        n += f.held && f.suspended;
    }
    return n;
}

/* ---- lagand's own metrics: name, type, unit, HELP, value of struct daemon *d */

/* UNIT_SECONDS: the value in the table is in nanoseconds and is printed in seconds. */
enum unit { UNIT_COUNT, UNIT_BYTES, UNIT_SECONDS };

/* clang-format off */
#define DAEMON_METRICS(X) \
    X(lagan_uptime_seconds,          "gauge",   UNIT_SECONDS, "time since lagand was started", d->now - d->started) \
    X(lagan_clients,                 "gauge",   UNIT_COUNT, "clients that are connected and have sent at least one message", session_n(d->sessions)) \
    X(lagan_requests,                "gauge",   UNIT_COUNT, "accepted requests that have not ended (open requests)", ledger_counts(d->ledger).open) \
    X(lagan_requests_queued,         "gauge",   UNIT_COUNT, "open requests that no worker has yet", ledger_counts(d->ledger).queued) \
    X(lagan_requests_suspended,         "gauge",   UNIT_COUNT, "open requests whose generation is suspended because their client does not acknowledge tokens", n_suspended(d)) \
    X(lagan_requests_bytes,          "gauge",   UNIT_BYTES, "memory reserved in lagand for open requests, in bytes; limited by api.memory", d->held_bytes) \
    X(lagan_requests_accepted_total, "counter", UNIT_COUNT, "requests accepted since lagand was started", d->n_requests) \
    X(lagan_routed_hit_tokens_total, "counter", UNIT_COUNT, "prompt tokens that were expected in the prefix cache of the worker that lagand selected, where a model has several workers", kv_watch_hit_tokens(d)) \
    X(lagan_requests_refused_total,           "counter", UNIT_COUNT, "messages of clients (requests and all other types) that lagand refused with an ERROR", d->n_refused)

/* The same columns for metrics of each worker w. */
#define WORKER_METRICS(X) \
    X(lagan_worker_ready,          "gauge",   UNIT_COUNT, "1 if the worker accepts requests, else 0", worker_open(w)) \
    X(lagan_worker_standby,        "gauge",   UNIT_COUNT, "1 if a second process with loaded weights is ready to replace the worker (option standby), else 0", !strcmp(worker_standby(w), "standby")) \
    X(lagan_worker_restarts_total, "counter", UNIT_COUNT, "crashes and forced kills of the worker after which lagand started it again", worker_info(w)->restarts)
/* clang-format on */

static void
print_value(FILE *out, enum unit unit, uint64_t v)
{
    if (unit == UNIT_SECONDS)
        fprintf(out, "%.3f\n", (double)v / NSEC_S);
    else
        fprintf(out, "%llu\n", (unsigned long long)v);
}

static void
print_daemon(const struct daemon *d, FILE *out)
{
#define X(name, kind, unit, sentence, value) \
    head(out, #name, kind, sentence); \
    fprintf(out, "%s ", #name); \
    print_value(out, unit, (uint64_t)(value));
    DAEMON_METRICS(X)
#undef X
    head(out, "lagan_build_info", "gauge", "always 1; the label has the version of lagand");
    fputs("lagan_build_info{version=\"" PACKAGE_VERSION "\"} 1\n", out);
}

static void
print_workers(struct daemon *d, FILE *out)
{
    for (uint32_t i = 0; i < d->n_workers; i++) worker_look(d->worker[i]);
#define X(name, kind, unit, sentence, value) \
    head(out, #name, kind, sentence); \
    for (uint32_t i = 0; i < d->n_workers; i++) { \
        const struct worker *w = d->worker[i]; \
\
        if (worker_hidden(w)) continue; \
        print_worker_labels(d, out, #name, worker_info(w)); \
        fputs("\"} ", out); \
        print_value(out, unit, (uint64_t)(value)); \
    }
    WORKER_METRICS(X)
#undef X
    for (uint32_t i = 0; i < STAT_COUNT; i++) print_stat(d, &stat_rows[i], i, out);
    for (uint32_t i = GROUP_STAT_bytes; i < GROUP_STAT_COUNT; i++)
        print_group_stat(d, &group_stat_rows[i], i, out);
}

static void
print_ended(const struct daemon *d, FILE *out)
{
    head(out, "lagan_requests_ended_total", "counter",
         "accepted requests that have ended, by finish reason or error code (label reason)");
    for (uint32_t i = 1; i < REASONS; i++) {
        const char *word = msg_reason(i, NULL);

        /* Skips two finish reasons: `cancelled`, because LAGAN_E_CANCELLED has the same label and
         * counts these requests, and `error`, because such a request ends with an error code. */
        if (!word || (i < LAGAN_E_INVALID_REQUEST && i >= LAGAN_FINISH_CANCELLED)) continue;
        fprintf(out, "lagan_requests_ended_total{reason=\"%s\"} %llu\n", word,
                (unsigned long long)d->n_ended[i]);
    }
}

void
metrics_print(struct daemon *d, FILE *out)
{
    print_daemon(d, out);
    print_ended(d, out);
    print_workers(d, out);
    for (uint32_t i = 0; i < N_HISTOGRAMS; i++) print_histogram(d, i, out);
}
