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
/* ACT_SWIGLU_CLAMPED is for gate() only; gate and up are interleaved there (g u g u): (min(max(u,
 * -7), 7) + 1) h / (1 + exp(-1.702 h)), h = min(g, 7). Source: GptOssExperts of transformers
 * 5.17. */
enum act { ACT_RELU, ACT_RELU2, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_SWIGLU_CLAMPED };

/* A view of device memory, row-major; unused dims are 1. Passed by value; owns nothing. */
struct tensor {
    void *data;
    /* NULL, or one per scale_run elements of a row; MXFP4: e8m0 bytes, run 32 */
    const float *scale;
    uint32_t scale_run; /* 0: one for the tensor; columns of a row: one per row */
    enum dtype dtype;
    uint32_t dim[4];
    /* Elements from one row (dim[0]) to the next. A column slice has the stride of its parent. */
    uint32_t stride;
};
#define NO_TENSOR ((struct tensor){ 0 })
enum { MX_RUN = 32 }; /* MXFP4 codes that share a scale */

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

/* Host memory for copies to and from the device: pieces at consecutive addresses, each with its own
 * fd, like an arena. Mapped pieces lengthen the exit of the process (docs/lab/serving.md). */
enum { HOST_PIECES = 8 };
struct host_memory {
    void *base;            /* valid only as an address of device copies; NULL: none */
    uint64_t bytes, piece; /* bytes: sum of all pieces, at least the size requested */
    uint32_t n, n_mapped;  /* pieces; copies may use the first n_mapped */
    int fd[HOST_PIECES];   /* owned; -1: not made */
};

/* One layer of one KV group in the KV arena, as kernels see it (worker/kv/kv.h).
 *    K of (slot, pos, head), tpb = tokens_per_block:
 *      base + table[slot * table_stride + pos / tpb] * slice_bytes
 *           + (head * tpb + pos % tpb) * head_dim * element size
 *    V: + slice_bytes. Recurrent state: base + table[slot * table_stride] * slice_bytes, where
 *    table is the entry of the layer. */
struct kv_view {
    void *base;            /* arena + layer_in_group * n_parts * slice_bytes */
    const slice_id *table; /* [n_slots][table_stride] on the device; SLICE_NONE: no block */
    uint32_t table_stride, slice_bytes, n_parts, tokens_per_block, n_kv_heads, head_dim;
    enum dtype dtype;
    float k_scale, v_scale; /* for fp8; 1 otherwise */
};

/* The consecutive batched tokens of one slot in a step, in position order. */
struct segment {
    uint32_t slot, first_token, n_tokens;
    int32_t first_pos; /* of the first token */
    /* Keys after this step has written its own; cross attention: encoder input tokens. */
    uint32_t kv_len;
};

/* The batched tokens of a step, on the device. A token with SLOT_NONE is padding and writes
 * nothing. */
#define SLOT_NONE UINT32_MAX
struct step_tokens {
    uint32_t n_tokens, n_segments;
    /* At least this many of the first segments have at most one token; 0 is always valid. */
    uint32_t n_single_token;
    uint32_t longest;     /* upper bound of a segment's tokens; 0: unknown */
    int32_t *token;       /* [n_tokens]; resolve_tokens() replaces -1 by the slot's last token */
    const int32_t *pos;   /* [n_tokens] */
    const uint32_t *slot; /* [n_tokens] */
    const struct segment *segment; /* [n_segments] */
};

/* q, or both k and v, may be NO_TENSOR: for layers that read another layer's cache, and to project
 * encoder states. Without a cache (kv.base NULL) k is rotated in place like q. With a cache k keeps
 * its content, and v is read before k is stored, so that v may be k (K = V). */
struct rope_store {
    struct tensor q, k, v;        /* [n, heads * head_dim] views; q is changed in place */
    struct tensor q_norm, k_norm; /* [head_dim] or NO_TENSOR; applied before rotation */
    bool v_norm;                  /* normalize v without a weight before storing it */
    float norm_eps, norm_plus;    /* weight = w + norm_plus (Gemma 3: 1) */
    struct tensor cos_sin; /* fp32 [max_pos, rot_dim]: cos of rot_dim/2, then sin; or NO_TENSOR */
    uint32_t n_heads, n_kv_heads, head_dim;
    struct kv_view kv; /* k and v are stored at (slot, pos); kv.base NULL: not stored */
};

/* A row that sees no key gets zeros. Rows outside all segments, and paged segments with SLOT_NONE,
 * keep their content. If k is stored, every row with a slot belongs to a segment. */
