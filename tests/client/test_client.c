/* test_client.c - tests of lagan.h against mock_lagand. */
#include "client/client.h"
#include "tests/client/client_fixture.h"
#include "tests/test.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void
tokens_arrive_in_order_with_their_indices(void **state)
{
    struct lagan *c = connect_mock();
    uint64_t id = submit_text(c, "echo hello");
    struct lagan_event ev;
    uint32_t i;

    (void)state;
    for (i = 0; i < 5; i++) {
        ev = next(c, LAGAN_EVENT_TOKENS);
        assert_int_equal(ev.id, id);
        assert_int_equal(ev.first, i);
        assert_int_equal(ev.n_ids, 1);
        assert_int_equal(ev.ids[0], "hello"[i]);
        assert_int_equal(ev.text_len, 1);
        assert_int_equal(ev.text[0], "hello"[i]);
        assert_null(ev.logprob);
    }
    ev = next(c, LAGAN_EVENT_OUTPUT);
    assert_string_equal(ev.reason_name, "eos");
    assert_int_equal(ev.n_tokens, 5);
    assert_int_equal(ev.seed, 99);
    assert_int_equal(ev.cached, 3);
    assert_int_equal(ev.n_prompt_tokens, 4);
    assert_true(ev.score == -0.5f);
    assert_int_equal(next(c, LAGAN_EVENT_DONE).id, id);
    ev.size = sizeof ev;
    assert_int_equal(lagan_next(c, &ev, 0), 0);
    lagan_close(c);
}

static void
stream_longer_than_the_ack_window_continues_while_read(void **state)
{
    struct lagan *c = connect_mock();
    uint32_t i;

    (void)state;
    submit_text(c, "many 1000");
    for (i = 0; i < 1000; i++) assert_int_equal(next(c, LAGAN_EVENT_TOKENS).first, i);
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    lagan_close(c);
}

static void
few_chunks_are_acknowledged_within_1_second(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };

    (void)state;
    submit_text(c, "late 45"); /* one chunk */
    next(c, LAGAN_EVENT_TOKENS);
    assert_true(c->ack_at && c->ack_at <= clock_now() + NSEC_S);
    c->requests[0].taken = 2; /* as if another chunk had arrived */
    c->ack_at = clock_now() - 1;
    client_lose(c, LAGAN_E_INTERNAL, "over"); /* the request exists until its ERROR is read */
    client_ack(c, /* all= */ true);
    assert_int_equal(c->requests[0].acked, 2);
    assert_int_equal(c->ack_at, 0);
    assert_int_equal(lagan_next(c, &ev, 100), 1);
    lagan_close(c);
}

static void
log_probabilities_arrive_with_their_tokens_and_the_prompts_first(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_request *r = lagan_request_new();
    struct lagan_event ev;
    uint64_t id;

    (void)state;
    lagan_set_str(r, "text", "logprobs", 8);
    lagan_set_int(r, "prompt_logprobs", 0);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    ev = next(c, LAGAN_EVENT_PROMPT);
    assert_int_equal(ev.n_ids, 3);
    assert_null(ev.ids);
    assert_true(ev.logprob[1] == -2.0f);
    ev = next(c, LAGAN_EVENT_TOKENS);
    assert_int_equal(ev.n_ids, 2);
    assert_int_equal(ev.n_top, 2);
    assert_true(ev.logprob[1] == -1.5f);
    assert_int_equal(ev.top[2].id, 'j');
    assert_true(ev.top[3].logprob == -1.5f);
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    lagan_close(c);
}

static void
output_event_has_the_stop_string_or_the_stop_id(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev;

    (void)state;
    submit_text(c, "stop END");
    ev = next(c, LAGAN_EVENT_OUTPUT);
    assert_int_equal(ev.reason, LAGAN_FINISH_STOP);
    assert_int_equal(ev.stop_len, 3);
    assert_memory_equal(ev.stop, "END", 3);
    assert_int_equal(ev.stop_id, -1);
    next(c, LAGAN_EVENT_DONE);
    submit_text(c, "stop 7");
    ev = next(c, LAGAN_EVENT_OUTPUT);
    assert_null(ev.stop);
    assert_int_equal(ev.stop_id, 7);
    next(c, LAGAN_EVENT_DONE);
    submit_text(c, "echo a");
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).stop_id, 0);
    ev = next(c, LAGAN_EVENT_OUTPUT);
    assert_null(ev.stop);
    assert_int_equal(ev.stop_id, -1);
    lagan_close(c);
}

