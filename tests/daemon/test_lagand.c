/* test_lagand.c - the real lagand with clients and operators: requests, limits, invalid frames. */
#include "base/clock.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static struct lagand_fixture r;

static void
request_streams_and_ends_with_done(void **state)
{
    const msgpack_object *outputs, *limits;
    struct dealer *c;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_HELLO, 1, { "min", 1 }, { "max", 3 });
    m = receive_type(c, LAGAN_MSG_WELCOME, 2000);
    assert_int_equal(number(&m->map, "proto"), 1);
    assert_string_equal(text_of(&m->map, "state"), "ready");
    limits = msg_get(&m->map, "limits");
    assert_int_equal(number(limits, "frame"), LAGAN_MAX_FRAME);
    assert_int_equal(number(limits, "idle_timeout_ms"), 10000);
    assert_int_equal(msg_get(limits, "text_bytes")->via.array.ptr[0].via.u64, FAKE_TEXT);
    submit(c, 2, 5, 40, 77);
    take_all(c, 2, 40, 77);
    submit(c, 3, 2, 1, 78);
    m = receive_type(c, LAGAN_MSG_CHUNK, 2000);
    take_chunk(m, 0, 78);
    m = receive_type(c, LAGAN_MSG_DONE, 2000);
    outputs = msg_get(&m->map, "outputs");
    assert_int_equal(outputs->via.array.size, 1);
    assert_int_equal(number(outputs->via.array.ptr, "reason"), LAGAN_FINISH_LENGTH);
    assert_string_equal(text_of(outputs->via.array.ptr, "reason_name"), "length");
    assert_int_equal(number(outputs->via.array.ptr, "n_tokens"), 1);
    assert_int_equal(number(outputs->via.array.ptr, "seed"), 78);
    assert_int_equal(number(outputs->via.array.ptr, "cached"), 1); /* the last id of the prompt */
    assert_int_equal(number(outputs->via.array.ptr, "n_prompt_tokens"), 2);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
prompt_larger_than_a_record_arrives_complete(void **state)
{
    enum { N = 900001 };
    const msgpack_object *outputs;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    submit(c, 1, N, 1, 5);
    take_chunk(receive_type(c, LAGAN_MSG_CHUNK, 5000), 0, 5);
    outputs = msg_get(&receive_type(c, LAGAN_MSG_DONE, 2000)->map, "outputs");
    assert_int_equal(number(outputs->via.array.ptr, "cached"), (N - 1) % (FAKE_VOCAB - 1));
    submit(c, 2, 3, 4, 5);
    take_all(c, 2, 4, 5);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
logprobs_arrive_with_tokens_and_after_those_of_the_prompt(void **state)
{
    const msgpack_object *p;
    struct msg_span s;
    struct dealer *c;
    const struct msg *m;
    float f;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 2 }, { "logprobs", 2 },
         { "prompt_logprobs", 1 });
    receive_type(c, LAGAN_MSG_ACCEPT, 2000);
    m = receive_type(c, LAGAN_MSG_CHUNK, 2000);
    p = msg_get(&m->map, "pl");
    assert_non_null(p);
    assert_int_equal(number(p, "i"), 0);
    assert_int_equal(number(p, "k"), 1);
    assert_int_equal(msg_str(p, "lp", &s), 0);
    assert_int_equal(s.n, 12);
    assert_int_equal(msg_str(p, "d", &s), 0);
    assert_int_equal(s.n, 24);
    for (uint32_t at = 0; at < 2;) {
        uint32_t n;

        m = receive_type(c, LAGAN_MSG_CHUNK, 2000);
        assert_int_equal(msg_str(&m->map, "lp", &s), 0);
        n = s.n / 4;
        memcpy(&f, s.p, 4);
        assert_true(f == fake_logprob(at));
        p = msg_get(&m->map, "tp");
        assert_int_equal(number(p, "k"), 2);
        assert_int_equal(msg_str(p, "d", &s), 0);
        assert_int_equal(s.n, 16 * n);
        at += n;
        SEND(c, LAGAN_MSG_ACK, 1, { "n", (int64_t)number(&m->map, "n") }); /* dropped once */
    }
    receive_type(c, LAGAN_MSG_DONE, 2000);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