struct attend {
    struct tensor out, q; /* [n, n_heads * head_dim] */
    struct kv_view kv;    /* kv.table set: paged; NULL: keys are k and v of the same segments */
    /* [n, n_kv_heads * head_dim]. Paged: this step's K and V, stored before attention like
     * rope_store() without norms and rotation. k NO_TENSOR: they are already stored. */
    struct tensor k, v;
    /* Segments, tables and all cached keys except k and v above were complete before
     * resolve_tokens() of this step, so that a kernel may read them while the previous op still
     * runs. */
    bool inputs_ready;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window;    /* key j is visible to query i iff i - window < j; 0 = all */
    uint32_t kept;      /* keys j < kept are visible also outside the window; paged only */
    bool causal;        /* key j visible if j <= i; false: all keys 0 .. kv_len (encoder, cross) */
    float scale;        /* multiplies q.k; T5: 1 */
    float softcap;      /* s -> cap * tanh(s / cap); 0: off */
    const float *sinks; /* [n_heads] or NULL */
    /* T5: added to q.k: bias[head * (2 * bias_reach + 1) + clamp(j - i, +-bias_reach) +
     * bias_reach] */
    const float *bias;
    uint32_t bias_reach;
    /* Tree of draft tokens: bit j % 32 of mask[row * mask_words + j / 32] is set if the row sees
     * key first_pos + j of its segment. The mask replaces causal for keys of the segment; earlier
     * keys are visible as usual. NULL: no mask. */
    const uint32_t *mask;
    uint32_t mask_words;
};

/* x += in, x += in + in_bias or x += rms_norm(in); then y = norm(x). One pass over the rows, with
 * the same bits as the separate ops (add, rms_norm, residual without in for a layer norm), because
 * x is fp32. A layer norm is (x - mean) / sqrt(var + eps) * y_norm + y_bias. */
enum residual_norm {
    RESIDUAL_RMS,
    RESIDUAL_LAYER,
    RESIDUAL_POST /* layer norm; its result is stored to x before rounding to y */
};
struct residual {
    struct tensor x;  /* fp32 [n, d], in and out */
    struct tensor in; /* [n, d], or NO_TENSOR: adds nothing */
    bool parts;       /* in is this rank's partial sum: all_reduce() first; in is undefined after */
    struct tensor in_bias;   /* [d], or NO_TENSOR; not with in_norm */
    struct tensor in_norm;   /* [d], or NO_TENSOR: in is added without a norm */
    struct tensor y;         /* [n, d], or NO_TENSOR: only x is computed */
    struct tensor y_norm;    /* [d], or NO_TENSOR: weight 1 */
    struct tensor y_bias;    /* [d], or NO_TENSOR; layer norm only */
    float eps, plus;         /* of both norms, as in rms_norm(); plus: rms_norm only */
    enum residual_norm norm; /* norm of y */
};

/* Rows and their experts, on the device: n_top pairs per row. Sorted pairs are ordered by expert,
 * then by row. */
struct pairs {
    uint32_t n_tokens, n_top, n_experts;
    /* [n_tokens][n_top] expert of the pair; n_experts: row with SLOT_NONE, no pair */
    uint32_t *expert;
    float *share;    /* [n_tokens][n_top] */
    uint32_t *place; /* [n_tokens][n_top] index among the sorted pairs */
    uint32_t *row;   /* [n_tokens * n_top] row of a sorted pair */
    uint32_t *first; /* [n_experts + 1]: expert e has the sorted pairs first[e] .. first[e + 1] */
};

/* Assigns each row to the n_top experts with the largest logits, best first, lowest expert on ties;
 * NaN is the smallest. Shares are the softmax over those logits, times scale[expert]. sigmoid: the
 * experts with the largest s + bias, s = 1 / (1 + exp(-logit)); shares are s / (sum of the chosen s
 * + 1e-20) times factor. Source: NemotronHTopkRouter. */
struct route {
    struct tensor logits; /* fp32 [n_tokens, n_experts] */
    bool sigmoid;
    struct tensor bias;   /* sigmoid: fp32 [n_experts] */
    float factor;         /* > 0; multiplies the logits (sigmoid: the shares) */
    struct tensor scale;  /* fp32 [n_experts] or NO_TENSOR */
    const uint32_t *slot; /* [n_tokens] as step_tokens.slot, or NULL: no padding rows */
    struct pairs pairs;   /* output */
};

