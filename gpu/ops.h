/* ops.h - the op table: one row for each op that has a kernel, and the list of all entries of
 * struct gpu_ops.
 *
 * A row is X(p, name, parameters, arguments). From the rows come the members of struct gpu_ops
 * (gpu.h), the checking table (check.c), the CPU's prototypes and table (gpu/cpu), the enum, the
 * candidate types, the selection functions and the table of CUDA (cuda_pick.c). To add an op: a row
 * here, checked_NAME() in check.c, cpu_NAME(), and LIST(NAME) with its kernels in cuda_pick.c.
 *
 * An op queues its work on the lane and returns 0 or a negative errno: gpu.h. n is x.dim[0], and
 * tensors are [n, ...], unless the op says otherwise.
 */
#pragma once

/* clang-format off */

/* Members of ops->mem.
 *
 * copy_blocks: copies n blocks of one size; of each block all bytes or the used ones (struct
 * block_size). `copy` is an array in device memory. host_copy is the same array in any memory, read
 * before the call returns; NULL: only the device has the array. With host_copy, copy engines may
 * copy large blocks while kernels of other lanes run.
 *
 * checksum: *sum (device memory, 8-byte aligned) = the sum modulo 2^64, over 8-byte words w (the
 * last padded with zeros), of mix64(w + golden * (i + 1)), i = index of the word, golden =
 * 0x9e3779b97f4a7c15, mix64 as in splitmix64; every device computes the same sum. from is 16-byte
 * aligned.
 *
 * fill_random: fills t with numbers of the distribution N(0, std), or with uniform bytes if t is
 * U8; every device computes the same. Element (i, j) depends only on seed and on the number first +
 * i * pitch + j, so that a rank can fill its part of a matrix with the values that the whole matrix
 * would have. pitch 0: the columns of t. */
#define GPU_MEMORY_OPS(X, p) \
    X(p, copy_blocks, (const struct block_copy *copy, const struct block_copy *host_copy, \
                       uint32_t n, struct block_size size), (copy, host_copy, n, size)) \
    X(p, checksum, (uint64_t *sum, const void *from, size_t bytes), (sum, from, bytes)) \
    X(p, fill_random, (struct tensor t, uint64_t seed, uint64_t first, uint64_t pitch, float std), \
      (t, seed, first, pitch, std))

/* Members of ops->step, which prepare the inputs of a step on the device.
 *
 * update_tables   applies edits of the block tables in order.
 * resolve_tokens  replaces tokens of -1 by the token that the slot sampled last: r.token[i] =
 *                 last[r.slot[i]]. It also waits until all earlier work of the lane is complete.
 *                 CUDA kernels may start while the previous kernel runs; because of this wait,
 *                 every kernel after resolve_tokens may read the results of work before it.
 * mark_tokens     adds the tokens of these segments to the history of their slots; a segment at
 *                 position 0 clears the slot's seen bits first. */
#define GPU_STEP_OPS(X, p) \
    X(p, update_tables, (struct tables t, const struct table_edit *edit, uint32_t n), \
      (t, edit, n)) \
    X(p, resolve_tokens, (struct step_tokens r, const int32_t *last), (r, last)) \
    X(p, mark_tokens, (struct token_history h, struct step_tokens r, \
                       const struct segment *segment, uint32_t n_segments), \
      (h, r, segment, n_segments))

/* The computation.
 *
 * embed          x[i] = scale * table[token[i]]. A token beyond the table gets row 0, as in Gemma
 *                3n, whose table of each layer's inputs is shorter than the vocabulary.
 * rms_norm       y = x / sqrt(mean(x^2) + eps) * (w + plus); w may be NO_TENSOR; x fp32 or as y.
 * residual       see struct residual.
 * matmul         y = x w^T + bias + beta y; w [out, in].
 * act_matmul     y = act(x w^T + bias).
 * gate_matmul    y = act(x w1^T) * (x w2^T); w [2f, k], w1 its first f rows. both [n, 2f] is
 *                scratch.
 * add            y += x; y fp32 or as x.
 * act            y = act(x).
 * gate           y = act(first f columns) * last f columns of gate_up [n, 2f].
 * scale          x = softcap tanh(factor x / softcap); softcap 0: x = factor x.
 * mul            y = x w; w [n, d], or [1, d] for every row, or NO_TENSOR: a copy; x fp32 or as y.
 *                y may be x.
 * gaussian_topk  x = max(0, x - (mean + factor std)), mean and std of each row. Source: Gemma 3n.
 * match_rms      y *= sqrt(mean(like^2) / max(mean(y^2), least)), row by row; both fp32.
 * altup, route, expert_matmul, rope_store, attend, conv, scan, sample: see their structs.
 * combine        y[i] = sum over j of share[i][j] x[place[i][j]], j ascending;
 *                x [n_tokens * n_top, d].
 * gather_rows    y[i] = x[which[i]]. */
