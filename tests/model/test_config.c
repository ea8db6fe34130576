/* test_config.c - published config.json files in both dialects; errors name the key. */
#include "tests/model/checkpoint_writer.h"
#include "tests/test.h"
#include "worker/model/config.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err e;

static json_t *
parse(const char *text)
{
    json_t *j = NULL;

    if (config_parse(&j, text, strlen(text), "config.json", &e) < 0) fail_msg("%s", e.text);
    return j;
}

static json_t *
read_data(const char *dir, const char *name)
{
    const char *srcdir = getenv("srcdir");
    char path[512];
    json_t *j = NULL;

    snprintf(path, sizeof path, "%s/tests/data/golden/%s", srcdir ? srcdir : ".", dir);
    if (config_read(&j, path, name, &e) < 0) fail_msg("%s", e.text);
    return j;
}

#define REFUSED(call, code, sentence) \
    do { \
        assert_int_equal(call, code); \
        assert_string_equal(e.text, sentence); \
    } while (0)

static void
error_of_a_wrong_type_names_key_and_type(void **state)
{
    json_t *j = parse("{\"n\":\"32\",\"f\":[],\"b\":1,\"s\":{},\"r\":8.5}");
    const char *s;
    uint32_t n;
    float f;
    bool b;

    (void)state;
    REFUSED(cfg_u32(j, "n", CFG_REQUIRED, 1, 9, &n, &e), -EINVAL, "n is a string, want an integer");
    REFUSED(cfg_u32(j, "r", CFG_REQUIRED, 1, 9, &n, &e), -EINVAL,
            "r is a fraction, want an integer");
    REFUSED(cfg_f32(j, "f", NAN, 0, 1, &f, &e), -EINVAL, "f is a list, want a number");
    REFUSED(cfg_f32(j, "s", NAN, 0, 1, &f, &e), -EINVAL, "s is an object, want a number");
    REFUSED(cfg_bool(j, "b", true, &b, &e), -EINVAL, "b is an integer, want true or false");
    REFUSED(cfg_str(j, "s", NULL, &s, &e), -EINVAL, "s is an object, want a string");
    json_decref(j);
}

static void
error_of_a_value_out_of_range_names_the_range(void **state)
{
    json_t *j = parse("{\"n\":0,\"m\":-5,\"big\":4294967297,\"f\":1.5,\"i\":Infinity}");
    uint32_t n;
    float f;

    (void)state;
    REFUSED(cfg_u32(j, "n", CFG_REQUIRED, 1, 128, &n, &e), -EINVAL, "n is 0, want 1 to 128");
    REFUSED(cfg_u32(j, "m", CFG_REQUIRED, 0, 128, &n, &e), -EINVAL, "m is -5, want 0 to 128");
    REFUSED(cfg_u32(j, "big", CFG_REQUIRED, 0, UINT32_MAX, &n, &e), -EINVAL,
            "big is 4294967297, want 0 to 4294967295");
    REFUSED(cfg_f32(j, "f", NAN, 0, 1, &f, &e), -EINVAL, "f is 1.5, want 0 to 1");
    REFUSED(cfg_f32(j, "i", NAN, 0, 1, &f, &e), -EINVAL, "i is inf, want 0 to 1");
    json_decref(j);
}

static void
limits_of_a_range_are_valid(void **state)
{
    json_t *j = parse("{\"a\":1,\"b\":128,\"c\":0.0,\"d\":1}");
    uint32_t n;
    float f;

    (void)state;
    assert_int_equal(cfg_u32(j, "a", CFG_REQUIRED, 1, 128, &n, &e), 0);
    assert_int_equal(cfg_u32(j, "b", CFG_REQUIRED, 1, 128, &n, &e), 0);
    assert_int_equal(n, 128);
    assert_int_equal(cfg_f32(j, "c", NAN, 0, 1, &f, &e), 0);
    assert_int_equal(cfg_f32(j, "d", NAN, 0, 1, &f, &e), 0);
    assert_true(f == 1);
    json_decref(j);
}