/* y[p] = x w[expert]^T + bias[expert] for every sorted pair p. */
struct expert_matmul {
    struct tensor y; /* [n_tokens * n_top, out], of x's dtype */
    /* by_row: [n_tokens, k], indexed by the pair's row; else [n_tokens * n_top, k], by pair */
    struct tensor x;
    /* [n_experts * out, k], expert after expert; may be MXFP4 with any dtype of x */
    struct tensor w;
    struct tensor bias; /* fp32 [n_experts, out] or NO_TENSOR */
    bool by_row;
};

/* AltUp streams of Gemma 3n: x is fp32 [n, n_streams * d]; stream j starts at column j * d. Source:
 * Gemma3nTextAltUp of transformers 5.17. */
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

/* Mamba-2's convolution along a sequence, per channel, for the rows of segments: y = silu(sum over
 * k of w[k] x[pos - n_taps + 1 + k] + bias), k ascending; inputs before position 0 are 0. Inputs
 * before the segment come from the slot's state, fp32 [n_taps - 1][channels] at its start, oldest
 * first; the state then keeps the last n_taps - 1 inputs. */
struct conv {
    struct tensor y, x; /* [n, channels] */
    struct tensor w;    /* fp32 [channels, n_taps], the current row's tap last; n_taps <= 8 */
    struct tensor bias; /* fp32 [channels] or NO_TENSOR */
    uint32_t n_taps;
    struct kv_view state; /* one layer */
};

/* Mamba-2's recurrence, row by row of a segment, for each head: state = state exp(dt A) + (dt x) B,
 * y = (state C + D x) silu(gate); A = -exp(a_log), dt = softplus(dt + dt_bias) clamped to dt_min ..
 * dt_max. Consecutive heads form a group that shares B and C. Position 0 starts from zeros. */
struct scan {
    struct tensor y, gate;           /* [n, n_heads * head_dim] */
    struct tensor x;                 /* [n, n_heads * head_dim + 2 n_groups * state_dim]: x, B, C */
    struct tensor dt;                /* [n, n_heads] */
    struct tensor dt_bias, a_log, d; /* fp32 [n_heads] */
    float dt_min, dt_max;
    uint32_t n_heads, head_dim, n_groups, state_dim;
    uint32_t state_at; /* byte offset in the state of fp32 [n_heads][head_dim][state_dim] */
    struct kv_view state;
};

/* Source and destination of one block: device memory or pinned host memory, 16-byte aligned. */
struct block_copy {
    void *to;
    const void *from;
};
/* Copies the first used bytes of every pitch bytes of a block; pitch 0: all. Multiples of 16. */
struct block_size {
    size_t bytes, pitch, used;
};

/* One row of logits to sample, on the device. A slot has at most one sampled row per call, and any
 * number of target rows. A forced token has log-probability 0, as in transformers. A NaN is never
 * chosen. A row with only NaN and suppressed tokens makes lane.error() -EIO, unless it is padding
 * (no slot and no target). top_k keeps exactly k tokens. */
struct sample_row {
    uint32_t slot; /* slot whose last token (and seen[]) is written, or SLOT_NONE */
    uint64_t seed;
    uint32_t output,
        position;      /* noise is keyed by (seed, output, position of the generated token) */
    float temperature; /* 0: argmax, lowest id on ties */
    float top_p, min_p, repetition; /* off: 1, 0, 1 */
    uint32_t top_k;                 /* 0: off */
    int32_t force;                  /* >= 0: choose this token (forced BOS, EOS) */
    int32_t target;                 /* >= 0: sample nothing, return this token's log-probability */
    /* into suppressed[]: logit -inf (end tokens before min_tokens) */
    uint32_t first_suppressed, n_suppressed;
    uint32_t first_logit_bias,
        n_logit_bias; /* into logit_bias[]: added after the penalty; each id at most once per row */
    uint32_t allowed; /* row of allowed[], or ALLOW_ALL */
    /* size and start in top[]; n_top 0 with want_logprob: only logprob */
    uint32_t n_top, first_top;
    bool want_logprob;
    /* Beam row: log-probabilities are taken first, from the raw logits. Penalty, logit bias,
     * suppressed tokens and force change the log-probabilities, which are chosen from and returned
     * without normalizing again. struct sample.beams must be set. */
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
    /* Tensor parallel: each rank has its own columns of logits, in place as for all_gather(). All
     * ranks choose the same tokens. */
    bool parts;
    const struct sample_row *row; /* [n] */
    const int32_t *suppressed;
    const struct logit_bias *logit_bias;
    bool beams; /* some row may have beam set */
    /* [][allowed_words] bits: a token with bit 0, or without a bit, gets -inf (constrained
     * decoding). NULL: no row uses it. */
    const uint32_t *allowed;
    uint32_t allowed_words;
    uint32_t n;
    /* [n_slots][seen_words] bits of seen tokens, for the repetition penalty */
    const uint32_t *seen;
    uint32_t seen_words;
    int32_t *last;  /* [n_slots] */
    int32_t *token; /* [n] output: sampled, forced or target token */
    float *logprob; /* [n] output, natural log, after penalties, before temperature */
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
    uint32_t n, stride[8]; /* KV groups, at most 8; entries of a table row */
    slice_id *table[8];    /* [n_slots][stride] */
};

