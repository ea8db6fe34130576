/* fuzz_body.c - bodies of requests and events of lagand against jansson.
 *
 * Input: byte 0 selects the route, byte 1 the bytes that are read at once, byte 2 the number of
 * operations that follow; the rest is the body. The body is read at once and in parts: both give
 * the same requests of lagand and the same response. jansson decides whether the body is JSON. Then
 * the operations send events, and make the client slow. The reference joins the texts of the
 * events; the response has the same texts, is JSON, and is given once. */
#include "tests/fuzz/fuzz.h"

#include "base/rng.h"
#include "tests/fuzz/ref_json.h"
#include "tests/gateway/api_fixture.h"

enum { MAX_OPERATIONS = 64, MAX_CHOICES = 256 };

static const char *const paths[] = { "/v1/chat/completions", "/v1/completions",
                                     "/v1/embeddings",       "/tokenize",
                                     "/detokenize",          "/apply-template" };
static const char *const texts[] = { "a",        "\"",           "\\",
                                     "\n",       "\x01",         "\x7f",
                                     "\xc2\x85", "\xc3\xa9",     "\xe2\x80\xa8",
                                     "<b>",      "\xe2\x80\xa9", "\x1f" };

static struct api_fixture f;
static struct out want[MAX_CHOICES], got[MAX_CHOICES];

/* ---- reading */

/* Returns whether the response says that the body is not JSON. *limit: because of a
 * limit, or before its end was read. */
static bool
refused_as_json(const struct http_exchange *x, bool *limit)
{
    static const char *const limits[] = { "levels", "fields", "keys", "the limit is",
                                          "a JSON object" };
    char text[1200];

    snprintf(text, sizeof text, "%.*s", (int)x->sent.n, x->sent.p ? x->sent.p : "");
    *limit = false;
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) *limit |= strstr(text, limits[i]) != NULL;
    return x->status == 400 && strstr(text, "\"code\":\"invalid_json\"}}");
}

static struct http_exchange *
ask_in_parts(uint32_t route, size_t most, const char *body, size_t n)
{
    f.api->read_bytes = most;
    f.api->random = 1;
    return ask_bytes(&f, paths[route], NULL, body, n);
}

/* Checks that two exchanges are equal. f.sent has the requests of a from `before` on, those of b
 * from `between` on. */
static void
compare(const struct http_exchange *a, const struct http_exchange *b, uint32_t before,
        uint32_t between)
{
    check(a->started == b->started && a->status == b->status);
    check(a->sent.n == b->sent.n && (!a->sent.n || memcmp(a->sent.p, b->sent.p, a->sent.n) == 0));
    check(f.n_sent - between == between - before);
    for (uint32_t i = 0; i < between - before; i++) {
        const struct sent *s = &f.sent[before + i], *t = &f.sent[between + i];

        check(!s->verb == !t->verb && strcmp(s->text, t->text) == 0);
    }
}

/* Checks that the messages of each request, or of each call, are JSON. */
static void
check_messages(void)
{
    for (uint32_t i = 0; i < f.n_sent; i++) {
        const char *at = f.sent[i].verb ? f.sent[i].text : strstr(f.sent[i].text, "messages=");

        if (!at) continue;
        at += f.sent[i].verb ? 0 : 9;
        check(ref_is_json(at, strcspn(at, "\n")) != 0);
    }
}

/* ---- events */

/* Returns the index in f.sent of a request or call of lagand. */
static uint32_t
number_of(uint64_t id)
{
    return (uint32_t)(id - f.sent[0].id);
}

/* Replies to a call that comes before a request. */
static void
reply(uint32_t i)
{
    static struct out pieces;

    if (!pieces.n) {
        out_put(&pieces, "[[97]");
        for (int k = 1; k < 100; k++) out_format(&pieces, ",[%d,%d]", k, 255 - k);
        out_bytes(&pieces, "]", 2);
    }
    if (strcmp(f.sent[i].verb, "pieces") == 0)
        send_reply(&f, i, pieces.p);
    else if (strcmp(f.sent[i].verb, "tokenize") == 0)
        send_reply(&f, i, "{\"ids\":[1,2]}");
    else
        send_reply(&f, i, "{\"text\":\"p\\n\"}");
}

static void
tokens(const struct exchange *e, uint32_t i, uint32_t output, const char *text)
{
    struct lagan_top_logprob top[40];
    struct lagan_event ev = { .kind = LAGAN_EVENT_TOKENS,
                              .output = output,
                              .text = text,
                              .text_len = strlen(text),
                              .ids = (token_id[]){ 5, 6 },
                              .n_ids = 1 + (i + output) % 2,
                              .logprob = (float[]){ -0.5f, -1 },
                              .n_top = e->logprobs ? e->n_top : 0,
                              .top = top };

    for (int k = 0; k < 40; k++) top[k] = (struct lagan_top_logprob){ k, -1.5f };
    send_event(&f, i, ev);
}

