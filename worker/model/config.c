/* config.c - implements config.h: parsing, text_config, getters. See also config_rope.c. */
#include "worker/model/config.h"

#include "base/file.h"
#include "worker/model/arch.h"

/* Returns the length of the word Infinity, -Infinity or NaN at p, or 0 if there is none. */
static size_t
bare_float(const char *p, const char *end)
{
    static const char *const word[] = { "-Infinity", "Infinity", "NaN" };

    for (size_t i = 0; i < ARRAY_LEN(word); i++) {
        size_t len = strlen(word[i]);

        if ((size_t)(end - p) >= len && memcmp(p, word[i], len) == 0) return len;
    }
    return 0;
}

/* Copies text to out and replaces Infinity, -Infinity and NaN outside of strings by {"__float__":
 * "..."}. out NULL: only counts. Returns the length of the copy. */
static size_t
spell_floats(const char *text, size_t n, char *out)
{
    static const char before[] = "{\"__float__\":\"", after[] = "\"}";
    const char *p = text, *end = text + n;
    bool in_string = false;
    size_t len = 0;

    while (p < end) {
        size_t word = in_string ? 0 : bare_float(p, end);
        size_t take = word ? word : in_string && *p == '\\' && end - p > 1 ? 2 : 1;

        if (*p == '"') in_string = !in_string;
        if (word && out) {
            memcpy(out + len, before, sizeof before - 1);
            memcpy(out + len + sizeof before - 1, p, take);
            memcpy(out + len + sizeof before - 1 + take, after, sizeof after - 1);
        } else if (out)
            memcpy(out + len, p, take);
        len += take + (word ? sizeof before - 1 + sizeof after - 1 : 0);
        p += take;
    }
    return len;
}

int
config_parse(json_t **ret, const char *text, size_t n, const char *name, struct err *e)
{
    size_t len = spell_floats(text, n, NULL);
    CLEAN(file_free_at) char *spelt = malloc(len + 1);
    json_error_t why;
    json_t *j;

    if (!spelt) return err_set(e, -ENOMEM, "no host memory for the %zu bytes of %s", len, name);
    spell_floats(text, n, spelt);
    j = json_loadb(spelt, len, JSON_REJECT_DUPLICATES, &why);
    if (!j)
        return err_set(e, -EBADMSG, "%s: line %d, column %d: %s", name, why.line, why.column,
                       why.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return err_set(e, -EBADMSG, "%s is not a JSON object", name);
    }
    *ret = j;
    return 0;
}

int
config_read(json_t **ret, const char *dir, const char *name, struct err *e)
{
    CLEAN(file_free_at) char *text = NULL;
    size_t n;

    TRY(file_read(&text, &n, dir, name, CFG_MAX_BYTES, e));
    return config_parse(ret, text, n, name, e);
}

int
config_text(json_t **ret, json_t *whole, struct err *e)
{
    static const char *const outside[] = {
        "dtype",
        "torch_dtype",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "decoder_start_token_id",
        "quantization_config",
        "tie_word_embeddings",
    };
    json_t *text = json_object_get(whole, "text_config");

    if (!text || json_is_null(text)) {
        *ret = json_incref(whole);
        return 0;
    }
    if (!json_is_object(text)) return err_set(e, -EINVAL, "text_config is not an object");
    text = json_copy(text);
    if (!text) return err_set(e, -ENOMEM, "no host memory for text_config");
    if (!json_object_get(text, "model_type"))
        json_object_set(text, "model_type", json_object_get(whole, "model_type"));
    for (size_t i = 0; i < ARRAY_LEN(outside); i++)
        if (cfg_state(text, outside[i]) != CFG_SET && cfg_state(whole, outside[i]) == CFG_SET)
            json_object_set(text, outside[i], json_object_get(whole, outside[i]));
    *ret = text;
    return 0;
}

enum cfg_state
cfg_state(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);

    return !v ? CFG_ABSENT : json_is_null(v) ? CFG_NULL : CFG_SET;
}

/* Returns the type of a value in words, for "hidden_size is a string, want an integer". */
static const char *
kind_of(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",    [JSON_ARRAY] = "a list",    [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer",  [JSON_REAL] = "a fraction", [JSON_TRUE] = "a truth value",
        [JSON_FALSE] = "a truth value", [JSON_NULL] = "null",
    };

    return names[json_typeof(v)];
}

const json_t *
cfg_value(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);

    return v && !json_is_null(v) ? v : NULL;
}

static int
unset(struct err *e, const char *key)
{
    return err_set(e, -EINVAL, "%s is not set, and it has no default", key);
}

int
cfg_u32(const json_t *config, const char *key, int64_t otherwise, uint32_t min, uint32_t max,
        uint32_t *ret, struct err *e)
{
    const json_t *v = cfg_value(config, key);
    json_int_t n;

    if (!v && otherwise == CFG_REQUIRED) return unset(e, key);
    if (!v) {
        check(otherwise >= 0 && otherwise <= UINT32_MAX);
        *ret = (uint32_t)otherwise;
        return 0;
    }
    if (!json_is_integer(v))
        return err_set(e, -EINVAL, "%s is %s, want an integer", key, kind_of(v));
    n = json_integer_value(v);
    if (n < (json_int_t)min || n > (json_int_t)max)
        return err_set(e, -EINVAL, "%s is %lld, want %u to %u", key, (long long)n, min, max);
    *ret = (uint32_t)n;
    return 0;
}

