/* random_mix_draw.c - see random_mix.h. */
#include "base/base.h"
#include "tests/e2e/random_mix.h"
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <stdio.h>

static int32_t texts[TEXTS][MOST_PROMPT];
static uint32_t length, most_prompt; /* of a sequence; of prompts */

const struct model mix_models[] = {
    /* path, vocabulary, positions, has an encoder, has text */
    { "tests/data/golden/bamba", 320, 512, false, false },
    { "tests/data/golden/bart", 384, 200, true, false },
    { "tests/data/golden/gemma3", 384, 512, false, false, .windows = true },
    { "tests/data/golden/gemma3n", 320, 512, false, false, .windows = true },
    { "tests/data/golden/gemma4_big", 256, 512, false, false, .windows = true },
    { "tests/data/golden/gemma4_dense", 320, 512, false, false, .windows = true },
    { "tests/data/golden/gemma4_e", 320, 512, false, false, .windows = true },
    { "tests/data/golden/gemma4_moe", 320, 512, false, false, .windows = true },
    { "tests/data/golden/gpt_oss", 320, 512, false, false, .windows = true },
    { "tests/data/golden/gpt_oss_mxfp4", 320, 512, false, false, .windows = true },
    { "tests/data/golden/granite_hybrid", 320, 512, false, false },
    { "tests/data/golden/llama2", 320, 256, false, false },
    { "tests/data/golden/llama3", 512, 512, false, false },
    { "tests/data/golden/mbart", 400, 200, true, false },
    { "tests/data/golden/mistral", 320, 512, false, false, .only_windows = true },
    { "tests/data/golden/nemotron_h", 320, 512, false, false },
    { "tests/data/golden/qwen2", 320, 512, false, false },
    { "tests/data/golden/qwen3", 320, 512, false, false },
    { "tests/data/golden/t5_gated", 336, 300, true, false },
    { "tests/data/golden/t5_relu", 320, 300, true, false, .odd = true },
    { "models/numbers-t5", 264, 200, true, true },
    { "models/recall-gemma3", 264, 512, false, true, .windows = true },
};
const uint32_t mix_n_models = ARRAY_LEN(mix_models);

bool
mix_one_in(uint32_t n)
{
    return test_below(n) == 0;
}

void
mix_set(struct settings *s, const char *format, ...)
{
    va_list args;

    assert_true(s->n < MOST_SET);
    va_start(args, format);
    vsnprintf(s->text[s->n], sizeof s->text[0], format, args);
    va_end(args);
    s->set[s->n] = s->text[s->n];
    s->set[++s->n] = NULL;
}

/* What the numbers depend on. */
static void
draw_numbers(struct settings *s, const struct model *m)
{
    static const char *const type[] = { "auto", "auto", "auto", "fp8", "fp8", "bf16", "fp32" };

    mix_set(s, "numerics=invariant");
    mix_set(s, "kv.dtype=%s", type[test_below(ARRAY_LEN(type))]);
    if (mix_one_in(3)) mix_set(s, "dtype=bf16");
    if ((m->windows || m->only_windows) && mix_one_in(3))
        mix_set(s, "kv.sink_tokens=%u", 1 + test_below(20));
    length = mix_one_in(3) ? 40 + test_below(m->most - 40) : m->most;
    if (length < m->most) mix_set(s, "max_model_len=%u", length);
    if (!m->odd && !serve_on_gpu() && mix_one_in(4)) mix_set(s, "tensor_parallel=2");
}

static void
draw_texts(const struct model *m)
{
    for (uint32_t t = 0; t < TEXTS; t++)
        for (uint32_t i = 0; i < MOST_PROMPT; i++)
            texts[t][i] = (int32_t)(3 + test_below(m->vocab - 3));
}

/* Near a border of blocks, mostly. */
static uint32_t
draw_length(uint32_t least, uint32_t most)
{
    uint32_t n = 1 + test_below(most);

    if (mix_one_in(2)) n = (4u << test_below(5)) * (1 + test_below(6)) + test_below(3) - 1;
    return MAX(least, MIN(n, most));
}

#define SET(a, ...) \
    snprintf((a)->line + strlen((a)->line), sizeof(a)->line - strlen((a)->line), " " __VA_ARGS__)
#define INT(a, key, value) \
    do { \
        int64_t v_ = (value); \
        lagan_set_int((a)->r, key, v_); \
        SET(a, "%s=%lld", key, (long long)v_); \
    } while (0)
#define FLOAT(a, key, value) \
    do { \
        double v_ = (value); \
        lagan_set_float((a)->r, key, v_); \
        SET(a, "%s=%g", key, v_); \
    } while (0)

