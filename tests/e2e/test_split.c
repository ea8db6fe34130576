/* test_split.c - a device divided between prefill and decode: changes alter no output, no request
 * hangs.
 *
 * A real lagand with a worker of three threads, or of a GPU. The expected outputs come from a
 * worker with one lane. On a GPU numerics is invariant, so all bits must be equal. Every wait
 * has a limit that no machine is too slow for: only a hang reaches it.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { REQUESTS = 24, NEW = 32, TIMEOUT = 60000 };

struct result {
    uint64_t request;
    int32_t id[NEW];
    float logprob[NEW];
    uint32_t n;
    bool over;
};

static struct result want[REQUESTS];

static uint64_t
submit(struct lagan *c, uint32_t i, bool source)
{
    struct lagan_request *r = lagan_request_new();
    int32_t ids[96];
    uint32_t n = source ? 4 + i : 5 + 37 * i % 90;
    uint64_t id = 0;

    for (uint32_t k = 0; k < n; k++) ids[k] = (int32_t)(3 + (i * 31 + k * 7) % 90);
    lagan_set_ids(r, "ids", ids, n);
    lagan_set_int(r, "max_tokens", NEW);
    lagan_set_bool(r, "ignore_eos", true);
    lagan_set_int(r, "logprobs", 1);
    if (i % 2) lagan_set_float(r, "temperature", 0.9);
    if (i % 2) lagan_set_int(r, "seed", 100 + i);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    return id;
}

/* One event, of one of them. */
static void
take(struct lagan *c, struct result *a)
{
    struct lagan_event ev = { .size = sizeof ev };
    uint32_t i = 0;

    if (lagan_next(c, &ev, TIMEOUT) <= 0) fail_msg("no event: %s", lagan_errmsg(c));
    while (i < REQUESTS && a[i].request != ev.id) i++;
    assert_true(i < REQUESTS);
    if (ev.kind == LAGAN_EVENT_ERROR && strcmp(ev.reason_name, "cancelled"))
        fail_msg("%s: %s", ev.reason_name, ev.message);
    if (ev.kind == LAGAN_EVENT_TOKENS) {
        assert_int_equal(ev.first, a[i].n);
        assert_true(a[i].n + ev.n_ids <= NEW);
        memcpy(a[i].id + a[i].n, ev.ids, ev.n_ids * sizeof *ev.ids);
        memcpy(a[i].logprob + a[i].n, ev.logprob, ev.n_ids * sizeof *ev.logprob);
        a[i].n += ev.n_ids;
    }
    a[i].over = ev.kind == LAGAN_EVENT_DONE || ev.kind == LAGAN_EVENT_ERROR;
}

static bool
all_over(const struct result *a)
{
    for (uint32_t i = 0; i < REQUESTS; i++)
        if (!a[i].over) return false;
    return true;
}

static void
same(const struct result *a)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(a[i].n, NEW);
        assert_memory_equal(a[i].id, want[i].id, sizeof a[i].id);
        assert_memory_equal(a[i].logprob, want[i].logprob, sizeof a[i].logprob);
    }
}

static void
start(struct serve *s, struct lagan **c, const char *model, const char *mode, const char *more)
{
    const char *set[] = { mode,
                          more,
                          "threads=3",
                          "kv.tokens_per_block=8",
                          "max_num_seqs=12",
                          "max_num_batched_tokens=40",
                          "max_source_tokens=64",
                          "kv.memory=64MiB",
                          serve_on_gpu() ? "numerics=invariant" : NULL,
                          NULL };

    if (!serve_start(s, model, set)) fail_msg("no server with %s", mode);
    assert_int_equal(lagan_open(c, s->endpoint, 20000), 0);
}

static void
stop(struct serve *s, struct lagan *c)
{
    lagan_close(c);
    serve_stop(s);
}

/* The worker exits by itself whatever its lanes wait for. */
static void
leave(struct serve *s, struct lagan *c)
{
    char out[2048] = "";

    lagan_close(c);
    for (int k = 0; k < TIMEOUT / 100 && serve_ctl(s, "drain w0", out, sizeof out); k++)
        usleep(100000); /* a replacement may be starting */
    for (int k = 0; k < TIMEOUT / 100 && !strstr(out, "w0: "); k++) {
        usleep(100000);
        assert_int_equal(serve_ctl(s, "workers list", out, sizeof out), 0);
    }
    if (!strstr(out, "w0: drained")) fail_msg("it did not leave: %s", out);
    serve_stop(s);
}

