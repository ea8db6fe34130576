/* test_readers.c - clients that do not read: their requests are suspended, other clients are not
 * affected, and a resume continues at the right position.
 */
#include "base/clock.h"
#include "include/lagan.h"
#include "tests/daemon/fake.h"
#include "tests/daemon/lagand_fixture.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>

static struct lagand_fixture r;

/* The only request, as operators see it: state, number of tokens, worker. */
struct seen {
    char state[16], worker[16];
    uint64_t n;
};

static struct seen
look(struct dealer *ctl)
{
    const msgpack_object *list, *one;
    struct seen s;

    call(ctl, 1, "requests list", NULL, NULL);
    list = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result");
    assert_int_equal(list->via.array.size, 1);
    one = list->via.array.ptr;
    s.n = number(one, "generated");
    snprintf(s.state, sizeof s.state, "%s", text_of(one, "state"));
    snprintf(s.worker, sizeof s.worker, "%s", text_of(one, "worker"));
    return s;
}

/* Waits until it is suspended and its last tokens are delivered. Returns their number. */
static uint64_t
await_suspension(struct dealer *ctl)
{
    nsec until = clock_now() + 30 * NSEC_S;
    struct seen s = look(ctl), before = { .n = UINT64_MAX };

    while ((strcmp(s.state, "suspended") || s.n != before.n) && clock_now() < until) {
        poll(NULL, 0, 100);
        before = s;
        s = look(ctl);
    }
    assert_string_equal(s.state, "suspended");
    return s.n;
}

/* Checks a chunk whose text may end inside a token. Returns its tokens. */
static uint32_t
take_tokens(const struct msg *m, uint32_t at, uint64_t seed)
{
    struct msg_span t;

    assert_int_equal(number(&m->map, "i"), at);
    assert_int_equal(msg_str(&m->map, "t", &t), 0);
    for (uint32_t i = 0; i < t.n / 4; i++) {
        int32_t id;

        memcpy(&id, t.p + 4 * i, 4);
        assert_int_equal(id, fake_token(seed, at + i));
    }
    return t.n / 4;
}

/* Reads and acknowledges chunks until that many tokens have come. */
static uint32_t
read_to(struct dealer *c, uint64_t rid, uint32_t at, uint32_t *chunk, uint32_t to, uint64_t seed)
{
    while (at < to) {
        const struct msg *m = receive_type(c, LAGAN_MSG_CHUNK, 5000);

        assert_int_equal(m->rid, rid);
        assert_int_equal(number(&m->map, "n"), ++*chunk);
        at = take_chunk(m, at, seed);
        SEND(c, LAGAN_MSG_ACK, rid, { "n", *chunk });
    }
    return at;
}

/* Starts lagand and submits request 1; 2 of its CHUNK messages may be unacknowledged. */
static void
submit_with_small_window(struct dealer **c, struct dealer **ctl, uint32_t max_tokens)
{
    lagand_begin(&r, "brisk", NULL);
    *c = dealer_open(&r, "api.sock");
    *ctl = dealer_open(&r, "ctl.sock");
    SEND(*c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", max_tokens }, { "ack_window", 2 },
         { "seed", 4 });
    receive_type(*c, LAGAN_MSG_ACCEPT, 2000);
}

static void
ack_of_chunks_that_were_not_sent_gives_no_credit(void **state)
{
    struct dealer *c, *ctl;

    (void)state;
    submit_with_small_window(&c, &ctl, 3000);
    receive_type(c, LAGAN_MSG_CHUNK, 30000);
    receive_type(c, LAGAN_MSG_CHUNK, 30000);
    SEND(c, LAGAN_MSG_ACK, 1, { "n", 100 });
    assert_true(silent(c, 300));
    SEND(c, LAGAN_MSG_ACK, 1, { "n", 2 });
    assert_int_equal(number(&receive_type(c, LAGAN_MSG_CHUNK, 30000)->map, "n"), 3);
    dealer_close(c);
    kill(r.pid, SIGTERM);
    assert_int_equal(lagand_wait(&r, 30000), 0);
}