static void
events_of_a_request_have_the_time_of_its_accept(void **state)
{
    struct lagan *c = connect_mock();
    uint64_t at;

    (void)state;
    submit_text(c, "echo a");
    at = next(c, LAGAN_EVENT_TOKENS).accepted_at;
    assert_true(at >= 1764000000); /* the mock counts from there */
    assert_int_equal(next(c, LAGAN_EVENT_OUTPUT).accepted_at, at);
    assert_int_equal(next(c, LAGAN_EVENT_DONE).accepted_at, at);
    submit_text(c, "error 45");
    assert_int_equal(next(c, LAGAN_EVENT_ERROR).accepted_at, at + 1);
    lagan_close(c);
}

static void
too_long_error_has_the_length_of_prompt_and_model(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev;

    (void)state;
    submit_text(c, "long");
    ev = next(c, LAGAN_EVENT_ERROR);
    assert_int_equal(ev.reason, LAGAN_E_TOO_LONG);
    assert_int_equal(ev.n_prompt_tokens, 5000);
    assert_int_equal(ev.max_len, 4096);
    lagan_close(c);
}

static void
features_are_those_of_the_last_welcome(void **state)
{
    struct lagan *c;

    (void)state;
    assert_int_equal(lagan_open(&c, "ipc:///nowhere/api.sock", 0), 0);
    assert_int_equal(lagan_has_feature(c, "fit"), -ENOTCONN);
    lagan_close(c);
    c = connect_mock();
    assert_int_equal(lagan_has_feature(c, "fit"), 1);
    assert_int_equal(lagan_has_feature(c, "request_id"), 1);
    assert_int_equal(lagan_has_feature(c, "request"), 0);
    assert_int_equal(lagan_has_feature(c, ""), 0);
    lagan_close(c);
}

/* The mock sends as many chunks as the window allows. */
static void
held_request_is_not_acknowledged_until_it_is_released(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    uint64_t id = submit_text(c, "many 1000");
    uint32_t n = 0;

    (void)state;
    assert_int_equal(lagan_ack_hold(c, id + 1, 1), -ENOENT);
    assert_int_equal(lagan_ack_hold(c, id, 1), 0);
    for (; n < LAGAN_DEFAULT_ACK_WINDOW; n++)
        assert_int_equal(next(c, LAGAN_EVENT_TOKENS).first, n);
    assert_int_equal(lagan_next(c, &ev, 700), 0); /* longer than CLIENT_ACK_AFTER */
    assert_int_equal(lagan_ack_hold(c, id, 0), 0);
    for (; n < 1000; n++) assert_int_equal(next(c, LAGAN_EVENT_TOKENS).first, n);
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    lagan_close(c);
}

static void
error_is_the_last_event_with_name_and_sentence(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev;

    (void)state;
    submit_text(c, "error 34");
    ev = next(c, LAGAN_EVENT_ERROR);
    assert_string_equal(ev.reason_name, "queue_full");
    assert_string_equal(ev.message, "as the test wished");
    assert_int_equal(ev.retryable, 1);
    submit_text(c, "late 33");
    next(c, LAGAN_EVENT_TOKENS);
    ev = next(c, LAGAN_EVENT_ERROR);
    assert_string_equal(ev.reason_name, "too_long");
    assert_int_equal(ev.retryable, 0);
    ev.size = sizeof ev;
    assert_int_equal(lagan_next(c, &ev, 20), 0);
    lagan_close(c);
}

static void
each_of_many_requests_ends_once(void **state)
{
    enum { N = 100 };
    struct lagan *c = connect_mock();
    uint32_t tokens[N + 1] = { 0 }, ends[N + 1] = { 0 }, open = N, i;

    (void)state;
    for (i = 0; i < N; i++) assert_int_equal(submit_text(c, i % 3 ? "many 40" : "error 35"), i + 1);
    while (open) {
        struct lagan_event ev = { sizeof ev };

        assert_int_equal(lagan_next(c, &ev, 30000), 1);
        assert_in_range(ev.id, 1, N);
        assert_int_equal(ends[ev.id], 0);
        if (ev.kind == LAGAN_EVENT_TOKENS) assert_int_equal(ev.first, tokens[ev.id]++);
        if (ev.kind == LAGAN_EVENT_DONE || ev.kind == LAGAN_EVENT_ERROR) ends[ev.id]++, open--;
    }
    for (i = 0; i < N; i++) assert_int_equal(tokens[i + 1], i % 3 ? 40 : 0);
    lagan_close(c);
}

