/* test_group.c - models on several ranks, one of them is killed, stopped or fails at any instant:
 * the group ends, its memory is adopted, and every result has the bits of an undisturbed run.
 *
 * Like test_resume.c, with the same three models and 32 requests at once; each rank is a process on
 * the CPU. --kills and --rounds are for check-long.
 */
#include "base/clock.h"
#include "include/lagan_wire.h"
#include "tests/test.h"
#include "tests/torture/args.h"
#include "tests/torture/repeat_load.h"
#include "tests/torture/service.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PACKAGE_VERSION
#include "config.h"
#endif

enum { SETTLE_MS = 90000, ROUND = 10, MOST = 20, CONFIG = 78, GROWTH_KIB = 8192 };

static uint32_t n_kills = 6, n_lagands = 3, n_rounds;
static struct service v;
static struct systemd systemd;
static struct repeat_load load;

/* Flushes every cache continuously; workers that are not running refuse. */
static struct flusher {
    bool wanted, runs; /* wanted is set by the test */
    pthread_t thread;
    atomic_bool over;
    uint64_t n, blocks;
} flusher;

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
    flusher.over = true;
    if (flusher.runs) pthread_join(flusher.thread, NULL);
    flusher = (struct flusher){ 0 };
    repeat_load_close(&load);
    service_close(&v);
    return 0;
}

static void
start(uint32_t ranks, const char *dtype, uint32_t standby)
{
    load.ranks = ranks;
    repeat_load_start(&load, &v, dtype, standby, NULL);
}

/* Kills random ranks. */
static void
kill_some(uint32_t kills)
{
    nsec next = 0;

    while (kills) {
        repeat_load_run(&load, 2, true);
        if (clock_now() < next) continue;
        next = clock_now() + test_below(400000) * NSEC_US;
        kills -= service_kill_one(&v, 1);
    }
    repeat_load_settle(&load);
    if (!service_all_ready(&v, SETTLE_MS)) fail_msg("ranks are missing");
}

static void *
flush_caches(void *arg)
{
    struct flusher *f = arg;
    char endpoint[128], args[32];
    struct lagan *ctl;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/ctl.sock", v.run);
    check(lagan_open(&ctl, endpoint, 20000) == 0);
    for (uint32_t w = 0; !f->over; w = (w + 1) % LOAD_MODELS) {
        char *reply = NULL;
        uint32_t code;

        snprintf(args, sizeof args, "{\"worker\":\"w%u\"}", w);
        if (lagan_call(ctl, "kv flush", args, &reply, &code, 20000) == 0) {
            f->n++;
            f->blocks += strtoull(strstr(reply, "\"blocks\":") + strlen("\"blocks\":"), NULL, 10);
        }
        free(reply);
        usleep(5000);
    }
    lagan_close(ctl);
    return NULL;
}

static void
begin_flusher(void)
{
    flusher.runs = pthread_create(&flusher.thread, NULL, flush_caches, &flusher) == 0;
    assert_true(flusher.runs);
}

static void
end_flusher(void)
{
    flusher.over = true;
    pthread_join(flusher.thread, NULL);
    flusher.runs = false;
    print_message("%llu flushes dropped %llu blocks\n", (unsigned long long)flusher.n,
                  (unsigned long long)flusher.blocks);
    assert_true(flusher.blocks > 0);
}

/* True if a rank above 0 was killed, KV was adopted, and, with standbys, a standby took over. */
static bool
all_cases_seen(uint32_t standby)
{
    return service_logged(&v, "killing its rank group") && service_logged(&v, ": adopted ") &&
           (!standby || service_logged(&v, "the standby takes over"));
}