static void
undisturbed(const char *model, bool source)
{
    struct serve s;
    struct lagan *c;

    memset(want, 0, sizeof want);
    start(&s, &c, model, "split.mode=off", "split.encoder=shared");
    for (uint32_t i = 0; i < REQUESTS; i++) {
        want[i].request = submit(c, i, source);
        while (!want[i].over) take(c, want);
    }
    stop(&s, c);
}

/* laganctl split; its exit code, what it output in out. */
static int
ctl(const struct serve *s, const char *words, char *out, size_t n)
{
    char line[80];

    snprintf(line, sizeof line, "split %s", words);
    return serve_ask(s, line, out, n);
}

static long long
shown(const struct serve *s, const char *key)
{
    char out[2048];
    json_t *o;
    long long n;

    if (ctl(s, "show --json", out, sizeof out) != 0) fail_msg("%s", out);
    o = json_loads(out, 0, NULL);
    assert_non_null(o);
    n = json_integer_value(json_object_get(o, key));
    json_decref(o);
    return n;
}

/* Units of the device and the prefill units of a partition; 0: the partition does not exist. */
static uint32_t units, grain, least;

static uint32_t
partition_of(const struct serve *s, size_t partition)
{
    char out[2048];
    const json_t *list;
    uint32_t context = 0;
    json_t *o;

    if (ctl(s, "show --json", out, sizeof out) != 0) fail_msg("%s", out);
    o = json_loads(out, 0, NULL);
    assert_non_null(o);
    list = json_object_get(o, "partitions");
    if (partition < json_array_size(list))
        context = (uint32_t)json_integer_value(json_array_get(json_array_get(list, partition), 0));
    units = (uint32_t)json_integer_value(json_object_get(o, "units"));
    grain = (uint32_t)json_integer_value(json_object_get(o, "granularity"));
    least = (uint32_t)json_integer_value(json_object_get(o, "min_units"));
    json_decref(o);
    return context;
}

/* Sends the operator command of that number: existing partitions, a new one, no split, auto. */
static void
change_partition(const struct serve *s, uint32_t number)
{
    char out[2048], word[64];
    uint32_t context = partition_of(s, number % 7);

    if (number % 7 == 4)
        context = least + grain * (number % MIN((units - 2 * least) / grain + 1, 9u));
    snprintf(word, sizeof word, "set %u %u", context, units - context);
    if (context == 0) strcpy(word, number % 7 == 5 ? "off" : "auto");
    if (ctl(s, word, out, sizeof out)) fail_msg("%s: %s", word, out);
}

static void
no_change_of_the_partition_changes_an_output(void **state)
{
    static const struct {
        const char *model, *mode, *more;
        bool source;
    } ways[] = {
        { "tests/data/golden/llama3", "split.mode=auto", "split.itl_target=1ms", false },
        { "tests/data/golden/t5_gated", "split.mode=fixed", "split.encoder=own", true },
    };
    char out[2048], word[64];

    (void)state;
    for (size_t w = 0; w < ARRAY_LEN(ways); w++) {
        struct result a[REQUESTS] = { 0 };
        struct serve s;
        struct lagan *c;
        uint32_t asked = 0;

        undisturbed(ways[w].model, ways[w].source);
        start(&s, &c, ways[w].model, ways[w].mode, ways[w].more);
        assert_true(partition_of(&s, 0) > 0);
        if (!serve_on_gpu()) assert_int_equal(units, 3);
        for (uint32_t round = 0; asked < 14; round++) {
            memset(a, 0, sizeof a);
            for (uint32_t i = 0; i < REQUESTS; i++) a[i].request = submit(c, i, ways[w].source);
            for (uint32_t k = 0; !all_over(a); k++) {
                take(c, a);
                if (k % 60 != 20) continue;
                change_partition(&s, asked++);
            }
            same(a);
        }
        for (size_t i = 0; i < 2; i++) {
            uint32_t context = serve_on_gpu() ? partition_of(&s, i) : (uint32_t)i + 1;

            snprintf(word, sizeof word, "set %u %u", context, units - context);
            assert_int_equal(ctl(&s, word, out, sizeof out), 0);
            for (int k = 0; k < 300 && shown(&s, "prefill_units") != context; k++) usleep(100000);
            assert_int_equal(shown(&s, "prefill_units"), context);
            assert_int_equal(shown(&s, "decode_units"), units - context);
        }
        assert_true(shown(&s, "changes") > 0);
        stop(&s, c);
    }
}