static void
cancelled_request_ends_with_error_cancelled(void **state)
{
    struct lagan *c = connect_mock();
    uint64_t id = submit_text(c, "hang");
    struct lagan_event ev = { sizeof ev };

    (void)state;
    assert_int_equal(lagan_next(c, &ev, 50), 0);
    assert_int_equal(lagan_cancel(c, id), 0);
    assert_string_equal(next(c, LAGAN_EVENT_ERROR).reason_name, "cancelled");
    assert_int_equal(lagan_cancel(c, id), -ENOENT);
    assert_non_null(strstr(lagan_errmsg(c), "not open"));
    lagan_close(c);
}

static void
request_may_be_submitted_before_lagand_starts(void **state)
{
    struct mock later;
    struct lagan *c;
    uint64_t id;

    (void)state;
    mock_dir(&later);
    assert_int_equal(lagan_open(&c, later.endpoint, 0), 0);
    id = submit_text(c, "echo x");
    mock_start(&later, "1");
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).id, id);
    lagan_close(c);
    mock_done(&later);
}

static void
missing_lagand_is_a_timeout_with_a_sentence(void **state)
{
    struct lagan *c = NULL;
    char longer[400];

    (void)state;
    assert_int_equal(lagan_open(&c, "ipc:///tmp/lagan-no-such/api.sock", 30), -ETIMEDOUT);
    assert_non_null(
        strstr(lagan_errmsg(NULL), "/tmp/lagan-no-such/api.sock sent no WELCOME within 30 ms"));
    memset(longer, 'a', sizeof longer);
    memcpy(longer, "ipc:///", 7);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(lagan_open(&c, longer, 30), -ENAMETOOLONG);
    longer[200] = '\0'; /* fits the library, but not a socket address */
    assert_true(lagan_open(&c, longer, 30) < 0);
    assert_int_equal(lagan_open(&c, "tcp://127.0.0.1:1", 30), -EINVAL); /* needs keys */
    assert_null(c);
}

static void
other_forms_of_an_endpoint_are_refused_with_the_right_one(void **state)
{
    static const char *const forms[][2] = {
        { "/run/lagan/api.sock", "is ipc:///run/lagan/api.sock" },
        { "127.0.0.1:7770", "expected tcp://127.0.0.1:7770" },
        { "http://127.0.0.1:7770", "lagand does not speak HTTP" },
        { "tcp://127.0.0.1", "has no port; expected tcp://HOST:PORT" },
        { "api.sock", "expected ipc://PATH or tcp://HOST:PORT" },
        { "ipc://", "expected ipc://PATH or tcp://HOST:PORT" },
        { "", "expected ipc://PATH or tcp://HOST:PORT" },
    };
    struct lagan *c = NULL;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        assert_int_equal(lagan_open(&c, forms[i][0], 1000), -EPROTONOSUPPORT);
        if (!strstr(lagan_errmsg(NULL), forms[i][1])) fail_msg("%s", lagan_errmsg(NULL));
    }
}

static void
unsupported_protocol_error_names_both_versions(void **state)
{
    struct mock other;
    struct lagan *c = NULL;

    (void)state;
    mock_dir(&other);
    mock_start(&other, "2");
    assert_int_equal(lagan_open(&c, other.endpoint, 5000), -EPROTO);
    assert_non_null(strstr(lagan_errmsg(NULL), "uses protocol version 2, this library version 1"));
    mock_done(&other);
}

