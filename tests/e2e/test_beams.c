/* test_beams.c - beam searches and parallel samples through every process.
 *
 * Each recorded search of transformers (tests/data/golden, `beams`) is requested with all of its
 * sequences, many at once: ids in their order, scores within 1e-4 (the tolerance of the goldens),
 * log-probabilities of tokens, the best tokens and logits of their rows, with several settings of
 * blocks, chunks, policy, reuse and lanes. Samples of one seed are the same alone and among other
 * requests. All of it runs again while the worker is killed repeatedly: no token is delivered twice
 * and the outputs are the same.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include "base/base.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>

enum { MAX_CASES = 96, MAX_OUT = 16, MAX_IDS = 512, AT_ONCE = 12, KILLS = 10 };
/* Recorded rows: tops of each token; the logits of 3 ids: the first, the last, the token. */
enum { TOPS = 2, ROW = 3 };

struct sequence {
    int32_t id[MAX_IDS];
    float logprob[MAX_IDS];
    struct lagan_top_logprob top[MAX_IDS][TOPS];
    float logits[MAX_IDS][ROW];
    uint32_t n;
    double score;
    bool has_logprobs, has_rows; /* recorded */
};

struct asked { /* one search */
    struct lagan_request *r;
    uint32_t n;
    bool rows; /* recorded: asks for logprobs and return_logits */
    struct sequence want[MAX_OUT];
};

struct received {
    uint64_t id;
    uint32_t n_over, order[MAX_OUT];
    struct sequence out[MAX_OUT];
    float *logits; /* rows of all outputs, output 0 first */
    size_t n_values;
    uint32_t vocab;
    bool done;
};

/* Returns NULL if there is no such file. */
static json_t *
read_golden(const char *model, const char *file)
{
    char path[256];

    snprintf(path, sizeof path, "tests/data/golden/%s/%s", model, file);
    return json_load_file(source_path(path), 0, NULL);
}

