/* test_ranks.c - each family on several ranks, compared with transformers and with itself.
 *
 * Ranks are forked processes that share a memfd. Each runs the same batches on its part of the
 * model and computes all log-probabilities. Their bits must be equal on every rank and in every
 * run; test_golden.c defines the tolerance against transformers.
 *
 * With `--device cuda` each rank has a GPU; --most N skips tests with more than N ranks.
 */
#include "tests/arch/golden.h"
#include "tests/exec/exec_harness.h"
#include "tests/test.h"
#include "worker/arch/registry.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const double TOLERANCE = 1e-4, MARGIN = 1e-3;
enum { MAX_RANKS = 4, ALONE = 100 /* s; how long a rank waits for a rank that has exited */ };

/* Results of one rank, in shared memory. */
struct found {
    uint32_t n_tokens[GOLDEN_PROMPTS];
    token_id token[GOLDEN_PROMPTS][HARNESS_LEN];
    float lp[]; /* [prompts][HARNESS_LEN][vocab] */
};

static struct harness h;
static const char *device; /* NULL: the CPU */
static uint32_t most_ranks = MAX_RANKS;

static size_t
found_bytes(const struct golden *g)
{
    return sizeof(struct found) + sizeof(float) * g->n * HARNESS_LEN * g->vocab;
}

static float *
lp_of(const struct golden *g, struct found *f, uint32_t i)
{
    return f->lp + (size_t)i * HARNESS_LEN * g->vocab;
}

static void
start_slot(const struct golden *g, struct found *f, uint32_t i)
{
    const struct golden_prompt *p = &g->prompt[i];
    struct harness_slot *s = &h.slot[i];
    uint32_t n = p->decoder ? 1 : p->n_input;

    check(n + GOLDEN_NEW <= HARNESS_LEN);
    memset(s, 0, sizeof *s);
    if (p->decoder) {
        s->source = p->input;
        s->n_source = p->n_input;
    }
    memcpy(s->token, p->decoder ? p->decoder : p->input, n * sizeof *s->token);
    s->n_prompt = n;
    s->n_new = GOLDEN_NEW;
    s->all = true;
    s->how = (struct sampling){ .top_p = 1,
                                .repetition_penalty = 1,
                                .logprobs = g->vocab,
                                .prompt_logprobs = g->vocab,
                                .want_logprobs = true,
                                .forced_bos = -1,
                                .forced_eos = -1 };
    s->lp = lp_of(g, f, i);
    s->active = true;
}

static void
segment(const struct golden *g, struct found *f, struct harness_options o)
{
    harness_open(&h, &o);
    for (uint32_t i = 0; i < g->n; i++) start_slot(g, f, i);
    harness_run(&h);
    for (uint32_t i = 0; i < g->n; i++) {
        f->n_tokens[i] = h.slot[i].n_prompt + h.slot[i].n_new - 1;
        memcpy(f->token[i], h.slot[i].token, sizeof f->token[i]);
    }
    harness_close(&h);
}

/* Runs each rank in a child process, because a process that has used a GPU cannot fork a child that
 * uses it. found: [ranks], in shared memory. */
static void
run_ranks(const struct golden *g, struct found *const *found, uint32_t ranks,
          struct harness_options o)
{
    pid_t pid[MAX_RANKS];
    int status, failed = 0;

    o.n_ranks = ranks;
    o.device = device;
    o.group_fd = memfd_create("group", MFD_CLOEXEC);
    assert_true(o.group_fd >= 0);
    assert_int_equal(ftruncate(o.group_fd, GPU_GROUP_BYTES), 0);
    fflush(NULL);
    for (o.rank = 0; o.rank < ranks; o.rank++) {
        pid[o.rank] = fork();
        assert_true(pid[o.rank] >= 0);
        if (pid[o.rank] == 0) {
            setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure ends the child */
            alarm(ALONE);
            segment(g, found[o.rank], o);
            _exit(0);
        }
    }
    for (uint32_t left = ranks; left; left--) {
        assert_true(waitpid(-1, &status, 0) > 0);
        if (status == 0 || failed++) continue;
        for (uint32_t i = 0; i < ranks; i++)
            kill(pid[i], SIGKILL); /* the other ranks would wait for this one */
    }
    close(o.group_fd);
    assert_int_equal(failed, 0);
}

