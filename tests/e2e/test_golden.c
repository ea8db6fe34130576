/* test_golden.c - outputs through every process are those of transformers.
 *
 * Each checkpoint is served by a real lagand and worker with every setting of block size, chunk
 * budget and lanes, with and without reuse. Each prompt runs alone, again with a stop token, and
 * among all others, mostly for the second time. Some settings run once more and the worker is
 * killed half-way. Ids must be equal, distributions within the tolerance stated with the data (1e-4
 * of the largest logit), and the bits of every log-probability equal in all runs.
 *
 * On a GPU the settings are graphs, chunks, lanes and numerics. The bits are equal wherever
 * numerics is invariant. In bf16 the error of a distribution is at most twice the error of
 * transformers in bf16 (of the prompt, or of the median prompt), and a greedy token may differ
 * only where its margin is less than what that error allows. With experts bf16 is compared with
 * itself alone. With KV in fp8 (three fraction bits) the logits are compared with fp8.safetensors,
 * for which transformers has rounded K and V.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include "base/base.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { MAX_PROMPTS = 16, N_NEW = 32, MAX_VOCAB = 1024, AT_ONCE = 16, MOST_AT_ONCE = 64 };

/* How exact: fp32 as the data says, bf16 against transformers' own, fp32 with KV in fp8 within 2 %
 * of the largest logit. */
enum precision { FP32, BF16, KV_FP8, PRECISIONS };
static const char *const precision_set[][2] = { { "dtype=fp32", "kv.dtype=auto" },
                                                { "dtype=bf16", "kv.dtype=auto" },
                                                { "dtype=fp32", "kv.dtype=fp8" } };

struct prompt {
    uint32_t n_ids, n_decoder, n_greedy;
    int32_t *ids, *decoder;
    int32_t greedy[N_NEW];
    uint32_t n_ended; /* tokens until the stop token, which is the last; 0: there is none */
    double margin[N_NEW];
    float *last, *all; /* logits: [vocab]; [n_all][vocab] or NULL */
    float *last_fp8;   /* as last, with K and V rounded to fp8; NULL: not recorded */
    uint32_t n_all;
    double bf16_error; /* of transformers, or of the median prompt; a part of the largest logit */
    /* The bits of the first run, without and with prefix; every later run has the same. */
    uint64_t bits[PRECISIONS][2], output_bits[PRECISIONS][2];
};

struct golden {
    uint32_t n, vocab;
    struct prompt p[MAX_PROMPTS];
    char *tensors, *fp8;
    enum precision precision; /* of the server that is asked */
    bool same_bits;           /* the settings guarantee equal bits */
    bool experts;             /* in 16 bits near ties go another way, and a row is another then */
    bool reuse;               /* kv.reuse is on */
    char way[200];            /* its settings */
    double worst[PRECISIONS]; /* the largest error: a part of what is allowed */
};

static char *
read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "re");
    char *text;

    if (!f) fail_msg("%s cannot be opened", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    text = malloc(*n + 1);
    assert_int_equal(fread(text, 1, *n, f), *n);
    text[*n] = 0;
    fclose(f);
    return text;
}

