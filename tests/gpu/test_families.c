/* test_families.c - each family with sizes that no published model has.
 *
 * Draws a config.json of each family and runs it with random weights: on the CPU every instruction
 * set gives the same bits; with --device cuda the GPU gives the CPU's log-probabilities. An op that
 * only knows the published sizes fails here. */
#include "gpu/device.h"
#include "tests/exec/tiny_exec.h"
#include "tests/gpu/fixture.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>

enum { VOCAB = 300, PROMPT = 21, NEW = 3, SLOTS = 2, TRIES = 4 };
/* A part of the largest difference of two log-probabilities, between devices in fp32. */
static const double TOLERANCE = 1e-3;

struct result {
    float lp[SLOTS][(PROMPT + NEW) * VOCAB];
};

static char config[1500];
static bool encoder;

static void PRINTF_LIKE(1, 2) add(const char *format, ...)
{
    size_t n = strlen(config);
    va_list ap;

    va_start(ap, format);
    vsnprintf(config + n, sizeof config - n, format, ap);
    va_end(ap);
}

/* Begins a config with the keys of most families. Returns hidden_size. */
static uint32_t
begin(const char *type, uint32_t hidden)
{
    uint32_t kv = between(1, 3), heads = kv * between(1, 5);

    snprintf(config, sizeof config, "{\"model_type\": \"%s\"", type);
    add(", \"vocab_size\": %d, \"hidden_size\": %u, \"max_position_embeddings\": 512", VOCAB,
        hidden);
    add(", \"num_attention_heads\": %u, \"num_key_value_heads\": %u", heads, kv);
    add(", \"intermediate_size\": %u, \"head_dim\": %u", between(1, 150), 4 * between(1, 40));
    encoder = false;
    return hidden;
}

static void
draw_llama(void)
{
    begin(test_below(2) ? "llama" : "mistral", between(1, 200));
    add(", \"num_hidden_layers\": 2, \"sliding_window\": %s}",
        strstr(config, "mistral") && test_below(2) ? "5" : "null");
}

static void
draw_qwen2(void)
{
    uint32_t heads = between(1, 6);

    snprintf(config, sizeof config, "{\"model_type\": \"qwen2\", \"vocab_size\": %d", VOCAB);
    add(", \"hidden_size\": %u, \"num_attention_heads\": %u, \"num_key_value_heads\": %u",
        heads * 2 * between(1, 40), heads, test_below(2) ? 1 : heads);
    add(", \"intermediate_size\": %u, \"num_hidden_layers\": 3", between(1, 150));
    add(", \"use_sliding_window\": true, \"sliding_window\": 6, \"max_window_layers\": 1}");
    encoder = false;
}

static void
draw_qwen3(void)
{
    begin("qwen3", between(1, 200));
    add(", \"num_hidden_layers\": 2}");
}

static void
draw_gemma3(void)
{
    begin("gemma3_text", between(1, 200));
    add(", \"num_hidden_layers\": 3, \"sliding_window\": 7, \"query_pre_attn_scalar\": %u",
        between(1, 300));
    add(", \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"]}");
}

static void
draw_gemma3n(void)
{
    uint32_t streams = between(2, 8);

    begin("gemma3n_text", between(1, 150));
    add(", \"num_hidden_layers\": 3, \"num_kv_shared_layers\": 1, \"sliding_window\": 7");
    add(", \"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\"]");
    add(", \"altup_num_inputs\": %u, \"altup_active_idx\": %u, \"laurel_rank\": %u", streams,
        test_below(streams), between(1, 40));
    add(", \"hidden_size_per_layer_input\": %u, \"vocab_size_per_layer_input\": %d", between(1, 40),
        VOCAB);
    add(", \"activation_sparsity_pattern\": [0.6, 0, 0]}");
}

static void
draw_gemma4(void)
{
    uint32_t experts = between(1, 40);

    begin("gemma4_text", between(1, 150));
    add(", \"num_hidden_layers\": 2, \"sliding_window\": 7, \"num_kv_shared_layers\": 0");
    add(", \"layer_types\": [\"sliding_attention\", \"full_attention\"]");
    add(", \"global_head_dim\": %u, \"hidden_size_per_layer_input\": %u", 4 * between(1, 90),
        test_below(2) * between(1, 40));
    add(", \"vocab_size_per_layer_input\": %d, \"enable_moe_block\": %s", VOCAB,
        test_below(2) ? "true" : "false");
    add(", \"num_experts\": %u, \"top_k_experts\": %u, \"moe_intermediate_size\": %u}", experts,
        between(1, MIN(experts, 32u)), between(1, 60));
}

