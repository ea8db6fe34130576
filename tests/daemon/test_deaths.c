/* test_deaths.c - the real lagand with workers that die, hang, send invalid data or cannot start.
 */
#include "base/clock.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

static struct lagand_fixture r;

/* Reads and acknowledges chunks from `at` until DONE. Returns the number of resumes. */
static uint64_t
rest(struct dealer *c, uint64_t rid, uint32_t at, uint32_t max_tokens, uint64_t seed)
{
    uint32_t n = 0;

    for (;;) {
        const struct msg *m = receive(c, 8000);

        assert_int_equal(m->rid, rid);
        if (m->type == LAGAN_MSG_DONE) {
            assert_int_equal(at, max_tokens);
            return number(msg_get(&m->map, "outputs")->via.array.ptr, "resumed");
        }
        if (m->type != LAGAN_MSG_CHUNK) fail_msg("%s", text_of(&m->map, "message"));
        at = take_chunk(m, at, seed);
        n = (uint32_t)number(&m->map, "n");
        SEND(c, LAGAN_MSG_ACK, rid, { "n", n });
    }
}

static void
requests_of_a_dead_worker_continue_at_its_replacement(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "segv", NULL);
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 100, 1);
    assert_int_equal(rest(c, 1, 0, 100, 1), 1);
    submit(c, 2, 3, 2, 9); /* too short to crash another worker */
    assert_int_equal(rest(c, 2, 0, 2, 9), 0);
    assert_true(lagand_logged(&r, "died (signal): signal 11", 1000));
    /* A stray write is possible: weights are verified, and of KV only the memory is reused
     * (test_arenas.c). */
    assert_true(lagand_logged(&r, "adopted weights of epoch 1, verified", 2000));
    assert_true(lagand_logged(&r, "adopted kv of epoch 1", 2000));
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
no_resume_request_ends_with_worker_lost(void **state)
{
    const struct msg *m;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "segv", NULL);
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 100 }, { "seed", 1 },
         { "resume", FALSE_KEY });
    receive_type(c, LAGAN_MSG_ACCEPT, 2000);
    do m = receive(c, 5000);
    while (m->type == LAGAN_MSG_CHUNK);
    assert_int_equal(m->type, LAGAN_MSG_ERROR);
    assert_int_equal(number(&m->map, "code"), LAGAN_E_WORKER_LOST);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