/* All tokens without credit are sent as one chunk. */
static void
tokens_without_credit_are_sent_as_one_chunk(void **state)
{
    enum { TOKENS = 3000 };
    struct dealer *c, *ctl;
    const struct msg *m;
    uint32_t at = 0;
    uint64_t n;

    (void)state;
    submit_with_small_window(&c, &ctl, TOKENS);
    for (uint32_t chunk = 1; chunk <= 2; chunk++) {
        m = receive_type(c, LAGAN_MSG_CHUNK, 2000);
        assert_int_equal(number(&m->map, "n"), chunk);
        at = take_chunk(m, at, 4);
    }
    n = await_suspension(ctl);
    assert_true(n > at);
    assert_true(silent(c, 50)); /* no credit is left */
    SEND(c, LAGAN_MSG_ACK, 1, { "n", 1 });
    m = receive_type(c, LAGAN_MSG_CHUNK, 2000);
    assert_int_equal(number(&m->map, "n"), 3);
    assert_int_equal(take_chunk(m, at, 4), n);
    dealer_close(c);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
worker_suspends_a_request_whose_client_does_not_read(void **state)
{
    enum { TOKENS = 3000 };
    struct dealer *c, *ctl;
    uint32_t at = 0, chunk = 0;
    uint64_t n;

    (void)state;
    submit_with_small_window(&c, &ctl, TOKENS);
    for (int round = 0; round < 2; round++) {
        n = await_suspension(ctl);
        assert_true(n < TOKENS);
        poll(NULL, 0, 300); /* time for hundreds of tokens */
        assert_int_equal(look(ctl).n, n);
        at = read_to(c, 1, at, &chunk, (uint32_t)n + 1, 4);
    }
    assert_int_equal(read_to(c, 1, at, &chunk, TOKENS, 4), TOKENS);
    receive_type(c, LAGAN_MSG_DONE, 2000);
    assert_int_equal(lagand_stop(&r), 0);
}

/* Reads events of liblagan until none has come for 200 ms, or until DONE. Returns true at DONE. */
static bool
read_events(struct lagan *client, uint32_t *at)
{
    struct lagan_event ev = { sizeof ev };

    while (lagan_next(client, &ev, 200) > 0) {
        if (ev.kind == LAGAN_EVENT_DONE) return true;
        assert_int_not_equal(ev.kind, LAGAN_EVENT_ERROR);
        if (ev.kind != LAGAN_EVENT_TOKENS) continue;
        assert_int_equal(ev.first, *at);
        *at += ev.n_ids;
    }
    return false;
}

static void
request_whose_acks_are_held_is_suspended_and_continues(void **state)
{
    enum { TOKENS = 3000 };
    struct lagan_request *q = lagan_request_new();
    struct lagan *client;
    struct dealer *ctl;
    char endpoint[128];
    uint64_t id;
    uint32_t at = 0;

    (void)state;
    lagand_begin(&r, "brisk", NULL);
    ctl = dealer_open(&r, "ctl.sock");
    snprintf(endpoint, sizeof endpoint, "ipc://%s/api.sock", r.run);
    assert_int_equal(lagan_open(&client, endpoint, 30000), 0);
    assert_int_equal(lagan_set_ids(q, "ids", &(int32_t){ 3 }, 1), 0);
    assert_int_equal(lagan_set_int(q, "max_tokens", TOKENS), 0);
    assert_int_equal(lagan_set_int(q, "ack_window", 2), 0);
    assert_int_equal(lagan_submit(client, q, &id), 0);
    assert_int_equal(lagan_ack_hold(client, id, 1), 0);
    lagan_request_free(q);
    assert_false(read_events(client, &at));
    assert_true(await_suspension(ctl) < TOKENS);
    assert_false(read_events(client, &at));
    assert_int_equal(lagan_ack_hold(client, id, 0), 0);
    while (!read_events(client, &at)) continue;
    assert_int_equal(at, TOKENS);
    lagan_close(client);
    assert_int_equal(lagand_stop(&r), 0);
}

static void
suspended_request_stays_suspended_after_a_worker_restart(void **state)
{
    enum { TOKENS = 3000 };
    struct dealer *c, *ctl;
    uint32_t at = 0, chunk = 0;
    uint64_t n, until;

    (void)state;
    lagand_begin(&r, "brisk", NULL);
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    SEND(c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", TOKENS }, { "ack_window", 2 },
         { "seed", 9 });
    receive_type(c, LAGAN_MSG_ACCEPT, 2000);
    n = await_suspension(ctl);
    for (int kills = 1; kills <= 3; kills++) {
        const msgpack_object *w;
        struct seen s;

        call(ctl, 1, "workers list", NULL, NULL);
        w = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result");
        assert_int_equal(kill((pid_t)number(w->via.array.ptr, "pid"), SIGKILL), 0);
        until = (uint64_t)clock_now() + 30 * NSEC_S;
        do {
            poll(NULL, 0, ASK_MS);
            call(ctl, 1, "workers list", NULL, NULL);
            w = msg_get(&receive_type(ctl, LAGAN_MSG_REPLY, 2000)->map, "result");
        } while ((number(w->via.array.ptr, "restarts") < (uint64_t)kills ||
                  strcmp(text_of(w->via.array.ptr, "state"), "ready")) &&
                 (uint64_t)clock_now() < until);
        do s = look(ctl);
        while (strcmp(s.state, "suspended") && (uint64_t)clock_now() < until);
        poll(NULL, 0, 200);
        s = look(ctl);
        assert_string_equal(s.state, "suspended");
        assert_string_equal(s.worker, "w0");
        assert_int_equal(s.n, n);
    }
    at = read_to(c, 1, at, &chunk, TOKENS, 9);
    assert_int_equal(at, TOKENS);
    assert_int_equal(
        number(msg_get(&receive_type(c, LAGAN_MSG_DONE, 2000)->map, "outputs")->via.array.ptr,
               "resumed"),
        3);
    assert_int_equal(lagand_stop(&r), 0);
}

/* 24 MiB of log-probabilities; at most 16 MiB of them may be undelivered. */
static void
unread_logprobs_suspend_the_request_without_loss(void **state)
{
    enum { TOKENS = 3000 };
    struct dealer *c, *ctl;
    uint32_t at = 0, chunk = 0;

    (void)state;
    lagand_begin(&r, "good", NULL);
    c = dealer_open(&r, "api.sock");
    ctl = dealer_open(&r, "ctl.sock");
    SEND(c, LAGAN_MSG_SUBMIT, 1, { "ids", 3 }, { "max_tokens", TOKENS }, { "ack_window", 1 },
         { "seed", 2 }, { "logprobs", 1000 });
    receive_type(c, LAGAN_MSG_ACCEPT, 2000);
    assert_in_range(await_suspension(ctl), 1, TOKENS / 2);
    while (at < TOKENS) {
        const struct msg *m = receive(c, 5000);

        if (m->type == LAGAN_MSG_PING) continue;
        assert_int_equal(m->type, LAGAN_MSG_CHUNK);
        assert_int_equal(number(&m->map, "n"), ++chunk);
        at += take_tokens(m, at, 2);
        SEND(c, LAGAN_MSG_ACK, 1, { "n", chunk });
    }
    while (receive(c, 5000)->type == LAGAN_MSG_PING) continue;
    assert_int_equal(lagand_stop(&r), 0);
}

/* Submits requests without reading, until lagand refuses. */
static struct dealer *
ask_and_do_not_read(uint32_t n)
{
    struct dealer *c = dealer_open_small(&r, "api.sock", 8);

    for (uint64_t i = 0; i < n; i++)
        SEND(c, LAGAN_MSG_SUBMIT, i, { "ids", 3 }, { "max_tokens", 500000 }, { "seed", (int64_t)i },
             { "ack_window", LAGAN_MAX_ACK_WINDOW }, { "logprobs", 20 });
    assert_true(lagand_logged(&r, "has not read for", 30000));
    return c;
}

static void
late_reader_gets_the_end_of_every_request(void **state)
{
    enum { REQUESTS = 20 };
    uint32_t n_errors = 0, at[REQUESTS] = { 0 };
    const struct msg *m;
    struct dealer *c;

    (void)state;
    lagand_begin(&r, "good", ARGS("--api.ack-timeout", "1s"));
    c = ask_and_do_not_read(REQUESTS);
    while (n_errors < REQUESTS) {
        m = receive(c, 5000);
        if (m->type == LAGAN_MSG_CHUNK) at[m->rid] += take_tokens(m, at[m->rid], m->rid);
        if (m->type != LAGAN_MSG_ERROR) continue;
        n_errors++;
        assert_int_equal(number(&m->map, "code"), LAGAN_E_SLOW_READER);
        assert_int_equal(number(&m->map, "delivered"), at[m->rid]); /* after its unread messages */
    }
    m = receive_type(c, LAGAN_MSG_PING, 5000);
    SEND(c, LAGAN_MSG_PONG, 0, { "t", (int64_t)number(&m->map, "t") });
    poll(NULL, 0, 1500); /* all is read: the connection stays open */
    submit(c, 100, 3, 20, 5);
    take_all(c, 100, 20, 5);
    assert_int_equal(lagand_stop(&r), 0);
}

static uint32_t
n_descriptors(const struct lagand_fixture *f)
{
    char path[64];
    uint32_t n = 0;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)f->pid);
    dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void