static void
add_text(uint64_t index, const char *text, size_t n)
{
    check(index < MAX_CHOICES);
    out_bytes(&got[index], text, n);
}

static void
read_response(const struct http_exchange *x, bool stream)
{
    const char *p = x->sent.p, *end = x->sent.p + x->sent.n;
    bool done = false;

    if (!stream) {
        check(ref_choices(p, x->sent.n, add_text) == 0);
        return;
    }
    while (p < end) {
        const char *line = memchr(p, '\n', (size_t)(end - p));

        check(line && !done);
        if ((size_t)(line - p) == 6 && memcmp(p, ": ping", 6) == 0) {
            p = line + 1;
            continue;
        }
        check(line - p > 6 && memcmp(p, "data: ", 6) == 0 && line + 1 < end && line[1] == '\n');
        done = (size_t)(line - p) == 12 && memcmp(p + 6, "[DONE]", 6) == 0;
        if (!done) check(ref_choices(p + 6, (size_t)(line - p - 6), add_text) == 0);
        p = line + 2;
    }
    check(done);
}

/* Drives an exchange that was taken to its end. */
static void
drive(struct http_exchange *x, struct in *in, uint32_t n_operations)
{
    struct exchange *e = x->user;
    bool stream = e->stream, hidden = e->hide_output, echo = e->echo, ended[MAX_CHOICES] = { 0 };
    uint32_t n_choices;

    while (!x->ended && e->call != API_MAX_OPEN) reply(number_of(f.api->open[e->call].id));
    n_choices = e->n_prompts * e->n;
    if (x->ended || n_choices > MAX_CHOICES || e->route->fields == ON_EMBEDDINGS) return;
    for (uint32_t i = 0; i < n_choices; i++) {
        want[i].n = got[i].n = 0;
        if (echo) out_bytes(&want[i], e->prompt[i / e->n].text.p, e->prompt[i / e->n].text.n);
    }
    for (uint32_t k = 0; k < n_operations; k++) {
        uint32_t b = byte(in), c = b / 16 % n_choices, i = number_of(e->prompt[c / e->n].id);
        const char *text = texts[b % ARRAY_LEN(texts)];

        if (b % 16 < 10 && !ended[c]) {
            tokens(e, i, c % e->n, text);
            if (!hidden) out_put(&want[c], text);
        } else if (b % 16 < 12) {
            x->space = (b % 16 - 10) * 500;
            if (e->blocked) f.http.writable(f.http.ctx, x);
        } else if (b % 16 == 12) {
            move_clock(&f, 20 * NSEC_S);
        } else if (b % 16 == 13 && !ended[c]) {
            send_output(&f, i, c % e->n, b & 16 ? LAGAN_FINISH_EOS : LAGAN_FINISH_LENGTH, 3, 2);
            ended[c] = true;
        }
    }
    for (uint32_t c = 0; c < n_choices; c++)
        if (!ended[c])
            send_output(&f, number_of(e->prompt[c / e->n].id), c % e->n, LAGAN_FINISH_LENGTH, 3, 2);
    for (uint32_t i = 0; i < e->n_prompts; i++) send_done(&f, number_of(e->prompt[i].id));
    x->space = 1 << 30;
    if (!x->ended) f.http.writable(f.http.ctx, x);
    check(x->ended && x->status == 200);
    read_response(x, stream);
    for (uint32_t i = 0; i < n_choices; i++)
        check(got[i].n == want[i].n && (!got[i].n || memcmp(got[i].p, want[i].p, got[i].n) == 0));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct in in = { data, data + size };
    uint32_t route = byte(&in) % ARRAY_LEN(paths), most = byte(&in) + 1;
    uint32_t n_operations = byte(&in) % MAX_OPERATIONS, before = 0, between;
    struct in operations = in;
    const char *body;
    struct http_exchange *x, *y;
    bool limit;
    size_t n;
    int is_json;

    if (!f.api) api_fixture_open(&f);
    f.n_models = route == 2 ? 2 : 1;
    for (uint32_t i = 0; i < n_operations; i++) byte(&in);
    body = (const char *)in.p;
    n = (size_t)(in.end - in.p);
    x = ask_in_parts(route, 1 << 20, body, n);
    if (!x->started && f.n_sent && f.sent[0].verb && strcmp(f.sent[0].verb, "pieces") == 0) {
        reply(0); /* once in the life of the API: y does not ask again */
        before = 1;
    }
    between = f.n_sent;
    y = ask_in_parts(route, most, body, n);
    compare(x, y, before, between);
    check_messages();
    is_json = ref_is_json(body, n);
    if (refused_as_json(x, &limit))
        check(limit || is_json <= 0);
    else
        check(limit || is_json != 0);
    if (!x->started) drive(x, &operations, n_operations);
    ask_done(&f, x);
    ask_done(&f, y);
    api_fixture_forget(&f);
    return 0;
}
