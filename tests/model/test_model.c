/* test_model.c - model_open() without weights: family, token ids, lengths, refusals. */
#include "tests/model/tiny_model.h"
#include "tests/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static struct gpu *gpu;
static struct ckpt ckpt;
static struct err e;

static int
begin(void **state)
{
    struct gpu_options o = { .device = "cpu", .isa = "scalar" };

    (void)state;
    ckpt_open(&ckpt);
    return gpu_open(&gpu, &o, &e);
}

static int
end(void **state)
{
    (void)state;
    gpu_close(gpu);
    ckpt_close(&ckpt);
    return 0;
}

static int
open_toy(struct model **m, uint32_t max_len)
{
    struct model_source s = {
        .dir = ckpt.dir, .dtype = DT_COUNT, .random = true, .max_len = max_len, .weights_fd = -1
    };

    *m = NULL;
    return model_open(m, &s, gpu, toy_families, &e);
}

/* The toy family with these config.json keys and this generation_config.json (NULL: none). */
static struct model *
toy_with(const char *config, const char *generation)
{
    struct model *m;

    toy_config(&ckpt, config);
    if (generation) ckpt_text(&ckpt, "generation_config.json", generation);
    if (open_toy(&m, 0) < 0) fail_msg("%s", e.text);
    return m;
}

static void
remove_generation(void)
{
    char path[512];

    snprintf(path, sizeof path, "%s/generation_config.json", ckpt.dir);
    unlink(path);
}

static void
refused(const char *config, const char *generation, int code, const char *sentence)
{
    struct model *m;
    char want[256];
    int r;

    toy_config(&ckpt, config);
    if (generation) ckpt_text(&ckpt, "generation_config.json", generation);
    r = open_toy(&m, 0);
    remove_generation();
    snprintf(want, sizeof want, "load %.60s: %s", ckpt.dir, sentence);
    assert_string_equal(r < 0 ? e.text : "it was opened", want);
    assert_int_equal(r, code);
}

static void
token_ids_come_from_generation_config_then_config(void **state)
{
    struct model *m = toy_with(",\"eos_token_id\":5,\"bos_token_id\":6,\"pad_token_id\":7",
                               "{\"eos_token_id\":[1,2],\"pad_token_id\":null,"
                               "\"forced_eos_token_id\":2,\"decoder_start_token_id\":0}");

    (void)state;
    assert_int_equal(m->n_eos, 2);
    assert_int_equal(m->eos[0], 1);
    assert_int_equal(m->eos[1], 2);
    assert_int_equal(m->bos, 6);
    assert_int_equal(m->pad, 7);
    assert_int_equal(m->decoder_start, 0);
    assert_int_equal(m->forced_eos, 2);
    assert_int_equal(m->forced_bos, -1);
    model_close(m);
    remove_generation();
}

static void
absent_token_ids_are_none(void **state)
{
    struct model *m = toy_with(",\"pad_token_id\":-1", NULL);

    (void)state;
    assert_int_equal(m->n_eos, 0);
    assert_int_equal(m->bos, -1);
    assert_int_equal(m->pad, -1);
    assert_int_equal(m->decoder_start, -1);
    assert_int_equal(m->forced_bos, -1);
    assert_int_equal(m->forced_eos, -1);
    model_close(m);
}

/* Gemma's text_config has the default eos; the outer [1, 106] ends a chat message. */
static void
outer_token_ids_of_a_nested_config_have_precedence(void **state)
{
    struct model *m;

    (void)state;
    ckpt_text(
        &ckpt, "config.json",
        "{\"model_type\":\"toy\",\"eos_token_id\":[1,10],\"pad_token_id\":null,\"num_beams\":3,"
        "\"text_config\":{\"model_type\":\"toy_text\",\"hidden_size\":16,"
        "\"eos_token_id\":1,\"bos_token_id\":2,\"pad_token_id\":4}}");
    assert_int_equal(open_toy(&m, 0), 0);
    assert_int_equal(m->n_eos, 2);
    assert_int_equal(m->eos[1], 10);
    assert_int_equal(m->bos, 2);
    assert_int_equal(m->pad, 4);
    assert_int_equal(m->generation.beams, 3);
    model_close(m);
}

/* Old BART spelling of forced_bos_token_id; generation_config.json has precedence. */
static void
forced_bos_is_generated_first(void **state)
{
    static const char config[] = ",\"bos_token_id\":6,\"force_bos_token_to_be_generated\":true";
    struct model *m = toy_with(config, NULL);

    (void)state;
    assert_int_equal(m->forced_bos, 6);
    model_close(m);
    m = toy_with(config, "{\"bos_token_id\":6}");
    assert_int_equal(m->forced_bos, -1);
    model_close(m);
    remove_generation();
}

static void
encoder_decoder_without_decoder_start_uses_bos(void **state)
{
    struct model *m = toy_with(",\"bos_token_id\":6,\"encoder_layers\":1", NULL);

    (void)state;
    assert_int_equal(m->decoder_start, 6);
    model_close(m);
    m = toy_with(",\"bos_token_id\":6,\"encoder_layers\":1,\"decoder_start_token_id\":2", NULL);
    assert_int_equal(m->decoder_start, 2);
    model_close(m);
    m = toy_with(",\"bos_token_id\":6", NULL);
    assert_int_equal(m->decoder_start, -1);
    model_close(m);
}

