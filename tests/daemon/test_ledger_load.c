/* test_ledger_load.c - the next lagand restores what the previous one had. */
#include "daemon/config/options.h"
#include "daemon/ledger/ledger_save.h"

#include "daemon/ledger/quarantine.h"
#include "daemon/ledger/request.h"
#include "daemon/request/deliver.h"
#include "daemon/request/dispatch.h"
#include "daemon/request/lifecycle.h"
#include "tests/test.h"

#include <unistd.h>

static struct config config;
static struct daemon was, is;
static const struct session_id one = { { 1 } };

static uint32_t
restore(struct daemon *d, int fd)
{
    uint32_t n;

    d->ledger_log = ledger_log_new(d->ledger, d->config);
    d->quarantine = quarantine_new();
    assert_true(d->ledger_log && d->quarantine);
    n = ledger_log_open(d->ledger_log, fd) ? dispatch_restore(d) : 0;
    ledger_log_start(d->ledger_log);
    return n;
}

static void
open_daemon(struct daemon *d, int fd, uint32_t n)
{
    memset(d, 0, sizeof *d);
    d->config = &config;
    d->now = 1000;
    d->ledger = ledger_new(64, 1);
    d->sessions = sessions_new(1);
    assert_int_equal(restore(d, fd), n);
}

static void
close_daemon(struct daemon *d)
{
    ledger_check(d->ledger);
    d->ledger = ledger_free(d->ledger);
    d->sessions = sessions_free(d->sessions);
    d->ledger_log = ledger_log_free(d->ledger_log);
    d->quarantine = quarantine_free(d->quarantine);
}

static int
set_up(void **state)
{
    (void)state;
    opt_defaults(daemon_opts, &config.o);
    config.n_models = 2;
    strcpy(config.model[0].keys.name, "other");
    strcpy(config.model[1].keys.name, "mine");
    open_daemon(&was, -1, 0);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    close_daemon(&was);
    if (is.ledger) close_daemon(&is);
    return 0;
}

/* lagand ends; the next one restores n requests. */
static void
next_lagand(uint32_t n)
{
    open_daemon(&is, dup(ledger_log_fd(was.ledger_log)), n);
}

static struct request *
row(uint64_t rid, const char *key, uint32_t logprobs)
{
    struct rec_submit *s = calloc(1, sizeof *s + 24);
    struct request *r;

    s->n_prompt = 3;
    s->max_tokens = 8;
    s->logprobs = logprobs;
    s->flags = logprobs ? SUBMIT_LOGPROBS : 0;
    s->salt_bytes = 5;
    memcpy(s + 1, "a prompt....", 12);
    memcpy((char *)(s + 1) + 16, "salty", 5);
    assert_int_equal(ledger_take(was.ledger, 1, rid, s, sizeof *s + 24, &r), 0);
    assert_int_equal(ledger_name(was.ledger, r, &one, key, key ? (uint32_t)strlen(key) : 0), 0);
    r->terms.model = 1;
    r->delivery.ack_window = 4;
    r->terms.deadline = 77 * NSEC_S;
    return r;
}

/* Adds n tokens, each with a letter, like receive.c. */
static void
grow(struct request *r, uint32_t n)
{
    uint32_t each = r->submit->logprobs * 8;

    for (uint32_t i = 0; i < n; i++) {
        int32_t id = (int32_t)(r->outputs.n_received + i);
        float lp = (float)-id;
        char top[64] = { (char)id };

        assert_int_equal(bytes_add(&r->outputs.token, &id, 4), 0);
        assert_int_equal(bytes_add(&r->outputs.text, (const char[]){ (char)('a' + id) }, 1), 0);
        if (!each) continue;
        assert_int_equal(bytes_add(&r->outputs.logprob, &lp, 4), 0);
        assert_int_equal(bytes_add(&r->outputs.top, top, each), 0);
    }
    r->outputs.n_received += n;
    r->outputs.n_text_received += n;
    r->outputs.score -= 0.5f;
    ledger_save_tokens(was.ledger_log, r, n, n);
}

static void
same_bytes(const struct bytes *a, const struct bytes *b)
{
    assert_int_equal(a->n, b->n);
    if (a->n) assert_memory_equal(a->p, b->p, a->n);
}

