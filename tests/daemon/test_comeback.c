/* test_comeback.c - clients that resume their requests: over another connection, and after a crash
 * of lagand. fake_worker defines the expected tokens.
 */
#include "base/clock.h"
#include "include/lagan.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>

enum { CLIENTS = 4, EACH = 12, TOKENS = 400, KILLS = 5 };

static struct lagand_fixture r;

/* ---- liblagan */

struct stream {
    uint64_t id;
    int64_t seed; /* -1: the default of lagand */
    uint32_t at;
    bool done;
    int32_t ids[TOKENS];
};

static struct lagan *clients[CLIENTS];
static struct stream streams[CLIENTS][EACH];
static uint32_t n_done;

static struct lagan *
connect_to(struct lagand_fixture *f)
{
    char endpoint[160];
    struct lagan *c = NULL;

    snprintf(endpoint, sizeof endpoint, "ipc://%s/api.sock", f->run);
    if (lagan_open(&c, endpoint, 30000) < 0) fail_msg("%s", lagan_errmsg(NULL));
    return c;
}

static void
ask(struct lagan *c, struct stream *s, int64_t seed)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    struct lagan_request *q = lagan_request_new();

    memset(s, 0, sizeof *s);
    s->seed = seed;
    lagan_set_ids(q, "ids", ids, 3);
    lagan_set_int(q, "max_tokens", TOKENS);
    if (seed >= 0) lagan_set_int(q, "seed", seed);
    assert_int_equal(lagan_submit(c, q, &s->id), 0);
    lagan_request_free(q);
}

static void
take_event(struct stream *s, const struct lagan_event *ev)
{
    switch (ev->kind) {
    case LAGAN_EVENT_TOKENS:
        assert_int_equal(ev->first, s->at);
        assert_int_equal(ev->text_len, ev->n_ids);
        for (uint32_t i = 0; i < ev->n_ids; i++) {
            assert_int_equal(ev->text[i], fake_letter(ev->ids[i]));
            s->ids[s->at++] = ev->ids[i];
        }
        break;
    case LAGAN_EVENT_OUTPUT:
        assert_string_equal(ev->reason_name, "length");
        assert_int_equal(ev->n_tokens, TOKENS);
        if (s->seed >= 0) assert_int_equal(ev->seed, s->seed);
        for (uint32_t i = 0; i < TOKENS; i++) assert_int_equal(s->ids[i], fake_token(ev->seed, i));
        break;
    case LAGAN_EVENT_DONE:
        assert_false(s->done);
        assert_int_equal(s->at, TOKENS);
        s->done = true;
        n_done++;
        break;
    default:
        fail_msg("%s: %s", ev->reason_name, ev->message);
    }
}

/* Serves all clients until that time or until all have ended. */
static void
serve_clients(nsec until)
{
    while (n_done < CLIENTS * EACH && clock_now() < until) {
        for (uint32_t i = 0; i < CLIENTS; i++) {
            struct lagan_event ev = { sizeof ev };

            for (int n = 0; n < 64 && lagan_next(clients[i], &ev, 0) == 1; n++)
                take_event(&streams[i][ev.id % EACH], &ev);
        }
        poll(NULL, 0, 1);
    }
}

static void
kill_and_start(const char *mode)
{
    static const char *const args[] = { "--remove-runtime-dir", NULL };

    kill(r.pid, SIGKILL);
    lagand_wait(&r, 30000);
    /* Workers end with their lagand. */
    lagand_await_workers(&r, 0);
    lagand_start(&r, mode, args);
}

static void
ask_all(void)
{
    n_done = 0;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i] = connect_to(&r);
        for (uint32_t k = 0; k < EACH; k++) {
            struct stream s;

            ask(clients[i], &s, k % 3 ? (int64_t)(100 * i + k) : -1);
            streams[i][s.id % EACH] = s;
        }
    }
}

static void
finish_all(void)
{
    serve_clients(clock_now() + 60 * NSEC_S);
    assert_int_equal(n_done, CLIENTS * EACH);
    for (uint32_t i = 0; i < CLIENTS; i++) lagan_close(clients[i]);
}

