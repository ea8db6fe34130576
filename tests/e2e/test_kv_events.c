/* test_kv_events.c - KV events of real workers: requests are routed to the worker that has their
 * prefix, and a reader that follows the events knows all blocks, whatever is lost on the way. */
#include "base/clock.h"
#include "include/lagan_wire.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

enum { FAMILIES = 40, EACH = 3, OPEN = 2, PREFIX = 160, TAIL = 8, MAX_BLOCKS = 4096 };

/* ---- routing */

enum prompt_kind { PROMPT_IDS, PROMPT_TEXT, PROMPT_ENCODER };

/* Submits a request whose prompt begins with the PREFIX tokens of its family; all requests of a
 * family have the same encoder input. */
static void
submit(struct lagan *c, uint32_t family, uint32_t i, enum prompt_kind kind)
{
    struct lagan_request *r = lagan_request_new();
    int32_t ids[PREFIX + TAIL];
    char text[4 * PREFIX + 32];
    uint64_t id;

    for (uint32_t k = 0; k < PREFIX; k++) ids[k] = (int32_t)(3 + (family * 41 + k * 7) % 90);
    for (uint32_t k = 0; k < TAIL; k++) ids[PREFIX + k] = (int32_t)(3 + (i * 13 + k) % 90);
    for (uint32_t k = 0; k < 4 * PREFIX; k++)
        text[k] = (char)('a' + (family * (1 + k / 64) + k * k) % 26);
    snprintf(text + (size_t)4 * PREFIX, 32, " request %u", i);
    if (kind == PROMPT_TEXT)
        assert_int_equal(lagan_set_str(r, "text", text, strlen(text)), 0);
    else
        lagan_set_ids(r, "ids", ids, kind == PROMPT_ENCODER ? 64 : PREFIX + TAIL);
    lagan_set_int(r, "max_tokens", 4);
    lagan_set_bool(r, "ignore_eos", true);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
}

/* Waits for the end of the only open request of c. */
static void
await_done(struct lagan *c)
{
    struct lagan_event ev = { .size = sizeof ev };

    do {
        if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev.reason_name, ev.message);
    } while (ev.kind != LAGAN_EVENT_DONE);
}

/* Returns the sum of the samples whose line begins with `name`. */
static uint64_t
metric(const struct serve *s, const char *name)
{
    char *reply = NULL, *text;
    uint64_t sum = 0;
    struct lagan *c;
    json_t *o;

    assert_int_equal(lagan_open(&c, s->endpoint, 5000), 0);
    assert_int_equal(lagan_call(c, "metrics", NULL, &reply, NULL, 5000), 0);
    lagan_close(c);
    o = json_loads(reply, 0, NULL);
    free(reply);
    text = strdup(json_string_value(json_object_get(o, "text")));
    json_decref(o);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!strncmp(line, name, strlen(name))) sum += strtoull(strrchr(line, ' '), NULL, 10);
    free(text);
    return sum;
}

static void
start_two(struct serve *s, const char *model, const char *events)
{
    const char *set[] = { "workers=2",
                          "kv.reuse=true",
                          "kv.tokens_per_block=8",
                          "threads=1",
                          "max_num_seqs=4",
                          "kv.memory=32MiB",
                          events,
                          NULL };

    assert_true(serve_start(s, model, set));
    while (metric(s, "lagan_worker_ready") < 2) {
    }
}

/* Serves FAMILIES * EACH requests with 2 workers, OPEN at a time; the first FAMILIES requests, one
 * of each prefix, end before the others begin. Returns the prompt tokens found in a cache. */
