/* bench.c - laganctl bench: measures throughput and latency with random prompts, at a given rate or
 * concurrency. --json has the keys of vLLM's benchmark. */
#include "ctl/ctl.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

struct bench_opts {
    uint32_t prompts, input, output, concurrency, below;
    uint64_t seed;
    double rate;
    char model[256];
};

/* clang-format off */
const struct opt bench_opts[] = {
    { "prompts", OPT_U32, OPT_AT(bench_opts, prompts), "100", .min = 1, .max = 1000000, .arg = "N",
      .sentence = "number of requests that are measured" },
    { "input", OPT_U32, OPT_AT(bench_opts, input), "256", .min = 1, .max = LAGAN_MAX_IDS, .arg =
      "TOKENS",
      .sentence = "length of each prompt, or encoder input, in tokens" },
    { "output", OPT_U32, OPT_AT(bench_opts, output), "64", .min = 1, .max = LAGAN_MAX_TOKENS, .arg =
      "TOKENS",
      .sentence = "length of each output, in tokens; end-of-sequence tokens do not end it" },
    { "concurrency", OPT_U32, OPT_AT(bench_opts, concurrency), "32", .min = 1, .max = 4096, .arg =
      "N",
      .sentence = "maximum number of requests that are open at the same time" },
    { "rate", OPT_F64, OPT_AT(bench_opts, rate), "0", .max = 1000000, .arg = "N",
      .sentence = "mean number of requests per second, at random (Poisson) times; 0: a new "
      "request starts as soon as --concurrency permits" },
    { "below", OPT_U32, OPT_AT(bench_opts, below), "256", .min = 4, .max = INT32_MAX, .arg = "ID",
      .sentence = "the prompts consist of random token ids from 3 to this number minus 1" },
    { "seed", OPT_U64, OPT_AT(bench_opts, seed), "1", .arg = "N",
      .sentence = "seed of the random numbers for prompts and start times" },
    { "model", OPT_STR, OPT_AT(bench_opts, model), "", .arg = "NAME",
      .sentence = "name of the model; may be omitted if lagand serves only one" },
    { 0 }
};
/* clang-format on */

enum { TTFT, TPOT, ITL, E2EL, TIMES };
static const char *const time_names[] = { "ttft", "tpot", "itl", "e2el" };

struct values {
    double *v;
    size_t n, max;
};

struct shot { /* one request of the benchmark */
    uint64_t id;
    uint32_t n_tokens;
    /* due: planned start, counted from the start of the run; sent: actual start; first, last: times
     * of the first and last token, 0 until they arrive */
    nsec due, sent, first, last;
    bool over;
};

struct bench {
    struct lagan *c;
    struct bench_opts o;
    struct shot *shot;
    int32_t *ids;
    uint64_t rng;
    size_t next, oldest; /* next: the next to submit; all before oldest have ended */
    uint32_t open, completed, failed;
    int code; /* exit code of the first failure */
    uint64_t n_out;
    char model[256];           /* name of the measured model */
    nsec shown;                /* when the progress was printed last */
    struct values time[TIMES]; /* measured times in ms, by kind */
};

static void
note(struct values *s, nsec t)
{
    if (s->n == s->max) {
        s->max = MAX(2 * s->max, (size_t)256);
        s->v = realloc(s->v, s->max * sizeof *s->v);
        check(s->v);
    }
    s->v[s->n++] = (double)t / NSEC_MS;
}

static int
submit(struct bench *b, struct shot *s)
{
    struct lagan_request *r = lagan_request_new();
    int k;

    check(r);
    for (uint32_t i = 0; i < b->o.input; i++)
        b->ids[i] = (int32_t)(3 + rng_below(&b->rng, b->o.below - 3));
    lagan_set_ids(r, "ids", b->ids, b->o.input);
    lagan_set_int(r, "max_tokens", b->o.output);
    lagan_set_bool(r, "ignore_eos", true);
    if (*b->o.model) lagan_set_str(r, "model", b->o.model, strlen(b->o.model));
    s->sent = clock_now();
    k = lagan_submit(b->c, r, &s->id);
    lagan_request_free(r);
    b->open++;
    return k < 0 ? ctl_fail(CTL_FAILED, "%s", lagan_errmsg(b->c)) : 0;
}

