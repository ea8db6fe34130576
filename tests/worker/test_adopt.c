/* test_adopt.c - kills lagan-worker with SIGKILL at any moment and starts a replacement with its
 * arenas.
 *
 * The test acts as lagand: it stores received tokens, passes the arenas on and resubmits the
 * requests. Ids, the bits of every log-probability and the text must equal those of an undisturbed
 * run. KV must be adopted and not recomputed: noise in uncommitted blocks changes no bit, noise in
 * committed blocks does.
 */
#include "tests/test.h"
#include "tests/worker/harness.h"

#include "include/lagan_wire.h"
#include "worker/manifest/manifest.h"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { JOBS = 4, MAX_NEW = 40, TEXT = 2048, TAILS = 8192 };

struct stream { /* what lagand has received of a request */
    uint32_t n, n_text, adopted, recomputed, reason;
    int32_t token[MAX_NEW];
    uint32_t bits[MAX_NEW];
    float score;
    char text[TEXT];
};
struct job {
    uint32_t n_prompt, max_tokens;
    const char *text, *stop; /* NULL: ids */
    float temperature, repetition;
};
struct setting {
    const char *model;
    const char *const *option;
    struct job job[JOBS];
};

static const char *const fp32[] = { "--kv.memory=4MiB",
                                    "--max_num_seqs=4",
                                    "--dtype=fp32",
                                    "--kv.tokens_per_block=4",
                                    "--max_num_batched_tokens=24",
                                    NULL };
static const char *const bf16[] = { "--kv.memory=4MiB",
                                    "--max_num_seqs=4",
                                    "--dtype=bf16",
                                    "--kv.tokens_per_block=16",
                                    "--max_num_batched_tokens=24",
                                    NULL };
static const char *const split[] = { "--kv.memory=4MiB",
                                     "--max_num_seqs=4",
                                     "--dtype=fp32",
                                     "--kv.tokens_per_block=4",
                                     "--max_num_batched_tokens=24",
                                     "--split.mode=fixed",
                                     NULL };
/* Greedy, sampled, sampled with a penalty, and a prompt of several chunks. */
#define FOUR \
    { \
        { 9, 40, NULL, NULL, 0, 1 }, { 5, 33, NULL, NULL, 0.9f, 1 }, \
            { 17, 40, NULL, NULL, 0.8f, 1.3f }, \
        { \
            70, 20, NULL, NULL, 0, 1.2f \
        } \
    }
static const struct setting settings[] = {
    { "tests/data/golden/llama2", bf16, FOUR },   { "tests/data/golden/gemma3", fp32, FOUR },
    { "tests/data/golden/t5_relu", fp32, FOUR },  { "tests/data/golden/llama2", fp32, FOUR },
    { "tests/data/golden/mistral", split, FOUR }, { "tests/data/golden/gemma3", split, FOUR },
    { "tests/data/golden/t5_gated", bf16, FOUR }, { "tests/data/golden/bart", bf16, FOUR },
    { "tests/data/golden/mbart", split, FOUR },
};
enum { ON_GPU = 4 }; /* settings tested on a GPU, where a start takes 1 s */
static const struct setting text = {
    "models/recall-gemma3",
    fp32,
    { { 0, 30, "hello there", NULL, 1.1f, 1 },
      { 0, 40, "one two three", "e", 1.3f, 1 },
      { 0, 40, "a", "zzzz", 1.5f, 1.1f },
      { 0, 25, "the word is", NULL, 0, 1 } },
};

static void
put(char *tails, uint32_t *at, const void *from, size_t n)
{
    assert_true(*at + n + 8 <= TAILS);
    if (n) memcpy(tails + *at, from, n);
    memset(tails + *at + n, 0, ROUND_UP(n, (size_t)8) - n);
    *at += (uint32_t)ROUND_UP(n, (size_t)8);
}

