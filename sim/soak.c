/* soak.c - draws random worlds and runs each of them twice: see soak.h. */
#include "sim/soak.h"

#include "base/clock.h"
#include "base/opt.h"
#include "base/rng.h"
#include "sim/fleet.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

struct soak_args {
    uint64_t requests, seed, world;
    uint32_t each, policy;
    bool help;
};
/* clang-format off */
static const struct opt opts[] = {
    { "requests", OPT_U64, OPT_AT(soak_args, requests), "100000", .arg = "N", .sentence = "number of requests of all simulated systems (worlds) together" },
    { "each", OPT_U32, OPT_AT(soak_args, each), "5000", .min = 1, .max = 1e9, .arg = "N", .sentence = "number of requests of each world" },
    { "seed", OPT_U64, OPT_AT(soak_args, seed), "1", .arg = "N", .sentence = "seed of the first world; every further world has a seed higher by 1" },
    { "policy", OPT_ENUM, OPT_AT(soak_args, policy), "all", .choices = "no_evict|max_utilization|static|max_requests|all",
      .arg = "NAME", .sentence = "scheduling policy of every world: no_evict, max_utilization, static, max_requests; all: a random one for each" },
    { "help", OPT_BOOL, OPT_AT(soak_args, help), .sentence = "print this help and exit" },
    { 0 }
};
/* clang-format on */

static uint32_t
draw_between(uint64_t *d, uint32_t least, uint32_t most)
{
    return least + rng_below(d, most - least + 1);
}

static void
draw_groups(uint64_t *d, struct sim_config *st)
{
    uint32_t n = draw_between(d, 1, 3);

    for (uint32_t g = 0; g < n; g++)
        st->kv.group[g] = (struct kv_group){ .kind = g > 0 || rng_below(d, 4) == 0 ? KV_WINDOW
                                                                                   : KV_FULL,
                                             .window = draw_between(d, 2, 60),
                                             .n_layers = draw_between(d, 1, 3),
                                             .n_parts = 2,
                                             .slice_bytes = 128u << rng_below(d, 3) };
    if (rng_below(d, 4) == 0) {
        st->kv.group[n++] =
            (struct kv_group){ .kind = KV_STATE,
                               .interval = rng_below(d, 5) * st->kv.tokens_per_block,
                               .n_layers = draw_between(d, 1, 3),
                               .n_parts = 1,
                               .slice_bytes = 128u << rng_below(d, 3) };
    } else if (rng_below(d, 3) == 0) {
        st->kv.group[n++] = (struct kv_group){
            .kind = KV_CROSS, .n_layers = 1, .n_parts = 2, .slice_bytes = 128u << rng_below(d, 3)
        };
        st->sched.n_enc_layers = (uint16_t)draw_between(d, 1, 6);
        st->sched.enc_layers = (uint16_t)rng_below(d, 4);
        st->sched.max_enc_tokens = draw_between(d, 64, 200);
    }
    st->kv.n_groups = n;
}

static void
draw_lanes(uint64_t *d, struct scheduler_limits *l)
{
    switch (rng_below(d, 3)) {
    case 0: /* one lane, the default configuration */
        break;
    case 1:
        l->n_lanes = 2;
        l->lane_work[0] = WORK_ENCODER | WORK_PREFILL;
        l->lane_work[1] = WORK_DECODE;
        break;
    default:
        l->n_lanes = 3;
        l->lane_work[0] = WORK_DECODE;
        l->lane_work[1] = WORK_PREFILL;
        l->lane_work[2] = WORK_ENCODER;
    }
}

static void
draw_sharing(uint64_t *d, struct sim_config *st)
{
    struct scheduler_limits *l = &st->sched;

    l->chunks = (enum chunks)rng_below(d, 2);
    if (rng_below(d, 3) == 0) l->max_chunk = draw_between(d, MAX(l->chunk_unit, 1u), l->max_tokens);
    if (rng_below(d, 2)) l->quantum = draw_between(d, 1, 300);
    l->pages = 4 + rng_below(d, 8);
    if (rng_below(d, 3) == 0) l->enc_work = draw_between(d, 1, 400);
    if (rng_below(d, 3) == 0) l->enc_batch[l->n_enc_batches++] = draw_between(d, 1, 6);
    if (rng_below(d, 3) == 0) l->prefill_batch_tokens = draw_between(d, 1, 200);
    l->enc_wait = l->prompt_wait = (nsec)rng_below(d, 20) * st->cost.launch;
    st->kv.reuse = rng_below(d, 4) > 0;
    st->kv.copy_partial = rng_below(d, 2);
}

