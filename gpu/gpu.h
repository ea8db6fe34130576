/* gpu.h - one compute device, as the models see it: the waist.
 *
 * A struct gpu is one open device. A struct lane is one queue of work on a share of it (SMs, or
 * threads); every op takes a lane, appends to its queue and returns at once. Ops of a lane run in
 * the order they were queued; lanes wait for each other with lane.after() only. What an op is given
 * by pointer (tensors' data, struct step_tokens' arrays) must stay as it is until a later
 * lane.mark() of that lane is done; structs passed by value or by const pointer are copied.
 *
 * Memory comes from arenas only: one fd, one mapping, made at start and never grown. Two
 * implementations: gpu/cpu is what correct means and a real backend; gpu/cuda is what fast means.
 *
 * THE CONTRACT OF EVERY OP ON THE CPU: a row's result depends on that row and its own history
 * alone, not on batch size, place, threads, chunk, block size or lane, bit for bit; scalar and AVX2
 * give the same bits. Rules (DECISIONS 13): matmul adds over K in one fixed order for every M;
 * attention sums over fixed tiles of 64 absolute positions; own exp, tanh, erf, log; statistics,
 * softmax and logits in fp32.
 *
 * What a model adds to, the residual stream, is fp32 on every device, and so are logits. What lies
 * between (normed rows, heads, gates: activations) is fp32 on the CPU and the weights' dtype on a
 * GPU (gpu_act_dtype()); a step's matrices of weights have one dtype there. KV is fp32, bf16 or fp8
 * (e4m3), on a GPU fp16 too. Weights of norms and biases may be fp32 beside any of them.
 *
 * ON A GPU the contract above holds with gpu_options.invariant; without it a row's last bits may
 * depend on its company. Every kernel reads lengths, positions and tables on the device, never on
 * the host: so a captured graph stays right when they change. Weights (matrices, norms, biases,
 * sinks, rotary tables) may be read before what was queued earlier has ended: what writes them is
 * waited for by the host first.
 *
 * Failure: 0, or negative: -EINVAL for shapes that disagree (checked in gpu.c, once, for both
 * devices, with the sentence in gpu_why()), -ENOMEM, -EIO for anything the device said; after -EIO
 * the device is finished. Queueing: one thread a lane.
 */
#ifndef GPU_GPU_H
#define GPU_GPU_H

#include "base/base.h"
#include "base/err.h"
#include "gpu/ops.h"

enum dtype { DT_F32, DT_BF16, DT_F16, DT_I32, DT_I8, DT_U8, DT_E4M3, DT_MXFP4, DT_COUNT };
/* The last is gate()'s alone, whose gate and up then stand in turns, g u g u: (min(max(u, -7), 7) +
 * 1) h / (1 + exp(-1.702 h)), h = min(g, 7). Source: GptOssExperts of transformers 5.17. */
enum act { ACT_RELU, ACT_RELU2, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_SWIGLU_CLAMPED };

/* A view of device memory, row-major; unused dims are 1. Passed by value; owns nothing. */
struct tensor {
    void *data;
    const float *scale; /* NULL, or one a scale_run elements of a row; MXFP4: e8m0 bytes, run 32 */
    uint32_t scale_run; /* 0 = one for the tensor, dim of a row = per row */
    enum dtype dtype;
    uint32_t dim[4];
    uint32_t
        stride; /* elements from one row (dim[0]) to the next; a column slice keeps its parent's */
};
#define NO_TENSOR ((struct tensor){ 0 })
enum { MX_RUN = 32 }; /* codes of MXFP4 that share a scale */

size_t dtype_bytes(enum dtype t, size_t n); /* of n elements; MXFP4 counts its nibbles */
const char *dtype_name(enum dtype t);
struct tensor tensor_2d(void *data, enum dtype t, uint32_t rows, uint32_t cols);
struct tensor tensor_cols(struct tensor t, uint32_t first, uint32_t n); /* a column slice */
struct tensor tensor_rows(struct tensor t, uint32_t first, uint32_t n);

struct arena {
    void *base; /* host address on the CPU, device address elsewhere */
    uint64_t bytes;
    int fd;
};

/* Memory of the host's for the device's copies, in pieces that lie side by side at one range of its
 * addresses. Of each there is an fd as of an arena; those that are mapped cost a process's death
 * time (docs/perf.md). */
