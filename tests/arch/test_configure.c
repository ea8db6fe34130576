/* test_configure.c - what a family reads from config.json, and what it refuses by name. */
#include "tests/test.h"
#include "worker/arch/registry.h"
#include "worker/model/config.h"
#include "worker/model/quant.h"

#include <stdio.h>

static struct model_shape shape;
static void *own; /* the family's cfg */

/* configure() of family on base plus the keys of more. */
static int
configure(const struct arch *family, const char *base, const char *more, struct err *e)
{
    static struct model m;
    json_t *config, *extra;
    int r;

    free(own);
    own = calloc(1, family->cfg_bytes);

    memset(e, 0, sizeof *e);
    m = (struct model){ .arch = family, .cfg = own };
    assert_int_equal(config_parse(&config, base, strlen(base), "config.json", e), 0);
    assert_int_equal(config_parse(&extra, more, strlen(more), "more", e), 0);
    json_object_update(config, extra);
    r = quant_configure(&m, config, e);
    shape = m.shape;
    json_decref(config);
    json_decref(extra);
    return r;
}

/* True if the keys of one and other give the same cfg. */
static bool
alike(const struct arch *family, const char *base, const char *one, const char *other)
{
    void *kept = malloc(family->cfg_bytes);
    struct err e;
    bool same;

    if (configure(family, base, one, &e) < 0) fail_msg("%s", e.text);
    memcpy(kept, own, family->cfg_bytes);
    if (configure(family, base, other, &e) < 0) fail_msg("%s", e.text);
    same = memcmp(kept, own, family->cfg_bytes) == 0;
    free(kept);
    return same;
}

struct refusal {
    const char *more, *key;
    int code;
};

static void
refuses(const struct arch *family, const char *base, const struct refusal *list, size_t n)
{
    struct err e;

    if (configure(family, base, "{}", &e) < 0) fail_msg("%s", e.text);
    for (size_t i = 0; i < n; i++) {
        int r = configure(family, base, list[i].more, &e);

        if (r != list[i].code) fail_msg("%s: %d, %s", list[i].more, r, e.text);
        if (!strstr(e.text, list[i].key)) fail_msg("%s: \"%s\"", list[i].more, e.text);
    }
}

static const char LLAMA[] = "{\"model_type\": \"llama\", \"vocab_size\": 320, \"hidden_size\": 64,"
                            " \"intermediate_size\": 128, \"num_hidden_layers\": 2,"
                            " \"num_attention_heads\": 4}";
static const char MISTRAL[] = "{\"model_type\": \"mistral\", \"vocab_size\": 320,"
                              " \"hidden_size\": 64, \"intermediate_size\": 128,"
                              " \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                              " \"num_key_value_heads\": 4}";
static const char QWEN2[] = "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 4,"
                            " \"max_window_layers\": 2}";
static const char QWEN3[] = "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 4}";
static const char GEMMA[] = "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 12}";
static const char GEMMA4[] = "{\"model_type\": \"gemma4_text\", \"num_hidden_layers\": 12}";
static const char GEMMA3N[] = "{\"model_type\": \"gemma3n_text\", \"num_hidden_layers\": 20}";
static const char GPT_OSS[] = "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 4}";
static const char T5[] = "{\"model_type\": \"t5\", \"num_layers\": 4}";

static void
llama_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"hidden_act\": \"gelu\"}", "hidden_act", -ENOTSUP },
        { "{\"attention_bias\": true}", "attention_bias", -ENOTSUP },
        { "{\"mlp_bias\": true}", "mlp_bias", -ENOTSUP },
        { "{\"sliding_window\": 8}", "sliding_window", -ENOTSUP },
        { "{\"num_key_value_heads\": 3}", "num_key_value_heads", -EINVAL },
        { "{\"head_dim\": 15}", "head_dim", -EINVAL },
        { "{\"num_hidden_layers\": 129}", "num_hidden_layers", -EINVAL },
        { "{\"hidden_size\": \"64\"}", "hidden_size", -EINVAL },
        { "{\"hidden_size\": 2, \"num_attention_heads\": 4}", "head_dim", -EINVAL },
        { "{\"hidden_size\": 8192, \"num_attention_heads\": 1}", "head_dim", -EINVAL },
        { "{\"rope_parameters\": {\"rope_type\": \"proportional\"}}", "rope_type", -ENOTSUP },
        { "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4,"
          " \"partial_rotary_factor\": 0.5}}",
          "partial_rotary_factor", -ENOTSUP },
    };

    (void)state;
    refuses(&arch_llama, LLAMA, list, ARRAY_LEN(list));
}

static void
llama_and_qwen_serve_all_generic_rope_types(void **state)
{
    static const char *const ropes[] = {
        "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
        "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
        "{\"rope_scaling\": {\"type\": \"yarn\", \"original_max_position_embeddings\": 64, "
        "\"factor\": 2}}",
        "{\"rope_scaling\": {\"type\": \"longrope\", \"original_max_position_embeddings\": 64, "
        "\"short_factor\": [1],"
        " \"long_factor\": [2]}}",
        "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"original_max_position_embeddings\": 64, "
        "\"factor\": 2, \"low_freq_factor\": 1,"
        " \"high_freq_factor\": 4}}",
    };
    struct err e;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(ropes); i++) {
        if (configure(&arch_llama, LLAMA, ropes[i], &e) < 0) fail_msg("%s", e.text);
        if (configure(&arch_llama, MISTRAL, ropes[i], &e) < 0) fail_msg("%s", e.text);
        if (configure(&arch_qwen, QWEN2, ropes[i], &e) < 0) fail_msg("%s", e.text);
        if (configure(&arch_qwen, QWEN3, ropes[i], &e) < 0) fail_msg("%s", e.text);
    }
}

