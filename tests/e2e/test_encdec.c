/* test_encdec.c - keys of encoder-decoder requests: forced tokens, prefixes, defaults, languages.
 *
 * A model is a golden checkpoint with one other file. A request with the defaults of generate()
 * is compared with a request that spells them out, and a forced token with the same token given
 * as a prefix.
 */
#include "base/base.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST = 64, TEXT = 512 };

/* The bits must be equal after a kill, also on a GPU. */
static const char *const small[] = { "max_num_seqs=8",
                                     "kv.memory=16MiB",
                                     "max_source_tokens=64",
                                     "threads=2",
                                     "dtype=fp32",
                                     "numerics=invariant",
                                     NULL };
static const char *const random_weights[] = { "max_num_seqs=8",
                                              "kv.memory=16MiB",
                                              "max_source_tokens=64",
                                              "threads=2",
                                              "dtype=fp32",
                                              "weights=random:7",
                                              NULL };

/* A model directory of its own: names and contents of files, ends with NULL; a content "@path"
 * is a link. */
struct dir {
    char path[64];
};

static void
put_file(const struct dir *d, const char *name, const char *content)
{
    char path[160], target[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", d->path, name);
    if (*content == '@') {
        assert_non_null(realpath(source_path(content + 1), target));
        assert_int_equal(symlink(target, path), 0);
        return;
    }
    f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(content, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void
dir_make(struct dir *d, const char *const *files)
{
    strcpy(d->path, "/tmp/lagan-model-XXXXXX");
    assert_non_null(mkdtemp(d->path));
    for (; *files; files += 2) put_file(d, files[0], files[1]);
}

static void
dir_remove(const struct dir *d)
{
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", d->path);
    assert_int_equal(system(command), 0);
}

static char *
read_whole(const char *below, size_t *n)
{
    FILE *f = fopen(source_path(below), "re");
    char *bytes;

    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    bytes = malloc(*n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    return bytes;
}

struct tensor {
    float *value;
    size_t n;
    uint32_t cols;
};
struct result {
    struct tensor states, logits;
    uint32_t n;
    int32_t id[MOST];
    char text[TEXT], finish[32], message[256];
};

static const int32_t source[] = { 0, 69, 270, 101, 45, 2 };

static struct lagan_request *
asked(uint64_t max_tokens)
{
    struct lagan_request *r = lagan_request_new();

    lagan_set_ids(r, "ids", source, ARRAY_LEN(source));
    if (max_tokens) lagan_set_int(r, "max_tokens", (int64_t)max_tokens);
    return r;
}

static void
add_values(struct tensor *t, const struct lagan_event *ev)
{
    assert_true(ev->first_value == t->n && (!t->n || ev->cols == t->cols));
    t->value = realloc(t->value, (t->n + ev->n_values) * sizeof *t->value);
    assert_non_null(t->value);
    memcpy(t->value + t->n, ev->values, ev->n_values * sizeof *t->value);
    t->n += ev->n_values;
    t->cols = ev->cols;
}

/* victim: killed after the first tokens; 0: no kill. */
static void
result_after_kill(struct lagan *c, struct lagan_request *r, struct result *a, pid_t victim)
{
    size_t len = 0;
    uint64_t id;

    memset(a, 0, sizeof *a);
    assert_int_equal(lagan_submit(c, r, &id), 0);
    lagan_request_free(r);
    for (;;) {
        struct lagan_event ev = { .size = sizeof ev };

        assert_int_equal(lagan_next(c, &ev, 20000), 1);
        assert_true(ev.id == id);
        if (ev.kind == LAGAN_EVENT_TOKENS) {
            assert_true(a->n + ev.n_ids <= MOST && len + ev.text_len < TEXT);
            for (uint32_t i = 0; ev.logprob && i < ev.n_ids; i++)
                assert_true(isfinite(ev.logprob[i]));
            memcpy(a->id + a->n, ev.ids, ev.n_ids * sizeof *ev.ids);
            if (ev.text_len) memcpy(a->text + len, ev.text, ev.text_len);
            a->n += ev.n_ids;
            len += ev.text_len;
            if (victim) assert_int_equal(kill(victim, SIGKILL), 0);
            victim = 0;
        }
        if (ev.kind == LAGAN_EVENT_TENSOR)
            add_values(strcmp(ev.tensor_name, "logits") ? &a->states : &a->logits, &ev);
        if (ev.kind == LAGAN_EVENT_OUTPUT || ev.kind == LAGAN_EVENT_ERROR)
            snprintf(a->finish, sizeof a->finish, "%s", ev.reason_name);
        if (ev.kind == LAGAN_EVENT_ERROR && ev.message)
            snprintf(a->message, sizeof a->message, "%s", ev.message);
        if (ev.kind == LAGAN_EVENT_DONE || ev.kind == LAGAN_EVENT_ERROR) return;
    }
}

static void
get_result(struct lagan *c, struct lagan_request *r, struct result *a)
{
    result_after_kill(c, r, a, 0);
}

static void
assert_same(const struct result *a, const struct result *b)
{
    assert_string_equal(a->message, "");
    assert_string_equal(a->finish, b->finish);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->id, b->id, a->n * sizeof *a->id);
}

static void
serve_fixture(struct serve *s, struct lagan **c, const char *model, const char *const *set)
{
    assert_true(serve_start(s, model, set));
    assert_int_equal(lagan_open(c, s->endpoint, 5000), 0);
}

static void
stop(struct serve *s, struct lagan *c)
{
    lagan_close(c);
    serve_stop(s);
}

static void
a_forced_first_token_is_as_good_as_a_given_one_and_the_last_one_ends(void **state)
{
    static const char *const models[] = { "tests/data/golden/bart", "tests/data/golden/mbart" };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        const int32_t prefix[] = { 2, 17 };
        struct result forced, given;
        struct lagan_request *r;
        struct serve s;
        struct lagan *c;

        serve_fixture(&s, &c, models[i], small);
        r = asked(12);
        lagan_set_bool(r, "ignore_eos", 1);
        lagan_set_int(r, "forced_bos", 17);
        get_result(c, r, &forced);
        r = asked(11);
        lagan_set_bool(r, "ignore_eos", 1);
        lagan_set_ids(r, "decoder_ids", prefix, 2);
        lagan_set_int(r, "forced_bos", -1);
        get_result(c, r, &given);
        assert_int_equal(forced.n, 12);
        assert_int_equal(given.n, 11);
        assert_int_equal(forced.id[0], 17);
        assert_int_equal(forced.id[11], 2); /* the model's forced_eos_token_id */
        assert_memory_equal(forced.id + 1, given.id, 11 * sizeof *given.id);
        r = asked(12);
        lagan_set_int(r, "forced_bos", -1);
        lagan_set_int(r, "forced_eos", 9);
        lagan_set_int(r, "min_tokens", 12); /* forced is the later rule */
        get_result(c, r, &given);
        assert_int_equal(given.n, 12);
        assert_int_equal(given.id[11], 9);
        for (uint32_t k = 0; k < 11; k++) assert_int_not_equal(given.id[k], 2);
        stop(&s, c);
    }
}

#define BART(generation) \
    { \
        "config.json", "@tests/data/golden/bart/config.json", "model.safetensors", \
            "@tests/data/golden/bart/model.safetensors", "generation_config.json", generation, \
            NULL \
    }

static void
with_defaults(const char *generation, void (*spell)(struct lagan_request *r), const int32_t *prefix,
              uint32_t n_prefix)
{
    const char *const files[] = BART(generation);
    struct result a, b;
    struct lagan_request *r;
    struct serve s;
    struct lagan *c;
    struct dir d;

    dir_make(&d, files);
    serve_fixture(&s, &c, d.path, small);
    for (int k = 0; k < 3; k++) {
        r = asked(0);
        lagan_set_int(r, "seed", 11);
        if (n_prefix) lagan_set_ids(r, "decoder_ids", prefix, n_prefix);
        if (k == 0)
            spell(r);
        else
            lagan_set_bool(r, "model_defaults", 1);
        result_after_kill(c, r, k ? &b : &a, k == 2 ? serve_worker(&s) : 0);
        if (k) assert_same(&b, &a);
    }
    stop(&s, c);
    dir_remove(&d);
}

static void
greedy_lengths(struct lagan_request *r)
{
    lagan_set_int(r, "max_tokens", 11); /* of 12 with the start token */
    lagan_set_int(r, "min_tokens", 7);
    lagan_set_float(r, "repetition_penalty", 1.5);
}

static void
lengths_behind_a_prefix(struct lagan_request *r)
{
    lagan_set_int(r, "max_tokens", 9);
    lagan_set_int(r, "min_tokens", 5);
    lagan_set_float(r, "repetition_penalty", 1.5);
}

static void
sampling(struct lagan_request *r)
{
    lagan_set_int(r, "max_tokens", 30);
    lagan_set_float(r, "temperature", 1.5);
    lagan_set_int(r, "top_k", 50); /* generate()'s own */
    lagan_set_float(r, "top_p", 0.9);
}

static void
no_defaults(struct lagan_request *r)
{
    lagan_set_int(r, "max_tokens", 20);
}

static void
model_defaults_are_the_values_of_the_file(void **state)
{
    static const int32_t prefix[] = { 2, 17, 30 };
#define IDS "\"decoder_start_token_id\":2,\"eos_token_id\":2,\"forced_eos_token_id\":2,"
#define LENGTHS \
    "\"max_length\":12,\"min_length\":8,\"repetition_penalty\":1.5,\"num_beams\":1,\"top_k\":9}"

    (void)state;
    with_defaults("{" IDS "\"forced_bos_token_id\":0," LENGTHS, greedy_lengths, NULL, 0);
    with_defaults("{" IDS LENGTHS, lengths_behind_a_prefix, prefix, 3);
    with_defaults("{" IDS "\"do_sample\":true,\"temperature\":1.5,\"top_p\":0.9,"
                  "\"max_new_tokens\":30,\"max_length\":5}",
                  sampling, NULL, 0);
    with_defaults("{\"decoder_start_token_id\":2}", no_defaults, NULL, 0);
}

static void
a_default_that_is_not_served_is_refused_by_name_and_only_when_asked_for(void **state)
{
    static const char *const generation[][2] = {
        { "{\"decoder_start_token_id\":2,\"suppress_tokens\":[5]}", "suppress_tokens" },
        { "{\"decoder_start_token_id\":2,\"typical_p\":0.5}", "typical_p" },
        { "{\"decoder_start_token_id\":2,\"top_h\":0.4}", "top_h" },
        { "{\"decoder_start_token_id\":2,\"top_p\":\"x\"}", "top_p" },
        { "{\"decoder_start_token_id\":2,\"max_length\":1}", "max_length" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(generation); i++) {
        const char *const files[] = BART(generation[i][0]);
        struct lagan_request *r = asked(0);
        struct result a;
        struct serve s;
        struct lagan *c;
        struct dir d;

        dir_make(&d, files);
        serve_fixture(&s, &c, d.path, small);
        lagan_set_bool(r, "model_defaults", 1);
        get_result(c, r, &a);
        assert_int_equal(a.n, 0);
        assert_non_null(strstr(a.message, generation[i][1]));
        get_result(c, asked(3), &a);
        assert_in_range(a.n, 1, 3);
        stop(&s, c);
        dir_remove(&d);
    }
}

/* mBART-50: the encoder input begins with its language and ends with </s>; the language of the
 * output is forced. */
static void
languages_of_mbart_frame_the_source_and_begin_the_output(void **state)
{
    static const int32_t framed[] = { 516, 4, 3, 7, 6, 42, 7, 2 };
    static const char *const files[] = {
        "config.json",
        "{\"model_type\":\"mbart\",\"d_model\":64,\"encoder_layers\":2,\"decoder_layers\":2,"
        "\"encoder_attention_heads\":2,\"decoder_attention_heads\":2,\"encoder_ffn_dim\":96,"
        "\"decoder_ffn_dim\":96,\"max_position_embeddings\":128,\"vocab_size\":566,"
        "\"scale_embedding\":true,\"activation_function\":\"relu\",\"eos_token_id\":2,"
        "\"decoder_start_token_id\":2,\"forced_eos_token_id\":2}",
        "tokenizer.json", "@tests/data/tokenizers/spm_mbart/tokenizer.json", NULL
    };
    struct result by_text, by_ids;
    struct lagan_request *r;
    struct serve s;
    struct lagan *c;
    struct dir d;

    (void)state;
    dir_make(&d, files);
    serve_fixture(&s, &c, d.path, random_weights);
    for (int k = 0; k < 2; k++) {
        r = lagan_request_new();
        if (k == 0) lagan_set_str(r, "text", "\xf0\x9f\x98\x80text", 8);
        if (k == 1) lagan_set_ids(r, "ids", framed, ARRAY_LEN(framed));
        lagan_set_int(r, "max_tokens", 24);
        lagan_set_int(r, "forced_bos", 563); /* gl_ES */
        get_result(c, r, k ? &by_ids : &by_text);
    }
    assert_same(&by_text, &by_ids);
    assert_string_equal(by_text.text, by_ids.text);
    assert_int_equal(by_text.id[0], 563);
    assert_null(strstr(by_text.text, "gl_ES")); /* special tokens are no text */
    stop(&s, c);
    dir_remove(&d);
}

/* t5_relu with every wo times 30,000: what its feed-forwards add is far beyond fp16's 65,504. */
static void
with_large_wo(const struct dir *d)
{
    size_t size;
    char path[160], *bytes = read_whole("tests/data/golden/t5_relu/model.safetensors", &size);
    uint64_t header;
    const char *key;
    json_t *o, *v;
    FILE *f;

    memcpy(&header, bytes, 8);
    o = json_loadb(bytes + 8, header, 0, NULL);
    assert_non_null(o);
    json_object_foreach(o, key, v)
    {
        json_t *at = json_object_get(v, "data_offsets");
        size_t n = strlen(key);

        if (n < 9 || strcmp(key + n - 9, "wo.weight")) continue;
        for (json_int_t i = json_integer_value(json_array_get(at, 0));
             i < json_integer_value(json_array_get(at, 1)); i += 4) {
            char *p = bytes + 8 + header + i;
            float w;

            memcpy(&w, p, 4);
            w *= 30000;
            memcpy(p, &w, 4);
        }
    }
    json_decref(o);
    snprintf(path, sizeof path, "%s/model.safetensors", d->path);
    f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static void
t5_in_fp16_stays_finite_where_its_sublayers_do_not(void **state)
{
    static const char *const files[] = { "config.json", "@tests/data/golden/t5_relu/config.json",
                                         NULL };
    static const char *const dtype[] = { "dtype=fp32", "dtype=fp16" };
    struct result a[2];
    struct dir d;

    (void)state;
    dir_make(&d, files);
    with_large_wo(&d);
    for (int k = 0; k < 2; k++) {
        const char *set[] = { "max_num_seqs=8", "kv.memory=16MiB", dtype[k], NULL };
        struct lagan_request *r = asked(8);
        struct serve s;
        struct lagan *c;

        serve_fixture(&s, &c, d.path, set);
        lagan_set_bool(r, "ignore_eos", 1);
        lagan_set_int(r, "logprobs", 1);
        get_result(c, r, &a[k]);
        stop(&s, c);
    }
    assert_same(&a[1], &a[0]);
    dir_remove(&d);
}

static int32_t *
ids_of(const json_t *list, size_t *n)
{
    int32_t *ids;

    *n = json_array_size(list);
    ids = malloc((*n + 1) * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

/* Ids of the prompt of that name in a fixture's expected.json; NULL: it has none of that key. */
static int32_t *
ids_of_prompt(const json_t *o, const char *name, const char *key, size_t *n)
{
    const json_t *list = json_object_get(o, "prompts"), *p;

    for (size_t i = 0; (p = json_array_get(list, i)); i++)
        if (!strcmp(json_string_value(json_object_get(p, "name")), name))
            return json_object_get(p, key) ? ids_of(json_object_get(p, key), n) : NULL;
    fail_msg("no prompt %s", name);
    return NULL;
}

static int32_t *
prompt_ids(const json_t *o, const char *name, size_t *n)
{
    return ids_of_prompt(o, name, "input_ids", n);
}

static json_t *
expectations(const char *model)
{
    char path[128], *text;
    size_t size;
    json_t *o;

    snprintf(path, sizeof path, "%s/expected.json", model);
    text = read_whole(path, &size);
    o = json_loadb(text, size, 0, NULL);
    free(text);
    assert_non_null(o);
    return o;
}

/* bart-large-cnn's settings, mBART-50's, T5's: beams, penalties, lengths, forced tokens. */
static void
the_fixtures_generation_configs_give_what_generate_gives(void **state)
{
    static const char *const models[] = { "tests/data/golden/bart", "tests/data/golden/mbart",
                                          "tests/data/golden/t5_gated" };
    const char *const set[] = { "max_num_seqs=8", "kv.memory=16MiB", "threads=2", "dtype=fp32",
                                NULL };

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(models); k++) {
        json_t *o = expectations(models[k]), *beams = json_object_get(o, "beams"), *b;
        uint32_t n_tried = 0;
        struct serve s;
        struct lagan *c;

        serve_fixture(&s, &c, models[k], set);
        for (size_t i = 0; (b = json_array_get(beams, i)); i++) {
            struct lagan_request *r;
            struct result a;
            size_t n_ids, n_want;
            int32_t *ids, *want;

            if (!json_is_string(json_object_get(b, "params"))) continue;
            ids = prompt_ids(o, json_string_value(json_object_get(b, "prompt")), &n_ids);
            want = ids_of(json_array_get(json_object_get(b, "sequences"), 0), &n_want);
            r = lagan_request_new();
            lagan_set_ids(r, "ids", ids, n_ids);
            lagan_set_bool(r, "model_defaults", 1);
            get_result(c, r, &a);
            assert_string_equal(a.message, "");
            assert_int_equal(a.n, n_want - 1); /* behind the decoder's start */
            assert_memory_equal(a.id, want + 1, a.n * sizeof *want);
            n_tried++;
            free(ids);
            free(want);
        }
        assert_true(n_tried >= 7);
        stop(&s, c);
        json_decref(o);
    }
}

/* Returns a tensor of expected.safetensors and its number of values; the caller frees *file. */
static const float *
expected(const char *model, const char *name, char **file, size_t *n)
{
    char path[128];
    uint64_t header;
    json_t *o, *at;
    const float *p;
    size_t size;

    snprintf(path, sizeof path, "%s/expected.safetensors", model);
    *file = read_whole(path, &size);
    memcpy(&header, *file, 8);
    o = json_loadb(*file + 8, header, 0, NULL);
    at = json_object_get(json_object_get(o, name), "data_offsets");
    assert_non_null(at);
    p = (const float *)(const void *)(*file + 8 + header +
                                      json_integer_value(json_array_get(at, 0)));
    *n = (size_t)(json_integer_value(json_array_get(at, 1)) -
                  json_integer_value(json_array_get(at, 0))) /
         sizeof *p;
    json_decref(o);
    return p;
}

/* A prompt of a fixture, by its name. */
static struct lagan_request *
golden_prompt(const char *model, const char *name, uint32_t max_tokens)
{
    struct lagan_request *r = lagan_request_new();
    json_t *o = expectations(model);
    size_t n;
    int32_t *ids = prompt_ids(o, name, &n);

    lagan_set_ids(r, "ids", ids, n);
    free(ids);
    json_decref(o);
    lagan_set_int(r, "max_tokens", max_tokens);
    lagan_set_int(r, "forced_eos", -1);
    lagan_set_bool(r, "ignore_eos", 1);
    return r;
}

/* As a part of the largest. */
static double
worst(const float *got, const float *want, size_t n)
{
    double most = 0, off = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);

        most = fmax(most, fabs((double)want[i]));
        if (!(d <= off)) off = d;
    }
    return off / most;
}

/* Compares the encoder output of a prompt several times: computed, cached, and, if killed, after
 * the death of the worker. */
static void
check_states(struct lagan *c, const struct serve *s, const char *model, const char *prompt,
             bool killed)
{
    char name[32], *file;
    size_t n;
    const float *want;

    snprintf(name, sizeof name, "%s.encoder_last", prompt);
    want = expected(model, name, &file, &n);
    for (int k = 0; k < (killed ? 3 : 2); k++) {
        struct lagan_request *r = golden_prompt(model, prompt, 20);
        struct result a;

        lagan_set_bool(r, "return_encoder_output", 1);
        result_after_kill(c, r, &a, k == 2 ? serve_worker(s) : 0);
        assert_int_equal(a.n, 20);
        assert_int_equal(a.states.n, n);
        assert_true(worst(a.states.value, want, n) <= 1e-4);
        assert_int_equal(a.logits.n, 0);
        free(a.states.value);
    }
    free(file);
}

static void
an_encoders_states_are_those_of_transformers_also_of_a_cached_input(void **state)
{
    static const char *const models[] = { "tests/data/golden/bart", "tests/data/golden/mbart",
                                          "tests/data/golden/t5_relu",
                                          "tests/data/golden/t5_gated" };
    static const char *const prompts[] = { "p0", "p1", "p2", "p3", "p4", "p5", "p6" };
    const char *set[] = { "max_num_seqs=8", "kv.memory=16MiB", "threads=2",
                          "dtype=fp32",     "kv.reuse=true",   NULL };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct serve s;
        struct lagan *c;

        serve_fixture(&s, &c, models[i], set);
        for (size_t p = 0; p < ARRAY_LEN(prompts); p++)
            check_states(c, &s, models[i], prompts[p], true);
        stop(&s, c);
    }
}

static void
logits_are_of_every_new_token_with_forced_tokens_and_after_kills(void **state)
{
    static const char MODEL[] = "tests/data/golden/mbart";
    struct result a, b = { 0 };
    size_t n;
    char *file;
    struct serve s;
    struct lagan *c;
    const float *want = expected(MODEL, "p3.logits_last", &file, &n);

    (void)state;
    serve_fixture(&s, &c, MODEL, small);
    for (int k = 0; k < 3; k++) {
        struct lagan_request *r = golden_prompt(MODEL, "p3", 30);

        lagan_set_bool(r, "return_logits", 1);
        if (k == 2) lagan_set_int(r, "forced_eos", 7);
        result_after_kill(c, r, &a, k == 1 ? serve_worker(&s) : 0);
        assert_int_equal(a.n, 30);
        assert_int_equal(a.logits.cols, n);
        assert_int_equal(a.logits.n, 30 * n);
        /* The decoder prefix of the golden file is the start token and twelve greedy tokens: its
         * last row is row 12. */
        assert_true(worst(a.logits.value + 12 * n, want, n) <= 1e-4);
        for (uint32_t i = 0; i < 30u - (k == 2); i++) {
            const float *row = a.logits.value + i * n;

            for (size_t j = 0; j < n; j++) assert_true(row[j] <= row[a.id[i]]);
        }
        if (k == 0) b = a;
        if (k) assert_memory_equal(a.logits.value, b.logits.value, a.logits.n * sizeof(float));
        if (k) free(a.logits.value);
    }
    free(b.logits.value);
    free(file);
    stop(&s, c);
}

/* The first row of logits belongs to the prompt's last token and is in the golden file. The rows
 * of the replacement worker are equal to the bit. */
static void
check_logits(const char *model)
{
    static const char *const set[] = { "max_num_seqs=4", "kv.memory=16MiB",    "threads=2",
                                       "dtype=fp32",     "numerics=invariant", NULL };
    struct result a, b = { 0 };
    json_t *o = expectations(model);
    size_t n, n_decoder;
    char *file;
    const float *want = expected(model, "p3.logits_last", &file, &n);
    int32_t *decoder = ids_of_prompt(o, "p3", "decoder_input_ids", &n_decoder);
    struct serve s;
    struct lagan *c;

    serve_fixture(&s, &c, model, set);
    for (int k = 0; k < 2; k++) {
        struct lagan_request *r = golden_prompt(model, "p3", 24);

        if (decoder) lagan_set_ids(r, "decoder_ids", decoder, n_decoder);
        lagan_set_int(r, "forced_bos", -1);
        lagan_set_bool(r, "return_logits", 1);
        result_after_kill(c, r, &a, k ? serve_worker(&s) : 0);
        assert_string_equal(a.message, "");
        assert_int_equal(a.n, 24);
        assert_int_equal(a.logits.cols, n);
        assert_int_equal(a.logits.n, 24 * n);
        if (!(worst(a.logits.value, want, n) <= 1e-4)) fail_msg("%s", model);
        if (k == 0) b = a;
        if (k) assert_memory_equal(a.logits.value, b.logits.value, a.logits.n * sizeof(float));
        if (k) free(a.logits.value);
    }
    free(b.logits.value);
    free(decoder);
    free(file);
    json_decref(o);
    stop(&s, c);
}

static void
logits_of_every_family_are_those_of_transformers_also_when_the_worker_dies(void **state)
{
    static const char *const models[] = {
        "llama2",     "llama3",  "mistral",       "qwen2",    "qwen3",
        "gemma3",     "gemma3n", "gemma4_dense",  "gemma4_e", "gemma4_moe",
        "gemma4_big", "gpt_oss", "gpt_oss_mxfp4", "bamba",    "granite_hybrid",
        "nemotron_h", "t5_relu", "t5_gated",      "bart",     "mbart",
    };
    char path[64];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        snprintf(path, sizeof path, "tests/data/golden/%s", models[i]);
        check_logits(path);
    }
}

static void
tensors_beyond_their_limit_are_refused_with_the_number(void **state)
{
    const char *const few[] = { "max_num_seqs=4", "kv.memory=16MiB", "dtype=fp32",
                                "--limits.tensor_bytes=4096", NULL };
    struct lagan_request *r;
    struct result a;
    struct serve s;
    struct lagan *c;

    (void)state;
    serve_fixture(&s, &c, "tests/data/golden/bart", few);
    r = asked(3);
    lagan_set_bool(r, "return_logits", 1);
    get_result(c, r, &a);
    assert_string_equal(a.finish, "too_long");
    assert_non_null(strstr(a.message, "limits.tensor_bytes"));
    r = golden_prompt("tests/data/golden/bart", "p3", 3); /* 17 rows of 64 */
    lagan_set_bool(r, "return_encoder_output", 1);
    get_result(c, r, &a);
    assert_string_equal(a.finish, "too_long");
    get_result(c, asked(3), &a);
    assert_string_equal(a.message, "");
    stop(&s, c);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forced_first_token_is_as_good_as_a_given_one_and_the_last_one_ends),
        cmocka_unit_test(model_defaults_are_the_values_of_the_file),
        cmocka_unit_test(a_default_that_is_not_served_is_refused_by_name_and_only_when_asked_for),
        cmocka_unit_test(the_fixtures_generation_configs_give_what_generate_gives),
        cmocka_unit_test(languages_of_mbart_frame_the_source_and_begin_the_output),
        cmocka_unit_test(an_encoders_states_are_those_of_transformers_also_of_a_cached_input),
        cmocka_unit_test(logits_are_of_every_new_token_with_forced_tokens_and_after_kills),
        cmocka_unit_test(
            logits_of_every_family_are_those_of_transformers_also_when_the_worker_dies),
        cmocka_unit_test(tensors_beyond_their_limit_are_refused_with_the_number),
        cmocka_unit_test(t5_in_fp16_stays_finite_where_its_sublayers_do_not),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
