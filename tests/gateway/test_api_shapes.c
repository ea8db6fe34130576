/* test_api_shapes.c - the responses of the API, byte for byte. */
#include "tests/gateway/api_assert.h"

#include <math.h>

#define HEAD(object) \
    "{\"id\":\"$ID\",\"object\":\"" object "\",\"created\":1764000000,\"model\":\"m\""
#define USAGE(prompt, tokens, total) \
    "{\"prompt_tokens\":" #prompt ",\"completion_tokens\":" #tokens ",\"total_tokens\":" #total \
    ",\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":" \
    "{\"reasoning_tokens\":0}}"
#define PRINT ",\"system_fingerprint\":\"lagan-0.2.0-5c1e9a77\""
#define CHUNK "data: " HEAD("chat.completion.chunk") PRINT ",\"choices\":[{\"index\":0,"
#define TEXT "data: " HEAD("text_completion") PRINT ",\"choices\":[{\"index\":0,"
#define CHAT "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static void
chat_has_the_shape_of_openai(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/chat/completions", CHAT "}");

    (void)state;
    assert_key(&f.sent[0], "messages", "[{\"role\":\"user\",\"content\":\"hi\"}]");
    move_clock(&f, 41 * NSEC_MS);
    send_tokens(&f, 0, 0, "Hello", (token_id[]){ 5 }, 1);
    send_tokens(&f, 0, 0, ".", (token_id[]){ 6, 1 }, 2);
    assert_false(x->started);
    send_output(&f, 0, 0, LAGAN_FINISH_EOS, 3, 12);
    send_done(&f, 0);
    assert_int_equal(x->status, 200);
    assert_string_equal(x->content_type, "application/json");
    assert_string_equal(x->fields.p, "Openai-Processing-Ms: 41\r\n");
    assert_body(x,
                HEAD("chat.completion") ",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                                        "\"assistant\",\"content\":\"Hello.\",\"refusal\":null},"
                                        "\"logprobs\":null,"
                                        "\"finish_reason\":\"stop\"}],\"usage\":" USAGE(12, 3, 15)
                                            PRINT "}");
    assert_memory_equal(x->sent.p + 7, "chatcmpl-", 9);
    ask_done(&f, x);
    assert_int_equal(f.last.tokens, 3);
    assert_string_equal(f.last_reason, "stop");
}

static void
streamed_chat_has_the_shape_of_openai(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/chat/completions",
                                  CHAT
                                  ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");

    (void)state;
    send_tokens(&f, 0, 0, "", (token_id[]){ 5 }, 1); /* half a character */
    assert_false(x->started);
    send_tokens(&f, 0, 0, "Hello", (token_id[]){ 5 }, 1);
    send_tokens(&f, 0, 0, ".", (token_id[]){ 6 }, 1);
    send_output(&f, 0, 0, LAGAN_FINISH_EOS, 3, 12);
    send_done(&f, 0);
    assert_true(x->ended);
    assert_string_equal(x->content_type, "text/event-stream; charset=utf-8");
    assert_string_equal(x->fields.p, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    assert_body(x, CHUNK
                "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                "\"finish_reason\":null}],\"usage\":null}\n\n" CHUNK
                "\"delta\":{\"content\":\"Hello\"},\"logprobs\":null,\"finish_reason\":null}],"
                "\"usage\":null}\n\n" CHUNK
                "\"delta\":{\"content\":\".\"},\"logprobs\":null,\"finish_reason\":null}],"
                "\"usage\":null}\n\n" CHUNK
                "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
                "data: " HEAD("chat.completion.chunk") PRINT
                ",\"choices\":[],\"usage\":" USAGE(12, 3, 15) "}\n\ndata: [DONE]\n\n");
    ask_done(&f, x);
}

static void
completions_have_the_shape_of_openai(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/completions",
                                  "{\"model\":\"m\",\"prompt\":\"a\"}");

    (void)state;
    assert_key(&f.sent[0], "text", "a");
    assert_key(&f.sent[0], "max_tokens", "16");
    send_tokens(&f, 0, 0, "one thousand", (token_id[]){ 5 }, 1);
    send_output(&f, 0, 0, LAGAN_FINISH_LENGTH, 16, 5);
    send_done(&f, 0);
    assert_body(
        x,
        HEAD("text_completion") ",\"choices\":[{\"index\":0,\"text\":\"one thousand\","
                                "\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":" USAGE(
                                    5, 16, 21) PRINT "}");
    assert_memory_equal(x->sent.p + 7, "cmpl-", 5);
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/v1/completions", "{\"prompt\":[7,8],\"stream\":true}");
    assert_key(&f.sent[1], "ids", "7,8");
    send_tokens(&f, 1, 0, " hundred", (token_id[]){ 5 }, 1);
    send_output(&f, 1, 0, LAGAN_FINISH_LENGTH, 1, 2);
    send_done(&f, 1);
    assert_body(x, TEXT "\"text\":\" hundred\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT
                        "\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
                        "data: [DONE]\n\n");
    ask_done(&f, x);
}