slow_reader_ends_and_other_clients_continue(void **state)
{
    struct dealer *slow, *quick;

    (void)state;
    lagand_begin(&r, "good", ARGS("--api.ack-timeout", "400ms"));
    slow = dealer_open(&r, "api.sock");
    quick = dealer_open(&r, "api.sock");
    SEND(slow, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 1000000 }, { "ack_window", 1 });
    receive_type(slow, LAGAN_MSG_ACCEPT, 2000);
    receive_type(slow, LAGAN_MSG_CHUNK, 2000);
    submit(quick, 1, 3, 50, 8);
    take_all(quick, 1, 50, 8);
    receive_error(slow, 1, LAGAN_E_SLOW_READER, "no ACK for", 3000);
    dealer_close(slow);
    dealer_close(quick);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
client_with_full_queue_is_dropped_and_others_continue(void **state)
{
    enum { REQUESTS = 60 };
    struct dealer *slow, *quick;
    uint64_t rid = 0;

    (void)state;
    lagand_begin(&r, "good", ARGS("--api.ack-timeout", "500ms"));
    slow = dealer_open_small(&r, "api.sock", 8);
    quick = dealer_open(&r, "api.sock");
    for (uint64_t i = 0; i < REQUESTS; i++) {
        SEND(slow, LAGAN_MSG_SUBMIT, i, { "ids", 3 }, { "max_tokens", 500000 },
             { "ack_window", LAGAN_MAX_ACK_WINDOW }, { "logprobs", 20 });
    }
    while (!lagand_logged(&r, "has not read for", 0) && rid < 2000) {
        rid++;
        submit(quick, rid, 3, 20, rid);
        take_all(quick, rid, 20, rid);
    }
    assert_true(lagand_logged(&r, "has not read for", 5000));
    rid++;
    submit(quick, rid, 3, 20, rid);
    take_all(quick, rid, 20, rid);
    dealer_close(slow);
    dealer_close(quick);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
await_no_request(struct dealer *c)
{
    nsec until = clock_now() + 60 * NSEC_S;

    while (open_requests(c, 2) && clock_now() < until) poll(NULL, 0, ASK_MS);
    assert_int_equal(open_requests(c, 3), 0);
}

static void
silent_or_disconnected_client_loses_its_requests(void **state)
{
    struct dealer *gone, *here;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--api.idle-timeout", "500ms"));
    here = dealer_open(&r, "api.sock");
    gone = dealer_open(&r, "api.sock");
    submit(gone, 1, 3, 100000, 1);
    assert_int_equal(open_requests(here, 1), 1);
    await_no_request(here);
    do m = receive(gone, 30000);
    while (m->type == LAGAN_MSG_CHUNK);
    assert_int_equal(m->type, LAGAN_MSG_BYE);
    assert_non_null(strstr(text_of(&m->map, "reason"), "no message from this client for"));
    assert_int_equal(number(&m->map, "retry_after_ms"), 0);
    dealer_close(gone);
    gone = dealer_open(&r, "api.sock");
    submit(gone, 1, 3, 100000, 1);
    dealer_close(gone);
    await_no_request(here);
    dealer_close(here);
    assert_int_equal(lagand_stop(&r), 0);
}

/* The client's process is stopped or its machine is lost: the connection stays open, and the idle
 * timeout is long. */
static void
client_without_heartbeat_replies_loses_its_requests(void **state)
{
    struct dealer *here;
    pid_t pid;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--api.idle-timeout", "10min", "--api.ack-timeout", "10min"));
    pid = fork();
    if (pid == 0) {
        struct lagand_fixture own = r;
        struct dealer *gone;

        own.zmq = zmq_ctx_new(); /* the parent's context has its threads there */
        gone = dealer_open(&own, "api.sock");
        submit(gone, 1, 3, 100000, 1);
        if (silent(gone, 60000)) _exit(2); /* libzmq sends it later */
        raise(SIGSTOP);
        _exit(1);
    }
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    here = dealer_open(&r, "api.sock");
    assert_int_equal(open_requests(here, 1), 1);
    await_no_request(here);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    dealer_close(here);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
user_limits_cover_all_connections(void **state)
{
    struct dealer *c[3];

    (void)state;
    lagand_begin(&r, "slow", ARGS("--api.max-user-inflight", "2", "--api.max-user-tokens", "1000"));
    for (int i = 0; i < 3; i++) c[i] = dealer_open(&r, "api.sock");
    submit(c[0], 1, 3, 400, 1);
    SEND(c[1], LAGAN_MSG_SUBMIT, 2, { "ids", 3 }, { "max_tokens", 700 });
    receive_error(c[1], 2, LAGAN_E_QUEUE_FULL, "the user's limit is 1000", 2000);
    submit(c[1], 3, 3, 400, 1);
    SEND(c[2], LAGAN_MSG_SUBMIT, 4, { "ids", 3 });
    receive_error(c[2], 4, LAGAN_E_QUEUE_FULL, "2 open requests, which is its limit", 2000);
    dealer_close(c[0]);
    while (open_requests(c[2], 5) > 1) poll(NULL, 0, ASK_MS);
    submit(c[2], 6, 3, 4, 1);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
cancel_ends_a_request_or_reports_not_found(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 100000, 1);
    receive_type(c, LAGAN_MSG_CHUNK, 2000);
    send_keys(c, LAGAN_MSG_CANCEL, 1, NULL, 0);
    for (;;) {
        const struct msg *m = receive(c, 2000);

        if (m->type == LAGAN_MSG_CHUNK) continue;
        assert_int_equal(m->type, LAGAN_MSG_ERROR);
        assert_int_equal(number(&m->map, "code"), LAGAN_E_CANCELLED);
        assert_true(number(&m->map, "delivered") >= 1);
        break;
    }
    send_keys(c, LAGAN_MSG_CANCEL, 1, NULL, 0);
    receive_error(c, 1, LAGAN_E_NOT_FOUND, "no open request 1", 2000);
    await_no_request(c); /* the worker has freed it too */
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
list_with_too_many_rids_is_refused(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    for (uint32_t type = LAGAN_MSG_CANCEL; type <= LAGAN_MSG_QUERY; type += 2) {
        msgpack_sbuffer b;
        msgpack_packer p;

        msgpack_sbuffer_init(&b);
        msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
        msg_begin(&p, type, 7, 1);
        msg_key(&p, "rids"), msgpack_pack_array(&p, LAGAN_MAX_RIDS + 1);
        for (uint32_t i = 0; i <= LAGAN_MAX_RIDS; i++) msgpack_pack_uint32(&p, i);
        send_bytes(c, b.data, b.size);
        msgpack_sbuffer_destroy(&b);
        receive_error(c, 7, LAGAN_E_INVALID_REQUEST, "4097 entries", 30000);
        assert_true(silent(c, 20));
    }
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
deadline_ends_a_request_in_every_state(void **state)
{
    struct dealer *c;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 1000 }, { "deadline_ms", 300 });
    receive_type(c, LAGAN_MSG_ACCEPT, 2000);
    do m = receive(c, 3000);
    while (m->type == LAGAN_MSG_CHUNK);
    assert_int_equal(number(&m->map, "code"), LAGAN_E_DEADLINE);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
    lagand_clean(&r);

    lagand_start(&r, "loading", NULL);
    assert_true(lagand_notified(&r, "EXTEND_TIMEOUT_USEC", 3000));
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "deadline_ms", 200 });
    receive_type(c, LAGAN_MSG_ACCEPT, 2000);
    receive_error(c, 1, LAGAN_E_DEADLINE, "deadline_ms has passed", 3000);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
invalid_requests_are_refused_by_name(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_SUBMIT, 1, { "max_tokens", 3 });
    receive_error(c, 1, LAGAN_E_INVALID_REQUEST, "the prompt is missing", 2000);
    SEND(c, LAGAN_MSG_SUBMIT, 2, { "ids", 3 }, { "max_tokens", 0 });
    receive_error(c, 2, LAGAN_E_INVALID_REQUEST, "max_tokens is 0", 2000);
    SEND(c, LAGAN_MSG_SUBMIT, 3, { "ids", 3 }, { "max_tokens", INT64_C(1) << 31 });
    receive_error(c, 3, LAGAN_E_INVALID_REQUEST, "max_tokens", 2000);
    SEND(c, LAGAN_MSG_SUBMIT, 4, { "ids", 3 }, { "stop_ids", 3 });
    receive_error(c, 4, LAGAN_E_INVALID_REQUEST, "stop_ids", 2000);
    SEND(c, LAGAN_MSG_SUBMIT, 5, { "ids", FAKE_MAX_LEN });
    receive_error(c, 5, LAGAN_E_TOO_LONG, "maximum sequence length", 2000);
    SEND(c, LAGAN_MSG_SUBMIT, 6, { "ids", 3 }, { "forced_bos", 1000 });
    receive_error(c, 6, LAGAN_E_INVALID_REQUEST, "forced_bos is 1000", 2000);
    submit(c, 7, 3, 1000, 1);
    SEND(c, LAGAN_MSG_SUBMIT, 7, { "ids", 3 });
    for (;;) {
        const struct msg *m = receive(c, 2000);

        if (m->type == LAGAN_MSG_CHUNK) continue;
        assert_int_equal(m->type, LAGAN_MSG_ERROR);
        assert_non_null(strstr(text_of(&m->map, "message"), "is in use by an open request"));
        break;
    }
    receive_type(c, LAGAN_MSG_CHUNK, 2000); /* the first one continues */
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
full_queue_refuses_before_accept(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_start(&r, "loading", ARGS("--scheduler.max-num-queued-reqs", "2"));
    assert_true(lagand_notified(&r, "EXTEND_TIMEOUT_USEC", 3000));
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 4, 1);
    submit(c, 2, 3, 4, 1);
    SEND(c, LAGAN_MSG_SUBMIT, 3, { "ids", 3 });
    receive_error(c, 3, LAGAN_E_QUEUE_FULL, "scheduler.max_num_queued_reqs is 2", 2000);
    dealer_close(c);
    kill(r.pid, SIGTERM);
    kill(r.pid, SIGINT); /* the second one: at once */
    assert_int_equal(lagand_wait(&r, 2000), 0);
}