static void
token_ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    refused(",\"eos_token_id\":[1,48]", NULL, -EINVAL,
            "config.json: eos_token_id is 48, want a token id from -1 to 47");
    refused("", "{\"bos_token_id\":-2}", -EINVAL,
            "generation_config.json: bos_token_id is -2, want a token id from -1 to 47");
    refused("", "{\"bos_token_id\":\"1\"}", -EINVAL,
            "generation_config.json: bos_token_id is not an integer");
    refused(",\"forced_bos_token_id\":[1,2]", NULL, -ENOTSUP,
            "config.json: forced_bos_token_id has 2 ids, at most 1 are implemented");
    refused(",\"eos_token_id\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", NULL, -ENOTSUP,
            "config.json: eos_token_id has 17 ids, at most 16 are implemented");
}

static void
error_of_an_unknown_model_type_lists_the_implemented_types(void **state)
{
    struct model *m;

    (void)state;
    ckpt_text(&ckpt, "config.json", "{\"model_type\":\"mamba\"}");
    assert_int_equal(open_toy(&m, 0), -ENOTSUP);
    assert_non_null(
        strstr(e.text, "config.json: model_type is \"mamba\", only toy, toy_text are implemented"));
    ckpt_text(&ckpt, "config.json", "{}");
    assert_int_equal(open_toy(&m, 0), -EINVAL);
    assert_non_null(strstr(e.text, "config.json: model_type is not set"));
}

static void
nested_language_model_is_configured_from_text_config(void **state)
{
    struct model *m;

    (void)state;
    ckpt_text(&ckpt, "config.json",
              "{\"model_type\":\"toy\",\"eos_token_id\":3,\"hidden_size\":99,\"text_config\":"
              "{\"model_type\":\"toy_text\",\"hidden_size\":16}}");
    assert_int_equal(open_toy(&m, 0), 0);
    assert_int_equal(m->shape.hidden, 16);
    assert_int_equal(m->eos[0], 3);
    model_close(m);
}

static void
refusals_name_the_file(void **state)
{
    (void)state;
    refused(",\"gated\":true", NULL, -EINVAL,
            "config.json: gated is a truth value, want an integer");
    refused(
        ",\"quantization_config\":{\"quant_method\":\"gptq\"}", NULL, -ENOTSUP,
        "config.json: quantization_config.quant_method is \"gptq\"; only \"mxfp4\" is implemented");
    refused(",\"per_layer_config\":{\"1\":{\"skip\":[\"mlp\"]}}", NULL, -ENOTSUP,
            "config.json: per_layer_config is set, which is not implemented for toy");
    refused(",\"is_causal\":false", NULL, -ENOTSUP,
            "config.json: is_causal is false, only true is implemented");
    refused(",\"transformers_weights\":\"other.safetensors\"", NULL, -ENOTSUP,
            "config.json: transformers_weights is set, which is not implemented");
    refused(",\"dtype\":\"int4\"", NULL, -ENOTSUP,
            "config.json: dtype is \"int4\", only float32, bfloat16 and float16 are implemented");
}

static void
max_len_option_can_only_reduce_the_length(void **state)
{
    struct model *m;

    (void)state;
    toy_config(&ckpt, "");
    assert_int_equal(open_toy(&m, 100), 0);
    assert_int_equal(m->shape.max_len, 100);
    model_close(m);
    assert_int_equal(open_toy(&m, 257), -EINVAL);
    assert_non_null(strstr(e.text, "max_model_len is 257, the model has only 256 positions"));
}

static void
previous_workers_arena_is_closed_if_loading_fails(void **state)
{
    struct model_source s = { .dir = ckpt.dir, .dtype = DT_COUNT };
    struct model *m = NULL;

    (void)state;
    toy_config(&ckpt, ""); /* but no weights */
    s.weights_fd = open("/dev/null", O_RDONLY);
    assert_int_equal(model_open(&m, &s, gpu, toy_families, &e), -ENOENT);
    assert_int_equal(fcntl(s.weights_fd, F_GETFD), -1);
    assert_null(m);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_ids_come_from_generation_config_then_config),
        cmocka_unit_test(absent_token_ids_are_none),
        cmocka_unit_test(outer_token_ids_of_a_nested_config_have_precedence),
        cmocka_unit_test(forced_bos_is_generated_first),
        cmocka_unit_test(encoder_decoder_without_decoder_start_uses_bos),
        cmocka_unit_test(token_ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(error_of_an_unknown_model_type_lists_the_implemented_types),
        cmocka_unit_test(nested_language_model_is_configured_from_text_config),
        cmocka_unit_test(refusals_name_the_file),
        cmocka_unit_test(max_len_option_can_only_reduce_the_length),
        cmocka_unit_test(previous_workers_arena_is_closed_if_loading_fails),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
