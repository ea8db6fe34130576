/* test_api_errors.c - every error of the API: status, code, header lines, and in a stream. */
#include "tests/gateway/api_assert.h"

#define BODY "{\"model\":\"m\",\"prompt\":\"a\"}"
#define STREAM "{\"model\":\"m\",\"prompt\":\"a\",\"stream\":true}"

static const struct {
    uint32_t reason;
    int status; /* 0: the connection is closed */
    const char *code, *fields;
} of_lagand[] = {
    { LAGAN_E_INVALID_REQUEST, 400, "invalid_request", "" },
    { LAGAN_E_TOO_LONG, 400, "context_length_exceeded", "" },
    { LAGAN_E_QUEUE_FULL, 429, "queue_full", "Retry-After: 1\r\nRetry-After-Ms: " },
    { LAGAN_E_DEADLINE, 408, "deadline", "X-Should-Retry: false\r\n" },
    { LAGAN_E_CANCELLED, 503, "cancelled", "X-Should-Retry: false\r\n" },
    { LAGAN_E_DRAINING, 503, "draining", "Retry-After: 5\r\nRetry-After-Ms: " },
    { LAGAN_E_MODEL_NOT_FOUND, 404, "model_not_found", "" },
    { LAGAN_E_UNAUTHORIZED, 502, "lagand_refused", "" },
    { LAGAN_E_SLOW_READER, 0, NULL, "" },
    { LAGAN_E_WORKER_LOST, 503, "worker_lost", "Retry-After: 1\r\nRetry-After-Ms: " },
    { LAGAN_E_POISONED, 422, "poisoned", "" },
    { LAGAN_E_OUT_OF_MEMORY, 503, "out_of_memory", "Retry-After: 1\r\nRetry-After-Ms: " },
    { LAGAN_E_DEVICE_LOST, 503, "device_lost", "Retry-After: 1\r\nRetry-After-Ms: " },
    { LAGAN_E_INTERNAL, 500, "internal", "" },
    { LAGAN_E_UNSUPPORTED, 400, "unsupported", "" },
    { LAGAN_E_NOT_FOUND, 404, "not_found", "X-Should-Retry: false\r\n" },
    { LAGAN_E_CONFIGURATION, 500, "internal", "" },
};

static void
every_error_of_lagand_has_a_row(void **state)
{
    (void)state;
#define X(number, name, word, retry, sentence) \
    { \
        size_t i = 0; \
        while (i < ARRAY_LEN(of_lagand) && of_lagand[i].reason != number) i++; \
        if (i == ARRAY_LEN(of_lagand)) fail_msg("error %s of lagand has no row", word); \
    }
    LAGAN_ERRORS(X)
#undef X
}

static void
errors_before_the_first_token_have_their_status(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(of_lagand); i++) {
        struct http_exchange *x = complete(i % 2 ? STREAM : BODY);

        send_error(&f, f.n_sent - 1, of_lagand[i].reason, "a sentence of lagand");
        if (of_lagand[i].status) {
            const char *param = of_lagand[i].reason == LAGAN_E_MODEL_NOT_FOUND ? "model" : NULL;

            assert_fault(x, of_lagand[i].status, of_lagand[i].code, param);
            assert_non_null(strstr(x->sent.p, "a sentence of lagand"));
            assert_memory_equal(x->fields.p, of_lagand[i].fields, strlen(of_lagand[i].fields));
        } else {
            assert_true(x->cut);
        }
        ask_done(&f, x);
        assert_string_equal(f.last_reason, of_lagand[i].code ? of_lagand[i].code : "slow_reader");
    }
}