static void
finish(struct bench *b, struct shot *s, nsec now)
{
    s->over = true;
    b->open--;
    b->completed++;
    b->n_out += s->n_tokens;
    note(&b->time[E2EL], now - s->sent);
    if (s->n_tokens > 1) note(&b->time[TPOT], (s->last - s->first) / (s->n_tokens - 1));
}

static void
fail(struct bench *b, struct shot *s, const struct lagan_event *ev)
{
    s->over = true;
    b->open--;
    if (b->failed++ == 0) b->code = ctl_fail(ctl_exit_of(ev->reason), "%s", ev->message);
}

static void
take(struct bench *b, const struct lagan_event *ev)
{
    nsec now = clock_now();
    struct shot *s = NULL;

    for (size_t i = b->oldest; i < b->next && !s; i++)
        if (b->shot[i].id == ev->id) s = &b->shot[i];
    if (!s || s->over) return;
    if (ev->kind == LAGAN_EVENT_TOKENS && ev->n_ids) {
        note(&b->time[s->first ? ITL : TTFT], now - (s->first ? s->last : s->sent));
        if (!s->first) s->first = now;
        s->last = now;
        s->n_tokens += ev->n_ids;
    }
    if (ev->kind == LAGAN_EVENT_DONE) finish(b, s, now);
    if (ev->kind == LAGAN_EVENT_ERROR) fail(b, s, ev);
    while (b->oldest < b->next && b->shot[b->oldest].over) b->oldest++;
}

/* Shows on a terminal how many of n requests have ended and how many tokens arrive per second. */
static void
show_progress(struct bench *b, size_t n, nsec start)
{
    nsec now = clock_now();
    double seconds = (double)(now - start) / NSEC_S;

    if (n == 1 || now - b->shown < 200 * NSEC_MS) return;
    b->shown = now;
    progress_line("%u of %zu requests, %u open, %.0f s, %.0f tokens/s", b->completed, n - 1,
                  b->open, seconds, seconds > 0 ? (double)b->n_out / seconds : 0);
}

/* Runs n requests. Returns 0, or an exit code after printing the error. */
static int
run(struct bench *b, size_t n, nsec start)
{
    while (b->next < n || b->open) {
        struct lagan_event ev = { .size = sizeof ev };
        int wait = -1, r;

        if (ctl_signal) return 128 + ctl_signal;
        show_progress(b, n, start);
        while (b->next < n && b->open < b->o.concurrency) {
            nsec left = start + b->shot[b->next].due - clock_now();

            if (left > 0) {
                wait = (int)MIN((left + NSEC_MS - 1) / NSEC_MS, (nsec)1000);
                break;
            }
            r = submit(b, &b->shot[b->next++]);
            if (r) return r;
        }
        r = lagan_next(b->c, &ev, wait);
        if (r < 0 && r != -EINTR) return ctl_fail(CTL_FAILED, "%s", lagan_errmsg(b->c));
        if (r > 0 && ev.kind == LAGAN_EVENT_DISCONNECTED)
            return ctl_fail(CTL_UNREACHABLE,
                            "the connection to lagand is lost and could not be restored");
        if (r > 0) take(b, &ev);
    }
    return 0;
}

static int
by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Returns a percentile of sorted values, with linear interpolation. */
static double
at(const struct values *s, double part)
{
    double place = part * (double)(s->n - 1);
    size_t i = (size_t)place;

    if (s->n == 0) return 0;
    return i + 1 < s->n ? s->v[i] + (place - (double)i) * (s->v[i + 1] - s->v[i]) : s->v[i];
}

static void
add_time(json_t *o, const char *what, const char *name, double ms)
{
    char key[40];

    snprintf(key, sizeof key, "%s_%s_ms", what, name);
    json_object_set_new(o, key, json_measured(ms));
}