/* Replies to the call of `pieces` number i for a vocabulary of 100 tokens: token k is "<k>", but 5
 * is "Hello", 6 "Hi", 7 half a character and 8 "one", 9 " thousand". */
static void
send_pieces(uint32_t i)
{
    CLEAN(out_free) struct out o = { 0 };

    assert_string_equal(f.sent[i].verb, "pieces");
    assert_memory_equal(f.sent[i].text, "{\"model\":\"m\",\"ids\":[0,1,2,", 26);
    out_put(&o, "[");
    for (int k = 0; k < 100; k++) {
        char text[16];

        snprintf(text, sizeof text,
                 k == 5   ? "Hello"
                 : k == 6 ? "Hi"
                 : k == 7 ? "\xc3"
                 : k == 8 ? "one"
                 : k == 9 ? " thousand"
                          : "<%d>",
                 k);
        out_put(&o, k ? ",[" : "[");
        for (char *p = text; *p; p++) out_format(&o, p > text ? ",%u" : "%u", (unsigned char)*p);
        out_put(&o, "]");
    }
    out_bytes(&o, "]", 2);
    send_reply(&f, i, o.p);
}

static void
chat_logprobs_have_bytes_and_leave_out_the_end_token(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/chat/completions",
                                  CHAT ",\"logprobs\":true,\"top_logprobs\":2}");
    struct lagan_top_logprob top[4] = { { 5, -0.0123f }, { 6, -4.5f }, { 1, -0.5f }, { 5, -1.5f } };

    (void)state;
    send_pieces(0);
    assert_key(&f.sent[1], "logprobs", "2");
    send_event(&f, 1,
               (struct lagan_event){ .kind = LAGAN_EVENT_TOKENS,
                                     .text = "Hello",
                                     .text_len = 5,
                                     .ids = (token_id[]){ 5, 1 },
                                     .n_ids = 2,
                                     .logprob = (float[]){ -0.0123f, -0.5f },
                                     .n_top = 2,
                                     .top = top });
    send_output(&f, 1, 0, LAGAN_FINISH_EOS, 2, 12);
    send_done(&f, 1);
    assert_body(
        x,
        HEAD("chat.completion") ",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                                "\"assistant\",\"content\":\"Hello\",\"refusal\":null},"
                                "\"logprobs\":{\"content\":[{"
                                "\"token\":\"Hello\",\"logprob\":-0.0123,\"bytes\":[72,101,108,108,"
                                "111],"
                                "\"top_logprobs\":[{\"token\":\"Hello\",\"logprob\":-0.0123,"
                                "\"bytes\":[72,101,108,"
                                "108,111]},{\"token\":\"Hi\",\"logprob\":-4.5,\"bytes\":[72,105]}]}"
                                "],"
                                "\"refusal\":null},\"finish_reason\":\"stop\"}],\"usage\":" USAGE(
                                    12, 2, 14) PRINT "}");
    ask_done(&f, x);
    /* the vocabulary is known now: no second call; half a character has exact bytes */
    x = ask(&f, HTTP_POST, "/v1/chat/completions", CHAT ",\"logprobs\":true,\"stream\":true}");
    assert_null(f.sent[2].verb);
    send_event(&f, 2,
               (struct lagan_event){ .kind = LAGAN_EVENT_TOKENS,
                                     .text = "",
                                     .ids = (token_id[]){ 7 },
                                     .n_ids = 1,
                                     .logprob = (float[]){ -INFINITY } });
    send_output(&f, 2, 0, LAGAN_FINISH_LENGTH, 1, 12);
    send_done(&f, 2);
    assert_non_null(strstr(x->sent.p, "\"logprobs\":{\"content\":[{\"token\":\"\xef\xbf\xbd\","
                                      "\"logprob\":-9999.0,\"bytes\":[195],\"top_logprobs\":[]}],"
                                      "\"refusal\":null}"));
    ask_done(&f, x);
}

