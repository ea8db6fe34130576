/* bench_serve.c - what a client gets from a model of real shape, through lagand and its worker.
 *
 *     bench_serve --model DIR [--device cuda] [--set KEY=VALUE]... [--programs DIR] [--runs N]
 *                 [--cold] CASE...
 *
 *     decode=B:CONTEXT      B sequences at once, from the first token of the last one to the end of
 *                           the first one
 *     batch=B:IN:OUT        B requests at once, until the last one ends: requests and tokens per
 *                           second
 *     same=B:IN:OUT         the same, all requests with one prompt
 *     beam=B:IN:OUT:K       B searches at once with K beams each; the tokens of all beams count
 *     serve=B:IN:OUT:N      N requests, B of them always in flight
 *     prefill=N:IN          N prompts at once, one token each: prompt tokens per second
 *     kill=B:CONTEXT:CALM   SIGKILL of the worker while B sequences decode, N times, CALM tokens of
 *                           each stream between two deaths: time until a worker is ready again, and
 *                           gap_ms, the longest wait of a stream for its next token (gap_mid_ms:
 *                           median of the streams)
 *     rank=B:CONTEXT:CALM   the same with rank 1 of a tensor-parallel model
 *     crash=B:CONTEXT:CALM  the same once, with a step that writes to invalid memory; --programs
 *                           names the directory of tests/torture's lagand and lagan-worker
 *     trace=FILE[:MOST]     the requests of a file of traces.py, each at its arrival time (0 if the
 *                           file has none), at most MOST tokens each; also median and 99th
 *                           percentile of time per output token, of gaps and of time to first
 *                           token, and the steps by kind
 *     steady=B:IN:OUT:SECONDS
 *                           B requests always in flight; the first ones are shortened so that they
 *                           end one after another. Measures SECONDS after a settling time of half
 *                           of that, both ends moved to the next first token: tokens, prompts_s,
 *                           and the times of a trace for requests with at least 1/8 of their tokens
 *                           in that time. The load is steady if both rates agree. The first prompts
 *                           are the same in each case: with --set kv.reuse=true they are cached
 *     split=MODE            no case: sets the division for the following cases: off, auto or
 *                           PREFILL:DECODE
 *
 * DIR needs only a config.json (bench/configs): weights and prompts are random, lengths are forced.
 * lagand is started for the run. A case runs once to warm up (not with --cold), then N times. Its
 * line ends with the worker's share of a core, the time of a step, and, if the device measures
 * them, the idle time between two steps and the number of newly captured steps, all of the last
 * run.
 */
#include "base/clock.h"
#include "base/rng.h"
#include "bench/serve.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>

enum {
    MAX_REQUESTS = 4096,
    MAX_RUNS = 100,
    MAX_CASES = 48,
    DECODE_STEPS = 160,
    MAX_GAPS = 1 << 20
};
/* After this time without a token, the last token of a dead worker has arrived. On the CPU a
 * replacement may serve after 20 ms. */
enum { QUIET_MS = 20, QUIET_CPU_MS = 5 };
enum { CALM_MORE = 16 }; /* additional tokens per death */

struct request {
    uint64_t id;
    uint32_t in, out, got;
    nsec at; /* arrival, from the start of the run */
    nsec sent, first, last;
    uint32_t stop; /* cancelled at this number of tokens; 0: never */
    uint32_t seen; /* got at the start of the measurement */
    nsec from;     /* time of the last token before that */
    uint32_t calm; /* tokens since the last death */
    nsec gap;      /* longest time between two tokens since the last death */
    bool over;
};

/* The figures of one run of a case. */
struct figure {
    double value, more; /* more: the second figure of the kind */
    double middle;      /* median of the streams, if more is their maximum */
    double ttft_ms, core, step_us, idle_us;
    double tpot_ms, tpot_99, gap_99, ttft_99; /* trace and steady */
    double prompts;                           /* steady: per second */
    double kind_ms[BENCH_KINDS];              /* prefill, decode, mixed steps */
    uint64_t kind_n[BENCH_KINDS];
    double captured; /* newly captured steps; -1: the device captures none */
};