static void
what_the_device_has_not_is_refused_with_what_it_has(void **state)
{
    char out[2048], word[64];
    uint32_t low;
    struct serve s;
    struct lagan *c;

    (void)state;
    start(&s, &c, "tests/data/golden/llama3", "split.mode=fixed", "split.context_sm=0.75");
    low = partition_of(&s, 0);
    assert_true(low > 0 && (units == 3 || shown(&s, "prefill_units") > low));
    if (!serve_on_gpu()) assert_int_equal(shown(&s, "prefill_units"), 2);
    snprintf(word, sizeof word, "set %u %u", low, low);
    assert_int_not_equal(ctl(&s, serve_on_gpu() ? word : "set 2 2", out, sizeof out), 0);
    assert_non_null(
        strstr(out, serve_on_gpu() ? "nearest division is" : "nearest division is 2 and 1"));
    assert_int_equal(ctl(&s, "set 0 3", out, sizeof out), 2);
    assert_int_equal(ctl(&s, "set 3", out, sizeof out), 2);
    snprintf(word, sizeof word, "set %u %u w7", low, units - low);
    assert_int_equal(ctl(&s, word, out, sizeof out), 4);
    word[strlen(word) - 1] = '0';
    assert_int_equal(ctl(&s, word, out, sizeof out), 0);
    stop(&s, c);
    start(&s, &c, "tests/data/golden/llama3", "split.mode=fixed", "split.context_sm=1.0");
    assert_int_equal(ctl(&s, "auto", out, sizeof out), 5);
    assert_non_null(strstr(out, "split.mode: off"));
    assert_int_equal(ctl(&s, "show", out, sizeof out), 0);
    assert_non_null(strstr(out, "one lane for prefill and decode"));
    stop(&s, c);
}

/* Start-up without work, prefill or decode alone, both, many cancels, idle again: each wait of a
 * lane ends with its condition or with the end of the worker. */
static void
empty_phases_cancels_and_an_end_at_any_time_leave_no_lane_waiting(void **state)
{
    (void)state;
    /* A GPU's worker takes seconds to begin: the rounds that differ most. */
    for (uint32_t round = serve_on_gpu() ? 1 : 0; round < 6; round += serve_on_gpu() ? 3 : 1) {
        struct result a[REQUESTS] = { 0 };
        struct serve s;
        struct lagan *c;

        start(&s, &c, "tests/data/golden/llama3",
              round % 2 ? "split.mode=auto" : "split.mode=fixed", "split.itl_target=1ms");
        for (uint32_t i = 0; round != 1 && i < REQUESTS; i++) {
            a[i].request = submit(c, i, false);
            if (i % 8 == 0) take(c, a); /* some of them generate by now */
            if (round >= 2 && i % 3 == 2) lagan_cancel(c, a[i - test_below(3)].request);
        }
        if (round == 2 || round == 3)
            while (!all_over(a)) take(c, a);
        if (round == 4) /* cancels after all submits */
            for (uint32_t i = 0; i < REQUESTS; i++) lagan_cancel(c, a[i].request);
        if (round % 3)
            leave(&s, c); /* also without a single step */
        else
            stop(&s, c); /* with requests in flight: exit code 0 */
    }
}

static void
a_worker_killed_between_its_lanes_gives_the_same_outputs(void **state)
{
    struct result a[REQUESTS] = { 0 };
    struct serve s;
    struct lagan *c;

    (void)state;
    undisturbed("tests/data/golden/llama3", false);
    start(&s, &c, "tests/data/golden/llama3", "split.mode=fixed", "split.context_sm=2");
    for (uint32_t i = 0; i < REQUESTS; i++) a[i].request = submit(c, i, false);
    for (uint32_t k = 0; !all_over(a); k++) {
        take(c, a);
        if (k == 30 || k == 200) kill(serve_worker(&s), SIGKILL);
    }
    same(a);
    stop(&s, c);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_change_of_the_partition_changes_an_output),
        cmocka_unit_test(what_the_device_has_not_is_refused_with_what_it_has),
        cmocka_unit_test(empty_phases_cancels_and_an_end_at_any_time_leave_no_lane_waiting),
        cmocka_unit_test(a_worker_killed_between_its_lanes_gives_the_same_outputs),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
