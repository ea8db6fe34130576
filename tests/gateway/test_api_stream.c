/* test_api_stream.c - streams over time: slow readers, pings, clients that leave, calls of lagand
 * before a request, and the end of the gateway. */
#include "tests/gateway/api_assert.h"

#define STREAM "{\"model\":\"m\",\"prompt\":\"a\",\"stream\":true}"

/* Returns the joined "text" of all events, which have no escapes, and the number of events. */
static uint32_t
read_events(struct http_exchange *x, char *text, size_t n)
{
    uint32_t count = 0;
    const char *at;

    out_bytes(&x->sent, "", 1);
    x->sent.n--;
    text[0] = '\0';
    for (at = x->sent.p; (at = strstr(at, "\"text\":\"")); count++) {
        at += 8;
        strncat(text, at, MIN(strcspn(at, "\""), n - strlen(text) - 1));
    }
    return count;
}

static void
a_slow_reader_gets_joined_events(void **state)
{
    struct http_exchange *x = complete(STREAM);
    char want[2048] = "", text[2048];

    (void)state;
    x->space = 300; /* one event has about 240 bytes */
    for (int i = 0; i < 100; i++) {
        char word[8];

        snprintf(word, sizeof word, "%d,", i);
        strcat(want, word);
        send_tokens(&f, 0, 0, word, (token_id[]){ 5 }, 1);
        assert_int_equal(f.sent[0].held, i > 0);
    }
    assert_int_equal(read_events(x, text, sizeof text), 1);
    send_output(&f, 0, 0, LAGAN_FINISH_LENGTH, 100, 1);
    send_done(&f, 0);
    for (int i = 0; !x->ended; i++) {
        assert_true(i < 50);
        x->space = 1000;
        f.http.writable(f.http.ctx, x);
    }
    assert_int_equal(read_events(x, text, sizeof text), 4); /* 0; 1; 2 to 99; the finish */
    assert_string_equal(text, want);
    assert_memory_equal(x->sent.p + x->sent.n - 14, "data: [DONE]\n\n", 14);
    ask_done(&f, x);
}

static void
a_reader_that_catches_up_is_no_longer_held(void **state)
{
    struct http_exchange *x = complete(STREAM);

    (void)state;
    x->space = 0;
    send_tokens(&f, 0, 0, "a", (token_id[]){ 5 }, 1);
    assert_true(f.sent[0].held);
    f.http.writable(f.http.ctx, x);
    assert_true(f.sent[0].held);
    x->space = 100000;
    f.http.writable(f.http.ctx, x);
    assert_false(f.sent[0].held);
    send_error(&f, 0, LAGAN_E_INTERNAL, "x");
    assert_true(x->ended);
    ask_done(&f, x);
}

static void
a_long_event_leaves_in_pieces(void **state)
{
    CLEAN(out_free) struct out text = { 0 };
    struct http_exchange *x = complete(STREAM);

    (void)state;
    for (int i = 0; i < 100000; i++) out_put(&text, "\x01");
    out_bytes(&text, "", 1);
    x->space = HTTP_OUTPUT;
    send_tokens(&f, 0, 0, text.p, (token_id[]){ 5 }, 1);
    send_output(&f, 0, 0, LAGAN_FINISH_LENGTH, 1, 1);
    send_done(&f, 0);
    for (int i = 0; !x->ended; i++) {
        assert_true(i < 20);
        x->space = HTTP_OUTPUT;
        f.http.writable(f.http.ctx, x);
    }
    assert_true(x->sent.n > 600000);
    ask_done(&f, x);
}

static void
an_error_follows_what_a_slow_reader_has_not_read(void **state)
{
    struct http_exchange *x = complete(STREAM);
    char text[64];

    (void)state;
    x->space = 0;
    send_tokens(&f, 0, 0, "a", (token_id[]){ 5 }, 1);
    send_tokens(&f, 0, 0, "b", (token_id[]){ 5 }, 1);
    send_error(&f, 0, LAGAN_E_WORKER_LOST, "x");
    assert_false(x->ended);
    x->space = 100000;
    f.http.writable(f.http.ctx, x);
    assert_true(x->ended);
    assert_int_equal(read_events(x, text, sizeof text), 2);
    assert_string_equal(text, "ab");
    assert_non_null(strstr(x->sent.p, "data: {\"error\":"));
    ask_done(&f, x);
}