static void
completions_logprobs_have_offsets_in_characters(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/completions",
                                  "{\"prompt\":[3,4],\"logprobs\":0}");

    (void)state;
    send_pieces(0);
    assert_key(&f.sent[1], "logprobs", "0");
    send_event(&f, 1,
               (struct lagan_event){ .kind = LAGAN_EVENT_TOKENS,
                                     .text = "one thousand",
                                     .text_len = 12,
                                     .ids = (token_id[]){ 8, 9 },
                                     .n_ids = 2,
                                     .logprob = (float[]){ -0.02f, -0.001f } });
    send_output(&f, 1, 0, LAGAN_FINISH_LENGTH, 2, 2);
    send_done(&f, 1);
    assert_non_null(strstr(
        x->sent.p, "\"logprobs\":{\"tokens\":[\"one\",\" thousand\"],\"token_logprobs\":"
                   "[-0.02,-0.001],\"top_logprobs\":[{\"one\":-0.02},{\" thousand\":-0.001}],"
                   "\"text_offset\":[0,3]}"));
    ask_done(&f, x);
}

static void
models_tokens_and_health_have_their_shapes(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_GET, "/v1/models", NULL);

    (void)state;
#define ENTRY(id) \
    "{\"id\":\"" id "\",\"object\":\"model\",\"created\":1764000000,\"owned_by\":\"lagan\"," \
    "\"root\":\"m\",\"parent\":null,\"max_model_len\":1000"
    assert_body(x, "{\"object\":\"list\",\"data\":[" ENTRY("m") "}," ENTRY("alias") "}," ENTRY(
                       "other") "}]}");
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/v1/models/alias", NULL);
    assert_body(x, ENTRY("alias") ",\"defaults\":{\"temperature\":1,\"top_p\":1,\"top_k\":0,"
                                  "\"min_p\":0,\"repetition_penalty\":1}}");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/tokenize", "{\"prompt\":\"a\\u0001\\\"\"}");
    assert_string_equal(f.sent[0].text, "{\"model\":\"m\",\"text\":\"a\\u0001\\\"\"}");
    send_reply(&f, 0, "{\"ids\":[128000,9906,13]}");
    assert_body(x, "{\"count\":3,\"max_model_len\":1000,\"tokens\":[128000,9906,13]}");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/v1/detokenize", "{\"tokens\":[9,90]}");
    assert_string_equal(f.sent[1].text, "{\"model\":\"m\",\"ids\":[9,90]}");
    send_reply(&f, 1, "{\"text\":\"Hello.\"}");
    assert_body(x, "{\"prompt\":\"Hello.\"}");
    ask_done(&f, x);
    x = ask(&f, HTTP_POST, "/apply-template", CHAT "}");
    assert_string_equal(f.sent[2].verb, "render");
    send_reply(&f, 2, "{\"text\":\"<hi>\"}");
    assert_body(x, "{\"prompt\":\"<hi>\"}");
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/health", NULL);
    assert_body(x, "{\"status\":\"ok\"}");
    ask_done(&f, x);
    x = ask(&f, HTTP_GET, "/version", NULL);
    assert_body(x, "{\"version\":\"0.2.0\"}");
    ask_done(&f, x);
}