/* One shape measured by lane.tune(), in microseconds: with the library's first heuristic and with
 * the best algorithm. best 0: the library has no algorithm to choose from. */
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
    /* "cpu", "cuda" or "cuda:N,M...": one GPU per rank; without numbers from 0 */
    const char *device;
    const char *isa; /* CPU: "auto", "scalar", "avx2" */
    /* CUDA only; each may be NULL */
    /* folder of cuBLASLt and NCCL; NULL: CUDA_PATH, /usr/local/cuda, the loader's path */
    const char *libs;
    const char *tuning_file; /* measured matmul algorithms, see lane.tune(); NULL: heuristics */
    const char *kernels; /* "attend=generic,matmul=blas": only these candidates, for bisecting */
    bool invariant;      /* batch-invariant numerics */
    bool timing;         /* measure lane_gaps(), for benchmarks */
    /* Lanes that must run concurrently; 0: the driver's default. The driver starts faster with
     * fewer lanes. */
    uint32_t n_lanes;
    /* Rank group: processes with one device each that share one model. All ranks open their lanes
     * in the same order and queue the same ops. n_ranks 0 and 1: no group. */
    uint32_t rank, n_ranks;
    /* Memfd of GPU_GROUP_BYTES, initially zeros, the same for all ranks; owned by the caller. */
    int group_fd;
};

/* All calls go through this table. */
struct gpu_ops {
    const char *name; /* "cpu", "cuda" */
    struct {
        /* Memory that outlives this process: one allocation, one fd, one mapping. Never grown. */
        int (*arena_make)(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret,
                          struct err *e);
        /* The allocation must have exactly this size. On success the arena owns the fd. */
        int (*arena_adopt)(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e);
        void (*arena_drop)(struct gpu *g, struct arena *a); /* unmaps and closes */
        /* Reserves the addresses only. */
        int (*host_open)(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e);
        /* Makes the fd of a piece. */
        int (*host_make)(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e);
        /* Maps the next piece. -EINVAL: its fd does not have the size of a piece. */
        int (*host_map)(struct gpu *g, struct host_memory *m, struct err *e);
        /* Unmaps and closes all pieces. No copy may be in flight. */
        void (*host_close)(struct gpu *g, struct host_memory *m);
        int (*host_pin)(struct gpu *g, void *p, size_t bytes);
        /* Call before unmapping the memory. No copy may be in flight. */
        void (*host_unpin)(struct gpu *g, void *p, size_t bytes);