struct bench {
    struct bench_serve s;
    uint32_t vocab;
    uint64_t random;
    char mode[32]; /* " split=..." */
    bool cold;
    uint32_t beams;       /* per request; 0: no search */
    uint64_t same_prompt; /* seed of the prompt of all requests; 0: different prompts */
    struct request q[MAX_REQUESTS];
    uint32_t n, n_sent, n_first, n_over;
    uint32_t n_deaths, n_dead, calm;        /* deaths to cause, caused; tokens between two */
    bool (*strike)(struct bench_serve *s);  /* causes a death */
    struct figure *death;                   /* [n_deaths] */
    nsec struck;                            /* time of the last death; 0: a worker is ready */
    struct bench_worker at_began, at_ended; /* last first token; first end of a request */
};

static uint32_t
below(struct bench *b, uint32_t n)
{
    return rng_below(&b->random, n);
}

static void
submit(struct bench *b, struct request *q)
{
    struct lagan_request *r = lagan_request_new();
    int32_t *ids = malloc(q->in * sizeof *ids);

    if (!r || !ids) bench_die("no memory for a prompt of %u", q->in);
    if (b->same_prompt) b->random = b->same_prompt;
    if (b->beams) lagan_set_int(r, "beams", b->beams);
    for (uint32_t i = 0; i < q->in; i++) ids[i] = (int32_t)(10 + below(b, b->vocab - 20));
    lagan_set_ids(r, "ids", ids, q->in);
    lagan_set_int(r, "max_tokens", q->out);
    lagan_set_bool(r, "ignore_eos", 1);
    lagan_set_int(r, "forced_eos", -1);
    q->sent = clock_now();
    if (lagan_submit(b->s.client, r, &q->id) < 0) bench_die("%s", lagan_errmsg(b->s.client));
    lagan_request_free(r);
    free(ids);
    b->n_sent++;
}

static int
by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double
median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Sets the median gap of the last death. */
static void
finish_death(struct bench *b)
{
    static double v[MAX_REQUESTS];

    for (uint32_t i = 0; i < b->n; i++) v[i] = (double)b->q[i].gap / NSEC_MS;
    b->death[b->n_dead - 1].middle = median(v, b->n);
}

static void
strike(struct bench *b)
{
    if (b->n_dead) finish_death(b);
    b->struck = clock_now();
    b->n_dead++;
    for (uint32_t i = 0; i < b->n; i++) b->q[i].calm = 0, b->q[i].gap = 0;
    if (!b->strike(&b->s)) bench_die("the worker exited before the kill");
}

static void
await_replacement(struct bench *b)
{
    b->death[b->n_dead - 1].value = (double)(bench_wait_replacement(&b->s) - b->struck) / NSEC_MS;
    b->death[b->n_dead - 1].idle_us = -1;
    b->struck = 0;
}

static void
count_tokens(struct bench *b, struct request *q, uint32_t n)
{
    nsec now = clock_now();
    uint32_t calm = UINT32_MAX;

    if (q->got)
        q->gap = MAX(q->gap, now - q->last);
    else
        q->first = now, b->n_first++;
    if (!q->got && b->n_first == b->n) bench_worker(&b->s, &b->at_began);
    q->last = now;
    q->got += n;
    q->calm += n;
    if (b->n_dead)
        b->death[b->n_dead - 1].more = MAX(b->death[b->n_dead - 1].more, (double)q->gap / NSEC_MS);
    if (b->struck || b->n_dead == b->n_deaths) return;
    for (uint32_t i = 0; i < b->n; i++) calm = MIN(calm, b->q[i].calm);
    if (calm >= b->calm) strike(b);
}

static void
take(struct bench *b, const struct lagan_event *ev)
{
    struct request *q = b->q;

    while (q < b->q + b->n && q->id != ev->id) q++;
    if (q == b->q + b->n) return; /* a request of the previous run */
    switch (ev->kind) {
    case LAGAN_EVENT_TOKENS:
        count_tokens(b, q, ev->n_ids);
        break;
    case LAGAN_EVENT_DONE:
        if (q->got != q->out)
            bench_die("a request ended after %u tokens, %u were requested", q->got, q->out);
        q->over = true;
        if (b->n_over++ == 0) bench_worker(&b->s, &b->at_ended);
        break;
    case LAGAN_EVENT_ERROR:
        bench_die("%s: %s", ev->reason_name ? ev->reason_name : "?",
                  ev->message ? ev->message : "?");
    case LAGAN_EVENT_DISCONNECTED:
        bench_die("%s: %s", ev->reason_name ? ev->reason_name : "lost",
                  ev->message ? ev->message : "");
    default:
        break;
    }
}