static uint64_t
serve_families(const char *events)
{
    uint32_t sent = 0, done = 0;
    uint64_t cached = 0;
    struct lagan *c;
    struct serve s;

    start_two(&s, "models/recall-gemma3", events);
    assert_int_equal(lagan_open(&c, s.endpoint, 5000), 0);
    while (done < FAMILIES * EACH) {
        struct lagan_event ev = { .size = sizeof ev };

        for (; sent < FAMILIES * EACH && sent - done < OPEN; sent++) {
            if (sent == FAMILIES && done < FAMILIES) break;
            submit(c, sent < FAMILIES ? sent : (sent * 2654435761u >> 16) % FAMILIES, sent,
                   PROMPT_IDS);
        }
        if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev.reason_name, ev.message);
        if (ev.kind == LAGAN_EVENT_OUTPUT) cached += ev.cached;
        done += ev.kind == LAGAN_EVENT_DONE;
    }
    assert_int_equal(metric(&s, "lagan_routed_hit_tokens_total") > 0, !strstr(events, "=0"));
    lagan_close(c);
    serve_stop(&s);
    return cached;
}

static void
routing_by_prefix_finds_more_tokens_than_by_load(void **state)
{
    uint64_t by_load = serve_families("kv.events=0"), by_prefix = serve_families("kv.events=4096");

    (void)state;
    print_message("%d requests with %d prefixes of %d tokens: by load %llu tokens found, by prefix "
                  "%llu\n",
                  FAMILIES * EACH, FAMILIES, PREFIX, (unsigned long long)by_load,
                  (unsigned long long)by_prefix);
    assert_true(by_prefix > by_load);
}

/* Submits a request of max_tokens tokens, and waits until a worker has it. */
static struct lagan *
occupy(const struct serve *s, uint32_t number, uint32_t max_tokens)
{
    static const int32_t ids[] = { 5, 6, 7, 8 };
    struct lagan_request *r = lagan_request_new();
    struct lagan *c;
    uint64_t id;

    assert_int_equal(lagan_open(&c, s->endpoint, 5000), 0);
    lagan_set_ids(r, "ids", ids, ARRAY_LEN(ids));
    lagan_set_int(r, "max_tokens", max_tokens);
    lagan_set_bool(r, "ignore_eos", true);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    while (metric(s, "lagan_requests_accepted_total") < number ||
           metric(s, "lagan_requests_queued") > 0) {
    }
    return c;
}

/* Two requests with one prefix. The first goes to w1, because w0 has a request; the second finds
 * more load at w1 than at w0. Returns the blocks that the second found; UINT64_MAX: a request that
 * was to be the load ended too early. */
static uint64_t
second_request_finds(const char *model, const char *events, enum prompt_kind kind)
{
    struct lagan *c, *at_w0, *at_w1;
    struct serve s;
    uint64_t found;

    start_two(&s, model, events);
    assert_int_equal(lagan_open(&c, s.endpoint, 5000), 0);
    at_w0 = occupy(&s, 1, 970);
    submit(c, 1, 0, kind);
    await_done(c);
    at_w1 = occupy(&s, 3, 990);
    found = metric(&s, "lagan_kv_reused_full_total");
    submit(c, 1, 1, kind);
    await_done(c);
    found = metric(&s, "lagan_kv_reused_full_total") - found;
    if (metric(&s, "lagan_worker_running{") < 2) found = UINT64_MAX;
    lagan_close(at_w0);
    lagan_close(at_w1);
    lagan_close(c);
    serve_shut_down(&s);
    return found;
}

static bool
finds_blocks(const char *model, const char *events, enum prompt_kind kind)
{
    uint64_t found = UINT64_MAX;

    for (int tries = 0; tries < 20 && found == UINT64_MAX; tries++)
        found = second_request_finds(model, events, kind);
    if (found == UINT64_MAX) fail_msg("the requests that were to be the load always ended early");
    return found > 0;
}

static void
prefix_outweighs_a_small_difference_in_load(void **state)
{
    static const struct {
        const char *model;
        enum prompt_kind kind;
    } ways[] = { { "models/recall-gemma3", PROMPT_IDS },
                 { "models/recall-gemma3", PROMPT_TEXT },
                 { "tests/data/golden/t5_relu", PROMPT_ENCODER } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        assert_false(finds_blocks(ways[i].model, "kv.events=0", ways[i].kind));
        assert_true(finds_blocks(ways[i].model, "kv.events=64", ways[i].kind));
    }
}