static void
absent_key_has_its_default_or_is_an_error(void **state)
{
    json_t *j = parse("{\"null\":null}");
    const char *s;
    uint32_t n;
    float f;
    bool b;

    (void)state;
    assert_int_equal(cfg_u32(j, "n", 7, 1, 9, &n, &e), 0);
    assert_int_equal(n, 7);
    assert_int_equal(cfg_u32(j, "null", 7, 1, 9, &n, &e), 0);
    assert_int_equal(n, 7);
    assert_int_equal(cfg_f32(j, "f", 0.5, 0, 1, &f, &e), 0);
    assert_true(f == 0.5f);
    assert_int_equal(cfg_bool(j, "b", true, &b, &e), 0);
    assert_true(b);
    assert_int_equal(cfg_str(j, "s", "silu", &s, &e), 0);
    assert_string_equal(s, "silu");
    REFUSED(cfg_u32(j, "null", CFG_REQUIRED, 1, 9, &n, &e), -EINVAL,
            "null is not set, and it has no default");
    REFUSED(cfg_f32(j, "f", NAN, 0, 1, &f, &e), -EINVAL, "f is not set, and it has no default");
    REFUSED(cfg_str(j, "s", NULL, &s, &e), -EINVAL, "s is not set, and it has no default");
    json_decref(j);
}

static void
cfg_state_distinguishes_null_from_absent(void **state)
{
    json_t *j = parse("{\"null\":null,\"set\":false}");

    (void)state;
    assert_int_equal(cfg_state(j, "none"), CFG_ABSENT);
    assert_int_equal(cfg_state(j, "null"), CFG_NULL);
    assert_int_equal(cfg_state(j, "set"), CFG_SET);
    json_decref(j);
}

static void
unsupported_flag_is_refused_by_name(void **state)
{
    json_t *j = parse("{\"attention_bias\":true}");

    (void)state;
    REFUSED(cfg_want_bool(j, "attention_bias", false, &e), -ENOTSUP,
            "attention_bias is true, only false is implemented");
    assert_int_equal(cfg_want_bool(j, "attention_bias", true, &e), 0);
    assert_int_equal(cfg_want_bool(j, "mlp_bias", false, &e), 0);
    json_decref(j);
}

static void
per_layer_list_must_have_an_entry_for_each_layer(void **state)
{
    json_t *j = parse("{\"t\":[\"a\",\"b\",3],\"u\":\"a\"}");
    const char *s;

    (void)state;
    assert_int_equal(cfg_str_at(j, "t", 1, 3, &s, &e), 0);
    assert_string_equal(s, "b");
    REFUSED(cfg_str_at(j, "t", 2, 3, &s, &e), -EINVAL, "t[2] is an integer, want a string");
    REFUSED(cfg_str_at(j, "t", 0, 4, &s, &e), -EINVAL,
            "t has 3 entries, but the model has 4 layers");
    REFUSED(cfg_str_at(j, "u", 0, 1, &s, &e), -EINVAL, "u is a string, want a list");
    REFUSED(cfg_str_at(j, "v", 0, 1, &s, &e), -EINVAL, "v is not set, and it has no default");
    json_decref(j);
}

static void
infinity_is_read_in_both_spellings_but_not_in_strings(void **state)
{
    json_t *j = parse("{\"a\":Infinity,\"b\":[-Infinity,NaN],\"c\":{\"__float__\":\"Infinity\"},"
                      "\"d\":\"Infinity \\\" NaN\",\"NaN\":1}");
    const char *s;
    uint32_t n;
    float f;

    (void)state;
    assert_int_equal(cfg_f32(j, "a", NAN, 0, INFINITY, &f, &e), 0);
    assert_true(isinf(f));
    assert_int_equal(cfg_f32(j, "c", NAN, 0, INFINITY, &f, &e), 0);
    assert_true(isinf(f));
    assert_int_equal(cfg_str(j, "d", NULL, &s, &e), 0);
    assert_string_equal(s, "Infinity \" NaN");
    assert_int_equal(cfg_u32(j, "NaN", CFG_REQUIRED, 1, 1, &n, &e), 0);
    json_decref(j);
    j = parse("{\"a\":{\"__float__\":\"NaN\"},\"b\":{\"__float__\":\"Info\"},\"c\":-Infinity}");
    REFUSED(cfg_f32(j, "a", NAN, -INFINITY, INFINITY, &f, &e), -EINVAL,
            "a is nan, want -inf to inf");
    REFUSED(cfg_f32(j, "b", NAN, 0, 1, &f, &e), -EINVAL, "b is an object, want a number");
    assert_int_equal(cfg_f32(j, "c", NAN, -INFINITY, INFINITY, &f, &e), 0);
    assert_true(f == -INFINITY);
    json_decref(j);
}

