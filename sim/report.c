/* report.c - see report.h. */
#include "sim/report.h"

static double
s_of(nsec t)
{
    return (double)t / 1e9;
}

void
report_use(FILE *out, bool json, uint32_t n_pools, const struct fleet_use *u)
{
    unsigned long long queued = u->queued, waiting = u->waiting, running = u->running;

    if (json) {
        fprintf(out, "{\"t\":%.3f,\"queued\":%llu,\"waiting\":%llu,\"running\":%llu,\"pools\":[",
                s_of(u->at), queued, waiting, running);
    } else {
        fprintf(out, "%10.1f s %8llu queued %8llu waiting %8llu running", s_of(u->at), queued,
                waiting, running);
    }
    for (uint32_t p = 0; p < n_pools; p++) {
        unsigned long long used = u->used[p], cached = u->cached[p], free = u->free[p];

        if (json) {
            fprintf(out, "%s{\"used\":%llu,\"cached\":%llu,\"free\":%llu}", p ? "," : "", used,
                    cached, free);
        } else {
            double all = (double)(used + cached + free) / 100;

            fprintf(out, "  pool %u: %.1f %% used, %.1f %% cached", p,
                    all > 0 ? (double)used / all : 0, all > 0 ? (double)cached / all : 0);
        }
    }
    fputs(json ? "]}\n" : "\n", out);
}

static void
report_times(FILE *out, bool json, const char *name, const struct hist *h)
{
    static const double share[] = { 0.5, 0.9, 0.99, 0.999 };
    double ms[ARRAY_LEN(share)];

    for (size_t i = 0; i < ARRAY_LEN(share); i++) ms[i] = (double)hist_at(h, share[i]) / 1e6;
    fprintf(out,
            json ? ",\"%s_ms\":{\"mean\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"p999\":%.3f,"
                   "\"max\":%.3f}"
                 : "%-6s %12.3f %12.3f %12.3f %12.3f %12.3f %12.3f\n",
            name, hist_mean(h) / 1e6, ms[0], ms[1], ms[2], ms[3], (double)h->max / 1e6);
}

void
report_result(FILE *out, bool json, const struct fleet_result *r, double seconds)
{
    double end = s_of(r->end);
    unsigned long long requests = r->requests, finished = r->finished, cancelled = r->cancelled,
                       refused = r->refused, moved = r->moved, deaths = r->deaths, steps = r->steps,
                       preemptions = r->preemptions, cached = r->cached_tokens;

    end = end > 0 ? end : 1e-9;
    if (json) {
        fprintf(
            out,
            "{\"requests\":%llu,\"finished\":%llu,\"cancelled\":%llu,\"refused\":%llu,"
            "\"moved\":%llu,\"deaths\":%llu,\"preemptions\":%llu,\"steps\":%llu,\"virtual_s\":%.3f,"
            "\"cached_tokens\":%llu,\"request_throughput\":%.3f,\"prompt_throughput\":%.1f,"
            "\"output_throughput\":%.1f,\"real_s\":%.1f",
            requests, finished, cancelled, refused, moved, deaths, preemptions, steps, end, cached,
            (double)r->finished / end, (double)r->prompt_tokens / end,
            (double)r->output_tokens / end, seconds);
        report_times(out, json, "ttft", &r->ttft);
        report_times(out, json, "itl", &r->itl);
        report_times(out, json, "tpot", &r->tpot);
        report_times(out, json, "e2e", &r->e2e);
        fprintf(out, ",\"digest\":\"%016llx\"}\n", (unsigned long long)r->digest);
        return;
    }
    fprintf(
        out,
        "%llu requests in %.1f s: %llu finished, %llu cancelled, %llu refused; %llu steps\n"
        "%llu workers crashed, %llu requests moved to another worker; %llu preemptions\n"
        "%.2f requests/s, %.0f prompt tokens/s (%.1f %% of them cached), %.0f output tokens/s\n\n"
        "ms             mean          p50          p90          p99        p99.9          max\n",
        requests, end, finished, cancelled, refused, steps, deaths, moved, preemptions,
        (double)r->finished / end, (double)r->prompt_tokens / end,
        r->prompt_tokens ? 100.0 * (double)r->cached_tokens / (double)r->prompt_tokens : 0,
        (double)r->output_tokens / end);
    report_times(out, json, "TTFT", &r->ttft);
    report_times(out, json, "ITL", &r->itl);
    report_times(out, json, "TPOT", &r->tpot);
    report_times(out, json, "E2E", &r->e2e);
    fprintf(out, "\n%.1f s of real time\n", seconds);
}