static void
retry_after_of_a_full_queue_follows_the_rate(void **state)
{
    static const struct {
        int ended, open;
        const char *want;
    } cases[] = { { 0, 3, "Retry-After: 1\r\n" },
                  { 10, 5, "Retry-After: 6\r\n" }, /* 1 a second; 5 and the refused one */
                  { 1, 99, "Retry-After: 60\r\n" } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct http_exchange *x[100];

        move_clock(&f, 20 * NSEC_S);
        for (int k = 0; k < cases[i].ended; k++) {
            x[0] = complete(BODY);
            send_output(&f, f.n_sent - 1, 0, LAGAN_FINISH_EOS, 1, 1);
            send_done(&f, f.n_sent - 1);
            ask_done(&f, x[0]);
        }
        for (int k = 0; k < cases[i].open; k++) x[k] = complete(BODY);
        x[99] = complete(BODY);
        send_error(&f, f.n_sent - 1, LAGAN_E_QUEUE_FULL, "full");
        assert_memory_equal(x[99]->fields.p, cases[i].want, strlen(cases[i].want));
        ask_done(&f, x[99]);
        for (int k = 0; k < cases[i].open; k++) ask_done(&f, x[k]);
        move_clock(&f, 20 * NSEC_S); /* those that left do not count */
    }
}

static void
errors_of_a_stream_are_its_last_event(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(of_lagand); i++) {
        struct http_exchange *x = complete(STREAM);
        const char *at;

        send_tokens(&f, f.n_sent - 1, 0, "b", (token_id[]){ 5 }, 1);
        send_error(&f, f.n_sent - 1, of_lagand[i].reason, "a sentence");
        assert_int_equal(x->status, 200);
        if (of_lagand[i].status) {
            out_bytes(&x->sent, "", 1);
            at = strstr(x->sent.p, "\n\ndata: {\"error\":{\"message\":\"");
            assert_non_null(at);
            assert_non_null(strstr(at, of_lagand[i].code));
            assert_string_equal(strchr(at + 2, '\n'), "\n\n"); /* no [DONE] */
            assert_true(x->ended);
        } else {
            assert_true(x->cut);
        }
        ask_done(&f, x);
    }
}

static void
too_long_begins_with_the_words_that_clients_look_for(void **state)
{
    struct http_exchange *x = complete(BODY);

    (void)state;
    send_event(&f, 0,
               (struct lagan_event){ .kind = LAGAN_EVENT_ERROR,
                                     .reason = LAGAN_E_TOO_LONG,
                                     .max_len = 77,
                                     .message = "the prompt has 99 tokens" });
    assert_body(x,
                "{\"error\":{\"message\":\"This model's maximum context length is 77 tokens. the "
                "prompt has 99 tokens\",\"type\":\"invalid_request_error\",\"param\":null,"
                "\"code\":\"context_length_exceeded\"}}");
    ask_done(&f, x);
}

static void
an_operator_who_cancels_ends_the_request(void **state)
{
    struct http_exchange *x = complete("{\"model\":\"m\",\"prompt\":[\"a\",\"b\"]}");

    (void)state;
    send_output(&f, 0, 0, LAGAN_FINISH_CANCELLED, 1, 2);
    assert_fault(x, 503, "cancelled", NULL);
    assert_true(f.sent[1].cancelled);
    send_done(&f, 0); /* late events change nothing */
    send_tokens(&f, 1, 0, "b", (token_id[]){ 5 }, 1);
    ask_done(&f, x);
}

static void
states_of_the_service_have_their_errors(void **state)
{
    struct http_exchange *x;

    (void)state;
    f.connected = false;
    x = complete(BODY);
    assert_fault(x, 503, "lagand_unreachable", NULL);
    assert_non_null(strstr(x->fields.p, "Retry-After: 1\r\n"));
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/health/ready", NULL);
    assert_fault(x, 503, "lagand_unreachable", NULL);
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/health/live", NULL);
    assert_int_equal(x->status, 200);
    ask_done(&f, x);
    f.connected = f.draining = true;
    x = complete(BODY);
    assert_fault(x, 503, "draining", NULL);
    ask_done(&f, x);
    f.draining = false;
    f.models[0].ready = false;
    f.models[0].since = 0;
    x = complete(BODY);
    assert_fault(x, 503, "loading", "model");
    assert_non_null(strstr(x->fields.p, "Retry-After: 5\r\n"));
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/ping", NULL);
    assert_fault(x, 503, "loading", NULL);
    ask_done(&f, x);
    f.models[0].since = 1; /* a worker is being replaced: lagand queues the request */
    f.submit_code = -ENOTCONN;
    x = complete(BODY);
    assert_fault(x, 503, "lagand_unreachable", NULL);
    ask_done(&f, x);
    f.submit_code = -EAGAIN;
    x = complete(BODY);
    assert_fault(x, 429, "queue_full", NULL);
    ask_done(&f, x);
    f.submit_code = -EMSGSIZE;
    x = complete(BODY);
    assert_fault(x, 400, "context_length_exceeded", NULL);
    ask_done(&f, x);
    f.submit_code = -ENOMEM;
    x = complete(BODY);
    assert_fault(x, 503, "out_of_memory", NULL);
    ask_done(&f, x);
    f.submit_code = -EINVAL;
    x = ask(&f, HTTP_POST, "/tokenize", BODY);
    assert_fault(x, 503, "lagand_unreachable", NULL);
    ask_done(&f, x);
}

