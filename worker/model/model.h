/* model.h - a loaded model, and the device views of one step.
 *
 * model_open() reads config.json and generation_config.json, picks the model family (arch.h), plans
 * where each tensor is stored, and fills the weights arena, the memory of the weights, from one of
 * 3 sources: safetensors files (on the CPU, a tensor whose stored dtype and layout fit is used in
 * place from the mapped file); the arena of the previous worker (tensors with a wrong checksum are
 * read again from the files); or a random generator (weights=random:SEED). Errors name the file. */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "gpu/gpu.h"
#include "worker/kv/kv.h"
#include "worker/model/arch.h"

enum { MAX_EOS = 16, MAX_TABLES = 8, MAX_SCRATCH = 12 };

struct reading;
struct safetensors;
struct weights_checksum;
struct host_table_work;
struct quant;

/* Parameters of a request with model_defaults, as transformers' generate() takes them by default
 * from the checkpoint's files (generation.h). */
struct generation {
    float temperature; /* 0: greedy; 0 also if do_sample is false */
    float top_p, min_p, repetition_penalty, length_penalty;
    uint32_t top_k, beams, no_repeat_ngram;
    uint32_t max_tokens, min_tokens; /* 0: not set */
    uint32_t max_length, min_length; /* limits of prompt and output together; 0: not set */
    uint32_t early_stopping;         /* 0 false, 1 true, 2 "never", as in struct rec_submit */
    char unserved[48];               /* a key of the file whose value is not served; "": none */
    /* The values that the file has, with or without do_sample; NaN: absent or not served.
     * temperature is 0 for an encoder-decoder model without do_sample. */
    struct stated_defaults {
        float temperature, top_k, top_p, min_p, repetition_penalty;
    } stated;
};

struct model {
    struct gpu *gpu;
    const struct gpu_ops *op;
    const struct arch *arch;
    const struct quant *quant; /* NULL: plain weights (quant.h) */
    uint32_t rank, ranks;
    struct model_shape shape, whole;   /* this rank's part; the whole model (sharding.h) */
    void *cfg, *top, *layer, *encoder; /* the family's structs; layer, encoder: arrays by layer */
    enum dtype dtype, act; /* of the first matrix (on a GPU, of all matrices); of activations */
    struct tensor table[MAX_TABLES];          /* rotary cos and sin, T5's biases (host_tables.h) */
    struct arena table_arena[MAX_TABLES];     /* memory of table[] */
    struct host_table_work *work[MAX_TABLES]; /* tables that threads compute (host_tables.h) */
    struct reading *reading; /* parsed files, from model_begin() until model_load() returns */
    struct arena weights;    /* fd -1: every tensor is used in place */
    uint64_t fingerprint[2]; /* hash of all that determines the weights arena: fingerprint.c */
    uint64_t checkpoint[2];  /* the same hash without the rank */
    uint64_t weight_bytes;   /* of all tensors, in the arena or used in place */
    bool adopted;            /* the arena is the previous worker's */
    uint32_t n_rebuilt;      /* fields of the adopted arena with wrong checksums */
    struct weights_checksum *weights_checksum; /* host copy at load, for model_check() */
    uint64_t weights_checksum_at;              /* offset of the checksum table in the arena */
    struct lane *lane;  /* the lane that loads the model (weights.h); NULL once it is loaded */
    uint64_t lane_step; /* number of the lane's last mark (load_lane_mark()) */

    /* Special token ids from generation_config.json, else config.json (generation.h). -1: none. */
    int32_t bos, pad, decoder_start, forced_bos, forced_eos;
    uint32_t n_eos;
    token_id eos[MAX_EOS];
    struct generation generation;

    /* Names of stored tensors that no line of the weight table reads. The caller logs a warning,
     * because such a tensor may belong to a variant of the model that is not implemented. Names
     * that are known to be useless for text are left out. */
    uint32_t n_unused;
    const char **unused;
    uint32_t n_other;          /* number of unread tensors of image and sound encoders */
    const char *other;         /* name of the first of these */
    struct safetensors *files; /* the mapped checkpoint; tensors used in place point into it */
};

struct model_source {
    const char *dir;
    enum dtype dtype; /* DT_COUNT: as stored */
    bool random;
    uint64_t seed;
    uint32_t max_len;       /* option max_len: positions of a sequence; 0: as in config.json */
    uint32_t rank, n_ranks; /* as given to gpu_open(); n_ranks 0 or 1: one rank */
    int weights_fd;         /* arena of the previous worker, or -1; the model owns it afterwards */
    uint64_t weights_bytes, weights_fingerprint[2];
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
    /* Called by model_load() when dtype, act and weight_bytes of the model are known, before memory
     * for the weights is allocated. arena_bytes: that memory, 0 if it is adopted. An error ends the
     * load. May be NULL */
    int (*planned)(void *arg, uint64_t arena_bytes, struct err *e);
    void *arg;
};