/* Submits the requests that are due, at most in_flight open ones. Returns the time until the next
 * one is due; 0: it waits for an end, not for a time. */
static nsec
submit_due(struct bench *b, uint32_t in_flight, nsec since)
{
    while (b->n_sent < b->n && b->n_sent - b->n_over < in_flight) {
        nsec wait = since + b->q[b->n_sent].at - clock_now();

        if (wait > 0) return wait;
        submit(b, &b->q[b->n_sent]);
    }
    return 0;
}

/* Runs all of q[0 .. n), in_flight at a time. Returns the time until the last token. */
static nsec
run_requests(struct bench *b, uint32_t in_flight)
{
    nsec since = clock_now(), end = since;

    b->n_sent = b->n_first = b->n_over = 0;
    for (uint32_t i = 0; i < b->n; i++)
        b->q[i].id = UINT64_MAX, b->q[i].got = 0, b->q[i].gap = 0, b->q[i].over = false;
    while (b->n_over < b->n) {
        struct lagan_event ev = { .size = sizeof ev };
        nsec wait = submit_due(b, in_flight, since);
        bool cpu = !b->s.device || !strcmp(b->s.device, "cpu");
        int r = lagan_next(b->s.client, &ev,
                           b->struck ? (cpu ? QUIET_CPU_MS : QUIET_MS)
                           : wait    ? (int)MIN(wait / NSEC_MS, (nsec)120000)
                                     : 120000);

        if (r == 0 && b->struck)
            await_replacement(b);
        else if (r == 0 && wait)
            continue;
        else if (r <= 0)
            bench_die("no event for 120 s: %s", lagan_errmsg(b->s.client));
        else
            take(b, &ev);
    }
    for (uint32_t i = 0; i < b->n; i++) end = MAX(end, b->q[i].last);
    return end - since;
}

static void
set_requests(struct bench *b, uint32_t n, uint32_t in, uint32_t out)
{
    if (n > MAX_REQUESTS) bench_die("%u requests, %d at most", n, MAX_REQUESTS);
    b->n = n;
    for (uint32_t i = 0; i < n; i++) b->q[i] = (struct request){ .in = in, .out = out };
}

/* Sets the figures of the worker between two readings. */
static void
account(struct figure *f, const struct bench_worker *from, const struct bench_worker *to)
{
    double steps = (double)(to->steps - from->steps), wall = (double)(to->at - from->at);

    for (unsigned i = 0; i < BENCH_KINDS; i++) {
        f->kind_n[i] = to->kind[i].n - from->kind[i].n;
        f->kind_ms[i] = f->kind_n[i] ? (double)(to->kind[i].ns - from->kind[i].ns) /
                                           (double)f->kind_n[i] / NSEC_MS
                                     : 0;
    }
    f->captured = to->graphs ? (double)to->graphs - (double)from->graphs : -1;
    f->core = wall > 0 ? (double)(to->cpu - from->cpu) / wall : 0;
    f->step_us = steps > 0 ? wall / steps / NSEC_US : 0;
    f->idle_us = to->gaps > from->gaps
                     ? (double)(to->idle - from->idle) / (double)(to->gaps - from->gaps) / NSEC_US
                     : -1;
}

/* v is sorted. */
static double
percentile_99(const double *v, uint32_t n)
{
    return n ? v[(n - 1) * 99 / 100] : 0;
}

static double
median_ttft(const struct bench *b)
{
    static double v[MAX_REQUESTS];

    for (uint32_t i = 0; i < b->n; i++) v[i] = (double)(b->q[i].first - b->q[i].sent) / NSEC_MS;
    return median(v, b->n);
}

static void
run_decode(struct bench *b, const uint32_t *arg, struct figure *f)
{
    set_requests(b, arg[0], arg[1], DECODE_STEPS);
    run_requests(b, b->n);
    account(f, &b->at_began, &b->at_ended);
    f->more = (double)(b->at_ended.at - b->at_began.at) / NSEC_S;
    f->value = (double)(b->at_ended.tokens - b->at_began.tokens) / f->more;
}

static bool
kill_worker(struct bench_serve *s)
{
    return kill(s->worker, SIGKILL) == 0;
}

static bool
kill_rank(struct bench_serve *s)
{
    pid_t pid = bench_rank(s);

    return pid && kill(pid, SIGKILL) == 0;
}

