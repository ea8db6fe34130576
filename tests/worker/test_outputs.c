/* test_outputs.c - how outputs.h resumes a beam search when results are not deterministic; device,
 * adoption and scheduler are fakes.
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

enum { SLOTS = 4, BEAMS = 3 };

static struct worker w;
static struct seq *added;   /* passed to the scheduler; NULL: none */
static uint32_t n_ended;    /* outputs reported as ended */
static uint16_t ended_with; /* reason of the last one */

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
scheduler_suspend(struct scheduler *s, req_id id, bool suspend)
{
    (void)s;
    (void)id;
    (void)suspend;
}

bool
adopt_claim_search(struct worker *of, struct worker_request *r, const token_id *delivered)
{
    (void)of;
    (void)r;
    (void)delivered;
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

void
detok_init(struct detok *d, const struct tokenizer *t, bool keep_special)
{
    (void)t;
    (void)keep_special;
    memset(d, 0, sizeof *d);
}

int
detok_stop(struct detok *d, const char *s, uint32_t n)
{
    (void)d;
    (void)s;
    (void)n;
    fail_msg("detok_stop() called without stop strings");
    return 0;
}

void
chat_reply_begin(struct chat_reply *r, const struct chat *c)
{
    r->chat = c;
}

int
detok_add(struct detok *d, token_id id, char *buf, size_t cap, bool *stopped)
{
    (void)d;
    (void)id;
    (void)buf;
    (void)cap;
    (void)stopped;
    fail_msg("detok_add() called without text");
    return 0;
}

static token_id
token_at(uint32_t i)
{
    return (token_id)(7 + i % 1000);
}

/* Resumes a search with a prompt of 1 token and n_delivered tokens of its best output; returns its
 * first slot. */
static struct worker_request *
resume_search(uint32_t max_len, uint32_t max_new, uint32_t n_delivered)
{
    static struct model model;
    static struct model_options keys;
    static struct requests requests;
    static token_id delivered[1 << 17];
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
    assert_true(n_delivered <= ARRAY_LEN(delivered));
    for (uint32_t i = 0; i < n_delivered; i++) delivered[i] = token_at(i);
    outputs_place_delivered(&w, r, delivered, NULL, n_delivered);
    r->ids[0] = 1;
    r->n_decoder = 1;
    r->max_tokens = max_len;
    r->seq.token = r->ids;
    r->seq.n_prompt = 1;
    r->seq.max_new = max_new;
    assert_int_equal(outputs_add(&w, r, 0, &e), 0);
    return r;
}

/* Nearly the model's length: the scores of the first beam are written before the second beam reads
 * the delivered tokens. */
static void
all_beams_start_with_long_delivered_tokens(void **state)
{
    enum { MAX_LEN = 60000, DELIVERED = 50000 };
    struct worker_request *r = resume_search(MAX_LEN, MAX_LEN - 1, DELIVERED);

    (void)state;
    assert_ptr_equal(added, &r->seq);
    assert_int_equal(r->beam.n_new, DELIVERED);
    for (struct worker_request *m = r; m; m = m->next)
        for (uint32_t i = 0; i < DELIVERED; i++) assert_int_equal(m->seq.token[1 + i], token_at(i));
    for (uint32_t i = 0; i < BEAMS; i++) {
        assert_true(r->beam.total[i][DELIVERED - 1] == -3.0f);
        for (uint32_t k = 0; k < DELIVERED; k++) /* their rows were kept by the previous worker */
            assert_int_equal(r->beam.row_slot[i][k], BEAM_NO_ROW);
    }
    requests_close(w.requests);
}

/* The worker died after the last token and before FINISH. */
static void
search_delivered_to_the_models_length_has_ended(void **state)
{
    (void)state;
    for (uint32_t n = 99; n < 200; n += 50) { /* 149: delivered by a model with a longer length */
        resume_search(100, 99, n);
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
        cmocka_unit_test(all_beams_start_with_long_delivered_tokens),
        cmocka_unit_test(search_delivered_to_the_models_length_has_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
