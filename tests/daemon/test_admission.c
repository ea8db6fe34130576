/* test_admission.c - limits, bounds of the model, and the record of a SUBMIT. */
#include "daemon/config/options.h"
#include "daemon/ledger/request.h"
#include "daemon/request/admission.h"

#include "daemon/request/accounting.h"
#include "ipc/records.h"
#include "tests/test.h"

static struct config config;
static struct daemon d;
static struct client *client;

static int
set_up(void **state)
{
    uint32_t gone;

    (void)state;
    memset(&d, 0, sizeof d);
    opt_defaults(daemon_opts, &config.o);
    config.n_models = 1;
    strcpy(config.model[0].keys.name, "m");
    d.config = &config;
    d.ledger = ledger_new(16, 1);
    d.sessions = sessions_new(1);
    d.now = NSEC_S;
    client = session_of(d.sessions, LISTENER_API, "c", 1, 1, &gone);
    client->user = session_user(d.sessions, "uid:7");
    client->user->max_open = 1000;
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    d.ledger = ledger_free(d.ledger);
    d.sessions = sessions_free(d.sessions);
    return 0;
}

/* Makes a SUBMIT of ids 0 .. n-1, or text, with further keys packed by `more`. */
struct extra {
    const char *key;
    int64_t v;
};

static int
submit(uint64_t rid, uint32_t n_ids, const char *text, const struct extra *more, uint32_t n_more,
       struct request **ret, struct err *e)
{
    msgpack_sbuffer b;
    msgpack_packer p;
    struct msg m;
    int r;

    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_SUBMIT, rid, 1 + n_more);
    msg_key(&p, text ? "text" : "ids");
    if (text) {
        msg_text(&p, text);
    } else {
        msgpack_pack_array(&p, n_ids);
        for (uint32_t i = 0; i < n_ids; i++) msgpack_pack_uint32(&p, i);
    }
    for (uint32_t i = 0; i < n_more; i++) {
        msg_key(&p, more[i].key);
        if (strstr(more[i].key, "_ids")) {
            msgpack_pack_array(&p, 1);
            msgpack_pack_int64(&p, more[i].v);
        } else if (!strcmp(more[i].key, "model_defaults") || !strcmp(more[i].key, "fit") ||
                   !strcmp(more[i].key, "return_logits")) {
            msgpack_pack_true(&p);
        } else if (!strcmp(more[i].key, "cache_salt")) {
            msg_text(&p, "s0");
        } else {
            msgpack_pack_int64(&p, more[i].v);
        }
    }
    assert_int_equal(msg_decode(&m, b.data, b.size, e), 0);
    r = admission_take(&d, client, &m, ret, &(struct prompt_length){ 0 }, e);
    msg_done(&m);
    msgpack_sbuffer_destroy(&b);
    return r;
}

static void
refused(uint32_t code, const char *words, uint64_t rid, uint32_t n_ids, const char *text,
        const char *key, int64_t v)
{
    const struct extra more = { key, v };
    struct err e = { .text = "" };
    struct request *r;
    int got = submit(rid, n_ids, text, &more, key != NULL, &r, &e);

    if (got != (int)code || !strstr(e.text, words)) {
        fail_msg("%d \"%s\", not %u \"%s\"", got, e.text, code, words);
    }
}

static void
submit_record_has_each_tail_at_its_offset(void **state)
{
    const struct extra more[] = { { "max_tokens", 9 },  { "stop_ids", 7 }, { "eos_ids", 8 },
                                  { "decoder_ids", 6 }, { "logprobs", 0 }, { "seed", 77 },
                                  { "ack_window", 3 } };
    struct err e;
    struct request *r;
    const struct rec_submit *s;
    const int32_t *p;

    (void)state;
    assert_int_equal(submit(1, 3, NULL, more, ARRAY_LEN(more), &r, &e), 0);
    s = r->submit;
    p = (const int32_t *)(const void *)(s + 1);
    assert_int_equal(r->submit_bytes, sizeof *s + 16 + 8 + 8 + 8 + 8);
    assert_int_equal(s->n_prompt, 3);
    assert_int_equal(p[2], 2);
    assert_int_equal(p[4], 6);
    assert_int_equal(p[6], 8);
    assert_int_equal(p[8], 7);
    assert_int_equal(s->salt_bytes, 6);
    assert_string_equal((const char *)(p + 10), "uid:7");
    assert_int_equal(s->max_tokens, 9);
    assert_int_equal(s->seed, 77);
    assert_int_equal(s->flags, SUBMIT_LOGPROBS);
    assert_int_equal(s->forced_bos, -2);
    assert_int_equal(r->delivery.ack_window, 3);
    assert_int_equal(r->terms.deadline, NSEC_NEVER);
}