#define GPU_OPS(X, p) \
    X(p, embed, (struct tensor x, struct tensor table, const int32_t *token, float scale), \
      (x, table, token, scale)) \
    X(p, rms_norm, (struct tensor y, struct tensor x, struct tensor w, float eps, float plus), \
      (y, x, w, eps, plus)) \
    X(p, residual, (const struct residual *r), (r)) \
    X(p, matmul, (struct tensor y, struct tensor x, struct tensor w, struct tensor bias, \
               float beta), (y, x, w, bias, beta)) \
    X(p, act_matmul, (struct tensor y, struct tensor x, struct tensor w, struct tensor bias, \
                   enum act a), (y, x, w, bias, a)) \
    X(p, gate_matmul, (struct tensor y, struct tensor both, struct tensor x, struct tensor w, \
                    enum act a), (y, both, x, w, a)) \
    X(p, add, (struct tensor y, struct tensor x), (y, x)) \
    X(p, act, (struct tensor y, struct tensor x, enum act a), (y, x, a)) \
    X(p, gate, (struct tensor y, struct tensor gate_up, enum act a), (y, gate_up, a)) \
    X(p, scale, (struct tensor x, float factor, float softcap), (x, factor, softcap)) \
    X(p, mul, (struct tensor y, struct tensor x, struct tensor w), (y, x, w)) \
    X(p, gaussian_topk, (struct tensor x, float factor), (x, factor)) \
    X(p, match_rms, (struct tensor y, struct tensor like, float least), (y, like, least)) \
    X(p, altup, (const struct altup *a), (a)) \
    X(p, route, (const struct route *r), (r)) \
    X(p, expert_matmul, (const struct expert_matmul *m, const struct pairs *pairs), (m, pairs)) \
    X(p, combine, (struct tensor y, struct tensor x, const struct pairs *pairs), (y, x, pairs)) \
    X(p, gather_rows, (struct tensor y, struct tensor x, const uint32_t *which), (y, x, which)) \
    X(p, rope_store, (const struct rope_store *s, struct step_tokens r), (s, r)) \
    X(p, attend, (const struct attend *a, struct step_tokens r), (a, r)) \
    X(p, conv, (const struct conv *c, struct step_tokens r), (c, r)) \
    X(p, scan, (const struct scan *s, struct step_tokens r), (s, r)) \
    X(p, sample, (const struct sample *s), (s))

/* Members of ops->collective. With one rank they queue nothing. All ranks queue the same
 * collectives of a lane in the same order.
 *
 * all_reduce  x = the sum of all ranks' x, added in rank order: the same bits on every rank. A GPU
 *             without invariant numerics may add more than two ranks in another order, the same on
 *             every rank.
 * all_gather  out [n, d] = the x of all ranks, in rank order: rank r has the columns
 *             [d * r / n_ranks, d * (r + 1) / n_ranks). fp32. x may be that part of out. */
#define GPU_COLLECTIVES(X, p) \
    X(p, all_reduce, (struct tensor x), (x)) \
    X(p, all_gather, (struct tensor out, struct tensor x), (out, x))

#define GPU_EVERY_OP(X, p) \
    GPU_MEMORY_OPS(X, p) GPU_STEP_OPS(X, p) GPU_OPS(X, p) GPU_COLLECTIVES(X, p)

/* The entries of struct gpu_ops that are not rows of the lists above: X(p, member struct, member,
 * name of the function without prefix). */
#define GPU_CALLS(X, p) \
    X(p, mem, arena_make, arena_make) X(p, mem, arena_adopt, arena_adopt) \
    X(p, mem, arena_drop, arena_drop) X(p, mem, host_open, host_open) \
    X(p, mem, host_make, host_make) X(p, mem, host_map, host_map) \
    X(p, mem, host_close, host_close) X(p, mem, host_pin, host_pin) \
    X(p, mem, host_unpin, host_unpin) X(p, mem, put, put) X(p, mem, get, get) \
    X(p, mem, copy, copy) \
    X(p, lane, open, lane_open) X(p, lane, close, lane_close) X(p, lane, part, lane_part) \
    X(p, lane, mark, lane_mark) X(p, lane, done, lane_done) X(p, lane, after, lane_after) \
    X(p, lane, fd, lane_fd) X(p, lane, error, lane_error) X(p, lane, tune, lane_tune) \
    X(p, graph, begin, graph_begin) X(p, graph, end, graph_end) \
    X(p, graph, launch, graph_launch) X(p, graph, drop, graph_drop) \
    X(p, profile, range_begin, range_begin) X(p, profile, range_end, range_end) \
    X(p, profile, work_begin, work_begin) X(p, profile, work_end, work_end) \
    X(p, profile, lane_gaps, lane_gaps)

/* Macros for X: a row becomes a member of struct gpu_ops, a prototype or an initializer. */
#define GPU_UNPAREN(...) __VA_ARGS__
#define GPU_MEMBER(p, name, params, args) int (*name)(struct lane *l, GPU_UNPAREN params);
#define GPU_PROTOTYPE(p, name, params, args) int p##_##name(struct lane *l, GPU_UNPAREN params);
#define GPU_CALL_PROTOTYPE(p, part, member, name) \
    __typeof__(*((struct gpu_ops *)0)->part.member) p##_##name;
#define GPU_ENTRY(p, name, params, args) .name = p##_##name,
#define GPU_MEMORY_ENTRY(p, name, params, args) .mem.name = p##_##name,
#define GPU_CALL_ENTRY(p, part, member, name) .part.member = p##_##name,

/* Initializer of all members of struct gpu_ops except name, from functions with the prefix p. */
#define GPU_TABLE(p) \
    GPU_CALLS(GPU_CALL_ENTRY, p) GPU_MEMORY_OPS(GPU_MEMORY_ENTRY, p) \
    .step = { GPU_STEP_OPS(GPU_ENTRY, p) }, \
    .collective = { GPU_COLLECTIVES(GPU_ENTRY, p) }, \
    GPU_OPS(GPU_ENTRY, p)

/* clang-format on */