static void
requests_survive_crashes_of_lagand_without_duplicate_tokens(void **state)
{
    (void)state;
    lagand_begin(&r, "slow", NULL);
    ask_all();
    for (int i = 0; i < KILLS; i++) {
        serve_clients(clock_now() + (150 + 50 * i) * NSEC_MS);
        kill_and_start(i + 1 < KILLS ? "slow" : "good");
    }
    finish_all();
    lagand_ready(&r);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
requests_survive_a_reexec(void **state)
{
    (void)state;
    lagand_begin(&r, "slow", NULL);
    ask_all();
    for (int i = 0; i < 3; i++) {
        struct dealer *ctl = dealer_open(&r, "ctl.sock");

        serve_clients(clock_now() + 300 * NSEC_MS);
        call(ctl, 1, "daemon reexec", NULL, NULL);
        receive_type(ctl, LAGAN_MSG_REPLY, 30000);
        dealer_close(ctl);
    }
    finish_all();
    assert_int_equal(lagand_stop(&r), 0);
}

/* ---- frames */

static void
hello(struct dealer *c, const char *session)
{
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_HELLO, 0, 3);
    msg_key(&p, "min"), msgpack_pack_int(&p, 1);
    msg_key(&p, "max"), msgpack_pack_int(&p, 1);
    msg_key(&p, "session"), msg_bin(&p, session, strlen(session));
    send_bytes(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
}

static struct dealer *
dial_as(const char *session)
{
    struct dealer *c = dealer_open(&r, "api.sock");

    hello(c, session);
    receive_type(c, LAGAN_MSG_WELCOME, 30000);
    return c;
}

/* RESUME that names one request n times, each with one token more. Returns true if it was known. */
static bool
resume_often(struct dealer *c, uint64_t rid, uint32_t have, uint32_t n)
{
    static const char *const keys[] = { "rids", "n_tokens", "text_bytes" };
    const msgpack_object *unknown;
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_RESUME, 99, 3);
    for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
        msg_key(&p, keys[k]), msgpack_pack_array(&p, n);
        for (uint32_t i = 0; i < n; i++) msgpack_pack_uint64(&p, k ? have + i : rid);
    }
    send_bytes(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
    unknown = msg_get(msg_get(&receive_type(c, LAGAN_MSG_REPLY, 30000)->map, "result"), "unknown");
    return unknown->via.array.size == 0;
}

static bool
resume(struct dealer *c, uint64_t rid, uint32_t have)
{
    return resume_often(c, rid, have, 1);
}

/* Reads chunks from `at` until DONE. */
static void
take_rest(struct dealer *c, uint64_t rid, uint32_t at, uint32_t all, uint64_t seed)
{
    for (uint32_t n = 1;; n++) {
        const struct msg *m = receive(c, 30000);

        assert_int_equal(m->rid, rid);
        if (m->type == LAGAN_MSG_DONE) break;
        if (m->type != LAGAN_MSG_CHUNK) fail_msg("%s", text_of(&m->map, "message"));
        assert_int_equal(number(&m->map, "n"), n);
        at = take_chunk(m, at, seed);
        SEND(c, LAGAN_MSG_ACK, rid, { "n", n });
    }
    assert_int_equal(at, all);
}

#define S1 "one and the same"
#define S2 "another of them."

static void
session_moves_its_request_to_another_connection(void **state)
{
    struct dealer *a, *b, *other;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    a = dial_as(S1);
    submit(a, 7, 3, 60, 5);
    for (uint32_t i = 0; i < 3; i++) {
        const struct msg *m = receive_type(a, LAGAN_MSG_CHUNK, 30000);

        take_chunk(m, (uint32_t)number(&m->map, "i"), 5);
    }
    other = dial_as(S2);
    assert_false(resume(other, 7, 2)); /* the rid alone is not enough */
    b = dial_as(S1);
    assert_true(resume(b, 7, 2));
    take_rest(b, 7, 2, 60, 5);

    /* After its end, DONE can be resumed again for a while. */
    dealer_close(b);
    b = dial_as(S1);
    assert_true(resume(b, 7, 59));
    take_rest(b, 7, 59, 60, 5);
    assert_false(resume(b, 8, 0));
    for (;;) { /* the previous connection gets an ERROR */
        const struct msg *m = receive(a, 30000);

        if (m->type == LAGAN_MSG_CHUNK) continue;
        assert_int_equal(m->type, LAGAN_MSG_ERROR);
        assert_int_equal(number(&m->map, "code"), LAGAN_E_CANCELLED);
        break;
    }
    assert_int_equal(lagand_stop(&r), 0);
}