/* A worker rejects sequences beyond its slots, although lagand had accepted them. */
static void
sequences_beyond_the_slots_of_a_worker_stay_queued(void **state)
{
    const msgpack_object *status;
    const struct msg *m;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "slow", NULL); /* it has 64 slots, and gets 256 sequences more */
    c = dealer_open(&r, "api.sock");
    for (uint64_t rid = 0; rid < 20; rid++) {
        SEND(c, LAGAN_MSG_SUBMIT, rid, { "ids", 3 }, { "max_tokens", 100000 }, { "n", 20 },
             { "temperature", 1 });
        while (receive(c, 30000)->type != LAGAN_MSG_ACCEPT) continue; /* chunks come in between */
    }
    call(c, 99, "status", NULL, NULL);
    do m = receive(c, 30000);
    while (m->type != LAGAN_MSG_REPLY);
    status = msg_get(&m->map, "result");
    assert_int_equal(number(status, "requests"), 20);
    assert_int_equal(number(status, "queued"), 4);
    dealer_close(c);
    kill(r.pid, SIGTERM);
    kill(r.pid, SIGINT);
    assert_int_equal(lagand_wait(&r, 30000), 0);
}

static void
hostile_frames_get_errors_and_do_no_harm(void **state)
{
    static const struct {
        const char *p;
        size_t n;
        uint32_t code;
    } t[] = {
        { "", 0, LAGAN_E_INVALID_REQUEST },
        { "\xc1", 1, LAGAN_E_INVALID_REQUEST },
        { "\xdd\xff\xff\xff\xff", 5, LAGAN_E_INVALID_REQUEST },
        { "\xdf\xff\xff\xff\xff", 5, LAGAN_E_INVALID_REQUEST },
        { "\x94\x01\x0c\x05\x90", 5, LAGAN_E_INVALID_REQUEST },
        { "\x94\x01\x0c\x05\x80\x00", 6, LAGAN_E_INVALID_REQUEST },
        { "\x94\x02\x0c\x05\x80", 5, LAGAN_E_UNSUPPORTED },
        { "\x94\x01\x63\x05\x80", 5, LAGAN_E_UNSUPPORTED },
        { "\x94\x01\x0a\x05\x80", 5, LAGAN_E_INVALID_REQUEST }, /* RESUME without a session */
        { "\x94\x01\x0c\x05\x81\xa2!x\x01", 9, LAGAN_E_INVALID_REQUEST },
        { "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01", 13, LAGAN_E_INVALID_REQUEST },
    };
    char *large = calloc(1, 17 << 20);
    struct dealer *c, *other;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        const struct msg *m;

        send_bytes(c, t[i].p, t[i].n);
        m = receive_type(c, LAGAN_MSG_ERROR, 2000);
        if (number(&m->map, "code") != t[i].code) {
            fail_msg("frame %zu: %s: %s", i, text_of(&m->map, "reason_name"),
                     text_of(&m->map, "message"));
        }
    }
    test_seed();
    for (int i = 0; i < 3000; i++) {
        uint8_t junk[64];
        uint32_t n = test_below(sizeof junk);

        for (uint32_t k = 0; k < n; k++) junk[k] = (uint8_t)test_below(256);
        if (n > 3 && test_below(2)) memcpy(junk, "\x94\x01", 2);
        send_bytes(c, junk, n);
    }
    other = dealer_open(&r, "api.sock");
    send_bytes(other, large, 17 << 20); /* libzmq closes this connection */
    dealer_close(other);
    other = dealer_open(&r, "api.sock");
    submit(other, 1, 3, 5, 6);
    take_all(other, 1, 5, 6);
    SEND(other, LAGAN_MSG_PING, 9, { "t", 1234 });
    assert_int_equal(number(&receive_type(other, LAGAN_MSG_PONG, 2000)->map, "t"), 1234);
    dealer_close(c);
    dealer_close(other);
    free(large);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Regression: lagand answered with rid 0, and liblagan ended all requests of the connection. */