static uint32_t
take_ids(const json_t *list, uint32_t from, int32_t *to)
{
    uint32_t n = 0;

    for (size_t i = from; i < json_array_size(list); i++) {
        assert_true(n < MAX_IDS);
        to[n++] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return n;
}

static int64_t
number(const json_t *params, const char *key, int64_t absent)
{
    const json_t *v = json_object_get(params, key);

    if (json_is_array(v)) v = json_array_get(v, 0);
    return json_is_integer(v) ? json_integer_value(v) : absent;
}

/* Sets the parameters of transformers as keys of a request. n_given: tokens that the lengths of
 * transformers count in addition to the new ones. */
static void
set_params(struct lagan_request *r, const json_t *p, uint32_t n_given)
{
    const json_t *eos = json_object_get(p, "eos_token_id"),
                 *early = json_object_get(p, "early_stopping");
    int64_t most = number(p, "max_new_tokens", number(p, "max_length", 20 + n_given) - n_given);
    int64_t least = MAX(number(p, "min_new_tokens", 0), number(p, "min_length", 0) - n_given);
    int32_t ids[16];
    uint32_t n = 0;

    if (json_is_array(eos)) {
        n = take_ids(eos, 0, ids);
    } else if (json_is_integer(eos)) {
        ids[n++] = (int32_t)json_integer_value(eos);
    }
    lagan_set_ids(r, "eos_ids", ids, n);
    lagan_set_int(r, "max_tokens", most);
    lagan_set_int(r, "min_tokens", MIN(MAX(least, 0), most));
    lagan_set_int(r, "beams", number(p, "num_beams", 1));
    lagan_set_int(r, "n", number(p, "num_beams", 1));
    lagan_set_float(r, "length_penalty", json_number_value(json_object_get(p, "length_penalty")));
    lagan_set_int(r, "no_repeat_ngram", number(p, "no_repeat_ngram_size", 0));
    lagan_set_int(r, "forced_bos", number(p, "forced_bos_token_id", -1));
    lagan_set_int(r, "forced_eos", number(p, "forced_eos_token_id", -1));
    if (json_is_number(json_object_get(p, "repetition_penalty")))
        lagan_set_float(r, "repetition_penalty",
                        json_number_value(json_object_get(p, "repetition_penalty")));
    if (json_is_string(early)) {
        lagan_set_str(r, "early_stopping", "never", 5);
    } else {
        lagan_set_bool(r, "early_stopping", json_is_true(early));
    }
}

/* Reads the recorded rows of sequence o of search b to s; returns false if there are none. */
static bool
take_rows(const json_t *b, uint32_t o, struct sequence *s)
{
    const json_t *tops = json_array_get(json_object_get(b, "tops"), o),
                 *logits = json_array_get(json_object_get(b, "logits"), o);

    if (!tops) return false;
    assert_int_equal(json_array_size(tops), s->n);
    assert_int_equal(json_array_size(logits), s->n);
    for (uint32_t t = 0; t < s->n; t++) {
        const json_t *top = json_array_get(tops, t), *row = json_array_get(logits, t);

        for (uint32_t k = 0; k < TOPS; k++) {
            const json_t *one = json_array_get(top, k);

            s->top[t][k].id = (int32_t)json_integer_value(json_array_get(one, 0));
            s->top[t][k].logprob = (float)json_number_value(json_array_get(one, 1));
        }
        for (uint32_t k = 0; k < ROW; k++)
            s->logits[t][k] = (float)json_number_value(json_array_get(row, k));
    }
    return true;
}

/* Adds the searches of `recorded` with parameters of their own to the n in ret; returns their
 * number. doc: the file with the prompts. */
static uint32_t
searches(const json_t *doc, const json_t *recorded, struct asked *ret, uint32_t n)
{
    size_t i, k;
    const json_t *b, *p;

    json_array_foreach(json_object_get(recorded, "beams"), i, b)
    {
        const json_t *params = json_object_get(b, "params"), *sequences, *scores;
        int32_t ids[MAX_IDS], start;
        uint32_t n_ids = 0;
        bool source = false;
        struct asked *a = &ret[n];

        if (!json_is_object(params)) continue;
        assert_true(n < MAX_CASES);
        *a = (struct asked){ .r = lagan_request_new() };
        json_array_foreach(json_object_get(doc, "prompts"), k, p)
        {
            if (strcmp(json_string_value(json_object_get(p, "name")),
                       json_string_value(json_object_get(b, "prompt"))) != 0)
                continue;
            n_ids = take_ids(json_object_get(p, "input_ids"), 0, ids);
            source = json_object_get(p, "decoder_input_ids") != NULL;
        }
        assert_true(n_ids > 0);
        lagan_set_ids(a->r, "ids", ids, n_ids);
        start = (int32_t)number(params, "decoder_start_token_id", 0);
        if (source) lagan_set_ids(a->r, "decoder_ids", &start, 1);
        set_params(a->r, params, source ? 1 : n_ids);
        sequences = json_object_get(b, "sequences");
        scores = json_object_get(b, "scores");
        a->n = (uint32_t)json_array_size(sequences);
        assert_true(a->n <= MAX_OUT);
        for (uint32_t o = 0; o < a->n; o++) {
            a->want[o].n = take_ids(json_array_get(sequences, o), source, a->want[o].id);
            a->want[o].score = json_number_value(json_array_get(scores, o));
            p = json_array_get(json_object_get(b, "logprobs"), o);
            a->want[o].has_logprobs = p;
            for (k = 0; k < json_array_size(p); k++)
                a->want[o].logprob[k] = (float)json_number_value(json_array_get(p, k));
            a->rows = a->want[o].has_rows = take_rows(b, o, &a->want[o]);
        }
        n++;
    }
    return n;
}

static void
receive(struct received *h, uint32_t n, const struct lagan_event *ev)
{
    struct sequence *s = NULL;

    while (n > 0 && h->id != ev->id) h++, n--;
    assert_true(n > 0 && ev->output < MAX_OUT);
    s = &h->out[ev->output];
    switch (ev->kind) {
    case LAGAN_EVENT_TOKENS:
        if (ev->first != s->n)
            fail_msg("output %u: %u after %u tokens", ev->output, ev->first, s->n);
        assert_true(s->n + ev->n_ids <= MAX_IDS);
        memcpy(s->id + s->n, ev->ids, ev->n_ids * sizeof *ev->ids);
        if (ev->logprob) memcpy(s->logprob + s->n, ev->logprob, ev->n_ids * sizeof *ev->logprob);
        if (ev->n_top == TOPS) memcpy(s->top + s->n, ev->top, ev->n_ids * sizeof s->top[0]);
        s->n += ev->n_ids;
        break;
    case LAGAN_EVENT_PROMPT:
        assert_int_equal(s->n, 0);
        break;
    case LAGAN_EVENT_TENSOR:
        assert_int_equal(ev->first_value, h->n_values);
        h->vocab = ev->cols;
        h->logits = realloc(h->logits, (h->n_values + ev->n_values) * sizeof *h->logits);
        memcpy(h->logits + h->n_values, ev->values, ev->n_values * sizeof *h->logits);
        h->n_values += ev->n_values;
        break;
    case LAGAN_EVENT_OUTPUT:
        assert_int_equal(ev->n_tokens, s->n);
        s->score = (double)ev->score;
        h->order[h->n_over++] = ev->output;
        break;
    case LAGAN_EVENT_DONE:
        h->done = true;
        break;
    default:
        fail_msg("a request ended with %s: %s", ev->reason_name, ev->message);
    }
}

/* Runs all requests, some at once. kill_after: events with tokens before each of KILLS kills of
 * the worker; 0: no kill. */
static void
ask(const struct serve *s, struct lagan_request *const *r, struct received *h, uint32_t n,
    uint32_t kill_after)
{
    struct lagan *c;
    uint32_t sent = 0, done = 0, events = 0, kills = 0;

    memset(h, 0, n * sizeof *h);
    assert_int_equal(lagan_open(&c, s->endpoint, 20000), 0);
    while (done < n) {
        struct lagan_event ev = { sizeof ev };
        pid_t pid;

        for (; sent < n && sent - done < AT_ONCE; sent++)
            assert_int_equal(lagan_submit(c, r[sent], &h[sent].id), 0);
        if (lagan_next(c, &ev, 60000) <= 0) fail_msg("nothing for a minute: %s", lagan_errmsg(c));
        receive(h, sent, &ev);
        done += ev.kind == LAGAN_EVENT_DONE;
        events += ev.kind == LAGAN_EVENT_TOKENS;
        if (!kill_after || events < kill_after || kills == KILLS) continue;
        pid = serve_worker(s);
        if (pid > 0) kill(pid, SIGKILL);
        events = 0;
        kills++;
    }
    lagan_close(c);
}

/* Compares what was recorded of the row of token t with got, and with its row of logits. */
static void
check_row(const char *where, const struct sequence *want, const struct sequence *got, uint32_t t,
          const float *logits, uint32_t vocab)
{
    const float row[ROW] = { logits[0], logits[vocab - 1], logits[want->id[t]] };

    for (uint32_t k = 0; k < ROW; k++)
        if (!(fabsf(row[k] - want->logits[t][k]) <= 1e-3f)) /* of up to 14 */
            fail_msg("%s: logit %u of token %u is %g, not %g", where, k, t, (double)row[k],
                     (double)want->logits[t][k]);
    for (uint32_t k = 0; k < TOPS; k++) {
        const struct lagan_top_logprob *x = &want->top[t][k], *y = &got->top[t][k];

        if (x->id != y->id || !(fabsf(x->logprob - y->logprob) <= 2e-4f))
            fail_msg("%s: top %u of token %u is %d, %g, not %d, %g", where, k, t, y->id,
                     (double)y->logprob, x->id, (double)x->logprob);
    }
}

/* The rows of the logits follow each other, output by output. */
static void
check_rows(const char *model, uint32_t which, const struct asked *a, const struct received *h)
{
    const float *row = h->logits;
    char where[128];

    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t t = 0; t < a->want[i].n; t++, row += h->vocab) {
            assert_true(row + h->vocab <= h->logits + h->n_values);
            snprintf(where, sizeof where, "%s, search %u, sequence %u", model, which, i);
            check_row(where, &a->want[i], &h->out[i], t, row, h->vocab);
        }
    assert_ptr_equal(row, h->logits + h->n_values);
}

