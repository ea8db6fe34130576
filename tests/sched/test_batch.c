/* test_batch.c - packed batches, and invalid ones. */
#include "tests/test.h"

#include "worker/sched/batch.h"

enum { ROWS = 64, RUNS = 8, EDITS = 16, COPIES = 16, BYTES = 8192 };

/* A step with every kind of content. */
static struct batch *
full_batch(void)
{
    struct batch *b = batch_new(ROWS, RUNS, EDITS, COPIES);

    assert_non_null(b);
    b->step = 77;
    b->lane = 1;
    b->partition = 2;
    b->work = WORK_PREFILL | WORK_DECODE | WORK_ENCODER;
    b->bucket = 32;
    b->n_tokens = 12;
    b->n_segments = 2;
    b->n_logits = b->n_masks = 8;
    b->n_encode = b->n_edits = b->n_copies = b->n_waits = 1;
    for (int i = 0; i < 12; i++) {
        b->token[i] = i == 4 ? TOKEN_FROM_LAST : i > 4 && i < 8 ? TOKEN_DRAFT(i - 4) : 100 + i;
        b->pos[i] = i;
    }
    b->segment[0] = (struct batch_segment){ .slot = 3,
                                            .n_tokens = 4,
                                            .first_pos = 64,
                                            .work = WORK_PREFILL,
                                            .flags = SEGMENT_PROMPT_LOGPROBS | SEGMENT_FIRST_CHUNK,
                                            .enc_token = 5,
                                            .enc_tokens = 7,
                                            .cross_tokens = 7 };
    b->segment[1] = (struct batch_segment){ .slot = 4,
                                            .first_token = 4,
                                            .n_tokens = 4,
                                            .first_pos = 812,
                                            .work = WORK_DECODE,
                                            .flags = SEGMENT_SAMPLE | SEGMENT_MASK,
                                            .n_draft = 3,
                                            .first_logit = 4 };
    /* two drafts for one position, and one that continues the second of them */
    memcpy(&b->mask[4], (const uint32_t[]){ 1, 3, 5, 13 }, 4 * sizeof b->mask[0]);
    b->encode[0] = (struct batch_encode){
        .slot = 6, .first_token = 8, .n_tokens = 4, .enc_token = 8, .first_layer = 2, .n_layers = 3
    };
    b->edit[0] = (struct kv_edit){ .op = EDIT_COPY, .group = 1, .entry = 16, .at = 2 };
    b->copy[0] = (struct kv_copy){ .group = 1, .to_tier = TIER_HOST, .after = 1, .from = 8 };
    b->wait[0] = (struct step_dependency){ .lane = 0, .step = 76 };
    return b;
}

static void
packed_and_unpacked_batch_is_the_same(void **state)
{
    struct batch *b = full_batch(), *c = batch_new(ROWS, RUNS, EDITS, COPIES);
    uint8_t one[BYTES], two[BYTES];
    int n = batch_pack(b, one, sizeof one);
    struct err e;

    (void)state;
    assert_true(n > 0);
    assert_int_equal(batch_unpack(c, one, (size_t)n, &e), 0);
    assert_int_equal(c->step, 77);
    assert_int_equal(c->segment[1].first_pos, 812);
    assert_int_equal(c->token[4], TOKEN_FROM_LAST);
    assert_int_equal(c->encode[0].enc_token, 8);
    assert_int_equal(c->copy[0].after, 1);
    assert_int_equal(c->edit[0].at, 2);
    assert_int_equal(c->wait[0].step, 76);
    assert_int_equal(c->token[7], TOKEN_DRAFT(3));
    assert_int_equal(c->mask[7], 13);
    assert_int_equal(batch_pack(c, two, sizeof two), n);
    assert_memory_equal(one, two, (size_t)n);
    batch_free(b);
    batch_free(c);
}

static void
buffer_one_byte_too_small_is_reported(void **state)
{
    struct batch *b = full_batch();
    uint8_t buf[BYTES];
    int n = batch_pack(b, buf, sizeof buf);

    (void)state;
    assert_int_equal(batch_pack(b, buf, (size_t)n - 1), -ENOSPC);
    assert_int_equal(batch_pack(b, buf, (size_t)n), n);
    batch_free(b);
}

static void
packed_batch_never_exceeds_batch_most_bytes(void **state)
{
    struct batch *b = full_batch();
    static uint8_t buf[2 * BYTES];
    size_t most = batch_most_bytes(b);

    (void)state;
    b->n_tokens = b->max_tokens;
    b->n_segments = b->max_segments;
    b->n_encode = b->max_encode;
    b->n_edits = b->max_edits;
    b->n_copies = b->max_copies;
    b->n_waits = b->max_waits;
    b->n_masks = b->max_tokens;
    assert_true(most <= sizeof buf);
    assert_int_equal(batch_pack(b, buf, sizeof buf), most);
    batch_free(b);
}