static void
kill_ranks(uint32_t ranks, const char *dtype, uint32_t standby)
{
    struct census first = { 0 };
    uint32_t done = 0;

    start(ranks, dtype, standby);
    if (flusher.wanted) begin_flusher();
    while (torture_more("kills of ranks", done, n_kills) ||
           (!all_cases_seen(standby) && done < MOST * n_kills)) {
        uint32_t n = done < n_kills ? MIN(n_kills - done, (uint32_t)ROUND) : 1;

        kill_some(n);
        service_recount(&v, &first, GROWTH_KIB);
        done += n;
    }
    print_message("%u ranks, %s: %u kills, %llu results; %llu times resumed, KV of %llu tokens "
                  "adopted, %llu recomputed; %u standbys took over\n",
                  ranks, dtype, done, (unsigned long long)load.n_done,
                  (unsigned long long)load.resumed, (unsigned long long)load.adopted,
                  (unsigned long long)load.recomputed,
                  service_logged(&v, "the standby takes over"));
    assert_true(load.resumed > 0);
    assert_true(all_cases_seen(standby));
    assert_int_equal(service_logged(&v, "invalid cache nodes; "), 0);
    if (flusher.wanted) end_flusher();
    repeat_load_stop(&load);
}

static void
killed_groups_of_2_give_equal_bits(void **state)
{
    (void)state;
    kill_ranks(2, "fp32", 0);
}

static void
killed_groups_of_2_with_several_lanes_give_equal_bits(void **state)
{
    (void)state;
    load.lanes = true;
    kill_ranks(2, "bf16", 0);
}

static void
killed_groups_of_2_give_equal_bits_during_cache_flushes(void **state)
{
    (void)state;
    flusher.wanted = true;
    kill_ranks(2, "fp32", 0);
}

static void
killed_groups_of_2_with_standbys_give_equal_bits(void **state)
{
    (void)state;
    kill_ranks(2, "bf16", 1);
}

static void
killed_groups_of_4_give_equal_bits(void **state)
{
    (void)state;
    kill_ranks(4, "fp32", 0);
}

/* systemd keeps every rank's memory by name; a group adopts all of it or none. */
static void
groups_of_a_killed_lagand_give_equal_bits(void **state)
{
    uint32_t done = 0;

    (void)state;
    systemd_open(&systemd, v.dir);
    v.systemd = &systemd;
    start(2, "fp32", 0);
    for (; torture_more("kills of lagand", done, n_lagands); done++) {
        nsec until = clock_now() + test_below(300000) * NSEC_US;

        do repeat_load_run(&load, 2, true);
        while (clock_now() < until);
        kill(v.pid, SIGKILL);
        repeat_load_reattach(&load);
        repeat_load_run(&load, 2, true);
        if (test_below(2)) service_kill_one(&v, 1);
        repeat_load_settle(&load);
        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("ranks are missing");
    }
    print_message(
        "%u kills of lagand: %llu results; %llu times resumed, KV of %llu tokens adopted, "
        "%llu recomputed\n",
        done, (unsigned long long)load.n_done, (unsigned long long)load.resumed,
        (unsigned long long)load.adopted, (unsigned long long)load.recomputed);
    assert_true(load.resumed > 0 && load.adopted > load.recomputed);
    assert_int_equal(service_logged(&v, "invalid cache nodes; "), 0);
    repeat_load_stop(&load);
    systemd_close(&systemd);
}

/* Forgets the stored descriptor whose name begins with `begin`. */
static void
lose_descriptor(const char *begin)
{
    char name[SYSTEMD_NAME] = "";

    pthread_mutex_lock(&systemd.lock);
    for (uint32_t i = 0; i < systemd.n_store; i++)
        if (!strncmp(systemd.store[i].name, begin, strlen(begin)))
            memcpy(name, systemd.store[i].name, sizeof name);
    pthread_mutex_unlock(&systemd.lock);
    assert_true(*name);
    systemd_forget(&systemd, name);
}

/* One of eight pieces of the host tier is lost, and the other pieces of that rank remain. Two
 * models, with running requests. */