static void
mistral_has_a_window_unless_its_config_has_null(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_llama, MISTRAL, "{}", &e), 0);
    assert_int_equal(shape.layer[1].window, 4096);
    assert_int_equal(shape.layer[1].kv, KV_WINDOW);
    assert_int_equal(configure(&arch_llama, MISTRAL, "{\"sliding_window\": 8}", &e), 0);
    assert_int_equal(shape.layer[0].window, 8);
    assert_int_equal(configure(&arch_llama, MISTRAL, "{\"sliding_window\": null}", &e), 0);
    assert_int_equal(shape.layer[0].window, 0);
    assert_int_equal(shape.layer[0].kv, KV_FULL);
    /* A window in Llama's config has no effect if it covers max_len or no layer uses it. */
    assert_int_equal(configure(&arch_llama, LLAMA, "{\"sliding_window\": 2048}", &e), 0);
    assert_int_equal(shape.layer[0].window, 0);
    assert_int_equal(configure(&arch_llama, LLAMA,
                               "{\"sliding_window\": 8, \"layer_types\":"
                               " [\"full_attention\", \"full_attention\"]}",
                               &e),
                     0);
}

static void
qwen_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"hidden_act\": \"gelu\"}", "hidden_act", -ENOTSUP },
        { "{\"attention_bias\": true}", "attention_bias", -ENOTSUP },
        { "{\"num_key_value_heads\": 3}", "num_key_value_heads", -EINVAL },
        { "{\"head_dim\": 15}", "head_dim", -EINVAL },
        { "{\"num_hidden_layers\": 129}", "num_hidden_layers", -EINVAL },
        { "{\"use_sliding_window\": 1}", "use_sliding_window", -EINVAL },
        { "{\"use_sliding_window\": true, \"sliding_window\": 0}", "sliding_window", -EINVAL },
        { "{\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}", "layer_types[0]",
          -EINVAL },
        { "{\"num_hidden_layers\": 1, \"layer_types\": [\"chunked_attention\"]}", "layer_types[0]",
          -ENOTSUP },
        { "{\"rope_scaling\": {\"type\": \"dynamic\"}}", "factor", -EINVAL },
        { "{\"rope_parameters\": {\"rope_type\": \"proportional\"}}", "rope_type", -ENOTSUP },
        { "{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor", -ENOTSUP },
    };

    (void)state;
    refuses(&arch_qwen, QWEN3, list, ARRAY_LEN(list));
}

static void
qwen_windows_start_at_max_window_layers(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_qwen, QWEN2, "{\"sliding_window\": 8}", &e), 0);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(shape.layer[i].window, 0);
    assert_int_equal(configure(&arch_qwen, QWEN2, "{\"use_sliding_window\": true}", &e), 0);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(shape.layer[i].window, i < 2 ? 0 : 4096);
    assert_int_equal(configure(&arch_qwen, QWEN2,
                               "{\"use_sliding_window\": true, \"sliding_window\": null}", &e),
                     0);
    assert_int_equal(shape.layer[3].window, 0);
}

/* Null: as many as heads. Absent: 32, as in transformers. */
static void
qwen_2_has_biases_and_qwen_3_norms_and_heads_of_128(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_qwen, QWEN2, "{\"hidden_size\": 2048}", &e), 0);
    assert_int_equal(shape.layer[0].head_dim, 64);
    assert_int_equal(shape.dim[DIM_OWN_0], 2048);
    assert_int_equal(shape.dim[DIM_OWN_2], 0);
    assert_int_equal(configure(&arch_qwen, QWEN3,
                               "{\"hidden_size\": 2048, \"num_attention_heads\": 16,"
                               " \"num_key_value_heads\": null}",
                               &e),
                     0);
    assert_int_equal(shape.layer[0].head_dim, 128);
    assert_int_equal(shape.layer[0].n_kv_heads, 16);
    assert_int_equal(shape.dim[DIM_OWN_0], 0);
    assert_int_equal(shape.dim[DIM_OWN_2], 128);
}

static void
gemma3_windows_follow_layer_types_or_every_sixth_is_full(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_gemma3, GEMMA, "{\"sliding_window\": 9}", &e), 0);
    for (uint32_t i = 0; i < 12; i++) assert_int_equal(shape.layer[i].window, (i + 1) % 6 ? 9 : 0);
    assert_int_equal(configure(&arch_gemma3, GEMMA, "{\"sliding_window_pattern\": 2}", &e), 0);
    for (uint32_t i = 0; i < 12; i++) assert_int_equal(shape.layer[i].window, i % 2 ? 0 : 4096);
    assert_int_equal(configure(&arch_gemma3, GEMMA,
                               "{\"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\","
                               " \"sliding_attention\", \"full_attention\"]}",
                               &e),
                     0);
    assert_int_equal(shape.layer[0].window, 0);
    assert_int_equal(shape.layer[1].window, 4096);
    assert_int_equal(shape.layer[2].window, 0);
}

