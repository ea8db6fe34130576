/* cuda_pick.c - the op table of the CUDA device and the candidates (kernels) of every op, in the
 * order in which they are tried.
 *
 * The first candidate that does not refuse runs an op; a candidate refuses by returning
 * cudaErrorInvalidValue and has then queued nothing. gpu_options.kernels allows only the candidates
 * that it names. To add a candidate: include its header, add a line to the list of its op, add its
 * .cu to gpu/Makefile.inc.
 *
 * A line has the name, the lowest and the highest compute capability * 10 (0: any), and the
 * function. gpu/ops.h documents the ops.
 */
#include "gpu/cuda/cuda_candidates.h"

#include "gpu/cuda/cuda.h"
#include "gpu/cuda/cuda_blas.h"
#include "gpu/cuda/cuda_ranks.h"
#include "gpu/cuda/kernels/attention/attend_decode_ring_sm90.h"
#include "gpu/cuda/kernels/attention/attend_decode_sm90.h"
#include "gpu/cuda/kernels/attention/attend_generic.h"
#include "gpu/cuda/kernels/attention/attend_prefill_sm90.h"
#include "gpu/cuda/kernels/attention/attend_sm80.h"
#include "gpu/cuda/kernels/attention/rope_store.h"
#include "gpu/cuda/kernels/elementwise/altup.h"
#include "gpu/cuda/kernels/elementwise/embed.h"
#include "gpu/cuda/kernels/elementwise/gate.h"
#include "gpu/cuda/kernels/gemm/matmul_generic.h"
#include "gpu/cuda/kernels/gemm/matmul_skinny.h"
#include "gpu/cuda/kernels/gemm/matmul_skinny_sm90.h"
#include "gpu/cuda/kernels/gemm/matmul_streamk_sm90.h"
#include "gpu/cuda/kernels/memory/checksum.h"
#include "gpu/cuda/kernels/memory/random_fill.h"
#include "gpu/cuda/kernels/memory/step_inputs.h"
#include "gpu/cuda/kernels/moe/experts.h"
#include "gpu/cuda/kernels/moe/route.h"
#include "gpu/cuda/kernels/norm/norm.h"
#include "gpu/cuda/kernels/sampling/sample.h"
#include "gpu/cuda/kernels/ssm/mamba2.h"

#include <stdio.h>

/* Defines the struct of a candidate of each op. Other function types do not compile. */
#define CANDIDATE(p, name, params, args) \
    struct name##_candidate { \
        struct candidate c; \
        k_##name##_kernel *launch; \
    };
GPU_EVERY_OP(CANDIDATE, )

#define LIST(name) static const struct name##_candidate name##_by[CUDA_CANDIDATES + 1]
#define GENERIC(function) \
    { \
        { "generic", 0, 0 }, function \
    }

