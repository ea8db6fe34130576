/* golden.c - see golden.h. */
#include "tests/arch/golden.h"

#include "tests/test.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

static token_id *
tokens(const json_t *list, uint32_t *n)
{
    token_id *t = calloc(json_array_size(list) + 1, sizeof *t);

    *n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < *n; i++) t[i] = (token_id)json_integer_value(json_array_get(list, i));
    return t;
}

static char *
slurp(const char *dir, const char *name, size_t *n)
{
    char path[600], *text;
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "rb");
    if (!f) fail_msg("%s is not there", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    text = malloc(*n + 1);
    assert_int_equal(fread(text, 1, *n, f), *n);
    text[*n] = 0;
    fclose(f);
    return text;
}

static void
open_tensors(struct golden_tensors *to, const char *dir, const char *name)
{
    json_error_t why;
    uint64_t head;
    size_t n;

    to->data = slurp(dir, name, &n);
    memcpy(&head, to->data, sizeof head);
    to->header = json_loadb(to->data + 8, head, 0, &why);
    assert_non_null(to->header);
}

/* p<i>.<what>, or NULL. */
static const float *
logits(const struct golden_tensors *g, uint32_t i, const char *what, uint64_t n)
{
    char name[64];
    const json_t *t, *at;
    uint64_t head;

    snprintf(name, sizeof name, "p%u.%s", i, what);
    t = json_object_get(g->header, name);
    if (!t) return NULL;
    at = json_object_get(t, "data_offsets");
    assert_int_equal(json_integer_value(json_array_get(at, 1)) -
                         json_integer_value(json_array_get(at, 0)),
                     n * sizeof(float));
    memcpy(&head, g->data, sizeof head);
    return (const float *)(const void *)(g->data + 8 + head +
                                         json_integer_value(json_array_get(at, 0)));
}

static void
read_prompt(struct golden *g, uint32_t i, const json_t *p)
{
    struct golden_prompt *to = &g->prompt[i];
    const json_t *greedy = json_object_get(p, "greedy");
    uint32_t rows;

    to->input = tokens(json_object_get(p, "input_ids"), &to->n_input);
    if (json_object_get(p, "decoder_input_ids"))
        to->decoder = tokens(json_object_get(p, "decoder_input_ids"), &to->n_decoder);
    for (uint32_t k = 0; k < GOLDEN_NEW; k++) {
        to->greedy[k] =
            (token_id)json_integer_value(json_array_get(json_object_get(greedy, "ids"), k));
        to->margin[k] = json_number_value(json_array_get(json_object_get(greedy, "margin"), k));
        to->logprob[k] = json_number_value(json_array_get(json_object_get(greedy, "logprob"), k));
    }
    rows = to->decoder ? to->n_decoder : to->n_input;
    to->last = logits(&g->logits, i, "logits_last", g->vocab);
    to->all = logits(&g->logits, i, "logits_all", (uint64_t)rows * g->vocab);
    to->last_fp8 = g->fp8.data ? logits(&g->fp8, i, "logits_last", g->vocab) : NULL;
    assert_non_null(to->last);
}

void
golden_open(struct golden *g, const char *name)
{
    const char *srcdir = getenv("srcdir");
    char *text, fp8[600];
    size_t n;
    json_error_t why;

    memset(g, 0, sizeof *g);
    snprintf(g->dir, sizeof g->dir, "%s/tests/data/golden/%s", srcdir ? srcdir : ".", name);
    text = slurp(g->dir, "expected.json", &n);
    g->expected = json_loadb(text, n, 0, &why);
    free(text);
    assert_non_null(g->expected);
    open_tensors(&g->logits, g->dir, "expected.safetensors");
    snprintf(fp8, sizeof fp8, "%s/fp8.safetensors", g->dir);
    if (!access(fp8, R_OK)) open_tensors(&g->fp8, g->dir, "fp8.safetensors");
    g->vocab = (uint32_t)json_integer_value(json_object_get(g->expected, "vocab_size"));
    g->n = (uint32_t)json_array_size(json_object_get(g->expected, "prompts"));
    assert_true(g->n > 0 && g->n <= GOLDEN_PROMPTS);
    for (uint32_t i = 0; i < g->n; i++)
        read_prompt(g, i, json_array_get(json_object_get(g->expected, "prompts"), i));
}

void
golden_close(struct golden *g)
{
    for (uint32_t i = 0; i < g->n; i++) {
        free(g->prompt[i].input);
        free(g->prompt[i].decoder);
    }
    free(g->logits.data);
    json_decref(g->logits.header);
    free(g->fp8.data);
    json_decref(g->fp8.header);
    json_decref(g->expected);
}

void
golden_with_config(const struct golden *g, const char *config, char ret[64])
{
    char from[PATH_MAX + 300], to[600], *real = realpath(g->dir, NULL);
    DIR *d = opendir(g->dir);
    const struct dirent *f;

    snprintf(ret, 64, "/tmp/lagan-golden-XXXXXX");
    assert_non_null(mkdtemp(ret));
    assert_non_null(d);
    while ((f = readdir(d))) {
        const char *name = strcmp(f->d_name, config) ? f->d_name : "config.json";

        if (f->d_name[0] == '.' || !strcmp(f->d_name, "config.json")) continue;
        snprintf(from, sizeof from, "%s/%s", real, f->d_name);
        snprintf(to, sizeof to, "%s/%s", ret, name);
        assert_int_equal(symlink(from, to), 0);
    }
    closedir(d);
    free(real);
}

void
golden_remove(const char *dir)
{
    char path[600];
    DIR *d = opendir(dir);
    const struct dirent *f;

    assert_non_null(d);
    while ((f = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        if (f->d_name[0] != '.') unlink(path);
    }
    closedir(d);
    rmdir(dir);
}
