/* test_service.c - a real lagand and worker with many clients: vocabulary cache, fairness, memory.
 *
 * tests/daemon tests frames, credit and supervision with a worker that violates the protocol;
 * scripts of this folder test single requests.
 */
#include "base/base.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LLAMA "tests/data/golden/llama2"
#define T5 "tests/data/golden/t5_relu"

static const char *const small[] = { "max_num_seqs=8", "kv.memory=16MiB", "max_source_tokens=64",
                                     "threads=2", NULL };

static struct lagan *
connect_to(const struct serve *s)
{
    struct lagan *c;

    assert_int_equal(lagan_open(&c, s->endpoint, 5000), 0);
    return c;
}

static uint64_t
submit(struct lagan *c, const char *text)
{
    uint64_t id = 0;
    int refused;
    struct lagan_request *r = serve_request(text, &refused);

    assert_non_null(r);
    assert_int_equal(refused, 0);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    return id;
}

/* Calls a verb; its reply must contain the text. */
static void
call(struct lagan *c, const char *verb, const char *args, const char *text)
{
    char *reply = NULL;
    int r = lagan_call(c, verb, args, &reply, NULL, 5000);

    if (r < 0) fail_msg("%s %s: %s", verb, args, lagan_errmsg(c));
    if (!strstr(reply, text)) fail_msg("%s %s: %s", verb, args, reply);
    free(reply);
}

/* Serves a text request. Returns the modification time of the only file in dir/vocab. damaged:
 * changes four bytes in the middle of the file before. */
