/* gpu.h - the device interface: one open device, its lanes, its memory and its ops.
 *
 * A struct gpu is one open device. A struct lane is one queue of work on some of its units (SMs or
 * threads). Every op takes a lane, appends to the lane's queue and returns at once. Ops of a lane
 * run in queue order; lanes wait for each other only with lane.after(). Memory that an op receives
 * by pointer (tensor data, arrays of struct step_tokens) must not change until a later lane.mark()
 * of that lane is done. Structs passed by value or by const pointer are copied.
 *
 * Memory comes from arenas only: one fd and one mapping each, made at start, never grown. gpu/cpu
 * is the reference implementation and a usable backend; gpu/cuda is the fast one.
 *
 * NUMERICS ON THE CPU: the bits of a row's result depend on that row and its own history only, not
 * on batch size, position in the batch, threads, chunk, block size or lane. Scalar and AVX2 code
 * give the same bits. matmul adds over K in one order for every M; attention adds over tiles of 64
 * absolute positions; exp, tanh, erf and log are our own; statistics, softmax and logits are fp32.
 *
 * NUMERICS ON A GPU: the same holds with gpu_options.invariant. Without it the last bits of a row
 * may depend on the other rows of the batch. Kernels read lengths, positions and tables on the
 * device, never on the host, so that a captured graph stays valid when they change. Kernels may
 * read weights (matrices, norms, biases, sinks, rotary tables) before earlier work has ended: after
 * writing weights, wait on the host before using them.
 *
 * DTYPES: the residual stream and logits are fp32 on every device. Activations (normed rows, heads,
 * gates) are fp32 on the CPU and have the weights' dtype on a GPU (gpu_act_dtype()); all weight
 * matrices of a step have one dtype there. KV is fp32, bf16 or fp8 (e4m3), on a GPU also fp16. Norm
 * weights and biases may be fp32 with any matrix dtype.
 *
 * ERRORS: 0, or negative: -EINVAL for shapes that disagree (checked once for all devices in
 * check.c, message in gpu_why()), -ENOMEM, -EIO for any device error. After -EIO the device is
 * unusable. One thread per lane may queue.
 */
#pragma once
#include "base/base.h"
#include "base/err.h"
#include "gpu/ops.h"

enum dtype { DT_F32, DT_BF16, DT_F16, DT_I32, DT_I8, DT_U8, DT_E4M3, DT_MXFP4, DT_COUNT };
/* Activation functions. ACT_SWIGLU_CLAMPED is for the op gate() only, whose input then alternates
 * gate and up columns (g u g u): the result is (min(max(u, -7), 7) + 1) h / (1 + exp(-1.702 h))
 * with h = min(g, 7). Source: GptOssExperts of transformers 5.17. */
enum act { ACT_RELU, ACT_RELU2, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_SWIGLU_CLAMPED };

/* A row-major view of device memory, without ownership. Passed by value. Unused dims are 1. */
struct tensor {
    void *data;
    /* Factors of the elements: one for every scale_run elements of a row. NULL: no factors. With
     * DT_MXFP4 this points to e8m0 bytes, one for every MX_RUN elements. */
    const float *scale;
    uint32_t scale_run; /* 0: one factor for the whole tensor; number of columns: one per row */
    enum dtype dtype;
    uint32_t dim[4];
    /* Elements from one row (dim[0]) to the next; a column slice keeps the stride of its parent. */
    uint32_t stride;
};
#define NO_TENSOR ((struct tensor){ 0 })
enum { MX_RUN = 32 }; /* consecutive MXFP4 elements that share one scale byte */

size_t dtype_bytes(enum dtype t, size_t n); /* bytes of n elements; MXFP4: 2 codes per byte */
const char *dtype_name(enum dtype t);
struct tensor tensor_2d(void *data, enum dtype t, uint32_t rows, uint32_t cols);
struct tensor tensor_cols(struct tensor t, uint32_t first, uint32_t n); /* a column slice */
struct tensor tensor_rows(struct tensor t, uint32_t first, uint32_t n);

struct arena {
    void *base; /* host address on the CPU, device address elsewhere */
    uint64_t bytes;
    int fd;
};

/* Host memory that copy ops of the device can read and write (the KV host tier). It consists of
 * pieces at consecutive addresses; each piece has its own fd, like an arena. Each mapped piece
 * makes the exit of the process take longer (docs/lab/serving.md). */