static void
gemma3_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"hidden_activation\": \"silu\"}", "hidden_activation", -ENOTSUP },
        { "{\"attention_bias\": true}", "attention_bias", -ENOTSUP },
        { "{\"use_bidirectional_attention\": true}", "use_bidirectional_attention", -ENOTSUP },
        { "{\"tie_word_embeddings\": false}", "tie_word_embeddings", -ENOTSUP },
        { "{\"num_hidden_layers\": 1, \"layer_types\": [\"chunked_attention\"]}", "layer_types",
          -ENOTSUP },
        { "{\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}", "layer_types",
          -EINVAL },
        { "{\"sliding_window\": 0}", "sliding_window", -EINVAL },
        { "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1,"
          " \"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}",
          "full_attention", -ENOTSUP },
    };

    (void)state;
    refuses(&arch_gemma3, GEMMA, list, ARRAY_LEN(list));
}

/* Published configs without unused keys. */
static void
published_byt5_and_flan_configs_are_served_as_t5(void **state)
{
    static const char byt5[] =
        "{\"architectures\": [\"T5ForConditionalGeneration\"], \"d_ff\": 3584, \"d_kv\": 64,"
        " \"d_model\": 1472, \"decoder_start_token_id\": 0, \"dropout_rate\": 0.1,"
        " \"eos_token_id\": 1, \"feed_forward_proj\": \"gated-gelu\","
        " \"gradient_checkpointing\": false, \"initializer_factor\": 1.0,"
        " \"is_encoder_decoder\": true, \"layer_norm_epsilon\": 1e-06, \"model_type\": \"t5\","
        " \"num_decoder_layers\": 4, \"num_heads\": 6, \"num_layers\": 12, \"pad_token_id\": 0,"
        " \"relative_attention_num_buckets\": 32, \"tie_word_embeddings\": false,"
        " \"tokenizer_class\": \"ByT5Tokenizer\", \"use_cache\": true, \"vocab_size\": 384}";
    static const char flan[] =
        "{\"architectures\": [\"T5ForConditionalGeneration\"], \"d_ff\": 5120, \"d_kv\": 64,"
        " \"d_model\": 2048, \"decoder_start_token_id\": 0, \"dropout_rate\": 0.1,"
        " \"eos_token_id\": 1, \"feed_forward_proj\": \"gated-gelu\", \"initializer_factor\": 1.0,"
        " \"is_encoder_decoder\": true, \"layer_norm_epsilon\": 1e-06, \"model_type\": \"t5\","
        " \"n_positions\": 512, \"num_decoder_layers\": 24, \"num_heads\": 32, \"num_layers\": 24,"
        " \"output_past\": true, \"pad_token_id\": 0, \"relative_attention_max_distance\": 128,"
        " \"relative_attention_num_buckets\": 32, \"task_specific_params\": {},"
        " \"tie_word_embeddings\": false, \"transformers_version\": \"4.24.0.dev0\","
        " \"use_cache\": true, \"vocab_size\": 32128}";
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_t5, byt5, "{}", &e), 0);
    assert_int_equal(shape.n_encoder_layers, 12);
    assert_int_equal(shape.n_layers, 4);
    assert_int_equal(shape.layer[3].n_heads * shape.layer[3].head_dim, 384); /* less than hidden */
    assert_int_equal(shape.dim[DIM_HIDDEN], 1472);
    assert_int_equal(configure(&arch_t5, flan, "{}", &e), 0);
    assert_int_equal(shape.layer[23].n_ff, 5120);
}

static void
gemma4_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"hidden_activation\": \"silu\"}", "hidden_activation", -ENOTSUP },
        { "{\"attention_bias\": true}", "attention_bias", -ENOTSUP },
        { "{\"use_bidirectional_attention\": \"all\"}", "\"all\"", -ENOTSUP },
        { "{\"tie_word_embeddings\": false}", "tie_word_embeddings", -ENOTSUP },
        { "{\"num_kv_shared_layers\": 12}", "num_kv_shared_layers", -EINVAL },
        { "{\"num_kv_shared_layers\": 9}", "no earlier layer has the KV that layer 5 reads",
          -EINVAL },
        { "{\"per_layer_config\": {\"5\": {\"intermediate_size\": 7}}}", "intermediate_size",
          -ENOTSUP },
        { "{\"per_layer_config\": {\"5\": {\"head_dim\": 32}}}", "layer 11", -ENOTSUP },
        { "{\"rope_theta\": 5e5}", "rope_theta outside", -ENOTSUP },
        { "{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor outside", -ENOTSUP },
        { "{\"per_layer_config\": {\"12\": {\"head_dim\": 32}}}",
          "\"12\" is not a layer number from 0 to 11", -EINVAL },
        { "{\"per_layer_config\": {\"-1\": {\"head_dim\": 32}}}",
          "\"-1\" is not a layer number from 0 to 11", -EINVAL },
        { "{\"per_layer_config\": {\"1\": {\"num_key_value_heads\": 3}}}", "layer 1", -ENOTSUP },
        { "{\"enable_moe_block\": true}", "num_experts", -EINVAL },
        { "{\"enable_moe_block\": true, \"num_experts\": 4, \"top_k_experts\": 5}", "top_k_experts",
          -EINVAL },
        { "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 8},"
          " \"sliding_attention\": {}}}",
          "full_attention", -ENOTSUP },
        { "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\","
          " \"partial_rotary_factor\": 0.5}, \"sliding_attention\": {}}}",
          "partial_rotary_factor", -ENOTSUP },
    };

    (void)state;
    refuses(&arch_gemma4, GEMMA4, list, ARRAY_LEN(list));
}

