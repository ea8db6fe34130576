/* config.h - reads and validates the keys of config.json and generation_config.json.
 *
 * A file becomes one jansson object; getters read one key of it. transformers 5 has renamed some
 * keys (dtype was torch_dtype, rope_parameters was rope_scaling); both "dialects" are read. The
 * errors of getters name the key ("hidden_size is a string, want an integer"); the caller adds the
 * file name. A key whose value is null counts as absent, because published files have many nulls;
 * where null has its own meaning (Mistral's sliding_window) the family calls cfg_state(). Every
 * number has a range, because sizes are multiplied later and the file is untrusted.
 *
 * Source: transformers 5.17, PretrainedConfig and its loaders. */
#pragma once
#include "base/base.h"
#include "base/err.h"

#include <jansson.h>
#include <math.h>

/* Limits of every model: above the largest published model, and so low that the product of any two
 * limits and the size of an element is below 2^48. */
enum {
    CFG_MAX_HIDDEN = 65536,
    CFG_MAX_VOCAB = 1 << 20,
    CFG_MAX_FF = 1 << 18,
    CFG_MAX_HEADS = 1024,
    CFG_MAX_HEAD_DIM = 512, /* of the CUDA kernels; also of a Mamba head and its state */
    CFG_MAX_EXPERTS = 1024,
    CFG_MAX_TOP = 32, /* experts per token */
    CFG_MAX_POSITIONS = 1 << 24,
    CFG_MAX_BYTES = 16 << 20, /* size of a file */
};

/* Reads dir/name. -ENOENT: no such file. The caller calls json_decref(*ret). */
int config_read(json_t **ret, const char *dir, const char *name, struct err *e) MUST_USE;
/* Parses n bytes instead of a file; name: the file in error messages. Accepts strict JSON without
 * duplicate keys. Bare Infinity, -Infinity and NaN, which Python writes, become {"__float__":
 * "Infinity"} and so on, the form that transformers 5 writes. */
int config_parse(json_t **ret, const char *text, size_t n, const char *name,
                 struct err *e) MUST_USE;
/* Returns the config of the language model: `whole` itself or, in a multimodal file, its
 * text_config plus the keys dtype, *_token_id, quantization_config and tie_word_embeddings of the
 * outer level. *ret is a new reference. */
int config_text(json_t **ret, json_t *whole, struct err *e) MUST_USE;
enum cfg_state { CFG_ABSENT, CFG_NULL, CFG_SET };
enum cfg_state cfg_state(const json_t *config, const char *key);
const json_t *cfg_value(const json_t *config, const char *key); /* NULL: absent or null */

/* Getters of one value. `otherwise`: the value if the key is absent. If it is CFG_REQUIRED
 * (cfg_u32), NAN (cfg_f32, cfg_f64) or NULL (cfg_str), an absent key is an error. -EINVAL: wrong
 * type or out of range. *ret is written on success only. */
#define CFG_REQUIRED (-1)
int cfg_u32(const json_t *config, const char *key, int64_t otherwise, uint32_t min, uint32_t max,
            uint32_t *ret, struct err *e) MUST_USE;
int cfg_f32(const json_t *config, const char *key, double otherwise, double min, double max,
            float *ret, struct err *e) MUST_USE; /* accepts infinity only if max is INFINITY */
int cfg_f64(const json_t *config, const char *key, double otherwise, double min, double max,
            double *ret, struct err *e) MUST_USE;
int cfg_bool(const json_t *config, const char *key, bool otherwise, bool *ret,
             struct err *e) MUST_USE;
/* *ret is valid as long as config is. */
int cfg_str(const json_t *config, const char *key, const char *otherwise, const char **ret,
            struct err *e) MUST_USE;
/* Check that a key is absent or has the value `want`, the only value that the family implements.
 * -ENOTSUP: "attention_bias is true, only false is implemented". */
int cfg_want_bool(const json_t *config, const char *key, bool want, struct err *e) MUST_USE;
int cfg_want_str(const json_t *config, const char *key, const char *want, struct err *e) MUST_USE;
/* Returns the name that config uses for a value with two names: `other` if the key `other` is set,
 * else key. transformers prefers `other`. */
const char *cfg_either(const json_t *config, const char *other, const char *key);

/* Reads entry `layer` of a list of n_layers strings ("layer_types"). */
int cfg_str_at(const json_t *config, const char *key, uint32_t layer, uint32_t n_layers,
               const char **ret, struct err *e) MUST_USE;

/* Sets *ret to whether the layer has a sliding window (key layer_types; absent: `otherwise`). */
int cfg_slides(const json_t *config, uint32_t layer, uint32_t n_layers, bool otherwise, bool *ret,
               struct err *e) MUST_USE;
/* Reads num_attention_heads, num_key_value_heads (null: equal to num_attention_heads) and head_dim
 * (even) into l. heads, kv_heads and head_dim are the family's defaults. */
struct layer_shape;
int cfg_heads(const json_t *config, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
              struct layer_shape *l, struct err *e) MUST_USE;

/* Reads the key dtype, else torch_dtype, without "torch."; *ret NULL: neither is set. */
int cfg_dtype(const json_t *config, const char **ret, struct err *e) MUST_USE;

/* DYNAMIC (dynamic NTK) changes frequencies only of sequences that are longer than
 * max_position_embeddings, which lagan does not serve: a worker refuses a longer max_model_len. */
enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_PROPORTIONAL
};

/* Parameters of rotary embeddings (rope_table.h). Words in capitals: the types that use a field. */
struct rope_params {
    enum rope_type type;
    double theta;
    double factor;               /* stretches positions; every type except DEFAULT, DYNAMIC */
    double low, high;            /* LLAMA3: low_freq_factor, high_freq_factor */
    double original_max;         /* LLAMA3, YARN, LONGROPE: positions before stretching */
    double beta_fast, beta_slow; /* YARN */
    /* Multiplies cos and sin. NAN: 0.1 ln factor + 1 (YARN), sqrt(1 + ln factor / ln original_max)
     * (LONGROPE), both 1 if the factor is at most 1 */
    double attention_factor;
    bool truncate; /* YARN */
    /* LONGROPE: divisors of the n_divisors frequencies of a model that serves up to original_max
     * positions (SHORT), or more */
    uint32_t n_divisors;
    float divisor[2][CFG_MAX_HEAD_DIM / 2];
    double partial;   /* share of a head's dims that rotate; 1: all */
    bool own_partial; /* partial is from the rope object; if false, Bamba uses its own default */
};

enum { ROPE_SHORT, ROPE_LONG }; /* indices of rope_params.divisor */

/* Reads the rotary parameters of one kind of layer.
 *
 *   kind   NULL; or "full_attention" or "sliding_attention" for a family whose kinds differ (Gemma
 *          3): reads rope_parameters[kind], in the older dialect rope_theta with rope_scaling for
 *          full layers and rope_local_base_freq, never scaled, for sliding layers
 *   theta  the default of rope_theta
 */
int cfg_rope(const json_t *config, const char *kind, double theta, struct rope_params *ret,
             struct err *e) MUST_USE;
/* As cfg_rope(), for a family that rotates whole heads and implements only the rope types of the
 * bit set `types` (1 << ROPE_*). -ENOTSUP: config has another type or rotates a part of a head. */
int cfg_rope_only(const json_t *config, const char *kind, double theta, unsigned types,
                  struct rope_params *ret, struct err *e) MUST_USE;
