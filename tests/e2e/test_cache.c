/* test_cache.c - tokens are taken from the prefix cache, on the device or on the host, and no
 * output changes.
 *
 * Dialogs of several rounds; each prompt has all tokens of the rounds before. First without a
 * cache and with memory for all requests. Then with a cache so small that rounds evict each
 * other to the host and sequences are preempted: a first prompt has a third of its final length,
 * so that several prompts fit and their outputs do not. Some dialogs have a common prefix and
 * share blocks. Ids and the bits of log-probabilities must be equal; the number of cached tokens
 * is checked. Flushes of the cache change no output either.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DIALOGS = 12, ROUNDS = 3, ASKED = 12, NEW = 36, SOURCE = 30, MOST = 256, FLUSH_EVERY = 40 };

struct dialog {
    int32_t history[MOST];
    uint32_t n_history;
    uint64_t request;
    int32_t id[ROUNDS][NEW];
    float logprob[ROUNDS][NEW];
    uint32_t n, n_cached[ROUNDS];
};
/* Counters of the worker. */
struct counts {
    uint64_t offloaded, onboarded, preemptions;
    uint64_t of_groups;     /* offloaded and onboarded blocks of all groups */
    uint64_t shared, cross; /* full hits of all groups, of cross groups */
    uint64_t states;        /* blocks of snapshots onboarded */
};

static void
extend_prompt(struct dialog *t, uint32_t dialog, uint32_t round, bool encoder)
{
    uint32_t n = round == 0 && encoder ? 3 : round == 0 ? 2 * ASKED : ASKED;

    /* Half of the dialogs have a common prefix. */
    for (uint32_t k = 0; k < n; k++, t->n_history++)
        t->history[t->n_history] = (int32_t)(3 + (round == 0 && dialog % 2 && k < ASKED
                                                      ? 11 * k
                                                      : (dialog * 31 + round * 17 + k * 7)) %
                                                     90);
    if (encoder) t->history[0] = 0;
}

static void
submit(struct lagan *c, struct dialog *t, uint32_t dialog, uint32_t round, bool encoder)
{
    struct lagan_request *r = lagan_request_new();
    int32_t source[SOURCE];

    for (uint32_t k = 0; k < SOURCE; k++) source[k] = (int32_t)(3 + (dialog * 5 + k * 13) % 90);
    if (encoder) lagan_set_ids(r, "ids", source, SOURCE);
    lagan_set_ids(r, encoder ? "decoder_ids" : "ids", t->history, t->n_history);
    lagan_set_int(r, "max_tokens", NEW);
    lagan_set_bool(r, "ignore_eos", true);
    lagan_set_int(r, "logprobs", 1);
    if (dialog % 3 == 1) lagan_set_float(r, "temperature", 0.8);
    if (dialog % 3 == 1) lagan_set_int(r, "seed", dialog * 10 + round);
    assert_int_equal(lagan_submit(c, r, &t->request), 0);
    lagan_request_free(r);
    t->n = 0;
}

static bool
take(struct dialog *t, uint32_t round, const struct lagan_event *ev)
{
    if (ev->kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev->reason_name, ev->message);
    if (ev->kind == LAGAN_EVENT_TOKENS) {
        assert_true(t->n + ev->n_ids <= NEW && ev->first == t->n);
        memcpy(t->id[round] + t->n, ev->ids, ev->n_ids * sizeof *ev->ids);
        memcpy(t->logprob[round] + t->n, ev->logprob, ev->n_ids * sizeof *ev->logprob);
        t->n += ev->n_ids;
    }
    if (ev->kind == LAGAN_EVENT_OUTPUT) t->n_cached[round] = ev->cached;
    if (ev->kind != LAGAN_EVENT_DONE) return false;
    assert_int_equal(t->n, NEW);
    memcpy(t->history + t->n_history, t->id[round], sizeof t->id[round]);
    t->n_history += NEW;
    return true;
}

static uint64_t
metric(const char *line, const char *name, uint64_t n)
{
    const char *value = strrchr(line, ' ');

    return line[0] != '#' && strstr(line, name) && value ? n + strtoull(value, NULL, 10) : n;
}