/* Returns the salt tail, which is the last. */
static const char *
salt_of(const struct request *r)
{
    return (const char *)r->submit + r->submit_bytes - REC_PAD(r->submit->salt_bytes);
}

static void
salt_has_the_user_unless_all_users_share_and_the_key_cache_salt(void **state)
{
    const struct extra more = { "cache_salt", 0 };
    struct request *r;
    struct err e;

    (void)state;
    assert_int_equal(submit(1, 3, NULL, &more, 1, &r, &e), 0);
    assert_int_equal(r->submit->salt_bytes, 8);
    assert_memory_equal(salt_of(r), "uid:7\0s0", 8);
    config.model[0].keys.kv_reuse_scope = REUSE_SCOPE_ALL;
    assert_int_equal(submit(2, 3, NULL, &more, 1, &r, &e), 0);
    assert_int_equal(r->submit->salt_bytes, 3);
    assert_memory_equal(salt_of(r), "\0s0", 3);
    assert_int_equal(submit(3, 3, NULL, NULL, 0, &r, &e), 0);
    assert_int_equal(r->submit->salt_bytes, 0);
    config.model[0].keys.kv_reuse_scope = REUSE_SCOPE_USER;
}

static void
defaults_are_the_models_eos_ids_and_a_random_seed(void **state)
{
    struct err e;
    struct request *a, *b;

    (void)state;
    assert_int_equal(submit(1, 3, NULL, NULL, 0, &a, &e), 0);
    assert_int_equal(submit(2, 3, NULL, NULL, 0, &b, &e), 0);
    assert_int_equal(a->submit->n_eos, 0xffff);
    assert_true(a->submit->seed != b->submit->seed);
    assert_int_equal(a->submit->max_tokens, 16);
}

static void
invalid_submit_is_refused_without_model_facts(void **state)
{
    (void)state;
    refused(LAGAN_E_INVALID_REQUEST, "ids is empty", 1, 0, NULL, NULL, 0);
}

static void
max_tokens_error_names_the_limit(void **state)
{
    (void)state;
    refused(LAGAN_E_INVALID_REQUEST, "max_tokens is 0", 1, 1, NULL, "max_tokens", 0);
    refused(LAGAN_E_INVALID_REQUEST, "max_tokens is 2147483648", 1, 1, NULL, "max_tokens",
            INT64_C(1) << 31);
}

static void
unsupported_keys_are_refused_by_name_unless_default(void **state)
{
    struct extra one = { "beams", 1 };
    struct err e;
    struct request *r;

    (void)state;
    refused(LAGAN_E_UNSUPPORTED, "encoder_features is not served: no model family", 1, 1, NULL,
            "encoder_features", 1);
    assert_int_equal(submit(1, 1, NULL, &one, 1, &r, &e), 0);
}