static void
submit(struct harness *p, uint32_t row, uint32_t gen, const struct job *j, const struct stream *s)
{
    struct rec_submit sub = {
        .ledger_index = row,
        .gen = gen,
        .id = 1000 + row,
        .seed = 77 * row + 5,
        .n_prompt = j->n_prompt,
        .n_done = s->n,
        .done_text = s->n_text,
        .done_score = s->score,
        .max_tokens = j->max_tokens,
        .temperature = j->temperature,
        .top_p = 1,
        .repetition_penalty = j->repetition,
        .priority = 0.5f,
        .forced_bos = -2,
        .forced_eos = -2,
        .n_eos = 0xffff,
        .flags = SUBMIT_IGNORE_EOS | SUBMIT_LOGPROBS,
    };
    int32_t ids[128];
    char tails[TAILS], stop[64];
    uint32_t at = 0;

    for (uint32_t i = 0; i < j->n_prompt; i++) ids[i] = (int32_t)(3 + (i * 37 + row * 11) % 200);
    if (j->text) sub.text_bytes = (uint32_t)strlen(j->text);
    put(tails, &at, ids, j->n_prompt * 4);
    put(tails, &at, s->token, s->n * 4);
    put(tails, &at, j->text, sub.text_bytes);
    put(tails, &at, s->text, s->n_text);
    if (j->stop) {
        uint32_t len = (uint32_t)strlen(j->stop);

        sub.n_stop = 1;
        memcpy(stop, &len, 4);
        memcpy(stop + 4, j->stop, len);
        put(tails, &at, stop, 4 + len);
    }
    harness_submit(p, &sub, tails, at);
}

static const char *
take_out(const char *at, struct stream *streams, uint32_t gen)
{
    struct rec_out o;
    struct stream *s;
    const char *tail;

    memcpy(&o, at, sizeof o);
    tail = at + sizeof o;
    assert_true(o.ledger_index < JOBS && o.gen == gen && o.n_tokens == 1 && o.has_logprobs);
    s = &streams[o.ledger_index];
    assert_int_equal(o.first, s->n); /* no token is repeated or missing */
    assert_int_equal(o.text_first, s->n_text);
    assert_true(s->n < MAX_NEW && s->n_text + o.text_bytes < TEXT);
    memcpy(&s->token[s->n], tail, 4);
    memcpy(&s->bits[s->n++], tail + 4, 4);
    memcpy(s->text + s->n_text, tail + 8, o.text_bytes);
    s->n_text += o.text_bytes;
    s->score = o.score;
    return tail + ROUND_UP(8 + (size_t)o.text_bytes, (size_t)8);
}

static void
take(const struct ring_record *r, struct stream *streams, uint32_t gen)
{
    if (r->type == REC_STEP) {
        const char *at = r->data;
        struct rec_step s;

        memcpy(&s, at, sizeof s);
        at += sizeof s;
        for (uint32_t i = 0; i < s.n_ent; i++) at = take_out(at, streams, gen);
    } else if (r->type == REC_FINISH) {
        struct rec_finish f;

        memcpy(&f, r->data, sizeof f);
        assert_true(f.ledger_index < JOBS && f.gen == gen && !streams[f.ledger_index].reason);
        streams[f.ledger_index].reason = f.reason;
        streams[f.ledger_index].adopted += f.adopted;
        streams[f.ledger_index].recomputed += f.recomputed;
    } else if (r->type == REC_REJECT) {
        fail_msg("rejected: %s", (const char *)r->data + sizeof(struct rec_reject));
    }
}

static bool
all_ended(const struct stream *streams)
{
    for (uint32_t i = 0; i < JOBS; i++)
        if (!streams[i].reason) return false;
    return true;
}

/* Changes the arenas before the replacement gets them. */
typedef void change(struct harness_arenas *left);

static void *
map(const struct harness_arenas *left, const char *name)
{
    for (uint32_t i = 0; i < left->n; i++) {
        void *at = MAP_FAILED;

        if (strcmp(left->note[i].name, name)) continue;
        at = mmap(NULL, left->note[i].bytes, PROT_READ | PROT_WRITE, MAP_SHARED, left->fd[i], 0);
        assert_ptr_not_equal(at, MAP_FAILED);
        return at;
    }
    fail_msg("arena %s was not left", name);
    return NULL;
}