static void
bad_frame_is_answered_for_its_own_request(void **state)
{
#define FRAME(bytes, words) \
    { \
        bytes, sizeof bytes - 1, words \
    }
    static const struct {
        const char *p;
        size_t n;
        const char *words;
    } t[] = {
        FRAME("\x94\x01\x03\x07\x81\xa4text\xa1\xff", "not UTF-8"),
        FRAME("\x94\x01\x03\x07\x81\xa4text\x05", "text is not a string"),
        FRAME("\x94\x01\x03\x07\x81\xa4text\xc7\x01\x01\x01", "ext type"),
        FRAME("\x94\x01\x03\x07\x81\xa3txt\xa1x", "did you mean text?"),
        FRAME("\x94\x01\x03\x07\xde\x00\x41", "more than 64 keys"),
        FRAME("\x94\x01\x03\x07\x81\xa4text\xa9x", "longer than the frame"),
        FRAME("\x94\x01\x03\x07\x90", "not a map"),
        FRAME("\x94\x01\x63\x07\x80", "messages of type 99"),
        FRAME("\x94\x09\x03\x07\x80", "protocol version 9"),
        FRAME("\x94\x01\x06\x07\x81\xa1n\xc1", "0xc1"), /* an ACK of no open request */
    };
    struct dealer *c;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 100000, 1);
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        bool retryable = true;

        send_bytes(c, t[i].p, t[i].n);
        do m = receive(c, 30000);
        while (m->type == LAGAN_MSG_CHUNK);
        assert_int_equal(m->type, LAGAN_MSG_ERROR);
        assert_int_equal(m->rid, 7);
        if (!strstr(text_of(&m->map, "message"), t[i].words))
            fail_msg("frame %zu: %s", i, text_of(&m->map, "message"));
        assert_int_equal(msg_bool(&m->map, "retryable", &retryable), 0);
        assert_false(retryable);
    }
    m = receive_type(c, LAGAN_MSG_CHUNK, 30000); /* request 1 continues */
    /* An ERROR ends a request: with a bad ACK of request 1 it is the end of request 1. */
    send_bytes(c, "\x94\x01\x06\x01\x81\xa1n\xc1", 8);
    do m = receive(c, 30000);
    while (m->type == LAGAN_MSG_CHUNK);
    assert_int_equal(m->type, LAGAN_MSG_ERROR);
    assert_int_equal(m->rid, 1);
    assert_int_equal(number(&m->map, "code"), LAGAN_E_INVALID_REQUEST);
    await_no_request(c);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