enum { HOST_PIECES = 8 };
struct host_memory {
    void *base; /* address for copy ops, not for the CPU; NULL: no memory */
    /* bytes of all pieces, at least as requested; bytes of one piece */
    uint64_t bytes, piece;
    uint32_t n, n_mapped; /* number of pieces; the first n_mapped may be used */
    int fd[HOST_PIECES];  /* fd of each piece, owned; -1: the piece has not been made */
};

/* The memory of one layer in the KV arena, as kernels see it; the layer belongs to a KV group
 * (worker/kv/kv.h).
 *    K of (slot, pos, head), tpb = tokens_per_block:
 *      base + table[slot * table_stride + pos / tpb] * slice_bytes
 *           + (head * tpb + pos % tpb) * head_dim * element size
 *    V of (slot, pos, head): slice_bytes after its K.
 *    Recurrent state: base + table[slot * table_stride] * slice_bytes. Its block-table row has one
 *    entry per layer; `table` points to the entry of this layer in the row of slot 0. */
struct kv_view {
    void *base;            /* arena base; for K and V + layer_in_group * n_parts * slice_bytes */
    const slice_id *table; /* [n_slots][table_stride] on the device; SLICE_NONE: no block */
    uint32_t table_stride, slice_bytes, n_parts, tokens_per_block, n_kv_heads, head_dim;
    enum dtype dtype;
    float k_scale, v_scale; /* factors of fp8 K and V; 1 for other dtypes */
};

/* The consecutive batched tokens of one slot in a step, in position order. */
struct segment {
    uint32_t slot, first_token, n_tokens;
    int32_t first_pos; /* position of the first token */
    /* Keys of the slot, those of this step included. Cross attention: the encoder input tokens. */
    uint32_t kv_len;
};

/* The batched tokens of a step; the arrays are in device memory. Tokens whose slot is SLOT_NONE are
 * padding: ops store nothing for them. */
#define SLOT_NONE UINT32_MAX
struct step_tokens {
    uint32_t n_tokens, n_segments;
    /* The first n_single_token segments have at most one token each, so that kernels for one token
     * per segment can run them. A smaller number, even 0, is valid too. */
    uint32_t n_single_token;
    uint32_t longest;     /* upper bound of the tokens of one segment; 0: unknown */
    int32_t *token;       /* [n_tokens]; resolve_tokens() replaces -1 by the slot's last token */
    const int32_t *pos;   /* [n_tokens] */
    const uint32_t *slot; /* [n_tokens] */
    const struct segment *segment; /* [n_segments] */
};

/* Arguments of rope_store(), which normalizes and rotates q and k and stores k and v in the KV
 * cache. q may be NO_TENSOR, for K and V of encoder states; k and v may both be NO_TENSOR, for a
 * layer that reads the cache of another layer. If kv.base is NULL, k is rotated in place like q.
 * Otherwise k is not changed, and v is read before k is stored, so that v may be k (K = V). */
struct rope_store {
    struct tensor q, k, v;        /* [n, heads * head_dim] views; q is changed in place */
    struct tensor q_norm, k_norm; /* [head_dim] or NO_TENSOR; applied before rotation */
    bool v_norm;                  /* true: v is normalized, without a weight, before it is stored */
    float norm_eps, norm_plus;    /* norm_plus is added to the norm weights (Gemma 3: 1) */
    /* fp32 [max_pos, rot_dim]: cosines, then sines; NO_TENSOR: no rotation */
    struct tensor cos_sin;
    uint32_t n_heads, n_kv_heads, head_dim;
    struct kv_view kv; /* k and v are stored at (slot, pos) of each token; base NULL: not stored */
};

/* Arguments of attend(): out = softmax(scale q k^T) v, over the keys that each row of q sees. A row
 * that sees no key gets zeros. Rows of out that are in no segment are not changed; with a paged
 * cache, rows of segments with SLOT_NONE neither. If k is set together with kv.table, every row
 * with a slot is in a segment. */