/* Writes noise into the blocks with committed positions, or into all others. */
static void
noise(struct harness_arenas *left, bool committed)
{
    const char *at = map(left, "manifest");
    const struct manifest_head *h = (const void *)at;
    char *kv = map(left, "kv"), *keep = malloc(h->arena_bytes);

    memset(keep, committed, h->arena_bytes);
    for (uint32_t slot = 0; slot < h->n_slots; slot++) {
        const struct manifest_entry *r =
            (const void *)(at + h->row_at + (size_t)slot * h->row_bytes);

        for (uint32_t g = 0; g < h->n_groups && r->id; g++) {
            const struct manifest_group *k = &h->group[g];
            const uint32_t *table = (const void *)((const char *)r + k->table_at);

            for (uint32_t i = r->first[g]; i < r->end[g]; i++)
                if (r->committed && (k->kind == KV_CROSS || i * h->tokens_per_block < r->committed))
                    memset(keep + (size_t)table[i] * k->slice_bytes, !committed,
                           (size_t)k->slice_bytes * k->n_layers * k->n_parts);
        }
    }
    for (uint64_t i = 0; i < h->arena_bytes; i++)
        if (!keep[i]) kv[i] = 0x3c; /* a small number in any precision */
    munmap(kv, h->arena_bytes);
    munmap((void *)(uintptr_t)at, h->bytes);
    free(keep);
}

static void
noise_in_free_blocks(struct harness_arenas *left)
{
    noise(left, false);
}

static void
noise_in_committed_blocks(struct harness_arenas *left)
{
    noise(left, true);
}

static void
no_manifest(struct harness_arenas *left)
{
    for (uint32_t i = 0; i < left->n; i++) {
        if (strcmp(left->note[i].name, "manifest")) continue;
        close(left->fd[i]);
        left->n--;
        left->fd[i] = left->fd[left->n];
        left->note[i] = left->note[left->n];
    }
}

/* A KV arena whose id differs from the manifest's. */
static void
other_kv(struct harness_arenas *left)
{
    for (uint32_t i = 0; i < left->n; i++)
        if (!strcmp(left->note[i].name, "kv")) left->note[i].fingerprint[0] ^= 1;
    if (!harness_on_gpu()) noise(left, true);
}

/* Runs all requests in one process after another; each process is killed shortly after some
 * records. kills 0: one undisturbed process. */
static void
run_killed(const struct setting *set, uint32_t kills, change *changed, struct stream *streams)
{
    struct harness_arenas left = { 0 };

    memset(streams, 0, JOBS * sizeof *streams);
    for (uint32_t gen = 1; !all_ended(streams); gen++) {
        uint32_t records = gen <= kills ? 1 + test_below(16) : 0;
        const struct ring_record *r;
        struct rec_ready ready;
        struct harness p;

        assert_true(gen <= kills + 1);
        harness_start(&p, set->model, set->option, &left);
        harness_close_left(&left);
        harness_wait_ready(&p, &ready);
        for (uint32_t i = 0; i < JOBS; i++)
            if (!streams[i].reason) submit(&p, i, gen, &set->job[i], &streams[i]);
        while (!all_ended(streams) && (r = harness_next(&p))) {
            take(r, streams, gen);
            if (records && --records == 0) break;
        }
        if (test_below(2)) usleep(test_below(1500));
        harness_kill(&p, &left);
        while (ring_peek(&p.channel.in, &p.rec) > 0) take(&p.rec, streams, gen);
        harness_close(&p);
        if (changed) changed(&left);
    }
    harness_close_left(&left);
}

static bool
same(const struct stream *a, const struct stream *b)
{
    for (uint32_t i = 0; i < JOBS; i++)
        if (a[i].n != b[i].n || a[i].reason != b[i].reason || a[i].n_text != b[i].n_text ||
            memcmp(a[i].token, b[i].token, a[i].n * 4) ||
            memcmp(a[i].bits, b[i].bits, a[i].n * 4) || memcmp(a[i].text, b[i].text, a[i].n_text) ||
            memcmp(&a[i].score, &b[i].score, 4))
            return false;
    return true;
}

static void
sum(const struct stream *s, uint64_t *adopted, uint64_t *recomputed)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        *adopted += s[i].adopted;
        *recomputed += s[i].recomputed;
    }
}

