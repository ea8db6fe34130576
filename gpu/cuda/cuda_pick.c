/* cuda_pick.c - every op's candidates, in the order they are asked, and the table of ops.
 *
 * An op goes to the first candidate that does not refuse: a k_ function that returns
 * cudaErrorInvalidValue has queued nothing. gpu_options.kernels leaves only those it names. To add a
 * candidate: its header above, its line in its op's list, its .cu in Makefile.am.
 *
 * A line is name, lowest and highest sm (0: any), function.
 */
#include "gpu/cuda/cuda_choice.h"

#include "gpu/cuda/cuda.h"
#include "gpu/cuda/cuda_blas.h"
#include "gpu/cuda/cuda_group.h"
#include "gpu/cuda/kernels/attend_any.h"
#include "gpu/cuda/kernels/attend_mma.h"
#include "gpu/cuda/kernels/attend_one_sm90.h"
#include "gpu/cuda/kernels/attend_ring_sm90.h"
#include "gpu/cuda/kernels/attend_sm90.h"
#include "gpu/cuda/kernels/blocks.h"
#include "gpu/cuda/kernels/checksum.h"
#include "gpu/cuda/kernels/embed.h"
#include "gpu/cuda/kernels/experts.h"
#include "gpu/cuda/kernels/fill.h"
#include "gpu/cuda/kernels/gate.h"
#include "gpu/cuda/kernels/matmul_any.h"
#include "gpu/cuda/kernels/matmul_ring_sm90.h"
#include "gpu/cuda/kernels/matmul_sm90.h"
#include "gpu/cuda/kernels/matmul_small.h"
#include "gpu/cuda/kernels/norm.h"
#include "gpu/cuda/kernels/rope_store.h"
#include "gpu/cuda/kernels/route.h"
#include "gpu/cuda/kernels/rows.h"
#include "gpu/cuda/kernels/sample.h"
#include "gpu/cuda/kernels/state.h"
#include "gpu/cuda/kernels/streams.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A list of one op's candidates; the function's type is the op's, so that a wrong one does not compile. */
#define LIST(op, ...) \
    typedef cudaError_t k_##op##_fn(const struct k_lane *l, __VA_ARGS__); \
    static const struct { \
        struct candidate c; \
        k_##op##_fn *run; \
    } op##_by[CUDA_CANDIDATES + 1]