struct attend {
    struct tensor out, q; /* [n, n_heads * head_dim] */
    /* kv.table set: reads the paged cache; NULL: keys are rows of k and v */
    struct kv_view kv;
    /* [n, n_kv_heads * head_dim]. With a paged cache these are K and V of this step; attend()
     * stores them before attention, like rope_store() without norms and rotation. NO_TENSOR:
     * already stored. */
    struct tensor k, v;
    /* true: segments, block tables and all cached keys except k and v above were complete before
     * resolve_tokens() of this step, so that a kernel may read them before the previous op ends. */
    bool inputs_ready;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window; /* query i sees key j only if i - window < j; 0: it sees all keys */
    /* all rows see keys j < kept, whatever the window (attention sinks); paged only */
    uint32_t kept;
    /* true: query i sees keys j <= i only; false: all kv_len keys */
    bool causal;
    float scale;   /* factor of the product of q and a key; T5: 1 */
    float softcap; /* scores s become softcap * tanh(s / softcap); 0: off */
    /* [n_heads] logit of a sink: one more key, without a value; NULL: no sinks */
    const float *sinks;
    /* T5: relative position bias that is added to the score of query i and key j: bias[head * (2 *
     * bias_reach + 1) + clamp(j - i, +-bias_reach) + bias_reach]. NULL: no bias. */
    const float *bias;
    uint32_t bias_reach;
    /* Mask of a tree of draft tokens. Bit j % 32 of mask[row * mask_words + j / 32] is set if the
     * row sees key first_pos + j of its own segment. The mask replaces `causal` for the keys of the
     * segment; a row sees earlier keys as without a mask. NULL: no mask. */
    const uint32_t *mask;
    uint32_t mask_words;
};

/* Arguments of residual(), which adds to the residual stream x and normalizes it in one pass: x +=
 * in, x += in + in_bias or x += rms_norm(in); then y = norm(x). The bits are those of the separate
 * ops (add, rms_norm, residual() without in for a layer norm), because x is fp32. A layer norm is
 * (x - mean) / sqrt(var + eps) * y_norm + y_bias. */
enum residual_norm {
    RESIDUAL_RMS,
    RESIDUAL_LAYER,
    RESIDUAL_POST /* layer norm whose result replaces x and, rounded, is y */
};
struct residual {
    struct tensor x;  /* fp32 [n, d], in and out */
    struct tensor in; /* [n, d] that is added to x; NO_TENSOR: nothing is added */
    /* true: in is a partial sum of this rank, which all_reduce() first replaces by the total */
    bool parts;
    struct tensor in_bias; /* [d], or NO_TENSOR; not together with in_norm */
    struct tensor in_norm; /* [d], or NO_TENSOR: in is added without a norm */
    struct tensor y;       /* [n, d]; NO_TENSOR: only x is computed */
    struct tensor y_norm;  /* [d], or NO_TENSOR: weight 1 */
    struct tensor y_bias;  /* [d], or NO_TENSOR; layer norm only */
    float eps, plus;       /* of both norms, as in rms_norm(); plus is not added in a layer norm */
    enum residual_norm norm; /* the norm that makes y of x */
};

/* The experts that route() has chosen: n_top (row, expert) pairs per row, in device memory. "Sorted
 * pairs" are the pairs ordered by expert, then by row, so that an expert reads consecutive rows. */
struct pairs {
    uint32_t n_tokens, n_top, n_experts;
    /* [n_tokens][n_top] expert of the pair; n_experts: the row has SLOT_NONE and no pairs */
    uint32_t *expert;
    float *share;    /* [n_tokens][n_top] */
    uint32_t *place; /* [n_tokens][n_top] index of the pair among the sorted pairs */
    uint32_t *row;   /* [n_tokens * n_top] row of each sorted pair */
    uint32_t *first; /* [n_experts + 1]: expert e has the sorted pairs first[e] .. first[e + 1] */
};

/* Arguments of route(): assigns each row to the n_top experts with the largest logits, best first,
 * of equal logits the lowest expert; NaN is the smallest. A share is the weight of an expert in the
 * sum of the experts' outputs: the softmax over the chosen logits, times scale[expert]. With
 * sigmoid the chosen experts are those with the largest s + bias, s = 1 / (1 + exp(-logit)), and
 * shares are s / (sum of the chosen s + 1e-20) times factor. Source: NemotronHTopkRouter. */
struct route {
    struct tensor logits; /* fp32 [n_tokens, n_experts] */
    bool sigmoid;
    struct tensor bias;  /* sigmoid: fp32 [n_experts] */
    float factor;        /* > 0; multiplies the logits (with sigmoid: the shares) */
    struct tensor scale; /* fp32 [n_experts] or NO_TENSOR */
    /* [n_tokens] SLOT_NONE: padding; NULL: no padding */
    const uint32_t *slot;
    struct pairs pairs; /* output */
};

