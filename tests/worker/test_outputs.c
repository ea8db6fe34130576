/* test_outputs.c - what outputs.h promises of a search that goes on where its steps are not computed again to the same
 * bits, with the test in the place of the device, of what a predecessor left, and of the scheduler.
 */
#include "worker/io/outputs.h"

#include "gpu/gpu.h"
#include "include/lagan_wire.h"
#include "ipc/model_options.h"
#include "tests/test.h"
#include "worker/handover/adopt.h"
#include "worker/io/emit.h"
#include "worker/model/model.h"
#include "worker/sched/scheduler.h"

#include <string.h>

enum { SLOTS = 4, BEAMS = 3 };

static struct worker w;
static struct seq *added;   /* what the scheduler got; NULL: nothing */
static uint32_t n_ended;    /* last words */
static uint16_t ended_with; /* the last of them */

const struct gpu_ops *
gpu_ops(const struct gpu *g)
{
    static const struct gpu_ops ops = { .name = "other" };

    (void)g;
    return &ops;
}

int
scheduler_add(struct scheduler *s, struct seq *seq, nsec now, struct err *e)
{
    (void)s;
    (void)now;
    (void)e;
    added = seq;
    return 0;
}

void
scheduler_suspend(struct scheduler *s, req_id id, bool halted)
{
    (void)s;
    (void)id;
    (void)halted;
}

bool
adopt_claim_search(struct worker *of, struct worker_request *r, const token_id *told)
{
    (void)of;
    (void)r;
    (void)told;
    return false;
}

void
adopt_claim(struct worker *of, struct worker_request *r)
{
    (void)of;
    (void)r;
}

void
adopt_claimed(struct worker *of, struct worker_request *r)
{
    (void)of;
    (void)r;
}

void
adopt_release(struct worker *of, struct worker_request *r)
{
    (void)of;
    (void)r;
}

void
adopt_release_rest(struct worker *of, struct worker_request *r)
{
    (void)of;
    (void)r;
}

void
emit_ended(struct worker *of, struct worker_request *r)
{
    (void)of;
    n_ended++;
    ended_with = r->cancelled;
}

bool
exec_looks_back(const struct sampling *s)
{
    (void)s;
    return false;
}

int
detok_add(struct detok *d, token_id id, char *buf, size_t cap, bool *stopped)
{
    (void)d;
    (void)id;
    (void)buf;
    (void)cap;
    (void)stopped;
    fail_msg("these have no text");
    return 0;
}

static token_id
token_at(uint32_t i)
{
    return (token_id)(7 + i % 1000);
}

/* A search of a prompt of one token, of whose best output so many were told; its first slot. */
static struct worker_request *
come_back(uint32_t max_len, uint32_t max_new, uint32_t n_told)
{
    static struct model model;
    static struct model_options keys;
    static struct requests requests;
    static token_id told[1 << 17];
    struct worker_request *r;
    struct err e;

    memset(&w, 0, sizeof w);
    added = NULL;
    n_ended = 0;
    model.shape.max_len = max_len;
    w.model = &model;
    w.keys = &keys;
    w.requests = &requests;
    assert_int_equal(requests_open(w.requests, SLOTS, outputs_max_ids(0, max_len), 0, &e), 0);
    r = request_take(w.requests);
    assert_non_null(r);
    r->state = REQUEST_LIVE;
    r->n_outputs = 1;
    r->beam.n_beams = BEAMS;
    r->score = -3;
    assert_int_equal(outputs_take(&w, r, BEAMS), 0);
    assert_true(n_told <= ARRAY_LEN(told));
    for (uint32_t i = 0; i < n_told; i++) told[i] = token_at(i);
    outputs_place_delivered(&w, r, told, NULL, n_told);
    r->ids[0] = 1;
    r->n_decoder = 1;
    r->max_tokens = max_len;
    r->seq.token = r->ids;
    r->seq.n_prompt = 1;
    r->seq.max_new = max_new;
    assert_int_equal(outputs_add(&w, r, 0, &e), 0);
    return r;
}

/* Nearly as long as the model: the scores of the first beam are written before the second has read them. */
static void
all_beams_go_on_behind_what_was_told_however_long_it_is(void **state)
{
    enum { MAX_LEN = 60000, TOLD = 50000 };
    struct worker_request *r = come_back(MAX_LEN, MAX_LEN - 1, TOLD);

    (void)state;
    assert_ptr_equal(added, &r->seq);
    assert_int_equal(r->beam.n_new, TOLD);
    for (struct worker_request *m = r; m; m = m->next)
        for (uint32_t i = 0; i < TOLD; i++) assert_int_equal(m->seq.token[1 + i], token_at(i));
    for (uint32_t i = 0; i < BEAMS; i++) assert_true(r->beam.total[i][TOLD - 1] == -3.0f);
    requests_close(w.requests);
}

/* Its worker died between the last token and the word that it was the last. */
static void
a_search_that_was_told_to_the_models_length_has_ended(void **state)
{
    (void)state;
    for (uint32_t n = 99; n < 200; n += 50) { /* or to more: that of the model as it was then */
        come_back(100, 99, n);
        assert_null(added);
        assert_int_equal(n_ended, BEAMS);
        assert_int_equal(ended_with, LAGAN_FINISH_LENGTH);
        requests_close(w.requests);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_beams_go_on_behind_what_was_told_however_long_it_is),
        cmocka_unit_test(a_search_that_was_told_to_the_models_length_has_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