static void
check_search(const char *model, uint32_t which, const struct asked *a, const struct received *h)
{
    assert_true(h->done);
    assert_int_equal(h->n_over, a->n);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct sequence *want = &a->want[i], *got = &h->out[i];

        assert_int_equal(h->order[i], i); /* the best first */
        if (got->n != want->n || memcmp(got->id, want->id, got->n * sizeof *got->id) != 0)
            fail_msg("%s, search %u: sequence %u is another one (%u tokens, not %u)", model, which,
                     i, got->n, want->n);
        if (fabs(got->score - want->score) > 1e-4 * fabs(want->score) + 1e-5)
            fail_msg("%s, search %u: score %u is %g, not %g", model, which, i, got->score,
                     want->score);
        for (uint32_t k = 0; k < want->n && want->has_logprobs; k++)
            if (!(fabsf(got->logprob[k] - want->logprob[k]) <= 2e-4f))
                fail_msg("%s, search %u, sequence %u: the log-probability of token %u is %g, not "
                         "%g",
                         model, which, i, k, (double)got->logprob[k], (double)want->logprob[k]);
    }
    if (a->rows) check_rows(model, which, a, h);
}

static void
run_searches(const char *model, const char *const *set, uint32_t kill_after)
{
    static struct asked a[MAX_CASES];
    static struct received h[MAX_CASES];
    struct lagan_request *r[MAX_CASES] = { NULL };
    json_t *doc = read_golden(model, "expected.json"), *more = read_golden(model, "beams.json");
    char path[128];
    struct serve s;
    uint32_t n;

    assert_non_null(doc);
    n = searches(doc, more, a, searches(doc, doc, a, 0));
    assert_true(n >= 20);
    for (uint32_t i = 0; i < n; i++) {
        r[i] = a[i].r;
        lagan_set_int(r[i], "logprobs", a[i].rows ? TOPS : 0);
        lagan_set_bool(r[i], "return_logits", a[i].rows);
        /* a request with prompt_logprobs does not survive its worker */
        if (!kill_after && i % 3 == 0) lagan_set_int(r[i], "prompt_logprobs", i % 2);
    }
    snprintf(path, sizeof path, "tests/data/golden/%s", model);
    assert_true(serve_start(&s, path, set));
    ask(&s, r, h, n, kill_after);
    for (uint32_t i = 0; i < n; i++) {
        check_search(model, i, &a[i], &h[i]);
        free(h[i].logits);
        lagan_request_free(r[i]);
    }
    serve_stop(&s);
    json_decref(doc);
    json_decref(more);
}

