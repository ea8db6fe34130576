/* golden.c - see golden.h. */
#include "tests/text/golden.h"

#include "base/json.h"
#include "tests/test.h"

#include <stdio.h>
#include <unistd.h>

const char *
golden_path(const char *below)
{
    static char path[16][1024];
    static unsigned next;
    const char *top = getenv("srcdir");
    char *p = path[next++ % 16];

    snprintf(p, sizeof path[0], "%s/%s", top ? top : ".", below);
    return p;
}

char *
golden_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text;
    long size;

    if (!f) fail_msg("%s is not there", path);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, f), size);
    text[size] = '\0';
    fclose(f);
    *n = (size_t)size;
    return text;
}

static void
next(struct json *j)
{
    struct err e;

    if (json_next(j, &e) < 0) fail_msg("%s", e.text);
}

static int
read_ids(struct json *j, token_id *ids)
{
    int n = 0;
    uint64_t v;

    next(j);
    assert_int_equal(j->kind, JSON_ARRAY);
    for (next(j); j->kind == JSON_NUMBER; next(j)) {
        assert_true(n < GOLDEN_IDS);
        assert_int_equal(json_u64(j, &v), 0);
        ids[n++] = (token_id)v;
    }
    return n;
}

static int
read_text(struct json *j, char *text)
{
    int n;

    next(j);
    n = json_unescape(j, text, GOLDEN_TEXT);
    assert_true(n >= 0);
    return n;
}

uint32_t
golden_each(const char *dir, void (*each)(const struct golden_case *c, void *arg), void *arg)
{
    static struct golden_case c;
    char path[256];
    struct json j;
    uint32_t n_cases = 0;
    size_t n;
    char *text;

    snprintf(path, sizeof path, "tests/data/tokenizers/%s/cases.json", dir);
    text = golden_read(golden_path(path), &n);
    json_open(&j, text, n);
    next(&j);
    for (next(&j); j.kind == JSON_OBJECT; next(&j), n_cases++) {
        for (next(&j); j.kind == JSON_KEY; next(&j)) {
            if (json_is(&j, "text"))
                c.text_len = read_text(&j, c.text);
            else if (json_is(&j, "decoded"))
                c.decoded_len = read_text(&j, c.decoded);
            else if (json_is(&j, "decoded_keep"))
                c.decoded_keep_len = read_text(&j, c.decoded_keep);
            else if (json_is(&j, "decoded_class"))
                c.decoded_class_len = read_text(&j, c.decoded_class);
            else if (json_is(&j, "ids_class"))
                c.n_class = read_ids(&j, c.ids_class);
            else if (json_is(&j, "ids"))
                c.n_ids = read_ids(&j, c.ids);
            else if (json_is(&j, "ids_bare"))
                c.n_bare = read_ids(&j, c.ids_bare);
            else
                assert_int_equal(json_skip(&j, NULL), 0);
        }
        each(&c, arg);
    }
    free(text);
    return n_cases;
}

void
golden_make(char dir[64], const char *text, size_t n)
{
    char path[128];
    FILE *f;

    snprintf(dir, 64, "/tmp/lagan-test-text-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

void
golden_remove(const char *dir)
{
    char path[128];

    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
}