static int
parse_code(const char *text)
{
    json_t *j = NULL;
    int code = config_parse(&j, text, strlen(text), "config.json", &e);

    json_decref(j);
    return code;
}

static void
config_that_is_not_one_object_is_refused(void **state)
{
    (void)state;
    assert_int_equal(parse_code("{\"a\":1,\"a\":2}"), -EBADMSG);
    assert_non_null(strstr(e.text, "config.json: line 1, column"));
    assert_non_null(strstr(e.text, "duplicate"));
    assert_int_equal(parse_code("{\"a\":1}\n{"), -EBADMSG);
    assert_non_null(strstr(e.text, "config.json: line 2"));
    assert_int_equal(parse_code("[1]"), -EBADMSG);
    assert_string_equal(e.text, "config.json is not a JSON object");
    assert_int_equal(parse_code(""), -EBADMSG);
    assert_int_equal(parse_code("{\"a\":Infinityx}"), -EBADMSG);
}

static void
multimodal_config_yields_its_language_model(void **state)
{
    json_t *whole = parse(
        "{\"model_type\":\"gemma3\",\"torch_dtype\":\"bfloat16\",\"eos_token_id\":"
        "[1,106],\"hidden_size\":9,\"text_config\":{\"model_type\":"
        "\"gemma3_text\",\"hidden_size\":2560,\"eos_token_id\":null}}");
    json_t *plain = parse("{\"hidden_size\":7}"), *text;
    const char *s;
    uint32_t n;

    (void)state;
    assert_int_equal(config_text(&text, whole, &e), 0);
    assert_int_equal(cfg_str(text, "model_type", NULL, &s, &e), 0);
    assert_string_equal(s, "gemma3_text");
    assert_int_equal(cfg_u32(text, "hidden_size", CFG_REQUIRED, 1, 9999, &n, &e), 0);
    assert_int_equal(n, 2560);
    assert_int_equal(json_array_size(json_object_get(text, "eos_token_id")), 2);
    assert_int_equal(cfg_dtype(text, &s, &e), 0);
    assert_string_equal(s, "bfloat16");
    assert_int_equal(cfg_state(json_object_get(whole, "text_config"), "torch_dtype"), CFG_ABSENT);
    json_decref(text);
    json_decref(whole);

    assert_int_equal(config_text(&text, plain, &e), 0);
    assert_ptr_equal(text, plain);
    json_decref(text);
    json_decref(plain);

    whole = parse("{\"text_config\":3}");
    REFUSED(config_text(&text, whole, &e), -EINVAL, "text_config is not an object");
    json_decref(whole);
}

static void
dtype_is_read_in_both_dialects(void **state)
{
    static const char *const text[] = { "{\"dtype\":\"float16\"}", "{\"torch_dtype\":\"float16\"}",
                                        "{\"torch_dtype\":\"torch.float16\"}",
                                        "{\"dtype\":\"float16\",\"torch_dtype\":\"float32\"}" };
    const char *s;
    json_t *j;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(text); i++) {
        j = parse(text[i]);
        assert_int_equal(cfg_dtype(j, &s, &e), 0);
        assert_string_equal(s, "float16");
        json_decref(j);
    }
    j = parse("{\"dtype\":null}");
    assert_int_equal(cfg_dtype(j, &s, &e), 0);
    assert_null(s);
    json_decref(j);
}