static void
invalid_combinations_of_beams_and_n_are_refused(void **state)
{
    static const struct {
        struct extra more[3];
        const char *words; /* NULL: accepted */
    } rows[] = {
        { { { "beams", 4 }, { "n", 4 }, { "no_repeat_ngram", 3 } }, NULL },
        { { { "n", 3 }, { "temperature", 1 }, { "logprobs", 2 } }, NULL },
        { { { "beams", 3 }, { "n", 4 }, { "seed", 1 } }, "n is 4" },
        { { { "beams", 2 }, { "n", 2 }, { "logprobs", 0 } }, NULL },
        { { { "beams", 2 }, { "n", 2 }, { "logprobs", 1 } }, NULL },
        { { { "beams", 2 }, { "n", 2 }, { "return_logits", 1 } }, NULL },
        { { { "n", 2 }, { "temperature", 1 }, { "return_logits", 1 } },
          "return_logits needs n = 1 or beams above 1" },
        { { { "beams", 2 }, { "temperature", 1 }, { "seed", 1 } },
          "temperature cannot be combined with beams" },
        { { { "n", 2 }, { "seed", 1 }, { "ack_window", 1 } }, "set temperature" },
        { { { "beams", 17 }, { "seed", 1 }, { "ack_window", 1 } }, "beams is 17" },
    };
    struct err e;
    struct request *r;

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(rows); i++) {
        int code = submit(10 + i, 2, NULL, rows[i].more, 3, &r, &e);

        if (!rows[i].words) {
            assert_int_equal(code, 0);
            assert_int_equal(r->submit->n,
                             rows[i].more[1].key[0] == 'n' ? rows[i].more[1].v : rows[i].more[0].v);
            assert_non_null(r->outputs.each);
        } else if (code != LAGAN_E_INVALID_REQUEST || !strstr(e.text, rows[i].words)) {
            fail_msg("%d \"%s\", not \"%s\"", code, e.text, rows[i].words);
        }
    }
    d.facts[0] =
        (struct model_facts){ .known = true, .vocab = 9, .max_len = 50, .max_request_seqs = 3 };
    refused(LAGAN_E_INVALID_REQUEST, "the limit is 3", 30, 2, NULL, "beams", 4);
}

/* A worker keeps the rows of all beams until the search is over. */
static void
searches_that_keep_too_much_are_refused(void **state)
{
    static const struct {
        struct extra more[3];
        const char *words; /* NULL: accepted */
    } rows[] = {
        { { { "beams", 4 }, { "max_tokens", 100 }, { "logprobs", 1024 } }, NULL },
        { { { "beams", 16 }, { "max_tokens", 200 }, { "logprobs", 1024 } },
          "logprobs 1024 of 3200 tokens of all beams need 26227200 bytes" },
        { { { "beams", 4 }, { "max_tokens", 16 }, { "return_logits", 1 } }, NULL },
        { { { "beams", 4 }, { "max_tokens", 17 }, { "return_logits", 1 } },
          "the logits of 68 tokens of all beams need 71303168 bytes; a beam search may keep "
          "67108864" },
        { { { "beams", 1 }, { "max_tokens", 17 }, { "return_logits", 1 } }, NULL },
    };
    struct err e;
    struct request *r;

    (void)state;
    config.o.tensor_bytes = 1 << 30;
    d.facts[0] = (struct model_facts){
        .known = true, .vocab = 1 << 18, .max_len = 500, .max_request_seqs = 16
    };
    for (uint32_t i = 0; i < ARRAY_LEN(rows); i++) {
        int code = submit(10 + i, 2, NULL, rows[i].more, 3, &r, &e);

        if (code != (rows[i].words ? LAGAN_E_TOO_LONG : 0) ||
            (rows[i].words && !strstr(e.text, rows[i].words)))
            fail_msg("row %u: %d \"%s\"", i, code, e.text);
    }
}

static void
fit_lowers_max_tokens_to_the_free_positions(void **state)
{
    const struct extra more[] = { { "fit", true }, { "max_tokens", 1000 } };
    const struct extra logits[] = { { "fit", true }, { "max_tokens", 1000 }, { "n", 1 } };
    struct err e;
    struct request *r;

    (void)state;
    assert_int_equal(submit(1, 3, NULL, more, 2, &r, &e), 0); /* no facts are known */
    assert_int_equal(r->submit->max_tokens, 1000);
    assert_int_equal(r->submit->flags, SUBMIT_FIT);
    d.facts[0] = (struct model_facts){
        .known = true,
        .has_text = true,
        .max_text_bytes = 99,
        .vocab = 9,
        .max_len = 50,
    };
    accounting_recount(&d, r);
    assert_int_equal(r->submit->max_tokens, 47);
    assert_int_equal(client->user->tokens, 50);
    assert_int_equal(submit(2, 0, "abc", more, 2, &r, &e), 0);
    assert_int_equal(r->submit->max_tokens, 50); /* the worker knows the tokens of the text */
    d.facts[0].max_tokens = 20;
    assert_int_equal(submit(3, 3, NULL, logits, 3, &r, &e), 0);
    assert_int_equal(r->submit->max_tokens, 17);
    refused(LAGAN_E_TOO_LONG, "has 50 tokens", 4, 50, NULL, "fit", true);
}