static long
serve_with_cache(const char *dir, bool damaged)
{
    char pattern[128];
    struct stat st;
    struct serve s;
    struct lagan *c;
    glob_t g;

    snprintf(pattern, sizeof pattern, "%s/vocab/*", dir);
    if (damaged) {
        int fd;

        assert_int_equal(glob(pattern, 0, NULL, &g), 0);
        fd = open(g.gl_pathv[0], O_WRONLY);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(pwrite(fd, "\xff\xff\xff\xff", 4, st.st_size / 2), 4);
        close(fd);
        globfree(&g);
    }
    setenv("CACHE_DIRECTORY", dir, 1);
    assert_true(serve_start(&s, "models/recall-gemma3", small));
    unsetenv("CACHE_DIRECTORY");
    c = connect_to(&s);
    call(c, "tokenize", "{\"text\":\"k3=\"}", "[2,111,55,65]");
    call(c, "detokenize", "{\"ids\":[111,55,65]}", "\"k3=\"");
    lagan_close(c);
    serve_stop(&s);
    assert_int_equal(glob(pattern, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    assert_int_equal(stat(g.gl_pathv[0], &st), 0);
    globfree(&g);
    return st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

static void
vocabulary_cache_is_kept_and_made_again_when_damaged(void **state)
{
    char dir[] = "/tmp/lagan-test-vocab-XXXXXX", path[256];
    long first;
    glob_t g;

    (void)state;
    assert_non_null(mkdtemp(dir));
    first = serve_with_cache(dir, false);
    assert_true(serve_with_cache(dir, false) == first);
    assert_true(serve_with_cache(dir, true) != first);
    snprintf(path, sizeof path, "%s/vocab/*", dir);
    assert_int_equal(glob(path, 0, NULL, &g), 0);
    unlink(g.gl_pathv[0]);
    globfree(&g);
    snprintf(path, sizeof path, "%s/vocab", dir);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* Waits until lagand has accepted n requests. */
static void
wait_accepted(struct lagan *c, uint32_t n)
{
    uint32_t taken = 0;

    for (uint32_t looks = 0; taken < n; looks++) {
        char *reply = NULL;
        json_t *o;

        if (lagan_call(c, "status", "{}", &reply, NULL, 20000) < 0) fail_msg("%s", lagan_errmsg(c));
        o = json_loads(reply, 0, NULL);
        taken = (uint32_t)json_integer_value(json_object_get(o, "accepted"));
        json_decref(o);
        free(reply);
        assert_true(looks < 20000);
    }
}

/* Returns how many requests of an earlier flood have ended when the last of four requests of
 * another client ends. Long requests go before the flood, so that all are queued before any of
 * them has run. lagand delivers only as fast as the client reads: the test reads one event of
 * each client at a time if few are expected before, or all events of the flood first. */
static uint32_t
ended_before(const char *quantum, const char *ask, bool few)
{
    enum { LONG = 20, FLOOD = 600, FEW = 4 };
    const char *const set[] = { "max_num_seqs=2", "kv.memory=16MiB", "threads=2", quantum, NULL };
    struct lagan *flood, *other;
    uint32_t over = 0, done = 0, looks = 0;
    struct serve s;

    assert_true(serve_start(&s, LLAMA, set));
    flood = connect_to(&s);
    other = connect_to(&s);
    for (int i = 0; i < LONG; i++)
        submit(flood, "{\"ids\":[1,5],\"max_tokens\":250,\"ignore_eos\":true}");
    for (int i = 0; i < FLOOD; i++)
        submit(flood, "{\"ids\":[1,5],\"max_tokens\":8,\"ignore_eos\":true}");
    wait_accepted(flood, LONG + FLOOD);
    for (int i = 0; i < FEW; i++) submit(other, ask);
    wait_accepted(other, LONG + FLOOD + FEW);
    while (done < FEW) {
        struct lagan_event ev = { .size = sizeof ev };

        while (lagan_next(flood, &ev, 0) > 0) {
            over += ev.kind == LAGAN_EVENT_DONE;
            if (few) break;
        }
        assert_true(++looks < 200000);
        if (lagan_next(other, &ev, 1) <= 0) continue;
        assert_true(ev.kind != LAGAN_EVENT_ERROR && ev.kind != LAGAN_EVENT_DISCONNECTED);
        done += ev.kind == LAGAN_EVENT_DONE;
    }
    lagan_close(flood);
    lagan_close(other);
    serve_stop(&s);
    return over;
}

static void
flood_of_one_client_delays_neither_others_nor_urgent_requests(void **state)
{
    const char *ask = "{\"ids\":[1,5],\"max_tokens\":8,\"ignore_eos\":true}";
    const char *urgent = "{\"ids\":[1,5],\"max_tokens\":8,\"ignore_eos\":true,\"priority\":0.9}";

    (void)state;
    assert_in_range(ended_before("fairness_quantum=64", ask, true), 0, 300);
    assert_in_range(ended_before("fairness_quantum=0", urgent, true), 0, 300);
    assert_in_range(ended_before("fairness_quantum=0", ask, false), 610,
                    620); /* by arrival alone */
}

/* Returns the KiB of anonymous memory of a process. Its shared memory is bounded by the rings
 * and the KV arena. */
static long
own_memory(pid_t pid)
{
    char path[64], line[128];
    long kib = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %ld kB", &kib) == 1) break;
    fclose(f);
    assert_true(kib > 0);
    return kib;
}

struct client {
    struct lagan *c;
    uint64_t id;
    uint32_t n, done;
};

/* What has come for one client: positions follow each other, every request ends once. */
static void
read_client(struct client *k)
{
    struct lagan_event ev = { .size = sizeof ev };

    while (k->id && lagan_next(k->c, &ev, 0) > 0) {
        assert_int_equal(ev.id, k->id);
        assert_true(ev.kind != LAGAN_EVENT_ERROR && ev.kind != LAGAN_EVENT_DISCONNECTED);
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            assert_int_equal(ev.first, k->n);
            k->n += ev.n_ids;
        }
        if (ev.kind != LAGAN_EVENT_DONE) continue;
        assert_int_equal(k->n, 20);
        k->id = 0;
        k->done++;
    }
}

/* 64 connections for LAGAN_SOAK_SECONDS, 3 by default. */
static void
many_clients_lose_no_token_and_memory_is_bounded(void **state)
{
    /* lagand keeps a result for ten minutes: daemon/ledger/ledger.h. */
    enum { CLIENTS = 64, GROWTH_KIB = 2048, KEPT_KIB = 2, KEPT_MOST = 8192 };
    static const char *const set[] = { "max_num_seqs=64", "kv.memory=64MiB", "threads=2", NULL };
    static const char ask[] = "{\"text\":\"k3=blue;q7=stone;m1=river;q7?\",\"max_tokens\":20,"
                              "\"ignore_eos\":true}";
    const char *seconds = getenv("LAGAN_SOAK_SECONDS");
    struct client *k = calloc(CLIENTS, sizeof *k);
    long daemon = 0, worker = 0;
    bool open = true;
    struct serve s;
    uint32_t all = 0, before = 0;
    time_t start, end;
    pid_t pid;

    (void)state;
    assert_true(serve_start(&s, "models/recall-gemma3", set));
    pid = serve_worker(&s);
    for (int i = 0; i < CLIENTS; i++) k[i].c = connect_to(&s);
    start = time(NULL);
    end = start + (seconds ? atoi(seconds) : 3);
    while (open) {
        time_t now = time(NULL);

        open = now < end;
        for (int i = 0; i < CLIENTS; i++) {
            if (!k[i].id && now < end) {
                k[i].id = submit(k[i].c, ask);
                k[i].n = 0;
            }
            read_client(&k[i]);
            open |= k[i].id != 0;
        }
        if (!daemon && now > start + (end - start) / 3) {
            daemon = own_memory(s.pid);
            worker = own_memory(pid);
            for (int i = 0; i < CLIENTS; i++) before += k[i].done;
        }
        assert_true(now < end + 20);
        usleep(500);
    }
    daemon = own_memory(s.pid) - daemon;
    worker = own_memory(pid) - worker;
    for (int i = 0; i < CLIENTS; i++) {
        assert_true(k[i].done > 0);
        all += k[i].done;
        lagan_close(k[i].c);
    }
    print_message(
        "%u requests of %d clients; since a third of the time lagand grew %ld KiB, its worker "
        "%ld\n",
        all, CLIENTS, daemon, worker);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* they keep what is freed */
    assert_true(daemon < GROWTH_KIB + KEPT_KIB * (long)MIN(all - before, (uint32_t)KEPT_MOST));
    assert_true(worker < 4096);
#endif
    free(k);
    serve_stop(&s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocabulary_cache_is_kept_and_made_again_when_damaged),
        cmocka_unit_test(flood_of_one_client_delays_neither_others_nor_urgent_requests),
        cmocka_unit_test(many_clients_lose_no_token_and_memory_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