static void
open_request_is_queued_with_all_received_tokens(void **state)
{
    struct request *r = row(7, "blue", 2), *n;

    (void)state;
    strcpy(r->terms.request_id, "req-7");
    r->terms.accepted_at = 1764000000;
    ledger_save_new(was.ledger_log);
    request_move(was.ledger, r, REQUEST_DISPATCHED);
    grow(r, 2);
    request_move(was.ledger, r, REQUEST_STREAMING);
    grow(r, 3);
    r->suspicion.n_faults = 1;
    r->suspicion.fault_at = 5;
    r->dispatch.resumed = 3;
    r->dispatch.held = true;
    r->dispatch.worker = 4;
    ledger_save_state(was.ledger_log, r);
    next_lagand(1);
    n = ledger_find_key(is.ledger, &one, "blue", 4);
    assert_non_null(n);
    assert_ptr_equal(ledger_find_rid(is.ledger, &one, 7), n);
    assert_int_equal(n->id, r->id);
    assert_int_equal(n->state, REQUEST_QUEUED);
    assert_false(n->attached);
    assert_int_equal(n->terms.model, 1);
    assert_int_equal(n->terms.deadline, r->terms.deadline);
    assert_string_equal(n->terms.request_id, "req-7");
    assert_int_equal(n->terms.accepted_at, 1764000000);
    assert_int_equal(n->submit_bytes, r->submit_bytes);
    assert_memory_equal(n->submit + 1, r->submit + 1, 16);
    same_bytes(&n->outputs.token, &r->outputs.token);
    same_bytes(&n->outputs.text, &r->outputs.text);
    same_bytes(&n->outputs.logprob, &r->outputs.logprob);
    same_bytes(&n->outputs.top, &r->outputs.top);
    assert_true(n->outputs.score == r->outputs.score);
    assert_int_equal(n->outputs.n_received, 5);
    assert_int_equal(n->suspicion.n_faults, 1);
    assert_int_equal(n->dispatch.home, 5);    /* its KV is at worker 4 */
    assert_int_equal(n->dispatch.resumed, 4); /* the restart of lagand counts as a lost worker */
    assert_true(ledger_last_id(is.ledger) >= r->id);
}

static void
no_resume_request_ends_after_a_restart(void **state)
{
    struct request *r = row(7, "blue", 0), *waits = row(8, "red", 0), *n;

    (void)state;
    r->terms.no_resume = waits->terms.no_resume = true;
    ledger_save_new(was.ledger_log);
    request_move(was.ledger, r, REQUEST_DISPATCHED);
    r->dispatch.held = true;
    ledger_save_state(was.ledger_log, r);
    next_lagand(2);
    n = ledger_find_rid(is.ledger, &one, 7);
    assert_int_equal(n->state, REQUEST_ENDED);
    assert_int_equal(n->result.reason, LAGAN_E_WORKER_LOST);
    assert_int_equal(ledger_find_rid(is.ledger, &one, 8)->state,
                     REQUEST_QUEUED); /* no worker had it */
}

static void
restored_requests_reserve_their_memory(void **state)
{
    struct request *r = row(7, "blue", 0), *n;
    uint64_t tokens = r->submit->max_tokens;

    (void)state;
    row(8, "red", 0);
    ledger_save_new(was.ledger_log);
    request_move(was.ledger, r, REQUEST_DISPATCHED);
    lifecycle_end(&was, r, LAGAN_FINISH_LENGTH, "%s", "");
    next_lagand(2);
    assert_in_range(is.held_bytes, 16 * tokens,
                    16 * tokens + 8192); /* of one output; the other one has ended */
    n = ledger_find_rid(is.ledger, &one, 8);
    lifecycle_end(&is, n, LAGAN_E_CANCELLED, "%s", "");
    assert_true(n->retained);
    assert_int_equal(is.held_bytes, 0);
}

/* A request that is queued before others must be saved too. */
static void
new_request_before_others_in_the_queue_is_saved(void **state)
{
    (void)state;
    ledger_set_fair_tag(was.ledger, row(7, "blue", 0), 5);
    ledger_save_new(was.ledger_log);
    ledger_set_fair_tag(was.ledger, row(8, "red", 0), 4);
    ledger_save_new(was.ledger_log);
    next_lagand(2);
    assert_non_null(ledger_find_rid(is.ledger, &one, 7));
    assert_non_null(ledger_find_rid(is.ledger, &one, 8));
}