static void
reconnect_timeout_fails_each_request_then_reports_disconnected(void **state)
{
    struct mock own;
    struct lagan *c;
    uint64_t a, b;
    struct lagan_event ev;

    (void)state;
    mock_dir(&own);
    mock_start(&own, "1");
    assert_int_equal(lagan_open(&c, own.endpoint, 30000), 0);
    submit_text(c, "echo x");
    next(c, LAGAN_EVENT_TOKENS), next(c, LAGAN_EVENT_OUTPUT), next(c, LAGAN_EVENT_DONE);
    a = submit_text(c, "hang");
    b = submit_text(c, "hang");
    ev.size = sizeof ev;
    assert_int_equal(lagan_next(c, &ev, 50), 0);
    lagan_set_reconnect_timeout(c, 200);
    mock_kill(&own);
    ev = next(c, LAGAN_EVENT_ERROR);
    assert_int_equal(ev.id, a);
    assert_string_equal(ev.reason_name, "internal");
    assert_int_equal(ev.retryable, 1);
    assert_int_equal(next(c, LAGAN_EVENT_ERROR).id, b);
    assert_non_null(strstr(next(c, LAGAN_EVENT_DISCONNECTED).message, "closed the connection"));

    /* The next lagand is found without a call. */
    mock_start(&own, "1");
    a = submit_text(c, "echo y");
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).id, a);
    lagan_close(c);
    mock_done(&own);
}

static void
silent_lagand_is_pinged_and_then_disconnected(void **state)
{
    struct mock own;
    struct lagan *c;
    uint64_t id;
    struct lagan_event ev = { sizeof ev };

    (void)state;
    mock_dir(&own);
    mock_start(&own, "1");
    assert_int_equal(lagan_open(&c, own.endpoint, 30000), 0);
    id = submit_text(c, "hang");
    assert_int_equal(lagan_next(c, &ev, 50), 0);
    c->sent -= 3 * NSEC_S; /* as if nothing had been sent for 3 s */
    assert_int_equal(lagan_next(c, &ev, 100), 0);
    assert_int_equal(c->ping_at, 0); /* the PONG has arrived */
    assert_true(c->received > clock_now() - NSEC_S);

    kill(own.pid, SIGSTOP);
    c->sent -= 3 * NSEC_S;
    assert_int_equal(lagan_next(c, &ev, 20), 0);
    assert_true(c->ping_at != 0);
    c->ping_at -= 9 * NSEC_S; /* 9 s later */
    lagan_set_reconnect_timeout(c, 100);
    assert_int_equal(next(c, LAGAN_EVENT_ERROR).id, id);
    assert_non_null(strstr(next(c, LAGAN_EVENT_DISCONNECTED).message, "sent no message"));
    kill(own.pid, SIGCONT);
    lagan_close(c);
    mock_done(&own);
}

static void
late_caller_reads_queued_messages_before_timeouts_are_checked(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };

    (void)state;
    c->sent -= 3 * NSEC_S;
    lagan_next(c, &ev, 0); /* PING */
    assert_true(c->ping_at != 0);
    usleep(50000);
    c->ping_at -= 60 * NSEC_S; /* a minute passes; the PONG arrived at once */
    assert_int_equal(lagan_next(c, &ev, 0), 0);
    assert_int_equal(c->ping_at, 0);
    lagan_close(c);
}

static bool
readable(int fd, int ms)
{
    struct pollfd p = { fd, POLLIN, 0 };

    return poll(&p, 1, ms) == 1;
}

static void
descriptor_is_readable_until_all_events_are_read(void **state)
{
    struct lagan *c = connect_mock();
    int fd = lagan_fd(c);
    uint32_t taken = 0, wakeups = 0;
    bool done = false;

    (void)state;
    submit_text(c, "many 300");
    submit_text(c, "many 300");
    while (taken < 604) { /* 300 TOKENS, OUTPUT and DONE, twice */
        struct lagan_event ev = { sizeof ev };

        if (!readable(fd, 5000)) fail_msg("asleep after %u events", taken);
        wakeups++;
        /* one event for each wake-up, though more may be queued */
        taken += lagan_next(c, &ev, 0) == 1;
        assert_true(wakeups < 5000);
    }
    while (!done) { /* a wake-up without an event is consumed by one call */
        struct lagan_event ev = { sizeof ev };

        assert_int_equal(lagan_next(c, &ev, 0), 0);
        done = !readable(fd, 20);
    }
    lagan_close(c);
}

static void
descriptor_becomes_readable_for_pings(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    int fd = lagan_fd(c);

    (void)state;
    while (readable(fd, 20)) assert_int_equal(lagan_next(c, &ev, 0), 0);
    c->sent -= 2 * NSEC_S - 30 * NSEC_MS; /* 30 ms before a PING is due */
    client_rearm(c);
    assert_true(readable(fd, 1000));
    assert_int_equal(lagan_next(c, &ev, 0), 0);
    assert_true(clock_now() - c->sent < NSEC_S);
    lagan_close(c);
}