/* clang-format off */
LIST(copy_blocks, const struct block_copy *copy, const struct block_copy *same, uint32_t n,
     struct block_size size) = {
    { { "engine", 0, 0 }, cuda_blocks_by_engine },
    { { "any", 0, 0 }, cuda_blocks_by_kernel },
};
LIST(checksum, uint64_t *sum, const void *p, size_t bytes) = {
    { { "any", 0, 0 }, k_checksum },
};
LIST(fill_random, struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch, float std) = {
    { { "any", 0, 0 }, k_fill_random },
};
LIST(edit, struct tables t, const struct table_edit *edit, uint32_t n) = {
    { { "any", 0, 0 }, k_edit },
};
LIST(tokens, struct rows r, const int32_t *last) = {
    { { "any", 0, 0 }, k_tokens },
};
LIST(see, uint32_t *seen, uint32_t seen_words, struct rows r, const struct run *run,
     uint32_t n_runs) = {
    { { "any", 0, 0 }, k_see },
};
LIST(embed, struct tensor x, struct tensor table, const int32_t *token, float scale) = {
    { { "any", 0, 0 }, k_embed },
};
LIST(rms_norm, struct tensor y, struct tensor x, struct tensor w, float eps, float plus) = {
    { { "any", 0, 0 }, k_rms_norm },
};
LIST(residual, const struct residual *r) = {
    { { "any", 0, 0 }, k_residual },
};
LIST(matmul, struct tensor y, struct tensor x, struct tensor w, struct tensor bias, float beta) = {
    { { "ring", 90, 90 }, k_matmul_ring_sm90 },
    { { "small", 80, 0 }, k_matmul_small },
    { { "line", 90, 90 }, cuda_blas_matmul_line },
    { { "sm90", 90, 90 }, k_matmul_sm90 },
    { { "blas", 0, 0 }, cuda_blas_matmul },
    { { "any", 0, 0 }, k_matmul_any },
};
LIST(act_matmul, struct tensor y, struct tensor x, struct tensor w, struct tensor bias,
     enum act a) = {
    { { "small", 80, 0 }, k_act_matmul_small },
    { { "blas", 0, 0 }, cuda_blas_act_matmul },
    { { "any", 0, 0 }, k_act_matmul_any },
};
LIST(gate_matmul, struct tensor y, struct tensor both, struct tensor x, struct tensor w,
     enum act a) = {
    { { "ring", 90, 90 }, k_gate_matmul_ring_sm90 },
    { { "small", 80, 0 }, k_gate_matmul_small },
    { { "sm90", 90, 90 }, k_gate_matmul_sm90 },
    { { "blas", 0, 0 }, cuda_blas_gate_matmul },
    { { "any", 0, 0 }, k_gate_matmul_any },
};
LIST(add, struct tensor y, struct tensor x) = {
    { { "any", 0, 0 }, k_add },
};
LIST(act, struct tensor y, struct tensor x, enum act a) = {
    { { "any", 0, 0 }, k_act },
};
LIST(gate, struct tensor y, struct tensor gate_up, enum act a) = {
    { { "any", 0, 0 }, k_gate },
};
LIST(scale, struct tensor x, float factor, float softcap) = {
    { { "any", 0, 0 }, k_scale },
};
LIST(times, struct tensor y, struct tensor x, struct tensor w) = {
    { { "any", 0, 0 }, k_times },
};
LIST(sparsify, struct tensor x, float factor) = {
    { { "any", 0, 0 }, k_sparsify },
};
LIST(level, struct tensor y, struct tensor like, float least) = {
    { { "any", 0, 0 }, k_level },
};
LIST(altup, const struct altup *a) = {
    { { "any", 0, 0 }, k_altup },
};
LIST(route, const struct route *r) = {
    { { "any", 0, 0 }, k_route },
};
LIST(expert_matmul, const struct expert_matmul *m, const struct pairs *p) = {
    { { "mma", 80, 0 }, k_experts_mma },
    { { "any", 0, 0 }, k_experts_any },
};
LIST(combine, struct tensor y, struct tensor x, const struct pairs *p) = {
    { { "any", 0, 0 }, k_combine },
};
LIST(rows, struct tensor y, struct tensor x, const uint32_t *which) = {
    { { "any", 0, 0 }, k_rows },
};
LIST(rope_store, const struct rope_store *s, struct rows r) = {
    { { "any", 0, 0 }, k_rope_store },
};
LIST(attend, const struct attend *a, struct rows r) = {
    { { "ring", 90, 90 }, k_attend_ring_sm90 },
    { { "one", 90, 90 }, k_attend_one_sm90 },
    { { "sm90", 90, 90 }, k_attend_sm90 },
    { { "mma", 80, 0 }, k_attend_mma },
    { { "any", 0, 0 }, k_attend_any },
};
LIST(conv, const struct conv *c, struct rows r) = {
    { { "any", 0, 0 }, k_conv },
};
LIST(scan, const struct scan *s, struct rows r) = {
    { { "any", 0, 0 }, k_scan },
};
LIST(sample, const struct sample *s) = {
    { { "split", 0, 0 }, k_sample },
};

LIST(all_reduce, struct tensor x) = {
    { { "small", 0, 0 }, cuda_reduce_small },
    { { "nccl", 0, 0 }, cuda_reduce_nccl },
    { { "peer", 0, 0 }, cuda_reduce_peer },
};
LIST(all_gather, struct tensor out, struct tensor x) = {
    { { "small", 0, 0 }, cuda_gather_small },
    { { "nccl", 0, 0 }, cuda_gather_nccl },
    { { "peer", 0, 0 }, cuda_gather_peer },
};
/* clang-format on */

#define CHOICE(name) \
    { \
#name, name##_by, sizeof name##_by[0] \
    }
