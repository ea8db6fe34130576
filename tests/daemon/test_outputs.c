/* test_outputs.c - received and delivered tokens of one or several outputs. */
#include "daemon/ledger/outputs.h"
#include "daemon/ledger/request.h"

#include "tests/test.h"

#include <time.h>

enum { OUTPUTS = 4, MOST = 200 };

/* A request, and a copy of each output's tokens. */
struct output_fixture {
    struct ledger *l;
    struct request *r;
    int32_t token[OUTPUTS][MOST];
    uint32_t n[OUTPUTS];
    uint32_t n_text[OUTPUTS];
};

static void
open_fixture(struct output_fixture *b)
{
    struct rec_submit *s = calloc(1, sizeof *s);

    memset(b, 0, sizeof *b);
    assert_non_null(s);
    *s = (struct rec_submit){ .n = OUTPUTS, .max_tokens = MOST };
    b->l = ledger_new(4, 1);
    assert_int_equal(ledger_take(b->l, 1, 1, s, sizeof *s, &b->r), 0);
    assert_int_equal(outputs_init(b->r), 0);
}

/* Output o gets n tokens, each with a byte of text or none. */
static void
add_tokens(struct output_fixture *b, uint32_t o, uint32_t n, bool text)
{
    struct output_span p = { o, n, text ? n : 0, (float)(10 * o) - (float)b->n[o] };

    for (uint32_t i = 0; i < n; i++) {
        int32_t token = (int32_t)(1000 * o + b->n[o]);
        char letter = (char)('a' + o);

        b->token[o][b->n[o]++] = token;
        assert_int_equal(bytes_add(&b->r->outputs.token, &token, sizeof token), 0);
        if (text) assert_int_equal(bytes_add(&b->r->outputs.text, &letter, 1), 0);
        b->n_text[o] += text;
    }
    assert_int_equal(outputs_add_span(b->r, &p), 0);
}

/* Delivers at most one chunk and compares it with the copies. */
static void
send_some(struct output_fixture *b, uint32_t most)
{
    struct request *r = b->r;
    struct output_span p = outputs_next(r);
    uint32_t n = MIN(p.n, most), n_text = MIN(p.n_text, most);
    const int32_t *token = (const int32_t *)(const void *)r->outputs.token.p + r->delivery.n_tokens;

    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(token[i], b->token[p.output][outputs_next_first(r) + i]);
    for (uint32_t i = 0; i < n_text; i++)
        assert_int_equal(r->outputs.text.p[r->delivery.n_text + i], 'a' + p.output);
    outputs_delivered(r, n, n_text);
    r->delivery.n_tokens += n;
    r->delivery.n_text += n_text;
}

static bool
all_sent(const struct output_fixture *b)
{
    return b->r->delivery.n_tokens == request_n_tokens(b->r) &&
           b->r->delivery.n_text == b->r->outputs.text.n;
}

static void
each_output_has_its_tokens_and_text_after_a_resume(void **state)
{
    struct output_fixture b;

    (void)state;
    for (uint32_t round = 0; round < 200; round++) {
        open_fixture(&b);
        for (uint32_t i = 0; i < 60; i++) {
            add_tokens(&b, test_below(OUTPUTS), 1 + test_below(3), test_below(2));
            if (test_below(3) == 0 && !all_sent(&b)) send_some(&b, 1 + test_below(4));
            if (test_below(20)) continue;
            /* The client resumes with that many tokens and bytes. */
            assert_true(
                outputs_can_resume(b.r, b.r->delivery.n_tokens, (uint32_t)b.r->delivery.n_text));
            outputs_resume(b.r, b.r->delivery.n_tokens, (uint32_t)b.r->delivery.n_text);
        }
        while (!all_sent(&b)) send_some(&b, 1 + test_below(9));
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            assert_int_equal(b.r->outputs.each[o].n_received, b.n[o]);
            assert_int_equal(b.r->outputs.each[o].n_text_received, b.n_text[o]);
        }
        ledger_free(b.l);
    }
}

