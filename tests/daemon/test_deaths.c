/* test_deaths.c - the real lagand and workers that die, hang, lie and cannot start. */
#include "base/clock.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/rig.h"

#include <poll.h>
#include <signal.h>
#include <string.h>

static struct rig r;

/* Chunks from `at` on, acknowledged, until the last word: DONE after all tokens. How often resumed. */
static uint64_t
rest(struct dealer *c, uint64_t rid, uint32_t at, uint32_t max_tokens, uint64_t seed)
{
    uint32_t n = 0;

    for (;;) {
        const struct msg *m = hear(c, 8000);

        assert_int_equal(m->rid, rid);
        if (m->type == LAGAN_MSG_DONE) {
            assert_int_equal(at, max_tokens);
            return number(msg_get(&m->map, "outputs")->via.array.ptr, "resumed");
        }
        if (m->type != LAGAN_MSG_CHUNK) fail_msg("%s", text_of(&m->map, "message"));
        at = take_chunk(m, at, seed);
        n = (uint32_t)number(&m->map, "n");
        SAY(c, LAGAN_MSG_ACK, rid, { "n", n });
    }
}

static void
a_dead_worker_is_replaced_and_its_requests_go_on(void **state)
{
    struct dealer *c;

    (void)state;
    rig_begin(&r, "segv", NULL);
    c = dial(&r, "api.sock");
    submit(c, 1, 3, 100, 1);
    assert_int_equal(rest(c, 1, 0, 100, 1), 1);
    submit(c, 2, 3, 2, 9); /* too short to kill another */
    assert_int_equal(rest(c, 2, 0, 2, 9), 0);
    assert_true(rig_logged(&r, "died of signal: signal 11", 1000));
    /* What it wrote last may be anything: its weights are looked at, and of its KV the memory is taken alone
     * (test_arenas.c). */
    assert_true(rig_logged(&r, "adopted weights of epoch 1, verified", 2000));
    assert_true(rig_logged(&r, "adopted kv of epoch 1", 2000));
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_request_that_wants_no_other_worker_ends_with_worker_lost(void **state)
{
    const struct msg *m;
    struct dealer *c;

    (void)state;
    rig_begin(&r, "segv", NULL);
    c = dial(&r, "api.sock");
    SAY(c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 100 }, { "seed", 1 },
        { "resume", FALSE_KEY });
    hear_type(c, LAGAN_MSG_ACCEPT, 2000);
    do m = hear(c, 5000);
    while (m->type == LAGAN_MSG_CHUNK);
    assert_int_equal(m->type, LAGAN_MSG_ERROR);
    assert_int_equal(number(&m->map, "code"), LAGAN_E_WORKER_LOST);
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

/* The guilty one kills three workers; those beside it are suspects for a while, and then go on. */
static void
a_request_that_kills_is_poisoned_and_the_others_finish(void **state)
{
    enum { OTHERS = 31, TOKENS = 60 };
    uint32_t at[OTHERS + 2] = { 0 }, n_done = 0;
    struct dealer *c;

    (void)state;
    rig_begin(&r, "poison", NULL);
    c = dial(&r, "api.sock");
    for (uint32_t i = 1; i <= OTHERS + 1; i++) {
        SAY(c, LAGAN_MSG_SUBMIT, i, { "ids", i == 5 ? FAKE_POISON : 3 }, { "max_tokens", TOKENS },
            { "seed", i }, { "ack_window", 256 });
    }
    while (n_done < OTHERS + 1) {
        const struct msg *m = hear(c, 10000);

        if (m->type == LAGAN_MSG_CHUNK) {
            at[m->rid] = take_chunk(m, at[m->rid], m->rid);
        } else if (m->type == LAGAN_MSG_ERROR) {
            assert_int_equal(m->rid, 5);
            assert_int_equal(number(&m->map, "code"), LAGAN_E_POISONED);
            assert_int_equal(at[5], 3);
            n_done++;
        } else if (m->type == LAGAN_MSG_DONE) {
            assert_int_equal(at[m->rid], TOKENS);
            n_done++;
        }
    }
    submit(c, 100, FAKE_POISON, 8, 1); /* the same prompt: remembered */
    hear_error(c, 100, LAGAN_E_POISONED, "with this prompt have killed three workers", 2000);
    submit(c, 101, 3, 8, 1);
    rest(c, 101, 0, 8, 1);
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
requests_of_a_dead_worker_go_on_at_once_with_its_sibling(void **state)
{
    enum { N = 8, TOKENS = 100 };
    const msgpack_object *w;
    uint32_t n = 0;
    pid_t victim;
    const struct msg *m;
    struct dealer *c, *ctl;

    (void)state;
    rig_begin(&r, "slow", ARGS("--set", "workers=2"));
    c = dial(&r, "api.sock");
    ctl = dial(&r, "ctl.sock");
    do { /* READY=1 comes with the first */
        poll(NULL, 0, ASK_MS);
        call(ctl, 1, "workers list", NULL, NULL);
        w = msg_get(&hear_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result")->via.array.ptr;
    } while (strcmp(text_of(&w[0], "state"), "ready") || strcmp(text_of(&w[1], "state"), "ready"));
    victim = (pid_t)number(&w[0], "pid");
    for (uint64_t i = 1; i <= N; i++)
        SAY(c, LAGAN_MSG_SUBMIT, i, { "ids", 3 }, { "max_tokens", TOKENS }, { "seed", (int64_t)i },
            { "ack_window", 256 });
    for (uint32_t i = 0; i < N;) i += hear(c, 5000)->type == LAGAN_MSG_ACCEPT;
    kill(victim, SIGKILL);
    assert_true(rig_logged(&r, "requeuing 4 requests", 5000));
    call(ctl, 2, "requests list", NULL, NULL);
    m = hear_type(ctl, LAGAN_MSG_REPLY, 2000);
    w = msg_get(&m->map, "result");
    for (uint32_t i = 0; i < w->via.array.size; i++)
        n += !strcmp(text_of(&w->via.array.ptr[i], "worker"), "w1");
    assert_int_equal(n, N); /* nothing is known of what computing them again would cost */
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_kill_from_outside_is_told_apart_and_forgiven(void **state)
{
    struct dealer *c;

    (void)state;
    rig_begin(&r, "good", NULL);
    c = dial(&r, "api.sock");
    for (uint32_t i = 1; i <= 5; i++) {
        const struct msg *m;
        const msgpack_object *w;

        do {
            poll(NULL, 0, ASK_MS);
            call(c, i, "workers list", NULL, NULL);
            m = hear_type(c, LAGAN_MSG_REPLY, 2000);
            w = msg_get(&m->map, "result")->via.array.ptr;
        } while (number(w, "restarts") != i - 1 || strcmp(text_of(w, "state"), "ready"));
        kill((pid_t)number(w, "pid"), SIGKILL);
    }
    assert_true(rig_logged(&r, "died of killed: signal 9", 2000));
    assert_false(rig_logged(&r, "restarting in", 0));
    assert_true(rig_logged(&r, "adopted kv of epoch 5", 2000));
    assert_false(rig_logged(&r, "verified", 0));
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static pid_t
pid_of_worker(struct dealer *c)
{
    call(c, 1000, "workers list", NULL, NULL);
    return (pid_t)number(
        msg_get(&hear_type(c, LAGAN_MSG_REPLY, 2000)->map, "result")->via.array.ptr, "pid");
}

/* A GPU's driver takes a tenth of a second between the two. */
static void
at_the_end_of_hand_a_successor_is_made_that_gets_memory_at_the_end_of_the_process(void **state)
{
    struct dealer *c, *ctl;

    (void)state;
    rig_begin(&r, "shut-hand", ARGS("--supervisor.stall-timeout", "60s"));
    c = dial(&r, "api.sock");
    ctl = dial(&r, "ctl.sock");
    submit(c, 1, 3, 4, 1); /* with the fourth token hand is shut */
    assert_int_equal(rest(c, 1, 0, 4, 1), 0);
    assert_true(rig_logged(&r, "fake: epoch 2 waits", 5000));
    assert_false(rig_logged(&r, "adopted kv", 0));
    submit(c, 2, 3, 3, 1); /* the worker serves */
    assert_int_equal(rest(c, 2, 0, 3, 1), 0);
    kill(pid_of_worker(ctl), SIGKILL);
    assert_true(rig_logged(&r, "died of killed: signal 9", 5000));
    assert_true(rig_logged(&r, "the standby takes over", 5000));
    assert_true(rig_logged(&r, "adopted kv of epoch 1", 5000));
    submit(c, 3, 3, 3, 1);
    assert_int_equal(rest(c, 3, 0, 3, 1), 0);
    assert_int_equal(rig_n_workers(&r), 1); /* and no other beside it */
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

/* Until the worker's standby is called that. */
static void
await_standby(struct dealer *ctl, const char *word)
{
    nsec until = clock_now() + 20 * NSEC_S;

    for (;;) {
        const msgpack_object *w;

        call(ctl, 1001, "workers list", NULL, NULL);
        w = msg_get(&hear_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result")->via.array.ptr;
        assert_int_equal(number(w, "restarts"), 0);
        if (!strcmp(text_of(w, "standby"), word)) return;
        if (clock_now() > until) fail_msg("\"%s\", not \"%s\"", text_of(w, "standby"), word);
        poll(NULL, 0, ASK_MS);
    }
}

/* Its driver is up then, for whoever comes; of the device's memory it takes nothing before. */
static void
beside_a_gpus_worker_one_waits_that_begins_when_the_workers_hand_ends(void **state)
{
    struct dealer *c, *ctl;

    (void)state;
    rig_begin(&r, "shut-hand", ARGS("--device", "cuda", "--supervisor.stall-timeout", "60s"));
    c = dial(&r, "api.sock");
    ctl = dial(&r, "ctl.sock");
    await_standby(ctl, "driver up");
    assert_false(rig_logged(&r, "fake: epoch 2 begins", 0));
    assert_false(rig_logged(&r, "adopted", 0)); /* nor is anything of the device lent */
    submit(c, 1, 3, 4, 1);                      /* with the fourth token hand is shut */
    assert_int_equal(rest(c, 1, 0, 4, 1), 0);
    assert_true(rig_logged(&r, "fake: epoch 2 begins", 5000));
    assert_true(rig_logged(&r, "adopted weights of epoch 1", 5000));
    assert_false(rig_logged(&r, "adopted kv", 0));
    await_standby(ctl, "standby");
    kill(pid_of_worker(ctl), SIGKILL);
    assert_true(rig_logged(&r, "the standby takes over", 5000));
    assert_true(rig_logged(&r, "adopted kv of epoch 1", 5000));
    submit(c, 3, 3, 3, 1);
    assert_int_equal(rest(c, 3, 0, 3, 1), 0);
    assert_true(rig_logged(&r, "fake: epoch 3 waits", 5000));
    assert_false(rig_logged(&r, "fake: epoch 3 begins", 0));
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static pid_t
pid_of_standby(void)
{
    char line[512];
    FILE *f = fopen(r.log, "r");
    int pid = 0;

    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "worker w0.standby: started, pid ");

        if (at) sscanf(at + strlen("worker w0.standby: started, pid "), "%d", &pid);
    }
    if (f) fclose(f);
    assert_true(pid > 0);
    return pid;
}

/* Its death is not the worker's, and with the worker it leaves: nobody has the device's files open then. */
static void
what_waits_beside_a_gpus_worker_comes_back_and_goes_with_it(void **state)
{
    struct dealer *c, *ctl;
    pid_t first;

    (void)state;
    rig_begin(&r, "good", ARGS("--device", "cuda"));
    c = dial(&r, "api.sock");
    ctl = dial(&r, "ctl.sock");
    await_standby(ctl, "driver up");
    first = pid_of_standby();
    kill(first, SIGKILL);
    assert_true(rig_logged(&r, "no request is affected", 5000));
    assert_true(rig_logged(&r, "fake: epoch 3 waits", 5000));
    await_standby(ctl, "driver up");
    assert_int_not_equal(pid_of_standby(), first);
    submit(c, 1, 3, 3, 1);
    assert_int_equal(rest(c, 1, 0, 3, 1), 0);
    call(ctl, 2, "restart", "worker", "w0");
    assert_int_equal(hear_type(ctl, LAGAN_MSG_REPLY, 2000)->rid, 2);
    assert_true(rig_logged(&r, "fake: epoch 5 waits", 5000)); /* of the new program's */
    assert_false(rig_logged(&r, "takes over", 0));
    await_standby(ctl, "driver up");
    call(ctl, 3, "drain", "worker", "w0");
    assert_int_equal(hear_type(ctl, LAGAN_MSG_REPLY, 2000)->rid, 3);
    await_standby(ctl, "");
    rig_await_workers(&r, 0); /* it leaves before its worker has */
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_worker_that_shuts_its_hand_and_lives_is_ended(void **state)
{
    struct dealer *c;

    (void)state;
    rig_begin(&r, "shut-hand", ARGS("--supervisor.stall-timeout", "300ms"));
    c = dial(&r, "api.sock");
    submit(c, 1, 3, 4, 1);
    assert_int_equal(rest(c, 1, 0, 4, 1), 0);
    assert_true(rig_logged(&r, "closed its fd channel but did not exit", 8000));
    assert_true(rig_logged(&r, "died of corruption", 5000));
    assert_true(rig_logged(&r, "adopted weights of epoch 1, verified", 5000));
    submit(c, 2, 3, 3, 1);
    assert_int_equal(rest(c, 2, 0, 3, 1), 0);
    hang_up(c);
    assert_int_equal(rig_stop(&r), 0);
}

static void
every_lie_of_a_worker_ends_it_and_at_last_the_request_that_it_is_about(void **state)
{
    static const struct {
        const char *mode, *words;
        uint32_t code; /* 0: it goes on with the next worker */
    } t[] = {
        { "bad-token", "token id 1000, but the vocabulary has 1000", LAGAN_E_POISONED },
        { "bad-row", "request 4000000", LAGAN_E_POISONED },
        { "bad-first", "first is 4, not 3", LAGAN_E_POISONED },
        { "bad-text", "is not UTF-8", LAGAN_E_POISONED },
        { "bad-seq", "sequence", LAGAN_E_POISONED },
        { "bad-finish", "n_tokens is 9, not 8", 0 },
        { "shut-bell", "closed its doorbell", 0 },
        { "storm", "signalled the doorbell", 0 },
        { "exit", "died of exited: exit status 3", 0 },
        { "check", "check(sky is blue) failed", 0 },
        { "bus", "died of signal: signal 7", 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        const struct msg *m;
        struct dealer *c;

        rig_begin(&r, t[i].mode, NULL);
        c = dial(&r, "api.sock");
        submit(c, 1, 3, 8, 1);
        do m = hear(c, 8000);
        while (m->type == LAGAN_MSG_CHUNK);
        if (t[i].code ? m->type != LAGAN_MSG_ERROR || number(&m->map, "code") != t[i].code
                      : m->type != LAGAN_MSG_DONE) {
            fail_msg("%s: type %u, %s", t[i].mode, m->type, text_of(&m->map, "message"));
        }
        if (!rig_logged(&r, t[i].words, 1000)) fail_msg("%s: not '%s'", t[i].mode, t[i].words);
        hang_up(c);
        assert_int_equal(rig_stop(&r), 0);
        rig_clean(&r);
    }
}

static void
a_worker_that_hands_up_nonsense_never_becomes_ready(void **state)
{
    (void)state;
    rig_start(&r, "bad-hand", NULL);
    assert_true(rig_logged(&r, "fd channel: a message is malformed", 3000));
    assert_true(rig_logged(&r, "died of corruption", 3000));
    kill(r.pid, SIGTERM);
    assert_true(rig_wait(&r, 5000) >= 0);
}

static void
a_silent_worker_and_an_overdue_step_are_killed_in_time(void **state)
{
    static const struct {
        const char *mode, *words;
    } t[] = { { "hang", "died of silent: signal 9" },
              { "deaf", "died of silent: signal" }, /* 12; or 9, when lagand looked late */
              { "overdue", "died of overdue: signal 9" } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        nsec began;
        struct dealer *c;

        rig_begin(&r, t[i].mode, ARGS("--supervisor.stall-timeout", "800ms"));
        c = dial(&r, "api.sock");
        submit(c, 1, 3, 8, 1);
        began = clock_now();
        assert_int_equal(rest(c, 1, 0, 8, 1), 1);
        assert_true(clock_now() - began < 10 * NSEC_S); /* a second here, on a quiet machine */
        assert_true(rig_logged(&r, t[i].words, 1000));
        hang_up(c);
        assert_int_equal(rig_stop(&r), 0);
        rig_clean(&r);
    }
}

static void
a_worker_that_cannot_start_says_why_and_lagand_leaves(void **state)
{
    (void)state;
    rig_start(&r, "die-config", NULL);
    assert_int_equal(rig_wait(&r, 5000), 78);
    assert_true(rig_logged(&r, "exiting: kv.memory is not what it should be", 0));
    assert_true(
        rig_logged(&r, "worker w0: failed for good: kv.memory is not what it should be", 0));
    rig_start(&r, "die-model", NULL);
    assert_int_equal(rig_wait(&r, 8000), 78);
    assert_true(rig_logged(&r, "config.json: no such file", 0));
    rig_start(&r, "loading", ARGS("--supervisor.start-timeout", "150ms"));
    assert_int_equal(rig_wait(&r, 8000), 69);
    assert_true(rig_logged(&r, "failed for good", 0));
}

static void
a_worker_that_fails_to_start_once_is_tried_again(void **state)
{
    (void)state;
    rig_begin(&r, "die-once", NULL);
    assert_true(rig_logged(&r, "died of start: exit status 70", 1000));
    assert_int_equal(rig_stop(&r), 0);
}

/* By a lagand that has waited long for its first beat: it cannot answer yet. */
static void
a_worker_that_is_asked_for_its_last_words_before_it_can_answer_lives(void **state)
{
    (void)state;
    rig_begin(&r, "asked-early", NULL);
    assert_false(rig_logged(&r, "died of", 0));
    assert_int_equal(rig_stop(&r), 0);
}

/* The first line of the log with these words, or the last. */
static long
said(const char *words, bool last)
{
    char line[512];
    FILE *f = fopen(r.log, "r");
    long at = -1;

    for (long i = 0; f && fgets(line, sizeof line, f); i++)
        if ((last || at < 0) && strstr(line, words)) at = i;
    if (f) fclose(f);
    assert_true(at >= 0);
    return at;
}

/* They come before all else; but as long as one died after the other nobody's heart was looked at, and no client was
 * heard: all were silent then. */
static void
however_many_workers_die_lagand_looks_at_the_clock_and_hears_clients_between_two(void **state)
{
    enum { N = 16 };
    const msgpack_object *list;
    struct dealer *ctl;
    pid_t pid[N];

    (void)state;
    rig_begin(&r, "good", ARGS("--set", "workers=16"));
    assert_true(rig_told(&r, "STATUS=16 of 16 workers ready", 5000));
    ctl = dial(&r, "ctl.sock");
    call(ctl, 1, "workers list", NULL, NULL);
    list = msg_get(&hear_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result");
    assert_int_equal(list->via.array.size, N);
    for (int i = 0; i < N; i++) pid[i] = (pid_t)number(list->via.array.ptr + i, "pid");
    kill(r.pid, SIGSTOP);
    call(ctl, 2, "reload", NULL, NULL);
    poll(NULL, 0, 2000); /* more than a tick may be late */
    for (int i = 0; i < N; i++) kill(pid[i], SIGKILL);
    poll(NULL, 0, 100);
    kill(r.pid, SIGCONT);
    assert_true(rig_logged(&r, "did not run for", 5000));
    for (int i = 0; i < N; i++) {
        char words[32];

        snprintf(words, sizeof words, "pid %d died of killed", (int)pid[i]);
        assert_true(rig_logged(&r, words, 5000));
    }
    assert_true(said("did not run for", false) < said("died of killed", true));
    assert_true(said("reload: 16 workers", false) < said("died of killed", true));
    assert_int_equal(rig_stop(&r), 0);
}

static void
a_killed_lagand_leaves_no_worker_and_the_next_one_starts(void **state)
{
    (void)state;
    rig_begin(&r, "good", NULL);
    assert_int_equal(rig_n_workers(&r), 1);
    kill(r.pid, SIGKILL);
    assert_int_equal(rig_wait(&r, 2000), 256 + SIGKILL);
    rig_await_workers(&r, 0);
    rig_begin(&r, "good", ARGS("--remove-runtime-dir"));
    assert_int_equal(rig_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        rig_test(a_dead_worker_is_replaced_and_its_requests_go_on),
        rig_test(a_request_that_wants_no_other_worker_ends_with_worker_lost),
        rig_test(a_request_that_kills_is_poisoned_and_the_others_finish),
        rig_test(requests_of_a_dead_worker_go_on_at_once_with_its_sibling),
        rig_test(a_kill_from_outside_is_told_apart_and_forgiven),
        rig_test(at_the_end_of_hand_a_successor_is_made_that_gets_memory_at_the_end_of_the_process),
        rig_test(beside_a_gpus_worker_one_waits_that_begins_when_the_workers_hand_ends),
        rig_test(what_waits_beside_a_gpus_worker_comes_back_and_goes_with_it),
        rig_test(a_worker_that_shuts_its_hand_and_lives_is_ended),
        rig_test(every_lie_of_a_worker_ends_it_and_at_last_the_request_that_it_is_about),
        rig_test(a_worker_that_hands_up_nonsense_never_becomes_ready),
        rig_test(a_silent_worker_and_an_overdue_step_are_killed_in_time),
        rig_test(a_worker_that_cannot_start_says_why_and_lagand_leaves),
        rig_test(a_worker_that_fails_to_start_once_is_tried_again),
        rig_test(a_worker_that_is_asked_for_its_last_words_before_it_can_answer_lives),
        rig_test(however_many_workers_die_lagand_looks_at_the_clock_and_hears_clients_between_two),
        rig_test(a_killed_lagand_leaves_no_worker_and_the_next_one_starts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