static void
run_deaths(struct bench *b, bool (*how)(struct bench_serve *s), const uint32_t *arg,
           struct figure *f, uint32_t n)
{
    set_requests(b, arg[0], arg[1], (n + 1) * (arg[2] + CALM_MORE));
    b->calm = arg[2];
    b->strike = how;
    b->death = f;
    b->n_deaths = n;
    b->n_dead = 0;
    run_requests(b, b->n);
    if (b->n_dead < n) bench_die("the streams ended after %u deaths", b->n_dead);
    finish_death(b);
    b->n_deaths = b->n_dead = 0;
    for (uint32_t i = 0; i < n; i++) f[i].ttft_ms = median_ttft(b);
}

static void
run_batch(struct bench *b, const uint32_t *arg, struct figure *f)
{
    struct bench_worker from, to;
    double seconds;

    set_requests(b, arg[0], arg[1], arg[2]);
    bench_worker(&b->s, &from);
    seconds = (double)run_requests(b, b->n) / NSEC_S;
    bench_worker(&b->s, &to);
    account(f, &from, &to);
    f->value = b->n / seconds;
    f->more = (double)b->n * arg[2] / seconds;
}

static void
run_same(struct bench *b, const uint32_t *arg, struct figure *f)
{
    b->same_prompt = b->random;
    run_batch(b, arg, f);
    b->same_prompt = 0;
}

static void
run_beam(struct bench *b, const uint32_t *arg, struct figure *f)
{
    b->beams = arg[3];
    run_batch(b, arg, f);
    b->beams = 0;
    f->more *= arg[3];
}

static void
run_serve(struct bench *b, const uint32_t *arg, struct figure *f)
{
    struct bench_worker from, to;
    double seconds;

    set_requests(b, arg[3], arg[1], arg[2]);
    bench_worker(&b->s, &from);
    seconds = (double)run_requests(b, arg[0]) / NSEC_S;
    bench_worker(&b->s, &to);
    account(f, &from, &to);
    f->value = (double)b->n * arg[2] / seconds;
    f->more = b->n / seconds;
}

static void
run_prefill(struct bench *b, const uint32_t *arg, struct figure *f)
{
    struct bench_worker from, to;
    double seconds;

    set_requests(b, arg[0], arg[1], 1);
    bench_worker(&b->s, &from);
    seconds = (double)run_requests(b, b->n) / NSEC_S;
    bench_worker(&b->s, &to);
    account(f, &from, &to);
    f->value = (double)b->n * arg[1] / seconds;
    f->more = b->n / seconds;
}

static void
read_trace(struct bench *b, const char *name, uint32_t most)
{
    FILE *file = fopen(name, "re");
    char line[1024];

    if (!file) bench_die("%s cannot be opened", name);
    for (b->n = 0; fgets(line, sizeof line, file); b->n++) {
        json_t *o = json_loads(line, 0, NULL);

        if (strlen(line) == sizeof line - 1 && line[sizeof line - 2] != '\n')
            bench_die("%s:%u: the line is longer than %zu bytes", name, b->n + 1, sizeof line - 2);
        if (b->n == MAX_REQUESTS) bench_die("%s has more than %d requests", name, MAX_REQUESTS);
        if (!o) bench_die("%s:%u: no JSON object", name, b->n + 1);
        b->q[b->n] = (struct request){
            .in = (uint32_t)json_integer_value(json_object_get(o, "isl")),
            .out = (uint32_t)json_integer_value(json_object_get(o, "osl")),
            .at = (nsec)(json_number_value(json_object_get(o, "arrival_s")) * NSEC_S),
        };
        b->q[b->n].out = MIN(b->q[b->n].out, most);
        json_decref(o);
    }
    fclose(file);
}

/* Sets the times of a trace. */
static void
account_waits(const struct bench *b, struct figure *f)
{
    static double tpot[MAX_REQUESTS], gap[MAX_REQUESTS], ttft[MAX_REQUESTS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n; i++) {
        const struct request *q = &b->q[i];

        gap[i] = (double)q->gap / NSEC_MS;
        ttft[i] = (double)(q->first - q->sent) / NSEC_MS;
        if (q->out > 1) tpot[n++] = (double)(q->last - q->first) / NSEC_MS / (q->out - 1);
    }
    if (n) f->tpot_ms = median(tpot, n);
    f->tpot_99 = percentile_99(tpot, n);
    median(gap, b->n);
    median(ttft, b->n);
    f->gap_99 = percentile_99(gap, b->n);
    f->ttft_99 = percentile_99(ttft, b->n);
}