static void
draw_world(uint64_t *d, const struct soak_args *a, struct fleet_setting *s)
{
    struct sim_config *st = &s->worker;
    uint32_t scarce = draw_between(d, 1, 8);

    *s = (struct fleet_setting){
        .n_workers = draw_between(d, 1, 4), .ahead = rng_below(d, 20), .digest = true, .check = true
    };
    setting_defaults(st);
    st->kv.tokens_per_block = draw_between(d, 1, 20);
    st->kv.n_slots = draw_between(d, 2, 40);
    draw_groups(d, st);
    st->sched.max_seqs = draw_between(d, 1, st->kv.n_slots);
    st->sched.max_tokens = draw_between(d, 1, 120);
    st->sched.max_len = 200;
    st->sched.chunk_unit = rng_below(d, 3) ? 0 : draw_between(d, 1, st->sched.max_tokens);
    st->sched.policy = a->policy == 4 ? (enum policy)rng_below(d, 4) : (enum policy)a->policy;
    st->cost.launch = (nsec)draw_between(d, 1, 1000) * 1000;
    draw_sharing(d, st);
    draw_lanes(d, &st->sched);
    setting_close(st);
    st->kv.arena_bytes = 0;
    /* KV memory for 2 * (1 + scarce) sequences of maximal length; max_requests: for all slots */
    for (uint32_t g = 0; g < st->kv.n_groups; g++) {
        const struct kv_group *k = &st->kv.group[g];

        st->kv.arena_bytes += 2 * (k->max_entries + 2) * kv_block_bytes(k);
    }
    st->kv.arena_bytes *= st->sched.policy == POLICY_MAX_REQUESTS ? 2 * st->sched.max_seqs + 2
                                                                  : 1 + scarce;
    s->faults =
        (struct fleet_faults){ .seed = *d,
                               .cancelled = rng_below(d, 3) * 0.1,
                               .suspended = rng_below(d, 3) * 0.05,
                               .stopped = rng_below(d, 3) * 0.2,
                               .deaths = rng_below(d, 3) ? 0 : 1e9 / (double)st->cost.launch / 500,
                               .restart = st->cost.launch * draw_between(d, 1, 200) };
}

static struct trace_line
draw_request(uint64_t *d, const struct sim_config *st, nsec *at)
{
    bool encdec = st->sched.n_enc_layers > 0;
    uint32_t most = rng_below(d, 10) ? 40 : 150;
    struct trace_line t = { .isl = draw_between(
                                d, 1, encdec ? MIN(most, st->sched.max_enc_tokens) : most),
                            .osl = draw_between(d, 1, rng_below(d, 10) ? 12 : 49),
                            .prefix_id = rng_below(d, 3) ? TRACE_NONE : rng_below(d, 4),
                            .session = TRACE_NONE,
                            .client = rng_below(d, 5),
                            .lora = rng_below(d, 4) ? 0 : 1 + rng_below(d, 6),
                            .priority = (float)rng_below(d, 3) / 2,
                            .encdec = encdec };

    t.prefix_len = t.prefix_id == TRACE_NONE ? 0 : rng_below(d, t.isl);
    if (rng_below(d, 4)) /* otherwise it arrives with the previous one */
        *at += st->cost.launch * rng_below(d, 12) / (1 + rng_below(d, 4));
    t.arrival = *at;
    return t;
}

static int
live_once(const struct fleet_setting *s, uint64_t seed, uint32_t n, struct fleet_result *ret,
          struct err *e)
{
    CLEAN(fleet_free_at) struct fleet *f = NULL;
    uint64_t d = seed;
    nsec at = 0;

    TRY(fleet_new(&f, s, e));
    for (uint32_t i = 0; i < n; i++) {
        struct trace_line t = draw_request(&d, &s->worker, &at);

        TRY(fleet_add(f, &t, e));
    }
    TRY(fleet_finish(f, e));
    *ret = *fleet_result(f);
    return 0;
}