static void
unknown_models_are_answered_with_the_served_names(void **state)
{
    struct http_exchange *x = complete("{\"model\":\"gpt\",\"prompt\":\"a\"}");

    (void)state;
    assert_fault(x, 404, "model_not_found", "model");
    assert_non_null(strstr(x->sent.p, "the model gpt is not served; served are: m\""));
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/v1/models/a/b", NULL);
    assert_fault(x, 404, "model_not_found", "model");
    ask_done(&f, x);
    f.config.aliases = "a/b m\n";
    assert_int_equal(api_configure(f.api, &f.config, NULL), 0);
    x = ask(&f, HTTP_GET, "/v1/models/a%2Fb", NULL);
    assert_memory_equal(x->sent.p, "{\"id\":\"a/b\",", 12);
    ask_done(&f, x);
    f.n_models = 2;
    x = complete("{\"prompt\":\"a\"}");
    assert_fault(x, 400, "missing_required_parameter", "model");
    ask_done(&f, x);
}

static void
paths_methods_and_keys_have_their_errors(void **state)
{
    static const char *const later[] = { "/v1/responses", "/v1/streams/k" };
    static const char *const unknown[] = { "/",           "/v1",      "/v1/audio/speech",
                                           "/v1/models/", "//health", "/v1/chat/completions/x" };
    struct http_exchange *x;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(later); i++) {
        x = ask(&f, HTTP_POST, later[i], "{}");
        assert_fault(x, 404, "unsupported", NULL);
        assert_non_null(strstr(x->sent.p, "/v1/chat/completions"));
        ask_done(&f, x);
    }
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
        x = ask(&f, HTTP_GET, unknown[i], NULL);
        assert_fault(x, 404, "unknown_url", NULL);
        ask_done(&f, x);
    }
    x = ask(&f, HTTP_GET, "/v1/completions", NULL);
    assert_fault(x, 405, "method_not_allowed", NULL);
    assert_string_equal(x->fields.p, "Allow: POST, OPTIONS\r\n");
    ask_done(&f, x);
    x = ask(&f, HTTP_OTHER, "/health", NULL);
    assert_fault(x, 405, "method_not_allowed", NULL);
    assert_string_equal(x->fields.p, "Allow: GET, HEAD, OPTIONS\r\n");
    ask_done(&f, x);
    x = ask(&f, HTTP_OPTIONS, "/v1/models", NULL);
    assert_int_equal(x->status, 204);
    assert_string_equal(x->fields.p, "Allow: GET, HEAD, OPTIONS\r\n");
    ask_done(&f, x);
    x = ask(&f, HTTP_OPTIONS, "*", NULL);
    assert_int_equal(x->status, 204);
    assert_string_equal(x->fields.p, "Allow: GET, HEAD, POST, OPTIONS\r\n");
    ask_done(&f, x);
    x = ask(&f, HTTP_OPTIONS, "/nowhere", NULL);
    assert_fault(x, 404, "unknown_url", NULL);
    ask_done(&f, x);
    x = ask(&f, HTTP_HEAD, "/health", NULL);
    assert_int_equal(x->status, 200);
    ask_done(&f, x);
    f.tenant = -EACCES;
    x = complete(BODY);
    assert_fault(x, 401, "invalid_api_key", NULL);
    assert_non_null(strstr(x->fields.p, "WWW-Authenticate: Bearer\r\n"));
    assert_int_equal(x->n_reads, 0); /* the body is not read */
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/v1/models", NULL);
    assert_fault(x, 401, "invalid_api_key", NULL);
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/health", NULL);
    assert_int_equal(x->status, 200);
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/metrics", NULL);
    assert_false(x->started); /* lagand is asked */
    ask_done(&f, x);
    f.config.open_metrics = f.config.open_health = false;
    assert_int_equal(api_configure(f.api, &f.config, NULL), 0);
    x = ask(&f, HTTP_GET, "/metrics", NULL);
    assert_fault(x, 401, "invalid_api_key", NULL);
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/health", NULL);
    assert_fault(x, 401, "invalid_api_key", NULL);
    ask_done(&f, x);
}