/* One request crashes three workers. The others are suspects for a while and then continue. */
static void
request_that_crashes_workers_is_poisoned_and_others_finish(void **state)
{
    enum { OTHERS = 31, TOKENS = 60 };
    uint32_t at[OTHERS + 2] = { 0 }, n_done = 0;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "poison", NULL);
    c = dealer_open(&r, "api.sock");
    for (uint32_t i = 1; i <= OTHERS + 1; i++) {
        SEND(c, LAGAN_MSG_SUBMIT, i, { "ids", i == 5 ? FAKE_POISON : 3 }, { "max_tokens", TOKENS },
             { "seed", i }, { "ack_window", 256 });
    }
    while (n_done < OTHERS + 1) {
        const struct msg *m = receive(c, 10000);

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
    submit(c, 100, FAKE_POISON, 8, 1); /* the same prompt is poisoned */
    receive_error(c, 100, LAGAN_E_POISONED, "three workers died running this prompt", 2000);
    submit(c, 101, 3, 8, 1);
    rest(c, 101, 0, 8, 1);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
requests_of_a_dead_worker_continue_at_another_worker(void **state)
{
    enum { N = 8, TOKENS = 100 };
    const msgpack_object *w;
    uint32_t n = 0;
    pid_t victim;
    const struct msg *m;
    struct dealer *c, *ctl;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--set", "workers=2"));
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    do { /* READY=1 follows the first worker */
        poll(NULL, 0, ASK_MS);
        call(ctl, 1, "workers list", NULL, NULL);
        w = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result")->via.array.ptr;
    } while (strcmp(text_of(&w[0], "state"), "ready") || strcmp(text_of(&w[1], "state"), "ready"));
    victim = (pid_t)number(&w[0], "pid");
    for (uint64_t i = 1; i <= N; i++)
        SEND(c, LAGAN_MSG_SUBMIT, i, { "ids", 3 }, { "max_tokens", TOKENS }, { "seed", (int64_t)i },
             { "ack_window", 256 });
    for (uint32_t i = 0; i < N;) i += receive(c, 5000)->type == LAGAN_MSG_ACCEPT;
    kill(victim, SIGKILL);
    assert_true(lagand_logged(&r, "requeuing 4 requests", 5000));
    call(ctl, 2, "requests list", NULL, NULL);
    m = receive_type(ctl, LAGAN_MSG_REPLY, 2000);
    w = msg_get(&m->map, "result");
    for (uint32_t i = 0; i < w->via.array.size; i++)
        n += !strcmp(text_of(&w->via.array.ptr[i], "worker"), "w1");
    assert_int_equal(n, N); /* no prefill rate is known yet */
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
external_death_is_recognised_and_not_counted(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    for (uint32_t i = 1; i <= 5; i++) {
        const struct msg *m;
        const msgpack_object *w;

        do {
            poll(NULL, 0, ASK_MS);
            call(c, i, "workers list", NULL, NULL);
            m = receive_type(c, LAGAN_MSG_REPLY, 2000);
            w = msg_get(&m->map, "result")->via.array.ptr;
        } while (number(w, "restarts") != i - 1 || strcmp(text_of(w, "state"), "ready"));
        kill((pid_t)number(w, "pid"), SIGKILL);
    }
    assert_true(lagand_logged(&r, "died (killed): signal 9", 2000));
    assert_false(lagand_logged(&r, "restarting in", 0));
    assert_true(lagand_logged(&r, "adopted kv of epoch 5", 2000));
    assert_false(lagand_logged(&r, "verified", 0));
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static pid_t
pid_of_worker(struct dealer *c)
{
    call(c, 1000, "workers list", NULL, NULL);
    return (pid_t)number(
        msg_get(&receive_type(c, LAGAN_MSG_REPLY, 2000)->map, "result")->via.array.ptr, "pid");
}

/* A GPU driver takes 100 ms between the two. */
static void
closed_fd_channel_starts_a_standby_that_gets_arenas_later(void **state)
{
    struct dealer *c, *ctl;

    (void)state;
    lagand_begin(&r, "shut-fd-channel", ARGS("--supervisor.stall-timeout", "60s"));
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    submit(c, 1, 3, 4, 1); /* the fd channel is closed at the fourth token */
    assert_int_equal(rest(c, 1, 0, 4, 1), 0);
    assert_true(lagand_logged(&r, "fake: epoch 2 waits", 5000));
    assert_false(lagand_logged(&r, "adopted kv", 0));
    submit(c, 2, 3, 3, 1); /* the worker serves */
    assert_int_equal(rest(c, 2, 0, 3, 1), 0);
    kill(pid_of_worker(ctl), SIGKILL);
    assert_true(lagand_logged(&r, "died (killed): signal 9", 5000));
    assert_true(lagand_logged(&r, "the standby takes over", 5000));
    assert_true(lagand_logged(&r, "adopted kv of epoch 1", 5000));
    submit(c, 3, 3, 3, 1);
    assert_int_equal(rest(c, 3, 0, 3, 1), 0);
    assert_int_equal(lagand_n_workers(&r), 1); /* no second standby */
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Waits until the standby of the worker has that stage. */
static void
await_standby(struct dealer *ctl, const char *word)
{
    nsec until = clock_now() + 20 * NSEC_S;

    for (;;) {
        const msgpack_object *w;

        call(ctl, 1001, "workers list", NULL, NULL);
        w = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result")->via.array.ptr;
        assert_int_equal(number(w, "restarts"), 0);
        if (!strcmp(text_of(w, "standby"), word)) return;
        if (clock_now() > until) fail_msg("\"%s\", not \"%s\"", text_of(w, "standby"), word);
        poll(NULL, 0, ASK_MS);
    }
}

/* Its driver is up; it uses no memory of the device. */
static void
gpu_standby_prepares_when_the_fd_channel_closes(void **state)
{
    struct dealer *c, *ctl;

    (void)state;
    lagand_begin(&r, "shut-fd-channel",
                 ARGS("--device", "cuda", "--supervisor.stall-timeout", "60s"));
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    await_standby(ctl, "driver up");
    assert_false(lagand_logged(&r, "fake: epoch 2 begins", 0));
    assert_false(lagand_logged(&r, "adopted", 0)); /* no arena was sent to it */
    submit(c, 1, 3, 4, 1); /* the fd channel is closed at the fourth token */
    assert_int_equal(rest(c, 1, 0, 4, 1), 0);
    assert_true(lagand_logged(&r, "fake: epoch 2 begins", 5000));
    assert_true(lagand_logged(&r, "adopted weights of epoch 1", 5000));
    assert_false(lagand_logged(&r, "adopted kv", 0));
    await_standby(ctl, "standby");
    kill(pid_of_worker(ctl), SIGKILL);
    assert_true(lagand_logged(&r, "the standby takes over", 5000));
    assert_true(lagand_logged(&r, "adopted kv of epoch 1", 5000));
    submit(c, 3, 3, 3, 1);
    assert_int_equal(rest(c, 3, 0, 3, 1), 0);
    assert_true(lagand_logged(&r, "fake: epoch 3 waits", 5000));
    assert_false(lagand_logged(&r, "fake: epoch 3 begins", 0));
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
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

/* The end of a standby does not end the worker. A standby ends with its worker, so that no process
 * has the device open. */
static void
gpu_standby_is_replaced_and_ends_with_its_worker(void **state)
{
    struct dealer *c, *ctl;
    pid_t first;

    (void)state;
    lagand_begin(&r, "good", ARGS("--device", "cuda"));
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    await_standby(ctl, "driver up");
    first = pid_of_standby();
    kill(first, SIGKILL);
    assert_true(lagand_logged(&r, "no request is affected", 5000));
    assert_true(lagand_logged(&r, "fake: epoch 3 waits", 5000));
    await_standby(ctl, "driver up");
    assert_int_not_equal(pid_of_standby(), first);
    submit(c, 1, 3, 3, 1);
    assert_int_equal(rest(c, 1, 0, 3, 1), 0);
    call(ctl, 2, "restart", "worker", "w0");
    assert_int_equal(receive_type(ctl, LAGAN_MSG_REPLY, 2000)->rid, 2);
    assert_true(lagand_logged(&r, "fake: epoch 5 waits", 5000)); /* of the new program */
    assert_false(lagand_logged(&r, "takes over", 0));
    await_standby(ctl, "driver up");
    call(ctl, 3, "drain", "worker", "w0");
    assert_int_equal(receive_type(ctl, LAGAN_MSG_REPLY, 2000)->rid, 3);
    await_standby(ctl, "");
    lagand_await_workers(&r, 0); /* it ends before its worker */
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
worker_that_closes_its_fd_channel_without_exit_is_killed(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "shut-fd-channel", ARGS("--supervisor.stall-timeout", "300ms"));
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 4, 1);
    assert_int_equal(rest(c, 1, 0, 4, 1), 0);
    assert_true(lagand_logged(&r, "closed its fd channel but did not exit", 8000));
    assert_true(lagand_logged(&r, "died (corruption)", 5000));
    assert_true(lagand_logged(&r, "adopted weights of epoch 1, verified", 5000));
    submit(c, 2, 3, 3, 1);
    assert_int_equal(rest(c, 2, 0, 3, 1), 0);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
protocol_errors_end_worker_and_finally_the_request(void **state)
{
    static const struct {
        const char *mode, *words;
        uint32_t code; /* 0: the next worker continues it */
    } t[] = {
        { "bad-token", "token id 1000, but the vocabulary has 1000", LAGAN_E_POISONED },
        { "bad-row", "request 4000000", LAGAN_E_POISONED },
        { "bad-first", "first is 4, expected 3", LAGAN_E_POISONED },
        { "bad-text", "is not UTF-8", LAGAN_E_POISONED },
        { "bad-seq", "sequence", LAGAN_E_POISONED },
        { "bad-finish", "n_tokens is 9, expected 8", 0 },
        { "shut-doorbell", "closed its doorbell", 0 },
        { "storm", "signalled the doorbell", 0 },
        { "exit", "died (exited): exit status 3", 0 },
        { "check", "check(sky is blue) failed", 0 },
        { "bus", "died (signal): signal 7", 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        const struct msg *m;
        struct dealer *c;

        lagand_begin(&r, t[i].mode, NULL);
        c = dealer_open(&r, "api.sock");
        submit(c, 1, 3, 8, 1);
        do m = receive(c, 8000);
        while (m->type == LAGAN_MSG_CHUNK);
        if (t[i].code ? m->type != LAGAN_MSG_ERROR || number(&m->map, "code") != t[i].code
                      : m->type != LAGAN_MSG_DONE) {
            fail_msg("%s: type %u, %s", t[i].mode, m->type, text_of(&m->map, "message"));
        }
        if (!lagand_logged(&r, t[i].words, 1000)) fail_msg("%s: not '%s'", t[i].mode, t[i].words);
        dealer_close(c);
        assert_int_equal(lagand_stop(&r), 0);
        lagand_clean(&r);
    }
}

static void
worker_that_sends_invalid_arenas_never_becomes_ready(void **state)
{
    (void)state;
    lagand_start(&r, "bad-fd-channel", NULL);
    assert_true(lagand_logged(&r, "fd channel: the peer sent a malformed message", 3000));
    assert_true(lagand_logged(&r, "died (corruption)", 3000));
    kill(r.pid, SIGTERM);
    assert_true(lagand_wait(&r, 5000) >= 0);
}

static void
silent_worker_and_overdue_step_are_killed_in_time(void **state)
{
    static const struct {
        const char *mode, *words;
    } t[] = { { "hang", "died (silent): signal 9" },
              { "deaf", "died (silent): signal" }, /* 12, or 9 if a tick was late */
              { "overdue", "died (overdue): signal 9" } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        nsec began;
        struct dealer *c;

        lagand_begin(&r, t[i].mode, ARGS("--supervisor.stall-timeout", "800ms"));
        c = dealer_open(&r, "api.sock");
        submit(c, 1, 3, 8, 1);
        began = clock_now();
        assert_int_equal(rest(c, 1, 0, 8, 1), 1);
        assert_true(clock_now() - began < 10 * NSEC_S); /* 1 s on an idle machine */
        assert_true(lagand_logged(&r, t[i].words, 1000));
        dealer_close(c);
        assert_int_equal(lagand_stop(&r), 0);
        lagand_clean(&r);
    }
}

static void
worker_that_cannot_start_makes_lagand_exit_with_the_reason(void **state)
{
    (void)state;
    lagand_start(&r, "die-config", NULL);
    assert_int_equal(lagand_wait(&r, 5000), 78);
    assert_int_equal(lagand_count(&r, "kv.memory is not what it should be"), 1);
    assert_true(lagand_logged(&r, "worker w0: failed for good; it is started again only by", 0));
    assert_true(lagand_logged(&r, "no worker could be started; exiting with 78", 0));
    lagand_start(&r, "die-model", NULL);
    assert_int_equal(lagand_wait(&r, 8000), 78);
    assert_true(lagand_logged(&r, "config.json: no such file", 0));
    lagand_start(&r, "loading", ARGS("--supervisor.start-timeout", "150ms"));
    assert_int_equal(lagand_wait(&r, 8000), 69);
    assert_true(lagand_logged(&r, "failed for good", 0));
}

static void
worker_that_fails_to_start_once_is_restarted(void **state)
{
    (void)state;
    lagand_begin(&r, "die-once", NULL);
    assert_true(lagand_logged(&r, "died (start): exit status 70", 1000));
    assert_int_equal(lagand_stop(&r), 0);
}

/* SIGUSR2 from a lagand that has waited long for the first heartbeat: the worker has no handler
 * yet. */
static void
sigusr2_before_the_handler_does_not_kill_a_worker(void **state)
{
    (void)state;
    lagand_begin(&r, "asked-early", NULL);
    assert_false(lagand_logged(&r, "died (", 0));
    assert_int_equal(lagand_stop(&r), 0);
}

/* Number of the first or last line of the log with that text. */
static long
log_line(const char *words, bool last)
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

/* Events of dead workers have priority. While one worker died after the other, lagand checked no
 * heartbeat and read no client. */
static void
lagand_ticks_and_reads_clients_between_deaths_of_workers(void **state)
{
    enum { N = 16 };
    const msgpack_object *list;
    struct dealer *ctl;
    pid_t pid[N];

    (void)state;
    lagand_begin(&r, "good", ARGS("--set", "workers=16"));
    assert_true(lagand_notified(&r, "STATUS=16 of 16 workers ready", 5000));
    ctl = dealer_open(&r, "ctl.sock");
    call(ctl, 1, "workers list", NULL, NULL);
    list = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result");
    assert_int_equal(list->via.array.size, N);
    for (int i = 0; i < N; i++) pid[i] = (pid_t)number(list->via.array.ptr + i, "pid");
    kill(r.pid, SIGSTOP);
    call(ctl, 2, "reload", NULL, NULL);
    call(ctl, 3, "reload", NULL, NULL); /* refused, which is logged, when lagand reads it */
    poll(NULL, 0, 2000);                /* a tick may be this late */
    for (int i = 0; i < N; i++) kill(pid[i], SIGKILL);
    poll(NULL, 0, 100);
    kill(r.pid, SIGCONT);
    assert_true(lagand_logged(&r, "did not run for", 5000));
    for (int i = 0; i < N; i++) {
        char words[32];

        snprintf(words, sizeof words, "pid %d died (killed)", (int)pid[i]);
        assert_true(lagand_logged(&r, words, 5000));
    }
    assert_true(log_line("did not run for", false) < log_line("died (killed)", true));
    assert_true(log_line("reload refused: a reload", false) < log_line("died (killed)", true));
    assert_int_equal(lagand_stop(&r), 0);
}

static void
killed_lagand_leaves_no_worker_and_the_next_starts(void **state)
{
    (void)state;
    lagand_begin(&r, "good", NULL);
    assert_int_equal(lagand_n_workers(&r), 1);
    kill(r.pid, SIGKILL);
    assert_int_equal(lagand_wait(&r, 2000), 256 + SIGKILL);
    lagand_await_workers(&r, 0);
    lagand_begin(&r, "good", ARGS("--remove-runtime-dir"));
    assert_int_equal(lagand_stop(&r), 0);
}

/* Makes a cgroup of version 2 with a limit of 64 MiB, as files of a new directory. */
static const char *
fake_cgroup(void)
{
    static const char *const files[][2] = { { "cgroup.controllers", "memory\n" },
                                            { "memory.max", "67108864\n" },
                                            { "memory.current", "0\n" },
                                            { "memory.events", "oom_kill 0\n" } };
    static char root[64];

    strcpy(root, "/tmp/lagand-cgroup-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char path[128];
        FILE *f;

        snprintf(path, sizeof path, "%s/%s", root, files[i][0]);
        f = fopen(path, "w");
        assert_non_null(f);
        fputs(files[i][1], f);
        fclose(f);
    }
    return root;
}

static void
remove_cgroup(const char *root)
{
    char command[96];

    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

/* Returns the exit code of laganctl status. */
static int
status_code(void)
{
    char ctl[600], command[800];

    test_program(ctl, sizeof ctl, "laganctl");
    snprintf(command, sizeof command, "%s --connect ipc://%s/api.sock status", ctl, r.run);
    return WEXITSTATUS(system(command));
}

static void
oom_kills_back_off_lower_the_kv_and_degrade_the_status(void **state)
{
    const char *root = fake_cgroup();
    const msgpack_object *w;
    const struct msg *m;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "oom", ARGS("--cgroup-root", root));
    assert_int_equal(status_code(), 0);
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 8, 1); /* 4 processes generate 2 tokens each */
    assert_int_equal(rest(c, 1, 0, 8, 1), 3);
    assert_true(lagand_logged(&r, "died (oom)", 1000));
    assert_true(lagand_logged(&r, "adopted kv of epoch 1", 1000)); /* after the first kill */
    assert_true(lagand_logged(&r, "restarting in", 1000));
    assert_true(lagand_logged(&r, "fake: at most 2048 bytes of KV", 1000)); /* after the second */
    lagand_await_workers(&r, 1);
    call(c, 2, "workers list", NULL, NULL);
    m = receive_type(c, LAGAN_MSG_REPLY, 2000);
    w = msg_get(&m->map, "result")->via.array.ptr;
    assert_int_equal(number(w, "restarts"), 4);
    assert_non_null(strstr(text_of(w, "why"), "out of memory: cgroup / has 64.0 MiB"));
    assert_non_null(strstr(text_of(w, "why"), "laganctl restart w0"));
    assert_int_equal(status_code(), 7);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
    remove_cgroup(root);
}

static void
kv_limit_after_oom_kills_outlives_lagand_until_a_restart_of_the_worker(void **state)
{
    const char *root = fake_cgroup();
    struct dealer *c;
    int n;

    (void)state;
    lagand_begin(&r, "oom", ARGS("--cgroup-root", root));
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 4, 1); /* 2 processes generate 2 tokens each */
    assert_int_equal(rest(c, 1, 0, 4, 1), 1);
    dealer_close(c);
    assert_true(lagand_logged(&r, "fake: at most 2048 bytes of KV", 1000));
    lagand_await_workers(&r, 1);
    assert_int_equal(systemd_stored(&r.systemd, "w0.kv_limit"), 1);
    for (int i = 0; i < 2; i++) {
        n = lagand_count(&r, "fake: at most 2048 bytes of KV");
        systemd_clear_notices(&r.systemd);
        if (i == 0) {
            c = dealer_open(&r, "ctl.sock");
            call(c, 1, "daemon reexec", NULL, NULL);
            receive_type(c, LAGAN_MSG_REPLY, 2000);
            assert_true(lagand_notified(&r, "RELOADING=1", 2000));
            dealer_close(c);
        } else {
            lagand_crash(&r, "oom", ARGS("--cgroup-root", root, "--remove-runtime-dir"));
        }
        lagand_ready(&r);
        assert_int_equal(lagand_count(&r, "fake: at most 2048 bytes of KV"), n + 1);
        assert_int_equal(status_code(), 7);
    }
    c = dealer_open(&r, "ctl.sock");
    call(c, 1, "restart", "worker", "w0");
    receive_type(c, LAGAN_MSG_REPLY, 2000);
    for (int i = 0; i < 100 && status_code() != 0; i++) poll(NULL, 0, 50);
    assert_int_equal(status_code(), 0);
    assert_int_equal(lagand_count(&r, "fake: at most 2048 bytes of KV"), n + 1);
    assert_int_equal(systemd_stored(&r.systemd, "w0.kv_limit"), 0);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
    remove_cgroup(root);
}

static void
oom_kills_while_loading_end_requests_with_out_of_memory(void **state)
{
    const char *root = fake_cgroup();
    const struct msg *m;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "oom-restart", ARGS("--cgroup-root", root));
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 100, 1);
    do m = receive(c, 10000);
    while (m->type == LAGAN_MSG_CHUNK);
    assert_int_equal(m->type, LAGAN_MSG_ERROR);
    assert_int_equal(number(&m->map, "code"), LAGAN_E_OUT_OF_MEMORY);
    assert_non_null(strstr(text_of(&m->map, "message"), "cgroup / has 64.0 MiB"));
    assert_true(lagand_logged(&r, "loading 1.0 of 2.0 MiB of weights, kv.memory auto", 1000));
    assert_true(lagand_logged(&r, "failed for good", 1000));
    assert_int_equal(status_code(), 7);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
    remove_cgroup(root);
}

static void
drain_ends_after_supervisor_shutdown_timeout(void **state)
{
    nsec since = clock_now();
    struct dealer *c, *ctl;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--supervisor.shutdown-timeout", "100ms"));
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    submit(c, 1, 3, 10000, 1); /* takes minutes */
    call(ctl, 1, "restart", "worker", "w0");
    receive_type(ctl, LAGAN_MSG_REPLY, 2000);
    assert_true(lagand_logged(&r, "stopped on request", 5000));
    assert_true(clock_now() - since < 20 * NSEC_S); /* the default is 30 s */
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        lagand_test(requests_of_a_dead_worker_continue_at_its_replacement),
        lagand_test(no_resume_request_ends_with_worker_lost),
        lagand_test(request_that_crashes_workers_is_poisoned_and_others_finish),
        lagand_test(requests_of_a_dead_worker_continue_at_another_worker),
        lagand_test(external_death_is_recognised_and_not_counted),
        lagand_test(closed_fd_channel_starts_a_standby_that_gets_arenas_later),
        lagand_test(gpu_standby_prepares_when_the_fd_channel_closes),
        lagand_test(gpu_standby_is_replaced_and_ends_with_its_worker),
        lagand_test(worker_that_closes_its_fd_channel_without_exit_is_killed),
        lagand_test(protocol_errors_end_worker_and_finally_the_request),
        lagand_test(worker_that_sends_invalid_arenas_never_becomes_ready),
        lagand_test(silent_worker_and_overdue_step_are_killed_in_time),
        lagand_test(worker_that_cannot_start_makes_lagand_exit_with_the_reason),
        lagand_test(worker_that_fails_to_start_once_is_restarted),
        lagand_test(sigusr2_before_the_handler_does_not_kill_a_worker),
        lagand_test(lagand_ticks_and_reads_clients_between_deaths_of_workers),
        lagand_test(killed_lagand_leaves_no_worker_and_the_next_starts),
        lagand_test(oom_kills_back_off_lower_the_kv_and_degrade_the_status),
        lagand_test(kv_limit_after_oom_kills_outlives_lagand_until_a_restart_of_the_worker),
        lagand_test(oom_kills_while_loading_end_requests_with_out_of_memory),
        lagand_test(drain_ends_after_supervisor_shutdown_timeout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