static void
draw_prompt(struct ask *a, const struct model *m)
{
    uint32_t most = m->encoder ? 64 : most_prompt, text = test_below(TEXTS), other = MOST_PROMPT;
    int32_t *ids = a->ids;

    a->n_prompt = draw_length(1, most);
    memcpy(ids, texts[text], sizeof a->ids);
    if (mix_one_in(3)) {
        other = test_below(a->n_prompt);
        for (uint32_t i = other; i < a->n_prompt; i++)
            ids[i] = (int32_t)(3 + test_below(m->vocab - 3));
    }
    if (m->text && mix_one_in(2)) {
        char words[MOST_PROMPT];

        for (uint32_t i = 0; i < a->n_prompt; i++) words[i] = "abcdek0123456789;= "[ids[i] % 19];
        lagan_set_str(a->r, "text", words, a->n_prompt);
        a->in_words = true;
        SET(a, "in words");
    } else {
        lagan_set_ids(a->r, "ids", ids, a->n_prompt);
    }
    SET(a, "text %u of %u, other from %u", text, a->n_prompt, other);
    if (!m->encoder || mix_one_in(2)) return;
    a->n_prompt = draw_length(1, MIN(most_prompt, 100u));
    memcpy(ids, texts[test_below(TEXTS)], sizeof a->ids);
    ids[0] = 0;
    lagan_set_ids(a->r, "decoder_ids", ids, a->n_prompt);
    SET(a, "decoder_ids %u", a->n_prompt);
}

static void
draw_sampling(struct ask *a, const struct model *m)
{
    const int32_t some[] = { 5, 9, 17, 40 };
    const float bias[] = { 2, -100, 1.5f, -3 };
    uint32_t n_beams = 2 + test_below(OUTPUTS - 1);

    if (mix_one_in(2)) {
        FLOAT(a, "temperature", 0.4 + 0.1 * test_below(10));
        if (mix_one_in(3)) INT(a, "top_k", 1 + test_below(40));
        if (mix_one_in(3)) FLOAT(a, "top_p", 0.5 + 0.05 * test_below(10));
        if (mix_one_in(4)) FLOAT(a, "min_p", 0.01 * test_below(10));
        if (mix_one_in(3)) INT(a, "n", a->n = 2 + test_below(OUTPUTS - 1));
    } else if (mix_one_in(3)) {
        a->search = true;
        INT(a, "beams", n_beams);
        if (mix_one_in(2)) INT(a, "n", a->n = 2 + test_below(n_beams - 1));
        if (mix_one_in(3)) FLOAT(a, "length_penalty", -1 + 0.5 * test_below(6));
        if (mix_one_in(3)) {
            lagan_set_bool(a->r, "early_stopping", 1);
            SET(a, "early_stopping");
        } else if (mix_one_in(3)) {
            lagan_set_str(a->r, "early_stopping", "never", 5);
            SET(a, "never early_stopping");
        }
    }
    INT(a, "seed", test_below(1000));
    if (mix_one_in(4)) FLOAT(a, "repetition_penalty", 0.8 + 0.1 * test_below(6));
    if (mix_one_in(5)) FLOAT(a, "presence_penalty", -1 + 0.5 * test_below(5));
    if (mix_one_in(5)) FLOAT(a, "frequency_penalty", -1 + 0.5 * test_below(5));
    if (mix_one_in(5)) INT(a, "no_repeat_ngram", 1 + test_below(4));
    if (mix_one_in(5)) {
        lagan_set_bias(a->r, "logit_bias", some, bias, 4);
        SET(a, "logit_bias");
    }
    if (mix_one_in(4)) {
        lagan_set_ids(a->r, "stop_ids", texts[0] + test_below(20), 6);
        SET(a, "stop_ids");
    }
    if (mix_one_in(5)) {
        lagan_set_ids(a->r, "eos_ids", texts[1] + test_below(20), 8);
        SET(a, "eos_ids");
    }
    if (mix_one_in(2)) {
        lagan_set_bool(a->r, "ignore_eos", 1);
        SET(a, "ignore_eos");
    }
    if (mix_one_in(8)) INT(a, "forced_bos", 3 + test_below(m->vocab - 3));
    if (mix_one_in(8)) INT(a, "forced_eos", 3 + test_below(m->vocab - 3));
    if (mix_one_in(4)) INT(a, "min_tokens", test_below(a->max_tokens + 1));
    if (m->text && mix_one_in(2)) {
        static const char *const stop[] = { "e", "th", " " };

        lagan_set_strs(a->r, "stop", stop + test_below(3), 1);
        SET(a, "stop");
    }
}

static void
draw_key(struct ask *a)
{
    static uint32_t n;
    char key[24];

    a->key = ++n;
    lagan_set_str(a->r, "idempotency_key", key, (size_t)snprintf(key, sizeof key, "number %u", n));
}