static void
gemma4_full_layers_have_larger_heads_and_shared_kv(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_gemma4, GEMMA4,
                               "{\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 2,"
                               " \"num_kv_shared_layers\": 4, \"use_double_wide_mlp\": true}",
                               &e),
                     0);
    for (uint32_t i = 0; i < 12; i++) {
        const struct layer_shape *l = &shape.layer[i];
        bool full = (i + 1) % 6 == 0;

        assert_int_equal(l->window, full ? 0 : 512);
        assert_int_equal(l->head_dim, full ? 512 : 256);
        assert_int_equal(l->n_kv_heads, full ? 2 : 4);
        assert_int_equal(l->v_is_k, full);
        assert_int_equal(l->kv_from, i < 8 ? i : full ? 5 : 7);
        assert_int_equal(l->n_ff, i < 8 ? 9216 : 2 * 9216);
    }
    /* The key is unused if v is not k. */
    assert_int_equal(configure(&arch_gemma4, GEMMA4, "{\"num_global_key_value_heads\": 2}", &e), 0);
    assert_int_equal(shape.layer[5].n_kv_heads, 4);
    assert_false(shape.layer[5].v_is_k);
}

/* With more than 10 layers transformers writes zero-padded keys; the code once searched for "5" and
 * missed the entry. */
static void
gemma4_accepts_zero_padded_layer_numbers(void **state)
{
    struct err e;

    (void)state;
    if (configure(&arch_gemma4, GEMMA4,
                  "{\"per_layer_config\": {\"05\": {\"head_dim\": 512, \"num_key_value_heads\": 2},"
                  " \"11\": {\"head_dim\": 512, \"num_key_value_heads\": 2}}}",
                  &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(shape.layer[4].head_dim, 256);
    assert_int_equal(shape.layer[5].head_dim, 512);
    assert_int_equal(shape.layer[5].n_kv_heads, 2);
    assert_int_equal(shape.layer[11].head_dim, 512);
}

static void
gemma4_last_layer_always_has_full_attention(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_gemma4, GEMMA4,
                               "{\"num_hidden_layers\": 2, \"layer_types\":"
                               " [\"full_attention\", \"sliding_attention\"]}",
                               &e),
                     0);
    assert_int_equal(shape.layer[1].window, 0);
    assert_int_equal(shape.layer[1].head_dim, 512);
}

static void
gemma3n_with_ten_layers_has_no_sparse_layers(void **state)
{
    (void)state;
    assert_true(alike(&arch_gemma3n, GEMMA3N,
                      "{\"num_hidden_layers\": 10, \"num_kv_shared_layers\": 0}",
                      "{\"num_hidden_layers\": 10, \"num_kv_shared_layers\": 0, "
                      "\"activation_sparsity_pattern\": 0}"));
    assert_false(alike(&arch_gemma3n, GEMMA3N,
                       "{\"num_hidden_layers\": 11, \"num_kv_shared_layers\": 0}",
                       "{\"num_hidden_layers\": 11, \"num_kv_shared_layers\": 0, "
                       "\"activation_sparsity_pattern\": 0}"));
}

static void
gpt_oss_default_rope_is_that_of_published_models(void **state)
{
    static const char stated[] = "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 32,"
                                 " \"rope_theta\": 150000, \"truncate\": false,"
                                 " \"original_max_position_embeddings\": 4096}}";

    (void)state;
    assert_true(alike(&arch_gpt_oss, GPT_OSS, "{}", stated));
    assert_true(alike(&arch_gpt_oss, GPT_OSS, "{\"rope_scaling\": {}}", stated));
    assert_false(alike(&arch_gpt_oss, GPT_OSS,
                       "{\"rope_parameters\": {\"rope_type\": \"default\"}}", stated));
}

/* Keys that transformers renames or overrides. */
static void
hybrids_accept_both_key_names_and_ignore_unused_keys(void **state)
{
    static const char BAMBA[] = "{\"model_type\": \"bamba\", \"num_hidden_layers\": 1}";
    static const char NEMOTRON[] = "{\"model_type\": \"nemotron_h\", \"num_hidden_layers\": 1,"
                                   " \"hybrid_override_pattern\": \"M\"}";

    (void)state;
    assert_true(alike(&arch_bamba, BAMBA, "{\"partial_rotary_factor\": 1}", "{}"));
    assert_false(
        alike(&arch_bamba, BAMBA, "{\"rope_parameters\": {\"partial_rotary_factor\": 1}}", "{}"));
    assert_true(alike(&arch_nemotron_h, NEMOTRON,
                      "{\"mamba_dt_min\": 0.25, \"mamba_n_groups\": 4, \"mamba_d_conv\": 3}",
                      "{\"time_step_min\": 0.25, \"n_groups\": 4, \"conv_kernel\": 3}"));
}

