/* model.h - a loaded model, and one step over it.
 *
 * model_open() reads config.json and generation_config.json, picks the family, plans where each
 * tensor goes, and fills the weights arena: from safetensors (single or sharded; a tensor whose dtype
 * and layout are as stored is used in place from the mapped file), from a predecessor's arena (what is
 * damaged there is rebuilt, tensor by tensor), or from a counter (weights=random:SEED). Every error names
 * file, tensor and both shapes.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

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

/* How generate() of transformers would generate, were it told nothing: for requests with model_defaults. */
struct generation {
    float temperature; /* 0: greedy, whatever the file says beside do_sample false */
    float top_p, min_p, repetition_penalty, length_penalty;
    uint32_t top_k, beams, no_repeat_ngram;
    uint32_t max_tokens,
        max_length; /* 0: not said; max_length and min_length count the prompt too */
    uint32_t min_tokens, min_length;
    uint32_t early_stopping; /* as struct rec_submit's */
    char unserved[48];       /* a key that asks for what is not served, "": none */
};

struct model {
    struct gpu *gpu;
    const struct gpu_ops *op;
    const struct arch *arch;
    uint32_t rank, ranks;
    struct model_shape shape, whole;   /* of our rank's part; of all ranks together (sharding.h) */
    void *cfg, *top, *layer, *encoder; /* layer, encoder: [n] of the family's layer structs */
    enum dtype dtype, act; /* of matrices (CPU: of the first), and of activations between them */
    struct tensor table[MAX_TABLES];          /* rope cos/sin by kind, T5 bias tables */
    struct arena table_arena[MAX_TABLES];     /* where they lie: host_tables.h */
    struct host_table_work *work[MAX_TABLES]; /* those that are being made */
    struct reading *reading;                  /* between model_begin() and model_load() */
    struct arena weights;                     /* fd -1: everything is used in place */
    uint64_t fingerprint[2]; /* checkpoint digest, dtype, packing version, family, rank */
    uint64_t checkpoint[2];  /* the same, whatever the rank */
    uint64_t weight_bytes;
    bool adopted;
    uint32_t n_rebuilt; /* of the adopted arena's fields: their checksums were wrong */
    struct weights_checksum *
        weights_checksum; /* what weights had for checksums when it was opened (weights_checksum.h) */
    uint64_t weights_checksum_at;
    struct lane *lane; /* load_lane.h; NULL once the model is open */
    uint64_t lane_step;

    /* generation_config.json, then config.json. -1: none. */
    int32_t bos, pad, decoder_start, forced_bos, forced_eos;
    uint32_t n_eos;
    token_id eos[MAX_EOS];
    struct generation generation;

    /* Tensors of the checkpoint that no line of the weight table reads and that are not known to be of
     * no use here (a vision tower, rotary frequencies): worth a warning. */
    uint32_t n_unused;
    const char **unused;
    uint32_t n_other;          /* of towers for images and sound, which are skipped ... */
    const char *other;         /* ... and the first of them */
    struct safetensors *files; /* what is used in place points into them */
};

struct model_source {
    const char *dir;
    enum dtype dtype; /* DT_COUNT: as stored */
    bool random;
    uint64_t seed;
    uint32_t max_len; /* 0: the model's */
    uint32_t rank,
        n_ranks;    /* of a group (sharding.h), the same as the device's; n_ranks 0 and 1: alone */
    int weights_fd; /* a predecessor's arena, or -1; model_open() keeps or closes it, always */
    uint64_t weights_bytes, weights_fingerprint[2];
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* may be NULL */
    void *arg;
};

/* families: NULL-ended; handed down so that this floor never names worker/arch. -ENOTSUP: the model asks
 * for what is not implemented, by name; -EINVAL, -EBADMSG: a file is wrong. Reads all weights: minutes for
 * the largest, with src->progress every 16 MiB. */
int model_open(struct model **ret, const struct model_source *src, struct gpu *g,
               const struct arch *const *seq_groups, struct err *e) MUST_USE;
/* The same in two: what needs no device, then the rest. Rotary tables are computed from the first on, while a driver
 * comes up. src stays until the second, which alone takes its fd; where that fails the model is to be closed. */
int model_begin(struct model **ret, const struct model_source *src,
                const struct arch *const *seq_groups, struct err *e) MUST_USE;
int model_load(struct model *m, const struct model_source *src, struct gpu *g,
               struct err *e) MUST_USE;
/* Instead of the second: could it be loaded? The files' heads alone are read; m's sizes (weight_bytes, dtype, act, unused)
 * follow, and the memory that weights would take on the device. m is of no more use then than to be asked and closed. */
int model_inspect(struct model *m, const struct model_source *src, struct gpu *g, uint64_t *bytes,
                  struct err *e) MUST_USE;
/* Reads all weights that others have mapped too, after one of them may have written where it had no business:
 * how many tensors are not what they were. Then the model is of no more use than to be closed. */
int model_check(struct model *m, struct err *e) MUST_USE;
struct model *model_close(struct model *m);
CLEAN_FUNC(struct model, model_close)

/* Fill c's groups (kind, window, layers, parts, slice bytes, max_entries) and each layer's group and
 * in_group from the shape; states without snapshots: interval is the caller's. tokens_per_block 0: the default. */
int model_groups(struct model *m, enum dtype kv_dtype, uint32_t tokens_per_block,
                 struct kv_config *c, struct err *e) MUST_USE;

/* Layers that slide over a window see the first n positions beside it: m's layers, and c's groups as model_groups() has
 * made them. */
void model_keep_first(struct model *m, uint32_t n, struct kv_config *c);

/* The parts of the arena that c's groups, as model_groups() has made them, should have: of text, KIND=SHARE,... with
 * kinds full, window, cross, state, each shared evenly by its groups; or cross for those of a source and the rest for all
 * others; "" and 0: none. -EINVAL: no such kind, none of it in this model, more than there is, or both. */
int model_shares(const char *text, double cross, struct kv_config *c, struct err *e) MUST_USE;

/* Device views of one batch, plus scratch. Rows are [n_tokens, ...]; what is not said to be fp32 has the
 * dtype of activations. Filled by worker/exec. */
struct step {
    struct lane *lane;
    struct step_tokens rows;       /* the decoder's rows */
    struct step_tokens enc;        /* the encoder's: runs are sources */
    struct step_tokens cross;      /* the same decoder rows; runs' kv_len is the source's */
    struct step_tokens project;    /* rows of enc_state to project: pos, slot; no runs needed */
    struct kv_view kv[MAX_LAYERS]; /* self attention, by layer */
    struct kv_view cross_kv[MAX_LAYERS];
    struct tensor x;      /* fp32 [n, hidden] of each stream: what layers add to */
    struct tensor normed; /* [n, hidden]: x after the last layer, normed */
    /* The only rows whose normed will be read, n_logit_rows of them, on the device: block_logit_rows(). NULL: all are. */
    const uint32_t *few;
    uint32_t n_logit_rows;
    struct tensor logit_x;   /* fp32 [at least n_logit_rows, hidden] */
    struct tensor enc_x;     /* fp32 [enc rows, hidden]: a slice's sources, in and out */
    struct tensor enc_out;   /* [enc rows, hidden]: enc_x after the last layer, normed */
    struct tensor project_x; /* [project rows, hidden]: rows of enc_out, of this step or before */
    struct tensor
        scratch[MAX_SCRATCH]; /* [max rows, model_scratch() columns], for families to slice */
};
/* Columns of scratch[i] a family needs, from its shape; 0: not used. */
void model_scratch(const struct model *m, uint32_t cols[MAX_SCRATCH]);

#endif