static const char *const models[] = { "llama3", "t5_relu",        "t5_gated",   "bart",
                                      "mbart",  "granite_hybrid", "nemotron_h", "bamba" };

static void
searches_end_with_transformers_sequences_and_scores(void **state)
{
    static const char *const ways[][5] = {
        { "dtype=fp32", "max_num_seqs=32", NULL },
        { "dtype=fp32", "kv.tokens_per_block=4", "max_num_batched_tokens=16", "kv.reuse=1", NULL },
        { "dtype=fp32", "kv.tokens_per_block=8", "max_num_seqs=8", "policy=max_utilization", NULL },
        { "dtype=fp32", "split.mode=fixed", "kv.reuse=1", NULL },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        for (size_t k = 0; k < ARRAY_LEN(ways); k++)
            if (!serve_on_gpu() || k == 0 || (k == 1 + i % 3 && k != 3))
                run_searches(models[i], ways[k], 0);
}

static void
a_worker_killed_in_searches_gives_the_same_sequences(void **state)
{
    static const char *const set[] = { "dtype=fp32", "numerics=invariant", NULL };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++)
        if (!serve_on_gpu() || i < 2) run_searches(models[i], set, 20);
}

/* Takes the recorded searches of a bundled model with stop strings. Returns their number. */
static uint32_t
searches_with_stops(const json_t *recorded, const char *model, struct asked *ret)
{
    uint32_t n = 0;
    const json_t *b;
    size_t i;

    json_array_foreach(json_object_get(recorded, "beams"), i, b)
    {
        const json_t *params = json_object_get(b, "params"), *stops = json_object_get(b, "stop");
        const char *stop[4];
        int32_t ids[MAX_IDS];
        struct asked *a = &ret[n];
        uint32_t n_ids;
        bool source;

        if (strcmp(json_string_value(json_object_get(b, "model")), model) != 0) continue;
        *a = (struct asked){ .r = lagan_request_new() };
        n_ids = take_ids(json_object_get(b, "ids"), 0, ids);
        lagan_set_ids(a->r, "ids", ids, n_ids);
        source = json_object_get(params, "decoder_start_token_id") != NULL;
        set_params(a->r, params, source ? 1 : n_ids);
        assert_true(json_array_size(stops) <= ARRAY_LEN(stop));
        for (size_t k = 0; k < json_array_size(stops); k++)
            stop[k] = json_string_value(json_array_get(stops, k));
        lagan_set_strs(a->r, "stop", stop, (uint32_t)json_array_size(stops));
        a->n = (uint32_t)json_array_size(json_object_get(b, "sequences"));
        for (uint32_t o = 0; o < a->n; o++) {
            const json_t *ids_of = json_array_get(json_object_get(b, "sequences"), o);

            a->want[o].n = take_ids(ids_of, source, a->want[o].id);
            a->want[o].score = json_number_value(json_array_get(json_object_get(b, "scores"), o));
        }
        n++;
    }
    return n;
}