/* Arguments of expert_matmul(): y[p] = x w[expert]^T + bias[expert] for every sorted pair p. */
struct expert_matmul {
    struct tensor y; /* [n_tokens * n_top, out], of x's dtype */
    /* With by_row [n_tokens, k], and pair p multiplies the row of x of its token; without it
     * [n_tokens * n_top, k], and pair p multiplies row p. */
    struct tensor x;
    /* [n_experts * out, k]: the matrices of all experts; may be MXFP4 with any dtype of x */
    struct tensor w;
    struct tensor bias; /* fp32 [n_experts, out] or NO_TENSOR */
    bool by_row;
};

/* Arguments of altup(), for the AltUp streams of Gemma 3n: x is fp32 [n, n_streams * d], and stream
 * j is d columns from column j * d on. Source: Gemma3nTextAltUp of transformers 5.17. */
enum altup_step {
    ALTUP_PREDICT, /* x[j] += sum over i of coef[j * n_streams + i] x[i]; coef [n, n_streams^2] */
    ALTUP_CORRECT, /* x[j] += (1 + coef[j]) (in - x[active]); coef [n, n_streams] */
};
struct altup {
    enum altup_step step;
    struct tensor x;
    struct tensor coef;         /* fp32 */
    struct tensor in;           /* fp32 [n, d]; PREDICT: NO_TENSOR */
    uint32_t n_streams, active; /* at most 8 */
};

/* Arguments of conv(): Mamba-2's convolution along a sequence, per channel, for the rows of
 * segments: y = silu(sum over k of w[k] x[pos - n_taps + 1 + k] + bias), k ascending. The last
 * n_taps - 1 inputs before a segment are at the start of the slot's state, fp32 [n_taps -
 * 1][channels], oldest first (0 before position 0). The segment's last inputs replace them. */
struct conv {
    struct tensor y, x; /* [n, channels] */
    struct tensor w;    /* fp32 [channels, n_taps], the current row's tap last; n_taps <= 8 */
    struct tensor bias; /* fp32 [channels] or NO_TENSOR */
    uint32_t n_taps;
    struct kv_view state; /* one layer */
};

/* Arguments of scan(): Mamba-2's recurrence, row by row of a segment, for each head: state = state
 * exp(dt A) + (dt x) B, y = (state C + D x) silu(gate); A = -exp(a_log), dt = softplus(dt +
 * dt_bias) clamped to dt_min .. dt_max. Consecutive heads form a group with common B and C. At
 * position 0 the state starts with zeros. */
struct scan {
    struct tensor y, gate;           /* [n, n_heads * head_dim] */
    struct tensor x;                 /* [n, n_heads * head_dim + 2 n_groups * state_dim]: x, B, C */
    struct tensor dt;                /* [n, n_heads] */
    struct tensor dt_bias, a_log, d; /* fp32 [n_heads] */
    float dt_min, dt_max;
    uint32_t n_heads, head_dim, n_groups, state_dim;
    /* byte offset of [n_heads][head_dim][state_dim] in the state */
    uint32_t state_at;
    struct kv_view state;
};

/* One block to copy: addresses in device or pinned host memory, 16-byte aligned. */
struct block_copy {
    void *to;
    const void *from;
};
/* The bytes of a block to copy: the first `used` of every `pitch` (0: all); multiples of 16. */
struct block_size {
    size_t bytes, pitch, used;
};

/* The tokens that the sequences in the slots have read, in device memory. mark_tokens() writes
 * them, sample() reads them. */
struct token_history {
    uint32_t *seen; /* [n_slots][seen_words] a bit for each token of the vocabulary */
    uint32_t seen_words, stride;
    int32_t *token; /* [n_slots][stride] by position; NULL: not stored */
};

/* Parameters of one row of logits; the array is in device memory. A call has at most one sampled
 * row per slot and any number of target rows (which return the log-probability of a given token). A
 * forced token has log-probability 0, as in transformers. A NaN is never chosen. A row of only NaN
 * and suppressed tokens makes lane.error() -EIO, unless it is padding (no slot and no target).
 * top_k keeps exactly k tokens. */