enum { HOST_PIECES = 8 };
struct host_memory {
    void *base; /* an address for the device's copies, and not for us; NULL: there is none */
    uint64_t bytes, piece; /* bytes: of all pieces, at least as many as were asked for */
    uint32_t n, n_mapped;  /* pieces; copies may reach the first n_mapped of them */
    int fd[HOST_PIECES];   /* ours; -1: not made */
};

/* One layer of one group of the KV arena, as kernels see it (worker/kv/kv.h): K of (slot, pos,
 * head): base + table[slot * table_stride + pos / tpb] * slice_bytes
 *                          + (head * tpb + pos % tpb) * head_dim * element size;   V: + slice_bytes
 * Of recurrent state: base + table[slot * table_stride] * slice_bytes, table being the layer's
 * entry. */
struct kv_view {
    void *base;            /* arena + layer_in_group * n_parts * slice_bytes */
    const slice_id *table; /* [n_slots][table_stride] on the device; SLICE_NONE: not there */
    uint32_t table_stride, slice_bytes, n_parts, tokens_per_block, n_kv_heads, head_dim;
    enum dtype dtype;
    float k_scale, v_scale; /* fp8; 1 otherwise */
};

/* One slot's rows in a step, in position order. */
struct segment {
    uint32_t slot, first_token, n_tokens;
    int32_t first_pos; /* of its first row */
    uint32_t kv_len;   /* keys there are once the step's are written; cross: tokens of the source */
};

/* A step's rows, on the device. A row whose slot is SLOT_NONE is padding: it writes nothing. */
#define SLOT_NONE UINT32_MAX
struct step_tokens {
    uint32_t n_tokens, n_segments;
    /* so many of the first runs, or more, have at most one row: 0 is always true */
    uint32_t n_single_token;
    uint32_t longest;     /* no run has more rows; 0: nobody says */
    int32_t *token;       /* [n_tokens]; resolve_tokens() replaces -1 by the slot's last token */
    const int32_t *pos;   /* [n_tokens] */
    const uint32_t *slot; /* [n_tokens] */
    const struct segment *segment; /* [n_segments] */
};

/* q, or k and v, may be NO_TENSOR: layers that read another's cache, and the projection of encoder
 * states. Where nothing is stored (kv.base NULL) k is changed in place like q; else k stays as it
 * was and v is read before it, so that v may be k (K = V). */
struct rope_store {
    struct tensor q, k, v;        /* [n, heads * head_dim] views; q is changed in place */
    struct tensor q_norm, k_norm; /* [head_dim] or NO_TENSOR; applied before rotation */
    bool v_norm;                  /* v is normed without a weight before it is stored */
    float norm_eps, norm_plus;    /* weight used: w + norm_plus (Gemma 3: 1) */
    struct tensor cos_sin; /* fp32 [max_pos, rot_dim]: cos of rot_dim/2, then sin; or NO_TENSOR */
    uint32_t n_heads, n_kv_heads, head_dim;
    struct kv_view kv; /* k and v go to (slot, pos); kv.base NULL: nothing is stored */
};

/* A row that sees no key gets zeros. Rows outside of all runs, and paged runs of SLOT_NONE, are
 * left alone; where k is stored, every row of a slot is of a run. */
struct attend {
    struct tensor out, q; /* [n, n_heads * head_dim] */
    struct kv_view kv;    /* kv.table set: paged. NULL: k and v below, rows of the same runs */
    /* [n, n_kv_heads * head_dim]. Paged: the rows' own, stored first, as rope_store() does without
     * norms and rotation; k NO_TENSOR: they have been */
    struct tensor k, v;
    /* Runs, table and what of the cache is not of k and v above were complete before this step's
     * resolve_tokens(): a kernel may read them while the op before it still runs */
    bool settled;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window;    /* key j is visible to query i iff i - window < j; 0 = all */
    uint32_t kept;      /* keys j < kept are beside a window; paged alone */
    bool causal;        /* j <= i; false: encoder and cross attention, keys 0 .. kv_len */
    float scale;        /* multiplies q.k; T5 uses 1 */
    float softcap;      /* s -> cap * tanh(s / cap), 0 = off */
    const float *sinks; /* [n_heads] or NULL */
    /* T5: added to q.k: bias[head * (2 * bias_reach + 1) + clamp(j - i, +-bias_reach) + bias_reach]
     */
    const float *bias;
    uint32_t bias_reach;
    /* Drafts' trees: bit j % 32 of mask[row * mask_words + j / 32]: the row sees key run.first_pos
     * + j. Keys before first_pos are seen as ever; the mask stands for causal among the run's own.
     * NULL: none */
    const uint32_t *mask;
    uint32_t mask_words;
};