static void
ended_request_is_retained_and_does_not_run_again(void **state)
{
    struct request *r = row(7, "blue", 0), *n;

    (void)state;
    ledger_save_new(was.ledger_log);
    request_move(was.ledger, r, REQUEST_DISPATCHED);
    grow(r, 2);
    r->result.cached = 9;
    r->result.n_prompt_tokens = 3;
    r->result.stop = 2;
    lifecycle_end(&was, r, LAGAN_E_DEADLINE, "after %d", 2);
    next_lagand(1);
    n = ledger_find_key(is.ledger, &one, "blue", 4);
    assert_non_null(n);
    assert_true(n->retained);
    assert_int_equal(n->result.reason, LAGAN_E_DEADLINE);
    assert_string_equal(n->result.message, "after 2");
    assert_int_equal(n->result.cached, 9);
    assert_int_equal(n->result.n_prompt_tokens, 3);
    assert_int_equal(n->result.stop, 2);
    same_bytes(&n->outputs.token, &r->outputs.token);
    assert_int_equal(ledger_counts(is.ledger).queued, 0);
}

/* The second lagand saves it without the tails of its SUBMIT, the cache salt included. */
static void
retained_request_survives_two_lagands(void **state)
{
    struct request *r = row(7, "blue", 0);
    struct daemon third;

    (void)state;
    ledger_save_new(was.ledger_log);
    request_move(was.ledger, r, REQUEST_DISPATCHED);
    lifecycle_end(&was, r, LAGAN_E_DEADLINE, "late");
    next_lagand(1);
    open_daemon(&third, dup(ledger_log_fd(is.ledger_log)), 1);
    assert_non_null(ledger_find_key(third.ledger, &one, "blue", 4));
    close_daemon(&third);
}

static void
request_with_its_last_token_is_ended(void **state)
{
    struct request *r = row(7, NULL, 0);

    (void)state;
    ledger_save_new(was.ledger_log);
    request_move(was.ledger, r, REQUEST_DISPATCHED);
    grow(r, 8);
    next_lagand(1);
    r = ledger_find_rid(is.ledger, &one, 7);
    assert_true(r->retained);
    assert_int_equal(r->result.reason, LAGAN_FINISH_LENGTH);
    assert_int_equal(r->result.n_prompt_tokens, 3);
}

static void
acknowledged_logprobs_are_not_saved_others_are(void **state)
{
    struct request *r = row(7, NULL, 2), *n;

    (void)state;
    ledger_save_new(was.ledger_log);
    request_move(was.ledger, r, REQUEST_DISPATCHED);
    grow(r, 4);
    bytes_drop(&r->outputs.logprob, 3 * 4);
    bytes_drop(&r->outputs.top, 3 * 16);
    r->outputs.first_logprob = 3;
    grow(r, 1);
    was.ledger_log->rewrite_above = 0; /* the next save rewrites everything */
    grow(r, 1);
    next_lagand(1);
    n = ledger_find_rid(is.ledger, &one, 7);
    assert_int_equal(n->outputs.first_logprob, 3);
    same_bytes(&n->outputs.logprob, &r->outputs.logprob);
    same_bytes(&n->outputs.top, &r->outputs.top);
    same_bytes(&n->outputs.token, &r->outputs.token);
}

static void
unnamed_requests_and_removed_models_are_not_restored(void **state)
{
    struct rec_submit *s = calloc(1, sizeof *s);
    struct request *r = row(1, NULL, 0), *unnamed;

    (void)state;
    s->max_tokens = 3;
    assert_int_equal(ledger_take(was.ledger, 1, 2, s, sizeof *s, &unnamed), 0);
    row(3, NULL, 0)->submit->flags |= SUBMIT_PROMPT_LOGPROBS;
    row(4, NULL, 0);
    ledger_save_new(was.ledger_log);
    strcpy(config.model[1].keys.name, "new");
    was.ledger_log->rewrite_above = 0;
    ledger_save_state(was.ledger_log, r); /* all rewritten, with the new name */
    strcpy(config.model[1].keys.name, "mine");
    row(5, NULL, 0);
    ledger_save_new(was.ledger_log);
    next_lagand(1);
    assert_non_null(ledger_find_rid(is.ledger, &one, 5));
    assert_null(ledger_find_rid(is.ledger, &one, 4));
    /* Ids of dropped requests are not used again, because KV is identified by them. */
    assert_int_equal(ledger_last_id(is.ledger), ledger_last_id(was.ledger));
}