static void
draw_gpt_oss(void)
{
    uint32_t experts = between(1, 40);

    begin("gpt_oss", between(1, 150));
    add(", \"num_hidden_layers\": 2, \"sliding_window\": 7, \"num_local_experts\": %u", experts);
    add(", \"num_experts_per_tok\": %u}", between(1, MIN(experts, 32u)));
}

/* Keys of the Mamba-2 layers of Bamba and Granite. */
static void
add_mamba(uint32_t hidden, uint32_t heads)
{
    uint32_t groups = heads % 2 == 0 && test_below(2) ? 2 : 1;

    add(", \"mamba_expand\": 2, \"mamba_n_heads\": %u, \"mamba_d_head\": %u", heads,
        2 * hidden / heads);
    add(", \"mamba_n_groups\": %u, \"mamba_d_state\": %u, \"mamba_d_conv\": %u", groups,
        between(1, 300), between(2, 8));
}

static void
draw_bamba(void)
{
    uint32_t heads = between(1, 6), hidden = begin("bamba", heads * between(1, 60));

    add(", \"num_hidden_layers\": 2, \"attn_layer_indices\": [1]");
    add_mamba(hidden, heads);
    add("}");
}

static void
draw_granite(void)
{
    uint32_t heads = between(1, 6), hidden = begin("granitemoehybrid", heads * between(1, 60));
    uint32_t experts = test_below(20);

    add(", \"num_hidden_layers\": 2, \"layer_types\": [\"mamba\", \"attention\"]");
    add(", \"shared_intermediate_size\": %u, \"num_local_experts\": %u", between(1, 60), experts);
    add(", \"num_experts_per_tok\": %u", experts ? between(1, experts) : 0);
    add_mamba(hidden, heads);
    add("}");
}

static void
draw_nemotron(void)
{
    uint32_t groups = between(1, 3), experts = between(1, 30);

    begin("nemotron_h", between(1, 150));
    add(", \"num_hidden_layers\": 4, \"hybrid_override_pattern\": \"M*-E\"");
    add(", \"mamba_num_heads\": %u, \"mamba_head_dim\": %u, \"n_groups\": %u",
        groups * between(1, 3), between(1, 150), groups);
    add(", \"ssm_state_size\": %u, \"conv_kernel\": %u", between(1, 300), between(2, 8));
    add(", \"n_routed_experts\": %u, \"num_experts_per_tok\": %u", experts,
        between(1, MIN(experts, 32u)));
    add(", \"moe_intermediate_size\": %u, \"moe_shared_expert_intermediate_size\": %u}",
        between(1, 60), between(1, 60));
}

static void
draw_t5(void)
{
    snprintf(config, sizeof config, "{\"model_type\": \"t5\", \"vocab_size\": %d", VOCAB);
    add(", \"d_model\": %u, \"d_kv\": %u, \"num_heads\": %u, \"d_ff\": %u", between(1, 150),
        between(1, 130), between(1, 6), between(1, 150));
    add(", \"num_layers\": 2, \"num_decoder_layers\": 2, \"feed_forward_proj\": \"%s\"",
        test_below(2) ? "gated-gelu" : "relu");
    add(", \"relative_attention_num_buckets\": %u, \"relative_attention_max_distance\": %u",
        4 * between(2, 30), between(130, 300));
    add(", \"decoder_start_token_id\": 0}");
    encoder = true;
}

static void
draw_bart(void)
{
    uint32_t heads = between(1, 4), hidden = heads * 6 * between(1, 20);

    snprintf(config, sizeof config, "{\"model_type\": \"%s\", \"vocab_size\": %d",
             test_below(2) ? "bart" : "mbart", VOCAB);
    add(", \"d_model\": %u, \"max_position_embeddings\": 100", hidden);
    add(", \"encoder_layers\": 2, \"encoder_attention_heads\": %u, \"encoder_ffn_dim\": %u", heads,
        between(1, 150));
    add(", \"decoder_layers\": 2, \"decoder_attention_heads\": %u, \"decoder_ffn_dim\": %u}",
        heads * (test_below(2) ? 2 : 3), between(1, 150));
    encoder = true;
}

