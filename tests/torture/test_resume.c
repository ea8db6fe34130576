/* test_resume.c - real workers on the CPU, killed at any instant: every answer has the bits of an
 * undisturbed run.
 *
 * Three small models at once, greedy and sampled, encoder-decoder too, prompts longer than a chunk, pools
 * so small that blocks change hands all the time. First all requests run alone; then they run again and
 * again while their workers die, and each answer is compared token by token and bit by bit.
 * LAGAN_TORTURE_REAL_KILLS and LAGAN_TORTURE_ROUNDS are for check-long.
 */
#include "base/clock.h"
#include "include/lagan.h"
#include "include/lagan_wire.h"
#include "tests/test.h"
#include "tests/torture/service.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 3, N = 32, TOKENS = 48, TOPS = 2, PROMPT = 300, SETTLE_MS = 60000 };
/* An answer is kept for ten minutes, for a client that comes back: daemon/ledger.h; and in the mirror. */
enum { GROWTH_KIB = 4096, KEPT_KIB = 6, KEPT_MOST = 8192 };

struct answer {
    uint32_t n;
    uint32_t reason;
    int32_t id[TOKENS];
    float logprob[TOKENS];
    struct lagan_top top[TOKENS][TOPS];
};

struct job { /* one request that runs again and again */
    struct lagan_request *q;
    uint64_t id; /* 0: not under way */
    struct answer want, got;
};

static struct service v;
static struct lagan *c;
static struct job job[N];
static uint64_t n_answers, n_tokens, resumed, adopted, recomputed;

static int
begin(void **state)
{
    (void)state;
    service_open(&v);
    return 0;
}

static int
finish(void **state)
{
    (void)state;
    lagan_close(c);
    c = NULL;
    for (uint32_t i = 0; i < N; i++) {
        lagan_request_free(job[i].q);
        job[i] = (struct job){ .q = NULL };
    }
    if (v.pid > 0) service_print_log(&v, 30);
    service_close(&v);
    return 0;
}

/* With standbys or without. One thread each: the machine has few cores and there are three of them. */
static void
start(const char *dtype, uint32_t standby, const char *const *args)
{
    char config[2048];

#define MODEL(name, path, more) \
    "  - { name: " name ", path: @/" path \
    ", device: cpu, threads: 1, dtype: %s, standby: %u, " more " }\n"
    snprintf(config, sizeof config,
             "models:\n" MODEL("gemma", "models/recall-gemma3",
                               "max_num_seqs: 8, max_num_batched_tokens: 48,"
                               " kv: { memory: 2MiB, tokens_per_block: 16 }")
                 MODEL("t5", "models/numbers-t5",
                       "max_num_seqs: 6, max_num_batched_tokens: 32, max_source_tokens: 64,"
                       " kv: { memory: 1MiB, tokens_per_block: 8 }")
                     MODEL("llama", "tests/data/golden/llama3",
                           "max_num_seqs: 8, max_num_batched_tokens: 40,"
                           " kv: { memory: 1MiB, tokens_per_block: 8 }"),
             dtype, standby, dtype, standby, dtype, standby);
    v.n_standbys = WORKERS * standby;
    service_start(&v, WORKERS, config, args);
    if (lagan_open(&c, v.endpoint, 20000) < 0) fail_msg("%s", lagan_why(NULL));
}

/* A prompt's ids, from a number of its own. */
static void
set_ids(struct lagan_request *q, uint32_t seed, uint32_t n, uint32_t first, uint32_t below)
{
    int32_t ids[PROMPT];
    uint32_t x = seed * 2654435761u + 1;

    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)(first + (x >> 16) % below);
    }
    lagan_set_ids(q, "ids", ids, n);
}