static void
ping_is_answered_after_a_full_send_queue(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    char *reply;

    (void)state;
    submit_text(c, "ping");
    usleep(300000); /* it has arrived and is unread */
    kill(mock.pid, SIGSTOP);
    for (int i = 0; i < 100000 && !c->n_out; i++) submit_text(c, "error 34");
    assert_true(c->n_out);
    assert_int_equal(lagan_next(c, &ev, 100), 0);
    kill(mock.pid, SIGCONT);
    assert_int_equal(lagan_call(c, "pongs", NULL, &reply, NULL, 30000), 0);
    assert_string_equal(reply, "1");
    free(reply);
    lagan_close(c);
}

/* They would arrive before RESUME, or a second time. */
static void
frames_queued_for_a_lost_connection_are_dropped(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    uint64_t open = submit_text(c, "hang"), late;

    (void)state;
    kill(mock.pid, SIGSTOP);
    /* libzmq takes some more frames while it notices the loss. */
    while (c->n_out < 4000) assert_int_equal(lagan_cancel(c, open), 0);
    late = submit_text(c, "echo ab");
    mock_kill(&mock);
    while (!c->n_breaks) assert_int_equal(lagan_next(c, &ev, 20), 0);
    assert_int_equal(c->n_out, 0);
    mock_start(&mock, "1");
    for (uint32_t n = 0; n < 2;) {
        assert_int_equal(lagan_next(c, &ev, 30000), 1);
        if (ev.id == open) assert_string_equal(ev.reason_name, "cancelled");
        if (ev.id == late) assert_int_not_equal(ev.kind, LAGAN_EVENT_ERROR);
        n += ev.kind == LAGAN_EVENT_DONE || ev.kind == LAGAN_EVENT_ERROR;
    }
    lagan_close(c);
}

static void
invalid_chunk_fails_only_its_request(void **state)
{
    /* Not MessagePack; empty; a header announcing 4 GiB; another version; a CHUNK of rid 1 whose
     * tokens have 3 bytes; a CHUNK whose index is a string; a DONE whose outputs are a number. */
    static const char *const frames[] = {
        "raw c1",
        "raw ",
        "raw dfffffffff",
        "raw 9402050180",
        "raw 9401050181a174c403010203",
        "raw 9401050181a169a178",
        "raw 9401070181a76f75747075747305",
    };
    size_t i;

    (void)state;
    for (i = 0; i < ARRAY_LEN(frames); i++) {
        struct lagan *c = connect_mock();
        struct lagan_event ev;

        assert_int_equal(submit_text(c, frames[i]), 1);
        ev = next(c, LAGAN_EVENT_ERROR);
        assert_string_equal(ev.reason_name, "internal");
        next(c, LAGAN_EVENT_DISCONNECTED);
        submit_text(c, "echo z"); /* the connection still works */
        assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0], 'z');
        lagan_close(c);
    }
}

static void
log_probabilities_of_wrong_size_are_rejected(void **state)
{
    struct lagan *c = connect_mock();

    (void)state;
    submit_text(c, "badlp");
    assert_non_null(strstr(next(c, LAGAN_EVENT_ERROR).message, "invalid values"));
    lagan_close(c);
}

static void
missing_chunk_is_detected(void **state)
{
    struct lagan *c = connect_mock();

    (void)state;
    submit_text(c, "gap");
    next(c, LAGAN_EVENT_TOKENS);
    next(c, LAGAN_EVENT_ERROR);
    lagan_close(c);
}

static void
second_value_replaces_the_first(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_request *r = lagan_request_new();
    uint64_t id;

    (void)state;
    lagan_set_str(r, "text", "5", 1);
    lagan_set_str(r, "text", "echo q", 6);
    lagan_set_int(r, "temperature", 1);
    lagan_set_float(r, "temperature", 0.5);
    lagan_set_bool(r, "ignore_eos", 1);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0], 'q');
    lagan_request_free(r);
    lagan_close(c);
}

static void
refused(int r, int want, const char *sentence)
{
    assert_int_equal(r, want);
    assert_string_equal(lagan_errmsg(NULL), sentence);
}