static int32_t *
ids_of(json_t *list, uint32_t *n)
{
    int32_t *ids;

    *n = (uint32_t)json_array_size(list);
    ids = malloc((*n + 1) * sizeof *ids);
    for (uint32_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static float *
tensor(json_t *header, char *data, const char *name, uint32_t *rows, uint32_t *cols)
{
    json_t *t = json_object_get(header, name), *shape;

    if (!t) return NULL;
    assert_string_equal(json_string_value(json_object_get(t, "dtype")), "F32");
    shape = json_object_get(t, "shape");
    *rows = json_array_size(shape) == 2 ? (uint32_t)json_integer_value(json_array_get(shape, 0))
                                        : 1;
    *cols = (uint32_t)json_integer_value(json_array_get(shape, json_array_size(shape) - 1));
    return (float *)(void *)(data + json_integer_value(
                                        json_array_get(json_object_get(t, "data_offsets"), 0)));
}

/* A prompt's own error is one draw, and may be a small one. */
static void
at_least_the_middle(struct golden *g)
{
    double middle = 0;

    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t below = 0;

        for (uint32_t j = 0; j < g->n; j++) below += g->p[j].bf16_error < g->p[i].bf16_error;
        if (below <= g->n / 2) middle = fmax(middle, g->p[i].bf16_error);
    }
    for (uint32_t i = 0; i < g->n; i++) g->p[i].bf16_error = fmax(g->p[i].bf16_error, middle);
}

static bool
has_experts(const char *model)
{
    static const char *const key[] = { "num_experts", "num_local_experts", "n_routed_experts" };
    json_t *config, *text;
    char path[256];
    bool some = false;
    size_t n;
    char *bytes;

    snprintf(path, sizeof path, "tests/data/golden/%s/config.json", model);
    bytes = read_file(source_path(path), &n);
    config = json_loadb(bytes, n, 0, NULL);
    text = json_object_get(config, "text_config");
    for (size_t i = 0; i < ARRAY_LEN(key); i++)
        some |= json_integer_value(json_object_get(text ? text : config, key[i])) > 0;
    json_decref(config);
    free(bytes);
    return some;
}

/* Reads a safetensors file: sets *data to its tensors and returns its header. */
static json_t *
read_tensors(const char *path, char **data)
{
    size_t n;
    uint64_t header_bytes;
    json_t *header;

    *data = read_file(path, &n);
    memcpy(&header_bytes, *data, 8);
    header = json_loadb(*data + 8, header_bytes, 0, NULL);
    assert_non_null(header);
    /* Floats want to be aligned: shift the data behind the header. */
    memmove(*data, *data + 8 + header_bytes, n - 8 - header_bytes);
    return header;
}

static void
golden_read(struct golden *g, const char *model)
{
    char path[256];
    size_t n;
    char *text;
    json_t *doc, *header, *fp8 = NULL, *list;

    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "tests/data/golden/%s/expected.safetensors", model);
    header = read_tensors(source_path(path), &g->tensors);
    snprintf(path, sizeof path, "tests/data/golden/%s/fp8.safetensors", model);
    if (!access(source_path(path), R_OK)) fp8 = read_tensors(source_path(path), &g->fp8);

    snprintf(path, sizeof path, "tests/data/golden/%s/expected.json", model);
    text = read_file(source_path(path), &n);
    doc = json_loadb(text, n, 0, NULL);
    assert_non_null(doc);
    list = json_object_get(doc, "prompts");
    g->n = (uint32_t)json_array_size(list);
    assert_true(g->n > 0 && g->n <= MAX_PROMPTS);
    for (uint32_t i = 0; i < g->n; i++) {
        json_t *o = json_array_get(list, i), *greedy = json_object_get(o, "greedy");
        struct prompt *p = &g->p[i];
        json_t *tokens = json_is_object(greedy) ? json_object_get(greedy, "ids") : greedy;
        uint32_t rows;
        char name[32];

        if (json_is_object(greedy) && !tokens) tokens = json_object_get(greedy, "tokens");
        p->ids = ids_of(json_object_get(o, "input_ids"), &p->n_ids);
        p->decoder = ids_of(json_object_get(o, "decoder_input_ids"), &p->n_decoder);
        p->n_greedy = (uint32_t)json_array_size(tokens);
        assert_int_equal(p->n_greedy, N_NEW);
        for (uint32_t k = 0; k < N_NEW; k++) {
            json_t *margins = json_object_get(json_is_object(greedy) ? greedy : o, "margin");

            p->greedy[k] = (int32_t)json_integer_value(json_array_get(tokens, k));
            p->margin[k] = margins ? json_number_value(json_array_get(margins, k)) : 1;
        }
        greedy = json_object_get(json_object_get(o, "greedy_eos"), "ids");
        p->n_ended = (uint32_t)json_array_size(greedy);
        p->bf16_error = json_number_value(json_object_get(o, "bf16_rel_err"));
        snprintf(name, sizeof name, "p%u.logits_last", i);
        p->last = tensor(header, g->tensors, name, &rows, &g->vocab);
        assert_non_null(p->last);
        p->last_fp8 = fp8 ? tensor(fp8, g->fp8, name, &rows, &g->vocab) : NULL;
        snprintf(name, sizeof name, "p%u.logits_all", i);
        p->all = tensor(header, g->tensors, name, &p->n_all, &g->vocab);
    }
    assert_true(g->vocab <= MAX_VOCAB);
    at_least_the_middle(g);
    g->experts = has_experts(model);
    json_decref(doc);
    json_decref(header);
    json_decref(fp8);
    free(text);
}