static void
status_waits_for_the_first_token_and_pings_follow(void **state)
{
    struct http_exchange *x = complete(STREAM);

    (void)state;
    move_clock(&f, 10 * NSEC_S - 1);
    assert_false(x->started);
    move_clock(&f, 1);
    assert_true(x->started);
    assert_body(x, ": ping\n");
    move_clock(&f, 15 * NSEC_S - 1);
    assert_int_equal(x->sent.n, 7);
    move_clock(&f, 1);
    assert_int_equal(x->sent.n, 14);
    send_error(&f, 0, LAGAN_E_DEADLINE, "late");
    assert_int_equal(x->status, 200);
    assert_non_null(strstr(x->sent.p, ": ping\n: ping\ndata: {\"error\":"));
    ask_done(&f, x);
    /* without `stream` the status waits to the end */
    x = complete("{\"prompt\":\"a\"}");
    move_clock(&f, 1000 * NSEC_S);
    assert_false(x->started);
    ask_done(&f, x);
}

static void
a_written_event_puts_the_ping_off(void **state)
{
    struct http_exchange *x = complete(STREAM);
    size_t n;

    (void)state;
    send_tokens(&f, 0, 0, "a", (token_id[]){ 5 }, 1);
    for (int i = 0; i < 10; i++) {
        move_clock(&f, 10 * NSEC_S);
        send_tokens(&f, 0, 0, "a", (token_id[]){ 5 }, 1);
    }
    assert_null(memmem(x->sent.p, x->sent.n, ": ping", 6));
    n = x->sent.n;
    move_clock(&f, 15 * NSEC_S);
    assert_int_equal(x->sent.n, n + 7);
    ask_done(&f, x);
}

static void
a_client_that_leaves_cancels_in_every_state(void **state)
{
    struct http_exchange *x;

    (void)state;
    /* queued; streaming; blocked; one of two prompts ended */
    x = complete(STREAM);
    ask_done(&f, x);
    assert_true(f.sent[0].cancelled);
    assert_string_equal(f.last_reason, "disconnected");
    x = complete(STREAM);
    send_tokens(&f, 1, 0, "a", (token_id[]){ 5 }, 1);
    ask_done(&f, x);
    assert_true(f.sent[1].cancelled);
    x = complete(STREAM);
    x->space = 0;
    send_tokens(&f, 2, 0, "a", (token_id[]){ 5 }, 1);
    ask_done(&f, x);
    assert_true(f.sent[2].cancelled);
    x = complete("{\"prompt\":[\"a\",\"b\"]}");
    send_output(&f, 3, 0, LAGAN_FINISH_EOS, 1, 1);
    send_done(&f, 3);
    ask_done(&f, x);
    assert_false(f.sent[3].cancelled);
    assert_true(f.sent[4].cancelled);
    /* while a call is under way, or texts of tokens are read: no request is submitted later */
    x = ask(&f, HTTP_POST, "/tokenize", "{\"prompt\":\"a\"}");
    ask_done(&f, x);
    send_reply(&f, 5, "{\"ids\":[1]}");
    x = complete("{\"prompt\":\"a\",\"logprobs\":1}");
    ask_done(&f, x);
    send_error(&f, 6, LAGAN_E_INTERNAL, "x");
    x = complete("{\"prompt\":\"a\",\"return_token_ids\":true}");
    ask_done(&f, x);
    send_reply(&f, 7, "{\"ids\":[1]}");
    assert_int_equal(f.n_sent, 8);
    /* events of what was cancelled change nothing */
    for (uint32_t i = 0; i < 3; i++) send_error(&f, i, LAGAN_E_CANCELLED, "x");
    x = ask(&f, HTTP_GET, "/metrics", NULL);
    ask_done(&f, x);
    send_reply(&f, 8, "{\"text\":\"\"}");
}

static void
stream_interval_joins_tokens_but_not_the_first_and_last(void **state)
{
    struct http_exchange *x = complete("{\"prompt\":\"a\",\"stream\":true,\"stream_interval\":4}");
    char text[64];

    (void)state;
    for (int i = 0; i < 7; i++) send_tokens(&f, 0, 0, "x", (token_id[]){ 5 }, 1);
    assert_int_equal(read_events(x, text, sizeof text), 2); /* 1 + 4 */
    assert_int_equal(strlen(text), 5);
    send_output(&f, 0, 0, LAGAN_FINISH_LENGTH, 7, 1);
    send_done(&f, 0);
    assert_int_equal(read_events(x, text, sizeof text), 4); /* the rest, and the finish */
    assert_int_equal(strlen(text), 7);
    ask_done(&f, x);
}