/* max |ours - log_softmax(logits)| / max |logit| of one position. */
static double
row_error(const float *lp, const float *logits, uint32_t vocab)
{
    double sum = 0, most = 0, worst = 0;

    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)logits[i]);
    for (uint32_t i = 0; i < vocab; i++) {
        double d = fabs((double)lp[i] - ((double)logits[i] - log(sum)));

        most = fmax(most, fabs((double)logits[i]));
        if (!(d <= worst)) worst = d; /* NaN sticks */
    }
    return worst / most;
}

static void
is_what_transformers_computed(const struct golden *g, struct found *f)
{
    for (uint32_t i = 0; i < g->n; i++) {
        const struct golden_prompt *p = &g->prompt[i];
        uint32_t n = p->decoder ? 1 : p->n_input;
        const float *logits = p->decoder ? p->all : p->last;

        if (logits)
            assert_true(row_error(lp_of(g, f, i) + (size_t)(n - 1) * g->vocab, logits, g->vocab) <=
                        TOLERANCE);
        for (uint32_t k = 0; k < GOLDEN_NEW; k++) {
            if (f->token[i][n + k] != p->greedy[k] && p->margin[k] < MARGIN) break;
            if (f->token[i][n + k] != p->greedy[k])
                fail_msg("prompt %u, token %u is %d, want %d (margin %g)", i, k, f->token[i][n + k],
                         p->greedy[k], p->margin[k]);
        }
    }
}

