/* test_several.c - lagan-worker with requests of several outputs or beams, new and resumed after a
 * crash; test_worker.c has single outputs.
 */
#include "tests/test.h"
#include "tests/worker/harness.h"

#include "include/lagan_wire.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Neutral settings of a record. */
#define PLAIN \
    .gen = 1, .top_p = 1, .repetition_penalty = 1, .priority = 0.5f, .forced_bos = -1, \
    .forced_eos = -1, .flags = SUBMIT_IGNORE_EOS

/* No token may repeat, and the whole vocabulary has been used. */
static void
request_that_may_suppress_every_token_is_refused(void **state)
{
    enum { VOCAB = 256 };
    static const char *const large[] = { "--max_num_seqs=4", "--kv.memory=16MiB", "--threads=1",
                                         NULL };
    struct rec_submit s = { PLAIN, .no_repeat_ngram = 1 };
    int32_t ids[VOCAB];
    struct rec_ready ready;
    struct harness p;

    (void)state;
    for (int32_t i = 0; i < VOCAB; i++) ids[i] = i;
    harness_start(&p, "tests/data/golden/gemma4_big", large, NULL);
    harness_wait_ready(&p, &ready);
    assert_int_equal(ready.vocab, VOCAB);
    for (s.ledger_index = 0; s.ledger_index < 4; s.ledger_index++) {
        const struct ring_record *r;

        s.id = 1000 + s.ledger_index;
        s.beams = s.ledger_index % 2 ? 2 : 1;
        s.n_prompt = s.ledger_index < 2 ? VOCAB : VOCAB - 8;
        s.max_tokens = s.ledger_index < 2 ? 1 : 7;
        harness_submit(&p, &s, ids, s.n_prompt * (uint32_t)sizeof *ids);
        do r = harness_next(&p);
        while (r && r->type == REC_STEP);
        assert_non_null(r);
        assert_int_equal(r->type, s.ledger_index < 2 ? REC_REJECT : REC_FINISH);
    }
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

/* This length_penalty makes every score exceed the range of float; lagand does not accept such a
 * value from clients. */
static void
score_beyond_float_is_reported_as_the_largest(void **state)
{
    struct rec_submit s = {
        PLAIN,
        .ledger_index = 1,
        .id = 1001,
        .n_prompt = 4,
        .beams = 2,
        .n = 2,
        .max_tokens = 14,
        .length_penalty = -100,
        .n_bias = 2, /* scores above 0: the search runs to its end */
    };
    const struct ring_record *r;
    const struct {
        int32_t ids[4];
        struct {
            int32_t id;
            float add;
        } bias[2];
        float score[2];
    } with = { .ids = { 1, 5, 9, 7 }, .bias = { { 20, 100 }, { 30, 100 } } };
    static const char *const options[] = { "--kv.memory=4MiB", "--max_num_seqs=4", "--threads=1",
                                           "--dtype=fp32", NULL };
    uint32_t ended = 0;
    struct rec_ready ready;
    struct harness p;

    (void)state;
    harness_start(&p, "tests/data/golden/llama2", options, NULL);
    harness_wait_ready(&p, &ready);
    harness_submit(&p, &s, &with, sizeof with);
    while (ended < 2 && (r = harness_next(&p))) {
        struct rec_finish f;
        struct rec_out o;

        if (r->type == REC_STEP) {
            memcpy(&o, (const char *)r->data + sizeof(struct rec_step), sizeof o);
            assert_true(isfinite(o.score));
            continue;
        }
        assert_int_equal(r->type, REC_FINISH);
        memcpy(&f, r->data, sizeof f);
        assert_int_equal(f.reason, LAGAN_FINISH_LENGTH);
        assert_true(f.score == FLT_MAX);
        ended++;
    }
    assert_int_equal(ended, 2);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

enum { SECOND_NEW = 24 };

/* Two resumed outputs: the first needs 1 more token; the second's tokens are returned. others: when
 * the first has ended, the client stops reading, two requests take the free slots, and then the
 * client reads again. */
static void
second_output(int32_t token[SECOND_NEW], bool others)
{
    static const char *const two[] = { "--max_num_seqs=2", "--kv.memory=4MiB", "--threads=1",
                                       "--max_source_tokens=32", NULL };
    struct {
        int32_t source[8], done[SECOND_NEW];
        uint8_t whose[ROUND_UP(SECOND_NEW, 8)];
        float score[2];
    } with = { .score = { 0 } };
    struct rec_submit s = { PLAIN,           .ledger_index = 1,
                            .id = 1001,      .seed = 3,
                            .n_prompt = 8,   .n_done = SECOND_NEW,
                            .n = 2,          .max_tokens = SECOND_NEW,
                            .temperature = 1 };
    uint32_t n = 1, ended = 0, all = others ? 4 : 2;
    struct rec_ready ready;
    struct harness p;

    for (int32_t i = 0; i < 8; i++) with.source[i] = 60 + i;
    for (int32_t i = 0; i < SECOND_NEW; i++) with.done[i] = 50 + i % 5;
    with.whose[SECOND_NEW - 1] = 1; /* 1 token of the second output, all but one of the first */
    token[0] = with.done[SECOND_NEW - 1];
    harness_start(&p, "models/numbers-t5", two, NULL);
    harness_wait_ready(&p, &ready);
    harness_submit(&p, &s, &with, sizeof with);
    while (ended < all) {
        const struct ring_record *r = harness_next(&p);
        const char *at;

        assert_non_null(r);
        if (r->type == REC_FINISH && ++ended == 1 && others) {
            const int32_t other[8] = { 90, 91, 92, 93, 94, 95, 96, 97 };

            harness_suspend(&p, 1, true);
            s.n_done = s.n = 0;
            for (s.ledger_index = 2; s.ledger_index < 4; s.ledger_index++) {
                s.id = 1000 + s.ledger_index;
                harness_submit(&p, &s, other, sizeof other);
            }
        }
        if (r->type == REC_FINISH && ended == 3) harness_suspend(&p, 1, false);
        if (r->type != REC_STEP) continue;
        at = (const char *)r->data + sizeof(struct rec_step);
        for (uint32_t k = ((const struct rec_step *)r->data)->n_ent; k > 0; k--) {
            struct rec_out o;

            memcpy(&o, at, sizeof o);
            if (o.ledger_index == 1 && o.output == 1) {
                assert_int_equal(o.first, n);
                memcpy(&token[n++], at + sizeof o, sizeof token[0]);
            }
            at += sizeof o + ROUND_UP(sizeof token[0] + o.text_bytes, 8u);
        }
    }
    assert_int_equal(n, SECOND_NEW);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

static void
output_keeps_its_encoder_input_after_first_slot_reuse(void **state)
{
    int32_t want[SECOND_NEW], got[SECOND_NEW];

    (void)state;
    second_output(want, /* others= */ false);
    second_output(got, /* others= */ true);
    assert_memory_equal(want, got, sizeof want);
}

/* Returns the token of a character. */
static int32_t
token_of(struct harness *p, char text)
{
    struct rec_text call = { .op = 1, .gen = 1, .flags = 1, .text_bytes = 1 };
    const struct ring_record *r;
    struct rec_text_done d;
    int32_t id;
    char *to;

    assert_int_equal(
        ring_reserve(&p->channel.out, REC_TEXT, 0, (uint32_t)sizeof call + 1, 0, (void **)&to), 0);
    memcpy(to, &call, sizeof call);
    to[sizeof call] = text;
    channel_publish(&p->channel);
    r = harness_next(p);
    assert_non_null(r);
    assert_int_equal(r->type, REC_TEXT_DONE);
    memcpy(&d, r->data, sizeof d);
    assert_int_equal(d.n_ids, 1);
    memcpy(&id, (const char *)r->data + sizeof d, sizeof id);
    return id;
}

/* Resumes two outputs after 1 token each; the first has completed its stop string. text: the prompt
 * is text. */
static void
resume_after_a_stop(bool text)
{
    static const char *const two[] = { "--max_num_seqs=2", "--kv.memory=4MiB", "--threads=1",
                                       NULL };
    struct {
        struct rec_submit s;
        int32_t prompt[2], done[2];
        uint32_t stop_bytes;
        char stop[4];
        uint8_t whose[8];
        float score[2];
    } with = { .prompt = { 5, 9 }, .stop_bytes = 1, .stop = "x", .whose = { 0, 1 } };
    struct rec_submit s = { PLAIN,
                            .ledger_index = 1,
                            .id = 1001,
                            .seed = 3,
                            .n_prompt = text ? 0 : 2,
                            .text_bytes = text ? 8 : 0,
                            .n_done = 2,
                            .n_stop = 1,
                            .n = 2,
                            .max_tokens = 6,
                            .temperature = 1 };
    uint32_t reason[2] = { 0 }, n[2] = { 0 };
    char tail[sizeof with];
    struct rec_ready ready;
    struct harness p;
    size_t at = 0;

    harness_start(&p, "models/recall-gemma3", two, NULL);
    harness_wait_ready(&p, &ready);
    with.done[0] = token_of(&p, 'x');
    with.done[1] = token_of(&p, 'y');
    if (!text) at += sizeof with.prompt;
    memcpy(tail, with.prompt, at);
    memcpy(tail + at, with.done, sizeof with.done);
    at += sizeof with.done;
    if (text) memcpy(tail + at, "k3=blue;", 8);
    if (text) at += 8;
    memcpy(tail + at, &with.stop_bytes, sizeof with.stop_bytes + sizeof with.stop);
    at += sizeof with.stop_bytes + sizeof with.stop;
    memcpy(tail + at, with.whose, sizeof with.whose);
    at += sizeof with.whose;
    memcpy(tail + at, with.score, sizeof with.score);
    at += sizeof with.score;
    harness_submit(&p, &s, tail, (uint32_t)at);
    for (uint32_t ended = 0; ended < 2;) {
        const struct ring_record *r = harness_next(&p);
        struct rec_finish f;

        assert_non_null(r);
        if (r->type != REC_FINISH) continue;
        memcpy(&f, r->data, sizeof f);
        assert_true(f.output < 2 && !reason[f.output]);
        reason[f.output] = f.reason;
        n[f.output] = f.n_tokens;
        ended++;
    }
    assert_int_equal(reason[0], LAGAN_FINISH_STOP);
    assert_int_equal(n[0], 1);
    assert_true(reason[1] == LAGAN_FINISH_STOP || n[1] == 6);
    assert_true(n[1] > 1);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

static void
second_output_continues_after_the_stop_of_the_first(void **state)
{
    (void)state;
    resume_after_a_stop(/* text= */ false);
    resume_after_a_stop(/* text= */ true);
}

/* Sends a SUBMIT in as many fragments as needed. */
static void
submit_fragments(struct harness *p, const char *bytes, uint32_t n)
{
    const uint32_t piece = 64 << 10;

    for (uint32_t at = 0; at < n;) {
        uint32_t some = MIN(piece, n - at);
        void *to;

        while (ring_reserve(&p->channel.out, REC_SUBMIT, at + some < n ? RING_MORE : 0, some, 0,
                            &to) == -EAGAIN) {
            /* fails if the worker has exited */
            assert_int_equal(waitpid(p->pid, NULL, WNOHANG), 0);
            usleep(1000);
        }
        memcpy(to, bytes + at, some);
        at += some;
        channel_publish(&p->channel);
    }
}

/* Copies a model to a new folder and edits one file with sed. */
static void
copy_model(char dir[32], const char *model, const char *sed, const char *file)
{
    const char *top = getenv("srcdir");
    char line[400];

    snprintf(dir, 32, "/tmp/test_worker.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(line, sizeof line, "cp %s/%s/* %s && sed -i \"%s\" %s/%s", top ? top : ".", model, dir,
             sed, dir, file);
    assert_int_equal(system(line), 0);
}

static void
remove_model(const char *dir)
{
    char line[64];

    snprintf(line, sizeof line, "rm -r %s", dir);
    assert_int_equal(system(line), 0);
}

enum { COMING = 64, COMING_SOURCE = 4 };

/* Resumes a request: all outputs are complete, except that `missing` tokens lack at the last one;
 * with `text` bytes of delivered text. */
static void
submit_delivered(struct harness *p, uint32_t each, uint32_t missing, uint32_t text)
{
    const uint32_t n = COMING * each - missing;
    const struct rec_submit s = { PLAIN,           .ledger_index = 1,
                                  .id = 1001,      .n_prompt = COMING_SOURCE,
                                  .n_done = n,     .done_text = text,
                                  .n = COMING,     .max_tokens = each,
                                  .temperature = 1 };
    uint32_t prompt = sizeof s, done = prompt + COMING_SOURCE * 4,
             text_at = done + ROUND_UP(4 * n, 8u), whose = text_at + ROUND_UP(text, 8u),
             all = whose + ROUND_UP(n, 8u) + COMING * 4;
    char *with = calloc(1, all);

    assert_non_null(with);
    memcpy(with, &s, sizeof s);
    for (uint32_t i = 0; i < COMING_SOURCE + n; i++) {
        int32_t id = 60 + (int32_t)i % 7;

        memcpy(with + (i < COMING_SOURCE ? prompt + 4 * i : done + 4 * (i - COMING_SOURCE)), &id,
               4);
    }
    for (uint32_t i = 0; i < n; i++) with[whose + i] = (char)(i / each);
    submit_fragments(p, with, all);
    free(with);
}

static void
resume_outputs(const char *model, const char *max_len, uint32_t each, uint32_t missing)
{
    const char *const long_ones[] = { "--max_num_seqs=64",
                                      "--kv.memory=32MiB",
                                      "--threads=1",
                                      "--max_source_tokens=64",
                                      max_len,
                                      NULL };
    bool over[COMING] = { false };
    struct rec_ready ready;
    struct harness p;

    harness_start(&p, model, long_ones, NULL);
    harness_wait_ready(&p, &ready);
    submit_delivered(&p, each, missing, 0);
    for (uint32_t n = 0; n < COMING;) {
        const struct ring_record *r = harness_next(&p);
        struct rec_finish f;

        assert_non_null(r);
        assert_true(r->type == REC_FINISH || r->type == REC_STEP);
        if (r->type == REC_STEP) continue;
        memcpy(&f, r->data, sizeof f);
        assert_true(f.output < COMING && !over[f.output]);
        assert_int_equal(f.reason, LAGAN_FINISH_LENGTH);
        assert_int_equal(f.n_tokens, each);
        over[f.output] = true;
        n++;
    }
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

static void
outputs_longer_in_total_than_the_model_resume(void **state)
{
    char dir[32];

    (void)state;
    resume_outputs("models/numbers-t5", "--max_model_len=2200", 2100, 1);
    /* All tokens delivered, FINISH missing. */
    resume_outputs("models/numbers-t5", "--max_model_len=2200", 2100, 0);
    copy_model(dir, "tests/data/golden/llama2", "s/\\(max_position_embeddings.*\\) 256/\\1 90000/",
               "config.json");
    resume_outputs(dir, "--max_model_len=90000", 80000, 0); /* 25 MB of tokens */
    remove_model(dir);
}

static void
resumed_request_that_is_too_long_is_refused(void **state)
{
    static const char *const small[] = { "--max_num_seqs=64",    "--kv.memory=32MiB",
                                         "--threads=1",          "--max_source_tokens=64",
                                         "--max_model_len=2200", NULL };
    const struct rec_submit next = { PLAIN, .ledger_index = 2, .id = 1002, .n_prompt = 3,
                                     .max_tokens = 4 };
    const int32_t ids[4] = { 60, 61, 62 }; /* padded to 8 bytes */
    const struct ring_record *r;
    struct rec_ready ready;
    struct harness p;
    uint32_t n;

    (void)state;
    harness_start(&p, "models/numbers-t5", small, NULL);
    harness_wait_ready(&p, &ready);
    submit_delivered(&p, 2000, 0, 32 << 20);
    r = harness_next(&p);
    assert_non_null(r);
    assert_int_equal(r->type, REC_REJECT);
    assert_int_equal(((const struct rec_reject *)r->data)->ledger_index, 1);
    assert_int_equal(((const struct rec_reject *)r->data)->reason, LAGAN_E_TOO_LONG);
    harness_submit(&p, &next, ids, sizeof ids);
    harness_finish(&p, &n);
    assert_int_equal(n, 4);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
}

/* A token added to the vocabulary, with a text of LONG_TEXT bytes. */
enum { LONG_TOKEN = 260, LONG_TEXT = 4000 };

/* The last step of a search reports all tokens of the worse outputs. */
static void
long_outputs_of_a_search_are_reported_at_its_end(void **state)
{
    enum { N = 4, EACH = 1000, SOURCE = 4 };
    static const char *const four[] = { "--max_num_seqs=4",
                                        "--max_num_batched_tokens=8",
                                        "--kv.memory=32MiB",
                                        "--threads=1",
                                        "--max_source_tokens=16",
                                        "--max_model_len=1100",
                                        NULL };
    const struct {
        int32_t prompt[SOURCE];
        struct {
            int32_t id;
            float add;
        } bias;
        float score[N];
    } with = { { 60, 61, 62, 63 }, { LONG_TOKEN, 100 }, { 0 } };
    const struct rec_submit s = { PLAIN,       .ledger_index = 1,
                                  .id = 1001,  .n_prompt = SOURCE,
                                  .n_bias = 1, .n = N,
                                  .beams = N,  .max_tokens = EACH };
    uint64_t text = 0;
    char dir[32], sed[100];
    struct rec_ready ready;
    struct harness p;

    (void)state;
    snprintf(sed, sizeof sed, "s/\\\"vocab\\\": *{/&\\\"$(printf %%0%dd 0)\\\": %d,/", LONG_TEXT,
             LONG_TOKEN);
    copy_model(dir, "models/numbers-t5", sed, "tokenizer.json");
    harness_start(&p, dir, four, NULL);
    harness_wait_ready(&p, &ready);
    harness_submit(&p, &s, &with, sizeof with);
    for (uint32_t ended = 0; ended < N;) {
        const struct ring_record *r = harness_next(&p);
        const char *at;

        assert_non_null(r);
        if (r->type == REC_FINISH) {
            assert_int_equal(((const struct rec_finish *)r->data)->n_tokens, EACH);
            ended++;
            continue;
        }
        assert_int_equal(r->type, REC_STEP);
        at = (const char *)r->data + sizeof(struct rec_step);
        for (uint32_t k = ((const struct rec_step *)r->data)->n_ent; k > 0; k--) {
            struct rec_out o;

            memcpy(&o, at, sizeof o);
            text += o.text_bytes;
            at += sizeof o + ROUND_UP(sizeof(int32_t) + o.text_bytes, 8u);
        }
    }
    assert_true(text > (uint64_t)N * (EACH - 100) * LONG_TEXT);
    harness_kill(&p, &(struct harness_arenas){ 0 });
    harness_close(&p);
    remove_model(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_that_may_suppress_every_token_is_refused),
        cmocka_unit_test(score_beyond_float_is_reported_as_the_largest),
        cmocka_unit_test(output_keeps_its_encoder_input_after_first_slot_reuse),
        cmocka_unit_test(second_output_continues_after_the_stop_of_the_first),
        cmocka_unit_test(outputs_longer_in_total_than_the_model_resume),
        cmocka_unit_test(resumed_request_that_is_too_long_is_refused),
        cmocka_unit_test(long_outputs_of_a_search_are_reported_at_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