static void
make_jobs(void)
{
    for (uint32_t i = 0; i < N; i++) {
        struct lagan_request *q = job[i].q = lagan_request_new();
        static const char *const models[] = { "gemma", "t5", "llama", "gemma" };
        const char *model = models[i % 4];
        bool t5 = !strcmp(model, "t5"), sampled = i / 4 % 2;

        assert_non_null(q);
        lagan_set_str(q, "model", model, strlen(model));
        if (t5)
            set_ids(q, i, 4 + i % 29, 51, 10);
        else
            set_ids(q, i, i % 4 == 3 ? 100 + i * 6 : 3 + i, 3, 200);
        lagan_set_int(q, "max_tokens", TOKENS - i % 7);
        lagan_set_bool(q, "ignore_eos", 1);
        lagan_set_int(q, "logprobs", TOPS);
        lagan_set_int(q, "seed", 1000 + i);
        if (!sampled) continue;
        lagan_set_float(q, "temperature", 0.5 + 0.05 * i);
        if (i % 3 == 0) lagan_set_float(q, "top_p", 0.9);
        if (i % 3 == 1) lagan_set_int(q, "top_k", 20);
        if (i % 5 == 0) lagan_set_float(q, "repetition_penalty", 1.2);
    }
}

static struct job *
find(uint64_t id)
{
    for (uint32_t i = 0; i < N; i++)
        if (job[i].id == id) return &job[i];
    fail_msg("an event of request %llu, which is not under way", (unsigned long long)id);
    return NULL;
}

static void
take_tokens(struct job *j, const struct lagan_event *e)
{
    struct answer *a = &j->got;

    assert_int_equal(e->first, a->n);
    assert_true(e->n_ids <= TOKENS - a->n && e->logprob && e->n_top == TOPS);
    memcpy(a->id + a->n, e->ids, e->n_ids * sizeof *a->id);
    memcpy(a->logprob + a->n, e->logprob, e->n_ids * sizeof *a->logprob);
    memcpy(a->top[a->n], e->top, e->n_ids * sizeof a->top[0]);
    a->n += e->n_ids;
}

static void
compare(const struct job *j)
{
    const struct answer *w = &j->want, *g = &j->got;

    if (w->n != g->n || w->reason != g->reason)
        fail_msg("request %zu: %u tokens, reason %u, not %u, %u", (size_t)(j - job), g->n,
                 g->reason, w->n, w->reason);
    for (uint32_t i = 0; i < w->n; i++)
        if (w->id[i] != g->id[i] || memcmp(&w->logprob[i], &g->logprob[i], sizeof w->logprob[i]) ||
            memcmp(w->top[i], g->top[i], sizeof w->top[i]))
            fail_msg("request %zu at %u: token %d, %.9g; undisturbed %d, %.9g", (size_t)(j - job),
                     i, g->id[i], (double)g->logprob[i], w->id[i], (double)w->logprob[i]);
}

/* Take events for so long. first: answers are what is to be compared with. */
static void
turn(int ms, bool first)
{
    struct lagan_event e = { .size = sizeof e };
    int r;

    while ((r = lagan_next(c, &e, ms)) > 0) {
        struct job *j = find(e.id);

        ms = 0;
        if (e.kind == LAGAN_EVENT_TOKENS) {
            take_tokens(j, &e);
        } else if (e.kind == LAGAN_EVENT_OUTPUT) {
            j->got.reason = e.reason;
            resumed += e.resumed;
            adopted += e.adopted;
            recomputed += e.recomputed;
        } else if (e.kind == LAGAN_EVENT_DONE) {
            if (first) j->want = j->got;
            compare(j);
            j->id = 0;
            n_answers++;
            n_tokens += j->got.n;
        } else {
            service_print_log(&v, 40);
            fail_msg("request %zu: event %d, %s: %s", (size_t)(j - job), e.kind, e.word, e.message);
        }
    }
    if (r < 0 && r != -4) fail_msg("%s", lagan_why(c));
}

static void
submit_all(void)
{
    for (uint32_t i = 0; i < N; i++) {
        if (job[i].id) continue;
        memset(&job[i].got, 0, sizeof job[i].got);
        assert_int_equal(lagan_submit(c, job[i].q, &job[i].id), 0);
    }
}

static void
settle(bool first)
{
    nsec until = clock_now() + SETTLE_MS * NSEC_MS;
    uint32_t open;

    do {
        open = 0;
        turn(20, first);
        for (uint32_t i = 0; i < N; i++) open += job[i].id != 0;
    } while (open && clock_now() < until);
    if (!open) return;
    service_print_log(&v, 40);
    fail_msg("%u requests have stopped", open);
}

