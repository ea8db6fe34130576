/* trace_run.c - runs a trace on a simulated fleet and prints the results: see trace_run.h. */
#include "sim/trace_run.h"

#include "base/clock.h"
#include "base/opt.h"
#include "sim/fleet.h"

#include <inttypes.h>
#include <stdio.h>

struct trace_run_args {
    char model[400], trace[400], split[16];
    uint32_t workers, ahead, max_tokens;
    uint64_t seed, requests;
    nsec every, restart, target;
    double cancelled, suspended, stopped, deaths, rate;
    bool affinity, json, digest, check, help;
};
/* clang-format off */
static const struct opt opts[] = {
    { "model", OPT_STR, OPT_AT(trace_run_args, model), .arg = "FILE", .sentence = "file with the settings of each worker; sim/models/ has examples" },
    { "trace", OPT_STR, OPT_AT(trace_run_args, trace), .arg = "FILE", .sentence = "file with the requests in order of arrival, one JSON object per line; -: standard input" },
    { "workers", OPT_U32, OPT_AT(trace_run_args, workers), "1", .min = 1, .max = 100000, .arg = "N", .sentence = "number of simulated workers" },
    { "ahead", OPT_U32, OPT_AT(trace_run_args, ahead), "8", .min = 0, .max = 100000, .arg = "N", .sentence = "maximum number of requests that a worker may have waiting; more wait in the queue of lagand" },
    { "rate", OPT_F64, OPT_AT(trace_run_args, rate), "0", .min = 0, .max = 1e9, .arg = "R", .sentence = "arrivals per second, at equal distances; 0: the arrival times of the trace are used" },
    { "requests", OPT_U64, OPT_AT(trace_run_args, requests), "0", .arg = "N", .sentence = "number of requests; a shorter trace is repeated; 0: every request of the trace once" },
    { "every", OPT_NSEC, OPT_AT(trace_run_args, every), "10s", .arg = "TIME", .sentence = "virtual time between two printed reports of the KV cache usage; 0: no reports" },
    { "split", OPT_STR, OPT_AT(trace_run_args, split), "", .arg = "MODE", .sentence = "division of the device between prefill and decode: off, auto, a number of SMs for prefill (64) or a share (0.5); empty: as in the model file" },
    { "target", OPT_NSEC, OPT_AT(trace_run_args, target), "0", .arg = "TIME", .sentence = "with --split auto: longest acceptable time between two tokens of an output; 0: as in the model file" },
    { "max_num_batched_tokens", OPT_U32, OPT_AT(trace_run_args, max_tokens), "0", .max = 1 << 24, .arg = "N", .sentence = "maximum number of decoder tokens in a step; 0: as in the model file" },
    { "cancelled", OPT_F64, OPT_AT(trace_run_args, cancelled), "0", .min = 0, .max = 1, .arg = "X", .sentence = "share of the requests, 0 to 1, that the client cancels" },
    { "suspended", OPT_F64, OPT_AT(trace_run_args, suspended), "0", .min = 0, .max = 1, .arg = "X", .sentence = "share of the requests, 0 to 1, whose client does not read for some time" },
    { "stopped", OPT_F64, OPT_AT(trace_run_args, stopped), "0", .min = 0, .max = 1, .arg = "X", .sentence = "share of the requests, 0 to 1, that end before the output length of the trace" },
    { "deaths", OPT_F64, OPT_AT(trace_run_args, deaths), "0", .min = 0, .max = 1e6, .arg = "R", .sentence = "mean number of crashes of each worker per second of virtual time" },
    { "restart", OPT_NSEC, OPT_AT(trace_run_args, restart), "500ms", .arg = "TIME", .sentence = "virtual time from the crash of a worker until it serves again" },
    { "seed", OPT_U64, OPT_AT(trace_run_args, seed), "1", .arg = "N", .sentence = "seed of the random events: cancels, suspensions, crashes" },
    { "affinity", OPT_BOOL, OPT_AT(trace_run_args, affinity), .sentence = "prefer the worker whose prefix cache has the start of the prompt" },
    { "json", OPT_BOOL, OPT_AT(trace_run_args, json), .sentence = "print JSON, one object per line; the last line is the result" },
    { "digest", OPT_BOOL, OPT_AT(trace_run_args, digest), .sentence = "print a hash of all scheduled batches, to compare two runs" },
    { "check", OPT_BOOL, OPT_AT(trace_run_args, check), .sentence = "check the invariants of scheduler and KV manager regularly and at the end" },
    { "help", OPT_BOOL, OPT_AT(trace_run_args, help), .sentence = "print this help and exit" },
    { 0 }
};
/* clang-format on */