static void
memory_that_one_rank_lost_is_not_adopted_by_any(void **state)
{
    static const char *const lost[] = { "w64=host1=", "w65=host1=", "w64=kv=",     "w65=kv=",
                                        "w0=kv=",     "w1=kv=",     "w0=manifest", "w1=manifest",
                                        "w0=host2=",  "w1=host2=",  "w64=weights", "w65=weights" };

    (void)state;
    systemd_open(&systemd, v.dir);
    v.systemd = &systemd;
    start(2, "fp32", 0);
    for (size_t i = 0; i < ARRAY_LEN(lost); i += 2) {
        repeat_load_run(&load, 0, true);
        if (i) /* requests then use the host tier */
            repeat_load_run(&load, 20, false);
        else
            repeat_load_settle(&load);
        kill(v.pid, SIGKILL);
        lose_descriptor(lost[i]);
        lose_descriptor(lost[i + 1]);
        repeat_load_reattach(&load);
        repeat_load_run(&load, 0, true);
        repeat_load_settle(&load);
    }
    repeat_load_stop(&load);
    systemd_close(&systemd);
}

static const enum failpoint points[] = {
    FP_worker_main,   FP_worker_attached, FP_load_device,    FP_load_steps,      FP_load_kv,
    FP_load_done,     FP_fd_passed,       FP_ready_reported, FP_manifest_stored, FP_step_planned,
    FP_rank_planned,  FP_rank_launched,   FP_step_launched,  FP_step_finished,   FP_step_committed,
    FP_ring_reserved, FP_ring_publishing, FP_doorbell_sent,
};
enum { FAULTS = 4 }; /* per lagand: after 5 before READY lagand stops restarting the worker */

static void
pass_point(enum failpoint p, enum fp_action a)
{
    bool starts = p <= FP_ready_reported;
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    repeat_load_run(&load, 2, true);
    service_arm(&v, FP_WORKER, p, a, 1 + test_below(starts ? 1 : 20));
    if (starts && repeat_load_standbys(0)) /* a standby does not load again */
        kill(service_pid(&v, "w0"), SIGKILL);
    else if (starts)
        service_kill_one(&v, 1);
    while (atomic_load(&v.board->fp.slot[FP_WORKER][p].left)) {
        repeat_load_run(&load, 2, true);
        if (service_now(&v) >= until) fail_msg("%s is not passed", failpoint_name(p));
    }
    repeat_load_settle(&load);
}

static void
rank_failing_at_every_point_changes_no_bit(void **state)
{
    uint32_t faults = 0;

    (void)state;
    start(2, "fp32", 0);
    for (uint32_t i = 0; torture_more("points", i, MAX(n_rounds, 1u) * ARRAY_LEN(points)); i++)
        for (enum fp_action a = FP_KILL; a < FP_DELAY; a++) {
            /* The quick check runs 1 of 8 cases, --rounds all. */
            if (!n_rounds && test_below(8) != 0) continue;
            pass_point(points[i % ARRAY_LEN(points)], a);
            if (a == FP_KILL || ++faults % FAULTS) continue;
            repeat_load_stop(&load);
            start(2, "fp32", 0);
        }
    repeat_load_stop(&load);
}

/* Finds the last log line with `begin` followed by `more`. */
static bool
last_line(const char *begin, const char *more, char *line, int n)
{
    char one[512];
    bool found = false;
    FILE *f = fopen(v.log, "re");

    assert_non_null(f);
    while (fgets(one, sizeof one, f)) {
        const char *at = strstr(one, begin);

        if (!at || !strstr(at, more)) continue;
        snprintf(line, (size_t)n, "%s", at);
        found = true;
    }
    fclose(f);
    return found;
}

static pid_t
another_rank(void)
{
    char line[512];
    int pid;

    assert_true(last_line("worker w0.1: ", "started, pid ", line, sizeof line));
    assert_int_equal(sscanf(line, "worker w0.1: started, pid %d", &pid), 1);
    return pid;
}

/* The rank's silence is the cause and not the delay of rank 0, which waits for it; so the KV is
 * adopted. */