static void
check_equal_on_ranks(const char *name, uint32_t ranks)
{
    /* Other chunks and lanes: only the sums over ranks determine the bits. */
    static const struct harness_options way[] = {
        { .isa = "auto", .tokens_per_block = 16, .max_tokens = 512, .n_lanes = 1, .drop = true },
        { .isa = "auto", .tokens_per_block = 4, .max_tokens = 7, .n_lanes = 2, .enc_layers = 1 },
    };
    struct golden g;
    struct found *found[ARRAY_LEN(way)][MAX_RANKS];

    if (ranks > most_ranks) skip();
    golden_open(&g, name);
    for (uint32_t k = 0; k < ARRAY_LEN(way); k++) {
        struct harness_options o = way[k];

        for (uint32_t r = 0; r < ranks; r++) {
            found[k][r] = mmap(NULL, found_bytes(&g), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            assert_true(found[k][r] != MAP_FAILED);
        }
        o.dir = g.dir;
        run_ranks(&g, found[k], ranks, o);
    }
    is_what_transformers_computed(&g, found[0][0]);
    for (uint32_t k = 0; k < ARRAY_LEN(way); k++)
        for (uint32_t r = 0; r < ranks; r++)
            assert_memory_equal(found[k][r], found[0][0], found_bytes(&g));
    for (uint32_t k = 0; k < ARRAY_LEN(way); k++)
        for (uint32_t r = 0; r < ranks; r++) munmap(found[k][r], found_bytes(&g));
    golden_close(&g);
}

#define MODEL(name, ranks) \
    static void name##_is_equal_on_##ranks##_ranks(void **state) \
    { \
        (void)state; \
        check_equal_on_ranks(#name, ranks); \
    }
MODEL(llama2, 2)
MODEL(llama2, 4)
MODEL(llama3, 2)
MODEL(llama3, 4) /* 2 K/V heads: pairs of ranks share one */
MODEL(mistral, 2)
MODEL(mistral, 4)
MODEL(qwen2, 2)
MODEL(qwen2, 4)
MODEL(qwen3, 2)
MODEL(qwen3, 4)
MODEL(gemma3, 2)
MODEL(gemma3, 4)
MODEL(t5_relu, 3) /* 128 feed-forward units: 42, 43 and 43 */
MODEL(t5_gated, 2)
MODEL(bart, 2)
MODEL(mbart, 2)
MODEL(gpt_oss, 2)
MODEL(gpt_oss, 4)       /* 1 K/V head for all ranks */
MODEL(gpt_oss_mxfp4, 2) /* the 3 runs of an expert: 1 and 2 */
MODEL(gemma3n, 2)
MODEL(gemma3n_streams, 2)
MODEL(gemma3n, 4)
MODEL(gemma4_dense, 2)
MODEL(gemma4_dense, 4)
MODEL(gemma4_e, 2)
MODEL(gemma4_e, 4)
MODEL(gemma4_moe, 2)
MODEL(gemma4_moe, 4)
MODEL(gemma4_big, 2)
MODEL(bamba, 2)
MODEL(bamba, 4) /* 2 groups of state heads: pairs of ranks share one */
MODEL(granite_hybrid, 2)
MODEL(granite_hybrid, 4)
MODEL(nemotron_h, 2)

static void
sizes_that_do_not_divide_are_refused_by_name(void **state)
{
    static const struct {
        const char *model;
        uint32_t ranks;
        const char *why;
    } odd[] = {
        { "llama2", 3, "attention heads, which 3 ranks cannot share equally" },
        { "t5_relu", 2, "attention heads, which 2 ranks cannot share equally" },
        { "t5_gated", 4, "attention heads, which 4 ranks cannot share equally" },
        { "bart", 4, "attention heads, which 4 ranks cannot share equally" },
        { "mbart", 4, "attention heads, which 4 ranks cannot share equally" },
        { "gemma4_big", 4, "attention heads, which 4 ranks cannot share equally" },
        { "gpt_oss_mxfp4", 4,
          "each expert has 3 groups of columns that share a scale, too few for 4 ranks" },
        { "nemotron_h", 4,
          "groups of Mamba heads on 4 ranks: the first must be a multiple of the other" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        struct model_source src = {
            .dtype = DT_COUNT, .rank = 1, .n_ranks = odd[i].ranks, .weights_fd = -1
        };
        struct golden g;
        struct model *m = NULL;
        struct err e = { 0 };

        golden_open(&g, odd[i].model);
        src.dir = g.dir;
        if (model_begin(&m, &src, arch_families, &e) != -ENOTSUP || !strstr(e.text, odd[i].why))
            fail_msg("%s on %u ranks: %s", odd[i].model, odd[i].ranks, e.text);
        golden_close(&g);
    }
}

/* Bytes that this process has read from files. */
static uint64_t
bytes_read(void)
{
    unsigned long long n = 0;
    FILE *f = fopen("/proc/self/io", "re");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "rchar: %llu", &n), 1);
    fclose(f);
    return n;
}

/* Bytes read for loading a rank's part. All tensors are copied, because bf16 is converted to fp32.
 * The fingerprint has put the files into the page cache, so no direct I/O reads whole pages. */
static uint64_t
read_by_rank(const char *dir, int group_fd, uint32_t rank, uint32_t ranks)
{
    const struct gpu_options o = {
        .device = "cpu", .rank = rank, .n_ranks = ranks, .group_fd = group_fd
    };
    struct model_source src = {
        .dir = dir, .dtype = DT_F32, .rank = rank, .n_ranks = ranks, .weights_fd = -1
    };
    enum { ITSELF = 16384 }; /* of /proc: of a container without /sys glibc reads some KiB there */
    struct model *m = NULL;
    struct gpu *g = NULL;
    struct err e = { 0 };
    uint64_t n;

    assert_int_equal(gpu_open(&g, &o, &e), 0);
    assert_int_equal(model_begin(&m, &src, arch_families, &e), 0);
    n = bytes_read();
    assert_int_equal(model_load(m, &src, g, &e), 0);
    n = bytes_read() - n;
    assert_in_range(n, m->weight_bytes / 2, m->weight_bytes / 2 + ITSELF);
    n = m->weight_bytes / 2;
    model_close(m);
    gpu_close(g);
    return n;
}

static void
rank_reads_its_own_bytes_only(void **state)
{
    static const struct {
        const char *name;
        uint32_t ranks;
        double most; /* share of the whole that a rank may read: its part and undivided tensors */
    } as[] = {
        { "llama2", 2, .55 },         { "llama2", 4, .32 }, { "llama3", 4, .36 },
        { "t5_gated", 2, .53 },       { "bart", 2, .63 },   { "gemma4_moe", 4, .31 },
        { "granite_hybrid", 2, .56 },
    };
    int fd = memfd_create("group", MFD_CLOEXEC);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, GPU_GROUP_BYTES), 0);
    for (size_t i = 0; i < ARRAY_LEN(as); i++) {
        struct golden gold;
        uint64_t whole, sum = 0;

        golden_open(&gold, as[i].name);
        whole = read_by_rank(gold.dir, fd, 0, 1);
        for (uint32_t r = 0; r < as[i].ranks; r++) {
            uint64_t n = read_by_rank(gold.dir, fd, r, as[i].ranks);

            if ((double)n > as[i].most * (double)whole)
                fail_msg("%s: rank %u of %u reads %llu of %llu bytes", as[i].name, r, as[i].ranks,
                         (unsigned long long)n, (unsigned long long)whole);
            sum += n;
        }
        assert_true(sum >= whole);
        golden_close(&gold);
    }
    close(fd);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama2_is_equal_on_2_ranks),
        cmocka_unit_test(llama2_is_equal_on_4_ranks),
        cmocka_unit_test(llama3_is_equal_on_2_ranks),
        cmocka_unit_test(llama3_is_equal_on_4_ranks),
        cmocka_unit_test(mistral_is_equal_on_2_ranks),
        cmocka_unit_test(mistral_is_equal_on_4_ranks),
        cmocka_unit_test(qwen2_is_equal_on_2_ranks),
        cmocka_unit_test(qwen2_is_equal_on_4_ranks),
        cmocka_unit_test(qwen3_is_equal_on_2_ranks),
        cmocka_unit_test(qwen3_is_equal_on_4_ranks),
        cmocka_unit_test(gemma3_is_equal_on_2_ranks),
        cmocka_unit_test(gemma3_is_equal_on_4_ranks),
        cmocka_unit_test(t5_relu_is_equal_on_3_ranks),
        cmocka_unit_test(t5_gated_is_equal_on_2_ranks),
        cmocka_unit_test(bart_is_equal_on_2_ranks),
        cmocka_unit_test(mbart_is_equal_on_2_ranks),
        cmocka_unit_test(gpt_oss_is_equal_on_2_ranks),
        cmocka_unit_test(gpt_oss_is_equal_on_4_ranks),
        cmocka_unit_test(gpt_oss_mxfp4_is_equal_on_2_ranks),
        cmocka_unit_test(gemma3n_is_equal_on_2_ranks),
        cmocka_unit_test(gemma3n_streams_is_equal_on_2_ranks),
        cmocka_unit_test(gemma3n_is_equal_on_4_ranks),
        cmocka_unit_test(gemma4_dense_is_equal_on_2_ranks),
        cmocka_unit_test(gemma4_dense_is_equal_on_4_ranks),
        cmocka_unit_test(gemma4_e_is_equal_on_2_ranks),
        cmocka_unit_test(gemma4_e_is_equal_on_4_ranks),
        cmocka_unit_test(gemma4_moe_is_equal_on_2_ranks),
        cmocka_unit_test(gemma4_moe_is_equal_on_4_ranks),
        cmocka_unit_test(gemma4_big_is_equal_on_2_ranks),
        cmocka_unit_test(bamba_is_equal_on_2_ranks),
        cmocka_unit_test(bamba_is_equal_on_4_ranks),
        cmocka_unit_test(granite_hybrid_is_equal_on_2_ranks),
        cmocka_unit_test(granite_hybrid_is_equal_on_4_ranks),
        cmocka_unit_test(nemotron_h_is_equal_on_2_ranks),
        cmocka_unit_test(sizes_that_do_not_divide_are_refused_by_name),
        cmocka_unit_test(rank_reads_its_own_bytes_only),
    };

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) device = argv[i + 1];
        if (!strcmp(argv[i], "--most")) most_ranks = (uint32_t)atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--only")) cmocka_set_test_filter(argv[i + 1]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