static void
requests_resume_with_equal_bits_after_kills_at_any_moment(void **state)
{
    static struct stream quiet[JOBS], killed[JOBS];
    uint64_t adopted = 0, recomputed = 0;

    (void)state;
    for (uint32_t i = 0; i < (harness_on_gpu() ? ON_GPU : ARRAY_LEN(settings)); i++) {
        run_killed(&settings[i], 0, NULL, quiet);
        for (int round = 0; round < (harness_on_gpu() ? 1 : 3); round++) {
            run_killed(&settings[i], 1 + test_below(harness_on_gpu() ? 2 : 5), NULL, killed);
            if (!same(quiet, killed)) fail_msg("%s, setting %u", settings[i].model, i);
            sum(killed, &adopted, &recomputed);
        }
    }
    print_message("%llu positions adopted, %llu recomputed\n", (unsigned long long)adopted,
                  (unsigned long long)recomputed);
    assert_true(adopted > 50 * recomputed);
}

static void
text_resumes_inside_a_word_and_a_stop_string(void **state)
{
    static struct stream quiet[JOBS], killed[JOBS];

    (void)state;
    run_killed(&text, 0, NULL, quiet);
    assert_int_equal(quiet[1].reason, LAGAN_FINISH_STOP);
    for (int round = 0; round < (harness_on_gpu() ? 1 : 6); round++) {
        run_killed(&text, 1 + test_below(harness_on_gpu() ? 2 : 8), NULL, killed);
        assert_true(same(quiet, killed));
    }
}

static void
noise_changes_bits_only_in_committed_blocks(void **state)
{
    static struct stream quiet[JOBS], killed[JOBS];

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(settings); i++) {
        uint32_t changed = 0;

        run_killed(&settings[i], 0, NULL, quiet);
        run_killed(&settings[i], 3, noise_in_free_blocks, killed);
        if (!same(quiet, killed))
            fail_msg("noise in free blocks changed bits: %s, setting %u", settings[i].model, i);
        for (int round = 0; round < 4; round++) {
            run_killed(&settings[i], 2, noise_in_committed_blocks, killed);
            changed += !same(quiet, killed);
        }
        if (!changed)
            fail_msg("noise in committed blocks changed no bit: %s, setting %u", settings[i].model,
                     i);
    }
}

static void
without_a_matching_manifest_everything_is_recomputed(void **state)
{
    static struct stream quiet[JOBS], killed[JOBS];
    uint64_t adopted = 0, recomputed = 0;

    (void)state;
    run_killed(&settings[0], 0, NULL, quiet);
    run_killed(&settings[0], 2, no_manifest, killed);
    assert_true(same(quiet, killed));
    sum(killed, &adopted, &recomputed);
    run_killed(&settings[0], 2, other_kv, killed);
    assert_true(same(quiet, killed));
    sum(killed, &adopted, &recomputed);
    assert_int_equal(adopted, 0);
    assert_true(recomputed > 0);
}

static char length[] = "--max_model_len=250";

/* Tables have as many entries for 250 positions as for 249. */
static void
other_length(struct harness_arenas *left)
{
    (void)left;
    length[sizeof length - 2] ^= '0' ^ '9';
    length[sizeof length - 3] ^= '5' ^ '4';
}

/* The rotation of a longrope depends on it. */
static void
kv_of_another_model_length_is_computed_again(void **state)
{
    static const char *const options[] = { "--kv.memory=4MiB",
                                           "--max_num_seqs=4",
                                           "--dtype=fp32",
                                           "--kv.tokens_per_block=4",
                                           "--max_num_batched_tokens=24",
                                           length,
                                           NULL };
    static const struct setting setting = { "tests/data/golden/llama2", options, FOUR };
    static struct stream quiet[JOBS], killed[JOBS];
    uint64_t adopted = 0, recomputed = 0;

    (void)state;
    run_killed(&setting, 0, NULL, quiet);
    run_killed(&setting, 2, other_length, killed);
    assert_true(same(quiet, killed));
    sum(killed, &adopted, &recomputed);
    assert_int_equal(adopted, 0);
    assert_true(recomputed > 0);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_resume_with_equal_bits_after_kills_at_any_moment),
        cmocka_unit_test(noise_changes_bits_only_in_committed_blocks),
        cmocka_unit_test(without_a_matching_manifest_everything_is_recomputed),
        cmocka_unit_test(kv_of_another_model_length_is_computed_again),
        cmocka_unit_test(text_resumes_inside_a_word_and_a_stop_string),
    };

    harness_args(argc, argv);
    /* The test cannot access GPU memory. */
    if (harness_on_gpu()) cmocka_set_skip_filter("noise_*");
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}