static void
stopped_rank_ends_its_group_and_its_kv_is_adopted(void **state)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
    char line[512];

    (void)state;
    start(2, "fp32", 0);
    repeat_load_run(&load, 0, true);
    repeat_load_run(&load, 50, true);
    kill(another_rank(), SIGSTOP);
    while (!last_line("worker w0: pid ", " died (silent)", line, sizeof line)) {
        repeat_load_run(&load, 20, true);
        if (service_now(&v) >= until) fail_msg("lagand did not notice the stopped rank");
    }
    repeat_load_settle(&load);
    assert_true(load.resumed > 0);
    assert_true(service_logged(&v, "worker w0: adopted") > 0);
    assert_false(last_line("worker w0: pid ", " died (overdue)", line, sizeof line));
    repeat_load_stop(&load);
}

/* The standby's ranks replace all ranks and adopt their memory, whichever rank was killed. */
static void
standby_group_replaces_a_group_that_lost_a_rank(void **state)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    (void)state;
    start(2, "fp32", 1);
    while (service_logged(&v, "standby: loaded the model") < 2 * LOAD_MODELS) {
        repeat_load_run(&load, 20, true);
        if (service_now(&v) >= until) fail_msg("no standby group");
    }
    repeat_load_run(&load, 50, true);
    kill(another_rank(), SIGKILL);
    while (!service_logged(&v, "worker w0: the standby takes over")) {
        repeat_load_run(&load, 2, true);
        if (service_now(&v) >= until) fail_msg("no standby took over");
    }
    repeat_load_settle(&load);
    if (!service_all_ready(&v, SETTLE_MS)) fail_msg("ranks are missing");
    assert_true(load.resumed > 0);
    assert_int_equal(service_logged(&v, "worker w0.1: started"), 1);
    /* and the next standby's */
    assert_int_equal(service_logged(&v, "worker w0.standby.1: started"), 2);
    assert_true(service_logged(&v, "worker w0: adopted") > 0);
    repeat_load_stop(&load);
}

enum { NEW = 24, UNITS = 8 };

