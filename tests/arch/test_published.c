/* test_published.c - KV bytes per token and weight bytes of published models, from config.json
 * (bench/configs).
 *
 * Expected KV bytes are computed from the shapes: bf16, all layers of a group. Parameters are
 * counted by transformers.
 */
#include "tests/test.h"
#include "worker/arch/registry.h"
#include "worker/model/config.h"
#include "worker/model/weights_plan.h"

#include <stdio.h>

static const struct size {
    const char *name;
    uint32_t full, window; /* KV bytes per token of full layers; of window layers */
    double gigabytes;      /* of published weights; 0: unknown */
    uint32_t cross;        /* per encoder token */
    uint64_t parameters;   /* 0: unknown */
    uint32_t states;       /* layers with recurrent state */
} sizes[] = {
    { "llama-2-13b", 819200, 0, 26.03, 0, 13015864320 },
    /* The same with positions / 4. */
    { "llama-2-13b-16k", 819200, 0, 26.03, 0, 13015864320 },
    { "llama-2-70b", 327680, 0, 0, 0, 68976648192 },
    { "llama-3.1-8b", 131072, 0, 16.06 },
    { "llama-3.1-70b", 327680, 0, 0, 0, 70553706496 },
    { "mistral-7b-v0.1", 0, 131072, 0, 0, 7241732096 },
    { "qwen2.5-7b", 57344, 0, 0, 0, 7615616512 },
    { "qwen3-8b", 147456, 0, 0, 0, 8190735360 },
    { "gemma-3-4b", 20480, 118784, 0, 0, 3880263168 },
    { "gemma-3-12b", 65536, 327680, 0, 0, 11766034176 },
    { "gemma-3-27b", 81920, 425984, 0 },
    { "gemma-3n-e2b", 8192, 32768, 0 },
    { "gemma-3n-e4b", 8192, 32768, 0 },
    { "gemma-4-e2b", 6144, 12288, 0 },
    { "gemma-4-e4b", 16384, 40960, 0 },
    { "gemma-4-26b-a4b", 20480, 204800, 0 },
    { "gemma-4-31b", 81920, 819200, 0 },
    { "gpt-oss-20b", 24576, 24576, 13.76 },
    { "gpt-oss-120b", 36864, 36864, 65.25 },
    { "t5-small", 12288, 0, 0, 12288, 60506624 },
    { "t5-base", 36864, 0, 0, 36864, 222903552 },
    { "t5-large", 98304, 0, 0, 98304, 737668096 },
    { "t5-3b", 393216, 0, 0, 393216, 2851598336 },
    { "flan-t5-xl", 196608, 0, 0, 196608, 2849757184 },
    { "bart-large-cnn", 49152, 0, 0, 49152, 406290432 },
    { "mbart-large-50", 49152, 0, 0, 49152, 610879488 },
    { "nemotron-h-8b", 16384, 0, 0, 0, 8100852736, 24 },
    { "bamba-9b", 12288, 0, 0, 0, 9780235392, 29 },
    { "granite-4.0-h-small", 16384, 0, 0, 0, 32207337984, 36 },
};

static void
configure(struct model *m, const char *name)
{
    json_t *whole, *config;
    struct err e = { 0 };
    char dir[400];
    const char *type;

    snprintf(dir, sizeof dir, "%s/bench/configs/%s", getenv("srcdir"), name);
    assert_int_equal(config_read(&whole, dir, "config.json", &e), 0);
    assert_int_equal(config_text(&config, whole, &e), 0);
    assert_int_equal(cfg_str(config, "model_type", NULL, &type, &e), 0);
    for (const struct arch *const *a = arch_families; *a && !m->arch; a++)
        for (const char *const *t = (*a)->hf_types; *t; t++)
            if (strcmp(*t, type) == 0) m->arch = *a;
    assert_non_null(m->arch);
    m->cfg = calloc(1, m->arch->cfg_bytes);
    if (quant_configure(m, config, &e) < 0) fail_msg("%s: %s", name, e.text);
    m->whole = m->shape;
    m->top = calloc(1, m->arch->top_bytes);
    m->layer = calloc(m->shape.n_layers, m->arch->layer_bytes);
    m->encoder = calloc(m->shape.n_encoder_layers + 1, m->arch->encoder_bytes + 1);
    json_decref(config);
    json_decref(whole);
}

static void
drop(struct model *m)
{
    free(m->top);
    free(m->layer);
    free(m->encoder);
    free(m->cfg);
    free(m);
}

static void
kv_bytes_per_token_of_published_models_are_correct(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct model *m = calloc(1, sizeof *m);
        struct kv_config c = { 0 };
        struct err e = { 0 };
        uint64_t full = 0, window = 0, cross = 0;
        uint32_t states = 0;

        configure(m, sizes[i].name);
        assert_int_equal(model_groups(m, DT_BF16, 16, &c, &e), 0);
        for (uint32_t g = 0; g < c.n_groups; g++) {
            uint64_t bytes = (uint64_t)c.group[g].slice_bytes * c.group[g].n_layers *
                             c.group[g].n_parts / c.tokens_per_block;

            if (c.group[g].kind == KV_STATE) {
                states += c.group[g].n_layers;
                continue;
            }
            *(c.group[g].kind == KV_CROSS ? &cross : c.group[g].window ? &window : &full) += bytes;
        }
        if (full != sizes[i].full || window != sizes[i].window || cross != sizes[i].cross ||
            states != sizes[i].states)
            fail_msg("%s: %llu, %llu and %llu bytes a token", sizes[i].name,
                     (unsigned long long)full, (unsigned long long)window,
                     (unsigned long long)cross);
        drop(m);
    }
}

static void
planned_weight_sizes_of_published_models_are_correct(void **state)
{
    struct gpu_options o = { .device = "cpu" };
    struct err e = { 0 };
    struct gpu *gpu;

    (void)state;
    assert_int_equal(gpu_open(&gpu, &o, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct model_source src = { .dtype = DT_COUNT, .random = true, .weights_fd = -1 };
        struct weights_from from = { .src = &src, .stored = DT_BF16 };
        struct model *m = calloc(1, sizeof *m);
        struct weights_plan p = { .m = m, .from = &from };
        uint64_t parameters = 0;
        double gigabytes;

        configure(m, sizes[i].name);
        m->gpu = gpu;
        m->op = gpu_ops(gpu);
        if (weights_plan_make(&p, &e) < 0) fail_msg("%s: %s", sizes[i].name, e.text);
        gigabytes = (double)m->weight_bytes / 1e9;
        print_message("%s: %.2f GB of weights\n", sizes[i].name, gigabytes);
        /* Within 1 %, because norms and biases are bf16 in the files and fp32 here. */
        if (sizes[i].gigabytes > 0)
            assert_true(gigabytes > sizes[i].gigabytes * 0.99 &&
                        gigabytes < sizes[i].gigabytes * 1.01);
        for (uint32_t k = 0; k < p.n_fields; k++)
            parameters += (uint64_t)p.field[k].rows * p.field[k].cols;
        if (sizes[i].parameters && parameters != sizes[i].parameters)
            fail_msg("%s: %llu parameters", sizes[i].name, (unsigned long long)parameters);
        weights_plan_done(&p);
        drop(m);
    }
    gpu_close(gpu);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_bytes_per_token_of_published_models_are_correct),
        cmocka_unit_test(planned_weight_sizes_of_published_models_are_correct),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
