/* test_resume.c - tests of requests that continue on another connection or another lagand. */
#include "client/client.h"
#include "tests/client/client_fixture.h"
#include "tests/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t
ask(struct lagan *c, const char *text, bool resume)
{
    struct lagan_request *r = lagan_request_new();
    uint64_t id = 0;

    assert_int_equal(lagan_set_str(r, "text", text, strlen(text)), 0);
    assert_int_equal(lagan_set_int(r, "max_tokens", 100000), 0);
    if (!strcmp(text, "prompt")) assert_int_equal(lagan_set_int(r, "prompt_logprobs", 0), 0);
    if (!resume) assert_int_equal(lagan_set_bool(r, "resume", 0), 0);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    return id;
}

enum { N = 3, TOKENS = 1000 };

/* Reads events of N streams of TOKENS until n events were read or all streams are done; checks each
 * index. */
static void
take(struct lagan *c, uint32_t *at, uint32_t *n_done, uint32_t n)
{
    while (n-- > 0 && *n_done < N) {
        struct lagan_event ev = { sizeof ev };
        int r = lagan_next(c, &ev, mock.pid ? 30000 : 0);

        if (r == 0 && !mock.pid) return;
        if (r != 1) fail_msg("%d instead of an event: %s", r, lagan_errmsg(c));
        if (ev.kind == LAGAN_EVENT_OUTPUT) continue;
        if (ev.kind == LAGAN_EVENT_DONE) {
            assert_int_equal(at[ev.id % N], TOKENS);
            ++*n_done;
            continue;
        }
        if (ev.kind != LAGAN_EVENT_TOKENS) fail_msg("event %d: %s", ev.kind, ev.message);
        assert_int_equal(ev.first, at[ev.id % N]);
        assert_int_equal(ev.text_len, ev.n_ids);
        at[ev.id % N] += ev.n_ids;
    }
}

static void
streams_resume_after_a_lagand_restart_without_duplicates(void **state)
{
    struct lagan *c = connect_mock();
    uint32_t at[N] = { 0 }, n_done = 0;

    (void)state;
    for (int i = 0; i < N; i++) ask(c, "many 1000", true);
    for (uint32_t i = 0; i < 8; i++) {
        take(c, at, &n_done, 50 + 61 * i);
        mock_kill(&mock);
        take(c, at, &n_done, i); /* events received already may be read */
        mock_start(&mock, "1");
    }
    take(c, at, &n_done, UINT32_MAX);
    assert_int_equal(n_done, N);
    assert_int_equal(c->n_requests, 0);
    lagan_close(c);
}

static void
requests_resume_after_a_reconnect(void **state)
{
    struct lagan *c = connect_mock();
    uint64_t id = ask(c, "many 300", true);
    struct lagan_event ev;
    uint32_t at;

    (void)state;
    for (at = 0; at < 20; at++) assert_int_equal(next(c, LAGAN_EVENT_TOKENS).first, at);
    kill(mock.pid, SIGSTOP);
    c->sent -= 3 * NSEC_S;
    while (!c->ping_at) at += (uint32_t)lagan_next(c, &(struct lagan_event){ sizeof ev }, 20);
    c->ping_at -= 9 * NSEC_S;
    while (c->welcome) at += (uint32_t)lagan_next(c, &(struct lagan_event){ sizeof ev }, 20);
    assert_int_equal(c->n_breaks, 1);
    kill(mock.pid, SIGCONT);
    for (; at < 300; at++) {
        ev = next(c, LAGAN_EVENT_TOKENS);
        assert_int_equal(ev.id, id);
        assert_int_equal(ev.first, at);
    }
    assert_int_equal(client_find(c, id)->n_tries, 0); /* resumed, not submitted again */
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    lagan_close(c);
}

/* The caller passes an empty generated_ids. */
static void
empty_generated_ids_are_sent_once(void **state)
{
    struct lagan_request *r = lagan_request_new();
    struct lagan *c = connect_mock();
    uint64_t id;

    (void)state;
    lagan_set_str(r, "text", "many 300", 8);
    lagan_set_int(r, "max_tokens", 300);
    lagan_set_ids(r, "generated_ids", NULL, 0);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    for (uint32_t at = 0; at < 300; at++) {
        assert_int_equal(next(c, LAGAN_EVENT_TOKENS).first, at);
        if (at != 20) continue;
        mock_kill(&mock);
        mock_start(&mock, "1");
    }
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    lagan_close(c);
}