static void
stop_reason_names_the_string_or_the_token(void **state)
{
    for (int token = 0; token < 2; token++) {
        struct http_exchange *x = complete("{\"prompt\":\"a\"}");

        (void)state;
        send_event(&f, f.n_sent - 1,
                   (struct lagan_event){ .kind = LAGAN_EVENT_OUTPUT,
                                         .reason = LAGAN_FINISH_STOP,
                                         .stop = token ? NULL : "\n",
                                         .stop_len = !token,
                                         .stop_id = token ? 9 : -1 });
        send_done(&f, f.n_sent - 1);
        out_bytes(&x->sent, "", 1);
        assert_non_null(
            strstr(x->sent.p, token ? "\"finish_reason\":\"stop\",\"stop_reason\":9}"
                                    : "\"finish_reason\":\"stop\",\"stop_reason\":\"\\n\"}"));
        ask_done(&f, x);
    }
}

static void
token_ids_of_prompt_and_output_are_returned(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/chat/completions",
                                  "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                                  "\"return_token_ids\":true,\"stream\":true}");
    char text[64];

    (void)state;
    assert_string_equal(f.sent[0].verb, "tokenize");
    assert_string_equal(f.sent[0].text,
                        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    send_reply(&f, 0, "{\"ids\":[1,2]}");
    send_tokens(&f, 1, 0, "a", (token_id[]){ 5 }, 1);
    send_tokens(&f, 1, 0, "", (token_id[]){ 6 }, 1);
    send_output(&f, 1, 0, LAGAN_FINISH_EOS, 2, 2);
    send_done(&f, 1);
    out_bytes(&x->sent, "", 1);
    assert_non_null(strstr(x->sent.p, "\"finish_reason\":null}],\"prompt_token_ids\":[1,2]}\n\n"));
    assert_non_null(strstr(x->sent.p, "\"finish_reason\":null,\"token_ids\":[5]}]}\n\n"));
    assert_non_null(strstr(x->sent.p, "\"finish_reason\":null,\"token_ids\":[6]}]}\n\n"));
    ask_done(&f, x);
    x = complete("{\"prompt\":[7,8],\"return_token_ids\":true}"); /* needs no call */
    send_tokens(&f, 2, 0, "a", (token_id[]){ 5 }, 1);
    send_output(&f, 2, 0, LAGAN_FINISH_EOS, 1, 2);
    send_done(&f, 2);
    out_bytes(&x->sent, "", 1);
    assert_non_null(strstr(x->sent.p, "\"token_ids\":[5],\"prompt_token_ids\":[7,8]}]"));
    ask_done(&f, x);
    x = complete("{\"prompt\":\"p\",\"return_token_ids\":true,\"stream\":true}");
    assert_string_equal(f.sent[3].text, "{\"model\":\"m\",\"text\":\"p\"}");
    send_reply(&f, 3, "{\"ids\":[3]}");
    send_tokens(&f, 4, 0, "a", (token_id[]){ 5 }, 1);
    assert_int_equal(read_events(x, text, sizeof text), 2);
    assert_string_equal(text, "a"); /* the prompt is not echoed */
    assert_non_null(strstr(x->sent.p, "\"finish_reason\":null,\"prompt_token_ids\":[3]}]}\n\n"));
    ask_done(&f, x);
}

static void
usage_is_in_each_event_where_asked(void **state)
{
    struct http_exchange *x = complete("{\"prompt\":\"p\",\"stream\":true,\"stream_options\":{"
                                       "\"include_usage\":true,\"continuous_usage_stats\":true}}");

    (void)state;
    assert_string_equal(f.sent[0].verb, "tokenize"); /* the number of tokens is needed early */
    send_reply(&f, 0, "{\"ids\":[3,4,5]}");
    send_tokens(&f, 1, 0, "a", (token_id[]){ 5 }, 1);
    send_tokens(&f, 1, 0, "b", (token_id[]){ 5, 6 }, 2);
    out_bytes(&x->sent, "", 1);
    assert_non_null(strstr(x->sent.p, "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,"
                                      "\"total_tokens\":4,"));
    assert_non_null(strstr(x->sent.p, "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":3,"
                                      "\"total_tokens\":6,"));
    assert_null(strstr(x->sent.p, "null}\n"));
    assert_null(strstr(x->sent.p, "prompt_token_ids"));
    ask_done(&f, x);
}

