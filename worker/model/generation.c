/* generation.c - implements generation.h: reads special token ids and generation defaults. */
#include "worker/model/generation.h"

#include "worker/model/config.h"

#include <math.h>
#include <stdio.h>

static int
read_id(const struct model *m, const json_t *v, const char *file, const char *key, int32_t *ret,
        struct err *e)
{
    json_int_t id = json_integer_value(v);

    if (!json_is_integer(v)) return err_set(e, -EINVAL, "%s: %s is not an integer", file, key);
    if (id < -1 || id >= (json_int_t)m->shape.vocab)
        return err_set(e, -EINVAL, "%s: %s is %lld, want a token id from -1 to %u", file, key,
                       (long long)id, m->shape.vocab - 1);
    *ret = (int32_t)id;
    return 0;
}

/* Reads one id or a list of at most max ids; -1 (no token) is left out. */
static int
read_ids(const struct model *m, const json_t *v, const char *file, const char *key, int32_t *ret,
         uint32_t max, uint32_t *n, struct err *e)
{
    uint32_t have = json_is_array(v) ? (uint32_t)MIN(json_array_size(v), (size_t)max + 1) : 1;

    if (have > max)
        return err_set(e, -ENOTSUP, "%s: %s has %zu ids, at most %u are implemented", file, key,
                       json_array_size(v), max);
    *n = 0;
    for (uint32_t i = 0; i < have; i++) {
        TRY(read_id(m, json_is_array(v) ? json_array_get(v, i) : v, file, key, &ret[*n], e));
        if (ret[*n] >= 0) ++*n;
    }
    return 0;
}

/* Defaults of generate(): max_new_tokens if no limit is set; top_k. MOST: limit of token counts. */
enum { DEFAULT_NEW = 20, DEFAULT_TOP_K = 50, MOST = 1 << 24 };

static void
not_served(struct generation *g, const char *key)
{
    if (!*g->unserved) snprintf(g->unserved, sizeof g->unserved, "%s", key);
}

static void
take_f32(struct generation *g, const json_t *from, const char *key, double least, double most,
         float *to)
{
    if (cfg_f32(from, key, *to, least, most, to, NULL) < 0) not_served(g, key);
}

static void
take_u32(struct generation *g, const json_t *from, const char *key, uint32_t least, uint32_t most,
         uint32_t *to)
{
    if (cfg_u32(from, key, *to, least, most, to, NULL) < 0) not_served(g, key);
}

static void
take_early_stopping(struct generation *g, const json_t *from)
{
    const json_t *v = json_object_get(from, "early_stopping");
    const char *word = json_string_value(v);

    if (json_is_true(v))
        g->early_stopping = 1;
    else if (word && !strcmp(word, "never"))
        g->early_stopping = 2;
    else if (v && !json_is_false(v) && !json_is_null(v))
        not_served(g, "early_stopping");
}

