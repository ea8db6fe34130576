
#include "tests/test.h"
#include "tests/text/golden.h"
#include "worker/text/tokenizer.h"

#include <glob.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    HEADER = 512,
    HASH = 32,
    HASHED = 40 /* offset of the hash in the header; it covers the rest of the file */
};

static const char *const goldens[] = { "bpe_bart",  "bpe_llama3", "bpe_o200k", "bpe_qwen2",
                                       "spm_gemma", "spm_llama2", "spm_mbart", "spm_t5" };
static char dir[64];

static int
make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/lagan-test-cache-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static void
remove_files(const char *from)
{
    char pattern[160];
    glob_t g;

    snprintf(pattern, sizeof pattern, "%s/*", from);
    if (glob(pattern, 0, NULL, &g) == 0)
        for (size_t i = 0; i < g.gl_pathc; i++) unlink(g.gl_pathv[i]);
    globfree(&g);
}

static int
remove_dir(void **state)
{
    (void)state;
    remove_files(dir);
    return rmdir(dir);
}

static const char *
below(const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, "tests/data/tokenizers/%s", name);
    return golden_path(path);
}

/* Stores a golden tokenizer; returns the path of its file, the only one in the folder. */
static const char *
keep(const char *name)
{
    static char path[256];
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    char pattern[128];
    glob_t g;

    if (tokenizer_open(&t, below(name), &e) < 0 || tokenizer_keep(t, dir, &e) < 0)
        fail_msg("%s", e.text);
    tokenizer_close(t);
    snprintf(pattern, sizeof pattern, "%s/*", dir);
    assert_int_equal(glob(pattern, 0, NULL, &g), 0);
    assert_int_equal(g.gl_pathc, 1);
    snprintf(path, sizeof path, "%s", g.gl_pathv[0]);
    globfree(&g);
    return path;
}

static void
put_file(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void
case_is_the_same(const struct golden_case *c, void *arg)
{
    static token_id ids[GOLDEN_IDS];
    char buf[GOLDEN_TEXT];
    int n = tokenizer_encode(arg, c->text, (size_t)c->text_len, false, ids, GOLDEN_IDS, NULL);

    assert_int_equal(n, c->n_ids);
    assert_memory_equal(ids, c->ids, (size_t)n * sizeof *ids);
    n = tokenizer_decode(arg, c->ids, (uint32_t)c->n_ids, false, buf, sizeof buf);
    assert_int_equal(n, c->decoded_len);
    assert_memory_equal(buf, c->decoded, (size_t)n);
}

static void
cached_vocabulary_gives_the_same_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(goldens); i++) {
        struct tokenizer *t = NULL;
        const char *path;

        assert_int_equal(tokenizer_open_kept(&t, below(goldens[i]), dir, NULL), 0);
        assert_null(t);
        path = keep(goldens[i]);
        assert_int_equal(tokenizer_open_kept(&t, below(goldens[i]), dir, NULL), 1);
        unlink(path); /* the mapped content stays */
        assert_int_equal(golden_each(goldens[i], case_is_the_same, t), 200);
        tokenizer_close(t);
    }
}

static void
changed_tokenizer_json_does_not_use_the_cache(void **state)
{
    struct tokenizer *t = NULL;
    char other[64];
    size_t n;
    char *text = golden_read(golden_path("tests/data/tokenizers/bpe_bart/tokenizer.json"), &n);
    const char *path = keep("bpe_bart");

    (void)state;
    text[n - 1] = ' '; /* the newline at the end */
    golden_make(other, text, n);
    assert_int_equal(tokenizer_open_kept(&t, other, dir, NULL), 0);
    assert_int_equal(tokenizer_open_kept(&t, below("bpe_bart"), dir, NULL), 1);
    tokenizer_close(t);
    golden_remove(other);
    unlink(path);
    free(text);
}

static void
corrupt_cache_file_is_not_used(void **state)
{
    struct tokenizer *t = NULL;
    const char *path = keep("spm_llama2");
    size_t n;
    char *bytes = golden_read(path, &n), *longer;

    (void)state;
    test_seed();
    for (int round = 0; round < 1500; round++) {
        size_t at = round < 512 ? (size_t)round : test_below((uint32_t)n);
        char was = bytes[at];

        bytes[at] = (char)(was ^ 1 << test_below(8));
        put_file(path, bytes, n);
        assert_int_equal(tokenizer_open_kept(&t, below("spm_llama2"), dir, NULL), 0);
        bytes[at] = was;
    }
    for (size_t cut = 0; cut < n; cut += 997) {
        put_file(path, bytes, cut);
        assert_int_equal(tokenizer_open_kept(&t, below("spm_llama2"), dir, NULL), 0);
    }
    longer = realloc(bytes, n + 64);
    assert_non_null(longer);
    bytes = longer;
    memset(bytes + n, 0, 64);
    put_file(path, bytes, n + 64);
    assert_int_equal(tokenizer_open_kept(&t, below("spm_llama2"), dir, NULL), 0);
    unlink(path);
    free(bytes);
}