hello_of_other_versions_is_refused_with_both_ranges(void **state)
{
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    SEND(c, LAGAN_MSG_HELLO, 1, { "min", 7 }, { "max", 9 });
    receive_error(c, 1, LAGAN_E_UNSUPPORTED, "versions 7 to 9, lagand speaks version 1", 2000);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

/* The table of commands has entries that are reserved for operators. */
static void
operators_have_reserved_entries_for_commands(void **state)
{
    enum { CALLS = 300 };
    struct dealer *api, *ctl;
    uint32_t refused = 0;

    (void)state;
    lagand_begin(&r, "hang", ARGS("--supervisor.stall-timeout", "60s"));
    api = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    submit(api, 1, 3, 10, 1);
    for (uint32_t at = 0; at < 3;) /* then it hangs */
        at = take_chunk(receive_type(api, LAGAN_MSG_CHUNK, 30000), at, 1);
    for (uint64_t i = 0; i < CALLS; i++) call(api, 100 + i, "tokenize", "text", "az");
    call(ctl, 2, "tune status", NULL, NULL);
    receive_error(ctl, 2, LAGAN_E_WORKER_LOST, "the worker is not ready", 30000);
    call(api, 99, "version", NULL, NULL);
    while (receive(api, 30000)->rid != 99) refused++;
    assert_in_range(refused, CALLS - 256 + 1, CALLS - 1);
    dealer_close(api);
    kill(r.pid, SIGTERM);
    kill(r.pid, SIGINT);
    assert_int_equal(lagand_wait(&r, 30000), 0);
}

static void
operator_verbs_need_the_operator_socket(void **state)
{
    const struct msg *reply;
    struct dealer *api, *ctl;

    (void)state;
    lagand_begin(&r, "good", NULL);
    api = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    call(api, 1, "drain", "worker", "w0");
    receive_error(api, 1, LAGAN_E_UNAUTHORIZED, "ctl.sock", 2000);
    call(api, 2, "fly", NULL, NULL);
    receive_error(api, 2, LAGAN_E_NOT_FOUND, "no verb \"fly\"", 2000);
    call(api, 11, "tokenize", "txt", "az");
    receive_error(api, 11, LAGAN_E_INVALID_REQUEST,
                  "tokenize: unknown argument \"txt\"; did you mean text?", 2000);
    call(api, 12, "status", "worker", "w0");
    receive_error(api, 12, LAGAN_E_INVALID_REQUEST, "status: unknown argument \"worker\"", 2000);
    call(ctl, 3, "drain", "worker", "w9");
    receive_error(ctl, 3, LAGAN_E_NOT_FOUND, "no worker w9", 2000);
    call(ctl, 8, "drain", "worker", "w0.1");
    receive_error(ctl, 8, LAGAN_E_NOT_FOUND,
                  "w0.1 is a rank or a standby; give the name of its worker, w0", 2000);
    call(ctl, 4, "drain", "worker", "w0");
    receive_type(ctl, LAGAN_MSG_REPLY, 2000);
    assert_true(lagand_logged(&r, "it finished its requests and exited", 5000));
    call(ctl, 9, "kv flush", "worker", "w0");
    receive_error(ctl, 9, LAGAN_E_WORKER_LOST, "w0 is down; `laganctl restart w0` starts it", 2000);
    call(ctl, 10, "reload", NULL, NULL);
    reply = receive_type(ctl, LAGAN_MSG_REPLY, 2000);
    assert_int_equal(number(msg_get(&reply->map, "result"), "workers"), 0);
    call(ctl, 5, "restart", "worker", "w0");
    receive_type(ctl, LAGAN_MSG_REPLY, 2000);
    submit(api, 6, 3, 2, 3);
    take_all(api, 6, 2, 3);
    call(api, 7, "tokenize", "text", "az");
    assert_int_equal(
        msg_get(msg_get(&receive_type(api, LAGAN_MSG_REPLY, 2000)->map, "result"), "ids")
            ->via.array.ptr[1]
            .via.u64,
        'z');
    dealer_close(api);
    dealer_close(ctl);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
requests_of_many_clients_keep_their_order(void **state)
{
    enum { CLIENTS = 16, EACH = 20, TOKENS = 30 };
    struct dealer *c[CLIENTS];
    uint32_t at[CLIENTS][EACH] = { { 0 } }, n_done = 0;

    (void)state;
    lagand_begin(&r, "good", NULL);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        c[i] = dealer_open(&r, "api.sock");
        for (uint32_t k = 0; k < EACH; k++) {
            SEND(c[i], LAGAN_MSG_SUBMIT, k, { "ids", 1 + k }, { "max_tokens", TOKENS },
                 { "seed", 100 * i + k });
        }
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        for (n_done = 0; n_done < EACH;) {
            const struct msg *m = receive(c[i], 5000);
            uint64_t k = m->rid;

            assert_true(k < EACH);
            if (m->type == LAGAN_MSG_ACCEPT) continue;
            if (m->type == LAGAN_MSG_DONE) {
                assert_int_equal(at[i][k], TOKENS);
                n_done++;
                continue;
            }
            assert_int_equal(m->type, LAGAN_MSG_CHUNK);
            at[i][k] = take_chunk(m, at[i][k], 100 * i + k);
            SEND(c[i], LAGAN_MSG_ACK, k, { "n", (int64_t)number(&m->map, "n") });
        }
        assert_true(silent(c[i], 0));
    }
    for (uint32_t i = 0; i < CLIENTS; i++) dealer_close(c[i]);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        lagand_test(request_streams_and_ends_with_done),
        lagand_test(prompt_larger_than_a_record_arrives_complete),
        lagand_test(logprobs_arrive_with_tokens_and_after_those_of_the_prompt),
        lagand_test(slow_reader_ends_and_other_clients_continue),
        lagand_test(client_with_full_queue_is_dropped_and_others_continue),
        lagand_test(silent_or_disconnected_client_loses_its_requests),
        lagand_test(client_without_heartbeat_replies_loses_its_requests),
        lagand_test(user_limits_cover_all_connections),
        lagand_test(cancel_ends_a_request_or_reports_not_found),
        lagand_test(list_with_too_many_rids_is_refused),
        lagand_test(deadline_ends_a_request_in_every_state),
        lagand_test(invalid_requests_are_refused_by_name),
        lagand_test(full_queue_refuses_before_accept),
        lagand_test(sequences_beyond_the_slots_of_a_worker_stay_queued),
        lagand_test(hostile_frames_get_errors_and_do_no_harm),
        lagand_test(hello_of_other_versions_is_refused_with_both_ranges),
        lagand_test(bad_frame_is_answered_for_its_own_request),
        lagand_test(operators_have_reserved_entries_for_commands),
        lagand_test(operator_verbs_need_the_operator_socket),
        lagand_test(requests_of_many_clients_keep_their_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