static void
echo_of_token_ids_asks_for_their_text(void **state)
{
    struct http_exchange *x = complete("{\"prompt\":[7,8],\"echo\":true,\"stream\":true}");
    char text[64];

    (void)state;
    assert_string_equal(f.sent[0].verb, "detokenize");
    send_reply(&f, 0, "{\"text\":\"p\"}");
    send_tokens(&f, 1, 0, "q", (token_id[]){ 5 }, 1);
    assert_int_equal(read_events(x, text, sizeof text), 2);
    assert_string_equal(text, "pq");
    ask_done(&f, x);
    x = complete("{\"prompt\":[7,8],\"echo\":true}");
    send_reply(&f, 2, "[]");
    assert_fault(x, 500, "internal", NULL);
    ask_done(&f, x);
    x = complete("{\"prompt\":[7,8],\"echo\":true}");
    send_error(&f, 3, LAGAN_E_UNSUPPORTED, "no tokenizer");
    assert_fault(x, 400, "unsupported", NULL);
    ask_done(&f, x);
}

static void
a_vocabulary_is_read_in_blocks_and_by_one_call_at_a_time(void **state)
{
    static const char body[] = "{\"prompt\":\"a\",\"logprobs\":0}";
    struct http_exchange *x[3];
    CLEAN(out_free) struct out o = { 0 };

    (void)state;
    f.models[0].vocabulary = 5000;
    x[0] = complete(body);
    x[1] = complete(body);
    assert_int_equal(f.n_sent, 1);
    out_put(&o, "[[]");
    for (int i = 1; i < 4096; i++) out_put(&o, ",[97]");
    out_bytes(&o, "]", 2);
    send_reply(&f, 0, o.p);
    assert_int_equal(f.n_sent, 2);
    assert_memory_equal(f.sent[1].text, "{\"model\":\"m\",\"ids\":[4096,4097,", 30);
    o.n = 0;
    out_put(&o, "[[195,169]");
    for (int i = 4097; i < 5000; i++) out_put(&o, ",[98]");
    out_bytes(&o, "]", 2);
    send_reply(&f, 1, o.p);
    assert_int_equal(f.n_sent, 4); /* both requests are submitted */
    x[2] = complete(body);
    assert_int_equal(f.n_sent, 5);
    for (int i = 0; i < 3; i++) ask_done(&f, x[i]);
    /* a model that was replaced has other texts; a failure is not kept */
    f.models[0].fingerprint++;
    x[0] = complete(body);
    assert_string_equal(f.sent[5].verb, "pieces");
    send_reply(&f, 5, "[[300]]");
    assert_fault(x[0], 503, "lagand_unreachable", NULL);
    ask_done(&f, x[0]);
    x[0] = complete(body);
    assert_string_equal(f.sent[6].verb, "pieces");
    send_error(&f, 6, LAGAN_E_WORKER_LOST, "x");
    assert_fault(x[0], 503, "lagand_unreachable", NULL);
    ask_done(&f, x[0]);
}

static void
a_drain_ends_streams_and_refuses_new_requests(void **state)
{
    struct http_exchange *x[3];

    (void)state;
    x[0] = complete(STREAM);
    x[1] = complete(STREAM);
    send_tokens(&f, 1, 0, "a", (token_id[]){ 5 }, 1);
    x[2] = ask(&f, HTTP_POST, "/tokenize", "{\"prompt\":\"a\"}");
    api_drain(f.api);
    assert_fault(x[0], 503, "draining", NULL);
    out_bytes(&x[1]->sent, "", 1);
    assert_true(x[1]->ended);
    assert_non_null(strstr(x[1]->sent.p, "\"code\":\"draining\"}}\n\n"));
    assert_fault(x[2], 503, "draining", NULL);
    assert_true(f.sent[0].cancelled && f.sent[1].cancelled);
    for (int i = 0; i < 3; i++) ask_done(&f, x[i]);
    x[0] = complete(STREAM);
    assert_fault(x[0], 503, "draining", NULL);
    ask_done(&f, x[0]);
    x[0] = ask(&f, HTTP_GET, "/health", NULL);
    assert_fault(x[0], 503, "draining", NULL);
    ask_done(&f, x[0]);
}