static void
report_use(void *json_lines, const struct fleet_use *u)
{
    bool json = *(const bool *)json_lines;

    printf(json ? "{\"t\":%.3f,\"queued\":%" PRIu64 ",\"waiting\":%" PRIu64 ",\"running\":%" PRIu64
                  ",\"pools\":["
                : "%10.1f s %8" PRIu64 " queued %8" PRIu64 " waiting %8" PRIu64 " running",
           (double)u->at / 1e9, u->queued, u->waiting, u->running);
    for (uint32_t p = 0; p < u->n_pools; p++) {
        uint64_t used = u->used[p], cached = u->cached[p], free = u->free[p];
        double percent = 100 / MAX((double)(used + cached + free), 1.);

        if (json) {
            printf("%s{\"used\":%" PRIu64 ",\"cached\":%" PRIu64 ",\"free\":%" PRIu64 "}",
                   p ? "," : "", used, cached, free);
        } else {
            printf("  pool %u: %.1f %% used, %.1f %% cached", p, (double)used * percent,
                   (double)cached * percent);
        }
    }
    puts(json ? "]}" : "");
}

static void
report_times(bool json, const struct fleet_result *r)
{
    static const double share[] = { 0.5, 0.9, 0.99, 0.999 };
    const struct {
        const char *name, *key;
        const struct hist *h;
    } rows[] = { { "TTFT", "ttft", &r->ttft },
                 { "ITL", "itl", &r->itl },
                 { "TPOT", "tpot", &r->tpot },
                 { "E2E", "e2e", &r->e2e } };

    for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
        const struct hist *h = rows[k].h;
        double ms[ARRAY_LEN(share)];

        for (size_t i = 0; i < ARRAY_LEN(share); i++) ms[i] = (double)hist_at(h, share[i]) / 1e6;
        printf(json ? ",\"%s_ms\":{\"mean\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,"
                      "\"p999\":%.3f,\"max\":%.3f}"
                    : "%-6s %12.3f %12.3f %12.3f %12.3f %12.3f %12.3f\n",
               json ? rows[k].key : rows[k].name, hist_mean(h) / 1e6, ms[0], ms[1], ms[2], ms[3],
               (double)h->max / 1e6);
    }
}

static void
report_result(bool json, const struct fleet_result *r, double seconds)
{
    double end = r->end > 0 ? (double)r->end / 1e9 : 1e-9, prompt = (double)r->prompt_tokens;

    if (json) {
        printf("{\"requests\":%" PRIu64 ",\"finished\":%" PRIu64 ",\"cancelled\":%" PRIu64
               ",\"refused\":%" PRIu64 ",\"moved\":%" PRIu64 ",\"deaths\":%" PRIu64
               ",\"preemptions\":%" PRIu64 ",\"steps\":%" PRIu64 ",\"virtual_s\":%.3f,"
               "\"cached_tokens\":%" PRIu64 ",\"request_throughput\":%.3f,"
               "\"prompt_throughput\":%.1f,\"output_throughput\":%.1f,\"real_s\":%.1f",
               r->requests, r->finished, r->cancelled, r->refused, r->moved, r->deaths,
               r->preemptions, r->steps, end, r->cached_tokens, (double)r->finished / end,
               prompt / end, (double)r->output_tokens / end, seconds);
        report_times(json, r);
        printf(",\"digest\":\"%016" PRIx64 "\"}\n", r->digest);
        return;
    }
    printf(
        "%" PRIu64 " requests in %.1f s: %" PRIu64 " finished, %" PRIu64 " cancelled, %" PRIu64
        " refused; %" PRIu64 " steps\n%" PRIu64 " workers crashed, %" PRIu64
        " requests moved to another worker; %" PRIu64 " preemptions\n"
        "%.2f requests/s, %.0f prompt tokens/s (%.1f %% of them cached), %.0f output tokens/s\n\n"
        "ms             mean          p50          p90          p99        p99.9          max\n",
        r->requests, end, r->finished, r->cancelled, r->refused, r->steps, r->deaths, r->moved,
        r->preemptions, (double)r->finished / end, prompt / end,
        100.0 * (double)r->cached_tokens / MAX(prompt, 1.), (double)r->output_tokens / end);
    report_times(json, r);
    printf("\n%.1f s of real time\n", seconds);
}