static void
run_undisturbed(void)
{
    make_jobs();
    submit_all();
    settle(true);
    n_answers = n_tokens = resumed = adopted = recomputed = 0;
    /* Sampling is of the seed alone, and company does not matter. */
    submit_all();
    settle(false);
}

static void
kill_workers(const char *dtype, uint32_t standby, uint32_t kills)
{
    const uint32_t warm = kills / 4; /* buffers have the size they need then */
    struct census before = { 0 }, after = { 0 };
    nsec next = 0, since;

    start(dtype, standby, NULL);
    run_undisturbed();
    since = clock_now();
    for (uint32_t done = 0; done < kills;) {
        submit_all();
        turn(2, false);
        if (clock_now() < next) continue;
        next = clock_now() + test_below(200000) * NSEC_US;
        if (!service_kill_one(&v, 1) || (++done != warm && done < kills)) continue;
        settle(false);
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers are missing");
        assert_true(service_quiet(&v, done == warm ? &before : &after));
    }
    census_compare(&before, &after,
                   GROWTH_KIB + KEPT_KIB * (uint32_t)MIN(n_answers, (uint64_t)KEPT_MOST));
    print_message(
        "%s: %u kills in %.1f s: %llu answers, %llu tokens; %llu times resumed, KV of %llu "
        "tokens adopted, of %llu computed again\n",
        dtype, kills, (double)(clock_now() - since) / NSEC_S, (unsigned long long)n_answers,
        (unsigned long long)n_tokens, (unsigned long long)resumed, (unsigned long long)adopted,
        (unsigned long long)recomputed);
    assert_true(resumed >
                kills / (4 + 4 * standby)); /* it dies as often, and nobody resumes then */
    if (standby) assert_true(service_logged(&v, "the standby takes over") > kills / 8);
    service_stop(&v);
}

static void
streams_of_killed_workers_have_the_bits_of_an_undisturbed_run(void **state)
{
    uint32_t kills = count_from("LAGAN_TORTURE_REAL_KILLS", 200);

    (void)state;
    kill_workers("fp32", 0, kills / 2);
    finish(NULL);
    begin(NULL);
    kill_workers("bf16", 1, kills - kills / 2);
}

/* ---- at every point */

static const enum failpoint points[] = {
    FP_worker_main,    FP_worker_attached, FP_load_weights,   FP_load_kv,         FP_load_done,
    FP_hand_given,     FP_ready_said,      FP_loop_published, FP_ring_tail_seen,  FP_ring_copied,
    FP_ring_releasing, FP_ring_released,   FP_intake_taken,   FP_manifest_stored, FP_step_planned,
    FP_step_launched,  FP_step_finished,   FP_step_committed, FP_step_emitted,    FP_ring_reserved,
    FP_outbox_copied,  FP_ring_publishing, FP_ring_published, FP_bell_fenced,     FP_bell_rung,
    FP_bell_announced, FP_bell_asleep,     FP_bell_woken,     FP_stat_writing,    FP_finish_said,
};
enum { FAULTS = 4 }; /* of one lagand: with five before READY it gives a worker up */

static void
pass_point(enum failpoint p, enum fp_action a)
{
    nsec until = clock_now() + SETTLE_MS * NSEC_MS;

    submit_all();
    turn(2, false);
    service_arm(&v, FP_WORKER, p, a, 1 + test_below(p <= FP_ready_said ? 1 : 20));
    if (p <= FP_ready_said) service_kill_one(&v, 1);
    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        submit_all();
        turn(2, false);
        if (clock_now() >= until) fail_msg("%s is not passed", failpoint_name(p));
    }
    settle(false);
}