/* ---- a reader of the events */

struct reader {
    struct lagan *c;
    json_int_t from, at;
    bool begun, in_snapshot;
    uint64_t lost;
    uint32_t n;
    char block[MAX_BLOCKS][64]; /* "name/group/tier" */
};

static void
name_block(char *to, const json_t *o)
{
    snprintf(to, 64, "%s/%lld/", json_string_value(json_object_get(o, "name")),
             (long long)json_integer_value(json_object_get(o, "group")));
}

static void
reader_apply(struct reader *r, const json_t *o)
{
    const char *op = json_string_value(json_object_get(o, "op"));
    char name[64];
    uint32_t i = 0;

    name_block(name, o);
    while (i < r->n && strncmp(r->block[i], name, strlen(name))) i++;
    if (op && !strcmp(op, "removed")) {
        if (i < r->n) memmove(r->block[i], r->block[--r->n], sizeof r->block[0]);
        return;
    }
    assert_true(i < MAX_BLOCKS);
    memset(r->block[i], 0, sizeof r->block[i]); /* for memcmp() */
    snprintf(r->block[i], sizeof r->block[i], "%s%s", name,
             json_string_value(json_object_get(o, "tier")));
    r->n = MAX(r->n, i + 1);
}

/* Makes one call as the protocol manual says. Returns true when all events and blocks are read. */
static bool
reader_call(struct reader *r)
{
    json_t *reply, *list, *o, *at;
    char args[96], *text = NULL;
    bool over;
    size_t i;

    snprintf(args, sizeof args, r->in_snapshot ? "{\"from\":%lld,\"at\":%lld}" : "{\"from\":%lld}",
             (long long)r->from, (long long)r->at);
    if (lagan_call(r->c, "kv events", args, &text, NULL, 5000) != 0)
        fail_msg("kv events: %s", lagan_errmsg(r->c));
    reply = json_loads(text, 0, NULL);
    free(text);
    if (!r->begun || json_integer_value(json_object_get(reply, "lost"))) {
        r->lost += (uint64_t)json_integer_value(json_object_get(reply, "lost"));
        r->n = 0;
        r->begun = r->in_snapshot = true;
        r->at = 0;
        r->from = json_integer_value(json_object_get(reply, "end"));
        json_decref(reply);
        return false;
    }
    list = json_object_get(reply, "events");
    over = json_array_size(list) == 0;
    json_array_foreach(list, i, o) reader_apply(r, o);
    r->from = json_integer_value(json_object_get(reply, "next"));
    at = json_object_get(reply, "at");
    json_array_foreach(json_object_get(reply, "blocks"), i, o) reader_apply(r, o);
    if (json_is_integer(at)) r->at = json_integer_value(at);
    if (over && !json_is_integer(at)) r->in_snapshot = false;
    json_decref(reply);
    return over && !r->in_snapshot;
}

static void
reader_open(struct reader *r, const struct serve *s)
{
    char endpoint[128];

    *r = (struct reader){ 0 };
    snprintf(endpoint, sizeof endpoint, "ipc://%s/ctl.sock", s->dir);
    assert_int_equal(lagan_open(&r->c, endpoint, 5000), 0);
}

static int
compare_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Reads until the reader has the blocks that a new reader gets. */
static void
assert_up_to_date(struct reader *r, const struct serve *s)
{
    static struct reader fresh;
    bool same = false;

    for (int tries = 0; tries < 600 && !same; tries++) {
        while (!reader_call(r)) {
        }
        reader_open(&fresh, s);
        while (!reader_call(&fresh)) {
        }
        lagan_close(fresh.c);
        qsort(r->block, r->n, sizeof r->block[0], compare_text);
        qsort(fresh.block, fresh.n, sizeof fresh.block[0], compare_text);
        same = r->n == fresh.n && !memcmp(r->block, fresh.block, r->n * sizeof r->block[0]);
        if (!same) nanosleep(&(struct timespec){ 0, 50 * NSEC_MS }, NULL);
    }
    if (!same) fail_msg("the reader has %u blocks, a new reader %u", r->n, fresh.n);
}