static void
searches_end_at_stop_strings_as_in_transformers(void **state)
{
    static const char *const model[] = { "numbers-t5", "recall-gemma3" };
    static const char *const set[] = { "dtype=fp32", "numerics=invariant", NULL };
    static struct asked a[MAX_CASES];
    static struct received h[MAX_CASES];
    json_t *recorded = json_load_file(source_path("tests/data/golden/stop_beams.json"), 0, NULL);

    (void)state;
    assert_non_null(recorded);
    for (size_t m = 0; m < ARRAY_LEN(model); m++) {
        struct lagan_request *r[MAX_CASES];
        uint32_t n = searches_with_stops(recorded, model[m], a);
        char path[64];
        struct serve s;

        assert_true(n > 0);
        snprintf(path, sizeof path, "models/%s", model[m]);
        assert_true(serve_start(&s, path, set));
        for (uint32_t i = 0; i < n; i++) r[i] = a[i].r;
        for (uint32_t kill_after = 0; kill_after <= 20; kill_after += 20) {
            ask(&s, r, h, n, kill_after);
            for (uint32_t i = 0; i < n; i++) check_search(model[m], i, &a[i], &h[i]);
        }
        for (uint32_t i = 0; i < n; i++) lagan_request_free(r[i]);
        serve_stop(&s);
    }
    json_decref(recorded);
}

enum { PENALISED = 16, VOCAB = 512 };

struct spoken { /* ids, and of each the log-probabilities of the vocabulary */
    int32_t id[PENALISED];
    double logprob[PENALISED][VOCAB];
    uint32_t n;
};

static void
speak(struct lagan *c, struct lagan_request *r, struct spoken *s)
{
    struct lagan_event ev = { sizeof ev };
    uint64_t id;

    s->n = 0;
    assert_int_equal(lagan_submit(c, r, &id), 0);
    while (lagan_next(c, &ev, 20000) > 0 && ev.kind != LAGAN_EVENT_DONE) {
        if (ev.kind == LAGAN_EVENT_ERROR) fail_msg("%s", ev.message);
        for (uint32_t i = 0; ev.kind == LAGAN_EVENT_TOKENS && i < ev.n_ids; i++) {
            assert_true(s->n < PENALISED);
            for (uint32_t k = 0; k < ev.n_top; k++) {
                const struct lagan_top_logprob *t = &ev.top[i * ev.n_top + k];

                if (t->id >= 0 && t->id < VOCAB) s->logprob[s->n][t->id] = (double)t->logprob;
            }
            s->id[s->n++] = ev.ids[i];
        }
    }
}