static void
run_trace(struct bench *b, const char *name, uint32_t most, struct figure *f)
{
    struct bench_worker from, to;
    double seconds, out = 0;

    read_trace(b, name, most);
    bench_worker(&b->s, &from);
    seconds = (double)run_requests(b, b->n) / NSEC_S;
    bench_worker(&b->s, &to);
    account(f, &from, &to);
    for (uint32_t i = 0; i < b->n; i++) out += b->q[i].out;
    f->value = out / seconds;
    f->more = b->n / seconds;
    account_waits(b, f);
}

/* Submits the first n prompts, which are the same in every run, so that the prefix cache may have
 * them. */
static void
submit_first(struct bench *b, uint32_t n)
{
    uint64_t others = b->random;

    b->random = 20261122;
    while (b->n_sent < n) submit(b, &b->q[b->n_sent]);
    b->random = others;
}

/* Takes one event, and appends a finished gap to v[*n]. A new request follows each that ends,
 * unless over. */
static void
take_steady(struct bench *b, bool over, double *v, uint32_t *n)
{
    struct lagan_event ev = { .size = sizeof ev };
    struct request *q = b->q;

    if (lagan_next(b->s.client, &ev, 120000) <= 0)
        bench_die("no event for 120 s: %s", lagan_errmsg(b->s.client));
    while (q < b->q + b->n_sent && q->id != ev.id) q++;
    if (q == b->q + b->n_sent) return;
    if (ev.kind == LAGAN_EVENT_TOKENS) {
        nsec now = clock_now();

        if (q->got && *n < MAX_GAPS) v[(*n)++] = (double)(now - q->last) / NSEC_MS;
        if (!q->got) q->first = now, b->n_first++;
        q->last = now;
        q->got += ev.n_ids;
        if (q->stop && q->got >= q->stop && q->got - ev.n_ids < q->stop)
            lagan_cancel(b->s.client, q->id);
    } else if (ev.kind == LAGAN_EVENT_DONE || ev.kind == LAGAN_EVENT_ERROR) {
        if (!over && !q->stop && ev.kind == LAGAN_EVENT_ERROR)
            bench_die("%s", ev.message ? ev.message : "?");
        q->over = true;
        b->n_over++;
        if (over) return;
        if (b->n_sent == MAX_REQUESTS) bench_die("more than %d requests", MAX_REQUESTS);
        submit(b, &b->q[b->n_sent]);
    }
}

/* Sets the times of requests with at least 1/8 of their tokens in the measurement. */
static void
account_steady(const struct bench *b, uint32_t out, double *v, uint32_t n, struct figure *f)
{
    static double tpot[MAX_REQUESTS], ttft[MAX_REQUESTS];
    uint32_t n_tpot = 0, n_ttft = 0;

    for (uint32_t i = 0; i < b->n_sent; i++) {
        const struct request *q = &b->q[i];
        nsec from = q->from ? q->from : q->first;
        uint32_t seen = q->seen ? q->seen : 1;

        if (q->got && !q->seen) ttft[n_ttft++] = (double)(q->first - q->sent) / NSEC_MS;
        if (q->got >= seen + MAX(out / 8, 1u))
            tpot[n_tpot++] = (double)(q->last - from) / NSEC_MS / (q->got - seen);
    }
    f->tpot_ms = n_tpot ? median(tpot, n_tpot) : 0;
    f->tpot_99 = percentile_99(tpot, n_tpot);
    f->ttft_ms = n_ttft ? median(ttft, n_ttft) : 0;
    f->ttft_99 = percentile_99(ttft, n_ttft);
    if (n) median(v, n);
    f->gap_99 = percentile_99(v, n);
}

/* Runs until that time and then to the next first token, so that the measurement has whole prompts.
 * */
static void
run_until(struct bench *b, nsec until, nsec more, double *gaps, uint32_t *n)
{
    uint32_t first;

    while (clock_now() < until) take_steady(b, false, gaps, n);
    first = b->n_first;
    while (b->n_first == first && clock_now() < until + more) take_steady(b, false, gaps, n);
}