static void
add_times(json_t *o, const char *name, struct values *s)
{
    double sum = 0;

    qsort(s->v, s->n, sizeof *s->v, by_value);
    for (size_t i = 0; i < s->n; i++) sum += s->v[i];
    add_time(o, "mean", name, s->n ? sum / (double)s->n : 0);
    add_time(o, "median", name, at(s, .5));
    add_time(o, "p90", name, at(s, .9));
    add_time(o, "p99", name, at(s, .99));
}

static json_t *
result(struct bench *b, double seconds)
{
    json_int_t n_in = (json_int_t)b->completed * b->o.input, n_out = (json_int_t)b->n_out;
    char date[24];
    time_t now = time(NULL);
    struct tm tm;
    json_t *o;

    strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &tm)); /* as vLLM writes it */
    o = json_pack("{s:s,s:s,s:i,s:o,s:o,s:i,s:i,s:I,s:I,s:o,s:o,s:o}", "date", date, "model_id",
                  b->model, "num_prompts", (int)b->o.prompts, "request_rate",
                  b->o.rate > 0 ? json_measured(b->o.rate) : json_string("inf"), "duration",
                  json_measured(seconds), "completed", (int)b->completed, "failed", (int)b->failed,
                  "total_input_tokens", n_in, "total_output_tokens", n_out, "request_throughput",
                  json_measured(b->completed / seconds), "output_throughput",
                  json_measured((double)n_out / seconds), "total_token_throughput",
                  json_measured((double)(n_in + n_out) / seconds));
    check(o);
    for (int i = 0; i < TIMES; i++) add_times(o, time_names[i], &b->time[i]);
    return o;
}

static void
print(json_t *o)
{
    const char *key;
    json_t *v;

    json_object_foreach(o, key, v)
    {
        if (json_is_string(v))
            printf("%-24s %12s\n", key, json_string_value(v));
        else if (json_is_integer(v))
            printf("%-24s %12lld\n", key, (long long)json_integer_value(v));
        else
            printf("%-24s %14.2f\n", key, json_real_value(v));
    }
}

/* Runs a warm-up request, which is not counted, then the benchmark. */
static int
measure(struct bench *b, bool json)
{
    nsec start = clock_now(), due = 0;
    json_t *o;
    int r;

    b->shot = calloc(1 + (size_t)b->o.prompts, sizeof *b->shot);
    b->ids = calloc(b->o.input, sizeof *b->ids);
    check(b->shot && b->ids);
    for (uint32_t i = 1; i <= b->o.prompts && b->o.rate > 0; i++) {
        b->shot[i].due = due;
        due += (nsec)(-log1p(-(rng_next(&b->rng) / 4294967296.0)) / b->o.rate * NSEC_S);
    }
    r = run(b, 1, start);
    if (r || b->failed) return r ? r : b->code;
    b->completed = 0;
    b->n_out = 0;
    for (int i = 0; i < TIMES; i++) b->time[i].n = 0;
    start = clock_now();
    r = run(b, 1 + (size_t)b->o.prompts, start);
    progress_line(NULL);
    if (r) return r;
    o = result(b, (double)(clock_now() - start) / NSEC_S);
    json ? print_json(o) : print(o);
    json_decref(o);
    return b->failed ? b->code : 0;
}

/* Sets b->model to --model, or to the only model that is served. */
static int
find_model(struct bench *b, struct ctl *ctl)
{
    json_t *status;
    int r = ctl_ask(ctl, "status", NULL, /* json= */ false, &status);
    const json_t *models = json_object_get(status, "models");
    const char *only = json_string_value(json_array_get(models, 0));

    snprintf(b->model, sizeof b->model, "%s", *b->o.model ? b->o.model : only ? only : "");
    json_decref(status);
    return r;
}

int
cmd_bench(struct ctl *ctl)
{
    const struct bench_opts *o = ctl->opts;
    struct bench b = { .c = ctl->api, .o = *o, .rng = o->seed };
    int r = ctl_need_utf8("model", o->model);

    if (r == 0) r = find_model(&b, ctl);
    if (r == 0) r = measure(&b, ctl->json);

    free(b.shot);
    free(b.ids);
    for (int i = 0; i < TIMES; i++) free(b.time[i].v);
    return r;
}