static void
default_beams_are_charged_after_ready(void **state)
{
    const struct extra more[] = { { "model_defaults", 1 }, { "max_tokens", 10 } };
    struct fair_queue_client *t = &d.fair_queues[0].client[session_flow(d.sessions, client)];
    struct err e;
    struct request *r;

    (void)state;
    d.fair_queues[0].quantum = 100;
    assert_int_equal(submit(1, 3, NULL, more, 2, &r, &e), 0); /* no facts are known */
    assert_int_equal(request_n_seqs(r), 1);
    d.facts[0] = (struct model_facts){
        .known = true, .vocab = 9, .max_len = 50, .max_request_seqs = 4, .beams = 4
    };
    for (int i = 0; i < 2; i++) {
        accounting_recount(&d, r);
        assert_int_equal(request_n_seqs(r), 4);
        assert_int_equal(client->user->tokens, 3 + 4 * 10);
        assert_int_equal(t->spent, 3 + 4 * 10);
    }
    accounting_release(&d, r);
    assert_int_equal(client->user->tokens, 0);
    assert_int_equal(t->spent, 3);

    assert_int_equal(submit(2, 3, NULL, more, 2, &r, &e), 0);
    assert_int_equal(request_n_seqs(r), 4);
    assert_int_equal(r->accounting.n_tokens, 3 + 4 * 10);
    d.facts[0].temperature = 0.5f;
    refused(LAGAN_E_INVALID_REQUEST, "temperature cannot be combined with beams", 3, 2, NULL,
            "model_defaults", true);
    strcpy(d.facts[0].unserved, "top_h");
    refused(LAGAN_E_UNSUPPORTED, "generation_config.json sets top_h", 3, 2, NULL, "model_defaults",
            true);
    d.facts[0].temperature = 0;
    d.facts[0].unserved[0] = 0;
    d.facts[0].max_request_seqs = 3;
    refused(LAGAN_E_INVALID_REQUEST, "beams is 4", 3, 2, NULL, "model_defaults", true);
}

static void
second_request_with_the_same_rid_is_refused(void **state)
{
    struct err e;
    struct request *r;

    (void)state;
    assert_int_equal(submit(5, 1, NULL, NULL, 0, &r, &e), 0);
    refused(LAGAN_E_INVALID_REQUEST, "request id 5 is in use", 5, 1, NULL, NULL, 0);
}

static void
queue_and_client_limits_refuse_before_accept(void **state)
{
    struct err e;
    struct request *r;

    (void)state;
    config.o.max_queued_reqs = 2;
    config.o.max_queued_tokens = 10;
    assert_int_equal(submit(1, 50, NULL, NULL, 0, &r, &e),
                     0); /* a single request may have any length */
    refused(LAGAN_E_QUEUE_FULL, "scheduler.max_num_queued_tokens", 2, 1, NULL, NULL, 0);
    config.o.max_queued_tokens = 100;
    assert_int_equal(submit(2, 1, NULL, NULL, 0, &r, &e), 0);
    refused(LAGAN_E_QUEUE_FULL, "scheduler.max_num_queued_reqs", 3, 1, NULL, NULL, 0);
    client->n_open = config.o.max_inflight = 2;
    refused(LAGAN_E_QUEUE_FULL, "api.max_inflight", 3, 1, NULL, NULL, 0);
    d.draining = true;
    refused(LAGAN_E_DRAINING, "stopping", 3, 1, NULL, NULL, 0);
}

/* After the end, the fair queue gets back the unused tokens of all outputs and beams. */
static void
unused_tokens_are_returned_to_the_user(void **state)
{
    static const struct {
        uint32_t n, beams, generated, spent;
    } cases[] = { { 1, 1, 10, 13 }, { 1, 1, 4, 7 },  { 4, 1, 40, 43 },
                  { 4, 1, 12, 15 }, { 1, 4, 5, 23 }, { 2, 4, 20, 43 } };
    struct err e;
    struct request *r;

    (void)state;
    d.fair_queues[0].quantum = 100;
    for (uint32_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct extra more[] = { { "max_tokens", 10 },
                                      { "n", cases[i].n },
                                      { "beams", cases[i].beams },
                                      { "temperature", cases[i].beams == 1 } };
        struct fair_queue_client *t = &d.fair_queues[0].client[session_flow(d.sessions, client)];

        assert_int_equal(submit(i, 3, NULL, more, ARRAY_LEN(more), &r, &e), 0);
        assert_int_equal(t->spent, 3 + 10 * MAX(cases[i].n, cases[i].beams));
        assert_int_equal(bytes_add(&r->outputs.token, NULL, 4 * cases[i].generated), 0);
        accounting_release(&d, r);
        assert_int_equal(t->spent, cases[i].spent);
    }
}