/* The process has all its descriptors in use for a moment. */
static void
failed_connect_is_retried(void **state)
{
    struct lagan *c = connect_mock();
    uint32_t at[N] = { 0 }, n_done = N - 1;
    struct lagan_event ev = { sizeof ev };
    nsec until;
    struct rlimit was, none;

    (void)state;
    ask(c, "many 1000", true);
    take(c, at, &n_done, 20);
    mock_kill(&mock);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = STDERR_FILENO + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (until = clock_now() + 300 * NSEC_MS; clock_now() < until;)
        if (lagan_next(c, &ev, 20) == 1 && ev.kind == LAGAN_EVENT_TOKENS)
            at[ev.id % N] += ev.n_ids;
        else if (ev.kind == LAGAN_EVENT_ERROR)
            fail_msg("%s", ev.message);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    mock_start(&mock, "1");
    take(c, at, &n_done, UINT32_MAX);
    lagan_close(c);
}

static void
complete_output_ends_without_lagand(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev;
    uint64_t id = ask(c, "last", true);

    (void)state;
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).n_ids, 2);
    mock_kill(&mock);
    mock_start(&mock, "1");
    ev = next(c, LAGAN_EVENT_OUTPUT);
    assert_string_equal(ev.reason_name, "stop");
    assert_int_equal(ev.n_tokens, 2);
    assert_int_equal(ev.seed, 5);
    assert_int_equal(next(c, LAGAN_EVENT_DONE).id, id);
    lagan_close(c);
}

static void
invalid_end_of_output_is_a_protocol_error(void **state)
{
    struct lagan *c = connect_mock();
    uint64_t id = ask(c, "deep", true);

    (void)state;
    next(c, LAGAN_EVENT_TOKENS);
    mock_kill(&mock);
    mock_start(&mock, "1");
    assert_int_equal(next(c, LAGAN_EVENT_ERROR).id, id);
    next(c, LAGAN_EVENT_DISCONNECTED);
    lagan_close(c);
}

static void
queue_full_after_a_restart_is_retried(void **state)
{
    struct lagan *c = connect_mock();
    uint32_t at[N] = { 0 }, n_done = 0;

    (void)state;
    for (int i = 0; i < N; i++) ask(c, "many 1000", true);
    take(c, at, &n_done, 90);
    mock_kill(&mock);
    mock.refusals = "5";
    mock_start(&mock, "1");
    take(c, at, &n_done, UINT32_MAX);
    assert_int_equal(n_done, N);
    lagan_close(c);
}

static void
reconnect_timeout_limits_the_wait_for_a_worker(void **state)
{
    struct lagan *c = connect_mock();
    uint32_t at[N] = { 0 }, n_done = N - 1;
    struct lagan_event ev = { sizeof ev };
    nsec until = clock_now() + 20 * NSEC_S;
    uint64_t id = ask(c, "many 1000", true);

    (void)state;
    take(c, at, &n_done, 20);
    lagan_set_reconnect_timeout(c, 500);
    mock_kill(&mock);
    mock.refusals = "-1";
    mock_start(&mock, "1");
    do {
        assert_true(clock_now() < until);
        assert_in_range(lagan_next(c, &ev, 100), 0, 1);
    } while (ev.kind != LAGAN_EVENT_ERROR);
    assert_int_equal(ev.id, id);
    assert_string_equal(ev.reason_name, "draining");
    assert_int_equal(c->n_requests, 0);
    assert_true(c->welcome);
    lagan_close(c);
}

static void
request_waiting_for_a_retry_can_be_cancelled(void **state)
{
    struct lagan *c = connect_mock();
    uint32_t at[N] = { 0 }, n_done = N - 1;
    struct lagan_event ev = { sizeof ev };
    uint64_t id = ask(c, "many 1000", true);

    (void)state;
    take(c, at, &n_done, 20);
    mock_kill(&mock);
    while (lagan_next(c, &ev, 0) == 1 || c->welcome) continue; /* all that were received */
    mock.refusals = "-1";
    mock_start(&mock, "1");
    while (!client_find(c, id)->retry_at) assert_int_equal(lagan_next(c, &ev, 10), 0);
    assert_int_equal(lagan_cancel(c, id), 0);
    ev = next(c, LAGAN_EVENT_ERROR);
    assert_int_equal(ev.id, id);
    assert_string_equal(ev.reason_name, "cancelled");
    assert_int_equal(lagan_next(c, &ev, 200), 0);
    lagan_close(c);
}

static void
request_without_resume_ends_with_worker_lost(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev;
    uint64_t id = ask(c, "hang", false);

    (void)state;
    ev.size = sizeof ev;
    assert_int_equal(lagan_next(c, &ev, 50), 0);
    mock_kill(&mock);
    mock_start(&mock, "1");
    ev = next(c, LAGAN_EVENT_ERROR);
    assert_int_equal(ev.id, id);
    assert_string_equal(ev.reason_name, "worker_lost");
    assert_int_equal(ev.retryable, 1);
    ask(c, "echo x", true);
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0],
                     'x'); /* not DISCONNECTED: there is a connection */
    lagan_close(c);
}

