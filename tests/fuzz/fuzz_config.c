/* fuzz_config.c - hostile config.json files in the reader and in every model family.
 *
 * Compared with jansson if the text is plain JSON, and with reference getters over the same object.
 * Checked: the ranges that config.h guarantees for rotary parameters, which must give finite
 * tables; the limits of model.c for every shape that a family accepts, and a KV group for each of
 * its layers.
 *
 * Input: the file's bytes.
 */
#include "tests/fuzz/fuzz.h"

#include "worker/arch/registry.h"
#include "worker/model/config.h"
#include "worker/model/model.h"
#include "worker/model/quant.h"
#include "worker/model/rope_table.h"

#include <math.h>

enum { LEAST = 2, MOST = 1000 };

/* Stands for gpu.c, which would link the devices. Reading a configuration calls no op. */
const struct gpu_ops *
gpu_ops(const struct gpu *g)
{
    check(!g);
    abort();
}

const char *
gpu_why(const struct gpu *g)
{
    check(!g);
    abort();
}

struct gpu_facts
gpu_facts(const struct gpu *g)
{
    check(!g);
    abort();
}

enum dtype
gpu_act_dtype(const struct gpu *g, enum dtype weights)
{
    check(!g && weights == DT_COUNT);
    abort();
}

int
gpu_wait(struct lane *l, uint64_t first, uint64_t last)
{
    check(!l && first > last);
    abort();
}

/* Bare floats may stand where a value does; whatever else is accepted, jansson accepts. */
static json_t *
parse(const uint8_t *data, size_t size)
{
    json_t *plain = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL), *j = NULL;
    struct err e = { 0 };
    int code = config_parse(&j, (const char *)data, size, "config.json", &e);

    check(code == 0 || (code == -EBADMSG && e.code == code && *e.text));
    check(code < 0 || json_is_object(j));
    if (plain) {
        check((code == 0) == json_is_object(plain));
        check(code < 0 || json_equal(plain, j));
    } else if (code == 0)
        check(memmem(data, size, "Infinity", 8) || memmem(data, size, "NaN", 3));
    json_decref(plain);
    return j;
}

/* ---- getters, naively */

static bool
set(const json_t *v)
{
    return v && !json_is_null(v);
}

static void
compare_u32(const json_t *config, const char *key, const json_t *v)
{
    bool required = strlen(key) % 2, good = !required;
    uint32_t n = 7, want = 500;
    struct err e = { 0 };
    int code = cfg_u32(config, key, required ? CFG_REQUIRED : 500, LEAST, MOST, &n, &e);

    if (set(v)) {
        json_int_t i = json_integer_value(v);

        good = json_is_integer(v) && i >= LEAST && i <= MOST;
        want = (uint32_t)i;
    }
    check((code == 0) == good && (good ? n == want : n == 7));
    check(good || (e.code == code && strncmp(e.text, key, strnlen(key, sizeof e.text - 1)) == 0));
}

static void
compare_f32(const json_t *config, const char *key, const json_t *v)
{
    const char *word = json_string_value(json_object_get(v, "__float__"));
    double x = json_number_value(v);
    bool infinite = json_object_size(v) == 1 && word && strcmp(word, "Infinity") == 0, good;
    struct err e = { 0 };
    float f = 7;
    int code = cfg_f32(config, key, NAN, LEAST, INFINITY, &f, &e);

    good = (json_is_number(v) && x >= LEAST) || infinite;
    check((code == 0) == good);
    check(!good || f == (infinite ? INFINITY : (float)x));
}

static void
compare_rest(const json_t *config, const char *key, const json_t *v)
{
    const char *s = NULL;
    bool b = false;
    int code = cfg_bool(config, key, true, &b, NULL);

    check((code == 0) == (!set(v) || json_is_boolean(v)));
    check(code < 0 || b == (!set(v) || json_is_true(v)));
    code = cfg_want_bool(config, key, false, NULL);
    check((code == 0) == (!set(v) || json_is_false(v)));
    code = cfg_str(config, key, key, &s, NULL);
    check((code == 0) == (!set(v) || json_is_string(v)));
    check(code < 0 || s == (set(v) ? json_string_value(v) : key));
    check(cfg_state(config, key) == (!v ? CFG_ABSENT : set(v) ? CFG_SET : CFG_NULL));
}

static void
compare_list(const json_t *config, const char *key, const json_t *v)
{
    uint32_t n = (uint32_t)json_array_size(v);
    const char *s = NULL;

    for (uint32_t i = 0; i < n; i++) {
        bool good = json_is_string(json_array_get(v, i));

        check((cfg_str_at(config, key, i, n, &s, NULL) == 0) == good);
        check(!good || s == json_string_value(json_array_get(v, i)));
    }
    check(cfg_str_at(config, key, n, n + 1, &s, NULL) < 0);
    if (n > 1) check(cfg_str_at(config, key, 0, n - 1, &s, NULL) < 0);
}

