/* test_delivery.c - requests continue after the loss of their worker; clients that acknowledge get
 * each output once.
 */
#include "daemon/ledger/outputs.h"
#include "daemon/request/deliver.h"
#include "daemon/request/dispatch.h"
#include "daemon/request/lifecycle.h"
#include "tests/daemon/receive_fixture.h"

#include <limits.h>
#include <signal.h>
#include <unistd.h>

static const struct death from_outside = { .cause = DEATH_KILLED, .adopt_kv = true };

static void
requests_of_a_dead_worker_continue_after_received_tokens(void **state)
{
    struct request *ended = dispatched(2, 0, 0), *mine = dispatched(3, 0, 0), *full;
    struct rec_submit head;
    struct err e;
    size_t n;

    (void)state;
    full = dispatched(4, 0, 0);
    mine->terms.no_resume = true;
    lifecycle_end(&d, ended, LAGAN_E_CANCELLED, "before");
    step(request, 2, "ab", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    step(full, MAX_TOKENS, "", &n);
    assert_int_equal(record(REC_STEP, n, &e), 0);
    dispatch_worker_lost(&w, &from_outside);
    assert_int_equal(ended->result.reason, LAGAN_E_CANCELLED);
    assert_int_equal(mine->result.reason, LAGAN_E_WORKER_LOST);
    assert_int_equal(full->result.reason, LAGAN_FINISH_LENGTH); /* nothing was left to send */
    assert_int_equal(request->state, REQUEST_QUEUED);
    assert_int_equal(request->dispatch.resumed, 1);
    assert_false(request->dispatch.held || ended->dispatch.held || mine->dispatch.held);
    request_record(request, 0, &head, sizeof head);
    assert_int_equal(head.n_done, 2);
    assert_int_equal(head.done_text, 2);
    for (int i = 0; i < 100; i++) { /* an external death: no limit */
        request_move(d.ledger, request, REQUEST_DISPATCHED);
        request->dispatch.held = true;
        w.requests.n++, w.requests.n_seqs++;
        w.requests.tokens += request->dispatch.load = request->accounting.n_tokens;
        dispatch_worker_lost(&w, &from_outside);
        assert_int_equal(request->state, REQUEST_QUEUED);
    }
}

static void
client_that_acks_with_full_queue_is_not_slow(void **state)
{
    (void)state;
    request->delivery.n_chunks = 2;
    request->delivery.send_blocked = true;
    d.now = 26000 * NSEC_S;
    request->delivery.stalled_since = d.now - NSEC_S;
    deliver_acked(&d, request, 1, 0);
    deliver_tick(&d, d.now + NSEC_S, 0);
    assert_true(request->attached);
    deliver_tick(&d, d.now + config.o.ack_timeout, 0); /* no longer suspended */
    assert_false(request->attached);
}

static void
time_without_lagand_does_not_count_against_clients(void **state)
{
    const nsec idle_timeout = config.o.idle_timeout, ack_timeout = config.o.ack_timeout;
    struct client *c;
    uint32_t gone;

    (void)state;
    d.now = 26000 * NSEC_S;
    c = session_of(d.sessions, LISTENER_API, "c", 1, d.now, &gone);
    assert_non_null(c);
    c->n_open = 1;
    request->delivery.stalled_since = d.now;
    d.now += idle_timeout + ack_timeout;
    deliver_tick(&d, d.now, idle_timeout + ack_timeout - NSEC_MS);
    assert_true(request->attached);
    assert_int_equal(d.now - c->received_at, NSEC_MS);
    assert_int_equal(d.now - request->delivery.stalled_since, NSEC_MS);
    deliver_tick(&d, d.now, NSEC_S); /* no client sent a message after now */
    assert_int_equal(c->received_at, d.now);
    assert_int_equal(request->delivery.stalled_since, d.now);
}

/* Otherwise a client could acknowledge without reading, and have unlimited unread bytes. */
static void
ack_counts_bytes_up_to_its_chunk_only(void **state)
{
    struct rec_submit *s = calloc(1, sizeof *s);
    struct client *c;
    struct request *r;
    uint32_t gone;

    (void)state;
    c = session_of(d.sessions, LISTENER_API, "c", 1, 1, &gone);
    assert_int_equal(ledger_take(d.ledger, c->handle, 7, s, sizeof *s, &r), 0);
    r->delivery.ack_window = 4;
    c->sent = 1000;
    deliver_acked(&d, r, 0, 0);
    deliver_acked(&d, r, 0, 0);
    assert_int_equal(c->read, 0);
    r->delivery.n_chunks = 1;
    r->delivery.chunk_sent = 400;
    deliver_acked(&d, r, 1, 0);
    deliver_acked(&d, r, 1, 0);
    assert_int_equal(c->read, 400);
}

/* A client may have thousands of requests with 512 KiB undelivered each, tried 100 times a second.
 */
static void
chunk_is_not_encoded_without_space(void **state)
{
    const struct session_id session = { { 1 } };
    struct client *c;
    uint32_t gone;

    (void)state;
    c = session_of(d.sessions, LISTENER_API, "c", 1, 1, &gone);
    assert_int_equal(ledger_name(d.ledger, request, &session, NULL, 0), 0);
    assert_int_equal(ledger_attach(d.ledger, request, c->handle, 1), 0);
    assert_int_equal(bytes_add(&request->outputs.token, "0123", 4), 0);
    c->sent = 8 << 20;
    c->ping_pending = true;
    d.now = NSEC_S;
    ledger_add_pending(d.ledger, request);
    assert_false(deliver_flush(&d));
    assert_true(request->delivery.send_blocked);
    assert_int_equal(d.out.size, 0);
}

/* With several outputs: a refused resume must not change the position. */
static void
refused_resume_leaves_the_request_unchanged(void **state)
{
    const struct session_id session = { { 1 } };
    const struct output_span spans[] = { { 0, 2, 2, 0 }, { 1, 1, 1, 0 }, { 0, 1, 1, 0 } };
    struct rec_submit *s = calloc(1, sizeof *s);
    struct request *r, *other;
    struct client *c;
    uint32_t gone;

    (void)state;
    c = session_of(d.sessions, LISTENER_API, "c", 1, 1, &gone);
    *s = (struct rec_submit){ .n = 2, .max_tokens = MAX_TOKENS };
    assert_int_equal(ledger_take(d.ledger, 1, 7, s, sizeof *s, &r), 0);
    assert_int_equal(outputs_init(r), 0);
    assert_int_equal(ledger_name(d.ledger, r, &session, NULL, 0), 0);
    for (size_t i = 0; i < ARRAY_LEN(spans); i++) {
        assert_int_equal(bytes_add(&r->outputs.token, "0123456789ab", 4 * spans[i].n), 0);
        assert_int_equal(bytes_add(&r->outputs.text, "text", spans[i].n_text), 0);
        assert_int_equal(outputs_add_span(r, &spans[i]), 0);
    }
    outputs_resume(r, 3, 3);
    r->delivery.n_tokens = r->delivery.n_text = 3;
    assert_int_equal(deliver_resume(&d, r, c, 7, 1, 3, 4), -ENOENT);
    assert_int_equal(outputs_next(r).n, 1);

    other = dispatched(8, 0, 0);
    assert_int_equal(ledger_name(d.ledger, other, &session, NULL, 0), 0);
    assert_int_equal(deliver_resume(&d, r, c, 8, 0, 0, 4), -EEXIST);
    assert_int_equal(outputs_next(r).n, 1);
    assert_int_equal(outputs_next_first(r), 2);
}

/* The next worker starts at the prompt; the client has three of its positions. */
static void
prompt_logprobs_are_delivered_once(void **state)
{
    struct request *r = dispatched(2, 0, SUBMIT_PROMPT_LOGPROBS | SUBMIT_LOGPROBS);
    struct rec_prompt *p = (struct rec_prompt *)buf.b;
    struct err e;
    size_t n = sizeof *p + 5 * 8;

    (void)state;
    memset(&buf, 0, sizeof buf);
    *p = (struct rec_prompt){ .ledger_index = r->index, .gen = r->gen, .n = 5 };
    assert_int_equal(record(REC_PROMPT_LOGPROBS, n, &e), 0);
    r->delivery.n_prompt = 3;
    dispatch_worker_lost(&w, &from_outside);
    assert_int_equal(r->outputs.prompt_logprob.n, 0);
    request_move(d.ledger, r, REQUEST_DISPATCHED);
    r->dispatch.held = true;
    w.requests.n++, w.requests.n_seqs++;
    w.requests.tokens += r->dispatch.load = r->accounting.n_tokens;
    for (uint32_t i = 0; i < 5; i++) memcpy((char *)(p + 1) + 4 * i, &i, 4);
    assert_int_equal(record(REC_PROMPT_LOGPROBS, n, &e), 0);
    assert_int_equal(r->outputs.n_prompt_received, 5);
    assert_int_equal(r->outputs.prompt_logprob.n, 2 * 4);
    assert_memory_equal(r->outputs.prompt_id.p, (const uint32_t[]){ 3 }, 4);
}

/* Chunks of the previous worker need no ACK. */
static void
restarted_request_does_not_wait_for_old_acks(void **state)
{
    struct request *r = dispatched(2, 0, SUBMIT_PROMPT_LOGPROBS | SUBMIT_LOGPROBS);
    struct rec_prompt *p = (struct rec_prompt *)buf.b;
    struct rec_submit head;
    struct err e;

    (void)state;
    memset(&buf, 0, sizeof buf);
    *p = (struct rec_prompt){ .ledger_index = r->index, .gen = r->gen, .n = 5 };
    assert_int_equal(record(REC_PROMPT_LOGPROBS, sizeof *p + 5 * 8, &e), 0);
    d.now = 26000 * NSEC_S;
    r->delivery.stalled_since = d.now - NSEC_S;
    deliver_tick(&d, d.now, 0);
    assert_true(r->notify.suspended);
    dispatch_worker_lost(&w, &from_outside);
    deliver_tick(&d, d.now, 0);
    assert_false(r->notify.suspended);
    r->notify.suspend_sent = r->notify.suspended;
    request_record(r, 0, &head, sizeof head);
    assert_int_equal(head.flags & SUBMIT_SUSPENDED, 0);
}

/* With max_len 8, two outputs of five tokens may continue. */
static void
each_continuing_output_is_checked_against_its_length(void **state)
{
    static const uint8_t id[16] = { 1 };
    static const int32_t tokens[5];
    struct rec_submit *s = calloc(1, sizeof *s);
    struct channel theirs;
    struct request *r;
    struct err e;
    int doorbell;

    (void)state;
    assert_int_equal(channel_make(&w.channel, 0, 1, id, 13, 13, &doorbell, &e), 0);
    assert_int_equal(
        channel_attach(&theirs, dup(w.channel.d.fd), dup(w.channel.w.fd), doorbell, 1, &e), 0);
    w.alive = true;
    d.facts[0].max_len = 8;
    *s = (struct rec_submit){ .n = 2, .max_tokens = 7 };
    assert_int_equal(ledger_take(d.ledger, 1, 7, s, sizeof *s, &r), 0);
    assert_int_equal(outputs_init(r), 0);
    for (uint32_t output = 0; output < 2; output++) {
        assert_int_equal(bytes_add(&r->outputs.token, tokens, sizeof tokens), 0);
        assert_int_equal(outputs_add_span(r, &(struct output_span){ output, 5, 0, 0 }), 0);
    }
    dispatch(&d);
    assert_string_equal(r->result.message, "");
    assert_int_equal(r->state, REQUEST_DISPATCHED);
    channel_close(&theirs);
    channel_close(&w.channel);
}

/* The process hangs in the kernel or in a debugger: its requests must not wait without end. */
static void
rank_group_that_does_not_end_is_lost(void **state)
{
    struct worker o = { .d = &d, .lead = &w, .rank = 1, .alive = true, .info.pid = INT_MAX };

    (void)state;
    w.other[w.n_others++] = &o;
    d.now = 26000 * NSEC_S;
    w.end = (struct end){ .known = true, .code = CLD_DUMPED, .status = SIGSEGV, .at = d.now };
    worker_tick(&w, d.now + NSEC_S, 0);
    assert_int_equal(w.super.state, SUPER_READY);
    d.now += config.o.stall_timeout;
    worker_tick(&w, d.now, 0);
    assert_int_equal(w.super.state, SUPER_DYING);
    assert_int_equal(w.super.suspect, DEATH_SIGNAL);
    d.now += 11 * NSEC_S;
    worker_tick(&w, d.now, 0);
    assert_int_equal(w.super.state, SUPER_LOST);
    w.n_others = 0;
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(requests_of_a_dead_worker_continue_after_received_tokens),
        T(time_without_lagand_does_not_count_against_clients),
        T(client_that_acks_with_full_queue_is_not_slow),
        T(ack_counts_bytes_up_to_its_chunk_only),
        T(chunk_is_not_encoded_without_space),
        T(refused_resume_leaves_the_request_unchanged),
        T(prompt_logprobs_are_delivered_once),
        T(restarted_request_does_not_wait_for_old_acks),
        T(each_continuing_output_is_checked_against_its_length),
        T(rank_group_that_does_not_end_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