struct sample_row {
    uint32_t slot; /* slot whose last token is stored and whose history is read; SLOT_NONE: none */
    uint64_t seed;
    uint32_t output,
        /* random numbers depend on seed, output, position only */
        position;
    float temperature;              /* 0: argmax, lowest id on ties */
    float top_p, min_p, repetition; /* off: 1, 0, 1 */
    uint32_t top_k;                 /* 0: off */
    int32_t force;                  /* >= 0: choose this token (forced BOS, EOS) */
    int32_t target;                 /* >= 0: sample nothing, return this token's log-probability */
    /* Range of suppressed[] (end tokens before min_tokens): their logits become -inf. */
    uint32_t first_suppressed, n_suppressed;
    uint32_t first_logit_bias,
        n_logit_bias; /* entries of logit_bias[], added after the penalties; an id at most once */
    /* Subtracted from the logit of each token that the history has from first_new to position - 1,
     * after the repetition penalty: presence + frequency * number of occurrences. Off: 0. */
    float presence_penalty, frequency_penalty;
    uint32_t first_new;
    /* Tokens that would complete a sequence of this many tokens for the second time get -inf; the
     * history before `position` counts. 0: off. */
    uint32_t no_repeat_ngram;
    uint32_t allowed; /* row of struct sample.allowed, or ALLOW_ALL */
    /* Range of top[] for the best tokens. n_top 0 with want_logprob: only logprob is set. */
    uint32_t n_top, first_top;
    bool want_logprob;
    /* Beam search: log-probabilities are computed first, from the raw logits. Then penalties, logit
     * bias, suppressed tokens and a forced token change them, and the best are returned without
     * normalizing again. struct sample.beams must be set. */
    bool beam;
    uint8_t pad[2];
};
#define ALLOW_ALL UINT32_MAX
struct logit_bias {
    int32_t id;
    float add;
};
struct top {
    int32_t id;
    float logprob;
};
struct sample {
    struct tensor logits; /* fp32 [n, vocab]; overwritten */
    /* Tensor parallel: each rank has computed its own columns of logits, at their place in the row
     * as for all_gather(). All ranks choose the same tokens. */
    bool parts;
    const struct sample_row *row; /* [n] */
    const int32_t *suppressed;
    const struct logit_bias *logit_bias;
    bool beams; /* false: no row has `beam` set */
    /* [][allowed_words] bits per token, for constrained decoding: a token whose bit is 0 or beyond
     * the words gets -inf. NULL: all rows have ALLOW_ALL. */
    const uint32_t *allowed;
    uint32_t allowed_words;
    uint32_t n;
    struct token_history history; /* all members 0: no row has penalties or no_repeat_ngram */
    int32_t *last;                /* [n_slots] output: the sampled token of row.slot */
    int32_t *token;               /* [n] output: sampled, forced or target token of each row */
    float *logprob;               /* [n] output, natural log, after penalties, before temperature */
    /* Output: the n_top (<= 1,024) best tokens of row i at row[i].first_top, best first, lower id
     * on ties; id -1 beyond the vocabulary. */
    struct top *top;
};

struct table_edit {
    uint32_t table; /* KV group */
    uint32_t slot, entry;
    slice_id at; /* SLICE_NONE: evicted */
};
struct tables {
    uint32_t n, stride[8]; /* number of KV groups; entries of a row of each block table */
    slice_id *table[8];    /* [n_slots][stride] */
};

/* Result of lane.tune() for one matmul shape, in microseconds: with the first algorithm that the
 * library proposes and with the fastest. best 0: the library has no algorithms to choose from. */
struct tune_result {
    uint32_t n, k, rows, n_tried;
    float first, best;
};

struct gpu;
struct lane;
struct graph; /* a captured part of a step */

enum { GPU_MAX_RANKS = 8, GPU_PARTITIONS = 4 };
#define GPU_GROUP_BYTES (UINT64_C(20) << 20)