static void
embeddings_are_the_normalised_mean(void **state)
{
    struct http_exchange *x;
    float rows[4] = { 3, 0, 3, 8 }; /* mean 3, 4 */

    (void)state;
    f.n_models = 2;
    for (int base64 = 0; base64 < 2; base64++) {
        uint32_t i = f.n_sent;

        x = ask(&f, HTTP_POST, "/v1/embeddings",
                base64 ? "{\"model\":\"e\",\"input\":\"a\",\"encoding_format\":\"base64\"}"
                       : "{\"model\":\"e\",\"input\":\"a\"}");
        assert_key(&f.sent[i], "return_encoder_output", "true");
        for (uint32_t k = 0; k < 4; k += 2)
            send_event(&f, i,
                       (struct lagan_event){ .kind = LAGAN_EVENT_TENSOR,
                                             .values = rows + k,
                                             .n_values = 2,
                                             .first_value = k,
                                             .cols = 2 });
        send_output(&f, i, 0, LAGAN_FINISH_LENGTH, 1, 4);
        send_done(&f, i);
        assert_body(x, base64
                           ? "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,"
                             "\"embedding\":\"mpkZP83MTD8=\"}],\"model\":\"e\",\"usage\":{"
                             "\"prompt_tokens\":4,\"total_tokens\":4}}"
                           : "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,"
                             "\"embedding\":[0.6,0.8]}],\"model\":\"e\",\"usage\":{"
                             "\"prompt_tokens\":4,\"total_tokens\":4}}");
        ask_done(&f, x);
    }
}

static void
choices_are_numbered_prompt_by_prompt(void **state)
{
    struct http_exchange *x = ask(&f, HTTP_POST, "/v1/completions",
                                  "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"echo\":true}");

    (void)state;
    assert_int_equal(f.n_sent, 2);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++) {
            char text[2] = { (char)('0' + i * 2 + k), 0 };

            send_tokens(&f, 1 - i, k, text, (token_id[]){ 5 }, 1);
            send_output(&f, 1 - i, k, LAGAN_FINISH_LENGTH, 1, 7);
        }
    send_done(&f, 0);
    assert_false(x->started);
    send_done(&f, 1);
    assert_body(x, HEAD("text_completion") ",\"choices\":["
#define CHOICE(i, text) \
    "{\"index\":" i ",\"text\":\"" text "\",\"logprobs\":null,\"finish_reason\":\"length\"}"
                CHOICE("0", "a2") "," CHOICE("1", "a3") "," CHOICE("2", "b0") "," CHOICE(
                    "3", "b1") "],\"usage\":" USAGE(14, 4, 18) PRINT "}");
    ask_done(&f, x);
}

static void
escapes_keep_lines_whole(void **state)
{
    CLEAN(out_free) struct out o = { 0 };

    (void)state;
    out_string(
        &o, "\"\\\n\r\t\b\f\x01\x1f\x7f\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\xc3(\xf0\x9f",
        25);
    out_bytes(&o, "", 1);
    assert_string_equal(
        o.p, "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\\u0085\\u2028\\u2029\xe2\x80\xaa"
             "\xef\xbf\xbd(\xef\xbf\xbd\"");
}

static void
numbers_are_the_shortest_that_read_back(void **state)
{
    (void)state;
    test_seed();
    for (int i = 0; i < 20000; i++) {
        CLEAN(out_free) struct out o = { 0 };
        uint32_t bits = test_below(UINT32_MAX);
        float v, back;
        char shorter[32];

        memcpy(&v, &bits, sizeof v);
        out_f32(&o, v);
        out_bytes(&o, "", 1);
        if (!isfinite(v)) continue;
        back = strtof(o.p, NULL);
        assert_memory_equal(&back, &v, sizeof v);
        for (int digits = 1; digits < 6; digits++) { /* none with fewer digits is equal */
            snprintf(shorter, sizeof shorter, "%.*g", digits, (double)v);
            if (strtof(shorter, NULL) == v) assert_true(strlen(o.p) <= strlen(shorter));
        }
    }
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        T(chat_has_the_shape_of_openai),
        T(streamed_chat_has_the_shape_of_openai),
        T(completions_have_the_shape_of_openai),
        T(chat_logprobs_have_bytes_and_leave_out_the_end_token),
        T(completions_logprobs_have_offsets_in_characters),
        T(models_tokens_and_health_have_their_shapes),
        T(embeddings_are_the_normalised_mean),
        T(choices_are_numbered_prompt_by_prompt),
        T(escapes_keep_lines_whole),
        T(numbers_are_the_shortest_that_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