/* The next lagand could deliver the tokens, but not the logits that the client lacks. */
static void
request_for_tensors_is_not_restored(void **state)
{
    (void)state;
    row(1, NULL, 0)->submit->flags |= SUBMIT_LOGITS;
    row(2, NULL, 0)->submit->flags |= SUBMIT_ENCODER_OUTPUT;
    row(3, NULL, 0);
    ledger_save_new(was.ledger_log);
    next_lagand(1);
    assert_null(ledger_find_rid(is.ledger, &one, 1));
    assert_null(ledger_find_rid(is.ledger, &one, 2));
    assert_non_null(ledger_find_rid(is.ledger, &one, 3));
}

/* A request with generated_ids whose names are removed later. */
static void
generated_ids_and_removed_names_are_restored(void **state)
{
    struct request *r = row(7, NULL, 0), *n, *lost = row(8, NULL, 0);
    int32_t done[2] = { 0, 1 };

    (void)state;
    assert_int_equal(bytes_add(&r->outputs.token, done, sizeof done), 0);
    r->outputs.n_received = 2;
    r->outputs.text_start_unknown = true;
    r->terms.disconnect_timeout = 5;
    ledger_save_new(was.ledger_log);
    next_lagand(2);
    n = ledger_find_rid(is.ledger, &one, 7);
    same_bytes(&n->outputs.token, &r->outputs.token);
    assert_true(n->outputs.text_start_unknown);
    assert_int_equal(n->terms.disconnect_timeout, 5);
    close_daemon(&was);
    was = is;
    memset(&is, 0, sizeof is);
    r = n;
    lost = ledger_find_rid(was.ledger, &one, 8);
    r->outputs.text_start_unknown = false;
    r->outputs.n_text_received = 30; /* the worker has reported the text of the two ids */
    grow(r, 1);
    ledger_unname(was.ledger, lost);
    lifecycle_end(&was, lost, LAGAN_E_CANCELLED, "its client has not reconnected");
    next_lagand(1);
    n = ledger_find_rid(is.ledger, &one, 7);
    assert_int_equal(n->outputs.n_text_received, 31);
    same_bytes(&n->outputs.text, &r->outputs.text);
    assert_false(n->outputs.text_start_unknown);
    assert_null(ledger_find_rid(is.ledger, &one, 8));
}

/* Their client submits them again: the next lagand must not find them. */
static void
reused_key_belongs_to_the_later_request(void **state)
{
    struct request *old[3], *n;

    (void)state;
    for (uint64_t i = 0; i < 3; i++) old[i] = row(i, (const char[]){ (char)('a' + i), 0 }, 0);
    ledger_save_new(was.ledger_log);
    grow(old[1], 8);
    for (uint64_t i = 1; i < 3; i++) { /* these end and are retained */
        ledger_detach(was.ledger, old[i]);
        lifecycle_end(&was, old[i], LAGAN_FINISH_LENGTH, "length");
    }
    deliver_forget(&was, old[0]);
    deliver_forget(&was, old[1]);
    ledger_expire(was.ledger, NSEC_NEVER);
    for (uint64_t i = 0; i < 3; i++) row(10 + i, (const char[]){ (char)('a' + i), 0 }, 0);
    ledger_save_new(was.ledger_log);
    next_lagand(3);
    for (uint64_t i = 0; i < 3; i++) {
        n = ledger_find_key(is.ledger, &one, (const char[]){ (char)('a' + i), 0 }, 1);
        assert_non_null(n);
        assert_int_equal(n->rid, 10 + i);
        assert_int_equal(n->state, REQUEST_QUEUED);
        assert_null(ledger_find_rid(is.ledger, &one, i));
    }
}

/* A second SUBMIT with the key has come, with another rid. */
static void
changed_rid_is_restored(void **state)
{
    struct request *r = row(7, "k", 0), *other = row(8, "other", 0);
    struct client *c;
    uint32_t gone;

    (void)state;
    c = session_of(was.sessions, LISTENER_API, "c", 1, 1, &gone);
    c->user = session_user(was.sessions, "uid:1");
    ledger_save_new(was.ledger_log);
    grow(r, 2);
    ledger_detach(was.ledger, other);
    lifecycle_end(&was, other, LAGAN_FINISH_LENGTH, "length");
    assert_int_equal(deliver_resume(&was, r, c, 8, 0, 0, 4), 0); /* the key of the other request */
    next_lagand(1);
    assert_int_equal(ledger_find_rid(is.ledger, &one, 8)->id, r->id);
    assert_int_equal(ledger_find_key(is.ledger, &one, "k", 1)->id, r->id);
    assert_null(ledger_find_rid(is.ledger, &one, 7));
}

