/* test_hostile.c - hostile clients, each kind for a while: other clients are served and checked,
 * and lagand's memory stays under a bound.
 *
 *     test_hostile --requests 4000 --times 2    p99 latency is at most 2 x the undisturbed one
 *
 * A request is 8 tokens of a worker that generates one per ms. The baseline runs without attackers,
 * with as many processes that only use CPU time. Without --times the latencies are printed and not
 * checked, because they mean little on a busy machine.
 */
#include "base/clock.h"
#include "include/lagan.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"
#include "tests/torture/args.h"
#include "tests/torture/attackers.h"

#include <poll.h>
#include <stdio.h>

enum { MAX_REQUESTS = 100000, TOKENS = 8 };
enum { SIGN_MS = 300000 }; /* attackers run at idle priority: slow on a busy machine */
/* daemon/README.md: memory of these requests, 64 MiB of kept results, unread frames, partial
 * frames. */
enum { REQUESTS_MIB = 64, KEPT_MIB = 64, UNREAD_MIB = 128, PARTS_MIB = 64 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MOST_MIB = 8000 }; /* a sanitizer keeps freed memory for a while */
#else
enum { MOST_MIB = REQUESTS_MIB + KEPT_MIB + UNREAD_MIB + PARTS_MIB };
#endif

static struct lagand_fixture r;
static uint32_t n_requests = 60, times;

static int
tear_down(void **state)
{
    (void)state;
    attack_end();
    lagand_clean(&r);
    return 0;
}

/* ---- other clients */

static int
by_size(const void *a, const void *b)
{
    nsec x = *(const nsec *)a, y = *(const nsec *)b;

    return x < y ? -1 : x > y;
}

/* Returns VmRSS, or the peak VmHWM. */
static unsigned long
mib(const char *what)
{
    char path[64], line[256];
    unsigned long kib = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)r.pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, what, 5)) kib = strtoul(line + 6, NULL, 10);
    if (f) fclose(f);
    return kib >> 10;
}

/* Resets the peak memory that the kernel records. */
static void
reset_peak_memory(void)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)r.pid);
    f = fopen(path, "w");
    if (!f) return;
    fputs("5", f);
    fclose(f);
}

/* Runs one request to its end. */
static void
ask(struct lagan *c, const struct lagan_request *q, uint64_t seed)
{
    struct lagan_event ev = { .size = sizeof ev };
    uint32_t n = 0;
    uint64_t id;

    assert_int_equal(lagan_submit(c, q, &id), 0);
    do {
        if (lagan_next(c, &ev, 60000) != 1) fail_msg("no reply within 60 s");
        assert_int_equal(ev.id, id);
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s", ev.message);
        for (uint32_t i = 0; ev.kind == LAGAN_EVENT_TOKENS && i < ev.n_ids; i++, n++)
            assert_int_equal(ev.ids[i], fake_token(seed, ev.first + i));
    } while (ev.kind != LAGAN_EVENT_DONE);
    assert_int_equal(n, TOKENS);
}

/* Runs requests one after another; returns the p99 of their times. */
static nsec
serve_others(const char *what)
{
    static const int32_t ids[] = { 1, 2, 3 };
    static nsec took[MAX_REQUESTS];
    uint32_t n = 0;
    struct lagan_request *q = lagan_request_new();
    char endpoint[160];
    struct lagan *c;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/api.sock", r.run);
    assert_int_equal(lagan_open(&c, endpoint, 60000), 0);
    assert_int_equal(lagan_set_ids(q, "ids", ids, ARRAY_LEN(ids)), 0);
    assert_int_equal(lagan_set_int(q, "max_tokens", TOKENS), 0);
    reset_peak_memory();
    while (torture_more(what, n, n_requests)) {
        nsec since = clock_now();

        assert_int_equal(lagan_set_int(q, "seed", n), 0);
        ask(c, q, n);
        took[n++] = clock_now() - since;
    }
    lagan_request_free(q);
    lagan_close(c);
    attack_check();
    assert_true(n);
    qsort(took, n, sizeof *took, by_size);
    fprintf(stderr, "%-29s p50 %6lld us  p99 %6lld us  lagand at most %4lu MiB\n", what,
            (long long)(took[n / 2] / NSEC_US), (long long)(took[n * 99 / 100] / NSEC_US),
            mib("VmHWM"));
    assert_in_range(mib("VmHWM"), 0, MOST_MIB);
    return took[n * 99 / 100];
}

/* ---- attacks */

static uint64_t
counted(const char *what)
{
    struct dealer *c = dealer_open(&r, "ctl.sock");
    uint64_t n;

    call(c, 1, "status", NULL, NULL);
    n = number(msg_get(&receive_type(c, LAGAN_MSG_REPLY, 30000)->map, "result"), what);
    dealer_close(c);
    return n;
}

static const struct {
    const char *what;
    attack_fn *how;
    const char *counter; /* counter of lagand that shows the attack, or text in its log */
    uint32_t least;
} attacks[] = {
    { "pings", attack_pings, "clients", 1 },
    { "nonsense", attack_nonsense, "refused", 1000 },
    { "never read", attack_never_read, "accepted", 64 },
    { "800 that never read", attack_never_read_any, "accepted", 100 },
    { "frames of 4 MiB", attack_large, "refused", 10 },
    { "frames of 4 MiB, well formed", attack_large_good, "refused", 10 },
    { "500 frames that never end", attack_parts, NULL, 0 },
    { "messages that never end", attack_endless, NULL, 0 },
    { "expensive calls", attack_asks, "refused", 1000 },
    { "10,000 connections", attack_crowd, "connections are open, which is the limit", 0 },
};

static void
await_sign(size_t i, uint64_t before)
{
    const char *counter = attacks[i].counter;
    nsec until = clock_now() + SIGN_MS * NSEC_MS;

    if (!attacks[i].least) {
        if (counter) assert_true(lagand_logged(&r, counter, SIGN_MS));
        return;
    }
    while (counted(counter) < before + attacks[i].least && clock_now() < until) poll(NULL, 0, 20);
    assert_true(counted(counter) >= before + attacks[i].least);
}

static void
other_clients_are_served_and_memory_is_bounded(void **state)
{
    char path[160];
    nsec quiet, p99;

    (void)state;
    lagand_start(&r, "brisk", (const char *const[]){ "--api.ack-timeout", "1s", NULL });
    lagand_ready(&r);
    snprintf(path, sizeof path, "%s/api.sock", r.run);
    attack_begin(attack_spin, path);
    quiet = serve_others("quiet");
    attack_end();
    for (size_t i = 0; i < ARRAY_LEN(attacks); i++) {
        uint64_t before = attacks[i].least ? counted(attacks[i].counter) : 0;

        attack_begin(attacks[i].how, path);
        poll(NULL, 0, 300);
        p99 = serve_others(attacks[i].what);
        await_sign(i, before);
        attack_end();
        if (times) assert_in_range(p99, 0, times * quiet);
        poll(NULL, 0, 300);
    }
    serve_others("quiet again");
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(other_clients_are_served_and_memory_is_bounded, tear_down),
    };

    torture_args(argc, argv,
                 (const struct torture_arg[]){
                     { "requests", &n_requests }, { "times", &times }, { NULL, NULL } });
    assert_in_range(n_requests, 1, MAX_REQUESTS);
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
