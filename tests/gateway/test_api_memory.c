/* test_api_memory.c - whichever allocation of the API fails, each request gets one response or its
 * connection is closed. The files of gateway/api are compiled here with failing_malloc.h. */
#include "tests/gateway/api_assert.h"
#include "tests/gateway/failing_malloc.h"

#define MESSAGES \
    "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u00e9\"}]}]"

static const struct {
    enum http_method method;
    const char *path, *body;
} cases[] = {
    { HTTP_POST, "/v1/chat/completions",
      "{" MESSAGES ",\"logprobs\":true,\"top_logprobs\":1,\"stop\":[\"a\"],\"stream\":true,"
      "\"return_token_ids\":true,\"user\":\"u\",\"x\":1}" },
    { HTTP_POST, "/v1/completions",
      "{\"prompt\":[\"a\",\"b\\n\"],\"n\":2,\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":1,"
      "\"cache_salt\":\"\\u00e9\"}" },
    { HTTP_POST, "/v1/completions", "{\"prompt\":[1,2],\"echo\":true,\"stream\":true}" },
    { HTTP_POST, "/v1/completions",
      "{\"model\":\"e\",\"prompt\":\"a\",\"decoder_prompt\":\"x\",\"target_lang\":\"a\"}" },
    { HTTP_POST, "/v1/embeddings",
      "{\"model\":\"e\",\"input\":[\"a\",\"b\"],\"encoding_format\":\"base64\"}" },
    { HTTP_POST, "/tokenize", "{\"prompt\":\"a\"}" },
    { HTTP_POST, "/detokenize", "{\"tokens\":[1]}" },
    { HTTP_POST, "/apply-template", "{" MESSAGES "}" },
    { HTTP_POST, "/health/generate", NULL },
    { HTTP_GET, "/v1/models", NULL },
    { HTTP_GET, "/metrics", NULL },
    { HTTP_GET, "/nowhere", NULL },
    { HTTP_OPTIONS, "/health", NULL },
};

static bool
is_over(const struct http_exchange *x)
{
    return x->ended || x->cut;
}

/* Replies to call number i. */
static void
reply(uint32_t i)
{
    static char pieces[1024] = "";

    if (!pieces[0]) {
        strcpy(pieces, "[[97]");
        for (int k = 1; k < 100; k++) strcat(pieces, ",[98]");
        strcat(pieces, "]");
    }
    if (strcmp(f.sent[i].verb, "pieces") == 0)
        send_reply(&f, i, pieces);
    else if (strcmp(f.sent[i].verb, "tokenize") == 0)
        send_reply(&f, i, "{\"ids\":[1,2]}");
    else
        send_reply(&f, i, "{\"text\":\"p\"}");
}

/* Sends all events of a request of lagand with n outputs. */
static void
run_request(const struct http_exchange *x, uint32_t i, uint32_t n)
{
    struct lagan_top_logprob top[2] = { { 1, -1 }, { 2, -2 } };
    struct lagan_event ev = { .kind = LAGAN_EVENT_PROMPT,
                              .text = "hey\n",
                              .text_len = 4,
                              .ids = (token_id[]){ 5, 6 },
                              .n_ids = 2,
                              .logprob = (float[]){ -1, -2 },
                              .n_top = 1,
                              .top = top,
                              .values = (float[]){ 1, 2, 3, 4 },
                              .n_values = 4,
                              .cols = 2,
                              .reason = LAGAN_FINISH_STOP,
                              .stop = "s",
                              .stop_len = 1 };
    static const enum lagan_event_kind kinds[] = { LAGAN_EVENT_TOKENS, LAGAN_EVENT_TOKENS,
                                                   LAGAN_EVENT_OUTPUT };

    send_event(&f, i, ev);
    ev.kind = LAGAN_EVENT_TENSOR;
    send_event(&f, i, ev);
    for (uint32_t k = 0; k < n * ARRAY_LEN(kinds); k++) {
        ev.kind = kinds[k % ARRAY_LEN(kinds)];
        ev.output = k / (uint32_t)ARRAY_LEN(kinds);
        if (!is_over(x)) send_event(&f, i, ev);
    }
    if (!is_over(x)) send_done(&f, i);
}

/* Runs a case in which allocation number `at` fails. Returns the number of allocations. */
static long
run_case(size_t c, long at)
{
    struct http_exchange *x;
    long n;

    api_fixture_open(&f);
    f.n_models = cases[c].body && strstr(cases[c].body, "\"e\"") ? 2 : 1;
    failing_n = 0;
    failing_at = at;
    x = ask(&f, cases[c].method, cases[c].path, cases[c].body);
    for (uint32_t i = 0; i < f.n_sent && !is_over(x); i++)
        if (f.sent[i].verb)
            reply(i);
        else
            run_request(x, i, ((struct exchange *)x->user)->n);
    n = failing_n;
    failing_at = -1;
    if (!is_over(x)) fail_msg("case %zu, allocation %ld: there is no response", c, at);
    ask_done(&f, x);
    api_fixture_close(&f);
    return n;
}

static void
every_failed_allocation_ends_the_request(void **state)
{
    (void)state;
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        long n = run_case(c, -1);

        assert_true(n > 1);
        for (long at = 0; at < n; at++) run_case(c, at);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failed_allocation_ends_the_request),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