static const struct choice choice[OP_COUNT] = {
    [OP_COPY_BLOCKS] = CHOICE(copy_blocks),
    [OP_CHECKSUM] = CHOICE(checksum),
    [OP_FILL_RANDOM] = CHOICE(fill_random),
    [OP_EDIT] = CHOICE(edit),
    [OP_TOKENS] = CHOICE(tokens),
    [OP_SEE] = CHOICE(see),
    [OP_EMBED] = CHOICE(embed),
    [OP_RMS_NORM] = CHOICE(rms_norm),
    [OP_RESIDUAL] = CHOICE(residual),
    [OP_MATMUL] = CHOICE(matmul),
    [OP_ACT_MATMUL] = CHOICE(act_matmul),
    [OP_GATE_MATMUL] = CHOICE(gate_matmul),
    [OP_ADD] = CHOICE(add),
    [OP_ACT] = CHOICE(act),
    [OP_GATE] = CHOICE(gate),
    [OP_SCALE] = CHOICE(scale),
    [OP_TIMES] = CHOICE(times),
    [OP_SPARSIFY] = CHOICE(sparsify),
    [OP_LEVEL] = CHOICE(level),
    [OP_ALTUP] = CHOICE(altup),
    [OP_ROUTE] = CHOICE(route),
    [OP_EXPERT_MATMUL] = CHOICE(expert_matmul),
    [OP_COMBINE] = CHOICE(combine),
    [OP_ROWS] = CHOICE(rows),
    [OP_ROPE_STORE] = CHOICE(rope_store),
    [OP_ATTEND] = CHOICE(attend),
    [OP_CONV] = CHOICE(conv),
    [OP_SCAN] = CHOICE(scan),
    [OP_SAMPLE] = CHOICE(sample),
    [OP_ALL_REDUCE] = CHOICE(all_reduce),
    [OP_ALL_GATHER] = CHOICE(all_gather),
};

int
cuda_pick_open(struct cuda *c, const char *kernels, struct err *e)
{
    return cuda_choose(kernels, choice, OP_COUNT, c->sm, c->allowed, e);
}

bool
cuda_pick_may(const struct cuda *c, enum cuda_op op, const char *name)
{
    const char *at = choice[op].first;

    for (uint32_t i = 0; ((const struct candidate *)at)->name; i++, at += choice[op].stride)
        if (strcmp(((const struct candidate *)at)->name, name) == 0) return c->allowed[op] >> i & 1;
    return false;
}

/* Nobody took it: a shape or dtype that no kernel has, or one that was left out by hand. */
static int
refused(struct lane *l, enum cuda_op op)
{
    bool any = ((const struct candidate *)choice[op].first)->name;

    return err_set(&l->gpu->why, -ENOTSUP, "%s: %s", choice[op].op,
                   any ? "no kernel takes these shapes and dtypes"
                       : "this device has no kernel for it");
}

/* The first allowed candidate that does not refuse, or else. */
#define PICK(lane, op, which, ...) PICK_OR(refused(lane, which), lane, op, which, __VA_ARGS__)
#define PICK_OR(none, lane, op, which, ...) \
    do { \
        const struct cuda *pick_c = cuda_of(lane); \
        struct cuda_lane *pick_l = (struct cuda_lane *)(lane); \
        cuda_enter(pick_c); \
        for (uint32_t pick_i = 0; op##_by[pick_i].run; pick_i++) { \
            cudaError_t pick_r; \
            if (!(pick_c->allowed[which] >> pick_i & 1)) continue; \
            pick_r = op##_by[pick_i].run(&pick_l->k, __VA_ARGS__); \
            if (pick_r == cudaSuccess) return 0; \
            if (pick_r != cudaErrorInvalidValue) return cuda_failed(lane, pick_r, #op); \
        } \
        return none; \
    } while (0)

static int
copy_blocks(struct lane *l, const struct block_copy *copy, const struct block_copy *same,
            uint32_t n, struct block_size size)
{
    PICK(l, copy_blocks, OP_COPY_BLOCKS, copy, same, n, size);
}

static int
checksum(struct lane *l, uint64_t *sum, const void *p, size_t bytes)
{
    PICK(l, checksum, OP_CHECKSUM, sum, p, bytes);
}

static int
fill_random(struct lane *l, struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch,
            float std)
{
    PICK(l, fill_random, OP_FILL_RANDOM, t, seed, first, pitch, std);
}

static int
edit(struct lane *l, struct tables t, const struct table_edit *edits, uint32_t n)
{
    PICK(l, edit, OP_EDIT, t, edits, n);
}

static int
tokens(struct lane *l, struct rows r, const int32_t *last)
{
    PICK(l, tokens, OP_TOKENS, r, last);
}

static int
see(struct lane *l, uint32_t *seen, uint32_t seen_words, struct rows r, const struct run *run,
    uint32_t n_runs)
{
    PICK(l, see, OP_SEE, seen, seen_words, r, run, n_runs);
}

static int
embed(struct lane *l, struct tensor x, struct tensor table, const int32_t *token, float factor)
{
    PICK(l, embed, OP_EMBED, x, table, token, factor);
}

static int
rms_norm(struct lane *l, struct tensor y, struct tensor x, struct tensor w, float eps, float plus)
{
    PICK(l, rms_norm, OP_RMS_NORM, y, x, w, eps, plus);
}

static int all_reduce(struct lane *l, struct tensor x);

static int
residual(struct lane *l, const struct residual *r)
{
    if (r->parts && l->gpu->ranks > 1) {
        cudaError_t sum;

        TRY(cuda_group_join((struct cuda_lane *)l));
        sum = cuda_residual_small(&((struct cuda_lane *)l)->k, r);
        if (sum != cudaErrorInvalidValue) return cuda_failed(l, sum, "residual");
        TRY(all_reduce(l, r->in));
    }
    PICK(l, residual, OP_RESIDUAL, r);
}

static int
matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w, struct tensor bias,
       float beta)
{
    PICK(l, matmul, OP_MATMUL, y, x, w, bias, beta);
}