/* Sends n requests with different prompts and waits for their ends. */
static void
fill_cache(const struct serve *s, uint32_t first, uint32_t n)
{
    struct lagan *c;
    uint32_t done = 0;

    assert_int_equal(lagan_open(&c, s->endpoint, 5000), 0);
    for (uint32_t i = 0; i < n; i++) submit(c, first + i, first + i, PROMPT_IDS);
    while (done < n) {
        struct lagan_event ev = { .size = sizeof ev };

        if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
        done += ev.kind == LAGAN_EVENT_DONE || ev.kind == LAGAN_EVENT_ERROR;
    }
    lagan_close(c);
}

/* Returns how many blocks of `of`, in any tier, r has too. */
static uint32_t
n_common(const struct reader *r, const struct reader *of)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < of->n; i++) {
        size_t name = (size_t)(strrchr(of->block[i], '/') - of->block[i]);

        for (uint32_t k = 0; k < r->n; k++)
            if (!strncmp(r->block[k], of->block[i], name + 1)) n++, k = r->n;
    }
    return n;
}

/* kv.events 16: nearly every request loses events of the worker, and of the reader. */
static void
reader_knows_the_blocks_after_losses_flush_kill_and_reexec(void **state)
{
    static const char *const sets[] = { "kv.events=16", "kv.events=4096" };
    static struct reader r, before;

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *set[] = { "kv.reuse=true",
                              "kv.tokens_per_block=8",
                              "threads=1",
                              "kv.memory=1280KiB",
                              "kv.host_memory=256KiB",
                              sets[i],
                              NULL };
        char text[400];
        struct serve s;

        assert_true(serve_start(&s, "tests/data/golden/llama2", set));
        reader_open(&r, &s);
        fill_cache(&s, 0, 8);
        assert_up_to_date(&r, &s);
        assert_true(r.n > 20);
        fill_cache(&s, 8, 16);
        assert_up_to_date(&r, &s);
        assert_int_equal(metric(&s, "lagan_worker_kv_events_lost_total") > 0, i == 0);
        assert_int_equal(serve_ctl(&s, "kv flush", text, sizeof text), 0);
        assert_up_to_date(&r, &s);
        fill_cache(&s, 0, 4);
        assert_up_to_date(&r, &s);
        before = r;
        r.lost = 0;
        assert_int_equal(kill(serve_worker(&s), SIGKILL), 0);
        fill_cache(&s, 0, 1); /* the replacement has adopted the cache, with the same names */
        assert_up_to_date(&r, &s);
        print_message("%u blocks before the kill, %u of %u after it\n", before.n,
                      n_common(&r, &before), r.n);
        assert_true(r.lost > 0 && n_common(&r, &before) >= before.n / 2);
        lagan_close(r.c);
        if (serve_ctl(&s, "daemon reexec", text, sizeof text) != 0) fail_msg("%s", text);
        fill_cache(&s, 0, 1);
        reader_open(&r, &s);
        assert_up_to_date(&r, &s);
        print_message("%u of %u after the re-exec\n", n_common(&r, &before), r.n);
        assert_true(n_common(&r, &before) >= before.n / 2);
        lagan_close(r.c);
        serve_stop(&s);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routing_by_prefix_finds_more_tokens_than_by_load),
        cmocka_unit_test(prefix_outweighs_a_small_difference_in_load),
        cmocka_unit_test(reader_knows_the_blocks_after_losses_flush_kill_and_reexec),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