static struct counts
count(const struct serve *s)
{
    char command[400], line[512];
    struct counts n = { 0 };
    FILE *f;

    snprintf(command, sizeof command, "%s --connect %s metrics", program_path("laganctl"),
             s->endpoint);
    f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        n.offloaded = metric(line, "lagan_worker_blocks_offloaded", n.offloaded);
        n.onboarded = metric(line, "lagan_worker_blocks_onboarded", n.onboarded);
        n.of_groups = metric(line, "lagan_kv_offloaded", n.of_groups);
        n.of_groups = metric(line, "lagan_kv_onboarded", n.of_groups);
        n.shared = metric(line, "lagan_kv_reused_full", n.shared);
        if (strstr(line, "kind=\"cross\"")) n.cross = metric(line, "lagan_kv_reused_full", n.cross);
        if (strstr(line, "kind=\"state\"")) n.states = metric(line, "lagan_kv_onboarded", n.states);
        n.preemptions = metric(line, "preemptions", n.preemptions);
    }
    pclose(f);
    return n;
}

static uint64_t
number(const char *json, const char *key)
{
    const char *at = strstr(json, key);

    assert_non_null(at);
    return strtoull(at + strlen(key), NULL, 10);
}

/* Adds the numbers of evicted blocks. */
static void
flush(const struct serve *s, uint64_t *device, uint64_t *host)
{
    char output[400];

    if (serve_ask(s, "kv flush --json", output, sizeof output) != 0)
        fail_msg("kv flush: %s", output);
    *device += number(output, "\"blocks\":");
    *host += number(output, "\"host_blocks\":");
}

/* flushed: flush the cache repeatedly and add the blocks evicted from the device and from the
 * host; NULL: never. */
static struct counts
converse(const char *model, const char *const *set, bool encoder, struct dialog *t,
         uint64_t flushed[2])
{
    uint32_t n_events = 0;
    struct counts n;
    struct serve s;
    struct lagan *c;

    assert_true(serve_start(&s, model, set));
    assert_int_equal(lagan_open(&c, s.endpoint, 5000), 0);
    memset(t, 0, DIALOGS * sizeof *t);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < DIALOGS; i++) {
            extend_prompt(&t[i], i, round, encoder);
            submit(c, &t[i], i, round, encoder);
        }
        for (uint32_t over = 0; over < DIALOGS;) {
            struct lagan_event ev = { .size = sizeof ev };
            uint32_t i = 0;

            if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
            while (i < DIALOGS && t[i].request != ev.id) i++;
            assert_true(i < DIALOGS);
            over += take(&t[i], round, &ev);
            if (flushed && n_events++ % FLUSH_EVERY == 0) flush(&s, &flushed[0], &flushed[1]);
        }
    }
    n = count(&s);
    lagan_close(c);
    serve_stop(&s);
    return n;
}

static struct dialog want[DIALOGS]; /* of the last with_and_without() call */

/* roomier: memory that gives cache hits without onboarding. */
static void
with_and_without(const char *model, const char *memory, const char *roomier, bool encoder,
                 const char *sinks)
{
    bool states = strstr(model, "nemotron_h") != NULL; /* it has recurrent state */
    static struct dialog got[DIALOGS];
    const char *set[] = { "kv.memory=64MiB",
                          "kv.reuse=false",
                          "kv.host_memory=0",
                          "policy=no_evict",
                          "kv.host_bandwidth=0",
                          "kv.prefill_rate=0",
                          "kv.tokens_per_block=8",
                          "max_num_seqs=12",
                          "max_num_batched_tokens=48",
                          "max_source_tokens=64",
                          "threads=2",
                          "numerics=invariant",
                          sinks,
                          NULL };
    struct counts n = converse(model, set, encoder, want, NULL);

    assert_int_equal(n.offloaded + n.onboarded + n.preemptions, 0);
    set[1] = "kv.reuse=true";
    set[2] = "kv.host_memory=16MiB";
    set[5] = "kv.prefill_rate=100000";
    for (int way = 0; way < 3; way++) {
        uint32_t cached = 0;

        set[0] = way == 2 ? roomier : memory;
        set[3] = way == 1 ? "policy=max_utilization" : "policy=no_evict";
        /* Blocks stay on a slow host tier. A measured speed depends on the device. */
        set[4] = way == 2 ? "kv.host_bandwidth=1KiB" : "kv.host_bandwidth=100GiB";
        n = converse(model, set, encoder, got, NULL);
        for (uint32_t i = 0; i < DIALOGS; i++) {
            for (uint32_t round = 0; round < ROUNDS; round++) {
                assert_int_equal(want[i].n_cached[round], 0);
                cached += got[i].n_cached[round];
            }
            assert_memory_equal(got[i].id, want[i].id, sizeof want[i].id);
            assert_memory_equal(got[i].logprob, want[i].logprob, sizeof want[i].logprob);
        }
        print_message(
            "%s %s: %u cached tokens, %llu blocks offloaded, %llu onboarded, %llu preemptions\n",
            model, set[3], cached, (unsigned long long)n.offloaded, (unsigned long long)n.onboarded,
            (unsigned long long)n.preemptions);
        assert_true(cached > 0 && n.offloaded > 0 && (n.onboarded > 0) == (way < 2));
        assert_true(n.of_groups == n.offloaded + n.onboarded && n.shared > 0);
        assert_true((n.cross > 0) == encoder);
        assert_true(way != 1 || n.preemptions > 0);
        assert_true((n.states > 0) == (states && way < 2));
    }
}