static void
metrics_count_and_ask_lagand_rarely(void **state)
{
    struct http_exchange *x = complete(STREAM), *y;

    (void)state;
    move_clock(&f, 50 * NSEC_MS);
    send_tokens(&f, 0, 0, "a", (token_id[]){ 5 }, 1);
    send_output(&f, 0, 0, LAGAN_FINISH_LENGTH, 1, 4);
    send_done(&f, 0);
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/metrics", NULL);
    y = ask(&f, HTTP_GET, "/metrics", NULL);
    assert_int_equal(f.n_sent, 2); /* one call for both */
    assert_string_equal(f.sent[1].verb, "metrics");
    send_reply(&f, 1,
               "{\"text\":\"lagan_x 5\\nlagan_requests_queued 4\\n"
               "lagan_worker_running{worker=\\\"w0\\\",model=\\\"m\\\"} 2\\n"
               "lagan_worker_waiting{worker=\\\"w0\\\",model=\\\"m\\\"} 3\\n"
               "lagan_kv_blocks{worker=\\\"w0\\\",group=\\\"0\\\"} 8\\n"
               "lagan_kv_blocks{worker=\\\"w0\\\",group=\\\"1\\\"} 4\\n"
               "lagan_kv_used{worker=\\\"w0\\\",group=\\\"0\\\"} 1\\n"
               "lagan_kv_used{worker=\\\"w0\\\",group=\\\"1\\\"} 3\\n\"}");
    out_bytes(&x->sent, "", 1);
    assert_non_null(strstr(x->sent.p,
                           "lagan_gateway_requests_total{route=\"completions\",code=\"200\","
                           "reason=\"length\",stream=\"true\"} 1\n"));
    assert_non_null(strstr(x->sent.p,
                           "lagan_gateway_time_to_first_token_seconds_bucket{model=\"m\","
                           "le=\"0.04\"} 0\n"));
    assert_non_null(strstr(x->sent.p,
                           "lagan_gateway_time_to_first_token_seconds_bucket{model=\"m\","
                           "le=\"0.06\"} 1\n"));
    assert_non_null(strstr(x->sent.p, "lagan_gateway_prompt_tokens_total{model=\"m\"} 4\n"));
    assert_non_null(strstr(x->sent.p, "lagan_gateway_lagand_up 1\n"));
    assert_non_null(strstr(x->sent.p, "\nlagan_x 5\n"));
    assert_non_null(
        strstr(x->sent.p, "vllm:num_requests_running{model_name=\"m\",engine=\"0\"} 2\n"));
    assert_non_null(
        strstr(x->sent.p, "vllm:num_requests_waiting{model_name=\"m\",engine=\"0\"} 7\n"));
    assert_non_null(
        strstr(x->sent.p, "vllm:kv_cache_usage_perc{model_name=\"m\",engine=\"0\"} 0.75\n"));
    assert_true(y->ended);
    ask_done(&f, x);
    ask_done(&f, y);
    x = ask(&f, HTTP_GET, "/metrics", NULL);
    assert_true(x->ended); /* the text is new enough */
    ask_done(&f, x);
    move_clock(&f, 100 * NSEC_MS);
    f.connected = false;
    x = ask(&f, HTTP_GET, "/metrics", NULL);
    assert_int_equal(x->status, 200);
    out_bytes(&x->sent, "", 1);
    assert_non_null(strstr(x->sent.p, "lagan_gateway_lagand_up 0\n"));
    assert_null(strstr(x->sent.p, "lagan_x"));
    ask_done(&f, x);
}

static void
health_generate_runs_one_token_and_one_at_a_time(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/health/generate", NULL), *y;

    (void)state;
    assert_key(&f.sent[0], "max_tokens", "1");
    assert_key(&f.sent[0], "deadline_ms", "10000");
    y = ask(&f, HTTP_POST, "/health/generate", NULL);
    assert_fault(y, 429, "queue_full", NULL);
    ask_done(&f, y);
    send_tokens(&f, 0, 0, "a", (token_id[]){ 5 }, 1);
    send_output(&f, 0, 0, LAGAN_FINISH_LENGTH, 1, 1);
    send_done(&f, 0);
    assert_body(x, "{\"status\":\"ok\"}");
    y = ask(&f, HTTP_POST, "/health/generate", NULL);
    assert_string_not_equal(f.sent[1].text, f.sent[0].text); /* another salt */
    send_error(&f, 1, LAGAN_E_DEADLINE, "x");
    assert_fault(y, 408, "deadline", NULL);
    ask_done(&f, x);
    ask_done(&f, y);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        T(a_slow_reader_gets_joined_events),
        T(a_reader_that_catches_up_is_no_longer_held),
        T(a_long_event_leaves_in_pieces),
        T(an_error_follows_what_a_slow_reader_has_not_read),
        T(status_waits_for_the_first_token_and_pings_follow),
        T(a_written_event_puts_the_ping_off),
        T(a_client_that_leaves_cancels_in_every_state),
        T(stream_interval_joins_tokens_but_not_the_first_and_last),
        T(stop_reason_names_the_string_or_the_token),
        T(token_ids_of_prompt_and_output_are_returned),
        T(usage_is_in_each_event_where_asked),
        T(echo_of_token_ids_asks_for_their_text),
        T(a_vocabulary_is_read_in_blocks_and_by_one_call_at_a_time),
        T(a_drain_ends_streams_and_refuses_new_requests),
        T(health_generate_runs_one_token_and_one_at_a_time),
        T(metrics_count_and_ask_lagand_rarely),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
