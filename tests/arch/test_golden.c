/* test_golden.c - each family against transformers, from the checkpoint's files to tokens.
 *
 * Fixtures: tests/data/golden (transformers 5.17, float32; see its README.md). Log-probabilities
 * over the whole vocabulary are compared for each position: max |a - b| / max |logit| <= 1e-4.
 * Greedy tokens must be equal up to the first step with a margin below 1e-3. Blocks, chunks, batch,
 * lanes and instruction set must not change a bit.
 */
#include "tests/arch/golden.h"
#include "tests/exec/exec_harness.h"
#include "tests/test.h"

#include <math.h>

static const double TOLERANCE = 1e-4, MARGIN = 1e-3;

struct way {
    const char *isa;
    uint32_t tokens_per_block, max_tokens, n_lanes, enc_layers;
    bool alone, drop, twice, sliced;
    enum dtype kv;
};
static const struct way PLAIN = { "auto", 16, 512, 1, 0, .drop = true };

/* Results of all prompts: tokens and log-probabilities after each position. */
struct taken {
    uint32_t n_tokens[GOLDEN_PROMPTS];
    token_id token[GOLDEN_PROMPTS][HARNESS_LEN];
    float *lp[GOLDEN_PROMPTS]; /* [n_tokens][vocab] */
};

static struct harness h;

/* The family, except that forward() queues one layer at a time. */
static const struct arch *whole;

static int
layer_by_layer(const struct model *m, struct step *s, uint32_t first, uint32_t n)
{
    for (uint32_t l = first; l < first + n; l++) TRY(whole->forward(m, s, l, 1));
    return 0;
}

static void
start_slot(const struct golden *g, uint32_t i, bool prefilled)
{
    const struct golden_prompt *p = &g->prompt[i];
    struct harness_slot *s = &h.slot[i];
    uint32_t n = p->decoder ? prefilled ? p->n_decoder : 1 : p->n_input;

    memset(s, 0, sizeof *s);
    if (p->decoder) {
        s->source = p->input;
        s->n_source = p->n_input;
    }
    memcpy(s->token, p->decoder ? p->decoder : p->input, n * sizeof *s->token);
    s->n_prompt = n;
    s->n_new = prefilled ? 1 : GOLDEN_NEW;
    s->all = true;
    s->how = (struct sampling){ .top_p = 1,
                                .repetition_penalty = 1,
                                .logprobs = g->vocab,
                                .prompt_logprobs = g->vocab,
                                .want_logprobs = true,
                                .forced_bos = -1,
                                .forced_eos = -1 };
    s->lp = calloc((size_t)(n + s->n_new) * g->vocab, sizeof *s->lp);
    s->active = true;
}

static void
take(struct taken *t, uint32_t i)
{
    struct harness_slot *s = &h.slot[i];
    uint32_t vocab = h.m->shape.vocab;

    t->n_tokens[i] = s->n_prompt + s->n_new - 1;
    t->lp[i] = s->lp;
    memcpy(t->token[i], s->token, sizeof s->token);
    /* the log-probability of a token is reported equally for prompt and generated tokens */
    for (uint32_t k = 1; k <= t->n_tokens[i]; k++)
        assert_true(s->logprob[k] == s->lp[(size_t)(k - 1) * vocab + (uint32_t)s->token[k]]);
    s->active = false;
}

static void
segment(struct taken *t, const struct golden *g, const char *dir, struct way w, bool prefilled)
{
    struct harness_options o = {
        .dir = dir,
        .isa = w.isa,
        .tokens_per_block = w.tokens_per_block,
        .max_tokens = w.max_tokens,
        .n_lanes = w.n_lanes,
        .enc_layers = w.enc_layers,
        .drop = w.drop,
        .twice = w.twice,
        .kv = w.kv,
    };
    struct arch sliced;

    memset(t, 0, sizeof *t);
    harness_open(&h, &o);
    whole = h.m->arch;
    sliced = *whole;
    sliced.forward = layer_by_layer;
    if (w.sliced) h.m->arch = &sliced;
    assert_int_equal(h.m->shape.vocab, g->vocab);
    for (uint32_t i = 0; i < g->n; i++) {
        start_slot(g, i, prefilled);
        if (!w.alone) continue;
        harness_run(&h);
        take(t, i);
    }
    if (!w.alone) {
        harness_run(&h);
        for (uint32_t i = 0; i < g->n; i++) take(t, i);
    }
    harness_close(&h);
}