static void
output_of_a_decoder_is_found_again(void **state)
{
    (void)state;
    with_and_without("tests/data/golden/llama2", "kv.memory=384KiB", "kv.memory=384KiB", false,
                     NULL);
}

/* The window is a fraction of a prompt, and its blocks are larger than the others: slabs change
 * their pool in the step that offloads and onboards blocks. */
static void
windows_far_shorter_than_prompts_are_found_again(void **state)
{
    (void)state;
    with_and_without("tests/data/golden/gemma3", "kv.memory=320KiB", "kv.memory=512KiB", false,
                     NULL);
}

/* The first positions of a prompt influence all later tokens. */
static void
windows_that_keep_their_first_positions_are_found_again(void **state)
{
    static struct dialog slid[DIALOGS];

    (void)state;
    memcpy(slid, want, sizeof slid);
    with_and_without("tests/data/golden/gemma3", "kv.memory=384KiB", "kv.memory=576KiB", false,
                     "kv.sink_tokens=5");
    assert_memory_not_equal(want, slid, sizeof slid);
}

static void
encoder_inputs_and_their_outputs_are_found_again(void **state)
{
    (void)state;
    with_and_without("tests/data/golden/t5_relu", "kv.memory=448KiB", "kv.memory=768KiB", true,
                     NULL);
}

/* Attention and recurrent state: the hit of a later round needs the snapshot at its end. */
static void
snapshots_of_recurrent_state_are_found_again(void **state)
{
    (void)state;
    with_and_without("tests/data/golden/nemotron_h", "kv.memory=768KiB", "kv.memory=2MiB", false,
                     NULL);
}

static void
outputs_keep_their_bits_while_the_cache_is_flushed(void **state)
{
    static struct dialog got[DIALOGS];
    static const char *const model[] = { "tests/data/golden/gemma3", "tests/data/golden/t5_relu" };

    (void)state;
    for (int encoder = 0; encoder < 2; encoder++) {
        const char *set[] = { "kv.memory=64MiB",
                              "kv.reuse=false",
                              "kv.host_memory=0",
                              "policy=max_utilization",
                              "kv.tokens_per_block=8",
                              "max_num_seqs=12",
                              "max_num_batched_tokens=48",
                              "max_source_tokens=64",
                              "threads=2",
                              "numerics=invariant",
                              NULL };
        uint64_t flushed[2] = { 0 };

        converse(model[encoder], set, encoder, want, NULL);
        set[0] = "kv.memory=448KiB";
        set[1] = "kv.reuse=true";
        set[2] = "kv.host_memory=16MiB";
        converse(model[encoder], set, encoder, got, flushed);
        for (uint32_t i = 0; i < DIALOGS; i++) {
            assert_memory_equal(got[i].id, want[i].id, sizeof want[i].id);
            assert_memory_equal(got[i].logprob, want[i].logprob, sizeof want[i].logprob);
        }
        print_message("%s: %llu blocks dropped, %llu on the host\n", model[encoder],
                      (unsigned long long)flushed[0], (unsigned long long)flushed[1]);
        assert_true(flushed[0] > 0 && flushed[1] > 0);
    }
}