/* The distribution of each step is the one without penalties after the same tokens, changed as
 * the keys say. */
static void
penalties_and_bias_change_logits_by_what_was_generated(void **state)
{
    static const char *const set[] = { "dtype=fp32", NULL };
    static const int32_t biased[] = { 20, 31 };
    static const float bias[] = { 5, -3 };
    static struct spoken with, without;
    int32_t ids[8 + PENALISED];
    struct lagan_request *r = lagan_request_new();
    struct serve s;
    struct lagan *c;

    (void)state;
    assert_true(serve_start(&s, "tests/data/golden/llama3", set));
    assert_int_equal(lagan_open(&c, s.endpoint, 20000), 0);
    for (int32_t i = 0; i < 8; i++) ids[i] = 3 + 17 * i;
    lagan_set_ids(r, "ids", ids, 8);
    lagan_set_int(r, "max_tokens", PENALISED);
    lagan_set_int(r, "logprobs", VOCAB);
    lagan_set_bool(r, "ignore_eos", 1);
    lagan_set_float(r, "presence_penalty", 0.75);
    lagan_set_float(r, "frequency_penalty", 0.5);
    lagan_set_bias(r, "logit_bias", biased, bias, 2);
    speak(c, r, &with);
    lagan_request_free(r);
    assert_int_equal(with.n, PENALISED);
    for (uint32_t t = 0; t < PENALISED; t++) {
        double x[VOCAB], total = 0;

        memcpy(ids + 8, with.id, t * sizeof *ids);
        r = lagan_request_new();
        lagan_set_ids(r, "ids", ids, 8 + t);
        lagan_set_int(r, "max_tokens", 1);
        lagan_set_int(r, "logprobs", VOCAB);
        speak(c, r, &without);
        lagan_request_free(r);
        for (int32_t v = 0; v < VOCAB; v++) {
            uint32_t times = 0;

            for (uint32_t k = 0; k < t; k++) times += with.id[k] == v;
            x[v] = without.logprob[0][v] - (times ? 0.75 + 0.5 * times : 0);
            for (int k = 0; k < 2; k++) x[v] += biased[k] == v ? (double)bias[k] : 0;
            total += without.logprob[0][v] != 0 ? exp(x[v]) : 0;
        }
        for (int32_t v = 0; v < VOCAB; v++)
            if (without.logprob[0][v] != 0 && fabs(with.logprob[t][v] - (x[v] - log(total))) > 1e-4)
                fail_msg("step %u, token %d: %g, not %g", t, v, with.logprob[t][v],
                         x[v] - log(total));
    }
    lagan_close(c);
    serve_stop(&s);
}

enum { SAMPLES = 5, PROMPTS = 6, NEW = 40 };

static struct lagan_request *
samples(uint32_t prompt, uint32_t n)
{
    struct lagan_request *r = lagan_request_new();
    int32_t ids[30];

    for (uint32_t i = 0; i < 5 * prompt + 2; i++)
        ids[i] = (int32_t)((prompt * 31 + i * 7) % 400 + 3);
    lagan_set_ids(r, "ids", ids, 5 * prompt + 2);
    lagan_set_int(r, "max_tokens", NEW);
    lagan_set_int(r, "n", n);
    lagan_set_int(r, "seed", 100 + prompt);
    lagan_set_float(r, "temperature", 0.9);
    if (prompt % 2) lagan_set_float(r, "presence_penalty", 0.7);
    if (prompt % 3 == 0) lagan_set_float(r, "frequency_penalty", 0.4);
    if (prompt % 3 == 1) lagan_set_int(r, "no_repeat_ngram", 2);
    if (prompt % 3 == 2) lagan_set_int(r, "prompt_logprobs", 0);
    if (prompt == 4)
        lagan_set_bias(r, "logit_bias", (const int32_t[]){ 9, 11 }, (const float[]){ 4, -100 }, 2);
    return r;
}