/* clang-format off */
LIST(copy_blocks) = {
    { { "engine", 0, 0 }, cuda_blocks_by_engine },
    GENERIC(cuda_blocks_by_kernel),
};
LIST(checksum) = { GENERIC(k_checksum) };
LIST(fill_random) = { GENERIC(k_fill_random) };
LIST(update_tables) = { GENERIC(k_update_tables) };
LIST(resolve_tokens) = { GENERIC(k_resolve_tokens) };
LIST(mark_tokens) = { GENERIC(k_mark_tokens) };
LIST(embed) = { GENERIC(k_embed) };
LIST(rms_norm) = { GENERIC(k_rms_norm) };
LIST(residual) = { GENERIC(k_residual) };
LIST(matmul) = {
    { { "ring", 90, 90 }, k_matmul_streamk_sm90 },
    { { "small", 80, 0 }, k_matmul_skinny },
    { { "line", 90, 90 }, cuda_blas_matmul_line },
    { { "sm90", 90, 90 }, k_matmul_skinny_sm90 },
    { { "blas", 0, 0 }, cuda_blas_matmul },
    GENERIC(k_matmul_generic),
};
LIST(act_matmul) = {
    { { "small", 80, 0 }, k_act_matmul_skinny },
    { { "blas", 0, 0 }, cuda_blas_act_matmul },
    GENERIC(k_act_matmul_generic),
};
LIST(gate_matmul) = {
    { { "ring", 90, 90 }, k_gate_matmul_streamk_sm90 },
    { { "small", 80, 0 }, k_gate_matmul_skinny },
    { { "sm90", 90, 90 }, k_gate_matmul_skinny_sm90 },
    { { "blas", 0, 0 }, cuda_blas_gate_matmul },
    GENERIC(k_gate_matmul_generic),
};
LIST(add) = { GENERIC(k_add) };
LIST(act) = { GENERIC(k_act) };
LIST(gate) = { GENERIC(k_gate) };
LIST(scale) = { GENERIC(k_scale) };
LIST(mul) = { GENERIC(k_mul) };
LIST(gaussian_topk) = { GENERIC(k_gaussian_topk) };
LIST(match_rms) = { GENERIC(k_match_rms) };
LIST(altup) = { GENERIC(k_altup) };
LIST(route) = { GENERIC(k_route) };
LIST(expert_matmul) = {
    { { "mma", 80, 0 }, k_experts_sm80 },
    GENERIC(k_experts_generic),
};
LIST(combine) = { GENERIC(k_combine) };
LIST(gather_rows) = { GENERIC(k_gather_rows) };
LIST(rope_store) = { GENERIC(k_rope_store) };
LIST(attend) = {
    { { "ring", 90, 90 }, k_attend_decode_ring_sm90 },
    { { "one", 90, 90 }, k_attend_decode_sm90 },
    { { "sm90", 90, 90 }, k_attend_prefill_sm90 },
    { { "mma", 80, 0 }, k_attend_sm80 },
    GENERIC(k_attend_generic),
};
LIST(conv) = { GENERIC(k_conv) };
LIST(scan) = { GENERIC(k_scan) };
LIST(sample) = { { { "split", 0, 0 }, k_sample } };
LIST(all_reduce) = {
    { { "small", 0, 0 }, cuda_reduce_small },
    { { "nccl", 0, 0 }, cuda_reduce_nccl },
    { { "peer", 0, 0 }, cuda_reduce_peer },
};
LIST(all_gather) = {
    { { "small", 0, 0 }, cuda_gather_small },
    { { "nccl", 0, 0 }, cuda_gather_nccl },
    { { "peer", 0, 0 }, cuda_gather_peer },
};
/* clang-format on */

#define CHOICE(p, name, params, args) [OP_##name] = { #name, name##_by, sizeof name##_by[0] },
static const struct candidates op_table[OP_COUNT] = { GPU_EVERY_OP(CHOICE, ) };

int
cuda_pick_open(struct cuda *c, const char *kernels, struct err *e)
{
    return cuda_candidates_parse(kernels, op_table, OP_COUNT, c->sm, c->allowed, e);
}

bool
cuda_pick_may(const struct cuda *c, enum cuda_op op, const char *name)
{
    const char *at = op_table[op].first;

    for (uint32_t i = 0; ((const struct candidate *)at)->name; i++, at += op_table[op].stride)
        if (strcmp(((const struct candidate *)at)->name, name) == 0) return c->allowed[op] >> i & 1;
    return false;
}

/* Returns the error that no candidate allowed by gpu_options.kernels supports the arguments. */
static int
refused(struct lane *l, enum cuda_op op)
{
    return err_set(&l->gpu->why, -ENOTSUP,
                   "%s: option kernels allows no kernel that supports these shapes and dtypes",
                   op_table[op].op);
}