static void
run_steady(struct bench *b, const uint32_t *arg, struct figure *f)
{
    static double gaps[MAX_GAPS];
    struct bench_worker from, to;
    uint32_t n = 0, some = arg[0];
    nsec most = arg[3] * NSEC_S;
    double seconds;

    set_requests(b, MAX_REQUESTS, arg[1], arg[2]);
    for (uint32_t i = 0; i < some; i++) b->q[i].out = 2 * arg[2];
    b->n_sent = b->n_first = b->n_over = 0;
    submit_first(b, some);
    for (uint32_t i = 0; i < some; i++)
        while (!b->q[i].got) take_steady(b, false, gaps, &n);
    for (uint32_t i = 0; i < some; i++)
        if (!b->q[i].over) b->q[i].stop = b->q[i].got + MAX(arg[2] * (i + 1) / some, 1u);
    run_until(b, clock_now() + most / 2, most, gaps, &n);
    n = 0;
    for (uint32_t i = 0; i < b->n_sent; i++)
        b->q[i].seen = b->q[i].got, b->q[i].from = b->q[i].last;
    bench_worker(&b->s, &from);
    run_until(b, from.at + most, most, gaps, &n);
    bench_worker(&b->s, &to);
    account(f, &from, &to);
    account_steady(b, arg[2], gaps, n, f);
    seconds = (double)(to.at - from.at) / NSEC_S;
    f->value = (double)(to.tokens - from.tokens) / seconds;
    f->more = f->value / arg[2];
    f->prompts = (double)(to.prompt_tokens - from.prompt_tokens) / seconds / arg[1];
    for (uint32_t i = 0; i < b->n_sent; i++)
        if (!b->q[i].over) lagan_cancel(b->s.client, b->q[i].id);
    while (b->n_over < b->n_sent) take_steady(b, true, gaps, &n);
}

static void
divide(struct bench *b, const char *mode)
{
    unsigned prefill, decode;
    char verb[16], args[64] = "{}";

    snprintf(verb, sizeof verb, "split %.8s", mode);
    if (sscanf(mode, "%u:%u", &prefill, &decode) == 2) {
        strcpy(verb, "split set");
        snprintf(args, sizeof args, "{\"prefill_units\":%u,\"decode_units\":%u}", prefill, decode);
    }
    bench_send_command(&b->s, verb, args);
}

static const struct kind {
    const char *name, *unit, *more;
    uint32_t n_args;
    void (*run)(struct bench *b, const uint32_t *arg, struct figure *f);
    bool (*strike)(struct bench_serve *s);
} kinds[] = {
    { "decode", "tok/s", "window_s", 2, run_decode, NULL },
    { "batch", "req/s", "tok_s", 3, run_batch, NULL },
    { "same", "req/s", "tok_s", 3, run_same, NULL },
    { "beam", "req/s", "tok_s", 4, run_beam, NULL },
    { "serve", "tok/s", "req_s", 4, run_serve, NULL },
    { "prefill", "tok/s", "req_s", 2, run_prefill, NULL },
    { "kill", "ms", "gap_ms", 3, NULL, kill_worker },
    { "rank", "ms", "gap_ms", 3, NULL, kill_rank },
    { "crash", "ms", "gap_ms", 3, NULL, bench_crash },
    { "steady", "tok/s", "req_s", 4, run_steady, NULL },
    { "trace", "tok/s", "req_s", 0, NULL, NULL },
};

static const char *const kind_name[BENCH_KINDS] = { "prefill", "decode", "mixed" };