/* A search for a position among several outputs is slow: a frame must not cause one for each of its
 * numbers. */
static void
second_resume_continues_from_its_own_position(void **state)
{
    struct dealer *a;

    (void)state;
    lagand_begin(&r, "good", NULL);
    a = dial_as(S1);
    submit(a, 7, 3, 60, 5);
    take_all(a, 7, 60, 5);
    dealer_close(a);
    a = dial_as(S1);
    assert_true(resume_often(a, 7, 20, 30));
    take_rest(a, 7, 20, 60, 5);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Delivered log-probabilities of the prompt are not kept: the client must submit again. */
static void
resume_from_the_start_needs_prompt_logprobs(void **state)
{
    struct dealer *a, *b;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    a = dial_as(S1);
    SEND(a, LAGAN_MSG_SUBMIT, 7, { "ids", 3 }, { "max_tokens", 1000 }, { "prompt_logprobs", 1 });
    receive_type(a, LAGAN_MSG_ACCEPT, 30000);
    m = receive_type(a, LAGAN_MSG_CHUNK, 30000);
    assert_non_null(msg_get(&m->map, "pl"));
    b = dial_as(S1);
    assert_false(resume(b, 7, 0));
    assert_int_equal(lagand_stop(&r), 0);
}

static void
late_submit_after_resume_is_rejected(void **state)
{
    struct dealer *a, *b;

    (void)state;
    lagand_begin(&r, "good", NULL);
    a = dial_as(S1);
    b = dial_as(S1);
    assert_false(resume(b, 7, 0));
    SEND(a, LAGAN_MSG_SUBMIT, 7, { "ids", 3 }, { "max_tokens", 20 }); /* it was in flight */
    receive_error(a, 7, LAGAN_E_CANCELLED, "another connection of this session", 30000);
    submit(b, 7, 3, 20, 5);
    take_all(b, 7, 20, 5);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
request_waits_for_its_client_until_the_disconnect_timeout(void **state)
{
    struct dealer *a, *here;
    nsec since;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    here = dealer_open(&r, "api.sock");
    a = dial_as(S1);
    SEND(a, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", 100000 },
         { "disconnect_timeout_ms", 0 });
    receive_type(a, LAGAN_MSG_ACCEPT, 30000);
    SEND(a, LAGAN_MSG_SUBMIT, 2, { "ids", 3 }, { "max_tokens", 100000 },
         { "disconnect_timeout_ms", 600000 });
    assert_int_equal(open_requests(here, 1), 2);
    dealer_close(a);
    since = clock_now();
    while (open_requests(here, 1) > 1 && clock_now() < since + 8 * NSEC_S) poll(NULL, 0, ASK_MS);
    assert_int_equal(open_requests(here, 1), 1);
    a = dial_as(S1);
    assert_false(resume(a, 1, 0));
    assert_true(resume(a, 2, 0));
    receive_type(a, LAGAN_MSG_CHUNK, 30000);
    send_keys(a, LAGAN_MSG_BYE, 0, NULL, 0); /* which ends it at once */
    assert_int_equal(lagand_stop(&r), 0);
}

static void
lost_client_is_detected_without_a_send(void **state)
{
    struct dealer *here, *gone;
    nsec since;

    (void)state;
    lagand_start(&r, "loading", NULL); /* no chunk follows, and the idle timeout is 10 s */
    assert_true(lagand_notified(&r, "EXTEND_TIMEOUT_USEC", 3000));
    here = dealer_open(&r, "api.sock");
    gone = dealer_open(&r, "api.sock");
    submit(gone, 1, 3, 10, 1);
    assert_int_equal(open_requests(here, 1), 1);
    dealer_close(gone);
    since = clock_now();
    while (open_requests(here, 1) && clock_now() < since + 8 * NSEC_S) poll(NULL, 0, ASK_MS);
    assert_int_equal(open_requests(here, 1), 0);
    kill(r.pid, SIGTERM);
    assert_int_equal(lagand_wait(&r, 30000), 0);
}

/* The client makes no call meanwhile; lagand must not drop it. */
static void
client_finds_its_request_after_the_idle_timeout(void **state)
{
    nsec until = clock_now() + 60 * NSEC_S;
    struct lagan_event ev = { sizeof ev };
    struct stream s;
    struct lagan *c;

    (void)state;
    lagand_begin(&r, "brisk", ARGS("--api.idle-timeout", "200ms"));
    n_done = 0;
    c = connect_to(&r);
    ask(c, &s, 5);
    assert_int_equal(lagan_next(c, &ev, 30000), 1);
    take_event(&s, &ev);
    poll(NULL, 0, 1000);
    while (!s.done && clock_now() < until)
        if (lagan_next(c, &ev, 1000) == 1) take_event(&s, &ev);
    assert_true(s.done);
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

/* The session of HELLO is valid as long as its connection. */
static void
idle_client_keeps_its_session(void **state)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    struct lagan_request *q = lagan_request_new();
    nsec until = clock_now() + 60 * NSEC_S;
    struct lagan_event ev = { sizeof ev };
    struct lagan *c;
    uint64_t id;

    (void)state;
    lagand_begin(&r, "good", ARGS("--api.idle-timeout", "200ms"));
    c = connect_to(&r);
    poll(NULL, 0, 2500);
    lagan_set_ids(q, "ids", ids, 3);
    lagan_set_str(q, "idempotency_key", "k1", 2);
    assert_int_equal(lagan_submit(c, q, &id), 0);
    while (ev.kind != LAGAN_EVENT_DONE && clock_now() < until) {
        if (lagan_next(c, &ev, 1000) < 1) continue;
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s", ev.message);
    }
    assert_int_equal(ev.kind, LAGAN_EVENT_DONE);
    lagan_request_free(q);
    lagan_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
requests_of_a_previous_lagand_count_for_their_user(void **state)
{
    const msgpack_object *list;
    struct dealer *a, *ctl;

    (void)state;
    lagand_begin(&r, "slow", ARGS("--api.max-user-inflight", "2"));
    a = dial_as(S1);
    submit(a, 1, 3, 100000, 5);
    dealer_close(a);
    lagand_crash(&r, "slow", ARGS("--api.max-user-inflight", "2", "--remove-runtime-dir"));
    lagand_ready(&r);
    call(ctl = dealer_open(&r, "ctl.sock"), 1, "requests list", NULL, NULL);
    list = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 30000)->map, "result");
    assert_int_equal(list->via.array.size, 1);
    assert_string_equal(text_of(list->via.array.ptr, "client"),
                        ""); /* its client has not reconnected */
    a = dial_as(S1);
    assert_true(resume(a, 1, 0));
    a = dial_as(S1);
    assert_true(resume(a, 1, 0)); /* charged once */
    SEND(a, LAGAN_MSG_SUBMIT, 2, { "ids", 3 }, { "max_tokens", 100000 });
    while (receive(a, 30000)->type != LAGAN_MSG_ACCEPT) continue;
    SEND(a, LAGAN_MSG_SUBMIT, 3, { "ids", 3 }, { "max_tokens", 100000 });
    for (;;) {
        const struct msg *m = receive(a, 30000);

        if (m->type == LAGAN_MSG_CHUNK) continue;
        assert_int_equal(m->type, LAGAN_MSG_ERROR);
        assert_int_equal(m->rid, 3);
        assert_non_null(strstr(text_of(&m->map, "message"), "has 2 open requests"));
        break;
    }
    SEND(a, LAGAN_MSG_CANCEL, 1, { "n", 0 });
    SEND(a, LAGAN_MSG_CANCEL, 2, { "n", 0 });
    for (uint64_t rid = 4; open_requests(dealer_open(&r, "api.sock"), 1) && rid < 50; rid++)
        poll(NULL, 0, 20);
    assert_int_equal(open_requests(dealer_open(&r, "api.sock"), 1), 0);
    submit(a = dial_as(S2), 1, 3, 5, 5); /* the charge is released */
    take_all(a, 1, 5, 5);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
say_keyed(struct dealer *c, uint64_t rid, const char *key, uint64_t seed, bool resume)
{
    static const int32_t ids[3] = { 1, 2, 3 };
    msgpack_sbuffer b;
    msgpack_packer p;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_SUBMIT, rid, 5);
    msg_key(&p, "resume"), resume ? msgpack_pack_true(&p) : msgpack_pack_false(&p);
    msg_key(&p, "ids"), msg_bin(&p, ids, sizeof ids);
    msg_key(&p, "max_tokens"), msgpack_pack_int(&p, 20);
    msg_key(&p, "idempotency_key"), msg_text(&p, key);
    msg_key(&p, "seed"), msgpack_pack_uint64(&p, seed);
    send_bytes(c, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
}

static void
repeated_idempotency_key_returns_the_first_request(void **state)
{
    const msgpack_object *status;
    struct dealer *a, *none;

    (void)state;
    lagand_begin(&r, "good", NULL);
    none = dealer_open(&r, "api.sock");
    SEND(none, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "idempotency_key", 5 });
    receive_error(none, 1, LAGAN_E_INVALID_REQUEST, "idempotency_key is not a string", 30000);
    say_keyed(none, 2, "k1", 9, true);
    receive_error(none, 2, LAGAN_E_INVALID_REQUEST, "idempotency_key needs a session", 30000);

    a = dial_as(S1);
    say_keyed(a, 1, "k1", 9, true);
    assert_int_equal(number(&receive_type(a, LAGAN_MSG_ACCEPT, 30000)->map, "seed"), 9);
    take_all(a, 1, 20, 9);
    say_keyed(a, 2, "k1", 10, true); /* its seed is not compared */
    assert_int_equal(number(&receive_type(a, LAGAN_MSG_ACCEPT, 30000)->map, "seed"), 9);
    take_all(a, 2, 20, 9);
    say_keyed(a, 3, "k2", 10, true);
    receive_type(a, LAGAN_MSG_ACCEPT, 30000);
    take_all(a, 3, 20, 10);
    call(a, 4, "status", NULL, NULL);
    status = msg_get(&receive_type(a, LAGAN_MSG_REPLY, 30000)->map, "result");
    assert_int_equal(number(status, "accepted"), 2);
    assert_int_equal(number(status, "finished"), 2); /* once */
    assert_int_equal(lagand_stop(&r), 0);
}

/* The error was retryable, and a retry succeeds. */
static void
repeated_key_of_a_lost_request_runs_it(void **state)
{
    struct dealer *a, *other;
    const struct msg *m;

    (void)state;
    lagand_begin(&r, "slow", NULL);
    a = dial_as(S1);
    other = dealer_open(&r, "api.sock");
    say_keyed(a, 1, "k1", 9, false);
    receive_type(a, LAGAN_MSG_ACCEPT, 30000);
    receive_type(a, LAGAN_MSG_CHUNK, 30000);
    call(other, 1, "workers list", NULL, NULL);
    m = receive_type(other, LAGAN_MSG_REPLY, 30000);
    kill((pid_t)number(msg_get(&m->map, "result")->via.array.ptr, "pid"), SIGKILL);
    while ((m = receive(a, 30000))->type == LAGAN_MSG_CHUNK) continue;
    assert_int_equal(number(&m->map, "code"), LAGAN_E_WORKER_LOST);
    say_keyed(a, 2, "k1", 9, false);
    receive_type(a, LAGAN_MSG_ACCEPT, 30000);
    take_all(a, 2, 20, 9);
    say_keyed(a, 3, "k1", 10, false);
    assert_int_equal(number(&receive_type(a, LAGAN_MSG_ACCEPT, 30000)->map, "seed"), 9);
    take_all(a, 3, 20, 9);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        lagand_test(requests_survive_crashes_of_lagand_without_duplicate_tokens),
        lagand_test(session_moves_its_request_to_another_connection),
        lagand_test(second_resume_continues_from_its_own_position),
        lagand_test(late_submit_after_resume_is_rejected),
        lagand_test(resume_from_the_start_needs_prompt_logprobs),
        lagand_test(request_waits_for_its_client_until_the_disconnect_timeout),
        lagand_test(requests_survive_a_reexec),
        lagand_test(lost_client_is_detected_without_a_send),
        lagand_test(client_finds_its_request_after_the_idle_timeout),
        lagand_test(idle_client_keeps_its_session),
        lagand_test(requests_of_a_previous_lagand_count_for_their_user),
        lagand_test(repeated_idempotency_key_returns_the_first_request),
        lagand_test(repeated_key_of_a_lost_request_runs_it),
    };

    return cmocka_run_group_tests_name("comeback", tests, NULL, NULL);
}