struct gpu_options {
    /* "cpu", "cuda" or "cuda:N,M..." with a GPU number for each rank; "cuda": numbers from 0 on */
    const char *device;
    const char *isa; /* CPU: "auto", "scalar", "avx2" */
    /* The next three are for CUDA; each may be NULL. */
    /* folder of cuBLASLt and NCCL; NULL: searches CUDA_PATH, /usr/local/cuda, the loader's path */
    const char *libs;
    /* measured matmul algorithms, see lane.tune(); NULL: none */
    const char *tuning_file;
    /* "attend=generic,matmul=blas": use only these kernels */
    const char *kernels;
    bool invariant; /* batch-invariant numerics */
    bool timing;    /* measure device time for profile.lane_gaps() */
    /* The device is opened for gpu_facts(), gpu_memory() and the dtypes only: on a GPU without a
     * context, if the driver has NVML. It has no lanes and no memory. */
    bool inspect;
    /* Number of lanes whose work must run concurrently: the driver makes few launch queues and
     * starts faster. 0: the default of the driver. */
    uint32_t n_lanes;
    /* Rank group: processes with one device each that share one model. All ranks open their lanes
     * in the same order and queue the same ops. n_ranks 0 and 1: no group. */
    uint32_t rank, n_ranks;
    /* Memfd of GPU_GROUP_BYTES, initially zeros, the same for all ranks; owned by the caller. */
    int group_fd;
};

/* The op table: all functions of a device. gpu_ops() returns the table that checks arguments. */
struct gpu_ops {
    const char *name; /* "cpu", "cuda" */
    struct {
        /* Memory that outlives this process: one allocation, one fd, one mapping. Never grown. */
        int (*arena_make)(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret,
                          struct err *e);
        /* Maps an arena of exactly this size, made by another process; then the arena owns fd. */
        int (*arena_adopt)(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e);
        void (*arena_drop)(struct gpu *g, struct arena *a); /* unmaps and closes */
        /* Reserves addresses for all pieces; host_make() and host_map() give them memory. */
        int (*host_open)(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e);
        /* Allocates a piece and stores its fd. */
        int (*host_make)(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e);
        /* Maps the first unmapped piece. -EINVAL: its fd does not have the size of a piece. */
        int (*host_map)(struct gpu *g, struct host_memory *m, struct err *e);
        /* Unmaps all pieces and closes their fds. No copy may be in flight. */
        void (*host_close)(struct gpu *g, struct host_memory *m);
        int (*host_pin)(struct gpu *g, void *p, size_t bytes);
        /* Undoes host_pin(); call it before unmapping the memory. No copy may be in flight. */
        void (*host_unpin)(struct gpu *g, void *p, size_t bytes);