client_that_never_reads_is_disconnected(void **state)
{
    nsec until = clock_now() + 30 * NSEC_S;
    struct dealer *c;
    uint32_t before;

    (void)state;
    lagand_begin(&r, "good", ARGS("--api.ack-timeout", "400ms"));
    c = dealer_open(&r, "api.sock");
    submit(c, 1, 3, 20, 5);
    take_all(c, 1, 20, 5);
    before = n_descriptors(&r);
    ask_and_do_not_read(20);
    assert_true(lagand_logged(&r, "closing its connection", 30000));
    while (n_descriptors(&r) > before && clock_now() < until) poll(NULL, 0, 20);
    assert_int_equal(n_descriptors(&r), before);
    submit(c, 2, 3, 20, 6);
    take_all(c, 2, 20, 6);
    assert_int_equal(lagand_stop(&r), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        lagand_test(ack_of_chunks_that_were_not_sent_gives_no_credit),
        lagand_test(tokens_without_credit_are_sent_as_one_chunk),
        lagand_test(worker_suspends_a_request_whose_client_does_not_read),
        lagand_test(request_whose_acks_are_held_is_suspended_and_continues),
        lagand_test(suspended_request_stays_suspended_after_a_worker_restart),
        lagand_test(unread_logprobs_suspend_the_request_without_loss),
        lagand_test(late_reader_gets_the_end_of_every_request),
        lagand_test(client_that_never_reads_is_disconnected),
    };

    return cmocka_run_group_tests_name("readers", tests, NULL, NULL);
}
