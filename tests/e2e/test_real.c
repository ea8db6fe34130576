/* test_real.c - published shapes on a GPU: random weights, long prompts, many at once, each run
 * twice.
 *
 * Numerics is invariant: differences of the second run (chunks, window blocks freed early or
 * late, other requests, captured steps) change no bit of a log-probability. Gemma-3-27B needs a
 * GPU of 80 GiB.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include "base/rng.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

enum { MOST = 64, TOP = 8, MOST_NEW = 32 };

/* The requests: n prompts of at most that length, ids drawn from seed and index. */
struct shape {
    const char *model; /* below bench/configs */
    uint32_t vocab, n, length, n_new;
    bool mixed; /* of any length */
};

/* alone: every prompt waits for the one before; plain: without captured steps. */
struct way {
    const char *rows;
    bool alone, plain;
};

struct result {
    uint64_t id;
    uint32_t n;
    int32_t ids[MOST_NEW];
    struct lagan_top_logprob top[MOST_NEW][TOP];
};

static void
ask(struct lagan *c, const struct shape *s, uint32_t which, struct result *a)
{
    struct lagan_request *r = lagan_request_new();
    int32_t *ids = malloc(s->length * sizeof *ids);
    uint32_t length = s->mixed ? 1 + which * 37 % s->length : s->length;
    uint64_t seed = 1 + which;

    assert_non_null(ids);
    for (uint32_t i = 0; i < length; i++) {
        ids[i] = (int32_t)(10 + rng_below(&seed, s->vocab - 20));
    }
    memset(a, 0, sizeof *a);
    assert_int_equal(lagan_set_ids(r, "ids", ids, length), 0);
    assert_int_equal(lagan_set_int(r, "max_tokens", s->n_new), 0);
    assert_int_equal(lagan_set_bool(r, "ignore_eos", 1), 0);
    assert_int_equal(lagan_set_int(r, "logprobs", TOP), 0);
    assert_int_equal(lagan_submit(c, r, &a->id), 0);
    lagan_request_free(r);
    free(ids);
}

static void
collect(struct lagan *c, const struct shape *s, struct result *a, uint32_t n)
{
    for (uint32_t over = 0; over < n;) {
        struct lagan_event ev = { .size = sizeof ev };
        uint32_t i = 0;
        int r = lagan_next(c, &ev, 120000);

        if (r <= 0) fail_msg("nothing for two minutes: %s", lagan_errmsg(c));
        while (i < n && a[i].id != ev.id) i++;
        assert_true(i < n);
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev.reason_name, ev.message);
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            assert_int_equal(ev.n_top, TOP);
            assert_true(a[i].n + ev.n_ids <= s->n_new);
            for (uint32_t k = 0; k < ev.n_ids * TOP; k++)
                assert_true(isfinite(ev.top[k].logprob) && ev.top[k].logprob <= 0);
            memcpy(a[i].ids + a[i].n, ev.ids, ev.n_ids * sizeof *ev.ids);
            memcpy(a[i].top + a[i].n, ev.top, ev.n_ids * sizeof a[i].top[0]);
            a[i].n += ev.n_ids;
        }
        if (ev.kind != LAGAN_EVENT_DONE) continue;
        assert_int_equal(a[i].n, s->n_new);
        over++;
    }
}

/* Pieces of steps that the worker has captured. */
static json_int_t
captured(struct lagan *c)
{
    char *reply = NULL;
    json_t *list;
    json_int_t n;

    assert_int_equal(lagan_call(c, "workers list", NULL, &reply, NULL, 5000), 0);
    list = json_loads(reply, 0, NULL);
    n = json_integer_value(
        json_object_get(json_object_get(json_array_get(list, 0), "stats"), "graphs"));
    json_decref(list);
    free(reply);
    return n;
}

static void
run(const struct shape *s, struct way w, struct result a[MOST])
{
    const char *set[] = { "weights=random:7",
                          "dtype=bf16",
                          "numerics=invariant",
                          w.rows,
                          w.plain ? "graphs.memory=0" : NULL,
                          NULL };
    struct serve server;
    struct lagan *c;
    char dir[128];

    snprintf(dir, sizeof dir, "bench/configs/%s", s->model);
    if (!serve_start(&server, dir, set)) fail_msg("no server of %s", s->model);
    assert_int_equal(lagan_open(&c, server.endpoint, 5000), 0);
    for (uint32_t i = 0; i < s->n; i++) {
        ask(c, s, i, &a[i]);
        if (w.alone) collect(c, s, &a[i], 1);
    }
    if (!w.alone) collect(c, s, a, s->n);
    assert_int_equal(captured(c) == 0, w.plain);
    lagan_close(c);
    serve_stop(&server);
}

static void
twice(const struct shape *s, struct way one, struct way other)
{
    static struct result first[MOST], second[MOST];

    assert_true(s->n <= MOST && s->n_new <= MOST_NEW);
    run(s, one, first);
    run(s, other, second);
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->n_new; k++) {
            const struct lagan_top_logprob *a = first[i].top[k], *b = second[i].top[k];

            if (memcmp(a, b, sizeof first[i].top[k]) == 0) continue;
            fail_msg(
                "%s: prompt %u, token %u: %d with %.9g, then %d with %.9g; second %d with %.9g, "
                "then %d with %.9g",
                s->model, i, k, a[0].id, (double)a[0].logprob, b[0].id, (double)b[0].logprob,
                a[1].id, (double)a[1].logprob, b[1].id, (double)b[1].logprob);
        }
}

static void
llama_3_1_8b_alone_and_whole_or_among_others_in_chunks(void **state)
{
    const struct shape s = { "llama-3.1-8b", 128256, 16, 3001, 24 };

    (void)state;
    twice(&s, (struct way){ .rows = "max_num_batched_tokens=8192", .alone = true },
          (struct way){ .rows = "max_num_batched_tokens=1000" });
}

static void
t5_large_alone_or_among_others(void **state)
{
    const struct shape s = { "t5-large", 32128, 48, 500, 24 };

    (void)state;
    twice(&s, (struct way){ .rows = "max_num_batched_tokens=8192", .alone = true },
          (struct way){ .rows = "max_num_batched_tokens=100" });
}

static void
t5_large_of_mixed_lengths_captured_or_plain(void **state)
{
    const struct shape s = { "t5-large", 32128, 48, 512, 32, .mixed = true };

    (void)state;
    twice(&s, (struct way){ .rows = "max_num_batched_tokens=512" },
          (struct way){ .rows = "max_num_batched_tokens=512", .plain = true });
}

static void
gemma_3_27b_at_32k_with_window_blocks_kept_or_dropped(void **state)
{
    const struct shape s = { "gemma-3-27b", 262208, 1, 32768, 16 };

    (void)state;
    twice(&s, (struct way){ .rows = "max_num_batched_tokens=32768", .alone = true },
          (struct way){ .rows = "max_num_batched_tokens=2048" });
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_3_1_8b_alone_and_whole_or_among_others_in_chunks),
        cmocka_unit_test(t5_large_alone_or_among_others),
        cmocka_unit_test(t5_large_of_mixed_lengths_captured_or_plain),
        cmocka_unit_test(gemma_3_27b_at_32k_with_window_blocks_kept_or_dropped),
    };

    serve_args(argc, argv);
    if (!serve_on_gpu()) return 77; /* hours on a CPU */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