/* Reads a JSON number or {"__float__": "Infinity"}; -EINVAL: v is neither. */
static int
number(const json_t *v, double *ret)
{
    const char *word = json_string_value(json_object_get(v, "__float__"));

    if (json_is_number(v)) {
        *ret = json_number_value(v);
        return 0;
    }
    if (!word || json_object_size(v) != 1) return -EINVAL;
    if (strcmp(word, "Infinity") == 0)
        *ret = INFINITY;
    else if (strcmp(word, "-Infinity") == 0)
        *ret = -INFINITY;
    else if (strcmp(word, "NaN") == 0)
        *ret = NAN;
    else
        return -EINVAL;
    return 0;
}

int
cfg_f64(const json_t *config, const char *key, double otherwise, double min, double max,
        double *ret, struct err *e)
{
    const json_t *v = cfg_value(config, key);
    double d;

    if (!v && isnan(otherwise)) return unset(e, key);
    if (!v) {
        *ret = otherwise;
        return 0;
    }
    if (number(v, &d) < 0) return err_set(e, -EINVAL, "%s is %s, want a number", key, kind_of(v));
    if (!(d >= min && d <= max)) /* NaN is out of range */
        return err_set(e, -EINVAL, "%s is %g, want %g to %g", key, d, min, max);
    *ret = d;
    return 0;
}

int
cfg_f32(const json_t *config, const char *key, double otherwise, double min, double max, float *ret,
        struct err *e)
{
    double d;

    TRY(cfg_f64(config, key, otherwise, min, max, &d, e));
    *ret = (float)d;
    return 0;
}

int
cfg_bool(const json_t *config, const char *key, bool otherwise, bool *ret, struct err *e)
{
    const json_t *v = cfg_value(config, key);

    if (v && !json_is_boolean(v))
        return err_set(e, -EINVAL, "%s is %s, want true or false", key, kind_of(v));
    *ret = v ? json_is_true(v) : otherwise;
    return 0;
}

int
cfg_str(const json_t *config, const char *key, const char *otherwise, const char **ret,
        struct err *e)
{
    const json_t *v = cfg_value(config, key);

    if (v && !json_is_string(v))
        return err_set(e, -EINVAL, "%s is %s, want a string", key, kind_of(v));
    if (!v && !otherwise) return unset(e, key);
    *ret = v ? json_string_value(v) : otherwise;
    return 0;
}

int
cfg_want_bool(const json_t *config, const char *key, bool want, struct err *e)
{
    bool is = want;

    TRY(cfg_bool(config, key, want, &is, e));
    if (is != want)
        return err_set(e, -ENOTSUP, "%s is %s, only %s is implemented", key, is ? "true" : "false",
                       want ? "true" : "false");
    return 0;
}

int
cfg_want_str(const json_t *config, const char *key, const char *want, struct err *e)
{
    const char *is;

    TRY(cfg_str(config, key, want, &is, e));
    if (strcmp(is, want))
        return err_set(e, -ENOTSUP, "%s is \"%s\", only \"%s\" is implemented", key, is, want);
    return 0;
}

const char *
cfg_either(const json_t *config, const char *other, const char *key)
{
    return cfg_state(config, other) == CFG_SET ? other : key;
}

int
cfg_str_at(const json_t *config, const char *key, uint32_t layer, uint32_t n_layers,
           const char **ret, struct err *e)
{
    const json_t *list = cfg_value(config, key), *v;

    check(layer < n_layers);
    if (!list) return unset(e, key);
    if (!json_is_array(list))
        return err_set(e, -EINVAL, "%s is %s, want a list", key, kind_of(list));
    if (json_array_size(list) != n_layers)
        return err_set(e, -EINVAL, "%s has %zu entries, but the model has %u layers", key,
                       json_array_size(list), n_layers);
    v = json_array_get(list, layer);
    if (!json_is_string(v))
        return err_set(e, -EINVAL, "%s[%u] is %s, want a string", key, layer, kind_of(v));
    *ret = json_string_value(v);
    return 0;
}

int
cfg_slides(const json_t *config, uint32_t layer, uint32_t n_layers, bool otherwise, bool *ret,
           struct err *e)
{
    const char *kind;

    *ret = otherwise;
    if (cfg_state(config, "layer_types") != CFG_SET) return 0;
    TRY(cfg_str_at(config, "layer_types", layer, n_layers, &kind, e));
    *ret = strcmp(kind, "sliding_attention") == 0;
    if (*ret || strcmp(kind, "full_attention") == 0) return 0;
    return err_set(
        e, -ENOTSUP,
        "layer_types[%u] is \"%s\"; only full_attention and sliding_attention are implemented",
        layer, kind);
}

int
cfg_heads(const json_t *config, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
          struct layer_shape *l, struct err *e)
{
    TRY(cfg_u32(config, "num_attention_heads", heads, 1, CFG_MAX_HEADS, &l->n_heads, e));
    if (cfg_state(config, "num_key_value_heads") == CFG_NULL) kv_heads = l->n_heads;
    TRY(cfg_u32(config, "num_key_value_heads", kv_heads, 1, l->n_heads, &l->n_kv_heads, e));
    TRY(cfg_u32(config, "head_dim", head_dim, 2, CFG_MAX_HEAD_DIM, &l->head_dim, e));
    if (l->n_heads % l->n_kv_heads)
        return err_set(e, -EINVAL,
                       "num_attention_heads is %u, not a multiple of num_key_value_heads, %u",
                       l->n_heads, l->n_kv_heads);
    if (l->head_dim < 2 || l->head_dim > CFG_MAX_HEAD_DIM || l->head_dim % 2)
        return err_set(e, -EINVAL, "head_dim is %u, want an even number from 2 to %d", l->head_dim,
                       CFG_MAX_HEAD_DIM);
    return 0;
}

int
cfg_dtype(const json_t *config, const char **ret, struct err *e)
{
    const char *name;

    TRY(cfg_str(config, cfg_value(config, "dtype") ? "dtype" : "torch_dtype", "", &name, e));
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    *ret = *name ? name : NULL;
    return 0;
}
