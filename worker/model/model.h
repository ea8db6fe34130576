/* model.h - a loaded model, and the device views of one step.
 *
 * model_open() reads config.json and generation_config.json, picks the family, plans where each
 * tensor goes, and fills the weights arena from one of 3 sources: safetensors files (on the CPU, a
 * tensor whose stored dtype and layout fit is used in place from the mapped file); the arena of the
 * previous worker (damaged tensors are rebuilt); or a random generator (weights=random:SEED). Every
 * error names file, tensor and both shapes.
 */
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

/* Defaults of generate() in transformers, for requests with model_defaults. */
struct generation {
    float temperature; /* 0: greedy, also if do_sample is false */
    float top_p, min_p, repetition_penalty, length_penalty;
    uint32_t top_k, beams, no_repeat_ngram;
    uint32_t max_tokens, min_tokens; /* 0: not set */
    uint32_t max_length, min_length; /* the same, with the prompt */
    uint32_t early_stopping;         /* as struct rec_submit's */
    char unserved[48];               /* a key whose value is not served; "": none */
};

struct model {
    struct gpu *gpu;
    const struct gpu_ops *op;
    const struct arch *arch;
    const struct quant *quant; /* NULL: plain weights (quant.h) */
    uint32_t rank, ranks;
    struct model_shape shape, whole;   /* this rank's part; the whole model (sharding.h) */
    void *cfg, *top, *layer, *encoder; /* layer, encoder: [n] of the family's layer structs */
    enum dtype dtype, act; /* of matrices (CPU: of the first matrix), and of activations */
    struct tensor table[MAX_TABLES];          /* rope cos/sin by kind, T5 bias tables */
    struct arena table_arena[MAX_TABLES];     /* memory of table[] */
    struct host_table_work *work[MAX_TABLES]; /* tables being computed: host_tables.h */
    struct reading *reading;                  /* between model_begin() and model_load() */
    struct arena weights;                     /* fd -1: every tensor is used in place */
    uint64_t fingerprint[2]; /* checkpoint digest, dtype, packing version, family, rank */
    uint64_t checkpoint[2];  /* the same without the rank */
    uint64_t weight_bytes;
    bool adopted;
    uint32_t n_rebuilt; /* fields of the adopted arena with wrong checksums */
    struct weights_checksum *weights_checksum; /* checksums at load (weights_checksum.c) */
    uint64_t weights_checksum_at;
    struct lane *lane; /* load_lane.h; NULL once the model is open */
    uint64_t lane_step;

    /* From generation_config.json, then config.json. -1: none. */
    int32_t bos, pad, decoder_start, forced_bos, forced_eos;
    uint32_t n_eos;
    token_id eos[MAX_EOS];
    struct generation generation;

    /* Tensors that no line of the weight table reads and that are not known to be useless for text:
     * worth a warning. */
    uint32_t n_unused;
    const char **unused;
    uint32_t n_other;          /* skipped tensors of image and sound encoders */
    const char *other;         /* the first of them */
    struct safetensors *files; /* tensors used in place point into their mappings */
};

struct model_source {
    const char *dir;
    enum dtype dtype; /* DT_COUNT: as stored */
    bool random;
    uint64_t seed;
    uint32_t max_len;       /* 0: the model's */
    uint32_t rank, n_ranks; /* equal to the device's; n_ranks 0 or 1: one rank */
    int weights_fd;         /* arena of the previous worker, or -1; always kept or closed */
    uint64_t weights_bytes, weights_fingerprint[2];
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
    void *arg;
};

/* Loads a model; calls src->progress every 16 MiB. Large models take minutes. families: NULL-ended,
 * a parameter because this folder must not include worker/arch. -ENOTSUP: config.json needs a
 * feature that is not implemented; -EINVAL, -EBADMSG: a file is wrong. */
int model_open(struct model **ret, const struct model_source *src, struct gpu *g,
               const struct arch *const *families, struct err *e) MUST_USE;
/* model_open() in two calls. model_begin() needs no device and starts the rotary tables, which are
 * then computed while the driver starts. src must stay valid until model_load(), which takes
 * src->weights_fd. If model_load() fails, the caller closes the model. */
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
 * process that shares the arena may have made a stray write. If the number is not 0, the model must
 * be closed. */
int model_check(struct model *m, struct err *e) MUST_USE;
struct model *model_close(struct model *m);
CLEAN_FUNC(struct model, model_close)

/* Sets c's groups (kind, window, layers, parts, slice bytes, max_entries) and each layer's group
 * and in_group. The caller sets the snapshot interval of state groups. tokens_per_block 0: the
 * default. */
int model_groups(struct model *m, enum dtype kv_dtype, uint32_t tokens_per_block,
                 struct kv_config *c, struct err *e) MUST_USE;

/* Makes the first n positions visible besides the window, in m's window layers and in c's groups
 * (from model_groups()). */
void model_keep_first(struct model *m, uint32_t n, struct kv_config *c);

/* Sets the arena shares of c's groups (from model_groups()). text: KIND=SHARE,... with the kinds
 * full, window, cross and state; groups of a kind share evenly. cross: the share of cross groups;
 * all other groups have the rest. "" and 0: not set. -EINVAL: unknown kind, kind without a group,
 * shares above 1, or both arguments set. */
int model_shares(const char *text, double cross, struct kv_config *c, struct err *e) MUST_USE;

/* Device views of one batch, plus scratch; set by worker/exec. Tensors have the dtype of
 * activations unless the comment says fp32. */
struct step {
    struct lane *lane;
    struct step_tokens rows;       /* of the decoder */
    struct step_tokens enc;        /* of the encoder: a segment is one encoder input */
    struct step_tokens cross;      /* decoder tokens; kv_len of a segment is the encoder input's */
    struct step_tokens project;    /* encoder states to project: pos and slot, no segments */
    struct kv_view kv[MAX_LAYERS]; /* self-attention, by layer */
    struct kv_view cross_kv[MAX_LAYERS];
    struct tensor x;      /* fp32 [n, n_streams * hidden]: hidden states that layers add to */
    struct tensor normed; /* [n, hidden]: x after the last layer, normed */
    const uint32_t *few;  /* device, [n_logit_rows]: the tokens whose normed is read; NULL: all */
    uint32_t n_logit_rows;
    struct tensor logit_x;   /* fp32 [at least n_logit_rows, hidden] */
    struct tensor enc_x;     /* fp32 [enc tokens, hidden]: in and out */
    struct tensor enc_out;   /* [enc tokens, hidden]: enc_x after the last layer, normed */
    struct tensor project_x; /* [project tokens, hidden]: from enc_out of this or an earlier step */
    struct tensor scratch[MAX_SCRATCH]; /* [max tokens, model_scratch() columns]: blocks.h */
};
/* Sets the columns of scratch[i] from m's shape; 0: not used. */
void model_scratch(const struct model *m, uint32_t cols[MAX_SCRATCH]);