static bool
repeats(const struct sequence *s, uint32_t n)
{
    for (uint32_t i = 0; i + n <= s->n; i++)
        for (uint32_t k = i + 1; k + n <= s->n; k++)
            if (!memcmp(s->id + i, s->id + k, n * sizeof *s->id)) return true;
    return false;
}

static void
are_the_same(const char *ranks)
{
    const char *set[] = { "dtype=fp32",
                          "numerics=invariant",
                          "kv.tokens_per_block=16",
                          "max_num_seqs=16",
                          "max_num_batched_tokens=24",
                          ranks,
                          NULL };
    static struct received alone[PROMPTS], several[PROMPTS], killed[PROMPTS];
    struct lagan_request *one[PROMPTS], *many[PROMPTS];
    struct serve s;
    uint32_t n_other = 0;

    assert_true(serve_start(&s, "tests/data/golden/llama3", set));
    for (uint32_t i = 0; i < PROMPTS; i++) {
        one[i] = samples(i, 1);
        many[i] = samples(i, SAMPLES);
    }
    for (uint32_t i = 0; i < PROMPTS; i++) ask(&s, &one[i], &alone[i], 1, 0);
    ask(&s, many, several, PROMPTS, 0);
    ask(&s, many, killed, PROMPTS, 90);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        const struct sequence *first = &several[i].out[0];

        assert_int_equal(first->n, alone[i].out[0].n);
        assert_memory_equal(first->id, alone[i].out[0].id, first->n * sizeof *first->id);
        for (uint32_t k = 0; k < SAMPLES; k++) {
            const struct sequence *a = &several[i].out[k], *b = &killed[i].out[k];

            assert_int_equal(a->n, b->n);
            for (uint32_t t = 0; t < a->n; t++)
                if (a->id[t] != b->id[t])
                    fail_msg("prompt %u, output %u: token %u is %d after deaths, not %d", i, k, t,
                             b->id[t], a->id[t]);
            assert_true(fabs(a->score - b->score) <= 1e-5 * fabs(a->score));
            n_other += k && memcmp(a->id, first->id, MIN(a->n, first->n) * sizeof *a->id) != 0;
            if (i % 3 == 1) assert_false(repeats(a, 2));
            for (uint32_t t = 0; t < a->n && i == 4; t++) assert_int_not_equal(a->id[t], 11);
            if (k) /* the best first */
                assert_true(several[i].out[several[i].order[k - 1]].score >=
                            several[i].out[several[i].order[k]].score);
        }
        lagan_request_free(one[i]);
        lagan_request_free(many[i]);
    }
    assert_true(n_other > PROMPTS * (SAMPLES - 1) / 2);
    serve_stop(&s);
}

static void
samples_are_the_same_alone_together_and_after_deaths(void **state)
{
    (void)state;
    are_the_same(NULL);
}

/* Ranks must draw the same token. If they do not, a rank ends on the CPU (cpu_all_same()), and a
 * GPU draws another token. On a GPU this is the test above with --set tensor_parallel=2. */
static void
samples_of_two_ranks_are_the_same_alone_together_and_after_deaths(void **state)
{
    (void)state;
    if (serve_on_gpu()) skip();
    are_the_same("tensor_parallel=2");
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(searches_end_with_transformers_sequences_and_scores),
        cmocka_unit_test(a_worker_killed_in_searches_gives_the_same_sequences),
        cmocka_unit_test(searches_end_at_stop_strings_as_in_transformers),
        cmocka_unit_test(penalties_and_bias_change_logits_by_what_was_generated),
        cmocka_unit_test(samples_are_the_same_alone_together_and_after_deaths),
        cmocka_unit_test(samples_of_two_ranks_are_the_same_alone_together_and_after_deaths),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