static void
setter_refuses_unknown_keys_and_other_kinds(void **state)
{
    static const char *const stop[] = { "a", "\xe9" };
    struct lagan *c = connect_mock();
    struct lagan_request *r = lagan_request_new();
    char key[2000];
    uint64_t id;

    (void)state;
    refused(lagan_set_int(r, "max_token", 5), -ENOENT,
            "unknown request key \"max_token\"; did you mean max_tokens?");
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    assert_int_equal(lagan_set_int(r, key, 1), -ENOENT);
    refused(lagan_set_int(r, "", 1), -ENOENT, "unknown request key \"\"");
    refused(lagan_set_str(r, "max_tokens", "abc", 3), -EINVAL,
            "the value of max_tokens is of another kind; it must be an integer");
    assert_int_equal(lagan_set_float(r, "max_tokens", 5), -EINVAL);
    assert_int_equal(lagan_set_int(r, "text", 5), -EINVAL);
    assert_int_equal(lagan_set_bool(r, "temperature", 1), -EINVAL);
    assert_int_equal(lagan_set_ids(r, "stop", (int32_t[]){ 1 }, 1), -EINVAL);
    assert_int_equal(lagan_set_strs(r, "text", stop, 1), -EINVAL);
    assert_int_equal(lagan_set_bias(r, "ids", (int32_t[]){ 1 }, (float[]){ 1 }, 1), -EINVAL);
    refused(lagan_set_float(r, "top_p", (double)NAN), -EINVAL,
            "top_p is nan; it must be a finite number");
    assert_int_equal(lagan_set_bias(r, "logit_bias", (int32_t[]){ 1 }, (float[]){ NAN }, 1),
                     -EINVAL);
    refused(lagan_set_strs(r, "stop", stop, 2), -EILSEQ, "stop is not UTF-8");
    assert_int_equal(lagan_set_str(r, "stop", "one", 3), 0);
    assert_int_equal(lagan_set_str(r, "early_stopping", "never", 5), 0);
    lagan_set_str(r, "text", "echo q", 6);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0], 'q');
    lagan_request_free(r);
    lagan_close(c);
}

static void
setter_refuses_text_that_no_message_can_have(void **state)
{
    struct lagan_request *r = lagan_request_new();
    char *text = calloc(1, LAGAN_MAX_STR + 1);

    (void)state;
    refused(lagan_set_str(r, "text", "caf\xe9", 4), -EILSEQ, "text is not UTF-8");
    assert_int_equal(lagan_set_str(r, "text", text, LAGAN_MAX_STR + 1), -EMSGSIZE);
    assert_non_null(strstr(lagan_errmsg(NULL), "the limit is"));
    assert_int_equal(lagan_set_str(r, "text", text, LAGAN_MAX_STR), 0);
    free(text);
    lagan_request_free(r);
}

/* Regression: the connection ended with all its requests. */
static void
error_without_rid_ends_no_request(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    uint64_t open = submit_text(c, "hang");

    (void)state;
    submit_text(c, "raw 9401080081a4636f646520"); /* ERROR, rid 0, code 32 */
    assert_int_equal(lagan_next(c, &ev, 300), 0);
    submit_text(c, "echo z");
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0], 'z');
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    assert_int_equal(lagan_cancel(c, open), 0);
    assert_int_equal(next(c, LAGAN_EVENT_ERROR).id, open);
    lagan_close(c);
}

static void
request_over_the_frame_limit_is_rejected_locally(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_request *r = lagan_request_new();
    int32_t *ids = calloc(LAGAN_MAX_IDS, sizeof *ids);
    uint64_t id = 77;

    (void)state;
    assert_int_equal(lagan_set_ids(r, "ids", ids, LAGAN_MAX_IDS), 0);
    assert_int_equal(lagan_set_ids(r, "generated_ids", ids, LAGAN_MAX_IDS), 0);
    assert_int_equal(lagan_submit(c, r, &id), -EMSGSIZE);
    assert_int_equal(id, 77);
    assert_int_equal(c->n_requests, 0);
    free(ids);
    lagan_request_free(r);
    lagan_close(c);
}