static void
golden_free(struct golden *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        free(g->p[i].ids);
        free(g->p[i].decoder);
    }
    free(g->tensors);
    free(g->fp8);
}

static double
largest(const float *logits, uint32_t vocab)
{
    double most = 0;

    for (uint32_t i = 0; i < vocab; i++) most = fmax(most, fabs(logits[i]));
    return most;
}

/* What a prompt's logits may be off by, as a part of the largest. */
static double
allowed(const struct golden *g, const struct prompt *p)
{
    if (g->precision == KV_FP8 && !p->last_fp8) return INFINITY;
    if (g->precision != FP32 && g->experts && serve_on_gpu()) return INFINITY; /* as in fp32 */
    return g->precision == FP32 ? 1e-4 : g->precision == BF16 ? 2 * p->bf16_error : 0.02;
}

/* Largest error of a whole distribution, as a part of the largest logit. */
static double
distribution_error(const float *logits, const struct lagan_top_logprob *top, uint32_t n,
                   uint32_t vocab)
{
    double sum = 0, biggest = logits[0], low = INFINITY, high = -INFINITY, shift;

    assert_int_equal(n, vocab);
    for (uint32_t i = 0; i < vocab; i++) biggest = fmax(biggest, logits[i]);
    for (uint32_t i = 0; i < vocab; i++) sum += exp(logits[i] - biggest);
    for (uint32_t i = 0; i < n; i++) {
        double off;

        assert_true(top[i].id >= 0 && (uint32_t)top[i].id < vocab);
        off = logits[top[i].id] - biggest - log(sum) - top[i].logprob;
        assert_true(isfinite(top[i].logprob));
        low = fmin(low, off);
        high = fmax(high, off);
    }
    /* Errors of logits shift all log-probabilities alike through their sum; the shift is not
     * counted twice. */
    shift = (low + high) / 2;
    return fmax(high - shift, fabs(shift) / 2) / largest(logits, vocab);
}

static void
compare(struct golden *g, const struct prompt *p, const float *logits,
        const struct lagan_top_logprob *top, uint32_t n)
{
    double part = distribution_error(logits, top, n, g->vocab) / allowed(g, p);

    g->worst[g->precision] = fmax(g->worst[g->precision], part);
}

/* An encoder-decoder prompt runs twice: its distributions are over decoder_input_ids, its greedy
 * tokens follow the start token alone. */
struct asked {
    bool prefix;
    bool may_reuse; /* a request for distributions of the prompt uses no cache */
    bool ends;      /* with the prompt's stop token */
};

struct result {
    uint64_t id, bits, output_bits; /* output_bits: of the generated tokens */
    struct prompt *p;
    struct asked how;
    uint32_t n, n_prompt, cached, resumed;
    int32_t ids[N_NEW];
    bool over;
};

static uint64_t
mix(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;

    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * UINT64_C(0x100000001b3);
    return h;
}

static void
ask(struct lagan *c, struct golden *g, struct prompt *p, struct asked how, struct result *a)
{
    struct lagan_request *r = lagan_request_new();

    *a = (struct result){ .p = p,
                          .how = how,
                          .bits = UINT64_C(0xcbf29ce484222325),
                          .output_bits = UINT64_C(0xcbf29ce484222325) };
    assert_int_equal(lagan_set_ids(r, "ids", p->ids, p->n_ids), 0);
    if (how.prefix) assert_int_equal(lagan_set_ids(r, "decoder_ids", p->decoder, p->n_decoder), 0);
    assert_int_equal(lagan_set_int(r, "max_tokens", N_NEW), 0);
    if (how.ends)
        assert_int_equal(lagan_set_ids(r, "eos_ids", &p->greedy[p->n_ended - 1], 1), 0);
    else
        assert_int_equal(lagan_set_bool(r, "ignore_eos", 1), 0);
    assert_int_equal(lagan_set_int(r, "forced_bos", -1), 0);
    assert_int_equal(lagan_set_int(r, "forced_eos", -1), 0);
    assert_int_equal(lagan_set_int(r, "logprobs", g->vocab), 0);
    if (!how.may_reuse) assert_int_equal(lagan_set_int(r, "prompt_logprobs", g->vocab), 0);
    assert_int_equal(lagan_submit(c, r, &a->id), 0);
    lagan_request_free(r);
}

