/* test_preempt.c - max_utilization on a real worker: preempted sequences resume with the same bits.
 *
 * The same requests run twice: with memory for all of them, then with so little that most are
 * preempted again and again. The settings are one and two lanes, reuse on and off, prefill
 * tokens shared evenly, and batching delays for prompts and encoder inputs. The requests sample,
 * have penalties, log-probabilities and a late deadline, beam searches and several outputs: all
 * state that a preemption could lose.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <stdio.h>

enum { REQUESTS = 12, NEW = 90, OUTPUTS = 3 };

struct result {
    uint64_t request;
    uint32_t n_outputs, n_prompt_logprobs;
    struct output {
        int32_t id[NEW];
        float logprob[NEW], score;
        uint64_t tops; /* a hash */
        uint32_t n;
    } output[OUTPUTS];
    uint64_t logits; /* a hash */
    bool over;
};

/* families: some are searches, and some have several outputs. */
static void
submit(struct lagan *c, uint32_t i, uint32_t n_source, bool families, struct result *a)
{
    struct lagan_request *r = lagan_request_new();
    int32_t ids[64], decoder[] = { 0, 7, (int32_t)(3 + i) };
    uint32_t n = n_source ? n_source : 5 + 3 * i;
    bool search = families && i % 4 == 2;

    for (uint32_t k = 0; k < n; k++) ids[k] = (int32_t)(3 + (i * 31 + k * 7) % 90);
    lagan_set_ids(r, "ids", ids, n);
    if (n_source) lagan_set_ids(r, "decoder_ids", decoder, 3);
    lagan_set_int(r, "max_tokens", NEW);
    lagan_set_bool(r, "ignore_eos", true);
    lagan_set_int(r, "logprobs", 2);
    lagan_set_bool(r, "return_logits", search);
    lagan_set_int(r, "deadline_ms", 100000);
    if (i % 2) lagan_set_float(r, "temperature", 0.9);
    if (i % 2) lagan_set_int(r, "seed", 100 + i);
    if (i % 3 == 0 && !search) lagan_set_float(r, "repetition_penalty", 1.2);
    if (i % 4 == 0) lagan_set_int(r, "prompt_logprobs", 1);
    a->n_outputs = search ? OUTPUTS : families && i % 4 == 3 ? 2 : 1;
    if (search) lagan_set_int(r, "beams", OUTPUTS);
    if (a->n_outputs > 1) lagan_set_int(r, "n", a->n_outputs);
    assert_int_equal(lagan_submit(c, r, &a->request), 0);
    lagan_request_free(r);
}

static uint64_t
mix(uint64_t h, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;

    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * UINT64_C(1099511628211);
    return h;
}

static void
take(struct result *a, const struct lagan_event *ev)
{
    struct output *o = &a->output[ev->output];

    assert_true(ev->output < OUTPUTS);
    if (ev->kind == LAGAN_EVENT_ERROR) fail_msg("%s: %s", ev->reason_name, ev->message);
    if (ev->kind == LAGAN_EVENT_PROMPT) a->n_prompt_logprobs += ev->n_ids;
    if (ev->kind == LAGAN_EVENT_TOKENS) {
        assert_int_equal(ev->first, o->n);
        assert_true(o->n + ev->n_ids <= NEW);
        memcpy(o->id + o->n, ev->ids, ev->n_ids * sizeof *ev->ids);
        if (ev->logprob) memcpy(o->logprob + o->n, ev->logprob, ev->n_ids * sizeof *ev->logprob);
        o->tops = mix(o->tops, ev->top, (size_t)ev->n_ids * ev->n_top * sizeof *ev->top);
        o->n += ev->n_ids;
    }
    if (ev->kind == LAGAN_EVENT_TENSOR)
        a->logits = mix(a->logits, ev->values, ev->n_values * sizeof *ev->values);
    if (ev->kind == LAGAN_EVENT_OUTPUT) o->score = ev->score;
    a->over = ev->kind == LAGAN_EVENT_DONE;
}

static uint64_t
preemptions(const struct serve *s)
{
    char command[400], line[512];
    unsigned long long n = 0;
    FILE *f;

    snprintf(command, sizeof command, "%s --connect %s metrics", program_path("laganctl"),
             s->endpoint);
    f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *value = strrchr(line, ' ');

        if (line[0] != '#' && strstr(line, "preemptions") && value) n += strtoull(value, NULL, 10);
    }
    pclose(f);
    return n;
}