static void
smaller_event_struct_is_not_overrun(void **state)
{
    struct lagan *c = connect_mock();
    struct {
        struct lagan_event ev;
        char after[16];
    } old;

    (void)state;
    memset(&old, 0x5a, sizeof old);
    old.ev.size = offsetof(struct lagan_event, n_top);
    submit_text(c, "echo a");
    assert_int_equal(lagan_next(c, &old.ev, 5000), 1);
    assert_int_equal(old.ev.text[0], 'a');
    assert_int_equal(((unsigned char *)&old)[offsetof(struct lagan_event, n_top)], 0x5a);
    old.ev.size = 0;
    assert_int_equal(lagan_next(c, &old.ev, 0), -EINVAL);
    lagan_close(c);
}

static void
bye_fails_open_requests_with_draining(void **state)
{
    struct lagan *c = connect_mock();

    (void)state;
    submit_text(c, "bye");
    assert_string_equal(next(c, LAGAN_EVENT_ERROR).reason_name, "draining");
    next(c, LAGAN_EVENT_DISCONNECTED);
    lagan_close(c);
}

static void
bye_with_retry_after_resumes_on_a_new_connection(void **state)
{
    struct lagan *c = connect_mock();
    struct lagan_event ev = { sizeof ev };
    uint64_t open = submit_text(c, "leave");

    (void)state;
    assert_int_equal(lagan_next(c, &ev, 300), 0);
    assert_int_equal(c->n_breaks, 1);
    submit_text(c, "echo z");
    assert_int_equal(next(c, LAGAN_EVENT_TOKENS).text[0], 'z');
    next(c, LAGAN_EVENT_OUTPUT);
    next(c, LAGAN_EVENT_DONE);
    assert_int_equal(lagan_cancel(c, open), 0);
    assert_string_equal(next(c, LAGAN_EVENT_ERROR).reason_name, "cancelled");
    lagan_close(c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_arrive_in_order_with_their_indices),
        cmocka_unit_test(stream_longer_than_the_ack_window_continues_while_read),
        cmocka_unit_test(few_chunks_are_acknowledged_within_1_second),
        cmocka_unit_test(log_probabilities_arrive_with_their_tokens_and_the_prompts_first),
        cmocka_unit_test(output_event_has_the_stop_string_or_the_stop_id),
        cmocka_unit_test(events_of_a_request_have_the_time_of_its_accept),
        cmocka_unit_test(too_long_error_has_the_length_of_prompt_and_model),
        cmocka_unit_test(features_are_those_of_the_last_welcome),
        cmocka_unit_test(held_request_is_not_acknowledged_until_it_is_released),
        cmocka_unit_test(error_is_the_last_event_with_name_and_sentence),
        cmocka_unit_test(each_of_many_requests_ends_once),
        cmocka_unit_test(cancelled_request_ends_with_error_cancelled),
        cmocka_unit_test(request_may_be_submitted_before_lagand_starts),
        cmocka_unit_test(missing_lagand_is_a_timeout_with_a_sentence),
        cmocka_unit_test(other_forms_of_an_endpoint_are_refused_with_the_right_one),
        cmocka_unit_test(unsupported_protocol_error_names_both_versions),
        cmocka_unit_test(reconnect_timeout_fails_each_request_then_reports_disconnected),
        cmocka_unit_test(silent_lagand_is_pinged_and_then_disconnected),
        cmocka_unit_test(late_caller_reads_queued_messages_before_timeouts_are_checked),
        cmocka_unit_test(descriptor_is_readable_until_all_events_are_read),
        cmocka_unit_test(descriptor_becomes_readable_for_pings),
        cmocka_unit_test(ping_is_answered_after_a_full_send_queue),
        cmocka_unit_test(frames_queued_for_a_lost_connection_are_dropped),
        cmocka_unit_test(invalid_chunk_fails_only_its_request),
        cmocka_unit_test(log_probabilities_of_wrong_size_are_rejected),
        cmocka_unit_test(missing_chunk_is_detected),
        cmocka_unit_test(second_value_replaces_the_first),
        cmocka_unit_test(setter_refuses_unknown_keys_and_other_kinds),
        cmocka_unit_test(setter_refuses_text_that_no_message_can_have),
        cmocka_unit_test(error_without_rid_ends_no_request),
        cmocka_unit_test(request_over_the_frame_limit_is_rejected_locally),
        cmocka_unit_test(smaller_event_struct_is_not_overrun),
        cmocka_unit_test(bye_fails_open_requests_with_draining),
        cmocka_unit_test(bye_with_retry_after_resumes_on_a_new_connection),
    };

    return cmocka_run_group_tests_name("client", tests, setup, teardown);
}
