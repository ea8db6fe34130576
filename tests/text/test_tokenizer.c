#include "worker/text/tokenizer.h"

#include "base/json.h"
#include "tests/test.h"
#include "tests/text/golden.h"

#include <stdio.h>
#include <time.h>

enum { BIG = 1 << 17 };

static const char *const goldens[] = { "bpe_bart",  "bpe_llama3", "bpe_o200k", "bpe_qwen2",
                                       "spm_gemma", "spm_llama2", "spm_mbart", "spm_t5" };

static struct tokenizer *
open_golden(const char *name)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    char below[256];

    snprintf(below, sizeof below, "tests/data/tokenizers/%s", name);
    if (tokenizer_open(&t, golden_path(below), &e) < 0) fail_msg("%s", e.text);
    return t;
}

static void
same_ids(const char *text, const token_id *got, int n_got, const token_id *want, int n_want)
{
    if (n_got == n_want && (n_want == 0 || memcmp(got, want, (size_t)n_want * sizeof *got) == 0))
        return;
    for (int i = 0; i < n_got; i++) fprintf(stderr, "%s%d", i ? "," : "got ", got[i]);
    for (int i = 0; i < n_want; i++) fprintf(stderr, "%s%d", i ? "," : ", wanted ", want[i]);
    fail_msg("\"%s\": %d tokens, wanted %d", text, n_got, n_want);
}

static void
case_encodes(const struct golden_case *c, void *arg)
{
    static token_id ids[GOLDEN_IDS];
    int n = tokenizer_encode(arg, c->text, (size_t)c->text_len, false, ids, GOLDEN_IDS, NULL);

    same_ids(c->text, ids, n, c->ids, c->n_ids);
    n = tokenizer_encode(arg, c->text, (size_t)c->text_len, true, ids, GOLDEN_IDS, NULL);
    same_ids(c->text, ids, n, c->ids_bare, c->n_bare);
    assert_true((uint64_t)c->text_len <= tokenizer_max_text(arg, (uint32_t)n));
}

static void
case_decodes(const struct golden_case *c, void *arg)
{
    char buf[GOLDEN_TEXT];
    int n = tokenizer_decode(arg, c->ids, (uint32_t)c->n_ids, false, buf, sizeof buf);

    assert_int_equal(n, c->decoded_len);
    assert_memory_equal(buf, c->decoded, (size_t)n + 1);
    n = tokenizer_decode(arg, c->ids_bare, (uint32_t)c->n_bare, true, buf, sizeof buf);
    assert_int_equal(n, c->decoded_keep_len);
    assert_memory_equal(buf, c->decoded_keep, (size_t)n + 1);
}

static void
golden_texts_encode_to_the_reference_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
        struct tokenizer *t = open_golden(goldens[i]);

        assert_int_equal(golden_each(goldens[i], case_encodes, t), 200);
        tokenizer_close(t);
    }
}

static void
golden_tokens_decode_to_the_reference_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
        struct tokenizer *t = open_golden(goldens[i]);

        assert_int_equal(golden_each(goldens[i], case_decodes, t), 200);
        tokenizer_close(t);
    }
}

/* The bytes of the tokens, joined, are the text, but for a space that some decoders remove at its
 * start. Texts with malformed bytes are left out, because decoding replaces these. */
static void
case_has_token_bytes(const struct golden_case *c, void *arg)
{
    char buf[GOLDEN_TEXT];
    uint32_t n = 0, from;

    for (int i = 0; i < c->n_bare; i++) {
        int k = tokenizer_piece_bytes(arg, c->ids_bare[i], buf + n, sizeof buf - n);

        assert_true(k > 0);
        n += (uint32_t)k;
    }
    if (utf8_valid(buf, n) < n) return;
    from = n - (uint32_t)c->decoded_keep_len;
    assert_true(from == 0 || (from == 1 && buf[0] == ' '));
    assert_memory_equal(buf + from, c->decoded_keep, (size_t)c->decoded_keep_len);
}

static void
bytes_of_tokens_join_to_the_text(void **state)
{
    char buf[4];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
        struct tokenizer *t = open_golden(goldens[i]);

        assert_int_equal(golden_each(goldens[i], case_has_token_bytes, t), 200);
        assert_int_equal(tokenizer_piece_bytes(t, INT32_MAX, buf, sizeof buf), 0);
        assert_int_equal(tokenizer_piece_bytes(t, 1, buf, 1), -EMSGSIZE);
        tokenizer_close(t);
    }
}