        /* Queued copies. dst and src are arena memory. host is any memory that stays valid until
         * the copy is done; it must be pinned if the copy must not block the caller. put may read
         * its host memory before earlier ops are done. */
        int (*put)(struct lane *l, void *dst, const void *host, size_t bytes);
        int (*get)(struct lane *l, void *host, const void *src, size_t bytes);
        int (*copy)(struct lane *l, void *dst, const void *src, size_t bytes);
        GPU_MEMORY_OPS(GPU_MEMBER, )
    } mem;
    struct {
        /* units: SMs, or threads. */
        int (*open)(struct gpu *g, uint32_t units, struct lane **ret, struct err *e);
        void (*close)(struct lane *l); /* waits for all queued work */
        /* Moves the lane to units first .. first + n of its units at open(); applies to work
         * queued from now on. Lanes on disjoint parts do not take each other's units. CPU: n of the
         * lane's own threads work. CUDA: the first n SMs or the last n. The first use of a
         * partition of the device takes 3 to 6 ms. Of GPU_PARTITIONS partitions, one without lanes
         * and graphs is replaced (-EBUSY: there is none). -ENOMEM, -EINVAL: the lane stays where it
         * was. -ENOTSUP: no partitions, see gpu_parts(). */
        int (*part)(struct lane *l, uint32_t first, uint32_t n);
        /* Queued: done() returns step from then on. Steps count up. To restart step numbering,
         * queue mark(0) on an idle lane and wait until done() returns 0; before that, old step
         * numbers compare as new ones, for gpu_wait() as for after(). */
        int (*mark)(struct lane *l, uint64_t step);
        uint64_t (*done)(const struct lane *l); /* no system call */
        /* Queued: later work of this lane waits for that step of the other lane. The step must
         * already be marked there (else -EINVAL), so that no order of waits can deadlock. The other
         * lane must stay open until the wait is over. */
        int (*after)(struct lane *l, const struct lane *other, uint64_t step);
        /* CPU: eventfd, readable after a mark; CUDA: -1, poll done() */
        int (*fd)(const struct lane *l);
        int (*error)(const struct lane *l); /* 0, or -EIO after a device error */
        /* Measures one matmul shape that this lane has computed and that gpu_options.tuning_file
         * does not have: times every algorithm on the tensors of its last use and stores the
         * fastest in the file. Returns 1 if a shape was measured, 0 if none is left. Overwrites the
         * results of the last matmuls. Not queued: takes up to 0.1 s, during which no other lane
         * may have work. */
        int (*tune)(struct lane *l, struct tune_result *ret);
    } lane;
    struct {
        /* Records the ops between begin and end without running them; launch() queues them as one
         * piece. Device addresses, sizes and the lane's partition are fixed in the graph, contents
         * are not. launch() needs the lane on the same partition (else -EINVAL). put and get may
         * not be recorded. A lane records one graph at a time. CPU: -ENOTSUP, and gpu_graphs() is
         * false. */
        int (*begin)(struct lane *l);
        /* bytes: device memory of the graph. */
        int (*end)(struct lane *l, struct graph **ret, uint64_t *bytes);
        int (*launch)(struct lane *l, struct graph *g);
        void (*drop)(struct lane *l, struct graph *g); /* must not be running */
    } graph;
    struct {
        /* Named, nested ranges of host time for a profiler. CPU: no effect. */
        void (*range_begin)(struct lane *l, const char *name);
        void (*range_end)(struct lane *l);
        /* Queued: start and end of an interval of device time, with gpu_options.timing. lane_gaps()
         * returns number and sum of the gaps between intervals so far. Without timing, and on the
         * CPU: no effect, zeros. */
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

/* Optional, before gpu_open() with the same options: starts what needs no device memory. Starts a
 * GPU's driver without a context, so that the next gpu_open() of any process finds the driver
 * running and the exit of its last user does not stop it. A background thread loads cuBLASLt.
 * memory.used of the GPU shows 4 MiB. CPU: no effect. -EINVAL and -ENODEV as in gpu_open(). */
int gpu_begin(const struct gpu_options *o, struct err *e) MUST_USE;
int gpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e) MUST_USE;
void gpu_close(struct gpu *g);
const struct gpu_ops *gpu_ops(const struct gpu *g);
const char *gpu_why(const struct gpu *g); /* message of the last failure */
uint32_t gpu_units(const struct gpu *g);  /* SMs, or usable cores */
/* How the device can be divided among lanes: each part has at least `least` units and is a multiple
 * of grain, or the rest. grain 0: it cannot be divided; why has the reason, or "". */
struct gpu_parts {
    uint32_t least, grain;
    const char *why;
};
struct gpu_parts gpu_parts(const struct gpu *g);
uint32_t gpu_rank(const struct gpu *g);
uint32_t gpu_ranks(const struct gpu *g); /* at least 1 */
/* How the ranks communicate and how long starting took, for a log; "" without a group. */
const char *gpu_group(const struct gpu *g);
/* dtype of activations between matrices of this dtype. */
enum dtype gpu_act_dtype(const struct gpu *g, enum dtype weights);
bool gpu_graphs(const struct gpu *g);
/* Device memory now: free, held by this process until it exits (context, modules, libraries),
 * total. CPU: MemAvailable, 0, MemTotal. */
int gpu_memory(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total);
const char *gpu_describe(const struct gpu *g); /* "cpu (2 cores, avx2)" */
/* Blocks until lane.done() is one of first .. last, without a time limit: not for the serving loop.
 * -EIO: the device has failed. */
int gpu_wait(struct lane *l, uint64_t first, uint64_t last);