static void
errors_of_http_have_the_same_shape(void **state)
{
    static const struct {
        int status;
        const char *code;
    } cases[] = { { 400, "bad_http" },
                  { 405, "method_not_allowed" },
                  { 408, "request_timeout" },
                  { 411, "length_required" },
                  { 413, "body_too_large" },
                  { 414, "uri_too_long" },
                  { 415, "unsupported_media_type" },
                  { 417, "bad_http" },
                  { 431, "headers_too_large" },
                  { 501, "bad_http" },
                  { 503, "too_many_connections" },
                  { 505, "bad_http" } };
    char buf[512], want[512];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t n = f.http.fault(f.http.ctx, cases[i].status, "rule", "a \"sentence\"", buf,
                                sizeof buf);

        snprintf(want, sizeof want,
                 "{\"error\":{\"message\":\"a \\\"sentence\\\"\",\"type\":\"%s\",\"param\":null,"
                 "\"code\":\"%s\"}}",
                 cases[i].status == 503 ? "server_error" : "invalid_request_error", cases[i].code);
        assert_int_equal(n, strlen(want));
        assert_memory_equal(buf, want, n);
        assert_int_equal(f.http.fault(f.http.ctx, cases[i].status, "rule", "x", buf, 20), 0);
    }
}

/* Each row of API_ERRORS is in a test of this file or of test_api_fields.c. */
static void
every_error_is_provoked(void **state)
{
    static const char tested[] =
        " invalid_request invalid_type invalid_value missing_required_parameter unknown_parameter"
        " invalid_json context_length_exceeded unsupported invalid_api_key model_not_found"
        " unknown_url not_found method_not_allowed request_timeout deadline length_required"
        " body_too_large uri_too_long unsupported_media_type poisoned queue_full headers_too_large"
        " internal lagand_refused cancelled worker_lost device_lost out_of_memory draining loading"
        " lagand_unreachable too_many_connections bad_http ";
    char word[64];

    (void)state;
    for (enum api_error i = 0; i < API_N_ERRORS; i++) {
        snprintf(word, sizeof word, " %s ", api_error_rows[i].code);
        if (!strstr(tested, word)) fail_msg("no test provokes%s", word);
        assert_true(api_error_rows[i].retry_after <= 60);
    }
}

static void
aliases_that_lead_nowhere_are_refused(void **state)
{
    static const char *const wrong[] = {
        "a b\nb c\n", "a a\n", "a b\na c\n", "a\n", " b\n", "a \n"
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        f.config.aliases = wrong[i];
        assert_int_equal(api_configure(f.api, &f.config, &e), -EINVAL);
    }
    f.config.aliases = NULL;
    assert_int_equal(api_configure(f.api, &f.config, &e), 0);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        T(every_error_of_lagand_has_a_row),
        T(errors_before_the_first_token_have_their_status),
        T(retry_after_of_a_full_queue_follows_the_rate),
        T(errors_of_a_stream_are_its_last_event),
        T(too_long_begins_with_the_words_that_clients_look_for),
        T(an_operator_who_cancels_ends_the_request),
        T(states_of_the_service_have_their_errors),
        T(unknown_models_are_answered_with_the_served_names),
        T(paths_methods_and_keys_have_their_errors),
        T(errors_of_http_have_the_same_shape),
        T(every_error_is_provoked),
        T(aliases_that_lead_nowhere_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