/* text with the first `find` replaced; the caller frees it. */
static char *
patched(const char *text, const char *find, const char *replace)
{
    const char *at = strstr(text, find);
    size_t before, n = strlen(text) + strlen(replace) + 1;
    char *to = malloc(n);

    assert_non_null(to);
    if (!at) fail_msg("the file has no \"%s\"", find);
    before = (size_t)(at - text);
    snprintf(to, n, "%.*s%s%s", (int)before, text, replace, at + strlen(find));
    return to;
}

static char *
golden_json(const char *base)
{
    char below[256];
    size_t n;

    snprintf(below, sizeof below, "tests/data/tokenizers/%s/tokenizer.json", base);
    return golden_read(golden_path(below), &n);
}

static int
open_text(struct tokenizer **t, const char *text, size_t n, struct err *e)
{
    char dir[64];
    int r;

    golden_make(dir, text, n);
    r = tokenizer_open(t, dir, e);
    golden_remove(dir);
    return r;
}

static void
next(struct json *j)
{
    assert_int_equal(json_next(j, NULL), 0);
}

static int
read_ids(struct json *j, token_id *ids, int cap)
{
    int n = 0;

    next(j);
    for (next(j); j->kind == JSON_NUMBER; next(j)) {
        uint64_t id;

        assert_true(n < cap);
        assert_int_equal(json_u64(j, &id), 0);
        ids[n++] = (token_id)id;
    }
    return n;
}

/* A tokenizer with the replacements of "patch" in its base: [[find, replace]...]. */
static struct tokenizer *
open_patched(struct json *j, char *text)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    char find[4096], replace[4096];

    next(j);
    for (next(j); j->kind == JSON_ARRAY; next(j)) {
        char *was = text;

        next(j);
        assert_true(json_unescape(j, find, sizeof find) > 0);
        next(j);
        assert_true(json_unescape(j, replace, sizeof replace) >= 0);
        next(j);
        text = patched(was, find, replace);
        free(was);
    }
    if (open_text(&t, text, strlen(text), &e) < 0) fail_msg("%s", e.text);
    free(text);
    return t;
}

/* {"text", "ids", "decoded"}: text encodes to ids, ids decode to "decoded"; without text only the
 * latter. */
static void
check_case(struct json *j, struct tokenizer *t, const char *name)
{
    char text[4096], decoded[4096], back[4096];
    token_id want[1024], got[1024];
    int n_want = 0, n_text = -1, n_decoded = -1, n;

    for (next(j); j->kind == JSON_KEY; next(j)) {
        if (json_is(j, "ids")) {
            n_want = read_ids(j, want, ARRAY_LEN(want));
        } else if (json_is(j, "text")) {
            next(j);
            n_text = json_unescape(j, text, sizeof text);
        } else {
            assert_true(json_is(j, "decoded"));
            next(j);
            n_decoded = json_unescape(j, decoded, sizeof decoded);
        }
    }
    if (n_text >= 0) {
        n = tokenizer_encode(t, text, (size_t)n_text, false, got, ARRAY_LEN(got), NULL);
        if (n != n_want || memcmp(got, want, (size_t)n * sizeof *got)) print_message("%s: ", name);
        same_ids(text, got, n, want, n_want);
        assert_true((uint64_t)n_text <= tokenizer_max_text(t, (uint32_t)n));
    }
    if (n_decoded < 0) return;
    n = tokenizer_decode(t, want, (uint32_t)n_want, n_text < 0, back, sizeof back);
    if (n != n_decoded || memcmp(back, decoded, (size_t)n))
        fail_msg("%s: decoded \"%s\", wanted \"%s\"", name, back, decoded);
}

/* {"name", "base", "patch", "cases": [...], "decodes": [...]}; returns the number of cases. */
static int
check_variant(struct json *j)
{
    struct tokenizer *t = NULL;
    char name[256] = "", *text = NULL;
    int n_cases = 0;

    for (next(j); j->kind == JSON_KEY; next(j)) {
        if (json_is(j, "name")) {
            next(j);
            assert_true(json_unescape(j, name, sizeof name) > 0);
        } else if (json_is(j, "base")) {
            char base[64];

            next(j);
            assert_true(json_unescape(j, base, sizeof base) > 0);
            text = golden_json(base);
        } else if (json_is(j, "patch")) {
            t = open_patched(j, text);
        } else {
            next(j);
            for (next(j); j->kind == JSON_OBJECT; next(j), n_cases++) check_case(j, t, name);
        }
    }
    assert_true(n_cases > 0);
    tokenizer_close(t);
    return n_cases;
}