static void
take_event(struct golden *g, struct result *a, const struct lagan_event *ev)
{
    struct prompt *p = a->p;

    switch (ev->kind) {
    case LAGAN_EVENT_PROMPT:
        assert_int_equal(a->n, 0);
        assert_int_equal(ev->first, a->n_prompt);
        assert_int_equal(ev->n_top, g->vocab);
        for (uint32_t i = 0; i < ev->n_ids; i++, a->n_prompt++) {
            if (a->n_prompt == 0) continue;
            a->bits = mix(a->bits, &ev->top[(size_t)i * ev->n_top], ev->n_top * sizeof *ev->top);
            if (!p->all || (p->n_decoder && !a->how.prefix)) continue;
            if (g->precision != FP32) continue; /* what is known of transformers is its last row */
            compare(g, p, p->all + (size_t)(a->n_prompt - 1) * g->vocab,
                    &ev->top[(size_t)i * ev->n_top], ev->n_top);
        }
        break;
    case LAGAN_EVENT_TOKENS:
        assert_int_equal(ev->first, a->n);
        assert_true(a->n + ev->n_ids <= N_NEW);
        assert_int_equal(ev->n_top, g->vocab);
        for (uint32_t i = 0; i < ev->n_ids; i++, a->n++) {
            a->ids[a->n] = ev->ids[i];
            a->bits = mix(a->bits, &ev->logprob[i], 4);
            a->bits = mix(a->bits, &ev->top[(size_t)i * ev->n_top], ev->n_top * sizeof *ev->top);
            a->output_bits = mix(a->output_bits, &ev->top[(size_t)i * ev->n_top],
                                 ev->n_top * sizeof *ev->top);
            if (a->n == 0 && (a->how.prefix || !p->n_decoder))
                compare(g, p, g->precision == KV_FP8 && p->last_fp8 ? p->last_fp8 : p->last,
                        &ev->top[(size_t)i * ev->n_top], ev->n_top);
        }
        break;
    case LAGAN_EVENT_OUTPUT:
        if (!a->how.ends || g->precision == FP32) /* in bf16 it may have gone another way */
            assert_string_equal(ev->reason_name, a->how.ends ? "eos" : "length");
        a->cached = ev->cached;
        a->resumed = ev->resumed;
        break;
    case LAGAN_EVENT_DONE:
        a->over = true;
        break;
    default:
        fail_msg("%s: %s", ev->reason_name ? ev->reason_name : "?",
                 ev->message ? ev->message : "?");
    }
}

/* A token may differ only where an error below the allowed one could have changed the order; the
 * texts after it differ. With KV in fp8 no token is checked: the margins are those of exact KV. */
static void
check_greedy(const struct golden *g, const struct prompt *p, const int32_t *ids, uint32_t n)
{
    double least = g->precision == FP32 ? 1e-3 : 2 * allowed(g, p) * largest(p->last, g->vocab);

    if (g->precision == KV_FP8) return;
    for (uint32_t k = 0; k < n; k++) {
        if (g->precision == FP32 && p->margin[k] < least) return;
        if (ids[k] == p->greedy[k]) continue;
        if (p->margin[k] < least) return;
        fail_msg("%s: prompt %d: token %u is %d and not %d, whose margin is %.3g", g->way,
                 (int)(p - g->p), k, ids[k], p->greedy[k], p->margin[k]);
    }
}

static void
same_bits(const struct golden *g, uint64_t *first, uint64_t bits, const struct prompt *p,
          uint32_t n)
{
    if (!*first) *first = bits;
    if (*first != bits)
        fail_msg("%s: prompt %d, %u at once: other bits than the first time", g->way,
                 (int)(p - g->p), n);
}