static void
drop(struct taken *t)
{
    for (unsigned i = 0; i < GOLDEN_PROMPTS; i++) free(t->lp[i]);
}

/* max |ours - log_softmax(logits)| / max |logit| of one position. */
static double
row_error(const float *lp, const float *logits, uint32_t vocab)
{
    double sum = 0, most = 0, worst = 0;

    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++) {
        double d = fabs((double)lp[i] - ((double)logits[i] - log(sum)));

        most = fmax(most, fabs((double)logits[i]));
        if (!(d <= worst)) worst = d; /* NaN sticks */
    }
    return worst / most;
}

static void
check_tokens(const struct golden_prompt *p, const token_id *token, const float *lp,
             uint32_t n_prompt, uint32_t vocab, uint32_t index)
{
    for (uint32_t k = 0; k < GOLDEN_NEW; k++) {
        token_id got = token[n_prompt + k];

        if (got != p->greedy[k] && p->margin[k] < MARGIN) return;
        if (got != p->greedy[k])
            fail_msg("prompt %u, token %u is %d, want %d (margin %g)", index, k, got, p->greedy[k],
                     p->margin[k]);
        assert_true(fabs((double)lp[(size_t)(n_prompt - 1 + k) * vocab + (uint32_t)got] -
                         p->logprob[k]) < 1e-3);
    }
}

static void
check_rows(const struct golden_prompt *p, const float *lp, uint32_t vocab, uint32_t index,
           double *worst)
{
    uint32_t n = p->decoder ? p->n_decoder : p->n_input;
    double r = row_error(lp + (size_t)(n - 1) * vocab, p->last, vocab);

    for (uint32_t k = 0; p->all && k < n; k++)
        r = fmax(r, row_error(lp + (size_t)k * vocab, p->all + (size_t)k * vocab, vocab));
    if (!(r <= TOLERANCE)) fail_msg("prompt %u: log-probabilities are off by %.2g", index, r);
    *worst = fmax(*worst, r);
}

static void
check_equals_transformers(const char *name)
{
    struct golden g;
    struct taken t;
    double worst = 0;

    golden_open(&g, name);
    segment(&t, &g, g.dir, PLAIN, false);
    for (uint32_t i = 0; i < g.n; i++) {
        const struct golden_prompt *p = &g.prompt[i];

        check_tokens(p, t.token[i], t.lp[i], p->decoder ? 1 : p->n_input, g.vocab, i);
        check_rows(p, t.lp[i], g.vocab, i, &worst);
    }
    print_message("%s: largest relative error %.2g\n", name, worst);
    drop(&t);
    golden_close(&g);
}

static void
assert_same_bits(const struct golden *g, const struct taken *a, const struct taken *b)
{
    for (uint32_t i = 0; i < g->n; i++) {
        uint32_t n = MIN(a->n_tokens[i], b->n_tokens[i]);

        for (uint32_t k = 0; k < n; k++)
            if (memcmp(a->lp[i] + (size_t)k * g->vocab, b->lp[i] + (size_t)k * g->vocab,
                       g->vocab * sizeof(float)))
                fail_msg("prompt %u: other log-probabilities after position %u", i, k);
        assert_memory_equal(a->token[i], b->token[i], (n + 1) * sizeof(token_id));
    }
}

static void
check_batch_invariant(const char *name)
{
    /* Pairwise combinations of the settings; the slow scalar reference is in two of them. */
    static const struct way other[] = {
        { "auto", 4, 5, 2, 1, .twice = true, .drop = true },
        { "auto", 64, 512, 2, 0, .alone = true },
        { "auto", 16, 512, 1, 0, .sliced = true },
        { "auto", 16, 5, 1, 2, .alone = true, .twice = true },
        { "scalar", 64, 5, 1, 0, .drop = true },
        { "scalar", 4, 512, 2, 1, .alone = true, .drop = true, .twice = true },
    };
    struct golden g;
    struct taken t, u;

    golden_open(&g, name);
    segment(&t, &g, g.dir, PLAIN, false);
    for (unsigned i = 0; i < ARRAY_LEN(other); i++) {
        segment(&u, &g, g.dir, other[i], false);
        assert_same_bits(&g, &t, &u);
        drop(&u);
    }
    if (g.prompt[0].decoder) { /* the decoder's tokens given instead of generated */
        segment(&u, &g, g.dir, PLAIN, true);
        assert_same_bits(&g, &t, &u);
        drop(&u);
    }
    drop(&t);
    golden_close(&g);
}