static void
check_variants(const char *file, int n_variants, int n_cases)
{
    struct json j;
    size_t n;
    char *text = golden_read(golden_path(file), &n);

    json_open(&j, text, n);
    next(&j);
    for (next(&j); j.kind == JSON_OBJECT; next(&j), n_variants--) n_cases -= check_variant(&j);
    assert_int_equal(n_variants, 0);
    assert_true(n_cases <= 0);
    free(text);
}

static void
every_tokenizer_json_option_matches_the_reference(void **state)
{
    (void)state;
    check_variants("tests/data/tokenizers/variants.json", 12, 12);
}

/* Results of the reference, from tools/tokenizer_cases.py. */
static void
random_text_matches_the_reference_in_both_directions(void **state)
{
    (void)state;
    check_variants("tests/data/tokenizers/oracle.json", 42, 42 * 36);
}

static void
case_of_class(const struct golden_case *c, void *arg)
{
    static token_id ids[GOLDEN_IDS];
    char buf[GOLDEN_TEXT];
    int n = tokenizer_encode(arg, c->text, (size_t)c->text_len, false, ids, GOLDEN_IDS, NULL);

    same_ids(c->text, ids, n, c->ids_class, c->n_class);
    n = tokenizer_decode(arg, ids, (uint32_t)n, false, buf, sizeof buf);
    assert_int_equal(n, c->decoded_class_len);
    assert_memory_equal(buf, c->decoded_class, (size_t)n);
}

/* Classes of transformers replace some sections of the file; a file with these sections must give
 * the same tokens. */