static void
gemma3n_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"hidden_activation\": \"silu\"}", "hidden_activation", -ENOTSUP },
        { "{\"altup_num_inputs\": 1}", "altup_num_inputs is 1, only 2 to 8 are implemented",
          -ENOTSUP },
        { "{\"altup_num_inputs\": 9}", "altup_num_inputs is 9", -ENOTSUP },
        { "{\"altup_num_inputs\": 3, \"altup_active_idx\": 3}", "altup_active_idx", -EINVAL },
        { "{\"altup_active_idx\": 4}", "altup_active_idx", -EINVAL },
        { "{\"altup_correct_scale\": false}", "altup_correct_scale", -ENOTSUP },
        { "{\"intermediate_size\": [1, 2]}", "intermediate_size", -EINVAL },
        { "{\"intermediate_size\": 2.5}", "intermediate_size", -EINVAL },
        { "{\"activation_sparsity_pattern\": 1}", "activation_sparsity_pattern", -EINVAL },
        { "{\"activation_sparsity_pattern\": \"all\"}", "activation_sparsity_pattern", -EINVAL },
        { "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}", "full_attention",
          -ENOTSUP },
        { "{\"num_kv_shared_layers\": 20}", "num_kv_shared_layers", -EINVAL },
    };

    (void)state;
    refuses(&arch_gemma3n, GEMMA3N, list, ARRAY_LEN(list));
}

static void
gemma3n_last_layers_share_kv_and_widths_are_per_layer(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_gemma3n, GEMMA3N,
                               "{\"num_hidden_layers\": 6, \"num_kv_shared_layers\": 1,"
                               " \"intermediate_size\": [1, 2, 3, 4, 5, 6]}",
                               &e),
                     0);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(shape.layer[i].n_ff, i + 1);
        assert_int_equal(shape.layer[i].window, i == 4 ? 0 : 512);
        assert_int_equal(shape.layer[i].kv_from, i < 5 ? i : 3);
    }
    assert_int_equal(shape.n_streams, 4);
    assert_int_equal(configure(&arch_gemma3n, GEMMA3N, "{\"altup_num_inputs\": 8}", &e), 0);
    assert_int_equal(shape.n_streams, 8);
}

static void
gpt_oss_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"hidden_act\": \"gelu\"}", "hidden_act", -ENOTSUP },
        { "{\"attention_bias\": false}", "attention_bias", -ENOTSUP },
        { "{\"swiglu_limit\": 8}", "swiglu_limit", -ENOTSUP },
        { "{\"num_experts_per_tok\": 200}", "num_experts_per_tok", -EINVAL },
        { "{\"num_local_experts\": 0}", "num_local_experts", -EINVAL },
        { "{\"quantization_config\": {\"quant_method\": \"mxfp4\"}, \"hidden_size\": 80}", "MXFP4",
          -EINVAL },
        { "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}", "rope_type", -ENOTSUP },
        { "{\"layer_types\": [\"full_attention\"]}", "layer_types", -EINVAL },
    };

    (void)state;
    refuses(&arch_gpt_oss, GPT_OSS, list, ARRAY_LEN(list));
}

static void
gpt_oss_has_a_window_in_every_second_layer(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_gpt_oss, GPT_OSS, "{}", &e), 0);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(shape.layer[i].window, i % 2 ? 0 : 128);
}