static void
at_every_point_a_worker_may_die_and_no_bit_changes(void **state)
{
    const uint32_t rounds = count_from("LAGAN_TORTURE_ROUNDS", 0);
    uint32_t faults = 0;

    (void)state;
    start("fp32", 0, (const char *const[]){ "--supervisor.stall-timeout", "500ms", NULL });
    run_undisturbed();
    for (uint32_t round = 0; round < MAX(rounds, 1u); round++)
        for (uint32_t i = 0; i < ARRAY_LEN(points); i++)
            for (enum fp_action a = FP_KILL; a < FP_DELAY; a++) {
                /* A quick check does two of the four at each, others every time. */
                if (!rounds && a != FP_KILL && (uint32_t)a != FP_ABORT + test_below(3)) continue;
                pass_point(points[i], a);
                if (a == FP_KILL || ++faults % FAULTS) continue;
                lagan_close(c);
                service_stop(&v);
                start("fp32", 0,
                      (const char *const[]){ "--supervisor.stall-timeout", "500ms", NULL });
            }
    service_stop(&v);
}

/* A call to an operator's door; its answer does not matter here. */
static void
operate(const char *verb)
{
    char endpoint[128], *reply = NULL;
    struct lagan *ctl;
    uint32_t code;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/ctl.sock", v.run);
    if (lagan_open(&ctl, endpoint, 20000) < 0) fail_msg("%s", lagan_why(NULL));
    lagan_call(ctl, verb, "{\"worker\":\"w0\"}", &reply, &code, 20000);
    free(reply);
    lagan_close(ctl);
}

/* Until that point has fired; asking again, for a worker that is just starting answers nobody. */
static void
await(enum failpoint p, const char *verb)
{
    nsec until = clock_now() + SETTLE_MS * NSEC_MS;

    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        if (verb) operate(verb);
        turn(20, false);
        if (clock_now() >= until) fail_msg("%s is not passed", failpoint_name(p));
    }
}

static void
a_worker_may_die_while_it_drains_answers_or_says_its_last_words(void **state)
{
    static const enum fp_action actions[] = { FP_KILL, FP_EXIT };

    (void)state;
    start("fp32", 0, NULL);
    run_undisturbed();
    for (uint32_t k = 0; k < ARRAY_LEN(actions); k++)
        for (enum failpoint p = FP_control_sending; p <= FP_drain_done; p++) {
            submit_all();
            service_arm(&v, FP_WORKER, p, actions[k], 1);
            await(p, p == FP_control_sending ? "tune status" : "restart");
            settle(false);
        }
    submit_all();
    service_arm(&v, FP_WORKER, FP_words_writing, FP_KILL, 1);
    service_arm(&v, FP_WORKER, FP_step_launched, FP_ABORT, 1);
    await(FP_words_writing, NULL);
    settle(false);
    assert_true(service_logged(&v, "last words (cut off)"));
    service_stop(&v);
}

/* It has mapped the weights before the fault: they are opened again, and nothing of the KV is adopted. */
static void
a_standby_takes_over_after_a_fault_and_no_bit_changes(void **state)
{
    (void)state;
    start("fp32", 1, NULL);
    run_undisturbed();
    for (uint32_t faults = 1; faults <= 2; faults++) {
        submit_all();
        service_arm(&v, FP_WORKER, FP_step_launched, FP_ABORT, 1 + test_below(20));
        await(FP_step_launched, NULL);
        settle(false);
        assert_int_equal(service_logged(&v, "the standby takes over"), faults);
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
    }
    assert_int_equal(service_logged(&v, "died of signal"), 2);
    assert_true(resumed > 0);
    assert_int_equal(adopted, 0);
    /* A restart is for another program, or other files: not for one that has them open already. */
    operate("restart");
    for (nsec until = clock_now() + SETTLE_MS * NSEC_MS; !service_logged(&v, "w0.standby: pid");) {
        if (clock_now() >= until) fail_msg("the standby outlives a restart");
        turn(20, false);
    }
    if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers or standbys are missing");
    assert_int_equal(service_logged(&v, "the standby takes over"), 2);
    service_stop(&v);
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(streams_of_killed_workers_have_the_bits_of_an_undisturbed_run),
        T(at_every_point_a_worker_may_die_and_no_bit_changes),
        T(a_standby_takes_over_after_a_fault_and_no_bit_changes),
        T(a_worker_may_die_while_it_drains_answers_or_says_its_last_words),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