static void
run_case(struct bench *b, const char *word, uint32_t runs)
{
    const char *eq = strchr(word, '=');
    const struct kind *k = kinds;
    uint32_t arg[4] = { 0 }, n = 0, most = UINT32_MAX;
    double value[MAX_RUNS], more[MAX_RUNS], ttft[MAX_RUNS], middle[MAX_RUNS];
    struct figure f[MAX_RUNS + 1];
    char file[512] = "";

    while (k < kinds + ARRAY_LEN(kinds) &&
           (!eq || strncmp(word, k->name, (size_t)(eq - word)) || k->name[eq - word]))
        k++;
    if (!strncmp(word, "split=", 6)) {
        divide(b, word + 6);
        snprintf(b->mode, sizeof b->mode, " %.24s", word);
        return;
    }
    if (k == kinds + ARRAY_LEN(kinds)) bench_die("%s: unknown case", word);
    if (!k->n_args) {
        snprintf(file, sizeof file, "%s", eq + 1);
        if (strrchr(file, ':')) {
            most = (uint32_t)strtoul(strrchr(file, ':') + 1, NULL, 10);
            *strrchr(file, ':') = 0;
        }
    } else {
        for (const char *p = eq + 1; n < k->n_args && *p; n++) {
            char *end;

            arg[n] = (uint32_t)strtoul(p, &end, 10);
            p = *end == ':' ? end + 1 : end;
        }
        if (n != k->n_args || !arg[0] || !arg[1])
            bench_die("%s: the case needs %u numbers", word, k->n_args);
    }
    memset(f, 0, sizeof f);
    if (k->strike == bench_crash && runs > 1)
        bench_die("crash: needs --runs 1, because lagand delays the restart after a second fault");
    if (k->strike) run_deaths(b, k->strike, arg, f + 1, runs);
    for (uint32_t i = b->cold; i <= runs && !k->strike; i++) {
        if (k->run)
            k->run(b, arg, &f[i]);
        else
            run_trace(b, file, most, &f[i]);
        if (!f[i].ttft_ms) f[i].ttft_ms = median_ttft(b);
    }
    for (uint32_t i = 0; i < runs; i++) {
        value[i] = f[i + 1].value;
        more[i] = f[i + 1].more;
        ttft[i] = f[i + 1].ttft_ms;
        middle[i] = f[i + 1].middle;
    }
    median(value, runs);
    median(more, runs);
    printf("{\"bench\":\"serve\",\"case\":\"%s%s %s\",\"value\":%.5g,\"unit\":\"%s\",\"n\":%u,"
           "\"min\":%.5g,\"median\":%.5g,\"max\":%.5g,\"%s\":%.5g,\"%s_min\":%.5g,\"%s_max\":%.5g,"
           "\"ttft_ms\":%.4g,\"core\":%.3f,\"step_us\":%.5g",
           b->s.name, b->mode, word, median(value, runs), k->unit, runs, value[0],
           median(value, runs), value[runs - 1], k->more, median(more, runs), k->more, more[0],
           k->more, more[runs - 1], median(ttft, runs), f[runs].core, f[runs].step_us);
    if (k->run == run_steady) printf(",\"prompts_s\":%.4g", f[runs].prompts);
    if (!k->n_args || k->run == run_steady) {
        const struct figure *l = &f[runs];

        printf(",\"ttft_99_ms\":%.4g,\"tpot_ms\":%.4g,\"tpot_99_ms\":%.4g,\"gap_99_ms\":%.4g",
               l->ttft_99, l->tpot_ms, l->tpot_99, l->gap_99);
        for (unsigned i = 0; i < BENCH_KINDS; i++)
            printf(",\"%s_steps\":%llu,\"%s_ms\":%.4g", kind_name[i],
                   (unsigned long long)l->kind_n[i], kind_name[i], l->kind_ms[i]);
    }
    if (k->strike) printf(",\"gap_mid_ms\":%.5g", median(middle, runs));
    if (f[runs].idle_us >= 0) printf(",\"idle_us\":%.3g", f[runs].idle_us);
    if (f[runs].captured >= 0 && !k->strike) printf(",\"captured\":%.0f", f[runs].captured);
    printf("}\n");
    fflush(stdout);
}

int
main(int argc, char **argv)
{
    static struct bench b = { .random = 20261121 };
    const char *cases[MAX_CASES];
    uint32_t n_cases = 0, runs = 3;

    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;

        if (more && !strcmp(argv[i], "--model"))
            b.s.model = argv[++i];
        else if (more && !strcmp(argv[i], "--device"))
            b.s.device = argv[++i];
        else if (more && !strcmp(argv[i], "--set") && b.s.n_set < BENCH_SETS)
            b.s.set[b.s.n_set++] = argv[++i];
        else if (more && !strcmp(argv[i], "--programs"))
            b.s.programs = argv[++i];
        else if (more && !strcmp(argv[i], "--runs"))
            runs = MIN((uint32_t)strtoul(argv[++i], NULL, 10), (uint32_t)MAX_RUNS);
        else if (!strcmp(argv[i], "--cold"))
            b.cold = true;
        else if (argv[i][0] != '-' && n_cases < MAX_CASES)
            cases[n_cases++] = argv[i];
        else
            bench_die("%s: unknown option; the head of bench/bench_serve.c lists them", argv[i]);
    }
    if (!b.s.model || !n_cases || !runs) bench_die("--model DIR and a case are required");
    bench_start(&b.s);
    b.vocab = b.s.vocab;
    for (uint32_t i = 0; i < n_cases; i++) run_case(&b, cases[i], runs);
    bench_stop(&b.s);
    return 0;
}