/* Bamba, Granite and Nemotron-H. */
static void
hybrids_refuse_unimplemented_features_by_name(void **state)
{
    static const char BAMBA[] = "{\"model_type\": \"bamba\", \"num_hidden_layers\": 2,"
                                " \"attn_layer_indices\": [1]}";
    static const char GRANITE[] = "{\"model_type\": \"granitemoehybrid\", \"num_hidden_layers\": 2,"
                                  " \"layer_types\": [\"mamba\", \"attention\"]}";
    static const char NEMOTRON[] = "{\"model_type\": \"nemotron_h\", \"num_hidden_layers\": 4, "
                                   "\"hybrid_override_pattern\": \"M-*E\"}";
    static const struct refusal both[] = {
        { "{\"hidden_act\": \"gelu\"}", "hidden_act", -ENOTSUP },
        { "{\"attention_bias\": true}", "attention_bias", -ENOTSUP },
        { "{\"mamba_proj_bias\": true}", "mamba_proj_bias", -ENOTSUP },
        { "{\"mamba_conv_bias\": false}", "mamba_conv_bias", -ENOTSUP },
        { "{\"time_step_limit\": [0.001, 0.1]}", "time_step_limit", -ENOTSUP },
        { "{\"mamba_n_groups\": 200}", "mamba_n_groups", -EINVAL },
        { "{\"mamba_d_conv\": 1}", "mamba_d_conv", -EINVAL },
        { "{\"num_key_value_heads\": 3}", "num_key_value_heads", -EINVAL },
        { "{\"tie_word_embeddings\": \"yes\"}", "tie_word_embeddings", -EINVAL },
    };
    static const struct refusal bamba[] = {
        { "{\"mlp_bias\": true}", "mlp_bias", -ENOTSUP },
        { "{\"attn_layer_indices\": [\"1\"]}", "attn_layer_indices[0]", -EINVAL },
        { "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}}", "rope_type", -ENOTSUP },
        { "{\"rope_parameters\": {\"partial_rotary_factor\": 0.29}}", "37 of 128 dims", -ENOTSUP },
        { "{\"rope_parameters\": {\"partial_rotary_factor\": 0.001}}", "0 of 128 dims", -ENOTSUP },
    };
    static const struct refusal granite[] = {
        { "{\"position_embedding_type\": \"alibi\"}", "position_embedding_type", -ENOTSUP },
        { "{\"position_embedding_type\": \"rope\", \"rope_scaling\": {\"rope_type\": \"linear\","
          " \"factor\": 2}}",
          "rope_type", -ENOTSUP },
        { "{\"layer_types\": [\"mamba\", \"recurrent\"]}", "layer_types[1]", -ENOTSUP },
        { "{\"logits_scaling\": 0}", "logits_scaling", -EINVAL },
        { "{\"num_experts_per_tok\": 9}", "num_experts_per_tok", -EINVAL },
    };
    static const struct refusal nemotron[] = {
        { "{\"mlp_hidden_act\": \"silu\"}", "mlp_hidden_act", -ENOTSUP },
        { "{\"mamba_hidden_act\": \"gelu\"}", "mamba_hidden_act", -ENOTSUP },
        { "{\"use_bias\": true}", "use_bias", -ENOTSUP },
        { "{\"use_conv_bias\": false}", "use_conv_bias", -ENOTSUP },
        { "{\"sliding_window\": 8}", "sliding_window", -ENOTSUP },
        { "{\"n_group\": 2}", "n_group", -ENOTSUP },
        { "{\"moe_latent_size\": 64}", "moe_latent_size", -ENOTSUP },
        { "{\"norm_topk_prob\": false}", "norm_topk_prob", -ENOTSUP },
        { "{\"hybrid_override_pattern\": \"M-xE\"}", "layer 2", -ENOTSUP },
    };

    (void)state;
    refuses(&arch_bamba, BAMBA, both, ARRAY_LEN(both));
    refuses(&arch_bamba, BAMBA, bamba, ARRAY_LEN(bamba));
    refuses(&arch_granite_hybrid, GRANITE, both, ARRAY_LEN(both));
    refuses(&arch_granite_hybrid, GRANITE, granite, ARRAY_LEN(granite));
    refuses(&arch_nemotron_h, NEMOTRON, nemotron, ARRAY_LEN(nemotron));
}

/* Each size is within its limit; the state of a layer would be 4 GiB, which is 0 in 32 bits. */
static void
mamba_sizes_above_the_limits_are_refused(void **state)
{
    static const char BAMBA[] = "{\"model_type\": \"bamba\", \"num_hidden_layers\": 1}";
    static const char NEMOTRON[] = "{\"model_type\": \"nemotron_h\", \"num_hidden_layers\": 1,"
                                   " \"hybrid_override_pattern\": \"M\"}";
    static const struct refusal bamba[] = {
        { "{\"mamba_expand\": 64, \"mamba_n_heads\": 128}", "mamba_d_head", -EINVAL },
        { "{\"mamba_expand\": 64, \"mamba_n_heads\": 1}", "mamba_d_head", -EINVAL },
    };
    static const struct refusal nemotron[] = {
        { "{\"mamba_head_dim\": 513}", "mamba_head_dim is 513, want 1 to 512", -EINVAL },
        { "{\"ssm_state_size\": 513}", "ssm_state_size is 513, want 1 to 512", -EINVAL },
    };

    (void)state;
    refuses(&arch_bamba, BAMBA, bamba, ARRAY_LEN(bamba));
    refuses(&arch_nemotron_h, NEMOTRON, nemotron, ARRAY_LEN(nemotron));
}

static void
t5_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"feed_forward_proj\": \"gelu\"}", "feed_forward_proj", -ENOTSUP },
        { "{\"feed_forward_proj\": 3}", "feed_forward_proj", -EINVAL },
        { "{\"relative_attention_num_buckets\": 30}", "relative_attention_num_buckets", -ENOTSUP },
        { "{\"relative_attention_max_distance\": 16}", "relative_attention_max_distance", -EINVAL },
        { "{\"d_kv\": 0}", "d_kv", -EINVAL },
    };

    (void)state;
    refuses(&arch_t5, T5, list, ARRAY_LEN(list));
    assert_int_equal(shape.n_encoder_layers, 4);
    assert_int_equal(shape.n_layers, 4); /* by default as deep as the encoder */
}

static const char BART[] = "{\"model_type\": \"bart\", \"encoder_layers\": 3,"
                           " \"decoder_attention_heads\": 8}";

static void
bart_refuses_unimplemented_features_by_name(void **state)
{
    static const struct refusal list[] = {
        { "{\"activation_function\": \"gelu_fast\"}", "activation_function", -ENOTSUP },
        { "{\"activation_function\": 1}", "activation_function", -EINVAL },
        { "{\"tie_word_embeddings\": false}", "tie_word_embeddings", -ENOTSUP },
        { "{\"is_encoder_decoder\": false}", "is_encoder_decoder", -ENOTSUP },
        { "{\"is_decoder\": true}", "is_decoder", -ENOTSUP },
        { "{\"encoder_attention_heads\": 12}", "encoder_attention_heads", -EINVAL },
        { "{\"decoder_attention_heads\": 0}", "decoder_attention_heads", -EINVAL },
        { "{\"d_model\": 32768}", "encoder_attention_heads", -EINVAL },
        { "{\"decoder_layers\": 129}", "decoder_layers", -EINVAL },
        { "{\"max_position_embeddings\": 0}", "max_position_embeddings", -EINVAL },
        { "{\"scale_embedding\": \"yes\"}", "scale_embedding", -EINVAL },
    };

    (void)state;
    refuses(&arch_bart, BART, list, ARRAY_LEN(list));
}