/* Returns the tokens of one request and their log-probabilities. */
static void
ask_llama(struct lagan *c, int32_t *id, float *logprob)
{
    struct lagan_event e = { .size = sizeof e };
    struct lagan_request *q = lagan_request_new();
    const int32_t ids[] = { 5, 17, 99, 4, 31 };
    uint32_t n = 0;
    uint64_t rid;

    assert_non_null(q);
    lagan_set_ids(q, "ids", ids, ARRAY_LEN(ids));
    lagan_set_int(q, "max_tokens", NEW);
    lagan_set_bool(q, "ignore_eos", 1);
    lagan_set_int(q, "logprobs", 0);
    assert_int_equal(lagan_submit(c, q, &rid), 0);
    lagan_request_free(q);
    do {
        if (lagan_next(c, &e, SETTLE_MS) <= 0) fail_msg("no event: %s", lagan_errmsg(c));
        if (e.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", e.reason_name, e.message);
        if (e.kind != LAGAN_EVENT_TOKENS) continue;
        assert_true(e.n_ids <= NEW - n && e.logprob);
        memcpy(id + n, e.ids, e.n_ids * sizeof *id);
        memcpy(logprob + n, e.logprob, e.n_ids * sizeof *logprob);
        n += e.n_ids;
    } while (e.kind != LAGAN_EVENT_DONE);
    assert_int_equal(n, NEW);
}

/* Starts one model on two ranks with 8 device units each, and connects to both listeners. */
static void
start_llama(struct lagan **c, struct lagan **ctl)
{
    char endpoint[128];

    v.n_standbys = 1;
    service_start(&v, 1,
                  "models:\n  - { name: llama, path: @/tests/data/golden/llama3, device: cpu, "
                  "tensor_parallel: 2, threads: 16, split: { mode: fixed } }\n",
                  NULL);
    snprintf(endpoint, sizeof endpoint, "ipc://%s/ctl.sock", v.run);
    assert_int_equal(lagan_open(c, v.endpoint, 20000), 0);
    assert_int_equal(lagan_open(ctl, endpoint, 20000), 0);
}

static void
stop_llama(struct lagan *c, struct lagan *ctl)
{
    lagan_close(ctl);
    lagan_close(c);
    service_stop(&v);
}

/* True if the main (engine) thread sleeps now. */
static bool
is_sleeping(pid_t pid)
{
    char path[64], line[512];
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    return !strncmp(strrchr(line, ')'), ") S", 3);
}

/* After its last step as before its first. */
static void
idle_rank_sleeps(void **state)
{
    enum { LOOKS = 5 }; /* an active rank would never be seen sleeping */
    struct lagan *ctl, *c;
    float logprob[NEW];
    int32_t id[NEW];
    pid_t rank;
    nsec until;

    (void)state;
    start_llama(&c, &ctl);
    ask_llama(c, id, logprob);
    rank = another_rank();
    until = service_now(&v) + SETTLE_MS / 9 * NSEC_MS;
    for (uint32_t n = 0; n < LOOKS; n = is_sleeping(rank) ? n + 1 : 0) {
        if (service_now(&v) >= until) fail_msg("the idle rank uses CPU time");
        usleep(10000);
    }
    stop_llama(c, ctl);
}

/* Returns the nesting depth of a frame with this reply, including 2 of the envelope. */
static uint32_t
depth_of(const char *json)
{
    uint32_t depth = 0, most = 0;

    for (bool text = false; *json; json++) {
        if (*json == '"') text = !text;
        if (text && *json == '\\') json++;
        if (text) continue;
        depth += *json == '[' || *json == '{';
        depth -= *json == ']' || *json == '}';
        most = MAX(most, depth);
    }
    return 2 + most;
}

/* A frame that exceeds the depth or length limit ends the connection. The list of workers with
 * ranks is the deepest. */
static void
every_reply_to_an_operator_is_within_frame_limits(void **state)
{
    static const char *const verbs[] = { "status",      "workers list", "requests list",
                                         "config show", "kv stats",     "metrics",
                                         "events",      "panic",        "tune status",
                                         "split show" };
    struct lagan *ctl, *c;
    uint32_t deepest = 0;
    float logprob[NEW];
    int32_t id[NEW];

    (void)state;
    start_llama(&c, &ctl);
    ask_llama(c, id, logprob); /* the model is ready */
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        char *reply = NULL;
        uint32_t code, depth;

        if (lagan_call(ctl, verbs[i], NULL, &reply, &code, 20000))
            fail_msg("%s: %s", verbs[i], lagan_errmsg(ctl));
        depth = depth_of(reply);
        if (depth >= LAGAN_MAX_DEPTH) fail_msg("%s: depth %u reaches the limit", verbs[i], depth);
        deepest = MAX(deepest, depth);
        free(reply);
    }
    assert_int_equal(deepest, LAGAN_MAX_DEPTH - 1); /* status: ranks of a worker */
    stop_llama(c, ctl);
}

/* Selects partitions that are not in the list: each rank must apply them before a step uses
 * them. */
static void
every_rank_applies_an_operators_partition(void **state)
{
    char args[64], words[96];
    int32_t want[NEW], id[NEW];
    float logprob[2][NEW];
    struct lagan *ctl, *c;
    uint32_t code, n = 0;

    (void)state;
    start_llama(&c, &ctl);
    ask_llama(c, want, logprob[0]);
    for (uint32_t i = 1; i < UNITS; i++) {
        char *reply = NULL;

        snprintf(args, sizeof args, "{\"worker\":\"w0\",\"prefill_units\":%u,\"decode_units\":%u}",
                 i, UNITS - i);
        if (lagan_call(ctl, "split set", args, &reply, &code, 20000))
            fail_msg("split set %s: %s", args, lagan_errmsg(ctl));
        free(reply);
        ask_llama(c, id, logprob[1]);
        ask_llama(c, id, logprob[1]);
        assert_memory_equal(id, want, sizeof id);
        assert_memory_equal(logprob[1], logprob[0], sizeof logprob[0]);
        snprintf(words, sizeof words,
                 "rank 1: applied the partition of rank 0: %u units for prefill, %u for decode", i,
                 UNITS - i);
        n += service_logged(&v, words);
    }
    assert_true(n >= 3); /* the other partitions existed from the start */
    stop_llama(c, ctl);
}