struct soak_sum {
    uint64_t worlds, requests, finished, cancelled, refused, moved, deaths, steps, tokens,
        preemptions;
    /* Hash of all batches: two versions of the program with equal digests decide equally. */
    uint64_t digest;
    uint32_t passed;
};

static int
soak_world(const struct soak_args *a, uint64_t seed, uint32_t n, struct soak_sum *sum,
           struct err *e)
{
    static struct fleet_result first, second;
    struct fleet_setting s;
    uint64_t d = seed * UINT64_C(0x9e3779b97f4a7c15);

    for (int i = 0; i < 4; i++) rng_below(&d, 2);
    draw_world(&d, a, &s);
    TRY(live_once(&s, seed, n, &first, e));
    TRY(live_once(&s, seed, n, &second, e));
    if (first.digest != second.digest || first.end != second.end)
        return err_set(e, -1, "a second run with the same seed had another result");
    if (first.finished + first.cancelled + first.refused != n)
        return err_set(e, -1, "%u requests started, but %" PRIu64 " ended", n,
                       first.finished + first.cancelled + first.refused);
    if (first.passed > s.worker.sched.max_seqs)
        return err_set(e, -1, "a request was overtaken %u times; the limit is the %u slots",
                       first.passed, s.worker.sched.max_seqs);
    sum->digest = sum->digest * UINT64_C(0x9e3779b97f4a7c15) + first.digest;
    sum->worlds++;
    sum->requests += n;
    sum->finished += first.finished;
    sum->cancelled += first.cancelled;
    sum->refused += first.refused;
    sum->moved += first.moved;
    sum->deaths += first.deaths;
    sum->steps += first.steps;
    sum->tokens += first.output_tokens;
    sum->preemptions += first.preemptions;
    sum->passed = MAX(sum->passed, first.passed);
    return 0;
}

static void
print_help(void)
{
    puts("Usage: lagan-sim soak [OPTION]...\n"
         "Run random simulated systems twice and check that every request ends once, no block\n"
         "is lost, no request starves, and equal calls give equal decisions.\n\n"
         "Options, with the default in []:");
    opt_help(opts, OPT_TYPED, stdout);
    puts("\nA failed world is printed with its seed; --seed N --requests 1 repeats it.");
}

int
soak_main(int argc, char **argv)
{
    struct soak_args a;
    struct soak_sum sum = { 0 };
    struct err e;
    uint64_t given = 0;
    int at = 0, r;
    nsec start = clock_now();

    opt_defaults(opts, &a);
    r = opt_argv(opts, &a, &given, argc, argv, &at, &e);
    if (r < 0 || at < argc) {
        fprintf(stderr, "lagan-sim soak: %s\n", r < 0 ? e.text : "operands are not allowed");
        return 2;
    }
    if (a.help) {
        print_help();
        return 0;
    }
    for (uint64_t seed = a.seed; sum.requests < a.requests; seed++) {
        if (isatty(STDERR_FILENO)) fprintf(stderr, "\rworld %llu \r", (unsigned long long)seed);
        if (soak_world(&a, seed, a.each, &sum, &e) < 0) {
            fprintf(stderr, "lagan-sim soak: world --seed %llu --each %u: %s\n",
                    (unsigned long long)seed, a.each, e.text);
            return 1;
        }
    }
    printf("%" PRIu64 " worlds, %" PRIu64 " requests: %" PRIu64 " finished, %" PRIu64
           " cancelled, %" PRIu64 " refused; %" PRIu64 " tokens in %" PRIu64 " steps\n%" PRIu64
           " workers crashed, %" PRIu64 " requests moved to another worker, %" PRIu64
           " preemptions; a request was overtaken at most %u times\n"
           "each world run twice with equal decisions, digest %016" PRIx64 ", in %.1f s\n",
           sum.worlds, sum.requests, sum.finished, sum.cancelled, sum.refused, sum.tokens,
           sum.steps, sum.deaths, sum.moved, sum.preemptions, sum.passed, sum.digest,
           (double)(clock_now() - start) / 1e9);
    return 0;
}