static void
check_older_dialect(const char *name, const char *config)
{
    struct golden g;
    struct taken t, u;
    char dir[64];

    golden_open(&g, name);
    golden_with_config(&g, config, dir);
    segment(&t, &g, g.dir, PLAIN, false);
    segment(&u, &g, dir, PLAIN, false);
    assert_same_bits(&g, &t, &u);
    drop(&t);
    drop(&u);
    golden_remove(dir);
    golden_close(&g);
}

/* The expected logits have rounded K and V. Where the last bits of a K or V differ, its rounded
 * value may differ by 1/8, because fp8 has 3 fraction bits: a larger error is allowed. */
static void
fp8_kv_is_accurate_and_batch_invariant(void **state)
{
    static const struct way way[] = {
        { "auto", 16, 512, 1, 0, .drop = true, .kv = DT_E4M3 },
        { "auto", 4, 5, 2, 0, .drop = true, .kv = DT_E4M3, .twice = true },
        { "scalar", 64, 7, 1, 0, .alone = true, .kv = DT_E4M3 },
    };
    static const char *const name[] = {
        "llama2",         "llama3",     "mistral",      "qwen2",      "qwen3",
        "gemma3",         "gemma3n",    "gemma4_dense", "gemma4_e",   "bamba",
        "granite_hybrid", "nemotron_h", "t5_relu",      "t5_gated",   "bart",
        "mbart",          "gpt_oss",    "gemma4_moe",   "gemma4_big",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(name); i++) {
        struct taken t, u;
        struct golden g;
        double worst = 0;

        golden_open(&g, name[i]);
        segment(&t, &g, g.dir, way[0], g.prompt[0].decoder != NULL);
        for (uint32_t p = 0; p < g.n; p++) {
            uint32_t n = g.prompt[p].decoder ? g.prompt[p].n_decoder : g.prompt[p].n_input;

            worst = fmax(worst, row_error(t.lp[p] + (size_t)(n - 1) * g.vocab, g.prompt[p].last_fp8,
                                          g.vocab));
        }
        print_message("%s: %.2g of the largest logit\n", name[i], worst);
        assert_true(worst < 0.02); /* K and V off by a factor of 1.06: above 0.09 */
        for (size_t w = 1; w < ARRAY_LEN(way); w++) {
            segment(&u, &g, g.dir, way[w], g.prompt[0].decoder != NULL);
            assert_same_bits(&g, &t, &u);
            drop(&u);
        }
        drop(&t);
        golden_close(&g);
    }
}