static void
log_without_space_is_invalid_until_the_ledger_is_empty(void **state)
{
    struct request *r;

    (void)state;
    log_file_close(&was.ledger_log->file);
    assert_int_equal(log_file_create(&was.ledger_log->file, 8192, NULL), 0);
    was.ledger_log->rewrite_above = 1 << 20;
    for (uint64_t i = 0; i < 40; i++) row(i, NULL, 0);
    ledger_save_new(was.ledger_log);
    assert_true(was.ledger_log->invalid);
    next_lagand(0);
    for (uint64_t i = 0; i < 40; i++) {
        r = ledger_find_rid(was.ledger, &one, i);
        ledger_detach(was.ledger, r);
        lifecycle_end(&was, r, LAGAN_E_CANCELLED, "x");
    }
    ledger_expire(was.ledger, NSEC_NEVER);
    ledger_save_new(was.ledger_log);
    assert_false(was.ledger_log->invalid);
    row(99, NULL, 0);
    ledger_save_new(was.ledger_log);
    close_daemon(&is);
    next_lagand(1);
}

/* Random histories with many restarts: each lagand restores what the previous one had. */
static void
random_histories_are_restored(void **state)
{
    (void)state;
    test_seed();
    for (int round = 0; round < 200; round++) {
        uint32_t n = 0;

        for (int i = 0; i < 40; i++) {
            uint64_t rid = test_below(20);
            struct request *r = ledger_find_rid(was.ledger, &one, rid);

            if (!r && test_below(2)) {
                if (!ledger_find(was.ledger, 1, rid)) row(rid, NULL, test_below(3));
                ledger_save_new(was.ledger_log);
            } else if (r && r->state == REQUEST_QUEUED) {
                request_move(was.ledger, r, REQUEST_DISPATCHED);
            } else if (r && r->state == REQUEST_DISPATCHED && r->outputs.n_received < 7) {
                grow(r, test_below(7 - r->outputs.n_received) + 1);
                if (test_below(3) == 0) {
                    r->dispatch.resumed++;
                    request_move(was.ledger, r, REQUEST_QUEUED);
                    ledger_save_state(was.ledger_log, r);
                }
            } else if (r && r->state == REQUEST_DISPATCHED) {
                if (r->attached) ledger_detach(was.ledger, r);
                lifecycle_end(&was, r, LAGAN_FINISH_EOS, "end");
            }
            if (test_below(50) == 0) was.ledger_log->rewrite_above = 0;
        }
        for (uint64_t rid = 0; rid < 20; rid++) n += !!ledger_find_rid(was.ledger, &one, rid);
        next_lagand(n);
        for (uint64_t rid = 0; rid < 20; rid++) {
            struct request *a = ledger_find_rid(was.ledger, &one, rid);
            struct request *b = ledger_find_rid(is.ledger, &one, rid);

            assert_int_equal(a != NULL, b != NULL);
            if (!a) continue;
            assert_int_equal(a->retained, b->retained);
            assert_int_equal(a->id, b->id);
            same_bytes(&a->outputs.token, &b->outputs.token);
            same_bytes(&a->outputs.text, &b->outputs.text);
            same_bytes(&a->outputs.logprob, &b->outputs.logprob);
        }
        close_daemon(&was);
        was = is;
        memset(&is, 0, sizeof is);
    }
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(open_request_is_queued_with_all_received_tokens),
        T(no_resume_request_ends_after_a_restart),
        T(restored_requests_reserve_their_memory),
        T(new_request_before_others_in_the_queue_is_saved),
        T(ended_request_is_retained_and_does_not_run_again),
        T(retained_request_survives_two_lagands),
        T(request_with_its_last_token_is_ended),
        T(acknowledged_logprobs_are_not_saved_others_are),
        T(unnamed_requests_and_removed_models_are_not_restored),
        T(request_for_tensors_is_not_restored),
        T(generated_ids_and_removed_names_are_restored),
        T(reused_key_belongs_to_the_later_request),
        T(changed_rid_is_restored),
        T(log_without_space_is_invalid_until_the_ledger_is_empty),
        T(random_histories_are_restored),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