        /* Queue a copy: put to the device, get from it, copy within it. dst and src are arena
         * memory. host stays valid until the copy is done; if it is not pinned, the call may block.
         * put may read its host memory before earlier ops are done. */
        int (*put)(struct lane *l, void *dst, const void *host, size_t bytes);
        int (*get)(struct lane *l, void *host, const void *src, size_t bytes);
        int (*copy)(struct lane *l, void *dst, const void *src, size_t bytes);
        GPU_MEMORY_OPS(GPU_MEMBER, )
    } mem;
    struct {
        /* Opens a lane that may use `units` units (SMs or threads). */
        int (*open)(struct gpu *g, uint32_t units, struct lane **ret, struct err *e);
        void (*close)(struct lane *l); /* waits for all queued work */
        /* Moves the lane to units first .. first + n of the units it was opened with, for work
         * queued from now on. Lanes on disjoint ranges do not use the same units. CPU: n of the
         * lane's threads work. CUDA: the range is the first n SMs or the last n; its first use
         * takes 3 to 6 ms. At most GPU_PARTITIONS divisions of the device exist; a further one
         * replaces one without lanes and graphs (-EBUSY: there is none). -ENOMEM, -EINVAL: the lane
         * stays where it was. -ENOTSUP: see gpu_facts().parts. */
        int (*part)(struct lane *l, uint32_t first, uint32_t n);
        /* Queues a mark: done() returns step as soon as the lane reaches it. Steps count up. To
         * restart step numbering, queue mark(0) on an idle lane and wait until done() returns 0;
         * before that, gpu_wait() and after() would take old step numbers for new ones. */
        int (*mark)(struct lane *l, uint64_t step);
        uint64_t (*done)(const struct lane *l); /* the last mark reached; makes no system call */
        /* Queues a wait: later work of this lane starts only when the other lane has reached mark
         * `step`. The other lane must have queued that mark (else -EINVAL), so that no order of
         * waits can deadlock, and must stay open until the wait is over. */
        int (*after)(struct lane *l, const struct lane *other, uint64_t step);
        /* CPU: an eventfd that is readable after a mark; CUDA: -1, the caller polls done() */
        int (*fd)(const struct lane *l);
        int (*error)(const struct lane *l); /* returns 0, or -EIO after a device error */
        /* Measures one matmul shape that this lane has computed and that gpu_options.tuning_file
         * does not have: times every algorithm on the tensors of its last use and stores the
         * fastest in the file. Returns 1 if a shape was measured, 0 if none is left. Overwrites the
         * results of the last matmuls. Not queued: takes up to 0.1 s, during which no other lane
         * may have work. */
        int (*tune)(struct lane *l, struct tune_result *ret);
    } lane;
    struct {
        /* Graphs: the ops between begin() and end() are recorded without running; launch() queues
         * all of them with one call. A graph fixes device addresses, sizes and the partition of the
         * lane; contents of memory may change. launch() needs the lane on the same partition (else
         * -EINVAL). put and get cannot be recorded. A lane records one graph at a time. CPU:
         * -ENOTSUP, and gpu_facts().graphs is false. */
        int (*begin)(struct lane *l);
        /* *bytes: device memory that the graph uses. */
        int (*end)(struct lane *l, struct graph **ret, uint64_t *bytes);
        int (*launch)(struct lane *l, struct graph *g);
        /* the graph must not be running */
        void (*drop)(struct lane *l, struct graph *g);
    } graph;
    struct {
        /* Named, nested ranges of host time for a profiler: a step has the name of its phase
         * (prefill, decode, mixed, encode), its parts are stage, encode, forward and sample. CPU:
         * no effect. */
        void (*range_begin)(struct lane *l, const char *name);
        void (*range_end)(struct lane *l);
        /* Queue the start and the end of an interval of device work. lane_gaps() returns number and
         * sum of the gaps between intervals so far; 0 without gpu_options.timing and on the CPU. */
        void (*work_begin)(struct lane *l);
        void (*work_end)(struct lane *l);
        void (*lane_gaps)(struct lane *l, uint64_t *n, uint64_t *ns);
    } profile;
    struct {
        GPU_STEP_OPS(GPU_MEMBER, )
    } step;
    struct {
        GPU_COLLECTIVES(GPU_MEMBER, )
    } collective;
    GPU_OPS(GPU_MEMBER, )
};

/* Optional call before gpu_open() with the same options: starts the parts of the device that need
 * no device memory, so that gpu_open() returns sooner. On a GPU it starts the driver without a
 * context; the next gpu_open() of any process then finds the driver running, and the exit of its
 * last user does not stop it. A background thread loads cuBLASLt. memory.used of the GPU shows 4
 * MiB. CPU: no effect. -EINVAL and -ENODEV as in gpu_open(). */
int gpu_begin(const struct gpu_options *o, struct err *e) MUST_USE;
int gpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e) MUST_USE;
void gpu_close(struct gpu *g);
const struct gpu_ops *gpu_ops(const struct gpu *g);
const char *gpu_why(const struct gpu *g); /* the message of the last call that failed */
/* How the device can be divided among lanes: the range of units of a lane has at least `least`
 * units; their number is a multiple of grain, or they are the rest of the device. grain 0: the
 * device cannot be divided; `why` is the reason or "". */
struct gpu_parts {
    uint32_t least, grain;
    const char *why;
};
struct gpu_facts {
    uint32_t units;       /* SMs, or usable cores */
    uint32_t rank, ranks; /* ranks: at least 1 */
    struct gpu_parts parts;
    bool graphs;          /* the device can capture graphs */
    const char *describe; /* "cpu (2 cores, avx2)" */
};
struct gpu_facts gpu_facts(const struct gpu *g);
/* Returns how the ranks communicate and how long connecting took, for a log; "": no group. */
const char *gpu_group(const struct gpu *g);
/* Returns the dtype of activations between matrices of dtype `weights`. */
enum dtype gpu_act_dtype(const struct gpu *g, enum dtype weights);
/* Returns the device memory in bytes: free; held by this process until it exits (context, modules,
 * libraries); total. CPU: MemAvailable, 0, MemTotal. */
int gpu_memory(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total);
/* Blocks until lane.done() is in first .. last, without a time limit, so the serving loop must not
 * call it. -EIO: the device has failed. */
int gpu_wait(struct lane *l, uint64_t first, uint64_t last);
