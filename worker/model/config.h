/* config.h - config.json and generation_config.json, in both of their dialects.
 *
 * A file becomes one jansson object. Getters say what is wrong in words that name the key ("hidden_size
 * is a string, want an integer"); whoever knows the file puts its name in front. A key that is null
 * counts as absent, because published files are full of nulls; where null means something of its own
 * (Mistral's sliding_window) the family asks cfg_state(). Every number has a range: sizes are multiplied
 * later, and a config.json is somebody else's file.
 *
 * Source: transformers 5.17, PretrainedConfig and its loaders.
 */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "base/base.h"
#include "base/err.h"

#include <jansson.h>
#include <math.h>

/* What any model may be: far above the largest published one, low enough that no product of two of
 * them times an element's size passes 2^48. */
enum {
    CFG_MAX_HIDDEN = 65536,
    CFG_MAX_VOCAB = 1 << 20,
    CFG_MAX_FF = 1 << 18,
    CFG_MAX_HEADS = 1024,
    CFG_MAX_HEAD_DIM = 1024,
    CFG_MAX_EXPERTS = 1024,
    CFG_MAX_TOP = 32, /* experts a row */
    CFG_MAX_POSITIONS = 1 << 24,
    CFG_MAX_BYTES = 16 << 20, /* of a file */
};

/* Read dir/name; -ENOENT when there is no such file. The object is the caller's: json_decref(). */
int config_read(json_t **ret, const char *dir, const char *name, struct err *e) MUST_USE;
/* The same from n bytes. Strict JSON without duplicate keys; bare Infinity, -Infinity and NaN, which
 * Python writes, are read as {"__float__": "..."}, which transformers 5 writes. */
int config_parse(json_t **ret, const char *text, size_t n, const char *name,
                 struct err *e) MUST_USE;
/* The language model's config: `whole` itself, or its text_config with the few keys that a multimodal
 * file keeps outside (dtype, token ids, tie_word_embeddings). A new reference; `whole` stays. */
int config_text(json_t **ret, json_t *whole, struct err *e) MUST_USE;
/* The file's bytes and their number, at most CFG_MAX_BYTES; free(). */
int config_bytes(char **ret, size_t *n, const char *dir, const char *name, struct err *e) MUST_USE;

enum cfg_state { CFG_ABSENT, CFG_NULL, CFG_SET };
enum cfg_state cfg_state(const json_t *config, const char *key);

/* One value. `otherwise` is what an absent key means: CFG_REQUIRED, or for floats NAN and for strings
 * NULL: an absent key is an error. -EINVAL with the sentence; *ret is written on success only. */
#define CFG_REQUIRED (-1)
int cfg_u32(const json_t *config, const char *key, int64_t otherwise, uint32_t min, uint32_t max,
            uint32_t *ret, struct err *e) MUST_USE;
int cfg_f32(const json_t *config, const char *key, double otherwise, double min, double max,
            float *ret, struct err *e) MUST_USE; /* infinities only where the range holds them */
int cfg_f64(const json_t *config, const char *key, double otherwise, double min, double max,
            double *ret, struct err *e) MUST_USE;
int cfg_bool(const json_t *config, const char *key, bool otherwise, bool *ret,
             struct err *e) MUST_USE;
/* The string is the config's own, valid as long as it. */
int cfg_str(const json_t *config, const char *key, const char *otherwise, const char **ret,
            struct err *e) MUST_USE;
/* -ENOTSUP "attention_bias is true, only false is implemented" unless key is absent or says `want`. */
int cfg_want_bool(const json_t *config, const char *key, bool want, struct err *e) MUST_USE;
/* `other` where that is set, else key: a class's two names of one value, of which transformers takes this one where
 * both are there. */
const char *cfg_either(const json_t *config, const char *other, const char *key);

/* Layer `layer` of key, a list of n_layers strings ("layer_types"). */
int cfg_str_at(const json_t *config, const char *key, uint32_t layer, uint32_t n_layers,
               const char **ret, struct err *e) MUST_USE;

/* Whether that layer slides over a window: layer_types, or `otherwise` where there is none. */
int cfg_slides(const json_t *config, uint32_t layer, uint32_t n_layers, bool otherwise, bool *ret,
               struct err *e) MUST_USE;
/* num_attention_heads, num_key_value_heads and head_dim, which is even, with a family's defaults. K/V heads that are
 * null are as many as the others. */
struct layer_shape;
int cfg_heads(const json_t *config, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
              struct layer_shape *l, struct err *e) MUST_USE;

/* dtype or torch_dtype, "torch." in front or not; NULL: neither is there. */
int cfg_dtype(const json_t *config, const char **ret, struct err *e) MUST_USE;

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_PROPORTIONAL };

struct rope_params {
    enum rope_type type;
    double theta;
    double factor;               /* not DEFAULT, PROPORTIONAL 1 */
    double low, high;            /* LLAMA3: low_freq_factor, high_freq_factor */
    double original_max;         /* LLAMA3, YARN: positions before stretching */
    double beta_fast, beta_slow; /* YARN */
    double attention_factor;     /* YARN: on cos and sin; NAN: 0.1 ln factor + 1 */
    bool truncate;               /* YARN */
    double partial;              /* the share of a head's dims that rotates, 1 for all */
    bool own_partial;            /* the parameters say it, not the config around them */
};

/* The rotary parameters of one kind of layer, from either dialect.
 *
 *   kind   NULL, or "full_attention" or "sliding_attention" of a family whose kinds differ (Gemma 3):
 *          rope_parameters[kind]; in the older dialect rope_theta with rope_scaling for full layers and
 *          rope_local_base_freq, never scaled, for sliding ones
 *   theta  where the file says none */
int cfg_rope(const json_t *config, const char *kind, double theta, struct rope_params *ret,
             struct err *e) MUST_USE;

#endif