static void
bart_encoder_and_decoder_have_separate_shapes(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_bart, BART, "{\"encoder_ffn_dim\": 96}", &e), 0);
    assert_int_equal(shape.n_encoder_layers, 3);
    assert_int_equal(shape.n_layers, 12);
    assert_int_equal(shape.encoder[2].head_dim, 64);
    assert_int_equal(shape.encoder[2].n_ff, 96);
    assert_int_equal(shape.layer[11].head_dim, 128);
    assert_int_equal(shape.layer[11].n_ff, 4096);
    assert_int_equal(shape.cross.n_heads, 8);
    assert_int_equal(shape.max_len, 1024);
    assert_int_equal(shape.max_source, 1024);
}

/* Defaults of the classes of transformers 5.17, printed from them. Once Mistral had Llama's
 * positions and K/V heads. */
static void
absent_config_keys_have_the_defaults_of_transformers(void **state)
{
    static const char SIZES[] = "{\"hidden_size\": 4096, \"intermediate_size\": 11008,"
                                " \"num_hidden_layers\": 32, \"num_attention_heads\": 32,"
                                " \"vocab_size\": 32000, \"layer_types\": null}";
    static const char LAYERS[] = "{\"num_hidden_layers\": 1, \"layer_types\": [\"attention\"],"
                                 " \"attn_layer_indices\": [0]}";
    static const char PATTERN[] = "{\"num_hidden_layers\": 1, \"hybrid_override_pattern\": \"*\"}";
    static const struct {
        const struct arch *family;
        const char *type, *stated;
        uint32_t layers, hidden, vocab, len, heads, kv_heads, head_dim, ff, window;
    } want[] = {
        /* clang-format off */
        { &arch_llama,       "llama",        SIZES, 32, 4096,  32000,   2048, 32, 32, 128, 11008,    0 },
        { &arch_llama,       "mistral",      SIZES, 32, 4096,  32000, 131072, 32,  8, 128, 11008, 4096 },
        { &arch_qwen,        "qwen2",        "{}",  32, 4096, 151936,  32768, 32, 32, 128, 22016,    0 },
        { &arch_qwen,        "qwen3",        "{}",  32, 4096, 151936,  32768, 32, 32, 128, 22016,    0 },
        { &arch_gemma3,      "gemma3_text",  "{}",  26, 2304, 262208, 131072,  8,  4, 256,  9216, 4096 },
        { &arch_gemma3n,     "gemma3n_text", "{}",  35, 2048, 262400,  32768,  8,  2, 256, 16384,  512 },
        { &arch_gemma4,      "gemma4_text",  "{}",  30, 2304, 262144, 131072,  8,  4, 256,  9216,  512 },
        { &arch_gpt_oss,     "gpt_oss",      "{}",  36, 2880, 201088, 131072, 64,  8,  64,     0,  128 },
        { &arch_bamba,       "bamba",        LAYERS, 1, 4096, 128000, 262144, 32,  8, 128, 14336,    0 },
        { &arch_granite_hybrid, "granitemoehybrid", LAYERS, 1, 4096, 32000, 2048, 32, 32, 128, 1024, 0 },
        { &arch_nemotron_h,  "nemotron_h",   PATTERN, 1, 4096, 131072,  4096, 32,  8, 128,     0,    0 },
        { &arch_t5,          "t5",           "{}",   6,  512,  32128,   4096,  8,  8,  64,  2048,    0 },
        { &arch_bart,        "bart",         "{}",  12, 1024,  50265,   1024, 16, 16,  64,  4096,    0 },
        { &arch_bart,        "mbart",        "{}",  12, 1024,  50265,   1024, 16, 16,  64,  4096,    0 },
        /* clang-format on */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const struct layer_shape *l = &shape.layer[0];
        char type[64];
        struct err e;

        snprintf(type, sizeof type, "{\"model_type\": \"%s\"}", want[i].type);
        if (configure(want[i].family, want[i].stated, type, &e) < 0) fail_msg("%s", e.text);
        if (shape.n_layers != want[i].layers || shape.hidden != want[i].hidden ||
            shape.vocab != want[i].vocab || shape.max_len != want[i].len ||
            l->n_heads != want[i].heads || l->n_kv_heads != want[i].kv_heads ||
            l->head_dim != want[i].head_dim || l->n_ff != want[i].ff || l->window != want[i].window)
            fail_msg("%s: %u layers of %u, %u tokens, %u positions; %u heads, %u for K and V, of "
                     "%u; ff %u, window %u",
                     want[i].type, shape.n_layers, shape.hidden, shape.vocab, shape.max_len,
                     l->n_heads, l->n_kv_heads, l->head_dim, l->n_ff, l->window);
    }
}

