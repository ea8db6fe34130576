/* replay.c - main() of a fuzzer that is built as a test.
 *
 *     fuzz_NAME                  tests/data/fuzz_NAME/ in $srcdir, then mutations of what is in it
 *     fuzz_NAME FILE...          only these files: to look at one finding
 *
 * LAGAN_TEST_SEED=n repeats a run, LAGAN_FUZZ_RUNS=n changes the number of mutations. If the
 * program aborts, the input is left in fuzz_NAME.crash in the present directory.
 */
#include "tests/fuzz/fuzz.h"

#include "base/rng.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FILES = 512, MAX_BYTES = 1 << 16, GROW = 256, RUNS = 20000 };

static struct input {
    uint8_t *bytes;
    size_t n;
} corpus[MAX_FILES];
static size_t n_corpus;

static const char *name;
static char crash_file[256];
static const uint8_t *volatile now;
static volatile size_t now_n;
static uint64_t state;

static uint32_t
below(uint32_t n)
{
    return rng_below(&state, n);
}

static void
died(int sig)
{
    int fd = open(crash_file, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd >= 0 && write(fd, now, now_n) >= 0) close(fd);
    if (&fuzz_operations) dprintf(2, "%s: after %lu operations\n", name, fuzz_operations);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void
run_one(const uint8_t *bytes, size_t n)
{
    /* A block of exactly n bytes, so that one byte too far is seen by a sanitizer. */
    uint8_t *exact = malloc(n ? n : 1);

    if (!exact) exit(99);
    if (n) memcpy(exact, bytes, n);
    now = exact;
    now_n = n;
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static void
load(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(MAX_BYTES);
    size_t n;

    if (!f || !bytes) {
        fprintf(stderr, "%s: cannot read %s\n", name, path);
        exit(99);
    }
    n = fread(bytes, 1, MAX_BYTES, f);
    fclose(f);
    if (n_corpus == MAX_FILES) {
        fprintf(stderr, "%s: more than %d files\n", name, MAX_FILES);
        exit(99);
    }
    corpus[n_corpus++] = (struct input){ bytes, n };
}

static int
by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* alphasort() asks the locale */
}

static void
load_all(void)
{
    const char *srcdir = getenv("srcdir");
    char dir[512], path[1024];
    struct dirent **entry;
    int n;

    snprintf(dir, sizeof dir, "%s/tests/data/%s", srcdir ? srcdir : ".", name);
    n = scandir(dir, &entry, NULL, by_name);
    if (n < 0) {
        fprintf(stderr, "%s: there is no %s\n", name, dir);
        exit(99);
    }
    for (int i = 0; i < n; i++) {
        if (entry[i]->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", dir, entry[i]->d_name);
            load(path);
        }
        free(entry[i]);
    }
    free(entry);
    if (!n_corpus) {
        fprintf(stderr, "%s: %s is empty\n", name, dir);
        exit(99);
    }
}

/* Makes 1 to 8 changes of a file of the corpus, of the kinds that libFuzzer makes; 1 of 8 inputs is
 * new. */
static size_t
mutate(uint8_t *to)
{
    static const uint64_t edges[] = { 0,         1,          0x7f,       0x80,       0xff,
                                      0x7fff,    0xffff,     0x7fffffff, 0x80000000, 0xffffffff,
                                      INT64_MAX, UINT64_MAX, 16,         0x1000,     0x100000000 };
    const struct input *a = &corpus[below((uint32_t)n_corpus)];
    size_t n = a->n;

    memcpy(to, a->bytes, n);
    if (below(8) == 0) {
        for (size_t i = 0; i < n; i++) to[i] = (uint8_t)below(256);
        return n;
    }
    for (uint32_t changes = 1 + below(8); changes; changes--) {
        const struct input *b = &corpus[below((uint32_t)n_corpus)];
        size_t at = n ? below((uint32_t)n) : 0, len = 1 + below(16);

        switch (n ? below(8) : 3) {
        case 0:
            to[at] ^= (uint8_t)(1u << below(8));
            break;
        case 1:
            to[at] = (uint8_t)below(256);
            break;
        case 2:
            to[at] = (uint8_t)(to[at] + below(9) - 4);
            break;
        case 3: /* insert */
            if (n + len > MAX_BYTES + GROW) break;
            memmove(to + at + len, to + at, n - at);
            for (size_t i = 0; i < len; i++) to[at + i] = (uint8_t)below(256);
            n += len;
            break;
        case 4: /* delete */
            if (at + len > n) len = n - at;
            memmove(to + at, to + at + len, n - at - len);
            n -= len;
            break;
        case 5: /* an edge value, little-endian */
            len = (size_t)1 << below(4);
            if (at + len <= n) memcpy(to + at, &edges[below(sizeof edges / sizeof *edges)], len);
            break;
        case 6: /* another file's tail */
            if (b->n == 0) break;
            len = below((uint32_t)b->n);
            if (at + b->n - len > MAX_BYTES + GROW) break;
            memcpy(to + at, b->bytes + len, b->n - len);
            n = at + b->n - len;
            break;
        default: /* a piece of itself */
            if (at + len <= n && n >= len)
                memmove(to + below((uint32_t)(n - len + 1)), to + at, len);
        }
    }
    return n;
}

int
main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *s;
    static uint8_t bytes[MAX_BYTES + GROW + 16];
    long runs = RUNS;

    name = slash ? slash + 1 : argv[0];
    snprintf(crash_file, sizeof crash_file, "%.200s.crash", name);
    signal(SIGABRT, died);
    signal(SIGSEGV, died);
    signal(SIGBUS, died);
    signal(SIGFPE, died);
    /* malloc() keeps freed memory for the next run: otherwise fuzz_sched spends half of its time in
     * the kernel, which clears pages. */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    if (argc > 1) {
        for (int i = 1; i < argc; i++) load(argv[i]);
        runs = 0;
    } else {
        load_all();
    }
    s = getenv("LAGAN_TEST_SEED");
    state = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL);
    fprintf(stderr, "seed: LAGAN_TEST_SEED=%llu\n", (unsigned long long)state);
    s = getenv("LAGAN_FUZZ_RUNS");
    if (s) runs = atol(s);
    for (size_t i = 0; i < n_corpus; i++) run_one(corpus[i].bytes, corpus[i].n);
    for (long i = 0; i < runs; i++) run_one(bytes, mutate(bytes));
    fprintf(stderr, "%s: %zu files, %ld mutations", name, n_corpus, runs);
    if (&fuzz_operations) fprintf(stderr, ", %lu operations", fuzz_operations);
    fprintf(stderr, "\n");
    for (size_t i = 0; i < n_corpus; i++) free(corpus[i].bytes);
    return 0;
}