static void
draw_ask(struct ask *a, const struct model *m, uint32_t number, bool tensors)
{
    memset(a, 0, sizeof *a);
    a->r = lagan_request_new();
    a->n = 1;
    draw_prompt(a, m);
    if (!m->encoder && !a->in_words && number && mix_one_in(3)) {
        a->after = test_below(number) + 1;
        a->behind = test_below(MIN(a->n_prompt, 20u) + 1);
        SET(a, "%u of them after request %u and its output", a->behind, a->after - 1);
    }
    a->max_tokens = mix_one_in(6) ? 1 + test_below(2)
                                  : 1 + test_below(mix_one_in(8) ? MOST_NEW : 64);
    INT(a, "max_tokens", a->max_tokens);
    draw_sampling(a, m);
    if (mix_one_in(2)) INT(a, "logprobs", test_below(TOPS + 1));
    if (mix_one_in(4)) INT(a, "prompt_logprobs", test_below(TOPS + 1));
    if (tensors && (a->search || a->n == 1) && mix_one_in(a->search ? 3 : 8)) {
        lagan_set_bool(a->r, "return_logits", 1);
        SET(a, "return_logits");
    }
    if (tensors && m->encoder && mix_one_in(6)) {
        lagan_set_bool(a->r, "return_encoder_output", 1);
        SET(a, "return_encoder_output");
    }
    a->may_continue = !a->search && a->n == 1 && !strstr(a->line, "prompt_logprobs") &&
                      !strstr(a->line, "return_");
    if (mix_one_in(3)) FLOAT(a, "priority", 0.25 * test_below(5));
    if (mix_one_in(3)) INT(a, "cache_priority", test_below(101));
    if (mix_one_in(3)) { /* like two users: the key and the user are one salt */
        static const char *const salt[] = { "a", "b" };

        lagan_set_str(a->r, "cache_salt", salt[test_below(2)], 1);
        SET(a, "cache_salt");
    }
    if (mix_one_in(3)) INT(a, "ack_window", 1 + test_below(4));
    a->may_be_lost = strstr(a->line, "prompt_logprobs") || strstr(a->line, "return_");
    if (!a->may_be_lost && mix_one_in(6)) {
        draw_key(a);
        SET(a, "idempotency_key");
    }
    if (mix_one_in(12)) {
        a->may_be_lost = true;
        lagan_set_bool(a->r, "resume", 0);
        SET(a, "resume=false");
    }
}

void
mix_continue(struct ask *a, const struct ask *before)
{
    const struct output *o = &before->alone.output[0];
    uint32_t n = MIN(before->n_prompt, (uint32_t)MOST_PROMPT - 1), more;
    uint32_t most = MIN((uint32_t)MOST_PROMPT, length - 1);
    int32_t ids[MOST_PROMPT];

    if (before->in_words) return;
    memcpy(ids, before->ids, n * sizeof *ids);
    more = MIN(o->n, most > n ? most - n : 0);
    memcpy(ids + n, o->id, more * sizeof *ids);
    n += more;
    more = MIN(a->behind, (uint32_t)MOST_PROMPT - n);
    memcpy(ids + n, a->ids, more * sizeof *ids);
    a->n_prompt = n + more;
    memcpy(a->ids, ids, sizeof ids);
    lagan_set_ids(a->r, "ids", ids, a->n_prompt);
}

static void
draw_shares(struct settings *s)
{
    static const char *const shares[] = { "full=0.3", "full=0.2,window=0.3", "window=0.2",
                                          "full=0.5,window=0.5" };

    mix_set(s, "kv.shares=%s", shares[test_below(ARRAY_LEN(shares))]);
}