/* Returns the sum of a counter of the cross groups. */
static uint64_t
cross_counter(const struct serve *s, const char *name)
{
    char output[1 << 16], *save = NULL;
    uint64_t n = 0;

    assert_int_equal(serve_ask(s, "metrics", output, sizeof output), 0);
    for (char *l = strtok_r(output, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
        if (strstr(l, "kind=\"cross\"")) n = metric(l, name, n);
    return n;
}

/* The decoder prefix of these requests is one token, so their outputs share no decoder position. */
static void
searches_and_samples_of_one_source_encode_it_once(void **state)
{
    static const char *const set[] = { "kv.reuse=true", "kv.tokens_per_block=8", "threads=2",
                                       NULL };
    static const char *const how[] = { "--beams 4", "--beams 3 --n 2", "--n 3 --temperature 1",
                                       "--n 2 --temperature 1" };
    struct serve s;

    (void)state;
    assert_true(serve_start(&s, "tests/data/golden/t5_relu", set));
    for (uint32_t i = 0; i < ARRAY_LEN(how); i++) {
        char command[200], output[4096];

        snprintf(command, sizeof command,
                 "generate --ids 5,6,7,8,9,10,11,12,13,14,15,16 --max-tokens 6 %s", how[i]);
        if (serve_ctl(&s, command, output, sizeof output) != 0) fail_msg("%s: %s", command, output);
    }
    assert_int_equal(cross_counter(&s, "lagan_kv_missed"), 2);
    assert_int_equal(cross_counter(&s, "lagan_kv_reused_full"), 6);
    serve_stop(&s);
}

enum { TENANTS = 2 };

/* lagand with an API key for each of two users. */
struct tenants {
    struct serve s;
    char endpoint[64], key[TENANTS][96];
};

static void
open_tenants(struct tenants *t, const char *scope)
{
    char keys[120], command[1200];
    const char *set[] = { "kv.reuse=true",
                          "kv.tokens_per_block=8",
                          "threads=2",
                          scope,
                          "--api.tcp=tcp://127.0.0.1:*",
                          keys,
                          NULL };
    char dir[] = "/tmp/lagan-tenants-XXXXXX", line[512], *at;
    FILE *log;

    assert_non_null(mkdtemp(dir));
    snprintf(keys, sizeof keys, "--api.keys=%s/lagand", dir);
    snprintf(command, sizeof command,
             "cd %s; pub() { %s keygen $1 --json | sed 's/.*\"public\":\"\\([^\"]*\\).*/\\1/'; };"
             "S=$(pub lagand); A=$(pub 0); B=$(pub 1); echo client $A alice >>lagand;"
             "echo client $B bob >>lagand; echo server $S >>0; echo server $S >>1",
             dir, program_path("laganctl"));
    assert_int_equal(system(command), 0);
    for (int i = 0; i < TENANTS; i++) snprintf(t->key[i], sizeof t->key[i], "%s/%d", dir, i);
    assert_true(serve_start(&t->s, "tests/data/golden/llama2", set));
    log = fopen(t->s.log, "r");
    assert_non_null(log);
    t->endpoint[0] = 0;
    while (fgets(line, sizeof line, log))
        if ((at = strstr(line, "tcp://"))) sscanf(at, "%63[^ ,;\n]", t->endpoint);
    fclose(log);
    assert_true(*t->endpoint);
}

static void
close_tenants(struct tenants *t)
{
    char command[160];

    serve_stop(&t->s);
    snprintf(command, sizeof command, "rm -r $(dirname %s)", t->key[0]);
    assert_int_equal(system(command), 0);
}

/* Sends the same prompt of 40 tokens. Returns how many of them came from the cache. */
static uint64_t
cached_for(const struct tenants *t, int user, const char *more)
{
    char command[600], output[4096];

    snprintf(command, sizeof command,
             "%s --connect %s --keys %s generate --json --max-tokens 4 --ids "
             "$(seq -s, 3 42) %s",
             program_path("laganctl"), t->endpoint, t->key[user], more);
    if (serve_shell(command, output, sizeof output) != 0) fail_msg("%s: %s", command, output);
    /* without a hit the whole prompt is computed, so it also takes as long as the first time */
    assert_int_equal(number(output, "\"missed\":"), number(output, "\"cached\":") ? 0 : 5);
    return number(output, "\"cached\":");
}

static void
users_find_only_what_they_sent_themselves(void **state)
{
    struct tenants t;
    char output[1 << 16];
    const char *hits, *queries;

    (void)state;
    open_tenants(&t, "kv.reuse_scope=user");
    assert_int_equal(cached_for(&t, 0, ""), 0);
    assert_int_equal(cached_for(&t, 1, ""), 0); /* its whole prompt is computed: it takes as long */
    assert_int_equal(cached_for(&t, 0, ""), 39);
    assert_int_equal(cached_for(&t, 1, ""), 39);
    assert_int_equal(cached_for(&t, 1, "--cache-salt a"), 0);
    assert_int_equal(cached_for(&t, 1, "--cache-salt a"), 39);
    assert_int_equal(cached_for(&t, 1, "--cache-salt b"), 0);
    assert_int_equal(cached_for(&t, 0, "--cache-salt a"), 0);
    assert_int_equal(serve_ask(&t.s, "metrics", output, sizeof output), 0);
    assert_non_null(hits = strstr(output, "\nlagan_worker_prefix_cache_hits"));
    assert_int_equal(strtoull(strchr(hits, ' '), NULL, 10), 3 * 39);
    assert_non_null(queries = strstr(output, "\nlagan_worker_prefix_cache_queries"));
    assert_int_equal(strtoull(strchr(queries, ' '), NULL, 10), 8 * 40);
    kill(serve_worker(&t.s), SIGKILL); /* the replacement finds the same entries for each user */
    assert_int_equal(serve_ask(&t.s, "kv stats", output, sizeof output), 0);
    assert_int_equal(cached_for(&t, 1, "--cache-salt b"), 39);
    assert_int_equal(cached_for(&t, 0, "--cache-salt b"), 0);
    close_tenants(&t);
}

static void
users_share_cached_prompts_if_the_scope_is_all(void **state)
{
    struct tenants t;

    (void)state;
    open_tenants(&t, "kv.reuse_scope=all");
    assert_int_equal(cached_for(&t, 0, ""), 0);
    assert_int_equal(cached_for(&t, 1, ""), 39);
    assert_int_equal(cached_for(&t, 1, "--cache-salt a"), 0);
    assert_int_equal(cached_for(&t, 0, "--cache-salt a"), 39);
    close_tenants(&t);
}

/* The worker drains after the last request: no later step removes the entries of its sequences. */
static void
finished_requests_hold_no_blocks_after_a_restart(void **state)
{
    static const char *const set[] = { "threads=2", NULL };
    struct lagan_event ev = { .size = sizeof ev };
    char output[4096];
    uint64_t id;
    struct lagan *c;
    struct serve s;

    (void)state;
    assert_true(serve_start(&s, "tests/data/golden/llama2", set));
    assert_int_equal(lagan_open(&c, s.endpoint, 5000), 0);
    for (int round = 0, refused; round < 3; round++) {
        struct lagan_request *r = serve_request("{\"ids\":[5,6,7,8,9,10,11,12,13,14,15,16,17,18],"
                                                "\"max_tokens\":90,\"ignore_eos\":true}",
                                                &refused);
        pid_t worker = serve_worker(&s);
        bool restarted = false;

        assert_int_equal(refused, 0);
        assert_int_equal(lagan_submit(c, r, &id), 0);
        lagan_request_free(r);
        for (ev.kind = 0; ev.kind != LAGAN_EVENT_DONE;) {
            assert_true(lagan_next(c, &ev, 30000) > 0);
            if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s", ev.message);
            if (ev.kind != LAGAN_EVENT_TOKENS || restarted) continue;
            restarted = true;
            assert_int_equal(serve_ctl(&s, "restart w0", output, sizeof output), 0);
        }
        while (serve_worker(&s) == worker) usleep(20000);
        assert_true(serve_wait_ready(&s, 20));
        assert_int_equal(serve_ask(&s, "kv stats --json", output, sizeof output), 0);
        assert_int_equal(number(output, "\"used\":"), 0);
    }
    lagan_close(c);
    serve_stop(&s);
}

/* Sends a prompt of n tokens from `first` on. Returns the JSON line of its output. */
static const char *
generate(const struct serve *s, uint32_t first, uint32_t n, const char *more)
{
    static char output[4096];
    char command[600];

    snprintf(
        command, sizeof command,
        "%s --connect %s generate --json --max-tokens 4 --ignore-eos --ids $(seq -s, %u %u) %s",
        program_path("laganctl"), s->endpoint, first, first + n - 1, more);
    if (serve_shell(command, output, sizeof output) != 0) fail_msg("%s: %s", command, output);
    return output;
}

static void
done_counts_the_blocks_that_a_request_found_and_missed(void **state)
{
    (void)state;
    for (int partial = 0; partial < 2; partial++) {
        const char *set[] = { "kv.reuse=true", "kv.tokens_per_block=8", "threads=2",
                              partial ? "kv.partial_reuse=true" : "kv.partial_reuse=false", NULL };
        const char *line;
        struct serve s;

        assert_true(serve_start(&s, "tests/data/golden/llama2", set));
        line = generate(&s, 3, 40, "");
        assert_int_equal(number(line, "\"allocated\":"), 6); /* of 43 positions */
        assert_int_equal(number(line, "\"allocated_new\":"), 6);
        assert_int_equal(number(line, "\"reused\":"), 0);
        assert_int_equal(number(line, "\"missed\":"), 5);
        line = generate(&s, 3, 40, "");
        assert_int_equal(number(line, "\"cached\":"), partial ? 39 : 32);
        assert_int_equal(number(line, "\"reused\":"), partial ? 5 : 4);
        assert_int_equal(number(line, "\"missed\":"), partial ? 0 : 1);
        serve_stop(&s);
    }
}

static void
cache_priority_decides_which_prompt_stays(void **state)
{
    static const char *const set[] = {
        "kv.reuse=true",    "kv.tokens_per_block=8", "threads=2", "kv.memory=320KiB",
        "max_model_len=64", "max_num_seqs=2",        NULL
    };
    struct serve s;

    (void)state;
    assert_true(serve_start(&s, "tests/data/golden/llama2", set));
    for (uint32_t high = 0; high < 2; high++) {
        const char *key = high ? "--cache-salt high --cache-priority 90" : "--cache-salt low";

        generate(&s, 3, 40, key);
        for (uint32_t i = 0; i < 12; i++) generate(&s, 4 + i, 40, "");
        assert_int_equal(number(generate(&s, 3, 40, key), "\"cached\":"), high ? 39 : 0);
    }
    serve_stop(&s);
}

static void
pinned_prompt_stays_in_the_cache_until_it_is_unpinned(void **state)
{
    static const char *const set[] = {
        "kv.reuse=true",    "kv.tokens_per_block=8", "threads=2", "kv.memory=320KiB",
        "max_model_len=64", "max_num_seqs=2",        NULL
    };
    char output[4096], pin[200];
    struct serve s;

    (void)state;
    assert_true(serve_start(&s, "tests/data/golden/llama2", set));
    snprintf(pin, sizeof pin, "kv pin --ids $(seq -s, 3 42) --user uid:%u", getuid());
    assert_int_not_equal(serve_ctl(&s, pin, output, sizeof output), 0);
    assert_non_null(strstr(output, "is cached"));
    generate(&s, 3, 40, "");
    assert_int_not_equal(serve_ctl(&s, "kv pin --ids 3,4,5", output, sizeof output), 0);
    assert_non_null(strstr(output, "user is missing"));
    if (serve_ctl(&s, pin, output, sizeof output) != 0) fail_msg("%s", output);
    assert_string_equal(output, "pin 1  keeps 40 tokens in the prefix cache\n");
    for (uint32_t i = 0; i < 12; i++) generate(&s, 4 + i, 40, "");
    assert_int_equal(number(generate(&s, 3, 40, ""), "\"cached\":"), 39);
    assert_int_equal(serve_ask(&s, "kv flush", output, sizeof output), 0);
    assert_int_equal(serve_ask(&s, "kv stats --json", output, sizeof output), 0);
    assert_int_equal(number(output, "\"pinned\":"), 5);
    assert_int_equal(number(output, "\"used\":"), 5);
    assert_int_not_equal(serve_ctl(&s, "kv unpin 2", output, sizeof output), 0);
    assert_non_null(strstr(output, "pin 2 does not exist"));
    assert_int_equal(serve_ctl(&s, "kv unpin 1", output, sizeof output), 0);
    for (uint32_t i = 0; i < 12; i++) generate(&s, 4 + i, 40, "");
    assert_int_equal(number(generate(&s, 3, 40, ""), "\"cached\":"), 0);
    serve_stop(&s);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_of_a_decoder_is_found_again),
        cmocka_unit_test(windows_far_shorter_than_prompts_are_found_again),
        cmocka_unit_test(windows_that_keep_their_first_positions_are_found_again),
        cmocka_unit_test(encoder_inputs_and_their_outputs_are_found_again),
        cmocka_unit_test(snapshots_of_recurrent_state_are_found_again),
        cmocka_unit_test(outputs_keep_their_bits_while_the_cache_is_flushed),
        cmocka_unit_test(searches_and_samples_of_one_source_encode_it_once),
        cmocka_unit_test(users_find_only_what_they_sent_themselves),
        cmocka_unit_test(users_share_cached_prompts_if_the_scope_is_all),
        cmocka_unit_test(finished_requests_hold_no_blocks_after_a_restart),
        cmocka_unit_test(done_counts_the_blocks_that_a_request_found_and_missed),
        cmocka_unit_test(cache_priority_decides_which_prompt_stays),
        cmocka_unit_test(pinned_prompt_stays_in_the_cache_until_it_is_unpinned),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