/* Resumes n times in the middle of a request with that many spans of two outputs. */
static nsec
resume_often(uint32_t n, uint32_t times)
{
    struct timespec a, b;
    struct output_fixture f;

    open_fixture(&f);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(outputs_add_span(f.r, &(struct output_span){ i % 2, 1, 1, 0 }), 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (uint32_t i = 0; i < times; i++) {
        assert_true(outputs_can_resume(f.r, n / 2, n / 2));
        outputs_resume(f.r, n / 2, n / 2);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    assert_int_equal(outputs_next(f.r).output, n / 2 % 2);
    assert_int_equal(outputs_next_first(f.r), n / 4);
    ledger_free(f.l);
    return (b.tv_sec - a.tv_sec) * NSEC_S + b.tv_nsec - a.tv_nsec;
}

/* A RESUME may name thousands of requests; one loop iteration searches all of them. */
static void
search_among_many_spans_is_fast(void **state)
{
    enum { MANY = 400000, FEW = 40, TIMES = 2000 };
    nsec many = resume_often(MANY, TIMES), few = resume_often(FEW, TIMES);

    (void)state;
    print_message("%.2f us among %d, %.2f us among %d\n", (double)many / TIMES / NSEC_US, MANY,
                  (double)few / TIMES / NSEC_US, FEW);
    assert_true(many < 100 * few);
}

static void
resume_inside_a_chunk_is_refused(void **state)
{
    struct output_fixture b;

    (void)state;
    open_fixture(&b);
    add_tokens(&b, 0, 2, true);
    add_tokens(&b, 1, 1, true);
    assert_true(outputs_can_resume(b.r, 2, 2));
    outputs_resume(b.r, 2, 2);
    assert_int_equal(outputs_next(b.r).output, 1);
    assert_false(outputs_can_resume(b.r, 3, 1));
    assert_false(outputs_can_resume(b.r, 4, 3));
    assert_false(outputs_can_resume(b.r, 1, 3));
    assert_true(outputs_can_resume(b.r, 0, 0));
    assert_int_equal(outputs_next(b.r).output, 1);
    outputs_resume(b.r, 0, 0);
    assert_int_equal(outputs_next(b.r).n, 2);
    ledger_free(b.l);
}

/* A chunk has all tokens of a span, but its text continues in the next one. */
static void
resume_between_tokens_and_their_text_gets_the_text(void **state)
{
    struct output_fixture b;
    struct output_span p;

    (void)state;
    open_fixture(&b);
    add_tokens(&b, 0, 2, true);
    add_tokens(&b, 1, 1, true);
    assert_true(outputs_can_resume(b.r, 2, 1));
    outputs_resume(b.r, 2, 1);
    p = outputs_next(b.r);
    assert_int_equal(p.output, 0);
    assert_int_equal(p.n, 0);
    assert_int_equal(p.n_text, 1);
    ledger_free(b.l);
}

static void
continuing_record_names_the_output_of_each_token(void **state)
{
    struct output_fixture b;
    uint32_t n, at[OUTPUTS] = { 0 };
    uint8_t *whole, *parts;

    (void)state;
    open_fixture(&b);
    for (uint32_t i = 0; i < 50; i++) add_tokens(&b, test_below(OUTPUTS), 1 + test_below(3), false);
    n = outputs_record_bytes(b.r);
    whole = malloc(n);
    parts = malloc(n);
    outputs_record(b.r, 0, whole, n);
    for (uint32_t i = 0; i < n;) {
        uint32_t some = 1 + test_below(MIN(n - i, 40u));

        outputs_record(b.r, i, parts + i, some);
        i += some;
    }
    assert_memory_equal(whole, parts, n);
    for (uint32_t i = 0; i < request_n_tokens(b.r); i++) {
        const int32_t *token = (const int32_t *)(const void *)b.r->outputs.token.p;

        assert_in_range(whole[i], 0, OUTPUTS - 1);
        assert_int_equal(token[i], b.token[whole[i]][at[whole[i]]++]);
    }
    for (uint32_t o = 0; o < OUTPUTS; o++) {
        float score;

        memcpy(&score, whole + ROUND_UP(request_n_tokens(b.r), 8u) + 4 * o, sizeof score);
        assert_true(score == b.r->outputs.each[o].score);
    }
    free(whole);
    free(parts);
    ledger_free(b.l);
}

static void
outputs_are_ordered_by_score_and_all_must_end(void **state)
{
    static const float score[OUTPUTS] = { -3, -1, -2, -1 };
    uint32_t order[OUTPUTS];
    struct output_fixture b;

    (void)state;
    open_fixture(&b);
    for (uint32_t o = 0; o < OUTPUTS; o++) {
        struct rec_finish f = { .output = (uint16_t)o,
                                .reason = LAGAN_FINISH_EOS,
                                .score = score[o] };

        assert_int_equal(outputs_finish(b.r, &f), o + 1 == OUTPUTS);
    }
    outputs_order(b.r, order);
    assert_int_equal(order[0], 1);
    assert_int_equal(order[1], 3);
    assert_int_equal(order[2], 2);
    assert_int_equal(order[3], 0);
    outputs_restart(b.r);
    assert_int_equal(outputs_at(b.r, 0).reason, 0);
    ledger_free(b.l);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_output_has_its_tokens_and_text_after_a_resume),
        cmocka_unit_test(search_among_many_spans_is_fast),
        cmocka_unit_test(resume_inside_a_chunk_is_refused),
        cmocka_unit_test(resume_between_tokens_and_their_text_gets_the_text),
        cmocka_unit_test(continuing_record_names_the_output_of_each_token),
        cmocka_unit_test(outputs_are_ordered_by_score_and_all_must_end),
    };

    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