/* Larger weights than those of a trained model, so that a wrong op changes the output. */
static const struct gpu_ops *device;

static int
fill_large(struct lane *l, struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch,
           float std)
{
    return device->mem.fill_random(l, t, seed, first, pitch, 15 * std);
}

static void
large_weights(struct gpu *g)
{
    static struct gpu_ops ops[2];
    static uint32_t n;
    struct gpu_ops *o = &ops[n++ % 2];

    device = g->device;
    *o = *g->device;
    o->mem.fill_random = fill_large;
    harness_replace_ops(g, o);
}

static void
run(struct result *ret, const char *name, const char *isa, uint32_t max_tokens)
{
    open_model(config, (struct harness_options){ .isa = isa,
                                                 .device = name,
                                                 .dtype = DT_F32,
                                                 .kv = DT_F32,
                                                 .max_tokens = max_tokens,
                                                 .opened = large_weights });
    memset(ret, 0xff, sizeof *ret);
    for (uint32_t i = 0; i < SLOTS; i++) {
        struct harness_slot *s = start_slot(i, encoder ? 1 : PROMPT - i, NEW);

        s->how.logprobs = s->how.prompt_logprobs = VOCAB;
        s->all = true;
        s->lp = ret->lp[i];
        if (!encoder) continue;
        s->source = SOURCE;
        s->n_source = ARRAY_LEN(SOURCE) - i;
    }
    harness_run(&h);
    harness_close(&h);
}

/* Compares the log-probabilities of each position. */
static void
check_equal(const struct result *a, const struct result *b, double tolerance)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        for (uint32_t pos = 0; pos < (encoder ? NEW : PROMPT - i + NEW - 1); pos++) {
            const float *x = a->lp[i] + pos * VOCAB, *y = b->lp[i] + pos * VOCAB;
            double low = INFINITY, high = -INFINITY, worst = 0;

            for (uint32_t k = 0; k < VOCAB; k++) {
                if (!isfinite(x[k]))
                    fail_msg("position %u of %u is not finite: %s", pos, i, config);
                low = fmin(low, (double)x[k]);
                high = fmax(high, (double)x[k]);
                worst = fmax(worst, isfinite(y[k]) ? fabs((double)x[k] - (double)y[k]) : INFINITY);
            }
            if (!(worst <= tolerance * (high - low)))
                fail_msg("position %u of %u differs by %g of %g: %s", pos, i, worst, high - low,
                         config);
        }
}

static void
try_family(void (*draw)(void))
{
    static struct result want, got;

    for (int n = 0; n < fixture_rounds(TRIES); n++) {
        draw();
        run(&want, "cpu", "scalar", 64);
        if (fixture_cuda()) {
            run(&got, "cuda", NULL, 64);
            check_equal(&want, &got, TOLERANCE);
        } else {
            run(&got, "cpu", "auto", 5 + test_below(20));
            check_equal(&want, &got, 0);
        }
    }
}

#define FAMILY(name) \
    static void name##_runs_with_any_sizes(void **state) \
    { \
        (void)state; \
        try_family(draw_##name); \
    }
FAMILY(llama)
FAMILY(qwen2)
FAMILY(qwen3)
FAMILY(gemma3)
FAMILY(gemma3n)
FAMILY(gemma4)
FAMILY(gpt_oss)
FAMILY(bamba)
FAMILY(granite)
FAMILY(nemotron)
FAMILY(t5)
FAMILY(bart)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        fixture_test(llama_runs_with_any_sizes),   fixture_test(qwen2_runs_with_any_sizes),
        fixture_test(qwen3_runs_with_any_sizes),   fixture_test(gemma3_runs_with_any_sizes),
        fixture_test(gemma3n_runs_with_any_sizes), fixture_test(gemma4_runs_with_any_sizes),
        fixture_test(gpt_oss_runs_with_any_sizes), fixture_test(bamba_runs_with_any_sizes),
        fixture_test(granite_runs_with_any_sizes), fixture_test(nemotron_runs_with_any_sizes),
        fixture_test(t5_runs_with_any_sizes),      fixture_test(bart_runs_with_any_sizes),
    };

    fixture_args(argc, argv);
    return cmocka_run_group_tests(tests, test_seed_group, fixture_end);
}
