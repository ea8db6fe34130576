/* model_open() beside the weights: the family, token ids, lengths, and what is refused by name. */
#include "tests/model/tiny_model.h"
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

/* The toy with these keys in config.json and this generation_config.json (NULL: none). */
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
token_ids_that_nobody_states_are_none(void **state)
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

/* Gemma's text_config was saved with its class's eos, beside the [1, 106] that ends a turn. */
static void
of_a_nested_config_the_outer_token_ids_count(void **state)
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

/* The first BARTs' way to say forced_bos_token_id; generation_config.json goes before it. */
static void
bos_that_is_to_be_generated_is_forced(void **state)
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
an_encoder_decoder_without_a_start_begins_with_bos(void **state)
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
            "config.json: eos_token_id is 48, the vocabulary ends at 47");
    refused("", "{\"bos_token_id\":-2}", -EINVAL,
            "generation_config.json: bos_token_id is -2, the vocabulary ends at 47");
    refused("", "{\"bos_token_id\":\"1\"}", -EINVAL,
            "generation_config.json: bos_token_id is not an integer");
    refused(",\"forced_bos_token_id\":[1,2]", NULL, -ENOTSUP,
            "config.json: forced_bos_token_id has 2 ids, at most 1 are taken");
    refused(",\"eos_token_id\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", NULL, -ENOTSUP,
            "config.json: eos_token_id has 17 ids, at most 16 are taken");
}

static void
a_model_nobody_serves_is_refused_with_those_that_are(void **state)
{
    struct model *m;

    (void)state;
    ckpt_text(&ckpt, "config.json", "{\"model_type\":\"mamba\"}");
    assert_int_equal(open_toy(&m, 0), -ENOTSUP);
    assert_non_null(
        strstr(e.text, "config.json: model_type is \"mamba\"; toy, toy_text are implemented"));
    ckpt_text(&ckpt, "config.json", "{}");
    assert_int_equal(open_toy(&m, 0), -EINVAL);
    assert_non_null(strstr(e.text, "config.json: model_type is not set"));
}

static void
a_nested_language_model_is_configured_from_its_own_part(void **state)
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
what_a_family_refuses_is_said_with_the_file(void **state)
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
            "config.json: transformers_weights is set; files of other names are not read");
    refused(",\"dtype\":\"int4\"", NULL, -ENOTSUP,
            "config.json: dtype is \"int4\"; float32, bfloat16 and float16 are implemented");
}

static void
a_length_is_cut_but_never_stretched(void **state)
{
    struct model *m;

    (void)state;
    toy_config(&ckpt, "");
    assert_int_equal(open_toy(&m, 100), 0);
    assert_int_equal(m->shape.max_len, 100);
    model_close(m);
    assert_int_equal(open_toy(&m, 257), -EINVAL);
    assert_non_null(strstr(e.text, "max_len is 257, the model reaches 256 positions"));
}

static void
a_predecessors_arena_is_let_go_when_loading_fails(void **state)
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
        cmocka_unit_test(token_ids_that_nobody_states_are_none),
        cmocka_unit_test(of_a_nested_config_the_outer_token_ids_count),
        cmocka_unit_test(bos_that_is_to_be_generated_is_forced),
        cmocka_unit_test(an_encoder_decoder_without_a_start_begins_with_bos),
        cmocka_unit_test(token_ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(a_model_nobody_serves_is_refused_with_those_that_are),
        cmocka_unit_test(a_nested_language_model_is_configured_from_its_own_part),
        cmocka_unit_test(what_a_family_refuses_is_said_with_the_file),
        cmocka_unit_test(a_length_is_cut_but_never_stretched),
        cmocka_unit_test(a_predecessors_arena_is_let_go_when_loading_fails),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