enum { SHORT = 200, LONG = 9000 };

/* Returns the only token of a long prompt, and its log-probability. */
static int32_t
ask_long(struct lagan *c, const char *model, int32_t n, float *logprob)
{
    struct lagan_event e = { .size = sizeof e };
    struct lagan_request *q = lagan_request_new();
    static int32_t ids[LONG];
    int32_t id = -1;
    uint64_t rid;

    assert_non_null(q);
    for (int32_t i = 0; i < n; i++) ids[i] = 3 + i * 37 % 300;
    lagan_set_str(q, "model", model, strlen(model));
    lagan_set_ids(q, "ids", ids, (size_t)n);
    lagan_set_int(q, "max_tokens", 1);
    lagan_set_bool(q, "ignore_eos", 1);
    lagan_set_int(q, "logprobs", 0);
    assert_int_equal(lagan_submit(c, q, &rid), 0);
    lagan_request_free(q);
    do {
        if (lagan_next(c, &e, SETTLE_MS) <= 0) fail_msg("no event: %s", lagan_errmsg(c));
        if (e.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", e.reason_name, e.message);
        if (e.kind != LAGAN_EVENT_TOKENS) continue;
        id = e.ids[0];
        *logprob = e.logprob[0];
    } while (e.kind != LAGAN_EVENT_DONE);
    return id;
}

/* A prompt in one step whose tokens exceed PLAN_BYTES, compared with the same prompt in chunks. */
static void
step_longer_than_a_record_is_sent_in_several(void **state)
{
    static const char models[] =
        "models:\n"
        "  - { name: whole, path: %s/model, device: cpu, tensor_parallel: 2, "
        "max_num_batched_tokens: 9216 }\n"
        "  - { name: chunks, path: %s/model, device: cpu, tensor_parallel: 2, "
        "max_num_batched_tokens: 512 }\n";
    char config[512], command[400];
    float logprob[2];
    struct lagan *c;

    (void)state;
    snprintf(command, sizeof command,
             "cp -rL \"${srcdir:-.}/tests/data/golden/mistral\" %s/model && cd %s/model && "
             "chmod +w . config.json && sed -i "
             "'s/\"max_position_embeddings\": 512/\"max_position_embeddings\": 16384/' config.json",
             v.dir, v.dir);
    assert_int_equal(system(command), 0);
    snprintf(config, sizeof config, models, v.dir, v.dir);
    v.n_standbys = 2;
    service_start(&v, 2, config, NULL);
    assert_int_equal(lagan_open(&c, v.endpoint, 20000), 0);
    /* First a short prompt: until the worker has measured a step, a slow machine would exceed the
     * step's deadline. */
    (void)ask_long(c, "whole", SHORT, &logprob[0]);
    assert_int_equal(ask_long(c, "whole", LONG, &logprob[0]),
                     ask_long(c, "chunks", LONG, &logprob[1]));
    assert_memory_equal(&logprob[0], &logprob[1], sizeof logprob[0]);
    assert_int_equal(service_epochs(&v, "whole"), 1);
    lagan_close(c);
    service_stop(&v);
}

/* Checks that lagand refuses to serve, does not retry, and logs this text. */
static void
check_refused(const char *config, const char *worker, const char *words)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;

    v.worker = worker; /* service_start() does not wait for this program */
    service_start(&v, 1, config, NULL);
    while (!service_logged(&v, words)) {
        usleep(20000);
        if (service_now(&v) >= until) fail_msg("not logged: %s", words);
    }
    assert_int_equal(WEXITSTATUS(service_reap(&v)), CONFIG);
}

/* Starts two ranks after running one shell line in each, in which $real is lagan-worker and "$@"
 * its options; both must be refused. */
