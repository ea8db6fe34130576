/* bench_text.c - time of tokenization on the text thread, and of opening a vocabulary.
 *
 * Text: the Markdown files below the first argument (default: $srcdir), repeated to 4 MiB.
 * Tokenizers: the goldens, whose 512 to 760 pieces need more merges per word than a published
 * vocabulary, or those of the directories given as further arguments. Beside each: finding the
 * characters of the same text, a lower limit. Processor time of one thread. The bound of 5 MB/s of
 * English text applies to the best of 5 runs, which other load disturbs least.
 *
 * Prints a table, then JSON lines (bench/README.md).
 */
#include "base/base.h"
#include "base/utf8.h"
#include "worker/text/tokenizer.h"

#include <glob.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { TEXT = 4 << 20, RUNS = 5, GOLDENS = 7 };

static char text[TEXT + 1];
static size_t n_text;
static token_id ids[TEXT + 64];

/* Processor time of this thread, so that other load does not count. */
static nsec
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (nsec)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void
read_texts(const char *root)
{
    static const char *const below[] = { "*.md", "*/*.md", "*/*/*.md" };

    while (n_text < TEXT) {
        size_t before = n_text;

        for (size_t i = 0; i < ARRAY_LEN(below); i++) {
            char pattern[1024];
            glob_t g;

            snprintf(pattern, sizeof pattern, "%s/%s", root, below[i]);
            if (glob(pattern, 0, NULL, &g)) continue;
            for (size_t f = 0; f < g.gl_pathc; f++) {
                FILE *file = fopen(g.gl_pathv[f], "r");

                if (!file) continue;
                n_text += fread(text + n_text, 1, TEXT - n_text, file);
                fclose(file);
            }
            globfree(&g);
        }
        if (n_text == before) {
            fprintf(stderr, "bench_text: no *.md below %s\n", root);
            exit(2);
        }
    }
    while (n_text && ((unsigned char)text[n_text] & 0xc0) == 0x80) n_text--;
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void
put_line(const char *name, const char *what, const char *unit, double v[RUNS])
{
    qsort(v, RUNS, sizeof *v, by_size);
    printf("{\"bench\":\"text\",\"case\":\"%s/"
           "%s\",\"value\":%.2f,\"unit\":\"%s\",\"n\":%d,\"min\":%.2f,"
           "\"median\":%.2f,\"max\":%.2f}\n",
           name, what, v[RUNS / 2], unit, RUNS, v[0], v[RUNS / 2], v[RUNS - 1]);
}

static double
characters(void)
{
    nsec begin = now();
    size_t n = 0;

    for (size_t i = 0; i < n_text; n++) i += (size_t)MAX(utf8_at(text + i, n_text - i), 1);
    return n ? (double)n_text * 1e3 / (double)(now() - begin) : 0;
}

/* Measures opening from the cache file (tokenizer.cache_dir), in ms. */
static int
measure_kept(struct tokenizer *t, const char *dir, double ms[RUNS])
{
    char folder[] = "/tmp/lagan-bench-text-XXXXXX", pattern[64];
    struct err e = { 0 };
    glob_t g = { 0 };
    int r = mkdtemp(folder) ? tokenizer_keep(t, folder, &e) : -1;

    for (int i = 0; r >= 0 && i < RUNS; i++) {
        struct tokenizer *again = NULL;
        nsec begin = now();

        r = tokenizer_open_kept(&again, dir, folder, &e) == 1 ? 0 : -1;
        ms[i] = (double)(now() - begin) / 1e6;
        tokenizer_close(again);
    }
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    if (glob(pattern, 0, NULL, &g) == 0) unlink(g.gl_pathv[0]);
    globfree(&g);
    rmdir(folder);
    return r;
}

static int
measure(const char *dir)
{
    const char *name = strrchr(dir, '/') ? strrchr(dir, '/') + 1 : dir;
    double encode[RUNS], open[RUNS], kept[RUNS], walk[RUNS];
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    int n = 0;

    for (int i = 0; i < RUNS; i++) {
        nsec begin = now();

        tokenizer_close(t);
        if (tokenizer_open(&t, dir, &e) < 0) {
            fprintf(stderr, "bench_text: %s\n", e.text);
            return 2;
        }
        open[i] = (double)(now() - begin) / 1e6;
    }
    for (int i = 0; i < RUNS; i++) {
        nsec begin = now();

        n = tokenizer_encode(t, text, n_text, true, ids, ARRAY_LEN(ids), &e);
        if (n < 0) {
            fprintf(stderr, "bench_text: %s: %s\n", name, e.text);
            return 2;
        }
        encode[i] = (double)n_text * 1e3 / (double)(now() - begin);
        walk[i] = characters();
    }
    fprintf(stderr, "%-12s %4.1f bytes a token\n", name, (double)n_text / n);
    put_line(name, "encode", "MB/s", encode);
    put_line(name, "characters", "MB/s", walk);
    put_line(name, "open", "ms", open);
    if (measure_kept(t, dir, kept) < 0) return 2;
    put_line(name, "open kept", "ms", kept);
    tokenizer_close(t);
    return encode[RUNS - 1] < 5;
}

int
main(int argc, char **argv)
{
    static const char *const goldens[GOLDENS] = { "bpe_bart",  "bpe_llama3", "bpe_o200k",
                                                  "spm_gemma", "spm_llama2", "spm_mbart",
                                                  "spm_t5" };
    const char *root = argc > 1 ? argv[1] : getenv("srcdir") ? getenv("srcdir") : ".";
    int worst = 0;

    read_texts(root);
    for (int i = 2; i < argc; i++) worst = MAX(worst, measure(argv[i]));
    for (int i = 0; argc <= 2 && i < GOLDENS; i++) {
        char dir[1024];

        snprintf(dir, sizeof dir, "%s/tests/data/tokenizers/%s", root, goldens[i]);
        worst = MAX(worst, measure(dir));
    }
    return worst;
}