static void
both_dialects_give_the_same_rotary_parameters(void **state)
{
    static const struct {
        const char *dir, *kind;
        enum rope_type type;
        double theta;
    } want[] = {
        { "llama2", NULL, ROPE_DEFAULT, 1e4 },
        { "llama3", NULL, ROPE_LLAMA3, 5000 },
        { "mistral", NULL, ROPE_DEFAULT, 1e4 },
        { "gemma3", "full_attention", ROPE_LINEAR, 1e6 },
        { "gemma3", "sliding_attention", ROPE_DEFAULT, 1e4 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        json_t *new = read_data(want[i].dir, "config.json");
        json_t *old = read_data(want[i].dir, "config_legacy.json");
        struct rope_params a, b;

        /* A default that differs from the files' values, so that an unread value is detected. */
        assert_int_equal(cfg_rope(new, want[i].kind, 77, &a, &e), 0);
        assert_int_equal(cfg_rope(old, want[i].kind, 77, &b, &e), 0);
        assert_int_equal(a.type, want[i].type);
        assert_true(a.theta == want[i].theta);
        assert_int_equal(a.type, b.type);
        assert_true(a.theta == b.theta && a.factor == b.factor && a.low == b.low);
        assert_true(a.high == b.high && a.original_max == b.original_max && a.partial == b.partial);
        if (a.type != ROPE_DEFAULT) assert_true(a.factor == 8);
        if (a.type == ROPE_LLAMA3) assert_true(a.low == 1 && a.high == 4 && a.original_max == 64);
        json_decref(new);
        json_decref(old);
    }
}

static int
rope(const char *text, const char *kind, struct rope_params *r)
{
    json_t *j = parse(text);
    int code = cfg_rope(j, kind, 1e4, r, &e);

    json_decref(j);
    return code;
}

static void
rotary_parameters_are_refused_by_name(void **state)
{
    struct rope_params r;

    (void)state;
    REFUSED(rope("{\"rope_scaling\":{\"type\":\"su\",\"factor\":2}}", NULL, &r), -ENOTSUP,
            "rope_scaling: rope_type is su; default, linear, dynamic, llama3, yarn, longrope and "
            "proportional are implemented");
    REFUSED(rope("{\"rope_scaling\":{\"type\":\"dynamic\"}}", NULL, &r), -EINVAL,
            "rope_scaling: factor is not set, and it has no default");
    REFUSED(rope("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1]}}", NULL, &r),
            -EINVAL, "rope_scaling: long_factor has 0 entries, want a list of 1 to 256 numbers");
    REFUSED(rope("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],"
                 "\"long_factor\":[1,0]}}",
                 NULL, &r),
            -EINVAL, "rope_scaling: long_factor[1] is 0 or no number, want 0.001 to 1e6");
    REFUSED(rope("{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],"
                 "\"long_factor\":[1,2]}}",
                 NULL, &r),
            -EINVAL, "rope_scaling: short_factor has 1 entries, long_factor has 2, want equal");
    REFUSED(rope("{\"rope_parameters\":{\"rope_type\":\"linear\"}}", NULL, &r), -EINVAL,
            "rope_parameters: factor is not set, and it has no default");
    REFUSED(
        rope("{\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
             "\"high_freq_factor\":4}}",
             NULL, &r),
        -EINVAL, "rope_parameters: low_freq_factor is 4, want less than high_freq_factor, 4");
    REFUSED(rope("{\"rope_scaling\":3}", NULL, &r), -EINVAL, "rope_scaling is not an object");
    REFUSED(rope("{\"rope_theta\":1}", NULL, &r), -EINVAL, "rope_theta is 1, want 1.001 to 1e+12");
    REFUSED(rope("{\"rope_parameters\":{\"full_attention\":{}}}", NULL, &r), -ENOTSUP,
            "rope_parameters for each kind of layer is not implemented for this architecture");
    REFUSED(rope("{\"rope_parameters\":{\"full_attention\":{}}}", "sliding_attention", &r), -EINVAL,
            "rope_parameters.sliding_attention is missing or is not an object");
    REFUSED(rope("{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"mscale\":1,"
                 "\"original_max_position_embeddings\":4}}",
                 NULL, &r),
            -ENOTSUP, "rope_scaling: mscale or mscale_all_dim is set; neither is implemented");
}

static void
rotary_parameters_have_defaults(void **state)
{
    struct rope_params r;

    (void)state;
    assert_int_equal(rope("{\"rope_scaling\":null}", NULL, &r), 0);
    assert_true(r.type == ROPE_DEFAULT && r.theta == 1e4 && r.partial == 1 && r.factor == 1);
    assert_int_equal(rope("{\"rope_theta\":7,\"partial_rotary_factor\":0.5}", NULL, &r), 0);
    assert_true(r.theta == 7 && r.partial == 0.5);
    assert_int_equal(
        rope("{\"max_position_embeddings\":99,\"rope_scaling\":{\"rope_type\":\"yarn\","
             "\"factor\":4,\"truncate\":false}}",
             NULL, &r),
        0);
    assert_true(r.beta_fast == 32 && r.beta_slow == 1 && r.original_max == 99 && !r.truncate);
    assert_true(isnan(r.attention_factor));
    assert_int_equal(rope("{\"max_position_embeddings\":96,\"rope_scaling\":{\"type\":\"longrope\","
                          "\"original_max_position_embeddings\":32,"
                          "\"short_factor\":[1,2],\"long_factor\":[3,4]}}",
                          NULL, &r),
                     0);
    assert_true(r.type == ROPE_LONGROPE && r.factor == 3 && r.original_max == 32);
    assert_true(r.n_divisors == 2 && r.divisor[ROPE_SHORT][1] == 2 && r.divisor[ROPE_LONG][0] == 3);
    /* The older dialect never scales sliding layers. */
    assert_int_equal(rope("{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},"
                          "\"rope_theta\":1e6}",
                          "sliding_attention", &r),
                     0);
    assert_true(r.type == ROPE_DEFAULT && r.theta == 1e4);
}

/* Added to a file of the newer dialect; and outside, as in long-context files. */
static void
rope_scaling_counts_beside_rope_parameters_and_the_original_length_outside(void **state)
{
    static const char both[] =
        "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5},"
        "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
        "\"original_max_position_embeddings\":64}}";
    struct rope_params r;

    (void)state;
    assert_int_equal(rope(both, NULL, &r), 0);
    assert_int_equal(r.type, ROPE_YARN);
    assert_true(r.factor == 4 && r.original_max == 64 && r.theta == 1e4);
    REFUSED(rope(both, "full_attention", &r), -ENOTSUP,
            "rope_parameters and rope_scaling are both set, which is not implemented");
    assert_int_equal(
        rope("{\"rope_parameters\":{\"rope_theta\":5e5},\"rope_scaling\":{}}", NULL, &r), 0);
    assert_true(r.type == ROPE_DEFAULT && r.theta == 5e5);
    assert_int_equal(rope("{\"original_max_position_embeddings\":128,\"rope_parameters\":{"
                          "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                          "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
                          NULL, &r),
                     0);
    assert_true(r.original_max == 128);
}

static void
error_names_a_file_that_cannot_be_read(void **state)
{
    struct ckpt c;
    json_t *j;
    char path[512], want[600];

    (void)state;
    ckpt_open(&c);
    snprintf(want, sizeof want, "%s/config.json: No such file or directory", c.dir);
    REFUSED(config_read(&j, c.dir, "config.json", &e), -ENOENT, want);
    snprintf(want, sizeof want, "%s/. is not a regular file", c.dir);
    REFUSED(config_read(&j, c.dir, ".", &e), -EINVAL, want);
    ckpt_text(&c, "config.json", "{");
    snprintf(path, sizeof path, "%s/config.json", c.dir);
    assert_int_equal(truncate(path, CFG_MAX_BYTES + 1), 0);
    snprintf(want, sizeof want, "%s has 16777217 bytes; the maximum is 16777216", path);
    REFUSED(config_read(&j, c.dir, "config.json", &e), -EFBIG, want);
    ckpt_close(&c);
}

/* Without O_NONBLOCK, opening a pipe waits for a writer. */
static void
pipe_instead_of_a_config_is_refused_without_blocking(void **state)
{
    struct ckpt c;
    json_t *j;
    char path[512], want[600];

    (void)state;
    ckpt_open(&c);
    snprintf(path, sizeof path, "%s/config.json", c.dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(want, sizeof want, "%s is not a regular file", path);
    alarm(60);
    REFUSED(config_read(&j, c.dir, "config.json", &e), -EINVAL, want);
    alarm(0);
    ckpt_close(&c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_of_a_wrong_type_names_key_and_type),
        cmocka_unit_test(error_of_a_value_out_of_range_names_the_range),
        cmocka_unit_test(limits_of_a_range_are_valid),
        cmocka_unit_test(absent_key_has_its_default_or_is_an_error),
        cmocka_unit_test(cfg_state_distinguishes_null_from_absent),
        cmocka_unit_test(unsupported_flag_is_refused_by_name),
        cmocka_unit_test(per_layer_list_must_have_an_entry_for_each_layer),
        cmocka_unit_test(infinity_is_read_in_both_spellings_but_not_in_strings),
        cmocka_unit_test(config_that_is_not_one_object_is_refused),
        cmocka_unit_test(multimodal_config_yields_its_language_model),
        cmocka_unit_test(dtype_is_read_in_both_dialects),
        cmocka_unit_test(both_dialects_give_the_same_rotary_parameters),
        cmocka_unit_test(rotary_parameters_are_refused_by_name),
        cmocka_unit_test(rotary_parameters_have_defaults),
        cmocka_unit_test(
            rope_scaling_counts_beside_rope_parameters_and_the_original_length_outside),
        cmocka_unit_test(error_names_a_file_that_cannot_be_read),
        cmocka_unit_test(pipe_instead_of_a_config_is_refused_without_blocking),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