static int
gate(struct lane *l, struct tensor y, struct tensor gate_up, enum act a)
{
    PICK(l, gate, OP_GATE, y, gate_up, a);
}

static int
act_matmul(struct lane *l, struct tensor y, struct tensor x, struct tensor w, struct tensor bias,
           enum act a)
{
    PICK(l, act_matmul, OP_ACT_MATMUL, y, x, w, bias, a);
}

static int
gate_matmul(struct lane *l, struct tensor y, struct tensor both, struct tensor x, struct tensor w,
            enum act a)
{
    PICK(l, gate_matmul, OP_GATE_MATMUL, y, both, x, w, a);
}

static int
add(struct lane *l, struct tensor y, struct tensor x)
{
    PICK(l, add, OP_ADD, y, x);
}

static int
act(struct lane *l, struct tensor y, struct tensor x, enum act a)
{
    PICK(l, act, OP_ACT, y, x, a);
}

static int
scale(struct lane *l, struct tensor x, float factor, float softcap)
{
    PICK(l, scale, OP_SCALE, x, factor, softcap);
}

static int
times(struct lane *l, struct tensor y, struct tensor x, struct tensor w)
{
    PICK(l, times, OP_TIMES, y, x, w);
}

static int
sparsify(struct lane *l, struct tensor x, float factor)
{
    PICK(l, sparsify, OP_SPARSIFY, x, factor);
}

static int
level(struct lane *l, struct tensor y, struct tensor like, float least)
{
    PICK(l, level, OP_LEVEL, y, like, least);
}

static int
altup(struct lane *l, const struct altup *a)
{
    PICK(l, altup, OP_ALTUP, a);
}

static int
route(struct lane *l, const struct route *r)
{
    PICK(l, route, OP_ROUTE, r);
}

static int
expert_matmul(struct lane *l, const struct expert_matmul *m, const struct pairs *p)
{
    PICK(l, expert_matmul, OP_EXPERT_MATMUL, m, p);
}

static int
combine(struct lane *l, struct tensor y, struct tensor x, const struct pairs *p)
{
    PICK(l, combine, OP_COMBINE, y, x, p);
}

static int
rows(struct lane *l, struct tensor y, struct tensor x, const uint32_t *which)
{
    PICK(l, rows, OP_ROWS, y, x, which);
}

static int
rope_store(struct lane *l, const struct rope_store *s, struct rows r)
{
    PICK(l, rope_store, OP_ROPE_STORE, s, r);
}

static int
attend_runs(struct lane *l, const struct attend *a, struct rows r)
{
    PICK(l, attend, OP_ATTEND, a, r);
}

static int attend(struct lane *l, const struct attend *a, struct rows r);

static int
store_and_attend(struct lane *l, const struct attend *a, struct rows r)
{
    struct rope_store store = attend_store(a);
    struct attend stored = *a;

    stored.k = stored.v = NO_TENSOR;
    TRY(rope_store(l, &store, r));
    return attend(l, &stored, r);
}

/* Keys and values of the step's rows with it: no kernel stores those of more than one row on its way. */
static int
attend_own(struct lane *l, const struct attend *a, struct rows r)
{
    PICK_OR(store_and_attend(l, a, r), l, attend, OP_ATTEND, a, r);
}