/* x += in, x += in + in_bias or x += rms_norm(in); then y = norm(x). One pass over the rows; the
 * same bits as the ops one by one (add, rms_norm, or residual without in for a layer norm), because
 * x is fp32. A layer norm: (x - mean) / sqrt(var + eps) * y_norm + y_bias. */
enum residual_norm {
    RESIDUAL_RMS,
    RESIDUAL_LAYER,
    RESIDUAL_POST /* a layer norm, and x becomes its result too, before it is rounded to y */
};
struct residual {
    struct tensor x;         /* fp32 [n, d], in and out */
    struct tensor in;        /* [n, d], or NO_TENSOR: nothing is added */
    bool parts;              /* in is a part: all_reduce() first. What is in it then is undefined */
    struct tensor in_bias;   /* [d], or NO_TENSOR; not with in_norm */
    struct tensor in_norm;   /* [d], or NO_TENSOR: in is added as it is */
    struct tensor y;         /* [n, d], or NO_TENSOR: only x is wanted */
    struct tensor y_norm;    /* [d], or NO_TENSOR: weight 1 */
    struct tensor y_bias;    /* [d], or NO_TENSOR; a layer norm's */
    float eps, plus;         /* of both norms, as rms_norm(); plus: not of a layer norm */
    enum residual_norm norm; /* y's */
};

/* Rows and their experts, on the device: each row has n_top pairs. Sorted pairs are in the order of
 * experts, and of rows within one. */
struct pairs {
    uint32_t n_tokens, n_top, n_experts;
    uint32_t
        *expert;  /* [n_tokens][n_top] whose; n_experts: a row of SLOT_NONE, which has no pairs */
    float *share; /* [n_tokens][n_top] */
    uint32_t *place; /* [n_tokens][n_top] among the sorted ones */
    uint32_t *row;   /* [n_tokens * n_top] of a sorted one */
    uint32_t *first; /* [n_experts + 1] sorted ones of expert e: first[e] .. first[e + 1] */
};

/* Each row to the n_top experts with the largest logits, best first, lowest expert on ties; shares
 * are the softmax over those, times scale[expert]. NaN is the least. sigmoid: to those with the
 * largest s + bias, s = 1 / (1 + exp(-logit)); shares are s / (the sum of theirs + 1e-20) times
 * factor. Source: NemotronHTopkRouter. */
struct route {
    struct tensor logits; /* fp32 [n_tokens, n_experts] */
    bool sigmoid;
    struct tensor bias;   /* sigmoid: fp32 [n_experts] */
    float factor;         /* multiplies logits, or shares: above 0 */
    struct tensor scale;  /* fp32 [n_experts] or NO_TENSOR */
    const uint32_t *slot; /* [n_tokens] as rows.slot, or NULL: every row is somebody's */
    struct pairs pairs;   /* out */
};

/* y[p] = x w[expert]^T + bias[expert] for every sorted pair p. */
struct expert_matmul {
    struct tensor y; /* [n_tokens * n_top, out], of x's dtype */
    struct tensor
        x; /* by_row: [n_tokens, k], the pair's row's; else [n_tokens * n_top, k], the pair's own */
    struct tensor
        w; /* [n_experts * out, k], one expert below the other; may be MXFP4 beside any x */
    struct tensor bias; /* fp32 [n_experts, out] or NO_TENSOR */
    bool by_row;
};

/* Streams of Gemma 3n (AltUp): x is fp32 [n, n_streams * d], stream j its columns from j * d on.
 * Source: Gemma3nTextAltUp of transformers 5.17. */
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

/* Mamba-2's convolution over a sequence, channel by channel, for rows of runs: y = silu(sum over k
 * of w[k] x[pos - n_taps + 1 + k] + bias), k ascending; before position 0 all is zero. Inputs
 * before a run are what its slot's state has kept, fp32 [n_taps - 1][channels] from its start on,
 * oldest first; it keeps the last ones for the next. */
struct conv {
    struct tensor y, x; /* [n, channels] */
    struct tensor w;    /* fp32 [channels, n_taps], the row's own last; at most 8 */
    struct tensor bias; /* fp32 [channels] or NO_TENSOR */
    uint32_t n_taps;
    struct kv_view state; /* a layer's: kv_view */
};