/* True if the value v has no effect: it is absent, null, false, empty or the number `nothing`. */
static bool
says_nothing(const json_t *v, double nothing)
{
    if (!v || json_is_null(v) || json_is_false(v)) return true;
    if (json_is_number(v)) return json_number_value(v) == nothing;
    return (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static void
look_for_what_is_not_served(struct generation *g, const json_t *from)
{
    static const struct {
        const char *key;
        double nothing;
    } keys[] = {
        { "num_return_sequences", 1 },
        { "num_beam_groups", 1 },
        { "diversity_penalty", 0 },
        { "penalty_alpha", 0 },
        { "typical_p", 1 },
        { "top_h", 0 },
        { "dola_layers", 0 },
        { "epsilon_cutoff", 0 },
        { "eta_cutoff", 0 },
        { "guidance_scale", 1 },
        { "encoder_repetition_penalty", 1 },
        { "encoder_no_repeat_ngram_size", 0 },
        { "bad_words_ids", 0 },
        { "force_words_ids", 0 },
        { "constraints", 0 },
        { "suppress_tokens", 0 },
        { "begin_suppress_tokens", 0 },
        { "forced_decoder_ids", 0 },
        { "sequence_bias", 0 },
        { "exponential_decay_length_penalty", 0 },
        { "renormalize_logits", 0 },
        { "token_healing", 0 },
        { "max_time", 0 },
        { "stop_strings", 0 },
        { "watermarking_config", 0 },
    };

    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (!says_nothing(json_object_get(from, keys[i].key), keys[i].nothing))
            not_served(g, keys[i].key);
}

/* Returns the value of key if it is present and in range, else NaN. */
static float
stated(const json_t *from, const char *key, double least, double most)
{
    float v = NAN;

    if (cfg_state(from, key) == CFG_SET && cfg_f32(from, key, 0, least, most, &v, NULL) < 0)
        v = NAN;
    return v;
}

static void
read_defaults(struct generation *g, const json_t *from, bool encoder)
{
    bool sample = false;

    *g = (struct generation){
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .length_penalty = 1, .beams = 1
    };
    g->top_k = DEFAULT_TOP_K;
    if (cfg_bool(from, "do_sample", false, &sample, NULL) < 0) not_served(g, "do_sample");
    take_f32(g, from, "temperature", 0, 100, &g->temperature);
    take_f32(g, from, "top_p", 1e-6, 1, &g->top_p);
    take_f32(g, from, "min_p", 0, 1, &g->min_p);
    take_u32(g, from, "top_k", 0, 1 << 20, &g->top_k);
    if (!sample) g->temperature = g->min_p = g->top_k = 0, g->top_p = 1;
    take_f32(g, from, "repetition_penalty", 1e-6, 10, &g->repetition_penalty);
    take_f32(g, from, "length_penalty", -100, 100, &g->length_penalty);
    take_u32(g, from, "num_beams", 1, 16, &g->beams);
    take_u32(g, from, "no_repeat_ngram_size", 0, 1024, &g->no_repeat_ngram);
    take_u32(g, from, "max_new_tokens", 1, MOST, &g->max_tokens);
    take_u32(g, from, "max_length", 1, MOST, &g->max_length);
    take_u32(g, from, "min_new_tokens", 0, MOST, &g->min_tokens);
    take_u32(g, from, "min_length", 0, MOST, &g->min_length);
    if (!g->max_tokens && !g->max_length) g->max_tokens = DEFAULT_NEW;
    if (g->max_tokens) g->max_length = 0;
    take_early_stopping(g, from);
    g->stated = (struct stated_defaults){
        .temperature = encoder && !sample ? 0 : stated(from, "temperature", 0, 100),
        .top_k = stated(from, "top_k", 0, 1 << 20),
        .top_p = stated(from, "top_p", 1e-6, 1),
        .min_p = stated(from, "min_p", 0, 1),
        .repetition_penalty = stated(from, "repetition_penalty", 1e-6, 10),
    };
    if (sample && g->beams > 1) not_served(g, "do_sample");
    look_for_what_is_not_served(g, from);
}

/* Returns the union of both; a key of whole (config.json) has precedence. NULL: no memory. */
static json_t *
outer_first(const json_t *whole, const json_t *text)
{
    json_t *both = json_copy((json_t *)(uintptr_t)text), *v;
    const char *key;

    json_object_foreach((json_t *)(uintptr_t)whole, key, v)
    {
        if (both && !json_is_null(v) && json_object_set(both, key, v) < 0) {
            json_decref(both);
            both = NULL;
        }
    }
    return both;
}

static int
read_all(struct model *m, const json_t *generation, const json_t *config, struct err *e)
{
    struct {
        const char *key;
        int32_t *to;
        uint32_t max, *n;
    } want[] = {
        { "bos_token_id", &m->bos, 1, NULL },
        { "pad_token_id", &m->pad, 1, NULL },
        { "decoder_start_token_id", &m->decoder_start, 1, NULL },
        { "forced_bos_token_id", &m->forced_bos, 1, NULL },
        { "forced_eos_token_id", &m->forced_eos, 1, NULL },
        { "eos_token_id", m->eos, MAX_EOS, &m->n_eos },
    };

    m->n_eos = 0;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        bool first = cfg_state(generation, want[i].key) == CFG_SET;
        const json_t *from = first ? generation : config;
        const char *file = first ? "generation_config.json" : "config.json";
        int32_t id[MAX_EOS] = { -1 };
        uint32_t n = 0;

        if (!want[i].n) *want[i].to = -1;
        if (cfg_state(from, want[i].key) != CFG_SET) continue;
        TRY(read_ids(m, json_object_get(from, want[i].key), file, want[i].key, id, want[i].max, &n,
                     e));
        for (uint32_t k = 0; k < n; k++) want[i].to[k] = id[k];
        if (want[i].n) *want[i].n = n;
    }
    if (!generation && json_is_true(json_object_get(config, "force_bos_token_to_be_generated")))
        m->forced_bos = m->bos; /* older BART configs have a bool */
    if (m->shape.n_encoder_layers && m->decoder_start < 0) m->decoder_start = m->bos;
    read_defaults(&m->generation, generation ? generation : config, m->shape.n_encoder_layers > 0);
    return 0;
}

int
generation_read(struct model *m, const json_t *generation, const json_t *whole, const json_t *text,
                struct err *e)
{
    json_auto_t *config = outer_first(whole, text);

    return config ? read_all(m, generation, config, e)
                  : err_set(e, -ENOMEM, "no host memory for config.json");
}