static void
compare_getters(json_t *config)
{
    const char *key;
    json_t *v;

    json_object_foreach(config, key, v)
    {
        compare_u32(config, key, v);
        compare_f32(config, key, v);
        compare_rest(config, key, v);
        compare_list(config, key, v);
    }
    compare_u32(config, "no such key", NULL);
    compare_u32(config, "no such key!", NULL);
    compare_f32(config, "no such key", NULL);
    compare_rest(config, "no such key", NULL);
}

static void
examine_rope(const json_t *config, const char *kind)
{
    enum { HEAD = 64, POSITIONS = 3 };
    struct rope_params p;
    float table[POSITIONS * HEAD], inv_freq[HEAD / 2], factor;
    struct err e = { 0 };
    int code = cfg_rope(config, kind, 1e4, &p, &e);
    uint32_t dim;

    check(code == 0 || ((code == -EINVAL || code == -ENOTSUP) && e.code == code && *e.text));
    if (code < 0) return;
    check(p.theta > 1 && p.theta <= 1e12 && p.partial > 0 && p.partial <= 1);
    check(p.type == ROPE_DEFAULT || (p.factor > 0 && p.factor <= CFG_MAX_POSITIONS));
    if (p.type == ROPE_LLAMA3) check(p.low > 0 && p.low < p.high && p.high <= 1e6);
    if (p.type == ROPE_LLAMA3 || p.type == ROPE_YARN || p.type == ROPE_LONGROPE)
        check(p.original_max >= 1 && p.original_max <= CFG_MAX_POSITIONS);
    if (p.type == ROPE_YARN) check(p.beta_fast > 0 && p.beta_slow > 0);
    dim = rope_dim(&p, HEAD);
    if (p.type == ROPE_LONGROPE && p.n_divisors != dim / 2) return;
    check(dim <= HEAD && dim % 2 == 0);
    factor = rope_frequencies(&p, HEAD, POSITIONS, inv_freq);
    rope_table(&p, HEAD, POSITIONS, table);
    for (uint32_t i = 0; i < POSITIONS * dim; i++) check(fabsf(table[i]) <= factor * 1.001f);
}

/* ---- families */

static bool
joined(const struct kv_config *c, const struct layer_shape *l)
{
    return l->group < c->n_groups && l->in_group < c->group[l->group].n_layers &&
           c->group[l->group].window == l->window && c->group[l->group].kind == l->kv;
}

static void
examine_shape(struct model *m)
{
    struct model_shape *s = &m->shape;
    struct kv_config c = { 0 };
    struct err e;

    check(s->n_layers >= 1 && s->n_layers <= MAX_LAYERS && s->n_encoder_layers <= MAX_LAYERS);
    check(s->hidden >= 1 && s->hidden <= CFG_MAX_HIDDEN);
    check(s->vocab >= 1 && s->vocab <= CFG_MAX_VOCAB);
    check(s->max_len >= 1 && s->max_len <= CFG_MAX_POSITIONS);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        const struct layer_shape *l = &s->layer[i];

        check(l->n_heads <= CFG_MAX_HEADS && l->n_ff <= CFG_MAX_FF);
        if (l->mixer != MIX_ATTENTION) continue;
        check(l->n_heads >= 1);
        check(l->n_kv_heads >= 1 && l->n_heads % l->n_kv_heads == 0);
        check(l->head_dim >= 1 && l->head_dim <= CFG_MAX_HEAD_DIM && l->kv_from <= i);
        check((l->kv == KV_WINDOW) == (l->window > 0));
    }
    if (model_groups(m, DT_BF16, 16, &c, &e) < 0) return;
    for (uint32_t i = 0; i < s->n_layers; i++)
        check(s->layer[i].mixer == MIX_NONE || joined(&c, &s->layer[i]));
    if (s->n_encoder_layers) check(joined(&c, &s->cross));
}

static void
examine_families(json_t *config)
{
    static struct model m;

    for (const struct arch *const *a = arch_families; *a; a++) {
        struct err e = { 0 };
        int code;

        memset(&m, 0, sizeof m);
        m.arch = *a;
        m.cfg = calloc(1, (*a)->cfg_bytes);
        check(m.cfg);
        code = quant_configure(&m, config, &e);
        check(code == 0 || (code < 0 && e.code == code && *e.text));
        if (code == 0) examine_shape(&m);
        free(m.cfg);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *whole = parse(data, size), *config = NULL, *before;
    struct err e = { 0 };
    const char *type;

    if (!whole) return 0;
    before = json_deep_copy(whole);
    compare_getters(whole);
    if (config_text(&config, whole, &e) < 0) {
        check(set(json_object_get(whole, "text_config")) && *e.text);
    } else {
        check(json_is_object(config));
        (void)!cfg_dtype(config, &type, &e);
        examine_rope(config, NULL);
        examine_rope(config, "full_attention");
        examine_rope(config, "sliding_attention");
        examine_families(config);
    }
    check(json_equal(before, whole)); /* the readers changed nothing */
    json_decref(before);
    json_decref(config);
    json_decref(whole);
    return 0;
}