/* Loads a model; calls src->progress every 16 MiB. Large models take minutes. families: all model
 * families, NULL-ended; a parameter, because this folder must not include worker/arch. -ENOTSUP:
 * config.json needs a feature that is not implemented; -EINVAL, -EBADMSG: a file is wrong. */
int model_open(struct model **ret, const struct model_source *src, struct gpu *g,
               const struct arch *const *families, struct err *e) MUST_USE;
/* model_open() in two calls. model_begin() needs no device; it starts the computation of the rotary
 * tables, which then runs while the driver starts. src must stay valid until model_load() returns.
 * model_load() takes ownership of src->weights_fd. If it fails, the caller closes the model. */
int model_begin(struct model **ret, const struct model_source *src,
                const struct arch *const *families, struct err *e) MUST_USE;
int model_load(struct model *m, const struct model_source *src, struct gpu *g,
               struct err *e) MUST_USE;
/* Instead of model_load(): checks that the model can be loaded, reading headers of the files only.
 * Sets m's weight_bytes, dtype, act and unused, and *bytes to the device memory of the weights.
 * Afterwards m can only be read and closed. */
int model_inspect(struct model *m, const struct model_source *src, struct gpu *g, uint64_t *bytes,
                  struct err *e) MUST_USE;
/* Returns the number of tensors whose checksum has changed since they were loaded. For use after a
 * possible stray write to a shared arena. Not 0: the model must be closed. */
int model_check(struct model *m, struct err *e) MUST_USE;
struct model *model_close(struct model *m);
CLEAN_FUNC(struct model, model_close)

/* Sets the KV groups of c (kind, window, layers, parts, slice bytes, max_entries) and each layer's
 * group and in_group. The caller sets the snapshot interval. tokens_per_block 0: default. */
int model_groups(struct model *m, enum dtype kv_dtype, uint32_t tokens_per_block,
                 struct kv_config *c, struct err *e) MUST_USE;

/* Makes the first n positions of a sequence attention sinks, which queries attend to besides the
 * window, in all layers and groups with a window. c: from model_groups(). Returns the number of
 * groups with a window. */
uint32_t model_keep_first(struct model *m, uint32_t n, struct kv_config *c);

/* Sets the share of the KV arena of each group of c (from model_groups()). text, the option
 * kv.shares: KIND=SHARE,... with the kinds full, window, cross and state; groups of a kind share
 * evenly. cross, the option cross_kv_cache_fraction: the share of the cross-attention group; all
 * other groups have the rest. "" and 0: not set. -EINVAL: unknown or absent kind, sum above 1, or
 * text and cross both set. */
int model_shares(const char *text, double cross, struct kv_config *c, struct err *e) MUST_USE;

/* The device tensors that forward(), encode() and project_cross() read and write in one step, and
 * their scratch memory; worker/exec sets them. Tensors have the dtype of activations unless the
 * comment of a field says fp32. n: the step's batched tokens. */
struct step {
    struct lane *lane;
    struct step_tokens rows;    /* the batched tokens of the decoder */
    struct step_tokens enc;     /* the tokens of the encoder: a segment is one encoder input */
    struct step_tokens cross;   /* rows in cross attention: kv_len is the encoder input's length */
    struct step_tokens project; /* position and slot of each row of project_x; no segments */
    struct kv_view kv[MAX_LAYERS]; /* self-attention KV or recurrent state, by layer */
    struct kv_view cross_kv[MAX_LAYERS];
    struct tensor x;      /* fp32 [n, n_streams * hidden]: hidden states that layers add to */
    struct tensor normed; /* [n, hidden]: x after the last layer, normed */
    const uint32_t *few;  /* device [n_logit_rows]: the logit rows (indices of tokens); NULL: all */
    uint32_t n_logit_rows;
    struct tensor logit_x; /* fp32 [at least n_logit_rows, hidden]: x of the tokens in few */
    struct tensor enc_x;   /* fp32 [enc tokens, hidden]: the encoder's hidden states */
    struct tensor enc_out; /* [enc tokens, hidden]: enc_x after the last layer, normed */
    /* [project tokens, hidden]: rows of enc_out, of this or an earlier step, that project_cross()
     * turns into cross-attention K and V */
    struct tensor project_x;
    struct tensor scratch[MAX_SCRATCH]; /* [max tokens, model_scratch() columns]: blocks.h */
};
/* Sets cols[i] to the columns that scratch[i] needs for m's shape; 0: not used. */
void model_scratch(const struct model *m, uint32_t cols[MAX_SCRATCH]);

struct matmul {
    struct tensor w; /* one weight of the shape */
    bool head;       /* w's rows are the vocabulary, so the result is fp32 logits */
};
enum { MAX_MATMULS = 64 };
/* Lists the matmul shapes that `laganctl tune` measures: fills ret with one weight of each shape,
 * in weight-table order, and returns their number. It leaves out norms and bias tables, which are
 * fp32; experts, which have their own op; and embeddings, which have the shape of the head. */
uint32_t model_matmuls(const struct model *m, struct matmul ret[MAX_MATMULS]);