/* Mamba-2's recurrence, row by row of a run, for each of n_heads with x of head_dim: state = state
 * exp(dt A) + (dt x) B, y = (state C + D x) silu(gate); A = -exp(a_log), dt = softplus(dt +
 * dt_bias) within dt_min .. dt_max. Heads of a group follow each other and share B and C. Position
 * 0 begins with zeros. */
struct scan {
    struct tensor y, gate;           /* [n, n_heads * head_dim] */
    struct tensor x;                 /* [n, n_heads * head_dim + 2 n_groups * state_dim]: x, B, C */
    struct tensor dt;                /* [n, n_heads] */
    struct tensor dt_bias, a_log, d; /* fp32 [n_heads] */
    float dt_min, dt_max;
    uint32_t n_heads, head_dim, n_groups, state_dim;
    uint32_t state_at; /* bytes from the state's start: fp32 [n_heads][head_dim][state_dim] */
    struct kv_view state;
};

/* One block's way: device memory or pinned host memory on either side, 16-byte aligned. */
struct block_copy {
    void *to;
    const void *from;
};
/* Of every pitch bytes of a block the first used are copied; pitch 0: all of it. Multiples of 16.
 */
struct block_size {
    size_t bytes, pitch, used;
};

/* One row of logits to turn into a token and log-probabilities. On the device. A slot has one
 * sampled row in a call (and any number of targets). Forced: log-probability 0, as transformers
 * scores it. A NaN is never chosen; a row of nothing but NaN and bans makes lane.error() -EIO,
 * unless it has neither slot nor target: padding. top_k keeps exactly k. */
struct sample_row {
    uint32_t slot; /* whose last token is written (and seen[]), or SLOT_NONE */
    uint64_t seed;
    uint32_t output,
        position;      /* noise is keyed by (seed, output, position of the generated token) */
    float temperature; /* 0: argmax, lowest id on ties */
    float top_p, min_p, repetition; /* 1, 0, 1: off */
    uint32_t top_k;                 /* 0: off */
    int32_t force;                  /* >= 0: this token, whatever the logits (forced BOS, EOS) */
    int32_t target;                 /* >= 0: sample nothing, report this token's log-probability */
    uint32_t first_suppressed, n_suppressed; /* into ban[]: -inf (end tokens before min_tokens) */
    uint32_t first_logit_bias,
        n_logit_bias;          /* into logit_bias[]: added after the penalty, each id once a row */
    uint32_t allowed;          /* row of allowed[] that counts, or ALLOW_ALL */
    uint32_t n_top, first_top; /* log-probabilities wanted; 0 with logprob still computed if want */
    bool want_logprob;
    /* A beam's: log-probabilities are taken first, of the logits as they come; penalty, nudges,
     * bans and force act on them, and they are what is chosen from and reported, not normalised
     * again. struct sample.beams says that there is such a row. */
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
    struct tensor logits; /* fp32 [n, vocab]; may be changed in place */
    /* Of several ranks: each has its own columns of logits, as all_gather() takes them in place.
     * All draw the same. */
    bool parts;
    const struct sample_row *row; /* [n] */
    const int32_t *ban;
    const struct logit_bias *logit_bias;
    bool beams; /* a row may be a beam's */
    /* [][allowed_words] bits: a token whose bit is 0, or that has none, is -inf (constrained
     * decoding). NULL: no row has any */
    const uint32_t *allowed;
    uint32_t allowed_words;
    uint32_t n;
    const uint32_t *seen; /* [n_slots][seen_words] bits of tokens in the history, for repetition */
    uint32_t seen_words;
    int32_t *last;  /* [n_slots] */
    int32_t *token; /* [n] out: sampled, forced, or target */
    float *logprob; /* [n] out: of that token, natural log, after penalties, before temperature */
    struct top
        *top; /* out: row i's n_top (<= 1,024) best from row[i].first_top on, best first, low id
                 on ties; id -1 beyond the vocabulary */
};

struct table_edit {
    uint32_t table; /* group */
    uint32_t slot, entry;
    slice_id at; /* SLICE_NONE: evicted */
};
struct tables {
    uint32_t n, stride[8]; /* groups, at most 8; entries a row */
    slice_id *table[8];    /* [n_slots][stride] */
};

/* One shape that op tune has measured, in microseconds: with the library's first guess, and with
 * the best. best 0: there was nothing to choose from. */
struct tune_result {
    uint32_t n, k, rows, n_tried;
    float first, best;
};