static void
cancel_and_submit_while_disconnected_take_effect_later(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    uint64_t hangs = ask(c, "hang", true), id;
    unsigned n[16] = { 0 };

    (void)state;
    assert_int_equal(lagan_next(c, &ev, 50), 0);
    mock_kill(&mock);
    while (c->welcome) lagan_next(c, &ev, 10);
    assert_int_equal(lagan_cancel(c, hangs), 0);
    id = ask(c, "echo x", true);
    mock_start(&mock, "1");
    for (int i = 0; i < 4; i++) { /* in any order */
        ev.size = sizeof ev;
        assert_int_equal(lagan_next(c, &ev, 30000), 1);
        n[ev.kind]++;
        if (ev.kind == LAGAN_EVENT_ERROR) assert_string_equal(ev.reason_name, "cancelled");
        assert_int_equal(ev.id, ev.kind == LAGAN_EVENT_ERROR ? hangs : id);
    }
    assert_int_equal(n[LAGAN_EVENT_ERROR], 1);
    assert_int_equal(n[LAGAN_EVENT_DONE], 1);
    ev.size = sizeof ev;
    assert_int_equal(lagan_next(c, &ev, 50), 0);
    lagan_close(c);
}

static void
prompt_log_probabilities_arrive_once(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev;

    (void)state;
    ask(c, "prompt", true);
    assert_int_equal(next(c, LAGAN_EVENT_PROMPT).first, 0);
    assert_int_equal(next(c, LAGAN_EVENT_PROMPT).first, 1);
    mock_kill(&mock);
    mock.refusals = "1"; /* this mock has three prompt positions */
    mock_start(&mock, "1");
    ev = next(c, LAGAN_EVENT_PROMPT);
    assert_int_equal(ev.first, 2);
    assert_int_equal(ev.n_ids, 1);
    assert_true(ev.logprob[0] == -2.0f);
    lagan_close(c);
}

static void
descriptor_stays_the_same_over_connections(void **state)
{
    struct lagan *c = connect_mock();
    int fd = lagan_fd(c);
    uint32_t at[N] = { 0 }, n_done = 0;

    (void)state;
    for (int i = 0; i < N; i++) ask(c, "many 1000", true);
    take(c, at, &n_done, 40);
    mock_kill(&mock);
    mock_start(&mock, "1");
    while (n_done < N) {
        struct timeval five = { 5, 0 };
        fd_set set;

        FD_ZERO(&set);
        FD_SET(fd, &set);
        assert_int_equal(select(fd + 1, &set, NULL, NULL, &five), 1);
        for (;;) {
            struct lagan_event ev = { sizeof ev };

            if (lagan_next(c, &ev, 0) != 1) break;
            if (ev.kind == LAGAN_EVENT_TOKENS) assert_int_equal(ev.first, at[ev.id % N]++);
            n_done += ev.kind == LAGAN_EVENT_DONE;
        }
    }
    assert_int_equal(lagan_fd(c), fd);
    lagan_close(c);
}

/* Calls lagan_next() until lagan_connected() has this value. */
static void
await_connected(struct lagan *c, int connected)
{
    struct lagan_event ev = { sizeof ev };
    nsec until = clock_now() + 30 * NSEC_S;

    while (lagan_connected(c) != connected) {
        assert_true(clock_now() < until);
        lagan_next(c, &ev, 10);
    }
}

static void
connected_is_false_while_lagand_is_away(void **state)
{
    struct lagan *c = connect_mock();

    (void)state;
    assert_int_equal(lagan_connected(c), 1);
    mock_kill(&mock);
    await_connected(c, 0);
    mock_start(&mock, "1");
    await_connected(c, 1);
    lagan_close(c);
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(streams_resume_after_a_lagand_restart_without_duplicates),
        T(requests_resume_after_a_reconnect),
        T(empty_generated_ids_are_sent_once),
        T(failed_connect_is_retried),
        T(complete_output_ends_without_lagand),
        T(invalid_end_of_output_is_a_protocol_error),
        T(queue_full_after_a_restart_is_retried),
        T(reconnect_timeout_limits_the_wait_for_a_worker),
        T(request_waiting_for_a_retry_can_be_cancelled),
        T(request_without_resume_ends_with_worker_lost),
        T(cancel_and_submit_while_disconnected_take_effect_later),
        T(prompt_log_probabilities_arrive_once),
        T(descriptor_stays_the_same_over_connections),
        T(connected_is_false_while_lagand_is_away),
    };

    return cmocka_run_group_tests_name("resume", tests, NULL, NULL);
}