static void
batch_larger_than_the_reader_is_refused_with_the_numbers(void **state)
{
    struct batch *b = full_batch(), *small = batch_new(8, RUNS, EDITS, COPIES);
    uint8_t buf[BYTES];
    int n = batch_pack(b, buf, sizeof buf);
    struct err e;

    (void)state;
    assert_int_equal(batch_unpack(small, buf, (size_t)n, &e), -EMSGSIZE);
    assert_non_null(strstr(e.text, "tokens 12 (at most "));
    batch_free(b);
    batch_free(small);
}

static void
every_truncated_batch_is_refused(void **state)
{
    struct batch *b = full_batch(), *c = batch_new(ROWS, RUNS, EDITS, COPIES);
    uint8_t buf[BYTES];
    int n = batch_pack(b, buf, sizeof buf);
    struct err e;

    (void)state;
    for (int i = 0; i < n; i++) {
        uint8_t *exact = malloc((size_t)i + 1);

        memcpy(exact, buf, (size_t)i);
        assert_true(batch_unpack(c, exact, (size_t)i, &e) < 0);
        free(exact);
    }
    assert_int_equal(batch_unpack(c, buf, (size_t)n + 1, &e), -EBADMSG);
    batch_free(b);
    batch_free(c);
}

static void
segments_that_are_not_contiguous_are_refused(void **state)
{
    (void)state;
    for (int what = 0; what < 15; what++) {
        struct batch *b = full_batch(), *c = batch_new(ROWS, RUNS, EDITS, COPIES);
        uint8_t buf[BYTES];
        struct err e;
        int n;

        if (what == 0) b->segment[1].first_token = 3;
        if (what == 1) b->segment[0].n_tokens = 0;
        if (what == 2) b->segment[1].first_logit = 3;
        if (what == 3) b->n_logits = 9;
        if (what == 4) b->encode[0].first_token = 4;
        if (what == 5) b->n_tokens = 13;
        if (what == 6) b->edit[0].op = 9;
        if (what == 7) b->edit[0].group = MAX_GROUPS;
        if (what == 8) b->segment[1].n_draft = 2;
        if (what == 9) b->wait[0].lane = MAX_LANES;
        if (what == 10) b->n_masks = 0;
        if (what == 11) b->segment[1].flags = SEGMENT_SAMPLE; /* masks without a tree */
        if (what == 12) b->mask[5] = 7;                       /* attends to a later token */
        if (what == 13) b->mask[7] = 5;                       /* does not attend to itself */
        if (what == 14) b->n_masks = 7;
        n = batch_pack(b, buf, sizeof buf);
        assert_true(n > 0);
        assert_int_equal(batch_unpack(c, buf, (size_t)n, &e), -EBADMSG);
        assert_int_equal(c->n_tokens + c->n_segments + c->n_edits, 0); /* no partial batch */
        batch_free(b);
        batch_free(c);
    }
}

static void
random_bytes_never_cause_access_outside_the_buffers(void **state)
{
    struct batch *b = full_batch(), *c = batch_new(ROWS, RUNS, EDITS, COPIES);
    uint8_t buf[BYTES];
    int n = batch_pack(b, buf, sizeof buf);
    struct err e;

    (void)state;
    test_seed();
    for (int round = 0; round < 20000; round++) {
        uint8_t *exact = malloc((size_t)n);

        memcpy(exact, buf, (size_t)n);
        for (uint32_t i = 0; i <= test_below(4); i++)
            exact[test_below((uint32_t)n)] = (uint8_t)test_below(256);
        if (batch_unpack(c, exact, (size_t)n, &e) == 0) {
            uint64_t rows = 0;

            for (uint32_t i = 0; i < c->n_segments; i++) rows += c->segment[i].n_tokens;
            for (uint32_t i = 0; i < c->n_encode; i++) rows += c->encode[i].n_tokens;
            assert_int_equal(rows, c->n_tokens);
        }
        free(exact);
    }
    batch_free(b);
    batch_free(c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_and_unpacked_batch_is_the_same),
        cmocka_unit_test(buffer_one_byte_too_small_is_reported),
        cmocka_unit_test(packed_batch_never_exceeds_batch_most_bytes),
        cmocka_unit_test(batch_larger_than_the_reader_is_refused_with_the_numbers),
        cmocka_unit_test(every_truncated_batch_is_refused),
        cmocka_unit_test(segments_that_are_not_contiguous_are_refused),
        cmocka_unit_test(random_bytes_never_cause_access_outside_the_buffers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