/* A forged file can have valid hashes. Its tokens may then be wrong, but no index may be out of
 * range. */
static void
out_of_range_indices_are_rejected_despite_valid_hashes(void **state)
{
    static const char text[] =
        "The quick brown fox's caf\xc3\xa9 \xf0\x9f\x98\x80 </s> <extra_id_1>\n  x";
    static const char *const some[] = { "bpe_llama3", "spm_llama2", "spm_t5" };
    int opened = 0;

    (void)state;
    test_seed();
    for (size_t g = 0; g < ARRAY_LEN(some); g++) {
        const char *path = keep(some[g]);
        size_t n;
        char *bytes = golden_read(path, &n), *copy = malloc(n);

        assert_non_null(copy);
        for (int round = 0; round < 400; round++) {
            struct tokenizer *t = NULL;
            token_id ids[256];
            char back[4096];
            uint64_t body;

            memcpy(copy, bytes, n);
            for (uint32_t i = 1 + test_below(4); i > 0; i--) {
                static const uint32_t values[] = { 0,          1,   0x7fffffff, 0x80000000,
                                                   0xffffffff, 700, 255 };
                size_t at = round % 2 ? HASHED + 4 * test_below(27)
                                      : HEADER + 4 * test_below((uint32_t)(n - HEADER) / 4);

                memcpy(copy + at, &values[test_below(ARRAY_LEN(values))], 4);
            }
            body = XXH3_64bits(copy + HASHED, n - HASHED);
            memcpy(copy + HASH, &body, sizeof body);
            put_file(path, copy, n);
            if (tokenizer_open_kept(&t, below(some[g]), dir, NULL) == 0) continue;
            opened++;
            (void)!tokenizer_encode(t, text, sizeof text - 1, false, ids, ARRAY_LEN(ids), NULL);
            for (int i = 0; i < 256; i++) ids[i] = (token_id)test_below(800);
            (void)!tokenizer_decode(t, ids, 256, true, back, sizeof back);
            tokenizer_close(t);
        }
        unlink(path);
        free(bytes);
        free(copy);
    }
    assert_in_range(opened, 50, 1150); /* both outcomes occur */
}

static void
unwritable_directory_is_reported_and_leaves_no_file(void **state)
{
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    char path[128];

    (void)state;
    assert_int_equal(tokenizer_open(&t, below("bpe_bart"), NULL), 0);
    assert_int_equal(tokenizer_keep(t, "/nowhere/at/all", &e), -ENOENT);
    assert_non_null(strstr(e.text, "/nowhere/at/all: "));
    snprintf(path, sizeof path, "%s/file", dir);
    put_file(path, "", 0);
    assert_int_equal(tokenizer_keep(t, path, &e), -ENOTDIR);
    unlink(path);
    snprintf(path, sizeof path, "%s/made", dir);
    assert_int_equal(tokenizer_keep(t, path, &e), 0);
    tokenizer_close(t);
    assert_int_equal(tokenizer_open_kept(&t, below("bpe_bart"), path, NULL), 1);
    tokenizer_close(t);
    remove_files(path);
    assert_int_equal(rmdir(path), 0);
}

static void
concurrent_writers_leave_one_complete_file(void **state)
{
    struct tokenizer *t = NULL;

    (void)state;
    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid) continue;
        if (tokenizer_open(&t, below("bpe_o200k"), NULL) < 0) _exit(1);
        for (int k = 0; k < 20; k++)
            if (tokenizer_keep(t, dir, NULL) < 0) _exit(1);
        tokenizer_close(t);
        _exit(0);
    }
    for (int i = 0; i < 4; i++) {
        int status;

        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    unlink(keep("bpe_o200k")); /* checks that there is only one file */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_vocabulary_gives_the_same_tokens),
        cmocka_unit_test(changed_tokenizer_json_does_not_use_the_cache),
        cmocka_unit_test(corrupt_cache_file_is_not_used),
        cmocka_unit_test(out_of_range_indices_are_rejected_despite_valid_hashes),
        cmocka_unit_test(concurrent_writers_leave_one_complete_file),
        cmocka_unit_test(unwritable_directory_is_reported_and_leaves_no_file),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