struct gpu;
struct lane;
struct graph; /* a captured piece of a step */

enum { GPU_MAX_RANKS = 8, GPU_PARTITIONS = 4 };
#define GPU_GROUP_BYTES (UINT64_C(20) << 20)

struct gpu_options {
    /* "cpu", "cuda", "cuda:N,M...": a GPU a rank; without numbers those from 0 on */
    const char *device;
    const char *isa; /* CPU: "auto", "scalar", "avx2" */
    /* CUDA; each may be NULL */
    /* folder of cuBLASLt and NCCL; NULL: CUDA_PATH, /usr/local/cuda, the loader's path */
    const char *libs;
    const char *tuning_file; /* measured matmul algorithms: see lane.tune; absent: heuristics */
    const char *kernels; /* "attend=generic,matmul=blas": only these candidates, for bisecting */
    bool invariant;      /* a row's bits do not depend on its company */
    bool timing;         /* for benchmarks: lane_gaps() */
    /* That are to work beside each other; 0: as may be. A driver needs less for one, and is up
     * sooner. */
    uint32_t n_lanes;
    /* Ranks of a group: processes with a device each, that hold one model between them, open their
     * lanes in the same order and queue the same ops. n_ranks 0 and 1: alone. */
    uint32_t rank, n_ranks;
    int group_fd; /* a memfd of GPU_GROUP_BYTES, zeros at first, the same for all; the caller's */
};

/* Every call goes through this table. An op of the op table (ops.h) appends to the lane's queue and
 * returns at once. */
struct gpu_ops {
    const char *name; /* "cpu", "cuda" */
    struct {
        /* Memory that outlives this process: one allocation, one fd, mapped once. Never grown. */
        int (*arena_make)(struct gpu *g, const char *name, uint64_t bytes, struct arena *ret,
                          struct err *e);
        /* The file must have exactly that many bytes. On success the arena owns the fd. */
        int (*arena_adopt)(struct gpu *g, int fd, uint64_t bytes, struct arena *ret, struct err *e);
        void (*arena_drop)(struct gpu *g, struct arena *a); /* unmaps and closes it */
        /* Reserves the addresses only. */
        int (*host_open)(struct gpu *g, uint64_t bytes, struct host_memory *ret, struct err *e);
        /* Makes the fd of a piece. */
        int (*host_make)(struct gpu *g, struct host_memory *m, uint32_t piece, struct err *e);
        /* Maps the next piece. -EINVAL: its fd does not have the size of a piece. */
        int (*host_map)(struct gpu *g, struct host_memory *m, struct err *e);
        /* Unmaps and closes all pieces. No copy may be in flight. */
        void (*host_close)(struct gpu *g, struct host_memory *m);
        int (*host_pin)(struct gpu *g, void *p, size_t bytes);
        /* Before the memory is unmapped. No copy may be in flight. */
        void (*host_unpin)(struct gpu *g, void *p, size_t bytes);

