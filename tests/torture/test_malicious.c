/* test_malicious.c - workers that attack lagand (malicious_worker.c) next to honest ones.
 *
 * Malicious workers restart as fast as lagand permits, and an operator restarts those that lagand
 * has given up. Meanwhile every frame of the honest model's clients is checked, clients of the
 * malicious model get exactly one end each, an operator gets replies, and no iteration of lagand's
 * loop takes long. --lives sets their number, for check-long.
 */
#include "base/clock.h"
#include "include/lagan.h"
#include "tests/test.h"
#include "tests/torture/args.h"
#include "tests/torture/service.h"
#include "tests/torture/streams.h"

#include <stdatomic.h>
#include <stdio.h>

enum { GOOD = 2, EVIL = 8, SETTLE_MS = 30000, GROWTH_KIB = 8192, ROUND_MS = 10 };
/* CPU time of the loop: other load on the machine does not count. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const nsec LONGEST_ITERATION = 200 * NSEC_MS;
#else
static const nsec LONGEST_ITERATION = 10 * NSEC_MS;
#endif

static uint32_t n_lives = 1000;
static struct service v;
static struct streams good, evil;
static struct lagan *operator;

static int
begin(void **state)
{
    (void)state;
    service_open_mocks(&v, 4000);
    return 0;
}

static int
finish(void **state)
{
    (void)state;
    lagan_close(operator);
    streams_close(&good);
    streams_close(&evil);
    service_close(&v);
    return 0;
}

static void
start(void)
{
    char config[600], ctl_path[128];

    v.worker = "malicious_worker";
    snprintf(config, sizeof config,
             "supervisor: { stall_timeout: 500ms }\nmodels:\n"
             "  - { name: good, path: %s/good, device: cpu, workers: %d }\n"
             "  - { name: evil, path: %s/evil, device: cpu, workers: %d, kv: { reuse: true } }\n",
             v.dir, GOOD, v.dir, EVIL);
    service_folder(&v, "good");
    service_folder(&v, "evil");
    service_start(&v, GOOD + EVIL, config, NULL);
    streams_open(&good, v.endpoint, 32, 48);
    streams_open(&evil, v.endpoint, 16, 48);
    good.model = "good";
    evil.model = "evil";
    evil.history.lax = true;
    snprintf(ctl_path, sizeof ctl_path, "ipc://%s/ctl.sock", v.run);
    if (lagan_open(&operator, ctl_path, 10000) < 0) fail_msg("%s", lagan_errmsg(NULL));
}

static nsec
ask(const char *verb, const char *args, char **reply)
{
    nsec since = clock_now();
    uint32_t code;
    int r = lagan_call(operator, verb, args, reply, &code, 10000);

    if (r < 0 && r != -121)
        fail_msg("%s: %s", verb, lagan_errmsg(operator)); /* EREMOTEIO: refused */
    return clock_now() - since;
}

/* Restarts malicious workers that lagand has given up or delays. Returns the time of the list
 * command. */
static nsec
revive(void)
{
    char *list = NULL;
    nsec took = ask("workers list", NULL, &list);

    for (char *at = list ? strstr(list, "\"name\":\"w") : NULL; at;
         at = strstr(at + 9, "\"name\":\"w")) {
        uint32_t n = (uint32_t)strtoul(at + 9, NULL, 10);
        const char *state = strstr(at, "\"state\":\"");
        char args[40], *none = NULL;

        if (n < GOOD || !state) continue;
        state += 9;
        if (strncmp(state, "failed", 6) && strncmp(state, "backoff", 7) &&
            strncmp(state, "down", 4))
            continue;
        snprintf(args, sizeof args, "{\"worker\":\"w%u\"}", n);
        ask("restart", args, &none);
        free(none);
    }
    free(list);
    return took;
}

static void
malicious_workers_do_not_affect_other_workers(void **state)
{
    uint32_t lives = 0;
    struct census before, after;
    nsec worst = 0, next = 0;

    (void)state;
    start();
    service_quiet(&v, &before);
    while (torture_more("evil workers", lives, n_lives)) {
        streams_run(&good, 1, true);
        streams_run(&evil, 1, true);
        if (clock_now() < next) continue;
        next = clock_now() + ROUND_MS * NSEC_MS;
        worst = MAX(worst, revive());
        lives = service_epochs(&v, "evil");
    }
    if (!streams_settle(&good, &v, SETTLE_MS))
        fail_msg("%u honest requests make no progress", good.n_open);
    while (evil.n_open) {
        nsec until = clock_now() + SETTLE_MS * NSEC_MS;

        streams_run(&evil, 5, false);
        revive();
        if (clock_now() >= until) fail_msg("%u requests did not end", evil.n_open);
    }
    for (int i = 0; i < 1000 && (!service_quiet(&v, &after) || after.zombies); i++) {
        streams_run(&good, 5, false);
        revive();
    }
    print_message(
        "%u evil workers; %llu honest requests, a token at most %.0f ms apart; longest iteration "
        "%.2f ms of lagand's time, longest operator reply %.0f ms\n",
        lives, (unsigned long long)good.history.n_done, (double)good.worst / NSEC_MS,
        (double)atomic_load(&v.board->fp.longest_iteration) / NSEC_MS, (double)worst / NSEC_MS);
    assert_true(good.history.n_done > 0);
    assert_true(atomic_load(&v.board->fp.longest_iteration) <= LONGEST_ITERATION);
    assert_int_equal(after.zombies, 0);
    assert_int_equal(after.shm, before.shm);
    if (after.rss_kib > before.rss_kib + GROWTH_KIB)
        fail_msg("lagand's memory has grown from %u to %u KiB", before.rss_kib, after.rss_kib);
    if (after.fds > before.fds + 8 * EVIL)
        fail_msg("%u descriptors, not %u", after.fds, before.fds);
    service_stop(&v);
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(malicious_workers_do_not_affect_other_workers),
    };

    torture_args(argc, argv, (const struct torture_arg[]){ { "lives", &n_lives }, { NULL, NULL } });
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