#define MODEL(name) \
    static void name##_equals_transformers(void **state) \
    { \
        (void)state; \
        check_equals_transformers(#name); \
    } \
    static void name##_is_batch_invariant(void **state) \
    { \
        (void)state; \
        check_batch_invariant(#name); \
    }
#define DIALECT(name, config) \
    static void name##_is_equal_in_the_older_dialect(void **state) \
    { \
        (void)state; \
        check_older_dialect(#name, config); \
    }
MODEL(llama2)
MODEL(llama3)
MODEL(llama_longrope)
MODEL(mistral)
MODEL(qwen2)
MODEL(qwen3)
MODEL(gemma3)
MODEL(gemma3n)
MODEL(gemma3n_streams)
MODEL(gemma4_dense)
MODEL(gemma4_e)
MODEL(gemma4_moe)
MODEL(gemma4_big)
MODEL(gpt_oss)
MODEL(gpt_oss_mxfp4)
MODEL(bamba)
MODEL(granite_hybrid)
MODEL(nemotron_h)
MODEL(t5_relu)
MODEL(t5_gated)
MODEL(bart)
MODEL(mbart)
DIALECT(llama2, "config_legacy.json")
DIALECT(llama3, "config_legacy.json")
DIALECT(mistral, "config_legacy.json")
DIALECT(qwen2, "config_legacy.json")
DIALECT(qwen3, "config_legacy.json")
DIALECT(gemma3, "config_legacy.json")
DIALECT(gemma3n, "config_legacy.json")
DIALECT(gemma4_e, "config_legacy.json")
DIALECT(gemma4_moe, "config_legacy.json")
DIALECT(gpt_oss, "config_legacy.json")
DIALECT(t5_gated, "config_v5.json")

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama2_equals_transformers),
        cmocka_unit_test(llama3_equals_transformers),
        cmocka_unit_test(mistral_equals_transformers),
        cmocka_unit_test(qwen2_equals_transformers),
        cmocka_unit_test(qwen3_equals_transformers),
        cmocka_unit_test(gemma3_equals_transformers),
        cmocka_unit_test(gemma3n_equals_transformers),
        cmocka_unit_test(gemma3n_streams_equals_transformers),
        cmocka_unit_test(llama_longrope_equals_transformers),
        cmocka_unit_test(gemma4_dense_equals_transformers),
        cmocka_unit_test(gemma4_e_equals_transformers),
        cmocka_unit_test(gemma4_moe_equals_transformers),
        cmocka_unit_test(gemma4_big_equals_transformers),
        cmocka_unit_test(gpt_oss_equals_transformers),
        cmocka_unit_test(gpt_oss_mxfp4_equals_transformers),
        cmocka_unit_test(bamba_equals_transformers),
        cmocka_unit_test(granite_hybrid_equals_transformers),
        cmocka_unit_test(nemotron_h_equals_transformers),
        cmocka_unit_test(t5_relu_equals_transformers),
        cmocka_unit_test(t5_gated_equals_transformers),
        cmocka_unit_test(bart_equals_transformers),
        cmocka_unit_test(mbart_equals_transformers),
        cmocka_unit_test(fp8_kv_is_accurate_and_batch_invariant),
        cmocka_unit_test(llama2_is_equal_in_the_older_dialect),
        cmocka_unit_test(llama3_is_equal_in_the_older_dialect),
        cmocka_unit_test(mistral_is_equal_in_the_older_dialect),
        cmocka_unit_test(qwen2_is_equal_in_the_older_dialect),
        cmocka_unit_test(qwen3_is_equal_in_the_older_dialect),
        cmocka_unit_test(gemma3_is_equal_in_the_older_dialect),
        cmocka_unit_test(gemma3n_is_equal_in_the_older_dialect),
        cmocka_unit_test(gemma4_e_is_equal_in_the_older_dialect),
        cmocka_unit_test(gemma4_moe_is_equal_in_the_older_dialect),
        cmocka_unit_test(gpt_oss_is_equal_in_the_older_dialect),
        cmocka_unit_test(t5_gated_is_equal_in_the_older_dialect),
        cmocka_unit_test(llama2_is_batch_invariant),
        cmocka_unit_test(llama3_is_batch_invariant),
        cmocka_unit_test(mistral_is_batch_invariant),
        cmocka_unit_test(qwen2_is_batch_invariant),
        cmocka_unit_test(qwen3_is_batch_invariant),
        cmocka_unit_test(gemma3_is_batch_invariant),
        cmocka_unit_test(gemma3n_is_batch_invariant),
        cmocka_unit_test(gemma3n_streams_is_batch_invariant),
        cmocka_unit_test(llama_longrope_is_batch_invariant),
        cmocka_unit_test(gemma4_dense_is_batch_invariant),
        cmocka_unit_test(gemma4_e_is_batch_invariant),
        cmocka_unit_test(gemma4_moe_is_batch_invariant),
        cmocka_unit_test(gemma4_big_is_batch_invariant),
        cmocka_unit_test(gpt_oss_is_batch_invariant),
        cmocka_unit_test(gpt_oss_mxfp4_is_batch_invariant),
        cmocka_unit_test(bamba_is_batch_invariant),
        cmocka_unit_test(granite_hybrid_is_batch_invariant),
        cmocka_unit_test(nemotron_h_is_batch_invariant),
        cmocka_unit_test(t5_relu_is_batch_invariant),
        cmocka_unit_test(t5_gated_is_batch_invariant),
        cmocka_unit_test(bart_is_batch_invariant),
        cmocka_unit_test(mbart_is_batch_invariant),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