/* Runs the first allowed candidate that does not refuse; returns `none` if all refuse. */
#define PICK_OR(none, lane, op, ...) \
    do { \
        const struct cuda *pick_c = cuda_of(lane); \
        struct cuda_lane *pick_l = (struct cuda_lane *)(lane); \
        cuda_enter(pick_c); \
        for (uint32_t pick_i = 0; op##_by[pick_i].launch; pick_i++) { \
            cudaError_t pick_r; \
            if (!(pick_c->allowed[OP_##op] >> pick_i & 1)) continue; \
            pick_r = op##_by[pick_i].launch(&pick_l->k, __VA_ARGS__); \
            if (pick_r == cudaSuccess) return 0; \
            if (pick_r != cudaErrorInvalidValue) return cuda_failed(lane, pick_r, #op); \
        } \
        return none; \
    } while (0)

#define PASS_ON(p, name, params, args) \
    static int p##_##name(struct lane *l, GPU_UNPAREN params) \
    { \
        PICK_OR(refused(l, OP_##name), l, name, GPU_UNPAREN args); \
    }
GPU_EVERY_OP(PASS_ON, cuda)

/* Collectives of a lane, which first gets its channel. With one rank check.c does not call them. */
static int
join_and_reduce(struct lane *l, struct tensor x)
{
    TRY(cuda_ranks_join((struct cuda_lane *)l));
    return cuda_ranks_why((struct cuda_lane *)l, cuda_all_reduce(l, x));
}

static int
join_and_gather(struct lane *l, struct tensor out, struct tensor x)
{
    TRY(cuda_ranks_join((struct cuda_lane *)l));
    return cuda_ranks_why((struct cuda_lane *)l, cuda_all_gather(l, out, x));
}

/* r->parts: all-reduce and residual in one kernel if all_reduce may use "small", else two ops. */
static int
residual_of_ranks(struct lane *l, const struct residual *r)
{
    struct cuda_lane *cl = (struct cuda_lane *)l;

    if (r->parts && l->gpu->ranks > 1) {
        TRY(cuda_ranks_join(cl));
        if (cuda_pick_may(cuda_of(l), OP_all_reduce, "small")) {
            cudaError_t sum = cuda_residual_small(&cl->k, r);

            if (sum != cudaErrorInvalidValue) return cuda_failed(l, sum, "residual");
        }
        TRY(join_and_reduce(l, r->in));
    }
    return cuda_residual(l, r);
}

static int
sample_of_ranks(struct lane *l, const struct sample *s)
{
    struct cuda_lane *cl = (struct cuda_lane *)l;

    if (s->parts && l->gpu->ranks > 1) {
        TRY(cuda_ranks_join(cl));
        if (cuda_pick_may(cuda_of(l), OP_all_gather, "small")) {
            cudaError_t r = cuda_sample_parts(&cl->k, s);

            if (r != cudaErrorInvalidValue) return cuda_failed(l, r, "sample");
        }
        TRY(join_and_gather(l, s->logits, gpu_own_columns(l->gpu, s->logits)));
    }
    return cuda_sample(l, s);
}

/* Attends separately for single-token and longer segments, whose best candidates differ. */
static int
attend_segments(struct lane *l, const struct attend *a, struct step_tokens r)
{
    struct step_tokens single = r, rest = r;

    if (r.n_single_token == 0 || r.n_single_token >= r.n_segments) return cuda_attend(l, a, r);
    single.n_segments = r.n_single_token;
    rest.segment += r.n_single_token;
    rest.n_segments -= r.n_single_token;
    rest.n_single_token = 0;
    TRY(cuda_attend(l, a, single));
    return cuda_attend(l, a, rest);
}

static int
store_and_attend(struct lane *l, const struct attend *a, struct step_tokens r)
{
    struct rope_store store = attend_store(a);
    struct attend stored = *a;

    stored.k = stored.v = NO_TENSOR;
    TRY(cuda_rope_store(l, &store, r));
    return attend_segments(l, &stored, r);
}

/* Lets one candidate store K and V and attend. If all refuse (candidates for several tokens per
 * segment cannot store), rope_store and attend run as two ops. */
static int
attend(struct lane *l, const struct attend *a, struct step_tokens r)
{
    if (!a->kv.table || !a->k.data) return attend_segments(l, a, r);
    PICK_OR(store_and_attend(l, a, r), l, attend, a, r);
}

/* Several members have two initializers; the last counts. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
const struct gpu_ops cuda_ops = {
    .name = "cuda",
    GPU_TABLE(cuda).residual = residual_of_ranks,
    .sample = sample_of_ranks,
    .attend = attend,
    .collective.all_reduce = join_and_reduce,
    .collective.all_gather = join_and_gather,
};
#pragma GCC diagnostic pop