/* Generation and prefill in one step are two calls: what is best for the one is not for the other. */
static int
attend(struct lane *l, const struct attend *a, struct rows r)
{
    struct rows single = r, rest = r;

    if (a->kv.table && a->k.data) return attend_own(l, a, r);
    if (r.n_single == 0 || r.n_single >= r.n_runs) return attend_runs(l, a, r);
    single.n_runs = r.n_single;
    rest.run += r.n_single;
    rest.n_runs -= r.n_single;
    rest.n_single = 0;
    TRY(attend_runs(l, a, single));
    return attend_runs(l, a, rest);
}

static int
conv(struct lane *l, const struct conv *c, struct rows r)
{
    PICK(l, conv, OP_CONV, c, r);
}

static int
scan(struct lane *l, const struct scan *s, struct rows r)
{
    PICK(l, scan, OP_SCAN, s, r);
}

static int all_gather(struct lane *l, struct tensor out, struct tensor x);

static int
sample(struct lane *l, const struct sample *s)
{
    if (s->parts && l->gpu->ranks > 1) {
        cudaError_t r;

        TRY(cuda_group_join((struct cuda_lane *)l));
        r = cuda_sample_parts(&((struct cuda_lane *)l)->k, s);
        if (r != cudaErrorInvalidValue) return cuda_failed(l, r, "sample");
        TRY(all_gather(l, s->logits, gpu_own_columns(l->gpu, s->logits)));
    }
    PICK(l, sample, OP_SAMPLE, s);
}

static int
pick_reduce(struct lane *l, struct tensor x)
{
    PICK(l, all_reduce, OP_ALL_REDUCE, x);
}

static int
pick_gather(struct lane *l, struct tensor out, struct tensor x)
{
    PICK(l, all_gather, OP_ALL_GATHER, out, x);
}

/* One rank: what would be reduced or gathered is complete, and check.c does not come here. */
static int
all_reduce(struct lane *l, struct tensor x)
{
    TRY(cuda_group_join((struct cuda_lane *)l));
    return cuda_group_why((struct cuda_lane *)l, pick_reduce(l, x));
}

static int
all_gather(struct lane *l, struct tensor out, struct tensor x)
{
    TRY(cuda_group_join((struct cuda_lane *)l));
    return cuda_group_why((struct cuda_lane *)l, pick_gather(l, out, x));
}

const struct gpu_ops cuda_ops = {
    .name = "cuda",
    .arena_make = cuda_arena_make,
    .arena_adopt = cuda_arena_adopt,
    .arena_drop = cuda_arena_drop,
    .host_open = cuda_host_open,
    .host_make = cuda_host_make,
    .host_map = cuda_host_map,
    .host_close = cuda_host_close,
    .host_pin = cuda_host_pin,
    .host_unpin = cuda_host_unpin,
    .lane_open = cuda_lane_open,
    .lane_part = cuda_lane_part,
    .lane_close = cuda_lane_close,
    .lane_mark = cuda_lane_mark,
    .lane_done = cuda_lane_done,
    .lane_after = cuda_lane_after,
    .lane_fd = cuda_lane_fd,
    .lane_error = cuda_lane_error,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_run = cuda_graph_run,
    .graph_drop = cuda_graph_drop,
    .range_begin = cuda_range_begin,
    .range_end = cuda_range_end,
    .work_begin = cuda_work_begin,
    .work_end = cuda_work_end,
    .lane_gaps = cuda_lane_gaps,
    .put = cuda_put,
    .get = cuda_get,
    .copy = cuda_copy,
    .copy_blocks = copy_blocks,
    .checksum = checksum,
    .fill_random = fill_random,
    .edit = edit,
    .tokens = tokens,
    .see = see,
    .embed = embed,
    .rms_norm = rms_norm,
    .residual = residual,
    .matmul = matmul,
    .act_matmul = act_matmul,
    .gate_matmul = gate_matmul,
    .tune = cuda_blas_tune,
    .add = add,
    .act = act,
    .gate = gate,
    .scale = scale,
    .times = times,
    .sparsify = sparsify,
    .level = level,
    .altup = altup,
    .route = route,
    .expert_matmul = expert_matmul,
    .combine = combine,
    .rows = rows,
    .rope_store = rope_store,
    .attend = attend,
    .conv = conv,
    .scan = scan,
    .sample = sample,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
};