static void
check_output(struct golden *g, const struct result *a, uint32_t n)
{
    struct prompt *p = a->p;
    uint32_t prompt = a->how.prefix ? p->n_decoder : p->n_decoder ? 1 : p->n_ids;

    assert_int_equal(a->n_prompt, a->how.may_reuse ? 0 : prompt);
    assert_in_range(a->cached, 0, a->how.may_reuse ? prompt - 1 : 0);
    if (!a->how.prefix) check_greedy(g, p, a->ids, a->n);
    if (a->how.ends && g->precision != FP32) return;
    assert_int_equal(a->n, a->how.ends ? p->n_ended : N_NEW);
    if (!g->same_bits || a->how.ends) return;
    same_bits(g, &p->output_bits[g->precision][a->how.prefix], a->output_bits, p, n);
    if (!a->how.may_reuse) same_bits(g, &p->bits[g->precision][a->how.prefix], a->bits, p, n);
}

/* Reads until all requests have ended. victim: killed after half of the tokens; 0: no kill. */
static void
collect(struct lagan *c, struct golden *g, struct result *a, uint32_t n, pid_t victim)
{
    uint32_t over = 0, tokens = 0;

    while (over < n) {
        struct lagan_event ev = { .size = sizeof ev };
        uint32_t i = 0;
        int r = lagan_next(c, &ev, 30000);

        if (r <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
        while (i < n && a[i].id != ev.id) i++;
        assert_true(i < n);
        assert_false(a[i].over);
        take_event(g, &a[i], &ev);
        over += a[i].over;
        if (ev.kind == LAGAN_EVENT_TOKENS) tokens += (uint32_t)ev.n_ids;
        if (!victim || tokens < n * N_NEW / 2) continue;
        kill(victim, SIGKILL);
        victim = 0;
    }
    for (uint32_t i = 0; i < n; i++) check_output(g, &a[i], n);
}

static void
ask_alone(struct lagan *c, struct golden *g, struct prompt *p, struct asked how, struct result *a)
{
    ask(c, g, p, how, a);
    collect(c, g, a, 1, 0);
}

/* Runs every prompt several times; prompts of encoder-decoders alternate with and without their
 * prefix. */
static void
ask_many(struct lagan *c, struct golden *g, uint32_t at_once, bool may_reuse, struct result *a,
         pid_t victim)
{
    for (uint32_t i = 0; i < at_once; i++) {
        struct prompt *p = &g->p[i % g->n];

        ask(c, g, p, (struct asked){ p->n_decoder && i / g->n % 2, may_reuse, false }, &a[i]);
    }
    collect(c, g, a, at_once, victim);
}

/* Runs every prompt alone, then at_once of them together. */
static void
ask_all(struct lagan *c, struct golden *g, uint32_t at_once)
{
    struct result a[MOST_AT_ONCE];

    for (uint32_t i = 0; i < g->n; i++) {
        struct prompt *p = &g->p[i];

        ask_alone(c, g, p, (struct asked){ 0 }, a);
        if (p->n_decoder) ask_alone(c, g, p, (struct asked){ .prefix = true }, a);
        if (p->n_ended) ask_alone(c, g, p, (struct asked){ .ends = true }, a);
    }
    ask_many(c, g, at_once, false, a, 0);
}

/* Runs prompts whose KV is cached, alone and together: the outputs are equal to the bit. */
static void
ask_again(struct lagan *c, struct golden *g, uint32_t at_once)
{
    struct result a[MOST_AT_ONCE];
    uint32_t cached = 0;

    for (uint32_t i = 0; i < g->n; i++)
        for (int prefix = 0; prefix <= (g->p[i].n_decoder > 0); prefix++) {
            ask_alone(c, g, &g->p[i], (struct asked){ prefix, true, false }, a);
            cached += a[0].cached;
        }
    ask_many(c, g, at_once, true, a, 0);
    assert_true(cached > 0);
}

/* If all outputs end before the kill, the next worker is killed. */
static void
ask_and_kill(struct lagan *c, struct golden *g, const struct serve *s, uint32_t at_once)
{
    uint32_t resumed = 0;

    for (int tries = 0; resumed == 0; tries++) {
        struct result a[MOST_AT_ONCE];

        assert_true(tries < 20);
        ask_many(c, g, at_once, true, a, serve_worker(s));
        for (uint32_t i = 0; i < at_once; i++) resumed += a[i].resumed;
    }
}

static void
serve_and_ask(struct golden *g, const char *model, const char *const *set, uint32_t at_once,
              bool killed)
{
    struct serve s;
    struct lagan *c;
    char dir[128];

    snprintf(dir, sizeof dir, "tests/data/golden/%s", model);
    snprintf(g->way, sizeof g->way, "%s %s %s %s %s %s", set[0], set[1], set[2], set[3], set[4],
             set[5]);
    if (!serve_start(&s, dir, set)) fail_msg("no server with %s", g->way);
    assert_int_equal(lagan_open(&c, s.endpoint, 5000), 0);
    ask_all(c, g, at_once);
    if (g->reuse) ask_again(c, g, at_once);
    if (killed) ask_and_kill(c, g, &s, at_once);
    lagan_close(c);
    serve_stop(&s);
}

/* Returns the setting as this model can have it: only an encoder can have a lane of its own. */
static const char *
suited(const struct golden *g, const char *set)
{
    return g->p[0].n_decoder || strcmp(set, "split.encoder=own") ? set : "split.encoder=shared";
}

static void
on_the_cpu(struct golden *g, const char *model)
{
    static const char *const blocks[] = { "kv.tokens_per_block=4", "kv.tokens_per_block=16",
                                          "kv.tokens_per_block=64" };
    static const char *const budget[] = { "max_num_batched_tokens=5",
                                          "max_num_batched_tokens=512" };
    /* Two lanes on two sets of threads, in two partitions and under the partition controller;
     * encoder inputs in their own lane. */
    static const char *const lanes[][3] = {
        { "split.mode=off", "split.encoder=shared", "threads=2" },
        { "split.mode=off", "split.encoder=own", "threads=2" },
        { "split.mode=fixed", "split.context_sm=1", "threads=3" },
        { "split.mode=fixed", "split.context_sm=0.5", "threads=2" },
        { "split.mode=auto", "split.itl_target=1ms", "threads=2" },
        { "split.mode=fixed", "split.encoder=own", "threads=2" },
    };
    /* All blocks, and all pairs of budget, one lane or two, and reuse. */
    static const bool killed[12] = { [0] = true, [4] = true, [7] = true, [11] = true };

    g->same_bits = true;
    for (size_t k = 0; k < 12; k++) {
        const char *const *way = lanes[(k + k / 6) % 6];
        const char *set[10] = { blocks[k % 3],
                                budget[k / 3 % 2],
                                way[0],
                                suited(g, way[1]),
                                k % 2 ? "kv.reuse=true" : "kv.reuse=false",
                                "dtype=fp32",
                                "max_num_seqs=16",
                                "kv.memory=64MiB",
                                way[2],
                                NULL };

        g->reuse = k % 2;
        serve_and_ask(g, model, set, AT_ONCE, killed[k]);
    }
}

static void
on_a_gpu(struct golden *g, const char *model)
{
    static const char
        *const fast = "numerics=fast",
               *const invariant = "numerics=invariant", *const graphs = "graphs.memory=256MiB",
               *const plain = "graphs.memory=0", *const whole = "max_num_batched_tokens=8192",
               *const chunks = "max_num_batched_tokens=100",
               *const small = "max_num_batched_tokens=64", *const one = "split.encoder=shared",
               *const two = "split.encoder=own", *const off = "split.mode=off",
               *const fixed = "split.mode=fixed", *const changing = "split.mode=auto";
    static const struct {
        enum precision precision;
        const char *set[5];
    } way[] = {
        { FP32, { fast, graphs, whole, one, off } },
        { FP32, { fast, plain, chunks, one, fixed } },
        { FP32, { fast, graphs, chunks, two, changing } },
        { FP32, { invariant, graphs, whole, one, off } },
        { FP32, { invariant, plain, small, two, fixed } },
        { FP32, { invariant, graphs, chunks, one, changing } },
        { BF16, { fast, graphs, whole, one, off } },
        { BF16, { fast, plain, small, two, changing } },
        { BF16, { invariant, plain, whole, one, off } },
        { BF16, { invariant, graphs, small, one, fixed } },
        { BF16, { invariant, graphs, chunks, two, changing } },
        { KV_FP8, { invariant, plain, whole, one, off } },
        { KV_FP8, { invariant, graphs, chunks, two, fixed } },
    };

    for (size_t k = 0; k < ARRAY_LEN(way); k++) {
        const char *const *w = way[k].set;
        const char *const *precise = precision_set[way[k].precision];
        const char *set[] = { w[0],
                              w[1],
                              w[2],
                              suited(g, w[3]),
                              w[4],
                              precise[0],
                              precise[1],
                              "split.itl_target=1ms",
                              "max_num_seqs=64",
                              "kv.memory=256MiB",
                              NULL };

        g->precision = way[k].precision;
        g->same_bits = w[0] == invariant;
        serve_and_ask(g, model, set, MOST_AT_ONCE, false);
    }
}

static void
golden_run(const char *model)
{
    struct golden g;

    golden_read(&g, model);
    if (serve_on_gpu())
        on_a_gpu(&g, model);
    else
        on_the_cpu(&g, model);
    print_message("%s: largest error %.2g of the largest logit", model, 1e-4 * g.worst[FP32]);
    if (serve_on_gpu())
        print_message("; bf16: %.2f of what it may be, KV in fp8: %.2f", g.worst[BF16],
                      g.worst[KV_FP8]);
    print_message("\n");
    assert_true(g.worst[FP32] <= 1 && g.worst[BF16] <= 1 && g.worst[KV_FP8] <= 1);
    golden_free(&g);
}

#define GOLDEN(model) \
    static void model##_as_transformers_in_every_setting(void **state) \
    { \
        (void)state; \
        golden_run(#model); \
    }
GOLDEN(llama2)
GOLDEN(llama3)
GOLDEN(llama_longrope)
GOLDEN(mistral)
GOLDEN(qwen2)
GOLDEN(qwen3)
GOLDEN(gemma3)
GOLDEN(gemma3n)
GOLDEN(gemma3n_streams)
GOLDEN(gemma4_dense)
GOLDEN(gemma4_e)
GOLDEN(gemma4_moe)
GOLDEN(gemma4_big)
GOLDEN(gpt_oss)
GOLDEN(gpt_oss_mxfp4)
GOLDEN(bamba)
GOLDEN(granite_hybrid)
GOLDEN(nemotron_h)
GOLDEN(t5_relu)
GOLDEN(t5_gated)
GOLDEN(bart)
GOLDEN(mbart)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama2_as_transformers_in_every_setting),
        cmocka_unit_test(llama3_as_transformers_in_every_setting),
        cmocka_unit_test(llama_longrope_as_transformers_in_every_setting),
        cmocka_unit_test(mistral_as_transformers_in_every_setting),
        cmocka_unit_test(qwen2_as_transformers_in_every_setting),
        cmocka_unit_test(qwen3_as_transformers_in_every_setting),
        cmocka_unit_test(gemma3_as_transformers_in_every_setting),
        cmocka_unit_test(gemma3n_as_transformers_in_every_setting),
        cmocka_unit_test(gemma3n_streams_as_transformers_in_every_setting),
        cmocka_unit_test(gemma4_dense_as_transformers_in_every_setting),
        cmocka_unit_test(gemma4_e_as_transformers_in_every_setting),
        cmocka_unit_test(gemma4_moe_as_transformers_in_every_setting),
        cmocka_unit_test(gemma4_big_as_transformers_in_every_setting),
        cmocka_unit_test(gpt_oss_as_transformers_in_every_setting),
        cmocka_unit_test(gpt_oss_mxfp4_as_transformers_in_every_setting),
        cmocka_unit_test(bamba_as_transformers_in_every_setting),
        cmocka_unit_test(granite_hybrid_as_transformers_in_every_setting),
        cmocka_unit_test(nemotron_h_as_transformers_in_every_setting),
        cmocka_unit_test(t5_relu_as_transformers_in_every_setting),
        cmocka_unit_test(t5_gated_as_transformers_in_every_setting),
        cmocka_unit_test(bart_as_transformers_in_every_setting),
        cmocka_unit_test(mbart_as_transformers_in_every_setting),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