static void
file_with_sections_of_a_class_tokenizes_like_it(void **state)
{
    static const struct {
        const char *base, *patch;
    } cases[] = {
        { "bpe_bart", "[]" },
        { "spm_gemma", "[]" },
        { "spm_t5", "[]" },
        { "spm_llama2",
          "[[\"\\\"normalizer\\\": {\", \"\\\"normalizer\\\": null, \\\"was\\\": {\"],"
          "[\"\\\"pre_tokenizer\\\": null\", \"\\\"pre_tokenizer\\\": {\\\"type\\\":"
          "\\\"Metaspace\\\", \\\"replacement\\\": \\\"\xe2\x96\x81\\\", \\\"prepend_scheme\\\":"
          "\\\"first\\\", \\\"split\\\": false}\"]]" },
        { "spm_mbart",
          "[[\"\\\"normalizer\\\": {\", \"\\\"normalizer\\\": {\\\"type\\\": \\\"Sequence\\\","
          "\\\"normalizers\\\": [{\"], [\"\\n  },\\n  \\\"pre_tokenizer\\\": {\", \"},"
          "{\\\"type\\\": \\\"Replace\\\", \\\"pattern\\\": {\\\"Regex\\\": \\\" {2,}\\\"},"
          "\\\"content\\\": \\\" \\\"}]}, \\\"pre_tokenizer\\\": {\\\"type\\\": \\\"Metaspace\\\","
          "\\\"replacement\\\": \\\"\xe2\x96\x81\\\", \\\"prepend_scheme\\\": \\\"always\\\","
          "\\\"split\\\": true}, \\\"was\\\": {\"]]" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t;
        struct json j;

        json_open(&j, cases[i].patch, strlen(cases[i].patch));
        t = open_patched(&j, golden_json(cases[i].base));
        assert_int_equal(golden_each(cases[i].base, case_of_class, t), 200);
        tokenizer_close(t);
    }
}

static void
unsupported_kind_is_rejected_by_name(void **state)
{
    static const struct {
        const char *base, *find, *replace;
        int code;
        const char *expected;
    } cases[] = {
        { "bpe_bart", "\"type\": \"BPE\"", "\"type\": \"WordPiece\"", -ENOTSUP,
          "tokenizer.json: model type WordPiece is not served yet" },
        { "bpe_bart", "\"type\": \"BPE\"", "\"type\": \"Unigram\"", -ENOTSUP,
          "Unigram with ByteLevel" },
        { "bpe_bart", "\"normalizer\": null", "\"normalizer\": {\"type\": \"BertNormalizer\"}",
          -ENOTSUP, "normalizer: BertNormalizer" },
        { "bpe_bart", "\"normalizer\": null", "\"normalizer\": {\"type\": \"Nmt\"}", -ENOTSUP,
          "normalizer: Nmt" },
        { "bpe_bart", "\"normalizer\": null",
          "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"x*\"}, \"content\": "
          "\"y\"}",
          -ENOTSUP, "matches the empty string" },
        { "bpe_bart", "\"normalizer\": null",
          "\"normalizer\": {\"type\": \"Replace\", \"content\": \"y\"}", -EBADMSG,
          "Replace has no pattern or no content" },
        { "bpe_bart", "\"normalizer\": null",
          "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}",
          -EBADMSG, "has 3 bytes, less than 8" },
        { "bpe_bart", "\"normalizer\": null",
          "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"/wAAAAAAAAAA\"}",
          -EBADMSG, "cannot have a trie of 255" },
        { "bpe_bart", "\"normalizer\": null",
          "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": "
          "\"BAAAAAAAAABhAP8A\"}",
          -EBADMSG, "a replacement text is not UTF-8" },
        { "bpe_bart", "\"normalizer\": null",
          "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AA!A\"}",
          -EBADMSG, "base64" },
        { "bpe_bart", "\"pre_tokenizer\": {", "\"pre_tokenizer\": null, \"was\": {", -ENOTSUP,
          "only one of pre_tokenizer and decoder is ByteLevel" },
        { "bpe_bart", "\"type\": \"ByteLevel\"", "\"type\": \"Punctuation\"", -ENOTSUP,
          "pre_tokenizer: type Punctuation" },
        { "bpe_llama3", "\"type\": \"ByteLevel\"", "\"type\": \"UnicodeScripts\"", -ENOTSUP,
          "type UnicodeScripts" },
        { "bpe_llama3", "\"behavior\": \"Isolated\"", "\"behavior\": \"Other\"", -ENOTSUP,
          "behavior Other" },
        { "bpe_llama3", "\"behavior\": \"Isolated\"",
          "\"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"x*\"}", -EBADMSG,
          "both Regex and String" },
        { "bpe_llama3", "\"Regex\": \"", "\"Regex\": \"\\\\b|", -ENOTSUP,
          "engines interpret differently" },
        { "bpe_llama3", "\"Regex\": ", "\"Glob\": ", -ENOTSUP, "a pattern of kind Glob" },
        { "bpe_llama3", "\"Regex\": \"", "\"Regex\": \"(", -ENOTSUP, "parenthesis" },
        { "bpe_llama3", "\"Regex\": \"", "\"Regex\": \"[a[bc]]|", -ENOTSUP,
          "class or \\S in a class" },
        { "spm_t5", "\"prepend_scheme\": \"always\"", "\"prepend_scheme\": \"first\"", -ENOTSUP,
          "served only in the first step" },
        { "spm_llama2", "\"pre_tokenizer\": null",
          "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", "
          "\"prepend_scheme\": \"first\"}",
          -ENOTSUP, "\"first\" with a normalizer" },
        { "spm_llama2", "\"pre_tokenizer\": null",
          "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"__\"}", -EBADMSG,
          "not one character" },
        { "spm_llama2", "\"pre_tokenizer\": null",
          "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", "
          "\"prepend_scheme\": \"maybe\"}",
          -ENOTSUP, "prepend_scheme maybe" },
        { "bpe_llama3", "\"type\": \"TemplateProcessing\"", "\"type\": \"Other\"", -ENOTSUP,
          "post_processor: type Other" },
        { "bpe_bart", "\"decoder\": {\n    \"type\": \"ByteLevel\"",
          "\"decoder\": {\n    \"type\": \"WordPiece\"", -ENOTSUP, "decoder: type WordPiece" },
        { "bpe_bart", "\"decoder\": {", "\"decoder\": null, \"was\": {", -ENOTSUP,
          "decoder: null" },
        { "spm_llama2", "\"stop\": 0", "\"stop\": 1", -ENOTSUP, "Strip is supported only" },
        { "spm_llama2", "\"type\": \"Fuse\"", "\"type\": \"ByteFallback\"", -ENOTSUP,
          "ByteFallback after ByteFallback in a Sequence" },
        { "bpe_bart", "\"dropout\": null", "\"dropout\": 0.1", -ENOTSUP, "dropout" },
        { "bpe_bart", "\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", -ENOTSUP,
          "end_of_word_suffix" },
        { "spm_llama2", "\"unk_token\": \"<unk>\"", "\"unk_token\": \"<none>\"", -EBADMSG,
          "\"<none>\" is not in model.vocab" },
        { "spm_t5", "\"unk_id\": 2", "\"unk_id\": null", -ENOTSUP, "unk_id null" },
        { "spm_t5", "\"unk_id\": 2", "\"unk_id\": 700", -EBADMSG, "unk_id 700" },
        { "spm_t5", "\"vocab\": [", "\"vocab\": [[\"x\"], ", -EBADMSG, "token 0 has no score" },
        { "spm_t5", "\"vocab\": [", "\"vocab\": [[\"x\", 0.5, 1], ", -EBADMSG,
          "token 0 has more than" },
        { "spm_t5", "\"vocab\": [", "\"vocab\": [[7, 0.5], ", -EBADMSG, "token 0 is no string" },
        { "spm_t5", "\"vocab\": [", "\"vocab\": {\"x\": 1}, \"was\": [", -EBADMSG, "not an array" },
        { "bpe_bart", "\n  ],\n  \"normalizer\": null",
          ",{\"id\": 3, \"content\": \"<unk>\"},{\"id\": 512, \"content\": \" \"}],\"normalizer\": "
          "{\"type\":\"Strip\",\"strip_left\":true}",
          -ENOTSUP, "empty after normalisation" },
        { "bpe_bart", "\n  ],\n  \"normalizer\": null",
          ",{\"id\": 512, \"content\": \"ab\"},{\"id\": 513, \"content\": \"AB\"}],\"normalizer\": "
          "{\"type\":\"Lowercase\"}",
          -EBADMSG, "have the same text" },
        { "bpe_bart", "\"vocab\": {", "\"vocab\": {\"aa!\": 4194304, ", -EBADMSG,
          "is not in 0 to" },
        { "bpe_bart", "\"vocab\": {", "\"vocab\": {\"a!a!a\": 0, ", -EBADMSG, "token id 0" },
        { "bpe_bart", "\"vocab\": {", "\"vocab\": {\"!\": 700, ", -EBADMSG,
          "\"!\" has the two ids" },
        { "bpe_bart", "\"vocab\": {", "\"vocab\": {\"q!\": -1, ", -EBADMSG, "not a token id" },
        { "bpe_bart", "\"vocab\": {", "\"vocab\": {\"q!\": \"1\", ", -EBADMSG, "not a token id" },
        { "bpe_bart", "\"id\": 511", "\"id\": 3", -EBADMSG, "\"<mask>\" has id 3," },
        { "bpe_bart", "\"merges\": [", "\"merges\": [[\"zq\", \"q\"], ", -EBADMSG,
          "model.merges[0]" },
        { "bpe_bart", "\"merges\": [", "\"merges\": [[\"a\"], ", -EBADMSG, "model.merges[0]" },
        { "bpe_bart", "\"merges\": [", "\"merges\": [[\"a\", \"b\", \"c\"], ", -EBADMSG,
          "model.merges[0]" },
        { "bpe_bart", "\"merges\": [", "\"merges\": [\"ab\", ", -EBADMSG, "model.merges[0]" },
        { "bpe_bart", "\"merges\": [", "\"merges\": [7, ", -EBADMSG, "not an array" },
        { "bpe_bart", "\"merges\": [", "\"merges_was\": [", -EBADMSG, "no merges" },
        { "bpe_bart", "\"vocab\": {", "\"vocab\": [], \"was\": {", -EBADMSG, "not an object" },
        { "bpe_bart", "\"sep\": [", "\"sep\": [7, ", -EBADMSG, "not a string" },
        { "bpe_bart", "\"cls\": [\n      \"<s>\",\n      0", "\"cls\": [\"<s>\", 900", -EBADMSG,
          "token 900 does not exist" },
        { "bpe_bart", "\"model\": {", "\"model\": {,", -EBADMSG, "line " },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t = NULL;
        struct err e = { 0 };
        char *was = golden_json(cases[i].base),
             *text = patched(was, cases[i].find, cases[i].replace);
        int r = open_text(&t, text, strlen(text), &e);

        if (r != cases[i].code || !strstr(e.text, cases[i].expected))
            fail_msg("case %zu: %d, \"%s\", wanted \"%s\"", i, r, e.text, cases[i].expected);
        free(was);
        free(text);
    }
}

static void
vocabulary_without_every_byte_is_rejected(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    char *was = golden_json("bpe_bart"),
         *text = patched(was, "\"\xc3\xb5\": ", "\"\xc3\xb5\xc3\xb5\": ");

    (void)state;
    assert_int_equal(open_text(&t, text, strlen(text), &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "byte 0xf5"));
    free(was);
    free(text);
}

static void
missing_file_error_names_the_path(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(tokenizer_open(&t, "/nowhere/at/all", &e), -ENOENT);
    assert_non_null(strstr(e.text, "/nowhere/at/all/tokenizer.json"));
}

static void
truncated_file_is_rejected(void **state)
{
    char *text = golden_json("bpe_llama3");
    size_t n = strlen(text);

    (void)state;
    while (text[n - 1] != '}') n--;
    for (size_t cut = 0; cut < n; cut += 641) {
        struct tokenizer *t = NULL;

        assert_int_equal(open_text(&t, text, cut, NULL), -EBADMSG);
    }
    free(text);
}

static void
merges_may_be_pairs_or_strings(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    char *text = golden_json("bpe_bart"), *to = malloc(strlen(text) + 1);
    const char *begin = strstr(text, "\"merges\": [");
    struct json j;
    int n;

    (void)state;
    assert_true(to && begin);
    begin += strlen("\"merges\": ");
    n = sprintf(to, "%.*s", (int)(begin - text), text);
    json_open(&j, begin, strlen(begin));
    next(&j);
    for (next(&j); j.kind == JSON_ARRAY; next(&j)) {
        next(&j);
        n += sprintf(to + n, "%c\"%.*s ", to[n - 1] == ' ' ? '[' : ',', (int)j.text_len, j.text);
        next(&j);
        n += sprintf(to + n, "%.*s\"", (int)j.text_len, j.text);
        next(&j);
    }
    n += sprintf(to + n, "]%s", j.p);
    if (open_text(&t, to, (size_t)n, &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(golden_each("bpe_bart", case_encodes, t), 200);
    tokenizer_close(t);
    free(text);
    free(to);
}

static void
invalid_utf8_is_rejected_with_its_offset(void **state)
{
    static const char *const bad[] = { "abc\xff",         "abc\xc3",     "abc\xe2\x82",
                                       "abc\xed\xa0\x80", "abc\xc0\x80", "abc\xf5\x80\x80\x80" };
    struct tokenizer *t = open_golden("bpe_bart");
    struct err e = { 0 };
    token_id ids[16];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(tokenizer_encode(t, bad[i], strlen(bad[i]), false, ids, 16, &e), -EILSEQ);
        assert_non_null(strstr(e.text, "byte 3"));
    }
    tokenizer_close(t);
}

static void
case_fits_exactly(const struct golden_case *c, void *arg)
{
    for (int cap = 0; cap <= c->n_ids; cap += cap + 4 < c->n_ids ? 1 + c->n_ids / 4 : 1) {
        /* a sanitizer detects an overrun by one */
        token_id *ids = malloc(sizeof *ids * (size_t)MAX(cap, 1));
        int n = tokenizer_encode(arg, c->text, (size_t)c->text_len, false, ids, (uint32_t)cap,
                                 NULL);

        assert_int_equal(n, cap < c->n_ids ? -EMSGSIZE : c->n_ids);
        free(ids);
    }
    for (int cap = 0; cap <= c->decoded_len + 1; cap += cap + 4 < c->decoded_len ? 1 + cap : 1) {
        char *buf = malloc((size_t)MAX(cap, 1));
        int n = tokenizer_decode(arg, c->ids, (uint32_t)c->n_ids, false, buf, (size_t)cap);

        assert_int_equal(n, cap <= c->decoded_len ? -EMSGSIZE : c->decoded_len);
        free(buf);
    }
}

static void
buffer_one_too_small_is_rejected_and_not_overrun(void **state)
{
    struct tokenizer *t = open_golden("bpe_llama3");

    (void)state;
    golden_each("bpe_llama3", case_fits_exactly, t);
    tokenizer_close(t);
}

static void
invalid_ids_decode_to_empty_text(void **state)
{
    struct tokenizer *t = open_golden("bpe_bart");
    const token_id ids[] = { -1, INT32_MAX, INT32_MIN, 512, 43 };
    uint32_t n;
    bool special;
    char buf[16];

    (void)state;
    assert_int_equal(tokenizer_size(t), 512);
    for (int i = 0; i < 4; i++) assert_null(tokenizer_piece(t, ids[i], &n, &special));
    assert_int_equal(tokenizer_decode(t, ids, 5, true, buf, sizeof buf), 1);
    assert_non_null(tokenizer_piece(t, 2, &n, &special));
    assert_true(special);
    assert_non_null(tokenizer_piece(t, 43, &n, &special));
    assert_false(special);
    tokenizer_close(t);
}

/* 128 KiB in one word. A quadratic algorithm would take minutes. */
static void
long_text_without_a_break_takes_linear_time(void **state)
{
    static const char *const units[] = { "a",
                                         "ab",
                                         " ",
                                         "\n",
                                         "A",
                                         "\xe4\xb8\x80",
                                         "!",
                                         "0",
                                         "a ",
                                         "\xcc\x81\xcc\xa3",
                                         "\xf0\x9f\x98\x80",
                                         "\xe2\x96\x81" };
    char *text = malloc(BIG);
    token_id *ids = malloc(sizeof *ids * (BIG + 8));

    (void)state;
    for (size_t g = 0; g < ARRAY_LEN(goldens); g++) {
        struct tokenizer *t = open_golden(goldens[g]);

        for (size_t u = 0; u < ARRAY_LEN(units); u++) {
            size_t n = 0, step = strlen(units[u]);
            clock_t begin = clock();
            struct err e = { 0 };

            for (; n + step <= BIG; n += step) memcpy(text + n, units[u], step);
            if (tokenizer_encode(t, text, n, false, ids, BIG + 8, &e) < 0) fail_msg("%s", e.text);
            assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
        }
        tokenizer_close(t);
    }
    free(text);
    free(ids);
}

/* A quadratic sort would take minutes. */
static void
long_run_of_combining_marks_takes_linear_time(void **state)
{
    /* above, below: the one below is ordered first */
    static const char marks[] = "\xcc\x81\xcc\xa3";
    char *was = golden_json("bpe_o200k"),
         *json = patched(was, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}"),
         *text = malloc(BIG);
    token_id *ids = malloc(sizeof *ids * BIG);
    struct tokenizer *t = NULL;
    clock_t begin;

    (void)state;
    assert_int_equal(open_text(&t, json, strlen(json), NULL), 0);
    for (size_t i = 0; i < BIG; i++) text[i] = marks[i % 4];
    begin = clock();
    assert_true(tokenizer_encode(t, text, BIG, false, ids, BIG, NULL) > 0);
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
    tokenizer_close(t);
    free(was);
    free(json);
    free(text);
    free(ids);
}

/* Random text is encoded and decoded; the result must equal the text unless an added token strips
 * the space before it (<mask> of bpe_bart does). */
static void
any_text_round_trips(void **state)
{
    static const char *const words[] = { "a",
                                         "the",
                                         " ",
                                         "  ",
                                         "\n",
                                         "1",
                                         "23",
                                         "\xc3\xa9",
                                         "e\xcc\x81",
                                         "\xe4\xb8\xad",
                                         "\xf0\x9f\x98\x80",
                                         "'s",
                                         "<|eot_id|>",
                                         "_",
                                         "\t" };
    struct tokenizer *t = open_golden("bpe_llama3");

    (void)state;
    test_seed();
    for (int round = 0; round < 2000; round++) {
        char text[256], back[256];
        token_id ids[256];
        int n = 0, n_ids;

        for (uint32_t i = test_below(20); i > 0; i--)
            n += sprintf(text + n, "%s", words[test_below(ARRAY_LEN(words))]);
        n_ids = tokenizer_encode(t, text, (size_t)n, true, ids, 256, NULL);
        assert_true(n_ids >= 0);
        assert_int_equal(tokenizer_decode(t, ids, (uint32_t)n_ids, true, back, sizeof back), n);
        assert_memory_equal(text, back, (size_t)n);
    }
    tokenizer_close(t);
}

/* A prompt: its text encodes to ids, the ids of its output decode to the output. Returns the number
 * of ids. */
static int
check_question(struct json *j, struct tokenizer *t)
{
    char text[1024] = "", output[1024] = "", back[1024];
    token_id ids[1024], output_ids[1024], got[1024];
    int n_ids = 0, n_output = 0, n;

    for (next(j); j->kind == JSON_KEY; next(j)) {
        if (json_is(j, "text")) {
            next(j);
            assert_true(json_unescape(j, text, sizeof text) > 0);
        } else if (json_is(j, "answer")) {
            next(j);
            assert_true(json_unescape(j, output, sizeof output) > 0);
        } else if (json_is(j, "ids")) {
            n_ids = read_ids(j, ids, ARRAY_LEN(ids));
        } else if (json_is(j, "answer_ids")) {
            n_output = read_ids(j, output_ids, ARRAY_LEN(output_ids));
        } else {
            assert_int_equal(json_skip(j, NULL), 0);
        }
    }
    n = tokenizer_encode(t, text, strlen(text), false, got, ARRAY_LEN(got), NULL);
    same_ids(text, got, n, ids, n_ids);
    n = tokenizer_encode(t, text, strlen(text), true, got, ARRAY_LEN(got), NULL);
    assert_int_equal(n, strlen(text)); /* 1 token for each byte */
    assert_in_range(tokenizer_max_text(t, 10), 10, 10 * 64);
    n = tokenizer_decode(t, output_ids, (uint32_t)n_output, false, back, sizeof back);
    assert_int_equal(n, strlen(output));
    assert_string_equal(back, output);
    return 1;
}

static void
demo_model_prompts_and_outputs_have_expected_tokens(void **state)
{
    struct json j;
    size_t n;
    char *text = golden_read(golden_path("models/demo.json"), &n), below[128] = "models/";
    int questions = 0, models = 0;

    (void)state;
    json_open(&j, text, n);
    for (next(&j); j.kind != JSON_KEY || !json_is(&j, "models"); next(&j)) {
    }
    next(&j);
    for (next(&j); j.kind == JSON_OBJECT; next(&j), models++) {
        struct tokenizer *t = NULL;
        struct err e = { 0 };

        for (next(&j); j.kind == JSON_KEY; next(&j)) {
            if (json_is(&j, "dir")) {
                next(&j);
                assert_true(json_unescape(&j, below + 7, sizeof below - 7) > 0);
                if (tokenizer_open(&t, golden_path(below), &e) < 0) fail_msg("%s", e.text);
            } else if (json_is(&j, "questions")) {
                next(&j);
                for (next(&j); j.kind == JSON_OBJECT; next(&j)) questions += check_question(&j, t);
            } else {
                assert_int_equal(json_skip(&j, NULL), 0);
            }
        }
        tokenizer_close(t);
    }
    assert_int_equal(models, 2);
    assert_true(questions >= 24);
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_texts_encode_to_the_reference_tokens),
        cmocka_unit_test(golden_tokens_decode_to_the_reference_text),
        cmocka_unit_test(bytes_of_tokens_join_to_the_text),
        cmocka_unit_test(every_tokenizer_json_option_matches_the_reference),
        cmocka_unit_test(random_text_matches_the_reference_in_both_directions),
        cmocka_unit_test(file_with_sections_of_a_class_tokenizes_like_it),
        cmocka_unit_test(unsupported_kind_is_rejected_by_name),
        cmocka_unit_test(vocabulary_without_every_byte_is_rejected),
        cmocka_unit_test(missing_file_error_names_the_path),
        cmocka_unit_test(truncated_file_is_rejected),
        cmocka_unit_test(merges_may_be_pairs_or_strings),
        cmocka_unit_test(invalid_utf8_is_rejected_with_its_offset),
        cmocka_unit_test(buffer_one_too_small_is_rejected_and_not_overrun),
        cmocka_unit_test(invalid_ids_decode_to_empty_text),
        cmocka_unit_test(long_text_without_a_break_takes_linear_time),
        cmocka_unit_test(long_run_of_combining_marks_takes_linear_time),
        cmocka_unit_test(any_text_round_trips),
        cmocka_unit_test(demo_model_prompts_and_outputs_have_expected_tokens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