/* Runs all requests at once. Returns the number of preemptions. */
static uint64_t
ask(const char *model, const char *const *set, uint32_t n_source, bool families, struct result *a)
{
    uint32_t over = 0;
    uint64_t n_preempted;
    struct serve s;
    struct lagan *c;

    assert_true(serve_start(&s, model, set));
    assert_int_equal(lagan_open(&c, s.endpoint, 5000), 0);
    memset(a, 0, REQUESTS * sizeof *a);
    for (uint32_t i = 0; i < REQUESTS; i++) submit(c, i, n_source, families, &a[i]);
    while (over < REQUESTS) {
        struct lagan_event ev = { .size = sizeof ev };
        uint32_t i = 0;

        if (lagan_next(c, &ev, 30000) <= 0) fail_msg("nothing for 30 s: %s", lagan_errmsg(c));
        while (i < REQUESTS && a[i].request != ev.id) i++;
        assert_true(i < REQUESTS);
        take(&a[i], &ev);
        over += a[i].over;
    }
    n_preempted = preemptions(&s);
    lagan_close(c);
    serve_stop(&s);
    return n_preempted;
}

static void
with_and_without_preemption(const char *model, const char *memory, uint32_t n_source, bool families)
{
    static struct result want[REQUESTS], got[REQUESTS];
    const char *set[] = { "policy=no_evict",
                          "kv.memory=64MiB",
                          "split.mode=off",
                          "kv.reuse=false",
                          "kv.tokens_per_block=8",
                          "max_num_seqs=16",
                          "max_num_batched_tokens=40",
                          "max_source_tokens=64",
                          "threads=2",
                          "numerics=invariant",
                          "kv.snapshot_interval=16",
                          "chunk_policy=fcfs",
                          "prefill_batch_tokens=0",
                          "encoder_batch_size=0",
                          n_source ? "cross_kv_cache_fraction=0.3" : "kv.shares=full=0.5",
                          NULL };

    assert_int_equal(ask(model, set, n_source, families, want), 0);
    set[0] = "policy=max_utilization";
    set[1] = memory;
    set[11] = "chunk_policy=equal_progress";
    set[12] = "prefill_batch_tokens=60";
    if (n_source) set[13] = "encoder_batch_size=3";
    for (int way = 0; way < 4; way++) {
        uint64_t n_preempted;

        set[2] = way & 1 ? "split.mode=fixed" : "split.mode=off";
        set[3] = way & 2 ? "kv.reuse=true" : "kv.reuse=false";
        n_preempted = ask(model, set, n_source, families, got);
        print_message("%s %s %s: %llu preemptions\n", model, set[2], set[3],
                      (unsigned long long)n_preempted);
        assert_true(n_preempted > 0);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            for (uint32_t k = 0; k < got[i].n_outputs; k++)
                assert_int_equal(got[i].output[k].n, NEW);
            assert_memory_equal(got[i].output, want[i].output, sizeof want[i].output);
            assert_int_equal(got[i].logits, want[i].logits);
            assert_int_equal(got[i].n_prompt_logprobs, want[i].n_prompt_logprobs);
        }
    }
}

static void
a_decoder_resumes_bit_for_bit(void **state)
{
    (void)state;
    with_and_without_preemption("tests/data/golden/llama2", "kv.memory=1MiB", 0, true);
}

static void
windows_resume_bit_for_bit(void **state)
{
    (void)state;
    with_and_without_preemption("tests/data/golden/gemma3", "kv.memory=768KiB", 0, true);
}

static void
recurrent_state_resumes_bit_for_bit(void **state)
{
    (void)state;
    with_and_without_preemption("tests/data/golden/bamba", "kv.memory=640KiB", 0, true);
}

static void
an_encoder_decoder_resumes_bit_for_bit(void **state)
{
    (void)state;
    with_and_without_preemption("tests/data/golden/t5_relu", "kv.memory=512KiB", 30, true);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_decoder_resumes_bit_for_bit),
        cmocka_unit_test(windows_resume_bit_for_bit),
        cmocka_unit_test(recurrent_state_resumes_bit_for_bit),
        cmocka_unit_test(an_encoder_decoder_resumes_bit_for_bit),
    };

    serve_args(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
