/* test_vocab_cache.c - what was computed is found again, on the device or on the host, and nobody can tell from an answer.
 *
 * Conversations of several turns, each turn asked with all that was said before: once with room for everything and no
 * cache; then with a cache so small that turns push each other out to the host, and that streams are paused: a first
 * prompt is a third of what it grows to, so that where several find room for theirs, there is none for their
 * answers. Some begin alike, so that they share blocks. Ids and the bits of log-probabilities must be the same; how
 * many tokens were found is told. Nor does it tell when the cache is emptied meanwhile.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TALKS = 12, TURNS = 3, ASKED = 12, NEW = 36, SOURCE = 30, MOST = 256, FLUSH_EVERY = 40 };

struct talk {
    int32_t said[MOST];
    uint32_t n_said;
    uint64_t request;
    int32_t id[TURNS][NEW];
    float logprob[TURNS][NEW];
    uint32_t n, n_cached[TURNS];
};
/* What the worker counts. */
struct counts {
    uint64_t offloaded, fetched, pauses;
    uint64_t of_groups, shared,
        cross; /* of each group: blocks moved to the host and back; found whole; of sources */
};

static void
say(struct talk *t, uint32_t talk, uint32_t turn, bool encoder)
{
    uint32_t n = turn == 0 && encoder ? 3 : turn == 0 ? 2 * ASKED : ASKED;

    /* Half of them begin alike. */
    for (uint32_t k = 0; k < n; k++, t->n_said++)
        t->said[t->n_said] = (int32_t)(3 + (turn == 0 && talk % 2 && k < ASKED
                                                ? 11 * k
                                                : (talk * 31 + turn * 17 + k * 7)) %
                                               90);
    if (encoder) t->said[0] = 0;
}

static void
submit(struct lagan *c, struct talk *t, uint32_t talk, uint32_t turn, bool encoder)
{
    struct lagan_request *r = lagan_request_new();
    int32_t source[SOURCE];

    for (uint32_t k = 0; k < SOURCE; k++) source[k] = (int32_t)(3 + (talk * 5 + k * 13) % 90);
    if (encoder) lagan_set_ids(r, "ids", source, SOURCE);
    lagan_set_ids(r, encoder ? "decoder_ids" : "ids", t->said, t->n_said);
    lagan_set_int(r, "max_tokens", NEW);
    lagan_set_bool(r, "ignore_eos", true);
    lagan_set_int(r, "logprobs", 1);
    if (talk % 3 == 1) lagan_set_float(r, "temperature", 0.8);
    if (talk % 3 == 1) lagan_set_int(r, "seed", talk * 10 + turn);
    assert_int_equal(lagan_submit(c, r, &t->request), 0);
    lagan_request_free(r);
    t->n = 0;
}

static bool
take(struct talk *t, uint32_t turn, const struct lagan_event *ev)
{
    if (ev->kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev->reason_name, ev->message);
    if (ev->kind == LAGAN_EVENT_TOKENS) {
        assert_true(t->n + ev->n_ids <= NEW && ev->first == t->n);
        memcpy(t->id[turn] + t->n, ev->ids, ev->n_ids * sizeof *ev->ids);
        memcpy(t->logprob[turn] + t->n, ev->logprob, ev->n_ids * sizeof *ev->logprob);
        t->n += ev->n_ids;
    }
    if (ev->kind == LAGAN_EVENT_OUTPUT) t->n_cached[turn] = ev->cached;
    if (ev->kind != LAGAN_EVENT_DONE) return false;
    assert_int_equal(t->n, NEW);
    memcpy(t->said + t->n_said, t->id[turn], sizeof t->id[turn]);
    t->n_said += NEW;
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
        n.fetched = metric(line, "lagan_worker_blocks_onboarded", n.fetched);
        n.of_groups = metric(line, "lagan_kv_offloaded", n.of_groups);
        n.of_groups = metric(line, "lagan_kv_onboarded", n.of_groups);
        n.shared = metric(line, "lagan_kv_reused_full", n.shared);
        if (strstr(line, "kind=\"cross\"")) n.cross = metric(line, "lagan_kv_reused_full", n.cross);
        n.pauses = metric(line, "preemptions", n.pauses);
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

/* Blocks that were dropped are added. */
static void
flush(const struct serve *s, uint64_t *device, uint64_t *host)
{
    char said[400];

    if (serve_ask(s, "kv flush --json", said, sizeof said) != 0) fail_msg("kv flush: %s", said);
    *device += number(said, "\"blocks\":");
    *host += number(said, "\"host_blocks\":");
}

/* flushed: the cache is emptied all the while, and so many blocks went, of the device and of the host; NULL: never. */
static struct counts
converse(const char *model, const char *const *set, bool encoder, struct talk *t,
         uint64_t flushed[2])
{
    uint32_t n_events = 0;
    struct counts n;
    struct serve s;
    struct lagan *c;

    assert_true(serve_start(&s, model, set));
    assert_int_equal(lagan_open(&c, s.endpoint, 5000), 0);
    memset(t, 0, TALKS * sizeof *t);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        for (uint32_t i = 0; i < TALKS; i++) {
            say(&t[i], i, turn, encoder);
            submit(c, &t[i], i, turn, encoder);
        }
        for (uint32_t over = 0; over < TALKS;) {
            struct lagan_event ev = { .size = sizeof ev };
            uint32_t i = 0;

            if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
            while (i < TALKS && t[i].request != ev.id) i++;
            assert_true(i < TALKS);
            over += take(&t[i], turn, &ev);
            if (flushed && n_events++ % FLUSH_EVERY == 0) flush(&s, &flushed[0], &flushed[1]);
        }
    }
    n = count(&s);
    lagan_close(c);
    serve_stop(&s);
    return n;
}