        /* Queued copies. dst, src: arena memory. host: any memory that stays until the copy is
         * done, pinned if the copy must not block the caller. A put may read its host memory before
         * earlier ops are done. */
        int (*put)(struct lane *l, void *dst, const void *host, size_t bytes);
        int (*get)(struct lane *l, void *host, const void *src, size_t bytes);
        int (*copy)(struct lane *l, void *dst, const void *src, size_t bytes);
        GPU_MEMORY_OPS(GPU_MEMBER, )
    } mem;
    struct {
        /* units: SMs, or threads. */
        int (*open)(struct gpu *g, uint32_t units, struct lane **ret, struct err *e);
        void (*close)(struct lane *l); /* waits for all queued work */
        /* Work queued from now on runs on units first .. first + n of those that the lane was
         * opened with. Lanes on parts that do not overlap do not take each other's units. CPU: a
         * lane has threads of its own, and n of them work. CUDA: the first n SMs, or the last. A
         * partition of the device is made when it is first asked for, which takes milliseconds; one
         * of GPU_PARTITIONS is replaced that no lane is on and no graph was recorded on (-EBUSY:
         * there is none; -ENOMEM, -EINVAL: the lane stays where it was). -ENOTSUP: the device
         * cannot be divided, see gpu_parts(). */
        int (*part)(struct lane *l, uint32_t first, uint32_t n);
        /* Queued: done() returns step from then on. Steps count up. To restart step numbering,
         * queue mark(0) on an idle lane and wait until done() returns 0; before that, old step
         * numbers compare as new ones, for gpu_wait() as for after(). */
        int (*mark)(struct lane *l, uint64_t step);
        uint64_t (*done)(const struct lane *l); /* no system call */
        /* Queued: later work of this lane waits for that step of the other lane. The step must have
         * been marked there (else -EINVAL), so that no order of waits can block for ever. The other
         * lane must not be closed before the wait is over. */
        int (*after)(struct lane *l, const struct lane *other, uint64_t step);
        int (*fd)(const struct lane *l); /* CPU: eventfd, readable after a mark; CUDA: -1, poll */
        int (*error)(const struct lane *l); /* 0, or -EIO once the device has failed */
        /* Takes one shape of the matmuls that this lane has done and that gpu_options.tuning_file
         * has no row for, times every algorithm on the tensors used last, and stores the fastest in
         * that file. 1: measured one; 0: no shape is left. Overwrites the last results of matmuls.
         * Not queued: takes up to 0.1 s, during which no other lane may have work. */
        int (*tune)(struct lane *l, struct tune_result *ret);
    } lane;
    struct {
        /* Ops between begin and end are recorded, not run; run queues them again as one piece.
         * Device addresses, sizes and the part of the device are fixed then, contents are not: run
         * needs the lane on that part (else -EINVAL). put and get may not be recorded. A lane
         * records one graph at a time. CPU: -ENOTSUP, and gpu_graphs() is false. */
        int (*begin)(struct lane *l);
        /* bytes: device memory that the graph takes. */
        int (*end)(struct lane *l, struct graph **ret, uint64_t *bytes);
        int (*launch)(struct lane *l, struct graph *g);
        void (*drop)(struct lane *l, struct graph *g); /* must not be running */
    } graph;
    struct {
        /* Named ranges of host time for a profiler; they nest. CPU: no effect. */
        void (*range_begin)(struct lane *l, const char *name);
        void (*range_end)(struct lane *l);
        /* Queued: intervals of device time, with gpu_options.timing. lane_gaps() returns number and
         * sum of the gaps between the end of one and the begin of the next, so far. Without timing,
         * and on the CPU: no effect, and zeros. */
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

/* Before gpu_open() with the same options, or not at all: what of it takes none of the device's
 * memory. A GPU's driver is up then, which need not come up for whoever opens that GPU next, nor go
 * down when its last user dies; there is no context. A thread that nobody waits for loads cuBLASLt.
 * A GPU's memory.used shows 4 MiB. The CPU has nothing to begin. -EINVAL and -ENODEV as gpu_open().
 */
int gpu_begin(const struct gpu_options *o, struct err *e) MUST_USE;
/* Open a device by name. ops: every call goes through it; it checks shapes and then calls the
 * device. */
int gpu_open(struct gpu **ret, const struct gpu_options *o, struct err *e) MUST_USE;
void gpu_close(struct gpu *g);
const struct gpu_ops *gpu_ops(const struct gpu *g);
const char *gpu_why(const struct gpu *g); /* the last failure's sentence */
uint32_t gpu_units(const struct gpu *g);  /* SMs, or cores we may use */
/* How the device can be divided among lanes: each part has at least so many units, and is a
 * multiple of grain or what such a one leaves. grain 0: it cannot, and why says why, if there is
 * anything to say. */
struct gpu_parts {
    uint32_t least, grain;
    const char *why;
};
struct gpu_parts gpu_parts(const struct gpu *g);
uint32_t gpu_rank(const struct gpu *g);
uint32_t gpu_ranks(const struct gpu *g); /* at least 1 */
/* By what they speak to each other and what it took to begin, for a log; "": nothing to say. */
const char *gpu_group(const struct gpu *g);
/* Of activations between matrices of that dtype. */
enum dtype gpu_act_dtype(const struct gpu *g, enum dtype weights);
bool gpu_graphs(const struct gpu *g);
/* Device memory now: what is free, what this process could not give back (context, modules,
 * libraries), and all there is. CPU: MemAvailable, 0, MemTotal. */
int gpu_memory(const struct gpu *g, uint64_t *free, uint64_t *own, uint64_t *total);
const char *gpu_describe(const struct gpu *g); /* "cpu (2 cores, avx2)" */
/* Until lane.done() is one of first .. last, however long that takes: not while serving. -EIO: the
 * device has failed, before or by then. */
int gpu_wait(struct lane *l, uint64_t first, uint64_t last);

#endif