static void
decoder_limits_bound_a_request(void **state)
{
    (void)state;
    d.facts[0] = (struct model_facts){
        .known = true, .vocab = 40, .max_len = 100, .max_tokens = 60, .family = "gemma3"
    };
    refused(LAGAN_E_INVALID_REQUEST, "ids[40] is 40, but the vocabulary has only 40", 1, 41, NULL,
            NULL, 0);
    refused(LAGAN_E_INVALID_REQUEST, "decoder_ids", 1, 1, NULL, "decoder_ids", 1);
    refused(LAGAN_E_INVALID_REQUEST, "stop_ids[0] is 40", 1, 1, NULL, "stop_ids", 40);
    refused(LAGAN_E_INVALID_REQUEST, "eos_ids[0] is 41", 1, 1, NULL, "eos_ids", 41);
    refused(LAGAN_E_INVALID_REQUEST, "forced_bos is 40", 1, 1, NULL, "forced_bos", 40);
    refused(LAGAN_E_UNSUPPORTED, "no tokenizer", 1, 0, "hello", NULL, 0);
    refused(LAGAN_E_TOO_LONG, "maximum sequence length of 100", 1, 100, NULL, NULL, 0);
    refused(LAGAN_E_TOO_LONG, "the KV cache holds at most 60", 1, 60, NULL, NULL, 0);
    d.facts[0].has_text = 1;
    d.facts[0].max_text_bytes = 4;
    refused(LAGAN_E_TOO_LONG, "text has 5 bytes", 1, 0, "hello", NULL, 0);
}

static void
encoder_limits_bound_input_and_decoder_prefix(void **state)
{
    struct extra prefix = { "decoder_ids", 3 };
    struct err e;
    struct request *r;

    (void)state;
    d.facts[0] =
        (struct model_facts){ .known = true, .vocab = 40, .max_len = 100, .max_source = 20 };
    refused(LAGAN_E_TOO_LONG, "the encoder input is 21 tokens", 1, 21, NULL, NULL, 0);
    refused(LAGAN_E_INVALID_REQUEST, "decoder_ids[0] is 40", 1, 1, NULL, "decoder_ids", 40);
    d.facts[0].decoder_start = -1;
    refused(LAGAN_E_INVALID_REQUEST, "no decoder_start_token_id", 1, 20, NULL, NULL, 0);
    assert_int_equal(submit(1, 20, NULL, &prefix, 1, &r, &e), 0);
}

static void
unknown_model_is_not_found(void **state)
{
    (void)state;
    config.n_models = 2;
    strcpy(config.model[1].keys.name, "other");
    refused(LAGAN_E_INVALID_REQUEST, "model is missing", 1, 1, NULL, NULL, 0);
    config.n_models = 1;
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(submit_record_has_each_tail_at_its_offset),
        T(salt_has_the_user_unless_all_users_share_and_the_key_cache_salt),
        T(defaults_are_the_models_eos_ids_and_a_random_seed),
        T(invalid_submit_is_refused_without_model_facts),
        T(max_tokens_error_names_the_limit),
        T(invalid_combinations_of_beams_and_n_are_refused),
        T(searches_that_keep_too_much_are_refused),
        T(unsupported_keys_are_refused_by_name_unless_default),
        T(default_beams_are_charged_after_ready),
        T(fit_lowers_max_tokens_to_the_free_positions),
        T(second_request_with_the_same_rid_is_refused),
        T(queue_and_client_limits_refuse_before_accept),
        T(unused_tokens_are_returned_to_the_user),
        T(decoder_limits_bound_a_request),
        T(encoder_limits_bound_input_and_decoder_prefix),
        T(unknown_model_is_not_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