void
mix_draw_worker(struct settings *s, const struct model *m, uint64_t longest)
{
    static const char *const policy[] = { "no_evict", "max_utilization", "static", "max_requests" };
    static const char *const mode[] = { "off", "auto", "auto", "fixed" };
    static const uint32_t interval[] = { 0, 8, 16, 40, 1024 };
    uint32_t threads = 1 + test_below(3);
    bool reuse = !mix_one_in(3);

    mix_set(s, "kv.memory=%uKiB",
            MAX(64u, (uint32_t)(longest / 1024 * (8 + test_below(mix_one_in(4) ? 80 : 16)) / 8)));
    mix_set(s, "policy=%s", policy[mix_one_in(2) ? 1 : test_below(mix_one_in(8) ? 4 : 3)]);
    mix_set(s, "kv.tokens_per_block=%u", 4u << test_below(5));
    mix_set(s, "kv.reuse=%s", reuse ? "true" : "false");
    if (mix_one_in(4)) mix_set(s, "kv.partial_reuse=false");
    if (mix_one_in(4)) mix_set(s, "kv.reuse_scope=all");
    if (reuse && mix_one_in(2)) {
        mix_set(s, "kv.host_memory=%uKiB", 256u << test_below(4));
        if (mix_one_in(4)) mix_set(s, "kv.host_bandwidth=%uKiB", 1u << test_below(20));
        if (mix_one_in(2)) mix_set(s, "kv.prefill_rate=%u", 1000u << test_below(8));
    }
    mix_set(s, "kv.snapshot_interval=%u", interval[test_below(5)]);
    mix_set(s, "max_num_seqs=%u", mix_one_in(6) ? 1 + test_below(4) : 4 + test_below(20));
    mix_set(s, "max_num_batched_tokens=%u",
            mix_one_in(5) ? 1 + test_below(8) : 8 + test_below(120));
    if (mix_one_in(2)) mix_set(s, "chunk_policy=equal_progress");
    if (mix_one_in(3)) mix_set(s, "prefill_batch_tokens=%u", 1 + test_below(200));
    if (m->encoder && mix_one_in(3)) mix_set(s, "encoder_batch_size=%u", 1 + test_below(4));
    if (mix_one_in(3)) mix_set(s, "batch_wait_timeout=%ums", test_below(40));
    if (mix_one_in(3)) mix_set(s, "fairness_quantum=%u", test_below(200));
    mix_set(s, "threads=%u", threads);
    if (threads > 1 || serve_on_gpu()) {
        uint32_t which = test_below(4);

        mix_set(s, "split.mode=%s", mode[which]);
        if (which == 3 && !mix_one_in(4)) mix_set(s, "split.context_sm=0.%u", 1 + test_below(9));
    }
    if (m->windows && mix_one_in(3)) draw_shares(s);
    if (!serve_on_gpu() && mix_one_in(4)) mix_set(s, "workers=2");
    if (mix_one_in(4)) mix_set(s, "split.context_max_tokens=%u", 1 + test_below(64));
    if (mix_one_in(4)) mix_set(s, "split.context_max_seqs=%u", 1 + test_below(4));
    if (mix_one_in(4)) mix_set(s, "split.itl_target=%ums", test_below(4));
    if (m->encoder && mix_one_in(3)) mix_set(s, "split.encoder=own");
    if (m->encoder && mix_one_in(3)) mix_set(s, "cross_kv_cache_fraction=0.%u", 1 + test_below(9));
    if (mix_one_in(4)) mix_set(s, "standby=1");
}

uint32_t
mix_share(void)
{
    return serve_on_gpu() ? 8 * (1 + test_below(9)) : 1 + test_below(2);
}

void
mix_copy(struct settings *to, const struct settings *from)
{
    *to = *from;
    for (uint32_t i = 0; i < to->n; i++) to->set[i] = to->text[i];
}

void
mix_draw(struct settings *numbers, const struct model *m, struct ask ask[REQUESTS])
{
    most_prompt = mix_one_in(4) ? MIN((uint32_t)MOST_PROMPT, m->most - 2) : 10 + test_below(90);
    draw_texts(m);
    draw_numbers(numbers, m);
    numbers->lagand_restarts = mix_one_in(2);
    for (uint32_t i = 0; i < REQUESTS; i++) draw_ask(&ask[i], m, i, !numbers->lagand_restarts);
}

/* Some requests that allow it are sent with the beginning of their output; a request that was
 * sent so once always is. */
static void
draw_done(struct ask *a)
{
    const struct output *o = &a->alone.output[0];

    if (!a->may_continue || a->key || a->alone.error || o->n < 2) return;
    if (a->n_done == 0 && !mix_one_in(4)) return;
    a->n_done = 1 + test_below(o->n - 1);
    lagan_set_ids(a->r, "generated_ids", o->id, a->n_done);
    memcpy(a->got.output[0].id, o->id, a->n_done * sizeof o->id[0]);
    memcpy(a->got.output[0].logprob, o->logprob, a->n_done * sizeof o->logprob[0]);
    memcpy(a->got.output[0].top, o->top, a->n_done * sizeof o->top[0]);
    a->got.output[0].n = a->n_done;
}

void
mix_ask_again(struct ask ask[REQUESTS])
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct ask *a = &ask[i];

        if (a->key && a->got.error) draw_key(a); /* what was cut short stays so */
        memset(&a->got, 0, sizeof a->got);
        draw_done(a);
        a->id = 0;
        a->cancelled = false;
        a->may_end = mix_one_in(10);
        lagan_set_int(a->r, "deadline_ms", a->may_end ? 1 + test_below(300) : 0);
    }
}