static struct talk want[TALKS]; /* of the last with_and_without() */

/* roomier: so much that something is found although nothing comes back from the host. */
static void
with_and_without(const char *model, const char *memory, const char *roomier, bool encoder,
                 const char *sinks)
{
    static struct talk got[TALKS];
    const char *set[] = { "kv.memory=64MiB",
                          "kv.reuse=false",
                          "kv.host_memory=0",
                          "policy=no_evict",
                          "kv.host_bandwidth=0",
                          "kv.prefill_rate=100000",
                          "kv.tokens_per_block=8",
                          "max_num_seqs=12",
                          "max_num_batched_tokens=48",
                          "max_source_tokens=64",
                          "threads=2",
                          "numerics=invariant",
                          sinks,
                          NULL };
    struct counts n = converse(model, set, encoder, want, NULL);

    assert_int_equal(n.offloaded + n.fetched + n.pauses, 0);
    set[1] = "kv.reuse=true";
    set[2] = "kv.host_memory=16MiB";
    for (int way = 0; way < 3; way++) {
        uint32_t cached = 0;

        set[0] = way == 2 ? roomier : memory;
        set[3] = way == 1 ? "policy=max_utilization" : "policy=no_evict";
        set[4] = way == 2 ? "kv.host_bandwidth=1KiB"
                          : "kv.host_bandwidth=0"; /* what is slow stays there */
        n = converse(model, set, encoder, got, NULL);
        for (uint32_t i = 0; i < TALKS; i++) {
            for (uint32_t turn = 0; turn < TURNS; turn++) {
                assert_int_equal(want[i].n_cached[turn], 0);
                cached += got[i].n_cached[turn];
            }
            assert_memory_equal(got[i].id, want[i].id, sizeof want[i].id);
            assert_memory_equal(got[i].logprob, want[i].logprob, sizeof want[i].logprob);
        }
        print_message("%s %s: %u tokens found, %llu blocks to the host, %llu back, %llu pauses\n",
                      model, set[3], cached, (unsigned long long)n.offloaded,
                      (unsigned long long)n.fetched, (unsigned long long)n.pauses);
        assert_true(cached > 0 && n.offloaded > 0 && (n.fetched > 0) == (way < 2));
        assert_true(n.of_groups == n.offloaded + n.fetched && n.shared > 0);
        assert_true((n.cross > 0) == encoder);
        assert_true(way != 1 || n.pauses > 0);
    }
}

static void
what_a_decoder_has_said_is_found_again(void **state)
{
    (void)state;
    with_and_without("tests/data/golden/llama2", "kv.memory=384KiB", "kv.memory=384KiB", false,
                     NULL);
}

/* The window is a fraction of a prompt, and its blocks are larger than the others: slabs change their pool in the
 * very step that saves blocks and fetches others. */
static void
windows_far_shorter_than_prompts_are_found_again(void **state)
{
    (void)state;
    with_and_without("tests/data/golden/gemma3", "kv.memory=320KiB", "kv.memory=512KiB", false,
                     NULL);
}

/* What is kept of a prompt tells on all that comes later. */
static void
windows_that_keep_their_first_positions_are_found_again(void **state)
{
    static struct talk slid[TALKS];

    (void)state;
    memcpy(slid, want, sizeof slid);
    with_and_without("tests/data/golden/gemma3", "kv.memory=384KiB", "kv.memory=576KiB", false,
                     "kv.sink_tokens=5");
    assert_memory_not_equal(want, slid, sizeof slid);
}

static void
sources_and_what_was_said_of_them_are_found_again(void **state)
{
    (void)state;
    with_and_without("tests/data/golden/t5_relu", "kv.memory=448KiB", "kv.memory=768KiB", true,
                     NULL);
}

static void
streams_keep_their_bits_while_the_cache_is_flushed(void **state)
{
    static struct talk got[TALKS];
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
        for (uint32_t i = 0; i < TALKS; i++) {
            assert_memory_equal(got[i].id, want[i].id, sizeof want[i].id);
            assert_memory_equal(got[i].logprob, want[i].logprob, sizeof want[i].logprob);
        }
        print_message("%s: %llu blocks dropped, %llu on the host\n", model[encoder],
                      (unsigned long long)flushed[0], (unsigned long long)flushed[1]);
        assert_true(flushed[0] > 0 && flushed[1] > 0);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_decoder_has_said_is_found_again),
        cmocka_unit_test(windows_far_shorter_than_prompts_are_found_again),
        cmocka_unit_test(windows_that_keep_their_first_positions_are_found_again),
        cmocka_unit_test(sources_and_what_was_said_of_them_are_found_again),
        cmocka_unit_test(streams_keep_their_bits_while_the_cache_is_flushed),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