static void
print_help(void)
{
    puts("Usage: lagan-sim run --model FILE --trace FILE [OPTION]...\n"
         "Run a trace on a fleet of simulated workers in virtual time, with the production\n"
         "scheduler, KV manager and routing, and a roofline model of the GPU.\n\n"
         "Options, with the default in []:");
    opt_help(opts, OPT_TYPED, stdout);
    puts("\nExamples:\n"
         "  bench/traces.py chat 10000 --rate 20 >chat.jsonl\n"
         "  lagan-sim run --model sim/models/llama-8b-h200.txt --trace chat.jsonl --workers 2\n"
         "  lagan-sim run --model sim/models/llama-8b-h200.txt --trace chat.jsonl \\\n"
         "                --workers 1000 --requests 1000000 --rate 20000 --every 0 --json\n\n"
         "A model file has one setting per line; `lagan-sim script --help` lists them.\n"
         "A trace line:\n"
         "  {\"arrival_s\": 0.25, \"isl\": 900, \"osl\": 210}\n"
         "isl: prompt tokens, osl: output tokens. Optional keys: \"prefix_id\", \"prefix_len\"\n"
         "(shared prefix), \"session\" (conversation; its requests share all earlier tokens),\n"
         "\"priority\" (0 .. 1), \"client\", \"lora\", \"encdec\": true (isl is the encoder "
         "input).\n\n"
         "TTFT: arrival to first token; ITL: between two tokens; TPOT: mean ITL of a request;\n"
         "E2E: arrival to last token.");
}

/* Adds the requests of the trace to the fleet, and repeats the trace up to a->requests requests. */
static int
feed_trace(struct fleet *f, const struct trace_run_args *a, struct err *e)
{
    uint64_t n = 0;
    nsec again = 0, last = 0;

    do {
        CLEAN(trace_close_at) struct trace *t = NULL;
        uint64_t before = n;
        struct trace_line line;
        int r;

        TRY(trace_open(&t, a->trace, e));
        while ((!a->requests || n < a->requests) && (r = trace_next(t, &line, e)) != 0) {
            if (r < 0) return r;
            line.arrival = a->rate > 0 ? (nsec)((double)n / a->rate * 1e9) : line.arrival + again;
            last = line.arrival;
            TRY(fleet_add(f, &line, e));
            n++;
        }
        if (n == 0) return err_set(e, -1, "%s contains no request", a->trace);
        if (n == before)
            return err_set(e, -1, "%s has %llu requests and cannot be reread for --requests %llu",
                           a->trace, (unsigned long long)n, (unsigned long long)a->requests);
        again = last;
    } while (n < a->requests);
    return fleet_finish(f, e);
}

/* Applies the options that replace settings of the model file to *st. */
static void
change_setting(struct sim_config *st, const struct trace_run_args *a)
{
    struct sim_division *d = &st->divide;

    if (a->max_tokens) st->sched.max_tokens = a->max_tokens;
    if (a->target) d->target = a->target;
    if (a->split[0])
        setting_divide(st,
                       strcmp(a->split, "off") == 0    ? DIVIDE_OFF
                       : strcmp(a->split, "auto") == 0 ? DIVIDE_AUTO
                                                       : DIVIDE_FIXED,
                       a->split);
}

static int
run_fleet(const struct trace_run_args *a, struct err *e)
{
    CLEAN(fleet_free_at) struct fleet *f = NULL;
    bool json = a->json;
    struct fleet_setting s = {
        .n_workers = a->workers,
        .ahead = a->ahead,
        .affinity = a->affinity,
        .faults = { a->seed, a->cancelled, a->suspended, a->stopped, a->deaths, a->restart },
        .every = a->every,
        .use = report_use,
        .to = &json,
        .digest = a->digest,
        .check = a->check,
    };
    nsec start = clock_now();

    TRY(setting_read(&s.worker, a->model, e));
    change_setting(&s.worker, a);
    TRY(fleet_new(&f, &s, e));
    TRY(feed_trace(f, a, e));
    report_result(a->json, fleet_result(f), (double)(clock_now() - start) / 1e9);
    return 0;
}

int
run_main(int argc, char **argv)
{
    struct trace_run_args a;
    struct err e;
    uint64_t given = 0;
    int at = 0;

    opt_defaults(opts, &a);
    if (opt_argv(opts, &a, &given, argc, argv, &at, &e) < 0) {
        fprintf(stderr, "lagan-sim run: %s\n", e.text);
        return 2;
    }
    if (a.help) {
        print_help();
        return 0;
    }
    if (at < argc || !a.model[0] || !a.trace[0]) {
        fputs("lagan-sim run: --model FILE and --trace FILE are required; no operands\n", stderr);
        return 2;
    }
    if (run_fleet(&a, &e) == 0) return 0;
    fprintf(stderr, "lagan-sim run: %s\n", e.text);
    return 1;
}
