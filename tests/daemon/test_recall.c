/* test_recall.c - what one lagand knew the next one knows. */
#include "daemon/recall.h"

#include "daemon/deliver.h"
#include "tests/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config config;
static struct daemon was, is;
static const struct session_id one = { { 1 } };

static void
open_daemon(struct daemon *d, int fd, uint32_t n)
{
    memset(d, 0, sizeof *d);
    d->config = &config;
    d->now = 1000;
    d->ledger = ledger_new(64, 1);
    d->sessions = sessions_new(1);
    d->due_first = d->due_last = ROW_NONE;
    assert_int_equal(recall_open(d, fd), n);
}

static void
close_daemon(struct daemon *d)
{
    ledger_check(d->ledger);
    d->ledger = ledger_free(d->ledger);
    d->sessions = sessions_free(d->sessions);
    mirror_close(&d->mirror);
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

/* lagand dies, the next one finds n rows. */
static void
next_lagand(uint32_t n)
{
    open_daemon(&is, dup(was.mirror.fd), n);
}

static struct row *
row(uint64_t rid, const char *key, uint32_t logprobs)
{
    struct rec_submit *s = calloc(1, sizeof *s + 16);
    struct row *r;

    s->n_prompt = 3;
    s->max_tokens = 8;
    s->logprobs = logprobs;
    s->flags = logprobs ? SUBMIT_LOGPROBS : 0;
    memcpy(s + 1, "a prompt....", 12);
    assert_int_equal(ledger_take(was.ledger, 1, rid, s, sizeof *s + 16, &r), 0);
    assert_int_equal(ledger_name(was.ledger, r, &one, key, key ? (uint32_t)strlen(key) : 0), 0);
    r->model = 1;
    r->ack_window = 4;
    r->deadline = 77 * NSEC_S;
    return r;
}

/* n more tokens, each with a letter, as relay_up.c has them. */
static void
grow(struct row *r, uint32_t n)
{
    uint32_t each = r->submit->logprobs * 8;

    for (uint32_t i = 0; i < n; i++) {
        int32_t id = (int32_t)(r->n_said + i);
        float lp = (float)-id;
        char top[64] = { (char)id };

        assert_int_equal(bytes_add(&r->token, &id, 4), 0);
        assert_int_equal(bytes_add(&r->text, (const char[]){ (char)('a' + id) }, 1), 0);
        if (!each) continue;
        assert_int_equal(bytes_add(&r->logprob, &lp, 4), 0);
        assert_int_equal(bytes_add(&r->top, top, each), 0);
    }
    r->n_said += n;
    r->n_text_said += n;
    r->score -= 0.5f;
    recall_tokens(&was, r, n, n);
}

static void
same_bytes(const struct bytes *a, const struct bytes *b)
{
    assert_int_equal(a->n, b->n);
    if (a->n) assert_memory_equal(a->p, b->p, a->n);
}

static void
an_open_row_waits_again_with_all_that_was_said(void **state)
{
    struct row *r = row(7, "blue", 2), *n;

    (void)state;
    recall_new(&was);
    row_move(was.ledger, r, ROW_DISPATCHED);
    grow(r, 2);
    row_move(was.ledger, r, ROW_STREAMING);
    grow(r, 3);
    r->n_blames = 1;
    r->blamed_at = 5;
    r->resumed = 3;
    r->held = true;
    r->worker = 4;
    recall_state(&was, r);
    next_lagand(1);
    n = ledger_find_key(is.ledger, &one, "blue", 4);
    assert_non_null(n);
    assert_ptr_equal(ledger_find_rid(is.ledger, &one, 7), n);
    assert_int_equal(n->id, r->id);
    assert_int_equal(n->state, ROW_QUEUED);
    assert_false(n->attached);
    assert_int_equal(n->model, 1);
    assert_int_equal(n->deadline, r->deadline);
    assert_int_equal(n->submit_bytes, r->submit_bytes);
    assert_memory_equal(n->submit + 1, r->submit + 1, 16);
    same_bytes(&n->token, &r->token);
    same_bytes(&n->text, &r->text);
    same_bytes(&n->logprob, &r->logprob);
    same_bytes(&n->top, &r->top);
    assert_true(n->score == r->score);
    assert_int_equal(n->n_said, 5);
    assert_int_equal(n->n_blames, 1);
    assert_int_equal(n->home, 5);    /* its KV is with worker 4 */
    assert_int_equal(n->resumed, 4); /* lagand took a worker with it */
    assert_true(ledger_last_id(is.ledger) >= r->id);
}

static void
a_row_that_is_not_to_be_resumed_ends_with_the_worker_that_had_it(void **state)
{
    struct row *r = row(7, "blue", 0), *waits = row(8, "red", 0), *n;

    (void)state;
    r->no_resume = waits->no_resume = true;
    recall_new(&was);
    row_move(was.ledger, r, ROW_DISPATCHED);
    r->held = true;
    recall_state(&was, r);
    next_lagand(2);
    n = ledger_find_rid(is.ledger, &one, 7);
    assert_int_equal(n->state, ROW_ENDED);
    assert_int_equal(n->reason, LAGAN_E_WORKER_LOST);
    assert_int_equal(ledger_find_rid(is.ledger, &one, 8)->state, ROW_QUEUED); /* nobody had it */
}

static void
what_recalled_rows_may_take_is_held_for_them(void **state)
{
    struct row *r = row(7, "blue", 0), *n;
    uint64_t tokens = r->submit->max_tokens;

    (void)state;
    row(8, "red", 0);
    recall_new(&was);
    row_move(was.ledger, r, ROW_DISPATCHED);
    row_end(&was, r, LAGAN_FINISH_LENGTH, "%s", "");
    next_lagand(2);
    assert_in_range(is.held_bytes, 16 * tokens, 16 * tokens + 8192); /* of one: the other is over */
    n = ledger_find_rid(is.ledger, &one, 8);
    row_end(&is, n, LAGAN_E_CANCELLED, "%s", "");
    assert_true(n->kept);
    assert_int_equal(is.held_bytes, 0);
}

/* It was not written down, and its client's tokens were nobody's after a restart. */
static void
a_new_row_whose_turn_comes_before_others_is_recalled(void **state)
{
    (void)state;
    ledger_turn(was.ledger, row(7, "blue", 0), 5);
    recall_new(&was);
    ledger_turn(was.ledger, row(8, "red", 0), 4);
    recall_new(&was);
    next_lagand(2);
    assert_non_null(ledger_find_rid(is.ledger, &one, 7));
    assert_non_null(ledger_find_rid(is.ledger, &one, 8));
}

static void
a_row_that_has_ended_answers_and_does_not_run_again(void **state)
{
    struct row *r = row(7, "blue", 0), *n;

    (void)state;
    recall_new(&was);
    row_move(was.ledger, r, ROW_DISPATCHED);
    grow(r, 2);
    r->cached = 9;
    row_end(&was, r, LAGAN_E_DEADLINE, "after %d", 2);
    next_lagand(1);
    n = ledger_find_key(is.ledger, &one, "blue", 4);
    assert_non_null(n);
    assert_true(n->kept);
    assert_int_equal(n->reason, LAGAN_E_DEADLINE);
    assert_string_equal(n->why, "after 2");
    assert_int_equal(n->cached, 9);
    same_bytes(&n->token, &r->token);
    assert_int_equal(ledger_n_queued(is.ledger), 0);
}

static void
a_row_with_its_last_token_has_ended(void **state)
{
    struct row *r = row(7, NULL, 0);

    (void)state;
    recall_new(&was);
    row_move(was.ledger, r, ROW_DISPATCHED);
    grow(r, 8);
    next_lagand(1);
    r = ledger_find_rid(is.ledger, &one, 7);
    assert_true(r->kept);
    assert_int_equal(r->reason, LAGAN_FINISH_LENGTH);
}

static void
acked_logprobs_are_not_kept_and_the_others_are(void **state)
{
    struct row *r = row(7, NULL, 2), *n;

    (void)state;
    recall_new(&was);
    row_move(was.ledger, r, ROW_DISPATCHED);
    grow(r, 4);
    bytes_drop(&r->logprob, 3 * 4);
    bytes_drop(&r->top, 3 * 16);
    r->lp_first = 3;
    grow(r, 1);
    was.mirror_most = 0; /* the next is written with all the rest, anew */
    grow(r, 1);
    next_lagand(1);
    n = ledger_find_rid(is.ledger, &one, 7);
    assert_int_equal(n->lp_first, 3);
    same_bytes(&n->logprob, &r->logprob);
    same_bytes(&n->top, &r->top);
    same_bytes(&n->token, &r->token);
}

static void
rows_nobody_could_ask_for_and_models_that_are_gone_are_not_recalled(void **state)
{
    struct rec_submit *s = calloc(1, sizeof *s);
    struct row *r = row(1, NULL, 0), *unnamed;

    (void)state;
    s->max_tokens = 3;
    assert_int_equal(ledger_take(was.ledger, 1, 2, s, sizeof *s, &unnamed), 0);
    row(3, NULL, 0)->submit->flags |= SUBMIT_PROMPT_LOGPROBS;
    row(4, NULL, 0);
    recall_new(&was);
    strcpy(config.model[1].keys.name, "new");
    was.mirror_most = 0;
    recall_state(&was, r); /* all anew, under the new name */
    strcpy(config.model[1].keys.name, "mine");
    row(5, NULL, 0);
    recall_new(&was);
    next_lagand(1);
    assert_non_null(ledger_find_rid(is.ledger, &one, 5));
    assert_null(ledger_find_rid(is.ledger, &one, 4));
    /* Ids of rows that are gone are not given again: KV is known by them. */
    assert_int_equal(ledger_last_id(is.ledger), ledger_last_id(was.ledger));
}

/* A successor would tell the tokens, and of those that its client does not have yet no logits. */
static void
a_row_whose_tensors_are_not_written_down_is_not_recalled(void **state)
{
    (void)state;
    row(1, NULL, 0)->submit->flags |= SUBMIT_LOGITS;
    row(2, NULL, 0)->submit->flags |= SUBMIT_ENCODER_OUTPUT;
    row(3, NULL, 0);
    recall_new(&was);
    next_lagand(1);
    assert_null(ledger_find_rid(is.ledger, &one, 1));
    assert_null(ledger_find_rid(is.ledger, &one, 2));
    assert_non_null(ledger_find_rid(is.ledger, &one, 3));
}

/* A client went on with tokens that it had, and was given up later. */
static void
tokens_of_the_client_and_the_loss_of_a_name_are_recalled(void **state)
{
    struct row *r = row(7, NULL, 0), *n, *lost = row(8, NULL, 0);
    int32_t done[2] = { 0, 1 };

    (void)state;
    assert_int_equal(bytes_add(&r->token, done, sizeof done), 0);
    r->n_said = 2;
    r->text_unknown = true;
    r->patience = 5;
    recall_new(&was);
    next_lagand(2);
    n = ledger_find_rid(is.ledger, &one, 7);
    same_bytes(&n->token, &r->token);
    assert_true(n->text_unknown);
    assert_int_equal(n->patience, 5);
    close_daemon(&was);
    was = is;
    memset(&is, 0, sizeof is);
    r = n;
    lost = ledger_find_rid(was.ledger, &one, 8);
    r->text_unknown = false;
    r->n_text_said = 30; /* what a worker said of the text of those two */
    grow(r, 1);
    ledger_unname(was.ledger, lost);
    row_end(&was, lost, LAGAN_E_CANCELLED, "its client has not come back");
    next_lagand(1);
    n = ledger_find_rid(is.ledger, &one, 7);
    assert_int_equal(n->n_text_said, 31);
    same_bytes(&n->text, &r->text);
    assert_false(n->text_unknown);
    assert_null(ledger_find_rid(is.ledger, &one, 8));
}

/* They were given up for what their client submits again: the next lagand must not know them better. */
static void
a_key_that_was_given_again_is_the_later_ones(void **state)
{
    struct row *old[3], *n;

    (void)state;
    for (uint64_t i = 0; i < 3; i++) old[i] = row(i, (const char[]){ (char)('a' + i), 0 }, 0);
    recall_new(&was);
    grow(old[1], 8);
    for (uint64_t i = 1; i < 3; i++) { /* these end, and are kept */
        ledger_detach(was.ledger, old[i]);
        row_end(&was, old[i], LAGAN_FINISH_LENGTH, "length");
    }
    deliver_forget(&was, old[0]);
    deliver_forget(&was, old[1]);
    ledger_expire(was.ledger, NSEC_NEVER);
    for (uint64_t i = 0; i < 3; i++) row(10 + i, (const char[]){ (char)('a' + i), 0 }, 0);
    recall_new(&was);
    next_lagand(3);
    for (uint64_t i = 0; i < 3; i++) {
        n = ledger_find_key(is.ledger, &one, (const char[]){ (char)('a' + i), 0 }, 1);
        assert_non_null(n);
        assert_int_equal(n->rid, 10 + i);
        assert_int_equal(n->state, ROW_QUEUED);
        assert_null(ledger_find_rid(is.ledger, &one, i));
    }
}

/* A second SUBMIT with its key has come, under a number of its own. */
static void
a_request_is_known_by_the_number_it_was_asked_for_last(void **state)
{
    struct row *r = row(7, "k", 0), *other = row(8, "other", 0);
    struct client *c;
    uint32_t gone;

    (void)state;
    c = session_of(was.sessions, DOOR_API, "c", 1, 1, &gone);
    c->user = session_user(was.sessions, "uid:1");
    recall_new(&was);
    grow(r, 2);
    ledger_detach(was.ledger, other);
    row_end(&was, other, LAGAN_FINISH_LENGTH, "length");
    assert_int_equal(deliver_resume(&was, r, c, 8, 0, 0, 4), 0); /* which was that one's */
    next_lagand(1);
    assert_int_equal(ledger_find_rid(is.ledger, &one, 8)->id, r->id);
    assert_int_equal(ledger_find_key(is.ledger, &one, "k", 1)->id, r->id);
    assert_null(ledger_find_rid(is.ledger, &one, 7));
}

static void
a_ledger_that_does_not_fit_is_void_until_it_is_empty(void **state)
{
    struct row *r;

    (void)state;
    mirror_close(&was.mirror);
    assert_int_equal(mirror_make(&was.mirror, 8192, NULL), 0);
    was.mirror_most = 1 << 20;
    for (uint64_t i = 0; i < 40; i++) row(i, NULL, 0);
    recall_new(&was);
    assert_true(was.mirror_void);
    next_lagand(0);
    for (uint64_t i = 0; i < 40; i++) {
        r = ledger_find_rid(was.ledger, &one, i);
        ledger_detach(was.ledger, r);
        row_end(&was, r, LAGAN_E_CANCELLED, "x");
    }
    ledger_expire(was.ledger, NSEC_NEVER);
    recall_new(&was);
    assert_false(was.mirror_void);
    row(99, NULL, 0);
    recall_new(&was);
    close_daemon(&is);
    next_lagand(1);
}

/* Lives at random, a lagand that dies again and again: the next one has what the last one had. */
static void
any_history_is_recalled(void **state)
{
    (void)state;
    test_seed();
    for (int round = 0; round < 200; round++) {
        uint32_t n = 0;

        for (int i = 0; i < 40; i++) {
            uint64_t rid = test_below(20);
            struct row *r = ledger_find_rid(was.ledger, &one, rid);

            if (!r && test_below(2)) {
                if (!ledger_find(was.ledger, 1, rid)) row(rid, NULL, test_below(3));
                recall_new(&was);
            } else if (r && r->state == ROW_QUEUED) {
                row_move(was.ledger, r, ROW_DISPATCHED);
            } else if (r && r->state == ROW_DISPATCHED && r->n_said < 7) {
                grow(r, test_below(7 - r->n_said) + 1);
                if (test_below(3) == 0) {
                    r->resumed++;
                    row_move(was.ledger, r, ROW_QUEUED);
                    recall_state(&was, r);
                }
            } else if (r && r->state == ROW_DISPATCHED) {
                if (r->attached) ledger_detach(was.ledger, r);
                row_end(&was, r, LAGAN_FINISH_EOS, "end");
            }
            if (test_below(50) == 0) was.mirror_most = 0;
        }
        for (uint64_t rid = 0; rid < 20; rid++) n += !!ledger_find_rid(was.ledger, &one, rid);
        next_lagand(n);
        for (uint64_t rid = 0; rid < 20; rid++) {
            struct row *a = ledger_find_rid(was.ledger, &one, rid);
            struct row *b = ledger_find_rid(is.ledger, &one, rid);

            assert_int_equal(a != NULL, b != NULL);
            if (!a) continue;
            assert_int_equal(a->kept, b->kept);
            assert_int_equal(a->id, b->id);
            same_bytes(&a->token, &b->token);
            same_bytes(&a->text, &b->text);
            same_bytes(&a->logprob, &b->logprob);
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
        T(an_open_row_waits_again_with_all_that_was_said),
        T(a_row_that_is_not_to_be_resumed_ends_with_the_worker_that_had_it),
        T(what_recalled_rows_may_take_is_held_for_them),
        T(a_new_row_whose_turn_comes_before_others_is_recalled),
        T(a_row_that_has_ended_answers_and_does_not_run_again),
        T(a_row_with_its_last_token_has_ended),
        T(acked_logprobs_are_not_kept_and_the_others_are),
        T(rows_nobody_could_ask_for_and_models_that_are_gone_are_not_recalled),
        T(a_row_whose_tensors_are_not_written_down_is_not_recalled),
        T(tokens_of_the_client_and_the_loss_of_a_name_are_recalled),
        T(a_key_that_was_given_again_is_the_later_ones),
        T(a_request_is_known_by_the_number_it_was_asked_for_last),
        T(a_ledger_that_does_not_fit_is_void_until_it_is_empty),
        T(any_history_is_recalled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