/* Null differs from absent if the class has a default. */
static void
null_kv_heads_equal_the_attention_heads(void **state)
{
    static const char BAMBA[] = "{\"model_type\": \"bamba\", \"num_hidden_layers\": 1,"
                                " \"attn_layer_indices\": [0]}";
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_llama, MISTRAL, "{\"num_key_value_heads\": null}", &e), 0);
    assert_int_equal(shape.layer[0].n_kv_heads, 4);
    assert_int_equal(configure(&arch_bamba, BAMBA, "{\"num_key_value_heads\": null}", &e), 0);
    assert_int_equal(shape.layer[0].n_kv_heads, 32);
}

/* transformers sets an attribute with two names again, from the second name. */
static void
second_name_of_a_duplicate_key_has_precedence(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_bart, "{\"model_type\": \"bart\"}",
                               "{\"encoder_layers\": 12, \"num_hidden_layers\": 6,"
                               " \"num_attention_heads\": 8, \"hidden_size\": 512}",
                               &e),
                     0);
    assert_int_equal(shape.n_encoder_layers, 6);
    assert_int_equal(shape.n_layers, 12);
    assert_int_equal(shape.hidden, 512);
    assert_int_equal(shape.encoder[0].n_heads, 8);
    assert_int_equal(shape.layer[0].n_heads, 16);
    assert_int_equal(configure(&arch_t5, T5,
                               "{\"num_hidden_layers\": 8, \"hidden_size\": 64, \"head_dim\": 8,"
                               " \"num_attention_heads\": 4}",
                               &e),
                     0);
    assert_int_equal(shape.n_encoder_layers, 8);
    assert_int_equal(shape.n_layers, 4);
    assert_int_equal(shape.hidden, 64);
    assert_int_equal(shape.layer[0].head_dim, 8);
    assert_int_equal(shape.layer[0].n_heads, 4);
    assert_int_equal(configure(&arch_gpt_oss, GPT_OSS, "{\"num_experts\": 16}", &e), 0);
    assert_int_equal(shape.layer[0].n_experts, 16);
    assert_int_equal(configure(&arch_nemotron_h, "{\"model_type\": \"nemotron_h\"}",
                               "{\"layer_types\": [\"moe\"], \"num_local_experts\": 16}", &e),
                     0);
    assert_int_equal(shape.layer[0].n_experts, 16);
    assert_int_equal(configure(&arch_granite_hybrid,
                               "{\"model_type\": \"granitemoehybrid\", \"num_hidden_layers\": 1}",
                               "{\"layers_block_type\": [\"attention\"]}", &e),
                     0);
    assert_int_equal(shape.layer[0].n_heads, 32);
}

static void
config_without_required_sizes_is_refused_by_name(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(configure(&arch_llama, "{\"model_type\": \"llama\"}", "{}", &e), -EINVAL);
    assert_non_null(strstr(e.text, "num_hidden_layers"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_refuses_unimplemented_features_by_name),
        cmocka_unit_test(llama_and_qwen_serve_all_generic_rope_types),
        cmocka_unit_test(mistral_has_a_window_unless_its_config_has_null),
        cmocka_unit_test(qwen_refuses_unimplemented_features_by_name),
        cmocka_unit_test(qwen_windows_start_at_max_window_layers),
        cmocka_unit_test(qwen_2_has_biases_and_qwen_3_norms_and_heads_of_128),
        cmocka_unit_test(gemma3_windows_follow_layer_types_or_every_sixth_is_full),
        cmocka_unit_test(gemma3_refuses_unimplemented_features_by_name),
        cmocka_unit_test(gemma4_refuses_unimplemented_features_by_name),
        cmocka_unit_test(gemma4_accepts_zero_padded_layer_numbers),
        cmocka_unit_test(gemma4_last_layer_always_has_full_attention),
        cmocka_unit_test(gemma4_full_layers_have_larger_heads_and_shared_kv),
        cmocka_unit_test(gemma3n_refuses_unimplemented_features_by_name),
        cmocka_unit_test(gemma3n_with_ten_layers_has_no_sparse_layers),
        cmocka_unit_test(gemma3n_last_layers_share_kv_and_widths_are_per_layer),
        cmocka_unit_test(gpt_oss_refuses_unimplemented_features_by_name),
        cmocka_unit_test(gpt_oss_default_rope_is_that_of_published_models),
        cmocka_unit_test(gpt_oss_has_a_window_in_every_second_layer),
        cmocka_unit_test(published_byt5_and_flan_configs_are_served_as_t5),
        cmocka_unit_test(hybrids_refuse_unimplemented_features_by_name),
        cmocka_unit_test(hybrids_accept_both_key_names_and_ignore_unused_keys),
        cmocka_unit_test(mamba_sizes_above_the_limits_are_refused),
        cmocka_unit_test(t5_refuses_unimplemented_features_by_name),
        cmocka_unit_test(bart_refuses_unimplemented_features_by_name),
        cmocka_unit_test(bart_encoder_and_decoder_have_separate_shapes),
        cmocka_unit_test(absent_config_keys_have_the_defaults_of_transformers),
        cmocka_unit_test(null_kv_heads_equal_the_attention_heads),
        cmocka_unit_test(second_name_of_a_duplicate_key_has_precedence),
        cmocka_unit_test(config_without_required_sizes_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