static void
check_ranks_refused(const char *model, const char *rank_0, const char *rank_1, const char *words)
{
    char path[128], real[1024], config[256];
    FILE *f;

    test_program(real, sizeof real, "tests/torture/lagan-worker");
    snprintf(path, sizeof path, "%s/odd", v.dir);
    f = fopen(path, "we");
    assert_non_null(f);
    fprintf(f,
            "#!/bin/bash\nreal=%s\ncd %s\ncase \"$*\" in *--rank=1*) %s ;; *) %s ;; esac\n"
            "exec $real \"$@\"\n",
            real, v.dir, rank_1, rank_0);
    fclose(f);
    assert_int_equal(chmod(path, 0755), 0);
    snprintf(config, sizeof config,
             "models:\n  - { name: llama, path: %s, device: cpu, tensor_parallel: 2 }\n", model);
    check_refused(config, path, words);
}

static void
ranks_with_different_settings_are_refused_with_the_difference(void **state)
{
    (void)state;
    check_ranks_refused("@/tests/data/golden/llama3", ":",
                        "set -- \"$@\" --kv.snapshot_interval=4096",
                        "rank 1 has \"kv.snapshot_interval 4096\", rank 0 \"kv.snapshot_");
}

/* The same program, with another first letter of its version. */
static void
ranks_with_different_versions_are_refused_with_both(void **state)
{
    const char *rest = PACKAGE_VERSION + 1;
    char rank_1[200], words[80];

    (void)state;
    snprintf(rank_1, sizeof rank_1,
             "sed 's/\\x00%s\\x00/\\x00x%s\\x00/' $real >other; chmod +x other; real=./other",
             PACKAGE_VERSION, rest);
    snprintf(words, sizeof words, "rank 1 has \"version x%s\", rank 0 \"version %s\"", rest,
             PACKAGE_VERSION);
    check_ranks_refused("@/tests/data/golden/llama3", ":", rank_1, words);
}

/* One path that is a different folder in each process; in rank 1's folder one byte of the weights
 * differs. */
static void
ranks_with_different_weights_are_refused_with_both(void **state)
{
    enum { FOLDER = 200 };
    char command[400], model[80];
    int fd;

    (void)state;
    snprintf(model, sizeof model, "%s/model", v.dir);
    snprintf(command, sizeof command,
             "cp -rL \"${srcdir:-.}/tests/data/golden/llama3\" %s/model && cd %s && "
             "cp -r model other && chmod +w other/* && printf x | dd bs=1 seek=70000 "
             "conv=notrunc status=none of=other/model-00004-of-00004.safetensors",
             v.dir, v.dir);
    assert_int_equal(system(command), 0);
    fd = open(model, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0 && dup2(fd, FOLDER) == FOLDER);
    close(fd);
    check_ranks_refused("/proc/self/fd/200", "exec 200<model", "exec 200<other",
                        "rank 1 has checkpoint hash ");
    close(FOLDER);
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(killed_groups_of_2_give_equal_bits),
        T(killed_groups_of_2_with_several_lanes_give_equal_bits),
        T(killed_groups_of_2_give_equal_bits_during_cache_flushes),
        T(killed_groups_of_2_with_standbys_give_equal_bits),
        T(killed_groups_of_4_give_equal_bits),
        T(groups_of_a_killed_lagand_give_equal_bits),
        T(memory_that_one_rank_lost_is_not_adopted_by_any),
        T(rank_failing_at_every_point_changes_no_bit),
        T(stopped_rank_ends_its_group_and_its_kv_is_adopted),
        T(standby_group_replaces_a_group_that_lost_a_rank),
        T(idle_rank_sleeps),
        T(every_rank_applies_an_operators_partition),
        T(step_longer_than_a_record_is_sent_in_several),
        T(every_reply_to_an_operator_is_within_frame_limits),
        T(ranks_with_different_settings_are_refused_with_the_difference),
        T(ranks_with_different_versions_are_refused_with_both),
        T(ranks_with_different_weights_are_refused_with_both),
    };

    torture_args(argc, argv,
                 (const struct torture_arg[]){ { "kills", &n_kills },
                                               { "lagands", &n_lagands },
                                               { "rounds", &n_rounds },
                                               { NULL, NULL } });
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
